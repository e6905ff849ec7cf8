"""Others at work during a backup, and what ends it: nothing of that may leave a manifest."""
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import psycopg
from backup.zoo import backup, create, place, restored
from harness.hold import Hold
from harness.program import firn, start

ROWS = "INSERT INTO {0} SELECT i, repeat(md5(i::text), 8) FROM generate_series(1, {1}) i"


def sealed(path):
    return os.path.exists(os.path.join(path, "manifest.json"))


class Busy:
    """Work of others in the background, until the block ends."""

    def __init__(self, cluster, database, body):
        self.stop, self.error, self.rounds = False, None, 0
        self.thread = threading.Thread(target=self._work, args=(cluster, database, body), daemon=True)

    def _work(self, cluster, database, body):
        try:
            with cluster.connect(database) as c:
                while not self.stop:
                    body(c, self.rounds)
                    self.rounds += 1
        except psycopg.Error as e:
            self.error = e

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop = True
        self.thread.join(60)
        assert self.error is None, self.error


def consistency(cluster):
    """Money moves between two tables all the time; in every backup none is lost."""
    with cluster.connect() as c:
        create(c, "bank", "CREATE TABLE a (id int PRIMARY KEY, n bigint); CREATE TABLE b (id int PRIMARY KEY, n bigint);"
               "INSERT INTO a SELECT i, 100 FROM generate_series(1, 2000) i; INSERT INTO b TABLE a;"
               "CREATE TABLE filler (id int, t text); " + ROWS.format("filler", 20000), cluster)

    def move(c, n):
        with c.transaction():
            c.execute("UPDATE a SET n = n - %s WHERE id = %s", (n % 50, n % 2000 + 1))
            c.execute("UPDATE b SET n = n + %s WHERE id = %s", (n % 50, n * 7 % 2000 + 1))
            if n % 20 == 0:
                c.execute("INSERT INTO a VALUES (%s, 5)", (10000 + n,))
                c.execute("UPDATE b SET n = n - 5 WHERE id = 1")

    with Busy(cluster, "bank", move) as one, Busy(cluster, "bank", lambda c, n: move(c, n * 20 + 1)) as other:
        for n in range(6):
            path = backup(cluster, "bank", f"there{n}", "-j", 1 + n % 4)
        assert one.rounds > 20 and other.rounds > 20
    with cluster.connect() as c:
        for n in range(6):
            restored(cluster, c, os.path.join(cluster.root, f"there{n}"), "back")
            with cluster.connect("back") as d:
                total = d.execute("SELECT (SELECT sum(n) FROM a) + (SELECT sum(n) FROM b)").fetchone()[0]
                assert total == 400000, (n, total)
    assert path


def schema_changes(cluster):
    """Tables emptied, rewritten, renamed, dropped and altered all the time: a backup is consistent or starts again."""
    with cluster.connect() as c:
        create(c, "moving", "CREATE TABLE t (id int, v text); INSERT INTO t SELECT i, 'x' FROM generate_series(1, 500) i;"
               "CREATE TABLE filler (id int, t text); " + ROWS.format("filler", 5000), cluster)

    def change(c, n):
        with c.transaction():
            c.execute("TRUNCATE t")
            c.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 500) i")
        with c.transaction():
            c.execute("ALTER TABLE t RENAME TO gone")
            c.execute("CREATE TABLE t (id int, v text)")
            c.execute("INSERT INTO t TABLE gone")
            c.execute("DROP TABLE gone")
        c.execute("ALTER TABLE t ADD COLUMN more int DEFAULT random()")
        c.execute("ALTER TABLE t DROP COLUMN more")
        # Less and more than a backup needs from its snapshot to its locks, however fast the machine is.
        time.sleep(dice.uniform(0, 0.6))

    again, dice = 0, random.Random(13)
    with Busy(cluster, "moving", change):
        for n in range(8):
            r = firn(cluster, "backup", "moving", place(cluster, f"there{n}"), "-j", "2")
            again += "starting again with a new snapshot" in r.stderr
    print(f"     {again} of 8 backups needed another snapshot")
    with cluster.connect() as c:
        for n in range(8):
            restored(cluster, c, os.path.join(cluster.root, f"there{n}"), "back")
            with cluster.connect("back") as d:
                assert d.execute("SELECT count(*), sum(id) FROM t").fetchone() == (500, 125250)


def waiting_locks(cluster):
    """Somebody waits to alter a table that is still to be copied: the connection that has the lock copies it."""
    with cluster.connect() as c:
        create(c, "queued", "CREATE TABLE large (id int, t text); " + ROWS.format("large", 60000) +
               "; CREATE TABLE small AS SELECT i FROM generate_series(1, 100) i", cluster)
        # Slow enough that the ALTER comes in between: every row of the large table is made by a function.
        path = place(cluster, "there")
        p = start(cluster, "backup", "queued", path, "-j", "1", "-v", "-Z", "gzip:9")
        with cluster.connect("queued") as d, cluster.connect("queued") as look:
            end = time.time() + 30
            copying = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%COPY \"public\".\"large\"%' AND pid <> pg_backend_pid()"
            while not look.execute(copying).fetchone()[0]:
                assert time.time() < end and p.poll() is None, p.communicate()
                time.sleep(0.002)
            d.execute("SET lock_timeout = '60s'")
            waiter = threading.Thread(target=lambda: d.execute("ALTER TABLE small ADD COLUMN j int"))
            waiter.start()
            out, err = p.communicate(timeout=60)
            waiter.join(30)
            assert p.returncode == 0, err
            assert not waiter.is_alive()
        restored(cluster, c, path, "back")
    with cluster.connect("back") as d:
        assert d.execute("SELECT count(*) FROM small").fetchone()[0] == 100


def sized(cluster):
    """A database whose backup takes a while."""
    with cluster.connect() as c:
        if not c.execute("SELECT 1 FROM pg_database WHERE datname = 'sized'").fetchone():
            tables = ";".join(f"CREATE TABLE t{n} (id int, t text); " + ROWS.format(f"t{n}", 40000) for n in range(4))
            create(c, "sized", tables + "; DO $$ BEGIN FOR i IN 1..300 LOOP PERFORM lo_from_bytea(0, "
                   "decode(repeat(md5(i::text), 4000), 'hex')); END LOOP; END $$", cluster)


def kills(cluster):
    """kill -9 at any moment leaves no manifest, and the next backup may go over it."""
    sized(cluster)
    path = place(cluster, "there")
    whole = time.time()
    firn(cluster, "backup", "sized", path, "-j", "2")
    whole = time.time() - whole
    path = place(cluster, "there")
    dice, interrupted, tries = random.Random(4), 0, 0
    while interrupted < 15:
        tries += 1
        assert tries <= 300, f"only {interrupted} of {tries} were killed before they ended"
        begin = time.time()
        p = start(cluster, "backup", "sized", path, "-j", "2", "--overwrite-incomplete")
        wait = dice.uniform(0, whole * 0.95)
        try:
            p.communicate(timeout=wait)
            # It ended by itself: the machine is faster than it was when the time was taken.
            whole = min(whole, time.time() - begin)
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
        if sealed(path):
            firn(cluster, "backup", "verify", "-q", path)
            path = place(cluster, "there")
        else:
            interrupted += 1
            if os.path.exists(path):
                firn(cluster, "backup", "verify", path, code=3)
    quiet_again(cluster, "sized")
    firn(cluster, "backup", "sized", path, "--overwrite-incomplete")
    firn(cluster, "backup", "verify", path)


def quiet_again(cluster, database, seconds=10):
    """No connection of a backup is left."""
    with cluster.connect() as c:
        end = time.time() + seconds
        left = "SELECT application_name, query FROM pg_stat_activity WHERE datname = %s"
        while rows := c.execute(left, (database,)).fetchall():
            assert time.time() < end, rows
            time.sleep(0.05)


def interrupts(cluster):
    """Ctrl-C and terminate end it soon, with exit code 130, without a manifest, with nothing left on the server."""
    sized(cluster)
    dice = random.Random(7)
    for n in range(10):
        path = place(cluster, "there")
        p = start(cluster, "backup", "sized", path, "-j", "2", "-Z", "gzip:9")
        time.sleep(dice.uniform(0.05, 1.0))
        if p.poll() is not None:
            p.communicate()
            continue
        number = signal.SIGINT if n % 2 else signal.SIGTERM
        p.send_signal(number)
        _, err = p.communicate(timeout=30)
        # On a busy machine it may not have begun yet.
        if p.returncode == 0 or p.returncode == -number and not err:
            continue
        assert p.returncode == 130, (p.returncode, err)
        assert "stopped at the user's request" in err, err
        assert not sealed(path)
        quiet_again(cluster, "sized")


def server_death(cluster):
    """The server crashes, or a connection is ended, in the middle."""
    sized(cluster)
    dice = random.Random(11)
    for n in range(6):
        path = place(cluster, "there")
        p = start(cluster, "backup", "sized", path, "-j", "2", "-Z", "gzip:9")
        time.sleep(dice.uniform(0.2, 1.2))
        if n % 2:
            cluster.crash()
        else:
            with cluster.connect() as c:
                c.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'sized' ORDER BY random() LIMIT 1")
        _, err = p.communicate(timeout=60)
        if n % 2:
            cluster.start()
            cluster.wait_ready()
        if p.returncode == 0:
            firn(cluster, "backup", "verify", "-q", path)
            continue
        assert p.returncode == 1 and not sealed(path), (p.returncode, err)
        assert "firn: error: " in err, err


def full_disk(cluster):
    """A full disk is named as such, and leaves no manifest."""
    if os.getuid() != 0:
        return
    sized(cluster)
    folder = tempfile.mkdtemp(dir=cluster.root)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], check=True)
    try:
        path = os.path.join(folder, "there")
        r = firn(cluster, "backup", "sized", path, "-j", "2", code=1)
        assert "No space left on device" in r.stderr and "--overwrite-incomplete" in r.stderr, r.stderr
        assert not sealed(path)
        r = firn(cluster, "backup", "list", folder)
        assert "incomplete" in r.stdout, r.stdout
        # Not a byte is left: nothing that says whose the place is gets lost.
        for n in range(2):
            with contextlib.suppress(OSError), open(os.path.join(folder, "filler"), "ab", buffering=0) as f:
                while True:
                    f.write(bytes(1 << 10))
            r = firn(cluster, "backup", "sized", path, "--overwrite-incomplete", code=1)
            assert "No space left on device" in r.stderr and "Make room" in r.stderr, r.stderr
        assert "expired.json" not in os.listdir(path)
        firn(cluster, "backup", "sized", path + "-new", code=1)
        assert not os.listdir(path + "-new")
        shutil.copytree(path, path + "-copy", copy_function=os.link)
        subprocess.run(["mount", "-o", "remount,size=200m", folder], check=True)
        firn(cluster, "backup", "sized", path, "--overwrite-incomplete")
        firn(cluster, "backup", "verify", path)
        # Room is made by removing.
        with contextlib.suppress(OSError), open(os.path.join(folder, "filler"), "ab", buffering=0) as f:
            while True:
                f.write(bytes(1 << 16))
        later = Hold(cluster, "nothing:", ahead=2 * 86400)
        r = firn(cluster, "backup", "expire", folder, "--keep=1", "--incomplete-hours=24", env=later.env)
        assert os.path.exists(path) and not os.path.exists(path + "-copy"), r.stdout
    finally:
        subprocess.run(["umount", folder], check=True)


def memory(cluster):
    """Three tables of 400 MB in less than 64 MB of memory; rows of 20 MB take a few times their size more."""
    with cluster.connect() as c:
        tables = ";".join(
            f"CREATE TABLE t{n} (id int, t text); ALTER TABLE t{n} ALTER t SET STORAGE EXTERNAL;"
            f"INSERT INTO t{n} SELECT i, repeat(md5(i::text), {each}) FROM generate_series(1, {rows}) i"
            for n, (rows, each) in enumerate(((26000, 500), (26000, 500), (26000, 500), (12, 650000))))
        create(c, "huge", tables, cluster)
        for what, least, most in ((["-T", "t3"], 1200 << 20, 64 << 20), (["-t", "t3"], 240 << 20, 256 << 20)):
            path = place(cluster, "there")
            p = start(cluster, "backup", "huge", path, "-j", "4", "-Z", "gzip:1", *what)
            peak = peak_memory(p)
            _, err = p.communicate()
            assert p.returncode == 0, err
            with open(os.path.join(path, "manifest.json")) as f:
                data = sum(f["table"]["bytes"] for f in json.load(f)["files"] if "table" in f)
            print(f"     {data >> 20} MB of data, {peak >> 20} MB of memory")
            assert data > least * 0.95 and peak < most, (data, peak)
        c.execute("DROP DATABASE huge")


def peak_memory(p):
    """The largest resident set of a process, in bytes."""
    peak = 0
    while p.poll() is None:
        try:
            with open(f"/proc/{p.pid}/status") as f:
                peak = max([peak] + [int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM")])
        except FileNotFoundError:
            break
        time.sleep(0.02)
    return peak
