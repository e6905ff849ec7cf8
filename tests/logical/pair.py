"""Two servers, one of which follows the other."""
import time

from harness.cluster import Cluster


class Pair:
    """A publisher and a subscriber, whose tables are in the database `d` of each."""

    def __init__(self, conf, publisher="firn", subscriber="heap"):
        self.publisher = Cluster("publisher", [*conf, "max_replication_slots=30", "max_wal_senders=30"]).create()
        self.subscriber = Cluster("subscriber", [*conf, "max_logical_replication_workers=20", "max_worker_processes=30",
                                                 "max_sync_workers_per_subscription=1", "wal_retrieve_retry_interval=500ms"]).create()
        self.methods = {self.publisher: publisher, self.subscriber: subscriber}
        for cluster in self.methods:
            with cluster.connect() as c:
                c.execute("CREATE DATABASE d")
                c.execute(f"ALTER DATABASE d SET default_table_access_method = {self.methods[cluster]}")
                c.execute("ALTER DATABASE d SET firn.bulk_threshold = 10; ALTER DATABASE d SET firn.stripe_rows = 150")
            with cluster.connect("d") as c:
                c.execute("CREATE EXTENSION firn")

    def source(self):
        return self.publisher.connect("d")

    def target(self):
        return self.subscriber.connect("d")

    def both(self, sql):
        for cluster in self.methods:
            with cluster.connect("d") as c:
                c.execute(sql)

    def subscribe(self, name, publications, options=""):
        with self.target() as c:
            c.execute(f"CREATE SUBSCRIPTION {name} CONNECTION 'host={self.publisher.root} port={self.publisher.port} user=postgres "
                      f"dbname=d' PUBLICATION {publications} {f'WITH ({options})' if options else ''}")

    def unsubscribe(self, name):
        with self.target() as c:
            c.execute(f"DROP SUBSCRIPTION {name}")

    def catch_up(self, seconds=300):
        """Wait until the subscriber has all that is committed now, of all its subscriptions."""
        until = time.time() + seconds
        with self.target() as target:
            while target.execute("SELECT count(*) FROM pg_subscription_rel WHERE srsubstate NOT IN ('r', 's')").fetchone() != (0,):
                assert time.time() < until, self.trouble("tables are not copied")
                time.sleep(0.1)
        with self.source() as source:
            end = source.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
            # (The last record is on disk when another one is.)
            source.execute("SELECT pg_switch_wal()")
            asked = ("SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical' AND NOT temporary AND "
                     f"confirmed_flush_lsn < '{end}'")
            while source.execute(asked).fetchone() != (0,):
                assert time.time() < until, self.trouble(f"the subscriber does not come to {end}")
                time.sleep(0.1)

    def trouble(self, what):
        tails = [open(cluster.log, errors="replace").read()[-1500:] for cluster in self.methods]
        return "\n".join([what, *tails])

    def same(self, table, columns="*", where="true"):
        """The same rows are on both sides; how many. And firn.check finds nothing."""
        rows = f"SELECT {columns} FROM {table} t WHERE {where}"
        # (As text: of long runs rows would have no room in here.)
        summed = f"SELECT count(*), sum(hashtextextended(r::text, 0)::numeric) FROM ({rows}) r"
        found = []
        for cluster, method in self.methods.items():
            with cluster.connect("d") as c:
                found.append(c.execute(summed).fetchone())
                if method == "firn":
                    leaves = f"SELECT c FROM pg_partition_tree('{table}') p, firn.check(p.relid) c WHERE p.isleaf"
                    bad = c.execute(leaves).fetchall() or c.execute(f"SELECT * FROM firn.check('{table}')").fetchall()
                    assert not bad, bad
        if found[0] != found[1]:
            left, right = (self.told(cluster, rows) for cluster in self.methods)
            raise AssertionError((table, found, sorted(left - right)[:3], sorted(right - left)[:3]))
        return found[0][0]

    def told(self, cluster, rows):
        """Rows as beginnings of their text, with a hash of all of it."""
        with cluster.connect("d") as c:
            return set(c.execute(f"SELECT left(r::text, 200), hashtextextended(r::text, 0) FROM ({rows}) r").fetchall())

    def stripes(self, table):
        with self.source() as c:
            return c.execute(f"SELECT count(*) FROM firn.stripes('{table}')").fetchone()[0]

    def quiet(self):
        for cluster in self.methods:
            assert not cluster.alarms(), cluster.alarms()

    def destroy(self):
        for cluster in (self.subscriber, self.publisher):
            cluster.destroy()
