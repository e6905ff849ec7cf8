"""What people do with cold data, step by step: the SQL, its result, and whether it is right."""
import re
import textwrap

from compare import following, partition

WIDTH = 98
TABLES = ("SELECT relation, stripes, stripe_rows, row_store_bytes, local_bytes, cold_bytes FROM firn.tables "
          "WHERE relation::text LIKE '{}%' ORDER BY relation::text")
RELATION, LOCAL, COLD = 0, 4, 5


def folded(statement):
    """The statement in lines that fit, as one types it into psql."""
    lines = [""]
    for word in (statement + ";").split(" "):
        if len(lines[-1]) + len(word) > WIDTH - 12:
            lines.append(" ")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


class Walkthrough:
    """Statements on `flights`, the same ones on `flights_heap`, and comparisons of both."""

    def __init__(self, conn, months, progress):
        self.conn, self.months, self.progress = conn, months, progress
        self.failures = []
        self.number = 0

    def run(self):
        self.new_month()
        self.change_cold_rows()
        self.split()
        self.inspect()
        self.bring_back()

    # Showing, running, checking.

    def title(self, text):
        self.number += 1
        self.progress.say(f"\n{self.number}. {text}")

    def sql(self, statement, both=False):
        """Show a statement, run it, show its result; with `both`, run it on heap too and compare the answers."""
        for n, line in enumerate(folded(statement)):
            self.progress.say(("   demo=# " if n == 0 else "   demo-# ") + line)
        names, rows, status = self.silently(statement)
        if names is None:
            self.progress.say(f"   {status}")
        else:
            self.show(names, rows)
        if both:
            heap = self.silently(statement.replace("flights", "flights_heap").replace("USING firn", "USING heap"))
            self.check((names, rows, status) == heap, "the same on heap" + (", with the same answer" if names else ""))
        return rows

    def silently(self, statement):
        cursor = self.conn.execute(statement)
        if cursor.description is None:
            return None, None, cursor.statusmessage
        return [d.name for d in cursor.description], cursor.fetchall(), cursor.statusmessage

    def show(self, names, rows):
        if names == ["QUERY PLAN"]:
            for (line,) in rows:
                indent = " " * (3 + len(line) - len(line.lstrip()))
                self.progress.say(textwrap.fill(line.strip(), WIDTH, initial_indent=indent,
                                                subsequent_indent=indent + "    "))
            return
        cells = [["" if v is None else str(v) for v in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(names, *cells)]
        for n, row in enumerate([names, *cells]):
            self.progress.say("    " + " | ".join(f"{v:{w}}" for v, w in zip(row, widths)).rstrip())
            if n == 0:
                self.progress.say("   " + "+".join("-" * (w + 2) for w in widths))
        self.progress.say(f"   ({len(rows)} row{'' if len(rows) == 1 else 's'})")

    def check(self, right, what):
        self.progress.say(f"   {'ok' if right else 'WRONG'}: {what}")
        if not right:
            self.failures.append(f"walkthrough, step {self.number}: {what}")

    def same(self, what, condition="true", table="flights", heap="flights_heap"):
        """Neither table has a row that the other has not, or has more often."""
        only = (f"SELECT count(*) FROM (SELECT * FROM {{}} WHERE {condition} EXCEPT ALL "
                f"SELECT * FROM {{}} WHERE {condition}) x").format
        rows, ours, theirs = self.conn.execute(
            f"SELECT (SELECT count(*) FROM {table} WHERE {condition}), ({only(table, heap)}), "
            f"({only(heap, table)})").fetchone()
        self.check(rows > 0 and (ours, theirs) == (0, 0), f"{what}: {rows} rows, compared one by one with heap's")

    @staticmethod
    def within(day, end):
        return f"at >= '{day}' AND at < '{end}'"

    # The steps.

    def new_month(self):
        source = self.months.days[-3]
        day = self.months.days[-1]
        name, shift = partition("flights", day), (day - source).days
        self.title("A new month stays local until the offload is run again")
        self.sql(f"CREATE TABLE {name} PARTITION OF flights FOR VALUES FROM ('{day}') TO ('{following(day)}') USING firn",
                 both=True)
        self.progress.say(f"   (no real flights: those of early {source:%B}, {shift} days later)")
        self.sql(f"INSERT INTO flights SELECT id + 3000000, at + interval '{shift} days', delay, distance, origin, "
                 f"destination FROM flights WHERE {self.within(source, source.replace(day=16))}", both=True)
        rows = self.sql(TABLES.format("flights"))
        new = [r for r in rows if r[RELATION] == name]
        self.check(len(new) == 1 and new[0][LOCAL] > 0 and new[0][COLD] == 0, f"{name} is local")
        self.sql(f"SELECT firn.compact('{name}') AS rows_moved_to_stripes")
        self.sql(f"SELECT firn.offload('{name}', 'cold') AS stripes_moved_to_the_store")
        rows = self.sql(TABLES.format(name))
        self.check(rows[0][LOCAL] == 0 and rows[0][COLD] > 0, f"{name} is cold")
        self.same(f"{day:%B}", self.within(day, following(day)))

    def change_cold_rows(self):
        day, end = self.months.days[2:4]
        self.title(f"Rows of a cold month ({day:%B}) are looked up, updated and deleted by their key")
        known = self.conn.execute("SELECT min(id) + 200000 FROM flights_heap WHERE at >= %s AND at < %s", (day, end))
        key = known.fetchone()[0]
        self.sql(f"SELECT * FROM flights WHERE id = {key}", both=True)
        plan = self.sql(f"EXPLAIN (COSTS OFF) SELECT * FROM flights WHERE id = {key} AND {self.within(day, end)}")
        self.check(any("Index Scan" in line for (line,) in plan), "by the index")
        rows = self.sql(f"UPDATE flights SET delay = delay + 1000 WHERE id = {key} RETURNING id, at, delay", both=True)
        self.check(len(rows) == 1, "one row updated")
        self.sql(f"DELETE FROM flights WHERE id BETWEEN {key + 1} AND {key + 3}", both=True)
        self.sql(f"SELECT * FROM flights WHERE id BETWEEN {key - 1} AND {key + 4} ORDER BY id", both=True)
        self.sql(f"INSERT INTO flights SELECT * FROM flights WHERE id = {key - 1} ON CONFLICT DO NOTHING", both=True)
        self.same(f"{day:%B}", self.within(day, end))

    def split(self):
        day, end = self.months.days[3:5]
        middle, name = day.replace(day=16), partition("flights", day)
        self.title(f"A cold month ({day:%B}) is detached, and split in two: it keeps its rows")
        self.sql(f"ALTER TABLE flights DETACH PARTITION {name}", both=True)
        before = self.sql(f"SELECT count(*), sum(distance), max(delay) FROM {name}", both=True)
        for letter, a, b in (("a", day, middle), ("b", middle, end)):
            self.sql(f"CREATE TABLE {name}{letter} PARTITION OF flights FOR VALUES FROM ('{a}') TO ('{b}') USING firn",
                     both=True)
        self.sql(f"INSERT INTO flights SELECT * FROM {name}", both=True)
        rows = self.sql(TABLES.format(name))
        self.check([r[COLD] > 0 for r in rows] == [True, False, False], "the detached month is cold, its halves are local")
        after = self.sql(f"SELECT count(*), sum(distance), max(delay) FROM flights WHERE {self.within(day, end)}")
        self.check(after == before, "the halves have what the detached month has")
        self.same("detached month", table=name, heap=name.replace("flights", "flights_heap"))
        self.sql(f"DROP TABLE {name}", both=True)
        for letter in "ab":
            self.sql(f"SELECT firn.compact('{name}{letter}') AS rows_moved_to_stripes")
            self.sql(f"SELECT firn.offload('{name}{letter}', 'cold') AS stripes_moved_to_the_store")
        rows = self.sql(TABLES.format(name))
        self.check([r[LOCAL] for r in rows] == [0, 0] and all(r[COLD] > 0 for r in rows), "both halves are cold")
        self.same(f"{day:%B}", self.within(day, end))

    def inspect(self):
        day = self.months.days[2]
        name = partition("flights", day)
        self.title(f"A look into a cold month ({day:%B})")
        rows = self.sql(f"SELECT slot, rows, deleted, pg_size_pretty(bytes) AS size, location, "
                        f"right(object_key, 35) AS object FROM firn.stripes('{name}') ORDER BY slot")
        self.check({r[4] for r in rows} == {"cold"}, "all its stripes are objects")
        self.check(sum(r[2] for r in rows) == 4, "one row updated and three deleted")
        problems = self.sql(f"SELECT * FROM firn.check('{name}')")
        self.check(problems == [], "firn.check found chunks, checksums, counts and index entries in order")
        self.sql("SET max_parallel_workers_per_gather = 0")
        plan = self.sql("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT count(*), avg(delay) FROM flights "
                        f"WHERE {self.within(day.replace(day=5), day.replace(day=8))}")
        skipped = [int(n) for (line,) in plan for n in re.findall(r"Stripes Skipped: (\d+)", line)]
        self.check(any("FirnScan" in line for (line,) in plan) and sum(skipped) > 0,
                   f"the scan skipped {sum(skipped)} stripes by their zone maps")
        self.sql("RESET max_parallel_workers_per_gather")

    def bring_back(self):
        day, end = self.months.days[1:3]
        name = partition("flights", day)
        self.title(f"A cold month ({day:%B}) comes back")
        self.sql(f"SELECT firn.load('{name}') AS stripes_brought_back")
        rows = self.sql(TABLES.format(name))
        self.check(rows[0][LOCAL] > 0 and rows[0][COLD] == 0, f"{name} is local")
        left = self.sql(f"SELECT server, right(object_key, 35) AS object FROM firn.unneeded('{name}')")
        self.check(len(left) > 0, "its objects stay until someone removes them")
        self.title("The whole table")
        self.sql("SELECT count(*), sum(distance), sum(delay), count(DISTINCT destination) FROM flights", both=True)
        self.same("all months")
