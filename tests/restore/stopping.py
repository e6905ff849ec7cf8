"""Ctrl-C and SIGTERM, wherever a restore is: what runs is cancelled, the exit code is 130, and the same command does what is left."""
import os
import shutil
import signal
import subprocess
import time

from harness import proxy as px
from harness.proxy import Proxy
from restore.common import PANIC, firn, program, same_blocks

WAITS = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'firn' AND wait_event_type = 'Lock' AND query ~ '{}'"
# When somebody has changed a catalog meanwhile, as autovacuum does, a session begins by opening all catalogs.
BEGINS = "SELECT 2 FROM pg_stat_activity WHERE backend_type = 'client backend' AND wait_event_type = 'Lock' AND query = ''"


class AtItsBeginning(Exception):
    """The program's session waits for the lock before it has begun."""


def source(world):
    def make():
        server = world.server()
        with server.connect(server.fresh("stopping")) as c:
            c.execute("CREATE TABLE a AS SELECT i FROM generate_series(1, 100) i; CREATE TABLE b AS SELECT i FROM generate_series(1, 100) i")
            c.execute("CREATE INDEX late ON b (i); CREATE SCHEMA s; CREATE TABLE s.c (i int)")
        server.pg_restore(server.fresh("stopping_oracle"), server.archive("stopping", os.path.join(world.folder, "stopping"), "c"))
        return os.path.join(world.folder, "stopping")
    return world.once("stopping", make)


def large(world):
    """So many partitions that they are tried on the server first."""
    def make():
        server = world.server()
        with server.connect(server.fresh("stopping_large")) as c:
            c.execute("CREATE TABLE p (i int) PARTITION BY RANGE (i)")
            for n in range(260):
                c.execute(f"CREATE TABLE p{n} PARTITION OF p FOR VALUES FROM ({n}) TO ({n + 1})")
        return server.archive("stopping_large", os.path.join(world.folder, "stopping-large"), "c")
    return world.once("stopping large", make)


def stopped(child):
    """It hears the signal, and ends."""
    child.process.send_signal(signal.SIGINT)
    run = child.wait(px.PATIENCE)
    assert run.code == 130 and "canceled by user" in run.out and "restore complete" not in run.out, (run.code, run.out[-3000:])
    assert not PANIC.search(run.out), run.out
    return run


def at_lock(server, path, lock, query, *args, db="target"):
    """Stopped while it waits for a lock that somebody has taken in this database."""
    with server.connect(db, autocommit=False) as other, server.connect() as c:
        other.execute(lock)
        child = firn(server, db, path, *args, wait=False)
        try:
            if child.until(c, f"{WAITS.format(query)} UNION ALL {BEGINS}") == (2,):
                raise AtItsBeginning
            return stopped(child)
        finally:
            other.rollback()
            if child.poll() is None:
                child.process.kill()


def complete(world, path, *args, oracle="stopping_oracle"):
    server = world.server()
    firn(server, "target", path, *args).ok()
    same_blocks(server.dump(oracle), server.dump("target"))


def dropping(world):
    server, path = world.server(), source(world)
    server.pg_restore(server.fresh("target"), path)
    run = at_lock(server, path, "LOCK TABLE a IN ACCESS SHARE MODE", "^DROP TABLE", "-c", "--if-exists")
    assert "What was dropped by then stays dropped" in run.out, run.out
    with server.connect("target") as c:
        assert c.execute("SELECT to_regclass('a') IS NOT NULL, to_regnamespace('firn_restore') IS NULL").fetchone() == (True, True)
    # There is no journal: --resume says what this may be, and what to do.
    firn(server, "target", path, "-c", "--if-exists", "--resume").fails("have ended before it had dropped all", "Without --resume")
    complete(world, path, "-c", "--if-exists")


def emptying(world):
    """Stopped before a table is emptied: nothing was changed, and the same command does it."""
    server, path = world.server(), source(world)
    server.pg_restore(server.fresh("target"), path)
    args = ("-a", "--truncate-table", "-j", "1")
    run = at_lock(server, path, "LOCK TABLE a, b IN ACCESS SHARE MODE", "^(BEGIN;|LOCK TABLE)", *args)
    assert "Nothing was changed" in run.out, run.out
    firn(server, "target", path, *args, "--resume").fails("have ended before it changed anything", "Without --resume")
    complete(world, path, *args)


def beginning(world):
    """The journal cannot be begun yet; nor can the trial."""
    server = world.server()
    for path in (source(world), large(world)):
        server.fresh("target")
        at_lock(server, path, "LOCK TABLE pg_catalog.pg_namespace IN SHARE MODE", "CREATE SCHEMA")
        with server.connect("target") as c:
            assert c.execute("SELECT to_regnamespace('firn_restore') IS NULL").fetchone() == (True,)
        complete(world, path, oracle="stopping_oracle" if path == source(world) else "stopping_large")


def ending(world):
    """Somebody looks into the journal when it is to go."""
    server, path = world.server(), source(world)
    server.fresh("target")
    folder = os.path.join(server.root, "stopping")
    with Proxy(folder, server.root) as proxy, server.connect("target", autocommit=False) as other, server.connect() as c:
        proxy.arm(px.matching(rb"DROP TABLE firn_restore", px.call(lambda _: other.execute("SELECT FROM firn_restore.run"))))
        child = firn(server, "target", path, *proxy.where("target"), where=False, wait=False)
        child.until(c, WAITS.format("DROP TABLE firn_restore"))
        run = stopped(child)
        assert "--resume" in run.out, run.out
        other.rollback()
    shutil.rmtree(folder)
    complete(world, path, "--resume")


def creating(world):
    server, path = world.server(), source(world)
    with server.connect() as c:
        c.execute("DROP DATABASE stopping")
        at_lock(server, path, "LOCK TABLE pg_catalog.pg_database IN SHARE MODE", "^CREATE DATABASE", "-C", db="postgres")
        assert not server.exists("stopping")
        # One that is in use is waited for, for a while.
        server.fresh("stopping")
        with server.connect("stopping"):
            child = firn(server, "postgres", path, "-C", "-c", wait=False)
            child.until(c, "SELECT 1 FROM pg_stat_activity WHERE query ~ '^DROP DATABASE stopping' AND state = 'active'")
            stopped(child)
        firn(server, "postgres", path, "-C", "-c").ok()
    same_blocks(server.dump("stopping_oracle"), server.dump("stopping"))


def in_order(world):
    """On one connection, before the first statement."""
    server, path = world.server(), source(world)
    for more in (["-1"], ["--transaction-size=2"]):
        for again in (True, True, True, True, False):
            server.fresh("target")
            try:
                at_lock(server, path, "LOCK TABLE pg_catalog.pg_ts_parser IN ACCESS EXCLUSIVE MODE", "pg_ts_parser", *more, "--redirect-schema=s:t")
                break
            except AtItsBeginning:
                assert again


def between(world):
    """The request comes before the statement does."""
    server, path = world.server(), source(world)
    for more in (["-j", "1"], ["-1"]):
        server.fresh("target")
        folder = os.path.join(server.root, "stopping")
        with Proxy(folder, server.root) as proxy, server.connect("target", autocommit=False) as other:
            children = []

            def stop(m):
                other.execute("LOCK TABLE pg_catalog.pg_index IN SHARE MODE")
                before = proxy.connections
                children[0].process.send_signal(signal.SIGINT)
                # One more connection asks to cancel; what was to be cancelled is not there yet.
                end = time.time() + px.PATIENCE
                while proxy.connections == before:
                    assert time.time() < end, "nothing is cancelled"
                    time.sleep(0.01)
                time.sleep(0.1)
                m.connection.forward(m)
            proxy.arm(px.matching(rb"CREATE INDEX late", stop))
            children.append(firn(server, "target", path, *proxy.where("target"), *more, where=False, wait=False))
            try:
                run = children[0].wait(px.PATIENCE)
            finally:
                other.rollback()
                if children[0].poll() is None:
                    children[0].process.kill()
            assert run.code == 130 and not proxy.trouble, (run.code, proxy.trouble, run.out[-3000:])
        shutil.rmtree(folder)


def nothing_done(world):
    """Before the first step is done: nothing was changed, and no journal is left."""
    server, path = world.server(), source(world)
    with server.connect(server.fresh("target")) as c:
        c.execute("CREATE TABLE a (i int); CREATE TABLE b (i int); CREATE SCHEMA s; CREATE TABLE s.c (i int)")
    run = at_lock(server, path, "LOCK TABLE a, b, s.c IN ACCESS EXCLUSIVE MODE", "^(BEGIN|COPY)", "-a", "-j", "2", "--no-analyze")
    assert "Nothing was changed" in run.out, run.out
    firn(server, "target", path, "-a").ok()


def reading(world):
    """Nothing comes from standard input, or nobody reads what is written."""
    server, path = world.server(), source(world)
    server.fresh("target")
    for args in ([*server.where("target"), "-"], [*server.where("target"), "-1", "-"], ["-l", "-"], ["-f", "-", "-"], ["--dry-run", "-"]):
        child = subprocess.Popen([*program(), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        end = time.time() + px.PATIENCE
        while not any("firn-input" in target for target in links(child.pid)):
            assert time.time() < end and child.poll() is None, args
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        try:
            # Its input stays open until it has ended.
            child.wait(px.PATIENCE)
        finally:
            child.kill()
            out, err = child.communicate()
        assert child.returncode == 130, (args, child.returncode, out, err)
    with server.connect(server.fresh("stopping_rows")) as c:
        c.execute("CREATE TABLE t AS SELECT i FROM generate_series(1, 100000) i")
    path = server.archive("stopping_rows", os.path.join(world.folder, "stopping-rows"), "c")
    child = subprocess.Popen([*program(), "-f", "-", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    child.stdout.read(1)
    child.send_signal(signal.SIGTERM)
    assert child.wait(px.PATIENCE) == 130, child.returncode
    child.stdout.close()


def links(pid):
    """What the open files of a process are."""
    folder = f"/proc/{pid}/fd"
    found = []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(os.path.join(folder, name)))
        except FileNotFoundError:
            pass
    return found


def cases(world):
    for body in (dropping, emptying, beginning, ending, creating, in_order, between, nothing_done, reading):
        yield f"stopping {body.__name__.replace('_', ' ')}", lambda b=body: b(world)
