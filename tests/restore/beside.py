"""The journal, and comparing at the end, beside what databases have: publications, event triggers, policies, tables that are not logged."""
import os
import shutil
import signal
import threading

from harness import proxy as px
from harness.proxy import Proxy
from restore import faults, toc
from restore.common import NEW, OLD, firn

PLAIN = "CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 10);"
ALL_TABLES = PLAIN + "CREATE PUBLICATION everything FOR ALL TABLES;"
NO_DROPS = PLAIN + """
CREATE FUNCTION no_drops() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'nothing is dropped here'; END$$;
CREATE EVENT TRIGGER no_drops ON sql_drop EXECUTE FUNCTION no_drops();"""
# Whatever the session's role of replication is, and whatever is done.
ALWAYS = NO_DROPS + """
CREATE FUNCTION counts() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN
    IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity ~ 'firn_restore') THEN RAISE 'not this'; END IF; END$$;
CREATE EVENT TRIGGER counts ON ddl_command_end EXECUTE FUNCTION counts();
ALTER EVENT TRIGGER no_drops ENABLE ALWAYS; ALTER EVENT TRIGGER counts ENABLE ALWAYS;"""
# The numbers of an enum's values are others in each database, and with them the partition that a hash gives.
HASHED = "CREATE TYPE e AS ENUM (" + ", ".join(f"'v{i}'" for i in range(40)) + "); CREATE TABLE h (k e, v int) PARTITION BY HASH (k);" + "".join(
    f"CREATE TABLE h{i} PARTITION OF h FOR VALUES WITH (MODULUS 8, REMAINDER {i});" for i in range(8)) + (
    "INSERT INTO h SELECT ('v' || i % 40)::e, i FROM generate_series(1, 400) i;")
HIDDEN = PLAIN + "ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t FORCE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (i > 5);"
# The tags of the keys are "t b fk" and "x b fk", and they depend on two tables each.
SPACES = """
CREATE TABLE "t b" (i int PRIMARY KEY); CREATE TABLE t (i int UNIQUE); ALTER TABLE t ADD CONSTRAINT "b fk" FOREIGN KEY (i) REFERENCES "t b";
CREATE TABLE x (i int UNIQUE); CREATE TABLE "x b" (i int PRIMARY KEY); ALTER TABLE x ADD CONSTRAINT "b fk" FOREIGN KEY (i) REFERENCES "x b";
CREATE VIEW v AS SELECT i FROM "t b" GROUP BY i;"""
TWO_VIEWS = PLAIN + "CREATE VIEW seen AS SELECT i FROM t;"
UNLOGGED = """
CREATE UNLOGGED TABLE a (id int PRIMARY KEY, next int);
CREATE UNLOGGED TABLE b (id serial PRIMARY KEY, seen int DEFAULT 0);
ALTER TABLE a ADD FOREIGN KEY (next) REFERENCES b;
CREATE TABLE noted (id int);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.noted VALUES (NEW.id); NEW.seen := 1; RETURN NEW; END$$;
INSERT INTO b (id) SELECT nextval('b_id_seq') FROM generate_series(1, 20);
INSERT INTO a SELECT i, i FROM generate_series(1, 20) i;
CREATE TRIGGER note BEFORE INSERT ON b FOR EACH ROW EXECUTE FUNCTION note();"""
# Triggers that fire for replicas, too, and a rule, which INSERTs obey.
MORE_UNLOGGED = UNLOGGED + """
CREATE TRIGGER always AFTER INSERT ON b FOR EACH ROW EXECUTE FUNCTION note(); ALTER TABLE b ENABLE ALWAYS TRIGGER always;
CREATE TRIGGER replica AFTER INSERT ON b FOR EACH ROW EXECUTE FUNCTION note(); ALTER TABLE b ENABLE REPLICA TRIGGER replica;
CREATE TRIGGER off BEFORE INSERT ON b FOR EACH ROW EXECUTE FUNCTION note(); ALTER TABLE b DISABLE TRIGGER off;
CREATE UNLOGGED TABLE r AS SELECT 1 AS i; CREATE RULE nothing AS ON INSERT TO r DO INSTEAD NOTHING; ALTER TABLE r ENABLE ALWAYS RULE nothing;
CREATE UNLOGGED TABLE s AS SELECT 1 AS i; CREATE RULE nothing AS ON INSERT TO s DO INSTEAD NOTHING;"""
MORE_CHECKS = ("SELECT count(*) FROM r", "SELECT count(*) FROM s",
               "SELECT array_agg(tgname::text || tgenabled::text ORDER BY tgname) FROM pg_trigger WHERE NOT tgisinternal",
               "SELECT array_agg(ev_class::regclass::text || ev_enabled::text ORDER BY ev_class::regclass::text) FROM pg_rewrite WHERE ev_type = '3'")
CHECKS = ("SELECT count(*), sum(seen) FROM b", "SELECT count(*) FROM a", "SELECT count(*) FROM noted", "SELECT last_value, is_called FROM b_id_seq")


def archive(server, world, name, sql, form="c", extra=()):
    def make(path):
        db = server.fresh("beside")
        with server.connect(db) as c:
            c.execute(sql)
        server.archive(db, path, form, "0", extra=extra)
        # Its publication or trigger is in the way of nobody else.
        server.fresh(db)
        return path
    return world.archive(f"beside-{name}", make)


def complete(server, run):
    assert "restore complete" in run.ok().out, run.out
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'firn_restore'").fetchone() == (0,), "the journal is there"


def simple(world, name, sql, args=(), extra=(), before=None):
    server = world.server()
    path = archive(server, world, name, sql, extra=extra)
    for how in (["-j", "2"], ["-1"], ["--transaction-size=3"]):
        with server.connect(server.fresh("target")) as c:
            if before:
                c.execute(before)
        run = firn(server, "target", path, *how, *args)
        complete(server, run)
        assert "could not be compared" not in run.out, run.out


def always(world, version):
    """Event triggers that are ENABLE ALWAYS, in the archive and in the database before, do not see the journal, and stay as they are."""
    server = world.server(version)
    path = archive(server, world, f"always-{version}", ALWAYS)
    for before in (None, ALWAYS.removeprefix(PLAIN)):
        with server.connect(server.fresh("target")) as c:
            if before:
                c.execute(before)
        # What is there already fails: then the journal stays, for --resume.
        run = firn(server, "target", path, "-j", "2", *(["--on-error=continue"] if before else []))
        assert run.code == (1 if before else 0), run.out[-3000:]
        with server.connect("target") as c:
            found = c.execute("SELECT evtname, evtenabled::text FROM pg_event_trigger ORDER BY 1").fetchall()
            assert found == [("counts", "A"), ("no_drops", "A")], found
            assert c.execute("SELECT count(*) FROM t").fetchone() == (10,)
            assert before or c.execute("SELECT to_regnamespace('firn_restore')").fetchone() == (None,)


def published(world):
    """Also where the publication is there already, and sessions are lost or shut out."""
    simple(world, "published", ALL_TABLES)
    server = world.server()
    path = archive(server, world, "plain", PLAIN)
    with server.connect(server.fresh("target")) as c:
        c.execute("CREATE PUBLICATION everything FOR ALL TABLES; CREATE TABLE t ()")
    firn(server, "target", path, "-j", "1", "--on-error=continue").fails("already exists")
    with server.connect("target") as c:
        c.execute("DROP TABLE t")
    complete(server, firn(server, "target", path, "-j", "1", "--resume"))


def role(world, server):
    with server.connect() as c:
        c.execute("DO $$BEGIN CREATE ROLE beside_role; EXCEPTION WHEN duplicate_object THEN NULL; END$$")


def hidden(world):
    role(world, world.server())
    simple(world, "hidden", HIDDEN, ("-O", "--role=beside_role", "--enable-row-security"),
           before="GRANT CREATE ON DATABASE target TO beside_role; GRANT CREATE ON SCHEMA public TO beside_role")


def old_view(world):
    """As pg_dump until 9.6 wrote views that need a constraint: a table first, which its rule makes a view."""
    server = world.server()
    path = archive(server, world, "view", TWO_VIEWS, "d")

    def change(entries):
        view = next(e for e in entries if e["desc"] == b"VIEW")
        rule = dict(view, id=max(e["id"] for e in entries) + 1, desc=b"RULE", tag=b"seen _RETURN", needs=[view["id"], *view["needs"]],
                    section=4, drop=b"", defn=b'CREATE RULE "_RETURN" AS ON SELECT TO public.seen DO INSTEAD SELECT i FROM public.t;\n')
        view.update(desc=b"TABLE", defn=b"CREATE TABLE public.seen (i integer);\n", drop=b"DROP TABLE public.seen;\n", needs=[])
        return [*entries, rule]
    changed = toc.changed(path, path + "-changed", change)
    server.fresh("target")
    complete(server, firn(server, "target", changed, "-j", "1"))


def silent(world):
    """With --role: a session of which the server does not know that it was lost is ended all the same."""
    server = world.server()
    role(world, server)
    path = archive(server, world, "plain", PLAIN)
    with server.connect(server.fresh("target")) as c:
        c.execute("GRANT CREATE ON DATABASE target TO beside_role; GRANT CREATE ON SCHEMA public TO beside_role")
    ended = threading.Event()

    def hold(m):
        # The server waits for the next message, for as long as this does not return.
        m.connection.forward(m)
        m.connection.settle()
        m.connection.cut_client()
        ended.wait(px.PATIENCE * 2)
    with Proxy(os.path.join(server.root, "silent"), server.root) as proxy:
        proxy.arm(lambda m: hold if b"COPY" in m.sql else None)
        try:
            run = firn(server, "target", path, *proxy.where("target"), "-j", "1", "-O", "--role=beside_role", where=False, patience=px.PATIENCE)
        finally:
            ended.set()
        assert proxy.fired.is_set()
    shutil.rmtree(os.path.join(server.root, "silent"), ignore_errors=True)
    complete(server, run)


def crashed(world, at, more=False, role_too=False):
    """The server crashes when all is done, or all is compared: what is not logged comes again, as it was, whoever restores."""
    server = faults.server(world, "on")
    path = archive(server, world, f"unlogged-{more}", MORE_UNLOGGED if more else UNLOGGED, extra=("--inserts",) if more else ())
    checks, args = CHECKS + (MORE_CHECKS if more else ()), ("-O", "--role=beside_role") if role_too else ()
    if role_too:
        role(world, server)
    found = []
    for fault in (False, True):
        server.fresh("target")
        if role_too:
            with server.connect("target") as c:
                c.execute("GRANT CREATE ON DATABASE target TO beside_role; GRANT CREATE ON SCHEMA public TO beside_role")
        with Proxy(os.path.join(server.root, "crashed"), server.root) as proxy:
            def crash(m):
                server.stop("immediate")
                server.start()
            proxy.arm(px.matching(at, px.call(crash)) if fault else None)
            # ANALYZE has connections of its own, which would notice.
            run = firn(server, "target", path, *proxy.where("target"), "-j", "1", "--no-analyze", *args, where=False, patience=faults.LIMIT)
            assert proxy.fired.is_set() == fault
        shutil.rmtree(os.path.join(server.root, "crashed"), ignore_errors=True)
        complete(server, run)
        with server.connect("target") as c:
            found.append([c.execute(sql).fetchone() for sql in checks])
    assert found[0] == found[1], f"undisturbed {found[0]}, crashed {found[1]}"


def crashed_long(world):
    """What a crash has emptied is found by names that the server has cut, too."""
    server = faults.server(world, "on")
    table, sequence = "é" * 40, "ß" * 40

    def make(path):
        with server.connect() as c:
            c.execute("DROP DATABASE IF EXISTS beside_long")
            c.execute("CREATE DATABASE beside_long TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        with server.connect("beside_long") as c:
            c.execute(f'CREATE UNLOGGED TABLE "{table}" AS SELECT generate_series(1, 20) AS i; CREATE UNLOGGED SEQUENCE "{sequence}"; SELECT setval(\'"{sequence}"\', 7)')
        return server.archive("beside_long", path, "c")
    path = world.archive("beside-crash-long", make)
    server.fresh("target")
    with Proxy(os.path.join(server.root, "crashed"), server.root) as proxy:
        def crash(m):
            server.stop("immediate")
            server.start()
        proxy.arm(px.matching(rb"^SELECT n, wrong FROM", px.call(crash)))
        run = firn(server, "target", path, *proxy.where("target"), "-j", "1", "--no-analyze", where=False, patience=faults.LIMIT)
        assert proxy.fired.is_set()
    shutil.rmtree(os.path.join(server.root, "crashed"), ignore_errors=True)
    complete(server, run)
    with server.connect("target") as c:
        found = c.execute(f'SELECT (SELECT count(*) FROM "{table[:31]}"), (SELECT last_value FROM "{sequence[:31]}")').fetchone()
        assert found == (20, 7), found


def crashed_last(world, name, sql, told, later=None):
    """The server crashes when it has removed the journal and not said so. What it has emptied and set back is told, and nothing else.
    `later`: it crashes only when the program has connected once more and sends this."""
    server = faults.server(world, "on")
    path = archive(server, world, f"last-{name}", sql)
    server.fresh("target")
    with Proxy(os.path.join(server.root, "crashed"), server.root) as proxy:
        def crash(m):
            if not later or b"DROP SCHEMA" in m.sql:
                m.connection.done_unheard(m)
            else:
                m.connection.cut_client()
            if not later or b"DROP SCHEMA" not in m.sql:
                # The program may be done with the server before whoever has started it knows that it runs.
                crashes.append(m.sql)
                server.stop("immediate")
                server.start()
                runs.set()
            else:
                proxy.arm(px.matching(later, crash))
            raise px.Closed
        crashes, runs = [], threading.Event()
        proxy.arm(px.matching(rb"DROP SCHEMA firn_restore", crash))
        run = firn(server, "target", path, *proxy.where("target"), "-j", "1", "--no-analyze", where=False, patience=faults.LIMIT)
        assert len(crashes) == 1, crashes
        assert runs.wait(px.PATIENCE), "the server does not start again"
    shutil.rmtree(os.path.join(server.root, "crashed"), ignore_errors=True)
    if not told:
        complete(server, run)
        return
    assert run.code == 3 and faults.EMPTIED in run.out and "restore complete" not in run.out, f"exit code {run.code}:\n{run.out[-3000:]}"
    assert f"Lost are: {told}." in run.out, run.out[-3000:]


def canceled(world):
    """Ctrl-C ends the counting of rows that takes long, and that is done by --resume."""
    server = world.server()
    path = archive(server, world, "plain", PLAIN)
    server.fresh("target")
    other = server.connect("target", autocommit=False)

    def lock(m):
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
    with Proxy(os.path.join(server.root, "canceled"), server.root) as proxy:
        proxy.arm(px.matching(rb"count\(\*\) FROM ONLY", px.call(lock)))
        child = firn(server, "target", path, *proxy.where("target"), "-j", "1", where=False, wait=False)
        with server.connect() as c:
            child.until(c, "SELECT 1 FROM pg_stat_activity WHERE datname = 'target' AND wait_event_type = 'Lock'")
        child.process.send_signal(signal.SIGINT)
        try:
            run = child.wait(px.PATIENCE)
        finally:
            other.rollback()
            other.close()
    shutil.rmtree(os.path.join(server.root, "canceled"), ignore_errors=True)
    assert run.code == 130, f"exit code {run.code}:\n{run.out}"
    complete(server, firn(server, "target", path, "-j", "1", "--resume"))


def swapped(world):
    """Somebody has put a view in a table's place when it is counted: its functions do not run as the role that restores."""
    server = world.server()
    path = archive(server, world, "plain", PLAIN)
    server.fresh("target")

    def swap(m):
        with server.connect("target") as c:
            c.execute("ALTER TABLE t RENAME TO away; CREATE TABLE ran (who text);"
                      "CREATE FUNCTION trap() RETURNS int LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.ran VALUES (current_user); RETURN 1; END$$;"
                      "CREATE VIEW t AS SELECT public.trap() AS i FROM generate_series(1, 10)")
    with Proxy(os.path.join(server.root, "swapped"), server.root) as proxy:
        proxy.arm(px.matching(rb"count\(\*\) FROM ONLY", px.call(swap)))
        run = firn(server, "target", path, *proxy.where("target"), "-j", "1", where=False, patience=px.PATIENCE)
        assert proxy.fired.is_set()
    shutil.rmtree(os.path.join(server.root, "swapped"), ignore_errors=True)
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM ran").fetchone() == (0,), "the view's function ran"
    assert run.code == 3 and "is restricted" in run.out, f"exit code {run.code}:\n{run.out}"


def warned(world):
    """What the server warns of is shown, as pg_restore shows it with -v."""
    server = world.server()
    path = archive(server, world, "warned", "REVOKE ALL ON SCHEMA public FROM PUBLIC;" + PLAIN)
    role(world, server)
    for db in ("oracle", "target"):
        with server.connect(server.fresh(db)) as c:
            c.execute(f"GRANT CREATE ON DATABASE {db} TO beside_role; GRANT CREATE, USAGE ON SCHEMA public TO beside_role")
    oracle = server.pg_restore("oracle", path, "-v", "-O", "--role=beside_role", check=False).stderr.decode()
    run = firn(server, "target", path, "-j", "1", "-O", "--role=beside_role", "--on-error=continue")
    warning = "WARNING:  no privileges could be revoked for \"public\""
    assert warning in oracle, oracle
    assert warning in run.out, run.out


def strings(world):
    """Large objects, and names with backslashes, of a database whose plain strings have escapes."""
    server = world.server()
    db = server.fresh("beside")
    with server.connect() as c:
        c.execute(f"ALTER DATABASE {db} SET standard_conforming_strings = off; ALTER DATABASE {db} SET escape_string_warning = off")
    with server.connect(db) as c:
        c.execute("SELECT lo_from_bytea(4711, E'Hello, \\\\\\\\x41, this is a text'::bytea)")
        c.execute('CREATE TABLE "back\\slash" (i int PRIMARY KEY); INSERT INTO "back\\slash" VALUES (1)')
        wanted = c.execute("SELECT lo_get(4711)").fetchone()
    path = world.archive("beside-strings", lambda p: server.archive(db, p, "c"))
    server.fresh(db)
    server.fresh("target")
    complete(server, firn(server, "target", path, "-j", "2"))
    with server.connect("target") as c:
        assert c.execute("SELECT lo_get(4711)").fetchone() == wanted
        assert c.execute('SELECT i FROM "back\\slash"').fetchone() == (1,)
    with server.connect() as c:
        c.execute(f"ALTER DATABASE {db} RESET ALL")


def idle(world):
    """The program's own connection, which waits for the others, is not ended for being idle."""
    server = world.server()
    path = archive(server, world, "idle", PLAIN + "CREATE FUNCTION slow(int) RETURNS bool LANGUAGE sql STABLE AS 'SELECT pg_sleep(1.5) IS NOT NULL';"
                   "ALTER TABLE t ADD CHECK (i < 9 OR slow(i))")
    server.fresh("target")
    with server.connect() as c:
        c.execute("ALTER DATABASE target SET idle_session_timeout = '200ms'")
    run = firn(server, "target", path, "-j", "1")
    complete(server, run)
    assert "was lost" not in run.out, run.out


def other_options(world):
    """--resume with other options than the restore was begun with is refused, with their names; with the same it goes on."""
    server = world.server()
    path = archive(server, world, "options", PLAIN + "CREATE TABLE u (i int); INSERT INTO u VALUES (1), (1)")
    with server.connect(server.fresh("target")) as c:
        c.execute("CREATE TABLE u (i int)")
    run = firn(server, "target", path, "-j", "1").fails("--resume")
    for flags, name in (("-O",), "no_owner"), (("--no-tablespaces",), "no_tablespaces"), (("-s",), "schema_only"), (("-t", "t"), "tables"), (
            ("--disable-rule=all",), "partition_of"), (("--enable-row-security",), "row_security"), (("--strict-names",), "strict_names"), (
            ("-c", "--if-exists"), "if_exists"):
        run = firn(server, "target", path, "-j", "1", "--resume", *flags).fails("begun with other options", name)
        assert run.code == 2, run.out
    with server.connect("target") as c:
        c.execute("DROP TABLE u")
    complete(server, firn(server, "target", path, "-j", "2", "--on-error=continue", "--no-analyze", "--resume"))


def cases(world):
    yield "beside warnings", lambda: warned(world)
    yield "beside strings with escapes", lambda: strings(world)
    yield "beside idle sessions", lambda: idle(world)
    yield "beside other options", lambda: other_options(world)
    yield "beside swapped table", lambda: swapped(world)
    yield "beside publication of all tables", lambda: published(world)
    yield "beside event trigger", lambda: simple(world, "drops", NO_DROPS)
    for version in (OLD, NEW):
        yield f"beside event triggers always {version}", lambda v=version: always(world, v)
    yield "beside inserts astray", lambda: simple(world, "hashed", HASHED, extra=("--load-via-partition-root", "--inserts"))
    yield "beside hidden rows", lambda: hidden(world)
    yield "beside names with spaces", lambda: simple(world, "spaces", SPACES)
    yield "beside old view", lambda: old_view(world)
    yield "beside silent session", lambda: silent(world)
    yield "beside canceled counting", lambda: canceled(world)
    # The first is what the end begins with when all is recorded, the second what it begins with when all is compared.
    yield "beside crash comparing", lambda: crashed(world, rb"^SELECT n, wrong FROM")
    for who in (False, True):
        yield f"beside crash with triggers{' by a role' if who else ''}", lambda w=who: crashed(world, rb"^SELECT n, wrong FROM", True, w)
    yield "beside crash with long names", lambda: crashed_long(world)
    untouched = "CREATE UNLOGGED SEQUENCE untouched START 5; CREATE UNLOGGED SEQUENCE downwards INCREMENT -1;"
    for name, sql, told in (("untouched", untouched, None),
                            ("sequences", untouched + "CREATE UNLOGGED SEQUENCE q; SELECT setval('q', 500); CREATE UNLOGGED SEQUENCE r; SELECT setval('r', 7, false);",
                             "SEQUENCE SET public.q, SEQUENCE SET public.r"),
                            ("serial", "CREATE UNLOGGED TABLE t (i serial); INSERT INTO t DEFAULT VALUES; INSERT INTO t DEFAULT VALUES;",
                             "SEQUENCE SET public.t_i_seq, TABLE DATA public.t")):
        yield f"beside crash at last {name}", lambda a=(name, sql, told): crashed_last(world, *a)
    # The last of the three cases, with rows.
    for when, sent in (("locking", rb"pg_try_advisory_lock"), ("looking", rb"nspname = 'firn_restore'"), ("comparing", rb"relpersistence")):
        yield f"beside crash after last {when}", lambda a=(name, sql, told, sent): crashed_last(world, *a)
    yield "beside crash compared", lambda: crashed(world, rb"^SELECT 1$")
