#!/usr/bin/env bash
# Debian packages into $CARGO_TARGET_DIR/deb: the extension for the server of PG_CONFIG (postgresql-NN-firn), the program
# (firn), and the debug symbols of each (…-dbgsym). `make deb` runs it. What they say of themselves is in packaging/debian.
set -euo pipefail
: "${CARGO_TARGET_DIR:?run through make}" "${PG_CONFIG:?}"
cd "$(dirname "$0")/.."
root=$PWD
fail() { echo "make deb: $*" >&2; exit 1; }

for tool in dpkg-deb dpkg-shlibdeps dpkg-gencontrol dpkg-parsechangelog objcopy strip readelf; do
    command -v "$tool" >/dev/null || fail "$tool is missing (packages dpkg-dev, binutils)"
done
major=$("$PG_CONFIG" --version | sed -E 's/^[^0-9]*([0-9]+).*/\1/')
# A package of a server that no package has would depend on postgresql-NN, whose server looks for libraries elsewhere.
home=/usr/lib/postgresql/$major
[ "$("$PG_CONFIG" --bindir)" = "$home/bin" ] && [ "$("$PG_CONFIG" --pkglibdir)" = "$home/lib" ] || fail \
    "$PG_CONFIG is not that of Debian's postgresql-$major (its folder is $("$PG_CONFIG" --bindir), not $home/bin)." \
    "For a server of your own: make install PROFILE=dist PG_CONFIG=$PG_CONFIG DESTDIR=…"
version=$(dpkg-parsechangelog -l packaging/debian/changelog -S Version)
grep -q "^version = \"${version%-*}\"" Cargo.toml || fail "packaging/debian/changelog is of $version, Cargo.toml is not"
arch=$(dpkg --print-architecture)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(dpkg-parsechangelog -l packaging/debian/changelog -S Timestamp)}
umask 022
out=$CARGO_TARGET_DIR/deb
stage=$out/stage
rm -rf "$stage"
mkdir -p "$stage/debian"

# A target directory of its own: folders of this machine are left out of messages and debug symbols, with flags that other
# builds do not have. Sources are where gdb may be told that they are: `set substitute-path /usr/src/firn …`.
build=$CARGO_TARGET_DIR/deb-build
renamed=("$root=/usr/src/firn" "${CARGO_HOME:-$HOME/.cargo}=/usr/src/cargo" "$build=/usr/src/target")
for pair in "${renamed[@]}"; do
    RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$pair"
    CFLAGS="${CFLAGS:-} -ffile-prefix-map=$pair"
done
export RUSTFLAGS CFLAGS
extension=postgresql-$major-firn
make --no-print-directory install CARGO_TARGET_DIR="$build" PROFILE=dist DESTDIR="$stage/$extension"
make --no-print-directory install-cli CARGO_TARGET_DIR="$build" PROGRAM_PROFILE=dist PREFIX=/usr DESTDIR="$stage/firn"
mkdir "$stage/firn/usr/share/zsh/vendor-completions"
mv "$stage"/firn/usr/share/zsh/{site-functions/_firn,vendor-completions/_firn}
rmdir "$stage/firn/usr/share/zsh/site-functions"
gzip -9n "$stage"/firn/usr/share/man/man1/*

# split PACKAGE FILE: debug symbols to where gdb looks for them, as dh_strip does.
split() {
    local file=$stage/$1$2 id debug
    id=$(readelf -n "$file" | sed -nE 's/.*Build ID: ([0-9a-f]+).*/\1/p')
    debug=$stage/$1-dbgsym/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug
    mkdir -p "$(dirname "$debug")"
    local with without
    with=$(stat -c %s "$file")
    objcopy --only-keep-debug --compress-debug-sections "$file" "$debug"
    chmod 644 "$debug"
    strip --remove-section=.comment --remove-section=.note --strip-unneeded "$file"
    objcopy --add-gnu-debuglink="$debug" "$file"
    without=$(stat -c %s "$file")
    echo "$2: $((with / 1000)) kB, without debug symbols $((without / 1000)) kB" >>"$stage/sizes"
    echo "$id" >"$stage/$1.id"
}
split "$extension" "$home/lib/firn.so"
split firn /usr/bin/firn
chmod 644 "$stage/$extension$home/lib/firn.so"

sed "s/PGVERSION/$major/g" packaging/debian/control.in >"$stage/debian/control"
cp packaging/debian/changelog "$stage/debian/"
# pack PACKAGE [flags of dpkg-gencontrol]: what every package has, and the file.
pack() {
    local name=$1 folder=$stage/$1
    shift
    mkdir -p "$folder/DEBIAN"
    (cd "$stage" && dpkg-gencontrol -p"${name%-dbgsym}" -P"$folder" -Tdebian/"${name%-dbgsym}".substvars -fdebian/files "$@")
    (cd "$folder" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0r md5sum >DEBIAN/md5sums)
    # (Where the clock is behind SOURCE_DATE_EPOCH, dpkg-deb would leave times as they are.)
    find "$folder" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$folder" "$out" >/dev/null
    echo "${out}/${name}_${version}_$arch.deb: $(($(stat -c %s "$out/${name}_${version}_$arch.deb") / 1000)) kB" >>"$stage/sizes"
}
# package PACKAGE FILE CRATE [flags that choose features]: with its debug symbols.
package() {
    local name=$1 file=$2 doc=$stage/$1/usr/share/doc/$1
    shift 2
    mkdir -p "$doc" "$stage/$name-dbgsym/usr/share/doc"
    cp packaging/debian/copyright "$doc/"
    gzip -9nc packaging/debian/changelog >"$doc/changelog.Debian.gz"
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
    python3 scripts/third_party.py "$@" | gzip -9n >"$doc/third-party.gz"
    ln -s "$name" "$stage/$name-dbgsym/usr/share/doc/$name-dbgsym"
    (cd "$stage" && dpkg-shlibdeps -Tdebian/"$name".substvars -S"$name" "$name$file")
    pack "$name"
    pack "$name-dbgsym" -DPackage="$name-dbgsym" -DDepends="$name (= $version)" -URecommends -USuggests -DSection=debug \
        -DAuto-Built-Package=debug-symbols -DBuild-Ids="$(cat "$stage/$name.id")" -DDescription="debug symbols for $name"
}
rm -f "$out/${extension}_"*.deb "$out/$extension-dbgsym_"*.deb "$out/firn_"*.deb "$out/firn-dbgsym_"*.deb
package "$extension" "$home/lib/firn.so" firn --no-default-features --features "pg$major"
package firn /usr/bin/firn firn-cli
cat "$stage/sizes"
rm -rf "$stage"
