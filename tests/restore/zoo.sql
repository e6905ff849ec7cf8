-- One of everything that pg_dump knows, small: what the selection flags choose from. Names of schemas: a, b, "Odd Name".
CREATE SCHEMA a AUTHORIZATION zoo_owner;
CREATE SCHEMA b;
CREATE SCHEMA "Odd Name";
COMMENT ON SCHEMA b IS 'the second one';

CREATE TYPE a.mood AS ENUM ('sad', 'ok', 'it''s "good"');
CREATE TYPE a.pair AS (x integer, y text COLLATE "C");
CREATE TYPE b.span AS RANGE (subtype = double precision, subtype_diff = float8mi);
CREATE DOMAIN a.positive AS integer DEFAULT 1 CONSTRAINT positive_check CHECK (VALUE > 0);
CREATE COLLATION b.plain FROM "C";

CREATE FUNCTION a.double(n integer) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT n * 2';
CREATE FUNCTION a.double(n text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT n || n';
CREATE FUNCTION b.quote(t text) RETURNS text LANGUAGE plpgsql AS $quote$
BEGIN
    -- a semicolon; a 'quote'; $$ dollars $$
    RETURN 'x;' || t;
END $quote$;
CREATE PROCEDURE b.nothing(INOUT n integer DEFAULT 3) LANGUAGE sql AS 'SELECT n';
CREATE AGGREGATE b.product(integer) (SFUNC = int4mul, STYPE = integer, INITCOND = '1');
CREATE FUNCTION b.noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE OPERATOR a.### (LEFTARG = integer, RIGHTARG = integer, FUNCTION = int4mul, COMMUTATOR = OPERATOR(a.###));
CREATE CAST (a.mood AS integer) WITH INOUT;

CREATE TABLE a.people (
    id integer GENERATED ALWAYS AS IDENTITY (START WITH 100 INCREMENT BY 5) PRIMARY KEY,
    name text NOT NULL COLLATE b.plain,
    mood a.mood DEFAULT 'ok',
    age a.positive,
    twice integer GENERATED ALWAYS AS (a.double(2)) STORED,
    place a.pair,
    note text
);
CREATE TABLE a.orders (
    id bigserial PRIMARY KEY,
    person integer NOT NULL REFERENCES a.people ON DELETE CASCADE,
    period b.span,
    data bytea,
    EXCLUDE USING gist (period WITH &&) WHERE (period IS NOT NULL)
);
CREATE TABLE "Odd Name"."Table; with ""quotes""" ("Col 1" integer, "sélect" text, CONSTRAINT "Key" UNIQUE ("Col 1") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE b.parent (id integer NOT NULL, v text DEFAULT 'p', CHECK (id <> 7));
CREATE TABLE b.child (extra integer) INHERITS (b.parent);
ALTER TABLE b.child ALTER v SET DEFAULT 'c';
CREATE TABLE b.measured (at timestamptz NOT NULL, place integer, v double precision) PARTITION BY RANGE (at);
CREATE TABLE b.measured_2023 PARTITION OF b.measured FOR VALUES FROM ('2023-01-01') TO ('2024-01-01') PARTITION BY LIST (place);
CREATE TABLE b.measured_2023_1 PARTITION OF b.measured_2023 FOR VALUES IN (1, NULL);
CREATE TABLE b.measured_2023_rest PARTITION OF b.measured_2023 DEFAULT;
-- Its columns stand in another order than its parent's, one was dropped.
CREATE TABLE b.measured_2024 (gone text, v double precision, place integer, at timestamptz NOT NULL);
ALTER TABLE b.measured_2024 DROP COLUMN gone;
ALTER TABLE b.measured ATTACH PARTITION b.measured_2024 FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE b.measured_rest PARTITION OF b.measured DEFAULT WITH (fillfactor = 70);
CREATE TABLE b.hashed (id integer PRIMARY KEY, v text) PARTITION BY HASH (id);
CREATE TABLE b.hashed_0 PARTITION OF b.hashed FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE b.hashed_1 PARTITION OF b.hashed FOR VALUES WITH (MODULUS 2, REMAINDER 1);
ALTER TABLE b.hashed_1 ADD CONSTRAINT own CHECK (id > -100);
CREATE UNLOGGED TABLE b.scratch (id integer);
CREATE TABLE b.empty ();
CREATE TABLE b.typed OF a.pair (x WITH OPTIONS DEFAULT 5);

CREATE INDEX people_lower ON a.people (lower(name), a.double(age)) WHERE age > 3;
CREATE INDEX people_covering ON a.people USING btree (mood) INCLUDE (name);
CREATE INDEX measured_place ON b.measured (place, at DESC);
CREATE INDEX orders_data ON a.orders USING hash (data);
ALTER TABLE a.people CLUSTER ON people_pkey;
ALTER TABLE a.people REPLICA IDENTITY USING INDEX people_pkey;
ALTER TABLE a.people ALTER name SET STATISTICS 500, ALTER note SET STORAGE EXTERNAL;
CREATE STATISTICS b.both (ndistinct, dependencies) ON mood, age FROM a.people;

CREATE SEQUENCE b.counter MINVALUE -5 START WITH -3 CYCLE;
SELECT nextval('b.counter'), nextval('b.counter');

CREATE VIEW a.adults AS SELECT id, name, age FROM a.people WHERE age >= 18 WITH CASCADED CHECK OPTION;
CREATE VIEW b.adult_names WITH (security_barrier) AS SELECT name FROM a.adults ORDER BY name;
CREATE MATERIALIZED VIEW b.ages AS SELECT age, count(*) AS n FROM a.people GROUP BY age;
CREATE UNIQUE INDEX ages_key ON b.ages (age);
CREATE MATERIALIZED VIEW b.ages_again AS SELECT sum(n) AS all FROM b.ages WITH NO DATA;
CREATE RULE adults_quiet AS ON DELETE TO a.adults DO INSTEAD NOTHING;
-- A view that needs a primary key to be there: its statement comes twice in the archive.
CREATE VIEW b.grouped AS SELECT p.id, p.name, count(o.id) FROM a.people p LEFT JOIN a.orders o ON o.person = p.id GROUP BY p.id;

CREATE TRIGGER note BEFORE INSERT OR UPDATE OF name ON a.people FOR EACH ROW WHEN (NEW.age > 1) EXECUTE FUNCTION b.noted();
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON b.parent DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION b.noted();
ALTER TABLE a.people DISABLE TRIGGER note;
ALTER TABLE a.orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON a.orders FOR SELECT TO zoo_reader USING (person > 100);
CREATE FUNCTION b.on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';
CREATE EVENT TRIGGER watch ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION b.on_ddl();
CREATE PUBLICATION watched FOR TABLE a.people (id, name) WHERE (id > 3);
CREATE PUBLICATION second FOR TABLES IN SCHEMA b WITH (publish = 'insert');
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER far FOREIGN DATA WRAPPER nowhere OPTIONS (host 'x''y');
CREATE USER MAPPING FOR zoo_owner SERVER far OPTIONS (secret 'none');
CREATE FOREIGN TABLE b.remote (id integer OPTIONS (key 'k')) SERVER far;
CREATE TEXT SEARCH DICTIONARY b.words (TEMPLATE = simple, stopwords = english);
CREATE TEXT SEARCH CONFIGURATION b.search (COPY = simple);

INSERT INTO a.people (name, mood, age, place, note) SELECT 'name ' || i, (enum_range(NULL::a.mood))[i % 3 + 1], i, (i, E'a\tb\\c')::a.pair,
    CASE i % 3 WHEN 0 THEN E'two\nlines ❄' WHEN 1 THEN '' END FROM generate_series(1, 200) i;
INSERT INTO a.orders (person, period, data) SELECT 100 + 5 * (i % 200), b.span(i, i + 0.5), decode(md5(i::text), 'hex') FROM generate_series(1, 300) i;
INSERT INTO "Odd Name"."Table; with ""quotes""" VALUES (1, E'\\.'), (2, NULL), (3, ';');
INSERT INTO b.parent SELECT i FROM generate_series(10, 30) i;
INSERT INTO b.child SELECT i, 'k', i FROM generate_series(10, 15) i;
INSERT INTO b.measured SELECT '2022-11-01'::timestamptz + i * interval '1 day', nullif(i % 4, 3), i FROM generate_series(1, 900) i;
INSERT INTO b.hashed SELECT i, 'h' || i FROM generate_series(1, 50) i;
INSERT INTO b.scratch VALUES (1);
INSERT INTO b.empty DEFAULT VALUES;
INSERT INTO b.typed VALUES (1, 'x');
REFRESH MATERIALIZED VIEW b.ages;
SELECT lo_from_bytea(4711, 'a large object'), lo_from_bytea(4712, decode(repeat('00ff', 5000), 'hex'));
COMMENT ON LARGE OBJECT 4711 IS 'with words';
ALTER LARGE OBJECT 4712 OWNER TO zoo_owner;
GRANT SELECT ON LARGE OBJECT 4712 TO zoo_reader;

ALTER TABLE a.people OWNER TO zoo_owner;
ALTER VIEW a.adults OWNER TO zoo_owner;
ALTER FUNCTION a.double(integer) OWNER TO zoo_owner;
ALTER TABLE b.measured OWNER TO zoo_owner;
ALTER TABLE b.measured_2024 OWNER TO zoo_reader;
ALTER TYPE a.mood OWNER TO zoo_reader;
GRANT USAGE ON SCHEMA a, b TO zoo_reader;
GRANT SELECT, INSERT (name, age), UPDATE (note) ON a.people TO zoo_reader WITH GRANT OPTION;
REVOKE EXECUTE ON FUNCTION b.quote(text) FROM PUBLIC;
GRANT ALL ON SEQUENCE b.counter TO PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE zoo_owner IN SCHEMA a GRANT SELECT ON TABLES TO zoo_reader;
ALTER DEFAULT PRIVILEGES FOR ROLE zoo_owner REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
COMMENT ON TABLE a.people IS 'who''s who';
COMMENT ON COLUMN a.people.mood IS E'a\\b';
COMMENT ON FUNCTION a.double(integer) IS 'twice';
COMMENT ON INDEX a.people_lower IS 'not for all';
COMMENT ON CONSTRAINT positive_check ON DOMAIN a.positive IS 'above nothing';
COMMENT ON TRIGGER note ON a.people IS 'off';
COMMENT ON TYPE b.span IS 'of doubles';
