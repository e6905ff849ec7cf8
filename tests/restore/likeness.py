"""What firn says and does where pg_restore's users rely on it: the same flags give the same answers."""
import os
import re
import subprocess

from restore import common, flags, regression
from restore.common import NEW, OLD, same_blocks

# How each program begins what it tells.
NAME = re.compile(r"^(?:pg_restore|firn): (?:\[[\d.]+ s\] )?", re.M)


def run(command, data=None, **kw):
    """A program's exit code, output as bytes, and what it told."""
    r = subprocess.run(command, input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=common.PATIENCE, **kw)
    told = r.stderr.decode(errors="replace")
    assert not common.PANIC.search(told), told
    return r.returncode, r.stdout, told


def firn(*args, **kw):
    return run([*common.program(), *args], **kw)


def pg_restore(server, *args, **kw):
    return run([os.path.join(server.bin, "pg_restore"), *args], env=server.env, **kw)


def messages(told, *kinds):
    """Lines of some kinds (error, warning), without the program's name."""
    lines = NAME.sub("", told).splitlines()
    return [line for line in lines if line.startswith(tuple(f"{kind}: " for kind in kinds))]


def alike(server, args, told=("error", "warning")):
    """Both programs end alike, print the same and tell the same of these kinds."""
    right, got = pg_restore(server, *args), firn(*args)
    assert got[0] == right[0], f"{args}: exit code {got[0]}, pg_restore {right[0]}\n{got[2]}\n{right[2]}"
    assert CREATED.sub(b"", got[1]) == CREATED.sub(b"", right[1]), f"{args}: prints other than pg_restore"
    a, b = messages(right[2], *told), messages(got[2], *told)
    assert a == b, f"{args}: pg_restore {a}, firn {b}"


def refused(server, args):
    """Both programs refuse it in the same words; a wrong command line is exit code 2 of firn's."""
    right, got = pg_restore(server, *args), firn(*args)
    assert right[0] != 0 and got[0] != 0, f"{args} {got} {right}"
    assert messages(right[2], "error") == messages(got[2], "error"), f"{args} {got[2]} {right[2]}"


# The time zone's name is not there.
CREATED = re.compile(rb"^; Archive created at .*\n", re.M)

SELECTIONS = [
    [], ["-a"], ["-s"], ["-x"], ["--section=pre-data"], ["--section=data"], ["--section=post-data"],
    ["--section=pre-data", "--section=post-data"], ["-n", "a"], ["-n", "a", "-n", "b"], ["-N", "a"], ["-t", "parent"], ["-n", "b", "-t", "parent"],
    ["-t", "parent", "-t", "child", "-t", "scratch"], ["-t", "Table; with \"quotes\""], ["-I", "measured_place"], ["-P", "quote(text)"],
    ["-T", "parent late"], ["-C"], ["-C", "-a"], ["-C", "-n", "a"], ["-s", "-t", "parent"], ["-a", "-t", "parent"], ["-a", "-N", "b"],
    ["--no-comments"], ["--no-publications"], ["--no-subscriptions"], ["--no-security-labels"], ["--strict-names", "-n", "a"],
]
# Of the newer pg_restore only.
NEWER = [
    ["--no-data"], ["--no-schema"], ["--no-policies"], ["--statistics-only"], ["--statistics"], ["--no-statistics"], ["-s", "--no-statistics"],
    ["--no-data", "--no-schema"], ["--statistics-only", "-t", "parent"], ["-t", "parent", "-I", "measured_place"], ["--section=data", "-a"],
]


def archives(world):
    """The zoo, as each version writes it, in each format."""
    found = []
    for version in (OLD, NEW):
        for form in "cdt":
            server = world.server(OLD)
            db, _ = flags.source(world)
            by = world.server(NEW) if version == NEW else None
            extra = ("--statistics",) if by else ()
            found.append(world.archive(f"like-{version}-{form}", lambda p, f=form, b=by, e=extra: server.archive(db, p, f, by=b, extra=e)))
    return found


def lists(world):
    """--list with flags that choose: the table of contents as pg_restore prints it."""
    for path in archives(world):
        for selection in SELECTIONS + NEWER:
            alike(world.server(NEW), ["-l", *selection, path])


def formats(world):
    """-F names the format; another than the archive's is an error."""
    server = world.server(NEW)
    custom, directory, tar = archives(world)[:3]
    for path, names, wrong in ((custom, ("c", "custom", "C", "Custom", ""), "d"), (directory, ("d", "directory"), "c"), (tar, ("t", "Tar"), "c")):
        for name in names:
            alike(server, ["-F", name, "-l", path])
        args = ["-F", wrong, "-l", path]
        right, got = pg_restore(server, *args), firn(*args)
        assert right[0] == got[0] == 1 and "format" in got[2], f"{got} {right}"
    for name in ("p", "plain", "x"):
        refused(server, ["-F", name, "-l", custom])


def listed(world):
    """-L: lines that name nothing are told, an id that the archive lacks is an error."""
    server = world.server(NEW)
    for path in archives(world):
        ids = [int(line.split(b";")[0]) for line in pg_restore(server, "-l", path)[1].splitlines() if line and line[:1] != b";"]
        lacking = next(n for n in range(1, max(ids)) if n not in ids and str(n).encode() not in pg_restore(server, "-l", "-v", path)[1])
        texts = {
            "some": f"; a comment\n\n{ids[5]}; 1 2 TABLE\n  {ids[3]}\n{ids[9]} anything\n",
            "nonsense": f"nonsense\n0\n-3; x\n{max(ids) + 10000000}; too large\n{ids[2]}\n{ids[2]}; again\n99999999999999999999\n",
            "lacking": f"{ids[4]}\n{lacking}; 1 2 TABLE\n",
        }
        for name, text in texts.items():
            file = os.path.join(world.folder, f"list-{name}")
            with open(file, "w", encoding="utf-8") as f:
                f.write(text)
            alike(server, ["-l", "-L", file, path])
        for section in ("pre-data", "data", "post-data"):
            alike(server, ["-l", "-L", os.path.join(world.folder, "list-some"), f"--section={section}", path])


def ignored(world):
    """Errors that are passed over: exit code and last line."""
    server = world.server()
    with server.connect(server.fresh("few")) as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS a; CREATE TABLE u AS SELECT 2 AS a; CREATE VIEW v AS SELECT 3 AS a")
    path = world.archive("few", lambda p: server.archive("few", p, "c"))
    told = []
    for program in ("pg_restore", "firn"):
        with server.connect(server.fresh("target")) as c:
            c.execute("CREATE TABLE t (a int); CREATE VIEW v AS SELECT 4 AS a")
        args = [*server.where("target"), path]
        code, _, text = pg_restore(server, *args) if program == "pg_restore" else firn("--on-error=continue", *args)
        assert code == 1, text
        told.append(messages(text, "warning")[-1])
        with server.connect("target") as c:
            assert c.execute("SELECT a FROM u").fetchone() == (2,)
    assert told[0] == told[1] == "warning: errors ignored on restore: 2", told
    # Dropping what is not there counts as well.
    for program in ("pg_restore", "firn"):
        server.fresh("target")
        args = ["-c", *server.where("target"), path]
        code, _, text = pg_restore(server, *args) if program == "pg_restore" else firn("--on-error=continue", *args)
        assert code == 1 and messages(text, "warning")[-1] == "warning: errors ignored on restore: 3", text
    # Without errors nothing is said.
    code, _, text = firn("--on-error=continue", *server.where(server.fresh("target")), path)
    assert code == 0 and "ignored" not in text, text


def strict(world):
    """--strict-names says what is missing."""
    path = archives(world)[0]
    for wrong in (["-n", "nothing"], ["-t", "nothing"], ["-I", "nothing"], ["-P", "nothing()"], ["-T", "nothing"]):
        for how in (["-l"], ["-f", "-"]):
            refused(world.server(NEW), [*how, "--strict-names", *wrong, path])


KEY = "--restrict-key=fixed"
# What a script looks like, besides what is in it.
SCRIPTS = [
    ["-c"], ["-c", "--if-exists"], ["-C"], ["-C", "-c"], ["-C", "-c", "--if-exists"], ["-O"], ["-O", "-x"], ["-O", "-c", "--if-exists"],
    ["--no-tablespaces"], ["--no-table-access-method"], ["--use-set-session-authorization"], ["--use-set-session-authorization", "-c"],
    ["--use-set-session-authorization", "-O"], ["-a", "--disable-triggers"], ["-a", "--disable-triggers", "-S", "zoo_super"],
    ["-a", "--disable-triggers", "--use-set-session-authorization"], ["--disable-triggers"], ["--section=data", "--disable-triggers"],
    ["--role=zoo_super"], ["--role=Odd Role"], ["--enable-row-security"], ["-1"], ["-1", "-c", "--if-exists"], ["-1", "-a"],
    ["--transaction-size=1"], ["--transaction-size=7"], ["--transaction-size=7", "-c", "--if-exists"], ["--transaction-size=3", "-C", "-c"],
    ["--transaction-size=1000000"], ["-j", "3"], ["-e"], ["--no-data-for-failed-tables"],
]


def scripts(world, number):
    """-f: the script of pg_restore 18, to the byte."""
    path = archives(world)[number]
    for selection in SELECTIONS + NEWER + SCRIPTS:
        alike(world.server(NEW), ["-f", "-", KEY, *selection, path])


# How pg_restore 15 hands these over: as tables.
OWNED = re.compile(rb"^ALTER (?:VIEW|SEQUENCE|MATERIALIZED VIEW) (.* OWNER TO .*;)$", re.M)


def older(world):
    """What pg_restore 15 writes differs by one setting, and by how views and sequences are handed over."""
    server = world.server(OLD)
    for path in archives(world)[:3]:
        for selection in SELECTIONS + [more for more in SCRIPTS if "--transaction-size" not in more[0]]:
            args = ["-f", "-", KEY, *selection, path]
            right, got = pg_restore(server, *args), firn(*args)
            assert right[0] == got[0] == 0, f"{args} {right[2]} {got[2]}"
            text = OWNED.sub(rb"ALTER TABLE \1", got[1].replace(b"SET transaction_timeout = 0;\n", b""))
            common.same(OWNED.sub(rb"ALTER TABLE \1", right[1]), text, f"{args}")


def everything(world, version):
    """PostgreSQL's regression database: lists and scripts of objects of every kind."""
    server = world.server(NEW)
    folder = regression.kept(version)
    for name in ("custom", "directory"):
        path = os.path.join(folder, name)
        alike(server, ["-l", path])
        for more in ([], ["-c", "--if-exists"], ["-O", "-x"], ["--use-set-session-authorization"], ["--transaction-size=10"],
                     ["--section=post-data"], ["-a", "--disable-triggers"]):
            alike(server, ["-f", "-", KEY, *more, path])


def script_lists(world):
    """-f with -L: in the order of the list."""
    server = world.server(NEW)
    # Of a tar archive pg_restore can only read on.
    for path in (p for p in archives(world) if not p.endswith("-t")):
        lines = [line for line in pg_restore(server, "-l", path)[1].decode().splitlines() if line and line[0] != ";"]
        file = os.path.join(world.folder, "list-order")
        with open(file, "w", encoding="utf-8") as f:
            f.write("\n".join(lines[::-2]))
        for more in ([], ["-a"], ["-n", "a"], ["-c"]):
            alike(server, ["-f", "-", KEY, "-L", file, *more, path])


def script_files(world):
    """-f FILE writes a file; without a key each script has another one; psql takes it."""
    server = world.server(NEW)
    path = archives(world)[0]
    file = os.path.join(world.folder, "script.sql")
    code, out, told = firn("-f", file, path)
    assert code == 0 and out == b"", told
    with open(file, "rb") as f:
        text = f.read()
    keys = [re.search(rb"^\\restrict (\w+)$", t, re.M)[1] for t in (text, firn("-f", "-", path)[1])]
    assert keys[0] != keys[1] and min(map(len, keys)) >= 32
    for wrong in (["-d", "x"], ["--restrict-key=a b"], ["--restrict-key="]):
        refused(server, ["-f", "-", *wrong, path])
    old = world.server(OLD)
    old.fresh("oracle")
    old.pg_restore("oracle", path)
    old.fresh("target")
    old.program("psql", "-X", "-q", *old.where("target"), "-f", file)
    same_blocks(old.dump("oracle"), old.dump("target"))
    # The list goes to a file, too.
    firn("-l", "-f", file, path)
    with open(file, "rb") as f:
        assert CREATED.sub(b"", f.read()) == CREATED.sub(b"", pg_restore(server, "-l", path)[1])


def names(world):
    """Names that need quotes, or look as if; strings without standard_conforming_strings; a database with an odd name."""
    server = world.server(NEW)
    odd = "Odd 'Data\"base\\"
    with server.connect() as c:
        c.execute('DROP DATABASE IF EXISTS "Odd \'Data""base\\"')
        c.execute('CREATE DATABASE "Odd \'Data""base\\" TEMPLATE template0')
    server.roles('"select"', '"Ro\'le\\"', "json_table", "plain")
    with server.connect(odd) as c:
        c.execute("ALTER DATABASE \"Odd 'Data\"\"base\\\" SET standard_conforming_strings = off")
        for number, owner in enumerate(('"select"', '"Ro\'le\\"', "json_table", "plain")):
            c.execute(f'CREATE SCHEMA "s {number}"; CREATE TABLE "s {number}"."T\n{number}" (a int); '
                      f'ALTER TABLE "s {number}"."T\n{number}" OWNER TO {owner}; CREATE TABLE "s {number}".json_table (a int)')
        c.execute("SELECT lo_from_bytea(0, decode(repeat('00ff27', 12000), 'hex')), lo_from_bytea(0, ''), lo_from_bytea(0, decode(repeat('41', 32768), 'hex'))")
        c.execute("SELECT lo_create(77); ALTER LARGE OBJECT 77 OWNER TO plain; GRANT SELECT ON LARGE OBJECT 77 TO \"select\", plain")
    for form in "cdt":
        path = world.archive(f"odd-{form}", lambda p, f=form: server.archive(f"dbname='{odd}'".replace("\\", "\\\\").replace("'Data", "\\'Data"), p, f))
        for more in ([], ["-C", "-c"], ["--use-set-session-authorization"], ["-c", "--if-exists"], ["-a"], ["--transaction-size=2"]):
            alike(server, ["-f", "-", KEY, *more, path])


def standard_input(world):
    """Archives from a file, from a pipe and by the name - on standard input."""
    server = world.server(NEW)
    for path in (archives(world)[n] for n in (0, 2, 3, 5)):
        with open(path, "rb") as f:
            data = f.read()
        right = pg_restore(server, "-f", "-", KEY, path)[1]
        for args in ([], ["-"]):
            assert firn("-f", "-", KEY, *args, data=data)[:2] == (0, right)
            with open(path, "rb") as f:
                r = subprocess.run([*common.program(), "-f", "-", KEY, *args], stdin=f, stdout=subprocess.PIPE, timeout=common.PATIENCE)
            assert (r.returncode, r.stdout) == (0, right)
    # Nothing of it is left.
    folder = os.path.join(world.folder, "spool")
    os.makedirs(folder, exist_ok=True)
    with open(archives(world)[0], "rb") as f:
        data = f.read()
    old = world.server(OLD)
    old.fresh("oracle")
    old.pg_restore("oracle", archives(world)[0])
    code, _, told = firn("-j", "3", *old.where(old.fresh("target")), data=data, env=dict(os.environ, TMPDIR=folder))
    assert code == 0, told
    assert os.listdir(folder) == []
    same_blocks(old.dump("oracle"), old.dump("target"))
    code, _, told = firn("-l", data=data[:-5000][:3000])
    assert code == 1 and "standard input" in told, told
    code, _, told = firn("-l", data=b"")
    assert code == 1 and "empty" in told, told


# What pg_restore 18 sets and 15 does not know.
TIMEOUT = 'error: could not execute query: ERROR:  unrecognized configuration parameter "transaction_timeout"'


def tar(world):
    """A tar archive is restored as the others are, by several connections."""
    for path in (archives(world)[2], archives(world)[5]):
        old = world.server(OLD)
        old.fresh("oracle")
        plain = ["--no-statistics"]
        right = old.pg_restore("oracle", path, *plain, by=world.server(NEW), check=False)
        assert set(messages(right.stderr.decode(), "error")) <= {TIMEOUT}, right.stderr.decode()
        code, _, told = firn("-j", "3", *old.where(old.fresh("target")), *plain, path)
        assert code == 0, told
        same_blocks(old.dump("oracle"), old.dump("target"))


def filters(world):
    """--filter: the grammar of pg_restore 17 and later."""
    server = world.server(NEW)
    file = os.path.join(world.folder, "filter")
    texts = [
        "include schema a\n", "exclude schema a\nexclude schema b # and this\n", "include table parent\ninclude table child\n",
        "# nothing\n\n   \n", "include function quote( text )\n", "include index measured_place", "include trigger parent  late\n",
        "include table nothing\n", "include table\n", "include\n", "take table t\n", "include view v\n", "include table_data t\n", "\n\nexclude table t\n",
        "include table \"open\n", "include table \"Odd\nname\"\n", "include extension x\n", "exclude foreign_data x\n", "include database x\n",
    ]
    for text in texts:
        with open(file, "w", encoding="utf-8") as f:
            f.write(text)
        for path in (archives(world)[0], archives(world)[3]):
            right, got = pg_restore(server, "-l", "--filter", file, path), firn("-l", "--filter", file, path)
            assert (got[0] == 0) == (right[0] == 0), f"{text!r} {got} {right}"
            assert CREATED.sub(b"", got[1]) == CREATED.sub(b"", right[1]), text
            assert messages(got[2], "error") == messages(right[2], "error"), f"{text!r} {got[2]} {right[2]}"
    data = b"include schema a\n"
    args = ["-l", "--filter", "-", archives(world)[0]]
    right, got = pg_restore(server, *args, data=data), firn(*args, data=data)
    assert got[0] == right[0] == 0 and CREATED.sub(b"", got[1]) == CREATED.sub(b"", right[1])


def together(world):
    """Flags that make no sense together are refused in the same words."""
    server = world.server(NEW)
    path = archives(world)[0]
    for wrong in (["-a", "-s"], ["-s", "--statistics-only"], ["-a", "--statistics-only"], ["-a", "--no-data"], ["-s", "--no-schema"],
                  ["--statistics-only", "--no-statistics"], ["--statistics", "--no-statistics"], ["-a", "--statistics"], ["-s", "--statistics"],
                  ["-c", "-a"], ["-1", "--transaction-size=3"], ["-C", "-1"], ["-1", "-j", "2"], ["--if-exists"]):
        refused(server, ["-f", "-", *wrong, path])


def twice(world):
    """What is said twice is taken as it was said last; what may be said several times adds up."""
    server = world.server(NEW)
    custom, directory = archives(world)[:2]
    other = os.path.join(world.folder, "list-other")
    for name, text in ((other, b"; nothing\n"), (other + "-last", pg_restore(server, "-l", custom)[1])):
        with open(name, "wb") as f:
            f.write(text)
    for args in (["-F", "d", "-F", "c"], ["-U", "a", "-U", "b"], ["-j", "2", "-j", "4"], ["-a", "-a"], ["-L", other, "-L", other + "-last"],
                 ["-n", "a", "-n", "b"], ["--section=data", "--section=pre-data"], ["-w", "-W", "-w"], ["-W", "-w"], ["--role=a", "--role=b"]):
        alike(server, ["-l", *args, custom])
    alike(server, ["-f", "nowhere/at/all", "-f", "-", KEY, "--restrict-key=last", "-S", "a", "-S", "b", "-a", "--disable-triggers", directory])


def failed_tables(world):
    """--no-data-for-failed-tables: what is there already gets no rows."""
    server = world.server()
    with server.connect(server.fresh("few")) as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS a; CREATE TABLE u AS SELECT 2 AS a")
    path = world.archive("failed", lambda p: server.archive("few", p, "c"))
    found = []
    for program in ("pg_restore", "firn"):
        with server.connect(server.fresh("target")) as c:
            c.execute("CREATE TABLE t AS SELECT 7 AS a")
        args = ["--no-data-for-failed-tables", *server.where("target"), path]
        code, _, told = pg_restore(server, *args) if program == "pg_restore" else firn("--on-error=continue", *args)
        assert code == 1, told
        with server.connect("target") as c:
            found.append((c.execute("SELECT a FROM t").fetchall(), c.execute("SELECT a FROM u").fetchall(), messages(told, "warning")))
    assert found[0] == found[1] and found[0][0] == [(7,)], found


def restored(server, db, path):
    server.fresh(db)
    server.pg_restore(db, path)
    with server.connect(db) as c:
        c.execute("ANALYZE")
    return db


def new_flags(world):
    """Flags of 18 that choose, restored: as pg_restore."""
    new = world.server(NEW)
    new.roles("zoo_owner", "zoo_reader", "zoo_super")
    db = world.once("like18", lambda: restored(new, "like18", flags.archive(world)))
    path = world.archive("zoo-18-statistics", lambda p: new.archive(db, p, "c", extra=("--statistics",)))
    for chosen, before in ((["--no-data"], False), (["--no-policies"], False), (["--no-schema"], True), (["--statistics-only"], True),
                           (["--no-statistics"], False)):
        for db in ("oracle", "target"):
            new.fresh(db)
            if before:
                new.pg_restore(db, path, "-s")
                with new.connect(db) as c:
                    c.execute("ALTER TABLE a.orders DROP CONSTRAINT orders_person_fkey")
        right = new.pg_restore("oracle", path, *chosen, check=False)
        run = firn("-j", "3", "--no-analyze", "--on-error=continue", *new.where("target"), *chosen, path)
        assert run[0] == right.returncode, f"{chosen} {run[2][-2000:]} {right.stderr.decode()[-2000:]}"
        dump = [new.dump_beside_journal(db) for db in ("oracle", "target")]
        same_blocks(*dump, " ".join(chosen))
        sql = "SELECT n.nspname, c.relname, c.relpages, c.reltuples, (SELECT count(*) FROM pg_statistic s WHERE s.starelid = c.oid) " \
              "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname !~ '^(pg_|firn_|info)' ORDER BY 1, 2"
        if "--statistics-only" in chosen:
            found = []
            for db in ("oracle", "target"):
                with new.connect(db) as c:
                    found.append(c.execute(sql).fetchall())
            assert found[0] == found[1] and any(row[4] for row in found[0])


def cases(world):
    yield "like lists", lambda: lists(world)
    yield "like formats", lambda: formats(world)
    yield "like use list", lambda: listed(world)
    yield "like errors ignored", lambda: ignored(world)
    yield "like strict names", lambda: strict(world)
    for number, name in enumerate(("15 custom", "15 directory", "15 tar", "18 custom", "18 directory", "18 tar")):
        yield f"like script {name}", lambda n=number: scripts(world, n)
    yield "like script of pg_restore 15", lambda: older(world)
    for version in (OLD, NEW):
        yield f"like regression {version}", lambda v=version: everything(world, v)
    yield "like script lists", lambda: script_lists(world)
    yield "like script files", lambda: script_files(world)
    yield "like script names", lambda: names(world)
    yield "like standard input", lambda: standard_input(world)
    yield "like tar", lambda: tar(world)
    yield "like filters", lambda: filters(world)
    yield "like together", lambda: together(world)
    yield "like twice", lambda: twice(world)
    yield "like failed tables", lambda: failed_tables(world)
    yield "like new flags", lambda: new_flags(world)
