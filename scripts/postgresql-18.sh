#!/usr/bin/env bash
# Build PostgreSQL 18 (server, programs, regression tests in the folder regress) from Debian's source package into
# $FIRN_TOOLS/postgresql-18; quick when it is there. Tests that restore between versions need it, and archives with lz4
# and zstd, which pg_dump 15 cannot write.
set -euo pipefail
: "${FIRN_TOOLS:?run through make}"
root=$(cd "$(dirname "$0")/.." && pwd)
prefix=$FIRN_TOOLS/postgresql-18
# Counted up when what is built changes.
mark=$prefix/.firn-1
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

source=$FIRN_TOOLS/postgresql-18-source
"$root/tests/regress/source.sh" "$source" 18 sid
echo "building PostgreSQL $(cat "$source/version"): about ten minutes"
log=$source/build.log
cd "$source/postgresql-18"
if ! {
    ./configure --prefix="$prefix" --with-lz4 --with-zstd --with-ssl=openssl --with-icu --with-libxml CFLAGS=-O2 &&
        make -j"$(nproc)" -s MAKELEVEL=0 && make -s MAKELEVEL=0 install && make -s -C contrib/spi install &&
        make -s -C src/test/regress && make -s -C src/test/regress install && rm -rf "$prefix/regress" &&
        cp -r src/test/regress "$prefix/regress"
} >"$log" 2>&1; then
    tail -30 "$log" >&2
    exit 1
fi
rm -rf "$source"
touch "$mark"
