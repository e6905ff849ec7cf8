"""One world of the matrix: a server with its twins, and everything that works on them at once."""
import os
import random
import signal
import subprocess
import threading
import time
import traceback

import psycopg

from matrix.doings import DOINGS, Doing
from matrix.maintenance import MAINTENANCE, PROCEDURE, SETUP

SESSIONS = 4
# What ends a transaction and may be tried again: conflicts, deadlocks, timeouts, the server going down.
EXPECTED = ("40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "08006", "08003", "08001", "25P02")
# A statement that is refused on both twins alike is tried as any other: these are compared.

TOAST = "(SELECT reltoastrelid FROM pg_class WHERE oid = 'f'::regclass)"


class Stop(Exception):
    """The session's connection is gone: the server was killed."""


class Matrix:
    """One server with its sessions, maintenance, checker and killer, until `limits.steps` statements are done and each
    cell was visited."""

    def __init__(self, cluster, seed, steps, kills):
        self.cluster, self.seed = cluster, seed
        self.steps_wanted, self.kills_wanted = steps, kills
        # Every thread counts for itself.
        self.counters = {}
        self.lock = threading.Lock()
        self.visits = {}
        self.transactions = 0
        self.failures = []
        self.running = set()
        self.ended = []
        self.stop = threading.Event()
        self.retries = 0
        self.kills = 0
        self.checks = 0

    def connect(self):
        while not self.stop.is_set():
            try:
                c = self.cluster.connect("m")
                self.counted(c)
                c.execute("SET firn.bulk_threshold = 5; SET firn.stripe_rows = 150; SET deadlock_timeout = '100ms'; SET lock_timeout = '20s'")
                return c
            except psycopg.Error:
                time.sleep(0.1)
        raise Stop()

    def counted(self, c):
        """Each statement of a connection is a step."""
        mine = self.counters.setdefault(threading.get_ident(), [0])
        plain = c.execute

        def execute(*args, **kw):
            mine[0] += 1
            return plain(*args, **kw)
        c.execute = execute

    @property
    def steps(self):
        return sum(n for (n,) in list(self.counters.values()))

    def expected(self, e):
        # Rollback gets out of its block when the server went down just then.
        return isinstance(e, (psycopg.OperationalError, psycopg.InterfaceError, psycopg.Rollback)) or getattr(e, "sqlstate", None) in EXPECTED

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
                self.transactions += 1
                self.look_for_the_end()

    def look_for_the_end(self):
        if self.steps < self.steps_wanted or self.kills < self.kills_wanted:
            return
        # Cells that hardly ever meet are not waited for without end.
        if self.steps >= 4 * self.steps_wanted or all((d, m) in self.visits for d in DOINGS for m in MAINTENANCE):
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
                other = getattr(e, "sqlstate", None) in ("55006", "42P07", "42704", "42809", "42P01") or name == "amcheck" and (
                    "not valid" in str(e) or "could not open relation" in str(e))
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

    def drop_left_overs(self, c):
        """What a DBA does: the next REINDEX would build what failed and killed ones have left behind, too, and the next
        all of these, and a plain one would make them valid."""
        left = c.execute(f"SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid IN ('f'::regclass, {TOAST}) "
                         "AND indexrelid::regclass::text ~ '_cc(new|old)[0-9]*$'").fetchall()
        try:
            c.execute("SET lock_timeout = '3s'")
            for (index,) in left:
                c.execute(f"DROP INDEX {index}")
        except psycopg.Error as e:
            # Another one builds it now, or has dropped it.
            if not self.expected(e) and e.sqlstate not in ("42704", "2BP01"):
                raise
        if not c.closed:
            c.execute("SET lock_timeout = '20s'")

    def carry_out(self, c, name):
        sql = MAINTENANCE[name]
        if sql is None:
            c.execute("ALTER TABLE f SET (autovacuum_enabled = on); ALTER TABLE f SET (toast.autovacuum_enabled = on)")
            time.sleep(0.7)
            c.execute("ALTER TABLE f SET (autovacuum_enabled = off); ALTER TABLE f SET (toast.autovacuum_enabled = off)")
            return
        if "reindex" in name:
            self.drop_left_overs(c)
        for part in sql if isinstance(sql, tuple) else (sql,):
            if "@toast" in part:
                part = part.replace("@toast", c.execute(f"SELECT {TOAST}::regclass::text").fetchone()[0])
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
        """Kills at random moments, spread over the steps."""
        rng = random.Random(self.seed * 13)
        while self.kills < self.kills_wanted:
            at = self.steps + rng.random() * 2 * self.steps_wanted / (self.kills_wanted + 1)
            while self.steps < at:
                if self.stop.wait(0.02):
                    return
            try:
                self.kill_once(rng)
            except Exception as e:  # noqa: BLE001 - the server must come back
                self.fail("killer", e)
                return

    def kill_once(self, rng):
        what = rng.random()
        if what < 0.5:
            with open(os.path.join(self.cluster.data, "postmaster.pid")) as f:
                postmaster = f.readline().strip()
            pids = subprocess.run(["pgrep", "-P", postmaster, "-f", "postgres: (postgres m|autovacuum worker|firn)"],
                                  capture_output=True, text=True).stdout.split()
            if not pids:
                return
            try:
                os.kill(int(rng.choice(pids)), signal.SIGKILL)
            except ProcessLookupError:
                return
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
        told = time.time()
        while any(t.is_alive() for t in threads):
            time.sleep(0.2)
            if time.time() - told > 60:
                told = time.time()
                print(f"     seed {self.seed}: {self.steps} steps, {self.transactions} transactions, {self.kills} kills", flush=True)
        if self.failures:
            raise AssertionError(f"seed {self.seed}, after {self.steps} steps, {self.kills} kills:\n" + "\n".join(self.failures[:3]))
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


def prepare(cluster):
    """The twins, what refers to them, and a store."""
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
