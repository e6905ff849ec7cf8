"""What earlier versions have left is read and changed by this one: golden files (`<version>/`, made by make.py), and the extension's SQL objects of
earlier versions (scripts.py, older.py). docs/internals/versions.md says what may change, and how.

`<version>/stripes` and `directory.txt` are read by the crates' own tests (suite `cargo`)."""
import json
import os
import subprocess
import tarfile
import tempfile

from golden import content, make, newer, older, scripts
from harness.cluster import Cluster, version
from harness.program import binary, firn
from harness.tally import Missing

# What these tests are about.
NEWER = "of a newer version of firn"
FOLDER = os.path.dirname(os.path.abspath(__file__))


def versions():
    return sorted(name for name in os.listdir(FOLDER) if os.path.exists(os.path.join(FOLDER, name, "cluster.json")))


def expected(name):
    with open(os.path.join(FOLDER, name, "cluster.json")) as f:
        return json.load(f)


class Unpacked(Cluster):
    """The cluster of a version, started by this build."""

    def __init__(self, name):
        super().__init__("golden", conf=make.CONF)
        with tarfile.open(os.path.join(FOLDER, name, "postgresql-15.tar.xz")) as tar:
            tar.extractall(self.root)
        if os.getuid() == 0:
            subprocess.run(["chown", "-R", "postgres:", self.data, os.path.join(self.root, "store")], check=True)
        os.chmod(self.data, 0o700)
        self.configure()
        self.start()
        with self.connect() as c:
            c.execute(f"ALTER SERVER cold OPTIONS (SET url 'file://{self.root}/store')")


def read(cluster, said):
    """Everything is there that was, and nothing is found wrong with it."""
    with cluster.connect() as c:
        content.same(content.digests(c, "golden"), said["rows"], "read")
        assert content.stripes(c) == said["stripes"], content.stripes(c)
        content.check(c)


CHANGES = ["INSERT INTO {t} (id, k) SELECT i, 'new' FROM generate_series(9001 + {more}, 9200 + {more}) i", "UPDATE {t} SET k = 'upgraded ' || id WHERE id % 11 = 2", "DELETE FROM {t} WHERE id % 13 = 5",
           "UPDATE {t} SET id = id + 3000 + {more} WHERE id % 90 = 1 AND id < 1000", "BEGIN; UPDATE {t} SET n = 0; ROLLBACK", "UPDATE {t} SET n = 1 WHERE k LIKE 'upgraded%'"]
MAINTENANCE = ["SELECT firn.compact('{t}')", "VACUUM {t}", "SELECT firn.load('{t}')", "SELECT firn.offload('{t}', 'cold')", "VACUUM FULL {t}", "REINDEX TABLE {t}", "ALTER TABLE {t} ADD another int DEFAULT 7"]


def change(cluster, said):
    """The prepared transaction ends, and everything can be changed as if it had been made today, before and after the extension is updated."""
    tables = [*content.TABLES, "parts"]
    with cluster.connect() as c:
        c.execute("COMMIT PREPARED 'golden'")
        content.same(content.digests(c, "golden", only=["prepared"]), said["committed"], "committed")
        # An oracle of what was read.
        c.execute("CREATE SCHEMA oracle; SET search_path = oracle")
        for name in (*tables, "kinds", "no_columns"):
            c.execute(f"CREATE TABLE {name} (LIKE golden.{name} INCLUDING DEFAULTS) USING heap; INSERT INTO {name} SELECT * FROM golden.{name}")
        c.execute("CREATE MATERIALIZED VIEW view USING heap AS SELECT * FROM stripes WHERE id % 3 = 0")

        def both(where, most=99, oracle=None):
            found = content.digests(c, "golden", most=most)
            oracle = oracle or content.digests(c, "oracle", most=most)
            content.same(found, {look: oracle[look] for look in found}, where)
            content.check(c)
            return oracle

        oracle = None
        for more, update in ((0, False), (300, True)):
            if update:
                c.execute("ALTER EXTENSION firn UPDATE")
                assert c.execute("SELECT extversion FROM pg_extension WHERE extname = 'firn'").fetchone() == (make.current(),)
                both("extension updated", most=3, oracle=oracle)
            for name in tables:
                for statement in CHANGES:
                    for schema in ("golden", "oracle"):
                        for part in statement.split("; "):
                            c.execute(part.format(t=f"{schema}.{name}", more=more))
            for schema in ("golden", "oracle"):
                c.execute(f"REFRESH MATERIALIZED VIEW {schema}.view")
            oracle = both("changed")
        for statement in MAINTENANCE:
            for name in tables:
                if name == "parts" and ("FULL" in statement or "ALTER" in statement):
                    continue
                if statement.startswith("ALTER"):
                    c.execute(statement.format(t=f"oracle.{name}"))
                c.execute(statement.format(t=f"golden.{name}"))
            c.execute("SET search_path = public")
            both(statement, most=1, oracle=None if statement.startswith("ALTER") else oracle)
        both("all")
        c.execute("DROP SCHEMA golden CASCADE; DROP SERVER cold; DROP EXTENSION firn CASCADE")
    assert not cluster.alarms(NEWER), cluster.alarms(NEWER)


def today(cluster):
    """What is made of the same statements today holds what the newest golden cluster holds."""
    store = os.path.join(cluster.root, "store")
    os.mkdir(store)
    os.chmod(store, 0o777)
    found, said = make.fill(cluster, store), expected(versions()[-1])
    for part in ("rows", "committed"):
        content.same(found[part], said[part], part)
    read(cluster, found)
    # (Two of its sessions were killed.)
    alarms = [line for line in cluster.alarms(NEWER) if "terminated by signal 9" not in line]
    assert not alarms, alarms


def backups(cluster, name):
    """Backups of a version are verified and restored."""
    if not os.path.exists(binary()):
        raise Missing("the program is not built: make program")
    said = {look: digest for look, digest in expected(name)["rows"].items() if look.split(":")[0] in make.SAVED}
    secret = os.path.join(cluster.root, "secret")
    with open(secret, "w") as f:
        f.write(make.PASSPHRASE + "\n")
    os.chmod(secret, 0o600)
    with tempfile.TemporaryDirectory(prefix="firn-golden-") as folder:
        with tarfile.open(os.path.join(FOLDER, name, "backups.tar.xz")) as tar:
            tar.extractall(folder)
        for place in sorted(os.listdir(folder)):
            database = f"{place}_{name.replace('.', '_')}"
            flags = ["--passphrase-file", secret] if place == "encrypted" else []
            with cluster.connect() as c:
                c.execute(f"CREATE DATABASE {database}")
            with cluster.connect(database) as c:
                c.execute("CREATE EXTENSION firn")
            firn(cluster, "backup", "verify", "-q", *flags, os.path.join(folder, place))
            firn(cluster, "restore", "-q", "-d", database, *flags, os.path.join(folder, place))
            with cluster.connect(database) as c:
                content.same(content.digests(c, "golden", only=make.SAVED), said, place)
                content.check(c)


def run(tally, pattern):
    for name in versions():
        cluster = None

        def unpacked(name=name):
            nonlocal cluster
            if version() != 15:
                raise Missing("golden clusters are of PostgreSQL 15")
            cluster = Unpacked(name)
            read(cluster, expected(name))

        try:
            if pattern in f"golden {name} read" or pattern in f"golden {name} changed":
                tally.case(f"golden {name} read", unpacked)
                if cluster:
                    tally.case(f"golden {name} changed", lambda: change(cluster, expected(name)))
        finally:
            if cluster:
                cluster.destroy()
    cases = {"golden made today": today, **{f"golden {name} backups": lambda c, name=name: backups(c, name) for name in versions()}}
    chosen = {name: body for name, body in cases.items() if pattern in name}
    if chosen:
        cluster = Cluster("golden-today", conf=make.CONF).create()
        try:
            for name, body in chosen.items():
                tally.case(name, lambda: body(cluster))
        finally:
            cluster.destroy()
    scripts.run(tally, pattern)
    cases = {**{f"golden beside older objects: {name}": body for name, body in older.CASES.items()}, **{f"golden of a newer version: {name}": body for name, body in newer.CASES.items()}}
    chosen = {name: body for name, body in cases.items() if pattern in name}
    if chosen:
        cluster = Cluster("golden-others", conf=make.CONF).create()
        try:
            with cluster.connect() as c:
                c.execute("CREATE EXTENSION firn")
            for name, body in chosen.items():
                tally.case(name, lambda: body(cluster))
            tally.case("golden server log", lambda: quiet(cluster))
        finally:
            cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms(NEWER), cluster.alarms(NEWER)
