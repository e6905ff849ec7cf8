#!/usr/bin/env bash
# Tell the programs of a server that debian-server.sh has made, in whatever folder it is now, where their loader is: relocate-server.sh DIR
# Nothing is done to other servers.
set -euo pipefail
prefix=$(cd "$1" && pwd)
for loader in "$prefix"/lib/*-linux-*/ld-linux-*.so.* "$prefix"/lib64/ld-linux-*.so.*; do
    # (Some architectures have it in two places.)
    [ -e "$loader" ] || continue
    libraries=
    for folder in "$prefix"/lib/*-linux-*; do libraries+=${libraries:+:}'$ORIGIN/../../..'/${folder##*/}; done
    for program in "$prefix"/bin/*; do
        # Scripts have none.
        [ -L "$program" ] || [ "$(head -c 4 "$program")" != $'\x7fELF' ] || programs+=("$program")
    done
    patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "${programs[@]}"
    exit
done
