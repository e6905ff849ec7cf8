"""Tables with indexes that a compaction leaves half empty, and what is true of them in the end."""
import time

from vacuum import sound

# Indexes by what is special about them: what CREATE INDEX says.
KINDS = {
    "ascending": "UNIQUE INDEX {} ON f (id)", "random": "INDEX {} ON f (r)", "text": "INDEX {} ON f (t)",
    "roomy": "INDEX {} ON f (r) WITH (fillfactor = 70)", "several": "INDEX {} ON f (n, t)", "unique": "UNIQUE INDEX {} ON f (t, id)",
    "partial": "INDEX {} ON f (r) WHERE n < 50", "expression": "INDEX {} ON f (upper(t))", "equal": "INDEX {} ON f (n)",
    "apart": "INDEX {} ON f (n) WITH (deduplicate_items = off)", "down": "INDEX {} ON f (r DESC NULLS LAST) INCLUDE (n)",
}
ROWS = "i, (i * 7919::bigint % 1000003)::int, md5(i::text), i % 100"
WORKERS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'firn index rebuild'"
INVALID = "SELECT indexrelid::regclass::text FROM pg_index WHERE (NOT indisvalid OR NOT indislive)"
# Slow or failing where a session (or database) is told so.
TRAP = """CREATE OR REPLACE FUNCTION trap(a int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN
    CASE current_setting('test.trap', true)
        WHEN 'fail' THEN RAISE 'trapped';
        WHEN 'sleep' THEN PERFORM pg_sleep(0.02);
        WHEN 'wait' THEN PERFORM pg_advisory_xact_lock_shared(77);
        ELSE NULL;
    END CASE; RETURN a; END$$"""

def wait_until(what, condition, seconds=120):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, what
        time.sleep(0.2)


def small_enough(c, table):
    """Each B-tree of a table and its TOAST relation: its pages, and those that it has after a REINDEX."""
    found = sizes(c, table)
    for index in found:
        c.execute(f"REINDEX INDEX {index}")
    fresh = sizes(c, table)
    return {index: (found[index], fresh[index]) for index in found if found[index] > 32 and found[index] > 1.1 * fresh[index]}


def sizes(c, table):
    return dict(c.execute("""SELECT indexrelid::regclass::text, pg_relation_size(indexrelid) / 8192 FROM pg_index JOIN pg_class x ON x.oid = indexrelid
        WHERE relam = 403 AND indrelid IN (%(t)s::regclass, (SELECT reltoastrelid FROM pg_class WHERE oid = %(t)s::regclass)) ORDER BY 1""",
        {"t": table}).fetchall())


def fresh(c, kinds, rows=30000, seed=1):
    """Rows in the row store, in a random order and several statements, as sessions would write them."""
    c.execute("DROP TABLE IF EXISTS f, h CASCADE")
    c.execute("RESET ALL")
    c.execute("SET firn.bulk_threshold = 1000000")
    for table, am in (("f", "firn"), ("h", "heap")):
        c.execute(f"CREATE TABLE {table} (id int, r int, t text, n int) USING {am} WITH (autovacuum_enabled = off)")
    for name in kinds:
        c.execute("CREATE " + KINDS.get(name, name).format("f_" + (name if name in KINDS else "trap")))
    c.execute("CREATE TEMP TABLE IF NOT EXISTS source AS SELECT 1 AS i")
    c.execute(f"TRUNCATE source; SELECT setseed(0.{seed}); INSERT INTO source SELECT i FROM generate_series(1, {rows}) i ORDER BY random()")
    for part in range(3):
        for table in ("f", "h"):
            c.execute(f"INSERT INTO {table} SELECT {ROWS} FROM source WHERE i % 3 = {part}")


def compact(c, table="f"):
    # A snapshot of autovacuum's or of another case's process may keep rows from being settled.
    wait_until("nothing is settled", lambda: c.execute("SELECT firn.compact(%s)", (table,)).fetchone()[0] > 0)


def equal(c):
    for settings in ("RESET enable_seqscan; RESET firn.enable_scan", "SET enable_seqscan = off; SET firn.enable_scan = off"):
        c.execute(settings)
        for query in ("SELECT count(*), sum(id), sum(r::bigint), min(t), max(t) FROM {}", "SELECT id, r FROM {} WHERE id BETWEEN 100 AND 130 ORDER BY id",
                      "SELECT id FROM {} WHERE n = 17 ORDER BY id", "SELECT id FROM {} WHERE r BETWEEN 500 AND 900 ORDER BY id"):
            assert c.execute(query.format("f")).fetchall() == c.execute(query.format("h")).fetchall(), (settings, query)
    c.execute("RESET enable_seqscan; RESET firn.enable_scan")


def clean(c):
    assert not c.execute(INVALID).fetchall(), c.execute(INVALID).fetchall()
    equal(c)
    sound(c, "f")
