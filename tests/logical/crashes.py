"""pgbench and random changes on a publisher that is followed, while either side dies now and then: at the end both have the same rows."""
import os
import random
import subprocess
import threading
import time

import psycopg

from logical.pair import Pair
from logical.random_changes import Driver, carry_out

TABLES = 2
BENCH = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")


class Load:
    """What changes the publisher's tables until it is told to stop, whatever becomes of its connections."""

    def __init__(self, pair, seed):
        self.pair, self.seed = pair, seed
        self.ended = threading.Event()
        self.errors = []
        self.done = 0
        self.threads = [threading.Thread(target=self.changes, args=(n,)) for n in range(TABLES)]
        self.threads += [threading.Thread(target=self.bench), threading.Thread(target=self.moves)]
        for thread in self.threads:
            thread.start()

    def again(self, body):
        while not self.ended.is_set():
            try:
                with self.pair.source() as c:
                    c.execute("SET statement_timeout = '60s'")
                    while not self.ended.is_set():
                        body(c)
            except (psycopg.OperationalError, psycopg.errors.AdminShutdown, psycopg.errors.QueryCanceled):
                time.sleep(0.3)
            except psycopg.Error as e:
                # A row that two drivers' transactions or a lost answer have put there.
                if not isinstance(e, psycopg.errors.UniqueViolation):
                    self.errors.append(e)
                    return

    def changes(self, n):
        driver = Driver(self.seed + n)

        def one(c):
            statements, end = driver.transaction()
            statements = [s for s in statements if "TRUNCATE" not in s]
            carry_out(c, statements, "COMMIT" if end == "PREPARE" else end, "", f"t{n}")
            self.done += 1
            time.sleep(0.01)
        self.again(one)

    def moves(self):
        def one(c):
            for table in [*BENCH, *(f"t{n}" for n in range(TABLES))]:
                if self.ended.wait(0.5):
                    return
                if self.pair.methods[self.pair.publisher] == "firn":
                    c.execute(f"SELECT firn.compact('{table}')")
                c.execute(f"VACUUM {table}")
        self.again(one)

    def bench(self):
        publisher = self.pair.publisher
        while not self.ended.is_set():
            p = subprocess.Popen([os.path.join(publisher.bin, "pgbench"), "-h", publisher.root, "-p", str(publisher.port), "-U", "postgres",
                                  "-n", "-c", "3", "-T", "5", "-R", "300", "d"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            p.wait()
            time.sleep(0.2)

    def end(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(120)
        assert not self.errors, self.errors


def case(publisher, subscriber):
    def run(conf):
        seconds = float(os.environ.get("FIRN_SECONDS", "12"))
        seed = int(os.environ.get("FIRN_SEED") or random.SystemRandom().randrange(1 << 31))
        dice = random.Random(seed)
        print(f"     FIRN_SEED={seed}", end="", flush=True)
        # (With fsync: a server that dies has lost nothing of what it has said is there.)
        pair = Pair([line for line in conf if "fsync" not in line] + ["max_wal_size=1GB", "checkpoint_timeout=30s"], publisher, subscriber)
        try:
            for cluster in pair.methods:
                subprocess.run([os.path.join(cluster.bin, "pgbench"), "-h", cluster.root, "-p", str(cluster.port), "-U", "postgres", "-i", "-q",
                                "-s", "1", "-I", "dtgp" if cluster is pair.publisher else "dtp", "d"], check=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
                with cluster.connect("d") as c:
                    c.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")
                    for n in range(TABLES):
                        c.execute(f"CREATE TABLE t{n} (id int PRIMARY KEY, k int, v text, n numeric)")
            with pair.source() as c:
                c.execute("CREATE PUBLICATION p FOR TABLE " + ", ".join([*BENCH, *(f"t{n}" for n in range(TABLES))]))
                if publisher == "firn":
                    c.execute("SELECT firn.compact('pgbench_accounts')")
            pair.subscribe("s", "p", "streaming = on")
            load = Load(pair, seed)
            until, deaths = time.time() + seconds, {pair.publisher: 0, pair.subscriber: 0}
            try:
                while time.time() < until:
                    time.sleep(dice.uniform(1, min(20, seconds / 4)))
                    cluster = dice.choice(list(deaths))
                    cluster.crash()
                    cluster.start()
                    deaths[cluster] += 1
            finally:
                load.end()
            pair.catch_up(1800)
            rows = {t: pair.same(t) for t in [*BENCH, *(f"t{n}" for n in range(TABLES))]}
            stripes = f", {pair.stripes('t0')} stripes in one table" if publisher == "firn" else ""
            print(f": publisher died {deaths[pair.publisher]} times, subscriber {deaths[pair.subscriber]}; {load.done} random transactions, "
                  f"{rows['pgbench_history']} of pgbench{stripes}", flush=True)
            pair.unsubscribe("s")
            pair.quiet()
        finally:
            pair.destroy()
    return run


CASES = {f"crashes, {a} to {b}": case(a, b) for a, b in (("firn", "heap"), ("heap", "firn"))}
