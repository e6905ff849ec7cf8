"""Reading cold stripes: what is asked for at the same time, what is held, what is kept though it was damaged."""
import os
import re

import psycopg

from trouble.common import expect


def at_once(cluster, proxy):
    """The pages and dictionaries of several columns are waited for together, whichever order they come in; and they are the right ones."""
    queries = ("SELECT md5(string_agg(a || b || coalesce(n, id) || c || coalesce(w, '-'), ',' ORDER BY id)) FROM {}",
               "SELECT count(*), min(b), max(c) FROM {} WHERE a > 'x8' AND (w = 'w3' OR n IS NOT NULL OR w IS NULL)",
               "SELECT count(w), min(v), max(u), count(DISTINCT w) FROM {}")
    with cluster.connect() as c:
        # Columns of more than a piece of the cache each (1 MB), which nothing compresses, among them one of NULLs and some of few values.
        c.execute("DROP TABLE IF EXISTS h; CREATE TABLE h (id int, a text, b text, n int, c text, w text, v text, u text)")
        c.execute("INSERT INTO h SELECT i, sha512(('a' || i)::bytea)::text, sha512(('b' || i)::bytea)::text, NULL, sha512(('c' || i)::bytea)::text, "
                  "CASE WHEN i % 7 > 0 THEN 'w' || i % 5 END, sha512(('v' || i % 300)::bytea)::text, sha512(('u' || hashint4(i) % 200)::bytea)::text "
                  "FROM generate_series(1, 30000) i")
    for cache in ("0", "1GB"):
        for query in queries:
            # A store that nobody has read from: a session that has no connection yet, and a cache that has nothing.
            with cluster.connect() as c:
                c.execute("DROP TABLE IF EXISTS f; SET firn.bulk_threshold = 0; CREATE TABLE f (LIKE h) USING firn; "
                          "INSERT INTO f SELECT * FROM h; SELECT firn.offload('f', 's3')")
            with cluster.connect() as c:
                c.execute(f"SET max_parallel_workers_per_gather = 0; SET firn.cache_size = '{cache}'")
                expected = c.execute(query.format("h")).fetchall()
                # (So that none is answered before the next one is sent.)
                proxy.busiest, proxy.delay = 0, 0.01
                try:
                    assert c.execute(query.format("f")).fetchall() == expected, (cache, query)
                finally:
                    proxy.delay = 0
                assert c.execute(query.format("f")).fetchall() == expected, (cache, query)
                # (The small columns are of one piece of the cache.)
                assert proxy.busiest > 1 or cache != "0" and query == queries[2], f"{cache}, {query}: {proxy.busiest} requests at a time"
    with cluster.connect() as c:
        c.execute("DROP TABLE f, h")


def put_back(cluster):
    """An object that was damaged, and is put back as it was, is read again: what the cache has of it was right as the object was wrong."""
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0; CREATE TABLE f (id int PRIMARY KEY, v text) USING firn")
        c.execute("INSERT INTO f SELECT i, md5(i::text) FROM generate_series(1, 50000) i; SELECT firn.offload('f', 'cold')")
        [[key]] = c.execute("SELECT object_key FROM firn.stripes('f')").fetchall()
        [[last]] = c.execute("SELECT max(md5(i::text)) FROM generate_series(1, 50000) i").fetchall()
    store = os.path.join(cluster.root, "store")
    [path] = [os.path.join(folder, name) for folder, _, names in os.walk(store) for name in names if name == key.split("/")[-1]]
    with open(path, "rb") as f:
        right = f.read()
    with open(path, "r+b") as f:
        f.seek(len(right) // 2)
        f.write(bytes([right[len(right) // 2] ^ 1]))
    query = "SELECT count(*), max(v) FROM f"
    with cluster.connect() as c, cluster.connect() as other:
        for session in (c, other):
            session.execute("SET firn.cache_size = '64MB'; SET log_min_messages = 'fatal'")
            expect(session, query, "XX001")
        with open(path, "wb") as f:
            f.write(right)
        try:
            other.execute(query)
        except psycopg.errors.DataCorrupted:
            # It may have had in its own memory what it has read first.
            pass
        for session in (c, other):
            assert session.execute(query).fetchone() == (50000, last)
    with cluster.connect() as c:
        c.execute("DROP TABLE f")


def reads_keep_nothing(cluster):
    """Rows of a cold stripe by index, page by page: a statement's memory does not grow with what it has read."""
    columns = range(100)
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0")
        for name in ("warm", "chilled"):
            c.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, {', '.join(f'c{n} text' for n in columns)}) USING firn")
            c.execute(f"INSERT INTO {name} SELECT i, {', '.join(f'md5((i * {n + 1})::text)' for n in columns)} FROM generate_series(1, 1000) i; ANALYZE {name}")
        c.execute("SELECT firn.offload('chilled', 'cold')")
    grown = {}
    for name in ("warm", "chilled"):
        with cluster.connect() as c:
            c.execute("SET enable_seqscan = off; SET firn.enable_scan = off; SET firn.page_cache = 0; SET max_parallel_workers_per_gather = 0")
            query = f"SELECT sum(length(t::text)) FROM {name} t WHERE id BETWEEN %s AND %s"
            c.execute(query, (1, 20))
            before = peak(c)
            c.execute(query, (1, 500))
            grown[name] = peak(c) - before
    print(f"     {grown}")
    assert grown["chilled"] < grown["warm"] + 15, grown
    with cluster.connect() as c:
        c.execute("DROP TABLE warm, chilled")


def peak(c):
    """MB of memory that a session has had at most."""
    with open(f"/proc/{c.info.backend_pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1]) >> 10


def in_memory(cluster, proxy):
    """What is asked for at the same time is not held many times over: a batch of documents has thousands of small pages. And what lies between
    is not fetched again and again."""
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS f; SET firn.bulk_threshold = 0; CREATE TABLE f (id int, doc jsonb) USING firn")
        # Some 4 kB each, which nothing compresses: a page of its own.
        c.execute("INSERT INTO f SELECT i, jsonb_build_object('i', i, 't', (SELECT string_agg(sha512((i || '.' || n)::bytea)::text, '') "
                  "FROM generate_series(1, 31) n)) FROM generate_series(1, 6000) i")
        c.execute("SELECT firn.offload('f', 's3')")
    with cluster.connect() as c:
        c.execute("SET max_parallel_workers_per_gather = 0; SET firn.cache_size = '1GB'")
        # What a session has anyway, its connections to the store and the shared memory that it has touched too.
        assert c.execute("SELECT count(id) FROM f").fetchone() == (6000,)
        before = peak(c)
        assert c.execute("SELECT count(*), sum((doc->>'i')::int) FROM f").fetchone() == (6000, 18003000)
        grown = peak(c) - before
    # The pages of a batch are 4 MB compressed, 8 MB of hexadecimal digits; with the pieces that they come from, and what decodes them.
    print(f"     {grown} MB for batches of documents")
    assert grown < 100, grown
    with cluster.connect() as c:
        columns = range(20)
        c.execute(f"DROP TABLE f; CREATE TABLE f ({', '.join(f'c{n} int' for n in columns)}) USING firn; "
                  f"INSERT INTO f SELECT {', '.join(f'hashint4(i * 20 + {n}) & 255' for n in columns)} FROM generate_series(1, 200000) i")
        c.execute("SELECT firn.offload('f', 's3')")
        size = c.execute("SELECT sum(bytes) FROM firn.stripes('f')").fetchone()[0]
    with cluster.connect() as c:
        c.execute("SET max_parallel_workers_per_gather = 0; SET firn.cache_size = 0")
        before = proxy.passed
        c.execute(f"SELECT {', '.join(f'sum(c{n})' for n in columns)} FROM f").fetchone()
        passed = proxy.passed - before
    print(f"     {passed / size:.1f} times a stripe's bytes without a cache")
    # Requests and answers have heads, of a size with these pages.
    assert passed < 4 * size, (passed, size)
    with cluster.connect() as c:
        c.execute("DROP TABLE f")
