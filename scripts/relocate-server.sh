#!/usr/bin/env bash
# Tell the programs of a server that debian-server.sh has made, in whatever folder it is now, where their loader and libraries are: relocate-server.sh DIR
# Nothing is done to other servers.
set -euo pipefail
prefix=$(cd "$1" && pwd -P)
for loader in "$prefix"/lib/*-linux-*/ld*.so.[0-9] "$prefix"/lib64/ld*.so.[0-9] "$prefix"/lib/ld*.so.[0-9]; do
    # (Some architectures have it in two places.)
    [ -e "$loader" ] || continue
    # Programs, and those of PostgreSQL's tests; among them are scripts.
    for program in "$prefix"/lib/postgresql/*/bin/* "$prefix"/lib/postgresql/*/lib/pgxs/src/test/*/*; do
        [ -f "$program" ] && [ ! -L "$program" ] && [ "$(head -c 4 "$program" | tr -d '\0')" = $'\x7fELF' ] || continue
        libraries=
        for folder in "$prefix"/lib/*-linux-*; do
            libraries+=${libraries:+:}'$ORIGIN'/$(realpath --relative-to "$(dirname "$program")" "$folder")
        done
        patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$program"
    done
    exit
done
