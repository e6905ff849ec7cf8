#!/usr/bin/env bash
# Build the extensions of PostgreSQL 18 that the suites ask for, into the server that scripts/postgresql-18.sh has built;
# quick when they are there. (make test does not need them; suites on 18 do.)
set -euo pipefail
: "${FIRN_TOOLS:?run through make}"
root=$(cd "$(dirname "$0")/.." && pwd)
pg_config=$FIRN_TOOLS/postgresql-18/bin/pg_config
mark=$FIRN_TOOLS/postgresql-18/.firn-contrib-1
[ -e "$mark" ] && exit 0
source=$FIRN_TOOLS/postgresql-18-source
"$root/tests/regress/source.sh" "$source" 18 sid
log=$source/contrib.log
for part in amcheck pageinspect pg_buffercache pgstattuple pgrowlocks test_decoding btree_gist pg_trgm fuzzystrmatch file_fdw; do
    if ! make -s -C "$source/postgresql-18/contrib/$part" USE_PGXS=1 PG_CONFIG="$pg_config" MAKELEVEL=0 install >"$log" 2>&1; then
        tail -30 "$log" >&2
        exit 1
    fi
done
rm -rf "$source"
touch "$mark"
