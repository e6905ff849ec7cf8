"""Fit for trouble: several moves in one statement."""
import os

import psycopg

from harness.cluster import Cluster


def fresh(c, rows=3000, stripe_rows=500):
    """A table `f` with rows in stripes and in the row store, and its twin `h` on heap."""
    c.execute("DROP TABLE IF EXISTS f, h")
    c.execute(f"SET firn.bulk_threshold = 10; SET firn.stripe_rows = {stripe_rows}")
    c.execute("CREATE TABLE f (id int PRIMARY KEY, v text, n numeric(10,2)) USING firn")
    c.execute(f"INSERT INTO f SELECT i, 'v' || i % 50, i / 4.0 FROM generate_series(1, {rows}) i")
    c.execute("UPDATE f SET v = 'changed' WHERE id % 100 = 0")
    c.execute("CREATE TABLE h USING heap AS TABLE f")


def intact(c):
    """`f` holds what `h` holds, and firn.check finds nothing wrong."""
    for a, b in (("h", "f"), ("f", "h")):
        n = c.execute(f"SELECT count(*) FROM (TABLE {a} EXCEPT ALL TABLE {b}) x").fetchone()[0]
        assert n == 0, f"{n} rows of {a} are not in {b}"
    problems = c.execute("SELECT * FROM firn.check('f')").fetchall()
    assert not problems, problems


def expect(c, sql, *states):
    """`sql` fails with one of these SQLSTATEs; returns the error."""
    try:
        c.execute(sql)
    except psycopg.Error as e:
        assert e.sqlstate in states, (e.sqlstate, str(e))
        return e
    raise AssertionError(f"no error from {sql}")


def one_statement(cluster):
    """Each function of a statement finds what the one before it has left."""
    with cluster.connect() as c:
        fresh(c)
        row = c.execute("SELECT firn.compact('f'), firn.offload('f', 'cold'), firn.load('f'), firn.compact('f'), "
                        "firn.offload('f', 'cold')").fetchone()
        assert row[0] > 0 and row[1] > 5 and row[2] == row[1] and row[3] == 0 and row[4] == row[1], row
        intact(c)
        c.execute("INSERT INTO f SELECT 5000 + i, 'late', 0 FROM generate_series(1, 8) i")
        c.execute("INSERT INTO h SELECT 5000 + i, 'late', 0 FROM generate_series(1, 8) i")
        with c.transaction():
            c.execute("DO $$ BEGIN PERFORM firn.load('f'), firn.compact('f'); UPDATE f SET n = -n WHERE id % 7 = 0; END $$")
            c.execute("UPDATE h SET n = -n WHERE id % 7 = 0")
        intact(c)
        # Whoever has read a row's address in this session would lose the row.
        expect(c, "WITH x AS (INSERT INTO f VALUES (9000) RETURNING id) SELECT firn.compact('f') FROM x", "55006")
        expect(c, "UPDATE f SET n = firn.compact('f')", "55006")
        with c.transaction():
            c.execute("DECLARE k CURSOR FOR SELECT * FROM f FOR UPDATE")
            c.execute("FETCH k")
            c.execute("SAVEPOINT s")
            expect(c, "SELECT firn.compact('f')", "55006")
            c.execute("ROLLBACK TO s")
            c.execute("UPDATE f SET v = v WHERE CURRENT OF k")
        intact(c)


def run(tally, pattern):
    cluster = Cluster("trouble").create()
    try:
        store = os.path.join(cluster.root, "store")
        os.mkdir(store)
        os.chmod(store, 0o777)
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
            c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
        if pattern in "several moves in one statement":
            tally.case("trouble several moves in one statement", lambda: one_statement(cluster))
        tally.case("trouble server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()
