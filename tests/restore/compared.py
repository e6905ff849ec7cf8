"""What the end of a restore compares: no difference where there is none, none unseen where there is one. And how these tests compare."""
import os

from restore import common
from restore.common import NEW, OLD, firn

# By which all is compared.
WAYS = (["-j1"], ["-j4"], ["-1"], ["--transaction-size=3"])


def rows_of_tables(_world):
    """Rows may come in any order, but each stays in its table, and all else where it is, also behind a table that has none."""
    def dump(*blocks):
        return b"".join(b"--\n-- Name: %s; Type: SOME\n--\n\n%s\n\n" % (name, text) for name, text in blocks)

    def table(name, rows):
        return name, b"COPY public.%s (a) FROM stdin;\n%s\\.\n" % (name, rows)
    empty, last = table(b"e", b""), table(b"z", b"1\n")
    common.same(dump(empty, table(b"f", b"1\n2\n"), last), dump(empty, table(b"f", b"2\n1\n"), last))
    for left, right in (((table(b"f", b""), table(b"g", b"1\n")), (table(b"f", b"1\n"), table(b"g", b""))),
                        ((table(b"f", b"1\n"), table(b"g", b"2\n")), (table(b"f", b"2\n"), table(b"g", b"1\n"))),
                        (((b"a", b"GRANT x;\n"), (b"b", b"GRANT y;\n")), ((b"a", b"GRANT y;\n"), (b"b", b"GRANT x;\n"))),
                        (((b"a", b"SELECT 1;\nSELECT 2;\n"),), ((b"a", b"SELECT 2;\nSELECT 1;\n"),))):
        for compare in (common.same, common.same_blocks):
            a, b = dump(empty, *left, last), dump(empty, *right, last)
            try:
                compare(a, b)
            except AssertionError:
                continue
            raise RuntimeError(f"{compare.__name__} takes for the same:\n{a.decode()}\n{b.decode()}")


# An object of each kind, by a name of 63 letters.
LONG = """
CREATE SCHEMA "N"; CREATE SCHEMA s; CREATE SCHEMA t;
CREATE TABLE "N"."N" ("N" int, CONSTRAINT "N" CHECK ("N" > 0), CONSTRAINT "other N" UNIQUE ("N"));
CREATE TABLE s.heir () INHERITS ("N"."N"); ALTER TABLE s.heir ALTER "N" SET DEFAULT 3;
CREATE SEQUENCE s."N"; SELECT setval('s."N"', 4); CREATE VIEW t."N" AS SELECT 1 AS a;
CREATE TABLE s.plain (a int PRIMARY KEY, b int); CREATE INDEX "index N" ON s.plain (a);
CREATE TABLE s.refers (a int); ALTER TABLE s.refers ADD CONSTRAINT "N" FOREIGN KEY (a) REFERENCES s.plain;
CREATE FUNCTION "N"() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION "N"(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE PROCEDURE "procedure N"() LANGUAGE sql AS 'SELECT 1'; CREATE AGGREGATE "sum N"(int) (SFUNC = int4pl, STYPE = int);
CREATE FUNCTION s.fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER "N" BEFORE INSERT ON s.plain FOR EACH ROW EXECUTE FUNCTION s.fires();
CREATE POLICY "N" ON s.plain; CREATE RULE "N" AS ON DELETE TO s.plain DO INSTEAD NOTHING; CREATE STATISTICS "N" ON a, b FROM s.plain;
CREATE TYPE "N" AS ENUM ('a'); CREATE DOMAIN "domain N" AS int; CREATE COLLATION "N" FROM "C";
CREATE OPERATOR FAMILY "N" USING btree; CREATE OPERATOR CLASS "N" FOR TYPE int USING hash AS OPERATOR 1 =;
CREATE TEXT SEARCH DICTIONARY "N" (TEMPLATE = simple); CREATE TEXT SEARCH CONFIGURATION "N" (COPY = simple);
CREATE FUNCTION s.event() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; CREATE EVENT TRIGGER "N" ON sql_drop EXECUTE FUNCTION s.event();
CREATE FOREIGN DATA WRAPPER "N"; CREATE SERVER "N" FOREIGN DATA WRAPPER "N"; CREATE USER MAPPING FOR postgres SERVER "N";
CREATE FOREIGN TABLE s."foreign N" (a int) SERVER "N"; CREATE MATERIALIZED VIEW s."kept N" AS SELECT 1 AS a;
CREATE PUBLICATION "N" FOR TABLE "N"."N", s.plain, TABLES IN SCHEMA s; CREATE PUBLICATION "a  b SERVER" FOR TABLE "N"."N", TABLES IN SCHEMA "N";
ALTER DEFAULT PRIVILEGES IN SCHEMA "N" GRANT SELECT ON TABLES TO PUBLIC; COMMENT ON TABLE "N"."N" IS 'long'; GRANT SELECT ON "N"."N" TO PUBLIC;
"""


def long_names(world, version):
    """Names that get too long in the target's encoding are cut by the server, in statements and in what is asked."""
    server = world.server(version)

    def make(path):
        with server.connect() as c:
            c.execute("DROP DATABASE IF EXISTS long_names")
            c.execute("CREATE DATABASE long_names TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        with server.connect("long_names") as c:
            # Spaces at the front, as the end is cut.
            c.execute(LONG.replace("N\"", "é" * 63 + "\"").replace(" " + "é" * 63, " " + "é" * 40))
        return server.archive("long_names", path, "c")
    path = world.archive(f"long-names-{version}", make)
    for way in WAYS:
        server.fresh("target")
        firn(server, "target", path, *way).ok()
    # One that is gone is missed.
    letters = "é" * 31
    for gone, told in ((f'DROP FUNCTION public."{letters}"(int)', "FUNCTION public."), (f'DROP PUBLICATION "{letters}"', "PUBLICATION TABLE "),
                       (f'DROP USER MAPPING FOR postgres SERVER "{letters}"', "USER MAPPING "), (f'DROP POLICY "{letters}" ON s.plain', "POLICY s.plain"),
                       (f'ALTER PUBLICATION "a  b SERVER" DROP TABLE "{letters}"."{letters}"', "PUBLICATION TABLE ")):
        with server.connect(server.fresh("target")) as c:
            c.execute(f"""CREATE FUNCTION act() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
                IF NOT EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%kept %') THEN RETURN; END IF;
                SET CONSTRAINTS ALL DEFERRED; {gone}; END $$;
                CREATE EVENT TRIGGER act ON ddl_command_end WHEN TAG IN ('REFRESH MATERIALIZED VIEW') EXECUTE FUNCTION act()""")
        run = firn(server, "target", path, "-j2")
        assert run.code == 3 and told in run.out and "it is missing" in run.out, f"{gone}: {run.code}\n{run.out[-2500:]}"


# What is in the archive and leaves nothing behind, or has words in it that mean something elsewhere; the roles have such names, too.
NOTHING = """
CREATE TABLE p (a int DEFAULT 5); CREATE TABLE k (d int) INHERITS (p); ALTER TABLE k ALTER a DROP DEFAULT; INSERT INTO k VALUES (1, 2);
CREATE SEQUENCE "x ADD GENERATED y"; CREATE TABLE "ADD GENERATED" (a int GENERATED ALWAYS AS IDENTITY);
CREATE TABLE checked (v text, CONSTRAINT "x NOT VALID" CHECK (v <> ' NOT VALID;'), CONSTRAINT own CHECK (v <> 'w')); INSERT INTO checked VALUES (NULL);
ALTER TABLE checked ADD CONSTRAINT "NOT ENFORCED" CHECK (v <> '1') NOT VALID;
CREATE SCHEMA s; ALTER DEFAULT PRIVILEGES FOR ROLE "a GRANT b" IN SCHEMA s GRANT SELECT ON TABLES TO compared_reader;
ALTER DEFAULT PRIVILEGES FOR ROLE "a GRANT b" GRANT SELECT ON TABLES TO compared_reader;
"""


def rewritten(path, changes):
    """An archive in a folder with other statements in its table of contents."""
    name = os.path.join(path, "toc.dat")
    with open(name, "rb") as f:
        data = f.read()
    for old, new in changes:
        assert data.count(old) == 1, (old, data.count(old))
        data = data.replace(old, new.ljust(len(old)))
    with open(name, "wb") as f:
        f.write(data)
    return path


def nothing_left(world, version):
    """What is asked for follows from what statements do, not from an entry's being there, nor from words somewhere in it."""
    server = world.server(version)
    server.roles('"a GRANT b"', "compared_reader")

    def make(path):
        with server.connect(server.fresh("nothing_left")) as c:
            c.execute(NOTHING)
        server.archive("nothing_left", path, "d")
        # As pg_dump has it until 14.0 for what is built in, and with what another version has built in.
        given = b"GRANT SELECT ON TABLES %sTO compared_reader;" % (b" " if version == OLD else b"")
        return rewritten(path, [(b"IN SCHEMA s " + given, b'IN SCHEMA s REVOKE ALL ON TABLES FROM "a GRANT b";'),
                                (b'"a GRANT b" ' + given, b'"a GRANT b" GRANT ALL ON TABLES TO "a GRANT b";')])
    path = world.archive(f"nothing-left-{version}", make)
    for way in (*WAYS, ["-j4", "--disable-rule=all"]):
        server.fresh("target")
        firn(server, "target", path, *way).ok()


def not_readable(world, version):
    """A catalog that who restores may not read is told; all else is looked for, and rows are counted, in an open transaction, too."""
    server = world.server(version)
    server.roles("compared_plain LOGIN")
    with server.connect(server.fresh("not_readable")) as c:
        c.execute("CREATE TABLE a AS SELECT i FROM generate_series(1, 100) i; CREATE VIEW v AS SELECT 1 AS a; CREATE POLICY p ON a USING (true);"
                  "CREATE STATISTICS st ON i, (i + 1) FROM a; CREATE INDEX ON a (i)")
    path = world.archive(f"not-readable-{version}", lambda p: server.archive("not_readable", p, "c"))
    for way in WAYS:
        for act, told in (("NULL", None), ("DROP VIEW public.v", "VIEW public.v: it is missing"), ("DELETE FROM public.a WHERE i > 90", "it has 90 rows, 100")):
            with server.connect(server.fresh("target")) as c:
                c.execute("REVOKE SELECT ON pg_policy, pg_statistic_ext FROM PUBLIC; GRANT CREATE ON SCHEMA public TO compared_plain;"
                          "GRANT CREATE ON DATABASE target TO compared_plain")
                c.execute(f"CREATE FUNCTION public.act() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN {act}; END$$")
                c.execute("CREATE EVENT TRIGGER act ON ddl_command_end WHEN TAG IN ('CREATE POLICY') EXECUTE FUNCTION public.act()")
            run = firn(server, "target", path, "-U", "compared_plain", "-O", "-x", *way)
            assert run.code == (3 if told else 0) and (told or "restore complete") in run.out, f"{way}: {run.code}\n{run.out[-2500:]}"
            for catalog in ("pg_policy", "pg_statistic_ext"):
                words = f"some objects were not looked for: permission denied for table {catalog}"
                assert run.out.count(words) == 1 and "could not be compared" not in run.out, f"{way}: {run.out[-2500:]}"
            assert told or "1 table with 100 rows by counting" in run.out.replace("tables", "table"), run.out[-2500:]


def object_cut(world, version):
    """A large object that somebody cuts before the end is a difference, however it was restored."""
    server = world.server(version)
    with server.connect(server.fresh("object_cut")) as c:
        c.execute("SELECT lo_from_bytea(4711, 'a large object'), lo_from_bytea(4712, decode(repeat('ab', 50000), 'hex')), lo_from_bytea(4713, '');"
                  "CREATE TABLE a (i int); CREATE INDEX late ON a (i)")
    path = world.archive(f"object-cut-{version}", lambda p: server.archive("object_cut", p, "c"))
    for way in WAYS:
        server.fresh("target")
        run = firn(server, "target", path, *way).ok()
        assert "3 large objects by their sizes" in run.out, run.out
        if way[0].startswith("-j"):
            # Indexes may come before the objects there; that is tested with --verify's.
            continue
        with server.connect(server.fresh("target")) as c:
            c.execute("CREATE FUNCTION act() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN PERFORM lo_truncate(lo_open(4711, 393216), 3); END$$")
            c.execute("CREATE EVENT TRIGGER act ON ddl_command_end WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION act()")
        run = firn(server, "target", path, *way)
        assert run.code == 3 and "large objects have" in run.out and "restore complete" not in run.out, f"{way}: {run.code}\n{run.out[-2500:]}"


def cases(world):
    yield "compared rows of tables", lambda: rows_of_tables(world)
    for version in (OLD, NEW):
        yield f"compared long names {version}", lambda v=version: long_names(world, v)
        yield f"compared with nothing left {version}", lambda v=version: nothing_left(world, v)
        yield f"compared as far as one may {version}", lambda v=version: not_readable(world, v)
        yield f"compared large objects {version}", lambda v=version: object_cut(world, v)
