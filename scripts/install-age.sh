#!/bin/sh
# Installs age, the tool whose format encrypted backups have, which the tests decrypt them with: scripts/install-age.sh
# [folder] (default target/tools below the repository). Does nothing when the pinned version is there already.
set -eu

version=v1.3.2
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
folder=${1:-"$root/target/tools"}

mkdir -p "$folder"
folder=$(CDPATH= cd -- "$folder" && pwd)
if [ -x "$folder/age" ] && [ "$(cat "$folder/age.version" 2>/dev/null)" = "$version" ]; then
	echo "$folder"
	exit 0
fi

PATH=$PATH:/usr/local/go/bin
if ! command -v go >/dev/null 2>&1; then
	echo "install-age: the Go toolchain is needed (https://go.dev/dl)" >&2
	exit 1
fi
for program in age age-keygen age-plugin-batchpass; do
	GOBIN=$folder GOFLAGS=-p=2 go install "filippo.io/age/cmd/$program@$version" >&2
done
echo "$version" >"$folder/age.version"
echo "$folder"
