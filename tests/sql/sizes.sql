-- Rows that no page takes, whatever is put out of line: refused however many come, and those beside them go where rows go.
SELECT format('CREATE TABLE fixed%s (%s)', n, string_agg('c' || g || ' bigint', ', ' ORDER BY g)) FROM (VALUES (1017), (1018), (1100)) t(n), generate_series(1, n) g GROUP BY n ORDER BY n \gexec
SELECT format('INSERT INTO fixed%s SELECT %s FROM generate_series(1, 20) i, LATERAL (SELECT CASE WHEN i > 10 THEN i END OFFSET 0) x(v)', n, string_agg('v', ', ')) FROM (VALUES (1017), (1018), (1100)) t(n), generate_series(1, n) g GROUP BY n ORDER BY n \gexec
SELECT format('INSERT INTO fixed%s SELECT %s FROM generate_series(1, 20) i', n, string_agg(CASE WHEN g BETWEEN 3 AND 102 THEN 'NULL' ELSE 'i' END, ', ' ORDER BY g)) FROM (VALUES (1017), (1018), (1100)) t(n), generate_series(1, n) g GROUP BY n ORDER BY n \gexec
SELECT count(*), sum(c1), sum(c1000) FROM fixed1017; SELECT count(*), sum(c1), sum(c1000) FROM fixed1018; SELECT count(*), sum(c1), sum(c1000), count(c3) FROM fixed1100;
INSERT INTO fixed1018 (c1, c2) SELECT i, i FROM generate_series(1, 20) i;
-- With the last row too large.
SELECT format('INSERT INTO fixed1018 SELECT * FROM fixed1018 UNION ALL SELECT %s', string_agg('1', ', ')) FROM generate_series(1, 1018) \gexec
SELECT settle('fixed1017'); SELECT settle('fixed1018'); SELECT settle('fixed1100');
UPDATE fixed1017 SET c2 = c2 + 1 WHERE c1 < 5; UPDATE fixed1018 SET c1018 = 7 WHERE c1 = 3; UPDATE fixed1100 SET c3 = 0;
SELECT count(*), sum(c1), sum(c2), sum(c3) FROM fixed1017; SELECT count(*), sum(c1), sum(c2), count(c1018) FROM fixed1018; SELECT count(*), sum(c1), sum(c3) FROM fixed1100;
SELECT count(*) FROM fixed1018 f WHERE f.c5 = 6 AND f IS NOT NULL;
-- Values out of line take 18 bytes each, those that can be compressed well less, and short ones what they are.
SELECT format('CREATE TABLE wide%s (%s)', n, string_agg('c' || g || ' text', ', ' ORDER BY g)) FROM (VALUES (300), (445), (460), (1000)) t(n), generate_series(1, n) g GROUP BY n ORDER BY n \gexec
CREATE FUNCTION filled(r text, n int, v text) RETURNS void LANGUAGE plpgsql AS
$$BEGIN EXECUTE format('INSERT INTO %s SELECT %s FROM generate_series(1, 12) i, LATERAL (SELECT CASE WHEN i > 8 THEN %s END AS v OFFSET 0) x', r, (SELECT string_agg('v', ', ') FROM generate_series(1, n)), v); END$$;
CREATE VIEW noise AS SELECT string_agg(md5(i::text), '') AS long FROM generate_series(1, 70) i;
SELECT filled('wide300', 300, '(SELECT long FROM noise)'); SELECT filled('wide445', 445, '(SELECT long FROM noise)');
SELECT filled('wide460', 460, '(SELECT long FROM noise)'); SELECT filled('wide1000', 300, '(SELECT long FROM noise)');
SELECT filled('wide460', 460, 'repeat(''a'', 60)'); SELECT filled('wide460', 460, '''short'''); SELECT filled('wide460', 460, 'repeat(''a'', 21)'); SELECT filled('wide460', 460, 'left(md5(''1''), 30)');
SELECT filled('wide1000', 1000, '''sevenby'''); SELECT filled('wide1000', 1000, '''eight by'''); SELECT filled('wide1000', 1000, 'i::text'); SELECT filled('wide1000', 990, '''sevenby''');
SELECT 'wide300', count(*), sum(length(c1)), sum(length(c300)) FROM wide300 UNION ALL SELECT 'wide445', count(*), sum(length(c1)), sum(length(c445)) FROM wide445
  UNION ALL SELECT 'wide460', count(*), sum(length(c1)), sum(length(c460)) FROM wide460 UNION ALL SELECT 'wide1000', count(*), sum(length(c1)), sum(length(c990)) FROM wide1000 ORDER BY 1;
SELECT settle('wide445'); SELECT settle('wide460');
UPDATE wide445 SET c1 = 'other'; UPDATE wide460 SET c1 = 'other' WHERE c2 = 'short'; SELECT count(*), sum(length(c1)), sum(length(c440)) FROM wide445; SELECT count(*), sum(length(c1)) FROM wide460;
-- COPY gives many rows at a time.
SELECT string_agg(format('ALTER TABLE wide460 ALTER c%s SET DEFAULT (repeat(md5(''%s''), 70))', g, g), '; ') FROM generate_series(2, 440) g \gexec
COPY wide460 (c1) FROM STDIN;
1
2
3
4
5
6
7
8
\.
SELECT string_agg(format('ALTER TABLE wide460 ALTER c%s SET DEFAULT (repeat(md5(''%s''), 70))', g, g), '; ') FROM generate_series(441, 460) g \gexec
COPY wide460 (c1) FROM STDIN;
1
2
3
4
5
6
7
8
\.
SELECT count(*), sum(length(c1)), sum(length(c440)) FROM wide460;
-- What must stay in line.
CREATE TABLE plain (id int, v text, w text); ALTER TABLE plain ALTER v SET STORAGE PLAIN, ALTER w SET STORAGE MAIN;
INSERT INTO plain SELECT i, repeat('x', 8000), repeat(md5(i::text), 1000) FROM generate_series(1, 20) i;
INSERT INTO plain SELECT i, repeat('x', 8080 + i), repeat(md5(i::text), 1000) FROM generate_series(1, 20) i;
INSERT INTO plain SELECT i, repeat('x', 8090 + i), repeat(md5(i::text), 1000) FROM generate_series(1, 20) i;
INSERT INTO plain SELECT i, CASE WHEN i > 10 THEN repeat('x', 9000) END, NULL FROM generate_series(1, 20) i;
INSERT INTO plain SELECT i, CASE WHEN i = 15 THEN repeat('x', 9000) END, 'w' FROM generate_series(1, 20) i;
SELECT settle('plain'); UPDATE plain SET id = id + 1; SELECT count(*), sum(id), sum(length(v)), sum(length(w)) FROM plain;
CREATE TABLE again AS TABLE plain; SELECT count(*), sum(length(v)) FROM again;
ALTER TABLE plain SET ACCESS METHOD heap; SELECT count(*), sum(id), sum(length(v)), sum(length(w)) FROM plain;
