"""A private PostgreSQL cluster in a folder of its own, on a Unix socket of its own."""
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time

import psycopg

# Where clusters are: FIRN_FOLDER may be one in memory. (Paths of sockets are short.)
FOLDER = os.environ.get("FIRN_FOLDER", "/tmp")

# Lines that must not appear in the server log of a test that did not ask for them.
ALARMS = re.compile(r"PANIC|TRAP:|terminated by signal|could not read stripe|panicked at|inconsistent page found")
WARNING = re.compile(r"WARNING:  ")
# What PostgreSQL warns of where a test means it: of transactions that are not there, of a crash (whose signal is an alarm), of replaying DROP DATABASE once more, of
# the access method in a database that has no extension; and of a machine that is slow.
USUAL = re.compile(r"there is no transaction in progress|there is already a transaction in progress|terminating connection because of crash of another server process"
                   r"|autovacuum worker (?:took too long to start; canceled|started without a worker entry)"
                   r"|is not a PostgreSQL (?:server|backend) process|some useless files may be left behind in old database directory|could not open directory \"base/"
                   r'|invalid value for parameter "default_table_access_method": "firn"')


def alive(pid):
    """Whether a process runs (a dead one that was not waited for does not)."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def foreign_settings():
    """What FIRN_CONF adds to every cluster's postgresql.conf: lines, or settings with semicolons between them."""
    return [line.strip() for line in re.split(r"[;\n]", os.environ.get("FIRN_CONF", "")) if line.strip()]


def compiles():
    """Whether the server that is tested can compile expressions (JIT)."""
    folder = subprocess.check_output([os.environ["PG_CONFIG"], "--pkglibdir"], text=True).strip()
    return os.path.exists(os.path.join(folder, "llvmjit.so"))


def version():
    """The major version of the server that is tested."""
    return int(re.search(r"\d+", subprocess.check_output([os.environ["PG_CONFIG"], "--version"], text=True))[0])


def forced_parallel():
    """The setting that makes plans parallel where nothing is gained by it."""
    return "force_parallel_mode" if version() < 16 else "debug_parallel_query"


class Cluster:
    """One server. `conf` are lines of postgresql.conf; those of FIRN_CONF come after them, and win. `bindir` has the
    programs of another PostgreSQL than PG_CONFIG's; `preload` is what the server loads. FIRN_POSTGRES is started instead of
    the server's own executable: a script around it."""

    def __init__(self, name, conf=(), base=None, bindir=None, preload="firn"):
        self.bin = bindir or subprocess.check_output([os.environ["PG_CONFIG"], "--bindir"], text=True).strip()
        self.own = bindir is None
        self.preload = preload
        self.root = tempfile.mkdtemp(prefix=f"firn-{name}-", dir=base or FOLDER)
        self.data = os.path.join(self.root, "data")
        self.log = os.path.join(self.root, "log")
        self.port = 5432
        self.conf = list(conf)
        # How many crashes of processes have been waited for.
        self.crashes = 0
        self.shadow = None
        self.settable = None
        os.chmod(self.root, 0o755)
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.root, user.pw_uid, user.pw_gid)

    def as_user(self, args):
        if os.getuid() == 0:
            return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *args]
        return list(args)

    def run(self, program, *args, check=True, **kw):
        cmd = self.as_user([os.path.join(self.bin, program), *args])
        kw.setdefault("cwd", self.root)
        kw.setdefault("stdout", subprocess.PIPE)
        kw.setdefault("stderr", subprocess.STDOUT)
        result = subprocess.run(cmd, text=True, **kw)
        if check and result.returncode != 0:
            tail = open(self.log, errors="replace").read()[-2000:] if os.path.exists(self.log) else ""
            # First what matters most: a report may be cut.
            worst = [line for line in tail.splitlines() if re.search("FATAL|PANIC|CONTEXT", line)][-2:]
            raise RuntimeError("\n".join([f"{program} failed:", *worst, result.stdout, tail]))
        return result

    def create(self, checksums=True):
        """`checksums=False`: pages have none, for those who write to them (from 18 on they have them unless told otherwise)."""
        without = ["--no-data-checksums"] if not checksums and version() >= 18 else []
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8",
                 "--locale=C.UTF-8", *without)
        self.configure()
        if os.environ.get("FIRN_STANDBY"):
            # Once on and off: what a standby may not have less of is compared with what the server last ran with.
            self.start()
            self.stop()
            self.shadow = Shadow(self)
        self.start()
        if self.shadow:
            self.shadow.follow()
        return self

    def configure(self):
        lines = [
            f"port={self.port}", "listen_addresses=''", f"unix_socket_directories='{self.root}'",
            f"shared_preload_libraries='{self.preload}'", "shared_buffers=256MB", "max_prepared_transactions=10",
            "log_min_messages=warning", "max_wal_size=4GB", "wal_level=replica", "autovacuum_naptime=5s",
            # A backend that compiles loads a library of 100 MB first. (The suite settings has it compile all.)
            "jit=off", *self.conf, *foreign_settings(),
        ]
        with open(os.path.join(self.data, "postgresql.conf"), "a") as f:
            f.write("\n".join(lines) + "\n")

    def start(self):
        # After a kill -9, remnants may hold the old shared memory for a moment: try again.
        other = ["-p", os.environ["FIRN_POSTGRES"]] if os.environ.get("FIRN_POSTGRES") and self.own else []
        for attempt in range(8):
            try:
                self.run("pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", "120", *other, "start")
                return
            except RuntimeError:
                if attempt == 7:
                    raise
                time.sleep(2)

    def stop(self, mode="fast"):
        self.run("pg_ctl", "-D", self.data, "-w", "-m", mode, "stop", check=False)

    def crash(self):
        """kill -9 of the postmaster and all its children; start() then recovers."""
        with open(os.path.join(self.data, "postmaster.pid")) as f:
            pid = int(f.readline())
        # Stopped first, so that it has no more children. One that it was just making is found by its folder; left alone, it could wait
        # for ever for what a killed one held, and keep the shared memory, with which no new postmaster starts.
        os.kill(pid, signal.SIGSTOP)
        while found := {p for p in {pid, *self.processes()} if alive(p)}:
            for p in found:
                try:
                    os.kill(p, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            # A killed process that nobody has waited for yet still counts as alive to a new postmaster, so its lock files go by hand.
            time.sleep(0.05)
        for lock in (os.path.join(self.data, "postmaster.pid"),
                     os.path.join(self.root, f".s.PGSQL.{self.port}.lock")):
            if os.path.exists(lock):
                os.unlink(lock)

    def processes(self):
        """The server's processes, which all work in its data directory."""
        found, data = set(), os.path.realpath(self.data)
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{name}/cwd") == data:
                    found.add(int(name))
            except OSError:
                pass
        return found

    def connect(self, dbname="postgres", **kw):
        kw.setdefault("autocommit", True)
        return psycopg.connect(host=self.root, port=self.port, user="postgres", dbname=dbname, **kw)

    def wait_ready(self, seconds=300):
        """Wait until it takes connections: recovery takes as long as the disk does, so what is told after `seconds` is that it hangs."""
        end = time.time() + seconds
        while True:
            try:
                with self.connect() as c:
                    c.execute("SELECT 1")
                return
            except psycopg.Error:
                if time.time() > end:
                    raise
                time.sleep(0.2)

    def session_settings(self):
        """Those of FIRN_CONF that a session may set, as options: so they win over what a test sets at connection."""
        if self.settable is None:
            with self.connect() as c:
                rows = c.execute("SELECT name FROM pg_settings WHERE context IN ('user', 'superuser')").fetchall()
            self.settable = {r[0].lower() for r in rows}
        pairs = [re.split(r"\s*=\s*", line, maxsplit=1) for line in foreign_settings()]
        return " ".join("-c {}={}".format(name, value.strip("'").replace(" ", "\\ "))
                        for name, value in pairs if name.lower() in self.settable)

    def wait_recovered(self, seconds=60):
        """Wait until the server has noticed that one of its processes crashed, for so many seconds, and has recovered. It still
        takes connections for a moment after the crash; those it ends."""
        end = time.time() + seconds
        while True:
            with open(self.log, errors="replace") as f:
                crashes = sum("all server processes terminated; reinitializing" in line for line in f)
            if crashes > self.crashes:
                break
            assert time.time() < end, "the server has not noticed the crash"
            time.sleep(0.02)
        self.crashes = crashes
        self.wait_ready()

    def psql(self, sql, dbname="postgres", settings=""):
        if foreign_settings():
            settings += " " + self.session_settings()
        env = dict(os.environ, PGOPTIONS=settings, PGHOST=self.root, PGPORT=str(self.port))
        cmd = [os.path.join(self.bin, "psql"), "-X", "-q", "-a", "-U", "postgres", "-d", dbname]
        r = subprocess.run(cmd, input=sql, text=True, env=env, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT)
        return r.stdout

    def alone(self, case):
        """Run a case of a suite that shares the cluster: what it leaves in the schema public is dropped, so that names of the next are free, whatever became of it."""
        try:
            case(self)
        except BaseException:
            # Its own error is what is told. Sessions may have stayed in their transactions.
            try:
                with self.connect() as c:
                    c.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
                    for [name] in c.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall():
                        c.execute(f"ROLLBACK PREPARED '{name}'")
                self.empty()
            except psycopg.Error as e:
                print(f"     what the case left could not be dropped: {e}", flush=True)
            raise
        self.empty()

    def empty(self):
        """Drop what is in the schema public."""
        with self.connect() as c:
            c.execute("SET client_min_messages = warning; SET lock_timeout = '20s'")
            c.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public AUTHORIZATION pg_database_owner; GRANT USAGE ON SCHEMA public TO PUBLIC")

    def alarms(self, expected=None):
        """Lines of the server's log that must not be there: alarms, and warnings but those that `expected` (a regular expression) matches."""
        if self.shadow:
            self.shadow.catch_up()
        found = []
        for log in (self.log, self.shadow and self.shadow.log):
            if log and os.path.exists(log):
                with open(log, errors="replace") as f:
                    found += [line.rstrip() for line in f if ALARMS.search(line) or WARNING.search(line) and not (
                        USUAL.search(line) or expected and re.search(expected, line))]
        return found

    def destroy(self):
        if self.shadow:
            self.shadow.destroy()
        self.stop("immediate")
        shutil.rmtree(self.root, ignore_errors=True)


class Shadow:
    """A standby of a cluster, from its first start on, that only replays (FIRN_STANDBY=1): with
    wal_consistency_checking it compares each page with what replaying made of it."""

    def __init__(self, primary):
        """`primary` is made but not started yet: its files are a backup."""
        self.primary = primary
        self.root = primary.root + "-shadow"
        self.data = os.path.join(self.root, "data")
        self.log = os.path.join(self.root, "log")
        os.mkdir(self.root)
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.root, user.pw_uid, user.pw_gid)
        primary.run("/bin/cp", "-r", primary.data, self.data)

    def follow(self):
        p = self.primary
        with p.connect() as c:
            c.execute("SELECT pg_create_physical_replication_slot('shadow', true)")
        with open(os.path.join(self.data, "postgresql.conf"), "a") as f:
            f.write(f"unix_socket_directories='{self.root}'\nprimary_slot_name='shadow'\nfsync=off\n"
                    f"primary_conninfo='host={p.root} port={p.port} user=postgres application_name=shadow'\n")
        open(os.path.join(self.data, "standby.signal"), "w").close()
        os.chmod(os.path.join(self.data, "standby.signal"), 0o644)
        try:
            p.run("pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", "120", "start", cwd=self.root)
        except RuntimeError as e:
            raise RuntimeError(f"{e}\nthe shadow's log:\n{self.tail()}") from e

    def catch_up(self):
        with self.primary.connect() as c:
            end = c.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
            until = time.time() + 600
            # A record that no commit has flushed may wait for ever.
            c.execute("SELECT pg_switch_wal()")
            asked = f"SELECT replay_lsn >= '{end}' FROM pg_stat_replication WHERE application_name = 'shadow'"
            while c.execute(asked).fetchone() != (True,):
                ended = not os.path.exists(os.path.join(self.data, "postmaster.pid"))
                assert not ended and time.time() < until, f"the shadow does not follow: {self.tail()}"
                time.sleep(0.1)

    def tail(self):
        with open(self.log, errors="replace") as f:
            return f.read()[-2000:]

    def destroy(self):
        self.primary.run("pg_ctl", "-D", self.data, "-w", "-m", "immediate", "stop", check=False, cwd=self.root)
        shutil.rmtree(self.root, ignore_errors=True)
