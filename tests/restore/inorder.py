"""-1 and --transaction-size: pg_restore's own order on one connection."""
import os
import re
import shutil
import signal
import time

from harness import proxy as px
from harness.proxy import Proxy
from restore import common, flags
from restore.common import NEW, OLD, firn, same, same_blocks
from restore.flags import prepare

# Flags, what is in the database before (as flags.prepare makes it), whether pg_restore itself gets there.
CASES = [
    ("everything", ["-1"], None), ("size 1", ["--transaction-size=1"], None), ("size 7", ["--transaction-size=7"], None),
    ("size of all", ["--transaction-size=1000000"], None), ("schema only", ["-1", "-s"], None),
    ("data only", ["-1", "-a"], "schema without foreign keys"), ("data only without triggers", ["-1", "-a", "--disable-triggers"], "schema"),
    ("superuser", ["--transaction-size=3", "-a", "--disable-triggers", "-S", "zoo_super"], "schema"),
    ("neither owner nor privileges", ["-1", "-O", "-x"], None),
    ("session authorization", ["-1", "--use-set-session-authorization"], None),
    ("role", ["-1", "--role=zoo_super"], None), ("a table", ["-1", "-n", "b", "-t", "parent"], "schemas"),
    ("sections", ["-1", "--section=pre-data", "--section=data"], None),
    ("no tablespaces", ["--transaction-size=20", "--no-tablespaces", "--no-table-access-method"], None),
]


def one(world, more, before, form):
    """What is there in the end is what pg_restore makes of the same flags, journal and all else not there."""
    server = world.server()
    path = flags.archive(world, form)
    # Version 15 has no --transaction-size: one transaction comes to the same.
    known = ["-1" if flag.startswith("--transaction-size") else flag for flag in more]
    prepare(server, "oracle", path, before)
    right = server.pg_restore("oracle", path, *known, check=False)
    prepare(server, "target", path, before)
    run = firn(server, "target", path, *more)
    assert run.code == right.returncode, f"pg_restore {right.returncode} {right.stderr.decode()[-2000:]}\nfirn {run.out[-2000:]}"
    same_blocks(server.dump("oracle"), server.dump("target"), " ".join(more))


def newest(world):
    """Into 18, against pg_restore 18 with the same flags."""
    server = world.server(NEW)
    server.roles("zoo_owner", "zoo_reader", "zoo_super")
    for form in "cd":
        path = flags.archive(world, form)
        for more in (["-1"], ["--transaction-size=5"], ["--transaction-size=5", "-O"]):
            server.fresh("oracle")
            right = server.pg_restore("oracle", path, *more, check=False)
            server.fresh("target")
            run = firn(server, "target", path, *more)
            assert run.code == right.returncode, f"pg_restore {right.stderr.decode()[-2000:]}\nfirn {run.out[-2000:]}"
            same_blocks(server.dump("oracle"), server.dump("target"), " ".join(more))


def source(world):
    """A table, rows, and a second table whose rows break a constraint that the target has."""
    server = world.server()
    with server.connect(server.fresh("halves")) as c:
        c.execute("CREATE TABLE a AS SELECT i FROM generate_series(1, 1000) i; CREATE TABLE b AS SELECT i FROM generate_series(1, 1000) i")
        c.execute("SELECT lo_from_bytea(0, 'large')")
    return world.archive("halves", lambda p: server.archive("halves", p, "c"))


def all_or_nothing(world):
    """An error in the middle: nothing is left of one transaction; of several, what was committed."""
    server = world.server()
    path = world.once("halves", lambda: source(world))
    for more, left in ((["-1"], 0), (["--transaction-size=1"], 1)):
        with server.connect(server.fresh("target")) as c:
            c.execute("CREATE SCHEMA x; CREATE TABLE public.b (i int CHECK (i <= 500))")
        before = server.dump("target")
        run = firn(server, "target", path, *more)
        run.fails("could not restore", '"b" already exists')
        assert run.code == 1 and "--resume" not in run.out, run.out
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM pg_class WHERE relname = 'a'").fetchone() == (left,)
        # Said where it is so, and only there.
        assert ("Nothing was changed" in run.out) == (not left) and "NOT complete" in run.out, run.out
        if not left:
            same(before, server.dump("target"))
        # Rows that are refused: the COPY is named.
        with server.connect(server.fresh("target")) as c:
            c.execute("CREATE TABLE public.a (i int); CREATE TABLE public.b (i int CHECK (i <= 500))")
        run = firn(server, "target", path, *more, "-a")
        run.fails("b_i_check", "TABLE DATA", "COPY public.b")
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM a").fetchone() == (1000 * left,)
            assert c.execute("SELECT count(*) FROM b").fetchone() == (0,)


def created(world):
    """--create with --transaction-size makes the database, in the middle of which it connects to it."""
    server = world.server()
    path = world.once("halves", lambda: source(world))
    dump = server.dump("halves", "--create")
    for more in ([], ["-c", "--if-exists"]):
        if not more:
            with server.connect() as c:
                c.execute("DROP DATABASE halves")
        firn(server, "postgres", path, "-C", "--transaction-size=2", *more).ok()
        same_blocks(dump, server.dump("halves", "--create"), " ".join(more))


def odd_database(world):
    """--create of a database whose name looks like a connection string, with and without -d."""
    server = world.server()
    with server.connect() as c:
        c.execute('DROP DATABASE IF EXISTS "a=b c"')
        c.execute('CREATE DATABASE "a=b c" TEMPLATE template0')
    with server.connect("a=b c") as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS a")
    path = world.archive("a=b", lambda p: server.archive("dbname='a=b c'", p, "c"))
    for more in (["--transaction-size=3"], ["-j", "2"]):
        for where in (True, False):
            with server.connect() as c:
                c.execute('DROP DATABASE "a=b c"')
            env = None if where else {"PGHOST": server.root, "PGPORT": str(server.port), "PGUSER": "postgres", "PGDATABASE": "postgres"}
            firn(server, "postgres", path, "-C", *more, where=where, env=env).ok()
            with server.connect("a=b c") as c:
                assert c.execute("SELECT a FROM t").fetchall() == [(1,)]


def stopped(world):
    """Ctrl-C while a statement waits: it ends soon, and nothing is left."""
    server = world.server()
    path = world.once("halves", lambda: source(world))
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE TABLE public.a (i int); CREATE TABLE public.b (i int)")
        before = server.dump("target")
        c.execute("BEGIN; LOCK TABLE public.b IN ACCESS EXCLUSIVE MODE")
        child = firn(server, "target", path, "-1", "-a", wait=False)
        with server.connect() as other:
            child.until(other, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'COPY%'")
        child.process.send_signal(signal.SIGINT)
        run = child.wait()
        assert run.code == 130, run.out
        c.execute("ROLLBACK")
    same(before, server.dump("target"))


def lost(world):
    """The connection goes while the transaction commits: nobody says that nothing was changed."""
    server = world.server()
    path = world.once("halves", lambda: source(world))
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE TABLE public.a (i int); CREATE TABLE public.b (i int)")
        c.execute("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(600); RETURN NULL; END $$")
        c.execute("CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON a DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()")
        child = firn(server, "target", path, "-1", "-a", "--log-format=json", wait=False)
        child.until(c, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COMMIT%' AND wait_event = 'PgSleep'")
        run = child.wait()
        assert run.code == 1 and "not known" in run.out and '"unchanged"' not in run.out, run.out


def stopped_committing(world):
    """Ctrl-C, and then the answer to COMMIT is lost: it has committed, and nobody says that nothing was changed."""
    server = world.server()
    path = world.once("halves", lambda: source(world))
    for more in (["-1"], ["--transaction-size=1000000"]):
        server.fresh("target")
        folder = os.path.join(server.root, "committing")
        with Proxy(folder, server.root) as proxy:
            children = []

            def stop(m):
                children[0].process.send_signal(signal.SIGINT)
                while "stopping" not in children[0].read():
                    time.sleep(0.01)
                px.cut_after(m)
            proxy.arm(px.matching(rb"^COMMIT", stop))
            children.append(firn(server, "target", path, *proxy.where("target"), *more, "--log-format=json", where=False, wait=False))
            run = children[0].wait()
            assert not proxy.trouble, proxy.trouble
        shutil.rmtree(folder, ignore_errors=True)
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM b").fetchone() == (1000,), run.out
        assert run.code == 130 and "not known" in run.out and '"unchanged"' not in run.out, (run.code, run.out)


def stopped_analyzing(world):
    """Ctrl-C while tables are analyzed, when all is there: nobody is told of a --resume that there is not."""
    server = world.server()
    path = world.once("halves", lambda: source(world))
    for more in (["-1"], ["--transaction-size=7"]):
        server.fresh("target")
        folder = os.path.join(server.root, "analyzing")
        with Proxy(folder, server.root) as proxy, server.connect("target", autocommit=False) as other:
            proxy.arm(px.matching(rb"^ANALYZE", px.call(lambda _: other.execute("LOCK TABLE a, b IN SHARE UPDATE EXCLUSIVE MODE"))))
            child = firn(server, "target", path, *proxy.where("target"), *more, "-j1", "--log-format=json", where=False, wait=False)
            with server.connect() as c:
                child.until(c, "SELECT 1 FROM pg_stat_activity WHERE datname = 'target' AND wait_event_type = 'Lock' AND query LIKE 'ANALYZE%'")
            child.process.send_signal(signal.SIGINT)
            run = child.wait(px.PATIENCE)
            other.rollback()
        shutil.rmtree(folder, ignore_errors=True)
        assert run.code == 130 and "run ANALYZE yourself" in run.out and "--resume" not in run.out, (run.code, run.out)


def compared(world):
    """What is there is compared with what was restored: a difference undoes one transaction, and is exit code 3; of several it is told."""
    server = world.server()
    with server.connect() as c:
        c.execute("DO $$BEGIN CREATE ROLE inorder_other; EXCEPTION WHEN duplicate_object THEN NULL; END$$")
    with server.connect(server.fresh("inorder_compared")) as c:
        c.execute("CREATE TABLE a AS SELECT i FROM generate_series(1, 1000) i; CREATE TABLE b AS SELECT 1 AS i; CREATE INDEX late ON a (i)")
    path = world.archive("inorder-compared", lambda p: server.archive("inorder_compared", p, "c"))
    # What somebody in the database does when the index is made: rows that go, another owner, an object that goes.
    for act, words in (("DELETE FROM public.a WHERE i > 900", "it has 900 rows, 1,000 were copied"),
                       ("ALTER TABLE public.b OWNER TO inorder_other", 'its owner is "inorder_other"'),
                       ("DROP TABLE public.b", "TABLE public.b: it is missing")):
        for more, left in ((["-1"], False), (["--transaction-size=1"], True)):
            with server.connect(server.fresh("target")) as c:
                c.execute(f"CREATE FUNCTION act() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN {act}; END$$")
                c.execute("CREATE EVENT TRIGGER act ON ddl_command_end WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION act()")
            run = firn(server, "target", path, *more)
            assert run.code == 3 and words in run.out and "restore complete" not in run.out and "--resume" not in run.out, (run.code, run.out)
            assert ("Nothing was changed" in run.out) == (not left), run.out
            with server.connect("target") as c:
                assert c.execute("SELECT to_regclass('a') IS NOT NULL").fetchone() == (left,), run.out
    # Rows that a table just made does not take are missing: that is an error of the table.
    for more, left in ((["-1"], False), (["--transaction-size=1"], True)):
        with server.connect(server.fresh("target")) as c:
            c.execute("CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$")
            c.execute("CREATE FUNCTION act() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN IF to_regclass('public.b') IS NOT NULL THEN "
                      "CREATE TRIGGER none BEFORE INSERT ON public.b FOR EACH ROW EXECUTE FUNCTION public.nothing(); END IF; END$$")
            c.execute("CREATE EVENT TRIGGER act ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION act()")
        run = firn(server, "target", path, *more).fails("could not restore TABLE DATA public.b", "the server took 0 of 1 rows")
        assert run.code == 1, run.out
        with server.connect("target") as c:
            assert c.execute("SELECT to_regclass('a') IS NOT NULL").fetchone() == (left,), run.out
    # Nobody counts who does not want to.
    with server.connect(server.fresh("target")) as c:
        c.execute("CREATE FUNCTION act() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN DELETE FROM public.a WHERE i > 900; END$$")
        c.execute("CREATE EVENT TRIGGER act ON ddl_command_end WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION act()")
    firn(server, "target", path, "-1", "--no-count").ok()


def not_compared(world):
    """What cannot be asked, or is not certain, is held against nobody: rows of a table that may not be read; a question that
    fails."""
    server = world.server()
    with server.connect() as c:
        c.execute("DO $$BEGIN CREATE ROLE inorder_plain LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END$$")
    with server.connect(server.fresh("inorder_hidden")) as c:
        c.execute("GRANT CREATE ON SCHEMA public TO inorder_plain; SET ROLE inorder_plain; CREATE TABLE a AS SELECT i FROM generate_series(1, 100) i")
        c.execute("ALTER TABLE a ENABLE ROW LEVEL SECURITY; ALTER TABLE a FORCE ROW LEVEL SECURITY; CREATE POLICY seen ON a USING (i > 50)")
        c.execute("CREATE TABLE b AS SELECT i FROM generate_series(1, 10) i; CREATE TABLE c AS SELECT * FROM a")
        # Settings outlive the question that failed.
        c.execute("ALTER TABLE c ENABLE ROW LEVEL SECURITY; ALTER TABLE c FORCE ROW LEVEL SECURITY; CREATE POLICY seen ON c USING (i > 80)")
    path = world.archive("inorder-hidden", lambda p: server.archive("inorder_hidden", p, "c"))
    for more in (["-1"], ["--transaction-size=1"]):
        with server.connect(server.fresh("target")) as c:
            c.execute("GRANT CREATE ON SCHEMA public TO inorder_plain")
        run = firn(server, "target", path, "-U", "inorder_plain", "-x", *more).ok()
        assert run.out.count("were not counted") == 2 and "could not be compared" not in run.out, run.out
        with server.connect("target") as c:
            assert c.execute("SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)").fetchone() == (100, 10), run.out
    # A question of the comparison fails.
    path = world.once("halves", lambda: source(world))
    for more in (["-1"], ["--transaction-size=1"]):
        server.fresh("target")
        folder = os.path.join(server.root, "questions")
        with Proxy(folder, server.root) as proxy:
            proxy.arm(px.matching(rb"^SELECT n, wrong FROM", px.error("22000")))
            run = firn(server, "target", path, *proxy.where("target"), *more, where=False).ok()
        shutil.rmtree(folder)
        assert "could not be compared: a fault of the test" in run.out, run.out
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM b").fetchone() == (1000,), run.out


def questions(world):
    """The open transaction does not grow with what is asked in it: neither a part of it for each question, nor large objects that stay open."""
    server = world.server()
    with server.connect(server.fresh("inorder_questions")) as c:
        c.execute("DO $$BEGIN FOR i IN 1..40 LOOP EXECUTE format('CREATE TABLE t%s AS SELECT 1 AS i', i); PERFORM lo_from_bytea(5000 + i, 'large'); END LOOP; END$$")
    path = world.archive("inorder-questions", lambda p: server.archive("inorder_questions", p, "c"))
    with server.connect(server.fresh("target")) as c:
        c.execute("ALTER DATABASE target SET log_statement = 'all'; ALTER DATABASE target SET log_min_messages = 'log'")
    begin = os.path.getsize(server.log)
    run = firn(server, "target", path, "-1").ok()
    assert "40 tables with 40 rows by counting, 40 large objects by their sizes" in run.out, run.out
    with open(server.log, errors="replace") as f:
        f.seek(begin)
        log = f.read()
    assert log.count("SELECT pg_catalog.count(*)") >= 40 or log.count("count(*)") >= 40, log[-3000:]
    assert 0 < log.count("SAVEPOINT") < 20, log.count("SAVEPOINT")
    sizes = re.findall(r"(SELECT oid.*lo_lseek64.*)", log)
    assert len(sizes) == 1, sizes
    with server.connect("target") as c:
        c.execute("BEGIN")
        found = c.execute(sizes[0]).fetchall()
        assert sorted(row[:2] for row in found) == [(5000 + i, 5) for i in range(1, 41)], found
        # The first place is free again.
        assert c.execute("SELECT lo_open(5001, 262144)").fetchone() == (0,)


def others_identity(world):
    """Partitions of others that have no identity column, as those of servers that were upgraded to 17, are no difference."""
    server = world.server(NEW)
    path = world.once("halves", lambda: source(world))
    for more in (["-1"], ["--transaction-size=3"], ["-j", "2"]):
        with server.connect(server.fresh("target")) as c:
            c.execute("CREATE SCHEMA other; CREATE TABLE other.p (i int GENERATED ALWAYS AS IDENTITY) PARTITION BY RANGE (i)")
            c.execute("CREATE TABLE other.p1 PARTITION OF other.p DEFAULT")
            c.execute("UPDATE pg_attribute SET attidentity = '' WHERE attrelid = 'other.p1'::regclass AND attname = 'i'")
        firn(server, "target", path, *more).ok()


def durable(world):
    """A server that answers a COMMIT before it is durable (synchronous_commit = off) goes down right after the end: what was complete is
    there. The last of several transactions may have nothing in it."""
    path = world.once("halves", lambda: source(world))

    def make():
        # The settings of all servers of these tests have synchronous_commit = off; the log is written once in ten seconds.
        server = common.Server(OLD, ("wal_writer_delay=10000", "autovacuum=off"), "durable")
        world.servers["durable"] = server
        return server.create()
    server = world.once("durable", make)
    for more in (["-1"], ["--transaction-size=1"], ["--transaction-size=1000000"], ["-j", "2"]):
        server.fresh("target")
        firn(server, "target", path, *more, "--no-analyze", "--no-count").ok()
        server.stop("immediate")
        server.start()
        with server.connect("target") as c:
            there = c.execute("SELECT to_regclass('b') IS NOT NULL").fetchone()[0]
            assert there and c.execute("SELECT count(*) FROM b").fetchone() == (1000,), f"{more}: lost"
            assert c.execute("SELECT count(*) FROM pg_largeobject_metadata").fetchone() == (1,)


def verified(world):
    """--verify after one transaction; ANALYZE at the end, too; a journal in the way."""
    server = world.server()
    path = world.once("halves", lambda: source(world))
    run = firn(server, server.fresh("target"), path, "-1", "--verify=checksums").ok()
    assert "restore complete" in run.out
    with server.connect("target") as c:
        assert c.execute("SELECT reltuples FROM pg_class WHERE relname = 'a'").fetchone() == (1000,)
        c.execute("CREATE SCHEMA firn_restore")
    firn(server, "target", path, "-1").fails("firn_restore")


def refused(world):
    """What cannot be had on one connection, or on several."""
    path = flags.archive(world)
    for more, words in (
            (["-1", "-j", "2"], ["multiple jobs"]), (["-1", "-C"], ["-C/--create"]), (["-1", "--transaction-size=1"], ["cannot be used together"]),
            (["-1", "--resume"], ["cannot be used together"]), (["-1", "--on-error=continue"], ["cannot be used together"]),
            (["--transaction-size=0"], ["transaction-size"]), (["--restrict-key=a"], ["cannot be used together"])):
        run = firn(world.server(), "nowhere", path, *more)
        assert run.code == 2, run.out
        run.fails(*words)


def table(world):
    """The guide has a table of all flags of pg_restore 18, and firn has them all, beginnings of their names included. What each does is
    compared elsewhere (flags, like ...)."""
    with open(os.path.join(common.ROOT, "docs", "guide", "restore.md"), encoding="utf-8") as f:
        text = f.read()
    section = text.split("## Flag by flag", 1)[1].split("\n## ", 1)[0]
    rows = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        for flag in re.findall(r"`(--[a-z-]+)`", cells[0]):
            rows[flag] = cells
    helped = world.server(NEW).program("pg_restore", "--help").stdout.decode()
    known = set(re.findall(r"^\s+(?:-\S, )?(--[a-z-]+)", helped, re.M))
    assert len(known) > 50
    assert known - set(rows) == set(), f"not in the table: {sorted(known - set(rows))}"
    assert set(rows) - known == set(), f"in the table, and no flag of pg_restore: {sorted(set(rows) - known)}"
    ours = os.popen(f"{common.program()[0]} restore --help").read()
    missing = [flag for flag in sorted(known) if not re.search(rf"(?<![\w-]){flag}(?![\w-])", ours)]
    assert missing == [], f"not in firn restore --help: {missing}"
    for flag, cells in rows.items():
        assert len(cells) >= 2 and cells[1], f"{flag} says nothing"
    valued = set(re.findall(r"(--[a-z-]+)=", helped))
    beginnings(world, known - {"--help", "--version"}, valued)


def beginnings(world, known, valued):
    """What getopt_long makes of the beginnings of pg_restore's flags, firn makes of them."""
    server = world.server(NEW)
    words = {}
    for flag in sorted(known):
        for end in range(3, len(flag)):
            words.setdefault(flag[:end], []).append(flag)
    nowhere = os.path.join(world.folder, "nowhere")

    def told(word, flag):
        return firn(server, "", f"{word}=1" if flag in valued else word, nowhere, where=False)
    whole = {flag: told(flag, flag) for flag in known}
    for flag, run in whole.items():
        assert "unrecognized option" not in run.out, (flag, run.out)
    wrong = []
    for word, flags in words.items():
        if word in known:
            continue
        right = server.program("pg_restore", f"{word}=1" if flags[0] in valued else word, nowhere, check=False).stderr.decode()
        run = told(word, flags[0])
        if "is ambiguous" in right:
            fine = run.code == 2 and "is ambiguous" in run.out
        else:
            assert "unrecognized option" not in right and len(flags) == 1, (word, flags, right)
            fine = (run.code, run.out) == (whole[flags[0]].code, whole[flags[0]].out)
        if not fine:
            wrong.append(f"{word}: {run.out[:200]}")
    assert not wrong, wrong[:10]


def warned(world):
    """Warnings of the server are told, those before an error, too."""
    server = world.server()
    with server.connect(server.fresh("inorder_warns")) as c:
        c.execute("CREATE FUNCTION warns(int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS "
                  "$$BEGIN RAISE WARNING 'row % is odd', $1; RETURN true; END$$")
        c.execute("CREATE TABLE t (i int CONSTRAINT warns CHECK (warns(i))); INSERT INTO t VALUES (7); CREATE INDEX late ON t ((i < 9)) WHERE warns(i)")
    path = world.archive("inorder-warns", lambda p: server.archive("inorder_warns", p, "c"))
    for more in (["-1"], ["--transaction-size=2"]):
        run = firn(server, server.fresh("target"), path, *more, "--no-analyze").ok()
        # Of the row that is loaded, and of the index.
        assert run.out.count("WARNING:  row 7 is odd") == 2, run.out
    with server.connect(server.fresh("target")) as c:
        c.execute("CREATE TABLE late (i int)")
    run = firn(server, "target", path, "-1").fails("already exists")
    assert "WARNING:  row 7 is odd" in run.out, run.out


def unwritable(world):
    """The end of --transaction-size needs no right that the rest does not."""
    server, path = world.server(), world.archive("unwritable", lambda p: small(world, p))
    server.roles("in_order_plain")
    for taken, told in (("lo_create(oid)", False), ("lo_create(oid), pg_logical_emit_message(bool, text, text)", True)):
        with server.connect(server.fresh("target")) as c:
            c.execute(f"ALTER DATABASE target OWNER TO in_order_plain; REVOKE EXECUTE ON FUNCTION {taken} FROM PUBLIC")
        run = firn(server, "target", path, "--transaction-size=2", "-O", "--role", "in_order_plain").ok()
        assert ("may neither create large objects" in run.out) == told, run.out
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM t").fetchone() == (10,)


def small(world, path):
    server = world.server()
    with server.connect(server.fresh("unwritable")) as c:
        c.execute("CREATE TABLE t AS SELECT generate_series(1, 10) i; CREATE INDEX ON t (i)")
    return server.archive("unwritable", path, "c")


def cases(world):
    yield "in order unwritable", lambda: unwritable(world)
    for name, more, before in CASES:
        yield f"in order {name}", lambda m=more, b=before: one(world, m, b, "c")
    yield "in order directory", lambda: one(world, ["-1"], None, "d")
    yield "in order tar", lambda: one(world, ["-1"], None, "t")
    yield "in order 18", lambda: newest(world)
    yield "in order all or nothing", lambda: all_or_nothing(world)
    yield "in order create", lambda: created(world)
    yield "in order odd database", lambda: odd_database(world)
    yield "in order stopped", lambda: stopped(world)
    yield "in order lost", lambda: lost(world)
    yield "in order stopped committing", lambda: stopped_committing(world)
    yield "in order stopped analyzing", lambda: stopped_analyzing(world)
    yield "in order durable", lambda: durable(world)
    yield "in order compared", lambda: compared(world)
    yield "in order not compared", lambda: not_compared(world)
    yield "in order questions", lambda: questions(world)
    yield "in order others' identity", lambda: others_identity(world)
    yield "in order verified", lambda: verified(world)
    yield "in order warnings", lambda: warned(world)
    yield "in order refused", lambda: refused(world)
    yield "flags table", lambda: table(world)
