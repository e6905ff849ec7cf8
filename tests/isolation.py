"""PostgreSQL's own isolation specs, on heap and on firn: with the rows in the row store, with all inserted
rows in stripes, and with these read by FirnScan.

Heap's results on the same server are what is right. A case passes when the results are the same text,
or when the spec is listed in isolation/differences.md for that run and differs no more than it says there. Rows that lie in stripes come in another order
and have other TIDs: there, result sets are compared as sets, and TIDs are not compared.
"""
import difflib
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

from harness.cluster import Cluster, version
from regress import pg_config, prepare

HERE = os.path.dirname(os.path.abspath(__file__))
# Label, access method, settings.
RUNS = [("heap", "heap", []), ("row store", "firn", ["firn.enable_scan=off"]),
        ("stripes", "firn", ["firn.enable_scan=off", "firn.bulk_threshold=0"]),
        ("FirnScan", "firn", ["firn.bulk_threshold=0"])]
# Runs at a time.
AT_ONCE = 2
LIST = os.path.join(HERE, "isolation", "differences.md")


# The first row of a stripe, and the first of the row store: TIDs that a spec names mean what they mean on heap.
TIDS = {"(0,1)": "(2147483648,1)", "(0,3)": "(0,1)"}


def translate(folder):
    """Let the spec that finds rows by TID find them in stripes."""
    path = os.path.join(folder, "specs", "eval-plan-qual.spec")
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(re.sub(r"\(0,[13]\)", lambda m: TIDS[m.group()], text))


def play(label, am, settings, source, done):
    """Run the schedule on a private cluster; leave spec -> output in `done[label]`."""
    cluster = Cluster("isolation", conf=[
        f"default_table_access_method={am}", "fsync=off", *settings])
    try:
        cluster.create()
        folder = os.path.join(cluster.root, "isolation")
        shutil.copytree(source, folder)
        if "firn.bulk_threshold=0" in settings:
            translate(folder)
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
        done[label + " alarms"] = cluster.alarms(".")
    except Exception as e:  # noqa: BLE001 - reported by the case that needs the result
        done[label + " error"] = e
    finally:
        cluster.destroy()


def as_sets(text):
    """The text with the rows of each result set sorted and without TIDs."""
    lines, rows = [], None
    for line in text.splitlines():
        # Columns are as wide as their widest value.
        line = re.sub(r"-{2,}", "-", re.sub(r" +", " ", re.sub(r"\(\d+,\d+\)", "TID", line))).rstrip()
        line = re.sub(r" ?\| ?", "|", line)
        if rows is not None and re.fullmatch(r"\(\d+ rows?\)", line):
            lines += sorted(rows)
            rows = None
        if rows is not None:
            rows.append(line)
        else:
            lines.append(line)
        if re.fullmatch(r"-(\+-)*", line) and rows is None:
            rows = []
    return "\n".join(lines + (rows or []))


def run(tally, pattern):
    done = {}

    def play_all():
        source = os.path.join(os.path.dirname(prepare()), "isolation")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda run: play(*run, source, done), RUNS))
        for label, _, _ in RUNS:
            if label + " error" in done:
                raise done[label + " error"]
            assert len(done[label]) > 80, f"only {len(done[label])} results ({label})"
            assert label == "heap" or not done[label + " alarms"], done[label + " alarms"][:10]

    tally.case("isolation specs run on heap and on firn", play_all)
    if any(label not in done for label, _, _ in RUNS):
        return
    with open(LIST) as f:
        listed = re.findall(r"^- `([\w.-]+)` \(([\w ,]+)\)(?:, since (\d+))?, (\d+) lines: (.+)$", f.read(), re.M)
    known = {(name, label): (int(most), why) for name, labels, since, most, why in listed if version() >= int(since or 0) for label in labels.split(", ")}

    def compare(name, label):
        heap, firn = done["heap"][name], done[label].get(name, "")
        if label != "row store":
            heap, firn = as_sets(heap), as_sets(firn)
        most, why = known.get((name, label), (0, ""))
        diff = list(difflib.unified_diff(heap.splitlines(), firn.splitlines(), "heap", "firn", lineterm=""))
        lines = sum(line[0] in "+-" for line in diff[2:])
        if lines > most:
            raise AssertionError(f"{lines} lines differ\n" + "\n".join(diff[:60]))
        if lines:
            print(f"     {name} differs in {lines} lines, as listed: {why}")

    for name in done["heap"]:
        for label, am, _ in RUNS:
            if am == "firn" and pattern in name:
                tally.case(f"isolation {name} ({label})", lambda: compare(name, label))
