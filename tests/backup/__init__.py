"""`firn backup`: consistent, complete, readable for pg_restore; and what happens when it is disturbed."""
import contextlib
import os
import subprocess
import threading

from backup import (basis, compare, damage, encrypted, encrypted_beside, encrypted_keys, expire, faulty, firn_tables, incremental, meanwhile, sealing, stores, trips,
                    trouble)
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
    **encrypted.CASES,
    **encrypted_beside.CASES,
    **encrypted_keys.CASES,
    **expire.CASES,
    **meanwhile.CASES,
}
# Each with a server of its own.
ALONE = {**incremental.CASES, **basis.CASES}


def run(tally, pattern):
    if "FIRN_PROGRAM" not in os.environ:
        subprocess.run(["cargo", "build", "--release", "-q", "-p", "firn-cli"], cwd=ROOT, check=True)
    # Side by side, each with a server of its own: those with an object store mostly wait.
    sides = [threading.Thread(target=side, args=(tally, pattern)) for side in (without_store, with_store, of_the_extension, alone)]
    for thread in sides:
        thread.start()
    for thread in sides:
        thread.join()


def server(name):
    """With the zoo; without the extension, because the program is for stock servers."""
    conf = ["shared_preload_libraries=''", "fsync=off", "max_locks_per_transaction=512"]
    cluster = Cluster(name, conf=conf).create()
    trips.zoo(cluster)
    return cluster


def without_store(tally, pattern):
    cases(tally, pattern, CASES, "backup", lambda _: contextlib.nullcontext())


def with_store(tally, pattern):
    locked = {**encrypted.STORE_CASES, **encrypted_beside.STORE_CASES, **encrypted_keys.STORE_CASES}
    wanted = {**stores.CASES, **faulty.CASES, **locked, **expire.STORE_CASES, **sealing.STORE_CASES}
    cases(tally, pattern, wanted, "backup store", stores.Store)


def of_the_extension(tally, pattern):
    """With a server that has it."""
    chosen = {name: body for name, body in firn_tables.CASES.items() if pattern in f"backup firn {name}"}
    if chosen:
        with firn_tables.Extended() as extended:
            for name, body in chosen.items():
                tally.case(f"backup firn {name}", lambda: body(extended))


def alone(tally, pattern):
    for name, body in ALONE.items():
        if pattern in f"backup {name}":
            tally.case(f"backup {name}", lambda: body(None))


def cases(tally, pattern, all_cases, prefix, surroundings):
    chosen = {name: body for name, body in all_cases.items() if pattern in f"{prefix} {name}"}
    if not chosen:
        return
    cluster = server(prefix.replace(" ", "-"))
    try:
        with surroundings(cluster) as around:
            for name, body in chosen.items():
                tally.case(f"{prefix} {name}", lambda: body(*filter(None, (cluster, around))))
    finally:
        cluster.destroy()
