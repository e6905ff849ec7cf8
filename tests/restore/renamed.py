"""Schemas under other names (--redirect-schema): what pg_restore and ALTER SCHEMA … RENAME make is what is right, in all catalogs."""
import os
import random
import re
import shutil
import signal
import time

from harness import proxy as px
from harness.proxy import Proxy
from restore import alone, kills, old, regression, twins
from restore.common import NEW, OLD, PANIC, firn, same_blocks

# One of everything that names a schema, in a schema {s}, and some of it from another one.
SOURCE = """
CREATE SCHEMA {s}; CREATE SCHEMA beside;
COMMENT ON SCHEMA {s} IS 'sales.orders'; GRANT USAGE ON SCHEMA {s} TO PUBLIC;
CREATE TYPE {s}.mood AS ENUM ('ok', 'sales'); CREATE TYPE {s}.pair AS (x int, m {s}.mood); CREATE DOMAIN {s}.positive AS int CHECK (VALUE > 0);
CREATE TYPE {s}.span AS RANGE (subtype = float8, subtype_diff = float8mi);
CREATE FUNCTION {s}.twice(n int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT n * 2';
CREATE FUNCTION {s}.of_mood(m {s}.mood, p {s}.pair[] DEFAULT NULL) RETURNS {s}.mood LANGUAGE sql IMMUTABLE BEGIN ATOMIC SELECT of_mood.m; END;
CREATE FUNCTION {s}.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE AGGREGATE {s}.product(int) (SFUNC = int4mul, STYPE = int, INITCOND = '1');
CREATE OPERATOR {s}.### (LEFTARG = int, RIGHTARG = int, FUNCTION = int4mul, COMMUTATOR = OPERATOR({s}.###));
CREATE OPERATOR {s}.* (LEFTARG = {s}.pair, RIGHTARG = int, FUNCTION = {s}.pair_times);
CREATE OPERATOR {s}.*< (LEFTARG = int, RIGHTARG = int, FUNCTION = int4lt); CREATE OPERATOR FAMILY {s}.loose USING btree;
CREATE OPERATOR CLASS {s}.reverse FOR TYPE int USING btree FAMILY {s}.loose AS OPERATOR 1 {s}.*<, OPERATOR 3 =, OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int);
CREATE FUNCTION {s}.to_pair(int) RETURNS {s}.pair LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN NULL; END'; CREATE CAST (int AS {s}.pair) WITH FUNCTION {s}.to_pair(int);
CREATE CONVERSION {s}.turned FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8; CREATE EXTENSION moddatetime SCHEMA {s}; CREATE PROCEDURE {s}.work() LANGUAGE sql AS '';
CREATE TABLE {s}.stamped (id int, at timestamp DEFAULT '2024-01-01', label text DEFAULT ('{l}.stamped'::regclass)::text) PARTITION BY LIST (label);
CREATE TABLE {s}.stamped_sales PARTITION OF {s}.stamped FOR VALUES IN ('sales', 'sales.t'); CREATE INDEX ON {s}.stamped USING btree (id {s}.reverse);
CREATE TRIGGER moved BEFORE UPDATE ON {s}.stamped FOR EACH ROW EXECUTE FUNCTION {s}.moddatetime('at');
CREATE FUNCTION {s}.stop() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; CREATE EVENT TRIGGER renamed ON sql_drop EXECUTE FUNCTION {s}.stop();
ALTER EVENT TRIGGER renamed DISABLE;
CREATE COLLATION {s}.plain FROM "C"; CREATE TEXT SEARCH DICTIONARY {s}.words (TEMPLATE = simple); CREATE TEXT SEARCH CONFIGURATION {s}.search (COPY = simple);
CREATE SEQUENCE {s}.counter; SELECT setval('{l}.counter', 77);
CREATE TABLE {s}.people (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, name text COLLATE {s}.plain DEFAULT 'sales.orders', m {s}.mood DEFAULT 'sales',
    c int DEFAULT nextval('{l}.counter'), t int GENERATED ALWAYS AS ({s}.twice(2)) STORED, a {s}.positive, p {s}.pair,
    at text DEFAULT ('{l}.counter'::regclass)::text, CHECK ({s}.twice(id) OPERATOR({s}.###) 2 > 0));
CREATE TABLE {s}.alone (x int, CONSTRAINT whole CHECK (alone.* IS NOT NULL));
CREATE TABLE {s}."Orders" (id int PRIMARY KEY, person int REFERENCES {s}.people, d int) PARTITION BY RANGE (id);
CREATE TABLE {s}.orders_1 PARTITION OF {s}."Orders" FOR VALUES FROM (MINVALUE) TO (100); CREATE TABLE {s}.rest PARTITION OF {s}."Orders" DEFAULT;
CREATE TABLE {s}.child (more int) INHERITS ({s}.people);
CREATE TABLE beside.refers (id int PRIMARY KEY REFERENCES {s}.people, m {s}.mood DEFAULT {s}.of_mood('ok'));
CREATE INDEX people_twice ON {s}.people (({s}.twice(id)), name COLLATE {s}.plain) WHERE m = 'ok'; CREATE INDEX ON {s}."Orders" (d);
CREATE STATISTICS {s}.both ON id, ({s}.twice(id)) FROM {s}.people;
CREATE VIEW {s}.seen AS SELECT o.id, p.name, {s}.twice(o.d) AS t FROM {s}."Orders" o JOIN {s}.people p ON p.id = o.person WHERE p.m = 'ok';
CREATE VIEW beside.seen AS SELECT s.id, 'sales.x'::text AS v FROM {s}.seen s WHERE EXISTS (SELECT FROM {s}.people q WHERE q.id OPERATOR({s}.###) 1 = s.id);
CREATE MATERIALIZED VIEW {s}.kept AS SELECT m, count(*) FROM {s}.people GROUP BY m; CREATE UNIQUE INDEX ON {s}.kept (m);
CREATE RULE nothing AS ON DELETE TO {s}.seen DO INSTEAD UPDATE {s}.people SET name = OLD.name WHERE people.id = OLD.id;
CREATE TRIGGER note BEFORE UPDATE ON {s}.people FOR EACH ROW WHEN (OLD.m IS DISTINCT FROM NEW.m) EXECUTE FUNCTION {s}.note('sales');
ALTER TABLE {s}.people ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON {s}.people USING (id IN (SELECT q.person FROM {s}."Orders" q WHERE q.d = people.id));
GRANT SELECT, UPDATE (name) ON {s}.people TO PUBLIC; GRANT EXECUTE ON FUNCTION {s}.of_mood TO PUBLIC; REVOKE ALL ON FUNCTION {s}.twice FROM PUBLIC;
ALTER DEFAULT PRIVILEGES IN SCHEMA {s} GRANT SELECT ON TABLES TO PUBLIC;
COMMENT ON FUNCTION {s}.of_mood IS 'f'; COMMENT ON COLUMN {s}.people.m IS 'm'; COMMENT ON TRIGGER note ON {s}.people IS 't'; COMMENT ON DOMAIN {s}.positive IS 'd';
COMMENT ON OPERATOR {s}.### (int, int) IS 'o'; COMMENT ON CONSTRAINT whole ON {s}.alone IS 'c'; COMMENT ON AGGREGATE {s}.product(int) IS 'a';
CREATE VIEW {s}.constants AS SELECT '{l}.people'::regclass AS c FROM pg_class WHERE oid = '{l}.twice(int)'::regprocedure AND relnamespace = {n}::regnamespace;
CREATE PUBLICATION of_schema FOR TABLES IN SCHEMA {s}; CREATE PUBLICATION of_table FOR TABLE {s}.people (id, m) WHERE (id > 3);
INSERT INTO {s}.people (name, m, a, p) SELECT 'n' || i, 'ok', i, ('(' || i || ',sales)')::{s}.pair FROM generate_series(1, 50) i; INSERT INTO {s}."Orders" SELECT i * 5, i, i FROM generate_series(1, 50) i;
INSERT INTO beside.refers VALUES (1); REFRESH MATERIALIZED VIEW {s}.kept;
"""
BEFORE = "CREATE FUNCTION {s}.pair_times(p {s}.pair, n int) RETURNS int LANGUAGE sql AS 'SELECT 1';\n"
# Old names, and new ones.
SCHEMAS = (("sales", "other"), ("sales", 'O.1 "x": ü'), ('S.1 "x": ü', "sales"), ("S", "s"), ("old", "new"))
# For -n, which leaves extensions out.
MODDATETIME = "CREATE SCHEMA {s}; CREATE FUNCTION {s}.moddatetime() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
# Of the last one triggers and rules say old.x: it is another schema's name nowhere, but that cannot be told.
REFUSED = ("old",)


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def source(world, version, name):
    server = world.server(version)

    def make():
        db = server.fresh(f"renamed_{SCHEMAS.index(next(p for p in SCHEMAS if p[0] == name))}")
        text = SOURCE.replace("CREATE AGGREGATE", BEFORE + "CREATE AGGREGATE", 1)
        with server.connect(db) as c:
            literal = quoted(name).replace("'", "''")
            c.execute(text.replace("{s}", quoted(name)).replace("{l}", literal).replace("{n}", f"'{literal}'"))
        return db
    db = world.once(("renamed", version, name), make)
    key = f"renamed-{version}-{[p[0] for p in SCHEMAS].index(name)}"
    return db, world.archive(key, lambda p: server.archive(db, p, "c"))


def flag(old, new):
    return ("--redirect-schema", f"{quoted(old)}:{quoted(new)}")


def oracle(world, version, path, pairs, server=None):
    """What pg_restore and a new name make."""
    server = server or world.server(version)
    server.fresh("oracle")
    server.pg_restore("oracle", path, "--exit-on-error")
    with server.connect("oracle") as c:
        for old, new in pairs:
            c.execute(f"ALTER SCHEMA {quoted(old)} RENAME TO {quoted(new)}")
    return twins.catalogs(server, "oracle"), server.dump("oracle")


def as_renamed(world, version, old, new, flags):
    server = world.server(version)
    _, path = source(world, version, old)
    expected, dump = oracle(world, version, path, [(old, new)])
    server.fresh("target")
    run = firn(server, "target", path, *flag(old, new), *flags, env=server.env).ok()
    twins.compare(expected, twins.catalogs(server, "target"), f"{old} as {new}\n{run.out[-1000:]}", run)
    same_blocks(dump, server.dump("target"), f"{old} as {new}")


def zoo(world, version):
    """Several schemas at once, and each other's names."""
    server = world.server(version)
    _, path = alone.source(world, version)
    pairs = [("a", "c.C"), ("Odd Name", "even")]
    expected, dump = oracle(world, version, path, pairs)
    server.fresh("target")
    firn(server, "target", path, *(part for pair in pairs for part in flag(*pair)), "-j", "3").ok()
    twins.compare(expected, twins.catalogs(server, "target"), str(pairs))
    same_blocks(dump, server.dump("target"), str(pairs))


def not_touched(world, version):
    """Where the old schema is, too, nothing of it is touched, nor referred to; neither with -c nor with rows alone."""
    server = world.server(version)
    db, path = source(world, version, "sales")
    before = server.dump(db, "-n", "sales")
    target = server.fresh("target", template=db)
    # A publication of a schema that is not dropped keeps it, with pg_restore -n -c as well.
    args = ["-n", "sales", "-j", "3", "--no-publications", *flag("sales", "O.2")]
    with server.connect(target) as c:
        c.execute(MODDATETIME.replace("{s}", quoted("O.2")))
    firn(server, target, path, *args).ok()
    for more in (["-c", "--if-exists"], ["-a", "--disable-triggers", "--truncate-table"]):
        assert server.dump(target, "-n", "sales") == before
        firn(server, target, path, *args, *more).ok()
    assert server.dump(target, "-n", "sales") == before
    with server.connect(target) as c:
        assert c.execute('SELECT count(*) FROM "O.2".people').fetchone() == (50,)
        assert c.execute("SELECT last_value FROM \"O.2\".counter").fetchone() == (c.execute("SELECT last_value FROM sales.counter").fetchone()[0],)
        # The old one can go.
        c.execute("DROP SCHEMA sales CASCADE")
        assert c.execute('SELECT count(*) FROM "O.2".people').fetchone() == (50,)
        assert c.execute('SELECT count(*) FROM "O.2".seen').fetchone() == (50,)


def as_script(world, version):
    server = world.server(version)
    _, path = source(world, version, "sales")
    expected, _ = oracle(world, version, path, [("sales", "other")])
    script = os.path.join(world.folder, "renamed.sql")
    firn(server, "target", path, *flag("sales", "other"), "-f", script, where=False).ok()
    server.fresh("target")
    # Of the script's settings 15 does not know one.
    server.program("psql", *server.where("target"), *(["-v", "ON_ERROR_STOP=1"] if version == NEW else []), "-qf", script)
    twins.compare(expected, twins.catalogs(server, "target"), "script")


def texts(world, version):
    """Text stays, as when a schema is renamed, and is warned of."""
    server = world.server(version)
    db = server.fresh("renamed_texts")
    with server.connect(db) as c:
        c.execute("""CREATE SCHEMA sales; CREATE TABLE sales.t (id int, q int DEFAULT nextval(('sales.q'::text)::regclass), d text DEFAULT 'wholesales');
            CREATE SEQUENCE sales.q; CREATE FUNCTION sales.inside() RETURNS int LANGUAGE sql AS 'SELECT count(*)::int FROM sales.t';
            CREATE FUNCTION sales.path() RETURNS int LANGUAGE sql SET search_path = sales, pg_temp AS 'SELECT 1';
            CREATE FUNCTION sales.quiet() RETURNS int LANGUAGE sql AS 'SELECT 1'; COMMENT ON FUNCTION sales.quiet() IS 'of sales';
            CREATE VIEW sales.said AS SELECT 'sales'::text AS s; CREATE TYPE sales.e AS ENUM ('sales'); CREATE VIEW sales.plain AS SELECT 'sales'::sales.e AS s""")
    path = world.archive(f"renamed-texts-{version}", lambda p: server.archive(db, p, "c"))
    expected, _ = oracle(world, version, path, [("sales", "other")])
    server.fresh("target")
    run = firn(server, "target", path, *flag("sales", "other")).ok()
    twins.compare(expected, twins.catalogs(server, "target"), run.out[-1000:])
    warned = sorted(line.split("warning: ")[1].split(" has ")[0] for line in run.out.splitlines() if "in its text, which stays" in line)
    assert warned == ["FUNCTION sales.inside()", "FUNCTION sales.path()", "TABLE sales.t", "VIEW sales.said"], run.out
    rows = world.archive(f"renamed-texts-rows-{version}", lambda p: server.archive(db, p, "c", extra=("-a",)))
    run = firn(server, "target", rows, *flag("sales", "other")).ok()
    assert "warning: the archive does not tell the types of the columns of TABLE DATA sales.t" in run.out, run.out


def one_transaction(world, version):
    server = world.server(version)
    _, path = source(world, version, "sales")
    expected, _ = oracle(world, version, path, [("sales", "other")])
    for args in (["-1"], ["--transaction-size=7"]):
        server.fresh("target")
        firn(server, "target", path, *flag("sales", "other"), *args).ok()
        twins.compare(expected, twins.catalogs(server, "target"), str(args))


def crossed(world, version):
    """What this restore has made, and needs something of the old schema all the same, is found at the end; in one transaction before it
    is over. What others make meanwhile beside an old schema that is in use is theirs."""
    server = world.server(version)
    db = server.fresh("renamed_crossed")
    with server.connect(db) as c:
        c.execute("CREATE SCHEMA sales; CREATE TABLE sales.t (id int); CREATE TABLE sales.u (id int); CREATE SCHEMA beside; CREATE TABLE beside.t (id int)")
    path = world.archive(f"renamed-crossed-{version}", lambda p: server.archive(db, p, "c"))
    # The server's part: whoever makes a table does this, once.
    hook = """CREATE SCHEMA sales; CREATE TABLE sales.t (id int PRIMARY KEY); CREATE TABLE sales.parts (id int) PARTITION BY LIST (id);
        CREATE FUNCTION sales.f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$;
        CREATE FUNCTION sales.e() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN END$$;
        CREATE TABLE public.used (id int); CREATE VIEW public.before AS SELECT * FROM sales.t; CREATE TABLE public.hooked (i int);
        CREATE FUNCTION public.hook() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN
        IF NOT EXISTS (SELECT FROM public.hooked) AND to_regclass('{after}') IS NOT NULL THEN INSERT INTO public.hooked VALUES (1); {then} END IF; END$$;
        CREATE EVENT TRIGGER hook ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.hook()"""
    ours = (("other.t", "CREATE VIEW other.v AS SELECT * FROM sales.t;", "rule _RETURN on view other.v needs table sales.t"),
            ("beside.t", "ALTER TABLE beside.t ADD CONSTRAINT key FOREIGN KEY (id) REFERENCES sales.t;",
             "constraint key on table beside.t needs table sales.t"))
    for after, then, what in ours:
        for args, left in (([], 1), (["-1"], 0), (["--transaction-size=1"], 1)):
            server.fresh("target")
            with server.connect("target") as c:
                c.execute(hook.replace("{after}", after).replace("{then}", then))
            run = firn(server, "target", path, *flag("sales", "other"), *args).fails(what)
            assert run.code == 3 and "public.before" not in run.out, run.out
            with server.connect("target") as c:
                # Of several transactions all are there, as far as this restore goes.
                for table in ("other.t", "other.u", "beside.t"):
                    assert c.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone() == (bool(left),), f"{table}\n{run.out}"
    theirs = """CREATE VIEW public.v AS SELECT * FROM sales.t; CREATE TABLE public.part PARTITION OF sales.parts FOR VALUES IN (1);
        ALTER TABLE public.used ADD FOREIGN KEY (id) REFERENCES sales.t; CREATE EVENT TRIGGER theirs ON sql_drop EXECUTE FUNCTION sales.e();
        CREATE TRIGGER theirs BEFORE INSERT ON public.used FOR EACH ROW EXECUTE FUNCTION sales.f(); CREATE TABLE beside.theirs (of sales.t);
        CREATE PUBLICATION theirs FOR TABLES IN SCHEMA sales;"""
    for args in ([], ["-j", "3"], ["-1"], ["--transaction-size=1"]):
        server.fresh("target")
        with server.connect("target") as c:
            c.execute(hook.replace("{after}", "beside.t").replace("{then}", theirs))
        run = firn(server, "target", path, *flag("sales", "other"), *args).ok()
        with server.connect("target") as c:
            assert c.execute("SELECT to_regclass('public.v') IS NOT NULL").fetchone() == (True,), run.out


def crossed_before(world, version):
    """What needed the old schema before does, whatever the encoding of the database and of names, and whatever it is called at the end."""
    server = world.server(version)
    for old in ("sales", "süd"):
        db = server.fresh("renamed_needed")
        with server.connect(db) as c:
            c.execute(f"CREATE SCHEMA {old}; CREATE TABLE {old}.t (id int); CREATE TABLE {old}.u (id int); INSERT INTO {old}.u VALUES (1)")
        path = world.archive(f"renamed-needed-{old}-{version}", lambda p: server.archive(db, p, "c"))
        for args in ([], ["-1"], ["--transaction-size=1"]):
            server.fresh("target", "template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
            with server.connect("target") as c:
                c.execute(f"CREATE SCHEMA {old}; CREATE TABLE {old}.t (id int); CREATE SCHEMA other; CREATE TABLE other.t (id int); CREATE TABLE other.u (id int);"
                          f'CREATE VIEW other."ü" AS SELECT * FROM {old}.t')
            if args:
                run = firn(server, "target", path, "-a", *flag(old, "other"), *args).ok()
            else:
                with server.connect("target") as c:
                    c.execute("ALTER TABLE other.u ADD CONSTRAINT none CHECK (id > 1)")
                firn(server, "target", path, "-a", *flag(old, "other")).fails("none")
                with server.connect("target") as c:
                    c.execute('ALTER TABLE other.u DROP CONSTRAINT none; ALTER VIEW other."ü" RENAME TO "ö"')
                run = firn(server, "target", path, "-a", *flag(old, "other"), "--resume").ok()
            with server.connect("target") as c:
                assert c.execute("SELECT id FROM other.u").fetchall() == [(1,)], run.out


def crossed_stopped(world, version):
    """Ctrl-C ends the question what needs the old schema, which waits for a lock here."""
    server = world.server(version)
    db = server.fresh("renamed_stopped")
    with server.connect(db) as c:
        c.execute("CREATE SCHEMA sales; CREATE TABLE sales.t AS SELECT 1 AS i")
    path = world.archive(f"renamed-stopped-{version}", lambda p: server.archive(db, p, "c"))
    for args, left in ((["-1"], 0), (["--transaction-size=1"], 1)):
        server.fresh("target")
        other = server.connect("target", autocommit=False)
        folder = os.path.join(server.root, "stopped")
        with Proxy(folder, server.root) as proxy:
            proxy.arm(px.matching(rb"COPY other.t", px.call(lambda _: other.execute("LOCK TABLE pg_catalog.pg_ts_parser IN ACCESS EXCLUSIVE MODE"))))
            child = firn(server, "target", path, *proxy.where("target"), *flag("sales", "other"), *args, where=False, wait=False)
            try:
                with server.connect() as c:
                    child.until(c, "SELECT 1 FROM pg_stat_activity WHERE datname = 'target' AND wait_event_type = 'Lock' AND query LIKE '%pg_ts_parser%'")
                child.process.send_signal(signal.SIGINT)
                run = child.wait(px.PATIENCE)
            finally:
                other.rollback()
                other.close()
        shutil.rmtree(folder, ignore_errors=True)
        assert run.code == 130, f"exit code {run.code}:\n{run.out}"
        with server.connect("target") as c:
            assert c.execute("SELECT to_regclass('other.t') IS NOT NULL").fetchone() == (bool(left),), run.out


def some(world, version):
    """With -t, --with-dependencies and a list the archive's names choose."""
    server = world.server(version)
    db, path = source(world, version, "sales")
    server.fresh("target")
    run = firn(server, "target", path, "-n", "sales", "-t", "people", "--with-dependencies", *flag("sales", "other"), "-j", "2").ok()
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM ONLY other.people").fetchone() == (50,), run.out
        assert not c.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'sales'").fetchall()
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE SCHEMA other; CREATE SCHEMA sales; CREATE TABLE sales.alone (x int); CREATE TABLE sales.child (y int)")
    listed = os.path.join(world.folder, "renamed.list")
    lines = server.program("pg_restore", "-l", path).stdout.decode().splitlines()
    with open(listed, "w") as f:
        f.writelines(line + "\n" for line in lines if " sales alone " in line)
    for args in (["-t", "alone"], ["-L", listed]):
        firn(server, "target", path, *args, *flag("sales", "other")).ok()
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM pg_attribute WHERE attrelid = 'other.alone'::regclass AND attname = 'x'").fetchone() == (1,)
            c.execute("DROP TABLE other.alone")


def there(world, version):
    """A schema of the new name is as any other object that is there: an error, unless -c drops it or what goes into it is chosen by -n."""
    server = world.server(version)
    _, path = source(world, version, "sales")
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE SCHEMA other; CREATE TABLE other.mine AS SELECT 1 AS x")
    firn(server, "target", path, *flag("sales", "other")).fails('schema "other" already exists')
    with server.connect("target") as c:
        assert c.execute("SELECT x FROM other.mine").fetchall() == [(1,)]
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE SCHEMA other; CREATE TABLE other.alone AS SELECT 1 AS x")
    firn(server, "target", path, "-n", "sales", *flag("sales", "other")).fails('relation "alone" already exists')
    with server.connect("target") as c:
        assert c.execute("SELECT x FROM other.alone").fetchall() == [(1,)]


def public(world, version):
    """Of public comes what is in it, and what is said of it: NEW must be there."""
    server = world.server(version)
    db = server.fresh("renamed_public")
    with server.connect(db) as c:
        c.execute("CREATE TABLE public.t (id serial, p text DEFAULT 'public'); CREATE VIEW public.v AS SELECT * FROM public.t; REVOKE ALL ON SCHEMA public FROM PUBLIC")
    path = world.archive(f"renamed-public-{version}", lambda p: server.archive(db, p, "c"))
    server.fresh("target")
    firn(server, "target", path, *flag("public", "other")).fails('schema "other" does not exist')
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE SCHEMA other")
    run = firn(server, "target", path, *flag("public", "other")).ok()
    assert 'ACL SCHEMA public says how privileges differ' in run.out, run.out
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace").fetchone() == (0,)
        assert c.execute("SELECT count(*) FROM other.v").fetchone() == (0,)
    with server.connect(db) as c:
        c.execute("ALTER SCHEMA public OWNER TO postgres; COMMENT ON SCHEMA public IS 'of public'")
    path = world.archive(f"renamed-public-own-{version}", lambda p: server.archive(db, p, "c"))
    expected, dump = oracle(world, version, path, [("public", "other")])
    with server.connect(server.fresh("target")) as c:
        c.execute("ALTER SCHEMA public RENAME TO other")
    run = firn(server, "target", path, *flag("public", "other")).ok()
    twins.compare(expected, twins.catalogs(server, "target"), run.out[-1000:])
    same_blocks(dump, server.dump("target"), "public")


def statistics(world):
    """Those of PostgreSQL 18's archives go to the new schema, and those of the old one stay; values that may name objects are left out."""
    server = world.server(NEW)
    db, _ = source(world, NEW, "sales")
    with server.connect(db) as c:
        c.execute("ANALYZE")
    path = world.archive("renamed-statistics", lambda p: server.archive(db, p, "c", extra=("--statistics",)))

    def found(db, schema):
        with server.connect(db) as c:
            return c.execute("SELECT to_jsonb(s) - 'schemaname' FROM pg_stats s WHERE schemaname = %s ORDER BY tablename, attname, inherited", (schema,)).fetchall(), \
                c.execute("SELECT relname, relpages, reltuples FROM pg_class WHERE relnamespace = %s::regnamespace ORDER BY 1", (schema,)).fetchall()
    server.fresh("oracle")
    server.pg_restore("oracle", path, "--exit-on-error")
    expected = found("oracle", "sales")
    assert len(expected[0]) >= 30 and any("sales" in str(row) for row in expected[0]), expected
    server.fresh("target")
    run = firn(server, "target", path, *flag("sales", "other")).ok()
    assert "warning: STATISTICS DATA" not in run.out, run.out
    assert found("target", "other") == expected
    server.fresh("target", template=db)
    with server.connect("target") as c:
        c.execute(MODDATETIME.replace("{s}", "other") + "DELETE FROM pg_statistic; ANALYZE sales.child")
    before = found("target", "sales")
    firn(server, "target", path, "-n", "sales", "--no-publications", *flag("sales", "other")).ok()
    assert found("target", "sales") == before and before[0] != expected[0]
    assert found("target", "other") == expected
    with server.connect(server.fresh("renamed_values")) as c:
        c.execute("CREATE SCHEMA sales; CREATE TABLE sales.t (x text, y regclass); CREATE INDEX i ON sales.t (lower(x)); CREATE INDEX j ON sales.t ((length(x)));"
                  "INSERT INTO sales.t SELECT 'sales', 'sales.t' FROM generate_series(1, 9); ANALYZE sales.t")
    values = world.archive("renamed-values", lambda p: server.archive("renamed_values", p, "c", extra=("--statistics",)))
    server.fresh("target")
    run = firn(server, "target", values, *flag("sales", "other"), "--no-data").ok()
    left_out = sorted(line.split("warning: ")[1].split(" is left out")[0] for line in run.out.splitlines() if "its values may name objects" in line)
    assert left_out == ["STATISTICS DATA sales.i", "STATISTICS DATA sales.t"], run.out
    assert [row[0]["tablename"] for row in found("target", "other")[0]] == ["j"], run.out


def killed(world, version, kind):
    """Killed at random moments and resumed with the same flag it is the twin; with another one it is refused."""
    count, seed = kills.settings()
    _, path = source(world, version, "sales")
    # Of a server that is killed something is left on disk only.
    server = world.once("kill server", lambda: kills.started(world)) if kind == "server" else world.server(version)
    expected, _ = oracle(world, version, path, [("sales", "other")], server)
    server.fresh("target")
    whole = firn(server, "target", path, *flag("sales", "other"), "-j", "3").ok().seconds
    done = 0
    for n in range(8 * count):
        dice = random.Random(seed + n)
        server.fresh("target")
        child = firn(server, "target", path, *flag("sales", "other"), "-j", "3", wait=False)
        end = time.time() + dice.random() * whole
        while time.time() < end and child.poll() is None:
            time.sleep(0.002)
        if child.poll() is None:
            done += kills.kill(kind, server, child, dice)
        run = child.wait()
        if kind == "server":
            kills.come_back(server)
        assert not PANIC.search(run.out), run.out[-3000:]
        if run.code != 0:
            with server.connect("target") as c:
                begun = c.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'firn_restore'").fetchone()
            if begun:
                firn(server, "target", path, *flag("sales", "another"), "-j", "3", "--resume").fails("begun with other options")
            again = firn(server, "target", path, *flag("sales", "other"), "-j", "3", *(["--resume"] if begun else []))
            # It was killed after its last transaction.
            assert again.code == 0 or not begun and "already exists" in again.out, again.out[-3000:]
        twins.compare(expected, twins.catalogs(server, "target"), f"FIRN_KILL_SEED={seed + n} {run.out[-500:]}")
        if done >= count:
            break
    assert done >= count, f"only {done} kills"


def of_regression(world, version):
    """PostgreSQL's own regression database, with all rows but those of tables that are refused: its schemas each, and public."""
    folder = regression.kept(version)
    server = regression.target(world, version, folder)
    path = os.path.join(folder, "second")
    listed = os.path.join(world.folder, f"renamed-regression-{version}")
    lines = server.program("pg_restore", "-l", path).stdout.decode().splitlines()
    others = ["mvtest_mvschema", "regress_indexing", "regress_rls_schema", "testxmlschema", "fkpart3", "pubme"]
    left_out = []
    for pairs, first in (([(name, f"{name}: other") for name in others], []), ([("public", "Public")], ['ALTER SCHEMA public RENAME TO "Public"'])):
        flags = [part for pair in pairs for part in flag(*pair)]
        while True:
            with open(listed, "w") as f:
                f.writelines(line + "\n" for line in lines)
            server.fresh("target")
            with server.connect("target") as c:
                for statement in first:
                    c.execute(statement)
            run = firn(server, "target", path, *flags, "-L", listed, "-j", "4", "--no-analyze")
            table = re.search(r"error: TABLE DATA ([^.]+)\.(.*) cannot be put into another schema", run.out)
            if not table:
                break
            left_out.append(table[2])
            lines = [line for line in lines if f" TABLE DATA {table[1]} {table[2]} " not in line]
        run.ok()
        server.fresh("oracle")
        server.pg_restore("oracle", path, "--exit-on-error", "-L", listed)
        with server.connect("oracle") as c:
            for old_name, new in pairs:
                c.execute(f"ALTER SCHEMA {quoted(old_name)} RENAME TO {quoted(new)}")
        twins.compare(twins.catalogs(server, "oracle"), twins.catalogs(server, "target"), f"{pairs}\n{run.out[-1000:]}")
        same_blocks(server.dump("oracle"), server.dump("target"), str(pairs))
    assert 0 < len(left_out) < 12, left_out


def refused(world, version):
    """What cannot be told apart is refused before anything is done, with the object's name."""
    server = world.server(version)
    db = server.fresh("renamed_refused")
    for sql, word in (
            ("CREATE VIEW sales.v AS SELECT sales.id FROM sales.t sales, sales.t other", "VIEW sales.v"),
            ("CREATE TABLE sales.sales (x int); CREATE VIEW sales.v AS SELECT sales.x FROM sales.sales, sales.t", "VIEW sales.v"),
            ("CREATE TABLE sales.r (x regclass)", "TABLE DATA sales.r"),
            ("CREATE SCHEMA d; CREATE DOMAIN d.d AS regclass; CREATE TYPE d.p AS (x d.d[]); CREATE TABLE d.r (x d.p)", "TABLE DATA d.r"),
            ("CREATE TYPE sales.p AS (x regclass); CREATE TABLE sales.r (x sales.p DEFAULT '(sales.t)')", "sales.r"),
            ("CREATE TABLE sales.r (x regclass) PARTITION BY LIST (x); CREATE TABLE sales.s PARTITION OF sales.r FOR VALUES IN ('sales.t')", "TABLE ATTACH sales.s"),
            ("CREATE TABLE sales.r (x regclass[] DEFAULT '{sales.t}')", "sales.r")):
        with server.connect(db) as c:
            c.execute("DROP SCHEMA IF EXISTS sales, d CASCADE; CREATE SCHEMA sales; CREATE TABLE sales.t (id int); " + sql)
        path = server.archive(db, os.path.join(world.folder, "refused"), "c")
        os.rename(path, path + ".now")
        server.fresh("target")
        run = firn(server, "target", path + ".now", *flag("sales", "x")).fails(word, "cannot be put into another schema")
        assert run.code == 2, run.out
        with server.connect("target") as c:
            assert not c.execute("SELECT 1 FROM pg_namespace WHERE nspname IN ('x', 'sales', 'firn_restore')").fetchall()
    _, path = source(world, version, "sales")
    for args, word in ((flag("sales", "beside"), "two schemas"), (flag("gone", "x"), "not found"), (flag("sales", "pg_x"), "own schemas"),
                       (flag("sales", "n" * 64), "longer than 63 bytes"), (("--redirect-schema", "sales"), "invalid value"), ((*flag("sales", "x"), *flag("beside", "x")), "twice")):
        run = firn(server, "target", path, *args).fails(word)
        assert run.code == 2, run.out
    plain = os.path.join(world.folder, "inserts")
    with server.connect(db) as c:
        c.execute("DROP SCHEMA sales CASCADE; CREATE SCHEMA sales; CREATE TABLE sales.t (id int); INSERT INTO sales.t VALUES (1)")
    server.archive(db, plain, "c", extra=("--inserts",))
    firn(server, "target", plain, *flag("sales", "x")).fails("TABLE DATA sales.t cannot be put", "INSERT")
    for extra, new, word in ((["-E", "GB18030"], "x", "look like a backslash"), (["-E", "LATIN1"], "ü", "is not UTF8"), ([], "x", "standard_conforming_strings")):
        if not extra:
            with server.connect(db) as c:
                c.execute(f"ALTER DATABASE {db} SET standard_conforming_strings = off")
        server.archive(db, plain, "c", extra=extra)
        firn(server, "target", plain, *flag("sales", new)).fails("schemas cannot be redirected", word)
    firn(server, "target", path, "-a", *flag("sales", "x"), "--redirect-table=sales.people:y").fails("cannot be used together")
    for name in REFUSED:
        firn(server, "target", source(world, version, name)[1], *flag(name, "x")).fails("alias")


def exchanged(world, version):
    """Two schemas that each get the other's name."""
    server = world.server(version)
    _, path = source(world, version, "sales")
    server.fresh("oracle")
    server.pg_restore("oracle", path, "--exit-on-error")
    with server.connect("oracle") as c:
        c.execute("ALTER SCHEMA sales RENAME TO x; ALTER SCHEMA beside RENAME TO sales; ALTER SCHEMA x RENAME TO beside")
    server.fresh("target")
    firn(server, "target", path, *flag("sales", "beside"), *flag("beside", "sales"), "-j", "2").ok()
    twins.compare(twins.catalogs(server, "oracle"), twins.catalogs(server, "target"), "exchanged")
    same_blocks(server.dump("oracle"), server.dump("target"), "exchanged")


def into_public(world, version):
    """Schema public is there: what goes into it is chosen by -n."""
    server = world.server(version)
    _, path = source(world, version, "sales")
    chosen = ("-n", "sales", "--no-publications")
    for db in ("oracle", "target"):
        with server.connect(server.fresh(db)) as c:
            c.execute("CREATE EXTENSION moddatetime SCHEMA public; CREATE SCHEMA sales; ALTER EXTENSION moddatetime SET SCHEMA " + ("sales" if db == "oracle" else "public"))
    server.pg_restore("oracle", path, "--exit-on-error", *chosen)
    firn(server, "target", path, *chosen, *flag("sales", "public"), "-j", "2").ok()
    with server.connect("oracle") as c, server.connect("target") as t:
        c.execute("DROP SCHEMA public; ALTER SCHEMA sales RENAME TO public; COMMENT ON SCHEMA public IS 'standard public schema';"
                  "ALTER SCHEMA public OWNER TO pg_database_owner; GRANT USAGE ON SCHEMA public TO PUBLIC")
        t.execute("DROP SCHEMA sales")
    same_blocks(server.dump("oracle", "-n", "public"), server.dump("target", "-n", "public"), "public")


def of_old_archive(world):
    """Archives of before 10.3 leave out what schema names are in: refused, and nothing is done."""
    server = world.server(OLD)
    path = world.archive("old-1.12", lambda p: old.make(world, p))
    server.fresh("target")
    run = firn(server, "target", path, *flag("app", "x")).fails("schemas cannot be redirected", "leaves schemas out")
    assert run.code == 2, run.out
    with server.connect("target") as c:
        assert not c.execute("SELECT 1 FROM pg_namespace WHERE nspname IN ('x', 'app', 'firn_restore')").fetchall()


def cases(world):
    for version in (OLD, NEW):
        for n, (old, new) in enumerate(p for p in SCHEMAS if p[0] not in REFUSED):
            yield f"renamed {version} {old} to {new}", lambda v=version, o=old, w=new, j=n % 3 + 1: as_renamed(world, v, o, w, ("-j", str(j)))
        yield f"renamed {version} verified", lambda v=version: as_renamed(
            world, v, "sales", "other", ("--verify=checksums", "--pg-dump", os.path.join(world.server(v).bin, "pg_dump")))
        yield f"renamed {version} zoo", lambda v=version: zoo(world, v)
        yield f"renamed {version} not touched", lambda v=version: not_touched(world, v)
        yield f"renamed {version} as script", lambda v=version: as_script(world, v)
        yield f"renamed {version} texts", lambda v=version: texts(world, v)
        yield f"renamed {version} in one transaction", lambda v=version: one_transaction(world, v)
        yield f"renamed {version} crossed", lambda v=version: crossed(world, v)
        yield f"renamed {version} crossed before", lambda v=version: crossed_before(world, v)
        yield f"renamed {version} crossed stopped", lambda v=version: crossed_stopped(world, v)
        yield f"renamed {version} some", lambda v=version: some(world, v)
        yield f"renamed {version} there", lambda v=version: there(world, v)
        yield f"renamed {version} public", lambda v=version: public(world, v)
        for kind in ("program", "connection", *(["server"] if version == OLD else [])):
            yield f"renamed {version} killed {kind}", lambda v=version, k=kind: killed(world, v, k)
        yield f"renamed {version} regression database", lambda v=version: of_regression(world, v)
        yield f"renamed {version} refused", lambda v=version: refused(world, v)
        yield f"renamed {version} exchanged", lambda v=version: exchanged(world, v)
        yield f"renamed {version} into public", lambda v=version: into_public(world, v)
    yield "renamed statistics", lambda: statistics(world)
    yield "renamed of an old archive", lambda: of_old_archive(world)
