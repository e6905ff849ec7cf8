#!/usr/bin/env bash
# Run suites on a PostgreSQL 15 under Valgrind's memcheck: `scripts/valgrind.sh sql dml` (run.py's arguments; through
# `make valgrind`, which sets the variables). The server is built with USE_VALGRIND, so that memory contexts tell memcheck
# what is allocated, freed and not yet set; firn.so is the library that everybody gets. Every error is printed, and the
# run fails if there is one; what is PostgreSQL's own is left out by its valgrind.supp.
#
# A suite takes 30 to 60 times as long as otherwise: give a pattern.
set -euo pipefail
: "${FIRN_TOOLS:?run through make}" "${CARGO_TARGET_DIR:?}" "${FIRN_VENV:?}"
root=$(cd "$(dirname "$0")/.." && pwd)
prefix=${FIRN_VALGRIND:-$FIRN_TOOLS/postgresql-15-valgrind}
# Counted up when what is built changes.
mark=$prefix/.firn-1
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
if ! command -v valgrind >/dev/null || [ ! -e /usr/include/valgrind/memcheck.h ]; then
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valgrind >/dev/null
fi
source=$FIRN_TOOLS/postgresql-15-valgrind-source
if [ ! -e "$mark" ]; then
    # It brings what is needed to build.
    "$root/scripts/postgresql-15-assert.sh"
    "$root/tests/regress/source.sh" "$source" 15
    echo "building PostgreSQL $(cat "$source/version") for Valgrind: about six minutes"
    log=$source/build.log
    cd "$source/postgresql-15"
    if ! {
        ./configure --prefix="$prefix" --enable-cassert --enable-debug --with-lz4 --with-zstd --with-ssl=openssl --with-icu \
            --with-libxml CFLAGS="-O1 -fno-omit-frame-pointer" CPPFLAGS="-DUSE_VALGRIND -DRELCACHE_FORCE_RELEASE" &&
            make -j"$(nproc)" -s MAKELEVEL=0 && make -s MAKELEVEL=0 install &&
            for part in amcheck pageinspect pgstattuple pgrowlocks test_decoding; do
                make -s -C contrib/$part install
            done
    } >"$log" 2>&1; then
        tail -30 "$log" >&2
        exit 1
    fi
    cp src/tools/valgrind.supp "$prefix/valgrind.supp"
    chmod -R a+rX "$prefix"
    touch "$mark"
fi
install -m 755 "$CARGO_TARGET_DIR/release/libfirn.so" "$("$prefix/bin/pg_config" --pkglibdir)/firn.so"
install -m 644 "$root"/crates/firn/firn.control "$root"/crates/firn/sql/firn--*.sql \
    "$("$prefix/bin/pg_config" --sharedir)/extension/"

folder=$(mktemp -d /tmp/firn-valgrind-XXXXXX)
chmod 777 "$folder"
cat >"$folder/postgres" <<E2
#!/bin/sh
exec valgrind --quiet --leak-check=no --trace-children=yes --num-callers=40 --error-markers=ERROR-BEGIN,ERROR-END \\
    --suppressions=$prefix/valgrind.supp --log-file=$folder/%p.log $prefix/bin/postgres "\$@"
E2
chmod 755 "$folder/postgres"
cd "$root"
bad=0
PG_CONFIG=$prefix/bin/pg_config FIRN_POSTGRES=$folder/postgres "$FIRN_VENV/bin/python" tests/run.py "$@" || bad=1
cat "$folder"/*.log >"$folder/all"
errors=$(grep -c ERROR-BEGIN "$folder/all" || true)
if [ "$errors" -gt 0 ]; then
    sed -n '/ERROR-BEGIN/,/ERROR-END/p' "$folder/all" | head -300
    bad=1
fi
echo "memcheck: $errors errors (logs in $folder)"
exit $bad
