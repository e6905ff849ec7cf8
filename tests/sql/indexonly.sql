-- What an index alone answers: entries of stripes that are seen as a whole, and all others, forwards and backwards.
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_sort = off; SET enable_material = off;
CREATE TABLE o (id int PRIMARY KEY, a int, t text, n name, p numeric(8,2));
CREATE INDEX o_a ON o (a, id); CREATE INDEX o_t ON o (t COLLATE "C", a); CREATE INDEX o_n ON o (n, id); CREATE INDEX o_p ON o (p DESC NULLS LAST) INCLUDE (t, id);
INSERT INTO o SELECT i, CASE WHEN i % 11 > 0 THEN i * 37 % 100 END, CASE WHEN i % 7 > 0 THEN 't' || i % 60 END, 'n' || i % 40, CASE WHEN i % 5 > 0 THEN i / 8.0 END FROM generate_series(1, 900) i;
SELECT settle('o');
INSERT INTO o SELECT i, i % 9, 'row store ' || i % 3, 'm' || i % 4, i FROM generate_series(2001, 2030) i;
VACUUM ANALYZE o;
SELECT count(*), sum(id) FROM o WHERE id >= 0; SELECT count(*), sum(a), count(a) FROM o WHERE a IS NULL OR a >= 0; SELECT count(*), min(a), max(a) FROM o WHERE a < 50;
SELECT a, id FROM o WHERE a BETWEEN 10 AND 12 ORDER BY a, id; SELECT a, id FROM o WHERE a BETWEEN 10 AND 12 ORDER BY a DESC, id DESC; SELECT a, id FROM o WHERE a IS NULL ORDER BY a, id LIMIT 5;
SELECT t COLLATE "C" AS t, a FROM o WHERE t COLLATE "C" >= 't58' AND a > 20 ORDER BY t COLLATE "C", a; SELECT count(*), min(n), max(n) FROM o WHERE n > 'n2'; SELECT n, id FROM o WHERE n = 'n7' ORDER BY n, id LIMIT 4;
SELECT p, t, id FROM o WHERE p < 3 ORDER BY p DESC NULLS LAST; SELECT p, id FROM o WHERE p > 109 ORDER BY p; SELECT count(*) FROM o WHERE p IS NULL; SELECT id % 3, count(*) FROM o WHERE id < 100 AND id % 3 < 2 GROUP BY 1 ORDER BY 1;
SELECT id FROM o WHERE id = ANY (ARRAY[5, 900, 2001, 3000, 7]) ORDER BY id; SELECT max(id), min(id) FROM o; SELECT min(a), max(a) FROM o; SELECT DISTINCT a FROM o WHERE a < 6 ORDER BY a;
-- Keys known at run time, scans begun again, joins that go back to a mark.
SELECT i, (SELECT count(*) FROM o WHERE o.a = i), (SELECT max(id) FROM o WHERE o.a = i AND o.id < i * 50) FROM generate_series(1, 9) i ORDER BY i;
SELECT count(*), sum(x.id) FROM generate_series(1, 950, 3) g(i) JOIN o x ON x.id = g.i; SELECT count(*) FROM o x WHERE EXISTS (SELECT FROM o y WHERE y.a = x.id); SELECT count(*) FROM o x WHERE NOT EXISTS (SELECT FROM o y WHERE y.id = x.id + 1) AND x.id >= 0;
SET enable_nestloop = off; SELECT count(*), sum(x.id - y.id), min(y.id) FROM (SELECT a, id FROM o WHERE a < 30) x JOIN (SELECT a, id FROM o WHERE a < 40) y USING (a); RESET enable_nestloop;
PREPARE ranged(int, int) AS SELECT count(*), sum(id) FROM o WHERE id BETWEEN $1 AND $2; EXECUTE ranged(1, 10); EXECUTE ranged(890, 2005); EXECUTE ranged(5000, 6000); EXECUTE ranged(1, 3000); EXECUTE ranged(7, 7); EXECUTE ranged(100, 110); EXECUTE ranged(100, 810); DEALLOCATE ranged;
-- Cursors, both ways, and what others of the same transaction do meanwhile.
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT id FROM o WHERE id > 880 ORDER BY id; FETCH 3 FROM c; MOVE 12 FROM c; FETCH 8 FROM c; FETCH BACKWARD 10 FROM c; FETCH LAST FROM c; FETCH BACKWARD 2 FROM c; FETCH FIRST FROM c; FETCH PRIOR FROM c; FETCH 2 FROM c;
DECLARE d SCROLL CURSOR FOR SELECT a, id FROM o WHERE a IN (3, 4) ORDER BY a DESC, id DESC; FETCH 5 FROM d; DELETE FROM o WHERE a = 4; UPDATE o SET a = 3 WHERE id = 100; FETCH 5 FROM d; FETCH BACKWARD 7 FROM d; FETCH ALL FROM d;
SELECT count(*), sum(id) FROM o WHERE a IN (3, 4); ROLLBACK;
SELECT count(*), sum(id) FROM o WHERE a IN (3, 4);
BEGIN; DECLARE e CURSOR WITH HOLD FOR SELECT id FROM o WHERE id > 885 ORDER BY id; FETCH 4 FROM e; DELETE FROM o WHERE id = 890; COMMIT; FETCH 3 FROM e; FETCH ALL FROM e; CLOSE e; INSERT INTO o VALUES (890, 3);
BEGIN; DECLARE f CURSOR FOR SELECT id FROM o WHERE id BETWEEN 700 AND 710; FETCH 3 FROM f; UPDATE o SET t = 'current' WHERE CURRENT OF f; FETCH 2 FROM f; DELETE FROM o WHERE CURRENT OF f; FETCH ALL FROM f; SELECT id, t FROM o WHERE id BETWEEN 700 AND 706 ORDER BY id; ROLLBACK;
-- Beside a partition that is a heap.
CREATE TABLE q (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (500); CREATE TABLE q2 PARTITION OF q FOR VALUES FROM (500) TO (1000) USING heap;
INSERT INTO q SELECT generate_series(0, 999); SELECT settle('q1'); VACUUM ANALYZE q; SELECT count(*), sum(id) FROM q WHERE id > 3; SELECT id FROM q WHERE id > 497 ORDER BY id LIMIT 5; SELECT id FROM q WHERE id < 502 ORDER BY id DESC LIMIT 5; SELECT count(*) FROM generate_series(1, 990, 7) g(i) JOIN q ON q.id = g.i; DROP TABLE q;
-- Rows that are gone, that have moved, or whose deletion was rolled back, in stripes of which others are whole.
DELETE FROM o WHERE id BETWEEN 300 AND 310; SELECT count(*), sum(id) FROM o WHERE id >= 0; SELECT id FROM o WHERE id BETWEEN 295 AND 315 ORDER BY id;
UPDATE o SET a = 1000 WHERE id IN (1, 450, 899, 2002); SELECT a, id FROM o WHERE a = 1000 ORDER BY a, id; SELECT count(*), sum(id) FROM o WHERE id >= 0; UPDATE o SET id = -id WHERE id IN (2, 451); SELECT id FROM o WHERE id < 5 ORDER BY id;
BEGIN; DELETE FROM o WHERE id > 600; SELECT count(*), max(id) FROM o WHERE id >= 0; SAVEPOINT s; DELETE FROM o WHERE id > 500; SELECT count(*), max(id) FROM o WHERE id >= 0; ROLLBACK TO s; SELECT count(*), max(id) FROM o WHERE id >= 0; ROLLBACK; SELECT count(*), max(id) FROM o WHERE id >= 0;
SELECT count(*), sum(id) FROM o WHERE id >= 0 AND a > 5; VACUUM o; SELECT count(*), sum(id) FROM o WHERE id >= 0; SELECT settle('o'); SELECT count(*), sum(id) FROM o WHERE id >= -1000; SELECT a, id FROM o WHERE a > 98 ORDER BY a, id;
-- A row that is changed by what reads it, and statements that change what they find by the index alone.
WITH gone AS (DELETE FROM o WHERE id IN (SELECT id FROM o WHERE a = 7) RETURNING id) SELECT count(*), sum(id) FROM gone; SELECT count(*) FROM o WHERE a = 7;
WITH found AS (SELECT id FROM o WHERE id BETWEEN 20 AND 30) UPDATE o SET p = 1 FROM found f WHERE f.id = o.id; SELECT count(*) FROM o WHERE p = 1; SELECT id FROM o WHERE id BETWEEN 20 AND 24 ORDER BY id FOR UPDATE;
-- Several snapshots, and one that sees no change.
BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*), sum(id) FROM o WHERE id >= 0; DELETE FROM o WHERE id = 50; SELECT count(*), sum(id) FROM o WHERE id >= 0; COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*), sum(id) FROM o WHERE id >= 0; SELECT id FROM o WHERE id BETWEEN 40 AND 60 ORDER BY id DESC; COMMIT;
SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_index_scan_size = 0; SET max_parallel_workers_per_gather = 2; SELECT count(*), sum(id) FROM o WHERE id >= 0; SELECT count(*), sum(a::bigint) FROM o WHERE a < 70;
DROP TABLE o;
-- Indexes that are built of rows in stripes: of no column, of whole rows, of columns that rows lack, of expressions and predicates on others.
RESET ALL; CREATE TABLE b (id int, gone int, t text, v int, j jsonb); INSERT INTO b SELECT i, -i, 'T' || i % 30, i % 50, jsonb_build_object('k', i % 9) FROM generate_series(1, 600) i; SELECT settle('b');
ALTER TABLE b DROP gone; ALTER TABLE b ADD late int DEFAULT 5, ADD later text; INSERT INTO b SELECT i, 't', i, '{}', i, 'x' FROM generate_series(1001, 1010) i;
CREATE FUNCTION whole(b) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN $1.id % 10 + coalesce($1.late, 0) + length($1.t); END $$;
CREATE UNIQUE INDEX b_true ON b ((true)); CREATE INDEX b_one ON b ((1)) WHERE true; CREATE INDEX b_none ON b ((id IS NULL)); CREATE INDEX b_whole ON b (whole(b)); CREATE INDEX b_rows ON b (id) WHERE b IS NOT NULL; CREATE INDEX b_late ON b (late);
CREATE INDEX b_some ON b (later, id) WHERE v > 10; CREATE INDEX b_lower ON b (lower(t), v) INCLUDE (id) WHERE late = 5; CREATE INDEX b_hash ON b USING hash (lower(t)); CREATE INDEX b_gin ON b USING gin (j); CREATE INDEX b_gist ON b USING gist (int4range(v, v + 5)); CREATE UNIQUE INDEX b_unique ON b (id, (v + 1)) WHERE id > 0;
SET enable_seqscan = off; SELECT count(*), sum(id) FROM b WHERE whole(b) = 12; SELECT count(*), sum(id) FROM b WHERE late = 5; SELECT count(*) FROM b WHERE late = 1003; SELECT count(*), sum(id) FROM b WHERE later IS NULL AND v > 10; SELECT v, id FROM b WHERE lower(t) = 't7' AND v < 20 AND late = 5 ORDER BY v, id;
SELECT count(*), sum(id) FROM b WHERE lower(t) = 't9'; SELECT count(*), sum(id) FROM b WHERE j @> '{"k": 4}'; SELECT count(*), sum(id) FROM b WHERE int4range(v, v + 5) @> 12; SELECT count(*) FROM b WHERE (id IS NULL); SELECT count(*), sum(id) FROM b WHERE id > 0 AND v + 1 = 7 AND id < 300; SELECT count(*) FROM b WHERE b IS NOT NULL AND id > 0;
REINDEX TABLE b; SELECT count(*), sum(id) FROM b WHERE whole(b) = 12; SELECT count(*), sum(id) FROM b WHERE lower(t) = 't9' AND late = 5; DROP TABLE b CASCADE;
