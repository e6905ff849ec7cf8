"""The flights as heap, as firn, and with their older months cold: loading, seven queries, sizes, one table."""
import os
import statistics
import time

from data import ROWS

TABLES = {"heap": "flights_heap", "firn": "flights"}
COLUMNS = ("id int, at timestamp, delay int, distance int, origin text, destination text, "
           "PRIMARY KEY (id, at)")


class Months:
    """The partitions: one a month. All but the last full month are `old`, ready to go cold."""

    def __init__(self, first_days):
        self.days = [*first_days, following(first_days[-1])]

    def __iter__(self):
        return iter(zip(self.days, self.days[1:]))

    def old(self):
        """The months that go cold. The data ends with the first minute of a month: that one is the newest."""
        return self.days[:-3]

    def span(self, count):
        """The condition for the `count` months that end with the third one: all of them go cold."""
        return f"at >= '{self.days[3 - count]}' AND at < '{self.days[3]}'"

    def named(self, count):
        last = self.days[2].strftime("%B")
        return last if count == 1 else f"{self.days[3 - count]:%B} to {last}"


def following(day):
    """The first day of the next month."""
    return day.replace(year=day.year + day.month // 12, month=day.month % 12 + 1, day=1)


def partition(table, day):
    return f"{table}_{day:%Y_%m}"


def queries(months):
    """The seven: label and SQL, in which {t} is the table."""
    one, three = months.span(1), months.span(3)
    worst = ("SELECT DISTINCT destination, max(delay) OVER (PARTITION BY destination) AS worst FROM {{t}} "
             "WHERE {0} ORDER BY 1, 2").format
    airports = ("SELECT a.iata, a.name, count(*), sum(f.distance) FROM {{t}} f LEFT JOIN airports a "
                "ON a.iata = f.destination {0} GROUP BY 1, 2 ORDER BY 1, 2").format
    return [
        ("count", "SELECT count(*) FROM {t}"),
        ("by origin", "SELECT origin, count(*) FROM {t} GROUP BY 1 ORDER BY 1"),
        ("by origin, day, late or not",
         "SELECT origin, at::date AS day, delay > 15 AS late, count(*) FROM {t} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"),
        (f"worst delays, window, {months.named(1)}", worst(one)),
        (f"the same, {months.named(3)}", worst(three)),
        (f"join airports, {months.named(3)}", airports("WHERE " + three)),
        ("the same, all months", airports("")),
    ]


def timed(action):
    begin = time.perf_counter()
    result = action()
    return time.perf_counter() - begin, result


class Comparison:
    """Runs everything on one connection (cold first reads on fresh ones) and keeps what was measured."""

    def __init__(self, cluster, conn, flights, progress, runs):
        self.cluster, self.conn, self.flights, self.progress, self.runs = cluster, conn, flights, progress, runs
        self.months = Months(flights.months())
        self.queries = queries(self.months)
        self.seconds = {}
        self.times = {label: {} for label, _ in self.queries}
        self.answers = {}
        self.sizes = {}
        self.different = []

    def airports(self):
        c = self.conn
        c.execute("CREATE TABLE airports (iata text PRIMARY KEY, name text, city text, state text, country text, "
                  "latitude float8, longitude float8)")
        with open(self.flights.airports, "rb") as f, c.cursor().copy("COPY airports FROM STDIN CSV HEADER") as copy:
            copy.write(f.read())
        c.execute("VACUUM ANALYZE airports")

    def create(self, am):
        table = TABLES[am]
        self.conn.execute(f"CREATE TABLE {table} ({COLUMNS}) PARTITION BY RANGE (at)")
        for day, end in self.months:
            self.conn.execute(f"CREATE TABLE {partition(table, day)} PARTITION OF {table} "
                              f"FOR VALUES FROM ('{day}') TO ('{end}') USING {am}")

    def load(self, am):
        """COPY from this side of the connection, as any client does."""
        size, sent, table = self.flights.size(), 0, TABLES[am]
        begin = time.perf_counter()
        with open(self.flights.csv, "rb") as f, self.conn.cursor().copy(f"COPY {table} FROM STDIN CSV") as copy:
            while block := f.read(1 << 20):
                copy.write(block)
                sent += len(block)
                self.progress.update(f"{100 * sent // size} %")
        self.seconds[f"load {am}"] = time.perf_counter() - begin

    def settle(self, am):
        """What follows a load: statistics, and in firn the few rows of the row store become stripes."""
        begin = time.perf_counter()
        if am == "firn":
            self.progress.update("compact")
            for day in self.months.days[:-1]:
                self.conn.execute(f"SELECT firn.compact('{partition('flights', day)}')")
        self.progress.update("vacuum analyze")
        self.conn.execute(f"VACUUM ANALYZE {TABLES[am]}")
        self.progress.update("")
        self.seconds[f"settle {am}"] = time.perf_counter() - begin

    def measure(self, who):
        """Bytes: the files of the rows and of their indexes on the server's disk, and objects in the store."""
        table = TABLES["heap" if who == "heap" else "firn"]
        rows, indexes = self.conn.execute(
            "SELECT sum(pg_table_size(relid)), sum(pg_indexes_size(relid)) FROM pg_partition_tree(%s)",
            (table,)).fetchone()
        used = cold = 0
        if who != "heap":
            used, cold = self.conn.execute(
                "SELECT sum(row_store_bytes + local_bytes), sum(cold_bytes) FROM firn.tables").fetchone()
        self.sizes[who] = {"rows": int(rows), "indexes": int(indexes), "store": int(cold), "used": int(used)}

    def offload(self):
        """The older months move to the store, a month at a time."""
        begin, moved = time.perf_counter(), 0
        for day in self.months.old():
            name = partition("flights", day)
            self.progress.update(name)
            moved += self.conn.execute(f"SELECT firn.offload('{name}', 'cold')").fetchone()[0]
            self.conn.execute(f"VACUUM {name}")
        self.progress.update(f"{moved} stripes")
        self.seconds["offload"] = time.perf_counter() - begin

    def _ask(self, conn, label, sql, who):
        seconds, rows = timed(lambda: conn.execute(sql.format(t=TABLES["heap" if who == "heap" else "firn"])).fetchall())
        if rows != self.answers.setdefault(label, rows):
            self.different.append(f"{label}: {who} differs from heap")
        return seconds * 1000

    def local(self):
        """Heap and firn take turns, so that what else the machine does meets both. The first turn only warms up."""
        for label, sql in self.queries:
            times = {"heap": [], "firn": []}
            for turn in range(self.runs + 1):
                self.progress.update(f"{label}, {f'run {turn} of {self.runs}' if turn else 'warming up'}")
                for who, got in times.items():
                    got.append(self._ask(self.conn, label, sql, who))
            for who, got in times.items():
                self.times[label][who] = statistics.median(got[1:])
        self.progress.update("")
        if self.answers["count"] != [(ROWS,)]:
            self.different.append(f"count: {self.answers['count'][0][0]} instead of {ROWS}")

    def cold(self):
        """First with an empty cache and a new session, for each query again; then in turns with heap as before.

        Heap's times tell whether the machine was as busy as when firn's local times were taken.
        """
        for n, (label, sql) in enumerate(self.queries):
            with self.cluster.demo() as conn:
                conn.execute(f"SET firn.cache_directory = 'demo_cache_{n}'")
                self.progress.update(f"{label}, first time")
                self.times[label]["cold 1st"] = self._ask(conn, label, sql, "cold 1st")
                got, heap = [], []
                for turn in range(self.runs):
                    self.progress.update(f"{label}, run {turn + 1} of {self.runs}")
                    got.append(self._ask(conn, label, sql, "cold 2nd"))
                    heap.append(self._ask(self.conn, label, sql, "heap"))
                self.times[label]["cold 2nd"] = statistics.median(got)
                self.times[label]["heap again"] = statistics.median(heap)
        self.progress.update("")

    def drift(self):
        """How much longer heap took beside cold than beside firn."""
        return sum(t["heap again"] for t in self.times.values()) / sum(t["heap"] for t in self.times.values())

    def table(self):
        """All that was measured, as lines."""
        def line(label, *cells):
            return f"{label:38}" + "".join(f"{cell:>10}" for cell in cells)

        def row(label, heap, firn, first, second, form=None):
            def shown(value):
                return "" if value is None else (form or ("{:.0f}" if value >= 10 else "{:.1f}")).format(value)
            ratio = [f"{a / b:.2f}" if a is not None and b else "" for a, b in ((firn, heap), (second, firn))]
            return line(label, *map(shown, (heap, firn, first, second)), *ratio)

        s, rule = self.seconds, "-" * 98
        out = [line("", "heap", "firn", "cold 1st", "cold 2nd", "firn/heap", "cold/firn"), rule, "Queries, ms"]
        for label, t in self.times.items():
            out.append(row(label, t["heap"], t["firn"], t["cold 1st"], t["cold 2nd"]))
        out += [rule, "Work, s"]
        out.append(row("COPY into a table with a primary key", s["load heap"], s["load firn"], None, None, "{:.1f}"))
        out.append(row("VACUUM ANALYZE (firn: and compact)", s["settle heap"], s["settle firn"], None, None, "{:.1f}"))
        out.append(row("offload", None, None, s["offload"], None, "{:.1f}"))
        out += [rule, "Size, MB"]
        sizes = [self.sizes[who] for who in ("heap", "firn", "cold")]
        for label, part in (("rows", lambda z: z["rows"]), ("indexes", lambda z: z["indexes"]),
                            ("objects in the store", lambda z: z["store"]), ("together", lambda z: z["rows"] + z["indexes"] + z["store"])):
            heap, firn, cold = (part(z) / 1e6 or None for z in sizes)
            out.append(row(label, heap, firn, None, cold, "{:.1f}"))
        out.append(rule)
        old = self.months.old()
        out.append(f"cold: {old[0]:%B} to {old[-1]:%B %Y} are objects, the rest is local; 1st: the cache is empty, "
                   "2nd: it is full.")
        cold = self.sizes["cold"]
        if cold["rows"] > 1.5 * cold["used"]:
            out.append(f"Of the local files of the rows {(cold['rows'] - cold['used']) / 1e6:.1f} MB are free for new "
                       "rows; VACUUM FULL would give them back.")
        if not 0.8 < (drift := self.drift()) < 1.25:
            out.append(f"Heap took {drift:.1f} times as long beside cold as beside firn: the machine has other work, so "
                       "cold/firn says little.")
        out.append(f"Times: medians of {self.runs}. Settings of both: {os.cpu_count()} processors, shared_buffers 512 MB, "
                   "work_mem 64 MB, jit off.")
        return [text.rstrip() for text in out]
