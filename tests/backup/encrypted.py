"""Encrypted backups: readable for age and pg_restore, closed to all others; whatever is done to their files is noticed."""
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

from backup.trouble import peak_memory, sized
from backup.zoo import backup, create, files, place, restored, same, script
from harness.age import Age
from harness.program import firn, start, tool

# What the zoo is full of, and nobody without a key may see.
WORDS = [b"Large object", b"odd \"", b"parted_1_0", b"counted_again", b"TABLE DATA", b"COPY "]


def age(cluster):
    return Age(os.path.join(cluster.root, "age"))


def raw(path):
    with open(path, "rb") as f:
        return f.read()


def closed(path, *, manifest=True):
    """Nothing in the folder tells what is in the database."""
    for name in os.listdir(path):
        assert name == "manifest.json" or name.endswith(".age"), name
        text = raw(os.path.join(path, name))
        for word in WORDS:
            assert word not in text, (name, word)
    if manifest:
        public = json.loads(raw(os.path.join(path, "manifest.json")))
        assert public["firn_backup"] == 2 and not public["options"] and not public["entries"], public
        assert all(file.keys() == {"name", "size", "sha256"} for file in public["files"]), public["files"][:3]
        assert public["large_objects"] == {"count": 0, "bytes": 0, "stored": 0}, public


def fresh(cluster, database):
    with cluster.connect() as c:
        c.execute(f'DROP DATABASE IF EXISTS "{database}"')
        c.execute(f'CREATE DATABASE "{database}" TEMPLATE template0 ENCODING \'UTF8\' LOCALE \'C.UTF-8\'')


def opened(cluster, source, key, *flags, database="back", **kw):
    """firn restore, into a new database, which equals the source."""
    fresh(cluster, database)
    firn(cluster, "restore", "-d", database, "--verify=checksums", "-i", key, *flags, source, **kw)


def alike(cluster, one, other):
    """The same, in any order: pieces of a large table are loaded side by side."""
    a, b = (sorted(script(cluster, name, "-b")) for name in (one, other))
    assert a == b, (len(a), len(b))


def by_hand(tools, path, key, out):
    """The documented way, letter by letter."""
    shutil.rmtree(out, ignore_errors=True)
    line = f'mkdir {out} && for f in {path}/*.age; do age -d -i {key} -o "{out}/$(basename "$f" .age)" "$f" || break; done'
    subprocess.run(["sh", "-c", line], check=True, env={**os.environ, "PATH": tools.bin + ":" + os.environ["PATH"]})


def round_trip(cluster):
    tools = age(cluster)
    (one, first), (two, second), (other, _) = (tools.key(name) for name in ("one", "two", "other"))
    listed = os.path.join(tools.folder, "recipients")
    with open(listed, "w") as f:
        f.write(f"# for the two of us\n\n{second}\n")
    for jobs, compress in ((1, "gzip"), (4, "none")):
        path = backup(cluster, "zoo", "there", "-j", jobs, "-Z", compress, "-r", first, "-R", listed)
        closed(path)
        # Without a key: all files are whole.
        r = firn(cluster, "backup", "verify", path, env={"PGHOST": "/nowhere"})
        assert "encrypted backup" in r.stdout and "was not checked" in r.stdout and "rows" not in r.stdout, r.stdout
        for key in (one, two):
            r = firn(cluster, "backup", "verify", "-i", key, path, env={"PGHOST": "/nowhere"})
            assert re.search(r"[0-9]+ tables with [0-9]+ rows, [0-9]+ large objects: no problem", r.stdout), r.stdout
            opened(cluster, path, key, "-j", "3")
            same(cluster, "zoo", "back")
        r = firn(cluster, "backup", "verify", "-i", two, "-d", "back", "--checksums", path)
        assert "the database equals the backup" in r.stdout, r.stdout
        r = firn(cluster, "backup", "verify", "-d", "back", path, code=1)
        assert "is encrypted" in r.stderr and "--identity" in r.stderr, r.stderr
    # Identities that do not fit do no harm beside one that does.
    fresh(cluster, "back")
    firn(cluster, "restore", "-d", "back", "-i", other, "--identity", two, path)
    same(cluster, "zoo", "back")
    # The list, a script, and a part, as of any archive.
    plain = backup(cluster, "zoo", "plain")
    lists = [firn(cluster, "restore", "-l", *flags).stdout for flags in ((path, "-i", one), (plain,))]
    ours, theirs = ([line for line in text.splitlines() if not line.startswith(";")] for text in lists)
    assert ours == theirs and ours
    text = firn(cluster, "restore", "-i", one, "-f", "-", "-t", "parent", path).stdout
    assert "COPY public.parent" in text, text


def with_age(cluster):
    """What age and pg_restore make of our files; what we make of age's."""
    tools = age(cluster)
    key, recipient = tools.key("one")
    path = backup(cluster, "zoo", "there", "-r", recipient)
    out = place(cluster, "decrypted")
    by_hand(tools, path, key, out)
    with cluster.connect() as c:
        restored(cluster, c, out, "back", "-j", "2")
    same(cluster, "zoo", "back")
    # It is a backup like any, with the manifest that it would have had.
    firn(cluster, "backup", "verify", out)
    plain = backup(cluster, "zoo", "plain")
    assert files(plain).keys() == files(out).keys()
    ours, theirs = (json.loads(raw(os.path.join(p, "manifest.json"))) for p in (out, plain))
    assert ours.keys() == theirs.keys()
    # All but facts for incremental backups, which have to do with the moment.
    tables = [[{**f.get("table", {}), "basis": None} for f in m["files"]] for m in (ours, theirs)]
    assert tables[0] == tables[1]
    # A dump that age encrypted, through a pipe; and what is said where there is none.
    dump = os.path.join(tools.folder, "zoo.dump.age")
    tools.run("age", "-r", recipient, "-o", dump, input=tool(cluster, "pg_dump", "-Fc", "zoo"))
    fresh(cluster, "back")
    pipe = subprocess.Popen([os.path.join(tools.bin, "age"), "-d", "-i", key, dump], stdout=subprocess.PIPE)
    firn(cluster, "restore", "-d", "back", stdin=pipe.stdout)
    assert pipe.wait() == 0
    same(cluster, "zoo", "back")
    r = firn(cluster, "restore", "-d", "back", dump, code=1)
    assert "it is a file that age encrypted" in r.stderr and "HINT" in r.stderr, r.stderr
    os.unlink(os.path.join(path, "manifest.json"))
    for flags in ((), ("-i", key)):
        r = firn(cluster, "restore", "-d", "back", *flags, path, code=1)
        assert "its manifest is missing" in r.stderr, r.stderr


def rewrite(path, change):
    """Changes the manifest that anybody may read, as somebody would who knows how."""
    name = os.path.join(path, "manifest.json")
    text = raw(name).decode()
    covered = change(text[:text.rindex('"sha256": "')])
    with open(name, "w") as f:
        f.write(f'{covered}"sha256": "{hashlib.sha256(covered.encode()).hexdigest()}"\n}}\n')


def adapt(path):
    """Makes the manifest that anybody may read fit the files that are there."""
    def change(text):
        def line(found):
            file = os.path.join(path, found[1])
            if not os.path.exists(file):
                return ""
            content = raw(file)
            return f'{{"name":"{found[1]}","size":{len(content)},"sha256":"{hashlib.sha256(content).hexdigest()}"}}'
        text = re.sub(r'\{"name":"([^"]*)","size":[0-9]+,"sha256":"[0-9a-f]{64}"\}', line, text)
        return re.sub(r"\n,?(?=\n)", "", text).replace(",\n]", "\n]").replace("[\n,\n", "[\n")
    rewrite(path, change)


def damages(cluster):
    tools = age(cluster)
    key, recipient = tools.key("one")
    # Compressed otherwise, so that the same rows are other bytes.
    older = backup(cluster, "few", "older", "-r", recipient, "-j", "2", "-Z", "gzip:1")
    good = backup(cluster, "few", "good", "-r", recipient, "-j", "2")
    names = sorted(n for n in os.listdir(good) if n.endswith(".age"))
    data = [n for n in names if n[0].isdigit()]
    large = max(data, key=lambda n: os.path.getsize(os.path.join(good, n)))
    blobs = [n for n in names if n.startswith("blob_")]
    dice = random.Random(7)
    fresh(cluster, "bad")

    def flip(name):
        def change(path):
            with open(os.path.join(path, name), "r+b") as f:
                at = dice.randrange(os.path.getsize(os.path.join(path, name)))
                f.seek(at)
                byte = f.read(1)[0]
                f.seek(at)
                f.write(bytes([byte ^ (1 << dice.randrange(8))]))
        return change

    def cut(name, left=None):
        def change(path):
            size = os.path.getsize(os.path.join(path, name))
            os.truncate(os.path.join(path, name), dice.randrange(size) if left is None else max(0, size - left))
        return change

    def longer(name):
        def change(path):
            with open(os.path.join(path, name), "ab") as f:
                f.write(os.urandom(20))
        return change

    def swap(a, b):
        def change(path):
            one, two = os.path.join(path, a), os.path.join(path, b)
            os.rename(one, one + ".x")
            os.rename(two, one)
            os.rename(one + ".x", two)
        return change

    def from_older(name):
        # (What is the default of the server's version is in the ends of names.)
        stem = name.split(".dat")[0]
        there = next(n for n in os.listdir(older) if n.split(".dat")[0] == stem)
        return lambda path: shutil.copy(os.path.join(older, there), os.path.join(path, name))

    def forged(name):
        """Somebody who knows the recipient."""
        def change(path):
            file = os.path.join(path, name)
            os.unlink(file)
            tools.run("age", "-r", recipient, "-o", file, input=b"DROP TABLE x;")
        return change

    def gone(name):
        return lambda path: os.unlink(os.path.join(path, name))

    def check(what, change, restoring):
        path = place(cluster, "damaged")
        shutil.copytree(good, path)
        change(path)
        nowhere = {"PGHOST": "/nowhere"}
        r = firn(cluster, "backup", "verify", path, code=3, env=nowhere)
        assert "problem" in r.stderr, (what, r.stdout, r.stderr)
        r = firn(cluster, "backup", "verify", "-i", key, path, code=3, env=nowhere)
        assert "panicked" not in r.stderr, (what, r.stderr)
        # Who may write there makes the manifest fit: only the key tells.
        adapt(path)
        firn(cluster, "backup", "verify", path, env=nowhere)
        r = firn(cluster, "backup", "verify", "-i", key, path, code=None, env=nowhere)
        # A header may be damaged so that it looks like one for somebody else.
        other = r.returncode == 1 and "no identity that was given opens" in r.stderr and "manifest" in what
        assert (r.returncode == 3 or other) and "panicked" not in r.stderr, (what, r.stdout, r.stderr)
        if restoring:
            r = firn(cluster, "restore", "-d", "bad", "-j", "2", "--no-analyze", "-i", key, path, code=1)
            assert "panicked" not in r.stderr, (what, r.stderr)
            fresh(cluster, "bad")

    firn(cluster, "backup", "verify", "-i", key, good)
    for name in names:
        check(f"flip {name}", flip(name), name in (large, "toc.dat.age", "manifest.json.age"))
    for _ in range(20):
        name = dice.choice(names)
        check(f"flip {name}", flip(name), False)
    special = [large, blobs[0], "toc.dat.age", "manifest.json.age"]
    for name in special:
        check(f"cut {name}", cut(name), True)
        check(f"cut {name} by 1", cut(name, 1), False)
        check(f"longer {name}", longer(name), False)
        check(f"forged {name}", forged(name), True)
        check(f"older {name}", from_older(name), True)
        check(f"no {name}", gone(name), True)
    # Whole pieces of age's less.
    check("less by a piece", cut(large, os.path.getsize(os.path.join(good, large)) % 65552 + 10), True)
    check("empty", cut(large, 1 << 30), True)
    for _ in range(3):
        check("swapped", swap(*dice.sample(data, 2)), True)
    check("swapped objects", swap(*dice.sample(blobs, 2)), True)
    check("data for contents", swap(large, "toc.dat.age"), True)

    def extra(path):
        shutil.copy(os.path.join(path, large), os.path.join(path, "999999.dat.age"))
    path = place(cluster, "damaged")
    shutil.copytree(good, path)
    extra(path)
    r = firn(cluster, "backup", "verify", path, code=3)
    assert '"999999.dat.age": the file does not belong to the backup' in r.stdout, r.stdout
    # What anybody may read is bound to what is encrypted.
    for change in (lambda text: text.replace('"database": "few"', '"database": "zoo"'),
                   lambda text: re.sub(r'"snapshot_time": "2...', '"snapshot_time": "2199', text),
                   lambda text: re.sub(r'"system_identifier": "[0-9]', '"system_identifier": "x', text),
                   lambda text: text.replace('"options": []', '"options": ["-t", "x"]'),
                   lambda text: text.replace(large, "1" + large)):
        path = place(cluster, "damaged")
        shutil.copytree(good, path)
        before = raw(os.path.join(path, "manifest.json"))
        rewrite(path, change)
        assert raw(os.path.join(path, "manifest.json")) != before
        r = firn(cluster, "backup", "verify", "-i", key, path, code=3)
        assert "do not belong together" in r.stdout, r.stdout
        r = firn(cluster, "restore", "-d", "bad", "-i", key, path, code=1)
        assert "do not belong together" in r.stderr, r.stderr
    # What is not encrypted is not taken for ours, be it said so or made by somebody else.
    rewrite(path, lambda text: re.sub(r'"encryption": \{[^}]*\}', '"x": 1', text))
    for clear in (path, backup(cluster, "few", "plain"), dumped(cluster, "few")):
        r = firn(cluster, "restore", "-d", "bad", "-i", key, clear, code=1)
        assert "is not encrypted" in r.stderr, r.stderr
    r = firn(cluster, "backup", "verify", "-i", key, os.path.join(cluster.root, "plain"), code=1)
    assert "is not encrypted" in r.stderr, r.stderr
    for _ in range(20):
        path = place(cluster, "damaged")
        shutil.copytree(good, path)
        flip("manifest.json")(path)
        r = firn(cluster, "backup", "verify", "-i", key, path, code=3)
        assert "manifest is damaged" in r.stdout, r.stdout


def planted(cluster):
    """Who can write to where a backup lies, and cannot encrypt for us, puts one in the clear there: who gives a key never reads it."""
    tools = age(cluster)
    key, recipient = tools.key("one")
    file = os.path.join(tools.folder, "passphrase")
    with open(file, "w") as f:
        f.write("sesame\n")
    os.chmod(file, 0o600)
    good, plain = backup(cluster, "few", "good", "-r", recipient), backup(cluster, "few", "plain")
    fresh(cluster, "bad")
    rests = {"all but the manifest": lambda name: name != "manifest.json", "the table of contents": lambda name: name == "toc.dat.age",
             "the encrypted manifest": lambda name: name == "manifest.json.age", "nothing": lambda name: False}
    for what, stays in rests.items():
        for beside in (True, False):
            path = place(cluster, "planted")
            os.mkdir(path)
            for name in filter(stays, os.listdir(good)):
                shutil.copy(os.path.join(good, name), path)
            for name in os.listdir(plain) if beside else ():
                if name != "manifest.json":
                    shutil.copy(os.path.join(plain, name), path)
            packed = place(cluster, "planted.tar")
            subprocess.run(["tar", "-C", path, "-cf", packed, *sorted(os.listdir(path), reverse=True)], check=bool(os.listdir(path)))
            told = "its manifest is missing" if stays("toc.dat.age") else "is not encrypted" if beside else '"toc.dat" does not exist'
            for flags in (("-i", key), ("--passphrase-file", file)):
                for source in (path, packed) if os.listdir(path) else (path,):
                    for command in (("-d", "bad"), ("-l",), ("-f", "-")):
                        r = firn(cluster, "restore", *command, *flags, source, code=1)
                        assert told in r.stderr and "COPY" not in r.stdout and "TABLE" not in r.stdout, (what, r.stdout, r.stderr)
                firn(cluster, "backup", "verify", *flags, path, code=3)
    with cluster.connect("bad") as c:
        assert not c.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace").fetchall()


def dumped(cluster, database):
    path = place(cluster, "dumped")
    tool(cluster, "pg_dump", "-Fc", "-f", path, database)
    return path


def interrupted(cluster):
    """What is unfinished stays so; what lies on the disk meanwhile is encrypted; a restore goes on where it was."""
    tools = age(cluster)
    key, recipient = tools.key("one")
    sized(cluster)
    path = place(cluster, "there")
    p = start(cluster, "backup", "sized", path, "-j", "2", "-Z", "none", "-r", recipient)
    scratch = None
    while p.poll() is None and not scratch:
        try:
            for fd in os.listdir(f"/proc/{p.pid}/fd"):
                name = f"/proc/{p.pid}/fd/{fd}"
                if "scratch.tmp" in os.readlink(name) and os.path.getsize(name):
                    scratch = raw(name)
        except FileNotFoundError:
            pass
    assert scratch and scratch.startswith(b"age-encryption.org/v1\n"), scratch and scratch[:60]
    p.kill()
    p.communicate()
    assert not any(word in scratch for word in WORDS)
    if not os.path.exists(os.path.join(path, "manifest.json")):
        firn(cluster, "backup", "verify", "-i", key, path, code=3)
        r = firn(cluster, "restore", "-d", "back", "-i", key, path, code=1)
        assert "it is a backup that was not finished" in r.stderr, r.stderr
        firn(cluster, "backup", "sized", path, "-r", recipient, code=2)
        firn(cluster, "backup", "sized", path, "-r", recipient, "--overwrite-incomplete")
    r = firn(cluster, "backup", "sized", path, "--overwrite-incomplete", code=2)
    assert "holds a complete backup" in r.stderr, r.stderr
    firn(cluster, "backup", "verify", "-i", key, path)
    fresh(cluster, "back")
    flags = ("restore", "-d", "back", "-j", "2", "--no-analyze", "-i", key)
    p = start(cluster, *flags, path)
    time.sleep(1)
    p.send_signal(signal.SIGKILL)
    p.communicate()
    if p.returncode:
        r = firn(cluster, *flags, "--resume", path, code=None)
        if r.returncode:
            assert "there is no unfinished restore" in r.stderr or "resume" in r.stderr, r.stderr
            firn(cluster, *flags, path)
    alike(cluster, "sized", "back")


def memory(cluster):
    """Of a large table the program holds blocks, encrypted or not."""
    tools = age(cluster)
    key, recipient = tools.key("one")
    with cluster.connect() as c:
        create(c, "large", "CREATE TABLE t (id int, t text); ALTER TABLE t ALTER t SET STORAGE EXTERNAL;"
               "INSERT INTO t SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 100000) i", cluster)
    path = place(cluster, "there")
    p = start(cluster, "backup", "large", path, "-j", "2", "-Z", "none", "-r", recipient)
    peak = peak_memory(p)
    assert p.wait() == 0 and peak < 100 << 20, (p.returncode, peak)
    fresh(cluster, "back")
    p = start(cluster, "restore", "-d", "back", "--no-analyze", "-j", "2", "-i", key, path)
    again = peak_memory(p)
    assert p.wait() == 0 and again < 150 << 20, (p.returncode, again)
    print(f"     {peak >> 20} MB of memory to back up, {again >> 20} MB to restore")
    alike(cluster, "large", "back")


def in_store(cluster, store):
    """An object store: uploads in parts, restored in parallel; damage there."""
    tools = age(cluster)
    key, recipient = tools.key("one")
    with cluster.connect() as c:
        create(c, "parts", "CREATE TABLE t (id int, t text); ALTER TABLE t ALTER t SET STORAGE EXTERNAL;"
               "INSERT INTO t SELECT i, repeat(md5(i::text), 300) FROM generate_series(1, 4000) i", cluster)
    # A program that was ended while the store was away leaves its uploads there.
    before = store.uploads()
    for database, flags in (("zoo", ()), ("parts", ("-Z", "none"))):
        url, folder = store.new()
        firn(cluster, "backup", database, url, "-j", "3", "-r", recipient, *flags, env=store.env)
        assert not store.uploads() - before, store.uploads() - before
        closed(folder)
        firn(cluster, "backup", "verify", url, env=store.env)
        firn(cluster, "backup", "verify", "-i", key, "-j", "3", url, env=store.env)
        opened(cluster, url, key, "-j", "3", env=store.env)
        alike(cluster, database, "back")
        r = firn(cluster, "backup", "list", "-i", key, "--json", url, env=store.env)
        assert [json.loads(line)["opens"] for line in r.stdout.splitlines()] == [True], r.stdout
        r = firn(cluster, "restore", "-d", "back", url, env=store.env, code=1)
        assert "is encrypted" in r.stderr, r.stderr
    large = max(os.listdir(folder), key=lambda n: os.path.getsize(os.path.join(folder, n)))
    with open(os.path.join(folder, large), "r+b") as f:
        f.seek(9 << 20)
        f.write(b"XXXX")
    for flags in ((), ("-i", key)):
        r = firn(cluster, "backup", "verify", *flags, url, env=store.env, code=3)
        assert large in r.stdout, r.stdout
    fresh(cluster, "back")
    r = firn(cluster, "restore", "-d", "back", "-i", key, url, env=store.env, code=1)
    assert "was changed" in r.stderr, r.stderr
    with cluster.connect("back") as c:
        if c.execute("SELECT to_regclass('t')").fetchone()[0]:
            assert c.execute("SELECT count(*) FROM t").fetchone()[0] == 0
    # Without its manifest nothing is read, not even what somebody puts there in the clear.
    os.unlink(os.path.join(folder, "manifest.json"))
    plain = backup(cluster, "few", "plain")
    for beside in (False, True):
        for name in os.listdir(plain) if beside else ():
            if name != "manifest.json":
                shutil.copy(os.path.join(plain, name), folder)
        for flags in (("-i", key),) if beside else (("-i", key), ()):
            r = firn(cluster, "restore", "-l", *flags, url, env=store.env, code=1)
            assert "its manifest is missing" in r.stderr and "TABLE" not in r.stdout, r.stderr


CASES = {"encrypted round trip": round_trip, "encrypted with age": with_age, "encrypted damage": damages, "encrypted planted": planted,
         "encrypted interrupted": interrupted, "encrypted memory": memory}
STORE_CASES = {"encrypted": in_store}
