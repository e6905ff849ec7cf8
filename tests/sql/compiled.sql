-- Compiled code takes NOT NULL for granted and does not look at the nulls of a row: columns that nobody asked for must be there, too.
SET jit = on; SET jit_above_cost = 0; SET jit_inline_above_cost = -1; SET jit_optimize_above_cost = -1;
DO $$BEGIN ASSERT pg_jit_available(), 'nothing is compiled'; END$$;
CREATE TABLE strict (id int PRIMARY KEY, tiny "char" NOT NULL, a int NOT NULL, flag bool NOT NULL, b bigint NOT NULL, u uuid NOT NULL, n name NOT NULL, i interval NOT NULL,
  v text NOT NULL, m numeric NOT NULL, free text, p point NOT NULL, arr int[] NOT NULL, j jsonb NOT NULL, t timestamptz NOT NULL, w text NOT NULL, last text);
CREATE INDEX ON strict USING hash (a); CREATE INDEX ON strict (v, a); CREATE INDEX ON strict USING gist (p); CREATE INDEX ON strict USING gin (arr);
INSERT INTO strict SELECT i, (i % 100)::text::"char", i * 7 % 300, i % 3 = 0, i * 5000000000, md5(i::text)::uuid, 'name' || i % 40, i * interval '1 min', repeat('v', i % 40) || i % 20, i / 7.0,
  CASE WHEN i % 4 > 0 THEN 'free' || i END, point(i, -i), ARRAY[i, i % 9], jsonb_build_object('k', i), timestamptz '2024-01-01 UTC' + i * interval '1 h', 'w' || i, CASE WHEN i % 2 = 0 THEN 'last' || i END
  FROM generate_series(1, 900) i;
SELECT settle('strict');
INSERT INTO strict SELECT 2000, 'x', 1, true, 2, u, n, i, v, m, free, p, arr, j, t, w, last FROM strict WHERE id = 5;
ALTER TABLE strict ADD later int NOT NULL DEFAULT 77, ADD tail text NOT NULL DEFAULT 'tail'; ALTER TABLE strict DROP flag;
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_sort = on;
SELECT b FROM strict WHERE id BETWEEN 130 AND 132 AND b > 0 ORDER BY id; SELECT w, length(w) FROM strict WHERE id BETWEEN 7 AND 9 AND w <> 'w8' ORDER BY id;
SELECT v FROM strict WHERE id = 130 AND v <> 'x'; SELECT last, tail FROM strict WHERE id IN (5, 6, 2000) AND tail > '' ORDER BY id;
SELECT u, later FROM strict WHERE id = 40 AND later = 77; SELECT i, m + 1 FROM strict WHERE a = 21 AND m > 0 ORDER BY id; SELECT n, t FROM strict WHERE v = 'vvv3' AND t > '2020-01-01' ORDER BY id;
SELECT free, j ->> 'k' FROM strict WHERE id BETWEEN 50 AND 53 AND j ->> 'k' <> '52' ORDER BY id; SELECT arr[2], tiny FROM strict WHERE id = 77 AND arr[1] = 77;
SELECT id, w FROM strict ORDER BY p <-> point(100.2, -100.3) LIMIT 3; SELECT sum(b), max(w), min(last), count(free) FROM strict WHERE id < 500 AND m > 1;
SELECT count(*) FROM strict WHERE id > 10 AND b % 2 = 0; SELECT id FROM strict WHERE id < 5 ORDER BY id; SELECT s FROM strict s WHERE id = 11 AND w > ''; SELECT xmin IS NOT NULL, w FROM strict WHERE id = 12 AND w > '';
SELECT sum((SELECT b FROM strict s WHERE s.id = g)), max((SELECT w FROM strict s WHERE s.id = g AND w <> 'w99')) FROM generate_series(1, 900) g;
SELECT g, s.w, z.last FROM generate_series(8, 12) g LEFT JOIN strict s ON s.id = g AND s.w > 'w1' LEFT JOIN strict z ON z.id = s.a AND z.m > 2 ORDER BY g;
SET enable_bitmapscan = on; SET enable_indexscan = off;
SELECT w, last FROM strict WHERE a IN (7, 14, 21) AND w > '' ORDER BY id; SELECT id, w FROM strict WHERE arr @> ARRAY[5, 8] AND w <> '' ORDER BY id; SELECT sum(b) FROM strict WHERE a = 35 OR v = 'v1' AND b > 0;
RESET enable_indexscan; SET enable_bitmapscan = off;
-- Changes: the scan has few columns, the row all.
DELETE FROM strict WHERE id BETWEEN 300 AND 400 AND b > 4000000000000 RETURNING id; DELETE FROM strict WHERE id BETWEEN 300 AND 303 AND w <> 'w301' RETURNING id, w, last;
UPDATE strict SET b = b + later WHERE id = 77 AND m > 1 RETURNING *; UPDATE strict SET a = a + 1 WHERE id IN (80, 81) AND w = 'w81' RETURNING id, a, w, tail;
UPDATE strict s SET w = z.last FROM strict z WHERE s.id BETWEEN 90 AND 94 AND z.id = s.id + 2 AND z.last > '' RETURNING s.id, s.w, z.b;
MERGE INTO strict s USING generate_series(100, 104) k ON s.id = k WHEN MATCHED AND s.w = 'w101' THEN DELETE WHEN MATCHED AND s.m > 14.5 THEN UPDATE SET last = s.w || s.tail WHEN NOT MATCHED THEN DO NOTHING;
INSERT INTO strict SELECT id, tiny, a, b, u, n, i, v, m, free, p, arr, j, t, w, last FROM strict WHERE id IN (110, 111) ON CONFLICT (id) DO UPDATE SET last = strict.w WHERE strict.b > 0 RETURNING id, last;
SELECT id, w, last FROM strict WHERE id BETWEEN 88 AND 112 AND w > '' ORDER BY id; SELECT id, b FROM strict WHERE id = 77 AND b > 1 FOR UPDATE; SELECT w FROM strict WHERE a = 22 AND m > 0 ORDER BY id FOR SHARE;
-- Parallel scans, cursors, and rows that the table's own scan and FirnScan give.
SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_index_scan_size = 0; SET min_parallel_table_scan_size = 0;
SELECT count(*), sum(b), max(w) FROM strict WHERE id > 0 AND m > 3 AND w <> 'w5'; RESET enable_seqscan; SELECT count(*), sum(b), max(w) FROM strict WHERE m > 3 AND w <> 'w5'; SET enable_seqscan = off;
BEGIN; DECLARE c SCROLL CURSOR FOR SELECT id, w, b FROM strict WHERE id > 880 AND w > '' ORDER BY id; FETCH 3 FROM c; FETCH LAST FROM c; FETCH BACKWARD 2 FROM c; MOVE ABSOLUTE 1 FROM c; FETCH RELATIVE 0 FROM c; COMMIT;
RESET ALL;
-- What a new constraint finds is what is there.
CREATE TABLE loose (id int PRIMARY KEY, a int, b text); INSERT INTO loose SELECT i, nullif(i, 70), 'b' || i FROM generate_series(1, 200) i; SELECT settle('loose');
ALTER TABLE loose ALTER a SET NOT NULL; DELETE FROM loose WHERE id = 70; ALTER TABLE loose ALTER a SET NOT NULL, ALTER b SET NOT NULL, ADD CHECK (a > 0);
DROP TABLE strict, loose;
