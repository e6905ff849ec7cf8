"""Other suites under settings that PostgreSQL is seldom run with.

A setting is lines of postgresql.conf that every cluster of a suite gets (FIRN_CONF, harness/cluster.py). Here each runs a
part of the suites, chosen to be small; FIRN_SETTINGS (comma-separated) names some settings, FIRN_SUITES (with spaces) whole
suites: `make test-settings SETTINGS=… SUITES=…`. What runs where, and what was found, is in docs/internals/testing.md.
"""
import atexit
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from harness.cluster import compiles, forced_parallel

HERE = os.path.dirname(os.path.abspath(__file__))
# Parts at a time.
AT_ONCE = 2
# Longest time for one part, seconds.
LONGEST = int(os.environ.get("FIRN_SETTINGS_SECONDS", "7200"))


class Setting:
    """`part` is what runs in `make test`: suites with their patterns."""

    def __init__(self, conf, part, standby=False, asserts=False, compiles=False, without=None):
        self.conf = conf
        self.part = part
        # With a standby that replays everything and compares pages.
        self.standby = standby
        # Only a server with assertions has it.
        self.asserts = asserts
        # Only a server built with LLVM compiles anything.
        self.compiles = compiles
        # Suites that cannot be run under it, with the reason.
        self.without = without or {}


WALK = ("walk", "whole")
SETTINGS = {
    # All that is slow here is slow on heap, too: autovacuum alone would fill the machine.
    "discard": Setting("debug_discard_caches=1; autovacuum_naptime=1h", [("walk", "short")], asserts=True),
    "parallel-regress": Setting(f"{forced_parallel()}=regress", [WALK, ("sql", "dml"), ("nesting", "cursors")]),
    "parallel-all": Setting("parallel_setup_cost=0; parallel_tuple_cost=0; min_parallel_table_scan_size=0; "
                            "min_parallel_index_scan_size=0; max_parallel_workers_per_gather=4", [WALK, ("sql", "counts")]),
    "wal": Setting("wal_consistency_checking=all", [WALK, ("vacuum", "anchors"), ("rewrites", "chains")], standby=True),
    "tiny-stripes": Setting("firn.bulk_threshold=0; firn.stripe_rows=2; firn.write_memory=1MB; firn.metadata_cache=1MB; firn.page_cache=0",
                            [WALK, ("sql", "transactions"), ("sql", "constraints")]),
    "tiny-memory": Setting("work_mem=64kB; maintenance_work_mem=1MB; temp_buffers=100; shared_buffers=8MB; "
                           "hash_mem_multiplier=1; logical_decoding_work_mem=64kB", [WALK, ("sql", "dml")]),
    "jit": Setting("jit=on; jit_above_cost=0; jit_inline_above_cost=0; jit_optimize_above_cost=0",
                   [("sql", "dml"), ("sql", "lookups"), ("reading", "lookups beside changes")], compiles=True),
    "generic-plans": Setting("plan_cache_mode=force_generic_plan", [WALK, ("sql", "programs")]),
    "serializable": Setting("default_transaction_isolation=serializable", [WALK, ("sql", "triggers")]),
    "repeatable-read": Setting("default_transaction_isolation='repeatable read'", [WALK, ("sql", "triggers")]),
    "few-locks": Setting("max_locks_per_transaction=10; max_connections=30; max_pred_locks_per_transaction=10",
                         [WALK, ("sessions", "serializable")]),
    "freeze": Setting("vacuum_freeze_min_age=0; vacuum_freeze_table_age=0; vacuum_multixact_freeze_min_age=0; "
                      "vacuum_multixact_freeze_table_age=0; autovacuum_naptime=1s; autovacuum_vacuum_threshold=0; "
                      "autovacuum_vacuum_insert_threshold=0; autovacuum_vacuum_cost_delay=0",
                      [WALK, ("sessions", "foreign key")]),
    "partitionwise": Setting("enable_partitionwise_join=on; enable_partitionwise_aggregate=on", [("sql", "windows")]),
    "no-FirnScan": Setting("firn.enable_scan=off; firn.enable_window_grouping=off", [WALK, ("sql", "windows")]),
}
# Each way of the executor forbidden; in `make test` those that lead to firn by others.
for method in ("seqscan", "indexscan", "indexonlyscan", "bitmapscan", "tidscan", "sort", "incremental_sort", "hashagg",
               "material", "memoize", "nestloop", "mergejoin", "hashjoin", "gathermerge", "parallel_append",
               "parallel_hash", "partition_pruning"):
    SETTINGS[f"no-{method}"] = Setting(
        f"enable_{method}=off", [WALK] if method in ("seqscan", "indexscan", "bitmapscan", "sort", "nestloop") else [])


def told(pg_config, what):
    return subprocess.run([pg_config, what], capture_output=True, text=True).stdout.strip()


@functools.cache
def assertions_server():
    """pg_config of a server with assertions: PG_CONFIG's, or a copy of what FIRN_ASSERT names, where the server's user may
    read it and with the firn that is tested; None if there is none."""
    own, other = os.environ["PG_CONFIG"], os.environ.get("FIRN_ASSERT")
    if "--enable-cassert" in told(own, "--configure") or not other:
        return own if "--enable-cassert" in told(own, "--configure") else None
    copy = tempfile.mkdtemp(prefix="firn-assert-")
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    os.chmod(copy, 0o755)
    shutil.copytree(os.path.dirname(told(other, "--bindir")), copy, symlinks=True, dirs_exist_ok=True)
    pg_config = os.path.join(copy, "bin", "pg_config")
    for folder, files in (("--pkglibdir", "firn.so"), ("--sharedir", "extension/firn*")):
        for path in glob.glob(os.path.join(told(own, folder), files)):
            to = os.path.join(told(pg_config, folder), os.path.relpath(path, told(own, folder)))
            shutil.copy(path, to)
            os.chmod(to, 0o755)
    return pg_config


def play(setting, suite, pattern):
    """Run a suite in a process of its own: (passed, failed, output)."""
    environment = dict(os.environ, FIRN_CONF=setting.conf)
    # What has begun is to end.
    environment.pop("FIRN_DEADLINE", None)
    if setting.standby:
        environment["FIRN_STANDBY"] = "1"
    if setting.asserts:
        environment["PG_CONFIG"] = assertions_server()
    command = [sys.executable, os.path.join(HERE, "run.py"), suite, *([pattern] if pattern else [])]
    r = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       timeout=LONGEST)
    last = re.findall(r"^(\d+) passed, (\d+) failed$", r.stdout, re.M)
    passed, failed = map(int, last[-1]) if last else (0, 1)
    # A suite's last case looks at the log: alone it says that the pattern fits none.
    return (passed, failed or int(passed < 2), r.stdout)


def run(tally, pattern):
    names = [n for n in (os.environ.get("FIRN_SETTINGS") or ",".join(SETTINGS)).split(",") if pattern in n]
    suites = os.environ.get("FIRN_SUITES", "").split()
    jobs = []
    for name in names:
        setting = SETTINGS[name]
        if setting.asserts and not assertions_server():
            print(f"{name}: not run, there is no server with assertions (`make assert-server` makes one)", flush=True)
            continue
        if setting.compiles and not compiles():
            print(f"{name}: not run, the server cannot compile", flush=True)
            continue
        for suite, part in [(s, "") for s in suites] or setting.part:
            if suite in setting.without:
                print(f"{name}: {suite} is not run: {setting.without[suite]}", flush=True)
            else:
                jobs.append((name, suite, part))

    def job(one):
        name, suite, part = one
        told = f"settings {name}: {suite} {part}".rstrip()
        if tally.late(told):
            return
        passed, failed, output = play(SETTINGS[name], suite, part)
        if failed:
            print(f"== {name}: {suite} {part}\n{output[-20000:]}", flush=True)
        tally.count(told, passed, failed)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(job, jobs))
