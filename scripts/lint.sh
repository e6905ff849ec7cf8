#!/usr/bin/env bash
# Formatting, clippy, and the rules of the house that a machine can check.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
rustfmt --check --edition 2021 crates/format/fuzz/fuzz_targets/*.rs
cargo clippy --release --workspace --all-targets -- -D warnings
# The other version that there are headers of.
other=${FIRN_TOOLS:-}/postgresql-18/bin/pg_config
if [ -e "${FIRN_TOOLS:-}/postgresql-18/.firn-whole" ]; then
    PGRX_PG_CONFIG_PATH=$other cargo clippy --release -p firn --no-default-features --features pg18 -- -D warnings
fi
fail=0
complain() { echo "$*" >&2; fail=1; }
git ls-files -z '*.py' | xargs -0 "$FIRN_VENV/bin/ruff" check --no-cache --quiet || complain "Python: see ruff.toml"
# Who may depend on whom: format and lake know nothing of each other nor of PostgreSQL; scan and directory know format, firn uses all of them.
# (All of them know the crate features, which has no code.)
others() { grep -vE '^name|^firn-features ' "$1" | grep -qE 'firn-|pgrx'; }
others crates/format/Cargo.toml && complain "crates/format depends on another layer"
grep -vE '^name|^firn-(format|features) ' crates/scan/Cargo.toml | grep -qE 'firn-|pgrx|parquet|tokio' && complain "crates/scan depends on more than crates/format"
grep -vE '^name|^firn-(format|features) ' crates/directory/Cargo.toml | grep -qE 'firn-|pgrx|parquet|tokio' && complain "crates/directory depends on more than crates/format"
grep -vE '^name|^firn-(format|features) ' crates/workspace/Cargo.toml | grep -qE 'firn-|pgrx|parquet|tokio' && complain "crates/workspace depends on more than crates/format"
others crates/lake/Cargo.toml && complain "crates/lake depends on another layer"
grep -v '^name' crates/cli/Cargo.toml | grep -qE 'firn = |pgrx' && complain "crates/cli depends on the extension"
python3 scripts/features.py || complain "libraries with several sets of features: see crates/features/README.md"
# The extension's rooms import downwards only.
python3 scripts/layers.py || complain "rooms in a circle: see scripts/layers.py"
# What differs between versions of PostgreSQL stands in one place.
found=$(git grep -nE 'cfg(_attr)?!?\(.*feature' -- crates/firn/src ':!crates/firn/src/pg/compat/mod.rs' || true)
[ -z "$found" ] || complain "versions are asked for outside of pg/compat/mod.rs:"$'\n'"$found"
# unsafe lives behind the fences: where PostgreSQL is called (pg) and where it calls (entry), as both hand C's pointers over.
# (crates/faults, for tests only, is made of it: it patches machine code; crates/workspace hands memory to zstd.)
found=$(git grep -nE '\bunsafe\b *(\{|fn|impl|extern)' -- 'crates/*/src' ':!crates/firn/src/pg' ':!crates/firn/src/entry' ':!crates/cli/src/pg' ':!crates/faults' ':!crates/workspace' || true)
[ -z "$found" ] || complain "unsafe outside of pg/ and entry/:"$'\n'"$found"
# Errors and panics pass through frames that are made for them only.
python3 scripts/frames.py || complain "errors through frames: see scripts/frames.py"
long=$(git ls-files '*.rs' '*.py' '*.sh' | xargs wc -l | awk '$2 != "total" && $1 > 700 {print $2": "$1" lines"}')
[ -z "$long" ] || complain "files over 700 lines:"$'\n'"$long"
exit $fail
