"""Fewer connections than were asked for; databases that a killed restore has begun to make."""
import os
import shutil
import threading
import time

import psycopg

from harness import proxy as px
from harness.proxy import Proxy
from restore import flags
from restore.common import OLD, Server, firn, same_blocks

FEWER, LOST = "working with fewer connections", "the connection to the server was lost"


def narrow(world):
    """A server that takes few connections."""
    def make():
        server = Server(OLD, ("max_connections=6", "superuser_reserved_connections=0", "max_wal_senders=0"), "crowded")
        world.servers["crowded"] = server
        server.create()
        for role in ("zoo_owner", "zoo_reader", "zoo_super"):
            with server.connect() as c:
                c.execute(f"CREATE ROLE {role}")
        return server
    return world.once("crowded", make)


def few(world, taken):
    """A server that has not room for all: one warning, and all is restored by those there are."""
    server = narrow(world)
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


def place_taken(world):
    """A connection is lost, and somebody else has its place before it is made again: the others do what is left, and go on with what
    they do meanwhile."""
    server = narrow(world)
    with server.connect(server.fresh("places")) as c:
        for n in range(8):
            c.execute(f"CREATE TABLE t{n} AS SELECT i, md5(i::text) FROM generate_series(1, 3000) i")
    path = world.archive("places", lambda p: server.archive("places", p, "c"))
    server.pg_restore(server.fresh("oracle"), path)
    for _ in range(6):
        server.fresh("target")
        others, done = [], threading.Event()

        def crowd():
            while not done.is_set():
                try:
                    others.append(server.connect())
                except psycopg.OperationalError:
                    time.sleep(0.001)
        crowding = threading.Thread(target=crowd)
        with Proxy(os.path.join(server.root, "places"), server.root) as proxy:
            def fault(message):
                if b"COPY public.t" not in message.sql:
                    return None
                crowding.start()
                # All places but that of this one are taken before it is cut.
                time.sleep(0.5)
                return px.cut_before
            proxy.arm(fault)
            child = firn(server, "target", path, *proxy.where("target"), "-j", "2", where=False, wait=False)
            try:
                while child.poll() is None and not any(text in child.read() for text in (FEWER, LOST)):
                    time.sleep(0.01)
            finally:
                done.set()
                crowding.join()
                for other in others:
                    other.close()
            run = child.wait()
            assert proxy.fired.is_set(), run.out
        shutil.rmtree(os.path.join(server.root, "places"), ignore_errors=True)
        run.ok()
        assert "connecting again" in run.out and LOST not in run.out, run.out
        same_blocks(server.dump("oracle"), server.dump("target"))
        # It may have been quicker than the others.
        if FEWER in run.out:
            return
    raise AssertionError(f"its place was never taken: {run.out}")


def name_held(world):
    """A program that is about to make a database of this name, and is gone without the server knowing, is not waited for."""
    server = world.server()
    with server.connect(server.fresh("held")) as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS i")
    path = world.archive("held", lambda p: server.archive("held", p, "c"))
    gone = server.connect()
    try:
        gone.execute("DROP DATABASE held")
        gone.execute("SELECT pg_advisory_lock(1718186607, hashtext('held'))")
        run = firn(server, "postgres", path, "-C", patience=60).ok()
        assert "another restore creates or removes a database of this name" in run.out, run.out
    finally:
        gone.close()
    with server.connect("held") as c:
        assert c.execute("SELECT i FROM t").fetchone() == (1,)


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
    yield "crowded, place taken", lambda: place_taken(world)
    yield "crowded, name held", lambda: name_held(world)
