"""A streaming standby reads stripes and cold objects and takes over; dump and restore."""
import os
import shutil
import threading
import time

import psycopg

from harness.cluster import Cluster
from whole_stripes import random_steps


def fill(c, store):
    c.execute("CREATE EXTENSION firn")
    c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
    c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 500")
    for t in ("local", "away"):
        c.execute(f"CREATE TABLE {t} (id int PRIMARY KEY, v text, n numeric) USING firn")
        c.execute(f"INSERT INTO {t} SELECT i, 'v' || i, i / 3.0 FROM generate_series(1, 2000) i")
        c.execute(f"UPDATE {t} SET v = 'u' WHERE id % 100 = 0")
        c.execute(f"DELETE FROM {t} WHERE id % 77 = 0")
    c.execute("SELECT firn.offload('away', 'cold')")


def contents(c):
    return [c.execute(f"SELECT count(*), sum(id), sum(n), min(v), max(v) FROM {t}").fetchone() for t in ("local", "away")]


def looks(c):
    """What looks at a table and its indexes changes nothing, and may be asked for where nothing can be changed."""
    for t in ("local", "away"):
        for sql in ("SELECT bt_index_check(indexrelid, true) FROM pg_index JOIN pg_class i ON i.oid = indexrelid JOIN pg_am a ON a.oid = i.relam "
                    "WHERE amname = 'btree' AND indrelid IN (%(t)s::regclass, (SELECT reltoastrelid FROM pg_class WHERE oid = %(t)s::regclass))",
                    "SELECT * FROM firn.check(%(t)s)", "SELECT * FROM firn.stripes(%(t)s)", "SELECT * FROM firn.table_info(%(t)s)",
                    "SELECT pg_total_relation_size(%(t)s), pg_table_size(%(t)s)", "SELECT ctid, xmin, * FROM %s WHERE id < 9" % t,
                    "SELECT count(*) FROM %s TABLESAMPLE SYSTEM (50)" % t, "SELECT * FROM firn.repair(%(t)s, dry_run => true)"):
            c.execute(sql, {"t": t})


def note_of_counts(c, table):
    toast = c.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = %s::regclass", (table,)).fetchone()[0]
    return c.execute(f"SELECT xmin, chunk_data FROM {toast} WHERE chunk_id = 6").fetchall()


def standby(primary, store):
    with primary.connect() as c:
        c.execute("CREATE EXTENSION amcheck")
        fill(c, store)
        expected = contents(c)
        before = note_of_counts(c, "local")
        c.execute("BEGIN READ ONLY")
        looks(c)
        c.execute("COMMIT")
        assert note_of_counts(c, "local") == before
    second = Cluster("standby")
    try:
        primary.run("pg_basebackup", "-h", primary.root, "-p", str(primary.port), "-U", "postgres", "-D", second.data,
                    "-R", "-c", "fast")
        with open(os.path.join(second.data, "postgresql.conf"), "a") as f:
            f.write(f"unix_socket_directories='{second.root}'\n")
        second.start()
        with primary.connect() as c:
            c.execute("SET firn.bulk_threshold = 10")
            c.execute("INSERT INTO local SELECT i, 'late', 0 FROM generate_series(5000, 5100) i")
            c.execute("DELETE FROM away WHERE id = 1")
            c.execute("CREATE UNLOGGED TABLE unlogged (id int) USING firn; INSERT INTO unlogged SELECT generate_series(1, 1000)")
            expected = contents(c)
        with second.connect() as c:
            end = time.time() + 30
            while contents(c) != expected and time.time() < end:
                time.sleep(0.2)
            assert contents(c) == expected, (contents(c), expected)
            c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
            assert c.execute("SELECT v FROM local WHERE id = 5050").fetchone() == ("late",)
            assert c.execute("SELECT v FROM away WHERE id = 3").fetchone() == ("v3",)
            looks(c)
            # A standby has no files of an unlogged table.
            assert c.execute("SELECT relation::text, stripes, local_bytes FROM firn.tables WHERE relation::text = 'unlogged'").fetchall() == [("unlogged", None, None)]
            assert c.execute("SELECT count(*) FROM firn.tables WHERE stripes > 0").fetchone() == (2,)
            for call in ("firn.table_info('unlogged')", "firn.stripes('unlogged')", "firn.check('unlogged')", "firn.repair('unlogged', dry_run => true)",
                         "firn.stripe_file('unlogged', 0)", "firn.unneeded('unlogged')", "unlogged"):
                try:
                    c.execute(f"SELECT * FROM {call}")
                    raise AssertionError(call)
                except psycopg.Error as e:
                    assert e.sqlstate in ("0A000", "25006"), (call, e.sqlstate, e)
        invalid_index(primary, second)
        with primary.connect() as writer, second.connect() as reader:
            def replayed():
                at = writer.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
                while not reader.execute("SELECT pg_last_wal_replay_lsn() >= %s", (at,)).fetchone()[0]:
                    time.sleep(0.001)
            random_steps(writer, reader, None, "whole_replayed", sync=replayed)
        second.run("pg_ctl", "-D", second.data, "-w", "promote")
        with second.connect() as c:
            c.execute("UPDATE local SET v = 'promoted' WHERE id = 5")
            c.execute("UPDATE away SET v = 'promoted' WHERE id = 5")
            c.execute("SET firn.bulk_threshold = 10")
            c.execute("INSERT INTO local SELECT i, 'new', 0 FROM generate_series(6000, 6100) i")
            for t in ("local", "away"):
                assert c.execute(f"SELECT v FROM {t} WHERE id = 5").fetchone() == ("promoted",)
                assert not c.execute(f"SELECT * FROM firn.check('{t}')").fetchall()
        assert not second.alarms(), second.alarms()
    finally:
        second.destroy()


def give_up_when_made(cluster, pid):
    """Cancel the statement of that session once other sessions know an invalid index of a TOAST relation."""
    with cluster.connect() as c:
        end = time.time() + 60
        while not c.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid AND indrelid IN (SELECT reltoastrelid FROM pg_class WHERE relname = 'broken')").fetchone()[0]:
            assert time.time() < end, "no index is being made"
            time.sleep(0.02)
        c.execute("SELECT pg_cancel_backend(%s)", (pid,))


def invalid_index(primary, second):
    """A standby does not know whether an index of a TOAST relation is being built or was left: it warns."""
    with primary.connect() as c, primary.connect() as other, second.connect() as d:
        c.execute("SET firn.bulk_threshold = 10; CREATE TABLE broken (id int, v text) USING firn; INSERT INTO broken SELECT i, 'v' FROM generate_series(1, 1000) i")
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; INSERT INTO broken VALUES (0, 'open')")
        waits = threading.Thread(target=give_up_when_made, args=(primary, c.info.backend_pid))
        waits.start()
        c.execute("SET statement_timeout = '90s'")
        try:
            c.execute("REINDEX TABLE CONCURRENTLY broken")
            raise AssertionError("it has not waited for a transaction")
        except psycopg.errors.QueryCanceled as e:
            assert "user request" in str(e), e
        waits.join()
        c.execute("RESET statement_timeout")
        other.execute("ROLLBACK")
        caught_up(primary, second)
        found = {server: conn.execute("SELECT severity, problem FROM firn.check('broken') WHERE problem LIKE 'it is invalid%'").fetchall() for server, conn in (("primary", c), ("standby", d))}
        assert found["primary"] == [("warning", "it is invalid; REINDEX CONCURRENTLY left it")] * len(found["primary"]) and found["primary"], found
        assert found["standby"] == [("warning", "it is invalid; REINDEX CONCURRENTLY is at work on the primary, or left it")] * len(found["primary"]), found
        c.execute("DROP TABLE broken")


def dump(cluster):
    with cluster.connect() as c:
        expected = contents(c)
        c.execute("CREATE DATABASE back")
    path = os.path.join(cluster.root, "dump")
    where = ["-h", cluster.root, "-p", str(cluster.port), "-U", "postgres"]
    cluster.run("pg_dump", *where, "-Fc", "-f", path, "postgres")
    cluster.run("pg_restore", *where, "-d", "back", path)
    with cluster.connect("back") as c:
        assert contents(c) == expected
        am = c.execute("SELECT amname FROM pg_class JOIN pg_am a ON a.oid = relam WHERE relname = 'local'").fetchone()
        assert am == ("firn",)
        assert c.execute("SELECT count(*) FROM pg_foreign_server").fetchone() == (1,)


def caught_up(primary, second):
    with primary.connect() as c, second.connect() as d:
        end = c.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
        until = time.time() + 60
        while not d.execute(f"SELECT pg_last_wal_replay_lsn() >= '{end}'").fetchone()[0]:
            assert time.time() < until, "the standby does not follow"
            time.sleep(0.1)


def after_compaction():
    """A standby sees each row once when it has moved, by every way there is; its pages are the primary's."""
    primary = Cluster("mover", ["wal_consistency_checking=all", "autovacuum=off"]).create()
    second = Cluster("moved")
    scans = ["SET enable_seqscan = on; SET firn.enable_scan = on; SET enable_indexonlyscan = on",
             "SET firn.enable_scan = off", "SET enable_seqscan = off; SET enable_bitmapscan = off"]

    def look(c):
        found = []
        for settings in scans:
            c.execute(settings)
            found.append(c.execute("SELECT count(id), sum(id) FROM t WHERE id > 0").fetchone())
        found.append(c.execute("SELECT sum(length(v)) FROM t").fetchone())
        return found

    try:
        with primary.connect() as c:
            c.execute("CREATE EXTENSION firn; SET firn.stripe_rows = 700")
            c.execute("CREATE TABLE t (id int PRIMARY KEY, v text) USING firn; ALTER TABLE t ALTER v SET STORAGE external")
            c.execute("INSERT INTO t SELECT i, repeat('x', CASE WHEN i % 500 = 0 THEN 20000 ELSE i % 50 END) FROM generate_series(1, 6000) i")
            c.execute("DELETE FROM t WHERE id % 10 = 0")
        primary.run("pg_basebackup", "-h", primary.root, "-p", str(primary.port), "-U", "postgres", "-D", second.data,
                    "-R", "-c", "fast")
        with open(os.path.join(second.data, "postgresql.conf"), "a") as f:
            f.write(f"unix_socket_directories='{second.root}'\n")
        second.start()
        with primary.connect() as c, primary.connect() as other, second.connect() as d:
            c.execute("SET firn.stripe_rows = 700")
            for step in ("VACUUM (FREEZE) t",
                         "BEGIN; SELECT firn.compact('t'); ROLLBACK",
                         "UPDATE t SET v = v || 'u' WHERE id % 900 = 1",
                         "VACUUM t",
                         "SELECT firn.compact('t')",
                         "SELECT firn.compact('t')",
                         "VACUUM t",
                         "DELETE FROM t WHERE id % 11 = 0; INSERT INTO t SELECT i, 'late' FROM generate_series(7001, 7500) i",
                         "SELECT firn.compact('t')"):
                if step.startswith("SELECT firn.compact"):
                    # A locked row stays where it is, and its page is not all visible either.
                    other.execute("BEGIN; SELECT id FROM t WHERE id = 17 FOR KEY SHARE")
                for part in step.split("; "):
                    c.execute(part)
                other.execute("COMMIT")
                caught_up(primary, second)
                expected = look(c)
                assert len(set(expected[:3])) == 1 and look(d) == expected, (step, expected, look(d))
            assert not c.execute("SELECT * FROM firn.check('t')").fetchall()
        # What it has replayed stands up to a crash as well.
        second.crash()
        second.start()
        primary.crash()
        primary.start()
        with primary.connect() as c, second.connect() as d:
            assert look(c) == expected and look(d) == expected
        for server in (primary, second):
            assert not server.alarms(), server.alarms()
            assert "inconsistent page found" not in open(server.log).read()
    finally:
        second.destroy()
        primary.destroy()


def removed_stripes():
    """VACUUM of the primary removes stripes, then their index entries: an older snapshot on a standby that sees the rows
    by scan never misses them by index. It gets them, or a conflict with recovery."""
    primary = Cluster("remover", ["autovacuum=off"]).create()
    second = Cluster("older")
    rows = "SELECT count(*), sum(id) FROM t WHERE id > 0"
    off, on = "VACUUM (PROCESS_TOAST false, INDEX_CLEANUP off) t", "VACUUM (PROCESS_TOAST false, INDEX_CLEANUP on) t"
    try:
        with primary.connect() as c:
            c.execute("CREATE EXTENSION firn; SET firn.stripe_rows = 1000; SET firn.bulk_threshold = 0")
            c.execute("CREATE TABLE t (id int PRIMARY KEY) USING firn")
        primary.run("pg_basebackup", "-h", primary.root, "-p", str(primary.port), "-U", "postgres", "-D", second.data,
                    "-R", "-c", "fast")
        with open(os.path.join(second.data, "postgresql.conf"), "a") as f:
            f.write(f"unix_socket_directories='{second.root}'\nhot_standby_feedback=off\nmax_standby_streaming_delay=0\n")
        second.start()
        conflicts = 0
        for round, vacuums in enumerate(([off, off, on], [off, on], [on], [on, on], ["VACUUM t", "VACUUM t"])):
            first = 100000 * round
            with primary.connect() as c, second.connect() as d:
                c.execute("SET firn.stripe_rows = 1000; SET firn.bulk_threshold = 0")
                c.execute(f"INSERT INTO t SELECT generate_series({first + 1}, {first + 5000})")
                c.execute(on)
                expected = c.execute(rows).fetchone()
                caught_up(primary, second)
                d.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                d.execute("SET enable_seqscan = off; SET firn.enable_scan = off; SET enable_bitmapscan = off")
                assert d.execute(rows).fetchone() == expected
                c.execute(f"DELETE FROM t WHERE id BETWEEN {first + 1001} AND {first + 3000}")
                for vacuum in vacuums:
                    c.execute(vacuum)
                    caught_up(primary, second)
                    try:
                        found = d.execute(rows).fetchone()
                        assert found == expected, (vacuums, vacuum, found, expected)
                    except psycopg.errors.SerializationFailure:
                        conflicts += 1
                        break
                assert c.execute("SELECT count(*) FROM firn.stripes('t')").fetchone() == (3 * (round + 1),)
        # Each round ends in one: the rows have no entries any more.
        assert conflicts == 5, conflicts
        with second.connect() as d, primary.connect() as c:
            d.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
            assert d.execute(rows).fetchone() == c.execute(rows).fetchone()
        for server in (primary, second):
            assert not server.alarms(), server.alarms()
    finally:
        second.destroy()
        primary.destroy()


def changes_of(c, slot):
    return [r[0] for r in c.execute(f"SELECT data FROM pg_logical_slot_get_changes('{slot}', NULL, NULL)")]


def logical():
    """What stripes write of their own is decoded as nothing, and so is a move of rows."""
    cluster = Cluster("logical", ["wal_level=logical"]).create()
    store = os.path.join(cluster.root, "store")
    os.mkdir(store)
    os.chmod(store, 0o777)
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn; CREATE EXTENSION IF NOT EXISTS plpgsql")
            c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
            c.execute("CREATE TABLE h (id int PRIMARY KEY, v text) USING heap; CREATE PUBLICATION ph FOR TABLE h")
            c.execute("CREATE TABLE f (id int PRIMARY KEY, v text) USING firn")
            c.execute("CREATE TABLE p (id int PRIMARY KEY, v text) USING firn")
            c.execute("ALTER TABLE p REPLICA IDENTITY FULL")
            # The slot of a subscription follows publications. Another plugin reads the same log later.
            c.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
            # Everything that writes into the TOAST relation.
            c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 500")
            c.execute("INSERT INTO f SELECT i, repeat('x', i % 100) FROM generate_series(1, 3000) i")
            big = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 5000) i"
            c.execute(f"INSERT INTO f VALUES (-1, ({big})), (-2, 'small')")
            assert c.execute("SELECT firn.compact('f')").fetchone() == (12,)
            c.execute("VACUUM f")
            c.execute("INSERT INTO f VALUES (-3, 'small'), (-4, 'small')")
            c.execute("VACUUM f")
            assert c.execute("SELECT firn.compact('f')").fetchone() == (2,)
            c.execute("UPDATE f SET v = 'u' WHERE id % 50 = 0")
            c.execute("DELETE FROM f WHERE id % 77 = 0")
            c.execute("SELECT count(*) FROM (SELECT 1 FROM f WHERE id < 100 FOR UPDATE) s")
            c.execute("SELECT firn.offload('f', 'cold')")
            c.execute("SELECT firn.load('f')")
            c.execute("VACUUM f")
            c.execute(f"INSERT INTO h VALUES (1, ({big}))")
            c.execute("DELETE FROM h")
            # A table whose rows move before, between and after changes of them.
            c.execute("INSERT INTO p SELECT i, 'early' FROM generate_series(1, 100) i")
            c.execute("CREATE PUBLICATION pp FOR TABLE p")
            c.execute("INSERT INTO p SELECT i, 'bulk' FROM generate_series(1001, 2000) i")
            c.execute("UPDATE p SET v = 'changed' WHERE id = 1500")
            c.execute("DELETE FROM p WHERE id = 1501")
            moved = c.execute("SELECT firn.compact('p')").fetchone()
            assert moved == (21,), moved
            c.execute("UPDATE p SET v = 'changed' WHERE id IN (50, 1500)")
            c.execute("DELETE FROM p WHERE id = 51")
            c.execute("SELECT pg_copy_logical_replication_slot('s', 'all', true, 'test_decoding')")
            changes = changes_of(c, "all")
            of = lambda text: sum(text in x for x in changes)  # noqa: E731
            assert of("table public.h: INSERT") == 1 and any(len(x) > 160000 for x in changes if "public.h:" in x)
            assert of("table public.h: DELETE") == 1 and of("table public.f: DELETE") == 38, changes[-20:]
            assert of("table public.f: INSERT") == 3004 and of("table public.f: UPDATE") == 60
            assert of("id[integer]:-") == 4 and of("v[text]:'u'") == 60 and of("pg_toast") == 0
            assert of("table public.p: INSERT") == 1100, of("table public.p: INSERT")
            assert of("v[text]:'bulk'") == 1002 and of("table public.p: DELETE") == 2 and of("table public.p: UPDATE") == 3
            c.execute("SELECT pg_drop_replication_slot('all')")
            c.execute("DROP PUBLICATION pp")
            c.execute("SELECT firn.compact('p'); DELETE FROM p WHERE id = 50")
            for t in ("f", "p"):
                assert not c.execute(f"SELECT * FROM firn.check('{t}')").fetchall()
        assert not cluster.alarms(), cluster.alarms()
    finally:
        cluster.destroy()


def subscription():
    """A subscription's changes reach rows in stripes that it finds by their values alone, and wait for who inserts or deletes
    such a row beside it."""
    cluster = Cluster("subscription", ["wal_level=logical", "autovacuum=off"]).create()
    rows = "SELECT id, v, n FROM t ORDER BY id, v, n"
    try:
        for name in ("source", "target"):
            with cluster.connect() as c:
                c.execute(f"CREATE DATABASE {name}")
        with cluster.connect("source") as source, cluster.connect("target") as target, cluster.connect("target") as other:
            source.execute("CREATE TABLE t (id int, v text, n numeric); ALTER TABLE t REPLICA IDENTITY FULL")
            source.execute("INSERT INTO t SELECT i, 'v' || i % 7, i / 4.0 FROM generate_series(1, 200) i")
            source.execute("CREATE PUBLICATION p FOR TABLE t")
            source.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
            target.execute("CREATE EXTENSION firn; ALTER DATABASE target SET firn.bulk_threshold = 10; SET firn.bulk_threshold = 10")
            target.execute("CREATE TABLE t (id int, v text, n numeric) USING firn")
            target.execute(f"CREATE SUBSCRIPTION s CONNECTION 'host={cluster.root} port={cluster.port} user=postgres dbname=source' "
                           "PUBLICATION p WITH (create_slot = false, slot_name = s)")

            def until(what, happens):
                end = time.time() + 60
                while not happens():
                    assert time.time() < end, what
                    time.sleep(0.1)

            def arrived():
                return source.execute(rows).fetchall() == target.execute(rows).fetchall()

            def waits():
                return target.execute("SELECT count(*) FROM pg_locks l JOIN pg_stat_subscription s USING (pid) "
                                      "WHERE NOT l.granted").fetchone() == (1,)

            until("the first copy", arrived)
            assert target.execute("SELECT stripes FROM firn.tables").fetchone() == (1,)
            for change in ("UPDATE t SET v = 'same' WHERE id = 5", "UPDATE t SET v = 'same' WHERE id = 5",
                           "UPDATE t SET id = id * 2 WHERE id < 40", "DELETE FROM t WHERE id BETWEEN 60 AND 90",
                           "INSERT INTO t SELECT 1000, 'alike', i / 100 FROM generate_series(1, 50) i",
                           "DELETE FROM t WHERE id = 1000", "UPDATE t SET n = n + 1 WHERE id % 3 = 0"):
                source.execute(change)
                until(change, arrived)
            assert not target.execute("SELECT * FROM firn.check('t')").fetchall()
            # Somebody deletes the row meanwhile, and takes it back.
            other.execute("BEGIN; DELETE FROM t WHERE id = 150")
            source.execute("UPDATE t SET v = 'kept' WHERE id = 150")
            until("waiting for a deletion", waits)
            other.execute("ROLLBACK")
            until("the update of a row that is not deleted", arrived)
            # Somebody inserts a row like it, and takes it back.
            source.execute("INSERT INTO t VALUES (5000, 'not there', 1)")
            until("a row more", arrived)
            target.execute("DELETE FROM t WHERE id = 5000")
            other.execute("SET firn.bulk_threshold = 0; BEGIN")
            other.execute("INSERT INTO t VALUES (5000, 'not there', 1); INSERT INTO t VALUES (5001, 'nor this', 1)")
            source.execute("UPDATE t SET v = 'never' WHERE id = 5000")
            until("waiting for an insertion", waits)
            other.execute("ROLLBACK")
            source.execute("DELETE FROM t WHERE id = 5000")
            source.execute("INSERT INTO t VALUES (6000, 'last', 1)")
            until("a row that was never there", arrived)
            assert not target.execute("SELECT * FROM firn.check('t')").fetchall()
            target.execute("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s")
        assert not cluster.alarms(), cluster.alarms()
    finally:
        cluster.destroy()


def loads_taken_back():
    """A subscription looks for a row while a load that has brought one like it is taken back: it does not find that, be it that VACUUM
    has removed it since, or what it would read next of a stripe that it is within."""
    cluster = Cluster("taken-back", ["wal_level=logical", "autovacuum=off"]).create()
    try:
        for name in ("source", "target"):
            with cluster.connect() as c:
                c.execute(f"CREATE DATABASE {name}")
        with cluster.connect("source") as source, cluster.connect("target") as target, cluster.connect("target") as other:
            for c in (source, target):
                c.execute("CREATE TYPE kind AS ENUM ('old', 'new')")
            # Who compares waits for our lock: at the first row, or at the first that is new.
            target.execute("""CREATE FUNCTION same(a kind, b kind) RETURNS bool LANGUAGE plpgsql AS $$BEGIN
                PERFORM pg_advisory_xact_lock_shared(77);
                IF a::text = 'new' AND b::text = 'new' THEN PERFORM pg_advisory_xact_lock_shared(78); END IF;
                RETURN a::text = b::text; END$$""")
            target.execute("CREATE OPERATOR = (LEFTARG = kind, RIGHTARG = kind, FUNCTION = same)")
            target.execute("CREATE OPERATOR CLASS kinds DEFAULT FOR TYPE kind USING btree AS OPERATOR 3 =")
            source.execute("CREATE TABLE t (k kind, id int, v text); ALTER TABLE t REPLICA IDENTITY FULL")
            source.execute("INSERT INTO t SELECT 'old', i, 'v' FROM generate_series(1, 200) i; CREATE PUBLICATION p FOR TABLE t")
            source.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
            target.execute("CREATE EXTENSION firn; ALTER DATABASE target SET firn.bulk_threshold = 10")
            target.execute("CREATE TABLE t (k kind, id int, v text) USING firn")
            target.execute(f"CREATE SUBSCRIPTION s CONNECTION 'host={cluster.root} port={cluster.port} user=postgres dbname=source' "
                           "PUBLICATION p WITH (create_slot = false, slot_name = s)")

            def until(what, sql):
                end = time.time() + 60
                while target.execute(sql).fetchone() != (1,):
                    assert time.time() < end, what
                    time.sleep(0.1)

            until("the first copy", "SELECT count(*) FROM (SELECT FROM t HAVING count(*) = 200) x")
            for id, lock, then in ((1000, 77, "SELECT"), (2000, 77, "VACUUM t"), (3000, 78, "VACUUM t")):
                source.execute("INSERT INTO t VALUES ('new', %s, 'v')", (id,))
                until("a row more", f"SELECT count(*) FROM t WHERE id = {id}")
                target.execute(f"DELETE FROM t WHERE id = {id}")
                other.execute("SET firn.bulk_threshold = 0; BEGIN")
                if lock == 77:
                    other.execute(f"INSERT INTO t VALUES ('new', {id}, 'v'); INSERT INTO t VALUES ('new', {id + 1}, 'v')")
                else:
                    other.execute(f"INSERT INTO t SELECT 'new', {id} + i, md5(i::text) FROM generate_series(1, 5000) i")
                target.execute(f"SELECT pg_advisory_lock({lock})")
                source.execute("UPDATE t SET v = 'never' WHERE id = %s", (id,))
                until("comparing", "SELECT count(*) FROM pg_locks l JOIN pg_stat_subscription s USING (pid) WHERE NOT l.granted AND locktype = 'advisory'")
                other.execute("ROLLBACK")
                target.execute(then)
                target.execute(f"SELECT pg_advisory_unlock({lock})")
                source.execute("INSERT INTO t VALUES ('old', %s, 'last')", (id + 2,))
                until("the changes after it", f"SELECT count(*) FROM t WHERE id = {id + 2}")
                found = target.execute(f"SELECT id, v FROM t WHERE id IN ({id}, {id + 1})").fetchall()
                assert not found, (then, found)
                target.execute(f"DELETE FROM t WHERE id = {id + 2}")
            assert target.execute("SELECT apply_error_count FROM pg_stat_subscription_stats").fetchone() == (0,)
            assert not target.execute("SELECT * FROM firn.check('t')").fetchall()
            target.execute("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s")
        assert not cluster.alarms(), cluster.alarms()
    finally:
        cluster.destroy()


def run(tally, pattern):
    cluster = Cluster("primary").create()
    store = os.path.join(cluster.root, "store")
    os.mkdir(store)
    os.chmod(store, 0o777)
    try:
        cases = {"standby reads and takes over": lambda: standby(cluster, store), "dump and restore": lambda: dump(cluster),
                 "a standby after compactions": after_compaction, "a standby and removed stripes": removed_stripes,
                 "logical decoding beside stripes": logical,
                 "subscription to rows in stripes": subscription,
                 "subscription beside loads taken back": loads_taken_back}
        for name, case in cases.items():
            if pattern in name:
                tally.case(name, case)
    finally:
        cluster.destroy()
        shutil.rmtree(store, ignore_errors=True)
