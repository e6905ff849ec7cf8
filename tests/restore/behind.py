"""What comes behind something, by --resume or undisturbed, in an order that nothing in the archive tells: it is as pg_restore has it."""
import os
import shutil
import time

from harness import proxy as px
from harness.proxy import Proxy
from restore import early, faults, looked, toc
from restore.common import NEW, OLD, firn, same

# Rows of a table with such a check are refused as long as the database says so.
LETS = "CREATE FUNCTION lets() RETURNS bool LANGUAGE sql AS 'SELECT current_setting(''app.refuse'', true) IS DISTINCT FROM ''on''';"
# An index that waits for all rows is between the late rows and what comes last, and is recorded without them.
BETWEEN = "CREATE TABLE above (i int); CREATE TABLE below () INHERITS (above); INSERT INTO below VALUES (1); CREATE INDEX above_i ON above (i);"
LAST = LETS + BETWEEN + """
CREATE TABLE t (k int, s text, CHECK (lets())); INSERT INTO t SELECT 1, 'x' FROM generate_series(1, 200000) i;
CREATE MATERIALIZED VIEW m AS SELECT count(*) AS n FROM t;
"""
PRIVILEGES = BETWEEN + """
CREATE TABLE late (k int); INSERT INTO late VALUES (1); CREATE TABLE log (what text);
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO behind_reader;
CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.log VALUES (tg_tag); END $$;
CREATE EVENT TRIGGER note ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION note();
"""
# The target's own trigger: refuses the table first, and is slow with it then.
SLOW = """
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    IF current_query() ~ 'CREATE TABLE public.late' THEN {} END IF; END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse();
"""
FAST = "DROP EVENT TRIGGER refuse; DROP FUNCTION refuse();"


def refusing(server, db, on):
    with server.connect() as c:
        c.execute(f"ALTER DATABASE {db} SET app.refuse = 'on'" if on else f"ALTER DATABASE {db} RESET app.refuse")


def made(world, name, sql, version=OLD, extra=(), form="c"):
    """(its server, the archive, its dump)"""
    server = world.server(version)
    server.roles("behind_reader")

    def make():
        with server.connect(server.fresh("behind")) as c:
            c.execute(sql)
        path = os.path.join(world.folder, f"behind-{name}-{version}")
        server.archive("behind", path, form, extra=extra)
        return path, server.dump("behind")
    return server, *world.once(("behind", name, version), make)


def late_rows(world, version):
    """A materialized view has the rows that come by --resume."""
    server, path, dump = made(world, "last", LAST, version)
    for jobs in ("2", "4"):
        server.fresh("target")
        refusing(server, "target", True)
        firn(server, "target", path, "-j", jobs, "--on-error=continue").fails("23514")
        refusing(server, "target", False)
        firn(server, "target", path, "-j", jobs, "--on-error=continue", "--resume").ok()
        with server.connect("target") as c:
            assert c.execute("SELECT n, (SELECT count(*) FROM t) FROM m").fetchone() == (200000, 200000)
        same(dump, server.dump("target"))


def late_table(world, version):
    """A table that comes by --resume gets no default privileges and meets no event trigger: these come last."""
    server, path, dump = made(world, "privileges", PRIVILEGES, version)
    with server.connect(server.fresh("target")) as c:
        c.execute(SLOW.format("RAISE EXCEPTION 'not now';"))
    firn(server, "target", path, "-j", "2", "--on-error=continue").fails("not now")
    with server.connect("target") as c:
        c.execute(FAST + SLOW.format("PERFORM pg_catalog.pg_sleep(1);"))
    firn(server, "target", path, "-j", "2", "--on-error=continue", "--resume").ok()
    with server.connect("target") as c:
        c.execute(FAST)
        assert c.execute("SELECT relacl, (SELECT count(*) FROM log) FROM pg_class WHERE relname = 'late'").fetchone() == (None, 0)
    same(dump, server.dump("target"))


KEYS = LETS + """
CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1), (2);
CREATE TABLE p (id int, r int) PARTITION BY RANGE (id); CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (20); ALTER TABLE p_2 ADD CHECK (lets()); INSERT INTO p VALUES (1, 1), (11, 2);
ALTER TABLE p ADD CONSTRAINT of_parent FOREIGN KEY (r) REFERENCES u; ALTER TABLE p_1 ADD CONSTRAINT of_part FOREIGN KEY (r) REFERENCES u;
COMMENT ON CONSTRAINT of_part ON p_1 IS 'of the partition';
"""
OWN_KEYS = "SELECT conrelid::regclass::text, conname, obj_description(oid, 'pg_constraint') FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 ORDER BY 1, 2"


def late_key(world, version, how):
    """A partition's own foreign key is not taken up by its parent's that comes by --resume: rows of another partition, or the key itself, failed."""
    server, path, dump = made(world, "keys", KEYS, version)
    for jobs in ("1", "4"):
        server.fresh("target")
        flags = ["-j", jobs, "--on-error=continue"]
        folder = os.path.join(server.root, "behind-proxy")
        if how == "rows":
            refusing(server, "target", True)
            firn(server, "target", path, *flags).fails("23514")
            refusing(server, "target", False)
        else:
            with Proxy(folder, server.root) as proxy:
                proxy.arm(px.matching(rb"CONSTRAINT of_parent ", px.error(how, 1), None), again=True)
                run = firn(server, "target", path, *proxy.where("target"), *flags, where=False).fails("of_parent")
            shutil.rmtree(folder, ignore_errors=True)
            with server.connect("target") as c:
                # As pg_restore leaves it.
                assert [row[1] for row in c.execute(OWN_KEYS).fetchall()] == ["of_part"], run.out[-2000:]
        firn(server, "target", path, *flags, "--resume").ok()
        same(dump, server.dump("target"))
        with server.connect("target") as c:
            assert c.execute(OWN_KEYS).fetchall() == [("p", "of_parent", None), ("p_1", "of_part", "of the partition")]


def key_refused(world):
    """While the parent's key fails for good the partition's own stays where it is, whatever becomes of --resume."""
    server, path, _ = made(world, "keys", KEYS)
    server.fresh("target")
    folder = os.path.join(server.root, "behind-proxy")
    with Proxy(folder, server.root) as proxy:
        for resume in ([], ["--resume"], ["--resume", "--on-error=continue"], ["--resume"]):
            proxy.arm(px.matching(rb"CONSTRAINT of_parent ", px.error("23503", -2 if resume else 1), None), again=True)
            firn(server, "target", path, *proxy.where("target"), *(resume or ["--on-error=continue"]), where=False).fails("of_parent")
            with server.connect("target") as c:
                assert [row[1:] for row in c.execute(OWN_KEYS).fetchall()] == [("of_part", "of the partition")], resume
    shutil.rmtree(folder, ignore_errors=True)


def key_changed(world):
    """What somebody has put in the place of the partition's own key is not touched; one that was taken up otherwise is told."""
    server, path, _ = made(world, "keys", KEYS)
    for change, told in (("ALTER TABLE p_1 DROP CONSTRAINT of_part, ADD CONSTRAINT of_part CHECK (r > 0)", None),
                         ("ALTER TABLE p ADD CONSTRAINT of_mine FOREIGN KEY (r) REFERENCES u", "a foreign key of the table above has taken it up")):
        server.fresh("target")
        refusing(server, "target", True)
        firn(server, "target", path, "--on-error=continue").fails("23514")
        refusing(server, "target", False)
        with server.connect("target") as c:
            c.execute(change)
        run = firn(server, "target", path, "--on-error=continue", "--resume")
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM pg_constraint WHERE conname = 'of_part'").fetchone() == (1,)
            if told is None:
                assert c.execute("SELECT contype FROM pg_constraint WHERE conname = 'of_part'").fetchone() == ("c",)
        assert told is None or run.code == 3 and told in run.out, run.out[-2000:]


WITHIN = """
CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1), (2);
CREATE TABLE p (id int, r int) PARTITION BY RANGE (id); CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (20); INSERT INTO p VALUES (1, 1), (11, 2);
ALTER TABLE p ADD CONSTRAINT of_parent FOREIGN KEY (r) REFERENCES u; ALTER TABLE p_1 ADD CONSTRAINT of_part FOREIGN KEY (r) REFERENCES u;
"""


def attached_within(source, target):
    """An archive as pg_dump until 13 writes it: the partition's own entry attaches it."""
    def change(entries):
        by_id = {e["id"]: e for e in entries}
        attached = [e for e in entries if e["desc"] == b"TABLE ATTACH"]
        for entry in attached:
            tables = [by_id[n] for n in entry["needs"] if n in by_id]
            own = next(t for t in tables if t["tag"] == entry["tag"])
            above = next(t for t in tables if t is not own)
            own["defn"] += entry["defn"]
            own["needs"] = sorted({*own["needs"], above["id"]})
        gone = {e["id"] for e in attached}
        for entry in entries:
            entry["needs"] = [n for n in entry["needs"] if n not in gone]
        # A partition comes behind its parent.
        left = [e for e in entries if e["id"] not in gone]
        own = [e for e in left if b" ATTACH PARTITION " in (e["defn"] or b"") and e["desc"] == b"TABLE"]
        first = next(n for n, e in enumerate(left) if e["desc"] == b"TABLE DATA")
        return [e for e in left[:first] if e not in own] + own + [e for e in left[first:] if e not in own]
    return toc.changed(source, target, change)


def keys_within(world):
    """In such archives, too, a partition's own foreign key stays its own."""
    server, path, _ = made(world, "within", WITHIN, form="d")
    source = attached_within(path, path + "-old")
    server.fresh("oracle")
    server.pg_restore("oracle", source)
    with server.connect("oracle") as o:
        expected = o.execute(OWN_KEYS).fetchall()
    assert len(expected) == 2
    for jobs in ("4", "2", "1"):
        server.fresh("target")
        folder = os.path.join(server.root, "behind-proxy")
        with Proxy(folder, server.root) as proxy:
            # Rows that the parent's key waits for, and the partition's own does not.
            proxy.arm(px.matching(rb"COPY public\.p_2 ", px.call(lambda _: time.sleep(1))))
            firn(server, "target", source, *proxy.where("target"), "-j", jobs, where=False).ok()
        shutil.rmtree(folder, ignore_errors=True)
        with server.connect("target") as c:
            assert c.execute(OWN_KEYS).fetchall() == expected, (jobs, c.execute(OWN_KEYS).fetchall())


THREE_LEVELS = """
CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1);
CREATE TABLE p (id int, r int) PARTITION BY RANGE (id); CREATE TABLE b_middle PARTITION OF p FOR VALUES FROM (0) TO (1000000) PARTITION BY RANGE (id);
CREATE TABLE a_leaf PARTITION OF b_middle FOR VALUES FROM (0) TO (1000000); INSERT INTO p SELECT i, 1 FROM generate_series(1, 200000) i;
ALTER TABLE p ADD CONSTRAINT of_parent FOREIGN KEY (r) REFERENCES u; ALTER TABLE b_middle ADD CONSTRAINT of_middle FOREIGN KEY (r) REFERENCES u;
ALTER TABLE a_leaf ADD CONSTRAINT of_leaf FOREIGN KEY (r) REFERENCES u;
"""


def late_of_levels(world, version):
    """Keys of partitions of partitions that are made again stay those of their tables: they come from above."""
    server, path, dump = made(world, "three-levels", THREE_LEVELS, version, ["-Z0"])
    for jobs in ("1", "4"):
        server.fresh("target")
        flags = ["-j", jobs, "--on-error=continue"]
        folder = os.path.join(server.root, "behind-proxy")
        with Proxy(folder, server.root) as proxy:
            proxy.arm(px.matching(rb"CONSTRAINT of_parent ", px.error("23503", 1), None), again=True)
            firn(server, "target", path, *proxy.where("target"), *flags, where=False).fails("of_parent")
        shutil.rmtree(folder, ignore_errors=True)
        firn(server, "target", path, *flags, "--resume").ok()
        with server.connect("target") as c:
            expected = [("a_leaf", "of_leaf", None), ("b_middle", "of_middle", None), ("p", "of_parent", None)]
            assert c.execute(OWN_KEYS).fetchall() == expected, jobs
        same(dump, server.dump("target"))


NAMESAKES = LETS + """
CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1), (2);
CREATE TABLE p (id int, r int, s int) PARTITION BY RANGE (id); CREATE TABLE a_part PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE q_part PARTITION OF p FOR VALUES FROM (10) TO (20); INSERT INTO p VALUES (1, 1, 2), (11, 2, 1);
ALTER TABLE a_part ADD CONSTRAINT fk FOREIGN KEY (s) REFERENCES u; ALTER TABLE q_part ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES u {};
CREATE TABLE r_part PARTITION OF p FOR VALUES FROM (20) TO (30); INSERT INTO p VALUES (21, 1, 1); ALTER TABLE r_part ADD CHECK (lets());
ALTER TABLE p ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES u; ALTER TABLE a_part ADD CONSTRAINT of_part FOREIGN KEY (r) REFERENCES u;
"""


def namesakes(world, version):
    """A partition's key with the name of its parent's, and another definition, comes before that one, which has another name there then; by
    --resume, too. Before version 18 one that is not valid is not equal either."""
    server, path, _ = made(world, "namesakes", NAMESAKES.format("ON DELETE CASCADE" if version == NEW else "NOT VALID"), version)
    every = "SELECT conrelid::regclass::text, conname, conparentid <> 0, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'f' ORDER BY 1, 2"
    with server.connect(server.fresh("behind")) as c:
        c.execute(NAMESAKES.format("ON DELETE CASCADE" if version == NEW else "NOT VALID"))
        expected = c.execute(every).fetchall()
    assert len(expected) == 7, expected
    for jobs in ("1", "4"):
        server.fresh("target")
        firn(server, "target", path, "-j", jobs).ok()
        with server.connect("target") as c:
            assert c.execute(every).fetchall() == expected, (jobs, c.execute(every).fetchall(), expected)
        server.fresh("target")
        refusing(server, "target", True)
        firn(server, "target", path, "-j", jobs, "--on-error=continue").fails("23514")
        refusing(server, "target", False)
        firn(server, "target", path, "-j", jobs, "--on-error=continue", "--resume").ok()
        with server.connect("target") as c:
            assert c.execute(every).fetchall() == expected, (jobs, c.execute(every).fetchall(), expected)


def keys_alone(world, version):
    """In an archive of what comes last alone, no tables with it, partitions' own keys stay theirs."""
    server, path, _ = made(world, "keys-alone", KEYS, version, ["--section=post-data"])
    _, whole, _ = made(world, "keys", KEYS, version)
    for jobs in ("4", "1"):
        server.fresh("target")
        firn(server, "target", whole, "--section=pre-data", "--section=data").ok()
        folder = os.path.join(server.root, "behind-proxy")
        with Proxy(folder, server.root) as proxy:
            # The parent's key is slow; nothing else is.
            proxy.arm(px.matching(rb"CONSTRAINT of_parent ", px.call(lambda _: time.sleep(1))))
            firn(server, "target", path, *proxy.where("target"), "-j", jobs, where=False).ok()
        shutil.rmtree(folder, ignore_errors=True)
        with server.connect("target") as c:
            assert c.execute(OWN_KEYS).fetchall() == [("p", "of_parent", None), ("p_1", "of_part", "of the partition")], jobs


def key_commented(world):
    """What another connection says of a key that is made again stays said."""
    server, path, _ = made(world, "keys", KEYS)
    server.fresh("target")
    folder = os.path.join(server.root, "behind-proxy")
    with Proxy(folder, server.root) as proxy:
        proxy.arm(px.matching(rb"CONSTRAINT of_parent |COMMENT ON CONSTRAINT of_part", px.error("53100", 2), None), again=True)
        firn(server, "target", path, *proxy.where("target"), "-j", "2", "--on-error=continue", where=False).fails("of_parent")
        # It is slow between the look at the key and what drops it.
        proxy.arm(px.matching(rb"DROP CONSTRAINT of_part", px.call(lambda _: time.sleep(1))))
        firn(server, "target", path, *proxy.where("target"), "-j", "2", "--on-error=continue", "--resume", where=False).ok()
    shutil.rmtree(folder, ignore_errors=True)
    with server.connect("target") as c:
        assert c.execute(OWN_KEYS).fetchall() == [("p", "of_parent", None), ("p_1", "of_part", "of the partition")]


OF_OTHERS = """
CREATE DOMAIN d AS int; CREATE UNLOGGED TABLE u (i d, v int); INSERT INTO u SELECT i, i FROM generate_series(1, 500) i;
ALTER DOMAIN d ADD CONSTRAINT later CHECK (VALUE > 0) NOT VALID; CREATE TABLE z (i int); INSERT INTO z VALUES (1);
"""


def of_others(world, version):
    """Rows that a crash has taken come again also where a check NOT VALID is of a domain of somebody else: they meet it."""
    server = faults.server(world, "on") if version == OLD else early.server_with_few_locks(world, version)
    server.roles("behind_owner LOGIN")
    with server.connect(server.fresh("behind_others")) as c:
        c.execute(OF_OTHERS)
    path = server.archive("behind_others", os.path.join(world.folder, f"behind-others-{version}"), "c", extra=["-t", "u", "-t", "z"])
    with server.connect(server.fresh("target")) as c:
        c.execute("CREATE DOMAIN d AS int; ALTER DOMAIN d ADD CONSTRAINT later CHECK (VALUE > 0) NOT VALID; GRANT ALL ON SCHEMA public TO behind_owner")
        c.execute("ALTER DATABASE target OWNER TO behind_owner; CREATE TABLE z (mine int)")
    flags = ["-j", "2", "--on-error=continue", "--role=behind_owner", "-O", "-x"]
    firn(server, "target", path, *flags).fails("TABLE public.z")
    with server.connect("target") as c:
        c.execute("CHECKPOINT; DROP TABLE z")
    server.stop("immediate")
    server.start()
    firn(server, "target", path, *flags, "--resume").ok()
    with server.connect("target") as c:
        assert c.execute("SELECT count(*), sum(v) FROM u").fetchone() == (500, 125250)
        assert c.execute("SELECT convalidated FROM pg_constraint WHERE conname = 'later'").fetchall() == [(False,)]


LIBRARY = """CREATE SCHEMA lib; CREATE FUNCTION lib.rate(int) RETURNS int IMMUTABLE LANGUAGE plpgsql
    AS 'BEGIN RETURN COALESCE((SELECT max(f) FROM app.z_rates WHERE k = $1), -1); END';"""
OF_LIBRARY = LIBRARY + """
CREATE SCHEMA app; CREATE TABLE app.z_rates (k int, f int); INSERT INTO app.z_rates SELECT 1, 7;
CREATE TABLE app.a_found (k int); INSERT INTO app.a_found SELECT 1 FROM generate_series(1, 20000); CREATE INDEX a_rate ON app.a_found (lib.rate(k));
"""


def elsewhere(world, version):
    """An index by a function that is in the target, not in the archive, comes when all rows are there."""
    server, path, _ = made(world, "library", OF_LIBRARY, version, ["-n", "app"])
    for jobs in ("1", "4"):
        with server.connect(server.fresh("target")) as c:
            c.execute(LIBRARY)
        folder = os.path.join(server.root, "behind-proxy")
        with Proxy(folder, server.root) as proxy:
            proxy.arm(px.matching(rb"COPY app\.z_rates", px.call(lambda _: time.sleep(1))))
            firn(server, "target", path, *proxy.where("target"), "-j", jobs, where=False).ok()
        shutil.rmtree(folder, ignore_errors=True)
        with server.connect("target") as c:
            c.execute("SET enable_seqscan = off")
            assert c.execute("SELECT count(*) FROM app.a_found WHERE lib.rate(k) = 7").fetchone() == (20000,), jobs


RANGES = LETS + """
CREATE TYPE tr AS RANGE (subtype = int, multirange_type_name = many); CREATE TABLE r (a int, b int); INSERT INTO r VALUES (1, 2);
CREATE INDEX r_tr ON r USING gist (tr(a, b)); CREATE INDEX r_many ON r USING gist (many(tr(a, b)));
CREATE TABLE late (i int, CHECK (lets())); INSERT INTO late VALUES (1);
"""


def ranges(world, version):
    """Who makes ranges looks at no table."""
    server, path, dump = made(world, "ranges", RANGES, version)
    server.fresh("target")
    refusing(server, "target", True)
    firn(server, "target", path, "-j", "2", "--on-error=continue").fails("23514")
    refusing(server, "target", False)
    firn(server, "target", path, "-j", "2", "--on-error=continue", "--resume").ok()
    same(dump, server.dump("target"))


FILED = LETS + """
CREATE TABLE a_rates (k int, f int, CHECK (lets())); INSERT INTO a_rates SELECT 1, 7;
CREATE FUNCTION rate(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN COALESCE((SELECT max(f) FROM public.a_rates WHERE k = $1), -1); END';
CREATE TABLE d (k int, t text) PARTITION BY LIST (rate(k)); CREATE TABLE d_7 PARTITION OF d FOR VALUES IN (7) PARTITION BY HASH (t);
CREATE TABLE d_7_0 PARTITION OF d_7 FOR VALUES WITH (MODULUS 1, REMAINDER 0); CREATE TABLE d_rest PARTITION OF d DEFAULT;
INSERT INTO d SELECT 1, repeat('x', 1000) FROM generate_series(1, 5000);
"""


def filed(world, version):
    """Rows that go through a table whose partition key looks at another one are filed when that has its rows."""
    server, path, _ = made(world, "filed", FILED, version, ["--load-via-partition-root"])

    def where(db):
        with server.connect(db) as c:
            return c.execute("SELECT tableoid::regclass::text, count(*) FROM d GROUP BY 1").fetchall()
    server.fresh("oracle")
    server.pg_restore("oracle", path)
    assert where("oracle") == [("d_7_0", 5000)]
    for jobs in ("1", "4"):
        server.fresh("target")
        folder = os.path.join(server.root, "behind-proxy")
        with Proxy(folder, server.root) as proxy:
            proxy.arm(px.matching(rb"COPY public\.a_rates", px.call(lambda _: time.sleep(1))))
            firn(server, "target", path, *proxy.where("target"), "-j", jobs, where=False).ok()
        shutil.rmtree(folder, ignore_errors=True)
        assert where("target") == [("d_7_0", 5000)], jobs
        # While those are missing for good they are filed as by pg_restore, and that is told when they come.
        server.fresh("oracle_without")
        server.fresh("target")
        for db in ("oracle_without", "target"):
            refusing(server, db, True)
        server.pg_restore("oracle_without", path, check=False)
        firn(server, "target", path, "-j", jobs, "--on-error=continue").fails("23514")
        assert where("target") == where("oracle_without") == [("d_rest", 5000)]
        refusing(server, "target", False)
        again = firn(server, "target", path, "-j", jobs, "--on-error=continue", "--resume")
        assert again.code == 3 and looked.LOOKED in again.out and "TABLE DATA public.d_7_0" in again.out.partition(looked.LOOKED)[2], again.out


TOLD = LETS + """
CREATE TABLE a_rates (k int, f int, CHECK (lets())); INSERT INTO a_rates VALUES (1, 7);
CREATE FUNCTION rate(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN COALESCE((SELECT max(f) FROM public.a_rates WHERE k = $1), -1); END';
CREATE TABLE c_found (k int); INSERT INTO c_found VALUES (1); ALTER TABLE c_found ADD CONSTRAINT c_later CHECK (rate(k) <> 0) NOT VALID;
CREATE MATERIALIZED VIEW m AS SELECT k FROM c_found; CREATE INDEX m_rate ON m ((rate(k)));
"""


def not_told(world, version):
    """A check that looked at no row, and an index that a REFRESH makes anew, keep nothing of rows that were missing."""
    server, path, dump = made(world, "told", TOLD, version)
    for jobs in ("1", "4"):
        server.fresh("target")
        refusing(server, "target", True)
        firn(server, "target", path, "-j", jobs, "--on-error=continue").fails("23514")
        refusing(server, "target", False)
        firn(server, "target", path, "-j", jobs, "--on-error=continue", "--resume").ok()
        same(dump, server.dump("target"))
        with server.connect("target") as c:
            c.execute("SET enable_seqscan = off")
            assert c.execute("SELECT count(*) FROM m WHERE rate(k) = 7").fetchone() == (1,)


def list_kept(world):
    """What looked at missing rows is told also where the restore's end fails, with the journal gone."""
    server = faults.server(world, "on")
    with server.connect(server.fresh("behind_list")) as c:
        c.execute(looked.LATE.split("CREATE TABLE c_found")[0] + "CREATE UNLOGGED TABLE un (i int); INSERT INTO un VALUES (1)")
    path = server.archive("behind_list", os.path.join(world.folder, "behind-list"), "c")
    with server.connect(server.fresh("target")) as c:
        c.execute("CREATE FUNCTION no_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;"
                  "CREATE TABLE a_rates (k int, f int); CREATE TRIGGER no_rows BEFORE INSERT ON a_rates EXECUTE FUNCTION no_rows()")
    firn(server, "target", path, "-j", "1", "--on-error=continue").fails("a_rates")
    with server.connect("target") as c:
        c.execute("DROP TABLE a_rates; DROP FUNCTION no_rows()")

    def crash(m):
        m.connection.done_unheard(m)
        server.stop("immediate")
        server.start()
        raise px.Closed
    folder = os.path.join(server.root, "behind-proxy")
    with Proxy(folder, server.root) as proxy:
        proxy.arm(px.matching(rb"DROP SCHEMA firn_restore", crash))
        run = firn(server, "target", path, *proxy.where("target"), "-j", "1", "--no-analyze", "--resume", where=False, patience=faults.LIMIT)
    shutil.rmtree(folder, ignore_errors=True)
    with server.connect("target") as c:
        assert c.execute("SELECT to_regnamespace('firn_restore') IS NULL").fetchone() == (True,), run.out
    assert run.code != 0 and looked.LOOKED in run.out and "b_made" in run.out and "TABLE DATA public.un" in run.out, run.out


# What a crash empties, with what its rows need not meet.
EMPTIED = """
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, v text, w int); INSERT INTO u SELECT i, CASE WHEN i > 5 THEN 'v' END, 5000 FROM generate_series(1, 500) i;
CREATE TABLE z (i int); INSERT INTO z VALUES (1);
"""
UNMET = {
    "check": "ALTER TABLE u ADD CONSTRAINT nv CHECK (id > 3) NOT VALID; COMMENT ON CONSTRAINT nv ON u IS 'not of all'",
    "not null": "ALTER TABLE u ADD CONSTRAINT nn NOT NULL v NOT VALID",
    "domain": "CREATE DOMAIN d AS int; ALTER TABLE u ADD COLUMN dd d DEFAULT -1; ALTER DOMAIN d ADD CONSTRAINT dnv CHECK (VALUE > 0) NOT VALID",
    "partitions": """CREATE TABLE pp (id int) PARTITION BY RANGE (id); CREATE UNLOGGED TABLE pp1 PARTITION OF pp FOR VALUES FROM (0) TO (1000);
        INSERT INTO pp SELECT generate_series(0, 99); ALTER TABLE pp ADD CONSTRAINT pnv CHECK (id > 5) NOT VALID""",
    # Checks of partitions and children that are valid, or their own, stay so.
    "valid parts": """CREATE TABLE pp (id int) PARTITION BY RANGE (id); CREATE UNLOGGED TABLE pp1 PARTITION OF pp FOR VALUES FROM (0) TO (100);
        CREATE UNLOGGED TABLE pp0 PARTITION OF pp FOR VALUES FROM (-100) TO (0); INSERT INTO pp SELECT generate_series(-99, 99);
        ALTER TABLE pp ADD CONSTRAINT pnv CHECK (id > 5) NOT VALID; CREATE TABLE pp2 PARTITION OF pp FOR VALUES FROM (100) TO (200);
        CREATE TABLE pp3 PARTITION OF pp FOR VALUES FROM (200) TO (300) PARTITION BY RANGE (id);
        CREATE UNLOGGED TABLE pp3_0 PARTITION OF pp3 FOR VALUES FROM (200) TO (300); INSERT INTO pp VALUES (100), (200);
        COMMENT ON CONSTRAINT pnv ON pp2 IS 'valid'; COMMENT ON CONSTRAINT pnv ON pp IS 'not valid'""",
    "of both": """CREATE UNLOGGED TABLE above (id int); CREATE UNLOGGED TABLE below () INHERITS (above); CREATE TABLE beside () INHERITS (above);
        INSERT INTO below SELECT generate_series(0, 99); INSERT INTO beside VALUES (7); ALTER TABLE below ADD CONSTRAINT inv CHECK (id > 5) NOT VALID;
        ALTER TABLE beside ADD CONSTRAINT inv CHECK (id > 5); ALTER TABLE above ADD CONSTRAINT inv CHECK (id > 5) NOT VALID""",
    "inherited": """CREATE UNLOGGED TABLE above (id int); CREATE UNLOGGED TABLE below () INHERITS (above); INSERT INTO below SELECT generate_series(0, 99);
        ALTER TABLE above ADD CONSTRAINT inv CHECK (id > 5) NOT VALID""",
    "key": "ALTER TABLE u ADD CONSTRAINT self FOREIGN KEY (w) REFERENCES u (id) NOT VALID",
    "deferrable": "ALTER TABLE u DROP CONSTRAINT u_pkey, ADD PRIMARY KEY (id) DEFERRABLE; COMMENT ON CONSTRAINT u_pkey ON u IS 'is deferrable'; "
                  "COMMENT ON INDEX u_pkey IS 'of a key'",
    "circle": """CREATE UNLOGGED TABLE o (id int PRIMARY KEY, u int REFERENCES u); INSERT INTO o SELECT i, i FROM generate_series(1, 50) i;
        UPDATE u SET w = 1; ALTER TABLE u ADD CONSTRAINT circle FOREIGN KEY (w) REFERENCES o""",
}


CHECKS = ("SELECT conrelid::regclass::text, conname, convalidated, conislocal, coninhcount, obj_description(oid, 'pg_constraint') FROM pg_constraint "
          "WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2")


def emptied(world, version, name, role):
    """Rows that a crash has taken come again whatever the archive has of them behind its rows. `role`: of one who may not switch triggers off."""
    server = faults.server(world, "on") if version == OLD else early.server_with_few_locks(world, version)
    server.roles("behind_owner LOGIN")
    with server.connect(server.fresh("behind_emptied")) as c:
        c.execute(EMPTIED + UNMET[name])
    for extra in ((), ("--inserts",), ("--inserts", "--on-conflict-do-nothing")):
        path = server.archive("behind_emptied", os.path.join(world.folder, f"behind-emptied-{version}-{name}-{len(extra)}"), "c", extra=extra)
        server.fresh("oracle")
        server.pg_restore("oracle", path)
        args = ["-O", "-x"] if role else []
        # Before the crash, which empties these as well.
        expected = server.dump("oracle", *args)
        with server.connect("oracle") as o:
            checks = o.execute(CHECKS).fetchall()
        with server.connect(server.fresh("target")) as c:
            if role:
                c.execute("ALTER DATABASE target OWNER TO behind_owner; GRANT ALL ON SCHEMA public TO behind_owner")
            c.execute("CREATE TABLE z (mine int)")
        flags = ["-j", "2", "--on-error=continue", *(["--role=behind_owner", "-O", "-x"] if role else [])]
        firn(server, "target", path, *flags).fails("TABLE public.z")
        with server.connect("target") as c:
            c.execute("CHECKPOINT; DROP TABLE z")
        server.stop("immediate")
        server.start()
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM u").fetchone() == (0,)
        firn(server, "target", path, *flags, "--resume").ok()
        same(expected, server.dump("target", *args), (name, extra))
        with server.connect("target") as c:
            assert c.execute(CHECKS).fetchall() == checks, (name, extra)


DEFERRABLE = LETS + """
CREATE TABLE w (id int, CHECK (lets()), CONSTRAINT k PRIMARY KEY (id) DEFERRABLE); INSERT INTO w SELECT generate_series(1, 50);
CREATE TABLE x (r int4range, CHECK (lets()), CONSTRAINT e EXCLUDE USING gist (r WITH &&) DEFERRABLE); INSERT INTO x SELECT int4range(i, i + 1) FROM generate_series(1, 50) i;
"""


def deferrable(world, version):
    """Rows that come late as INSERTs with ON CONFLICT meet no key that is DEFERRABLE, which was made without them."""
    server, path, dump = made(world, "deferrable", DEFERRABLE, version, ["--inserts", "--on-conflict-do-nothing"])
    for jobs in ("1", "4"):
        server.fresh("target")
        refusing(server, "target", True)
        firn(server, "target", path, "-j", jobs, "--on-error=continue").fails("23514")
        refusing(server, "target", False)
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM pg_constraint WHERE condeferrable").fetchone() == (2,)
        firn(server, "target", path, "-j", jobs, "--on-error=continue", "--resume").ok()
        same(dump, server.dump("target"))


THERE = {"large object": "SELECT lo_from_bytea(50000, 'mine')", "cast": "CREATE CAST (int AS box) WITH INOUT", "publication": "CREATE PUBLICATION mine",
         "language": "CREATE EXTENSION pltcl", "access method": "CREATE ACCESS METHOD mine TYPE INDEX HANDLER bthandler", "wrapper": "CREATE FOREIGN DATA WRAPPER mine"}


def there(world, version):
    """What is no table, and was in the database before, is no difference for --verify either."""
    server, path, _ = made(world, "others", WITHIN, version)
    for name, sql in THERE.items():
        with server.connect(server.fresh("target")) as c:
            if name == "language" and not c.execute("SELECT FROM pg_available_extensions WHERE name = 'pltcl'").fetchall():
                continue
            c.execute(sql)
        run = firn(server, "target", path, "--verify", *(["--pg-dump", os.path.join(server.bin, "pg_dump")] if version == NEW else []))
        assert run.code == 0 and "should not be there" not in run.out, (name, run.out[-2000:])


FIRES = """
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, v int); INSERT INTO u SELECT i, i FROM generate_series(1, 100) i; CREATE TABLE z (i int); INSERT INTO z VALUES (1);
CREATE FUNCTION changes() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := -1; RETURN NEW; END'; CREATE TRIGGER changes BEFORE INSERT ON u FOR EACH ROW EXECUTE FUNCTION changes();
ALTER TABLE u ADD CONSTRAINT nv CHECK (id > 50) NOT VALID;
"""


def emptied_and_ended(world):
    """A run that ends before the rows are there again that a crash has taken: the next one knows it, no trigger sees them."""
    server = faults.server(world, "on")
    with server.connect(server.fresh("behind_ended")) as c:
        c.execute(FIRES)
    path = server.archive("behind_ended", os.path.join(world.folder, "behind-ended"), "c")
    dump = server.dump("behind_ended")
    with server.connect(server.fresh("target")) as c:
        c.execute("CREATE TABLE z (mine int)")
    flags = ["-j", "1", "--on-error=continue"]
    firn(server, "target", path, *flags).fails("TABLE public.z")
    with server.connect("target") as c:
        c.execute("CHECKPOINT")
    server.stop("immediate")
    server.start()
    folder = os.path.join(server.root, "behind-proxy")
    with Proxy(folder, server.root) as proxy:
        for _ in range(2):
            proxy.arm(px.matching(rb"^COPY public\.u ", px.error("53100"), None), again=True)
            run = firn(server, "target", path, *proxy.where("target"), *flags, "--resume", where=False, patience=faults.LIMIT)
            assert run.code != 0, run.out
    shutil.rmtree(folder, ignore_errors=True)
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM u").fetchone() == (0,)
        c.execute("DROP TABLE z")
    firn(server, "target", path, *flags, "--resume").ok()
    same(dump, server.dump("target"))


SHARED = """
CREATE DOMAIN d AS int; CREATE TABLE z (i int); INSERT INTO z VALUES (1);
CREATE TABLE pp (id int, v d) PARTITION BY LIST (id);
""" + "".join(f"CREATE UNLOGGED TABLE u{i} (v d, t text); INSERT INTO u{i} SELECT -1, repeat('x', 100) FROM generate_series(1, 500); "
              f"CREATE UNLOGGED TABLE pp{i} PARTITION OF pp FOR VALUES IN ({i}); INSERT INTO pp SELECT {i}, -1 FROM generate_series(1, 500);" for i in range(6)) + """
ALTER TABLE pp ADD CONSTRAINT a CHECK (v > 0) NOT VALID, ADD CONSTRAINT b CHECK (id > 90) NOT VALID, ADD CONSTRAINT c CHECK (id > 91) NOT VALID;
ALTER DOMAIN d ADD CONSTRAINT positive CHECK (VALUE > 0) NOT VALID; ALTER DOMAIN d ADD CONSTRAINT large CHECK (VALUE > 5) NOT VALID;
"""


def emptied_together(world):
    """Several connections fill tables of one domain, and partitions of one table, again."""
    server = faults.server(world, "on")
    with server.connect(server.fresh("behind_shared")) as c:
        c.execute(SHARED)
    path = server.archive("behind_shared", os.path.join(world.folder, "behind-shared"), "c")
    dump = server.dump("behind_shared")
    for _ in range(3):
        with server.connect(server.fresh("target")) as c:
            c.execute("CREATE TABLE z (mine int)")
        flags = ["-j", "4", "--on-error=continue"]
        firn(server, "target", path, *flags).fails("TABLE public.z")
        with server.connect("target") as c:
            c.execute("CHECKPOINT; DROP TABLE z")
        server.stop("immediate")
        server.start()
        firn(server, "target", path, *flags, "--resume").ok()
        same(dump, server.dump("target"))


LEVELS = "".join(f"""
CREATE TABLE t{k} (id int NOT NULL, v text, PRIMARY KEY (id)) PARTITION BY LIST (id);
""" + "".join(f"""CREATE TABLE t{k}_{p} PARTITION OF t{k} FOR VALUES IN ({p}) PARTITION BY HASH (id);
CREATE TABLE t{k}_{p}_h PARTITION OF t{k}_{p} FOR VALUES WITH (MODULUS 1, REMAINDER 0);""" for p in range(3)) + f"""
CREATE TABLE t{k}_r PARTITION OF t{k} DEFAULT; CREATE INDEX ON t{k} (lower(v)); CREATE INDEX ON t{k} (v); INSERT INTO t{k} SELECT i, 'v' FROM generate_series(0, 9) i;
""" for k in range(6))


def levels(world, version):
    """Indexes of tables with partitions of partitions become valid with the last of their parts, whichever comes last."""
    server, path, _ = made(world, "levels", LEVELS, version)
    for turn, jobs in enumerate(("4", "2", "3", "6") * 3):
        server.fresh("target")
        firn(server, "target", path, "-j", jobs, "--no-analyze", *(["--disable-rule=all"] if turn % 2 else [])).ok()
        with server.connect("target") as c:
            invalid = c.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid").fetchall()
            assert not invalid, (jobs, invalid)


def invalid(world):
    """An index that stayed invalid, though all of its parts are there, is told."""
    server, path, _ = made(world, "levels", LEVELS, NEW)
    server.fresh("target")
    folder = os.path.join(server.root, "behind-proxy")

    def spoil(_):
        with server.connect("target") as c:
            c.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 't1_v_idx'::regclass")
    with Proxy(folder, server.root) as proxy:
        proxy.arm(px.matching(rb"phase = 'restored'", px.call(spoil)))
        run = firn(server, "target", path, *proxy.where("target"), "-j", "2", where=False)
    shutil.rmtree(folder, ignore_errors=True)
    assert run.code == 3 and "t1_v_idx: it is invalid" in run.out, run.out[-2000:]


def cases(world):
    for version in (OLD, NEW):
        yield f"behind late rows {version}", lambda v=version: late_rows(world, v)
        yield f"behind a late table {version}", lambda v=version: late_table(world, v)
        for how in ("rows", "53100", "P0001"):
            yield f"behind a late key {version} {how}", lambda v=version, h=how: late_key(world, v, h)
        yield f"behind a late key of three levels {version}", lambda v=version: late_of_levels(world, v)
        yield f"behind a key's namesakes {version}", lambda v=version: namesakes(world, v)
        yield f"behind keys alone {version}", lambda v=version: keys_alone(world, v)
        yield f"behind a crash {version} domain of others", lambda v=version: of_others(world, v)
        yield f"behind functions elsewhere {version}", lambda v=version: elsewhere(world, v)
        yield f"behind rows that file {version}", lambda v=version: filed(world, v)
        yield f"behind, not told {version}", lambda v=version: not_told(world, v)
        for name in UNMET:
            if version == NEW or name != "not null":
                # Keys in a circle need somebody who may switch them off.
                for role in (False,) if name == "circle" else (False, True):
                    yield f"behind a crash {version} {name}{', no superuser' if role else ''}", lambda v=version, n=name, r=role: emptied(world, v, n, r)
        yield f"behind on two levels {version}", lambda v=version: levels(world, v)
        yield f"behind a deferrable key {version}", lambda v=version: deferrable(world, v)
        yield f"behind others {version}", lambda v=version: there(world, v)
    yield "behind a crash, ended", lambda: emptied_and_ended(world)
    yield "behind a crash, together", lambda: emptied_together(world)
    yield "behind a key with a comment", lambda: key_commented(world)
    yield "behind a key that is refused", lambda: key_refused(world)
    yield "behind a key that was changed", lambda: key_changed(world)
    for version in (OLD, NEW):
        yield f"behind ranges {version}", lambda v=version: ranges(world, v)
    yield "behind keys attached within", lambda: keys_within(world)
    yield "behind, list kept", lambda: list_kept(world)
    yield "behind, invalid", lambda: invalid(world)
