"""What a session writes while it has the indexes of a TOAST relation open that REINDEX CONCURRENTLY builds anew beside it (pg/toast_indexes.rs).
Cases of suite contention."""
import threading
import time

import psycopg

ROWS = 3000
LARGE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 500))"
# What is written in a transaction that has begun to read: to rows of stripes, and to the row store, whose large values PostgreSQL stores.
WRITES = {
    "a row of a stripe": "UPDATE open SET n = n + 1 WHERE id = 2500",
    "a large value": f"INSERT INTO open VALUES (5000, 0, {LARGE})",
    "a large value of a row that is there": f"UPDATE open SET v = {LARGE} WHERE id = 4000",
    "a function in a query": "SELECT sum(changed(id)) FROM open WHERE id BETWEEN 2400 AND 2420",
    "a lock and a change": "SELECT n FROM open WHERE id = 2500 FOR UPDATE; UPDATE open SET n = n + 1 WHERE id = 2500",
}


def make(c, keyed):
    c.execute("DROP TABLE IF EXISTS open; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 500")
    c.execute(f"CREATE TABLE open (id int {'PRIMARY KEY' if keyed else ''}, n int, v text) USING firn; ALTER TABLE open ALTER v SET STORAGE EXTERNAL")
    c.execute(f"INSERT INTO open SELECT i, 0, 'v' FROM generate_series(1, {ROWS}) i; RESET firn.bulk_threshold")
    c.execute(f"INSERT INTO open VALUES (4000, 0, {LARGE}), (4001, 0, 'v')")
    c.execute("""CREATE OR REPLACE FUNCTION changed(key int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
                 UPDATE open SET n = n + 1 WHERE id = key; RETURN 1; END $$""")


def until(what, condition):
    end = time.time() + 60
    while not condition():
        assert time.time() < end, f"{what}: does not come"
        time.sleep(0.01)


def waits_for(watch, builder, session):
    return session.info.backend_pid in watch.execute("SELECT pg_blocking_pids(%s)", (builder,)).fetchone()[0]


def beside(cluster, keyed, sql, failing):
    """One write of a session whose scan was open when the copy was not ready, and is when it has become so."""
    builder = cluster.connect()
    builder.execute("SET statement_timeout = '60s'")
    with cluster.connect() as c, cluster.connect() as writer, cluster.connect() as session:
        make(c, keyed)
        toast = c.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'open'").fetchone()[0]
        said = []

        def build():
            try:
                builder.execute(f"REINDEX TABLE CONCURRENTLY {toast}")
            except psycopg.Error as e:
                said.append(e)

        writer.execute("BEGIN; UPDATE open SET n = n + 1 WHERE id = 1")
        thread = threading.Thread(target=build, daemon=True)
        thread.start()
        until("the build waits for the writer", lambda: waits_for(c, builder.info.backend_pid, writer))
        session.execute("BEGIN; SAVEPOINT before; DECLARE reads CURSOR FOR SELECT * FROM open; FETCH 5 FROM reads")
        writer.execute("COMMIT")
        until("the build waits for the reader", lambda: waits_for(c, builder.info.backend_pid, session))
        if failing:
            # The scan is ended by an error, once the build has gone on; what comes next is another transaction.
            try:
                session.execute("SELECT 1 / count(*) FROM open WHERE id < 0")
                raise AssertionError("no error")
            except psycopg.errors.DivisionByZero:
                session.execute("ROLLBACK TO before")
            session.execute("COMMIT")
            thread.join(60)
            session.execute(sql)
        else:
            session.execute(sql)
            session.execute("FETCH 5 FROM reads; COMMIT")
            thread.join(60)
        assert not thread.is_alive() and not said, said
        expected = ROWS + 2 + ("INSERT" in sql)
        for look in (session, c):
            for settings in ("RESET enable_seqscan; RESET firn.enable_scan", "SET enable_seqscan = off; SET firn.enable_scan = off"):
                look.execute(settings)
                found = look.execute("SELECT count(*), count(DISTINCT id), sum(length(v)) FROM open WHERE id > 0").fetchone()
                assert found[:2] == (expected, expected), (keyed, sql, failing, found)
        problems = c.execute("SELECT * FROM firn.check('open')").fetchall()
        assert not problems, (keyed, sql, failing, problems)
        c.execute("SELECT bt_index_check(indexrelid, true) FROM pg_index WHERE indrelid = %s::regclass", (toast,))
        session.execute("DELETE FROM open WHERE id IN (4000, 5000, 2500)")
    builder.close()


def run(cluster):
    with cluster.connect() as c:
        c.execute("CREATE EXTENSION IF NOT EXISTS amcheck")
    for failing in (False, True):
        for keyed in (True, False):
            for sql in WRITES.values():
                beside(cluster, keyed, sql, failing)
