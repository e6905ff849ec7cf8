"""Functions of firn race with DROP, CREATE and ALTER of what they work on."""
import os
import random
import threading
import time

import psycopg

CALLS = ["firn.compact('{}')", "firn.offload('{}', 'cold')", "firn.load('{}')", "firn.check('{}')", "firn.stripes('{}')",
         "firn.unneeded('{}')", "firn.table_info('{}')", "firn.stripe_file('{}', 0)", "firn.repair('{}')", "firn.repair('{}', false)"]
# Undefined table, not a firn table (any more), deadlock, no such schema.
FINE = {"42P01", "42809", "40P01", "3F000"}


def definers(cluster, stop, failures):
    """Makes tables and partitions and takes them away again."""
    rnd = random.Random(7)
    with cluster.connect() as c:
        while not stop.is_set():
            what = rnd.choice([
                "DROP TABLE IF EXISTS s.alone", "CREATE SCHEMA IF NOT EXISTS s", "DROP SCHEMA IF EXISTS s CASCADE",
                "CREATE TABLE IF NOT EXISTS s.alone (id int PRIMARY KEY, v text) USING firn",
                "INSERT INTO s.alone SELECT i, 'x' FROM generate_series(1, 300) i ON CONFLICT DO NOTHING",
                "ALTER TABLE s.alone SET ACCESS METHOD heap", "ALTER TABLE s.alone SET ACCESS METHOD firn",
                "DROP TABLE IF EXISTS part1", "DROP TABLE IF EXISTS part2",
                "CREATE TABLE IF NOT EXISTS part1 PARTITION OF parent FOR VALUES FROM (0) TO (1000) USING firn",
                "CREATE TABLE IF NOT EXISTS part2 PARTITION OF parent FOR VALUES FROM (1000) TO (2000) USING firn",
                "INSERT INTO parent SELECT i, 'x' FROM generate_series(0, 1999, 7) i",
                "ALTER TABLE part1 SET ACCESS METHOD heap", "ALTER TABLE part2 SET ACCESS METHOD firn",
                "ALTER TABLE parent DETACH PARTITION part2 CONCURRENTLY", "DROP TABLE IF EXISTS part2",
                "TRUNCATE parent",
            ])
            try:
                c.execute(what)
            except psycopg.Error as e:
                if e.sqlstate and e.sqlstate.startswith("XX"):
                    failures.append((what, str(e)))


def caller(cluster, seed, stop, failures, done):
    rnd = random.Random(seed)
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 100")
        while not stop.is_set():
            named = rnd.choice(["s.alone", "parent", "part1", "part2"])
            call = rnd.choice([f"SELECT * FROM {f}" for f in CALLS]).format(named)
            if rnd.random() < 0.15:
                call = "SELECT * FROM firn.tables"
            try:
                c.execute(call)
                done.append(call)
            except psycopg.Error as e:
                if e.sqlstate not in FINE or named == "parent" and e.sqlstate in ("42P01",):
                    failures.append((call, e.sqlstate, str(e)))


def tables(cluster):
    """A table that is gone is undefined, a partition that is gone is left out: no XX000."""
    stop, failures, done = threading.Event(), [], []
    with cluster.connect() as c:
        c.execute("CREATE TABLE parent (id int, v text) PARTITION BY RANGE (id)")
    threads = [threading.Thread(target=definers, args=(cluster, stop, failures))]
    threads += [threading.Thread(target=caller, args=(cluster, seed, stop, failures, done)) for seed in range(3)]
    for t in threads:
        t.start()
    end = time.time() + float(os.environ.get("FIRN_VANISH_SECONDS", "15"))
    while time.time() < end and not failures:
        time.sleep(0.2)
    stop.set()
    for t in threads:
        t.join()
    assert not failures, failures[:3]
    assert len(done) > 20, len(done)
    with cluster.connect() as c:
        c.execute("DROP TABLE parent; DROP TABLE IF EXISTS part1, part2; DROP SCHEMA IF EXISTS s CASCADE")


def waits(cluster):
    """Each function that waits for a DROP that commits."""
    for call in CALLS:
        with cluster.connect() as c, cluster.connect() as other:
            c.execute("CREATE TABLE gone (id int) USING firn")
            other.execute("BEGIN; DROP TABLE gone")
            errors = []

            def work():
                try:
                    c.execute(f"SELECT * FROM {call.format('gone')}")
                except psycopg.Error as e:
                    errors.append(e.sqlstate)
            t = threading.Thread(target=work)
            t.start()
            while not other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0]:
                time.sleep(0.02)
            other.execute("COMMIT")
            t.join()
            assert errors == ["42P01"], (call, errors)


def extension(cluster):
    """Dropping the extension drops what is made with it, in an order in which everything is still there that is needed."""
    with cluster.connect() as c:
        c.execute("DROP DATABASE IF EXISTS gone")
        c.execute("CREATE DATABASE gone")
    for drop in ("DROP EXTENSION firn CASCADE", "DROP SCHEMA firn CASCADE", "DROP OWNED BY CURRENT_USER"):
        with cluster.connect("gone") as c:
            c.execute("CREATE EXTENSION IF NOT EXISTS firn; SET firn.bulk_threshold = 10")
            c.execute("CREATE TABLE h (id int) USING heap")
            c.execute("CREATE TABLE f (id int PRIMARY KEY, v text) USING firn; INSERT INTO f SELECT i, 'v' FROM generate_series(1, 500) i")
            c.execute("CREATE MATERIALIZED VIEW m USING firn AS TABLE f")
            c.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (9) USING firn")
        with cluster.connect("gone") as c:
            try:
                c.execute(drop)
            except psycopg.Error as e:
                # Of the superuser that initdb made nothing is dropped this way.
                assert drop.startswith("DROP OWNED") and e.sqlstate == "2BP01", (drop, e)
                c.execute("DROP EXTENSION firn CASCADE")
            left = c.execute("SELECT relname FROM pg_class WHERE relname IN ('f', 'h', 'm', 'p', 'p1') ORDER BY 1").fetchall()
            assert left == [("h",), ("p",)], (drop, left)
            c.execute("DROP TABLE h, p")
    with cluster.connect() as c:
        c.execute("DROP DATABASE gone")
