"""What is in a golden cluster: each thing that firn keeps on disk or in a store, in the states that it has.

`make` makes it with firn or, as the oracle, with heap. All of it is the same each time, but for what PostgreSQL numbers (OIDs, transactions) and times."""
import os

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'so so', 'glad');
CREATE TYPE point3 AS (x int, y numeric, z text);
CREATE DOMAIN small AS int CHECK (VALUE < 1000000);
"""
# Columns of each kind that stripes have, and a row `i` of them; every seventh row is NULLs.
KINDS = [
    ("a bool", "i % 2 = 0"), ('b "char"', "chr(32 + i % 90)::\"char\""), ("c smallint", "i - 200"), ("d int", "i * 1000"), ("e bigint", "i::bigint << 33"),
    ("f oid", "(4294967295 - i)::oid"), ("g mood", "(ARRAY['sad', 'so so', 'glad']::mood[])[1 + i % 3]"), ("h real", "i / 3.0::real"),
    ("l float8", "CASE i % 50 WHEN 1 THEN 'NaN'::float8 WHEN 2 THEN '-Infinity' WHEN 3 THEN '-0' ELSE i / 7.0 END::float8"), ("m numeric(9,2)", "i / 4.0"),
    ("n numeric(9,2)", "CASE i % 150 WHEN 5 THEN 'NaN'::numeric ELSE i END"), ("o numeric(38,10)", "i * 1e20 + 0.0000000001"), ("p numeric", "i / 7.0"),
    ("q date", "CASE i % 50 WHEN 1 THEN date 'infinity' ELSE date '2020-01-01' + i END::date"), ("r timestamp", "timestamp '1900-01-01' + i * interval '1 day'"),
    ("s timestamptz", "CASE i % 150 WHEN 7 THEN timestamptz '294276-01-01 00:00Z' WHEN 8 THEN '-infinity' ELSE timestamptz '2021-01-01Z' + i * interval '1 s' END::timestamptz"),
    ("t time", "time '00:00' + i * interval '1 minute'"), ("u uuid", "md5(i::text)::uuid"), ("v text", "'text ' || i % 9"), ("w varchar(40)", "repeat('ü', i % 40)"),
    ("x char(5)", "i"), ("y json", "json_build_object('i', i)"), ("z jsonb", "jsonb_build_object('id', i, 'tags', jsonb_build_array(i % 5, 't' || i % 11, null, 1.50))"),
    ("aa bytea", "decode(md5(i::text), 'hex')"), ("bb int[]", "ARRAY[i, i % 13, NULL]"), ("cc point3", "ROW(i, i / 3.0, 'z' || i)::point3"), ("dd small", "i"),
    ("ee int4range", "int4range(i, i + 10)"), ("ff inet", "('10.0.' || i % 256 || '.1')::inet"), ("gg interval", "i * interval '1 second'"),
    ('hh text COLLATE "C"', "chr(65 + i % 60)"), ('ii text COLLATE "POSIX"', "'p' || i"), ("jj xml", "('<i>' || i || '</i>')::xml"), ("kk text", "''"),
]
COLUMNS = "id int, k text, n numeric(12,2), j jsonb, w text"
VALUES = """i, 'key ' || i % 40, i / 4.0, CASE WHEN i % 7 > 0 THEN jsonb_build_object('id', i, 'tags', jsonb_build_array(i % 5, 't' || i % 11)) END,
    CASE WHEN i % 97 = 0 THEN repeat('wide ' || i, 3000) END"""
FILL = "INSERT INTO {t} SELECT " + VALUES + " FROM generate_series(1, 400) i"
ROWS = "SET firn.bulk_threshold = 1000000"

# Name, and what is done to it (`{t}` is the table). A statement for firn alone begins with FIRN.
TABLES = {
    "row_store": [ROWS, FILL, "UPDATE {t} SET k = 'changed' WHERE id % 9 = 1"],
    "stripes": [FILL, "FIRN VACUUM {t}", "FIRN ANALYZE {t}"],
    "small_stripes": ["SET firn.stripe_rows = 64", FILL],
    # Tombstones with and without a next version, in the row store and in stripes, of the same key and another; anchors; what was rolled back.
    "changed": [FILL, "UPDATE {t} SET k = 'changed ' || id WHERE id % 10 = 3", "UPDATE {t} SET id = id + 1000 WHERE id % 50 = 9", "DELETE FROM {t} WHERE id % 10 = 4 OR id BETWEEN 200 AND 260",
                "UPDATE {t} SET n = -n WHERE id % 20 = 3", "BEGIN; DELETE FROM {t} WHERE id < 100; ROLLBACK", "BEGIN; INSERT INTO {t} (id) SELECT i FROM generate_series(5001, 5300) i; ROLLBACK",
                "BEGIN; SELECT FROM {t} WHERE id % 20 = 0 FOR UPDATE; SAVEPOINT s; SELECT FROM {t} WHERE id % 40 = 1 FOR KEY SHARE; COMMIT", "UPDATE {t} SET k = k || '!' WHERE id > 300"],
    # Moved by compaction: forwarding lists that nobody has removed yet.
    "moved": [ROWS, FILL, "UPDATE {t} SET k = k || '.' WHERE id % 3 = 0", "FIRN SELECT firn.compact('{t}')", "UPDATE {t} SET k = k || '!' WHERE id % 5 = 0", "FIRN SELECT firn.compact('{t}')",
              "DELETE FROM {t} WHERE id % 50 = 7", "FIRN VACUUM {t}", "INSERT INTO {t} (id, k) SELECT i, 'late' FROM generate_series(401, 500) i", "FIRN SELECT firn.compact('{t}')"],
    # The same, and a session with a snapshot of before: VACUUM FULL has translated the lists.
    "rewritten": [ROWS, FILL, "SNAPSHOT", "UPDATE {t} SET k = k || '.' WHERE id % 3 = 0", "FIRN SELECT firn.compact('{t}')", "INSERT INTO {t} (id, k) SELECT i, 'late' FROM generate_series(401, 450) i",
                  "UPDATE {t} SET k = k || '?' WHERE id % 11 = 0", "FIRN VACUUM FULL {t}"],
    "altered": ["ALTER TABLE {t} ADD gone text DEFAULT 'gone'", FILL, "ALTER TABLE {t} DROP gone", "ALTER TABLE {t} ADD later text DEFAULT 'kept', ADD now timestamptz DEFAULT '2022-02-02Z'",
                "UPDATE {t} SET later = NULL WHERE id % 100 = 1", "ALTER TABLE {t} ALTER later SET DEFAULT 'other'", "INSERT INTO {t} (id) SELECT i FROM generate_series(401, 600) i",
                "FIRN VACUUM FULL {t}", "INSERT INTO {t} (id) SELECT i FROM generate_series(601, 700) i"],
    # Its documents have so many pages that there is a map of them.
    "far": ["INSERT INTO {t} (id, k, j) SELECT i, 'k', jsonb_build_object('id', i, 'pad', repeat('x', 380 + i % 20)) FROM generate_series(1, 2900) i", "DELETE FROM {t} WHERE id % 500 = 3"],
    "cold": ["SET firn.stripe_rows = 100", FILL, "DELETE FROM {t} WHERE id % 9 = 0", "FIRN SELECT firn.offload('{t}', 'cold')", "UPDATE {t} SET k = 'warm' WHERE id % 40 = 1",
             "DELETE FROM {t} WHERE id BETWEEN 180 AND 230", "INSERT INTO {t} (id, k) SELECT i, 'late' FROM generate_series(401, 600) i"],
    # Brought back, and cold again.
    "again": ["SET firn.stripe_rows = 200", FILL, "FIRN SELECT firn.offload('{t}', 'cold')", "FIRN SELECT firn.load('{t}')", "FIRN SELECT firn.offload('{t}', 'cold')"],
    "vacuumed": [FILL, "UPDATE {t} SET k = 'changed ' || id WHERE id % 2 = 0", "DELETE FROM {t} WHERE id > 350", "FIRN VACUUM {t}", "FIRN SELECT firn.compact('{t}')", "FIRN VACUUM (FREEZE) {t}"],
    "empty": [],
    "emptied": [FILL, "DELETE FROM {t}"],
    "prepared": [FILL],
    "interrupted": [FILL],
}
INDEXES = ["ALTER TABLE {t} ADD PRIMARY KEY (id)", "CREATE INDEX ON {t} (k, n)", "CREATE INDEX ON {t} USING hash (k)", "CREATE INDEX ON {t} USING gin (j)",
           "CREATE INDEX ON {t} ((n + 1)) WHERE id % 2 = 0"]
LOOKS = ["SELECT * FROM {t}", "SELECT * FROM {t} WHERE id IN (1, 77, 201, 399, 405, 1009)", "SELECT id FROM {t} WHERE k = 'key 7'", "SELECT id FROM {t} WHERE j @> '{{\"tags\": [3]}}'",
         "SELECT id, k FROM {t} WHERE n + 1 < 20 AND id % 2 = 0", "SELECT k, count(*), sum(n), max(length(w)) FROM {t} GROUP BY k", "SELECT count(*) FROM {t} WHERE n > 50"]
# Those without these columns.
OTHERS = {"kinds": ["SELECT * FROM {t}", "SELECT d, g, z FROM {t} WHERE d BETWEEN 5000 AND 20000", "SELECT count(*), min(s), max(o), min(q), max(u::text) FROM {t} WHERE v = 'text 4'",
                    "SELECT count(*) FROM {t} WHERE l = 'NaN' OR n = 'NaN'", "SELECT * FROM {t} WHERE d = 77000", "SELECT count(*) FROM {t} WHERE hh > 'k'"],
          "no_columns": ["SELECT count(*) FROM {t}"], "parts": LOOKS, "view": LOOKS}
DIGEST = """SELECT count(*), md5(coalesce(string_agg(x::text, ';' ORDER BY x::text COLLATE "C"), '')) FROM ({look}) x"""


def looks():
    return {**dict.fromkeys(TABLES, LOOKS), **OTHERS}


def make(cluster, am, store=None):
    """Tables of firn in the schema `golden`, with cold stripes in the folder `store`; or, in the schema `heap`, of heap."""
    with cluster.connect() as c:
        c.execute("SET client_min_messages = warning; SET timezone = 'UTC'")
        c.execute(f"CREATE SCHEMA {am}; SET search_path = {am}; SET default_table_access_method = {'firn' if am == 'golden' else 'heap'}")
        c.execute(TYPES)
        if am == "golden":
            c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
        others = []
        for name, steps in TABLES.items():
            c.execute("RESET firn.stripe_rows; SET firn.bulk_threshold = 0")
            c.execute(f"CREATE TABLE {name} ({COLUMNS}) WITH (autovacuum_enabled = off)")
            for index in INDEXES:
                c.execute(index.format(t=name))
            for step in steps:
                if step == "SNAPSHOT":
                    others.append(cluster.connect(autocommit=False))
                    others[-1].execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
                elif step.startswith("FIRN "):
                    if am == "golden":
                        c.execute(step[5:].format(t=name))
                else:
                    for part in step.split("; "):
                        c.execute(part.format(t=name))
            for other in others:
                other.close()
            others.clear()
        c.execute("RESET firn.stripe_rows; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 150")
        c.execute(f"CREATE TABLE kinds ({', '.join(column for column, _ in KINDS)}) WITH (autovacuum_enabled = off)")
        values = ", ".join(f"CASE WHEN i % 7 > 0 THEN {value} END" for _, value in KINDS)
        c.execute(f"INSERT INTO kinds SELECT {values} FROM generate_series(1, 300) i")
        c.execute("CREATE TABLE no_columns (); INSERT INTO no_columns SELECT FROM generate_series(1, 70) i")
        # Rows that have gone to another partition.
        c.execute(f"CREATE TABLE parts ({COLUMNS}) PARTITION BY RANGE (id)")
        c.execute("CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (200)")
        c.execute("CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (200) TO (400) USING heap; CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (400) TO (10000)")
        c.execute(FILL.format(t="parts"))
        c.execute("CREATE INDEX ON parts (k); UPDATE parts SET id = id + 1000 WHERE id % 25 = 1")
        c.execute("CREATE MATERIALIZED VIEW view AS SELECT * FROM stripes WHERE id % 3 = 0")


def interrupt(cluster):
    """What sessions leave that die in the middle of an offload, and of a bulk write: an intent and its object, a row reserved in the directory."""
    for statement in ("SELECT firn.offload('golden.interrupted', 'cold')", "INSERT INTO golden.interrupted (id) SELECT i FROM generate_series(10001, 10300) i"):
        point = "offload-uploaded" if "offload" in statement else "bulk-reserved"
        try:
            with cluster.connect() as c:
                c.execute("SET firn.bulk_threshold = 0")
                c.execute(f"SET firn.crash_point = '{point}'")
                c.execute(statement)
        except Exception:  # noqa: BLE001 - the connection is gone
            pass
        cluster.wait_recovered()


def prepare(c, am):
    """A transaction that is prepared: whoever has the new library ends it."""
    c.execute(f"SET firn.bulk_threshold = 0; SET search_path = {am}; BEGIN")
    c.execute("INSERT INTO prepared (id, k) SELECT i, 'prepared' FROM generate_series(401, 600) i; UPDATE prepared SET k = 'by the prepared' WHERE id % 10 = 1; DELETE FROM prepared WHERE id % 10 = 2")
    c.execute("SELECT FROM prepared WHERE id % 10 = 3 FOR UPDATE")
    c.execute(f"PREPARE TRANSACTION '{am}'")


def digests(c, am, only=None, most=99):
    """What is found in each table, by scans and by indexes; of each `most` queries at most."""
    c.execute(f"SET search_path = {am}; SET timezone = 'UTC'; SET extra_float_digits = 1")
    found = {}
    for name, queries in looks().items():
        if only and name not in only:
            continue
        for scan, index in (("on", "off"), ("off", "on")):
            c.execute(f"SET enable_seqscan = {scan}; SET enable_indexscan = {index}; SET enable_bitmapscan = {index}; SET enable_indexonlyscan = {index}")
            for look in queries[:most]:
                digest = list(c.execute(DIGEST.format(look=look.format(t=name))).fetchone())
                assert found.setdefault(f"{name}: {look}", digest) == digest, (name, look, scan)
    c.execute("RESET enable_seqscan; RESET enable_indexscan; RESET enable_bitmapscan; RESET enable_indexonlyscan")
    return found


def same(found, expected, where):
    differing = {k: (found.get(k), expected.get(k)) for k in sorted(found.keys() | expected.keys()) if found.get(k) != expected.get(k)}
    assert not differing, (where, len(differing), list(differing.items())[:3])


def check(c):
    """firn.check finds nothing but the chunks and slots that the interrupted have left."""
    for table in [t for t, in c.execute("SELECT relation::text FROM firn.tables").fetchall()]:
        problems = c.execute("SELECT * FROM firn.check(%s)", [table]).fetchall()
        assert not problems, (table, problems[:3])


# Rows of TOAST relations, by what docs/internals/storage.md calls them.
STORED = """SELECT CASE WHEN chunk_id = 3 AND get_byte(chunk_data, 5) >= 128 THEN '3 translated' WHEN chunk_id < 10 THEN chunk_id::text WHEN chunk_id < 12000 THEN 'chunk' ELSE encode(substr(chunk_data, 1, 2), 'hex') END FROM {toast} WHERE chunk_id < 16384"""


def stored(c):
    """The sorts of rows in all TOAST relations that somebody sees."""
    sorts = set()
    for toast, in c.execute("SELECT reltoastrelid::regclass::text FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE amname = 'firn' AND reltoastrelid <> 0").fetchall():
        sorts |= {sort for sort, in c.execute(STORED.format(toast=toast)).fetchall()}
    return sorts


# Directory rows, allocation, forwarding lists (some of which VACUUM FULL has translated), intents, defaults, both notes; chunks; anchors, and tombstones without and with the next version, of the same
# key, and of rows that went away.
ALL_SORTS = {"1", "2", "3", "3 translated", "4", "5", "6", "7", "chunk", "4c00", "4400", "4401", "4403", "4402"}


def objects(store):
    return sorted(os.path.relpath(os.path.join(folder, file), store) for folder, _, files in os.walk(store) for file in files)


def stripes(c):
    """The stripes of each table: rows, deleted ones, where they are."""
    listed = "SELECT relation::text, s.slot, s.rows, s.deleted, s.location FROM firn.tables, firn.stripes(relation) s WHERE relation::text LIKE 'golden.%' ORDER BY 1, 2"
    c.execute("SET search_path = public")
    return [list(row) for row in c.execute(listed).fetchall()]
