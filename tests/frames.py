"""Errors that pass through the extension's frames: raised inside of calls that PostgreSQL has made on our behalf, in
plans that it starts out of sight, by statements that free themselves. The server must live, the client must see the
error that heap gives."""
import time

import psycopg

from harness.cluster import Cluster
from sessions import Session


def fresh(cluster, *statements):
    with cluster.connect() as c:
        for sql in statements:
            c.execute(sql)


def alive(cluster):
    """No session has died: a death would have restarted all of them."""
    with cluster.connect() as c:
        return c.execute("SELECT pg_postmaster_start_time(), (SELECT min(backend_start) FROM pg_stat_activity"
                         " WHERE backend_type = 'checkpointer')").fetchone()


def same_on_heap(cluster, play):
    """What `play(cluster, am)` returns is the same on both, and no process has died."""
    before = alive(cluster)
    heap = play(cluster, "heap")
    firn = play(cluster, "firn")
    assert heap == firn, f"\nheap {heap}\nfirn {firn}"
    assert alive(cluster) == before, "the server was restarted"


def validation(kind):
    """CREATE INDEX CONCURRENTLY meets a row in its last phase that makes it fail."""
    make, bad = {
        "unique": ("CREATE UNIQUE INDEX CONCURRENTLY i ON t (id)", "INSERT INTO t VALUES (500)"),
        "expression": ("CREATE INDEX CONCURRENTLY i ON t ((1 / (id - 2000)))", "INSERT INTO t VALUES (2000)"),
        "predicate": ("CREATE INDEX CONCURRENTLY i ON t (id) WHERE 1 / (id - 2000) < 1", "INSERT INTO t VALUES (2000)"),
    }[kind]

    def play(cluster, am):
        fresh(cluster, "DROP TABLE IF EXISTS t", f"CREATE TABLE t (id int) USING {am}",
              "INSERT INTO t SELECT generate_series(1, 1000)")
        a, b, c = (Session(cluster, name) for name in "abc")
        try:
            a.start("BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE")
            a.finish()
            c.start(make)
            # It waits for a; b comes between its phases.
            b.start("BEGIN")
            b.finish()
            b.start(bad)
            b.finish()
            a.start("COMMIT")
            a.finish()
            with cluster.connect() as watch:
                end = time.time() + 15
                sql = "SELECT phase FROM pg_stat_progress_create_index"
                while watch.execute(sql).fetchone() != ("waiting for writers before validation",):
                    assert time.time() < end, watch.execute(sql).fetchall()
                    time.sleep(0.02)
            b.start("COMMIT")
            b.finish()
            state = c.finish()
            usable = c.conn.execute("SELECT count(*) FROM t").fetchall()
            valid = c.conn.execute("SELECT indisvalid FROM pg_index WHERE indrelid = 't'::regclass").fetchall()
            return state, usable, valid
        finally:
            for s in (a, b, c):
                s.close()
    return lambda cluster: same_on_heap(cluster, play)


def pivot(cluster):
    """A move that serializable isolation refuses: the session gets the error and goes on."""
    before = alive(cluster)
    fresh(cluster, "DROP TABLE IF EXISTS t, x", "CREATE TABLE x (i int)", "INSERT INTO x VALUES (1)",
          "SET firn.bulk_threshold = 1000", "CREATE TABLE t (id int, n int) USING firn",
          "INSERT INTO t SELECT i, i FROM generate_series(1, 100) i")
    a, b, c = (cluster.connect() for _ in range(3))
    begin = "BEGIN ISOLATION LEVEL SERIALIZABLE"
    a.execute(begin)
    a.execute("SELECT * FROM x")
    b.execute(begin)
    b.execute("SELECT count(id) FROM t")
    c.execute(begin)
    c.execute("UPDATE x SET i = 2")
    c.execute("COMMIT")
    try:
        a.execute("SELECT firn.compact('t')")
        refused = None
    except psycopg.Error as e:
        refused = e.sqlstate
    a.execute("ROLLBACK")
    b.execute("COMMIT")
    assert refused == "40001", refused
    assert a.execute("SELECT count(*) FROM t").fetchone() == (100,)
    assert a.execute("SELECT firn.compact('t')").fetchone() == (100,)
    assert alive(cluster) == before, "the server was restarted"
    for s in (a, b, c):
        s.close()


PLANS = "SET enable_seqscan = off; SET enable_indexscan = off; SET enable_indexonlyscan = off; SET firn.enable_scan = off;" \
        " SET effective_io_concurrency = 10"

RECHECKS = {
    "sub-plan": ("UPDATE one SET n = n + 1 WHERE n + 100000 > (SELECT count(v) FROM t WHERE t.k = one.id) RETURNING n",
                 "UPDATE one SET n = 5"),
    "sub-plan without columns": (
        "UPDATE one SET n = n + 1 WHERE n + 100000 > (SELECT count(*) FROM t WHERE t.k = one.id) RETURNING n",
        "UPDATE one SET n = 5"),
    "init-plan": ("UPDATE one SET n = n + 1 WHERE n + 100000 > (SELECT count(v) FROM t WHERE t.k = 1) RETURNING n",
                  "UPDATE one SET n = 5"),
    "join": ("UPDATE one SET n = one.n + 1 FROM (SELECT k, count(v) AS v FROM t WHERE k < 3 GROUP BY k) s"
             " WHERE s.k = one.id RETURNING one.n, s.v", "UPDATE one SET n = 5"),
    "row lock": ("SELECT n FROM one WHERE n + 100000 > (SELECT count(v) FROM t WHERE t.k = one.id) FOR UPDATE",
                 "UPDATE one SET n = 5"),
    "delete": ("DELETE FROM one WHERE n + 100000 > (SELECT count(v) FROM t WHERE t.k = one.id) RETURNING n",
               "UPDATE one SET n = 5"),
    "in a WITH": ("WITH w AS (UPDATE one SET n = n + 1 WHERE n + 100000 > (SELECT count(v) FROM t WHERE t.k = one.id)"
                  " RETURNING n) SELECT * FROM w", "UPDATE one SET n = 5"),
    "several rows": ("UPDATE one SET n = n + 1 WHERE n + 100000 > (SELECT count(v) FROM t WHERE t.k = one.id)"
                     " RETURNING id, n", "INSERT INTO one SELECT i, 0 FROM generate_series(2, 5) i; UPDATE one SET n = 7"),
    "the table itself": ("UPDATE t SET v = v + 1 WHERE k = 7 AND v < 3000 RETURNING k, v",
                         "UPDATE t SET v = v + 5 WHERE k = 7"),
    "no longer": ("UPDATE one SET n = n + 1 WHERE n < (SELECT count(v) FROM t WHERE t.k = one.id) RETURNING n",
                  "UPDATE one SET n = 100000"),
}


def recheck(name):
    """A row is checked again by a plan with a bitmap scan of stripes, of which nothing can be prefetched."""
    statement, change = RECHECKS[name]

    def play(cluster, am):
        fresh(cluster, "DROP TABLE IF EXISTS one, t", "CREATE TABLE one (id int PRIMARY KEY, n int)",
              "INSERT INTO one VALUES (1, 0)", "SET firn.bulk_threshold = 0", f"CREATE TABLE t (k int, v int) USING {am}",
              "INSERT INTO t SELECT i % 50, i FROM generate_series(1, 20000) i", "CREATE INDEX ON t (k)",
              "VACUUM ANALYZE t")
        a, b = (Session(cluster, name) for name in "ab")
        try:
            for s in (a, b):
                s.conn.execute(PLANS)
            plan = "\n".join(line for line, in b.conn.execute("EXPLAIN " + statement))
            assert "Bitmap Heap Scan on t" in plan, plan
            a.start("BEGIN")
            a.finish()
            a.start(change)
            a.finish()
            b.start(statement)
            a.start("COMMIT")
            a.finish()
            got = b.finish()
            return sorted(got) if isinstance(got, list) else got
        finally:
            a.close()
            b.close()
    return lambda cluster: same_on_heap(cluster, play)


def procedure(cluster):
    """CALL over the extended protocol of a procedure that ends transactions, which frees the statement."""
    before = alive(cluster)
    fresh(cluster, "DROP TABLE IF EXISTS t", "CREATE TABLE t (n int) USING firn",
          "CREATE OR REPLACE PROCEDURE p(how text) LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1..3 LOOP"
          " INSERT INTO t VALUES (i); IF how = 'commit' THEN COMMIT; ELSE ROLLBACK; END IF; END LOOP; END $$")
    with cluster.connect() as c:
        for _ in range(20):
            for how in ("commit", "rollback"):
                c.execute("CALL p(%s)", (how,), prepare=True)
                c.execute("CALL p(%s)", (how,), prepare=False)
        assert c.execute("SELECT count(*) FROM t").fetchone() == (120,)
        # The statement that is looked at afterwards, the same way.
        c.execute("VACUUM t", (), prepare=True)
    assert alive(cluster) == before, "the server was restarted"


CASES = {
    **{f"validation of an index fails: {kind}": validation(kind) for kind in ("unique", "expression", "predicate")},
    "a move in a serializable pivot": pivot,
    **{f"a row checked again: {name}": recheck(name) for name in RECHECKS},
    "a statement that frees itself": procedure,
}


def run(tally, pattern):
    cluster = Cluster("frames").create()
    try:
        fresh(cluster, "CREATE EXTENSION firn")
        for name, case in CASES.items():
            if pattern in name:
                tally.case(f"frames {name}", lambda: cluster.alone(case))
        tally.case("frames server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()
