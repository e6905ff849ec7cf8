"""What is repeated: each operation, by name, with its table, its statements and what may grow by it, and why.

A step is a statement; {i} is the number of the repetition, {am} the access method. A step that begins with "!23505 " has to
fail with that SQLSTATE. `tidy` runs every so often, as autovacuum would; nothing else tidies up. A `bound` names a
measure and by how much it may grow between the middle and the end of n repetitions: (bytes or things at all, per
repetition, reason)."""
from dataclasses import dataclass, field

from .measure import KB, MB

ROWS = 600
LOAD = ("SET firn.bulk_threshold = 0", "SET firn.stripe_rows = 150",
        f"INSERT INTO f SELECT i, i % 10, md5(i::text), i / 4.0 FROM generate_series(0, {ROWS - 1}) i",
        "RESET firn.bulk_threshold", "RESET firn.stripe_rows", "VACUUM ANALYZE f")
TABLE = ("CREATE TABLE f (id int PRIMARY KEY, k int, v text, n numeric(10,2)) USING {am}", *LOAD)
CATALOG = "VACUUM pg_class, pg_attribute, pg_depend, pg_type, pg_index, pg_statistic, pg_proc, pg_shdepend"
BULK = ("SET firn.bulk_threshold = 0",)
NO_SCAN = ("SET firn.enable_scan = off", "SET enable_seqscan = off")
NEW = "SELECT {i} * 60 + g + 10000, 1, md5(g::text), 1 FROM generate_series(1, 60) g"
GONE = "DELETE FROM f WHERE id >= 10000"


@dataclass
class Op:
    steps: list
    setup: tuple = TABLE
    tidy: tuple = ()
    firn_only: bool = False
    # Run also as a transaction that ends in an error.
    fails: bool = False
    # A costly operation: n is divided by this.
    rarer: int = 1
    bound: dict = field(default_factory=dict)


def reading(*steps, settings=(), **kw):
    return Op(list(steps), TABLE + tuple(settings), **kw)


# Catalogs are changed.
DDL = {
    "contexts": (64 * KB, 1300, "PostgreSQL's catalog cache keeps an entry for every OID that is gone, of heap tables, too"),
    "resident": (2 * MB, 1600, "the same; and what is remembered of tables, within firn.metadata_cache and of 4,096 tables"),
    "open files": (40, 0, "files of catalogs are opened when they are read first"),
    "files": (8, 0, "maps of catalogs"),
}
FAILS = ("DO $$BEGIN FOR i IN 1..10 LOOP BEGIN EXECUTE 'CREATE TABLE f (' || repeat('LIKE e INCLUDING INDEXES, ', 1000) || 'LIKE e)'; "
         "EXCEPTION WHEN duplicate_table THEN NULL; END; END LOOP; END$$")
VACUUM = ("VACUUM f",)
SETTLE = ("SELECT firn.compact('f')", "VACUUM f")
OPS = {
    "look-up, prepared": reading("EXECUTE q({i} % 600)", settings=["PREPARE q(int) AS SELECT v FROM f WHERE id = $1"]),
    "look-up": reading("SELECT v, n FROM f WHERE id = {i} % 600"),
    "look-up of a text": reading("SELECT id FROM f WHERE v = md5(({i} % 600)::text)",
                                 settings=["CREATE INDEX ON f (v)", *NO_SCAN]),
    "index scan": reading("SELECT sum(n), max(v) FROM f WHERE id BETWEEN {i} % 500 AND {i} % 500 + 60",
                          settings=[*NO_SCAN, "SET enable_bitmapscan = off"]),
    "index-only scan": reading("SELECT max(id), count(*) FROM f WHERE id BETWEEN {i} % 500 AND {i} % 500 + 60",
                               settings=[*NO_SCAN, "SET enable_bitmapscan = off"]),
    "bitmap scan": reading("SELECT sum(n), max(v) FROM f WHERE id BETWEEN {i} % 500 AND {i} % 500 + 60",
                           settings=[*NO_SCAN, "SET enable_indexscan = off"]),
    "scan": reading("SELECT count(v), sum(n) FROM f"),
    "scan with conditions": reading("SELECT count(v), sum(n) FROM f WHERE k = {i} % 10 AND v > 'a' AND n < {i}"),
    "scan of PostgreSQL": reading("SELECT count(v), sum(n) FROM f WHERE k <> 3", settings=["SET firn.enable_scan = off"]),
    "TABLESAMPLE": reading("SELECT count(v) FROM f TABLESAMPLE SYSTEM (30)", "SELECT count(v) FROM f TABLESAMPLE BERNOULLI (10)"),
    "TID": reading("SELECT count(v) FROM f WHERE ctid IN ('(2147483648,7)', '(0,1)')",
                   "SELECT count(v) FROM f WHERE ctid > '(2147483648,100)'"),
    "= ANY of 20,000": reading("SELECT count(v) FROM f WHERE id = ANY (ARRAY(SELECT x + {i} FROM generate_series(1, 20000) x))",
                               rarer=5),
    "= ANY of a constant": reading("SELECT count(v) FROM f WHERE k = 3 AND n = ANY ('{{" + ",".join(map(str, range(500)))
                                   + "}}'::numeric[])"),
    "aggregate": reading("SELECT k, count(*), sum(n), min(v) FROM f GROUP BY k", "SELECT count(*) FROM f"),
    "window": reading("SELECT DISTINCT k, sum(n) OVER (PARTITION BY k) FROM f WHERE id < 300"),
    "join": reading("SELECT count(a.v) FROM f a JOIN f b ON a.id = b.k + {i} % 100"),
    "join, row by row": reading("SELECT count(a.v) FROM (SELECT k FROM f WHERE id < 30) b JOIN f a ON a.id = b.k + {i} % 100",
                                settings=["SET enable_hashjoin = off", "SET enable_mergejoin = off", "SET enable_seqscan = off"]),
    "merge join, sort": reading("SELECT count(*) FROM (SELECT * FROM f ORDER BY v) a JOIN f b USING (v)",
                                settings=["SET enable_hashjoin = off", "SET enable_nestloop = off"]),
    "EXPLAIN ANALYZE": reading("EXPLAIN ANALYZE SELECT count(v) FROM f WHERE k = 3 AND id > {i} % 300"),
    "cursor": reading("BEGIN", "DECLARE c CURSOR FOR SELECT * FROM f WHERE k <> 3", "FETCH 100 FROM c", "COMMIT",
                      "DECLARE h SCROLL CURSOR WITH HOLD FOR SELECT * FROM f WHERE id > 450", "FETCH BACKWARD 5 FROM h",
                      "FETCH LAST FROM h", "CLOSE h"),
    "COPY out": reading("@copy_out"),
    "parallel scan": reading("SELECT count(v), sum(n) FROM f", rarer=5, settings=[
        "SET parallel_setup_cost = 0", "SET parallel_tuple_cost = 0", "SET min_parallel_table_scan_size = 0",
        "SET max_parallel_workers_per_gather = 2", "ALTER TABLE f SET (parallel_workers = 2)"]),

    "INSERT of a row": Op(["INSERT INTO f VALUES ({i} + 10000, 1, 'x', 1)", "DELETE FROM f WHERE id = {i} + 10000"],
                          tidy=VACUUM, fails=True),
    "INSERT of a stripe": Op([f"INSERT INTO f {NEW}", GONE], TABLE + BULK, VACUUM, fails=True),
    "INSERT of keys at random": Op(["INSERT INTO f SELECT 10000 + ({i} * 60 + g)::bigint * 7919 % 1000003, 1, 'x', 1 FROM "
                                    "generate_series(1, 60) g", GONE], TABLE + BULK, VACUUM),
    "ON CONFLICT DO NOTHING of many": Op(["INSERT INTO f SELECT 10000 + (hashint4({i} * 60 + g) & 1073741823), 1, 'x', 1 FROM "
                                          "generate_series(1, 60) g ON CONFLICT DO NOTHING", GONE], TABLE + BULK, VACUUM),
    "COPY of a stripe": Op(["@copy_in", GONE], TABLE + BULK, VACUUM, fails=True),
    "UPDATE of stripe rows": Op(["UPDATE f SET v = 'n' || {i} WHERE id BETWEEN ({i} * 7) % 600 AND ({i} * 7) % 600 + 6"],
                                tidy=SETTLE, fails=True),
    "UPDATE of one row": Op(["UPDATE f SET n = {i} % 1000 WHERE id = 5"], tidy=SETTLE),
    "UPDATE of a key": Op(["UPDATE f SET id = -id WHERE abs(id) = 1 + {i} % 500"], tidy=SETTLE),
    "DELETE of stripe rows": Op(["DELETE FROM f WHERE id BETWEEN ({i} * 7) % 600 AND ({i} * 7) % 600 + 6",
                                 "INSERT INTO f SELECT g % 600, 1, 'again', 1 FROM generate_series(({i} * 7) % 600, ({i} * 7) % 600 + 6) g "
                                 "ON CONFLICT DO NOTHING"], tidy=SETTLE, fails=True),
    "ON CONFLICT": Op(["INSERT INTO f VALUES ({i} % 600, 1, 'y', 1) ON CONFLICT (id) DO UPDATE SET n = f.n + 1",
                       "INSERT INTO f VALUES ({i} % 600, 1, 'y', 1) ON CONFLICT DO NOTHING"], tidy=SETTLE, fails=True),
    "MERGE": Op(["MERGE INTO f USING (SELECT ({i} * 3) % 600 AS id) s ON f.id = s.id WHEN MATCHED THEN UPDATE SET k = {i}"],
                tidy=SETTLE, fails=True),
    "FOR UPDATE": Op(["SELECT v FROM f WHERE id BETWEEN ({i} * 3) % 600 AND ({i} * 3) % 600 + 2 FOR UPDATE"], tidy=VACUUM, fails=True),
    "FOR KEY SHARE": Op(["SELECT v FROM f WHERE id BETWEEN ({i} * 3) % 600 AND ({i} * 3) % 600 + 2 FOR KEY SHARE"],
                        tidy=VACUUM, fails=True),
    "foreign key": Op(["INSERT INTO child VALUES ({i}, {i} % 600)", "DELETE FROM child WHERE id = {i}"],
                      TABLE + ("CREATE TABLE child (id int PRIMARY KEY, f int REFERENCES f) USING {am}",),
                      ("VACUUM f, child",), fails=True),
    "cascade": Op(["DELETE FROM f WHERE id = 10000", "INSERT INTO f VALUES (10000, 1, 'x', 1)",
                   "INSERT INTO child SELECT g + 60 * {i}, 10000 FROM generate_series(1, 20) g"],
                  (*TABLE, "CREATE TABLE child (id int PRIMARY KEY, f int REFERENCES f ON DELETE CASCADE) USING {am}", *BULK),
                  ("VACUUM f, child",)),
    "savepoints": Op(["BEGIN", "SAVEPOINT s", f"INSERT INTO f {NEW}", "ROLLBACK TO s", "DELETE FROM f WHERE id = {i} % 600",
                      "ROLLBACK TO s", "SAVEPOINT r", "SELECT v FROM f WHERE id = {i} % 600 FOR UPDATE", "RELEASE r", "COMMIT"],
                     TABLE + BULK, VACUUM),
    "exception block": Op(["SELECT attempt({i})"], TABLE + BULK + (
        """CREATE FUNCTION attempt(i int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  FOR r IN 1..3 LOOP
    BEGIN
      INSERT INTO f SELECT i * 60 + g + 10000, 1, 'x', 1 FROM generate_series(1, 20) g;
      PERFORM 1 / (r - r);
    EXCEPTION WHEN division_by_zero THEN NULL;
    END;
    BEGIN
      INSERT INTO f SELECT g, 1, 'x', 1 FROM generate_series(580, 620) g;
    EXCEPTION WHEN unique_violation THEN NULL;
    END;
  END LOOP;
END $$""",), VACUUM),
    "trigger": Op([f"INSERT INTO f {NEW}", GONE], (*TABLE, *BULK, "CREATE TABLE log (id int, what text) USING {am}",
                  "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO log SELECT id, v FROM new; "
                  "DELETE FROM log; RETURN NULL; END$$",
                  "CREATE TRIGGER t AFTER INSERT ON f REFERENCING NEW TABLE AS new EXECUTE FUNCTION note()"), ("VACUUM f, log",)),
    "prepared transaction": Op(["BEGIN", f"INSERT INTO f {NEW}", "DELETE FROM f WHERE id = {i} % 600",
                                "PREPARE TRANSACTION 'p'", "ROLLBACK PREPARED 'p'",
                                "BEGIN", f"INSERT INTO f {NEW}", GONE, "PREPARE TRANSACTION 'p'", "COMMIT PREPARED 'p'"],
                               TABLE + BULK, VACUUM),
    "TRUNCATE": Op([f"INSERT INTO f {NEW}", "TRUNCATE f"], TABLE + BULK, VACUUM, fails=True),
    "CREATE TABLE that fails": Op([FAILS], (*TABLE, "CREATE TABLE e () USING {am}")),
    "CREATE TABLE that fails, in one transaction": Op([FAILS], (*TABLE, "CREATE TABLE e () USING {am}", "BEGIN")),
    "CREATE and DROP TABLE": Op(["CREATE TABLE g (id int PRIMARY KEY, v text) USING {am}",
                                 "INSERT INTO g SELECT g, g FROM generate_series(1, 50) g", "SELECT count(v) FROM g WHERE id > 3",
                                 "DROP TABLE g"], TABLE + BULK, (CATALOG,),
                                fails=True, bound=DDL),
    "temporary table": Op(["BEGIN", "INSERT INTO tt SELECT g, 'x' || g FROM generate_series(1, 50) g",
                           "SELECT count(v) FROM tt WHERE id > 3", "COMMIT"],
                          TABLE + BULK + ("SET temp_buffers = '800kB'", "CREATE TEMP TABLE tt (id int PRIMARY KEY, v text) USING {am} ON COMMIT DELETE ROWS",)),
    "materialized view": Op(["REFRESH MATERIALIZED VIEW m"], TABLE + BULK + (
        "CREATE MATERIALIZED VIEW m USING {am} AS SELECT id, v FROM f WHERE id < 100",),
        (CATALOG,), bound=DDL),
    "compact": Op(["INSERT INTO f SELECT g + 10000, 1, 'x', 1 FROM generate_series(1, 20) g", "SELECT firn.compact('f')", GONE],
                  tidy=VACUUM, firn_only=True, fails=True),
    "offload and load": Op(["SELECT firn.offload('f', 'cold')", "SELECT sum(n) FROM f WHERE k = 3", "SELECT firn.load('f')"],
                           tidy=VACUUM, firn_only=True, fails=True, rarer=5,
                           bound={"store": (0, 4, "an object is never deleted: 4 stripes, 4 objects each time"),
                                  "firn_cache": (0, 4, "pieces of objects that are read, up to firn.cache_size")}),
    "servers that come and go": Op([
        "CREATE SERVER s{i} FOREIGN DATA WRAPPER firn OPTIONS (url 's3://bucket/x', endpoint 'http://127.0.0.1:9', max_retries '0')",
        "CREATE USER MAPPING FOR postgres SERVER s{i} OPTIONS (access_key_id 'a', secret_access_key 'b')",
        "!HV00N SELECT firn.offload('f', 's{i}')", "DROP SERVER s{i} CASCADE"], firn_only=True, tidy=(CATALOG,), bound=DDL),
    "cold scan": Op(["SELECT sum(n) FROM f WHERE k = {i} % 10", "SELECT v FROM f WHERE id = {i} % 600"],
                    TABLE + ("SELECT firn.offload('f', 'cold')",), firn_only=True),
    "VACUUM": Op(["DELETE FROM f WHERE id = {i} + 10000 - 1", "INSERT INTO f VALUES ({i} + 10000, 1, 'x', 1)", "VACUUM f"]),
    "VACUUM, all indexes": Op(["VACUUM (INDEX_CLEANUP on) f"]),
    "VACUUM FREEZE": Op(["VACUUM FREEZE f"]),
    "VACUUM FULL": Op(["VACUUM FULL f"], fails=False, rarer=2, tidy=(CATALOG,), bound=DDL),
    "CLUSTER": Op(["CLUSTER f USING f_pkey"], fails=True, rarer=2, tidy=(CATALOG,), bound=DDL),
    "REINDEX": Op(["REINDEX TABLE f"], fails=True, rarer=2, tidy=(CATALOG,), bound=DDL),
    "REINDEX CONCURRENTLY": Op(["REINDEX TABLE CONCURRENTLY f"], rarer=2,
                               tidy=(CATALOG,), bound=DDL),
    "CREATE INDEX": Op(["CREATE INDEX x ON f (v, n)", "DROP INDEX x"], fails=True, rarer=2,
                       tidy=(CATALOG,), bound=DDL),
    "ANALYZE": Op(["ANALYZE f"], fails=True, rarer=2, tidy=(CATALOG,), bound=DDL),
    "ALTER TABLE": Op(["ALTER TABLE f ALTER n TYPE numeric(12,2)", "ALTER TABLE f ALTER k TYPE bigint",
                       "ALTER TABLE f ALTER k TYPE int, ALTER n TYPE numeric(10,2)"], fails=True, rarer=4,
                      tidy=(CATALOG,), bound=DDL),
    "ALTER TABLE to heap and back": Op(["ALTER TABLE f SET ACCESS METHOD heap", "ALTER TABLE f SET ACCESS METHOD firn"],
                                       firn_only=True, rarer=4,
                                       tidy=(CATALOG,), bound=DDL),
    "firn.check": Op(["SELECT * FROM firn.check('f')"], firn_only=True, rarer=2),
    "firn.stripes": Op(["SELECT * FROM firn.stripes('f')", "SELECT * FROM firn.tables", "SELECT * FROM firn.activity"], firn_only=True),
    "firn.repair": Op(["SELECT * FROM firn.repair('f')"], firn_only=True, rarer=2),
    "firn.unneeded": Op(["SELECT * FROM firn.unneeded('f')"],
                        TABLE + ("SELECT firn.offload('f', 'cold')", "SELECT firn.load('f')"), firn_only=True, rarer=4),
    "firn.stripe_file": Op(["SELECT length(firn.stripe_file('f', 0))"], firn_only=True),

    "failing: unique violation in a bulk load": Op([
        "!23505 INSERT INTO f SELECT (g * 7) % 700, 1, 'x', 1 FROM generate_series(101, 80, -1) g"], TABLE + BULK, VACUUM),
    "failing: unique violation": Op(["!23505 INSERT INTO f VALUES (5, 1, 'x', 1)"], tidy=VACUUM),
    "failing: value in a bulk load": Op([
        "!22012 INSERT INTO f SELECT {i} * 60 + g + 10000, 1, 'x', 1 / (50 - g) FROM generate_series(1, 60) g"], TABLE + BULK, VACUUM),
    "failing: COPY": Op(["!22P02 @copy_bad"], TABLE + BULK, VACUUM),
    "failing: scan": Op(["!22012 SELECT count(v) FROM f WHERE k >= 0 AND 1 / (400 - id) < 5"]),
    "failing: condition": Op(["!22012 SELECT count(v) FROM f WHERE n > 1 / (SELECT 0)"]),
    "failing: cancelled scan": Op(["!57014 SELECT count(v) FROM f WHERE id <> 400 OR pg_cancel_backend(pg_backend_pid()) "
                                   "AND pg_sleep(5) IS NULL"]),
    "failing: look-up": Op(["!22012 SELECT 1 / (id - id) FROM f WHERE id = {i} % 600"], TABLE + NO_SCAN),
    "failing: check constraint": Op(["!23514 UPDATE f SET k = -1 WHERE id = {i} % 600"],
                                    TABLE + ("ALTER TABLE f ADD CHECK (k >= 0)",), VACUUM),
    "failing: foreign key": Op(["!23503 DELETE FROM f WHERE id = 7", "!23503 INSERT INTO child VALUES (8, 99999)"],
                               TABLE + ("CREATE TABLE child (id int PRIMARY KEY, f int REFERENCES f) USING {am}",
                                        "INSERT INTO child VALUES (1, 7)"), ("VACUUM f, child",)),
    "failing: unique index": Op(["!23505 CREATE UNIQUE INDEX x ON f (k)"], rarer=2, bound=DDL),
    "failing: unique index concurrently": Op(["!23505 CREATE UNIQUE INDEX CONCURRENTLY x ON f (k)", "DROP INDEX x"], rarer=4,
                                             tidy=(CATALOG,), bound=DDL),
    "failing: ALTER TABLE": Op(["!22P02 ALTER TABLE f ALTER v TYPE int USING v::int"], rarer=2, bound=DDL),
    "failing: function on another table": Op(["!42809 SELECT firn.compact('plain')"],
                                             TABLE + ("CREATE TABLE plain (i int) USING heap",), firn_only=True),
    "failing: offload without a store": Op(["!HV00N SELECT firn.offload('f', 'gone')"], firn_only=True, tidy=VACUUM, rarer=2),
    "failing: cold scan": Op(["!58P01 SELECT sum(n) FROM f"],
                             TABLE + ("SELECT firn.offload('f', 'lost')", "@lose"), firn_only=True, rarer=2),
}
