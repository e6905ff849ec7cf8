-- Rows that one command reads one by one, again and again, with other columns each time: triggers that read the same table, definitions that
-- change between commands, errors in the middle.
CREATE TABLE r (id int PRIMARY KEY, gone int, k int, c0 text, c1 text, c2 text, c3 text, c4 text, c5 text, c6 text, c7 text, c8 text, c9 text, c10 text, c11 text, c12 text, c13 text);
INSERT INTO r SELECT i, -i, i % 10, 'c0 ' || i % 3, 'c1 ' || i % 4, 'c2 ' || i % 5, 'c3 ' || i % 6, 'c4 ' || i % 7, 'c5 ' || i % 8, 'c6 ' || i % 9, 'c7 ' || i % 10, 'c8 ' || i % 11, 'c9 ' || i % 12, 'c10 ' || i % 13, 'c11 ' || i % 14, 'c12 ' || i % 15, 'c13 ' || i % 16 FROM generate_series(1, 1500) i;
SELECT settle('r');
CREATE FUNCTION of_r() RETURNS text LANGUAGE plpgsql AS $$
DECLARE found text;
BEGIN
    EXECUTE 'SELECT format(''%s %s %s %s'', count(*), sum(id), sum(k), md5(string_agg(r::text, '','' ORDER BY id))) FROM r' INTO found;
    RETURN found;
END $$;
SELECT of_r();
CREATE TABLE seen (n serial, what text) USING heap;
CREATE FUNCTION neighbour() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE other r; text0 text;
BEGIN
    SELECT * INTO other FROM r WHERE id = OLD.id + 7;
    SELECT c3 INTO text0 FROM r WHERE id = OLD.id + 300;
    INSERT INTO seen (what) VALUES (format('%s %s: %s, %s, %s', TG_OP, OLD.id, OLD.c1, other.c13, text0));
    IF OLD.id % 50 = 0 THEN RAISE division_by_zero USING MESSAGE = 'row ' || OLD.id; END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER neighbour BEFORE UPDATE OR DELETE ON r FOR EACH ROW EXECUTE FUNCTION neighbour();
SET enable_seqscan = off;
UPDATE r SET c2 = 'changed', k = k + 1 WHERE id BETWEEN 101 AND 130;
DELETE FROM r WHERE id BETWEEN 401 AND 430;
-- an error in the middle, and the same rows once more
UPDATE r SET c2 = 'not' WHERE id BETWEEN 140 AND 160;
UPDATE r SET c2 = 'yes' WHERE id BETWEEN 140 AND 149;
DO $$ BEGIN FOR n IN 195..205 LOOP BEGIN
    UPDATE r SET c4 = c5 || n WHERE id = n;
    EXCEPTION WHEN division_by_zero THEN DELETE FROM r WHERE id = n + 1; END; END LOOP; END $$;
SELECT of_r();
SELECT md5(string_agg(what, ',' ORDER BY what COLLATE "C")), count(*) FROM seen;
-- columns that stripes lack, and that the table lacks
ALTER TABLE r ADD COLUMN late text DEFAULT 'late default';
ALTER TABLE r ADD COLUMN later int;
UPDATE r SET later = length(late) + k WHERE id BETWEEN 501 AND 520;
ALTER TABLE r DROP COLUMN gone;
UPDATE r SET c6 = late WHERE id BETWEEN 515 AND 530;
SELECT id, late, later, c6 FROM r WHERE id BETWEEN 513 AND 522 ORDER BY id;
ALTER TABLE r ADD COLUMN gone text DEFAULT 'another';
UPDATE r SET c7 = gone, gone = late WHERE id BETWEEN 525 AND 540;
ALTER TABLE r ALTER COLUMN late SET DEFAULT 'of new ones';
ALTER TABLE r ALTER COLUMN k TYPE bigint;
SELECT settle('r');
UPDATE r SET k = k * 100000000000 WHERE id BETWEEN 535 AND 545;
SELECT id, k, c7, late, later, gone FROM r WHERE id BETWEEN 523 AND 548 ORDER BY id;
SELECT of_r();
-- rows that are locked, looked at and changed in turn, by two indexes
CREATE INDEX ON r (c0, id);
BEGIN;
DECLARE a CURSOR FOR SELECT id, c1, late FROM r WHERE id BETWEEN 600 AND 640 ORDER BY id FOR UPDATE;
FETCH 3 FROM a;
UPDATE r SET c1 = 'by cursor' WHERE CURRENT OF a;
SELECT c1, c2, k FROM r WHERE c0 = 'c0 1' AND id BETWEEN 600 AND 610 ORDER BY id;
FETCH 3 FROM a;
DELETE FROM r WHERE CURRENT OF a;
SAVEPOINT s;
UPDATE r SET c1 = 'undone' WHERE id BETWEEN 610 AND 620;
ROLLBACK TO s;
FETCH 2 FROM a;
COMMIT;
INSERT INTO r (id, k, c1) SELECT i, 1, 'put' FROM generate_series(601, 625) i ON CONFLICT (id) DO UPDATE SET c1 = excluded.c1 || r.c1 || coalesce(r.late, '-');
SELECT of_r();
SELECT md5(string_agg(what, ',' ORDER BY what COLLATE "C")), count(*) FROM seen;
