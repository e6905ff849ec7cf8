"""What VACUUM and autovacuum take away: index entries of stripe rows that nobody sees, anchors that nobody holds,
forwarding lists, stripes without a living row; and that they take nothing else."""
import os
import random
import signal
import threading
import time

import psycopg

from harness.cluster import Cluster

# Entries of a B-tree whose TIDs are those of stripe rows, posting lists included.
ENTRIES = """SELECT count(*) FROM generate_series(1, pg_relation_size(%(index)s::regclass) / 8192 - 1) page,
    bt_page_stats(%(index)s::text, page::int) s, bt_page_items(%(index)s::text, page::int) i,
    unnest(coalesce(i.tids, ARRAY[i.htid])) t
    WHERE s.type = 'l' AND t IS NOT NULL AND split_part(trim(leading '(' from t::text), ',', 1)::bigint >= 2147483648"""


def toast_of(c, table):
    return c.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = %s::regclass", (table,)).fetchone()[0]


def stones(c, table, kind):
    """Living tuples of the kind 'L' (anchors) or 'D' (tombstones)."""
    return c.execute(f"SELECT count(*) FROM {toast_of(c, table)} WHERE chunk_id BETWEEN 12000 AND 16383 "
                     f"AND substr(chunk_data, 1, 1) = '{kind}'::bytea").fetchone()[0]


def lists(c, table):
    return c.execute(f"SELECT count(*) FROM {toast_of(c, table)} WHERE chunk_id = 3").fetchone()[0]


def entries(c, index):
    return c.execute(ENTRIES, {"index": index}).fetchone()[0]


def sound(c, *tables):
    for table in tables:
        assert not c.execute("SELECT * FROM firn.check(%s)", (table,)).fetchall(), c.execute(
            "SELECT * FROM firn.check(%s)", (table,)).fetchall()
        c.execute("""SELECT bt_index_check(i.indexrelid, true) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
            JOIN pg_am a ON a.oid = x.relam WHERE a.amname = 'btree' AND i.indrelid IN (%(t)s::regclass,
            (SELECT reltoastrelid FROM pg_class WHERE oid = %(t)s::regclass))""", {"t": table})


def fresh(c, rows=20000):
    c.execute("DROP TABLE IF EXISTS child, f, h")
    c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 3000")
    for table, am in (("f", "firn"), ("h", "heap")):
        c.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, k int, v text) USING {am} WITH (autovacuum_enabled = off)")
        c.execute(f"CREATE INDEX {table}_k ON {table} (k)")
        c.execute(f"INSERT INTO {table} SELECT i, i % 700, 'v' || i FROM generate_series(1, {rows}) i")


def equal(c):
    for settings in ("SET enable_indexscan = on; SET firn.enable_scan = on", "SET enable_seqscan = off; SET firn.enable_scan = off"):
        c.execute(settings)
        for query in ("SELECT count(*), sum(id), sum(k), max(v) FROM {}", "SELECT id, v FROM {} WHERE k = 17 ORDER BY id",
                      "SELECT id, v FROM {} WHERE id BETWEEN 2990 AND 3010 ORDER BY id"):
            assert c.execute(query.format("f")).fetchall() == c.execute(query.format("h")).fetchall(), (settings, query)
    c.execute("RESET enable_indexscan; RESET enable_seqscan; RESET firn.enable_scan")


def deleted_rows_lose_their_entries(cluster):
    with cluster.connect() as c, cluster.connect() as other:
        fresh(c)
        for index in ("f_pkey", "f_k"):
            # The first ten of the statement went to the row store.
            assert entries(c, index) == 19990, entries(c, index)
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        before = other.execute("SELECT count(*), sum(id) FROM f").fetchone()
        for table in ("f", "h"):
            c.execute(f"DELETE FROM {table} WHERE id % 4 = 0")
            c.execute(f"UPDATE {table} SET k = k + 1 WHERE id % 4 = 1")
        c.execute("VACUUM f")
        assert entries(c, "f_pkey") == 19990, "an older snapshot sees the rows"
        other.execute("SET enable_seqscan = off; SET firn.enable_scan = off; SET enable_bitmapscan = off")
        assert other.execute("SELECT count(*), sum(id) FROM f WHERE id > 0").fetchone() == before
        other.execute("COMMIT")
        c.execute("VACUUM f")
        for index in ("f_pkey", "f_k"):
            assert 9990 <= entries(c, index) <= 10000, entries(c, index)
        equal(c)
        sound(c, "f")
        # A second one finds nothing to do, a third only the few rows that came after it, and only on request.
        c.execute("DELETE FROM f WHERE id = 5002; DELETE FROM h WHERE id = 5002")
        c.execute("VACUUM f")
        kept = entries(c, "f_pkey")
        c.execute("VACUUM (INDEX_CLEANUP off) f")
        assert entries(c, "f_pkey") == kept
        c.execute("VACUUM (INDEX_CLEANUP on) f")
        assert entries(c, "f_pkey") == kept - 1, (entries(c, "f_pkey"), kept)
        equal(c)
        sound(c, "f")


def rolled_back_loads_lose_their_entries(cluster):
    with cluster.connect() as c, cluster.connect() as other:
        fresh(c, 4000)
        kept = entries(c, "f_pkey")
        c.execute("BEGIN; INSERT INTO f SELECT i, 1, 'gone' FROM generate_series(10001, 15000) i; ROLLBACK")
        with c.transaction():
            c.execute("SAVEPOINT a")
            c.execute("INSERT INTO f SELECT i, 1, 'gone' FROM generate_series(20001, 25000) i")
            c.execute("ROLLBACK TO a")
        # A load that runs while VACUUM does keeps its entries.
        other.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 3000")
        other.execute("BEGIN; INSERT INTO f SELECT i, i % 700, 'v' || i FROM generate_series(30001, 36000) i")
        assert entries(c, "f_pkey") > kept + 9000
        c.execute("VACUUM f")
        assert kept + 5900 < entries(c, "f_pkey") <= kept + 6000, (entries(c, "f_pkey"), kept)
        other.execute("COMMIT")
        c.execute("INSERT INTO h SELECT i, i % 700, 'v' || i FROM generate_series(30001, 36000) i")
        c.execute("BEGIN; INSERT INTO f SELECT i, 1, 'gone' FROM generate_series(10001, 11000) i; ROLLBACK")
        c.execute("VACUUM f")
        assert entries(c, "f_pkey") <= kept + 6000
        equal(c)
        sound(c, "f")


def dead_stripes_go(cluster):
    with cluster.connect() as c:
        fresh(c)
        slots = c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone()[0]
        for table in ("f", "h"):
            c.execute(f"DELETE FROM {table} WHERE id <= 12000")
        c.execute("VACUUM (INDEX_CLEANUP off) f")
        left = c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone()[0]
        assert left < slots - 2, (left, slots)
        # Their tombstones go with them; their index entries went nowhere yet, and go when asked for.
        assert stones(c, "f", "D") < 3000
        assert entries(c, "f_pkey") == 19990
        c.execute("VACUUM f")
        assert entries(c, "f_pkey") <= 8000
        equal(c)
        sound(c, "f")


def anchors_go(cluster):
    with cluster.connect() as c, cluster.connect() as other:
        fresh(c)
        c.execute("CREATE TABLE child (parent int REFERENCES f)")
        c.execute("INSERT INTO child SELECT i FROM generate_series(1, 3000) i")
        assert stones(c, "f", "L") == 2990, stones(c, "f", "L")
        other.execute("BEGIN")
        assert len(other.execute("SELECT id FROM f WHERE id IN (100, 101) FOR SHARE").fetchall()) == 2
        c.execute("VACUUM f")
        assert stones(c, "f", "L") == 2, stones(c, "f", "L")
        # Whoever holds one goes on holding it.
        c.execute("SET lock_timeout = '200ms'")
        for wanted in ("DELETE FROM f WHERE id = 100", "UPDATE f SET k = 0 WHERE id = 101"):
            try:
                c.execute(wanted)
                raise AssertionError("the row was not locked")
            except psycopg.errors.LockNotAvailable:
                pass
        c.execute("RESET lock_timeout")
        other.execute("COMMIT")
        toast = toast_of(c, "f")
        c.execute(f"VACUUM {toast}")
        assert stones(c, "f", "L") == 0
        c.execute("SELECT id FROM f WHERE id IN (100, 101) FOR SHARE")
        c.execute("PREPARE p AS SELECT 1")
        other.execute("BEGIN")
        other.execute("SELECT id FROM f WHERE id = 200 FOR UPDATE")
        other.execute("PREPARE TRANSACTION 'holds'")
        c.execute(f"VACUUM (FREEZE) {toast}")
        assert stones(c, "f", "L") == 1
        other.execute("COMMIT PREPARED 'holds'")
        c.execute("VACUUM f")
        assert stones(c, "f", "L") == 0
        equal(c)
        sound(c, "f")


def forwarding_lists_go(cluster):
    """However small the table is: lists that stayed would be matched by a later transaction of the same number."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS small")
        c.execute("CREATE TABLE small (id int PRIMARY KEY) USING firn")
        c.execute("INSERT INTO small SELECT generate_series(1, 5)")
        c.execute("SELECT firn.compact('small')")
        assert lists(c, "small") == 1
        c.execute("VACUUM small")
        assert lists(c, "small") == 0
        sound(c, "small")


def autovacuum_does_it_too(cluster):
    with cluster.connect() as c:
        fresh(c, 6000)
        c.execute("CREATE TABLE child (parent int REFERENCES f)")
        c.execute("INSERT INTO child SELECT i FROM generate_series(3011, 6000) i")
        for table in ("f", "h"):
            c.execute(f"DELETE FROM {table} WHERE id <= 3010")
        c.execute("INSERT INTO f VALUES (-1, 1, 'a'); INSERT INTO h VALUES (-1, 1, 'a')")
        c.execute("SELECT firn.compact('f')")
        c.execute("""ALTER TABLE f SET (autovacuum_enabled = on, autovacuum_vacuum_threshold = 10,
            autovacuum_vacuum_scale_factor = 0, toast.autovacuum_enabled = on, toast.autovacuum_vacuum_threshold = 10,
            toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_insert_threshold = 10,
            toast.autovacuum_vacuum_insert_scale_factor = 0)""")
        c.execute("ALTER SYSTEM SET autovacuum = on")
        c.execute("SELECT pg_reload_conf()")
        end = time.time() + 120
        while True:
            state = (entries(c, "f_pkey"), stones(c, "f", "L"), lists(c, "f"), stones(c, "f", "D"))
            if state[0] <= 2991 and state[1:3] == (0, 0) and state[3] < 20:
                break
            assert time.time() < end, state
            # Each look counts as nothing; what must be noticed are changes.
            c.execute("UPDATE f SET v = v WHERE id = -1")
            time.sleep(0.5)
        c.execute("ALTER SYSTEM RESET autovacuum")
        c.execute("SELECT pg_reload_conf()")
        # Workers that are at it come to their end.
        while c.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'").fetchone()[0]:
            time.sleep(0.2)
        equal(c)
        sound(c, "f")


def lockers_and_vacuum(cluster):
    """Sessions that count under row locks while VACUUM takes anchors away: nothing is counted twice or lost."""
    seed = int(os.environ.get("FIRN_SEED", random.randrange(1 << 30)))
    with cluster.connect() as c:
        fresh(c, 3000)
        c.execute("DROP TABLE IF EXISTS seen")
        c.execute("CREATE TABLE seen (id int, n int, who int)")
    stop = threading.Event()
    failures = []

    def locker(number):
        rng = random.Random(seed + number)
        try:
            with cluster.connect() as c:
                c.execute("SET firn.bulk_threshold = 1000")
                for _ in range(150):
                    row = rng.randint(100, 112)
                    how = rng.random()
                    with c.transaction():
                        if how < 0.2:
                            c.execute("SELECT 1 FROM f WHERE id = %s FOR SHARE", (row,))
                            continue
                        mode = "NO KEY UPDATE" if how < 0.6 else "UPDATE"
                        (v,) = c.execute(f"SELECT count(*) FROM seen WHERE id = {row}").fetchone()
                        c.execute(f"SELECT 1 FROM f WHERE id = {row} FOR {mode}")
                        (n,) = c.execute(f"SELECT count(*) FROM seen WHERE id = {row}").fetchone()
                        c.execute("INSERT INTO seen VALUES (%s, %s, %s)", (row, n, number))
        except Exception as e:  # noqa: BLE001 - told below
            failures.append(e)

    def vacuum():
        with cluster.connect() as c:
            toast = toast_of(c, "f")
            while not stop.is_set():
                c.execute(f"VACUUM {toast}")

    threads = [threading.Thread(target=locker, args=(i,)) for i in range(5)]
    cleaner = threading.Thread(target=vacuum)
    cleaner.start()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    stop.set()
    cleaner.join()
    assert not failures, (seed, failures)
    with cluster.connect() as c:
        doubled = c.execute("SELECT id, n, count(*) FROM seen GROUP BY 1, 2 HAVING count(*) > 1").fetchall()
        assert not doubled, (seed, doubled)
        c.execute("VACUUM f")
        assert stones(c, "f", "L") == 0
        sound(c, "f")


def many_tables(cluster):
    """VACUUM of a whole database holds the locks of one table at a time."""
    with cluster.connect() as c:
        c.execute("DROP DATABASE IF EXISTS many")
        c.execute("CREATE DATABASE many")
    with cluster.connect("many") as c:
        c.execute("CREATE EXTENSION firn")
        c.execute("SET firn.bulk_threshold = 0")
        for i in range(1000):
            c.execute(f"CREATE TABLE t{i} (id int) USING firn")
        c.execute("INSERT INTO t1 SELECT generate_series(1, 100); DELETE FROM t1")
        c.execute("VACUUM")
        assert c.execute("SELECT count(*) FROM firn.stripes('t1')").fetchone()[0] == 0
    with cluster.connect() as c:
        c.execute("DROP DATABASE many")


def loads_go_on(cluster):
    """VACUUM reads a long directory, and sleeps between its rows: nobody who wants addresses waits for that."""
    with cluster.connect() as c, cluster.connect() as vacuum, cluster.connect() as loader:
        c.execute("DROP TABLE IF EXISTS child, f, h")
        c.execute("SET firn.bulk_threshold = 0; SET firn.stripe_rows = 200")
        c.execute("CREATE TABLE f (id int PRIMARY KEY) USING firn WITH (autovacuum_enabled = off)")
        c.execute("INSERT INTO f SELECT generate_series(1, 100000)")
        c.execute("DELETE FROM f WHERE id <= 5000")
        vacuum.execute("SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1")
        pid = vacuum.info.backend_pid
        at_work = threading.Thread(target=lambda: refused(vacuum, "VACUUM f", "57014"))
        at_work.start()
        state = f"""SELECT wait_event FROM pg_stat_activity WHERE pid = {pid}
            AND NOT EXISTS (SELECT 1 FROM pg_stat_progress_vacuum WHERE pid = {pid})"""
        end = time.time() + 60
        while c.execute(state).fetchall() != [("VacuumDelay",)]:
            assert time.time() < end, "VACUUM does not sleep while it reads the directory"
        loader.execute("SET firn.bulk_threshold = 0; SET lock_timeout = '2s'")
        try:
            for i in range(3):
                loader.execute(f"INSERT INTO f SELECT generate_series({200001 + i * 10}, {200005 + i * 10})")
            assert c.execute(state).fetchall(), "VACUUM was through with the directory before the loads were"
        finally:
            c.execute(f"SELECT pg_cancel_backend({pid})")
            at_work.join()
        c.execute("VACUUM (INDEX_CLEANUP on) f")
        assert c.execute("SELECT count(*), min(id), max(id) FROM f").fetchone() == (95015, 5001, 200025)
        assert entries(c, "f_pkey") == 95015
        sound(c, "f")


def held_tombstones_are_left(cluster):
    """Who holds the key of a row that an update has left alone holds its tombstone: VACUUM does not wait for him."""
    with cluster.connect() as c, cluster.connect() as updater, cluster.connect() as holder:
        fresh(c, 6010)
        # The update's transaction is older than the holder's, so nothing but the lock keeps the stripe.
        updater.execute("BEGIN; SELECT txid_current()")
        holder.execute("BEGIN")
        assert holder.execute("SELECT id FROM f WHERE id = 20 FOR KEY SHARE").fetchall() == [(20,)]
        for table in ("f", "h"):
            updater.execute(f"UPDATE {table} SET v = v || 'u' WHERE id BETWEEN 11 AND 6010")
        updater.execute("COMMIT")
        count = "SELECT count(*) FROM firn.stripes('f')"
        assert c.execute(count).fetchone() == (2,)
        c.execute("SET lock_timeout = '3s'")
        c.execute("VACUUM f")
        # The other one, of which nobody holds a row, went.
        assert c.execute(count).fetchone() == (1,)
        refused(c, "DELETE FROM f WHERE id = 20", "55P03")
        holder.execute("COMMIT")
        c.execute("VACUUM f")
        assert c.execute(count).fetchone() == (0,)
        c.execute("RESET lock_timeout")
        equal(c)
        sound(c, "f")


def frozen_anchors(cluster):
    """VACUUM FREEZE beside anchors that are held, and removed ones on a page that it cannot clear away: their inserters are
    older than all that the relation still knows."""
    with cluster.connect() as c, cluster.connect() as holder, cluster.connect() as reader:
        fresh(c, 3010)
        toast = toast_of(c, "f")
        c.execute("CREATE TABLE child (parent int REFERENCES f)")
        c.execute("INSERT INTO child SELECT i FROM generate_series(11, 1010) i")
        holder.execute("BEGIN")
        held = holder.execute("SELECT count(*) FROM (SELECT 1 FROM f WHERE id BETWEEN 500 AND 519 FOR SHARE) x").fetchone()[0]
        horizon = f"SELECT relfrozenxid::text::bigint FROM pg_class WHERE oid = '{toast}'::regclass"
        inserted = c.execute(f"SELECT max(xmin::text::bigint) FROM {toast} WHERE chunk_id >= 12000").fetchone()[0]
        for _ in range(2):
            c.execute("SELECT txid_current()")
            c.execute("VACUUM (FREEZE) f")
            assert stones(c, "f", "L") == held == 20
        c.execute("SET lock_timeout = '200ms'")
        refused(c, "DELETE FROM f WHERE id = 510", "55P03")
        c.execute("RESET lock_timeout")
        holder.execute("COMMIT")
        for _ in range(3):
            c.execute("SELECT txid_current()")
        c.execute(f"VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) {toast}")
        assert stones(c, "f", "L") == 0 and c.execute(horizon).fetchone()[0] > inserted
        # Held while the relation is frozen, then free, on pages that somebody reads.
        holder.execute("BEGIN")
        holder.execute("SELECT id FROM f WHERE id BETWEEN 500 AND 519 FOR SHARE")
        inserted = c.execute(f"SELECT max(xmin::text::bigint) FROM {toast} WHERE chunk_id >= 12000").fetchone()[0]
        holder.execute("COMMIT; BEGIN")
        holder.execute("SELECT id FROM f WHERE id BETWEEN 500 AND 519 FOR SHARE")
        c.execute(f"VACUUM (FREEZE) {toast}")
        assert c.execute(horizon).fetchone()[0] > inserted and stones(c, "f", "L") == 20
        holder.execute("COMMIT")
        (page,) = c.execute(f"SELECT max((ctid::text::point)[0])::int FROM {toast} WHERE chunk_id >= 12000").fetchone()
        reader.execute("BEGIN")
        reader.execute(f"DECLARE r CURSOR FOR SELECT ctid FROM {toast} WHERE ctid >= '({page},1)'")
        assert reader.execute("FETCH 1 FROM r").fetchone() is not None
        c.execute(f"VACUUM {toast}")
        assert stones(c, "f", "L") == 0
        c.execute(f"VACUUM {toast}")
        reader.execute("COMMIT")
        c.execute(f"VACUUM (FREEZE) {toast}")
        equal(c)
        sound(c, "f")


def note_is_made(cluster):
    """A table whose note of cleaning is missing, as an error had it when the first stripe was made: VACUUM makes one, and from
    then on knows what is clean."""
    with cluster.connect() as c:
        fresh(c)
        for table in ("f", "h"):
            c.execute(f"DELETE FROM {table} WHERE id BETWEEN 5000 AND 7000")
        toast = toast_of(c, "f")
        note = f"SELECT count(*) FROM {toast} WHERE chunk_id = 7"
        c.execute("SET allow_system_table_mods = on")
        kind = f"UPDATE pg_class SET relkind = %s WHERE oid = '{toast}'::regclass"
        c.execute(kind, ("r",))
        c.execute(f"DELETE FROM {toast} WHERE chunk_id = 7")
        c.execute(kind, ("t",))
        c.execute("RESET allow_system_table_mods")
    with cluster.connect() as c:
        assert c.execute(note).fetchone() == (0,)
        c.execute("VACUUM f")
        assert c.execute(note).fetchone() == (1,)
        c.execute("VACUUM f")
        kept = entries(c, "f_pkey")
        assert kept == 19990 - 2001
        # One more row is worth no pass to who knows that the others' entries are gone.
        c.execute("DELETE FROM f WHERE id = 9000; DELETE FROM h WHERE id = 9000")
        c.execute("VACUUM f")
        assert entries(c, "f_pkey") == kept, (entries(c, "f_pkey"), kept)
        c.execute("VACUUM (INDEX_CLEANUP on) f")
        assert entries(c, "f_pkey") == kept - 1
        assert c.execute(note).fetchone() == (1,)
        equal(c)
        sound(c, "f")


def other_defaults(cluster):
    """VACUUM of sessions whose transactions keep their snapshots, or only read, by default."""
    for setting in ("default_transaction_isolation = 'repeatable read'", "default_transaction_isolation = 'serializable'",
                    "default_transaction_read_only = on"):
        with cluster.connect() as c, cluster.connect() as v:
            fresh(c)
            c.execute("CREATE TABLE child (parent int REFERENCES f)")
            c.execute("INSERT INTO child SELECT i FROM generate_series(19001, 19010) i")
            c.execute("INSERT INTO f VALUES (-1, 1, 'a'), (-2, 1, 'b'); INSERT INTO h VALUES (-1, 1, 'a'), (-2, 1, 'b')")
            c.execute("SELECT firn.compact('f')")
            for table in ("f", "h"):
                c.execute(f"DELETE FROM {table} WHERE id BETWEEN 1 AND 12010 OR id = 15000")
            v.execute(f"SET {setting}")
            slots = c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone()[0]
            v.execute("VACUUM (FREEZE, INDEX_CLEANUP on) f")
            assert entries(c, "f_pkey") == 7991, (setting, entries(c, "f_pkey"))
            assert stones(c, "f", "L") == 0, setting
            equal(c)
            left = c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone()[0]
            # A snapshot that lasts was taken while others ignored VACUUM: then the stripes are the next one's.
            keeps = "isolation" in setting
            assert left == (slots if keeps else slots - 4), (setting, slots, left)
            v.execute("VACUUM (ANALYZE) f")
            c.execute("VACUUM f")
            assert c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone()[0] == slots - 4, setting
            assert lists(c, "f") == 0
            equal(c)
            sound(c, "f")


def refused(c, sql, state):
    try:
        c.execute(sql)
    except psycopg.Error as e:
        assert e.sqlstate == state, (e.sqlstate, str(e))
        return e
    raise AssertionError(f"no error from {sql}")


def databases_owner(cluster):
    """VACUUM by the database's owner leaves no more behind than by the table's."""
    with cluster.connect() as c:
        c.execute("CREATE ROLE keeper; CREATE ROLE writer")
        c.execute("CREATE DATABASE kept OWNER keeper")
    with cluster.connect("kept") as c:
        c.execute("CREATE EXTENSION firn; GRANT CREATE ON SCHEMA public TO writer; SET ROLE writer")
        c.execute("SET firn.bulk_threshold = 1000000; SET firn.stripe_rows = 80; CREATE TABLE f (id int) USING firn")
        c.execute("INSERT INTO f SELECT generate_series(1, 8000)")
        until = time.time() + 60
        while c.execute("SELECT firn.compact('f')").fetchone()[0] == 0:
            assert time.time() < until
        c.execute("DELETE FROM f; RESET ROLE; SET ROLE keeper")
        # It gives pages back, and so cannot tidy up in its own transaction.
        c.execute("VACUUM f")
        c.execute("RESET ROLE")
        assert c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone() == (0,)
    with cluster.connect() as c:
        c.execute("DROP DATABASE kept")
        c.execute("DROP ROLE keeper; DROP ROLE writer")


def others_temporary_tables(cluster):
    """Temporary tables of other sessions are passed over, large ones, too, and those whose session ended with the server."""
    def rows():
        with cluster.connect() as c:
            c.execute("VACUUM")
            return c.execute("SELECT count(*) FROM firn.tables WHERE relation::text LIKE '%passing'").fetchone()[0]
    other = cluster.connect()
    other.execute("SET firn.bulk_threshold = 0; CREATE TEMPORARY TABLE passing (id int, v text) USING firn")
    other.execute("INSERT INTO passing SELECT i, (SELECT string_agg(md5((i * 99 + g)::text), '') FROM generate_series(1, 60) g) "
                  "FROM generate_series(1, 2000) i")
    assert other.execute("SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'passing'::regclass").fetchone()[0] > 64 * 8192
    assert rows() == 0
    cluster.crash()
    cluster.start()
    assert rows() == 0


def snapshots_beside_tidying(cluster):
    """Whoever takes a snapshot while VACUUM gives pages back and tidies up sees each row once: nothing of that is done by a
    transaction that he has been told to ignore."""
    stop, wrong = threading.Event(), []

    def read():
        with cluster.connect() as s:
            while not stop.is_set():
                found = s.execute("SELECT count(*) FROM tidied").fetchone()[0]
                if found % 8000:
                    wrong.append(found)

    def spend_ids():
        with cluster.connect() as s:
            s.execute("SET synchronous_commit = off")
            while not stop.is_set():
                s.execute("INSERT INTO spent VALUES (1)")

    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS tidied, spent; CREATE TABLE spent (a int)")
        c.execute("SET firn.bulk_threshold = 1000000; SET firn.stripe_rows = 80")
        c.execute("CREATE TABLE tidied (id int) USING firn WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        threads = [threading.Thread(target=f) for f in (read, read, spend_ids, spend_ids)]
        for t in threads:
            t.start()
        try:
            for _ in range(12):
                c.execute("DELETE FROM tidied")
                c.execute("INSERT INTO tidied SELECT generate_series(1, 8000)")
                until = time.time() + 5
                while c.execute("SELECT firn.compact('tidied')").fetchone()[0] == 0 and time.time() < until:
                    pass
                c.execute("VACUUM tidied")
                assert c.execute("SELECT count(*) FROM tidied").fetchone()[0] == 8000
        finally:
            stop.set()
            for t in threads:
                t.join()
        assert not wrong, wrong[:5]
        # And it has been tidied up: the stripes whose rows were all deleted are gone.
        c.execute("VACUUM tidied")
        assert c.execute("SELECT count(*) FROM firn.stripes('tidied')").fetchone()[0] == 100
        sound(c, "tidied")
        c.execute("DROP TABLE tidied, spent")


def horizons_that_go_back(cluster):
    """A transaction of another database does not keep VACUUM from removing rows, and counts for snapshots that are taken afterwards: for
    who builds or checks an index then, the rows are as gone as their entries are."""
    with cluster.connect() as c, cluster.connect("template1") as elsewhere:
        elsewhere.execute("BEGIN; SELECT pg_current_xact_id()")
        c.execute("SET firn.bulk_threshold = 0; SET firn.stripe_rows = 500")
        for am in ("heap", "firn"):
            c.execute(f"CREATE TABLE gone (id int, n int) USING {am}")
            c.execute("INSERT INTO gone SELECT i, i FROM generate_series(1, 2000) i")
            c.execute("CREATE INDEX gone_id ON gone (id)")
            c.execute("DELETE FROM gone WHERE id % 2 = 0")
            c.execute("VACUUM (INDEX_CLEANUP ON) gone")
            c.execute("DELETE FROM gone WHERE id % 5 = 0")
            c.execute("SELECT bt_index_parent_check('gone_id', true)")
            c.execute("CREATE INDEX gone_n ON gone (n)")
            entries = [c.execute(f"SELECT sum(live_items - (btpo_next <> 0)::int) FROM generate_series(1, pg_relation_size('{i}') / 8192 - 1) b, bt_page_stats('{i}', b::int) WHERE type = 'l'").fetchone()[0]
                       for i in ("gone_id", "gone_n")]
            assert entries[1] <= 1000, f"{am}: a new index has {entries[1]} entries, of rows that are gone, too; the old one {entries[0]}"
            c.execute("SELECT bt_index_parent_check('gone_id', true), bt_index_parent_check('gone_n', true)")
            c.execute("SET enable_seqscan = off")
            assert c.execute("SELECT count(*) FROM gone WHERE n > 0").fetchone() == (800,)
            c.execute("RESET enable_seqscan; DROP TABLE gone")


def places_given_out_again(cluster):
    """A scan of tombstones that VACUUM overtakes: the places of those that it is on its way to have other rows then, some of which every
    snapshot sees."""
    folder = os.path.join(cluster.root, "places")
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o777)
    with cluster.connect() as c, cluster.connect() as reader:
        c.execute("DROP SERVER IF EXISTS places CASCADE; SET firn.bulk_threshold = 0")
        c.execute(f"CREATE SERVER places FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{folder}')")
        c.execute("CREATE TABLE placed (id int) USING firn WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        c.execute("SET firn.stripe_rows = 2000; INSERT INTO placed SELECT generate_series(1, 2000)")
        c.execute("SET firn.stripe_rows = 10; INSERT INTO placed SELECT generate_series(2001, 8000)")
        c.execute("DELETE FROM placed WHERE id = 1")
        c.execute("BEGIN; DELETE FROM placed WHERE id BETWEEN 2 AND 2000; ROLLBACK")
        pid = reader.info.backend_pid
        reader.execute("SET max_parallel_workers_per_gather = 0; SET firn.crash_point = 'tombstone-seen+stop'")
        result = []

        def read():
            try:
                result.append(reader.execute("SELECT count(id), sum(id) FROM placed").fetchone())
            except psycopg.Error as e:
                result.append(e)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            deadline = time.time() + 60
            while stat_of(pid) != "T":
                assert time.time() < deadline and thread.is_alive(), result
                time.sleep(0.01)
            c.execute("VACUUM (INDEX_CLEANUP on) placed")
            assert c.execute("SELECT firn.offload('placed', 'places')").fetchone() == (601,)
        finally:
            os.kill(pid, signal.SIGCONT)
        thread.join(60)
        assert result == [(7999, 8000 * 8001 // 2 - 1)], result
        assert c.execute("SELECT count(id), sum(id) FROM placed").fetchone() == result[0]
        c.execute("DROP TABLE placed; DROP SERVER places")


def stat_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return f.read().rsplit(")", 1)[1].split()[0]


CASES = [deleted_rows_lose_their_entries, rolled_back_loads_lose_their_entries, dead_stripes_go, anchors_go,
         forwarding_lists_go, autovacuum_does_it_too, lockers_and_vacuum, many_tables, loads_go_on,
         held_tombstones_are_left, frozen_anchors, note_is_made, other_defaults, snapshots_beside_tidying, databases_owner,
         others_temporary_tables, horizons_that_go_back, places_given_out_again]


def run(tally, pattern):
    # Autovacuum's own snapshots would keep what the cases look for; the one that is about it turns it on.
    cluster = Cluster("vacuum", ["fsync=off", "autovacuum=off", "autovacuum_naptime=1s", "max_locks_per_transaction=10",
                                 "max_connections=20"]).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn; CREATE EXTENSION amcheck; CREATE EXTENSION pageinspect")
        for case in CASES:
            name = case.__name__.replace("_", " ")
            if pattern in name:
                tally.case(f"vacuum: {name}", lambda: case(cluster))
        tally.case("vacuum server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()
