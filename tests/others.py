"""A core of the suites on other versions of PostgreSQL beside the tested one: FIRN_OTHERS names those that `make test` has installed the extension in.

`make test-all` runs all suites there."""
import json
import os
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What differs most between versions: statements, what survives a crash, stores; who follows a server by its log.
CORE = [["sql,cold,crash"], ["logical", "servers: "]]


def run(tally, pattern):
    for version in os.environ.get("FIRN_OTHERS", "").split():
        for chosen in CORE:
            name = f"on {version}: {' '.join(chosen).strip(' :')}"
            if pattern in name and not tally.late(name):
                on(tally, version, name, chosen)


def on(tally, version, name, chosen):
    """Run suites there; what they have counted is added."""
    with tempfile.TemporaryDirectory(prefix="firn-others-") as folder:
        results = os.path.join(folder, "results")
        r = subprocess.run([os.path.join(ROOT, "scripts", "suites-on.sh"), version, *chosen], text=True, errors="replace",
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ, FIRN_RESULTS=results))
        if not os.path.exists(results):
            tally.failed.append(f"{name}: ended before its end: {r.stdout[-600:]}")
            return
        with open(results) as f:
            found = json.load(f)
    if found["failed"]:
        print(r.stdout, flush=True)
    tally.skipped += [f"{version}: {what}" for what in found["skipped"]]
    tally.failed += [f"{version}: {what}" for what in found["failed"]]
    tally.passed += found["passed"]
    print(f"{'FAIL' if found['failed'] else 'ok  '} {name}: {found['passed']} passed, {len(found['failed'])} failed", flush=True)
