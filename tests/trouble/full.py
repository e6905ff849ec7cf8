"""A full disk under the table, the write-ahead log, the cache or the store: a clear error, nothing lost, and
everything works again once there is room."""
import contextlib
import os
import subprocess
import time

import psycopg

from harness.cluster import Cluster
from trouble.common import expect, fresh, intact

FULL = "53100"
ROWS = 5000
TEXT = "md5(i::text) || md5((i + 1)::text)"


class NoDisk(Exception):
    """This machine lets us mount nothing."""


class SmallDisk:
    """A file system of its own, of so many megabytes; use as a context manager."""

    def __init__(self, folder, megabytes):
        self.folder, self.megabytes = folder, megabytes
        self.ballast = os.path.join(folder, "ballast")

    def __enter__(self):
        os.makedirs(self.folder)
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.megabytes}m,mode=777", "tmpfs", self.folder],
                              stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
        if made.returncode != 0:
            raise NoDisk(made.stdout.strip())
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.folder], check=True)
        os.rmdir(self.folder)

    def folder_for(self, name):
        path = os.path.join(self.folder, name)
        os.mkdir(path)
        subprocess.run(["chown", "postgres", path], check=True)
        return path

    def fill(self, leave=0):
        """Fill it up but for so many bytes."""
        with open(self.ballast, "ab") as f:
            while True:
                free = os.statvfs(self.folder)
                size = free.f_bavail * free.f_frsize - leave
                if size <= 0:
                    return
                f.write(b"x" * min(size, 1 << 20))
                f.flush()

    def free(self):
        if os.path.exists(self.ballast):
            os.unlink(self.ballast)


def table_space(cluster):
    """The disk of a table is full: loads, moves and changes of single rows."""
    with SmallDisk(os.path.join(cluster.root, "small"), 64) as disk:
        folder = disk.folder_for("ts")
        with cluster.connect() as c:
            c.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
            c.execute("SET default_tablespace = small")
            try:
                for name, work, undone in (
                        ("load of rows", "INSERT INTO f SELECT id + 100000, v, n FROM h", "DELETE FROM f WHERE id > 100000"),
                        ("copy", f"COPY f FROM '{cluster.root}/rows.csv'", "DELETE FROM f WHERE id > 100000"),
                        ("small statements", "INSERT INTO f SELECT 100000 + id, v, n FROM h WHERE id < 8",
                         "DELETE FROM f WHERE id > 100000"),
                        ("updates", "UPDATE f SET n = n", None),
                        ("deletes", "DELETE FROM f", None),
                        ("row locks", "SELECT * FROM f FOR UPDATE", None),
                        ("compact", "SELECT firn.compact('f')", None),
                        ("load of stripes", "SELECT firn.load('f')", None),
                        ("offload", "SELECT firn.offload('f', 'cold')", None),
                        ("compact in pieces", "CALL firn.compact_in_pieces('f', 1)", None),
                        ("load of stripes in pieces", "CALL firn.load_in_pieces('f', 1)", None),
                        ("offload in pieces", "CALL firn.offload_in_pieces('f', 'cold', 1)", None),
                        ("vacuum", "VACUUM f", None),
                        ("index build", "CREATE INDEX ON f (v)", None)):
                    run_out(c, disk, cluster, name, work, undone)
            finally:
                disk.free()
                c.execute("ROLLBACK")
                c.execute("RESET default_tablespace")
                c.execute("DROP TABLE IF EXISTS f, h")
                c.execute("DROP TABLESPACE small")


def possible():
    """Whether these tests can run here; says so if not."""
    try:
        with SmallDisk(f"/tmp/firn-disk-probe-{os.getpid()}", 1):
            return True
    except NoDisk as e:
        print(f"tests of full disks are left out, a tmpfs cannot be mounted here: {e}", flush=True)
        return False


def run_out(c, disk, cluster, name, work, undone):
    """`work` with ever more room, until there is enough."""
    disk.free()
    fresh(c, ROWS, 500, TEXT)
    c.execute(f"COPY (SELECT id + 100000, v, n FROM h) TO '{cluster.root}/rows.csv'")
    c.execute("ALTER TABLE h SET TABLESPACE pg_default")
    if "compact" in name:
        c.execute("SET firn.bulk_threshold = 1000000")
        c.execute("INSERT INTO f SELECT id + 200000, v, n FROM h; INSERT INTO h SELECT id + 200000, v, n FROM h")
        c.execute("SET firn.bulk_threshold = 10")
    if "load of stripes" in name:
        c.execute("SELECT firn.offload('f', 'cold')")
        c.execute("VACUUM FULL f")
    # The stripes of a table by place tell how far pieces have come.
    places = "SELECT count(*) FILTER (WHERE location = 'local'), count(*) FROM firn.stripes('f')"
    failed, begun, halfway = 0, c.execute(places).fetchone(), 0
    transactional = undone or name in ("updates", "deletes", "row locks")
    for pages in (0, 1, 2, 3, 5, 8, 13, 30, 70, 150, 400, 1000):
        disk.free()
        disk.fill(pages * 8192)
        if transactional:
            c.execute("BEGIN")
        try:
            c.execute(work)
            enough = True
        except psycopg.Error as e:
            assert e.sqlstate == FULL, (name, pages, e.sqlstate, str(e))
            enough = False
            failed += 1
        if transactional:
            c.execute("ROLLBACK")
        # Reading needs no room.
        intact(c)
        if not enough:
            left = c.execute(places).fetchone()
            assert "pieces" in name or left == begun, (name, pages, begun, left)
            begun, halfway = left, halfway + (left != begun)
        if enough:
            break
    assert enough, f"{name} never had enough room"
    assert failed or name in ("vacuum", "offload", "offload in pieces", "small statements"), f"{name} never ran out of room"
    assert halfway or "pieces" not in name or "offload" in name, f"{name}: no piece was done before there was no room"
    disk.free()
    c.execute(work)
    if "pieces" in name:
        assert c.execute("SELECT count(*) FROM firn.stripes('f') WHERE (location = 'local') = %s", ("offload" in name,)).fetchone() == (0,)
    if undone:
        c.execute(undone)
    if name in ("updates", "row locks"):
        intact(c)
    if name == "deletes":
        c.execute("INSERT INTO f TABLE h")
    c.execute("VACUUM f")
    c.execute("REINDEX TABLE f")
    intact(c)


def whole_server(_cluster):
    """Everything is on the disk that fills up, the write-ahead log too: PostgreSQL may go down, as with heap, and is
    as it was when it comes back."""
    with SmallDisk(os.path.join("/tmp", f"firn-disk-{os.getpid()}"), 400) as disk:
        cluster = Cluster("small", ["max_wal_size=32MB", "min_wal_size=32MB", "shared_buffers=16MB", "autovacuum=off"],
                          base=disk.folder)
        try:
            cluster.create()
            with cluster.connect() as c:
                c.execute("CREATE EXTENSION firn")
                fresh(c, 20000, 2000, TEXT)
            for round, leave in enumerate((0, 200_000, 2_000_000, 12_000_000)):
                for work in ("INSERT INTO f SELECT i, md5(i::text), 0 FROM generate_series(100000, 700000) i",
                             "SELECT firn.compact('f')", "CALL firn.compact_in_pieces('f', 1)", "UPDATE f SET n = n"):
                    with cluster.connect() as c:
                        if "compact" in work:
                            c.execute("SET firn.bulk_threshold = 1000000")
                            for t in ("f", "h"):
                                c.execute(f"INSERT INTO {t} SELECT {2 * round + work.startswith('CALL') + 1} * 1000000 + i, md5(i::text), 0 "
                                          "FROM generate_series(1, 8000) i")
                        disk.fill(leave)
                        try:
                            with contextlib.nullcontext() if work.startswith("CALL") else c.transaction(force_rollback=True):
                                c.execute(work)
                        except psycopg.OperationalError as e:
                            # The connection is gone after a PANIC about the log.
                            assert e.sqlstate in (FULL, None, "57P02", "57P03"), (work, e.sqlstate, str(e))
                    disk.free()
                    come_back(cluster)
                    with cluster.connect() as c:
                        intact(c)
                        c.execute("VACUUM f")
            with open(cluster.log, errors="replace") as f:
                log = f.read()
            assert "No space left on device" in log
            assert "panicked at" not in log and "TRAP" not in log
        finally:
            disk.free()
            cluster.destroy()


def come_back(cluster):
    """Wait for a server that recovers, start one that has given up."""
    end = time.time() + 60
    while time.time() < end:
        status = cluster.run("pg_ctl", "-D", cluster.data, "status", check=False)
        if status.returncode != 0:
            cluster.start()
        try:
            cluster.connect().close()
            return
        except psycopg.OperationalError:
            time.sleep(0.2)
    raise AssertionError("the server does not come back")


def cache(cluster):
    """A cache that cannot keep anything costs time and at most a warning, never a result."""
    with SmallDisk(os.path.join(cluster.root, "small_cache"), 4) as disk, cluster.connect() as c:
        notices = []
        c.add_notice_handler(lambda d: notices.append((d.sqlstate, d.message_primary)))
        fresh(c, 20000, 2000, TEXT)
        c.execute("SELECT firn.offload('f', 'cold')")
        folder = disk.folder_for("cache")

        def used():
            return sum(len(files) for _, _, files in os.walk(folder))

        def read(place, warnings):
            notices.clear()
            with cluster.connect() as d:
                d.add_notice_handler(lambda n: notices.append((n.sqlstate, n.message_primary)))
                d.execute(f"SET firn.cache_directory = '{place}'")
                intact(d)
                d.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
                assert d.execute("SELECT count(*) FROM f WHERE id = 7777").fetchone() == (1,)
            assert len(notices) <= warnings and all(n[0] == "01000" for n in notices), notices
            return len(notices)

        # Full before it is made, full when it is there, nearly full.
        disk.fill()
        read(os.path.join(folder, "c1"), 1)
        disk.free()
        read(os.path.join(folder, "c2"), 0)
        assert used() > 1
        disk.fill()
        read(os.path.join(folder, "c2"), 0)
        for leave in (4096, 50_000, 300_000):
            disk.free()
            disk.fill(leave)
            read(os.path.join(folder, f"c{leave}"), 1)
        disk.free()
        # Not writable at all, with and without pieces there; a file in its place; gone while in use.
        subprocess.run(["mount", "-o", "remount,ro", disk.folder], check=True)
        assert read(os.path.join(folder, "c4"), 1) == 1
        read(os.path.join(folder, "c2"), 1)
        subprocess.run(["mount", "-o", "remount,rw", disk.folder], check=True)
        with open(os.path.join(folder, "file"), "w") as f:
            f.write("not a folder")
        assert read(os.path.join(folder, "file"), 1) == 1
        c.execute(f"SET firn.cache_directory = '{folder}/c5'")
        intact(c)
        subprocess.run(["rm", "-r", os.path.join(folder, "c5")], check=True)
        intact(c)
        read(os.path.join(folder, "c5"), 0)
        assert used() > 1


def store(cluster):
    """A store that is full or not writable: offload says so, and the table is as it was."""
    with SmallDisk(os.path.join(cluster.root, "small_store"), 8) as disk, cluster.connect() as c:
        folder = disk.folder_for("store")
        c.execute(f"CREATE SERVER tight FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{folder}')")
        fresh(c, 20000, 2000, TEXT)
        c.execute("SELECT firn.compact('f')")
        stripes = c.execute("SELECT count(*) FROM firn.stripes('f')").fetchone()[0]

        def fails(state, *words):
            e = expect(c, "SELECT firn.offload('f', 'tight')", state)
            assert all(w in str(e) for w in words) and e.diag.message_hint, str(e)
            intact(c)
            assert c.execute("SELECT count(*) FROM firn.stripes('f') WHERE location = 'local'").fetchone() == (stripes,)
            assert not [f for _, _, files in os.walk(folder) for f in files if f.endswith(".tmp")]

        for leave in (0, 8192, 400_000):
            disk.free()
            disk.fill(leave)
            fails(FULL, "could not write object", "No space left on device", folder)
        disk.free()
        subprocess.run(["mount", "-o", "remount,ro", disk.folder], check=True)
        fails("42501", "Read-only file system")
        subprocess.run(["mount", "-o", "remount,rw", disk.folder], check=True)
        os.chmod(folder, 0o500)
        subprocess.run(["chown", "-R", "root", folder], check=True)
        fails("42501", "Permission denied")
        subprocess.run(["chown", "-R", "postgres", folder], check=True)
        os.chmod(folder, 0o700)
        os.rename(folder, folder + ".away")
        fails("HV00N", "does not exist")
        os.rename(folder + ".away", folder)
        assert c.execute("SELECT firn.offload('f', 'tight')").fetchone() == (stripes,)
        intact(c)
        assert c.execute("SELECT firn.load('f')").fetchone() == (stripes,)
        # In pieces: those that found room stay, and the same call goes on when there is more.
        seen = []
        for leave in (0, 120_000, 120_000):
            disk.free()
            disk.fill(leave)
            e = expect(c, "CALL firn.offload_in_pieces('f', 'tight', 1)", FULL)
            assert "could not write object" in str(e) and e.diag.message_hint, e
            intact(c)
            seen.append(c.execute("SELECT count(*) FROM firn.stripes('f') WHERE location = 'local'").fetchone()[0])
            assert not [f for _, _, files in os.walk(folder) for f in files if f.endswith(".tmp")]
        assert stripes == seen[0] > seen[1] > seen[2] > 0, (stripes, seen)
        disk.free()
        c.execute("CALL firn.offload_in_pieces('f', 'tight', 1)")
        assert c.execute("SELECT count(*) FROM firn.stripes('f') WHERE location = 'local'").fetchone() == (0,)
        intact(c)
        # Reading and bringing back need no room there.
        disk.fill()
        assert c.execute("SELECT firn.load('f')").fetchone() == (stripes,)
        intact(c)
        c.execute("DROP TABLE f")
        c.execute("DROP SERVER tight")


def no_blocks(cluster):
    """Beyond half of all block numbers are those of stripe rows: a row store that comes near them takes no more rows, and
    gives nobody's index entry to another row. The file is a sparse one, of 16 TB."""
    segments = (2**31 - 2**22) // 131072
    with cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS f, h")
        c.execute("CREATE TABLE f (id int PRIMARY KEY, v int) USING firn WITH (autovacuum_enabled = off)")
        c.execute("SET firn.bulk_threshold = 0; INSERT INTO f SELECT i, i FROM generate_series(1, 1000) i")
        c.execute("SET firn.bulk_threshold = 1000; INSERT INTO f VALUES (1001, 1001); CHECKPOINT")
        path = os.path.join(cluster.data, c.execute("SELECT pg_relation_filepath('f')").fetchone()[0])
    owner = os.stat(path)
    try:
        for n in range(segments):
            name = f"{path}.{n}" if n else path
            with open(name, "ab") as f:
                f.truncate(131072 * 8192)
            os.chown(name, owner.st_uid, owner.st_gid)
        with cluster.connect() as c:
            c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
            for sql in ("INSERT INTO f VALUES (1, 1) ON CONFLICT DO NOTHING", "UPDATE f SET v = 0 WHERE id = 1001",
                        "UPDATE f SET v = 0 WHERE id = 500", "INSERT INTO f VALUES (2000, 1)",
                        "INSERT INTO f SELECT i, i FROM generate_series(3000, 3100) i",
                        "COPY f FROM PROGRAM 'echo 4000,1' (FORMAT csv)"):
                if "CONFLICT" in sql:
                    c.execute(sql)
                    sql = sql.replace("(1, 1)", "(4000, 1)")
                e = expect(c, sql, "54000")
                assert "row store" in str(e) and e.diag.message_hint, e
            c.execute("DELETE FROM f WHERE id = 7")
            c.execute("SET firn.bulk_threshold = 0; INSERT INTO f SELECT i, i FROM generate_series(5001, 5100) i")
            assert c.execute("SELECT count(*), sum(v) FROM f WHERE id > 0").fetchone() == (1100, 501501 - 7 + 505050)
    finally:
        for n in range(1, segments):
            os.unlink(f"{path}.{n}")
    with cluster.connect() as c:
        c.execute("UPDATE f SET v = 0 WHERE id IN (500, 1001)")
        assert not c.execute("SELECT * FROM firn.check('f')").fetchall()
        c.execute("DROP TABLE f")


def no_memory(cluster):
    """Rows that no tuple holds as a whole, as it would have to be in memory at once: refused as by heap, and left where they are if they
    have grown value by value. Whoever reads other rows, or other columns, does so."""
    with open("/proc/meminfo") as f:
        free = next(int(line.split()[1]) for line in f if line.startswith("MemAvailable"))
    if free < 6 << 20:
        print("    not run: needs 6 GB of memory", flush=True)
        return
    half, refusals = 540, []
    for am in ("heap", "firn"):
        with cluster.connect() as c:
            c.execute(f"DROP TABLE IF EXISTS huge; CREATE TABLE huge (id int, v text, w text) USING {am} WITH (autovacuum_enabled = off)")
            c.execute("SET firn.bulk_threshold = 0")
            rows = "SELECT i, CASE i WHEN 3 THEN repeat(repeat('v', 1000000), %s) END, CASE i WHEN 3 THEN repeat(repeat('w', 1000000), %s) END FROM generate_series(1, {}) i"
            refusals.append(str(expect(c, "INSERT INTO huge " + rows.format(3) % (half, half), "XX000", "54000")))
            # INSERT and COPY make tuples themselves.
            refusals.append(str(expect(c, f"CREATE TABLE copied (id, v, w) USING {am} AS " + rows.format(3) % (half, half), "XX000", "54000")))
            if am == "heap":
                continue
            c.execute("INSERT INTO huge " + rows.format(2) % (half, half))
            c.execute("SET firn.bulk_threshold = 1000000")
            c.execute("INSERT INTO huge " + rows.format(5) % (half, 0))
            c.execute("UPDATE huge SET w = repeat(repeat('w', 1000000), %s) WHERE id = 3" % half)
            [(moved,)] = c.execute("SELECT firn.compact('huge')").fetchall()
            assert moved == 4, f"{moved} rows moved, of 5 of which one can never be read whole"
            c.execute("UPDATE huge SET v = 'other' WHERE id = 5 AND w IS NULL")
            assert c.execute("SELECT octet_length(v), octet_length(w) FROM huge WHERE id = 3").fetchone() == (half * 1000000, half * 1000000)
            assert c.execute("SELECT count(*), count(v), sum(id) FROM huge").fetchone() == (7, 2, 18)
            # As heap has it, a new version is one more tuple, with what is out of line as it is.
            assert c.execute("UPDATE huge SET id = 33 WHERE id = 3 RETURNING id").fetchone() == (33,)
            c.execute("DROP TABLE huge")
    assert refusals[:2] == refusals[2:], refusals


def many_digits(cluster):
    """A jsonb of a few kilobytes whose text has half a gigabyte: who stores it in a stripe does not make that."""
    peaks = {}
    for am in ("heap", "firn"):
        with cluster.connect() as c:
            c.execute(f"SET firn.bulk_threshold = 0; CREATE TABLE digits (id int, j jsonb) USING {am}")
            c.execute("INSERT INTO digits SELECT 1, ('[' || string_agg('1e131071', ',') || ']')::jsonb FROM generate_series(1, 4000)")
            with open(f"/proc/{c.info.backend_pid}/status", encoding="ascii") as f:
                peaks[am] = next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) >> 10
            assert c.execute("SELECT jsonb_array_length(j), j -> 3999 = '1e131071' FROM digits").fetchone() == (4000, True)
            c.execute("DROP TABLE digits")
    assert peaks["firn"] < peaks["heap"] + 200, peaks
