"""All sorts of tables and constraints, whole databases, many tables at once."""
import threading

import psycopg

from rebuild.common import INVALID, ROWS, WORKERS, small_enough, sizes, wait_until
from vacuum import sound


def other_tables(cluster):
    """Partitions, temporary and unlogged tables, exclusion constraints, other kinds of indexes, whole databases at once."""
    with cluster.connect() as c:
        said = []
        c.add_notice_handler(lambda d: said.append((d.severity, d.message_primary, d.message_detail)))
        c.execute("DROP TABLE IF EXISTS f, h, parted CASCADE")
        c.execute("SET firn.bulk_threshold = 1000000")
        shape = "(id int, r int, t text, n int)"
        c.execute(f"CREATE TABLE parted {shape} PARTITION BY RANGE (id)")
        c.execute("CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (1000000) USING firn")
        c.execute("ALTER TABLE parted ADD PRIMARY KEY (id)")
        c.execute("CREATE INDEX parted_r ON parted (r)")
        c.execute("ALTER TABLE part CLUSTER ON part_r_idx")
        c.execute(f"CREATE TEMP TABLE own {shape} USING firn")
        c.execute(f"CREATE UNLOGGED TABLE unlogged {shape} USING firn")
        c.execute(f"CREATE TABLE plain {shape} USING firn")
        c.execute("ALTER TABLE plain ADD EXCLUDE USING btree (id WITH =)")
        c.execute("ALTER TABLE plain ADD CONSTRAINT plain_later UNIQUE (t) DEFERRABLE INITIALLY DEFERRED")
        c.execute("CREATE INDEX ON plain USING hash (r)")
        names = ("part", "own", "unlogged", "plain")
        for name in names[1:]:
            c.execute(f"CREATE INDEX {name}_r ON {name} (r)")
        for name in names:
            c.execute(f"INSERT INTO {name} SELECT {ROWS} FROM generate_series(1, 20000) i ORDER BY md5(i::text)")
            wait_until("nothing is settled", lambda: c.execute(f"SELECT firn.compact('{name}')").fetchone()[0] > 0)
        before = {name: sizes(c, name) for name in names}
        c.execute("VACUUM (INDEX_CLEANUP) parted")
        c.execute("VACUUM")
        for name in names:
            wrong = {i: n for i, n in small_enough(c, name).items() if i != "plain_id_excl"}
            assert not wrong, (name, wrong, before[name])
        assert not [s for s in said if s[0] == "WARNING"], said
        assert not c.execute(INVALID).fetchall()
        assert c.execute("SELECT count(*) FROM pg_inherits WHERE inhrelid IN ('part_pkey'::regclass, 'part_r_idx'::regclass)").fetchone()[0] == 2
        assert c.execute("SELECT indisclustered FROM pg_index WHERE indexrelid = 'part_r_idx'::regclass").fetchone()[0]
        assert c.execute("SELECT condeferred FROM pg_constraint WHERE conname = 'plain_later' AND conindid = 'plain_later'::regclass").fetchone()[0]
        assert c.execute("SELECT indisunique AND NOT indimmediate FROM pg_index WHERE indexrelid = 'plain_later'::regclass").fetchone()[0]
        # Deferred is what it was, and primary keys refuse what comes twice.
        c.execute("BEGIN; UPDATE plain SET t = 'x' WHERE id IN (1, 2); UPDATE plain SET t = 'y' WHERE id = 2; COMMIT")
        for sql, code in (("UPDATE plain SET t = 'y' WHERE id = 1", "23505"), ("INSERT INTO part SELECT * FROM part WHERE id = 5", "23505")):
            try:
                c.execute(sql)
                raise AssertionError(f"{sql}: is not refused")
            except psycopg.Error as e:
                assert e.sqlstate == code, (sql, e)
        sound(c, "part", "unlogged", "plain")
        for name in names:
            assert c.execute(f"SELECT count(*), sum(id) FROM {name} WHERE r >= 0").fetchone() == (20000, 200010000)
        # Nothing depends on the access method but tables.
        assert not c.execute("SELECT 1 FROM pg_depend d JOIN pg_class c ON c.oid = d.objid WHERE refclassid = 'pg_am'::regclass AND relkind = 'i'").fetchall()
        c.execute("DROP TABLE parted, own, unlogged, plain")


def several_at_once(cluster):
    """VACUUM in several sessions: none fails, none waits for another for ever, and all indexes are small in the end."""
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 1000000")
        names = [f"many{i}" for i in range(6)]
        for name in names:
            c.execute(f"CREATE TABLE {name} (id int, r int) USING firn")
            c.execute(f"CREATE INDEX {name}_r ON {name} (r)")
            c.execute(f"INSERT INTO {name} SELECT i, (i * 7919::bigint % 1000003)::int FROM generate_series(1, 30000) i")
            wait_until("nothing is settled", lambda: c.execute(f"SELECT firn.compact('{name}')").fetchone()[0] > 0)
        failures = []

        def vacuum(part):
            try:
                with cluster.connect() as s:
                    for name in names[part::3]:
                        s.execute(f"VACUUM {name}")
            except psycopg.Error as e:
                failures.append(e)

        threads = [threading.Thread(target=vacuum, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failures, failures
        wait_until("they stay large", lambda: all(sizes(c, name)[f"{name}_r"] < 95 for name in names))
        wait_until("it does not end", lambda: c.execute(WORKERS).fetchone()[0] == 0)
        assert not c.execute(INVALID).fetchall()
        for name in names:
            assert not small_enough(c, name), small_enough(c, name)
            c.execute(f"DROP TABLE {name}")
