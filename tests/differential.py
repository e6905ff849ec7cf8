"""Random statements on twin tables, one heap and one firn; after each few steps they must be equal."""
import os
import random
import tempfile

import psycopg

from harness.cluster import Cluster

STEPS = int(os.environ.get("FIRN_DIFF_STEPS", "1500"))
SEEDS = [int(s) for s in os.environ.get("FIRN_DIFF_SEEDS", "1,2").split(",")]


class Stepper:
    def __init__(self, conn, seed):
        self.conn = conn
        self.rng = random.Random(seed)
        self.next_id = 1
        self.savepoints = 0
        self.in_block = False
        self.columns = 0
        for t, am in (("h", "heap"), ("f", "firn")):
            conn.execute(f"CREATE TABLE {t} (id int PRIMARY KEY, k int, v text, n numeric(9,2), d date) USING {am}")
            conn.execute(f"CREATE INDEX ON {t} (k)")

    def both(self, sql):
        """Run on both twins; results and errors must agree."""
        results = []
        guard = self.in_block
        for t in ("h", "f"):
            if guard:
                self.conn.execute("SAVEPOINT g")
            try:
                cur = self.conn.execute(sql.replace("@", t))
                results.append(sorted(cur.fetchall(), key=repr) if cur.description else cur.rowcount)
            except psycopg.Error as e:
                results.append(e.sqlstate)
                if guard:
                    self.conn.execute("ROLLBACK TO g")
            if guard:
                self.conn.execute("RELEASE g")
        assert results[0] == results[1], (sql, results)

    def rows(self, n):
        low = self.next_id
        self.next_id += n
        r = self.rng.randint(0, 9)
        null = "NULLIF(i % 7, 0)"
        return (f"SELECT i, {null} * {r}, repeat('x' || i % 13, i % 5), (i * {r} % 1000) / 8.0, "
                f"'2020-01-01'::date + i % 400 FROM generate_series({low}, {low + n - 1}) i")

    def where(self):
        r = self.rng
        a = r.randint(1, max(self.next_id, 2))
        return r.choice([
            f"id = {a}", f"id BETWEEN {a} AND {a + r.randint(0, 40)}", f"k = {r.randint(0, 60)}",
            f"id % {r.randint(5, 60)} = 0", "k IS NULL AND id % 11 = 3", f"d < '2020-02-01' AND id > {a}",
            f"n > {r.randint(0, 120)} AND id % 9 = 1", f"v = 'x{r.randint(0, 12)}' AND k IS NOT NULL",
            f"(id < {a} AND k = {r.randint(0, 60)}) OR v = 'x{r.randint(0, 12)}'", "v LIKE 'x1%' AND (n < 3 OR d > '2020-11-01')",
            f"v NOT LIKE 'x%' AND id NOT IN ({a}, {a + 1}, {a + 7}) AND k < 20", f"n IS NOT DISTINCT FROM {r.randint(0, 120)} OR id = {a}"])

    def step(self):
        r = self.rng
        what = r.random()
        if what < 0.16:
            self.both(f"INSERT INTO @ (id, k, v, n, d) {self.rows(r.randint(1, 4))}")
        elif what < 0.26:
            self.both(f"INSERT INTO @ (id, k, v, n, d) {self.rows(r.randint(20, 400))}")
        elif what < 0.30:
            self.both(f"INSERT INTO @ (id, k) SELECT i, 1 FROM generate_series({self.next_id - 3}, {self.next_id + 20}) i")
        elif what < 0.44:
            self.both(f"UPDATE @ SET k = k + 1, v = v || 'u' WHERE {self.where()}")
        elif what < 0.48:
            self.both(f"UPDATE @ SET id = id + 100000 WHERE {self.where()} AND id < 100000")
        elif what < 0.58:
            self.both(f"DELETE FROM @ WHERE {self.where()}")
        elif what < 0.62:
            self.both(f"INSERT INTO @ (id, k, v) VALUES ({r.randint(1, self.next_id)}, 5, 'c') ON CONFLICT (id) DO UPDATE SET v = 'c'")
        elif what < 0.80:
            self.both(f"SELECT count(*), sum(id), sum(k), sum(n), min(d), max(v) FROM @ WHERE {self.where()}")
        elif what < 0.84:
            self.both(f"SELECT id FROM @ WHERE {self.where()} ORDER BY id LIMIT 5 FOR UPDATE")
        elif what < 0.88:
            if not self.in_block:
                self.conn.execute("BEGIN")
                self.in_block, self.savepoints = True, 0
            elif r.random() < 0.5:
                self.conn.execute(r.choice(["COMMIT", "ROLLBACK"]))
                self.in_block = False
            elif self.savepoints and r.random() < 0.6:
                # Later savepoints are gone with what is undone.
                self.savepoints = r.randint(1, self.savepoints)
                self.conn.execute(f"ROLLBACK TO s{self.savepoints}")
            else:
                self.savepoints += 1
                self.conn.execute(f"SAVEPOINT s{self.savepoints}")
        elif what < 0.93:
            self.conn.execute("SELECT firn.compact('f')")
        elif self.in_block:
            return
        elif what < 0.945:
            self.conn.execute("SELECT firn.offload('f', 'cold')")
        elif what < 0.955:
            self.conn.execute("SELECT firn.load('f')")
        elif what < 0.97:
            self.both(r.choice(["VACUUM @", "ANALYZE @", "VACUUM (FREEZE) @"]))
        elif what < 0.975:
            self.both("VACUUM FULL @")
        elif what < 0.985:
            self.both("REINDEX TABLE @")
        elif what < 0.99 and self.columns < 20:
            self.columns += 1
            self.both(f"ALTER TABLE @ ADD COLUMN c{self.columns} int" + r.choice(["", f" DEFAULT {self.columns}"]))
        elif self.columns and r.random() < 0.3:
            self.both(f"ALTER TABLE @ DROP COLUMN IF EXISTS c{r.randint(1, self.columns)}")

    def compare(self):
        for settings in ("SET enable_seqscan = on; SET enable_indexscan = on; SET enable_bitmapscan = on; SET firn.enable_scan = on",
                         "SET firn.enable_scan = off",
                         "SET enable_seqscan = off"):
            self.conn.execute(settings)
            h = self.conn.execute("SELECT h::text FROM h WHERE id > 0 ORDER BY id").fetchall()
            f = self.conn.execute("SELECT f::text FROM f WHERE id > 0 ORDER BY id").fetchall()
            if h != f:
                missing = [x for x in h if x not in set(f)][:3]
                extra = [x for x in f if x not in set(h)][:3]
                raise AssertionError(f"{settings}: {len(h)} rows on heap, {len(f)} on firn, missing {missing}, extra {extra}")
        self.conn.execute("RESET enable_seqscan; RESET firn.enable_scan")


def walk(cluster, seed, steps):
    folder = tempfile.mkdtemp(prefix="store-", dir=cluster.root)
    os.chmod(folder, 0o777)
    db = f"d{seed}"
    with cluster.connect() as c:
        c.execute(f"CREATE DATABASE {db}")
    with cluster.connect(db) as conn:
        conn.execute("CREATE EXTENSION firn")
        conn.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{folder}')")
        conn.execute("SET firn.bulk_threshold = 15; SET firn.stripe_rows = 150")
        s = Stepper(conn, seed)
        for i in range(steps):
            try:
                s.step()
                if i % 20 == 19:
                    s.compare()
            except Exception as e:
                raise AssertionError(f"seed {seed}, step {i}") from e
        if s.in_block:
            conn.execute("COMMIT")
        s.compare()
        problems = conn.execute("SELECT * FROM firn.check('f')").fetchall()
        assert not problems, problems


def run(tally, _pattern):
    cluster = Cluster("diff", ["fsync=off"]).create()
    try:
        for seed in SEEDS:
            tally.case(f"differential seed {seed}, {STEPS} steps", lambda: walk(cluster, seed, STEPS))
        tally.case("differential server log", lambda: _quiet(cluster))
    finally:
        cluster.destroy()


def _quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()
