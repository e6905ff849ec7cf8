"""Transactions of many statements that define, build, empty, fill and move, with savepoints that are rolled back, on twins.

A world is a pair of databases, a program of steps that follows from a seed, and what is compared after each (sub)transaction:
rows by each way and index, counts, another session's view, an older snapshot's, firn.check, amcheck, and a REINDEX. A program
in which something differs is run again with steps left out, until none can be; what is left is printed, and FIRN_TX_PROGRAM
names a file of such steps to be run.

One world follows the other for FIRN_TX_SECONDS (default 30), FIRN_TX_WORLDS at least (default 5); FIRN_SEED is the first's seed.

`program.py`: what is done. `world.py`: how it is carried out and compared. `look.sql`: how tables are looked at."""
import ast
import os
import random
import time

from harness.cluster import Cluster
from transactions.program import COLUMNS, Program
from transactions.world import World, make_templates

WORLDS = int(os.environ.get("FIRN_TX_WORLDS", "5"))
SECONDS = int(os.environ.get("FIRN_TX_SECONDS", "30"))
SEED = int(os.environ.get("FIRN_SEED", random.randrange(1 << 30)))
TRANSACTIONS = 6
# What PostgreSQL warns of where a program happens to ask for it, on heap alike.
WARNED = "cannot reindex exclusion constraint index \".*\" concurrently, skipping"


def carry_out(cluster, name, steps):
    world = World(cluster, name)
    try:
        return world.run(steps), world.errors
    finally:
        world.close()


def kind(found):
    """What two findings must have in common to be taken for one: numbers and names aside."""
    return found and "".join(c for c in found[1][:60] if not c.isdigit())


def shrink(cluster, steps, found):
    """Leave out what is not needed for a difference of this kind."""
    steps = steps[:found[0] + 1]
    size = max(1, len(steps) // 2)
    until = time.time() + 300
    while time.time() < until:
        at, less = 0, False
        while at < len(steps) - 1 and time.time() < until:
            fewer = steps[:at] + steps[min(at + size, len(steps) - 1):]
            again, _ = carry_out(cluster, "twins", fewer)
            if kind(again) == kind(found):
                steps, found, less = fewer[:again[0] + 1], again, True
            else:
                at += size
        if size == 1 and not less:
            break
        size = max(1, size // 2)
    return steps, found


def told(steps, found):
    return f"{found[1]}\nafter:\n" + "".join(f"{step!r}\n" for step in steps)


def world(cluster, seed, tallied):
    steps = Program(seed, TRANSACTIONS).steps
    found, errors = carry_out(cluster, "twins", steps)
    tallied["worlds"] = tallied.get("worlds", 0) + 1
    tallied["steps"] = tallied.get("steps", 0) + len(steps)
    for state, n in errors.items():
        tallied[state] = tallied.get(state, 0) + n
    if found:
        print(f"seed {seed}: {found[1]}; made smaller now", flush=True)
        raise AssertionError(f"seed {seed}: {told(*shrink(cluster, steps, found))}")


def replay(cluster, path):
    with open(path) as f:
        same(cluster, [ast.literal_eval(line) for line in f if line.startswith("(")])


def same(cluster, steps):
    found, _ = carry_out(cluster, "twins", steps)
    assert not found, found


def warned(cluster):
    """What few seeds come to: the warnings that the server's log may have."""
    same(cluster, [("alone", f"CREATE TABLE a ({COLUMNS})"), ("alone", "ALTER TABLE a ADD EXCLUDE (id WITH =)"),
                   ("alone", "INSERT INTO a SELECT i, i, i, 'v' FROM generate_series(1, 30) i"), ("alone", "REINDEX TABLE CONCURRENTLY a"), ("check", True)])


def run(tally, pattern):
    cluster = Cluster("transactions", ["fsync=off", "autovacuum=off", "shared_buffers=64MB", "max_prepared_transactions=20"]).create()
    began, tallied, number = time.time(), {}, 0
    try:
        make_templates(cluster)
        if os.environ.get("FIRN_TX_PROGRAM"):
            tally.case("the program", lambda: replay(cluster, os.environ["FIRN_TX_PROGRAM"]))
        else:
            while number < WORLDS or time.time() < began + SECONDS:
                seed = SEED + number
                tally.case(f"transactions, seed {seed}", lambda: world(cluster, seed, tallied))
                number += 1
            print(f"seeds from {SEED} on: {tallied}")
            tally.case("warnings of programs", lambda: warned(cluster))
        tally.case("transactions server log", lambda: _quiet(cluster))
    finally:
        cluster.destroy()


def _quiet(cluster):
    assert not cluster.alarms(WARNED), cluster.alarms(WARNED)
