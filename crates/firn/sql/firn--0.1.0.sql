-- firn: the SQL surface. complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION firn" to load this file. \quit

CREATE FUNCTION firn.handler(internal) RETURNS table_am_handler
    AS 'MODULE_PATHNAME', 'firn_handler' LANGUAGE C STRICT;
CREATE ACCESS METHOD firn TYPE TABLE HANDLER firn.handler;
COMMENT ON ACCESS METHOD firn IS 'row store, columnar stripes and cold objects in one table';

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

CREATE FUNCTION firn.stripes(relation regclass,
        OUT slot bigint, OUT rows bigint, OUT deleted bigint, OUT bytes bigint, OUT raw_bytes bigint,
        OUT location text, OUT object_key text, OUT created_at timestamptz, OUT zone_maps json)
        RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'firn_stripes' LANGUAGE C STRICT STABLE PARALLEL UNSAFE;
COMMENT ON FUNCTION firn.stripes(regclass) IS 'the stripes of a firn table';

CREATE FUNCTION firn.table_info(relation regclass,
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

CREATE FUNCTION firn.unneeded(relation regclass, OUT server text, OUT object_key text, OUT reason text)
        RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'firn_unneeded' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION firn.unneeded(regclass) IS
    'objects of a table in the stores that no stripe needs any more (nothing is deleted)';

CREATE VIEW firn.tables AS
    SELECT c.oid::regclass AS relation, nullif(c.reltuples, -1)::bigint AS rows, i.row_store_bytes, i.stripes, i.stripe_rows, i.deleted_rows,
           i.local_bytes, i.cold_bytes
    FROM pg_class c JOIN pg_am a ON a.oid = c.relam, firn.table_info(c.oid::regclass) i
    WHERE a.amname = 'firn' AND c.relkind IN ('r', 'm')
      AND has_table_privilege(c.oid, 'SELECT');

COMMENT ON VIEW firn.tables IS 'firn tables: rows (as of the last ANALYZE or VACUUM), what lies where, and its size in bytes';

CREATE VIEW firn.activity AS
    SELECT pid, datname, usename, query_start, state, query
    FROM pg_stat_activity
    WHERE state = 'active' AND query ~* 'firn\.(compact|offload|load|check)' AND pid <> pg_backend_pid();

REVOKE ALL ON FUNCTION firn.stripe_file(regclass, bigint) FROM PUBLIC;
GRANT USAGE ON SCHEMA firn TO PUBLIC;
GRANT SELECT ON firn.tables, firn.activity TO PUBLIC;
