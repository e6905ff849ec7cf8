"""Backups in an object store, also in one that fails now and then."""
import json
import os
import random
import signal
import threading
import time

from backup.trouble import peak_memory, sized
from backup.zoo import create, restored, same
from harness.program import firn, start
from harness.store import KEY, SECRET, Gateway, Proxy

CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}


class Store:
    """A bucket, what reaches it, and its folder."""

    def __init__(self, cluster):
        self.folder = os.path.join(cluster.root, "s3")
        self.gateway = Gateway(self.folder)
        self.n = 0

    def __enter__(self):
        self.gateway.__enter__()
        self.proxy = Proxy(self.gateway.port)
        self.env = {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}"}
        return self

    def __exit__(self, *_):
        self.proxy.close()
        self.gateway.__exit__()

    def new(self):
        """A URL where nothing is, and the folder behind it."""
        self.n += 1
        return f"s3://bucket/some/where-{self.n}", os.path.join(self.folder, "bucket", "some", f"where-{self.n}")

    def uploads(self):
        """The files of uploads in parts that are not finished."""
        found = os.path.join(self.folder, "bucket", ".sgwtmp", "multipart")
        return {os.path.join(path, n) for path, _, names in os.walk(found) for n in names}


def round_trip(cluster, store):
    url, folder = store.new()
    firn(cluster, "backup", "zoo", url, "-j", "3", env=store.env)
    firn(cluster, "backup", "verify", url, env=store.env)
    with cluster.connect() as c:
        restored(cluster, c, folder, "back")
    same(cluster, "zoo", "back")
    r = firn(cluster, "backup", "list", "s3://bucket/", "--json", env=store.env)
    found = [json.loads(line) for line in r.stdout.splitlines()]
    assert [b["state"] for b in found if url.endswith(b["name"])] == ["complete"], found
    r = firn(cluster, "backup", "zoo", url, env=store.env, code=2)
    assert "holds a complete backup" in r.stderr
    # Damage.
    name = max((n for n in os.listdir(folder) if ".dat" in n), key=lambda n: os.path.getsize(os.path.join(folder, n)))
    with open(os.path.join(folder, name), "r+b") as f:
        f.seek(50)
        f.write(b"XXXX")
    r = firn(cluster, "backup", "verify", url, env=store.env, code=3)
    assert f'"{name}": the file\'s bytes do not have the SHA-256' in r.stdout, r.stdout


def large(cluster, store):
    """A table in many parts, with bounded memory."""
    with cluster.connect() as c:
        create(c, "parts", "CREATE TABLE t (id int, t text); ALTER TABLE t ALTER t SET STORAGE EXTERNAL;"
               "INSERT INTO t SELECT i, repeat(md5(i::text), 300) FROM generate_series(1, 30000) i", cluster)
        url, folder = store.new()
        p = start(cluster, "backup", "parts", url, "-j", "2", "-Z", "none", env=store.env)
        peak = peak_memory(p)
        _, err = p.communicate()
        assert p.returncode == 0, err
        print(f"     {peak >> 20} MB of memory")
        assert peak < 200 << 20, peak
        firn(cluster, "backup", "verify", url, env=store.env)
        restored(cluster, c, folder, "back")
        same(cluster, "parts", "back")
    assert not store.uploads(), store.uploads()


def interrupted_connections(cluster, store):
    """Connections to the store break again and again: the backup ends well all the same."""
    stop = threading.Event()

    def trouble():
        while not stop.wait(0.15):
            store.proxy.refuse = True
            time.sleep(0.05)
            store.proxy.refuse = False

    thread = threading.Thread(target=trouble)
    thread.start()
    try:
        url, folder = store.new()
        firn(cluster, "backup", "zoo", url, "-j", "2", env=store.env)
    finally:
        stop.set()
        thread.join()
    firn(cluster, "backup", "verify", url, env=store.env)
    with cluster.connect() as c:
        restored(cluster, c, folder, "back")
    same(cluster, "zoo", "back")


def unreachable(cluster, store):
    """A store that stays away, refuses, or hangs; and Ctrl-C then."""
    url, _ = store.new()
    r = firn(cluster, "backup", "zoo", url, env={**store.env, "AWS_SECRET_ACCESS_KEY": "wrong"}, code=1)
    assert "AWS_ACCESS_KEY_ID" in r.stderr and "wrong" not in r.stderr, r.stderr
    r = firn(cluster, "backup", "zoo", "s3://no-such-bucket/x", env=store.env, code=1)
    assert "no-such-bucket" in r.stderr, r.stderr
    sized(cluster)
    url, folder = store.new()
    p = start(cluster, "backup", "sized", url, "-j", "2", "-Z", "none", env=store.env)
    time.sleep(0.6)
    store.proxy.rate = 0
    try:
        time.sleep(0.5)
        p.send_signal(signal.SIGINT)
        asked = time.time()
        _, err = p.communicate(timeout=40)
        # Giving uploads up is tried for a while.
        assert p.returncode in (0, 130), (p.returncode, err)
        assert time.time() - asked < 30
    finally:
        store.proxy.rate = None
    assert not os.path.exists(os.path.join(folder, "manifest.json")) or p.returncode == 0


def kills(cluster, store):
    """kill -9 leaves no manifest; Ctrl-C also no unfinished uploads."""
    sized(cluster)
    url, folder = store.new()
    dice = random.Random(5)
    for n in range(8):
        p = start(cluster, "backup", "sized", url, "-j", "2", "-Z", "none", "--overwrite-incomplete", env=store.env)
        time.sleep(dice.uniform(0.1, 1.2))
        p.kill()
        p.communicate()
        if os.path.exists(os.path.join(folder, "manifest.json")):
            firn(cluster, "backup", "verify", "-q", url, env=store.env)
            url, folder = store.new()
        elif n == 0 and os.path.exists(folder):
            firn(cluster, "backup", "verify", url, env=store.env, code=3)
    firn(cluster, "backup", "sized", url, "--overwrite-incomplete", env=store.env)
    firn(cluster, "backup", "verify", url, env=store.env)
    before = store.uploads()
    for n in range(4):
        url, folder = store.new()
        p = start(cluster, "backup", "sized", url, "-j", "2", "-Z", "none", env=store.env)
        time.sleep(dice.uniform(0.3, 1.0))
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=40)
        sealed = os.path.exists(os.path.join(folder, "manifest.json"))
        assert sealed == (p.returncode == 0), p.returncode
    assert not store.uploads() - before, store.uploads() - before


def many(cluster, store):
    """Many small tables: requests go side by side."""
    with cluster.connect() as c:
        tables = ";".join(f"CREATE TABLE t{n} AS SELECT {n} AS n" for n in range(400))
        create(c, "many", tables, cluster)
        url, folder = store.new()
        firn(cluster, "backup", "many", url, "-j", "2", env=store.env)
        firn(cluster, "backup", "verify", url, "-j", "4", env=store.env)
        restored(cluster, c, folder, "back")
        same(cluster, "many", "back")


CASES = {"round trip": round_trip, "parts": large, "broken connections": interrupted_connections,
         "unreachable": unreachable, "kills": kills, "many tables": many}
