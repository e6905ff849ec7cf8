"""A database with one of everything that a backup could lose, and comparisons of databases."""
import gzip
import os
import re
import shutil
import subprocess

from harness.program import firn, tool

ZOO = r"""
CREATE SCHEMA "odd ""schema";
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE mood AS ENUM ('sad', 'it''s ok');
CREATE TYPE pair AS (a int, b text);
CREATE TABLE big (id bigserial PRIMARY KEY, t text, g text GENERATED ALWAYS AS (upper(left(t, 3))) STORED, m mood,
                  p pair, dropped int, f float8, n numeric, ts timestamptz, b bytea, a int[]);
ALTER TABLE big DROP COLUMN dropped;
INSERT INTO big (t, m, p, f, n, ts, b, a)
  SELECT CASE i % 7 WHEN 0 THEN NULL WHEN 1 THEN E'tab\there, new\nline, back\\slash, \\.' WHEN 2 THEN '' ELSE md5(i::text) END,
         CASE WHEN i % 3 = 0 THEN 'it''s ok'::mood END, (i, 'x,"y')::pair, CASE i % 100 WHEN 0 THEN 'NaN' ELSE i / 7.0 END,
         i / 3.0, '2024-01-01'::timestamptz + i * interval '1 minute', decode(md5(i::text), 'hex'), ARRAY[i, NULL]
  FROM generate_series(1, 20000) i;
CREATE INDEX ON big (t);
CREATE TABLE "odd ""schema"."t.1 ""x) FROM stdin;" (i int GENERATED ALWAYS AS IDENTITY (START 100), "c,ol" positive,
                                                 "SELECT ""(" text DEFAULT '\.');
INSERT INTO "odd ""schema"."t.1 ""x) FROM stdin;" ("c,ol") SELECT i FROM generate_series(1, 50) i;
CREATE TABLE "Ümläut 表" ("spalte ß" text);
INSERT INTO "Ümläut 表" VALUES ('grün'), (NULL), (E'\\N');
CREATE TABLE nothing ();
INSERT INTO nothing DEFAULT VALUES; INSERT INTO nothing DEFAULT VALUES;
CREATE TABLE empty (x int);
CREATE TABLE parted (i int, j bigint REFERENCES big) PARTITION BY RANGE (i);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100) PARTITION BY HASH (j);
CREATE TABLE parted_1_0 PARTITION OF parted_1 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_1_1 PARTITION OF parted_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE parted_rest PARTITION OF parted DEFAULT;
CREATE INDEX ON parted (j);
INSERT INTO parted SELECT i, i + 1 FROM generate_series(0, 300) i;
CREATE TABLE parent (x int); CREATE TABLE child (y int) INHERITS (parent);
INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2, 3);
CREATE UNLOGGED TABLE unlogged (x int); INSERT INTO unlogged VALUES (1);
CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM big;
CREATE MATERIALIZED VIEW counted_again AS SELECT n + 1 AS n FROM counted;
CREATE MATERIALIZED VIEW not_filled AS SELECT 1 AS x WITH NO DATA;
CREATE SEQUENCE counter START 7 INCREMENT 3; SELECT nextval('counter'), nextval('counter');
CREATE SEQUENCE untouched START 5;
CREATE FUNCTION tell(int) RETURNS text LANGUAGE sql AS $$ SELECT 'x' || $1 $$;
COMMENT ON FUNCTION tell(int) IS 'it''s a "function"';
CREATE VIEW shown AS SELECT id, tell(id::int) FROM big;
GRANT SELECT ON shown TO PUBLIC;
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE TRIGGER noted BEFORE INSERT ON parent FOR EACH ROW EXECUTE FUNCTION note();
ALTER TABLE child ENABLE ROW LEVEL SECURITY;
CREATE POLICY visible ON child USING (y > 1);
CREATE PUBLICATION pub FOR TABLE big;
SELECT lo_from_bytea(0, convert_to(repeat('Large object. ', 1000), 'UTF8'));
SELECT lo_from_bytea(0, '\x'), lo_from_bytea(0, '\x00ff0a5c');
-- Of exactly a piece, of exactly two, of a little more than one.
SELECT lo_from_bytea(0, decode(repeat('ab', n), 'hex')) FROM unnest(ARRAY[524288, 1048576, 524289, 524287]) n;
DO $$ BEGIN FOR i IN 1..450 LOOP PERFORM lo_from_bytea(0, convert_to('object ' || i, 'UTF8')); END LOOP; END $$;
COMMENT ON DATABASE CURRENT_DATABASE IS 'a zoo';
ANALYZE;
"""

# Without rows that non-UTF-8 encodings cannot hold.
LATIN = r"""
CREATE SCHEMA "schéma"; CREATE TABLE "schéma"."tàble ÿ" ("colonne é" text, n int);
INSERT INTO "schéma"."tàble ÿ" SELECT 'ligne été ' || i, i FROM generate_series(1, 1000) i;
COMMENT ON TABLE "schéma"."tàble ÿ" IS 'une tàble';
"""


def create(c, name, sql, cluster, options=""):
    # Sessions of a program that was ended end a moment later.
    c.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    c.execute(f'CREATE DATABASE "{name}" {options}')
    with cluster.connect(name, client_encoding="UTF8") as d:
        d.execute(sql.replace("CURRENT_DATABASE", f'"{name}"'))


def script(cluster, database, *flags):
    """A dump as SQL, without what differs from run to run."""
    text = tool(cluster, "pg_dump", "-d", database, *flags)
    return [line for line in text.split(b"\n") if not line.startswith((b"\\restrict", b"\\unrestrict"))]


def same(cluster, one, other, *flags):
    """Dumps of both databases are equal, data and all (large objects included)."""
    a, b = script(cluster, one, "-b", *flags), script(cluster, other, "-b", *flags)
    if a != b:
        for x, y in zip(a, b):
            assert x == y, f"{one} has\n{x[:500]}\n{other} has\n{y[:500]}"
        raise AssertionError(f"{len(a)} lines in {one}, {len(b)} in {other}")


def entries(cluster, archive):
    """The table of contents as pg_restore lists it, without its header."""
    lines = tool(cluster, "pg_restore", "-l", archive).split(b"\n")
    return [line for line in lines if not line.startswith(b";")]


def restored(cluster, c, archive, database, *flags, template="template0", encoding="UTF8"):
    """Restore with stock pg_restore into a new database."""
    c.execute(f'DROP DATABASE IF EXISTS "{database}"')
    locale = "C.UTF-8" if encoding == "UTF8" else "C"
    c.execute(f"CREATE DATABASE \"{database}\" TEMPLATE {template} ENCODING '{encoding}' LOCALE '{locale}'")
    tool(cluster, "pg_restore", "-e", "-d", database, *flags, archive)


def contents(path):
    """A file of an archive, decompressed by programs that have nothing to do with ours."""
    if path.endswith(".gz"):
        return gzip.open(path).read()
    for suffix, program in ((".zst", "zstd"), (".lz4", "lz4")):
        if path.endswith(suffix):
            return subprocess.run([program, "-dcq", path], stdout=subprocess.PIPE, check=True).stdout
    with open(path, "rb") as f:
        return f.read()


def files(folder):
    """Contents by name without the compression's suffix."""
    found = {}
    for name in os.listdir(folder):
        plain = re.sub(r"\.(gz|lz4|zst)$", "", name)
        assert plain not in found, name
        found[plain] = os.path.join(folder, name)
    return found


def place(cluster, name):
    """A path in the cluster's folder where nothing is."""
    path = os.path.join(cluster.root, name)
    shutil.rmtree(path, ignore_errors=True)
    return path


def backup(cluster, database, name, *flags, **kw):
    """A new backup; answers where it is."""
    path = place(cluster, name)
    firn(cluster, "backup", database, path, *flags, **kw)
    return path
