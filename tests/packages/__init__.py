"""The Debian packages of `make deb`, and the sources of `make dist`: what is in them, and a new Debian that has them installed,
runs what README and guide show, and has them taken out again. (Runs when it is named: the first build takes many minutes.)"""
import glob
import gzip
import hashlib
import os
import re
import subprocess
import tarfile
import tempfile

import docs
from harness.cluster import version
from harness.tally import Missing
from packages import sources
from packages.root import Installed, Root

ROOT = docs.ROOT
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
DEBS = os.path.join(TARGET, "deb")


def out(*args, **kw):
    return subprocess.run(args, check=True, text=True, stdout=subprocess.PIPE, **kw).stdout


def make(*args, **kw):
    return subprocess.run(["make", "--no-print-directory", *args], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **kw)


class World:
    """The packages, and what is in them."""

    def __init__(self, folder):
        self.folder = folder
        self.major = version()
        self.extension = f"postgresql-{self.major}-firn"
        self.names = [self.extension, f"{self.extension}-dbgsym", "firn", "firn-dbgsym"]
        self.library = f"usr/lib/postgresql/{self.major}/lib/firn.so"

    def deb(self, name):
        (found,) = glob.glob(os.path.join(DEBS, f"{name}_*.deb"))
        return found

    def hashes(self):
        found = {}
        for name in self.names:
            with open(self.deb(name), "rb") as f:
                found[name] = hashlib.sha256(f.read()).hexdigest()
        return found

    def field(self, name, field):
        return out("dpkg-deb", "-f", self.deb(name), field).strip()

    def build(self):
        subprocess.run([os.path.join(os.path.dirname(__file__), "tools.sh")], check=True)
        done = make("deb")
        assert done.returncode == 0, done.stdout[-3000:]
        print("".join(line + "\n" for line in done.stdout.splitlines() if line.endswith(" kB")), end="")
        for name in self.names:
            subprocess.run(["dpkg-deb", "-x", self.deb(name), self.unpacked(name)], check=True)

    def again(self):
        """The same sources give the same packages, byte by byte."""
        first = self.hashes()
        assert make("deb").returncode == 0
        assert self.hashes() == first

    def unpacked(self, name):
        return os.path.join(self.folder, name)

    def content(self, name):
        """Paths of all files, each of which belongs to root and is written by nobody else."""
        packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", self.deb(name)], check=True, stdout=subprocess.PIPE).stdout
        archive = os.path.join(self.folder, "packed.tar")
        with open(archive, "wb") as f:
            f.write(packed)
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
        assert all(m.uname == m.gname == "root" and (m.issym() or not m.mode & 0o022) for m in members)
        return {m.name.removeprefix("./") for m in members if not m.isdir()}

    def places(self):
        def doc(name):
            return {f"usr/share/doc/{name}/{f}" for f in ("copyright", "changelog.gz", "changelog.Debian.gz", "third-party.gz")}

        share = f"usr/share/postgresql/{self.major}/extension"
        wanted = {self.library, f"{share}/firn.control", f"{share}/firn--0.1.0.sql"} | doc(self.extension)
        assert self.content(self.extension) == wanted
        out(os.path.join(self.unpacked("firn"), "usr/bin/firn"), "man", "--dir", self.folder)
        pages = {os.path.basename(p) for p in glob.glob(os.path.join(self.folder, "*.1"))}
        assert "firn-restore.1" in pages
        wanted = {"usr/bin/firn", "usr/share/bash-completion/completions/firn", "usr/share/zsh/vendor-completions/_firn",
                  "usr/share/fish/vendor_completions.d/firn.fish"} | doc("firn") | {f"usr/share/man/man1/{p}.gz" for p in pages}
        assert self.content("firn") == wanted
        for name, file in ((self.extension, self.library), ("firn", "usr/bin/firn")):
            wanted = {self.symbols(name, file).removeprefix(self.unpacked(name + "-dbgsym") + "/"), f"usr/share/doc/{name}-dbgsym"}
            assert self.content(name + "-dbgsym") == wanted

    def fields(self):
        deps = self.field(self.extension, "Depends")
        assert f"postgresql-{self.major}" in deps.split(", ") and "libc6 (" in deps, deps
        deps = self.field("firn", "Depends")
        assert "libpq5 (" in deps and "libc6 (" in deps, deps
        for name in (self.extension, "firn"):
            assert self.field(name + "-dbgsym", "Depends") == f"{name} (= {self.field(name, 'Version')})"
        with open(os.path.join(ROOT, "Cargo.toml"), encoding="utf-8") as f:
            assert self.field("firn", "Version").split("-")[0] == re.search(r'^version = "(.*)"', f.read(), re.M)[1]

    def symbols(self, name, file):
        """The file of debug symbols of a file, where gdb looks for it."""
        build = re.search(r"Build ID: (\w+)", out("readelf", "-n", os.path.join(self.unpacked(name), file)))[1]
        return os.path.join(self.unpacked(name + "-dbgsym"), "usr/lib/debug/.build-id", build[:2], build[2:] + ".debug")

    def split(self):
        """No symbols in what runs; with the other package gdb and addr2line know functions and lines."""
        for name, file, function in ((self.extension, self.library, "firn::mover::"), ("firn", "usr/bin/firn", "firn_cli::restore::")):
            path, symbols = os.path.join(self.unpacked(name), file), self.symbols(name, file)
            sections = out("readelf", "-SW", path)
            # (A program of Rust names scripts for gdb, in a section that is loaded.)
            assert not re.search(r"\.debug_(?!gdb_scripts)|\.symtab", sections) and ".gnu_debuglink" in sections, sections
            at = re.search(rf"^(\w+) t {function}.*", out("nm", "-C", symbols), re.M)
            known = out("addr2line", "-f", "-C", "-e", symbols, at[1])
            assert function in known and "/usr/src/firn/crates/" in known, known
            gdb = ["gdb", "-nx", "-batch", "-ex", f"info symbol 0x{at[1]}", "-ex", f"info line *0x{at[1]}", path]
            assert function not in out(*gdb, stderr=subprocess.STDOUT)
            place = os.path.join(self.unpacked(name + "-dbgsym"), "usr/lib/debug")
            known = out(*gdb[:3], "-iex", f"set debug-file-directory {place}", *gdb[3:], stderr=subprocess.STDOUT)
            assert function in known and re.search(r"Line \d+ of ", known), known

    def silent(self):
        """Nothing tells where they were built."""
        own = [p.encode() for p in (ROOT, TARGET, os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo")), os.uname().nodename)
               if len(p) > 4]
        for name in self.names:
            for path in glob.glob(os.path.join(self.unpacked(name), "**"), recursive=True, include_hidden=True):
                if not os.path.isfile(path):
                    continue
                if path.endswith(".debug"):
                    plain = os.path.join(self.folder, "plain")
                    subprocess.run(["objcopy", "--decompress-debug-sections", path, plain], check=True)
                    path = plain
                with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
                    data = f.read()
                assert not (told := [p for p in own if p in data]), (path, told)

    def lint(self):
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *map(self.deb, self.names)], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        print(done.stdout, end="")
        assert done.returncode == 0


def refused():
    """A server that no package has gets no package."""
    other = os.path.join(os.environ["FIRN_TOOLS"], "postgresql-18/bin/pg_config")
    if not os.path.exists(other):
        raise Missing("there is no PostgreSQL 18 of its own")
    done = make("deb", f"PG_CONFIG={other}")
    assert done.returncode != 0 and "is not that of Debian's postgresql-18" in done.stdout, done.stdout


class Life:
    """What is done with the packages in a new Debian, in order."""

    def __init__(self, world, debian):
        self.world, self.debian = world, debian
        self.before, self.server = debian.files(), None

    def install(self):
        self.debian.run("dpkg", "-i", *[self.debian.put(self.world.deb(n)) for n in self.world.names])
        assert self.debian.run("dpkg", "--audit").stdout == ""
        # Each file is as packed, and nothing came beside the files of the packages.
        assert self.debian.run("dpkg", "-V", *self.world.names).stdout == ""
        listed = set(self.debian.run("dpkg", "-L", *self.world.names).stdout.splitlines())
        assert not (new := self.debian.files() - self.before - listed), new
        kept = self.debian.run("dpkg", "--dry-run", "-r", f"postgresql-{self.world.major}", check=False)
        assert kept.returncode != 0 and f"{self.world.extension} depends on postgresql-{self.world.major}" in kept.stdout, kept.stdout

    def serve(self):
        self.server = Installed(self.debian, self.world.major)

    def program(self):
        """A backup of the tour's database, restored beside it."""
        run = self.server.run
        assert run("firn", "--version").stdout.startswith("firn 0.1.0")
        run("firn", "backup", "tour", "/tmp/tour-backup")
        run("createdb", "tour2")
        run("firn", "restore", "-d", "tour2", "--verify=checksums", "/tmp/tour-backup")
        assert run("psql", "-XAtd", "tour2", "-c", "SELECT count(*) FROM trips").stdout == "499999\n"
        run("bash", "-n", "/usr/share/bash-completion/completions/firn")

    def remove(self):
        if self.server:
            log = self.debian.run("sh", "-c", "cat /var/log/postgresql/*.log").stdout
            assert not re.search(r"PANIC|terminated by signal|could not read stripe|panicked at", log), log
            self.server.stop()
        self.debian.run("dpkg", "-P", *self.world.names)
        assert self.debian.files() == self.before, self.debian.files() ^ self.before


def run(tally, pattern):
    with tempfile.TemporaryDirectory(prefix="firn-packages-") as folder:
        world = World(folder)
        tally.case("packages build", world.build)
        for name, case in (("files are where they belong", world.places), ("fields", world.fields), ("debug symbols", world.split),
                           ("tell nothing of where they were built", world.silent), ("are the same again", world.again),
                           ("not for servers without a package", refused), ("lintian", world.lint)):
            if pattern in name:
                tally.case(f"packages {name}", case)
        if pattern in "sources":
            tally.case("packages sources", lambda: sources.check(folder))
        if pattern in "installed":
            installed(tally, world)


def installed(tally, world):
    debian = None

    def begin():
        nonlocal debian
        debian = Root(world.major)

    tally.case("packages a new Debian", begin)
    if not debian:
        return
    try:
        life = Life(world, debian)
        tally.case("packages installed", life.install)
        tally.case("packages server", life.serve)
        for number, path in enumerate(docs.documents()):
            if docs.has_examples(path):
                tally.case(f"packages examples of {os.path.relpath(path, ROOT)}", lambda: docs.run_examples(life.server, path, number))
        tally.case("packages program", life.program)
        tally.case("packages removed", life.remove)
    finally:
        debian.end()
