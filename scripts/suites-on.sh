#!/usr/bin/env bash
# Run suites on a PostgreSQL that scripts/postgresql.sh has put beside the machine's own, and the extension into it: suites-on.sh N SUITES [PATTERN]
# (a copy of it, where the server's user may read).
set -euo pipefail
: "${FIRN_TOOLS:?run through make}" "${FIRN_VENV:?}"
cd "$(dirname "$0")/.."
copy=$(mktemp -d "${FIRN_FOLDER:-/tmp}/firn-postgresql-$1-XXXXXX")
trap 'rm -rf "$copy"' EXIT
cp -a "$FIRN_TOOLS/postgresql-$1/." "$copy"
scripts/relocate-server.sh "$copy"
chmod -R a+rX "$copy"
PG_CONFIG="$copy/bin/pg_config" LD_LIBRARY_PATH="$copy/lib" "$FIRN_VENV/bin/python" tests/run.py "${@:2}"
