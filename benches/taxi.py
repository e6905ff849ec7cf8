"""Heap, firn and DuckDB side by side on synthetic taxi trips: size, loading, seven queries, pgbench.

Run through `make bench ROWS=10000000`. Answers are compared; times are medians of interleaved runs.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
from harness.cluster import Cluster  # noqa: E402
from turns import in_turns  # noqa: E402

COLUMNS = [
    ("vendor_id", "int"), ("pickup", "timestamp"), ("dropoff", "timestamp"), ("passengers", "int"),
    ("distance", "numeric(8,2)"), ("rate_code", "int"), ("store_and_fwd", "text"), ("pu_zone", "int"),
    ("do_zone", "int"), ("payment_type", "int"), ("fare", "numeric(8,2)"), ("extra", "numeric(8,2)"),
    ("mta_tax", "numeric(8,2)"), ("tip", "numeric(8,2)"), ("tolls", "numeric(8,2)"),
    ("improvement", "numeric(8,2)"), ("total", "numeric(8,2)"), ("congestion", "numeric(8,2)")]
ONE = "pickup >= '2019-01-01' AND pickup < '2020-01-01'"
THREE = "pickup >= '2017-01-01' AND pickup < '2020-01-01'"
QUERIES = [
    ("count", "SELECT count(*) FROM {t}"),
    ("by vendor", "SELECT vendor_id, count(*) FROM {t} GROUP BY 1 ORDER BY 1"),
    ("by vendor, day, passengers, payment",
     "SELECT vendor_id, pickup::date AS day, passengers, payment_type, count(*) FROM {t} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"),
    ("distinct zone with window, one year",
     f"SELECT DISTINCT do_zone, max(total) OVER (PARTITION BY do_zone) AS m FROM {{t}} WHERE {ONE} ORDER BY 1, 2"),
    ("the same, three years",
     f"SELECT DISTINCT do_zone, max(total) OVER (PARTITION BY do_zone) AS m FROM {{t}} WHERE {THREE} ORDER BY 1, 2"),
    ("join zones, three years",
     f"SELECT z.name, count(*), sum(t.total) FROM {{t}} t LEFT JOIN zones z ON z.id = t.do_zone WHERE {THREE} GROUP BY 1 ORDER BY 1"),
    ("join zones, all",
     "SELECT z.name, count(*), sum(t.total) FROM {t} t LEFT JOIN zones z ON z.id = t.do_zone GROUP BY 1 ORDER BY 1"),
]


def cents(values):
    """Money as decimal(8,2)."""
    ints = np.round(values * 100).astype(np.int64)
    # A 128-bit little-endian decimal is the integer and its sign extension.
    pairs = np.empty((len(ints), 2), dtype=np.int64)
    pairs[:, 0] = ints
    pairs[:, 1] = ints >> 63
    return pa.Array.from_buffers(pa.decimal128(8, 2), len(ints), [None, pa.py_buffer(pairs.tobytes())])


def generate(rows, folder):
    """Trips of 2013 to 2022, sorted by pickup, the same for the same number of rows."""
    os.makedirs(folder, exist_ok=True)
    parquet, csv = (os.path.join(folder, f"taxi-{rows}.{e}") for e in ("parquet", "csv"))
    if os.path.exists(csv) and os.path.exists(parquet):
        return parquet, csv
    rng = np.random.default_rng(20130101)
    begin, end = np.datetime64("2013-01-01", "s").astype(int), np.datetime64("2023-01-01", "s").astype(int)
    second = np.sort(rng.integers(begin, end, rows))
    distance = np.round(rng.gamma(1.4, 2.1, rows) + 0.1, 2)
    minutes = distance * rng.uniform(2.5, 7, rows) + 2
    dropoff = second + (minutes * 60).astype(np.int64)
    payment = rng.choice([1, 2, 3, 4], rows, p=[0.66, 0.32, 0.01, 0.01])
    hour = second // 3600 % 24
    fare = np.round((2.5 + distance * 2.5 + minutes * 0.35) * 2) / 2
    extra = np.where((hour >= 16) & (hour < 20), 1.0, np.where((hour >= 20) | (hour < 6), 0.5, 0.0))
    tip = np.where(payment == 1, np.round(fare * rng.choice([0, 0.1, 0.15, 0.2, 0.25], rows, p=[.1, .1, .2, .5, .1]), 2), 0)
    tolls = np.where(rng.random(rows) < 0.05, 6.12, 0.0)
    congestion = np.where((second >= np.datetime64("2019-02-01", "s").astype(int)) & (rng.random(rows) < .9), 2.5, 0.0)
    popular = rng.zipf(1.3, rows * 2) % 265 + 1
    total = fare + extra + 0.5 + tip + tolls + 0.3 + congestion
    table = pa.table({
        "vendor_id": pa.array(rng.choice([1, 2], rows, p=[.4, .6]).astype(np.int32)),
        "pickup": pa.array(second * 1_000_000, pa.timestamp("us")), "dropoff": pa.array(dropoff * 1_000_000, pa.timestamp("us")),
        "passengers": pa.array(rng.choice([1, 2, 3, 4, 5, 6], rows, p=[.7, .14, .05, .02, .06, .03]).astype(np.int32)),
        "distance": cents(distance),
        "rate_code": pa.array(rng.choice([1, 2, 5], rows, p=[.96, .03, .01]).astype(np.int32)),
        "store_and_fwd": pa.array(np.where(rng.random(rows) < 0.004, "Y", "N")),
        "pu_zone": pa.array(popular[:rows].astype(np.int32)), "do_zone": pa.array(popular[rows:].astype(np.int32)),
        "payment_type": pa.array(payment.astype(np.int32)), "fare": cents(fare), "extra": cents(extra),
        "mta_tax": cents(np.full(rows, 0.5)), "tip": cents(tip), "tolls": cents(tolls),
        "improvement": cents(np.full(rows, 0.3)), "total": cents(total), "congestion": cents(congestion)})
    raw = os.path.join(folder, "raw.parquet")
    pyarrow.parquet.write_table(table, raw)
    pyarrow.csv.write_csv(table, csv, pyarrow.csv.WriteOptions(include_header=False))
    del table
    duckdb.sql(f"COPY (FROM '{raw}') TO '{parquet}' (FORMAT parquet, COMPRESSION zstd)")
    os.unlink(raw)
    os.chmod(csv, 0o644)
    return parquet, csv


def timed(f):
    begin = time.perf_counter()
    result = f()
    return time.perf_counter() - begin, result


def normal(rows):
    return [tuple(str(x) for x in r) for r in rows]


def copy_in(cluster, table, csv):
    """As a user would load a file; psql takes little of the processors that server and client share."""
    with open(csv, "rb") as f:
        subprocess.run([os.path.join(cluster.bin, "psql"), "-h", cluster.root, "-p", str(cluster.port), "-U", "postgres",
                        "-d", "postgres", "-qc", f"\\copy {table} FROM pstdin CSV"], stdin=f, check=True)


def size(conn, table):
    return conn.execute(f"SELECT pg_total_relation_size('{table}')").fetchone()[0]


def bench_pgbench(cluster):
    print("\npgbench, scale 10, 2 clients, prepared: tps, medians of 3 runs in turns")
    for db in ("heap", "rows", "stripes"):
        with cluster.connect() as c:
            c.execute(f"CREATE DATABASE b_{db}")
        with cluster.connect(f"b_{db}") as c:
            c.execute("CREATE EXTENSION firn")
        cluster.run("pgbench", "-h", cluster.root, "-p", str(cluster.port), "-U", "postgres", "-i", "-s", "10", "-q", f"b_{db}")
        with cluster.connect(f"b_{db}") as c:
            if db != "heap":
                c.execute(f"SET firn.bulk_threshold = {2_000_000_000 if db == 'rows' else 0}")
                c.execute("ALTER TABLE pgbench_accounts SET ACCESS METHOD firn")
            c.execute("VACUUM ANALYZE")
    for label, args in (("select-only", ["-S"]), ("TPC-B", [])):
        kinds = {db: [*args, f"b_{db}"] for db in ("heap", "rows", "stripes")}
        # (The first is not counted.)
        runs = [in_turns(cluster, kinds, 2, 12) for _ in range(4)][1:]
        med = {db: statistics.median(run[db] for run in runs) for db in kinds}
        ratios = {db: sorted(run[db] / run["heap"] for run in runs) for db in kinds}
        told = {db: f"{statistics.median(r):.2f}, {r[0]:.2f} to {r[-1]:.2f}" for db, r in ratios.items()}
        print(f"  {label:12} heap {med['heap']:8.0f}   firn row store {med['rows']:8.0f} ({told['rows']})"
              f"   firn stripes {med['stripes']:8.0f} ({told['stripes']})", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-pgbench", action="store_true")
    args = parser.parse_args()
    folder = os.path.join(os.environ["FIRN_TOOLS"], "taxi")
    print(f"generating {args.rows} trips", flush=True)
    parquet, csv = generate(args.rows, folder)
    conf = ["shared_buffers=4GB", "work_mem=128MB", "effective_cache_size=12GB", "max_wal_size=16GB", "random_page_cost=1.1",
            "checkpoint_timeout=30min", "jit=off", "autovacuum=off"]
    print("settings of both:", ", ".join(conf))
    cluster = Cluster("bench", conf).create()
    try:
        compare(cluster, parquet, csv, args)
        if not args.no_pgbench:
            bench_pgbench(cluster)
    finally:
        cluster.destroy()


def compare(cluster, parquet, csv, args):
    store = os.path.join(cluster.root, "store")
    os.mkdir(store)
    os.chmod(store, 0o777)
    duck = duckdb.connect()
    duck.execute("SET threads = 2")
    duck.execute(f"CREATE VIEW trips AS FROM '{parquet}'")
    duck.execute("CREATE TABLE zones AS SELECT i::int AS id, 'zone ' || i AS name FROM range(1, 266) r(i)")
    with cluster.connect() as c:
        c.execute("CREATE EXTENSION firn")
        c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
        c.execute("CREATE TABLE zones AS SELECT i AS id, 'zone ' || i AS name FROM generate_series(1, 265) i")
        columns = ", ".join(f"{n} {t}" for n, t in COLUMNS)
        load = {}
        for am in ("heap", "firn"):
            c.execute(f"CREATE TABLE t_{am} ({columns}) USING {am}")
            load[am], _ = timed(lambda: copy_in(cluster, f"t_{am}", csv))
            c.execute(f"VACUUM ANALYZE t_{am}")
        sizes = {am: size(c, f"t_{am}") for am in load}
        pq = os.path.getsize(parquet)
        print(f"\nload: heap {load['heap']:.1f} s, firn {load['firn']:.1f} s: {load['firn'] / load['heap']:.2f} (at most 1.5)")
        print(f"size: heap {sizes['heap'] / 1e6:.0f} MB, firn {sizes['firn'] / 1e6:.1f} MB, DuckDB zstd Parquet {pq / 1e6:.1f} MB: "
              f"{sizes['firn'] / pq:.2f} of Parquet (at most 1.0), {sizes['heap'] / sizes['firn']:.1f} times smaller than heap (at least 7)")
        print(f"\n{'query, ms':38} {'heap':>8} {'firn':>8} {'cold 1st':>9} {'cold':>8} {'DuckDB':>8} {'firn/heap':>9} {'cold/firn':>9}")
        c.execute("CREATE TABLE t_cold (LIKE t_firn) USING firn")
        copy_in(cluster, "t_cold", csv)
        c.execute("SELECT firn.offload('t_cold', 'cold')")
        c.execute("VACUUM ANALYZE t_cold")
        for n, (name, sql) in enumerate(QUERIES):
            if n == 0:
                c.execute("SET firn.cache_directory = 'bench_cache'")
            first, answer = timed(lambda: c.execute(sql.format(t="t_cold")).fetchall())
            times = {"heap": [], "firn": [], "cold": [], "duck": []}
            for _ in range(args.runs):
                for who in ("heap", "firn", "cold"):
                    t, rows = timed(lambda: c.execute(sql.format(t=f"t_{who}")).fetchall())
                    times[who].append(t)
                    assert normal(rows) == normal(answer), f"{name}: {who} differs"
                t, rows = timed(lambda: duck.execute(sql.format(t="trips")).fetchall())
                times["duck"].append(t)
                assert normal(rows) == normal(answer), f"{name}: DuckDB differs"
            m = {k: statistics.median(v) * 1000 for k, v in times.items()}
            print(f"{name:38} {m['heap']:8.0f} {m['firn']:8.0f} {first * 1000:9.0f} {m['cold']:8.0f} {m['duck']:8.0f} "
                  f"{m['firn'] / m['heap']:9.2f} {m['cold'] / m['firn']:9.2f}", flush=True)


if __name__ == "__main__":
    main()
