"""Run the suites: `run.py` all (but those of NAMED), `run.py SUITE [PATTERN]` one, `run.py SUITE,SUITE` some.

FIRN_LANES=N: all of them in lanes side by side, which have no server in common. Lane 1 begins with restore, which takes longest; the others
with the other suites, each of which is done by who comes to it first. Whoever has come through goes on with what is left of the rest. Lines of
a lane begin with as many bars as its number.
"""
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(__file__))
import analyze  # noqa: E402
import backup  # noqa: E402
import cold  # noqa: E402
import contention  # noqa: E402
import sessions  # noqa: E402
import crash  # noqa: E402
import differential  # noqa: E402
import docs  # noqa: E402
import documents  # noqa: E402
import frames  # noqa: E402
import golden  # noqa: E402
import growth  # noqa: E402
import isolation  # noqa: E402
import logical  # noqa: E402
import matrix  # noqa: E402
import nesting  # noqa: E402
import oracle  # noqa: E402
import others  # noqa: E402
import packages  # noqa: E402
import pairs  # noqa: E402
import pieces  # noqa: E402
import reading  # noqa: E402
import rebuild  # noqa: E402
import regress  # noqa: E402
import replica  # noqa: E402
import restore  # noqa: E402
import rewrites  # noqa: E402
import settings  # noqa: E402
import torture  # noqa: E402
import transactions  # noqa: E402
import trouble  # noqa: E402
import upgrade  # noqa: E402
import vacuum  # noqa: E402
import walk  # noqa: E402
from harness import lanes  # noqa: E402
from harness.tally import Tally  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def cargo(tally, _pattern):
    """Unit and property tests of the crates: those that need no server."""
    for crate in ("firn-format", "firn-scan", "firn-directory", "firn-workspace", "firn-lake", "firn-cli", "firn"):
        r = subprocess.run(["cargo", "test", "--release", "-p", crate], cwd=ROOT, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        found = re.findall(r"test result: \w+\. (\d+) passed; (\d+) failed", r.stdout)
        passed = sum(int(p) for p, _ in found)
        failed = sum(int(f) for _, f in found)
        if r.returncode != 0:
            print(r.stdout[-6000:])
            failed = max(failed, 1)
        tally.count(f"cargo test {crate}", passed, failed)


SUITES = {
    "cargo": cargo,
    "docs": docs.run,
    "sql": oracle.run,
    "sessions": sessions.run,
    "analyze": analyze.run,
    "frames": frames.run,
    "golden": golden.run,
    "growth": growth.run,
    "contention": contention.run,
    "differential": differential.run,
    "documents": documents.run,
    "nesting": nesting.run,
    "packages": packages.run,
    "pairs": pairs.run,
    "pieces": pieces.run,
    "reading": reading.run,
    "crash": crash.run,
    "cold": cold.run,
    "replica": replica.run,
    "torture": torture.run,
    "transactions": transactions.run,
    "trouble": trouble.run,
    "vacuum": vacuum.run,
    "rebuild": rebuild.run,
    "rewrites": rewrites.run,
    "backup": backup.run,
    "isolation": isolation.run,
    "logical": logical.run,
    "matrix": matrix.run,
    "regress": regress.run,
    "others": others.run,
    "restore": restore.run,
    "settings": settings.run,
    "upgrade": upgrade.run,
    "walk": walk.run,
}

# These run when they are named: `packages` builds with the profile `dist`, which takes many minutes.
NAMED = {"packages"}
ALL = [name for name in SUITES if name not in NAMED]
OTHERS = [name for name in ALL if name != "restore"]


def side_by_side(tally, count):
    """Each of so many lanes in a process of its own; what they have counted is added."""
    def lane(number, results):
        mark, suites = "| " * number, ["restore", *OTHERS] if number == lanes.OF_RESTORE else [*OTHERS, "restore"]
        own = dict(os.environ, FIRN_RESULTS=results, FIRN_CLAIMS=folder, FIRN_LANE=str(number), FIRN_SHARE_SEED=seed)
        child = subprocess.Popen([sys.executable, os.path.abspath(__file__), ",".join(suites)], text=True, errors="replace",
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=own)
        for line in child.stdout:
            print(mark + line, end="", flush=True)
        codes[number] = child.wait()

    seed, codes = os.environ.get("FIRN_SHARE_SEED") or str(random.SystemRandom().randrange(1 << 32)), {}
    with tempfile.TemporaryDirectory(prefix="firn-lanes-") as folder:
        files = [os.path.join(folder, str(n)) for n in range(count)]
        threads = [threading.Thread(target=lane, args=(n, files[n])) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, file in enumerate(files):
            found = lanes.counted(file)
            if not found or codes.get(number) != (1 if found["failed"] else 0):
                tally.failed.append(f"lane {number}: ended before its end, exit code {codes.get(number)}")
            if not found:
                continue
            tally.passed += found["passed"]
            tally.failed += found["failed"]
            tally.skipped += found["skipped"]


def main():
    tally = Tally()
    pattern = sys.argv[2] if len(sys.argv) > 2 else ""
    count = int(os.environ.get("FIRN_LANES", 1))
    if len(sys.argv) < 2 and count > 1:
        side_by_side(tally, count)
        tally.finish()
    chosen = sys.argv[1].split(",") if len(sys.argv) > 1 else ALL
    for name in chosen:
        # Of restore lanes do parts.
        if name != "restore" and not lanes.claim(f"suite {name}"):
            continue
        print(f"== {name}", flush=True)
        begin = time.time()
        SUITES[name](tally, pattern)
        if len(chosen) > 1:
            print(f"   {name}: {time.time() - begin:.0f} s", flush=True)
    tally.finish()


if __name__ == "__main__":
    main()
