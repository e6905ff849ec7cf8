"""One statement of each kind, on heap and on firn, with the same results; and the same while the lock table is full.

The first is small, for settings under which nothing larger ends (tests/settings.py). In the second another session fills
the shared lock table, then leaves room for a few locks, for more at each attempt. A statement that finds no room fails
with 53200, is rolled back, and leaves the tables as they were; the server and the session live on. With room enough it
does what it does on heap.
"""
import os

import psycopg

from harness.cluster import Cluster

# Attempts: how many locks of the filled table are free.
ROOM = (0, 1, 2, 3, 4, 6, 9, 14, 25, 60)
SCHEMA = [
    "CREATE TABLE parent (id int PRIMARY KEY) USING {am}",
    "CREATE TABLE t (id int PRIMARY KEY, n int, v text, p int REFERENCES parent) USING {am}",
    "CREATE INDEX ON t (n)",
    "CREATE TABLE s (id int, n int) PARTITION BY HASH (id)",
    *(f"CREATE TABLE s{i} PARTITION OF s FOR VALUES WITH (MODULUS 4, REMAINDER {i}) USING {{am}}" for i in range(4)),
    "INSERT INTO parent SELECT generate_series(1, 400)",
    "INSERT INTO t SELECT i, i, 'v' || i, i FROM generate_series(1, 300) i",
    "INSERT INTO s SELECT i, i FROM generate_series(1, 300) i",
    "UPDATE t SET v = 'u' WHERE id % 50 = 0",
    "DELETE FROM t WHERE id % 60 = 0",
]
# Statements of a transaction are separated by semicolons; those with @ are firn's alone.
STEPS = [
    "SELECT sum(n) FROM t WHERE n > 3",
    "SELECT sum(n) FROM t WHERE id = 3",
    "SELECT count(*) FROM s",
    "INSERT INTO t VALUES (1000, 1, 'small', 5)",
    "INSERT INTO t SELECT i, i, 'bulk', 1 + i % 100 FROM generate_series(2000, 2100) i",
    "INSERT INTO s SELECT i, i FROM generate_series(2000, 2100) i",
    "UPDATE t SET v = 'w' WHERE id BETWEEN 10 AND 20",
    "UPDATE t SET id = id + 5000 WHERE id BETWEEN 30 AND 40",
    "DELETE FROM t WHERE id BETWEEN 41 AND 45",
    "SELECT id FROM t WHERE id BETWEEN 50 AND 55 ORDER BY id FOR UPDATE",
    "BEGIN; INSERT INTO t SELECT i, i, 'saved', 7 FROM generate_series(3000, 3050) i; SAVEPOINT a; "
    "UPDATE t SET v = 'x' WHERE id IN (3001, 61); RELEASE a; DELETE FROM parent WHERE id = 399; COMMIT",
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


def contents(c):
    found = []
    for scan in ("on", "off"):
        c.execute(f"SET enable_seqscan = {scan}")
        found += [sorted(c.execute(f"SELECT {table}::text FROM {table}").fetchall())
                  for table in ("t", "s", "parent")]
    c.execute("RESET enable_seqscan")
    return found


class Rack:
    """A session on a database with heap tables, one on a database with firn tables; with `full`, one that fills the lock
    table."""

    def __init__(self, cluster, full):
        store = os.path.join(cluster.root, "store")
        os.mkdir(store)
        os.chmod(store, 0o777)
        self.cluster = cluster
        self.sessions = {}
        for am in ("heap", "firn"):
            with cluster.connect() as c:
                c.execute(f"CREATE DATABASE {am}_side")
            c = cluster.connect(f"{am}_side")
            c.execute("CREATE EXTENSION firn; SET firn.bulk_threshold = 5; SET firn.stripe_rows = 40")
            for statement in SCHEMA:
                c.execute(statement.format(am=am))
            c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
            self.sessions[am] = c
        self.filler = cluster.connect() if full else None
        self.most = fill(self.filler) if full else 0
        self.failures = 0

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
        assert contents(heap) == contents(firn)

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
        problems = [self.sessions["firn"].execute(f"SELECT * FROM firn.check('{t}')").fetchall() for t in ("t", "s")]
        assert problems == [[], []], problems
        assert not self.filler or self.failures > len(STEPS), f"only {self.failures} statements found no room"
        assert not self.cluster.alarms(), self.cluster.alarms()


def run(tally, pattern):
    few = ["max_locks_per_transaction=10", "max_connections=10", "max_prepared_transactions=0", "max_parallel_workers_per_gather=0"]
    for label, full, conf in (("walk", False, []), ("full lock table", True, few)):
        if pattern not in label:
            continue
        cluster = Cluster("walk", ["fsync=off", "autovacuum=off", *conf]).create()
        try:
            rack = Rack(cluster, full)
            for step in STEPS:
                tally.case(f"{label}: {step[:60]}", lambda: rack.step(step))
            tally.case(f"{label}: in the end", rack.close)
        finally:
            cluster.destroy()
