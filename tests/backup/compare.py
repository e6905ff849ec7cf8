"""A restored database against its backup: equal, and each difference told."""
from backup.zoo import backup, create, restored
from harness.program import firn, tool

CHANGES = [
    # What is done to the restored database, what must be told, whether only checksums show it.
    ("DROP INDEX big_t_idx", "INDEX public.big_t_idx: it is missing", False),
    ("ALTER TABLE empty ADD COLUMN y int", "TABLE public.empty: it has", False),
    ("CREATE TABLE more (x int)", "TABLE public.more: it should not be there", False),
    ("ALTER TABLE empty OWNER TO someone", 'its owner is "someone" instead of "postgres"', False),
    ("GRANT INSERT ON empty TO PUBLIC", "ACL public.TABLE empty: it should not be there", False),
    ("COMMENT ON FUNCTION tell(int) IS 'another'", "COMMENT public.FUNCTION tell(integer): it has", False),
    ("SELECT nextval('counter')", "SEQUENCE SET public.counter: it has", False),
    ("DELETE FROM big WHERE id = 20000", "TABLE public.big: it has 19999 rows instead of 20000", False),
    ("INSERT INTO parent VALUES (5)", "TABLE public.parent: it has 2 rows instead of 1", False),
    ("UPDATE big SET n = n + 1 WHERE id = 777", "TABLE public.big: its 20000 rows differ", True),
    ("UPDATE big SET b = NULL WHERE id = 777", "TABLE public.big: its 20000 rows differ", True),
    ("UPDATE child SET x = y, y = x", "TABLE public.child: its 1 rows differ", True),
    ("DROP TABLE child", "TABLE public.child: it is missing", False),
    ("SELECT lo_put((SELECT min(oid) FROM pg_largeobject_metadata), 0, 'changed')", "BLOB", True),
    ("SELECT lo_put((SELECT min(oid) FROM pg_largeobject_metadata), 3000000, 'x')", "bytes instead of", False),
    ("DO $$DECLARE f int := lo_open((SELECT min(oid) FROM pg_largeobject_metadata), 131072); BEGIN PERFORM lo_truncate(f, 0); END$$", "bytes instead of", False),
    ("SELECT lo_unlink((SELECT min(oid) FROM pg_largeobject_metadata))", "BLOB", False),
]


def compare(cluster):
    path = backup(cluster, "zoo", "there")
    with cluster.connect() as c:
        c.execute("DROP ROLE IF EXISTS someone")
        c.execute("CREATE ROLE someone")
        restored(cluster, c, path, "back", "-j", "2")
        for flags in ([], ["--checksums"]):
            r = firn(cluster, "backup", "verify", path, "-d", "back", "-j", "2", *flags)
            assert "the database equals the backup" in r.stdout, r.stdout
        for change, told, deep in CHANGES:
            c.execute("DROP DATABASE IF EXISTS changed")
            c.execute("CREATE DATABASE changed TEMPLATE back")
            with cluster.connect("changed") as d:
                d.execute(change)
            if deep:
                firn(cluster, "backup", "verify", "-q", path, "-d", "changed")
            r = firn(cluster, "backup", "verify", "-q", path, "-d", "changed", *(["--checksums"] if deep else []), code=3)
            assert told in r.stdout, (change, r.stdout)
            # Nothing else is told, but for what follows: data and comments of what is gone or new.
            assert len(r.stdout.splitlines()) <= 5, (change, r.stdout)
        # Owners and privileges may be left aside.
        c.execute("DROP DATABASE IF EXISTS changed")
        c.execute("CREATE DATABASE changed TEMPLATE back")
        with cluster.connect("changed") as d:
            d.execute("ALTER TABLE empty OWNER TO someone; GRANT SELECT ON big TO someone")
        firn(cluster, "backup", "verify", path, "-d", "changed", code=3)
        firn(cluster, "backup", "verify", path, "-d", "changed", "-O", "-x")
        c.execute("DROP DATABASE changed")
        # Partitions that are loaded through their root.
        path = backup(cluster, "zoo", "there", "--load-via-partition-root", "-t", "parted*", "-t", "big")
        create(c, "changed", "CREATE TYPE mood AS ENUM ('sad', 'it''s ok'); CREATE TYPE pair AS (a int, b text)", cluster)
        tool(cluster, "pg_restore", "-d", "changed", path)
        r = firn(cluster, "backup", "verify", path, "-d", "changed", "--checksums", code=3)
        assert all(line.startswith(("TYPE ", "ACL ")) for line in r.stdout.splitlines()[1:]), r.stdout
        c.execute("DROP DATABASE changed")
