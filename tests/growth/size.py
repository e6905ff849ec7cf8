"""One session on N rows and on ten times as many: what a statement takes at most must not follow the size of the table."""
import os

from .measure import MB, peak, reset_peak, resident, short

# By how much more memory ten times the rows may take at the peak: at all, per stripe, per row, and why.
NOTHING_MORE = (4 * MB, 0, 0, "an allocator's pieces")
OBJECTS = (12 * MB, 0, 0, "8 MB of blocks of objects that a session keeps")

# Statements in the order in which they run, each in a session of its own, before what is there for the next.
STATEMENTS = {
    "COPY in": ("COPY {t} FROM '{file}'", NOTHING_MORE),
    "scan": ("SELECT count(v), sum(n), max(k) FROM {t}", NOTHING_MORE),
    "scan with conditions": ("SELECT count(v) FROM {t} WHERE k < 50 AND v > 'a'", NOTHING_MORE),
    "scan of PostgreSQL": ("/*plain*/ SELECT count(v), sum(n) FROM {t}", NOTHING_MORE),
    "COPY out": ("COPY {t} TO '{file}.out'", NOTHING_MORE),
    "INSERT ... SELECT": ("INSERT INTO copy_of_{t} SELECT * FROM {t}", NOTHING_MORE),
    "CREATE INDEX": ("CREATE INDEX ON {t} (id)", NOTHING_MORE),
    "CREATE INDEX CONCURRENTLY": ("CREATE INDEX CONCURRENTLY ON {t} (k)", NOTHING_MORE),
    "index scan of all": ("/*plain*/ SELECT count(v) FROM (SELECT * FROM {t} WHERE id > 0 ORDER BY id) s", NOTHING_MORE),
    "ANALYZE": ("ANALYZE {t}", NOTHING_MORE),
    "firn.check": ("SELECT count(*) FROM firn.check('{t}')", NOTHING_MORE),
    "firn.repair": ("SELECT count(*) FROM firn.repair('{t}')", NOTHING_MORE),
    "SELECT FOR UPDATE of a tenth": ("SELECT count(*) FROM (SELECT FROM {t} WHERE id % 10 = 3 FOR UPDATE) s", NOTHING_MORE),
    "UPDATE of a tenth": ("UPDATE {t} SET v = v || 'x' WHERE id % 10 = 1", NOTHING_MORE),
    "compact": ("SELECT firn.compact('{t}')", NOTHING_MORE),
    "DELETE of a tenth": ("DELETE FROM {t} WHERE id % 10 = 2", NOTHING_MORE),
    "VACUUM": ("VACUUM (INDEX_CLEANUP on) {t}", NOTHING_MORE),
    "firn.offload": ("SELECT firn.offload('{t}', 'cold')", OBJECTS),
    "cold scan": ("SELECT count(v), sum(n) FROM {t}", OBJECTS),
    "firn.load": ("SELECT firn.load('{t}')", OBJECTS),
    "CLUSTER": ("CLUSTER {t} USING {t}_id_idx", NOTHING_MORE),
    "VACUUM FULL": ("VACUUM FULL {t}", NOTHING_MORE),
    "REINDEX CONCURRENTLY": ("REINDEX TABLE CONCURRENTLY {t}", NOTHING_MORE),
    "ALTER TABLE": ("ALTER TABLE {t} ALTER k TYPE bigint", NOTHING_MORE),
    "DELETE of all": ("DELETE FROM {t}", NOTHING_MORE),
    "VACUUM of nothing left": ("VACUUM {t}", NOTHING_MORE),
    "TRUNCATE": ("TRUNCATE {t}", NOTHING_MORE),
}


def measured(cluster, table, sql, rows_file):
    """The statement's peak, over what the session has before it."""
    with cluster.connect("growth", prepare_threshold=None) as c:
        c.execute("SET firn.metadata_cache = '1MB'; SET maintenance_work_mem = '1MB'; SET work_mem = '1MB'")
        c.execute("SET firn.stripe_rows = 2000; SET max_parallel_maintenance_workers = 0; SET max_parallel_workers_per_gather = 0")
        if "/*plain*/" in sql:
            c.execute("SET firn.enable_scan = off; SET enable_sort = off")
        # Catalogs are read.
        c.execute(f"SELECT * FROM {table} LIMIT 1")
        before = resident(c.info.backend_pid)
        reset_peak(c.info.backend_pid)
        c.execute(sql.format(t=table, file=rows_file))
        return peak(c.info.backend_pid) - before


def sizes(cluster, n, tell):
    """Peaks of each statement on n and 10 n rows. Returns what takes more than it may."""
    with cluster.connect("growth") as c:
        c.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        files = {}
        for table, rows in (("few", n), ("many", 10 * n)):
            c.execute(f"CREATE TABLE {table} (id int, k int, v text, n numeric(10,2)) USING firn")
            c.execute(f"CREATE TABLE copy_of_{table} (LIKE {table}) USING firn")
            files[table] = os.path.join(cluster.root, f"{table}.rows")
            c.execute(f"COPY (SELECT i, i % 100, md5(i::text), i / 4.0 FROM generate_series(1, {rows}) i) TO '{files[table]}'")
    bad = {}
    for name, (sql, bound) in STATEMENTS.items():
        used = {}
        for table in ("few", "many"):
            try:
                used[table] = measured(cluster, table, sql, files[table])
            except Exception as e:  # noqa: BLE001 - an error is a result
                used[table] = None
                bad[name] = str(e).splitlines()[0]
        if None in used.values():
            tell(name, None, None, bad[name])
            cluster.wait_ready()
            continue
        at_all, per_stripe, per_row, why = bound
        allowed = at_all + 9 * (n / 2000 * per_stripe + n * per_row)
        tell(name, used["few"], used["many"], why if at_all != NOTHING_MORE[0] or per_stripe or per_row else "")
        if used["many"] - used["few"] > allowed:
            bad[name] = f"{short('resident', used['few'])} -> {short('resident', used['many'])}"
    return bad
