"""Errors and crashes in a rebuild, and what they leave."""
import threading

import psycopg

from harness.cluster import version
from rebuild.common import INVALID, KINDS, TRAP, clean, compact, equal, fresh, sizes, small_enough, wait_until


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


def left_overs_go(cluster):
    """Whatever has become of a left-over since: nobody is refused for it, and the next VACUUM takes it away."""
    for what in ("REINDEX TABLE f", "VACUUM FULL f", "ALTER TABLE f ALTER n TYPE bigint; ALTER TABLE h ALTER n TYPE bigint", "DROP INDEX f_ascending",
                 "ALTER TABLE f ALTER id TYPE bigint; ALTER TABLE h ALTER id TYPE bigint", "ALTER TABLE f SET ACCESS METHOD heap",
                 "CREATE TABLE over (LIKE f) PARTITION BY RANGE (id); ALTER TABLE over ATTACH PARTITION f DEFAULT", "SELECT * FROM firn.repair('f', false)",
                 "ALTER TYPE shape ALTER ATTRIBUTE id TYPE bigint CASCADE; ALTER TABLE h ALTER id TYPE bigint"):
        with cluster.connect() as c:
            fresh(c, ["ascending"], 15000)
            if "shape" in what:
                c.execute("CREATE TYPE shape AS (id int, r int, t text, n int); ALTER TABLE f OF shape")
            compact(c)
            c.execute("SET firn.crash_point = 'rebuild-swapped'")
            try:
                c.execute("VACUUM f")
                raise AssertionError("not reached")
            except psycopg.OperationalError:
                pass
        cluster.wait_recovered()
        with cluster.connect() as c:
            of_f = "SELECT indexrelid::regclass::text, indisvalid, indisunique FROM pg_index WHERE indrelid = 'f'::regclass ORDER BY 1"
            assert c.execute(of_f).fetchall() == [("f_ascending", True, True), ("f_ascending_ccnew", False, False)]
            said = c.execute(what)
            if "repair" in what:
                said = said.fetchall()
                assert [(s[0], s[1], s[2]) for s in said] == [('index "f_ascending_ccnew"', "drop it, as a rebuild that did not end has left it", True)], said
                assert c.execute(of_f).fetchall() == [("f_ascending", True, True)]
            elif "DROP" in what:
                for t in ("f", "h"):
                    c.execute(f"INSERT INTO {t} SELECT * FROM {t} WHERE id <= 100")
                equal(c)
            elif "ALTER" in what:
                assert c.execute(of_f).fetchall() == [("f_ascending", True, True)], what
            else:
                assert c.execute(of_f).fetchall()[1] == ("f_ascending_ccnew", True, False), what
            c.execute("VACUUM f")
            assert c.execute(of_f).fetchall() == [("f_ascending", True, True)][:0 if "DROP" in what else 1], what
            c.execute("DROP TABLE IF EXISTS over; " if "over" in what else "")
            if "heap" in what or "over" in what:
                equal(c) if "heap" in what else None
                continue
            clean(c)


def left_overs_are_not_cloned(cluster):
    """CREATE TABLE … (LIKE …) clones the indexes that others have made, each of them, and none that a rebuild has left."""
    clones = """SELECT pg_get_indexdef(indexrelid), obj_description(indexrelid) FROM pg_index WHERE indrelid = 'like_{}'::regclass ORDER BY 1, 2"""
    like = ["CREATE TABLE like_{0} (LIKE {0} INCLUDING INDEXES)", "CREATE TABLE like_{0} (m bigint, LIKE {0} INCLUDING ALL EXCLUDING STATISTICS) USING {1}",
            "CREATE TABLE like_{0} (LIKE other_{0} INCLUDING ALL, LIKE {0} INCLUDING ALL)", "CREATE TEMP TABLE {0} (LIKE public.{0} INCLUDING INDEXES); ALTER TABLE {0} RENAME TO like_{0}",
            "SET search_path = public, pg_temp; CREATE TEMP TABLE {0} (m bigint, LIKE public.{0} INCLUDING INDEXES); ALTER TABLE pg_temp.{0} RENAME TO like_{0}; RESET search_path",
            "DO $$BEGIN CREATE TABLE like_{0} (LIKE {0} INCLUDING INDEXES, LIKE {0}); EXCEPTION WHEN OTHERS THEN CREATE TABLE like_{0} (LIKE {0} INCLUDING INDEXES); END$$",
            # Another that fails, within.
            "CREATE FUNCTION within() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN IF set_config('a.b', current_setting('a.b', true) || '+', true) = '+' THEN "
            "CREATE TABLE h (LIKE h INCLUDING INDEXES); END IF; EXCEPTION WHEN duplicate_table THEN NULL; END$$; SET LOCAL a.b = ''; CREATE EVENT TRIGGER within "
            "ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION within(); CREATE TABLE like_{0} (LIKE {0} INCLUDING INDEXES); DROP FUNCTION within CASCADE"]
    for kind, before in (("ascending", []), ("random", []), ("random", ["CREATE INDEX {0}_second ON {0} (r)", "CREATE INDEX {0}_third ON {0} (r)", "COMMENT ON INDEX {0}_third IS 'third'"]),
                         ("partial", ["CREATE INDEX {0}_second ON {0} (r) WHERE n < 50"]), ("expression", ["CREATE INDEX {0}_second ON {0} (upper(t)) WITH (fillfactor = 70)"])):
        with cluster.connect() as c:
            fresh(c, [kind], 15000)
            c.execute("CREATE " + KINDS[kind].format(f"h_{kind}").replace(" ON f ", " ON h "))
            c.execute(f"COMMENT ON INDEX f_{kind} IS 'first'; COMMENT ON INDEX h_{kind} IS 'first'")
            compact(c)
            c.execute("SET firn.crash_point = 'rebuild-swapped'")
            try:
                c.execute("VACUUM f")
                raise AssertionError("not reached")
            except psycopg.OperationalError:
                pass
        cluster.wait_recovered()
        with cluster.connect() as c:
            for t, am in (("f", "firn"), ("h", "heap")):
                c.execute(f"CREATE TABLE other_{t} (o int PRIMARY KEY, p text) USING {am}; CREATE INDEX ON other_{t} (p)")
                for sql in before:
                    c.execute(sql.format(t))
            assert c.execute(INVALID).fetchall() == [(f"f_{kind}_ccnew",)]
            for sql in like:
                made = []
                for t, am in (("f", "firn"), ("h", "heap")):
                    c.execute(sql.format(t, am))
                    made.append([(d.replace(f"like_{t}", "like").replace(f"INDEX {t}_", "INDEX "), text) for d, text in c.execute(clones.format(t))])
                    c.execute(f"DROP TABLE like_{t}")
                assert made[0] == made[1], (kind, sql, made)
            c.execute("DROP TABLE other_f, other_h")
            c.execute("VACUUM f")
            clean(c)
    with cluster.connect() as c:
        # Where nothing is made nobody asks for the other table's rights, nor whether it is there.
        c.execute("CREATE SCHEMA hidden; CREATE ROLE nobody; GRANT ALL ON SCHEMA public TO nobody; SET ROLE nobody")
        c.execute("CREATE TABLE IF NOT EXISTS h (LIKE hidden.f INCLUDING INDEXES)")
        c.execute("RESET ROLE; DROP SCHEMA hidden; DROP OWNED BY nobody; DROP ROLE nobody")


def cancelled_rebuilds_are_not_forgotten(cluster):
    """VACUUM is cancelled in a B-tree: the next one builds the indexes of other kinds, too."""
    with cluster.connect() as c:
        c.execute(TRAP)
        fresh(c, ["INDEX {} ON f (trap(r))", "INDEX f_hash ON f USING hash (t)"])
        compact(c)
        c.execute("SET firn.rebuild_indexes = off")
        c.execute("VACUUM f")
        pages = "SELECT pg_relation_size('f_hash') / 8192"
        large = c.execute(pages).fetchone()[0]
        c.execute("SET firn.rebuild_indexes = on; SET test.trap = 'sleep'; SET statement_timeout = '10s'")
        c.execute("VACUUM f")
        assert c.execute(pages).fetchone()[0] == large
        c.execute("RESET statement_timeout; RESET test.trap")
        c.execute("VACUUM f")
        built = c.execute(pages).fetchone()[0]
        c.execute("REINDEX INDEX f_hash")
        assert built <= 1.1 * c.execute(pages).fetchone()[0] < 1.1 * large, (large, built)
        clean(c)


def left_overs_are_not_attached(cluster):
    """CREATE INDEX on a partitioned table does not take a left-over for the partition's index."""
    with cluster.connect() as c:
        fresh(c, ["ascending"], 15000)
        c.execute("CREATE TABLE over (LIKE f) PARTITION BY RANGE (id); ALTER TABLE over ATTACH PARTITION f DEFAULT")
        compact(c)
        c.execute("SET firn.crash_point = 'rebuild-swapped'")
        try:
            c.execute("VACUUM f")
            raise AssertionError("not reached")
        except psycopg.OperationalError:
            pass
    cluster.wait_recovered()
    with cluster.connect() as c:
        c.execute("CREATE INDEX over_id ON over (id)")
        found = c.execute("SELECT indexrelid::regclass::text, indisvalid FROM pg_index WHERE indrelid IN ('f'::regclass, 'over'::regclass) ORDER BY 1").fetchall()
        assert found == [("f_ascending", True), ("f_id_idx", True), ("over_id", True)], found
        c.execute("VACUUM f")
        clean(c)
        c.execute("DROP TABLE over CASCADE")


def altered_while_it_is_made(cluster):
    """A statement comes when the copy of an index is being made, and beside a reader, so that it cannot be dropped: nothing is left, of
    a partition neither. CREATE INDEX of its parent does not wait for the reader, whether the copy has been committed (and waits for a
    writer) or not; what is out of use is left to VACUUM."""
    for statement, writes in (("ALTER TABLE f ALTER r TYPE bigint", False), ("ALTER TABLE over ALTER r TYPE bigint", False),
                              ("CREATE INDEX over_r ON over (r)", False), ("CREATE INDEX over_r ON over (r)", True)):
        with cluster.connect() as c, cluster.connect() as catalog, cluster.connect() as reader, cluster.connect() as writer:
            fresh(c, ["random"], 15000)
            if "over" in statement:
                c.execute("CREATE TABLE over (LIKE f) PARTITION BY RANGE (id); ALTER TABLE over ATTACH PARTITION f DEFAULT")
            compact(c)
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"

            def run(sql):
                with cluster.connect() as other:
                    other.execute("SET firn.rebuild_indexes = on")
                    other.execute(sql)

            # The process that does what the command has put off would make another copy.
            c.execute("ALTER DATABASE postgres SET firn.rebuild_indexes = off")
            catalog.execute("BEGIN; LOCK TABLE pg_depend IN SHARE MODE")
            threads = []
            for sql, waited_for in (("VACUUM f", "pg_depend"), (statement, "f")):
                threads.append(threading.Thread(target=run, args=(sql,)))
                threads[-1].start()
                wait_until(sql, lambda: c.execute(waits, (waited_for,)).fetchone()[0] == 1)
                if waited_for == "pg_depend":
                    reader.execute("BEGIN; SELECT count(*) FROM f")
                    if writes:
                        writer.execute("BEGIN; DELETE FROM f WHERE id = 1")
                        catalog.execute("ROLLBACK")
                        wait_until("copy", lambda: c.execute(INVALID + " AND indislive").fetchall())
            catalog.execute("ROLLBACK")
            # VACUUM gives way, and leaves the copy as the reader uses it.
            threads[0].join()
            assert c.execute(INVALID).fetchall() == [("f_random_ccnew",)], c.execute(INVALID).fetchall()
            writer.execute("ROLLBACK")
            if "CREATE" in statement:
                threads[1].join(60)
                assert not threads[1].is_alive(), "waits for the reader"
            reader.execute("ROLLBACK")
            threads[1].join()
            if "CREATE" in statement:
                assert c.execute(INVALID).fetchall() == [("f_random_ccnew",)]

                # It waits for nobody: whoever looks at the table at that moment, such as autovacuum, leaves it to the next one.
                def cleared():
                    c.execute("VACUUM f")
                    return not c.execute(INVALID).fetchall()

                wait_until("what is left is removed", cleared)
                attached = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'over_r'::regclass"
                assert c.execute(attached).fetchall() == [("f_random",)]
                assert c.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'over_r'::regclass").fetchone() == (True,)
            found = c.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'f'::regclass").fetchall()
            assert found == [("f_random",)], (statement, found)
            c.execute("ALTER TABLE h ALTER r TYPE bigint; ALTER DATABASE postgres RESET firn.rebuild_indexes")
            clean(c)
            c.execute("DROP TABLE IF EXISTS over CASCADE")


def who_is_at_work_elsewhere_is_not_waited_for(cluster):
    """Partitions that a statement leaves alone may be locked, others as the statement locks them: it waits for nobody. (From 18 on
    PostgreSQL itself waits for more, of heaps as well: a constraint asks each partition for its own.)"""
    with cluster.connect() as c, cluster.connect() as other:
        for am in ("heap", "firn"):
            c.execute("DROP TABLE IF EXISTS p; CREATE TABLE p (id int NOT NULL, n int) PARTITION BY RANGE (id)")
            for i in range(2):
                c.execute(f"CREATE TABLE p{i} PARTITION OF p FOR VALUES FROM ({i}) TO ({i + 1}) USING {am}")
            waits = statements_that_wait(c, other)
            print(f"     {am} waits in: {', '.join(waits) or 'none'}")
            assert waits == (["ALTER TABLE p ADD UNIQUE (id)", "ALTER TABLE p ADD PRIMARY KEY (id)"] if version() >= 18 else []), (am, waits)
        c.execute("SET lock_timeout = '10s'")
        # Both go on beside each other, and readers beside them.
        c.execute("BEGIN; LOCK TABLE p0 IN SHARE MODE")
        other.execute("BEGIN; SET LOCAL lock_timeout = '10s'; LOCK TABLE p0 IN SHARE MODE; CREATE INDEX ON p (n)")
        c.execute("CREATE INDEX ON p (n); COMMIT")
        with cluster.connect() as reader:
            reader.execute("SET lock_timeout = '10s'")
            assert reader.execute("SELECT count(*) FROM p0").fetchone() == (0,)
        other.execute("COMMIT")
        c.execute("DROP TABLE p")


def statements_that_wait(c, other):
    """Of those that leave a partition alone, or lock it as another has it, those that wait for the other."""
    found = []
    c.execute("SET lock_timeout = '5s'")
    for lock, statement in (
            ("SHARE", "CREATE INDEX ON p (n)"), ("SHARE", "ALTER TABLE p ADD UNIQUE (id)"), ("ACCESS SHARE", "ALTER TABLE p ADD PRIMARY KEY (id)"),
            ("ACCESS SHARE", "ALTER TABLE p ADD COLUMN IF NOT EXISTS n int"),
            ("SHARE UPDATE EXCLUSIVE", "ALTER TABLE p DETACH PARTITION p0"),
            ("SHARE UPDATE EXCLUSIVE", "ALTER TABLE p ATTACH PARTITION p0 FOR VALUES FROM (0) TO (1)"),
            ("SHARE UPDATE EXCLUSIVE", "ALTER TABLE p OWNER TO CURRENT_USER"),
            ("SHARE", "ALTER TABLE ONLY p ALTER n SET DEFAULT 7")):
        other.execute(f"BEGIN; LOCK TABLE p1 IN {lock} MODE")
        try:
            c.execute(statement)
        except psycopg.errors.LockNotAvailable:
            found.append(statement)
        other.execute("ROLLBACK")
    return found
