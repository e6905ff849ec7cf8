#!/usr/bin/env bash
# Formatting, clippy, and the rules of the house that a machine can check.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all --check
cargo clippy --release --all-targets -p firn-format -p firn-lake -- -D warnings
cargo clippy --release -p firn -- -D warnings
fail=0
complain() { echo "$*" >&2; fail=1; }
# Who may depend on whom: format <- lake <- exec <- firn, and format, lake <- cli.
grep -qE 'firn-(lake|exec)|pgrx' crates/format/Cargo.toml && complain "crates/format depends on a layer above it"
grep -qE 'firn-exec|pgrx' crates/lake/Cargo.toml && complain "crates/lake depends on a layer above it"
# unsafe lives behind the fence.
found=$(git grep -nE '\bunsafe\b *(\{|fn|impl|extern)' -- 'crates/*/src' ':!crates/firn/src/pg' || true)
[ -z "$found" ] || complain "unsafe outside crates/firn/src/pg:"$'\n'"$found"
long=$(git ls-files '*.rs' '*.py' '*.sh' | xargs wc -l | awk '$2 != "total" && $1 > 700 {print $2": "$1" lines"}')
[ -z "$long" ] || complain "files over 700 lines:"$'\n'"$long"
exit $fail
