"""What a rule makes before the rows though pg_restore makes it after them: what it says of the rows must not differ.

Partitions of tables with very many of them get their indexes with themselves. With this server's few locks 350 are very many.
"""
import os
import random
import shutil
import time

from harness import proxy as px
from harness.proxy import Proxy
from restore import shapes, toc, twins
from restore.common import NEW, OLD, Server, firn, same

MANY = 350


def server_with_few_locks(world, version=OLD):
    def make():
        server = Server(version, conf=("max_locks_per_transaction=64",), name="early")
        world.servers[f"early {version}"] = server
        server.create()
        return server
    return world.once(("early server", version), make)


# Of each row whether the customer is active says another table: through a function, and what stands for one.
ACTIVE = """
CREATE TABLE zcust (id int, active bool); INSERT INTO zcust VALUES (1, true);
CREATE FUNCTION active(int) RETURNS bool IMMUTABLE RETURN EXISTS (SELECT FROM public.zcust z WHERE z.id = $1 AND z.active);
CREATE FUNCTION active(int, int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT public.active($1) AND $2 IS NOT NULL';
CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = active);
CREATE TYPE state AS ENUM ('on', 'off');
CREATE FUNCTION state_of(int) RETURNS state LANGUAGE sql IMMUTABLE AS 'SELECT CASE WHEN public.active($1) THEN ''on'' ELSE ''off'' END::public.state';
CREATE CAST (int AS state) WITH FUNCTION state_of(int);
CREATE DOMAIN customer AS int CHECK (VALUE < 0 OR active(VALUE) IS NOT NULL);
CREATE FUNCTION first(customer) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT public.active($1::int)';
"""
PREDICATES = {
    "function": "public.active(cust)",
    "operator": "cust OPERATOR(public.===) cust",
    "cast": "cust::public.state = 'on'::public.state",
    "domain": "public.first(cust::public.customer)",
}
SOURCE = """
CREATE TABLE p (id int NOT NULL, cust int, v int) PARTITION BY RANGE (id);
""" + shapes.ranges("p", MANY) + f"""
INSERT INTO p SELECT i, 1, i FROM generate_series(1, {MANY}) i;
CREATE INDEX p_cust ON p (cust);
CREATE INDEX p_v ON p (v) WHERE {{0}};
CREATE TABLE plain (cust int, v int); INSERT INTO plain SELECT 1, i FROM generate_series(1, 100) i;
CREATE INDEX plain_v ON plain (v) WHERE {{0}};
CREATE INDEX plain_e ON plain ((CASE WHEN {{0}} THEN v ELSE -1 END));
CREATE TABLE excluded (cust int, r int4range, EXCLUDE USING gist (r WITH &&) WHERE ({{0}}));
INSERT INTO excluded SELECT 1, int4range(i, i + 1) FROM generate_series(1, 100) i;
-- Rows that more waits for come first.
CREATE STATISTICS st ON cust, v FROM p;
"""
FOUND = ("SELECT count(*) FROM p WHERE v = 5 AND {0}", "SELECT count(*) FROM plain WHERE v = 5 AND {0}",
         "SELECT count(*) FROM plain WHERE CASE WHEN {0} THEN v ELSE -1 END = 5", "SELECT count(*) FROM excluded WHERE r && '[5,6)'::int4range AND {0}")


def found(server, db, predicate):
    with server.connect(db) as c:
        c.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        for query in FOUND:
            plan = str(c.execute("EXPLAIN " + query.format(predicate)).fetchall())
            assert "Index" in plan, plan
        return [c.execute(query.format(predicate)).fetchone()[0] for query in FOUND]


def looking(world, name):
    """Indexes whose entries are told by other tables' rows have all of them."""
    server = server_with_few_locks(world)
    predicate = PREDICATES[name]
    with server.connect(server.fresh("early_looking")) as c:
        c.execute(ACTIVE)
        c.execute(SOURCE.format(predicate))
    path, dump = world.archive(f"early-{name}", lambda p: server.archive("early_looking", p, "c")), server.dump("early_looking")
    assert found(server, "early_looking", predicate) == [1, 1, 1, 1]
    for jobs in (1, 4):
        server.fresh("target")
        folder = os.path.join(server.root, "early-proxy")
        with Proxy(folder, server.root) as proxy:
            # The others do meanwhile what does not wait for it.
            proxy.arm(px.matching(rb"COPY public\.zcust", px.call(lambda _: time.sleep(2))), keep=True)
            run = firn(server, "target", path, *proxy.where("target"), "-j", str(jobs), where=False).ok()
            staged = [sql for _, _, sql in proxy.trace if b"PARTITION OF firn_restore.stage_0 " in sql and b"public.part_1 " in sql]
        shutil.rmtree(folder, ignore_errors=True)
        assert found(server, "target", predicate) == [1, 1, 1, 1], (found(server, "target", predicate), run.out[-2000:])
        # Others of the same table come with the partitions still.
        assert staged and all(b" USING btree (cust);" in sql and b" USING btree (v)" not in sql for sql in staged), staged
        same(dump, server.dump("target"))


# Pairs that are told apart by a setting in a table: a key of them, of what has them in it, and an exclusion by such a class.
CLASSES = """
CREATE TABLE zsettings (factor int); INSERT INTO zsettings VALUES (1);
CREATE TYPE pair AS (a int, b int);
CREATE FUNCTION cmp(pair, pair) RETURNS int IMMUTABLE RETURN (SELECT sign(factor * ($1.a - $2.a)) FROM public.zsettings);
""" + "".join(f"CREATE FUNCTION pair_{name}(pair, pair) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT COALESCE(public.cmp($1, $2), 0) {op} 0';"
              f"CREATE OPERATOR {op} (LEFTARG = pair, RIGHTARG = pair, FUNCTION = pair_{name});"
              for name, op in (("lt", "<"), ("le", "<="), ("eq", "="), ("ge", ">="), ("gt", ">"))) + """
CREATE FUNCTION pair_cmp(pair, pair) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT COALESCE(public.cmp($1, $2), 0)';
CREATE OPERATOR CLASS pair_ops DEFAULT FOR TYPE pair USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,
    FUNCTION 1 pair_cmp(pair, pair);
CREATE TYPE more AS (p pair, t text);
CREATE TABLE keyed (p pair PRIMARY KEY, v int); INSERT INTO keyed SELECT (i, i)::pair, i FROM generate_series(1, 50) i;
CREATE TABLE deep (m more UNIQUE, v int); INSERT INTO deep SELECT ((i, i)::pair, 'x')::more, i FROM generate_series(1, 50) i;
CREATE TABLE parted (id int NOT NULL, p pair, v int, UNIQUE (id, p)) PARTITION BY RANGE (id);
""" + shapes.ranges("parted", MANY) + """
CREATE INDEX ON parted (v); INSERT INTO parted SELECT 1, (i, i)::pair, i FROM generate_series(1, 50) i;
CREATE STATISTICS st ON id, v FROM parted;
"""


def classes(world):
    """Keys that are compared by functions that look at other tables come when these have their rows."""
    server = server_with_few_locks(world)
    with server.connect(server.fresh("early_classes")) as c:
        c.execute(CLASSES)
    path, dump = world.archive("early-classes", lambda p: server.archive("early_classes", p, "c")), server.dump("early_classes")
    for jobs in (1, 4):
        server.fresh("target")
        folder = os.path.join(server.root, "early-proxy")
        with Proxy(folder, server.root) as proxy:
            proxy.arm(px.matching(rb"COPY public\.zsettings", px.call(lambda _: time.sleep(2))))
            run = firn(server, "target", path, *proxy.where("target"), "-j", str(jobs), where=False).ok()
        shutil.rmtree(folder, ignore_errors=True)
        assert "failed" not in run.out, run.out[-2000:]
        same(dump, server.dump("target"))
        with server.connect("target") as c:
            c.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
            for table, key in (("keyed", "p = (7, 7)::pair"), ("deep", "m = ((7, 7)::pair, 'x')::more"), ("parted", "id = 1 AND p = (7, 7)::pair")):
                assert c.execute(f"SELECT v FROM {table} WHERE {key}").fetchall() == [(7,)], table


# Bounds that follow each other in the source's order. In the target's "à1" stands between "a099" and "a100".
OVERLAPS = """
CREATE TABLE p (k text NOT NULL, v int) PARTITION BY RANGE (k);
DO $$ BEGIN FOR i IN 0..319 LOOP EXECUTE format('CREATE TABLE p_%s PARTITION OF p FOR VALUES FROM (%L) TO (%L)', i,
    'a' || lpad(i::text, 3, '0'), 'a' || lpad((i + 1)::text, 3, '0')); END LOOP; END $$;
INSERT INTO p SELECT 'a' || lpad(i::text, 3, '0'), i FROM generate_series(0, 319) i;
"""
# Attached by its own statement, before its rows, of which there are so many that this comes early.
NO_MEMBER = """
CREATE TABLE p_odd (v int, k text NOT NULL); ALTER TABLE p ATTACH PARTITION p_odd FOR VALUES FROM ('à1') TO ('à2');
INSERT INTO p_odd SELECT i, 'à1' || repeat('x', 1000) || i FROM generate_series(1, 8000) i;
"""
# A group whose rewrite fails, as an index has another name than the server gives it and that one is taken.
FALLEN = """
CREATE INDEX p_v ON p (v); CREATE INDEX p_k ON p (k);
DO $$ BEGIN FOR i IN 100..139 LOOP EXECUTE format('CREATE TABLE a_%s PARTITION OF p FOR VALUES FROM (%L) TO (%L)', i,
    'à' || lpad(i::text, 3, '0'), 'à' || lpad((i + 1)::text, 3, '0')); END LOOP; END $$;
ALTER INDEX a_103_v_idx RENAME TO odd_name;
"""
BOUNDS = "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'p'::regclass"
# Neighbours in the order of the lower bounds, of which one ends behind where the next begins.
OVERLAPPING = """
WITH b AS (SELECT c.relname, m[1] COLLATE "default" AS lower, m[2] COLLATE "default" AS upper FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid,
    regexp_match(pg_get_expr(c.relpartbound, c.oid), '\\(''([^'']*)''\\) TO \\(''([^'']*)') m WHERE i.inhparent = 'p'::regclass)
SELECT * FROM (SELECT relname, lower, upper, lead(lower) OVER (ORDER BY lower) AS next FROM b) n WHERE next < upper
"""


def overlapping(world, name, more, before):
    """Partitions that overlap in the target are refused there, whatever has attached the one and the other."""
    server = server_with_few_locks(world)
    with server.connect() as c:
        c.execute("DROP DATABASE IF EXISTS early_bounds")
        c.execute("CREATE DATABASE early_bounds TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'")
    with server.connect("early_bounds") as c:
        c.execute(OVERLAPS + more)
        assert not c.execute(OVERLAPPING).fetchall()
    path = world.archive(f"early-bounds-{name}", lambda p: server.archive("early_bounds", p, "c", "0"))

    def fresh(db):
        with server.connect() as c:
            c.execute(f"DROP DATABASE IF EXISTS {db} WITH (FORCE)")
            c.execute(f"CREATE DATABASE {db} TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LC_COLLATE 'C' LC_CTYPE 'C'")
        with server.connect(db) as c:
            c.execute(before)
    fresh("oracle")
    assert b"would overlap partition" in server.pg_restore("oracle", path, check=False).stderr
    for jobs in (1, 2):
        fresh("target")
        run = firn(server, "target", path, "-j", str(jobs), "--on-error=continue").fails("would overlap partition")
        assert "bound_" not in run.out.split("would overlap partition")[-1][:40], run.out[-2000:]
        with server.connect("target") as c:
            assert not c.execute(OVERLAPPING).fetchall(), (c.execute(OVERLAPPING).fetchall(), run.out[-2000:])
        with server.connect("oracle") as a, server.connect("target") as b:
            # As many as can be, which may be others than those that pg_restore has.
            few, many = len(a.execute(BOUNDS).fetchall()), len(b.execute(BOUNDS).fetchall())
            assert few <= many, (few, many)


# Unique keys, made with the partitions.
KEYED = """
CREATE TABLE p (id int NOT NULL, v text NOT NULL, w text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
""" + shapes.ranges("p", MANY) + f"""
CREATE UNIQUE INDEX p_v ON p (id, v); CREATE INDEX p_w ON p (w);
INSERT INTO p SELECT i, 'value ' || i, 'w' FROM generate_series(1, {MANY}) i;
CREATE TABLE after (id int PRIMARY KEY); INSERT INTO after SELECT 1;
CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER seen BEFORE UPDATE ON after FOR EACH ROW EXECUTE FUNCTION seen();
-- What is of a key goes with it, and comes with it.
COMMENT ON INDEX part_7_pkey IS 'of an index'; COMMENT ON CONSTRAINT part_107_pkey ON part_107 IS 'of a key';
COMMENT ON CONSTRAINT part_7_pkey ON part_7 IS 'of both'; COMMENT ON CONSTRAINT p_pkey ON p IS 'of all'; COMMENT ON INDEX part_8_pkey IS 'of another';
CREATE VIEW grouped AS SELECT id, v FROM part_107 GROUP BY id; CREATE VIEW above AS SELECT v FROM grouped;
"""
# As an index that was damaged in the source lets them in: the same row, and another of the same key. Two keys fail, and one.
TWICE = {7: "value 7", 107: "other"}
REMOVE = "DELETE FROM {0} WHERE ctid IN (SELECT max(ctid) FROM {0} GROUP BY id HAVING count(*) > 1)"


def damaged(world, version, extra, source=KEYED):
    """(its server, an archive with rows that unique keys refuse, a dump of what it was made of, which stays there)"""
    server = server_with_few_locks(world, version)

    def make():
        with server.connect(server.fresh("early_keys")) as c:
            c.execute(source)
        path = os.path.join(world.folder, f"early-keys-{version}-{'-'.join(extra)}-{len(source)}")
        server.archive("early_keys", path, "d", "0", extra=extra)
        for name in os.listdir(path):
            with open(os.path.join(path, name), "rb") as f:
                text = f.read()
            for number, value in TWICE.items():
                line = f"{number}\tvalue {number}\tw\n".encode()
                if name.endswith(".dat") and line in text:
                    with open(os.path.join(path, name), "wb") as f:
                        f.write(text.replace(line, line + f"{number}\t{value}\tw\n".encode()))
        return path, server.dump("early_keys")
    return server, *world.once(("early keys", version, extra, source), make)


def refused(world, version, extra):
    """Rows that a key refuses stay, and the key is what fails, as with pg_restore, in all catalogs; --resume makes it."""
    server, path, dump = damaged(world, version, extra)
    server.fresh("oracle")
    assert server.pg_restore("oracle", path, check=False).returncode == 1
    expected = twins.catalogs(server, "oracle")
    rows = "SELECT id, v FROM p ORDER BY 1, 2"
    for jobs, how in ((1, ["--on-error=continue"]), (4, ["--on-error=continue"]), (3, [])):
        server.fresh("target")
        run = firn(server, "target", path, "-j", str(jobs), *how).fails("_pkey")
        for key in ("part_7_pkey", "part_7_id_v_idx", "part_107_pkey") if how else ():
            assert f'violates unique constraint "{key}"' in run.out, run.out[-3000:]
        if how:
            server.fresh("copied", template="target")
            with server.connect("copied") as c, server.connect("oracle") as o:
                c.execute("DROP SCHEMA firn_restore CASCADE")
                assert c.execute(rows).fetchall() == o.execute(rows).fetchall()
            twins.compare(expected, twins.catalogs(server, "copied"), f"{version} {jobs} {how}", run)
        # Not as long as they are there.
        firn(server, "target", path, "-j", str(jobs), *how, "--resume").fails("_pkey")
        for _ in range(1 if how else 3):
            with server.connect("target") as c:
                for number in TWICE:
                    c.execute(REMOVE.format(f"part_{number}"))
            again = firn(server, "target", path, "-j", str(jobs), *how, "--resume", "--no-count")
            if again.code == 0:
                break
        again.ok()
        same(dump, server.dump("target"), f"{version} {jobs} {how}")
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid").fetchone() == (0,)


def refused_and_cut(world):
    """The connection is lost before or after messages of the transactions in which an index is taken away and rows
    are copied without it: after --resume all is as if nothing had been."""
    server, path, _ = damaged(world, OLD, ())
    server.fresh("oracle")
    server.pg_restore("oracle", path, check=False)
    expected = twins.catalogs(server, "oracle")
    rows = "SELECT id, v FROM p ORDER BY 1, 2"
    how = ["-j", "1", "--on-error=continue"]
    folder = os.path.join(server.root, "early-cut")
    with Proxy(folder, server.root) as proxy:
        server.fresh("target")
        proxy.arm(None, keep=True)
        firn(server, "target", path, *proxy.where("target"), *how, where=False).fails("_pkey")
        # From the first that names the index by itself to the ones behind the copy that follows.
        names = [n for n, _, sql in proxy.trace if b"part_7_pkey" in sql and b"CREATE" not in sql]
        numbers = [n for n, _, _ in proxy.trace if names and names[0] <= n <= names[0] + 16]
        assert len(numbers) > 3, [(n, sql[:80]) for n, _, sql in proxy.trace if b"part_7" in sql]
        said = {n: " ".join(sql.decode(errors="replace").split())[:90] for n, _, sql in proxy.trace}
        # FIRN_FAULT_STEPS=all: each of them.
        seed = int(os.environ.get("FIRN_FAULT_SEED") or random.SystemRandom().randrange(1 << 32))
        drawn = numbers if os.environ.get("FIRN_FAULT_STEPS") == "all" else random.Random(seed).sample(numbers, 3)
        print(f"     seed {seed}: " + "; ".join(f"{n} {said[n]}" for n in drawn), flush=True)
        for number in drawn:
            for action in (px.cut_before, px.cut_after):
                server.fresh("target")
                proxy.arm(px.at(number, action))
                runs = [firn(server, "target", path, *proxy.where("target"), *how, where=False)]
                proxy.arm(None)
                while len(runs) < 4 and "_pkey" not in runs[-1].out:
                    runs.append(firn(server, "target", path, *how, "--resume"))
                what = f"{number} {action.__name__} {[r.code for r in runs]} {runs[-1].out[-1500:]}"
                assert runs[-1].code == 1, what
                # Once more: nothing else is left to do.
                firn(server, "target", path, *how, "--resume").fails("_pkey")
                with server.connect("target") as c, server.connect("oracle") as o:
                    c.execute("DROP SCHEMA firn_restore CASCADE")
                    assert c.execute(rows).fetchall() == o.execute(rows).fetchall(), what
                twins.compare(expected, twins.catalogs(server, "target"), what, runs[-1])
    shutil.rmtree(folder, ignore_errors=True)


TEMPORAL = """
CREATE TABLE p (id int4range NOT NULL, d daterange, CONSTRAINT pk PRIMARY KEY (id, d WITHOUT OVERLAPS)) PARTITION BY RANGE (id);
DO $$ BEGIN FOR i IN 1..%d LOOP EXECUTE format('CREATE TABLE part_%%s PARTITION OF p FOR VALUES FROM (int4range(%%s, %%s)) TO (int4range(%%s, %%s))', i, i, i + 1, i + 1, i + 2); END LOOP; END $$;
INSERT INTO p SELECT int4range(i, i + 1), '[2000-01-01,2001-01-01)' FROM generate_series(1, %d) i;
""" % (MANY, MANY)


def overlaps_refused(world):
    """Of keys WITHOUT OVERLAPS, too."""
    server = server_with_few_locks(world, NEW)
    with server.connect(server.fresh("early_temporal")) as c:
        c.execute(TEMPORAL)
    path = os.path.join(world.folder, "early-temporal")
    server.archive("early_temporal", path, "d", "0")
    row = b"[7,8)\t[2000-01-01,2001-01-01)\n"
    for name in os.listdir(path):
        with open(os.path.join(path, name), "rb") as f:
            text = f.read()
        if name.endswith(".dat") and row in text:
            with open(os.path.join(path, name), "wb") as f:
                f.write(text.replace(row, row + row))
    server.fresh("oracle")
    assert server.pg_restore("oracle", path, check=False).returncode == 1
    server.fresh("target")
    run = firn(server, "target", path, "-j", "2", "--on-error=continue").fails("part_7_pkey")
    server.fresh("copied", template="target")
    with server.connect("copied") as c:
        c.execute("DROP SCHEMA firn_restore CASCADE")
        assert c.execute("SELECT count(*) FROM p").fetchone() == (MANY + 1,)
    twins.compare(twins.catalogs(server, "oracle"), twins.catalogs(server, "copied"), "temporal", run)
    with server.connect("target") as c:
        c.execute(REMOVE.format("part_7"))
    firn(server, "target", path, "-j", "2", "--on-error=continue", "--resume", "--no-count").ok()
    assert server.dump("target") == server.dump("early_temporal")


# Keeps one partition from being attached, and another's index from being made, by whatever statement.
DETACHED = """
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    IF current_query() ~ 'public.part_7 PARTITION OF|ATTACH PARTITION public.part_7 |public.part_9 PARTITION OF|CONSTRAINT part_9_pkey|part_11 PARTITION OF|INDEX part_11_id_v_idx' THEN RAISE EXCEPTION 'not this one'; END IF; END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse();
"""


def refused_in_pieces(world):
    """A partition whose step was done entry by entry, and which could not be attached, gets the rows that its key refuses as well."""
    server, path, dump = damaged(world, OLD, ())
    server.fresh("target")
    with server.connect("target") as c:
        c.execute(DETACHED)
    how = ["-j", "2", "--on-error=continue"]
    firn(server, "target", path, *how).fails("not this one", "part_7_pkey", "part_107_pkey")
    with server.connect("target") as c:
        c.execute("DROP EVENT TRIGGER refuse; DROP FUNCTION refuse()")
        for number in TWICE:
            assert c.execute(f"SELECT count(*) FROM part_{number}").fetchone() == (2,), number
            c.execute(REMOVE.format(f"part_{number}"))
    # What could not be made is made now, and no other in its place.
    firn(server, "target", path, *how, "--resume", "--no-count").ok()
    same(dump, server.dump("target"))


def refused_without_a_name(world, version, by_catalogs):
    """A row that an index refuses with an error that does not name it: which one it is shows when they are made again behind the rows."""
    server, source, _ = damaged(world, version, ())
    path = os.path.join(world.folder, f"early-large-{version}")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(source, path)
    value = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=20000))
    for name in os.listdir(path):
        with open(os.path.join(path, name), "rb") as f:
            text = f.read()
        if name.endswith(".dat") and b"108\tvalue 108\tw\n" in text:
            with open(os.path.join(path, name), "wb") as f:
                f.write(text.replace(b"value 108", value.encode()))
    server.fresh("oracle")
    assert b"maximum size is 8191" in server.pg_restore("oracle", path, check=False).stderr
    how = ["-j", "2", "--on-error=continue", *([] if by_catalogs else ["--disable-rule=staged-partitions"])]
    server.fresh("target")
    run = firn(server, "target", path, *how).fails("maximum size is 8191", "part_108_id_v_idx")
    assert "part_108_pkey" not in run.out, run.out[-3000:]
    rows = "SELECT md5(string_agg(p::text, '' ORDER BY p::text)), count(*) FROM p"
    if by_catalogs:
        server.fresh("copied", template="target")
        with server.connect("copied") as c, server.connect("oracle") as o:
            c.execute("DROP SCHEMA firn_restore CASCADE")
            assert c.execute(rows).fetchone() == o.execute(rows).fetchone()
        twins.compare(twins.catalogs(server, "oracle"), twins.catalogs(server, "copied"), f"large {version}", run)
    firn(server, "target", path, *how, "--resume").fails("maximum size is 8191")
    with server.connect("target") as c:
        c.execute("UPDATE part_108 SET v = 'value 108'")
        for number in TWICE:
            c.execute(REMOVE.format(f"part_{number}"))
    firn(server, "target", path, *how, "--resume", "--no-count").ok()
    with server.connect("target") as c, server.connect("early_keys") as o:
        assert c.execute(rows).fetchone() == o.execute(rows).fetchone()
        assert c.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid").fetchone() == (0,)


def refused_to_others(world, version, extra):
    """Who may not update catalogs gets the rows as well: in a partition that is detached until --resume makes its key."""
    server, path, _ = damaged(world, version, extra)
    server.roles("early_owner LOGIN")
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("ALTER DATABASE target OWNER TO early_owner; ALTER SCHEMA public OWNER TO early_owner")
    flags = ["--role=early_owner", "-O", "-x", "-j", "2", "--on-error=continue"]
    run = firn(server, "target", path, *flags).fails("part_7_pkey", "part_107_pkey", "detached")
    with server.connect("target") as c:
        for number in TWICE:
            rows = c.execute(f"SELECT count(*) FROM part_{number}").fetchone()
            assert rows == (2,), (number, rows, run.out[-3000:])
        found = c.execute("SELECT count(*) FROM p").fetchone()
        assert found == (MANY - 2,), (found, run.out)
    firn(server, "target", path, *flags, "--resume").fails("part_7_pkey")
    with server.connect("target") as c:
        for number in TWICE:
            c.execute(REMOVE.format(f"part_{number}"))
    firn(server, "target", path, *flags, "--resume", "--no-count").ok()
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM p").fetchone() == (MANY,)
        c.execute("ALTER SCHEMA public OWNER TO pg_database_owner")
    same(server.dump("early_keys", "-O", "-x"), server.dump("target", "-O", "-x"))


# What is generated is stored, by what another table holds then. The second has the most rows, which would come first.
GENERATED = """
CREATE TABLE a_rates (k int, f int); INSERT INTO a_rates VALUES (1, 7);
CREATE FUNCTION rate(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN COALESCE((SELECT f FROM public.a_rates WHERE k = $1), -1); END';
CREATE TABLE b_made (k int, v int GENERATED ALWAYS AS (rate(k)) STORED, t text); INSERT INTO b_made (k, t) SELECT 1, repeat('x', 1000) FROM generate_series(1, 2000);
CREATE TABLE e_above (k int, v int GENERATED ALWAYS AS (rate(k)) STORED);
CREATE TABLE c_parts (k int, v int GENERATED ALWAYS AS (rate(k)) STORED) PARTITION BY RANGE (k);
""" + shapes.ranges("c_parts", 20, "c_part") + """
INSERT INTO c_parts (k) SELECT i FROM generate_series(1, 20) i;
CREATE FUNCTION sums(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT sum(v) + $1 FROM public.c_parts); END';
CREATE TABLE d_sums (k int, v int GENERATED ALWAYS AS (sums(k)) STORED); INSERT INTO d_sums (k) VALUES (1);
CREATE TYPE coin AS (a int); CREATE FUNCTION told(coin) RETURNS text IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT ''rate '' || f FROM public.a_rates WHERE k = ($1).a); END';
CREATE CAST (coin AS text) WITH FUNCTION told(coin) AS IMPLICIT;
CREATE TABLE b_cast (c coin, v text GENERATED ALWAYS AS (c) STORED, t text); INSERT INTO b_cast (c, t) SELECT row(1)::coin, repeat('x', 1000) FROM generate_series(1, 2000);
CREATE TABLE e_plain (k int, v int GENERATED ALWAYS AS (k + 1) STORED); INSERT INTO e_plain (k) VALUES (1);
-- Of what is inherited the archive says nothing with the table that inherits it.
CREATE TABLE b_kid (t text) INHERITS (e_above); INSERT INTO b_kid (k, t) SELECT 1, repeat('x', 1000) FROM generate_series(1, 4000);
CREATE TABLE b_deep (u text) INHERITS (b_kid); INSERT INTO b_deep (k, t) SELECT 1, repeat('x', 1000) FROM generate_series(1, 4000);
CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER far FOREIGN DATA WRAPPER nothing;
CREATE FOREIGN TABLE e_far (k int, v int GENERATED ALWAYS AS (rate(k)) STORED) SERVER far;
CREATE TABLE b_near (t text) INHERITS (e_far); INSERT INTO b_near (k, t) SELECT 1, repeat('x', 1000) FROM generate_series(1, 4000);
"""
# What stands behind is not there yet, in the archive's order.
BEHIND = """
CREATE TABLE z_rates (k int, f int); INSERT INTO z_rates SELECT 1, 7; INSERT INTO z_rates SELECT 2, i FROM generate_series(1, 20000) i;
CREATE FUNCTION behind(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN COALESCE((SELECT f FROM public.z_rates WHERE k = $1), -1); END';
CREATE TABLE f_behind (k int, v int GENERATED ALWAYS AS (behind(k)) STORED); INSERT INTO f_behind (k) VALUES (1);
"""


def generated(world):
    """What a generated column reads from another table it has read, whatever the number of connections."""
    server = world.server()
    with server.connect(server.fresh("early_generated")) as c:
        c.execute(GENERATED + BEHIND)
    path = world.archive("early-generated", lambda p: server.archive("early_generated", p, "c", "0"))
    server.fresh("oracle")
    server.pg_restore("oracle", path)
    stored = ("SELECT v, count(*) FROM (SELECT v::text FROM b_made UNION ALL SELECT v::text FROM c_parts UNION ALL SELECT v::text FROM d_sums "
              "UNION ALL SELECT v::text FROM e_plain UNION ALL SELECT v FROM b_cast UNION ALL SELECT 'kid ' || v FROM e_above "
              "UNION ALL SELECT 'near ' || v FROM b_near) s GROUP BY 1")

    def values(db):
        with server.connect(db) as c:
            return sorted(c.execute(stored).fetchall(), key=str)
    assert values("oracle") == values("early_generated")
    for jobs in (1, 4):
        server.fresh("target")
        folder = os.path.join(server.root, "early-proxy")
        with Proxy(folder, server.root) as proxy:
            proxy.arm(px.matching(rb"COPY public\.a_rates", px.call(lambda _: time.sleep(2))))
            firn(server, "target", path, *proxy.where("target"), "-j", str(jobs), where=False).ok()
        shutil.rmtree(folder, ignore_errors=True)
        assert values("target") == values("oracle"), (jobs, values("target"), values("oracle"))
        with server.connect("target") as c, server.connect("oracle") as o:
            late = "SELECT v FROM f_behind"
            assert o.execute(late).fetchone() == (-1,)
            # On several connections it is there by chance, as with pg_restore.
            assert jobs > 1 or c.execute(late).fetchone() == (-1,)


def generated_there(world, version):
    """So it is in tables that are there before, of which an archive of rows alone says nothing, or those of which the archive has the definition."""
    server = world.server(version)
    with server.connect(server.fresh("early_there")) as c:
        c.execute(GENERATED + """
            CREATE FUNCTION plain(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 * 2; END';
            CREATE TABLE g_plain (k int, v int GENERATED ALWAYS AS (plain(k)) STORED); INSERT INTO g_plain (k) VALUES (1)""")
    whole = world.archive(f"early-there-{version}", lambda p: server.archive("early_there", p, "c", "0"))
    rows = world.archive(f"early-there-rows-{version}", lambda p: server.archive("early_there", p, "c", "0", extra=["-a"]))
    stored = " UNION ALL ".join(f"SELECT {name!r}, v::text, count(*) FROM {name} GROUP BY 2" for name in
                                ("b_made", "c_parts", "d_sums", "e_plain", "b_cast", "b_kid", "b_deep", "b_near", "g_plain"))

    def values(db):
        with server.connect(db) as c:
            return sorted(c.execute(stored).fetchall())

    def schema(db):
        server.fresh(db)
        server.pg_restore(db, whole, "-s")
    schema("oracle")
    server.pg_restore("oracle", rows)
    assert values("oracle") == values("early_there")
    folder = os.path.join(server.root, "early-proxy")
    for archive, jobs in ((whole, 1), (whole, 4), (rows, 1), (rows, 4)):
        schema("target")
        with Proxy(folder, server.root) as proxy:
            proxy.arm(px.matching(rb"COPY public\.a_rates", px.call(lambda _: time.sleep(2))))
            firn(server, "target", archive, *proxy.where("target"), "-a", "-j", str(jobs), where=False).ok()
        shutil.rmtree(folder, ignore_errors=True)
        assert values("target") == values("oracle"), (archive, jobs, values("target"), values("oracle"))


# Names without a schema are found by that of the entry, until 10.2; names that get too long in the target's encoding are cut there.
NAMED = """
CREATE TABLE a_rates (k int, f int); INSERT INTO a_rates VALUES (1, 7);
CREATE FUNCTION rate(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN COALESCE((SELECT f FROM public.a_rates WHERE k = $1), -1); END';
CREATE FUNCTION made(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN {}($1); END';
CREATE TABLE "b{}" (k int, v int GENERATED ALWAYS AS (made(k)) STORED, t text); INSERT INTO "b{}" (k, t) SELECT 1, repeat('x', 1000) FROM generate_series(1, 2000);
"""


def generated_named(world, way):
    """What a table that is there generates is known by whatever name the archive has for the table, and for what it calls."""
    server = world.server()
    with server.connect() as c:
        c.execute("DROP DATABASE IF EXISTS early_named")
        c.execute("CREATE DATABASE early_named TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    name = "é" * 40 if way == "cut" else ""
    with server.connect("early_named") as c:
        c.execute(NAMED.format("rate" if way == "plain" else "public.rate", name, name))
    whole = world.archive(f"early-named-{way}", lambda p: server.archive("early_named", p, "c", "0"))
    rows = world.archive(f"early-named-rows-{way}", lambda p: server.archive("early_named", p, "d", "0", extra=["-a"]))
    if way == "plain":
        rows = toc.changed(rows, rows + "-plain", lambda entries: [e for e in entries if e["desc"] != b"SEARCHPATH"])

    def values(db):
        with server.connect(db) as c:
            table = c.execute("SELECT oid::regclass FROM pg_class WHERE relname LIKE 'b%' AND relnamespace = 'public'::regnamespace").fetchone()[0]
            return c.execute(f"SELECT v, count(*) FROM {table} GROUP BY 1").fetchall()

    def schema(db):
        server.fresh(db)
        server.pg_restore(db, whole, "-s")
    schema("oracle")
    server.pg_restore("oracle", rows)
    assert values("oracle") == [(7, 2000)]
    folder = os.path.join(server.root, "early-proxy")
    for jobs in ("1", "4"):
        schema("target")
        with Proxy(folder, server.root) as proxy:
            proxy.arm(px.matching(rb"COPY (public\.)?a_rates", px.call(lambda _: time.sleep(2))))
            firn(server, "target", rows, *proxy.where("target"), "-a", "-j", jobs, where=False).ok()
        shutil.rmtree(folder, ignore_errors=True)
        assert values("target") == values("oracle"), (way, jobs, values("target"))


# No function of these reads a table: an enum, a domain without functions of the archive, and a function that is seen to read none.
QUIET = """
CREATE TYPE state AS ENUM ('on', 'off'); CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE DOMAIN word AS text;
CREATE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 2';
CREATE FUNCTION reads(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT max(i) FROM public.a_large); END';
CREATE TABLE a_large (i int, t text); INSERT INTO a_large SELECT i, repeat('x', 1000) FROM generate_series(1, 4000) i;
CREATE TABLE p (id int NOT NULL, s state, d positive, w word, v int) PARTITION BY RANGE (id);
""" + shapes.ranges("p", MANY) + f"""
INSERT INTO p SELECT i, 'on', i, 'w', i FROM generate_series(1, {MANY}) i;
CREATE INDEX p_state ON p (v) WHERE s = 'on'; CREATE INDEX p_domain ON p (d) WHERE v::positive > 0; CREATE INDEX p_twice ON p (w) WHERE twice(v) > 0;
CREATE TABLE b_lower (n text, l text GENERATED ALWAYS AS (lower(n)) STORED, d int DEFAULT reads(1), w word, CHECK (reads(d) > 0));
CREATE TABLE b_twice (n int, l int GENERATED ALWAYS AS (twice(n)) STORED); CREATE TABLE b_state (n text, s state, l boolean GENERATED ALWAYS AS (s = 'on') STORED);
INSERT INTO b_lower (n) VALUES ('X'); INSERT INTO b_twice (n) VALUES (1); INSERT INTO b_state (n, s) VALUES ('x', 'on');
CREATE TABLE b_reads (n int, l int GENERATED ALWAYS AS (reads(n)) STORED); INSERT INTO b_reads (n) VALUES (1);
"""


def quiet(world):
    """What runs no function that reads tables comes early, and waits for no rows."""
    server = server_with_few_locks(world)
    with server.connect(server.fresh("early_quiet")) as c:
        c.execute(QUIET)
    path, dump = world.archive("early-quiet", lambda p: server.archive("early_quiet", p, "c", "0")), server.dump("early_quiet")
    server.fresh("target")
    folder, order = os.path.join(server.root, "early-proxy"), []
    with Proxy(folder, server.root) as proxy:
        def held(_):
            # Until one of those that wait for no rows is there. Some may be in one transaction with what is held.
            end = time.time() + 20
            while time.time() < end and not tables():
                time.sleep(0.05)
            order.append(tables())

        def tables():
            return {name for name in (b"b_lower", b"b_twice", b"b_state", b"b_reads") if any(b"COPY public." + name in sql for _, _, sql in proxy.trace)}
        proxy.arm(px.matching(rb"COPY public\.a_large", px.call(held)), keep=True)
        firn(server, "target", path, *proxy.where("target"), "-j", "4", where=False).ok()
        alone = [sql for _, _, sql in proxy.trace if b"ATTACH PARTITION public.part_" in sql and b"ALTER INDEX" in sql]
    shutil.rmtree(folder, ignore_errors=True)
    assert order and order[0] and b"b_reads" not in order[0], order
    # No index is attached by a statement of its own.
    assert not alone, (len(alone), alone[:1])
    same(dump, server.dump("target"))


def cases(world):
    yield "early generated", lambda: generated(world)
    for way in ("plain", "cut"):
        yield f"early generated there, {way}", lambda w=way: generated_named(world, w)
    yield "early quiet", lambda: quiet(world)
    for version in (OLD, NEW):
        yield f"early generated there {version}", lambda v=version: generated_there(world, v)
        for extra in ((), ("--load-via-partition-root",)):
            yield f"early keys refused {version} {' '.join(extra)}", lambda v=version, e=extra: refused(world, v, e)
            yield f"early keys refused to others {version} {' '.join(extra)}", lambda v=version, e=extra: refused_to_others(world, v, e)
        for catalogs in (True, False):
            how = "" if catalogs else "detached"
            yield f"early keys refused, large {version} {how}", lambda v=version, c=catalogs: refused_without_a_name(world, v, c)
    yield "early keys refused in pieces", lambda: refused_in_pieces(world)
    yield "early keys refused and cut", lambda: refused_and_cut(world)
    yield "early overlaps refused", lambda: overlaps_refused(world)
    yield "early classes", lambda: classes(world)
    yield "early bounds, no member", lambda: overlapping(world, "no-member", NO_MEMBER, "")
    yield "early bounds, fallen back", lambda: overlapping(world, "fallen", FALLEN, "CREATE TABLE a_103_v_idx (a int)")
    for name in PREDICATES:
        yield f"early looking {name}", lambda n=name: looking(world, n)
