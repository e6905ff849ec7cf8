"""One table with what it needs (--with-dependencies): restored alone into an empty database it is the table of the whole database, in
all catalogs.

What is expected is what the original has for the table: its definition as pg_dump writes it, all that hangs on it, and its rows.
"""
import os
import random

from restore import regression
from restore.common import NEW, OLD, firn

# What there is to say of a relation, with what belongs to it; by kind, each a query over the relation's oid.
FACTS = {
    "relation": "SELECT c.relkind, c.relpersistence, c.relreplident, c.relrowsecurity, c.relforcerowsecurity, c.reloptions, c.relowner::regrole::text, "
                "(SELECT amname FROM pg_am WHERE oid = c.relam), c.relacl::text, obj_description(c.oid, 'pg_class'), c.reloftype::regtype::text "
                "FROM pg_class c WHERE c.oid = %(t)s",
    "columns": "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, a.attstorage, a.attacl::text, "
               "a.attislocal, a.attinhcount, pg_get_expr(d.adbin, d.adrelid), col_description(a.attrelid, a.attnum), a.attfdwoptions, "
               "(SELECT collname FROM pg_collation WHERE oid = a.attcollation), a.attstattarget "
               "FROM pg_attribute a LEFT JOIN pg_attrdef d ON (adrelid, adnum) = (attrelid, attnum) "
               "WHERE a.attrelid = %(t)s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attname",
    "parents": "SELECT i.inhparent::regclass::text, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = inhrelid WHERE c.oid = %(t)s "
               "ORDER BY i.inhseqno",
    "key": "SELECT pg_get_partkeydef(partrelid) FROM pg_partitioned_table WHERE partrelid = %(t)s",
    "indexes": "SELECT pg_get_indexdef(indexrelid), indisclustered, indisreplident, obj_description(indexrelid, 'pg_class'), "
               "(SELECT inhparent::regclass::text FROM pg_inherits WHERE inhrelid = indexrelid) FROM pg_index WHERE indrelid = %(t)s ORDER BY 1",
    "constraints": "SELECT conname, pg_get_constraintdef(oid), convalidated, conislocal, coninhcount, obj_description(oid, 'pg_constraint') "
                   "FROM pg_constraint WHERE conrelid = %(t)s AND contype <> 'f' AND contype <> 't' ORDER BY 1",
    "triggers": "SELECT pg_get_triggerdef(oid), tgenabled, obj_description(oid, 'pg_trigger') FROM pg_trigger WHERE tgrelid = %(t)s AND NOT tgisinternal ORDER BY 1",
    "rules": "SELECT pg_get_ruledef(oid), ev_enabled FROM pg_rewrite WHERE ev_class = %(t)s ORDER BY 1",
    "policies": "SELECT polname, polcmd, polpermissive, polroles::regrole[]::text, pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid) "
                "FROM pg_policy WHERE polrelid = %(t)s ORDER BY 1",
    "statistics": "SELECT pg_get_statisticsobjdef(oid) FROM pg_statistic_ext WHERE stxrelid = %(t)s ORDER BY 1",
    "sequences": "SELECT d.objid::regclass::text, d.deptype, s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache, s.seqcycle, pg_sequence_last_value(d.objid) "
                 "FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid "
                 "WHERE d.refobjid = %(t)s AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i') ORDER BY 1",
}
# Foreign keys whose other table came along, with all its partitions.
KEYS = ("SELECT conname, pg_get_constraintdef(oid), convalidated FROM pg_constraint WHERE conrelid = %(t)s AND contype = 'f' "
        "AND confrelid::regclass::text = ANY (%(there)s) "
        "AND NOT EXISTS (SELECT FROM pg_partition_tree(CASE conparentid WHEN 0 THEN confrelid ELSE pg_partition_root(confrelid) END) "
        "                WHERE relid::regclass::text <> ALL (%(there)s)) ORDER BY 1")


def relations(c):
    """All tables, views and sequences of nobody else, by name."""
    return dict(c.execute(
        "SELECT c.oid::regclass::text, (n.nspname, c.relname, c.relkind::text) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND n.nspname !~ '^pg_|^information_schema$' "
        "AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') ORDER BY 1").fetchall())


def facts(c, name, there):
    """What is to say of one."""
    oid = c.execute("SELECT %s::regclass::oid", (name,)).fetchone()[0]
    found = {kind: c.execute(query, {"t": oid}).fetchall() for kind, query in FACTS.items()}
    found["keys"] = c.execute(KEYS, {"t": oid, "there": list(there)}).fetchall()
    return found


def rows(c, name, kind):
    if kind in ("r", "p", "m"):
        # Tables that inherit from it are not needed by it; partitions are part of it.
        only = "ONLY " if kind == "r" else ""
        try:
            return c.execute(f"SELECT count(*), md5(string_agg(md5(t::text), '' ORDER BY md5(t::text))) FROM {only}{name} t").fetchone()
        except Exception as e:
            return str(e)
    return None


def expected(world, key, server, db):
    """By name: (schema, name, kind), and the number and sum of rows."""
    def look():
        with server.connect(db) as c:
            c.autocommit = True
            c.execute("SET search_path = ''")
            all_of = relations(c)
            return {name: (parts, rows(c, name, parts[2])) for name, parts in all_of.items()}
    return world.once(("alone", key), look)


def one(world, server, db, path, key, name, jobs):
    original = expected(world, key, server, db)
    (schema, table, kind), content = original[name]
    server.fresh("target")
    run = firn(server, "target", path, "-n", schema, "-t", table, "--with-dependencies", "-j", str(jobs), "--no-analyze").ok()
    with server.connect("target") as now, server.connect(db) as then:
        now.autocommit = then.autocommit = True
        for c in (now, then):
            c.execute("SET search_path = ''")
        there = set(relations(now))
        assert name in there, run.out
        for relation in sorted(there):
            a, b = facts(then, relation, there), facts(now, relation, there)
            for what in a:
                assert a[what] == b[what], f"{name} alone: {relation}: {what}:\n{a[what]}\n{b[what]}\n{run.out[-1500:]}"
        assert rows(now, name, kind) == content, f"{name}: {rows(now, name, kind)} instead of {content}"


def source(world, version):
    """The zoo in a server of either version, and its archive."""
    server = world.server(version)

    def make():
        server.roles("zoo_owner", "zoo_reader", "zoo_super SUPERUSER")
        db = server.fresh("zoo_alone")
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "zoo.sql"), encoding="utf-8") as f, server.connect(db) as c:
            c.execute(f.read())
        return db
    db = world.once(("alone zoo", version), make)
    return db, world.archive(f"alone-zoo-{version}", lambda p: server.archive(db, p, "c"))


def zoo(world, version, part, parts):
    """Every part-th table of the zoo."""
    server = world.server(version)
    db, path = source(world, version)
    for n, name in enumerate(sorted(expected(world, ("zoo", version), server, db))):
        if n % parts == part:
            one(world, server, db, path, ("zoo", version), name, n % 3 + 1)


def of_regression(world, version, few):
    """Tables of the regression database: some, or with FIRN_ALONE=all all."""
    source = regression.kept(version)
    server = regression.target(world, version, source)
    path = os.path.join(source, "second")

    def whole():
        server.fresh("alone")
        server.pg_restore("alone", path)
        return "alone"
    db = world.once(("alone regression", version), whole)
    original = expected(world, ("regression", version), server, db)
    names = sorted(original)
    if os.environ.get("FIRN_ALONE") != "all":
        names = random.Random(int(os.environ.get("FIRN_SEED") or random.SystemRandom().randrange(1 << 32))).sample(names, few)
        # And one whose parent's foreign key refers to the parent, of which the other partitions do not come along.
        names += {"public.part1_self_fk"} & set(original)
    wrong = []
    for n, name in enumerate(names):
        try:
            one(world, server, db, path, ("regression", version), name, n % 3 + 1)
        except AssertionError as e:
            wrong.append(f"{name}: {str(e)[:1500]}")
    assert not wrong, f"{len(wrong)} of {len(names)}:\n" + "\n".join(wrong[:10])


def left_out(world, version):
    """A foreign key to a table that does not come along is told; one to a table that does is there."""
    server = world.server(version)
    _, path = source(world, version)
    server.fresh("target")
    run = firn(server, "target", path, "-n", "a", "-t", "orders", "--with-dependencies").ok()
    assert "FK CONSTRAINT a.orders orders_person_fkey is left out" in run.out, run.out
    server.fresh("target")
    run = firn(server, "target", path, "-n", "a", "-t", "orders", "-t", "people", "--with-dependencies").ok()
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM pg_constraint WHERE conname = 'orders_person_fkey'").fetchone() == (1,), run.out


def cases(world):
    for version in (OLD, NEW):
        for part in range(3):
            yield f"alone zoo {version} {part + 1} of 3", lambda v=version, p=part: zoo(world, v, p, 3)
        yield f"alone foreign keys {version}", lambda v=version: left_out(world, v)
        yield f"alone regression database {version}", lambda v=version: of_regression(world, v, 8)
