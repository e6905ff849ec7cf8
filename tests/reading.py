"""What reading costs others: memory that must not grow with the number of stripes or of rescans, buffers that a scan
must not take from hot tables, pages that need not be read; and index builds beside writers."""
import threading
import time

import psycopg

import chosen
from columns_by_index import from_stripe_to_stripe, many_columns_by_index
from harness.cluster import Cluster
from memory_of_scans import keys_of_joins, partitions_bounded
from shared_memory import shared_memory
from trouble.common import Background
from whole_stripes import directory_rows_that_change, fetches_of_indexes_alone, many_stripes_by_index, whole_stripes, whole_stripes_of_one_session

CONF = ["shared_buffers=8MB", "autovacuum=off", "fsync=off", "max_parallel_workers_per_gather=0", "jit=off"]
# Bytes by which two runs may differ that should take the same.
SLACK = 300_000
CONTEXTS = "(SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts)"


def one(conn, sql, *args):
    rows = conn.execute(sql, *args).fetchall()
    return rows[0][0] if rows else None


def stripes(conn, table, count, columns, values, rows=200):
    """A table of `count` stripes of `rows` rows; `values` are expressions over i."""
    conn.execute(f"CREATE TABLE {table} (id int, {columns}) USING firn")
    conn.execute(f"SET firn.bulk_threshold = 0; SET firn.stripe_rows = {rows}")
    conn.execute(f"INSERT INTO {table} SELECT i, {values} FROM generate_series(1, {count * rows}) i")
    conn.execute("RESET firn.bulk_threshold; RESET firn.stripe_rows")
    got = one(conn, "SELECT count(*) FROM firn.stripes(%s)", [table])
    assert got == count, got


COLUMNS = "j jsonb, n numeric, p numeric(12,2), t text, d timestamptz, k text, m jsonb[]"
VALUES = ("jsonb_build_object('a', i, 'b', repeat('x', i % 50)), i * 1.5, i / 4.0, md5(i::text), "
          "now() + i * interval '1 s', (i % 5)::text, ARRAY[to_jsonb(i)]")
IDS = "ARRAY(SELECT i * 3 FROM generate_series(1, 20000) i)"

# Statements over a table {t}; each yields its rows one by one when it is read through a cursor.
QUERIES = {
    "scan": "SELECT * FROM {t}",
    "plain scan": "/*plain*/ SELECT * FROM {t}",
    "array of integers": f"SELECT id FROM {{t}} WHERE id = ANY({IDS}::int[])",
    "array of text": "SELECT id FROM {t} WHERE t = ANY(ARRAY(SELECT md5(i::text) FROM generate_series(1, 20000) i))",
    "array of numerics": f"SELECT id FROM {{t}} WHERE p = ANY({IDS}::numeric[])",
    "dictionary and array": "SELECT id FROM {t} WHERE k = ANY('{{1,2}}') AND j ->> 'a' <> '7'",
    "backward": "/*backward*/ SELECT ctid, j FROM {t}",
    "tid range": "SELECT j, n FROM {t} WHERE ctid > '(0,1)' AND ctid < '(4294967290,1)'",
    "index scan": "/*index*/ SELECT j, t FROM {t} WHERE id > 0",
    "bitmap scan": "/*bitmap*/ SELECT j, t FROM {t} WHERE id > 0",
}


def memory_flat(cluster):
    """Whatever is read, the memory of a query is the same after ten times as many stripes."""
    with cluster.connect() as c:
        for name, count in (("few", 6), ("many", 60)):
            stripes(c, name, count, COLUMNS, VALUES)
            c.execute(f"CREATE INDEX ON {name} (id)")
    for title, query in QUERIES.items():
        used = {}
        for table in ("few", "many"):
            with cluster.connect(autocommit=False) as c:
                c.execute("SET firn.metadata_cache = '1MB'")
                if "plain" in query or "backward" in query:
                    c.execute("SET firn.enable_scan = off")
                if "index" in query or "bitmap" in query:
                    c.execute("SET firn.enable_scan = off; SET enable_seqscan = off")
                    c.execute(f"SET {'enable_bitmapscan' if '/*index' in query else 'enable_indexscan'} = off")
                # Caches are full before anything is measured.
                c.execute(f"SELECT count(*) FROM {table} WHERE j::text || n::text || t = ''")
                c.execute(f"DECLARE c {'SCROLL' if 'backward' in query else ''} CURSOR FOR {query.format(t=table)}")
                step = "MOVE BACKWARD" if "backward" in query else "MOVE"
                if "backward" in query:
                    c.execute("MOVE ABSOLUTE -1 FROM c")
                c.execute(f"{step} 500 FROM c")
                before = one(c, f"SELECT {CONTEXTS}")
                c.execute(f"{step} {500 if table == 'few' else 11000} FROM c")
                used[table] = one(c, f"SELECT {CONTEXTS}") - before
        assert used["many"] < used["few"] + SLACK, (title, used)
    # Functions that read all of a table, measured while what they have used is still held.
    used = {}
    for table in ("few", "many"):
        with cluster.connect() as c:
            c.execute("SET firn.metadata_cache = '1MB'")
            for call in (f"SELECT count(*) FROM firn.check('{table}')", f"SELECT count(*) FROM firn.stripes('{table}')",
                         f"SELECT sum(length(j::text)) FROM {table}"):
                c.execute(call)
                used[table, call.replace(table, "")] = one(c, f"SELECT {CONTEXTS} FROM ({call}) s")
    for table, call in used:
        assert used["many", call] < used["few", call] + SLACK, (call, used)


def rescans_flat(cluster):
    """A scan that starts again frees what it knew of its conditions."""
    with cluster.connect() as c:
        stripes(c, "inner_side", 4, "t text", "md5(i::text)")
        used = {}
        for times in (20, 400):
            query = (f"SELECT sum(s.n), {CONTEXTS} FROM generate_series(1, {times}) o, LATERAL (SELECT count(*) AS n FROM inner_side "
                     "WHERE id = ANY(ARRAY(SELECT x + o FROM generate_series(1, 2000) x)) AND t <> o::text || repeat('y', 2000)"
                     " AND t = ANY(ARRAY[md5(o::text), repeat('z', 2000)])) s")
            plan = str(c.execute("EXPLAIN " + query).fetchall())
            assert "FirnScan" in plan, plan
            c.execute(query)
            [[_, used[times]]] = c.execute(query).fetchall()
        assert used[400] < used[20] + SLACK, used


def resident(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon")) * 1024


def caches_bounded(cluster):
    """What a session keeps of directories stays within firn.metadata_cache, and goes with its tables."""
    with cluster.connect() as c:
        wide = ", ".join(f"c{i} text" for i in range(30))
        for n in range(4):
            stripes(c, f"large{n}", 1000, wide, ", ".join(f"md5((i * {i + 1})::text)" for i in range(30)), rows=2)
        stripes(c, "few_kept", 6, "v int", "i")
    grown = {}
    for cache in ("1MB", "1GB"):
        with cluster.connect() as c:
            c.execute(f"SET firn.metadata_cache = '{cache}'")
            pid = c.info.backend_pid
            # (What the allocator keeps of what a statement has needed, it has after the first table.)
            after = []
            for n in range(4):
                for _ in range(3):
                    c.execute(f"SELECT count(*) FROM large{n} WHERE id = -1")
                after.append(resident(pid))
            grown[cache] = after[-1] - after[0]
    assert grown["1MB"] < 2_000_000 and grown["1GB"] > 8_000_000, grown
    with cluster.connect() as c:
        # More than the cache holds is still read right.
        c.execute("SET firn.metadata_cache = '1MB'")
        for _ in range(2):
            assert sum(one(c, f"SELECT count(id) FROM large{n}") for n in range(4)) == 8000
            assert one(c, "SELECT count(*) FROM few_kept") == 1200


def moved_rows(cluster):
    """A reader older than a compaction that has changed nothing reads no forwarding lists; one that has sees its changes."""
    with cluster.connect() as c:
        c.execute("CREATE TABLE m (id int PRIMARY KEY, n int) USING firn")
        c.execute("SET firn.bulk_threshold = 1000000000; INSERT INTO m SELECT i, i FROM generate_series(1, 20000) i")
        c.execute("DELETE FROM m WHERE id % 3 = 0")
        c.execute("VACUUM m")
        pages = one(c, "SELECT pg_relation_size('m') / 8192")

    def begin(kind):
        conn = cluster.connect()
        conn.execute(f"BEGIN ISOLATION LEVEL {kind}")
        conn.execute("SET LOCAL firn.enable_scan = off")
        conn.execute("SELECT count(n) FROM m")
        return conn

    readers = [begin("REPEATABLE READ READ ONLY"), begin("SERIALIZABLE READ ONLY DEFERRABLE"), begin("REPEATABLE READ")]
    writer, serial = begin("REPEATABLE READ"), begin("SERIALIZABLE")
    with cluster.connect() as c:
        assert one(c, "SELECT firn.compact('m')") == 13334
    readers[2].execute("CREATE TEMP TABLE written AS SELECT 1")

    def buffers(conn):
        plan = one(conn, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT count(n) FROM m")[0]["Plan"]
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    for conn in readers:
        assert one(conn, "SELECT count(n) FROM m") == 13334
        got = buffers(conn)
        assert got < 3 * pages + 100, (got, pages)
    for conn in (writer, serial):
        conn.execute("UPDATE m SET n = n + 1 WHERE id % 100 = 1")
        conn.execute("DELETE FROM m WHERE id % 100 = 2")
        conn.execute("SAVEPOINT s; UPDATE m SET n = -1 WHERE id % 100 = 4; ROLLBACK TO s")
        rows = conn.execute("SELECT count(*), count(DISTINCT id), sum(n - id), min(n) FROM m").fetchall()
        assert rows == [(13334 - 133, 13334 - 133, 134, 2)], rows
        conn.rollback()
    for conn in readers:
        conn.rollback()
        assert one(conn, "SELECT count(n) FROM m") == 13334
    for conn in (*readers, writer, serial):
        conn.close()


def tid_ranges(cluster):
    """A range of TIDs reads the stripes and batches that it is about, in both directions."""
    with cluster.connect() as c:
        stripes(c, "r", 8, "v text", "md5(i::text)", rows=3000)
        c.execute("SET firn.bulk_threshold = 1000; INSERT INTO r SELECT -i, 'row store' FROM generate_series(1, 50) i")
        c.execute("DELETE FROM r WHERE id % 7 = 0")
        places = [p for [p] in c.execute("SELECT ctid::text FROM r").fetchall()]
        some = [places[0], places[len(places) // 3], places[len(places) // 3 + 500], places[-1], "(0,0)", "(2147483648,0)",
                "(4294967294,1)"]
        for low in some:
            for high in some:
                for ops in ((">", "<"), (">=", "<=")):
                    where = f"ctid {ops[0]} '{low}' AND ctid {ops[1]} '{high}'"
                    c.execute("SET enable_tidscan = off")
                    rows = c.execute(f"SELECT ctid::text, id FROM r WHERE {where}").fetchall()
                    c.execute("SET enable_tidscan = on; SET firn.enable_scan = off; SET enable_seqscan = off")
                    plan = str(c.execute(f"EXPLAIN SELECT ctid::text, id FROM r WHERE {where}").fetchall())
                    assert "Tid Range Scan" in plan, plan
                    assert c.execute(f"SELECT ctid::text, id FROM r WHERE {where}").fetchall() == rows, where
                    c.execute(f"BEGIN; DECLARE k SCROLL CURSOR FOR SELECT ctid::text, id FROM r WHERE {where}")
                    half = c.execute(f"FETCH {len(rows) // 2} FROM k").fetchall()
                    back = c.execute("FETCH BACKWARD ALL FROM k").fetchall()
                    assert back == half[-2::-1] if len(half) == len(rows) // 2 and half else True, where
                    assert c.execute("FETCH FORWARD ALL FROM k").fetchall() == rows, where
                    assert c.execute("FETCH BACKWARD ALL FROM k").fetchall() == rows[::-1], where
                    c.execute("COMMIT; RESET enable_seqscan; RESET firn.enable_scan")
        c.execute("SET firn.enable_scan = off; SET enable_seqscan = off")
        low, high = places[len(places) // 2], places[len(places) // 2 + 18]
        for query, most in ((f"SELECT v FROM r WHERE ctid BETWEEN '{low}' AND '{high}'", 100),
                            (f"SELECT v FROM r WHERE ctid = ANY(ARRAY['{low}','{high}']::tid[])", 100)):
            before = blocks(c, "r")
            c.execute(query)
            got = blocks(c, "r") - before
            assert 0 < got < most, (query, got)


def blocks(c, table):
    """How many blocks of a table and its TOAST relation have been looked at so far. (A query's BUFFERS count those of
    catalogs, too, of which a server built with RELCACHE_FORCE_RELEASE reads many more.)"""
    c.execute("SELECT pg_stat_force_next_flush()")
    return one(c, f"""SELECT heap_blks_read + heap_blks_hit + toast_blks_read + toast_blks_hit + tidx_blks_read + tidx_blks_hit
                      FROM pg_statio_user_tables WHERE relname = '{table}'""")


HOT = """SELECT count(*) FROM pg_buffercache WHERE relfilenode = pg_relation_filenode('hot')
         AND reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())"""


def hot_table_stays(cluster):
    """A scan of a table larger than a quarter of the buffers leaves those of others alone."""
    with cluster.connect() as c:
        c.execute("CREATE EXTENSION pg_buffercache")
        stripes(c, "cold", 8, "v text", "(SELECT string_agg(md5((i * 17 + x)::text), '') FROM generate_series(1, 24) x)", rows=8000)
        size = one(c, "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE relname = 'cold'")
        assert size > 16 << 20, size
        c.execute("CREATE TABLE hot AS SELECT i, repeat('h', 1000) AS v FROM generate_series(1, 1400) i")
        c.execute("CHECKPOINT")
        scans = ("SELECT count(v) FROM cold", "SET firn.enable_scan = off; SELECT count(v) FROM cold", "ANALYZE cold",
                 "SELECT * FROM firn.check('cold')", "CREATE INDEX cold_id ON cold (id)")
        for scan in scans:
            c.execute("SELECT count(v) FROM hot")
            before = one(c, HOT)
            assert before > 180, before
            c.execute(scan)
            c.execute("RESET firn.enable_scan")
            after = one(c, HOT)
            assert after > before * 0.85, (scan, before, after)


def blocked(conn, pid):
    end = time.time() + 60
    while one(conn, "SELECT wait_event FROM pg_stat_activity WHERE pid = %s", [pid]) != "advisory":
        assert time.time() < end, "no session waits"
        time.sleep(0.05)


def concurrent_build(cluster, meanwhile, statement, table="u", fails=None):
    """Run `meanwhile` in another session when CREATE INDEX CONCURRENTLY has read all of the row store's rows but
    the last and not yet a stripe."""
    with cluster.connect() as c:
        c.execute(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (id int, v int) USING firn")
        c.execute(f"SET firn.bulk_threshold = 0; INSERT INTO {table} SELECT i, i FROM generate_series(1000, 1999) i")
        c.execute(f"SET firn.bulk_threshold = 1000; INSERT INTO {table} SELECT i, i FROM generate_series(1, 100) i")
        c.execute(f"INSERT INTO {table} VALUES (-1, -1)")
        c.execute("""CREATE OR REPLACE FUNCTION pausing(i int) RETURNS int IMMUTABLE PARALLEL UNSAFE LANGUAGE plpgsql AS $$
            BEGIN IF i = -1 THEN PERFORM pg_advisory_lock(7); PERFORM pg_advisory_unlock(7); END IF; RETURN i; END $$""")
    builder, holder, writer = cluster.connect(), cluster.connect(), cluster.connect()
    errors = []

    def build():
        try:
            builder.execute(statement)
        except psycopg.Error as e:
            errors.append(e.sqlstate)

    try:
        holder.execute("SELECT pg_advisory_lock(7)")
        thread = threading.Thread(target=build)
        thread.start()
        blocked(holder, builder.info.backend_pid)
        writer.execute("SET firn.bulk_threshold = 0")
        for sql in meanwhile:
            writer.execute(sql)
        holder.execute("SELECT pg_advisory_unlock(7)")
        thread.join(120)
        assert not thread.is_alive()
        assert errors == ([fails] if fails else []), errors
        if fails:
            return
        writer.execute("CREATE EXTENSION IF NOT EXISTS amcheck")
        writer.execute("SELECT bt_index_check('i', heapallindexed => true)")
        by_scan = writer.execute(f"SELECT id, v FROM {table} ORDER BY 1, 2").fetchall()
        writer.execute("SET firn.enable_scan = off; SET enable_seqscan = off; SET enable_bitmapscan = off")
        query = f"SELECT id, v FROM {table} WHERE pausing(id) >= -5 ORDER BY pausing(id)"
        assert "i on" in str(writer.execute("EXPLAIN " + query).fetchall())
        assert sorted(writer.execute(query).fetchall()) == by_scan
        assert len(by_scan) >= 1000
    finally:
        for conn in (builder, holder, writer):
            conn.close()


UNIQUE = "CREATE UNIQUE INDEX CONCURRENTLY i ON u (pausing(id))"


def build_beside_loads(cluster):
    """Rows deleted from the row store and loaded into stripes while an index is built are not seen twice."""
    concurrent_build(cluster, ["DELETE FROM u WHERE id BETWEEN 1 AND 90",
                               "INSERT INTO u SELECT i, i FROM generate_series(1, 90) i"], UNIQUE)


def build_beside_updates(cluster):
    """Rows of stripes updated into the row store meanwhile are indexed once, as are heap-only tuples."""
    concurrent_build(cluster, ["UPDATE u SET v = v + 1 WHERE id BETWEEN 1000 AND 1800",
                               "UPDATE u SET v = v + 1 WHERE id BETWEEN 1500 AND 1600",
                               "UPDATE u SET id = id + 5000 WHERE id BETWEEN 1700 AND 1710",
                               "UPDATE u SET v = v + 1 WHERE id BETWEEN 10 AND 30", "DELETE FROM u WHERE id BETWEEN 40 AND 45",
                               "INSERT INTO u SELECT i, i FROM generate_series(3000, 3500) i",
                               "DELETE FROM u WHERE id BETWEEN 1900 AND 1920"], UNIQUE)


def build_finds_duplicates(cluster):
    """A real duplicate that comes meanwhile is found all the same, in either half of the table."""
    for load in ("", "SET firn.bulk_threshold = 1000"):
        concurrent_build(cluster, [load, "INSERT INTO u VALUES (1500, 0)"], UNIQUE, fails="23505")


def build_beside_toast_reindex(cluster):
    """PostgreSQL lets a REINDEX CONCURRENTLY of the table and one of its TOAST relation ignore each other's snapshots, as long as
    indexes are on plain columns: rows of stripes that were deleted or changed meanwhile are found by older snapshots all the same."""
    with cluster.connect() as c, cluster.connect() as holder:
        c.execute("""CREATE FUNCTION pausing_hash(text) RETURNS int IMMUTABLE STRICT LANGUAGE plpgsql AS $$ BEGIN
            IF $1 = 'stop' THEN PERFORM pg_advisory_lock_shared(7); PERFORM pg_advisory_unlock_shared(7); END IF; RETURN hashtext($1); END $$;
            CREATE OPERATOR CLASS pausing_ops FOR TYPE text USING hash AS OPERATOR 1 =, FUNCTION 1 pausing_hash(text)""")
        c.execute("DROP TABLE IF EXISTS r; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 500; CREATE TABLE r (id int, v text) USING firn")
        c.execute("INSERT INTO r SELECT i, 'v' || i FROM generate_series(1, 3000) i")
        # In the row store, which is read before the stripes.
        c.execute("SET firn.bulk_threshold = 1000000; INSERT INTO r VALUES (0, 'stop'); CREATE INDEX r_v ON r USING hash (v pausing_ops)")
        toast = one(c, "SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'r'")
        holder.execute("SELECT pg_advisory_lock(7)")
        builder = Background(cluster, "REINDEX INDEX CONCURRENTLY r_v")
        blocked(holder, builder.pid)
        c.execute("DELETE FROM r WHERE id BETWEEN 100 AND 700; UPDATE r SET v = v || 'x' WHERE id BETWEEN 701 AND 900")
        c.execute("DELETE FROM r WHERE id BETWEEN 2901 AND 3000; SELECT count(*) FROM (SELECT FROM r WHERE id < 50 FOR SHARE) s")
        was = one(c, "SELECT indexrelid FROM pg_index WHERE indrelid = %s::regclass", [toast])
        c.execute(f"REINDEX TABLE CONCURRENTLY {toast}")
        assert one(c, "SELECT indexrelid FROM pg_index WHERE indrelid = %s::regclass", [toast]) != was and builder.running()
        holder.execute("SELECT pg_advisory_unlock(7)")
        builder.finish()
        assert not c.execute("SELECT * FROM firn.check('r')").fetchall()
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
        sql = "SELECT count(*) FROM generate_series(0, 3000) i, LATERAL (SELECT FROM r WHERE v = 'v' || i || CASE WHEN i BETWEEN 701 AND 900 THEN 'x' ELSE '' END OFFSET 0) x"
        assert one(c, sql) == 3000 - 601 - 100, one(c, sql)
        c.execute("DROP TABLE r; DROP FUNCTION pausing_hash CASCADE")


def counts_without_storage(cluster):
    """What has no rows of its own is counted by PostgreSQL: a partitioned table without partitions, and foreign tables."""
    with cluster.connect() as c:
        c.execute("CREATE TABLE alone (id int) PARTITION BY RANGE (id)")
        assert one(c, "SELECT count(*) FROM alone") == 0
        c.execute("CREATE TABLE first PARTITION OF alone DEFAULT; INSERT INTO alone SELECT generate_series(1, 9)")
        assert one(c, "SELECT count(*) FROM alone") == 9
        c.execute("ALTER TABLE alone DETACH PARTITION first")
        assert one(c, "SELECT count(*) FROM alone") == 0
        c.execute("CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw")
        c.execute("CREATE FOREIGN TABLE lines (id int) SERVER files OPTIONS (program 'seq 1 5')")
        assert one(c, "SELECT count(*) FROM lines") == 5
        c.execute("ALTER TABLE alone ATTACH PARTITION lines DEFAULT")
        assert one(c, "SELECT count(*) FROM alone") == 5


def rewound_cursors(cluster):
    """A scan of a large table begins where another one is; a cursor that is rewound, at its own first row."""
    with cluster.connect(autocommit=False) as c:
        c.execute("CREATE TABLE w (id int, t text) USING firn; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 1000")
        c.execute("INSERT INTO w SELECT i, repeat('x', 200) FROM generate_series(30001, 33000) i")
        c.execute("SET firn.bulk_threshold = 1000000")
        c.execute("INSERT INTO w SELECT i, repeat('x', 200) FROM generate_series(1, 30000) i")
        c.commit()
        assert "FirnScan" in str(c.execute("EXPLAIN SELECT id FROM w").fetchall())

        def ids(sql):
            return [row for [row] in c.execute(sql).fetchall()]

        every = list(range(1, 33001))
        for fetched in (1, 7000, 20000, 31000, 33000):
            # Another scan's place, away from the first block.
            c.execute("DECLARE o CURSOR FOR SELECT id FROM w; MOVE 11000 FROM o")
            c.execute("DECLARE c CURSOR WITH HOLD FOR SELECT id FROM w")
            first = ids(f"FETCH {fetched} FROM c")
            c.commit()
            assert sorted(first + ids("FETCH ALL FROM c")) == every, fetched
            c.execute("CLOSE c; DECLARE c SCROLL CURSOR FOR SELECT id FROM w")
            first = ids(f"FETCH {fetched} FROM c")
            assert ids("FETCH ABSOLUTE 1 FROM c") == first[:1], fetched
            assert first[:1] + (ids(f"FETCH {fetched - 1} FROM c") if fetched > 1 else []) == first, fetched
            assert fetched == 1 or ids(f"FETCH BACKWARD {fetched - 1} FROM c") == first[-2::-1], fetched
            c.rollback()
        c.execute("CREATE TABLE seen (id int); CREATE PROCEDURE walk() LANGUAGE plpgsql AS $$ DECLARE d CURSOR FOR SELECT id FROM w; n int := 0; BEGIN "
                  "FOR r IN d LOOP INSERT INTO seen VALUES (r.id); n := n + 1; IF n % 9000 = 0 THEN COMMIT; END IF; "
                  "END LOOP; END $$")
        c.commit()
        c.autocommit = True
        c.execute("CALL walk()")
        assert sorted(ids("SELECT id FROM seen")) == every


BY_INDEX = "SET firn.enable_scan = off; SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"


def pages_bounded(cluster):
    """What a session keeps of pages stays within firn.page_cache, whatever rows it has fetched by index."""
    with cluster.connect() as c:
        stripes(c, "paged", 30, "a int, t text, u text", "i, md5(i::text), repeat(md5(i::text), i % 9)", rows=4000)
        c.execute("CREATE INDEX ON paged (id); ANALYZE paged")
    walk = ("SELECT max(p.t), max(p.u), sum(p.a) FROM generate_series(1, 20000) g JOIN paged p ON p.id = g * 7919 %% 120000 + 1",
            "SELECT max(t), max(u), sum(a) FROM paged WHERE id = ANY(%s)")
    grown, again, rows = {}, {}, set()
    for cache in ("0", "1MB", "200MB"):
        with cluster.connect() as c:
            c.execute(f"{BY_INDEX}; SET firn.page_cache = '{cache}'")
            assert "paged_id_idx" in str(c.execute(f"EXPLAIN {walk[0]}", []).fetchall())
            c.execute("SELECT t, u FROM paged WHERE id = 1")
            before = resident(c.info.backend_pid)
            rows.add(c.execute(walk[0], []).fetchone())
            grown[cache] = resident(c.info.backend_pid) - before
            c.execute(walk[1], [list(range(1, 120000, 300))])
            # Less room from now on, or none.
            for less in ("1MB", "0"):
                c.execute(f"SET firn.page_cache = '{less}'")
                rows.add(c.execute(walk[0], []).fetchone())
            # What it had is free for others: as much again takes no more.
            c.execute(f"SET firn.page_cache = '{cache}'")
            rows.add(c.execute(walk[0], []).fetchone())
            again[cache] = resident(c.info.backend_pid) - before
    assert len(rows) == 1, rows
    assert all(again[cache] < grown[cache] + (4 << 20) for cache in grown), (grown, again)
    # Metadata and dictionaries have a cache of their own.
    assert grown["200MB"] > 12 << 20 and max(grown["0"], grown["1MB"]) < 8 << 20, grown


def many_parts(conn):
    """40 partitions of one stripe each, with 3,776 texts of some 100 bytes in a dictionary: some 0.8 MB of metadata to keep, by firn's count."""
    if one(conn, "SELECT to_regclass('many_parts')"):
        return
    conn.execute("CREATE TABLE many_parts (p int, id int, k text) PARTITION BY LIST (p)")
    for part in range(40):
        conn.execute(f"CREATE TABLE many_parts{part} PARTITION OF many_parts FOR VALUES IN ({part}) USING firn")
    conn.execute("CREATE INDEX ON many_parts (id); SET firn.bulk_threshold = 0")
    conn.execute("INSERT INTO many_parts SELECT p, i, repeat(md5((i / 4 + p * 5000)::text), 3) FROM generate_series(0, 39) p, generate_series(1, 15100) i")
    conn.execute("ANALYZE many_parts; RESET firn.bulk_threshold")


def scans_bounded(cluster):
    """Scans by index that have not ended hold no metadata of stripes beside what firn.metadata_cache has room for."""
    with cluster.connect() as c:
        many_parts(c)
    rows, grown = set(), {}
    for cache in ("1MB", "1GB"):
        with cluster.connect(autocommit=False) as c:
            c.execute(f"{BY_INDEX}; SET firn.page_cache = 0; SET firn.metadata_cache = '{cache}'")
            query = "SELECT p, id, k FROM many_parts WHERE id IN (1, 5002, 14000)"
            plan = str(c.execute("EXPLAIN " + query).fetchall())
            assert plan.count("Index Scan") == 40, plan
            before = resident(c.info.backend_pid)
            c.execute(f"DECLARE k CURSOR FOR {query}")
            rows.add(tuple(c.execute("FETCH ALL FROM k").fetchall()))
            grown[cache] = resident(c.info.backend_pid) - before
    assert len(rows) == 1 and len(next(iter(rows))) == 120, rows
    assert grown["1MB"] < 6 << 20 and grown["1GB"] > 12 << 20, grown


def scans_side_by_side(cluster):
    """Scans by index that take turns do not read each other's metadata out of memory: those that firn.metadata_cache has room
    for are read once, whatever the others need."""
    with cluster.connect() as c:
        many_parts(c)
    rows = 100 * 40
    query = "SELECT id, k FROM many_parts WHERE id BETWEEN 1 AND 100 {} ORDER BY id"
    plain, failing = query.format(""), query.format("AND 1 / (id - 50) < 2")

    def buffers(conn, sql=plain):
        conn.execute(sql)
        [[[plan]]] = conn.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {sql}").fetchall()
        assert "Merge Append" in str(plan) or "Nested Loop" in str(plan), plan
        return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]

    needed, seen = {}, set()
    for cache in ("1GB", "36MB", "18MB", "1MB"):
        with cluster.connect() as c:
            c.execute(f"{BY_INDEX}; SET enable_sort = off; SET firn.metadata_cache = '{cache}'")
            before = resident(c.info.backend_pid)
            needed[cache] = buffers(c)
            if cache == "1MB":
                grown = resident(c.info.backend_pid) - before
            seen.add(tuple(sorted(c.execute(query.format("")).fetchall())))
            # What scans keep that an error ends is given back.
            for _ in range(5):
                try:
                    c.execute(failing)
                except psycopg.errors.DivisionByZero:
                    pass
                else:
                    raise AssertionError("no error")
            needed[cache, "after errors"] = buffers(c)
            # Of two each has what it needs, whatever the room: one keeps it, the other was the last to ask for it.
            needed[cache, "two"] = buffers(c, "SELECT a.k, b.k FROM many_parts1 a JOIN many_parts2 b ON b.id = a.id WHERE a.id BETWEEN 1 AND 100")
    assert len(seen) == 1 and len(next(iter(seen))) == rows, len(seen)
    for after in ((), ("after errors",)):
        all_of, most, half, few = (needed[(cache, *after) if after else cache] for cache in ("1GB", "36MB", "18MB", "1MB"))
        # Between two statements the cache keeps three quarters of the setting, so some of 36 MB are read again.
        assert most < all_of + rows // 4 and half < few * 0.7, needed
    assert needed["1MB", "two"] < needed["1GB", "two"] + 50, needed
    assert grown < 12 << 20, grown
    # Nor do stripes that were opened before, and from which nothing was read then.
    with cluster.connect() as c:
        c.execute(f"{BY_INDEX}; SET enable_sort = off; SET firn.metadata_cache = '1MB'")
        before = resident(c.info.backend_pid)
        c.execute("SELECT count(*) FROM (SELECT id FROM many_parts WHERE id BETWEEN 1 AND 100 ORDER BY id) x")
        buffers(c)
        grown = resident(c.info.backend_pid) - before
    assert grown < 14 << 20, grown


def prices(cluster):
    """Plans of rows by index cost what they cost: index-only scans read no column, a cache that holds a table makes look-ups cheaper."""
    with cluster.connect() as c:
        stripes(c, "priced", 20, "a int, t text", "i % 5000, md5(i::text)", rows=5000)
        c.execute("CREATE INDEX ON priced (a, id); CREATE INDEX ON priced (id)")
        c.execute("VACUUM ANALYZE priced")

        def cost(sql, *settings):
            for setting in ("RESET ALL", *settings):
                c.execute(f"SET {setting}" if "=" in setting else setting)
            [[plan]] = c.execute(f"EXPLAIN (FORMAT json) {sql}").fetchall()
            return plan[0]["Plan"]["Node Type"], plan[0]["Plan"]["Total Cost"]

        only = ["firn.enable_scan = off", "enable_seqscan = off", "enable_bitmapscan = off"]
        ids = "SELECT id FROM priced WHERE a = 7"
        node, price = cost(ids, *only)
        assert node == "Index Only Scan" and cost(ids, *only, "firn.page_cache = 0")[1] == price, (node, price)
        node, dear = cost(ids, *only, "enable_indexonlyscan = off")
        assert node == "Index Scan" and dear > price, (node, dear, price)
        # A column that only the conditions of a B-tree ask for is not read; a hash index finds what is to be checked again.
        t, both = (f"SELECT {columns} FROM priced WHERE a = 7" for columns in ("t", "a, t"))
        assert cost(t, *only, "firn.page_cache = 0")[1] < cost(both, *only, "firn.page_cache = 0")[1]
        c.execute("BEGIN; CREATE INDEX hashed ON priced USING hash (a); DROP INDEX priced_a_id_idx")
        assert "hashed" in str(c.execute("EXPLAIN " + t).fetchall())
        assert cost(t, *only, "firn.page_cache = 0") == cost(both, *only, "firn.page_cache = 0")
        c.execute("ROLLBACK")
        text = "SELECT t FROM priced WHERE a BETWEEN 7 AND 300"
        assert cost(text, *only, "firn.page_cache = 0")[1] > cost(text, *only, "firn.page_cache = '64MB'")[1]
        # What is changed is found by PostgreSQL's own scan where an index does not win, though an index is cheaper before stripes have a price.
        stripes(c, "swept", 20, "a int, t text", "i * 7919 % 5000, repeat(md5(i::text), 8)", rows=5000)
        c.execute("CREATE INDEX ON swept (a)")
        c.execute("VACUUM ANALYZE swept")
        for n in range(100, 5001, 100):
            statement = f"DELETE FROM swept WHERE a < {n} AND t <> ''"
            assert cost(statement)[1] <= cost(statement, "enable_indexscan = off", "enable_bitmapscan = off")[1], n
        # So it is with several processes. (FirnScan has no xmin.)
        several = [f"{setting} = 0" for setting in ("min_parallel_table_scan_size", "min_parallel_index_scan_size", "parallel_setup_cost", "parallel_tuple_cost")]
        several.append("max_parallel_workers_per_gather = 2")
        for n in range(100, 5001, 100):
            query = f"SELECT xmin, t FROM swept WHERE a < {n} AND t <> ''"
            assert cost(query, *several)[1] <= cost(query, *several, "enable_indexscan = off", "enable_bitmapscan = off")[1], n


def lookups_beside_deletion(cluster):
    """Rows of a stripe that somebody is deleting from are found without looking at all that he has deleted."""
    with cluster.connect() as c, cluster.connect(autocommit=False) as other, cluster.connect(autocommit=False) as old:
        stripes(c, "going", 1, "v text", "md5(i::text)", rows=20000)
        c.execute("CREATE UNIQUE INDEX ON going (id)")
        c.execute("VACUUM ANALYZE going")
        query = "SELECT v FROM going WHERE id IN (1, 2, 3, 4, 19000)"
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute(BY_INDEX)
        c.execute(BY_INDEX)
        before = old.execute(query).fetchall()
        other.execute("DELETE FROM going WHERE id < 19000")

        def buffers(conn):
            assert sorted(conn.execute(query).fetchall()) == sorted(before)
            [[plan]] = conn.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {query}").fetchall()
            return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]

        assert buffers(c) < 100, buffers(c)
        other.commit()
        assert buffers(old) < 100, buffers(old)
        assert len(c.execute(query).fetchall()) == 1
        old.rollback()
        # What a rollback has left in the index only.
        stripes(c, "undone", 1, "v text", "md5(i::text)", rows=60000)
        c.execute("CREATE UNIQUE INDEX ON undone (id)")
        c.execute("VACUUM ANALYZE undone")
        other.execute("DELETE FROM undone WHERE id < 59000")
        other.rollback()
        c.execute("VACUUM (INDEX_CLEANUP off) undone")
        query = query.replace("going", "undone")
        assert buffers(c) < 100, buffers(c)


def lookups_beside_changes(cluster):
    """Index scans under way see what their snapshot saw, whoever changes, moves or removes rows meanwhile."""
    seen = {}
    for am in ("heap", "firn"):
        with cluster.connect() as other:
            other.execute(f"CREATE TABLE l (id int PRIMARY KEY, v text) USING {am}; SET firn.stripe_rows = 500")
            other.execute("INSERT INTO l SELECT i, 'v' || i FROM generate_series(1, 5000) i")

            def settle(other=other, am=am):
                if am == "firn":
                    other.execute("SELECT firn.compact('l')")

            settle()
            log = seen[am] = []
            for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
                with cluster.connect(autocommit=False) as c:
                    c.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
                    c.execute(BY_INDEX)
                    c.execute("DECLARE s CURSOR FOR SELECT id, v FROM l WHERE id > 0")
                    c.execute("DECLARE j CURSOR FOR SELECT g, l.v FROM generate_series(1, 5000, 7) g LEFT JOIN l ON l.id = g")
                    for step in (lambda: None,
                                 lambda: other.execute("DELETE FROM l WHERE id % 5 = 0"),
                                 lambda: other.execute("UPDATE l SET v = v || '+' WHERE id % 7 = 1"),
                                 lambda: (other.execute("VACUUM l"), settle()),
                                 lambda: other.execute("INSERT INTO l SELECT i, 'new' FROM generate_series(5, 5000, 5) i"),
                                 lambda: (settle(), other.execute("VACUUM l"))):
                        step()
                        log.append(c.execute("FETCH 120 FROM s").fetchall())
                        log.append(c.execute("FETCH 60 FROM j").fetchall())
                    log.append(c.execute("FETCH ALL FROM s").fetchall())
                    log.append(c.execute("FETCH ALL FROM j").fetchall())
                    # A new snapshot, or not.
                    log.append(c.execute("SELECT count(v), md5(string_agg(v, ',' ORDER BY g)) FROM generate_series(1, 5000) g "
                                         "LEFT JOIN l ON l.id = g").fetchall())
                    c.commit()
            other.execute("DROP TABLE l")
    assert seen["heap"] == seen["firn"]


def parallel_keys_of_joins(cluster):
    """A join's table that several processes have built together tells the scan its keys, in each of them."""
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0; CREATE TABLE wide USING firn AS SELECT i AS id, hashint4(i) & 16383 AS k FROM generate_series(1, 400000) i")
        c.execute("CREATE TABLE narrow USING firn AS SELECT i AS k, i % 100 AS what FROM generate_series(0, 16383) i; ANALYZE wide; ANALYZE narrow")
        c.execute("SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET max_parallel_workers_per_gather = 2; "
                  "SET enable_nestloop = off; SET enable_mergejoin = off")
        query = "SELECT count(*), sum(id) FROM wide JOIN narrow USING (k) WHERE what = 7"
        expected = c.execute("SELECT count(*), sum(id) FROM wide WHERE k % 100 = 7").fetchone()
        assert c.execute(query).fetchone() == expected
        [[[plan]]] = c.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}").fetchall()

        def nodes(node):
            yield node
            for below in node.get("Plans", ()):
                yield from nodes(below)
        found = list(nodes(plan["Plan"]))
        assert any(n["Node Type"] == "Hash" and n["Parallel Aware"] for n in found), plan
        [scan] = [n for n in found if n.get("Relation Name") == "wide"]
        removed = scan["Rows Removed by Stripe Filter"]
        # (Or each process's share.)
        assert removed > 380000 or removed * scan["Actual Loops"] > 380000, scan
        assert scan["Actual Rows"] * scan["Actual Loops"] < 5000, scan
        c.execute("DROP TABLE wide, narrow")


CASES = {f.__name__.replace("_", " "): f for f in (
    memory_flat, rescans_flat, caches_bounded, moved_rows, tid_ranges, hot_table_stays, build_beside_loads,
    build_beside_updates, build_finds_duplicates, build_beside_toast_reindex, counts_without_storage, rewound_cursors, pages_bounded, scans_bounded,
    scans_side_by_side, lookups_beside_changes, lookups_beside_deletion, fetches_of_indexes_alone, many_stripes_by_index, many_columns_by_index, from_stripe_to_stripe, prices, keys_of_joins, parallel_keys_of_joins, partitions_bounded, whole_stripes,
    whole_stripes_of_one_session, directory_rows_that_change, shared_memory)}


def run(tally, pattern):
    # Else the first readers of pages log that they were (from 18 on, where pages have checksums): of heaps as well they drive others out then.
    cluster = Cluster("reading", CONF).create(checksums=False)
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
        for name, case in (CASES | chosen.CASES).items():
            if pattern in name:
                tally.case(f"reading {name}", lambda: cluster.alone(case))
        tally.case("reading server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()
