-- since: 18
-- What PostgreSQL 17 and 18 have brought to tables.
CREATE EXTENSION btree_gist;
-- Rows as they were and as they are.
CREATE TABLE r (id int PRIMARY KEY, a int, b text);
INSERT INTO r SELECT i, i * 2, 'x' || i FROM generate_series(1, 900) i;
SELECT settle('r');
UPDATE r SET a = a + 1 WHERE id = 700 RETURNING old.a, new.a, old.*, new.*;
DELETE FROM r WHERE id = 701 RETURNING old.*, new.*;
INSERT INTO r VALUES (7, 70, 'q'), (2000, 1, 'n') ON CONFLICT (id) DO UPDATE SET a = excluded.a RETURNING WITH (OLD AS o, NEW AS n) o.*, n.*, merge_action() IS NULL;
INSERT INTO r VALUES (8, 70, 'q'), (2000, 2, 'n') ON CONFLICT (id) DO UPDATE SET a = excluded.a RETURNING WITH (OLD AS o, NEW AS n) o.*, n.*;
WITH m AS (MERGE INTO r USING (VALUES (8, 1), (9, 2), (3000, 3)) s (id, a) ON r.id = s.id WHEN MATCHED AND s.a = 1 THEN UPDATE SET a = s.a WHEN MATCHED THEN DELETE
WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.a, 'm') RETURNING merge_action() AS done, old.id AS o, old.a AS oa, new.id AS n, new.a AS na) SELECT * FROM m ORDER BY o, n;
WITH m AS (MERGE INTO r USING (VALUES (10, 1)) s (id, a) ON r.id = s.id WHEN NOT MATCHED BY SOURCE AND r.id BETWEEN 21 AND 23 THEN DELETE WHEN NOT MATCHED BY SOURCE AND r.id BETWEEN 30 AND 33
THEN UPDATE SET b = 'none' RETURNING merge_action() AS done, r.id, r.b) SELECT * FROM m ORDER BY id;
CREATE VIEW rv AS SELECT * FROM r WHERE id < 500;
MERGE INTO rv USING (VALUES (10, 1)) s (id, a) ON rv.id = s.id WHEN MATCHED THEN UPDATE SET a = 0 RETURNING merge_action(), old.*, new.*;
SELECT count(*), sum(a) FROM r;
-- Columns that are generated when they are read, whose type changes without a look at the rows.
CREATE TABLE v (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) VIRTUAL, s int GENERATED ALWAYS AS (a * 3) STORED, h text GENERATED ALWAYS AS ('n' || id) VIRTUAL);
INSERT INTO v (id, a) SELECT i, i FROM generate_series(1, 700) i;
SELECT settle('v');
SELECT count(*), sum(g), sum(s), max(h) FROM v WHERE g BETWEEN 100 AND 1000; SELECT * FROM v WHERE g = 500;
ALTER TABLE v ALTER g TYPE numeric, ALTER h TYPE varchar(20);
UPDATE v SET a = a + 1 WHERE id = 100 RETURNING old.g, new.g, new.h;
SELECT * FROM v WHERE id = 101 FOR UPDATE;
INSERT INTO v (id, a) VALUES (102, 0) ON CONFLICT (id) DO UPDATE SET a = 7 RETURNING *;
MERGE INTO v USING (VALUES (103, 1)) s (id, a) ON v.id = s.id WHEN MATCHED THEN UPDATE SET a = s.a RETURNING v.*;
DELETE FROM v WHERE id = 104 RETURNING *;
ANALYZE v; SELECT settle('v');
ALTER TABLE v ADD CHECK (g < 6000); ALTER TABLE v ADD k int GENERATED ALWAYS AS (a + id) VIRTUAL, ADD t timestamptz NOT NULL DEFAULT '2024-01-01 00:00+00';
INSERT INTO v (id, a) VALUES (5000, 50000);
ALTER TABLE v ALTER g TYPE bigint; ALTER TABLE v ALTER a TYPE bigint USING a; SELECT pg_typeof(g), pg_typeof(a) FROM v WHERE id = 1;
ALTER TABLE v ALTER g SET EXPRESSION AS (a * 5); SELECT sum(g), sum(k), count(DISTINCT h) FROM v;
VACUUM FULL v; CLUSTER v USING v_pkey; ALTER TABLE v ALTER g TYPE numeric(12, 2); SELECT sum(g), sum(k) FROM v;
CREATE TABLE l (LIKE v INCLUDING ALL); INSERT INTO l (id, a) SELECT id, a FROM v; SELECT settle('l'); ALTER TABLE l ALTER g TYPE int, ALTER k TYPE bigint; SELECT sum(g), sum(k), min(h), max(h) FROM l;
ALTER TABLE l DROP COLUMN g; UPDATE l SET a = 0 WHERE id = 5 RETURNING *; ALTER TABLE l SET ACCESS METHOD heap; SELECT count(*), sum(k), sum(s) FROM l;
ALTER TABLE v DROP COLUMN a CASCADE; SELECT count(*), sum(s), max(h) FROM v;
CREATE TABLE only_virtual (g int GENERATED ALWAYS AS (1) VIRTUAL); INSERT INTO only_virtual SELECT FROM generate_series(1, 300); SELECT settle('only_virtual');
ALTER TABLE only_virtual ALTER g TYPE text; SELECT count(*), min(g), max(g) FROM only_virtual; DELETE FROM only_virtual; SELECT count(g) FROM only_virtual;
CREATE TABLE p (a int, k int, g int GENERATED ALWAYS AS (a * 2) VIRTUAL) PARTITION BY LIST (k); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p2 (k int, g int GENERATED ALWAYS AS (a * 3) VIRTUAL, a int);
INSERT INTO p2 (k, a) SELECT 2, i FROM generate_series(1, 300) i; ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2); INSERT INTO p (a, k) SELECT i, 1 FROM generate_series(1, 300) i; SELECT settle('p1'), settle('p2');
ALTER TABLE p ALTER g TYPE bigint; UPDATE p SET a = a + 1 WHERE a = 100; ANALYZE p; WITH u AS (UPDATE p SET k = 1 WHERE k = 2 AND a < 5 RETURNING g, tableoid::regclass t, a) SELECT * FROM u ORDER BY a; SELECT k, sum(g), count(*) FROM p GROUP BY k ORDER BY k;
-- Keys over time.
CREATE TABLE t (id int, valid daterange, x text, PRIMARY KEY (id, valid WITHOUT OVERLAPS));
INSERT INTO t SELECT i % 50, daterange('2020-01-01'::date + (i / 50) * 10, '2020-01-01'::date + (i / 50) * 10 + 10), 'x' FROM generate_series(0, 999) i;
SELECT settle('t');
INSERT INTO t VALUES (5, '[2020-01-05,2020-01-06)', 'bad'); INSERT INTO t VALUES (5, '[2020-01-05,2020-01-06)', 'bad') ON CONFLICT DO NOTHING;
INSERT INTO t VALUES (5, '[2020-01-05,2020-01-06)', 'bad') ON CONFLICT (id, valid) DO UPDATE SET x = 'z'; INSERT INTO t VALUES (6, 'empty');
CREATE TABLE tf (id int, valid daterange, p int, FOREIGN KEY (p, PERIOD valid) REFERENCES t (id, PERIOD valid));
INSERT INTO tf SELECT i, '[2020-01-03,2020-03-01)', i % 50 FROM generate_series(1, 200) i; SELECT settle('tf'); INSERT INTO tf VALUES (1, '[2019-01-03,2020-03-01)', 1);
DELETE FROM t WHERE id = 5 AND valid @> '2020-01-15'::date; UPDATE t SET valid = '[2020-01-11,2020-01-12)' WHERE id = 5 AND valid @> '2020-01-15'::date;
UPDATE t SET id = 900 WHERE id = 49 AND valid @> '2020-07-01'::date RETURNING old.id, new.id; UPDATE t SET valid = '[2020-01-01,2020-01-15)' WHERE id = 7 AND valid @> '2020-01-05'::date;
SELECT count(*), count(DISTINCT id) FROM t; SELECT count(*) FROM tf; ALTER TABLE tf ADD UNIQUE (id, valid WITHOUT OVERLAPS);
-- NOT NULL that is not checked yet.
CREATE TABLE n (id int, a int CONSTRAINT an NOT NULL, b int, c text);
INSERT INTO n SELECT i, i, nullif(i % 10, 0), 'c' || i FROM generate_series(1, 900) i; ALTER TABLE n ADD CONSTRAINT bn NOT NULL b NOT VALID; SELECT settle('n'); INSERT INTO n VALUES (1, 1, NULL);
SELECT count(*) FROM n WHERE b IS NULL; SELECT count(*), sum(b) FROM n WHERE b IS NOT NULL; SELECT count(b), sum(a) FROM n; SELECT a FROM n WHERE id = 20; SELECT n FROM n WHERE id = 20; SELECT b FROM n WHERE id = 20 FOR UPDATE;
SELECT b, count(*) FROM n GROUP BY b ORDER BY b; SELECT count(*) FROM n x JOIN n y ON x.b = y.b WHERE x.id < 20;
DELETE FROM n WHERE id = 20 RETURNING *; UPDATE n SET a = 0 WHERE id = 30; UPDATE n SET b = 1 WHERE id = 30 RETURNING *; CREATE INDEX ON n (b); CREATE INDEX ON n (a) INCLUDE (b);
SET enable_seqscan = off; SELECT count(*) FROM n WHERE b IS NULL; SELECT a, b FROM n WHERE a = 40; RESET enable_seqscan; ANALYZE n; VACUUM FULL n; SELECT count(*) FROM n WHERE b IS NULL;
ALTER TABLE n ADD PRIMARY KEY (b); ALTER TABLE n VALIDATE CONSTRAINT bn; UPDATE n SET b = id WHERE b IS NULL; ALTER TABLE n VALIDATE CONSTRAINT bn; ALTER TABLE n ALTER CONSTRAINT an NO INHERIT; ALTER TABLE n DROP CONSTRAINT an;
SELECT conname, convalidated, contype FROM pg_constraint WHERE conrelid = 'n'::regclass ORDER BY 1; INSERT INTO n VALUES (3000, NULL, 1); ALTER TABLE n ADD PRIMARY KEY (id); DELETE FROM n WHERE id = 3000; ALTER TABLE n ADD PRIMARY KEY (id); SELECT count(*), sum(b) FROM n;
CREATE TABLE pt (id int, a int NOT NULL) PARTITION BY RANGE (id); CREATE TABLE pt2 (id int, a int); INSERT INTO pt2 SELECT i, nullif(i, 700) FROM generate_series(500, 999) i; SELECT settle('pt2');
ALTER TABLE pt ATTACH PARTITION pt2 FOR VALUES FROM (500) TO (1000); ALTER TABLE pt2 ADD CONSTRAINT pp NOT NULL a NOT VALID; ALTER TABLE pt ATTACH PARTITION pt2 FOR VALUES FROM (500) TO (1000); UPDATE pt2 SET a = 1 WHERE a IS NULL;
ALTER TABLE pt2 VALIDATE CONSTRAINT pp; ALTER TABLE pt ATTACH PARTITION pt2 FOR VALUES FROM (500) TO (1000); SELECT count(*), sum(a) FROM pt;
-- Keys of which indexes leave the first column out.
CREATE TABLE sk (id int, a int, b int, c text); INSERT INTO sk SELECT i, i % 4, (i::bigint * 7919) % 5000, md5(i::text) FROM generate_series(1, 5000) i; CREATE INDEX ON sk (a, b); CREATE INDEX ON sk (a, b) INCLUDE (c); SELECT settle('sk'); VACUUM ANALYZE sk;
SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT id, a, b FROM sk WHERE b = 777; SELECT a, c FROM sk WHERE b BETWEEN 777 AND 790 ORDER BY c; SELECT count(*) FROM sk WHERE b IN (5, 6, 7); UPDATE sk SET c = 'c' WHERE b = 778 RETURNING old.c, new.c; RESET enable_seqscan; RESET enable_bitmapscan;
-- Rows that COPY passes over.
CREATE TABLE o (id int PRIMARY KEY, a int);
COPY o FROM stdin WITH (ON_ERROR ignore, LOG_VERBOSITY verbose);
1	1
2	two
3	3
\.
COPY o FROM stdin WITH (ON_ERROR ignore, REJECT_LIMIT 1);
4	x
5	y
6	6
\.
SELECT * FROM o ORDER BY id;
-- Switched off.
SELECT settle('o'); SET enable_seqscan = off; SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SELECT * FROM o WHERE id = 3; SELECT count(*) FROM o; RESET ALL;
-- Joins that give rows of the hashed side.
CREATE TABLE f (id int, k int, day date); INSERT INTO f SELECT i, i / 3, '2024-01-01'::date + i / 30 FROM generate_series(1, 3000) i; SELECT settle('f');
CREATE TABLE few (k int, day date); INSERT INTO few VALUES (10, '2024-01-03'), (11, '2024-02-01'), (NULL, NULL), (5000, '1999-01-01'), (999, '2024-03-20'), (10, '2024-01-03'); ANALYZE f; ANALYZE few;
SET enable_nestloop = off; SET enable_mergejoin = off;
SELECT * FROM few WHERE EXISTS (SELECT 1 FROM f WHERE f.k = few.k) ORDER BY k, day; SELECT * FROM few WHERE NOT EXISTS (SELECT 1 FROM f WHERE f.k = few.k) ORDER BY k, day;
SELECT * FROM few WHERE day IN (SELECT day FROM f WHERE f.k > 5) ORDER BY k, day; SELECT * FROM few WHERE k NOT IN (SELECT k FROM f) ORDER BY 1; SELECT count(*), sum(id) FROM f WHERE NOT EXISTS (SELECT 1 FROM few WHERE f.k = few.k);
DELETE FROM few WHERE EXISTS (SELECT 1 FROM f WHERE f.k = few.k AND f.day > few.day) RETURNING *; SELECT * FROM few WHERE NOT EXISTS (SELECT 1 FROM f WHERE f.k = few.k AND f.id % 2 = 0) ORDER BY k, day;
-- What is read and written is counted.
SELECT pg_stat_force_next_flush(); CREATE TABLE io AS SELECT sum(hits + reads) AS had, sum(writes) AS w FROM pg_stat_io WHERE backend_type = 'client backend' AND object = 'relation';
SELECT sum(length(c)) > 0 AS is_read, sum(a) FROM sk; SELECT pg_stat_force_next_flush();
SELECT sum(hits + reads) > max(had) AS counted FROM pg_stat_io, io WHERE backend_type = 'client backend' AND object = 'relation'; SELECT sum(hits) > 0 AS own FROM pg_stat_get_backend_io(pg_backend_pid()) WHERE object = 'relation';
SELECT heap_blks_read + heap_blks_hit + toast_blks_read + toast_blks_hit > 0 AS of_table FROM pg_statio_user_tables WHERE relname = 'sk';
