-- Rows by index that further conditions refuse: what is asked of a row, in which order, and what it says of the others.
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET max_parallel_workers_per_gather = 0;
CREATE TABLE r (id int, k int, a int, b int, n numeric, c text, d date, e text, f int[], g jsonb, gone int, PRIMARY KEY (id));
CREATE INDEX ON r (k); CREATE INDEX ON r USING hash (a);
INSERT INTO r SELECT i, i % 10, i % 7, i % 5, i / 8.0, CASE WHEN i % 11 > 0 THEN 'c' || i % 50 END, date '2024-01-01' + i % 90, repeat('e', i % 70) || i, ARRAY[i, NULL, -i], jsonb_build_object('k', i % 13), i FROM generate_series(1, 700) i;
SELECT settle('r');
ALTER TABLE r ADD late int DEFAULT 3, ADD word text; ALTER TABLE r DROP gone; UPDATE r SET word = 'w' || id WHERE id % 100 = 0;
INSERT INTO r (id, k, a, b) VALUES (1001, 3, 1, 0), (1002, 4, 2, 1); DELETE FROM r WHERE id BETWEEN 200 AND 210;
-- one condition, several, with and without values, on columns of every kind
SELECT id, c, e FROM r WHERE k = 3 AND a = 2 ORDER BY id; SELECT id, e FROM r WHERE k = 3 AND a = 2 AND b = 1 AND c > 'c2' AND n < 60 ORDER BY id;
SELECT id FROM r WHERE k = 4 AND c IS NULL AND a < 3 ORDER BY id; SELECT id, f FROM r WHERE k = 5 AND e LIKE 'eee%' AND d > '2024-02-15' ORDER BY id;
SELECT id, n FROM r WHERE k = 6 AND (a = 1 OR c = 'c16') AND NOT (b = 2) ORDER BY id; SELECT r FROM r WHERE k = 7 AND g @> '{"k": 1}' AND a IN (1, 3) ORDER BY id;
SELECT id, g FROM r WHERE k = 8 AND f[3] < -500 AND a <> 4 AND length(e) > 20 ORDER BY id; SELECT id, late, word FROM r WHERE k = 0 AND late = 3 AND word > 'w2' ORDER BY id;
SELECT count(*) FROM r WHERE k = 3 AND a = 2; SELECT count(*), max(e) FROM r WHERE k < 5 AND a = 2 AND c = 'c9'; SELECT id FROM r WHERE k = 3 AND a = 100; SELECT id FROM r WHERE k = 3 AND NULL::bool;
SELECT tableoid::regclass, ctid IS NOT NULL, id FROM r WHERE k = 3 AND a = 2 AND b = 3 ORDER BY id; SELECT xmax, id, c FROM r WHERE k = 3 AND a = 2 AND b = 3 ORDER BY id;
SELECT id, c FROM r WHERE a = 5 AND k = 5 AND b = 0 ORDER BY id;
-- in the order of the plan: what the first one refuses the next is not asked
SELECT id, c FROM r WHERE k = 3 AND b <> 0 AND 10 / b > 4 ORDER BY id; SELECT id, c FROM r WHERE k = 3 AND 10 / b > 4 ORDER BY id;
CREATE FUNCTION asked(what text, yes bool) RETURNS bool LANGUAGE plpgsql STABLE COST 1 AS $$ BEGIN RAISE NOTICE 'asked %', what; RETURN yes; END $$;
CREATE FUNCTION counted(what text, yes bool) RETURNS bool LANGUAGE plpgsql VOLATILE COST 1 AS $$ BEGIN RAISE NOTICE 'counted %', what; RETURN yes; END $$;
SELECT id, e FROM r WHERE id BETWEEN 90 AND 180 AND k + 0 = 3 AND counted('it ' || id, b = 3) AND c <> 'c3' ORDER BY id;
SELECT id, e FROM r WHERE id BETWEEN 120 AND 150 AND counted('it ' || id, a + 0 = 2) AND counted('then ' || b, b = 3) ORDER BY id;
CREATE SEQUENCE s; SELECT count(*) FROM (SELECT id, e FROM r WHERE k = 3 AND a = 2 AND nextval('s') > 0 AND b = 3) x; SELECT last_value FROM s;
-- rows that conditions see are those of their statement, whatever they do to the table meanwhile
CREATE FUNCTION others(i int) RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM r x WHERE x.k = i % 10 AND x.a = 2 AND x.e > ''e''';
SELECT id, c, others(id) FROM r WHERE k = 3 AND others(a) > 8 AND c > 'c1' ORDER BY id LIMIT 5;
CREATE FUNCTION takes(i int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN DELETE FROM r WHERE id = i + 10; UPDATE r SET e = 'taken' WHERE id = i + 20; RETURN i % 3 = 0; END $$;
BEGIN; SELECT id, e FROM r WHERE k = 3 AND a < 4 AND takes(id) ORDER BY id; SELECT count(*) FROM r WHERE e = 'taken'; ROLLBACK;
CREATE FUNCTION fails(i int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN IF i = 333 THEN RAISE EXCEPTION 'no %', i; END IF; RETURN true; EXCEPTION WHEN division_by_zero THEN RETURN NULL; END $$;
SELECT id FROM r WHERE k = 3 AND fails(id) AND b = 1 ORDER BY id; SELECT count(e) FROM r WHERE k = 4 AND fails(id) AND b = 4;
BEGIN; SAVEPOINT x; SELECT count(e) FROM r WHERE k = 3 AND fails(id); ROLLBACK TO x; SELECT count(e) FROM r WHERE k = 3 AND fails(id) AND id <> 333 AND a = 1; COMMIT;
-- parameters, sub-selects and loops
PREPARE p(int, text, int[]) AS SELECT id, e FROM r WHERE k = $1 AND c > $2 AND a = ANY ($3) ORDER BY id; EXECUTE p(3, 'c4', '{1,2}'); EXECUTE p(3, NULL, '{1}'); SET plan_cache_mode = force_generic_plan; EXECUTE p(4, 'c2', '{3,NULL}'); RESET plan_cache_mode;
SELECT i, x.* FROM generate_series(0, 9) i LEFT JOIN LATERAL (SELECT id, e FROM r WHERE r.k = i AND r.a = i % 7 AND r.b > i / 3 ORDER BY id LIMIT 2) x ON true ORDER BY i, id;
SELECT v.id, w.id, w.e FROM r v JOIN r w ON w.k = v.b AND w.a = v.a AND w.c > v.c WHERE v.id < 30 ORDER BY 1, 2 LIMIT 20;
SELECT id, e FROM r WHERE k = 3 AND a = (SELECT min(a) + 1 FROM r WHERE k = 4) AND b < (SELECT max(b) FROM r) ORDER BY id LIMIT 5;
SELECT i, (SELECT string_agg(e, ',' ORDER BY id) FROM r WHERE k = i AND a = (SELECT count(*) FROM generate_series(1, i)) AND b = 2) FROM generate_series(1, 4) i ORDER BY i;
SELECT id, e FROM r WHERE k = 3 AND a IN (SELECT b FROM r WHERE id < 4) AND EXISTS (SELECT FROM r x WHERE x.id = r.id + 7 AND x.c > 'c') ORDER BY id LIMIT 5;
SELECT sum(n) FROM r WHERE id IN (SELECT id FROM r WHERE k = 2) AND ((a = 1 AND c > 'c3') OR (a = 2 AND d < '2024-02-01'));
-- changes
BEGIN; WITH x AS (UPDATE r SET n = n + 1, e = e || '!' WHERE k = 3 AND a = 2 AND c > 'c2' RETURNING id, n, e) SELECT * FROM x ORDER BY id; WITH x AS (DELETE FROM r WHERE k = 3 AND a = 2 AND c > 'c3' RETURNING id, c, e) SELECT * FROM x ORDER BY id; SELECT count(*), sum(n) FROM r; ROLLBACK;
BEGIN; SELECT id, e FROM r WHERE k = 4 AND a = 2 AND c > 'c2' ORDER BY id FOR UPDATE; UPDATE r SET a = r.a + 1 FROM r x WHERE x.id = r.id + 1 AND r.k = 5 AND r.a = 3 AND x.b = 1; SELECT count(*), sum(a) FROM r; ROLLBACK;
BEGIN; INSERT INTO r (id, k, a, c) SELECT i, 3, 2, 'c9' FROM generate_series(2000, 2020) i; SELECT count(*), min(c), max(id) FROM r WHERE k = 3 AND a = 2 AND c = 'c9'; ROLLBACK;
-- cursors go both ways
BEGIN; DECLARE c SCROLL CURSOR FOR SELECT id, e FROM r WHERE id > 0 AND a = 2 AND b = 1 ORDER BY id; FETCH 3 FROM c; FETCH BACKWARD 2 FROM c; FETCH LAST FROM c; FETCH BACKWARD 2 FROM c; FETCH ABSOLUTE 1 FROM c; UPDATE r SET e = 'here' WHERE CURRENT OF c; COMMIT; SELECT id FROM r WHERE e = 'here';
BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT id, e FROM r WHERE k = 3 AND a = 2 AND b = 1 ORDER BY id; COMMIT;
-- bitmaps, exact and lossy
SET enable_indexscan = off; SET enable_bitmapscan = on; SET work_mem = '64kB';
SELECT count(*), max(e), sum(n) FROM r WHERE k < 8 AND a = 2 AND c > 'c2'; SELECT count(*), max(e), sum(n) FROM r WHERE id > 0 AND a = 2 AND b <> 0 AND 10 / b > 2; SELECT id, e FROM r WHERE (k = 3 OR a = 1) AND c = 'c8' AND b = 3 ORDER BY id;
CREATE TABLE wide AS SELECT i AS id, i % 100 AS k, i % 5 AS b, 'x' || i AS c FROM generate_series(1, 40000) i; CREATE INDEX ON wide (k); CREATE INDEX ON wide (id); SELECT settle('wide');
SELECT count(*), max(c) FROM wide WHERE k BETWEEN 5 AND 90 AND 100 / (k - 4) >= 0 AND b = 2; SELECT count(*), max(c) FROM wide WHERE id > 10 AND b = 2 AND c LIKE 'x1%';
RESET work_mem; RESET enable_indexscan; SET enable_bitmapscan = off;
-- rows that the filter removed are told
DROP INDEX r_k_idx, r_a_idx;
CREATE FUNCTION removed(q text) RETURNS TABLE (line text) LANGUAGE plpgsql AS $$ BEGIN FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) ' || q LOOP IF line ~ 'Removed|rows=' THEN RETURN NEXT; END IF; END LOOP; END $$;
SELECT * FROM removed('SELECT c, e FROM r WHERE id BETWEEN 100 AND 300 AND a = 2 AND b = 3'); SELECT * FROM removed('SELECT max(e) FROM r WHERE id > 100 AND a = 2');
-- who may not see a row is not told of it
CREATE ROLE refused_reader; GRANT SELECT ON r TO refused_reader; GRANT USAGE ON SCHEMA public TO refused_reader;
ALTER TABLE r ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON r USING (a = 2);
SET ROLE refused_reader; SELECT id, e FROM r WHERE id BETWEEN 1 AND 150 AND asked('row ' || id, b = 3) ORDER BY id; SELECT id, e FROM r WHERE id < 250 AND b = 3 AND asked('row ' || coalesce(c, '-'), true) ORDER BY id; RESET ROLE;
DROP OWNED BY refused_reader; DROP ROLE refused_reader;
-- Without an index, too: who keeps rows from others is asked of each of them, before conditions that are not leakproof.
SET enable_seqscan = on; SET enable_indexscan = off;
CREATE TABLE kept (owner text, note text, n numeric, i int); INSERT INTO kept SELECT CASE WHEN i % 10 = 0 THEN 'mine' ELSE 'theirs' END, CASE WHEN i % 50 < 2 THEN 'secret' ELSE 'x' END || i, i / 3.0, i FROM generate_series(1, 600) i; SELECT settle('kept'); ANALYZE kept;
CREATE SEQUENCE looks; CREATE FUNCTION may(owner text) RETURNS bool LANGUAGE plpgsql STABLE AS $$ BEGIN PERFORM nextval('looks'); RETURN owner = 'mine'; END $$;
CREATE ROLE refused_other; GRANT SELECT ON kept TO refused_other; GRANT ALL ON SEQUENCE looks TO refused_other; CREATE TABLE keys (note text, n numeric, i int); INSERT INTO keys VALUES ('secret50', 10, 100), ('x7', 20, 7); GRANT SELECT ON keys TO refused_other;
ALTER TABLE kept ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON kept USING (may(owner)); SET parallel_leader_participation = on; SET max_parallel_workers_per_gather = 0;
SET ROLE refused_other; SET enable_nestloop = off; SET enable_mergejoin = off; SET enable_hashjoin = on;
SELECT note FROM kept WHERE note LIKE 'secret%' ORDER BY i; SELECT last_value FROM looks; SELECT count(*) FROM kept WHERE n > 150; SELECT last_value FROM looks; SELECT count(*) FROM kept WHERE i > 550; SELECT count(*) FROM kept JOIN keys ON keys.n = kept.n; SELECT last_value > 1200 FROM looks;
SELECT kept.note FROM kept JOIN keys USING (note) ORDER BY 1; RESET ROLE; DROP OWNED BY refused_other; DROP ROLE refused_other;
-- A field of a record that has none is not asked for where another condition is enough.
CREATE TABLE fields (id int NOT NULL, v int); INSERT INTO fields SELECT i, i % 7 FROM generate_series(1, 600) i; SELECT settle('fields');
DO $$ DECLARE r record; n bigint; BEGIN FOR i IN 1..3 LOOP IF i = 1 THEN SELECT 1 AS x INTO r; ELSE r := NULL; END IF; SELECT count(*) INTO n FROM fields WHERE id IS NOT NULL OR v = r.x; RAISE NOTICE '% rows', n; END LOOP; END $$;
DO $$ DECLARE r record; n bigint; k int := 3; BEGIN SELECT 1 AS x INTO r; FOR i IN 1..8 LOOP SELECT count(*) INTO n FROM fields WHERE id < i * 10 OR v = k OR v = r.x; RAISE NOTICE '% rows', n; END LOOP; SELECT count(*) INTO n FROM fields WHERE v = r.none OR v > 6; EXCEPTION WHEN undefined_column THEN RAISE NOTICE 'no such field'; END $$;
-- Comparisons of arrays and rows call the functions of what they are made of, which are asked of a row once.
SET enable_indexscan = on; SET enable_seqscan = off;
CREATE TYPE pair AS (a int, b text); CREATE FUNCTION pair_cmp(pair, pair) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'cmp % %', $1, $2; RETURN ($1).a - ($2).a; END $$;
CREATE FUNCTION pair_eq(pair, pair) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'eq % %', $1, $2; RETURN ($1).a = ($2).a; END $$; CREATE FUNCTION pair_lt(pair, pair) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT ($1).a < ($2).a';
CREATE OPERATOR === (leftarg = pair, rightarg = pair, procedure = pair_eq); CREATE OPERATOR <<< (leftarg = pair, rightarg = pair, procedure = pair_lt); CREATE OPERATOR CLASS pairs DEFAULT FOR TYPE pair USING btree AS OPERATOR 1 <<<, OPERATOR 3 ===, FUNCTION 1 pair_cmp(pair, pair);
CREATE TYPE mood AS ENUM ('low', 'high'); CREATE TABLE of_types (id int PRIMARY KEY, c numeric, l pair[], p pair, m mood, t text); INSERT INTO of_types SELECT i, i, ARRAY[row(i % 5, 'z')::pair], row(i % 5, 'z')::pair, CASE WHEN i % 3 = 0 THEN 'high' ELSE 'low' END::mood, 't' || i FROM generate_series(1, 300) i; SELECT settle('of_types'); ANALYZE of_types;
SELECT id, t FROM of_types WHERE id < 12 AND l < ARRAY[row(3, 'z')::pair] AND c > 0; SELECT id, t FROM of_types WHERE id < 8 AND l = ARRAY[row(3, 'z')::pair]; SELECT id, t FROM of_types WHERE id < 8 AND (p, id) = (row(3, 'z')::pair, id); SELECT id, t FROM of_types WHERE id < 20 AND m = 'high' AND c > 6;
