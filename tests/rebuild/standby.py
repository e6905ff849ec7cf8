"""A standby's older snapshots miss no rows by an index that the primary has built anew: what it lacks they may see."""
import os
import shutil

import psycopg

from harness.cluster import Cluster
from rebuild.common import fresh, compact, sizes, wait_until

ROWS = 30000
BY_INDEX = "SELECT count(*) FROM f WHERE r >= 0"


def standby_of(primary, name, *conf):
    second = Cluster(name)
    primary.run("pg_basebackup", "-h", primary.root, "-p", str(primary.port), "-U", "postgres", "-D", second.data, "-R", "-c", "fast")
    with open(os.path.join(second.data, "postgresql.conf"), "a") as f:
        f.write("\n".join([f"unix_socket_directories='{second.root}'", *conf]) + "\n")
    second.start()
    return second


def caught_up(primary):
    """All that follow have replayed what the primary has written. (They are not asked: replaying may end whoever asks.)"""
    with primary.connect() as c:
        end = c.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
        c.execute("SELECT pg_switch_wal()")
        wait_until("a standby does not follow", lambda: c.execute("SELECT bool_and(replay_lsn >= %s::pg_lsn) FROM pg_stat_replication", (end,)).fetchone() == (True,))


def reader(second):
    c = second.connect()
    c.execute("SET enable_seqscan = off; SET firn.enable_scan = off; SET enable_bitmapscan = off")
    assert "f_random" in str(c.execute("EXPLAIN " + BY_INDEX).fetchall())
    c.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    # Not of f: whoever holds a lock on the old index ends when that is dropped.
    assert c.execute("SELECT count(*) FROM h WHERE id > 0").fetchone() == (ROWS,)
    return c


def file(c):
    return c.execute("SELECT pg_relation_filenode('f_random')").fetchone()


def standby_snapshots(cluster):
    primary = Cluster("built", ["autovacuum=off", "fsync=off"]).create()
    seconds = []
    try:
        with primary.connect() as c:
            c.execute("CREATE EXTENSION firn; CREATE TABLE other (a int)")
            seconds = [standby_of(primary, "tells", "hot_standby_feedback=on", "wal_receiver_status_interval=1s"),
                       standby_of(primary, "silent", "hot_standby_feedback=off", "max_standby_streaming_delay=0")]
            for older in (False, True):
                told(primary, c, seconds[0], older)
            # One that tells says, while an older transaction runs, that its snapshots may be as old.
            seconds[0].stop()
            silent(primary, c, seconds[1])
        for server in (primary, *seconds):
            assert not server.alarms(), server.alarms()
    finally:
        for server in (*seconds, primary):
            server.destroy()
            shutil.rmtree(server.root, ignore_errors=True)


def due(c):
    fresh(c, ["random"], ROWS)
    # Giving pages back would end the reader, whatever he reads.
    c.execute("ALTER TABLE f SET (vacuum_truncate = off, toast.vacuum_truncate = off)")
    compact(c)
    # Rows that some snapshot of a standby could still want at their old places do not count as moved yet.
    xid = c.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()[0]
    wait_until("a standby lags", lambda: c.execute("SELECT count(*) FROM pg_stat_replication WHERE backend_xmin::text::bigint <= %s", (xid,)).fetchone()[0] == 0)
    c.execute("SET firn.rebuild_indexes = off")
    c.execute("VACUUM f")
    c.execute("SET firn.rebuild_indexes = on")
    assert sizes(c, "f")["f_random"] > 120
    return file(c)


def told(primary, c, second, older):
    """The standby tells of its snapshots: it is waited for. `older`: a transaction runs that is older than all of them, so that
    they count as no older than the primary's own."""
    before = due(c)
    if older:
        c.execute("BEGIN; INSERT INTO other VALUES (1); PREPARE TRANSACTION 'old'")
    caught_up(primary)
    with second.connect() as d:
        # It is not the lock that is refused, which is taken there for what rebuilds may leave.
        try:
            d.execute("ALTER TABLE f ADD a int")
            raise AssertionError("altered")
        except psycopg.errors.ReadOnlySqlTransaction:
            pass
    d = reader(second)
    wait_until("no feedback", lambda: c.execute("SELECT backend_xmin IS NOT NULL FROM pg_stat_replication WHERE application_name = 'walreceiver' "
                                                "AND backend_xmin IS NOT NULL").fetchone() is not None)
    c.execute("DELETE FROM f WHERE id % 2 = 0; DELETE FROM h WHERE id % 2 = 0")
    c.execute("VACUUM f")
    assert file(c) == before, "rebuilt although a standby may need what it lacks"
    caught_up(primary)
    assert d.execute(BY_INDEX).fetchone() == (ROWS,)
    d.execute("COMMIT")
    d.close()
    if older:
        c.execute("COMMIT PREPARED 'old'")
    wait_until("it is never rebuilt", lambda: file(c) != before or c.execute("VACUUM f") is None)
    caught_up(primary)
    with second.connect() as d:
        d.execute("SET enable_seqscan = off; SET firn.enable_scan = off; SET enable_bitmapscan = off")
        assert d.execute(BY_INDEX).fetchone() == (ROWS // 2,)


def silent(primary, c, second):
    """Of the others a snapshot that could miss rows ends, also where VACUUM removes nothing."""
    before = due(c)
    c.execute("BEGIN; INSERT INTO other VALUES (1); PREPARE TRANSACTION 'old'")
    caught_up(primary)
    d = reader(second)
    c.execute("DELETE FROM f WHERE id % 2 = 0; DELETE FROM h WHERE id % 2 = 0")
    c.execute("VACUUM f")
    assert file(c) != before
    caught_up(primary)
    try:
        found = d.execute(BY_INDEX).fetchone()
        raise AssertionError(f"it goes on, and finds {found} of {ROWS}")
    except (psycopg.errors.SerializationFailure, psycopg.errors.AdminShutdown, psycopg.OperationalError) as e:
        assert "conflict with recovery" in str(e), e
    d.close()
    c.execute("COMMIT PREPARED 'old'")
