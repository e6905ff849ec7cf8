"""Random changes of a heap and of a firn table with the same statements: what is decoded of each transaction is the same, and so are the
rows."""
import os
import random
import string

from harness.cluster import version
from logical.decoded import changes, in_transactions


def words(dice, at_most):
    size = dice.choice((0, 3, 20, at_most)) if at_most else 5
    return "".join(dice.choice("abcdefgh") for _ in range(min(size, 60))) * max(1, size // 60)


def wide(dice):
    """Text that stays larger than a record's rows, compressed or not."""
    return "".join(dice.choices(string.ascii_letters + string.digits, k=dice.choice((70_000, 130_000))))


class Driver:
    """Statements that change `{t}`, of which many rows are in stripes."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.next = 2

    def key(self):
        return self.dice.randrange(1, self.next)

    def change(self):
        dice, kind = self.dice, self.dice.random()
        if kind < 0.3:
            count = dice.choice((1, 2, 30, 200))
            first, self.next = self.next, self.next + count
            text = wide(dice) if count == 30 and dice.random() < 0.1 else words(dice, 90_000 if count == 1 and dice.random() < 0.1 else 300)
            return (f"INSERT INTO {{t}} SELECT i, i % 7, '{text}' || i, i / 3.0 FROM generate_series({first}, {first + count - 1}) i "
                    "ON CONFLICT DO NOTHING" if dice.random() < 0.1 else
                    f"INSERT INTO {{t}} SELECT i, i % 7, '{text}' || i, i / 3.0 FROM generate_series({first}, {first + count - 1}) i")
        if kind < 0.5:
            return f"UPDATE {{t}} SET v = '{words(dice, 200)}', n = n + 1 WHERE id = {self.key()}"
        if kind < 0.55:
            low = self.key()
            return f"UPDATE {{t}} SET k = k + 1 WHERE id BETWEEN {low} AND {low + dice.randrange(20)}"
        if kind < 0.6:
            new, self.next = self.next, self.next + 1
            return f"UPDATE {{t}} SET id = {new} WHERE id = {self.key()}"
        if kind < 0.75:
            return f"DELETE FROM {{t}} WHERE id = {self.key()}"
        if kind < 0.78:
            low = self.key()
            return f"DELETE FROM {{t}} WHERE id BETWEEN {low} AND {low + dice.randrange(30)}"
        if kind < 0.84:
            return f"SELECT count(*) FROM (SELECT 1 FROM {{t}} WHERE id = {self.key()} FOR {dice.choice(('UPDATE', 'SHARE'))}) s"
        if kind < 0.86:
            return f"UPDATE {{t}} SET v = '{wide(dice) if dice.random() < 0.5 else words(dice, 80_000)}' WHERE id = {self.key()}"
        if kind < 0.861:
            return "TRUNCATE {t}"
        key = self.key()
        return f"INSERT INTO {{t}} VALUES ({key}, 1, 'put', 2.5) ON CONFLICT (id) DO UPDATE SET v = excluded.v || {{t}}.k"

    def alone(self):
        """A statement that no transaction may be around."""
        return self.dice.choice(("SELECT firn.compact('{t}')", "VACUUM {t}", "VACUUM FULL {t}", "ALTER TABLE {t} REPLICA IDENTITY FULL",
                                 "ALTER TABLE {t} REPLICA IDENTITY DEFAULT", "SELECT firn.compact('{t}')"))

    def transaction(self):
        """Statements of one, with savepoints; how it ends."""
        found, depth = [], 0
        for _ in range(self.dice.choice((1, 1, 3, 12))):
            kind = self.dice.random()
            if kind < 0.15:
                depth += 1
                found.append(f"SAVEPOINT s{depth}")
            elif kind < 0.25 and depth:
                found.append(f"{self.dice.choice(('ROLLBACK TO', 'ROLLBACK TO', 'RELEASE'))} s{depth}")
                if found[-1].startswith("RELEASE"):
                    depth -= 1
            found.append(self.change())
        end = self.dice.choice(("COMMIT",) * 6 + ("ROLLBACK", "PREPARE", "PREPARE"))
        # PostgreSQL 18.6 crashes where it decodes one with savepoints that is undone and larger than logical_decoding_work_mem: it marks the
        # subtransactions as streamed (ReorderBufferTruncateTXN). Of heap tables, too.
        if end != "COMMIT" and any("SAVEPOINT" in s for s in found) and version() >= 18:
            end = "COMMIT"
        return found, end


def carry_out(c, statements, end, name, table):
    c.execute("BEGIN")
    for statement in statements:
        c.execute(statement.replace("{t}", table))
    if end == "PREPARE":
        c.execute(f"PREPARE TRANSACTION '{name}'")
        return name
    c.execute(end)
    return None


def shown_alike(heap, firn):
    """An update in a stripe shows a wide value that stays, where one in a heap says that it has stayed."""
    if heap == firn:
        return True
    parts = heap.split("unchanged-toast-datum")
    at = 0
    for part in parts:
        at = firn.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return len(parts) > 1


def alike(cluster, seed, steps):
    driver = Driver(seed)
    sessions, found = {}, {"heap": [], "firn": []}
    for am in ("heap", "firn"):
        with cluster.connect() as c:
            c.execute(f"DROP DATABASE IF EXISTS random_{am} WITH (FORCE)")
            c.execute(f"CREATE DATABASE random_{am}")
        c = sessions[am] = cluster.connect(f"random_{am}")
        c.execute("CREATE EXTENSION firn; SET firn.bulk_threshold = 10; SET firn.stripe_rows = 150")
        c.execute(f"CREATE TABLE t (id int PRIMARY KEY, k int, v text, n numeric) USING {am}")
        c.execute(f"SELECT pg_create_logical_replication_slot('random_{am}', 'test_decoding', false, true)")
    try:
        for step in range(steps):
            if driver.dice.random() < 0.1:
                alone = driver.alone().replace("{t}", "t")
                for am, c in sessions.items():
                    if am == "firn" or "compact" not in alone:
                        c.execute(alone)
                continue
            statements, end = driver.transaction()
            if end == "PREPARE" and any("TRUNCATE" in s for s in statements):
                end = "COMMIT"
            for am, c in sessions.items():
                name = carry_out(c, statements, end, f"p{step}", "t")
                if name and step % 3 == 0:
                    # Of one that is undone already, decoding shows as much as it can without a look at the catalogs.
                    found[am] += changes(c, f"random_{am}")
                if name:
                    c.execute(f"{'COMMIT' if step % 3 else 'ROLLBACK'} PREPARED '{name}'")
        text = wide(driver.dice)
        for c in sessions.values():
            c.execute(f"INSERT INTO t SELECT i, 0, '{text}' || i, 0 FROM generate_series({driver.next}, {driver.next + 39}) i")
        assert sessions["firn"].execute(f"SELECT count(*) FROM t WHERE id >= {driver.next} AND ctid >= '(2147483648,0)'").fetchone()[0] >= 30, "wide values have not come into stripes"
        rows = [c.execute("SELECT * FROM t ORDER BY id").fetchall() for c in sessions.values()]
        assert rows[0] == rows[1]
        made = sessions["firn"].execute("SELECT count(*) FROM firn.stripes('t')").fetchone()[0]
        found = [in_transactions(found[am] + changes(c, f"random_{am}")) for am, c in sessions.items()]
        for n, (heap, firn) in enumerate(zip(*found)):
            same = len(heap) == len(firn) and all(shown_alike(h, f) for h, f in zip(heap, firn))
            if not same and len(heap) == len(firn):
                # (Sorted, a value that is shown is elsewhere than the note that it has stayed.)
                left = [f for f in firn if f not in heap]
                same = all(any(shown_alike(h, f) for f in left) for h in heap if h not in firn)
            assert same, (n, [line[:300] for line in heap if line not in firn], [line[:300] for line in firn if line not in heap])
        assert len(found[0]) == len(found[1])
        assert sum(len(line) > 60_000 for lines in found[1][-2:] for line in lines) == 40, "no value is larger than a record's rows"
        return made, sum(map(len, found[0]))
    finally:
        for am, c in sessions.items():
            if c.info.transaction_status:
                c.execute("ROLLBACK")
            c.execute(f"SELECT pg_drop_replication_slot('random_{am}')")
            c.close()


def case(cluster):
    rounds = int(os.environ.get("FIRN_ROUNDS", "2"))
    seed = int(os.environ.get("FIRN_SEED") or random.SystemRandom().randrange(1 << 31))
    made = 0
    for n in range(rounds):
        print(f"     FIRN_SEED={seed + n}", end="", flush=True)
        stripes, lines = alike(cluster, seed + n, 150)
        print(f": {stripes} stripes, {lines} lines", flush=True)
        made += stripes
    assert made > 0


CASES = {"random changes": case}
