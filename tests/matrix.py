"""Everything against everything: what sessions do while each kind of maintenance runs, on twins of which one is heap.

Every transaction changes both twins alike, so in any one snapshot they are equal. A checker looks at such snapshots all
the time; sessions compare what single statements tell them. Each cell of the matrix (a session's doing, a maintenance
that ran at some time during it) is counted when the session's transaction has ended; the table of visits is printed.

FIRN_MATRIX_STEPS transactions in all (default 1,200; `make torture` takes more), FIRN_KILLS how often a backend or the
whole server is killed meanwhile (default 4), FIRN_SEED; FIRN_MATRIX_ONLY names the only maintenance, for looking into a difference."""
import os
import random
import signal
import subprocess
import threading
import time
import traceback

import psycopg

from harness.cluster import Cluster

STEPS = int(os.environ.get("FIRN_MATRIX_STEPS", "1200"))
KILLS = int(os.environ.get("FIRN_KILLS", "4"))
SEED = int(os.environ.get("FIRN_SEED", random.randrange(1 << 30)))
SESSIONS = 4
# What ends a transaction and may be tried again: conflicts, deadlocks, timeouts, the server going down.
EXPECTED = ("40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "08006", "08003", "08001", "25P02")
# A statement that is refused on both twins alike is tried as any other: these are compared.


class Stop(Exception):
    """The session's connection is gone: the server was killed."""


def both(c, sql, compare=True):
    """Run on heap, then on firn, in the same transaction; what they tell must be the same."""
    told = []
    for t in ("h", "f"):
        cur = c.execute(sql.replace("@", t))
        told.append(sorted(cur.fetchall(), key=repr) if cur.description else cur.rowcount)
    if compare and told[0] != told[1]:
        raise AssertionError(f"{sql}: heap {str(told[0])[:300]}, firn {str(told[1])[:300]}")
    return told[0]


class Doing:
    """What sessions do. Rows 1000·n … 1000·n + 999 are session n's, rows 1 … 20 everybody's; so a statement about its
    own rows has one right answer, and one about a common row is the same for both twins, as the heap twin's row
    is locked first."""

    def __init__(self, number, rng):
        self.rng = rng
        self.low = 1000 * (number + 1)
        self.number = number
        self.prepared = 0

    def own(self):
        return self.rng.randint(self.low, self.low + 300)

    def span(self, most=40):
        a = self.own()
        return f"BETWEEN {a} AND {a + self.rng.randint(0, most)}"

    def change(self, c):
        r, what = self.rng, self.rng.random()
        if what < 0.25:
            n, a = r.choice((1, 3, 60)), self.own()
            both(c, f"INSERT INTO @ SELECT i, i % 9, 'n' || i, 0 FROM generate_series({a}, {a + n}) i ON CONFLICT DO NOTHING")
        elif what < 0.45:
            both(c, f"UPDATE @ SET k = k + 1, v = v || 'u' WHERE id {self.span()}")
        elif what < 0.55:
            both(c, f"UPDATE @ SET n = n + 1 WHERE id = {r.randint(1, 20)}")
        elif what < 0.75:
            both(c, f"DELETE FROM @ WHERE id {self.span(25)}")
        elif what < 0.85:
            both(c, f"SELECT id, k, v FROM @ WHERE id {self.span()}")
        else:
            both(c, f"SELECT count(*), sum(k) FROM @ WHERE id >= {self.low} AND id < {self.low + 1000} AND k % 3 = 1")

    def changes(self, c, most=4):
        for _ in range(self.rng.randint(1, most)):
            self.change(c)

    def read_committed(self, c):
        with c.transaction():
            self.changes(c)

    def repeatable_read(self, c):
        with c.transaction():
            c.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self.changes(c)

    def serializable(self, c):
        with c.transaction():
            c.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            self.changes(c)

    def old_snapshot(self, c):
        """A snapshot that is older than what is done meanwhile, then changes under it."""
        with c.transaction():
            c.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            c.execute("SELECT 1")
            time.sleep(self.rng.random() * 0.3)
            both(c, "SELECT count(*), sum(k), sum(n) FROM @")
            self.changes(c, 2)

    def savepoints(self, c):
        with c.transaction():
            for _ in range(self.rng.randint(1, 4)):
                c.execute("SAVEPOINT s")
                self.changes(c, 2)
                if self.rng.random() < 0.5:
                    c.execute("ROLLBACK TO s")
                else:
                    c.execute("RELEASE s")
            self.change(c)

    def exceptions(self, c):
        """Subtransactions that fail in the middle of what they write."""
        a = self.own()
        with c.transaction():
            for t in ("h", "f"):
                c.execute(f"""DO $$ BEGIN
                    FOR i IN 0..5 LOOP
                        BEGIN
                            INSERT INTO {t} SELECT x, 1, 'e', 0 FROM generate_series({a} + i * 7, {a} + i * 7 + 9) x
                                ON CONFLICT (id) DO UPDATE SET v = 'c' || i;
                            IF i % 2 = 1 THEN RAISE EXCEPTION 'undo'; END IF;
                        EXCEPTION WHEN raise_exception THEN NULL;
                        END;
                    END LOOP;
                END $$""")
            both(c, f"SELECT id, v FROM @ WHERE id BETWEEN {a} AND {a + 60}")

    def prepared_transaction(self, c):
        name = f"p{self.number}_{self.rng.randrange(1 << 30)}"
        c.execute("BEGIN")
        try:
            self.changes(c, 2)
            c.execute(f"PREPARE TRANSACTION '{name}'")
        except BaseException:
            if not c.closed:
                c.execute("ROLLBACK")
            raise
        time.sleep(self.rng.random() * 0.05)
        try:
            c.execute(self.rng.choice((f"COMMIT PREPARED '{name}'", f"ROLLBACK PREPARED '{name}'")))
        except psycopg.Error:
            # Whether it is still there is found out by a new connection.
            c.close()
            raise

    def cursors(self, c):
        with c.transaction():
            for t in ("h", "f"):
                c.execute(f"DECLARE c_{t} CURSOR FOR SELECT id, k, v FROM {t} WHERE id >= {self.low} AND id < {self.low + 1000} ORDER BY id")
            for _ in range(3):
                both(c, f"FETCH {self.rng.randint(1, 60)} FROM c_@")
                self.change(c)
            both(c, "FETCH ALL FROM c_@")

    def held_cursor(self, c):
        with c.transaction():
            for t in ("h", "f"):
                c.execute(f"DECLARE w_{t} CURSOR WITH HOLD FOR SELECT id, k FROM {t} WHERE id >= {self.low} AND id < {self.low + 1000} ORDER BY id")
            self.change(c)
        both(c, "FETCH ALL FROM w_@")
        c.execute("CLOSE w_h; CLOSE w_f")

    def row_locks(self, c):
        with c.transaction():
            c.execute("SET LOCAL lock_timeout = '3s'")
            for _ in range(self.rng.randint(1, 3)):
                how = self.rng.choice(("UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"))
                both(c, f"SELECT id FROM @ WHERE id = {self.rng.randint(1, 20)} FOR {how}")
            both(c, f"UPDATE @ SET n = n + 1 WHERE id = {self.rng.randint(1, 20)}")

    def foreign_keys(self, c):
        with c.transaction():
            a = self.own()
            both(c, f"INSERT INTO @ VALUES ({a}, 1, 'p', 0) ON CONFLICT (id) DO UPDATE SET k = 1")
            both(c, f"INSERT INTO c@ SELECT {a} FROM generate_series(1, 3)")
            self.change_unless_referenced(c)
            both(c, f"DELETE FROM c@ WHERE id = {a}")
            both(c, f"INSERT INTO c@ VALUES ({self.rng.randint(1, 20)})")
            both(c, f"DELETE FROM c@ WHERE id BETWEEN 1 AND {self.rng.randint(1, 5)}", compare=False)

    def change_unless_referenced(self, c):
        both(c, f"UPDATE @ SET k = k + 1 WHERE id {self.span()}")

    def on_conflict(self, c):
        with c.transaction():
            ids = ", ".join(f"({self.rng.choice((self.own(), self.rng.randint(1, 20)))})" for _ in range(1))
            both(c, f"INSERT INTO @ (id, k, v, n) SELECT i, 0, 'x', 1 FROM (VALUES {ids}) s (i) "
                    "ON CONFLICT (id) DO UPDATE SET n = @.n + 1, v = 'y'")

    def triggers(self, c):
        """Triggers that run queries, before and after; a bulk insert with them."""
        with c.transaction():
            a = self.own()
            both(c, f"INSERT INTO t@ SELECT i, i % 5 FROM generate_series({a}, {a + self.rng.choice((1, 50))}) i", compare=True)
            both(c, f"SELECT count(*), sum(seen) FROM t@ WHERE id BETWEEN {a} AND {a + 60}")
            both(c, f"DELETE FROM t@ WHERE id >= {self.low} AND id < {self.low + 1000}")

    def procedures(self, c):
        """A procedure that commits between changes of both twins."""
        c.execute(f"CALL on_twins({self.own()}, {self.rng.randint(1, 30)})")

    def created_here(self, c):
        """A table made, filled and truncated in one transaction, with its index; used after."""
        name = f"x{self.number}"
        with c.transaction():
            c.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int) USING firn")
            c.execute(f"INSERT INTO {name} SELECT i, i FROM generate_series(1, 60) i")
            if self.rng.random() < 0.7:
                c.execute("SAVEPOINT s")
                c.execute(f"TRUNCATE {name}")
                c.execute(f"INSERT INTO {name} SELECT i, -i FROM generate_series(100, 180) i")
                if self.rng.random() < 0.5:
                    c.execute("ROLLBACK TO s")
            (low, sign) = c.execute(f"SELECT min(id), sign(min(v)) FROM {name}").fetchone()
        for settings in ("SET enable_seqscan = off; SET firn.enable_scan = off", "RESET enable_seqscan; RESET firn.enable_scan"):
            c.execute(settings)
            rows = c.execute(f"SELECT id, v FROM {name} WHERE id BETWEEN 1 AND 200 ORDER BY id").fetchall()
            want = [(i, -i) for i in range(100, 181)] if sign < 0 else [(i, i) for i in range(1, 61)]
            assert rows == want, (name, low, rows[:5], len(rows))
        c.execute(f"DROP TABLE {name}")

    def temporary_tables(self, c):
        c.execute("CREATE TEMP TABLE IF NOT EXISTS tmp (id int PRIMARY KEY, v int) USING firn ON COMMIT DELETE ROWS")
        for base in (0, 1000):
            with c.transaction():
                c.execute(f"INSERT INTO tmp SELECT i, i + {base} FROM generate_series({base}, {base} + 70) i")
                c.execute("SET LOCAL enable_seqscan = off; SET LOCAL firn.enable_scan = off")
                got = c.execute(f"SELECT v FROM tmp WHERE id = {base} + 35").fetchall()
                assert got == [(2 * base + 35,)], got
                assert c.execute("SELECT count(*) FROM tmp").fetchone() == (71,)

    def truncate(self, c):
        with c.transaction():
            c.execute("SET LOCAL lock_timeout = '1s'")
            c.execute("TRUNCATE uh, uf")
            n = self.rng.randint(1, 90)
            both(c, f"INSERT INTO u@ SELECT i FROM generate_series(1, {n}) i")
            if self.rng.random() < 0.3:
                raise psycopg.Rollback()
        with c.transaction():
            c.execute("SET LOCAL enable_seqscan = off")
            c.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            both(c, "SELECT count(*), sum(id) FROM u@ WHERE id > 0")


ONLY = os.environ.get("FIRN_MATRIX_ONLY", "").split(",")
DOINGS = [name for name in vars(Doing) if not name.startswith("_")
          and name not in ("own", "span", "change", "changes", "change_unless_referenced")]

# Maintenance, of the firn twin but where both must change alike.
MAINTENANCE = {
    "compact": "SELECT firn.compact('f')",
    "offload": "SELECT firn.offload('f', 'cold')",
    "load": "SELECT firn.load('f')",
    "vacuum": "VACUUM f",
    "vacuum cleanup": "VACUUM (INDEX_CLEANUP on) f",
    "freeze": "VACUUM (FREEZE) f",
    "vacuum toast": "VACUUM @toast",
    "vacuum full": "VACUUM FULL f",
    "cluster": "CLUSTER f USING f_pkey",
    "reindex": "REINDEX TABLE f",
    "reindex concurrently": "REINDEX TABLE CONCURRENTLY f",
    "reindex toast": "REINDEX TABLE @toast",
    "reindex toast concurrently": "REINDEX TABLE CONCURRENTLY @toast",
    "create index": "CREATE INDEX extra ON f (k); DROP INDEX extra",
    "create index concurrently": ("CREATE INDEX CONCURRENTLY extra2 ON f (n, k)", "DROP INDEX CONCURRENTLY IF EXISTS extra2"),
    # A rewrite leaves older snapshots an empty table (PostgreSQL documents it), so the twins are rewritten together.
    "alter rewrite": "ALTER TABLE h ALTER v TYPE text USING v || ''; ALTER TABLE f ALTER v TYPE text USING v || ''",
    "access method": "ALTER TABLE h ALTER v TYPE text USING v || ''; ALTER TABLE f SET ACCESS METHOD heap; "
                     "ALTER TABLE f SET ACCESS METHOD firn",
    "add column": "ALTER TABLE f ADD COLUMN z int DEFAULT 5; ALTER TABLE f DROP COLUMN z",
    "attach": "CREATE TABLE part (LIKE f) PARTITION BY RANGE (id); ALTER TABLE part ATTACH PARTITION f FOR VALUES FROM (0) TO (1000000); "
              "ALTER TABLE part DETACH PARTITION f; DROP TABLE part",
    "analyze": "ANALYZE f",
    "checkpoint": "CHECKPOINT",
    "check": "SELECT * FROM firn.check('f')",
    "autovacuum": None,
}
if ONLY != [""]:
    MAINTENANCE = {m: sql for m, sql in MAINTENANCE.items() if m in ONLY}


class Matrix:
    def __init__(self, cluster, seed):
        self.cluster, self.seed = cluster, seed
        self.rng = random.Random(seed)
        self.lock = threading.Lock()
        self.visits = {}
        self.done = 0
        self.failures = []
        self.running = set()
        self.ended = []
        self.stop = threading.Event()
        self.down = threading.Event()
        self.retries = 0
        self.kills = 0
        self.checks = 0

    def connect(self):
        while not self.stop.is_set():
            try:
                c = self.cluster.connect("m")
                c.execute("SET firn.bulk_threshold = 5; SET firn.stripe_rows = 150; SET deadlock_timeout = '100ms'; SET lock_timeout = '20s'")
                return c
            except psycopg.Error:
                time.sleep(0.1)
        raise Stop()

    def expected(self, e):
        return isinstance(e, (psycopg.OperationalError, psycopg.InterfaceError)) or getattr(e, "sqlstate", None) in EXPECTED

    def fail(self, who, e):
        with self.lock:
            self.failures.append(f"{who}: {type(e).__name__} {getattr(e, 'sqlstate', '')} {e}\n{traceback.format_exc()}"
                                 f"maintenance before: {self.ended[-12:]}, now: {sorted(self.running)}")
        self.stop.set()

    def session(self, number):
        rng = random.Random(self.seed * 31 + number)
        doing = Doing(number, rng)
        c = None
        while not self.stop.is_set():
            name = self.rarest(rng)
            with self.lock:
                seen = set(self.running)
                mark = len(self.ended)
            try:
                if c is None or c.closed:
                    c = self.connect()
                    # What a killed session of this number had prepared would keep its rows for ever.
                    left = c.execute("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", (f"p{number}\\_%",))
                    for (gid,) in left.fetchall():
                        c.execute(f"ROLLBACK PREPARED '{gid}'")
                getattr(doing, name)(c)
            except Stop:
                return
            except Exception as e:  # noqa: BLE001 - sorted out here
                if not self.expected(e):
                    self.fail(f"session {number}, {name}", e)
                    return
                self.retries += 1
                if c is not None and not c.closed:
                    try:
                        c.execute("ROLLBACK")
                    except psycopg.Error:
                        c.close()
            with self.lock:
                seen |= set(self.running) | set(self.ended[mark:])
                for m in seen:
                    self.visits[name, m] = self.visits.get((name, m), 0) + 1
                self.done += 1
                if self.done >= STEPS and all((d, m) in self.visits for d in DOINGS for m in MAINTENANCE):
                    self.stop.set()
                # Cells that hardly ever meet are not waited for without end.
                if self.done >= 4 * STEPS:
                    self.stop.set()

    def rarest(self, rng):
        """Often what was least visited with the maintenance at work."""
        with self.lock:
            running = list(self.running)
            if running and rng.random() < 0.5:
                m = rng.choice(running)
                return min(DOINGS, key=lambda d: (self.visits.get((d, m), 0), rng.random()))
        return rng.choice(DOINGS)

    def maintain(self, number):
        rng = random.Random(self.seed * 77 + number)
        c = None
        while not self.stop.is_set():
            with self.lock:
                counts = {m: sum(self.visits.get((d, m), 0) for d in DOINGS) for m in MAINTENANCE}
            names = sorted(MAINTENANCE, key=lambda m: (counts[m] if rng.random() < 0.5 else 0, rng.random()))
            name = names[0]
            try:
                if c is None or c.closed:
                    c = self.connect()
                with self.lock:
                    self.running.add(name)
                self.carry_out(c, name)
            except Stop:
                return
            except Exception as e:  # noqa: BLE001
                # The other one has the table as heap just now, or its indexes in the making.
                other = getattr(e, "sqlstate", None) in ("55006", "42P07", "42704", "42809", "42P01")
                if not self.expected(e) and not other:
                    self.fail(f"maintenance {name}", e)
                    return
                if c is not None and not c.closed:
                    try:
                        c.execute("ROLLBACK")
                    except psycopg.Error:
                        c.close()
            finally:
                with self.lock:
                    self.running.discard(name)
                    self.ended.append(name)

    def carry_out(self, c, name):
        sql = MAINTENANCE[name]
        if sql is None:
            c.execute("ALTER TABLE f SET (autovacuum_enabled = on); ALTER TABLE f SET (toast.autovacuum_enabled = on)")
            time.sleep(0.7)
            c.execute("ALTER TABLE f SET (autovacuum_enabled = off); ALTER TABLE f SET (toast.autovacuum_enabled = off)")
            return
        for part in sql if isinstance(sql, tuple) else (sql,):
            if "@toast" in part:
                part = part.replace("@toast", c.execute(
                    "SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'f'::regclass").fetchone()[0])
            got = c.execute(part)
            if name == "check":
                rows = got.fetchall()
                # One that is in the making, or that a REINDEX CONCURRENTLY has left which met a deadlock.
                assert not [r for r in rows if r[0] == "error" and "it is invalid" not in r[2]], rows

    def check(self):
        """In any one snapshot the twins are equal, however they are read."""
        rng = random.Random(self.seed * 3)
        c = None
        while not self.stop.is_set():
            try:
                if c is None or c.closed:
                    c = self.connect()
                self.compare(c, rng.randrange(3))
                self.checks += 1
            except Stop:
                return
            except Exception as e:  # noqa: BLE001
                if not self.expected(e):
                    self.fail("checker", e)
                    return
            time.sleep(0.05)

    def compare(self, c, how):
        with c.transaction():
            c.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            c.execute(("SET LOCAL firn.enable_scan = on", "SET LOCAL firn.enable_scan = off; SET LOCAL enable_seqscan = off",
                       "SET LOCAL firn.enable_scan = off")[how])
            for h, f in (("h", "f"), ("ch", "cf"), ("uh", "uf"), ("th", "tf")):
                key = "id > 0"
                rows = [c.execute(f"SELECT {t}::text FROM {t} WHERE {key} ORDER BY 1").fetchall() for t in (h, f)]
                if rows[0] != rows[1]:
                    a, b = set(rows[0]), set(rows[1])
                    raise AssertionError(f"{f} (way {how}): {len(rows[0])} rows on heap, {len(rows[1])} on firn, missing "
                                         f"{list(a - b)[:3]}, extra {list(b - a)[:3]}, doubled {len(rows[1]) - len(b)}")

    def kill(self):
        rng = random.Random(self.seed * 13)
        for _ in range(KILLS):
            wait = rng.random() * 6 + 1
            if self.stop.wait(wait):
                return
            if rng.random() < 0.6:
                with open(os.path.join(self.cluster.data, "postmaster.pid")) as f:
                    postmaster = f.readline().strip()
                pids = subprocess.run(["pgrep", "-P", postmaster, "-f", "postgres: postgres m|autovacuum worker"],
                                      capture_output=True, text=True).stdout.split()
                if pids:
                    try:
                        os.kill(int(rng.choice(pids)), signal.SIGKILL)
                        self.kills += 1
                    except ProcessLookupError:
                        pass
            else:
                self.cluster.crash()
                self.cluster.start()
                self.kills += 1

    def run(self):
        threads = [threading.Thread(target=self.session, args=(i,)) for i in range(SESSIONS)]
        threads += [threading.Thread(target=self.maintain, args=(i,)) for i in range(2)]
        threads += [threading.Thread(target=self.check), threading.Thread(target=self.kill)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if self.failures:
            raise AssertionError(f"seed {self.seed}, after {self.done} transactions:\n" + "\n".join(self.failures[:3]))
        self.settle()

    def settle(self):
        """At the end, with nothing else at work."""
        self.stop.clear()
        c = self.connect()
        for (gid,) in c.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
            c.execute(f"ROLLBACK PREPARED '{gid}'")
        for how in range(3):
            self.compare(c, how)
        for t in ("f", "cf", "uf", "tf"):
            c.execute(f"SELECT * FROM firn.repair('{t}', false)")
            problems = c.execute(f"SELECT * FROM firn.check('{t}')").fetchall()
            assert not [p for p in problems if p[0] == "error"], (self.seed, problems)
            c.execute(f"""SELECT bt_index_check(i.indexrelid, true) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                WHERE i.indisvalid AND i.indrelid IN ('{t}'::regclass, (SELECT reltoastrelid FROM pg_class WHERE oid = '{t}'::regclass))""")

    def table(self):
        width = max(len(m) for m in MAINTENANCE)
        lines = [" " * width + " " + " ".join(f"{i:>4}" for i in range(len(DOINGS)))]
        for m in MAINTENANCE:
            lines.append(f"{m:<{width}} " + " ".join(f"{self.visits.get((d, m), 0):>4}" for d in DOINGS))
        lines += [f"  {i}: {d}" for i, d in enumerate(DOINGS)]
        return "\n".join(lines)


SETUP = """
CREATE TABLE @ (id int PRIMARY KEY, k int, v text, n int) USING ! WITH (autovacuum_enabled = off);
CREATE INDEX @_k ON @ (k);
INSERT INTO @ SELECT i, i % 9, 'v' || i, 0 FROM generate_series(1, 20) i;
INSERT INTO @ SELECT i, i % 9, 'v' || i, 0 FROM generate_series(1000, 5300) i WHERE i % 1000 < 300;
CREATE TABLE c@ (id int REFERENCES @ ON UPDATE CASCADE ON DELETE CASCADE) USING !;
CREATE INDEX ON c@ (id);
CREATE TABLE u@ (id int PRIMARY KEY) USING !;
CREATE TABLE t@ (id int PRIMARY KEY, k int, seen int) USING !;
CREATE FUNCTION before_@() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN SELECT count(*) INTO NEW.seen FROM t@ WHERE id >= NEW.id - 5 AND id <= NEW.id; RETURN NEW; END $$;
CREATE FUNCTION after_@() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN UPDATE t@ SET k = k + 1 WHERE id = NEW.id AND k % 5 = 0; RETURN NULL; END $$;
CREATE TRIGGER b BEFORE INSERT ON t@ FOR EACH ROW EXECUTE FUNCTION before_@();
CREATE TRIGGER a AFTER INSERT ON t@ FOR EACH ROW EXECUTE FUNCTION after_@();
"""
PROCEDURE = """
CREATE PROCEDURE on_twins(a int, n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..3 LOOP
        INSERT INTO h SELECT x, i, 'p', 0 FROM generate_series(a + i * 20, a + i * 20 + n) x ON CONFLICT (id) DO UPDATE SET v = 'p' || i;
        INSERT INTO f SELECT x, i, 'p', 0 FROM generate_series(a + i * 20, a + i * 20 + n) x ON CONFLICT (id) DO UPDATE SET v = 'p' || i;
        IF i % 2 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
    END LOOP;
END $$;
"""


def run(tally, _pattern):
    cluster = Cluster("matrix", ["fsync=off", "autovacuum_naptime=1s", "autovacuum_vacuum_cost_delay=0", "max_wal_size=512MB",
                                 "max_prepared_transactions=20", "autovacuum_vacuum_threshold=5", "autovacuum_vacuum_scale_factor=0"]).create()
    try:
        store = os.path.join(cluster.root, "store")
        os.mkdir(store, 0o777)
        os.chmod(store, 0o777)
        with cluster.connect() as c:
            c.execute("CREATE DATABASE m")
        with cluster.connect("m") as c:
            c.execute("CREATE EXTENSION firn; CREATE EXTENSION amcheck")
            c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
            for t, am in (("h", "heap"), ("f", "firn")):
                c.execute("SET firn.bulk_threshold = 5; SET firn.stripe_rows = 150")
                c.execute(SETUP.replace("@", t).replace("!", am))
            c.execute(PROCEDURE)
        matrix = Matrix(cluster, SEED)
        began = time.time()
        tally.case(f"matrix, seed {SEED}, {STEPS} transactions", matrix.run)
        print(matrix.table())
        empty = [(d, m) for d in DOINGS for m in MAINTENANCE if (d, m) not in matrix.visits]
        print(f"{matrix.done} transactions, {matrix.retries} given up, {matrix.checks} snapshots compared, "
              f"{matrix.kills} kills, {time.time() - began:.0f} s, cells not visited: {len(empty)}")
        tally.case("matrix server log", lambda: quiet(cluster, matrix))
    finally:
        cluster.destroy()


def quiet(cluster, matrix):
    alarms = [a for a in cluster.alarms() if "terminated by signal 9" not in a]
    assert not alarms, (matrix.seed, alarms[:5])
