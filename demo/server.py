"""The demo's own PostgreSQL server and object store, in a folder of their own."""
import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from harness.cluster import Cluster  # noqa: E402

KEY, SECRET = "firnaccess", "firnsecret123"
CONF = ["shared_buffers=512MB", "work_mem=64MB", "effective_cache_size=2GB", "random_page_cost=1.1", "jit=off",
        "autovacuum_naptime=1min", "checkpoint_timeout=30min"]
DATABASE = "demo"


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def listen(handler):
    """Set the handler of the signals that end the demo."""
    for number in SIGNALS:
        signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted():
    """Signals wait until the block is over: a server half started could not be stopped."""
    with contextlib.ExitStack() as stack:
        waiting = []
        for number in SIGNALS:
            before = signal.signal(number, lambda n, _: waiting.append(n))
            stack.callback(signal.signal, number, before)
        yield
    if waiting:
        signal.raise_signal(waiting[0])


class DemoCluster(Cluster):
    """A cluster whose programs do not get the terminal's Ctrl-C: the demo stops them itself, in order."""

    def run(self, program, *args, **kw):
        kw.setdefault("start_new_session", True)
        return super().run(program, *args, **kw)

    def demo(self):
        """A connection to the demo's database."""
        return self.connect(DATABASE)

    def owned(self, path):
        """Give a path to the server's user."""
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(path, user.pw_uid, user.pw_gid)


class Folder:
    """An object store that is a folder."""

    def __init__(self, cluster):
        self.path = os.path.join(cluster.root, "store")
        os.mkdir(self.path)
        cluster.owned(self.path)
        self.url = f"file://{self.path}"
        self.pid = None

    def create(self, conn):
        conn.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url '{self.url}')")

    def stop(self):
        pass


class Gateway:
    """An object store that speaks S3: versitygw over a folder."""

    def __init__(self, cluster):
        tools = os.environ["FIRN_TOOLS"]
        made = subprocess.run([os.path.join(ROOT, "scripts/install-versitygw.sh"), tools], text=True,
                              stdout=subprocess.PIPE)
        if made.returncode != 0:
            raise SystemExit("--s3 needs versitygw, which could not be installed")
        program = made.stdout.split()[-1]
        folder = os.path.join(cluster.root, "s3")
        os.makedirs(os.path.join(folder, "bucket"))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = "s3://bucket/flights"
        self.log = open(os.path.join(cluster.root, "s3.log"), "w")
        self.process = subprocess.Popen(
            [program, "--port", f"127.0.0.1:{self.port}", "posix", "--nometa", folder],
            env=dict(os.environ, ROOT_ACCESS_KEY=KEY, ROOT_SECRET_KEY=SECRET), stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)
        self.pid = self.process.pid
        self._wait()

    def _wait(self):
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.stop()
        raise SystemExit(f"versitygw did not start, see {self.log.name}")

    def create(self, conn):
        conn.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url '{self.url}', "
                     f"endpoint 'http://127.0.0.1:{self.port}', region 'us-east-1')")
        conn.execute("CREATE USER MAPPING FOR postgres SERVER cold "
                     f"OPTIONS (access_key_id '{KEY}', secret_access_key '{SECRET}')")

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def leave_running(cluster, store):
    """Write a script that stops what runs and removes the folder; its path."""
    path = os.path.join(cluster.root, "stop")
    with open(os.path.join(cluster.data, "postmaster.pid")) as f:
        postmaster = int(f.readline())
    with open(path, "w") as f:
        f.write("#!/bin/sh\n# Stops the demo's server and removes its folder.\n"
                f"kill -QUIT {postmaster}\n" + (f"kill {store.pid}\n" if store.pid else "") +
                f"for i in $(seq 100); do [ -e '{cluster.data}/postmaster.pid' ] || break; sleep 0.1; done\n"
                f"rm -rf '{cluster.root}'\n")
    os.chmod(path, 0o755)
    return path
