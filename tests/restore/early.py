"""What a rule makes before the rows though pg_restore makes it after them: what it says of the rows must not differ.

Partitions of tables with very many of them get their indexes with themselves. With this server's few locks 350 are very many.
"""
import os
import shutil
import time

from harness import proxy as px
from harness.proxy import Proxy
from restore import shapes
from restore.common import OLD, Server, firn, same

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
            proxy.arm(px.matching(rb"COPY public\.zcust", px.call(lambda _: time.sleep(2))))
            run = firn(server, "target", path, *proxy.where("target"), "-j", str(jobs), where=False).ok()
        shutil.rmtree(folder, ignore_errors=True)
        assert found(server, "target", predicate) == [1, 1, 1, 1], (found(server, "target", predicate), run.out[-2000:])
        # Others of the same table come with the partitions still.
        assert "p_cust" in run.out or shapes.SETBACK not in run.out, run.out[-2000:]
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


def cases(world):
    yield "early classes", lambda: classes(world)
    for name in PREDICATES:
        yield f"early looking {name}", lambda n=name: looking(world, n)
