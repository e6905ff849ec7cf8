"""What a batch needs of a cold stripe is asked for at the same time."""


def at_once(cluster, proxy):
    """The pages of several columns are waited for together, whichever order they come in; and they are the right ones."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS f, h; SET firn.bulk_threshold = 0")
        # Columns of more than a piece of the cache each (1 MB), which nothing compresses, among them one of NULLs and one of few values.
        c.execute("CREATE TABLE h (id int, a text, b text, n int, c text, w text)")
        c.execute("INSERT INTO h SELECT i, sha512(('a' || i)::bytea)::text, sha512(('b' || i)::bytea)::text, NULL, sha512(('c' || i)::bytea)::text, "
                  "CASE WHEN i % 7 > 0 THEN 'w' || i % 5 END FROM generate_series(1, 30000) i")
        c.execute("CREATE TABLE f (LIKE h) USING firn; INSERT INTO f SELECT * FROM h; SELECT firn.offload('f', 's3')")
    for query in ("SELECT md5(string_agg(a || b || coalesce(n, id) || c || coalesce(w, '-'), ',' ORDER BY id)) FROM {}",
                  "SELECT count(*), min(b), max(c) FROM {} WHERE a > 'x8' AND (w = 'w3' OR n IS NOT NULL OR w IS NULL)"):
        # A session that has no connection yet, and a cache that has nothing.
        with cluster.connect() as c:
            c.execute("SET max_parallel_workers_per_gather = 0; SET firn.cache_size = 0")
            expected = c.execute(query.format("h")).fetchall()
            proxy.busiest = 0
            assert c.execute(query.format("f")).fetchall() == expected, query
            assert proxy.busiest > 1, f"{query}: one request after the other"
    with cluster.connect() as c:
        c.execute("DROP TABLE f, h")
