"""A core of the suites on other versions of PostgreSQL beside the tested one: FIRN_OTHERS names those that `make test` has installed the extension in.

`make test-all` runs all suites there."""
import json
import os
import signal
import subprocess
import tempfile

from harness.tally import Missing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What differs most between versions: statements, what survives a crash, stores; who follows a server by its log.
CORE = [["sql,cold,crash"], ["logical", "servers: "]]


# No more than so many seconds.
PATIENCE = 1800


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


def on(tally, version, name, chosen):
    """Run suites there; what they have counted is added."""
    with tempfile.TemporaryDirectory(prefix="firn-others-") as folder:
        results, log = os.path.join(folder, "results"), os.path.join(folder, "log")
        with open(log, "w") as out:
            child = subprocess.Popen([os.path.join(ROOT, "scripts", "suites-on.sh"), version, *chosen], stdout=out, stderr=subprocess.STDOUT,
                                     env=dict(os.environ, FIRN_RESULTS=results), start_new_session=True)
            try:
                code = child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                code = child.wait()
        with open(log, errors="replace") as f:
            said = f.read()
        found = {"passed": 0, "failed": [], "skipped": []}
        if os.path.exists(results):
            with open(results) as f:
                found = json.load(f)
    if code != (1 if found["failed"] else 0) or not found["passed"]:
        found["failed"].append(f"{name}: {found['passed']} passed, exit code {code}")
    if found["failed"]:
        print(said, flush=True)
    tally.skipped += [f"{version}: {what}" for what in found["skipped"]]
    tally.failed += [f"{version}: {what}" for what in found["failed"]]
    tally.passed += found["passed"]
    print(f"{'FAIL' if found['failed'] else 'ok  '} {name}: {found['passed']} passed, {len(found['failed'])} failed", flush=True)
