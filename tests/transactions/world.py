"""A pair of databases, one with heap's tables and one with firn's, in which the steps of a program are carried out."""
import os
import re

import psycopg

from transactions.program import TABLES, TEMPORARY

with open(os.path.join(os.path.dirname(__file__), "look.sql")) as sql:
    TEMPLATE = sql.read()
OTHER_METHOD = """DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_class c WHERE oid = '@'::regclass AND relkind = 'r'
               AND NOT EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent))) THEN
        {}
    END IF; END $$"""
OTHER_METHODS = {
    "h": OTHER_METHOD.format("ALTER TABLE @ ADD COLUMN zz float DEFAULT random(); ALTER TABLE @ DROP COLUMN zz;"),
    "f": OTHER_METHOD.format("EXECUTE 'ALTER TABLE @ SET ACCESS METHOD ' || (SELECT CASE amname WHEN 'heap' THEN 'firn' ELSE 'heap' END "
                             "FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE c.oid = '@'::regclass);"),
}
# Plans that read the row store and stripes, rows one by one, or by an index only.
WAYS = ("SET enable_seqscan = on; SET firn.enable_scan = on", "SET firn.enable_scan = off",
        "SET enable_seqscan = off; SET firn.enable_scan = off")
ALL = ", ".join(f"to_regclass('{t}')" for t in (*TABLES, *TEMPORARY))
# What firn has to refuse where heap has nothing to do.
REFUSED = ("0A000", "55000", "55006", "42809", "25001")


def make_templates(cluster):
    with cluster.connect() as c:
        for which in "hf":
            c.execute(f"CREATE DATABASE template_{which}")
            with cluster.connect(f"template_{which}") as t:
                t.execute(TEMPLATE)
                if which == "f":
                    store = os.path.join(cluster.root, "store")
                    os.makedirs(store, exist_ok=True)
                    os.chmod(store, 0o777)
                    t.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")


class Differs(AssertionError):
    """The twins are not equal, or something is wrong with firn's."""


class World:
    """The pair of databases of this name, emptied first."""

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        with cluster.connect() as c:
            there = {n for (n,) in c.execute("SELECT datname FROM pg_database").fetchall()}
            for which, method in (("h", "heap"), ("f", "firn")):
                if f"{name}_{which}" not in there:
                    c.execute(f"CREATE DATABASE {name}_{which} TEMPLATE template_{which}")
                    c.execute(f"ALTER DATABASE {name}_{which} SET default_table_access_method = {method}")
                with cluster.connect(f"{name}_{which}") as d:
                    for table, kind in d.execute(f"SELECT relname, relkind FROM pg_class WHERE oid IN ({ALL})").fetchall():
                        d.execute(f"DROP {'MATERIALIZED VIEW' if kind == 'm' else 'TABLE'} IF EXISTS {table} CASCADE")
        self.settings = []
        self.in_block = False
        self.stack = []
        self.fetched = {}
        self.number = 0
        self.old = None
        self.errors = {}
        self.connect()

    def connect(self):
        self.twins = {w: self.cluster.connect(f"{self.name}_{w}") for w in "hf"}
        self.others = {w: self.cluster.connect(f"{self.name}_{w}") for w in "hf"}
        for setting in self.settings:
            self.twins["f"].execute(setting)

    def close(self):
        for c in (*self.twins.values(), *self.others.values(), *(self.old or {}).values()):
            c.close()
        # A server process may have crashed.
        self.cluster.wait_ready()
        with self.cluster.connect() as c:
            for (gid,) in c.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                with self.cluster.connect(f"{self.name}_{gid[-1]}") as d:
                    d.execute(f"ROLLBACK PREPARED '{gid}'")

    # Statements

    def one(self, c, sql):
        """The result of a statement or its error's SQLSTATE."""
        try:
            cur = c.execute(sql)
            return sorted(map(repr, cur.fetchall())) if cur.description else cur.rowcount
        except psycopg.Error as e:
            if e.sqlstate in (None, "57P01", "57P02", "57P03", "08006"):
                raise Differs(f"{sql[:300]}: {e.sqlstate} {e}") from e
            self.errors[e.sqlstate] = self.errors.get(e.sqlstate, 0) + 1
            self.message = str(e)
            return e.sqlstate

    def run_on_both(self, of, guarded, must_be_equal=True):
        """`of` gives the result for one twin. An error undoes the innermost savepoint, on both."""
        guarded = guarded and self.in_block
        results, messages = {}, {}
        for which, c in self.twins.items():
            if guarded:
                c.execute("SAVEPOINT guard")
            results[which] = of(which, c)
            messages[which] = getattr(self, "message", "") if isinstance(results[which], str) else ""
        failed = any(isinstance(r, str) for r in results.values())
        for c in self.twins.values():
            if guarded:
                c.execute("ROLLBACK TO guard" if failed else "RELEASE guard")
            elif failed and self.stack:
                c.execute(f"ROLLBACK TO {self.stack[-1]}")
            elif failed and self.in_block:
                c.execute("ROLLBACK")
                c.execute("BEGIN")
        # What a cursor has open is its plan's affair, and a stripe is read through the TOAST relation's index.
        by_plan = self.fetched and "55006" in results.values()
        if must_be_equal and results["h"] != results["f"] and not by_plan:
            raise Differs(f"heap {str(results['h'])[:300]}, firn {str(results['f'])[:300]} {messages}")
        return results

    def both(self, sql, guarded):
        self.run_on_both(lambda _which, c: self.one(c, sql), guarded)

    def cold(self, firn, heap, guarded):
        # Whoever moves rows of a temporary table has used it, and may not PREPARE: so must heap have, which has nothing to do.
        moved = re.search(r"firn\.\w+\('(\w+)'", firn)
        if moved and self.in_block:
            self.right(self.twins["h"], f"DO $$ BEGIN PERFORM FROM {moved[1]} LIMIT 0; EXCEPTION WHEN OTHERS THEN END $$")
        got = self.run_on_both(lambda which, c: self.one(c, firn) if which == "f" else heap and self.one(c, heap), guarded, heap is not None)["f"]
        if heap is None and isinstance(got, str) and got not in (*REFUSED, "42P01"):
            raise Differs(f"{firn}: {got} {self.message}")

    def other_method(self, table, guarded):
        self.run_on_both(lambda which, c: self.one(c, OTHER_METHODS[which].replace("@", table)), guarded)

    def copy(self, table, first, rows, guarded):
        def of(_which, c):
            try:
                with c.cursor() as cur:
                    with cur.copy(f"COPY {table} (id, k, n, v) FROM STDIN") as copy:
                        for i in range(first, first + rows):
                            copy.write_row((i, i % 17, i * 3 % 1000, f"copied {i}"))
                    return cur.rowcount
            except psycopg.Error as e:
                if e.sqlstate is None:
                    raise Differs(f"COPY {table}: {e}") from e
                self.message = str(e)
                return e.sqlstate
        self.run_on_both(of, guarded)

    def alone(self, sql):
        if self.in_block:
            return
        if self.old and ("CONCURRENTLY" in sql or "VACUUM" in sql):
            self.look()
        if sql.startswith("SET firn"):
            self.settings.append(sql)
            self.twins["f"].execute(sql)
            return
        self.both(sql, False)

    # Cursors: a part of what there is in no order is no more than a part, so all is compared in the end.

    def declare(self, cursor, sql, hold):
        if not self.in_block and not hold:
            return
        self.both(f"DECLARE {cursor} CURSOR {'WITH HOLD' if hold else ''} FOR {sql}", False)
        self.fetched[cursor] = {"h": [], "f": []}

    def fetch(self, cursor, how_many):
        if cursor not in self.fetched:
            return
        def of(which, c):
            got = self.one(c, f"FETCH {how_many} FROM {cursor}")
            if isinstance(got, list):
                self.fetched[cursor][which] += got
                return len(got)
            return got
        self.run_on_both(of, True)
        if how_many == "ALL":
            h, f = (sorted(self.fetched[cursor][which]) for which in "hf")
            if h != f:
                raise Differs(f"cursor {cursor}: {difference(h, f)}")

    # Transactions

    def begin(self, how):
        if not self.in_block:
            for c in self.twins.values():
                c.execute(f"BEGIN{how}")
            self.in_block, self.stack = True, []

    def savepoint(self):
        if self.in_block:
            self.number += 1
            self.stack.append(f"s{self.number}")
            for c in self.twins.values():
                c.execute(f"SAVEPOINT {self.stack[-1]}")

    def release(self, back):
        if self.stack:
            at = max(0, len(self.stack) - 1 - back)
            for c in self.twins.values():
                c.execute(f"RELEASE {self.stack[at]}")
            del self.stack[at:]

    def rollback_to(self, back):
        if self.stack:
            at = max(0, len(self.stack) - 1 - back)
            for c in self.twins.values():
                c.execute(f"ROLLBACK TO {self.stack[at]}")
            del self.stack[at + 1:]

    def end(self, how):
        if not self.in_block:
            return
        self.in_block, self.stack = False, []
        # PREPARE is refused where temporary tables are used, on heap after it has emptied those that a commit empties, index entries
        # left that lead to pages which are no more: no oracle.
        emptied = "SELECT FROM pg_class WHERE oid = to_regclass('tdel') AND relpersistence = 't'"
        if how.startswith("PREPARE") and self.right(self.twins["h"], f"SELECT EXISTS ({emptied})") == [(True,)]:
            how = how.rsplit(", ", 1)[1]
        if not how.startswith("PREPARE"):
            self.both(how, False)
            return
        self.number += 1
        results = self.run_on_both(lambda which, c: self.one(c, f"PREPARE TRANSACTION 't{self.number}_{self.name}_{which}'"), False)
        if isinstance(results["h"], str):
            return
        if "CRASH" in how:
            self.crash()
        end = how.rsplit(", ", 1)[1]
        self.run_on_both(lambda which, c: self.one(c, f"{end} PREPARED 't{self.number}_{self.name}_{which}'"), False)

    def crash(self):
        if self.in_block:
            return
        for c in (*self.twins.values(), *self.others.values(), *(self.old or {}).values()):
            c.close()
        self.cluster.crash()
        self.cluster.start()
        self.old, self.fetched = None, {}
        self.connect()

    # Comparisons

    def snapshot(self):
        if self.old is None and not self.in_block:
            self.old = {w: self.cluster.connect(f"{self.name}_{w}") for w in "hf"}
            for c in self.old.values():
                c.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                c.execute("SELECT 1")

    def look(self):
        if self.old is None or self.in_block:
            return
        for table in TABLES:
            for way in WAYS:
                results = []
                for c in self.old.values():
                    c.execute(f"SAVEPOINT l; {way}" if c is self.old["f"] else "SAVEPOINT l")
                    # As another session may have it: without asking first what there is.
                    results.append(self.one(c, f"SELECT x::text FROM {table} x WHERE id > -1"))
                    c.execute("ROLLBACK TO l")
                if results[0] != results[1]:
                    raise Differs(f"an older snapshot, {table}, {way}: {difference(*results)}")
        for c in self.old.values():
            c.close()
        self.old = None

    def check(self, thorough):
        f = self.twins["f"]
        for pair in [self.twins, self.others] if thorough and not self.in_block else [self.twins]:
            self.compare(pair, thorough)
        if thorough and not self.in_block:
            for table in self.tables(f):
                f.execute("BEGIN")
                self.right(f, f"REINDEX TABLE {table}")
                f.execute("ROLLBACK")

    def tables(self, c):
        return [n for (n,) in c.execute(f"SELECT relname FROM pg_class WHERE oid IN ({ALL}) AND relkind IN ('r', 'm') ORDER BY 1").fetchall()]

    def right(self, c, sql, values=None):
        """What must not fail."""
        try:
            cur = c.execute(sql, values)
            return cur.fetchall() if cur.description else None
        except psycopg.Error as e:
            raise Differs(f"{sql[:300]}: {e.sqlstate} {e}") from e

    def compare(self, pair, thorough):
        kinds = [self.right(c, f"SELECT relname, relkind FROM pg_class WHERE oid IN ({ALL}) ORDER BY 1") for c in pair.values()]
        if kinds[0] != kinds[1]:
            raise Differs(f"tables: {kinds}")
        seen = self.right(pair["f"], "SELECT * FROM look(%s, %s)", ([name for name, _ in kinds[1]], thorough))
        if not seen:
            return
        expected = self.right(pair["h"], "SELECT digests(%s)", ([source for _, _, source, _ in seen],))[0][0]
        for (table, way, source, got), wanted in zip(seen, expected):
            if got != wanted:
                h, f = (sorted(r for (r,) in self.right(c, f"SELECT x::text FROM {source}")) for c in pair.values())
                raise Differs(f"{table} by {way} ({source}): {wanted} on heap, {got} on firn; asked again: {difference(h, f)}")

    def run(self, steps):
        """None, or what is wrong, and after which step."""
        at = -1
        try:
            for at, (what, *args) in enumerate(steps):
                getattr(self, what.replace(" ", "_"))(*args)
        except Differs as e:
            return at, str(e)
        except psycopg.Error as e:
            return at, f"{type(e).__name__} {e.sqlstate} {e}"
        return None


def difference(h, f):
    if isinstance(h, (str, int)) or isinstance(f, (str, int)):
        return f"heap {str(h)[:200]}, firn {str(f)[:200]}"
    a, b = set(h), set(f)
    doubled = sorted(x for x in b if f.count(x) != h.count(x)) if len(f) < 5000 else "?"
    return (f"{len(h)} rows on heap, {len(f)} on firn; missing {str(sorted(a - b)[:3])[:300]}, extra {str(sorted(b - a)[:3])[:300]}, "
            f"doubled {str(doubled[:3])[:300]}")
