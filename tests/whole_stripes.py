"""What a session knows of stripes without deleted rows is right by the next look-up, whatever others do meanwhile: random steps of a writer, after each of which
sessions that look rows up by key see what is there; prints its seed. On a table that is logged, on one that is not, in a cluster that logs as little as it may, and on a standby."""
import os
import random
import tempfile

import psycopg

from harness.cluster import Cluster

ROWS, STRIPE, STEPS = 6_000, 500, 250
READS = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET firn.enable_scan = off"
INDEX = "SELECT i.indexrelid::regclass::text FROM pg_class c JOIN pg_index i ON i.indrelid = c.reltoastrelid WHERE c.oid = %s::regclass"


class Walk:
    def __init__(self, writer, table, draw, kind):
        self.c, self.table, self.draw, self.kind = writer, table, draw, kind
        self.rows = {i: f"v{i}" for i in range(1, ROWS + 1)}
        c = writer
        c.execute(f"CREATE {kind} TABLE {self.table} (id int PRIMARY KEY, v text) USING firn")
        c.execute(f"SET firn.bulk_threshold = 0; SET firn.stripe_rows = {STRIPE}")
        c.execute(f"INSERT INTO {self.table} SELECT i, 'v' || i FROM generate_series(1, {ROWS}) i")
        c.execute("RESET firn.bulk_threshold; RESET firn.stripe_rows")
        c.execute(f"VACUUM {self.table}")

    def some(self):
        """Rows of one stripe or two, some of which may be gone."""
        at, many = self.draw.randint(1, ROWS), self.draw.choice((1, 1, 1, 3, 40))
        return list(range(at, min(ROWS + 1, at + 7 * many), 7))

    def step(self):
        """Do something; returns the rows that it was about."""
        c, ids = self.c, self.some()
        what = self.draw.choice(("delete",) * 5 + ("update",) * 3 + ("lock", "undone", "savepoint", "prepared", "reindex", "vacuum", "compact", "full", "insert", "rewrite"))
        which = f"{self.table} WHERE id = ANY(%s)"
        if what == "delete":
            c.execute(f"DELETE FROM {which}", (ids,))
            [self.rows.pop(i, None) for i in ids]
        elif what == "update":
            c.execute(f"UPDATE {self.table} SET v = v || '+' WHERE id = ANY(%s)", (ids,))
            self.rows.update({i: self.rows[i] + "+" for i in ids if i in self.rows})
        elif what == "lock":
            c.execute("BEGIN")
            c.execute(f"SELECT 1 FROM {which} FOR UPDATE", (ids,))
            c.execute("COMMIT")
        elif what == "undone":
            # What has begun before does not see it.
            c.execute("BEGIN")
            c.execute(f"DECLARE before CURSOR FOR SELECT id, v FROM {self.table} WHERE id > 0 ORDER BY id")
            first = c.execute(f"FETCH {self.draw.randint(1, 200)} FROM before").fetchall()
            c.execute(f"DELETE FROM {which}", (ids,))
            self.own(set(ids))
            assert dict(first + c.execute("FETCH ALL FROM before").fetchall()) == self.rows, ids
            c.execute("ROLLBACK")
        elif what == "savepoint":
            c.execute("BEGIN")
            c.execute("SAVEPOINT a")
            c.execute(f"DELETE FROM {which}", (ids,))
            self.own(set(ids))
            c.execute("ROLLBACK TO a")
            self.own(set())
            c.execute(f"DELETE FROM {which}", (ids[:1],))
            c.execute("COMMIT")
            self.rows.pop(ids[0], None)
        elif what == "prepared" and self.kind != "TEMP":
            c.execute("BEGIN")
            c.execute(f"DELETE FROM {which}", (ids,))
            c.execute("PREPARE TRANSACTION 'whole'")
            c.execute("COMMIT PREPARED 'whole'")
            [self.rows.pop(i, None) for i in ids]
        elif what == "insert":
            gone = [i for i in ids if i not in self.rows]
            c.execute(f"INSERT INTO {self.table} SELECT i, 'n' || i FROM unnest(%s::int[]) i", (gone,))
            self.rows.update({i: f"n{i}" for i in gone})
        elif what == "reindex":
            c.execute(f"REINDEX INDEX {c.execute(INDEX, (self.table,)).fetchone()[0]}")
        elif what == "vacuum":
            c.execute(f"VACUUM {self.table}")
        elif what == "compact":
            c.execute("SELECT firn.compact(%s)", (self.table,))
        elif what == "full" and self.draw.random() < 0.3:
            c.execute(f"VACUUM (FULL) {self.table}")
        elif what == "rewrite" and self.draw.random() < 0.3:
            c.execute("BEGIN")
            c.execute(f"CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM {self.table}")
            c.execute(f"TRUNCATE {self.table}")
            c.execute("SET LOCAL firn.bulk_threshold = 0")
            c.execute(f"INSERT INTO {self.table} SELECT * FROM kept ORDER BY id")
            look(c, self.table, self.rows, self.draw, ids, (what, "inside"))
            c.execute(f"DELETE FROM {which}", (ids,))
            self.own(set(ids))
            c.execute("COMMIT")
            [self.rows.pop(i, None) for i in ids]
        return what, ids

    def own(self, gone):
        """Within the writer's transaction."""
        rows = {i: v for i, v in self.rows.items() if i not in gone}
        look(self.c, self.table, rows, self.draw, list(gone)[:3], "own")


def look(c, table, rows, draw, ids, told):
    for i in [*ids, *(draw.randint(1, ROWS) for _ in range(4))]:
        got = c.execute(f"SELECT v FROM {table} WHERE id = %s", (i,), prepare=True).fetchone()
        assert got == ((rows[i],) if i in rows else None), (told, i, got, rows.get(i))
    # So many of each stripe that its tombstones are read at once.
    if draw.random() < 0.3:
        low = draw.choice((0, 0, ROWS // 2))
        expected = {i: v for i, v in rows.items() if i > low}
        assert dict(c.execute(f"SELECT id, v FROM {table} WHERE id > {low}").fetchall()) == expected, (told, "by index")
        assert {i for i, in c.execute(f"SELECT id FROM {table} WHERE id > {low}").fetchall()} == set(expected), (told, "by index alone")


def random_steps(writer, reader, old, table, kind="", sync=lambda: None):
    """`reader` looks after each step, `old`, if there is one, by a snapshot that it keeps for a while; `sync` waits until the reader can have seen all."""
    seed = int(os.environ.get("FIRN_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"     whole stripes, {table}: seed {seed}")
    draw = random.Random(seed)
    walk, kept = Walk(writer, table, draw, kind), None
    for c in {writer, reader, old} - {None}:
        c.execute(READS)
    # Who truncates or rewrites would wait for an old snapshot.
    writer.execute("SET lock_timeout = '50ms'")
    sync()
    for number in range(STEPS):
        if old and kept is None and draw.random() < 0.2:
            old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            look(old, table, walk.rows, draw, [], (seed, number, "snapshot"))
            kept = dict(walk.rows)
        elif kept is not None and draw.random() < 0.3:
            old.execute("COMMIT")
            kept = None
        told = ("waited", [])
        try:
            told = walk.step()
        except psycopg.errors.LockNotAvailable:
            writer.execute("ROLLBACK")
        sync()
        look(reader, table, walk.rows, draw, told[1][:6], (seed, number, told))
        if kept is not None:
            look(old, table, kept, draw, told[1][:6], (seed, number, told, "old"))
    if kept is not None:
        old.execute("COMMIT")
    assert dict(reader.execute(f"SELECT id, v FROM {table}").fetchall()) == walk.rows, seed
    assert writer.execute("SELECT count(*) FROM firn.check(%s)", (table,)).fetchone() == (0,), seed


def whole_stripes(cluster):
    for kind, table in (("", "whole_logged"), ("UNLOGGED", "whole_unlogged")):
        with cluster.connect() as writer, cluster.connect() as reader, cluster.connect() as old:
            random_steps(writer, reader, old, table, kind)


def whole_stripes_of_one_session(_):
    """Also where a table's own transaction does not log it."""
    cluster = Cluster("whole", ["wal_level=minimal", "max_wal_senders=0", "autovacuum=off", "fsync=off"]).create()
    try:
        with cluster.connect() as c, cluster.connect() as old:
            c.execute("CREATE EXTENSION firn")
            random_steps(c, c, old, "whole_minimal")
            random_steps(c, c, None, "whole_temporary", "TEMP")
        assert not cluster.alarms(), cluster.alarms()
    finally:
        cluster.destroy()


def fetches_of_indexes_alone(cluster):
    """An index-only scan fetches the first rows of each stripe, to know that all of it is seen, and counts what it fetches as it does of a heap."""
    only = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET firn.enable_scan = off; SET max_parallel_workers_per_gather = 0"
    with cluster.connect() as c:
        c.execute("CREATE TABLE unfetched (id int, a int) USING firn; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 5000")
        c.execute("INSERT INTO unfetched SELECT i, i % 10 FROM generate_series(1, 20000) i")
        c.execute("CREATE UNIQUE INDEX unfetched_id ON unfetched (id)")
        c.execute("VACUUM ANALYZE unfetched")
        c.execute(only)

        def scan(condition="id >= 0"):
            [[plan]] = c.execute(f"EXPLAIN (ANALYZE, TIMING off, FORMAT json) SELECT count(id) FROM unfetched WHERE {condition}").fetchall()
            node = plan[0]["Plan"]["Plans"][0]
            assert node["Node Type"] == "Index Only Scan", node
            return node["Actual Rows"], node["Heap Fetches"]

        rows, fetched = scan()
        assert rows == 20000 and 4 <= fetched <= 4 * 5, (rows, fetched)
        c.execute("SELECT pg_stat_force_next_flush()")
        counted = "SELECT idx_tup_read, idx_tup_fetch FROM pg_stat_user_indexes WHERE indexrelname = 'unfetched_id'"
        before = c.execute(counted).fetchone()
        assert scan() == (rows, fetched)
        c.execute("SELECT pg_stat_force_next_flush()")
        after = c.execute(counted).fetchone()
        # (The planner looks for the row at the index's end.)
        assert (after[0] - before[0] - rows, after[1] - before[1] - fetched) in ((0, 0), (1, 1)), (before, after, fetched)
        # Some more of the stripe with a deleted one, until its tombstones are read.
        c.execute("DELETE FROM unfetched WHERE id = 7000")
        rows, fetched = scan()
        assert rows == 19999 and 64 <= fetched <= 64 + 4 * 5, (rows, fetched)
        # Backwards as well.
        c.execute("BEGIN; DECLARE back SCROLL CURSOR FOR SELECT id FROM unfetched WHERE id >= 0 ORDER BY id")
        down = c.execute("MOVE ALL FROM back; FETCH BACKWARD ALL FROM back")
        while down.nextset():
            pass
        assert [n for [n] in down.fetchall()] == [n for n in range(20000, 0, -1) if n != 7000]
        c.execute("COMMIT")


def many_stripes_by_index(cluster):
    """Scans by index of more stripes than a session keeps a list of, and of more deleted rows than it has room for, find what FirnScan does, and fetch few rows of each stripe."""
    settings = "SET firn.metadata_cache = '1MB'; SET work_mem = '64MB'; SET max_parallel_workers_per_gather = 0; SET firn.bulk_threshold = 0"
    with cluster.connect() as c:
        c.execute(settings)

        def by_index(query):
            """The answer, and rows fetched of stripes."""
            expected = c.execute(query).fetchall()
            c.execute(READS)
            [[plan]] = c.execute(f"EXPLAIN (ANALYZE, TIMING off, FORMAT json) {query}").fetchall()
            answer = c.execute(query).fetchall()
            c.execute("RESET enable_seqscan; RESET enable_bitmapscan; RESET firn.enable_scan")
            assert answer == expected, query
            node = plan[0]["Plan"]["Plans"][0]
            assert node["Node Type"] in ("Index Only Scan", "Index Scan"), node
            return node.get("Heap Fetches")

        def made(table, rows, stripe):
            c.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, k int) USING firn; SET firn.stripe_rows = {stripe}")
            c.execute(f"INSERT INTO {table} SELECT i, (i::bigint * 7919 % 1000003)::int FROM generate_series(1, {rows}) i; CREATE INDEX ON {table} (k)")

        def looked(table):
            """By the order of nothing, and by the rows'; alone, and not."""
            c.execute(f"VACUUM ANALYZE {table}")
            by_index(f"SELECT count(id), sum(id::bigint), sum(k::bigint) FROM {table} WHERE k > 0 AND k < 20000")
            return [by_index(f"SELECT count({column}), sum({column}::bigint) FROM {table} WHERE {column} > 0") for column in ("k", "id")]

        # (The list has room for some 3,000.)
        stripes, some = 5000, "SELECT count(k), sum(k::bigint) FROM many_stripes WHERE k > 0 AND k < 50000"
        made("many_stripes", stripes * 100, 100)
        whole = looked("many_stripes")
        assert max(whole) <= stripes * 5, whole
        c.execute("DELETE FROM many_stripes WHERE id % 200 = 5")
        few = looked("many_stripes")
        assert few[0] <= stripes * 10, few
        c.execute("BEGIN; DELETE FROM many_stripes WHERE id % 200 = 6")
        by_index(some)
        c.execute("SAVEPOINT s; DELETE FROM many_stripes WHERE id % 200 = 157")
        by_index(some)
        c.execute("ROLLBACK TO s")
        by_index(some)
        c.execute("ROLLBACK")
        # Each stripe's deleted rows take a tenth of the room that there is.
        made("many_deleted", 1_200_000, 100_000)
        c.execute("DELETE FROM many_deleted WHERE id % 33 = 1")
        many = looked("many_deleted")
        # There and back in one snapshot.
        c.execute(READS)
        ordered = "SELECT id FROM many_deleted WHERE id > 0 ORDER BY id"
        assert c.execute(f"EXPLAIN (COSTS OFF) {ordered}").fetchone()[0].startswith("Index Only Scan"), "it goes back through the index"
        c.execute(f"BEGIN; DECLARE s SCROLL CURSOR FOR {ordered}")
        there = c.execute("FETCH ALL FROM s").fetchall()
        back = c.execute("FETCH BACKWARD ALL FROM s").fetchall()
        c.execute("COMMIT")
        assert there == back[::-1] == [(i,) for i in range(1, 1_200_001) if i % 33 != 1]
        assert many[1] <= 12 * 300 and many[0] <= 1_200_000 // 2, many
        c.execute("DROP TABLE many_stripes, many_deleted")


def directory_rows_that_change(cluster):
    """What a session knows of directory rows by the LSN of their pages is asked again when a stripe goes to a store, comes back, is emptied and removed: in other
    sessions, in cursors of older snapshots, in the transaction that does it and takes it back, with VACUUM behind it that frees what was there."""
    with tempfile.TemporaryDirectory() as store:
        os.chmod(store, 0o777)
        with cluster.connect() as c, cluster.connect() as reader, cluster.connect(autocommit=False) as old:
            c.execute(f"CREATE SERVER shelf FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
            c.execute("CREATE TABLE shelved (id int PRIMARY KEY, v text) USING firn; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 500")
            c.execute("INSERT INTO shelved SELECT i, 'v' || i FROM generate_series(1, 2000) i; RESET firn.bulk_threshold")
            c.execute("VACUUM shelved")
            gone = set()
            for conn in (c, reader, old):
                conn.execute(READS)

            def look(conn, expected=None):
                """Often enough that what is known is used, of rows of all stripes."""
                for _ in range(3):
                    for n in (1, 499, 500, 501, 1100, 1499, 1999):
                        [[v]] = conn.execute("SELECT max(v) FROM shelved WHERE id = %s", [n], prepare=True).fetchall()
                        assert v == (None if n in (gone if expected is None else expected) else f"v{n}"), (n, v, gone, expected)

            old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            for conn in (c, reader, old):
                look(conn)
            for step in ("SELECT firn.offload('shelved', 'shelf')", "VACUUM shelved", "SELECT firn.load('shelved')", "VACUUM shelved"):
                c.execute(step)
                for conn in (reader, old, c):
                    look(conn)
            for step in ("SELECT firn.offload('shelved', 'shelf')", "DELETE FROM shelved WHERE id BETWEEN 501 AND 1000", "SELECT firn.compact('shelved')"):
                c.execute("BEGIN; SAVEPOINT s")
                before = set(gone)
                c.execute(step)
                if "DELETE" in step:
                    gone.add(501)
                look(c)
                look(reader, before)
                c.execute("ROLLBACK TO s")
                gone = before
                look(c)
                c.execute(step)
                if "DELETE" in step:
                    gone.add(501)
                look(c)
                c.execute("COMMIT")
                look(reader)
                look(old, set())
            old.rollback()
            c.execute("VACUUM shelved")
            c.execute("INSERT INTO shelved SELECT i, 'v' || i FROM generate_series(501, 1000) i")
            c.execute("SELECT firn.compact('shelved')")
            gone.clear()
            for conn in (reader, c):
                look(conn)
            c.execute("DROP TABLE shelved; DROP SERVER shelf")
