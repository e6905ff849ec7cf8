"""--verify: equal is told as equal, and each difference to the archive, the manifest or the source is found."""
import os

from harness.program import firn as any_firn
from restore.common import NEW, OLD, firn
from restore.flags import archive, source

FLAGS = {
    "all": [],
    "schema only": ["-s"],
    "no owner, no privileges": ["-O", "-x"],
    "no comments": ["--no-comments"],
    "a schema": ["-n", "b", "--with-dependencies"],
    "into a database with objects": ["-N", "Odd Name"],
}


def equal(world, name, form):
    server = world.server()
    path = archive(world, form)
    for depth in ("--verify", "--verify=checksums"):
        server.fresh("target")
        if name.startswith("into"):
            with server.connect("target") as c:
                c.execute("CREATE TABLE public.mine ()")
        run = firn(server, "target", path, depth, *FLAGS[name]).ok()
        assert "equal to the archive" in run.out, run.out[-2000:]
        assert ("of the same checksums" in run.out) == depth.endswith("checksums"), run.out[-2000:]


def different(world):
    """What the target does by itself to new objects is a difference to the archive."""
    server = world.server()
    path = archive(world)
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("ALTER DEFAULT PRIVILEGES GRANT REFERENCES ON TABLES TO zoo_reader")
    run = firn(server, "target", path, "--verify")
    assert run.code == 3, run.out[-2000:]
    assert "ACL" in run.out and "it should not be there" in run.out and "--resume" not in run.out, run.out[-3000:]
    with server.connect("target") as c:
        assert c.execute("SELECT to_regnamespace('firn_restore') IS NULL").fetchone() == (True,)


def to_source(world):
    """Compared with the database that the archive is of, before and after somebody changes that."""
    server = world.server()
    db, _ = source(world)
    path = archive(world)
    with server.connect() as c:
        c.execute("DROP DATABASE IF EXISTS changed")
        c.execute(f'CREATE DATABASE changed TEMPLATE "{db}"')
    for change, depth, told in (
            (None, "checksums", "equal to the source"),
            ("DELETE FROM a.orders WHERE id = 1", "counts", "TABLE a.orders: it has"),
            ("CREATE INDEX one_more ON a.people (id)", "counts", "INDEX a.one_more: it is missing")):
        if change:
            with server.connect("changed") as c:
                c.execute(change)
        server.fresh("target")
        run = firn(server, "target", path, f"--verify={depth}", "--verify-source", "changed")
        assert run.code == (3 if change else 0), run.out[-2000:]
        assert told in run.out, run.out[-2000:]
    with server.connect() as c:
        c.execute("DROP DATABASE changed")


def manifest(world):
    """A backup's manifest says what its tables hold: the data is not read again."""
    server = world.server()
    db, _ = source(world)
    path = world.archive("zoo-backup", lambda p: any_backup(server, db, p))
    server.fresh("target")
    run = firn(server, "target", path, "--verify=checksums").ok()
    assert "of the same checksums" in run.out, run.out[-2000:]


def any_backup(server, db, path):
    any_firn(server, "backup", "-d", db, path)
    return path


def across(world):
    """An archive of another version: objects by kind, name and owner."""
    path = archive(world)
    server = world.server(NEW)
    server.roles("zoo_owner", "zoo_reader", "zoo_super SUPERUSER")
    server.fresh("target")
    run = firn(server, "target", path, "--verify=checksums", "--pg-dump", os.path.join(server.bin, "pg_dump"),
               env=server.env).ok()
    assert f"made by pg_dump {OLD}" in run.out and "equal to the archive" in run.out, run.out[-2000:]


def cases(world):
    for name in FLAGS:
        yield f"verified {name}", lambda n=name: equal(world, n, "c")
    yield "verified directory", lambda: equal(world, "all", "d")
    yield "verified against defaults", lambda: different(world)
    yield "verified with the source", lambda: to_source(world)
    yield "verified by a manifest", lambda: manifest(world)
    yield "verified across versions", lambda: across(world)
