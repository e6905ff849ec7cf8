"""What grows: each operation many times in one session, ten times the data, and much of everything.

FIRN_GROWTH repetitions (150; the full length is 10000), each operation for FIRN_GROWTH_SECONDS at most. FIRN_GROWTH_OUT names
a file for the measures, of which `growth/table.py BEFORE AFTER` makes the tables of docs/internals/growth.md.
FIRN_GROWTH_AM=heap repeats the operations on heap tables, to see what is PostgreSQL's own. No time is tested."""
import json
import os

from harness.cluster import Cluster

from . import much, repeat, size
from .measure import short

N = int(os.environ.get("FIRN_GROWTH", "150"))
SECONDS = float(os.environ.get("FIRN_GROWTH_SECONDS", "1e9"))
OUT = os.environ.get("FIRN_GROWTH_OUT")
CONF = ["autovacuum=off", "fsync=off", "shared_buffers=8MB", "jit=off", "max_prepared_transactions=4", "synchronous_commit=off",
        "firn.cache_size='64MB'"]


def create():
    cluster = Cluster("growth", CONF).create()
    for name in ("store", "lost"):
        os.mkdir(os.path.join(cluster.root, name))
        os.chmod(os.path.join(cluster.root, name), 0o777)
    with cluster.connect() as c:
        c.execute("CREATE DATABASE growth")
    with cluster.connect("growth") as c:
        c.execute("CREATE EXTENSION firn")
        for server, folder in (("cold", "store"), ("lost", "lost"), ("gone", "nowhere/at/all")):
            c.execute(f"CREATE SERVER {server} FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{cluster.root}/{folder}')")
    return cluster


def keep(name, result):
    if OUT:
        with open(OUT, "a") as f:
            f.write(json.dumps({"name": name, **result}) + "\n")


def one(cluster, name, op):
    result = repeat.repeat(cluster, name, op, N, SECONDS)
    keep(name, result)
    print("     " + repeat.line(name, result), flush=True)
    if result["lost"]:
        cluster.wait_ready()
    assert not result["lost"], result["lost"]
    assert not result["surprises"], result["surprises"]
    bad = repeat.grown(op, result)
    assert not bad, bad


# Of each thing how much there is: at few repetitions, at the full length.
MUCH = {
    "large arrays": (much.arrays, 4, 20),
    "large values moved": (much.moves, 16, 100),
    "partitions": (much.partitions, 60, 500),
    "stripes": (much.stripes, 1000, 20000),
    "tables": (much.tables, 100, 4000),
}


def tell(name, few, many, why=""):
    keep(name, {"few": few, "many": many})
    if few is not None:
        measure = "open files" if "open files" in name else "resident"
        print(f"     {name}: {short(measure, few)} {short(measure, many)}{why and ', as ' + why}", flush=True)


def of_sizes(cluster, n):
    bad = size.sizes(cluster, n, lambda name, *told: tell(f"{n} and {10 * n} rows: {name}", *told))
    assert not bad, bad


def run(tally, pattern):
    cluster = create()
    try:
        for name, op in repeat.cases():
            if pattern in f"repeated: {name}":
                tally.case(f"growth repeated: {name}", lambda: one(cluster, name, op))
        rows = 10_000 if N <= 1000 else 100_000
        if pattern in "size: ten times the data":
            tally.case("growth size: ten times the data", lambda: of_sizes(cluster, rows))
        for name, (body, some, most) in MUCH.items():
            if pattern in f"size: {name}":
                tally.case(f"growth size: {name}", lambda: body(cluster, some if N <= 1000 else most, tell))
        assert not cluster.alarms(), cluster.alarms()
    finally:
        cluster.destroy()
