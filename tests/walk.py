"""One statement of each kind, on heap and on firn, with the same results; and the same while the lock table is full.

The first is small, for settings under which nothing larger ends (tests/settings.py); the short walk is for the slowest. In
the last another session fills the shared lock table, then leaves room for a few locks, for more at each attempt. A
statement that finds no room fails with 53200, is rolled back, and leaves the tables as they were; the server and the
session live on. With room enough it does what it does on heap.
"""
import os

import psycopg

from harness.cluster import Cluster

# Attempts: how many locks of the filled table are free.
ROOM = (0, 1, 2, 3, 4, 6, 9, 14, 25, 60)
# Few rows, in several stripes: under some settings each check of a foreign key takes a fifth of a second.
SCHEMA = [
    "CREATE TABLE parent (id int PRIMARY KEY) USING {am}",
    "CREATE TABLE t (id int PRIMARY KEY, n int, v text, p int) USING {am}",
    "CREATE INDEX ON t (n)",
    "CREATE TABLE s (id int, n int) PARTITION BY HASH (id)",
    *(f"CREATE TABLE s{i} PARTITION OF s FOR VALUES WITH (MODULUS 3, REMAINDER {i}) USING {{am}}" for i in range(3)),
    "INSERT INTO parent SELECT generate_series(1, 80)",
    "INSERT INTO t SELECT i, i, 'v' || i, i FROM generate_series(1, 70) i",
    "INSERT INTO s SELECT i, i FROM generate_series(1, 70) i",
    "UPDATE t SET v = 'u' WHERE id % 25 = 0",
    "DELETE FROM t WHERE id % 30 = 0",
    "ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES parent",
]
# Statements of a transaction are separated by semicolons; those with @ are firn's alone.
STEPS = [
    "SELECT sum(n) FROM t WHERE n > 3",
    "SELECT sum(n) FROM t WHERE id = 3",
    "SELECT count(*) FROM s",
    "INSERT INTO t VALUES (1000, 1, 'small', 5)",
    "INSERT INTO t SELECT i, i, 'bulk', 1 + i % 50 FROM generate_series(2000, 2012) i",
    "INSERT INTO s SELECT i, i FROM generate_series(2000, 2040) i",
    "UPDATE t SET v = 'w' WHERE id BETWEEN 10 AND 20",
    "UPDATE t SET id = id + 5000 WHERE id BETWEEN 31 AND 36",
    "DELETE FROM t WHERE id BETWEEN 41 AND 45",
    "SELECT id FROM t WHERE id BETWEEN 50 AND 55 ORDER BY id FOR UPDATE",
    "BEGIN; INSERT INTO t SELECT i, i, 'saved', 7 FROM generate_series(3000, 3010) i; SAVEPOINT a; "
    "UPDATE t SET v = 'x' WHERE id IN (3001, 61); RELEASE a; DELETE FROM parent WHERE id = 79; COMMIT",
    "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(n) FROM t WHERE id < 9; UPDATE t SET n = 0 WHERE id = 8; COMMIT",
    "@SELECT firn.compact('t')",
    "@SELECT firn.compact('s')",
    "@SELECT firn.offload('t', 'cold')",
    "@SELECT count(*) FROM firn.stripes('t')",
    "@SELECT count(*) FROM firn.check('t')",
    "DELETE FROM t WHERE id BETWEEN 62 AND 70",
    "@SELECT firn.load('t')",
    "@SELECT * FROM firn.unneeded('t')",
    "CREATE INDEX t_v ON t (v)",
    "REINDEX TABLE t",
    "DROP INDEX t_v",
    "ALTER TABLE t ADD COLUMN extra int DEFAULT 7",
    "ALTER TABLE t ALTER n TYPE bigint",
    "CLUSTER t USING t_pkey",
    "VACUUM (FULL) t",
    "ANALYZE t",
    "TRUNCATE s",
    "CREATE TABLE copied AS SELECT * FROM t",
    "DROP TABLE copied",
    "ALTER TABLE t SET ACCESS METHOD heap",
    "ALTER TABLE t SET ACCESS METHOD {am}",
    # These commit halfway, or go on to other tables, and are seen to have worked only with room enough.
    "VACUUM t",
    "VACUUM",
    "REINDEX TABLE CONCURRENTLY t",
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS t_p ON t (p)",
]
FULL = "53200"
# What a short walk has of them.
SHORT = [s for s in STEPS if s.startswith(("INSERT INTO t V", "INSERT INTO s", "UPDATE t SET v", "SELECT id FROM", "@SELECT firn.",
                                           "SELECT sum(n) FROM t WHERE n", "DELETE", "VACUUM t"))]


def fill(c):
    """Take locks until there is no room; how many."""
    n = 0
    while True:
        try:
            c.execute("SELECT pg_advisory_lock(i) FROM generate_series(%s::bigint, %s::bigint) i", (n + 1, n + 1))
        except psycopg.errors.OutOfMemory:
            return n
        n += 1


def leave(c, most, room):
    """Fill the table but for `room` locks."""
    c.execute("SELECT pg_advisory_unlock_all()")
    if room is not None:
        c.execute("SELECT count(pg_advisory_lock(i)) FROM generate_series(1, %s::bigint) i", (max(most - room, 0),))


def attempt(c, step):
    """What a transaction gives: the results of its last statement that has any, or the SQLSTATE it failed with."""
    result = None
    try:
        for statement in step.split("; "):
            cursor = c.execute(statement)
            if cursor.description:
                result = cursor.fetchall()
        return None, result
    except psycopg.Error as e:
        failed = e.sqlstate or str(e)
        if c.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            c.execute("ROLLBACK")
        return failed, result


def contents(c, scans=("on", "off")):
    """All rows, by a scan of the tables and by their indexes."""
    found = []
    for scan in scans:
        c.execute(f"SET enable_seqscan = {scan}")
        found.append(c.execute("SELECT 't', t::text FROM t UNION ALL SELECT 's', s::text FROM s "
                               "UNION ALL SELECT 'parent', parent::text FROM parent ORDER BY 1, 2").fetchall())
    c.execute("RESET enable_seqscan")
    return found


class Rack:
    """A session on a database with heap tables, one on a database with firn tables; with `full`, one that fills the lock
    table. With `short`, the tables are compared only in the end."""

    def __init__(self, cluster, full=False, short=False):
        store = os.path.join(cluster.root, "store")
        os.mkdir(store)
        os.chmod(store, 0o777)
        self.cluster = cluster
        self.sessions = {}
        for am in ("heap", "firn"):
            with cluster.connect() as c:
                c.execute(f"CREATE DATABASE {am}_side")
            c = cluster.connect(f"{am}_side")
            if am == "firn":
                c.execute("CREATE EXTENSION firn; SET firn.bulk_threshold = 5; SET firn.stripe_rows = 20; "
                          f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
            for statement in SCHEMA:
                c.execute(statement.format(am=am))
            self.sessions[am] = c
        self.filler = cluster.connect() if full else None
        self.most = fill(self.filler) if full else 0
        if full:
            leave(self.filler, self.most, None)
        self.failures = 0
        self.short = short

    def step(self, step):
        """Run a statement on firn, at first with too little room, then on heap; compare."""
        heap, firn = self.sessions["heap"], self.sessions["firn"]
        text = step.lstrip("@").format(am="firn")
        if self.filler:
            result = self.squeeze(firn, text)
        else:
            failed, result = attempt(firn, text)
            assert failed is None, failed
        if not step.startswith("@"):
            wanted = attempt(heap, text.replace("METHOD firn", "METHOD heap"))
            assert wanted == (None, result), f"heap {wanted}, firn {result}"
        assert self.short or contents(heap) == contents(firn)

    def squeeze(self, firn, text):
        """The result of a statement as soon as it finds room."""
        before = contents(firn)
        for room in (*ROOM, None):
            leave(self.filler, self.most, room)
            failed, result = attempt(firn, text)
            leave(self.filler, self.most, None)
            assert failed in (None, FULL), f"with room for {room}: {failed}"
            if failed is None:
                return result
            self.failures += 1
            assert contents(firn) == before, f"{failed} with room for {room}, but rows have changed"
        raise AssertionError("never works")

    def close(self):
        """Nothing is damaged; and there was a lack of room."""
        scans, tables = (("on",), ("t",)) if self.short else (("on", "off"), ("t", "s"))
        assert contents(self.sessions["heap"], scans) == contents(self.sessions["firn"], scans)
        problems = [self.sessions["firn"].execute(f"SELECT * FROM firn.check('{t}')").fetchall() for t in tables]
        assert not any(problems), problems
        assert not self.filler or self.failures > len(STEPS), f"only {self.failures} statements found no room"
        assert not self.cluster.alarms(), self.cluster.alarms()


def run(tally, pattern):
    few = ["max_locks_per_transaction=10", "max_connections=10", "max_prepared_transactions=0", "max_parallel_workers_per_gather=0"]
    for label, conf, how in (("whole walk", [], {}), ("short walk", [], {"short": True}), ("full lock table", few, {"full": True})):
        # The whole one includes the short one.
        if pattern not in label or label == "short walk" and not pattern:
            continue
        cluster = Cluster("walk", ["fsync=off", "autovacuum=off", *conf]).create()
        try:
            rack = Rack(cluster, **how)
            for step in SHORT if rack.short else STEPS:
                tally.case(f"{label}: {step[:60]}", lambda: rack.step(step))
            tally.case(f"{label}: in the end", rack.close)
        finally:
            cluster.destroy()
