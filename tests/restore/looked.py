"""After errors: what looks at rows that are missing, and indexes that come before rows, are as pg_restore has them, or come by --resume, or are told."""
import os

from restore import early, faults, shapes
from restore.common import NEW, OLD, firn, same

LATE = """
CREATE TABLE a_rates (k int, f int); INSERT INTO a_rates VALUES (1, 7);
CREATE FUNCTION rate(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN COALESCE((SELECT f FROM public.a_rates WHERE k = $1), -1); END';
CREATE TABLE b_made (k int, v int GENERATED ALWAYS AS (rate(k)) STORED); INSERT INTO b_made (k) VALUES (1);
CREATE TABLE c_found (k int); INSERT INTO c_found VALUES (1); CREATE INDEX c_rate ON c_found (k) WHERE rate(k) = 7; CREATE INDEX c_plain ON c_found (k);
CREATE TABLE c_whole (k int CONSTRAINT c_checked CHECK (rate(k) <> 0)); INSERT INTO c_whole VALUES (1);
CREATE TABLE d_parts (k int) PARTITION BY RANGE (k);
""" + shapes.ranges("d_parts", 9, "d_part") + """
INSERT INTO d_parts VALUES (1); CREATE INDEX d_rate ON d_parts (rate(k)); CREATE VIEW z_last AS SELECT 1
"""
# Of functions of an extension, which look at no table of the archive: nothing of it is kept back, or told.
SOUND = """
CREATE EXTENSION fuzzystrmatch; CREATE TABLE b_sound (t text, v text GENERATED ALWAYS AS (soundex(t)) STORED); INSERT INTO b_sound VALUES ('firn');
CREATE DOMAIN sounding AS text CHECK (soundex(VALUE) IS NOT NULL);
CREATE TABLE x_found (t text, EXCLUDE USING gist (int4range(1, length(t)) WITH &&) WHERE (soundex(t) = '')); INSERT INTO x_found VALUES ('firn');
CREATE INDEX x_sound ON x_found (soundex(t)); CREATE INDEX x_domain ON x_found ((t::sounding));
ALTER TABLE x_found ADD CONSTRAINT x_valid CHECK (soundex(t) IS NOT NULL) NOT VALID
"""
OF_EXTENSION = ("SELECT relname::text FROM pg_class WHERE relname LIKE 'x\\_%' UNION SELECT conname::text FROM pg_constraint WHERE conname LIKE 'x\\_%' "
                "UNION SELECT v FROM b_sound ORDER BY 1")
ALL_OF_IT = ["F650", "x_domain", "x_found", "x_found_int4range_excl", "x_sound", "x_valid"]
# What is refused as it is made.
REFUSE = """
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    IF current_query() ~ '{}' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '{}'; END IF; END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse();
"""
ACCEPT = "DROP EVENT TRIGGER refuse; DROP FUNCTION refuse()"
LOOKED = "made without rows that came later"


def archive(world, version=OLD, more=""):
    """(its server, the archive, the dump that a restore is to have)"""
    server = world.server(version)

    def make():
        with server.connect(server.fresh("looked")) as c:
            c.execute(LATE)
            if more:
                c.execute(more)
        return server.archive("looked", os.path.join(world.folder, f"looked-{version}-{len(more)}"), "c"), server.dump("looked")
    return server, *world.once(("looked", version, more), make)


def resumed(world, state):
    """Rows that are generated from others, and indexes that look at others. While those are missing for a reason that passes they are not made:
    --resume makes them. If that may never pass they are tried without them, as by pg_restore."""
    server, path, dump = archive(world, more=SOUND)
    passes = state == "53100"

    def refusing(db):
        with server.connect(server.fresh(db)) as c:
            c.execute(REFUSE.format("CREATE TABLE public.a_rates", state))

    def missing(db):
        with server.connect(db) as c:
            return c.execute("SELECT count(*) FROM b_made").fetchone(), c.execute("SELECT to_regclass('c_rate') IS NULL").fetchone()
    for jobs in ("1", "4"):
        refusing("target")
        run = firn(server, "target", path, "-j", jobs, "--on-error=continue").fails("a_rates")
        assert ("look at rows that are missing" in run.out) == passes and LOOKED not in run.out, run.out
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM c_found").fetchone() == (1,), run.out
            assert [name for name, in c.execute(OF_EXTENSION)] == ALL_OF_IT, (c.execute(OF_EXTENSION).fetchall(), run.out)
            assert c.execute("SELECT to_regclass('c_plain') IS NOT NULL").fetchone() == (True,), run.out
        if passes:
            assert missing("target") == ((0,), (True,)), (missing("target"), run.out)
        else:
            # The function itself fails where there is no table.
            refusing("oracle")
            server.pg_restore("oracle", path, check=False)
            assert missing("target") == missing("oracle"), run.out
        with server.connect("target") as c:
            c.execute(ACCEPT)
        again = firn(server, "target", path, "-j", jobs, "--on-error=continue", "--resume")
        # Of partitions without rows the indexes could be made; they are fine.
        noted = again.out.partition(LOOKED)[2]
        assert again.code == (0 if passes else 3) and bool(noted) != passes and "b_made" not in noted and "c_rate" not in noted, again.out
        assert not any(name in noted for name in ("c_plain", "b_sound", *ALL_OF_IT)), noted
        same(dump, server.dump("target"))
        with server.connect("target") as c:
            c.execute("SET enable_seqscan = off")
            assert c.execute("SELECT v, (SELECT count(*) FROM c_found WHERE rate(k) = 7) FROM b_made").fetchall() == [(7, 1)]


def resumed_there(world):
    """Rows of tables that were there, and what these generate."""
    server, whole, _ = archive(world, more=SOUND)
    with server.connect(server.fresh("looked")) as c:
        c.execute(LATE)
        c.execute(SOUND)
    rows = world.archive("looked-rows", lambda p: server.archive("looked", p, "c", extra=["-a"]))
    for jobs in ("1", "4"):
        server.fresh("target")
        server.pg_restore("target", whole, "-s")
        with server.connect("target") as c:
            c.execute("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$;"
                      "CREATE TRIGGER refuse BEFORE INSERT ON a_rates FOR EACH ROW EXECUTE FUNCTION refuse()")
        run = firn(server, "target", rows, "-a", "-j", jobs, "--on-error=continue").fails("no room", "skipped: TABLE DATA public.b_made")
        with server.connect("target") as c:
            assert c.execute("SELECT (SELECT count(*) FROM b_made), (SELECT v FROM b_sound)").fetchone() == (0, "F650"), run.out
            c.execute("DROP TRIGGER refuse ON a_rates")
        firn(server, "target", rows, "-a", "-j", jobs, "--on-error=continue", "--resume").ok()
        with server.connect("target") as c:
            assert c.execute("SELECT (SELECT v FROM b_made), (SELECT v FROM b_sound)").fetchone() == (7, "F650"), run.out


FOUND = ("SELECT v FROM b_made", "SELECT count(*) FROM c_found WHERE rate(k) = 7", "SELECT conname FROM pg_constraint WHERE conname = 'c_checked'",
         "SELECT count(*) FROM d_parts WHERE rate(k) = 7", "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE c.relnamespace = 'public'::regnamespace ORDER BY 1")


def without(world, version, verify, state):
    """The table is there, and its rows are refused for good; `state`: beside something that fails otherwise. All is as pg_restore makes it. If the rows
    come after all, that is told, also beside differences that --verify finds."""
    server, path, dump = archive(world, version)

    def found(db):
        with server.connect(db) as c:
            c.execute("SET enable_seqscan = off")
            return [c.execute(sql).fetchall() for sql in FOUND]
    for jobs in ("1", "4"):
        for db in ("target", "oracle"):
            with server.connect(server.fresh(db)) as c:
                # The table is the archive's; its rows are refused by what was there.
                c.execute("CREATE FUNCTION no_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;"
                          "CREATE TABLE a_rates (k int, f int); CREATE TRIGGER no_rows BEFORE INSERT ON a_rates EXECUTE FUNCTION no_rows()")
                if state:
                    c.execute(REFUSE.format("CREATE VIEW public.z_last", state))
        run = firn(server, "target", path, "-j", jobs, "--on-error=continue").fails("a_rates")
        server.pg_restore("oracle", path, check=False)
        assert found("target") == found("oracle") and found("target")[:2] == [[(-1,)], [(0,)]], (found("target"), found("oracle"), run.out)
        with server.connect("target") as c:
            c.execute("DROP TABLE a_rates; DROP FUNCTION no_rows()")
            if state:
                c.execute(ACCEPT)
            if verify:
                c.execute("ALTER TABLE c_found ALTER k SET DEFAULT 5")
        again = firn(server, "target", path, "-j", jobs, "--on-error=continue", "--resume", *(["--verify"] if verify else []))
        assert again.code == 3 and LOOKED in again.out and "c_plain" not in again.out.partition(LOOKED)[2], again.out
        assert ("1 difference" in again.out) == verify, again.out
        for name in ("c_rate", "b_made", "d_rate", "d_part_9_rate_idx"):
            assert name in again.out.partition(LOOKED)[2], again.out
        with server.connect("target") as c:
            # What the hint says.
            c.execute("REINDEX INDEX c_rate")
            c.execute("UPDATE b_made SET k = k; SET enable_seqscan = off")
            fresh = c.execute("SELECT v, (SELECT count(*) FROM c_found WHERE rate(k) = 7) FROM b_made").fetchall()
            assert fresh == [(7, 1)], fresh
            c.execute("ALTER TABLE c_found ALTER k DROP DEFAULT")
        same(dump, server.dump("target"))


def emptied(world):
    """What was made without rows, and is made anew with them after a crash, is not told."""
    # One of its own kind: others have unlogged tables on theirs.
    server = faults.server(world, "on")
    with server.connect(server.fresh("looked_unlogged")) as c:
        c.execute(LATE.split("CREATE TABLE c_found")[0].replace("CREATE TABLE b_made", "CREATE UNLOGGED TABLE b_made"))
    path = server.archive("looked_unlogged", os.path.join(world.folder, "looked-unlogged"), "c")
    with server.connect(server.fresh("target")) as c:
        c.execute("CREATE FUNCTION no_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;"
                  "CREATE TABLE a_rates (k int, f int); CREATE TRIGGER no_rows BEFORE INSERT ON a_rates EXECUTE FUNCTION no_rows()")
    firn(server, "target", path, "-j", "1", "--on-error=continue").fails("a_rates")
    with server.connect("target") as c:
        assert c.execute("SELECT v FROM b_made").fetchall() == [(-1,)]
        c.execute("CHECKPOINT")
        c.execute("DROP TABLE a_rates; DROP FUNCTION no_rows()")
    server.stop("immediate")
    server.start()
    again = firn(server, "target", path, "-j", "1", "--resume").ok()
    assert LOOKED not in again.out, again.out
    with server.connect("target") as c:
        assert c.execute("SELECT v FROM b_made").fetchall() == [(7,)]


UNINDEXED = """
CREATE TABLE p (id int NOT NULL, t text) PARTITION BY RANGE (id);
""" + shapes.ranges("p", early.MANY) + f"""
INSERT INTO p SELECT i, 'v' || i FROM generate_series(1, {early.MANY}) i; CREATE INDEX p_id ON p (id);
"""


def unindexed(world, version, name):
    """Partitions are attached also where an index that would come before their rows cannot be made, with their parent's."""
    server = early.server_with_few_locks(world, version)
    with server.connect(server.fresh("unindexed")) as c:
        c.execute(UNINDEXED)
        c.execute("CREATE EXTENSION pg_trgm; CREATE INDEX p_t ON p USING gin (t gin_trgm_ops)" if name == "extension" else "CREATE INDEX p_t ON p (t)")
    path = server.archive("unindexed", os.path.join(world.folder, f"unindexed-{version}-{name}"), "c", "0")
    dump = server.dump("unindexed")
    for db in ("oracle", "target"):
        with server.connect(server.fresh(db)) as c:
            c.execute(REFUSE.format("CREATE EXTENSION", "0A000") if name == "extension" else "CREATE TABLE p_t ()")
    server.pg_restore("oracle", path, check=False)
    run = firn(server, "target", path, "-j", "2", "--on-error=continue").fails("p_t")
    with server.connect("target") as c:
        attached = c.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'p'::regclass").fetchone(), c.execute("SELECT count(*) FROM p").fetchone()
    assert attached == ((early.MANY,), (early.MANY,)), (attached, run.out[-3000:])
    with server.connect("oracle") as c:
        assert c.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'p'::regclass").fetchone() == (early.MANY,)
    with server.connect("target") as c:
        c.execute(ACCEPT if name == "extension" else "DROP TABLE p_t")
    again = firn(server, "target", path, "-j", "2", "--on-error=continue", "--resume")
    if name == "extension":
        # As with any that comes behind what may mean something by it.
        assert again.code == 3 and "EXTENSION pg_trgm" in again.out, again.out
    else:
        again.ok()
    same(dump, server.dump("target"))


BESIDE = early.KEYED + """
CREATE FUNCTION reads(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT max(id) FROM public.after); END';
CREATE TABLE z (i int); INSERT INTO z VALUES (1); CREATE INDEX z_i ON z ((reads(i))); CREATE TRIGGER s BEFORE UPDATE ON p FOR EACH ROW EXECUTE FUNCTION seen();
"""


def beside_refused(world):
    """A key that is refused once more by --resume takes nothing with it that is there."""
    server, path, dump = early.damaged(world, OLD, (), BESIDE)
    server.fresh("target")
    run = firn(server, "target", path, "-j", "1").fails("_pkey")
    again = firn(server, "target", path, "-j", "1", "--resume", "--on-error=continue").fails("_pkey")
    assert "skipped: TABLE ATTACH" not in again.out and "skipped: TRIGGER" not in again.out, (run.out, again.out)
    with server.connect("target") as c:
        for number in early.TWICE:
            c.execute(early.REMOVE.format(f"part_{number}"))
    last = firn(server, "target", path, "-j", "1", "--resume", "--no-count", "--on-error=continue").ok()
    assert LOOKED not in last.out, last.out
    same(dump, server.dump("target"))


def cases(world):
    for state in ("53100", "P0001"):
        yield f"looked resumed {state}", lambda s=state: resumed(world, s)
    for version in (OLD, NEW):
        yield f"looked without rows {version}", lambda v=version: without(world, v, False, None)
    yield "looked without rows, compared", lambda: without(world, OLD, True, None)
    for state in ("58P01", "53100"):
        yield f"looked without rows beside {state}", lambda s=state: without(world, OLD, False, s)
    yield "looked resumed there", lambda: resumed_there(world)
    yield "looked emptied", lambda: emptied(world)
    for version, name in ((OLD, "extension"), (OLD, "name"), (NEW, "name")):
        yield f"looked unindexed {version} {name}", lambda v=version, n=name: unindexed(world, v, n)
    yield "looked beside refused", lambda: beside_refused(world)
