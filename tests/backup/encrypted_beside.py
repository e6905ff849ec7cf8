"""Encrypted backups beside others: incremental ones do not go by them, and those that are not kept are removed without a key."""
import json
import os
import random
import re
import shutil
import time

from backup.encrypted import age, closed, fresh, opened
from backup.expire import expire, names, some, source, stated, states
from backup.trouble import sized
from backup.zoo import backup, place, same
from harness.program import firn, start


def passphrase(tools):
    """A file with one."""
    path = os.path.join(tools.folder, "passphrase")
    with open(path, "w") as f:
        f.write("correct horse battery\n")
    os.chmod(path, 0o600)
    return path


def incremental(cluster):
    tools = age(cluster)
    key, recipient = tools.key("one")
    parent = place(cluster, "beside")
    os.mkdir(parent)

    def at(name):
        return os.path.join(parent, name)

    firn(cluster, "backup", "few", at("locked"), "-r", recipient)
    # An encrypted backup takes nothing from others; nobody is asked for a passphrase first, and nothing is made.
    for base in ("--incremental", "--incremental=locked"):
        for how in (("-r", recipient), ("--passphrase",), ("--passphrase-file", passphrase(tools))):
            r = firn(cluster, "backup", "few", at("new"), base, *how, code=2, start_new_session=True)
            assert "an encrypted backup cannot be incremental" in r.stderr and "HINT:" in r.stderr, r.stderr
            assert names(parent) == ["locked"]
    # No backup goes by an encrypted one, be it named or the latest.
    for n, base in enumerate(("--incremental", "--incremental=locked")):
        r = firn(cluster, "backup", "few", at(f"open{n}"), base, code=2)
        assert 'backup "locked" is encrypted, and no incremental backup can go by it' in r.stderr, r.stderr
        assert "HINT:" in r.stderr and states(cluster, at(f"open{n}")) == {".": "incomplete"}, r.stderr
        shutil.rmtree(at(f"open{n}"))
    firn(cluster, "backup", "verify", "-i", key, at("locked"))
    # A later one in the clear is gone by.
    firn(cluster, "backup", "few", at("open"))
    firn(cluster, "backup", "few", at("open2"), "--incremental")
    with open(os.path.join(at("open2"), "manifest.json")) as f:
        assert json.load(f)["base"] == "open"
    # An encrypted one that is later than those is not passed over, either.
    firn(cluster, "backup", "few", at("sealed"), "-r", recipient)
    r = firn(cluster, "backup", "few", at("open3"), "--incremental", code=2)
    assert 'backup "sealed" is encrypted, and no incremental backup can go by it' in r.stderr, r.stderr
    shutil.rmtree(at("open3"))
    # That of another cluster, whose database has the same name, is: nothing could be taken from it anyway.
    stated(at("sealed"), r'"system_identifier": "[^"]*"', '"system_identifier": "1"')
    firn(cluster, "backup", "few", at("open3"), "--incremental")
    with open(os.path.join(at("open3"), "manifest.json")) as f:
        assert json.load(f)["base"] == "open2"
    # Facts about tables, by which incremental backups go, are not in the clear.
    closed(at("locked"))
    with open(os.path.join(at("locked"), "manifest.json")) as f:
        assert not {"base", "basis"} & json.load(f).keys()


def removal(cluster):
    tools = age(cluster)
    source(cluster)
    key, recipient = tools.key("one")
    nowhere = {"PGHOST": "/nowhere"}
    # By the manifest in the clear, with those of the same database that are not encrypted.
    parent = some(cluster, "ages", [0, 1, 2, 3], "-r", recipient)
    firn(cluster, "backup", "small", os.path.join(parent, "plain"))
    r = expire(cluster, parent, "--keep=2", "--dry-run", env=nowhere)
    assert r.stdout.count("would remove") == 3 and len(names(parent)) == 5, r.stdout
    r = expire(cluster, parent, "--keep=2", "--log-format=json", env=nowhere)
    told = {line["name"]: (line["fate"], line["database"]) for line in map(json.loads, r.stdout.splitlines())}
    assert told == {"d000": ("kept", "small"), "plain": ("kept", "small"),
                    **{f"d00{n}": ("removed", "small") for n in (1, 2, 3)}}, told
    assert names(parent) == ["d000", "plain"]
    firn(cluster, "backup", "verify", os.path.join(parent, "d000"), env=nowhere)
    # One with a file missing is left, and does not count.
    parent = some(cluster, "ages", [0, 1, 2], "-r", recipient)
    for name in ("manifest.json.age", "toc.dat.age"):
        os.unlink(os.path.join(parent, "d000", name))
        r = expire(cluster, parent, "--keep=1", env=nowhere)
        assert f'its file "{name}" is missing' in r.stdout and names(parent) == ["d000", "d001"], r.stdout
        parent = some(cluster, "ages", [0, 1, 2], "-r", recipient)
    # What is left of one whose removal was broken off: nothing that looks like a backup, with the key or without.
    path = os.path.join(parent, "d002")
    with open(os.path.join(path, "expired.json"), "w") as f:
        f.write("{}")
    os.unlink(os.path.join(path, "manifest.json"))
    assert states(cluster, parent) == {"d000": "complete", "d001": "complete", "d002": "expired"}
    for flags in ((), ("-i", key)):
        firn(cluster, "restore", "-l", *flags, path, code=1)
        firn(cluster, "backup", "verify", *flags, path, code=3)
    expire(cluster, parent, "--keep=9", env=nowhere)
    assert names(parent) == ["d000", "d001"]
    # A key that somebody keeps there is not taken for the backup's; the key of a backup with a passphrase goes with it.
    shutil.copy(key, os.path.join(parent, "key.age"))
    shutil.copy(key, os.path.join(parent, "d001", "key.age"))
    os.mkdir(os.path.join(parent, "keys"))
    shutil.copy(key, os.path.join(parent, "keys", "key.age"))
    r = expire(cluster, parent, "--keep=1", env=nowhere)
    assert 'it holds "key.age", which is not part of a backup' in r.stdout and len(r.stdout.splitlines()) == 2, r.stdout
    assert names(parent) == ["d000", "d001", "key.age", "keys"]
    assert states(cluster, parent).keys() == {"d000", "d001"}
    parent = some(cluster, "ages", [0, 1], "--passphrase-file", passphrase(tools))
    assert os.path.exists(os.path.join(parent, "d001", "key.age"))
    expire(cluster, parent, "--keep=1", env=nowhere)
    assert names(parent) == ["d000"]
    # One of a part does not tell of which, so it stands for nothing else: neither does it oust others nor they it.
    parent = some(cluster, "ages", [0, 1], "-r", recipient, "-t", "t")
    whole = some(cluster, "whole", [2, 3], "-r", recipient)
    for name in names(whole):
        os.rename(os.path.join(whole, name), os.path.join(parent, name))
    r = expire(cluster, parent, "--keep=1", env=nowhere)
    assert names(parent) == ["d000", "d001", "d002"] and r.stdout.count("does not tell which part") == 2, r.stdout
    # Who changes that is noticed by the key.
    part = backup(cluster, "small", "part", "-r", recipient, "-t", "t")
    firn(cluster, "backup", "verify", "-q", "-i", key, part)
    stated(part, r',\s*"selected": true', "")
    r = firn(cluster, "backup", "verify", "-i", key, part, code=None)
    assert r.returncode and "was changed" in r.stdout + r.stderr, r.stdout + r.stderr
    # Flags that name nothing are told, and counted by.
    parent = some(cluster, "ages", [0, 1], "-r", recipient, "-x", "-S", "postgres", "-E", "UTF8")
    whole = some(cluster, "whole", [2, 3], "-r", recipient)
    for name in names(whole):
        os.rename(os.path.join(whole, name), os.path.join(parent, name))
    with open(os.path.join(parent, "d000", "manifest.json")) as f:
        assert json.load(f)["options"] == ["--encoding=UTF8", "--no-privileges"]
    firn(cluster, "backup", "verify", "-q", "-i", key, backup(cluster, "small", "told", "-r", recipient, "-x"))
    expire(cluster, parent, "--keep=1", env=nowhere)
    assert names(parent) == ["d000", "d002"]
    # What is kept is what it was.
    path = backup(cluster, "small", "there", "-r", recipient)
    expire(cluster, path, "--keep=1", env=nowhere)
    opened(cluster, path, key)
    same(cluster, "small", "back")


def secrets(cluster):
    """Keys and passphrases are in no argument, environment of another program, log or report."""
    tools = age(cluster)
    key, recipient = tools.key("one")
    with open(key) as f:
        identity = re.search(r"AGE-SECRET-KEY-1\w+", f.read())[0]
    word = "correct horse battery"
    log, wrapper = os.path.join(tools.folder, "log"), os.path.join(tools.folder, "pg_dump")
    with open(wrapper, "w") as f:
        f.write(f'#!/bin/sh\n{{ echo "$@"; env; }} >> {log}\nexec {cluster.bin}/pg_dump "$@"\n')
    os.chmod(wrapper, 0o755)
    page = place(cluster, "report.html")
    told = []

    def run(*args, **kw):
        r = firn(cluster, *args, **kw)
        told.extend((r.stdout, r.stderr))

    flags = ("-v", "--log-format=json", "--html-report", page)
    for n, (lock, unlock, env) in enumerate((
            (("-r", recipient), ("-i", key), {}),
            (("--passphrase-file", passphrase(tools)), ("--passphrase-file", passphrase(tools)), {}),
            (("--passphrase",), (), {"FIRN_PASSPHRASE": word}))):
        path = place(cluster, f"there{n}")
        run("backup", "few", path, "--pg-dump", wrapper, *flags, *lock, env=env)
        told.append(text_of(page))
        fresh(cluster, "back")
        run("restore", "-d", "back", *flags, *unlock, path, env=env)
        told.append(text_of(page))
        run("restore", "-d", "back", *flags, *unlock, path, env=env, code=1)
        run("backup", "verify", *unlock, "-d", "few", "--pg-dump", wrapper, path, env=env)
        told.extend(text_of(os.path.join(path, name)) for name in os.listdir(path))
    told.append(text_of(log))
    assert told[-1].count("--snapshot") >= 3, told[-1]
    for text in told:
        assert identity not in text.upper() and word not in text, text
        assert "FIRN_PASSPHRASE=" not in text, text
    # While it runs: arguments, and the limit of core dumps.
    with cluster.connect("few") as c:
        c.execute("CREATE TABLE IF NOT EXISTS locked (i int)")
        for flags in (("--passphrase-file", passphrase(tools)), ("-r", recipient), ("-R", listed(tools, recipient))):
            with c.transaction():
                c.execute("LOCK TABLE locked")
                p = start(cluster, "backup", "few", place(cluster, "new"), *flags)
                # The hard limit, too: the soft one is nothing in many places anyhow.
                until = time.monotonic() + 30
                while not re.search("Max core file size +0 +0 ", text_of(f"/proc/{p.pid}/limits")):
                    assert p.poll() is None and time.monotonic() < until, flags
                    time.sleep(0.05)
                assert word not in text_of(f"/proc/{p.pid}/cmdline")
                p.kill()
                p.communicate()
        c.execute("DROP TABLE locked")


def listed(tools, recipient):
    """A file with a recipient."""
    path = os.path.join(tools.folder, "recipients")
    with open(path, "w") as f:
        f.write(recipient + "\n")
    return path


def text_of(path):
    with open(path, errors="replace") as f:
        return f.read()


def in_store(cluster, store):
    """An object store: kills leave no backup, and what is not kept is removed."""
    tools = age(cluster)
    key, recipient = tools.key("one")
    sized(cluster)
    url, folder = store.new()
    dice = random.Random(3)
    for _ in range(4):
        p = start(cluster, "backup", "sized", url, "-j", "2", "-Z", "none", "-r", recipient, "--overwrite-incomplete", env=store.env)
        time.sleep(dice.uniform(0.2, 1.2))
        p.kill()
        p.communicate()
        if os.path.exists(os.path.join(folder, "manifest.json")):
            firn(cluster, "backup", "verify", "-q", "-i", key, url, env=store.env)
            url, folder = store.new()
        elif os.path.exists(folder):
            for flags in ((), ("-i", key)):
                firn(cluster, "backup", "verify", *flags, url, env=store.env, code=3)
                firn(cluster, "restore", "-l", *flags, url, env=store.env, code=1)
    firn(cluster, "backup", "sized", url, "--overwrite-incomplete", "-r", recipient, env=store.env)
    closed(folder)
    firn(cluster, "backup", "verify", "-q", "-i", key, url, env=store.env)
    source(cluster)
    for name in ("a", "b", "c"):
        firn(cluster, "backup", "small", f"{url}-{name}", "-r", recipient, env=store.env)
    parent = url.rsplit("/", 1)[0]
    expire(cluster, parent, "--keep=1", env=store.env)
    found = states(cluster, parent, env=store.env)
    last = url.rsplit("/", 1)[1]
    assert found[last] == found[f"{last}-c"] == "complete" and not {f"{last}-a", f"{last}-b"} & found.keys(), found
    opened(cluster, f"{url}-c", key, env=store.env)
    same(cluster, "small", "back")


CASES = {"encrypted secrets": secrets, "encrypted and incremental": incremental, "encrypted expire": removal}
STORE_CASES = {"encrypted kills and expire": in_store}
