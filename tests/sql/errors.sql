-- What a client learns of an error raised by its own code: message, SQLSTATE, DETAIL, HINT, CONTEXT, the
-- names of schema, table, column, type and constraint, positions, and the place in PostgreSQL's source.
\set VERBOSITY verbose
\set SHOW_CONTEXT always
CREATE TABLE t (id int, n int, v text);
INSERT INTO t SELECT i, i % 7, 'v' || i FROM generate_series(1, 40) i;
SELECT settle('t');
CREATE FUNCTION boom(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF i = 5 THEN
        RAISE EXCEPTION 'boom at %', i USING ERRCODE = 'AB123', DETAIL = 'what happened', HINT = 'what to do',
            SCHEMA = 'a schema', TABLE = 'a table', COLUMN = 'a column', DATATYPE = 'a type', CONSTRAINT = 'a constraint';
    END IF;
    RETURN i;
END $$;
CREATE FUNCTION outer_boom(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE r int;
BEGIN
    EXECUTE 'SELECT boom($1)' INTO r USING i;
    RETURN r;
END $$;
CREATE FUNCTION says(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF i % 20 = 0 THEN RAISE NOTICE 'saw %', i USING DETAIL = 'a detail'; END IF;
    RETURN i;
END $$;
CREATE FUNCTION wrong(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE r int;
BEGIN
    IF i = 6 THEN EXECUTE 'SELECT 1 + nothing_like_it' INTO r; END IF;
    RETURN i;
END $$;
CREATE FUNCTION again(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN boom(i);
EXCEPTION WHEN OTHERS THEN
    BEGIN
        PERFORM 1 / (i - i);
    EXCEPTION WHEN division_by_zero THEN NULL;
    END;
    RAISE EXCEPTION 'again' USING CONSTRAINT = 'second';
END $$;
CREATE FUNCTION rethrows(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN boom(i);
EXCEPTION WHEN OTHERS THEN
    BEGIN
        PERFORM 1 / (i - i);
    EXCEPTION WHEN division_by_zero THEN NULL;
    END;
    RAISE;
END $$;
CREATE FUNCTION sleepy(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF i = 8 THEN PERFORM pg_sleep(60); END IF;
    RETURN i;
END $$;
CREATE FUNCTION swallows(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN boom(i);
EXCEPTION WHEN OTHERS THEN
    RETURN -1;
END $$;
-- scans
SELECT boom(id) FROM t;
SELECT id FROM t WHERE boom(id) > 3;
SELECT id FROM t WHERE n = 5 AND outer_boom(id) > 0;
SELECT sum(outer_boom(id)) FROM t;
SELECT id, 10 / (id - 5) FROM t;
SELECT v::int FROM t;
-- index builds
CREATE INDEX ON t (boom(id));
CREATE INDEX ON t (outer_boom(id));
CREATE INDEX ON t (wrong(id));
CREATE INDEX ON t (again(id));
CREATE INDEX ON t (rethrows(id));
SET statement_timeout = '300ms';
CREATE INDEX ON t (sleepy(id));
SET statement_timeout = 0;
CREATE INDEX ON t ((10 / (id - 5)));
CREATE INDEX ON t ((v::int));
CREATE INDEX ON t (id) WHERE boom(id) > 0;
CREATE INDEX ON t (id) WHERE 10 / (id - 5) > 0;
CREATE UNIQUE INDEX unique_n ON t (n);
CREATE UNIQUE INDEX unique_says ON t ((says(id) % 7));
CREATE INDEX says_id ON t (says(id));
CREATE INDEX swallows_id ON t (swallows(id));
CREATE INDEX swallows_boom ON t (swallows(id), boom(id + 100), boom(id));
DROP INDEX swallows_id;
CREATE INDEX CONCURRENTLY broken ON t (boom(id));
DROP INDEX broken;
CREATE UNIQUE INDEX CONCURRENTLY broken ON t (n);
DROP INDEX broken;
CREATE INDEX ON t USING hash (outer_boom(id));
CREATE INDEX ON t USING gist (point(boom(id), 0));
CREATE INDEX ON t USING gin ((ARRAY[boom(id)]));
ALTER TABLE t ADD PRIMARY KEY (n);
ALTER TABLE t ADD CONSTRAINT apart EXCLUDE USING btree (n WITH =);
-- the error as PL/pgSQL sees it
DO $$
DECLARE
    state text; message text; detail text; hint text; context text; col text; con text; typ text; tab text; sch text;
BEGIN
    CREATE INDEX ON t (outer_boom(id));
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
        hint = PG_EXCEPTION_HINT, context = PG_EXCEPTION_CONTEXT, col = COLUMN_NAME, con = CONSTRAINT_NAME,
        typ = PG_DATATYPE_NAME, tab = TABLE_NAME, sch = SCHEMA_NAME;
    RAISE NOTICE '% | % | % | % | % | % | % | % | % | %', state, message, detail, hint, context, col, con, typ, tab, sch;
END $$;
-- rewrites and checks of the whole table
ALTER TABLE t ALTER n TYPE int USING boom(id);
ALTER TABLE t ADD c int DEFAULT boom(5);
ALTER TABLE t ADD g int GENERATED ALWAYS AS (boom(id)) STORED;
ALTER TABLE t ADD CONSTRAINT below CHECK (id < 30);
ALTER TABLE t ADD CONSTRAINT calm CHECK (boom(id) > 0);
ALTER TABLE t ADD CONSTRAINT later CHECK (id <> 33) NOT VALID;
ALTER TABLE t VALIDATE CONSTRAINT later;
ALTER TABLE t DROP CONSTRAINT later;
CREATE DOMAIN small AS int CONSTRAINT is_small CHECK (VALUE < 30);
ALTER TABLE t ALTER id TYPE small;
CREATE TABLE one (id int PRIMARY KEY);
INSERT INTO one VALUES (0);
ALTER TABLE t ADD CONSTRAINT known FOREIGN KEY (n) REFERENCES one;
-- writing: constraints, triggers, generated columns, RETURNING
CREATE TABLE w (id int PRIMARY KEY, n int NOT NULL CONSTRAINT low CHECK (n < 35), d small,
    g int GENERATED ALWAYS AS (100 / (n - 20)) STORED);
INSERT INTO w SELECT i, i, 1 FROM generate_series(1, 40) i;
INSERT INTO w SELECT i, 40 - i, 1 FROM generate_series(8, 40) i;
INSERT INTO w SELECT i, nullif(i, 12), 1 FROM generate_series(1, 19) i;
INSERT INTO w SELECT i, i, i * 3 FROM generate_series(1, 19) i;
INSERT INTO w SELECT boom(id), n, 1 FROM t;
INSERT INTO w SELECT id % 9, n, 1 FROM t;
INSERT INTO w SELECT id, n, 1 FROM t;
SELECT settle('w');
INSERT INTO w SELECT 100 + id, n, 1 FROM t RETURNING boom(n);
INSERT INTO w SELECT id + 30, n, 1 FROM t;
UPDATE w SET n = boom(id);
UPDATE w SET n = 36 WHERE id = 7;
UPDATE w SET id = id + 1 WHERE id < 10;
UPDATE w SET n = 20 WHERE id = 9;
DELETE FROM w WHERE boom(id) = 1;
INSERT INTO w VALUES (1, 1, 1) ON CONFLICT (id) DO UPDATE SET n = boom(5);
MERGE INTO w USING t ON w.id = t.id WHEN MATCHED AND boom(w.id) > 0 THEN DELETE;
CREATE FUNCTION trip() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM boom(NEW.n);
    RETURN NEW;
END $$;
CREATE TRIGGER trip BEFORE INSERT OR UPDATE ON w FOR EACH ROW EXECUTE FUNCTION trip();
INSERT INTO w SELECT 200 + i, i, 1 FROM generate_series(1, 19) i;
UPDATE w SET n = 5;
DROP TRIGGER trip ON w;
CREATE TRIGGER trip AFTER INSERT OR UPDATE ON w FOR EACH ROW EXECUTE FUNCTION trip();
INSERT INTO w SELECT 200 + i, i, 1 FROM generate_series(1, 19) i;
UPDATE w SET n = 5;
DROP TRIGGER trip ON w;
-- COPY
COPY w (id, n) FROM stdin;
301	1
302	2
303	3
304	4
305	5
306	6
307	many
\.
COPY w (id, n, d) FROM stdin;
301	1	1
302	2	1
303	3	1
304	4	1
305	5	1
306	6	1
307	7	31
\.
COPY w (id, n) FROM stdin;
301	1
302	2
303	3
304	4
305	5
306	6
307	7
308	8
5	9
\.
COPY w (id, n) FROM stdin;
301	1
302	2
303	3
304	4
305	5
306	6
307	37
\.
CREATE TRIGGER trip BEFORE INSERT ON w FOR EACH ROW EXECUTE FUNCTION trip();
COPY w (id, n) FROM stdin;
301	1
302	2
303	3
304	4
306	6
307	7
308	5
\.
DROP TRIGGER trip ON w;
COPY (SELECT boom(id) FROM t) TO stdout;
-- maintenance of a table whose index expression has begun to fail
CREATE TABLE m (id int, n int);
INSERT INTO m SELECT i, i FROM generate_series(1, 40) i;
SELECT settle('m');
CREATE TABLE switch (broken bool);
INSERT INTO switch VALUES (false);
CREATE FUNCTION fragile(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF i = 9 AND (SELECT broken FROM public.switch) THEN PERFORM public.boom(5); END IF;
    RETURN i;
END $$;
CREATE INDEX m_fragile ON m (fragile(id));
UPDATE switch SET broken = true;
ANALYZE m;
REINDEX TABLE m;
REINDEX INDEX CONCURRENTLY m_fragile;
DROP INDEX m_fragile_ccnew;
CLUSTER m USING m_fragile;
VACUUM FULL m;
INSERT INTO m SELECT i, i FROM generate_series(1, 20) i;
UPDATE m SET id = 9 WHERE id = 40;
CREATE MATERIALIZED VIEW mv AS SELECT fragile(id) FROM m;
CREATE TABLE made AS SELECT fragile(id) FROM m;
SELECT count(*), sum(id) FROM m;
UPDATE switch SET broken = false;
ANALYZE m;
SELECT count(*) FROM m WHERE fragile(id) = 9;
-- errors that are caught on the way leave nothing behind
CREATE TABLE many (id int);
INSERT INTO many SELECT 5 FROM generate_series(1, 5000);
CREATE INDEX ON many (swallows(id));
SELECT count(*) < 10, coalesce(sum(total_bytes), 0) < 100000 FROM pg_backend_memory_contexts WHERE name LIKE 'firn%';
SELECT total_bytes < 1000000 FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext';
