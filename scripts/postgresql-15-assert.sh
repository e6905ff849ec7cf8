#!/usr/bin/env bash
# Build PostgreSQL 15 with assertions and memory clobbering from Debian's source package into
# $FIRN_TOOLS/postgresql-15-assert; quick when it is there. `make test-assert` runs the suites on it.
#
# CLOBBER_FREED_MEMORY (with assertions anyway) shows what is read after it was freed, RELCACHE_FORCE_RELEASE throws a
# relation's cache entry away as soon as nobody has it open, so that a pointer into it that outlived its reference leads
# to clobbered memory, COPY_PARSE_PLAN_TREES and RANDOMIZE_ALLOCATED_MEMORY show pointers and bytes nobody has set.
set -euo pipefail
: "${FIRN_TOOLS:?run through make}"
root=$(cd "$(dirname "$0")/.." && pwd)
prefix=$FIRN_TOOLS/postgresql-15-assert
# Counted up when what is built changes.
mark=$prefix/.firn-2
[ -e "$mark" ] && exit 0
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

missing=()
need() { dpkg -s "$1" >/dev/null 2>&1 || missing+=("$1"); }
need bison; need flex; need liblz4-dev; need libzstd-dev; need libicu-dev; need libssl-dev; need libxml2-dev
need libreadline-dev; need zlib1g-dev
if [ ${#missing[@]} -gt 0 ]; then
    echo "installing ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

source=$FIRN_TOOLS/postgresql-15-assert-source
"$root/tests/regress/source.sh" "$source" 15
echo "building PostgreSQL $(cat "$source/version") with assertions: about six minutes"
log=$source/build.log
cd "$source/postgresql-15"
if ! {
    ./configure --prefix="$prefix" --enable-cassert --enable-debug --with-lz4 --with-zstd --with-ssl=openssl --with-icu \
        --with-libxml CFLAGS=-O1 \
        CPPFLAGS="-DCLOBBER_FREED_MEMORY -DRELCACHE_FORCE_RELEASE -DCOPY_PARSE_PLAN_TREES -DRANDOMIZE_ALLOCATED_MEMORY" &&
        make -j"$(nproc)" -s MAKELEVEL=0 && make -s MAKELEVEL=0 install &&
        for part in amcheck pageinspect pg_buffercache pgstattuple pgrowlocks test_decoding spi; do
            make -s -C contrib/$part install
        done &&
        make -s -C src/test/regress && make -s -C src/test/regress install && make -s -C src/test/isolation install
} >"$log" 2>&1; then
    tail -30 "$log" >&2
    exit 1
fi
touch "$mark"
