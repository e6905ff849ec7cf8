"""--use-set-session-authorization and --superuser with several connections: who runs what is who runs it with pg_restore.

Each statement is run by its object's owner. The schema has triggers that note who that is, so that rows tell, too.
"""
import os
import signal
import time

from restore import twins
from restore.common import NEW, OLD, firn, same

FLAG = "--use-set-session-authorization"
ROLES = ("as_one", "as_two", "as_reader")
SOURCE = """
CREATE SCHEMA one AUTHORIZATION as_one; CREATE SCHEMA two AUTHORIZATION as_two;
SET ROLE as_one;
CREATE TYPE one.mood AS ENUM ('good', 'bad');
CREATE TABLE one.notes (who name, what text);
GRANT USAGE ON SCHEMA one TO as_reader;
CREATE FUNCTION one.note() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO one.notes VALUES (session_user, TG_TABLE_NAME); RETURN NEW; END $$;
CREATE TABLE one.people (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, mood one.mood DEFAULT 'good');
CREATE VIEW one.names AS SELECT name FROM one.people;
GRANT SELECT ON one.names TO as_reader; COMMENT ON TABLE one.people IS 'people''s';
CREATE UNLOGGED TABLE one.quick (i int);
CREATE TRIGGER note BEFORE INSERT ON one.people FOR EACH ROW EXECUTE FUNCTION one.note();
ALTER TABLE one.people DISABLE TRIGGER note;
INSERT INTO one.people (name) SELECT 'n' || i FROM generate_series(1, 20) i;
ALTER TABLE one.people ENABLE ALWAYS TRIGGER note;
INSERT INTO one.quick SELECT generate_series(1, 5);
SET ROLE as_two;
CREATE TABLE two.pets (id serial PRIMARY KEY, owner int, born date) PARTITION BY HASH (id);
CREATE TABLE two.logged (i int, t text) PARTITION BY RANGE (i);
CREATE INDEX ON two.logged (t);
DO $$ BEGIN FOR i IN 0..299 LOOP EXECUTE format('CREATE TABLE two.logged_%s PARTITION OF two.logged FOR VALUES FROM (%s) TO (%s)', i, i, i + 1);
END LOOP; FOR i IN 0..3 LOOP EXECUTE format('CREATE TABLE two.pets_%s PARTITION OF two.pets FOR VALUES WITH (modulus 4, remainder %s)', i, i);
END LOOP; END $$;
INSERT INTO two.logged SELECT i, 't' || i FROM generate_series(0, 299) i;
INSERT INTO two.pets (owner, born) SELECT i, '2020-01-01' FROM generate_series(1, 20) i;
CREATE TABLE two.toys (pet int REFERENCES two.pets, name text);
CREATE MATERIALIZED VIEW two.counted AS SELECT count(*) FROM two.pets;
ALTER DEFAULT PRIVILEGES IN SCHEMA two GRANT SELECT ON TABLES TO as_reader;
SELECT lo_from_bytea(4711, 'two''s');
RESET ROLE;
CREATE TABLE public.mine AS SELECT generate_series(1, 10) i;
"""


def server(world, version):
    """With the roles; they may make schemas in template databases of their own, which an archive does not give them."""
    def make():
        where = world.server(version)
        where.roles(*ROLES)
        return where
    return world.once(("as owner", version), make)


def empty(where, db):
    where.fresh(db)
    with where.connect(db) as c:
        c.execute(f"GRANT CREATE ON DATABASE {db} TO as_one, as_two")


def archive(world, version, form="c"):
    def make(path):
        where = server(world, version)
        empty(where, "as_source")
        with where.connect("as_source") as c:
            c.execute(SOURCE)
        return where.archive("as_source", path, form)
    return world.archive(f"as-owner-{version}-{form}", make)


def notes(where, db):
    with where.connect(db) as c:
        return c.execute("SELECT who, what, count(*) FROM one.notes GROUP BY 1, 2 ORDER BY 1, 2").fetchall()


def compare(where, what):
    twins.compare(twins.catalogs(where, "oracle"), twins.catalogs(where, "target"), what)
    same(where.dump("oracle"), where.dump("target"), what)


def whole(world, version, form, jobs):
    where, path = server(world, version), archive(world, version, form)
    empty(where, "oracle")
    where.pg_restore("oracle", path, FLAG)
    empty(where, "target")
    run = firn(where, "target", path, FLAG, "-j", str(jobs)).ok()
    assert "warning" not in run.out.lower(), run.out
    compare(where, f"{form} {jobs}")
    with where.connect("target") as c:
        owners = c.execute("SELECT DISTINCT relnamespace::regnamespace::text, relowner::regrole::text FROM pg_class "
                           "WHERE oid >= 16384 AND relnamespace::regnamespace::text IN ('one', 'two', 'public') ORDER BY 1").fetchall()
    assert owners == [("one", "as_one"), ("public", "postgres"), ("two", "as_two")], owners


def no_owner_wins(world):
    """With -O nobody becomes anybody."""
    where, path = server(world, OLD), archive(world, OLD)
    where.fresh("oracle")
    where.pg_restore("oracle", path, FLAG, "-O")
    where.fresh("target")
    firn(where, "target", path, FLAG, "-O", "-j", "2").ok()
    compare(where, "-O")


def refused(world):
    """An owner who may not make a schema: the error names it, as pg_restore does; with the right, --resume gets there."""
    where, path = server(world, OLD), archive(world, OLD)
    empty(where, "oracle")
    where.pg_restore("oracle", path, FLAG)
    where.fresh("target")
    assert where.pg_restore("target", path, FLAG, check=False).returncode == 1
    where.fresh("target")
    with where.connect("target") as c:
        c.execute("GRANT CREATE ON DATABASE target TO as_one")
        run = firn(where, "target", path, FLAG, "-j", "1").fails("permission denied for database", "SCHEMA two")
        assert run.code == 1, run.out
        c.execute("GRANT CREATE ON DATABASE target TO as_two")
    firn(where, "target", path, FLAG, "-j", "2", "--resume").ok()
    compare(where, "resumed")


def rows(world, more, silent):
    """Rows of tables that are there: triggers see the owner, or are switched off by a superuser."""
    where, path = server(world, OLD), archive(world, OLD)
    for db, restore in (("oracle", lambda: where.pg_restore("oracle", path, "-a", *more)),
                        ("target", lambda: firn(where, "target", path, "-a", "-j", "3", *more).ok())):
        empty(where, db)
        where.pg_restore(db, path, "-s")
        restore()
    found = notes(where, "target")
    assert found == notes(where, "oracle"), (found, notes(where, "oracle"))
    assert found == ([] if silent else [("as_one", "people", 20)]), found
    same(where.dump("oracle"), where.dump("target"))


def switched_off(world):
    """Who switches triggers off is --superuser: that role is asked for its rights, not who has connected."""
    where, path = server(world, OLD), archive(world, OLD)
    where.fresh("target")
    where.pg_restore("target", path, "-s")
    # The large object, which comes before all rows, is done by then, so that there is something to resume.
    run = firn(where, "target", path, "-a", "-j", "1", "--disable-triggers", "-S", "as_reader").fails()
    assert "must be owner" in run.out or "permission denied" in run.out, run.out
    run = firn(where, "target", path, "-a", "-j", "2", "--disable-triggers", "-S", "nobody_of_that_name", "--resume").fails()
    assert "superuser" in run.out, run.out


def killed(world):
    """Killed in the middle, several times, and resumed in another way than begun, which is refused."""
    where, path = server(world, OLD), archive(world, OLD)
    empty(where, "oracle")
    where.pg_restore("oracle", path, FLAG)
    empty(where, "target")
    child = firn(where, "target", path, FLAG, "-j", "2", wait=False)
    with where.connect("target") as c:
        child.until(c, "SELECT 1 FROM pg_class WHERE relname = 'people'")
    child.process.send_signal(signal.SIGKILL)
    child.wait()
    # The journal says how it was begun.
    firn(where, "target", path, "-j", "2", "--resume").fails("session_authorization")
    for _ in range(2):
        child = firn(where, "target", path, FLAG, "-j", "2", "--resume", wait=False)
        time.sleep(0.4)
        child.process.send_signal(signal.SIGKILL)
        child.wait()
    run = firn(where, "target", path, FLAG, "-j", "2", "--resume")
    assert run.code == 0 or "there is no unfinished restore" in run.out, run.out
    compare(where, "killed")


def emptied(world):
    """Tables are emptied by who may, not by whose large object came before in the same transaction."""
    where, path = server(world, OLD), archive(world, OLD)
    empty(where, "target")
    where.pg_restore("target", path)
    with where.connect("target") as c:
        c.execute("SELECT lo_unlink(4711)")
    wanted = [line for line in where.program("pg_restore", "-l", path).stdout.splitlines(True)
              if b" BLOB" in line or b" TABLE DATA one " in line]
    chosen = os.path.join(world.folder, "as-owner-emptied")
    with open(chosen, "wb") as f:
        f.writelines(wanted)
    assert len(wanted) >= 4, wanted
    run = firn(where, "target", path, FLAG, "-a", "-L", chosen, "--truncate-table", "--disable-triggers", "-j", "1").ok()
    assert "one by one" not in run.out, run.out


def logged_in(where):
    """Who may be another role, and has none of its rights."""
    where.roles("as_login LOGIN NOINHERIT", "as_role")
    with where.connect() as c:
        c.execute("GRANT as_role TO as_login")
    where.fresh("target")
    with where.connect("target") as c:
        c.execute("GRANT CREATE ON DATABASE target TO as_role, as_login; GRANT CREATE ON SCHEMA public TO as_role, as_login")
    return ["-h", where.root, "-U", "as_login", "-d", "target", "--role", "as_role", FLAG]


def by_role(world):
    """The journal is of --role, also where the entries are run as who has logged in."""
    where = server(world, OLD)
    flags = logged_in(where)

    def make(path):
        with where.connect(where.fresh("as_source_login")) as c:
            c.execute("CREATE SCHEMA l AUTHORIZATION as_login; CREATE TABLE l.t AS SELECT 1 AS i; ALTER TABLE l.t OWNER TO as_login")
        return where.archive("as_source_login", path, "c")
    path = world.archive("as-owner-login", make)
    for jobs in (["-j", "1"], ["-j", "3"], ["--transaction-size=1"], ["-1"]):
        logged_in(where)
        firn(where, "target", path, *flags, *jobs, where=False).ok()
        with where.connect("target") as c:
            assert c.execute("SELECT relowner::regrole::text FROM pg_class WHERE relname = 't'").fetchone() == ("as_login",)


def by_role_after_grants(world):
    """Privileges that others have granted end the session's role; what comes behind them is of the role all the same."""
    where = server(world, OLD)
    where.roles("as_boss SUPERUSER")

    def make(path):
        with where.connect(where.fresh("as_source_grants")) as c:
            c.execute("CREATE TABLE t AS SELECT 1 AS i; GRANT SELECT ON t TO as_one WITH GRANT OPTION; SET ROLE as_one; GRANT SELECT ON t TO as_two; RESET ROLE")
            c.execute("CREATE FUNCTION e() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION e()")
        return where.archive("as_source_grants", path, "c")
    path = world.archive("as-owner-grants", make)
    for jobs in (["-j", "1"], ["-j", "3"], ["--transaction-size=1"], ["-1"]):
        where.fresh("target")
        firn(where, "target", path, "-O", "--role", "as_boss", *jobs).ok()
        with where.connect("target") as c:
            assert c.execute("SELECT evtowner::regrole::text FROM pg_event_trigger").fetchone() == ("as_boss",), jobs


def by_role_without_triggers(world):
    """Only superusers may switch off the triggers of foreign keys: who has logged in does, whatever the role may, and rows are of the role."""
    where = server(world, OLD)
    where.roles("as_plain", "as_other")

    def make(path):
        with where.connect(where.fresh("as_source_keys")) as c:
            c.execute("CREATE SCHEMA k AUTHORIZATION as_plain; SET ROLE as_plain; CREATE TABLE k.a (i int PRIMARY KEY, who name DEFAULT current_user)")
            c.execute("CREATE TABLE k.b (i int PRIMARY KEY REFERENCES k.a, j int UNIQUE); ALTER TABLE k.a ADD FOREIGN KEY (i) REFERENCES k.b (j) DEFERRABLE INITIALLY DEFERRED")
            c.execute("BEGIN; INSERT INTO k.a SELECT generate_series(1, 9); INSERT INTO k.b SELECT i, i FROM generate_series(1, 9) i; COMMIT")
            c.execute("CREATE SEQUENCE k.s; SELECT setval('k.s', 7)")
            c.execute("CREATE FUNCTION k.seen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.who := current_user; RETURN NEW; END $$")
            c.execute("CREATE TRIGGER seen BEFORE INSERT ON k.a FOR EACH ROW EXECUTE FUNCTION k.seen(); RESET ROLE")
        return where.archive("as_source_keys", path, "c")
    path = world.archive("as-owner-keys", make)
    for more in ([], [FLAG]):
        for flags in (["-j", "1"], ["-j", "3"], ["-j", "2", "--truncate-table"], ["--transaction-size=1"], ["-1"]):
            where.fresh("target")
            where.pg_restore("target", path, "-s")
            with where.connect("target") as c:
                c.execute("GRANT CREATE ON DATABASE target TO as_plain; ALTER TABLE k.a ADD CHECK (current_user = 'as_plain')")
            firn(where, "target", path, "-a", "--disable-triggers", "--role", "as_plain", *flags, *more).ok()
            with where.connect("target") as c:
                found = c.execute("SELECT (SELECT count(*) FROM k.a), (SELECT count(*) FROM k.b), (SELECT last_value FROM k.s), "
                                  "(SELECT count(*) FROM pg_trigger WHERE tgenabled <> 'O')").fetchone()
            assert found == (9, 9, 7, 0), (flags, more, found)


def by_role_handed_over(world):
    """What was there before is handed over by who has logged in, though its role may not."""
    where = server(world, OLD)
    where.roles("as_plain")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "archives", "9.6.dump")
    chosen = os.path.join(world.folder, "as-owner-handed-over")
    with open(chosen, "wb") as f:
        f.writelines(line for line in where.program("pg_restore", "-l", path).stdout.splitlines(True) if b" SCHEMA - public " in line)
    for flags in (["-j", "1"], ["-j", "3"], ["--transaction-size=1"], ["-1"]):
        where.fresh("target")
        with where.connect("target") as c:
            c.execute("GRANT CREATE ON DATABASE target TO as_plain; ALTER SCHEMA public OWNER TO as_two")
            if "-j" not in flags:
                # As with pg_restore the archive's statement makes it.
                c.execute("DROP SCHEMA public")
        firn(where, "target", path, "-L", chosen, "--role", "as_plain", FLAG, *flags).ok()
        with where.connect("target") as c:
            owner = c.execute("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'public'").fetchone()
        assert owner == ("postgres",), (flags, owner)


def cases(world):
    yield "as owner, by role without triggers", lambda: by_role_without_triggers(world)
    yield "as owner, by role handed over", lambda: by_role_handed_over(world)
    yield "as owner, emptied", lambda: emptied(world)
    yield "as owner, by role", lambda: by_role(world)
    yield "as owner, by role after grants", lambda: by_role_after_grants(world)
    for version in (OLD, NEW):
        for form, jobs in (("c", 1), ("c", 4), ("d", 2)):
            yield f"as owner {version} {form} {jobs}", lambda v=version, f=form, j=jobs: whole(world, v, f, j)
    yield "as owner, no owner", lambda: no_owner_wins(world)
    yield "as owner, refused", lambda: refused(world)
    yield "as owner, rows", lambda: rows(world, [FLAG], False)
    yield "as owner, rows without triggers", lambda: rows(world, [FLAG, "--disable-triggers"], True)
    yield "as owner, rows with a superuser", lambda: rows(world, ["--disable-triggers", "-S", "postgres"], True)
    yield "as owner, superuser with a flag", lambda: rows(world, [FLAG, "--disable-triggers", "-S", "postgres"], True)
    yield "as owner, switched off", lambda: switched_off(world)
    yield "as owner, killed", lambda: killed(world)
