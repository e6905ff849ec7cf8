"""A streaming standby reads stripes and cold objects and takes over; dump and restore."""
import os
import shutil
import time

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


def run(tally, _pattern):
    cluster = Cluster("primary").create()
    store = os.path.join(cluster.root, "store")
    os.mkdir(store)
    os.chmod(store, 0o777)
    try:
        tally.case("standby reads and takes over", lambda: standby(cluster, store))
        tally.case("dump and restore", lambda: dump(cluster))
    finally:
        cluster.destroy()
        shutil.rmtree(store, ignore_errors=True)
