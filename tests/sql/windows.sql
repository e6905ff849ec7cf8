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
-- Equal but distinguishable keys are one partition, whose rows are told apart by expressions over them.
CREATE TABLE n (k numeric, v int);
INSERT INTO n SELECT CASE WHEN x % 2 = 0 THEN 1.0 ELSE 1.00 END, x FROM generate_series(1, 40) x;
SELECT count(*), min(m), max(m) FROM (SELECT DISTINCT k, max(v) OVER (PARTITION BY k) AS m FROM n) s;
SELECT DISTINCT k::text, max(v) OVER (PARTITION BY k) FROM n ORDER BY 1;
SELECT DISTINCT scale(k), k::text || 'x', count(*) OVER (PARTITION BY k) FROM n ORDER BY 1;
SELECT DISTINCT count(k::text) OVER (PARTITION BY k), sum(scale(k)) OVER (PARTITION BY k) FROM n;
-- Many of them, of many types: the same results as on heap, whether planned as GROUP BY or not.
CREATE COLLATION either_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TYPE pair AS (a numeric, b text);
CREATE DOMAIN amount AS numeric;
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE TABLE kinds (name text, type text, equal text[]);
INSERT INTO kinds VALUES
  ('n', 'numeric', '{1.0,1.00,1,2,2.000,NULL,NaN}'), ('am', 'amount', '{1.0,1.00,3}'), ('n2', 'numeric(9,2)', '{1.5,2,NULL}'),
  ('iv', 'interval', '{1 mon,30 days,720:00:00,1 day,24:00:00,NULL}'), ('f8', 'float8', '{0,-0,1,NaN,NULL}'),
  ('f4', 'float4', '{0,-0,1}'), ('ci', 'text COLLATE either_case', '{a,A,b,B,NULL}'), ('tx', 'text', '{a,A,b,NULL}'),
  ('vc', 'varchar(9)', '{a,A,"a ",NULL}'), ('bp', 'bpchar', '{a,"a ","a  ",b}'), ('c5', 'char(5)', '{a,b,NULL}'),
  ('j', 'jsonb', '{1.0,1.00,"[1]","[1.0]","{\"a\": 1}","{\"a\": 1.0}",NULL}'), ('na', 'numeric[]', '{"{1.0,2}","{1.00,2}",NULL}'),
  ('fa', 'float8[]', '{"{0}","{-0}"}'), ('pa', 'pair', '{"(1.0,x)","(1.00,x)","(2,y)"}'), ('nr', 'numrange', '{"[1,2]","[1.0,2.00]",empty}'),
  ('nm', 'nummultirange', '{"{[1,2]}","{[1.0,2]}"}'), ('i', 'int', '{1,2,NULL}'), ('d', 'date', '{2024-01-01,infinity,NULL}'),
  ('tt', 'timetz', '{12:00+00,13:00+01,12:00+01}'), ('ip', 'inet', '{10.0.0.1,10.0.0.1/32,10.0.0.1/8}'), ('b', 'bool', '{t,f}'),
  ('by', 'bytea', '{a,b}'), ('u', 'uuid', '{6ecd8c99-4036-403d-bf84-cf8400f67836,6ECD8C994036403DBF84CF8400F67836}'), ('e', 'mood', '{low,high}'),
  ('bi', 'varbit', '{1,10,100}'), ('ts', 'timestamptz', '{2024-01-01 00:00+00,2024-01-01 01:00+01}');
SELECT string_agg(format('%s %s', name, type), ', ') AS columns,
       string_agg(format('(%L::text[])[1 + abs(hashint4(x * 31 + %s)) %% %s]::%s', equal, length(type), cardinality(equal), split_part(type, ' ', 1)), ', ') AS picks
FROM kinds \gset
CREATE TABLE r (x int, :columns);
INSERT INTO r SELECT x, :picks FROM generate_series(1, 400) x;
SELECT settle('r');
CREATE FUNCTION shown(anyelement) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1::text';
CREATE FUNCTION stored(anyelement) RETURNS int STABLE LANGUAGE sql AS 'SELECT pg_column_size($1)';
SELECT format('SELECT %L AS type, count(*), sum(c), min(m), max(m) FROM (SELECT DISTINCT %I, count(*) OVER w AS c, max(x) OVER w AS m FROM r WINDOW w AS (PARTITION BY %2$I)) s', type, name),
       format('SELECT DISTINCT %I::text COLLATE "C" AS t, md5(%1$I::text) AS h, count(*) OVER w, max(x) OVER w FROM r WINDOW w AS (PARTITION BY %1$I) ORDER BY 1 NULLS FIRST, 2, 3, 4', name),
       format('SELECT DISTINCT shown(%I) COLLATE "C", %1$I IS NULL, min(x) OVER w, count(DISTINCT 1) FROM r GROUP BY %1$I, x WINDOW w AS (PARTITION BY %1$I) ORDER BY 1, 2, 3', name),
       format('SELECT DISTINCT (shown(%I) || i) COLLATE "C", i, sum(x) OVER w FROM r WINDOW w AS (PARTITION BY i, %1$I) ORDER BY 1, 2, 3', name),
       format('SELECT count(*), sum(c) FROM (SELECT DISTINCT i + 1, count(%I::text) OVER w AS c, max(%1$I::text COLLATE "C") OVER w AS m FROM r WINDOW w AS (PARTITION BY i, %1$I)) s', name),
       format('SELECT count(*), sum(c) FROM (SELECT DISTINCT ROW(%I)::text, ARRAY[%1$I]::text COLLATE "C", coalesce(%1$I::text, ''-'') COLLATE "C", CASE WHEN x > 0 THEN %1$I::text END COLLATE "C", count(*) OVER w AS c FROM (SELECT * FROM r) r WINDOW w AS (PARTITION BY %1$I, x)) s', name)
FROM kinds ORDER BY name COLLATE "C" \gexec
-- DISTINCT may tell apart what the window does not.
SELECT DISTINCT pa, count(*) OVER (PARTITION BY pa) FROM r ORDER BY pa USING *<;
SELECT DISTINCT tx COLLATE either_case, count(*) OVER (PARTITION BY tx) FROM r WHERE tx = 'a' ORDER BY 2;
SELECT count(*) FROM (SELECT DISTINCT ci COLLATE "C", count(*) OVER (PARTITION BY ci) FROM r) s;
-- How a value is stored is not the value.
CREATE TABLE st (k text, v int);
ALTER TABLE st ALTER k SET STORAGE EXTERNAL;
INSERT INTO st SELECT repeat('k', 3000), x FROM generate_series(1, 10) x;
ALTER TABLE st ALTER k SET STORAGE PLAIN;
INSERT INTO st SELECT repeat('k', 3000), x FROM generate_series(1, 10) x;
SELECT DISTINCT pg_column_size(k) > 0, stored(k) > 0, length(k), count(*) OVER (PARTITION BY k) FROM st;
-- Order within a partition, as a sorted subquery gives it.
SELECT DISTINCT k, array_agg(id) OVER (PARTITION BY k) FROM (SELECT * FROM t WHERE id < 40 ORDER BY k, id DESC) s ORDER BY 1;
SELECT DISTINCT k, string_agg(l, ',') OVER (PARTITION BY k), json_agg(id) OVER (PARTITION BY k)::text FROM (SELECT * FROM t WHERE id < 40 ORDER BY k, id DESC) s ORDER BY 1;
CREATE FUNCTION later(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $2';
CREATE AGGREGATE last_seen(int) (SFUNC = later, STYPE = int, COMBINEFUNC = later, PARALLEL = SAFE);
SELECT DISTINCT k, last_seen(id) OVER (PARTITION BY k) FROM (SELECT * FROM t ORDER BY k, id DESC) s ORDER BY 1;
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
