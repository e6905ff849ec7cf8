"""Fewer connections than were asked for; databases that a killed restore has begun to make."""
import os
import shutil
import time

from harness import proxy as px
from harness.proxy import Proxy
from restore import flags
from restore.common import OLD, Server, firn, same_blocks

FEWER = "working with fewer connections"


def few(world, taken):
    """A server that has not room for all: one warning, and all is restored by those there are."""
    def make():
        server = Server(OLD, ("max_connections=6", "superuser_reserved_connections=0", "max_wal_senders=0"), "crowded")
        world.servers["crowded"] = server
        server.create()
        for role in ("zoo_owner", "zoo_reader", "zoo_super"):
            with server.connect() as c:
                c.execute(f"CREATE ROLE {role}")
        return server
    server = world.once("crowded", make)
    path = flags.archive(world)
    server.fresh("oracle")
    server.pg_restore("oracle", path, "-O", "-x", "--no-tablespaces")
    # Those that there are may have done all before the first that there is not was asked for: then there is nothing to warn of.
    for _ in range(6):
        server.fresh("target")
        others = [server.connect() for _ in range(taken)]
        try:
            run = firn(server, "target", path, "-j", "8", "-O", "-x", "--no-tablespaces").ok()
        finally:
            for other in others:
                other.close()
        warned = run.out.count(FEWER)
        assert warned <= 1 and "connection was lost" not in run.out and "to the server was lost" not in run.out, run.out
        same_blocks(server.dump("oracle"), server.dump("target"))
        if warned:
            return
    raise AssertionError(f"nothing is said of the connections that there are not: {run.out}")


def owner(world):
    """A database that -C makes has its owner from the beginning: whoever resumes finds no other."""
    server = world.server()
    with server.connect() as c:
        c.execute("DROP DATABASE IF EXISTS owned WITH (FORCE)")
        c.execute("DO $$ BEGIN CREATE ROLE database_owner; EXCEPTION WHEN duplicate_object THEN END $$")
        c.execute("CREATE DATABASE owned OWNER database_owner")
    with server.connect("owned") as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS i")
    path = world.archive("owned", lambda p: server.archive("owned", p, "c"))
    sql = "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'owned'"
    for more in ([], ["-O"]):
        with server.connect() as c:
            c.execute("DROP DATABASE owned")
        with Proxy(os.path.join(server.root, "owned"), server.root) as proxy:
            proxy.arm(px.matching(rb"^CREATE DATABASE", px.cut_after))
            firn(server, "postgres", path, *proxy.where("postgres"), "-C", *more, where=False).fails()
            assert proxy.fired.is_set()
        shutil.rmtree(os.path.join(server.root, "owned"), ignore_errors=True)
        run = firn(server, "postgres", path, "-C", "--resume", *more).ok()
        with server.connect() as c:
            assert c.execute(sql).fetchone() == ("postgres" if more else "database_owner",), run.out
        with server.connect("owned") as c:
            assert c.execute("SELECT i FROM t").fetchone() == (1,)


def another(world):
    """An error about another connection than ours is one of its statement."""
    server = world.server()
    with server.connect(server.fresh("far")) as c:
        c.execute("CREATE FUNCTION far(int) RETURNS bool LANGUAGE plpgsql AS $$BEGIN IF current_database() <> 'far' THEN "
                  "RAISE EXCEPTION 'it is far away' USING ERRCODE = '08006'; END IF; RETURN true; END$$")
        c.execute("CREATE TABLE t (i int CHECK (far(i))); INSERT INTO t VALUES (1); CREATE TABLE u AS SELECT 2 AS i; CREATE INDEX late ON t (i)")
    path = world.archive("far", lambda p: server.archive("far", p, "c"))
    server.pg_restore(server.fresh("oracle"), path, check=False)
    for jobs in ("1", "3"):
        run = firn(server, server.fresh("target"), path, "-j", jobs, "--on-error=continue").fails("it is far away")
        assert run.code == 1 and "errors ignored on restore: 1" in run.out and "was lost" not in run.out, run.out
        same_blocks(server.dump("oracle"), server.dump_beside_journal("target"))


def cases(world):
    yield "crowded, another connection", lambda: another(world)
    for taken in (0, 3, 4):
        yield f"crowded, {taken} taken", lambda t=taken: few(world, t)
    yield "crowded, owner of a database", lambda: owner(world)
