"""What is read of buffers without a pin (pg/glance.rs), beside what takes the buffers away and changes them: few buffers, which other reads drive out; rows that
are updated and deleted; stripes that are written anew and removed. A case of suite contention, on a server of its own."""
import collections
import hashlib
import os
import random
import signal
import threading
import time

import psycopg

from harness.cluster import Cluster

SECONDS = 10
ROWS = 24_000
# Rows that are asked for most, whose buffers PostgreSQL counts as used often. Rows that are changed are of them and of the others.
HOT = 300
READERS = 6
LEAST_READ, LEAST_CHANGED, LEAST_MOVED = 3_000, 200, 5


def value(key, n):
    """What is in a row: texts of which few are alike, so that pages are compressed and hold some 15 of them."""
    return "".join(hashlib.md5(f"{key} {n} {part}".encode()).hexdigest() + " and so forth, as ever; " for part in range(4))


SQL_VALUE = "(SELECT string_agg(md5(i || ' ' || 0 || ' ' || part) || ' and so forth, as ever; ', '' ORDER BY part) FROM generate_series(0, 3) part)"


class Run:
    def __init__(self, cluster, seed):
        self.cluster, self.seed, self.codes = cluster, seed, collections.Counter()
        # Processes that may be stopped: nobody ends one meanwhile.
        self.pids, self.lock = set(), threading.Lock()
        # What has been committed of each row: how often it was changed. A reader that begins later sees as much.
        self.committed = [0] * (ROWS + 1)
        self.begin, self.wrong = time.time(), []

    def going(self):
        taken, codes = time.time() - self.begin, self.codes
        enough = codes["read"] > LEAST_READ and codes["changed"] > LEAST_CHANGED and codes["moved"] > LEAST_MOVED
        return not self.wrong and (taken < SECONDS or taken < 10 * SECONDS and not enough)

    def key(self, rng):
        return rng.randint(1, HOT) * (ROWS // HOT) if rng.random() < 0.8 else rng.randint(1, ROWS)

    def read(self, number):
        rng = random.Random(f"{self.seed} {number}")
        with self.cluster.connect() as c:
            c.prepare_threshold = 0
            if number % 2:
                # None of its reads is of a page that the session has decoded.
                c.execute("SET firn.page_cache = 0")
            with self.lock:
                self.pids.add(c.info.backend_pid)
            try:
                while self.going():
                    key = self.key(rng)
                    least = self.committed[key]
                    found = c.execute("SELECT n, v FROM glanced WHERE id = %s", (key,)).fetchall()
                    if len(found) != 1 or found[0][0] < least or found[0][1] != value(key, found[0][0]):
                        self.wrong.append((key, least, found))
                    self.codes["read"] += 1
            finally:
                with self.lock:
                    self.pids.discard(c.info.backend_pid)

    def change(self):
        rng = random.Random(f"{self.seed} change")
        with self.cluster.connect() as c:
            c.execute("SET synchronous_commit = off")
            while self.going():
                key = self.key(rng)
                n = self.committed[key] + 1
                c.execute("UPDATE glanced SET n = %s, v = %s WHERE id = %s", (n, value(key, n), key))
                self.committed[key] = n
                self.codes["changed"] += 1
                time.sleep(0.002)

    def move(self):
        with self.cluster.connect() as c:
            c.execute("SET synchronous_commit = off")
            while self.going():
                c.execute("SELECT firn.compact('glanced')")
                c.execute("VACUUM glanced")
                self.codes["moved"] += 1
                time.sleep(0.1)

    def drive_out(self):
        rng = random.Random(f"{self.seed} drive out")
        with self.cluster.connect() as c:
            c.prepare_threshold = 0
            while self.going():
                c.execute("SELECT count(pad) FROM other WHERE id BETWEEN %(at)s AND %(at)s + 300", {"at": rng.randint(1, 6_000)})
                self.codes["others"] += 1

    def pause(self):
        """Readers stand still where they are for longer than a buffer needs to become another block's."""
        rng = random.Random(f"{self.seed} pause")
        while self.going():
            time.sleep(0.01)
            with self.lock:
                for pid in rng.sample(sorted(self.pids), min(1, len(self.pids))):
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.03)
                    os.kill(pid, signal.SIGCONT)


def case():
    seed = int(os.environ.get("FIRN_SEED", random.randrange(1 << 30)))
    cluster = Cluster("glances", conf=["shared_buffers=4MB", "autovacuum=off", "fsync=off"])
    try:
        cluster.create()
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 8000")
            c.execute("CREATE TABLE glanced (id int PRIMARY KEY, n int, v text) USING firn")
            c.execute(f"INSERT INTO glanced SELECT i, 0, {SQL_VALUE} FROM generate_series(1, {ROWS}) i")
            c.execute("CREATE TABLE other (id int PRIMARY KEY, pad text) USING heap WITH (fillfactor = 10)")
            c.execute("INSERT INTO other SELECT i, repeat('x', 400) FROM generate_series(1, 6300) i")
            c.execute("VACUUM ANALYZE glanced, other")
        run = Run(cluster, seed)
        failed = []

        def guarded(body, *args):
            try:
                body(*args)
            except (psycopg.Error, AssertionError) as e:
                failed.append(e)
                run.wrong.append(repr(e))
        bodies = [(run.read, i) for i in range(READERS)] + [(run.change,), (run.move,), (run.drive_out,)]
        threads = [threading.Thread(target=guarded, args=body) for body in bodies]
        for t in threads:
            t.start()
        try:
            run.pause()
        finally:
            for t in threads:
                t.join()
        print(f"     seed {seed} (FIRN_SEED), {dict(run.codes)}")
        assert not run.wrong, run.wrong[:3]
        assert run.codes["read"] > LEAST_READ and run.codes["changed"] > LEAST_CHANGED and run.codes["moved"] > LEAST_MOVED, run.codes
        with cluster.connect() as c:
            assert not c.execute("SELECT * FROM firn.check('glanced')").fetchall()
        assert not cluster.alarms(), cluster.alarms()
    finally:
        cluster.destroy()
