"""Rows by index of tables with many columns: each column's page is its own, and all of them are wanted at once."""
import re

import psycopg

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
ALL = "id, k, d, q, s, n, small, late, word"
READINGS = (
    "count(d), sum(q), min(s), max(late)", "count(t.*), count(t.*) FILTER (WHERE t.k = 3)", "sum(length(s)), sum(length(word)), sum(n)",
    "sum(q) FILTER (WHERE d > '2000-01-10')", "sum(hashtextextended(t::text, 0))", f"sum(hashtextextended(concat_ws('|', {ALL}), 0))",
    "sum(hashtextextended(concat_ws('|', d, s, n, word, late), 0)), sum(small)")
WHERE = ("", "AND t.d < '2000-01-20'", "AND t.q > 40 AND t.late = 7", "AND t.word = 'more' AND t.n IS NOT NULL", "AND t.small < 3 AND t.d > '2000-01-05' AND t.late <> 8")
LOOK_UP = "SELECT {what} FROM look, LATERAL (SELECT * FROM t WHERE t.id = look.at {condition} OFFSET 0) t"
SWEEP = "SELECT {what} FROM t WHERE k IN (3, 8) AND t.id % 7 = 1 {condition}"
# A row of each form divides by zero.
DIVIDED = "1 / ((t.id - 23501) * (t.id - 12013))"
FAILING = ("condition", "sum")
# Caches of pages and of stripes: none, too small for the table, and large enough.
CACHES = (("0", "64MB"), ("1MB", "64MB"), ("8MB", "1MB"))
KINDS = {"Index Scan": "bitmapscan", "Bitmap Heap Scan": "indexscan"}


def from_stripe_to_stripe(cluster):
    """Rows of many stripes by index in no order, stripe by stripe and back: stripes that lack a column, NULLs, conditions that are read before the other columns,
    and more columns than a reader keeps of the stripes that it has left; after an error among the rows, with rows that the transaction has inserted itself, and
    with columns that it has added and dropped. As on heap, whatever the caches hold."""
    answers = {}
    for am in ("heap", "firn"):
        # (A plan that is kept does not follow the settings.)
        with cluster.connect(prepare_threshold=None) as c:
            many_stripes(c, am)
            caches = CACHES if am == "firn" else CACHES[:1]
            for pages, stripes in caches:
                c.execute(f"SET firn.page_cache = '{pages}'; SET firn.metadata_cache = '{stripes}'")
                assert (c.execute("SHOW firn.page_cache").fetchone(), c.execute("SHOW firn.metadata_cache").fetchone()) == ((pages,), (stripes,))
                for node in KINDS:
                    c.execute(f"SET enable_{KINDS[node]} = off")
                    for key, found in readings(c, node):
                        answers.setdefault((node, *key), {})[am, pages, stripes] = found
                    c.execute(f"RESET enable_{KINDS[node]}")
            c.execute("DROP TABLE t, look")
    differ = [(key, found) for key, found in answers.items() if len(set(found.values())) > 1]
    assert not differ, (len(differ), differ[:3])
    # None of them is of no rows.
    empty = [key for key, found in answers.items() if "None" in str(found["heap", *CACHES[0]])]
    assert not empty, (len(empty), empty[:3])


def many_stripes(c, am):
    """The table `t` of 100 stripes of a page, which lack columns, and 8 of several, and the rows to look up in `look`."""
    columns = "id int, k int, d date, q numeric(15,2), s text, n bigint, small smallint, b bool"
    values = ("SELECT i, i % 10, DATE '2000-01-01' + i % 90, (i * 37 % 5000) / 100.0, CASE WHEN i % 11 > 0 THEN md5(i::text) || '.' || md5((-i)::text) END, "
              "CASE WHEN i % 13 > 0 THEN i::bigint << 33 END, i % 7, i % 3 = 0")
    c.execute(f"CREATE TABLE t ({columns}) USING {am}; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 120")
    c.execute(f"INSERT INTO t {values} FROM generate_series(1, 12000) i")
    c.execute("ALTER TABLE t ADD late int NOT NULL DEFAULT 7, ADD word text DEFAULT 'more'")
    c.execute("SET firn.stripe_rows = 3000")
    c.execute(f"INSERT INTO t {values}, i % 9, CASE WHEN i % 4 > 0 THEN 'word' || i % 4 END FROM generate_series(12001, 24000) i")
    c.execute("ALTER TABLE t DROP b, ADD b bool DEFAULT true; CREATE INDEX ON t (id); CREATE INDEX ON t (k); ANALYZE t")
    c.execute("CREATE TEMP TABLE look AS SELECT 1 + i * 7919 % 24000 AS at FROM generate_series(1, 1000) i; ANALYZE look")
    c.execute("SET enable_seqscan = off; SET firn.enable_scan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET max_parallel_workers_per_gather = 0")


def readings(c, node):
    """Each reading and its answer, by plans that have the node."""
    every = [(form, what, condition) for form in (LOOK_UP, SWEEP) for what in READINGS for condition in WHERE]
    for form, what, condition in every:
        yield ("plain", form, what, condition), answer(c, form, what, condition, node)
    for form in (LOOK_UP, SWEEP):
        for where in FAILING:
            yield ("failed", form, where), failure(c, form, where)
            yield ("after", form, where), answer(c, form, READINGS[0], WHERE[1], node)
    some = [(form, what, "") for form in (LOOK_UP, SWEEP) for what in READINGS]
    c.execute("BEGIN")
    # Readers that are open: more of them than have places.
    for n in range(40):
        query = LOOK_UP.format(what=", ".join(ALL.split(", ")[n % 8:]), condition="")
        check_plan(c, query, node)
        c.execute(f"DECLARE c{n} CURSOR FOR {query}")
        yield ("opened", n), fetched(c, n, n + 9)
    for form, what, condition in some:
        yield ("beside", form, what), answer(c, form, what, condition, node)
    for n in range(40):
        yield ("went on", n), fetched(c, n, 30)
    c.execute("CLOSE ALL; INSERT INTO t SELECT i * 3, i % 10, '2000-02-02', i, 'new' || i, NULL, i % 7, 5, 'new', false FROM generate_series(1, 500) i")
    for form, what, condition in some:
        yield ("own", form, what), answer(c, form, what, condition, node)
    for form in (LOOK_UP, SWEEP):
        for where in FAILING:
            c.execute("SAVEPOINT e")
            yield ("failed within", form, where), failure(c, form, where)
            c.execute("ROLLBACK TO e")
            yield ("after that", form, where), answer(c, form, READINGS[0], WHERE[1], node)
    c.execute("SAVEPOINT s; ALTER TABLE t ADD x int NOT NULL DEFAULT 3, DROP small; UPDATE t SET x = 4, late = 1 WHERE id % 1000 = 1; DELETE FROM t WHERE id % 1000 = 6")
    for form in (LOOK_UP, SWEEP):
        yield ("altered", form), answer(c, form, "sum(x), sum(hashtextextended(t::text, 0)), sum(late)", "AND x > 2", node)
    c.execute("ROLLBACK TO s")
    for form, what, condition in some:
        yield ("back", form, what), answer(c, form, what, condition, node)
    c.execute("ROLLBACK")
    for form, what, condition in some:
        yield ("again", form, what), answer(c, form, what, condition, node)


def fetched(c, n, count):
    """So many rows of a cursor."""
    rows = c.execute(f"FETCH {count} FROM c{n}").fetchall()
    assert len(rows) == count
    return "\n".join(str(row).replace("None", "NULL") for row in rows)


def failure(c, form, where):
    """What a query says that fails at one of its rows: where it is read, or where it is added."""
    what, condition = (f"sum(d - DATE '2000-01-01'), sum({DIVIDED})", "") if where == "sum" else ("sum(n)", f"AND {DIVIDED} + t.q > -1 AND t.small < 4")
    try:
        c.execute(form.format(what=what, condition=condition))
    except psycopg.errors.DivisionByZero as e:
        return str(e)


def answer(c, form, what, condition, node):
    """The answer of one query, whose plan reads `t` by the node."""
    query = form.format(what=what, condition=condition)
    check_plan(c, query, node)
    return c.execute(query).fetchone()


def check_plan(c, query, node):
    """It reads `t` by the node."""
    plan = [row[0] for row in c.execute("EXPLAIN " + query)]
    assert any(re.search(rf"(^|-> +){node} .*\bon t\b", line) for line in plan), plan
