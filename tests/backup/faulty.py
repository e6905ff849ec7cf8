"""Backups to and restores from an object store that fails now and then: the result is equal, or there is an error.

FIRN_FAULTS sets how many rounds of each kind (default 1); FIRN_FAULT_SEED repeats a run.
"""
import json
import os
import random
import re
import signal
import subprocess
import time

from backup.stores import CREDENTIALS
from backup.zoo import create, same
from harness.faults import DAMAGE, PASSING, Faults
from harness.program import Failed, firn, start, tool
from harness.store import Proxy

PANIC = re.compile(r"panicked at|RUST_BACKTRACE|stack overflow")
# Parts of requests that go wrong: seldom, often, and so often that hardly anything gets through.
CHANCES = (0.05, 0.25, 0.6)
# A restore that failed is resumed so often with faults before the store is well again.
RESUMED = 4


def rounds():
    """Numbers of rounds with a seed for each; the seeds are printed, to be had again by FIRN_FAULT_SEED."""
    count = int(os.environ.get("FIRN_FAULTS", "1"))
    seed = int(os.environ.get("FIRN_FAULT_SEED") or random.SystemRandom().randrange(1 << 32))
    for n in range(count):
        yield n, seed + n


def through(proxy, retries=6):
    return {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
            "FIRN_STORE_OPTIONS": f"max_retries={retries}"}


def attempt(cluster, proxy, *args):
    """Run it; it ends well, or with an error and code 1. Returns whether it ended well, and what it said."""
    p = start(cluster, *args, env=through(proxy, 2 if proxy.after is not None else 6))
    try:
        out, err = p.communicate(timeout=300)
    except subprocess.TimeoutExpired as e:
        p.kill()
        raise Failed(f"firn {args} does not end: {p.communicate()[1]}") from e
    assert not PANIC.search(err), err
    if p.returncode != 0:
        assert p.returncode == 1 and re.search("^(firn: )?(error|ERROR):", err, re.M), (p.returncode, err)
    return p.returncode == 0, out + err


def source(cluster):
    """A database with an object of several parts, and many small ones."""
    with cluster.connect() as c:
        if not c.execute("SELECT 1 FROM pg_database WHERE datname = 'faulty'").fetchone():
            create(c, "faulty", "CREATE TABLE parts (id int PRIMARY KEY, t text);"
                   "INSERT INTO parts SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, 20000) i;"
                   "CREATE INDEX ON parts (left(t, 20))", cluster, "TEMPLATE few")


def told(proxy, seed, chance, what):
    faults = ", ".join(f"{n} {kind}" for kind, n in sorted(proxy.counts.items()))
    print(f"     seed {seed}, {chance:.0%} of {proxy.requests} requests ({faults or 'no faults'}): {what}", flush=True)


def explained(seed, body):
    try:
        return body()
    except BaseException:
        print(f"     FIRN_FAULT_SEED={seed} FIRN_FAULTS=1 shows it again", flush=True)
        raise


def backups(cluster, store):
    """A backup that says that it succeeded is whole; one that does not is never taken for one, and can be made again."""
    source(cluster)
    for _, seed in rounds():
        for chance in CHANCES:
            explained(seed, lambda: one_backup(cluster, store, seed, chance))


def one_backup(cluster, store, seed, chance):
    url, folder = store.new()
    with Faults(store.gateway.port, seed, chance) as proxy:
        well, said = attempt(cluster, proxy, "backup", "faulty", url, "-j", "2", "-Z", "none", "--overwrite-incomplete")
        told(proxy, seed, chance, "backed up" if well else said.split("rror:", 1)[1].split("\n")[0].strip()[:110])
        if not well:
            not_a_backup(cluster, store, url, folder)
            if not os.path.exists(os.path.join(folder, "manifest.json")):
                proxy.revive(chance / 10)
                firn(cluster, "backup", "faulty", url, "-j", "2", "-Z", "none", "--overwrite-incomplete", env=through(proxy))
    equal(cluster, store, url)


def equal(cluster, store, url):
    """The backup is whole, and has just what the database has."""
    firn(cluster, "backup", "verify", "-q", url, "-d", "faulty", "--checksums", env=store.env)


def not_a_backup(cluster, store, url, folder):
    """What a failed run left is refused; unless all was done and only the last answer was lost."""
    if os.path.exists(os.path.join(folder, "manifest.json")):
        equal(cluster, store, url)
        return
    listed = firn(cluster, "backup", "list", "--json", url, env=store.env).stdout.splitlines()
    assert [json.loads(line)["state"] for line in listed] in ([], ["incomplete"]), listed
    firn(cluster, "backup", "verify", "-q", url, env=store.env, code=3)
    with cluster.connect() as c:
        empty(c)
    firn(cluster, "restore", "-q", "-d", "back", url, env=store.env, code=1)
    with cluster.connect("back") as c:
        assert not c.execute("SELECT 1 FROM pg_class WHERE oid >= 16384 LIMIT 1").fetchone()


def empty(c, name="back"):
    c.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    c.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')


def archives(cluster, store):
    """The same in all ways that it can lie in a store: a backup, and what pg_dump makes in both formats."""
    source(cluster)
    if not os.path.exists(os.path.join(store.folder, "bucket", "faulty")):
        firn(cluster, "backup", "faulty", "s3://bucket/faulty/ours", "-Z", "gzip:1", env=store.env)
        base = os.path.join(store.folder, "bucket", "faulty")
        tool(cluster, "pg_dump", "-Fd", "-Z1", "-f", os.path.join(base, "theirs"), "faulty")
        tool(cluster, "pg_dump", "-Fc", "-Z1", "-f", os.path.join(base, "custom.dump"), "faulty")
    return ("ours", "theirs", "custom.dump")


def restores(cluster, store):
    """A restore that says that it succeeded is whole; one that does not goes on with --resume to the same result."""
    for n, seed in rounds():
        dice = random.Random(seed)
        for which, name in enumerate(archives(cluster, store)):
            chance = dice.choice(CHANCES)
            # Only a manifest knows each byte.
            kinds = PASSING + DAMAGE if name == "ours" and chance < 0.5 else PASSING
            explained(seed, lambda: one_restore(cluster, store, name, seed + 1000 * which, chance, kinds))


def one_restore(cluster, store, name, seed, chance, kinds=PASSING, after=None):
    """False if the store was to go, and the restore had read all that it needed by then."""
    with cluster.connect() as c:
        empty(c)
    url = f"s3://bucket/faulty/{name}"
    with Faults(store.gateway.port, seed, chance, kinds, after) as proxy:
        command = ("restore", "-d", "back", url, "-j", "2")
        well, said = attempt(cluster, proxy, *command)
        runs = 1
        if well and after:
            return False
        while not well:
            if runs >= RESUMED or after is not None:
                proxy.revive()
            well, said = attempt(cluster, proxy, *command, "--resume")
            assert well or runs < RESUMED, said
            runs += 1
        told(proxy, seed, chance, f"{name} restored in {runs} runs")
    same(cluster, "faulty", "back")
    return True


def gone_for_good(cluster, store):
    """The store goes away in the middle of a restore and stays away: an error, and --resume when it is back."""
    for n, seed in rounds():
        dice = random.Random(seed)
        for name in archives(cluster, store):
            after = dice.randrange(1, 20)
            # How many requests it takes depends on how much is read ahead at a time. None does with one.
            while not explained(seed, lambda: one_restore(cluster, store, name, seed, 0.0, after=after)):
                after //= 2
                assert after, "the store was not needed"
        with Faults(store.gateway.port, seed, 0.0, after=dice.randrange(1, 20)) as proxy:
            # That is nothing wrong with the backup.
            well, said = attempt(cluster, proxy, "backup", "verify", "s3://bucket/faulty/ours")
            assert not well and "problem" not in said, said


def gone_while_backing_up(cluster, store):
    """The same the other way: no backup; and with --overwrite-incomplete one when the store is back."""
    source(cluster)
    for n, seed in rounds():
        dice = random.Random(seed)
        with Faults(store.gateway.port, seed, 0.0) as proxy:
            url, _ = store.new()
            firn(cluster, "backup", "faulty", url, "-j", "2", "-Z", "none", env=through(proxy))
            whole = proxy.requests
        for after in (dice.randrange(whole), whole - dice.randrange(1, 5)):
            explained(seed, lambda: gone_in_backup(cluster, store, seed, after))


def gone_in_backup(cluster, store, seed, after):
    url, folder = store.new()
    with Faults(store.gateway.port, seed, 0.0, after=after) as proxy:
        well, said = attempt(cluster, proxy, "backup", "faulty", url, "-j", "2", "-Z", "none")
        told(proxy, seed, 0, "backed up" if well else "failed")
        sealed = os.path.exists(os.path.join(folder, "manifest.json"))
        assert sealed or not well
        if not sealed:
            not_a_backup(cluster, store, url, folder)
            proxy.revive()
            firn(cluster, "backup", "faulty", url, "-j", "2", "-Z", "none", "--overwrite-incomplete", env=through(proxy))
    equal(cluster, store, url)


def halves(cluster, store):
    """Objects of which the store has only a part: told, and a restore that met one goes on when it is whole again."""
    names = archives(cluster, store)
    base = os.path.join(store.folder, "bucket", "faulty")
    for name in names:
        folder = os.path.join(base, name)
        whole = [folder] if os.path.isfile(folder) else [os.path.join(folder, n) for n in os.listdir(folder) if n[0].isdigit()]
        path = max(whole, key=os.path.getsize)
        with open(path, "rb") as f:
            content = f.read()
        url = f"s3://bucket/faulty/{name}"
        os.truncate(path, len(content) // 2)
        try:
            if name == "ours":
                r = firn(cluster, "backup", "verify", url, env=store.env, code=3)
                assert f"the file has {len(content) // 2} bytes instead of {len(content)}" in r.stdout, r.stdout
            with cluster.connect() as c:
                empty(c)
            r = firn(cluster, "restore", "-d", "back", url, env=store.env, code=1)
            assert "--resume" in r.stderr or name == "custom.dump", r.stderr
        finally:
            with open(path, "wb") as f:
                f.write(content)
        firn(cluster, "restore", "-d", "back", url, "--resume", env=store.env)
        same(cluster, "faulty", "back")


def listings(cluster, store):
    """Listings of several pages that break off: never a part of an archive for all of it."""
    with cluster.connect() as c:
        create(c, "objects", "DO $$ BEGIN FOR i IN 1..1050 LOOP PERFORM lo_from_bytea(0, decode(md5(i::text), 'hex'));"
               " END LOOP; END $$; CREATE TABLE t AS SELECT 1 AS x", cluster)
        base = os.path.join(store.folder, "bucket", "objects")
        os.makedirs(base)
        tool(cluster, "pg_dump", "-Fd", "-Z0", "-f", os.path.join(base, "theirs"), "objects")
        firn(cluster, "backup", "objects", "s3://bucket/objects/ours", "-Z", "none", env=store.env)
        for n, seed in rounds():
            with Faults(store.gateway.port, seed, 0.3, only=b"list-type=") as proxy:
                for name in ("theirs", "ours"):
                    command = ("-d", "back", f"s3://bucket/objects/{name}", "-j", "2")
                    empty(c)
                    well, said = attempt(cluster, proxy, "restore", *command)
                    if not well:
                        proxy.chance = 0
                        firn(cluster, "restore", *command, "--resume", env=through(proxy))
                        proxy.chance = 0.3
                    same(cluster, "objects", "back")
                # Nothing takes these up again: they must get through.
                often = through(proxy, 40)
                firn(cluster, "backup", "objects", "s3://bucket/objects/ours", env=often, code=2)
                r = firn(cluster, "backup", "list", "s3://bucket/objects", env=often)
                assert r.stdout.count(" complete") == 1 and "no manifest" in r.stdout, r.stdout
                firn(cluster, "backup", "verify", "-q", "s3://bucket/objects/ours", env=often)
                told(proxy, seed, 0.3, "listed")


def hanging(cluster, store):
    """Ctrl-C ends a restore from a store that says nothing, soon; --resume goes on."""
    url = "s3://bucket/faulty/" + archives(cluster, store)[0]
    for wait in (0.0, 0.4):
        with cluster.connect() as c:
            empty(c)
        with Proxy(store.gateway.port) as proxy:
            proxy.rate = 0 if wait == 0 else 400_000
            p = start(cluster, "restore", "-d", "back", url, "-j", "2", env=through(proxy))
            time.sleep(wait + 0.5)
            proxy.rate = 0
            time.sleep(0.3)
            assert p.poll() is None, p.communicate()
            p.send_signal(signal.SIGINT)
            asked = time.time()
            _, err = p.communicate(timeout=30)
            assert p.returncode == 130 and time.time() - asked < 3, (p.returncode, time.time() - asked, err)
        firn(cluster, "restore", "-d", "back", url, "--resume", env=store.env)
        same(cluster, "faulty", "back")


def two_at_once(cluster, store):
    """A backup whose files another run with --overwrite-incomplete removed does not end as one."""
    source(cluster)
    url, folder = store.new()
    for place in (url, folder + "-local"):
        if place != url:
            os.makedirs(os.path.dirname(place), exist_ok=True)
        with cluster.connect("faulty") as c, c.transaction():
            # It cannot end before this does.
            c.execute("LOCK TABLE parts IN ACCESS EXCLUSIVE MODE")
            p = start(cluster, "backup", "faulty", place, "-j", "2", env=store.env)
            end = time.time() + 30
            while not os.path.exists(os.path.join(folder if place == url else place, "unfinished.json")):
                assert time.time() < end and p.poll() is None, p.communicate()
                time.sleep(0.01)
            other = start(cluster, "backup", "few", place, "-j", "2", "--overwrite-incomplete", env=store.env)
            _, err = other.communicate(timeout=60)
            assert other.returncode == 0, err
        _, err = p.communicate(timeout=60)
        assert p.returncode == 1, (p.returncode, err)
        # It may have left something there; the other is whole all the same.
        r = problems(cluster, store, place)
        assert all(line.endswith("the file does not belong to the backup") for line in r), r
        with cluster.connect() as c:
            empty(c)
        firn(cluster, "restore", "-d", "back", place, env=store.env)
        same(cluster, "few", "back")


def problems(cluster, store, place):
    """What verify finds wrong."""
    p = start(cluster, "backup", "verify", "-q", place, env=store.env)
    out, err = p.communicate(timeout=60)
    assert p.returncode in (0, 3), err
    return out.splitlines()


CASES = {"fails now and then, backup": backups, "fails now and then, restore": restores, "gone in a restore": gone_for_good,
         "gone in a backup": gone_while_backing_up, "half objects": halves, "listings": listings, "hanging": hanging,
         "two at once": two_at_once}
