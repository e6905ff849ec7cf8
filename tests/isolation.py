"""PostgreSQL's own isolation specs, on heap and on firn.

Heap's results on the same server are what is right. A case passes when the results are the same text,
or when the spec is listed in isolation/differences.md.
"""
import difflib
import os
import re
import shutil
import subprocess
import threading

from harness.cluster import Cluster
from regress import pg_config, prepare

HERE = os.path.dirname(os.path.abspath(__file__))
# Label, access method, settings.
RUNS = [("heap", "heap", []), ("row store", "firn", [])]
LIST = os.path.join(HERE, "isolation", "differences.md")


def play(label, am, settings, source, done):
    """Run the schedule on a private cluster; leave spec -> output in `done[label]`."""
    cluster = Cluster("isolation", conf=[
        f"default_table_access_method={am}", "fsync=off", "firn.enable_scan=off", *settings])
    try:
        cluster.create()
        folder = os.path.join(cluster.root, "isolation")
        shutil.copytree(source, folder)
        if os.getuid() == 0:
            subprocess.run(["chown", "-R", "postgres:postgres", folder], check=True)
        # A step that waits longer than this is cancelled: no spec waits for long when all is well.
        os.environ["PGISOLATIONTIMEOUT"] = "10"
        runner = os.path.join(os.path.dirname(pg_config("--pgxs")), "..", "test", "isolation",
                              "pg_isolation_regress")
        cluster.run(os.path.abspath(runner), f"--bindir={cluster.bin}", f"--inputdir={folder}",
                    f"--outputdir={folder}", f"--host={cluster.root}", f"--port={cluster.port}",
                    "--user=postgres", "--load-extension=firn", f"--schedule={folder}/isolation_schedule",
                    check=False, cwd=folder, timeout=1500)
        results = os.path.join(folder, "results")
        done[label] = {n[:-4]: open(os.path.join(results, n), errors="replace").read()
                       for n in sorted(os.listdir(results)) if n.endswith(".out")}
        done[label + " alarms"] = cluster.alarms()
    except Exception as e:  # noqa: BLE001 - reported by the case that needs the result
        done[label + " error"] = e
    finally:
        cluster.destroy()


def run(tally, pattern):
    done = {}

    def play_all():
        source = os.path.join(os.path.dirname(prepare()), "isolation")
        threads = [threading.Thread(target=play, args=(*run, source, done)) for run in RUNS]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for label, _, _ in RUNS:
            if label + " error" in done:
                raise done[label + " error"]
            assert len(done[label]) > 80, f"only {len(done[label])} results ({label})"
            assert label == "heap" or not done[label + " alarms"], done[label + " alarms"][:10]

    tally.case("isolation specs run on heap and on firn", play_all)
    if any(label not in done for label, _, _ in RUNS):
        return
    with open(LIST) as f:
        known = dict(re.findall(r"^- `([\w.-]+)`: (.+)$", f.read(), re.M))

    def compare(name, label):
        heap, firn = done["heap"][name], done[label].get(name, "")
        diff = list(difflib.unified_diff(heap.splitlines(), firn.splitlines(), "heap", "firn", lineterm=""))
        if diff and name in known:
            print(f"     {name} differs, as listed: {known[name]}")
        elif diff:
            raise AssertionError("\n".join(diff[:60]))

    for name in done["heap"]:
        for label, am, _ in RUNS:
            if am == "firn" and pattern in name:
                tally.case(f"isolation {name} ({label})", lambda: compare(name, label))
