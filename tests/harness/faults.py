"""A proxy before an S3 server that lets requests go wrong at random: busy, broken, cut off, half, slow, damaged."""
import random
import socket
import threading
import time
from collections import Counter

# An answer instead of the store's, which never hears of the request.
REFUSALS = {
    "busy": (503, "SlowDown", "Please reduce your request rate."),
    "broken": (500, "InternalError", "We encountered an internal error."),
    "throttled": (429, "TooManyRequests", "Later."),
}
# What passes: a client that tries again gets what it asked for.
PASSING = ("busy", "broken", "throttled", "hung up", "half request", "lost answer", "cut answer", "half answer", "slow",
           "error in success")
# What only whoever knows the bytes can notice: a byte of an object that changes on its way.
DAMAGE = ("flipped",)
REASONS = {200: "OK", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Slow Down"}


class Request:
    def __init__(self, head, body):
        self.head, self.body = head, body
        self.method, target = head.split(b" ", 2)[:2]
        self.path, _, self.query = target.partition(b"?")

    def completes_upload(self):
        return self.method == b"POST" and b"uploadId=" in self.query


def read_head(stream):
    """A request's or answer's head as it came, and its headers; None at the end of the connection."""
    lines = []
    while (line := stream.readline(65536)) not in (b"\r\n", b"\n", b""):
        lines.append(line)
    if not lines:
        return None, None
    pairs = (line.decode("latin-1").partition(":") for line in lines[1:])
    return b"".join(lines), {name.strip().lower(): value.strip() for name, _, value in pairs}


def read_chunked(stream):
    body = b""
    while size := int(stream.readline().split(b";")[0], 16):
        body += stream.read(size)
        stream.readline()
    while stream.readline() not in (b"\r\n", b"\n", b""):
        pass
    return body


class Faults:
    """Forwards to `port`. Of all requests the part `chance` goes wrong, in one of the ways `kinds`. `after`: so many
    requests pass, then the store is gone for good; `revive` brings it back. `only`: requests whose query has this. `counts` tells what happened."""

    def __init__(self, port, seed, chance, kinds=PASSING, after=None, only=b""):
        self.target, self.chance, self.kinds, self.after, self.only = port, chance, kinds, after, only
        self.dice, self.lock = random.Random(seed), threading.Lock()
        self.counts, self.requests, self.open = Counter(), 0, True
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.open = False
        self.listener.close()

    def revive(self, chance=0.0):
        self.after, self.chance = None, chance

    def gone(self):
        return self.after is not None and self.requests >= self.after

    def _accept(self):
        while self.open:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        try:
            with client, client.makefile("rb") as stream:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while self.open and not self.gone():
                    head, headers = read_head(stream)
                    if head is None:
                        return
                    request = Request(head, stream.read(int(headers.get("content-length", 0))))
                    with self.lock:
                        if self.gone():
                            self.counts["gone"] += 1
                            return
                        self.requests += 1
                        fault = self._choose(request)
                        at = self.dice.random()
                    if not self._answer(client, request, fault, at):
                        return
        except (OSError, ValueError):
            # Whoever is not answered has gone, or cannot be understood.
            pass

    def _choose(self, request):
        if self.only not in request.query or self.dice.random() >= self.chance:
            return None
        possible = [k for k in self.kinds if self._fits(k, request)]
        fault = self.dice.choice(possible) if possible else None
        if fault:
            self.counts[fault] += 1
        return fault

    @staticmethod
    def _fits(kind, request):
        if kind == "half request":
            return len(request.body) > 1
        if kind == "error in success":
            return request.completes_upload()
        if kind in ("half answer", "flipped"):
            return request.method == b"GET"
        return True

    def _answer(self, client, request, fault, at):
        """Returns whether the connection can be used on. `at`: where in the body it happens, from 0 to 1."""
        if fault == "hung up":
            return False
        if fault in REFUSALS:
            status, code, message = REFUSALS[fault]
            body = f"<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            self._send(client, request, status, body)
            return True
        if fault == "half request":
            with socket.create_connection(("127.0.0.1", self.target)) as server:
                server.sendall(request.head + b"\r\n" + request.body[:int(len(request.body) * at)])
            return False
        head, length, body = self._ask(request)
        if fault == "lost answer":
            return False
        if fault == "error in success":
            body = b"<?xml version=\"1.0\"?><Error><Code>InternalError</Code><Message>Late.</Message></Error>"
            self._send(client, request, 200, body)
            return True
        # A listing has its end where it says it has, but is half of one; an object says that it is as long as asked.
        if fault == "half answer":
            body = body[:int(len(body) * at)]
            length = len(body)
        if fault == "flipped" and body and b"<ListBucketResult" not in body[:200]:
            place = min(int(len(body) * at), len(body) - 1)
            body = body[:place] + bytes([body[place] ^ 0x10]) + body[place + 1:]
        head += f"content-length: {length}\r\n\r\n".encode()
        if fault == "cut answer":
            whole = head + body
            client.sendall(whole[:int(len(whole) * at)])
            return False
        client.sendall(head)
        if fault == "slow":
            for n in range(0, len(body), max(1, len(body) // 5)):
                time.sleep(0.05)
                client.sendall(body[n:n + max(1, len(body) // 5)])
        else:
            client.sendall(body)
        return True

    def _ask(self, request):
        """The store's answer: its head without a length, the length that it names, the body."""
        with socket.create_connection(("127.0.0.1", self.target)) as server, server.makefile("rb") as stream:
            server.sendall(request.head + b"\r\n" + request.body)
            head, headers = read_head(stream)
            if head is None:
                raise ValueError("the store does not answer")
            if request.method == b"HEAD" or head.split(b" ", 2)[1] in (b"204", b"304"):
                body, length = b"", int(headers.get("content-length", 0))
            elif headers.get("transfer-encoding", "").lower() == "chunked":
                body = read_chunked(stream)
                length = len(body)
            else:
                length = int(headers.get("content-length", 0))
                body = stream.read(length)
        left_out = (b"content-length:", b"transfer-encoding:", b"connection:", b"keep-alive:")
        lines = [line for line in head.splitlines(True) if not line.lower().startswith(left_out)]
        return b"".join(lines), length, body

    @staticmethod
    def _send(client, request, status, body):
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/xml\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + (b"" if request.method == b"HEAD" else body))


class Ruled(Faults):
    """`rule` is asked about each request, and answers what goes wrong with it, if anything."""

    def __init__(self, port, rule):
        self.rule = rule
        super().__init__(port, 0, 0.0)

    def _choose(self, request):
        return self.rule(request)


def is_about(request, name):
    """Also where objects are removed by lists of their names."""
    return request.path.endswith(b"/" + name) or b"delete" in request.query and b"/" + name + b"<" in request.body
