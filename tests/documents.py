"""Documents: what stripes give of a jsonb is, byte for byte, what was stored. Random documents, whose seed is printed (FIRN_SEED repeats it)."""
import json
import os
import random

from harness.cluster import Cluster

SEED = int(os.environ.get("FIRN_SEED") or random.randrange(2**31))
ROWS = int(os.environ.get("FIRN_DOCUMENTS", "3000"))
CONF = ["autovacuum=off", "fsync=off", "jit=off"]
KEYS = ["", "a", "b", "aa", "ab", "id", "status", "Zürich", "日本", "with space", 'qu"ote', "back\\slash", "new\nline", "\u0001", "a.b", "A", "é", "x" * 40]
WORDS = ["", "a", "paid", "null", "true", "1", "1.0", 'say "so"', "c:\\x", "tab\there", "\u0001\u001f\u007f", "\b\f\n\r", "ä", "日本語", "😀", "{}", "[]", "/", "\\u0041",
         "y" * 300, " ", "'"]
NUMBERS = ["0", "1", "-1", "7", "10", "100", "9999", "10000", "10001", "99990000", "123456789", "-9223372036854775808", "18446744073709551615", "18446744073709551616",
           "0.0", "-0.0", "1.0", "1.00", "0.1", "0.00001", "0.0001", "0.00010000", "1234.5678", "12345.678", "-0.5", "100000000.00000001", "1e5", "1E-5", "1.50e3",
           "99999999999999999999999999999999999999", "123456789012345678901234567890123456789", "1e300", "1e-300", "3.14159265358979323846264338327950288419716939937510"]


def text_of(value):
    """JSON of it, numbers as they stand in NUMBERS, sometimes with other spaces and escapes than PostgreSQL writes."""
    if isinstance(value, tuple):
        return value[0]
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, dict):
        return "{" + " , ".join(f"{json.dumps(k)} :{text_of(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def number(r):
    if r.random() < 0.5:
        return (r.choice(NUMBERS),)
    digits = "".join(r.choice("0123456789") for _ in range(r.randint(1, 42))).lstrip("0") or "0"
    return (r.choice(["", "-"]) + digits + r.choice(["", "." + "".join(r.choice("00123456789") for _ in range(r.randint(1, 25)))]),)


def document(r, level=0):
    kind = r.random()
    if level and kind < 0.35:
        return r.choice(WORDS)
    if level and kind < 0.6:
        return number(r)
    if level and kind < 0.7:
        return r.choice([None, True, False])
    # Around 32 entries every other one has an offset.
    few = r.choice([0, 1, 2, 3, 5]) if level or r.random() < 0.7 else r.choice([30, 31, 32, 33, 63, 64, 65, 100])
    inner = [document(r, level + 1) if level < 4 else r.choice(WORDS) for _ in range(few)]
    if kind < 0.85:
        return {r.choice(KEYS) + (str(r.randrange(200)) if few > 6 else ""): v for v in inner}
    return inner


def documents(r):
    yield from (text_of(document(r)) for _ in range(ROWS))
    yield from (text_of(v) for v in [*WORDS, None, True, False])
    yield from NUMBERS
    for levels in (62, 63, 64, 65, 66, 200):
        yield "[" * levels + "1" + "]" * levels
        yield '{"a":' * levels + '"x"' + "}" * levels


def twins(c, r):
    """The same documents in `h` (heap) and `f` (stripes); some rows are NULL, some documents come often."""
    c.execute("DROP TABLE IF EXISTS h, f; CREATE TABLE h (id int, doc jsonb) USING heap; ALTER TABLE h ALTER doc SET STORAGE EXTERNAL; SET firn.bulk_threshold = 0; SET firn.stripe_rows = 1000")
    c.execute("SET client_encoding = 'UTF8'; CREATE TABLE f (id int, doc jsonb) USING firn")
    all_of_them = [*documents(r)]
    often = r.sample(all_of_them, 5)
    with c.cursor() as cursor, cursor.copy("COPY h FROM STDIN") as copy:
        for n, text in enumerate(all_of_them):
            copy.write_row((n, None if r.random() < 0.02 else r.choice(often) if r.random() < 0.05 else text))
    c.execute("INSERT INTO f SELECT id, doc FROM h ORDER BY id")
    assert c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone()[0] > 2


def images(c, table):
    """Bytes of each document as a heap has them, by id."""
    c.execute("DROP TABLE IF EXISTS image; CREATE TABLE image (id int, doc jsonb) USING heap; ALTER TABLE image ALTER doc SET STORAGE PLAIN")
    c.execute(f"INSERT INTO image SELECT id, doc FROM {table} WHERE pg_column_size(doc) IS NULL OR pg_column_size(doc || '[]') < 7000")
    found = c.execute("""SELECT get_byte(t_attrs[1], 0) + 256 * get_byte(t_attrs[1], 1), t_attrs[2]
        FROM generate_series(0, pg_relation_size('image') / 8192 - 1) n, heap_page_item_attrs(get_raw_page('image', n::int), 'image')
        WHERE t_attrs IS NOT NULL""").fetchall()
    return {number: None if image is None else bytes(image) for number, image in found}


def forms(cluster):
    r = random.Random(SEED)
    with cluster.connect() as c:
        c.execute("CREATE EXTENSION IF NOT EXISTS pageinspect")
        twins(c, r)
        heap, firn = images(c, "h"), images(c, "f")
        assert len(heap) > ROWS * 0.9 and heap.keys() == firn.keys(), (len(heap), len(firn))
        wrong = [n for n in heap if heap[n] != firn[n]]
        assert not wrong, (wrong, heap[wrong[0]], firn[wrong[0]])
        # One by one as well, and what is too large for the images.
        c.execute("CREATE INDEX ON f (id); SET enable_seqscan = off")
        differ = """SELECT count(*) FROM h, LATERAL (SELECT doc FROM f WHERE f.id = h.id OFFSET 0) f
                    WHERE h.doc IS DISTINCT FROM f.doc OR pg_column_size(h.doc || '[]') <> pg_column_size(f.doc || '[]') OR h.doc::text <> f.doc::text"""
        assert c.execute(differ).fetchone() == (0,)


# Queries over {t}, whose documents have the fields of KEYS and others. Those of the second list look at more than fields.
FIELDS = [
    "SELECT id, doc->>'a' FROM {t}",
    "SELECT id, doc->'id', doc->>'status' FROM {t} WHERE doc ? 'b' OR doc->'aa' IS NOT NULL",
    "SELECT doc->>'a', count(*), sum(id), max(doc->>'id') FROM {t} GROUP BY 1",
    "SELECT count(*) FROM {t} WHERE doc IS NULL",
    "SELECT id FROM {t} WHERE doc IS NOT NULL AND id % 7 = 0",
    "SELECT id FROM {t} WHERE doc @> '{{\"a\": \"paid\"}}'",
    "SELECT id FROM {t} WHERE doc @> '{{}}'",
    "SELECT id FROM {t} WHERE doc @> '{{\"a\": {{}}, \"id\": [1]}}' OR doc @> '{{\"no\": 1}}'",
    "SELECT id, doc #> '{{a,b}}', doc #>> '{{id,0}}', jsonb_extract_path(doc, 'aa', '1'), doc['ab'], doc['a']['b'] FROM {t}",
    "SELECT id, doc->'Zürich', doc->'日本', doc->'', doc->'with space', doc->'new\nline', doc->'qu\"ote' FROM {t}",
    "SELECT s.x->>'a', s.id FROM (SELECT doc AS x, id FROM {t} OFFSET 0) s WHERE s.x ? 'id'",
    "SELECT x->>'a', id FROM (SELECT doc AS x, id FROM {t} UNION ALL SELECT doc->'b', id FROM {t} WHERE id < 500) s WHERE x IS NOT NULL",
    "SELECT x->'a', x->>'id' FROM (SELECT doc AS x FROM {t} UNION ALL SELECT b.doc FROM {t} b WHERE b.id % 3 = 0) s",
    "SELECT a.id, e FROM {t} a, jsonb_array_elements(CASE WHEN jsonb_typeof(a.doc->'a') = 'array' THEN a.doc->'a' END) e",
    "SELECT a.id, n FROM {t} a, LATERAL (SELECT count(*) AS n FROM jsonb_each(CASE WHEN jsonb_typeof(a.doc->'b') = 'object' THEN a.doc->'b' END)) l",
    "SELECT a.id, b.id FROM {t} a JOIN {t} b ON a.doc->>'id' = b.doc->>'a' AND a.id < 300 AND b.id < 300",
    "SELECT a.id, (SELECT count(*) FROM {t} b WHERE b.id < 200 AND b.doc->'a' = a.doc->'a') FROM {t} a WHERE a.id < 200",
    "SELECT id, row_number() OVER (PARTITION BY doc->>'a' ORDER BY id) FROM {t}",
    "WITH w AS MATERIALIZED (SELECT doc, id FROM {t}) SELECT id, doc->>'a' FROM w",
    "WITH w AS (SELECT doc, id FROM {t}) SELECT id, doc->>'a' FROM w WHERE doc->>'id' > '1'",
    "SELECT DISTINCT doc->>'status' FROM {t}",
    "SELECT doc->>'a' FROM {t} WHERE id < 900 ORDER BY doc->>'id', id",
    "SELECT max(doc->>'a'), min(doc->>'a') FROM {t}",
    "SELECT id, EXISTS (SELECT FROM {t} b WHERE b.doc ? 'id' AND b.id = a.id) FROM {t} a",
]
MORE = [
    "SELECT id, doc FROM {t} WHERE doc->>'a' = 'paid'",
    "SELECT id, (x)::text FROM {t} x WHERE x.doc ? 'a'",
    "SELECT id, doc->>'a', doc || '[]' FROM {t}",
    "SELECT id, doc->>0, doc->0, doc->-1, doc->'a'->0 FROM {t}",
    "SELECT id, doc #> '{{}}', doc->>'a' FROM {t}",
    "SELECT id, doc #> ARRAY[NULL, 'a'], doc->>'a' FROM {t}",
    "SELECT id FROM {t} WHERE doc @> '[]' OR doc @> '\"paid\"' OR doc ? 'a'",
    "SELECT id FROM {t} WHERE doc <@ '{{\"a\": 1, \"b\": 2}}' AND doc->'c' IS NULL",
    "SELECT id, doc ?| ARRAY['a', 'b'], doc->>'a' FROM {t}",
    "SELECT id, doc->>(CASE WHEN id % 2 = 0 THEN 'a' ELSE 'b' END) FROM {t} WHERE doc ? 'id'",
    "SELECT jsonb_agg(doc ORDER BY id) FROM {t} WHERE id < 50 AND doc->>'a' IS NOT NULL",
    "SELECT id, (SELECT count(*) FROM jsonb_object_keys(CASE WHEN jsonb_typeof(a.doc) = 'object' THEN a.doc END)) FROM {t} a WHERE doc ? 'a'",
    # Of documents that are equal (0 and 0.0) the group shows whichever comes first, which no order decides.
    "SELECT min(doc::text COLLATE \"C\"), count(*) FROM {t} WHERE doc ? 'a' GROUP BY doc",
    "SELECT x, id FROM (SELECT doc AS x, id FROM {t} UNION ALL SELECT doc->'b', id FROM {t}) s WHERE x ? 'a'",
    "SELECT id, jsonb_typeof(doc), doc->>'a' FROM {t}",
    "SELECT a.id FROM {t} a JOIN {t} b ON a.doc = b.doc AND a.doc ? 'a' AND b.id < 100",
    "SELECT id, doc->>'a' FROM {t} WHERE id % 11 = 0 FOR UPDATE",
]


def read(c, table):
    """Fields that scans of a query say they read."""
    return [line.split(":", 1)[1].strip() for line, in c.execute(f"EXPLAIN (VERBOSE, COSTS OFF) {table}").fetchall() if "Fields Read:" in line]


def fields(cluster):
    """Documents of which a query asks for fields alone are read so far, and nothing is otherwise than of whole ones."""
    r = random.Random(SEED)
    with cluster.connect() as c:
        twins(c, r)
        for am, table in (("heap", "hp"), ("firn", "fp")):
            c.execute(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (extra int, id int, doc jsonb) PARTITION BY RANGE (id)")
            # The second's columns stand elsewhere.
            c.execute(f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES FROM (0) TO (1000) USING {am}")
            c.execute(f"CREATE TABLE {table}_2 (doc jsonb, gone text, id int, extra int) USING {am}; ALTER TABLE {table}_2 DROP gone")
            c.execute(f"ALTER TABLE {table} ATTACH PARTITION {table}_2 FOR VALUES FROM (1000) TO (1000000)")
            c.execute(f"INSERT INTO {table} (id, doc) SELECT id, doc FROM h ORDER BY id; ANALYZE {table}")
        # Rows of the row store, and such as this transaction has not written yet.
        c.execute("SET firn.bulk_threshold = 1000000")
        for table in ("h", "f", "hp", "fp"):
            c.execute(f"INSERT INTO {table} (id, doc) SELECT id + 100000, doc FROM h WHERE id < 60")
        c.execute("ANALYZE h, f")
        for workers in ("0", "2"):
            c.execute(f"SET max_parallel_workers_per_gather = {workers}; SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0")
            for query in FIELDS + MORE:
                for heap, firn in (("h", "f"), ("hp", "fp")):
                    expected, found = (sorted(map(repr, c.execute(query.format(t=t)).fetchall())) for t in (heap, firn))
                    assert expected == found, (query, firn, workers, [(e, f) for e, f in zip(expected, found) if e != f][:1], len(expected), len(found))
                    told = read(c, query.format(t=firn))
                    # (The other arm of the UNION asks for a field.)
                    right = set(told) <= ({"doc (b)"} if "UNION" in query else set()) if query in MORE else told or "MATERIALIZED" in query or "OFFSET" in query
                    assert right, (query, firn, told)
        # An expression of very many levels is looked through as far as the stack lasts, and no further.
        deep = "SELECT sum(length(" + "(" * 1500 + "doc->>'a'" + " || 'x')" * 1500 + ")) FROM {t}"
        assert len({c.execute(deep.format(t=t)).fetchone() for t in ("h", "f")}) == 1
        assert read(c, "SELECT doc->>'b', doc->'a' FROM f WHERE doc ? 'cc'") == ["doc (a, b, cc)"]
        assert read(c, "SELECT count(*) FROM f WHERE doc IS NULL") == ["doc ()"]


CASES = {"forms": forms, "fields": fields}


def run(tally, pattern):
    cases = {name: body for name, body in CASES.items() if pattern in name}
    if not cases:
        return
    print(f"     FIRN_SEED={SEED}")
    cluster = Cluster("documents", CONF).create()
    try:
        with cluster.connect() as c:
            c.execute("CREATE EXTENSION firn")
        for name, body in cases.items():
            tally.case(f"documents {name}", lambda body=body: body(cluster))
        tally.case("documents server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()
