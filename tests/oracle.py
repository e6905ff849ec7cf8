"""SQL files on heap and on firn, in several placements of the rows; heap's output is what is right.

A file that begins with `-- since: N` is not run on versions before N. Each file runs as: heap; firn with rows in the row store; firn with every statement past five rows
writing stripes; firn with `settle()` moving rows into stripes, also with parallel plans forced. Outputs are compared as text.
"""
import difflib
import functools
import glob
import os
import re

from harness.cluster import Cluster, compiles, forced_parallel, version

HERE = os.path.dirname(os.path.abspath(__file__))
SETTLE_HEAP = "CREATE FUNCTION settle(regclass) RETURNS void LANGUAGE sql AS 'SELECT NULL::void';"
SETTLE_FIRN = """CREATE FUNCTION settle(r regclass) RETURNS void LANGUAGE plpgsql AS
'BEGIN PERFORM firn.compact(r); END';"""
PASSES = [
    ("row store", SETTLE_HEAP, ""),
    ("bulk", SETTLE_HEAP, "-c firn.bulk_threshold=5 -c firn.stripe_rows=100"),
    ("settled", SETTLE_FIRN, "-c firn.stripe_rows=100"),
    ("parallel", SETTLE_FIRN, f"-c firn.stripe_rows=100 -c {forced_parallel()}=on -c parallel_setup_cost=0 "
     "-c parallel_tuple_cost=0 -c min_parallel_table_scan_size=0 -c max_parallel_workers_per_gather=3"),
]


def run(tally, pattern):
    cluster = Cluster("sql").create()
    try:
        for path in sorted(glob.glob(os.path.join(HERE, "sql", "*.sql"))):
            name = os.path.basename(path)[:-4]
            if pattern and pattern not in name:
                continue
            if name == "compiled" and not compiles():
                print("sql compiled: not run, the server cannot compile", flush=True)
                continue
            sql = open(path).read().replace("force_parallel_mode", forced_parallel())
            if (since := re.match(r"-- since: (\d+)\n", sql)) and version() < int(since[1]):
                print(f"sql {name}: not run, it is about PostgreSQL {since[1]}", flush=True)
                continue
            # (Of heap once, by the first case that comes to it: as long as others it may take.)
            heap = functools.cache(lambda: output(cluster, "heap", sql, SETTLE_HEAP, ""))
            for label, settle, settings in PASSES:
                tally.case(f"sql {name} ({label})", lambda: compare(
                    heap(), output(cluster, "firn", sql, settle, settings)))
        tally.case("sql server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()


def output(cluster, am, sql, settle, settings):
    cluster.wait_ready()
    with cluster.connect() as c:
        c.execute("DROP DATABASE IF EXISTS t WITH (FORCE)")
        c.execute("CREATE DATABASE t")
    with cluster.connect("t") as c:
        c.execute("CREATE EXTENSION firn")
        c.execute(settle)
        c.execute(f"ALTER DATABASE t SET default_table_access_method = {am}")
    # An error in a parallel worker says so; which process it happens in is the planner's affair.
    return cluster.psql(sql, "t", settings).replace("CONTEXT:  parallel worker\n", "")


def compare(expected, got):
    if expected != got:
        diff = list(difflib.unified_diff(expected.splitlines(), got.splitlines(), "heap", "firn", lineterm=""))
        raise AssertionError("\n".join(diff[:60]))
