"""`firn backup expire`: what rules keep stays whole, what they do not keep goes, and nothing between the two is left by a crash, a
store that fails, or others at work."""
import hashlib
import json
import os
import random
import re
import shutil
import signal
import threading
import time

from backup.zoo import create, place
from restore.common import pg18
from harness.faults import Faults, Ruled, is_about
from harness.program import firn, start

SMALL = "CREATE TABLE t (i int, t text); INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 50) i; CREATE TABLE u (i int)"
DAY = 86400


def source(cluster):
    with cluster.connect() as c:
        for name in ("small", "other"):
            create(c, name, SMALL, cluster)


def dated(path, days_ago, hours=0):
    """Makes a backup older than it is: by its manifest, whose checksum is made anew, or its marker."""
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - days_ago * DAY - hours * 3600))
    name = os.path.join(path, "manifest.json")
    if not os.path.exists(name):
        name = os.path.join(path, "unfinished.json")
        with open(name) as f:
            marker = json.load(f)
        with open(name, "w") as f:
            json.dump({**marker, "started": text}, f)
        return
    for what in ("snapshot_time", "finished"):
        stated(path, f'"{what}": "[^"]*"', f'"{what}": "{text}"')


def stated(path, what, text):
    """Changes what a manifest says."""
    name = os.path.join(path, "manifest.json")
    with open(name) as f:
        content, n = re.subn(what, text, f.read())
    assert n == 1, (what, n)
    covered = content[:content.rindex('"sha256": "')]
    with open(name, "w") as f:
        f.write(covered + f'"sha256": "{hashlib.sha256(covered.encode()).hexdigest()}"\n}}\n')


def some(cluster, name, ages, *flags):
    """A folder of backups of so many days ago."""
    parent = place(cluster, name)
    os.mkdir(parent)
    first = None
    for age in ages:
        path = os.path.join(parent, f"d{age:03}")
        if first is None:
            firn(cluster, "backup", "small", path, "-j", "1", *flags)
            first = path
        else:
            shutil.copytree(first, path)
        dated(path, age, hours=1)
    return parent


def names(parent):
    return sorted(os.listdir(parent))


def expire(cluster, parent, *flags, code=0, **kw):
    return firn(cluster, "backup", "expire", parent, *flags, code=code, **kw)


def states(cluster, parent, **kw):
    r = firn(cluster, "backup", "list", "--json", parent, **kw)
    return {b["name"]: b["state"] for b in map(json.loads, r.stdout.splitlines())}


def rules(cluster):
    source(cluster)
    ages = [0, 1, 2, 3, 10, 40, 41, 80]
    for flags, kept in (
            (["--keep=2"], [0, 1]), (["--keep-days=3"], [0, 1, 2]), (["--older-than=11"], [0, 1, 2, 3, 10]),
            (["--keep=1", "--keep-days=11"], [0, 1, 2, 3, 10]), (["--keep=100"], ages), (["--keep-daily=3"], [0, 1, 2])):
        parent = some(cluster, "ages", ages)
        before = names(parent)
        r = expire(cluster, parent, *flags, "--dry-run")
        assert names(parent) == before and r.stdout.count("would remove") == len(ages) - len(kept), r.stdout
        r = expire(cluster, parent, *flags, "--log-format=json")
        told = {line["name"]: line["fate"] for line in map(json.loads, r.stdout.splitlines())}
        assert names(parent) == [f"d{age:03}" for age in kept], (flags, names(parent))
        assert told == {f"d{age:03}": "kept" if age in kept else "removed" for age in ages}
        for name in names(parent):
            firn(cluster, "backup", "verify", "-q", os.path.join(parent, name))
        assert expire(cluster, parent, *flags).stdout.count("keep ") == len(kept)
    # All are too old: the latest stays. One in each of the last months.
    parent = some(cluster, "ages", [30, 50, 90])
    expire(cluster, parent, "--keep-days=7")
    assert names(parent) == ["d030"]
    parent = some(cluster, "ages", [0, 35, 70, 105])
    expire(cluster, parent, "--keep-monthly=3")
    assert names(parent) == ["d000", "d035", "d070"]
    # Each database is for itself, and so is each cluster.
    firn(cluster, "backup", "other", os.path.join(parent, "deep"), "-j", "1")
    dated(os.path.join(parent, "deep"), 99)
    expire(cluster, parent, "--keep=1")
    assert names(parent) == ["d000", "deep"]
    for flags in ([], ["--keep=0"], ["--keep=x"], ["--keep-days=-1"]):
        r = expire(cluster, parent, *flags, code=2)
        assert "HINT:" in r.stderr, r.stderr
    assert expire(cluster, place(cluster, "nowhere"), "--keep=1", code=1).stderr


def left_alone(cluster):
    """What is no whole backup of ours is not touched, nor counted."""
    source(cluster)
    parent = some(cluster, "ages", [1, 2, 3, 4, 5, 6, 7, 8])

    def path(name, *more):
        return os.path.join(parent, name, *more)

    # The latest lacks a file: the one before counts as the latest.
    victim = max(n for n in os.listdir(path("d001")) if ".dat" in n and n != "toc.dat")
    os.remove(path("d001", victim))
    with open(path("d002", "manifest.json"), "a") as f:
        f.write(" ")
    with open(path("d004", "letter.odt"), "w") as f:
        f.write("x")
    os.remove(path("d005", "manifest.json"))
    shutil.copytree(path("d007"), path("d006", "inner"))
    for name, hours in (("young", 5), ("old", 30)):
        shutil.copytree(path("d007"), path(name))
        os.remove(path(name, "manifest.json"))
        with open(path(name, "unfinished.json"), "w") as f:
            json.dump({"database": "small", "started": "", "firn_version": "0"}, f)
        dated(path(name), 0, hours)
    os.mkdir(path("photos"))
    with open(path("photos", "1.jpg"), "w") as f:
        f.write("x")
    os.symlink(path("d007"), path("link"))
    before = {n: names(path(n)) for n in names(parent)}
    listed = states(cluster, parent)
    assert (listed["d001"], listed["d002"], listed["d003"]) == ("damaged", "damaged", "complete"), listed
    assert "damaged: a file is missing" in firn(cluster, "backup", "list", parent).stdout
    r = expire(cluster, parent, "--keep=1")
    for name in ("d001", "d002", "d003", "d004", "d005", "young", "old", "photos"):
        assert names(path(name)) == before[name], (name, r.stdout)
    assert not os.path.exists(path("d007")) and not os.path.exists(path("d008")) and os.path.islink(path("link"))
    # What lies within another is a backup of its own.
    # Both go, and leave at most an empty folder.
    assert not os.path.exists(path("d006")) or names(path("d006")) == []
    for name, text in (("d001", "missing or has another size"), ("d002", "damaged"), ("d003", "the latest"), ("d004", "letter.odt"),
                       ("d005", "no manifest"), ("young", "not finished"), ("old", "not finished")):
        line = next(line for line in r.stdout.splitlines() if re.match(rf"\w+ {name} ", line))
        assert text in line, line
    expire(cluster, parent, "--keep=1", "--incomplete-hours=24")
    assert os.path.exists(path("young")) and not os.path.exists(path("old"))


def kills(cluster):
    """Killed at any moment: what is there is whole or no backup, and the next run finishes it."""
    source(cluster)
    dice, partly = random.Random(3), 0
    for _ in range(12):
        parent = some(cluster, "ages", range(12))
        for n in range(1, 12):
            for extra in range(40):
                name = os.path.join(parent, f"d{n:03}", f"blob_{extra}.dat")
                with open(name, "w") as f:
                    f.write("x")
        p = start(cluster, "backup", "expire", parent, "--keep=2")
        time.sleep(dice.uniform(0, 0.08))
        p.kill()
        p.communicate()
        for name, state in states(cluster, parent).items():
            path = os.path.join(parent, name)
            assert state in ("complete", "expired"), (name, state, os.listdir(path))
            if state == "complete":
                r = start(cluster, "backup", "verify", "-q", path)
                out, _ = r.communicate()
                # Only that there are files besides.
                assert all("does not belong" in line for line in out.splitlines()), out
            else:
                partly += 1
                firn(cluster, "backup", "verify", "-q", path, code=3)
                r = start(cluster, "restore", "--list", path)
                _, err = r.communicate()
                assert r.returncode != 0, err
        expire(cluster, parent, "--keep=2")
        # A folder can go only when it is empty, and then nothing says that it was a backup.
        assert [name for name in names(parent) if os.listdir(os.path.join(parent, name))] == ["d000", "d001"], names(parent)
    print(f"     {partly} half removed backups were found and finished")


def halfway(cluster):
    """Each state that a crash may leave, one by one."""
    source(cluster)
    steps = [["expired.json"], ["manifest.json"], ["toc.dat"]]
    for n in range(4):
        parent = some(cluster, "ages", [1, 2, 3])
        victim = os.path.join(parent, "d003")
        with open(os.path.join(victim, "expired.json"), "w") as f:
            f.write("{}\n")
        for step in steps[1:1 + n]:
            os.remove(os.path.join(victim, step[0]))
        if n == 3:
            for name in os.listdir(victim):
                if name != "expired.json":
                    os.remove(os.path.join(victim, name))
        state = states(cluster, parent)["d003"]
        assert state == ("complete" if n == 0 else "expired"), (n, state)
        firn(cluster, "backup", "verify", "-q", victim, code=0 if n == 0 else 3)
        if n == 1:
            r = firn(cluster, "restore", "-d", "postgres", victim, code=1)
            assert "is being removed" in r.stderr, r.stderr
        if n == 0:
            # It is whole: rules decide anew.
            expire(cluster, parent, "--keep=3")
            assert os.path.exists(victim)
            for name in ("d001", "d002"):
                shutil.rmtree(os.path.join(parent, name))
            expire(cluster, parent, "--keep-days=1")
            firn(cluster, "backup", "verify", "-q", victim)
            continue
        expire(cluster, parent, "--keep=3")
        assert names(parent) == ["d001", "d002"], (n, names(parent))


def two_at_once(cluster):
    """Several at the same time, and a backup made by what is being removed."""
    source(cluster)
    for n in range(6):
        parent = some(cluster, "ages", range(1, 9))
        runs = [start(cluster, "backup", "expire", parent, f"--keep={k}") for k in (1, 1, 2)]
        made = start(cluster, "backup", "--incremental", "small", os.path.join(parent, "new"))
        for p in [*runs, made]:
            out, err = p.communicate(timeout=60)
            assert p.returncode == 0, (n, out, err)
        assert set(names(parent)) <= {"d001", "d002", "new"} and {"new"} <= set(names(parent)), names(parent)
        for name in names(parent):
            firn(cluster, "backup", "verify", "-q", os.path.join(parent, name))


def selections(cluster):
    """Parts of a database are no later state of the whole; a clock that was wrong makes nothing the latest; notes of removals that
    were not begun go."""
    source(cluster)
    parent = place(cluster, "selections")
    os.mkdir(parent)
    for name, age, flags in (("full-a", 20, []), ("full-b", 10, ["--lock-wait-timeout=1000"]), ("t-a", 3, ["-t", "t"]), ("t-b", 2, ["-t", "t"]),
                             ("tu", 1, ["-t", "u", "-t", "t"]), ("ut", 0, ["-t", "t", "-t", "u"]), ("schema", 0, ["-s"])):
        firn(cluster, "backup", "small", os.path.join(parent, name), "-j", "1", *flags)
        dated(os.path.join(parent, name), age, hours=1)
    shutil.copytree(os.path.join(parent, "full-b"), os.path.join(parent, "future"))
    dated(os.path.join(parent, "future"), -400)
    for name in ("full-b", "full-a", "ut"):
        with open(os.path.join(parent, name, "expired.json"), "w") as f:
            f.write('{"database": "small", "started": "2020-01-01T00:00:00Z", "firn_version": "0", "run": "0"}\n' if name == "full-a" else "")
    r = expire(cluster, parent, "--keep=1")
    assert names(parent) == ["full-b", "future", "schema", "t-b", "ut"], (names(parent), r.stdout)
    assert "keep t-b (small --table=t, " in r.stdout and "its time is in the future" in r.stdout, r.stdout
    assert not os.path.exists(os.path.join(parent, "full-b", "expired.json"))
    # It was finished just now; whoever was about to remove it may be.
    assert os.path.exists(os.path.join(parent, "ut", "expired.json"))
    firn(cluster, "backup", "verify", "-q", os.path.join(parent, "ut"))


def filters(cluster):
    """What stands in files of --filter is read once, from wherever it comes, and by that such backups are counted."""
    if not pg18():
        return print("     no pg_dump that knows --filter")
    source(cluster)
    parent = place(cluster, "filters")
    os.mkdir(parent)
    dump = ["--pg-dump", os.path.join(pg18(), "bin", "pg_dump")]
    env = {"LD_LIBRARY_PATH": os.path.join(pg18(), "lib")}

    def path(name):
        return os.path.join(parent, name)

    def made(name, age, flag, tables, **kw):
        firn(cluster, "backup", "small", path(name), "-j", "1", *dump, *flag, env=env, **kw)
        dated(path(name), age, hours=1)
        with open(os.path.join(path(name), "manifest.json")) as f:
            assert {file["table"]["name"] for file in json.load(f)["files"] if "table" in file} == tables, name

    text = os.path.join(cluster.root, "filter.txt")
    for name, age, chosen in (("t-old", 5, "t"), ("u-old", 4, "u"), ("t-new", 3, "t")):
        with open(text, "w") as f:
            f.write(f"include table {chosen}\n")
        made(name, age, [f"--filter={text}"], {chosen})
    # As a pipe, which can be read once only, beside another.
    for name, age, flag in (("u-pipe", 2, "-"), ("u-stdin", 1, "/dev/stdin")):
        made(name, age, [f"--filter={flag}"], {"u"}, input="include table u\n")
    made("both", 0, [f"--filter={text}", "--filter=-"], set(), input="exclude table t")
    made("rest", 0, ["--filter=-"], {"u"}, input="exclude table t")
    firn(cluster, "backup", "small", path("gone"), *dump, "--filter=/nowhere/filter", env=env, code=1)
    assert not os.path.exists(path("gone"))
    shutil.copytree(path("u-old"), path("before"))
    stated(path("before"), r'\n *"filter_sha256": "[^"]*",', "")
    r = expire(cluster, parent, "--keep=1")
    assert names(parent) == ["before", "both", "rest", "t-new", "u-stdin"], (names(parent), r.stdout)
    # Whose rows these are is not known with --enable-row-security: policies may go by anything.
    for name, age, tenant in (("rows-1", 5, "a"), ("rows-2", 4, "b"), ("rows-3", 3, "a")):
        firn(cluster, "backup", "small", path(name), "-j", "1", "--enable-row-security", env={"PGOPTIONS": f"-c app.tenant={tenant}"})
        dated(path(name), age, hours=1)
    r = expire(cluster, parent, "--keep=1")
    assert [name for name in names(parent) if name.startswith("rows")] == ["rows-1", "rows-2", "rows-3"], names(parent)
    assert r.stdout.count("it does not tell which part") == 4, r.stdout


def gone(cluster, store):
    """A store that goes away while backups are removed ends the run: it is not waited for again with each of them."""
    source(cluster)
    base = f"s3://bucket/gone-{random.randrange(10**6)}"
    for n in range(5):
        firn(cluster, "backup", "small", f"{base}/{n}", "-j", "1", env=store.env)

    def run(proxy, *flags, code):
        env = {**store.env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}", "FIRN_STORE_OPTIONS": "max_retries=1, retry_timeout_ms=300"}
        return expire(cluster, base, "--keep=1", *flags, env=env, code=code)

    with Faults(store.gateway.port, 0, 0.0) as proxy:
        run(proxy, "--dry-run", code=0)
        surveyed = proxy.requests
    with Faults(store.gateway.port, 0, 0.0, after=surveyed + 3) as proxy:
        r = run(proxy, code=1)
        assert r.stdout.count("could not remove") == 1 and "keep 4" not in r.stdout, (r.stdout, r.stderr)
        proxy.revive()
        run(proxy, code=0)
        assert list(states(cluster, base, env=store.env)) == ["4"]


    # What is kept is not said to have been removed, or not.
    folder = os.path.join(store.folder, "bucket", base.rsplit("/", 1)[1], "4")
    dated(folder, 2)
    with open(os.path.join(folder, "expired.json"), "w"):
        pass
    for n in range(2):
        with Ruled(store.gateway.port, lambda r: "hung up" if r.method in (b"DELETE", b"POST") or n and r.method == b"HEAD" and is_about(r, b"expired.json") else None) as proxy:
            r = run(proxy, code=n)
            assert "keep 4" in r.stdout and "remove backup" not in r.stderr and ("could not go on after" in r.stderr) == bool(n), (n, r.stdout, r.stderr)


def interrupted(cluster, store):
    """Ctrl-C while it is asked whether a store that failed is still there is Ctrl-C."""
    source(cluster)
    base = f"s3://bucket/interrupted-{random.randrange(10**6)}"
    for n in range(2):
        firn(cluster, "backup", "small", f"{base}/{n}", "-j", "1", env=store.env)
    removals, running = [], []

    def rule(request):
        if request.method in (b"DELETE", b"POST"):
            removals.append(request)
            return "busy"
        if removals and running and request.method == b"HEAD" and is_about(request, b"expired.json"):
            running.pop().send_signal(signal.SIGINT)
            time.sleep(0.5)
        return None

    with Ruled(store.gateway.port, rule) as proxy:
        env = {**store.env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}", "FIRN_STORE_OPTIONS": "max_retries=1"}
        running.append(start(cluster, "backup", "expire", base, "--keep=1", env=env))
        process = running[0]
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and not running, (process.returncode, out, err)


def in_store(cluster, store):
    """In an object store: rules, incremental backups, and a store that fails in between."""
    source(cluster)
    base = f"s3://bucket/expire-{random.randrange(10**6)}"
    folder = os.path.join(store.folder, "bucket", base.rsplit("/", 1)[1])

    def run(*args, **kw):
        return firn(cluster, "backup", *args, env=store.env, **kw)

    with cluster.connect("small") as c:
        # (With checksums the first reading of rows is a change.)
        c.execute("VACUUM")
    run("small", f"{base}/a", "-j", "2")
    with cluster.connect("small") as c:
        c.execute("INSERT INTO u VALUES (1)")
    r = run("small", f"{base}/b", "-j", "2", "--incremental")
    with open(os.path.join(folder, "b", "manifest.json")) as f:
        manifest = json.load(f)
    found = {f["table"]["name"] for f in manifest["files"] if "unchanged_since" in f.get("table", {})}
    assert found == {"t"} and manifest["base"] == "a", (found, r.stderr)
    run("verify", "-q", f"{base}/b")
    run("small", f"{base}/c", "-j", "2", "--incremental=b")
    run("expire", base, "--keep=1")
    assert set(states(cluster, base, env=store.env).items()) == {("c", "complete")}
    run("verify", "-q", f"{base}/c")
    # Where there is a note requests to remove files may be under way.
    os.makedirs(os.path.join(folder, "lone"))
    with open(os.path.join(folder, "lone", "expired.json"), "w"):
        pass
    r = run("small", f"{base}/lone", "--overwrite-incomplete", code=2)
    assert "is being removed" in r.stderr, r.stderr
    run("expire", base, "--keep=1")
    run("small", f"{base}/lone", "--overwrite-incomplete")
    run("verify", "-q", f"{base}/lone")
    shutil.rmtree(os.path.join(folder, "lone"))
    # A store that goes away in between: what is left is no backup, and goes with the next run.
    for n in range(4):
        for name in "xyz":
            run("small", f"{base}/{name}{n}", "-j", "2", "--incremental")
        stop = threading.Event()

        def trouble():
            while not stop.wait(0.05 * (n + 1)):
                store.proxy.refuse = True
                time.sleep(0.05)
                store.proxy.refuse = n == 3
            store.proxy.refuse = False

        thread = threading.Thread(target=trouble)
        thread.start()
        env = {**store.env, "FIRN_STORE_OPTIONS": "max_retries=1, retry_timeout_ms=300"} if n else store.env
        p = start(cluster, "backup", "expire", base, "--keep=1", env=env)
        _, err = p.communicate(timeout=300)
        stop.set()
        thread.join()
        assert p.returncode in (0, 1), err
        for name, state in states(cluster, base, env=store.env).items():
            assert state in ("complete", "expired"), (name, state)
            if state == "complete":
                run("verify", "-q", f"{base}/{name}")
        run("expire", base, "--keep=1")
        assert list(states(cluster, base, env=store.env)) == [f"z{n}"]
        run("verify", "-q", f"{base}/z{n}")


CASES = {"expire rules": rules, "expire left alone": left_alone, "expire kills": kills, "expire halfway": halfway,
         "expire two at once": two_at_once, "expire selections": selections,
         "expire filters": filters}
STORE_CASES = {"expire": in_store, "expire gone": gone, "expire interrupted": interrupted}
