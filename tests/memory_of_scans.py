"""Memory that scans take beside heap's: a part of the suite reading."""
from growth.measure import peak, reset_peak


def keys_of_joins(cluster):
    """A join's keys that are long where they are not compressed: a scan that takes them all takes `work_mem` at most."""
    used = {}
    with cluster.connect() as c:
        c.execute("SET enable_mergejoin = off; SET enable_nestloop = off; SET work_mem = '4MB'")
        c.execute("CREATE TABLE long_keys AS SELECT i, repeat(i || ' ', 8000) AS k FROM generate_series(1, 2000) i; ANALYZE long_keys")
        for am in ("heap", "firn"):
            c.execute(f"CREATE TABLE joined (id int, k text) USING {am}")
            if am == "firn":
                c.execute("SET firn.bulk_threshold = 0")
            c.execute("INSERT INTO joined SELECT i, 'k' || i FROM generate_series(1, 20000) i")
            c.execute("INSERT INTO joined SELECT 0, k FROM long_keys WHERE i % 400 = 0; ANALYZE joined")
            query = "SELECT count(*) FROM joined j JOIN long_keys USING (k)"
            plan = "\n".join(row[0] for row in c.execute("EXPLAIN " + query))
            assert "Hash Join" in plan and plan.index(" on joined") < plan.index(" on long_keys"), plan
            used[am] = taken(c, query)
            assert c.execute(query).fetchone() == (5,)
            c.execute("DROP TABLE joined")
        c.execute("DROP TABLE long_keys")
    assert used["firn"] < used["heap"] + (8 << 20), used


def taken(conn, query):
    """Memory that a query takes at most, in a session whose caches have what plans need."""
    pid = conn.info.backend_pid
    conn.execute("EXPLAIN " + query)
    reset_peak(pid)
    before = peak(pid)
    conn.execute(query).fetchall()
    found = peak(pid) - before
    print(f"    {found >> 20} MB: {query}", flush=True)
    return found


def partitions_bounded(cluster):
    """Scans of many partitions hold what one of them needs at a time: its last batch, and the keys of a join."""
    with cluster.connect() as c:
        c.execute("SET client_min_messages = error; CREATE TABLE parts (k int, t text) PARTITION BY LIST (k)")
        c.execute("SET firn.bulk_threshold = 0; SET enable_partition_pruning = off; SET enable_nestloop = off; SET enable_mergejoin = off")
        for i in range(60):
            c.execute(f"CREATE TABLE parts{i} PARTITION OF parts FOR VALUES IN ({i}) USING firn")
            c.execute(f"INSERT INTO parts SELECT {i}, r || repeat('x', 1000000) FROM generate_series(1, 3) r")
        c.execute("ANALYZE parts")
    with cluster.connect() as c:
        # All parts of a parallel scan, and nobody else who would read them.
        c.execute("SET max_parallel_workers_per_gather = 2; SET max_parallel_workers = 0; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; "
                  "SET min_parallel_table_scan_size = 0; SET enable_parallel_append = off")
        query = "SELECT sum(length(t)) FROM parts"
        plan = "\n".join(row[0] for row in c.execute("EXPLAIN " + query))
        assert "Parallel Custom Scan (FirnScan)" in plan, plan
        assert taken(c, query) < 30 << 20
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0; SET enable_partition_pruning = off; SET enable_nestloop = off; SET enable_mergejoin = off")
        c.execute("DROP TABLE parts; SET max_parallel_workers_per_gather = 0; SET work_mem = '8MB'")
        c.execute("CREATE TABLE parts (k int, t text) PARTITION BY LIST (k)")
        for i in range(60):
            c.execute(f"CREATE TABLE parts{i} PARTITION OF parts FOR VALUES IN ({i}) USING firn")
            c.execute(f"INSERT INTO parts SELECT {i}, 't' || r FROM generate_series(1, 3000) r")
        c.execute("CREATE TABLE keys AS SELECT repeat(i || ' ', 500) AS t FROM generate_series(1, 600) i; ANALYZE parts; ANALYZE keys")
        query = "SELECT count(*) FROM parts JOIN keys USING (t)"
        plan = "\n".join(row[0] for row in c.execute("EXPLAIN " + query))
        assert "Hash Join" in plan and plan.index(" on parts0") < plan.index(" on keys"), plan
        assert taken(c, query) < 30 << 20
        c.execute("DROP TABLE parts, keys")
