"""Fewer connections than were asked for; databases that a killed restore has begun to make."""
import os
import re
import shutil
import signal
import threading
import time

import psycopg

from harness import proxy as px
from harness.hold import Hold
from harness.proxy import Proxy
from restore import flags
from restore.common import OLD, Server, firn, same_blocks
from restore.faults import SERVERS, Battered

FEWER, LOST = "working with fewer connections", "the connection to the server was lost"


def narrow(world):
    """A server that takes few connections."""
    def make():
        server = Server(OLD, ("max_connections=6", "superuser_reserved_connections=0", "max_wal_senders=0"), "crowded")
        world.servers["crowded"] = server
        server.create()
        server.roles("zoo_owner", "zoo_reader", "zoo_super")
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


class Crowd:
    """Takes all places of a server that are free, from `begin` on until it is over."""

    def __init__(self, server):
        self.server, self.others, self.done = server, [], threading.Event()
        self.thread = threading.Thread(target=self.take)

    def take(self):
        while not self.done.is_set():
            try:
                self.others.append(self.server.connect())
            except psycopg.OperationalError:
                time.sleep(0.001)

    def begin(self):
        self.thread.start()
        # All but those that somebody has are taken when this returns.
        time.sleep(0.5)

    def begun(self):
        return bool(self.thread.ident)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.done.set()
        if self.begun():
            self.thread.join()
        for other in self.others:
            other.close()


class Closed:
    """As [Crowd], for whoever gives up his own place first, which he might have again: nobody may connect to `target` any more."""

    def __init__(self, server):
        self.server, self.is_begun = server, False

    def allow(self, whether):
        with self.server.connect() as c:
            c.execute(f"ALTER DATABASE target ALLOW_CONNECTIONS {whether}")

    def begin(self):
        self.is_begun = True
        self.allow("false")

    def begun(self):
        return self.is_begun

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.allow("true")


def taking_places(server, path, fault, *args):
    """Restore with two connections into `target`; `fault(message, crowd)` may return what is done at a message, and call `crowd`, after
    which all places but those of the restore are taken."""
    folder = os.path.join(server.root, "places")
    with Crowd(server) as crowd, Proxy(folder, server.root) as proxy:
        # All places but that of this one are taken before it is cut.
        proxy.arm(lambda message: fault(message, crowd.begin), again=True)
        child = firn(server, "target", path, *proxy.where("target"), "-j", "2", *args, where=False, wait=False)
        with crowd:
            while child.poll() is None and not any(text in child.read() for text in (FEWER, LOST)):
                time.sleep(0.01)
        run = child.wait()
        assert crowd.begun() and not proxy.trouble, f"{proxy.trouble}\n{run.out}"
    shutil.rmtree(folder, ignore_errors=True)
    assert "connecting again" in run.out and LOST not in run.out, run.out
    return run


def until_taken(attempt):
    """The place may be had again sooner than the others have it: then all that again."""
    for _ in range(6):
        run = attempt()
        if FEWER in run.out:
            return
    raise AssertionError(f"its place was never taken: {run.out}")


def place_taken(world):
    """A connection is lost, and somebody else has its place before it is made again: the others do what is left, and go on with what
    they do meanwhile."""
    server = narrow(world)
    with server.connect(server.fresh("places")) as c:
        for n in range(8):
            c.execute(f"CREATE TABLE t{n} AS SELECT i, md5(i::text) FROM generate_series(1, 3000) i")
    path = world.archive("places", lambda p: server.archive("places", p, "c"))
    server.pg_restore(server.fresh("oracle"), path)

    def attempt():
        server.fresh("target")
        cut = []

        def fault(message, crowd):
            if cut or b"COPY public.t" not in message.sql:
                return None
            cut.append(message)
            crowd()
            return px.cut_before
        run = taking_places(server, path, fault).ok()
        same_blocks(server.dump("oracle"), server.dump("target"))
        return run
    until_taken(attempt)


def place_of_analyze(world, jobs, last, barrier, why):
    """Others have all places when what was restored is to be analyzed: it is restored, and that nothing is analyzed is told. `last`: what is
    sent then."""
    server = narrow(world)
    with server.connect(server.fresh("places")) as c:
        c.execute("CREATE TABLE t AS SELECT i FROM generate_series(1, 3000) i")
    path = world.archive("places-analyzed", lambda p: server.archive("places", p, "c"))
    server.pg_restore(server.fresh("oracle"), path)
    server.fresh("target")
    folder = os.path.join(server.root, "places")
    with barrier(server) as crowd, Proxy(folder, server.root) as proxy:
        proxy.arm(lambda message: crowd.begin() if last in message.sql and not crowd.begun() else None, again=True)
        run = firn(server, "target", path, *proxy.where("target"), jobs, where=False)
        assert crowd.begun() and not proxy.trouble, f"{proxy.trouble}\n{run.out}"
    shutil.rmtree(folder, ignore_errors=True)
    run.ok()
    assert "nothing is analyzed" in run.out and why in run.out and "run ANALYZE" in run.out, run.out
    same_blocks(server.dump("oracle"), server.dump("target"))


def only_place(world):
    """A role that may have one session only: what restores in one transaction, and has ended, leaves its place to ANALYZE."""
    server = narrow(world)
    with server.connect(server.fresh("places")) as c:
        c.execute("CREATE TABLE t AS SELECT i FROM generate_series(1, 3000) i")
        c.execute("DO $$ BEGIN CREATE ROLE lonely SUPERUSER LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
    path = world.archive("places-lonely", lambda p: server.archive("places", p, "c"))
    for flag in ("-1", "--transaction-size=10"):
        # (A limit of a role is none for superusers, that of a database is.)
        with server.connect(server.fresh("target")) as c:
            c.execute("ALTER ROLE lonely NOSUPERUSER CONNECTION LIMIT 1; ALTER DATABASE target OWNER TO lonely; GRANT ALL ON SCHEMA public TO lonely")
        run = firn(server, "target", path, flag, "-O", "-h", server.root, "-p", str(server.port), "-U", "lonely", "-d", "target", where=False).ok()
        assert "nothing is analyzed" not in run.out, run.out
        with server.connect("target") as c:
            assert c.execute("SELECT count(*), (SELECT count(*) FROM pg_stats WHERE tablename = 't') FROM t").fetchone() == (3000, 1)


def lost_while_waiting(world):
    """The server crashes, and comes back, while ANALYZE waits for a place: what one transaction has restored is not told as complete, as
    unlogged tables are empty; restored by several, it is restored again. The database is dropped meanwhile: as little."""
    server = Battered(OLD, ("restart_after_crash=on", "autovacuum=off", *SERVERS["off"]), "lost")
    world.servers["lost"] = server
    server.create()
    with server.connect(server.fresh("places")) as c:
        c.execute("CREATE UNLOGGED TABLE t AS SELECT i FROM generate_series(1, 3000) i")
    path = world.archive("places-lost", lambda p: server.archive("places", p, "c"))
    for flag, last, drop in (("-1", b"COMMIT", False), ("-j1", b"pg_catalog.count(*)", False), ("-1", b"COMMIT", True)):
        server.fresh("target")
        folder = os.path.join(server.root, "places")
        with Closed(server) as closed, Proxy(folder, server.root) as proxy:
            proxy.arm(lambda message: closed.begin() if last in message.sql and not closed.begun() else None, again=True)
            child = firn(server, "target", path, *proxy.where("target"), flag, where=False, wait=False)
            while "analyzing" not in child.read():
                assert child.poll() is None, child.read()
                time.sleep(0.01)
            time.sleep(0.3)
            with server.connect() as c:
                if drop:
                    c.execute("DROP DATABASE target WITH (FORCE)")
                    c.execute("CREATE DATABASE target")
                else:
                    other = server.connect()
                    os.kill(other.info.backend_pid, signal.SIGKILL)
                    server.wait_recovered()
            closed.allow("true")
            run = child.wait()
        shutil.rmtree(folder, ignore_errors=True)
        if flag == "-1":
            assert run.code == 1 and "restore complete" not in run.out and "lost when all was restored" in run.out, (run.code, run.out)
        else:
            run.ok()
            with server.connect("target") as c:
                assert c.execute("SELECT count(*) FROM t").fetchone() == (3000,)


def stopped_while_waiting(world):
    """A stop while ANALYZE waits for a place is one: it is told, with what to do, and no success."""
    server = narrow(world)
    with server.connect(server.fresh("places")) as c:
        c.execute("CREATE TABLE t AS SELECT i FROM generate_series(1, 3000) i")
    path = world.archive("places-stopped", lambda p: server.archive("places", p, "c"))
    for flag, last, barrier in (("-1", b"COMMIT", Closed), ("-j1", b"pg_catalog.count(*)", Crowd)):
        server.fresh("target")
        folder = os.path.join(server.root, "places")
        with barrier(server) as crowd, Proxy(folder, server.root) as proxy:
            proxy.arm(lambda message: crowd.begin() if last in message.sql and not crowd.begun() else None, again=True)
            child = firn(server, "target", path, *proxy.where("target"), flag, where=False, wait=False)
            while "analyzing" not in child.read():
                assert child.poll() is None, child.read()
                time.sleep(0.01)
            time.sleep(0.3)
            child.process.send_signal(signal.SIGINT)
            run = child.wait()
        shutil.rmtree(folder, ignore_errors=True)
        assert run.code == 130 and "All is restored" in run.out and "nothing is analyzed" not in run.out, (run.code, run.out)
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM t").fetchone() == (3000,)


def stopped_behind_a_lock(world):
    """A stop while what is to be analyzed is looked up, which waits for somebody's lock on another table."""
    server = world.server()
    with server.connect(server.fresh("places")) as c:
        c.execute("CREATE TABLE t AS SELECT i FROM generate_series(1, 3000) i")
    path = world.archive("places-locked", lambda p: server.archive("places", p, "c"))
    for flag in ("-1", "-j1"):
        with server.connect(server.fresh("target")) as other:
            other.execute("CREATE TABLE theirs (i int)")
            other.execute("BEGIN; LOCK TABLE theirs")
            child = firn(server, "target", path, flag, wait=False)
            waits = "SELECT 1 FROM pg_stat_activity WHERE datname = 'target' AND wait_event_type = 'Lock'"
            with server.connect() as c:
                child.until(c, waits)
            child.process.send_signal(signal.SIGINT)
            run = child.wait(30)
        assert run.code == 130 and "All is restored" in run.out, (run.code, run.out)


def place_of_pieces(world):
    """The same while a step is done entry by entry, as one of them cannot be: others go on where it was broken off."""
    server = narrow(world)
    with server.connect(server.fresh("places")) as c:
        for n in range(8):
            c.execute(f"CREATE TABLE t{n} AS SELECT 1 AS i; GRANT SELECT ON t{n} TO PUBLIC")
    path = world.archive("places-granted", lambda p: server.archive("places", p, "c"))

    def target(name):
        with server.connect(server.fresh(name)) as c:
            c.execute("CREATE TABLE t3 (other text)")
        return name
    server.pg_restore(target("oracle"), path, check=False)
    with server.connect("oracle") as c:
        # What cannot be restored is not granted, either.
        c.execute("REVOKE SELECT ON t3 FROM PUBLIC")

    def attempt():
        target("target")
        cut = []

        def fault(message, crowd):
            # By itself, after others of its kind.
            if cut or message.sql.count(b"GRANT SELECT ON TABLE ") != 1 or b"GRANT SELECT ON TABLE public.t5 TO" not in message.sql:
                return None
            cut.append(message)
            crowd()
            return px.cut_before
        run = taking_places(server, path, fault, "--on-error", "continue").fails("t3", "errors ignored on restore: 1")
        with server.connect("target") as c:
            c.execute("REVOKE SELECT ON t3 FROM PUBLIC")
        same_blocks(server.dump("oracle"), server.dump_beside_journal("target"))
        return run
    until_taken(attempt)


def place_of_second_try(world):
    """The same while a step has its second try, when nothing else runs: that was none, and it has one still."""
    server = narrow(world)
    with server.connect(server.fresh("places")) as c:
        for n in range(8):
            c.execute(f"CREATE TABLE t{n} (i int)")
    path = world.archive("places-schema", lambda p: server.archive("places", p, "c", extra=["-s"]))
    server.pg_restore(server.fresh("oracle"), path)

    def attempt():
        server.fresh("target")
        tries = []

        def fault(message, crowd):
            if b"CREATE TABLE public.t5 " not in message.sql:
                return None
            # With others, and then by itself, when it is put off.
            if message.sql.count(b"CREATE TABLE public.") > 1:
                return px.error("40P01", 1)
            tries.append(message)
            if len(tries) == 2:
                crowd()
                return px.cut_before
            return px.error("40P01", 1) if len(tries) in (1, 3) else None
        run = taking_places(server, path, fault)
        # Where the place was had again sooner, the third was a part of the second try, which has failed.
        if FEWER not in run.out:
            return run
        run.ok()
        same_blocks(server.dump("oracle"), server.dump("target"))
        return run
    until_taken(attempt)


def pass_lost(world):
    """A statement fails, and then the connection is lost that a pass begins and ends with: the statement is tried again, and counts as the
    second try ends."""
    server = world.server()
    with server.connect(server.fresh("passes")) as c:
        for n in range(6):
            c.execute(f"CREATE TABLE t{n} AS SELECT 1 AS i")
    path = world.archive("passes", lambda p: server.archive("passes", p, "c"))
    server.pg_restore(server.fresh("oracle"), path)
    for again in (False, True):
        server.fresh("target")
        keeper, copies, lost = [], [], []

        def fault(message):
            keeper.append(message.connection)
            table = [t for t in range(6) if f"COPY public.t{t} ".encode() in message.sql]
            copies.extend(table)
            # The fourth table's: the first one has failed with others in one transaction, and by itself.
            if len(set(copies)) == 4 and not lost:
                lost.append(message)
                with server.connect() as c:
                    c.execute("SELECT pg_terminate_backend(%s, 10000)", (keeper[0].pid,))
            if table and copies[0] == table[0] and (again or not lost):
                return px.error("23514")
            return None
        folder = os.path.join(server.root, "passes")
        with Proxy(folder, server.root) as proxy:
            proxy.arm(fault, again=True)
            run = firn(server, "target", path, *proxy.where("target"), "-j", "1", "--on-error", "continue", where=False)
            assert not proxy.trouble, proxy.trouble
        shutil.rmtree(folder, ignore_errors=True)
        assert LOST in run.out and lost and copies[-1] == copies[0], (copies, run.out)
        assert "a fault of the test" in run.out, run.out
        if again:
            run.fails("errors ignored on restore: 1", "restore NOT complete: 1 object failed")
        else:
            run.ok()
            same_blocks(server.dump("oracle"), server.dump("target"))


def name_held(world):
    """A program that is about to make a database of this name, and is gone without the server knowing, is not waited for; one that works is,
    whatever database it is connected to."""
    server = world.server()
    with server.connect(server.fresh("held")) as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS i")
    path = world.archive("held", lambda p: server.archive("held", p, "c"))
    held = "another restore creates or removes a database of this name"
    server.fresh("elsewhere")
    for at in ("postgres", "elsewhere"):
        with server.connect() as c:
            c.execute("DROP DATABASE held")
        gone = server.connect(at)
        try:
            gone.execute("SELECT pg_advisory_lock(1718186607, hashtext('held'))")
            run = firn(server, "postgres", path, "-C", patience=60).ok()
            assert held in run.out, run.out
        finally:
            gone.close()
        with server.connect("held") as c:
            assert c.execute("SELECT i FROM t").fetchone() == (1,)
        with server.connect() as c:
            c.execute("DROP DATABASE held")
        busy = server.connect(at)
        done = threading.Event()

        def work():
            busy.execute("SELECT pg_advisory_lock(1718186607, hashtext('held'))")
            while not done.is_set():
                busy.execute("SELECT pg_sleep(0.1)")
            busy.close()
        working = threading.Thread(target=work)
        working.start()
        try:
            with server.connect() as c:
                while not c.execute("SELECT 1 FROM pg_locks WHERE classid = 1718186607 AND granted").fetchone():
                    time.sleep(0.01)
            child = firn(server, "postgres", path, "-C", wait=False)
            while child.poll() is None and held not in child.read():
                time.sleep(0.01)
            assert child.poll() is None and not server.exists("held"), child.read()
        finally:
            done.set()
            working.join()
        child.wait().ok()


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


def late(world):
    """A worker that gets its connection only when the server has crashed and come back, while another one waits for its archive and has
    noticed nothing: it does nothing by what was so before the crash, the journal is read anew."""
    server = Battered(OLD, ("max_connections=6", "superuser_reserved_connections=0", "max_wal_senders=0", "restart_after_crash=on",
                            "autovacuum=off", "log_connections=on", "log_disconnections=on", *SERVERS["off"]), "late")
    world.servers["late"] = server
    server.create()
    with server.connect(server.fresh("late")) as c:
        c.execute("CREATE TABLE slow AS SELECT i, repeat(md5(i::text), 20) AS t FROM generate_series(1, 3000) i")
        for n in range(4):
            c.execute(f"CREATE TABLE t{n} AS SELECT i FROM generate_series(1, 100) i; CREATE INDEX ON t{n} (i)")
    path = world.archive("late", lambda p: server.archive("late", p, "d", "0"))
    # The largest comes first.
    rows = max((name for name in os.listdir(path) if name[0].isdigit()), key=lambda name: os.path.getsize(os.path.join(path, name)))
    server.pg_restore(server.fresh("oracle"), path)
    server.fresh("target")
    hold = Hold(server, f"open:{rows}")
    # One place for what looks after the restore, and one for a worker.
    others = [server.connect() for _ in range(4)]
    child = firn(server, "target", path, "-j", "2", env=hold.env, wait=False)
    try:
        hold.reached(child.process)
        while FEWER not in child.read():
            assert child.poll() is None, child.read()
            time.sleep(0.01)
        with open(server.log) as log:
            log.seek(0, os.SEEK_END)
            os.kill(others[0].info.backend_pid, signal.SIGKILL)
            server.wait_recovered()
            end, seen = time.time() + px.PATIENCE, ""
            while not re.search("disconnection: .*database=target", seen):
                assert time.time() < end and child.poll() is None, f"the late worker works\n{child.read()}\n{seen}"
                seen += log.read()
                time.sleep(0.05)
    finally:
        hold.go()
    run = child.wait().ok()
    assert LOST in run.out, run.out
    same_blocks(server.dump("oracle"), server.dump("target"))


def cases(world):
    yield "crowded, late", lambda: late(world)
    yield "crowded, another connection", lambda: another(world)
    for taken in (0, 3, 4):
        yield f"crowded, {taken} taken", lambda t=taken: few(world, t)
    yield "crowded, owner of a database", lambda: owner(world)
    yield "crowded, place taken", lambda: place_taken(world)
    # Its worker has ended when it counts, on the connection that it began with.
    yield "crowded, place of ANALYZE", lambda: place_of_analyze(world, "-j1", b"pg_catalog.count(*)", Crowd, "too many clients")
    yield "crowded, place of ANALYZE -1", lambda: place_of_analyze(world, "-1", b"COMMIT", Closed, "not currently accepting connections")
    yield "crowded, the only place", lambda: only_place(world)
    yield "crowded, lost while waiting", lambda: lost_while_waiting(world)
    yield "crowded, stopped behind a lock", lambda: stopped_behind_a_lock(world)
    yield "crowded, stopped while waiting", lambda: stopped_while_waiting(world)
    yield "crowded, place of pieces", lambda: place_of_pieces(world)
    yield "crowded, place of a second try", lambda: place_of_second_try(world)
    yield "crowded, pass lost", lambda: pass_lost(world)
    yield "crowded, name held", lambda: name_held(world)
