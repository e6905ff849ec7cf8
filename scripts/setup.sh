#!/usr/bin/env bash
# Install what a Debian machine lacks to build and test firn; `setup.sh demo`: also to download the demo's data.
# Quick when there is nothing to do.
set -euo pipefail
: "${CARGO_TARGET_DIR:?run through make}" "${FIRN_VENV:?}" "${FIRN_TOOLS:?}" "${PG_CONFIG:?}"
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

missing=()
need() { dpkg -s "$1" >/dev/null 2>&1 || missing+=("$1"); }
if command -v dpkg >/dev/null; then
    if ! "$PG_CONFIG" --version >/dev/null 2>&1 || [[ "$PG_CONFIG" == /usr/lib/postgresql/15/* ]]; then
        need postgresql-15; need postgresql-server-dev-15; need libpq-dev
    fi
    need clang; need libclang-dev; need pkg-config; need build-essential; need python3-venv
    if [ "${1:-}" = demo ] && [ ! -e "$FIRN_TOOLS/flights/airports.csv" ]; then
        command -v npm >/dev/null || need npm
    fi
fi
if [ ${#missing[@]} -gt 0 ]; then
    echo "installing ${missing[*]}"
    as_root apt-get update -qq
    # The packages would create and start a cluster; firn's tests use clusters of their own.
    as_root mkdir -p /etc/postgresql-common/createcluster.d
    conf=/etc/postgresql-common/createcluster.d/firn-setup.conf
    echo 'create_main_cluster = false' | as_root tee "$conf" >/dev/null
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    as_root rm -f "$conf"
fi
command -v cargo >/dev/null || { echo "firn needs Rust 1.95 or newer: install it with rustup" >&2; exit 1; }
if [ ! -x "$FIRN_VENV/bin/python" ]; then
    mkdir -p "$(dirname "$FIRN_VENV")"
    python3 -m venv "$FIRN_VENV"
fi
if ! [ -e "$FIRN_VENV/.firn-3" ]; then
    "$FIRN_VENV/bin/pip" install -q 'psycopg[binary]==3.2.13' 'pyarrow==26.0.1' 'duckdb==2.0.0' 'numpy==2.4.6' 'ruff==0.17.6'
    touch "$FIRN_VENV/.firn-3"
fi
