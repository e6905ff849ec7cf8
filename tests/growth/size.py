"""One session on N rows and on ten times as many: what a statement takes at most must not follow the size of the table."""
import os

from .measure import KB, MB, peak, reset_peak, resident, short

# By how much more memory ten times the rows may take at the peak: at all, per stripe, per row, and why.
DIRECTORY = (4 * MB, 2 * KB, 0, "a scan lists the directory, which is some 1.5 kB per stripe of four columns")
SAMPLE = (8 * MB, 2 * KB, 0, "a sample is 30,000 rows")
TRIGGERS = (4 * MB, 2 * KB, 20, "PostgreSQL keeps an event per row until the statement ends")
SUBTRANSACTIONS = (4 * MB, 2 * KB, 8, "PostgreSQL keeps the ids of subtransactions, and directory rows are dead versions as well")
OBJECTS = (12 * MB, 2 * KB, 0, "8 MB of blocks of objects that a session keeps")

# Statements in the order in which they run, each in a session of its own, before what is there for the next.
STATEMENTS = {
    "COPY in": ("COPY {t} FROM '{file}'", DIRECTORY),
    "scan": ("SELECT count(v), sum(n), max(k) FROM {t}", DIRECTORY),
    "scan with conditions": ("SELECT count(v) FROM {t} WHERE k < 50 AND v > 'a'", DIRECTORY),
    "scan of PostgreSQL": ("/*plain*/ SELECT count(v), sum(n) FROM {t}", DIRECTORY),
    "COPY out": ("COPY {t} TO '{file}.out'", DIRECTORY),
    "INSERT ... SELECT": ("INSERT INTO copy_of_{t} SELECT * FROM {t}", DIRECTORY),
    "INSERT with a unique key": ("INSERT INTO unique_{t} SELECT id, k, v FROM {t}", DIRECTORY),
    "ON CONFLICT DO NOTHING of all": ("INSERT INTO unique_{t} SELECT id, k, v FROM {t} ON CONFLICT DO NOTHING", DIRECTORY),
    "ON CONFLICT of a tenth": ("INSERT INTO unique_{t} SELECT id, k, v FROM {t} WHERE id % 10 = 1 ON CONFLICT (id) DO UPDATE SET k = 0",
                               DIRECTORY),
    "foreign keys of a tenth": ("INSERT INTO child_{t} SELECT id FROM {t} WHERE id % 10 = 2", TRIGGERS),
    "cascade to a hundredth": ("DELETE FROM unique_{t} WHERE id % 100 = 2", TRIGGERS),
    "join, row by row": ("/*plain*/ SELECT count(u.v) FROM (SELECT id + 0 AS id FROM {t} WHERE id % 10 = 3 OFFSET 0) x, LATERAL "
                         "(SELECT v FROM unique_{t} u WHERE u.id = x.id OFFSET 0) u", DIRECTORY),
    "a function's loop": ("""DO $$DECLARE r int; BEGIN
  FOR r IN SELECT id FROM {t} WHERE id % 100 = 7 LOOP
    UPDATE unique_{t} SET v = 'loop' WHERE id = r;
    PERFORM v FROM unique_{t} WHERE id = r + 1 FOR UPDATE;
    BEGIN
      INSERT INTO unique_{t} SELECT r, 1, 'twice';
    EXCEPTION WHEN unique_violation THEN NULL;
    END;
  END LOOP;
END$$""", SUBTRANSACTIONS),
    "bulk inserts in a loop": ("""DO $$BEGIN
  FOR i IN 1..{n} / 500 LOOP
    BEGIN
      INSERT INTO unique_{t} SELECT -(i * 60 + g), 1, 'x' FROM generate_series(1, 50) g;
      IF i % 2 = 0 THEN RAISE division_by_zero; END IF;
    EXCEPTION WHEN division_by_zero THEN NULL;
    END;
  END LOOP;
END$$""", SUBTRANSACTIONS),
    "CREATE INDEX": ("CREATE INDEX ON {t} (id)", DIRECTORY),
    "CREATE INDEX CONCURRENTLY": ("CREATE INDEX CONCURRENTLY ON {t} (k)", DIRECTORY),
    "index scan of all": ("/*plain*/ SELECT count(v) FROM (SELECT * FROM {t} WHERE id > 0 ORDER BY id) s", DIRECTORY),
    "ANALYZE": ("ANALYZE {t}", SAMPLE),
    "firn.check": ("SELECT count(*) FROM firn.check('{t}')", DIRECTORY),
    "firn.repair": ("SELECT count(*) FROM firn.repair('{t}')", DIRECTORY),
    "SELECT FOR UPDATE of a tenth": ("SELECT count(*) FROM (SELECT FROM {t} WHERE id % 10 = 3 FOR UPDATE) s", DIRECTORY),
    "UPDATE of a tenth": ("UPDATE {t} SET v = v || 'x' WHERE id % 10 = 1", DIRECTORY),
    "compact": ("SELECT firn.compact('{t}')", DIRECTORY),
    "DELETE of a tenth": ("DELETE FROM {t} WHERE id % 10 = 2", DIRECTORY),
    "VACUUM": ("VACUUM (INDEX_CLEANUP on) {t}", DIRECTORY),
    "firn.offload": ("SELECT firn.offload('{t}', 'cold')", OBJECTS),
    "cold scan": ("SELECT count(v), sum(n) FROM {t}", OBJECTS),
    "firn.load": ("SELECT firn.load('{t}')", OBJECTS),
    "CLUSTER": ("CLUSTER {t} USING {t}_id_idx", DIRECTORY),
    "VACUUM FULL": ("VACUUM FULL {t}", DIRECTORY),
    "REINDEX CONCURRENTLY": ("REINDEX TABLE CONCURRENTLY {t}", DIRECTORY),
    "ALTER TABLE": ("ALTER TABLE {t} ALTER k TYPE bigint", DIRECTORY),
    "DELETE of all": ("DELETE FROM {t}", DIRECTORY),
    "VACUUM of nothing left": ("VACUUM {t}", DIRECTORY),
    "TRUNCATE": ("TRUNCATE {t}", DIRECTORY),
}


def measured(cluster, table, sql, rows_file, rows):
    """The statement's peak, over what the session has before it."""
    with cluster.connect("growth", prepare_threshold=None) as c:
        c.execute("SET firn.metadata_cache = '1MB'; SET firn.page_cache = '1MB'; SET maintenance_work_mem = '1MB'; SET work_mem = '1MB'")
        c.execute("SET firn.bulk_threshold = 0; SET firn.stripe_rows = 2000; SET max_parallel_maintenance_workers = 0; SET max_parallel_workers_per_gather = 0")
        if "/*plain*/" in sql:
            c.execute("SET firn.enable_scan = off; SET enable_sort = off")
        # Catalogs are read.
        c.execute(f"SELECT * FROM {table} LIMIT 1")
        before = resident(c.info.backend_pid)
        reset_peak(c.info.backend_pid)
        c.execute(sql.format(t=table, file=rows_file, n=rows))
        return peak(c.info.backend_pid) - before


def sizes(cluster, n, tell):
    """Peaks of each statement on n and 10 n rows. Returns what takes more than it may."""
    with cluster.connect("growth") as c:
        c.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        files = {}
        for table, rows in (("few", n), ("many", 10 * n)):
            c.execute(f"CREATE TABLE {table} (id int, k int, v text, n numeric(10,2)) USING firn")
            c.execute(f"CREATE TABLE copy_of_{table} (LIKE {table}) USING firn")
            c.execute(f"CREATE TABLE unique_{table} (id int PRIMARY KEY, k int, v text) USING firn")
            c.execute(f"CREATE TABLE child_{table} (u int REFERENCES unique_{table} ON DELETE CASCADE) USING firn; "
                      f"CREATE INDEX ON child_{table} (u)")
            files[table] = os.path.join(cluster.root, f"{table}.rows")
            c.execute(f"COPY (SELECT i, i % 100, md5(i::text), i / 4.0 FROM generate_series(1, {rows}) i) TO '{files[table]}'")
    bad = {}
    for name, (sql, bound) in STATEMENTS.items():
        used = {}
        for table in ("few", "many"):
            try:
                used[table] = measured(cluster, table, sql, files[table], n if table == "few" else 10 * n)
            except Exception as e:  # noqa: BLE001 - an error is a result
                used[table] = None
                bad[name] = str(e).splitlines()[0]
        if None in used.values():
            tell(name, None, None, bad[name])
            cluster.wait_ready()
            continue
        at_all, per_stripe, per_row, why = bound
        allowed = at_all + 9 * (n / 2000 * per_stripe + n * per_row)
        tell(name, used["few"], used["many"], why if at_all != DIRECTORY[0] else "")
        if used["many"] - used["few"] > allowed:
            bad[name] = f"{short('resident', used['few'])} -> {short('resident', used['many'])}"
    return bad
