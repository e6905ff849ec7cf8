"""What extensions written in C ask for, of tables of their own or of any: scans by keys, index builds of some blocks."""
from harness.calls import functions


def twins(cluster, c):
    """A table `f` with rows in both halves, some deleted, and `h` with the same on heap."""
    functions(cluster, c)
    c.execute("DROP TABLE IF EXISTS f, h; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 300")
    for am, table in (("heap", "h"), ("firn", "f")):
        c.execute(f"CREATE TABLE {table} (id int, n int, v text, gone int) USING {am} WITH (autovacuum_enabled = off)")
        c.execute(f"ALTER TABLE {table} DROP gone")
        c.execute(f"INSERT INTO {table} SELECT i, i % 10, CASE WHEN i % 4 > 0 THEN 'v' || i % 7 END FROM generate_series(1, 1000) i")
        c.execute(f"DELETE FROM {table} WHERE id % 50 = 0; UPDATE {table} SET n = n + 1 WHERE id % 51 = 0")
        c.execute(f"ALTER TABLE {table} ADD late int DEFAULT 5")


def keys(cluster):
    """A scan by keys gives the rows that have them, wherever they lie."""
    with cluster.connect() as c:
        twins(cluster, c)
        equal, less = "'int4eq(int4,int4)'", "'int4lt(int4,int4)'"
        asked = [f"2::int2, {equal}, 3", f"2::int2, {less}, 2", f"2::int2, {equal}, NULL::int", f"5::int2, {equal}, 5", f"5::int2, {equal}, 6",
                 f"1::int2, {equal}, 777", "3::int2, 'texteq(text,text)', 'v3'", f"2::int2, {equal}, 3, 3::int2, 'texteq(text,text)', 'v3'"]
        for how in ("forward", "backward", "again", "catalog"):
            for question in asked:
                heap, firn = (sorted(c.execute(f"SELECT scan_by_keys('{t}', '{how}', {question})").fetchone()[0]) for t in "hf")
                assert heap == firn, (how, question, heap[:5], firn[:5], len(heap), len(firn))
        # By a system column, which is another one in each table: that of a row in a stripe.
        [(tid,)] = c.execute("SELECT ctid FROM f WHERE id = 777").fetchall()
        assert int(tid[1:].split(",")[0]) >= 1 << 31, tid
        found = c.execute(f"SELECT scan_by_keys('f', 'forward', -1::int2, 'tideq(tid,tid)', '{tid}'::tid)").fetchone()[0]
        assert found == [777], found
        c.execute("DROP TABLE f, h")


def ranges(cluster):
    """Who builds an index of some blocks, to look at a sample, gets the rows of these, and the table's count is as it was."""
    with cluster.connect() as c:
        functions(cluster, c)
        c.execute("DROP TABLE IF EXISTS f; SET firn.bulk_threshold = 1000000; SET firn.stripe_rows = 300")
        c.execute("CREATE TABLE f (id int) USING firn WITH (autovacuum_enabled = off)")
        c.execute("INSERT INTO f SELECT generate_series(1, 1000)")
        c.execute("SELECT firn.compact('f')")
        c.execute("INSERT INTO f SELECT generate_series(1001, 2000); CREATE INDEX i ON f (id); DELETE FROM f WHERE id % 100 = 0; ANALYZE f")
        [(blocks,)] = c.execute("SELECT pg_relation_size('f') / 8192").fetchall()
        [(size, rows)] = c.execute("SELECT relpages, reltuples FROM pg_class WHERE relname = 'f'").fetchall()
        by_block = {}
        for block, number in c.execute("SELECT split_part(trim('(' FROM ctid::text), ',', 1)::int8, id FROM f").fetchall():
            by_block.setdefault(block, []).append(number)
        virtual = sorted(b for b in by_block if b >= 1 << 31)
        assert len(virtual) > 3 and blocks > 3, (virtual, blocks)

        def built(start, count):
            # Rows that are deleted may be there, for older snapshots.
            found = c.execute("SELECT build_range('i', %s, %s)", (start, count)).fetchone()[0]
            return sorted(i for i in found if i % 100)

        def there(start, count):
            return sorted(i for b, ids in by_block.items() if start <= b < start + count for i in ids)

        asked = [(b, 1) for b in range(blocks)] + [(b, 1) for b in virtual]
        asked += [(1, 2), (0, 0), (2, 0), (0, blocks), (blocks - 1, 5), (blocks, 1), (blocks + 3, 7), (virtual[1], 2), (0, 2**32 - 1), (1, 2**32 - 1),
                  (blocks - 1, virtual[0] + 1 - blocks + 1)]
        for start, count in asked:
            assert built(start, count) == there(start, count), (start, count, len(built(start, count)), len(there(start, count)))
        after = c.execute("SELECT relpages, reltuples FROM pg_class WHERE relname = 'f'").fetchone()
        assert after == (size, rows), (after, size, rows)
        [(line,)] = c.execute("EXPLAIN SELECT FROM f").fetchall()
        assert "rows=1980 " in line, line
        c.execute("DROP TABLE f")
