"""Servers of several versions of PostgreSQL that the extension is installed in."""
import os
import re
import shutil
import subprocess

from harness.cluster import Cluster

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def asked(pg_config, what):
    return subprocess.check_output([pg_config, what], text=True).strip()


def copy(prefix, to):
    """Copy a server that scripts/postgresql.sh has put there."""
    shutil.copytree(prefix, to, symlinks=True)
    subprocess.run([os.path.join(ROOT, "scripts", "relocate-server.sh"), to], check=True)


def installed():
    """pg_config of each version that has the extension, by number: the tested server's, and those that scripts/ have built."""
    tools = os.environ.get("FIRN_TOOLS", os.path.join(ROOT, "target/tools"))
    kept = [folder for n in range(15, 30) if os.path.exists(os.path.join(folder := os.path.join(tools, f"postgresql-{n}"), ".firn-whole"))]
    candidates = [os.path.join(folder, "bin", "pg_config") for folder in kept] + [os.environ["PG_CONFIG"]]
    found = {}
    for path in candidates:
        if os.path.exists(path) and os.path.exists(os.path.join(asked(path, "--pkglibdir"), "firn.so")):
            found[int(re.search(r"\d+", asked(path, "--version"))[0])] = path
    return found


class Server(Cluster):
    """A server of the version of `pg_config`, with its programs. What is not where the server's user may read it is copied below `base`, once."""

    def __init__(self, name, pg_config, base, conf=(), preload="firn", copied=None):
        bindir = asked(pg_config, "--bindir")
        # (Not the folder above `bindir`, which may be far below.)
        tree = os.path.dirname(os.path.dirname(os.path.abspath(pg_config)))
        # A server that scripts/ have put there may have its libraries elsewhere than they were when it was linked.
        self.env = self.libraries(tree) if os.path.exists(os.path.join(tree, ".firn-whole")) else None
        readable = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        if copied or subprocess.run([*readable, "test", "-x", os.path.join(bindir, "postgres")], stderr=subprocess.DEVNULL).returncode:
            original, tree = tree, copied or os.path.join(base, "pg" + re.search(r"\d+", asked(pg_config, "--version"))[0])
            if not os.path.exists(tree):
                copy(original, tree)
            bindir = os.path.join(tree, "bin")
            self.env = self.libraries(tree)
        super().__init__(name, conf=conf, base=base, bindir=bindir, preload=preload)

    @staticmethod
    def libraries(tree):
        return dict(os.environ, LD_LIBRARY_PATH=os.path.join(tree, "lib"))

    def run(self, program, *args, **kw):
        kw.setdefault("env", self.env)
        return super().run(program, *args, **kw)

    def create_empty(self):
        """Files of a server that was never started, for pg_upgrade: as Cluster makes them, and without checksums, which not all versions have by default."""
        checksums = ["--no-data-checksums"] if "--no-data-checksums" in self.run("initdb", "--help").stdout else []
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8", *checksums)
        self.configure()
        return self
