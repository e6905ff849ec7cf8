"""--verify: equal is told as equal, and each difference to the archive, the manifest or the source is found."""
import os
import shutil

from harness import proxy as px
from harness.program import firn as any_firn
from harness.proxy import Proxy
from restore import secrets
from restore.common import NEW, OLD, firn
from restore.flags import archive, source

FLAGS = {
    "all": [],
    "schema only": ["-s"],
    "no owner, no privileges": ["-O", "-x"],
    "no comments": ["--no-comments"],
    "a schema": ["-n", "b", "--with-dependencies"],
    "into a database with objects": ["-N", "Odd Name"],
}


def equal(world, name, form):
    server = world.server()
    path = archive(world, form)
    for depth in ("--verify", "--verify=checksums"):
        server.fresh("target")
        if name.startswith("into"):
            with server.connect("target") as c:
                c.execute("CREATE TABLE public.mine ()")
        run = firn(server, "target", path, depth, *FLAGS[name]).ok()
        assert "equal to the archive" in run.out, run.out[-2000:]
        assert ("of the same checksums" in run.out) == depth.endswith("checksums"), run.out[-2000:]


def different(world):
    """What the target does by itself to new objects is a difference to the archive."""
    server = world.server()
    path = archive(world)
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("ALTER DEFAULT PRIVILEGES GRANT REFERENCES ON TABLES TO zoo_reader")
    run = firn(server, "target", path, "--verify")
    assert run.code == 3, run.out[-2000:]
    assert "ACL" in run.out and "it should not be there" in run.out and "--resume" not in run.out, run.out[-3000:]
    with server.connect("target") as c:
        assert c.execute("SELECT to_regnamespace('firn_restore') IS NULL").fetchone() == (True,)


def to_source(world):
    """Compared with the database that the archive is of, before and after somebody changes that."""
    server = world.server()
    db, _ = source(world)
    path = archive(world)
    with server.connect() as c:
        c.execute("DROP DATABASE IF EXISTS changed")
        c.execute(f'CREATE DATABASE changed TEMPLATE "{db}"')
    for change, depth, told in (
            (None, "checksums", "equal to the source"),
            ("DELETE FROM a.orders WHERE id = 1", "counts", "TABLE a.orders: it has"),
            ("CREATE INDEX one_more ON a.people (id)", "counts", "INDEX a.one_more: it is missing")):
        if change:
            with server.connect("changed") as c:
                c.execute(change)
        server.fresh("target")
        run = firn(server, "target", path, f"--verify={depth}", "--verify-source", "changed")
        assert run.code == (3 if change else 0), run.out[-2000:]
        assert told in run.out, run.out[-2000:]
    with server.connect() as c:
        c.execute("DROP DATABASE changed")


def manifest(world):
    """A backup's manifest says what its tables hold: the data is not read again."""
    server = world.server()
    db, _ = source(world)
    path = world.archive("zoo-backup", lambda p: any_backup(server, db, p))
    server.fresh("target")
    run = firn(server, "target", path, "--verify=checksums").ok()
    assert "of the same checksums" in run.out, run.out[-2000:]


def any_backup(server, db, path):
    any_firn(server, "backup", "-d", db, path)
    return path


def across(world):
    """An archive of another version: objects by kind, name and owner."""
    path = archive(world)
    server = world.server(NEW)
    server.roles("zoo_owner", "zoo_reader", "zoo_super SUPERUSER")
    server.fresh("target")
    run = firn(server, "target", path, "--verify=checksums", "--pg-dump", os.path.join(server.bin, "pg_dump"),
               env=server.env).ok()
    assert f"made by pg_dump {OLD}" in run.out and "equal to the archive" in run.out, run.out[-2000:]


def at(server, dbname):
    """A connection string for a database; what -d says otherwise by flags."""
    return f"host={server.root} port={server.port} user=postgres dbname='{dbname}'"


def source_beside(world):
    """A source that is named is on the target's server, by whatever way that is known."""
    server = world.server()
    db, _ = source(world)
    path = archive(world)
    for target in (at(server, "target"), f"postgresql://postgres@/target?host={server.root}&port={server.port}"):
        server.fresh("target")
        run = firn(server, None, path, "-d", target, "--verify", "--verify-source", db, where=False).ok()
        assert "equal to the source" in run.out, run.out[-2000:]
    server.fresh("target")
    run = firn(server, "target", path, "--verify", "--verify-source", at(server, db)).ok()
    assert "equal to the source" in run.out, run.out[-2000:]


def created(world, name, flags):
    """-C with --verify: compared is the database that was made, on the server of -d, whatever its name looks like."""
    server = world.server()
    quoted = '"' + name + '"'
    with server.connect() as c:
        c.execute(f"DROP DATABASE IF EXISTS {quoted}")
        c.execute(f"CREATE DATABASE {quoted} TEMPLATE template0")
    escaped = name.replace("'", "\\'")
    with server.connect(name) as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS a")
    path = world.archive("created-" + "".join(ch if ch.isalnum() else "_" for ch in name), lambda p: server.archive(f"dbname='{escaped}'", p, "c"))
    for target in (["-d", at(server, "postgres")], server.where("postgres")):
        with server.connect() as c:
            c.execute(f"DROP DATABASE {quoted}")
        program, notes = secrets.spy(world)
        run = firn(server, None, path, *target, "-C", "--verify", "--pg-dump", program, *flags, where=False).ok()
        assert "equal to the archive" in run.out and "1 tables with 1 rows" in run.out, run.out[-2000:]
        # All that pg_dump is told of the server is the server.
        told = secrets.read(notes)
        assert f"host='{server.root}'" in told and f"dbname='{escaped}'" in told, told
    with server.connect() as c:
        c.execute(f"DROP DATABASE {quoted}")


INSERTS = """
CREATE TABLE plain (i int, s text); INSERT INTO plain SELECT i, repeat('a;''(', i) FROM generate_series(1, 3000) i;
CREATE TABLE "odd (" (a int GENERATED ALWAYS AS IDENTITY, "b)" text, c int GENERATED ALWAYS AS (1) STORED);
INSERT INTO "odd (" ("b)") SELECT E'\\\\' || i FROM generate_series(1, 7) i;
CREATE TABLE nothing (); INSERT INTO nothing SELECT FROM generate_series(1, 3); CREATE TABLE empty (i int);
CREATE TABLE p (i int, j int) PARTITION BY RANGE (i); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (5);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (5) TO (100); CREATE TABLE p3 PARTITION OF p DEFAULT; INSERT INTO p SELECT i, i FROM generate_series(1, 20) i;"""


def inserts(world, name, extra):
    """Rows that are INSERT statements are counted, on request with others' checksums, and the end says what was compared."""
    server = world.server()
    with server.connect(server.fresh("inserts")) as c:
        c.execute(INSERTS)
    path = world.archive("inserts-" + name, lambda p: server.archive("inserts", p, "c", extra=extra))
    for depth in ("counts", "checksums"):
        server.fresh("target")
        run = firn(server, "target", path, f"--verify={depth}").ok()
        assert "with 3,030 rows" in run.out and "of the same checksums" not in run.out, run.out
        assert ("counted only" in run.out) == (depth == "checksums"), run.out
    for table, there, row in ("plain", 3001, "(1, 'x')"), ("empty", 1, "(1)"), ("p2", 17, "(7, 7)"):
        server.fresh("target")
        server.pg_restore("target", path, "--section=pre-data")
        with server.connect("target") as c:
            c.execute(f"INSERT INTO {table} VALUES {row}")
        run = firn(server, "target", path, "-a", "--verify")
        # Loaded through its root, the root tells it.
        told = f"{table}: it has {there:d} rows instead of {there - 1}" if "root" not in name or table != "p2" else "p: it has 21 rows instead of 20"
        assert run.code == 3 and told in run.out, run.out


def objects(world, flags, told):
    """Large objects that have lost contents are found by their sizes; also by --verify if nothing is counted."""
    server = world.server()
    with server.connect(server.fresh("objects")) as c:
        c.execute("SELECT lo_from_bytea(4711, decode(repeat('00ff', 50000), 'hex')), lo_from_bytea(4712, ''), lo_from_bytea(4713, 'few')")
        # With a hole at its end.
        c.execute("DO $$DECLARE f int := lo_open(lo_create(4714), 131072); BEGIN PERFORM lowrite(f, 'x'); PERFORM lo_truncate(f, 10000); END$$")
    path = world.archive("objects", lambda p: server.archive("objects", p, "c"))
    server.fresh("target")
    run = firn(server, "target", path, *flags).ok()
    assert ("4 large objects by their sizes" in run.out) == ("--no-count" not in flags), run.out
    for change, code in ("PERFORM lo_truncate(lo_open(4711, 131072), 99000);", 3), ("PERFORM lo_put(4712, 0, 'x');", 0 if "--verify" not in flags else 3):
        server.fresh("target")

        def change_it(_, change=change):
            with server.connect("target") as c:
                c.execute(f"DO $$BEGIN {change} END$$")
        folder = os.path.join(server.root, "objects")
        with Proxy(folder, server.root) as proxy:
            proxy.arm(px.matching(rb"SELECT n, wrong FROM", px.call(change_it)))
            run = firn(server, "target", path, *proxy.where("target"), "-j", "1", *flags, where=False, patience=px.PATIENCE)
            assert proxy.fired.is_set()
        shutil.rmtree(folder, ignore_errors=True)
        assert run.code == code, f"exit code {run.code}:\n{run.out}"
        assert code == 0 or told in run.out, run.out
        # More than was written is told.
        assert code == 3 or "large objects have 110,004 bytes, 110,003 were written" in run.out, run.out


WRITTEN = """
CREATE TYPE pair AS (at timestamptz, b bytea, "Odd" text); CREATE DOMAIN moment AS timestamptz; CREATE TYPE moments AS RANGE (subtype = timestamptz);
CREATE TABLE every (id serial PRIMARY KEY, a timestamptz, b bytea, m money, r tstzrange, mr tstzmultirange, arr timestamptz[], ba bytea[], c pair, ca pair[],
    d moment, o moments, rc regclass, rp regprocedure, rt regtype[], f float8, t text DEFAULT '2024-01-01 09:00:00+09');
CREATE FUNCTION of_text(a text, b pair, c timestamptz DEFAULT '2024-01-01 00:00+00') RETURNS text LANGUAGE sql AS $$SELECT "a" || '2024-01-01 09:00:00+09' FROM "every"$$;
COMMENT ON FUNCTION of_text(text, pair, timestamptz) IS 'said'; COMMENT ON TABLE every IS 'said "so"'; GRANT SELECT ON every TO PUBLIC;
INSERT INTO every (a, b, m, r, mr, arr, ba, c, ca, d, o, rc, rp, rt, f)
    SELECT x, bytes, i * 1000.5, tstzrange(x, NULL), tstzmultirange(tstzrange(x, x + '1d')), ARRAY[x, NULL], ARRAY[bytes, NULL, ''], (x, bytes, 'a "b"')::pair,
    ARRAY[(x, bytes, '2024-01-01 09:00:00+09')::pair], x, moments(NULL, x), 'every', 'of_text(text, pair, timestamptz)', ARRAY['pair', 'text']::regtype[], i / 3.0
    FROM (SELECT i, '0044-03-15 00:00+00 BC'::timestamptz + i * '37h 0.25s'::interval * 500, decode('005c27ff' || to_hex(16 + i), 'hex') FROM generate_series(1, 30) i) n(i, x, bytes);
INSERT INTO every (a) VALUES ('infinity'), (NULL);
CREATE TABLE parts (at timestamptz DEFAULT '2024-01-01 00:00+00', "user" text, b bytea DEFAULT '\\x00', CHECK (at > '2000-01-01 00:00+00')) PARTITION BY RANGE (at);
CREATE TABLE part PARTITION OF parts FOR VALUES FROM ('2024-01-01 00:00+00') TO ('2025-01-01 00:00+00'); INSERT INTO parts VALUES ('2024-05-05', 'x');
CREATE VIEW v AS SELECT a, "user", c.t FROM every c JOIN parts ON at = a WHERE a > '2024-01-01 00:00+00'; CREATE INDEX ON every (t) WHERE a > '2024-01-01 00:00+00';"""
SESSIONS = {
    "zone": ["TimeZone = 'Asia/Tokyo'"], "bytes": ["bytea_output = escape"], "names": ["quote_all_identifiers = on"], "styles": ["DateStyle = 'SQL, DMY'", "IntervalStyle = iso_8601"],
    "digits": ["extra_float_digits = -10"], "path": ["search_path = pg_catalog"], "all": ["TimeZone = 'America/St_Johns'", "bytea_output = escape", "quote_all_identifiers = on"],
}
# Each changes one value, or one definition, that is written differently under other settings.
CHANGES = ("a = a + '1us'", "b = b || '\\x00'", "m = m + '0.01'", "r = tstzrange(a + '1h', NULL)", "arr[1] = a + '9h'", "ba[1] = '\\x01'", "c.b = '\\x5c'", "rc = 'parts'", "rt[1] = 'int4'", "d = d - interval '9h'")


def written(world, version, name, side):
    """Source and target write the same rows and definitions as different text: equal for --verify, and what differs is found."""
    server = world.server(version)
    with server.connect(server.fresh("written")) as c:
        c.execute(WRITTEN)

    def settle(db, whose):
        with server.connect() as c:
            for setting in SESSIONS[name]:
                if side == whose:
                    c.execute(f"ALTER DATABASE {db} SET {setting}")
    settle("written", "source")
    env = {**(server.env or {}), "PATH": server.bin + os.pathsep + os.environ["PATH"]}
    path = os.path.join(world.folder, f"written-{version}-{name}-{side}")
    archives = [server.archive("written", path + ".dump", "c")]
    any_firn(server, "backup", "-d", "written", path, env=env)
    if name == "names":
        archives.append(server.archive("written", path + ".quoted", "c", extra=["--quote-all-identifiers"]))
    for of in (*archives, path):
        for extra in ([], ["--verify-source", "written"]):
            server.fresh("target")
            settle("target", "target")
            run = firn(server, "target", of, "-j", "2", "--verify=checksums", *extra, env=env)
            assert run.code == 0 and "of the same checksums" in run.out, f"{of} {extra}: {run.code}\n{run.out[-3000:]}"

    def change_target(*statements):
        with server.connect("target") as c:
            for statement in ("SET search_path = public", *statements):
                c.execute(statement)

    def verify(code, *told):
        run = any_firn(server, "backup", "verify", "-d", "target", "--checksums", path, env=env, code=code)
        for word in told:
            assert word in run.stdout + run.stderr, (told, run.stdout, run.stderr)
    verify(0)
    for change in CHANGES if name == "all" else ():
        change_target("CREATE TABLE kept AS SELECT * FROM every WHERE id = 3", f"UPDATE every SET {change} WHERE id = 3")
        verify(3, "TABLE public.every: its 32 rows differ")
        change_target("DELETE FROM every WHERE id = 3", "INSERT INTO every SELECT * FROM kept", "DROP TABLE kept")
    verify(0)
    for change, told in (("ALTER TABLE parts ALTER at SET DEFAULT '2024-01-01 09:00+00'", "TABLE public.parts: it has"),
                         ("ALTER TABLE every ALTER t SET DEFAULT '2024-01-01 00:00:00+00'", "TABLE public.every: it has"),
                         ("CREATE OR REPLACE FUNCTION of_text(a text, b pair, c timestamptz DEFAULT '2024-01-01 00:00+00') RETURNS text LANGUAGE sql AS "
                          "$$SELECT \"a\" || '2024-01-01 09:00:00+09' FROM every$$", "FUNCTION public.of_text")):
        change_target(change)
        verify(3, told)


ACCENTED = """
CREATE TYPE "ß" AS ENUM ('ü', 'x'); CREATE TABLE "té" ("é" text DEFAULT 'ü', k "ß"); INSERT INTO "té" VALUES ('äöü', 'ü'); COMMENT ON TABLE "té" IS 'ñ';
CREATE VIEW "vé" AS SELECT "é" FROM "té" WHERE "é" <> 'ö';"""


LATE = """
CREATE TABLE kin (a int); CREATE TABLE child (own text, "od, d" int) INHERITS (kin); ALTER TABLE kin ADD late int, ADD "b" date;
INSERT INTO child SELECT i, 'own ' || i, i * 2, i * 3, date '2024-01-01' + i FROM generate_series(1, 50) i;"""


def late_columns(world):
    """A column that a parent got later stands before a child's own after any restore: rows and columns are the same."""
    server = world.server()
    with server.connect(server.fresh("kin")) as c:
        c.execute(LATE)
    path = server.archive("kin", os.path.join(world.folder, "kin"), "c")
    for flags in (["--verify"], ["--verify=checksums"], ["--verify", "--verify-source", "kin"], ["--verify=checksums", "--verify-source", "kin"]):
        server.fresh("target")
        firn(server, "target", path, *flags).ok()
    with server.connect(server.fresh("target")) as c:
        c.execute("CREATE TABLE kin (a int, late int, b date); CREATE TABLE child (own text, \"od, d\" int, extra int) INHERITS (kin)")
    run = firn(server, "target", path, "-a", "--verify", "--verify-source", "kin")
    told = ("TABLE public.child: it has", 'TABLE DATA public.child: it has "("od, d", a, b, extra, late, own)"', "2 differences")
    assert run.code == 3 and all(line in run.out for line in told), run.out


def encodings(world):
    """Archive, source, target and environment are of different encodings: what is the same is equal, and what differs is found."""
    server = world.server()
    with server.connect(server.fresh("accents")) as c:
        c.execute(ACCENTED)
    with server.connect() as c:
        c.execute("DROP DATABASE IF EXISTS accents_latin")
        c.execute("CREATE DATABASE accents_latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with server.connect("accents_latin") as c:
        c.execute(ACCENTED)
    paths = [server.archive(db, os.path.join(world.folder, f"accents-{db}-{e}"), "c", extra=["-E", e])
             for db in ("accents", "accents_latin") for e in ("UTF8", "LATIN1")]
    for env in ({}, {"PGCLIENTENCODING": "LATIN1"}, {"PGCLIENTENCODING": "UTF8"}):
        for path in paths:
            for source in ([], ["--verify-source", "accents_latin"], ["--verify-source", "accents"]):
                server.fresh("target")
                run = firn(server, "target", path, "--verify=checksums", *source, env=env)
                assert run.code == 0 and "of the same checksums" in run.out, f"{path} {env} {source}: {run.code}\n{run.out[-3000:]}"
    # A database with what the archive's encoding has not cannot be told in it: it differs, and does not end the comparison.
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE TABLE public.\"€\" ()")
    run = firn(server, "target", paths[1], "--verify")
    assert run.code == 3 and "differences to the archive" in run.out, run.out[-2000:]
    with server.connect("target") as c:
        c.execute("DROP TABLE \"€\"; DROP VIEW \"vé\"; CREATE VIEW \"vé\" AS SELECT \"é\" FROM \"té\" WHERE \"é\" <> 'o'")
    for db in ("accents", "accents_latin"):
        path = os.path.join(world.folder, f"accents-backup-{db}")
        any_firn(server, "backup", "-d", db, path)
        run = any_firn(server, "backup", "verify", "-d", "target", path, code=3)
        lines = [line for line in run.stdout.splitlines() if ": it " in line]
        assert len(lines) == 1 and lines[0].startswith("VIEW public.v"), run.stdout


FLOATS = """
CREATE TABLE floats (i int, d float8, r real, p point[], k circle, t text);
INSERT INTO floats SELECT i, i / 10.0, i / 10.0, ARRAY[point(i / 10.0, 1e17), NULL], circle(point(0.1, i), 1234567.8), '0.1'
    FROM generate_series(1, 9) i; INSERT INTO floats VALUES (NULL, 'nan', '-infinity');"""


def floats(world):
    """Floats with other digits than the server writes are what it has read."""
    server = world.server()
    with server.connect(server.fresh("floats")) as c:
        c.execute(FLOATS)
    path = os.path.join(world.folder, "floats")
    for extra in ([], ["--extra-float-digits=-11"], ["--extra-float-digits=0"]):
        server.archive("floats", path, "d", "0", extra=extra)
        if not extra:
            # As servers before version 12 have it.
            (name,) = [n for n in os.listdir(path) if n != "toc.dat"]
            with open(os.path.join(path, name), encoding="utf-8") as f:
                rows = f.read().splitlines(True)
            assert "\t0.1\t0.1\t" in rows[0], rows[0]
            rows[0] = rows[0].replace("\t0.1\t0.1\t", "\t0.10000000000000001\t0.100000001\t").replace("(0.1,", "(0.10000000000000001,")
            with open(os.path.join(path, name), "w", encoding="utf-8") as f:
                f.writelines(rows)
        server.fresh("target")
        run = firn(server, "target", path, "--verify=checksums").ok()
        assert "of the same checksums" in run.out, run.out[-2000:]
    # What was no float has lost a digit by becoming one.
    with server.connect(server.fresh("whole")) as c:
        c.execute("CREATE TABLE whole (n bigint); INSERT INTO whole VALUES (9007199254740993)")
    for extra in ([], ["-a"]):
        whole = server.archive("whole", os.path.join(world.folder, "whole"), "c", extra=extra)
        with server.connect(server.fresh("target")) as c:
            c.execute("CREATE TABLE whole (n float8)")
        run = firn(server, "target", whole, "-a", "--verify=checksums")
        assert run.code == 3 and "TABLE public.whole: its 1 rows differ" in run.out, run.out[-2000:]
    # The archive has fewer digits than the source.
    server.archive("floats", path, "d", "0", extra=["--extra-float-digits=-11"])
    server.fresh("target")
    run = firn(server, "target", path, "--verify=checksums", "--verify-source", "floats")
    assert run.code == 3 and "TABLE public.floats: its 10 rows differ" in run.out, run.out[-2000:]


# Partitions that were tables before, with the same columns in another order.
REORDERED = """
CREATE TABLE q (id int, "a, b" text, c text, f float8, m timestamptz) PARTITION BY LIST (id);
CREATE TABLE q1 PARTITION OF q FOR VALUES IN (1, 2);
CREATE TABLE q0 (c text, id int, f float8, "a, b" text, m timestamptz); ALTER TABLE q ATTACH PARTITION q0 FOR VALUES IN (3, 4);
CREATE TABLE q3 (gone int, m timestamptz, c text, "a, b" text, f float8, id int); ALTER TABLE q3 DROP gone; ALTER TABLE q ATTACH PARTITION q3 DEFAULT;
INSERT INTO q SELECT i, E'a\\t' || i, NULLIF('c' || i, 'c7'), i / 10.0, timestamptz '2024-01-01 12:00+00' + i * interval '1 day' FROM generate_series(1, 20) i;"""


def reordered(world, version):
    """Rows that come through a partitioned table are compared by their columns, whatever the order that their partition has them in."""
    server = world.server(version)
    with server.connect(server.fresh("reordered")) as c:
        c.execute(REORDERED)
        c.execute("ALTER DATABASE reordered SET timezone = 'Asia/Kolkata'")
    program = ["--pg-dump", os.path.join(server.bin, "pg_dump")]
    for extra in ([], ["--extra-float-digits=0"]):
        path = server.archive("reordered", os.path.join(world.folder, "reordered"), "c", extra=["--load-via-partition-root", *extra])
        for depth in ("--verify", "--verify=checksums"):
            server.fresh("target")
            run = firn(server, "target", path, depth, *program, env=server.env).ok()
            assert "equal to the archive" in run.out and "20 rows" in run.out, run.out[-2000:]
    backup, env = os.path.join(world.folder, "reordered-backup"), {key: (server.env or os.environ).get(key, "") for key in ("LD_LIBRARY_PATH",)}
    shutil.rmtree(backup, ignore_errors=True)
    any_firn(server, "backup", "-d", "reordered", "--load-via-partition-root", backup, env=env)
    verify = ("backup", "verify", "--checksums", backup, "-d")
    any_firn(server, *verify, "reordered", env=env)
    any_firn(server, *verify, "target", env=env)
    # Values of the same types, each in the other's column.
    for table in ("q0", "q1", "q3"):
        swap = f'UPDATE {table} SET c = "a, b", "a, b" = c'
        with server.connect("target") as c:
            c.execute(swap)
        run = any_firn(server, *verify, "target", env=env, code=3)
        assert "TABLE public.q: its 20 rows differ" in run.stdout, run.stdout
        with server.connect("target") as c:
            c.execute(swap)
    any_firn(server, *verify, "target", env=env)


# From version 16 on pg_dump loads partitions by the hash of an enum through the uppermost table, and those beside them not.
PARTLY = """
CREATE TYPE state AS ENUM ('a', 'b', 'c', 'd'); CREATE TABLE q (id int, s state) PARTITION BY LIST (id);
CREATE TABLE q1 PARTITION OF q FOR VALUES IN (1, 2); CREATE TABLE q2 PARTITION OF q FOR VALUES IN (3, 4) PARTITION BY HASH (s);
CREATE TABLE q2_0 PARTITION OF q2 FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE q2_1 PARTITION OF q2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE q3 (s state, id int); ALTER TABLE q ATTACH PARTITION q3 DEFAULT;
INSERT INTO q SELECT i, s::state FROM generate_series(1, 9) i, unnest('{a,b,c,d}'::text[]) s;"""


def partly(world, extra):
    """Rows of some partitions come through their root, those of others beside it."""
    server = world.server(NEW)
    with server.connect(server.fresh("partly")) as c:
        c.execute(PARTLY)
    path = server.archive("partly", os.path.join(world.folder, "partly"), "c", extra=extra)
    for depth in ("--verify", "--verify=checksums"):
        server.fresh("target")
        run = firn(server, "target", path, depth, "--pg-dump", os.path.join(server.bin, "pg_dump"), env=server.env).ok()
        assert "equal to the archive" in run.out and "36 rows" in run.out, run.out[-2000:]


def cases(world):
    for extra in ((), ("--load-via-partition-root",)):
        yield f"verified partly {' '.join(extra)}", lambda e=extra: partly(world, e)
    for version in (OLD, NEW):
        yield f"verified reordered {version}", lambda v=version: reordered(world, v)
    yield "verified floats", lambda: floats(world)
    yield "verified late columns", lambda: late_columns(world)
    yield "verified encodings", lambda: encodings(world)
    for version in (OLD, NEW):
        for name in SESSIONS:
            for side in ("source", "target"):
                yield f"verified written {version} {name} {side}", lambda v=version, n=name, s=side: written(world, v, n, s)
    yield "verified source beside", lambda: source_beside(world)
    for name in ("plain_name", "a=b c", "host=evil.example password=x dbname='y'", "postgresql://evil.example/x"):
        for flags in (["-j", "2"], ["--transaction-size=3"]):
            yield f"verified created {name} {flags[0]}", lambda n=name, f=flags: created(world, n, f)
    for name, extra in ("inserts", ["--inserts"]), ("columns", ["--column-inserts"]), ("several", ["--rows-per-insert=7"]), (
            "root", ["--inserts", "--load-via-partition-root"]), ("conflicts", ["--inserts", "--on-conflict-do-nothing"]):
        yield f"verified inserts {name}", lambda n=name, e=extra: inserts(world, n, e)
    yield "verified objects", lambda: objects(world, [], "large objects have 109,003 bytes, 110,003 were written")
    yield "verified objects --verify", lambda: objects(world, ["--no-count", "--verify"], "bytes instead of")
    for name in FLAGS:
        yield f"verified {name}", lambda n=name: equal(world, n, "c")
    yield "verified directory", lambda: equal(world, "all", "d")
    yield "verified against defaults", lambda: different(world)
    yield "verified with the source", lambda: to_source(world)
    yield "verified by a manifest", lambda: manifest(world)
    yield "verified across versions", lambda: across(world)
