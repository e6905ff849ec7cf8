"""Changing the table of contents of a directory archive as pg_dump 15 writes it (version 1.14), for archives that no pg_dump
would write."""
import os
import shutil

FIELDS = ("tag", "desc", "section", "defn", "drop", "copy", "namespace", "tablespace", "tableam", "owner")
VERSION = b"PGDMP\x01\x0e\x00\x04\x08"


class Reader:
    def __init__(self, data):
        self.data, self.at = data, len(VERSION) + 1

    def number(self):
        sign, value = self.data[self.at], int.from_bytes(self.data[self.at + 1:self.at + 5], "little")
        self.at += 5
        return -value if sign else value

    def text(self):
        length = self.number()
        if length < 0:
            return None
        self.at += length
        return self.data[self.at - length:self.at]


def number(value):
    return bytes([value < 0]) + abs(value).to_bytes(4, "little")


def text(value):
    return number(-1) if value is None else number(len(value)) + value


def read(data):
    """What comes before the entries, and the entries as dictionaries."""
    assert data.startswith(VERSION), data[:12]
    r = Reader(data)
    for _ in range(8):
        r.number()
    for _ in range(3):
        r.text()
    head = data[:r.at]
    entries = []
    for _ in range(r.number()):
        e = {"id": r.number(), "dumper": r.number(), "tableoid": r.text(), "oid": r.text()}
        for field in FIELDS:
            e[field] = r.number() if field == "section" else r.text()
        e["oids"] = r.text()
        e["needs"] = []
        while (need := r.text()) is not None:
            e["needs"].append(int(need))
        e["file"] = r.text()
        entries.append(e)
    assert r.at == len(data), (r.at, len(data))
    return head, entries


def write(head, entries):
    out = [head, number(len(entries))]
    for e in entries:
        out += [number(e["id"]), number(e["dumper"]), text(e["tableoid"]), text(e["oid"])]
        out += [number(e[f]) if f == "section" else text(e[f]) for f in FIELDS]
        out.append(text(e["oids"]))
        out += [text(str(need).encode()) for need in e["needs"]]
        out += [text(None), text(e["file"])]
    return b"".join(out)


def changed(source, target, change):
    """A copy of a directory archive; `change` is given its entries and may return others."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    with open(os.path.join(source, "toc.dat"), "rb") as f:
        head, entries = read(f.read())
    entries = change(entries) or entries
    with open(os.path.join(target, "toc.dat"), "wb") as f:
        f.write(write(head, entries))
    return target
