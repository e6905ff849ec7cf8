"""Much of everything: values of a megabyte, hundreds of partitions, thousands of stripes, thousands of tables."""
from .measure import KB, MB, Watch, peak, reset_peak, resident

ALL = "(SELECT sum(used_bytes)::bigint FROM pg_backend_memory_contexts)"


def fresh(cluster):
    c = cluster.connect("growth", prepare_threshold=None)
    c.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; SET firn.metadata_cache = '1MB'; SET firn.page_cache = '1MB'; SET client_min_messages = error")
    return c


def taken(c, sql):
    """A statement's peak over what the session had."""
    before = resident(c.info.backend_pid)
    reset_peak(c.info.backend_pid)
    c.execute(sql)
    return peak(c.info.backend_pid) - before


def arrays(cluster, n, tell):
    """Arrays of a megabyte in a column, written, read, looked up, updated; `= ANY` of 20,000 elements."""
    with fresh(cluster) as c:
        c.execute("SET firn.bulk_threshold = 0; SET firn.write_memory = '16MB'")
        c.execute("CREATE TABLE f (id int PRIMARY KEY, a int[]) USING firn")
        array = "ARRAY(SELECT (x * g::bigint * 7919 % 1000003)::int FROM generate_series(1, 262144) x)"
        used = {}
        for times in (n, 3 * n):
            used["insert", times] = taken(c, f"INSERT INTO f SELECT g + {times * 1000}, {array} FROM generate_series(1, {times}) g")
            one = f"id BETWEEN {times * 1000} AND {times * 1000 + times}"
            used["scan", times] = taken(c, f"SELECT sum(cardinality(a)), sum(a[5]) FROM f WHERE {one} AND a[3] > 0")
            c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
            used["look-ups", times] = taken(c, f"SELECT sum(cardinality(a)) FROM f WHERE {one}")
            used["update", times] = taken(c, f"UPDATE f SET a = a || 1 WHERE {one}")
            c.execute("RESET enable_seqscan; RESET firn.enable_scan")
            used["compact", times] = taken(c, "SELECT firn.compact('f')")
            used["check", times] = taken(c, "SELECT count(*) FROM firn.check('f')")
            used["VACUUM FULL", times] = taken(c, "VACUUM FULL f")
        for what, times in used:
            if times == n:
                tell(f"{n} and {3 * n} arrays of 1 MB: {what}", used[what, n], used[what, 3 * n])
                # While a page is read, values are there as they were, encoded and as the allocator's holes.
                more = 3 * min(2 * n, 128) * MB if what == "check" else 0
                assert used[what, 3 * n] - used[what, n] < 40 * MB + more, (what, used)
    with fresh(cluster) as c:
        c.execute("SET firn.bulk_threshold = 0; SET firn.stripe_rows = 1000")
        c.execute("CREATE TABLE f (id int, v text, n numeric) USING firn; CREATE INDEX ON f (id)")
        c.execute("INSERT INTO f SELECT i, md5(i::text), i FROM generate_series(1, 20000) i")
        held = []
        for at in range(max(4, n)):
            for column, text in (("id", "{}"), ("n", "{}.5"), ("v", "v{}")):
                values = ",".join(text.format(i * 3 + at) for i in range(20000))
                kind = {"id": "int", "n": "numeric", "v": "text"}[column]
                c.execute(f"SELECT count(v) FROM f WHERE {column} = ANY ('{{{values}}}'::{kind}[])")
            held.append((c.execute(f"SELECT {ALL}").fetchone()[0], resident(c.info.backend_pid)))
        tell(f"{len(held)} times = ANY of 20,000 constants", held[1][1], held[-1][1])
        assert held[-1][0] - held[1][0] < 32 * KB and held[-1][1] - held[1][1] < 8 * MB, held


def moves(cluster, n, tell):
    """A compaction of n and 3 n values of a megabyte, in one piece and in several: within firn.write_memory and the encoded
    bytes of a stripe, as the load of them."""
    with fresh(cluster) as c:
        c.execute("SET firn.write_memory = '8MB'; CREATE TABLE f (id int PRIMARY KEY, a int[]) USING firn")
        array = "ARRAY(SELECT (x * g::bigint * 7919 % 1000003)::int FROM generate_series(1, 262144) x)"
        load = f"INSERT INTO f SELECT g, {array} FROM generate_series(1, TIMES) g"
        same = "SELECT count(*), sum(hashtext(a::text)::bigint) FROM f"
        used = {}
        for times in (n, 3 * n):
            for what in ("SELECT firn.compact('f')", "CALL firn.compact_in_pieces('f', 2)"):
                c.execute("TRUNCATE f; SET firn.bulk_threshold = 100000000")
                c.execute(load.replace("TIMES", str(times)))
                held = c.execute(same).fetchone()
                used[what, times] = taken(c, what)
                stripes = c.execute("SELECT count(*), sum(rows), max(raw_bytes) FROM firn.stripes('f')").fetchone()
                assert stripes[0] >= times // 8 and stripes[1] == times and stripes[2] <= 10 * MB, stripes
                assert c.execute(same).fetchone() == held
            c.execute("TRUNCATE f; SET firn.bulk_threshold = 0")
            used["INSERT", times] = taken(c, load.replace("TIMES", str(times)))
        for what in ("INSERT", "SELECT firn.compact('f')", "CALL firn.compact_in_pieces('f', 2)"):
            tell(f"{n} and {3 * n} arrays of 1 MB, 8 MB of write_memory: {what}", used[what, n], used[what, 3 * n])
            assert used[what, 3 * n] < 48 * MB, (what, used)


def partitions(cluster, n, tell):
    """n partitions, written and read in one statement, again and again: a stripe each, memory within firn.write_memory."""
    with fresh(cluster) as c:
        c.execute("SET firn.bulk_threshold = 0; SET firn.write_memory = '16MB'")
        c.execute("CREATE TABLE p (id int, at int, v text, PRIMARY KEY (id, at)) PARTITION BY LIST (at)")
        for i in range(n):
            c.execute(f"CREATE TABLE p{i} PARTITION OF p FOR VALUES IN ({i}) USING firn")
        used = []
        for times in range(1, 7):
            insert = taken(c, f"INSERT INTO p SELECT g, g % {n}, md5(g::text) FROM generate_series({times * 100000}, {times * 100000 + n * 20 - 1}) g")
            read = taken(c, "SELECT count(*), count(v), max(id) FROM p WHERE id > 3")
            update = taken(c, f"UPDATE p SET v = v || 'x' WHERE id % {20 * n} < {n}")
            used.append((insert, read, update, resident(c.info.backend_pid), c.execute(f"SELECT {ALL}").fetchone()[0]))
            c.execute("SELECT firn.compact('p')")
        got = c.execute("SELECT count(*), count(DISTINCT at) FROM p").fetchone()
        assert got == (6 * 20 * n, n), got
        for at, what in enumerate(("INSERT", "SELECT", "UPDATE", "held afterwards")):
            tell(f"{what} of {n} partitions, second and sixth time", used[1][at], used[-1][at])
        # The directories grow with the stripes: a quarter of the metadata cache.
        assert used[-1][3] - used[1][3] < 8 * MB and used[-1][4] - used[1][4] < 256 * KB, used
        c.execute("DELETE FROM p")
        c.execute("VACUUM p")
        left = c.execute("SELECT count(*) FROM pg_class r, firn.stripes(r.oid) WHERE relispartition AND relkind = 'r'").fetchone()
        assert left == (0,), left


def stripes(cluster, n, tell):
    """n stripes of two rows in one table: what its directory costs."""
    with fresh(cluster) as c:
        other = cluster.connect("growth")
        c.execute("SET firn.bulk_threshold = 0; SET firn.stripe_rows = 2")
        for table, count in (("few", n // 10), ("f", n)):
            c.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, k int, v text) USING firn")
            c.execute(f"INSERT INTO {table} SELECT i, i % 10, 'v' || i FROM generate_series(1, {2 * count}) i")
            got = c.execute(f"SELECT count(*) FROM firn.stripes('{table}')").fetchone()
            assert got == (count,), got
        c.execute("RESET firn.bulk_threshold; RESET firn.stripe_rows")
        statements = {"plan": "EXPLAIN SELECT * FROM @ WHERE id = 7", "scan": "SELECT count(v), sum(k) FROM @",
                      "scan with condition": "SELECT count(v) FROM @ WHERE id + 0 = 7 OR k = 3",
                      "look-up": "SELECT v FROM @ WHERE id = 77", "insert": "INSERT INTO @ VALUES (0, 0, 'x')",
                      "delete": "DELETE FROM @ WHERE id BETWEEN 40 AND 120", "VACUUM": "VACUUM (INDEX_CLEANUP on) @",
                      "ANALYZE": "ANALYZE @", "check": "SELECT count(*) FROM firn.check('@')",
                      "VACUUM FULL": "VACUUM FULL @", "DELETE of all": "DELETE FROM @", "VACUUM of all": "VACUUM @"}
        for what, sql in statements.items():
            used = {}
            for table in ("few", "f"):
                with cluster.connect("growth", prepare_threshold=None) as s:
                    s.execute("SET firn.metadata_cache = '1MB'; SET firn.page_cache = '1MB'; SET maintenance_work_mem = '4MB'")
                    s.execute(f"SELECT v FROM {table} LIMIT 1")
                    used[table] = taken(s, sql.replace("@", table))
            tell(f"{what} of {n // 10} and {n} stripes", used["few"], used["f"])
            # A directory is listed whole: what that holds of a stripe is told to the bound.
            assert used["f"] - used["few"] < 8 * MB + n * 2 * KB, (what, used)
        left = c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone()
        assert left == (0,), left
        watch = Watch(cluster, c, other)
        found, _ = watch.take()
        assert found["TOAST"] < MB, found
        other.close()


def tables(cluster, n, tell):
    """n tables: one session touches all of them, VACUUM of the database passes."""
    with fresh(cluster) as c:
        held = {}
        for am in ("heap", "firn"):
            for i in range(n):
                c.execute(f"CREATE TABLE {am}_{i} (id int PRIMARY KEY, v text) USING {am}")
        for am in ("heap", "firn"):
            with cluster.connect("growth", prepare_threshold=None) as s:
                s.execute("SET firn.bulk_threshold = 0; SET firn.metadata_cache = '1MB'; SET firn.page_cache = '1MB'")
                begin = resident(s.info.backend_pid)
                for i in range(n):
                    s.execute(f"INSERT INTO {am}_{i} SELECT g, 'v' || g FROM generate_series(1, 5) g")
                    s.execute(f"SELECT v FROM {am}_{i} WHERE id = 3")
                    s.execute(f"SELECT count(v) FROM {am}_{i} WHERE v > 'a'")
                first = resident(s.info.backend_pid)
                for i in range(n):
                    s.execute(f"UPDATE {am}_{i} SET v = 'w' WHERE id = 3")
                    s.execute(f"SELECT count(v) FROM {am}_{i} WHERE v > 'a'")
                again = resident(s.info.backend_pid)
                contexts = s.execute(f"SELECT {ALL}").fetchone()[0]
                opened = Watch(cluster, s, c).take()[0]["open files"]
                held[am] = (first - begin) // n, (again - first) // n, contexts // n, opened
        for at, what in enumerate(("of first use", "of second use", "in contexts")):
            tell(f"{n} tables, memory per table {what}: heap and firn", held["heap"][at], held["firn"][at])
        tell(f"{n} tables, open files: heap and firn", held["heap"][3], held["firn"][3])
        # A firn table has a TOAST relation with an index, which a heap table has, too, but does not open.
        assert held["firn"][0] < held["heap"][0] + 24 * KB and held["firn"][1] < held["heap"][1] + 2 * KB, held
        before = resident(c.info.backend_pid)
        used = taken(c, "VACUUM")
        tell(f"VACUUM of a database of {2 * n} tables: peak, kept", used, resident(c.info.backend_pid) - before)
        locks = c.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype <> 'virtualxid'").fetchone()[0]
        assert locks <= 3, locks
    with cluster.connect("growth") as c:
        # As many at once as a transaction may lock.
        for am in ("heap", "firn"):
            for low in range(0, n, 100):
                c.execute("; ".join(f"DROP TABLE {am}_{i}" for i in range(low, min(n, low + 100))))
