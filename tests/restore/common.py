"""What the tests of `firn restore` share: servers of both versions, sources and their archives, dumps to compare."""
import difflib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter

from harness.cluster import Cluster
from harness.tally import Missing
from harness.versions import copy

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "benches", "restore"))
import schema  # noqa: E402

# Lines of a dump that cannot be equal: who dumped it, and the random word of psql's restricted mode.
VOLATILE = re.compile(rb"^(-- Dumped (from|by) .*|\\(un)?restrict .*|-- (Started|Completed) on .*)\n", re.M)
# What a program says when it has lost its head.
PANIC = re.compile(r"panicked at|RUST_BACKTRACE|stack overflow")
OLD, NEW = "15", "18"
# No restore of these tests takes so long, in seconds.
PATIENCE = 300


def pg18():
    """The folder of PostgreSQL 18, if scripts/postgresql.sh has put it there."""
    folder = os.path.join(os.environ.get("FIRN_TOOLS", os.path.join(ROOT, "target/tools")), "postgresql-18")
    return folder if os.path.exists(os.path.join(folder, ".firn-whole")) else None


class Run:
    """How a program ended."""

    def __init__(self, code, out, seconds, peak, args=()):
        self.code, self.out, self.seconds, self.peak, self.args = code, out, seconds, peak, args

    def ok(self):
        assert self.code == 0, f"exit code {self.code}:\n{self.out[-3000:]}"
        return self

    def fails(self, *words):
        """It ends with an error that has these words, and not by losing its head."""
        assert self.code in (1, 2, 3), f"exit code {self.code}:\n{self.out[-3000:]}"
        assert not PANIC.search(self.out), self.out[-3000:]
        for word in words:
            assert word in self.out, f"no {word!r} in\n{self.out[-3000:]}"
        return self


class Child:
    """A program in the background whose output goes to a file."""

    def __init__(self, args, env=None):
        self.output = tempfile.TemporaryFile()
        self.args, self.begin = args, time.time()
        self.process = subprocess.Popen(args, env=env, stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT)
        self.peak = 0

    def poll(self):
        """The exit code once it has ended. Keeps its memory's high water mark, in bytes (that of wait4 has ours in it)."""
        code = self.process.poll()
        if code is None:
            try:
                with open(f"/proc/{self.process.pid}/status") as f:
                    found = re.search(r"VmHWM:\s+(\d+) kB", f.read())
                self.peak = max(self.peak, int(found[1]) * 1024) if found else self.peak
            except FileNotFoundError:
                pass
        return code

    def wait(self, seconds=PATIENCE):
        """Wait for its end, kill it when it takes too long."""
        end = time.time() + seconds
        while self.poll() is None:
            if time.time() > end:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"still running after {seconds} s:\n{self.read()[-3000:]}")
            time.sleep(0.005)
        return Run(self.process.returncode, self.read(), time.time() - self.begin, self.peak, self.args)

    def until(self, c, sql):
        """Waits until a query finds something, which it does while the program runs; the row."""
        while not (row := c.execute(sql).fetchone()):
            assert self.poll() is None, self.read()
            time.sleep(0.01)
        return row

    def read(self):
        # Not by seeking: the program writes where this file is.
        return os.pread(self.output.fileno(), os.fstat(self.output.fileno()).st_size, 0).decode(errors="replace")


class Server(Cluster):
    """A server of either version, with what the tests do to it."""

    def __init__(self, version, conf=(), name="restore", base=None):
        self.version = version
        bindir = None
        if version == NEW:
            if not pg18():
                raise Missing("PostgreSQL 18 is not there: scripts/postgresql.sh 18 gets it")
            bindir = "unknown"
        settings = ("fsync=off", "synchronous_commit=off", "max_locks_per_transaction=512", "max_connections=40", *conf)
        super().__init__(f"{name}-{version}", conf=settings, base=base, bindir=bindir, preload="")
        if version == NEW:
            # Where the server's user may read it.
            copy(pg18(), os.path.join(self.root, "pg"))
            self.bin = os.path.join(self.root, "pg", "bin")
        self.env = dict(os.environ, LD_LIBRARY_PATH=os.path.join(self.root, "pg", "lib")) if version == NEW else None

    def run(self, program, *args, **kw):
        return super().run(program, *args, env=self.env, **kw)

    def where(self, db):
        return ["-h", self.root, "-p", str(self.port), "-U", "postgres", "-d", db]

    def program(self, name, *args, check=True):
        """Run one of this version's client programs as ourselves; its output as bytes."""
        r = subprocess.run([os.path.join(self.bin, name), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           stdin=subprocess.DEVNULL, timeout=PATIENCE, env=self.env)
        if check and r.returncode != 0:
            raise RuntimeError(f"{name} {' '.join(args)}: {r.stderr.decode(errors='replace')[-3000:]}")
        return r

    def roles(self, *roles):
        """Roles of these names, with their options, unless they are there: other cases may need them, too."""
        with self.connect() as c:
            for role in roles:
                c.execute(f"DO $$ BEGIN CREATE ROLE {role}; EXCEPTION WHEN duplicate_object THEN END $$")

    def fresh(self, db, template="template0"):
        """An empty database of this name."""
        with self.connect() as c:
            c.execute(f'DROP DATABASE IF EXISTS "{db}" WITH (FORCE)')
            c.execute(f'CREATE DATABASE "{db}" TEMPLATE {template}')
        return db

    def exists(self, db):
        with self.connect() as c:
            return c.execute("SELECT count(*) FROM pg_database WHERE datname = %s", (db,)).fetchone() == (1,)

    def dump(self, db, *args, by=None):
        """A plain dump of a database by this server's pg_dump (or another's, `by`), without what cannot be equal."""
        text = (by or self).program("pg_dump", *self.where(db), *args).stdout
        return VOLATILE.sub(b"", text)

    def dump_beside_journal(self, db):
        """The same, but for the journal that a restore with failures leaves behind, for --resume."""
        return self.dump(db, "-N", "firn_restore")

    def archive(self, db, path, form, compress=None, by=None, extra=()):
        """Write an archive of a database: `form` is c or d, `compress` what pg_dump's -Z takes."""
        if os.path.isdir(path):
            shutil.rmtree(path)
        z = [] if compress is None else ["-Z", compress]
        (by or self).program("pg_dump", *self.where(db), "-F", form, "-f", path, *z, *extra)
        return path

    def pg_restore(self, db, archive, *args, by=None, check=True):
        return (by or self).program("pg_restore", *self.where(db), *args, archive, check=check)


def some(few, all_of_them, draw):
    """So many of them, drawn: those that FIRN_CATALOGS says, a number or `all`."""
    asked = os.environ.get("FIRN_CATALOGS")
    if asked == "all":
        return all_of_them
    return draw.sample(all_of_them, min(len(all_of_them), int(asked or few)))


def program():
    """The command that is tested. FIRN_RESTORE_WITH names another (pg_restore, to test the tests themselves)."""
    other = os.environ.get("FIRN_RESTORE_WITH")
    if other:
        return [other]
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return [os.path.join(target, "release", "firn"), "restore"]


def firn(server, db, archive, *args, where=True, wait=True, env=None, patience=PATIENCE):
    """Restore an archive into a database; a Run, or with wait=False a Child."""
    command = [*program(), *(server.where(db) if where else []), *args, archive]
    child = Child(command, env=dict(os.environ, **env) if env else None)
    return child.wait(patience) if wait else child


# The rows of a table in a dump, of which there may be none: they never begin with the end of rows.
ROWS = re.compile(rb"(?<= FROM stdin;\n)(?:(?!\\\.\n).*\n)*(?=\\\.\n)")


def sorted_rows(dump):
    """With the rows of each table sorted: their order is where the server found room for them."""
    return ROWS.sub(lambda m: b"".join(sorted(m[0].splitlines(True))), dump)


def same(expected, got, what=""):
    """Two dumps are the same text, but for the order of rows."""
    if expected == got:
        return
    expected, got = sorted_rows(expected), sorted_rows(got)
    if expected == got:
        return
    lines = difflib.unified_diff(expected.decode(errors="replace").splitlines(), got.decode(errors="replace").splitlines(),
                                 "expected", "got", lineterm="", n=1)
    text = []
    for line in lines:
        text.append(line[:300])
        if len(text) >= 60:
            text.append("…")
            break
    raise AssertionError(f"dumps differ {what}\n" + "\n".join(text))


# A block of a dump: what stands below a comment that names the object.
BLOCK = re.compile(rb"^--\n-- (?:Data for )?Name: ", re.M)


FAMILY = re.compile(rb"^(ALTER OPERATOR FAMILY .* ADD\n)((?:    .*\n)+)", re.M)


def sorted_families(dump):
    """With the members of each operator family sorted: pg_dump sorts its functions by number, which two may have."""
    return FAMILY.sub(lambda m: m[1] + b"\n".join(sorted(line.rstrip(b" ,;") for line in m[2].splitlines())), dump)


def same_blocks(expected, got, what=""):
    """Two dumps have the same blocks, in any order: pg_dump sorts objects of one name by oid."""
    if expected == got:
        return
    expected, got = sorted_families(sorted_rows(expected)), sorted_families(sorted_rows(got))
    a, b = Counter(BLOCK.split(expected)), Counter(BLOCK.split(got))
    if a == b:
        return
    missing, more = sorted((a - b).elements()), sorted((b - a).elements())
    text = [f"{len(missing)} blocks are missing, {len(more)} too many {what}"]
    heads = {block.split(b"\n")[0]: block for block in more}
    for block in missing[:12]:
        other = heads.pop(block.split(b"\n")[0], b"")
        text += changed(block, other)
    for block in [h for h in more if h.split(b"\n")[0] in heads][:12]:
        text += changed(b"", block)
    raise AssertionError("\n".join(text))


def changed(a, b):
    """What differs between two blocks, with the line that names them."""
    a, b = a.decode(errors="replace").splitlines(), b.decode(errors="replace").splitlines()
    lines = [line[:200] for line in difflib.unified_diff(a, b, lineterm="", n=0) if line[1:] and not line.startswith("@@")]
    return [(a or b)[0][:120], *lines[2:14]]


def generate(server, db, tables, without=()):
    """A database with the schema of benches/restore."""
    server.fresh(db)
    folder = tempfile.mkdtemp(prefix="firn-schema-")
    try:
        steps = schema.write(folder, tables, without)
        schema.load(folder, steps, f"host={server.root} port={server.port} user=postgres dbname={db}", 2,
                    os.path.join(server.bin, "psql"))
    finally:
        shutil.rmtree(folder)
    return db


def postgres_owns(path):
    """Let the server's user own what we have written, where we are root."""
    if os.getuid() == 0:
        user = pwd.getpwnam("postgres")
        for folder, _, files in os.walk(path):
            for name in ("", *files):
                os.chown(os.path.join(folder, name), user.pw_uid, user.pw_gid)


class World:
    """Servers and sources, made when first asked for, gone at the end."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="firn-restore-")
        self.servers, self.made = {}, {}

    def server(self, version=OLD):
        if version not in self.servers:
            server = Server(version)
            self.servers[version] = server
            server.create()
        return self.servers[version]

    def once(self, key, make):
        """What `make` returns, made only once."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def generated(self, tables=600, version=OLD, without=()):
        """(database, its dump) of a generated schema."""
        def make():
            server = self.server(version)
            db = generate(server, f"source_{tables}_{len(without)}", tables, without)
            return db, server.dump(db)
        return self.once(("generated", tables, version, tuple(without)), make)

    def archive(self, key, make):
        """The path of an archive that `make` writes to the path it is given."""
        return self.once(("archive", key), lambda: make(os.path.join(self.folder, key)))

    def close(self):
        for server in self.servers.values():
            server.destroy()
        shutil.rmtree(self.folder, ignore_errors=True)
