-- Storage that is PLAIN only after wide values have come: rows keep them as they are, and can be changed.
SET firn.bulk_threshold = 100000;
CREATE TABLE s (id int PRIMARY KEY, v text, w int);
ALTER TABLE s ALTER v SET STORAGE EXTERNAL;
INSERT INTO s SELECT i, repeat('out of line ', 5000), 0 FROM generate_series(1, 5) i;
ALTER TABLE s ALTER v SET STORAGE EXTENDED;
INSERT INTO s SELECT i, repeat('r', 100000), 0 FROM generate_series(6, 10) i;
INSERT INTO s SELECT i, 'narrow ' || i, 0 FROM generate_series(11, 30) i;
ALTER TABLE s ALTER v SET STORAGE PLAIN;
SELECT settle('s');
UPDATE s SET w = 1 WHERE id IN (2, 7, 12);
UPDATE s SET w = w + 1;
SELECT settle('s');
DELETE FROM s WHERE id IN (3, 8, 13);
SELECT id, w, length(v), md5(v) FROM s ORDER BY id;
INSERT INTO s VALUES (40, repeat('r', 100000), 0);
UPDATE s SET v = v || 'x' WHERE id = 8;
UPDATE s SET v = repeat('y', 9000) WHERE id = 14;
UPDATE s SET v = 'short', w = 9 WHERE id IN (4, 9, 14);
SELECT count(*), sum(w), sum(length(v)) FROM s;
-- A type that is never put out of line.
CREATE TABLE o (id int PRIMARY KEY, v oidvector, t text);
INSERT INTO o SELECT i, (SELECT string_agg(j::text, ' ')::oidvector FROM generate_series(1, i * 40) j), repeat('t', i * 1000) FROM generate_series(1, 40) i;
SELECT settle('o');
UPDATE o SET t = t || 'u' WHERE id % 3 = 0;
SELECT count(*), sum(length(t)), md5(string_agg(v::text, ',' ORDER BY id)) FROM o;
