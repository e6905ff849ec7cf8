"""Damaged and hostile archives: a clear error, nothing done that need not be, never a crash or a hang."""
import gzip
import os
import random
import shutil
import tarfile

from restore import common, flags, roundtrip
from restore.common import NEW, PANIC, firn, pg18, same

SEED = int(os.environ.get("FIRN_DAMAGE_SEED", "20240501"))
CUTS, FLIPS = 25, 60
# No damage makes a restore of these archives take longer, in seconds.
AT_MOST = 60


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)
    return path


def empty_before(world):
    server = world.server()
    server.fresh("target")
    return server, server.dump("target")


def cut(world):
    """Cut off anywhere: an error, and if the table of contents is not whole nothing is done."""
    server, empty = empty_before(world)
    flags.source(world)
    data = read(flags.archive(world))
    dice = random.Random(SEED)
    places = sorted({0, 4, 5, 11, len(data) - 1, len(data) - 2, *(dice.randrange(len(data)) for _ in range(CUTS))})
    path = os.path.join(world.folder, "cut")
    for place in places:
        server.fresh("target")
        run = firn(server, "target", write(path, data[:place]), "--jobs", "2", patience=AT_MOST).fails()
        assert "error" in run.out.lower(), run.out
        if place < first_data(server, flags.archive(world)):
            same(empty, server.dump("target"), f"cut at {place}")


def first_data(server, path):
    """The offset of the first data block: pg_restore needs no more than this to list the archive."""
    data = read(path)
    probe = path + ".probe"
    low, high = 0, len(data)
    while low < high:
        middle = (low + high) // 2
        write(probe, data[:middle])
        if server.program("pg_restore", "-l", probe, check=False).returncode == 0:
            high = middle
        else:
            low = middle + 1
    os.unlink(probe)
    return low


def flipped(world):
    """Bits flipped in the table of contents: whatever it says then, no crash, no hang."""
    server, _ = empty_before(world)
    source = flags.archive(world)
    data = read(source)
    end = first_data(server, source)
    dice = random.Random(SEED)
    path = os.path.join(world.folder, "flipped")
    failed = 0
    for n in range(FLIPS):
        damaged = bytearray(data)
        # The header and the numbers between texts are what a reader is led astray by.
        place = dice.randrange(60) if n % 4 == 0 else dice.randrange(end)
        damaged[place] ^= 1 << dice.randrange(8)
        write(path, bytes(damaged))
        run = firn(server, "", path, "--list", where=False, patience=AT_MOST)
        assert run.code in (0, 1, 2) and not PANIC.search(run.out), f"byte {place} of {SEED}: {run.code}\n{run.out[-2000:]}"
        assert run.peak < 1 << 30, f"byte {place}: {run.peak >> 20} MiB"
        failed += run.code != 0
        server.fresh("target")
        run = firn(server, "target", path, "--jobs", "2", "--on-error", "continue", patience=AT_MOST)
        # 3: a bit of a tag, for example, is another object than the statement makes, and comparing at the end says so.
        assert run.code in (0, 1, 2, 3) and not PANIC.search(run.out), f"byte {place} of {SEED}: {run.code}\n{run.out[-2000:]}"
    assert failed > FLIPS // 10, f"only {failed} of {FLIPS} were noticed"


def flipped_data(world):
    """Bits flipped in compressed rows: the table is named, and it has no row rather than wrong ones."""
    server, _ = empty_before(world)
    flags.source(world)
    source = flags.archive(world, "d")
    folder = os.path.join(world.folder, "damaged")
    dice = random.Random(SEED)
    names = sorted(n for n in os.listdir(source) if n.endswith(".dat.gz") and not n.startswith("blob")
                   and os.path.getsize(os.path.join(source, n)) > 60)
    for name in dice.sample(names, 5):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        data = bytearray(read(os.path.join(source, name)))
        data[dice.randrange(12, len(data) - 1)] ^= 1 << dice.randrange(8)
        write(os.path.join(folder, name), bytes(data))
        server.fresh("target")
        firn(server, "target", folder, "--jobs", "2", "--on-error", "continue", patience=AT_MOST).fails(name.split(".")[0])
        with server.connect("target") as c, server.connect("zoo") as z:
            tables = [r[0] for r in c.execute(
                "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND oid >= 16384 AND relnamespace::regnamespace::text "
                "<> 'firn_restore'")]
            short = [t for t in tables if c.execute(f"SELECT count(*) FROM ONLY {t}").fetchone()
                     != z.execute(f"SELECT count(*) FROM ONLY {t}").fetchone()]
            assert len(short) == 1, short
            assert c.execute(f"SELECT count(*) FROM ONLY {short[0]}").fetchone() == (0,), short


def missing_file(world):
    """A data file that is not there, or is a folder, is empty, is of another table's length."""
    server, _ = empty_before(world)
    source = flags.archive(world, "d")
    folder = os.path.join(world.folder, "missing")
    names = sorted(n for n in os.listdir(source) if n.endswith(".dat.gz") and not n.startswith("blob")
                   and os.path.getsize(os.path.join(source, n)) > 60)
    for change in ("gone", "folder", "empty", "short"):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        victim = os.path.join(folder, names[0])
        os.unlink(victim)
        if change == "folder":
            os.mkdir(victim)
        elif change == "empty":
            write(victim, b"")
        elif change == "short":
            write(victim, read(os.path.join(source, names[0]))[:-9])
        server.fresh("target")
        firn(server, "target", folder, "--jobs", "2", patience=AT_MOST).fails(names[0].split(".")[0])
    shutil.rmtree(folder)
    shutil.copytree(source, folder)
    os.unlink(os.path.join(folder, "toc.dat"))
    _, empty = empty_before(world)
    firn(server, "target", folder).fails("toc.dat")
    same(empty, server.dump("target"))


def inserts_cut(world):
    """INSERT statements of which the last are missing, or all: an error where the archive has nothing else to tell it by, no rows."""
    server, _ = empty_before(world)
    db = server.fresh("inserts_cut")
    with server.connect(db) as c:
        c.execute("CREATE TABLE t AS SELECT generate_series(1, 3) AS i; CREATE TABLE none (i int)")
    source = world.archive("inserts_cut", lambda p: server.archive(db, p, "d", "0", extra=("--inserts",)))
    folder = os.path.join(world.folder, "inserts")
    name = next(n for n in os.listdir(source) if b"(3)" in read(os.path.join(source, n)) and n != "toc.dat")
    empty = next(n for n in os.listdir(source) if n not in (name, "toc.dat"))
    text = read(os.path.join(source, name))
    for victim, left in ((name, text), (empty, b"\n\n"), (name, b""), (empty, b""), (empty, b"\n"), (name, text[:-1]), (name, text[:-3] + b"\n"),
                         (name, text[:text.index(b"INSERT INTO public.t VALUES (3)")]), (name, text[:text.index(b"(3)")])):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        assert left or read(os.path.join(folder, victim))
        write(os.path.join(folder, victim), left)
        server.fresh("target")
        run = firn(server, "target", folder, "--jobs", "2", patience=AT_MOST)
        if left in (text, b"\n\n"):
            run.ok()
            continue
        run.fails(victim, "unexpected end")
        with server.connect("target") as c:
            assert victim == empty or c.execute("SELECT count(*) FROM t").fetchone() == (0,), left


def hostile_path(world):
    """File names in a directory's table of contents that lead out of it are not followed."""
    server, empty = empty_before(world)
    source = flags.archive(world, "d")
    folder = os.path.join(world.folder, "hostile")
    names = sorted(n[:-3] for n in os.listdir(source) if n.endswith(".dat.gz") and not n.startswith("blob"))
    outside = os.path.join(world.folder, "x.da")
    write(outside, b"1\tsecret\n\\.\n")
    toc = read(os.path.join(source, "toc.dat"))
    for evil in ("../x.da", "/etc/a."):
        name = next(n for n in names if len(n) >= len(evil))
        padded = evil if len(evil) == len(name) else evil[0:2] + "/" * (len(name) - len(evil)) + evil[2:]
        assert len(padded) == len(name)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        write(os.path.join(folder, "toc.dat"), toc.replace(name.encode(), padded.encode()))
        server.fresh("target")
        firn(server, "target", folder, patience=AT_MOST).fails(padded)
        same(empty, server.dump("target"))


def hostile_link(world):
    """A data file that is a pipe nobody writes to does not hang the restore for ever."""
    server, _ = empty_before(world)
    source = flags.archive(world, "d")
    folder = os.path.join(world.folder, "pipe")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    name = next(n for n in sorted(os.listdir(folder)) if n.endswith(".dat.gz"))
    os.unlink(os.path.join(folder, name))
    os.mkfifo(os.path.join(folder, name))
    firn(server, "target", folder, patience=AT_MOST).fails(name.split(".")[0])


def no_archive(world):
    """What is no archive at all is called what it is."""
    server, empty = empty_before(world)
    folder = os.path.join(world.folder, "none")
    os.makedirs(folder, exist_ok=True)
    dice = random.Random(SEED)
    tar = world.archive("tar", lambda p: server.archive(flags.source(world)[0], p, "t"))
    other = os.path.join(folder, "other.tar")
    with tarfile.open(other, "w") as t:
        t.add(os.path.abspath(__file__), "damage.py")
    things = {
        "nothing": (os.path.join(folder, "nothing"), "nothing"),
        "noise": (write(os.path.join(folder, "noise"), dice.randbytes(5000)), ""),
        "empty": (write(os.path.join(folder, "empty"), b""), ""),
        "text": (write(os.path.join(folder, "text"), b"--\n-- PostgreSQL database dump\n--\n\nSET x = 1;\n"), "psql"),
        "gzipped text": (write(os.path.join(folder, "text.gz"), gzip.compress(b"--\n-- PostgreSQL database dump\n--\n")), ""),
        "folder": (folder, "toc.dat"),
        "half a tar archive": (write(os.path.join(folder, "half"), read(tar)[:len(read(tar)) // 2]), "unexpected end"),
        "tar of other things": (other, "toc.dat"),
        "newer": (write(os.path.join(folder, "newer"), b"PGDMP\x01\x63" + read(flags.archive(world))[7:]), "version"),
    }
    for name, (path, word) in things.items():
        run = firn(server, "target", path, patience=AT_MOST).fails(word)
        assert run.out.count("\n") < 12, f"{name}: {run.out}"
        same(empty, server.dump("target"), name)


def compressed_noise(world):
    """Bits flipped in rows under lz4 and zstd, which pg_dump writes without checksums: no crash, no hang."""
    if not pg18():
        raise common.Missing("PostgreSQL 18 is not there: scripts/postgresql.sh 18 gets it")
    server = world.server(NEW)
    dice = random.Random(SEED)
    path = os.path.join(world.folder, "noise")
    for z in ("lz4", "zstd:3"):
        data = read(roundtrip.archive(world, NEW, "c", z))
        start = first_data(server, roundtrip.archive(world, NEW, "c", z))
        for _ in range(8):
            damaged = bytearray(data)
            damaged[dice.randrange(start, len(data))] ^= 1 << dice.randrange(8)
            server.fresh("target")
            run = firn(server, "target", write(path, bytes(damaged)), "--jobs", "2", patience=AT_MOST)
            assert run.code in (0, 1) and not PANIC.search(run.out), run.out[-2000:]


def cases(world):
    for body in (cut, flipped, flipped_data, missing_file, inserts_cut, hostile_path, hostile_link, no_archive, compressed_noise):
        yield f"damage {body.__name__.replace('_', ' ')}", lambda b=body: b(world)
