"""Does the planner take the better path? Selectivity, correlation, columns read, joined or not: for each the path that it takes beside
each that it could have taken, of rows in stripes.

Run through `make bench-grid`. Times are processor times of the session, best of `--repeat`, in milliseconds, so that a busy machine matters less. A path
that is off by less than `SMALL` milliseconds is not told as wrong.
"""
import argparse
import os
import sys

import psycopg

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
from harness.cluster import Cluster  # noqa: E402

CONF = ["shared_buffers=1GB", "work_mem=64MB", "fsync=off", "autovacuum=off", "jit=off", "max_parallel_workers_per_gather=0"]
# 0: the key alone, which the index has.
COLUMNS = (0, 2, 10, 100)
KEYS = {"1": "ordered", "0.5": "half", "0": "random"}
SHARES = (0, 0.0001, 0.01, 0.1, 1)
GOAL = 1.3
SMALL = 0.3
# A path other than the one taken is given up after so many milliseconds, at least, and so many times the time of that.
LEAST, MANY = 1_000, 4
# What leaves the planner one way.
SINGLE = {
    "scan": "SET enable_indexscan = off; SET enable_bitmapscan = off",
    "index": "SET enable_seqscan = off; SET enable_bitmapscan = off",
    "bitmap": "SET enable_seqscan = off; SET enable_indexscan = off",
}
JOINED = {
    "scan": "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_nestloop = off",
    "index": "SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off",
    "bitmap": "SET enable_indexscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off",
    "merge": "SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_nestloop = off",
}


def processor_time(pid):
    """Nanoseconds that the process has run."""
    with open(f"/proc/{pid}/schedstat") as f:
        return int(f.read().split()[0])


def load(c, am, rows):
    """A key in the rows' order, one of which every other is so, and one at random; c1 to c100 of several kinds."""
    kinds = ("(i * {n} % 1000003)::int", "md5((i * {n})::text)", "(i * {n} % 99991 / 100.0)::numeric(12,2)", "(i * {n} % 500)::int",
             "'kind ' || i * {n} % 40")
    columns = ", ".join(f"{kinds[n % len(kinds)].format(n=n)} AS c{n}" for n in range(1, max(COLUMNS) + 1))
    c.execute(f"CREATE TABLE grid USING {am} AS SELECT i::int AS ordered, (CASE WHEN i % 2 = 0 THEN i ELSE i * 7919 % {rows} END)::int AS half, "
              f"(i * 7919 % {rows})::int AS random, {columns} FROM generate_series(0::bigint, {rows - 1}) i")
    for key in KEYS.values():
        c.execute(f"CREATE INDEX ON grid ({key})")
    c.execute("VACUUM ANALYZE grid")


def query(key, share, rows, columns, joined):
    values = ", ".join(f"max(c{n})" for n in range(1, columns + 1)) or f"sum({key})"
    count = max(1, int(rows * share))
    if not joined:
        where = f"{key} = {rows // 3}" if count == 1 else f"{key} >= {rows // 3 * (count < rows)} AND {key} < {rows // 3 * (count < rows) + count}"
        return f"SELECT {values} FROM grid WHERE {where}"
    return f"SELECT {values} FROM wanted JOIN grid ON grid.{key} = wanted.k WHERE wanted.n <= {count}"


def run(c, sql, settings, repeat, limit=300_000):
    """Least time, the kind of plan, and the answer; nothing of these but the plan where it takes more milliseconds than `limit`."""
    c.execute(f"RESET ALL; SET statement_timeout = {limit:.0f}")
    if settings:
        c.execute(settings)
    plan = "\n".join(line for [line] in c.execute("EXPLAIN (COSTS OFF) " + sql).fetchall())
    best, pid = None, c.info.backend_pid
    for _ in range(repeat):
        before = processor_time(pid)
        try:
            answer = c.execute(sql).fetchall()
        except psycopg.errors.QueryCanceled:
            return None, kind(plan), None
        took = (processor_time(pid) - before) / 1e6
        best = took if best is None else min(best, took)
        if took > 3_000:
            break
    return best, kind(plan), answer


def kind(plan):
    """How a plan reads the table."""
    for line in plan.splitlines():
        if " on grid" not in line:
            continue
        way = "bitmap" if "Bitmap Heap" in line else "index" if "Index" in line else "scan"
        return "merge" if way != "scan" and "Merge Join" in plan else way
    return "?"


def told(times, way):
    """Nothing where there is no such path, `more` where it was given up."""
    return f"{'':>9}" if way not in times else f"{'more':>9}" if times[way] is None else f"{times[way]:9.1f}"


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--rows", type=int, default=300_000)
    args.add_argument("--repeat", type=int, default=3)
    args.add_argument("--am", default="firn")
    args.add_argument("--deleted", type=int, default=0, help="one in so many rows is deleted")
    args.add_argument("--columns", default=",".join(map(str, COLUMNS)))
    args = args.parse_args()
    cluster = Cluster("grid", CONF).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
            load(c, args.am, args.rows)
            if args.deleted:
                c.execute(f"DELETE FROM grid WHERE ordered % {args.deleted} = 0")
                c.execute("VACUUM ANALYZE grid")
            # Of the keys so many, in no order.
            c.execute(f"CREATE TABLE wanted USING heap AS SELECT row_number() OVER (ORDER BY hashint8(i)) AS n, i::int AS k FROM generate_series(0, {args.rows - 1}) i")
            c.execute("CREATE UNIQUE INDEX ON wanted (n)")
            c.execute("VACUUM ANALYZE wanted")
            compare(c, args, [int(n) for n in args.columns.split(",")])
    finally:
        cluster.destroy()


def compare(c, args, counts):
    deleted = f", one of {args.deleted} deleted" if args.deleted else ""
    print(f"{args.rows} rows of {args.am}{deleted}\n{'':8}{'corr.':>6}{'columns':>8}{'rows':>9}   taken    {'ms':>8}" +
          "".join(f"{way:>9}" for way in JOINED) + "   of the best")
    worse = cells = 0
    for joined in (False, True):
        ways = JOINED if joined else SINGLE
        for correlation, key in KEYS.items():
            for columns in counts:
                for share in SHARES:
                    sql = query(key, share, args.rows, columns, joined)
                    run(c, sql, "", 1)
                    took, taken, answer = run(c, sql, "", args.repeat)
                    times = {}
                    for way, settings in ways.items():
                        # What takes several times as long as the path taken is not the better one, however long it takes.
                        time, which, same = run(c, sql, settings, args.repeat, max(LEAST, MANY * took))
                        assert time is None or same == answer, sql
                        if which == way:
                            times[way] = time
                    # The same path twice: the better time of both is its time.
                    took = min(took, times.get(taken) or took)
                    best = min([took, *(time for time in times.values() if time)])
                    off = took / best > GOAL and took - best > SMALL
                    cells, worse = cells + 1, worse + off
                    print(f"{'joined' if joined else '':8}{correlation:>6}{columns:>8}{max(1, int(args.rows * share)):>9}   {taken:8} {took:8.1f}" +
                          "".join(told(times, way) for way in JOINED) +
                          f"{took / best:8.2f}{'  *' if off else ''}", flush=True)
    print(f"{worse} of {cells} more than {GOAL} times the best")


main()
