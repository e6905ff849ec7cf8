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


WAYS = ([], ["-1"], ["--transaction-size=1"])


def alone(world, first, second):
    """While one works, however it does, another is refused, and each row comes once."""
    server = world.server()

    def make(path):
        with server.connect(server.fresh("again_rows")) as c:
            c.execute("CREATE TABLE t AS SELECT generate_series(1, 10) AS i")
        return server.archive("again_rows", path, "c")
    path = world.archive("again-rows", make)
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE TABLE t (i int)")
    with server.connect("target") as holder, server.connect("target") as c:
        holder.autocommit = False
        holder.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        child = firn(server, "target", path, "-a", "--no-analyze", *first, wait=False)
        child.until(c, "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass")
        firn(server, "target", path, "-a", "--no-analyze", *second, patience=30).fails("another restore is working on the target database")
        holder.rollback()
        child.wait().ok()
        assert c.execute("SELECT count(*) FROM t").fetchone() == (10,)
    # The next one is not kept away.
    firn(server, "target", path, "-a", *second).ok()


def cases(world):
    for first in WAYS:
        for second in WAYS:
            yield f"again beside {' '.join(first)} {' '.join(second)}", lambda f=first, s=second: alone(world, f, s)
    for target in OTHERWISE:
        for extra in ((), ("--inserts",)):
            yield f"again through a root, {target} {' '.join(extra)}", lambda t=target, e=extra: through_root(world, t, e)
