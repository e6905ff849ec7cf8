"""How many partitions a parent gets in a second by plain DDL, in each way that could keep its descriptor small.

Each statement that adds a partition makes the server read the bounds of all that are there. `descriptor.py --partitions 5860` makes
one parent with a primary key, one connection, transactions of --batch, in a database of its own each:

partition of   CREATE TABLE … PARTITION OF, in the order of the bounds
backwards      the same from the last bound to the first
attach         tables made first, with their keys; then ATTACH PARTITION, in the order of the bounds
scattered      the same, in an order in which neighbours are far apart
levels         below intermediate parents, each for a range of √n partitions, which stay: another tree than the archive's
moved          below such parents while these are detached, then DETACH and ATTACH each partition to the real one
staged         as firn does it: below staging parents, then moved by updating the catalogs (the archive restored by firn -j 1)
"""
import argparse
import math
import os
import random
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import run as bench  # noqa: E402
from restore import common  # noqa: E402

COLUMNS = "(id bigint NOT NULL, d integer NOT NULL, v text, n integer"
WAYS = ("partition of", "backwards", "attach", "scattered", "levels", "moved", "staged")


def batches(statements, size):
    for n in range(0, len(statements), size):
        yield "BEGIN;" + "".join(statements[n:n + size]) + "COMMIT;"


def bound(low, high=None):
    return f"FOR VALUES FROM ({low}) TO ({low + 1 if high is None else high})"


def texts(way, count, size):
    yield f"CREATE TABLE p {COLUMNS}, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);"
    every = list(range(count))
    if way == "backwards":
        every.reverse()
    if way in ("attach", "scattered"):
        yield from batches([f"CREATE TABLE p_{n} {COLUMNS}, PRIMARY KEY (id, d));" for n in every], size)
    if way == "scattered":
        random.Random("firn").shuffle(every)
    if way in ("levels", "moved"):
        step = math.isqrt(count)
        for low in range(0, count, step):
            above = f"CREATE TABLE s_{low} {COLUMNS}, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);"
            if way == "levels":
                above = f"CREATE TABLE s_{low} PARTITION OF p {bound(low, low + step)} PARTITION BY RANGE (d);"
            yield above
            below = range(low, min(low + step, count))
            yield from batches([f"CREATE TABLE p_{n} PARTITION OF s_{low} {bound(n)};" for n in below], size)
            if way == "moved":
                yield from batches([f"ALTER TABLE s_{low} DETACH PARTITION p_{n}; ALTER TABLE p ATTACH PARTITION p_{n} {bound(n)};" for n in below], size)
                yield f"DROP TABLE s_{low};"
    elif way in ("attach", "scattered"):
        yield from batches([f"ALTER TABLE p ATTACH PARTITION p_{n} {bound(n)};" for n in every], size)
    else:
        yield from batches([f"CREATE TABLE p_{n} PARTITION OF p {bound(n)};" for n in every], size)


def by_hand(server, way, args):
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CHECKPOINT; SET synchronous_commit = off")
        before, begin = bench.server_cpu(server), time.time()
        for text in texts(way, args.partitions, args.batch):
            c.pgconn.exec_(text.encode())
            if c.pgconn.error_message:
                raise RuntimeError(c.pgconn.error_message.decode())
        return time.time() - begin, bench.server_cpu(server) - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=5860)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--folder", default="/tmp", help="where the server's files are")
    args = parser.parse_args()
    with bench.ground("descriptor", args.folder, "max_locks_per_transaction=512") as (server, folder):
        print(f"{args.partitions} partitions\n{'':16}{'seconds':>9}{'CPU s':>9}", flush=True)
        before = None
        for way in args.ways.split(","):
            if way == "staged":
                if before not in ("partition of", "backwards", "attach", "scattered", "moved"):
                    by_hand(server, "partition of", args)
                archive = server.archive("target", os.path.join(folder, "archive"), "c")
                run, cpu = bench.measure(server, [*common.program(), *server.where("target"), "--quiet", "-j", "1", archive], 3600)
                seconds = run.ok().seconds
            else:
                seconds, cpu = by_hand(server, way, args)
            before = way
            print(f"{way:16}{seconds:9.2f}{cpu:9.2f}", flush=True)


if __name__ == "__main__":
    main()
