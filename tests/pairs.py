"""Two sessions at once, at random, on heap and on firn in lockstep.

There are two databases, one with heap tables and one with firn tables, each with sessions A and B. A step is one
statement of one session, run in both databases. What waits for a lock on heap must wait on firn, what it returns or
fails with must be the same, and so must the tables. A third session moves firn's rows about all the while.
FIRN_PAIR_SEEDS (comma-separated) and FIRN_PAIR_STEPS choose what is run.
"""
import os
import random
import select
import time

import psycopg
from psycopg.pq import ExecStatus

from harness.cluster import Cluster

STEPS = int(os.environ.get("FIRN_PAIR_STEPS", "1500"))
SEEDS = [int(s) for s in os.environ.get("FIRN_PAIR_SEEDS", "0,1,2").split(",")]
AMS = ("heap", "firn")
# The ids from 1 to this are those that everybody wants.
HOT = 6
# Milliseconds after which PostgreSQL looks for a deadlock.
DEADLOCK = 15
# How long a difference may last before it is one: the machine may have other things to do.
PATIENCE = 3.0


# The shapes of the table: plain, with row triggers, partitioned (so that changes of the key move rows).
SCHEMAS = [
    ["CREATE TABLE t (id int PRIMARY KEY, k int, v text)"],
    ["CREATE TABLE t (id int PRIMARY KEY, k int, v text)",
     "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS "
     "$$ BEGIN NEW.k := least(NEW.k, 500); RETURN NEW; END $$",
     "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
     "IF OLD.id < 3 THEN INSERT INTO t VALUES (OLD.id + 5000, 0, 'noted') ON CONFLICT (id) DO UPDATE SET k = t.k + 1; END IF; "
     "RETURN NULL; END $$",
     "CREATE TRIGGER before BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION touch()",
     "CREATE TRIGGER after AFTER DELETE ON t FOR EACH ROW EXECUTE FUNCTION note()"],
    ["CREATE TABLE t (id int PRIMARY KEY, k int, v text) PARTITION BY RANGE (id)",
     "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (MINVALUE) TO (1000)",
     "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (1000) TO (MAXVALUE)"],
]


class Session:
    """The connections of one session, one per database, driven without threads."""

    def __init__(self, cluster, name, databases):
        self.name = name
        self.conns = {am: cluster.connect(db) for am, db in databases.items()}
        for am in AMS:
            # Rows are to be locked in the same order on both: by the index.
            self.conns[am].execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; "
                                   f"SET enable_mergejoin = off; SET deadlock_timeout = '{DEADLOCK}ms'; SET jit = off")
        self.conns["firn"].execute("SET firn.bulk_threshold = 5; SET firn.stripe_rows = 20")
        self.busy = dict.fromkeys(AMS, False)
        self.results = dict.fromkeys(AMS)
        self.sql = None
        self.in_block = self.failed = self.cursor = False
        self.savepoints = 0

    def start(self, sql):
        self.sql = sql
        for am in AMS:
            self.conns[am].pgconn.send_query(sql.replace("@", am).encode())
            self.busy[am], self.results[am] = True, []

    def poll(self, am):
        """Take what has come; True when the statement has ended."""
        pg = self.conns[am].pgconn
        while self.busy[am]:
            pg.consume_input()
            if pg.is_busy():
                return False
            result = pg.get_result()
            if result is None:
                self.busy[am] = False
            else:
                self.results[am].append(describe(result))
        return True

    def pid(self, am):
        return self.conns[am].pgconn.backend_pid

    def waits(self):
        return any(self.busy.values())


class Failed(str):
    """The SQLSTATE of an error; its text is shown, not compared."""

    text = ""

    def __repr__(self):
        return f"{self!s} {self.text}"


DEADLOCKED = Failed("40P01")


def describe(result):
    if result.status == ExecStatus.TUPLES_OK:
        rows = [tuple(result.get_value(r, c) for c in range(result.nfields)) for r in range(result.ntuples)]
        return sorted(rows, key=repr)
    if result.status == ExecStatus.FATAL_ERROR:
        failed = Failed(result.error_field(psycopg.pq.DiagnosticField.SQLSTATE).decode())
        failed.text = result.error_message.decode().strip()
        return failed
    return result.command_status.decode()


class Difference(Exception):
    pass


class Pair:
    def __init__(self, cluster, seed):
        self.rng = random.Random(seed)
        self.databases = {am: f"{am}{seed}" for am in AMS}
        with cluster.connect() as c:
            for db in self.databases.values():
                c.execute(f"CREATE DATABASE {db}")
        for am, db in self.databases.items():
            with cluster.connect(db) as c:
                c.execute("CREATE EXTENSION firn")
                folder = os.path.join(cluster.root, f"store{seed}")
                if am == "firn":
                    os.mkdir(folder)
                    os.chmod(folder, 0o777)
                c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{folder}')")
                c.execute(f"SET default_table_access_method = {am}")
                c.execute("SET firn.bulk_threshold = 5; SET firn.stripe_rows = 20")
                for statement in SCHEMAS[seed % len(SCHEMAS)]:
                    c.execute(statement)
                c.execute("CREATE INDEX ON t (k)")
                c.execute("CREATE TABLE child (id serial, t int REFERENCES t ON UPDATE CASCADE)")
                c.execute("INSERT INTO t SELECT i, i % 7, 'v' || i FROM generate_series(1, 40) i")
                for i in range(41, 61):
                    c.execute("INSERT INTO t VALUES (%s, 1, 'single')", (i,))
        self.a, self.b = (Session(cluster, n, self.databases) for n in "ab")
        self.mover = {am: cluster.connect(db) for am, db in self.databases.items()}
        self.mover["firn"].execute("SET firn.bulk_threshold = 5; SET firn.stripe_rows = 20")
        self.watch = {am: cluster.connect(db) for am, db in self.databases.items()}
        for c in [*self.mover.values(), *self.watch.values()]:
            c.execute("SET lock_timeout = '30ms'")
        self.next_id = 61
        # The session whose prepared transaction is waiting for its end.
        self.prepared = None
        self.present = []
        self.log = []
        self.counts = {"waits": 0, "deadlocks": 0, "prepared": 0, "new starts": 0, "errors": 0}

    # What is to be done.

    def look(self):
        """Which of the ids that everybody wants exist."""
        try:
            rows = self.watch["heap"].execute(f"SELECT id FROM t WHERE id <= {HOT}").fetchall()
            self.present = sorted(r[0] for r in rows)
        except psycopg.errors.LockNotAvailable:
            pass

    def key(self):
        """An id, mostly one that exists and that others want, too."""
        r = self.rng
        if self.present and r.random() < 0.8:
            return r.choice(self.present)
        return r.randint(1, HOT) if r.random() < 0.5 else r.randint(1, self.next_id)

    def free_key(self):
        """An id, mostly one that does not exist."""
        r = self.rng
        missing = sorted(set(range(1, HOT + 1)) - set(self.present))
        if missing and r.random() < 0.7:
            return r.choice(missing)
        return self.key() if r.random() < 0.3 else self.new_ids(1)

    def keys(self):
        r = self.rng
        a = self.key()
        return r.choice([f"id = {a}", f"id = {a}", f"id = {a}", f"id BETWEEN {a} AND {a + r.randint(1, 6)}",
                         f"id IN ({a}, {self.key()}, {self.key()})", f"id = {a} AND k > 2"])

    def scanned(self):
        """A statement about one row, which is found without an index."""
        r, a = self.rng, self.key()
        where = r.choice([f"id = {a}", f"id = {a} AND (k > 2 OR v LIKE 'v%')", f"id = {a} AND NOT (k = 3 OR v = 'new')"])
        sql = r.choice([f"UPDATE t SET k = k + 1 WHERE {where} RETURNING id, k, v", f"UPDATE t SET v = v || ':' WHERE {where}", f"DELETE FROM t WHERE {where} RETURNING id, k, v",
                        f"UPDATE t SET k = t.k + s.k FROM t s WHERE s.id = t.id AND t.{where.replace('(k', '(t.k').replace(' v', ' t.v')} RETURNING t.id, t.k",
                        f"SELECT id, k, v FROM t WHERE {where} FOR {r.choice(['UPDATE', 'NO KEY UPDATE', 'SHARE', 'KEY SHARE'])}"])
        return f"SET enable_seqscan = on; SET enable_indexscan = off; {sql}; SET enable_seqscan = off; SET enable_indexscan = on"

    def new_ids(self, n):
        low = self.next_id
        self.next_id += n
        return low

    def statement(self, s):
        r = self.rng
        if r.random() < 0.2:
            return self.scanned()
        x = r.random()
        if x < 0.24:
            change = r.choice(["k = k + 1", "v = v || '.'", "k = k + 1, v = 'u' || k", "id = id", "k = (SELECT max(k) FROM t WHERE id < 5)"])
            return f"UPDATE t SET {change} WHERE {self.keys()}" + r.choice(["", " RETURNING id, k, v"])
        if x < 0.26:
            return f"UPDATE t SET id = id + {1000 * r.randint(1, 3)} WHERE {self.keys()} AND id < 1000"
        if x < 0.31:
            return f"UPDATE t SET id = id - 1000 * (id / 1000) WHERE id > 1000 AND id < {1000 * r.randint(2, 4)}"
        if x < 0.35:
            return f"DELETE FROM t WHERE {self.keys()}" + r.choice(["", " RETURNING id, k, v"])
        if x < 0.44:
            return f"INSERT INTO t VALUES ({self.free_key()}, {r.randint(0, 6)}, 'new')"
        if x < 0.48:
            n = r.randint(8, 30)
            low = self.new_ids(n) if r.random() < 0.8 else self.key()
            return f"INSERT INTO t SELECT i, i % 7, 'bulk' FROM generate_series({low}, {low + n - 1}) i"
        if x < 0.54:
            action = r.choice(["NOTHING", "(id) DO UPDATE SET k = t.k + 100, v = excluded.v",
                               "(id) DO UPDATE SET v = 'taken' WHERE t.k < 5"])
            target = f"ON CONFLICT {'DO ' if action == 'NOTHING' else ''}{action}"
            if r.random() < 0.5:
                return f"INSERT INTO t VALUES ({self.key()}, 3, 'upsert') {target} RETURNING id, k, v"
            a = self.key()
            return f"INSERT INTO t SELECT i, 3, 'upserts' FROM generate_series({a}, {a + r.randint(2, 12)}) i {target}"
        if x < 0.72:
            strength = r.choice(["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"])
            policy = r.choice(["", "", " NOWAIT", " SKIP LOCKED"])
            limit = r.choice(["", "", " LIMIT 2"])
            return f"SELECT id, k, v FROM t WHERE {self.keys()} ORDER BY id{limit} FOR {strength}{policy}"
        if x < 0.79:
            return f"INSERT INTO child (t) VALUES ({self.key()})"
        if x < 0.81:
            return f"DELETE FROM child WHERE t = {self.key()}"
        if x < 0.84:
            a = self.key()
            return (f"MERGE INTO t USING (SELECT i, i * 10 AS n FROM generate_series({a}, {a + r.randint(0, 4)}) i) s ON t.id = s.i "
                    "WHEN MATCHED AND t.k > 4 THEN DELETE WHEN MATCHED THEN UPDATE SET k = t.k + 1 "
                    "WHEN NOT MATCHED THEN INSERT VALUES (s.i, 0, 'merged')")
        if x < 0.92 and s.cursor:
            return r.choice(["FETCH 1 FROM c", "FETCH 1 FROM c", "FETCH 2 FROM c", "UPDATE t SET k = k + 1 WHERE CURRENT OF c RETURNING id",
                             "UPDATE t SET v = v || '-' WHERE CURRENT OF c RETURNING id", "DELETE FROM t WHERE CURRENT OF c RETURNING id"])
        if x < 0.87 and s.in_block:
            s.cursor = True
            return f"DECLARE c CURSOR FOR SELECT id, k, v FROM t WHERE {self.keys()}{r.choice(['', ' FOR UPDATE'])}; FETCH 1 FROM c"
        if x < 0.88:
            return r.choice(["TRUNCATE child", "REINDEX TABLE t", "CREATE INDEX IF NOT EXISTS on_v ON t (v)", "DROP INDEX IF EXISTS on_v",
                             "LOCK TABLE t IN SHARE ROW EXCLUSIVE MODE", "ALTER TABLE child ALTER t SET NOT NULL"])
        query = r.choice(["SELECT count(*), sum(id), sum(k), max(v) FROM t", "SELECT * FROM t WHERE k = 3", "TABLE t", "TABLE child",
                          f"SELECT * FROM t WHERE {self.keys()}", "SELECT k, count(*) FROM t GROUP BY k",
                          "SELECT t.id, count(c.t) FROM t LEFT JOIN child c ON c.t = t.id GROUP BY t.id"])
        if r.random() < 0.7 and query != "TABLE child":
            return f"SET enable_seqscan = on; {query.replace('TABLE child', 'SELECT t FROM child')}; SET enable_seqscan = off"
        return query.replace("TABLE child", "SELECT t FROM child")

    def next_statement(self, s):
        """A statement or a transaction command for session `s`."""
        r = self.rng
        if s.failed and r.random() < 0.9:
            if s.savepoints and r.random() < 0.6:
                return f"ROLLBACK TO s{r.randint(1, s.savepoints)}"
            return "ROLLBACK"
        x = r.random()
        if not s.in_block:
            if x < 0.75:
                return r.choice(["BEGIN", "BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"])
        elif x < 0.10:
            if r.random() < 0.12 and self.prepared is None:
                return "PREPARE TRANSACTION '@'"
            return r.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        elif x < 0.15:
            return f"SAVEPOINT s{s.savepoints + 1}"
        elif x < 0.18 and s.savepoints:
            return f"ROLLBACK TO s{r.randint(1, s.savepoints)}"
        elif x < 0.20 and s.savepoints:
            return f"RELEASE s{r.randint(1, s.savepoints)}"
        return self.statement(s)

    # Doing it.

    def locked(self, am):
        """Processes that wait for a lock in this database."""
        rows = self.watch[am].execute("SELECT pid FROM pg_locks WHERE NOT granted").fetchall()
        return {r[0] for r in rows}

    def settle(self):
        """Wait until each session has ended its statement or waits for a lock, the same on heap and firn; compare
        what has ended."""
        busy = [s for s in (self.a, self.b) if s.waits()]
        end = time.time() + PATIENCE
        first = time.time() + 0.003
        while True:
            sockets = [s.conns[am].pgconn.socket for s in busy for am in AMS if not s.poll(am)]
            if not sockets:
                break
            if time.time() < first:
                select.select(sockets, [], [], 0.001)
                continue
            if self.at_rest(busy):
                # All that wait have waited once: the looks for deadlocks are over before the next step.
                time.sleep(1.6 * DEADLOCK / 1000)
                if self.at_rest(busy):
                    break
                continue
            if any(DEADLOCKED in s.results[am] for s in busy for am in AMS if not s.busy[am]) and self.at_rest(busy, False):
                return self.start_again("different victims of a deadlock")
            if time.time() > end:
                # heapam follows a row it may lock to the versions made of it, and waits there whatever it was told.
                told = any(s.sql.endswith(("NOWAIT", "SKIP LOCKED")) and s.busy["heap"] and not s.busy["firn"] for s in busy)
                if told and self.at_rest(busy, False):
                    return self.start_again("heap waits in spite of NOWAIT or SKIP LOCKED")
                waiting = {am: self.locked(am) for am in AMS}
                raise Difference("who waits differs: " + ", ".join(
                    f"{s.name} on {am}: {s.results[am] if s.poll(am) else 'waits' if s.pid(am) in waiting[am] else 'runs'}"
                    for s in busy for am in AMS))
            select.select(sockets, [], [], 0.002)
        # A list: all of them are finished, also behind one that was not.
        if not all([self.finish(s) for s in busy if not s.waits()]):  # noqa: C419
            self.start_again("different victims of a deadlock")

    def at_rest(self, busy, same=True):
        """All that have not ended wait; with `same`, the same ones on heap and firn."""
        waiting = {am: self.locked(am) for am in AMS}
        ended = {s: [s.poll(am) for am in AMS] for s in busy}
        if same and any(x != y for x, y in ended.values()):
            return False
        return all(e or s.pid(am) in waiting[am] for s in busy for am, e in zip(AMS, ended[s]))

    def finish(self, s):
        """Compare what a statement gave, and follow the state of the session."""
        heap, firn = (s.results[am] for am in AMS)
        self.log.append(f"{s.name}  <- {short(firn)}")
        if heap != firn:
            if DEADLOCKED in heap + firn:
                return False
            raise Difference(f"{s.name}: {s.sql}\nheap {heap}\nfirn {firn}")
        last, word = firn[-1], s.sql.split()
        failed = isinstance(last, Failed)
        self.counts["errors"] += failed
        self.counts["deadlocks"] += last == DEADLOCKED
        if failed:
            s.failed = s.in_block
            if word[0] == "PREPARE":
                s.in_block = s.failed = False
        elif word[0] == "BEGIN":
            s.in_block, s.savepoints, s.cursor = True, 0, False
        elif word[0] in ("COMMIT", "ROLLBACK", "PREPARE") and word[1:2] != ["TO"]:
            s.in_block = s.failed = False
            if last == "PREPARE TRANSACTION":
                self.prepared = s
        elif word[0] == "SAVEPOINT":
            s.savepoints += 1
        elif word[0] == "ROLLBACK":
            s.failed, s.savepoints = False, int(word[2][1:])
        elif word[0] == "RELEASE":
            s.savepoints = int(word[1][1:]) - 1
        return True

    def step(self):
        r = self.rng
        if r.random() < 0.10:
            self.move()
        free = [s for s in (self.a, self.b) if not s.waits()]
        if self.prepared and (not free or r.random() < 0.15):
            self.end_prepared(r.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
            return
        if not free:
            raise Difference("both wait for ever")
        s = r.choice(free)
        self.look()
        sql = self.next_statement(s)
        self.log.append(f"{s.name}  {sql}")
        s.start(sql)
        self.settle()
        if s.waits():
            self.counts["waits"] += 1
            self.log.append(f"{s.name}  waits")

    def end_prepared(self, how):
        """End the prepared transaction, for which others may wait."""
        if self.a.waits() and self.b.waits():
            # Who of them goes on first is a matter of chance.
            self.start_again("two waited for a prepared transaction")
            return
        self.log.append(f"--  {how} PREPARED")
        self.counts["prepared"] += 1
        self.prepared = None
        for am in AMS:
            self.watch[am].execute(f"{how} PREPARED '{am}'")
        self.settle()

    def start_again(self, why):
        """Roll everything back, so that both databases are in the same state."""
        self.counts["new starts"] += 1
        self.log.append(f"--  {why}: all is rolled back")
        if self.prepared:
            for am in AMS:
                self.watch[am].execute(f"ROLLBACK PREPARED '{am}'")
            self.prepared = None
        end = time.time() + PATIENCE
        rolled = set()
        while len(rolled) < 4:
            for s in (self.a, self.b):
                for am in AMS:
                    if s.poll(am) and (s, am) not in rolled:
                        s.conns[am].execute("ROLLBACK")
                        rolled.add((s, am))
            if time.time() > end:
                raise Difference("a session does not end after a deadlock")
            time.sleep(0.002)
        for s in (self.a, self.b):
            s.in_block = s.failed = False
            s.savepoints = 0
        self.compare()

    def move(self):
        """What firn does to rows that stay the same; on heap there is nothing to do."""
        r = self.rng
        sql = r.choice(["SELECT firn.compact('t')", "SELECT firn.compact('t')", "SELECT firn.compact('child')",
                        "SELECT firn.offload('t', 'cold')", "SELECT firn.load('t')", "VACUUM (TRUNCATE off) t", "ANALYZE t"])
        self.log.append(f"mover  {sql}")
        for am in AMS:
            if am == "firn" or not sql.startswith("SELECT"):
                try:
                    self.mover[am].execute(sql)
                except psycopg.errors.LockNotAvailable:
                    self.log.append("mover  could not get its lock")

    def compare(self):
        for scan in ("on", "off"):
            seen = {}
            for am in AMS:
                c = self.watch[am]
                c.execute(f"SET enable_seqscan = {scan}")
                try:
                    seen[am] = [c.execute(f"SELECT {cols} FROM {t} ORDER BY 1, 2").fetchall()
                                for t, cols in (("t", "id, k, v"), ("child", "t, t"))]
                except psycopg.errors.LockNotAvailable:
                    return
            if seen["heap"] != seen["firn"]:
                odd = [x for h, f in zip(seen["heap"], seen["firn"]) for x in set(h) ^ set(f)]
                raise Difference(f"the tables differ (seqscan {scan}): {odd[:6]}")

    def end(self):
        """Finish all transactions and look at everything."""
        while self.prepared or any(s.in_block or s.waits() for s in (self.a, self.b)):
            if self.prepared:
                self.end_prepared("COMMIT")
            for s in (self.a, self.b):
                if not s.waits() and s.in_block:
                    s.start("COMMIT")
                    self.settle()
        self.compare()
        problems = self.watch["firn"].execute("SELECT * FROM firn.check('t') UNION ALL SELECT * FROM firn.check('child')").fetchall()
        if problems:
            raise Difference(f"firn.check: {problems}")

    def close(self):
        for c in [*self.a.conns.values(), *self.b.conns.values(), *self.mover.values(), *self.watch.values()]:
            c.close()


def short(result):
    text = repr(result)
    return text if len(text) < 150 else text[:150] + "..."


def walk(cluster, seed, steps):
    pair = Pair(cluster, seed)
    try:
        for i in range(steps):
            try:
                pair.step()
                if i % 25 == 24:
                    pair.compare()
            except (Difference, psycopg.Error) as e:
                history = "\n".join(pair.log[-int(os.environ.get("FIRN_PAIR_HISTORY", "40")):])
                raise AssertionError(f"seed {seed}, step {i}: {e}\n{history}") from e
        pair.end()
        if os.environ.get("FIRN_PAIR_LOG"):
            open(os.environ["FIRN_PAIR_LOG"], "w").write("\n".join(pair.log))
        print(f"     seed {seed}: " + ", ".join(f"{n} {what}" for what, n in pair.counts.items()), flush=True)
    finally:
        pair.close()


def run(tally, _pattern):
    cluster = Cluster("pairs", ["fsync=off", "autovacuum=off", "log_min_error_statement=panic"]).create()
    try:
        for seed in SEEDS:
            tally.case(f"pairs seed {seed}, {STEPS} steps", lambda: walk(cluster, seed, STEPS))
        tally.case("pairs server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()
