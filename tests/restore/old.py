"""Archives of old versions. Those of 9.0 to 10.2 have no entry for the search path, and names of an entry's own schema without it.

Genuine ones lie in archives/: databases of such servers, filled by the files up to their version there, and dumped once by their own
pg_dump, as no server of such an age is at hand; others are made of today's. What pg_restore makes of them is what is right.
"""
import os
import random
import shutil

from restore import likeness, twins
from restore.common import NEW, OLD, firn, same, same_blocks, some

SOURCE = """
CREATE SCHEMA app; CREATE SCHEMA "Arc";
CREATE FUNCTION app.f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2';
CREATE FUNCTION "Arc".f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 3';
CREATE TABLE app.t (id serial PRIMARY KEY, v text CHECK (v <> 'x'), w int);
CREATE TABLE "Arc".t (id serial PRIMARY KEY, v text, other int REFERENCES app.t);
CREATE TABLE "Arc".large (id int PRIMARY KEY, t int REFERENCES "Arc".t, v text);
CREATE INDEX at_f ON app.t (app.f(w)); CREATE INDEX at_f ON "Arc".t ("Arc".f(other));
CREATE VIEW app.view AS SELECT id, app.f(w) FROM app.t; CREATE VIEW "Arc".view AS SELECT * FROM "Arc".t;
CREATE FUNCTION app.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER note BEFORE INSERT ON app.t FOR EACH ROW EXECUTE FUNCTION app.note();
CREATE OPERATOR app.= (LEFTARG = bigint, RIGHTARG = int, FUNCTION = int84ne);
CREATE TABLE public.p (id int);
GRANT SELECT ON app.t, "Arc".t, "Arc".large, public.p TO PUBLIC; COMMENT ON TABLE "Arc".t IS 'of Arc';
INSERT INTO app.t (v, w) SELECT i::text, i FROM generate_series(1, 100) i;
INSERT INTO "Arc".t (v, other) SELECT i::text, i FROM generate_series(1, 50) i;
INSERT INTO "Arc".large SELECT i, i % 50 + 1, repeat(md5(i::text), 20) FROM generate_series(1, 60000) i;
INSERT INTO public.p VALUES (1);
SELECT lo_from_bytea(4711, 'a large object');
"""


class Toc:
    """A table of contents of archive version 1.14, rewritten as one of 1.12."""

    def __init__(self, data):
        self.data, self.at, self.out = data, 11, bytearray()
        assert data[:7] == b"PGDMP\x01\x0e"
        self.out += b"PGDMP" + bytes([1, 12, 0]) + data[8:11]

    def number(self):
        sign, n = self.data[self.at], int.from_bytes(self.data[self.at + 1:self.at + 5], "little")
        self.at += 5
        return -n if sign else n

    def text(self):
        n = self.number()
        if n < 0:
            return None
        self.at += n
        return self.data[self.at - n:self.at]

    def put(self, value):
        if isinstance(value, int):
            self.out += bytes([value < 0]) + abs(value).to_bytes(4, "little")
        elif value is None:
            self.put(-1)
        else:
            self.put(len(value))
            self.out += value

    def rewritten(self):
        for _ in range(8):
            self.put(self.number())
        for _ in range(3):
            self.put(self.text())
        entries = [self.entry() for _ in range(self.number())]
        # In its place comes the schema that is there anyway.
        other = next(e for e in entries if e["desc"] == b"SCHEMA")
        for n, e in enumerate(entries):
            if e["desc"] == b"SEARCHPATH":
                entries[n] = dict(other, id=e["id"], oid=b"2200", tag=b"public", defn=b"CREATE SCHEMA public;\n",
                                  drop=b"DROP SCHEMA public;\n", owner=b"postgres")
        self.put(len(entries))
        for e in entries:
            for prefix in ((e["namespace"] or b"") + b".", b'"' + (e["namespace"] or b"") + b'".'):
                for key in ("defn", "drop", "copy"):
                    if e["namespace"] and e[key] and e["desc"] != b"SCHEMA":
                        e[key] = e[key].replace(prefix, b"")
            for key in ("id", "data", "table", "oid", "tag", "desc", "section", "defn", "drop", "copy", "namespace", "space", "owner", "oids"):
                self.put(e[key])
            for needed in e["needs"]:
                self.put(needed)
            self.put(None)
            self.put(e["file"])
        return bytes(self.out)

    def entry(self):
        e = {"id": self.number(), "data": self.number()}
        for key in ("table", "oid", "tag", "desc"):
            e[key] = self.text()
        e["section"] = self.number()
        for key in ("defn", "drop", "copy", "namespace", "space", "method", "owner", "oids"):
            e[key] = self.text()
        e["needs"] = []
        while (needed := self.text()) is not None:
            e["needs"].append(needed)
        e["file"] = self.text()
        return e


def make(world, path):
    server = world.server(OLD)
    with server.connect(server.fresh("of_old")) as c:
        c.execute(SOURCE)
    new = server.archive("of_old", path + "-new", "d")
    shutil.copytree(new, path)
    with open(os.path.join(path, "toc.dat"), "rb") as f:
        toc = Toc(f.read()).rewritten()
    with open(os.path.join(path, "toc.dat"), "wb") as f:
        f.write(toc)
    return path


def old(world, version, flags, before=None):
    server = world.server(version)
    path = world.archive("old-1.12", lambda p: make(world, p))
    for db in ("oracle", "target"):
        server.fresh(db)
        if before:
            server.pg_restore(db, path, check=False)
    # The one thing that it complains of is that public is there.
    wrong = server.pg_restore("oracle", path, *flags, check=False).stderr.decode().count("error:")
    assert wrong <= (1 if not before else 0), wrong
    expected, dump = twins.catalogs(server, "oracle"), server.dump("oracle")
    for jobs in ("1", "4"):
        if jobs == "4" and not before:
            server.fresh("target")
        run = firn(server, "target", path, "--jobs", jobs, *flags).ok()
        twins.compare(expected, twins.catalogs(server, "target"), f"{flags}, {jobs} jobs", run)
        same(dump, server.dump("target"), f"{flags}, {jobs} jobs")


HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "archives")
# What is in the database before, made by pg_restore, by flags.
GENUINE = {(): None, ("--no-owner", "-x"): None, ("-c", "--if-exists"): [], ("-a", "--disable-triggers"): ["-s"], ("-n", "Odd Name", "-n", "app"): "schemas",
           ("--section=pre-data", "--section=data"): None, ("-t", "plain", "-t", "numbered"): "schemas"}
# Of these pg_restore complains, though all is well: the schema is there in any database.
PUBLIC = 'schema "public" already exists'


def genuine(world, version, name, chosen):
    """An archive by an old pg_dump of an old server: firn makes of it what pg_restore makes."""
    server = world.server(version)
    server.roles("old_owner", "old_reader")
    path = os.path.join(HERE, name)
    wrong, errors = [], {}
    for number, flags in enumerate([(), *chosen]):
        before = GENUINE[flags]
        def prepare(db, before=before):
            # Subscriptions keep a database.
            if server.exists(db):
                with server.connect(db) as c:
                    for name, in c.execute("SELECT subname FROM pg_subscription WHERE subdbid = "
                                           "(SELECT oid FROM pg_database WHERE datname = current_database())").fetchall():
                        c.execute(f"ALTER SUBSCRIPTION {name} DISABLE; ALTER SUBSCRIPTION {name} SET (slot_name = NONE); DROP SUBSCRIPTION {name}")
            server.fresh(db)
            if before == "schemas":
                with server.connect(db) as c:
                    c.execute('CREATE SCHEMA app; CREATE SCHEMA "Odd Name"')
            elif before is not None:
                server.pg_restore(db, path, *before, check=False)
        prepare("oracle")
        right = server.pg_restore("oracle", path, *flags, check=False).stderr.decode()
        complaints = right.count("error: could not") + right.count("error: COPY failed") - right.count(PUBLIC)
        errors[flags] = complaints
        expected, dump = twins.catalogs(server, "oracle"), server.dump("oracle")
        for jobs in ((1, 4) if not number else (number % 4 + 1,)):
            prepare("target")
            run = firn(server, "target", path, "--jobs", str(jobs), *flags, *(["--on-error=continue"] if complaints else []))
            try:
                assert run.code == (1 if complaints else 0), f"{flags}, {jobs} jobs: {run.code}\n{run.out[-2500:]}\n{right[-2500:]}"
                with server.connect("target") as c:
                    c.execute("SET client_min_messages = error; DROP SCHEMA IF EXISTS firn_restore CASCADE")
                got, found = twins.catalogs(server, "target"), server.dump("target")
                made, blocks = twins.but_for_put_off(run, expected, dump, got, found)
                twins.compare(made, got, f"{flags}, {jobs} jobs", run)
                same_blocks(blocks, found, f"{flags}, {jobs} jobs")
            except AssertionError as e:
                wrong.append(str(e)[:3500])
    prepare("target", None)
    prepare("oracle", None)
    # And its script.
    try:
        likeness.alike(world.server(NEW), ["-f", "-", likeness.KEY, path])
    except AssertionError as e:
        wrong.append(str(e)[:3500])
    print(f"     {name} into {version}: pg_restore's complaints {list(errors.values())}", flush=True)
    assert not wrong, "\n\n".join(wrong)


def as_owner(world, version, name):
    """What is there before, and no statement says whose it is, is handed over as without --use-set-session-authorization."""
    server = world.server(version)
    server.roles("old_owner", "old_reader")
    owners = []
    for flags in ((), ("--use-set-session-authorization",)):
        with server.connect(server.fresh("target")) as c:
            c.execute("GRANT CREATE ON DATABASE target TO old_owner, old_reader; ALTER LANGUAGE plpgsql OWNER TO old_reader")
        firn(server, "target", os.path.join(HERE, name), "-j", "2", *flags, "-s", "--on-error=continue")
        with server.connect("target") as c:
            c.execute("SET client_min_messages = error; DROP SCHEMA IF EXISTS firn_restore CASCADE")
            owners.append(c.execute("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'public'").fetchone()
                          + c.execute("SELECT lanowner::regrole::text FROM pg_language WHERE lanname = 'plpgsql'").fetchone())
    assert owners[0] == owners[1] and owners[0][0] != "pg_database_owner", owners


LATE = """
CREATE SCHEMA app; CREATE FUNCTION app.lets() RETURNS bool LANGUAGE sql AS $$SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'old_lets')$$;
CREATE TABLE app.hidden (i int, CHECK (app.lets())); INSERT INTO app.hidden VALUES (1), (2);
CREATE POLICY none ON app.hidden USING (false); ALTER TABLE app.hidden ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
"""


def late_inserts(world):
    """INSERTs of old versions name tables without their schema: rows that come late are let into the right one."""
    server = world.server(OLD)
    server.roles("old_lets", "old_plain")

    def make_late(path):
        with server.connect(server.fresh("of_old_late")) as c:
            c.execute(LATE)
        server.archive("of_old_late", path, "d", "0", extra=("--inserts",))
        for name in os.listdir(path):
            with open(os.path.join(path, name), "rb") as f:
                data = f.read()
            data = Toc(data).rewritten() if name == "toc.dat" else data.replace(b"INSERT INTO app.", b"INSERT INTO ")
            with open(os.path.join(path, name), "wb") as f:
                f.write(data)
        return path
    path = world.archive("old-late-inserts", make_late)
    for jobs in ("1", "2"):
        server.fresh("target")
        with server.connect() as c:
            c.execute("DROP ROLE IF EXISTS old_lets; ALTER DATABASE target OWNER TO old_plain")
        args = ("-j", jobs, "--no-owner", "--role", "old_plain")
        firn(server, "target", path, *args, "--on-error=continue").fails("23514")
        server.roles("old_lets")
        firn(server, "target", path, *args, "--resume").ok()
        with server.connect("target") as c:
            assert c.execute("SELECT count(*), (SELECT relforcerowsecurity FROM pg_class WHERE relname = 'hidden') FROM app.hidden").fetchone() == (2, True)


def cases(world):
    yield "old inserts late", lambda: late_inserts(world)
    for version in (OLD, NEW):
        for name in ("9.0.dump", "9.6.dump"):
            yield f"old as owner {name} {version}", lambda v=version, n=name: as_owner(world, v, n)
    seed = int(os.environ.get("FIRN_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"     old: seed {seed}")
    draw = random.Random(seed)
    more = [flags for flags in GENUINE if flags]
    for name in sorted(os.listdir(HERE)):
        if not name.endswith(".sql"):
            for version in (OLD, NEW):
                chosen = some(1, more, draw)
                yield f"old genuine {name} {version}", lambda v=version, n=name, c=chosen: genuine(world, v, n, c)
    for version in (OLD, NEW):
        for flags in ((), ("--no-owner",)):
            yield f"old archives {' '.join(flags)} {version}", lambda v=version, f=flags: old(world, v, f)
        yield f"old archives clean {version}", lambda v=version: old(world, v, ("--clean", "--if-exists"), before=True)
