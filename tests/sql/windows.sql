-- SELECT DISTINCT over windows: firn plans some of these as GROUP BY and must leave the others alone.
CREATE TABLE t (id int, k int, l text, v numeric, f float8, b bool);
INSERT INTO t SELECT x, nullif(x % 7, 3), nullif(chr(65 + x % 4), 'C'), nullif(x * 1.5 % 13, 4.5), x / 8.0, x % 3 = 0 FROM generate_series(1, 300) x;
SELECT settle('t');
DELETE FROM t WHERE id % 29 = 0;
SELECT DISTINCT k, max(v) OVER (PARTITION BY k) FROM t ORDER BY 1, 2;
SELECT DISTINCT max(v) OVER (PARTITION BY k), k FROM t ORDER BY 1 DESC NULLS LAST, 2 LIMIT 3;
SELECT DISTINCT max(v) OVER (PARTITION BY k) FROM t ORDER BY 1;
SELECT DISTINCT k, l, count(*) OVER w, sum(v) OVER w, avg(id) OVER w, count(v) OVER w, bool_or(b) OVER w FROM t WINDOW w AS (PARTITION BY k, l) ORDER BY 1, 2;
SELECT DISTINCT k + 1 AS k1, lower(l) AS low, max(v) OVER (PARTITION BY k, l) + k AS m FROM t ORDER BY 1, 2, 3;
SELECT DISTINCT k % 2 AS p, count(*) OVER (PARTITION BY k % 2) FROM t ORDER BY 1;
SELECT DISTINCT k, max(v) FILTER (WHERE b) OVER (PARTITION BY k) FROM t ORDER BY 1;
SELECT DISTINCT k, max(v) OVER (PARTITION BY k), 'constant' AS c, NULL::int AS n FROM t WHERE id < 50 ORDER BY 1;
SELECT DISTINCT l, percentile FROM (SELECT DISTINCT l, max(f) OVER (PARTITION BY l) AS percentile FROM t) s ORDER BY 1;
WITH c AS MATERIALIZED (SELECT DISTINCT l, min(id) OVER (PARTITION BY l) AS least FROM t) SELECT * FROM c WHERE least > 1 ORDER BY 1;
CREATE VIEW w AS SELECT DISTINCT k, sum(id) OVER (PARTITION BY k) AS s FROM t;
SELECT * FROM w WHERE k = 2;
SELECT sum(s), count(*) FROM w;
SELECT DISTINCT a.k, count(b.id) OVER (PARTITION BY a.k) FROM t a LEFT JOIN t b ON b.id = a.k ORDER BY 1;
-- No partition, no rows.
SELECT DISTINCT max(v) OVER () FROM t;
SELECT DISTINCT max(v) OVER () FROM t WHERE id < 0;
SELECT DISTINCT k, max(v) OVER (PARTITION BY k) FROM t WHERE id < 0;
-- These are something else: frames, orders, other functions, several windows, other columns.
SELECT DISTINCT k, sum(id) OVER (PARTITION BY k ORDER BY id) % 5 AS s FROM t ORDER BY 1, 2;
SELECT DISTINCT k, sum(id) OVER (PARTITION BY k ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) > 500 AS s FROM t WHERE id < 30 ORDER BY 1, 2;
SELECT DISTINCT k, row_number() OVER (PARTITION BY k) <= 2 AS r FROM t ORDER BY 1, 2;
SELECT DISTINCT k, count(*) OVER (PARTITION BY k), count(*) OVER (PARTITION BY l) FROM t ORDER BY 1, 2, 3;
SELECT DISTINCT k, l, count(*) OVER (PARTITION BY k) FROM t ORDER BY 1, 2, 3;
SELECT DISTINCT b, max(v) OVER (PARTITION BY k) FROM t ORDER BY 1, 2;
SELECT DISTINCT ON (k) k, max(v) OVER (PARTITION BY k) FROM t ORDER BY 1;
SELECT DISTINCT k, sum(count(*)) OVER (PARTITION BY k) FROM t GROUP BY k, l ORDER BY 1;
SELECT DISTINCT k, count(*) OVER (PARTITION BY k), generate_series(1, 2) FROM t ORDER BY 1, 3;
SELECT DISTINCT k, (SELECT max(x.id) FROM t x WHERE x.k = t.k), count(*) OVER (PARTITION BY k) FROM t ORDER BY 1;
SELECT o, (SELECT DISTINCT max(o) OVER (PARTITION BY k) FROM t WHERE k = 1) FROM (VALUES (1), (2)) s(o);
SELECT o, (SELECT count(*) FROM (SELECT DISTINCT k, o, max(v) OVER (PARTITION BY k, o) FROM t) q) FROM (VALUES (1), (2)) s(o);
-- Equal but distinguishable keys are one partition.
CREATE TABLE n (k numeric, v int);
INSERT INTO n SELECT CASE WHEN x % 2 = 0 THEN 1.0 ELSE 1.00 END, x FROM generate_series(1, 40) x;
SELECT count(*), min(m), max(m) FROM (SELECT DISTINCT k, max(v) OVER (PARTITION BY k) AS m FROM n) s;
-- Prepared, in a function, in a cursor.
PREPARE p(int) AS SELECT DISTINCT k, count(*) OVER (PARTITION BY k) FROM t WHERE id > $1 ORDER BY 1;
EXECUTE p(100); EXECUTE p(280);
BEGIN;
DECLARE c CURSOR FOR SELECT DISTINCT k, count(*) OVER (PARTITION BY k) FROM t ORDER BY 1;
FETCH 2 FROM c; FETCH ALL FROM c;
COMMIT;
-- Partitions, some of which are heap tables.
CREATE TABLE p (k int, v int) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10) USING heap;
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
INSERT INTO p SELECT x % 20, x FROM generate_series(1, 200) x;
SELECT DISTINCT k % 3 AS m, max(v) OVER (PARTITION BY k % 3) FROM p ORDER BY 1;
