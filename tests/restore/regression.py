"""PostgreSQL's own regression database, which has an object of every kind: there and back.

Making it takes minutes, so its archives are kept below FIRN_TOOLS, together with the library that its functions call, which
must lie where the archive says.

A dump loses the order of inherited columns, so that not even pg_restore gives a database with the same dump. What is right
is therefore what pg_restore makes of it once, and its archive ("second") is one to be equal with in the strict sense.
"""
import os
import re
import shutil

import regress
from restore import common, twins, versions
from restore.common import NEW, OLD, Server, firn, pg18, same_blocks

# The tests leave so many tables and partitions at least; so many of them may fail, for a server of another minor version.
TABLES, FAILURES = 600, 10
# Counted up when what is kept changes.
EDITION = 4


def library_folder(version):
    return f"/tmp/firn-regress-lib-{os.getuid()}-{version}"


def place_library(kept, version):
    """Put the kept library where the archive's functions look for it."""
    folder = library_folder(version)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    assert os.lstat(folder).st_uid == os.getuid() and not os.path.islink(folder), f"{folder} is not ours"
    for name in os.listdir(kept):
        if name.endswith(".so"):
            shutil.copy(os.path.join(kept, name), folder)


def kept(version):
    """The folder of what was kept of this version's regression database, made if need be."""
    if version == NEW and not pg18():
        raise common.Missing("PostgreSQL 18 is not there: scripts/postgresql.sh 18 gets it")
    old, new = regress.pg_config("--version").split()[1], "18" if pg18() else "none"
    folder = os.path.join(os.environ["FIRN_TOOLS"], "regression-database", f"{version}-{old}-{new}-{EDITION}")
    if not os.path.exists(os.path.join(folder, "complete")):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        make(version, folder)
        open(os.path.join(folder, "complete"), "w").close()
    place_library(folder, version)
    return folder


def make(version, folder):
    server = Server(version, name="regression")
    try:
        server.create()
        source = regress.prepare(int(version))
        work = os.path.join(server.root, "regress")
        shutil.copytree(source, work)
        config = os.path.join(server.bin, "pg_config")
        regress.build_library(work, folder, config)
        place_library(folder, version)
        common.postgres_owns(work)
        out = server.run(regress.runner(config), f"--bindir={server.bin}", f"--dlpath={library_folder(version)}",
                         f"--inputdir={work}", f"--outputdir={work}", f"--host={server.root}", f"--port={server.port}",
                         "--user=postgres", f"--schedule={work}/parallel_schedule", "--max-connections=10", check=False,
                         cwd=work, timeout=1500).stdout
        failed = re.findall(r"^(?:not ok .*|.* FAILED .*)$", out, re.M)
        assert len(failed) <= FAILURES, "\n".join(failed)
        with server.connect("regression") as c:
            tables = c.execute("SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p') AND oid >= 16384").fetchone()[0]
            assert tables > TABLES, f"the regression database has {tables} tables only"
        server.archive("regression", os.path.join(folder, "custom"), "c", "lz4" if version == NEW else None)
        server.archive("regression", os.path.join(folder, "directory"), "d", "zstd" if version == NEW else None)
        server.fresh("second")
        server.pg_restore("second", os.path.join(folder, "custom"), "--exit-on-error")
        server.archive("second", os.path.join(folder, "second"), "c")
        with open(os.path.join(folder, "plain.sql"), "wb") as f:
            f.write(server.dump("second"))
        roles = server.program("pg_dumpall", "-h", server.root, "-p", str(server.port), "-U", "postgres", "--roles-only").stdout
        with open(os.path.join(folder, "roles.sql"), "wb") as f:
            f.writelines(line + b"\n" for line in roles.splitlines()
                         if line.startswith((b"CREATE ROLE", b"ALTER ROLE", b"GRANT")) and b" postgres" not in line.split(b" WITH")[0])
        if version == OLD and pg18():
            newer = Server(NEW, name="tools")
            with server.connect("regression") as c:
                c.execute(versions.UNSTAMP)
            try:
                server.archive("regression", os.path.join(folder, "custom-by-18"), "c", "zstd", by=newer)
            finally:
                newer.destroy()
    finally:
        server.destroy()


def target(world, version, source):
    """A server with the roles that the archive names."""
    server = world.server(version)

    def roles():
        with open(os.path.join(source, "roles.sql")) as f:
            for line in f.read().splitlines():
                with server.connect() as c:
                    name = re.match(r'CREATE ROLE ("[^"]+"|\S+?);', line)
                    if not name or not c.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name[1].strip('"'),)).fetchone():
                        c.execute(line)
    world.once(("regression roles", version, source), roles)
    return server


def there_and_back(world, version, form, jobs):
    """The same version: the dump of the result is the dump of what pg_restore makes, or of the source; so are all catalogs."""
    source = kept(version)
    server = target(world, version, source)
    path = os.path.join(source, form)

    def made():
        server.pg_restore(server.fresh("oracle"), path, "--exit-on-error")
        return twins.catalogs(server, "oracle")
    expected = world.once(("regression catalogs", version, form), made)
    db = server.fresh("target")
    run = firn(server, db, path, "--jobs", str(jobs)).ok()
    twins.compare(expected, twins.catalogs(server, db), f"{version} {form} {jobs} jobs", run)
    with open(os.path.join(source, "plain.sql"), "rb") as f:
        same_blocks(f.read(), server.dump(db), f"{version} {form}")


def into_newer(world, archive, jobs):
    """Into PostgreSQL 18: the result is what its own pg_restore makes, errors and all, but for what is put off behind errors."""
    source = kept(OLD)
    path = os.path.join(source, archive)
    server = target(world, NEW, source)
    expected = oracle(world, server, path)
    db = server.fresh("target")
    run = firn(server, db, path, "--jobs", str(jobs), "--on-error", "continue")
    assert run.code in (0, 1), run.out[-3000:]
    found = server.dump_beside_journal(db)
    same_blocks(twins.blocks_but_for_put_off(run, expected, found, unchecked=True), found, archive)


def oracle(world, server, path):
    """The dump of what pg_restore makes of an archive."""
    def restore():
        db = server.fresh("oracle")
        server.pg_restore(db, path, check=False)
        return server.dump_beside_journal(db)
    return world.once(("oracle", server.version, path), restore)


def cases(world):
    for version in (OLD, NEW):
        for form in ("custom", "directory", "second"):
            for jobs in (1, 4):
                yield (f"regression database {version} {form} jobs {jobs}",
                       lambda v=version, f=form, j=jobs: there_and_back(world, v, f, j))
    for archive in ("custom", "directory", "custom-by-18"):
        yield f"regression database 15 to 18 {archive}", lambda a=archive: into_newer(world, a, 4)
