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

# Lines that must not appear in the server log of a test that did not ask for them.
ALARMS = re.compile(r"PANIC|TRAP:|terminated by signal|could not read stripe|panicked at")


def alive(pid):
    """Whether a process runs (a dead one that was not waited for does not)."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


class Cluster:
    """One server. `conf` are lines of postgresql.conf. `bindir` has the programs of another PostgreSQL than PG_CONFIG's;
    `preload` is what the server loads."""

    def __init__(self, name, conf=(), base=None, bindir=None, preload="firn"):
        self.bin = bindir or subprocess.check_output([os.environ["PG_CONFIG"], "--bindir"], text=True).strip()
        self.preload = preload
        self.root = tempfile.mkdtemp(prefix=f"firn-{name}-", dir=base or "/tmp")
        self.data = os.path.join(self.root, "data")
        self.log = os.path.join(self.root, "log")
        self.port = 5432
        self.conf = list(conf)
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
            raise RuntimeError(f"{program} failed:\n{result.stdout}\n{tail}")
        return result

    def create(self):
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8",
                 "--locale=C.UTF-8")
        self.configure()
        self.start()
        return self

    def configure(self):
        lines = [
            f"port={self.port}", "listen_addresses=''", f"unix_socket_directories='{self.root}'",
            f"shared_preload_libraries='{self.preload}'", "shared_buffers=256MB", "max_prepared_transactions=10",
            "log_min_messages=warning", "max_wal_size=4GB", "wal_level=replica", "autovacuum_naptime=5s",
            *self.conf,
        ]
        with open(os.path.join(self.data, "postgresql.conf"), "a") as f:
            f.write("\n".join(lines) + "\n")

    def start(self):
        # After a kill -9, remnants may hold the old shared memory for a moment: try again.
        for attempt in range(8):
            try:
                self.run("pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", "120", "start")
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
        # Stopped first, so that it has no child that is not in the list.
        os.kill(pid, signal.SIGSTOP)
        children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
        for p in [pid, *map(int, children)]:
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        # Shared memory must be free before a new postmaster starts. A killed process that nobody has
        # waited for yet still counts as alive to a new postmaster, so its lock files go by hand.
        while any(alive(p) for p in [pid, *map(int, children)]):
            time.sleep(0.05)
        for lock in (os.path.join(self.data, "postmaster.pid"),
                     os.path.join(self.root, f".s.PGSQL.{self.port}.lock")):
            if os.path.exists(lock):
                os.unlink(lock)

    def connect(self, dbname="postgres", **kw):
        kw.setdefault("autocommit", True)
        return psycopg.connect(host=self.root, port=self.port, user="postgres", dbname=dbname, **kw)

    def wait_ready(self, seconds=60):
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

    def psql(self, sql, dbname="postgres", settings=""):
        env = dict(os.environ, PGOPTIONS=settings, PGHOST=self.root, PGPORT=str(self.port))
        cmd = [os.path.join(self.bin, "psql"), "-X", "-q", "-a", "-U", "postgres", "-d", dbname]
        r = subprocess.run(cmd, input=sql, text=True, env=env, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT)
        return r.stdout

    def alarms(self):
        if not os.path.exists(self.log):
            return []
        with open(self.log, errors="replace") as f:
            return [line.rstrip() for line in f if ALARMS.search(line)]

    def destroy(self):
        self.stop("immediate")
        shutil.rmtree(self.root, ignore_errors=True)
