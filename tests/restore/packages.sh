#!/usr/bin/env bash
# Fetch Debian packages into a folder and unpack them there, without installing anything: packages.sh DIR PACKAGE…
# The lists are the folder's own; where packages come from is what the machine says. Quick when they are there.
set -euo pipefail
dir=$1
shift
missing=()
for package in "$@"; do [ -e "$dir/$package/.complete" ] || missing+=("$package"); done
[ ${#missing[@]} -eq 0 ] && exit 0
command -v apt-get >/dev/null || { echo "there is no apt-get" >&2; exit 1; }
mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial"
options=(-o "Dir::State::Lists=$dir/apt/lists" -o "Dir::Cache=$dir/apt/cache" -o "APT::Sandbox::User=" -o "Acquire::Languages=none")
apt-get "${options[@]}" -qq update
for package in "${missing[@]}"; do
    rm -rf "${dir:?}/$package" && mkdir "$dir/$package"
    cd "$dir/$package"
    apt-get "${options[@]}" -qq download "$package"
    dpkg-deb -x ./*.deb .
    # What is wanted of it is text.
    rm -f ./*.deb
    rm -rf usr/lib usr/bin usr/sbin
    touch .complete
done
