"""Archives of one version into a server of another, and what only the newer version writes."""
import contextlib
import re
import time

from restore import common, flags
from restore.common import NEW, OLD, firn, same, same_blocks

TABLES = 150
# PostgreSQL 15.20 stamps columns with an option that its own pg_dump hides, but that of 18 does not: no server takes it back.
# (Stamps of composite types stay: their values are checked against them, and pg_dump does not look there.)
UNSTAMP = ("UPDATE pg_attribute SET attoptions = (SELECT nullif(array_agg(o), '{}') FROM unnest(attoptions) o "
           "WHERE o NOT LIKE 'pg_attver=%') WHERE attoptions::text LIKE '%pg_attver=%' "
           "AND attrelid IN (SELECT oid FROM pg_class WHERE relkind <> 'c')")


def generated(world, form, z, by_newer):
    """The archive of a generated schema on 15, by pg_dump of 15 or 18."""
    db, _ = world.generated(TABLES)
    return world.archive(f"from-15-{form}-{by_newer}", lambda p: dump_of_15(world, db, p, form, z, by_newer))


def dump_of_15(world, db, path, form, z, by_newer):
    server = world.server(OLD)
    if by_newer:
        with server.connect(db) as c:
            c.execute(UNSTAMP)
    return server.archive(db, path, form, z, by=world.server(NEW) if by_newer else None)


def into(world, path, version, jobs=3):
    """What firn makes of an archive on a server of that version is what pg_restore 18 makes of it."""
    server, newer = world.server(version), world.server(NEW)
    with server.connect() as c:
        for statement in common.schema.roles():
            c.execute(statement)
    server.fresh("oracle")
    right = server.pg_restore("oracle", path, by=newer, check=False)
    server.fresh("target")
    # A setting that the server does not know loses nothing.
    wrong = [line for line in re.findall(r"error: .*", right.stderr.decode()) if '"transaction_timeout"' not in line]
    run = firn(server, "target", path, "--jobs", str(jobs), *(["--on-error", "continue"] if wrong else []))
    assert run.code == 0 or run.code == 1 and wrong, f"pg_restore: {wrong}\nfirn: {run.out[-1500:]}"
    same_blocks(server.dump_beside_journal("oracle"), server.dump_beside_journal("target"))


def zoo(world, source, target, by_newer):
    """The same for an object of each kind."""
    flags.source(world)
    world.server(NEW).roles("zoo_owner", "zoo_reader", "zoo_super")
    if source == NEW:
        server = world.server(NEW)

        def fill():
            db = server.fresh("zoo18")
            server.pg_restore(db, flags.archive(world))
            return db
        db = world.once("zoo18", fill)
        path = world.archive("zoo-18", lambda p: server.archive(db, p, "c"))
    else:
        path = world.archive(f"zoo-15-{by_newer}", lambda p: dump_of_15(world, "zoo", p, "c", None, by_newer))
    into(world, path, target)


def statistics(world):
    """Statistics of an archive of 18 come back; those of partitions and of expressions, too."""
    server = world.server(NEW)
    with without_autovacuum(server):
        compare_statistics(world, server)


@contextlib.contextmanager
def without_autovacuum(server):
    """While this lasts nobody but the test counts anything: autovacuum would replace what was restored by what it finds."""
    with server.connect() as c:
        c.execute("ALTER SYSTEM SET autovacuum = off")
        c.execute("SELECT pg_reload_conf()")
        try:
            while c.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'").fetchone()[0]:
                time.sleep(0.1)
            yield
        finally:
            c.execute("ALTER SYSTEM RESET autovacuum")
            c.execute("SELECT pg_reload_conf()")


def compare_statistics(world, server):

    def fill():
        db = common.generate(server, "with_statistics", TABLES)
        with server.connect(db) as c:
            c.execute("CREATE TABLE public.measured AS SELECT i, i % 7 AS seven FROM generate_series(1, 5000) i")
            c.execute("CREATE INDEX on_it ON public.measured ((i + seven))")
            c.execute("ANALYZE")
        return db, server.dump(db, "--statistics")
    db, dump = world.once("with statistics", fill)
    for form in "cd":
        path = world.archive(f"statistics-{form}", lambda p: server.archive(db, p, form, "zstd", extra=["--statistics"]))
        server.fresh("target")
        firn(server, "target", path, "--jobs", "3").ok()
        same_blocks(dump, server.dump("target", "--statistics"))


def not_null_names(world):
    """PostgreSQL 18 keeps names of NOT NULL constraints: those of partitions stay theirs."""
    server = world.server(NEW)
    db = server.fresh("not_null")
    with server.connect(db) as c:
        c.execute("CREATE TABLE p (id int NOT NULL, d int CONSTRAINT named NOT NULL, e int CONSTRAINT low NOT NULL) PARTITION BY LIST (d)")
        c.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
        c.execute("CREATE TABLE p2 (id int CONSTRAINT own NOT NULL, d int NOT NULL, e int NOT NULL)")
        c.execute("ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)")
        c.execute("CREATE TABLE p3 (e int NOT NULL, d int NOT NULL, id int NOT NULL, CONSTRAINT more CHECK (id > 0))")
        c.execute("ALTER TABLE p ATTACH PARTITION p3 DEFAULT")
        c.execute("CREATE TABLE p4 PARTITION OF p (CONSTRAINT extra CHECK (e > 3)) FOR VALUES IN (4)")
        c.execute("ALTER TABLE p4 ALTER e SET DEFAULT 9, ALTER e SET STATISTICS 7")
        c.execute("INSERT INTO p VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4)")
    dump = server.dump(db)
    path = world.archive("not-null", lambda p: server.archive(db, p, "c"))
    server.fresh("target")
    firn(server, "target", path, "--jobs", "2").ok()
    same(dump, server.dump("target"))


def cases(world):
    for by_newer in (False, True):
        tool = "pg_dump 18" if by_newer else "pg_dump 15"
        for form, z in (("c", "zstd:3" if by_newer else None), ("d", "lz4" if by_newer else "0")):
            kind = "custom" if form == "c" else "directory"
            yield (f"versions 15 to 18 by {tool} {kind}",
                   lambda f=form, z=z, b=by_newer: into(world, generated(world, f, z, b), NEW))
            if by_newer:
                yield (f"versions 15 to 15 by {tool} {kind}",
                       lambda f=form, z=z, b=by_newer: into(world, generated(world, f, z, b), OLD))
    yield "versions zoo 15 to 18 by pg_dump 15", lambda: zoo(world, OLD, NEW, False)
    yield "versions zoo 15 to 18 by pg_dump 18", lambda: zoo(world, OLD, NEW, True)
    yield "versions zoo 15 to 15 by pg_dump 18", lambda: zoo(world, OLD, OLD, True)
    yield "versions zoo 18 to 18", lambda: zoo(world, NEW, NEW, True)
    yield "versions zoo 18 to 15", lambda: zoo(world, NEW, OLD, True)
    yield "versions statistics", lambda: statistics(world)
    yield "versions not null names", lambda: not_null_names(world)
