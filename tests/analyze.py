"""ANALYZE, VACUUM and row counts of tables with stripes, with heap and the known contents as the oracle.

Samples are random, so comparisons need room. With a sample of n rows drawn fairly from independent ones, a part p is
found as p plus or minus sqrt(p (1 - p) / n): the tests allow six times that, which chance exceeds once in 500 million
comparisons. Where values follow the order of the table, firn's sample is better than that, as it is spread evenly."""
import math
import os
import shutil

import psycopg

from harness.cluster import Cluster, version

# A small target, so that tables of moderate size are sampled and not read whole: 300 rows per unit of it.
TARGET = 10
N = 300 * TARGET
ROWS = 200_000


def sigma(p, n=N):
    return 6 * math.sqrt(p * (1 - p) / n)


def near(found, expected, room, what):
    assert abs(found - expected) <= room, f"{what}: {found}, expected {expected} within {room}"


def reltuples(c, name):
    return c.execute("SELECT reltuples FROM pg_class WHERE oid = %s::regclass", (name,)).fetchone()[0]


def column(c, table, name):
    row = c.execute("SELECT null_frac, n_distinct, most_common_vals::text::text[], most_common_freqs, "
                    "histogram_bounds::text::text[], correlation, avg_width FROM pg_stats "
                    "WHERE tablename = %s AND attname = %s", (table, name)).fetchone()
    keys = ("nulls", "distinct", "values", "freqs", "bounds", "correlation", "width")
    return dict(zip(keys, row))


def freqs(stats):
    return dict(zip(stats["values"] or [], stats["freqs"] or []))


def planned(c, table):
    return c.execute(f"EXPLAIN (FORMAT json) SELECT * FROM {table}").fetchone()[0][0]["Plan"]["Plan Rows"]


def counts(c, table):
    """n_live_tup, n_dead_tup, n_mod_since_analyze, vacuum_count, n_tup_del as others see them."""
    settle(c)
    return c.execute("SELECT n_live_tup, n_dead_tup, n_mod_since_analyze, vacuum_count, n_tup_del FROM pg_stat_all_tables "
                     "WHERE relid = %s::regclass", (table,)).fetchone()


def damaged(cluster):
    """A page of the row store that is no page is an error, which the session outlives."""
    for am in ("heap", "firn"):
        with cluster.connect() as c:
            c.execute(f"CREATE TABLE damaged_{am} (i int, t text) USING {am}")
            c.execute(f"INSERT INTO damaged_{am} SELECT i, repeat('x', 500) FROM generate_series(1, 2000) i")
            file = c.execute(f"SELECT pg_relation_filepath('damaged_{am}')").fetchone()[0]
        cluster.stop("fast")
        with open(os.path.join(cluster.data, file), "r+b") as f:
            f.seek(10 * 8192)
            f.write(b"\xff" * 200)
        cluster.start()
        cluster.wait_ready()
        with cluster.connect() as c:
            for _ in range(2):
                try:
                    c.execute(f"ANALYZE damaged_{am}")
                    raise AssertionError("a damaged page was passed over")
                except psycopg.errors.DataCorrupted as e:
                    assert "invalid page in block 10 " in str(e), e
            assert c.execute("SELECT 1").fetchone() == (1,)
            c.execute(f"DROP TABLE damaged_{am}")


def reads_once(cluster):
    """Pages of the row store are asked for as often as a heap's, which is what ANALYZE's delay goes by."""
    asked = {}
    with cluster.connect() as c:
        for am in ("heap", "firn"):
            c.execute(f"CREATE TABLE once_{am} (i int, t text) USING {am}")
            c.execute(f"INSERT INTO once_{am} SELECT i, repeat('x', 500) FROM generate_series(1, 9000) i")
            settle(c)
            c.execute(f"SELECT pg_stat_reset_single_table_counters('once_{am}'::regclass)")
            c.execute(f"ANALYZE once_{am}")
            settle(c)
            asked[am] = c.execute("SELECT heap_blks_read + heap_blks_hit FROM pg_statio_all_tables WHERE relid = %s::regclass", (f"once_{am}",)).fetchone()[0]
            pages = c.execute(f"SELECT pg_relation_size('once_{am}') / 8192").fetchone()[0]
            c.execute(f"DROP TABLE once_{am}")
    assert asked["heap"] >= pages and abs(asked["firn"] - asked["heap"]) < pages / 10, (asked, pages)


def settle(c):
    """Tell the cumulative statistics what this session has changed, before a command sets them."""
    c.execute("SELECT pg_stat_force_next_flush()")


def messages(c, sql):
    """What ANALYZE VERBOSE says: (blocks visited, blocks told, rows in the sample) of each table."""
    found = []
    c.add_notice_handler(lambda d: found.append(d.message_primary))
    c.execute(sql)
    result = {}
    for m in found:
        if m.startswith('"') and "scanned" in m:
            words = m.replace(",", "").replace(";", "").split()
            at = words.index("in")
            result[words[0].strip('":')] = (int(words[2]), int(words[4]), int(words[at - 2]))
    return result


COLUMNS = """i AS id, i % 8 AS low, CASE WHEN random() < 0.3 THEN NULL ELSE (random() * 50000)::int END AS holes,
    floor(100 * power(random(), 4))::int AS skewed, 'name ' || (random() * 400)::int AS name, random() AS uniform,
    timestamptz '2020-01-01 UTC' + i * interval '7 s' AS at, repeat('w', (i % 3) * 20) AS wide"""


def fill(c, row_store_part, rows=ROWS):
    """Tables h and f of the same rows: a part of them in f's row store, the rest in stripes."""
    in_row_store = int(rows * row_store_part)
    c.execute("DROP TABLE IF EXISTS h, f")
    c.execute("SELECT setseed(0.5)")
    c.execute(f"CREATE TABLE h USING heap AS SELECT {COLUMNS} FROM generate_series(1, {rows}) i")
    c.execute("CREATE TABLE f (LIKE h) USING firn")
    c.execute("SET firn.bulk_threshold = 100000000; SET firn.stripe_rows = 30000")
    c.execute(f"INSERT INTO f SELECT * FROM h WHERE id <= {in_row_store}")
    c.execute("SET firn.bulk_threshold = 10")
    c.execute(f"INSERT INTO f SELECT * FROM h WHERE id > {in_row_store}")
    c.execute("RESET firn.bulk_threshold")


def alike(cluster, row_store_part):
    """Each column's statistics are near heap's and near the truth."""
    with cluster.connect() as c:
        fill(c, row_store_part)
        c.execute(f"SET default_statistics_target = {TARGET}")
        said = messages(c, "ANALYZE VERBOSE h, f")
        assert said["h"][2] == said["f"][2] == N, said
        near(reltuples(c, "f"), ROWS, ROWS * 0.02, "reltuples")
        h = {name: column(c, "h", name) for name in ("id", "low", "holes", "skewed", "name", "uniform", "at", "wide")}
        f = {name: column(c, "f", name) for name in h}
        # Two samples differ by the square root of two more than one from the truth.
        room = {name: math.sqrt(2) * sigma(0.3) for name in h}
        for name in h:
            near(f[name]["nulls"], h[name]["nulls"], room[name] if name == "holes" else 0, f"{name}: null_frac")
            near(f[name]["width"], h[name]["width"], 2, f"{name}: avg_width")
        near(f["holes"]["nulls"], 0.3, sigma(0.3), "null_frac")
        for name in ("id", "at", "uniform"):
            assert f[name]["distinct"] == h[name]["distinct"] == -1, (name, f[name]["distinct"])
            assert f[name]["values"] is None, f[name]["values"]
        assert f["low"]["distinct"] == h["low"]["distinct"] == 8
        assert f["wide"]["distinct"] == 3
        # Of 401 names all but a few are among 3,000 rows; the estimate adds what is missing.
        near(f["name"]["distinct"], 401, 40, "n_distinct of names")
        near(f["skewed"]["distinct"], h["skewed"]["distinct"], 30, "n_distinct of a skewed column")
        for name in ("low", "wide"):
            p = 1 / len(f[name]["values"])
            for value, found in freqs(f[name]).items():
                near(found, p, sigma(p), f"{name} = {value}")
        # The share of 0 is the fourth root of 1/100.
        near(freqs(f["skewed"])["0"], 0.01 ** 0.25, sigma(0.316), "the most common value")
        for i, bound in enumerate(f["uniform"]["bounds"][1:-1], 1):
            near(float(bound), i / TARGET, sigma(0.5), f"bound {i} of uniform")
        for i, bound in enumerate(f["id"]["bounds"][1:-1], 1):
            near(float(bound) / ROWS, i / TARGET, sigma(0.5), f"bound {i} of id")
        for name, expected in (("id", 1), ("at", 1), ("uniform", 0)):
            near(f[name]["correlation"], expected, 6 / math.sqrt(N), f"correlation of {name}")
            near(h[name]["correlation"], expected, 6 / math.sqrt(N), f"heap's correlation of {name}")


def fair(cluster, row_store_part, deleted, rows=ROWS):
    """Row store and stripes have the parts of the sample that they have of the live rows, wherever rows were deleted."""
    with cluster.connect() as c:
        fill(c, row_store_part, rows)
        c.execute(f"SET default_statistics_target = {TARGET}")
        # One more column says in which tenth of the table a row is.
        c.execute("DROP TABLE IF EXISTS g; CREATE TABLE g (LIKE f, place int) USING firn")
        for threshold, there in ((100_000_000, "<="), (10, ">")):
            c.execute(f"SET firn.bulk_threshold = {threshold}")
            c.execute(f"INSERT INTO g SELECT *, id * 10 / {rows + 1} FROM h WHERE id {there} {int(rows * row_store_part)}")
        c.execute("RESET firn.bulk_threshold")
        c.execute(f"DELETE FROM g WHERE {deleted}")
        settle(c)
        truth = dict(c.execute("SELECT place::text, count(*) FROM g GROUP BY 1").fetchall())
        live = sum(truth.values())
        said = messages(c, "ANALYZE VERBOSE g")
        # Deleted rows make no sample smaller. What is handed on beyond the rows wanted covers most of chance.
        assert said["g"][2] >= 0.9 * min(N, live), said
        near(reltuples(c, "g"), live, live * 0.02, "reltuples")
        found = freqs(column(c, "g", "place"))
        for place, count in truth.items():
            near(found.get(place, 0), count / live, sigma(count / live) + 1 / N, f"tenth {place}")
        near(planned(c, "g"), live, live * 0.02, "the planner's rows")
        # VACUUM counts stripes exactly and the row store as heap's does, however often it runs.
        c.execute("VACUUM g")
        first = reltuples(c, "g")
        near(first, live, live * 0.02, "reltuples after VACUUM")
        for _ in range(4):
            c.execute("VACUUM g")
        assert reltuples(c, "g") == first, (reltuples(c, "g"), first)
        near(planned(c, "g"), live, live * 0.02, "the planner's rows after VACUUM")
        near(counts(c, "g")[0], live, live * 0.02, "n_live_tup")
        c.execute("DROP TABLE g")


def moved(cluster):
    """Rows that compaction has moved are not taken to be in the row store as well: the sample is as large as before."""
    with cluster.connect() as c:
        fill(c, 0.95)
        settle(c)
        c.execute(f"SET default_statistics_target = {TARGET}")
        assert messages(c, "ANALYZE VERBOSE f")["f"][2] == N
        c.execute("SELECT firn.compact('f')")
        settle(c)
        said = messages(c, "ANALYZE VERBOSE f")
        assert said["f"][2] >= 0.9 * N, said
        # Nearly half of the blocks, the row store's, are empty now: how many of those are among the ones looked at is chance,
        # in a sample without repetition.
        seen, blocks = said["f"][:2]
        full = 1 - c.execute("SELECT pg_relation_size('f') / 8192").fetchone()[0] / blocks
        near(reltuples(c, "f"), ROWS, ROWS * sigma(full, seen) * math.sqrt(1 - seen / blocks) / full, "reltuples")


def unbiased(cluster):
    """Where few stripes are looked at, counts vary, but not more to one side."""
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0; SET firn.stripe_rows = 500; SET default_statistics_target = 1")
        c.execute("CREATE TABLE u USING firn AS SELECT i AS id, repeat('wide', 100) AS v FROM generate_series(1, 20000) i")
        c.execute("DELETE FROM u WHERE id BETWEEN 4001 AND 4500 OR id BETWEEN 13001 AND 13500")
        found = []
        for _ in range(300):
            c.execute("ANALYZE u")
            found.append(reltuples(c, "u"))
        mean = sum(found) / len(found)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in found) / (len(found) - 1))
        print(f"    {mean:.0f} rows on average, {deviation:.0f} around it")
        near(mean, 19_000, 6 * deviation / math.sqrt(len(found)) + 1, "the mean of reltuples")
        c.execute("DROP TABLE u")


def in_a_transaction(cluster):
    """What ANALYZE has done shows in the statistics of its own transaction, as on heap."""
    with cluster.connect() as c:
        fill(c, 0.5, 5000)
        shown = []
        for table in ("h", "f"):
            settle(c)
            c.execute(f"BEGIN; ANALYZE {table}")
            shown.append(c.execute("SELECT analyze_count, last_analyze IS NULL, n_live_tup, n_mod_since_analyze FROM pg_stat_user_tables "
                                   "WHERE relname = %s", (table,)).fetchone())
            c.execute("COMMIT")
        assert shown[0] == shown[1] and shown[0][0] == 1, shown


def exact(cluster):
    """A table that fits into the sample is counted exactly, and its rows come in order."""
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 3000")
        c.execute("CREATE TABLE e (id int PRIMARY KEY, v text) USING firn")
        c.execute("INSERT INTO e SELECT i, 'v' || i % 7 FROM generate_series(1, 9000) i")
        c.execute("RESET firn.bulk_threshold; INSERT INTO e SELECT i, 'late' FROM generate_series(9001, 10000) i")
        # The first ten rows of the load are in the row store, too.
        c.execute("DELETE FROM e WHERE id BETWEEN 4001 AND 4100 OR id = 9500")
        c.execute("UPDATE e SET v = 'changed' WHERE id BETWEEN 1 AND 50")
        settle(c)
        assert messages(c, "ANALYZE VERBOSE e")["e"][2] == 9899
        assert reltuples(c, "e") == 9899
        id, v = column(c, "e", "id"), column(c, "e", "v")
        assert (id["distinct"], v["distinct"]) == (-1, 9), (id, v)
        near(freqs(v)["late"], 999 / 9899, 1e-6, "a frequency of all rows")
        # In the order of the table: row store, then stripes.
        truth = c.execute("SELECT corr(at, n) FROM (SELECT row_number() OVER (ORDER BY ctid) AS at, "
                          "row_number() OVER (ORDER BY id) AS n FROM e) x").fetchone()[0]
        near(id["correlation"], truth, 1e-4, "correlation of all rows")
        assert counts(c, "e")[:3] == (9899, 11, 0), counts(c, "e")
        c.execute("VACUUM e")
        assert reltuples(c, "e") == reltuples(c, "e_pkey") == 9899
        assert counts(c, "e")[:3] == (9899, 0, 0), counts(c, "e")
        # Without stripes it is heap's own.
        c.execute("CREATE TABLE e2 USING firn AS SELECT i FROM generate_series(1, 500) i WHERE i < 5")
        c.execute("ANALYZE e2")
        assert (reltuples(c, "e2"), planned(c, "e2")) == (4, 4)
        c.execute("DROP TABLE e, e2")


def moves(cluster):
    """Compaction, offload and load change no count; VACUUM after them neither."""
    with cluster.connect() as c:
        c.execute("CREATE TABLE m (id int PRIMARY KEY, v text) USING firn")
        c.execute("INSERT INTO m SELECT i, 'v' || i FROM generate_series(1, 9000) i")
        settle(c)
        c.execute("VACUUM ANALYZE m")
        assert counts(c, "m")[:3] == (9000, 0, 0), counts(c, "m")
        moved = c.execute("SELECT firn.compact('m')").fetchone()[0]
        assert moved == 9000, moved
        live, dead, changed, _, deleted = counts(c, "m")
        assert (live, dead, changed, deleted) == (9000, 9000, 0, 0), (live, dead, changed, deleted)
        near(planned(c, "m"), 9000, 9000, "the planner's rows between compaction and VACUUM")
        c.execute("ANALYZE m")
        assert (reltuples(c, "m"), planned(c, "m")) == (9000, 9000)
        c.execute("VACUUM m")
        assert (reltuples(c, "m"), planned(c, "m")) == (9000, 9000)
        assert counts(c, "m")[:2] == (9000, 0), counts(c, "m")
        for move in ("offload('m', 'cold')", "load('m')"):
            c.execute(f"SELECT firn.{move}")
            assert counts(c, "m")[:3] == (9000, 0, 0), (move, counts(c, "m"))
            c.execute("VACUUM m")
            assert (reltuples(c, "m"), planned(c, "m")) == (9000, 9000), move
        c.execute("DELETE FROM m WHERE id > 1000")
        assert counts(c, "m") == (1000, 8000, 8000, 4, 8000), counts(c, "m")
        c.execute("VACUUM FULL m")
        assert (reltuples(c, "m"), planned(c, "m")) == (1000, 1000)
        c.execute("DELETE FROM m WHERE id > 500")
        settle(c)
        c.execute("CREATE INDEX ON m (v)")
        if version() >= 18:
            # Without autovacuum an index build leaves counts as they are, of a heap table as well.
            c.execute("ANALYZE m")
        assert (reltuples(c, "m"), planned(c, "m")) == (500, 500)
        c.execute("VACUUM m")
        assert (reltuples(c, "m"), planned(c, "m")) == (500, 500)
        assert not c.execute("SELECT * FROM firn.check('m')").fetchall()
        # A rolled-back move leaves the counts, too.
        c.execute("INSERT INTO m SELECT i, 'w' FROM generate_series(10001, 10100) i")
        settle(c)
        c.execute("ANALYZE m")
        c.execute("BEGIN; SELECT firn.compact('m'); ROLLBACK")
        live, _, changed, _, _ = counts(c, "m")
        assert (live, changed) == (600, 0), (live, changed)
        c.execute("DROP TABLE m")


def dead_stripes(cluster):
    """Stripes that VACUUM removes were counted as dead before."""
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 50000")
        c.execute("CREATE TABLE d (id int, v text) USING firn")
        c.execute("INSERT INTO d SELECT i, md5(i::text) FROM generate_series(1, 100010) i")
        c.execute("DELETE FROM d WHERE id <= 50010")
        settle(c)
        c.execute("VACUUM d")
        assert c.execute("SELECT count(*) FROM firn.stripes('d')").fetchone()[0] == 1
        assert (reltuples(c, "d"), planned(c, "d")) == (50000, 50000), planned(c, "d")
        c.execute("VACUUM d")
        assert (reltuples(c, "d"), planned(c, "d"), counts(c, "d")[0]) == (50000, 50000, 50000)
        c.execute("DELETE FROM d")
        settle(c)
        c.execute("VACUUM d")
        assert (reltuples(c, "d"), counts(c, "d")[0]) == (0, 0), (reltuples(c, "d"), counts(c, "d"))
        c.execute("INSERT INTO d SELECT i, 'again' FROM generate_series(1, 30010) i; ANALYZE d")
        assert (reltuples(c, "d"), planned(c, "d")) == (30010, 30010)
        c.execute("DROP TABLE d")


def transactions(cluster):
    """Own rows count before they are committed, others' do not."""
    with cluster.connect() as c, cluster.connect() as other:
        c.execute("CREATE TABLE t (id int) USING firn; INSERT INTO t SELECT generate_series(1, 50000)")
        other.execute("BEGIN; INSERT INTO t SELECT generate_series(1, 30000)")
        other.execute("DELETE FROM t WHERE id <= 10000 AND ctid >= '(2147483648,0)'")
        settle(c)
        c.execute("ANALYZE t")
        near(reltuples(c, "t"), 50000, 500, "reltuples beside an open load")
        c.execute("BEGIN; INSERT INTO t SELECT generate_series(50001, 70000); DELETE FROM t WHERE id BETWEEN 20001 AND 21000")
        c.execute("ANALYZE t")
        near(reltuples(c, "t"), 69000, 690, "reltuples with own rows")
        c.execute("ROLLBACK")
        near(counts(c, "t")[0], 50000, 700, "n_live_tup after the rollback")
        gone = other.execute("SELECT 80000 - count(*) FROM t").fetchone()[0]
        other.execute("COMMIT")
        c.execute("ANALYZE t")
        near(reltuples(c, "t"), 80000 - gone, 800, "reltuples after the commit")
        c.execute("DROP TABLE t")


def partitions(cluster):
    """Partitions have their shares of their parent's sample, whatever their access method."""
    with cluster.connect() as c:
        c.execute(f"SET default_statistics_target = {TARGET}; SET firn.bulk_threshold = 10")
        c.execute("CREATE TABLE p (part int, v int, w text) PARTITION BY LIST (part)")
        sizes = {1: ("firn", 120_000), 2: ("heap", 60_000), 3: ("firn", 15_000), 4: ("firn", 5_000)}
        for part, (method, rows) in sizes.items():
            c.execute(f"CREATE TABLE p{part} PARTITION OF p FOR VALUES IN ({part}) USING {method}")
            c.execute(f"INSERT INTO p SELECT {part}, i, 'some text ' || i FROM generate_series(1, {rows}) i")
        total = sum(rows for _, rows in sizes.values())
        for activities in ("on", "off"):
            c.execute(f"SET track_activities = {activities}")
            c.execute("ANALYZE p")
            for part, (_, rows) in sizes.items():
                near(reltuples(c, f"p{part}"), rows, rows * 0.02, f"reltuples of partition {part}")
                assert planned(c, f"p{part}") == reltuples(c, f"p{part}")
            near(reltuples(c, "p"), total, total * 0.02, "reltuples of the parent")
            found = freqs(column(c, "p", "part"))
            for part, (_, rows) in sizes.items():
                # Shares go by blocks, and firn's are reckoned from the rows' width: a sixth is allowed for that.
                p = rows / total
                near(found.get(str(part), 0), p, sigma(p) + p / 6, f"partition {part}, track_activities {activities}")
        c.execute("DROP TABLE p")


def bounded(cluster):
    """Of a large table little is read: of many cold stripes few, of wide rows what memory bears."""
    cache = os.path.join(cluster.data, "firn_cache")
    with cluster.connect() as c:
        fill(c, 0)
        c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 2500; CREATE TABLE many USING firn AS TABLE f")
        stripes = c.execute("SELECT firn.offload('many', 'cold')").fetchone()[0]
        assert stripes == 80, stripes
        shutil.rmtree(cache, ignore_errors=True)
        c.execute(f"SET default_statistics_target = {TARGET}")
        assert messages(c, "ANALYZE VERBOSE many")["many"][2] == N
        near(reltuples(c, "many"), ROWS, ROWS * 0.02, "reltuples of a cold table")
        fetched = sum(len(files) for folder, _, files in os.walk(cache) if len(os.path.basename(folder)) == 2)
        # 3,000 rows want at least a tenth of the stripes, to have not too many rows of one.
        assert 1 <= fetched <= 20, f"{fetched} of {stripes} objects were fetched"
        near(column(c, "many", "id")["correlation"], 1, 0.01, "correlation of a cold table")
        c.execute("DROP TABLE many")
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 10; SET maintenance_work_mem = '1MB'")
        c.execute("CREATE TABLE wide (id int, v text) USING firn")
        c.execute("INSERT INTO wide SELECT i, repeat(chr(65 + i % 26), 500000) FROM generate_series(1, 400) i")
        in_sample = messages(c, "ANALYZE VERBOSE wide")["wide"][2]
        # 64 MB are used in any case: 134 rows and some.
        assert 30 <= in_sample <= 250, in_sample
        assert reltuples(c, "wide") == 400
        assert column(c, "wide", "id")["distinct"] == -1
        c.execute("DROP TABLE wide")


def beyond_files(cluster):
    """A table that as heap would need a second file: PostgreSQL must not be told blocks of files that do not exist."""
    # With the sample of the other cases one run in some three hundred is more than 2 % off by chance alone (standard deviation 0.4 %, in steps of up to 1.7 %).
    rows, wanted = 560_000, 4 * N
    with cluster.connect() as c:
        c.execute(f"SET default_statistics_target = {4 * TARGET}; SET firn.bulk_threshold = 1000")
        columns = ", ".join(f"c{i} bigint" for i in range(230))
        c.execute(f"CREATE TABLE b (id int, {columns}) USING firn")
        c.execute(f"INSERT INTO b SELECT i FROM generate_series(1, {rows}) i")
        visited, told, in_sample = messages(c, "ANALYZE VERBOSE b")["b"]
        assert (visited, told) == (wanted, 131072), (visited, told)
        # Few blocks of many are visited, and how many of these carry something is left to chance.
        assert in_sample > 0.9 * wanted, in_sample
        near(reltuples(c, "b"), rows, rows * 0.02, "reltuples")
        c.execute("DROP TABLE b")


def run(tally, pattern):
    cluster = Cluster("analyze", conf=["autovacuum = off"]).create()
    try:
        store = os.path.join(cluster.root, "store")
        os.mkdir(store)
        os.chmod(store, 0o777)
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
            c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
        cases = {
            "statistics as heap's, all in stripes": lambda: alike(cluster, 0),
            "statistics as heap's, half in the row store": lambda: alike(cluster, 0.5),
            "fair parts, a twentieth in the row store": lambda: fair(cluster, 0.05, "false"),
            "fair parts, half in the row store": lambda: fair(cluster, 0.5, "id % 3 = 0"),
            "fair parts, most in the row store": lambda: fair(cluster, 0.9, "false"),
            "fair parts, a run of rows deleted": lambda: fair(cluster, 0.1, "id BETWEEN 30001 AND 90000"),
            "fair parts, nine of ten rows deleted": lambda: fair(cluster, 0.1, "id % 10 <> 0"),
            "fair parts, little more rows than the sample": lambda: fair(cluster, 0.5, "id % 7 = 0", 5000),
            "moved rows": lambda: moved(cluster),
            "to no side": lambda: unbiased(cluster),
            "in a transaction": lambda: in_a_transaction(cluster),
            "small tables exactly": lambda: exact(cluster),
            "moves change no count": lambda: moves(cluster),
            "stripes removed": lambda: dead_stripes(cluster),
            "own and others' transactions": lambda: transactions(cluster),
            "shares of partitions": lambda: partitions(cluster),
            "bounded reading": lambda: bounded(cluster),
            "more blocks than files hold": lambda: beyond_files(cluster),
            "damaged page": lambda: damaged(cluster),
            "pages asked for once": lambda: reads_once(cluster),
            "server log": lambda: quiet(cluster),
        }
        for name, body in cases.items():
            if pattern in name:
                tally.case(f"analyze: {name}", body)
    finally:
        cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()
