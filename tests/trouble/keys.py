"""Keys that are damaged on the pages of a TOAST relation, under entries of its index that are right: nobody takes such a row for one
that is not there."""
import contextlib
import os
import re

from harness.cluster import version
from trouble.common import expect, fresh, intact
from trouble.damage import by_hand, entries, plan, problems, repair, toast_of, warned

# From 17 on REINDEX TABLE builds the TOAST relation's index first, as REINDEX of that relation does on every version: by what is on the pages.
BUILDS = ["REINDEX TABLE f"] if version() < 17 else ["REINDEX INDEX f_pkey"]


def place_of(c, where, table="f"):
    """Where on disk the row of the TOAST relation is: file, block, offset."""
    toast = toast_of(c, table)
    (ctid,) = c.execute(f"SELECT ctid::text FROM {toast} WHERE {where}").fetchone()
    (path,) = c.execute("SELECT pg_relation_filepath(%s::regclass)", (toast,)).fetchone()
    return path, *map(int, re.findall(r"\d+", ctid))


def flip(cluster, damage):
    """Change a bit of the keys of some rows while the server is down: place, byte of the key, bits."""
    cluster.stop()
    for (path, block, offset), byte, bits in damage:
        with open(os.path.join(cluster.data, path), "r+b") as f:
            f.seek(block * 8192)
            page = f.read(8192)
            pointer = int.from_bytes(page[20 + 4 * offset:24 + 4 * offset], "little")
            assert pointer >> 15 & 3 == 1, (block, offset, hex(pointer))
            at = pointer & 0x7FFF
            at += page[at + 22] + byte
            f.seek(block * 8192 + at)
            f.write(bytes([page[at] ^ bits]))
    cluster.start()


@contextlib.contextmanager
def damaged(cluster, *damage):
    flip(cluster, damage)
    try:
        yield
    finally:
        flip(cluster, damage)


def counts(c):
    """Rows of the TOAST relation by their kinds."""
    return c.execute(f"SELECT count(*) FILTER (WHERE chunk_id BETWEEN 100 AND 11999), count(*) FILTER (WHERE chunk_id = 12000), count(*) "
                     f"FROM {toast_of(c)}").fetchone()


def by_index(c):
    c.execute("SET enable_seqscan = off; SET firn.enable_scan = off; SET enable_bitmapscan = off")


def directory_rows(cluster):
    """That of a stripe: whoever may need the stripe is told, VACUUM leaves its index entries, and a repair its chunks."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("CREATE EXTENSION IF NOT EXISTS pageinspect; CREATE INDEX f_v ON f (v)")
        c.execute("ALTER TABLE f SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        # A stripe without tombstones, as some will be made of its rows.
        for table in ("f", "h"):
            c.execute(f"INSERT INTO {table} SELECT i, 'v' || i, 1 FROM generate_series(5001, 5400) i")
        slots = [s for s, in c.execute("SELECT slot FROM firn.stripes('f') ORDER BY slot").fetchall()]
        slot = slots[-1]
        first, last = c.execute("SELECT min(id), max(id) FROM f WHERE ctid >= %s::tid", (f"({2**31 + slot},1)",)).fetchone()
        had, toast = entries(c, slot), toast_of(c)
        assert first > 5000 and min(had) > 300, (first, last, had)
    # A pinned kind, a value of the row store, and another sign.
    for byte, bits in ((0, 4), (2, 1), (7, 0x80)):
        with cluster.connect() as c:
            where = place_of(c, f"chunk_id = 1 AND chunk_seq = {slot}")
            before = counts(c)
        with damaged(cluster, (where, byte, bits)):
            with cluster.connect() as c:
                for sql in ("SELECT count(*) FROM f", "SELECT sum(n) FROM f", "TABLE f", "ANALYZE f", *BUILDS, "VACUUM FULL f",
                            "SELECT * FROM firn.unneeded('f')", "SELECT firn.offload('f', 'cold')"):
                    e = expect(c, sql, "XX001")
                    assert f"directory row {slot} " in e.diag.message_primary, e
                by_index(c)
                for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
                    for sql in (f"SELECT * FROM f WHERE id = {first + 7}", f"SELECT * FROM f WHERE id = {first + 7} FOR UPDATE",
                                f"DELETE FROM f WHERE id = {first + 7}", f"INSERT INTO f VALUES ({first + 7}) ON CONFLICT DO NOTHING"):
                        c.execute(f"BEGIN ISOLATION LEVEL {level}")
                        expect(c, sql, "XX001")
                        c.execute("ROLLBACK")
                assert c.execute("SELECT v FROM f WHERE id = 7").fetchone() == ("v7",)
                for options in ("FREEZE, INDEX_CLEANUP on", "INDEX_CLEANUP on"):
                    assert [s for s, _, _ in warned(c, f"VACUUM ({options}) f")] == ["XX001"]
                assert entries(c, slot) == had, (entries(c, slot), had)
                # What the stripe has is not taken for ownerless, and not even the index is what it was when that is built anew.
                for index in ("as it was", "anew"):
                    found = problems(c)
                    assert any(o == f"stripe {slot} of f" and "its directory row is damaged" in p for _, o, p in found), found
                    assert not any("belong to no stripe" in p for _, _, p in found), found
                    assert (index, byte) == ("anew", 2) or any("keys of 1 of its rows may be damaged" in p for _, _, p in found), found
                    assert plan(c) and not any(done for _, _, done in repair(c)), (plan(c), index)
                    assert counts(c)[0] == before[0], (counts(c), before)
                    # Bytes of a user's value may be anything, so among those it is not recognised.
                    c.execute(f"REINDEX TABLE {toast}") if byte == 2 else expect(c, f"REINDEX TABLE {toast}", "XX001")
        with cluster.connect() as c:
            c.execute(f"REINDEX TABLE {toast}")
            intact(c)
            assert not plan(c) and entries(c, slot) == had
    with cluster.connect() as c:
        assert not warned(c, "VACUUM (INDEX_CLEANUP on) f")
        intact(c)
        c.execute("DROP TABLE f, h")


def tombstones(cluster):
    """That of a tombstone: the deleted row does not live again."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("ALTER TABLE f SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        for table in ("f", "h"):
            c.execute(f"DELETE FROM {table} WHERE id = 555")
        where = place_of(c, "chunk_id = 12000 ORDER BY xmin::text::bigint DESC")
        before = counts(c)
    for byte, bits in ((0, 1), (7, 0x80)):
        with damaged(cluster, (where, byte, bits)):
            with cluster.connect() as c:
                for sql in ("SELECT count(*) FROM f", "TABLE f", "SELECT count(*) FROM f WHERE v <> 'x'", *BUILDS, "VACUUM FULL f"):
                    expect(c, sql, "XX001")
                by_index(c)
                for sql in ("SELECT * FROM f WHERE id = 555", "INSERT INTO f VALUES (555)", "INSERT INTO f VALUES (555) ON CONFLICT DO NOTHING"):
                    expect(c, sql, "XX001")
                assert c.execute("SELECT v FROM f WHERE id = 556").fetchone() == ("v6",)
                c.execute("VACUUM (FREEZE, INDEX_CLEANUP on) f")
                assert any("keys of 1 of its rows may be damaged" in p for _, _, p in problems(c)), problems(c)
                assert plan(c) and not any(done for _, _, done in repair(c)), plan(c)
                assert counts(c)[2] == before[2], (counts(c), before)
        with cluster.connect() as c:
            intact(c)
            assert not plan(c)
    with cluster.connect() as c:
        c.execute("DROP TABLE f, h")


def others(cluster):
    """Those of notes: no second allocation row, no default that is forgotten; and VACUUM goes on."""
    notes = {"allocation": 2, "lists": 3, "defaults": 5, "counts": 6, "cleaning": 7}
    with cluster.connect() as c, cluster.connect() as holder:
        c.execute("SET firn.bulk_threshold = 0")
        for table in notes:
            c.execute(f"CREATE TABLE {table} (id int PRIMARY KEY) USING firn WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
            c.execute(f"INSERT INTO {table} SELECT generate_series(1, 5000)")
        c.execute("ALTER TABLE defaults ADD COLUMN d int DEFAULT 7")
        c.execute("VACUUM FULL defaults")
        c.execute("SET firn.bulk_threshold = 1000; INSERT INTO lists SELECT generate_series(5001, 5500)")
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()")
        c.execute("SELECT firn.compact('lists')")
        c.execute("VACUUM")
        damage = [(place_of(c, f"chunk_id = {id}", table), 0, 8) for table, id in notes.items()]
        holder.execute("ROLLBACK")
    with damaged(cluster, *damage):
        with cluster.connect() as c:
            c.execute("SET firn.bulk_threshold = 0")
            for table in notes:
                if table != "defaults":
                    c.execute(f"DELETE FROM {table} WHERE id % 2 = 0")
                said = warned(c, f"VACUUM (FREEZE, INDEX_CLEANUP on) {table}")
                assert [s for s, _, _ in said] == ["XX001"] * (table == "allocation"), (table, said)
                if table in ("allocation", "defaults"):
                    expect(c, f"INSERT INTO {table} (id) SELECT generate_series(6001, 7000)", "XX001")
                else:
                    c.execute(f"INSERT INTO {table} (id) SELECT generate_series(6001, 7000)")
                c.execute(f"VACUUM {table}")
                assert any("keys of 1 of its rows may be damaged" in p for _, _, p in problems(c, table)), (table, problems(c, table))
                toast = toast_of(c, table)
                for sql in (f"VACUUM FULL {table}", f"CLUSTER {table} USING {table}_pkey", f"REINDEX TABLE {table}", f"REINDEX TABLE {toast}"):
                    expect(c, sql, "XX001")
            expect(c, "SELECT sum(d) FROM defaults", "XX001")
            # What is left of a concurrent one is an invalid index.
            expect(c, f"REINDEX TABLE CONCURRENTLY {toast}", "XX001")
            c.execute(f"DROP INDEX {toast}_index_ccnew")
    with cluster.connect() as c:
        assert c.execute("SELECT count(d), sum(d) FROM defaults").fetchone() == (5000, 5000 * 7)
        c.execute("VACUUM")
        for table in notes:
            assert not problems(c, table), (table, problems(c, table))
            c.execute(f"DROP TABLE {table}")


def rebuilt(cluster):
    """No new index goes by damaged keys where the old one can be asked, or the rows tell; and an allocation row that is not found does not
    mean that nothing has been given out."""
    def loads(c, message):
        for _ in range(3):
            e = expect(c, "INSERT INTO gone SELECT generate_series(20001, 20500)", "XX001")
            assert message in e.diag.message_primary, e

    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0; CREATE TABLE plain (id int) USING firn WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        c.execute("CREATE TABLE gone (id int PRIMARY KEY) USING firn WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        for table in ("plain", "gone"):
            for first in (1, 5001):
                c.execute(f"INSERT INTO {table} SELECT generate_series({first}, {first + 4999})")
        for sql in ("ALTER TABLE plain ADD COLUMN d int DEFAULT 7", "VACUUM FULL plain", "DELETE FROM plain WHERE id = 555", "VACUUM plain"):
            c.execute(sql)
        (slot,) = c.execute("SELECT max(slot) FROM firn.stripes('plain')").fetchone()
        rows = {what: place_of(c, where, "plain") for what, where in
                (("directory", f"chunk_id = 1 AND chunk_seq = {slot}"), ("default", "chunk_id = 5"), ("stone", "chunk_id = 12000 ORDER BY xmin::text::bigint DESC"))}
        allocation = place_of(c, "chunk_id = 2", "gone")
        toasts = {table: toast_of(c, table) for table in ("plain", "gone")}
    # A table without an index has nothing that reads it before; another one's key, or one that nobody gives. What a REINDEX can tell by the
    # row alone.
    for what, byte, bits, told in (("directory", 0, 4, True), ("directory", 4, 1, True), ("directory", 2, 1, False), ("directory", 0, 8, True),
                                   ("directory", 1, 1, True), ("stone", 4, 1, False), ("stone", 0, 0x80, False), ("stone", 1, 0x10, True), ("stone", 1, 0x40, False),
                                   ("default", 4, 1, False), ("default", 0, 8, True), ("default", 2, 1, False)):
        with damaged(cluster, (rows[what], byte, bits)):
            with cluster.connect() as c:
                expect(c, "VACUUM FULL plain", "XX001")
                if told:
                    for sql in ("REINDEX TABLE plain", f"REINDEX TABLE {toasts['plain']}"):
                        expect(c, sql, "XX001")
    with cluster.connect() as c:
        assert c.execute("SELECT count(*), sum(d) FROM plain").fetchone() == (9999, 9999 * 7)
        assert not problems(c, "plain"), problems(c, "plain")
    # Under a key that it might have.
    with damaged(cluster, (allocation, 0, 0x80)):
        with cluster.connect() as c:
            c.execute("SET firn.bulk_threshold = 0")
            expect(c, "VACUUM FULL gone", "XX001")
            loads(c, "a row of TOAST relation")
            c.execute("REINDEX TABLE gone")
            loads(c, "allocation row of a firn table is missing")
            c.execute("DELETE FROM gone WHERE id % 3 = 0")
            assert [s for s, _, _ in warned(c, "VACUUM (INDEX_CLEANUP on) gone")] == ["XX001"]
            assert any("allocation row is missing" in p for _, _, p in problems(c, "gone")), problems(c, "gone")
    with cluster.connect() as c:
        for sql in (f"REINDEX TABLE {toasts['gone']}", "SET firn.bulk_threshold = 0", "INSERT INTO gone SELECT generate_series(20001, 20500)",
                    "VACUUM (INDEX_CLEANUP on) gone", "VACUUM FULL gone"):
            c.execute(sql)
        by_index(c)
        assert c.execute("SELECT count(*) FROM generate_series(1, 20500) i, LATERAL (SELECT FROM gone WHERE id = i OFFSET 0) x").fetchone() == (7167,)
        for table in ("plain", "gone"):
            assert not problems(c, table), (table, problems(c, table))
            c.execute(f"DROP TABLE {table}")


def forged(cluster):
    """A value that looks like a directory row is a value: it is nobody's damage, and hinders no repair."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("ALTER TABLE f SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        toast = toast_of(c)
        rows = c.execute(f"SELECT chunk_data FROM {toast} WHERE chunk_id = 1 AND get_byte(chunk_data, 0) > 0 ORDER BY chunk_seq").fetchall()
        c.execute("ALTER TABLE f ADD COLUMN b bytea; ALTER TABLE f ALTER COLUMN b SET STORAGE EXTERNAL; SET firn.bulk_threshold = 1000000")
        # As the last part of a value, and as its first.
        for n, (row,) in enumerate(rows):
            c.execute("INSERT INTO f VALUES (%s, 'forged', 0, %s)", (9001 + n, row + os.urandom(4000)))
            c.execute("INSERT INTO f VALUES (%s, 'forged', 0, %s)", (9501 + n, os.urandom(2 * 1996) + row))
        assert rows and c.execute(f"SELECT count(*) FROM {toast} WHERE chunk_id >= 16384").fetchone()[0] > 5 * len(rows)
        for sql in (None, f"REINDEX TABLE {toast}", "VACUUM FULL f"):
            if sql:
                c.execute(sql)
            assert not problems(c) and not plan(c), (sql, problems(c), plan(c))
        # What belongs to nothing is told and removed.
        by_hand(c, "INSERT INTO @ VALUES (101, 5, 'x')")
        c.execute(f"REINDEX TABLE {toast}")
        assert any("belong to no stripe" in p for _, _, p in problems(c)), problems(c)
        assert all(done for _, _, done in repair(c)) and not problems(c), problems(c)
        c.execute("DELETE FROM f WHERE id > 9000; ALTER TABLE f DROP COLUMN b")
        intact(c)
        c.execute("DROP TABLE f, h")
