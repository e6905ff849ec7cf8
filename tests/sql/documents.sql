-- Wide values, so many that a stripe has hundreds of pages of them: look-ups, scans, changes, added and dropped columns.
CREATE TABLE d (id int, gone text, doc jsonb, note text, rest json, x xml);
CREATE FUNCTION long(i int, n int) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT string_agg(md5((i * 7 + g)::text), ' ') FROM generate_series(1, n) g $$;
CREATE FUNCTION fill(low int, high int) RETURNS void LANGUAGE sql AS $$
  INSERT INTO d SELECT i, long(i, 40), CASE WHEN i % 500 < 60 THEN NULL ELSE jsonb_build_object('k', i, 'v', long(i, 1 + i % 12), 'l', jsonb_build_array(i % 7, NULL, i % 3 = 0)) END,
    CASE WHEN i % 11 > 0 THEN long(i, 30 + i % 5) || i END, json_build_object('n', i, 't', long(i, 9)), CASE WHEN i % 2 = 0 THEN ('<a n="' || i || '">' || long(i, 5) || '</a>')::xml END
  FROM generate_series(low, high) i $$;
SELECT fill(1, 9000);
SELECT settle('d');
CREATE UNIQUE INDEX ON d (id); CREATE INDEX ON d ((doc ->> 'k'));
ANALYZE d;
CREATE VIEW seen AS SELECT count(*) AS rows, count(doc) AS docs, count(note) AS notes, sum(hashtext(doc::text)::bigint) AS doc, sum(hashtext(note)::bigint) AS note, sum(hashtext(rest::text)::bigint) AS rest, sum(hashtext(x::text)::bigint) AS x FROM d;
SELECT * FROM seen;
SELECT id, md5(doc::text), md5(note), md5(rest::text), md5(x::text) FROM d WHERE id IN (1, 59, 60, 61, 2048, 4095, 4096, 8999, 9000, 9001) ORDER BY id;
SELECT id, doc -> 'l' FROM d WHERE doc ->> 'k' IN ('777', '778', '5000', '8999') ORDER BY id;
-- In the order of the rows, against it, and here and there.
SET enable_seqscan = off; SET enable_bitmapscan = off;
SELECT sum(hashtext(doc::text)::bigint), sum(hashtext(note)::bigint) FROM (SELECT * FROM d WHERE id BETWEEN 3000 AND 5000 ORDER BY id OFFSET 0) s;
SELECT sum(hashtext(doc::text)::bigint), sum(hashtext(note)::bigint) FROM (SELECT * FROM d WHERE id BETWEEN 3000 AND 5000 ORDER BY id DESC OFFSET 0) s;
SELECT sum(hashtext(d.doc::text)::bigint), sum(hashtext(d.rest::text)::bigint), count(d.note) FROM generate_series(1, 3000) i, LATERAL (SELECT * FROM d WHERE d.id = 1 + i * 7919 % 9000) d;
RESET enable_seqscan; RESET enable_bitmapscan;
-- Conditions on pages: texts have least and greatest ones, documents have not.
SELECT count(*), min(id), max(id) FROM d WHERE note >= 'f' AND note < 'f4';
SELECT count(*) FROM d WHERE note = (SELECT note FROM d WHERE id = 8643);
SELECT count(*) FROM d WHERE note LIKE '00%' OR note IS NULL;
SELECT count(*) FROM d WHERE doc IS NULL; SELECT count(*) FROM d WHERE doc @> '{"l": [3]}' AND id > 4000;
SELECT id FROM d WHERE rest ->> 'n' = '8000';
-- Changes, and columns that come and go.
UPDATE d SET doc = jsonb_set(doc, '{k}', '"changed"') WHERE id % 1000 = 1; DELETE FROM d WHERE id BETWEEN 300 AND 340;
ALTER TABLE d DROP COLUMN gone; ALTER TABLE d ADD COLUMN gone text DEFAULT repeat('late ', 30); ALTER TABLE d RENAME note TO remark;
SELECT fill2 FROM (SELECT count(*) AS fill2 FROM d) s;
SELECT count(*), sum(hashtext(doc::text)::bigint), sum(hashtext(gone)::bigint), sum(hashtext(remark)::bigint) FROM d;
SELECT id, md5(doc::text), left(gone, 6) FROM d WHERE id IN (1, 1001, 2001, 299, 300, 341) ORDER BY id;
SELECT settle('d');
SELECT count(*), sum(hashtext(doc::text)::bigint), sum(hashtext(gone)::bigint), sum(hashtext(remark)::bigint), sum(hashtext(x::text)::bigint) FROM d;
VACUUM FULL d;
SELECT count(*), sum(hashtext(doc::text)::bigint), sum(hashtext(gone)::bigint), sum(hashtext(remark)::bigint) FROM d;
-- One row a page; all of a column NULL.
CREATE TABLE large (id int PRIMARY KEY, v text, nothing text);
ALTER TABLE large ALTER v SET STORAGE EXTERNAL;
INSERT INTO large SELECT i, repeat(md5(i::text), 600 + i % 5), NULL FROM generate_series(1, 400) i;
SELECT settle('large');
SELECT count(*), sum(length(v)), count(nothing), sum(hashtext(v)::bigint) FROM large;
SELECT id, md5(v), nothing FROM large WHERE id IN (1, 255, 256, 257, 400) ORDER BY id;
SELECT id, right(v, 5) FROM large WHERE v LIKE md5('123') || '%';
