-- Transactions, savepoints, cursors, exceptions.
CREATE TABLE t (id int PRIMARY KEY, v text);
BEGIN;
INSERT INTO t SELECT i, 'a' FROM generate_series(1, 30) i;
SELECT count(*) FROM t;
SELECT * FROM t WHERE id = 17;
ROLLBACK;
SELECT count(*) FROM t;
SELECT * FROM t WHERE id = 17;
BEGIN;
INSERT INTO t SELECT i, 'first' FROM generate_series(1, 30) i;
SAVEPOINT a;
INSERT INTO t SELECT i, 'second' FROM generate_series(31, 60) i;
SELECT count(*) FROM t;
UPDATE t SET v = 'upd' WHERE id IN (5, 35);
SAVEPOINT b;
DELETE FROM t WHERE id < 10;
SELECT count(*) FROM t;
ROLLBACK TO b;
SELECT * FROM t WHERE id IN (5, 35) ORDER BY id;
ROLLBACK TO a;
SELECT count(*) FROM t;
SELECT * FROM t WHERE id IN (5, 35) ORDER BY id;
INSERT INTO t SELECT i, 'third' FROM generate_series(25, 50) i;
ROLLBACK TO a;
INSERT INTO t SELECT i, 'fourth' FROM generate_series(31, 50) i;
RELEASE a;
COMMIT;
SELECT v, count(*), sum(id) FROM t GROUP BY v ORDER BY v;
SELECT settle('t');
BEGIN;
UPDATE t SET v = 'x' WHERE id <= 10;
SAVEPOINT s;
UPDATE t SET v = 'y' WHERE id <= 5;
UPDATE t SET v = 'z' WHERE id <= 2;
ROLLBACK TO s;
SELECT v, count(*) FROM t GROUP BY v ORDER BY v;
DELETE FROM t WHERE id <= 5;
ROLLBACK;
SELECT v, count(*) FROM t GROUP BY v ORDER BY v;
-- cursors see the snapshot they were opened with
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT id FROM t ORDER BY id;
FETCH 3 FROM c;
DELETE FROM t WHERE id BETWEEN 4 AND 8;
INSERT INTO t SELECT i, 'new' FROM generate_series(100, 115) i;
FETCH 4 FROM c;
FETCH BACKWARD 3 FROM c;
FETCH LAST FROM c;
FETCH FIRST FROM c;
MOVE ABSOLUTE 20 IN c;
FETCH NEXT FROM c;
CLOSE c;
DECLARE plainc SCROLL CURSOR FOR SELECT id FROM t WHERE id = 41;
SELECT count(*) FROM t;
FETCH 2 FROM plainc;
FETCH BACKWARD 1 FROM plainc;
ROLLBACK;
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT id, v FROM t WHERE id % 10 = 0 ORDER BY id;
UPDATE t SET v = 'held' WHERE id = 20;
COMMIT;
FETCH ALL FROM h;
CLOSE h;
-- current of
BEGIN;
DECLARE u CURSOR FOR SELECT * FROM t WHERE id BETWEEN 11 AND 14 ORDER BY id FOR UPDATE;
FETCH 2 FROM u;
UPDATE t SET v = 'current' WHERE CURRENT OF u;
FETCH 1 FROM u;
DELETE FROM t WHERE CURRENT OF u;
COMMIT;
SELECT * FROM t WHERE id BETWEEN 10 AND 15 ORDER BY id;
-- exceptions in PL/pgSQL
DO $$
BEGIN
    FOR i IN 1..5 LOOP
        BEGIN
            INSERT INTO t SELECT g, 'loop ' || i FROM generate_series(195 + i * 5, 210 + i * 5) g;
        EXCEPTION WHEN unique_violation THEN
            RAISE NOTICE 'loop %: %', i, SQLERRM;
        END;
    END LOOP;
END $$;
SELECT v, count(*) FROM t WHERE id >= 190 GROUP BY v ORDER BY v;
-- a rolled-back load leaves nothing behind an index
BEGIN;
INSERT INTO t SELECT i, 'ghost' FROM generate_series(300, 340) i;
ROLLBACK;
INSERT INTO t SELECT i, 'real' FROM generate_series(310, 330) i;
SELECT v, count(*) FROM t WHERE id BETWEEN 300 AND 340 GROUP BY v;
SET enable_seqscan = off;
SELECT * FROM t WHERE id = 315;
RESET enable_seqscan;
-- two-phase
BEGIN;
INSERT INTO t SELECT i, 'prepared' FROM generate_series(400, 420) i;
DELETE FROM t WHERE id = 310;
UPDATE t SET v = 'prep' WHERE id = 311;
PREPARE TRANSACTION 'sql-suite';
SELECT count(*) FROM t WHERE id >= 300;
COMMIT PREPARED 'sql-suite';
SELECT v, count(*) FROM t WHERE id >= 300 GROUP BY v ORDER BY v;
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO t VALUES (500, 'ser');
SELECT count(*) FROM t WHERE id = 500;
COMMIT;
BEGIN READ ONLY;
INSERT INTO t VALUES (501, 'no');
ROLLBACK;
