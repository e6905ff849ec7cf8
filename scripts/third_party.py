"""What of others is linked into a crate of ours: names, versions, licenses and their texts, for the packages.

third_party.py CRATE [flags of cargo that choose its features]: printed. Equal texts are printed once.
"""
import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.I)
CODE = re.compile(r"\.(rs|c|h|py|sh|toml|json)$")


def cargo(*args):
    return subprocess.check_output(["cargo", *args], cwd=ROOT, text=True)


def host():
    return re.search(r"^host: (.*)$", subprocess.check_output(["rustc", "-vV"], text=True), re.M)[1]


def linked(crate, features):
    """Name and version of each crate that is linked, but not of those that only work while it is built, or lend features to the others (crates/features)."""
    tree = cargo("tree", "--locked", "-p", crate, "-e", "normal,no-proc-macro", "--prefix", "none", "-f", "{p}",
                 "--prune", "firn-features", *features)
    return sorted({tuple(line.split()[:2]) for line in tree.splitlines() if line})


def texts(folder):
    """The files in a crate's folder that are licenses or notices."""
    found = glob.glob("**", root_dir=folder, recursive=True)
    return [os.path.join(folder, f) for f in sorted(found) if TEXT.match(os.path.basename(f)) and not CODE.search(f)
            and os.path.isfile(os.path.join(folder, f))]


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read().strip("\n")


def main():
    crate, features = sys.argv[1], sys.argv[2:]
    known = json.loads(cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", host()))["packages"]
    known = {(p["name"], "v" + p["version"]): p for p in known}
    of_text, lines = {}, []
    for key in linked(crate, features):
        package = known[key]
        if package["source"] is None:
            continue
        found = texts(os.path.dirname(package["manifest_path"]))
        by = "" if found else f", by {', '.join(package['authors']) or 'its authors'}"
        lines.append(f"{key[0]} {package['version']}: {package['license'] or 'see its text'}{by}")
        for path in found:
            of_text.setdefault(read(path), []).append(f"{key[0]} {package['version']}")
    lines.append("Rust's standard library: MIT OR Apache-2.0")
    print(f"Linked into {crate}:\n")
    print("\n".join(lines))
    for text, users in of_text.items():
        print(f"\n{'=' * 80}\n{', '.join(dict.fromkeys(users))}\n{'=' * 80}\n{text}")


main()
