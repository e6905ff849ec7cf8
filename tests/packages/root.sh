#!/usr/bin/env bash
# A Debian of nothing but what is essential, apt and postgresql-NN with what it depends on: root.sh DIR NN. Quick when it is
# there.
set -euo pipefail
dir=$1
major=$2
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
[ -e "$dir/.complete" ] && exit 0
as_root rm -rf "$dir"
. /etc/os-release
as_root mmdebstrap --quiet --mode=root --variant=apt --include="postgresql-$major" --format=directory "$VERSION_CODENAME" "$dir"
as_root touch "$dir/.complete"
