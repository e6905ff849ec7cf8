"""`firn restore` against pg_restore -j on rows: mixed tables, or one big table with five indexes and three foreign keys.

Run through `make bench-restore-rows GIGABYTES=10` or with the options below. The server is the one of run.py. What was made
is dumped in the directory format, dropped, and restored by each program with the same number of jobs. After each run the
dumps of the schema and the numbers of rows of all tables must be those of the source.
"""
import argparse
import os
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import run as bench  # noqa: E402
from restore import common  # noqa: E402

# Bytes of a row of each table on disk, as measured; they decide how many rows a share of the total is.
EVENT, DOCUMENT, LINE, MEASURE, FILE, SMALL = 225, 1330, 61, 70, 20_800, 141
SMALL_TABLES = 300

PARENTS = ("CREATE TABLE accounts AS SELECT i AS id, 'account ' || i AS name FROM generate_series(1, 100000) i; ALTER TABLE accounts ADD PRIMARY KEY (id)",
           "CREATE TABLE devices AS SELECT i AS id, md5(i::text) AS serial FROM generate_series(1, 20000) i; ALTER TABLE devices ADD PRIMARY KEY (id)",
           "CREATE TABLE kinds AS SELECT i::smallint AS id, 'kind ' || i AS name FROM generate_series(1, 50) i; ALTER TABLE kinds ADD PRIMARY KEY (id)",
           "CREATE TABLE events (id bigint NOT NULL, account integer NOT NULL, device integer NOT NULL, kind smallint NOT NULL, "
           "at timestamptz NOT NULL, amount numeric(12,2), note text, payload jsonb)")
# What the big table has when its rows are there.
KEYS = ("ALTER TABLE events ADD PRIMARY KEY (id)", "CREATE INDEX ON events (account, at)", "CREATE INDEX ON events (device)",
        "CREATE INDEX ON events (at)", "CREATE INDEX ON events (kind, amount)",
        "ALTER TABLE events ADD FOREIGN KEY (account) REFERENCES accounts", "ALTER TABLE events ADD FOREIGN KEY (device) REFERENCES devices",
        "ALTER TABLE events ADD FOREIGN KEY (kind) REFERENCES kinds")


def events(rows):
    """The big table's rows, in pieces for several connections."""
    piece = max(1, rows // 8)
    for begin in range(0, rows, piece):
        yield (f"INSERT INTO events SELECT i, 1 + (i * 7919) % 100000, 1 + (i * 104729) % 20000, 1 + i % 50, '2024-01-01'::timestamptz + i * '1 s'::interval, "
               f"(i * 31 % 1000003) / 100.0, 'note ' || md5(i::text), jsonb_build_object('host', 'h' || i % 997, 'code', i % 600, 'trace', md5((i * 3)::text)) "
               f"FROM generate_series({begin + 1}::bigint, {min(begin + piece, rows)}) i")


def mixed(size):
    """(statements for one after the other, statements for any order, statements after these)."""
    first = [*PARENTS,
             "CREATE TABLE documents (key uuid NOT NULL, body jsonb NOT NULL)",
             "CREATE TABLE lines (id bigint NOT NULL, a integer, b integer, c integer, d smallint)",
             "CREATE TABLE measures (at timestamptz NOT NULL, sensor integer NOT NULL, value float8, error float8) PARTITION BY RANGE (at)",
             "CREATE TABLE files (id integer NOT NULL, content bytea)"]
    for m in range(24):
        low, high = (f"{2023 + n // 12}-{n % 12 + 1:02}-01" for n in (m, m + 1))
        first.append(f"CREATE TABLE measures_{m:02} PARTITION OF measures FOR VALUES FROM ('{low}') TO ('{high}')")
    rows = {"documents": 0.25 * size / DOCUMENT, "lines": 0.2 * size / LINE, "measures": 0.15 * size / MEASURE, "files": 0.05 * size / FILE}
    n = {name: int(count) for name, count in rows.items()}
    work = [*events(int(0.3 * size / EVENT)),
            "INSERT INTO documents SELECT md5(i::text)::uuid, jsonb_build_object('id', i, 'title', repeat(md5(i::text), 3), 'tags', (SELECT jsonb_agg(md5((i * j)::text)) "
            f"FROM generate_series(1, 28) j)) FROM generate_series(1::bigint, {n['documents']}) i",
            f"INSERT INTO lines SELECT i, i % 1000, i * 31 % 100003, i / 7, i % 77 FROM generate_series(1::bigint, {n['lines']}) i",
            f"INSERT INTO measures SELECT '2023-01-01'::timestamptz + i * ('729 days'::interval / {n['measures']}), i % 5000, sin(i), 1.0 / i FROM generate_series(1::bigint, {n['measures']}) i",
            "INSERT INTO files SELECT i, (SELECT string_agg(sha512((i * 1000 + j)::text::bytea), '') FROM generate_series(1, 320) j) "
            f"FROM generate_series(1::bigint, {n['files']}) i"]
    for t in range(SMALL_TABLES):
        first.append(f"CREATE TABLE small_{t:03} (id integer PRIMARY KEY, account integer REFERENCES accounts, t text)")
        work.append(f"INSERT INTO small_{t:03} SELECT i, 1 + i % 100000, repeat(md5(i::text), 2) FROM generate_series(1, {int(0.05 * size / SMALL_TABLES / SMALL)}) i")
    after = [*KEYS, "ALTER TABLE documents ADD PRIMARY KEY (key)", "ALTER TABLE lines ADD PRIMARY KEY (id)", "CREATE INDEX ON measures (sensor, at)",
             "ALTER TABLE files ADD PRIMARY KEY (id)"]
    return first, work, after


def fill(server, db, case, size):
    server.fresh(db)
    first, work, after = mixed(size) if case == "mixed" else (list(PARENTS), list(events(int(size / EVENT))), list(KEYS))
    with server.connect(db) as c:
        for sql in first:
            c.execute(sql)
    work.reverse()
    problems = []

    def worker():
        try:
            with server.connect(db) as c:
                while work:
                    c.execute(work.pop())
        except Exception as e:  # told below
            problems.append(e)
    threads = [threading.Thread(target=worker) for _ in range(os.cpu_count())]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems, problems
    with server.connect(db) as c:
        for sql in after:
            c.execute(sql)


TABLES = ("SELECT c.oid::regclass::text FROM pg_class c WHERE c.relkind = 'r' AND c.oid >= 16384 AND c.relnamespace = 'public'::regnamespace "
          "ORDER BY 1")


def content(server, db):
    """(Schema as a dump, rows by table, bytes of tables)."""
    with server.connect(db) as c:
        tables = [t for t, in c.execute(TABLES)]
        rows = {t: c.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables}
        size = c.execute("SELECT sum(pg_table_size(oid)) FROM pg_class WHERE relkind = 'r' AND oid >= 16384").fetchone()[0]
    return server.dump(db, "-s"), rows, int(size)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=("mixed", "big"), default="mixed")
    parser.add_argument("--gigabytes", type=float, default=10, help="10^9 bytes of tables, without indexes")
    parser.add_argument("--jobs", type=lambda s: [int(j) for j in s.split(",")], default=[os.cpu_count()])
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, one after the other in turns")
    parser.add_argument("--folder", default="/tmp", help="where the server's files and the archive are")
    parser.add_argument("--compress", default="1", help="gzip level of the archive")
    parser.add_argument("--analyze", action="store_true", help="also run ANALYZE, which pg_restore leaves to the user, after both")
    args = parser.parse_args()
    with bench.ground("rows", args.folder, "maintenance_work_mem=256MB") as (server, folder):
        fill(server, "source", args.case, args.gigabytes * 1e9)
        expected = content(server, "source")
        archive = server.archive("source", os.path.join(folder, "archive"), "d", args.compress, extra=("-j", str(os.cpu_count())))
        stored = sum(os.path.getsize(os.path.join(archive, f)) for f in os.listdir(archive))
        with server.connect() as c:
            c.execute("DROP DATABASE source")
        print(f"{args.case}: {expected[2] / 1e9:.2f} GB in {len(expected[1])} tables with {sum(expected[1].values())} rows, archive {stored / 1e9:.2f} GB\n")
        print(f"{'':26}{'seconds':>9}{'server CPU s':>14}{'cores busy':>12}{'program MiB':>13}  result", flush=True)
        measure(server, archive, expected, args)


def measure(server, archive, expected, args):
    where = server.where("target")
    best = {}
    for jobs in args.jobs:
        analyze = [] if args.analyze else ["--no-analyze"]
        commands = {"firn restore": [*common.program(), *where, "--quiet", *analyze, "-j", str(jobs), archive],
                    "pg_restore": [os.path.join(server.bin, "pg_restore"), *where, "-j", str(jobs), archive]}
        if args.analyze:
            commands["pg_restore"] = ["sh", "-c", 'vacuumdb=$1; jobs=$2; shift 2; "$@" && "$vacuumdb" -h "$0" -Z -j "$jobs" -p ' + f"{server.port} -U postgres target",
                                      server.root, os.path.join(server.bin, "vacuumdb"), str(jobs), *commands["pg_restore"]]
        for _ in range(args.repeat):
            for name, command in commands.items():
                run, cpu = bench.measure(server, command, 7200)
                run.ok()
                found = content(server, "target")
                assert found[:2] == expected[:2], f"{name}: the result differs"
                best[name, jobs] = min(run.seconds, best.get((name, jobs), run.seconds))
                print(f"{name + ' -j ' + str(jobs):26}{run.seconds:9.1f}{cpu:14.1f}{run.busy:12.0%}{run.peak / (1 << 20):13.0f}  equal", flush=True)
        print(f"{'pg_restore/firn, ' + str(jobs) + ' jobs':26}{best['pg_restore', jobs] / best['firn restore', jobs]:9.2f}", flush=True)


if __name__ == "__main__":
    main()
