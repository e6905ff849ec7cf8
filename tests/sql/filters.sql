-- Conditions that zone maps and filters on encoded columns may answer, with the values where
-- PostgreSQL's order differs from the obvious one: NaN, infinities, -0, NULL, padding, collations.
SET timezone = 'UTC'; SET datestyle = 'ISO';
CREATE TABLE t (id int, f float8, r real, n numeric, m numeric(10,2), s text COLLATE "C", u text COLLATE "en-x-icu",
    c char(6), v varchar(12), d date, ts timestamp, tz timestamptz, b bool, big bigint, small smallint, y bytea,
    i interval, g uuid, j jsonb, a int[], o oid, nm name);
INSERT INTO t SELECT x,
    CASE x % 11 WHEN 0 THEN 'NaN' WHEN 1 THEN 'Infinity' WHEN 2 THEN '-Infinity' WHEN 3 THEN '-0' WHEN 4 THEN NULL ELSE x / 8.0 END::float8,
    CASE x % 13 WHEN 0 THEN 'NaN' WHEN 1 THEN 'Infinity' WHEN 2 THEN NULL ELSE x * 0.1 END::real,
    CASE x % 17 WHEN 0 THEN 'NaN' WHEN 1 THEN 'Infinity' WHEN 2 THEN NULL WHEN 3 THEN 1.10 ELSE x / 7.0 END::numeric,
    CASE x % 19 WHEN 0 THEN 'NaN' WHEN 2 THEN NULL ELSE x / 3.0 END::numeric(10,2),
    CASE x % 7 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN 'A' || x WHEN 3 THEN repeat('long', 40) || x ELSE 'a' || x % 20 END,
    CASE x % 5 WHEN 0 THEN 'Äpfel' WHEN 1 THEN 'apfel' WHEN 2 THEN 'Zebra' WHEN 3 THEN NULL ELSE 'zebra' END,
    CASE x % 4 WHEN 0 THEN 'ab' WHEN 1 THEN 'ab  ' WHEN 2 THEN NULL ELSE 'x' || x % 10 END,
    CASE x % 4 WHEN 0 THEN 'ab' WHEN 1 THEN 'ab  ' ELSE 'v' || x % 30 END,
    CASE x % 23 WHEN 0 THEN 'infinity' WHEN 1 THEN '-infinity' WHEN 2 THEN NULL ELSE (date '2020-01-01' + x)::text END::date,
    CASE x % 29 WHEN 0 THEN 'infinity' WHEN 1 THEN '-infinity' ELSE (timestamp '2020-01-01' + x * interval '1 hour')::text END::timestamp,
    CASE x % 31 WHEN 0 THEN NULL ELSE timestamptz '2020-01-01 00:00+00' + x * interval '90 minutes' END,
    CASE x % 3 WHEN 0 THEN NULL WHEN 1 THEN true ELSE false END,
    CASE x % 50 WHEN 0 THEN 9223372036854775807 WHEN 1 THEN -9223372036854775808 ELSE x * 1000000007::bigint END,
    (x % 100)::smallint, decode(lpad(to_hex(x), 4, '0'), 'hex'),
    x % 40 * interval '1 day' + x % 3 * interval '1 mon', ('00000000-0000-0000-0000-' || lpad(x::text, 12, '0'))::uuid,
    jsonb_build_object('x', x % 9), ARRAY[x % 4, x % 6], x, ('n' || x % 12)::name
    FROM generate_series(1, 900) x;
SELECT settle('t');
UPDATE t SET f = -1 WHERE id IN (100, 500);
DELETE FROM t WHERE id BETWEEN 300 AND 310;
CREATE FUNCTION q(condition text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE r text;
BEGIN
    EXECUTE 'SELECT count(*) || '' '' || coalesce(sum(id), 0) FROM t WHERE ' || condition INTO r;
    RETURN condition || ' -> ' || r;
EXCEPTION WHEN OTHERS THEN
    RETURN condition || ' !! ' || SQLSTATE || ' ' || SQLERRM;
END $$;
SELECT q(col || ' ' || op || ' ' || val) FROM
    (VALUES ('f', '''NaN'''), ('f', '0'), ('f', '''Infinity'''), ('f', '''-Infinity'''), ('f', '50'),
            ('r', '''NaN'''), ('r', '0.3'), ('r', '0.3::real'), ('r', '30'), ('n', '''NaN'''), ('n', '1.1'), ('n', '''Infinity'''), ('n', '60'),
            ('m', '''NaN'''), ('m', '33.333'), ('m', '33.33'), ('m', '100'), ('s', ''''''), ('s', '''a11'''), ('s', '''A'''),
            ('u', '''apfel'''), ('u', '''Zebra'''), ('u', '''b'''), ('u', '''B'' COLLATE "C"'), ('c', '''ab'''), ('c', '''ab '''), ('c', '''x3'''),
            ('c', '''ab ''::text'), ('v', '''ab'''), ('v', '''ab  '''), ('v', '''v12'''), ('d', '''infinity'''), ('d', '''2020-03-01'''), ('d', '''2020-03-01 12:00''::timestamp'),
            ('d', '''2020-03-01 12:00+00''::timestamptz'), ('ts', '''-infinity'''), ('ts', '''2020-01-10'''), ('ts', '''2020-01-10''::date'),
            ('tz', '''2020-01-20 00:00+05'''), ('tz', '''2020-01-20''::date'), ('b', 'true'), ('b', 'false'), ('big', '9223372036854775807'),
            ('big', '1000000007'), ('big', '5::smallint'), ('big', '1e9'), ('big', '1e30::numeric'), ('small', '40'), ('small', '40000'), ('small', '40.5'),
            ('small', '99999999999'), ('id', '450'), ('id', '450.5'), ('id', '450.5::float8'), ('id', '3000000000'), ('id', 'NULL'), ('y', '''\x0100'''), ('i', '''30 days'''), ('i', '''1 mon'''),
            ('g', '''00000000-0000-0000-0000-000000000450'''), ('j', '''{"x": 3}'''), ('a', '''{1,3}'''), ('o', '450'), ('nm', '''n5''')) l(col, val),
    (VALUES (1, '<'), (2, '<='), (3, '='), (4, '>='), (5, '>'), (6, '<>'), (7, 'IS NOT DISTINCT FROM')) o(k, op) ORDER BY col, val, k;
SELECT q(c) FROM unnest(ARRAY['f IS NULL', 'f IS NOT NULL', 'b', 'NOT b', 'b IS TRUE', 'b IS NOT TRUE', 'b IS FALSE', 'b IS UNKNOWN', 'NOT (b AND f > 3)',
    'id IN (1, 2, 3, 899, 900, 901)', 'id NOT IN (1, 2, 3)', 'id IN (1, NULL)', 'id NOT IN (1, NULL)', 'id = ANY (NULL::int[])', 'id = ANY (''{}'')',
    'id = ALL (''{5}'')', 'id = ANY (ARRAY[7, 8]::bigint[])', 's IN (''a1'', ''a11'', '''')', 'n IN (1.1, ''NaN'')', 'f IN (''NaN'', 0)', 'c IN (''ab'', ''x3  '')',
    's LIKE ''a1%''', 's LIKE ''%1''', 's ILIKE ''A1%''', 's ~ ''^A''', 's ^@ ''long''', 'v LIKE ''ab%''', 'c LIKE ''ab''', 'u = lower(u)', 'length(s) > 100',
    'id BETWEEN 100 AND 110', 'id BETWEEN 110 AND 100', 'id BETWEEN SYMMETRIC 110 AND 100', 'f BETWEEN 1 AND ''NaN''', 'id + 1 = 5', 'id % 100 = 0', '-id < -890', '5 > id',
    'id < small', 'f > r', 'f = r', 'd = ts', 'big > n', 'id = 5 OR s IS NULL', 'id = 5 OR (id > 895 AND s > ''a'')', '(id, small) < (3, 2)', '(f, r) > (1, 2)', 'coalesce(f, 0) = 0',
    'id > 890 AND id < 10', 'false', 'NULL::bool', 'id = id', 'id <> id', 'f = f', 'id IS DISTINCT FROM NULL', 'ROW(id, f) IS NULL', 't IS NOT NULL', '1 / (id - 5) > 0',
    'id > 5 AND 1 / (id - 5) > 0', 'j ->> ''x'' = ''3''', 'j @> ''{"x": 3}''', 'a @> ''{3}''', '3 = ANY (a)', 'd > current_date', 'd < date ''2020-02-01'' + interval ''3 days''',
    'ctid = (SELECT ctid FROM t WHERE id = 7)', 'tableoid = ''t''::regclass', 'EXISTS (SELECT 1 FROM t x WHERE x.id = t.id + 1 AND x.b)', 'id = (SELECT max(id) FROM t)',
    'id < (SELECT avg(id) FROM t)', 'id = ANY (SELECT id FROM t WHERE f = ''NaN'')', 'random() < 0', 'pg_backend_pid() = 0']) WITH ORDINALITY u(c, k) ORDER BY k;
-- parameters of prepared statements, generic plans too
SET plan_cache_mode = force_generic_plan;
PREPARE p1(int, int) AS SELECT count(*), sum(id) FROM t WHERE id BETWEEN $1 AND $2;
EXECUTE p1(10, 20); EXECUTE p1(20, 10); EXECUTE p1(NULL, 10); EXECUTE p1(880, 2000);
PREPARE p2(float8) AS SELECT count(*), sum(id) FROM t WHERE f >= $1;
EXECUTE p2('NaN'); EXECUTE p2('Infinity'); EXECUTE p2(100); EXECUTE p2(NULL);
PREPARE p3(text) AS SELECT count(*), sum(id) FROM t WHERE s = $1;
EXECUTE p3(''); EXECUTE p3('a11'); EXECUTE p3('none'); EXECUTE p3(NULL);
PREPARE p4(int[]) AS SELECT count(*), sum(id) FROM t WHERE id = ANY ($1);
EXECUTE p4('{1,5,900,NULL}'); EXECUTE p4('{}'); EXECUTE p4(NULL);
PREPARE p5(numeric) AS SELECT count(*), sum(id) FROM t WHERE m > $1;
EXECUTE p5(33.335); EXECUTE p5('NaN'); EXECUTE p5('Infinity');
RESET plan_cache_mode;
-- nested loops give the scan a new parameter each time
SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_memoize = off;
SELECT k, x.* FROM generate_series(0, 950, 190) k, LATERAL (SELECT count(*), min(f), max(s) FROM t WHERE id > k AND id < k + 30) x ORDER BY k;
SELECT a.id, b.id FROM t a JOIN t b ON b.id = a.id + 450 WHERE a.id < 6 ORDER BY 1;
SELECT count(*) FROM t a WHERE NOT EXISTS (SELECT 1 FROM t b WHERE b.id = a.id - 1);
RESET enable_hashjoin; RESET enable_mergejoin; RESET enable_material; RESET enable_memoize;
-- aggregates and what needs which columns
SELECT count(*), count(f), count(DISTINCT s), min(n), max(n), min(ts), max(d), bool_and(b), sum(m), avg(small) FROM t;
SELECT b, count(*), min(id) FROM t GROUP BY b ORDER BY b NULLS FIRST;
SELECT u, count(*) FROM t GROUP BY u ORDER BY u NULLS FIRST;
SELECT c, count(*), max(length(c)), max(octet_length(c)) FROM t GROUP BY c ORDER BY c NULLS FIRST;
SELECT 1 FROM t WHERE id < 3;
SELECT t FROM t WHERE id = 12;
SELECT t.*, t.tableoid::regclass FROM t WHERE id = 899;
SELECT id FROM t ORDER BY f DESC NULLS LAST, id LIMIT 5;
SELECT id FROM t ORDER BY u, id LIMIT 5;
SELECT id FROM t WHERE id > 5 ORDER BY id OFFSET 890;
-- Points in time with and without a zone compare by the session's zone.
SET timezone = 'Asia/Tokyo';
SELECT q('tz ' || op || ' ' || val) FROM
    (VALUES ('timestamp ''2020-01-10 09:00'''), ('date ''2020-01-10'''), ('timestamptz ''2020-01-10 00:00+00'''), ('timestamp ''infinity''')) v(val),
    (VALUES ('<'), ('='), ('>='), ('<>')) o(op);
SELECT q('ts ' || op || ' ' || val) FROM
    (VALUES ('timestamptz ''2020-01-10 00:00+00'''), ('date ''2020-01-10'''), ('date ''infinity'''), ('date ''-infinity'''), ('timestamp ''2020-01-10 00:00''')) v(val),
    (VALUES ('<'), ('='), ('>='), ('<>'), ('>')) o(op);
SELECT q('d ' || op || ' ' || val) FROM
    (VALUES ('timestamptz ''2020-01-10 00:00+00'''), ('timestamp ''2020-01-10 12:00'''), ('timestamp ''2020-01-10''')) v(val), (VALUES ('<'), ('='), ('>='), ('<>')) o(op);
SET timezone = 'UTC';
-- Lists.
SELECT q(c) FROM (VALUES ('id IN (1, 2, 899, 5000)'), ('id = ANY (''{1,NULL,7}'')'), ('id <> ALL (''{1,2}'')'), ('id > ANY (''{890,895}'')'), ('small IN (1, 99::bigint)'),
    ('m IN (1.00, 2.333, 3)'), ('m IN (''NaN'', 5)'), ('n IN (1.1, 1.10)'), ('f IN (''NaN'', ''-0'', 5.5)'), ('s IN (''A9'', '''', ''a11'')'), ('u IN (''apfel'', ''x'')'),
    ('v IN (''ab'', ''v7'')'), ('c IN (''ab'', ''x3'')'), ('d IN (''2020-02-01'', ''infinity'')'), ('ts IN (''2020-01-02 03:00'', ''infinity'')'),
    ('g IN (''00000000-0000-0000-0000-000000000007'')'), ('b IN (true)'), ('b = false'), ('b <> true'), ('id IN (SELECT 5 UNION SELECT 6)'),
    ('big IN (9223372036854775807, 0)'), ('r IN (0.3, 30)'), ('s <> ''A9'''), ('u <> ''apfel'''), ('d <> ''infinity'''), ('m <> 33.333'), ('m <> 33.33'),
    ('id <> 7 AND s IS NOT NULL'), ('7 <> id'), ('NULL::int <> id')) v(c);
-- Conditions joined by OR and NOT, prefixes and patterns.
SELECT q(c) FROM unnest(ARRAY['id = 5 OR id = 7', 'id < 10 OR id > 890 OR s IS NULL AND id < 100', '(id < 50 AND f > 3) OR (id > 850 AND (n < 1 OR m > 290))', 'NOT (id < 850 OR s IS NULL)',
    'NOT (id BETWEEN 20 AND 880)', 'NOT (f > 3 AND id < 890)', 'id = 5 OR length(s) = 2', 'id = 5 OR (id < 30 AND length(s) = 2)', '(id < 30 AND length(s) = 2) OR (id > 880 AND length(s) = 3)', 'id = 5 OR f = ''NaN''', 'id = 5 OR NULL', 'id = 5 OR b', 'b OR NOT b', 'id < 20 AND (b OR s > ''a'')',
    'b IS NOT TRUE AND id < 20', 'b IS NOT FALSE AND id < 20', 'b IS NOT UNKNOWN AND id < 20', 'b IS UNKNOWN OR id = 1', 'id NOT IN (5, 6) AND id < 10', 'NOT (id IN (5, 6)) AND id < 10', 'id <> ALL (''{}'') AND id < 3', 'f <> ALL (''{}'')', 'f NOT IN (''NaN'', 0)', 'f NOT IN (''NaN'', 0, NULL)',
    'f <> ALL (NULL::float8[])', 's NOT IN ('''', ''a11'')', 'small NOT IN (SELECT generate_series(3, 99)::smallint)', 'm NOT IN (1.00, 2.333)', 'big NOT IN (9223372036854775807)', 'u NOT IN (''apfel'')', 'c NOT IN (''ab'')', 'id IN (1, 2) OR id IN (898, 899)', 'id <> ANY (''{1,2}'')', 'id = ALL (''{1,1}'')',
    'f IS DISTINCT FROM ''NaN''', 'f IS DISTINCT FROM NULL', 'f IS NOT DISTINCT FROM NULL', 's IS DISTINCT FROM ''''', 's IS NOT DISTINCT FROM ''a11''', 'id IS NOT DISTINCT FROM 7', 'NOT (id IS DISTINCT FROM 7)', 'b IS DISTINCT FROM true', 'm IS DISTINCT FROM 33.333', 'm IS NOT DISTINCT FROM ''NaN''', '7 IS DISTINCT FROM id', 'd IS DISTINCT FROM ''infinity''', 'u IS DISTINCT FROM ''apfel''',
    's LIKE ''a1%''', 's LIKE ''a1%%''', 's LIKE ''a11''', 's LIKE ''''', 's LIKE ''%''', 's LIKE ''a_''', 's LIKE ''a%1''', 's LIKE ''_1''', 's LIKE ''A%'' AND s LIKE ''%9''', 's LIKE ''a\%''', 's LIKE ''a\1%''', 's LIKE ''a\\%''', 's LIKE ''%\''', 's LIKE ''zz\''', 's LIKE ''a1\''', 's LIKE NULL', 's LIKE ''a%1'' ESCAPE ''%''', 's LIKE ''a#%'' ESCAPE ''#''', 's LIKE ''longlong%''',
    's LIKE repeat(''long'', 20) || ''%''', 's NOT LIKE ''a%''', 's NOT LIKE ''a11''', 's NOT LIKE ''a_''', 's NOT LIKE ''%''', 's NOT LIKE NULL', 'NOT s LIKE ''a%''', 'NOT (s LIKE ''a%'' OR s IS NULL)', 's ILIKE ''a1%''', 's SIMILAR TO ''a1%''', 's ~ ''^a1''', 's ^@ ''a1''', 's ^@ ''''', 's ^@ ''long''', 'NOT s ^@ ''a''', 'NOT (s ^@ ''a'' OR id > 100)', 's ^@ NULL', 'starts_with(s, ''a1'')', 'NOT starts_with(s, ''a1'')',
    'u LIKE ''Ä%''', 'u LIKE ''a%''', 'u LIKE ''Äpfel''', 'u NOT LIKE ''z%''', 'u ^@ ''Z''', 'v LIKE ''ab%''', 'v LIKE ''ab''', 'v NOT LIKE ''v1%''', 'v ^@ ''v2''', 'c LIKE ''ab%''', 'c LIKE ''x%''', 'c::text LIKE ''ab%''', 'c ^@ ''ab''', 'nm LIKE ''n1%''', 'y LIKE ''\001%''', 's LIKE ''a1%'' OR id = 5', 's LIKE ''a%1'' OR id = 5', 's LIKE u', 's ^@ u OR id = 5', 'lower(s) LIKE ''a1%''', 's || ''x'' LIKE ''a1%''',
    'd > current_date OR id = 5', 'ts > now() OR id = 5', 'id = 5 OR id = 10 / (id - id + 2)', 'id = 5 OR tz > ''2020-02-01''', 'ts < ''2020-01-02'' OR d > ''2022-05-01''', '(id = 1 OR id = 2) AND (s IS NULL OR f IS NULL)', 'id = (SELECT 7) OR id = (SELECT 8)', 'id > 5 OR 1 / (id - id) > 0']) WITH ORDINALITY u(c, k) ORDER BY k;
-- Where an arm makes it superfluous, the other is not evaluated, nor does it fail (but by who gives it to parallel workers).
SET max_parallel_workers_per_gather = 0;
SELECT count(*) FROM t WHERE id > 0 OR id = (SELECT 1 / count(*) FROM t WHERE id < 0);
SELECT count(*) FROM t WHERE id > 0 OR small > (SELECT id FROM t);
RESET max_parallel_workers_per_gather;
SET plan_cache_mode = force_generic_plan;
PREPARE o1(int, text) AS SELECT count(*), sum(id) FROM t WHERE id = $1 OR s LIKE $2;
EXECUTE o1(5, 'a1%'); EXECUTE o1(5, 'a_'); EXECUTE o1(NULL, 'long%'); EXECUTE o1(5, NULL); EXECUTE o1(NULL, NULL); EXECUTE o1(5, 'a1\');
PREPARE o2(text, int[]) AS SELECT count(*), sum(id) FROM t WHERE s NOT LIKE $1 AND id <> ALL ($2);
EXECUTE o2('a%', '{1,2,3}'); EXECUTE o2('%', '{}'); EXECUTE o2('zz', '{1,NULL}'); EXECUTE o2('a1', NULL);
PREPARE o3(float8) AS SELECT count(*), sum(id) FROM t WHERE f IS NOT DISTINCT FROM $1 OR f IS DISTINCT FROM $1 AND id < 9;
EXECUTE o3('NaN'); EXECUTE o3(NULL); EXECUTE o3(0);
RESET plan_cache_mode;
SELECT k, x.* FROM generate_series(0, 950, 190) k, LATERAL (SELECT count(*), min(f), max(s) FROM t WHERE id = k OR s LIKE 'a' || k / 10 || '%' AND NOT id < k) x ORDER BY k;
-- Classes of somebody's own are not what stripes compare by.
CREATE SCHEMA own; SET search_path = own, public, pg_catalog;
CREATE FUNCTION cmp(varchar, varchar) RETURNS int IMMUTABLE LANGUAGE sql AS $$ SELECT bttextcmp(lower($1::text), lower($2::text)) $$;
CREATE FUNCTION lt(varchar, varchar) RETURNS bool IMMUTABLE LANGUAGE sql AS $$ SELECT lower($1::text) OPERATOR(pg_catalog.<) lower($2::text) $$;
CREATE FUNCTION le(varchar, varchar) RETURNS bool IMMUTABLE LANGUAGE sql AS $$ SELECT lower($1::text) OPERATOR(pg_catalog.<=) lower($2::text) $$;
CREATE FUNCTION eq(varchar, varchar) RETURNS bool IMMUTABLE LANGUAGE sql AS $$ SELECT lower($1::text) OPERATOR(pg_catalog.=) lower($2::text) $$;
CREATE FUNCTION ge(varchar, varchar) RETURNS bool IMMUTABLE LANGUAGE sql AS $$ SELECT lower($1::text) OPERATOR(pg_catalog.>=) lower($2::text) $$;
CREATE FUNCTION gt(varchar, varchar) RETURNS bool IMMUTABLE LANGUAGE sql AS $$ SELECT lower($1::text) OPERATOR(pg_catalog.>) lower($2::text) $$;
CREATE OPERATOR own.< (FUNCTION = lt, LEFTARG = varchar, RIGHTARG = varchar, COMMUTATOR = OPERATOR(own.>), NEGATOR = OPERATOR(own.>=));
CREATE OPERATOR own.<= (FUNCTION = le, LEFTARG = varchar, RIGHTARG = varchar, COMMUTATOR = OPERATOR(own.>=), NEGATOR = OPERATOR(own.>));
CREATE OPERATOR own.= (FUNCTION = eq, LEFTARG = varchar, RIGHTARG = varchar, COMMUTATOR = OPERATOR(own.=));
CREATE OPERATOR own.>= (FUNCTION = ge, LEFTARG = varchar, RIGHTARG = varchar, COMMUTATOR = OPERATOR(own.<=), NEGATOR = OPERATOR(own.<));
CREATE OPERATOR own.> (FUNCTION = gt, LEFTARG = varchar, RIGHTARG = varchar, COMMUTATOR = OPERATOR(own.<), NEGATOR = OPERATOR(own.<=));
CREATE OPERATOR CLASS own.folded DEFAULT FOR TYPE varchar USING btree AS OPERATOR 1 own.<, OPERATOR 2 own.<=, OPERATOR 3 own.=, OPERATOR 4 own.>=, OPERATOR 5 own.>, FUNCTION 1 cmp(varchar, varchar);
CREATE TABLE folds (id int, v varchar); INSERT INTO folds SELECT i, CASE WHEN i % 2 = 0 THEN chr(65 + i % 26) ELSE chr(97 + i % 26) END FROM generate_series(1, 200) i; SELECT settle('folds');
SELECT count(*) FILTER (WHERE v = 'A'), count(*) FILTER (WHERE v < 'c') FROM folds; SELECT count(*) FROM folds WHERE v = 'a'; SELECT count(*) FROM folds WHERE v = 'B'; SELECT count(*) FROM folds WHERE v < 'C'::varchar; SELECT count(*) FROM folds WHERE v >= 'x' OR v = 'D'; SELECT count(*) FROM folds WHERE v = ANY ('{a,B}'::varchar[]);
RESET search_path;
SET max_parallel_workers_per_gather = 0;
-- What a condition compares with is not asked for where there is no row.
CREATE TABLE none (id int, v int); CREATE FUNCTION loud(i int) RETURNS int STABLE LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'asked'; END$$;
SELECT * FROM none WHERE v = (SELECT 1 / count(*) FROM none); SELECT count(*) FROM none WHERE v > loud(1); INSERT INTO none SELECT i, i FROM generate_series(1, 30) i; SELECT settle('none'); DELETE FROM none; VACUUM none; SELECT count(*) FROM none WHERE v > loud(id + 1 - id);
-- The last microsecond but 19 years is not infinity.
SET timezone = 'UTC'; CREATE TABLE ends (i int, v timestamptz, w timestamp); INSERT INTO ends SELECT i, 'infinity', 'infinity' FROM generate_series(1, 20) i; INSERT INTO ends VALUES (100, '2000-01-01', '-infinity'); SELECT settle('ends');
INSERT INTO ends SELECT i + 200, '294247-01-10 04:00:54.775807+00', '294247-01-10 04:00:54.775807' FROM generate_series(1, 20) i;
SELECT val, (SELECT count(*) FROM ends WHERE v = val::timestamptz), (SELECT count(*) FROM ends WHERE w > val::timestamp) FROM unnest(ARRAY['294247-01-10 04:00:54.775806', '294247-01-10 04:00:54.775807', '294247-01-10 04:00:54.775808', 'infinity']) val;
SELECT count(*) FROM ends WHERE v = '294247-01-10 04:00:54.775807'; SELECT count(*) FROM ends WHERE v > '294247-01-10 04:00:54.775807'; SELECT count(*) FROM ends WHERE v <> '294247-01-10 04:00:54.775807'; SELECT count(*) FROM ends WHERE v <= '294247-01-10 04:00:54.775807';
SELECT count(*) FROM ends WHERE w = '294247-01-10 04:00:54.775807'; SELECT count(*) FROM ends WHERE w >= '294247-01-10 04:00:54.775807'; SELECT count(*) FROM ends WHERE w IN ('294247-01-10 04:00:54.775807', '-infinity'); SELECT count(*) FROM ends WHERE w BETWEEN '2000-01-01' AND '294247-01-10 04:00:54.775807';
