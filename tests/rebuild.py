"""Indexes that a compaction has left half empty are built anew after VACUUM: by the command, by a background process after
autovacuum; others are not kept waiting, nothing is left over, and it is never VACUUM that fails."""
import os
import random
import threading
import time

import psycopg

from harness.cluster import Cluster
from vacuum import sound

# Indexes by what is special about them: what CREATE INDEX says.
KINDS = {
    "ascending": "UNIQUE INDEX {} ON f (id)", "random": "INDEX {} ON f (r)", "text": "INDEX {} ON f (t)",
    "roomy": "INDEX {} ON f (r) WITH (fillfactor = 70)", "several": "INDEX {} ON f (n, t)", "unique": "UNIQUE INDEX {} ON f (t, id)",
    "partial": "INDEX {} ON f (r) WHERE n < 50", "expression": "INDEX {} ON f (upper(t))", "equal": "INDEX {} ON f (n)",
    "apart": "INDEX {} ON f (n) WITH (deduplicate_items = off)", "down": "INDEX {} ON f (r DESC NULLS LAST) INCLUDE (n)",
}
ROWS = "i, (i * 7919::bigint % 1000003)::int, md5(i::text), i % 100"
WORKERS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'firn index rebuild'"
INVALID = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid OR NOT indislive"
# Slow or failing where a session (or database) is told so.
TRAP = """CREATE OR REPLACE FUNCTION trap(a int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN
    CASE current_setting('test.trap', true)
        WHEN 'fail' THEN RAISE 'trapped';
        WHEN 'sleep' THEN PERFORM pg_sleep(0.02);
        WHEN 'wait' THEN PERFORM pg_advisory_xact_lock_shared(77);
        ELSE NULL;
    END CASE; RETURN a; END$$"""


def wait_until(what, condition, seconds=120):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, what
        time.sleep(0.2)


def small_enough(c, table):
    """Each B-tree of a table and its TOAST relation: its pages, and those that it has after a REINDEX."""
    found = sizes(c, table)
    for index in found:
        c.execute(f"REINDEX INDEX {index}")
    fresh = sizes(c, table)
    return {index: (found[index], fresh[index]) for index in found if found[index] > 32 and found[index] > 1.1 * fresh[index]}


def sizes(c, table):
    return dict(c.execute("""SELECT indexrelid::regclass::text, pg_relation_size(indexrelid) / 8192 FROM pg_index JOIN pg_class x ON x.oid = indexrelid
        WHERE relam = 403 AND indrelid IN (%(t)s::regclass, (SELECT reltoastrelid FROM pg_class WHERE oid = %(t)s::regclass)) ORDER BY 1""",
        {"t": table}).fetchall())


def fresh(c, kinds, rows=30000, seed=1):
    """Rows in the row store, in a random order and several statements, as sessions would write them."""
    c.execute("DROP TABLE IF EXISTS f, h CASCADE")
    c.execute("RESET ALL")
    c.execute("SET firn.bulk_threshold = 1000000")
    for table, am in (("f", "firn"), ("h", "heap")):
        c.execute(f"CREATE TABLE {table} (id int, r int, t text, n int) USING {am} WITH (autovacuum_enabled = off)")
    for name in kinds:
        c.execute("CREATE " + KINDS.get(name, name).format("f_" + (name if name in KINDS else "trap")))
    c.execute("CREATE TEMP TABLE IF NOT EXISTS source AS SELECT 1 AS i")
    c.execute(f"TRUNCATE source; SELECT setseed(0.{seed}); INSERT INTO source SELECT i FROM generate_series(1, {rows}) i ORDER BY random()")
    for part in range(3):
        for table in ("f", "h"):
            c.execute(f"INSERT INTO {table} SELECT {ROWS} FROM source WHERE i % 3 = {part}")


def compact(c):
    # A snapshot of autovacuum's or of another case's process may keep rows from being settled.
    wait_until("nothing is settled", lambda: c.execute("SELECT firn.compact('f')").fetchone()[0] > 0)


def equal(c):
    for settings in ("RESET enable_seqscan; RESET firn.enable_scan", "SET enable_seqscan = off; SET firn.enable_scan = off"):
        c.execute(settings)
        for query in ("SELECT count(*), sum(id), sum(r::bigint), min(t), max(t) FROM {}", "SELECT id, r FROM {} WHERE id BETWEEN 100 AND 130 ORDER BY id",
                      "SELECT id FROM {} WHERE n = 17 ORDER BY id", "SELECT id FROM {} WHERE r BETWEEN 500 AND 900 ORDER BY id"):
            assert c.execute(query.format("f")).fetchall() == c.execute(query.format("h")).fetchall(), (settings, query)
    c.execute("RESET enable_seqscan; RESET firn.enable_scan")


def clean(c):
    assert not c.execute(INVALID).fetchall(), c.execute(INVALID).fetchall()
    equal(c)
    sound(c, "f")


def all_kinds(cluster):
    with cluster.connect() as c:
        fresh(c, KINDS)
        compact(c)
        c.execute("SET firn.rebuild_indexes = off")
        c.execute("VACUUM f")
        large = sizes(c, "f")
        c.execute("VACUUM (INDEX_CLEANUP off) f")
        assert sizes(c, "f") == large
        c.execute("SET firn.rebuild_indexes = on")
        c.execute("VACUUM (INDEX_CLEANUP off) f")
        assert sizes(c, "f") == large
        c.execute("VACUUM (VERBOSE false) f")
        print("   ", {name: (pages, sizes(c, "f")[name]) for name, pages in large.items()}, flush=True)
        before = dict(c.execute("SELECT relname, oid FROM pg_class WHERE relname LIKE 'f\\_%'").fetchall())
        clean(c)
        # Nothing is due any more, and what grows by itself is not firn's to rebuild.
        c.execute("INSERT INTO f SELECT i + 1000000, r, t, n FROM f JOIN source ON i = id WHERE id % 7 = 0")
        c.execute("INSERT INTO h SELECT i + 1000000, r, t, n FROM h JOIN source ON i = id WHERE id % 7 = 0")
        c.execute("VACUUM f")
        assert before == dict(c.execute("SELECT relname, oid FROM pg_class WHERE relname LIKE 'f\\_%'").fetchall())
        compact(c)
        c.execute("VACUUM f")
        clean(c)
        assert not small_enough(c, "f"), small_enough(c, "f")


def sizes_are_right(cluster):
    """No index is more than 1.1 times as large as REINDEX makes it, for several seeds, and compactions one after the other."""
    with cluster.connect() as c:
        for seed in (2, 3):
            fresh(c, KINDS, 20000, seed)
            compact(c)
            c.execute("VACUUM f")
            c.execute(f"INSERT INTO f SELECT {ROWS} FROM generate_series(500001, 506000) i")
            compact(c)
            c.execute("DELETE FROM f WHERE n = 3")
            c.execute("VACUUM f")
            wrong = small_enough(c, "f")
            assert not wrong, (seed, wrong)


def of_the_toast_relation(cluster):
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS wide")
        c.execute("SET firn.bulk_threshold = 1000000")
        c.execute("CREATE TABLE wide (id int PRIMARY KEY, v text) USING firn WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        c.execute("ALTER TABLE wide ALTER v SET STORAGE EXTERNAL")
        c.execute("INSERT INTO wide SELECT i, repeat(md5(i::text), 150) FROM generate_series(1, 7000) i")
        c.execute("CREATE TABLE copy AS TABLE wide")
        wait_until("nothing is settled", lambda: c.execute("SELECT firn.compact('wide')").fetchone()[0] > 0)
        c.execute("SET firn.rebuild_indexes = off")
        c.execute("VACUUM wide")
        large = sizes(c, "wide")
        assert [n for i, n in large.items() if "toast" in i][0] > 50, large
        c.execute("SET firn.rebuild_indexes = on")
        c.execute("VACUUM wide")
        print("   ", {name: (pages, sizes(c, "wide")[name]) for name, pages in large.items()}, flush=True)
        assert not small_enough(c, "wide")
        assert c.execute("SELECT count(*) FROM wide w JOIN copy c USING (id, v)").fetchone()[0] == 7000
        sound(c, "wide")
        c.execute("DROP TABLE wide, copy")


def autovacuum_does_it_too(cluster):
    with cluster.connect() as c:
        fresh(c, ["ascending", "random"])
        compact(c)
        c.execute("ALTER TABLE f SET (autovacuum_enabled = on, autovacuum_vacuum_threshold = 10, autovacuum_vacuum_scale_factor = 0)")
        c.execute("ALTER SYSTEM SET autovacuum = on")
        c.execute("SELECT pg_reload_conf()")
        ends = {"f_ascending": 100, "f_random": 100}
        try:
            wait_until("autovacuum leaves indexes large", lambda: all(sizes(c, "f")[i] < n for i, n in ends.items()))
            wait_until("it does not end", lambda: c.execute(WORKERS).fetchone()[0] == 0)
        finally:
            c.execute("ALTER SYSTEM RESET autovacuum")
            c.execute("SELECT pg_reload_conf()")
        clean(c)
        assert not small_enough(c, "f")


def long_readers_are_not_waited_for(cluster):
    with cluster.connect() as c, cluster.connect() as other:
        fresh(c, ["random"])
        compact(c)
        c.execute("VACUUM f")
        fresh_size = sizes(c, "f")["f_random"]
        fresh(c, ["random"])
        compact(c)
        # VACUUM removes the old entries; then somebody reads.
        c.execute("SET firn.rebuild_indexes = off")
        c.execute("VACUUM f")
        large = sizes(c, "f")["f_random"]
        assert large > 1.3 * fresh_size, (large, fresh_size)
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM h")
        c.execute("SET firn.rebuild_indexes = on")
        c.execute("VACUUM f")
        assert sizes(c, "f")["f_random"] == large
        # A process waits for him, and does it when he has ended; others go.
        wait_until("nobody waits", lambda: c.execute(WORKERS).fetchone()[0] == 1)
        c.execute("VACUUM f")
        wait_until("more wait than one", lambda: c.execute(WORKERS).fetchone()[0] <= 1)
        assert not c.execute(INVALID).fetchall()
        other.execute("COMMIT")
        wait_until("nobody rebuilds", lambda: sizes(c, "f")["f_random"] == fresh_size)
        wait_until("it does not end", lambda: c.execute(WORKERS).fetchone()[0] == 0)
        clean(c)


def old_entries_are_waited_for(cluster):
    """While a snapshot needs the old entries, an index is as large as a new one; its turn comes afterwards."""
    with cluster.connect() as c, cluster.connect() as other:
        fresh(c, ["random"])
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        compact(c)
        c.execute("VACUUM f")
        large = sizes(c, "f")["f_random"]
        other.execute("COMMIT")
        c.execute("VACUUM f")
        assert sizes(c, "f")["f_random"] < 0.8 * large
        assert not small_enough(c, "f")
        clean(c)


def sessions_write_meanwhile(cluster):
    seed = int(os.environ.get("FIRN_SEED", random.randrange(1 << 30)))
    stop, failures = threading.Event(), []

    def writer(number):
        rng = random.Random(seed + number)
        try:
            with cluster.connect() as c:
                while not stop.is_set():
                    low = 10000 * number + rng.randint(1, 9000)
                    new = 1000000 * (number + 1) + rng.randint(1, 900000)
                    sql = rng.choice((f"UPDATE @ SET r = r + 1, n = (n + 7) % 100 WHERE id BETWEEN {low} AND {low + 9}",
                                      f"DELETE FROM @ WHERE id BETWEEN {low} AND {low + 3}",
                                      f"INSERT INTO @ SELECT i, i % 1000, 'x' || i, i % 100 FROM generate_series({new}, {new + 9}) i WHERE NOT EXISTS (SELECT FROM @ WHERE id = i)",
                                      f"UPDATE @ SET id = id + 50000000 WHERE id = {low} AND id < 50000000"))
                    try:
                        with c.transaction():
                            for table in ("h", "f"):
                                c.execute(sql.replace("@", table))
                    except psycopg.errors.UniqueViolation:
                        pass
        except Exception as e:  # noqa: BLE001 - told below
            failures.append(e)

    with cluster.connect() as c:
        fresh(c, ["ascending", "random", "text", "equal"])
        c.execute("CREATE UNIQUE INDEX h_id ON h (id)")
        threads = [threading.Thread(target=writer, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        try:
            indexes = "SELECT relname, oid FROM pg_class WHERE relname LIKE 'f\\_%'"
            known = set(c.execute(indexes).fetchall())
            for _ in range(4):
                compact(c)
                c.execute("VACUUM f")
                time.sleep(0.5)
            rebuilt = set(c.execute(indexes).fetchall()) - known
        finally:
            stop.set()
            for t in threads:
                t.join()
        assert not failures, (seed, failures[:3])
        wait_until("it does not end", lambda: c.execute(WORKERS).fetchone()[0] == 0)
        assert rebuilt, "nothing was rebuilt meanwhile"
        c.execute("VACUUM f")
        clean(c)


def errors_are_warnings(cluster):
    with cluster.connect() as c:
        said = []
        c.add_notice_handler(lambda d: said.append((d.severity, d.message_primary, d.message_detail)))
        c.execute(TRAP)
        for trap, text in (("fail", "trapped"), ("sleep", "canceling statement due to statement timeout")):
            fresh(c, ["INDEX {} ON f (trap(r))", "random"])
            compact(c)
            c.execute("SET firn.rebuild_indexes = off")
            c.execute("VACUUM f")
            large = sizes(c, "f")
            c.execute(f"SET firn.rebuild_indexes = on; SET test.trap = '{trap}'")
            if trap == "sleep":
                c.execute("SET statement_timeout = '10s'")
            said.clear()
            c.execute("VACUUM f")
            c.execute("RESET statement_timeout")
            assert [(s, m) for s, m, _ in said] == [("WARNING", 'could not rebuild index "f_trap"')], said
            assert text in said[0][2], said
            assert sizes(c, "f")["f_trap"] == large["f_trap"]
            assert trap == "sleep" or sizes(c, "f")["f_random"] < large["f_random"]
            c.execute("RESET test.trap")
            clean(c)
            # The session is as any other: no lock is left, and the next VACUUM does it.
            assert not c.execute("SELECT relation::regclass FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'ShareUpdateExclusiveLock'").fetchall()
            c.execute("VACUUM f")
            assert not small_enough(c, "f")
            clean(c)


def crashes_leave_nothing(cluster):
    for point in ("rebuild-made", "rebuild-built", "rebuild-swapped", "rebuild-dead"):
        with cluster.connect() as c:
            fresh(c, ["random", "ascending"])
            # Somebody's own failure is his.
            c.execute("INSERT INTO f VALUES (1000001, 1, 'twice', 1), (1000002, 1, 'twice', 1)")
            c.execute("INSERT INTO h VALUES (1000001, 1, 'twice', 1), (1000002, 1, 'twice', 1)")
            try:
                c.execute("CREATE UNIQUE INDEX CONCURRENTLY f_random_ccnew ON f (t)")
                raise AssertionError("it is not unique")
            except psycopg.errors.UniqueViolation:
                pass
            compact(c)
            c.execute(f"SET firn.crash_point = '{point}'")
            try:
                c.execute("VACUUM f")
                raise AssertionError(f"{point} was not reached")
            except psycopg.OperationalError:
                pass
        cluster.wait_recovered()
        with cluster.connect() as c:
            left = {name for (name,) in c.execute(INVALID)}
            assert len(left) == 2, (point, left)
            equal(c)
            c.execute("VACUUM f")
            assert c.execute(INVALID).fetchall() == [("f_random_ccnew",)], (point, c.execute(INVALID).fetchall())
            c.execute("DROP INDEX f_random_ccnew")
            clean(c)
            assert not small_enough(c, "f"), point


def whoever_wants_the_lock_gets_it(cluster):
    """Where REINDEX CONCURRENTLY would end his transaction by a deadlock, or keep him waiting."""
    with cluster.connect() as c, cluster.connect() as other, cluster.connect() as watch:
        c.execute(TRAP)
        for who in ("command", "worker"):
            fresh(c, ["INDEX {} ON f (trap(r))"])
            compact(c)
            c.execute("SET firn.rebuild_indexes = off")
            c.execute("VACUUM f")
            watch.execute("SELECT pg_advisory_lock(77)")
            watch.execute("ALTER DATABASE postgres SET test.trap = 'wait'")
            if who == "command":
                c.execute("SET firn.rebuild_indexes = on; SET test.trap = 'wait'")
                command = threading.Thread(target=lambda: c.execute("VACUUM f"))
                command.start()
            else:
                # A reader who is there when VACUUM looks, so that it leaves the work to the process.
                other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
                c.execute("SET firn.rebuild_indexes = on")
                c.execute("VACUUM f")
                other.execute("COMMIT")
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_until("nothing is built", lambda: watch.execute(waits).fetchone()[0] == 1)
            other.execute("BEGIN")
            other.execute("INSERT INTO f VALUES (-1, -1, '', 0); INSERT INTO h VALUES (-1, -1, '', 0)")
            watch.execute("SELECT pg_advisory_unlock(77)")
            watch.execute("ALTER DATABASE postgres RESET test.trap")
            other.execute("ALTER TABLE f ADD COLUMN more int")
            other.execute("ALTER TABLE f DROP COLUMN more")
            other.execute("COMMIT")
            if who == "command":
                command.join()
            wait_until("it does not end", lambda: watch.execute(WORKERS).fetchone()[0] == 0)
            c.execute("RESET test.trap")
            c.execute("VACUUM f")
            wait_until("it does not end", lambda: watch.execute(WORKERS).fetchone()[0] == 0)
            clean(c)
            assert not small_enough(c, "f"), who


def databases_can_be_dropped(cluster):
    with cluster.connect() as admin:
        admin.execute("CREATE DATABASE gone")
        with cluster.connect("gone") as c, cluster.connect("gone") as other:
            c.execute("CREATE EXTENSION firn")
            c.execute(TRAP)
            fresh(c, ["INDEX {} ON f (trap(r))"])
            compact(c)
            c.execute("SET firn.rebuild_indexes = off")
            c.execute("VACUUM f")
            c.execute("SET firn.rebuild_indexes = on")
            other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT 1")
            admin.execute("ALTER DATABASE gone SET test.trap = 'sleep'")
            c.execute("VACUUM f")
            other.execute("COMMIT")
            wait_until("nothing is built", lambda: admin.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'firn index rebuild' AND wait_event = 'PgSleep'").fetchone()[0] == 1)
        wait_until("sessions stay", lambda: admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = 'gone' AND backend_type = 'client backend'").fetchone()[0] == 0)
        admin.execute("DROP DATABASE gone")
        assert admin.execute(WORKERS).fetchone()[0] == 0


def other_tables(cluster):
    """Partitions, temporary and unlogged tables, exclusion constraints, other kinds of indexes, whole databases at once."""
    with cluster.connect() as c:
        said = []
        c.add_notice_handler(lambda d: said.append((d.severity, d.message_primary, d.message_detail)))
        c.execute("DROP TABLE IF EXISTS f, h, parted CASCADE")
        c.execute("SET firn.bulk_threshold = 1000000")
        shape = "(id int, r int, t text, n int)"
        c.execute(f"CREATE TABLE parted {shape} PARTITION BY RANGE (id)")
        c.execute("CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (1000000) USING firn")
        c.execute("ALTER TABLE parted ADD PRIMARY KEY (id)")
        c.execute("CREATE INDEX parted_r ON parted (r)")
        c.execute("ALTER TABLE part CLUSTER ON part_r_idx")
        c.execute(f"CREATE TEMP TABLE own {shape} USING firn")
        c.execute(f"CREATE UNLOGGED TABLE unlogged {shape} USING firn")
        c.execute(f"CREATE TABLE plain {shape} USING firn")
        c.execute("ALTER TABLE plain ADD EXCLUDE USING btree (id WITH =)")
        c.execute("ALTER TABLE plain ADD CONSTRAINT plain_later UNIQUE (t) DEFERRABLE INITIALLY DEFERRED")
        c.execute("CREATE INDEX ON plain USING hash (r)")
        names = ("part", "own", "unlogged", "plain")
        for name in names[1:]:
            c.execute(f"CREATE INDEX {name}_r ON {name} (r)")
        for name in names:
            c.execute(f"INSERT INTO {name} SELECT {ROWS} FROM generate_series(1, 20000) i ORDER BY md5(i::text)")
            wait_until("nothing is settled", lambda: c.execute(f"SELECT firn.compact('{name}')").fetchone()[0] > 0)
        before = {name: sizes(c, name) for name in names}
        c.execute("VACUUM (INDEX_CLEANUP) parted")
        c.execute("VACUUM")
        for name in names:
            wrong = {i: n for i, n in small_enough(c, name).items() if i != "plain_id_excl"}
            assert not wrong, (name, wrong, before[name])
        assert not [s for s in said if s[0] == "WARNING"], said
        assert not c.execute(INVALID).fetchall()
        assert c.execute("SELECT count(*) FROM pg_inherits WHERE inhrelid IN ('part_pkey'::regclass, 'part_r_idx'::regclass)").fetchone()[0] == 2
        assert c.execute("SELECT indisclustered FROM pg_index WHERE indexrelid = 'part_r_idx'::regclass").fetchone()[0]
        assert c.execute("SELECT condeferred FROM pg_constraint WHERE conname = 'plain_later' AND conindid = 'plain_later'::regclass").fetchone()[0]
        assert c.execute("SELECT indisunique AND NOT indimmediate FROM pg_index WHERE indexrelid = 'plain_later'::regclass").fetchone()[0]
        # Deferred is what it was, and primary keys refuse what comes twice.
        c.execute("BEGIN; UPDATE plain SET t = 'x' WHERE id IN (1, 2); UPDATE plain SET t = 'y' WHERE id = 2; COMMIT")
        for sql, code in (("UPDATE plain SET t = 'y' WHERE id = 1", "23505"), ("INSERT INTO part SELECT * FROM part WHERE id = 5", "23505")):
            try:
                c.execute(sql)
                raise AssertionError(f"{sql}: is not refused")
            except psycopg.Error as e:
                assert e.sqlstate == code, (sql, e)
        sound(c, "part", "unlogged", "plain")
        for name in names:
            assert c.execute(f"SELECT count(*), sum(id) FROM {name} WHERE r >= 0").fetchone() == (20000, 200010000)
        # Nothing depends on the access method but tables.
        assert not c.execute("SELECT 1 FROM pg_depend d JOIN pg_class c ON c.oid = d.objid WHERE refclassid = 'pg_am'::regclass AND relkind = 'i'").fetchall()
        c.execute("DROP TABLE parted, own, unlogged, plain")


def several_at_once(cluster):
    """VACUUM in several sessions: none fails, none waits for another for ever, and all indexes are small in the end."""
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 1000000")
        names = [f"many{i}" for i in range(6)]
        for name in names:
            c.execute(f"CREATE TABLE {name} (id int, r int) USING firn")
            c.execute(f"CREATE INDEX {name}_r ON {name} (r)")
            c.execute(f"INSERT INTO {name} SELECT i, (i * 7919::bigint % 1000003)::int FROM generate_series(1, 30000) i")
            wait_until("nothing is settled", lambda: c.execute(f"SELECT firn.compact('{name}')").fetchone()[0] > 0)
        failures = []

        def vacuum(part):
            try:
                with cluster.connect() as s:
                    for name in names[part::3]:
                        s.execute(f"VACUUM {name}")
            except psycopg.Error as e:
                failures.append(e)

        threads = [threading.Thread(target=vacuum, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failures, failures
        wait_until("they stay large", lambda: all(sizes(c, name)[f"{name}_r"] < 95 for name in names))
        wait_until("it does not end", lambda: c.execute(WORKERS).fetchone()[0] == 0)
        assert not c.execute(INVALID).fetchall()
        for name in names:
            assert not small_enough(c, name), small_enough(c, name)
            c.execute(f"DROP TABLE {name}")


CASES = [all_kinds, sizes_are_right, of_the_toast_relation, autovacuum_does_it_too, long_readers_are_not_waited_for,
         old_entries_are_waited_for, sessions_write_meanwhile, errors_are_warnings, crashes_leave_nothing,
         whoever_wants_the_lock_gets_it, databases_can_be_dropped, other_tables, several_at_once]


def run(tally, pattern):
    cluster = Cluster("rebuild", ["firn.rebuild_indexes=on", "fsync=off", "autovacuum=off", "autovacuum_naptime=1s", "restart_after_crash=on"]).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn; CREATE EXTENSION amcheck; CREATE EXTENSION pageinspect")
        for case in CASES:
            name = case.__name__.replace("_", " ")
            if pattern in name:
                tally.case(f"rebuild: {name}", lambda: case(cluster))
        tally.case("rebuild server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    # The crash points end sessions by a signal.
    said = [line for line in cluster.alarms() if "terminated by signal 9" not in line]
    assert not said, said
