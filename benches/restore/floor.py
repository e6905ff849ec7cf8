"""What a server needs for the CREATE TABLEs of a schema alone: the time under which no restore of it can get.

`floor.py --leaves 400` makes the tables of schema.py (28 roots with so many leaves each) from statements that are written out
beforehand, on as many connections as there are cores, each taking the next root: batches of --batch in a transaction,
`synchronous_commit = off`, as firn restores. Beside it, if asked for, the restores of an archive of the same schema.
The server has its default lock table and fsync.
"""
import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import run as bench  # noqa: E402
from restore import common  # noqa: E402
from restore.common import Server, schema  # noqa: E402

# What is made of each root, and how.
WAYS = {
    "tables": "plain tables with the columns of the leaves, no partitions",
    "tables with keys": "the same with the leaves' primary keys and indexes: what has to be in the catalogs and on disk, whoever puts it there",
    "partitions": "CREATE TABLE … PARTITION OF, no keys",
    "attached": "CREATE TABLE and ATTACH PARTITION, no keys",
    "keys first": "PARTITION OF below parents with their primary keys and indexes",
    "keys last": "PARTITION OF, then primary keys and indexes of the parents",
    "all": "the same with CHECK constraints, triggers and foreign keys",
}


def batches(statements, size):
    for n in range(0, len(statements), size):
        yield "BEGIN;" + "".join(statements[n:n + size]) + "COMMIT;"


def leaves(root, way):
    columns = "(" + ", ".join(f"{name} {definition}" for name, definition, _ in root.columns) + ")"
    bounds = [(root.partition(n), f"FOR VALUES FROM ('{lo}') TO ('{hi}')")
              for n in range(root.partitions) for lo, hi in [root.bounds(n)]]
    for name, bound in [*bounds, (f"{root.table}_default", "DEFAULT")]:
        if way == "tables":
            yield f"CREATE TABLE {name} {columns};"
        elif way == "tables with keys":
            more = f" CREATE INDEX ON {name} ({', '.join(root.indexed)});" if root.indexed else ""
            yield f"CREATE TABLE {name} {columns[:-1]}, PRIMARY KEY (id, d));{more}"
        elif way == "attached":
            yield f"CREATE TABLE {name} {columns}; ALTER TABLE ONLY {root.table} ATTACH PARTITION {name} {bound};"
        else:
            yield f"CREATE TABLE {name} PARTITION OF {root.table} {bound};"


def work_of(root, way, size):
    """What one connection runs for a root, as texts of one transaction each."""
    body = ", ".join(f"{name} {definition}" for name, definition, _ in root.columns)
    keys = [s for s in root.keys() if "PRIMARY KEY" in s or "CREATE INDEX" in s]
    others = [s for s in root.keys() if s not in keys]
    if not way.startswith("tables"):
        yield f"CREATE TABLE {root.table} ({body}) PARTITION BY RANGE (d);"
    if way == "keys first":
        yield from keys
    yield from batches(list(leaves(root, way)), size)
    if way in ("keys last", "all"):
        yield from keys
    if way == "all":
        yield from others


def by_hand(server, args, way):
    """(Seconds, seconds of CPU of the server) of one way to make the tables."""
    without = ("owners", "grants", "comments")
    roots = schema.make_roots(args.tables, without)
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("\n".join(schema.before(without)))
        c.execute("CHECKPOINT")
    os.sync()
    queue = [list(work_of(root, way, args.batch)) for root in roots]
    foreign = [f"ALTER TABLE {root.table} ADD CONSTRAINT {root.name}_{column} FOREIGN KEY ({column}) REFERENCES {target} (id);"
               for root in roots for column, target in root.references] if way == "all" else []
    problems = []

    def worker():
        try:
            with server.connect("target") as c:
                c.execute("SET synchronous_commit = off; SET client_min_messages = warning;")
                while queue:
                    for text in queue.pop(0):
                        c.pgconn.exec_(text.encode())
                        if c.pgconn.error_message:
                            raise RuntimeError(c.pgconn.error_message.decode())
        except Exception as e:  # told below
            problems.append(e)
    before, begin = bench.server_cpu(server), time.time()
    threads = [threading.Thread(target=worker) for _ in range(args.jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    with server.connect("target") as c:
        for statement in foreign:
            c.execute(statement)
    seconds = time.time() - begin
    assert not problems, problems
    return seconds, bench.server_cpu(server) - before


def restores(server, args, archive):
    """Name: command."""
    where, jobs = server.where("target"), ["-j", str(args.jobs)]
    firn = [*common.program(), *where, "--quiet", *jobs]
    found = {"firn restore": [*firn, archive],
             "firn restore, no rule": [*firn, "--disable-rule=staged-partitions", archive],
             "pg_restore": [os.path.join(server.bin, "pg_restore"), *where, *jobs, archive]}
    return {name: command for name, command in found.items() if not args.only or name in args.only}


def make_archive(args, folder):
    """An archive of the schema, by a server whose lock table is large enough for pg_dump."""
    server = Server(common.OLD, name="floor-source", base=args.folder)
    try:
        server.create()
        common.generate(server, "source", args.tables)
        return server.archive("source", os.path.join(folder, "archive"), "c")
    finally:
        server.destroy()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leaves", type=int, default=400, help="of each of the 28 roots")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, default=50, help="tables of a transaction")
    parser.add_argument("--ways", default=",".join(WAYS), help="; ".join(f"{name}: {what}" for name, what in WAYS.items()))
    parser.add_argument("--restore", action="store_true", help="also restore an archive of the schema by firn and pg_restore")
    parser.add_argument("--only", action="append", help="of the restores, by name; may be repeated")
    parser.add_argument("--archive", help="an archive of the schema that is there; the path of one that is not: keep it there")
    parser.add_argument("--repeat", type=int, default=1, help="rounds of all")
    parser.add_argument("--folder", default="/tmp", help="where the server's files are")
    args = parser.parse_args()
    args.tables = schema.tables_with(args.leaves)
    ways = [w for w in args.ways.split(",") if w]
    folder = tempfile.mkdtemp(prefix="firn-bench-floor-", dir=args.folder)
    archive = args.archive
    if args.restore and not (archive and os.path.exists(archive)):
        archive = make_archive(args, folder)
        if args.archive:
            archive = shutil.move(archive, args.archive)
    server = Server(common.OLD, conf=(*bench.SERVER, "max_locks_per_transaction=64", "max_connections=100"), name="floor", base=args.folder)
    try:
        server.create()
        with server.connect() as c:
            for role in schema.roles():
                c.execute(role)
        found = {}
        for _ in range(args.repeat):
            runs = {way: lambda way=way: by_hand(server, args, way) for way in ways}
            if args.restore:
                runs |= {name: lambda command=command: by_program(server, command) for name, command in restores(server, args, archive).items()}
            for name, run in runs.items():
                found.setdefault(name, []).append(run())
                seconds, cpu = found[name][-1]
                print(f"{name:24}{seconds:9.2f}{cpu:9.2f}", flush=True)
        print(f"\n{args.tables} tables, {args.jobs} connections; medians\n{'':24}{'seconds':>9}{'CPU s':>9}")
        for name, runs in found.items():
            print(f"{name:24}{statistics.median(s for s, _ in runs):9.2f}{statistics.median(c for _, c in runs):9.2f}")
    finally:
        server.destroy()
        shutil.rmtree(folder, ignore_errors=True)


def by_program(server, command):
    run, cpu = bench.measure(server, command, 3600)
    run.ok()
    return run.seconds, cpu


if __name__ == "__main__":
    main()
