"""One server under the library that makes calls fail (crates/faults), and what a fault may leave: used by tests/torture.py
and tests/commits.py."""
import os
import re
import shutil
import subprocess
import time

import psycopg

from harness.cluster import Cluster, version

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FAULT = "53000"
# What PostgreSQL says in the log when something was not given back, or ended the wrong way.
COMPLAINTS = re.compile(r"leak|PANIC|TRAP:|terminated by signal|panicked at|is not owned by|is not active|"
                        r"while in \w+ state|unexpected state|WARNING:  (?!there is no transaction|there is already)")
# Expected of the maintenance that is interrupted.
HARMLESS = re.compile(r"53000|fault at call|cannot reindex invalid index|skipping reindex of invalid index")
ROWS = "SELECT * FROM t ORDER BY 1, 2, 3"


class Torn(AssertionError):
    """What a fault left behind."""


class Rack:
    """One server, and the sessions that look at what a statement leaves."""

    def __init__(self):
        target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
        # For the tested server, whichever the library was built for last.
        subprocess.run(["cargo", "build", "--release", "-q", "-p", "firn-faults", "--no-default-features", "--features", f"pg{version()}"],
                       cwd=ROOT, check=True, env=dict(os.environ, PGRX_PG_CONFIG_PATH=os.environ["PG_CONFIG"]))
        # Errors in a rebuild after VACUUM are warnings, whoever looks for them switches it on.
        self.cluster = Cluster("torture", conf=["autovacuum = off", "max_parallel_workers_per_gather = 2", "firn.rebuild_indexes = off"])
        library = os.path.join(self.cluster.root, "firn_faults.so")
        shutil.copyfile(os.path.join(target, "release", "libfirn_faults.so"), library)
        os.chmod(library, 0o755)
        self.cluster.preload = f"firn,{library}"
        self.cluster.create()
        store = os.path.join(self.cluster.root, "store")
        os.mkdir(store)
        os.chmod(store, 0o777)
        self.watch = self.cluster.connect()
        self.watch.execute("CREATE EXTENSION firn")
        self.watch.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
        self.btree = not psql_fails(self.watch, "CREATE EXTENSION amcheck")
        self.log_at = 0
        self.complaints()
        self.conn = None
        self.started = self.start_of_server()
        self.expected = {}

    def start_of_server(self):
        return self.watch.execute("SELECT min(backend_start) FROM pg_stat_activity WHERE backend_type = 'checkpointer'").fetchone()

    def wait_for_recovery(self):
        """A process was killed: wait until all others are new. (For a moment the server takes connections as if nothing had been.)"""
        end = time.time() + 60
        while True:
            try:
                self.watch = self.cluster.connect()
                now = self.start_of_server()
                if now not in (self.started, (None,)):
                    break
            except psycopg.Error:
                pass
            assert time.time() < end, "the server does not come back"
            time.sleep(0.1)
        self.started = now
        self.complaints()

    def connect(self):
        if self.conn is not None:
            self.conn.close()
        self.conn = self.cluster.connect(prepare_threshold=None)

    def complaints(self):
        """New lines of the server's log that must not be there."""
        with open(self.cluster.log, errors="replace") as f:
            f.seek(self.log_at)
            text = f.read()
            self.log_at = f.tell()
        return [line for line in text.splitlines() if COMPLAINTS.search(line) and not HARMLESS.search(line)
                and "STATEMENT:  " not in line]

    def make(self, case, am="firn", conn=None):
        conn = conn or self.conn
        conn.execute("RESET ALL")
        conn.execute(case.make.replace("{am}", am))
        if case.more and am == "firn":
            conn.execute(case.more)
        if case.settings:
            conn.execute(case.settings.replace("{am}", am))

    def answers(self, conn, sql):
        """The rows that statements return, in order."""
        cur = conn.execute(sql)
        found = []
        while True:
            found.append(cur.fetchall() if cur.description else None)
            if not cur.nextset():
                return found

    def run(self, conn, case, sql, keep=True):
        """Run the statement in a transaction (which a case may have to do without); its rows, and the table's."""
        if case.alone:
            if ";" in sql:
                conn.execute("BEGIN")
            parts = sql.split("; ") if ";" in sql else [sql]
            got = [self.answers(conn, part) for part in parts][-1]
            return got, conn.execute(ROWS).fetchall()
        conn.execute("BEGIN")
        got = self.answers(conn, sql)
        rows = conn.execute(ROWS).fetchall()
        conn.execute("COMMIT" if keep else "ROLLBACK")
        return got, rows

    def on_heap(self, case):
        """Rows of the table before and after, and the statement's answer, on heap."""
        if case.name not in self.expected:
            with self.cluster.connect() as c:
                self.make(case, "heap", c)
                before = c.execute(ROWS).fetchall()
                self.expected[case.name] = (before, *reversed(self.run(c, case, case.heap)))
        return self.expected[case.name]

    def calls(self, case):
        """How many calls the statement makes, and which of them are the first, second, fourth, eighth … of a function."""
        self.connect()
        self.make(case)
        self.conn.execute("SET faults.at = -1")
        self.attempt(case, "plain")
        [[n]] = self.conn.execute("SHOW faults.calls").fetchall()
        [[trace]] = self.conn.execute("SHOW faults.trace").fetchall()
        self.conn.execute("SET faults.at = 0")
        return int(n), list(map(int, trace.split()))

    def attempt(self, case, variant):
        """The statement as it is to fail."""
        if variant == "caught":
            self.conn.execute("BEGIN")
            self.conn.execute("SAVEPOINT tried")
            try:
                self.conn.execute(case.sql)
            except psycopg.Error as e:
                self.conn.execute("ROLLBACK TO tried")
                self.conn.execute("SELECT sum(n) FROM t")
                self.conn.execute("COMMIT")
                raise e
            self.conn.execute("COMMIT")
            return None
        if case.alone:
            if ";" in case.sql:
                self.conn.execute("BEGIN")
            for part in case.sql.split("; ") if ";" in case.sql else [case.sql]:
                self.conn.execute(part)
            return None
        self.conn.execute("BEGIN")
        got = self.answers(self.conn, case.sql)
        self.conn.execute("COMMIT")
        return got

    def fault(self, case, n, mode="error", variant="plain", thorough=False):
        """The statement with a fault at its call n. Returns whether it came; raises when it left anything."""
        before, after, answer = self.on_heap(case)
        if self.conn is None or self.conn.closed:
            self.connect()
        pid = self.conn.info.backend_pid
        self.make(case)
        self.conn.execute(f"SET faults.mode = {mode}")
        self.conn.execute(f"SET faults.at = {n}")
        state = got = None
        try:
            got = self.attempt(case, variant)
        except psycopg.Error as e:
            state = e.sqlstate or "lost"
        where = ""
        try:
            if not self.conn.closed:
                self.conn.execute("ROLLBACK")
                [[where]] = self.conn.execute("SHOW faults.last").fetchall()
                self.conn.execute("SET faults.at = 0")
        except psycopg.OperationalError as e:
            # A fault at a call after the statement's last is the next one's, which looks for it.
            if mode == "error" and (state is not None or e.sqlstate != FAULT):
                raise
            if mode == "error":
                where = ""
                self.conn.execute("ROLLBACK")
                self.conn.execute("SET faults.at = 0")
            else:
                # A request that came too late for the statement ends or cancels the next one.
                state = state or e.sqlstate or "lost"
        at = f"{case.name}, {mode} ({variant}) at call {n}, of {where or '?'}"
        expected = {"error": (FAULT,), "cancel": ("57014", None), "die": ("57P01", "lost", None), "kill": ("lost", "57P02", None)}[mode]
        caught = state is None and (not where or "retry(" in case.sql)
        if state not in expected and not (mode == "error" and caught):
            self.cluster.wait_ready()
            raise Torn("\n".join([f"{at}: ended with {state}", *self.complaints()[:5]]))
        if mode == "kill" and state is not None:
            self.wait_for_recovery()
        said = self.complaints()
        if said:
            raise Torn(f"{at}: " + "\n".join(said[:5]))
        if self.start_of_server() != self.started:
            self.started = self.start_of_server()
            raise Torn(f"{at}: the server was restarted")
        if state is not None and mode in ("error", "cancel"):
            [[locks]] = self.watch.execute("SELECT count(*) FROM pg_locks WHERE pid = %s", (pid,)).fetchall()
            if locks:
                raise Torn(f"{at}: {locks} locks are left")
        if state is not None and not self.conn.closed and mode == "error":
            rows = self.conn.execute(ROWS).fetchall()
            if rows != before and not (case.alone and rows == after):
                raise Torn(f"{at}: the table has changed: {differ(before, rows)}")
        if self.conn.closed or mode in ("die", "kill"):
            self.connect()
            if case.settings:
                self.conn.execute(case.settings.replace("{am}", "firn"))
        with self.cluster.connect() as other:
            if "PREPARE TRANSACTION" in case.sql:
                # As on heap, what came before it was to be ended leaves it, with its locks.
                for [name] in other.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                    other.execute(f"ROLLBACK PREPARED '{name}'")
            rows = other.execute(ROWS).fetchall()
            if rows != before and not ((case.alone or state is None or mode != "error") and rows == after):
                raise Torn(f"{at}: another session sees a changed table: {differ(before, rows)}")
        if state is None:
            if got is not None and case.heap == case.sql and got != answer:
                raise Torn(f"{at}: the statement caught it, and answered {got}, not {answer}")
            return bool(where)
        if thorough:
            self.sound(at)
        if rows == before:
            if case.name.startswith("create index concurrently"):
                self.conn.execute("DROP INDEX IF EXISTS t_new")
            got, rows = self.run(self.conn, case, case.sql)
            if rows != after:
                raise Torn(f"{at}: the statement then gave other rows: {differ(after, rows)}")
            if case.heap == case.sql and got != answer:
                raise Torn(f"{at}: the statement then answered {got}, not {answer}")
            if thorough:
                self.sound(at + ", then again")
            said = self.complaints()
            if said:
                raise Torn(f"{at}, then again: " + "\n".join(said[:5]))
        return True

    def sound(self, at):
        """The table and its indexes are as they should be."""
        c = self.watch
        am = c.execute("SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE c.oid = to_regclass('t')").fetchone()
        if am == ("firn",):
            problems = c.execute("SELECT * FROM firn.check('t')").fetchall()
            # As on heap, REINDEX CONCURRENTLY leaves what it had begun.
            problems = [p for p in problems if "REINDEX CONCURRENTLY left it" not in p[2]]
            if problems:
                raise Torn(f"{at}: {problems[:3]}")
        if self.btree and am is not None:
            c.execute("SELECT bt_index_check(x.indexrelid, true) FROM pg_index x, pg_class t WHERE t.oid = 't'::regclass"
                      " AND x.indrelid IN (t.oid, t.reltoastrelid) AND x.indisvalid AND t.relam ="
                      " (SELECT oid FROM pg_am WHERE amname = 'heap')")
            c.execute("SELECT bt_index_check(x.indexrelid, true) FROM pg_index x, pg_class t WHERE t.oid = 't'::regclass"
                      " AND x.indrelid = t.reltoastrelid AND x.indisvalid")
            c.execute("SELECT bt_index_check(x.indexrelid) FROM pg_index x WHERE x.indrelid = 't'::regclass AND x.indisvalid")


def psql_fails(conn, sql):
    try:
        conn.execute(sql)
        return False
    except psycopg.Error:
        return True


def differ(a, b):
    """What two lists of rows do not share."""
    only_a, only_b = [r for r in a if r not in b], [r for r in b if r not in a]
    return f"{len(a)} and {len(b)} rows; missing {only_a[:3]}, more {only_b[:3]}"
