-- VACUUM, ANALYZE, samples, TIDs, row locks, statistics, CLUSTER, and what they must not change.
CREATE TABLE t (id int PRIMARY KEY, k int, v text) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT i, i % 20, 'v' || i FROM generate_series(1, 500) i;
SELECT settle('t');
INSERT INTO t SELECT i, i % 20, 'v' || i FROM generate_series(501, 530) i;
CREATE INDEX t_k ON t (k);
DELETE FROM t WHERE id % 9 = 0;
UPDATE t SET v = 'u' || id WHERE id % 10 = 0;
VACUUM t;
SELECT count(*), sum(id), count(*) FILTER (WHERE v LIKE 'u%') FROM t;
VACUUM (ANALYZE, INDEX_CLEANUP on, TRUNCATE off) t;
VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) t;
SELECT count(*), sum(id) FROM t;
ANALYZE t;
SELECT reltuples FROM pg_class WHERE relname = 't';
SELECT attname, n_distinct, null_frac FROM pg_stats WHERE tablename = 't' ORDER BY 1;
SET enable_seqscan = off;
SELECT count(*), sum(id) FROM t WHERE k = 7;
SELECT id, v FROM t WHERE id IN (9, 10, 18, 20, 505, 510, 513, 530) ORDER BY id;
INSERT INTO t VALUES (9, 0, 'free again'), (18, 0, 'free again');
INSERT INTO t VALUES (10, 0, 'taken');
SELECT id, v FROM t WHERE id IN (9, 10, 18) ORDER BY id;
RESET enable_seqscan;
VACUUM FULL t;
SELECT count(*), sum(id), sum(k) FROM t;
CLUSTER t USING t_k;
SELECT count(*), sum(id), sum(k) FROM t;
ALTER TABLE t CLUSTER ON t_pkey;
CLUSTER t;
SELECT count(*), sum(id), sum(k) FROM t;
REINDEX TABLE CONCURRENTLY t;
SET enable_seqscan = off;
SELECT count(*), sum(id) FROM t WHERE k = 7;
RESET enable_seqscan;
BEGIN; DELETE FROM t WHERE id < 100; ROLLBACK;
VACUUM t;
SELECT count(*) FROM t;
-- delete all, vacuum, load again
DELETE FROM t;
VACUUM t;
SELECT count(*) FROM t;
INSERT INTO t SELECT i, i % 20, 'again' FROM generate_series(1, 300) i;
SELECT settle('t');
SELECT count(*), sum(id), min(v) FROM t;
ANALYZE t;
-- samples
SELECT count(*) FROM t TABLESAMPLE BERNOULLI (100);
SELECT count(*) FROM t TABLESAMPLE SYSTEM (100);
SELECT count(*) FROM t TABLESAMPLE BERNOULLI (0);
SELECT count(*) FROM t TABLESAMPLE SYSTEM (0);
SELECT count(*) BETWEEN 60 AND 240 FROM t TABLESAMPLE BERNOULLI (50) REPEATABLE (3);
SELECT (SELECT sum(id) FROM t TABLESAMPLE BERNOULLI (30) REPEATABLE (5)) = (SELECT sum(id) FROM t TABLESAMPLE BERNOULLI (30) REPEATABLE (5));
SELECT count(*), count(DISTINCT id) FROM t TABLESAMPLE BERNOULLI (100) WHERE k = 3;
SELECT count(*) FROM t TABLESAMPLE BERNOULLI (101);
-- TIDs
SELECT count(*) FROM t WHERE ctid = ANY (ARRAY(SELECT ctid FROM t WHERE id <= 40));
SELECT count(DISTINCT ctid) = count(*) FROM t;
SELECT bool_and(id = (SELECT id FROM t i WHERE i.ctid = o.ctid)) FROM t o WHERE id < 50;
SELECT count(*) FROM t WHERE ctid >= '(0,0)' AND ctid < '(4294967295,1)';
SELECT count(*) FROM t WHERE ctid < '(0,1)';
SELECT count(*) FROM t WHERE ctid > (SELECT max(ctid) FROM t);
SELECT count(*) FROM t WHERE ctid >= (SELECT min(ctid) FROM t);
SELECT count(*) FROM t WHERE ctid = '(4294967290,1)';
SELECT count(*) FROM t WHERE ctid = '(3000000000,65000)';
SELECT count(*) FROM t WHERE ctid IN ('(0,0)', '(2147483648,0)', '(4000000000,291)');
SELECT a.id FROM t a JOIN t b ON a.ctid = b.ctid WHERE b.id IN (3, 4) ORDER BY 1;
DELETE FROM t a USING t b WHERE a.ctid = b.ctid AND b.id IN (3, 4) RETURNING a.id;
UPDATE t SET v = 'by tid' WHERE ctid = (SELECT ctid FROM t WHERE id = 6) RETURNING id, v;
SELECT id, v FROM t WHERE id BETWEEN 1 AND 7 ORDER BY id;
-- duplicates removed by ctid, the old idiom
INSERT INTO t (id, k, v) SELECT 1000 + i, i % 3, 'dup' FROM generate_series(1, 30) i;
SELECT settle('t');
DELETE FROM t a WHERE v = 'dup' AND ctid <> (SELECT min(ctid) FROM t b WHERE b.v = 'dup' AND b.k = a.k);
SELECT count(*), count(DISTINCT k) FROM t WHERE v = 'dup';
-- currtid and system columns
SELECT tableoid::regclass, cmin, cmax >= 0, xmax FROM t WHERE id = 50;
SELECT xmin::text <> '0', pg_xact_commit_timestamp(xmin) FROM t WHERE id = 50;
BEGIN; UPDATE t SET v = 'x' WHERE id = 50; SELECT xmin = pg_current_xact_id()::xid FROM t WHERE id = 50; ROLLBACK;
BEGIN; INSERT INTO t SELECT 2000 + i, 0, 'mine' FROM generate_series(1, 20) i; SELECT count(*) FROM t WHERE xmin = pg_current_xact_id()::xid; ROLLBACK;
-- row locks
BEGIN;
SELECT id FROM t WHERE id BETWEEN 10 AND 20 ORDER BY id FOR UPDATE;
SELECT id FROM t WHERE id BETWEEN 15 AND 25 ORDER BY id FOR NO KEY UPDATE;
SELECT id FROM t WHERE id BETWEEN 15 AND 25 ORDER BY id FOR SHARE NOWAIT;
SELECT id FROM t WHERE id BETWEEN 15 AND 25 ORDER BY id FOR KEY SHARE SKIP LOCKED;
UPDATE t SET v = 'locked then changed' WHERE id = 16 RETURNING id;
SELECT id, v FROM t WHERE id = 16 FOR UPDATE;
SAVEPOINT s;
SELECT id FROM t WHERE id = 30 FOR KEY SHARE;
SELECT id FROM t WHERE id = 30 FOR UPDATE;
DELETE FROM t WHERE id = 30;
ROLLBACK TO s;
SELECT id FROM t WHERE id = 30 FOR UPDATE;
COMMIT;
SELECT id, v FROM t WHERE id IN (16, 30) ORDER BY id;
SELECT a.id, b.id FROM t a JOIN t b ON b.id = a.id + 1 WHERE a.id < 3 ORDER BY 1 FOR UPDATE OF b;
SELECT settle('t');
SELECT count(*), sum(id) FROM t;
-- sizes are more than nothing
SELECT pg_relation_size('t') >= 0, pg_table_size('t') > 0, pg_total_relation_size('t') > pg_table_size('t');
COMMENT ON TABLE t IS 'a comment'; COMMENT ON COLUMN t.v IS 'of v';
SELECT obj_description('t'::regclass), col_description('t'::regclass, 3);
-- statistics and extended statistics
CREATE STATISTICS s ON k, v FROM t; ANALYZE t;
SELECT stxname FROM pg_statistic_ext WHERE stxrelid = 't'::regclass;
SELECT n_live_tup > 200 FROM pg_stat_all_tables WHERE relname = 'nothing_here';
-- what a rolled-back REINDEX takes along: locks of rows, a first load
CREATE TABLE r (id int PRIMARY KEY, v text);
INSERT INTO r SELECT i, 'v' || i FROM generate_series(1, 30) i;
SELECT settle('r');
BEGIN; REINDEX TABLE r; SELECT id FROM r WHERE id > 27 ORDER BY id FOR UPDATE; UPDATE r SET v = 'lost' WHERE id = 12; ROLLBACK;
BEGIN; SELECT id FROM r WHERE id > 27 ORDER BY id FOR SHARE; REINDEX TABLE r; UPDATE r SET v = 'kept' WHERE id > 28; COMMIT;
BEGIN; REINDEX TABLE r; SAVEPOINT s; SELECT id FROM r WHERE id = 11 FOR UPDATE; DELETE FROM r WHERE id = 12; ROLLBACK TO s;
DELETE FROM r WHERE id = 11; SELECT id FROM r WHERE id = 10 FOR UPDATE; COMMIT;
SELECT id FROM r WHERE id BETWEEN 9 AND 13 ORDER BY id FOR NO KEY UPDATE;
REINDEX TABLE r;
SELECT count(*), sum(id), max(v) FROM r;
CREATE TABLE e (id int PRIMARY KEY);
BEGIN; REINDEX TABLE e; INSERT INTO e SELECT i FROM generate_series(1, 20) i; ROLLBACK;
-- A first stripe that a savepoint takes back, though the indexes are of before it.
BEGIN; REINDEX TABLE e; SAVEPOINT s; INSERT INTO e SELECT i FROM generate_series(1, 20) i; ROLLBACK TO s;
INSERT INTO e SELECT i FROM generate_series(11, 30) i; SELECT count(*), min(id) FROM e; SELECT count(*) FROM e WHERE id = 1; ROLLBACK;
-- The same where the table is new, but its indexes are newer; locks of rows, too.
BEGIN; CREATE TABLE e2 (id int PRIMARY KEY); SAVEPOINT s; REINDEX TABLE e2; INSERT INTO e2 SELECT i FROM generate_series(1, 20) i; ROLLBACK TO s;
INSERT INTO e2 SELECT i FROM generate_series(11, 30) i; SELECT count(*), min(id) FROM e2; COMMIT; REINDEX TABLE e2; SELECT count(*), min(id) FROM e2;
BEGIN; TRUNCATE e2; INSERT INTO e2 SELECT i FROM generate_series(1, 20) i; SAVEPOINT s; REINDEX TABLE e2; SELECT id FROM e2 WHERE id > 18 FOR UPDATE; ROLLBACK TO s;
SELECT id FROM e2 WHERE id > 18 FOR UPDATE; COMMIT; REINDEX TABLE e2; DROP TABLE e2;
-- A lock that is the transaction's own, as the TOAST relation's index is newer, and a deletion under it that is undone: read afterwards.
CREATE TABLE e2 (id int PRIMARY KEY);
BEGIN; REINDEX TABLE e2; INSERT INTO e2 SELECT i FROM generate_series(1, 20) i; SELECT id FROM e2 WHERE id > 17 FOR NO KEY UPDATE;
SAVEPOINT s; DELETE FROM e2 WHERE id > 12; SELECT count(*), max(id) FROM e2; ROLLBACK TO s; SELECT count(*), max(id) FROM e2; COMMIT;
SELECT count(*), max(id) FROM e2; DELETE FROM e2 WHERE id = 18; SELECT count(*), max(id) FROM e2 WHERE id < 19; DROP TABLE e2;
-- The same where the indexes are of before the savepoint, and the TOAST relation's is newer.
CREATE TABLE e2 (id int, v text);
BEGIN; CREATE INDEX e2_id ON e2 (id); SAVEPOINT s; DO $$BEGIN EXECUTE (SELECT 'REINDEX TABLE ' || reltoastrelid::regclass FROM pg_class WHERE relname = 'e2'); END$$;
INSERT INTO e2 SELECT i FROM generate_series(1, 20) i; ROLLBACK TO s; INSERT INTO e2 SELECT i FROM generate_series(11, 30) i; COMMIT;
SET enable_seqscan = off; SELECT count(*) FROM e2 WHERE id = 1; SELECT id FROM e2 WHERE id = 16; RESET enable_seqscan; DROP TABLE e2;
INSERT INTO e SELECT i FROM generate_series(5, 30) i;
REINDEX TABLE e; VACUUM FULL e; VACUUM FULL r;
SELECT count(*), sum(id) FROM e WHERE id < 7; SELECT id FROM e WHERE id = 12;
SELECT id, v FROM r WHERE id > 26 ORDER BY id;
-- moved and written anew in one transaction
CREATE TABLE x (id int PRIMARY KEY, k int, v text);
INSERT INTO x SELECT i, -i, 'x' || i FROM generate_series(1, 60) i; DELETE FROM x WHERE id % 4 = 0; CREATE INDEX x_k ON x (k);
BEGIN; SELECT settle('x'); UPDATE x SET v = 'u' WHERE id IN (1, 2, 3); CLUSTER x USING x_k; UPDATE x SET v = v || 'w' WHERE id < 8; DELETE FROM x WHERE id = 9; SELECT settle('x'); CLUSTER x USING x_pkey; SELECT count(*), sum(id), count(*) FILTER (WHERE v LIKE '%w') FROM x; ROLLBACK;
SELECT count(*), sum(id) FROM x;
BEGIN; SELECT settle('x'); UPDATE x SET v = 'u' WHERE id IN (1, 2, 3); SAVEPOINT s; CLUSTER x USING x_k; DELETE FROM x; ROLLBACK TO s; CLUSTER x; UPDATE x SET v = v || 'w' WHERE id < 8; COMMIT;
SELECT id, v FROM x WHERE id < 10 ORDER BY id; SELECT count(*), sum(id) FROM x WHERE k < 0; VACUUM FULL x; SELECT count(*), sum(id) FROM x WHERE k < 0;
ALTER TABLE x DROP v; CLUSTER x; SELECT * FROM x WHERE id < 4 ORDER BY id; ALTER TABLE x ADD v text DEFAULT 'd'; VACUUM FULL x; SELECT * FROM x WHERE id < 4 ORDER BY id;
CREATE INDEX x_g ON x USING gist (point(id, k)); CLUSTER x USING x_g; SELECT count(*), sum(id) FROM x; INSERT INTO x VALUES (1, 1), (4, 4); SELECT count(*), sum(id) FROM x WHERE k < 0;
