"""What is restored is not restored twice: neither by --resume when it is complete, nor beside another that works."""
from restore.common import firn

ROOT = """
CREATE TABLE m (id int) PARTITION BY RANGE (id); CREATE TABLE m_a PARTITION OF m FOR VALUES FROM (0) TO (1000);
CREATE TABLE m_b PARTITION OF m FOR VALUES FROM (1000) TO (2000); INSERT INTO m SELECT generate_series(0, 1999);
"""
# The same table otherwise partitioned: without the archive's partitions, with them empty, or as one table.
OTHERWISE = {
    "other partitions": "CREATE TABLE m (id int) PARTITION BY RANGE (id); CREATE TABLE m_all PARTITION OF m DEFAULT",
    "empty partitions": "CREATE TABLE m (id int) PARTITION BY RANGE (id); CREATE TABLE m_a PARTITION OF m FOR VALUES FROM (5000) TO (6000);"
                        "CREATE TABLE m_b PARTITION OF m FOR VALUES FROM (6000) TO (7000); CREATE TABLE m_all PARTITION OF m DEFAULT",
    "one table": "CREATE TABLE m (id int)",
}


def through_root(world, target, extra):
    """Rows that came through a table of another name: that one is looked at, too."""
    server = world.server()

    def make(path):
        with server.connect(server.fresh("again_root")) as c:
            c.execute(ROOT)
        return server.archive("again_root", path, "c", extra=("-a", "--load-via-partition-root", *extra))
    path = world.archive("again-root" + "".join(extra), make)
    server.fresh("target")
    with server.connect("target") as c:
        c.execute(OTHERWISE[target])
    # Nothing is there: it begins.
    firn(server, "target", path, "-a", "--resume").ok()
    for _ in range(2):
        firn(server, "target", path, "-a", "--resume").fails("there is no unfinished restore", "m has rows")
        with server.connect("target") as c:
            assert c.execute("SELECT count(*) FROM m").fetchone() == (2000,)


def cases(world):
    for target in OTHERWISE:
        for extra in ((), ("--inserts",)):
            yield f"again through a root, {target} {' '.join(extra)}", lambda t=target, e=extra: through_root(world, t, e)
