"""Killed at random moments, resumed, and equal all the same: the program, one of its connections, one of the processes that
serve it (the server then ends all others and starts anew by itself), the server. The server answers a COMMIT before or after it is durable.

FIRN_KILLS sets how many of each kind at least (default 6; 250 makes the 1,000 of a release); FIRN_KILL_SEED repeats a run.
"""
import os
import random
import signal
import time

from restore import common, roundtrip
from restore.common import OLD, PANIC, firn, same
from restore.faults import Battered, room

KINDS = ("program", "connection", "backend", "server")
COMMITS = {
    "on": "ALTER SYSTEM RESET wal_writer_delay; ALTER SYSTEM SET synchronous_commit = on",
    "off": "ALTER SYSTEM SET wal_writer_delay = '10s'; ALTER SYSTEM SET synchronous_commit = off",
}
JOBS = 3
# A restore is killed at most so often, then it may end.
MOST = 6


def settings():
    count = int(os.environ.get("FIRN_KILLS", "6"))
    seed = int(os.environ.get("FIRN_KILL_SEED") or random.SystemRandom().randrange(1 << 32))
    return count, seed


def kill(kind, server, child, dice):
    """Do it, and say whether there was something to kill: the restore may have ended meanwhile."""
    if kind == "program":
        child.process.send_signal(dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
    elif kind in ("connection", "backend"):
        with server.connect() as c:
            pids = c.execute("SELECT pid FROM pg_stat_activity WHERE datname = 'target' AND backend_type = 'client backend' "
                             "ORDER BY pid").fetchall()
            if not pids:
                return False
            pid = dice.choice(pids)[0]
            if kind == "connection":
                return c.execute("SELECT pg_terminate_backend(%s)", [pid]).fetchone()[0]
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return False
        try:
            server.wait_recovered(10)
        except AssertionError:
            # It was ending anyway.
            return False
    else:
        if dice.random() < 0.5:
            server.stop("immediate")
        else:
            server.crash()
        # It may come back while the restore waits for it, or when that has given up.
        if dice.random() < 0.6:
            come_back(server)
    return True


def come_back(server):
    """A server that was stopped runs again, with the rights it had."""
    if server.run("pg_ctl", "-D", server.data, "status", check=False).returncode != 0:
        server.start()
    server.wait_ready()


def one(server, path, dump, kind, seed, whole):
    """One restore, killed several times at random moments; returns how often it was, and the time of a whole one."""
    dice = random.Random(seed)
    commits = dice.choice(tuple(COMMITS))
    with server.connect() as c:
        for statement in COMMITS[commits].split("; "):
            c.execute(statement)
        c.execute("SELECT pg_reload_conf()")
    server.fresh("target")
    kills, resume = 0, []
    while True:
        again = kills < MOST and (kills == 0 or dice.random() < 0.6)
        child = firn(server, "target", path, "--jobs", str(JOBS), *resume, wait=False)
        if again:
            wait_somewhat(child, dice, whole)
            while child.poll() is None:
                kills += kill(kind, server, child, dice)
                # Who has lost a connection goes on, and may lose it again.
                if kind not in ("connection", "backend") or kills >= MOST or dice.random() < 0.4:
                    break
                wait_somewhat(child, dice, whole)
        run = child.wait()
        if kind in ("backend", "server"):
            come_back(server)
        assert not PANIC.search(run.out), run.out[-3000:]
        # It may have been killed between the end of its last transaction and its own.
        if run.code == 0 or resume and "there is no unfinished restore" in run.out:
            break
        assert again or run.code == 0, f"after {kills} kills {run.code}: {run.out[-3000:]}"
        resume = ["--resume"]
    same(dump, server.dump("target"), f"after {kills} kills, synchronous_commit {commits}")
    # Nothing was killed: then it is faster than was thought, and the moments must come earlier.
    return kills, whole if kills else min(whole, run.seconds)


def wait_somewhat(child, dice, whole):
    """What is left to do is less each time; the start is as interesting as the rest."""
    end = time.time() + dice.random() * whole * dice.choice((0.1, 0.5, 1.0))
    while time.time() < end and child.poll() is None:
        time.sleep(0.002)


def many(world, kind):
    count, seed = settings()
    server = world.once("kill server", lambda: started(world))
    _, dump = world.generated(roundtrip.TABLES)
    path = roundtrip.archive(world, OLD, "c", "6")
    server.fresh("target")
    whole = firn(server, "target", path, "--jobs", str(JOBS)).ok().seconds
    total, n = 0, 0
    while total < count:
        this = seed + n
        n += 1
        assert n <= 20 * count, f"only {total} of {n} restores were killed before they ended"
        try:
            kills, whole = one(server, path, dump, kind, this, whole)
            total += kills
        except BaseException:
            print(f"     {kind}: FIRN_KILL_SEED={this} FIRN_KILLS=1 may show it again", flush=True)
            come_back(server)
            raise
    print(f"     {kind}: {total} kills in {n} restores of {whole:.1f} s, seeds {seed} to {seed + n - 1}", flush=True)


def started(world):
    # In memory where there is room: a file that was written survives any kill, so the disk has no part in what is lost.
    base = "/dev/shm" if room("/dev/shm") else None
    server = Battered(OLD, conf=("fsync=on", "synchronous_commit=on", "full_page_writes=on"), name="kills", base=base)
    world.servers["kills"] = server
    server.create()
    with server.connect() as c:
        for statement in common.schema.roles():
            c.execute(statement)
    return server


def resumed_twice(world):
    """--resume of what is complete changes nothing; a second restore without it fails before it changes anything."""
    server = world.server()
    _, dump = world.generated(roundtrip.TABLES)
    path = roundtrip.archive(world, OLD, "c", "6")
    server.fresh("target")
    firn(server, "target", path, "--jobs", "2").ok()
    run = firn(server, "target", path, "--jobs", "2", "--resume")
    run.fails("there is no unfinished restore")
    assert run.code == 2, run.out
    same(dump, server.dump("target"))
    run = firn(server, "target", path, "--jobs", "2").fails("already exists")
    assert run.code == 1, run.out
    same(dump, server.dump("target"))


def other_archive(world):
    """--resume with another archive than the one begun with is refused."""
    server = world.server()
    path = roundtrip.archive(world, OLD, "c", "6")
    server.fresh("target")
    child = firn(server, "target", path, "--jobs", "2", wait=False)
    wait_for_work(server, child)
    child.process.kill()
    child.wait()
    # Its sessions end when they notice.
    gone(server)
    before = server.dump("target")
    db, _ = world.generated(150, without=("views",))
    other = world.archive("other", lambda p: server.archive(db, p, "c"))
    firn(server, "target", other, "--resume").fails()
    same(before, server.dump("target"))
    _, dump = world.generated(roundtrip.TABLES)
    firn(server, "target", path, "--resume").ok()
    same(dump, server.dump("target"))


def creating(world):
    """Killed while the server still creates the database: --resume waits until that has ended, then goes on."""
    server = world.server()
    source = server.fresh("cut_short")
    with server.connect(source) as c:
        c.execute("CREATE TABLE t AS SELECT g AS a FROM generate_series(1, 100) g")
    path = world.archive("cut_short", lambda p: server.archive(source, p, "c"))
    dump = server.dump(source, "--create")
    with server.connect() as c, server.connect() as holder:
        c.execute("DROP DATABASE cut_short")
        holder.execute("BEGIN; LOCK TABLE pg_catalog.pg_database IN SHARE MODE")
        child = firn(server, "postgres", path, "--create", wait=False)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'CREATE DATABASE%'"
        until(lambda: c.execute(waiting).fetchone() == (1,))
        child.process.kill()
        child.wait()
        child = firn(server, "postgres", path, "--create", "--resume", wait=False)
        until(lambda: "waiting for it" in child.read())
        assert c.execute(waiting).fetchone() == (1,)
        holder.execute("ROLLBACK")
        child.wait(60).ok()
    same(dump, server.dump("cut_short", "--create"))


def until(condition):
    end = time.time() + 60
    while not condition():
        assert time.time() < end, "it does not come to that"
        time.sleep(0.02)


def wait_for_work(server, child):
    """Until the restore has committed something."""
    end = time.time() + 60
    while time.time() < end and child.poll() is None:
        with server.connect("target") as c:
            if c.execute("SELECT count(*) > 20 FROM pg_class WHERE oid >= 16384").fetchone()[0]:
                return
        time.sleep(0.01)
    raise AssertionError(f"the restore has done nothing: {child.read()[-2000:]}")


def gone(server):
    end = time.time() + 30
    with server.connect() as c:
        while c.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = 'target'").fetchone() != (0,):
            assert time.time() < end, "sessions of a killed program stay"
            time.sleep(0.02)


def interrupted(world):
    """Ctrl-C ends it cleanly: exit code 130, no session stays, --resume goes on."""
    server = world.server()
    _, dump = world.generated(roundtrip.TABLES)
    path = roundtrip.archive(world, OLD, "c", "6")
    server.fresh("target")
    child = firn(server, "target", path, "--jobs", "2", wait=False)
    wait_for_work(server, child)
    child.process.send_signal(signal.SIGINT)
    begin = time.time()
    run = child.wait(20)
    assert run.code == 130, (run.code, run.out[-2000:])
    assert time.time() - begin < 5, f"it went on for {time.time() - begin:.1f} s"
    assert "--resume" in run.out, run.out[-2000:]
    with server.connect() as c:
        left = c.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = 'target'").fetchone()[0]
        assert left == 0, f"{left} sessions are left"
    firn(server, "target", path, "--jobs", "2", "--resume").ok()
    same(dump, server.dump("target"))


def two_at_once(world):
    """Two restores into one database: one wins, the other is refused, the result is whole."""
    server = world.server()
    _, dump = world.generated(roundtrip.TABLES)
    path = roundtrip.archive(world, OLD, "c", "6")
    server.fresh("target")
    first = firn(server, "target", path, "--jobs", "2", wait=False)
    wait_for_work(server, first)
    firn(server, "target", path, "--jobs", "2", "--resume").fails()
    first.wait().ok()
    same(dump, server.dump("target"))


def cases(world):
    for kind in KINDS:
        yield f"kills {kind}", lambda k=kind: many(world, k)
    yield "kills resumed twice", lambda: resumed_twice(world)
    yield "kills other archive", lambda: other_archive(world)
    yield "kills interrupted", lambda: interrupted(world)
    yield "kills creating", lambda: creating(world)
    yield "kills two at once", lambda: two_at_once(world)
