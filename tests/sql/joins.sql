-- Joins by hash, whose keys the scan on the other side may know: what has none of them it leaves out, and no other row.
SET timezone = 'UTC'; SET datestyle = 'ISO'; SET enable_mergejoin = off; SET enable_nestloop = off;
CREATE TABLE f (id int, d int, k int, big bigint, small smallint, n numeric(10,2), x float8, s text COLLATE "C", u text COLLATE "en-x-icu", v varchar(10), c char(5), day date, tz timestamptz, g uuid, b bool, o oid);
INSERT INTO f SELECT i, i / 20, i % 37, (i / 30) * 1000000007::bigint, i % 50, (i / 25) * 1.25, CASE i % 40 WHEN 0 THEN 'NaN' WHEN 1 THEN '-0' WHEN 2 THEN NULL ELSE i / 50 END::float8,
    CASE i % 9 WHEN 0 THEN NULL ELSE 's' || i / 30 END, 'u' || i / 30, 'v' || i % 30, 'c' || i % 20, date '2024-01-01' + i / 10, timestamptz '2024-01-01 00:00+00' + i / 15 * interval '1 hour',
    ('00000000-0000-0000-0000-' || lpad((i / 30)::text, 12, '0'))::uuid, i % 3 = 0, i / 30 FROM generate_series(1, 900) i;
SELECT settle('f');
INSERT INTO f (id, d, s) VALUES (2001, 3, 's3'), (2002, 500, 'none'), (2003, NULL, NULL);
DELETE FROM f WHERE id BETWEEN 70 AND 75; UPDATE f SET d = 44 WHERE id IN (100, 400);
CREATE TABLE dim (id int, d int, big bigint, small smallint, n numeric(10,2), m numeric, x float8, s text COLLATE "C", u text COLLATE "en-x-icu", w text, v varchar, c char(5), day date, ts timestamp, tz timestamptz, g uuid, o oid);
INSERT INTO dim SELECT i, i * 7, i * 2000000014, i * 3, i * 2.5, i * 1.25, CASE i WHEN 3 THEN 'NaN' WHEN 4 THEN 0 ELSE i END::float8, 's' || i * 4, 'u' || i * 4, 'v' || i, 'v' || i, 'c' || i, date '2024-01-10' + i, timestamp '2024-01-02' + i * interval '1 hour', timestamptz '2024-01-02 00:00+00' + i * interval '1 hour',
    ('00000000-0000-0000-0000-' || lpad((i * 5)::text, 12, '0'))::uuid, i * 2 FROM generate_series(0, 6) i;
INSERT INTO dim (id) VALUES (7); INSERT INTO dim (id, d, s) VALUES (8, 7, 's4');
ANALYZE f; ANALYZE dim;
CREATE FUNCTION q(what text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE r text;
BEGIN
    EXECUTE 'SELECT count(*) || '' '' || coalesce(sum(f.id), 0) FROM ' || what INTO r;
    RETURN what || ' -> ' || r;
EXCEPTION WHEN OTHERS THEN
    RETURN what || ' !! ' || SQLSTATE;
END $$;
-- every type of key, also of two types; every kind of join
SELECT q(format('f %s JOIN dim ON %s', kind, key)) FROM unnest(ARRAY['', 'LEFT', 'RIGHT', 'FULL']) WITH ORDINALITY a(kind, i),
    unnest(ARRAY['f.d = dim.d', 'dim.d = f.d', 'f.d = dim.big', 'f.big = dim.big', 'f.big = dim.d', 'f.d = dim.small', 'f.small = dim.d', 'f.n = dim.n', 'f.n = dim.m', 'f.n = dim.d', 'f.x = dim.x', 'f.x = dim.d', 'f.d = dim.x',
        'f.s = dim.s', 'f.u = dim.u', 'f.v = dim.v', 'f.v = dim.w', 'f.v::text = dim.w', 'f.c = dim.c', 'f.c = dim.v', 'f.day = dim.day', 'f.day = dim.ts', 'f.tz = dim.tz', 'f.tz = dim.ts', 'f.g = dim.g', 'f.o = dim.o', 'f.d = dim.o::int', 'f.o = dim.d::oid',
        'f.d = dim.d AND f.k = dim.id', 'f.d = dim.d AND f.s <> dim.s', 'f.d + 1 = dim.d', 'f.d = dim.d + 1', 'f.d = dim.d AND f.s = dim.s', 'f.b = (dim.id > 3)']) WITH ORDINALITY b(key, j) ORDER BY i, j;
SELECT q('f WHERE ' || c) FROM unnest(ARRAY['d IN (SELECT d FROM dim)', 'd NOT IN (SELECT d FROM dim WHERE d IS NOT NULL)', 'd NOT IN (SELECT d FROM dim)', 'EXISTS (SELECT 1 FROM dim WHERE dim.d = f.d)', 'NOT EXISTS (SELECT 1 FROM dim WHERE dim.d = f.d)',
    'd IN (SELECT d FROM dim WHERE id < 0)', 'd IN (SELECT d FROM dim WHERE id < 3) AND s LIKE ''s%''', 'd IN (SELECT d FROM dim) OR id = 5', '(d, k) IN (SELECT d, id FROM dim)', 's IN (SELECT s FROM dim) AND d IN (SELECT d FROM dim)',
    'EXISTS (SELECT 1 FROM dim WHERE dim.d = f.d AND dim.id < f.k)', 'd = ANY (SELECT d FROM dim UNION SELECT 13)', 'd IN (SELECT max(d) FROM dim GROUP BY id % 3)', 'id IN (SELECT id * 100 FROM dim LIMIT 3)', 'EXISTS (SELECT 1 FROM dim WHERE dim.d = f.d AND dim.n > f.n)']) WITH ORDINALITY u(c, k) ORDER BY k;
-- several joins above one scan, and joins of joins
SELECT q(w) FROM unnest(ARRAY['f JOIN dim a ON a.d = f.d JOIN dim b ON b.s = f.s', 'f LEFT JOIN dim a ON a.d = f.d JOIN dim b ON b.s = f.s', 'f JOIN dim a ON a.d = f.d LEFT JOIN dim b ON b.s = f.s AND b.id > 2', 'f JOIN dim a ON a.d = f.d RIGHT JOIN dim b ON b.s = f.s', 'f RIGHT JOIN dim a ON a.d = f.d JOIN dim b ON b.s = f.s',
    'f JOIN dim a ON a.d = f.d JOIN dim b ON b.id = a.id', 'f JOIN dim a ON a.d = f.d WHERE f.k IN (SELECT id FROM dim) AND NOT EXISTS (SELECT 1 FROM dim c WHERE c.s = f.s AND c.id > 4)', 'f JOIN f e ON e.d = f.d AND e.id = f.id + 1', 'f JOIN (SELECT d, count(*) FROM dim GROUP BY d) x ON x.d = f.d', 'f JOIN (SELECT DISTINCT d FROM f WHERE id < 60) x USING (d)',
    '(SELECT * FROM f ORDER BY id LIMIT 500) f JOIN dim ON dim.d = f.d', '(SELECT * FROM f UNION ALL SELECT * FROM f WHERE id > 300) f JOIN dim ON dim.d = f.d', '(SELECT d, max(id) AS id FROM f GROUP BY d) f JOIN dim ON dim.d = f.d', '(SELECT *, row_number() OVER (ORDER BY id) AS r FROM f) f JOIN dim ON dim.d = f.d AND f.r > 300',
    '(SELECT *, random() AS r FROM f) f JOIN dim ON dim.d = f.d AND f.r < 2', 'f FULL JOIN dim a ON a.d = f.d JOIN dim b ON b.s = f.s', 'f JOIN (VALUES (7), (14), (NULL)) w(d) ON w.d = f.d', 'f JOIN generate_series(1, 3) i ON i = f.d', 'f JOIN dim ON dim.d = f.d AND dim.d = 7']) WITH ORDINALITY u(w, k) ORDER BY k;
-- the other side changes with each loop, or is kept
SET enable_nestloop = on; SET enable_memoize = off;
SELECT i, x.* FROM generate_series(0, 6) i, LATERAL (SELECT count(*), sum(f.id) FROM f JOIN dim ON dim.d = f.d WHERE dim.id = i OR dim.id = i + 1) x ORDER BY i;
SELECT i, x.* FROM generate_series(0, 6) i, LATERAL (SELECT count(*), sum(f.id) FROM f JOIN dim ON dim.d = f.d WHERE f.k > i) x ORDER BY i;
SELECT i, (SELECT sum(f.id) FROM f WHERE f.d IN (SELECT d FROM dim WHERE id >= i) AND f.k <> i) FROM generate_series(0, 8, 2) i ORDER BY i;
PREPARE p(int) AS SELECT count(*), sum(f.id) FROM f JOIN dim ON dim.d = f.d WHERE dim.id > $1; EXECUTE p(0); EXECUTE p(5); EXECUTE p(100); EXECUTE p(-1);
RESET enable_nestloop;
-- many keys, tables in several parts
SET work_mem = '64kB';
CREATE TABLE many (d int, pad text); INSERT INTO many SELECT i, repeat('p', 100) FROM generate_series(1, 6000) i; ANALYZE many;
SELECT q('f JOIN many ON many.d = f.d'), q('f LEFT JOIN many ON many.d = f.d'), q('f WHERE d IN (SELECT d FROM many WHERE d % 2 = 0)'), q('many JOIN f ON f.id = many.d');
RESET work_mem; SELECT q('f JOIN many ON many.d = f.d'), q('many JOIN f ON f.d = many.d');
-- changes
BEGIN; UPDATE f SET n = f.n + dim.id FROM dim WHERE dim.d = f.d; SELECT count(*), sum(n) FROM f; DELETE FROM f USING dim WHERE dim.s = f.s AND f.d IN (SELECT d FROM dim); SELECT count(*), sum(id) FROM f; ROLLBACK;
BEGIN; SELECT count(*) FROM (SELECT f.id FROM f JOIN dim ON dim.d = f.d FOR UPDATE OF f) x;
MERGE INTO f USING (SELECT DISTINCT d FROM dim WHERE d IS NOT NULL) m ON f.d = m.d WHEN MATCHED AND f.k > 20 THEN DELETE WHEN MATCHED THEN UPDATE SET k = 99 WHEN NOT MATCHED THEN INSERT (id, d) VALUES (9000, m.d); SELECT count(*), sum(id), sum(k) FROM f; COMMIT;
-- cursors go both ways over what is read again
BEGIN; DECLARE c SCROLL CURSOR FOR SELECT f.id FROM f JOIN dim ON dim.d = f.d AND dim.id = 2 ORDER BY f.id; FETCH 3 FROM c; FETCH BACKWARD 2 FROM c; FETCH LAST FROM c; FETCH ABSOLUTE 1 FROM c; COMMIT;
-- what joins below do, they do
CREATE SEQUENCE asked; CREATE TABLE few AS SELECT i AS k FROM generate_series(0, 36) i; CREATE TABLE one AS SELECT -1 AS d; ANALYZE few; ANALYZE one; SET join_collapse_limit = 1; SET from_collapse_limit = 1;
SELECT count(*) FROM (f JOIN (SELECT k, nextval('asked') n FROM few) x USING (k)) JOIN one USING (d); SELECT last_value, is_called FROM asked; RESET join_collapse_limit; RESET from_collapse_limit;
-- partitions, and columns that stripes do not have
CREATE TABLE p (id int, d int) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (MINVALUE) TO (300); CREATE TABLE p2 (d int, gone text, id int); ALTER TABLE p2 DROP gone; ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (300) TO (600); CREATE TABLE p3 PARTITION OF p DEFAULT;
INSERT INTO p SELECT i, i / 20 FROM generate_series(1, 900) i; SELECT settle('p1'), settle('p2');
SELECT count(*), sum(p.id) FROM p JOIN dim ON dim.d = p.d; SELECT count(*), sum(id) FROM p WHERE d IN (SELECT d FROM dim WHERE id IN (1, 3)); SELECT count(*), sum(p.id) FROM p LEFT JOIN dim ON dim.d = p.d;
ALTER TABLE f ADD COLUMN late int DEFAULT 14; INSERT INTO f (id, late) SELECT i, i % 30 FROM generate_series(5001, 5100) i; SELECT settle('f');
SELECT q('f JOIN dim ON dim.d = f.late'), q('f LEFT JOIN dim ON dim.d = f.late'), q('f WHERE late IN (SELECT d FROM dim WHERE d > 20)');
ALTER TABLE f ALTER d TYPE bigint; SELECT q('f JOIN dim ON dim.d = f.d'); ALTER TABLE f ALTER v TYPE text; SELECT q('f JOIN dim ON dim.v = f.v');
-- Joins that only a nested loop can make: the scan starts again with each outer row, and skips what that excludes.
SET enable_nestloop = on; SET enable_material = off;
CREATE TABLE e (at int, k int, s text COLLATE "C"); INSERT INTO e SELECT i, i % 10, 's' || lpad(i::text, 5, '0') FROM generate_series(1, 3000) i; SELECT settle('e');
INSERT INTO e VALUES (50, 99, 's00050'), (5000, 99, 's05000'), (NULL, 99, NULL); DELETE FROM e WHERE at BETWEEN 500 AND 505; UPDATE e SET at = 42 WHERE at = 2000;
CREATE TABLE span (id int, low int, high int, s text COLLATE "C"); INSERT INTO span VALUES (1, 40, 60, 's0004'), (2, 495, 510, 's0050'), (3, 2999, 9999, 's03'), (4, NULL, 5, NULL), (5, 60, 40, ''), (6, 1, 1, 's0000%'), (7, 1990, 2010, 's02');
ANALYZE e; ANALYZE span;
SELECT span.id, count(e.at), sum(e.at), sum(k) FROM span JOIN e ON e.at >= span.low AND e.at < span.high GROUP BY span.id ORDER BY span.id;
SELECT span.id, count(e.at), sum(e.at), sum(k) FROM span LEFT JOIN e ON e.at BETWEEN span.low AND span.high AND e.k <> 3 GROUP BY span.id ORDER BY span.id;
SELECT id FROM span WHERE EXISTS (SELECT 1 FROM e WHERE e.at > span.low AND e.at < span.high AND e.k = 9) ORDER BY id;
SELECT id FROM span WHERE NOT EXISTS (SELECT 1 FROM e WHERE e.at > span.low AND e.at < span.high) ORDER BY id;
SELECT span.id, count(*), min(e.at), max(e.at) FROM span JOIN e ON e.at < span.low OR e.at > span.high GROUP BY span.id ORDER BY span.id;
SELECT span.id, count(*), min(e.at), max(e.at) FROM span JOIN e ON e.s ^@ span.s GROUP BY span.id ORDER BY span.id; SELECT span.id, count(*) FROM span JOIN e ON e.s LIKE span.s || '%' GROUP BY span.id ORDER BY span.id;
SELECT a.id, b.id, count(*) FROM span a JOIN span b ON a.id < b.id JOIN e ON e.at > a.low AND e.at <= b.high GROUP BY 1, 2 ORDER BY 1, 2;
SELECT a.id, count(*) FROM span a LEFT JOIN span b ON b.id = a.id + 1 LEFT JOIN e ON e.at > coalesce(b.low, a.low) AND e.at < a.high GROUP BY 1 ORDER BY 1;
SELECT id, (SELECT count(*) FROM span x JOIN e ON e.at >= x.low AND e.at <= x.high WHERE x.id >= span.id) FROM span ORDER BY id;
BEGIN; UPDATE e SET k = span.id FROM span WHERE e.at >= span.low AND e.at < span.high AND span.id <> 4; SELECT k, count(*) FROM e GROUP BY k ORDER BY k; DELETE FROM e USING span WHERE e.at > span.low AND e.at < span.high; SELECT count(*) FROM e; ROLLBACK;
SELECT count(*) FROM (SELECT e.at FROM span JOIN e ON e.at >= span.low AND e.at < span.high FOR UPDATE OF e) x;
CREATE TABLE ep (at int, k int) PARTITION BY RANGE (at); CREATE TABLE ep1 PARTITION OF ep FOR VALUES FROM (MINVALUE) TO (1500); CREATE TABLE ep2 (k int, at int); ALTER TABLE ep ATTACH PARTITION ep2 FOR VALUES FROM (1500) TO (MAXVALUE);
INSERT INTO ep SELECT i, i % 10 FROM generate_series(1, 3000) i; SELECT settle('ep1'), settle('ep2'); ANALYZE ep;
SELECT span.id, count(ep.at), sum(ep.at) FROM span LEFT JOIN ep ON ep.at >= span.low AND ep.at < span.high GROUP BY span.id ORDER BY span.id;

-- A subplan that the scan's conditions have twice is shut down twice, as is one below LIMIT: what its processes shared is gone by then.
CREATE TABLE twice (id int, k int);
INSERT INTO twice SELECT g, g % 40 FROM generate_series(1, 900) g;
ANALYZE twice;
BEGIN;
SET LOCAL min_parallel_table_scan_size = 0;
SET LOCAL parallel_setup_cost = 0;
SET LOCAL parallel_tuple_cost = 0;
SET LOCAL max_parallel_workers_per_gather = 2;
SELECT count(*) FROM twice x WHERE x.id NOT IN (SELECT y.k FROM twice y);
SELECT count(*) FROM (SELECT id FROM twice WHERE k > 3 LIMIT 5) x;
COMMIT;
-- What runs for each row of a loop runs for all of them, though a join above drops some.
CREATE SEQUENCE calls;
CREATE TABLE few (k int);
INSERT INTO few VALUES (7), (8);
ANALYZE few;
BEGIN;
SET LOCAL enable_mergejoin = off;
SELECT count(*), max(k) FROM (SELECT t.k, l.n FROM twice t CROSS JOIN LATERAL (SELECT nextval('calls') n, t.k OFFSET 0) l JOIN few USING (k) OFFSET 0) x;
SELECT last_value > 0 FROM calls;
COMMIT;
DROP TABLE twice, few;
DROP SEQUENCE calls;
-- Tables that several processes build together: each of them takes the keys.
CREATE TABLE big (id int, k int, s text COLLATE "C", n numeric(10,2), day date);
INSERT INTO big SELECT i, i * 7919 % 5003, 's' || i * 31 % 997, i % 700 / 4.0, date '2024-01-01' + i / 100 FROM generate_series(1, 30000) i;
SELECT settle('big'); INSERT INTO big VALUES (50001, 14, 's14', 2.5, NULL), (50002, NULL, NULL, NULL, '2024-01-15'); DELETE FROM big WHERE id BETWEEN 700 AND 800; UPDATE big SET k = 14 WHERE id = 900;
CREATE TABLE key (k int, s text COLLATE "C", n numeric(10,2), day date, what int);
INSERT INTO key SELECT i, 's' || i, i / 4.0, date '2024-01-01' + i, i % 100 FROM generate_series(1, 3000) i; SELECT settle('key'); ANALYZE big; ANALYZE key;
BEGIN; SET LOCAL min_parallel_table_scan_size = 0; SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0; SET LOCAL max_parallel_workers_per_gather = 2; SET LOCAL enable_nestloop = off; SET LOCAL enable_mergejoin = off;
SELECT x.id, count(*), sum(big.id) FROM (VALUES (1), (2)) x(id), big JOIN key USING (k) WHERE what < 3 * x.id GROUP BY x.id ORDER BY x.id;
SELECT count(*), sum(big.id) FROM big JOIN key USING (k) WHERE what = 14; SELECT count(*), sum(big.id) FROM big JOIN key USING (s) WHERE what < 2; SELECT count(*), sum(big.id) FROM big JOIN key USING (n) WHERE what = 5;
SELECT count(*), sum(big.id), min(big.day) FROM big JOIN key USING (day) WHERE what = 3; SELECT count(*), sum(big.id) FROM big JOIN key USING (k) WHERE what < 0; SELECT count(*), sum(big.id) FROM big JOIN key USING (k);
SELECT count(*), sum(big.id) FROM big JOIN key a USING (k) JOIN key b ON b.s = big.s AND b.what < 50 WHERE a.what < 20; SELECT count(*), sum(id) FROM big WHERE k IN (SELECT k FROM key WHERE what = 7) AND s IN (SELECT s FROM key WHERE what < 60);
SELECT count(*), sum(big.id), count(key.k) FROM big LEFT JOIN key ON key.k = big.k AND key.what = 1; SELECT count(*), sum(big.id) FROM big WHERE NOT EXISTS (SELECT 1 FROM key WHERE key.k = big.k AND what < 90);
SELECT count(*) FROM (SELECT big.id FROM big JOIN key USING (k) WHERE what < 10 LIMIT 7) x; SELECT (SELECT count(*) FROM big JOIN key USING (k) WHERE what = i) FROM generate_series(1, 3) i;
SELECT i, x.* FROM generate_series(1, 3) i, LATERAL (SELECT count(*), sum(big.id) FROM big JOIN key USING (k) WHERE key.what = i OFFSET 0) x ORDER BY i;
SET LOCAL work_mem = '64kB'; SELECT count(*), sum(big.id) FROM big JOIN key USING (k) WHERE what < 80; SET LOCAL work_mem = '4MB'; SET LOCAL parallel_leader_participation = off; SELECT count(*), sum(big.id) FROM big JOIN key USING (k) WHERE what = 14;
SET LOCAL max_parallel_workers = 0; SELECT count(*), sum(big.id) FROM big JOIN key USING (k) WHERE what = 14; COMMIT; DROP TABLE big, key;
