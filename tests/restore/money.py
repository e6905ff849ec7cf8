"""Amounts of money that were written under another lc_monetary than they are read under: others, and told as such."""
import os
import shutil

from restore.common import NEW, OLD, firn

# By the first letter of its name what a table is made for; the first has no amount that shows anything.
TABLES = """
CREATE TABLE a_none (i int, m money); INSERT INTO a_none VALUES (1, NULL), (2, 0);
CREATE SCHEMA "S"; CREATE TABLE "S"."b Plain" (t text, "M" money, i int); INSERT INTO "S"."b Plain" VALUES ('12.50', NULL, 1), ('x', -12.5, 2), ('y', 34.5, 3);
CREATE DOMAIN price AS money CHECK (VALUE > '0'); CREATE TABLE c_domain (p price); INSERT INTO c_domain VALUES (99.95);
CREATE TABLE d_array (i int, m money[]); INSERT INTO d_array VALUES (1, ARRAY[0, NULL, 12.5]::money[]);
CREATE DOMAIN prices AS price[]; CREATE TABLE e_domains (p prices); INSERT INTO e_domains VALUES ('{1.25,2.75}');
CREATE TABLE f_parts (i int, m money) PARTITION BY RANGE (i); CREATE TABLE f_part PARTITION OF f_parts DEFAULT; INSERT INTO f_parts VALUES (1, 3.25);"""
CHOICES = {"plain": '"S"."b Plain"', "domain": "c_domain", "array": "d_array", "array of domains": "e_domains", "partitions": "f_part*"}
FLAGS = {"": [], "single": ["-1"], "in order": ["--transaction-size=2"], "verified": ["--verify=checksums"]}


def source(server):
    if not server.exists("money"):
        with server.connect(server.fresh("money")) as c:
            c.execute(TABLES)


def elsewhere(path):
    """As of a session that writes decimals with a comma and thousands with a point: another program has to see it, as locales may be missing."""
    swapped = bytes.maketrans(b".,", b",.")
    for name in os.listdir(path):
        if name.endswith(".dat") and name != "toc.dat":
            with open(os.path.join(path, name), "rb+") as f:
                text = f.read()
                # Only what looks like an amount: all others have a dollar before them.
                parts = text.split(b"$")
                changed = [parts[0]] + [p[:n].translate(swapped) + p[n:] for p in parts[1:] for n in [length(p)]]
                f.seek(0)
                f.write(b"$".join(changed))
                f.truncate()


def length(text):
    n = 0
    while n < len(text) and (text[n:n + 1].isdigit() or text[n:n + 1] in b".," and text[n + 1:n + 2].isdigit()):
        n += 1
    return n


def one(world, version, extra, chosen, flags):
    server = world.server(version)
    source(server)
    path = os.path.join(world.folder, "money")
    server.archive("money", path, "d", "0", extra=[*extra, *(["-t", "a_none", "-t", CHOICES[chosen]] if chosen else [])])
    before = []
    if chosen or "-a" in extra:
        # Types and schemas are not of the tables.
        schema = os.path.join(world.folder, "money-schema")
        server.archive("money", schema, "c", extra=["-s"])
        listed = server.program("pg_restore", "-l", schema).stdout.splitlines(True)
        with open(schema + ".list", "wb") as f:
            f.writelines(line for line in listed if "-a" in extra or b" TYPE " in line or b" DOMAIN " in line or b" SCHEMA " in line)
        before = ["-L", schema + ".list", schema]

    def restore():
        server.fresh("target")
        if before:
            server.program("pg_restore", *server.where("target"), *before)
        return firn(server, "target", path, *flags)
    restore().ok()
    elsewhere(path)
    run = restore()
    told = "amounts of money are others than in the archive"
    assert run.code == 3 and told in run.out and "restore complete" not in run.out, f"exit code {run.code}:\n{run.out[-3000:]}"
    assert "lc_monetary" in run.out and "it was read as" in run.out, run.out[-2000:]
    if "-1" in flags:
        with server.connect("target") as c:
            assert not c.execute("SELECT FROM pg_class WHERE relname = 'a_none'").fetchone()
    shutil.rmtree(path)


def of_database(world):
    """What the archive sets for sessions in the database is what its amounts are read under: nothing to tell of."""
    server = world.server()
    with server.connect(server.fresh("money_set")) as c:
        c.execute(TABLES + "ALTER DATABASE money_set SET lc_monetary = 'C.utf8'")
    path = server.archive("money_set", os.path.join(world.folder, "money-set"), "c")
    with server.connect() as c:
        c.execute("DROP DATABASE money_set")
    for name in ("", "in order", "verified"):
        firn(server, "postgres", path, "-C", *FLAGS[name]).ok()
        with server.connect() as c:
            c.execute("DROP DATABASE money_set")


def cases(world):
    for name, flags in FLAGS.items():
        yield f"money {name}".strip(), lambda f=flags: one(world, OLD, [], None, f)
    for chosen in CHOICES:
        yield f"money {chosen}", lambda c=chosen: one(world, OLD, [], c, [])
    for name, extra in (("inserts", ["--inserts"]), ("named inserts", ["--column-inserts"]), ("rows alone", ["-a"]), ("through the root", ["--load-via-partition-root"])):
        yield f"money {name}", lambda e=extra: one(world, OLD, e, None, [])
    yield f"money {NEW}", lambda: one(world, NEW, ["--rows-per-insert=3"], None, [])
    yield "money of the database", lambda: of_database(world)
