"""Many sessions on few rows: random inserts of children, updates, deletes and locks of parents, savepoints and
rollbacks, while their rows move into stripes. Foreign keys must hold, no error may come that heap would not
give, and what a crash leaves must be what WAL says, page by page (wal_consistency_checking)."""
import collections
import os
import random
import re
import signal
import subprocess
import threading
import time

import psycopg

import glances
import open_indexes
from harness.cluster import Cluster

SECONDS = 10
# Transactions and compactions that a run must have had to say anything.
LEAST_DONE, LEAST_MOVES = 200, 5
SESSIONS = 10
LOOKERS = 6
LOOKED = 60
BUILT = 3000
PARENTS = 6
# Foreign key violation, deadlock, serialization failure, unique violation, lock timeout.
EXPECTED = {"23503", "40P01", "40001", "23505", "55P03"}
CHILDLESS = "NOT EXISTS (SELECT 1 FROM child WHERE child.id = parent.id)"


# What no new snapshot may see: children without parent, a key twice. (An old one may see a row that others have deleted
# beside what its own transaction has put in its place.)
ORPHANS = "SELECT count(*) FROM child WHERE NOT EXISTS (SELECT 1 FROM parent WHERE parent.id = child.id)"
TWICE = "SELECT count(*) - count(DISTINCT id) FROM parent"


def look(conn, codes):
    for name, sql in (("orphans", ORPHANS), ("twice", TWICE)):
        [[n]] = conn.execute(sql).fetchall()
        if n:
            codes[name] += 1


def one_step(rng, conn):
    i = rng.randint(1, PARENTS)
    strength = rng.choice(["KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE"])
    steps = [
        (20, "INSERT INTO child VALUES (%(i)s)"),
        (20, "UPDATE parent SET n = n + 1 WHERE id = %(i)s"),
        (10, f"DELETE FROM parent WHERE id = %(i)s AND {CHILDLESS}"),
        (5, "INSERT INTO parent VALUES (%(i)s, 0) ON CONFLICT (id) DO UPDATE SET n = parent.n + 1"),
        (10, "INSERT INTO parent VALUES (%(i)s, 0) ON CONFLICT DO NOTHING"),
        (5, f"SELECT n FROM parent WHERE id = %(i)s FOR {strength}"),
        (20, "DELETE FROM child WHERE id = %(i)s"),
        (5, f"SELECT n FROM parent WHERE id BETWEEN %(i)s AND %(i)s + 3 ORDER BY id FOR {strength} SKIP LOCKED"),
        (3, "UPDATE parent SET id = id WHERE id = %(i)s"),
        (3, f"UPDATE parent SET id = id + 1000 WHERE id = %(i)s AND {CHILDLESS}"),
        (7, "UPDATE parent SET id = id - 1000 WHERE id > 1000"),
    ]
    [sql] = rng.choices([s for _, s in steps], [w for w, _ in steps])
    if rng.random() < 0.7:
        conn.execute(sql, {"i": i})
        return
    conn.execute("SAVEPOINT s")
    conn.execute(sql, {"i": i})
    conn.execute(rng.choice(["ROLLBACK TO s", "RELEASE s"]))


def count(codes, error):
    codes[error.sqlstate] += 1
    if error.sqlstate not in EXPECTED:
        print(f"     {error.sqlstate} {error}")


def work(cluster, seed, going, codes):
    rng = random.Random(seed)
    with cluster.connect() as conn:
        conn.execute(f"SET firn.bulk_threshold = {rng.choice([0, 5, 10000])}")
        conn.execute("SET lock_timeout = '5s'")
        if rng.random() < 0.3:
            # Who has no index, as far as he knows.
            conn.execute("SET enable_indexscan = off; SET enable_bitmapscan = off")
        while going():
            try:
                repeatable = rng.random() < 0.2
                conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ" if repeatable else "BEGIN")
                for _ in range(rng.randint(1, 5)):
                    one_step(rng, conn)
                    if not repeatable and rng.random() < 0.3:
                        look(conn, codes)
                    # Locks are to outlive what the others do meanwhile.
                    conn.execute("SELECT pg_sleep(%s)", (rng.choice([0, 0.01, 0.03]),))
                conn.execute(rng.choice(["COMMIT"] * 4 + ["ROLLBACK"]))
                codes["done"] += 1
            except psycopg.Error as e:
                count(codes, e)
                conn.execute("ROLLBACK")


def move(cluster, going, codes):
    with cluster.connect() as conn:
        while going():
            time.sleep(0.05)
            for table in ("parent", "child"):
                try:
                    conn.execute("SELECT firn.compact(%s)", (table,))
                    codes["moves"] += 1
                except psycopg.Error as e:
                    count(codes, e)


def sound(cluster):
    with cluster.connect() as c:
        seen = collections.Counter()
        look(c, seen)
        assert not seen, seen
        scanned = c.execute("SELECT id, n FROM parent ORDER BY id").fetchall()
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
        assert c.execute("SELECT id, n FROM parent WHERE id > 0 ORDER BY id").fetchall() == scanned
        for table in ("parent", "child"):
            problems = c.execute("SELECT * FROM firn.check(%s)", (table,)).fetchall()
            assert not problems, problems


def storm(cluster):
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0")
        c.execute("CREATE TABLE parent (id int PRIMARY KEY, n int) USING firn")
        c.execute("CREATE TABLE child (id int REFERENCES parent) USING firn")
        c.execute(f"INSERT INTO parent SELECT i, 0 FROM generate_series(1, {PARENTS}) i")
    begin, codes = time.time(), collections.Counter()

    def going():
        # As long as a busy machine needs for as much as a test must have.
        taken = time.time() - begin
        return taken < SECONDS or taken < 10 * SECONDS and (codes["done"] <= LEAST_DONE or codes["moves"] <= LEAST_MOVES)
    threads = [threading.Thread(target=work, args=(cluster, seed, going, codes)) for seed in range(SESSIONS)]
    threads.append(threading.Thread(target=move, args=(cluster, going, codes)))
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(f"     {dict(codes)}")
    unexpected = set(codes) - EXPECTED - {"done", "moves"}
    assert not unexpected, unexpected
    assert codes["done"] > LEAST_DONE and codes["moves"] > LEAST_MOVES, codes
    sound(cluster)


def pause(pids, going):
    """Stops one look-up after the other for as long as its row needs to be replaced: most of them are on their way through
    the versions that they have read from the index."""
    rng = random.Random(1)
    while going():
        time.sleep(0.005)
        if not pids:
            continue
        pid = rng.choice(pids)
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(0.04)
        finally:
            os.kill(pid, signal.SIGCONT)


def look_up(cluster, number, going, codes, pids, ended):
    """Asks for rows of its own in ways that judge versions as they come: none may be missed."""
    rng = random.Random(number)
    mine = [i for i in range(1, LOOKED + 1) if i % LOOKERS == number]
    with cluster.connect() as c:
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off; SET synchronous_commit = off")
        pids.append(c.info.backend_pid)
        while going():
            i = rng.choice(mine)
            try:
                how = rng.random()
                if how < 0.9:
                    # A unique check that is to find the row. (ON CONFLICT would look twice.)
                    try:
                        c.execute("INSERT INTO looked VALUES (%s, 0)", (i,))
                        codes["a row was missed"] += 1
                    except psycopg.errors.UniqueViolation:
                        pass
                elif how < 0.93:
                    c.execute("BEGIN")
                    c.execute("INSERT INTO looker VALUES (%s)", (i,))
                    c.execute("ROLLBACK")
                else:
                    # And one that is not.
                    c.execute("BEGIN")
                    if c.execute("DELETE FROM looked WHERE id = %s", (i,)).rowcount != 1:
                        codes["a row was not deleted"] += 1
                    c.execute("INSERT INTO looked VALUES (%s, 0)", (i,))
                    c.execute("ROLLBACK")
                codes["done"] += 1
            except psycopg.Error as e:
                codes[f"{e.sqlstate} {e}"] += 1
                c.execute("ROLLBACK")
        pids.remove(c.info.backend_pid)
        ended.wait()


def replace(cluster, going, codes):
    """The directory row is replaced all the time. Who sees all its versions lengthens the look-ups' way through them."""
    with cluster.connect() as c, cluster.connect() as old:
        c.execute("SET synchronous_commit = off")
        while going():
            old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            old.execute("SELECT count(*) FROM looked")
            for _ in range(150):
                c.execute("SELECT firn.offload('looked', 'cold')")
                c.execute("SELECT firn.load('looked')")
                codes["moves"] += 2
                if not going():
                    break
            old.execute("COMMIT")
            # Which moves it as well.
            c.execute("VACUUM looked")


def look_ups(cluster):
    """Look-ups beside offload, load, and VACUUM that moves directory rows."""
    store = os.path.join(cluster.root, "store")
    os.mkdir(store)
    os.chmod(store, 0o777)
    with cluster.connect() as c:
        c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
        c.execute("SET firn.bulk_threshold = 0")
        c.execute("CREATE TABLE looked (id int PRIMARY KEY, n int) USING firn WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        c.execute("CREATE TABLE looker (id int REFERENCES looked)")
        c.execute(f"INSERT INTO looked SELECT i, 0 FROM generate_series(1, {LOOKED}) i")
    begin, codes = time.time(), collections.Counter()

    def going():
        taken = time.time() - begin
        return taken < SECONDS or taken < 10 * SECONDS and (codes["done"] <= LEAST_DONE or codes["moves"] <= LEAST_MOVES)
    pids, ended = [], threading.Event()
    threads = [threading.Thread(target=look_up, args=(cluster, i, going, codes, pids, ended)) for i in range(LOOKERS)]
    threads.append(threading.Thread(target=replace, args=(cluster, going, codes)))
    for t in threads:
        t.start()
    try:
        pause(pids, going)
    finally:
        ended.set()
    for t in threads:
        t.join()
    print(f"     {dict(codes)}")
    assert set(codes) == {"done", "moves"} and codes["done"] > LEAST_DONE and codes["moves"] > LEAST_MOVES, codes
    with cluster.connect() as c:
        # Of each row there is one, in the stripe.
        assert c.execute("SELECT count(*), count(DISTINCT id), min(id), max(id) FROM looked").fetchone() == (LOOKED, LOOKED, 1, LOOKED)
        assert not c.execute("SELECT * FROM firn.check('looked')").fetchall()


def lock_rows(cluster, number, going, codes):
    """Locks rows of stripes, each of which takes a place in the TOAST relation of its own, and changes some."""
    rng = random.Random(number)
    with cluster.connect() as c:
        c.execute("SET synchronous_commit = off; SET lock_timeout = '2s'")
        while going():
            first = rng.randint(1, BUILT - 40)
            strength = rng.choice(["KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE"])
            try:
                with c.transaction(force_rollback=rng.random() < 0.3):
                    c.execute(f"SELECT id FROM built WHERE id BETWEEN %s AND %s + 30 FOR {strength} SKIP LOCKED", (first, first))
                    if rng.random() < 0.2:
                        c.execute("UPDATE built SET n = n + 1 WHERE id = %s", (first,))
                codes["done"] += 1
            except psycopg.Error as e:
                count(codes, e)


def reindex(cluster):
    """What row locks and changes put into the TOAST relation while its index is built beside them is there once."""
    with cluster.connect() as c:
        c.execute("CREATE EXTENSION IF NOT EXISTS amcheck")
        c.execute("SET firn.bulk_threshold = 0; SET firn.stripe_rows = 500")
        c.execute("CREATE TABLE built (id int PRIMARY KEY, n int) USING firn")
        c.execute(f"INSERT INTO built SELECT i, 0 FROM generate_series(1, {BUILT}) i")
        indexes = ("SELECT i.indexrelid, i.indisvalid, i.indexrelid::regclass::text FROM pg_index i JOIN pg_class t ON t.relname = 'built' "
                   "AND i.indrelid IN (t.oid, t.reltoastrelid)")
        begin, codes, ended = time.time(), collections.Counter(), threading.Event()

        def going():
            taken = time.time() - begin
            enough = codes["done"] > LEAST_DONE and codes["built"] > LEAST_MOVES
            return not ended.is_set() and taken < SECONDS * (1 if enough else 10)
        threads = [threading.Thread(target=lock_rows, args=(cluster, number, going, codes)) for number in range(4)]
        for t in threads:
            t.start()
        try:
            while going():
                try:
                    c.execute("REINDEX TABLE CONCURRENTLY built")
                    codes["built"] += 1
                except psycopg.errors.DeadlockDetected:
                    codes["deadlocks of a build"] += 1
                    left = [name for _, valid, name in c.execute(indexes).fetchall() if not valid]
                    # In a deadlock with those who lock rows, these are to be ended.
                    c.execute("SET deadlock_timeout = '10s'")
                    for name in left:
                        c.execute(f"DROP INDEX {name}")
                    c.execute("RESET deadlock_timeout")
                if codes["built"] % 3 == 0:
                    c.execute("VACUUM built")
        finally:
            ended.set()
            for t in threads:
                t.join()
        print(f"     {dict(codes)}")
        assert set(codes) <= EXPECTED | {"done", "built", "deadlocks of a build"}, codes
        assert codes["done"] > LEAST_DONE and codes["built"] > LEAST_MOVES, codes
        for oid, valid, name in c.execute(indexes).fetchall():
            assert valid, name
            c.execute("SELECT bt_index_check(%s::oid::regclass, true)", (oid,))
        c.execute("VACUUM FULL built")
        c.execute("REINDEX TABLE built")
        assert c.execute("SELECT count(*), count(DISTINCT id) FROM built").fetchone() == (BUILT, BUILT)
        assert not c.execute("SELECT * FROM firn.check('built')").fetchall()


def history(cluster, error):
    """What WAL has of the page that recovery made otherwise than the server did, its last records."""
    place = re.search(r"inconsistent page found, rel (\d+/\d+/\d+), forknum \d+, blkno (\d+)", str(error))
    if not place:
        return
    first = min(f for f in os.listdir(os.path.join(cluster.data, "pg_wal")) if re.fullmatch("[0-9A-F]{24}", f))
    found = cluster.run("pg_waldump", "-p", os.path.join(cluster.data, "pg_wal"), "-R", place[1], "-B", place[2], first,
                        check=False, stderr=subprocess.DEVNULL).stdout
    print("\n".join(f"     {line[:300]}" for line in found.splitlines()[-20:]))


def recover(cluster):
    cluster.crash()
    try:
        cluster.start()
    except RuntimeError as error:
        history(cluster, error)
        raise
    sound(cluster)
    assert not cluster.alarms(), cluster.alarms()


def run(tally, pattern):
    # Not for generic records: of heap pages, they would compare hint bits.
    cluster = Cluster("contention", conf=[
        "deadlock_timeout=20ms", "wal_consistency_checking='heap,heap2,btree'",
        "checkpoint_timeout=1h", "autovacuum_naptime=1s"])
    try:
        cluster.create()
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
        cases = (("look-ups beside moves", look_ups), ("builds beside row locks", reindex), ("builds beside open scans", open_indexes.run),
                 ("look-ups at a glance", lambda _: glances.case()), ("foreign keys hold", storm),
                 ("the same after a crash", recover))
        for name, body in cases:
            if pattern in name:
                tally.case(f"contention {name}", lambda: body(cluster))
    finally:
        cluster.destroy()
