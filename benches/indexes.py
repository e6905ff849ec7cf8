"""Heap and firn side by side: building B-trees, and index-only scans.

Run through `make bench-indexes ROWS=10000000`. Rows of stripes, all settled. Times of builds are wall time, with and without parallel workers;
of scans processor time of a session without workers, in nanoseconds a row. The systems take turns; best of `--repeat`.
"""
import argparse
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
from harness.cluster import Cluster  # noqa: E402

CONF = ["shared_buffers=2GB", "maintenance_work_mem=512MB", "max_wal_size=16GB", "checkpoint_timeout=30min", "autovacuum=off", "jit=off",
        "max_worker_processes=16", "max_parallel_workers=8"]
AMS = ("heap", "firn")
# In the rows' order, in no order, a text of few values.
KEYS = {"ordered": "ordered", "random": "random", "text": "word"}
SCANS = {"ordered": "SELECT count(*) FROM {} WHERE ordered >= 0", "random": "SELECT sum(random) FROM {} WHERE random >= 0"}


def build(c, am, column, workers):
    """Seconds that CREATE INDEX takes."""
    c.execute(f"SET max_parallel_maintenance_workers = {workers}")
    began = time.time()
    c.execute(f"CREATE INDEX built ON rows_{am} ({column})")
    took = time.time() - began
    c.execute("DROP INDEX built")
    return took


def spent(pid):
    """Seconds of processor time."""
    with open(f"/proc/{pid}/schedstat") as f:
        return int(f.read().split()[0]) / 1e9


def scan(c, sql):
    before = spent(c.info.backend_pid)
    found = c.execute(sql).fetchall()
    return spent(c.info.backend_pid) - before, found


def told(name, best, unit):
    heap, firn = (best[am] for am in AMS)
    print(f"{name:28} heap {heap:8.2f}   firn {firn:8.2f} {unit}   ({firn / heap:.2f})", flush=True)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--rows", type=int, default=10_000_000)
    args.add_argument("--repeat", type=int, default=3)
    args = args.parse_args()
    cluster = Cluster("indexes", CONF).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn; SET firn.bulk_threshold = 0")
            for am in AMS:
                c.execute(f"CREATE TABLE rows_{am} USING {am} AS SELECT i AS ordered, (hashint8(i) & 2147483647) AS random, 'word ' || i % 997 AS word, "
                          f"md5(i::text) AS filler FROM generate_series(1::bigint, {args.rows}) i")
                c.execute(f"VACUUM ANALYZE rows_{am}")
            print(f"{args.rows} rows", flush=True)
            for name, column in KEYS.items():
                for workers in (0, 2):
                    best = {am: min(build(c, am, column, workers) for _ in range(args.repeat)) for am in AMS}
                    told(f"CREATE INDEX {name}, {workers} workers", best, "s ")
            c.execute("SET max_parallel_workers_per_gather = 0; SET enable_seqscan = off; SET enable_bitmapscan = off; SET firn.enable_scan = off")
            for name, sql in SCANS.items():
                for am in AMS:
                    c.execute(f"CREATE INDEX ON rows_{am} ({KEYS[name]})")
                    c.execute(f"VACUUM rows_{am}")
                best, answers = {}, {}
                for _ in range(args.repeat):
                    for am in AMS:
                        plan = str(c.execute("EXPLAIN " + sql.format(f"rows_{am}")).fetchall())
                        assert "Index Only Scan" in plan, plan
                        took, answers[am] = scan(c, sql.format(f"rows_{am}"))
                        best[am] = min(best.get(am, took), took)
                assert answers["heap"] == answers["firn"], answers
                told(f"index-only scan, {name}", {am: t / args.rows * 1e9 for am, t in best.items()}, "ns")
    finally:
        cluster.destroy()


main()
