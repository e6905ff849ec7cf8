"""A store that is not the one that was used before: an empty mount point, another bucket."""
import os
import subprocess
import time

import psycopg

from harness.cluster import Cluster
from trouble.common import Background, expect, fresh, intact
from trouble.damage import objects_left


def folder(cluster, name):
    path = os.path.join(cluster.root, name)
    os.mkdir(path)
    os.chmod(path, 0o777)
    return path


def marker(path):
    with open(os.path.join(path, "firn", "store-id")) as f:
        return f.read()


def unmounted(cluster):
    """An offload into the empty folder below a mount that is away is refused, and nothing is freed."""
    right, wrong = folder(cluster, "right"), folder(cluster, "wrong")
    with cluster.connect() as c:
        c.execute(f"CREATE SERVER mounted FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{right}')")
        fresh(c)
        c.execute("SET firn.cache_size = 0")
        # A first use that is rolled back leaves a marker, which the next one finds.
        c.execute("BEGIN; SELECT firn.offload('f', 'mounted'); ROLLBACK")
        first = marker(right)
        known = "SELECT id FROM firn.stores WHERE server = 'mounted'"
        assert not c.execute(known).fetchall()
        c.execute("SELECT firn.offload('f', 'mounted')")
        assert marker(right) == first
        assert c.execute(known).fetchone()[0] in first
        c.execute("INSERT INTO f SELECT i, 'later', 1 FROM generate_series(8001, 9000) i")
        c.execute("INSERT INTO h SELECT i, 'later', 1 FROM generate_series(8001, 9000) i")
        os.rename(right, right + ".away")
        os.rename(wrong, right)
        e = expect(c, "SELECT firn.offload('f', 'mounted')", "HV00N")
        assert "lacks the marker" in e.diag.message_detail and "firn.accept_store('mounted')" in e.diag.message_hint
        assert not objects_left(right)
        e = expect(c, "SELECT sum(n), max(v) FROM f", "58P01")
        assert "lacks the marker" in e.diag.message_detail, e.diag.message_detail
        expect(c, "SELECT * FROM firn.unneeded('f')", "HV00N")
        # Another store, with a marker of its own.
        with open(os.path.join(folder(cluster, "right/firn"), "store-id"), "w") as f:
            f.write("firn store " + "0" * 32 + "\n")
        e = expect(c, "SELECT firn.offload('f', 'mounted')", "HV00N")
        assert "0" * 32 in e.diag.message_detail, e.diag.message_detail
        os.rename(right, wrong)
        os.rename(right + ".away", right)
        c.execute("VACUUM f")
        intact(c)
        assert c.execute("SELECT firn.offload('f', 'mounted')").fetchone()[0] > 0
        c.execute("VACUUM f")
        intact(c)
        # An object that is gone from the right store.
        path = os.path.join(right, c.execute("SELECT min(object_key) FROM firn.stripes('f')").fetchone()[0])
        os.rename(path, path + ".kept")
        e = expect(c, "SELECT sum(n), max(v) FROM f", "58P01")
        assert "has the marker" in e.diag.message_detail, e.diag.message_detail
        os.rename(path + ".kept", path)


def moved(cluster):
    """A store that was copied goes on; one that was replaced on purpose is accepted by the server's owner."""
    place, copy, new = folder(cluster, "place"), os.path.join(cluster.root, "copy"), folder(cluster, "new")
    with cluster.connect() as c:
        c.execute(f"CREATE SERVER moving FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{place}')")
        fresh(c)
        c.execute("SELECT firn.offload('f', 'moving')")
        subprocess.run(["cp", "-a", place, copy], check=True)
        c.execute(f"ALTER SERVER moving OPTIONS (SET url 'file://{copy}')")
        c.execute("INSERT INTO f SELECT i, 'later', 1 FROM generate_series(8001, 9000) i")
        c.execute("INSERT INTO h SELECT i, 'later', 1 FROM generate_series(8001, 9000) i")
        assert c.execute("SELECT firn.offload('f', 'moving')").fetchone()[0] > 0
        intact(c)
        c.execute("SELECT firn.load('f')")
        c.execute(f"ALTER SERVER moving OPTIONS (SET url 'file://{new}')")
        expect(c, "SELECT firn.offload('f', 'moving')", "HV00N")
        c.execute("CREATE ROLE stranger; SET ROLE stranger")
        expect(c, "SELECT firn.accept_store('moving')", "42501")
        c.execute("RESET ROLE; DROP ROLE stranger")
        expect(c, "SELECT firn.accept_store('nowhere')", "42704")
        c.execute("BEGIN READ ONLY")
        expect(c, "SELECT firn.accept_store('moving')", "25006")
        c.execute("ROLLBACK")
        accepted = c.execute("SELECT firn.accept_store('moving')").fetchone()[0]
        assert accepted in marker(new)
        assert c.execute("SELECT firn.offload('f', 'moving')").fetchone()[0] > 0
        intact(c)
        # A server that is gone is forgotten: one that is made again under its name may lead elsewhere.
        assert c.execute("SELECT count(*) FROM firn.stores WHERE server = 'moving'").fetchone() == (1,)
        c.execute("BEGIN; DROP TABLE f, h; DROP SERVER moving; ROLLBACK")
        assert c.execute("SELECT count(*) FROM firn.stores WHERE server = 'moving'").fetchone() == (1,)
        c.execute("DROP TABLE f, h; DROP SERVER moving")
        assert c.execute("SELECT count(*) FROM firn.stores WHERE server = 'moving'").fetchone() == (0,)
        # So is one that goes with its owner or with an extension; others are not, and nobody waits for who drops these.
        names = ("owned", "member", "elsewhere")
        c.execute("DROP ROLE IF EXISTS of_servers, of_nothing; CREATE ROLE of_servers SUPERUSER; CREATE ROLE of_nothing; CREATE EXTENSION IF NOT EXISTS pageinspect")
        for name in names:
            c.execute(f"CREATE SERVER {name} FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{new}'); INSERT INTO firn.stores VALUES ('{name}', repeat('a', 32))")
        c.execute("ALTER SERVER owned OWNER TO of_servers; ALTER EXTENSION pageinspect ADD SERVER member; INSERT INTO firn.stores VALUES ('not there', repeat('c', 32))")
        left = "SELECT array_agg(server::text ORDER BY server) FROM firn.stores WHERE server IN ('owned', 'member', 'elsewhere', 'not there')"
        c.execute("BEGIN; DROP OWNED BY of_servers; DROP EXTENSION pageinspect")
        assert c.execute(left).fetchone() == (["elsewhere", "not there"],)
        with cluster.connect() as d:
            d.execute("SET lock_timeout = '10s'; DROP OWNED BY of_nothing")
        c.execute("ROLLBACK")
        assert c.execute(left).fetchone() == (["elsewhere", "member", "not there", "owned"],)
        c.execute("DROP OWNED BY of_servers; DROP ROLE of_servers, of_nothing")
        assert c.execute(left).fetchone() == (["elsewhere", "member", "not there"],)
        c.execute("DROP EXTENSION pageinspect")
        assert c.execute(left).fetchone() == (["elsewhere", "not there"],)
        c.execute("DROP SERVER elsewhere; DELETE FROM firn.stores WHERE server = 'not there'")
        # Who drops a server while a table's first stripes go there waits for them, and is refused; so it is with one's own (DROP OWNED), and the store is forgotten.
        for drop, error in (("DROP SERVER late", "2BP01"), ("DROP OWNED BY of_late", None)):
            c.execute(f"DROP ROLE IF EXISTS of_late; CREATE ROLE of_late SUPERUSER; CREATE SERVER late FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{new}'); ALTER SERVER late OWNER TO of_late")
            c.execute("SET firn.bulk_threshold = 0; CREATE TABLE l (id int) USING firn; INSERT INTO l SELECT generate_series(1, 100); ALTER TABLE l OWNER TO of_late")
            c.execute("BEGIN; SELECT firn.offload('l', 'late')")
            dropping = Background(cluster, drop)
            with cluster.connect() as d:
                until = time.time() + 60
                while dropping.running() and not d.execute("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", (dropping.pid,)).fetchone()[0]:
                    assert time.time() < until, "nobody waits"
                    time.sleep(0.05)
            assert dropping.running(), (drop, dropping.result)
            c.execute("COMMIT")
            try:
                dropping.finish()
                assert error is None, drop
            except psycopg.Error as e:
                assert e.sqlstate == error, (drop, e)
            there = (1,) if error else (0,)
            assert c.execute("SELECT count(*) FROM firn.stores WHERE server = 'late'").fetchone() == there, drop
            if error:
                assert c.execute("SELECT count(*) FROM l").fetchone() == (100,)
                c.execute("DROP TABLE l; DROP SERVER late")
        c.execute("DROP ROLE of_late")


def another_build(cluster):
    """A database whose table of stores names servers by OID, as earlier builds had it, is refused; what CHANGELOG says makes it right."""
    place = folder(cluster, "built")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "CHANGELOG.md")) as f:
        statements = " ".join(f.read().split("gets the table by `")[1].split("`")[0].split())
    with cluster.connect() as c:
        c.execute("CREATE DATABASE built")
    with cluster.connect("built") as c:
        c.execute("CREATE EXTENSION firn")
        c.execute(f"CREATE SERVER built FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{place}')")
        c.execute("ALTER EXTENSION firn DROP TABLE firn.stores; DROP TABLE firn.stores; CREATE TABLE firn.stores (server oid NOT NULL, id text NOT NULL) USING heap")
        c.execute("ALTER EXTENSION firn ADD TABLE firn.stores; INSERT INTO firn.stores SELECT oid, repeat('a', 32) FROM pg_foreign_server")
        fresh(c)
        e = expect(c, "SELECT firn.offload('f', 'built')", "55000")
        assert "CHANGELOG" in e.diag.message_hint
        expect(c, "SELECT firn.accept_store('built')", "55000")
        c.execute(statements)
        assert c.execute("SELECT * FROM firn.stores").fetchall() == [("built", "a" * 32)]
        expect(c, "SELECT firn.offload('f', 'built')", "HV00N")
        c.execute("SELECT firn.accept_store('built')")
        assert c.execute("SELECT firn.offload('f', 'built')").fetchone()[0] > 0
        intact(c)
    with cluster.connect() as c:
        c.execute("DROP DATABASE built")


def copies(cluster):
    """A database made from a template and a restored dump offload on."""
    place = folder(cluster, "shared")
    with cluster.connect() as c:
        c.execute("CREATE DATABASE origin")
    with cluster.connect("origin") as c:
        c.execute("CREATE EXTENSION firn")
        c.execute(f"CREATE SERVER shared FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{place}')")
        fresh(c)
        c.execute("SELECT firn.offload('f', 'shared')")
    with cluster.connect() as c:
        c.execute("CREATE DATABASE copied TEMPLATE origin")
        c.execute("CREATE DATABASE restored")
    where = ["-h", cluster.root, "-p", str(cluster.port), "-U", "postgres"]
    dump = os.path.join(cluster.root, "origin.dump")
    cluster.run("pg_dump", *where, "-Fc", "-f", dump, "origin")
    cluster.run("pg_restore", *where, "-d", "restored", dump)
    for name, known in (("copied", 1), ("restored", 0)):
        with cluster.connect(name) as c:
            assert c.execute("SELECT count(*) FROM firn.stores").fetchone() == (known,)
            intact(c)
            c.execute("SELECT firn.load('f')")
            c.execute("SELECT firn.offload('f', 'shared')")
            intact(c)
    with cluster.connect() as c:
        for name in ("origin", "copied", "restored"):
            c.execute(f"DROP DATABASE {name}")


def unneeded_of_running(cluster):
    """What a running offload has uploaded is not called unneeded; on a standby the question is refused."""
    with cluster.connect() as c, cluster.connect() as other:
        fresh(c)
        c.execute("SELECT firn.offload('f', 'cold'); SELECT firn.load('f')")
        before = c.execute("SELECT count(*) FROM firn.unneeded('f')").fetchone()[0]
        other.execute("BEGIN; SELECT firn.offload('f', 'cold')")
        assert c.execute("SELECT count(*) FROM firn.unneeded('f')").fetchone()[0] <= before
        other.execute("ROLLBACK")
        assert c.execute("SELECT count(*) FROM firn.unneeded('f')").fetchone()[0] == 2 * before > 3
        c.execute("DROP TABLE f, h")
    second = Cluster("standby2")
    try:
        cluster.run("pg_basebackup", "-h", cluster.root, "-p", str(cluster.port), "-U", "postgres", "-D", second.data, "-R", "-c", "fast")
        with open(os.path.join(second.data, "postgresql.conf"), "a") as f:
            f.write(f"unix_socket_directories='{second.root}'\n")
        with cluster.connect() as c:
            fresh(c)
            c.execute("SELECT firn.offload('f', 'cold')")
            lsn = c.execute("SELECT pg_current_wal_flush_lsn()").fetchone()[0]
        second.start()
        with second.connect() as c:
            for _ in range(600):
                if c.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,)).fetchone()[0]:
                    break
                c.execute("SELECT pg_sleep(0.1)")
            intact(c)
            assert c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone()[0] > 3
            assert c.execute("SELECT stripes FROM firn.tables WHERE relation = 'f'::regclass").fetchone()[0] > 3
            c.execute("SELECT * FROM firn.activity")
            assert not c.execute("SELECT * FROM firn.repair('f')").fetchall()
            e = expect(c, "SELECT * FROM firn.unneeded('f')", "55000")
            assert "primary" in e.diag.message_hint
            expect(c, "SELECT * FROM firn.repair('f', false)", "25006")
            for call in ("compact('f')", "load('f')", "offload('f', 'cold')"):
                expect(c, f"SELECT firn.{call}", "55000", "25006")
    finally:
        second.destroy()
    with cluster.connect() as c:
        c.execute("DROP TABLE f, h")


