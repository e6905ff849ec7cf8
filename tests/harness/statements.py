"""The statements that tests/torture.py makes fail, and how the statements of SQL files are told apart."""
import re

from harness.cluster import forced_parallel

MAKE = """
DROP TABLE IF EXISTS child, t;
SET firn.bulk_threshold = 0; SET firn.stripe_rows = 100;
CREATE TABLE t (id int PRIMARY KEY, n int, v text) USING {am};
INSERT INTO t SELECT i, i % 17, 'v' || i FROM generate_series(1, 230) i;
SET firn.bulk_threshold = 1000;
INSERT INTO t SELECT i, i % 17, 'w' || i FROM generate_series(231, 270) i;
UPDATE t SET n = n + 1 WHERE id % 50 = 0;
DELETE FROM t WHERE id % 70 = 0;
CREATE INDEX t_n ON t (n);
"""
INDEX = "SET enable_seqscan = off; SET firn.enable_scan = off; SET enable_bitmapscan = off"
BITMAP = "SET enable_seqscan = off; SET firn.enable_scan = off; SET enable_indexscan = off"
BULK = "SET firn.bulk_threshold = 0; SET firn.stripe_rows = 60"
ROWS = "SELECT * FROM t ORDER BY 1, 2, 3"


class Case:
    """A statement. `heap` is what heap runs in its place; `alone` cannot run in a transaction block."""

    def __init__(self, name, sql, heap=None, settings="", make=MAKE, alone=False, more=""):
        self.name, self.sql, self.settings, self.make, self.alone = name, sql, settings, make, alone
        self.heap = sql if heap is None else heap
        self.more = more


# An inner transaction that fails is undone and done again, so that what is around it must end as if nothing had been.
RETRY = """
CREATE OR REPLACE FUNCTION retry(sql text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    BEGIN EXECUTE sql; EXCEPTION WHEN SQLSTATE '53000' THEN EXECUTE sql; END;
    RETURN 1;
END $$;
"""
NOTHING = "SELECT 1"
CASES = [
    Case("compact", "SELECT firn.compact('t') > 0", NOTHING),
    Case("offload", "SELECT firn.offload('t', 'cold') > 0", NOTHING),
    Case("load", "SELECT firn.load('t') > 0", NOTHING, more="SELECT firn.offload('t', 'cold')"),
    Case("check", "SELECT count(*) FROM firn.check('t')", NOTHING),
    Case("stripes", "SELECT count(*) > 0 FROM firn.stripes('t')", NOTHING),
    Case("vacuum", "VACUUM t", alone=True, more="SELECT firn.compact('t')"),
    Case("vacuum freeze", "VACUUM (FREEZE) t", alone=True),
    Case("vacuum full", "VACUUM FULL t", alone=True),
    Case("vacuum analyze", "VACUUM ANALYZE t", alone=True),
    Case("analyze", "ANALYZE t"),
    Case("cluster", "CLUSTER t USING t_n"),
    Case("reindex", "REINDEX TABLE t"),
    Case("reindex concurrently", "REINDEX TABLE CONCURRENTLY t", alone=True),
    Case("create index", "CREATE INDEX ON t (v, n) WHERE n > 3"),
    Case("create index on an expression", "CREATE UNIQUE INDEX ON t ((id * 2))"),
    Case("create index concurrently", "CREATE INDEX CONCURRENTLY t_new ON t (v)", alone=True),
    Case("truncate", "TRUNCATE t"),
    Case("drop", "DROP TABLE t; CREATE TABLE t (id int, n int, v text)"),
    Case("add column", "ALTER TABLE t ADD COLUMN w int DEFAULT 7"),
    Case("drop column", "ALTER TABLE t DROP COLUMN v; ALTER TABLE t ADD COLUMN v text"),
    Case("change type", "ALTER TABLE t ALTER COLUMN n TYPE bigint USING n * 2"),
    Case("set not null", "ALTER TABLE t ALTER COLUMN n SET NOT NULL"),
    Case("to heap", "ALTER TABLE t SET ACCESS METHOD heap"),
    Case("from heap", "ALTER TABLE t SET ACCESS METHOD firn", NOTHING, make=MAKE.replace("{am}", "heap")),
    Case("bulk insert", "INSERT INTO t SELECT i, i, 'n' || i FROM generate_series(1001, 1150) i", settings=BULK),
    Case("bulk insert with a large value",
         "INSERT INTO t SELECT i, i, string_agg(md5(j::text || i), '') FROM generate_series(1001, 1003) i,"
         " generate_series(1, 700) j GROUP BY i", settings=BULK),
    Case("insert a row", "INSERT INTO t VALUES (1001, 1, 'x')"),
    Case("insert, returning", "INSERT INTO t SELECT i, i, 'n' FROM generate_series(1001, 1010) i RETURNING id", settings=BULK),
    Case("insert twice", "INSERT INTO t SELECT i, i, 'n' FROM generate_series(1001, 1080) i;"
         " INSERT INTO t SELECT i, i, 'n' FROM generate_series(1081, 1120) i", settings=BULK),
    Case("savepoints", "SAVEPOINT a; INSERT INTO t SELECT i, i, 'n' FROM generate_series(1001, 1030) i; SAVEPOINT b;"
         " INSERT INTO t SELECT i, i, 'n' FROM generate_series(1031, 1060) i; ROLLBACK TO b; RELEASE a", settings=BULK),
    Case("create as", "CREATE TABLE child AS SELECT * FROM t", settings=BULK + "; SET default_table_access_method = {am}"),
    Case("update", "UPDATE t SET n = n + 100 WHERE id BETWEEN 95 AND 105"),
    Case("update of keys", "UPDATE t SET id = id + 5000 WHERE id BETWEEN 95 AND 100"),
    Case("update by index", "UPDATE t SET v = 'changed' WHERE id = 33", settings=INDEX),
    Case("update from itself", "UPDATE t SET n = s.n FROM t s WHERE s.id = t.id + 1 AND t.id < 5"),
    Case("delete", "DELETE FROM t WHERE id BETWEEN 95 AND 105"),
    Case("delete all", "DELETE FROM t"),
    Case("on conflict do update",
         "INSERT INTO t VALUES (33, 0, 'x'), (2000, 0, 'y') ON CONFLICT (id) DO UPDATE SET n = t.n + 1000"),
    Case("on conflict do nothing", "INSERT INTO t SELECT i, i, 'n' FROM generate_series(1, 3) i ON CONFLICT DO NOTHING"),
    Case("merge", "MERGE INTO t USING (VALUES (5), (3000)) s (i) ON t.id = s.i WHEN MATCHED THEN DELETE"
         " WHEN NOT MATCHED THEN INSERT VALUES (s.i, 0, 'm')"),
    Case("foreign key", "CREATE TABLE child (id int REFERENCES t); INSERT INTO child VALUES (33), (250);"
         " UPDATE t SET n = 1 WHERE id = 33"),
    Case("for update", "SELECT * FROM t WHERE id IN (33, 100, 250) ORDER BY id FOR UPDATE"),
    Case("for key share", "SELECT * FROM t WHERE id < 4 ORDER BY id FOR KEY SHARE"),
    Case("select by index", "SELECT * FROM t WHERE id = 33", settings=INDEX),
    Case("select by range", "SELECT * FROM t WHERE id BETWEEN 90 AND 110 ORDER BY id", settings=INDEX),
    Case("index only scan", "SELECT id FROM t WHERE id BETWEEN 90 AND 110 ORDER BY id", settings=INDEX),
    Case("bitmap scan", "SELECT count(v) FROM t WHERE n = 5", settings=BITMAP),
    Case("scan", "SELECT sum(n), max(v) FROM t WHERE n > 3"),
    Case("scan of columns", "SELECT id, v FROM t WHERE v < 'v2' ORDER BY 1"),
    Case("plain scan", "SELECT * FROM t ORDER BY id", settings="SET firn.enable_scan = off"),
    Case("parallel scan", "SELECT sum(n), count(v) FROM t",
         settings=f"SET {forced_parallel()} = on; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;"
         " SET min_parallel_table_scan_size = 0"),
    Case("count", "SELECT count(*) FROM t"),
    Case("by tid", "SELECT count(*) FROM t WHERE ctid = ANY (ARRAY(SELECT ctid FROM t WHERE id < 50))"),
    Case("sample", "SELECT count(*) > 0 FROM t TABLESAMPLE system (100)"),
    Case("distinct window", "SELECT DISTINCT n, max(id) OVER (PARTITION BY n) FROM t ORDER BY 1, 2"),
    Case("cursor", "DECLARE c SCROLL CURSOR FOR SELECT * FROM t ORDER BY id; FETCH 5 FROM c; MOVE LAST FROM c;"
         " FETCH BACKWARD 3 FROM c; CLOSE c"),
    Case("current of", "DECLARE c CURSOR FOR SELECT * FROM t WHERE id > 95 ORDER BY id; FETCH 6 FROM c;"
         " UPDATE t SET n = -1 WHERE CURRENT OF c; CLOSE c", settings=INDEX),
    Case("cold select", "SELECT sum(n), max(v) FROM t", more="SELECT firn.offload('t', 'cold')"),
    Case("serializable", "SELECT sum(n) FROM t WHERE id < 120; UPDATE t SET n = 0 WHERE id = 3;"
         " INSERT INTO t SELECT i, i, 'n' FROM generate_series(1001, 1030) i",
         settings=BULK + "; SET default_transaction_isolation = serializable"),
    Case("insert around inner transactions",
         "INSERT INTO t SELECT i, retry('INSERT INTO t VALUES (' || i + 5000 || ', 0, ''inner'')'), 'outer'"
         " FROM generate_series(1001, 1040) i", settings=BULK, make=MAKE + RETRY),
    Case("update around inner transactions",
         "UPDATE t SET n = retry('DELETE FROM t WHERE id = ' || id + 100) WHERE id IN (3, 98, 101)", make=MAKE + RETRY),
    Case("scan around inner transactions",
         "SELECT id, retry('SELECT sum(n) FROM t WHERE id > ' || id) FROM t WHERE id % 20 = 0 ORDER BY id", make=MAKE + RETRY),
    Case("cursor around inner transactions", "DECLARE c CURSOR FOR SELECT * FROM t ORDER BY id; FETCH 5 FROM c;"
         " SELECT retry('UPDATE t SET n = n + 1 WHERE id < 200'); FETCH 100 FROM c;"
         " SELECT retry('INSERT INTO t SELECT i, i, ''n'' FROM generate_series(1001, 1080) i'); FETCH ALL FROM c; CLOSE c",
         settings=BULK + "; " + INDEX, make=MAKE + RETRY),
    Case("compact around inner transactions", "SELECT retry('SELECT firn.compact(''t'')') FROM generate_series(1, 2)",
         "SELECT retry('SELECT 1') FROM generate_series(1, 2)", make=MAKE + RETRY),
    Case("prepared transaction", "INSERT INTO t SELECT i, i, 'n' FROM generate_series(1001, 1030) i; UPDATE t SET n = 0 WHERE id = 3;"
         " PREPARE TRANSACTION 'x'; ROLLBACK PREPARED 'x'", settings=BULK, alone=True),
]


TOKEN = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$|;|.", re.S)


def split(text):
    """The statements of a script for psql, without its own commands, and without COPY from the script."""
    text = re.sub(r"(?m)^COPY [^;]* FROM stdin[^;]*;\n(?:.*\n)*?\\\.\n", "", text)
    text = re.sub(r"(?m)^\\.*$", "", text)
    found, now = [], ""
    for m in TOKEN.finditer(text):
        if m[0] == ";":
            found.append(now.strip())
            now = ""
        elif not m[0].startswith(("--", "/*")):
            now += m[0]
    return [sql for sql in found if sql and not re.match("COPY .* (FROM stdin|TO stdout)", sql, re.I | re.S)]
