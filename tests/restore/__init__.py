"""`firn restore`: what comes back is what was dumped, whatever happens on the way."""
from restore import again, alone, applications, asowner, behind, beside, catalogs, common, compared, counted, crowded, damage, dumpsuite, early, errors, existing, faults, flags, foreign, hooks, \
    hostile, inorder, inserts, kills, late, likeness, looked, memory, misnamed, money, old, order, parts, planned, probing, redirect, refused, regression, renamed, roundtrip, secrets, shapes, \
    statistics, stopping, tables, trees, unwritten, verified, versions

PARTS = (roundtrip, catalogs, dumpsuite, applications, shapes, flags, likeness, inorder, compared, asowner, secrets, unwritten, verified, money, versions, old, order, early, looked, refused, behind, foreign, trees, probing,
         planned, statistics, errors, damage, kills, faults, existing, again, hostile, hooks, beside, late, inserts, tables, crowded, stopping, memory, parts, alone, redirect, renamed, misnamed,
         regression)


def run(tally, pattern):
    world = common.World()
    try:
        for part in PARTS:
            for name, body in part.cases(world):
                if pattern in name:
                    tally.case(f"restore {name}", body)
        for server in world.servers.values():
            tally.case(f"restore server log {server.version}", lambda: quiet(server))
    finally:
        counted.tell()
        world.close()


def quiet(server):
    assert not server.alarms(), server.alarms()
