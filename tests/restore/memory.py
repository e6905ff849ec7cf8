"""The program's memory: what 164,074 tables will need, from two smaller archives; and rows wider than its buffers."""
import os

from restore import roundtrip
from restore.common import OLD, firn, same

LARGE = 164_074
MORE = 3000
LIMIT = 1 << 30


def grows(world):
    """The peak at 600 and 3,000 tables, continued to the large archive, stays below 1 GiB."""
    server = world.server()
    few = roundtrip.archive(world, OLD, "c", "6")
    db, dump = world.generated(MORE)
    many = world.archive("many", lambda p: server.archive(db, p, "c"))
    for args in (["--dry-run", "--jobs", "8"], ["--jobs", "8"]):
        peaks = []
        for path in (few, many):
            server.fresh("target")
            peaks.append(firn(server, "target", path, *args).ok().peak)
        slope = (peaks[1] - peaks[0]) / (MORE - roundtrip.TABLES)
        guess = peaks[0] + slope * (LARGE - roundtrip.TABLES)
        print(f"     {args[0]}: {peaks[0] >> 20} and {peaks[1] >> 20} MiB, {guess / (1 << 20):.0f} MiB at {LARGE} tables")
        assert guess < LIMIT, f"{guess / (1 << 20):.0f} MiB"
    same(dump, server.dump("target"))


def large(world):
    """The archive named by FIRN_LARGE_ARCHIVE, whole, within 1 GiB."""
    path = os.environ["FIRN_LARGE_ARCHIVE"]
    server = world.server()
    server.fresh("target")
    run = firn(server, "target", path, "--dry-run", "--jobs", "8").ok()
    print(f"     {run.peak >> 20} MiB in {run.seconds:.0f} s")
    assert run.peak < LIMIT, f"{run.peak >> 20} MiB"


def wide(world):
    """Rows of 30 MB, COPY lines longer than any buffer, large objects: bounded memory, the same rows."""
    server = world.server()
    db = server.fresh("wide")
    with server.connect(db) as c:
        c.execute("CREATE TABLE w (id int, t text)")
        c.execute("INSERT INTO w SELECT i, repeat(chr(96 + i), 30000000) FROM generate_series(1, 4) i")
        c.execute(r"INSERT INTO w SELECT 9, repeat(E'\\\t\n', 1000000)")
        c.execute("CREATE TABLE n AS SELECT i FROM generate_series(1, 2000000) i")
        c.execute("SELECT lo_from_bytea(0, convert_to(repeat('0123456789', 4000000), 'UTF8'))")
    dump = server.dump(db)
    for form in "cd":
        path = world.archive(f"wide-{form}", lambda p: server.archive(db, p, form))
        server.fresh("target")
        run = firn(server, "target", path, "--jobs", "2").ok()
        assert run.peak < 256 << 20, f"{run.peak >> 20} MiB"
        same(dump, server.dump("target"))


def cases(world):
    yield "memory grows", lambda: grows(world)
    yield "memory wide rows", lambda: wide(world)
    if os.environ.get("FIRN_LARGE_ARCHIVE"):
        yield "memory large archive", lambda: large(world)
