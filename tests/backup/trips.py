"""There and back: what pg_restore makes of our archives, and how they compare with pg_dump's."""
import json
import os
import shutil

from backup.zoo import LATIN, ZOO, backup, contents, create, entries, files, place, restored, same
from harness.cluster import Cluster
from harness.program import firn, tool


def zoo(cluster):
    with cluster.connect() as c:
        create(c, "zoo", ZOO, cluster)
        # With few large objects, which are most of the zoo's files, for tests that make many backups.
        create(c, "few", "SELECT lo_unlink(oid) FROM pg_largeobject_metadata m WHERE lo_get(oid) LIKE 'object %'", cluster,
               "TEMPLATE zoo")


def round_trip(cluster):
    with cluster.connect() as c:
        for jobs in (1, 4):
            path = backup(cluster, "zoo", "there", "-j", jobs)
            firn(cluster, "backup", "verify", path)
            restored(cluster, c, path, "back", "-j", "2")
            same(cluster, "zoo", "back")
    with cluster.connect("back") as c:
        # What lives on needs its sequences where they were.
        assert c.execute("SELECT nextval('counter'), nextval('untouched')").fetchone() == (13, 5)
        inserted = c.execute('INSERT INTO "odd ""schema"."t.1 ""x) FROM stdin;" ("c,ol") VALUES (1) RETURNING i')
        assert inserted.fetchone()[0] == 150


def like_pg_dump(cluster):
    """The same entries, the same files, the same bytes in them."""
    theirs = place(cluster, "theirs")
    tool(cluster, "pg_dump", "-Fd", "-f", theirs, "zoo")
    ours = backup(cluster, "zoo", "ours", "-Z", "gzip")
    assert entries(cluster, theirs) == entries(cluster, ours)
    a, b = files(theirs), files(ours)
    assert b.keys() - a.keys() == {"manifest.json"} and not a.keys() - b.keys(), (a.keys() ^ b.keys())
    for name in a:
        if name == "toc.dat":
            # But for the time in the header.
            x, y = contents(a[name]), contents(b[name])
            assert len(x) == len(y) and x[:11] == y[:11] and x[60:] == y[60:]
        else:
            assert contents(a[name]) == contents(b[name]), name


def compressions(cluster):
    version = int(tool(cluster, "pg_dump", "--version").split()[2].split(b".")[0])
    with cluster.connect() as c:
        for flag in ("none", "0", "gzip:1", "9", "zstd:2", "lz4"):
            path = place(cluster, "there")
            if version < 16 and flag[0] in "zl":
                r = firn(cluster, "backup", "few", path, "-Z", flag, code=2)
                assert "do not know compression" in r.stderr, r.stderr
                continue
            firn(cluster, "backup", "few", path, "-Z", flag)
            firn(cluster, "backup", "verify", path)
            if shutil.which("zstd") and shutil.which("lz4"):
                contents(next(p for n, p in files(path).items() if n.endswith(".dat")))
            restored(cluster, c, path, "back")
            same(cluster, "few", "back")
        for bad in ("zip", "gzip:10", "zstd:x"):
            firn(cluster, "backup", "few", place(cluster, "there"), "-Z", bad, code=2)


def encodings(cluster):
    with cluster.connect() as c:
        for encoding in ("LATIN1", "SQL_ASCII"):
            create(c, "latin", LATIN, cluster, f"TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
            path = backup(cluster, "latin", "there")
            firn(cluster, "backup", "verify", path)
            restored(cluster, c, path, "back", encoding=encoding)
            same(cluster, "latin", "back")
        # In another encoding than the database's.
        create(c, "latin", LATIN, cluster, "TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        for how, env in ((["-E", "UTF8"], {}), ([], {"PGCLIENTENCODING": "UTF8"})):
            path = backup(cluster, "latin", "there", *how, env=env)
            data = [contents(p) for n, p in files(path).items() if n.endswith(".dat")]
            assert any("ligne été 7\t7\n".encode() in d for d in data)
            restored(cluster, c, path, "back", encoding="UTF8")
            same(cluster, "latin", "back", "-E", "UTF8")


def manifest(cluster):
    """Numbers that the server and the file system confirm."""
    path = backup(cluster, "zoo", "there")
    with open(os.path.join(path, "manifest.json")) as f:
        m = json.load(f)
    sizes = {f["name"]: f["size"] for f in m["files"]}
    for name in os.listdir(path):
        if name != "manifest.json":
            assert sizes.pop(name) == os.path.getsize(os.path.join(path, name)), name
    assert not sizes, sizes
    with cluster.connect("zoo") as c:
        c.execute("SET row_security = off")
        for f in m["files"]:
            if table := f.get("table"):
                quoted = ".".join('"' + n.replace('"', '""') + '"' for n in (table["schema"], table["name"]))
                assert c.execute(f"SELECT count(*) FROM ONLY {quoted}").fetchone()[0] == table["rows"], quoted
                assert len(contents(os.path.join(path, f["name"]))) == table["bytes"], quoted
        objects = c.execute("SELECT count(*), sum(length(lo_get(oid))) FROM pg_largeobject_metadata").fetchone()
    assert (m["large_objects"]["count"], m["large_objects"]["bytes"]) == objects
    assert m["database"] == "zoo" and m["encoding"] == "UTF8" and m["standby"] is False
    assert m["server_version"] == m["pg_dump_version"]
    # Sums do not depend on where rows are, only on what they are.
    sums = [f["table"]["checksum"] for f in m["files"] if f.get("table", {}).get("name") == "big"]
    with cluster.connect() as c:
        restored(cluster, c, path, "back")
    with cluster.connect("back") as c:
        c.execute("UPDATE big SET n = n WHERE id % 2 = 0")
        again = checksum_of(cluster, "big")
        assert [again] == sums, (again, sums)
        c.execute("UPDATE big SET n = n + 1 WHERE id = 77")
        assert [checksum_of(cluster, "big")] != sums


def checksum_of(cluster, table):
    path = backup(cluster, "back", "again", "-t", table)
    with open(os.path.join(path, "manifest.json")) as f:
        return next(f["table"]["checksum"] for f in json.load(f)["files"] if "table" in f)


def selections(cluster):
    """Flags go to pg_dump as they are: the same entries as with pg_dump."""
    for flags in (["-s"], ["-a"], ["-t", "big"], ["-t", "part*"], ["-T", "big", "-T", "parted*"], ["-n", "public"],
                  ["-N", "public"], ["--exclude-table-data=big"], ["-B"], ["-t", "big", "-b"], ["-O", "-x"],
                  ["--no-comments", "--no-publications"], ["--no-unlogged-table-data"], ["--section=pre-data"],
                  ["--section=data", "--section=post-data"], ["--load-via-partition-root"],
                  ["--quote-all-identifiers"], ["-n", "odd*", "--strict-names"]):
        theirs = place(cluster, "theirs")
        tool(cluster, "pg_dump", "-Fd", "-f", theirs, "few", *flags)
        ours = backup(cluster, "few", "ours", *flags)
        firn(cluster, "backup", "verify", ours)
        assert entries(cluster, theirs) == entries(cluster, ours), flags
        a, b = files(theirs), files(ours)
        assert a.keys() | {"manifest.json"} == b.keys(), flags
        for name in a.keys() - {"toc.dat"}:
            assert contents(a[name]) == contents(b[name]), (flags, name)
    r = firn(cluster, "backup", "few", place(cluster, "there"), "-t", "no_such_table", code=1)
    assert "no matching tables were found" in r.stderr, r.stderr


def extensions(cluster):
    """Of an extension's tables the rows that are the user's, and no others."""
    share = tool(cluster, "pg_config", "--sharedir").decode().strip()
    control = os.path.join(share, "extension", "firn_test_settings")
    with open(control + ".control", "w") as f:
        f.write("default_version = '1'\n")
    with open(control + "--1.sql", "w") as f:
        f.write("CREATE TABLE settings (name text, own boolean DEFAULT false, x text);\n"
                "INSERT INTO settings VALUES ('built in', true, 'it''s');\n"
                "SELECT pg_extension_config_dump('settings', 'WHERE NOT own');\n"
                "CREATE TABLE more (x int);\nSELECT pg_extension_config_dump('more', '');\n"
                "CREATE TABLE never (x int);\n")
    try:
        with cluster.connect() as c:
            create(c, "extended", "CREATE EXTENSION firn_test_settings; INSERT INTO settings VALUES ('mine');"
                   "INSERT INTO more VALUES (1); INSERT INTO never VALUES (1)", cluster)
            path = backup(cluster, "extended", "there")
            theirs = place(cluster, "theirs")
            tool(cluster, "pg_dump", "-Fd", "-f", theirs, "extended")
            a, b = files(theirs), files(path)
            for name in a.keys() - {"toc.dat"}:
                assert contents(a[name]) == contents(b[name]), name
            restored(cluster, c, path, "back")
        with cluster.connect("back") as c:
            assert c.execute("SELECT name FROM settings ORDER BY 1").fetchall() == [("built in",), ("mine",)]
            assert c.execute("SELECT (SELECT count(*) FROM more), (SELECT count(*) FROM never)").fetchone() == (1, 0)
        with cluster.connect() as c:
            c.execute("DROP DATABASE extended")
            c.execute("DROP DATABASE back")
    finally:
        os.unlink(control + ".control")
        os.unlink(control + "--1.sql")


def destinations(cluster):
    """Only where nothing is; what an unfinished backup left goes when told so; pg_dump's archives never."""
    path = backup(cluster, "zoo", "there", "-t", "empty")
    r = firn(cluster, "backup", "zoo", path, code=2)
    assert "holds a complete backup" in r.stderr, r.stderr
    firn(cluster, "backup", "zoo", path, "--overwrite-incomplete", code=2)
    os.rename(os.path.join(path, "manifest.json"), os.path.join(cluster.root, "m"))
    r = firn(cluster, "backup", "zoo", path, "--overwrite-incomplete", code=2)
    assert "maybe one that pg_dump made" in r.stderr, r.stderr
    with open(os.path.join(path, "unfinished.json"), "w"):
        pass
    r = firn(cluster, "backup", "zoo", path, code=2)
    assert "--overwrite-incomplete" in r.stderr, r.stderr
    with open(os.path.join(path, "letter.txt"), "w"):
        pass
    r = firn(cluster, "backup", "zoo", path, "--overwrite-incomplete", code=2)
    assert "letter.txt" in r.stderr, r.stderr
    os.unlink(os.path.join(path, "letter.txt"))
    firn(cluster, "backup", "zoo", path, "--overwrite-incomplete", "-t", "empty")
    firn(cluster, "backup", "verify", path)
    firn(cluster, "backup", "zoo", "file://" + place(cluster, "file url"), "-t", "empty")
    firn(cluster, "backup", "zoo", os.path.join(cluster.root, "no", "such", "parent"), code=1)
    firn(cluster, "backup", "zoo", "ftp://x/y", code=2)
    firn(cluster, "backup", "no_such_database", place(cluster, "there"), code=1)
    assert not os.path.exists(os.path.join(cluster.root, "there"))


def listing(cluster):
    folder = place(cluster, "many")
    os.makedirs(os.path.join(folder, "deep", "er"))
    firn(cluster, "backup", "zoo", os.path.join(folder, "one"), "-t", "empty")
    firn(cluster, "backup", "zoo", os.path.join(folder, "deep", "er", "two"), "-s")
    broken = os.path.join(folder, "three")
    shutil.copytree(os.path.join(folder, "one"), broken)
    with open(os.path.join(broken, "manifest.json"), "a") as f:
        f.write("x")
    unfinished = os.path.join(folder, "four")
    os.mkdir(unfinished)
    with open(os.path.join(unfinished, "unfinished.json"), "w") as f:
        f.write('{"database": "db", "started": "2024-01-01T00:00:00Z", "firn_version": "1"}')
    tool(cluster, "pg_dump", "-Fd", "-f", os.path.join(folder, "five"), "-t", "empty", "zoo")
    text = firn(cluster, "backup", "list", folder).stdout
    found = {b["name"]: b for b in map(json.loads, firn(cluster, "backup", "list", folder, "--json").stdout.splitlines())}
    states = {name: b["state"] for name, b in found.items()}
    assert states == {"one": "complete", "deep/er/two": "complete", "three": "damaged", "four": "incomplete",
                      "five": "archive"}, states
    assert found["one"]["database"] == "zoo" and found["four"]["database"] == "db"
    size = sum(os.path.getsize(os.path.join(folder, "one", n)) for n in os.listdir(os.path.join(folder, "one")))
    assert found["one"]["size"] == size
    assert len(text.splitlines()) == 6 and "damaged manifest" in text, text
    assert firn(cluster, "backup", "list", os.path.join(folder, "one")).stdout.splitlines()[1].split()[:2] == [".", "zoo"]


def roles(cluster):
    """By a role that may only read, by one that may not, and with --role."""
    with cluster.connect() as c:
        c.execute("DROP ROLE IF EXISTS reader")
        c.execute("CREATE ROLE reader LOGIN IN ROLE pg_read_all_data")
        create(c, "simple", "CREATE TABLE t AS SELECT i, md5(i::text) FROM generate_series(1, 30000) i", cluster)
        path = backup(cluster, "simple", "there", env={"PGUSER": "reader"})
        restored(cluster, c, path, "back")
        same(cluster, "simple", "back")
        c.execute("REVOKE pg_read_all_data FROM reader")
        r = firn(cluster, "backup", "simple", place(cluster, "there"), env={"PGUSER": "reader"}, code=1)
        assert "permission denied" in r.stderr, r.stderr
        r = firn(cluster, "backup", "simple", place(cluster, "there"), "--role=reader", code=1)
        assert "permission denied" in r.stderr, r.stderr
        c.execute("GRANT pg_read_all_data TO reader")
        backup(cluster, "simple", "there", "--role=reader")
        # Row-level security: refused, or obeyed.
        with cluster.connect("simple") as d:
            d.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
            d.execute("CREATE POLICY half ON t USING (i % 2 = 0)")
        r = firn(cluster, "backup", "simple", place(cluster, "there"), "--role=reader", code=1)
        assert "row-level security" in r.stderr, r.stderr
        path = backup(cluster, "simple", "there", "--role=reader", "--enable-row-security")
        restored(cluster, c, path, "back")
    with cluster.connect("back") as d:
        assert d.execute("SELECT count(*) FROM t").fetchone()[0] == 15000


def standby(cluster):
    """From a standby, while it replays."""
    copy = Cluster("standby", conf=[], base=cluster.root)
    copy.run("pg_basebackup", "-h", cluster.root, "-p", str(cluster.port), "-U", "postgres", "-D", copy.data, "-R", "-c", "fast")
    with open(os.path.join(copy.data, "postgresql.conf"), "a") as f:
        f.write(f"unix_socket_directories='{copy.root}'\n")
    copy.start()
    try:
        path = place(copy, "there")
        firn(copy, "backup", "zoo", path, "-j", "2")
        firn(copy, "backup", "verify", path)
        with open(os.path.join(path, "manifest.json")) as f:
            assert json.load(f)["standby"] is True
        with cluster.connect() as c:
            restored(cluster, c, path, "back")
        # What is not in WAL a standby does not have.
        same(cluster, "zoo", "back", "--no-unlogged-table-data")
    finally:
        copy.destroy()
