#!/usr/bin/env bash
# Put a PostgreSQL of another version than the machine's into $FIRN_TOOLS/postgresql-N: postgresql.sh N [extensions]; quick when it is there.
# Tests between versions need it, and archives with lz4 and zstd, which pg_dump 15 cannot write; suites on it (`make test-all`) the extensions, too.
#
# 17 and 18 are Debian's packages of later suites (debian-server.sh), or built from their sources where those cannot be had or do not start here
# (FIRN_FROM_SOURCE=1: in any case). Of 16 Debian 12 to sid have none: it is the server in a Python package, without extensions.
set -euo pipefail
: "${FIRN_TOOLS:?run through make}"
root=$(cd "$(dirname "$0")/.." && pwd)
major=$1
prefix=$FIRN_TOOLS/postgresql-$major
# Whoever wants to know whether it is there asks for this file, which has the edition in it.
mark=$prefix/.firn-whole
# Counted up when what is put there changes.
edition=3
# Extensions of a server that is built are built by themselves.
extensions=$prefix/.firn-contrib-$edition
# One at a time.
mkdir -p "$FIRN_TOOLS"
exec 9>"$FIRN_TOOLS/postgresql-$major.lock"
flock 9
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
demand() {
    local missing=() package
    for package in "$@"; do dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "installing ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
# Of a server that came as packages: who tells its programs where they are, names of time zones, and what its headers name.
companions=(patchelf tzdata libicu-dev libxml2-dev libssl-dev)
# (The last of them is the last that relocate-server.sh sees to.)
starts() {
    local program
    for program in "$prefix"/bin/{pg_config,postgres} "$prefix"/lib/postgresql/*/lib/pgxs/src/test/regress/pg_regress; do
        "$program" --version >/dev/null 2>&1 || return
    done
}
if [ "$(cat "$mark" 2>/dev/null)" != $edition ]; then
    rm -f "$prefix"/.firn-*
elif compgen -G "$prefix/lib/*-linux-*/ld*.so.*" >/dev/null; then
    # Of packages.
    [ -z "${FIRN_FROM_SOURCE:-}" ] || rm -f "$prefix"/.firn-*
    demand "${companions[@]}" || echo "${companions[*]} could not be installed, which tests on PostgreSQL $major need"
    # (It may have been moved, which its programs do not survive.)
    starts || { "$root/scripts/relocate-server.sh" "$prefix" && starts; } || rm -f "$prefix"/.firn-*
fi
[ -e "$mark" ] && { [ "${2:-}" != extensions ] || [ -e "$extensions" ]; } && exit 0

if [ "$major" = 16 ]; then
    wheel=$FIRN_TOOLS/postgresql-16-wheel
    mkdir -p "$wheel"
    "${FIRN_VENV:?run through make}/bin/pip" download -q --no-deps --python-version 3.11 --only-binary=:all: -d "$wheel" pgserver==0.1.4
    python3 -m zipfile -e "$wheel"/pgserver-*.whl "$wheel/files"
    rm -rf "$prefix"
    mkdir -p "$prefix"
    cp -r "$wheel/files/pgserver/pginstall/." "$prefix"
    # Its programs look for libpq, of a name of the package's own, beside the package.
    cp "$wheel"/files/pgserver.libs/* "$prefix/lib/"
    chmod +x "$prefix"/bin/* "$prefix/lib/postgresql/pgxs/src/test/regress/pg_regress"
    rm -rf "$wheel"
    touch "$extensions"
    echo $edition >"$mark"
    exit
fi
case $major in
17) suite=trixie ;;
18) suite=sid ;;
*) echo "PostgreSQL $major: no source is known" >&2; exit 1 ;;
esac

if [ -z "${FIRN_FROM_SOURCE:-}" ] && ! [ -e "$mark" ]; then
    if demand "${companions[@]}" && "$root/scripts/debian-server.sh" "$major" "$suite" "$prefix"; then
        touch "$extensions"
        echo $edition >"$mark"
        exit
    fi
    echo "Debian's packages of PostgreSQL $major cannot be used here: building it"
fi

demand bison flex liblz4-dev libzstd-dev libicu-dev libssl-dev libxml2-dev libreadline-dev zlib1g-dev
source=$FIRN_TOOLS/postgresql-$major-source
"$root/tests/regress/source.sh" "$source" "$major" "$suite"
log=$source/build.log
cd "$source/postgresql-$major"
build() {
    # (Within a condition no failure would end it.)
    (set -e; "$@") >"$log" 2>&1 &
    wait $! || { tail -30 "$log" >&2; exit 1; }
}
server() {
    ./configure --prefix="$prefix" --with-lz4 --with-zstd --with-ssl=openssl --with-icu --with-libxml CFLAGS=-O2
    make -j"$(nproc)" -s MAKELEVEL=0
    make -s MAKELEVEL=0 install
    make -s -C contrib/spi install
    make -s -C src/test/isolation install
    make -s -C src/test/regress
    make -s -C src/test/regress install
}
contrib() {
    for part in amcheck pageinspect pg_buffercache pgstattuple pgrowlocks test_decoding btree_gist pg_trgm fuzzystrmatch file_fdw pg_prewarm; do
        make -s -C "contrib/$part" USE_PGXS=1 PG_CONFIG="$prefix/bin/pg_config" MAKELEVEL=0 install
    done
}
if ! [ -e "$mark" ]; then
    # (What is left of packages leads elsewhere.)
    rm -rf "$prefix"
    echo "building PostgreSQL $(cat "$source/version"): about ten minutes"
    build server
    echo $edition >"$mark"
fi
if [ "${2:-}" = extensions ]; then
    build contrib
    touch "$extensions"
fi
rm -rf "$source"
