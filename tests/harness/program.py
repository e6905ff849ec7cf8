"""The `firn` program against a cluster."""
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def binary():
    """FIRN_PROGRAM, or what cargo built."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.environ.get("FIRN_PROGRAM", os.path.join(target, "release", "firn"))


def environment(cluster, **more):
    """Where libpq finds the cluster; its programs come first on the path."""
    return {**os.environ, "PGHOST": cluster.root, "PGPORT": str(cluster.port), "PGUSER": "postgres",
            "PATH": cluster.bin + ":" + os.environ["PATH"], "LC_ALL": "C", **more}


class Failed(AssertionError):
    """The program ended with another code than expected."""


def firn(cluster, *args, code=0, env=None, **kw):
    """Run it and expect this exit code (None: any); the result has both outputs as text."""
    r = subprocess.run([binary(), *map(str, args)], env=environment(cluster, **(env or {})), text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)
    if code is not None and r.returncode != code:
        raise Failed(f"firn {' '.join(map(str, args))}: exit code {r.returncode}\n{r.stdout}{r.stderr}")
    return r


def start(cluster, *args, env=None, **kw):
    """Start it and return at once."""
    return subprocess.Popen([binary(), *map(str, args)], env=environment(cluster, **(env or {})), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)


def tool(cluster, name, *args, check=True):
    """One of PostgreSQL's programs, as the user the tests run as; its standard output as bytes."""
    r = subprocess.run([os.path.join(cluster.bin, name), *map(str, args)], env=environment(cluster),
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if check and r.returncode != 0:
        raise Failed(f"{name} {' '.join(map(str, args))}: {r.stderr.decode(errors='replace')}")
    return r.stdout
