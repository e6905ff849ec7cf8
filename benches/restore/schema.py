"""Write the SQL of an adversarial schema: 28 partitioned tables with ranges of five days, tied together.

`schema.py --tables 10000 --out DIR` writes files that psql runs; `--load CONNINFO` runs them as well. The same options
give the same bytes. README.md says what the schema is made of.
"""
import argparse
import datetime
import os
import random
import subprocess
import threading
import time

FEATURES = ("owners", "domains", "functions", "foreign-keys", "views", "triggers", "comments", "grants")
FIRST_DAY = datetime.date(1950, 1, 1)
DAYS = 5
# Statements of one transaction: larger ones get slower with the square, for the locks held are walked each time.
BATCH = 100
OWNERS = ("drift_owner_1", "drift_owner_2", "drift_owner_3")
READER = "drift_reader"

FACTS = ("orders", "order_lines", "refunds", "shipments", "payments", "stock_moves", "page_visits")
OTHERS = ("price_changes", "supplier_bills", "returns_checked", "coupons_used", "calls", "audits", "logins", "leases",
          "repairs", "meter_readings", "deliveries_late", "forecasts", "exchange_rates", "shift_hours", "inspections",
          "campaign_mails", "claims", "bookings", "transfers", "stock_counts", "complaints")
# Plain tables: schema and name.
DIMENSIONS = (("market", "countries"), ("market", "currencies"), ("market", "warehouses"), ("market", "promotions"),
              ("ledger", "accounts"), ("ledger", "tax_classes"))
DIMENSION_ROWS = 50
PLAIN = len(DIMENSIONS)
ROOTS = len(FACTS) + len(OTHERS)
LEAST = PLAIN + 3 * ROOTS

# Column kinds: type, value for row number `i` in a partition that begins on day `lo`. None of them needs a TOAST table.
SMALL = {
    "units": ("integer", "i % 900 + 1"),
    "amount": ("numeric(12,2)", "round(i * 1.25, 2)"),
    "weight": ("real", "i / 8.0"),
    "ratio": ("double precision", "1.0 / (i + 1)"),
    "state": ("character varying(12)", "(array['new', 'paid', 'sent', NULL])[i % 4 + 1]"),
    "flag": ("boolean", "i % 3 = 0"),
    "seen_at": ("timestamp with time zone", "timestamptz '2001-02-03 04:05:06+00' + i * interval '1 hour'"),
    "token": ("uuid", "md5(i::text)::uuid"),
    "host": ("inet", "'10.0.0.0'::inet + i"),
    "stretch": ("interval", "i * interval '90 minutes'"),
    "kind": ('"char"', "chr(97 + i % 26)::\"char\""),
    "span": ("bigint", "i * 1000000007::bigint"),
}
# Kinds that share a domain of fixed length.
SHARED = {
    "cents": ("market.cents", "bigint", "i * 100"),
    "quantity": ("market.quantity", "integer", "i % 50 + 1"),
    "percent": ("ledger.percent", "smallint", "i % 101"),
    "score": ("ledger.score", "double precision", "i / 4.0"),
}
# What rows of text hold: separators of COPY, quotes, letters beyond ASCII, nothing.
TEXT = "(array[E'tab\\there', E'back\\\\slash', 'it''s', 'Firnschnee äöü ❄', '', E'two\\nlines', NULL])[i % 7 + 1]"


class Root:
    """One partitioned table: what the SQL of its file says."""

    def __init__(self, number, name, partitions, without):
        self.number, self.name, self.partitions, self.without = number, name, partitions, without
        self.schema = ("ledger", "market")[number % 2]
        self.owner = OWNERS[number % 3]
        self.fact = name in FACTS
        self.table = f"{self.schema}.{name}"
        dice = random.Random(f"firn {number}")
        # (name, definition, value); id and d make the primary key.
        self.columns = [("id", "bigint NOT NULL", "i"), ("d", "date NOT NULL", "lo + i % 5")]
        for kind in dice.sample(sorted(SHARED), 2 if self.fact else 1):
            domain, base, value = SHARED[kind]
            self.columns.append((kind, base if "domains" in without else domain, value))
        for kind in dice.sample(sorted(SMALL), dice.randint(4, 6) if self.fact else dice.randint(2, 4)):
            self.columns.append((kind, SMALL[kind][0], SMALL[kind][1]))
        if number % 3 == 1:
            self.columns.append(("remark", "text" if "domains" in without else "market.remark", TEXT))
        self.batch_default()
        # Columns that refer to plain tables.
        self.references = []
        if self.fact or number % 3 == 0:
            for n in dice.sample(range(PLAIN), 2 if self.fact else 1):
                schema, dimension = DIMENSIONS[n]
                self.references.append((f"{dimension}_id", f"{schema}.{dimension}"))
                self.columns.append((f"{dimension}_id", "integer", f"i % {DIMENSION_ROWS} + 1"))
        self.indexed = [c[0] for c in self.columns[2:4]] if number % 2 == 0 else []

    def batch_default(self):
        if "functions" in self.without:
            self.columns.append(("batch", "integer DEFAULT 1 NOT NULL", "i"))
        else:
            call = ("ledger.batch_of_day()", "market.batch_of_shop()")[self.number % 2]
            self.columns.append(("batch", f"integer DEFAULT {call} NOT NULL", "i"))

    def partition(self, n):
        return f"{self.table}_p{n:05d}"

    def bounds(self, n):
        lo = FIRST_DAY + datetime.timedelta(days=DAYS * n)
        return lo, lo + datetime.timedelta(days=DAYS)

    def checks(self):
        yield f"CONSTRAINT {self.name}_batch CHECK (batch > 0)"
        if "functions" not in self.without:
            call = ("market.is_sane(id)", "ledger.in_calendar(d)")[self.number % 2]
            yield f"CONSTRAINT {self.name}_sane CHECK ({call})"

    def sql(self):
        """One file: the table, partitions in batches, the default partition, rows."""
        without = self.without
        as_owner = [] if "owners" in without else [f"SET ROLE {self.owner};"]
        body = [f"    {name} {definition}" for name, definition, _ in self.columns]
        yield from as_owner
        yield f"CREATE TABLE {self.table} (\n" + ",\n".join(body) + "\n) PARTITION BY RANGE (d);"
        if "grants" not in without:
            yield f"GRANT SELECT ON {self.table} TO {READER};"
            yield f"GRANT INSERT, UPDATE ({self.columns[2][0]}) ON {self.table} TO PUBLIC;"
        if "comments" not in without:
            yield f"COMMENT ON TABLE {self.table} IS 'what a day''s {self.name} bring';"
            yield f"COMMENT ON COLUMN {self.table}.d IS 'the day, in the shop''s own time';"
        for n in range(self.partitions):
            if n % BATCH == 0:
                yield "BEGIN;"
            yield from self.one(n)
            if n % BATCH == BATCH - 1 or n == self.partitions - 1:
                yield "COMMIT;"
        yield f"CREATE TABLE {self.table}_default PARTITION OF {self.table} DEFAULT;"
        if as_owner:
            yield "RESET ROLE;"
        yield "BEGIN;"
        for n in range(7, self.partitions, 100):
            yield self.rows(self.partition(n), self.bounds(n)[0], 5 + n % 7)
        yield self.rows(f"{self.table}_default", datetime.date(1900, 1, 1), 3)
        yield "COMMIT;"

    def keys(self):
        """Another: constraints, index and trigger. All partitions of all tables are there by then, for each PARTITION OF
        reads the whole of pg_constraint."""
        for check in self.checks():
            yield f"ALTER TABLE {self.table} ADD {check};"
        yield f"ALTER TABLE {self.table} ADD CONSTRAINT {self.name}_pkey PRIMARY KEY (id, d);"
        if self.indexed:
            yield f"CREATE INDEX {self.name}_look ON {self.table} ({', '.join(self.indexed)});"
        if "triggers" not in self.without and self.number in (0, 3, 8, 13):
            yield (f"CREATE TRIGGER {self.name}_touch BEFORE INSERT OR UPDATE ON {self.table} "
                   "FOR EACH ROW EXECUTE FUNCTION market.touch();")

    def one(self, n):
        lo, hi = self.bounds(n)
        name = self.partition(n)
        yield f"CREATE TABLE {name} PARTITION OF {self.table} FOR VALUES FROM ('{lo}') TO ('{hi}');"
        if "comments" not in self.without and n % 50 == 11:
            yield f"COMMENT ON TABLE {name} IS 'closed on {hi}';"
        if "grants" not in self.without and n % 10 == 3:
            yield f"GRANT SELECT, DELETE ON {name} TO {READER};"
        # Here and there another role owns a partition.
        if "owners" not in self.without and n % 97 == 5:
            yield f"RESET ROLE; ALTER TABLE {name} OWNER TO {OWNERS[(self.number + 1) % 3]}; SET ROLE {self.owner};"

    def rows(self, table, lo, count):
        names = ", ".join(c[0] for c in self.columns)
        values = ", ".join(c[2] for c in self.columns)
        return (f"INSERT INTO {table} ({names}) SELECT {values} "
                f"FROM generate_series(1, {count}) i, (SELECT date '{lo}') x (lo);")


def roles():
    for role in (*OWNERS, READER):
        yield f"DO $$ BEGIN CREATE ROLE {role}; EXCEPTION WHEN duplicate_object THEN END $$;"


def before(without):
    """Schemas, shared domains and functions, plain tables."""
    yield "CREATE SCHEMA ledger;"
    yield "CREATE SCHEMA market;"
    if "owners" not in without:
        yield f"ALTER SCHEMA ledger OWNER TO {OWNERS[0]};"
        # Only while the tables are made: each owner makes its own.
        yield f"GRANT USAGE, CREATE ON SCHEMA ledger, market TO {', '.join(OWNERS)};"
    yield "GRANT USAGE ON SCHEMA market TO PUBLIC;"
    if "domains" not in without:
        yield "CREATE DOMAIN market.cents AS bigint CONSTRAINT cents_check CHECK (VALUE >= 0);"
        yield "CREATE DOMAIN market.quantity AS integer DEFAULT 1 CONSTRAINT quantity_check CHECK (VALUE > 0);"
        yield "CREATE DOMAIN ledger.percent AS smallint CONSTRAINT percent_check CHECK (VALUE >= 0 AND VALUE <= 100);"
        yield "CREATE DOMAIN ledger.score AS double precision CONSTRAINT score_check CHECK (VALUE >= 0);"
        yield "CREATE DOMAIN market.remark AS text CONSTRAINT remark_check CHECK (length(VALUE) < 10000);"
        yield "COMMENT ON DOMAIN market.cents IS 'hundredths of the currency';" if "comments" not in without else ""
    if "functions" not in without:
        yield from functions(without)
    if "triggers" not in without:
        yield ("CREATE FUNCTION market.touch() RETURNS trigger LANGUAGE plpgsql AS\n"
               "$$ BEGIN NEW.batch := greatest(NEW.batch, 1); RETURN NEW; END $$;")
    for n, (schema, name) in enumerate(DIMENSIONS):
        key = ("integer PRIMARY KEY", "integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY", "serial PRIMARY KEY")[n % 3]
        yield (f"CREATE TABLE {schema}.{name} (id {key}, label character varying(40) NOT NULL, "
               "rank integer DEFAULT 0, CONSTRAINT label_known UNIQUE (label));".replace("label_known", f"{name}_label"))
        yield (f"INSERT INTO {schema}.{name} SELECT i, '{name} ' || i, i % 7 "
               f"FROM generate_series(1, {DIMENSION_ROWS}) i;")
        # Foreign keys look their rows up as this owner, who needs USAGE: pg_restore loads rows before it grants any.
        if "owners" not in without and schema == "ledger":
            yield f"ALTER TABLE {schema}.{name} OWNER TO {OWNERS[0]};"
        if "foreign-keys" not in without and "owners" not in without:
            yield f"GRANT REFERENCES ON {schema}.{name} TO {', '.join(OWNERS)};"


def functions(without):
    cents = "bigint" if "domains" in without else "market.cents"
    yield "CREATE FUNCTION ledger.batch_of_day() RETURNS integer LANGUAGE sql STABLE AS 'SELECT 1 + 1';"
    yield ("CREATE FUNCTION market.batch_of_shop() RETURNS integer LANGUAGE plpgsql AS\n"
           "$$ BEGIN RETURN ledger.batch_of_day() * 2; END $$;")
    yield ("CREATE FUNCTION market.is_sane(number bigint) RETURNS boolean LANGUAGE sql IMMUTABLE\n"
           "RETURN number > -1000000;")
    yield ("CREATE FUNCTION ledger.in_calendar(day date) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS\n"
           "$$ BEGIN RETURN day > date '1800-01-01'; END $$;")
    yield f"CREATE FUNCTION market.price(value {cents}) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN value / 100.0;"


def after(roots, without):
    """What comes when all partitions are there: foreign keys and views."""
    if "foreign-keys" not in without:
        for root in roots:
            for column, target in root.references:
                yield (f"ALTER TABLE {root.table} ADD CONSTRAINT {root.name}_{column} FOREIGN KEY ({column}) "
                       f"REFERENCES {target} (id);")
    if "views" not in without:
        yield from views(roots, without)
    if "owners" not in without:
        yield f"REVOKE USAGE, CREATE ON SCHEMA ledger, market FROM {', '.join(OWNERS)};"
        yield f"GRANT ALL ON SCHEMA ledger TO {OWNERS[0]};"
    if "grants" not in without:
        yield f"GRANT USAGE ON SCHEMA ledger TO {READER};"


def views(roots, without):
    """Four layers: one view of each table, of pairs of those, of all pairs, and one with a function."""
    layer = []
    for root in roots:
        name = f"{root.schema}.{root.name}_v"
        yield f"CREATE VIEW {name} AS SELECT id, d, batch, {root.columns[2][0]} AS first FROM {root.table};"
        if "owners" not in without:
            yield f"ALTER VIEW {name} OWNER TO {root.owner};"
        layer.append(name)
    pairs = []
    for n in range(0, len(layer), 2):
        name = f"market.pair_{n // 2}"
        yield (f"CREATE VIEW {name} AS SELECT a.d, sum(a.batch) AS batches FROM {layer[n]} a "
               f"JOIN {layer[n + 1]} b USING (id, d) GROUP BY a.d;")
        pairs.append(name)
    yield "CREATE VIEW ledger.everything AS " + " UNION ALL ".join(f"SELECT d, batches FROM {p}" for p in pairs) + ";"
    day = "true" if "functions" in without else "ledger.in_calendar(d)"
    yield f"CREATE VIEW market.calendar AS SELECT d, count(*) AS n FROM ledger.everything WHERE {day} GROUP BY d;"
    if "grants" not in without:
        yield f"GRANT SELECT ON market.calendar TO {READER};"
    if "comments" not in without:
        yield "COMMENT ON VIEW market.calendar IS 'days of all';"


def make_roots(tables, without):
    if tables < LEAST:
        raise SystemExit(f"at least {LEAST} tables: {ROOTS} partitioned ones with two partitions each, {PLAIN} plain ones")
    ranges = tables - PLAIN - 2 * ROOTS
    return [Root(n, name, ranges // ROOTS + (n < ranges % ROOTS), without)
            for n, name in enumerate(FACTS + OTHERS)]


def tables_with(leaves):
    """How many tables there are in all when each root has so many partitions, the DEFAULT partition among them."""
    return PLAIN + ROOTS * (leaves + 1)


def write(folder, tables, without=()):
    """Write the files; the names in the order in which they are to be run, those of one list at the same time."""
    os.makedirs(folder, exist_ok=True)
    roots = make_roots(tables, without)
    parts = {"00-roles.sql": roles() if {"owners", "grants"} - set(without) else (), "10-before.sql": before(without)}
    parts |= {f"50-root-{r.number:02d}-{r.name}.sql": r.sql() for r in roots}
    parts |= {f"70-keys-{r.number:02d}-{r.name}.sql": r.keys() for r in roots}
    parts["90-after.sql"] = after(roots, without)
    for name, statements in parts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.writelines(s + "\n" for s in statements if s)
    names = list(parts)
    return [names[:1], names[1:2], names[2:2 + ROOTS], names[2 + ROOTS:-1], names[-1:]]


def load(folder, steps, conninfo, connections=2, psql="psql"):
    """Run the files: those of one step on so many connections, whoever is free taking the next."""
    failed = []

    def work(queue):
        while queue and not failed:
            name = queue.pop(0)
            begin = time.time()
            r = subprocess.run([psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", conninfo, "-f", os.path.join(folder, name)],
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env=dict(os.environ, PGOPTIONS="-c client_min_messages=warning", PGCLIENTENCODING="UTF8"))
            if r.returncode != 0:
                failed.append(f"{name}: {r.stdout[-2000:]}")
            elif time.time() - begin > 10:
                print(f"{name} in {time.time() - begin:.0f} s", flush=True)

    for names in steps:
        queue = list(names)
        threads = [threading.Thread(target=work, args=(queue,)) for _ in range(connections)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if failed:
            raise RuntimeError("\n".join(failed))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=10_000, help=f"partitioned tables, partitions, plain tables (from {LEAST})")
    parser.add_argument("--leaves", type=int, help="in place of --tables: so many partitions of each root")
    parser.add_argument("--out", required=True, help="the folder for the files")
    parser.add_argument("--without", default="", help=f"comma-separated, of {', '.join(FEATURES)}")
    parser.add_argument("--load", metavar="CONNINFO", help="also run them on this empty database")
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--psql", default="psql")
    args = parser.parse_args()
    without = [w for w in args.without.split(",") if w]
    if unknown := set(without) - set(FEATURES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if args.leaves:
        args.tables = tables_with(args.leaves)
    steps = write(args.out, args.tables, without)
    if args.load:
        begin = time.time()
        load(args.out, steps, args.load, args.connections, args.psql)
        print(f"{args.tables} tables in {time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
