"""Schemas under other names, with everything that looks like a schema's name and is none: equal to a rename, or refused by name."""
import os

from restore import dumpsuite, twins
from restore.common import NEW, OLD, firn, same_blocks
from restore.renamed import flag, quoted

# What it is, the old schema, and statements in which {s} is that; {l} the same within a string.
EQUAL = (
    ("storage parameters of TOAST tables", "toast", """CREATE SCHEMA {s}; CREATE TABLE {s}.t (x text) WITH (fillfactor = 70, toast.autovacuum_enabled = false);
        CREATE MATERIALIZED VIEW {s}.m WITH (toast.autovacuum_enabled = false) AS SELECT x FROM {s}.t"""),
    ("names that have parentheses", "s", """CREATE SCHEMA {s}; CREATE TYPE {s}.b AS (x int); CREATE TABLE {s}."a(s.b)" (x int); CREATE TABLE {s}."f(s.b" (x {s}.b);
        CREATE FUNCTION {s}."g(s.b)"(s {s}.b) RETURNS int LANGUAGE sql AS 'SELECT 1'; COMMENT ON TABLE {s}."a(s.b)" IS 's.b'; GRANT SELECT ON {s}."a(s.b)" TO PUBLIC;
        CREATE VIEW {s}."v(s.b)" AS SELECT x FROM {s}."a(s.b)"; CREATE INDEX "i(s.b)" ON {s}."a(s.b)" (x); CREATE SEQUENCE {s}."q(s.b)"; SELECT nextval('{l}."q(s.b)"');
        COMMENT ON FUNCTION {s}."g(s.b)"({s}.b) IS 's.b'; GRANT EXECUTE ON FUNCTION {s}."g(s.b)"({s}.b) TO PUBLIC"""),
    ("names of sequences with quotes", "s", """CREATE SCHEMA {s}; CREATE SEQUENCE {s}."a',b"; SELECT setval('{l}."a'',b"', 7); CREATE SEQUENCE {s}."', s.q"; SELECT setval('{l}."'', s.q"', 8);
        CREATE TABLE {s}.t (x int DEFAULT nextval('{l}."a'',b"'))"""),
    ("all is called the same", "s", """CREATE SCHEMA {s}; CREATE TABLE {s}.s (s int PRIMARY KEY, CONSTRAINT s_ CHECK (s.s > 0), CONSTRAINT w CHECK (s.* IS NOT NULL));
        CREATE TYPE {s}.c AS (s int); CREATE TABLE {s}.u (s {s}.c, CHECK ((s).s > 0)); CREATE TABLE {s}.p (s int REFERENCES {s}.s) PARTITION BY RANGE (s);
        CREATE TABLE {s}.p_1 PARTITION OF {s}.p FOR VALUES FROM (0) TO (10); CREATE FUNCTION {s}.f(s int) RETURNS int LANGUAGE sql IMMUTABLE RETURN s;
        CREATE INDEX s_i ON {s}.s (({s}.f(s))); CREATE POLICY s ON {s}.u USING ((s).s > 0); CREATE TRIGGER s BEFORE UPDATE ON {s}.s FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
        COMMENT ON COLUMN {s}.s.s IS 's.s'; COMMENT ON CONSTRAINT w ON {s}.s IS 's.w'; COMMENT ON TRIGGER s ON {s}.s IS 's'; COMMENT ON POLICY s ON {s}.u IS 's'"""),
    ("a column's name in queries", "data", """CREATE SCHEMA {s}; CREATE TABLE {s}.t (id int PRIMARY KEY, data jsonb); CREATE VIEW {s}.v AS SELECT t.id, t.data FROM {s}.t;
        CREATE VIEW {s}.w AS SELECT a.data, b.id FROM {s}.t a JOIN {s}.t b USING (id); CREATE VIEW {s}.x AS SELECT data FROM {s}.t UNION ALL SELECT data FROM {s}.t;
        CREATE VIEW {s}.y AS SELECT (SELECT max(q.id) FROM {s}.t q) AS m, extract(year FROM now()) AS y, e.data FROM {s}.t e"""),
    ("operators", "s", """CREATE SCHEMA {s}; CREATE FUNCTION {s}.f(int, int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT true'; CREATE OPERATOR {s}.* (LEFTARG = int, RIGHTARG = int, FUNCTION = {s}.f);
        CREATE OPERATOR {s}.*= (LEFTARG = int, RIGHTARG = int, FUNCTION = {s}.f, COMMUTATOR = OPERATOR({s}.*=)); CREATE OPERATOR {s}.= (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq, MERGES, HASHES, COMMUTATOR = OPERATOR({s}.=));
        CREATE OPERATOR {s}.@#@ (RIGHTARG = int, FUNCTION = int4abs); CREATE OPERATOR {s}.|/- (LEFTARG = int, RIGHTARG = int, FUNCTION = int4mi); COMMENT ON OPERATOR {s}.* (int, int) IS 's.*'; CREATE OPERATOR CLASS {s}.ops FOR TYPE int USING hash AS OPERATOR 1 {s}.=, FUNCTION 1 hashint4(int);
        CREATE TABLE {s}.t (s int, EXCLUDE USING hash (s {s}.ops WITH OPERATOR({s}.=)), CHECK (s OPERATOR({s}.*) 1), CHECK (OPERATOR({s}.@#@) s > 0));
        CREATE VIEW {s}.v AS SELECT t.s OPERATOR({s}.*) t.s AS a, t.s OPERATOR({s}.|/-) 1 AS b, OPERATOR({s}.@#@) t.s AS c FROM {s}.t ORDER BY t.s USING <;
        CREATE TABLE {s}.r (o regoper DEFAULT '{l}.|/-', p regoperator DEFAULT '{l}.*(int, int)', q regoper DEFAULT '{l}.@#@')"""),
    ("types", "s", """CREATE SCHEMA {s}; CREATE TYPE {s}.c AS (x int, "s.y" text); CREATE DOMAIN {s}.d AS {s}.c[] CHECK (VALUE[1] IS NOT NULL); CREATE TYPE {s}.r AS RANGE (SUBTYPE = {s}.c, MULTIRANGE_TYPE_NAME = {s}.mr);
        CREATE TABLE {s}.t (a {s}.c[], b {s}.d, c {s}.r, d {s}.mr[], e {s}.c DEFAULT ROW(1, 's.x')::{s}.c, f {s}.c[] DEFAULT ARRAY[ROW(1, 's')::{s}.c], g {s}.r DEFAULT '["(1,x)","(2,y)")');
        INSERT INTO {s}.t (a, b, c) VALUES ('{{"(1,s.x)"}}', '{{"(2,s)"}}', '["(1,s.t)","(2,s.t)")'); CREATE TABLE {s}.o OF {s}.c; CREATE FUNCTION {s}.f(VARIADIC s {s}.c[], OUT "s.x" {s}.mr) LANGUAGE sql AS 'SELECT NULL::{s}.mr'; CREATE FUNCTION {s}.g() RETURNS TABLE (s {s}.c, x {s}.d) LANGUAGE sql BEGIN ATOMIC SELECT NULL::{s}.c, NULL::{s}.d; END;
        CREATE FUNCTION {s}.h(s {s}.t) RETURNS SETOF {s}.t LANGUAGE plpgsql AS 'BEGIN END'; CREATE CAST ({s}.c AS {s}.r) WITH INOUT; COMMENT ON CAST ({s}.c AS {s}.r) IS 's.c'; CREATE VIEW {s}.v AS SELECT t.a[1]::text, (t.a[1]).x, ('(1,1)'::{s}.c).x AS y FROM {s}.t"""),
    ("text search", "s", """CREATE SCHEMA {s}; CREATE TEXT SEARCH TEMPLATE {s}.te (INIT = dsimple_init, LEXIZE = dsimple_lexize); CREATE TEXT SEARCH PARSER {s}.pa (START = prsd_start, GETTOKEN = prsd_nexttoken, END = prsd_end, LEXTYPES = prsd_lextype);
        CREATE TEXT SEARCH DICTIONARY {s}.di (TEMPLATE = {s}.te); CREATE TEXT SEARCH CONFIGURATION {s}.co (PARSER = {s}.pa); ALTER TEXT SEARCH CONFIGURATION {s}.co ADD MAPPING FOR asciiword, word WITH {s}.di, simple;
        CREATE TABLE {s}.t (x text, c regconfig DEFAULT '{l}.co', d regdictionary DEFAULT '{l}.di', v tsvector GENERATED ALWAYS AS (to_tsvector('{l}.co'::regconfig, x)) STORED); CREATE INDEX ON {s}.t USING gin (to_tsvector('{l}.co', x));
        COMMENT ON TEXT SEARCH PARSER {s}.pa IS 's.p'; COMMENT ON TEXT SEARCH CONFIGURATION {s}.co IS 's'"""),
    ("other servers", "s", """CREATE SCHEMA {s}; CREATE FOREIGN DATA WRAPPER w OPTIONS (s 's.x'); CREATE SERVER s FOREIGN DATA WRAPPER w OPTIONS (host 's.x'); CREATE USER MAPPING FOR PUBLIC SERVER s OPTIONS (s 's.x');
        CREATE FOREIGN TABLE {s}.t (x int OPTIONS (column_name 's.x')) SERVER s OPTIONS (schema_name 's', table_name 's.t')"""),
    ("publications", "s", """CREATE SCHEMA {s}; CREATE SCHEMA "p s"; CREATE TABLE {s}.s (s int PRIMARY KEY, t text); CREATE PUBLICATION s FOR TABLES IN SCHEMA {s}; CREATE PUBLICATION "s.s" FOR TABLE {s}.s (s) WHERE (s > 0 AND s <> 2);
        CREATE PUBLICATION "a s" FOR TABLES IN SCHEMA {s}, "p s"; COMMENT ON PUBLICATION s IS 's.s'"""),
    ("default privileges", "s", """CREATE SCHEMA {s}; DO $$BEGIN CREATE ROLE s; EXCEPTION WHEN duplicate_object THEN END$$; GRANT CREATE, USAGE ON SCHEMA {s} TO s; ALTER DEFAULT PRIVILEGES FOR ROLE s IN SCHEMA {s} GRANT SELECT ON TABLES TO s;
        ALTER DEFAULT PRIVILEGES FOR ROLE s GRANT USAGE ON SCHEMAS TO PUBLIC; ALTER DEFAULT PRIVILEGES IN SCHEMA {s} REVOKE EXECUTE ON FUNCTIONS FROM s; CREATE TABLE {s}.s (s int); ALTER TABLE {s}.s OWNER TO s; GRANT SELECT (s) ON {s}.s TO s; ALTER SCHEMA {s} OWNER TO s"""),
    ("settings", "s", """CREATE SCHEMA {s}; CREATE FUNCTION {s}.f() RETURNS int LANGUAGE sql SET s.x TO 's.y' SET search_path TO s, pg_temp AS 'SELECT 1'; CREATE FUNCTION {s}.g() RETURNS int LANGUAGE plpgsql AS $s$BEGIN RETURN (SELECT count(*) FROM s.t); END$s$"""),
    ("dollars and escapes", "s", r"""CREATE SCHEMA {s}; CREATE FUNCTION {s}.f() RETURNS text LANGUAGE sql AS $x$SELECT '$_$ s.t $$ \ '$x$; CREATE TABLE {s}.t (a text DEFAULT E'a\\''s.t', b text DEFAULT '--s.t', c text DEFAULT '/* s.t */', d text DEFAULT '"s"."t"', e text DEFAULT $$'$$);
        COMMENT ON TABLE {s}.t IS E'\\'' s.t'; CREATE VIEW {s}.v AS SELECT E'\\s.t'::text AS x, '''s.t'::text AS y FROM {s}.t"""),
    ("queries", "s", """CREATE SCHEMA {s}; CREATE TABLE {s}.t (a int, b int); CREATE FUNCTION {s}.f(int) RETURNS SETOF {s}.t LANGUAGE sql BEGIN ATOMIC SELECT * FROM {s}.t x WHERE x.a = $1; END;
        CREATE VIEW {s}.v AS WITH RECURSIVE c AS (SELECT t.a FROM {s}.t UNION ALL SELECT c.a + 1 FROM c, {s}.t x WHERE x.a > c.a) SELECT c.a, f.b, row_number() OVER (PARTITION BY f.a) AS n FROM c, LATERAL {s}.f(c.a) f(a, b), ROWS FROM ({s}.f(1), {s}.f(2)) r(k, l, m, o)
            WHERE (c.a, 1) IN (SELECT y.a, y.b FROM ONLY {s}.t y) AND NOT EXISTS (TABLE {s}.t) OR f.a = ANY (ARRAY(SELECT z.a FROM {s}.t z));
        CREATE VIEW {s}.x AS SELECT x.* FROM {s}.t x CROSS JOIN {s}.v; CREATE VIEW {s}.y AS SELECT t FROM {s}.t TABLESAMPLE system (10);
        CREATE RULE r AS ON INSERT TO {s}.v DO INSTEAD (INSERT INTO {s}.t (a, b) SELECT NEW.a, q.b FROM {s}.t q; UPDATE {s}.t SET b = NEW.b WHERE t.a = NEW.a; DELETE FROM {s}.t WHERE t.a IN (SELECT v.a FROM {s}.v)); CREATE RULE n AS ON UPDATE TO {s}.t DO NOTIFY s"""),
    ("privileges on routines", "s", """CREATE SCHEMA {s}; CREATE TYPE {s}.t AS ENUM ('s', 's.t'); CREATE FUNCTION {s}.sf({s}.t, {s}.t) RETURNS {s}.t LANGUAGE sql AS 'SELECT $1';
        CREATE PROCEDURE {s}.p(INOUT s {s}.t) LANGUAGE plpgsql AS 'BEGIN END'; CREATE AGGREGATE {s}.a(ORDER BY {s}.t) (SFUNC = {s}.sf, STYPE = {s}.t, INITCOND = 's.t');
        REVOKE ALL ON PROCEDURE {s}.p FROM PUBLIC; GRANT ALL ON FUNCTION {s}.a TO PUBLIC; COMMENT ON PROCEDURE {s}.p({s}.t) IS 's'; COMMENT ON TYPE {s}.t IS 's.t'; CREATE TABLE {s}.p_ (t {s}.t DEFAULT 's.t') PARTITION BY LIST (t); CREATE TABLE {s}.p_s PARTITION OF {s}.p_ FOR VALUES IN ('s', 's.t'); INSERT INTO {s}.p_ VALUES ('s')"""),
    ("constants of types", "s", """CREATE SCHEMA {s}; CREATE COLLATION {s}.c FROM "C"; CREATE FUNCTION {s}.f() RETURNS int LANGUAGE sql AS 'SELECT 1';
        CREATE TABLE {s}.t (a regclass, b regtype DEFAULT 'int[]', c regproc DEFAULT '{l}.f', d regprocedure DEFAULT '{l}.f()', e regnamespace DEFAULT '{l}', g regcollation DEFAULT '{l}.c', n text DEFAULT '{l}.t');
        ALTER TABLE {s}.t ALTER a SET DEFAULT '{l}.t', ALTER b SET DEFAULT '{l}.t[]'"""),
    ("procedures in values", "s", """CREATE SCHEMA {s}; CREATE TABLE {s}."T" (x int); CREATE FUNCTION {s}."F"({s}."T", text, int[], {s}."T"[]) RETURNS int LANGUAGE sql AS 'SELECT 1';
        CREATE VIEW {s}.v AS SELECT '{l}."F"({l}."T", text, int[], {l}."T"[])'::regprocedure AS p, '{l}."T"'::regclass AS c, '{l}."T"'::regtype AS t, ARRAY['{l}."T"'::regclass] AS a"""),
    ("statistics and expressions", "s", """CREATE SCHEMA {s}; CREATE FUNCTION {s}.f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1'; CREATE TABLE {s}.t (s int, b int); CREATE STATISTICS {s}.s ON ({s}.f(s)), (s.f(b)) FROM {s}.t; ALTER STATISTICS {s}.s SET STATISTICS 7; COMMENT ON STATISTICS {s}.s IS 's.s';
        CREATE TABLE {s}.p (s int) PARTITION BY RANGE ({s}.f(s)); CREATE TABLE {s}.p1 PARTITION OF {s}.p DEFAULT; CREATE INDEX ON {s}.p ({s}.f(s)); CREATE TABLE {s}.g (s int, g int GENERATED ALWAYS AS ({s}.f(s)) STORED); INSERT INTO {s}.g VALUES (1); INSERT INTO {s}.p VALUES (1)"""),
    ("keywords", "select", """CREATE SCHEMA {s}; CREATE TABLE {s}."from" ("join" int); CREATE VIEW {s}."where" AS SELECT "from"."join" AS "select" FROM {s}."from" """),
    ("words that are no keywords for names", "text", """CREATE SCHEMA {s}; CREATE DOMAIN {s}.text AS text; CREATE TABLE {s}.name (text text, x {s}.text DEFAULT 'text'::{s}.text, y varchar DEFAULT 'text.x'::text); CREATE VIEW {s}.v AS SELECT name.text::text AS t, 'text'::text AS y FROM {s}.name"""),
    ("nothing but quotes", '"', """CREATE SCHEMA {s}; CREATE TABLE {s}.t (x serial); CREATE VIEW {s}.v AS SELECT t.x FROM {s}.t; CREATE FUNCTION {s}.f({s}.t) RETURNS int LANGUAGE sql AS 'SELECT 1'"""),
    ("a quote, a dot, a backslash", "a'b\\.c", """CREATE SCHEMA {s}; CREATE TABLE {s}.t (x serial, c regclass DEFAULT '{l}.t_x_seq'::regclass); CREATE VIEW {s}.v AS SELECT t.x FROM {s}.t; CREATE FUNCTION {s}.f({s}.t) RETURNS int LANGUAGE sql AS 'SELECT 1'"""),
    ("a line's end", "a\nb", """CREATE SCHEMA {s}; CREATE TABLE {s}.t (x serial); CREATE VIEW {s}.v AS SELECT t.x FROM {s}.t; CREATE FUNCTION {s}.f({s}.t) RETURNS int LANGUAGE sql AS 'SELECT 1'"""),
    ("through the root", "s", """CREATE SCHEMA {s}; CREATE SCHEMA z; CREATE TYPE {s}.e AS ENUM ('a', 's', 'z'); CREATE TABLE {s}.p (e {s}.e, x int) PARTITION BY HASH (e); CREATE TABLE {s}.p0 PARTITION OF {s}.p FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE z.p1 PARTITION OF {s}.p FOR VALUES WITH (MODULUS 2, REMAINDER 1);
        INSERT INTO {s}.p SELECT (ARRAY['a', 's', 'z'])[i % 3 + 1]::{s}.e, i FROM generate_series(1, 100) i"""),
)


# Tables with columns whose values name objects: without rows.
NO_ROWS = ("text search", "operators", "constants of types", "a quote, a dot, a backslash")
# What cannot be told, in a database with a schema s, and what the message names.
REFUSED = (
    ("CREATE TABLE s.s (x int); CREATE VIEW s.v AS SELECT s.x FROM s.s, s.t", "VIEW s.v"),
    ("CREATE VIEW s.v AS WITH s AS MATERIALIZED (SELECT 1 AS x) SELECT s.x FROM s, s.t", "VIEW s.v"),
    ("CREATE VIEW s.v AS SELECT s.a FROM generate_series(1, 2) s(a), s.t", "VIEW s.v"),
    ("CREATE VIEW s.v AS SELECT x.a FROM (SELECT s.id AS a FROM s.t s, s.t) x", "VIEW s.v"),
    ("CREATE TABLE s.w (s s.c); CREATE RULE r AS ON INSERT TO s.t DO ALSO UPDATE s.w SET s.x = new.id", "RULE s.t r"),
    ("CREATE TABLE s.w (s s.c); CREATE RULE r AS ON INSERT TO s.t DO ALSO INSERT INTO s.w (s.x) VALUES (new.id)", "RULE s.t r"),
    ("CREATE FUNCTION s.s(a int) RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT s.a FROM s.t a; END", "FUNCTION s.s(integer)"),
    ("CREATE POLICY p ON s.t USING (EXISTS (SELECT FROM s.t s WHERE s.id = t.id))", "POLICY s.t p"),
    ("CREATE FUNCTION s.f(int) RETURNS regclass LANGUAGE sql IMMUTABLE AS 'SELECT $1::oid::regclass'; CREATE TABLE s.p (x int) PARTITION BY LIST (s.f(x)); "
     "CREATE TABLE s.p1 PARTITION OF s.p FOR VALUES IN ('s.t')", "TABLE ATTACH s.p1"),
    ("CREATE TABLE s.r (p pg_proc)", "TABLE DATA s.r"),
)


def source(world, version, name, sql):
    server = world.server(version)
    db = server.fresh("misnamed")
    with server.connect(db) as c:
        c.execute(sql.replace("{s}", quoted(name)).replace("{l}", quoted(name).replace("'", "''")).replace("{{", "{").replace("}}", "}"))
    path = os.path.join(world.folder, "misnamed")
    return db, server.archive(db, path, "c")


def equal(world, version, what, name, sql):
    """As a rename leaves it; also beside the old schema, which is not touched and not needed."""
    server = world.server(version)
    db, path = source(world, version, name, sql)
    new = 'N.1 "x": ü'
    flags = ["-s"] if what in NO_ROWS else []

    def renamed(*more):
        server.pg_restore("oracle", path, "--exit-on-error", *flags, *more)
        with server.connect("oracle") as c:
            c.execute(f"ALTER SCHEMA {quoted(name)} RENAME TO {quoted(new)}")
    server.fresh("oracle")
    renamed()
    server.fresh("target")
    run = firn(server, "target", path, *flag(name, new), "-j", "2", *flags).ok()
    twins.compare(twins.catalogs(server, "oracle"), twins.catalogs(server, "target"), run.out[-1500:], run)
    if what == "through the root":
        # Which partition has a row is up to the oids of its type's labels.
        with server.connect("target") as c:
            assert c.execute(f"SELECT count(DISTINCT x) FROM {quoted(new)}.p").fetchone() == (100,)
        return
    same_blocks(server.dump("oracle"), server.dump("target"), what)
    server.fresh("oracle", template=db)
    with server.connect("oracle") as c:
        c.execute(f"DROP SCHEMA {quoted(name)} CASCADE; CREATE SCHEMA {quoted(name)}")
    chosen = ("-n", name, "--no-publications")
    renamed(*chosen)
    server.fresh("target", template=db)
    with server.connect("target") as c:
        c.execute(f"CREATE SCHEMA {quoted(new)}")
    old = server.dump("target", "-n", quoted(name))
    firn(server, "target", path, *flag(name, new), *flags, *chosen, "-j", "2").ok()
    assert server.dump("target", "-n", quoted(name)) == old
    with server.connect("target") as c:
        c.execute(f"DROP SCHEMA {quoted(name)} CASCADE")
    only = ("-n", quoted(new), "--no-publications")
    same_blocks(server.dump("oracle", *only), server.dump("target", *only), f"{what}, beside the old one")


def refused(world, version, sql, word):
    """Before anything is done, with the object's name."""
    server = world.server(version)
    _, path = source(world, version, "s", "CREATE SCHEMA s; CREATE TABLE s.t (id int); CREATE TYPE s.c AS (x int); " + sql)
    server.fresh("target")
    run = firn(server, "target", path, *flag("s", "x")).fails(f"{word} cannot be put into another schema")
    assert run.code == 2, run.out
    with server.connect("target") as c:
        assert not c.execute("SELECT 1 FROM pg_namespace WHERE nspname IN ('x', 's', 'firn_restore')").fetchall()


def all_kinds(world, version):
    """PostgreSQL's own objects for tests of pg_dump, its two schemas and public."""
    s = dumpsuite.suite(world, version)
    path = s.archive("postgres", "c")
    for pairs, before in (([("dump_test", "dump_test: other"), ("dump_test_second_schema", "dump_test")], []),
                          ([("public", "Public")], ['ALTER SCHEMA public RENAME TO "Public"'])):
        s.before("oracle", path, [[]])
        with s.server.connect("oracle") as c:
            for old, new in pairs:
                c.execute(f"ALTER SCHEMA {quoted(old)} RENAME TO {quoted(new)}")
        s.before("target", path, before)
        flags = [part for pair in pairs for part in flag(*pair)]
        run = firn(s.server, "target", path, *flags, "-j", "3", "--no-analyze").ok()
        twins.compare(twins.catalogs(s.server, "oracle"), twins.catalogs(s.server, "target"), f"{pairs}\n{run.out[-1500:]}", run)
        same_blocks(s.server.dump("oracle"), s.server.dump("target"), str(pairs))


def cases(world):
    for version in (OLD, NEW):
        for what, name, sql in EQUAL:
            yield f"misnamed {version} {what}", lambda v=version, w=what, n=name, s=sql: equal(world, v, w, n, s)
        yield f"misnamed {version} pg_dump's own", lambda v=version: all_kinds(world, v)
        for n, (sql, word) in enumerate(REFUSED):
            yield f"misnamed {version} refused {n}: {word}", lambda v=version, s=sql, w=word: refused(world, v, s, w)
