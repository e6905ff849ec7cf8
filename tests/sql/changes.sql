-- Statements that change or lock rows and find them without an index.
SET timezone = 'UTC'; SET datestyle = 'ISO';
CREATE TABLE t (id int, k int, v text COLLATE "C", n numeric(10,2), at timestamp, b bool, j jsonb);
INSERT INTO t SELECT i, i % 10, CASE i % 7 WHEN 0 THEN NULL ELSE 'v' || i % 50 END, i * 1.25, timestamp '2024-01-01' + i * interval '1 hour',
    CASE i % 3 WHEN 0 THEN NULL ELSE i % 3 = 1 END, jsonb_build_object('x', i % 9) FROM generate_series(1, 900) i;
SELECT settle('t');
CREATE FUNCTION sums(OUT text) LANGUAGE sql AS $$ SELECT format('%s %s %s %s %s', count(*), sum(id), sum(k), sum(n), md5(string_agg(t::text, ',' ORDER BY t::text))) FROM t $$;
-- rows found by conditions that stripes evaluate, that PostgreSQL evaluates, and both
UPDATE t SET k = k + 100 WHERE id BETWEEN 100 AND 110;
UPDATE t SET v = upper(v), n = n + id WHERE at >= '2024-01-30' AND k % 3 = 1 AND id < 760;
UPDATE t SET k = id WHERE v = 'v11' OR id = 5 OR v IS NULL AND id < 40;
UPDATE t SET v = v || '!' WHERE j ->> 'x' = '4' AND v LIKE 'v1%';
UPDATE t SET n = DEFAULT, b = NOT b WHERE b IS NOT TRUE AND id > 850;
SELECT sums();
DELETE FROM t WHERE id BETWEEN 200 AND 215;
DELETE FROM t WHERE v IN ('v3', 'v33') AND n < 300;
DELETE FROM t WHERE k = 4 AND at < '2024-01-05' AND length(v) = 2;
DELETE FROM t WHERE id = -1;
SELECT sums();
-- what a statement has written it does not find again
UPDATE t SET id = id + 1000 WHERE id > 500;
UPDATE t SET id = id + 1 WHERE id >= 1000 AND id < 9000;
SELECT sums();
SELECT settle('t');
UPDATE t SET id = id - 1001 WHERE id > 1000;
SELECT sums(), min(id), max(id) FROM t;
-- RETURNING: columns that finding the rows did not need, the table, the whole row
WITH x AS (UPDATE t SET k = -k WHERE id IN (7, 77, 777) RETURNING id, k, v, n, at, b, j) SELECT * FROM x ORDER BY 1;
UPDATE t SET k = -k WHERE id = 77 RETURNING t;
WITH x AS (DELETE FROM t WHERE id IN (8, 88, 888) RETURNING *, tableoid::regclass) SELECT * FROM x ORDER BY 1;
WITH x AS (UPDATE t SET v = (t).v || (SELECT max(x.v) FROM t x WHERE x.id < t.id AND x.id > 700) WHERE id BETWEEN 710 AND 713 RETURNING id, v) SELECT * FROM x ORDER BY 1;
WITH x AS (UPDATE t SET (k, v) = (SELECT s.k, s.v FROM t s WHERE s.id = t.id + 1) WHERE id BETWEEN 720 AND 723 RETURNING id, k, v) SELECT * FROM x ORDER BY 1;
WITH x AS (UPDATE t SET v = t::text WHERE id = 730 RETURNING length(v)) SELECT * FROM x ORDER BY 1;
-- rows of the row store and of stripes, and rows that this transaction has changed
BEGIN;
INSERT INTO t SELECT i, 1, 'new', i, '2025-01-01', true, NULL FROM generate_series(2001, 2040) i;
INSERT INTO t VALUES (2041, 1, 'one');
UPDATE t SET k = k + 1 WHERE id >= 895;
DELETE FROM t WHERE v = 'new' AND id % 2 = 0;
SAVEPOINT s;
DELETE FROM t WHERE id > 600;
SELECT sums();
ROLLBACK TO s;
UPDATE t SET k = k + 1 WHERE id >= 890;
SELECT id, k FROM t WHERE id >= 890 ORDER BY id FOR UPDATE;
COMMIT;
SELECT sums();
-- joins: each row once, whichever side it is on
CREATE TABLE s (id int, v text); INSERT INTO s SELECT i % 300, 's' || i FROM generate_series(1, 330) i; SELECT settle('s');
UPDATE t SET v = 'joined' FROM s WHERE s.id = t.id AND t.id BETWEEN 10 AND 29;
SELECT id, v FROM t WHERE id BETWEEN 8 AND 31 ORDER BY id;
WITH x AS (UPDATE t SET k = t.k + x.k FROM t x WHERE x.id = t.id + 1 AND t.id < 6 RETURNING t.id, x.id, t.k, x.k) SELECT * FROM x ORDER BY 1, 2;
WITH x AS (DELETE FROM t USING s WHERE s.id = t.id AND s.v < 's12' AND t.id BETWEEN 50 AND 70 RETURNING t.id) SELECT * FROM x ORDER BY 1;
WITH x AS (DELETE FROM t WHERE id IN (SELECT id FROM s WHERE v LIKE 's20%') RETURNING id) SELECT * FROM x ORDER BY 1;
WITH x AS (DELETE FROM t WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.id = t.id) AND id BETWEEN 295 AND 305 RETURNING id) SELECT * FROM x ORDER BY 1;
SET enable_hashjoin = off; SET enable_mergejoin = off;
WITH x AS (UPDATE t SET k = 0 FROM s WHERE s.id = t.id AND s.v = 's100' RETURNING t.id) SELECT * FROM x ORDER BY 1;
RESET enable_hashjoin; RESET enable_mergejoin;
SELECT sums();
-- MERGE
MERGE INTO t USING (SELECT DISTINCT id FROM s WHERE id < 60 UNION SELECT 5000) m ON t.id = m.id
    WHEN MATCHED AND t.k > 5 THEN DELETE
    WHEN MATCHED AND t.v IS NULL THEN DO NOTHING
    WHEN MATCHED THEN UPDATE SET n = t.n + 1000, v = 'merged'
    WHEN NOT MATCHED THEN INSERT (id, v) VALUES (m.id, 'merged in');
SELECT sums();
MERGE INTO t USING s ON t.id = s.id AND t.id < 20 WHEN MATCHED AND s.id = 15 THEN DELETE;
SELECT sums();
-- data-modifying WITH: all parts see the same rows
WITH gone AS (DELETE FROM t WHERE id BETWEEN 400 AND 405 RETURNING *), changed AS (UPDATE t SET k = 9 WHERE id BETWEEN 404 AND 408 RETURNING id),
    back AS (INSERT INTO t SELECT id + 10000, k, v FROM gone RETURNING id)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM back), (SELECT count(*) FROM t WHERE id BETWEEN 400 AND 408);
SELECT sums();
-- locks
SELECT id, v FROM t WHERE id BETWEEN 450 AND 453 ORDER BY id FOR UPDATE;
SELECT id FROM t WHERE v = 'v23' ORDER BY id LIMIT 3 FOR NO KEY UPDATE;
SELECT t.id, s.v FROM t JOIN s ON s.id = t.id WHERE t.id BETWEEN 100 AND 103 ORDER BY 1, 2 FOR SHARE OF t;
SELECT t.id, s.v FROM t JOIN s ON s.id = t.id WHERE t.id BETWEEN 100 AND 103 ORDER BY 1, 2 FOR KEY SHARE SKIP LOCKED;
SELECT t.id, s.v FROM t LEFT JOIN s ON s.id = t.id WHERE t.id BETWEEN 297 AND 302 ORDER BY 1, 2 FOR UPDATE OF t;
SELECT * FROM (SELECT id, k FROM t WHERE id BETWEEN 460 AND 463 FOR UPDATE) x ORDER BY id;
SELECT x.id FROM (SELECT id FROM t WHERE id BETWEEN 470 AND 473 ORDER BY id FOR UPDATE NOWAIT) x WHERE EXISTS (SELECT 1 FROM t y WHERE y.id = x.id + 1) ORDER BY 1;
SELECT count(*) FROM (SELECT 1 FROM t FOR KEY SHARE) x;
WITH x AS (UPDATE t SET k = 1 WHERE id IN (SELECT id FROM t WHERE id > 480 AND id < 490 AND k > 3 ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED) RETURNING id) SELECT * FROM x ORDER BY 1;
SELECT id, v FROM t WHERE id IN (450, 452) ORDER BY id FOR UPDATE;
-- cursors
CREATE TABLE q (id int, k int, v text); INSERT INTO q SELECT i, i % 5, 'q' || i FROM generate_series(491, 560) i; SELECT settle('q');
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM q WHERE id BETWEEN 500 AND 510 FOR UPDATE;
FETCH 2 FROM c;
UPDATE q SET k = -1 WHERE CURRENT OF c RETURNING id;
DELETE FROM q WHERE CURRENT OF c;
FETCH 1 FROM c;
DELETE FROM q WHERE CURRENT OF c RETURNING id;
UPDATE q SET k = -2 WHERE id BETWEEN 503 AND 506;
FETCH 3 FROM c;
UPDATE q SET k = -3 WHERE CURRENT OF c RETURNING id;
CLOSE c;
DECLARE d CURSOR FOR SELECT id FROM q WHERE id BETWEEN 520 AND 530;
FETCH 3 FROM d;
DELETE FROM q WHERE CURRENT OF d RETURNING id;
UPDATE q SET v = 'other' WHERE id BETWEEN 522 AND 524;
FETCH 2 FROM d;
COMMIT;
SELECT count(*), sum(id), sum(k), max(v) FROM q;
-- triggers, which get whole rows, and statements of functions
CREATE TABLE log (what text, id int, v text, n numeric);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO log VALUES (TG_OP || TG_WHEN, OLD.id, OLD.v, OLD.n);
    IF TG_OP = 'UPDATE' AND TG_WHEN = 'BEFORE' THEN NEW.k := NEW.k + 1000; UPDATE t SET b = true WHERE t.id = OLD.id + 1000; END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END; END $$;
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log SELECT TG_OP, count(*), string_agg(v, ',' ORDER BY id), sum(n) FROM old; RETURN NULL; END $$;
CREATE TRIGGER a BEFORE UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER b AFTER UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER c AFTER UPDATE ON t REFERENCING OLD TABLE AS old FOR EACH STATEMENT EXECUTE FUNCTION noted();
CREATE TRIGGER d AFTER DELETE ON t REFERENCING OLD TABLE AS old FOR EACH STATEMENT EXECUTE FUNCTION noted();
UPDATE t SET v = 'trigger' WHERE id BETWEEN 550 AND 555;
DELETE FROM t WHERE id BETWEEN 553 AND 557;
SELECT * FROM log ORDER BY what, id, v;
DROP TRIGGER a ON t; DROP TRIGGER b ON t; DROP TRIGGER c ON t; DROP TRIGGER d ON t;
CREATE FUNCTION change(i int) RETURNS int LANGUAGE plpgsql AS $$ DECLARE n int; BEGIN UPDATE t SET k = k + 1 WHERE id = i OR id = i + 1; GET DIAGNOSTICS n = ROW_COUNT; RETURN n; END $$;
SELECT sum(change(id)) FROM t WHERE id BETWEEN 560 AND 570;
WITH x AS (UPDATE t SET k = change(id + 1) WHERE id BETWEEN 580 AND 583 RETURNING id, k) SELECT * FROM x ORDER BY 1, 2;
INSERT INTO t SELECT 20000 + i, change(590 + i % 3) FROM generate_series(1, 12) i;
INSERT INTO t SELECT 30000 + i, change(30000 + i - 1) FROM generate_series(1, 12) i;
SELECT sums();
-- prepared statements, generic plans too
SET plan_cache_mode = force_generic_plan;
PREPARE u(int, int) AS WITH x AS (UPDATE t SET k = k + 1 WHERE id BETWEEN $1 AND $2 OR v = 'nobody' RETURNING id) SELECT * FROM x ORDER BY 1;
EXECUTE u(600, 603); EXECUTE u(603, 600); EXECUTE u(NULL, 10); EXECUTE u(603, 604);
PREPARE l(text) AS SELECT count(*) FROM (SELECT 1 FROM t WHERE v LIKE $1 FOR UPDATE) x;
EXECUTE l('v1%'); EXECUTE l('v1'); EXECUTE l('%1'); EXECUTE l(NULL); EXECUTE l('x\');
RESET plan_cache_mode;
-- partitions: rows found in several, moved between them
CREATE TABLE p (id int, at date, v text) PARTITION BY RANGE (at);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE p2 (v text, extra int, id int, at date); ALTER TABLE p2 DROP COLUMN extra;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
CREATE TABLE p3 PARTITION OF p DEFAULT;
INSERT INTO p SELECT i, date '2024-01-01' + i % 80, 'p' || i FROM generate_series(1, 400) i;
SELECT settle('p1'), settle('p2');
UPDATE p SET v = v || '+' WHERE id BETWEEN 100 AND 130;
UPDATE p SET at = at + 31 WHERE at BETWEEN '2024-01-20' AND '2024-02-10';
WITH x AS (DELETE FROM p WHERE at = '2024-02-28' OR id IN (7, 8, 9) RETURNING tableoid::regclass, *) SELECT * FROM x ORDER BY 1, 2;
SELECT tableoid::regclass, count(*), sum(id), min(v), max(v) FROM p GROUP BY 1 ORDER BY 1;
SELECT id, v FROM p WHERE id BETWEEN 340 AND 344 ORDER BY id FOR UPDATE;
WITH x AS (UPDATE p SET v = s.v FROM s WHERE s.id = p.id AND p.id IN (150, 151, 152) RETURNING p.*) SELECT * FROM x ORDER BY 1, 2;
MERGE INTO p USING s ON p.id = s.id AND s.id BETWEEN 200 AND 210 WHEN MATCHED AND p.at < '2024-02-01' THEN UPDATE SET at = '2024-02-15' WHEN MATCHED THEN DELETE;
SELECT tableoid::regclass, count(*), sum(id) FROM p GROUP BY 1 ORDER BY 1;
-- inheritance
CREATE TABLE parent (id int, v text); CREATE TABLE child (more int) INHERITS (parent);
INSERT INTO parent SELECT i, 'parent' FROM generate_series(1, 40) i; INSERT INTO child SELECT i, 'child', -i FROM generate_series(30, 70) i;
SELECT settle('parent'), settle('child');
WITH x AS (UPDATE parent SET v = v || id WHERE id BETWEEN 28 AND 33 RETURNING tableoid::regclass, id, v) SELECT * FROM x ORDER BY 1, 2;
DELETE FROM ONLY parent WHERE id > 35; DELETE FROM parent WHERE id = 30;
SELECT tableoid::regclass, count(*), sum(id) FROM parent GROUP BY 1 ORDER BY 1;
-- views and policies
CREATE VIEW w AS SELECT id, k, v FROM t WHERE id < 650 WITH CHECK OPTION;
WITH x AS (UPDATE w SET k = 5 WHERE id BETWEEN 640 AND 660 RETURNING id) SELECT * FROM x ORDER BY 1;
UPDATE w SET id = 700 WHERE id = 641;
CREATE FUNCTION leak(text) RETURNS bool LANGUAGE plpgsql COST 0.0001 AS $$ BEGIN RAISE NOTICE 'saw %', $1; RETURN true; END $$;
CREATE VIEW barrier WITH (security_barrier) AS SELECT id, k, v FROM q WHERE id BETWEEN 540 AND 542;
UPDATE barrier SET k = 6 WHERE leak(v) AND k < 100000 RETURNING id;
DELETE FROM barrier WHERE leak(v) AND id = 541;
CREATE ROLE firn_changer; GRANT SELECT, UPDATE, DELETE ON t TO firn_changer;
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON t FOR ALL TO firn_changer USING (k = 7) WITH CHECK (k IN (7, 8));
SET ROLE firn_changer;
SELECT count(*), sum(id) FROM t;
UPDATE t SET k = 8 WHERE id < 300 OR v IS NULL;
UPDATE t SET k = 9 WHERE id < 600;
DELETE FROM t WHERE id > 700;
SELECT id FROM t WHERE id BETWEEN 300 AND 420 ORDER BY id FOR UPDATE;
RESET ROLE;
ALTER TABLE t DISABLE ROW LEVEL SECURITY; DROP POLICY own ON t; REVOKE ALL ON t FROM firn_changer; DROP ROLE firn_changer;
SELECT sums();
-- columns added, changed and dropped since
ALTER TABLE t ADD COLUMN late int DEFAULT 7, ADD COLUMN twice int GENERATED ALWAYS AS (k * 2) STORED; ALTER TABLE t DROP COLUMN at;
INSERT INTO t (id, k) SELECT i, 3 FROM generate_series(40001, 40020) i; SELECT settle('t');
WITH x AS (UPDATE t SET late = late + 1 WHERE id IN (1, 2, 40001) OR late IS NULL RETURNING id, late, twice) SELECT * FROM x ORDER BY 1;
WITH x AS (DELETE FROM t WHERE late = 8 OR late = 7 AND id = 3 RETURNING id) SELECT * FROM x ORDER BY 1;
UPDATE t SET k = 1 WHERE late <> 7 OR late IS DISTINCT FROM 7;
ALTER TABLE t ALTER k TYPE bigint; UPDATE t SET k = 5000000000 WHERE k = 3 AND id > 40010; SELECT count(*), sum(k) FROM t;
-- system columns stay with PostgreSQL's scan
DELETE FROM t WHERE xmin = pg_current_xact_id()::xid; UPDATE t SET v = 'old' WHERE id = 640 AND xmax = 0 RETURNING id, xmin = pg_current_xact_id()::xid AS own;
WITH x AS (UPDATE t SET v = 'by tid' WHERE ctid IN (SELECT ctid FROM t WHERE id BETWEEN 642 AND 644) RETURNING id) SELECT * FROM x ORDER BY 1;
DELETE FROM t a USING t b WHERE a.id = b.id AND a.ctid > b.ctid;
SELECT count(*) FROM t;
DELETE FROM t;
SELECT count(*) FROM t;
