"""`firn backup`: consistent, complete, readable for pg_restore; and what happens when it is disturbed."""
import os
import subprocess

from backup import compare, damage, stores, trips, trouble
from harness.cluster import Cluster
from harness.program import ROOT

CASES = {
    "round trip": trips.round_trip,
    "like pg_dump": trips.like_pg_dump,
    "compression": trips.compressions,
    "encodings": trips.encodings,
    "manifest": trips.manifest,
    "selection": trips.selections,
    "extensions": trips.extensions,
    "destinations": trips.destinations,
    "list": trips.listing,
    "roles": trips.roles,
    "standby": trips.standby,
    "consistency": trouble.consistency,
    "schema changes": trouble.schema_changes,
    "waiting locks": trouble.waiting_locks,
    "kills": trouble.kills,
    "interrupts": trouble.interrupts,
    "death of the server": trouble.server_death,
    "full disk": trouble.full_disk,
    "memory": trouble.memory,
    "damage": damage.damages,
    "compare": compare.compare,
}


def run(tally, pattern):
    if "FIRN_PROGRAM" not in os.environ:
        subprocess.run(["cargo", "build", "--release", "-q", "-p", "firn-cli"], cwd=ROOT, check=True)
    # Without the extension: the program is for stock servers.
    cluster = Cluster("backup", conf=["shared_preload_libraries=''", "fsync=off", "max_locks_per_transaction=512"]).create()
    try:
        trips.zoo(cluster)
        for name, body in CASES.items():
            if pattern in name:
                tally.case(f"backup {name}", lambda: body(cluster))
        if any(pattern in f"store {name}" for name in stores.CASES):
            with stores.Store(cluster) as store:
                for name, body in stores.CASES.items():
                    if pattern in f"store {name}":
                        tally.case(f"backup store {name}", lambda: body(cluster, store))
    finally:
        cluster.destroy()
