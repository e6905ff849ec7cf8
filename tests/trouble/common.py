"""What the tests of trouble share: a table with a twin on heap, expected errors, statements in the background."""
import threading
import time

import psycopg


def fresh(c, rows=3000, stripe_rows=500, text="'v' || i % 50"):
    """A table `f` with rows in stripes and in the row store, and its twin `h` on heap."""
    c.execute("DROP TABLE IF EXISTS f, h")
    c.execute(f"SET firn.bulk_threshold = 10; SET firn.stripe_rows = {stripe_rows}")
    c.execute("CREATE TABLE f (id int PRIMARY KEY, v text, n numeric(10,2)) USING firn")
    c.execute(f"INSERT INTO f SELECT i, {text}, i / 4.0 FROM generate_series(1, {rows}) i")
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


class Background:
    """A statement in a session of its own; `result` is its rows or its error."""

    def __init__(self, cluster, sql, prepare="SELECT 1", **connection):
        self.conn = cluster.connect(**connection)
        self.conn.execute(prepare)
        self.pid = self.conn.info.backend_pid
        self.result, self.ended = None, None
        self.thread = threading.Thread(target=self._work, args=(sql,), daemon=True)
        self.thread.start()

    def _work(self, sql):
        try:
            cursor = self.conn.execute(sql)
            self.result = cursor.fetchall() if cursor.description else cursor.rowcount
        except psycopg.Error as e:
            self.result = e
        self.ended = time.time()

    def running(self):
        return self.ended is None

    def finish(self, seconds=60):
        self.thread.join(seconds)
        assert not self.running(), "the statement does not end"
        self.conn.close()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result
