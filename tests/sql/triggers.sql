-- Triggers of every kind on rows in the row store and in stripes.
CREATE TABLE log (n serial, what text) USING heap;
CREATE TABLE t (id int PRIMARY KEY, v text, n int DEFAULT 1, g int GENERATED ALWAYS AS (n * 2) STORED);
INSERT INTO t (id, v, n) SELECT i, 'v' || i, i FROM generate_series(1, 40) i;
SELECT settle('t');
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO log (what) VALUES (format('%s %s %s %s: %s -> %s', TG_NAME, TG_WHEN, TG_LEVEL, TG_OP,
        CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'INSERT' THEN OLD::text END,
        CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'DELETE' THEN NEW::text END));
    IF TG_WHEN = 'AFTER' OR TG_LEVEL = 'STATEMENT' THEN RETURN NULL; END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER br BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER ar AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER bs BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION note();
CREATE TRIGGER ast AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION note();
INSERT INTO t (id, v) SELECT i, 'new' FROM generate_series(41, 52) i;
UPDATE t SET n = n + 100 WHERE id IN (3, 45);
DELETE FROM t WHERE id IN (4, 46);
UPDATE t SET n = 0 WHERE id = -1;
INSERT INTO t (id, v) VALUES (5, 'c'), (60, 'c') ON CONFLICT (id) DO UPDATE SET v = 'conflict';
SELECT what FROM log ORDER BY what COLLATE "C";
TRUNCATE log;
DROP TRIGGER br ON t; DROP TRIGGER ar ON t; DROP TRIGGER bs ON t; DROP TRIGGER ast ON t;
-- WHEN, UPDATE OF, and columns that did not change
CREATE TRIGGER w AFTER UPDATE OF v ON t FOR EACH ROW WHEN (OLD.v IS DISTINCT FROM NEW.v) EXECUTE FUNCTION note();
UPDATE t SET v = v WHERE id < 10;
UPDATE t SET n = 5 WHERE id < 10;
UPDATE t SET v = 'other' WHERE id BETWEEN 8 AND 11;
SELECT what FROM log ORDER BY what COLLATE "C";
TRUNCATE log; DROP TRIGGER w ON t;
-- transition tables of statements on both kinds of rows
CREATE FUNCTION totals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO log (what) SELECT format('upd %s %s', (SELECT sum(n) FROM o), (SELECT sum(n) FROM w));
    ELSIF TG_OP = 'DELETE' THEN INSERT INTO log (what) SELECT format('del %s %s', count(*), sum(n)) FROM o;
    ELSE INSERT INTO log (what) SELECT format('ins %s %s', count(*), sum(n)) FROM w;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER ti AFTER INSERT ON t REFERENCING NEW TABLE AS w FOR EACH STATEMENT EXECUTE FUNCTION totals();
CREATE TRIGGER tu AFTER UPDATE ON t REFERENCING OLD TABLE AS o NEW TABLE AS w FOR EACH STATEMENT EXECUTE FUNCTION totals();
CREATE TRIGGER td AFTER DELETE ON t REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION totals();
INSERT INTO t (id, v, n) SELECT i, 'tt', i FROM generate_series(100, 130) i;
UPDATE t SET n = n + 1 WHERE id % 2 = 0;
DELETE FROM t WHERE id % 7 = 0;
WITH d AS (DELETE FROM t WHERE id > 125 RETURNING id), u AS (UPDATE t SET n = 0 WHERE id = 1 RETURNING id)
    SELECT count(*) FROM d;
SELECT what FROM log ORDER BY what COLLATE "C";
TRUNCATE log; DROP TRIGGER ti ON t; DROP TRIGGER tu ON t; DROP TRIGGER td ON t;
-- a BEFORE trigger that changes, swallows, and fails
CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id % 10 = 3 THEN RETURN NULL; END IF;
    IF NEW.v = 'bad' THEN RAISE EXCEPTION 'no %', NEW.id; END IF;
    NEW.v := upper(NEW.v);
    RETURN NEW;
END $$;
CREATE TRIGGER gate BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION gate();
INSERT INTO t (id, v) SELECT i, 'gated' FROM generate_series(200, 220) i RETURNING id, v, g;
INSERT INTO t (id, v) SELECT i, CASE WHEN i = 319 THEN 'bad' ELSE 'fine' END FROM generate_series(300, 320) i;
SELECT count(*) FROM t WHERE id >= 300;
WITH u AS (UPDATE t SET v = 'x' WHERE id BETWEEN 1 AND 14 RETURNING id, v) SELECT * FROM u ORDER BY id;
DROP TRIGGER gate ON t;
-- a trigger that reads and writes the table it is on
CREATE FUNCTION recurse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id < 1000 THEN
        INSERT INTO t (id, v, n) VALUES (NEW.id + 1000, 'echo', (SELECT count(*) FROM t WHERE id >= 400 AND id < 1000));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER recurse AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION recurse();
INSERT INTO t (id, v) SELECT i, 'src' FROM generate_series(400, 412) i;
SELECT id, v, n FROM t WHERE id >= 1000 ORDER BY id;
DROP TRIGGER recurse ON t;
-- constraint triggers at the end of the transaction see the final row
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO log (what) VALUES (format('late %s %s', TG_OP, NEW)); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
BEGIN;
INSERT INTO t (id, v) SELECT i, 'def' FROM generate_series(500, 510) i;
UPDATE t SET v = 'twice' WHERE id IN (505, 12);
SAVEPOINT s;
UPDATE t SET v = 'undone' WHERE id = 506;
ROLLBACK TO s;
SELECT count(*) FROM log;
COMMIT;
SELECT what FROM log ORDER BY what COLLATE "C";
TRUNCATE log; DROP TRIGGER late ON t;
-- INSTEAD OF on a view, and an updatable view WITH CHECK OPTION
CREATE VIEW small AS SELECT id, v FROM t WHERE id < 100 WITH CHECK OPTION;
UPDATE small SET v = 'by view' WHERE id = 12 RETURNING *;
UPDATE small SET id = 5000 WHERE id = 12;
INSERT INTO small VALUES (4999, 'no');
DELETE FROM small WHERE id = 14 RETURNING *;
-- rules
CREATE RULE r AS ON DELETE TO t DO ALSO INSERT INTO log (what) VALUES ('rule ' || OLD.id);
DELETE FROM t WHERE id BETWEEN 15 AND 17;
SELECT what FROM log ORDER BY what;
-- moving a row between partitions fires DELETE and INSERT
CREATE TABLE p (k int, v text) PARTITION BY LIST (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);
INSERT INTO p SELECT 1 + i % 2, 'p' || i FROM generate_series(1, 30) i;
SELECT settle('p1'), settle('p2');
TRUNCATE log;
CREATE TRIGGER prow AFTER INSERT OR UPDATE OR DELETE ON p FOR EACH ROW EXECUTE FUNCTION note();
UPDATE p SET k = 2 WHERE v IN ('p2', 'p4');
SELECT what FROM log ORDER BY what COLLATE "C";
