"""What was there before a restore, or came from others while it ran, is never removed or changed, however the restore ends."""
import os
import re
import signal
from collections import Counter

import psycopg

from harness import proxy as px
from harness.proxy import Proxy
from restore.common import NEW, OLD, Missing, firn, same_blocks
from trouble.full import NoDisk, SmallDisk

# Of the archive: each has so many rows, the last of which is the one that fails.
TABLES = {"h.plain": 300, "h.frozen": 4000, "h.large": 18000, "h.part": 900, "h.counted": 50, "h.loose": 400}
SOURCE = """
CREATE SCHEMA h;
CREATE TABLE h.plain (id int PRIMARY KEY, v text);
CREATE TABLE h.frozen (id int PRIMARY KEY, v text);
CREATE TABLE h.large (id int PRIMARY KEY, v text);
CREATE TABLE h.part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE h.part_old PARTITION OF h.part FOR VALUES FROM (MINVALUE) TO (100);
CREATE TABLE h.part_new PARTITION OF h.part DEFAULT;
CREATE TABLE h.counted (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, v text);
CREATE TABLE h.loose (id int, v text);
INSERT INTO h.loose SELECT i, 'new' FROM generate_series(1, 400) i;
INSERT INTO h.plain SELECT i, 'new' FROM generate_series(1, 300) i;
INSERT INTO h.frozen SELECT i, repeat(md5(i::text), 4) FROM generate_series(1, 4000) i;
INSERT INTO h.large SELECT i, repeat(md5(i::text), 60) FROM generate_series(1, 18000) i;
INSERT INTO h.part SELECT i, 'new' FROM generate_series(1, 900) i;
INSERT INTO h.counted (v) SELECT 'new' FROM generate_series(1, 50) i;
"""
OLD_ROWS = """
INSERT INTO h.loose SELECT -i, 'old' FROM generate_series(1, 10) i;
INSERT INTO h.plain SELECT -i, 'old' FROM generate_series(1, 10) i;
INSERT INTO h.frozen SELECT -i, 'old' FROM generate_series(1, 500) i;
INSERT INTO h.large SELECT -i, 'old' FROM generate_series(1, 5000) i;
INSERT INTO h.part SELECT -i, 'old' FROM generate_series(1, 20) i;
INSERT INTO h.counted (id, v) SELECT -i, 'old' FROM generate_series(1, 5) i;
"""
SMALL = ("-T", "h.large")
CAUSES = {
    "duplicate": ("INSERT INTO {t} (id, v) VALUES ({n}, 'old')", "DELETE FROM {t} WHERE id = {n}"),
    "check": ("ALTER TABLE {t} ADD CONSTRAINT no CHECK (id <> {n})", "ALTER TABLE {t} DROP CONSTRAINT no"),
    "trigger": ("CREATE FUNCTION h.no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF NEW.id = {n} THEN RAISE 'not this one'; END IF; "
                "RETURN NEW; END$$; CREATE TRIGGER no BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION h.no()",
                "DROP TRIGGER no ON {t}; DROP FUNCTION h.no()"),
    "full disk": None,
    "cut": None,
}


def source(world):
    def make():
        server = world.server()
        db = server.fresh("existing")
        with server.connect(db) as c:
            c.execute(SOURCE)
        return db
    return world.once("existing source", make)


def archive(world, *extra):
    """The whole; with SMALL all but the large table."""
    db = source(world)
    return world.archive("existing" + "".join(extra), lambda p: world.server().archive(db, p, "c", "0", extra=extra))


def schema(world):
    """The name of a database with the schema and old rows."""
    def make():
        server = world.server()
        db = server.fresh("existing_before")
        server.pg_restore(db, archive(world), "-s")
        with server.connect(db) as c:
            c.execute(OLD_ROWS)
        return db
    return world.once("existing before", make)


def rows(server, table, db="target", columns="id, v"):
    with server.connect(db) as c:
        return Counter(c.execute(f"SELECT md5(({columns})::text) FROM {table}").fetchall())


def arriving(world, extra):
    """The rows of an archive, by table."""
    def make():
        return {t: rows(world.server(), t, source(world)) for t in TABLES}
    found = world.once("existing rows", make)
    return {t: Counter() if t in extra else found[t] for t in TABLES}


def kept(before, after, what):
    """All rows of `before` are there still."""
    lost = sum((before - after).values())
    assert not lost, f"{lost} of {sum(before.values())} rows that were there before are gone {what}"


def exact(before, new, after, what):
    """After all: the rows of before and those of the archive, each as often as it should be."""
    kept(before, after, what)
    missing, more = (before + new) - after, after - (before + new)
    assert not missing and not more, f"{sum(missing.values())} rows are missing, {sum(more.values())} too many {what}"


def small_disk(server):
    disk = SmallDisk(os.path.join(server.root, "existing-small"), 64)
    try:
        disk.__enter__()
    except NoDisk as e:
        os.rmdir(disk.folder)
        raise Missing(f"a tmpfs cannot be mounted: {e}") from e
    with server.connect() as c:
        c.execute(f"CREATE TABLESPACE existing_small LOCATION '{disk.folder_for('ts')}'")
    return disk


def data_only(world, table, cause):
    """Rows that cannot be loaded into a table with rows: those stay, and --resume brings the others once the cause is gone."""
    server = world.server()
    n = TABLES[table]
    new = arriving(world, () if table == "h.large" else SMALL)
    disk = None
    wrong = []
    try:
        with Proxy(os.path.join(server.root, "existing-proxy"), server.root) as proxy:
            for jobs, how, extra in ((4, "stop", SMALL), (4, "continue", SMALL), (1, "stop", (*SMALL, "--inserts"))):
                if table == "h.large":
                    extra = ()
                if jobs == 1 and (table == "h.large" or cause == "cut") or how == "continue" and table not in ("h.plain", "h.large"):
                    continue
                server.fresh("target", template=schema(world))
                args, where = ["-a", "-j", str(jobs), "--on-error", how], server.where("target")
                with server.connect("target") as c:
                    if CAUSES[cause]:
                        c.execute(CAUSES[cause][0].format(t=table, n=n))
                    elif cause == "full disk":
                        disk = disk or small_disk(server)
                        leaf = "h.part_new" if table == "h.part" else table
                        c.execute(f"ALTER TABLE {leaf} SET TABLESPACE existing_small")
                    else:
                        leaf = "h.part_new" if table == "h.part" else table
                        proxy.arm(px.matching(rf"COPY {leaf} .*FROM stdin".encode(), px.cut_after, None), again=True)
                        where = proxy.where("target")
                before = {t: rows(server, t) for t in TABLES}
                if cause == "full disk":
                    # Room for nothing, or for an empty table and its index.
                    disk.fill(100_000 if table in ("h.large", "h.frozen") else 0)
                run = firn(server, "target", archive(world, *extra), *where, *args, where=False)
                if disk:
                    disk.free()
                proxy.arm(None)
                what = f"({cause}, -j {jobs}, --on-error={how} {' '.join(extra)}: exit code {run.code})"
                # Few rows find room in the pages there are.
                assert run.code != 0 or (cause, table) == ("full disk", "h.counted"), f"it did not fail {what}:\n{run.out[-2000:]}"
                if cause == "full disk" and run.code != 0:
                    assert "No space left on device" in run.out, f"it failed of something else {what}:\n{run.out[-2000:]}"
                try:
                    for t in TABLES:
                        kept(before[t], rows(server, t), f"from {t} {what}")
                    with server.connect("target") as c:
                        if CAUSES[cause]:
                            c.execute(CAUSES[cause][1].format(t=table, n=n))
                    # The row in the way was somebody's, and is gone by his own hand.
                    if cause == "duplicate":
                        before[table] = before[table] - rows_of(server, f"({n}, 'old')")
                    if run.code != 0:
                        # What has done nothing has left nothing to go on with, and said so.
                        resume = [] if "Nothing was changed" in run.out else ["--resume"]
                        run = firn(server, "target", archive(world, *extra), "-a", "-j", str(jobs), *resume).ok()
                    for t in TABLES:
                        exact(before[t], new[t], rows(server, t), f"in {t} after --resume {what}")
                except AssertionError as e:
                    wrong.append(str(e)[:1500])
    finally:
        if disk:
            disk.free()
            with server.connect() as c:
                c.execute("DROP DATABASE target WITH (FORCE)")
                c.execute("DROP TABLESPACE existing_small")
            disk.__exit__()
    assert not wrong, "\n".join(wrong)


def rows_of(server, values):
    with server.connect() as c:
        return Counter(c.execute(f"SELECT md5((id, v)::text) FROM (VALUES {values}) AS x(id, v)").fetchall())


def parts(world, how):
    """A table in parts whose last row fails once: --resume brings all rows."""
    server = world.server()
    db = server.fresh("existing_parts")
    with server.connect(db) as c:
        c.execute("CREATE FUNCTION ok(i int) RETURNS bool LANGUAGE plpgsql STABLE AS $$BEGIN IF i = 17999 AND "
                  "coalesce(current_setting('app.broken', true), '') = 'yes' THEN PERFORM pg_sleep(1.5); RAISE 'broken'; END IF; RETURN true; END$$")
        c.execute("CREATE TABLE large (id int NOT NULL, v text, CHECK (ok(id)))")
        c.execute("INSERT INTO large SELECT i, repeat(md5(i::text), 60) FROM generate_series(1, 18000) i")
    path = world.archive(f"existing-parts-{how}", lambda p: server.archive(db, p, "c", "0"))
    server.fresh("target")
    with server.connect() as c:
        c.execute("ALTER DATABASE target SET app.broken = 'yes'")
    firn(server, "target", path, "-j", "4", "--on-error", how).fails("broken")
    with server.connect() as c:
        c.execute("ALTER DATABASE target RESET app.broken")
    firn(server, "target", path, "-j", "4", "--resume").ok()
    exact(Counter(), rows(server, "public.large", db), rows(server, "public.large"), "after --resume")


def foreign_key(world, how):
    """A foreign key that does not hold; mended, --resume adds it, and it is validated."""
    server = world.server()
    db = server.fresh("existing_key")
    with server.connect(db) as c:
        c.execute("CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id int, pid int, t text)")
        c.execute("INSERT INTO p SELECT generate_series(1, 1000); INSERT INTO c SELECT i, 1 + i % 1000, repeat(md5(i::text), 3) "
                  "FROM generate_series(1, 20000) i; ALTER TABLE c ADD CONSTRAINT fk FOREIGN KEY (pid) REFERENCES p")
        c.execute("SET session_replication_role = replica; DELETE FROM p WHERE id = 7")
    path = world.archive(f"existing-key-{how}", lambda p: server.archive(db, p, "c", "0"))
    server.fresh("target")
    firn(server, "target", path, "-j", "2", "--on-error", how).fails("23503")
    with server.connect("target") as c:
        c.execute("INSERT INTO p VALUES (7)")
    firn(server, "target", path, "-j", "2", "--resume").ok()
    with server.connect("target") as c:
        assert c.execute("SELECT conname, convalidated FROM pg_constraint WHERE contype = 'f'").fetchall() == [("fk", True)]
        assert c.execute("SELECT count(*) FROM c").fetchone() == (20000,)


def complete_again(world):
    """--resume of data that is all there does not load them twice; into tables without rows it begins."""
    server = world.server()
    new = arriving(world, SMALL)
    path = archive(world, *SMALL)
    for empty, first in ((False, ["-a"]), (True, ["-a", "--resume"])):
        server.fresh("target", template=schema(world))
        if empty:
            with server.connect("target") as c:
                c.execute("TRUNCATE " + ", ".join(TABLES))
        before = {t: rows(server, t) for t in TABLES}
        firn(server, "target", path, *first).ok()
        for n in range(2):
            run = firn(server, "target", path, "-a", "--resume").fails("there is no unfinished restore", "has rows")
            for t in TABLES:
                exact(before[t], new[t], rows(server, t), f"in {t} ({first}, --resume again {n}: exit code {run.code})")


def killed_verifying(world):
    """Killed while it compares: --resume goes on and compares."""
    server = world.server()
    server.fresh("target")
    with Proxy(os.path.join(server.root, "existing-proxy"), server.root) as proxy:
        child = None

        def kill(_):
            child.process.send_signal(signal.SIGKILL)
        proxy.arm(px.matching(rb"SELECT count\(\*\) FROM ONLY|^COPY .* TO STDOUT", px.call(kill)))
        child = firn(server, "target", archive(world), *proxy.where("target"), "-j", "2", "--verify=checksums", where=False, wait=False)
        run = child.wait()
        assert proxy.fired.is_set(), f"it was never verifying: {run.out[-1500:]}"
    assert run.code == -signal.SIGKILL, run.code
    firn(server, "target", archive(world), "-j", "2", "--verify=checksums", "--resume").ok()
    for t in TABLES:
        exact(Counter(), rows(server, t, source(world)), rows(server, t), f"in {t}")


def busy_user(world, broken):
    """Rows that somebody inserts into a table just made, before the archive's: they stay, also when those fail at first."""
    server = world.server()
    wrong = []
    with Proxy(os.path.join(server.root, "existing-proxy"), server.root) as proxy:
        for table in TABLES:
            server.fresh("target")
            leaf = "h.part_old" if table == "h.part" else table
            inserted = []

            def insert(m, leaf=leaf, inserted=inserted):
                m.connection.forward(m)
                m.connection.settle()
                with server.connect("target") as c:
                    # A lock that the restore holds is a fine way to keep others out; so is a table not committed yet.
                    c.execute("SET lock_timeout = '300ms'")
                    try:
                        more = ("n, ", "0, ") if leaf == "h.counted" else ("", "")
                        c.execute(f"INSERT INTO {leaf} (id, {more[0]}v) VALUES (-7, {more[1]}'mine')")
                        inserted.append(True)
                    except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
                        pass
            first = px.matching(rf"CREATE TABLE {leaf} |PARTITION OF {leaf[:6]}".encode(), insert)
            second = px.matching(rf"COPY {leaf}\W".encode(), px.error("22000", -1), 2 if table == "h.large" else 1)

            def fault(message, first=first, second=second):
                action = first(message)
                return action or (second(message) if broken else None)
            proxy.arm(fault, again=True)
            run = firn(server, "target", archive(world), *proxy.where("target"), "-j", "4", where=False)
            proxy.arm(None)
            mine = rows_of(server, "(-7, 'mine')") if inserted else Counter()
            what = f"from {table} (a row inserted during the restore, exit code {run.code})"
            try:
                kept(mine, rows(server, table), what)
                if run.code != 0:
                    assert broken, run.out[-1500:]
                    firn(server, "target", archive(world), "-j", "4", "--resume").ok()
                exact(mine, rows(server, table, source(world)), rows(server, table), what)
            except AssertionError as e:
                wrong.append(str(e)[:1500])
    assert not wrong, "\n".join(wrong)


def owner(world):
    def make():
        with world.server().connect() as c:
            c.execute("CREATE ROLE existing_owner")
    world.once("existing owner", make)


def schema_in_the_way(world):
    """A schema of the same name with something in it: it stays as it is, whatever --on-error says."""
    server = world.server()
    owner(world)
    for how in ("stop", "continue"):
        server.fresh("target")
        with server.connect("target") as c:
            c.execute("CREATE SCHEMA h AUTHORIZATION existing_owner; COMMENT ON SCHEMA h IS 'mine'; CREATE TABLE h.mine AS SELECT 1 AS id, 'x' AS v")
        firn(server, "target", archive(world), "-j", "2", "--on-error", how).fails("42P06")
        with server.connect("target") as c:
            assert c.execute("SELECT nspowner::regrole::text, obj_description(oid) FROM pg_namespace WHERE nspname = 'h'").fetchone() \
                == ("existing_owner", "mine"), how
            assert c.execute("SELECT * FROM h.mine").fetchall() == [(1, "x")]
            if how == "continue":
                assert c.execute("SELECT count(*) FROM h.plain").fetchone() == (300,)


def table_in_the_way(world):
    """A table of the same name, of the same shape or another: its rows, columns, owner and comment stay."""
    server = world.server()
    owner(world)
    for columns in ("id int, v text", "id bigint, v text, more int DEFAULT 5"):
        for how in ("stop", "continue"):
            for table in ("plain", "frozen", "large"):
                server.fresh("target")
                with server.connect("target") as c:
                    c.execute(f"CREATE SCHEMA h; CREATE TABLE h.{table} ({columns}); COMMENT ON TABLE h.{table} IS 'mine';"
                              f"INSERT INTO h.{table} (id, v) SELECT -i, 'old' FROM generate_series(1, 50) i;"
                              f"ALTER TABLE h.{table} OWNER TO existing_owner; DROP SCHEMA IF EXISTS other")
                    shape = look(c, table)
                before = rows(server, f"h.{table}")
                run = firn(server, "target", archive(world), "-j", "4", "--on-error", how).fails()
                kept(before, rows(server, f"h.{table}"), f"from {table} ({columns}, --on-error={how}): {run.out[-500:]}")
                with server.connect("target") as c:
                    assert look(c, table) == shape, (table, columns, how, shape, look(c, table))


def look(c, table):
    """All of a table that a restore could change."""
    return c.execute("SELECT relowner::regrole::text, relacl::text, obj_description(oid), (SELECT array_agg(attname || ' ' || atttypid::regtype "
                     "ORDER BY attnum) FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0), (SELECT count(*) FROM pg_constraint "
                     f"WHERE conrelid = c.oid), (SELECT count(*) FROM pg_index WHERE indrelid = c.oid) FROM pg_class c WHERE oid = 'h.{table}'::regclass"
                     ).fetchone()


def object_in_the_way(world):
    """A large object of the same number: its contents stay."""
    server = world.server()
    db = server.fresh("existing_object")
    with server.connect(db) as c:
        c.execute("SELECT lo_from_bytea(4242, 'from the archive, and longer'), lo_from_bytea(4243, 'another')")
    path = world.archive("existing-object", lambda p: server.archive(db, p, "c", "0"))
    for flags in ([], ["-a"], ["--on-error=continue"], ["-a", "--on-error=continue"]):
        server.fresh("target")
        with server.connect("target") as c:
            c.execute("SELECT lo_from_bytea(4242, 'precious')")
        firn(server, "target", path, *flags).fails()
        with server.connect("target") as c:
            found = c.execute("SELECT convert_from(lo_get(4242), 'UTF8')").fetchone()
            assert found == ("precious",), (flags, found)
    # Once it is out of the way, what the archive has comes, with its contents.
    with server.connect(server.fresh("target")) as c:
        c.execute("SELECT lo_from_bytea(4242, 'precious')")
    firn(server, "target", path, "--on-error=continue").fails()
    with server.connect("target") as c:
        c.execute("SELECT lo_unlink(4242)")
    firn(server, "target", path, "--resume").ok()
    with server.connect("target") as c:
        found = c.execute("SELECT convert_from(lo_get(4242), 'UTF8'), convert_from(lo_get(4243), 'UTF8')").fetchone()
        assert found == ("from the archive, and longer", "another"), found


def clean(world):
    """-c drops what the archive has, as pg_restore does, and nothing else."""
    server = world.server()
    more = ("CREATE TABLE public.mine AS SELECT 1 AS id; CREATE TABLE h.more AS SELECT 2 AS id; CREATE FUNCTION h.f() RETURNS int LANGUAGE sql AS "
            "'SELECT 1'; SELECT lo_from_bytea(999, 'mine')")
    results = []
    for program in ("pg_restore", "firn"):
        db = server.fresh("target")
        server.pg_restore(db, archive(world))
        with server.connect(db) as c:
            c.execute(more)
            c.execute("INSERT INTO h.plain VALUES (-1, 'old')")
            # The schema cannot go, for the sake of what else is in it.
        if program == "firn":
            run = firn(server, db, archive(world), "-c", "--if-exists", "--on-error=continue", "-j", "2")
            assert run.code in (0, 1), run.out[-2000:]
        else:
            server.pg_restore(db, archive(world), "-c", "--if-exists", check=False)
        results.append(server.dump_beside_journal(db))
    same_blocks(*results, "pg_restore -c and firn restore -c")


def clean_with_dependents(world):
    """A view of somebody's on a table that -c would drop keeps it, with its rows, as with pg_restore."""
    server = world.server()
    for table in ("plain", "frozen"):
        found = []
        for program in ("pg_restore", "firn"):
            db = server.fresh("target")
            server.pg_restore(db, archive(world))
            with server.connect(db) as c:
                c.execute(f"INSERT INTO h.{table} VALUES (-1, 'old'); CREATE VIEW public.mine AS SELECT id, v FROM h.{table}")
            if program == "firn":
                firn(server, db, archive(world), "-c", "--on-error=continue", "-j", "2").fails()
            else:
                server.pg_restore(db, archive(world), "-c", check=False)
            with server.connect(db) as c:
                found.append(c.execute("SELECT count(*) FROM public.mine WHERE id = -1").fetchone()[0])
        assert found == [1, 1], (table, found)


def clean_stops(world):
    """With -e the first DROP that fails ends it, as with pg_restore: what would be dropped later stays. Without it is told, and no error
    where all comes all the same."""
    server = world.server()
    with server.connect(server.fresh("clean_stops")) as c:
        c.execute("CREATE SCHEMA k; CREATE TABLE k.a (i int); CREATE TABLE k.b (i int PRIMARY KEY); CREATE TABLE k.c (i int)")
    path = world.archive("clean-stops", lambda p: server.archive("clean_stops", p, "c"))
    for flags in (["-e"], ["--exit-on-error", "-j", "2"], ["--on-error=stop"]):
        left = []
        for program in ("pg_restore", "firn"):
            db = server.fresh("target")
            server.pg_restore(db, path)
            with server.connect(db) as c:
                c.execute("CREATE VIEW public.mine AS SELECT i FROM k.b")
            if program == "firn":
                run = firn(server, db, path, "-c", *flags)
                assert run.code == 1 and "could not drop TABLE k.b" in run.out and "public.mine" in run.out, (run.code, run.out[-2000:])
                assert "restore complete" not in run.out and "could not restore" not in run.out, run.out[-2000:]
            else:
                assert server.pg_restore(db, path, "-c", "-e", check=False).returncode == 1
            with server.connect(db) as c:
                left.append(c.execute("SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'k'::regnamespace ORDER BY 1").fetchall())
        assert left[0] == left[1] == [("k.a",), ("k.b",)], left
    # Nothing is there to be dropped.
    firn(server, server.fresh("target"), path, "-c", "-e").fails("could not drop", "does not exist")
    run = firn(server, server.fresh("target"), path, "-c").ok()
    assert "could not drop TABLE k.b" in run.out and "restore complete" in run.out, run.out[-2000:]
    firn(server, server.fresh("target"), path, "-c", "-e", "--if-exists").ok()


def left_out(world):
    """-a into a table whose trigger, or rule, leaves rows out: as with pg_restore no error, but told, and told of at the end."""
    server = world.server()
    with server.connect(server.fresh("left_out")) as c:
        c.execute("CREATE TABLE t AS SELECT i FROM generate_series(1, 1000) i; CREATE TABLE u AS SELECT i FROM generate_series(1, 10) i")
    for kind, extra in (("copy", ()), ("inserts", ("--inserts",))):
        path = world.archive(f"left-out-{kind}", lambda p: server.archive("left_out", p, "c", extra=extra))
        for more in (["-j", "1"], ["-j", "2"], ["-1"], ["--transaction-size=1"]):
            with server.connect(server.fresh("target")) as c:
                c.execute("CREATE TABLE t (i int); CREATE TABLE u (i int)")
                c.execute("CREATE FUNCTION part() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF NEW.i > 960 THEN RETURN NULL; END IF; RETURN NEW; END$$")
                c.execute("CREATE TRIGGER part BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION part()")
            run = firn(server, "target", path, "-a", *more).ok()
            with server.connect("target") as c:
                assert c.execute("SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u)").fetchone() == (960, 10)
            assert run.out.count("warning: TABLE DATA public.t: the table took 960 of 1,000 rows") == 1, (kind, more, run.out)
            assert re.search("left out +40 rows of 1 table", run.out) and "public.u: the table" not in run.out, (kind, more, run.out)
    # A rule that does something else altogether: COPY knows no rules.
    with server.connect("target") as c:
        c.execute("DROP TRIGGER part ON t; CREATE RULE none AS ON INSERT TO t DO INSTEAD NOTHING")
    run = firn(server, "target", path, "-a", "-j", "2").ok()
    assert "public.t: the table took 0 of 1,000 rows" in run.out and re.search("left out +1,000 rows of 1 table", run.out), run.out


def clean_objects(world, version):
    """With -c large objects go, too: how archives name them has changed."""
    server = world.server(version)
    with server.connect(server.fresh("existing_objects")) as c:
        c.execute("SELECT lo_from_bytea(n, 'new') FROM generate_series(4001, 4003) n; COMMENT ON LARGE OBJECT 4002 IS 'second'")
    path = world.archive(f"existing-objects-{version}", lambda p: server.archive("existing_objects", p, "c"))
    dump = server.dump("existing_objects")
    for flags in (["-c"], ["-c", "--if-exists"]):
        for jobs in ("1", "3"):
            server.pg_restore(server.fresh("target"), path)
            with server.connect("target") as c:
                c.execute("SELECT lo_put(4001, 0, 'old contents'), lo_from_bytea(4999, 'mine')")
                if len(flags) > 1:
                    c.execute("SELECT lo_unlink(4003)")
            firn(server, "target", path, *flags, "-j", jobs).ok()
            with server.connect("target") as c:
                assert c.execute("SELECT lo_unlink(4999)").fetchone() == (1,)
            same_blocks(dump, server.dump("target"), str(flags))


def table_not_there(world):
    """With -a a table that is not there is an error, has the archive rows for it or not, as with pg_restore."""
    server = world.server()
    with server.connect(server.fresh("existing_none")) as c:
        c.execute("CREATE TABLE full_one AS SELECT 1 AS i; CREATE TABLE empty_one (i int)")
    path = world.archive("existing-none", lambda p: server.archive("existing_none", p, "c"))
    with server.connect(server.fresh("target")) as c:
        c.execute("CREATE TABLE full_one (i int)")
    assert b"empty_one" in server.pg_restore("target", path, "-a", check=False).stderr
    firn(server, "target", path, "-a", "-t", "empty_one").fails("42P01", "empty_one")
    with server.connect("target") as c:
        c.execute("CREATE TABLE empty_one (i int); INSERT INTO empty_one VALUES (7)")
    firn(server, "target", path, "-a", "-t", "empty_one").ok()
    with server.connect("target") as c:
        assert c.execute("SELECT i FROM empty_one").fetchall() == [(7,)]


def own_journal_schema(world):
    """Somebody has a schema of the journal's name, with tables like the journal's or others: refused, and left as it is."""
    server = world.server()
    for make in ("CREATE TABLE firn_restore.mine (x int); INSERT INTO firn_restore.mine VALUES (1)",
                 "CREATE TABLE firn_restore.run (x int); INSERT INTO firn_restore.run VALUES (1)",
                 "CREATE TABLE firn_restore.run (fingerprint text, terms text, begun timestamptz, version text);"
                 "CREATE TABLE firn_restore.journal (steps int[]); CREATE TABLE firn_restore.entries (entry int)",
                 "SELECT 1"):
        for flags in ([], ["--resume"], ["-c", "--if-exists"]):
            server.fresh("target")
            with server.connect("target") as c:
                c.execute(f"CREATE SCHEMA firn_restore; {make}")
            before = server.dump("target")
            firn(server, "target", archive(world), *flags).fails("firn_restore" if "mine" in make else "ournal")
            same_blocks(before, server.dump("target"), f"{make} {flags}")


def taken_away(world):
    """A table that this restore filled, dropped and made anew by somebody before --resume: it is not said to be complete."""
    server = world.server()
    with Proxy(os.path.join(server.root, "existing-proxy"), server.root) as proxy:
        server.fresh("target")
        # Large objects and indexes come after the rows.
        proxy.arm(px.matching(rb"ADD CONSTRAINT plain_pkey", px.error("22000", 1), None), again=True)
        run = firn(server, "target", archive(world), *proxy.where("target"), "-j", "1", "--disable-rule=all", where=False).fails("22000")
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM h.plain").fetchone() == (300,), run.out[-1500:]
        c.execute("DELETE FROM h.plain WHERE id > 100")
    run = firn(server, "target", archive(world), "-j", "1", "--disable-rule=all", "--resume")
    with server.connect("target") as c:
        count = c.execute("SELECT count(*) FROM h.plain").fetchone()[0]
    assert run.code == 3 and count == 100 and "TABLE \"h\".\"plain\": it has 100 rows, 300 were copied" in run.out, (run.code, count, run.out[-1500:])


def detached(world):
    """The same with partitions: one that hangs on nothing, and one that hangs on another table."""
    server = world.server()
    with Proxy(os.path.join(server.root, "existing-proxy"), server.root) as proxy:
        server.fresh("target")
        proxy.arm(px.matching(rb"phase = 'restored'", px.error("22000", 1), None), again=True)
        firn(server, "target", archive(world), *proxy.where("target"), "-j", "1", "--disable-rule=all", where=False).fails("22000")
    with server.connect("target") as c:
        c.execute("ALTER TABLE h.part DETACH PARTITION h.part_new; ALTER TABLE h.part DETACH PARTITION h.part_old")
        c.execute("CREATE TABLE public.other (LIKE h.part) PARTITION BY RANGE (id)")
        c.execute("ALTER TABLE public.other ATTACH PARTITION h.part_old FOR VALUES FROM (MINVALUE) TO (100)")
    for jobs in ("1", "2"):
        run = firn(server, "target", archive(world), "-j", jobs, "--disable-rule=all", "--resume")
        for child in ("part_old", "part_new"):
            assert run.code == 3 and f"TABLE ATTACH h.{child}: it is not attached to h.part" in run.out, (run.code, run.out[-2000:])


def cases(world):
    for version in (OLD, NEW):
        yield f"existing clean large objects {version}", lambda v=version: clean_objects(world, v)
    for table in TABLES:
        for cause in CAUSES:
            # No row is in another's way where there is no key.
            if (table, cause) == ("h.loose", "duplicate"):
                continue
            yield f"existing {table} {cause}", lambda t=table, c=cause: data_only(world, t, c)
    for how in ("stop", "continue"):
        yield f"existing parts {how}", lambda h=how: parts(world, h)
        yield f"existing foreign key {how}", lambda h=how: foreign_key(world, h)
    yield "existing complete again", lambda: complete_again(world)
    yield "existing killed verifying", lambda: killed_verifying(world)
    yield "existing busy user", lambda: busy_user(world, False)
    yield "existing busy user and an error", lambda: busy_user(world, True)
    for body in (schema_in_the_way, table_in_the_way, object_in_the_way, clean, clean_with_dependents, clean_stops, left_out, table_not_there, own_journal_schema, taken_away,
                 detached):
        yield f"existing {body.__name__.replace('_', ' ')}", lambda b=body: b(world)
