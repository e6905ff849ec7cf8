"""Random trees of partitions whose tables have foreign keys, UNIQUE and CHECK constraints and constraint triggers of few names, and tables that inherit: restored undisturbed, and after one or
some of their statements have failed, they are as in the source. A tenth of the databases are ones whose order of statements not even pg_restore gets right: these must be refused, not
be taken for complete. FIRN_TREES databases for each version (3), drawn by FIRN_SEED."""
import os
import random
import re
import shutil
from collections import Counter

import psycopg

from harness import proxy as px
from harness.proxy import Proxy
from restore.common import NEW, OLD, firn

FEW = 3
# Names of what comes of a key are the server's; no dump has them, nor what is said of it.
CONSTRAINTS = """SELECT c.conrelid::regclass::text, CASE WHEN c.conparentid = 0 THEN c.conname END, p.conrelid::regclass::text, c.contype::text, pg_get_constraintdef(c.oid), c.condeferrable,
c.conislocal, c.coninhcount, CASE WHEN c.conparentid = 0 THEN c.convalidated END, CASE WHEN c.conparentid = 0 THEN obj_description(c.oid, 'pg_constraint') END,
(SELECT count(*) FROM pg_trigger t WHERE t.tgconstraint = c.oid)
FROM pg_constraint c LEFT JOIN pg_constraint p ON p.oid = c.conparentid JOIN pg_class r ON r.oid = c.conrelid WHERE r.relnamespace::regnamespace::text IN ('public', 'aaa')
AND c.contype IN ('f', 'u', 'p', 'c', 't') ORDER BY 1, 3, 4, 5, 2"""
OTHERS = ("CREATE SCHEMA aaa", "CREATE TABLE u (id int PRIMARY KEY)", "CREATE TABLE w (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)", "INSERT INTO w VALUES (1)",
          "CREATE TABLE x (id int PRIMARY KEY) PARTITION BY LIST (id)", "CREATE TABLE x1 PARTITION OF x FOR VALUES IN (1)", "CREATE TABLE x2 PARTITION OF x FOR VALUES IN (2)",
          "INSERT INTO x VALUES (1)", "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
ACTIONS = ("",) * 5 + (" ON DELETE CASCADE", " ON UPDATE CASCADE", " DEFERRABLE INITIALLY DEFERRED", " ON DELETE SET NULL", " MATCH FULL")


class Source:
    """A database that is made at random: what the server refuses is left out."""

    def __init__(self, connection, draw, version):
        self.connection, self.draw, self.version = connection, draw, version
        self.tables = []
        self.names = ["fk", "fk", "ak", "k1", "k1_1", "fk_1", "fk_2", '"K k"']
        for sql in OTHERS:
            connection.execute(sql)
        for number in range(3):
            self.tree(number)
        self.heirs()

    def do(self, sql):
        try:
            self.connection.execute(sql)
        except psycopg.Error:
            return False
        return True

    def constraint(self, table, partitioned):
        draw = self.draw
        own, other = table.split(".")[1], draw.choice(self.tables).split(".")[1]
        names = [*self.names, f"{own}_r_fkey", f"{own}_r_fkey1", f"{own}_s_fkey", f"{other}_r_fkey", f"{other}_s_fkey", f"a_{own}", f"z_{own}"]
        name = draw.choice(names)
        if draw.random() < 0.2:
            if draw.random() < 0.3:
                return self.do(f"CREATE CONSTRAINT TRIGGER {name} AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION noted()")
            kind = draw.choice(["CHECK (r > 0)", "CHECK (r > 0) NOT VALID"] + (["NOT NULL s NOT VALID"] if self.version == NEW else []) + ([] if partitioned else ["UNIQUE (k, r, s)"]))
            return self.do(f"ALTER TABLE {table} ADD CONSTRAINT {name} {kind}")
        column, to = draw.choice(["r", "r", "s"]), draw.choice(["u", "u", "w", "x", "x"])
        end = draw.choice(ACTIONS)
        if self.version == NEW and draw.random() < 0.15:
            end += " NOT ENFORCED"
        elif not partitioned and draw.random() < 0.15:
            end += " NOT VALID"
        named = f"CONSTRAINT {name} " if draw.random() < 0.75 else ""
        done = self.do(f"ALTER TABLE {table} ADD {named}FOREIGN KEY ({column}) REFERENCES {to} (id){end}")
        if done and named and draw.random() < 0.2:
            self.do(f"COMMENT ON CONSTRAINT {name} ON {table} IS 'of {table}'")
        return done

    def tree(self, number):
        draw = self.draw
        schema = lambda: draw.choice(["public", "public", "aaa"])  # noqa: E731
        top = f"{schema()}.{draw.choice('amz')}t{number}"
        self.do(f"CREATE TABLE {top} (k int, r int, s int) PARTITION BY LIST (k)")
        tables, late = [(top, True)], []
        for part, keys in enumerate(((0, 1), (2, 3), (4,), (5, 6, 7))):
            table = f"{schema()}.{draw.choice('bnz')}t{number}_{part}"
            deeper = len(keys) > 1 and draw.random() < 0.5
            below = " PARTITION BY LIST (k)" if deeper else ""
            bound = f"FOR VALUES IN ({', '.join(map(str, keys))})"
            if draw.random() < 0.4:
                self.do(f"CREATE TABLE {table} (k int, r int, s int){below}")
                late.append(f"ALTER TABLE {top} ATTACH PARTITION {table} {bound}")
            else:
                self.do(f"CREATE TABLE {table} PARTITION OF {top} {bound}{below}")
            tables.append((table, deeper))
            if deeper:
                for key in keys:
                    leaf = f"{schema()}.{draw.choice('coz')}t{number}_{part}_{key}"
                    self.do(f"CREATE TABLE {leaf} PARTITION OF {table} FOR VALUES IN ({key})")
                    tables.append((leaf, False))
        self.tables.extend(table for table, _ in tables)
        for _ in range(draw.randint(4, 14)):
            self.constraint(*draw.choice(tables))
        for sql in late:
            self.do(sql)
        for _ in range(draw.randint(0, 4)):
            self.constraint(*draw.choice(tables))
        for key in range(8):
            self.do(f"INSERT INTO {top} VALUES ({key}, 1, 1)")

    def heirs(self):
        """Tables that inherit, without partitions: CHECK and NOT NULL go down, keys do not."""
        top, heir, last = (f"{self.draw.choice(['public', 'aaa'])}.{self.draw.choice('amz')}h{number}" for number in range(3))
        self.do(f"CREATE TABLE {top} (k int, r int, s int)")
        for table, above in ((heir, top), (last, f"{top}, {heir}")):
            self.do(f"CREATE TABLE {table} () INHERITS ({above})")
        self.tables.extend((top, heir, last))
        for _ in range(self.draw.randint(2, 8)):
            self.constraint(self.draw.choice((top, heir, last)), False)
        for table in (top, heir, last):
            self.do(f"INSERT INTO {table} VALUES (1, 1, 1)")


def constraints(server, db):
    with server.connect(db) as c:
        return c.execute(CONSTRAINTS).fetchall()


def difference(found, expected):
    """Rows of the one that are not in the other, each as often as it is."""
    found, expected = Counter(found), Counter(expected)
    return list((found - expected).elements()), list((expected - found).elements())


STATEMENT = re.compile(rb"ADD CONSTRAINT|CREATE CONSTRAINT TRIGGER")


def failing(server, path, flags, which):
    """Those fail of the statements that add a constraint of which `which(number, text)` says so. Returns how the restore ended, how many there were, and how many
    failed."""
    folder = os.path.join(server.root, "trees-proxy")
    seen, failed = [0], [0]

    def fails(message):
        for at, (begin, end) in enumerate(px.statements(message.sql)):
            if STATEMENT.search(message.sql[begin:end]):
                seen[0] += 1
                if which(seen[0], message.sql[begin:end]):
                    failed[0] += 1
                    return px.error("53100", at)
        return None
    with Proxy(folder, server.root) as proxy:
        proxy.arm(fails, again=True)
        run = firn(server, "target", path, *proxy.where("target"), *flags, where=False)
    shutil.rmtree(folder, ignore_errors=True)
    return run, seen[0], failed[0]


def some(draw, seed, statements):
    """One of them, once; or one, and of the others a share, which fail for as long as the restore runs."""
    one, share = draw.randint(1, statements), draw.choice((0, 0, 0.1, 0.3, 0.6))
    return lambda number, text: number == one or random.Random(f"{seed} {text!r}").random() < share


def tree(world, version, seed):
    server, draw = world.server(version), random.Random(seed)
    with server.connect(server.fresh("trees")) as c:
        Source(c, draw, version)
    expected = constraints(server, "trees")
    quoted = ["--quote-all-identifiers"] if draw.random() < 0.2 else []
    path = server.archive("trees", os.path.join(world.folder, "trees"), "c", extra=quoted)
    server.fresh("target")
    theirs = server.pg_restore("target", path, check=False).returncode == 0 and not any(difference(constraints(server, "target"), expected))
    for jobs in ("1", "4"):
        server.fresh("target")
        run, statements, _ = failing(server, path, ["-j", jobs], lambda number, text: False)
        differing = difference(constraints(server, "target"), expected)
        if run.code or any(differing):
            # What pg_restore gets right is right; and nothing else is taken for complete.
            assert run.code and not theirs, (seed, jobs, run.code, theirs, differing, run.out[-2000:])
            continue
        server.fresh("target")
        if not statements:
            continue
        flags = ["-j", jobs, "--on-error=continue"]
        run, _, failed = failing(server, path, flags, some(draw, seed, statements))
        assert failed, (seed, jobs, statements, run.out[-2000:])
        for _ in range(2):
            if run.code:
                run = firn(server, "target", path, *flags, "--resume")
        differing = difference(constraints(server, "target"), expected)
        assert run.code == 0 and not any(differing), (seed, jobs, failed, run.code, differing, run.out[-2000:])


def cases(world):
    many = int(os.environ.get("FIRN_TREES") or FEW)
    seed = int(os.environ.get("FIRN_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"     trees: seed {seed}")
    for version in (OLD, NEW):
        for number in range(many):
            own = (seed + number) % (1 << 32)
            yield f"trees {version} {own}", lambda v=version, s=own: tree(world, v, s)
