#!/usr/bin/env bash
# Put a PostgreSQL of another Debian suite than the machine's into a folder, as its packages have it: debian-server.sh N SUITE DIR
#
# The packages are not installed: they and the libraries they need, down to libc, are laid out below DIR as below /usr. The programs are told to start with that
# libc's loader and to look for libraries there first. DIR/bin is where pg_config is. What copies DIR calls relocate-server.sh, as a loader has no relative path.
set -euo pipefail
major=$1 suite=$2 prefix=$3
here=$(cd "$(dirname "$0")" && pwd)
work=$prefix.debian
rm -rf "$work"
mkdir -p "$work"/apt/{lists/partial,cache/archives/partial,parts} "$work/debs" "$work/root"
trap 'rm -rf "$work"' EXIT
: >"$work/apt/status"
python3 "$here/debian_lists.py" deb "$suite" >"$work/apt/sources.list"
# (A status of its own: nothing is installed, so that all that is needed is named.)
options=(-o "Dir::Etc::SourceList=$work/apt/sources.list" -o "Dir::Etc::SourceParts=$work/apt/parts" -o "Dir::State::Lists=$work/apt/lists"
    -o "Dir::State::status=$work/apt/status" -o "Dir::Cache=$work/apt/cache" -o "APT::Sandbox::User=" -o "Acquire::Languages=none")
apt-get "${options[@]}" -qq update
# Of what installing the server would bring, libraries; not what maintains a system, nor a compiler's hundred megabytes.
mapfile -t libraries < <(apt-get "${options[@]}" -qq --simulate install --no-install-recommends "postgresql-$major" |
    awk '$1 == "Inst" && $2 ~ /^(lib|zlib1g)/ && $2 !~ /perl|debconf|modules|systemd-shared|sema|[lL][lL][vV][mM]|z3/ { print $2 }')
[ ${#libraries[@]} -gt 0 ]
(cd "$work/debs" && apt-get "${options[@]}" -qq download "postgresql-$major" "postgresql-client-$major" "postgresql-server-dev-$major" libpq-dev "${libraries[@]}")
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
# (Suites before usr was merged have a part of their libraries beside it.)
[ ! -d "$work/root/lib" ] || cp -a "$work/root/lib/." "$work/root/usr/lib/"
rm -rf "$work"/root/usr/{bin,sbin,libexec} "$work/root/usr/lib/postgresql/$major/lib"/{bitcode,llvmjit*} "$work"/root/usr/share/{doc,man,locale,lintian,perl5} "$work/root/usr/share/postgresql/$major/man"
ln -s "lib/postgresql/$major/bin" "$work/root/usr/bin"
# What is there in its place stays until it is known that this one starts, by libraries of its own.
laid=$(cd "$work/root/usr" && pwd -P)
"$here/relocate-server.sh" "$laid"
"$laid/bin/postgres" --version >/dev/null
loader=$(patchelf --print-interpreter "$laid/bin/postgres")
for program in "$laid"/bin/{postgres,psql,initdb,pg_dump,pg_restore,pg_basebackup,pg_upgrade,pgbench}; do
    listed=$("$loader" --list "$program")
    foreign=$(grep '=> /' <<<"$listed" | grep -vF "=> $laid/" || true)
    [ -z "$foreign" ] || { echo "$program would use libraries of this machine's own: $foreign" >&2; exit 1; }
done
rm -rf "$prefix"
mv "$work/root/usr" "$prefix"
"$here/relocate-server.sh" "$prefix"
