-- TRUNCATE, transactional and in place: what it leaves, by scans, by indexes, for new rows with the old keys.
SET enable_seqscan = off; SET enable_bitmapscan = off;
CREATE FUNCTION look(t regclass) RETURNS TABLE (n bigint, s bigint, by_key bigint, of_old bigint) LANGUAGE plpgsql AS $$
DECLARE sql text := format('SELECT (SELECT count(*) FROM %1$s), (SELECT sum(id)::bigint FROM %1$s), (SELECT count(*) FROM %1$s WHERE id > 0), (SELECT count(*) FROM %1$s WHERE v = ''old'')', t);
BEGIN RETURN QUERY EXECUTE sql; END$$;
CREATE PROCEDURE load(t regclass, a int, b int, v text) LANGUAGE plpgsql AS $$
BEGIN EXECUTE format('INSERT INTO %s SELECT i, %L FROM generate_series(%s, %s) i', t, v, a, b); END$$;
-- made in the same transaction
BEGIN; CREATE TABLE a (id int PRIMARY KEY, v text); CREATE INDEX a_v ON a (left(v, 20)); CALL load('a', 1, 150, 'old'); TRUNCATE a; CALL load('a', 501, 520, 'new'); COMMIT;
SELECT * FROM look('a'); SELECT * FROM a WHERE id = 1; SELECT * FROM a WHERE id = 501;
INSERT INTO a VALUES (1, 'x'); INSERT INTO a VALUES (501, 'y'); INSERT INTO a VALUES (501, 'y') ON CONFLICT DO NOTHING;
SELECT settle('a'); SELECT * FROM look('a');
-- truncated twice, moved in between
BEGIN; TRUNCATE a; CALL load('a', 1, 300, 'old'); SELECT settle('a'); UPDATE a SET v = 'changed' WHERE id < 10; DELETE FROM a WHERE id BETWEEN 20 AND 30; TRUNCATE a;
CALL load('a', 1000, 1100, 'new'); TRUNCATE a; CALL load('a', 5, 60, 'last'); SELECT * FROM look('a'); COMMIT;
SELECT * FROM look('a'); SELECT * FROM a WHERE id = 20; SELECT id, v FROM a WHERE id IN (4, 5, 60, 61) ORDER BY id;
INSERT INTO a VALUES (20, 'taken'); INSERT INTO a VALUES (61, 'free'), (290, 'free'), (1000, 'free');
-- rolled back, in one way and another
BEGIN; TRUNCATE a; CALL load('a', 1, 99, 'old'); TRUNCATE a; CALL load('a', 1, 9, 'gone'); ROLLBACK;
SELECT * FROM look('a');
BEGIN; SAVEPOINT s; TRUNCATE a; CALL load('a', 1, 99, 'old'); TRUNCATE a; CALL load('a', 200, 240, 'gone'); ROLLBACK TO s; SELECT * FROM look('a');
CALL load('a', 2000, 2050, 'after'); TRUNCATE a; SAVEPOINT r; CALL load('a', 1, 99, 'old'); TRUNCATE a; CALL load('a', 300, 340, 'kept'); RELEASE r;
SAVEPOINT q; TRUNCATE a; CALL load('a', 1, 9, 'gone'); ROLLBACK TO q; SELECT * FROM look('a'); COMMIT;
SELECT * FROM look('a'); SELECT id FROM a WHERE id IN (1, 99, 300, 340, 2000) ORDER BY id;
BEGIN; TRUNCATE a; DO $$BEGIN BEGIN CALL load('a', 1, 30, 'old'); TRUNCATE a; CALL load('a', 31, 60, 'old'); RAISE EXCEPTION 'stop'; EXCEPTION WHEN raise_exception THEN CALL load('a', 61, 90, 'new'); TRUNCATE a; CALL load('a', 1, 20, 'new'); END; END$$; COMMIT;
SELECT * FROM look('a'); INSERT INTO a VALUES (31, 'free'), (61, 'free');
-- a table that has got new files for other reasons
BEGIN; CLUSTER a USING a_pkey; CALL load('a', 100, 180, 'old'); TRUNCATE a; CALL load('a', 1, 30, 'new'); COMMIT;
SELECT * FROM look('a');
BEGIN; ALTER TABLE a ALTER id TYPE bigint; CALL load('a', 100, 180, 'old'); TRUNCATE a; CALL load('a', 1, 30, 'new'); SELECT * FROM look('a'); COMMIT;
SELECT * FROM look('a'); INSERT INTO a VALUES (100, 'free');
BEGIN; ALTER TABLE a SET UNLOGGED; TRUNCATE a; CALL load('a', 1, 40, 'new'); TRUNCATE a; CALL load('a', 41, 80, 'new'); COMMIT;
SELECT * FROM look('a');
BEGIN; REINDEX TABLE a; CALL load('a', 100, 180, 'old'); TRUNCATE a; CALL load('a', 1, 25, 'new'); COMMIT;
SELECT * FROM look('a'); INSERT INTO a VALUES (100, 'free');
-- wide values, which share the TOAST relation
BEGIN; TRUNCATE a; INSERT INTO a SELECT i, string_agg(md5((i * j)::text), '') FROM generate_series(1, 4) i, generate_series(1, 200) j GROUP BY i; CALL load('a', 10, 60, 'old'); TRUNCATE a;
INSERT INTO a SELECT i, string_agg(md5((i * j)::text), '') FROM generate_series(1, 4) i, generate_series(1, 200) j GROUP BY i; CALL load('a', 10, 30, 'new'); COMMIT;
SELECT count(*), sum(id), max(length(v)) FROM a;
-- row locks and what was prepared
PREPARE p AS SELECT id, v FROM a WHERE id = $1; EXECUTE p(11);
BEGIN; TRUNCATE a; CALL load('a', 1, 30, 'old'); EXECUTE p(11); SELECT id FROM a WHERE id < 3 FOR UPDATE; TRUNCATE a; EXECUTE p(11); CALL load('a', 11, 12, 'few'); EXECUTE p(11); CALL load('a', 13, 50, 'many'); EXECUTE p(20); COMMIT;
EXECUTE p(11); EXECUTE p(1); SELECT * FROM look('a');
-- temporary tables
CREATE TEMP TABLE tmp (id int PRIMARY KEY, v text) ON COMMIT DELETE ROWS;
BEGIN; CALL load('tmp', 1, 150, 'old'); SELECT * FROM look('tmp'); COMMIT;
SELECT * FROM look('tmp');
BEGIN; CALL load('tmp', 501, 520, 'new'); SELECT * FROM look('tmp'); SELECT * FROM tmp WHERE id = 1; SELECT * FROM tmp WHERE id = 501; INSERT INTO tmp VALUES (1, 'free'); COMMIT;
BEGIN; CALL load('tmp', 1, 20, 'new'); SELECT settle('tmp'); UPDATE tmp SET v = 'c' WHERE id = 3; SELECT * FROM look('tmp'); COMMIT;
BEGIN; CALL load('tmp', 1, 20, 'new'); SAVEPOINT s; CALL load('tmp', 21, 60, 'new'); ROLLBACK TO s; CALL load('tmp', 30, 44, 'new'); SELECT * FROM look('tmp'); ROLLBACK;
BEGIN; CALL load('tmp', 1, 20, 'new'); TRUNCATE tmp; CALL load('tmp', 4, 30, 'new'); SELECT * FROM look('tmp'); COMMIT;
SELECT * FROM look('tmp');
CREATE TEMP TABLE holds (id int PRIMARY KEY, v text);
BEGIN; CALL load('holds', 1, 50, 'old'); DECLARE c CURSOR WITH HOLD FOR SELECT id FROM holds WHERE id > 45; COMMIT; TRUNCATE holds; CALL load('holds', 100, 120, 'new'); FETCH ALL FROM c; CLOSE c; SELECT * FROM look('holds');
-- COPY FREEZE
BEGIN; CREATE TABLE f (id int PRIMARY KEY, v text); CALL load('f', 1, 60, 'old'); TRUNCATE f;
COPY f FROM stdin WITH (FREEZE);
1	new
2	new
3	new
4	new
5	new
6	new
7	new
8	new
\.
TRUNCATE f;
COPY f FROM stdin WITH (FREEZE);
3	last
4	last
5	last
6	last
7	last
8	last
9	last
\.
COMMIT;
SELECT * FROM look('f'); SELECT * FROM f WHERE id IN (1, 3, 9, 50) ORDER BY id; INSERT INTO f VALUES (1, 'free');
-- partitions, several tables, cascades, identity
BEGIN; CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (1) TO (100); CREATE TABLE parted_2 PARTITION OF parted DEFAULT;
CALL load('parted', 1, 200, 'old'); TRUNCATE parted; CALL load('parted', 50, 149, 'new'); TRUNCATE parted_2; CALL load('parted', 190, 210, 'new'); COMMIT;
SELECT * FROM look('parted'); SELECT id FROM parted WHERE id IN (1, 50, 100, 190, 200) ORDER BY id; INSERT INTO parted VALUES (1, 'free'), (100, 'free');
BEGIN; CREATE TABLE boss (id int PRIMARY KEY, v text); CREATE TABLE staff (id int PRIMARY KEY REFERENCES boss, v text); CALL load('boss', 1, 40, 'old'); CALL load('staff', 1, 30, 'old');
TRUNCATE boss CASCADE; CALL load('boss', 20, 60, 'new'); CALL load('staff', 35, 50, 'new'); COMMIT;
SELECT * FROM look('boss'); SELECT * FROM look('staff'); INSERT INTO staff VALUES (1, 'no boss'); INSERT INTO staff VALUES (20, 'ok'); DELETE FROM boss WHERE id = 20; DELETE FROM boss WHERE id = 21;
BEGIN; CREATE TABLE serials (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text); INSERT INTO serials (v) SELECT 'old' FROM generate_series(1, 30); TRUNCATE serials RESTART IDENTITY; INSERT INTO serials (v) SELECT 'new' FROM generate_series(1, 12); COMMIT;
SELECT * FROM look('serials');
-- by a trigger, in a function, by a materialized view's new contents
CREATE FUNCTION empty() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN TRUNCATE a; CALL load('a', 1, 30, 'old'); TRUNCATE a; CALL load('a', 7, 30, 'new'); RETURN NULL; END$$;
CREATE TRIGGER t AFTER INSERT ON f FOR EACH STATEMENT EXECUTE FUNCTION empty();
INSERT INTO f SELECT i, 'f' FROM generate_series(100, 120) i; SELECT * FROM look('a'); SELECT * FROM look('f');
INSERT INTO f SELECT i, 'f' FROM generate_series(200, 220) i; SELECT * FROM look('a'); INSERT INTO a VALUES (1, 'free');
CREATE MATERIALIZED VIEW mv AS SELECT id, v FROM f; CREATE UNIQUE INDEX ON mv (id);
BEGIN; REFRESH MATERIALIZED VIEW mv; DELETE FROM f WHERE id < 110; REFRESH MATERIALIZED VIEW mv; REFRESH MATERIALIZED VIEW CONCURRENTLY mv; SELECT * FROM look('mv'); COMMIT;
SELECT * FROM look('mv'); SELECT id FROM mv WHERE id IN (3, 110, 220) ORDER BY id;
