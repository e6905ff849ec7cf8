"""firn.check tells all damage there is, whatever it meets on the way; firn.repair mends what needs no guessing."""
import glob
import os
import threading
import time

from trouble.common import expect, fresh, intact


def toast_of(c, table="f"):
    return c.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = %s::regclass", (table,)).fetchone()[0]


def by_hand(c, *statements, table="f"):
    """Statements on the TOAST relation `@` as if it were a table."""
    toast = toast_of(c, table)
    c.execute("SET allow_system_table_mods = on")
    kind = "UPDATE pg_class SET relkind = %s WHERE oid = %s::regclass"
    c.execute(kind, ("r", toast))
    try:
        for sql in statements:
            c.execute(sql.replace("@", toast))
    finally:
        c.execute(kind, ("t", toast))
        c.execute("RESET allow_system_table_mods")


def problems(c, table="f"):
    return c.execute("SELECT severity, object, problem FROM firn.check(%s)", (table,)).fetchall()


def plan(c, table="f"):
    return c.execute("SELECT object, action, done FROM firn.repair(%s)", (table,)).fetchall()


def repair(c, table="f"):
    """The repair does what the dry run says."""
    said = plan(c, table)
    assert said and not any(done for _, _, done in said), said
    done = c.execute("SELECT object, action, done FROM firn.repair(%s, false)", (table,)).fetchall()
    for row in said:
        if "cannot" not in row[1]:
            assert (row[0], row[1], True) in done, (row, done)
    return done


def mended(c, what):
    """`what` is found, mended, and gone; contents are as before."""
    found = problems(c)
    assert any(what in problem for _, _, problem in found), (what, found)
    done = repair(c)
    assert done and all(d for _, _, d in done), done
    intact(c)
    assert not plan(c)
    c.execute("VACUUM f")
    c.execute("REINDEX TABLE f")
    c.execute("VACUUM FULL f")
    intact(c)


def every_stripe(cluster):
    """Missing, short and exchanged objects and chunks that are gone: a row for each, and the check goes on."""
    store = os.path.join(cluster.root, "store")
    with cluster.connect() as c:
        fresh(c)
        c.execute("SELECT firn.offload('f', 'cold')")
        c.execute("INSERT INTO f SELECT i, 'local', 0 FROM generate_series(5001, 6500) i")
        keys = [r[0] for r in c.execute("SELECT object_key FROM firn.stripes('f') WHERE location = 'cold' ORDER BY slot").fetchall()]
        paths = [os.path.join(store, k) for k in keys]
        assert len(paths) >= 4 and all(map(os.path.exists, paths)), paths
        kept = [open(p, "rb").read() for p in paths]
        os.unlink(paths[0])
        for path, content in ((paths[1], kept[1][:100]), (paths[2], kept[3])):
            with open(path, "wb") as f:
                f.write(content)
        local = c.execute("SELECT slot FROM firn.stripes('f') WHERE location = 'local' ORDER BY slot LIMIT 1").fetchone()[0]
        by_hand(c, "DELETE FROM @ WHERE (chunk_id, chunk_seq) IN (SELECT chunk_id, max(chunk_seq) FROM @ WHERE chunk_id = 100 GROUP BY 1)")
        c.execute(f"SET firn.cache_directory = '{cluster.root}/none'; SET firn.cache_size = 0")
        found = problems(c)
        slots = [s for s, in c.execute("SELECT slot FROM firn.stripes('f') ORDER BY slot").fetchall()]
        damaged = {o for severity, o, _ in found if severity == "error"}
        # The three objects, and the local stripe whose chunk went.
        assert {f"stripe {s} of f" for s in slots[:3]} <= damaged, (damaged, found)
        assert f"stripe {slots[3]} of f" not in damaged, damaged
        assert any("chunks are missing or dead" in p for _, _, p in found), found
        assert any("could not read object" in p and "marker" in p for _, _, p in found), found
        assert local in slots
        said = plan(c)
        assert {o for o, a, _ in said if "cannot be mended" in a} >= damaged, (said, damaged)
        for path, content in zip(paths, kept):
            with open(path, "wb") as f:
                f.write(content)
        # What is not about data still ends it: a server by another name, options without sense, a cancel.
        left = problems(c)
        c.execute("ALTER SERVER cold RENAME TO elsewhere")
        expect(c, "SELECT * FROM firn.check('f')", "42704")
        c.execute("ALTER SERVER elsewhere RENAME TO cold")
        (options,) = c.execute("SELECT srvoptions FROM pg_foreign_server WHERE srvname = 'cold'").fetchone()
        c.execute("UPDATE pg_foreign_server SET srvoptions = '{url=nonsense}' WHERE srvname = 'cold'")
        expect(c, "SELECT * FROM firn.check('f')", "22023")
        c.execute("UPDATE pg_foreign_server SET srvoptions = %s WHERE srvname = 'cold'", (options,))
        assert problems(c) == left
        c.execute("SET statement_timeout = 1")
        expect(c, "SELECT * FROM generate_series(1, 10000), LATERAL firn.check('f')", "57014")
        c.execute("RESET statement_timeout; DROP TABLE f, h")


def damaged_pages(cluster):
    """A page of the TOAST relation that cannot be read, a directory row with a flipped bit: rows, not errors."""
    with cluster.connect() as c:
        fresh(c)
        path = c.execute("SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE relname = 'f'").fetchone()[0]
        c.execute("CHECKPOINT")
        blocks = os.path.getsize(os.path.join(cluster.data, path)) // 8192
    cluster.stop()
    with open(os.path.join(cluster.data, path), "r+b") as f:
        f.seek((blocks - 1) * 8192)
        whole = f.read(8192)
        f.seek((blocks - 1) * 8192)
        f.write(b"\x5a" * 8192)
    cluster.start()
    with cluster.connect() as c:
        found = problems(c)
        assert any(f"page {blocks - 1} cannot be read" in p for _, _, p in found), found
        assert all("cannot" in a and not d for _, a, d in plan(c)), plan(c)
    cluster.stop()
    with open(os.path.join(cluster.data, path), "r+b") as f:
        f.seek((blocks - 1) * 8192)
        f.write(whole)
        f.seek(0)
        at = f.read().index(b"PAR1")
        f.seek(at + 20)
        f.write(b"\xff")
    cluster.start()
    with cluster.connect() as c:
        assert any(o.startswith("stripe") for _, o, _ in problems(c))
        by_hand(c, "UPDATE @ SET chunk_data = set_byte(chunk_data, 40, 255 - get_byte(chunk_data, 40)) WHERE chunk_id = 1 AND chunk_seq > 0")
        found = problems(c)
        assert any("its directory row is damaged" in p for _, _, p in found), found
        # What those rows name is not taken for ownerless.
        assert not any("belong to no stripe" in p for _, _, p in found), found
        assert not any("remove" in a for _, a, _ in plan(c)), plan(c)
        c.execute("DROP TABLE f, h")


def warned(c, sql):
    """The SQLSTATEs, messages and hints of the warnings that `sql` gives."""
    said = []
    handler = lambda d: said.append((d.sqlstate, d.message_primary, d.message_hint))  # noqa: E731
    c.add_notice_handler(handler)
    try:
        c.execute(sql)
    finally:
        c.remove_notice_handler(handler)
    return said


# Entries of a B-tree for the rows of a stripe of two blocks.
ENTRIES = """SELECT count(*) FROM generate_series(1, pg_relation_size(%(index)s::regclass) / 8192 - 1) page,
    bt_page_stats(%(index)s::text, page::int) s, bt_page_items(%(index)s::text, page::int) i,
    unnest(coalesce(i.tids, ARRAY[i.htid])) t WHERE s.type = 'l' AND t IS NOT NULL
    AND split_part(trim(leading '(' from t::text), ',', 1)::bigint - 2147483648 BETWEEN %(slot)s AND %(slot)s + 1"""


def entries(c, slot):
    return [c.execute(ENTRIES, {"index": index, "slot": slot}).fetchone()[0] for index in ("f_pkey", "f_v")]


def vacuum_of_damage(cluster):
    """Directory rows that do not decode: VACUUM says so, leaves their stripes and index entries alone, and does the rest.
    When the rows are whole again, nothing is lost."""
    flip = "UPDATE @ SET chunk_data = set_byte(chunk_data, 40, 255 - get_byte(chunk_data, 40)) WHERE chunk_id = 1 AND chunk_seq IN ({})"
    with cluster.connect() as c:
        fresh(c)
        c.execute("CREATE EXTENSION IF NOT EXISTS pageinspect")
        c.execute("ALTER TABLE f SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        c.execute("CREATE INDEX f_v ON f (v)")
        first, second, third, *_, last = [s for s, in c.execute("SELECT slot FROM firn.stripes('f') ORDER BY slot").fetchall()]
        ids = {}
        for slot in (first, second, third, last):
            ids[slot] = c.execute("SELECT min(id), max(id) FROM f WHERE ctid >= %s::tid AND ctid < %s::tid",
                                  (f"({2**31 + slot},1)", f"({2**31 + slot + 2},1)")).fetchone()
        # Garbage of every kind: dead rows beside the damaged stripes and in them, a stripe without living rows, a
        # rolled-back load, anchors, dead rows of the row store.
        c.execute("BEGIN; INSERT INTO f SELECT i, 'gone', 1 FROM generate_series(9001, 10000) i; ROLLBACK")
        for table in ("f", "h"):
            c.execute(f"DELETE FROM {table} WHERE id BETWEEN {ids[third][0]} AND {ids[third][1]}")
            c.execute(f"DELETE FROM {table} WHERE id IN ({ids[second][0]}, {ids[last][1]}) OR v = 'changed'")
        c.execute("SELECT count(*) FROM (SELECT 1 FROM f WHERE id < 400 FOR SHARE) x")
        had = [entries(c, slot) for slot in (second, last)]
        assert all(min(counts) > 400 for counts in had), had
        by_hand(c, flip.format(f"{second}, {last}"))
    with cluster.connect() as c:
        horizon = "SELECT relfrozenxid::text::int FROM pg_class WHERE relname = 'f'"
        before = c.execute(horizon).fetchone()[0]
        for options in ("FREEZE, INDEX_CLEANUP on", "FREEZE", "INDEX_CLEANUP off", "PROCESS_TOAST false"):
            said = warned(c, f"VACUUM ({options}) f")
            assert [s for s, _, _ in said] == ["XX001"], said
            assert said[0][1] == f'directory row {second} of table "f" is damaged' and "firn.check" in said[0][2], said
        assert c.execute(horizon).fetchone()[0] > before, "nothing was frozen"
        # The rest is done: the dead stripe and the anchors went, with all index entries that lead to nothing.
        seen = {s for s, in c.execute(f"SELECT chunk_seq FROM {toast_of(c)} WHERE chunk_id = 1").fetchall()}
        assert seen >= {first, second, last} and third not in seen, seen
        assert c.execute(f"SELECT count(*) FROM {toast_of(c)} WHERE chunk_id >= 12000 AND substr(chunk_data, 1, 1) = 'L'").fetchone() == (0,)
        kept = (second, last)
        assert entries(c, third) == [0, 0] and [entries(c, slot) for slot in kept] == had, (entries(c, third), had)
        # Who asks for another stripe gets it; who asks for one of these, or for all, is told.
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
        wanted = ids[first][0] + 1
        assert c.execute(f"SELECT id FROM f WHERE id = {wanted}").fetchall() == c.execute(f"SELECT id FROM h WHERE id = {wanted}").fetchall()
        expect(c, f"SELECT * FROM f WHERE id = {ids[second][0] + 1}", "XX001")
        c.execute("RESET enable_seqscan; RESET firn.enable_scan")
        for sql in ("SELECT count(*) FROM f", "TABLE f", "ANALYZE f", "VACUUM FULL f", "REINDEX TABLE f"):
            expect(c, sql, "XX001")
        by_hand(c, flip.format(f"{second}, {last}"))
        assert not warned(c, "VACUUM (INDEX_CLEANUP on) f")
        intact(c)
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off; SET enable_bitmapscan = off")
        assert c.execute("SELECT count(*), sum(id) FROM f WHERE id > 0").fetchall() == c.execute("SELECT count(*), sum(id) FROM h").fetchall()
        # Without its allocation row it is not known what is garbage.
        c.execute("DELETE FROM f WHERE id < 1200")
        # (Version 0 is none, version 9 a later one's.)
        for version, state in ((0, "XX001"), (9, "0A000")):
            by_hand(c, f"UPDATE @ SET chunk_data = set_byte(chunk_data, 0, {version}) WHERE chunk_id = 2")
            assert [s for s, _, _ in warned(c, "VACUUM f")] == [state], version
        by_hand(c, "UPDATE @ SET chunk_data = set_byte(chunk_data, 0, 1) WHERE chunk_id = 2")
        c.execute("DELETE FROM h WHERE id < 1200")
        c.execute("VACUUM f")
        intact(c)
        c.execute("DROP TABLE f, h")


def damaged_key(cluster):
    """A directory row under another's slot is damaged: nobody takes it for that one's, and VACUUM leaves the index entries of the
    stripe that it is of. Rows of before the slot was noted in them read on, under their key."""
    with cluster.connect() as c:
        fresh(c)
        c.execute("CREATE EXTENSION IF NOT EXISTS pageinspect; CREATE INDEX f_v ON f (v)")
        c.execute("ALTER TABLE f SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        for table in ("f", "h"):
            c.execute(f"INSERT INTO {table} SELECT i, 'v' || i, 1 FROM generate_series(5001, 5400) i")
        c.execute("BEGIN; INSERT INTO f SELECT i, 'gone' || i, 1 FROM generate_series(9001, 12000) i; ROLLBACK")
        *_, slot, last = [s for s, in c.execute("SELECT slot FROM firn.stripes('f') ORDER BY slot").fetchall()]
        had = entries(c, last)
        assert min(had) == 390 and last - slot < 64, (had, slot, last)
        move = "UPDATE @ SET chunk_seq = {} WHERE chunk_id = 1 AND chunk_seq = {}"
        by_hand(c, move.format(last + 7, last))
        for sql in ("SELECT sum(n) FROM f", "TABLE f"):
            e = expect(c, sql, "XX001")
            assert f"that of slot {last}" in e.diag.message_detail, e
        assert any(f"that of slot {last}" in p for _, _, p in problems(c)), problems(c)
        assert [s for s, _, _ in warned(c, "VACUUM (INDEX_CLEANUP on) f")] == ["XX001"]
        assert entries(c, last) == had, (entries(c, last), had)
        by_hand(c, move.format(last, last + 7))
        assert not warned(c, "VACUUM (INDEX_CLEANUP on) f") and entries(c, last + 3) == [0, 0]
        intact(c)
        # As rows were before.
        note = "4 + get_byte(chunk_data, 0) + 256 * get_byte(chunk_data, 1)"
        by_hand(c, f"UPDATE @ SET chunk_data = overlay(chunk_data PLACING '\\x0000000000000000'::bytea FROM {note} + 1) WHERE chunk_id = 1")
        intact(c)
        c.execute("SELECT firn.offload('f', 'cold')")
        c.execute("VACUUM f")
        intact(c)
        c.execute("DROP TABLE f, h")


def passes(c, sql="VACUUM f"):
    """Whether `sql` reads the index f_hash from its beginning to its end. (PostgreSQL reads a B-tree for its own reasons.)"""
    read = ("SELECT idx_blks_hit + idx_blks_read, pg_relation_size(indexrelid) / 8192 FROM pg_statio_all_indexes "
            "WHERE indexrelname = 'f_hash'")
    c.execute("SELECT pg_stat_force_next_flush()")
    (before, _), _, _ = c.execute(read).fetchone(), c.execute(sql), c.execute("SELECT pg_stat_force_next_flush()")
    after, pages = c.execute(read).fetchone()
    assert pages > 8, pages
    return after - before >= pages // 2


def vacuum_pays_once(cluster):
    """Beside a damaged directory row VACUUM passes over the indexes once, not each time; what the row hid goes when it is
    whole again."""
    flip = "UPDATE @ SET chunk_data = set_byte(chunk_data, 40, 255 - get_byte(chunk_data, 40)) WHERE chunk_id = 1 AND chunk_seq IN ({})"
    slots = "SELECT slot FROM firn.stripes('f') ORDER BY slot"
    with cluster.connect() as c:
        fresh(c)
        c.execute("ALTER TABLE f SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        c.execute("CREATE EXTENSION IF NOT EXISTS pageinspect; CREATE INDEX f_v ON f (v); CREATE INDEX f_hash ON f USING hash (id)")
        more = "INSERT INTO {0} SELECT i, 'v' || i, 1 FROM generate_series({1} + 1, {1} + 400) i"
        for table in ("f", "h"):
            c.execute(more.format(table, 5000))
        other, *_, first = [s for s, in c.execute(slots).fetchall()]
        lost = "BEGIN; INSERT INTO f SELECT i, 'gone' || i, 1 FROM generate_series(9001, 12000) i; ROLLBACK"
        # Entries of rolled-back loads right behind the row that is to be damaged, and behind the next stripe.
        c.execute(lost)
        for table in ("f", "h"):
            c.execute(more.format(table, 6000))
        last = c.execute(slots).fetchall()[-1][0]
        c.execute(lost)
        for table in ("f", "h"):
            c.execute(f"DELETE FROM {table} WHERE id BETWEEN 5101 AND 5200")
        behind, end = first + 3, last + 4
        had = entries(c, first)
        assert min(entries(c, behind)) >= 500 <= min(entries(c, end)), (entries(c, behind), entries(c, end))
        by_hand(c, flip.format(first))
        assert passes(c) and not passes(c) and not passes(c)
        assert entries(c, end) == [0, 0] and min(entries(c, behind)) >= 500 and entries(c, first) == had
        # Garbage of later is found as ever. When other rows are damaged it is looked at everything again, once.
        lost = lost.replace("9001, 12000", "19001, 22000")
        c.execute(lost)
        assert passes(c) and not passes(c)
        by_hand(c, flip.format(other))
        c.execute(lost)
        assert passes(c) and not passes(c)
        # What shows again is looked at again, even if that is less than all.
        by_hand(c, flip.format(first))
        assert passes(c) and not passes(c)
        assert entries(c, behind) == [0, 0] and entries(c, first) == [n - 100 for n in had], (had, entries(c, first))
        by_hand(c, flip.format(other))
        c.execute("VACUUM f")
        assert not passes(c)
        intact(c)
        c.execute("SET enable_seqscan = off; SET firn.enable_scan = off; SET enable_bitmapscan = off")
        assert c.execute("SELECT count(*), sum(id) FROM f WHERE id > 0").fetchall() == c.execute("SELECT count(*), sum(id) FROM h").fetchall()
        assert not problems(c)
        c.execute("DROP TABLE f, h")


def damaged_tombstone(cluster):
    """Whether a row with a damaged tombstone lives is not known: who reads it is told, VACUUM goes on, others read on."""
    with cluster.connect() as c:
        fresh(c)
        # That of id 100, the first that was changed.
        kept = c.execute(f"SELECT chunk_id, chunk_seq, chunk_data FROM {toast_of(c)} WHERE chunk_id >= 12000 AND get_byte(chunk_data, 0) = 68 "
                         "ORDER BY 1, 2 LIMIT 1").fetchone()
        change = f"UPDATE @ SET chunk_data = '%s' WHERE chunk_id = {kept[0]} AND chunk_seq = {kept[1]}"
        by_hand(c, change % ("\\x00" + kept[2][1:].hex()))
        for sql in ("SELECT sum(n) FROM f", "SELECT * FROM f WHERE id = 100", "UPDATE f SET n = 1 WHERE id = 100",
                    "SELECT id FROM f WHERE id = 100 FOR UPDATE"):
            expect(c, sql, "XX001")
        assert c.execute("SELECT id FROM f WHERE id = 1900").fetchall() == [(1900,)]
        assert any("tombstone" in p and "damaged" in p for _, _, p in problems(c)), problems(c)
        c.execute("VACUUM (FREEZE, INDEX_CLEANUP on) f")
        by_hand(c, change % ("\\x" + kept[2].hex()))
        intact(c)
        c.execute("DROP TABLE f, h")


def repair_beside_reindex(cluster):
    """A repair takes no index for a left-over that is about to become the valid one."""
    with cluster.connect() as c, cluster.connect() as old, cluster.connect() as builder, cluster.connect() as mender:
        fresh(c)
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        call = f"REINDEX TABLE CONCURRENTLY {toast_of(c)}"
        threads = [threading.Thread(target=builder.execute, args=(call,)),
                   threading.Thread(target=mender.execute, args=("SELECT * FROM firn.repair('f', false)",))]
        for thread, session in zip(threads, (builder, mender)):
            thread.start()
            # Each waits: one for the old snapshot, the other for the first.
            while c.execute("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", (session.info.backend_pid,)).fetchone() == (0,):
                time.sleep(0.02)
        old.execute("ROLLBACK")
        for thread in threads:
            thread.join()
        assert not problems(c)
        intact(c)
        c.execute("DROP TABLE f, h")


# Heap-only tuples' predecessors, left by updates that were rolled back, whose successor's place another row has.
BROKEN_CHAINS = """
WITH items AS (SELECT block, i.* FROM generate_series(0, pg_relation_size('{0}') / 8192 - 1) block,
    heap_page_items(get_raw_page('{0}', block::int)) i)
SELECT count(*), min(a.block) FROM items a JOIN items b ON a.block = b.block AND a.lp <> b.lp
    AND a.t_ctid = format('(%s,%s)', b.block, b.lp)::tid
WHERE a.t_infomask2 & 16384 <> 0 AND b.t_infomask2 & 32768 = 0"""


def broken_chains(cluster):
    """DELETEs of locked rows are rolled back, what they wrote is cleared away, and its place is taken by the anchors of
    other rows; then the first anchors are removed, but not yet their index entries: these lead nowhere."""
    with cluster.connect() as c, cluster.connect() as holder, cluster.connect() as reader:
        c.execute("CREATE EXTENSION IF NOT EXISTS pageinspect")
        fresh(c)
        toast = toast_of(c)
        holder.execute("BEGIN")
        broken = 0
        for first in range(601, 1400, 20):
            rows = f"WHERE id BETWEEN {first} AND {first + 18}"
            c.execute(f"BEGIN; SELECT id FROM f {rows} FOR UPDATE; DELETE FROM f {rows}; ROLLBACK")
            holder.execute(f"SELECT id FROM f WHERE id BETWEEN {first + 900} AND {first + 908} FOR SHARE")
            broken, page = c.execute(BROKEN_CHAINS.format(toast)).fetchone()
            if broken:
                break
        assert broken
        reader.execute(f"BEGIN; DECLARE r CURSOR FOR SELECT ctid FROM {toast} WHERE ctid >= '({page},1)'")
        assert reader.execute("FETCH 1 FROM r").fetchone() is not None
        c.execute(f"VACUUM {toast}")
        assert c.execute(BROKEN_CHAINS.format(toast)).fetchone()[0] == broken
        intact(c)
        assert not plan(c)
        reader.execute("ROLLBACK")
        holder.execute("ROLLBACK")
        c.execute("DROP TABLE f, h")


def repairs(cluster):
    """Each kind of damage that can be mended."""
    with cluster.connect() as c, cluster.connect() as other:
        # Invalid indexes that REINDEX CONCURRENTLY leaves.
        fresh(c)
        other.execute("BEGIN")
        other.execute("SELECT * FROM f WHERE id = 707 FOR UPDATE")
        c.execute("SET statement_timeout = '2s'")
        expect(c, f"REINDEX TABLE CONCURRENTLY {toast_of(c)}", "57014")
        c.execute("RESET statement_timeout")
        other.execute("ROLLBACK")
        mended(c, "it is invalid")
        # The index misses a row.
        index = c.execute(f"SELECT indexrelid FROM pg_index WHERE indrelid = '{toast_of(c)}'::regclass").fetchone()[0]
        flag = f"UPDATE pg_index SET indisready = %s WHERE indexrelid = {index}"
        by_hand(c, flag % "false", "WITH d AS (DELETE FROM @ WHERE chunk_id = 12000 RETURNING *) INSERT INTO @ TABLE d",
                flag % "true")
        mended(c, "it lacks entries of")
        # Ownerless rows: their directory row went.
        c.execute("DELETE FROM f WHERE id > 2000; DELETE FROM h WHERE id > 2000")
        c.execute("INSERT INTO f SELECT i, 'more', 1 FROM generate_series(7001, 7400) i")
        gone = c.execute("SELECT max(slot) FROM firn.stripes('f')").fetchone()[0]
        c.execute("DELETE FROM f WHERE id BETWEEN 7100 AND 7200")
        by_hand(c, f"DELETE FROM @ WHERE chunk_id = 1 AND chunk_seq = {gone}")
        c.execute("DELETE FROM f WHERE id > 7000")
        c.execute("REINDEX TABLE f")
        found = problems(c)
        assert any("chunks" in p and "belong to no stripe" in p for _, _, p in found), found
        mended(c, "tombstones and anchors")
        # Two intents of one stripe, as two rolled-back offloads left them once.
        slot = c.execute("SELECT min(slot) FROM firn.stripes('f')").fetchone()[0]
        index = c.execute(f"SELECT indexrelid FROM pg_index WHERE indrelid = '{toast_of(c)}'::regclass").fetchone()[0]
        flag = f"UPDATE pg_index SET indisunique = %s WHERE indexrelid = {index}"
        c.execute("BEGIN; SELECT firn.offload('f', 'cold'); ROLLBACK")
        by_hand(c, flag % "false", f"INSERT INTO @ SELECT chunk_id, chunk_seq, chunk_data FROM @ WHERE chunk_id = 4 AND chunk_seq = {slot}",
                flag % "true")
        mended(c, "have a key that another has")
        # No TOAST relation.
        c.execute("CREATE TABLE bare (id int) USING heap")
        c.execute("SET allow_system_table_mods = on")
        c.execute("UPDATE pg_class SET relam = (SELECT oid FROM pg_am WHERE amname = 'firn') WHERE relname = 'bare'")
        c.execute("RESET allow_system_table_mods")
    with cluster.connect() as c:
        assert [s for s, _, _ in problems(c, "bare")] == ["warning"]
        assert all(d for _, _, d in repair(c, "bare"))
        c.execute("SET firn.bulk_threshold = 0")
        c.execute("INSERT INTO bare SELECT generate_series(1, 1000)")
        assert c.execute("SELECT stripes FROM firn.table_info('bare')").fetchone() == (1,)
        assert not problems(c, "bare")
        c.execute("BEGIN READ ONLY")
        expect(c, "SELECT * FROM firn.repair('bare', false)", "25006")
        c.execute("ROLLBACK")
        c.execute("CREATE ROLE stranger; SET ROLE stranger")
        expect(c, "SELECT * FROM firn.repair('bare')", "42501")
        c.execute("RESET ROLE; DROP ROLE stranger; DROP TABLE bare, f, h")


def index_entries(cluster):
    """B-tree entries of addresses that were never given out, and stripes beyond what was."""
    with cluster.connect() as c:
        fresh(c)
        assert not problems(c)
        by_hand(c, "UPDATE @ SET chunk_data = overlay(chunk_data PLACING '\\x01000000' FROM 9 FOR 4) WHERE chunk_id = 2")
        found = problems(c)
        assert any(o == "index f_pkey" and "never given out" in p for _, o, p in found), found
        assert any("its row addresses were never given out" in p for _, _, p in found), found
        c.execute("DROP TABLE f, h")


def objects_left(folder):
    return glob.glob(os.path.join(folder, "**", "*.parquet"), recursive=True)


def intents(cluster):
    """Offloads that are rolled back, cancelled or killed leave one intent for a stripe at most."""
    with cluster.connect() as c:
        fresh(c)
        toast = toast_of(c)

        def at_most_one():
            twice = c.execute(f"SELECT chunk_seq, count(*) FROM {toast} WHERE chunk_id = 4 GROUP BY 1 HAVING count(*) > 1").fetchall()
            assert not twice, twice
            c.execute("REINDEX TABLE f")
            c.execute("VACUUM FULL f")
            c.execute(f"REINDEX TABLE CONCURRENTLY {toast}")
            intact(c)

        for _ in range(3):
            c.execute("BEGIN; SELECT firn.offload('f', 'cold'); ROLLBACK")
        at_most_one()
        c.execute("BEGIN")
        for _ in range(3):
            c.execute("SAVEPOINT a; SELECT firn.offload('f', 'cold'); ROLLBACK TO a")
        c.execute("COMMIT")
        at_most_one()
        # Taken away and made anew within one transaction.
        for end in ("ROLLBACK", "COMMIT"):
            c.execute("BEGIN; SELECT firn.offload('f', 'cold'); SELECT firn.load('f')")
            c.execute("SAVEPOINT a; SELECT firn.offload('f', 'cold'); ROLLBACK TO a")
            c.execute(f"SELECT firn.offload('f', 'cold'); {end}")
            at_most_one()
            c.execute("SELECT firn.load('f')")
        # One that an older version has written, without padding.
        by_hand(c, "UPDATE @ SET chunk_data = rtrim(chunk_data, '\\x00'::bytea) WHERE chunk_id = 4")
        c.execute("BEGIN; SELECT firn.offload('f', 'cold'); ROLLBACK")
        at_most_one()
        by_hand(c, "UPDATE @ SET chunk_data = substr(chunk_data, 1, 40) WHERE chunk_id = 4")
        c.execute("BEGIN; SELECT firn.offload('f', 'cold'); ROLLBACK")
        at_most_one()
        c.execute("SELECT firn.offload('f', 'cold')")
        assert c.execute(f"SELECT count(*) FROM {toast} WHERE chunk_id = 4").fetchone() == (0,)
        at_most_one()
        c.execute("DROP TABLE f, h")
