"""Hostile databases and hostile archives. A database belongs to a tenant who is no superuser and has laid traps in it; when a
superuser restores into it, none of the tenant's code may run as the superuser. What an archive says of names, encodings and
order is data, not SQL."""
import os

import psycopg

from harness import proxy as px
from harness.proxy import Proxy
from restore import brief, toc
from restore.common import PANIC, firn, same_blocks

PATIENCE = 60
# Whoever runs this as a superuser is found in the server's log, also when the transaction is rolled back.
TRAP = """
CREATE FUNCTION {0}.trap() RETURNS text VOLATILE LANGUAGE plpgsql AS $trap$
BEGIN
    IF (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) current_user) THEN
        RAISE LOG 'TRAPPED %', pg_catalog.current_query();
        BEGIN EXECUTE 'ALTER ROLE tenant SUPERUSER'; EXCEPTION WHEN OTHERS THEN NULL; END;
    END IF;
    RETURN 'x';
END $trap$;
CREATE FUNCTION {0}.quiet(anyelement) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $trap$ BEGIN RETURN {0}.trap(); END $trap$;
CREATE FUNCTION {0}.fire() RETURNS trigger LANGUAGE plpgsql AS $trap$ BEGIN PERFORM {0}.trap(); RETURN NEW; END $trap$;
"""
# In a database where no restore was.
PLANTED = {
    "view": "CREATE VIEW firn_restore.run AS SELECT firn_restore.trap() AS fingerprint, '{}'::text AS terms",
    "all views": "CREATE VIEW firn_restore.run AS SELECT firn_restore.trap() AS fingerprint, '{}'::text AS terms, now() AS begun, '1' AS version;"
                 "CREATE VIEW firn_restore.journal AS SELECT ARRAY[length(firn_restore.trap())] AS steps;"
                 "CREATE VIEW firn_restore.entries AS SELECT length(firn_restore.trap()) AS entry",
    "materialized view": "CREATE MATERIALIZED VIEW firn_restore.run AS SELECT 'x'::text AS fingerprint, '{}'::text AS terms",
    "right shape": "CREATE TABLE firn_restore.run (identity text NOT NULL, terms text NOT NULL, epoch int NOT NULL, phase text NOT NULL, begun timestamptz NOT NULL);"
                   "CREATE TABLE firn_restore.sessions (session int NOT NULL);"
                   "CREATE TABLE firn_restore.journal (steps int[] NOT NULL, rows bigint, session int NOT NULL);"
                   "CREATE TABLE firn_restore.entries (entry int NOT NULL, session int NOT NULL);"
                   "CREATE TABLE firn_restore.without_rows (entry int NOT NULL, session int NOT NULL);"
                   "CREATE TABLE firn_restore.emptied (entry int NOT NULL, session int NOT NULL);"
                   "INSERT INTO firn_restore.run VALUES ('x', '{}', 0, 'restoring', now())",
    "foreign shape": "CREATE TABLE firn_restore.run (fingerprint int)",
    "function in place": "CREATE FUNCTION firn_restore.run() RETURNS text LANGUAGE sql AS 'SELECT firn_restore.trap()'",
    "type in place": "CREATE TYPE firn_restore.run AS (fingerprint text, terms text)",
    "sequence in place": "CREATE SEQUENCE firn_restore.run",
    "inherited": "CREATE TABLE public.more (fingerprint text, terms text, begun timestamptz, version text); CREATE TABLE firn_restore.run () INHERITS (public.more);"
                 "CREATE TABLE firn_restore.child () INHERITS (firn_restore.run); ALTER TABLE firn_restore.child ENABLE ROW LEVEL SECURITY;"
                 "ALTER TABLE firn_restore.child FORCE ROW LEVEL SECURITY; CREATE POLICY p ON firn_restore.child USING (firn_restore.trap() = 'x');"
                 "INSERT INTO firn_restore.child VALUES ('x', '{}', now(), '1')",
    "rule for reading": "CREATE TABLE firn_restore.x (fingerprint text, terms text); CREATE VIEW firn_restore.run WITH (security_barrier) AS "
                        "SELECT * FROM firn_restore.x; CREATE RULE r AS ON INSERT TO firn_restore.run DO INSTEAD SELECT firn_restore.trap()",
    "partitioned": "CREATE TABLE firn_restore.run (fingerprint text, terms text, begun timestamptz, version text) PARTITION BY LIST (firn_restore.quiet(terms));"
                   "CREATE TABLE firn_restore.part PARTITION OF firn_restore.run DEFAULT; INSERT INTO firn_restore.run VALUES ('x', '{}')",
    "nothing in it": "SELECT 1",
    "stages": "CREATE TABLE firn_restore.stage_0 (id int, t text DEFAULT firn_restore.trap())",
}
# In the journal of a restore that the tenant himself has begun, of the very archive.
TAMPERED = {
    "nothing": "SELECT 1",
    "trigger": "CREATE TRIGGER fire BEFORE INSERT ON firn_restore.{t} FOR EACH ROW EXECUTE FUNCTION evil.fire()",
    "statement trigger": "CREATE TRIGGER fire BEFORE INSERT ON firn_restore.{t} EXECUTE FUNCTION evil.fire()",
    "always trigger": "CREATE TRIGGER fire AFTER INSERT ON firn_restore.{t} FOR EACH ROW EXECUTE FUNCTION evil.fire();"
                      "ALTER TABLE firn_restore.{t} ENABLE ALWAYS TRIGGER fire",
    "rule": "CREATE RULE r AS ON INSERT TO firn_restore.{t} DO ALSO SELECT evil.trap()",
    "generated column": "ALTER TABLE firn_restore.{t} ADD g text GENERATED ALWAYS AS (evil.quiet(1)) STORED",
    "default": "ALTER TABLE firn_restore.{t} ADD d text; ALTER TABLE firn_restore.{t} ALTER d SET DEFAULT evil.trap()",
    "check": "ALTER TABLE firn_restore.{t} ADD CHECK (evil.trap() IS NOT NULL)",
    "domain": "CREATE DOMAIN evil.number AS int CHECK (evil.trap() IS NOT NULL); ALTER TABLE firn_restore.{t} ADD d evil.number",
    "index": "CREATE INDEX ON firn_restore.{t} (evil.quiet({c}))",
    "policy": "ALTER TABLE firn_restore.{t} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY p ON firn_restore.{t} USING "
              "(evil.trap() IS NOT NULL) WITH CHECK (evil.trap() IS NOT NULL)",
    "view": "ALTER TABLE firn_restore.{t} RENAME TO old; CREATE VIEW firn_restore.{t} AS SELECT * FROM firn_restore.old WHERE evil.trap() IS NOT NULL",
    "view with trigger": "ALTER TABLE firn_restore.{t} RENAME TO old; CREATE VIEW firn_restore.{t} AS SELECT * FROM firn_restore.old; "
                         "CREATE TRIGGER fire INSTEAD OF INSERT ON firn_restore.{t} FOR EACH ROW EXECUTE FUNCTION evil.fire()",
    "child": "CREATE TABLE firn_restore.child () INHERITS (firn_restore.{t}); CREATE TRIGGER fire BEFORE INSERT ON firn_restore.child FOR EACH ROW "
             "EXECUTE FUNCTION evil.fire()",
    "all is done": "INSERT INTO firn_restore.journal SELECT array_agg(i), NULL, 10000 FROM generate_series(0, 500) i",
    "most is done": "INSERT INTO firn_restore.journal SELECT array_agg(i), NULL, 10000 FROM generate_series(0, 15) i",
    "operators": "CREATE OPERATOR firn_restore.@> (FUNCTION = evil.contains, LEFTARG = int[], RIGHTARG = int[]);"
                 "CREATE OPERATOR firn_restore.= (FUNCTION = evil.same, LEFTARG = int, RIGHTARG = int)",
}
COLUMNS = {"run": "identity", "journal": "steps", "entries": "entry"}
RUNS = ([], ["--resume"], ["--verify"], ["--resume", "--verify=checksums"])
# All functions, operators and catalogs that queries without schemas could mean, and types.
SHADOWS = """
CREATE SCHEMA evil;
{trap}
DO $do$
DECLARE f record; n int := 0;
BEGIN
    FOR f IN SELECT p.proname, pg_get_function_arguments(p.oid) AS args, pg_get_function_result(p.oid) AS result, p.proretset
             FROM pg_proc p WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT prorettype = ANY (ARRAY['internal', 'trigger']::regtype[])
             AND NOT 'internal'::regtype = ANY (p.proargtypes) AND proname ~ '{names}' LOOP
        BEGIN
            EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM evil.trap(); RETURN %s; END $f$',
                f.proname, f.args, f.result, CASE WHEN f.proretset OR f.result = 'void' THEN '' ELSE 'NULL' END);
            n := n + 1;
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
    IF n < 50 THEN RAISE 'only % functions', n; END IF;
    n := 0;
    FOR f IN SELECT o.oprname, o.oprleft::regtype AS l, o.oprright::regtype AS r, o.oprresult::regtype AS result, row_number() OVER () AS i
             FROM pg_operator o WHERE oprleft <> 0 AND oprname IN ('=', '<>', '~', '!~', '>=', '<', '>', '||', '@>', '+', '*', '/', '-', '&', '%') LOOP
        BEGIN
            EXECUTE format('CREATE FUNCTION evil.o%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM evil.trap(); RETURN NULL; END $f$',
                f.i, f.l, f.r, f.result);
            EXECUTE format('CREATE OPERATOR evil.%s (FUNCTION = evil.o%s, LEFTARG = %s, RIGHTARG = %s)', f.oprname, f.i, f.l, f.r);
            n := n + 1;
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
    IF n < 100 THEN RAISE 'only % operators', n; END IF;
    FOR f IN SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
             AND has_table_privilege(oid, 'SELECT') LOOP
        -- Some have columns that no view may have.
        BEGIN
            EXECUTE format('CREATE VIEW evil.%I AS SELECT * FROM pg_catalog.%1$I WHERE evil.trap() IS NOT NULL', f.relname);
        EXCEPTION WHEN invalid_table_definition THEN NULL;
        END;
    END LOOP;
END $do$;
CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.trap() IS NOT NULL);
CREATE DOMAIN evil.oid AS pg_catalog.oid CHECK (evil.trap() IS NOT NULL);
CREATE DOMAIN evil.name AS pg_catalog.name CHECK (evil.trap() IS NOT NULL);
CREATE DOMAIN evil.regclass AS pg_catalog.regclass CHECK (evil.trap() IS NOT NULL);
CREATE DOMAIN evil.bytea AS pg_catalog.bytea CHECK (evil.trap() IS NOT NULL);
"""
NAMES = "^(pg_|current_|to_reg|set_config|format|quote_|unnest|array_|lo_|setval|nextval|now|version|count|coalesce|length|txid|has_|obj_|col_|" \
        "generate_series|string_to|regexp|starts_with|md5|int4|int8|text|name|bool|oid|hash|sum|replace|substr|timezone|clock_|json)"
# What the archive has.
SOURCE = """
CREATE SCHEMA h;
CREATE FUNCTION h.fine(t text) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$ SELECT t OPERATOR(pg_catalog.<>) 'no' $$;
CREATE TABLE h.t (id serial PRIMARY KEY, v text CHECK (h.fine(v)), d text DEFAULT 'd');
CREATE TABLE h.u (id int PRIMARY KEY REFERENCES h.t);
CREATE INDEX t_v ON h.t (lower(v));
CREATE VIEW h.w AS SELECT v, count(*) FROM h.t GROUP BY v;
CREATE TABLE h.p (id int) PARTITION BY RANGE (id);
CREATE TABLE h.p1 PARTITION OF h.p FOR VALUES FROM (1) TO (100);
INSERT INTO h.t (v) SELECT 'v' || i FROM generate_series(1, 200) i;
INSERT INTO h.u SELECT generate_series(1, 50);
INSERT INTO h.p SELECT generate_series(1, 50);
SELECT lo_from_bytea(555, 'object');
COMMENT ON TABLE h.t IS 'a comment';
"""


def source(world):
    def make():
        server = world.server()
        server.roles("tenant LOGIN", "modest LOGIN")
        db = server.fresh("hostile")
        with server.connect(db) as c:
            c.execute(SOURCE)
        return db
    return world.once("hostile source", make)


def archive(world, form="d"):
    db = source(world)
    return world.archive(f"hostile.{form}", lambda p: world.server().archive(db, p, form))


def as_tenant(server, sql):
    with psycopg.connect(host=server.root, port=server.port, user="tenant", dbname="target", autocommit=True) as c:
        c.execute(sql)


class Trap:
    """Nothing of the tenant's runs as a superuser while this is open."""

    def __init__(self, server, what):
        self.server, self.what = server, what

    def __enter__(self):
        with self.server.connect() as c:
            c.execute("ALTER ROLE tenant NOSUPERUSER")
        self.at = os.path.getsize(self.server.log)
        return self

    def __exit__(self, kind, *_):
        with open(self.server.log, errors="replace") as f:
            f.seek(self.at)
            caught = [line for line in f.read().splitlines() if "TRAPPED" in line]
        with self.server.connect() as c:
            [[yes]] = c.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'tenant'").fetchall()
            c.execute("ALTER ROLE tenant NOSUPERUSER")
        assert not yes and not caught, f"{self.what}: the tenant {'is superuser' if yes else 'had his code run by one'}: {[c[-150:] for c in caught[:3]]}"


def owned(server):
    server.fresh("target")
    with server.connect() as c:
        c.execute("ALTER DATABASE target OWNER TO tenant")


def whole(server):
    """All that the archive has is in the target. The search path may be a hostile one."""
    with server.connect("target", options="-c search_path=pg_catalog") as c:
        return c.execute("SELECT (SELECT count(*) FROM h.t), (SELECT count(*) FROM h.u), (SELECT count(*) FROM h.p1), "
                         "(SELECT count(*) FROM pg_largeobject_metadata)").fetchone() == (200, 50, 50, 1)


def judge(server, run, what):
    """It did all of it, or says clearly why not."""
    assert run.code in (0, 1, 2, 3) and not PANIC.search(run.out), f"{what}: {run.code}\n{run.out[-2000:]}"
    if run.code == 0:
        assert whole(server), f"{what}: exit code 0, and not all is there\n{run.out[-1500:]}"
    else:
        clear = any(word in run.out for word in ("firn_restore", "journal", "unfinished"))
        assert clear, f"{what}: not clear why\n{run.out[-1200:]}"


def several(attempts):
    """Run each of them; tell of all that fail."""
    wrong = []
    for attempt in attempts:
        try:
            attempt()
        except AssertionError as e:
            wrong.append(str(e)[:900])
    assert not wrong, f"{len(wrong)} of {len(attempts)}:\n" + "\n".join(wrong)


def planted(world, name):
    """The journal's schema is the tenant's."""
    server, path = world.server(), archive(world)

    def attempt(flags):
        owned(server)
        as_tenant(server, "CREATE SCHEMA firn_restore; " + TRAP.format("firn_restore") + PLANTED[name])
        with Trap(server, f"{name} {flags}"):
            run = firn(server, "target", path, "-j", "2", *flags, patience=PATIENCE)
        judge(server, run, f"{name} {flags}")
    several([lambda f=flags: attempt(f) for flags in RUNS])


def tampered(world, name):
    """The tenant has begun a restore, has changed its journal, and asks a superuser to go on with it."""
    server, path = world.server(), archive(world)

    def attempt(table, flags):
        owned(server)
        begun(server, path)
        as_tenant(server, "CREATE SCHEMA evil; " + TRAP.format("evil") +
                  "CREATE FUNCTION evil.contains(int[], int[]) RETURNS bool LANGUAGE plpgsql AS 'BEGIN PERFORM evil.trap(); RETURN true; END';"
                  "CREATE FUNCTION evil.same(int, int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN PERFORM evil.trap(); RETURN true; END'")
        as_tenant(server, TAMPERED[name].replace("{t}", table).replace("{c}", COLUMNS[table]))
        what = f"{name} of {table} {flags}"
        with Trap(server, what):
            run = firn(server, "target", path, "-j", "2", *flags, patience=PATIENCE)
        judge(server, run, what)
    tables = ("run", "journal", "entries") if "{t}" in TAMPERED[name] else ("journal",)
    several([lambda t=table, f=flags: attempt(t, f) for table in tables for flags in (["--resume"], []) if flags or table == "run"]
            + [lambda: attempt("journal", ["--resume", "--verify"])])


def tenants(folder, port):
    return ["-h", folder, "-p", str(port), "-U", "tenant", "-d", "target", "-j", "1", "-O", "-x"]


def begun(server, path):
    """A restore by the tenant that ends in the middle."""
    with Proxy(os.path.join(server.root, "hostile-proxy"), server.root) as proxy:
        proxy.arm(px.matching(rb"COPY h.u ", px.error("22000", -1), None), again=True)
        firn(server, "target", path, *tenants(proxy.folder, proxy.port), where=False).fails("22000")


def his_own(world):
    """The tenant may go on with his own restore."""
    server, path = world.server(), archive(world)
    owned(server)
    begun(server, path)
    firn(server, "target", path, *tenants(server.root, server.port), "--resume", where=False).ok()
    assert whole(server)


def search_path(world, with_entry):
    """The database's search path leads to the tenant's functions, operators, types and views of all names."""
    server = world.server()
    path = archive(world)
    if not with_entry:
        path = toc.changed(path, os.path.join(world.folder, "no-path"), lambda es: [e for e in es if e["desc"] != b"SEARCHPATH"])

    def attempt(flags):
        owned(server)
        as_tenant(server, SHADOWS.replace("{trap}", TRAP.format("evil")).replace("{names}", NAMES))
        as_tenant(server, "ALTER DATABASE target SET search_path = evil, pg_catalog, public")
        with Trap(server, f"{flags}"):
            run = firn(server, "target", path, "-j", "2", *flags, patience=PATIENCE)
        # There is no reason why it should not.
        assert run.code == 0 and whole(server), f"{flags}: {run.out[-1500:]}"
    several([lambda f=flags: attempt(f) for flags in RUNS[:1] + RUNS[2:] + (["--disable-rule=all"], ["-c", "--if-exists"])])


def in_the_way(world):
    """Objects of the archive's names that are the tenant's: they are not used for what the archive's were meant for."""
    server, path = world.server(), archive(world)
    plants = {
        "function": "CREATE FUNCTION h.fine(t text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM h.trap(); RETURN true; END'",
        "table with trigger": "CREATE TABLE h.t (id int, v text, d text); CREATE TRIGGER fire BEFORE INSERT ON h.t FOR EACH ROW EXECUTE FUNCTION h.fire()",
        "table with check": "CREATE TABLE h.t (id int, v text CHECK (h.trap() IS NOT NULL), d text)",
        "view with trigger": "CREATE VIEW h.u AS SELECT 1 AS id; CREATE TRIGGER fire INSTEAD OF INSERT ON h.u FOR EACH ROW EXECUTE FUNCTION h.fire()",
        "partitioned": "CREATE TABLE h.p (id int) PARTITION BY RANGE (length(h.quiet(id)))",
        "rule": "CREATE TABLE h.u (id int); CREATE RULE r AS ON INSERT TO h.u DO ALSO SELECT h.trap()",
        "sequence": "CREATE SEQUENCE h.t_id_seq",
    }

    def attempt(name, how):
        owned(server)
        as_tenant(server, "CREATE SCHEMA h; " + TRAP.format("h") + plants[name])
        with Trap(server, f"{name} --on-error={how}"):
            firn(server, "target", path, "-j", "2", "--on-error", how, patience=PATIENCE).fails()
    several([lambda n=name, h=how: attempt(n, h) for name in plants for how in ("stop", "continue")])


def kept_from(world):
    """The journal of a superuser's restore is not the tenant's to change, though the database is his."""
    server, path = world.server(), archive(world)
    owned(server)
    with Proxy(os.path.join(server.root, "hostile-proxy"), server.root) as proxy:
        proxy.arm(px.matching(rb"COPY h.u ", px.error("22000", -1), None), again=True)
        firn(server, "target", path, *proxy.where("target"), "-j", "1", where=False).fails()
    for sql in ("DROP SCHEMA firn_restore CASCADE", "ALTER SCHEMA firn_restore RENAME TO x", "INSERT INTO firn_restore.journal VALUES ('{1}')",
                "DELETE FROM firn_restore.journal", "CREATE TABLE firn_restore.x (i int)", "UPDATE firn_restore.run SET terms = '{}'",
                "CREATE TRIGGER t BEFORE INSERT ON firn_restore.journal EXECUTE FUNCTION suppress_redundant_updates_trigger()",
                "SELECT * FROM firn_restore.run"):
        try:
            as_tenant(server, sql)
        except psycopg.errors.InsufficientPrivilege:
            continue
        raise AssertionError(f"the tenant may: {sql}")
    firn(server, "target", path, "-j", "1", "--resume").ok()
    assert whole(server)


EVIL = b"ALTER ROLE tenant SUPERUSER;"
SETUP = {
    b"ENCODING": (b"SET client_encoding = 'UTF8'; " + EVIL, EVIL + b" SET client_encoding = 'UTF8';", b"SET client_encoding = 'UTF8';\n" + EVIL + b"\n",
                  EVIL, b"SET client_encoding = 'nonsense';", b"SET client_encoding = 'UTF8", b"SELECT 'UTF8'; " + EVIL, b"",
                  b"SET client_encoding = 'UTF8\\'; " + EVIL + b" --';", b"SET client_encoding = 'UTF8'';" + EVIL + b"--';"),
    b"STDSTRINGS": (b"SET standard_conforming_strings = 'on'; " + EVIL, EVIL + b" SET standard_conforming_strings = 'on';",
                    b"SET standard_conforming_strings = 'maybe';", EVIL, b"SELECT 'on', " + EVIL, b"", b"SET standard_conforming_strings = on;",
                    b"SET standard_conforming_strings = 'off'; " + EVIL),
}


def both(world, path, *flags, what, dumps=True):
    """pg_restore and firn with this archive: neither makes anybody a superuser, and firn succeeds where pg_restore does."""
    server = world.server()
    server.fresh("oracle")
    with Trap(server, f"{what} by pg_restore"):
        oracle = server.pg_restore("oracle", path, *flags, check=False)
    server.fresh("target")
    with Trap(server, what):
        run = firn(server, "target", path, "-j", "2", *flags, patience=PATIENCE)
    assert run.code in (0, 1, 2, 3) and not PANIC.search(run.out), f"{what}: {run.code}\n{run.out[-2000:]}"
    # A word of other characters than encodings have is none, even where the server passes over them.
    refused = "invalid ENCODING item" in run.out and b"UTF8\\" in what.encode()
    assert (run.code == 0) == (oracle.returncode == 0) or refused, f"{what}: pg_restore {oracle.returncode} ({oracle.stderr[-200:].decode(errors='replace')}), firn {run.code}: {run.out[-800:]}"
    if run.code == 0 and oracle.returncode == 0 and dumps:
        same_blocks(server.dump("oracle"), server.dump("target"), what)


def set_up(world, desc):
    """ENCODING and STDSTRINGS: their value counts, nothing else of them is run."""
    path = archive(world)

    def attempt(text):
        def change(entries):
            for e in entries:
                if e["desc"] == desc:
                    e["defn"] = text
        both(world, toc.changed(path, os.path.join(world.folder, "set-up"), change), what=f"{desc.decode()} {text.decode()!r}")
    several([lambda t=text: attempt(t) for text in SETUP[desc]])


def before_role(world):
    """With --role, what the archive says of the search path and the like runs as that role, and not before."""
    server, path = world.server(), archive(world)
    for desc, text in ((b"SEARCHPATH", EVIL), (b"SEARCHPATH", b"SELECT pg_catalog.set_config('search_path', '', false);\n" + EVIL),
                       (b"ENCODING", b"SET client_encoding = 'UTF8'; " + EVIL), (b"STDSTRINGS", b"SET standard_conforming_strings = 'on'; " + EVIL)):
        def change(entries, desc=desc, text=text):
            for e in entries:
                if e["desc"] == desc:
                    e["defn"] = text
        changed = toc.changed(path, os.path.join(world.folder, "role"), change)
        for flags in ([], ["--verify"], ["--dry-run"]):
            server.fresh("target")
            with server.connect() as c:
                c.execute("ALTER DATABASE target OWNER TO modest")
            with Trap(server, f"{desc} {text} {flags}"):
                run = firn(server, "target", changed, "--role=modest", "-O", "-x", "-j", "2", *flags, patience=PATIENCE)
            assert run.code in (0, 1, 2, 3) and not PANIC.search(run.out), run.out[-2000:]


def fields(world):
    """Names in the table of contents that are more than names."""
    path = archive(world)
    evils = (b'x"; ' + EVIL + b' --', b"x'; " + EVIL + b" --", b"x\n;" + EVIL + b"\n", b"x\\'; " + EVIL + b" --", b"x;\n\\! true\n" + EVIL)

    def attempt(field, evil, desc):
        def change(entries):
            for e in entries:
                if e["desc"] == desc:
                    e[field] = evil
        both(world, toc.changed(path, os.path.join(world.folder, "fields"), change), what=f"{field} of {desc.decode()} {evil!r}", dumps=False)
    several([lambda f=field, e=evil, d=desc: attempt(f, e, d) for n, evil in enumerate(evils)
                    for field, desc in (("owner", b"TABLE"), ("tablespace", b"INDEX"), ("tableam", b"TABLE"), ("tag", b"TABLE"),
                                        ("namespace", b"TABLE"), ("owner", b"SCHEMA"), ("tag", b"TABLE DATA"), ("tag", b"BLOB"),
                                        ("owner", b"FUNCTION"), ("tag", b"VIEW"), ("namespace", b"TABLE DATA")) if n < 2 or (field, desc) in (("owner", b"TABLE"), ("tag", b"TABLE"))])


ODD = ('a"b', "a'b", "a\\b", "a\nb", "a\tb", " lead", "x;--y", "/*", "$$", "%s%1$s", "é❄", "a.b", "SELECT", "\\.", "a\rb", 'x" OWNER TO "tenant')


def odd_names(world, staged):
    """Names with quotes, line ends and backslashes, for everything that has one: as pg_restore makes them."""
    server = world.server()
    source(world)

    def q(name):
        return '"' + name.replace('"', '""') + '"'
    sql, roles, names = [], [], []
    for n, odd in enumerate(ODD if not staged else ['a"b\'c\\d\ne']):
        s, t = q(f"{n} {odd}"), q(odd)
        names.append(q('role ' + odd))
        roles.append(f"DO $role$BEGIN CREATE ROLE {q('role ' + odd)}; EXCEPTION WHEN duplicate_object THEN NULL; END$role$")
        if staged:
            sql += [f"CREATE SCHEMA {s}; CREATE TABLE {s}.{t} ({t} int NOT NULL, v int, CONSTRAINT {q(odd + 'c')} CHECK ({t} >= 0)) PARTITION BY RANGE ({t});"
                    f"CREATE INDEX {q(odd + 'i')} ON {s}.{t} (v)"]
            sql += [f"CREATE TABLE {s}.{q(f'{odd} {i}')} PARTITION OF {s}.{t} FOR VALUES FROM ({i}) TO ({i + 1})" for i in range(260)]
            sql += [f"INSERT INTO {s}.{t} SELECT i, i FROM generate_series(0, 259) i"]
            continue
        literal = "'" + odd.replace("'", "''") + "'"
        sql += [f"CREATE SCHEMA {s}; CREATE TYPE {s}.{q(odd + 'e')} AS ENUM ({literal}); CREATE DOMAIN {s}.{q(odd + 'd')} AS text",
                f"CREATE FUNCTION {s}.{t}({t} int) RETURNS int IMMUTABLE LANGUAGE sql AS $body$ SELECT 1 $body$",
                f"CREATE FUNCTION {s}.{q(odd + 't')}() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN RETURN NEW; END $body$",
                f"CREATE TABLE {s}.{t} ({t} int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, e {s}.{q(odd + 'e')} DEFAULT {literal}, "
                f"d {s}.{q(odd + 'd')}, n serial, CONSTRAINT {q(odd + 'c')} CHECK ({s}.{t}(1) = 1))",
                f"CREATE TABLE {s}.{q(odd + 'k')} ({t} int CONSTRAINT {q(odd + 'f')} REFERENCES {s}.{t}, v text)",
                f"CREATE INDEX {q(odd + 'i')} ON {s}.{t} (d); CREATE VIEW {s}.{q(odd + 'v')} AS SELECT {t} FROM {s}.{t}",
                f"CREATE TRIGGER {t} BEFORE INSERT ON {s}.{t} FOR EACH ROW EXECUTE FUNCTION {s}.{q(odd + 't')}()",
                f"CREATE POLICY {t} ON {s}.{t} USING ({t} > 0); CREATE STATISTICS {s}.{q(odd + 's')} ON e, d FROM {s}.{t}",
                f"COMMENT ON TABLE {s}.{t} IS {literal}; COMMENT ON COLUMN {s}.{t}.{t} IS {literal}; CREATE PUBLICATION {q(f'{n}{odd}')} FOR TABLE {s}.{t}",
                f"CREATE TABLE {s}.{q(odd + 'p')} ({t} int, v text) PARTITION BY LIST ({t}); CREATE TABLE {s}.{q(odd + 'p1')} PARTITION OF {s}.{q(odd + 'p')} FOR VALUES IN (1)",
                f"INSERT INTO {s}.{t} (d) SELECT {literal} FROM generate_series(1, 5); INSERT INTO {s}.{q(odd + 'k')} VALUES (1, {literal}); INSERT INTO {s}.{q(odd + 'p')} VALUES (1, {literal})",
                f"GRANT SELECT ON {s}.{t} TO {q('role ' + odd)}; ALTER TABLE {s}.{q(odd + 'k')} OWNER TO {q('role ' + odd)}"]
    db = server.fresh("odd_names")
    with server.connect(db) as c:
        for statement in roles + sql:
            c.execute(statement)
    expected = None
    for form, jobs in (("c", 1), ("d", 4)):
        path = world.archive(f"odd-{staged}-{form}", lambda p, f=form: server.archive(db, p, f))
        if not expected:
            server.fresh("target")
            server.pg_restore("target", path)
            expected = server.dump("target"), brief.catalogs(server, "target")
        server.fresh("target")
        firn(server, "target", path, "-j", str(jobs), "--verify=checksums").ok()
        same_blocks(expected[0], server.dump("target"), f"-j {jobs}")
        for name, found in brief.catalogs(server, "target").items():
            assert found == expected[1][name], f"{name}: {set(found) ^ set(expected[1][name])}"[:1500]
    with server.connect() as c:
        c.execute("DROP DATABASE target WITH (FORCE)")
        c.execute("DROP DATABASE odd_names WITH (FORCE)")
        # pg_dump reads the names of all roles, and other cases let it do so in an encoding that has not all of these characters.
        for name in names:
            c.execute(f"DROP ROLE {name}")


def circles(world):
    """Dependencies that go in circles, or nowhere: it ends, with the result or with an error, and does not hang."""
    server, path = world.server(), archive(world)

    def ring(*which):
        def change(entries):
            found = [next(e for e in entries if (e["desc"], e["tag"]) == w) for w in which]
            for a, b in zip(found, found[1:] + found[:1]):
                a["needs"].append(b["id"])
        return change

    def everything(entries):
        for a, b in zip(entries, entries[1:] + entries[:1]):
            a["needs"].append(b["id"])

    def nowhere(entries):
        for e in entries:
            e["needs"] += [-5, 0, 2**31 - 1, 99999]

    def twins(entries):
        entries[-1]["id"] = entries[-2]["id"]

    def backwards(entries):
        entries.reverse()

    t, u = (b"TABLE", b"t"), (b"TABLE", b"u")
    changes = {"itself": ring(t), "two": ring(t, u), "data before its table": ring(t, (b"TABLE DATA", b"t")), "schema": ring((b"SCHEMA", b"h"), t),
               "view": ring(t, (b"VIEW", b"w"), u), "indexes": ring((b"INDEX", b"t_v"), t), "key": ring((b"FK CONSTRAINT", b"u u_id_fkey"), (b"TABLE DATA", b"u")),
               "partition": ring((b"TABLE", b"p"), (b"TABLE", b"p1")), "attach": ring((b"TABLE ATTACH", b"p1"), (b"TABLE", b"p")),
               "everything": everything, "nowhere": nowhere, "twins": twins, "backwards": backwards}

    def attempt(name):
        changed = toc.changed(path, os.path.join(world.folder, "circle"), changes[name])
        server.fresh("oracle")
        oracle = server.pg_restore("oracle", changed, check=False)
        for jobs in (1, 4):
            server.fresh("target")
            run = firn(server, "target", changed, "-j", str(jobs), patience=PATIENCE)
            assert run.code in (0, 1, 2) and not PANIC.search(run.out), f"{name}: {run.code}\n{run.out[-1500:]}"
            assert "error" in run.out or run.code == 0, run.out[-1500:]
            if run.code == 0:
                assert whole(server), f"{name}: exit code 0, and not all is there"
                if oracle.returncode == 0:
                    same_blocks(server.dump("oracle"), server.dump("target"), name)
        run = firn(server, "", changed, "--dry-run", where=False, patience=PATIENCE)
        assert run.code in (0, 1, 2) and not PANIC.search(run.out), f"{name}: {run.code}\n{run.out[-1500:]}"
    several([lambda n=name: attempt(n) for name in changes])


def cases(world):
    for name in PLANTED:
        yield f"hostile database planted {name}", lambda n=name: planted(world, n)
    for name in TAMPERED:
        yield f"hostile database journal {name}", lambda n=name: tampered(world, n)
    yield "hostile database journal of his own", lambda: his_own(world)
    yield "hostile database search path", lambda: search_path(world, True)
    yield "hostile database search path, none in the archive", lambda: search_path(world, False)
    yield "hostile database in the way", lambda: in_the_way(world)
    yield "hostile database kept from the journal", lambda: kept_from(world)
    for desc in SETUP:
        yield f"hostile archive {desc.decode()}", lambda d=desc: set_up(world, d)
    yield "hostile archive before role", lambda: before_role(world)
    yield "hostile archive fields", lambda: fields(world)
    yield "hostile archive odd names", lambda: odd_names(world, False)
    yield "hostile archive odd names of staged partitions", lambda: odd_names(world, True)
    yield "hostile archive circles", lambda: circles(world)
