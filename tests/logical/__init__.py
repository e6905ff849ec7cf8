"""Logical decoding and replication of firn tables: what plugins decode is what they decode of heap tables, and subscribers have the publisher's rows.

FIRN_SEED repeats a random run, FIRN_ROUNDS says how many; FIRN_SECONDS lets `crashes` go on for so long."""
from harness.cluster import Cluster
from logical import crashes, decoded, random_changes, replay, subscribers, topologies, volume

CONF = ["wal_level=logical", "autovacuum=off", "fsync=off", "logical_decoding_work_mem=64kB", "max_prepared_transactions=20", "jit=off"]


def run(tally, pattern):
    cases = {**decoded.CASES, **volume.CASES, **random_changes.CASES}
    chosen = {f"logical {name}": case for name, case in cases.items() if pattern in name}
    if chosen:
        cluster = Cluster("logical", CONF).create()
        try:
            for name, case in chosen.items():
                tally.case(name, lambda: case(cluster))
            tally.case("logical server log", lambda: quiet(cluster))
        finally:
            cluster.destroy()
    for module in (subscribers, replay, topologies, crashes):
        for name, case in module.CASES.items():
            if pattern in name:
                tally.case(f"logical {name}", lambda: case(CONF))


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()
