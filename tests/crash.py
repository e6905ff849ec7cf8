"""kill -9 at every named durable step, then recovery: what was committed is there, the rest is not."""
import os
import time

import psycopg

from harness.cluster import Cluster

LOAD = "INSERT INTO f SELECT i, 'new', i FROM generate_series(10001, 10400) i"
# Crash point, statement in which it is reached.
POINTS = [
    ("bulk-reserved", LOAD), ("bulk-chunks", LOAD), ("bulk-directory", LOAD),
    ("compact-written", "SELECT firn.compact('f')"), ("compact-deleted", "SELECT firn.compact('f')"),
    ("offload-intent", "SELECT firn.offload('f', 'cold')"), ("offload-uploaded", "SELECT firn.offload('f', 'cold')"),
    ("offload-verified", "SELECT firn.offload('f', 'cold')"), ("offload-flipped", "SELECT firn.offload('f', 'cold')"),
    ("offload-freed", "SELECT firn.offload('f', 'cold')"),
    *((point, statement) for point in ("row-unindexed", "row-indexed") for statement in (
        "SELECT firn.offload('f', 'cold')", "SELECT * FROM f WHERE id = 303 FOR UPDATE", "INSERT INTO g TABLE f")),
    ("vacuum-cleaned", "VACUUM (INDEX_CLEANUP on) f"),
    ("load-object-read", "SELECT firn.load('f')"), ("load-flipped", "SELECT firn.load('f')"),
]


def content(c):
    return c.execute("SELECT count(*), sum(id), sum(n), min(v), max(v) FROM f").fetchone()


def crash_at(cluster, point, statement):
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS f, g")
        c.execute("CREATE TABLE f (id int PRIMARY KEY, v text, n int) USING firn; CREATE INDEX f_n ON f USING brin (n) WITH (pages_per_range = 1)")
        c.execute("SET firn.bulk_threshold = 100; SET firn.stripe_rows = 200")
        c.execute("CREATE TABLE g (id int PRIMARY KEY, v text, n int) USING firn")
        c.execute("INSERT INTO f SELECT i, 'old', i FROM generate_series(1, 500) i")
        c.execute("UPDATE f SET n = 0 WHERE id % 50 = 0")
        c.execute("DELETE FROM f WHERE id % 33 = 0")
        if "load('f')" in statement and "offload" not in statement:
            c.execute("SELECT firn.offload('f', 'cold')")
        if "compact" in statement:
            # The visibility map has to be told that rows have gone, and not before the log.
            c.execute("SET firn.bulk_threshold = 1000; INSERT INTO f SELECT i, 'row store', i FROM generate_series(2001, 2900) i")
            c.execute("VACUUM f")
        before = content(c)
        c.execute("SET firn.bulk_threshold = 100; SET firn.stripe_rows = 200")
        c.execute(f"SET firn.crash_point = '{point}'")
        try:
            c.execute(statement)
            raise AssertionError("the crash point was not reached")
        except psycopg.OperationalError:
            pass
    cluster.wait_recovered()
    with cluster.connect() as c:
        assert content(c) == before, (content(c), before)
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
        assert c.execute("SELECT count(*) FROM f WHERE id > 0").fetchone() == before[:1]
        c.execute("RESET enable_seqscan; RESET firn.enable_scan")
        assert not c.execute("SELECT * FROM firn.check('f')").fetchall()
        # Life goes on: the same work now succeeds, and the keys of the lost load are free.
        c.execute("SET firn.bulk_threshold = 100; SET firn.stripe_rows = 200")
        c.execute(statement)
        c.execute(LOAD + " ON CONFLICT DO NOTHING")
        assert c.execute("SELECT count(*) FROM f WHERE id > 10000").fetchone() == (400,)
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
        assert c.execute("SELECT count(*) FROM f WHERE id BETWEEN 10001 AND 10400").fetchone() == (400,)
        assert not c.execute("SELECT * FROM firn.check('f')").fetchall()
        c.execute("VACUUM f")
        c.execute("SELECT brin_summarize_new_values('f_n')")
        c.execute("SELECT * FROM firn.unneeded('f')").fetchall()
        for t in ("f", "g"):
            c.execute(f"REINDEX TABLE {t}")
            c.execute(f"VACUUM FULL {t}")
            assert not c.execute(f"SELECT * FROM firn.check('{t}')").fetchall()
        rows = c.execute("SELECT id, v, n FROM f WHERE n BETWEEN 100 AND 300 ORDER BY id").fetchall()
        c.execute("ALTER TABLE f SET ACCESS METHOD heap; SET enable_seqscan = off")
        assert c.execute("SELECT id, v, n FROM f WHERE n BETWEEN 100 AND 300 ORDER BY id").fetchall() == rows


def intents(cluster, point):
    """A run that is killed where another was rolled back leaves one intent for a stripe."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS f, g")
        c.execute("CREATE TABLE f (id int PRIMARY KEY, v text, n int) USING firn")
        c.execute("SET firn.bulk_threshold = 100; SET firn.stripe_rows = 200")
        c.execute("INSERT INTO f SELECT i, 'old', i FROM generate_series(1, 500) i")
        c.execute("BEGIN; SELECT firn.offload('f', 'cold'); ROLLBACK")
        before = content(c)
        c.execute(f"SET firn.crash_point = '{point}'")
        try:
            c.execute("SELECT firn.offload('f', 'cold')")
            raise AssertionError("the crash point was not reached")
        except psycopg.OperationalError:
            pass
    cluster.wait_recovered()
    with cluster.connect() as c:
        assert content(c) == before
        c.execute("REINDEX TABLE f")
        c.execute("VACUUM FULL f")
        toast = c.execute("SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'f'").fetchone()[0]
        c.execute(f"REINDEX TABLE CONCURRENTLY {toast}")
        assert c.execute(f"SELECT count(*) FROM {toast} WHERE chunk_id = 4").fetchone()[0] <= 3
        assert not c.execute("SELECT * FROM firn.check('f')").fetchall()
        c.execute("SELECT firn.offload('f', 'cold')")
        assert c.execute(f"SELECT count(*) FROM {toast} WHERE chunk_id = 4").fetchone() == (0,)


def tidying(cluster):
    """Killed before what VACUUM has left to tidy up is committed: it is still left, to whoever vacuums next."""
    with cluster.connect() as c:
        # Its snapshots would keep what is to be tidied up.
        c.execute("ALTER SYSTEM SET autovacuum = off")
        c.execute("SELECT pg_reload_conf()")
        c.execute("DROP TABLE IF EXISTS f, g")
        c.execute("SET firn.bulk_threshold = 1000000; SET firn.stripe_rows = 80")
        c.execute("CREATE TABLE f (id int) USING firn WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        c.execute("INSERT INTO f SELECT generate_series(1, 8000)")
        until = time.time() + 60
        while c.execute("SELECT firn.compact('f')").fetchone()[0] == 0:
            assert time.time() < until
        c.execute("DELETE FROM f")
        c.execute("SET firn.crash_point = 'tidied+wal'")
        try:
            c.execute("VACUUM f")
            raise AssertionError("the crash point was not reached")
        except psycopg.OperationalError:
            pass
    cluster.wait_recovered()
    with cluster.connect() as c:
        stripes = "SELECT count(*) FROM firn.stripes('f')"
        assert c.execute(stripes).fetchone() == (100,)
        # This one does not tidy up by itself.
        c.execute("SET default_transaction_isolation = 'repeatable read'")
        c.execute("VACUUM f")
        assert c.execute(stripes).fetchone() == (0,)
        assert not c.execute("SELECT * FROM firn.check('f')").fetchall()
        c.execute("ALTER SYSTEM RESET autovacuum")
        c.execute("SELECT pg_reload_conf()")


def misspelt(cluster):
    """A word that says nothing of how to crash does not crash."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS f; SET firn.bulk_threshold = 100; CREATE TABLE f (id int) USING firn")
        c.execute("SET firn.crash_point = 'bulk-reserved+STOP'")
        assert c.execute("INSERT INTO f SELECT generate_series(1, 500)").rowcount == 500


def committed_survives(cluster):
    """A load that was reported as committed is there after kill -9 of the whole server."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS f")
        c.execute("CREATE TABLE f (id int PRIMARY KEY, v text, n int) USING firn")
        c.execute("SET firn.bulk_threshold = 100; SET firn.stripe_rows = 200")
        c.execute("INSERT INTO f SELECT i, 'old', i FROM generate_series(1, 5000) i")
        c.execute("UPDATE f SET n = 1 WHERE id % 7 = 0")
        c.execute("SELECT firn.compact('f')")
        before = content(c)
    cluster.crash()
    cluster.start()
    with cluster.connect() as c:
        assert content(c) == before
        assert not c.execute("SELECT * FROM firn.check('f')").fetchall()


def run(tally, pattern):
    cluster = Cluster("crash").create()
    try:
        store = os.path.join(cluster.root, "store")
        os.mkdir(store, 0o777)
        os.chmod(store, 0o777)
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
            c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
        # What was logged last before the crash may have reached the disk, or not.
        for suffix in ("", "+wal"):
            for point, statement in POINTS:
                if pattern in point:
                    what = f"crash at {point}{suffix} in {statement.split('(')[0][:24]}"
                    tally.case(what, lambda: crash_at(cluster, point + suffix, statement))
        for point in ("offload-intent", "offload-intent+wal", "offload-flipped", "offload-flipped+wal"):
            if pattern in point:
                tally.case(f"crash at {point} after a rolled-back offload", lambda: intents(cluster, point))
        if pattern in "tidied":
            tally.case("crash at tidied+wal in VACUUM", lambda: tidying(cluster))
        tally.case("no crash at a misspelt point", lambda: misspelt(cluster))
        tally.case("crash of the server after commit", lambda: committed_survives(cluster))
        tally.case("crash server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    """Nothing is told but that processes were killed (a crash point kills its own with signal 9)."""
    found = [line for line in cluster.alarms() if "terminated by signal 9" not in line]
    assert not found, found
