"""Whether all crates here, each built by itself or its tests, want the same features of others' libraries: else these are built again for each.

What differs goes into crates/features/Cargo.toml (its README says how).
"""
import collections
import json
import re
import subprocess
import sys

# What the peer asks for that tests of the program compare with (libpgdump) is nobody else's: checks in Parquet's compressor.
PEERS = {("lz4_flex", "v0.14"): "firn-cli"}

packages = json.loads(subprocess.check_output(["cargo", "metadata", "--format-version", "1", "--no-deps"]))["packages"]
found = collections.defaultdict(lambda: collections.defaultdict(list))
for package in packages:
    name = package["name"]
    for edges in ("normal,no-proc-macro", "normal,dev,no-proc-macro"):
        told = subprocess.check_output(["cargo", "tree", "-p", name, "-e", edges, "--prefix", "none", "--format", "{p}|{f}"], text=True)
        for line in set(told.splitlines()):
            # (What stands there again has a star behind it.)
            library, features = re.sub(r" \(\*\)$", "", line).split("|")
            of_peer = "dev" in edges and PEERS.get((library.split()[0], library.split()[1].rpartition(".")[0])) == name
            if "(/" not in library and not of_peer:
                found[library][features].append(name)
bad = {library: sets for library, sets in found.items() if len(sets) > 1}
for library, sets in sorted(bad.items()):
    print(f"{library} is built {len(sets)} times:")
    for features, names in sets.items():
        print(f"    for {' '.join(sorted(set(names)))} with {features or 'none'}")
sys.exit(1 if bad else 0)
