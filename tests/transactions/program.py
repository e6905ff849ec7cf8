"""What a world is told to do: a list of steps that follows from a seed alone, so that any part of it can be run again.

A step is a tuple, its first word what it is:
- `begin`, `savepoint`, `release`, `rollback to`, `end` (how): the frame; what does not fit where the run is, is passed over
- `both` (sql, guarded): the same on heap and firn, within a savepoint of its own or not
- `copy` (table, first id, rows)
- `cold` (sql for firn, sql for heap or None, guarded): what heap has no equal of
- `declare` (cursor, sql, hold), `fetch` (cursor, how many)
- `check` (thorough): compare all
- `alone` (sql): outside of transactions only
- `snapshot`: others begin to look at what there is now; `look`: what they see
- `crash`: the server is killed and started"""
import random

from harness.cluster import forced_parallel

TABLES = ("a", "b", "c", "m", "part", "s")
PLAIN = ("a", "b", "c")
TEMPORARY = ("tdel", "tdrop", "tkeep")
COLUMNS = "id bigint NOT NULL, k int NOT NULL, n int NOT NULL, v text NOT NULL"
# The greatest id that a partition takes; updates move ids beyond it.
LAST = 1_000_000


class Program:
    def __init__(self, seed, transactions):
        self.rng = random.Random(seed)
        self.steps = []
        self.next_id = 1
        self.names = 0
        self.shift = 0
        self.cursors = []
        self.body(transactions)

    def add(self, *step):
        self.steps.append(step)

    def name(self, prefix):
        self.names += 1
        return f"{prefix}{self.names}"

    def pick(self):
        """A table: often the same few, so that much happens to one."""
        r = self.rng.random()
        if r < 0.86:
            return self.rng.choice(PLAIN[:self.width])
        if r < 0.93:
            return self.rng.choice(TEMPORARY)
        return self.rng.choice(TABLES)

    def where(self):
        r = self.rng
        low = r.randint(0, max(1, self.next_id))
        return r.choice([
            f"id % {r.randint(2, 9)} = {r.randint(0, 1)}", f"id BETWEEN {low} AND {low + r.randint(0, 60)}", f"k = {r.randint(0, 16)}",
            f"n < {r.randint(0, 500)}", f"id = {low}", f"id > {max(0, self.next_id - r.randint(1, 80))}", "true"])

    def ids(self, rows=None):
        """A range of ids, mostly new ones."""
        r = self.rng
        rows = rows or r.choice([1, 1, 2, 5, 12, 40, 40, 90, 300])
        if r.random() < 0.12:
            first = r.randint(1, self.next_id)
        else:
            first, self.next_id = self.next_id, self.next_id + rows
        return first, rows

    def insert(self, table, rows=None):
        first, rows = self.ids(rows)
        width = self.rng.choice([0, 0, 0, 1, 90])
        return (f"INSERT INTO {table} (id, k, n, v) SELECT i, i % 17, (i * 7) % 1000, wide(i, {width}) "
                f"FROM generate_series({first}, {first + rows - 1}) i")

    def during(self, table, statement):
        """An insertion in the midst of which something else is done, and undone or not."""
        first, rows = self.ids(self.rng.choice([5, 12, 40]))
        at = first + self.rng.randint(0, rows - 1)
        return (f"INSERT INTO {table} (id, k, n, v) SELECT during(i, {at}, $w${statement}$w$), i % 17, (i * 3) % 1000, 'during ' || i "
                f"FROM generate_series({first}, {first + rows - 1}) i")

    def change(self, table):
        r = self.rng
        what = r.random()
        if what < 0.30:
            return f"UPDATE {table} SET n = (n + 1) % 1000 WHERE {self.where()}"
        if what < 0.42:
            return f"UPDATE {table} SET k = (k + 5) % 17, v = v || 'u' WHERE {self.where()}"
        if what < 0.50:
            self.shift += 2 * LAST
            return f"UPDATE {table} SET id = id % {LAST} + {self.shift} WHERE {self.where()}"
        if what < 0.75:
            return f"DELETE FROM {table} WHERE {self.where()}"
        if what < 0.80:
            return (f"INSERT INTO {table} (id, k, n, v) SELECT i, 3, 3, 'conflict' FROM generate_series({self.next_id - 20}, {self.next_id + 3}) i "
                    "ON CONFLICT (id) DO " + r.choice(["NOTHING", "UPDATE SET n = 77"]))
        if what < 0.84:
            other = self.pick()
            return f"DELETE FROM {table} USING {other} o WHERE {table}.id = o.id AND o.k < 4"
        mode = r.choice(["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"])
        return f"SELECT id FROM {table} WHERE {self.where()} FOR {mode}"

    def index(self, table):
        r = self.rng
        on = r.choice(["(k)", "(n)", "(v)", "(id)", "(k, id)", "(n DESC)", "((id % 7))", "USING hash (k)", "USING hash (id)",
                       "(k) WHERE n < 500", "(id) INCLUDE (n)"])
        unique = "UNIQUE " if on in ("(id)", "(k, id)", "(id) INCLUDE (n)") and r.random() < 0.5 else ""
        return f"CREATE {unique}INDEX ON {table} {on}"

    def some_index(self, table, command):
        """Do something with one of the table's indexes, whichever it has."""
        return (f"DO $$ DECLARE i text := (SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = '{table}'::regclass "
                f"ORDER BY indexrelid OFFSET {self.rng.randint(0, 2)} LIMIT 1); BEGIN IF i IS NOT NULL THEN EXECUTE '{command} ' || i; END IF; END $$")

    def toast(self, table):
        command = self.rng.choice(["REINDEX TABLE pg_toast.%1$s", "REINDEX TABLE pg_toast.%1$s", "REINDEX INDEX pg_toast.%1$s_index"])
        return (f"DO $$ BEGIN EXECUTE (SELECT format('{command}', t.relname) FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid "
                f"WHERE c.oid = '{table}'::regclass); END $$")

    def cluster(self, table):
        # Heap loses rows of the transaction of which it has rolled back updates that nobody has read since (18.6; rewrites "updates that were rolled back"): it reads them.
        return (f"DO $$ DECLARE i text := (SELECT relname FROM pg_index JOIN pg_class c ON c.oid = indexrelid "
                f"WHERE indrelid = '{table}'::regclass AND relam = 403 AND indpred IS NULL ORDER BY indexrelid LIMIT 1); "
                f"BEGIN IF i IS NOT NULL THEN "
                f"IF EXISTS (SELECT FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE c.oid = '{table}'::regclass AND amname = 'heap') THEN PERFORM count(*) FROM {table}; END IF; "
                f"EXECUTE 'CLUSTER {table} USING ' || quote_ident(i); END IF; END $$")

    def definition(self, table):
        """A statement that makes, builds, empties or changes."""
        r = self.rng
        what = r.random()
        if what < 0.10:
            return r.choice([f"CREATE TABLE {table} ({COLUMNS})", f"CREATE TABLE {table} ({COLUMNS}, PRIMARY KEY (id))"])
        if what < 0.14:
            return f"CREATE TABLE {self.rng.choice(PLAIN)} AS SELECT * FROM {table}"
        if what < 0.16:
            return f"DROP TABLE {table}"
        if what < 0.28:
            return f"TRUNCATE {table}"
        if what < 0.36:
            return self.index(table)
        if what < 0.40:
            return self.some_index(table, "DROP INDEX")
        if what < 0.48:
            return self.some_index(table, "REINDEX INDEX")
        if what < 0.60:
            return f"REINDEX TABLE {table}"
        if what < 0.70:
            return self.toast(table)
        if what < 0.76:
            return self.cluster(table)
        if what < 0.80:
            return r.choice([f"ALTER TABLE {table} ADD UNIQUE (id)", f"ALTER TABLE {table} ADD PRIMARY KEY (id)",
                             f"ALTER TABLE {table} ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED",
                             f"ALTER TABLE {table} ADD EXCLUDE (id WITH =)"])
        if what < 0.84:
            return f"ALTER TABLE {table} ALTER " + r.choice(
                ["n TYPE int", "n TYPE bigint", "n TYPE int USING n + 0", "n TYPE numeric(9,2)", "v TYPE varchar", "v TYPE text"])
        if what < 0.90:
            return f"ALTER TABLE {table} " + r.choice(
                ["ADD COLUMN x int DEFAULT 7", "ADD COLUMN x float DEFAULT random() * 0", "DROP COLUMN x", "ADD COLUMN y text",
                 "DROP COLUMN y", "SET UNLOGGED", "SET LOGGED", "ADD CHECK (n >= 0)", "ALTER v SET STORAGE external"])
        if what < 0.94:
            return r.choice([f"ALTER TABLE part ATTACH PARTITION {table} FOR VALUES FROM (0) TO ({LAST})",
                             f"ALTER TABLE part ATTACH PARTITION {table} DEFAULT",
                             f"ALTER TABLE part DETACH PARTITION {table}", f"ALTER TABLE {table} INHERIT s", f"ALTER TABLE {table} NO INHERIT s"])
        if what < 0.97:
            return f"ALTER TABLE {table} ADD FOREIGN KEY (id) REFERENCES {self.rng.choice(PLAIN)} (id)" + r.choice(["", " DEFERRABLE INITIALLY DEFERRED", " NOT VALID"])
        return r.choice([f"CREATE MATERIALIZED VIEW m AS SELECT * FROM {table}", "REFRESH MATERIALIZED VIEW m", "DROP MATERIALIZED VIEW m",
                         "DROP TABLE part", f"CREATE TABLE part ({COLUMNS}) PARTITION BY RANGE (id)", "CREATE INDEX ON part (k)",
                         f"ALTER TABLE {table} RENAME TO {self.rng.choice(PLAIN)}"])

    def temporary(self):
        name, end = self.rng.choice([("tdel", "ON COMMIT DELETE ROWS"), ("tdrop", "ON COMMIT DROP"), ("tkeep", "")])
        return self.rng.choice([f"CREATE TEMPORARY TABLE {name} ({COLUMNS}, UNIQUE (id)) {end}",
                                f"CREATE TEMPORARY TABLE {name} {end} AS SELECT id, k, n, v FROM {self.rng.choice(PLAIN)}",
                                f"DROP TABLE {name}"])

    def storage(self, table):
        """What gives the table, its TOAST relation or an index another file, or takes one away."""
        r = self.rng
        return r.choice([
            *[f"REINDEX TABLE {table}"] * 3, *[self.toast(table)] * 3, *[f"TRUNCATE {table}"] * 2, *[self.index(table)] * 2,
            *[self.some_index(table, "REINDEX INDEX")] * 2, self.some_index(table, "DROP INDEX"), self.cluster(table),
            f"ALTER TABLE {table} ADD PRIMARY KEY (id)", f"ALTER TABLE {table} ADD COLUMN x float DEFAULT random() * 0",
            f"CREATE TABLE {table} ({COLUMNS}, PRIMARY KEY (id))", f"DROP TABLE {table}", f"ALTER TABLE {table} SET UNLOGGED"])

    def nested(self, depth):
        """Files that come and go, and rows for stripes, under savepoints of which most are rolled back."""
        r = self.rng
        table = self.focus
        for _ in range(r.randint(1, 3)):
            what = r.random()
            if what < 0.4:
                self.add("both", self.storage(table), r.random() < 0.15)
            elif what < 0.76:
                self.add("both", self.insert(table, r.choice([3, 12, 30])), r.random() < 0.15)
            elif what < 0.8:
                # What is done meanwhile is done to this table, or to the other one, which is being filled.
                pair = r.choice([(table, "b"), ("b", table)])
                self.add("both", self.during(pair[0], r.choice([self.storage, self.insert, self.change])(pair[1])), r.random() < 0.15)
            elif what < 0.92:
                self.add("both", self.change(table), r.random() < 0.15)
            else:
                self.cold()
        for _ in range(r.randint(1, 2)):
            if depth < 5 and r.random() < 0.75:
                self.add("savepoint")
                self.nested(depth + 1)
                if r.random() < 0.75:
                    self.add("rollback to", 0)
                    if r.random() < 0.3:
                        self.add("check", r.random() < 0.3)
                else:
                    self.add("release", 0)
                if r.random() < 0.6:
                    self.add("both", self.insert(table, r.choice([3, 12, 30])), False)

    def statement(self):
        r = self.rng.random()
        table = self.pick()
        if r < 0.30:
            return self.insert(table)
        if r < 0.34:
            return self.during(table, self.statement().replace("$w$", "$w2$"))
        if r < 0.58:
            return self.change(table)
        if r < 0.61:
            return self.temporary()
        return self.definition(table)

    def block(self):
        """Statements within a function that catches what they raise, or not."""
        def several():
            return "; ".join(f"EXECUTE $s${self.statement().replace('$s$', '$s2$')}$s$" for _ in range(self.rng.randint(1, 3)))
        bad = self.rng.choice(["", "PERFORM 1 / 0;", "RAISE EXCEPTION 'undone';"])
        inner = f"BEGIN {several()}; {bad} EXCEPTION WHEN OTHERS THEN PERFORM expected(SQLSTATE, SQLERRM); END;"
        if self.rng.random() < 0.4:
            inner = f"BEGIN {several()}; {inner} {self.rng.choice(['', 'PERFORM 1 / 0;'])} EXCEPTION WHEN OTHERS THEN PERFORM expected(SQLSTATE, SQLERRM); END;"
        after = f"{several()};" if self.rng.random() < 0.5 else ""
        return f"DO $b$ BEGIN {inner} {after} END $b$"

    def cold(self):
        """What only firn has."""
        r = self.rng
        table = r.choice([self.pick(), r.choice(PLAIN[:self.width])])
        what = r.random()
        guarded = r.random() < 0.7
        if what < 0.55:
            self.add("cold", f"SELECT firn.compact('{table}')", None, guarded)
        elif what < 0.70:
            self.add("cold", f"SELECT firn.offload('{table}', 'cold')", None, guarded)
        elif what < 0.80:
            self.add("cold", f"SELECT firn.load('{table}')", None, guarded)
        elif what < 0.84:
            self.add("cold", f"SELECT * FROM firn.repair('{table}', {r.choice(['true', 'false'])})", None, guarded)
        elif what < 0.86:
            self.add("cold", f"ANALYZE {table}", f"ANALYZE {table}", guarded)
        elif what < 0.89:
            other = r.choice([t for t in PLAIN if t != table] or PLAIN)
            filled = self.during(other, f"SELECT firn.compact('{table}')")
            self.add("cold", filled, filled.replace("SELECT firn.compact", "SELECT to_regclass"), guarded)
        else:
            # On heap another rewrite, so that older snapshots see of both what PostgreSQL documents.
            self.add("other method", table, guarded)

    def step(self):
        r = self.rng.random()
        if r < 0.60:
            self.add("both", self.statement(), self.rng.random() < 0.5)
        elif r < 0.66:
            self.add("both", self.block(), self.rng.random() < 0.5)
        elif r < 0.71:
            self.add("copy", self.pick(), *self.ids(), self.rng.random() < 0.5)
        elif r < 0.83:
            self.cold()
        elif r < 0.90:
            if self.cursors and self.rng.random() < 0.6:
                self.add("fetch", self.rng.choice(self.cursors), self.rng.choice(["1", "5", "ALL", "ALL"]))
            else:
                cursor = self.name("cur")
                self.cursors.append(cursor)
                self.add("declare", cursor, f"SELECT id, k, n, v FROM {self.pick()} WHERE {self.where()}", self.rng.random() < 0.2)
        else:
            self.add("check", self.rng.random() < 0.3)

    def transaction(self):
        r = self.rng
        if r.random() < 0.25:
            self.add("snapshot")
        if r.random() < 0.2:
            self.add("alone", self.setting())
        self.add("begin", r.choice(["", "", "", " ISOLATION LEVEL REPEATABLE READ", " ISOLATION LEVEL SERIALIZABLE"]))
        self.cursors = []
        depth = 0
        if self.narrow:
            self.nested(0)
        for _ in range(r.randint(0, 2) if self.narrow else r.randint(2, 14)):
            what = r.random()
            if what < 0.2 and depth < 5:
                depth += 1
                self.add("savepoint")
            elif what < 0.30 and depth:
                depth -= 1
                self.add("release", r.randint(0, 1))
            elif what < 0.44 and depth:
                # To the last savepoint, mostly; which stays, mostly.
                back = r.choice([0, 0, 0, 1, 2])
                self.add("rollback to", back)
                depth = max(1, depth - back)
                self.add("check", r.random() < 0.3)
            else:
                self.step()
        self.add("end", r.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK", "PREPARE, COMMIT", "PREPARE, ROLLBACK"])
                 if r.random() < 0.98 else "PREPARE, CRASH, COMMIT")
        if r.random() < 0.3:
            self.add("look")
        if r.random() < 0.01:
            self.add("crash")
        self.add("check", True)
        if r.random() < 0.3:
            self.outside()

    def outside(self):
        r = self.rng
        table = self.pick()
        self.add("alone", r.choice([f"VACUUM {table}", f"VACUUM (FREEZE) {table}", f"VACUUM FULL {table}", f"REINDEX TABLE CONCURRENTLY {table}",
                                    f"REINDEX TABLE {table}", "CHECKPOINT", "VACUUM"]))
        self.add("check", True)

    def setting(self):
        r = self.rng
        return r.choice([f"SET firn.stripe_rows = {r.choice([1, 2, 7, 40, 300])}", f"SET firn.bulk_threshold = {r.choice([0, 0, 0, 3, 20])}",
                         f"SET {forced_parallel()} = {r.choice(['on', 'off'])}", f"SET firn.write_memory = '{r.choice(['1MB', '64MB'])}'"])

    def body(self, transactions):
        r = self.rng
        # In how many tables most of it happens.
        self.width = r.choice([1, 1, 2, 3])
        # All but nothing else than files that come and go under one table.
        self.narrow = r.random() < 0.6
        self.focus = r.choice([*[PLAIN[0]] * 8, "tkeep", "tdel"])
        self.add("alone", f"SET firn.stripe_rows = {r.choice([2, 7, 40])}")
        self.add("alone", "SET firn.bulk_threshold = 0")
        for table in PLAIN[:self.width]:
            if r.random() < 0.85 or self.narrow:
                self.add("alone", f"CREATE TABLE {table} ({COLUMNS}" + r.choice(["", ", PRIMARY KEY (id)"]) + ")")
                for _ in range(r.randint(0, 2)):
                    self.add("alone", self.index(table))
                if r.random() < (0.3 if self.narrow else 0.6):
                    self.add("alone", self.insert(table))
        if self.focus in TEMPORARY:
            end = "ON COMMIT DELETE ROWS" if self.focus == "tdel" else ""
            self.add("alone", f"CREATE TEMPORARY TABLE {self.focus} ({COLUMNS}, PRIMARY KEY (id)) {end}")
        if r.random() < 0.3:
            self.add("alone", f"CREATE TABLE part ({COLUMNS}) PARTITION BY RANGE (id)")
        if r.random() < 0.2:
            self.add("alone", f"CREATE TABLE s ({COLUMNS})")
        for _ in range(transactions):
            self.transaction()
        self.add("look")
        self.add("alone", "VACUUM")
        self.add("check", True)
