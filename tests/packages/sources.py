"""The sources that `make dist` makes: the files of the last commit, and a META.json as PGXN's specification 1.0.0 wants it."""
import json
import os
import re
import subprocess
import tarfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z][-0-9A-Za-z]*)?")
TERM = re.compile(r"[^\s/\\\x00-\x1f\x7f]{2,}")
KEYS = {"abstract", "maintainer", "license", "meta-spec", "name", "provides", "version", "description", "generated_by", "no_index",
        "prereqs", "release_status", "resources", "tags"}
PHASES = {"configure", "build", "test", "runtime", "develop"}
RELATIONS = {"requires", "recommends", "suggests", "conflicts"}


def text(value):
    return isinstance(value, str) and value.strip() == value != ""


def check_meta(meta, files):
    """What the specification asks of the keys that are there. (Licenses by their short names.)"""
    assert all(k in KEYS or re.match("x_", k, re.I) for k in meta)
    assert KEYS - {"description", "generated_by", "no_index", "prereqs", "release_status", "resources", "tags"} <= meta.keys()
    assert TERM.fullmatch(meta["name"]) and SEMVER.fullmatch(meta["version"]) and text(meta["abstract"])
    people = meta["maintainer"] if isinstance(meta["maintainer"], list) else [meta["maintainer"]]
    assert people and all(map(text, people))
    assert meta["license"] == "apache_2_0"
    assert meta["meta-spec"]["version"] == "1.0.0" and meta["meta-spec"].keys() <= {"version", "url"}
    assert meta["provides"]
    for name, entry in meta["provides"].items():
        assert TERM.fullmatch(name) and entry.keys() <= {"file", "version", "abstract", "docfile"}
        assert entry["file"] in files and entry.get("docfile", entry["file"]) in files and SEMVER.fullmatch(entry["version"])
    assert meta.get("release_status", "stable") in ("stable", "testing", "unstable")
    assert all(text(t) and len(t) < 256 and "/" not in t for t in meta.get("tags", []))
    for phase, relations in meta.get("prereqs", {}).items():
        assert phase in PHASES and relations.keys() <= RELATIONS
        assert all(TERM.fullmatch(n) and (v == 0 or SEMVER.fullmatch(v)) for r in relations.values() for n, v in r.items())


def check(folder):
    subprocess.run(["make", "-s", "dist"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    committed = set(subprocess.check_output(["git", "ls-tree", "-rz", "--name-only", "HEAD"], cwd=ROOT, text=True).split("\0")) - {""}
    at = os.path.join(TARGET, "source/firn-0.1.0")
    with tarfile.open(at + ".tar.gz") as tar:
        assert {m.name for m in tar if not m.isdir()} == {f"firn-0.1.0/{f}" for f in committed}
    subprocess.run(["tar", "-xf", at + ".tar.gz", "-C", folder], check=True)
    with zipfile.ZipFile(at + ".zip") as archive:
        assert {n for n in archive.namelist() if not n.endswith("/")} == {f"firn-0.1.0/{f}" for f in committed}
        meta = json.loads(archive.read("firn-0.1.0/META.json"))
    check_meta(meta, committed)
    # One version everywhere.
    root = os.path.join(folder, "firn-0.1.0")

    def versions(path, pattern):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            return re.search(pattern, f.read(), re.M)[1]

    assert meta["version"] == meta["provides"]["firn"]["version"] == versions("Cargo.toml", r'^version = "(.*)"')
    assert meta["version"] == versions("crates/firn/firn.control", r"^default_version = '(.*)'")
    assert meta["version"] == versions("packaging/debian/changelog", r"^firn \((.*)-\d+\)")
    # What a client of PGXN calls: they build (here: would) without the repository around them.
    subprocess.run(["make", "-n", "all", "install"], cwd=root, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cargo", "tree", "--locked", "-p", "firn", "-p", "firn-cli"], cwd=root, check=True, stdout=subprocess.DEVNULL)
