"""Everything against everything: what sessions do while each kind of maintenance runs, on twins of which one is heap.

Every transaction changes both twins alike, so in any one snapshot they are equal. A checker looks at such snapshots all
the time; sessions compare what single statements tell them. Each cell of the matrix (a session's doing, a maintenance
that ran at some time during it) is counted when the session's transaction has ended; the table of visits is printed.

FIRN_MATRIX_STEPS statements in all (default 10,000; `make torture` takes more), FIRN_KILLS how often a backend or the
whole server is killed meanwhile (default 4), FIRN_MATRIX_WORLDS how many servers share the work at the same time
(default 1), FIRN_SEED; FIRN_MATRIX_ONLY names the only maintenance, for looking into a difference.

`doings.py`: what sessions do. `maintenance.py`: the tables and what is done to them. `world.py`: one server at work."""
import multiprocessing
import os
import random
import time
import traceback
from collections import Counter

from harness.cluster import Cluster
from matrix.doings import DOINGS
from matrix.maintenance import MAINTENANCE
from matrix.world import Matrix, prepare

STEPS = int(os.environ.get("FIRN_MATRIX_STEPS", "10000"))
KILLS = int(os.environ.get("FIRN_KILLS", "4"))
WORLDS = int(os.environ.get("FIRN_MATRIX_WORLDS", "1"))
SEED = int(os.environ.get("FIRN_SEED", random.randrange(1 << 30)))
CONF = ["fsync=off", "autovacuum_naptime=1s", "autovacuum_vacuum_cost_delay=0", "max_wal_size=512MB", "shared_buffers=64MB",
        "max_prepared_transactions=20", "autovacuum_vacuum_threshold=5", "autovacuum_vacuum_scale_factor=0"]


def world(number, told):
    """One world in a process of its own: tells what was visited and what was found."""
    seed = SEED + number * 7919
    found, matrix = None, None
    try:
        cluster = Cluster(f"matrix{number}", CONF).create()
        try:
            prepare(cluster)
            matrix = Matrix(cluster, seed, -(-STEPS // WORLDS), -(-KILLS // WORLDS))
            matrix.run()
            alarms = [a for a in cluster.alarms(".") if "terminated by signal 9" not in a]
            assert not alarms, (seed, alarms[:5])
        finally:
            cluster.destroy()
    except BaseException:  # noqa: BLE001 - told to the parent
        found = traceback.format_exc()
    told.put((number, found, matrix and (Counter(matrix.visits), Counter(
        steps=matrix.steps, transactions=matrix.transactions, retries=matrix.retries, checks=matrix.checks, kills=matrix.kills))))


def table(visits):
    width = max(len(m) for m in MAINTENANCE)
    lines = [" " * width + " " + " ".join(f"{i:>5}" for i in range(len(DOINGS)))]
    for m in MAINTENANCE:
        lines.append(f"{m:<{width}} " + " ".join(f"{visits.get((d, m), 0):>5}" for d in DOINGS))
    lines += [f"  {i}: {d}" for i, d in enumerate(DOINGS)]
    return "\n".join(lines)


def run(tally, _pattern):
    told = multiprocessing.Queue()
    began = time.time()
    worlds = [multiprocessing.Process(target=world, args=(i, told)) for i in range(WORLDS)]
    for w in worlds:
        w.start()
    visits, sums = Counter(), Counter()
    for _ in worlds:
        number, found, seen = told.get()
        if seen:
            visits += seen[0]
            sums += seen[1]

        def right(found=found):
            assert not found, found
        tally.case(f"matrix, world {number}, seed {SEED}", right)
    for w in worlds:
        w.join()
    print(table(visits))
    empty = [(d, m) for d in DOINGS for m in MAINTENANCE if not visits[d, m]]
    print(f"{sums['steps']} steps, {sums['transactions']} transactions, {sums['retries']} given up, {sums['checks']} snapshots "
          f"compared, {sums['kills']} kills, {time.time() - began:.0f} s, cells not visited: {len(empty)}")
