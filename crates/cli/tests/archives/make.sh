#!/bin/bash
# Makes the archives of this folder anew. Needs a server of any supported version that the usual PG* variables lead to,
# as superuser, and for each version of pg_dump the folder of its programs:
#   make.sh /usr/lib/postgresql/15/bin …/postgresql-18/bin
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
database=firn_archives
latin=firn_archives_latin1

psql=(psql -qX --set ON_ERROR_STOP=1)
drop() {
    "${psql[@]}" postgres -c "DROP DATABASE IF EXISTS $database" -c "DROP DATABASE IF EXISTS $latin" \
        -c "DROP ROLE IF EXISTS firn_archives_owner" 2>/dev/null
}
drop
trap drop EXIT
"${psql[@]}" postgres -c "CREATE ROLE firn_archives_owner" \
    -c "CREATE DATABASE $database TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'" \
    -c "CREATE DATABASE $latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
"${psql[@]}" $database <<'SQL'
CREATE TABLE t (a int PRIMARY KEY, b text);
INSERT INTO t SELECT g, E'row ' || g || E'\n\\.' FROM generate_series(1, 60) g;
CREATE TABLE nothing (x int);
CREATE TABLE no_column ();
INSERT INTO no_column DEFAULT VALUES;
CREATE SCHEMA "S x";
CREATE TABLE "S x"."ü t" (z text);
INSERT INTO "S x"."ü t" VALUES (NULL), (''), (E'a\tb'), (repeat('long ', 40));
CREATE VIEW v AS SELECT count(*) FROM t;
CREATE MATERIALIZED VIEW m AS SELECT a FROM t WHERE a < 3;
CREATE TABLE p (k int) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9);
CREATE INDEX ON p (k);
COMMENT ON TABLE t IS 'two
lines';
DO $$
BEGIN
    PERFORM lo_from_bytea(70001, decode(repeat('ab', 3000), 'hex'));
    PERFORM lo_from_bytea(70002, '');
    PERFORM lo_from_bytea(4000000001, 'hello');
    ALTER LARGE OBJECT 70002 OWNER TO firn_archives_owner;
END $$;
COMMENT ON LARGE OBJECT 70001 IS 'large';
ANALYZE;
SQL
PGCLIENTENCODING=LATIN1 "${psql[@]}" $latin -c "$(printf 'CREATE TABLE "stra\337e" (a text)')" \
    -c "$(printf "INSERT INTO \"stra\\337e\" VALUES ('\\344')")"

make() { # version programs compressions…
    local version=$1 bin=$2 to=$here/$1
    shift 2
    rm -rf "$to"
    mkdir "$to"
    for compression in "$@"; do
        local how=(-Z "$compression")
        if [ "$version" -lt 16 ]; then
            how=(-Z "$([ "$compression" = none ] && echo 0 || echo 6)")
        else
            how+=(--statistics)
        fi
        "$bin/pg_dump" -Fc "${how[@]}" -f "$to/$compression.dump" $database
        "$bin/pg_dump" -Fc "${how[@]}" $database | cat > "$to/$compression.piped.dump"
        "$bin/pg_dump" -Fd "${how[@]}" -f "$to/$compression.dir" $database
    done
    "$bin/pg_dump" -Fc -Z "$([ "$version" -lt 16 ] && echo 6 || echo zstd)" -f "$to/latin1.dump" $latin
    "$bin/pg_dump" -Fc -s -f "$to/schema.dump" $database
}

for bin in "$@"; do
    version=$("$bin/pg_dump" --version | sed 's/.*) \([0-9]*\).*/\1/')
    if [ "$version" -lt 16 ]; then
        make "$version" "$bin" none gzip
        "$bin/pg_dump" -Ft -f "$here/$version/tar.tar" $database
        truncate -s 1024 "$here/$version/tar.tar"
    else
        make "$version" "$bin" none gzip lz4 zstd
    fi
    chmod -R u=rwX,go=rX "$here/$version"
done
