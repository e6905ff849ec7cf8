#!/usr/bin/env bash
# A Debian of nothing but what is essential, apt and postgresql-NN with what it depends on: root.sh DIR NN. Quick when it is
# there. Installs what the suite `packages` needs besides.
set -euo pipefail
dir=$1
major=$2
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
missing=()
for package in mmdebstrap lintian gdb binutils dpkg-dev; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "installing ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
[ -e "$dir/.complete" ] && exit 0
as_root rm -rf "$dir"
. /etc/os-release
as_root mmdebstrap --quiet --mode=root --variant=apt --include="postgresql-$major" --format=directory "$VERSION_CODENAME" "$dir"
as_root touch "$dir/.complete"
