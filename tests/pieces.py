"""Work that goes piece by piece: each piece is committed, locks and memory do not grow with tables and stripes, and
whatever ends it (a cancel, a kill, a store that fails, a lock that is not to be had) leaves what was done before."""
import contextlib
import os
import random
import shutil
import threading
import time

import psycopg

from harness.cluster import Cluster
from trouble.common import Background, expect, intact

COMPACT, OFFLOAD, LOAD = ("CALL firn.compact_in_pieces('{}', {})", "CALL firn.offload_in_pieces('{}', 'cold', {})",
                          "CALL firn.load_in_pieces('{}', {})")
# Too long for its place even when it is compressed.
LONG = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=40000))
# Locks of a tenth of them are more than the server has room for.
MANY = int(os.environ.get("FIRN_PARTITIONS", "300"))


def fresh(c, rows=4000, stripe_rows=100):
    """A table `f` with all rows in the row store, and its twin `h` on heap."""
    c.execute("DROP TABLE IF EXISTS f, h")
    c.execute(f"SET firn.bulk_threshold = 1000000; SET firn.stripe_rows = {stripe_rows}")
    c.execute("CREATE TABLE f (id int PRIMARY KEY, v text, n numeric(10,2)) USING firn")
    c.execute(f"INSERT INTO f SELECT i, 'v' || i % 50, i / 4.0 FROM generate_series(1, {rows}) i")
    c.execute("CREATE TABLE h USING heap AS TABLE f")


def parts(c, count=4, rows=300):
    """A partitioned table `p` of firn tables p1, p2, …, their rows in row stores, and its twin `h` on heap."""
    c.execute("DROP TABLE IF EXISTS p, h")
    c.execute("SET firn.bulk_threshold = 1000000; SET firn.stripe_rows = 100")
    c.execute("CREATE TABLE p (id int, v text) PARTITION BY RANGE (id)")
    for n in range(1, count + 1):
        c.execute(f"CREATE TABLE p{n} PARTITION OF p FOR VALUES FROM ({n * rows}) TO ({n * rows + rows}) USING firn")
    c.execute(f"INSERT INTO p SELECT i, 'v' || i FROM generate_series({rows}, {rows + count * rows - 1}) i")
    c.execute("CREATE TABLE h USING heap AS TABLE p")


def info(c, table):
    """Stripes, local bytes, cold bytes."""
    return c.execute("SELECT stripes, local_bytes, cold_bytes FROM firn.table_info(%s)", (table,)).fetchone()


def cold(c, table):
    """How many stripes are cold."""
    return c.execute("SELECT count(*) FROM firn.stripes(%s) WHERE location <> 'local'", (table,)).fetchone()[0]


def transactions(c):
    """Transaction ids given out so far, and one more."""
    return int(c.execute("SELECT pg_current_xact_id()::text").fetchone()[0])


def outcome(call):
    """The SQLSTATE that a call in the background ends with; None when it is done."""
    try:
        call.finish()
    except psycopg.OperationalError as e:
        return e.sqlstate or "57P01"
    except psycopg.Error as e:
        return e.sqlstate
    return None


def waits(c, pid, seconds=30):
    end = time.time() + seconds
    while time.time() < end:
        if c.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() == ("Lock",):
            return
        time.sleep(0.01)
    raise AssertionError("it does not wait")


@contextlib.contextmanager
def stopped(cluster, call, table, prepare="SELECT 1"):
    """`call` after its first piece of `table`, waiting for the lock of the next; gives the call, a session that has
    the lock, in a transaction, and another that watches."""
    lock = f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE"
    with cluster.connect() as watch, cluster.connect() as first:
        first.execute("BEGIN; " + lock)
        at_work = Background(cluster, call, prepare)
        waits(watch, at_work.pid)
        with cluster.connect() as holder:
            queued = threading.Thread(target=holder.execute, args=("BEGIN; " + lock,))
            queued.start()
            waits(watch, holder.info.backend_pid)
            first.execute("ROLLBACK")
            queued.join()
            waits(watch, at_work.pid)
            yield at_work, holder, watch


def each_piece_is_a_transaction(cluster):
    """As many transactions as pieces, a bounded number of stripes in each; the same result as the functions'."""
    with cluster.connect() as c:
        fresh(c)
        for call, stripes in ((COMPACT, 4), (OFFLOAD, 3), (LOAD, 5)):
            begun = transactions(c)
            c.execute(call.format("f", stripes))
            used = transactions(c) - begun - 1
            count = info(c, "f")[0]
            # The rows of a page stay together, so a piece of a compaction may have a stripe more or less.
            assert count / (stripes + 2) <= used <= count / (stripes - 1) + 1, (call, used, count)
            assert cold(c, "f") == (count if call is OFFLOAD else 0)
            intact(c)
            begun = transactions(c)
            c.execute(call.format("f", stripes))
            # A compaction removes lists that nobody needs any more.
            assert transactions(c) - begun <= 1 + (call is COMPACT), "what is done was done again"
        assert c.execute("SELECT count(*) FROM firn.stripes('f') WHERE rows > 100").fetchone() == (0,)
        assert c.execute("SELECT firn.compact('f')").fetchone() == (0,)


def pages_are_read_once(cluster):
    """A piece begins where the one before it has ended; rows that stay are not tried for ever."""
    with cluster.connect() as c, cluster.connect() as other:
        fresh(c, 20000)
        other.execute("BEGIN; SELECT id FROM f WHERE id % 500 = 7 FOR UPDATE")
        pages = c.execute("SELECT pg_relation_size('f') / 8192").fetchone()[0]
        c.execute("SELECT pg_stat_force_next_flush()")
        before = c.execute("SELECT seq_tup_read, heap_blks_read + heap_blks_hit FROM pg_statio_user_tables JOIN "
                           "pg_stat_user_tables USING (relid) WHERE relid = 'f'::regclass").fetchone()
        c.execute(COMPACT.format("f", 2))
        c.execute("SELECT pg_stat_force_next_flush()")
        after = c.execute("SELECT seq_tup_read, heap_blks_read + heap_blks_hit FROM pg_statio_user_tables JOIN "
                          "pg_stat_user_tables USING (relid) WHERE relid = 'f'::regclass").fetchone()
        # Each page is scanned, taken and, by some, looked at once more; a scan per piece would be dozens of times that.
        assert after[1] - before[1] < 8 * pages, (before, after, pages)
        other.execute("ROLLBACK")
        left = 40
        assert c.execute("SELECT sum(rows) FROM firn.stripes('f')").fetchone()[0] == 20000 - left
        c.execute(COMPACT.format("f", 2))
        assert c.execute("SELECT sum(rows) FROM firn.stripes('f')").fetchone()[0] == 20000
        intact(c)


def writers_and_readers(cluster):
    """Sessions change table and twin alike meanwhile, others read both under one snapshot over several pieces."""
    stop, failures, done = threading.Event(), [], {"written": 0, "read": 0}

    def both(c, sql, args=()):
        for t in ("f", "h"):
            c.execute(sql.replace("@", t), args)

    def write(seed):
        rnd = random.Random(seed)
        with cluster.connect(autocommit=False) as c:
            while not stop.is_set():
                try:
                    for _ in range(rnd.randint(1, 3)):
                        id = rnd.randrange(1, 3000) * 2 + seed
                        both(c, rnd.choice(["UPDATE @ SET n = n + 1 WHERE id = %s", "DELETE FROM @ WHERE id = %s",
                                            "INSERT INTO @ VALUES (%s, 'new', 0) ON CONFLICT DO NOTHING",
                                            "UPDATE @ SET v = v || 'x' WHERE id BETWEEN %s AND 6000 AND id %% 977 = 0"]
                                           if seed else ["UPDATE @ SET n = n + 1 WHERE id = %s"]), (id,))
                    rnd.choice([c.commit, c.commit, c.rollback])()
                    done["written"] += 1
                except psycopg.Error as e:
                    c.rollback()
                    if e.sqlstate not in ("40P01", "23505"):
                        failures.append(repr(e))

    def read():
        with cluster.connect() as c:
            while not stop.is_set():
                try:
                    c.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                    for _ in range(6):
                        for query in ("SELECT count(*), sum(n), sum(length(v)) FROM {}", "SELECT * FROM {} WHERE id = 500"):
                            one, two = (c.execute(query.format(t)).fetchall() for t in ("f", "h"))
                            if one != two:
                                failures.append((query, one, two))
                        time.sleep(0.05)
                    c.execute("COMMIT")
                    done["read"] += 1
                except psycopg.Error as e:
                    failures.append(repr(e))
                    return

    with cluster.connect() as c:
        fresh(c, 6000)
        c.execute("ALTER TABLE h ADD PRIMARY KEY (id)")
        threads = [threading.Thread(target=write, args=(seed,)) for seed in (0, 1)] + [threading.Thread(target=read)]
        for t in threads:
            t.start()
        end = time.time() + 5
        rounds = 0
        while time.time() < end or rounds < 2:
            for call in (COMPACT, OFFLOAD, LOAD):
                c.execute(call.format("f", 2))
            rounds += 1
            c.execute("VACUUM f")
        stop.set()
        for t in threads:
            t.join()
        assert not failures, failures[:3]
        assert done["written"] > 20 and done["read"] > 2, done
        intact(c)


def old_snapshots(cluster):
    """A transaction that has read before goes on to read, change and lock rows that several pieces have moved."""
    with cluster.connect() as c, cluster.connect() as old:
        fresh(c)
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert old.execute("SELECT count(*), sum(n) FROM f").fetchall() == old.execute("SELECT count(*), sum(n) FROM h").fetchall()
        c.execute(COMPACT.format("f", 1))
        c.execute(OFFLOAD.format("f", 1))
        for t in ("f", "h"):
            old.execute(f"UPDATE {t} SET n = -n WHERE id IN (5, 1500, 3990); DELETE FROM {t} WHERE id IN (6, 2000)")
        for query in ("SELECT * FROM {} ORDER BY id", "SELECT * FROM {} WHERE id BETWEEN 1490 AND 1510 ORDER BY id FOR UPDATE"):
            assert old.execute(query.format("f")).fetchall() == old.execute(query.format("h")).fetchall()
        old.execute("COMMIT")
        intact(c)


def killed(cluster):
    """kill -9 within a piece and between pieces: what was committed stays, and the same call goes on from there."""
    for call, within in ((COMPACT, "compact-written#4"), (OFFLOAD, "offload-uploaded#4"), (LOAD, "load-flipped#4")):
        for point in (within, "piece-committed#2"):
            with cluster.connect() as c:
                fresh(c, 1000)
                if call is not COMPACT:
                    c.execute("SELECT firn.compact('f')")
                if call is LOAD:
                    c.execute("SELECT firn.offload('f', 'cold')")
                c.execute(f"SET firn.stripe_rows = 100; SET firn.crash_point = '{point.replace('#', '+wal#')}'")
                try:
                    c.execute(call.format("f", 2))
                    raise AssertionError(f"{point} was not reached")
                except psycopg.OperationalError:
                    pass
            cluster.wait_recovered()
            with cluster.connect() as c:
                c.execute("SET firn.stripe_rows = 100")
                stripes = info(c, "f")[0]
                some = {COMPACT: stripes, OFFLOAD: cold(c, "f"), LOAD: stripes - cold(c, "f")}[call]
                assert 2 <= some < 9, (call, point, some)
                intact(c)
                c.execute(call.format("f", 2))
                stripes = info(c, "f")[0]
                assert cold(c, "f") == (stripes if call is OFFLOAD else 0)
                assert c.execute("SELECT sum(rows) FROM firn.stripes('f')").fetchone()[0] == 1000
                intact(c)


def ended_by_others(cluster):
    """A cancel, a lock_timeout, the end of the session between pieces; and nobody waits for more than a piece."""
    with cluster.connect() as c:
        for how, prepare in (("SELECT pg_cancel_backend({})", "SELECT 1"), ("SELECT pg_terminate_backend({})", "SELECT 1"),
                             ("SELECT 1", "SET lock_timeout = '2s'")):
            fresh(c, 1000)
            with stopped(cluster, COMPACT.format("f", 2), "f", prepare + "; SET firn.stripe_rows = 100") as (call, holder, watch):
                some = info(watch, "f")[0]
                assert 1 <= some <= 3, some
                # Between pieces it has no lock, no snapshot and no transaction that others would have to mind.
                assert watch.execute("SELECT count(*) FROM pg_locks WHERE pid = %s AND granted AND locktype IN "
                                     "('relation', 'transactionid')", (call.pid,)).fetchone() == (0,)
                assert watch.execute("SELECT backend_xmin FROM pg_stat_activity WHERE pid = %s", (call.pid,)).fetchone() == (None,)
                watch.execute(how.format(call.pid))
                assert outcome(call) in ("57014", "57P01", "55P03"), call.result
                holder.execute("ROLLBACK")
                assert info(watch, "f")[0] == some
            intact(c)
            c.execute(COMPACT.format("f", 2))
            assert c.execute("SELECT sum(rows) FROM firn.stripes('f')").fetchone()[0] == 1000
            intact(c)


def changed_between_pieces(cluster):
    """Others drop, empty, rewrite and change a table between two pieces of work on it."""
    changes = {
        "DROP TABLE f": None,
        "TRUNCATE f": (0, 0),
        "TRUNCATE f; INSERT INTO f SELECT i, 'new', 0 FROM generate_series(1, 50) i": (50, None),
        "ALTER TABLE f SET ACCESS METHOD heap": (1000, "heap"),
        "ALTER TABLE f ALTER COLUMN n TYPE numeric(12,2) USING n + 0": (1000, 1000),
        "ALTER TABLE f ADD COLUMN more int DEFAULT 7": (1000, 1000),
        "DELETE FROM f WHERE id > 300": (300, None),
        # What describes the table lies in TOAST relations, and is read again before the next piece has a snapshot.
        f"ALTER TABLE f ALTER v SET DEFAULT '{LONG}', ADD CHECK (v <> '{LONG}'); COMMENT ON TABLE f IS '{LONG}'": (1000, 1000),
        f"CREATE STATISTICS s_f ON (v || '{LONG}') FROM f": (1000, 1000),
        f"CREATE POLICY p_f ON f USING (v <> '{LONG}'); ALTER TABLE f ENABLE ROW LEVEL SECURITY": (1000, 1000),
        f"CREATE RULE r_f AS ON UPDATE TO f WHERE new.v = '{LONG}' DO INSTEAD NOTHING": (1000, 1000),
        f"CREATE TRIGGER t_f BEFORE UPDATE ON f FOR EACH ROW WHEN (new.v = '{LONG}') EXECUTE FUNCTION suppress_redundant_updates_trigger()":
            (1000, 1000),
    }
    with cluster.connect() as c:
        for change, (rows, moved) in ((k, v or (None, None)) for k, v in changes.items()):
            fresh(c, 1000)
            with stopped(cluster, COMPACT.format("f", 2), "f", "SET firn.stripe_rows = 100") as (call, holder, _):
                holder.execute("SET firn.bulk_threshold = 1000000")
                holder.execute(change)
                holder.execute("COMMIT")
                assert outcome(call) is None, (change, call.result)
            if rows is None:
                assert c.execute("SELECT to_regclass('f')").fetchone() == (None,)
                continue
            assert c.execute("SELECT count(*) FROM f").fetchone() == (rows,), change
            if moved != "heap":
                assert not c.execute("SELECT * FROM firn.check('f')").fetchall(), change
            if isinstance(moved, int):
                assert c.execute("SELECT coalesce(sum(rows), 0) FROM firn.stripes('f')").fetchone() == (moved,), change
        # VACUUM FULL moves the rows that are left to the front.
        fresh(c, 1000)
        with stopped(cluster, COMPACT.format("f", 2), "f", "SET firn.stripe_rows = 100") as (call, holder, watch):
            full = Background(cluster, "VACUUM FULL f")
            waits(watch, full.pid)
            holder.execute("ROLLBACK")
            assert outcome(full) is None and outcome(call) is None, (full.result, call.result)
        c.execute(COMPACT.format("f", 2))
        assert c.execute("SELECT sum(rows) FROM firn.stripes('f')").fetchone() == (1000,)
        intact(c)


def dropped(cluster):
    """A table that was named and is dropped meanwhile, by others or by the call's own commit, is left out with a warning,
    as VACUUM does it; what a commit empties stays empty."""
    warnings = []
    with cluster.connect() as c:
        c.add_notice_handler(lambda d: warnings.append((d.sqlstate, d.message_primary, d.message_hint or "")))
        names = {COMPACT: "firn.compact()", OFFLOAD: "firn.offload()", LOAD: "firn.load()"}
        for call, function in names.items():
            warnings.clear()
            c.execute(f"""DO $$ BEGIN
                CREATE TEMP TABLE brief (id int) USING firn ON COMMIT DROP;
                INSERT INTO brief SELECT generate_series(1, 300);
                {call.format("brief", 1)};
            END $$""")
            assert [w[:2] for w in warnings] == [("42P01", 'skipping "brief" --- relation no longer exists')], warnings
            assert function in warnings[0][2], warnings
        # As on heap after a COMMIT.
        c.execute("CREATE TEMP TABLE brief (id int PRIMARY KEY) USING firn ON COMMIT DELETE ROWS")
        c.execute(f"""DO $$ BEGIN
            INSERT INTO brief SELECT generate_series(1, 300); {COMPACT.format("brief", 1)};
            IF EXISTS (SELECT FROM brief) THEN RAISE 'there are rows'; END IF; END $$""")
        c.execute("DROP TABLE brief; CREATE TEMP TABLE kept (id int PRIMARY KEY) USING firn")
        c.execute("SET firn.bulk_threshold = 1000000; SET firn.stripe_rows = 100")
        c.execute("INSERT INTO kept SELECT generate_series(1, 300)")
        c.execute(COMPACT.format("kept", 1))
        assert c.execute("SELECT count(*), sum(id) FROM kept").fetchone() == (300, 45150) and info(c, "kept")[0] >= 3
        # Dropped before the first piece and between two.
        for first in (True, False):
            fresh(c, 1000)
            with cluster.connect() as holder:
                if first:
                    holder.execute("BEGIN; LOCK TABLE f IN SHARE UPDATE EXCLUSIVE MODE")
                    call = Background(cluster, COMPACT.format("f", 2))
                    call.conn.add_notice_handler(lambda d: warnings.append((d.sqlstate, d.message_primary, d.message_hint)))
                    waits(c, call.pid)
                    warnings.clear()
                    holder.execute("DROP TABLE f; COMMIT")
                    assert outcome(call) is None, call.result
                else:
                    with stopped(cluster, COMPACT.format("f", 2), "f", "SET firn.stripe_rows = 100") as (call, other, _):
                        call.conn.add_notice_handler(lambda d: warnings.append((d.sqlstate, d.message_primary, d.message_hint)))
                        warnings.clear()
                        other.execute("DROP TABLE f; COMMIT")
                        assert outcome(call) is None, call.result
            assert warnings == [("42P01", 'skipping "f" --- relation no longer exists', None)], warnings


def partitions(cluster):
    """Partitions go one by one; one that is dropped meanwhile is left out, one that cannot be locked ends the call."""
    with cluster.connect() as c, cluster.connect() as other:
        parts(c)
        other.execute("BEGIN; LOCK TABLE p2 IN SHARE UPDATE EXCLUSIVE MODE")
        call = Background(cluster, COMPACT.format("p", 8), "SET firn.stripe_rows = 100")
        waits(c, call.pid)
        assert info(c, "p1")[0] == 3 and info(c, "p3")[0] == 0
        c.execute("DROP TABLE p3")
        other.execute("DROP TABLE p2; COMMIT")
        assert outcome(call) is None, call.result
        assert info(c, "p4")[0] == 3
        assert c.execute("SELECT count(*), sum(id) FROM p").fetchall() == c.execute(
            "SELECT count(*), sum(id) FROM h WHERE id < 600 OR id >= 1200").fetchall()
        # As VACUUM and REINDEX of a partitioned table do, without SKIP_LOCKED: an error, and the rest is undone by nobody.
        parts(c)
        other.execute("BEGIN; LOCK TABLE p3 IN SHARE UPDATE EXCLUSIVE MODE")
        c.execute("SET lock_timeout = '50ms'")
        expect(c, COMPACT.format("p", 8), "55P03")
        assert [info(c, f"p{n}")[0] for n in (1, 2, 3, 4)] == [3, 3, 0, 0]
        other.execute("ROLLBACK")
        c.execute("RESET lock_timeout")
        # A partition of partitions, one on heap, the parent gone in the middle.
        c.execute("CREATE TABLE p5 PARTITION OF p FOR VALUES FROM (2000) TO (3000) PARTITION BY RANGE (id)")
        c.execute("CREATE TABLE p51 PARTITION OF p5 FOR VALUES FROM (2000) TO (2100) USING firn")
        c.execute("CREATE TABLE p52 PARTITION OF p5 FOR VALUES FROM (2100) TO (2200) USING heap")
        c.execute("INSERT INTO p SELECT i, 'v' FROM generate_series(2000, 2199) i")
        c.execute(COMPACT.format("p", 8))
        assert [info(c, f"p{n}")[0] for n in (1, 2, 3, 4, 51)] == [3, 3, 3, 3, 1]
        for call in (OFFLOAD, LOAD):
            c.execute(call.format("p", 2))
            assert [cold(c, f"p{n}") for n in (1, 4, 51)] == ([3, 3, 1] if call is OFFLOAD else [0, 0, 0])
        assert not c.execute("SELECT * FROM firn.check('p')").fetchall()


def store_fails(cluster):
    """The store goes away in the middle of a table: the pieces before are cold, readable again when it is back."""
    folder = os.path.join(cluster.root, "cold")
    with cluster.connect() as c:
        fresh(c, 1000)
        c.execute("SELECT firn.compact('f')")
        with stopped(cluster, OFFLOAD.format("f", 3), "f") as (call, holder, watch):
            assert cold(watch, "f") == 3
            os.rename(folder, folder + "-away")
            os.mkdir(folder)
            shutil.chown(folder, "postgres", "postgres")
            holder.execute("ROLLBACK")
            ended = outcome(call)
            os.rmdir(folder)
            os.rename(folder + "-away", folder)
            assert ended == "HV00N", (ended, call.result)
        assert cold(c, "f") == 3
        intact(c)
        c.execute(OFFLOAD.format("f", 3))
        assert cold(c, "f") == 10
        intact(c)
        # Nothing is left of it: no intent, and no object that nobody needs.
        assert not c.execute("SELECT * FROM firn.unneeded('f')").fetchall()
        with stopped(cluster, LOAD.format("f", 3), "f", "SET firn.cache_size = 0") as (call, holder, watch):
            os.rename(folder, folder + "-away")
            holder.execute("ROLLBACK")
            ended = outcome(call)
            os.rename(folder + "-away", folder)
            assert ended == "HV00N", (ended, call.result)
        assert cold(c, "f") == 7
        intact(c)


def refusals(cluster):
    """Where it cannot commit it says so, and names the function; READ ONLY is PostgreSQL's error."""
    names = {COMPACT: "firn.compact()", OFFLOAD: "firn.offload()", LOAD: "firn.load()"}
    with cluster.connect() as c:
        fresh(c, 1000)
        c.execute("CREATE FUNCTION calls(text) RETURNS void LANGUAGE plpgsql AS 'BEGIN EXECUTE $1; END'")
        c.execute("CREATE PROCEDURE has_settings(text) LANGUAGE plpgsql SET work_mem = '1MB' AS 'BEGIN EXECUTE $1; END'")
        for call, function in names.items():
            call = call.format("f", 1)
            quoted = call.replace("'", "''")
            for sql, state, prepare in (
                    (call, "25001", "BEGIN"), (call, "25001", "BEGIN; SAVEPOINT a"), (f"SELECT 1; {call}", "25001", ""),
                    (f"DO $$ BEGIN {call}; EXCEPTION WHEN division_by_zero THEN NULL; END $$", "25001", ""),
                    (f"SELECT calls('{quoted}')", "2D000", ""), (f"CALL has_settings('{quoted}')", "2D000", "")):
                if prepare:
                    c.execute(prepare)
                e = expect(c, sql, state)
                assert function in e.diag.message_hint and "commits" in e.diag.message_detail, str(e)
                c.execute("ROLLBACK")
            for value in ("0", "-1", "NULL"):
                expect(c, call.replace(", 1)", f", {value})"), "22023")
            expect(c, call.replace("'f'", "NULL"), "22023")
            c.execute("SET default_transaction_read_only = on")
            expect(c, call, "25006")
            c.execute("SET default_transaction_read_only = off")
            expect(c, call.replace("'f'", "'h'"), "42809")
            expect(c, call.replace("'f'", "'0'"), "42P01")
        expect(c, OFFLOAD.format("f", 1).replace("'cold'", "'nowhere'"), "42704")
        expect(c, OFFLOAD.format("f", 1).replace("'cold'", "NULL"), "22023")
        assert info(c, "f") == (0, 0, 0)
        # Other procedures and DO may call it, in loops over cursors, too.
        c.execute("""DO $$ DECLARE r record; BEGIN
            FOR r IN SELECT n FROM generate_series(1, 3) n LOOP
                CALL firn.compact_in_pieces('f', 1); CALL firn.offload_in_pieces('f', 'cold'); CALL firn.load_in_pieces('f', 3);
            END LOOP; END $$""")
        c.execute("SET default_transaction_isolation = serializable")
        c.execute("UPDATE f SET n = n; CREATE TABLE IF NOT EXISTS h2 (id int)")
        c.execute(COMPACT.format("f", 2))
        c.execute("RESET default_transaction_isolation; DROP TABLE h2; DROP FUNCTION calls; DROP PROCEDURE has_settings")
        intact(c)


def rights(cluster):
    """Who may is asked of each table; a partition of another owner is left out with a warning."""
    warnings = []
    with cluster.connect() as c:
        c.add_notice_handler(lambda d: warnings.append(d.message_primary))
        c.execute("CREATE ROLE an_owner; CREATE ROLE a_stranger; GRANT CREATE ON SCHEMA public TO an_owner")
        parts(c)
        c.execute("ALTER TABLE p OWNER TO an_owner; ALTER TABLE p1 OWNER TO an_owner; ALTER TABLE p4 OWNER TO an_owner")
        for call in (COMPACT, OFFLOAD, LOAD):
            for table in ("p", "p1"):
                c.execute("SET ROLE a_stranger")
                expect(c, call.format(table, 2), "42501")
            c.execute("SET ROLE an_owner")
            expect(c, call.format("p2", 2), "42501")
            if call is OFFLOAD:
                expect(c, call.format("p", 2), "42501")
                c.execute("RESET ROLE; GRANT USAGE ON FOREIGN SERVER cold TO an_owner; SET ROLE an_owner")
            warnings.clear()
            c.execute(call.format("p", 8))
            what = {COMPACT: "compact", OFFLOAD: "offload", LOAD: "load"}[call]
            assert warnings == [f'skipping "p{n}" --- only its owner can {what} it' for n in (2, 3)], warnings
            c.execute("RESET ROLE")
            assert [info(c, f"p{n}")[0] for n in (1, 2, 3, 4)] == [3, 0, 0, 3]
            assert cold(c, "p1") == cold(c, "p4") == (3 if call is OFFLOAD else 0)
        # Code in an index runs with the rights of the table's owner, in each piece.
        c.execute("CREATE FUNCTION me(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS "
                  "'BEGIN RAISE NOTICE ''as %'', current_user; RETURN $1; END'")
        c.execute("CREATE INDEX ON p2 (me(id)); ALTER TABLE p2 OWNER TO an_owner")
        warnings.clear()
        c.execute(COMPACT.format("p2", 1))
        assert len(warnings) >= 300 and set(warnings) == {"as an_owner"}, warnings[:3]
        assert c.execute("SELECT current_user").fetchone() == ("postgres",)
        # A table that has become another's meanwhile.
        parts(c, 1, 900)
        c.execute("ALTER TABLE p1 OWNER TO an_owner")
        with stopped(cluster, COMPACT.format("p1", 2), "p1", "SET firn.stripe_rows = 100; SET ROLE an_owner") as (call, holder, _):
            holder.execute("ALTER TABLE p1 OWNER TO postgres; COMMIT")
            assert outcome(call) is None, call.result
            assert 1 <= info(c, "p1")[0] <= 3
        # A server that the caller may not use any more: what was done stays.
        parts(c, 2)
        c.execute("ALTER TABLE p OWNER TO an_owner; ALTER TABLE p1 OWNER TO an_owner; ALTER TABLE p2 OWNER TO an_owner; "
                  "SELECT firn.compact('p')")
        use = "{} USAGE ON FOREIGN SERVER cold {} an_owner"
        for table, before in (("p2", [3, 2]), ("p1", [2, 0])):
            c.execute(use.format("GRANT", "TO"))
            with stopped(cluster, OFFLOAD.format("p", 2), table, "SET ROLE an_owner") as (call, holder, _):
                c.execute(use.format("REVOKE", "FROM"))
                holder.execute("ROLLBACK")
                assert outcome(call) == "42501", call.result
            assert [cold(c, p) for p in ("p1", "p2")] == before, (table, cold(c, "p1"), cold(c, "p2"))
            c.execute("SELECT firn.load('p')")
        c.execute("DROP TABLE p, h; DROP FUNCTION me; DROP OWNED BY an_owner; DROP ROLE an_owner, a_stranger")


def progress(cluster):
    """firn.activity counts over all pieces and tables of a call."""
    with cluster.connect() as c:
        parts(c, 2, 1000)
        with stopped(cluster, COMPACT.format("p", 2), "p2", "SET firn.stripe_rows = 100") as (call, holder, watch):
            seen = watch.execute("SELECT command, relation::text, tables_done, tables_total, stripes_done, rows_done, bytes_done, "
                                 "bytes_total FROM firn.activity WHERE pid = %s", (call.pid,)).fetchone()
            assert seen[:4] == ("compact", "p2", 1, 2) and 1 <= seen[4] <= 3 and seen[5] >= 100, seen
            assert 0 < seen[6] < seen[7], seen
            holder.execute("ROLLBACK")
            assert outcome(call) is None, call.result
        assert not c.execute("SELECT * FROM firn.activity").fetchall()
        with stopped(cluster, OFFLOAD.format("p", 4), "p2") as (call, holder, watch):
            seen = watch.execute("SELECT command, relation::text, tables_done, stripes_done, stripes_total, bytes_done < bytes_total "
                                 "FROM firn.activity WHERE pid = %s", (call.pid,)).fetchone()
            assert seen == ("offload", "p2", 1, 4, info(watch, "p2")[0], True), seen
            holder.execute("ROLLBACK")
            assert outcome(call) is None, call.result


def many_partitions(cluster):
    """A partitioned table of thousands, and a lock table that has room for a few hundred."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS f, h, p")
        c.execute("SET firn.bulk_threshold = 1000000; SET client_min_messages = warning")
        c.execute("CREATE TABLE many (id int, v text) PARTITION BY RANGE (id)")
        c.execute(f"""DO $$ BEGIN FOR n IN 0 .. {MANY - 1} LOOP
            EXECUTE format('CREATE TABLE many%s (id int, v text) USING firn', n);
            EXECUTE format('INSERT INTO many%s SELECT i, ''v'' || i FROM generate_series(%s, %s) i', n, n * 10, n * 10 + 9);
            IF n % 20 = 19 THEN COMMIT; END IF; END LOOP; END $$""")
        c.execute(f"""DO $$ BEGIN FOR n IN 0 .. {MANY - 1} LOOP
            EXECUTE format('ALTER TABLE many ATTACH PARTITION many%s FOR VALUES FROM (%s) TO (%s)', n, n * 10, n * 10 + 10);
            IF n % 20 = 19 THEN COMMIT; END IF; END LOOP; END $$""")
        for call in ("firn.compact('many')", "firn.offload('many', 'cold')"):
            expect(c, f"SELECT {call}", "53200")
        c.execute(COMPACT.format("many", 4))
        assert c.execute("SELECT count(*), sum(stripes), sum(stripe_rows) FROM firn.tables WHERE relation::text LIKE 'many%'"
                         ).fetchone() == (MANY, MANY, MANY * 10)
        for call in ("firn.check('many')", "firn.repair('many')", "firn.repair('many', false)"):
            assert not c.execute(f"SELECT * FROM {call}").fetchall()
        c.execute(OFFLOAD.format("many", 4))
        for call in ("firn.unneeded('many')",):
            assert not c.execute(f"SELECT * FROM {call}").fetchall()
        assert c.execute("SELECT sum(cold_bytes) > 0, sum(local_bytes) FROM firn.tables WHERE relation::text ~ '^many'").fetchone() == (True, 0)
        assert c.execute("SELECT count(*), sum(id) FROM many WHERE id BETWEEN 1003 AND 1017").fetchone() == (15, 15150)
        c.execute(LOAD.format("many", 4))
        assert c.execute("SELECT sum(cold_bytes), sum(local_bytes) > 0 FROM firn.tables WHERE relation::text ~ '^many'").fetchone() == (0, True)


def locks_of_readers(cluster):
    """What only reads holds as many locks at its end as on heap, however many tables it has read."""
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND pid = pg_backend_pid()"
    with cluster.connect() as c:
        parts(c, 12, 100)
        c.execute("CREATE TABLE q (id int, v text) PARTITION BY RANGE (id)")
        for n in range(12):
            c.execute(f"CREATE TABLE q{n} PARTITION OF q FOR VALUES FROM ({100 + n * 100}) TO ({200 + n * 100}) USING heap")
        c.execute("INSERT INTO q TABLE p; CREATE INDEX ON p (id); CREATE INDEX ON q (id); SELECT firn.compact('p')")
        for query in ("SELECT count(*) FROM {}", "SELECT max(v) FROM {}", "SELECT v FROM {} WHERE id > 105 ORDER BY id",
                      "EXPLAIN SELECT * FROM {}", "TRUNCATE {}"):
            locks = {}
            for t in ("p", "q"):
                c.execute("BEGIN; SET LOCAL enable_seqscan = off")
                c.execute(query.format(t))
                locks[t] = c.execute(held).fetchone()[0]
                c.execute("ROLLBACK")
            assert locks["p"] == locks["q"], (query, locks)
        for call in ("firn.check('p')", "firn.repair('p')", "firn.repair('p', false)", "firn.unneeded('p')", "firn.stripes('p1')",
                     "firn.table_info('p1')", "firn.tables"):
            c.execute("BEGIN")
            c.execute(f"SELECT * FROM {call}")
            left = c.execute("SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE pid = pg_backend_pid() "
                             "AND (c.relname ~ '^p\\d' OR c.relkind = 't')").fetchall()
            c.execute("ROLLBACK")
            assert not left, (call, left)
        c.execute("DROP TABLE q")


CASES = {
    "pieces are transactions": each_piece_is_a_transaction,
    "pages are read once": pages_are_read_once,
    "writers and readers": writers_and_readers,
    "old snapshots": old_snapshots,
    "kills": killed,
    "ended by others": ended_by_others,
    "changed between pieces": changed_between_pieces,
    "dropped": dropped,
    "partitions": partitions,
    "store fails": store_fails,
    "refusals": refusals,
    "rights": rights,
    "progress": progress,
    "locks of readers": locks_of_readers,
    "many partitions": many_partitions,
}


def run(tally, pattern):
    chosen = [name for name in CASES if pattern in name]
    if not chosen:
        return
    cluster = Cluster("pieces", ["fsync=off", "autovacuum=off", "max_locks_per_transaction=10", "max_connections=10",
                                 "superuser_reserved_connections=0", "max_prepared_transactions=0", "max_wal_senders=0",
                                 "wal_level=minimal", "max_worker_processes=2", "deadlock_timeout=100ms"])
    try:
        cluster.create()
        folder = os.path.join(cluster.root, "cold")
        os.mkdir(folder)
        shutil.chown(folder, "postgres", "postgres")
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
            c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{folder}', max_retries '0')")
        for name in chosen:
            tally.case("pieces: " + name, lambda name=name: CASES[name](cluster))
        tally.case("pieces server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    """Nothing is told but of processes that cases have killed, and of tables that the procedures pass over."""
    found = [line for line in cluster.alarms('skipping ".*" --- ') if "terminated by signal 9" not in line]
    assert not found, found
