"""Subscriptions to firn tables and of firn tables: initial copy, filters, lists of columns, replica identities, streaming, two phases, partitions."""
import os
import random
import re

from harness.cluster import version
from logical.pair import Pair
from logical.random_changes import Driver, carry_out

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, k int, v text, n numeric)"
# Publication and subscription of a table, and what the subscriber has of it: columns and rows.
KINDS = {
    "whole": ("{t}", "", "*", "true"),
    "streamed": ("{t}", "streaming = on", "*", "true"),
    "phases": ("{t}", "two_phase = on, streaming = on", "*", "true"),
    "columns": ("{t} (id, v)", "", "id, v", "true"),
    "rows": ("{t} WHERE (id % 3 <> 1)", "", "*", "id % 3 <> 1"),
    "both": ("{t} (id, k) WHERE (id > 200)", "streaming = on", "id, k", "id > 200"),
    "full": ("{t}", "", "*", "true"),
}
if version() >= 16:
    KINDS["parallel"] = ("{t}", "streaming = parallel", "*", "true")


def change(pair, driver, table, steps):
    """Random transactions in the publisher's table."""
    with pair.source() as c:
        for step in range(steps):
            statements, end = driver.transaction()
            if table in ("t_rows", "t_both"):
                # (What is emptied there would be emptied here, too: rows that the filter leaves out are not told apart.)
                statements = [s for s in statements if "TRUNCATE" not in s]
            if table == "t_rows":
                # A row that a new key brings through the filter is inserted by the subscriber, and a wide value of it that has stayed is not in the WAL of
                # a row store, be it a heap's: the subscriber has NULL then, on any PostgreSQL up to 18. So here it does not stay.
                statements = [re.sub(r"SET id = (\d+)", r"SET id = \1, v = v || ''", s) for s in statements]
            if end == "PREPARE" and any("TRUNCATE" in s for s in statements):
                end = "COMMIT"
            name = carry_out(c, statements, end, f"{table}_{step}", table)
            if name:
                c.execute(f"{'COMMIT' if step % 3 else 'ROLLBACK'} PREPARED '{name}'")


def of(name):
    return f"t_{name}"


def kinds(publisher, subscriber):
    def case(conf):
        seed = int(os.environ.get("FIRN_SEED") or random.SystemRandom().randrange(1 << 31))
        print(f"     FIRN_SEED={seed}", end="", flush=True)
        pair = Pair(conf, publisher, subscriber)
        try:
            for name, (published, _, columns, _) in KINDS.items():
                pair.both(TABLE.format(of(name)))
                if columns != "*":
                    with pair.target() as c:
                        c.execute(f"ALTER TABLE {of(name)} " + ", ".join(f"DROP COLUMN {col}" for col in "kvn" if col not in columns))
                with pair.source() as c:
                    c.execute(f"CREATE PUBLICATION p_{name} FOR TABLE {published.format(t=of(name))}")
            pair.both("ALTER TABLE t_full REPLICA IDENTITY FULL")
            with pair.target() as c:
                # Rows are found by their values alone.
                c.execute('ALTER TABLE t_full DROP CONSTRAINT t_full_pkey')
            drivers = {name: Driver(seed + n) for n, name in enumerate(KINDS)}
            # What is there before is copied, beside changes.
            for name, driver in drivers.items():
                change(pair, driver, of(name), 20)
            for name, (_, options, _, _) in KINDS.items():
                pair.subscribe(f"s_{name}", f"p_{name}", options)
                change(pair, drivers[name], of(name), 10)
            pair.catch_up()
            for _ in range(2):
                for name, driver in drivers.items():
                    change(pair, driver, of(name), 25)
                    if publisher == "firn":
                        with pair.source() as c:
                            c.execute(f"SELECT firn.compact('{of(name)}')")
                    if subscriber == "firn":
                        with pair.target() as c:
                            c.execute(f"SELECT firn.compact('{of(name)}')")
                pair.catch_up()
                for name, (_, _, columns, where) in KINDS.items():
                    pair.same(of(name), columns, where)
            stripes = sum(pair.stripes(of(name)) for name in KINDS) if publisher == "firn" else 0
            print(f": {stripes} stripes", flush=True)
            assert (stripes > 0) == (publisher == "firn")
            for name in KINDS:
                pair.unsubscribe(f"s_{name}")
            pair.quiet()
        finally:
            pair.destroy()
    return case


def partitions(conf):
    """Partitions are published as themselves or as their table, and a row that goes to another partition goes there with the subscriber."""
    pair = Pair(conf)
    made = ("CREATE TABLE {0} (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);"
            "CREATE TABLE {0}1 PARTITION OF {0} FOR VALUES FROM (0) TO (100); CREATE TABLE {0}2 PARTITION OF {0} FOR VALUES FROM (100) TO (200)")
    try:
        pair.both(made.format("a"))
        with pair.source() as c:
            c.execute(made.format("b"))
            c.execute("CREATE PUBLICATION pa FOR TABLE a; CREATE PUBLICATION pb FOR TABLE b WITH (publish_via_partition_root)")
        with pair.target() as c:
            c.execute("CREATE TABLE b (id int, k int, v text, PRIMARY KEY (id, k))")
        with pair.source() as c:
            for t in "ab":
                c.execute(f"INSERT INTO {t} SELECT i, i % 200, 'v' FROM generate_series(1, 1000) i")
            for t in "ab":
                pair.subscribe(f"s{t}", f"p{t}")
            pair.catch_up()
            for t in "ab":
                c.execute(f"INSERT INTO {t} SELECT i, i % 200, 'w' FROM generate_series(1001, 2000) i")
                c.execute(f"UPDATE {t} SET k = (k + 100) % 200 WHERE id % 10 = 0; UPDATE {t} SET v = 'u' WHERE id % 7 = 0")
                c.execute(f"DELETE FROM {t} WHERE id % 11 = 0; SELECT firn.compact('{t}1')")
            pair.catch_up()
            for t in "ab":
                assert pair.same(t) == 1819
            c.execute("TRUNCATE a1; TRUNCATE b")
            pair.catch_up()
            assert 0 < pair.same("a") < 1000 and pair.same("b") == 0
        for t in "ab":
            pair.unsubscribe(f"s{t}")
        pair.quiet()
    finally:
        pair.destroy()


def vectors(conf):
    """Values of types that are never put out of line, whose functions do not look for that, beside others that are."""
    pair = Pair(conf)
    texts = [f"t{n}" for n in range(10)]
    try:
        pair.both(f"CREATE TABLE v (id int PRIMARY KEY, o oidvector, {', '.join(f'{t} text' for t in texts)})")
        with pair.source() as c:
            c.execute("ALTER TABLE v " + ", ".join(f"ALTER {t} SET STORAGE EXTERNAL" for t in texts) + "; CREATE PUBLICATION pv FOR TABLE v")
            pair.subscribe("sv", "pv")
            text = "(SELECT string_agg(md5((i * k + {})::text), '') FROM generate_series(1, 203) k)"
            values = ", ".join(text.format(n) for n in range(10))
            c.execute(f"INSERT INTO v SELECT i, (SELECT string_agg((k + i)::text, ' ') FROM generate_series(100001, 101700) k)::oidvector, {values} FROM generate_series(1, 30) i")
            assert pair.stripes("v") > 0
            pair.catch_up()
            assert pair.same("v") == 30
        pair.unsubscribe("sv")
        pair.quiet()
    finally:
        pair.destroy()


def wide_values(conf):
    """A wide value that stays while a new key brings its row through a row filter comes along from a stripe."""
    pair = Pair(conf)
    try:
        pair.both("CREATE TABLE w (id int PRIMARY KEY, v text)")
        with pair.source() as c:
            c.execute("CREATE PUBLICATION pw FOR TABLE w WHERE (id % 3 <> 1)")
            pair.subscribe("sw", "pw")
            # (Else the initial copy might have what follows.)
            pair.catch_up()
            c.execute("INSERT INTO w SELECT i, (SELECT string_agg(md5((i * k)::text), '') FROM generate_series(1, 3000) k) FROM generate_series(1, 30) i")
            assert c.execute("SELECT ctid >= '(2147483648,0)' FROM w WHERE id = 28").fetchall() == [(True,)]
            c.execute("UPDATE w SET id = 300 WHERE id = 28")
        pair.catch_up()
        with pair.target() as c:
            found = c.execute("SELECT id, length(v) FROM w WHERE id >= 29 ORDER BY id").fetchall()
            assert found == [(29, 96_000), (30, 96_000), (300, 96_000)], found
            assert c.execute("SELECT count(*) FROM w WHERE id % 3 = 1").fetchall() == [(0,)]
        assert pair.same("w", where="id % 3 <> 1") == 21
        pair.unsubscribe("sw")
        pair.quiet()
    finally:
        pair.destroy()


CASES = {f"subscribers, {a} to {b}": kinds(a, b) for a, b in (("firn", "heap"), ("heap", "firn"), ("firn", "firn"))}
CASES["subscribers of partitions"] = partitions
CASES["subscribers of vectors"] = vectors
CASES["subscribers of wide values"] = wide_values
