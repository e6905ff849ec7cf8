"""What VACUUM FULL, CLUSTER, TRUNCATE and ALTER TABLE must leave in order: old snapshots over a rewrite, memory, TOAST
relations and their indexes, files swapped behind PostgreSQL's back. Heap is the oracle where it can be."""
import psycopg

from harness.cluster import Cluster
from trouble.common import Background, expect

# How a table is written anew, and the settings that make PostgreSQL do it so.
REWRITES = {
    "VACUUM FULL": (["VACUUM FULL t"], ""),
    "CLUSTER by index": (["CLUSTER t USING t_o"], "SET enable_sort = off; SET cpu_operator_cost = 100; SET random_page_cost = 0"),
    "CLUSTER by sorting": (["CLUSTER t USING t_o"], "SET enable_indexscan = off"),
    "VACUUM FULL twice": (["VACUUM FULL t", "VACUUM FULL t"], ""),
    "VACUUM FULL and CLUSTER": (["VACUUM FULL t", "CLUSTER t USING t_o", "MOVE", "VACUUM FULL t"], ""),
}
# What a session does whose snapshot is older than the moves and the rewrite.
OLD = [
    "SELECT count(*), sum(id), count(DISTINCT id), sum(n) FROM t",
    "SELECT id, n FROM t WHERE id IN (60, 61, 160, 161, 260) ORDER BY id FOR UPDATE",
    "UPDATE t SET n = n + 1000 WHERE id IN (55, 110, 160, 199, 201) RETURNING id, n",
    "DELETE FROM t WHERE id IN (56, 111, 162) RETURNING id",
    "SELECT count(*), sum(id), count(DISTINCT id), sum(n) FROM t",
    "SELECT id, n FROM t WHERE id IN (55, 56, 110, 111, 160, 162, 199) ORDER BY id",
    "SAVEPOINT s", "UPDATE t SET n = -n WHERE id BETWEEN 100 AND 140",
    "SELECT count(*), sum(id), sum(n) FROM t", "ROLLBACK TO s",
    "UPDATE t SET n = n + 1 WHERE id BETWEEN 100 AND 120",
    "INSERT INTO t VALUES (161, -161, 0) ON CONFLICT (id) DO UPDATE SET n = t.n + 5 RETURNING n",
    "SELECT count(*), sum(id), count(DISTINCT id), sum(n) FROM t",
]
# Changes of others between the snapshot and the rewrite; the old session must fail where it meets them.
CHANGED = [
    ("UPDATE t SET n = 7 WHERE id IN (70, 71)", "UPDATE t SET n = 0 WHERE id = 70"),
    ("UPDATE t SET n = 7 WHERE id = 72; UPDATE t SET n = 8 WHERE id = 72; DELETE FROM t WHERE id = 72", "DELETE FROM t WHERE id = 72"),
    ("DELETE FROM t WHERE id = 73", "SELECT n FROM t WHERE id = 73 FOR SHARE"),
    # (Heap forgets over a rewrite that a key was changed, and gives the key's lock: SHARE it must refuse.)
    ("UPDATE t SET id = 1074 WHERE id = 74", "SELECT n FROM t WHERE id = 74 FOR SHARE"),
    ("UPDATE t SET n = 7 WHERE id = 75; DELETE FROM t WHERE id = 75", "SELECT n FROM t WHERE id = 75 FOR KEY SHARE"),
]


def outcome(c, sql):
    try:
        cursor = c.execute(sql)
        rows = cursor.fetchall() if cursor.description else cursor.statusmessage
    except psycopg.Error as e:
        return sql, e.sqlstate
    return sql, sorted(rows) if isinstance(rows, list) else rows


class Table:
    """A table `t` of 250 rows, the first 50 deleted: rows move when it is written anew."""

    def __init__(self, cluster, am, settled):
        self.cluster, self.am = cluster, am
        self.c = cluster.connect()
        self.c.execute("DROP TABLE IF EXISTS child, t; SET firn.stripe_rows = 60; SET firn.bulk_threshold = 1000")
        self.c.execute(f"CREATE TABLE t (id int PRIMARY KEY, o int, n int) USING {am} WITH (autovacuum_enabled = off)")
        self.c.execute(f"CREATE TABLE child (id int REFERENCES t) USING {am}")
        self.c.execute("INSERT INTO t SELECT i, -(i * 37 % 251), i FROM generate_series(1, 250) i")
        self.c.execute("CREATE INDEX t_o ON t (o)")
        if settled:
            self.run("MOVE")
        self.c.execute("DELETE FROM t WHERE id <= 50")

    def old(self):
        """A session whose snapshot is of now and that has no lock on the table."""
        c = self.cluster.connect()
        c.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        return c

    def run(self, sql):
        if sql != "MOVE":
            self.c.execute(sql)
        elif self.am == "firn":
            self.c.execute("SELECT firn.compact('t')")

    def rewrite(self, how):
        statements, settings = REWRITES[how]
        self.c.execute(settings or "SELECT 1")
        for sql in statements:
            self.run(sql)
        self.c.execute("RESET ALL; SET firn.stripe_rows = 60; SET firn.bulk_threshold = 1000")

    def contents(self):
        rows = self.c.execute("SELECT * FROM t ORDER BY id").fetchall()
        self.c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
        by_index = self.c.execute("SELECT * FROM t WHERE id > 0 ORDER BY id").fetchall()
        self.c.execute("RESET enable_seqscan; RESET firn.enable_scan")
        assert rows == by_index, "the index says otherwise"
        if self.am == "firn":
            problems = self.c.execute("SELECT * FROM firn.check('t')").fetchall()
            assert not problems, problems
        return rows


def same(play):
    heap, firn = play("heap"), play("firn")
    for h, f in zip(heap, firn):
        assert h == f, f"\nheap {h}\nfirn {f}"
    assert len(heap) == len(firn)


def moved_then_rewritten(cluster, how, moves):
    """The rows move `moves` times after the snapshot, some from the row store for the second time."""
    def play(am):
        t = Table(cluster, am, False)
        done = []
        with t.old() as old:
            t.run("MOVE")
            if moves > 1:
                # Rows that come back to the row store and move again stay visible at their first place.
                t.run("INSERT INTO t SELECT i, -i, i FROM generate_series(300, 400) i")
                with cluster.connect() as other:
                    other.execute("SELECT pg_current_xact_id()")
                t.run("MOVE")
            t.rewrite(how)
            done += [outcome(old, sql) for sql in OLD]
            old.commit()
        return [*done, t.contents()]
    same(play)


def changed_then_rewritten(cluster, how, settled):
    """Others update and delete rows, of stripes or of the row store, before the rewrite."""
    def play(am):
        t = Table(cluster, am, settled)
        olds = [t.old() for _ in CHANGED]
        for change, _ in CHANGED:
            for sql in change.split("; "):
                t.run(sql)
        t.rewrite(how)
        done = []
        for old, (_, sql) in zip(olds, CHANGED):
            done.append(outcome(old, "SELECT count(*), sum(id), sum(n) FROM t WHERE id NOT IN (70, 71)"))
            done.append(outcome(old, "SELECT id, n FROM t WHERE id BETWEEN 69 AND 76"))
            done.append(outcome(old, sql))
            old.rollback()
            old.close()
        return [*done, t.contents()]
    same(play)


def key_held_over_a_rewrite(cluster, how, settled):
    """Who holds a row's key by its old version holds that of all later versions, in their new places."""
    def play(am):
        t = Table(cluster, am, settled)
        done = []
        with t.old() as old:
            t.run("UPDATE t SET n = 1 WHERE id IN (80, 81, 82)")
            t.run("UPDATE t SET n = 2 WHERE id IN (81, 82)")
            t.run("UPDATE t SET n = 3 WHERE id = 82")
            t.rewrite(how)
            done.append(outcome(old, "SELECT id FROM t WHERE id IN (80, 81, 82) FOR KEY SHARE"))
            t.c.execute("SET lock_timeout = '300ms'")
            for row in (80, 81, 82, 83):
                for sql in (f"UPDATE t SET n = 9 WHERE id = {row}", f"UPDATE t SET id = {row + 1000} WHERE id = {row}",
                            f"DELETE FROM t WHERE id = {row}"):
                    done.append(outcome(t.c, sql))
            t.c.execute("RESET lock_timeout")
            old.commit()
        return [*done, t.contents()]
    same(play)


def chains(cluster, how):
    """Versions of rows that are linked and wait for one another, in whatever order they are copied."""
    def play(am):
        t = Table(cluster, am, False)
        # A list that has to be translated, so that places are noted.
        early = t.old()
        t.run("MOVE")
        t.run("INSERT INTO t SELECT i, -i, i FROM generate_series(500, 560) i")
        late = t.old()
        for i in range(6):
            t.run(f"UPDATE t SET n = n + {i}, o = o * -1 WHERE id BETWEEN 500 AND 530")
        t.run("DELETE FROM t WHERE id BETWEEN 500 AND 505")
        t.run("BEGIN; UPDATE t SET n = 0 WHERE id > 500; ROLLBACK")
        t.rewrite(how)
        ask = "SELECT count(*), sum(id), sum(n), sum(o) FROM t"
        done = [outcome(c, ask) for c in (early, late, t.c)]
        done.append(outcome(late, "SELECT id FROM t WHERE id = 510 FOR KEY SHARE"))
        done.append(outcome(t.c, "SELECT id FROM t WHERE id IN (510, 511) FOR UPDATE SKIP LOCKED"))
        done.append(outcome(late, "UPDATE t SET n = 0 WHERE id = 511"))
        for c in (early, late):
            c.rollback()
            c.close()
        return [*done, t.contents()]
    same(play)


def rolled_back_updates(cluster, how):
    """A transaction clusters rows of its own, of which it has rolled back changes: all are there, and as before. (Heap, which is not asked, loses them on 18.6: nothing
    notes the rollback until somebody reads the rows, and the rewrite drops them along with the versions that were to replace them; 15.20 notes it.) Nobody reads between."""
    _, settings = REWRITES[how]
    for key, width, moved in (("PRIMARY KEY", 0, False), ("", 90, False), ("PRIMARY KEY", 90, True)):
        with cluster.connect() as c:
            ways = []
            c.add_notice_handler(lambda notice: ways.append(notice.message_primary))
            c.execute("DROP TABLE IF EXISTS child, t; SET firn.stripe_rows = 60; SET firn.bulk_threshold = 1000000")
            c.execute(f"CREATE TABLE t (id int {key}, o int, n int, v text) USING firn; CREATE INDEX t_o ON t (o); {settings}")
            if moved:
                # Rows that were there before, of which one in a stripe is changed as well.
                c.execute("INSERT INTO t SELECT i, -i, i, '' FROM generate_series(-40, -1) i; SELECT firn.compact('t')")
            c.execute(f"BEGIN; INSERT INTO t SELECT i, -(i * 37 % 251), i, repeat(md5(i::text), {width}) FROM generate_series(1, 250) i")
            expected = {i: i for i in range(1, 251)} | ({i: i for i in range(-40, 0)} if moved else {})
            c.execute("SAVEPOINT a; UPDATE t SET n = 0 WHERE o % 5 = 0; ROLLBACK TO a; SAVEPOINT b; DELETE FROM t WHERE o % 7 = 0; ROLLBACK TO b")
            c.execute("UPDATE t SET n = 1000 + n WHERE o % 11 = 0; SAVEPOINT c; UPDATE t SET n = -5 WHERE o % 3 = 0; UPDATE t SET n = -6 WHERE o % 9 = 0; ROLLBACK TO c")
            for i in expected:
                if (i if i < 0 else i * 37 % 251) % 11 == 0:
                    expected[i] += 1000
            c.execute("SELECT FROM t WHERE id BETWEEN 100 AND 110 FOR UPDATE; CLUSTER (VERBOSE) t USING t_o")
            assert ("using index scan" in ways[-2]) == (how == "CLUSTER by index"), ways
            for end in ("", "COMMIT"):
                c.execute(end) if end else None
                for setting in ("on", "off"):
                    c.execute(f"SET enable_seqscan = {setting}; SET firn.enable_scan = {setting}")
                    found = c.execute("SELECT id, n FROM t WHERE o < 300").fetchall()
                    assert len(found) == len(expected) and dict(found) == expected, (key, width, moved, end, set(expected.items()) ^ set(found))
                assert not c.execute("SELECT * FROM firn.check('t')").fetchall()
            c.execute("DROP TABLE t")


def lists_end(cluster):
    """A rewrite leaves out the lists that nobody can need any more, and the places that it does not know."""
    t = Table(cluster, "firn", False)
    lists = "SELECT count(*) FROM {} WHERE chunk_id = 3"
    toast = t.c.execute("SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 't'").fetchone()[0]
    t.run("MOVE")
    with t.old() as old:
        t.run("INSERT INTO t SELECT i, i, i FROM generate_series(300, 330) i")
        t.run("VACUUM FULL t")
        assert t.c.execute(lists.format(toast)).fetchone() == (0,), "lists from before every snapshot are kept"
        t.run("MOVE")
        assert t.c.execute(lists.format(toast)).fetchone() == (0,), "rows that a snapshot does not see have moved"
        old.rollback()
    with t.old() as old:
        t.run("MOVE")
        t.run("VACUUM FULL t")
        assert t.c.execute(lists.format(toast)).fetchone()[0] > 0, "a list that is needed is gone"
        old.rollback()


def memory(cluster):
    """The memory of VACUUM FULL and CLUSTER does not follow the size of the table."""
    def peak(rows, sql):
        with cluster.connect() as c:
            c.execute("DROP TABLE IF EXISTS m; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 20000")
            c.execute("CREATE TABLE m (id int PRIMARY KEY, v text) USING firn")
            c.execute("INSERT INTO m SELECT i, md5(i::text) || md5((-i)::text) FROM generate_series(1, %s) i" % rows)
            # Rows of the row store with old versions, and a snapshot that needs them.
            c.execute("SET firn.bulk_threshold = 100000000")
            c.execute("INSERT INTO m SELECT -i, repeat(md5(i::text), 30) FROM generate_series(1, %s / 20) i" % rows)
        with cluster.connect() as c:
            c.execute("SET maintenance_work_mem = '4MB'")
            c.execute(sql)
            with open(f"/proc/{c.info.backend_pid}/status") as f:
                status = dict(line.split(":", 1) for line in f)
            return int(status["VmHWM"].split()[0]) // 1024

    for sql in ("VACUUM FULL m", "CLUSTER m USING m_pkey"):
        small, large = peak(50_000, sql), peak(600_000, sql)
        assert large < small + 16, f"{sql}: {small} MB of a small table, {large} MB of one twelve times as large"


LACKING = """SELECT c.oid::regclass::text FROM pg_class c JOIN pg_am a ON a.oid = relam
    WHERE amname = 'firn' AND relkind IN ('r', 'm') AND reltoastrelid = 0"""


def toast_relations(cluster):
    """Every table has a TOAST relation from the statement on that makes it firn's, and stripes can be made."""
    ways = {
        "alter": "CREATE TABLE x (id int, v int) USING heap; INSERT INTO x SELECT i, i FROM generate_series(1, 99) i; "
                 "ALTER TABLE x SET ACCESS METHOD firn",
        "alter, with more": "CREATE TABLE x (id int, v int) USING heap; "
                            "ALTER TABLE x ADD w int DEFAULT 3, ALTER v TYPE bigint, SET ACCESS METHOD firn, ALTER v SET STATISTICS 5",
        "empty": "CREATE TABLE x () USING heap; ALTER TABLE x SET ACCESS METHOD firn; ALTER TABLE x ADD id int, ADD v int",
        "and back and forth": "CREATE TABLE x (id int, v int) USING firn; ALTER TABLE x SET ACCESS METHOD heap; "
                              "ALTER TABLE x SET ACCESS METHOD firn",
        "materialized view": "CREATE TABLE y (id int, v int) USING heap; CREATE MATERIALIZED VIEW x USING heap AS TABLE y; "
                             "ALTER MATERIALIZED VIEW x SET ACCESS METHOD firn; REFRESH MATERIALIZED VIEW x",
        "materialized view, concurrently": "CREATE MATERIALIZED VIEW x USING heap AS SELECT i AS id, i AS v FROM generate_series(1, 9) i; "
                                           "CREATE UNIQUE INDEX ON x (id); ALTER MATERIALIZED VIEW x SET ACCESS METHOD firn; "
                                           "REFRESH MATERIALIZED VIEW CONCURRENTLY x",
        "partition": "CREATE TABLE y (id int, v int) PARTITION BY LIST (id); CREATE TABLE x PARTITION OF y DEFAULT USING heap; "
                     "ALTER TABLE x SET ACCESS METHOD firn",
        "attached": "CREATE TABLE y (id int, v int) PARTITION BY LIST (id); CREATE TABLE x (id int, v int) USING heap; "
                    "ALTER TABLE x SET ACCESS METHOD firn; ALTER TABLE y ATTACH PARTITION x DEFAULT",
        "child": "CREATE TABLE y (id int) USING heap; CREATE TABLE x (v int) INHERITS (y) USING heap; ALTER TABLE x SET ACCESS METHOD firn",
        "temporary": "CREATE TEMP TABLE x (id int, v int) USING heap; ALTER TABLE x SET ACCESS METHOD firn",
        "unlogged": "CREATE UNLOGGED TABLE x (id int, v int) USING heap; ALTER TABLE x SET ACCESS METHOD firn; ALTER TABLE x SET LOGGED",
        "block": "DO $$BEGIN CREATE TABLE x (id int, v int) USING heap; ALTER TABLE x SET ACCESS METHOD firn; "
                 "ALTER TABLE x ALTER v SET STATISTICS 10; END$$",
        "function": "CREATE FUNCTION make() RETURNS void LANGUAGE plpgsql AS 'BEGIN EXECUTE ''CREATE TABLE x (id int, v int) USING heap''; "
                    "EXECUTE ''ALTER TABLE x SET ACCESS METHOD firn''; END'; SELECT make(); DROP FUNCTION make()",
        "created in a block": "DO $$BEGIN CREATE TABLE x (id int, v int) USING firn; END$$",
        "event trigger": "CREATE FUNCTION convert() RETURNS event_trigger LANGUAGE plpgsql AS $$DECLARE r record; BEGIN "
                         "FOR r IN SELECT * FROM pg_event_trigger_ddl_commands() WHERE command_tag = 'CREATE TABLE' LOOP "
                         "EXECUTE format('ALTER TABLE %s SET ACCESS METHOD firn', r.object_identity); END LOOP; END$$; "
                         "CREATE EVENT TRIGGER convert ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION convert(); "
                         "CREATE TABLE x (id int, v int) USING heap; DROP EVENT TRIGGER convert; DROP FUNCTION convert()",
        "one transaction": "BEGIN; CREATE TABLE x (id int, v int) USING heap; SAVEPOINT s; ALTER TABLE x SET ACCESS METHOD firn; "
                           "ROLLBACK TO s; ALTER TABLE x SET ACCESS METHOD firn; ALTER TABLE x ALTER v SET STATISTICS 10; COMMIT",
        "rolled back": "CREATE TABLE x (id int, v int) USING heap; BEGIN; ALTER TABLE x SET ACCESS METHOD firn; ROLLBACK; "
                       "ALTER TABLE x SET ACCESS METHOD firn",
    }
    for name, script in ways.items():
        with cluster.connect() as c:
            c.execute("SET firn.bulk_threshold = 10")
            for sql in script.split("; ") if "$$" not in script and "AS '" not in script else [script]:
                c.execute(sql)
            assert not c.execute(LACKING).fetchall(), f"{name}: without a TOAST relation"
            if "VIEW" not in script:
                c.execute("INSERT INTO x (id, v) SELECT i, i FROM generate_series(1, 50) i; SELECT firn.compact('x')")
                assert c.execute("SELECT count(*) > 0 FROM firn.stripes('x')").fetchone()[0], f"{name}: no stripes"
                for weak in ("ALTER v SET STATISTICS 10", "SET (fillfactor = 90)", "ALTER v SET (n_distinct = 5)",
                             "ADD CONSTRAINT k CHECK (v > 0) NOT VALID", "VALIDATE CONSTRAINT k"):
                    c.execute(f"ALTER TABLE x {weak}")
            c.execute(f"DROP {'MATERIALIZED VIEW' if 'VIEW' in script else 'TABLE'} x; DROP TABLE IF EXISTS y")


def tables_of_old(cluster):
    """A table without TOAST relation, as earlier versions left some: no statement fails, many heal it."""
    make = """DROP TABLE IF EXISTS x; CREATE TABLE x (id int PRIMARY KEY, v int) USING heap;
        SET allow_system_table_mods = on; UPDATE pg_class SET relam = (SELECT oid FROM pg_am WHERE amname = 'firn') WHERE relname = 'x';
        RESET allow_system_table_mods; INSERT INTO x SELECT i, i FROM generate_series(1, 50) i"""
    weak = ["ALTER TABLE x ALTER v SET STATISTICS 10", "ALTER TABLE x SET (fillfactor = 90)", "ALTER TABLE x CLUSTER ON x_pkey",
            "ALTER TABLE x ADD CONSTRAINT k CHECK (v > 0) NOT VALID", "VACUUM x", "ANALYZE x", "CREATE INDEX ON x (v)",
            "BEGIN; LOCK x IN ACCESS EXCLUSIVE MODE; ALTER TABLE x ALTER v SET STATISTICS 20; COMMIT"]
    strong = ["ALTER TABLE x ADD w int", "ALTER TABLE x ALTER v TYPE bigint", "VACUUM FULL x", "CLUSTER x USING x_pkey",
              "ALTER TABLE x RENAME v TO w", "ALTER TABLE x DROP v", "ALTER TABLE x SET UNLOGGED"]
    for heal in strong:
        with cluster.connect() as c:
            c.execute("SET firn.bulk_threshold = 10")
            for sql in make.split(";"):
                c.execute(sql)
            assert c.execute(LACKING).fetchall() == [("x",)]
            for sql in weak[:-1]:
                c.execute(sql)
            c.execute(heal)
            assert not c.execute(LACKING).fetchall(), f"not healed by {heal}"
            assert c.execute("SELECT count(*), sum(id) FROM x").fetchone() == (50, 1275)
            c.execute("INSERT INTO x (id) SELECT i FROM generate_series(51, 90) i; SELECT firn.compact('x')")
            assert c.execute("SELECT count(*), sum(id) FROM x").fetchone() == (90, 4095)
            assert c.execute("SELECT count(*) > 0 FROM firn.stripes('x')").fetchone()[0]
            assert not c.execute("SELECT * FROM firn.check('x')").fetchall()
    with cluster.connect() as c:
        for sql in make.split(";") + weak[-1].split(";"):
            c.execute(sql)
        assert c.execute("SELECT count(*) FROM x").fetchone() == (50,)
        c.execute("DROP TABLE x")


LEFT_OVER = """SELECT x.relname FROM pg_class c JOIN pg_index i ON i.indrelid = c.reltoastrelid JOIN pg_class x ON x.oid = i.indexrelid
    WHERE c.relname = 'x' AND i.indisready AND NOT i.indisvalid"""


def other_tablespace(cluster):
    """SET TABLESPACE gives table and TOAST relation other files, and the table's indexes none: what a rollback would take back of
    the one and leave of the other goes to the row store. (What a rollback leaves of that is heap's: it gives the rows' places out again, and
    keys lead to others or nowhere until a REINDEX.)"""
    def stripes():
        return c.execute("SELECT coalesce(sum(rows), 0) FROM firn.stripes('ts')").fetchone()[0]
    with cluster.connect() as c:
        c.execute("SET allow_in_place_tablespaces = on; SET firn.bulk_threshold = 0")
        c.execute("CREATE TABLESPACE other LOCATION ''")
        c.execute("CREATE TABLE ts (id int PRIMARY KEY, v text) USING firn; INSERT INTO ts SELECT i, 'v' FROM generate_series(1, 20) i")
        for reindex, inside in (("", 20), ("REINDEX TABLE ts", 40)):
            c.execute(f"BEGIN; SAVEPOINT a; ALTER TABLE ts SET TABLESPACE other; {reindex}")
            c.execute("INSERT INTO ts SELECT i, 'v' FROM generate_series(101, 120) i")
            assert c.execute("SELECT count(*) FROM ts").fetchone() == (40,) and stripes() == inside, (reindex, stripes())
            c.execute("ROLLBACK TO a; COMMIT; REINDEX TABLE ts")
            assert not c.execute("SELECT * FROM firn.check('ts')").fetchall()
        c.execute("ALTER TABLE ts SET TABLESPACE other")
        c.execute("INSERT INTO ts SELECT i, 'v' FROM generate_series(201, 220) i")
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
        assert c.execute("SELECT count(*), sum(id) FROM ts WHERE id > 0").fetchone() == (40, 210 + 4210) and stripes() == 40
        c.execute("DROP TABLE ts")
        c.execute("DROP TABLESPACE other")


def left_over_indexes(cluster):
    """What a REINDEX CONCURRENTLY leaves that is interrupted takes entries, but is not built anew: it goes with the
    rows that it knows."""
    new = {
        "VACUUM FULL": "VACUUM FULL x", "CLUSTER": "CLUSTER x USING x_pkey", "TRUNCATE": "TRUNCATE x",
        "TRUNCATE twice": "BEGIN; TRUNCATE x; TRUNCATE x; COMMIT", "rolled back": "BEGIN; TRUNCATE x; ROLLBACK; VACUUM FULL x",
    }
    for name, script in new.items():
        with cluster.connect() as c, cluster.connect() as old:
            c.execute("DROP TABLE IF EXISTS x; SET firn.bulk_threshold = 5")
            c.execute("CREATE TABLE x (id int PRIMARY KEY, v text) USING firn")
            c.execute("INSERT INTO x SELECT i, i::text FROM generate_series(1, 3000) i; DELETE FROM x WHERE id % 7 = 0")
            c.execute("SELECT id FROM x WHERE id < 20 FOR SHARE")
            old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
            reindex = Background(cluster, "REINDEX TABLE CONCURRENTLY x", "SET statement_timeout = '3s'")
            try:
                reindex.finish()
                raise AssertionError("REINDEX waited for nobody")
            except psycopg.errors.QueryCanceled:
                pass
            old.rollback()
            assert c.execute(LEFT_OVER).fetchall(), "nothing is left over"
            for sql in script.split("; "):
                c.execute(sql)
            assert not c.execute(LEFT_OVER).fetchall(), f"{name}: left over"
            c.execute("DELETE FROM x")
            for i in range(4):
                c.execute(f"INSERT INTO x SELECT i + {i} * 1000, repeat(md5(i::text), 200) FROM generate_series(1, 40) i")
                c.execute("SET firn.bulk_threshold = 1000")
                c.execute(f"INSERT INTO x SELECT i + 500 + {i} * 1000, repeat(md5(i::text), 200) FROM generate_series(1, 40) i")
                c.execute("SET firn.bulk_threshold = 5; SELECT id FROM x WHERE id % 5 = 0 FOR UPDATE; SELECT firn.compact('x')")
                c.execute("UPDATE x SET v = 'new' WHERE id % 6 = 0; DELETE FROM x WHERE id % 7 = 0")
            assert not c.execute("SELECT * FROM firn.check('x')").fetchall()
            c.execute("DROP TABLE x")


SWAP = [
    "CREATE TEMP TABLE of AS SELECT oid, relname, reltoastrelid AS toast FROM pg_class WHERE relname IN ('original', 'copy')",
    """UPDATE pg_class a SET relfilenode = b.relfilenode, reltoastrelid = b.reltoastrelid, relfrozenxid = b.relfrozenxid,
       relminmxid = b.relminmxid FROM pg_class b WHERE (a.relname, b.relname) IN (('original', 'copy'), ('copy', 'original'))""",
    "UPDATE pg_depend d SET refobjid = b.oid FROM of a, of b WHERE d.objid = a.toast AND d.refobjid = a.oid AND a.oid <> b.oid",
    "UPDATE pg_class c SET relname = 'pg_swap_' || b.oid FROM of a, of b WHERE c.oid = a.toast AND a.oid <> b.oid",
    """UPDATE pg_class c SET relname = 'pg_swap_' || b.oid || '_index' FROM pg_index i, of a, of b
       WHERE i.indrelid = a.toast AND c.oid = i.indexrelid AND a.oid <> b.oid""",
    "UPDATE pg_class SET relname = replace(relname, 'swap', 'toast') WHERE relname LIKE 'pg_swap_%'",
]
HEAL = ["SET allow_system_table_mods = on",
        "UPDATE pg_class SET relam = (SELECT oid FROM pg_am WHERE amname = 'firn') WHERE oid = 'original'::regclass",
        """INSERT INTO pg_depend (classid, objid, objsubid, refclassid, refobjid, refobjsubid, deptype)
           SELECT 'pg_class'::regclass, 'original'::regclass, 0, 'pg_am'::regclass, oid, 0, 'n' FROM pg_am WHERE amname = 'firn'""",
        "RESET allow_system_table_mods", "ALTER TABLE original SET ACCESS METHOD heap"]


def swapped_files(cluster):
    """pg_repack's swap of a heap table's files with those of a copy that is firn's: no row is missing unnoticed."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS original, copy, of; SET firn.bulk_threshold = 10")
        c.execute("CREATE TABLE original (id int PRIMARY KEY, v text) USING heap")
        c.execute("INSERT INTO original SELECT i, i::text FROM generate_series(1, 100) i")
        c.execute("CREATE TABLE copy (id int, v text) USING firn; INSERT INTO copy TABLE original")
        toast = "(SELECT reltoastrelid FROM pg_class WHERE relname = 'copy')"
        c.execute("SET allow_system_table_mods = on")
        if not c.execute("SELECT 1 FROM pg_am WHERE amname = 'firn_toast'").fetchone():
            c.execute("CREATE ACCESS METHOD firn_toast TYPE TABLE HANDLER heap_tableam_handler")
            c.execute(f"UPDATE pg_class SET relam = (SELECT oid FROM pg_am WHERE amname = 'firn_toast') WHERE oid = {toast}")
        c.execute("PREPARE p AS SELECT count(*) FROM original; EXECUTE p")
        c.execute("BEGIN; LOCK original, copy IN ACCESS EXCLUSIVE MODE")
        for sql in SWAP:
            c.execute(sql)
        c.execute("COMMIT; RESET allow_system_table_mods")
        for sql in ("SELECT * FROM original", "SELECT count(*) FROM original", "EXECUTE p", "SELECT v FROM original WHERE id = 5",
                    "COPY original TO STDOUT", "COPY (TABLE original) TO STDOUT", "COPY original FROM '/dev/null'",
                    "DELETE FROM original", "UPDATE original SET v = 'x' WHERE id = 3", "INSERT INTO original VALUES (999, 'x')",
                    "VACUUM FULL original", "VACUUM FULL", "CLUSTER original USING original_pkey",
                    "CREATE INDEX ON original (v)", "ALTER TABLE original SET ACCESS METHOD firn", "ALTER TABLE original ALTER v TYPE int USING 1",
                    "CREATE TABLE more AS TABLE original", "DO $$BEGIN PERFORM * FROM original; END$$",
                    "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM original", "EXPLAIN SELECT * FROM original",
                    "SELECT * FROM copy c JOIN original o ON c.id = o.id"):
            error = expect(c, sql, "55000")
            assert "original" in str(error) and error.diag.message_detail and error.diag.message_hint, error
        c.execute("VACUUM original")
        for sql in HEAL:
            c.execute(sql)
        c.execute("REINDEX TABLE original")
        assert c.execute("SELECT count(*), sum(id) FROM original").fetchone() == (100, 5050)
        c.execute("DROP TABLE original, copy, of")


def run(tally, pattern):
    cluster = Cluster("rewrites", ["shared_buffers=16MB", "autovacuum=off"]).create()
    cases = {}
    for how in REWRITES:
        cases[f"moved, then {how}"] = lambda how=how: moved_then_rewritten(cluster, how, 1)
        cases[f"chains of versions, {how}"] = lambda how=how: chains(cluster, how)
        for settled, place in ((True, "stripes"), (False, "the row store")):
            cases[f"changed in {place}, then {how}"] = lambda how=how, settled=settled: changed_then_rewritten(cluster, how, settled)
            cases[f"key held of a row of {place}, {how}"] = lambda how=how, settled=settled: key_held_over_a_rewrite(cluster, how, settled)
    cases |= {
        "moved twice, then VACUUM FULL": lambda: moved_then_rewritten(cluster, "VACUUM FULL", 2),
        "lists that nobody needs": lambda: lists_end(cluster),
        **{f"updates that were rolled back, {how}": lambda how=how: rolled_back_updates(cluster, how) for how in ("CLUSTER by index", "CLUSTER by sorting")},
        "memory": lambda: memory(cluster),
        "TOAST relations": lambda: toast_relations(cluster),
        "tables of earlier versions": lambda: tables_of_old(cluster),
        "left-over indexes": lambda: left_over_indexes(cluster),
        "swapped files": lambda: swapped_files(cluster),
        "other tablespace": lambda: other_tablespace(cluster),
    }
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
        for name, body in cases.items():
            if pattern in name:
                tally.case(f"rewrites {name}", body)
        tally.case("rewrites server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()
