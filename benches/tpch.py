"""Heap, firn and DuckDB side by side on the 22 queries of TPC-H: size, loading, each query. No TPC-H result in the sense of its rules.

Run through `make bench-tpch SCALE=1`. Data and queries come from an older DuckDB, whose package has the generator in it. Answers are
compared; times are the best of `--repeat` runs, in milliseconds, the systems taking turns.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from decimal import Decimal

import duckdb

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
from harness.cluster import Cluster  # noqa: E402

TABLES = {
    "region": "r_regionkey int PRIMARY KEY, r_name char(25), r_comment varchar(152)",
    "nation": "n_nationkey int PRIMARY KEY, n_name char(25), n_regionkey int, n_comment varchar(152)",
    "supplier": "s_suppkey int PRIMARY KEY, s_name char(25), s_address varchar(40), s_nationkey int, s_phone char(15), "
                "s_acctbal numeric(15,2), s_comment varchar(101)",
    "customer": "c_custkey int PRIMARY KEY, c_name varchar(25), c_address varchar(40), c_nationkey int, c_phone char(15), "
                "c_acctbal numeric(15,2), c_mktsegment char(10), c_comment varchar(117)",
    "part": "p_partkey int PRIMARY KEY, p_name varchar(55), p_mfgr char(25), p_brand char(10), p_type varchar(25), p_size int, "
            "p_container char(10), p_retailprice numeric(15,2), p_comment varchar(23)",
    "partsupp": "ps_partkey int, ps_suppkey int, ps_availqty int, ps_supplycost numeric(15,2), ps_comment varchar(199), "
                "PRIMARY KEY (ps_partkey, ps_suppkey)",
    "orders": "o_orderkey int PRIMARY KEY, o_custkey int, o_orderstatus char(1), o_totalprice numeric(15,2), o_orderdate date, "
              "o_orderpriority char(15), o_clerk char(15), o_shippriority int, o_comment varchar(79)",
    "lineitem": "l_orderkey int, l_partkey int, l_suppkey int, l_linenumber int, l_quantity numeric(15,2), "
                "l_extendedprice numeric(15,2), l_discount numeric(15,2), l_tax numeric(15,2), l_returnflag char(1), "
                "l_linestatus char(1), l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct char(25), "
                "l_shipmode char(10), l_comment varchar(44), PRIMARY KEY (l_orderkey, l_linenumber)",
}
INDEXES = ["nation (n_regionkey)", "supplier (s_nationkey)", "customer (c_nationkey)", "partsupp (ps_suppkey)", "orders (o_custkey)",
           "orders (o_orderdate)", "lineitem (l_partkey)", "lineitem (l_suppkey)", "lineitem (l_shipdate)"]
GENERATOR = "1.0.0"
GENERATE = """import duckdb, json, sys
scale, folder, tables = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
c = duckdb.connect()
c.execute(f"LOAD tpch; CALL dbgen(sf = {scale})")
for t in tables:
    c.execute(f"COPY {t} TO '{folder}/{t}.csv' (HEADER false)")
with open(f"{folder}/queries.json", "w") as f:
    json.dump(c.execute("SELECT query_nr, query FROM tpch_queries()").fetchall(), f)"""
CONF = ["shared_buffers=2GB", "work_mem=64MB", "max_wal_size=4GB", "fsync=off", "autovacuum=off", "jit=off"]
TIMEOUT = 120


def generated(scale):
    """The folder with the tables as CSV and the queries."""
    base = os.path.join(os.environ.get("FIRN_TOOLS", "/tmp"), "tpch")
    folder, package = os.path.join(base, f"scale-{scale:g}"), os.path.join(base, f"duckdb-{GENERATOR}")
    if os.path.exists(os.path.join(folder, "queries.json")):
        return folder
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(package):
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", package, f"duckdb=={GENERATOR}"], check=True)
    env = {**os.environ, "PYTHONPATH": package}
    subprocess.run([sys.executable, "-c", GENERATE, str(scale), folder, *TABLES], check=True, env=env)
    return folder


def copy_in(conn, table, path):
    """By the client: the server's user may not be allowed to read the file."""
    with open(path, "rb") as f, conn.cursor().copy(f"COPY {table} FROM STDIN CSV") as copy:
        while part := f.read(1 << 20):
            copy.write(part)


class Server:
    """One access method of PostgreSQL."""

    def __init__(self, conn, am, folder):
        self.conn, self.name = conn, am
        began = time.time()
        conn.execute(f"CREATE SCHEMA of_{am}; SET search_path = of_{am}; SET default_table_access_method = {am}")
        for table, columns in TABLES.items():
            conn.execute(f"CREATE TABLE {table} ({columns})")
            copy_in(conn, table, os.path.join(folder, f"{table}.csv"))
        for index in INDEXES:
            conn.execute(f"CREATE INDEX ON {index}")
        conn.execute("VACUUM ANALYZE")
        [[size]] = conn.execute("SELECT sum(pg_table_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace",
                                [f"of_{am}"]).fetchall()
        print(f"{am}: loaded in {time.time() - began:.0f} s, {int(size) >> 20} MB of tables", flush=True)

    def run(self, query):
        self.conn.execute(f"SET search_path = of_{self.name}; SET statement_timeout = '{TIMEOUT}s'")
        return self.conn.execute(query).fetchall()

    def plan(self, query):
        self.conn.execute(f"SET search_path = of_{self.name}")
        return "\n".join(line for [line] in self.conn.execute("EXPLAIN (ANALYZE, BUFFERS) " + query).fetchall())


class Duck:
    name = "duckdb"

    def __init__(self, folder):
        self.conn = duckdb.connect(config={"threads": os.cpu_count()})
        began = time.time()
        for table, columns in TABLES.items():
            self.conn.execute(f"CREATE TABLE {table} ({columns}); COPY {table} FROM '{folder}/{table}.csv' (HEADER false)")
        print(f"duckdb: loaded in {time.time() - began:.0f} s", flush=True)

    def run(self, query):
        return self.conn.execute(query).fetchall()


def answer(rows):
    """Rows in a form that is the same for equal answers; averages and texts that are padded differ in their last places."""
    def value(v):
        if isinstance(v, (float, Decimal)):
            return f"{float(v):.6g}"
        return v.rstrip() if isinstance(v, str) else str(v)
    return sorted(tuple(value(v) for v in row) for row in rows)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--scale", type=float, default=1)
    args.add_argument("--queries", default="", help="numbers, with commas between them")
    args.add_argument("--repeat", type=int, default=2)
    args.add_argument("--workers", type=int, default=2, help="max_parallel_workers_per_gather")
    args.add_argument("--explain", action="store_true")
    args = args.parse_args()
    folder = generated(args.scale)
    with open(os.path.join(folder, "queries.json")) as f:
        queries = json.load(f)
    wanted = {int(n) for n in args.queries.split(",") if n}
    cluster = Cluster("tpch", [*CONF, f"max_parallel_workers_per_gather={args.workers}"]).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
            systems = [Server(c, "heap", folder), Server(c, "firn", folder), Duck(folder)]
            total = dict.fromkeys((s.name for s in systems), 0.0)
            print("query      heap      firn    duckdb   firn/heap")
            for number, query in queries:
                if not wanted or number in wanted:
                    compare(systems, number, query, args, total)
            print("sum  " + "".join(f"{t * 1000:10.0f}" for t in total.values()) + f"{total['firn'] / total['heap']:12.2f}")
    finally:
        cluster.destroy()


def compare(systems, number, query, args, total):
    best, answers = {}, {}
    for _ in range(args.repeat):
        for system in systems:
            began = time.time()
            try:
                answers[system.name] = answer(system.run(query))
            except Exception as e:
                answers[system.name] = str(e).splitlines()[0]
            best[system.name] = min(best.get(system.name, TIMEOUT), time.time() - began)
    same = "" if all(a == answers["heap"] for a in answers.values()) else "  ANSWERS DIFFER"
    for name, seconds in best.items():
        total[name] += seconds
    print(f"Q{number:<4}" + "".join(f"{t * 1000:10.0f}" for t in best.values()) + f"{best['firn'] / best['heap']:12.2f}{same}", flush=True)
    if args.explain:
        for system in systems[:2]:
            print(f"{system.name}:\n{system.plan(query)}\n")


main()
