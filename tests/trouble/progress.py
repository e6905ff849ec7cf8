"""Several moves in one statement; progress that other sessions see."""
import psycopg

from harness.cluster import Cluster
from trouble.common import Background, expect, fresh, intact


def one_statement(cluster):
    """Each function of a statement finds what the one before it has left."""
    with cluster.connect() as c:
        fresh(c)
        row = c.execute("SELECT firn.compact('f'), firn.offload('f', 'cold'), firn.load('f'), firn.compact('f'), "
                        "firn.offload('f', 'cold')").fetchone()
        assert row[0] > 0 and row[1] > 5 and row[2] == row[1] and row[3] == 0 and row[4] == row[1], row
        intact(c)
        c.execute("INSERT INTO f SELECT 5000 + i, 'late', 0 FROM generate_series(1, 8) i")
        c.execute("INSERT INTO h SELECT 5000 + i, 'late', 0 FROM generate_series(1, 8) i")
        with c.transaction():
            c.execute("DO $$ BEGIN PERFORM firn.load('f'), firn.compact('f'); UPDATE f SET n = -n WHERE id % 7 = 0; END $$")
            c.execute("UPDATE h SET n = -n WHERE id % 7 = 0")
        intact(c)
        # Whoever has read a row's address in this session would lose the row.
        expect(c, "WITH x AS (INSERT INTO f VALUES (9000) RETURNING id) SELECT firn.compact('f') FROM x", "55006")
        expect(c, "UPDATE f SET n = firn.compact('f')", "55006")
        with c.transaction():
            c.execute("DECLARE k CURSOR FOR SELECT * FROM f FOR UPDATE")
            c.execute("FETCH k")
            c.execute("SAVEPOINT s")
            expect(c, "SELECT firn.compact('f')", "55006")
            c.execute("ROLLBACK TO s")
            c.execute("UPDATE f SET v = v WHERE CURRENT OF k")
        intact(c)


def samples(cluster, sql, prepare="SELECT 1", until=None):
    """What firn.activity shows of `sql` while it runs (to its end, or until a sample suits)."""
    seen = []
    with cluster.connect() as watcher:
        watcher.row_factory = psycopg.rows.dict_row
        work = Background(cluster, sql, prepare)
        while work.running():
            for row in watcher.execute("SELECT * FROM firn.activity WHERE pid = %s", (work.pid,)).fetchall():
                if not seen or {**row} != seen[-1]:
                    seen.append(row)
                if until and until(row):
                    return seen, work
        work.finish()
        left = watcher.execute("SELECT * FROM firn.activity").fetchall()
        assert not left, left
    return seen, None


def grows(seen, command, what):
    assert seen, f"{command} was not seen"
    assert {s["command"] for s in seen} == {command}, seen
    assert all(s["datname"] == "postgres" and s["usename"] == "postgres" and command in s["query"] for s in seen), seen
    for name in what:
        # Each table of a partitioned one counts from 0.
        values = [s[f"{name}_done"] for s in seen if s["tables_done"] == 0]
        assert values == sorted(values), (name, values)
        assert len(set(values)) > 2, (command, name, values)
        for s in seen:
            total = s.get(f"{name}_total")
            assert total is None or s[f"{name}_done"] <= total, s


def progress(cluster):
    """Another session sees how far a compaction and a check are."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS big")
        c.execute("CREATE TABLE big (id int PRIMARY KEY, a int, v text) USING firn")
        c.execute("SET firn.bulk_threshold = 100000000")
        c.execute("INSERT INTO big SELECT i, i % 1000, md5(i::text) FROM generate_series(1, 60000) i")
        c.execute("CREATE INDEX ON big (a, v)")
    seen, _ = samples(cluster, "SELECT firn.compact('big')", "SET firn.stripe_rows = 2500")
    grows(seen, "compact", ["rows", "bytes", "stripes"])
    assert {s["relation"] for s in seen} == {"big"} and {s["tables_total"] for s in seen} == {1}
    assert len({s["phase"] for s in seen} & {"reading the row store", "encoding", "writing chunks", "inserting index entries"}) > 2
    # A check is quick: look at several until one was seen at more than two of its points.
    for attempt in range(50):
        seen, _ = samples(cluster, "SELECT * FROM firn.check('big')")
        if all(len({s[f"{n}_done"] for s in seen}) > 2 for n in ("stripes", "bytes")) and \
                any(s["phase"] == "checking indexes" for s in seen):
            break
    grows(seen, "check", ["stripes", "bytes"])
    assert any(s["phase"] == "checking indexes" and s["indexes_total"] == 2 for s in seen), seen[-1]
    with cluster.connect() as c:
        # Another command's report is left alone, and its numbers are not touched.
        c.execute("SET firn.bulk_threshold = 100000000")
        c.execute("INSERT INTO big SELECT i, i % 1000, md5(i::text) FROM generate_series(60001, 80000) i")
    work = Background(cluster, "COPY (SELECT firn.compact('big')) TO '/dev/null'", "SET firn.stripe_rows = 5000")
    with cluster.connect() as c:
        copies = set()
        while work.running():
            copies |= set(c.execute("SELECT tuples_processed FROM pg_stat_progress_copy").fetchall())
            assert not c.execute("SELECT * FROM firn.activity").fetchall()
    work.finish()
    # COPY counts its one row at the end, and nothing else.
    assert (0,) in copies and copies <= {(0,), (1,)}, copies


def progress_of_moves(cluster, proxy):
    """Offload and load through a slow store: partitions, stripes and bytes; who may see what."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS p")
        c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 2000")
        c.execute("CREATE TABLE p (id int, v text) PARTITION BY RANGE (id)")
        for n in (0, 1):
            c.execute(f"CREATE TABLE p{n} PARTITION OF p FOR VALUES FROM ({n * 10000}) TO ({n * 10000 + 10000}) USING firn")
        c.execute("INSERT INTO p SELECT i, md5(i::text) FROM generate_series(0, 19999) i")
        size = c.execute("SELECT sum(bytes) FROM firn.stripes('p0')").fetchone()[0]
    for sql, phases in (("SELECT firn.offload('p', 's3')", {"uploading", "verifying"}),
                        ("SELECT firn.load('p')", {"downloading"})):
        proxy.rate = 800_000
        seen, _ = samples(cluster, sql)
        command = "offload" if "offload" in sql else "load"
        grows(seen, command, ["stripes", "bytes"])
        assert {(s["relation"], s["tables_done"], s["tables_total"]) for s in seen} == {("p0", 0, 2), ("p1", 1, 2)}
        assert {s["bytes_total"] for s in seen if s["relation"] == "p0"} <= {size, None}
        assert phases <= {s["phase"] for s in seen}
        assert ("Extension", "Extension") in {(s["wait_event_type"], s["wait_event"]) for s in seen}
        proxy.rate = None
    # Everybody sees that there is work; at what, the same role and readers of all statistics only.
    with cluster.connect() as c:
        c.execute("DROP ROLE IF EXISTS looker, reader")
        c.execute("CREATE ROLE looker; CREATE ROLE reader IN ROLE pg_read_all_stats")
    proxy.rate = 0
    _, work = samples(cluster, "SELECT firn.offload('p', 's3')", until=lambda s: s["phase"] == "uploading")
    with cluster.connect() as c:
        for role, sees in (("looker", False), ("reader", True), ("postgres", True)):
            c.execute(f"SET ROLE {role}")
            row = c.execute("SELECT command, relation, phase, bytes_total, query FROM firn.activity").fetchone()
            assert row is not None and (row[0] is not None) == sees and (row[2] is not None) == sees, (role, row)
            assert sees or row[:4] == (None,) * 4 and "offload" not in row[4], row
        c.execute("RESET ROLE")
        c.execute("DROP ROLE looker, reader")
        proxy.rate = None
        work.finish()
        c.execute("DROP TABLE p")


def without_preload(_cluster):
    """The same in a server that loads firn when it is first used."""
    cluster = Cluster("bare", ["shared_preload_libraries=''"]).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
        progress(cluster)
    finally:
        cluster.destroy()
