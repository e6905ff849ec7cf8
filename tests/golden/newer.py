"""What a later version may have written is refused: no row is guessed, nothing is removed, and the message says what to do."""
import os

import psycopg

from trouble.common import expect, fresh, intact
from trouble.damage import by_hand, problems

CRC_TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    CRC_TABLE.append(n)


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def of_version(row, version):
    """A directory row as a later version might write it: docs/internals/storage.md."""
    length = int.from_bytes(row[:4], "little")
    body = version.to_bytes(2, "little") + row[6:length]
    entry = body + crc32c(body).to_bytes(4, "little")
    slot = row[4 + length:8 + length]
    return row[:4] + entry + slot + crc32c(slot, crc32c(entry)).to_bytes(4, "little") + row[12 + length:]


def refused(c, statement):
    e = expect(c, statement, "0A000")
    assert "of a newer version of firn" in str(e) and e.diag.message_hint.startswith("Install the version of firn"), (statement, str(e), e.diag.message_hint)


def directory(cluster):
    """A row of a later version in the directory."""
    said = []
    with cluster.connect() as c:
        c.add_notice_handler(lambda n: said.append((n.sqlstate, n.message_primary, n.message_hint)))
        fresh(c)
        c.execute("CREATE INDEX ON f (v)")
        slot, was = c.execute("SELECT chunk_seq, chunk_data FROM " + toast(c) + " WHERE chunk_id = 1 ORDER BY 1 OFFSET 2 LIMIT 1").fetchone()
        assert of_version(was, 2) == was
        put(c, 1, slot, of_version(was, 9))
    with cluster.connect() as c:
        c.add_notice_handler(lambda n: said.append((n.severity, n.sqlstate, n.message_primary, n.message_hint)))
        for statement in ("SELECT sum(n), max(v) FROM f", "SELECT * FROM f WHERE id = 1100", "UPDATE f SET v = v WHERE id = 1100", "SELECT * FROM f WHERE id = 1100 FOR UPDATE", "CREATE INDEX ON f (n)",
                          "SELECT * FROM firn.stripes('f')", "CREATE TABLE copy AS TABLE f", "ALTER TABLE f ALTER n TYPE text"):
            refused(c, statement)
        # What other stripes have can still be had.
        assert c.execute("SELECT v FROM f WHERE id = 2").fetchone() == ("v2",)
        c.execute("INSERT INTO f VALUES (-1, 'x', 1); DELETE FROM f WHERE id = -1")
        found = problems(c)
        assert any("its directory row is of a newer version of firn" in p for _, _, p in found), found
        c.execute("SELECT * FROM firn.repair('f', false)")
        for statement in ("VACUUM f", "VACUUM (INDEX_CLEANUP on, FREEZE) f", "ANALYZE f", "VACUUM FULL f", "REINDEX TABLE f"):
            try:
                c.execute(statement)
            except psycopg.Error as e:
                assert e.sqlstate == "0A000", (statement, e.sqlstate, str(e))
        assert any(n[0] == "WARNING" and n[1] == "0A000" and "newer version" in n[2] and n[3].startswith("Install") for n in said), said
        now = c.execute("SELECT chunk_data FROM " + toast(c) + " WHERE chunk_id = 1 AND chunk_seq = %s", (slot,)).fetchone()[0]
        assert of_version(now, 9) == now
        put(c, 1, slot, of_version(now, 2))
    # The later version finds all as it has left it.
    with cluster.connect() as c:
        intact(c)
        c.execute("VACUUM f")
        intact(c)


def allocation(cluster):
    """So is the row that says what is free: nothing is handed out, and what is there can be read."""
    with cluster.connect() as c:
        fresh(c)
        was = c.execute("SELECT chunk_data FROM " + toast(c) + " WHERE chunk_id = 2").fetchone()[0]
        put(c, 2, 0, b"\x02" + was[1:])
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0")
        refused(c, "INSERT INTO f SELECT i, 'x', 1 FROM generate_series(5001, 6000) i")
        assert c.execute("SELECT count(*) FROM f").fetchone() == (3000,)
        found = problems(c)
        assert any("newer version of firn" in p for _, _, p in found), found
        c.execute("VACUUM f")
        put(c, 2, 0, was)
        c.execute("VACUUM f")
        intact(c)


def damaged(cluster):
    """A version that is none, as its checksum says, is damage."""
    with cluster.connect() as c:
        fresh(c)
        slot, was = c.execute("SELECT chunk_seq, chunk_data FROM " + toast(c) + " WHERE chunk_id = 1 ORDER BY 1 LIMIT 1").fetchone()
        put(c, 1, slot, was[:4] + b"\x09" + was[5:])
        expect(c, "SELECT sum(n), max(v) FROM f", "XX001")
        put(c, 1, slot, was)
        intact(c)


def note(cluster):
    """Notes that only help estimates and VACUUM are as good as none when they are of another version."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("VACUUM f")
        for kind in (6, 7):
            was = c.execute("SELECT chunk_data FROM " + toast(c) + " WHERE chunk_id = %s", (kind,)).fetchone()[0]
            put(c, kind, 0, b"\x02" + was[1:])
        c.execute("DELETE FROM f WHERE id % 3 = 0; DELETE FROM h WHERE id % 3 = 0")
        c.execute("VACUUM f")
        c.execute("ANALYZE f")
        intact(c)


def kind(cluster):
    """Rows of a kind that is not known are told of, and nobody takes them, or what may belong to them, away."""
    with cluster.connect() as c:
        fresh(c)
        by_hand(c, "INSERT INTO @ VALUES (8, 0, '\\x0102'), (99, 7, '\\x')", "INSERT INTO @ VALUES (150, 5, '\\x00')")
        for statement in ("VACUUM f", "SELECT * FROM firn.repair('f', false)", "VACUUM (INDEX_CLEANUP on, FREEZE) f", "VACUUM FULL f", "CLUSTER f USING f_pkey", "SELECT firn.compact('f')"):
            if "FULL" in statement or "CLUSTER" in statement:
                expect(c, statement, "XX001")
            else:
                c.execute(statement)
            found = c.execute("SELECT chunk_id, chunk_seq, chunk_data FROM " + toast(c) + " WHERE chunk_id IN (8, 99, 150) ORDER BY 1").fetchall()
            assert found == [(8, 0, b"\x01\x02"), (99, 7, b""), (150, 5, b"\x00")], (statement, found)
        assert any("keys that nobody gives" in p for _, _, p in problems(c)), problems(c)
        by_hand(c, "DELETE FROM @ WHERE chunk_id IN (8, 99, 150)")
        intact(c)


def toast(c):
    return c.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'f'").fetchone()[0]


def put(c, kind, seq, data):
    by_hand(c, f"UPDATE @ SET chunk_data = '\\x{data.hex()}' WHERE chunk_id = {kind} AND chunk_seq = {seq}")


def marker(cluster):
    """A store whose marker is of another form is not taken for one without."""
    place = os.path.join(cluster.root, "marked")
    os.makedirs(os.path.join(place, "firn"))
    with open(os.path.join(place, "firn", "store-id"), "w") as f:
        f.write("firn store 2 " + "0" * 64 + "\n")
    os.system(f"chmod -R a+rwX {place}")
    with cluster.connect() as c:
        fresh(c)
        c.execute(f"CREATE SERVER marked FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{place}')")
        e = expect(c, "SELECT firn.offload('f', 'marked')", "XX001")
        assert "marker" in str(e) and "newer version of firn" in str(e), str(e)
        intact(c)


CASES = {"directory row": directory, "allocation row": allocation, "damaged version": damaged, "notes": note, "rows of another kind": kind, "store's marker": marker}
