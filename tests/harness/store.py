"""A real S3 server, and a proxy before it that can be slow, hang or refuse."""
import os
import selectors
import socket
import subprocess
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KEY, SECRET = "firnaccess", "firnsecret123"


class Gateway:
    """versitygw over a folder with one bucket named "bucket"; use as a context manager."""

    def __init__(self, folder):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]

    def __enter__(self):
        tools = os.environ.get("FIRN_TOOLS", os.path.join(ROOT, "target/tools"))
        found = subprocess.run([os.path.join(ROOT, "scripts/install-versitygw.sh"), tools], text=True,
                               stdout=subprocess.PIPE, check=True).stdout.strip().splitlines()
        os.makedirs(os.path.join(self.folder, "bucket"), exist_ok=True)
        # Without metadata it could not complete an upload in parts.
        # (It takes a folder whose name only begins with that of the store to be within.)
        above, name = os.path.split(self.folder.rstrip("/"))
        meta = os.path.join(above, "meta-" + name)
        os.makedirs(meta, exist_ok=True)
        env = dict(os.environ, ROOT_ACCESS_KEY=KEY, ROOT_SECRET_KEY=SECRET)
        self.process = subprocess.Popen(
            [found[-1], "--port", f"127.0.0.1:{self.port}", "posix", "--sidecar", meta, self.folder], env=env,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.time() + 20
        while time.time() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("versitygw does not answer")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class Proxy:
    """A TCP proxy to `port`. `rate` bounds bytes per second and direction (None: unbounded, 0: everything
    hangs); `refuse` closes every connection at once; `delay` is what a request takes on its way, in seconds. `passed` counts the others' bytes, `busiest` how many were waited for at once: had
    sent something after which nothing had come back yet."""

    def __init__(self, port):
        self.target, self.rate, self.refuse, self.delay, self.passed = port, None, False, 0, 0
        self.waiting, self.busiest, self.lock = set(), 0, threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _accept(self):
        while self.open:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.refuse:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        peers = {client: server, server: client}
        wait = selectors.DefaultSelector()
        for end in peers:
            wait.register(end, selectors.EVENT_READ)
        try:
            while self.open and not self.refuse:
                if self.rate == 0:
                    time.sleep(0.02)
                    continue
                for key, _ in wait.select(0.1):
                    size = 65536 if self.rate is None else max(1, min(65536, self.rate // 20))
                    data = key.fileobj.recv(size)
                    if not data:
                        return
                    if self.rate:
                        time.sleep(len(data) / self.rate)
                    self._count(client, key.fileobj is client)
                    if self.delay and key.fileobj is client:
                        time.sleep(self.delay)
                    peers[key.fileobj].sendall(data)
                    self.passed += len(data)
        except OSError:
            pass
        finally:
            self._count(client, False)
            for end in peers:
                end.close()

    def _count(self, client, is_request):
        with self.lock:
            (self.waiting.add if is_request else self.waiting.discard)(client)
            self.busiest = max(self.busiest, len(self.waiting))

    def close(self):
        self.open = False
        self.listener.close()
