-- INSERT, COPY, UPDATE, DELETE, RETURNING, ON CONFLICT, MERGE.
CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(10,2));
INSERT INTO t SELECT i, 'v' || i % 7, i * 1.5 FROM generate_series(1, 100) i;
SELECT settle('t');
SELECT count(*), sum(id), sum(n), min(v), max(v) FROM t;
INSERT INTO t VALUES (101, 'single', 1) RETURNING *;
INSERT INTO t SELECT i, 'r', 0 FROM generate_series(102, 112) i RETURNING id, v;
UPDATE t SET v = 'upd', n = n + 1 WHERE id BETWEEN 10 AND 14 RETURNING *;
SELECT * FROM t WHERE id BETWEEN 9 AND 15 ORDER BY id;
UPDATE t SET id = id + 1000 WHERE id BETWEEN 20 AND 22 RETURNING id;
SELECT id, v FROM t WHERE id IN (20, 21, 22, 1020, 1021, 1022) ORDER BY id;
DELETE FROM t WHERE id BETWEEN 30 AND 33 RETURNING *;
SELECT count(*) FROM t WHERE id BETWEEN 25 AND 35;
SELECT settle('t');
UPDATE t SET n = n * 2;
SELECT count(*), sum(n) FROM t;
UPDATE t SET n = n / 2;
SELECT settle('t');
SELECT count(*), sum(n) FROM t;
-- conflicts
INSERT INTO t VALUES (5, 'dup', 0);
INSERT INTO t SELECT i, 'dup', 0 FROM generate_series(95, 130) i;
SELECT count(*), max(id) FROM t;
INSERT INTO t VALUES (5, 'dup', 0) ON CONFLICT DO NOTHING RETURNING *;
INSERT INTO t VALUES (5, 'merged', 7) ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v, n = t.n + EXCLUDED.n RETURNING *;
INSERT INTO t SELECT i, 'conf', 1 FROM generate_series(108, 120) i
    ON CONFLICT (id) DO UPDATE SET v = 'was ' || t.v RETURNING id, v;
INSERT INTO t VALUES (200, 'x', 1), (200, 'y', 2) ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v;
SELECT count(*), sum(id) FROM t;
-- MERGE
CREATE TABLE src (id int, v text);
INSERT INTO src SELECT i, 'src' || i FROM generate_series(90, 125) i;
SELECT settle('src');
MERGE INTO t USING src ON t.id = src.id
    WHEN MATCHED AND t.id % 3 = 0 THEN DELETE
    WHEN MATCHED THEN UPDATE SET v = src.v
    WHEN NOT MATCHED THEN INSERT VALUES (src.id, src.v, 0);
SELECT id, v FROM t WHERE id >= 88 AND id < 1000 ORDER BY id;
-- UPDATE FROM, DELETE USING, self join, CTE
UPDATE t SET v = s.v || '!' FROM src s WHERE s.id = t.id AND t.id < 95;
DELETE FROM t USING src s WHERE s.id = t.id AND t.id > 120 RETURNING t.id, s.v;
WITH gone AS (DELETE FROM t WHERE id < 5 RETURNING *), new AS (
    INSERT INTO t SELECT id + 500, v, n FROM gone RETURNING id)
SELECT * FROM new ORDER BY id;
SELECT id, v FROM t WHERE id < 5 OR id BETWEEN 500 AND 510 OR id BETWEEN 90 AND 96 ORDER BY id;
-- COPY both ways
CREATE TABLE c (a int, b text, d date);
COPY c FROM stdin (NULL 'nil');
1	one	2024-02-29
2	nil	nil
3	tab\there	0001-01-01
4	back\\slash	9999-12-31
5	five	2000-01-01
6	six	2000-01-02
7	seven	2000-01-03
8	eight	nil
\.
SELECT settle('c');
COPY c TO stdout;
COPY (SELECT a, b FROM c WHERE a > 5 ORDER BY a DESC) TO stdout CSV HEADER;
COPY c FROM stdin;
9	nine	2024-01-01
10	ten	not a date
\.
SELECT count(*) FROM c;
-- own rows within one statement and Halloween
INSERT INTO c SELECT a + 100, b, d FROM c;
SELECT count(*), sum(a) FROM c;
UPDATE c SET a = a + 1 WHERE a < 1000;
SELECT count(*), sum(a) FROM c;
UPDATE c SET a = a WHERE ctid = (SELECT ctid FROM c WHERE a = 105) RETURNING a;
DELETE FROM c WHERE ctid IN (SELECT ctid FROM c WHERE a > 105) RETURNING b;
SELECT a, xmin IS NOT NULL AS x, cmin IS NOT NULL AS c, tableoid::regclass FROM c WHERE a < 5 ORDER BY a;
INSERT INTO c SELECT NULL, NULL, NULL FROM generate_series(1, 20);
SELECT settle('c');
SELECT count(*), count(a), count(b), count(c) FROM c;
DELETE FROM c;
SELECT count(*) FROM c;
-- system columns of rows at rest
CREATE TABLE sys (id int);
INSERT INTO sys SELECT generate_series(1, 40);
SELECT settle('sys');
SELECT cmin, cmax, xmax, count(*), count(DISTINCT ctid) FROM sys GROUP BY 1, 2, 3;
SELECT cmin, cmax, xmax FROM sys WHERE id = 33;
-- xmax of a new version: not 0 where its transaction had locked the old one, as an upsert does
CREATE TABLE up (id int PRIMARY KEY, v int);
INSERT INTO up SELECT i, i FROM generate_series(1, 40) i;
SELECT settle('up');
INSERT INTO up VALUES (5, 1), (100, 2), (33, 3) ON CONFLICT (id) DO UPDATE SET v = excluded.v
    RETURNING id, xmax = 0 AS new, xmax = pg_current_xact_id()::xid AS own;
SELECT id, xmax = 0 AS free FROM up WHERE id IN (5, 100, 33) ORDER BY id;
UPDATE up SET v = 0 WHERE id IN (7, 34) RETURNING id, xmax = 0 AS free;
BEGIN;
SELECT id FROM up WHERE id IN (8, 35) ORDER BY id FOR NO KEY UPDATE;
UPDATE up SET v = 0 WHERE id IN (8, 35) RETURNING id, xmax = pg_current_xact_id()::xid AS own;
SELECT id, xmax = pg_current_xact_id()::xid AS own FROM up WHERE id IN (8, 35) ORDER BY id;
UPDATE up SET v = 1 WHERE id IN (8, 35);
COMMIT;
BEGIN;
SAVEPOINT s;
SELECT id FROM up WHERE id IN (9, 36) ORDER BY id FOR UPDATE;
ROLLBACK TO s;
UPDATE up SET v = 0 WHERE id IN (9, 36) RETURNING id, xmax = 0 AS free;
DELETE FROM up WHERE id = 9;
COMMIT;
SELECT settle('up');
SELECT count(*), sum(v) FROM up;
-- system columns of rows just inserted
CREATE TABLE fresh (id int PRIMARY KEY, v text);
CREATE TABLE parts (id int, v text) PARTITION BY LIST (id);
CREATE TABLE part PARTITION OF parts DEFAULT;
INSERT INTO fresh SELECT i, 'v' FROM generate_series(1, 12) i
    RETURNING id, xmin = pg_current_xact_id()::xid AS own, xmax, cmin, cmax, tableoid::regclass;
INSERT INTO part SELECT i, 'v' FROM generate_series(1, 12) i RETURNING part, xmin = pg_current_xact_id()::xid AS own, xmax;
BEGIN;
INSERT INTO fresh VALUES (100, 'v');
WITH new AS (INSERT INTO fresh SELECT i, 'v' FROM generate_series(101, 112) i RETURNING *, xmin, cmin)
    SELECT count(*), count(*) FILTER (WHERE xmin = pg_current_xact_id()::xid), min(cmin::text), max(cmin::text) FROM new;
SELECT count(*) FROM fresh WHERE xmin = pg_current_xact_id()::xid;
COMMIT;
