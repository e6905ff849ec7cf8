"""A core of the suites on other versions of PostgreSQL beside the tested one: FIRN_OTHERS names those that `make test` has installed the extension in.

`make test-all` runs all suites there."""
import glob
import os
import signal
import subprocess
import tempfile
import time

from harness import lanes
from harness.tally import Missing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What differs most between versions: statements, what survives a crash, stores; who follows a server by its log.
CORE = [["sql,cold,crash"], ["logical", "servers: "]]
# No more than so many seconds; and what has begun before the deadline is not to last long beyond it.
PATIENCE = 1800
BEYOND = 300


def run(tally, pattern):
    versions = os.environ.get("FIRN_OTHERS", "").split()
    if not versions:
        tally.case("others", missing)
    for version in versions:
        for chosen in CORE:
            name = f"on {version}: {' '.join(chosen).strip(' :')}"
            if pattern in name and not tally.late(name):
                on(tally, version, name, chosen)


def missing():
    raise Missing("no other version is named: FIRN_OTHERS=18, where `make test` has built it")


def end(child, folder):
    """End what hangs, and the servers it has started there, which are no children of its."""
    # It ends its servers itself, if it can.
    for how, seconds in (signal.SIGINT, 60), (signal.SIGKILL, None):
        try:
            os.killpg(child.pid, how)
            code = child.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            continue
    for file in glob.glob(os.path.join(folder, "**", "postmaster.pid"), recursive=True):
        try:
            with open(file) as f:
                server = int(f.readline())
            if os.readlink(f"/proc/{server}/cwd").startswith(folder):
                os.kill(server, signal.SIGQUIT)
        except (OSError, ValueError):
            # It has ended meanwhile.
            continue
    return code


def on(tally, version, name, chosen):
    """Run suites there; what they have counted is added."""
    with tempfile.TemporaryDirectory(prefix="firn-others-") as folder:
        # (The servers' user reads there.)
        os.chmod(folder, 0o755)
        results, log = os.path.join(folder, "results"), os.path.join(folder, "log")
        environment = dict(os.environ, FIRN_RESULTS=results, FIRN_FOLDER=folder)
        patience = min(PATIENCE, max(0, float(environment.pop("FIRN_DEADLINE", "inf")) - time.time()) + BEYOND)
        with open(log, "w") as out:
            child = subprocess.Popen([os.path.join(ROOT, "scripts", "suites-on.sh"), version, *chosen], stdout=out, stderr=subprocess.STDOUT,
                                     env=environment, start_new_session=True)
            try:
                code = child.wait(patience)
            except subprocess.TimeoutExpired:
                code = end(child, folder)
        with open(log, errors="replace") as f:
            said = f.read()
        found = lanes.counted(results) or {"passed": 0, "failed": [], "skipped": []}
    if code != (1 if found["failed"] else 0) or not found["passed"]:
        found["failed"].append(f"{name}: {found['passed']} passed, exit code {code}")
    if found["failed"]:
        print(said, flush=True)
    tally.skipped += [f"{version}: {what}" for what in found["skipped"]]
    tally.failed += [f"{version}: {what}" for what in found["failed"]]
    tally.passed += found["passed"]
    print(f"{'FAIL' if found['failed'] else 'ok  '} {name}: {found['passed']} passed, {len(found['failed'])} failed", flush=True)
