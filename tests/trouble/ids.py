"""Transaction ids: where few are left, and where they come round again. A server's next id is set by pg_resetwal."""
import os
import subprocess

import psycopg

from harness.cluster import Cluster, version
from trouble.common import fresh, intact

HALF = 1 << 31
# Ids that PostgreSQL keeps for single-user mode.
KEPT_BACK = 3_000_000
# Transactions whose states a file of pg_xact holds, and its size.
OF_A_FILE, SIZE = 32 * 8192 * 4, 32 * 8192


def jump(cluster, xid, oldest, epoch=0):
    """Restart the server with `xid` as its next transaction id, and `oldest` as the oldest of its databases."""
    cluster.stop()
    for number in {xid // OF_A_FILE, (xid - 1) // OF_A_FILE}:
        path = os.path.join(cluster.data, "pg_xact", f"{number:04X}")
        if not os.path.exists(path):
            with open(path, "wb") as f:
                f.write(bytes(SIZE))
            os.chmod(path, 0o600)
            if os.getuid() == 0:
                owner = os.stat(cluster.data)
                os.chown(path, owner.st_uid, owner.st_gid)
    cluster.run("pg_resetwal", "-f", "-x", str(xid), "-u", str(oldest), "-e", str(epoch), "-D", cluster.data)
    cluster.start()


def oldest_of(c):
    return int(c.execute("SELECT datfrozenxid::text FROM pg_database ORDER BY age(datfrozenxid) DESC LIMIT 1").fetchone()[0])


def stripes(c):
    return c.execute("SELECT stripes FROM firn.table_info('f')").fetchone()[0]


def freeze(cluster):
    """VACUUM (FREEZE) of all databases."""
    with cluster.connect() as c:
        names = [r[0] for r in c.execute("SELECT datname FROM pg_database")]
    for name in names:
        with cluster.connect(name) as c:
            # (Giving pages back takes an id, and heap's VACUUM of 18 does not do without.)
            c.execute("VACUUM (FREEZE, TRUNCATE off)" if version() >= 18 else "VACUUM (FREEZE)")


def prepare(c):
    """Stripes that are wholly deleted, that lost some rows, whose rows are locked, whose load was rolled back."""
    # What belongs to no database here can hold nobody back.
    c.execute("UPDATE pg_database SET datallowconn = true")
    fresh(c)
    c.execute("CREATE TABLE child (id int REFERENCES f)")
    c.execute("INSERT INTO child SELECT i FROM generate_series(1201, 1300) i")
    c.execute("BEGIN; INSERT INTO f SELECT i, 'gone', 0 FROM generate_series(10001, 11000) i; ROLLBACK")
    for table in ("f", "h"):
        c.execute(f"DELETE FROM {table} WHERE id BETWEEN 11 AND 1100 OR id % 50 = 3 AND id > 1300")
        c.execute(f"UPDATE {table} SET n = n + 1 WHERE id % 70 = 5")


def few_left():
    """At the end of ids reading, and freezing, go on as on heap; what else VACUUM does waits until there are ids again."""
    cluster = Cluster("ids", conf=["autovacuum = off", "wal_level = logical"]).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
            prepare(c)
            before, oldest = stripes(c), oldest_of(c)
            # PostgreSQL begins an autovacuum by itself where ids are scarce, which would give them back, but for a slot that may need the
            # catalogs as they are. (A prepared transaction would have the server write gigabytes of pg_subtrans.)
            c.execute("SELECT pg_create_logical_replication_slot('holder', 'pgoutput')")
        stop = oldest + HALF - 1 - KEPT_BACK
        for at in (stop - 40, stop + 1000):
            jump(cluster, at, oldest)
            with cluster.connect() as c:
                intact(c)
                for table in ("f", "h"):
                    try:
                        c.execute(f"BEGIN; DELETE FROM {table} WHERE id = 2000")
                        assert at < stop, "an id that is kept back"
                    except psycopg.Error as e:
                        assert at > stop and e.sqlstate == "54000", e
                    c.execute("ROLLBACK")
                c.execute("VACUUM (FREEZE) f")
                intact(c)
                assert stripes(c) == before, "removed, for which an id is needed"
        with cluster.connect() as c:
            c.execute("SELECT pg_drop_replication_slot('holder')")
        freeze(cluster)
        with cluster.connect() as c:
            assert oldest_of(c) > stop, "frozen"
            intact(c)
            c.execute("VACUUM f")
            assert stripes(c) == before - 2, "those that had no row left"
            intact(c)
            for table in ("f", "h"):
                c.execute(f"DELETE FROM {table} WHERE id = 2000")
                c.execute(f"INSERT INTO {table} SELECT i, 'new', 0 FROM generate_series(20001, 20600) i")
            c.execute("SELECT firn.compact('f')")
            c.execute("VACUUM f")
            intact(c)
        wrong = [line for line in open(cluster.log, errors="replace") if " ERROR: " in line and "not accepting commands" not in line]
        assert not wrong and not cluster.alarms("."), (wrong, cluster.alarms("."))
    finally:
        cluster.destroy()


def around():
    """Ids that come round again belong to nobody of before: rows, locks and moves of 2^32 transactions ago."""
    cluster = Cluster("ids", conf=["autovacuum = off"]).create()
    try:
        with cluster.connect() as c, cluster.connect() as old:
            c.execute("CREATE EXTENSION firn")
            prepare(c)
            # Lists of moved rows that nobody may see any more, and some that an older snapshot keeps.
            old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM f")
            for i in range(3):
                for table in ("f", "h"):
                    c.execute(f"UPDATE {table} SET v = 'moved {i}' WHERE id BETWEEN 1201 AND 1500")
                c.execute("SELECT firn.compact('f')")
            old.execute("COMMIT")
            began = int(c.execute("SELECT pg_current_xact_id()::text").fetchone()[0])
        for target in (began + HALF // 2, began + HALF, began + HALF // 2 * 3, (1 << 32) + began - 200):
            freeze(cluster)
            with cluster.connect() as c:
                oldest = oldest_of(c)
            jump(cluster, target % (1 << 32), oldest, target >> 32)
            with cluster.connect() as c:
                intact(c)
                for table in ("f", "h"):
                    c.execute(f"UPDATE {table} SET n = n + 1 WHERE id % 90 = 7")
                intact(c)
        with cluster.connect() as c:
            # Each of the ids that made, moved, locked and deleted rows then is at work, is rolled back, is committed now.
            again = 0
            while int(c.execute("SELECT pg_current_xact_id()::text").fetchone()[0]) % (1 << 32) < began + 50:
                again += 1
                c.execute("BEGIN")
                with cluster.connect() as other:
                    c.execute("SELECT pg_current_xact_id()")
                    if again % 20 == 0:
                        intact(other)
                    other.execute("SET lock_timeout = '10s'")
                    for table in ("f", "h"):
                        other.execute(f"UPDATE {table} SET n = n + 1 WHERE id = {1201 + again % 300}")
                c.execute("ROLLBACK" if again % 2 else "COMMIT")
            intact(c)
            c.execute("SELECT firn.compact('f')")
            c.execute("VACUUM f")
            intact(c)
        assert not cluster.alarms("."), cluster.alarms(".")
    finally:
        cluster.destroy()


def single_user():
    """The server as PostgreSQL's documentation has it run when no id is left."""
    cluster = Cluster("ids", conf=["autovacuum = off"]).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
            prepare(c)
            oldest = oldest_of(c)
        jump(cluster, oldest + HALF - 100_000, oldest)
        cluster.stop()
        statements = ("SELECT count(*) AS before, sum(id) FROM f; VACUUM (FREEZE); SELECT firn.compact('f'); VACUUM (FREEZE) f; "
                      "CREATE INDEX f_v ON f (v); VACUUM FULL f; SELECT count(*) AS problems FROM firn.check('f'); "
                      "SELECT count(*) AS after, sum(id) FROM f")
        for name, script in (("postgres", statements), ("template1", "VACUUM (FREEZE)"), ("template0", "VACUUM (FREEZE)")):
            said = subprocess.run(cluster.as_user([os.path.join(cluster.bin, "postgres"), "--single", "-D", cluster.data, name]),
                                  input="\n".join(script.split("; ")) + "\n", text=True, capture_output=True)
            found = said.stdout + said.stderr
            assert said.returncode == 0 and "ERROR" not in found and "PANIC" not in found, found
            if name == "postgres":
                assert 'problems = "0"' in found, found
        cluster.start()
        with cluster.connect() as c:
            intact(c)
            for table in ("f", "h"):
                c.execute(f"DELETE FROM {table} WHERE id = 2000")
            intact(c)
    finally:
        cluster.destroy()
