"""PostgreSQL's own core regression tests, once on heap and once with every table made as firn.

Heap's results on the same server are what is right (Debian's source package may be of another minor
version than the server, and then heap differs from the expected files too). A case passes when both
results are the same text, or when the file is listed in regress/differences.md.
"""
import difflib
import os
import re
import shutil
import subprocess
import tempfile
import threading

from harness.cluster import Cluster, version
from harness.tally import Missing

HERE = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(HERE, "regress", "differences.md")
# Debian's suites whose source packages are those of versions that this machine's own suite does not have.
SUITES = {17: "trixie", 18: "sid"}
# Most files that may differ, however well explained.
MOST = 12


def expected_differences():
    """File names from lines that begin with a dash, the name in backquotes, and a colon."""
    with open(LIST) as f:
        listed = re.findall(r"^- `([\w.]+)`(?:, since (\d+))?: (.+)$", f.read(), re.M)
    return {name: why for name, since, why in listed if version() >= int(since or 0)}


def pg_config(what, of=None):
    return subprocess.check_output([of or os.environ["PG_CONFIG"], what], text=True).strip()


def runner(of=None):
    """The program that runs such tests, of the server of this pg_config."""
    return os.path.abspath(os.path.join(os.path.dirname(pg_config("--pgxs", of)), "..", "test", "regress", "pg_regress"))


def build_library(source, folder, of=None):
    """Build what the tests call into a folder."""
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-w", "-I", pg_config("--includedir-server", of),
                    "-o", os.path.join(folder, "regress.so"), os.path.join(source, "regress.c")], check=True)
    for name in ("refint.so", "autoinc.so"):
        shutil.copy(os.path.join(pg_config("--pkglibdir", of), name), folder)


def prepare(major=None):
    """The folder of the test files, of the tested server's version or another."""
    major = major or version()
    tools = os.path.join(os.environ["FIRN_TOOLS"], "postgresql-source" if major == 15 else f"postgresql-source-{major}")
    if major != 15 and major not in SUITES:
        raise Missing(f"no source package of PostgreSQL {major}")
    of = [str(major), SUITES[major]] if major in SUITES else []
    if subprocess.run([os.path.join(HERE, "regress", "source.sh"), tools, *of]).returncode:
        assert major != version(), f"the sources of PostgreSQL {major} cannot be had"
        raise Missing(f"the sources of PostgreSQL {major} cannot be had")
    source = next(d for d in os.listdir(tools) if re.fullmatch(r"postgresql-\d+", d))
    return os.path.join(tools, source, "src", "test", "regress")


def stage(cluster, source):
    """A copy of the test files that the server's user may read, and the libraries they call."""
    folder = os.path.join(cluster.root, "regress")
    shutil.copytree(source, folder)
    libraries = os.path.join(folder, "lib")
    os.mkdir(libraries)
    build_library(folder, libraries)
    if os.getuid() == 0:
        subprocess.run(["chown", "-R", "postgres:postgres", folder], check=True)
    return folder


def regress(am, source, settings, done):
    """Run the parallel schedule on a private cluster; leave name -> output in `done[am]`."""
    cluster = Cluster(f"regress-{am}", conf=[
        f"default_table_access_method={am}", "fsync=off", "autovacuum_naptime=1min", *settings])
    try:
        cluster.create()
        folder = stage(cluster, source)
        cluster.run(runner(), f"--bindir={cluster.bin}", f"--dlpath={folder}/lib",
                    f"--inputdir={folder}", f"--outputdir={folder}", f"--host={cluster.root}",
                    f"--port={cluster.port}", "--user=postgres", "--load-extension=firn",
                    f"--schedule={folder}/parallel_schedule", "--max-connections=10",
                    check=False, cwd=folder, timeout=1500)
        results = os.path.join(folder, "results")
        done[am] = {n[:-4]: open(os.path.join(results, n), errors="replace").read()
                    for n in sorted(os.listdir(results)) if n.endswith(".out")}
        done[am + " alarms"] = cluster.alarms(".")
    except Exception as e:  # noqa: BLE001 - reported by the case that needs the result
        done[am + " error"] = e
    finally:
        cluster.destroy()


def neutral(text):
    """Without what cannot be equal: the folder's name, and in plans that the scan of a table with stripes is
    called FirnScan where heap has a sequential scan (and the width of the column that says so)."""
    text = re.sub(r"/\S*firn-regress-\w+-\w+", "DIR", text)
    text = re.sub(r'^NOTICE:  index "\w+" will not be used\nDETAIL:.*\nHINT:.*\n', "", text, flags=re.M)
    if "QUERY PLAN" not in text:
        return text
    text = text.replace("Custom Scan (FirnScan)", "Seq Scan")
    return re.sub(r"^ *QUERY PLAN *\n-+$", "QUERY PLAN", text, flags=re.M)


def run(tally, pattern):
    done = {}

    def both():
        source = prepare()
        threads = [threading.Thread(target=regress, args=(am, source, [], done)) for am in ("heap", "firn")]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for am in ("heap", "firn"):
            if am + " error" in done:
                raise done[am + " error"]
        assert not done["firn alarms"], done["firn alarms"][:10]
        assert len(done["heap"]) > 150, f"only {len(done['heap'])} results"

    tally.case("regress runs on heap and on firn", both)
    if "heap" not in done or "firn" not in done:
        return
    keep = os.environ.get("FIRN_REGRESS_DIFFS") or tempfile.mkdtemp(prefix="firn-regress-diffs-")
    os.makedirs(keep, exist_ok=True)
    known = expected_differences()
    differing = []

    def compare(name):
        heap = neutral(done["heap"][name]).splitlines()
        firn = neutral(done["firn"].get(name, "")).splitlines()
        diff = list(difflib.unified_diff(heap, firn, "heap", "firn", lineterm=""))
        if diff:
            differing.append(name)
            with open(os.path.join(keep, name + ".diff"), "w") as f:
                f.write("\n".join(diff) + "\n")
            if name not in known:
                raise AssertionError("\n".join(diff[:40]))

    for name in done["heap"]:
        if not pattern or pattern in name:
            tally.case(f"regress {name}", lambda: compare(name))
    print(f"{len(differing)} of {len(done['heap'])} regression files differ from heap: {' '.join(differing)}")
    print(f"their differences are in {keep}")

    def few():
        assert len(differing) <= MOST, f"{len(differing)} files differ, at most {MOST} may"

    tally.case("regress few files differ", few)
