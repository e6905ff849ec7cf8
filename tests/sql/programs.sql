-- PL/pgSQL, cursors, prepared statements, functions: the ways a program meets a table.
CREATE TABLE t (id int PRIMARY KEY, v text, n int);
INSERT INTO t SELECT i, 'v' || i, i % 10 FROM generate_series(1, 200) i;
SELECT settle('t');
-- exception blocks: what they undo and what stays
DO $$
DECLARE c bigint;
BEGIN
    INSERT INTO t SELECT i, 'outer', 0 FROM generate_series(1001, 1020) i;
    BEGIN
        INSERT INTO t SELECT i, 'inner', 0 FROM generate_series(1021, 1040) i;
        UPDATE t SET v = 'inner' WHERE id IN (1, 1001);
        DELETE FROM t WHERE id BETWEEN 2 AND 5;
        SELECT count(*) INTO c FROM t; RAISE NOTICE 'inside %', c;
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN
        SELECT count(*) INTO c FROM t; RAISE NOTICE 'undone %', c;
    END;
    BEGIN
        INSERT INTO t SELECT i, 'dup', 0 FROM generate_series(195, 215) i;
    EXCEPTION WHEN unique_violation THEN RAISE NOTICE '%', SQLERRM;
    END;
    INSERT INTO t SELECT i, 'after', 0 FROM generate_series(1021, 1030) i;
END $$;
SELECT v, count(*), sum(id) FROM t WHERE id > 1000 OR id < 6 GROUP BY v ORDER BY v;
-- procedures that commit between loads
CREATE PROCEDURE load(low int, high int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN low..high LOOP
        INSERT INTO t SELECT i * 100 + g, 'batch ' || i, g FROM generate_series(0, 19) g;
        IF i % 2 = 0 THEN COMMIT; ELSE ROLLBACK; END IF;
    END LOOP;
END $$;
CALL load(30, 35);
SELECT v, count(*) FROM t WHERE id >= 3000 GROUP BY v ORDER BY v;
-- a loop over a query while its rows change
DO $$
DECLARE r record; seen int := 0;
BEGIN
    FOR r IN SELECT * FROM t WHERE id <= 20 ORDER BY id LOOP
        UPDATE t SET n = n + 100 WHERE id = r.id + 1;
        DELETE FROM t WHERE id = r.id + 30;
        INSERT INTO t VALUES (r.id + 5000, r.v, r.n);
        seen := seen + r.n;
    END LOOP;
    RAISE NOTICE 'seen %', seen;
END $$;
SELECT count(*), sum(n) FROM t WHERE id <= 60;
SELECT sum(n) FROM t WHERE id > 5000;
-- functions: volatile ones see rows written before them in the same statement's command, stable ones do not
CREATE FUNCTION vol() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT count(*) FROM t';
CREATE FUNCTION stab() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM t';
CREATE FUNCTION ins(i int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN INSERT INTO t SELECT 6000 + i * 10 + g, 'f', 0 FROM generate_series(0, 7) g; RETURN (SELECT count(*) FROM t); END $$;
SELECT count(*) FROM t;
SELECT ins(i), vol(), stab() FROM generate_series(1, 3) i;
INSERT INTO t SELECT 7000 + i, 'self ' || (vol() > 0), 0 FROM generate_series(1, 12) i;
SELECT v, count(*) FROM t WHERE id > 7000 GROUP BY v;
-- refcursors, WITH HOLD, SCROLL in all directions
BEGIN;
DECLARE s SCROLL CURSOR FOR SELECT id, v FROM t WHERE id BETWEEN 90 AND 110;
FETCH 5 FROM s; FETCH BACKWARD 2 FROM s; FETCH RELATIVE 4 FROM s; FETCH ABSOLUTE -1 FROM s; FETCH PRIOR FROM s;
FETCH ABSOLUTE 0 FROM s; FETCH FORWARD ALL FROM s; FETCH BACKWARD ALL FROM s;
UPDATE t SET v = 'later' WHERE id BETWEEN 90 AND 110;
FETCH FIRST FROM s; FETCH LAST FROM s;
DECLARE held SCROLL CURSOR WITH HOLD FOR SELECT id, v FROM t WHERE id BETWEEN 100 AND 104 ORDER BY id;
ROLLBACK;
BEGIN;
DECLARE held SCROLL CURSOR WITH HOLD FOR SELECT id, v FROM t WHERE id BETWEEN 100 AND 104 ORDER BY id;
FETCH 2 FROM held;
DELETE FROM t WHERE id = 103;
COMMIT;
TRUNCATE t;
FETCH ALL FROM held; FETCH BACKWARD 2 FROM held;
CLOSE held;
INSERT INTO t SELECT i, 'v' || i, i % 10 FROM generate_series(1, 200) i;
SELECT settle('t');
-- WHERE CURRENT OF on rows that a savepoint takes back
BEGIN;
DECLARE u CURSOR FOR SELECT * FROM t WHERE id BETWEEN 50 AND 55 FOR UPDATE;
FETCH u;
SAVEPOINT a;
UPDATE t SET v = 'gone' WHERE CURRENT OF u;
ROLLBACK TO a;
UPDATE t SET v = 'kept' WHERE CURRENT OF u RETURNING id, v;
FETCH u;
DELETE FROM t WHERE CURRENT OF u RETURNING id;
MOVE 2 FROM u;
UPDATE t SET v = 'moved' WHERE CURRENT OF u RETURNING id, v;
COMMIT;
SELECT id, v FROM t WHERE id BETWEEN 49 AND 56 ORDER BY id;
-- prepared statements: custom then generic plans, changes of the table in between
PREPARE ins(int, text) AS INSERT INTO t VALUES ($1, $2, 0) RETURNING *;
PREPARE sel(int) AS SELECT id, v FROM t WHERE id = $1;
PREPARE rng(int, int) AS SELECT count(*), sum(id) FROM t WHERE id BETWEEN $1 AND $2;
PREPARE upd(int) AS UPDATE t SET n = n + 1 WHERE id = $1 RETURNING n;
PREPARE del(int) AS DELETE FROM t WHERE id = $1 RETURNING id;
EXECUTE ins(300, 'p'); EXECUTE ins(301, 'p'); EXECUTE ins(300, 'dup');
EXECUTE sel(1); EXECUTE sel(2); EXECUTE sel(3); EXECUTE sel(4); EXECUTE sel(5); EXECUTE sel(6); EXECUTE sel(300); EXECUTE sel(NULL);
EXECUTE rng(1, 50); EXECUTE rng(1, 60); EXECUTE rng(1, 70); EXECUTE rng(1, 80); EXECUTE rng(1, 90); EXECUTE rng(NULL, 5); EXECUTE rng(60, 50);
EXECUTE upd(7); EXECUTE upd(7); EXECUTE upd(7); EXECUTE upd(301); EXECUTE del(8); EXECUTE del(8); EXECUTE del(301);
ALTER TABLE t ADD COLUMN extra int DEFAULT 3;
EXECUTE sel(7); EXECUTE rng(1, 10);
EXECUTE ins(302, 'q');
ALTER TABLE t DROP COLUMN extra;
EXECUTE sel(302);
TRUNCATE t;
EXECUTE sel(7); EXECUTE rng(1, 1000);
-- set-returning functions and LATERAL
INSERT INTO t SELECT i, 'v' || i, i % 10 FROM generate_series(1, 50) i;
CREATE FUNCTION rows(k int) RETURNS SETOF t LANGUAGE sql AS 'SELECT * FROM t WHERE n = k ORDER BY id';
SELECT g, r.id FROM generate_series(1, 3) g, LATERAL rows(g) r ORDER BY 1, 2;
SELECT a.id, b.id FROM t a, LATERAL (SELECT id FROM t i WHERE i.n = a.n AND i.id > a.id ORDER BY id LIMIT 1) b WHERE a.id < 6 ORDER BY 1;
SELECT t FROM t WHERE id = 9; SELECT row_to_json(t) FROM t WHERE id = 9; SELECT (t).v FROM t WHERE id = 9;
WITH RECURSIVE walk AS (SELECT id, n FROM t WHERE id = 1 UNION ALL SELECT t.id, t.n FROM t JOIN walk w ON t.id = w.id + 7) SELECT count(*), max(id) FROM walk;
-- statement errors in the middle of a bulk statement leave nothing
INSERT INTO t SELECT i, 'e', 10 / (i - 90) FROM generate_series(80, 100) i;
SELECT count(*) FROM t WHERE id >= 80;
INSERT INTO t SELECT 2147483640 + i, 'e', 0 FROM generate_series(1, 20) i;
SELECT count(*) FROM t;
-- WHERE CURRENT OF, on rows of every place, with and without projection.
CREATE TABLE pos (id int, v text);
INSERT INTO pos SELECT x, 'v' || x FROM generate_series(1, 32) x;
SELECT settle('pos');
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM pos WHERE id % 2 = 1;
FETCH 3 FROM c;
UPDATE pos SET v = 'current' WHERE CURRENT OF c RETURNING *;
FETCH 1 FROM c;
DELETE FROM pos WHERE CURRENT OF c RETURNING *;
DECLARE d CURSOR FOR SELECT v FROM pos WHERE id >= 30;
MOVE 2 IN d;
UPDATE pos SET v = 'second' WHERE CURRENT OF d;
MOVE ALL IN d;
SAVEPOINT s;
DELETE FROM pos WHERE CURRENT OF d;
ROLLBACK TO s;
COMMIT;
SELECT count(*), sum(id) FROM pos;
SELECT * FROM pos WHERE v !~ '^v' ORDER BY id;
CREATE FUNCTION mark() RETURNS int LANGUAGE plpgsql AS $$
DECLARE c CURSOR FOR SELECT id FROM pos WHERE id BETWEEN 10 AND 32; r record; n int := 0;
BEGIN
    FOR r IN c LOOP
        UPDATE pos SET v = 'marked ' || r.id WHERE CURRENT OF c;
        n := n + 1;
    END LOOP;
    RETURN n;
END $$;
SELECT mark();
SELECT id, v FROM pos WHERE v LIKE 'marked%' ORDER BY id;
-- What a function reads within a bulk statement, by parallel plans, too.
CREATE TABLE collected (id int);
CREATE FUNCTION so_far() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint; BEGIN EXECUTE 'SELECT sum(id) FROM collected' INTO n; RETURN n; END $$;
CREATE FUNCTION so_far_within() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint; BEGIN BEGIN EXECUTE 'SELECT sum(id) FROM collected' INTO n; EXCEPTION WHEN division_by_zero THEN NULL; END; RETURN n; END $$;
SET firn.bulk_threshold = 3;
SET force_parallel_mode = on;
INSERT INTO collected SELECT i FROM generate_series(1, 9) i RETURNING id, so_far();
INSERT INTO collected SELECT i FROM generate_series(11, 19) i RETURNING id, so_far_within();
RESET force_parallel_mode;
SET parallel_leader_participation = off; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
INSERT INTO collected SELECT i FROM generate_series(21, 29) i RETURNING id, so_far();
RESET parallel_leader_participation; RESET parallel_setup_cost; RESET parallel_tuple_cost; RESET min_parallel_table_scan_size;
RESET firn.bulk_threshold;
-- Cursors without SCROLL move backward where their plan can, and WHERE CURRENT OF knows the row either way.
CREATE TABLE back (id int, v text, w int);
INSERT INTO back SELECT i, 'v' || i, 0 FROM generate_series(1, 333) i;
SELECT settle('back');
BEGIN;
DECLARE b CURSOR FOR SELECT id, v FROM back WHERE id % 7 <> 0;
SELECT name, is_scrollable FROM pg_cursors;
FETCH 4 FROM b; FETCH BACKWARD 2 FROM b; FETCH 3 FROM b; FETCH PRIOR FROM b; FETCH BACKWARD ALL FROM b; FETCH BACKWARD 1 FROM b; FETCH 2 FROM b;
MOVE 200 IN b; FETCH 2 FROM b; FETCH BACKWARD 3 FROM b; MOVE BACKWARD 120 IN b; FETCH BACKWARD 2 FROM b; FETCH 2 FROM b; FETCH ABSOLUTE 150 FROM b; FETCH RELATIVE -60 FROM b;
MOVE FORWARD ALL IN b; FETCH BACKWARD 3 FROM b; FETCH ALL FROM b; FETCH LAST FROM b; FETCH FIRST FROM b; FETCH BACKWARD 2 FROM b; FETCH 1 FROM b; MOVE FORWARD ALL IN b; MOVE BACKWARD ALL IN b; FETCH 2 FROM b;
DECLARE e CURSOR FOR SELECT id FROM back WHERE id > 320; MOVE FORWARD ALL IN e; FETCH BACKWARD 2 FROM e; FETCH BACKWARD ALL FROM e; FETCH ALL FROM e;
DECLARE n CURSOR FOR SELECT id FROM back WHERE id < 0; FETCH 1 FROM n; FETCH BACKWARD 1 FROM n; FETCH 1 FROM n;
DECLARE l CURSOR FOR SELECT v, id + 1 FROM back OFFSET 97 LIMIT 8; FETCH 3 FROM l; FETCH BACKWARD 2 FROM l; FETCH ALL FROM l; FETCH BACKWARD ALL FROM l; FETCH 2 FROM l;
DECLARE f NO SCROLL CURSOR FOR SELECT id FROM back; FETCH 2 FROM f;
SAVEPOINT s; FETCH BACKWARD 1 FROM f; ROLLBACK TO s;
DECLARE c SCROLL CURSOR FOR SELECT id FROM back WHERE id > 50; MOVE 120 IN c;
UPDATE back SET w = 1 WHERE CURRENT OF c RETURNING *;
FETCH BACKWARD 3 FROM c; DELETE FROM back WHERE CURRENT OF c RETURNING *; FETCH BACKWARD 1 FROM c; FETCH 4 FROM c;
UPDATE back SET w = 2 WHERE CURRENT OF c RETURNING *; UPDATE back SET w = 3 WHERE CURRENT OF b RETURNING *;
COMMIT;
SELECT w, count(*), sum(id), md5(string_agg(v, ',' ORDER BY id)) FROM back GROUP BY w ORDER BY w;
BEGIN; CREATE TABLE new (a int); INSERT INTO new SELECT generate_series(1, 120);
DECLARE c CURSOR FOR SELECT a FROM new; MOVE 110 IN c; FETCH BACKWARD 3 FROM c; INSERT INTO new SELECT generate_series(121, 240); FETCH 3 FROM c; MOVE FORWARD ALL IN c; FETCH BACKWARD 2 FROM c; ROLLBACK;
DROP TABLE back;
