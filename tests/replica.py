"""A streaming standby reads stripes and cold objects and takes over; dump and restore."""
import os
import shutil
import time

import psycopg

from harness.cluster import Cluster


def fill(c, store):
    c.execute("CREATE EXTENSION firn")
    c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
    c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 500")
    for t in ("local", "away"):
        c.execute(f"CREATE TABLE {t} (id int PRIMARY KEY, v text, n numeric) USING firn")
        c.execute(f"INSERT INTO {t} SELECT i, 'v' || i, i / 3.0 FROM generate_series(1, 2000) i")
        c.execute(f"UPDATE {t} SET v = 'u' WHERE id % 100 = 0")
        c.execute(f"DELETE FROM {t} WHERE id % 77 = 0")
    c.execute("SELECT firn.offload('away', 'cold')")


def contents(c):
    return [c.execute(f"SELECT count(*), sum(id), sum(n), min(v), max(v) FROM {t}").fetchone() for t in ("local", "away")]


def standby(primary, store):
    with primary.connect() as c:
        fill(c, store)
        expected = contents(c)
    second = Cluster("standby")
    try:
        primary.run("pg_basebackup", "-h", primary.root, "-p", str(primary.port), "-U", "postgres", "-D", second.data,
                    "-R", "-c", "fast")
        with open(os.path.join(second.data, "postgresql.conf"), "a") as f:
            f.write(f"unix_socket_directories='{second.root}'\n")
        second.start()
        with primary.connect() as c:
            c.execute("SET firn.bulk_threshold = 10")
            c.execute("INSERT INTO local SELECT i, 'late', 0 FROM generate_series(5000, 5100) i")
            c.execute("DELETE FROM away WHERE id = 1")
            expected = contents(c)
        with second.connect() as c:
            end = time.time() + 30
            while contents(c) != expected and time.time() < end:
                time.sleep(0.2)
            assert contents(c) == expected, (contents(c), expected)
            c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
            assert c.execute("SELECT v FROM local WHERE id = 5050").fetchone() == ("late",)
            assert c.execute("SELECT v FROM away WHERE id = 3").fetchone() == ("v3",)
        second.run("pg_ctl", "-D", second.data, "-w", "promote")
        with second.connect() as c:
            c.execute("UPDATE local SET v = 'promoted' WHERE id = 5")
            c.execute("UPDATE away SET v = 'promoted' WHERE id = 5")
            c.execute("SET firn.bulk_threshold = 10")
            c.execute("INSERT INTO local SELECT i, 'new', 0 FROM generate_series(6000, 6100) i")
            for t in ("local", "away"):
                assert c.execute(f"SELECT v FROM {t} WHERE id = 5").fetchone() == ("promoted",)
                assert not c.execute(f"SELECT * FROM firn.check('{t}')").fetchall()
        assert not second.alarms(), second.alarms()
    finally:
        second.destroy()


def dump(cluster):
    with cluster.connect() as c:
        expected = contents(c)
        c.execute("CREATE DATABASE back")
    path = os.path.join(cluster.root, "dump")
    where = ["-h", cluster.root, "-p", str(cluster.port), "-U", "postgres"]
    cluster.run("pg_dump", *where, "-Fc", "-f", path, "postgres")
    cluster.run("pg_restore", *where, "-d", "back", path)
    with cluster.connect("back") as c:
        assert contents(c) == expected
        am = c.execute("SELECT amname FROM pg_class JOIN pg_am a ON a.oid = relam WHERE relname = 'local'").fetchone()
        assert am == ("firn",)
        assert c.execute("SELECT count(*) FROM pg_foreign_server").fetchone() == (1,)


def refused(c, sql):
    try:
        c.execute(sql)
    except psycopg.errors.FeatureNotSupported as e:
        assert "published" in str(e), e
        return
    raise AssertionError(f"not refused: {sql}")


def logical():
    """Stripes do not disturb logical decoding, and no change is made that subscribers would miss."""
    cluster = Cluster("logical", ["wal_level=logical"]).create()
    store = os.path.join(cluster.root, "store")
    os.mkdir(store)
    os.chmod(store, 0o777)
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn; CREATE EXTENSION IF NOT EXISTS plpgsql")
            c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
            c.execute("CREATE TABLE h (id int PRIMARY KEY, v text) USING heap; CREATE PUBLICATION ph FOR TABLE h")
            c.execute("CREATE TABLE f (id int PRIMARY KEY, v text) USING firn")
            c.execute("CREATE TABLE p (id int PRIMARY KEY, v text) USING firn")
            c.execute("ALTER TABLE p REPLICA IDENTITY FULL")
            c.execute("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
            # Everything that writes into the TOAST relation of a table that is not published.
            c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 500")
            c.execute("INSERT INTO f SELECT i, repeat('x', i % 100) FROM generate_series(1, 3000) i")
            c.execute("SELECT firn.compact('f')")
            c.execute("UPDATE f SET v = 'u' WHERE id % 50 = 0")
            c.execute("DELETE FROM f WHERE id % 77 = 0")
            c.execute("SELECT count(*) FROM (SELECT 1 FROM f WHERE id < 100 FOR UPDATE) s")
            c.execute("SELECT firn.offload('f', 'cold')")
            c.execute("SELECT firn.load('f')")
            c.execute("VACUUM f")
            big = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 5000) i"
            c.execute(f"INSERT INTO f VALUES (-1, ({big}))")
            c.execute(f"INSERT INTO h VALUES (1, ({big}))")
            # A published table: what goes through is decoded, the rest is refused.
            c.execute("INSERT INTO p SELECT i, 'early' FROM generate_series(1, 100) i")
            c.execute("CREATE PUBLICATION pp FOR TABLE p")
            c.execute("INSERT INTO p SELECT i, 'bulk' FROM generate_series(1001, 2000) i")
            c.execute("UPDATE p SET v = 'changed' WHERE id = 1500")
            c.execute("DELETE FROM p WHERE id = 1501")
            refused(c, "SELECT firn.compact('p')")
            refused(c, "UPDATE p SET v = 'changed' WHERE id = 50")
            refused(c, "DELETE FROM p WHERE id = 50")
            assert c.execute("SELECT v FROM p WHERE id = 50").fetchone() == ("early",)
            changes = [r[0] for r in c.execute("SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL)")]
            of = lambda text: sum(text in x for x in changes)  # noqa: E731
            assert of("table public.h: INSERT") == 1 and any(len(x) > 160000 for x in changes if "public.h:" in x)
            assert of("table public.p: INSERT") >= 1000, of("table public.p: INSERT")
            assert of("v[text]:'bulk'") >= 1000 and of("table public.p: DELETE") == 1
            c.execute("DROP PUBLICATION pp")
            c.execute("SELECT firn.compact('p'); DELETE FROM p WHERE id = 50")
            assert not c.execute("SELECT * FROM firn.check('p')").fetchall()
        assert not cluster.alarms(), cluster.alarms()
    finally:
        cluster.destroy()


def run(tally, _pattern):
    cluster = Cluster("primary").create()
    store = os.path.join(cluster.root, "store")
    os.mkdir(store)
    os.chmod(store, 0o777)
    try:
        tally.case("standby reads and takes over", lambda: standby(cluster, store))
        tally.case("dump and restore", lambda: dump(cluster))
        tally.case("logical decoding beside stripes", logical)
    finally:
        cluster.destroy()
        shutil.rmtree(store, ignore_errors=True)
