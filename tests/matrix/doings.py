"""What sessions do in the matrix: each statement on heap, then on firn, in the same transaction."""
import time

import psycopg


def both(c, sql, compare=True):
    """Run on heap, then on firn, in the same transaction; what they tell must be the same."""
    told = []
    for t in ("h", "f"):
        cur = c.execute(sql.replace("@", t))
        told.append(sorted(cur.fetchall(), key=repr) if cur.description else cur.rowcount)
    if compare and told[0] != told[1]:
        raise AssertionError(f"{sql}: heap {str(told[0])[:300]}, firn {str(told[1])[:300]}")
    return told[0]


def refused_alike(c, sql):
    """The same for a statement that may violate a constraint: then it does so on both, and on neither anything changes."""
    told = []
    for t in ("h", "f"):
        c.execute("SAVEPOINT a")
        try:
            told.append(c.execute(sql.replace("@", t)).rowcount)
            c.execute("RELEASE a")
        except psycopg.IntegrityError as e:
            told.append(e.sqlstate)
            c.execute("ROLLBACK TO a")
    if told[0] != told[1]:
        raise AssertionError(f"{sql}: heap {told[0]}, firn {told[1]}")


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
        with c.transaction():
            # Others' rows: one snapshot for both, so that it is the same rows.
            c.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            both(c, f"DELETE FROM c@ WHERE id BETWEEN 1 AND {self.rng.randint(1, 5)}")

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
        # The server may have been killed before it was dropped.
        c.execute(f"DROP TABLE IF EXISTS {name}")
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

    def merge(self, c):
        with c.transaction():
            a, n = self.own(), self.rng.randint(0, 30)
            both(c, f"""MERGE INTO @ USING (SELECT i FROM generate_series({a}, {a + n}) i) s ON @.id = s.i
                WHEN MATCHED AND @.k % 3 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'm', k = k + 1
                WHEN NOT MATCHED THEN INSERT VALUES (s.i, s.i % 9, 'm' || s.i, 0)""")
            both(c, f"SELECT id, k, v FROM @ WHERE id BETWEEN {a} AND {a + n}")

    def by_scan(self, c):
        """Rows found without an index, by conditions that stripes evaluate; of common rows, some are locked by others meanwhile."""
        with c.transaction():
            c.execute("SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off")
            own = f"id >= {self.low} AND id < {self.low + 1000}"
            for _ in range(self.rng.randint(1, 3)):
                a, k = self.own(), self.rng.randint(0, 8)
                both(c, self.rng.choice((
                    f"UPDATE @ SET k = k + 1, v = v || 's' WHERE id {self.span()} AND (k < {k} OR v LIKE 'n1%') RETURNING id, k, v",
                    f"UPDATE @ SET n = n + 1 WHERE (id = {self.rng.randint(1, 20)} OR id = {self.rng.randint(1, 20)}) AND n >= 0",
                    f"DELETE FROM @ WHERE {own} AND (k = {k} AND v NOT LIKE 'v%' OR id = {a}) RETURNING id",
                    f"SELECT id, k, v FROM @ WHERE {own} AND (k = {k} OR id = {a}) FOR NO KEY UPDATE",
                    f"SELECT id, v FROM @ WHERE id = {self.rng.randint(1, 20)} AND v IS NOT NULL FOR SHARE",
                    f"UPDATE @ SET k = s.k FROM @ s WHERE s.id = @.id + 1 AND @.id {self.span()} RETURNING @.id, @.k",
                    f"MERGE INTO @ USING (SELECT id, k FROM @ WHERE id {self.span()}) s ON @.id = s.id + 400 "
                    "WHEN MATCHED AND @.k = s.k THEN DELETE WHEN MATCHED THEN UPDATE SET k = s.k "
                    "WHEN NOT MATCHED THEN INSERT VALUES (s.id + 400, s.k, 'scanned', 0)",
                    f"SELECT count(*), sum(k) FROM @ WHERE {own} AND (v LIKE 'c%' OR v LIKE 'm%' OR k NOT IN (1, 2, {k}))")))

    def keys(self, c):
        """The key itself changes, there and back; other rows may be in the way."""
        with c.transaction():
            a = self.own()
            refused_alike(c, f"UPDATE @ SET id = id + 400 WHERE id BETWEEN {a} AND {a + 20}")
            self.change(c)
            both(c, f"DELETE FROM @ WHERE id BETWEEN {a} AND {a + 20}")
            refused_alike(c, f"UPDATE @ SET id = id - 400 WHERE id BETWEEN {a + 400} AND {a + 420}")

    def duplicates(self, c):
        """Loads of which a row, in the middle of a stripe, is there already."""
        with c.transaction():
            a = self.own()
            refused_alike(c, f"INSERT INTO @ SELECT i, 1, 'd', 0 FROM generate_series({a}, {a + self.rng.randint(0, 80)}) i")
            both(c, f"SELECT id, k, v FROM @ WHERE id {self.span()}")

    def copy(self, c):
        with c.transaction():
            a, n = self.own(), self.rng.choice((1, 8, 120))
            both(c, f"DELETE FROM @ WHERE id BETWEEN {a} AND {a + n}")
            for t in ("h", "f"):
                with c.cursor().copy(f"COPY {t} FROM STDIN") as load:
                    for i in range(a, a + n + 1):
                        load.write_row((i, i % 9, "c" * (i % 50), 0))
            both(c, f"SELECT count(*), sum(length(v)) FROM @ WHERE id BETWEEN {a} AND {a + n}")

    def locked_queue(self, c):
        """What a queue does: take what nobody else has, and remove it."""
        with c.transaction():
            ids = c.execute(f"SELECT id FROM h WHERE id {self.span()} ORDER BY id LIMIT 3 FOR UPDATE SKIP LOCKED").fetchall()
            for (i,) in ids:
                # A move has it, perhaps, and goes before: then not now.
                if not c.execute(f"SELECT id FROM f WHERE id = {i} FOR UPDATE SKIP LOCKED").fetchall():
                    raise psycopg.Rollback()
                both(c, f"WITH gone AS (DELETE FROM @ WHERE id = {i} RETURNING k, v) SELECT * FROM gone")


DOINGS = [name for name in vars(Doing) if not name.startswith("_")
          and name not in ("own", "span", "change", "changes", "change_unless_referenced")]
