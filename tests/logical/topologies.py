"""Servers that follow each other where changes of stripe rows are decoded: slots of standbys, slots that survive their server, a standby
that becomes a subscriber; and what is made of such a server's files and log: pg_rewind, incremental backups."""
import contextlib
import os
import threading
import time

from harness.cluster import Cluster, version
from logical.decoded import changes
from logical.replay import ROWS, WORK

TABLES = "CREATE TABLE t (id int PRIMARY KEY, v text, k int) USING {0}; CREATE TABLE h (id int PRIMARY KEY, v text, k int) USING {0}"
CONF = ["firn.bulk_threshold=10", "firn.stripe_rows=400", "wal_keep_size=512MB", "wal_log_hints=on", "hot_standby=on"]


def wait(what, body, seconds=120):
    end = time.time() + seconds
    while not (found := body()):
        assert time.time() < end, f"{what} not after {seconds} s"
        time.sleep(0.1)
    return found


def where(cluster):
    return f"host={cluster.root} port={cluster.port} user=postgres dbname=postgres"


@contextlib.contextmanager
def servers():
    """A list of clusters that end with what is done; if that is well, so are their logs."""
    clusters = []
    try:
        yield clusters
        for cluster in clusters:
            assert not cluster.alarms(), cluster.alarms()
    except BaseException as e:
        # What ended a server is in its log only, which goes.
        for cluster in clusters:
            for line in cluster.alarms():
                e.add_note(f"{cluster.root}: {line}")
        raise
    finally:
        for cluster in clusters:
            cluster.destroy()


def made(clusters, conf, *more):
    clusters.append(cluster := Cluster("first", [*conf, *CONF, *more]))
    cluster.create()
    with cluster.connect() as c:
        c.execute("CREATE EXTENSION firn")
        c.execute(TABLES.format("firn"))
    work(cluster, 0)
    return cluster


def follow(clusters, primary, *more):
    """A standby, by a slot of the primary, that has what there is."""
    clusters.append(second := Cluster("second"))
    primary.run("pg_basebackup", "-h", primary.root, "-p", str(primary.port), "-U", "postgres", "-D", second.data, "-c", "fast", "-C", "-S", "second")
    tell(second, primary, *more)
    second.start()
    work(primary, 1)
    replayed(primary, second)
    return second


def tell(second, primary, *more):
    """The server is to follow the primary."""
    lines = [f"unix_socket_directories='{second.root}'", "primary_slot_name='second'", f"primary_conninfo='{where(primary)} application_name=second'", "hot_standby_feedback=on", *more]
    with open(os.path.join(second.data, "postgresql.conf"), "a") as f:
        f.write("\n".join(lines) + "\n")
    second.run("/usr/bin/touch", os.path.join(second.data, "standby.signal"))


def work(cluster, n):
    """Changes that are compacted, changed again and emptied in part."""
    with cluster.connect() as c:
        c.execute(WORK.format(1 + 1000 * n, 1000 + 1000 * n))
        c.execute(f"SELECT firn.compact('t'); UPDATE t SET v = 'again' WHERE id % 97 = 0; DELETE FROM h WHERE id % 89 = 0 AND id < {1000 * n}")
        c.execute("BEGIN; INSERT INTO h SELECT -i, 'undone', 0 FROM generate_series(1, 500) i; DELETE FROM t WHERE id % 5 = 0; ROLLBACK")


def rows(cluster):
    with cluster.connect() as c:
        return [c.execute(ROWS.format(t)).fetchone() for t in ("t", "h")]


def whole(cluster):
    with cluster.connect() as c:
        for t in ("t", "h"):
            assert not c.execute(f"SELECT * FROM firn.check('{t}')").fetchall()
            assert c.execute(f"SELECT count(*) > 0 FROM firn.stripes('{t}')").fetchone()[0]


def replayed(primary, second):
    with primary.connect() as c:
        end = c.execute("SELECT pg_current_wal_flush_lsn()").fetchone()[0]
    with second.connect() as c:
        wait("replayed", lambda: c.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,)).fetchone()[0])


def promote(second):
    with second.connect() as c:
        c.execute("SELECT pg_promote()")
        wait("promoted", lambda: not c.execute("SELECT pg_is_in_recovery()").fetchone()[0])


def rewound(conf):
    """A primary that had changes of its own after its standby took over follows that one, when pg_rewind has taken them back."""
    with servers() as clusters:
        first = made(clusters, conf)
        second = follow(clusters, first)
        promote(second)
        for n in (2, 3):
            work(first, n)
        work(second, 4)
        first.stop()
        with second.connect() as c:
            c.execute("CHECKPOINT")
        first.run("pg_rewind", "-D", first.data, "--source-server", where(second))
        tell(first, second, "primary_slot_name=''")
        first.start()
        work(second, 5)
        replayed(second, first)
        assert rows(first) == rows(second)
        promote(first)
        work(first, 6)
        whole(first)
        whole(second)


def incremental(conf):
    """PostgreSQL's own incremental backup, which goes by summaries of the log."""
    with servers() as clusters:
        first = made(clusters, conf, "summarize_wal=on")
        paths = [os.path.join(first.root, n) for n in ("whole", "changed", "again")]
        for n, path in enumerate(paths):
            basis = ["-i", os.path.join(paths[n - 1], "backup_manifest")] if n else []
            first.run("pg_basebackup", "-h", first.root, "-p", str(first.port), "-U", "postgres", "-D", path, "-c", "fast", *basis)
            kept = rows(first)
            work(first, n + 1)
            if n == 1:
                with first.connect() as c:
                    c.execute("VACUUM FULL t")
                    c.execute("TRUNCATE h")
        clusters.append(second := Cluster("second"))
        second.run("pg_combinebackup", *paths, "-o", second.data)
        with open(os.path.join(second.data, "postgresql.conf"), "a") as f:
            f.write(f"unix_socket_directories='{second.root}'\n")
        second.start()
        assert rows(second) == kept
        work(second, 9)
        whole(second)


def of_standby(conf):
    """A slot of a standby shows what one of the primary shows."""
    with servers() as clusters:
        first = made(clusters, conf)
        second = follow(clusters, first)
        with first.connect() as c, second.connect() as s:
            asked = threading.Thread(daemon=True, target=lambda: s.execute("SELECT pg_create_logical_replication_slot('there', 'test_decoding')"))
            asked.start()
            try:
                while asked.is_alive():
                    # What runs is told to the standby, which begins with that.
                    c.execute("SELECT pg_log_standby_snapshot()")
                    time.sleep(0.1)
            except BaseException:
                # Nobody tells it any more: it would be waited for.
                s.cancel_safe()
                raise
            c.execute("SELECT pg_create_logical_replication_slot('here', 'test_decoding')")
            for n in (2, 3, 4):
                work(first, n)
            c.execute("TRUNCATE h")
            work(first, 5)
            replayed(first, second)
            here, there = changes(c, "here"), changes(s, "there")
            assert len(here) > 6000 and here == there, (len(here), len(there))
            assert rows(first) == rows(second)
            # On from where it is, with the server's other role.
            promote(second)
            work(second, 6)
            assert len(changes(s, "there")) > 1000
            s.execute("SELECT pg_drop_replication_slot('there')")


def subscriber_of(clusters, publisher):
    clusters.append(target := Cluster("target", ["wal_level=logical", "fsync=off", "autovacuum=off"]))
    target.create()
    with target.connect() as c:
        c.execute("CREATE EXTENSION firn")
        c.execute(TABLES.format("heap"))
        c.execute(f"CREATE SUBSCRIPTION s CONNECTION '{where(publisher)}' PUBLICATION p WITH (failover = true, streaming = on)")
    return target


def same(source, target):
    wait("the subscriber has the same rows", lambda: rows(source) == rows(target))


def failover(conf):
    """The publisher is lost; its standby, which knows the slot, takes its place."""
    with servers() as clusters:
        first = made(clusters, conf, "synchronized_standby_slots=second")
        second = follow(clusters, first, "sync_replication_slots=on", "synchronized_standby_slots=''")
        with first.connect() as c:
            c.execute("CREATE PUBLICATION p FOR TABLE t, h")
        target = subscriber_of(clusters, first)
        same(first, target)
        known = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 's' AND synced AND NOT temporary AND invalidation_reason IS NULL"
        with second.connect() as s, first.connect() as c:
            def is_known():
                c.execute("SELECT pg_log_standby_snapshot()")
                return s.execute(known).fetchone()[0]
            wait("the standby knows the slot", is_known)
        for n in (2, 6):
            work(first, n)
        replayed(first, second)
        with target.connect() as c:
            # It lags behind what the standby has.
            c.execute("ALTER SUBSCRIPTION s DISABLE")
        work(first, 3)
        replayed(first, second)
        first.crash()
        promote(second)
        work(second, 4)
        with target.connect() as c:
            c.execute(f"ALTER SUBSCRIPTION s CONNECTION '{where(second)}'; ALTER SUBSCRIPTION s ENABLE")
        same(second, target)
        work(second, 5)
        same(second, target)
        whole(second)
        with target.connect() as c:
            c.execute("DROP SUBSCRIPTION s")


def converted(conf):
    """pg_createsubscriber makes a subscriber of a standby."""
    with servers() as clusters:
        first = made(clusters, conf)
        second = follow(clusters, first)
        second.stop()
        second.run("pg_createsubscriber", "-D", second.data, "-P", where(first), "-d", "postgres", "-U", "postgres", "-s", second.root, "-p", str(second.port))
        work(first, 2)
        second.start()
        same(first, second)
        work(first, 3)
        same(first, second)
        whole(second)
        with second.connect() as c:
            name = c.execute("SELECT subname FROM pg_subscription").fetchone()[0]
            c.execute(f'DROP SUBSCRIPTION "{name}"')


CASES = {"servers: pg_rewind": rewound}
if version() >= 16:
    CASES["servers: slots of a standby"] = of_standby
if version() >= 17:
    CASES |= {"servers: incremental backups": incremental, "servers: failover": failover, "servers: pg_createsubscriber": converted}
