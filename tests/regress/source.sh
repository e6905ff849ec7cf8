#!/usr/bin/env bash
# Fetch PostgreSQL's source package into a folder: source.sh DIR [MAJOR SUITE]
# Without more, that of the server in PG_CONFIG from this machine's own suites. An apt configuration of its own adds the
# source lists; the machine's lists stay as they are.
set -euo pipefail
dir=$1
major=${2:-$("$PG_CONFIG" --version | sed -E 's/^[^0-9]*([0-9]+).*/\1/')}
suite=${3:-}
[ -e "$dir/postgresql-$major/src/test/regress/parallel_schedule" ] && exit 0
mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial" "$dir/apt/parts"
python3 "$(dirname "$0")/../../scripts/debian_lists.py" deb-src $suite >"$dir/apt/sources.list"
options=(-o "Dir::Etc::SourceList=$dir/apt/sources.list" -o "Dir::Etc::SourceParts=$dir/apt/parts"
    -o "Dir::State::Lists=$dir/apt/lists" -o "Dir::Cache=$dir/apt/cache"
    -o "APT::Sandbox::User=" -o "Acquire::Languages=none")
apt-get "${options[@]}" -qq update
cd "$dir"
# The newest version that can be had: a mirror may lag behind the installed server.
found=
for version in $(apt-cache "${options[@]}" madison "postgresql-$major" | awk -F'|' '/Sources/ {print $2}' | sort -rVu); do
    if apt-get "${options[@]}" -qq source --download-only "postgresql-$major=$version" >/dev/null 2>&1; then
        found=$version
        break
    fi
done
if [ -z "$found" ]; then
    # The lists name the newest minor version, which a mirror may lack: the one before will do.
    newest=$(apt-get "${options[@]}" --print-uris source --download-only "postgresql-$major" 2>/dev/null | grep -o "[a-z]*://[^']*\.orig\.tar\.[a-z0-9]*" | head -1 || true)
    minor=$(sed -nE "s/.*_$major\.([0-9]+)\.orig.*/\1/p" <<<"$newest")
    for ((m = ${minor:-0} - 1; m >= 0 && m > ${minor:-0} - 6; m--)); do
        file=postgresql-${major}_$major.$m.orig.tar.${newest##*.}
        if /usr/lib/apt/apt-helper download-file "${newest%/*}/$file" "$file" >/dev/null 2>&1; then
            found=$major.$m
            break
        fi
        rm -f "$file"
    done
fi
[ -n "$found" ] || { echo "no source package of postgresql-$major could be downloaded" >&2; exit 1; }
echo "$found" >version
tarball=$(ls -t postgresql-"$major"_*.orig.tar.* | head -1)
rm -rf "postgresql-$major" "postgresql-$major.new" && mkdir "postgresql-$major.new"
tar -xf "$tarball" -C "postgresql-$major.new" --strip-components=1
mv "postgresql-$major.new" "postgresql-$major"
rm -f "$tarball" ./*.debian.tar.* ./*.dsc
