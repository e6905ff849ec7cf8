"""Others are not kept waiting, and get no errors."""
import itertools
import os
import random
import threading
import time

import psycopg

from rebuild.common import INVALID, TRAP, WORKERS, clean, compact, fresh, sizes, small_enough, wait_until
from vacuum import sound


def long_readers_are_not_waited_for(cluster):
    with cluster.connect() as c, cluster.connect() as other:
        fresh(c, ["random"])
        compact(c)
        c.execute("VACUUM f")
        fresh_size = sizes(c, "f")["f_random"]
        fresh(c, ["random"])
        compact(c)
        # VACUUM removes the old entries; then somebody reads.
        c.execute("SET firn.rebuild_indexes = off")
        c.execute("VACUUM f")
        large = sizes(c, "f")["f_random"]
        assert large > 1.3 * fresh_size, (large, fresh_size)
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM h")
        c.execute("SET firn.rebuild_indexes = on")
        c.execute("VACUUM f")
        assert sizes(c, "f")["f_random"] == large
        # A process waits for him, and does it when he has ended; others go.
        wait_until("nobody waits", lambda: c.execute(WORKERS).fetchone()[0] == 1)
        c.execute("VACUUM f")
        wait_until("more wait than one", lambda: c.execute(WORKERS).fetchone()[0] <= 1)
        assert not c.execute(INVALID).fetchall()
        other.execute("COMMIT")
        wait_until("nobody rebuilds", lambda: sizes(c, "f")["f_random"] == fresh_size)
        wait_until("it does not end", lambda: c.execute(WORKERS).fetchone()[0] == 0)
        clean(c)


def sessions_write_meanwhile(cluster):
    seed = int(os.environ.get("FIRN_SEED", random.randrange(1 << 30)))
    stop, failures = threading.Event(), []

    def writer(number):
        rng = random.Random(seed + number)
        try:
            with cluster.connect() as c:
                while not stop.is_set():
                    low = 10000 * number + rng.randint(1, 9000)
                    new = 1000000 * (number + 1) + rng.randint(1, 900000)
                    sql = rng.choice((f"UPDATE @ SET r = r + 1, n = (n + 7) % 100 WHERE id BETWEEN {low} AND {low + 9}",
                                      f"DELETE FROM @ WHERE id BETWEEN {low} AND {low + 3}",
                                      f"INSERT INTO @ SELECT i, i % 1000, 'x' || i, i % 100 FROM generate_series({new}, {new + 9}) i WHERE NOT EXISTS (SELECT FROM @ WHERE id = i)",
                                      f"UPDATE @ SET id = id + 50000000 WHERE id = {low} AND id < 50000000"))
                    try:
                        with c.transaction():
                            for table in ("h", "f"):
                                c.execute(sql.replace("@", table))
                    except psycopg.errors.UniqueViolation:
                        pass
        except Exception as e:  # noqa: BLE001 - told below
            failures.append(e)

    with cluster.connect() as c:
        fresh(c, ["ascending", "random", "text", "equal"])
        c.execute("CREATE UNIQUE INDEX h_id ON h (id)")
        threads = [threading.Thread(target=writer, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        try:
            indexes = "SELECT relname, relfilenode FROM pg_class WHERE relname LIKE 'f\\_%'"
            known = set(c.execute(indexes).fetchall())
            for _ in range(4):
                compact(c)
                c.execute("VACUUM f")
                time.sleep(0.5)
            rebuilt = set(c.execute(indexes).fetchall()) - known
        finally:
            stop.set()
            for t in threads:
                t.join()
        assert not failures, (seed, failures[:3])
        wait_until("it does not end", lambda: c.execute(WORKERS).fetchone()[0] == 0)
        assert rebuilt, "nothing was rebuilt meanwhile"
        c.execute("VACUUM f")
        clean(c)


def whoever_wants_the_lock_gets_it(cluster):
    """Where REINDEX CONCURRENTLY would end his transaction by a deadlock, or keep him waiting."""
    with cluster.connect() as c, cluster.connect() as other, cluster.connect() as watch:
        c.execute(TRAP)
        for who, name in (("command", "ALTER TABLE f ADD COLUMN more int"), ("worker", "ALTER TABLE f ADD COLUMN more int"),
                          ("command", "ALTER INDEX f_trap RENAME TO f_other"), ("worker", "ALTER INDEX f_trap RENAME TO f_other")):
            fresh(c, ["INDEX {} ON f (trap(r))"])
            compact(c)
            c.execute("SET firn.rebuild_indexes = off")
            c.execute("VACUUM f")
            watch.execute("SELECT pg_advisory_lock(77)")
            watch.execute("ALTER DATABASE postgres SET test.trap = 'wait'")
            if who == "command":
                c.execute("SET firn.rebuild_indexes = on; SET test.trap = 'wait'")
                command = threading.Thread(target=lambda: c.execute("VACUUM f"))
                command.start()
            else:
                # A reader who is there when VACUUM looks, so that it leaves the work to the process.
                other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
                c.execute("SET firn.rebuild_indexes = on")
                c.execute("VACUUM f")
                other.execute("COMMIT")
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_until("nothing is built", lambda: watch.execute(waits).fetchone()[0] == 1)
            other.execute("BEGIN")
            other.execute("INSERT INTO f VALUES (-1, -1, '', 0); INSERT INTO h VALUES (-1, -1, '', 0)")
            watch.execute("SELECT pg_advisory_unlock(77)")
            watch.execute("ALTER DATABASE postgres RESET test.trap")
            other.execute(name)
            other.execute("ALTER TABLE f DROP COLUMN IF EXISTS more")
            other.execute("COMMIT")
            if who == "command":
                command.join()
            wait_until("it does not end", lambda: watch.execute(WORKERS).fetchone()[0] == 0)
            c.execute("RESET test.trap")
            c.execute("VACUUM f")
            wait_until("it does not end", lambda: watch.execute(WORKERS).fetchone()[0] == 0)
            clean(c)
            assert not small_enough(c, "f"), who


def databases_can_be_dropped(cluster):
    with cluster.connect() as admin:
        admin.execute("CREATE DATABASE gone")
        with cluster.connect("gone") as c, cluster.connect("gone") as other:
            c.execute("CREATE EXTENSION firn")
            c.execute(TRAP)
            fresh(c, ["INDEX {} ON f (trap(r))"])
            compact(c)
            c.execute("SET firn.rebuild_indexes = off")
            c.execute("VACUUM f")
            c.execute("SET firn.rebuild_indexes = on")
            other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT 1")
            admin.execute("ALTER DATABASE gone SET test.trap = 'sleep'")
            c.execute("VACUUM f")
            other.execute("COMMIT")
            wait_until("nothing is built", lambda: admin.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'firn index rebuild' AND wait_event = 'PgSleep'").fetchone()[0] == 1)
        wait_until("sessions stay", lambda: admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = 'gone' AND backend_type = 'client backend'").fetchone()[0] == 0)
        admin.execute("DROP DATABASE gone")
        assert admin.execute(WORKERS).fetchone()[0] == 0


def upserts_meanwhile(cluster):
    """INSERT ... ON CONFLICT beside rebuilds of its arbiter: nobody is refused, and each is counted, in tables and partitions."""
    keys, counted = itertools.count(), []

    def writer(stop):
        with cluster.connect() as c:
            done = 0
            # Several come with the same new key at the same time.
            while not stop.is_set():
                id = 1000000 + next(keys) // 4
                c.execute("INSERT INTO f AS x VALUES (%s, %s, 'new', 1) ON CONFLICT (id) DO UPDATE SET n = x.n + 1", (id, id))
                c.execute("INSERT INTO parted AS x VALUES (%s, 1) ON CONFLICT (id) DO UPDATE SET n = x.n + 1", (id,))
                done += 1
            counted.append(done)

    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS parted; CREATE TABLE parted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
        c.execute("CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (100000000) USING firn WITH (autovacuum_enabled = off)")
        fresh(c, ["ascending"])
        c.execute("INSERT INTO parted SELECT id, n FROM f")
        stop, failures = threading.Event(), []

        def guarded():
            try:
                writer(stop)
            except Exception as e:  # noqa: BLE001 - told below
                failures.append(e)

        threads = [threading.Thread(target=guarded) for _ in range(4)]
        for t in threads:
            t.start()
        known = "SELECT pg_relation_filenode('f_ascending'), pg_relation_filenode('part_pkey')"
        try:
            seen = [c.execute(known).fetchone()]
            for _ in range(8):
                for t in ("f", "part"):
                    rows = f"SELECT pg_relation_size('{t}') > 400000"
                    wait_until("nobody writes", lambda: c.execute(rows).fetchone()[0])
                    compact(c, t)
                    c.execute(f"VACUUM {t}")
                seen.append(c.execute(known).fetchone())
        finally:
            stop.set()
            for t in threads:
                t.join()
        assert not failures, failures[:2]
        assert all(len(set(column)) > 1 for column in zip(*seen)), ("nothing was rebuilt meanwhile", seen)
        for t in ("f", "parted"):
            assert c.execute(f"SELECT sum(n) FROM {t} WHERE id >= 1000000").fetchone() == (sum(counted),)
        wait_until("it does not end", lambda: c.execute(WORKERS).fetchone()[0] == 0)
        c.execute("VACUUM f, part")
        assert not c.execute(INVALID).fetchall()
        sound(c, "f", "part")
        c.execute("DROP TABLE parted")
