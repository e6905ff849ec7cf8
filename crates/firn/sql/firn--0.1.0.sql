-- firn: the SQL surface. complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION firn" to load this file. \quit

CREATE FUNCTION firn.handler(internal) RETURNS table_am_handler
    AS 'MODULE_PATHNAME', 'firn_handler' LANGUAGE C STRICT;
CREATE ACCESS METHOD firn TYPE TABLE HANDLER firn.handler;
COMMENT ON ACCESS METHOD firn IS 'row store, columnar stripes and cold objects in one table';

CREATE FUNCTION firn.toast_handler(internal) RETURNS table_am_handler
    AS 'MODULE_PATHNAME', 'firn_toast_handler' LANGUAGE C STRICT;
CREATE ACCESS METHOD firn_toast TYPE TABLE HANDLER firn.toast_handler;
COMMENT ON ACCESS METHOD firn_toast IS 'of the TOAST relations of firn tables; not for tables';
-- PostgreSQL notes on which access method a table depends, and of a TOAST relation that it depends on its table: so what
-- drops both methods and the tables (DROP EXTENSION … CASCADE) must not drop this one before the other.
INSERT INTO pg_catalog.pg_depend (classid, objid, objsubid, refclassid, refobjid, refobjsubid, deptype)
    SELECT 'pg_catalog.pg_am'::pg_catalog.regclass, f.oid, 0, 'pg_catalog.pg_am'::pg_catalog.regclass, t.oid, 0, 'n'
    FROM pg_catalog.pg_am f, pg_catalog.pg_am t WHERE f.amname = 'firn' AND t.amname = 'firn_toast';

CREATE FUNCTION firn.fdw_validator(text[], oid) RETURNS void
    AS 'MODULE_PATHNAME', 'firn_fdw_validator' LANGUAGE C STRICT;
CREATE FOREIGN DATA WRAPPER firn NO HANDLER VALIDATOR firn.fdw_validator;

CREATE FUNCTION firn.compact(relation regclass) RETURNS bigint
    AS 'MODULE_PATHNAME', 'firn_compact' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION firn.compact(regclass) IS
    'move settled rows of the row store into stripes; returns the number of rows moved';

CREATE FUNCTION firn.check(relation regclass,
        OUT severity text, OUT object text, OUT problem text) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'firn_check' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION firn.check(regclass) IS
    'verify chunks, checksums, counts, tombstones and index entries; no row means no problem';

CREATE FUNCTION firn.repair(relation regclass, dry_run boolean DEFAULT true,
        OUT object text, OUT action text, OUT done boolean) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'firn_repair' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION firn.repair(regclass, boolean) IS
    'mend what firn.check has found where that needs no guessing; says what it would do, or does it';

CREATE FUNCTION firn.stripes(relation regclass,
        OUT slot bigint, OUT rows bigint, OUT deleted bigint, OUT bytes bigint, OUT raw_bytes bigint,
        OUT location text, OUT object_key text, OUT created_at timestamptz, OUT zone_maps json)
        RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'firn_stripes' LANGUAGE C STRICT STABLE PARALLEL UNSAFE;
COMMENT ON FUNCTION firn.stripes(regclass) IS 'the stripes of a firn table';

CREATE FUNCTION firn.table_info(relation regclass, missing_ok boolean DEFAULT false,
        OUT row_store_bytes bigint, OUT stripes bigint, OUT stripe_rows bigint, OUT deleted_rows bigint,
        OUT local_bytes bigint, OUT cold_bytes bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'firn_table_info' LANGUAGE C STRICT STABLE PARALLEL UNSAFE;

CREATE FUNCTION firn.stripe_file(relation regclass, slot bigint) RETURNS bytea
    AS 'MODULE_PATHNAME', 'firn_stripe_file' LANGUAGE C STRICT STABLE PARALLEL UNSAFE;
COMMENT ON FUNCTION firn.stripe_file(regclass, bigint) IS 'a stripe as a Parquet file';

CREATE FUNCTION firn.offload(relation regclass, server name) RETURNS bigint
    AS 'MODULE_PATHNAME', 'firn_offload' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION firn.offload(regclass, name) IS
    'move the stripes of a table and its partitions to an object store; returns their number';

CREATE FUNCTION firn.load(relation regclass) RETURNS bigint
    AS 'MODULE_PATHNAME', 'firn_load' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION firn.load(regclass) IS
    'bring cold stripes of a table and its partitions back; returns their number';

-- The same with a commit after each piece, for tables and partitioned tables of any size.
CREATE PROCEDURE firn.compact_in_pieces(relation regclass, piece_stripes integer DEFAULT 16)
    AS 'MODULE_PATHNAME', 'firn_compact_in_pieces' LANGUAGE C;
COMMENT ON PROCEDURE firn.compact_in_pieces(regclass, integer) IS
    'as firn.compact, table by table and so many stripes at a time, each in a transaction of its own';

CREATE PROCEDURE firn.offload_in_pieces(relation regclass, server name, piece_stripes integer DEFAULT 16)
    AS 'MODULE_PATHNAME', 'firn_offload_in_pieces' LANGUAGE C;
COMMENT ON PROCEDURE firn.offload_in_pieces(regclass, name, integer) IS
    'as firn.offload, table by table and so many stripes at a time, each in a transaction of its own';

CREATE PROCEDURE firn.load_in_pieces(relation regclass, piece_stripes integer DEFAULT 16)
    AS 'MODULE_PATHNAME', 'firn_load_in_pieces' LANGUAGE C;
COMMENT ON PROCEDURE firn.load_in_pieces(regclass, integer) IS
    'as firn.load, table by table and so many stripes at a time, each in a transaction of its own';

-- Which store was behind a foreign server when it was used last. Not dumped: rows of a dump are local. pg_upgrade takes its files along, and gives servers
-- other OIDs: so their names are kept.
CREATE TABLE firn.stores (server name NOT NULL, id text NOT NULL) USING heap;
COMMENT ON TABLE firn.stores IS 'markers of the stores that this database has used';

CREATE FUNCTION firn.accept_store(server name) RETURNS text
    AS 'MODULE_PATHNAME', 'firn_accept_store' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION firn.accept_store(name) IS
    'take the store that is behind a server now for the right one; returns the id in its marker';

CREATE FUNCTION firn.unneeded(relation regclass, OUT server text, OUT object_key text, OUT reason text)
        RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'firn_unneeded' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION firn.unneeded(regclass) IS
    'objects of a table in the stores that no stripe needs any more (nothing is deleted)';

CREATE VIEW firn.tables AS
    SELECT c.oid::regclass AS relation, nullif(c.reltuples, -1)::bigint AS rows, i.row_store_bytes, i.stripes, i.stripe_rows, i.deleted_rows,
           i.local_bytes, i.cold_bytes
    FROM pg_class c JOIN pg_am a ON a.oid = c.relam, firn.table_info(c.oid::regclass, true) i
    WHERE a.amname = 'firn' AND c.relkind IN ('r', 'm')
      AND has_table_privilege(c.oid, 'SELECT');

COMMENT ON VIEW firn.tables IS 'firn tables: rows (as of the last ANALYZE or VACUUM), what lies where, and its size in bytes';

CREATE FUNCTION firn.activity_info(OUT pid int, OUT datid oid, OUT command text, OUT relation oid, OUT phase text,
        OUT tables_done bigint, OUT tables_total bigint, OUT stripes_done bigint, OUT stripes_total bigint,
        OUT indexes_done bigint, OUT indexes_total bigint, OUT rows_done bigint,
        OUT bytes_done bigint, OUT bytes_total bigint) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'firn_activity_info' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

-- Everybody may see who is at work; at what, only the role itself and members of pg_read_all_stats.
CREATE VIEW firn.activity AS
    SELECT i.pid, d.datname, s.usename, i.command,
           CASE WHEN d.datname = current_database() THEN i.relation::regclass END AS relation, i.phase,
           i.tables_done, i.tables_total, i.stripes_done, NULLIF(i.stripes_total, 0) AS stripes_total,
           i.indexes_done, NULLIF(i.indexes_total, 0) AS indexes_total, i.rows_done,
           i.bytes_done, NULLIF(i.bytes_total, 0) AS bytes_total,
           s.query_start, s.wait_event_type, s.wait_event, s.query
    FROM firn.activity_info() i
    LEFT JOIN pg_database d ON d.oid = i.datid
    LEFT JOIN pg_stat_activity s ON s.pid = i.pid;
COMMENT ON VIEW firn.activity IS 'sessions that compact, offload, load or check, and how far they are';

REVOKE ALL ON FUNCTION firn.stripe_file(regclass, bigint) FROM PUBLIC;
GRANT USAGE ON SCHEMA firn TO PUBLIC;
GRANT SELECT ON firn.tables, firn.activity, firn.stores TO PUBLIC;
