"""`firn restore`: what comes back is what was dumped, whatever happens on the way.

Lanes do it together, each with servers of its own; those that come later begin with the last.

FIRN_SHARE=N: a case that there is for PostgreSQL 15 and for 18 is run on one of them, on 18 one of N, drawn anew each time (FIRN_SHARE_SEED).
FIRN_SAMPLE=N: in the longest parts, of cases that there are many of, those whose names begin alike, each is run one time of N (one of
both versions' pair one of N times as many), drawn by the same seed."""
import collections
import os
import random
import re

from harness import lanes
from restore import again, alone, applications, asowner, behind, beside, catalogs, common, compared, counted, crowded, damage, dumpsuite, early, errors, existing, faults, flags, foreign, hooks, \
    hostile, inorder, inserts, kills, late, likeness, looked, memory, misnamed, money, old, order, parts, planned, probing, redirect, refused, regression, renamed, roundtrip, secrets, shapes, \
    statistics, stopping, tables, trees, unwritten, verified, versions

PARTS = (roundtrip, catalogs, dumpsuite, applications, shapes, flags, likeness, inorder, compared, asowner, secrets, unwritten, verified, money, versions, old, order, early, looked, refused, behind, foreign, trees, probing,
         planned, statistics, errors, damage, kills, faults, existing, again, hostile, hooks, beside, late, inserts, tables, crowded, stopping, memory, parts, alone, redirect, renamed, misnamed,
         regression)
# They make what is kept for later runs, or look for it, and do not look out for others who make it.
KEEPING = (dumpsuite, misnamed, applications, regression, renamed, alone, likeness)

# Of long ones lanes do single cases, so that none is busy with such a part while the others have nothing left: their cases have the same names each time.
BY_CASE = (verified, shapes, asowner, flags, versions, behind, foreign, secrets, early, existing, hostile, tables, late, again, order, inorder, old)

# What their cases do on the newer version is not what those of the same name do on the older: flags, objects and draws of its own.
ITS_OWN = (dumpsuite, applications, hooks, old)

# The longest by far. So many cases whose names begin with the same two words are of one kind.
SAMPLED, KIND = (old, shapes, existing, early), 4


def claimed():
    """The parts that this process is to do, each asked for when its turn comes."""
    comes_later = lanes.NUMBER != lanes.OF_RESTORE
    for part in reversed(PARTS) if comes_later else PARTS:
        if not (comes_later and part in KEEPING) and (part in BY_CASE or lanes.claim(part.__name__)):
            yield part


def twin_of(name):
    """The version that a case names, and what the same case is called on the other one; of none and of both there is none."""
    for version, other in (common.OLD, common.NEW), (common.NEW, common.OLD):
        twin = re.sub(rf"\b{version}\b", other, name)
        if twin != name and not re.search(rf"\b{other}\b", name):
            return version, twin
    return None, None


def kind(name):
    """What the names of cases of one kind begin with."""
    return " ".join(name.split()[:2])


class Share:
    """Which of the cases that differ from others by the server's version alone are run, and which of those of the longest parts."""

    def __init__(self):
        # (Without the newer version all are run on the older.)
        self.of = int(os.environ.get("FIRN_SHARE", 1)) if common.pg18() else 1
        self.sample = int(os.environ.get("FIRN_SAMPLE", 1))
        self.sampled, self.left_out = 0, 0
        self.seed = os.environ.get("FIRN_SHARE_SEED") or str(random.SystemRandom().randrange(1 << 32))
        self.on = collections.Counter()

    def drawn(self, part, cases):
        cases = list(cases)
        names = {name for name, _ in cases} if part not in ITS_OWN else ()
        kinds = collections.Counter(kind(name) for name, _ in cases)
        for name, body in cases:
            version, twin = twin_of(name)
            if self.of > 1 and twin in names:
                # (By their names: which process comes to which part is chance.)
                newer = not random.Random(f"{self.seed} {min(name, twin)}").randrange(self.of)
                if version != (common.NEW if newer else common.OLD):
                    continue
            if part in SAMPLED and self.sample > 1 and kinds[kind(name)] >= KIND:
                if random.Random(f"{self.seed} of {name}").randrange(self.sample):
                    self.left_out += 1
                    continue
                self.sampled += 1
            if self.of > 1 and twin in names:
                self.on[version] += 1
            yield name, body

    def tell(self):
        if self.on:
            parts = ", ".join(f"{count} on {version}" for version, count in sorted(self.on.items()))
            print(f"     of cases for both versions {parts} were run, FIRN_SHARE={self.of} FIRN_SHARE_SEED={self.seed}", flush=True)
        if self.left_out:
            print(f"     of {self.sampled + self.left_out} cases of many in the longest parts {self.sampled} were drawn, FIRN_SAMPLE={self.sample} FIRN_SHARE_SEED={self.seed}", flush=True)


def run(tally, pattern):
    world, share = common.World(), Share()
    try:
        for part in claimed():
            for name, body in share.drawn(part, part.cases(world)):
                if pattern in name and (part not in BY_CASE or lanes.claim(f"restore {name}")):
                    tally.case(f"restore {name}", body)
        share.tell()
        for server in world.servers.values():
            tally.case(f"restore server log {server.version}", lambda: quiet(server))
    finally:
        counted.tell()
        world.close()


def quiet(server):
    assert not server.alarms("."), server.alarms(".")
