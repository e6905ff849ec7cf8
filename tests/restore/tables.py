"""Own queries are about tables: what the owner of one has put in its place, or into it, does not run as whoever restores or compares."""
import os
import shutil
import subprocess

from harness import proxy as px
from harness.proxy import Proxy
from restore import common
from restore.common import firn

ROWS = 10
# Large enough to be frozen.
SOURCE = f"""
CREATE TABLE t (i int, s text); INSERT INTO t SELECT i, repeat('x', 100000) FROM generate_series(1, {ROWS}) i;
CREATE TABLE p (i int, s text) PARTITION BY RANGE (i); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
INSERT INTO p SELECT i, 'y' FROM generate_series(1, {ROWS}) i;
SELECT lo_from_bytea(4711, 'large');"""
TRAP = """
CREATE TABLE public.ran (who text); GRANT ALL ON public.ran TO PUBLIC;
CREATE FUNCTION public.trap() RETURNS int LANGUAGE plpgsql AS $$BEGIN
    INSERT INTO public.ran VALUES (current_user);
    -- Also where the transaction is rolled back.
    IF current_setting('application_name') ~ '^firn' THEN RAISE LOG 'TABLES TRAPPED'; END IF;
    RETURN 1;
END$$;
CREATE FUNCTION public.quiet(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN public.trap(); END$$;"""
VIEW = "ALTER TABLE {0} RENAME TO away; CREATE VIEW {0} AS SELECT public.trap() AS i, ''::text AS s FROM generate_series(1, 10)"
# Whoever only plans a query about the table computes what is constant in these.
PLANNED = {
    "view": VIEW,
    "index": "CREATE INDEX ON {0} ((public.quiet(1) + i))",
    "predicate": "CREATE INDEX ON {0} (i) WHERE public.quiet(1) = 1",
    "statistics": "CREATE STATISTICS public.both ON (public.quiet(1) + i), s FROM {0}",
}


def no_trap(server, begin):
    with server.connect("target") as c:
        ran = c.execute("SELECT who FROM ran").fetchall()
    with open(server.log, errors="replace") as f:
        f.seek(begin)
        trapped = "TABLES TRAPPED" in f.read()
    assert not ran and not trapped, f"the owner's function ran as {ran}"


def archive(server, world, *flags):
    def make(path):
        with server.connect(server.fresh("tables")) as c:
            c.execute(SOURCE)
        return server.archive("tables", path, "c", "0", extra=flags)
    return world.archive("tables" + "".join(flags), make)


def backup(server, world, *flags):
    def make(path):
        archive(server, world)
        r = subprocess.run([common.program()[0], "backup", *flags, *server.where("tables"), path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert r.returncode == 0, r.stdout.decode()
        return path
    return world.archive("tables-backup" + "".join(flags), make)


def verified(world, trap, table, flags):
    """A database of somebody else's is compared with a backup at a later time."""
    server = world.server()
    begin = os.path.getsize(server.log)
    path = backup(server, world, *(["--load-via-partition-root"] if table == "p" else []))
    firn(server, server.fresh("target"), path).ok()
    with server.connect("target") as c:
        c.execute(TRAP + PLANNED[trap].format(table) + "; TRUNCATE ran")
    r = subprocess.run([common.program()[0], "backup", "verify", "-q", *flags, *server.where("target"), path], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=common.PATIENCE)
    no_trap(server, begin)
    out = r.stdout.decode()
    # The index, say, should not be there; the rows are all there.
    assert r.returncode == 3, out
    assert ("rows cannot be read" in out) == (trap == "view"), out
    assert "instead of" not in out and "differ" not in out.replace("differences", ""), out


def elsewhere(world, flags):
    """A foreign table in a table's place: the server is not told to connect to others as whoever compares."""
    server = world.server()
    begin = os.path.getsize(server.log)
    path = backup(server, world)
    firn(server, server.fresh("target"), path).ok()
    with server.connect("target") as c:
        c.execute(TRAP + "CREATE EXTENSION postgres_fdw; CREATE VIEW seen AS SELECT public.trap() AS i, ''::text AS s;"
                  f"CREATE SERVER back FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{server.root}', port '{server.port}', dbname 'target');"
                  "CREATE USER MAPPING FOR PUBLIC SERVER back OPTIONS (\"user\" 'postgres');"
                  "ALTER TABLE t RENAME TO away; CREATE FOREIGN TABLE t (i int, s text) SERVER back OPTIONS (table_name 'seen')")
    r = subprocess.run([common.program()[0], "backup", "verify", "-q", *flags, *server.where("target"), path], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=common.PATIENCE)
    no_trap(server, begin)
    assert r.returncode == 3 and "rows cannot be read" in r.stdout.decode(), r.stdout.decode()


def asked_for(world):
    """Rows of foreign tables are in a backup that was told so, and are compared; views within its conditions do no harm."""
    server = world.server()
    with server.connect(server.fresh("foreign_rows")) as c:
        c.execute("CREATE EXTENSION postgres_fdw; CREATE TABLE local AS SELECT generate_series(1, 7) AS i; CREATE TABLE t AS SELECT 1 AS i;"
                  f"CREATE SERVER back FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{server.root}', port '{server.port}', dbname 'foreign_rows');"
                  "CREATE USER MAPPING FOR PUBLIC SERVER back OPTIONS (\"user\" 'postgres');"
                  "CREATE FOREIGN TABLE f (i int) SERVER back OPTIONS (table_name 'local')")
    path = os.path.join(world.folder, "foreign-rows")
    run = lambda *args: subprocess.run([common.program()[0], "backup", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # noqa: E731
    r = run("--include-foreign-data=back", *server.where("foreign_rows"), path)
    assert r.returncode == 0, r.stdout.decode()
    for flags in ([], ["--checksums"]):
        r = run("verify", *flags, *server.where("foreign_rows"), path)
        out = r.stdout.decode()
        # The dump that it is compared with has no rows of foreign tables.
        assert r.returncode == 3 and "TABLE DATA public.f: it is missing" in out and "has 1 difference" in out, out
    with server.connect("foreign_rows") as c:
        c.execute("INSERT INTO local VALUES (8)")
    r = run("verify", "-q", *server.where("foreign_rows"), path)
    assert "TABLE public.f: it has 8 rows instead of 7" in r.stdout.decode(), r.stdout.decode()


def swapped(world, at, trap, flags):
    """Within a restore: right before a table is looked at that has just been made."""
    server = world.server()
    path = archive(server, world)
    server.fresh("target")
    begin = os.path.getsize(server.log)

    def swap(_):
        with server.connect("target") as c:
            c.execute(TRAP + PLANNED[trap].format("t") + "; TRUNCATE ran")
    folder = os.path.join(server.root, "swapped")
    with Proxy(folder, server.root) as proxy:
        proxy.arm(px.matching(at, px.call(swap)))
        run = firn(server, "target", path, *proxy.where("target"), "-j", "1", *flags, where=False, patience=px.PATIENCE)
        assert proxy.fired.is_set()
    shutil.rmtree(folder, ignore_errors=True)
    no_trap(server, begin)
    # The schema was compared before, and the rows are all there.
    assert run.code in ((0,) if trap == "index" else (1, 3)), f"exit code {run.code}:\n{run.out}"


def views_in_statements(world):
    """What an archive does may need views: they are refused to own queries only."""
    server = world.server()
    with server.connect(server.fresh("views")) as c:
        c.execute("CREATE TABLE t AS SELECT generate_series(1, 5) AS i; CREATE VIEW v AS SELECT i FROM t; CREATE MATERIALIZED VIEW m AS SELECT i FROM v;"
                  "CREATE FUNCTION f(int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN EXISTS (SELECT FROM public.v) IS NOT NULL; END$$;"
                  "CREATE TABLE checked (i int CHECK (f(i)), s text); INSERT INTO checked SELECT i, repeat('x', 100000) FROM generate_series(1, 9) i;"
                  "CREATE INDEX ON checked (f(i)); CREATE STATISTICS st ON (f(i)), i FROM checked;"
                  "CREATE TABLE unlogged (i int); CREATE RULE also AS ON INSERT TO unlogged DO ALSO SELECT count(*) FROM v")
    path = world.archive("views", lambda p: server.archive("views", p, "c"))
    for flags in (["-j", "2"], ["-1"], ["--transaction-size=2"]):
        server.fresh("target")
        run = firn(server, "target", path, "--verify=checksums", *flags).ok()
        assert "equal to the archive" in run.out and "restricted" not in run.out, run.out
        with server.connect("target") as c:
            # ANALYZE computes them as well.
            assert c.execute("SELECT count(*) FROM pg_statistic_ext_data").fetchone() == (1,)


def cases(world):
    for trap in PLANNED:
        for flags in ([], ["--checksums"]):
            yield f"tables verified {trap} {' '.join(flags)}", lambda t=trap, f=flags: verified(world, t, "t", f)
    for flags in ([], ["--checksums"]):
        yield f"tables verified through a root {' '.join(flags)}", lambda f=flags: verified(world, "index", "p", f)
        yield f"tables elsewhere {' '.join(flags)}", lambda f=flags: elsewhere(world, f)
    yield "tables asked for", lambda: asked_for(world)
    yield "tables swapped before rows", lambda: swapped(world, rb"LOCK TABLE ONLY public.t ", "view", [])
    for trap in ("view", "index"):
        yield f"tables swapped before --verify {trap}", lambda t=trap: swapped(world, rb"x\.cond <> ''", t, ["--verify"])
    yield "tables and views in statements", lambda: views_in_statements(world)
