"""Make the golden files of a version: `make.py [VERSION]`, with PG_CONFIG of PostgreSQL 15 with the extension, cargo, and the program built. What a version that
was released has is never made anew. docs/internals/versions.md says when there are new ones."""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from golden import content  # noqa: E402
from harness.cluster import Cluster, version  # noqa: E402
from harness.program import firn  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.dirname(os.path.abspath(__file__))
CONF = ["autovacuum=off", "fsync=off", "jit=off", "timezone=UTC"]
# Of segments of 1 MB.
LITTLE_WAL = ["min_wal_size=2MB", "max_wal_size=4MB"]


class Small(Cluster):
    """A cluster with one database, and no more in it than is needed."""

    def create_small(self):
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C", "--wal-segsize=1")
        shutil.copy(os.path.join(self.data, "postgresql.conf"), os.path.join(self.root, "postgresql.conf"))
        self.configure()
        self.start()
        with self.connect() as c:
            c.execute("UPDATE pg_database SET datistemplate = false")
            for name in ("template0", "template1"):
                c.execute(f"DROP DATABASE {name}")
            c.execute("DROP SCHEMA information_schema CASCADE; DELETE FROM pg_description; DELETE FROM pg_conversion")
            c.execute("VACUUM FULL")
        return self


def current():
    """The version of the extension."""
    with open(os.path.join(ROOT, "crates/firn/firn.control")) as f:
        return re.search(r"default_version = '(.*)'", f.read())[1]


def fill(cluster, store):
    """All content in the schema `golden`, and what its oracle has: digests, and those of when the prepared transaction is committed."""
    with cluster.connect() as c:
        c.execute("CREATE EXTENSION firn")
    content.make(cluster, "heap")
    content.make(cluster, "golden", store)
    content.interrupt(cluster)
    with cluster.connect() as c:
        expected = {"rows": content.digests(c, "heap")}
        content.same(content.digests(c, "golden"), expected["rows"], "made")
        for am in ("heap", "golden"):
            content.prepare(c, am)
        content.same(content.digests(c, "golden"), expected["rows"], "prepared")
        c.execute("COMMIT PREPARED 'heap'")
        expected["committed"] = content.digests(c, "heap", only=["prepared"])
        c.execute("DROP SCHEMA heap CASCADE")
        sorts = content.stored(c)
        assert content.ALL_SORTS <= sorts, (content.ALL_SORTS - sorts, sorts)
        expected["stripes"] = content.stripes(c)
    return expected


def archive(cluster, store, path):
    """The stopped cluster's files and the store, without what is only of the place where they were."""
    control = cluster.run("pg_controldata", "-D", cluster.data).stdout
    needed = re.search(r"REDO WAL file: +(\w+)", control)[1]
    for name in os.listdir(os.path.join(cluster.data, "pg_wal")):
        if len(name) == 24 and name != needed:
            os.unlink(os.path.join(cluster.data, "pg_wal", name))
    shutil.copy(os.path.join(cluster.root, "postgresql.conf"), os.path.join(cluster.data, "postgresql.conf"))
    os.unlink(os.path.join(cluster.data, "postmaster.opts"))
    with tarfile.open(path, "w:xz", preset=9) as tar:
        tar.add(cluster.data, "data", filter=plain)
        tar.add(store, "store", filter=plain)


# What of the content backups have: tables of each sort, and few bytes.
SAVED = ["kinds", "changed", "stripes", "no_columns", "empty", "view", "parts"]
PASSPHRASE = "golden"


def backups(cluster, folder):
    """Backups by the program, in the clear and encrypted: packed, with what the program says of them."""
    others = [f"--exclude-table=golden.{name}" for name in content.TABLES if name not in SAVED]
    secret = os.path.join(cluster.root, "passphrase")
    with open(secret, "w") as f:
        f.write(PASSPHRASE + "\n")
    os.chmod(secret, 0o600)
    with tarfile.open(os.path.join(folder, "backups.tar.xz"), "w:xz", preset=9) as tar:
        for name, flags in (("clear", []), ("encrypted", ["--passphrase-file", secret])):
            place = os.path.join(cluster.root, name)
            firn(cluster, "backup", "postgres", place, "--schema=golden", *others, *flags)
            tar.add(place, name, filter=plain)


def plain(member):
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def lines(expected):
    """JSON, a line for each thing."""
    def part(name):
        found = expected[name]
        items = [json.dumps(item) for item in found] if isinstance(found, list) else [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(found.items())]
        left, right = "[]" if isinstance(found, list) else "{}"
        return f"{json.dumps(name)}: {left}\n" + ",\n".join(items) + f"\n{right}"
    return "{\n" + ",\n".join(part(name) for name in sorted(expected)) + "\n}\n"


def make(folder):
    assert version() == 15, "golden clusters are of PostgreSQL 15, from which others are reached by pg_upgrade"
    os.makedirs(folder, exist_ok=True)
    for crate, test in (("firn-format", ["--test", "golden"]), ("firn-directory", ["--lib"])):
        subprocess.run(["cargo", "test", "--release", "-p", crate, *test, "--", "--ignored", "make"], cwd=ROOT, check=True, env=dict(os.environ, FIRN_GOLDEN=folder))
    cluster = Small("golden-made", conf=CONF + LITTLE_WAL).create_small()
    try:
        store = os.path.join(cluster.root, "store")
        os.mkdir(store)
        os.chmod(store, 0o777)
        expected = fill(cluster, store)
        backups(cluster, folder)
        with cluster.connect() as c:
            for statement in ("ALTER SERVER cold OPTIONS (SET url 'file:///golden/store')", "VACUUM FULL pg_foreign_server", "CHECKPOINT", "SELECT pg_switch_wal()", "CHECKPOINT"):
                c.execute(statement)
        cluster.stop()
        archive(cluster, store, os.path.join(folder, "postgresql-15.tar.xz"))
        with open(os.path.join(folder, "cluster.json"), "w") as f:
            f.write(lines(expected))
    finally:
        cluster.destroy()


if __name__ == "__main__":
    make(os.path.join(FOLDER, sys.argv[1] if len(sys.argv) > 1 else current()))
