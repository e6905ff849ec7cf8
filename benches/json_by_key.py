"""A service that fetches JSON by key: heap and firn side by side, many clients, random keys.

Run through `make bench-json ROWS=10000000`. Prints the sizes of tables and indexes, look-ups a second, and the processor time of one look-up in a session that is alone. Sessions of both tables
are there at once, and take turns (`turns.py`). Runs before them, as long, are not counted.
"""
import argparse
import os
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
from harness.cluster import Cluster  # noqa: E402
from turns import in_turns  # noqa: E402

# Room for both tables, as each is to be asked what it costs in memory.
CONF = ["shared_buffers=6GB", "max_connections=460", "max_wal_size=16GB", "checkpoint_timeout=30min", "jit=off", "autovacuum=off"]
# An order of a shop: keys, numbers, short texts of few and of many values, a list; about 300 bytes as text.
DOCUMENT = """jsonb_build_object('order', i, 'customer', (i::bigint * 7919) % 500000, 'placed', timestamptz '2024-01-01' + i * interval '3 s',
    'status', (ARRAY['new', 'paid', 'packed', 'sent', 'returned'])[1 + i % 5], 'total', (i::bigint * 37 % 100000) / 100.0,
    'lines', jsonb_build_array(jsonb_build_object('sku', 'S' || (i::bigint * 13) % 9000, 'n', 1 + i % 4), jsonb_build_object('sku', 'S' || (i::bigint * 17) % 9000, 'n', 1 + i % 3)),
    'address', 'Street ' || (i::bigint * 31) % 4000 || ', Town ' || i % 300, 'note', md5(i::text))"""
AMS = ("heap", "firn")


def processor_time(cluster, am, rows):
    """Microseconds of a session's processor for a look-up."""
    with cluster.connect() as c:
        c.execute(f"PREPARE one(int) AS SELECT doc FROM docs_{am} WHERE id = $1")
        look = f"DO $$ BEGIN FOR i IN 1..20000 LOOP PERFORM doc FROM docs_{am} WHERE id = 1 + (i::bigint * 104729) % {rows}; END LOOP; END $$"
        c.execute(look)
        before = spent(c.info.backend_pid)
        c.execute(look)
        return (spent(c.info.backend_pid) - before) / 20000 * 1e6


def spent(pid):
    """Seconds of processor time, of its own and the kernel's for it."""
    with open(f"/proc/{pid}/schedstat") as f:
        return int(f.read().split()[0]) / 1e9


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--rows", type=int, default=10_000_000)
    args.add_argument("--seconds", type=int, default=20)
    args.add_argument("--repeat", type=int, default=3)
    args = args.parse_args()
    cluster = Cluster("json", CONF).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn; SET firn.bulk_threshold = 0; SET maintenance_work_mem = '1GB'")
            for am in AMS:
                c.execute(f"CREATE TABLE docs_{am} (id int, doc jsonb) USING {am}")
                c.execute(f"INSERT INTO docs_{am} SELECT i, {DOCUMENT} FROM generate_series(1, {args.rows}) i")
                c.execute(f"ALTER TABLE docs_{am} ADD PRIMARY KEY (id)")
                c.execute(f"VACUUM ANALYZE docs_{am}")
            sizes = {am: c.execute(f"SELECT pg_table_size('docs_{am}'), pg_indexes_size('docs_{am}')").fetchone() for am in AMS}
            [[width]] = c.execute("SELECT avg(length(doc::text))::int FROM docs_heap WHERE id <= 10000").fetchall()
        print(f"{args.rows} documents of {width} bytes; MB of table and index: " + ", ".join(
            f"{am} {int(t) >> 20} and {int(i) >> 20}" for am, (t, i) in sizes.items()) + f"; table {int(sizes['firn'][0]) / int(sizes['heap'][0]):.2f} of heap's", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            scripts = {am: ["-f", os.path.join(folder, am), "postgres"] for am in AMS}
            for am, (_, path, _) in scripts.items():
                with open(path, "w") as f:
                    f.write(f"\\set id random(1, {args.rows})\nSELECT doc FROM docs_{am} WHERE id = :id;\n")
            # A service runs for longer than a measurement: PostgreSQL knows by then which buffers are used.
            in_turns(cluster, scripts, 50, args.seconds)
            for clients in (1, 50, 200):
                found = [in_turns(cluster, scripts, clients, args.seconds) for _ in range(args.repeat)]
                heap, firn = (statistics.median(run[am] for run in found) for am in AMS)
                ratios = sorted(run["firn"] / run["heap"] for run in found)
                print(f"{clients:4} clients: heap {heap:8.0f}   firn {firn:8.0f}   look-ups a second; ratios {ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.2f}", flush=True)
        times = {am: processor_time(cluster, am, args.rows) for am in AMS}
        print("processor time of a look-up, µs: " + ", ".join(f"{am} {t:.1f}" for am, t in times.items()))
    finally:
        cluster.destroy()


main()
