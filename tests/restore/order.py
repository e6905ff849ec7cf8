"""What the archive's order says and its dependencies do not: what is made before a cast, an operator class, or a setting of the
database means something else for ever, though it looks the same in each dump.
"""
import os
import shutil
import threading

from harness import proxy as px
from harness.proxy import Proxy
from restore.common import NEW, OLD, firn, same

# A conversion by the cast's function, not by the words of the enum; pairs that sort from the last to the first.
MEANINGS = """
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE FUNCTION label(mood) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT 'is ' || $1::name::text $$;
CREATE CAST (mood AS text) WITH FUNCTION label(mood) AS ASSIGNMENT;
CREATE TYPE pair AS (a int, b int);
CREATE FUNCTION back(pair, pair) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT CASE WHEN $1.a > $2.a THEN -1 WHEN $1.a < $2.a THEN 1 ELSE 0 END';
"""
OPERATORS = "".join(
    f"CREATE FUNCTION pair_{name}(pair, pair) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT back($1, $2) {op} 0';"
    f"CREATE OPERATOR {op} (LEFTARG = pair, RIGHTARG = pair, FUNCTION = pair_{name}, RESTRICT = {est}sel, JOIN = {est}joinsel{more});"
    for name, op, est, more in (("lt", "<", "scalarlt", ", COMMUTATOR = >"), ("le", "<=", "scalarle", ""), ("eq", "=", "eq", ", COMMUTATOR = ="),
                                ("ge", ">=", "scalarge", ""), ("gt", ">", "scalargt", ", COMMUTATOR = <")))
USERS = """
CREATE OPERATOR CLASS pair_back DEFAULT FOR TYPE pair USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,
    FUNCTION 1 back(pair, pair);
CREATE TABLE t (m mood CHECK (m::text LIKE 'is %'), d text DEFAULT ('bad'::mood)::text, p pair);
CREATE TABLE kept (m mood, words text GENERATED ALWAYS AS (label(m)) STORED);
INSERT INTO t (m, p) VALUES ('good', (1, 1)), ('bad', (2, 2)); INSERT INTO kept VALUES ('good');
CREATE VIEW v AS SELECT m::text AS words FROM t ORDER BY p;
CREATE MATERIALIZED VIEW mv AS SELECT m::text AS words, p FROM t ORDER BY p;
CREATE INDEX expression ON t ((label(m)));
CREATE VIEW every AS SELECT DISTINCT p FROM t ORDER BY p;
"""
SEEN = ("SELECT words FROM v", "SELECT words FROM mv", "SELECT array_agg(p::text) FROM every", "INSERT INTO t (m) VALUES ('good') RETURNING d",
        "SELECT words FROM kept")


def seen(server, db):
    with server.connect(db) as c:
        return [c.execute(q).fetchall() for q in SEEN]


def meanings(world, version, jobs, more):
    server = world.server(version)

    def make(path):
        with server.connect(server.fresh("order_meanings")) as c:
            c.execute(MEANINGS + OPERATORS + USERS)
        return server.archive("order_meanings", path, "c")
    path = world.archive(f"order-meanings-{version}", make)
    server.fresh("oracle")
    server.pg_restore("oracle", path)
    right = seen(server, "oracle")
    assert right[0] == [("is bad",), ("is good",)] and right[3] == [("is bad",)], right
    server.fresh("target")
    firn(server, "target", path, "-j", str(jobs), *more).ok()
    assert (found := seen(server, "target")) == right, (found, right)


def late_meanings(world, version):
    """What was made without a cast, or an operator class, that failed and comes by --resume is told, however often it took."""
    server = world.server(version)

    def make(path):
        with server.connect(server.fresh("order_late")) as c:
            # A check that means something else may refuse the rows, which is loud enough.
            c.execute(MEANINGS + OPERATORS + USERS.replace(" CHECK (m::text LIKE 'is %')", ""))
        return server.archive("order_late", path, "c")
    path = world.archive(f"order-late-{version}", make)

    def refuse(*tags):
        with server.connect("target") as c:
            c.execute("DROP EVENT TRIGGER IF EXISTS refuse")
            if tags:
                c.execute(f"CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ({', '.join(tags)}) EXECUTE FUNCTION refuse()")
    for steps, late in (((["'CREATE CAST'"], []), ["CAST"]), ((["'CREATE OPERATOR CLASS'"], []), ["OPERATOR CLASS"]),
                        ((["'CREATE CAST'", "'CREATE OPERATOR CLASS'"], ["'CREATE OPERATOR CLASS'"], []), ["CAST", "OPERATOR CLASS"])):
        server.fresh("target")
        with server.connect("target") as c:
            c.execute("CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not now'; END$$")
        runs = []
        for number, tags in enumerate(steps):
            refuse(*tags)
            runs.append(firn(server, "target", path, "-j", "2", "--on-error=continue", *(["--resume"] if number else [])))
        assert [run.code for run in runs] == [1] * (len(runs) - 1) + [3], [(run.code, run.out[-1500:]) for run in runs]
        out = runs[-1].out
        assert "objects were made without what says how they are to be understood" in out and "restore complete" not in out, out[-3000:]
        for kind in ("CAST", "OPERATOR CLASS"):
            assert (f"{kind} " in out.split("Of a later run, after errors, are: ")[1].split(". Made before")[0]) == (kind in late), out[-3000:]
        assert "VIEW public.v" in out.split("Made before are: ")[1], out[-3000:]
        with server.connect("target") as c:
            assert c.execute("SELECT to_regnamespace('firn_restore') IS NULL").fetchone() == (True,)
    # Not what came late with all that stands behind it, nor what others need that nothing is understood by.
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not now'; END$$")
    refuse("'CREATE TYPE'")
    assert firn(server, "target", path, "-j", "2", "--on-error=continue").code == 1
    refuse()
    firn(server, "target", path, "-j", "2", "--on-error=continue", "--resume").ok()


# In force when rows are stored and expressions are evaluated; the last two are not to keep the restore from working.
SETTINGS = """
CREATE FUNCTION words(text) RETURNS tsvector IMMUTABLE LANGUAGE sql AS 'SELECT to_tsvector($1)';
CREATE TABLE texts (t text, w tsvector GENERATED ALWAYS AS (words(t)) STORED, who text DEFAULT current_setting('app.who', true));
CREATE INDEX ON texts USING gin (words(t));
ALTER DATABASE order_settings SET default_text_search_config = 'pg_catalog.german';
ALTER DATABASE order_settings SET app.who = 'somebody; SET';
ALTER ROLE postgres IN DATABASE order_settings SET bytea_output = 'escape';
ALTER DATABASE order_settings SET session_preload_libraries = 'order_no_such_library';
ALTER DATABASE order_settings SET default_transaction_read_only = on;
SET default_text_search_config = 'pg_catalog.german';
INSERT INTO texts VALUES ('die kleinen Häuser');
"""


def nulls(world):
    """NULL in arrays is null, whatever the target or the archive sets for the database."""
    server = world.server()
    with server.connect(server.fresh("order_nulls")) as c:
        c.execute("CREATE TABLE t (a text[] DEFAULT '{NULL}'); INSERT INTO t VALUES (ARRAY['a', NULL, 'NULL']), (DEFAULT)")
        c.execute("ALTER DATABASE order_nulls SET array_nulls = off")
    paths = [server.archive("order_nulls", os.path.join(world.folder, f"order-nulls{''.join(extra)}"), "c", extra=extra) for extra in ([], ["--inserts"])]
    with server.connect() as c:
        c.execute("DROP DATABASE order_nulls")
    for path in paths:
        for flags in ([], ["-1"], ["--transaction-size=2"], ["-C"], ["-C", "--transaction-size=2"]):
            db = "order_nulls" if "-C" in flags else server.fresh("target")
            with server.connect() as c:
                c.execute("ALTER DATABASE target SET array_nulls = off")
            firn(server, "postgres" if "-C" in flags else db, path, *flags).ok()
            with server.connect(db) as c:
                c.execute("SET array_nulls = on")
                c.execute("INSERT INTO t DEFAULT VALUES")
                found = c.execute("SELECT a = ARRAY['a', NULL, 'NULL'], count(*) FROM t GROUP BY 1 ORDER BY 1").fetchall()
                assert found == [(False, 2), (True, 1)] and c.execute("SELECT count(*) FROM t WHERE a = '{NULL}'").fetchone() == (2,), (path, flags, found)
            with server.connect() as c:
                c.execute("DROP DATABASE IF EXISTS order_nulls")


def read_only(world):
    """-C: that the archive's database is read-only by default is for those who come later, not for who goes on with the restore."""
    server = world.server()
    with server.connect() as c:
        c.execute("DROP DATABASE IF EXISTS order_read_only WITH (FORCE)")
        c.execute("CREATE ROLE order_helper")
    with server.connect(server.fresh("order_read_only")) as c:
        c.execute("""CREATE FUNCTION helped(int) RETURNS int IMMUTABLE LANGUAGE sql AS
                     'SELECT $1 / count(*)::int FROM pg_catalog.pg_roles WHERE rolname = ''order_helper''';
                     CREATE TABLE t AS SELECT 1 AS id; CREATE INDEX helped ON t (helped(id));
                     ALTER DATABASE order_read_only SET default_transaction_read_only = on""")
    path = world.archive("order-read-only", lambda p: server.archive("order_read_only", p, "c"))
    dump = server.dump("order_read_only", "--create")
    with server.connect() as c:
        c.execute("DROP DATABASE order_read_only")
        c.execute("DROP ROLE order_helper")
    run = firn(server, "postgres", path, "-C", "-j", "2", "--on-error=continue")
    assert run.code == 1 and "division by zero" in run.out, run.out
    with server.connect() as c:
        c.execute("CREATE ROLE order_helper")
    firn(server, "postgres", path, "-C", "-j", "2", "--on-error=continue", "--resume").ok()
    same(dump, server.dump("order_read_only", "--create"))
    with server.connect() as c:
        c.execute("DROP DATABASE order_read_only")
        c.execute("DROP ROLE order_helper")


def settings(world, jobs):
    """-C: what the archive sets for the database is in force when its rows are stored."""
    server = world.server()
    with server.connect() as c:
        c.execute("DROP DATABASE IF EXISTS order_settings WITH (FORCE)")
    with server.connect(server.fresh("order_settings")) as c:
        c.execute(SETTINGS)
        rows = c.execute("SELECT * FROM texts").fetchall()
        c.execute("ALTER DATABASE order_settings RESET session_preload_libraries")
    assert "hau" in rows[0][1] and "klein" in rows[0][1], rows
    path = world.archive(f"order-settings-{jobs}", lambda p: server.archive("order_settings", p, "c"))
    dump = server.dump("order_settings", "--create")
    with server.connect() as c:
        c.execute("DROP DATABASE order_settings")
    firn(server, "postgres", path, "-C", "-j", str(jobs)).ok()
    with server.connect("order_settings") as c:
        assert c.execute("SELECT * FROM texts").fetchall() == rows
        assert c.execute("SELECT count(*) FROM texts WHERE words(t) @@ 'klein'::tsquery").fetchone() == (1,)
    same(dump, server.dump("order_settings", "--create"))
    with server.connect() as c:
        c.execute("DROP DATABASE order_settings")


# Rows that were there before the constraint, which is for new ones only.
NOT_VALID = """
CREATE DOMAIN above AS int; CREATE TABLE a (i above, t text); CREATE TABLE p (i int); CREATE TABLE c (t text) INHERITS (p);
INSERT INTO a SELECT -i, repeat(md5(i::text), 20) FROM generate_series(1, 4000) i; INSERT INTO c SELECT -i, repeat(md5(i::text), 20) FROM generate_series(1, 4000) i;
ALTER DOMAIN above ADD CONSTRAINT above_zero CHECK (VALUE > 0) NOT VALID; ALTER TABLE p ADD CONSTRAINT p_zero CHECK (i > 0) NOT VALID;
"""


def not_valid(world, version):
    server = world.server(version)
    with server.connect(server.fresh("order_checks")) as c:
        c.execute(NOT_VALID)
        if version == NEW:
            c.execute("CREATE TABLE q (i int); CREATE TABLE d () INHERITS (q); INSERT INTO d SELECT NULL FROM generate_series(1, 4000); "
                      "ALTER TABLE q ADD CONSTRAINT q_i NOT NULL i NOT VALID")
    path = world.archive(f"order-checks-{version}", lambda p: server.archive("order_checks", p, "c"))
    for jobs in (1, 4):
        server.fresh("target")
        firn(server, "target", path, "-j", str(jobs)).ok()
        same(server.dump("order_checks"), server.dump("target"))


GRANTS = """
CREATE SCHEMA s; CREATE TABLE s.t (a int, b int); GRANT USAGE ON SCHEMA s TO order_a;
GRANT SELECT ON s.t TO order_a WITH GRANT OPTION; GRANT UPDATE (a) ON s.t TO order_b;
SET ROLE order_a; GRANT SELECT ON s.t TO order_b; RESET ROLE;
"""


def grants(world):
    """Granted by somebody who needs the schema's privileges for that."""
    server = world.server()
    server.roles("order_a", "order_b")
    with server.connect(server.fresh("order_grants")) as c:
        c.execute(GRANTS)
    path = world.archive("order-grants", lambda p: server.archive("order_grants", p, "c"))
    for jobs in (1, 2, 4):
        server.fresh("target")
        firn(server, "target", path, "-j", str(jobs)).ok()
        same(server.dump("order_grants"), server.dump("target"))


# What is taken away behind the restore's back, while it compares nothing yet, and what it must say of it.
TAKEN = {
    "DROP FUNCTION f(int)": "FUNCTION public.f(integer): it is missing, or another of its name",
    "ALTER FUNCTION f(text) OWNER TO order_b": "its owner is not \"order_a\"",
    "DROP OPERATOR === (int, int)": "OPERATOR public.===: it is missing",
    "ALTER TABLE t DISABLE ROW LEVEL SECURITY": "ROW SECURITY public.t: row security is off",
    "COMMENT ON TABLE t IS NULL": "COMMENT public.TABLE t: it is missing",
    "ALTER SEQUENCE q RESTART": "SEQUENCE SET public.q: its value",
    "ALTER DEFAULT PRIVILEGES FOR ROLE order_a REVOKE SELECT ON TABLES FROM order_b": "DEFAULT PRIVILEGES FOR TABLES: they are missing",
    "ALTER PUBLICATION pub DROP TABLE t": "PUBLICATION TABLE public.pub t: it is missing",
    "DROP PUBLICATION pub": "PUBLICATION pub: it is missing",
    "DROP USER MAPPING FOR order_a SERVER srv": "USER MAPPING USER MAPPING order_a SERVER srv: it is missing",
    "ALTER SERVER srv OWNER TO order_super": "SERVER srv: its owner is not",
    "DROP STATISTICS st": "STATISTICS public.st: it is missing",
    "DROP COLLATION coll": "COLLATION public.coll: it is missing",
    "DROP TEXT SEARCH CONFIGURATION cfg": "TEXT SEARCH CONFIGURATION public.cfg: it is missing",
}
OBJECTS = """
CREATE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION f(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
ALTER FUNCTION f(text) OWNER TO order_a; CREATE FUNCTION same(int, int) RETURNS bool LANGUAGE sql AS 'SELECT $1 = $2';
CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = same); CREATE TYPE mood AS ENUM ('good');
CREATE FUNCTION number(mood) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE CAST (mood AS int) WITH FUNCTION number(mood);
CREATE TABLE t (i int, j int); ALTER TABLE t ENABLE ROW LEVEL SECURITY; COMMENT ON TABLE t IS 'rows'; GRANT SELECT ON t TO order_b;
CREATE SEQUENCE q; SELECT setval('q', 70); CREATE SEQUENCE down INCREMENT -1; SELECT nextval('down'), nextval('down');
ALTER DEFAULT PRIVILEGES FOR ROLE order_a GRANT SELECT ON TABLES TO order_b;
CREATE PUBLICATION pub FOR TABLE t; CREATE FOREIGN DATA WRAPPER w; CREATE SERVER srv FOREIGN DATA WRAPPER w; CREATE USER MAPPING FOR order_a SERVER srv;
CREATE STATISTICS st ON i, j FROM t; CREATE COLLATION coll FROM "C"; CREATE TEXT SEARCH CONFIGURATION cfg (COPY = simple);
CREATE FUNCTION nothing() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; CREATE EVENT TRIGGER et ON sql_drop EXECUTE FUNCTION nothing();
ALTER EVENT TRIGGER et DISABLE;
CREATE FUNCTION waits() RETURNS int LANGUAGE sql AS 'SELECT 1 FROM pg_advisory_xact_lock(4711)';
CREATE MATERIALIZED VIEW last AS SELECT waits();
"""


def compared(world):
    """Each kind of object is looked for at the end: what is gone by then is told, and the restore is not complete."""
    server = world.server()
    server.roles("order_a", "order_b")
    with server.connect() as c:
        c.execute("DO $$ BEGIN CREATE ROLE order_super SUPERUSER; EXCEPTION WHEN duplicate_object THEN END $$")
    with server.connect(server.fresh("order_objects")) as c:
        c.execute(OBJECTS)
    path = world.archive("order-objects", lambda p: server.archive("order_objects", p, "c"))
    # What is there, and no more, is no difference.
    server.fresh("target")
    firn(server, "target", path, "-j", "2").ok()
    for statement, told in TAKEN.items():
        server.fresh("target")
        with server.connect("target") as holder, server.connect("target") as c:
            # Materialized views are filled when all else is there.
            holder.execute("SELECT pg_advisory_lock(4711)")
            child = firn(server, "target", path, "-j", "2", wait=False)
            child.until(c, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            c.execute(statement)
        run = child.wait()
        assert run.code == 3 and told in run.out and "restore complete" not in run.out, f"{statement}: {run.code}\n{run.out[-2500:]}"


# A CHECK constraint whose function reads another table, which pg_dump writes before.
LOOKS = """
CREATE TABLE a_ref (k int); INSERT INTO a_ref SELECT generate_series(1, 20);
CREATE FUNCTION ok(int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN EXISTS (SELECT FROM public.a_ref WHERE k = $1); END';
CREATE TABLE b_rows (k int CHECK (ok(k))); INSERT INTO b_rows SELECT generate_series(1, 5);
"""


def looked_at(world):
    """Rows that are loaded beside those that their constraint looks at are loaded again when these are there."""
    server = world.server()
    with server.connect(server.fresh("looks")) as c:
        c.execute(LOOKS)
    path, dump = world.archive("looks", lambda p: server.archive("looks", p, "c")), server.dump("looks")
    server.fresh("target")
    refused, folder = threading.Event(), os.path.join(server.root, "looks")

    def fault(m):
        if m.sql.startswith(b"COPY public.a_ref") or b"\nCOPY public.a_ref" in m.sql:
            return px.call(lambda _: refused.wait(px.PATIENCE))
        if m.sql.startswith(b"ROLLBACK"):
            refused.set()
        return None
    with Proxy(folder, server.root) as proxy:
        proxy.arm(fault, again=True)
        run = firn(server, "target", path, *proxy.where("target"), "-j", "2", where=False)
        assert refused.is_set() and not proxy.trouble, (proxy.trouble, run.out[-2000:])
    shutil.rmtree(folder, ignore_errors=True)
    run.ok()
    same(dump, server.dump("target"))


NOT_NULLS = """
CREATE TABLE a (id int NOT NULL, v text) PARTITION BY RANGE (id); CREATE TABLE b PARTITION OF a FOR VALUES FROM (0) TO (1000000);
INSERT INTO a SELECT i, repeat('x', 50) FROM generate_series(1, 20000) i; ALTER TABLE a DETACH PARTITION b;
CREATE TABLE c (id int NOT NULL); CREATE TABLE d (id int CONSTRAINT c_id_not_null NOT NULL, v text); INSERT INTO d SELECT i, repeat('x', 50) FROM generate_series(1, 20000) i;
CREATE TABLE g (id int NOT NULL); CREATE TABLE h (id int CONSTRAINT g_id_not_null CHECK (id IS NOT NULL), v text); INSERT INTO h SELECT i, repeat('x', 50) FROM generate_series(1, 200000) i;
CREATE TABLE e (k int NOT NULL, v text) PARTITION BY RANGE (k);
DO $$ BEGIN FOR i IN 1..40 LOOP EXECUTE format('CREATE TABLE f%s (v text, k int CONSTRAINT e_k_not_null NOT NULL)', i);
EXECUTE format('INSERT INTO f%s SELECT ''x'', %s * 1000 + j FROM generate_series(1, 900) j', i, i); EXECUTE format('ALTER TABLE e ATTACH PARTITION f%s FOR VALUES FROM (%s) TO (%s)', i, i * 1000, i * 1000 + 1000); END LOOP; END $$;"""


def not_nulls(world):
    """Constraints that the server names have the names that they have had."""
    server = world.server(NEW)
    names = "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'n' AND connamespace = 'public'::regnamespace ORDER BY 1, 2"
    with server.connect(server.fresh("not_nulls")) as c:
        c.execute(NOT_NULLS)
        expected = c.execute(names).fetchall()
    path = world.archive("not-nulls", lambda p: server.archive("not_nulls", p, "c"))
    for flags in (["-j1"], ["-j2"], ["-j4"], ["-j8", "--disable-rule=all"], ["-j8", "--disable-rule=partition-of"], ["-1"]):
        server.fresh("target")
        firn(server, "target", path, *flags).ok()
        with server.connect("target") as c:
            assert c.execute(names).fetchall() == expected, flags


KEYS = """
CREATE TABLE r (id int PRIMARY KEY); INSERT INTO r SELECT generate_series(0, 9); CREATE TABLE p (id int, d int) PARTITION BY RANGE (id);
CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10); CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY HASH (d);
CREATE TABLE p_2_0 PARTITION OF p_2 FOR VALUES WITH (MODULUS 1, REMAINDER 0); INSERT INTO p SELECT g, g % 10 FROM generate_series(0, 19) g;
ALTER TABLE p ADD CONSTRAINT fm FOREIGN KEY (d) REFERENCES r; ALTER TABLE p_1 ADD CONSTRAINT fz FOREIGN KEY (d) REFERENCES r;
ALTER TABLE p_2_0 ADD CONSTRAINT fz FOREIGN KEY (d) REFERENCES r NOT VALID;
"""


def foreign_keys(world, version):
    """A partition's own foreign key stays its own, beside the one that it has from its parent."""
    server = world.server(version)
    found = "SELECT conrelid::regclass::text, conname, conparentid <> 0, convalidated FROM pg_constraint WHERE contype = 'f' ORDER BY 1, 2"
    with server.connect(server.fresh("keys")) as c:
        c.execute(KEYS)
        expected = c.execute(found).fetchall()
    path = world.archive(f"keys-{version}", lambda p: server.archive("keys", p, "c"))
    for flags in (["-j4"], ["-j2"], ["-j4", "--disable-rule=all"], ["-j4"], ["-j1"]):
        server.fresh("target")
        firn(server, "target", path, *flags).ok()
        with server.connect("target") as c:
            assert c.execute(found).fetchall() == expected, (flags, c.execute(found).fetchall(), expected)


def cases(world):
    for version in (OLD, NEW):
        yield f"order of foreign keys {version}", lambda v=version: foreign_keys(world, v)
    yield "order of names of not null", lambda: not_nulls(world)
    for version in (OLD, NEW):
        for jobs in (1, 4):
            yield f"order of meanings {version} {jobs}", lambda v=version, j=jobs: meanings(world, v, j, ())
        yield f"order of checks {version}", lambda v=version: not_valid(world, v)
    for version in (OLD, NEW):
        yield f"order of late meanings {version}", lambda v=version: late_meanings(world, v)
    yield "order of meanings, no rules", lambda: meanings(world, OLD, 2, ("--disable-rule=all",))
    for jobs in (1, 3):
        yield f"order of settings {jobs}", lambda j=jobs: settings(world, j)
    yield "order of settings, read-only", lambda: read_only(world)
    yield "order of nulls in arrays", lambda: nulls(world)
    yield "order of grants", lambda: grants(world)
    yield "order, rows looked at", lambda: looked_at(world)
    yield "order, objects compared", lambda: compared(world)
