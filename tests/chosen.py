"""Which plans are taken of tables with stripes, and what they say of themselves: used by the suite `reading`."""
import threading
import time

import psycopg

from harness.cluster import version
from harness.tally import Missing


def explain(c, query, options="COSTS OFF"):
    return "\n".join(line for line, in c.execute(f"EXPLAIN ({options}) {query}").fetchall())


def index_only_scans(cluster):
    """Where the index has all that is asked for, it is taken as of a heap whose pages are all visible: of few rows, in the rows' order or not, and whether or not some are deleted.
    (Of many a scan is quicker.)"""
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0")
        for am in ("heap", "firn"):
            c.execute(f"CREATE TABLE only_{am} (id int, k int, v text) USING {am}; CREATE INDEX ON only_{am} (id); CREATE INDEX ON only_{am} (k)")
            c.execute(f"INSERT INTO only_{am} SELECT i, (i::bigint * 7919) % 1000, md5(i::text) FROM generate_series(1, 100000) i")
            c.execute(f"VACUUM ANALYZE only_{am}")
        for deleted in (0, 4):
            for am in ("heap", "firn"):
                c.execute(f"DELETE FROM only_{am} WHERE id % 25000 = 7 AND {deleted} > 0")
                c.execute(f"VACUUM ANALYZE only_{am}")
            for column in ("id", "k"):
                for rows in (1, 10, 100, 900, 5000, 50000):
                    above = 5000 + rows if column == "id" else rows // 100
                    query = f"SELECT {column} FROM only_%s WHERE {column} BETWEEN {above - rows + 1 if column == 'id' else 0} AND {above}"
                    plans = [explain(c, query % am) for am in ("heap", "firn")]
                    assert "Index Only Scan" in plans[0] and ("Index Only Scan" if rows < 10000 else "FirnScan") in plans[1], plans

        def prices():
            return [float(explain(c, f"SELECT k FROM only_{am} WHERE k < 100", "COSTS ON").split("..")[1].split()[0]) for am in ("heap", "firn")]

        # Rows of the row store cost a look at them until VACUUM has seen that all see them, beside stripes as well.
        for am in ("heap", "firn"):
            c.execute(f"SET firn.bulk_threshold = 1000000; INSERT INTO only_{am} SELECT i, i % 1000, md5(i::text) FROM generate_series(1, 50000) i; ANALYZE only_{am}")
        hidden = prices()
        for am in ("heap", "firn"):
            c.execute(f"VACUUM ANALYZE only_{am}")
        seen = prices()
        assert all(a > b * 1.2 for a, b in zip(hidden, seen)), (hidden, seen)
        c.execute("DROP TABLE only_heap, only_firn")


def right_joins(cluster):
    """Joins that give the rows of the hashed side tell the scan their keys, as what has no match is dropped."""
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0; CREATE TABLE wide_days (id int, day date) USING firn; CREATE TABLE few_days (day date)")
        c.execute("INSERT INTO wide_days SELECT i, date '2024-01-01' + i / 300 FROM generate_series(1, 90000) i; INSERT INTO few_days VALUES ('2024-01-05'), ('2030-01-01'), (NULL)")
        c.execute("ANALYZE wide_days; ANALYZE few_days; SET enable_nestloop = off; SET enable_mergejoin = off; SET enable_hashagg = off; SET enable_sort = off; SET max_parallel_workers_per_gather = 0")
        for query, node, since, expected in (
                ("SELECT * FROM few_days WHERE NOT EXISTS (SELECT 1 FROM wide_days WHERE wide_days.day = few_days.day) ORDER BY 1", "Hash Right Anti Join", 16, ["2030-01-01", None]),
                ("SELECT * FROM few_days WHERE EXISTS (SELECT 1 FROM wide_days WHERE wide_days.day = few_days.day) ORDER BY 1", "Hash Right Semi Join", 18, ["2024-01-05"]),
                ("SELECT * FROM few_days WHERE day IN (SELECT day FROM wide_days)", "Hash Right Semi Join", 18, ["2024-01-05"])):
            assert [day and str(day) for day, in c.execute(query).fetchall()] == expected, query
            if version() >= since:
                plan = explain(c, query, "ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF")
                assert node in plan and "Narrowed by Join: day" in plan, plan
        c.execute("DROP TABLE wide_days, few_days")


def switched_off(cluster):
    """With all kinds of scans switched off the same one is taken as of a heap, and from PostgreSQL 18 on it says so."""
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0; SET max_parallel_workers_per_gather = 0")
        off = [f"enable_{kind}" for kind in ("seqscan", "indexscan", "indexonlyscan", "bitmapscan")]
        found = []
        for am in ("heap", "firn"):
            c.execute(f"CREATE TABLE off_{am} (id int PRIMARY KEY, v text) USING {am}; INSERT INTO off_{am} SELECT i, md5(i::text) FROM generate_series(1, 30000) i")
            c.execute(f"VACUUM ANALYZE off_{am}")
            for setting in off:
                c.execute(f"SET {setting} = off")
            found.append(explain(c, f"SELECT * FROM off_{am} WHERE id = 7").replace(am, "am"))
            c.execute(f"ALTER TABLE off_{am} DROP CONSTRAINT off_{am}_pkey")
            for query in (f"SELECT * FROM off_{am}", f"SELECT count(*) FROM off_{am}"):
                plan = explain(c, query, "COSTS ON")
                # From 18 on it is counted, not priced.
                assert ("Disabled: true" in plan and "0000000000" not in plan) if version() >= 18 else "0000000000" in plan, plan
            for setting in off:
                c.execute(f"RESET {setting}")
        assert found[0] == found[1] and "Index Scan" in found[0], found
        c.execute("DROP TABLE off_heap, off_firn")


def statistics_of_a_dump(cluster):
    """Statistics that came with a dump are of a table whose rows lay otherwise: what they say of pages is no measure of these."""
    if version() < 18:
        raise Missing("dumps have no statistics before PostgreSQL 18")
    with cluster.connect() as c:
        c.execute("CREATE TABLE restored (id int, a int) USING firn; INSERT INTO restored SELECT i, i % 50 FROM generate_series(1, 100000) i")
        c.execute("SELECT pg_restore_relation_stats('schemaname', 'public', 'relname', 'restored', 'relpages', 3, 'reltuples', 100500::real, 'relallvisible', 3, 'relallfrozen', 0)")
        found = int(explain(c, "SELECT * FROM restored", "COSTS ON").split("rows=")[1].split()[0])
        assert 50000 < found < 150000, found
        c.execute("DROP TABLE restored")


def by_another_name(c):
    c.execute("CREATE ACCESS METHOD by_range TYPE INDEX HANDLER brinhandler; CREATE OPERATOR CLASS int4_by_range DEFAULT FOR TYPE int4 USING by_range AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, "
              "FUNCTION 1 brin_minmax_opcinfo(internal), FUNCTION 2 brin_minmax_add_value(internal, internal, internal, internal), FUNCTION 3 brin_minmax_consistent(internal, internal, internal), "
              "FUNCTION 4 brin_minmax_union(internal, internal, internal)")
    c.execute("SET statement_timeout = '60s'; CREATE INDEX ranges_other ON ranges USING by_range (id); RESET statement_timeout")
    assert c.execute("SELECT count(*) FROM ranges WHERE id = 7000").fetchone() == (1,)
    c.execute("DROP ACCESS METHOD by_range CASCADE")


def brin_beside_rows(cluster):
    """A row that comes while a BRIN index is built concurrently is refused, or the index is, as of a heap: what is taken can be maintained."""
    with cluster.connect() as c, cluster.connect() as other, cluster.connect() as holds:
        c.execute("CREATE FUNCTION slow(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN IF $1 = 1000 AND current_setting('firn_test.wait', true) = 'on' THEN PERFORM pg_advisory_xact_lock(77); END IF; RETURN 1 / $1; END $$")
        for method, bulk in (("heap", 0), ("firn", 0), ("firn", 1000000)):
            c.execute(f"SET firn.bulk_threshold = {bulk}; CREATE TABLE beside (id int PRIMARY KEY, k int) USING {method}; INSERT INTO beside SELECT i, i FROM generate_series(1, 1000) i")
            for row in ("(5000, 0)", "(5001, 1)"):
                holds.execute("SELECT pg_advisory_lock(77)")
                c.execute("SET firn_test.wait = on")
                found = []
                builds = threading.Thread(target=lambda: found.append(outcome(c, "CREATE INDEX CONCURRENTLY beside_slow ON beside USING brin (slow(k))")))
                builds.start()
                end = time.time() + 60
                while not holds.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone()[0]:
                    assert time.time() < end, "nobody waits"
                    time.sleep(0.02)
                other.execute(f"SET firn.bulk_threshold = {bulk}; INSERT INTO beside VALUES {row}")
                holds.execute("SELECT pg_advisory_unlock(77)")
                builds.join()
                c.execute("RESET firn_test.wait")
                assert found == ["22012" if "0, 0" in row else None], (method, bulk, row, found)
                c.execute("DROP INDEX beside_slow")
                if method == "firn":
                    c.execute("SELECT firn.compact('beside'); UPDATE beside SET id = id + 10000 WHERE id >= 5000")
                c.execute("DELETE FROM beside WHERE id >= 5000")
            c.execute("DROP TABLE beside")


def brin_of_a_view(cluster):
    """REFRESH MATERIALIZED VIEW fails where it does on a heap."""
    with cluster.connect() as c:
        for method, bulk in (("heap", 0), ("firn", 0), ("firn", 1000000)):
            c.execute(f"SET firn.bulk_threshold = {bulk}; CREATE TABLE source (id int, x int); INSERT INTO source SELECT i, i FROM generate_series(1, 2000) i")
            c.execute(f"CREATE MATERIALIZED VIEW refreshed USING {method} AS SELECT id, x FROM source; CREATE INDEX refreshed_x ON refreshed USING brin ((1 / x)); CREATE UNIQUE INDEX ON refreshed (id)")
            for how in ("", "CONCURRENTLY"):
                c.execute("UPDATE source SET x = 0 WHERE id = 1500")
                assert outcome(c, f"REFRESH MATERIALIZED VIEW {how} refreshed") == "22012", (method, bulk, how)
                c.execute("UPDATE source SET x = 7 WHERE id = 1500")
                assert outcome(c, f"REFRESH MATERIALIZED VIEW {how} refreshed") is None, (method, bulk, how)
            c.execute("DROP MATERIALIZED VIEW refreshed; DROP TABLE source")


def outcome(c, statement):
    try:
        c.execute(statement)
    except psycopg.Error as e:
        return e.sqlstate
    return None


def brin(cluster):
    """A BRIN index is taken, as a dump has to be restored, is told of, and used once the table is a heap, not before."""
    with cluster.connect() as c:
        told = []
        c.add_notice_handler(lambda d: told.append((d.severity, d.sqlstate, d.message_primary)))
        c.execute("SET firn.bulk_threshold = 0; SET max_parallel_workers_per_gather = 0")
        c.execute("CREATE TABLE ranges (id int, day date) USING firn; INSERT INTO ranges SELECT i, date '2024-01-01' + i / 300 FROM generate_series(1, 50000) i")
        c.execute("CREATE INDEX ranges_day ON ranges USING brin (day)")
        assert told == [("NOTICE", "00000", 'index "ranges_day" will not be used')], told
        c.execute("SET max_parallel_maintenance_workers = 2; SET min_parallel_table_scan_size = 0; SET firn.bulk_threshold = 1000000")
        for statement in ("CREATE INDEX ranges_id ON ranges USING brin (id)", "RESET max_parallel_maintenance_workers", "CREATE INDEX CONCURRENTLY ranges_both ON ranges USING brin (id, day)",
                          "INSERT INTO ranges SELECT i, NULL FROM generate_series(1, 5000) i", "VACUUM ANALYZE ranges", "REINDEX TABLE ranges", "REINDEX TABLE CONCURRENTLY ranges",
                          "SELECT brin_summarize_new_values('ranges_day'), brin_summarize_range('ranges_id', 0), brin_desummarize_range('ranges_id', 0)", "VACUUM FULL ranges", "UPDATE ranges SET day = day + 1 WHERE id = 7"):
            c.execute(statement)
        assert len(told) == 2 and "ranges_id" in told[1][2], told
        # What a build with workers has counted, as of a heap. (18 leaves that to autovacuum, and does not count where there is none.)
        noted = []
        for method in ("heap", "firn"):
            c.execute(f"SET firn.bulk_threshold = 1000000; CREATE TABLE counted (id int) USING {method}; INSERT INTO counted SELECT generate_series(1, 60000); SET firn.bulk_threshold = 0; INSERT INTO counted SELECT generate_series(1, 10000)")
            told.clear()
            c.execute("SET max_parallel_maintenance_workers = 2; SET maintenance_work_mem = '256MB'; SET client_min_messages = debug1; CREATE INDEX ON counted USING brin (id); RESET client_min_messages")
            assert version() < 17 or any("parallel worker" in message for *_, message in told), (method, told)
            noted.append(c.execute("SELECT reltuples FROM pg_class WHERE relname = 'counted'").fetchone())
            c.execute("RESET max_parallel_maintenance_workers; DROP TABLE counted")
        assert noted[0] == noted[1], noted
        c.execute("SET enable_seqscan = off")
        query = "SELECT * FROM ranges WHERE day = '2024-03-01'"
        plan = explain(c, query)
        assert "FirnScan" in plan and "Bitmap" not in plan, plan
        rows = c.execute(query + " ORDER BY id").fetchall()
        assert len(rows) == 300 and c.execute("SELECT count(*) FROM firn.check('ranges')").fetchone() == (0,)
        # One of another access method that is BRIN by another name is no better. (PostgreSQL's own code asserts that there is none.)
        if c.execute("SHOW debug_assertions").fetchone() == ("off",):
            by_another_name(c)
        # What a heap's would refuse.
        for bulk in (0, 1000000):
            c.execute(f"SET firn.bulk_threshold = {bulk}; CREATE TABLE refusing (id int PRIMARY KEY, v text) USING firn; INSERT INTO refusing SELECT i, 'v' FROM generate_series(1, 400) i")
            c.execute("INSERT INTO refusing SELECT 500, string_agg(md5(i::text), '') FROM generate_series(1, 600) i")
            for definition, code in (("((1 / (id - 200)))", "22012"), ("(id) WHERE 1 / (id - 399) > 0", "22012"), ("(v)", "54000")):
                for how in ("", "CONCURRENTLY"):
                    try:
                        c.execute(f"CREATE INDEX {how} refused ON refusing USING brin {definition}")
                        raise AssertionError(f"{definition} was taken")
                    except psycopg.Error as e:
                        assert e.sqlstate == code, (definition, how, bulk, e)
                    if how:
                        # Nor is what is left built anew.
                        try:
                            c.execute("REINDEX INDEX refused")
                            raise AssertionError(f"{definition} was taken by REINDEX")
                        except psycopg.Error as e:
                            assert e.sqlstate == code, (definition, bulk, e)
                    c.execute("DROP INDEX IF EXISTS refused")
            c.execute("DROP TABLE refusing")
        c.execute("ALTER TABLE ranges SET ACCESS METHOD heap")
        plan = explain(c, query)
        assert "Bitmap Index Scan on ranges_" in plan, plan
        assert c.execute(query + " ORDER BY id").fetchall() == rows
        c.execute("DROP TABLE ranges")


CASES = {f"plan of {f.__name__.replace('_', ' ')}": f for f in (index_only_scans, right_joins, switched_off, statistics_of_a_dump, brin, brin_beside_rows, brin_of_a_view)}
