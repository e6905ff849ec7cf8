"""What failed and is done late, by --resume or in a further pass, is as if it had not failed: what came before it does not change it."""
import ctypes
import os
import shutil
import struct
from collections import Counter

from harness import proxy as px
from harness.proxy import Proxy
from restore import shapes
from restore.common import NEW, OLD, firn, same_blocks

# Rows of tables with `lets()` are refused as long as there is no role "late_lets". What comes behind them changes rows, doubles them, drops them,
# refuses them, or is made of them.
ROWS = """
CREATE FUNCTION lets() RETURNS bool LANGUAGE sql AS $$SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'late_lets')$$;
CREATE TABLE noted (what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.noted VALUES (TG_ARGV[0]); NEW.seen := 1; RETURN NEW; END$$;
CREATE TABLE t (id int PRIMARY KEY, up int REFERENCES t, pad text, seen int DEFAULT 0, CHECK (lets()));
INSERT INTO t SELECT i, i % 3000 + 1, md5(i::text) || md5(i::text) || md5(i::text) FROM generate_series(1, 3000) i;
CREATE TABLE of_t (id int REFERENCES t);
CREATE TRIGGER note BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION note('t');
CREATE TABLE words (t text, w tsvector, CHECK (lets())); INSERT INTO words VALUES ('one', 'another');
CREATE TRIGGER search BEFORE INSERT ON words FOR EACH ROW EXECUTE FUNCTION tsvector_update_trigger('w', 'pg_catalog.english', 't');
CREATE TABLE away (i int, CHECK (lets())); INSERT INTO away SELECT generate_series(1, 5);
CREATE RULE nothing AS ON INSERT TO away DO INSTEAD NOTHING;
CREATE TABLE old_rows (i int, CHECK (lets())); INSERT INTO old_rows VALUES (-1); ALTER TABLE old_rows ADD CONSTRAINT positive CHECK (i > 0) NOT VALID;
CREATE DOMAIN old_values AS int; CREATE TABLE of_domain (v old_values, CHECK (lets())); INSERT INTO of_domain VALUES (-1);
ALTER DOMAIN old_values ADD CONSTRAINT positive CHECK (VALUE > 0) NOT VALID;
CREATE TABLE above (i int); CREATE TABLE between () INHERITS (above); CREATE TABLE below (CHECK (lets())) INHERITS (between); INSERT INTO below VALUES (-1);
ALTER TABLE above ADD CONSTRAINT positive CHECK (i > 0) NOT VALID;
CREATE TABLE p (i int, seen int) PARTITION BY RANGE (i); CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (20); ALTER TABLE p_2 ADD CHECK (lets()); INSERT INTO p SELECT generate_series(0, 19);
CREATE TRIGGER note BEFORE INSERT ON p FOR EACH ROW EXECUTE FUNCTION note('p');
CREATE MATERIALIZED VIEW m AS SELECT count(*) FROM t; CREATE MATERIALIZED VIEW m_of_m AS SELECT count AS n FROM m;
CREATE TABLE fine AS SELECT 1 AS i; CREATE INDEX fine_i ON fine (i); CREATE MATERIALIZED VIEW m_fine AS SELECT count(*) FROM fine;
CREATE FUNCTION no_triggers() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no triggers any more'; END$$;
CREATE EVENT TRIGGER no_triggers ON ddl_command_start WHEN TAG IN ('CREATE TRIGGER', 'CREATE RULE') EXECUTE FUNCTION no_triggers();
COMMENT ON EVENT TRIGGER no_triggers IS 'none';
"""
# A table that cannot be made without its owner; what it is made under would give privileges to others.
OWNED = """
CREATE SCHEMA s; CREATE TABLE s.t AS SELECT i FROM generate_series(1, 3) i; CREATE TABLE s.other AS SELECT 1 AS i;
ALTER TABLE s.t OWNER TO late_owner; ALTER DEFAULT PRIVILEGES IN SCHEMA s GRANT SELECT ON TABLES TO late_reader;
CREATE FUNCTION given() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN
    IF to_regclass('s.t') IS NOT NULL THEN GRANT UPDATE ON TABLE s.t TO late_reader; END IF; END$$;
CREATE TABLE s.p (i int, seen int) PARTITION BY LIST (i); CREATE TABLE s.p_1 PARTITION OF s.p FOR VALUES IN (1);
CREATE TABLE s.p_2 PARTITION OF s.p FOR VALUES IN (2); INSERT INTO s.p VALUES (1, 0), (2, 0);
REVOKE ALL ON s.p, s.p_1, s.p_2 FROM late_reader; ALTER TABLE s.p_2 OWNER TO late_owner;
CREATE FUNCTION s.see() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.seen := 1; RETURN NEW; END$$;
CREATE TRIGGER see BEFORE INSERT ON s.p FOR EACH ROW EXECUTE FUNCTION s.see();
CREATE EVENT TRIGGER given ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION given();
"""
# Few and cheap steps would not be done in one transaction.
MANY = "".join(f"CREATE TABLE fine_{i} AS SELECT 1 AS i;" for i in range(60)) + """
CREATE FUNCTION lets() RETURNS bool LANGUAGE sql AS $$SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'late_lets')$$;"""
ALONE = {"trigger": """CREATE TABLE words (t text, w tsvector, CHECK (lets())); INSERT INTO words VALUES ('one', 'another');
CREATE TRIGGER search BEFORE INSERT ON words FOR EACH ROW EXECUTE FUNCTION tsvector_update_trigger('w', 'pg_catalog.english', 't')""",
         "rule": """CREATE TABLE away (i int, CHECK (lets())); INSERT INTO away SELECT generate_series(1, 5);
CREATE RULE nothing AS ON INSERT TO away DO INSTEAD NOTHING"""}
LETS = "CREATE FUNCTION lets() RETURNS bool LANGUAGE sql AS $$SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'late_lets')$$;"
FORCED = LETS + """
CREATE TABLE hidden (i int, CHECK (lets())); INSERT INTO hidden VALUES (1), (2);
CREATE TABLE "P p" (i int) PARTITION BY RANGE (i); CREATE TABLE p_1 PARTITION OF "P p" FOR VALUES FROM (0) TO (10);
CREATE TABLE p_2 PARTITION OF "P p" FOR VALUES FROM (10) TO (20); ALTER TABLE p_2 ADD CHECK (lets()); INSERT INTO "P p" SELECT generate_series(0, 19);
CREATE POLICY none ON hidden USING (false); CREATE POLICY none ON "P p" USING (false);
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; ALTER TABLE "P p" ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
"""
FOREIGN = LETS + """
CREATE TABLE t (i int, CHECK (lets())); INSERT INTO t VALUES (1);
CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;
CREATE TABLE p (i int) PARTITION BY RANGE (i); CREATE UNLOGGED TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE UNLOGGED TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (20); INSERT INTO p SELECT generate_series(0, 19);
CREATE FOREIGN TABLE p_3 PARTITION OF p FOR VALUES FROM (20) TO (30) SERVER s;
"""
OBJECTS = """
SELECT lo_from_bytea(n, convert_to('object ' || n, 'UTF8')) FROM unnest(ARRAY[4241, 4242, 4243]) n; ALTER LARGE OBJECT 4242 OWNER TO late_owner;
"""


def without(server, *roles):
    with server.connect() as c:
        for role in roles:
            c.execute(f"DROP ROLE IF EXISTS {role}")


def archive(server, world, name, sql, extra=()):
    """The archive of a database and its dump; the roles that it needs are gone."""
    def make():
        without(server, "late_lets", "late_owner", "late_reader", "late_away")
        server.roles("late_lets", "late_owner", "late_reader")
        db = server.fresh("late")
        with server.connect(db) as c:
            c.execute(sql)
        path = server.archive(db, os.path.join(world.folder, f"late-{name}-{server.version}"), "c", "0", extra=extra)
        dump = server.dump(db)
        server.fresh(db)
        without(server, "late_lets", "late_owner")
        return path, dump
    return world.once(("late", name, server.version), make)


def whole(server, run, dump, *checks):
    run.ok()
    same_blocks(dump, server.dump("target"), run.out[-3000:])
    with server.connect("target") as c:
        for sql, expected in checks:
            assert c.execute(sql).fetchone() == expected, (sql, run.out[-3000:])


FILLED = [(f"SELECT * FROM {m}", (3000,)) for m in ("m", "m_of_m")] + [("SELECT * FROM m_fine", (1,))]


def rows(world, extra, how):
    """Rows that come late: no trigger, rule or check of their table has to do with them, and materialized views have them."""
    server = world.server()
    path, dump = archive(server, world, "rows" + "".join(extra), ROWS, extra)
    for jobs in ("1", "3"):
        server.fresh("target")
        run = firn(server, "target", path, "-j", jobs, "--on-error", how).fails("23514")
        with server.connect("target") as c:
            if how == "continue":
                # All else is there.
                assert c.execute("SELECT i FROM fine").fetchone() == (1,) and c.execute("SELECT * FROM m_fine").fetchone() == (1,), run.out
                assert c.execute("SELECT count(*) FROM pg_indexes WHERE indexname IN ('fine_i', 't_pkey')").fetchone() == (2,), run.out
                assert "skipped: EVENT TRIGGER no_triggers" in run.out and "skipped: TRIGGER public.t note" in run.out, run.out
            c.execute("CREATE ROLE late_lets")
        try:
            again = firn(server, "target", path, "-j", jobs, "--resume")
            whole(server, again, dump, *FILLED)
        finally:
            without(server, "late_lets")


def forced(world, extra):
    """Row security that binds the owner, too, is there before rows that come late: it does not keep them out, and stays."""
    server = world.server()
    server.roles("late_plain")
    path, dump = archive(server, world, "forced" + "".join(extra), FORCED, extra)
    for jobs in ("1", "3"):
        server.fresh("target")
        with server.connect() as c:
            c.execute("ALTER DATABASE target OWNER TO late_plain")
        args = ("-j", jobs, "--no-owner", "--role", "late_plain")
        run = firn(server, "target", path, *args, "--on-error=continue").fails("23514")
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM pg_class WHERE relrowsecurity AND relforcerowsecurity").fetchone() == (2,), run.out
            c.execute("CREATE ROLE late_lets")
        try:
            firn(server, "target", path, *args, "--resume").ok()
            with server.connect("target") as c:
                c.execute("REASSIGN OWNED BY late_plain TO postgres")
            same_blocks(dump, server.dump("target"))
        finally:
            server.fresh("target")
            without(server, "late_lets")


def opened(folder, work):
    """How often each file of a folder was opened meanwhile, as the kernel tells."""
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.inotify_init1(os.O_NONBLOCK)
    assert queue >= 0, os.strerror(ctypes.get_errno())
    try:
        # IN_OPEN and IN_CLOSE_NOWRITE: like ones in a row would be told as one.
        assert libc.inotify_add_watch(queue, os.fsencode(folder), 0x30) >= 0, os.strerror(ctypes.get_errno())
        work()
        found = Counter()
        while True:
            try:
                data = os.read(queue, 1 << 16)
            except BlockingIOError:
                return found
            while data:
                _, event, _, length = struct.unpack_from("iIII", data)
                found[data[16:16 + length].rstrip(b"\0").decode()] += bool(event & 0x20)
                data = data[16 + length:]
    finally:
        os.close(queue)


def read_once(world, extra):
    """One table with row security that binds its owner does not make the rows of others be looked at first."""
    server = world.server()
    with server.connect(server.fresh("late_once")) as c:
        for i in range(8):
            c.execute(f"CREATE TABLE t_{i} AS SELECT generate_series(1, 10) AS i")
        c.execute("ALTER TABLE t_1 ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    path = os.path.join(world.folder, f"late-once{''.join(extra)}")
    server.archive("late_once", path, "d", extra=extra)
    server.fresh("target")
    found = opened(path, lambda: firn(server, "target", path, "-j", "1").ok())
    again = [name for name, count in found.items() if count > 1 and name != "toc.dat"]
    assert len(found) == 9 and len(again) <= 1, found


def foreign(world):
    """Rows came through a table with unlogged and with foreign partitions: which of them have lost theirs is found without asking the
    foreign ones, and said where nobody knows."""
    server = world.server()
    path, _ = archive(server, world, "foreign", FOREIGN, ("--load-via-partition-root",))
    for empty in (False, True):
        server.fresh("target")
        firn(server, "target", path, "-j", "2", "--on-error=continue").fails("23514")
        with server.connect("target") as c:
            c.execute("CREATE ROLE late_lets")
            if empty:
                c.execute("TRUNCATE p_1, p_2")
        try:
            run = firn(server, "target", path, "-j", "2", "--resume")
            if empty:
                run.fails("may have been lost in a crash")
            else:
                run.ok()
                with server.connect("target") as c:
                    assert c.execute("SELECT (SELECT count(*) FROM p_1), (SELECT count(*) FROM p_2), (SELECT count(*) FROM t)").fetchone() == (10, 10, 1)
        finally:
            without(server, "late_lets")


def nothing_begun(world, extra, made):
    """With --on-error=stop nothing is begun after a failure, not even what was to be done in the same transaction."""
    server = world.server()
    path, dump = archive(server, world, made + "".join(extra), MANY + ALONE[made], extra)
    server.fresh("target")
    run = firn(server, "target", path, "-j", "1").fails("23514")
    with server.connect("target") as c:
        assert not c.execute("SELECT FROM pg_trigger WHERE tgname = 'search' UNION ALL SELECT FROM pg_rules").fetchone(), run.out
        c.execute("CREATE ROLE late_lets")
    try:
        whole(server, firn(server, "target", path, "-j", "1", "--resume"), dump)
    finally:
        without(server, "late_lets")


def lost(world):
    """The same in one run: the connection is lost that the pass began with, and the next one does what failed."""
    server = world.server()
    path, dump = archive(server, world, "rows", ROWS)
    server.fresh("target")
    keeper = []

    def fault(message):
        keeper.append(message.connection)
        if b"REFRESH MATERIALIZED VIEW public.m_of_m" in message.sql and len(keeper) and not fault.lost:
            fault.lost = True
            with server.connect() as c:
                c.execute("CREATE ROLE late_lets")
                c.execute("SELECT pg_terminate_backend(%s, 10000)", (keeper[0].pid,))
        return None
    fault.lost = False
    folder = os.path.join(server.root, "late")
    try:
        with Proxy(folder, server.root) as proxy:
            proxy.arm(fault, again=True)
            run = firn(server, "target", path, *proxy.where("target"), "-j", "1", "--on-error", "continue", where=False)
            assert not proxy.trouble, proxy.trouble
        assert fault.lost and "was lost" in run.out and "23514" in run.out, run.out
        whole(server, run, dump, *FILLED)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        without(server, "late_lets")


def owner(world, version, name, sql):
    """An owner who comes late: his things are as in the source, in what they hold and in who may use them."""
    server = world.server(version)
    path, dump = archive(server, world, name, sql)
    for jobs in ("1", "3"):
        server.fresh("target")
        run = firn(server, "target", path, "-j", jobs, "--on-error", "continue").fails("late_owner", "42704")
        # Again without him: nothing more, and nothing wrong.
        firn(server, "target", path, "-j", jobs, "--on-error", "continue", "--resume").fails("late_owner", "42704")
        with server.connect() as c:
            c.execute("CREATE ROLE late_owner")
        try:
            whole(server, firn(server, "target", path, "-j", jobs, "--resume"), dump)
        finally:
            server.fresh("target")
            without(server, "late_owner")
        assert name != "owned" or "skipped: DEFAULT ACL" in run.out and "skipped: EVENT TRIGGER given" in run.out, run.out


def dropped(world, extra):
    """Somebody's rule is there before the rows: what INSERTs answer is looked at."""
    server = world.server()
    path, _ = archive(server, world, "plain" + "".join(extra), "CREATE TABLE t AS SELECT generate_series(1, 5) AS i", extra)
    server.fresh("target")
    folder = os.path.join(server.root, "late")

    def rule(m):
        with server.connect("target") as c:
            c.execute("CREATE RULE nothing AS ON INSERT TO public.t DO INSTEAD NOTHING")
    with Proxy(folder, server.root) as proxy:
        proxy.arm(px.matching(rb"^INSERT INTO public.t", px.call(rule)))
        run = firn(server, "target", path, *proxy.where("target"), "-j", "1", "--disable-rule=all", where=False)
        assert proxy.fired.is_set()
    shutil.rmtree(folder, ignore_errors=True)
    run.fails("the server took 0 of 5 rows")


PARTITIONED = """
CREATE TABLE p (id int NOT NULL, v text NOT NULL, PRIMARY KEY (id)) PARTITION BY RANGE (id);
""" + shapes.ranges("p", 40) + """
CREATE UNIQUE INDEX p_v ON p (id, v); CREATE INDEX p_w ON p (v);
ALTER INDEX part_7_v_idx RENAME TO seventh; ALTER INDEX part_8_pkey SET (fillfactor = 70);
INSERT INTO p SELECT i, 'value ' || i FROM generate_series(1, 40) i;
CREATE TABLE after (id int PRIMARY KEY REFERENCES p); INSERT INTO after SELECT 7;
"""
REFUSE = """
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    IF current_query() ~ 'part_[789] PARTITION OF|ATTACH PARTITION public.part_[789] ' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '{}'; END IF; END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse();
"""


def unattached(world, version, extra, state):
    """Partitions that a full disk has kept from being attached come by --resume with the archive's indexes, not with others that the server
    made of their parent's. What fails for another reason leaves the parent its indexes, as pg_restore does."""
    server = world.server(version)
    path, dump = archive(server, world, f"unattached {len(extra)}", PARTITIONED, extra)
    server.fresh("target")
    with server.connect("target") as c:
        c.execute(REFUSE.format(state))
    passes = state == "53100"
    run = firn(server, "target", path, "-j", "2", "--on-error=continue").fails("not this one")
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = 'p'::regclass").fetchone() == (37,)
        indexes = c.execute("SELECT count(*) FROM pg_index WHERE indrelid = 'p'::regclass").fetchone()
        assert indexes == ((0,) if passes else (3,)), (indexes, run.out[-3000:])
        c.execute("DROP EVENT TRIGGER refuse; DROP FUNCTION refuse()")
    if passes:
        whole(server, firn(server, "target", path, "-j", "2", "--on-error=continue", "--resume"), dump)


def cases(world):
    for extra in ((), ("--inserts",)):
        for how in ("continue", "stop"):
            yield f"late rows {how} {' '.join(extra)}", lambda e=extra, h=how: rows(world, e, h)
        for made in ALONE:
            yield f"late nothing begun {made} {' '.join(extra)}", lambda e=extra, m=made: nothing_begun(world, e, m)
    for extra in ((), ("--inserts",), ("--load-via-partition-root",)):
        yield f"late rows forced {' '.join(extra)}", lambda e=extra: forced(world, e)
    for extra in ((), ("--inserts",)):
        yield f"late rows read once {' '.join(extra)}", lambda e=extra: read_once(world, e)
    yield "late rows beside foreign ones", lambda: foreign(world)
    yield "late pass lost", lambda: lost(world)
    for version in (OLD, NEW):
        yield f"late large object {version}", lambda v=version: owner(world, v, "objects", OBJECTS)
        yield f"late owned {version}", lambda v=version: owner(world, v, "owned", OWNED)
    yield "late rows dropped", lambda: dropped(world, ("--inserts",))
    for version in (OLD, NEW):
        for extra in ((), ("--load-via-partition-root",)):
            yield f"late partitions {version} {' '.join(extra)}", lambda v=version, e=extra: unattached(world, v, e, "53100")
    yield "late partitions refused", lambda: unattached(world, OLD, (), "P0001")
