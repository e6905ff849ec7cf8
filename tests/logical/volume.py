"""What is in the log, beside what is decoded of it: no more than heapam would put there; nothing that decoding could not tell."""
import psycopg



def wide_text(words, number):
    """An expression for some kB that compress to hundreds of bytes."""
    return f"repeat('{words} ', 500 + {number} % 7)"


def fresh(cluster):
    with cluster.connect() as c:
        c.execute("DROP DATABASE IF EXISTS volume WITH (FORCE)")
        c.execute("CREATE DATABASE volume")
    c = cluster.connect("volume")
    c.execute("CREATE EXTENSION firn; SET firn.bulk_threshold = 5")
    return c


def logged(c, sql):
    """Bytes of the log that a statement takes."""
    begin = c.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
    c.execute(sql)
    return int(c.execute("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", (begin,)).fetchone()[0])


def wide(cluster):
    """Wide values are logged as small as TOAST makes them."""
    with fresh(cluster) as c:
        for compression in ("off", "pglz"):
            c.execute(f"SET wal_compression = {compression}")
            found = {}
            for am in ("heap", "firn"):
                c.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY, v text) USING {am}; ALTER TABLE t REPLICA IDENTITY FULL; CHECKPOINT")
                found[am] = [logged(c, sql) for sql in (
                    f"INSERT INTO t SELECT i, {wide_text('words that come again', 'i')} FROM generate_series(1, 3000) i",
                    f"UPDATE t SET v = {wide_text('others that do so, too', 'id')} WHERE id BETWEEN 1001 AND 2000",
                    "DELETE FROM t WHERE id BETWEEN 2001 AND 3000")]
            assert c.execute("SELECT count(*) > 0 FROM firn.stripes('t')").fetchone()[0]
            print(f"     bytes logged of insertions, updates, deletions: heap {found['heap']}, firn {found['firn']}")
            # An update or deletion of a stripe row notes that in the TOAST relation, too.
            assert all(f < 2 * h + 300_000 for h, f in zip(found["heap"], found["firn"])), found
            assert c.execute("SHOW wal_compression").fetchone() == (compression,)


def catalog_table(cluster):
    """A table that plugins read while they decode keeps its rows in the row store, where they are told when each came."""
    with fresh(cluster) as c:
        c.execute("CREATE TABLE u (id int PRIMARY KEY, v text) USING firn WITH (user_catalog_table = true)")
        c.execute("INSERT INTO u SELECT i, 'v' FROM generate_series(1, 1000) i")
        assert c.execute("SELECT count(*) FROM firn.stripes('u')").fetchone() == (0,)
        try:
            c.execute("SELECT firn.compact('u')")
            raise AssertionError("compacted")
        except psycopg.errors.FeatureNotSupported:
            pass
        c.execute("ALTER TABLE u RESET (user_catalog_table)")
        c.execute("SELECT firn.compact('u')")
        assert c.execute("SELECT sum(rows) FROM firn.stripes('u')").fetchone() == (1000,)


CASES = {"bytes of wide values": wide, "tables that plugins read": catalog_table}
