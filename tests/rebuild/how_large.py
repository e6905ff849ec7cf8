"""Which indexes are built anew, and how large they are then."""
from rebuild.common import KINDS, ROWS, WORKERS, clean, compact, fresh, sizes, small_enough, wait_until


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
        definitions = """SELECT i.*, relname, pg_get_indexdef(indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = indexrelid
            WHERE indrelid = 'f'::regclass ORDER BY indexrelid"""
        known = c.execute(definitions).fetchall()
        c.execute("VACUUM (INDEX_CLEANUP off) f")
        assert sizes(c, "f") == large
        c.execute("VACUUM (VERBOSE false) f")
        print("   ", {name: (pages, sizes(c, "f")[name]) for name, pages in large.items()}, flush=True)
        # To who has looked it up before (pg_dump under its snapshot) each index is what it was.
        assert known == c.execute(definitions).fetchall()
        before = dict(c.execute("SELECT relname, relfilenode FROM pg_class WHERE relname LIKE 'f\\_%'").fetchall())
        clean(c)
        # Nothing is due any more, and what grows by itself is not firn's to rebuild.
        c.execute("INSERT INTO f SELECT i + 1000000, r, t, n FROM f JOIN source ON i = id WHERE id % 7 = 0")
        c.execute("INSERT INTO h SELECT i + 1000000, r, t, n FROM h JOIN source ON i = id WHERE id % 7 = 0")
        c.execute("VACUUM f")
        assert before == dict(c.execute("SELECT relname, relfilenode FROM pg_class WHERE relname LIKE 'f\\_%'").fetchall())
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


def other_kinds(cluster):
    """Indexes that are no B-trees are built anew when a tenth of the rows has moved, once for each tenth."""
    kinds = {"hash": "hash (r)", "gist": "gist (p)", "gist_x": "gist (x)", "spgist": "spgist (t)", "gin": "gin (a)", "gin_x": "gin (x)"}
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS k, kh; SET firn.bulk_threshold = 1000000")
        for table, am in (("k", "firn"), ("kh", "heap")):
            c.execute(f"CREATE TABLE {table} (id int, r int, t text, p point, a int[], x tsvector, EXCLUDE USING gist (p WITH ~=)) USING {am} WITH (autovacuum_enabled = off)")
        for name, what in kinds.items():
            c.execute(f"CREATE INDEX k_{name} ON k USING {what}")
        make = """INSERT INTO {} SELECT i, (i * 7919::bigint % 1000003)::int, md5(i::text), point(i % 317, i / 317 + 0.5), ARRAY[i, i % 100],
            to_tsvector('simple', 'w' || i || ' x' || i % 300) FROM generate_series({}, {}) i ORDER BY md5(i::text)"""
        for table in ("k", "kh"):
            c.execute(make.format(table, 1, 20000))
        compact(c, "k")
        c.execute("VACUUM k")
        pages = """SELECT indexrelid::regclass::text, (pg_relation_filenode(indexrelid), pg_relation_size(indexrelid) / 8192) FROM pg_index WHERE indrelid = 'k'::regclass
            AND NOT indisexclusion ORDER BY 1"""

        def found():
            return {name: (int(x[0]), int(x[1])) for name, x in c.execute(pages).fetchall()}

        first = found()
        # A twentieth, and another one: the second makes a tenth.
        for part, rebuilt in ((0, False), (1, True)):
            for table in ("k", "kh"):
                c.execute(make.format(table, 20001 + 1300 * part, 21300 + 1300 * part))
            compact(c, "k")
            c.execute("VACUUM k")
            now = found()
            assert all((now[name][0] != first[name][0]) == rebuilt for name in now), (part, first, now)
        for name in now:
            c.execute(f"REINDEX INDEX {name}")
        fresh = found()
        print("   ", {name: (now[name][1], fresh[name][1]) for name in now}, flush=True)
        assert all(now[name][1] <= 1.1 * fresh[name][1] for name in now), (now, fresh)
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
        for condition in ("r = 7919", "t = md5('77')", "p <@ box '(3,3),(9,9)'", "a @> ARRAY[55]", "x @@ 'x77'"):
            both = [c.execute(f"SELECT id FROM {table} WHERE {condition} ORDER BY id").fetchall() for table in ("k", "kh")]
            assert both[0] == both[1] and both[0], condition
        assert not c.execute("SELECT * FROM firn.check('k')").fetchall()
        c.execute("DROP TABLE k, kh")
