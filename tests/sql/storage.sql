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
-- Both rewrites of the table refuse values that they would have to put back into the row, and leave all as it was.
CLUSTER s USING s_pkey;
VACUUM FULL s;
DELETE FROM s WHERE v LIKE 'out of line%';
CLUSTER s USING s_pkey;
UPDATE s SET w = w + 1 WHERE id IN (7, 9, 20);
SELECT settle('s');
VACUUM FULL s;
UPDATE s SET w = w + 1 WHERE id IN (7, 10, 21);
SELECT id, w, length(v), md5(v) FROM s ORDER BY id;
-- Values with short headers, which become longer.
DO $$ BEGIN EXECUTE 'CREATE TABLE n (id int PRIMARY KEY, ' || (SELECT string_agg(format('v%s text', i), ', ') FROM generate_series(1, 65) i) || ')';
FOR i IN 1..65 LOOP EXECUTE format('ALTER TABLE n ALTER v%s SET STORAGE MAIN', i); END LOOP;
FOR i IN 1..20 LOOP EXECUTE 'INSERT INTO n SELECT ' || i || (SELECT string_agg(format(', substr(md5(''a%1$s %2$s'') || md5(''b%1$s %2$s'') || md5(''c%1$s %2$s'') || md5(''d%1$s %2$s''), 1, 123)', i, j), '') FROM generate_series(1, 65) j); END LOOP;
FOR i IN 1..65 LOOP EXECUTE format('ALTER TABLE n ALTER v%s SET STORAGE PLAIN', i); END LOOP; END $$;
SELECT settle('n');
UPDATE n SET id = id + 100 WHERE id % 2 = 0;
SELECT count(*), sum(id), md5(string_agg(n::text, ',' ORDER BY id)) FROM n;
-- A type that is never put out of line.
CREATE TABLE o (id int PRIMARY KEY, v oidvector, t text);
INSERT INTO o SELECT i, (SELECT string_agg(j::text, ' ')::oidvector FROM generate_series(1, i * 40) j), repeat('t', i * 1000) FROM generate_series(1, 40) i;
SELECT settle('o');
UPDATE o SET t = t || 'u' WHERE id % 3 = 0;
SELECT count(*), sum(length(t)), md5(string_agg(v::text, ',' ORDER BY id)) FROM o;
