"""`firn backup verify` finds each kind of damage, without a server, and names it."""
import os
import random
import shutil

from backup.zoo import backup, place
from harness.program import firn


def damages(cluster):
    good = backup(cluster, "few", "good")
    names = sorted(os.listdir(good))
    data = max((n for n in names if ".dat" in n and n[0].isdigit()), key=lambda n: os.path.getsize(os.path.join(good, n)))
    blob = next(n for n in names if n.startswith("blob_"))
    blobs = next(n for n in names if n.startswith("blobs"))
    dice = random.Random(3)

    def check(what, change, *expected):
        path = place(cluster, "bad")
        shutil.copytree(good, path)
        change(path)
        r = firn(cluster, "backup", "verify", path, code=3, env={"PGHOST": "/nowhere"})
        for text in expected:
            assert text in r.stdout, (what, text, r.stdout)
        assert "problem" in r.stderr, r.stderr

    def flip(name):
        def change(path):
            with open(os.path.join(path, name), "r+b") as f:
                at = dice.randrange(os.path.getsize(os.path.join(path, name)))
                f.seek(at)
                byte = f.read(1)[0]
                f.seek(at)
                f.write(bytes([byte ^ (1 << dice.randrange(8))]))
        return change

    def cut(name):
        return lambda path: os.truncate(os.path.join(path, name), dice.randrange(os.path.getsize(os.path.join(path, name))))

    def gone(*names):
        return lambda path: [os.unlink(os.path.join(path, name)) for name in names]

    def extra(path):
        with open(os.path.join(path, "999999.dat.gz"), "w"):
            pass

    firn(cluster, "backup", "verify", good, env={"PGHOST": "/nowhere"})
    for name in (data, blob, blobs, "toc.dat"):
        for _ in range(5):
            check(f"flip {name}", flip(name), f'"{name}": the file\'s bytes do not have the SHA-256')
        check(f"cut {name}", cut(name), f'"{name}": the file has ')
        check(f"no {name}", gone(name), f'"{name}": the file is missing')
    for _ in range(20):
        check("flip manifest", flip("manifest.json"), "manifest is damaged")
    check("cut manifest", cut("manifest.json"), "manifest is damaged")
    check("no manifest", gone("manifest.json"), "there is no manifest")
    check("extra file", extra, '"999999.dat.gz": the file does not belong to the backup')
    check("several", lambda p: (gone(data, blob)(p), flip("toc.dat")(p), extra(p)), f'"{data}": the file is missing',
          f'"{blob}": the file is missing', "toc.dat", "999999")
    check("swapped", lambda p: swap(p, names), "instead of")
    empty = place(cluster, "bad")
    os.mkdir(empty)
    r = firn(cluster, "backup", "verify", empty, code=3)
    assert "there is no backup" in r.stdout, r.stdout
    firn(cluster, "backup", "verify", place(cluster, "bad"), code=1)


def swap(path, names):
    a, b = [n for n in names if ".dat" in n and n[0].isdigit()][:2]
    a, b = os.path.join(path, a), os.path.join(path, b)
    os.rename(a, a + ".x")
    os.rename(b, a)
    os.rename(a + ".x", b)
