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


# What is read of each row of `t` that an index leads to, and on which conditions.
READINGS = (
    "count(d), sum(q), min(s), max(late)", "count(t.*), count(t.*) FILTER (WHERE t.k = 3)", "sum(length(s)), sum(length(word)), sum(n)",
    "sum(q) FILTER (WHERE d > '2000-03-01')", "count(late), count(word), count(n), count(s), count(q), count(d), count(k), count(small), count(b)")
WHERE = ("", "AND t.d < '2000-01-20'", "AND t.q > 40 AND t.late = 7", "AND t.word = 'more' AND t.n IS NOT NULL", "AND t.small < 3 AND t.d > '2000-01-05' AND t.late <> 8")


def from_stripe_to_stripe(cluster):
    """Rows of many stripes by index in no order, stripe by stripe and back: stripes that lack a column, NULLs, conditions that are read before the other columns,
    and more columns than a reader keeps of the stripes that it has left. As on heap, whatever the cache of pages holds."""
    columns = "id int, k int, d date, q numeric(15,2), s text, n bigint, small smallint, b bool"
    values = ("SELECT i, i % 10, DATE '2000-01-01' + i % 90, (i * 37 % 5000) / 100.0, CASE WHEN i % 11 > 0 THEN md5(i::text) END, "
              "CASE WHEN i % 13 > 0 THEN i::bigint << 33 END, i % 7, i % 3 = 0")
    answers = {}
    with cluster.connect() as c:
        for am in ("heap", "firn"):
            c.execute(f"CREATE TABLE t ({columns}) USING {am}; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 120")
            c.execute(f"INSERT INTO t {values} FROM generate_series(1, 12000) i")
            c.execute("ALTER TABLE t ADD late int NOT NULL DEFAULT 7, ADD word text DEFAULT 'more'")
            c.execute(f"INSERT INTO t {values}, i % 9, CASE WHEN i % 4 > 0 THEN 'word' || i % 4 END FROM generate_series(12001, 24000) i")
            c.execute("ALTER TABLE t DROP b, ADD b bool DEFAULT true; CREATE INDEX ON t (id); CREATE INDEX ON t (k); ANALYZE t")
            c.execute("CREATE TEMP TABLE look AS SELECT 1 + i * 7919 % 24000 AS at FROM generate_series(1, 3000) i; ANALYZE look")
            c.execute("SET enable_seqscan = off; SET firn.enable_scan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
            for cache in ("0", "64kB", "8MB"):
                c.execute(f"SET firn.page_cache = '{cache}'")
                for kind in ("bitmapscan", "indexscan"):
                    c.execute(f"SET enable_{kind} = off")
                    for what in READINGS:
                        for condition in WHERE:
                            for query in (f"SELECT {what} FROM look, LATERAL (SELECT * FROM t WHERE t.id = look.at {condition} OFFSET 0) t",
                                          f"SELECT {what} FROM t WHERE k IN (3, 8) AND t.id % 5 = 1 {condition}"):
                                answers.setdefault((query, cache, kind), []).append(c.execute(query).fetchone())
                    c.execute(f"RESET enable_{kind}")
            c.execute("DROP TABLE t, look; RESET ALL")
    differ = {query: found for query, found in answers.items() if found[0] != found[1]}
    assert not differ, differ
