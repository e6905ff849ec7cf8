-- Rows by index: the columns that a query needs and no others, under the snapshot that it has, whatever happens beside it.
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
CREATE TABLE wide (id int PRIMARY KEY, a int, b numeric(8,2), c text, d date, e text, f int[], g jsonb, h int DEFAULT 7, CHECK (a < 10000));
CREATE INDEX ON wide (a); CREATE INDEX ON wide (d, a); CREATE INDEX ON wide (lower(c)); CREATE UNIQUE INDEX ON wide (e);
INSERT INTO wide SELECT i, i * 37 % 100, i / 8.0, 'c' || i % 50, date '2024-01-01' + i % 90, CASE WHEN i % 9 > 0 THEN repeat('e', i % 70) || i END,
  ARRAY[i, NULL, -i], jsonb_build_object('k', i, 'n', NULL) FROM generate_series(1, 700) i;
SELECT settle('wide');
ALTER TABLE wide ADD later text DEFAULT 'later', ADD COLUMN last int; ALTER TABLE wide DROP h;
INSERT INTO wide (id, a, later) VALUES (1001, 3, NULL), (1002, 4, 'row store');
-- Whole rows, parts of them, none of them, system columns.
SELECT * FROM wide WHERE id IN (1, 9, 350, 700, 701, 1001) ORDER BY id;
SELECT w FROM wide w WHERE id = 18; SELECT w.*::text FROM wide w WHERE id = 19; SELECT count(w), count(*) FROM wide w WHERE id < 25;
SELECT row_to_json(w) FROM wide w WHERE id = 20; SELECT (w).c, w IS NULL, w.b FROM wide w WHERE id = 21;
SELECT tableoid::regclass, c FROM wide WHERE id = 22; SELECT tableoid::regclass, w FROM wide w WHERE id = 23;
SELECT 1 FROM wide WHERE id = 24; SELECT id FROM wide WHERE id BETWEEN 30 AND 34 ORDER BY id; SELECT a FROM wide WHERE d = '2024-01-09' ORDER BY a;
SELECT lower(c), id FROM wide WHERE lower(c) = 'c7' AND b > 20 ORDER BY id; SELECT c FROM wide WHERE a = 4 AND g ->> 'k' > '4' ORDER BY id;
SELECT e, f[3] FROM wide WHERE e > 'eee' AND e < 'eeeee' ORDER BY e; SELECT DISTINCT ON (d) d, a, later FROM wide WHERE d < '2024-01-04' ORDER BY d, a;
-- A row in the slot as values, and what needs a tuple of it.
SELECT xmax, xmin::text <> '0' AS inserted, cmin, id FROM wide WHERE id = 26; SELECT ctid IS NOT NULL, tableoid::regclass, c FROM wide WHERE a = 5 ORDER BY id LIMIT 3;
SELECT v.id, w.xmax, w.c FROM generate_series(27, 29) v(id) JOIN wide w ON w.id = v.id; SELECT w, w.xmax, w.tableoid::regclass FROM wide w WHERE id = 30;
SELECT lag(w) OVER (ORDER BY id) IS NULL, id, e FROM wide w WHERE id BETWEEN 31 AND 33; SELECT array_agg(w.c ORDER BY w.id), max(w::text) FROM wide w WHERE a = 7 AND id < 300;
-- Conditions that are checked again on the rows of a bitmap, as the index finds too many, and such as are not.
SET enable_indexscan = off; SET enable_bitmapscan = on;
CREATE TABLE many (id int, a int, b text, g jsonb); CREATE INDEX ON many (a); CREATE INDEX ON many USING gin (g);
INSERT INTO many SELECT i, i * 7 % 100, 'b' || i, jsonb_build_object('k', i % 5, 'n', i % 7) FROM generate_series(1, 700) i; SELECT settle('many');
SELECT count(*), sum(id) FROM many WHERE g @> '{"k": 1, "n": 2}'; SELECT id, g FROM many WHERE g @> '{"k": 2, "n": 1}' AND a < 50 ORDER BY id;
SELECT count(*), sum(id), max(b) FROM many WHERE a BETWEEN 10 AND 40; SELECT count(*) FROM many WHERE a = 7; SELECT min(b) FROM many WHERE a BETWEEN 10 AND 40 AND a % 2 = 0;
SELECT count(*), min(b) FROM many WHERE a BETWEEN 10 AND 40 AND g @> '{"k": 1, "n": 2}'; SELECT ctid IS NULL, xmax, id FROM many WHERE a = 7 ORDER BY id LIMIT 2;
DROP TABLE many; RESET enable_indexscan; SET enable_bitmapscan = off;
-- The inner side of loops: the planner may give all columns of a heap row for nothing.
SELECT sum(w.b) FROM generate_series(1, 700, 3) i JOIN wide w ON w.id = i * 11 % 700;
SELECT i, w.c, v.later FROM generate_series(1, 6) i LEFT JOIN wide w ON w.id = i * 100 LEFT JOIN wide v ON v.id = w.a ORDER BY i;
SELECT i, (SELECT string_agg(w.e, ',' ORDER BY id) FROM wide w WHERE w.a = i AND w.id < 200) FROM generate_series(1, 5) i ORDER BY i;
SELECT count(*), sum(w.a) FROM wide w WHERE EXISTS (SELECT FROM wide v WHERE v.id = w.id + 1 AND v.b IS NOT NULL);
SELECT w.id, x.n FROM wide w, LATERAL (SELECT count(*) n, max(v.c) FROM wide v WHERE v.a = w.a AND v.id < w.id) x WHERE w.id IN (5, 500, 605) ORDER BY w.id;
SELECT count(*), count(w), min(v.g ->> 'k') FROM wide w JOIN wide v ON v.a = w.a AND w.id = 77;
SET enable_mergejoin = on; SET enable_nestloop = off;
SELECT count(*), sum(v.b), max(w.c) FROM wide w JOIN wide v ON w.a = v.a WHERE w.a < 9 AND v.a < 9;
RESET enable_mergejoin; RESET enable_nestloop; SET enable_bitmapscan = on; SET enable_indexscan = off;
SELECT sum(b), max(c) FROM wide WHERE a IN (3, 4, 5) OR d = '2024-02-02'; SELECT w FROM wide w WHERE id = 40;
UPDATE wide SET last = 1 WHERE a = 6 RETURNING id, b, c, last, later; DELETE FROM wide WHERE d = '2024-03-01' AND a < 30 RETURNING *;
RESET enable_indexscan; SET enable_bitmapscan = off;
-- Changes by key, whose scan needs few columns and whose rows all.
UPDATE wide SET last = a + 1 WHERE id = 50 RETURNING *; UPDATE wide SET c = c || '!' WHERE a = 51 AND id < 400 RETURNING *;
UPDATE wide w SET last = v.a, later = v.c FROM wide v WHERE w.id BETWEEN 60 AND 63 AND v.id = w.id + 1 RETURNING w.*, v.e;
DELETE FROM wide w USING wide v WHERE v.id = w.id - 1 AND w.id IN (70, 71, 72) RETURNING w.*, v.c; DELETE FROM wide WHERE id = 73 RETURNING b;
INSERT INTO wide (id, a, c) SELECT i, i, 'new' FROM generate_series(79, 82) i ON CONFLICT (id) DO UPDATE SET last = excluded.a + wide.a WHERE wide.b > 9.9 RETURNING *;
INSERT INTO wide (id, a) SELECT i, 1 FROM generate_series(84, 86) i ON CONFLICT DO NOTHING RETURNING *;
SELECT * FROM wide WHERE id IN (90, 91) ORDER BY id FOR UPDATE; SELECT c FROM wide WHERE a = 60 ORDER BY id LIMIT 2 FOR NO KEY UPDATE; SELECT w FROM wide w WHERE id = 92 FOR SHARE;
MERGE INTO wide w USING (SELECT generate_series(95, 97) AS k) s ON w.id = s.k WHEN MATCHED AND s.k < 96 THEN DELETE WHEN MATCHED THEN UPDATE SET c = w.c || w.e WHEN NOT MATCHED THEN DO NOTHING;
SELECT * FROM wide WHERE id BETWEEN 94 AND 98 ORDER BY id;
WITH gone AS (DELETE FROM wide WHERE id = 99 RETURNING *), moved AS (UPDATE wide SET id = 2000 WHERE id = 100 RETURNING *) SELECT g.*, m.id, m.e, w.c FROM gone g, moved m, wide w WHERE w.id = 99;
CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '% % -> %', TG_OP, OLD, NEW; RETURN coalesce(NEW, OLD); END $$;
CREATE TRIGGER told BEFORE UPDATE OR DELETE ON wide FOR EACH ROW EXECUTE FUNCTION told();
CREATE TRIGGER told_after AFTER UPDATE OF last OR DELETE ON wide FOR EACH ROW WHEN (OLD.b > 13) EXECUTE FUNCTION told();
UPDATE wide SET last = 2 WHERE id IN (101, 120); DELETE FROM wide WHERE id IN (102, 121);
DROP TRIGGER told ON wide; DROP TRIGGER told_after ON wide;
-- A snapshot stays what it is: rows deleted, undone, changed by the query's own functions, by commands before it, after it, and rolled back.
CREATE FUNCTION drop_row(i int) RETURNS int LANGUAGE plpgsql AS $$ DECLARE n int; BEGIN DELETE FROM wide WHERE id = i; GET DIAGNOSTICS n = ROW_COUNT; RETURN n; END $$;
SELECT w.id, w.c, drop_row(w.id + 1) FROM generate_series(150, 158) i JOIN wide w ON w.id = i ORDER BY i;
SELECT id FROM wide WHERE id BETWEEN 149 AND 160 ORDER BY id;
SELECT w.id, (SELECT count(*) FROM wide v WHERE v.id = w.id + 1), drop_row(w.id + 1), (SELECT v.c FROM wide v WHERE v.id = w.id + 1) FROM generate_series(170, 176) i JOIN wide w ON w.id = i;
BEGIN;
DECLARE c CURSOR FOR SELECT id, c FROM wide WHERE id BETWEEN 200 AND 300; FETCH 3 FROM c;
DELETE FROM wide WHERE id BETWEEN 202 AND 210; FETCH 3 FROM c; UPDATE wide SET c = 'after' WHERE id BETWEEN 206 AND 215; FETCH 4 FROM c;
SAVEPOINT s; DELETE FROM wide WHERE id < 260;
DECLARE d CURSOR FOR SELECT id, c FROM wide WHERE id BETWEEN 255 AND 270; FETCH 2 FROM d; FETCH 3 FROM c; ROLLBACK TO s; FETCH 3 FROM c;
DECLARE d CURSOR FOR SELECT id, c FROM wide WHERE id BETWEEN 255 AND 270; FETCH 4 FROM d; DELETE FROM wide WHERE CURRENT OF d RETURNING id; FETCH 2 FROM d; FETCH 2 FROM c;
SELECT id FROM wide WHERE id BETWEEN 255 AND 262 ORDER BY id;
ROLLBACK;
BEGIN; DELETE FROM wide WHERE id BETWEEN 300 AND 309; SELECT i, w.c FROM generate_series(295, 315) i LEFT JOIN wide w ON w.id = i ORDER BY i; ROLLBACK;
SELECT i, w.c FROM generate_series(298, 302) i LEFT JOIN wide w ON w.id = i ORDER BY i;
BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT i, w.c FROM generate_series(148, 153) i LEFT JOIN wide w ON w.id = i ORDER BY i; DELETE FROM wide WHERE id = 310 RETURNING c; SELECT count(*) FROM wide WHERE id BETWEEN 305 AND 315; COMMIT;
-- Tables made, filled, emptied and looked into in one transaction.
BEGIN; CREATE TABLE young (id int PRIMARY KEY, v text); INSERT INTO young SELECT i, 'v' || i FROM generate_series(1, 300) i; SELECT settle('young');
SELECT i, v FROM generate_series(1, 300, 60) i JOIN young ON id = i; TRUNCATE young; INSERT INTO young SELECT i, 'w' || i FROM generate_series(1, 300) i;
SELECT i, v FROM generate_series(1, 300, 60) i JOIN young ON id = i; SAVEPOINT s; DELETE FROM young WHERE id % 2 = 1; SELECT i, v FROM generate_series(1, 9) i JOIN young ON id = i; ROLLBACK TO s;
SELECT i, v FROM generate_series(1, 9) i JOIN young ON id = i; COMMIT;
-- A parent and its children.
CREATE TABLE child (id int, p int REFERENCES wide ON DELETE CASCADE ON UPDATE SET NULL); CREATE INDEX ON child (p);
INSERT INTO child SELECT i, 400 + i % 40 FROM generate_series(1, 200) i; SELECT settle('child');
INSERT INTO child VALUES (0, 99999); INSERT INTO child VALUES (0, 399); DELETE FROM wide WHERE id BETWEEN 400 AND 404; UPDATE wide SET id = 3000 WHERE id = 405;
SELECT count(*), count(p), sum(p) FROM child;
-- Policies and generated columns.
CREATE TABLE kept (id int PRIMARY KEY, v int, w text, twice int GENERATED ALWAYS AS (v * 2) STORED); INSERT INTO kept SELECT i, i % 13, 'w' || i FROM generate_series(1, 300) i; SELECT settle('kept');
CREATE ROLE looker; GRANT ALL ON kept TO looker; ALTER TABLE kept ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON kept USING (v < 5);
SET ROLE looker; SELECT * FROM kept WHERE id IN (1, 4, 5, 6, 13, 14) ORDER BY id; UPDATE kept SET w = 'x' WHERE id BETWEEN 1 AND 9 RETURNING *; UPDATE kept SET v = v + 3 WHERE id = 1 RETURNING twice; RESET ROLE;
UPDATE kept SET v = v + 100 WHERE id BETWEEN 20 AND 22 RETURNING *;
DROP TABLE child, wide, young, kept; DROP ROLE looker; DROP FUNCTION told, drop_row;
RESET ALL;
