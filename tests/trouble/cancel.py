"""Cancel and statement_timeout end every long function at once, and leave nothing half done."""
import subprocess
import time

import psycopg

from trouble.common import Background, expect, fresh, intact

# What "at once" is, on a machine with other things to do. Work that does not ask is far slower to end.
AT_ONCE = 0.5
ROWS = 60000
STEPS = 8

# Name: statement, whether it begins with cold stripes.
WORK = {
    "check": ("SELECT count(*) FROM generate_series(1, 8) i, LATERAL (SELECT * FROM firn.check('f') LIMIT i) x", False),
    "scan": ("SELECT count(v || n::text), sum(length(v || n)) FROM f", False),
    "copy": ("COPY f FROM '{root}/rows.csv'", False),
    "insert select": ("INSERT INTO f SELECT id + 1000000, v, n FROM h", False),
    "reindex": ("REINDEX TABLE f", False),
    "compact": ("SELECT firn.compact('f')", False),
    "offload": ("SELECT firn.offload('f', 'cold')", False),
    "check of cold stripes": ("SELECT * FROM firn.check('f')", True),
    "index build": ("CREATE INDEX on_v ON f (v, n)", True),
    "vacuum full": ("VACUUM FULL f", True),
    "load": ("SELECT firn.load('f')", True),
    "alter to heap": ("ALTER TABLE f SET ACCESS METHOD heap", False),
}
# Undone by rolling back; the others leave the rows as they are.
UNDONE = ("copy", "insert select", "index build", "alter to heap")
# What brings back what one of the others has nothing to do without.
AGAIN = {"offload": "SELECT firn.load('f')", "load": "SELECT firn.offload('f', 'cold')"}


def timeouts(cluster):
    """statement_timeout at many moments of each."""
    with cluster.connect() as c:
        fresh(c, ROWS, 2000, "md5(i::text) || md5((i + 1)::text)")
        c.execute(f"COPY (SELECT id + 1000000, v, n FROM h) TO '{cluster.root}/rows.csv'")
        for name, (sql, cold) in WORK.items():
            c.execute("SELECT firn.offload('f', 'cold')" if cold else "SELECT firn.load('f')")
            if name == "compact":
                c.execute("SET firn.bulk_threshold = 1000000")
                c.execute("INSERT INTO f SELECT id + 2000000, v, n FROM h; INSERT INTO h SELECT id + 2000000, v, n FROM h")
                c.execute("SET firn.bulk_threshold = 10")
            interrupt(c, name, sql.format(root=cluster.root))
            intact(c)
        c.execute("VACUUM f")
        intact(c)


def interrupt(c, name, sql):
    def work():
        """Run it; how long it took, and whether it was cancelled."""
        if name in UNDONE:
            c.execute("BEGIN")
        begin = time.time()
        try:
            c.execute(sql)
            return time.time() - begin, False
        except psycopg.errors.QueryCanceled:
            return time.time() - begin, True
        finally:
            if name in UNDONE:
                c.execute("ROLLBACK")
                c.execute("SET statement_timeout = 0")
                # Else each try adds an index entry of each key, and a COPY, which does not look for cancels within a
                # batch of 1,000 rows, checks the uniqueness of each row against all of them.
                c.execute("VACUUM f")

    if name != "vacuum full":
        c.execute("BEGIN")
    begin = time.time()
    c.execute(sql)
    whole = time.time() - begin
    if name != "vacuum full":
        c.execute("ROLLBACK")
        c.execute("VACUUM f")
    count = 0
    # On a busy machine a statement may take much longer once than the next time: more tries, at moments of the shortest.
    for step in range(4 * STEPS):
        if step >= STEPS and count >= 3:
            break
        limit = max(1, int(1000 * whole * (step % STEPS + 0.5) / STEPS))
        c.execute(f"SET statement_timeout = '{limit}ms'")
        took, cancelled = work()
        c.execute("SET statement_timeout = 0")
        late = took - limit / 1000
        assert not cancelled or late < AT_ONCE, f"{name} went on for {late:.2f} s after {limit} ms of {whole:.2f} s"
        count += cancelled
        if not cancelled:
            whole = min(whole, took)
            if name in AGAIN:
                c.execute(AGAIN[name])
    assert count >= 3, f"{name} was cancelled {count} times only ({whole:.2f} s)"
    assert not work()[1]


def until(work, what):
    """Wait until a statement in the background is where `what` answers true."""
    end = time.time() + 20
    while time.time() < end:
        assert work.running(), work.result
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("it never got there")


def phase_of(c, work):
    row = c.execute("SELECT phase FROM firn.activity WHERE pid = %s", (work.pid,)).fetchone()
    return row and row[0]


def silent_store(cluster, proxy):
    """A store that has fallen silent: what waits for it ends at once; the table is as it was."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("SELECT firn.compact('f')")
        stripes = c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone()[0]

        def hang(sql, at=None, how="cancel", prepare="SELECT 1"):
            work = Background(cluster, sql, prepare)
            wait = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
            until(work, lambda: (at is None or phase_of(c, work) == at)
                  and c.execute(wait, (work.pid,)).fetchone() == ("Extension",))
            begin = time.time()
            if how == "cancel":
                work.conn.cancel_safe()
            else:
                assert c.execute(f"SELECT pg_{how}_backend(%s)", (work.pid,)).fetchone()[0]
            work.thread.join(10)
            took = (work.ended or time.time()) - begin
            state = work.result.sqlstate if isinstance(work.result, psycopg.Error) else work.result
            assert state == ("57014" if how == "cancel" else "57P01"), (sql, work.result)
            assert took < AT_ONCE, f"{sql} went on for {took:.2f} s"
            work.conn.close()

        proxy.rate = 0
        hang("SELECT firn.offload('f', 's3')", "uploading")
        hang("SELECT firn.offload('f', 's3')", "uploading", how="terminate")
        expect(c, "SET statement_timeout = '300ms'; SELECT firn.offload('f', 's3')", "57014")
        c.execute("RESET statement_timeout")
        intact(c)
        # It falls silent in the middle: some stripes are up, one half.
        proxy.rate = 20_000
        work = Background(cluster, "SELECT firn.offload('f', 's3')")
        until(work, lambda: (c.execute("SELECT stripes_done FROM firn.activity").fetchone() or (0,))[0] >= 2)
        proxy.rate = 0
        time.sleep(0.1)
        begin = time.time()
        work.conn.cancel_safe()
        work.thread.join(10)
        assert work.result.sqlstate == "57014" and work.ended - begin < AT_ONCE, work.result
        work.conn.close()
        intact(c)
        assert c.execute("SELECT count(*) FROM firn.stripes('f') WHERE location = 'local'").fetchone() == (stripes,)
        proxy.rate = None
        assert c.execute("SELECT firn.offload('f', 's3')").fetchone() == (stripes,)
        intact(c)
        # What the runs given up have left in the store is listed, not lost.
        assert c.execute("SELECT count(*) FROM firn.unneeded('f')").fetchone()[0] >= 2
        proxy.rate = 0
        no_cache = "SET firn.cache_size = 0"
        hang("SELECT firn.load('f')", "downloading", prepare=no_cache)
        hang("SELECT firn.load('f')", "downloading", how="terminate", prepare=no_cache)
        hang("SELECT * FROM firn.check('f')", "checking stripes")
        hang("SELECT sum(n), max(v) FROM f", prepare=no_cache)
        hang("SELECT * FROM f WHERE id = 77", prepare=f"{no_cache}; SET enable_seqscan = off; SET firn.enable_scan = off")
        hang("CREATE INDEX ON f (n)", prepare=no_cache)
        hang("UPDATE f SET n = n + 1 WHERE id = 77", prepare=no_cache)
        hang("SELECT * FROM firn.unneeded('f')")
        hang("ANALYZE f", prepare=no_cache)
        proxy.rate = None
        intact(c)
        assert c.execute("SELECT firn.load('f')").fetchone() == (stripes,)
        intact(c)


def others_wait_not(cluster, proxy):
    """While a session waits for a silent store, others get what they ask of it: DROP DATABASE needs all."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("SELECT firn.offload('f', 's3')")
        c.execute("DROP DATABASE IF EXISTS doomed")
        c.execute("CREATE DATABASE doomed")
        proxy.rate = 0
        work = Background(cluster, "SELECT sum(n), max(v) FROM f", "SET firn.cache_size = 0")
        wait = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
        until(work, lambda: c.execute(wait, (work.pid,)).fetchone() == ("Extension",))
        c.execute("SET statement_timeout = '5s'")
        begin = time.time()
        c.execute("DROP DATABASE doomed")
        assert time.time() - begin < 3 and work.running()
        proxy.rate = None
        work.finish()


def no_thread_left(cluster):
    """A session that may not start a thread writes stripes all the same."""
    with cluster.connect() as c:
        subprocess.run(cluster.as_user(["prlimit", f"--pid={c.info.backend_pid}", "--nproc=1"]), check=True)
        fresh(c, 5000, 500)
        c.execute("SELECT firn.compact('f')")
        assert c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone()[0] >= 10
        intact(c)
