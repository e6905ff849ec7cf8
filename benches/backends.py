"""Heap and firn side by side: memory of many sessions, idle and after work.

Run through `make bench-backends`. Private memory (not shared with others) of a session, in MB, the middle one of all: connected only, after look-ups of
random rows by key, after scans of the table that sum a column, and idle behind that.
"""
import argparse
import os
import random
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
from harness.cluster import Cluster  # noqa: E402

CONF = ["shared_buffers=1GB", "max_connections=260", "autovacuum=off", "jit=off", "max_parallel_workers_per_gather=0"]
AMS = ("heap", "firn")


def private(pid):
    """MB of memory that only this process has."""
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith(("Private_Clean", "Private_Dirty"))) / 1024


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--rows", type=int, default=2_000_000)
    args.add_argument("--sessions", type=int, default=200)
    args = args.parse_args()
    cluster = Cluster("backends", CONF).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn; SET firn.bulk_threshold = 0")
            for am in AMS:
                c.execute(f"CREATE TABLE rows_{am} USING {am} AS SELECT i AS id, i % 1000 / 10.0 AS n, 'kind ' || i % 50 AS kind, md5(i::text) AS text, "
                          f"timestamptz '2024-01-01' + i * interval '1 s' AS at FROM generate_series(1, {args.rows}) i")
                c.execute(f"ALTER TABLE rows_{am} ADD PRIMARY KEY (id)")
                c.execute(f"VACUUM ANALYZE rows_{am}")
        print(f"{args.sessions} sessions, {args.rows} rows of five columns; private MB of a session")
        table = {}
        for am in AMS:
            dice, sessions = random.Random(1), [cluster.connect() for _ in range(args.sessions)]
            pids = [s.info.backend_pid for s in sessions]
            measured = table.setdefault(am, {})

            def measure(what, measured=measured, pids=pids):
                measured[what] = statistics.median(map(private, pids))
            for s in sessions:
                s.execute("SELECT 1")
            measure("connected")
            for s in sessions:
                for _ in range(200):
                    s.execute(f"SELECT * FROM rows_{am} WHERE id = %s", (dice.randint(1, args.rows),))
            measure("after 200 look-ups")
            for s in sessions:
                s.execute(f"SELECT sum(n), max(kind), count(at) FROM rows_{am}")
            measure("after a scan")
            time.sleep(5)
            measure("idle behind that")
            for s in sessions:
                s.close()
        for what in table["heap"]:
            heap, firn = (table[am][what] for am in AMS)
            print(f"{what:20} heap {heap:6.1f}   firn {firn:6.1f}   ({firn / heap:.1f})")
    finally:
        cluster.destroy()


main()
