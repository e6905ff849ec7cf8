"""A target on which an extension's hook refuses statements, or swallows them. What it refuses is told, and comes once it is allowed; of
what it has swallowed no restore says that it is complete.

Some of the statements, drawn by FIRN_SEED; all with FIRN_CATALOGS=all.
"""
import os
import random
import subprocess

from restore import twins
from restore.common import NEW, OLD, Missing, firn, same_blocks

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = """
CREATE TABLE t (id serial PRIMARY KEY, v text CHECK (v <> 'no'), u int UNIQUE);
CREATE TABLE child (id int REFERENCES t, n int GENERATED ALWAYS AS IDENTITY);
CREATE TABLE p (id int NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (100);
CREATE INDEX i ON t (lower(v));
CREATE INDEX on_p ON p (id);
CREATE VIEW w AS SELECT id FROM t;
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f();
CREATE POLICY few ON child USING (id > 3);
CREATE RULE r AS ON DELETE TO child DO INSTEAD NOTHING;
INSERT INTO t (v, u) SELECT repeat(md5(i::text), 20), i FROM generate_series(1, 3000) i;
INSERT INTO child SELECT generate_series(1, 100);
INSERT INTO p SELECT generate_series(1, 50);
"""
# Those that firn runs and pg_restore does not, too: the journal's, and what its rules make.
REFUSED = ("CREATE TABLE", "CREATE INDEX", "ALTER TABLE", "COPY", "CREATE TRIGGER", "CREATE SCHEMA", "TRUNCATE", "LOCK", "ANALYZE", "DROP SCHEMA")
# Of each something is missing in the end.
SWALLOWED = ("CREATE INDEX", "CREATE UNIQUE INDEX", "CREATE VIEW", "CREATE TRIGGER", "CREATE POLICY", "CREATE RULE", "CREATE FUNCTION", "ALTER TABLE ONLY",
             "ALTER TABLE", "CREATE SEQUENCE", "CREATE TABLE public.child", "LOCK", "CREATE SCHEMA")


def library(world, server):
    """The hook, for a server of this version."""
    def make():
        includes = server.program("pg_config", "--includedir-server").stdout.decode().strip()
        path = os.path.join(server.root, "hooks.so")
        try:
            r = subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-w", "-I", includes, "-o", path, os.path.join(HERE, "hooks.c")],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except FileNotFoundError as e:
            raise Missing("no C compiler is there") from e
        assert r.returncode == 0, r.stdout
        return path
    return world.once(("hooks", server.version), make)


def archive(world, server):
    def make(path):
        with server.connect(server.fresh("hooked")) as c:
            c.execute(SOURCE)
        return server.archive("hooked", path, "c")
    return world.archive(f"hooked-{server.version}", make)


def target(world, server, setting, statement):
    hook = library(world, server)
    db = server.fresh("target")
    with server.connect() as c:
        c.execute(f"ALTER DATABASE target SET session_preload_libraries = '{hook}'; ALTER DATABASE target SET hooks.{setting} = '{statement}'")
    return db


def without(server):
    with server.connect() as c:
        c.execute("ALTER DATABASE target RESET ALL")


def refused(world, version, statements):
    server = world.server(version)
    path = archive(world, server)
    server.pg_restore(server.fresh("oracle"), path)
    expected = twins.catalogs(server, "oracle")
    wrong = []
    for statement in statements:
        for how in ("stop", "continue"):
            db = target(world, server, "refused", statement)
            run = firn(server, db, path, "-j", "2", f"--on-error={how}")
            try:
                if run.code:
                    run.fails("the hook refuses")
                    assert run.code == 1 and "restore complete" not in run.out, run.out[-1500:]
                without(server)
                if run.code:
                    resume = [] if "Nothing was changed" in run.out else ["--resume"]
                    firn(server, db, path, "-j", "2", *resume).ok()
                twins.compare(expected, twins.catalogs(server, db), statement)
                same_blocks(server.dump("oracle"), server.dump(db), statement)
            except AssertionError as e:
                wrong.append(f"{statement}, {how}: {str(e)[-1500:]}")
    assert not wrong, "\n\n".join(wrong)


def swallowed(world, version, statements):
    server = world.server(version)
    path = archive(world, server)
    server.pg_restore(server.fresh("oracle"), path)
    expected = server.dump("oracle")
    wrong = []
    for statement in statements:
        for flags in ((), ("--disable-rule=all",)):
            db = target(world, server, "swallowed", statement)
            run = firn(server, db, path, "-j", "2", *flags)
            without(server)
            complete = server.dump_beside_journal(db) == expected
            if run.code == 0 and not complete or run.code not in (0, 1, 2, 3) or (run.code == 0) != ("restore complete" in run.out):
                wrong.append(f"{statement} {flags}: exit code {run.code}, equal: {complete}\n{run.out[-1200:]}")
    assert not wrong, "\n\n".join(wrong)


def cases(world):
    draw = random.Random(int(os.environ.get("FIRN_SEED") or random.SystemRandom().randrange(1 << 32)))
    whole = os.environ.get("FIRN_CATALOGS") == "all"
    for version in (OLD, NEW):
        some, more = (REFUSED, SWALLOWED) if whole else (draw.sample(REFUSED, 2), draw.sample(SWALLOWED, 3))
        yield f"hostile hook refuses {version}", lambda v=version, s=some: refused(world, v, s)
        yield f"hostile hook swallows {version}", lambda v=version, s=more: swallowed(world, v, s)
