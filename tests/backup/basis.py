"""What an incremental backup rests on: which tables and databases are the same, and what happens where that cannot be told."""
import hashlib
import json
import os
import shutil

from backup.incremental import ROWS, equals_full, manifest, server, take, tables, taken
from backup.meanwhile import ended
from backup.zoo import contents, create, place
from harness.hold import Hold
from harness.program import firn, start

TWO = ";".join(f"CREATE TABLE {t} (i int, t text); {ROWS.format(t)}" for t in ("a", "b"))


def members(_):
    """Extensions write to their own tables as they like: those are copied."""
    with server("fsync=off") as cluster:
        with cluster.connect() as c:
            create(c, "member", TWO, cluster)
        with cluster.connect("member") as c:
            c.execute("ALTER EXTENSION plpgsql ADD TABLE a")
            c.execute("UPDATE pg_extension SET extconfig = ARRAY['a'::regclass::oid], extcondition = ARRAY['']")
        take(cluster, "member", "base")
        path, _ = take(cluster, "member", "incr", "--incremental")
        assert tables(path).keys() == {"a", "b"} and taken(path) == {"b"}, taken(path)
        equals_full(cluster, "member", path)


def same_oid(_):
    """A database that is made anew with the old oid, from a copy of the files that was older than the backup."""
    with server("fsync=off") as cluster:
        with cluster.connect() as c:
            create(c, "shop", "CREATE TABLE a (i int, t text); INSERT INTO a VALUES (1, 'old')", cluster)
            oid = c.execute("SELECT oid FROM pg_database WHERE datname = 'shop'").fetchone()[0]
            c.execute("CREATE DATABASE shop_copy TEMPLATE shop STRATEGY file_copy")
            with cluster.connect("shop") as s:
                s.execute("UPDATE a SET t = 'new'")
                s.execute("VACUUM a")
            with cluster.connect("shop_copy") as s:
                s.execute("UPDATE a SET t = 'odd'")
                s.execute("VACUUM a")
            take(cluster, "shop", "base")
            c.execute("DROP DATABASE shop")
            c.execute(f"CREATE DATABASE shop OID = {oid} TEMPLATE shop_copy STRATEGY file_copy")
        path, r = take(cluster, "shop", "incr", "--incremental")
        assert b"odd" in contents(tables(path)["a"][1]) and not taken(path), r.stderr


def facts_fail(_):
    """What only later backups need fails: the backup is complete, and says so."""
    with server("fsync=off") as cluster:
        with cluster.connect() as c:
            create(c, "some", TWO, cluster)
            path = place(cluster, "inc/base")
            os.makedirs(os.path.dirname(path))
            hold = Hold(cluster, "create:toc.dat")
            p = start(cluster, "backup", "some", path, env=hold.env)
            hold.reached(p)
            c.execute("ALTER DATABASE \"some\" ALLOW_CONNECTIONS false")
            hold.go()
            assert "later incremental backups cannot take the tables" in ended(p, 0)
            c.execute("ALTER DATABASE \"some\" ALLOW_CONNECTIONS true")
            firn(cluster, "backup", "verify", "-q", path)
            path, _ = take(cluster, "some", "next", "--incremental")
            assert taken(path) == set()
            # Within the transaction that holds the snapshot.
            c.execute("CREATE ROLE reader LOGIN; GRANT pg_read_all_data TO reader")
            with cluster.connect("some") as s:
                s.execute("REVOKE EXECUTE ON FUNCTION pg_relation_filepath(regclass) FROM public")
            path, r = take(cluster, "some", "refused", "-U", "reader")
            assert "later incremental backups cannot take the tables" in r.stderr, r.stderr
            firn(cluster, "backup", "verify", "-q", path)
            equals_full(cluster, "some", path)


def which_base(_):
    """The latest of the same tables, one that can be used; file names of others are not believed."""
    with server("fsync=off") as cluster:
        with cluster.connect() as c:
            create(c, "some", TWO, cluster)
        full, _ = take(cluster, "some", "full")
        take(cluster, "some", "part", "-t", "a")
        path, _ = take(cluster, "some", "incr", "--incremental")
        assert manifest(path)["base"] == "full" and taken(path) == {"a", "b"}
        path, _ = take(cluster, "some", "part2", "-t", "b", "--incremental")
        assert manifest(path)["base"] == "incr" and taken(path) == {"b"}
        path, _ = take(cluster, "some", "lz", "-Z", "none")
        path, _ = take(cluster, "some", "incr2", "--incremental")
        assert manifest(path)["base"] == "incr" and taken(path) == {"a", "b"}
        # What is said before anything is done.
        for dest, flag, text in (("s3://bucket", "--incremental", "could hold an earlier backup"), (place(cluster, "inc/never"), "--incremental=../x", "no name")):
            r = firn(cluster, "backup", "nowhere", dest, flag, code=2)
            assert text in r.stderr, r.stderr
        # A manifest with another name of a file.
        odd = place(cluster, "inc/odd")
        shutil.copytree(full, odd)
        victim = next(f for f in manifest(odd)["files"] if f.get("table", {}).get("name") == "a")["name"]
        with open(os.path.join(odd, "manifest.json")) as f:
            text = f.read().replace(f'"name":"{victim}"', '"name":"../secret"')
        assert "../secret" in text
        covered = text[:text.rindex('"sha256": "')]
        with open(os.path.join(odd, "manifest.json"), "w") as f:
            f.write(covered + f'"sha256": "{hashlib.sha256(covered.encode()).hexdigest()}"\n}}\n')
        shutil.move(os.path.join(odd, victim), os.path.join(os.path.dirname(odd), "secret"))
        path, _ = take(cluster, "some", "careful", "--incremental=odd")
        assert taken(path) == {"b"}, json.dumps(sorted(taken(path)))
        equals_full(cluster, "some", path)


CASES = {"incremental members": members, "incremental same oid": same_oid, "incremental facts fail": facts_fail,
         "incremental which base": which_base}
