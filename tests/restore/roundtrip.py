"""Generated schemas, there and back: the dump of the result is the dump of the source."""
from restore import common
from restore.common import NEW, OLD, firn, same

TABLES = 600
# Version of source and target, format, compression: pg_dump 15 knows gzip only.
ARCHIVES = [(OLD, form, z) for form in "cd" for z in ("0", "6")] + [
    (NEW, form, z) for form in "cd" for z in ("none", "gzip:6", "lz4", "zstd:3")]
JOBS = (1, 4)


def archive(world, version, form, z):
    server = world.server(version)
    db, _ = world.generated(TABLES, version)
    name = f"round-{version}-{form}-{z.replace(':', '')}"
    return world.archive(name, lambda path: server.archive(db, path, form, z))


def one(world, version, form, z, jobs):
    server = world.server(version)
    _, dump = world.generated(TABLES, version)
    path = archive(world, version, form, z)
    target = server.fresh("target")
    firn(server, target, path, "--jobs", str(jobs)).ok()
    same(dump, server.dump(target))


def switched_off(world, without):
    """Without one of the ties: other paths through the planner."""
    server = world.server()
    db, dump = world.generated(150, without=without)
    path = world.archive(f"without-{'-'.join(without)}", lambda p: server.archive(db, p, "c"))
    target = server.fresh("target")
    firn(server, target, path, "--jobs", "3").ok()
    same(dump, server.dump(target))


def few_locks(world):
    """A server with the smallest lock table: transactions are cut to fit it."""
    server = common.Server(OLD, conf=("max_locks_per_transaction=10", "max_connections=8", "superuser_reserved_connections=1",
                                      "max_prepared_transactions=0", "max_wal_senders=0", "autovacuum_max_workers=1",
                                      "max_worker_processes=0"), name="few-locks")
    try:
        server.create()
        with server.connect() as c:
            for statement in common.schema.roles():
                c.execute(statement)
        _, dump = world.generated(TABLES)
        target = server.fresh("target")
        firn(server, target, archive(world, OLD, "c", "6"), "--jobs", "3").ok()
        # pg_dump needs a lock of each table.
        with server.connect() as c:
            c.execute("ALTER SYSTEM SET max_locks_per_transaction = 512")
        server.stop()
        server.start()
        same(dump, server.dump(target))
    finally:
        server.destroy()


def cases(world):
    for version, form, z in ARCHIVES:
        for jobs in JOBS:
            name = f"{version} {'custom' if form == 'c' else 'directory'} {z} jobs {jobs}"
            yield name, lambda v=version, f=form, z=z, j=jobs: one(world, v, f, z, j)
    for feature in (*((f,) for f in common.schema.FEATURES), common.schema.FEATURES):
        yield f"without {' '.join(feature)}", lambda f=feature: switched_off(world, f)
    yield "few locks", lambda: few_locks(world)
