"""A core of the suites on other versions of PostgreSQL beside the tested one: FIRN_OTHERS names those that `make test` has installed the extension in.

`make test-all` runs all suites there."""
import glob
import os
import signal
import subprocess
import tempfile
import time
import traceback

from harness import lanes
from harness.tally import Missing, in_short

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What differs most between versions: statements, what survives a crash, stores; plans; who follows a server by its log.
CORE = [["sql,cold,crash"], ["reading", "plan of "], ["logical", "servers: "]]
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
                try:
                    on(tally, version, name, chosen)
                except Exception as e:
                    traceback.print_exc()
                    tally.failed.append(f"{name}: {in_short(e)}")


def missing():
    raise Missing("no other version is named: FIRN_OTHERS='17 18', where `make test` has built it")


def end(child, folder):
    """End what hangs, and the servers it has started there, which are no children of its."""
    # It ends its servers itself, if it can.
    try:
        os.killpg(child.pid, signal.SIGINT)
        child.wait(60)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()
    servers = list(left(folder))
    for how in (signal.SIGQUIT, signal.SIGCONT, signal.SIGKILL):
        for server in servers:
            if lives(server, folder):
                os.kill(server, how)
        limit = time.time() + 10
        while how != signal.SIGQUIT and any(lives(server, folder) for server in servers) and time.time() < limit:
            time.sleep(0.1)
    return child.returncode


def left(folder):
    for file in glob.glob(os.path.join(folder, "**", "postmaster.pid"), recursive=True):
        try:
            with open(file) as f:
                yield int(f.readline())
        except (OSError, ValueError):
            # It has ended meanwhile.
            continue


def lives(server, folder):
    try:
        return os.readlink(f"/proc/{server}/cwd").startswith(os.path.realpath(folder) + os.sep)
    except OSError:
        return False


def on(tally, version, name, chosen):
    """Run suites there; what they have counted is added."""
    with tempfile.TemporaryDirectory(prefix="firn-others-", dir=os.environ.get("FIRN_FOLDER"), ignore_cleanup_errors=True) as folder:
        # (The servers' user reads there.)
        os.chmod(folder, 0o755)
        results, log = os.path.join(folder, "results"), os.path.join(folder, "log")
        environment = dict(os.environ, FIRN_RESULTS=results, FIRN_FOLDER=folder)
        patience = min(PATIENCE, max(0, float(os.environ.get("FIRN_DEADLINE", "inf")) - time.time()) + BEYOND)
        with open(log, "w") as out:
            child = subprocess.Popen([os.path.join(ROOT, "scripts", "suites-on.sh"), version, *chosen], stdout=out, stderr=subprocess.STDOUT,
                                     env=environment, start_new_session=True)
            try:
                code = child.wait(patience)
            except subprocess.TimeoutExpired:
                code = end(child, folder)
            except BaseException:
                end(child, folder)
                raise
        with open(log, errors="replace") as f:
            said = f.read()
        found = lanes.counted(results) or {"passed": 0, "failed": [], "skipped": []}
    if code != (1 if found["failed"] else 0) or not (found["passed"] or found["skipped"]):
        found["failed"].append(f"{name}: {found['passed']} passed, exit code {code}")
    if found["failed"]:
        print(said, flush=True)
    tally.skipped += [f"{version}: {what}" for what in found["skipped"]]
    tally.failed += [f"{version}: {what}" for what in found["failed"]]
    tally.passed += found["passed"]
    print(f"{'FAIL' if found['failed'] else 'ok  '} {name}: {found['passed']} passed, {len(found['failed'])} failed", flush=True)
