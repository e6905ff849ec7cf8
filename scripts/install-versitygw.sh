#!/bin/sh
# Installs versitygw, the S3 server the tests run against: scripts/install-versitygw.sh [folder]
# (default target/tools below the repository). Does nothing when the pinned version is there already.
set -eu

version=v1.8.0
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
folder=${1:-"$root/target/tools"}

mkdir -p "$folder"
folder=$(CDPATH= cd -- "$folder" && pwd)
if [ -x "$folder/versitygw" ] && [ "$(cat "$folder/versitygw.version" 2>/dev/null)" = "$version" ]; then
	echo "$folder/versitygw"
	exit 0
fi

PATH=$PATH:/usr/local/go/bin
if ! command -v go >/dev/null 2>&1; then
	echo "install-versitygw: the Go toolchain is needed (https://go.dev/dl)" >&2
	exit 1
fi
# (Not inlined it is compiled in two thirds of the time.)
GOBIN=$folder GOFLAGS=-p=2 go install -gcflags=all=-l "github.com/versity/versitygw/cmd/versitygw@$version" >&2
echo "$version" >"$folder/versitygw.version"
echo "$folder/versitygw"
