"""Two sessions at once, on heap and on firn with the rows in stripes: the same outcome in each step."""
import threading
import time

import psycopg

from harness.cluster import Cluster

# Steps are (session, statement); a statement that blocks is left running, its result is taken when
# the session is used again or at the end.
SPECS = {
    "update waits, commit, re-check passes": [
        ("a", "BEGIN"), ("b", "BEGIN"),
        ("a", "UPDATE t SET n = n + 1 WHERE id = 3"), ("b", "UPDATE t SET n = n + 10 WHERE id = 3 RETURNING n"),
        ("a", "COMMIT"), ("b", "COMMIT"), ("a", "SELECT n FROM t WHERE id = 3")],
    "update waits, re-check fails": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 100 WHERE id = 3"),
        ("b", "UPDATE t SET n = n + 10 WHERE id = 3 AND n = 3 RETURNING n"), ("a", "COMMIT"),
        ("b", "SELECT n FROM t WHERE id = 3")],
    "update waits, rollback": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 100 WHERE id = 3"),
        ("b", "UPDATE t SET n = n + 10 WHERE id = 3 RETURNING n"), ("a", "ROLLBACK"), ("b", "SELECT n FROM t WHERE id = 3")],
    "delete waits for update": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 100 WHERE id = 3"), ("b", "DELETE FROM t WHERE id = 3 RETURNING n"),
        ("a", "COMMIT"), ("b", "SELECT count(*) FROM t")],
    "update of a deleted row": [
        ("a", "BEGIN"), ("a", "DELETE FROM t WHERE id = 3"), ("b", "UPDATE t SET n = 5 WHERE id = 3 RETURNING n"),
        ("a", "COMMIT"), ("b", "SELECT count(*) FROM t")],
    "repeatable read, concurrent update": [
        ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT sum(n) FROM t"),
        ("a", "UPDATE t SET n = 100 WHERE id = 3"), ("b", "SELECT sum(n) FROM t"),
        ("b", "UPDATE t SET n = 5 WHERE id = 3"), ("b", "ROLLBACK")],
    "serializable write skew": [
        ("a", "BEGIN ISOLATION LEVEL SERIALIZABLE"), ("b", "BEGIN ISOLATION LEVEL SERIALIZABLE"),
        ("a", "SELECT sum(n) FROM t"), ("b", "SELECT sum(n) FROM t"),
        ("a", "UPDATE t SET n = 0 WHERE id = 1"), ("b", "UPDATE t SET n = 0 WHERE id = 2"),
        ("a", "COMMIT"), ("b", "COMMIT")],
    "nowait and skip locked": [
        ("a", "BEGIN"), ("a", "SELECT id FROM t WHERE id = 3 FOR UPDATE"),
        ("b", "SELECT id FROM t WHERE id = 3 FOR UPDATE NOWAIT"),
        ("b", "SELECT id FROM t WHERE id IN (2, 3, 4) ORDER BY id FOR UPDATE SKIP LOCKED"),
        ("b", "SELECT id FROM t WHERE id = 3 FOR KEY SHARE SKIP LOCKED"), ("a", "COMMIT")],
    "an update returns the xmax of who shares the key": [
        ("a", "BEGIN"), ("b", "BEGIN"), ("a", "SELECT id FROM t WHERE id = 3 FOR KEY SHARE"),
        ("b", "UPDATE t SET n = 7 WHERE id IN (3, 4) RETURNING id, xmax = 0"), ("b", "SELECT id, xmax = 0 FROM t WHERE id IN (3, 4) ORDER BY 1"),
        ("b", "UPDATE t SET n = 8 WHERE id IN (3, 4) RETURNING id, xmax = 0"), ("a", "COMMIT"), ("b", "COMMIT")],
    "share locks together": [
        ("a", "BEGIN"), ("b", "BEGIN"), ("a", "SELECT id FROM t WHERE id = 3 FOR SHARE"),
        ("b", "SELECT id FROM t WHERE id = 3 FOR KEY SHARE NOWAIT"),
        ("b", "SELECT id FROM t WHERE id = 3 FOR SHARE NOWAIT"),
        ("c", "UPDATE t SET n = 7 WHERE id = 3 RETURNING n"), ("a", "COMMIT"), ("b", "COMMIT"),
        ("c", "SELECT n FROM t WHERE id = 3")],
    "lock released by savepoint": [
        ("a", "BEGIN"), ("a", "SAVEPOINT s"), ("a", "SELECT id FROM t WHERE id = 3 FOR UPDATE"), ("a", "ROLLBACK TO s"),
        ("b", "SELECT id FROM t WHERE id = 3 FOR UPDATE NOWAIT"), ("a", "COMMIT")],
    "unique conflict with an uncommitted load, commit": [
        ("a", "BEGIN"), ("a", "INSERT INTO t SELECT i, i FROM generate_series(1000, 1100) i"),
        ("b", "INSERT INTO t VALUES (1050, 1)"), ("a", "COMMIT"), ("b", "SELECT count(*) FROM t")],
    "unique conflict with an uncommitted load, rollback": [
        ("a", "BEGIN"), ("a", "INSERT INTO t SELECT i, i FROM generate_series(1000, 1100) i"),
        ("b", "INSERT INTO t VALUES (1050, 1)"), ("a", "ROLLBACK"), ("b", "SELECT count(*) FROM t")],
    "on conflict do nothing waits": [
        ("a", "BEGIN"), ("a", "INSERT INTO t SELECT i, i FROM generate_series(1000, 1100) i"),
        ("b", "INSERT INTO t VALUES (1050, 1) ON CONFLICT DO NOTHING RETURNING id"), ("a", "COMMIT"),
        ("b", "SELECT count(*) FROM t")],
    "foreign key: parent deleted, child waits": [
        ("a", "BEGIN"), ("a", "DELETE FROM t WHERE id = 9"), ("b", "INSERT INTO child VALUES (9)"), ("a", "COMMIT"),
        ("b", "SELECT count(*) FROM child")],
    "foreign key: child inserted, parent's delete waits": [
        ("a", "BEGIN"), ("a", "INSERT INTO child VALUES (9)"), ("b", "DELETE FROM t WHERE id = 9"), ("a", "COMMIT"),
        ("b", "SELECT count(*) FROM t")],
    "foreign key: non-key update of the parent does not wait": [
        ("a", "BEGIN"), ("a", "INSERT INTO child VALUES (8)"),
        ("b", "SELECT id FROM t WHERE id = 8 FOR NO KEY UPDATE NOWAIT"), ("a", "COMMIT")],
    "foreign key: children inserted, two updates of the parent": [
        ("a", "BEGIN"), ("b", "BEGIN"), ("a", "INSERT INTO child VALUES (8)"), ("b", "INSERT INTO child VALUES (8)"),
        ("a", "UPDATE t SET n = 80 WHERE id = 8"), ("b", "UPDATE t SET n = n + 1 WHERE id = 8 RETURNING n"),
        ("a", "COMMIT"), ("b", "COMMIT")],
    "foreign key: parent updated, child does not wait": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 80 WHERE id = 8"), ("b", "INSERT INTO child VALUES (8)"), ("a", "COMMIT")],
    "foreign key: parent updated after the child, deleted by others": [
        ("a", "BEGIN"), ("a", "INSERT INTO child VALUES (8)"), ("b", "UPDATE t SET n = 80 WHERE id = 8"),
        ("b", "DELETE FROM t WHERE id = 8"), ("a", "COMMIT"), ("b", "SELECT count(*) FROM t")],
    "foreign key: parent updated before the child, deleted by others": [
        ("a", "BEGIN"), ("b", "BEGIN"), ("a", "UPDATE t SET n = 80 WHERE id = 8"), ("b", "INSERT INTO child VALUES (8)"),
        ("a", "COMMIT"), ("a", "DELETE FROM t WHERE id = 8"), ("b", "COMMIT"), ("a", "SELECT count(*) FROM t")],
    "foreign key: the updater itself deletes the parent": [
        ("a", "BEGIN"), ("b", "BEGIN"), ("a", "UPDATE t SET n = 80 WHERE id = 8"), ("b", "INSERT INTO child VALUES (8)"),
        ("a", "DELETE FROM t WHERE id = 8"), ("b", "COMMIT"), ("a", "COMMIT"), ("a", "SELECT count(*) FROM t")],
    "foreign key: the child locks all versions of one transaction": [
        ("a", "BEGIN"), ("b", "BEGIN"), ("a", "UPDATE t SET n = 80 WHERE id = 8"), ("a", "SAVEPOINT s"),
        ("a", "UPDATE t SET n = 81 WHERE id = 8"), ("a", "UPDATE t SET n = 82 WHERE id = 8"),
        ("b", "INSERT INTO child VALUES (8)"), ("a", "COMMIT"), ("c", "DELETE FROM t WHERE id = 8"), ("b", "COMMIT"),
        ("c", "SELECT n FROM t WHERE id = 8")],
    "foreign key: the lock outlives an update rolled back": [
        ("a", "BEGIN"), ("b", "BEGIN"), ("a", "UPDATE t SET n = 80 WHERE id = 8"), ("b", "INSERT INTO child VALUES (8)"),
        ("a", "ROLLBACK"), ("c", "DELETE FROM t WHERE id = 8"), ("b", "COMMIT"), ("c", "SELECT n FROM t WHERE id = 8")],
    "foreign key: the lock outlives an update rolled back to a savepoint": [
        ("a", "BEGIN"), ("b", "BEGIN"), ("a", "SAVEPOINT s"), ("a", "UPDATE t SET n = 80 WHERE id = 8"),
        ("b", "INSERT INTO child VALUES (8)"), ("a", "ROLLBACK TO s"), ("a", "UPDATE t SET n = 90 WHERE id = 8"),
        ("a", "COMMIT"), ("c", "UPDATE t SET id = 800 WHERE id = 8"), ("b", "COMMIT"), ("c", "SELECT n FROM t WHERE id = 8")],
    "foreign key: several children, the parent updated and deleted": [
        ("a", "BEGIN"), ("b", "BEGIN"), ("a", "INSERT INTO child VALUES (8)"), ("b", "INSERT INTO child VALUES (8)"),
        ("c", "UPDATE t SET n = 80 WHERE id = 8"), ("c", "DELETE FROM t WHERE id = 8"), ("a", "ROLLBACK"),
        ("b", "ROLLBACK"), ("c", "SELECT count(*) FROM t")],
    "key share sees the old version of a row updated since": [
        ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT n FROM t WHERE id = 3"),
        ("a", "UPDATE t SET n = 100 WHERE id = 3"), ("b", "SELECT n FROM t WHERE id = 3 FOR KEY SHARE"),
        ("a", "DELETE FROM t WHERE id = 3"), ("b", "COMMIT"), ("a", "SELECT count(*) FROM t")],
    "key share of a row whose key has changed since": [
        ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT n FROM t WHERE id = 3"),
        ("a", "UPDATE t SET id = 300 WHERE id = 3"), ("b", "SELECT n FROM t WHERE id = 3 FOR KEY SHARE"), ("b", "ROLLBACK")],
    "key share of a row updated and then deleted since": [
        ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT n FROM t WHERE id = 3"),
        ("a", "UPDATE t SET n = 100 WHERE id = 3"), ("a", "DELETE FROM t WHERE id = 3"),
        ("b", "SELECT n FROM t WHERE id = 3 FOR KEY SHARE"), ("b", "ROLLBACK")],
    "share waits for an update of no key": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 100 WHERE id = 3"), ("b", "SELECT n FROM t WHERE id = 3 FOR KEY SHARE"),
        ("b", "SELECT n FROM t WHERE id = 3 FOR SHARE NOWAIT"), ("b", "SELECT n FROM t WHERE id = 3 FOR SHARE"),
        ("a", "COMMIT")],
    "key share waits for an update of the key": [
        ("a", "BEGIN"), ("a", "UPDATE t SET id = 300 WHERE id = 3"),
        ("b", "SELECT n FROM t WHERE id = 3 FOR KEY SHARE NOWAIT"),
        ("b", "SELECT n FROM t WHERE id IN (2, 3) ORDER BY id FOR KEY SHARE SKIP LOCKED"),
        ("b", "SELECT n FROM t WHERE id = 3 FOR KEY SHARE"), ("a", "ROLLBACK")],
    "key share after an update of a row locked for update": [
        ("b", "BEGIN"), ("b", "SELECT n FROM t WHERE id = 3 FOR UPDATE"), ("b", "UPDATE t SET n = 500 WHERE id = 3"),
        ("a", "SELECT n FROM t WHERE id = 3 FOR KEY SHARE SKIP LOCKED"), ("a", "SELECT n FROM t WHERE id = 3 FOR KEY SHARE"),
        ("b", "COMMIT")],
    "key share after an update of a row locked for update outside of a savepoint": [
        ("b", "BEGIN"), ("b", "SELECT n FROM t WHERE id = 3 FOR UPDATE"), ("b", "SAVEPOINT s"), ("b", "UPDATE t SET n = 500 WHERE id = 3"),
        ("a", "INSERT INTO child VALUES (3)"), ("b", "COMMIT")],
    "key share after an update of a row once locked for update": [
        ("b", "BEGIN"), ("b", "SAVEPOINT s"), ("b", "SELECT n FROM t WHERE id = 3 FOR UPDATE"), ("b", "ROLLBACK TO s"),
        ("b", "UPDATE t SET n = 500 WHERE id = 3"), ("a", "SELECT n FROM t WHERE id = 3 FOR KEY SHARE"), ("b", "COMMIT")],
    "child inserted after an update of a parent locked for update, repeatable read": [
        ("a", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("a", "SELECT count(*) FROM child"),
        ("b", "BEGIN"), ("b", "SELECT n FROM t WHERE id = 3 FOR UPDATE"), ("b", "UPDATE t SET n = 500 WHERE id = 3"), ("b", "COMMIT"),
        ("a", "INSERT INTO child VALUES (3)"), ("a", "ROLLBACK")],
    "a key set to what it was is not changed": [
        ("a", "BEGIN"), ("a", "UPDATE t SET id = 3, n = 4 WHERE id = 3"),
        ("b", "SELECT n FROM t WHERE id = 3 FOR KEY SHARE NOWAIT"), ("a", "COMMIT")],
    "snapshot outlives delete": [
        ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT count(*) FROM t"),
        ("a", "DELETE FROM t WHERE id < 10"), ("a", "INSERT INTO t SELECT i, i FROM generate_series(2000, 2050) i"),
        ("b", "SELECT count(*), sum(n) FROM t"), ("b", "SELECT n FROM t WHERE id = 5"), ("b", "COMMIT"),
        ("b", "SELECT count(*) FROM t")],
    "lock strengthened in a savepoint, rolled back": [
        ("a", "BEGIN"), ("a", "SELECT n FROM t WHERE id = 3 FOR KEY SHARE"), ("a", "SAVEPOINT s"),
        ("a", "UPDATE t SET n = 30 WHERE id = 3"), ("b", "SELECT n FROM t WHERE id = 3 FOR SHARE NOWAIT"),
        ("a", "ROLLBACK TO s"), ("b", "SELECT n FROM t WHERE id = 3 FOR SHARE NOWAIT"),
        ("b", "SELECT n FROM t WHERE id = 3 FOR UPDATE NOWAIT"), ("b", "UPDATE t SET n = 31 WHERE id = 3 RETURNING n"),
        ("b", "DELETE FROM t WHERE id = 3"), ("a", "SELECT n FROM t WHERE id = 3"), ("a", "COMMIT")],
    "share strengthened by two": [
        ("a", "BEGIN"), ("b", "BEGIN"), ("a", "SELECT n FROM t WHERE id = 3 FOR SHARE"),
        ("b", "SELECT n FROM t WHERE id = 3 FOR SHARE"), ("a", "UPDATE t SET n = 30 WHERE id = 3"),
        ("b", "UPDATE t SET n = 31 WHERE id = 3"), ("b", "ROLLBACK"), ("a", "COMMIT")],
    "skip locked passes over rows that are being changed": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 0 WHERE id = 2"), ("a", "DELETE FROM t WHERE id = 3"),
        ("a", "SELECT id FROM t WHERE id = 4 FOR SHARE"), ("a", "UPDATE t SET id = 500 WHERE id = 5"),
        *(("b", f"SELECT id FROM t WHERE id < 8 ORDER BY id FOR {strength} SKIP LOCKED")
          for strength in ("KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE")), ("a", "ROLLBACK")],
    "nowait on rows that are being changed": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 0 WHERE id = 2"), ("a", "DELETE FROM t WHERE id = 3"),
        *(("b", f"SELECT id FROM t WHERE id = {i} FOR {strength} NOWAIT")
          for strength in ("KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE") for i in (2, 3)), ("a", "COMMIT")],
    "on conflict do update waits for an update": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 100 WHERE id = 3"),
        ("b", "INSERT INTO t VALUES (3, 0) ON CONFLICT (id) DO UPDATE SET n = t.n + 1 RETURNING n"), ("a", "COMMIT")],
    "on conflict do update waits for a deletion": [
        ("a", "BEGIN"), ("a", "DELETE FROM t WHERE id = 3"),
        ("b", "INSERT INTO t VALUES (3, 0) ON CONFLICT (id) DO UPDATE SET n = t.n + 1 RETURNING n"), ("a", "COMMIT")],
    "on conflict in repeatable read": [
        ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT count(*) FROM t"),
        ("a", "INSERT INTO t SELECT i, i FROM generate_series(60, 80) i"),
        ("b", "INSERT INTO t VALUES (3, 0) ON CONFLICT (id) DO UPDATE SET n = t.n + 1 RETURNING n"),
        ("b", "INSERT INTO t VALUES (70, 0) ON CONFLICT DO NOTHING"), ("b", "ROLLBACK")],
    "merge waits and looks again": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 100 WHERE id = 3"), ("a", "DELETE FROM t WHERE id = 4"),
        ("b", "MERGE INTO t USING (VALUES (3), (4)) v (k) ON id = k WHEN MATCHED AND n < 50 THEN UPDATE SET n = 0 "
              "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (k, -1)"), ("a", "COMMIT")],
    "prepared transactions hold their locks": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 20 WHERE id = 2"), ("a", "SELECT n FROM t WHERE id = 3 FOR SHARE"),
        ("a", "PREPARE TRANSACTION 'p'"), ("b", "SELECT n FROM t WHERE id = 2 FOR KEY SHARE NOWAIT"),
        ("b", "SELECT n FROM t WHERE id = 3 FOR UPDATE NOWAIT"), ("b", "UPDATE t SET n = n + 1 WHERE id = 2 RETURNING n"),
        ("c", "COMMIT PREPARED 'p'")],
    "a row moved to another partition": [
        ("a", "CREATE TABLE p (k int, n int) PARTITION BY LIST (k)"), ("a", "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)"),
        ("a", "CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)"), ("a", "SET firn.bulk_threshold = 0"),
        ("a", "INSERT INTO p SELECT 1, i FROM generate_series(1, 9) i"), ("a", "BEGIN"), ("a", "UPDATE p SET k = 2 WHERE n = 3"),
        ("b", "UPDATE p SET n = 30 WHERE n = 3"), ("a", "COMMIT"), ("a", "BEGIN"), ("a", "UPDATE p SET k = 2 WHERE n = 4"),
        ("b", "SELECT n FROM p WHERE n = 4 FOR UPDATE"), ("a", "ROLLBACK"), ("b", "SELECT k, n FROM p ORDER BY n")],
    "a cursor's row is updated and deleted": [
        ("a", "BEGIN"), ("a", "DECLARE c CURSOR FOR SELECT n FROM t WHERE n > 5"), ("a", "FETCH 2 FROM c"),
        ("a", "UPDATE t SET n = -1 WHERE CURRENT OF c"), ("a", "FETCH c"), ("a", "DELETE FROM t WHERE CURRENT OF c"),
        ("b", "SELECT id FROM t WHERE id < 9 ORDER BY id FOR UPDATE SKIP LOCKED"), ("a", "COMMIT")],
    "serializable, rows read by key": [
        ("a", "BEGIN ISOLATION LEVEL SERIALIZABLE"), ("b", "BEGIN ISOLATION LEVEL SERIALIZABLE"),
        ("a", "SELECT n FROM t WHERE id = 1"), ("b", "SELECT n FROM t WHERE id = 40"),
        ("a", "UPDATE t SET n = 0 WHERE id = 40"), ("b", "UPDATE t SET n = 0 WHERE id = 1"),
        ("a", "COMMIT"), ("b", "COMMIT")],
    "serializable, rows counted and inserted": [
        ("a", "BEGIN ISOLATION LEVEL SERIALIZABLE"), ("b", "BEGIN ISOLATION LEVEL SERIALIZABLE"),
        ("a", "SELECT count(*) FROM t"), ("b", "SELECT count(*) FROM t"),
        ("a", "INSERT INTO t SELECT i, i FROM generate_series(60, 80) i"),
        ("b", "INSERT INTO t SELECT i, i FROM generate_series(160, 180) i"), ("a", "COMMIT"), ("b", "COMMIT")],
    "serializable, only one reads": [
        ("a", "BEGIN ISOLATION LEVEL SERIALIZABLE"), ("b", "BEGIN ISOLATION LEVEL SERIALIZABLE"),
        ("a", "SELECT sum(n) FROM t"), ("b", "INSERT INTO t SELECT i, i FROM generate_series(60, 80) i"),
        ("a", "INSERT INTO child VALUES (3)"), ("b", "COMMIT"), ("a", "COMMIT")],
    "deadlock": [
        ("a", "BEGIN"), ("b", "BEGIN"), ("a", "UPDATE t SET n = 0 WHERE id = 1"), ("b", "UPDATE t SET n = 0 WHERE id = 2"),
        ("a", "UPDATE t SET n = 1 WHERE id = 2"), ("b", "UPDATE t SET n = 1 WHERE id = 1"), ("b", "ROLLBACK"), ("a", "ROLLBACK")],
}

# Rows that others have changed since are looked at again, in joins and sub-selects, too; found without an index.
SCANNED = {
    "a condition that stripes evaluated no longer holds": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 100 WHERE id IN (3, 5)"), ("a", "UPDATE t SET n = 4 WHERE id = 30"), ("a", "DELETE FROM t WHERE id = 4"),
        ("b", "UPDATE t SET n = n + 1000 WHERE n < 6 OR n = 30 RETURNING id, n"), ("a", "COMMIT"), ("b", "SELECT sum(n) FROM t")],
    "a condition holds for the new version only": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 100 WHERE id = 3"), ("b", "DELETE FROM t WHERE n >= 50 RETURNING id"), ("a", "COMMIT"),
        ("b", "DELETE FROM t WHERE n >= 50 RETURNING id")],
    "a join is made again with the row of before": [
        ("a", "CREATE TABLE g (id int, n int); INSERT INTO g SELECT i, i * 10 FROM generate_series(1, 20) i"),
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 7 WHERE id IN (3, 4)"), ("a", "UPDATE g SET n = -1 WHERE id IN (3, 4)"),
        ("b", "UPDATE t SET n = t.n + g.n FROM g WHERE g.id = t.id AND g.n BETWEEN 10 AND 50 RETURNING t.id, t.n, g.n"), ("a", "COMMIT"),
        ("b", "SELECT sum(n) FROM t")],
    "a join no longer holds": [
        ("a", "CREATE TABLE g (id int, n int); INSERT INTO g SELECT i, i FROM generate_series(1, 20) i"),
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 200 WHERE id = 3"), ("a", "UPDATE t SET n = 0 WHERE id = 4"),
        ("b", "DELETE FROM t USING g WHERE g.n = t.n AND t.id < 7 RETURNING t.id, g.id"), ("a", "COMMIT"), ("b", "SELECT count(*) FROM t")],
    "a sub-select is read as it was": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 60 WHERE id IN (3, 50)"),
        ("b", "UPDATE t SET n = (SELECT max(x.n) FROM t x) WHERE n = 3 OR id = 3 RETURNING id, n"), ("a", "COMMIT"), ("b", "SELECT sum(n) FROM t")],
    "locks of two tables are looked at again": [
        ("a", "CREATE TABLE g (id int, n int); INSERT INTO g SELECT i, i FROM generate_series(1, 20) i"),
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 33 WHERE id = 3"), ("a", "UPDATE g SET n = 44 WHERE id = 4"),
        ("b", "SELECT t.id, t.n, g.n FROM t JOIN g ON g.id = t.id WHERE t.id BETWEEN 2 AND 5 AND g.n < 40 ORDER BY 1 FOR UPDATE"), ("a", "COMMIT")],
    "a lock on one of two tables": [
        ("a", "CREATE TABLE g (id int, n int); INSERT INTO g SELECT i, i FROM generate_series(1, 20) i"),
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 33 WHERE id = 3"), ("a", "UPDATE g SET n = 44 WHERE id = 3"),
        ("b", "SELECT t.id, t.n, g.n, g FROM t LEFT JOIN g ON g.id = t.id WHERE t.id BETWEEN 2 AND 4 ORDER BY 1 FOR SHARE OF t"), ("a", "COMMIT")],
    "a lock that waits and whose condition fails": [
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 33 WHERE id = 3"), ("b", "SELECT id, n FROM t WHERE n IN (2, 3, 4) ORDER BY id FOR NO KEY UPDATE"),
        ("a", "COMMIT")],
    "merge, looked at again": [
        ("a", "CREATE TABLE g (id int, n int); INSERT INTO g SELECT i, -i FROM generate_series(48, 53) i"),
        ("a", "BEGIN"), ("a", "UPDATE t SET n = 100 WHERE id = 48"), ("a", "DELETE FROM t WHERE id = 49"), ("a", "UPDATE t SET n = 0 WHERE id = 50"),
        ("b", "MERGE INTO t USING g ON t.id = g.id WHEN MATCHED AND t.n = 0 THEN DELETE WHEN MATCHED AND t.n > 60 THEN UPDATE SET n = g.n "
              "WHEN MATCHED THEN UPDATE SET n = t.n + 1 WHEN NOT MATCHED THEN INSERT VALUES (g.id, g.n)"), ("a", "COMMIT")],
    "a row changed twice, and its partition's scan": [
        ("a", "CREATE TABLE p (k int, n int) PARTITION BY LIST (k)"), ("a", "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)"),
        ("a", "CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)"), ("a", "SET firn.bulk_threshold = 0"),
        ("a", "INSERT INTO p SELECT 1 + i % 2, i FROM generate_series(1, 19) i"), ("a", "BEGIN"), ("a", "UPDATE p SET n = 30 WHERE n = 3"),
        ("a", "UPDATE p SET n = 31 WHERE n = 30"), ("a", "UPDATE p SET n = 40 WHERE n = 4"),
        ("b", "UPDATE p SET n = n + 100 WHERE n IN (3, 31) OR n = 4 RETURNING k, n"), ("a", "COMMIT"), ("b", "SELECT k, n FROM p ORDER BY n")],
    "repeatable read, scanned": [
        ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT sum(n) FROM t"), ("a", "UPDATE t SET n = 100 WHERE id = 3"),
        ("b", "UPDATE t SET n = n + 1 WHERE n > 40 RETURNING id"), ("b", "SAVEPOINT s"), ("b", "DELETE FROM t WHERE n = 3 OR n = 4"),
        ("b", "ROLLBACK TO s"), ("b", "SELECT id FROM t WHERE n = 3 FOR UPDATE"), ("b", "ROLLBACK")],
    "serializable, one changes what the other has not found": [
        ("a", "BEGIN ISOLATION LEVEL SERIALIZABLE"), ("b", "BEGIN ISOLATION LEVEL SERIALIZABLE"),
        ("a", "UPDATE t SET n = 1000 WHERE n BETWEEN 1 AND 5"), ("b", "UPDATE t SET n = 3 WHERE n BETWEEN 40 AND 45"), ("a", "COMMIT"), ("b", "COMMIT")],
    "serializable, both change what they found": [
        ("a", "BEGIN ISOLATION LEVEL SERIALIZABLE"), ("b", "BEGIN ISOLATION LEVEL SERIALIZABLE"),
        ("a", "DELETE FROM t WHERE n = 7"), ("b", "SELECT count(*) FROM t WHERE n = 7"), ("b", "UPDATE t SET n = 0 WHERE n = 40"),
        ("a", "SELECT id FROM t WHERE n = 40 FOR UPDATE"), ("b", "COMMIT"), ("a", "COMMIT")],
}

# A move while someone works: the same with and without it.
MOVES = {
    "update during a move": [
        ("a", "BEGIN"), ("a", "MOVE"), ("b", "UPDATE t SET n = n + 10 WHERE id = 3 RETURNING n"), ("a", "COMMIT"),
        ("b", "SELECT count(*), sum(n) FROM t")],
    "statements of a rule share a snapshot that a move is younger than": [
        ("a", "CREATE TABLE g (what text, n int, rows int); CREATE VIEW v AS TABLE t"),
        ("a", "CREATE RULE u AS ON UPDATE TO v DO INSTEAD (UPDATE t SET n = n + 10 WHERE id = old.id; UPDATE t SET n = n + 100 WHERE id = old.id; "
              "INSERT INTO g SELECT 'u', sum(n), count(*) FROM t WHERE id = old.id; SELECT * FROM t WHERE id = old.id)"),
        ("a", "CREATE RULE d AS ON DELETE TO v DO INSTEAD (DELETE FROM t WHERE id = old.id; INSERT INTO g SELECT 'd', old.id, (SELECT count(*) FROM t WHERE id = old.id))"),
        ("a", "CREATE RULE i AS ON INSERT TO v DO INSTEAD (UPDATE t SET n = n + 1 WHERE id = new.id; DELETE FROM t WHERE id = new.id; "
              "INSERT INTO g SELECT 'i', sum(n), count(*) FROM t WHERE id <= new.id; INSERT INTO t VALUES (new.id, new.n))"),
        ("a", "BEGIN"), ("a", "MOVE"), ("b", "UPDATE v SET n = 0 WHERE id = 3"), ("c", "DELETE FROM v WHERE id = 4"), ("a", "COMMIT"),
        ("b", "INSERT INTO t SELECT i, i FROM generate_series(101, 105) i"), ("c", "SELECT * FROM t WHERE id IN (3, 4)"),
        ("a", "BEGIN"), ("a", "MOVE"), ("b", "INSERT INTO v VALUES (104, 7)"), ("a", "COMMIT"),
        ("b", "SELECT * FROM g ORDER BY 1"), ("a", "SELECT count(*), sum(n) FROM t"), ("a", "DROP VIEW v")],
    "delete during a move": [
        ("a", "BEGIN"), ("a", "MOVE"), ("b", "DELETE FROM t WHERE id = 3 RETURNING n"), ("a", "COMMIT"),
        ("b", "SELECT count(*), sum(n) FROM t")],
    "lock during a move": [
        ("a", "BEGIN"), ("a", "MOVE"), ("b", "SELECT n FROM t WHERE id = 3 FOR UPDATE"), ("a", "COMMIT"),
        ("b", "SELECT count(*), sum(n) FROM t")],
    "move rolled back": [
        ("a", "BEGIN"), ("a", "MOVE"), ("b", "UPDATE t SET n = n + 10 WHERE id = 3 RETURNING n"), ("a", "ROLLBACK"),
        ("b", "SELECT count(*), sum(n) FROM t"), ("b", "SELECT n FROM t WHERE id = 3")],
    "repeatable read over a move": [
        ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT sum(n) FROM t"), ("a", "MOVE"),
        ("b", "SELECT sum(n), count(*) FROM t"), ("b", "UPDATE t SET n = n + 1 WHERE id = 3 RETURNING n"), ("b", "COMMIT"),
        ("a", "SELECT sum(n), count(*) FROM t")],
    "repeatable read, changes after a move": [
        ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT sum(n) FROM t"), ("a", "MOVE"),
        ("b", "UPDATE t SET n = n + 100 WHERE id = 3 RETURNING n"), ("b", "DELETE FROM t WHERE id = 4"),
        ("b", "SELECT count(*), sum(n) FROM t"), ("b", "SELECT n FROM t WHERE id IN (3, 4)"),
        ("b", "SELECT count(*) FROM t"), ("b", "SELECT n FROM t WHERE id IN (3, 4) FOR UPDATE"),
        ("b", "SAVEPOINT s"), ("b", "UPDATE t SET n = 0 WHERE id < 9"), ("b", "DELETE FROM t WHERE id < 5"),
        ("b", "SELECT count(*), sum(n) FROM t"), ("b", "ROLLBACK TO s"), ("b", "SELECT count(*), sum(n) FROM t"),
        ("b", "UPDATE t SET n = n + 1 WHERE id < 9"), ("b", "COMMIT"), ("a", "SELECT count(*), sum(n) FROM t")],
    "old snapshots see all of what is frozen": [
        ("a", "CREATE MATERIALIZED VIEW m AS SELECT id, n FROM t WHERE id < 3"), ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT sum(n) FROM t"),
        ("a", "UPDATE t SET id = id - 100 WHERE id > 10"), ("a", "REFRESH MATERIALIZED VIEW m"), ("b", "SELECT count(*), sum(n) FROM m"),
        ("a", "BEGIN; CREATE TABLE g (id int); COPY g FROM PROGRAM 'seq 1 40' WITH (FREEZE); SELECT count(*) FROM g; COMMIT"), ("b", "SELECT count(*), sum(id) FROM g"),
        ("a", "BEGIN; TRUNCATE g; COPY g FROM PROGRAM 'seq 1 30' WITH (FREEZE); SAVEPOINT s; UPDATE g SET id = 0 WHERE id = 7; ROLLBACK TO s; DELETE FROM g WHERE id = 8; COMMIT"),
        ("b", "SELECT count(*), sum(id) FROM g"), ("b", "COMMIT"), ("a", "SELECT count(*), sum(id) FROM g"),
        ("a", "BEGIN; TRUNCATE g; COPY g FROM PROGRAM 'seq 1 30' WITH (FREEZE); ROLLBACK"), ("b", "SELECT count(*), sum(id) FROM g"),
        ("a", "SELECT count(*), sum(n) FROM m"), ("a", "DROP MATERIALIZED VIEW m")],
    "repeatable read, on conflict after a move": [
        ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT sum(n) FROM t"), ("a", "MOVE"),
        ("b", "INSERT INTO t VALUES (3, 0) ON CONFLICT DO NOTHING"),
        ("b", "INSERT INTO t VALUES (3, 0) ON CONFLICT (id) DO UPDATE SET n = t.n + 1 RETURNING n"),
        ("b", "SELECT count(*), sum(n) FROM t"), ("b", "COMMIT"), ("a", "SELECT count(*), sum(n) FROM t")],
    "repeatable read, a cascade over moved rows": [
        ("a", "CREATE TABLE g (id int REFERENCES t ON DELETE CASCADE)"), ("a", "INSERT INTO g VALUES (3), (3), (4)"),
        ("b", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("b", "SELECT sum(n) FROM t"), ("a", "MOVE g"), ("a", "MOVE"),
        ("b", "DELETE FROM t WHERE id = 3"), ("b", "SELECT count(*) FROM g"), ("b", "COMMIT"), ("a", "SELECT * FROM g")],
    "serializable, write skew over a move": [
        ("b", "BEGIN ISOLATION LEVEL SERIALIZABLE"), ("b", "SELECT 1 FROM child"), ("a", "MOVE"),
        ("c", "BEGIN ISOLATION LEVEL SERIALIZABLE"), ("c", "SELECT n FROM t WHERE id = 1"),
        ("c", "UPDATE t SET n = 0 WHERE id = 40"), ("c", "COMMIT"), ("b", "SELECT n FROM t WHERE id = 40"),
        ("b", "UPDATE t SET n = 0 WHERE id = 1"), ("b", "COMMIT")],
    "serializable, a move between reading and writing": [
        ("b", "BEGIN ISOLATION LEVEL SERIALIZABLE"), ("b", "SELECT n FROM t WHERE id = 40"), ("a", "MOVE"),
        ("c", "BEGIN ISOLATION LEVEL SERIALIZABLE"), ("c", "SELECT n FROM t WHERE id = 1"),
        ("c", "UPDATE t SET n = 0 WHERE id = 40"), ("c", "COMMIT"), ("b", "UPDATE t SET n = 0 WHERE id = 1"), ("b", "COMMIT")],
    "cursor positioned before a move": [
        ("a", "BEGIN"), ("a", "DECLARE c CURSOR FOR SELECT n FROM t WHERE id IN (5, 6) ORDER BY id"), ("a", "FETCH 1 FROM c"),
        ("b", "MOVE"), ("a", "UPDATE t SET n = n + 10 WHERE CURRENT OF c RETURNING n"),
        ("a", "UPDATE t SET n = n + 10 WHERE CURRENT OF c RETURNING n"), ("a", "FETCH 1 FROM c"), ("a", "DELETE FROM t WHERE CURRENT OF c RETURNING n"),
        ("a", "DELETE FROM t WHERE CURRENT OF c RETURNING n"), ("a", "COMMIT"), ("b", "SELECT count(*), sum(n) FROM t")],
    "cursor of old rows after a move, repeatable read": [
        ("a", "BEGIN ISOLATION LEVEL REPEATABLE READ"), ("a", "SELECT count(*) FROM t"), ("b", "MOVE"),
        ("a", "DECLARE c CURSOR FOR SELECT n FROM t WHERE id IN (5, 6) FOR UPDATE"), ("a", "FETCH 1 FROM c"),
        ("a", "UPDATE t SET n = n + 10 WHERE CURRENT OF c RETURNING n"), ("a", "UPDATE t SET n = n + 10 WHERE CURRENT OF c RETURNING n"),
        ("a", "FETCH 1 FROM c"), ("a", "DELETE FROM t WHERE CURRENT OF c RETURNING n"), ("a", "DELETE FROM t WHERE CURRENT OF c RETURNING n"),
        ("a", "SELECT count(*), sum(n) FROM t"), ("a", "COMMIT"), ("b", "SELECT count(*), sum(n) FROM t")],
    "cursor on a row that others update and that moves then": [
        ("a", "BEGIN"), ("a", "DECLARE c CURSOR FOR SELECT n FROM t WHERE id IN (5, 6) ORDER BY id"), ("a", "FETCH 1 FROM c"),
        ("b", "UPDATE t SET n = 500 WHERE id = 5"), ("b", "MOVE"), ("a", "UPDATE t SET n = n + 10 WHERE CURRENT OF c RETURNING n"),
        ("a", "COMMIT"), ("b", "SELECT n FROM t WHERE id = 5")],
    "cursor on a row that moves and that others update then": [
        ("a", "BEGIN"), ("a", "DECLARE c CURSOR FOR SELECT n FROM t WHERE id IN (5, 6) ORDER BY id"), ("a", "FETCH 1 FROM c"),
        ("b", "MOVE"), ("b", "UPDATE t SET n = 500 WHERE id = 5"), ("a", "UPDATE t SET n = n + 10 WHERE CURRENT OF c RETURNING n"),
        ("b", "DELETE FROM t WHERE id = 6"), ("a", "FETCH 1 FROM c"), ("a", "COMMIT"), ("b", "SELECT n FROM t WHERE id = 5")],
    "rows changed by others stay": [
        ("b", "BEGIN"), ("b", "UPDATE t SET n = 0 WHERE id = 3"), ("a", "MOVE"), ("b", "COMMIT"),
        ("a", "SELECT sum(n), count(*) FROM t"), ("a", "MOVE"), ("a", "SELECT sum(n), count(*) FROM t")],
}


class Session:
    def __init__(self, cluster, name):
        self.conn = cluster.connect()
        self.conn.execute(f"SET application_name = '{name}'")
        self.watch = cluster.connect()
        self.thread = None
        self.result = None

    def start(self, sql):
        def work():
            try:
                cur = self.conn.execute(sql)
                self.result = cur.fetchall() if cur.description else "done"
            except psycopg.Error as e:
                self.result = e.sqlstate
        self.thread = threading.Thread(target=work)
        self.thread.start()
        self.thread.join(0.25)
        # On a busy machine a statement may take longer than that without waiting for anybody.
        end = time.time() + 15
        while self.thread.is_alive() and time.time() < end and not self.waits():
            self.thread.join(0.05)

    def waits(self):
        sql = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        return self.watch.execute(sql, (self.conn.info.backend_pid,)).fetchone() == (True,)

    def close(self):
        self.conn.close()
        self.watch.close()

    def finish(self):
        if self.thread is not None:
            self.thread.join(15)
            assert not self.thread.is_alive(), "a session hangs"
            self.thread = None
        return self.result


def play(cluster, am, steps, placement, settings=""):
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS g, p, child, t")
        c.execute("SET firn.bulk_threshold = 0")
        c.execute(f"CREATE TABLE t (id int PRIMARY KEY, n int) USING {am}")
        if placement == "rows":
            c.execute("SET firn.bulk_threshold = 1000")
        c.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 50) i")
        c.execute(f"CREATE TABLE child (id int REFERENCES t) USING {am}")
    sessions = {n: Session(cluster, n) for n in "abc"}
    for s in sessions.values():
        s.conn.execute("SET firn.bulk_threshold = 5")
        s.conn.execute("SET deadlock_timeout = '100ms'")
        s.conn.execute(f"SET default_table_access_method = {am}; {settings}")
    outcome = []
    for name, sql in steps:
        s = sessions[name]
        outcome.append(s.finish())
        is_move = sql.startswith("MOVE")
        move = f"SELECT firn.compact('{sql[5:] or 't'}')" if am == "firn" else "SELECT 1"
        s.start(move if is_move else sql)
        blocked = s.thread.is_alive()
        if is_move:
            s.finish()
            s.result = "moved"
        # A move holds its rows until it ends; heap has no such thing to wait for.
        outcome.append((sql, "waits" if blocked and placement != "rows" else ""))
    for s in sessions.values():
        outcome.append(s.finish())
        s.close()
    with cluster.connect() as c:
        outcome.append(c.execute("SELECT * FROM t ORDER BY 1, 2").fetchall())
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
        outcome.append(c.execute("SELECT * FROM t WHERE id > 0 ORDER BY 1, 2").fetchall())
        if am == "firn":
            problems = c.execute("SELECT * FROM firn.check('t')").fetchall()
            assert not problems, problems
    time.sleep(0)
    return outcome


def run(tally, pattern):
    cluster = Cluster("sessions").create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
        by_scan = "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off"
        for specs, placement, settings in ((SPECS, "stripes", ""), (MOVES, "rows", ""), (SCANNED, "stripes", by_scan),
                                           (SPECS, "stripes", by_scan), (MOVES, "rows", by_scan)):
            for name, steps in specs.items():
                name += " (scanned)" if settings else ""
                if pattern in name:
                    tally.case(f"sessions {name}", lambda: same(cluster, steps, placement, settings))
        for name, case in (("a move in a pivot", move_in_pivot), ("an equal key beside a reindex", equal_key),
                           ("writers among stripes beside a reindex", among_stripes),
                           ("keys behind a scan beside a reindex", keys_behind_a_scan)):
            if pattern in name:
                tally.case(f"sessions {name}", lambda c=case: c(cluster))
        tally.case("sessions server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def move_in_pivot(cluster):
    """A move that SERIALIZABLE cannot allow is an error like any other, and changes nothing."""
    with cluster.connect() as a, cluster.connect() as b, cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS t, o CASCADE; CREATE TABLE o (n int); INSERT INTO o VALUES (1)")
        c.execute("CREATE TABLE t (id int PRIMARY KEY, n int) USING firn; INSERT INTO t SELECT i, i FROM generate_series(1, 100) i")
        for s in (a, b, c):
            s.execute("SET default_transaction_isolation = serializable")
        a.execute("BEGIN; TABLE o")
        b.execute("BEGIN; SELECT count(id) FROM t")
        c.execute("UPDATE o SET n = 2")
        try:
            a.execute("SELECT firn.compact('t')")
            raise AssertionError("not refused")
        except psycopg.errors.SerializationFailure:
            a.execute("ROLLBACK")
        b.execute("COMMIT")
        assert c.execute("SELECT count(*), sum(n) FROM t").fetchone() == (100, 5050)
        assert c.execute("SELECT firn.compact('t')").fetchone() == (100,)
        assert not c.execute("SELECT * FROM firn.check('t')").fetchall()


def among_stripes(cluster):
    """Who reads stripes to change rows has, from then on, the lock that he needs for it: a REINDEX waits for him, and he not for that."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS t CASCADE; SET firn.bulk_threshold = 0; CREATE TABLE t (id int, n int) USING firn "
                  "WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        c.execute("CREATE FUNCTION held(n int) RETURNS bool LANGUAGE plpgsql AS $$BEGIN PERFORM pg_advisory_lock_shared(1); "
                  "PERFORM pg_advisory_unlock_shared(1); RETURN n = 7; END$$")
        (toast,) = c.execute("SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 't'").fetchone()
        (index,) = c.execute("SELECT indexrelid::regclass FROM pg_index WHERE indrelid = %s::regclass", (toast,)).fetchone()
        for sql in ("UPDATE t SET n = 8 WHERE held(n)", "DELETE FROM t WHERE held(n)", "SELECT * FROM t WHERE held(n) FOR UPDATE",
                    "SELECT * FROM t WHERE held(n) FOR KEY SHARE", "INSERT INTO t SELECT id, 8 FROM t WHERE held(n)"):
            for command in (f"INDEX {index}", f"TABLE {toast}"):
                c.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 100) i")
                writer, reindex = (Session(cluster, n) for n in "ab")
                try:
                    for s in (writer, reindex):
                        s.conn.execute("SET deadlock_timeout = '100ms'; SET firn.bulk_threshold = 0")
                    c.execute("SELECT pg_advisory_lock(1)")
                    writer.start(sql)
                    assert writer.waits(), (sql, writer.result)
                    reindex.start(f"REINDEX {command}")
                    assert reindex.waits(), (sql, command, reindex.result)
                    c.execute("SELECT pg_advisory_unlock(1)")
                    ends = writer.finish(), reindex.finish()
                    assert "40P01" not in ends and ends[1] == "done", (sql, command, ends)
                finally:
                    c.execute("SELECT pg_advisory_unlock_all()")
                    writer.close()
                    reindex.close()
        assert not c.execute("SELECT * FROM firn.check('t')").fetchall()
        c.execute("DROP TABLE t; DROP FUNCTION held")


def keys_behind_a_scan(cluster):
    """The keys of inserted rows are checked when the scan that they come from is over, though not ended: it holds nothing any more by then."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS t, u CASCADE; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 50; CREATE TABLE t (id int PRIMARY KEY, n int) "
                  "USING firn WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        c.execute("CREATE TABLE u (id int REFERENCES t); INSERT INTO t SELECT i, i FROM generate_series(1, 200) i; ANALYZE t")
        c.execute("CREATE FUNCTION held(n int) RETURNS bool LANGUAGE plpgsql COST 100000 AS $$BEGIN PERFORM pg_advisory_lock_shared(1); "
                  "PERFORM pg_advisory_unlock_shared(1); RETURN n % 100 = 7; END$$")
        (toast,) = c.execute("SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 't'").fetchone()
        (index,) = c.execute("SELECT indexrelid::regclass FROM pg_index WHERE indrelid = %s::regclass", (toast,)).fetchone()
        whole = "INSERT INTO u SELECT id FROM t WHERE held(n)"
        limited = whole + " LIMIT 1"
        for settings, sql, plan, rows in (("", whole, "Custom Scan (FirnScan)", 2), ("", limited, "Custom Scan (FirnScan)", 1),
                                          ("SET firn.enable_scan = off", whole, "Seq Scan", 2)):
            for command in (f"INDEX {index}", f"TABLE {toast}"):
                writer, reindex = (Session(cluster, n) for n in "ab")
                try:
                    for s in (writer, reindex):
                        s.conn.execute("SET deadlock_timeout = '100ms'; SET firn.bulk_threshold = 0; SET enable_indexscan = off; SET enable_bitmapscan = off")
                    if settings:
                        writer.conn.execute(settings)
                    explained = [line for line, in writer.conn.execute(f"EXPLAIN {sql}").fetchall()]
                    assert any(plan in line for line in explained), (plan, explained)
                    c.execute("SELECT pg_advisory_lock(1)")
                    writer.start(sql)
                    assert writer.waits(), (sql, writer.result)
                    reindex.start(f"REINDEX {command}")
                    assert reindex.waits(), (sql, command, reindex.result)
                    c.execute("SELECT pg_advisory_unlock(1)")
                    ends = writer.finish(), reindex.finish()
                    assert "40P01" not in ends and ends[1] == "done", (settings, sql, command, ends)
                finally:
                    c.execute("SELECT pg_advisory_unlock_all()")
                    writer.close()
                    reindex.close()
                assert c.execute("WITH gone AS (DELETE FROM u RETURNING id) SELECT count(*) FROM gone").fetchone() == (rows,)
        # Who fetches some rows, then others, finds what the scan has let go of.
        for scroll in ("NO SCROLL", "SCROLL"):
            for setting in ("on", "off"):
                c.execute(f"BEGIN; SET LOCAL firn.enable_scan = {setting}; SET LOCAL enable_indexscan = off; DECLARE d {scroll} CURSOR FOR SELECT id FROM t")
                got = []
                for n in (70, 70, 70):
                    got += [i for i, in c.execute(f"FETCH {n} FROM d").fetchall()]
                assert got == list(range(1, 201)), (scroll, setting, got)
                assert c.execute("FETCH 5 FROM d").fetchall() == []
                if scroll == "SCROLL":
                    assert c.execute("FETCH BACKWARD 2 FROM d").fetchall() == [(200,), (199,)]
                    assert c.execute("FETCH ABSOLUTE 77 FROM d").fetchall() == [(77,)]
                c.execute("COMMIT")
        assert not c.execute("SELECT * FROM firn.check('t')").fetchall()
        c.execute("DROP TABLE t, u; DROP FUNCTION held")


def equal_key(cluster):
    """Who waits for the index of stripes does so before he has a page of the key's index in his hands: he can be cancelled."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS t, o CASCADE; SET firn.bulk_threshold = 0")
        c.execute("CREATE TABLE t (id int PRIMARY KEY, n int) USING firn; INSERT INTO t SELECT i, i FROM generate_series(1, 100) i")
        c.execute("SET firn.bulk_threshold = 1000; INSERT INTO t VALUES (-1, 0)")
        index = c.execute("SELECT indexrelid::regclass FROM pg_index WHERE indrelid = (SELECT reltoastrelid FROM pg_class WHERE relname = 't')").fetchone()[0]
        for sql in ("INSERT INTO t VALUES (50, 0)", "UPDATE t SET id = 50 WHERE ctid = '(0,1)'", "COPY t (id) FROM PROGRAM 'echo 50; echo 51'"):
            a, b = (Session(cluster, n) for n in "ab")
            a.conn.execute(f"BEGIN; REINDEX INDEX {index}")
            b.start(sql)
            waits = b.waits()
            c.execute("SELECT pg_cancel_backend(%s)", (b.conn.info.backend_pid,))
            try:
                assert (waits, b.finish()) == (True, "57014"), (sql, waits, b.result)
            finally:
                a.conn.execute("COMMIT")
                a.close()
                b.close()
            expect_equal(c, sql)
        # And who has inserted a row may go on to stripes while the other one waits for him.
        a, b = (Session(cluster, n) for n in "ab")
        try:
            b.conn.execute("BEGIN; INSERT INTO t VALUES (-2, 0)")
            a.start(f"REINDEX INDEX {index}")
            assert a.waits(), a.result
            b.conn.execute("DELETE FROM t WHERE id = 50; SET firn.bulk_threshold = 0; INSERT INTO t SELECT i, i FROM generate_series(201, 210) i; COMMIT")
            assert a.finish() == "done", a.result
        finally:
            a.close()
            b.close()
        assert c.execute("SELECT count(*), sum(id) FROM t").fetchone() == (111, 5049 - 2 - 50 + 2055)
        assert not c.execute("SELECT * FROM firn.check('t')").fetchall()


def expect_equal(c, sql):
    try:
        c.execute(sql)
        raise AssertionError(f"no error from {sql}")
    except psycopg.errors.UniqueViolation:
        pass


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()


def same(cluster, steps, placement, settings):
    heap = play(cluster, "heap", steps, placement, settings)
    firn = play(cluster, "firn", steps, placement, settings)
    assert heap == firn, f"\nheap {heap}\nfirn {firn}"
