"""A statement that fails: what is said, what is skipped with --on-error continue, never success with something missing."""
import os
import re
import shutil
import socket
import time

from harness import proxy as px
from harness.proxy import Proxy
from restore import flags, roundtrip
from restore.common import BLOCK, NEW, OLD, Missing, firn, same, same_blocks

# What cannot be restored when a.people is there already with other columns: all that its blocks' headers name.
LOST_WITH_PEOPLE = ("people", "adults", "adult_names", "ages", "ages_again", "ages_key", "grouped", "orders_person_fkey", "both",
                    "watched")
# And what would change how it comes out when it is there again.
PUT_OFF = (b"Type: EVENT TRIGGER", b"Type: DEFAULT ACL")


def blocks(dump):
    # Whichever comes last has the dump's end in it.
    dump = dump.split(b"--\n-- PostgreSQL database dump complete")[0]
    return set(BLOCK.split(dump)[1:])


def names(block):
    """The words of a block's header: the object's name, e.g. `orders orders_pkey`."""
    return block.split(b";", 1)[0].decode().replace("COLUMN ", "").replace(".", " ").split()


def in_the_way(world):
    """A table of the same name is there: stop says so and ends, continue does everything that needs it not."""
    server = world.server()
    _, dump = flags.source(world)
    path = flags.archive(world)
    for how in ("stop", "continue"):
        server.fresh("target")
        with server.connect("target") as c:
            c.execute("CREATE SCHEMA a AUTHORIZATION zoo_owner; CREATE TABLE a.people (other text)")
        # The schema is there, too: with stop that is the first thing to fail.
        run = firn(server, "target", path, "--jobs", "3", "--on-error", how).fails()
        assert "42P06" in run.out, run.out[-3000:]
        if how == "stop":
            assert "42P07" not in run.out and ("--resume" in run.out or "Nothing was changed" in run.out), run.out[-3000:]
            continue
        assert "42P07" in run.out and "people" in run.out, run.out[-3000:]
        got = server.dump_beside_journal("target")
        missing, more = blocks(dump) - blocks(got), blocks(got) - blocks(dump)
        wrong = [b for b in missing if not any(name.encode() in b for name in LOST_WITH_PEOPLE) and not any(kind in b for kind in PUT_OFF)]
        assert not wrong, b"\n".join(wrong).decode()
        # What is there and was not in the source is the table in the way, what it took away from others, and a view that
        # waits for its query.
        assert all({"people", "watched", "orders", "grouped", "a"} & set(names(b)) for b in more), more
        # All that is missing has been told.
        for name in ("adults", "adult_names", "grouped", "orders_person_fkey", "people_lower", "people_pkey", "EVENT TRIGGER watch", "DEFAULT ACL a.DEFAULT PRIVILEGES FOR TABLES"):
            assert name in run.out, f"nothing said of {name}:\n{run.out[-4000:]}"


def mended(world):
    """After a stop, what was in the way goes, and --resume completes the work."""
    server = world.server()
    _, dump = flags.source(world)
    path = flags.archive(world)
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE FUNCTION public.noted() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE SCHEMA b")
    firn(server, "target", path, "--jobs", "3").fails("42P06", "b")
    with server.connect("target") as c:
        c.execute("DROP SCHEMA b; DROP FUNCTION public.noted")
    firn(server, "target", path, "--jobs", "3", "--resume").ok()
    same_blocks(dump, server.dump("target"))


def bad_rows(world):
    """Rows that their table refuses: the table stays empty, the rest is restored, the row is named."""
    server = world.server()
    db = server.fresh("bad_rows")
    with server.connect(db) as c:
        c.execute("CREATE FUNCTION public.fine(int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true'")
        c.execute("CREATE TABLE bad (id int PRIMARY KEY, CHECK (public.fine(id)))")
        c.execute("CREATE TABLE good AS SELECT i FROM generate_series(1, 1000) i")
        c.execute("CREATE INDEX of_bad ON bad (id DESC); CREATE TABLE points (bad int REFERENCES bad)")
        c.execute("INSERT INTO bad SELECT i FROM generate_series(1, 100) i; INSERT INTO points SELECT 7")
        c.execute("CREATE OR REPLACE FUNCTION public.fine(int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT $1 <> 42'")
    path = world.archive("bad-rows", lambda p: server.archive(db, p, "c"))
    server.fresh("target")
    firn(server, "target", path, "--jobs", "2").fails("23514", "bad")
    server.fresh("target")
    run = firn(server, "target", path, "--jobs", "2", "--on-error", "continue").fails("23514", "bad", "line 42")
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM bad").fetchone() == (0,)
        assert c.execute("SELECT count(*) FROM good").fetchone() == (1000,)
        assert c.execute("SELECT count(*) FROM pg_constraint WHERE contype = 'f'").fetchone() == (0,)
    assert "points" in run.out, run.out


def bad_index(world):
    """A unique index that the rows do not allow, and a statement of several lines with its position."""
    server = world.server()
    db = server.fresh("bad_index")
    with server.connect(db) as c:
        c.execute("CREATE FUNCTION public.key(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END'")
        c.execute("CREATE TABLE t AS SELECT i AS id, i % 10 AS ten FROM generate_series(1, 100) i")
        c.execute("CREATE UNIQUE INDEX by_key ON t (public.key(id)); CREATE INDEX other ON t (ten)")
        c.execute("COMMENT ON INDEX by_key IS 'goes with it'")
        c.execute("CREATE OR REPLACE FUNCTION public.key(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 % 10; END'")
    path = world.archive("bad-index", lambda p: server.archive(db, p, "c"))
    server.fresh("target")
    firn(server, "target", path, "--jobs", "2", "--on-error", "continue").fails("23505", "by_key", "skipped")
    with server.connect("target") as c:
        found = [r[0] for r in c.execute("SELECT relname FROM pg_class WHERE relkind = 'i' AND oid >= 16384 AND relname !~ '^pg_toast'")]
        assert found == ["other"], found


def no_place(world):
    """A tablespace and access methods that this server does not have: an error, and what was to be there comes where the server has
    it by default, as with pg_restore."""
    versions = [OLD]
    try:
        world.server(NEW)
        versions.append(NEW)
    except Missing:
        pass
    for version in versions:
        server = world.server(version)
        place = os.path.join(server.root, "gone_place")
        os.makedirs(place, exist_ok=True)
        shutil.chown(place, "postgres")
        with server.connect() as c:
            c.execute(f"CREATE TABLESPACE gone_place LOCATION '{place}'")
        db = server.fresh("no_place")
        with server.connect(db) as c:
            c.execute("CREATE ACCESS METHOD gone_method TYPE TABLE HANDLER heap_tableam_handler")
            c.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int REFERENCES a) USING gone_method; INSERT INTO a VALUES (1), (2)")
            c.execute("INSERT INTO b VALUES (1); CREATE TABLE c (id serial PRIMARY KEY, v text) TABLESPACE gone_place; CREATE INDEX i ON c (v)")
            c.execute("CREATE INDEX j ON a (id) TABLESPACE gone_place; INSERT INTO c (v) VALUES ('x'); CREATE MATERIALIZED VIEW m USING gone_method "
                      "AS SELECT * FROM b; CREATE TABLE d AS SELECT 1 AS one")
            c.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id)" + (" USING gone_method" if version == NEW else ""))
            c.execute("CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (1) TO (10) USING gone_method; INSERT INTO p VALUES (1)")
        path = world.archive(f"no-place-{version}", lambda p: server.archive(db, p, "c"))
        with server.connect() as c:
            c.execute(f"DROP DATABASE {db}")
            c.execute("DROP TABLESPACE gone_place")
        # The access method is not in what is restored, the tablespace not on the server.
        listed = server.program("pg_restore", "-l", path).stdout.decode()
        chosen = os.path.join(world.folder, "no_place.list")
        with open(chosen, "w") as f:
            f.write("\n".join(line for line in listed.splitlines() if "ACCESS METHOD" not in line))
        server.fresh("oracle")
        server.pg_restore("oracle", path, "-L", chosen, check=False)
        for jobs in ("1", "4"):
            server.fresh("target")
            firn(server, "target", path, "-L", chosen, "-j", jobs).fails("gone_")
            server.fresh("target")
            run = firn(server, "target", path, "-L", chosen, "-j", jobs, "--on-error", "continue").fails("gone_method", "gone_place")
            assert "skipped" not in run.out, run.out
            same(server.dump("oracle"), server.dump_beside_journal("target"), run.out)
            # It is not complete before it is as the archive has it.
            args = (server, "target", path, "-L", chosen, "-j", jobs, "--on-error", "continue", "--resume")
            again = firn(*args).fails("access method", "gone_method")
            assert again.code == 3, again.out
        with server.connect() as c:
            c.execute(f"CREATE TABLESPACE gone_place LOCATION '{place}'")
        with server.connect("target") as c:
            c.execute("CREATE ACCESS METHOD gone_method TYPE TABLE HANDLER heap_tableam_handler")
            for statement in ("TABLE b SET ACCESS METHOD gone_method", "MATERIALIZED VIEW m SET ACCESS METHOD gone_method",
                              "TABLE p_1 SET ACCESS METHOD gone_method", "TABLE c SET TABLESPACE gone_place", "INDEX j SET TABLESPACE gone_place"):
                c.execute("ALTER " + statement)
        if version == NEW:
            # Later partitions would come without it.
            again = firn(*args).fails("TABLE public.p: its access method is", "gone_method")
            assert again.code == 3, again.out
            with server.connect("target") as c:
                c.execute("ALTER TABLE p SET ACCESS METHOD gone_method")
        firn(*args).ok()
        with server.connect() as c:
            c.execute("DROP DATABASE target")
            c.execute("DROP TABLESPACE gone_place")
    if NEW in versions:
        # On an older server a partitioned table has none at all.
        server = world.server(OLD)
        server.fresh("target")
        run = firn(server, "target", path, "-L", chosen, "--on-error", "continue").fails("gone_method", "gone_place")
        assert "skipped" not in run.out, run.out
        with server.connect("target") as c:
            assert c.execute("SELECT tableoid::regclass::text, id FROM p").fetchall() == [("p_1", 1)]


def no_owner_of_database(world):
    """The owner of the archive's database is not there: with --on-error=continue it is made all the same, as by pg_restore. And who restores
    is who --role says."""
    server = world.server()
    server.roles("gone_owner", "makes_databases CREATEDB", "may_be_him LOGIN", "lets_in")
    with server.connect() as c:
        c.execute("DROP DATABASE IF EXISTS no_owner WITH (FORCE)")
        c.execute("GRANT makes_databases TO may_be_him; ALTER ROLE may_be_him NOINHERIT")
        c.execute("CREATE DATABASE no_owner OWNER gone_owner")
    with server.connect("no_owner") as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS i; CREATE FUNCTION let_in() RETURNS bool LANGUAGE sql AS "
                  "$$SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'lets_in')$$;"
                  "CREATE TABLE u (i int CHECK (let_in())); INSERT INTO u VALUES (1)")
    path = world.archive("no_owner", lambda p: server.archive("no_owner", p, "c"))
    with server.connect() as c:
        c.execute("DROP DATABASE no_owner")
        c.execute("DROP ROLE gone_owner")
    firn(server, "postgres", path, "-C").fails("gone_owner", "42704")
    run = firn(server, "postgres", path, "-C", "--on-error", "continue").fails("gone_owner", "errors ignored on restore: 1")
    # All else is there: nothing can be resumed, and it is not complete.
    assert run.code == 1 and "restore NOT complete: 1 error ignored" in run.out and "--resume" not in run.out, run.out
    with server.connect("no_owner") as c:
        assert c.execute("SELECT i FROM t").fetchone() == (1,)
    with server.connect() as c:
        c.execute("DROP DATABASE no_owner WITH (FORCE)")
    where = ["-h", server.root, "-p", str(server.port), "-U", "may_be_him", "-d", "postgres"]
    firn(server, "postgres", path, *where, "-C", "-O", where=False).fails("permission denied to create database")
    firn(server, "postgres", path, *where, "-C", "-O", "--role=makes_databases", "--schema-only", where=False).ok()
    with server.connect() as c:
        owner = "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'no_owner'"
        assert c.execute(owner).fetchone() == ("makes_databases",)
        c.execute("DROP DATABASE no_owner WITH (FORCE)")
    # What the first run passed over is done by --resume, or told again, with whatever else was missing.
    with server.connect() as c:
        c.execute("DROP ROLE lets_in")
    args = (server, "postgres", path, "-C", "--on-error", "continue")
    firn(*args).fails("gone_owner", "TABLE DATA public.u", "errors ignored on restore: 2")
    assert firn(*args, "--resume").fails("gone_owner", "errors ignored on restore: 2").code == 1
    assert firn(server, "postgres", path, "-C", "--resume").fails("gone_owner").code == 1
    with server.connect() as c:
        c.execute("CREATE ROLE lets_in; CREATE ROLE gone_owner")
    assert 'belongs to "gone_owner" now' in firn(*args, "--resume").ok().out
    with server.connect() as c:
        assert c.execute(owner).fetchone() == ("gone_owner",)
        c.execute("DROP DATABASE no_owner WITH (FORCE)")
        c.execute("DROP ROLE gone_owner")


def given_away(world):
    """--create --resume changes the owner of no database but one that the unfinished restore has made without its owner, and once."""
    server = world.server()
    owner = "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'given_away'"

    def belongs(to):
        with server.connect() as c:
            assert c.execute(owner).fetchone() == (to,)

    def run(sql):
        with server.connect() as c:
            for statement in sql.split(";"):
                c.execute(statement)

    run("DROP DATABASE IF EXISTS given_away WITH (FORCE); DROP ROLE IF EXISTS had_it; DROP ROLE IF EXISTS has_it; DROP ROLE IF EXISTS lets_in;"
        "CREATE ROLE had_it; CREATE ROLE has_it; CREATE ROLE lets_in; CREATE DATABASE given_away OWNER had_it")
    with server.connect("given_away") as c:
        c.execute("CREATE FUNCTION let_in() RETURNS bool LANGUAGE sql AS "
                  "$$SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'lets_in')$$;"
                  "CREATE TABLE u (i int CHECK (let_in())); INSERT INTO u VALUES (1); CREATE TABLE t AS SELECT 1 AS i")
    path = world.archive("given-away", lambda p: server.archive("given_away", p, "c"))
    other = world.archive("given-away-other", lambda p: server.archive("given_away", p, "c", "0"))
    args = (server, "postgres", path, "-C")
    # Nothing is unfinished: the database is somebody's.
    run("DROP DATABASE given_away")
    firn(*args).ok()
    belongs("had_it")
    run("ALTER DATABASE given_away OWNER TO has_it")
    assert firn(*args, "--resume").fails("there is no unfinished restore").code == 2
    belongs("has_it")
    # A restore that made it for its owner is unfinished, and somebody has given it away since; or it is of another archive.
    run("DROP DATABASE given_away; DROP ROLE lets_in")
    firn(*args).fails("TABLE DATA public.u")
    belongs("had_it")
    run("ALTER DATABASE given_away OWNER TO has_it")
    firn(server, "postgres", other, "-C", "--resume").fails("another archive")
    run("CREATE ROLE lets_in")
    firn(*args, "--resume").ok()
    belongs("has_it")
    # It was made without: that is done once, and not where the flags are others.
    run("DROP DATABASE given_away; DROP ROLE had_it; DROP ROLE lets_in")
    firn(*args, "--on-error", "continue").fails("had_it", "errors ignored on restore: 2")
    run("CREATE ROLE had_it")
    firn(*args, "--resume", "-x").fails("begun with other options")
    belongs("postgres")
    assert 'belongs to "had_it" now' in firn(*args, "--resume").fails("TABLE DATA public.u").out
    belongs("had_it")
    run("ALTER DATABASE given_away OWNER TO has_it; CREATE ROLE lets_in")
    firn(*args, "--resume").ok()
    belongs("has_it")
    # Nor where somebody has given it to another one since, be he there whom the archive names or not.
    for before, after in (("", "CREATE ROLE had_it"), ("CREATE ROLE had_it", "")):
        run("DROP DATABASE given_away; DROP ROLE had_it; DROP ROLE lets_in")
        firn(*args, "--on-error", "continue").fails("had_it", "errors ignored on restore: 2")
        firn(*args, "--resume").fails("42704", "--on-error=continue")
        run("; ".join(filter(None, (before, "ALTER DATABASE given_away OWNER TO has_it"))))
        assert 'belongs to "has_it", in the archive to "had_it"' in firn(*args, "--resume").fails("TABLE DATA public.u").out
        run("; ".join(filter(None, (after, "CREATE ROLE lets_in"))))
        firn(*args, "--resume").ok()
        belongs("has_it")
    # Nothing is known of an empty one.
    run("DROP DATABASE given_away; CREATE DATABASE given_away OWNER has_it TEMPLATE template0")
    assert 'belongs to "has_it", in the archive to "had_it"' in firn(*args, "--resume").ok().out
    belongs("has_it")
    run("DROP DATABASE given_away; DROP ROLE had_it; DROP ROLE has_it; DROP ROLE lets_in")


def limited(world):
    """Limits that the role or a database has do not end CREATE DATABASE, which waits for a lock here."""
    for version in (OLD, NEW):
        server = world.server(version)
        with server.connect(server.fresh("limited")) as c:
            c.execute("CREATE TABLE t AS SELECT 1 AS i")
        path = world.archive(f"limited-{version}", lambda p: server.archive("limited", p, "c"))
        limits = ["statement_timeout", "lock_timeout", *(["transaction_timeout"] if version == NEW else [])]
        with server.connect() as c:
            c.execute("DROP DATABASE limited")
            for limit in limits:
                c.execute(f"ALTER DATABASE postgres SET {limit} = '500ms'")
        try:
            with server.connect() as c, server.connect("template1", autocommit=False) as other:
                other.execute("COMMENT ON DATABASE template0 IS 'held'")
                child = firn(server, "postgres", path, "-C", wait=False)
                waiting = ("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'CREATE DATABASE%' "
                           "AND clock_timestamp() - query_start > '1 s'")
                child.until(c, waiting)
                other.rollback()
                child.wait().ok()
        finally:
            with server.connect() as c:
                for limit in limits:
                    c.execute(f"ALTER DATABASE postgres RESET {limit}")
                c.execute("DROP DATABASE IF EXISTS limited")


def no_role(world):
    """An owner that this server does not have."""
    server = world.server()
    with server.connect() as c:
        c.execute("DROP ROLE IF EXISTS gone_role; CREATE ROLE gone_role")
    db = server.fresh("no_role")
    with server.connect(db) as c:
        c.execute("CREATE TABLE theirs (id int PRIMARY KEY); ALTER TABLE theirs OWNER TO gone_role; CREATE TABLE mine AS SELECT 1 AS one")
        c.execute("GRANT SELECT ON mine TO gone_role")
    path = world.archive("no-role", lambda p: server.archive(db, p, "c"))
    with server.connect(db) as c:
        c.execute("DROP OWNED BY gone_role")
    with server.connect() as c:
        c.execute("DROP ROLE gone_role")
    server.fresh("target")
    firn(server, "target", path, "--jobs", "2").fails("gone_role", "42704")
    server.fresh("target")
    firn(server, "target", path, "--jobs", "2", "--on-error", "continue").fails("gone_role", "42704")
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM mine").fetchone() == (1,)
    server.fresh("target")
    firn(server, "target", path, "--jobs", "2", "-O", "-x").ok()
    with server.connect("target") as c:
        assert c.execute("SELECT tableowner FROM pg_tables WHERE tablename = 'theirs'").fetchone() == ("postgres",)


def unprivileged(world):
    """A role that may create in the database but is no superuser restores what it may, and is told what it may not."""
    server = world.server()
    with server.connect() as c:
        c.execute("DO $$BEGIN CREATE ROLE modest LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END$$")
    path = world.archive("modest", lambda p: server.archive(world.generated(150)[0], p, "c"))
    server.fresh("target")
    with server.connect() as c:
        c.execute("ALTER DATABASE target OWNER TO modest")
    where = ["-h", server.root, "-p", str(server.port), "-U", "modest", "-d", "target"]
    firn(server, "target", path, *where, "--jobs", "2", where=False).fails("42501")
    server.fresh("target")
    with server.connect() as c:
        c.execute("ALTER DATABASE target OWNER TO modest")
    firn(server, "target", path, *where, "--jobs", "3", "-O", "-x", where=False).ok()
    server.fresh("oracle")
    with server.connect() as c:
        c.execute("ALTER DATABASE oracle OWNER TO modest")
    server.program("pg_restore", "-h", server.root, "-p", str(server.port), "-U", "modest", "-d", "oracle", "-O", "-x", path)
    same(server.dump("oracle"), server.dump("target"))


def no_server(world):
    """Nobody listens, no such database, no such role: libpq's words and exit code 1."""
    server = world.server()
    path = flags.archive(world)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    firn(server, "", path, "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-d", "x", where=False).fails("onnection", str(port))
    firn(server, "no_such_database", path).fails("no_such_database")
    firn(server, "", path, "-h", server.root, "-p", str(server.port), "-U", "nobody_here", "-d", "postgres", where=False) \
        .fails("nobody_here")
    firn(server, "target", path + ".none").fails(os.path.basename(path) + ".none")


def environment(world):
    """Connection by PGHOST and the like, a service file, a password file, a connection string."""
    server = world.server()
    _, dump = flags.source(world)
    path = flags.archive(world)
    service = os.path.join(world.folder, "services")
    with open(service, "w", encoding="utf-8") as f:
        f.write(f"[here]\nhost={server.root}\nport={server.port}\nuser=postgres\ndbname=target\n")
    basic = {"PGHOST": server.root, "PGPORT": str(server.port), "PGUSER": "postgres"}
    for args, env in ((["-d", "target"], basic),
                      (["-d", "service=here"], {"PGSERVICEFILE": service}),
                      (["-d", f"postgresql://postgres@:{server.port}/target?host={server.root}"], {})):
        server.fresh("target")
        firn(server, "target", path, *args, "--jobs", "2", where=False, env=env).ok()
        same_blocks(dump, server.dump("target"), str(args))


def settings_of_the_target(world):
    """Settings of database and role that would change what a restore means: they do not."""
    server = world.server()
    _, dump = world.generated(roundtrip.TABLES)
    path = roundtrip.archive(world, OLD, "c", "6")
    server.fresh("target")
    hostile = ("search_path = ledger, public", "statement_timeout = '50ms'", "lock_timeout = '10ms'", "DateStyle = 'SQL, DMY'",
               "IntervalStyle = sql_standard", "bytea_output = escape", "standard_conforming_strings = off", "row_security = on",
               "default_tablespace = ''", "check_function_bodies = on", "extra_float_digits = -5", "TimeZone = 'Asia/Kolkata'",
               "default_transaction_isolation = serializable", "idle_in_transaction_session_timeout = '100ms'",
               "xmloption = document", "client_encoding = LATIN1", "synchronize_seqscans = on", "default_toast_compression = pglz")
    with server.connect() as c:
        for setting in hostile:
            c.execute(f"ALTER DATABASE target SET {setting}")
    firn(server, "target", path, "--jobs", "3").ok()
    with server.connect() as c:
        for setting in hostile:
            c.execute(f"ALTER DATABASE target RESET {setting.split()[0]}")
    same(dump, server.dump("target"))


def others_stopped(world):
    """The error is told that made the others stop, and not that they were stopped: here on the way to a session."""
    server, path = world.server(), flags.archive(world)
    server.fresh("target")
    with server.connect("target") as c, server.connect("target") as held:
        c.execute("CREATE SCHEMA a")
        folder = os.path.join(server.root, "others-stopped")

        def hold(m):
            held.execute("SELECT pg_advisory_lock(1718186606, 10002)")

        def later(m):
            # The other connection waits for its session by then.
            end = time.time() + px.PATIENCE
            while not c.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone() and time.time() < end:
                time.sleep(0.01)

        def fault(m):
            if b"pg_advisory_lock(1718186606, 10002)" in m.sql:
                return px.call(hold)
            return px.call(later) if re.search(rb"CREATE SCHEMA a;", m.sql) else None
        with Proxy(folder, server.root) as proxy:
            proxy.arm(fault, again=True)
            run = firn(server, "target", path, *proxy.where("target"), "-j", "2", where=False).fails("42P06")
            assert proxy.fired.is_set() and not proxy.trouble, proxy.trouble
    shutil.rmtree(folder, ignore_errors=True)
    assert "canceling statement" not in run.out and "canceled" not in run.out, run.out[-3000:]


def cases(world):
    for body in (in_the_way, mended, others_stopped, bad_rows, bad_index, no_place, no_owner_of_database, given_away, limited, no_role, unprivileged, no_server, environment, settings_of_the_target):
        yield f"errors {body.__name__.replace('_', ' ')}", lambda b=body: b(world)
