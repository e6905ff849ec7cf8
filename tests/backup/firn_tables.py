"""Tables of the extension: their rows are backed up wherever they are, also those in an object store."""
import glob
import json
import os

from backup.trouble import Busy
from backup.zoo import backup, create, entries, place
from harness.cluster import Cluster
from harness.program import firn, tool

TABLES = r"""
CREATE EXTENSION firn;
CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://STORE');
SET firn.bulk_threshold = 10; SET firn.stripe_rows = 500;
CREATE TABLE f (id int PRIMARY KEY, v text, n numeric(10,2), t timestamp, a int[]) USING firn;
INSERT INTO f SELECT i, CASE WHEN i % 9 > 0 THEN E'v\t\\' || i % 50 END, i / 4.0, '2020-01-01'::timestamp + i * interval '1 hour',
  ARRAY[i, NULL] FROM generate_series(1, 5000) i;
CREATE INDEX ON f (v);
CREATE TABLE p (id int, at date) PARTITION BY RANGE (at);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2020-01-01') TO ('2020-02-01') USING firn;
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM ('2020-02-01') TO ('2020-03-01') USING firn;
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM ('2020-03-01') TO ('2020-05-01') USING heap;
INSERT INTO p SELECT i, '2020-01-01'::date + i % 90 FROM generate_series(1, 3000) i;
CREATE TABLE warm (x int) USING firn;
INSERT INTO warm SELECT generate_series(1, 2000);
CREATE TABLE never_filled (x int) USING firn;
"""
# What is cold, and changed after that: rows of the row store hide or follow those of objects.
COOL = ("SELECT firn.offload('f', 'cold')", "SELECT firn.offload('p1', 'cold')",
        "UPDATE f SET v = 'changed' WHERE id % 100 = 7", "DELETE FROM f WHERE id BETWEEN 1000 AND 1100",
        "INSERT INTO f SELECT i, 'late' FROM generate_series(6000, 6100) i", "DELETE FROM p WHERE id < 10",
        "UPDATE f SET id = id + 100000 WHERE id % 500 = 3")


class Extended:
    """A server with the extension, and a folder for cold stripes."""

    def __enter__(self):
        self.cluster = Cluster("backup-firn", conf=["fsync=off"]).create()
        self.store = os.path.join(self.cluster.root, "store")
        os.mkdir(self.store)
        os.chmod(self.store, 0o777)
        return self

    def __exit__(self, *_):
        self.cluster.destroy()

    def connect(self, dbname="postgres"):
        return self.cluster.connect(dbname)


def rows(cluster, database, table):
    with cluster.connect(database) as c:
        return sorted(c.execute(f"SELECT {table}::text FROM {table}").fetchall())


def whole(extended):
    """Back in a database of its own all rows are there, in tables of the same kind, and none of them needs the store."""
    cluster = extended.cluster
    with cluster.connect() as c:
        create(c, "tables", TABLES.replace("STORE", extended.store), cluster)
        with cluster.connect("tables") as d:
            for statement in COOL:
                d.execute(statement)
            cold = {r[0]: r[1:] for r in d.execute("SELECT relation::text, cold_bytes, stripes FROM firn.tables")}
            assert cold["f"][0] > 0 and cold["p1"][0] > 0 and cold["warm"][0] == 0 and cold["p2"][1] > 0, cold
        theirs = place(cluster, "theirs")
        tool(cluster, "pg_dump", "-Fd", "-f", theirs, "tables")
        path = backup(cluster, "tables", "there", "-j", "3")
        assert entries(cluster, theirs) == entries(cluster, path)
        firn(cluster, "backup", "verify", path)
        firn(cluster, "backup", "verify", path, "-d", "tables", "--checksums")
        with open(os.path.join(path, "manifest.json")) as f:
            counts = {r["table"]["name"]: r["table"]["rows"] for r in json.load(f)["files"] if "table" in r}
        assert counts["f"] == 5000 - 101 + 101 and counts["p1"] > 900, counts
        aside = extended.store + "-aside"
        for restore in ("firn", "pg_restore"):
            c.execute("DROP DATABASE IF EXISTS back")
            c.execute("CREATE DATABASE back TEMPLATE template0")
            # The store is not needed any more.
            os.rename(extended.store, aside)
            try:
                if restore == "firn":
                    firn(cluster, "restore", "-d", "back", path, "-j", "2")
                else:
                    tool(cluster, "pg_restore", "-e", "-d", "back", path)
                firn(cluster, "backup", "verify", path, "-d", "back", "--checksums")
                with cluster.connect("back") as d:
                    assert d.execute("SELECT sum(cold_bytes), count(*) FROM firn.tables").fetchone() == (0, 5)
                    assert d.execute("SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname = 'f'"
                                     ).fetchone() == ("firn",)
                    assert not d.execute("SELECT * FROM firn.check('f')").fetchall()
            finally:
                os.rename(aside, extended.store)
            for table in ("f", "p", "warm", "never_filled"):
                assert rows(cluster, "tables", table) == rows(cluster, "back", table), table


def unreadable(extended):
    """Cold rows that cannot be read are an error, and no backup."""
    cluster = extended.cluster
    with cluster.connect() as c:
        create(c, "tables", TABLES.replace("STORE", extended.store), cluster)
    before = set(glob.glob(extended.store + "/**", recursive=True))
    with cluster.connect("tables") as d:
        d.execute("SELECT firn.offload('f', 'cold')")
    new = [n for n in set(glob.glob(extended.store + "/**", recursive=True)) - before if os.path.isfile(n)]
    victim = max(new, key=os.path.getsize)
    with open(victim, "rb") as f:
        content = f.read()
    # Past the server's cache, which would go on having what it read.
    env = {"PGOPTIONS": "-c firn.cache_size=0"}
    for damage in ("gone", "half", "flipped"):
        if damage == "gone":
            os.rename(victim, victim + ".aside")
        else:
            with open(victim, "wb") as f:
                f.write(content[:len(content) // 2] if damage == "half" else
                        content[:100] + bytes([content[100] ^ 1]) + content[101:])
        path = place(cluster, "there")
        r = firn(cluster, "backup", "tables", path, "-j", "2", env=env, code=1)
        assert 'could not copy "public"."f"' in r.stderr and "SQLSTATE" in r.stderr, r.stderr
        assert not os.path.exists(os.path.join(path, "manifest.json"))
        assert firn(cluster, "backup", "list", path).stdout.splitlines()[1].endswith("incomplete")
        if damage == "gone":
            os.rename(victim + ".aside", victim)
    with open(victim, "wb") as f:
        f.write(content)
    firn(cluster, "backup", "tables", path, "--overwrite-incomplete", env=env)
    firn(cluster, "backup", "verify", path, "-d", "tables", "--checksums", env=env)


def moving(extended):
    """Rows change, get cold and come back while backups are made: each is as of one moment."""
    cluster = extended.cluster
    with cluster.connect() as c:
        create(c, "moving", "CREATE EXTENSION firn;"
               f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{extended.store}');"
               "SET firn.bulk_threshold = 10; SET firn.stripe_rows = 500;"
               "CREATE TABLE a (id int PRIMARY KEY, n bigint) USING firn; CREATE TABLE b (id int PRIMARY KEY, n bigint) USING firn;"
               "INSERT INTO a SELECT i, 100 FROM generate_series(1, 4000) i; INSERT INTO b TABLE a", cluster)

    def pay(c, n):
        with c.transaction():
            c.execute("UPDATE a SET n = n - %s WHERE id = %s", (n % 50, n * 37 % 4000 + 1))
            c.execute("UPDATE b SET n = n + %s WHERE id = %s", (n % 50, n * 101 % 4000 + 1))

    def move(c, n):
        # Plain heap locks rows that are being moved, too: who is in the way of a payment waits for it.
        for statement in ("SELECT firn.offload('a', 'cold')", "SELECT firn.compact('b')", "SELECT firn.load('a')",
                          "SELECT firn.offload('b', 'cold')", "VACUUM a, b", "SELECT firn.load('b')"):
            c.execute(statement)

    with Busy(cluster, "moving", pay) as one, Busy(cluster, "moving", move) as other:
        for n in range(5):
            backup(cluster, "moving", f"there{n}", "-j", 1 + n % 3)
        assert one.rounds > 20 and other.rounds >= 1, (one.rounds, other.rounds)
    with cluster.connect() as c:
        for n in range(5):
            c.execute("DROP DATABASE IF EXISTS back")
            c.execute("CREATE DATABASE back TEMPLATE template0")
            firn(cluster, "restore", "-q", "-d", "back", os.path.join(cluster.root, f"there{n}"))
            with cluster.connect("back") as d:
                found = d.execute("SELECT (SELECT sum(n) FROM a) + (SELECT sum(n) FROM b), (SELECT count(*) FROM a)").fetchone()
                assert found == (800000, 4000), (n, found)


CASES = {"cold rows": whole, "unreadable": unreadable, "moving": moving}
