"""Keys and passphrases of encrypted backups: those that do not fit, are none, lie open, or are somebody else's."""
import hashlib
import json
import os
import re
import shutil
import time

from backup.encrypted import adapt, age, by_hand, closed, fresh, opened, raw
from backup.expire import dated, expire, names
from backup.zoo import backup, place, restored, same
from harness.program import firn, start


def keys(cluster):
    """Keys that do not fit, are none, or lie open; nothing secret is ever repeated."""
    tools = age(cluster)
    (key, recipient), (other, _) = tools.key("one"), tools.key("other")
    path = backup(cluster, "few", "there", "-r", recipient)
    secret = re.search(r"AGE-SECRET-KEY-1\w+", raw(key).decode())[0]

    def refused(*args, code=1, env=None, **kw):
        r = firn(cluster, *args, code=code, env=env, **kw)
        assert secret not in (r.stdout + r.stderr).upper() and "panicked" not in r.stderr, r.stderr
        return r.stderr

    for command in (("restore", "-d", "back"), ("restore", "-l"), ("restore", "-f", "/dev/null")):
        assert "is encrypted" in (said := refused(*command, path)) and "HINT:" in said, said
        assert "no identity that was given opens" in (said := refused(*command, "-i", other, path)), said
    assert "no identity that was given opens" in refused("backup", "verify", "-i", other, path)
    found = [json.loads(line) for k in (None, key, other)
             for line in firn(cluster, "backup", "list", "--json", *(["-i", k] if k else []), path).stdout.splitlines()]
    assert [(b["state"], b["encrypted"], b.get("opens")) for b in found] == \
        [("complete", True, None), ("complete", True, True), ("complete", True, False)], found
    text = firn(cluster, "backup", "list", "-i", other, path).stdout
    assert "complete, encrypted, not for this key" in text and "few" in text, text

    def file(text, mode=0o600):
        name = os.path.join(tools.folder, "file")
        with open(name, "wb") as f:
            f.write(text)
        os.chmod(name, mode)
        return name

    for text, told in ((b"", "has no identity"), (b"\xff\x00", "line 1"), (secret[:50].encode(), "incomplete"),
                       (b"# x\n" + recipient.encode(), "line 2"), (b"-----BEGIN OPENSSH PRIVATE KEY-----\n", "SSH"),
                       (b"AGE-PLUGIN-X-1Q", "plugins"), (b"x" * (2 << 20), "too large")):
        said = refused("restore", "-d", "back", "-i", file(text), path, code=2 if told == "too large" else 1)
        assert told in said, said
    assert "could not read identity file" in refused("restore", "-d", "back", "-i", "/nowhere", path)
    # Others can read it: a warning.
    for mode, warned in ((0o600, False), (0o400, False), (0o640, True), (0o644, True)):
        r = firn(cluster, "backup", "verify", "-i", file(raw(key), mode), path)
        assert ("has group or world access" in r.stderr) == warned, r.stderr
    firn(cluster, "backup", "verify", "-i", "/dev/stdin", path, input=raw(key).decode())
    for flag in ("-i", "--passphrase-file"):
        r = firn(cluster, "restore", "-l", flag, "/dev/stdin", input=raw(key).decode(), code=2)
        assert "cannot both be read from standard input" in r.stderr, r.stderr
        with open(key) as f:
            r = firn(cluster, "restore", "-l", flag, key, stdin=f, code=2)
        assert "cannot both be read from standard input" in r.stderr, r.stderr
    # An identity that is protected by a passphrase, as bytes and as text.
    for flags in ((), ("-a",)):
        protected = os.path.join(tools.folder, "protected")
        tools.run("age", "-e", "-j", "batchpass", *flags, "-o", protected, key, env={"AGE_PASSPHRASE": "sesame"})
        os.chmod(protected, 0o600)
        firn(cluster, "backup", "verify", "-i", protected, path, env={"FIRN_PASSPHRASE": "sesame"})
        assert "the passphrase of identity file" in refused("backup", "verify", "-i", protected, path, env={"FIRN_PASSPHRASE": "x"})
    # Recipients.
    for wrong, told in ((secret, "which is secret"), (recipient[:-1], "is not a recipient"), ("ssh-ed25519 AAAA", "SSH"),
                        ("age1tag1qqqq", "not supported")):
        said = refused("backup", "few", place(cluster, "new"), "-r", wrong, code=2)
        assert told in said, said
        said = refused("backup", "few", place(cluster, "new"), "-R", file(wrong.encode()), code=2)
        assert told in said and "line 1" in said and "TAG1" not in said.upper(), said
    # A file that was not meant: what stands in it is nobody's business.
    for text in (b"# mine\nhunter2\n", b"host:5432:shop:me:hunter2\n", b"age1hunter2\n", b"age1x1hunter2\n"):
        said = refused("backup", "few", place(cluster, "new"), "-R", file(text), code=2)
        assert "hunter2" not in said and f"line {2 if text.startswith(b'#') else 1}" in said, said
    said = refused("backup", "few", place(cluster, "new"), "-R", file(b"# nobody\n"), code=2)
    assert "names nobody" in said, said
    refused("backup", "few", place(cluster, "new"), "-R", "/nowhere")
    refused("backup", "few", place(cluster, "new"), "-r", recipient, "--passphrase", code=2)
    assert not os.path.exists(os.path.join(cluster.root, "new"))


def passphrases(cluster):
    tools = age(cluster)
    file = os.path.join(tools.folder, "passphrase")
    with open(file, "w") as f:
        f.write("correct horse battery\n")
    os.chmod(file, 0o600)
    paths = [backup(cluster, "few", "one", "--passphrase-file", file),
             backup(cluster, "few", "two", "--passphrase", env={"FIRN_PASSPHRASE": "correct horse battery"})]
    for path in paths:
        closed(path)
        r = firn(cluster, "backup", "verify", path)
        assert "that takes --passphrase" in r.stdout, r.stdout
        firn(cluster, "backup", "verify", "--passphrase-file", file, path)
    opened_with = (("--passphrase-file", file), ())
    for flags in opened_with:
        fresh(cluster, "back")
        firn(cluster, "restore", "-d", "back", *flags, paths[0], env={} if flags else {"FIRN_PASSPHRASE": "correct horse battery"})
        same(cluster, "few", "back")
    for env, told in (({"FIRN_PASSPHRASE": "wrong"}, "is wrong"), ({}, "is not known")):
        # Without a terminal nobody is asked.
        r = firn(cluster, "restore", "-d", "back", paths[0], env=env, code=1, start_new_session=True)
        assert told in r.stderr and "battery" not in r.stderr, r.stderr
    # The variable says as much as a flag: what it opens is expected. One that is empty says nothing.
    plain = backup(cluster, "few", "plain")
    for command in (("restore", "-d", "back"), ("restore", "-l"), ("restore", "-f", "-"), ("backup", "verify")):
        for env in ({"FIRN_PASSPHRASE": "correct horse battery"}, {"FIRN_PASSPHRASE": "x\udcff"}):
            r = firn(cluster, *command, plain, env=env, code=1)
            assert "is not encrypted" in r.stderr and "FIRN_PASSPHRASE" in r.stderr and "COPY" not in r.stdout, r.stderr
    firn(cluster, "backup", "verify", plain, env={"FIRN_PASSPHRASE": ""})
    for command in (("restore", "-l", paths[0]), ("backup", "few", place(cluster, "new"), "--passphrase")):
        r = firn(cluster, *command, env={"FIRN_PASSPHRASE": "x\udcff"}, code=2, start_new_session=True)
        assert "the passphrase in FIRN_PASSPHRASE is not valid UTF-8" in r.stderr, r.stderr
    r = firn(cluster, "backup", "few", place(cluster, "new"), "--passphrase", code=2, start_new_session=True)
    assert "a passphrase is needed" in r.stderr, r.stderr
    # By hand: the key, and with it everything.
    key = os.path.join(tools.folder, "key")
    tools.run("age", "-d", "-j", "batchpass", "-o", key, os.path.join(paths[0], "key.age"),
              env={"AGE_PASSPHRASE": "correct horse battery"})
    os.chmod(key, 0o600)
    opened(cluster, paths[0], key)
    out = place(cluster, "decrypted")
    # The key's own file is for the passphrase, not for the key.
    kept = os.path.join(tools.folder, "kept.age")
    os.rename(os.path.join(paths[0], "key.age"), kept)
    by_hand(tools, paths[0], key, out)
    os.rename(kept, os.path.join(paths[0], "key.age"))
    with cluster.connect() as c:
        restored(cluster, c, out, "back")
    same(cluster, "few", "back")
    # Files of two backups with one passphrase do not mix, and neither do their keys.
    for name in ("key.age", "toc.dat.age", "manifest.json.age"):
        path = place(cluster, "mixed")
        shutil.copytree(paths[0], path)
        shutil.copy(os.path.join(paths[1], name), os.path.join(path, name))
        firn(cluster, "backup", "verify", path, code=3)
        adapt(path)
        firn(cluster, "backup", "verify", path)
        r = firn(cluster, "backup", "verify", "--passphrase-file", file, path, code=None)
        assert r.returncode in (1, 3), (name, r.stdout, r.stderr)
        firn(cluster, "restore", "-d", "back", "--passphrase-file", file, path, code=1)


def claimed(cluster):
    """Who writes to the store says that it takes a passphrase: who has given an identity is not asked for one."""
    tools = age(cluster)
    (_, recipient), (other, _) = tools.key("one"), tools.key("other")
    path, locked = backup(cluster, "few", "there", "-r", recipient), backup(cluster, "few", "locked", "--passphrase-file", word(tools))
    name = os.path.join(path, "manifest.json")
    with open(name) as f:
        text = f.read()
    assert text.count('"passphrase": false') == 1
    text = text.replace('"passphrase": false', '"passphrase": true')
    key = raw(os.path.join(locked, "key.age"))
    with open(os.path.join(path, "key.age"), "wb") as f:
        f.write(key)
    line = json.dumps({"name": "key.age", "size": len(key), "sha256": hashlib.sha256(key).hexdigest()}, separators=(",", ":"))
    with open(name, "w") as f:
        f.write(text.replace('"files": [\n', f'"files": [\n{line},\n'))
    adapt(path)
    for command in (("restore", "-d", "back"), ("restore", "-l"), ("backup", "verify")):
        r = firn(cluster, *command, "-i", other, path, code=1, start_new_session=True)
        assert "no identity that was given opens" in r.stderr, r.stderr
    # Of a backup that does take one, that is the answer, too, and what to do.
    r = firn(cluster, "restore", "-l", "-i", other, locked, code=1, start_new_session=True)
    assert "no identity that was given opens" in r.stderr and "--passphrase" in r.stderr, r.stderr
    firn(cluster, "restore", "-l", "-i", other, "--passphrase-file", word(tools), locked)
    firn(cluster, "restore", "-l", "-i", other, locked, env={"FIRN_PASSPHRASE": "sesame"})


def word(tools):
    """A file with a passphrase."""
    path = os.path.join(tools.folder, "word")
    with open(path, "w") as f:
        f.write("sesame\n")
    os.chmod(path, 0o600)
    return path


def half(path, whole, *how):
    """Makes an unfinished backup of a finished one, as a run that was killed at its end leaves it."""
    with open(os.path.join(whole, "manifest.json")) as f:
        head = json.load(f)
    shutil.copytree(whole, path, ignore=shutil.ignore_patterns("manifest.json"))
    marker = {"database": head["database"], "started": head["started"], "firn_version": head["firn_version"], "run": "1", **dict(how)}
    with open(os.path.join(path, "unfinished.json"), "w") as f:
        json.dump(marker, f)
    dated(path, 3)


def kept(cluster):
    """A key that somebody keeps where an unfinished backup lies stays; the key of one with a passphrase goes with it."""
    tools = age(cluster)
    key, recipient = tools.key("one")
    parent = place(cluster, "parent")
    os.mkdir(parent)
    path = os.path.join(parent, "there")

    def again(*flags, code=0):
        return firn(cluster, "backup", "few", path, "--overwrite-incomplete", *flags, code=code)

    def stays(told):
        r = again("-r", recipient, code=2)
        assert 'holds "key.age", which is not part of a backup' in r.stderr, r.stderr
        r = expire(cluster, parent, "--keep=9", "--incomplete-hours=1")
        assert told in r.stdout, r.stdout
        assert raw(os.path.join(path, "key.age")) == raw(key)

    # Nothing but the key.
    os.mkdir(path)
    shutil.copy(key, os.path.join(path, "key.age"))
    stays("")
    # A backup for recipients, or none that is encrypted, killed.
    for flags in (("-r", recipient), ()):
        shutil.rmtree(path)
        half(path, backup(cluster, "few", "whole", *flags))
        shutil.copy(key, os.path.join(path, "key.age"))
        before = names(path)
        stays('it holds "key.age", which is not part of a backup')
        assert names(path) == before, before
        os.unlink(os.path.join(path, "key.age"))
        if flags:
            again("-r", recipient)
            firn(cluster, "backup", "verify", "-i", key, path)
        else:
            expire(cluster, parent, "--keep=9", "--incomplete-hours=1")
            assert names(parent) == []
    # One with a passphrase.
    for ends in (lambda: again("--passphrase-file", word(tools)), lambda: expire(cluster, parent, "--keep=9", "--incomplete-hours=1")):
        shutil.rmtree(path, ignore_errors=True)
        half(path, backup(cluster, "few", "whole", "--passphrase-file", word(tools)), ("passphrase", True))
        ends()
        assert os.path.exists(path) == (names(parent) == ["there"])
        if os.path.exists(path):
            firn(cluster, "backup", "verify", "--passphrase-file", word(tools), path)
    assert names(parent) == []


def noted(cluster):
    """From its beginning a backup says whether it makes a key."""
    tools = age(cluster)
    _, recipient = tools.key("one")
    with cluster.connect("few") as c:
        c.execute("CREATE TABLE IF NOT EXISTS locked (i int)")
        for flags, own in (((), None), (("-r", recipient), None), (("--passphrase-file", word(tools)), True)):
            path = place(cluster, "there")
            with c.transaction():
                c.execute("LOCK TABLE locked")
                p = start(cluster, "backup", "few", path, *flags)
                marker = os.path.join(path, "unfinished.json")
                while not os.path.exists(marker) or not os.path.getsize(marker):
                    assert p.poll() is None
                    time.sleep(0.05)
                with open(marker) as f:
                    assert json.load(f).get("passphrase") == own
                p.kill()
                p.communicate()
        c.execute("DROP TABLE locked")


def in_store(cluster, store):
    """The same of an object store."""
    tools = age(cluster)
    key, recipient = tools.key("one")
    for flags, extra in ((("-r", recipient), ()), (("--passphrase-file", word(tools)), [("passphrase", True)])):
        url, folder = store.new()
        half(folder, backup(cluster, "few", "whole", *flags), *extra)
        if not extra:
            shutil.copy(key, os.path.join(folder, "key.age"))
            r = firn(cluster, "backup", "few", url, "--overwrite-incomplete", *flags, code=2, env=store.env)
            assert 'holds "key.age", which is not part of a backup' in r.stderr, r.stderr
            assert raw(os.path.join(folder, "key.age")) == raw(key)
            os.unlink(os.path.join(folder, "key.age"))
        firn(cluster, "backup", "few", url, "--overwrite-incomplete", *flags, env=store.env)
        firn(cluster, "backup", "verify", url, env=store.env)


CASES = {"encrypted keys": keys, "encrypted passphrases": passphrases, "encrypted passphrase claimed": claimed,
         "encrypted key kept": kept, "encrypted key noted": noted}
STORE_CASES = {"encrypted key kept": in_store}
