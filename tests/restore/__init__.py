"""`firn restore`: what comes back is what was dumped, whatever happens on the way."""
from restore import alone, applications, asowner, beside, catalogs, common, crowded, damage, dumpsuite, errors, existing, faults, flags, hostile, \
    inorder, kills, late, likeness, memory, misnamed, old, order, parts, probing, redirect, regression, renamed, roundtrip, secrets, shapes, stopping, \
    tables, unwritten, verified, versions

PARTS = (roundtrip, catalogs, dumpsuite, applications, shapes, flags, likeness, inorder, asowner, secrets, unwritten, verified, versions, old, order, probing,
         errors, damage, kills, faults, existing, hostile, beside, late, tables, crowded, stopping, memory, parts, alone, redirect, renamed, misnamed, regression)


def run(tally, pattern):
    world = common.World()
    skipped = {}

    def case(body):
        try:
            body()
        except common.Missing as e:
            skipped[str(e)] = skipped.get(str(e), 0) + 1

    try:
        for part in PARTS:
            for name, body in part.cases(world):
                if pattern in name:
                    tally.case(f"restore {name}", lambda: case(body))
        for server in world.servers.values():
            tally.case(f"restore server log {server.version}", lambda: quiet(server))
    finally:
        world.close()
    for reason, count in skipped.items():
        print(f"     {count} cases not run: {reason}")


def quiet(server):
    assert not server.alarms(), server.alarms()
