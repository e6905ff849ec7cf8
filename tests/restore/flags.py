"""Flags that choose what is restored: what pg_restore makes of the same flags is what is right.

Where pg_restore complains but gets there, firn gets there.
"""
import os
import re
import subprocess

from restore.common import NEW, OLD, firn, program, same, same_blocks

HERE = os.path.dirname(os.path.abspath(__file__))
# Statements before the restore, for flags that leave out what others need.
BARE = ("CREATE SCHEMA a; CREATE SCHEMA b; CREATE SCHEMA \"Odd Name\"; CREATE FOREIGN DATA WRAPPER nowhere; "
        "CREATE SERVER far FOREIGN DATA WRAPPER nowhere; CREATE PUBLICATION watched; CREATE PUBLICATION second")
# Name: flags, what is in the database before.
FLAGS = {
    "everything": ([], None),
    "schema only": (["--schema-only"], None),
    "short schema only": (["-s"], None),
    "data only": (["--data-only"], "schema without foreign keys"),
    "short data only": (["-a"], "schema without foreign keys"),
    "data only without triggers": (["-a", "--disable-triggers"], "schema"),
    "no owner": (["--no-owner"], None),
    "short no owner": (["-O"], None),
    "no privileges": (["--no-privileges"], None),
    "no acl": (["--no-acl"], None),
    "short no privileges": (["-x"], None),
    "neither owner nor privileges": (["-O", "-x"], None),
    "no comments": (["--no-comments"], None),
    "no publications": (["--no-publications"], None),
    "no security labels": (["--no-security-labels"], None),
    "no subscriptions": (["--no-subscriptions"], None),
    "no tablespaces": (["--no-tablespaces"], None),
    "no table access method": (["--no-table-access-method"], None),
    "pre-data": (["--section=pre-data"], None),
    "data": (["--section=data"], "pre-data"),
    "post-data": (["--section=post-data"], "pre-data"),
    "pre-data and data": (["--section=pre-data", "--section=data"], None),
    "all sections": (["--section=pre-data", "--section=data", "--section=post-data"], None),
    "role": (["--role=zoo_super"], None),
    "role without owner": (["--role=zoo_super", "-O"], None),
    "exit on error": (["--exit-on-error"], None),
    "clean": (["--clean", "--if-exists"], "everything"),
    "clean an empty database": (["--clean", "--if-exists"], None),
    "clean schema only": (["-c", "--if-exists", "-s"], "everything"),
    "strict names": (["--strict-names", "-n", "a", "-n", "b", "-n", "Odd Name"], "schemas"),
    "schema a and b": (["-n", "a", "-n", "b"], "schemas"),
    "all but one schema": (["-N", "Odd Name"], None),
    "one table of a schema": (["-n", "b", "-t", "parent"], "schemas"),
    "a table": (["-t", "scratch"], "schemas"),
    "tables": (["-t", "parent", "-t", "child", "-t", "scratch"], "schemas"),
    "a table by its odd name": (["-t", "Table; with \"quotes\""], "schemas"),
    "a sequence": (["-t", "counter"], "schemas"),
    "a function": (["-P", "quote(text)"], "schemas"),
    "an index": (["-I", "measured_place"], "pre-data"),
    "a trigger": (["-T", "late"], "pre-data"),
    "schema only of a table": (["-s", "-t", "parent"], "schemas"),
    "data only of a table": (["-a", "-t", "parent"], "pre-data"),
}
# Where pg_restore itself complains, and goes on: what it has made in the end is right all the same.
COMPLAINTS = {
    "clean": "drops primary keys of partitions before those of their parents, which is not allowed",
    "clean schema only": "the same",
    "clean an empty database": "drops something of a schema that is not there",
}
# Where firn does something else on purpose: the flags for pg_restore that have the same result, and the reason.
DIFFERENCES = {
    "a trigger": (["-T", "parent late"], "pg_restore finds no trigger by its name, for its tag begins with the table's"),
}


def source(world):
    """The zoo: (database, its dump)."""
    def make():
        server = world.server()
        server.roles("zoo_owner", "zoo_reader", "zoo_super SUPERUSER")
        db = server.fresh("zoo")
        with open(os.path.join(HERE, "zoo.sql"), encoding="utf-8") as f, server.connect(db) as c:
            c.execute(f.read())
        return db, server.dump(db)
    return world.once("zoo", make)


def archive(world, form="c"):
    server = world.server()
    db, _ = source(world)
    return world.archive(f"zoo-{form}", lambda path: server.archive(db, path, form))


def prepare(server, db, path, before):
    """The state that the flags are applied to, made by pg_restore."""
    server.fresh(db)
    if before == "schemas":
        with server.connect(db) as c:
            c.execute(BARE)
    elif before in ("schema", "schema without foreign keys"):
        server.pg_restore(db, path, "-s")
        if before != "schema":
            with server.connect(db) as c:
                c.execute("ALTER TABLE a.orders DROP CONSTRAINT orders_person_fkey")
    elif before == "pre-data":
        server.pg_restore(db, path, "--section=pre-data")
    elif before == "everything":
        server.pg_restore(db, path)


def one(world, name, jobs):
    server = world.server()
    flags, before = FLAGS[name]
    path = archive(world)
    prepare(server, "oracle", path, before)
    right = server.pg_restore("oracle", path, *DIFFERENCES.get(name, (flags,))[0], check=False)
    prepare(server, "target", path, before)
    fine = name not in COMPLAINTS
    assert (right.returncode == 0) == fine, f"pg_restore: {right.returncode} {right.stderr.decode()[-2000:]}"
    run = firn(server, "target", path, "--jobs", str(jobs), *flags, *([] if fine else ["--on-error", "continue"]))
    assert run.code == 0 or run.code == 1 and not fine, run.out[-3000:]
    dump = server.dump if run.code == 0 else server.dump_beside_journal
    same_blocks(dump("oracle"), dump("target"), " ".join(flags))


def refused(world, flags, *words):
    """Flags that make no sense together: as pg_restore, and nothing is done."""
    server = world.server()
    path = archive(world)
    server.fresh("target")
    empty = server.dump("target")
    assert server.pg_restore("target", path, *flags, check=False).returncode != 0
    firn(server, "target", path, *flags).fails(*words)
    same_blocks(empty, server.dump("target"))


def create(world):
    """--create makes the database that the archive was made of, with its properties."""
    server = world.server()
    source(world)
    with server.connect() as c:
        c.execute("DROP DATABASE IF EXISTS born")
        c.execute("CREATE DATABASE born TEMPLATE template0 CONNECTION LIMIT 17 OWNER zoo_super")
        c.execute("ALTER DATABASE born SET search_path = a, public; ALTER DATABASE born SET work_mem = '7MB'")
        c.execute("ALTER ROLE zoo_reader IN DATABASE born SET work_mem = '9MB'")
        c.execute("COMMENT ON DATABASE born IS 'made by --create'; GRANT CONNECT ON DATABASE born TO zoo_reader")
    with server.connect("born") as c:
        c.execute("CREATE TABLE public.t AS SELECT 1 AS one")
    dump = server.dump("born", "--create")
    path = world.archive("born", lambda p: server.archive("born", p, "c"))
    for flags, there in ((["--create"], False), (["--create", "--clean", "--if-exists"], True), (["-C", "-c", "--if-exists"], False)):
        with server.connect() as c:
            c.execute("DROP DATABASE born")
            if there:
                c.execute("CREATE DATABASE born")
        firn(server, "postgres", path, *flags).ok()
        same_blocks(dump, server.dump("born", "--create"), " ".join(flags))
    # It is there already: an error, and it stays as it is.
    with server.connect("born") as c:
        c.execute("CREATE TABLE public.mine ()")
    firn(server, "postgres", path, "--create").fails("42P04", "born")
    with server.connect("born") as c:
        assert c.execute("SELECT to_regclass('public.mine') IS NOT NULL").fetchone() == (True,)
        c.execute("SELECT 1")
    with server.connect() as c:
        c.execute("DROP DATABASE born")


def use_list(world):
    """--list prints what pg_restore's prints; --use-list takes a list in another order, with lines commented out."""
    server = world.server()
    path = archive(world)
    right = server.program("pg_restore", "--list", path).stdout.decode()
    run = firn(server, "", path, "--list", where=False).ok()

    def entries(text):
        return [line for line in text.splitlines() if line and not line.startswith(";")]
    same("\n".join(entries(right)).encode(), "\n".join(entries(run.out)).encode())
    lines = [line for line in entries(right) if not re.search(r" (INDEX|COMMENT|ACL|TRIGGER) ", line)]
    chosen = os.path.join(world.folder, "list")
    with open(chosen, "w", encoding="utf-8") as f:
        f.write("; a comment\n\n" + "\n".join(lines) + "\n;9999; 0 0 TABLE a nothing zoo_owner\n")
    server.fresh("oracle")
    server.pg_restore("oracle", path, "-L", chosen)
    server.fresh("target")
    firn(server, "target", path, "--use-list", chosen, "--jobs", "2").ok()
    same_blocks(server.dump("oracle"), server.dump("target"))


def dry_run(world):
    """--dry-run says what it would do, and does nothing."""
    server = world.server()
    path = archive(world)
    server.fresh("target")
    empty = server.dump("target")
    run = firn(server, "target", path, "--dry-run", "--jobs", "4").ok()
    assert re.search(r"\d", run.out), run.out
    same_blocks(empty, server.dump("target"))


def silenced(world):
    """--disable-triggers where no definitions are restored, for whatever reason: no trigger fires, and all are enabled afterwards."""
    server = world.server()
    with server.connect(server.fresh("silenced")) as c:
        c.execute("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int); CREATE TABLE c (id int);"
                  "CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'it fires'; END$$;"
                  "INSERT INTO a SELECT i, repeat(md5(i::text), 40) FROM generate_series(1, 3000) i; INSERT INTO b VALUES (1)")
        for table in "abc":
            c.execute(f"CREATE TRIGGER fires BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION fires();"
                      f"ALTER TABLE {table} DISABLE TRIGGER fires")
    whole = world.archive("silenced", lambda p: server.archive("silenced", p, "c"))
    rows = world.archive("silenced-a", lambda p: server.archive("silenced", p, "d", extra=["-a"]))
    inserts = world.archive("silenced-i", lambda p: server.archive("silenced", p, "c", extra=["--inserts"]))
    chosen = os.path.join(world.folder, "silenced-list")
    with open(chosen, "w", encoding="utf-8") as f:
        f.writelines(line + "\n" for line in server.program("pg_restore", "-l", whole).stdout.decode().splitlines() if " TABLE DATA " in line)
    for path, flags in ((rows, []), (whole, ["-a"]), (whole, ["--section=data"]), (whole, ["-L", chosen]), (inserts, ["-a"]), (rows, ["-1"])):
        found = []
        for program in ("pg_restore", "firn", "firn without"):
            # The triggers are enabled, but for that of the table without rows.
            server.fresh("target")
            server.pg_restore("target", whole, "-s")
            with server.connect("target") as c:
                c.execute("ALTER TABLE a ENABLE TRIGGER fires; ALTER TABLE b ENABLE TRIGGER fires")
                if program == "pg_restore":
                    server.pg_restore("target", path, "--disable-triggers", *flags)
                elif program == "firn":
                    jobs = [] if "-1" in flags else ["-j", "3"]
                    firn(server, "target", path, "--disable-triggers", *jobs, *flags).ok()
                else:
                    firn(server, "target", path, *flags).fails("it fires")
                    continue
                found.append((c.execute("SELECT tgrelid::regclass::text, tgenabled FROM pg_trigger ORDER BY 1").fetchall(),
                              c.execute("SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)").fetchone()))
        assert found[0] == found[1] and found[0][1] == (3000, 1), (path, flags, found)


# What triggers do to rows that are sent: more of them, none, an error; and keys that rows break.
FIRES = """
CREATE TABLE adds (i int); CREATE TABLE swallows (i int); CREATE TABLE fails (i int); CREATE TABLE parent (i int PRIMARY KEY);
CREATE TABLE refers (i int REFERENCES parent);
CREATE FUNCTION adds() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN IF new.i < 1000 THEN INSERT INTO public.adds VALUES (new.i + 1000); END IF; RETURN new; END';
CREATE FUNCTION swallows() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''it fires''; END';
"""


def silenced_inserts(world, version):
    """The same where rows are INSERT statements; without the flag what is left out is told in rows, of which a statement may have several."""
    server = world.server(version)
    names = ("adds", "swallows", "fails", "refers")
    with server.connect(server.fresh("silenced_inserts")) as c:
        c.execute(FIRES + "INSERT INTO parent SELECT generate_series(1, 50);" + "".join(f"INSERT INTO {t} SELECT i FROM parent;" for t in names))
    look = " UNION ALL ".join(f"SELECT '{t}', count(*), (SELECT count(*) FROM pg_trigger WHERE tgenabled <> 'O') FROM {t}" for t in names)
    chosen = [flag for t in names for flag in ("-t", t)]
    for form in ("--inserts", "--column-inserts", "--rows-per-insert=7"):
        path = world.archive(f"silenced{form}-{version}", lambda p, f=form: server.archive("silenced_inserts", p, "c", extra=[f]))
        for ways in (["-j1"], ["-j4"], ["-1"], ["--transaction-size=3"]):
            with server.connect(server.fresh("target")) as c:
                c.execute(FIRES + "".join(f"CREATE TRIGGER x BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}();" for t in names[:3]))
                firn(server, "target", path, "-a", "--disable-triggers", *chosen, *ways).ok()
                assert c.execute(look).fetchall() == [(t, 50, 0) for t in names], (form, ways, c.execute(look).fetchall())
                c.execute("TRUNCATE swallows; CREATE FUNCTION few() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN "
                          "CASE WHEN new.i % 7 < 3 THEN new END; END'")
                for function, taken in (("swallows", 0), ("few", 22)):
                    c.execute(f"DROP TRIGGER x ON swallows; CREATE TRIGGER x BEFORE INSERT ON swallows FOR EACH ROW EXECUTE FUNCTION {function}()")
                    run = firn(server, "target", path, "-a", "-t", "swallows", *ways).ok()
                    assert f"the table took {taken} of 50 rows" in run.out, run.out[-2000:]


def create_template(world, version):
    """--create --clean replaces a database that is a template, as pg_restore does."""
    server = world.server(version)
    with server.connect() as c:
        c.execute("CREATE DATABASE pattern TEMPLATE template0 IS_TEMPLATE true")
    path = world.archive(f"pattern-{version}", lambda p: server.archive("pattern", p, "c"))
    dump = server.dump("pattern", "--create")
    for flags in (["-C", "-c"], ["-C", "-c", "--if-exists"], ["-C", "-c", "--transaction-size=2"]):
        firn(server, "postgres", path, *flags).ok()
        same_blocks(dump, server.dump("pattern", "--create"), " ".join(flags))
    # Only superusers may write to pg_database, which is of no use where the database is no template.
    server.roles("pattern_maker LOGIN CREATEDB")
    with server.connect() as c:
        c.execute("ALTER DATABASE pattern IS_TEMPLATE false")
        c.execute("ALTER DATABASE pattern OWNER TO pattern_maker")
    by = ["-C", "-c", "-O", "-U", "pattern_maker"]
    firn(server, "postgres", path, *by).ok()
    run = firn(server, "postgres", path, *by).fails("cannot drop a template database")
    assert run.code == 1, run.out
    with server.connect() as c:
        c.execute("ALTER DATABASE pattern IS_TEMPLATE false")
        c.execute("DROP DATABASE pattern")


def create_encoding(world):
    """The database that --create makes, finds and drops has the archive's name, whatever encoding the environment is for."""
    server = world.server()
    names = ("dé", "dÃ©")

    def there():
        with server.connect() as c:
            return [name for name, in c.execute("SELECT datname FROM pg_database WHERE datname = ANY (%s)", (list(names),))]
    server.fresh(names[0])
    path = world.archive("accented", lambda p: server.archive(names[0], p, "c"))
    for env in ({"PGCLIENTENCODING": "LATIN1"}, {"PGOPTIONS": "-c client_encoding=LATIN1"}):
        with server.connect() as c:
            c.execute('DROP DATABASE "dé"')
        firn(server, "postgres", path, "-C", env=env).ok()
        assert there() == [names[0]], there()
        # What its name would be, read as LATIN1, is somebody else's.
        server.fresh(names[1])
        firn(server, "postgres", path, "-C", "-c", env=env).ok()
        assert sorted(there()) == sorted(names), there()
        with server.connect() as c:
            c.execute('DROP DATABASE "dÃ©"')
    with server.connect() as c:
        c.execute('DROP DATABASE "dé"')


def clean_domains(world, version):
    """A check of a domain that was added NOT VALID is an entry of its own; --if-exists drops it as pg_restore does."""
    server = world.server(version)
    db = server.fresh("domains")
    with server.connect(db) as c:
        c.execute("CREATE DOMAIN d AS int; CREATE TABLE t (x d); INSERT INTO t VALUES (-1); ALTER DOMAIN d ADD CONSTRAINT c CHECK (VALUE > 0) NOT VALID")
    path = world.archive(f"domains-{version}", lambda p: server.archive(db, p, "c"))
    dump = server.dump(db)
    for flags in (["-c", "--if-exists", "--section=post-data"], ["-c", "--if-exists", "-e"], ["-c", "-e"]):
        server.fresh("target")
        server.pg_restore("target", path)
        run = firn(server, "target", path, *flags).ok()
        assert "syntax error" not in run.out, run.out
        same_blocks(dump, server.dump("target"), " ".join(flags))


def nobody_reads(world):
    """Who has stopped reading what is said changes nothing of the work or of the exit code."""
    server = world.server()
    db = server.fresh("unread")
    with server.connect(db) as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS x; CREATE TABLE u ()")
    path = world.archive("unread", lambda p: server.archive(db, p, "c"))
    for args, before, code in ((["/nowhere/at/all"], None, 1), (["--nonsense"], None, 2), ([path], None, 0), (["-l", path], None, 0),
                               (["--on-error=continue", path], "CREATE TABLE u (a int)", 1), (["-c", "--if-exists", "--transaction-size=5", path], None, 0)):
        server.fresh("target")
        if before:
            with server.connect("target") as c:
                c.execute(before)
        reader, writer = os.pipe()
        os.close(reader)
        try:
            where = [] if "-l" in args else server.where("target")
            run = subprocess.run([*program(), *where, *args], stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, timeout=120)
        finally:
            os.close(writer)
        assert run.returncode == code, f"{args}: exit code {run.returncode} instead of {code}"
        if path in args and "-l" not in args:
            with server.connect("target") as c:
                assert c.execute("SELECT x FROM t").fetchall() == [(1,)], args


def cases(world):
    for name in FLAGS:
        yield f"flags {name}", lambda n=name: one(world, n, 3)
    yield "flags create", lambda: create(world)
    yield "flags create encoding", lambda: create_encoding(world)
    yield "flags nobody reads", lambda: nobody_reads(world)
    for version in (OLD, NEW):
        yield f"flags create template {version}", lambda v=version: create_template(world, v)
        yield f"flags clean domains {version}", lambda v=version: clean_domains(world, v)
    yield "flags list", lambda: use_list(world)
    yield "flags silenced", lambda: silenced(world)
    for version in (OLD, NEW):
        yield f"flags silenced inserts {version}", lambda v=version: silenced_inserts(world, v)
    yield "flags dry run", lambda: dry_run(world)
    for flags, words in ((["-s", "-a"], ["schema-only", "data-only"]), (["--if-exists"], ["--clean"]),
                         (["-c", "-a"], ["clean", "data-only"]), (["--section=middle"], ["middle"]), (["--jobs", "0"], ["jobs"])):
        yield f"flags refused {' '.join(flags)}", lambda f=flags, w=words: refused(world, f, *w)
