#!/usr/bin/env python3
"""The rooms of the extension and of the program (folders of crates/firn/src and crates/cli/src) import downwards only.

HOUSES says their order, from the top down. A file may import its own room and those below it: so there is no circle of
folders. Within the extension's ENTRY each file and folder is a room of its own, in that order. `layers.py` prints what breaks this;
`layers.py --self-check` shows that it finds what it must; `layers.py --list` who imports whom.
"""
import os
import re
import subprocess
import sys
from collections import Counter

# From the top down, and what is in them.
EXTENSION = {
    "entry": "what PostgreSQL calls",
    "sql": "the bodies of SQL functions",
    "plan": "what the custom nodes do with stripes",
    "am": "rows of stripes, as the access method",
    "tier": "offload and load",
    "mover": "compaction, and what VACUUM leaves to be done",
    "write": "rows become stripes",
    "stripe": "stripes become rows",
    "stores": "the session's object stores and cache",
    "directory": "what is stored where",
    "pg": "calls into PostgreSQL",
}
ENTRY = ["transaction", "worker", "fmgr", "hooks", "customscan", "index_only", "tableam", "copying"]
PROGRAM = {
    "commands": "what the program does with its arguments",
    "args": "the command line",
    "script": "an archive as pg_restore carries it out",
    "restore": "carries a plan out",
    "verify": "a database against what it should be",
    "backup": "makes, checks and lists backups",
    "report": "what a person sees",
    "plan": "pure decisions",
    "archive": "what an archive says",
    "crypt": "encryption of backups",
    "stop": "how the work is stopped",
    "store": "local paths and object stores",
    "pg": "the fence around libpq",
    "row_sum": "a checksum of rows in any order",
    "hex": "bytes as digits",
    "say": "lines for the terminal",
    "error": "the program's error",
}
HOUSES = {"crates/firn/src/": EXTENSION, "crates/cli/src/": PROGRAM}
# What has no room: the crates' beginnings, and what all of a crate has without asking.
ROOMLESS = ("lib", "main", "allocator")


def blank(text):
    """The source without comments and strings."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|[bc]?"(?:\\.|[^"\\])*"', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def branches(tree):
    """The paths of a use tree: a::{b, c::{d, e}} is a::b, a::c::d, a::c::e."""
    at = tree.find("{")
    if at < 0:
        return [tree]
    parts, depth, part = [], 0, ""
    for c in tree[at + 1:tree.rindex("}")]:
        depth += (c == "{") - (c == "}")
        if c == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    return [tree[:at] + branch for p in [*parts, part] if p for branch in branches(p)]


def imports(file, text):
    """Paths that a file names, from the crate's root: (line, parts). `file` is below src/."""
    here = file[:-3].split("/")
    if here[-1] in ("mod", "lib"):
        here.pop()
    text = blank(text)
    found = []

    def name(at, path):
        parts = re.split(r"::", re.sub(r"\bas \w+|\s", "", path))
        base = None
        if parts[0] == "crate":
            base, parts = [], parts[1:]
        elif parts[0] in ("self", "super"):
            base = list(here)
            while parts and parts[0] in ("self", "super"):
                if parts.pop(0) == "super":
                    base = base[:-1]
        if base is not None:
            found.append((text.count("\n", 0, at) + 1, base + parts))

    def use(m):
        for path in branches(re.sub(r"\s+as\s+\w+", "", m.group(1)).replace("\n", " ").replace(" ", "")):
            name(m.start(), path)
        return re.sub(r"[^\n]", " ", m.group(0))
    # Not the rooms that `pub(in ...)` names: that says who may look in.
    text = re.sub(r"pub\s*\(in [^)]*\)", lambda m: " " * len(m.group(0)), text)
    text = re.sub(r"\buse\s+([^;]+);", use, text)
    for m in re.finditer(r"(?<![\w:])(?:crate|super|self)(?:\s*::\s*\w+)+", text):
        name(m.start(), m.group(0))
    return found


def check(files, root="crates/firn/src/"):
    """Complaints about `files` (name below src/ to text), and the imports between rooms."""
    said, edges, rooms = [], Counter(), list(HOUSES[root])
    for file, text in sorted(files.items()):
        room = file.split("/")[0].removesuffix(".rs")
        if room in ROOMLESS:
            continue
        if room not in rooms:
            said.append(f"{root}{file}: the room {room} has no place in HOUSES (scripts/layers.py)")
            continue
        for line, path in imports(file, text):
            if not path or path[0] not in rooms:
                continue
            edges[room, path[0]] += room != path[0]
            if rooms.index(path[0]) < rooms.index(room):
                said.append(f"{root}{file}:{line}: {room} imports {path[0]}, which is above it")
            if room == path[0] == "entry" and len(path) > 1 and "/" in file:
                mine, its = file.split("/")[1].removesuffix(".rs"), path[1]
                if mine == "mod":
                    continue
                if mine not in ENTRY:
                    said.append(f"{root}{file}: entry/{mine} has no place in ENTRY (scripts/layers.py)")
                elif its in ENTRY and ENTRY.index(its) < ENTRY.index(mine):
                    said.append(f"{root}{file}:{line}: entry/{mine} imports entry/{its}, which is above it")
    return sorted(set(said)), edges


# Of the extension.
SELF_CHECK = [
    # (file, source, what must be complained of; None: nothing)
    ("am/x.rs", "use crate::directory::{keys, Directory};", None),
    ("directory/x.rs", "use crate::am::counts;", "directory imports am"),
    ("directory/x.rs", "use crate::{pg::Rel, am::counts};", "directory imports am"),
    ("directory/x.rs", "// crate::am::counts\nfn f() { \"crate::am\"; }", None),
    ("directory/x.rs", "fn f() {\n crate::am::counts::f() }", "x.rs:2: directory imports am"),
    ("directory/mod.rs", "fn f() { super::am::f() }", "directory imports am"),
    ("pg/rebuild/wait.rs", "use super::super::super::am;", "pg imports am"),
    ("pg/rebuild/wait.rs", "use super::super::lock;", None),
    ("pg/x.rs", "pub(in crate::entry) fn f() {}", None),
    ("store/x.rs", "", "store has no place"),
    ("main.rs", "use crate::entry;", None),
    ("entry/tableam/x.rs", "use crate::entry::hooks;", "entry/tableam imports entry/hooks"),
    ("entry/tableam/x.rs", "use super::super::hooks::f;", "entry/tableam imports entry/hooks"),
    ("entry/hooks/x.rs", "use crate::entry::customscan::{recheck, self};", None),
]


def self_check():
    wrong = 0
    for file, source, wanted in SELF_CHECK:
        said, _ = check({file: source})
        if not said and wanted or said and (wanted is None or not any(wanted in s for s in said)):
            print(f"layers.py is blind: {file}: {source!r}: wanted {wanted!r}, said {said}", file=sys.stderr)
            wrong += 1
    return wrong


def main():
    if self_check():
        return 1
    if "--self-check" in sys.argv:
        return 0
    complaints = 0
    for root, rooms in HOUSES.items():
        names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", root + "*.rs"], text=True).split()
        said, edges = check({n.removeprefix(root): open(n).read() for n in names if os.path.exists(n)}, root)
        if "--list" in sys.argv:
            for (a, b), n in sorted(edges.items(), key=lambda e: [list(rooms).index(r) for r in e[0]]):
                print(f"{a} -> {b}: {n}" if n else "", end="\n" if n else "")
        for line in said:
            print(line, file=sys.stderr)
        complaints += len(said)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
