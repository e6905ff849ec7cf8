"""Cold stripes: a local folder and a real S3 server; faults of the store; damaged bytes; other readers."""
import contextlib
import os
import time

import duckdb
import psycopg
import pyarrow.parquet

from harness.alone import alone
from harness.cluster import Cluster
from harness.store import KEY, SECRET, Gateway


def fresh(c, name="f"):
    c.execute(f"DROP TABLE IF EXISTS {name}, h")
    c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 500")
    c.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text, n numeric(10,2), t timestamp) USING firn")
    c.execute(f"INSERT INTO {name} SELECT i, 'v' || i % 50, i / 4.0, '2020-01-01'::timestamp + i * interval '1 hour' "
              "FROM generate_series(1, 3000) i")
    c.execute(f"CREATE TABLE h USING heap AS TABLE {name}")


def same(c, name="f"):
    n = c.execute(f"SELECT count(*) FROM (SELECT * FROM h EXCEPT ALL SELECT * FROM {name}) x").fetchone()[0]
    m = c.execute(f"SELECT count(*) FROM (SELECT * FROM {name} EXCEPT ALL SELECT * FROM h) x").fetchone()[0]
    assert (n, m) == (0, 0), (n, m)
    assert not c.execute(f"SELECT * FROM firn.check('{name}')").fetchall()


def life(cluster, server):
    """Offload, read, look up, change, insert, load."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM h")
        assert c.execute(f"SELECT firn.offload('f', '{server}')").fetchone()[0] >= 5
        # What this very transaction has written is needed.
        assert not c.execute("SELECT * FROM firn.unneeded('f')").fetchall()
        c.execute("COMMIT")
        assert not c.execute("SELECT * FROM firn.unneeded('f')").fetchall()
        locations = {r[0] for r in c.execute("SELECT location FROM firn.stripes('f')")}
        assert locations == {server}, locations
        same(c)
        for sql in ("UPDATE @ SET v = 'changed' WHERE id = 77", "DELETE FROM @ WHERE id BETWEEN 100 AND 110",
                    "INSERT INTO @ SELECT i, 'late', 0, now() FROM generate_series(4000, 4100) i",
                    "UPDATE @ SET n = n + 1 WHERE id % 100 = 0"):
            with c.transaction():
                for t in ("h", "f"):
                    c.execute(sql.replace("@", t))
        same(c)
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
        assert c.execute("SELECT v FROM f WHERE id = 77").fetchone() == ("changed",)
        assert c.execute("SELECT n FROM f WHERE id = 78").fetchone()[0] * 4 == 78
        c.execute("RESET enable_seqscan; RESET firn.enable_scan")
        c.execute(f"SELECT firn.offload('f', '{server}')")
        c.execute("VACUUM f")
        same(c)
        assert c.execute("SELECT firn.load('f')").fetchone()[0] >= 5
        same(c)
        unneeded = c.execute("SELECT count(*) FROM firn.unneeded('f')").fetchone()[0]
        assert unneeded >= 5, unneeded
        try:
            c.execute(f"DROP SERVER {server}")
            raise AssertionError("a server in use was dropped")
        except psycopg.errors.DependentObjectsStillExist:
            pass


def partitions(cluster):
    """Partitions through their parent; detached ones keep their rows."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS p, p1")
        c.execute("SET firn.bulk_threshold = 10")
        c.execute("CREATE TABLE p (id int, at date) PARTITION BY RANGE (at)")
        for m in (1, 2, 3):
            c.execute(f"CREATE TABLE p{m} PARTITION OF p FOR VALUES FROM ('2020-0{m}-01') TO ('2020-0{m + 1}-01') USING firn")
        c.execute("INSERT INTO p SELECT i, '2020-01-01'::date + i % 90 FROM generate_series(1, 2000) i")
        before = c.execute("SELECT count(*), sum(id) FROM p").fetchone()
        assert c.execute("SELECT firn.offload('p', 'cold')").fetchone()[0] == 3
        assert c.execute("SELECT count(*), sum(id) FROM p").fetchone() == before
        n = c.execute("SELECT count(*) FROM p1").fetchone()
        c.execute("ALTER TABLE p DETACH PARTITION p1")
        assert c.execute("SELECT count(*) FROM p1").fetchone() == n
        c.execute("CREATE TABLE p4 PARTITION OF p FOR VALUES FROM ('2020-04-01') TO ('2020-05-01') USING firn")
        c.execute("INSERT INTO p SELECT i, '2020-04-02' FROM generate_series(1, 100) i")
        assert c.execute("SELECT local_bytes > 0, cold_bytes FROM firn.table_info('p4')").fetchone() == (True, 0)
        c.execute("DROP TABLE p, p1")


@contextlib.contextmanager
def without_autovacuum(cluster):
    """A session beside which no autovacuum or autoanalyze is begun: one of any table, begun before a change is committed,
    may see what that took away, and VACUUM leaves it."""
    with cluster.connect() as c:
        c.execute("ALTER SYSTEM SET autovacuum = off")
        c.execute("SELECT pg_reload_conf()")
        try:
            yield c
        finally:
            c.execute("ALTER SYSTEM RESET autovacuum")
            c.execute("SELECT pg_reload_conf()")


def space(cluster):
    """One VACUUM after the offload gives the files' space back, however the rows came into stripes."""
    with without_autovacuum(cluster) as c:
        for way in (("bulk", "SET firn.bulk_threshold = 10"), ("compacted", "SET firn.bulk_threshold = 1000000")):
            space_of(cluster, c, *way)
        c.execute("DROP TABLE g")


def space_of(cluster, c, name, prepare):
    c.execute("DROP TABLE IF EXISTS g")
    c.execute(prepare)
    c.execute("SET firn.stripe_rows = 20000")
    c.execute("CREATE TABLE g (id int PRIMARY KEY, v text) USING firn")
    c.execute("INSERT INTO g SELECT i, md5(i::text) FROM generate_series(1, 100000) i")
    c.execute("SELECT firn.compact('g')")
    size = "SELECT pg_relation_size('g') + pg_relation_size(reltoastrelid) FROM pg_class WHERE relname = 'g'"
    before = c.execute(size).fetchone()[0]
    c.execute("SELECT firn.offload('g', 'cold')")
    alone(c)
    c.execute("VACUUM g")
    after = c.execute(size).fetchone()[0]
    assert after <= 65536 < before // 10, (name, before, after)
    assert c.execute("SELECT count(*), sum(id) FROM g").fetchone() == (100000, 5000050000)
    assert c.execute("SELECT v = md5('777') FROM g WHERE id = 777").fetchone() == (True,)
    assert not c.execute("SELECT * FROM firn.check('g')").fetchall()
    # The same while another session's snapshot is older: nothing moves that it may need.
    c.execute("SELECT firn.load('g')")
    with cluster.connect() as old:
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert old.execute("SELECT sum(id) FROM g").fetchone() == (5000050000,)
        c.execute("SELECT firn.offload('g', 'cold')")
        c.execute("VACUUM g")
        c.execute("VACUUM (ANALYZE) g")
        assert old.execute("SELECT sum(id) FROM g").fetchone() == (5000050000,)
        assert old.execute("SELECT v = md5('4242') FROM g WHERE id = 4242").fetchone() == (True,)
        old.execute("COMMIT")
    alone(c)
    c.execute("VACUUM")
    assert c.execute(size).fetchone()[0] <= 65536, name


def dead(cluster):
    """VACUUM removes stripes whose rows are all deleted, local or cold, once no snapshot sees them."""
    with without_autovacuum(cluster) as c, cluster.connect() as old:
        c.execute("DROP TABLE IF EXISTS g")
        c.execute("SET firn.bulk_threshold = 0; SET firn.stripe_rows = 20000")
        c.execute("CREATE TABLE g (id int PRIMARY KEY, v text) USING firn")
        c.execute("INSERT INTO g SELECT i, md5(i::text) FROM generate_series(1, 100000) i")
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert old.execute("SELECT count(*) FROM g").fetchone() == (100000,)
        c.execute("DELETE FROM g WHERE id <= 70000")
        c.execute("VACUUM g")
        assert c.execute("SELECT stripes FROM firn.table_info('g')").fetchone() == (5,)
        assert old.execute("SELECT v = md5('3') FROM g WHERE id = 3").fetchone() == (True,)
        old.execute("COMMIT")
        alone(c)
        c.execute("VACUUM g")
        assert c.execute("SELECT stripes, stripe_rows, deleted_rows FROM firn.table_info('g')").fetchone() == (2, 40000, 10000)
        assert c.execute("SELECT count(*), min(id), sum(id) FROM g").fetchone() == (30000, 70001, 2550015000)
        # Index entries of removed stripes lead nowhere, and their keys are free.
        c.execute("SET enable_seqscan = off")
        assert c.execute("SELECT id FROM g WHERE id IN (1, 20000, 40001, 70000, 70001)").fetchall() == [(70001,)]
        c.execute("INSERT INTO g SELECT i, 'again' FROM generate_series(1, 50000) i")
        assert c.execute("SELECT v FROM g WHERE id IN (1, 50000)").fetchall() == [("again",), ("again",)]
        assert not c.execute("SELECT * FROM firn.check('g')").fetchall()
        c.execute("SELECT firn.offload('g', 'cold')")
        c.execute("DELETE FROM g")
        alone(c)
        c.execute("VACUUM g")
        assert c.execute("SELECT stripes FROM firn.table_info('g')").fetchone() == (0,)
        assert c.execute("SELECT count(*) > 0 FROM firn.unneeded('g')").fetchone() == (True,)
        assert not c.execute("SELECT * FROM firn.check('g')").fetchall()
        c.execute("DROP TABLE g")


def seen(cluster):
    """What firn.stripes and firn.tables say of a table of known content."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS z; DROP TYPE IF EXISTS mood")
        c.execute("SET timezone = 'UTC'; SET datestyle = 'ISO'; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 100")
        c.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        c.execute("CREATE TABLE z (a int, b numeric(10,2), c numeric(30,4), d date, e timestamp, f timestamptz, g time, "
                  "h uuid, i text, j bytea, k mood, l bool, m float8, n float8, o int[], \"p \"\"q\" text) USING firn")
        c.execute("INSERT INTO z SELECT x, -x / 4.0, 123456789.1234 * x, date '2020-01-01' + x, timestamp '2020-01-01' + x * interval '1 min', "
                  "timestamptz '2020-01-01 00:00+00' + x * interval '1 s', time '10:00' + x * interval '1 s', "
                  "lpad(x::text, 32, '0')::uuid, 'text' || lpad(x::text, 50, '0'), '\\x00ff', 'happy', x % 2 = 0, x / 8.0, 'NaN', "
                  "ARRAY[x], CASE WHEN x > 3 THEN E'say \"\\\\\"\\n' END FROM generate_series(1, 150) x")
        first, second = c.execute("SELECT zone_maps FROM firn.stripes('z') ORDER BY slot").fetchall()
        bounds = {k: (v["min"], v["max"]) for k, v in first[0].items()}
        long = "text" + "0" * 28
        assert bounds == {
            "a": (1, 100), "b": (-25.0, -0.25), "c": (123456789.1234, 12345678912.34), "d": ("2020-01-02", "2020-04-10"),
            "e": ("2020-01-01 00:01:00", "2020-01-01 01:40:00"), "f": ("2020-01-01 00:00:01+00", "2020-01-01 00:01:40+00"),
            "g": ("10:00:01", "10:01:40"),
            "h": ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000100"),
            "i": (long, long[:-1] + "1"), "j": ("\\x00ff", "\\x00ff"), "k": ("happy", "happy"), "l": (False, True),
            "m": (0.125, 12.5), "n": (None, None), "o": (None, None), 'p "q': ('say "\\"\n', 'say "\\"\n')}, bounds
        assert first[0]['p "q']["nulls"] == 3 and first[0]["i"]["exact"] is False and first[0]["n"]["nan"] is True
        assert second[0]["a"] == {"min": 101, "max": 150, "nulls": 0}
        c.execute("DELETE FROM z WHERE a <= 7")
        c.execute("ANALYZE z")
        assert c.execute("SELECT rows, stripes, stripe_rows, deleted_rows, local_bytes > 0, cold_bytes FROM firn.tables "
                         "WHERE relation = 'z'::regclass").fetchone() == (143, 2, 150, 7, True, 0)
        c.execute("DROP TABLE z; DROP TYPE mood")
        # Stripes that have a column in another form than its type's have no bounds of it: points in time of the last 30 years, NaN,
        # integers from before the column's were oids.
        c.execute("CREATE TABLE z (a timestamp, b timestamptz, c numeric(10,2), d int) USING firn")
        c.execute("INSERT INTO z VALUES ('4713-01-01 BC', '2020-01-01 00:00+00', 'NaN', -1), ('294276-06-06', '294276-06-06 00:00+00', 1, 7)")
        c.execute("ALTER TABLE z ALTER d TYPE oid")
        c.execute("INSERT INTO z VALUES ('4713-01-01 BC', '2020-01-01 00:00+00', 2, 5), ('2020-01-01', NULL, 1, 7)")
        first, second = ({k: (v["min"], v["max"]) for k, v in z.items()} for [z] in c.execute("SELECT zone_maps FROM firn.stripes('z') ORDER BY slot"))
        assert first == dict.fromkeys("abcd", (None, None)), first
        assert second == {"a": ("4713-01-01 00:00:00 BC", "2020-01-01 00:00:00"), "b": ("2020-01-01 00:00:00+00",) * 2, "c": (1.0, 2.0), "d": ("5", "7")}, second
        c.execute("DROP TABLE z")


def expect(c, sql, *states):
    try:
        c.execute(sql)
    except psycopg.Error as e:
        assert e.sqlstate in states, (e.sqlstate, str(e))
        assert SECRET not in str(e) and KEY not in str(e), "a secret in an error"
        return str(e)
    raise AssertionError(f"no error from {sql}")


def faults(cluster, store):
    with cluster.connect() as c:
        fresh(c)
        c.execute("SELECT firn.offload('f', 'cold')")
        c.execute("SET firn.cache_directory = 'other_cache'")
        files = [os.path.join(d, f) for d, _, fs in os.walk(store) for f in fs]
        key = c.execute("SELECT object_key FROM firn.stripes('f') ORDER BY slot LIMIT 1").fetchone()[0]
        path = next(f for f in files if f.endswith(key))
        original = open(path, "rb").read()
        for damage in (b"", original[: len(original) // 2], original[:100] + b"\x00" * 200 + original[300:]):
            with open(path, "wb") as f:
                f.write(damage)
            cluster.fresh_cache = getattr(cluster, "fresh_cache", 0) + 1
            with cluster.connect() as d:
                d.execute(f"SET firn.cache_directory = 'cache{cluster.fresh_cache}'")
                try:
                    d.execute("SELECT sum(n), max(v), max(t) FROM f").fetchone()
                    rows = d.execute("SELECT * FROM firn.check('f')").fetchall()
                    assert rows, "damage not found by firn.check"
                except psycopg.Error as e:
                    assert e.sqlstate == "XX001", (e.sqlstate, str(e))
        # What read it whole finds it when it has been put back, though the cache has it damaged.
        with open(path, "wb") as f:
            f.write(damage)
        for whole in ("SELECT length(firn.stripe_file('f', slot)) > 0 FROM firn.stripes('f')", "SELECT firn.load('f') > 0"):
            with cluster.connect() as d:
                d.execute(f"SET firn.cache_directory = 'cache_whole{len(whole)}'")
                expect(d, whole, "XX001")
            with open(path, "wb") as f:
                f.write(original)
            with cluster.connect() as d:
                d.execute(f"SET firn.cache_directory = 'cache_whole{len(whole)}'; BEGIN")
                assert set(d.execute(whole).fetchall()) == {(True,)}
                d.execute("ROLLBACK")
            with open(path, "wb") as f:
                f.write(damage)
        os.rename(path, path + ".away")
        with cluster.connect() as d:
            d.execute("SET firn.cache_directory = 'cache_gone'")
            expect(d, "SELECT sum(n), max(v), max(t) FROM f", "58P01")
        with open(path, "wb") as f:
            f.write(original)
        os.unlink(path + ".away")
        with cluster.connect() as d:
            d.execute("SET firn.cache_directory = 'cache_back'")
            same(d)


def flipped(cluster, store):
    """One flipped bit in each page of an object, and in its metadata: XX001 from a query and from a look-up, and
    firn.check says where it is."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("SELECT firn.offload('f', 'cold')")
        key, slot, zones = c.execute("SELECT object_key, slot, zone_maps FROM firn.stripes('f') ORDER BY slot LIMIT 1").fetchone()
        path = next(os.path.join(d, f) for d, _, fs in os.walk(store) for f in fs if os.path.join(d, f).endswith(key))
    with open(path, "rb") as f:
        original = f.read()
    group = pyarrow.parquet.ParquetFile(path).metadata.row_group(0)
    places = []
    for i in range(group.num_columns):
        chunk = group.column(i)
        name, end = chunk.path_in_schema, chunk.data_page_offset + chunk.total_compressed_size
        if chunk.has_dictionary_page:
            end = chunk.dictionary_page_offset + chunk.total_compressed_size
            middle = (chunk.dictionary_page_offset + chunk.data_page_offset) // 2
            places.append((middle, name, f'the dictionary of column "{name}"'))
        # The first byte of a page is its header's, the middle one a value's.
        places += [(at, name, f'page 0 of column "{name}"') for at in (chunk.data_page_offset + 1, (chunk.data_page_offset + end) // 2)]
    end_of_pages = end
    places += [(at, "n", "the metadata") for at in ((end_of_pages + len(original)) // 2, len(original) - 6)]
    assert any("dictionary" in where for _, _, where in places), "no column has a dictionary"
    for number, (at, column, where) in enumerate(places):
        damaged = bytearray(original)
        damaged[at] ^= 1 << number % 8
        with open(path, "wb") as f:
            f.write(damaged)
        with cluster.connect() as c:
            c.execute(f"SET firn.cache_directory = 'flipped{number}'")
            # (From 16 on an index's order serves DISTINCT, and the index has the values.)
            c.execute("SET enable_indexonlyscan = off; SET enable_indexscan = off")
            expect(c, f"SELECT count(DISTINCT {column}) FROM f", "XX001")
        with cluster.connect() as c:
            # Another folder: what the query fetched must not help.
            c.execute(f"SET firn.cache_directory = 'flipped_too{number}'")
            found = c.execute("SELECT object, problem FROM firn.check('f') WHERE object = %s", (f"stripe {slot} of f",)).fetchall()
            assert len(found) == 2 and "CRC-32C" in found[0][1] and where in found[1][1], (where, found)
            c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
            # The look-up by index decodes only this row's pages.
            text = expect(c, f"SELECT {column} FROM f WHERE id = {zones['id']['min']}", "XX001") if column != "id" else None
            assert text is None or where in text, (where, text)
    with open(path, "wb") as f:
        f.write(original)
    with cluster.connect() as c:
        c.execute("SET firn.cache_directory = 'flipped_back'")
        same(c)


def cursors(cluster, store):
    """A cursor that turns back within a stripe reads neither the stripes before it nor columns that it has not asked for."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("SELECT firn.offload('f', 'cold')")
        keys = [key for (key,) in c.execute("SELECT object_key FROM firn.stripes('f') ORDER BY slot")]
        first, third = (next(os.path.join(d, f) for d, _, fs in os.walk(store) for f in fs if os.path.join(d, f).endswith(keys[i])) for i in (0, 2))
        with open(third, "rb") as f:
            original = f.read()
        chunk = next(c for c in map(pyarrow.parquet.ParquetFile(third).metadata.row_group(0).column, range(4)) if c.path_in_schema == "t")
        damaged = bytearray(original)
        damaged[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
        os.rename(first, first + ".away")
        with open(third, "wb") as f:
            f.write(damaged)
        c.execute("SET firn.cache_directory = 'turning'")
        expect(c, "SELECT max(t) FROM f WHERE id > 1200", "XX001")
        c.execute("BEGIN; DECLARE c CURSOR FOR SELECT id FROM f WHERE id > 1200; MOVE 100 IN c")
        for fetch, ids in (("FETCH BACKWARD 2", [1299, 1298]), ("FETCH 4", [1299, 1300, 1301, 1302]), ("FETCH PRIOR", [1301])):
            assert [id for (id,) in c.execute(fetch + " FROM c")] == ids, fetch
        c.execute("ROLLBACK")
        os.rename(first + ".away", first)
        with open(third, "wb") as f:
            f.write(original)
        c.execute("SET firn.cache_directory = 'turned'")
        same(c)


def looked_up(cluster, store):
    """The columns of a B-tree's conditions are not read to check what it has found; those of a hash index are."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("CREATE INDEX hashed ON f USING hash (id)")
        c.execute("SELECT firn.offload('f', 'cold')")
        key = c.execute("SELECT object_key FROM firn.stripes('f') ORDER BY slot OFFSET 2").fetchone()[0]
        path = next(os.path.join(d, f) for d, _, fs in os.walk(store) for f in fs if os.path.join(d, f).endswith(key))
        with open(path, "rb") as f:
            original = f.read()
        chunk = next(c for c in map(pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column, range(4)) if c.path_in_schema == "id")
        damaged = bytearray(original)
        damaged[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
        with open(path, "wb") as f:
            f.write(damaged)
        c.execute("SET firn.cache_directory = 'looked_up'; SET firn.enable_scan = off; SET enable_seqscan = off; SET enable_bitmapscan = off")
        look_up = "SELECT v FROM f WHERE id = 1300"
        for index in ("f_pkey", "hashed"):
            c.execute("BEGIN")
            c.execute("DROP INDEX hashed" if index == "f_pkey" else "ALTER TABLE f DROP CONSTRAINT f_pkey")
            plan = str(c.execute("EXPLAIN " + look_up).fetchall())
            assert f"Index Scan using {index} " in plan, plan
            if index == "hashed":
                expect(c, look_up, "XX001")
            else:
                assert c.execute(look_up).fetchall() == [("v0",)]
            c.execute("ROLLBACK")
        with open(path, "wb") as f:
            f.write(original)
        c.execute("SET firn.cache_directory = 'looked_up_again'; RESET firn.enable_scan; RESET enable_seqscan; RESET enable_bitmapscan")
        same(c)


def kept_snapshots(cluster):
    """What a transaction with one snapshot offloads or loads are stripes of its snapshot: it goes on seeing the table as it was."""
    ways = {
        "compact": ("SET firn.bulk_threshold = 1000000", "SELECT firn.compact('k')", "SELECT firn.offload('k', 'cold')"),
        "load rows": ("SET firn.bulk_threshold = 0", "SET firn.bulk_threshold = 0; INSERT INTO k SELECT i, 'new' FROM generate_series(2001, 2500) i", "SELECT firn.offload('k', 'cold')"),
        "offload": ("SET firn.bulk_threshold = 0", "SELECT firn.offload('k', 'cold')", "SELECT firn.load('k')"),
        "load": ("SET firn.bulk_threshold = 0", "SELECT firn.load('k')", "SELECT firn.offload('k', 'cold')"),
        "nothing": ("SET firn.bulk_threshold = 0", "SELECT 1", "SELECT firn.offload('k', 'cold')"),
    }
    for level in ("REPEATABLE READ", "SERIALIZABLE"):
        for name, (before, other, then) in ways.items():
            with cluster.connect() as c, cluster.connect() as w:
                c.execute("DROP TABLE IF EXISTS k, kept; SET firn.stripe_rows = 20")
                c.execute(f"{before}; CREATE TABLE k (id int PRIMARY KEY, v text) USING firn; INSERT INTO k SELECT i, 'v' || i FROM generate_series(1, 1000) i")
                if name == "load":
                    c.execute("SELECT firn.offload('k', 'cold')")
                seen = "SELECT count(*), count(DISTINCT id), sum(id) FROM k"
                c.execute(f"BEGIN ISOLATION LEVEL {level}")
                was = c.execute(seen).fetchone()
                w.execute("SET firn.stripe_rows = 20")
                w.execute(other)
                assert c.execute(seen).fetchone() == was, (level, name)
                moved = c.execute(then).fetchone()[0]
                if name in ("nothing", "load rows"):
                    assert moved == 50, (level, name, moved)
                for setting in ("on", "off"):
                    c.execute(f"SET firn.enable_scan = {setting}; SET enable_seqscan = {setting}")
                    assert c.execute(seen).fetchone() == was, (level, name, was, c.execute(seen).fetchone())
                c.execute("CREATE TABLE kept USING heap AS TABLE k; COMMIT")
                assert c.execute("SELECT count(*), count(DISTINCT id), sum(id) FROM kept").fetchone() == was
                rows = 1500 if name == "load rows" else 1000
                assert c.execute(seen).fetchone()[:2] == (rows, rows)
                assert not c.execute("SELECT * FROM firn.check('k')").fetchall()
                c.execute("DROP TABLE k, kept")


def rolled_back(cluster, store):
    """A move that was rolled back is done again, and what it had written first has gone meanwhile: a session that read that finds the stripe where it is."""
    read = "SELECT count(*), sum(length(v)) FROM r"
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0; SET firn.cache_directory = 'rolled_back'; SET firn.page_cache = 0")
        for index in ("", ", PRIMARY KEY (id)"):
            c.execute(f"DROP TABLE IF EXISTS r; CREATE TABLE r (id int, v text{index}) USING firn")
            c.execute("INSERT INTO r SELECT i, (SELECT string_agg(md5(j::text), '') FROM generate_series(i * 90, i * 90 + 89) j) FROM generate_series(1, 3) i")
            # An object, whose blocks the cache has as well.
            c.execute("BEGIN; SELECT firn.offload('r', 'cold')")
            assert c.execute(read).fetchone() == (3, 8640)
            [[key]] = c.execute("SELECT object_key FROM firn.stripes('r')").fetchall()
            c.execute("ROLLBACK")
            os.remove(os.path.join(store, key))
            c.execute(f"SET firn.cache_directory = 'rolled_back{len(index)}'; SELECT firn.offload('r', 'cold')")
            assert c.execute(read).fetchone() == (3, 8640)
            # Chunks, of a transaction and of a part of one. Those of before are pruned.
            c.execute("BEGIN; SELECT firn.load('r')")
            assert c.execute(read).fetchone() == (3, 8640)
            c.execute("ROLLBACK")
            c.execute("VACUUM r")
            c.execute("BEGIN; SELECT firn.load('r')")
            assert c.execute(read).fetchone() == (3, 8640)
            c.execute("ROLLBACK; BEGIN; SAVEPOINT s; SELECT firn.load('r')")
            assert c.execute(read).fetchone() == (3, 8640)
            c.execute("SELECT firn.offload('r', 'cold'); ROLLBACK TO s; SELECT firn.load('r')")
            assert c.execute(read).fetchone() == (3, 8640)
            c.execute("COMMIT")
            assert not c.execute("SELECT * FROM firn.check('r')").fetchall()


def not_read(cluster, store):
    """With the store away: an equal key is told, and plans are made; neither looks at a value of a cold row."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("CREATE INDEX ON f (t); ANALYZE f; SELECT firn.offload('f', 'cold')")
    os.rename(store, store + ".away")
    try:
        with cluster.connect() as c:
            c.execute("SET firn.cache_directory = 'not_read'")
            expect(c, "INSERT INTO f VALUES (1500, '')", "23505")
            c.execute("INSERT INTO f VALUES (5000, '')")
            expect(c, "UPDATE f SET id = 1500 WHERE id = 5000", "23505")
            c.execute("DELETE FROM f WHERE id = 5000")
            c.execute("SET firn.enable_scan = off; SET enable_seqscan = off")
            for condition in ("id > 2999", "id < 2", "t > now() - interval '1 day'", "t < '1999-01-01'"):
                c.execute("EXPLAIN SELECT * FROM f WHERE " + condition)
            # (It is away.)
            expect(c, "SELECT * FROM f WHERE id = 1500", "HV00N")
    finally:
        os.rename(store + ".away", store)
    with cluster.connect() as c:
        c.execute("SET firn.cache_directory = 'not_read_back'")
        same(c)


def brin(cluster, store):
    """A BRIN index is built anew without a look at cold stripes, which no plan would use it for; a new one is refused where a row cannot be read."""
    with cluster.connect() as c:
        c.execute("SET firn.cache_directory = 'brin'; SET firn.bulk_threshold = 0; CREATE TABLE ranges (id int, k int) USING firn; INSERT INTO ranges SELECT i, i FROM generate_series(1, 5000) i; CREATE INDEX ranges_k ON ranges USING brin (k)")
        c.execute("SELECT firn.offload('ranges', 'cold')")
        os.rename(store, store + ".away")
        try:
            for statement in ("REINDEX INDEX ranges_k", "REINDEX TABLE ranges", "VACUUM FULL ranges"):
                c.execute(statement)
            expect(c, "CREATE INDEX ON ranges USING brin (id)", "HV00N")
        finally:
            os.rename(store + ".away", store)
        c.execute("CREATE TABLE twin USING heap AS SELECT * FROM ranges; UPDATE pg_class SET reltuples = -1 WHERE relname IN ('ranges', 'twin'); CREATE INDEX ON ranges USING brin (id); CREATE INDEX ON twin USING brin (id)")
        [[rows], [as_heap]] = c.execute("SELECT reltuples FROM pg_class WHERE relname IN ('ranges', 'twin')").fetchall()
        assert rows == as_heap, (rows, as_heap)
        c.execute("DROP TABLE ranges, twin")


def damaged_chunk(cluster):
    """Bytes of a local stripe changed on disk: a clear error, the server lives."""
    with cluster.connect() as c:
        fresh(c)
        path = c.execute("SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE relname = 'f'").fetchone()[0]
        c.execute("CHECKPOINT")
    cluster.stop()
    full = os.path.join(cluster.data, path)
    with open(full, "r+b") as f:
        data = bytearray(f.read())
        # The first chunk begins with Parquet's magic; spoil the pages of the first stripe after it.
        at = data.index(b"PAR1")
        for i in range(at + 8, at + 300):
            data[i] ^= 0x5A
        f.seek(0)
        f.write(data)
    cluster.start()
    with cluster.connect() as c:
        expect(c, "SELECT sum(n), max(v), max(t) FROM f", "XX001")
        assert c.execute("SELECT count(*) FROM firn.check('f')").fetchone()[0] > 0
        c.execute("DROP TABLE f")


def documents(cluster, store):
    """A stripe with hundreds of pages of documents: the same rows cold, by look-ups of new sessions as well, and loaded again; read by others;
    and each flipped bit of its page map is an error or changes nothing."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("DROP TABLE h; SET firn.stripe_rows = 4000; SET firn.bulk_threshold = 0")
        c.execute("CREATE TABLE h USING heap AS SELECT i AS id, jsonb_build_object('k', i, 'v', (SELECT string_agg(md5((i * 3 + g)::text), '') FROM generate_series(1, 12) g)) AS doc, "
                  "(SELECT string_agg(md5((i + g)::text), '') FROM generate_series(1, 40 + i % 9) g) AS note FROM generate_series(1, 8000) i")
        c.execute("DROP TABLE f; CREATE TABLE f (id int PRIMARY KEY, doc jsonb, note text) USING firn; INSERT INTO f TABLE h ORDER BY id")
        assert c.execute("SELECT count(*), sum(rows) FROM firn.stripes('f')").fetchone() == (2, 8000)
        slot = c.execute("SELECT min(slot) FROM firn.stripes('f')").fetchone()[0]
        data = c.execute(f"SELECT firn.stripe_file('f', {slot})").fetchone()[0]
        path = os.path.join(cluster.root, "documents.parquet")
        with open(path, "wb") as f:
            f.write(data)
        keys = pyarrow.parquet.ParquetFile(path).metadata.metadata
        maps = {name: int(value.split(b"|")[0]) for name, value in keys.items() if name.startswith(b"firn.page_map.")}
        assert set(maps) == {b"firn.page_map.2", b"firn.page_map.3"}, keys
        theirs = sorted((r["id"], r["note"]) for r in pyarrow.parquet.read_table(path).to_pylist())
        mine = c.execute("SELECT id, note FROM h WHERE id <= 4000 ORDER BY id").fetchall()
        assert theirs == mine
        assert duckdb.sql(f"SELECT id, note FROM '{path}' WHERE id BETWEEN 1990 AND 2010 ORDER BY id").fetchall() == mine[1989:2010]
        same(c)
        look = "SELECT count(*) FROM h, LATERAL (SELECT * FROM f WHERE f.id = h.id OFFSET 0) f WHERE h.id % 7 = 0 AND f.doc = h.doc AND f.note = h.note"
        for state in ("local", "cold", "loaded"):
            with cluster.connect() as other:
                other.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
                assert other.execute(look).fetchone()[0] == 8000 // 7, state
            same(c)
            c.execute({"local": "SELECT firn.offload('f', 'cold')", "cold": "SELECT firn.load('f')", "loaded": "SELECT firn.offload('f', 'cold')"}[state])
        key = c.execute("SELECT object_key FROM firn.stripes('f') ORDER BY slot LIMIT 1").fetchone()[0]
    path = next(os.path.join(d, f) for d, _, fs in os.walk(store) for f in fs if os.path.join(d, f).endswith(key))
    with open(path, "rb") as f:
        original = f.read()
    assert original == data, "an offload has changed bytes"
    for number, at in enumerate([maps[b"firn.page_map.2"] + 3, maps[b"firn.page_map.2"] + 804, maps[b"firn.page_map.3"] + 11, maps[b"firn.page_map.3"] - 5]):
        damaged = bytearray(original)
        damaged[at] ^= 1 << number
        with open(path, "wb") as f:
            f.write(damaged)
        with cluster.connect() as c:
            c.execute(f"SET firn.cache_directory = 'mapped{number}'")
            expect(c, "SELECT count(note) FROM f WHERE note > '5' AND doc IS NOT NULL", "XX001")
            assert c.execute("SELECT count(*) FROM firn.check('f') WHERE object LIKE 'stripe%'").fetchone()[0] >= 2
    with open(path, "wb") as f:
        f.write(original)
    with cluster.connect() as c:
        c.execute("SET firn.cache_directory = 'mapped_back'")
        same(c)


def privileges(cluster):
    with cluster.connect() as c:
        fresh(c)
        c.execute("DROP ROLE IF EXISTS nobody_much")
        c.execute("CREATE ROLE nobody_much")
        c.execute("SET ROLE nobody_much")
        for f in ("firn.compact('f')", "firn.offload('f', 'cold')", "firn.load('f')", "firn.check('f')",
                  "firn.stripes('f')", "firn.stripe_file('f', 0)"):
            expect(c, f"SELECT * FROM {f}", "42501")
        c.execute("RESET ROLE")
        c.execute("DROP ROLE nobody_much")
        expect(c, "CREATE SERVER bad FOREIGN DATA WRAPPER firn OPTIONS (url 'ftp://x')", "22023")
        expect(c, "CREATE SERVER bad FOREIGN DATA WRAPPER firn OPTIONS (secret_access_key 'x')", "HV00D")
        expect(c, "SELECT firn.offload('f', 'nowhere')", "42704")


def other_readers(cluster):
    """A stripe taken out as a file is read by DuckDB and pyarrow with the table's rows."""
    with cluster.connect() as c:
        fresh(c)
        slot = c.execute("SELECT slot FROM firn.stripes('f') ORDER BY rows DESC LIMIT 1").fetchone()[0]
        data = c.execute(f"SELECT firn.stripe_file('f', {slot})").fetchone()[0]
        path = os.path.join(cluster.root, "stripe.parquet")
        with open(path, "wb") as f:
            f.write(data)
        table = pyarrow.parquet.read_table(path)
        rows = {tuple(r.values()) for r in table.to_pylist()}
        ids = sorted(r[0] for r in rows)
        mine = set(c.execute("SELECT * FROM f WHERE id = ANY(%s)", (ids,)).fetchall())
        assert rows == mine and len(rows) >= 500
        assert set(duckdb.sql(f"SELECT * FROM '{path}'").fetchall()) == mine
        meta = pyarrow.parquet.ParquetFile(path).metadata
        assert meta.num_row_groups == 1 and meta.row_group(0).column(0).is_stats_set
        assert table.schema.field("id").metadata[b"PARQUET:field_id"] == b"1"


def s3(tally, cluster):
    with Gateway(os.path.join(cluster.root, "s3")) as gateway:
        with cluster.connect() as c:
            c.execute("CREATE SERVER s3 FOREIGN DATA WRAPPER firn OPTIONS (url 's3://bucket/firn', "
                      f"endpoint 'http://127.0.0.1:{gateway.port}', region 'us-east-1', max_retries '2', "
                      "retry_timeout_ms '3000')")
            c.execute(f"CREATE USER MAPPING FOR postgres SERVER s3 OPTIONS (access_key_id '{KEY}', secret_access_key '{SECRET}')")
        tally.case("cold life on s3 (versitygw)", lambda: life(cluster, "s3"))
        tally.case("cold wrong credentials", lambda: wrong_credentials(cluster))
    tally.case("cold unreachable store", lambda: unreachable(cluster))


def wrong_credentials(cluster):
    with cluster.connect() as c:
        fresh(c)
        c.execute("ALTER USER MAPPING FOR postgres SERVER s3 OPTIONS (SET secret_access_key 'wrong')")
    with cluster.connect() as c:
        expect(c, "SELECT firn.offload('f', 's3')", "28000")
        same(c)
        c.execute(f"ALTER USER MAPPING FOR postgres SERVER s3 OPTIONS (SET secret_access_key '{SECRET}')")
    with cluster.connect() as c:
        c.execute("SELECT firn.offload('f', 's3')")


def unreachable(cluster):
    with cluster.connect() as c:
        c.execute("SET firn.cache_directory = 'cache_none'")
        expect(c, "SELECT sum(n), max(v), max(t) FROM f", "HV00N")
        c.execute("SET statement_timeout = '500ms'")
        begin = time.time()
        expect(c, "SELECT sum(n), max(v), max(t) FROM f", "57014", "HV00N")
        assert time.time() - begin < 5


def run(tally, _pattern):
    cluster = Cluster("cold").create()
    try:
        store = os.path.join(cluster.root, "store")
        os.mkdir(store)
        os.chmod(store, 0o777)
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
            c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
        tally.case("cold life in a folder", lambda: life(cluster, "cold"))
        tally.case("cold partitions", lambda: partitions(cluster))
        tally.case("stripes and tables as users see them", lambda: seen(cluster))
        tally.case("dead stripes are removed", lambda: dead(cluster))
        tally.case("cold space comes back", lambda: space(cluster))
        tally.case("cold faults of objects", lambda: faults(cluster, store))
        tally.case("cold pages with a flipped bit", lambda: flipped(cluster, store))
        tally.case("cold cursors", lambda: cursors(cluster, store))
        tally.case("cold look-ups", lambda: looked_up(cluster, store))
        tally.case("cold stripes and kept snapshots", lambda: kept_snapshots(cluster))
        tally.case("cold moves that were rolled back", lambda: rolled_back(cluster, store))
        tally.case("cold rows that nobody reads", lambda: not_read(cluster, store))
        tally.case("cold rows and BRIN", lambda: brin(cluster, store))
        tally.case("damaged chunk", lambda: damaged_chunk(cluster))
        tally.case("privileges and refusals", lambda: privileges(cluster))
        tally.case("other readers", lambda: other_readers(cluster))
        tally.case("cold documents", lambda: documents(cluster, store))
        s3(tally, cluster)
        tally.case("cold server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    """Nothing is told but of the stripes that cases have damaged."""
    found = [line for line in cluster.alarms() if 'could not read stripe 0 of table "f"' not in line and 'could not read stripe 4 of table "f"' not in line]
    assert not found, found
