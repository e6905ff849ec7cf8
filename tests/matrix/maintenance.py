"""The tables of the matrix, and what is done to them while sessions work."""
import os

SETUP = """
CREATE TABLE @ (id int PRIMARY KEY, k int, v text, n int) USING ! WITH (autovacuum_enabled = off);
CREATE INDEX @_k ON @ (k);
INSERT INTO @ SELECT i, i % 9, 'v' || i, 0 FROM generate_series(1, 20) i;
INSERT INTO @ SELECT i, i % 9, 'v' || i, 0 FROM generate_series(1000, 5300) i WHERE i % 1000 < 300;
CREATE TABLE c@ (id int REFERENCES @ ON UPDATE CASCADE ON DELETE CASCADE) USING !;
CREATE INDEX ON c@ (id);
CREATE TABLE u@ (id int PRIMARY KEY) USING !;
CREATE TABLE t@ (id int PRIMARY KEY, k int, seen int) USING !;
CREATE FUNCTION before_@() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN SELECT count(*) INTO NEW.seen FROM t@ WHERE id >= NEW.id - 5 AND id <= NEW.id; RETURN NEW; END $$;
CREATE FUNCTION after_@() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN UPDATE t@ SET k = k + 1 WHERE id = NEW.id AND k % 5 = 0; RETURN NULL; END $$;
CREATE TRIGGER b BEFORE INSERT ON t@ FOR EACH ROW EXECUTE FUNCTION before_@();
CREATE TRIGGER a AFTER INSERT ON t@ FOR EACH ROW EXECUTE FUNCTION after_@();
"""
PROCEDURE = """
CREATE PROCEDURE on_twins(a int, n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..3 LOOP
        INSERT INTO h SELECT x, i, 'p', 0 FROM generate_series(a + i * 20, a + i * 20 + n) x ON CONFLICT (id) DO UPDATE SET v = 'p' || i;
        INSERT INTO f SELECT x, i, 'p', 0 FROM generate_series(a + i * 20, a + i * 20 + n) x ON CONFLICT (id) DO UPDATE SET v = 'p' || i;
        IF i % 2 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
    END LOOP;
END $$;
"""

ONLY = os.environ.get("FIRN_MATRIX_ONLY", "").split(",")
# Maintenance, of the firn twin but where both must change alike.
MAINTENANCE = {
    "compact": "SELECT firn.compact('f')",
    "offload": "SELECT firn.offload('f', 'cold')",
    "load": "SELECT firn.load('f')",
    "compact in pieces": "CALL firn.compact_in_pieces('f', 1)",
    "offload in pieces": "CALL firn.offload_in_pieces('f', 'cold', 2)",
    "load in pieces": "CALL firn.load_in_pieces('f', 2)",
    "repair": "SELECT * FROM firn.repair('f', false)",
    "vacuum": "VACUUM f",
    "vacuum cleanup": "VACUUM (INDEX_CLEANUP on) f",
    "freeze": "VACUUM (FREEZE) f",
    "vacuum toast": "VACUUM @toast",
    "vacuum full": "VACUUM FULL f",
    "cluster": "CLUSTER f USING f_pkey",
    "reindex": "REINDEX TABLE f",
    "reindex concurrently": "REINDEX TABLE CONCURRENTLY f",
    "reindex toast": "REINDEX TABLE @toast",
    "reindex toast concurrently": "REINDEX TABLE CONCURRENTLY @toast",
    "create index": "CREATE INDEX extra ON f (k); DROP INDEX extra",
    "create index concurrently": ("CREATE INDEX CONCURRENTLY extra2 ON f (n, k)", "DROP INDEX CONCURRENTLY IF EXISTS extra2"),
    # A rewrite leaves older snapshots an empty table (PostgreSQL documents it), so the twins are rewritten together.
    "alter rewrite": "ALTER TABLE h ALTER v TYPE text USING v || ''; ALTER TABLE f ALTER v TYPE text USING v || ''",
    "access method": "ALTER TABLE h ALTER v TYPE text USING v || ''; ALTER TABLE f SET ACCESS METHOD heap; "
                     "ALTER TABLE f SET ACCESS METHOD firn",
    "add column": "ALTER TABLE f ADD COLUMN z int DEFAULT 5; ALTER TABLE f DROP COLUMN z",
    "attach": "CREATE TABLE part (LIKE f) PARTITION BY RANGE (id); ALTER TABLE part ATTACH PARTITION f FOR VALUES FROM (0) TO (1000000); "
              "ALTER TABLE part DETACH PARTITION f; DROP TABLE part",
    "analyze": "ANALYZE f",
    "checkpoint": "CHECKPOINT",
    "check": "SELECT * FROM firn.check('f')",
    # The indexes hold what the table has, seen by one snapshot while others write.
    "amcheck": "SELECT bt_index_check(indexrelid, true) FROM pg_index WHERE indisvalid AND indrelid IN ('f'::regclass, '@toast'::regclass)",
    "autovacuum": None,
}
if ONLY != [""]:
    MAINTENANCE = {m: sql for m, sql in MAINTENANCE.items() if m in ONLY}
