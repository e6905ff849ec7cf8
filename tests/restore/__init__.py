"""`firn restore`: what comes back is what was dumped, whatever happens on the way.

Lanes do it together, each with servers of its own; those that come later begin with the last."""
from harness import lanes
from restore import again, alone, applications, asowner, behind, beside, catalogs, common, compared, counted, crowded, damage, dumpsuite, early, errors, existing, faults, flags, foreign, hooks, \
    hostile, inorder, inserts, kills, late, likeness, looked, memory, misnamed, money, old, order, parts, planned, probing, redirect, refused, regression, renamed, roundtrip, secrets, shapes, \
    statistics, stopping, tables, trees, unwritten, verified, versions

PARTS = (roundtrip, catalogs, dumpsuite, applications, shapes, flags, likeness, inorder, compared, asowner, secrets, unwritten, verified, money, versions, old, order, early, looked, refused, behind, foreign, trees, probing,
         planned, statistics, errors, damage, kills, faults, existing, again, hostile, hooks, beside, late, inserts, tables, crowded, stopping, memory, parts, alone, redirect, renamed, misnamed,
         regression)
# They make what is kept for later runs, or look for it, and do not look out for others who make it.
KEEPING = (dumpsuite, misnamed, applications, regression, renamed, alone, likeness)


def claimed():
    """The parts that this process is to do, each asked for when its turn comes."""
    comes_later = lanes.NUMBER != lanes.OF_RESTORE
    for part in reversed(PARTS) if comes_later else PARTS:
        if not (comes_later and part in KEEPING) and lanes.claim(part.__name__):
            yield part


def run(tally, pattern):
    world = common.World()
    try:
        for part in claimed():
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
