"""pg_upgrade from each version that has the extension to each later one, in each mode: every row is there, cold ones too, and all goes on.

The old cluster is made once a version and copied for each upgrade. The new one's library is looked for by PostgreSQL's own check."""
import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time

import psycopg

from golden.newer import of_version, refused as of_newer
from harness.cluster import FOLDER
from harness.tally import Missing
from harness.versions import Server, copy, installed
from restore.versions import UNSTAMP
from trouble.damage import by_hand, toast_of
from upgrade import content
from upgrade.reflinks import Reflinks

CONF = ["fsync=off", "autovacuum=off", "jit=off"]
# Moments at which pg_upgrade is killed, as parts of the time that it takes when it is not.
MOMENTS = (0.3, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
if os.environ.get("FIRN_MOMENTS"):
    # So many of them, the later ones, at which the new cluster is made.
    MOMENTS = MOMENTS[-2 * int(os.environ["FIRN_MOMENTS"]) + 1::2]


class World:
    """Folders and old clusters of a run."""

    def __init__(self, folder=FOLDER):
        self.base = tempfile.mkdtemp(prefix="firn-upgrade-", dir=folder)
        os.chmod(self.base, 0o755)
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.base, user.pw_uid, user.pw_gid)
        self.servers = installed()
        self.sources = {}

    def server(self, name, version, **kw):
        return Server(name, self.servers[version], self.base, conf=CONF, **kw)

    def folder(self, name):
        path = os.path.join(self.base, name)
        os.mkdir(path)
        os.chmod(path, 0o777)
        return path

    def source(self, version):
        """A stopped cluster of that version with everything in it, and the folder of its stores. One of its sessions has died in the middle of an offload, and one of a load
        of rows, so there is something to be cleaned up."""
        if version not in self.sources:
            store = self.folder(f"store-{version}")
            for name in ("cold", "spare0", "spare2"):
                self.folder(f"store-{version}/{name}")
            source = self.server(f"source-{version}", version).create()
            with source.connect() as c:
                c.execute("CREATE EXTENSION firn")
                content.make(c, store)
            for statement in ("SET firn.crash_point = 'offload-uploaded'; SELECT firn.offload('firn_many', 'cold')",
                              "SET firn.bulk_threshold = 0; SET firn.crash_point = 'bulk-reserved'; INSERT INTO firn_stripes SELECT i FROM generate_series(10001, 20000) i"):
                try:
                    with source.connect() as c:
                        for part in statement.split("; "):
                            c.execute(part)
                except Exception:  # noqa: BLE001 - the connection is gone
                    pass
                source.wait_recovered()
            with source.connect() as c:
                content.compare(c)
                # What PostgreSQL 15.20 stamps columns with, of heap tables as well, no other version takes back: as in restore/versions.py.
                c.execute(UNSTAMP)
            source.stop()
            self.sources[version] = source, store
        return self.sources[version]

    def copy(self, version):
        """Another cluster with the same files."""
        source, store = self.source(version)
        copy = self.server(f"old-{version}", version)
        copy.run("/bin/cp", "-a", source.data, copy.data)
        conf = os.path.join(copy.data, "postgresql.conf")
        with open(conf) as f:
            text = f.read()
        with open(conf, "w") as f:
            f.write(text.replace(source.root, copy.root))
        return copy, store

    def close(self):
        shutil.rmtree(self.base, ignore_errors=True)


def arguments(old, new, *more):
    return ["-b", old.bin, "-B", new.bin, "-d", old.data, "-D", new.data, "-U", "postgres", "-p", "50432", "-P", "50433", "-s", new.root, *more]


def upgrade(old, new, *more, check=True):
    r = new.run("pg_upgrade", *arguments(old, new, *more), check=False)
    if check and r.returncode != 0:
        logs = subprocess.run(["grep", "-rhE", "ERROR|FATAL|PANIC|error:", os.path.join(new.data, "pg_upgrade_output.d")], text=True, stdout=subprocess.PIPE).stdout
        raise RuntimeError(f"{r.stdout[-1500:]}\n{logs[-1500:]}")
    return r


def can(new, mode):
    """Whether pg_upgrade has the mode."""
    if mode not in new.run("pg_upgrade", "--help").stdout:
        raise Missing(f"no {mode} in this version")


DEPENDENCIES = "SELECT count(*) FROM pg_depend WHERE refclassid = 'pg_foreign_server'::regclass AND classid = 'pg_class'::regclass"


def refused(c, statement, code):
    try:
        c.execute(statement)
    except psycopg.Error as e:
        assert e.sqlstate == code and (code != "2BP01" or "table firn_" in e.diag.message_detail), (e, e.diag.message_detail)
    else:
        raise AssertionError(f"{statement} was done")


def first(c, mode):
    """What pg_upgrade loses, by whichever statement comes first: who looks for a server to drop is told of the cold stripes there."""
    assert c.execute(DEPENDENCIES).fetchone() == (0,)
    if mode == "--copy":
        c.execute("BEGIN; ALTER SERVER cold RENAME TO renamed")
        refused(c, "DROP SERVER renamed", "2BP01")
        c.execute("ROLLBACK; BEGIN; ALTER EXTENSION plpgsql ADD SERVER cold")
        refused(c, "DROP EXTENSION plpgsql", "2BP01")
        # Nothing is asked for schemas that hold no such extension, whoever has a table.
        c.execute("ROLLBACK; DROP SCHEMA IF EXISTS firn_toast CASCADE; DROP EXTENSION IF EXISTS firn_toast; CREATE SCHEMA other; DROP SCHEMA other CASCADE")
        assert c.execute(DEPENDENCIES).fetchone() == (0,)
        c.execute("DROP SERVER spare2")
        assert c.execute(DEPENDENCIES).fetchone() == (2,)
    elif mode == "--link":
        # In a block that is rolled back, then outside of one; a single table, and a table that another has locked.
        c.execute("BEGIN; ANALYZE firn_stripes")
        assert c.execute(DEPENDENCIES).fetchone() == (2,)
        c.execute("ROLLBACK")
        assert c.execute(DEPENDENCIES).fetchone() == (0,)
        c.execute("SET default_transaction_read_only = on; ANALYZE firn_stripes; RESET default_transaction_read_only")
        c.execute("VACUUM firn_stripes")
    else:
        c.execute("BEGIN; DROP EXTENSION firn CASCADE; ROLLBACK")
        refused(c, "DROP EXTENSION firn", "2BP01")
        refused(c, "DROP SERVER cold", "2BP01")
        c.execute("ANALYZE firn_stripes")
    assert c.execute(DEPENDENCIES).fetchone() == (2,)
    refused(c, "DROP SERVER cold", "2BP01")


def after(c, store):
    """What only the new cluster can tell: stores are known, everything can be changed, and goes away."""
    content.change(c)
    content.compare(c, where="after changes")
    found = c.execute(DEPENDENCIES).fetchone()
    assert found == (2,), found
    # The store is known by its marker: an empty folder in its place is refused.
    place = os.path.join(store, "cold")
    os.rename(place, place + ".away")
    os.mkdir(place)
    os.chmod(place, 0o777)
    try:
        refused(c, "SELECT firn.offload('firn_many', 'cold')", "HV00N")
        # Under another name it is still known; a name that is gone is not.
        c.execute("ALTER SERVER cold RENAME TO colder")
        assert c.execute("SELECT server FROM firn.stores ORDER BY 1").fetchall() == [("colder",)]
        c.execute("ALTER SERVER colder RENAME TO cold")
        refused(c, "SELECT firn.offload('firn_many', 'cold')", "HV00N")
    finally:
        shutil.rmtree(place)
        os.rename(place + ".away", place)
    before = content.objects(store)
    c.execute("SELECT firn.offload('firn_many', 'cold'), firn.load('firn_colder')")
    c.execute("VACUUM")
    content.compare(c, where="after moves")
    now = content.objects(store)
    assert before.items() <= now.items() and len(now) > len(before)
    for statement in ("ALTER TABLE firn_altered SET ACCESS METHOD heap", "ALTER TABLE heap_mixed SET ACCESS METHOD firn", "VACUUM FULL firn_mixed", "REINDEX TABLE firn_stripes"):
        c.execute(statement)
    content.compare(c, where="after rewrites")
    c.execute("DROP EXTENSION firn CASCADE")
    assert c.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'firn%' AND relkind IN ('r', 'm') AND relname <> 'firn_altered' AND relname <> 'firn_parts_2'").fetchone() == (0,)


def whole(world, old_version, new_version, mode):
    """An upgrade; then, where it leaves the old files, the old cluster again, beside the new one."""
    old, store = world.copy(old_version)
    new = world.server(f"new-{new_version}", new_version).create_empty()
    own = os.path.join(world.base, f"stores-{old_version}-{new_version}{mode}")
    try:
        can(new, mode)
        before = content.objects(store)
        begin = time.time()
        upgrade(old, new, mode)
        print(f"     {old_version} to {new_version} {mode}: {time.time() - begin:.1f} s", flush=True)
        assert content.objects(store) == before
        # From here on each upgrade has stores of its own, but for the one whose old cluster is started again beside it.
        if mode in ("--copy", "--clone"):
            own = store
        else:
            shutil.copytree(store, own)
            subprocess.run(["chmod", "-R", "a+rwX", own], check=True)
        new.start()
        with new.connect() as c:
            first(c, mode)
            content.compare(c, where="upgraded")
            for server in ("cold", "spare0"):
                c.execute(f"ALTER SERVER {server} OPTIONS (SET url 'file://{own}/{server}')")
            after(c, own)
        assert not new.alarms(), new.alarms()
        with open(new.log) as f:
            assert "still active" not in f.read()
        if mode in ("--copy", "--clone"):
            old.start()
            with old.connect() as c:
                content.compare(c, where="the old cluster again")
            assert not old.alarms(), old.alarms()
        now = content.objects(store)
        assert before.items() <= now.items() and (own == store or before == now)
    finally:
        if own != store:
            shutil.rmtree(own, ignore_errors=True)
        new.destroy()
        old.destroy()


def ended(world, old_version, new_version, mode):
    """pg_upgrade is killed at each step, and its servers with it: until the new cluster is started the old one is whole, and another try succeeds."""
    old, store = world.copy(old_version)
    try:
        # How long it takes, on another copy.
        whole_one, _ = world.copy(old_version)
        new = world.server(f"new-{new_version}", new_version).create_empty()
        try:
            can(new, mode)
            begin = time.time()
            upgrade(whole_one, new, mode)
            seconds = time.time() - begin
        finally:
            new.destroy()
            whole_one.destroy()
        moments = [moment * seconds for moment in MOMENTS]
        while moments:
            moment = moments.pop(0)
            new = world.server(f"new-{new_version}", new_version).create_empty()
            try:
                command = new.as_user([os.path.join(new.bin, "pg_upgrade"), *arguments(old, new, mode)])
                child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=new.root, env=new.env, start_new_session=True)
                time.sleep(moment)
                if child.poll() is not None:
                    # It was quicker than the one that was timed.
                    assert child.returncode == 0, child.communicate()[0][-2000:]
                    moments.insert(0, moment * 0.7)
                try:
                    os.killpg(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                said = child.communicate()[0].splitlines()
                for server in (old, new):
                    if os.path.exists(os.path.join(server.data, "postmaster.pid")):
                        server.crash()
                control = os.path.join(old.data, "global", "pg_control")
                if os.path.exists(control + ".old"):
                    # As pg_upgrade says of --link: the old cluster is whole as long as the new one was not started.
                    os.rename(control + ".old", control)
                old.start()
                with old.connect() as c:
                    content.compare(c, looks=content.LOOKS[:2], where=f"ended after {said[-1:]}")
                old.stop()
            finally:
                new.destroy()
        new = world.server(f"new-{new_version}", new_version).create_empty()
        try:
            upgrade(old, new, mode)
            new.start()
            with new.connect() as c:
                content.compare(c, where="after all")
        finally:
            new.destroy()
    finally:
        old.destroy()


def missing(world, old_version, new_version):
    """A new version without the library is found by the check, before any file is touched."""
    old, _ = world.copy(old_version)
    tree = os.path.join(world.base, f"without-{old_version}-{new_version}")
    copy(os.path.dirname(os.path.dirname(os.path.abspath(world.servers[new_version]))), tree)
    new = world.server(f"new-{new_version}", new_version, preload="", copied=tree).create_empty()
    try:
        library = subprocess.check_output(["find", tree, "-name", "firn.so"], text=True).split()
        assert library, tree
        os.unlink(library[0])
        r = upgrade(old, new, "--check", check=False)
        assert r.returncode != 0 and "loadable libraries" in r.stdout, r.stdout[-2000:]
        told = subprocess.check_output(["find", new.data, "-name", "loadable_libraries.txt"], text=True).split()
        with open(told[0]) as f:
            text = f.read()
        assert "could not load library \"$libdir/firn\"" in text and "In database: postgres" in text, text
        old.start()
        with old.connect() as c:
            content.compare(c, looks=content.LOOKS[:1], where="after the check")
    finally:
        new.destroy()
        old.destroy()


def older(world, old_version, new_version):
    """A new version's library that is older than the old one's: what the later one has written is refused, other rows are there, and all of them once the later library is. (The later one is played: an entry says that it is its.)"""
    table, row = "firn_many", "chunk_id = 1 AND chunk_seq = {}"
    old, _ = world.copy(old_version)
    new = world.server(f"new-{new_version}", new_version).create_empty()
    try:
        old.start()
        with old.connect() as c:
            slot, was = c.execute(f"SELECT chunk_seq, chunk_data FROM {toast_of(c, table)} WHERE chunk_id = 1 ORDER BY 1 OFFSET 2 LIMIT 1").fetchone()
            by_hand(c, f"UPDATE @ SET chunk_data = '\\x{of_version(was, 9).hex()}' WHERE {row.format(slot)}", table=table)
        old.stop()
        upgrade(old, new, "--copy")
        new.start()
        with new.connect() as c:
            of_newer(c, f"SELECT sum(n) FROM {table}")
            assert c.execute(f"SELECT k FROM {table} WHERE id = 2").fetchone() == ("key 2",)
            c.execute(f"VACUUM (FREEZE) {table}")
            assert c.execute(f"SELECT chunk_data FROM {toast_of(c, table)} WHERE {row.format(slot)}").fetchone() == (of_version(was, 9),)
            by_hand(c, f"UPDATE @ SET chunk_data = '\\x{was.hex()}' WHERE {row.format(slot)}", table=table)
        with new.connect() as c:
            content.compare(c, where="once the later library is there")
        assert not new.alarms("of a newer version"), new.alarms("of a newer version")
    finally:
        new.destroy()
        old.destroy()


def run(tally, pattern):
    world, reflinks = World(), None

    def cloned(old, new):
        """In a world of its own, whose files can be cloned."""
        nonlocal reflinks
        reflinks = reflinks or Reflinks()
        other = World(reflinks.folder)
        try:
            whole(other, old, new, "--clone")
        finally:
            other.close()

    try:
        versions = sorted(world.servers)
        # FIRN_ROUTES: these only, if there is one of them.
        asked, routes = os.environ.get("FIRN_ROUTES", "").split(), list(itertools.combinations(versions, 2))
        routes = [(a, b) for a, b in routes if f"{a}-{b}" in asked] or routes
        if not routes:
            def alone():
                raise Missing(f"the extension is installed for {versions} only")
            tally.case("upgrade", alone)
        for old, new in routes:
            cases = {mode: lambda m=mode, a=old, b=new: whole(world, a, b, m) for mode in ("--copy", "--link", "--swap")}
            cases["--clone"] = lambda a=old, b=new: cloned(a, b)
            cases["ended --copy"] = lambda a=old, b=new: ended(world, a, b, "--copy")
            cases["ended --link"] = lambda a=old, b=new: ended(world, a, b, "--link")
            cases["without the library"] = lambda a=old, b=new: missing(world, a, b)
            cases["with an older library"] = lambda a=old, b=new: older(world, a, b)
            for name, body in cases.items():
                name = f"upgrade {old} to {new} {re.sub('^--', '', name)}"
                if pattern in name:
                    tally.case(name, body)
    finally:
        world.close()
        if reflinks:
            reflinks.close()
