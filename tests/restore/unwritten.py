"""The disk of whoever restores is full: reports, logs and scripts that cannot be written are told of, and what is cut off is not
left to be taken for whole."""
import os
import subprocess

from restore import common
from restore.common import Missing, firn
from trouble.full import NoDisk, SmallDisk

FULL = "No space left on device"


def source(world):
    def make():
        server = world.server()
        with server.connect(server.fresh("unwritten")) as c:
            c.execute("CREATE TABLE t AS SELECT i, md5(i::text) FROM generate_series(1, 50000) i")
        return server.archive("unwritten", os.path.join(world.folder, "unwritten"), "c")
    return world.once("unwritten", make)


def run(server, *args, stdout, db="target"):
    """(exit code, standard error) of the program with this standard output."""
    r = subprocess.run([*common.program(), *server.where(db), *args], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                       timeout=common.PATIENCE, text=True, errors="replace")
    assert not common.PANIC.search(r.stderr), r.stderr
    return r.returncode, r.stderr


def small(world, body):
    """With a disk of a megabyte, which `body` fills."""
    try:
        with SmallDisk(os.path.join(world.folder, "unwritten-disk"), 1) as disk:
            body(disk)
    except NoDisk as e:
        os.rmdir(os.path.join(world.folder, "unwritten-disk"))
        raise Missing(f"a tmpfs cannot be mounted: {e}") from e


def there(server):
    with server.connect("target") as c:
        assert c.execute("SELECT count(*) FROM t").fetchone() == (50000,)


def report(world):
    """An HTML report that finds no room: the old one stays, nothing else is left, and the exit code tells."""
    server, path = world.server(), source(world)

    def body(disk):
        page = os.path.join(disk.folder, "page.html")
        for old in (None, "the old one"):
            if old:
                with open(page, "w", encoding="utf-8") as f:
                    f.write(old)
            disk.fill()
            r = firn(server, server.fresh("target"), path, f"--html-report={page}").fails(f'could not write HTML report "{page}"', FULL)
            assert r.code == 1 and "restore complete" in r.out, r.out
            there(server)
            assert sorted(os.listdir(disk.folder)) == (["ballast", "page.html"] if old else ["ballast"])
            disk.free()
        with open(page, encoding="utf-8") as f:
            assert f.read() == "the old one"
        # Beside an error that ends the restore it is told, too.
        disk.fill()
        r = firn(server, "target", path, f"--html-report={page}").fails("already exists", "could not write HTML report")
        disk.free()
        # With room it is replaced.
        firn(server, server.fresh("target"), path, f"--html-report={page}").ok()
        with open(page, encoding="utf-8") as f:
            assert "</html>" in f.read() and os.stat(page).st_mode & 0o777 == 0o600
        assert os.listdir(disk.folder) == ["page.html"]
    small(world, body)


def devices(world):
    """The same where no file system is needed to see it."""
    server, path = world.server(), source(world)
    r = firn(server, server.fresh("target"), path, "--html-report=/dev/full").fails("could not write HTML report", FULL)
    assert r.code == 1
    there(server)
    for more in (["-f", "/dev/full"], ["-l", "-f", "/dev/full"]):
        r = firn(server, "", path, *more, where=False).fails('could not write output file "/dev/full"', FULL)
        assert r.code == 1


def log(world):
    """JSON lines that cannot be written: the work is done all the same, and the exit code says that its log is not whole."""
    server, path = world.server(), source(world)
    for more in ([], ["-1"]):
        server.fresh("target")
        with open("/dev/full", "wb") as full:
            code, told = run(server, "--log-format=json", *more, path, stdout=full)
        assert code == 1 and "could not write the log to standard output" in told and FULL in told and "restore complete" in told, (code, told)
        there(server)
    # Whoever was to read it is gone.
    server.fresh("target")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as out:
        code, told = run(server, "--log-format=json", path, stdout=out)
    assert code == 1 and "could not write the log to standard output" in told, (code, told)
    there(server)

    # A log that was cut off has no more lines when there is room again, above all not the last one.
    def body(disk):
        server.fresh("target")
        name = os.path.join(disk.folder, "log")
        disk.fill(4096)
        with open(name, "wb") as out:
            code, told = run(server, "--log-format=json", "-v", "--progress-interval=1", path, stdout=out)
        with open(name, "rb") as f:
            text = f.read()
        assert (code == 0) == (text.endswith(b"\n") and b'"summary"' in text.splitlines()[-1]), (code, told, text[-300:])
    small(world, body)


def script(world):
    """A script that finds no room is not left cut off; what had its name stays."""
    server, path = world.server(), source(world)

    def body(disk):
        name = os.path.join(disk.folder, "script.sql")
        for old in (None, "the old one"):
            if old:
                with open(name, "w", encoding="utf-8") as f:
                    f.write(old)
                os.chmod(name, 0o640)
            disk.fill(200_000)
            for more in ([], ["-a"]):
                r = firn(server, "", path, "-f", name, *more, where=False).fails(f'could not write output file "{name}"', FULL)
                assert r.code == 1
            assert sorted(os.listdir(disk.folder)) == (["ballast", "script.sql"] if old else ["ballast"])
            disk.free()
        with open(name, encoding="utf-8") as f:
            assert f.read() == "the old one"
        # With room it is replaced, and as readable as it was.
        for more in (["-s"], ["-l"]):
            firn(server, "", path, *more, "-f", name, where=False).ok()
            with open(name, encoding="utf-8") as f:
                assert ("TABLE DATA" if more == ["-l"] else "CREATE TABLE") in f.read()
            assert os.stat(name).st_mode & 0o777 == 0o640
        assert os.listdir(disk.folder) == ["script.sql"]
    small(world, body)


def backup(world):
    """The same of a backup: it is complete, and its log or report is not."""
    server = world.server()
    source(world)
    program = common.program()[0]
    where = ["-h", server.root, "-p", str(server.port), "-U", "postgres"]
    for number, more in enumerate((["--log-format=json"], ["--html-report=/dev/full"])):
        dest = os.path.join(world.folder, f"unwritten-backup-{number}")
        with open("/dev/full", "wb") as full:
            r = subprocess.run([program, "backup", *where, *more, "unwritten", dest], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True)
        assert r.returncode == 1 and "could not write" in r.stderr and FULL in r.stderr, (r.returncode, r.stderr)
        assert "backup complete" in r.stderr, r.stderr
        r = subprocess.run([program, "backup", "verify", dest], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert r.returncode == 0 and "no problem" in r.stdout, r.stdout


def cases(world):
    for body in (report, devices, log, script, backup):
        yield f"unwritten {body.__name__}", lambda b=body: b(world)
