"""ANALYZE at the end: all that got rows has statistics, partitioned tables as a whole, too."""
from restore.common import NEW, OLD, firn

SOURCE = """
CREATE TABLE m (id int, v int) PARTITION BY RANGE (id);
CREATE TABLE m_a PARTITION OF m FOR VALUES FROM (0) TO (1000);
CREATE TABLE m_b PARTITION OF m FOR VALUES FROM (1000) TO (2000) PARTITION BY RANGE (id);
CREATE TABLE m_b1 PARTITION OF m_b FOR VALUES FROM (1000) TO (1500); CREATE TABLE m_b2 PARTITION OF m_b FOR VALUES FROM (1500) TO (2000);
INSERT INTO m SELECT i, i % 7 FROM generate_series(0, 1999) i;
CREATE TABLE plain AS SELECT i FROM generate_series(1, 100) i; CREATE TABLE empty (i int);
"""
# The same table otherwise partitioned.
OTHERWISE = """
CREATE TABLE m (id int, v int) PARTITION BY RANGE (id); CREATE TABLE other PARTITION OF m FOR VALUES FROM (0) TO (600);
CREATE TABLE rest PARTITION OF m DEFAULT; CREATE TABLE plain (i int); CREATE TABLE empty (i int);
"""
# Of whole trees, and of each by itself.
KNOWN = "SELECT DISTINCT starelid::regclass::text, stainherit FROM pg_statistic WHERE starelid >= 16384 ORDER BY 1"


def archive(world, version, extra):
    server = world.server(version)

    def make(path):
        with server.connect(server.fresh("statistics")) as c:
            c.execute(SOURCE)
        return server.archive("statistics", path, "c", extra=("-N", "firn_restore", *extra))
    return server, world.archive("-".join(("statistics", version, *extra)), make)


def known(server):
    with server.connect("target") as c:
        return c.execute(KNOWN).fetchall()


def whole(world, version, ways):
    server, path = archive(world, version, ())
    server.fresh("target")
    firn(server, "target", path, *ways).ok()
    assert known(server) == [("m", True), ("m_a", False), ("m_b", True), ("m_b1", False), ("m_b2", False), ("plain", False)], known(server)


def through_root(world, version, extra):
    """Rows that went into other partitions than the archive says."""
    server, path = archive(world, version, ("-a", "--load-via-partition-root", *extra))
    server.fresh("target")
    with server.connect("target") as c:
        c.execute(OTHERWISE)
    firn(server, "target", path, "-a").ok()
    assert known(server) == [("m", True), ("other", False), ("plain", False), ("rest", False)], known(server)


def some(world, version):
    """Partitions that got no rows are not read, and a table with others is told before version 18, which can do without."""
    server, path = archive(world, version, ("-a",))
    server.fresh("target")
    with server.connect("target") as c:
        c.execute(SOURCE + "DELETE FROM plain; DELETE FROM m_a")
        for table in ("plain", "m_a", "m_b1", "m_b2"):
            c.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    run = firn(server, "target", path, "-a", "-t", "m_a").ok()
    there = [("m", True), ("m_a", False)] if version == NEW else [("m_a", False)]
    assert known(server) == there, known(server)
    assert ("statistics of 1 partitioned tables as a whole are not gathered" in run.out) == (version == OLD), run.out


def foreign(world, version):
    """No other server is asked for rows."""
    server, path = archive(world, version, ("-a",))
    server.fresh("target")
    with server.connect("target") as c:
        c.execute(SOURCE + "TRUNCATE plain, m; CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
                  "CREATE FOREIGN TABLE far PARTITION OF m FOR VALUES FROM (5000) TO (6000) SERVER s")
    run = firn(server, "target", path, "-a").ok()
    assert ("m", True) not in known(server) and ("m_a", False) in known(server), known(server)
    assert "could not analyze" not in run.out and "as a whole are not gathered" in run.out, run.out


def cases(world):
    for version in (OLD, NEW):
        for ways in ([], ["-1"]):
            yield f"statistics {version} {' '.join(ways)}", lambda v=version, w=ways: whole(world, v, w)
        for extra in ((), ("--inserts",)):
            yield f"statistics through a root {version} {' '.join(extra)}", lambda v=version, e=extra: through_root(world, v, e)
        yield f"statistics of some {version}", lambda v=version: some(world, v)
        yield f"statistics beside foreign tables {version}", lambda v=version: foreign(world, v)
