"""Rows as INSERT statements, of which one may end anywhere in what is read at once."""
from restore.common import NEW, OLD, firn

# Of a row much is blanks, where a piece of what is read may end as well.
ROWS = """
CREATE TABLE words (i int, t text); INSERT INTO words SELECT i, repeat('word ', 30) || i FROM generate_series(1, 20000) i;
CREATE TABLE blanks (i int, t text); INSERT INTO blanks SELECT i, repeat(' ', 2000) FROM generate_series(1, 2000) i;
"""
SUMS = "SELECT count(*), md5(string_agg(t || i, '' ORDER BY i)) FROM {}"
WAYS = (["-j", "2"], ["-1"], ["--transaction-size=10"])


def cut_in_blanks(world, version, kind):
    """A statement that is read in two pieces, the first of which ends with blanks of it."""
    server = world.server(version)

    def make(path):
        with server.connect(server.fresh("inserts")) as c:
            c.execute(ROWS)
        return server.archive("inserts", path, "c", extra=(kind,))
    path = world.archive(f"inserts{kind}-{version}", make)

    def sums(db):
        with server.connect(db) as c:
            return [c.execute(SUMS.format(table)).fetchone() for table in ("words", "blanks")]
    server.fresh("oracle")
    server.pg_restore("oracle", path)
    for how in WAYS:
        server.fresh("target")
        firn(server, "target", path, *how).ok()
        assert sums("target") == sums("oracle"), how


def cases(world):
    for version in (OLD, NEW):
        for kind in ("--inserts", "--rows-per-insert=100", "--column-inserts"):
            yield f"inserts cut in blanks {version} {kind}", lambda v=version, k=kind: cut_in_blanks(world, v, k)
