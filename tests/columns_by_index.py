"""Rows by index of tables with many columns: each column's page is its own, and all of them are wanted at once."""

NAMES = [f"c{n}" for n in range(90)]


def many_columns_by_index(cluster):
    """Rows that follow each other are read from pages that are decoded once for each column, however many there are; with too small a cache
    no page is decoded again and again. Prints the buffers that a thousand rows took."""
    with cluster.connect() as c:
        c.execute(f"CREATE TABLE ninety (id int, {', '.join(f'{n} text' for n in NAMES)}) USING firn; SET firn.bulk_threshold = 0")
        c.execute(f"INSERT INTO ninety SELECT i, {', '.join(f'md5(({n} * i)::text)' for n in range(90))} FROM generate_series(1, 2000) i")
        c.execute("CREATE INDEX ON ninety (id); SET enable_seqscan = off; SET enable_bitmapscan = off; SET firn.enable_scan = off")
        best = ", ".join(f"max({n})" for n in NAMES)
        answers, taken = {}, []
        # A page takes some ten blocks. Each column's is read for the first row, and once more to be kept.
        for cache, rows, most in (("64MB", 1_000, 4_000), ("8MB", 1_000, 4_000), ("1MB", 50, 50_000), ("0", 50, 50_000)):
            query = f"SELECT {best} FROM ninety WHERE id BETWEEN 100 AND {99 + rows}"
            c.execute(f"SET firn.page_cache = '{cache}'")
            [[plan]] = c.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {query}").fetchall()
            node = plan[0]["Plan"]["Plans"][0]
            assert node["Node Type"] == "Index Scan", node
            taken.append(node["Shared Hit Blocks"] + node["Shared Read Blocks"])
            assert taken[-1] < most, (cache, taken)
            answers.setdefault(query, set()).add(c.execute(query).fetchone())
        print(f"     buffers {taken}")
        c.execute("SET enable_seqscan = on; SET enable_indexscan = off")
        for query, found in answers.items():
            assert found == {c.execute(query).fetchone()}, query
