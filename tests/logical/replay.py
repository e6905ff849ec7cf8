"""What the records for decoding leave behind where they are replayed: nothing. On a standby, and after a crash."""
import os
import time

import psycopg

from harness.cluster import Cluster

# Each fiftieth row has a value that is logged in chunks, as it stays large when it is compressed.
WORK = ("INSERT INTO t SELECT i, CASE WHEN i % 50 = 0 THEN (SELECT string_agg(md5((i * k)::text), '') FROM generate_series(1, 6000) k) ELSE md5(i::text) END, i"
        " FROM generate_series({0}, {1}) i;"
        "UPDATE t SET k = -k WHERE id BETWEEN {0} + 10 AND {0} + 40; DELETE FROM t WHERE id BETWEEN {0} + 50 AND {0} + 70;"
        "INSERT INTO h SELECT i, md5(i::text), i FROM generate_series({0}, {1}) i")
ROWS = "SELECT count(*), sum(id), sum(k), sum(length(v)), md5(string_agg(md5(v), '' ORDER BY id)) FROM {}"
# Of all that is decoded, without what is not the same each time.
DECODED = "SELECT count(*), md5(string_agg(data, '')) FROM pg_logical_slot_peek_changes('{}', NULL, NULL, 'include-xids', '0')"


def made(name, conf):
    cluster = Cluster(name, [*conf, "firn.bulk_threshold=10", "firn.stripe_rows=400"]).create()
    with cluster.connect() as c:
        c.execute("CREATE EXTENSION firn")
        c.execute("CREATE TABLE t (id int PRIMARY KEY, v text, k int) USING firn; CREATE TABLE h (id int, v text, k int) USING firn")
        c.execute("SELECT pg_create_logical_replication_slot('a', 'test_decoding')")
    return cluster


def files(cluster, table):
    with cluster.connect() as c:
        path = os.path.join(cluster.data, c.execute(f"SELECT pg_relation_filepath('{table}')").fetchone()[0])
        toast = c.execute(f"SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE oid = '{table}'::regclass").fetchone()[0]
    return {at + fork: os.path.getsize(at + fork) for at in (path, os.path.join(cluster.data, toast)) for fork in ("", "_fsm", "_vm")
            if os.path.exists(at + fork)}


def crashes(conf):
    """The server dies after each load: rows, decoded changes and free space are there afterwards."""
    cluster = made("replay", conf)
    try:
        for n in range(3):
            with cluster.connect() as c:
                c.execute("SET firn.bulk_threshold = 1000000; INSERT INTO h SELECT i, repeat('x', 200), i FROM generate_series(1, 20000) i")
                c.execute("DELETE FROM h WHERE length(v) = 200 AND k < 20000")
                for sql in ("VACUUM h", "CHECKPOINT", "RESET firn.bulk_threshold"):
                    c.execute(sql)
                c.execute(WORK.format(1 + 1000 * n, 1000 + 1000 * n))
                # One that does not come to its end.
                other = cluster.connect()
                other.execute("BEGIN; INSERT INTO t SELECT i, 'lost', i FROM generate_series(900001, 901000) i; DELETE FROM t WHERE id = 5")
                c.execute("INSERT INTO h VALUES (0, 'last', 0)")
                rows = [c.execute(ROWS.format(t)).fetchone() for t in ("t", "h")]
                decoded = c.execute(DECODED.format("a")).fetchone()
                size = c.execute("SELECT pg_relation_size('h')").fetchone()
                cluster.crash()
                other.close()
            cluster.start()
            with cluster.connect() as c:
                assert [c.execute(ROWS.format(t)).fetchone() for t in ("t", "h")] == rows
                assert c.execute(DECODED.format("a")).fetchone() == decoded
                for t in ("t", "h"):
                    assert not c.execute(f"SELECT * FROM firn.check('{t}')").fetchall()
                # The room that VACUUM has found is still known.
                c.execute("SET firn.bulk_threshold = 1000000; INSERT INTO h SELECT i, repeat('y', 200), i FROM generate_series(1, 10000) i")
                assert c.execute("SELECT pg_relation_size('h')").fetchone() == size
                # The map speaks of few pages more than there are.
                assert all(bytes <= 8 * 8192 for name, bytes in files(cluster, "h").items() if name.endswith("_fsm"))
        with cluster.connect() as c:
            c.execute("SELECT pg_drop_replication_slot('a')")
        assert not cluster.alarms(), cluster.alarms()
    finally:
        cluster.destroy()


def standby(conf):
    """A standby follows, is asked, promoted and written to. (Pages whose image is put in place are not compared with the primary's; all others are.)"""
    os.environ["FIRN_STANDBY"] = "1"
    try:
        cluster = made("standby", [*conf, "wal_consistency_checking=all", "hot_standby=on"])
    finally:
        del os.environ["FIRN_STANDBY"]
    try:
        with cluster.connect() as c:
            for n in range(3):
                c.execute(WORK.format(1 + 1000 * n, 1000 + 1000 * n))
            c.execute("SELECT firn.compact('t')")
            c.execute("VACUUM t, h")
            rows = [c.execute(ROWS.format(t)).fetchone() for t in ("t", "h")]
            assert c.execute(DECODED.format("a")).fetchone()[0] > 6000
            assert c.execute("SELECT max(length(data)) > 150000 FROM pg_logical_slot_peek_changes('a', NULL, NULL)").fetchone()[0], "no value is larger than a record's rows"
            c.execute("TRUNCATE h")
        cluster.shadow.catch_up()
        shadow = cluster.shadow
        with psycopg.connect(host=shadow.root, port=cluster.port, user="postgres", dbname="postgres", autocommit=True) as s:
            assert s.execute(ROWS.format("t")).fetchone() == rows[0]
            s.execute("SELECT pg_promote()")
            until = time.time() + 60
            while s.execute("SELECT pg_is_in_recovery()").fetchone() != (False,):
                assert time.time() < until
                time.sleep(0.1)
            s.execute(WORK.format(10001, 11000))
            s.execute("UPDATE t SET k = 0 WHERE id % 3 = 0")
            s.execute("VACUUM t, h")
            assert s.execute("SELECT count(*) FROM t").fetchone() == (rows[0][0] + 979,)
            for t in ("t", "h"):
                assert not s.execute(f"SELECT * FROM firn.check('{t}')").fetchall()
        found = open(shadow.log, errors="replace").read()
        assert "PANIC" not in found and "inconsistent page" not in found, found[-2000:]
    finally:
        cluster.destroy()


CASES = {"replay after crashes": crashes, "replay by a standby": standby}
