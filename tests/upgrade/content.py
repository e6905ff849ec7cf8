"""What is in a database that is upgraded: each table once as firn, once as heap, which pg_upgrade is believed to carry over."""
import os

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'so so', 'glad');
CREATE TYPE point3 AS (x int, y numeric, z text);
CREATE DOMAIN small AS int CHECK (VALUE < 1000000);
"""
COLUMNS = """id int, k text, n numeric, d date, ts timestamptz, u uuid, j jsonb, a int[], m mood, p point3, s small, r int4range, b bytea, f float8, i inet, iv interval, w text"""
# Row number `i`; every seventh has NULLs, every 97th a value that is stored out of line.
VALUES = """i, 'key ' || i % 1000, i::numeric / 7, date '2020-01-01' + i % 3000, timestamptz '2021-01-01 12:00Z' + i * interval '1 minute', md5(i::text)::uuid,
    CASE WHEN i % 7 > 0 THEN jsonb_build_object('id', i, 'tags', jsonb_build_array(i % 5, 't' || i % 11)) END, ARRAY[i, i % 13, NULL], (ARRAY['sad', 'so so', 'glad']::mood[])[1 + i % 3],
    CASE WHEN i % 7 > 0 THEN ROW(i, i / 3.0, 'z' || i)::point3 END, i % 999999, int4range(i, i + 10), decode(md5(i::text), 'hex'), i / 3.0::float8, ('10.0.' || i % 256 || '.1')::inet,
    i * interval '1 second', CASE WHEN i % 97 = 0 THEN (SELECT string_agg(md5((i * g)::text), '') FROM generate_series(1, 300) g) END"""

# Name, and what is done to it once it has rows 1 to 6,000 (`{t}` is the table; `{a}` its access method).
TABLES = {
    "row_store": ["SET firn.bulk_threshold = 1000000", "INSERT"],
    "stripes": ["INSERT"],
    "many": ["SET firn.stripe_rows = 300", "INSERT"],
    "mixed": ["INSERT", "UPDATE {t} SET k = 'changed ' || id WHERE id % 10 = 3", "DELETE FROM {t} WHERE id % 10 = 4 OR id BETWEEN 2000 AND 3100",
              "SET firn.bulk_threshold = 1000000; INSERT INTO {t} (id, k) SELECT i, 'late' FROM generate_series(6001, 6100) i",
              "UPDATE {t} SET n = -n WHERE id % 10 = 3 AND id < 900", "BEGIN; DELETE FROM {t} WHERE id < 5000; ROLLBACK"],
    "compacted": ["SET firn.bulk_threshold = 1000000", "INSERT", "UPDATE {t} SET k = k || '.' WHERE id % 3 = 0", "COMPACT", "UPDATE {t} SET k = k || '!' WHERE id % 5 = 0",
                  "COMPACT", "DELETE FROM {t} WHERE id % 50 = 7", "ALTER TABLE {t} ADD EXCLUDE USING gist (r WITH =)"],
    "altered": ["ALTER TABLE {t} ADD gone text DEFAULT 'gone'", "INSERT", "ALTER TABLE {t} DROP gone", "ALTER TABLE {t} ADD later text DEFAULT 'kept', ADD now timestamptz DEFAULT '2022-02-02Z'",
                "UPDATE {t} SET later = NULL WHERE id % 100 = 1", "ALTER TABLE {t} ALTER later SET DEFAULT 'other'", "INSERT INTO {t} (id) SELECT i FROM generate_series(6001, 8000) i"],
    "colder": ["SET firn.stripe_rows = 1000", "INSERT", "DELETE FROM {t} WHERE id % 9 = 0", "OFFLOAD", "UPDATE {t} SET k = 'warm' WHERE id % 40 = 1", "DELETE FROM {t} WHERE id BETWEEN 1000 AND 2500"],
    "locked": ["INSERT", "BEGIN; SELECT FROM {t} WHERE id % 20 = 0 FOR UPDATE; SAVEPOINT s; SELECT FROM {t} WHERE id % 40 = 0 FOR SHARE; COMMIT"],
}
INDEXES = ["ALTER TABLE {t} ADD PRIMARY KEY (id)", "CREATE INDEX ON {t} (k, d)", "CREATE INDEX ON {t} USING hash (u)", "CREATE INDEX ON {t} USING gin (j)", "CREATE INDEX ON {t} USING gist (r)",
           "CREATE INDEX ON {t} USING spgist (k)", "CREATE INDEX ON {t} USING brin (d)",
           "CREATE INDEX ON {t} ((n + 1)) WHERE id % 2 = 0", "CREATE UNIQUE INDEX ON {t} (u, id) INCLUDE (k)"]
# How a table's rows are found; each is compared.
LOOKS = ["SELECT * FROM {t}", "SELECT * FROM {t} WHERE id IN (1, 77, 2001, 5999, 6005)", "SELECT id FROM {t} WHERE k = 'key 77' AND d > '2020-01-01'", "SELECT id FROM {t} WHERE u = md5('4711')::uuid",
         "SELECT id FROM {t} WHERE j @> '{{\"tags\": [3]}}'", "SELECT id FROM {t} WHERE r && int4range(100, 120)",
         "SELECT id FROM {t} WHERE k ^@ 'key 77'", "SELECT id FROM {t} WHERE d < '2020-02-01'", "SELECT id FROM {t} WHERE r = int4range(100, 110)", "SELECT id, k FROM {t} WHERE n + 1 < 20 AND id % 2 = 0",
         "SELECT m, count(*), sum(n), max(w) FROM {t} GROUP BY m", "SELECT count(*) FROM {t} WHERE (p).x > 3000"]
DIGEST = """SELECT count(*), md5(string_agg(x::text, ';' ORDER BY x::text COLLATE "C")) FROM ({look}) x"""
OTHERS = ("parts", "view", "unlogged_one", "child")


def make(c, store):
    """In a database with the extension."""
    c.execute("SET client_min_messages = warning")
    c.execute(TYPES)
    # Servers' OIDs are others in a new cluster: let them not be the same by chance.
    for n in range(3):
        c.execute(f"CREATE SERVER spare{n} FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}/spare{n}')")
    c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}/cold')")
    c.execute("DROP SERVER spare1")
    for name, steps in TABLES.items():
        for am in ("heap", "firn"):
            table = f"{am}_{name}"
            c.execute("RESET firn.stripe_rows; SET firn.bulk_threshold = 0")
            c.execute(f"CREATE TABLE {table} ({COLUMNS}) USING {am}")
            for index in INDEXES:
                c.execute(index.format(t=table))
            for step in steps:
                if step == "INSERT":
                    c.execute(f"INSERT INTO {table} ({', '.join(x.split()[0] for x in COLUMNS.split(', '))}) SELECT {VALUES} FROM generate_series(1, 6000) i")
                elif step == "COMPACT":
                    c.execute(f"SELECT firn.compact('{table}')" if am == "firn" else "SELECT")
                elif step == "OFFLOAD":
                    c.execute(f"SELECT firn.offload('{table}', 'cold')" if am == "firn" else "SELECT")
                else:
                    for part in step.split("; "):
                        c.execute(part.format(t=table, a=am))
    c.execute("RESET firn.stripe_rows; SET firn.bulk_threshold = 0")
    for am in ("heap", "firn"):
        c.execute(f"CREATE TABLE {am}_parts ({COLUMNS}) PARTITION BY RANGE (id)")
        c.execute(f"CREATE TABLE {am}_parts_1 PARTITION OF {am}_parts FOR VALUES FROM (0) TO (2000) USING {am}")
        c.execute(f"CREATE TABLE {am}_parts_2 PARTITION OF {am}_parts FOR VALUES FROM (2000) TO (4000) USING heap")
        c.execute(f"CREATE TABLE {am}_parts_3 PARTITION OF {am}_parts FOR VALUES FROM (4000) TO (10000) USING {am}")
        c.execute(f"INSERT INTO {am}_parts SELECT {VALUES} FROM generate_series(1, 6000) i; CREATE INDEX ON {am}_parts (k); CREATE INDEX ON {am}_parts USING brin (d)")
        c.execute(f"CREATE UNLOGGED TABLE {am}_unlogged_one ({COLUMNS}) USING {am}; INSERT INTO {am}_unlogged_one SELECT {VALUES} FROM generate_series(1, 3000) i")
        c.execute(f"CREATE MATERIALIZED VIEW {am}_view USING {am} AS SELECT * FROM heap_stripes WHERE id % 3 = 0")
        c.execute(f"CREATE TABLE {am}_child (id int, parent int REFERENCES {am}_stripes, {COLUMNS.split(', ', 1)[1]}) USING {am}")
        c.execute(f"INSERT INTO {am}_child (id, parent) SELECT i, i * 3 FROM generate_series(1, 1900) i")
    c.execute("SELECT firn.offload('firn_parts_3', 'cold')")
    c.execute("CREATE TABLE plan_tests AS SELECT 1 AS id")


def pairs():
    return [*TABLES, *OTHERS]


def compare(c, looks=LOOKS, where="before"):
    """Each pair has the same rows, by a scan and by its indexes; firn.check finds nothing."""
    for name in pairs():
        for scan, index in (("on", "off"), ("off", "on")):
            c.execute(f"SET enable_seqscan = {scan}; SET enable_indexscan = {index}; SET enable_bitmapscan = {index}; SET enable_indexonlyscan = {index}")
            for look in looks:
                heap, firn = (c.execute(DIGEST.format(look=look.format(t=f"{am}_{name}"))).fetchone() for am in ("heap", "firn"))
                assert heap == firn, (where, name, scan, look, heap, firn)
        c.execute("RESET enable_seqscan; RESET enable_indexscan; RESET enable_bitmapscan; RESET enable_indexonlyscan")
    check(c, where)


def check(c, where):
    tables = [t for t, in c.execute("SELECT relation::text FROM firn.tables").fetchall()]
    assert len(tables) >= len(TABLES) + len(OTHERS), tables
    for table in tables:
        problems = c.execute("SELECT * FROM firn.check(%s)", [table]).fetchall()
        assert not problems, (where, table, problems[:3])


def change(c):
    """All that changes rows, on both of each pair; compaction and VACUUM of firn's."""
    for name in pairs():
        if name == "view":
            c.execute("REFRESH MATERIALIZED VIEW heap_view; REFRESH MATERIALIZED VIEW firn_view")
            continue
        for am in ("heap", "firn"):
            table = f"{am}_{name}"
            c.execute(f"INSERT INTO {table} (id, k) SELECT i, 'new' FROM generate_series(9001, 9500) i")
            c.execute(f"UPDATE {table} SET k = 'upgraded ' || id WHERE id % 11 = 2")
            c.execute(f"DELETE FROM {table} WHERE id % 13 = 5 AND NOT EXISTS (SELECT FROM {am}_child WHERE parent = {table}.id)")
            c.execute(f"BEGIN; UPDATE {table} SET n = 0; ROLLBACK")
    for name in ("mixed", "row_store", "colder"):
        c.execute(f"SELECT firn.compact('firn_{name}')")
    c.execute("VACUUM")


def objects(store):
    """Objects in the store, and their bytes."""
    return {os.path.relpath(os.path.join(folder, file), store): os.path.getsize(os.path.join(folder, file)) for folder, _, files in os.walk(store) for file in files}
