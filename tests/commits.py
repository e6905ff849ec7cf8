"""A fault at every call of what commits in between: the procedures that work in pieces, and rebuilds of indexes after
VACUUM. Run by tests/torture.py.

What was committed before the fault stays, so unlike there it is not undone: the rows are heap's, firn.check and amcheck find
nothing, the session holds nothing, and no index is invalid but those that a rebuild has marked as its own. Then the same
statement does what is left, and after VACUUM no index is invalid at all.
"""
import collections
import time

import psycopg

from harness.rack import FAULT, ROWS, Torn, differ

# Two tables of few rows: some in stripes, some changed, the others in the row store.
PARTS = """
DROP TABLE IF EXISTS child, t CASCADE;
CREATE TABLE t (id int PRIMARY KEY, n int, v text) PARTITION BY RANGE (id);
CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (51) USING {am};
CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (51) TO (1000) USING {am};
CREATE INDEX t_n ON t (n);
SET firn.bulk_threshold = 0; SET firn.stripe_rows = 12;
INSERT INTO t SELECT i, i % 17, 'v' || i FROM generate_series(41, 60) i;
SET firn.bulk_threshold = 1000;
INSERT INTO t SELECT i, i % 17, repeat('w' || i, 20) FROM generate_series(1, 90) i WHERE i < 41 OR i > 60;
UPDATE t SET n = n + 1 WHERE id % 15 = 0;
DELETE FROM t WHERE id % 22 = 0;
"""
# Few rows with so long keys that the index is large enough; their old entries are gone already, so it is due.
LONG = """
DROP TABLE IF EXISTS child, t CASCADE;
SET firn.rebuild_indexes = off; SET firn.bulk_threshold = 1000; SET firn.stripe_rows = 20;
CREATE TABLE t (id int PRIMARY KEY, n int, v text) USING {am};
ALTER TABLE t ALTER v SET STORAGE PLAIN;
CREATE INDEX t_v ON t (v);
INSERT INTO t SELECT i, i % 17, (SELECT string_agg(md5((i * 7919 + j)::text), '') FROM generate_series(1, 70) j)
    FROM generate_series(1, 40) i ORDER BY md5(i::text);
"""
SETTLED = "SELECT firn.compact('t'); VACUUM t; SET firn.rebuild_indexes = on"
INVALID = """SELECT c.relname, EXISTS (SELECT FROM pg_depend d JOIN pg_am a ON a.oid = d.refobjid WHERE d.classid = 'pg_class'::regclass
    AND d.objid = indexrelid AND d.refclassid = 'pg_am'::regclass AND a.amname = 'firn')
    FROM pg_index JOIN pg_class c ON c.oid = indexrelid WHERE NOT (indisvalid AND indislive AND indisready) AND c.relkind = 'i'"""
IDLE = """SELECT (SELECT count(*) FROM pg_locks WHERE pid = %(pid)s), (SELECT count(*) FROM pg_stat_progress_create_index WHERE pid = %(pid)s),
    (SELECT count(*) FROM pg_stat_activity WHERE pid = %(pid)s AND (backend_xmin IS NOT NULL OR state <> 'idle'))"""
# What a session has but in what it keeps of relations, which are others each time.
CONTEXTS = """SELECT sum(used_bytes)::bigint FROM pg_backend_memory_contexts
    WHERE name !~ '^(CacheMemoryContext|PgStat |MdSmgr|smgr|LOCALLOCK|Relcache)' AND parent IS DISTINCT FROM 'CacheMemoryContext'"""
# From 18 on a context's parent is told by its number.
CONTEXTS_18 = """WITH m AS MATERIALIZED (SELECT * FROM pg_backend_memory_contexts) SELECT sum(used_bytes)::bigint FROM m
    WHERE name !~ '^(CacheMemoryContext|PgStat |MdSmgr|smgr|LOCALLOCK|Relcache)'
    AND path[level - 1] IS DISTINCT FROM (SELECT path[level] FROM m WHERE name = 'CacheMemoryContext')"""
WARM, SLACK = 30, 64 << 10
WORKERS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'firn index rebuild'"
MODES = {"error": 6, "cancel": 3, "die": 2}


class Work:
    """A statement that commits in between. `done` asks for what it has done, if it is a rebuild, errors in that part of it
    are warnings; `left` says that what it begins with is what a fault has left."""

    def __init__(self, name, make, sql, done, tables, settle="SELECT 1", rebuilds=False, left=False):
        self.name, self.make, self.sql, self.settle, self.tables = name, make, sql, settle, tables
        self.done, self.rebuilds, self.left = done, rebuilds, left


BOTH = ("t1", "t2")
COLD = "SELECT relation::text, local_bytes, cold_bytes > 0 FROM firn.tables WHERE relation::text IN ('t1', 't2') ORDER BY 1"
WORKS = [
    Work("compact in pieces", PARTS, "CALL firn.compact_in_pieces('t', 1)",
         "SELECT 't1', sum(rows) FROM firn.stripes('t1') UNION SELECT 't2', sum(rows) FROM firn.stripes('t2') ORDER BY 1", BOTH),
    Work("offload in pieces", PARTS, "CALL firn.offload_in_pieces('t', 'cold', 1)", COLD, BOTH, "SELECT firn.compact('t')"),
    Work("load in pieces", PARTS, "CALL firn.load_in_pieces('t', 1)", COLD.replace("local_bytes", "local_bytes > 0"), BOTH,
         "SELECT firn.compact('t'), firn.offload('t', 'cold')"),
    Work("rebuild", LONG, "VACUUM t", "SELECT pg_relation_size('t_v')", ("t",), SETTLED, rebuilds=True),
    Work("rebuild of what was left", LONG, "VACUUM t", "SELECT pg_relation_size('t_v')", ("t",), SETTLED, rebuilds=True, left=True),
]


class Bench:
    """The rack's server, and a session that goes on from fault to fault."""

    def __init__(self, rack, work, rng):
        self.rack, self.work, self.rng = rack, work, rng
        self.conn, self.said = None, []
        with rack.cluster.connect() as c:
            c.execute(work.make.replace("{am}", "heap"))
            self.rows = c.execute(ROWS).fetchall()
        self.prepare()
        before = self.calls("off") if work.rebuilds else 0
        self.prepare()
        self.count = self.calls("on")
        # From there on errors are warnings.
        self.rebuild_begins = before + 1 if work.rebuilds else self.count + 1
        [[trace]] = self.conn.execute("SHOW faults.trace").fetchall()
        self.telling = list(map(int, trace.split()))
        self.conn.execute("SET faults.at = 0")
        self.done = self.conn.execute(work.done).fetchall()
        self.look("without a fault")

    def calls(self, rebuild):
        self.conn.execute(f"SET firn.rebuild_indexes = {rebuild}")
        self.conn.execute("SET faults.at = -1")
        self.conn.execute(self.work.sql)
        return int(self.conn.execute("SHOW faults.calls").fetchone()[0])

    def connect(self):
        if self.conn is None or self.conn.closed:
            self.conn, self.faults, self.warm = self.rack.cluster.connect(prepare_threshold=None), 0, None
            self.conn.add_notice_handler(lambda d: self.said.append((d.severity, d.message_primary, d.message_detail or "")))
            self.conn.execute("SET firn.stripe_rows = 20; SET firn.rebuild_indexes = on")

    def prepare(self):
        """The table as the statement is to find it, in a session that lives."""
        self.connect()
        for _ in range(200):
            for sql in (self.work.make.replace("{am}", "firn"), *self.work.settle.split("; ")):
                self.conn.execute(sql)
            if not self.work.left:
                return
            # A rebuild that has ended at once with its session has left an index.
            with self.rack.cluster.connect(prepare_threshold=None) as c:
                c.execute("SET firn.rebuild_indexes = on; SET faults.mode = die")
                c.execute(f"SET faults.at = {self.rng.randint(1, 2000)}")
                try:
                    c.execute("VACUUM t")
                except psycopg.OperationalError:
                    self.gone(c.info.backend_pid)
            self.rack.complaints()
            if self.invalid():
                return
        raise AssertionError("no rebuild has left an index")

    def gone(self, pid):
        end = time.time() + 30
        while self.rack.watch.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchall():
            assert time.time() < end, "the session does not end"
            time.sleep(0.01)

    def invalid(self):
        return self.rack.watch.execute(INVALID).fetchall()

    def fault(self, n, mode):
        """The statement with a fault at its call n. Returns whether it came; raises when it left anything."""
        rack, work = self.rack, self.work
        self.prepare()
        pid = self.conn.info.backend_pid
        self.conn.execute(f"SET faults.mode = {mode}")
        self.said.clear()
        self.conn.execute(f"SET faults.at = {n}")
        state, where = None, ""
        try:
            self.conn.execute(work.sql)
            [[where]] = self.conn.execute("SHOW faults.last").fetchall()
            self.conn.execute("SET faults.at = 0")
        except psycopg.Error as e:
            state = e.sqlstate or "lost"
            if not self.conn.closed:
                [[where]] = self.conn.execute("SHOW faults.last").fetchall()
                self.conn.execute("SET faults.at = 0")
        at = f"{work.name}, {mode} at call {n} of {self.count}, of {where or '?'}"
        warned = [text for severity, _, text in self.said if severity == "WARNING"]
        try:
            self.ended(n, mode, state, where, warned)
            if mode == "kill" and state is not None:
                rack.wait_for_recovery()
            elif self.conn.closed:
                self.gone(pid)
            said = [line for line in rack.complaints() if "could not rebuild index" not in line and "could not end the maintenance" not in line]
            assert not said, "\n".join(said[:5])
            assert rack.start_of_server() == rack.started, "the server was restarted"
            self.worker_ends()
            assert self.conn.closed or self.held(pid) == (0, 0, 0), f"locks, progress, snapshots: {self.held(pid)}"
            left = self.invalid()
            assert not [name for name, ours in left if not ours], f"invalid without a mark: {left}"
            self.look("after it", left)
            # What is left to do is done, and told of nobody.
            self.connect()
            self.said.clear()
            self.conn.execute(work.sql)
            got = self.conn.execute(work.done).fetchall()
            assert got == self.done, f"then it did not do all: {got}, not {self.done}"
            self.conn.execute("VACUUM t")
            self.worker_ends()
            self.look("then again", self.invalid())
            said = rack.complaints()
            assert not said and not self.invalid(), "\n".join([f"after VACUUM: {self.invalid()}", *said[:5]])
            self.does_not_grow()
        except (AssertionError, psycopg.Error) as e:
            raise Torn(f"{at}, which ended with {state}, {warned}: {e}") from e
        return bool(where) or state is not None

    def ended(self, n, mode, state, where, warned):
        """It ended as the fault says. A request that comes at the very end is the next statement's."""
        expected = {"error": FAULT, "cancel": "57014", "die": "57P01", "kill": "lost"}[mode]
        texts = {"error": "fault at call", "cancel": "canceling statement due to user request"}
        if state is None and where and mode in texts:
            late = mode == "cancel" and not warned
            assert late or self.work.rebuilds and warned and texts[mode] in warned[0], "it ended as if nothing had been"
        elif where or state is not None:
            # A session that is told to end while it waits for the next statement says so to nobody.
            assert state == expected or mode in ("die", "kill") and state in ("57P01", "57P02", "lost"), f"not {expected}"
            assert mode in ("die", "kill") or n < self.rebuild_begins, "an error in the rebuild ended VACUUM"

    def worker_ends(self):
        end = time.time() + 60
        while self.rack.watch.execute(WORKERS).fetchone()[0]:
            assert time.time() < end, "a process that rebuilds does not end"
            time.sleep(0.05)

    def held(self, pid):
        return self.rack.watch.execute(IDLE, {"pid": pid}).fetchone()

    def look(self, when, left=()):
        """Rows by a scan and by the index are heap's; nothing is damaged."""
        c = self.rack.watch
        for scan in ("on", "off"):
            c.execute(f"SET enable_seqscan = {scan}; SET firn.enable_scan = {scan}")
            rows = c.execute(ROWS).fetchall()
            assert rows == self.rows, f"{when}, scans {scan}: {differ(self.rows, rows)}"
        c.execute("RESET enable_seqscan; RESET firn.enable_scan")
        for table in self.work.tables:
            problems = c.execute("SELECT * FROM firn.check(%s)", (table,)).fetchall()
            problems = [p for p in problems if not left or "REINDEX CONCURRENTLY left it" not in p[2]]
            assert not problems, f"{when}: {problems[:3]}"
            c.execute("SELECT bt_index_check(x.indexrelid, true) FROM pg_index x, pg_class t WHERE t.oid = %s::regclass"
                      " AND x.indrelid IN (t.oid, t.reltoastrelid) AND x.indisvalid", (table,))

    def does_not_grow(self):
        """Fault after fault, the session's memory stays as it was after the first."""
        if self.conn.closed:
            return
        self.faults += 1
        if self.faults >= WARM and self.faults % WARM == 0:
            used = int(self.conn.execute(CONTEXTS if self.conn.info.server_version < 180000 else CONTEXTS_18).fetchone()[0])
            self.warm = self.warm or used
            assert used < self.warm + SLACK, f"the session's memory has grown from {self.warm} to {used} in {self.faults} faults"


def chosen(bench, rng, seconds):
    """Pairs of a call and a mode, in order: those first that tell most; all there are when `seconds` is None."""
    rest = sorted(set(range(1, bench.count + 1)) - set(bench.telling))
    rng.shuffle(bench.telling)
    rng.shuffle(rest)
    calls = bench.telling + rest
    if seconds is None:
        # One session for all errors and cancels, so that what each leaves would show.
        return [(n, mode) for mode in MODES for n in calls] + [(n, "kill") for n in calls[::60]]
    pairs = [(n, rng.choices(list(MODES), list(MODES.values()))[0]) for n in calls]
    return pairs[:5] + [(calls[-1], "kill")] + pairs[5:]


def torture(rack, work, rng, seconds):
    """As many faults as there is time for."""
    bench = Bench(rack, work, rng)
    end = None if seconds is None else time.time() + seconds
    tried, wrong = collections.Counter(), []
    for n, mode in chosen(bench, rng, seconds):
        if end is not None and tried and time.time() > end or len(wrong) >= 10:
            break
        tried[mode] += 1
        try:
            bench.fault(n, mode)
        except (Torn, psycopg.Error) as e:
            wrong.append(str(e))
            print("    " + wrong[-1][:1000], flush=True)
            rack.cluster.wait_ready()
            rack.watch = rack.cluster.connect()
            rack.started = rack.start_of_server()
            rack.complaints()
            bench.conn = None
    said = ", ".join(f"{count} {mode}" for mode, count in tried.items())
    print(f"    {work.name}: {said} at {bench.count} calls", flush=True)
    assert not wrong, "\n".join(wrong)
