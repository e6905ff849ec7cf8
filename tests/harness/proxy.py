"""A proxy between a client and a server that takes the messages of PostgreSQL's protocol (version 3) apart, counts those of
the client, and does something at one of them: an error in place of a statement, a cut connection, a killed server.

It knows the startup, simple queries, COPY in and cancel requests; other messages pass as they are. It listens on a Unix
socket in a folder of its own, so that neither TLS nor GSSAPI is asked for in earnest.
"""
import os
import re
import signal
import socket
import struct
import threading
import time

SSL, GSS, CANCEL = 80877103, 80877104, 80877102
# Nothing that a server has to answer takes longer in these tests, in seconds.
PATIENCE = 30


class Closed(Exception):
    """The other end is gone."""


def exactly(sock, n):
    parts = []
    while n:
        got = sock.recv(min(n, 1 << 20))
        if not got:
            raise Closed
        parts.append(got)
        n -= len(got)
    return b"".join(parts)


def shut(sock):
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()


# What is skipped as a whole when statements are told apart: strings, names, dollar quotes, comments.
SKIPPED = re.compile(rb"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/""", re.S)


def statements(sql):
    """(begin, end) of each statement of a simple query, its semicolon included."""
    found, begin, at = [], 0, 0
    while at < len(sql):
        semicolon = sql.find(b";", at)
        quote = SKIPPED.search(sql, at)
        if quote and (semicolon < 0 or quote.start() < semicolon):
            at = quote.end()
            continue
        if semicolon < 0:
            break
        # The semicolons of a function's body in SQL (BEGIN ATOMIC) are not told apart; no test has one.
        found.append((begin, semicolon + 1))
        begin = at = semicolon + 1
    if sql[begin:].strip():
        found.append((begin, len(sql)))
    return found


class Message:
    """One message of a client: its kind is the protocol's letter."""

    def __init__(self, number, connection, kind, body):
        self.number, self.connection, self.kind, self.body = number, connection, kind, body

    @property
    def sql(self):
        return self.body.rstrip(b"\0") if self.kind == b"Q" else b""

    def wire(self):
        return self.kind + struct.pack("!I", len(self.body) + 4) + self.body

    def __str__(self):
        text = self.sql[:70].decode(errors="replace").replace("\n", " ") if self.sql else f"{len(self.body)} bytes"
        return f"message {self.number} ({self.kind.decode()} of connection {self.connection.number}: {text})"


def raising(state):
    return (f"DO LANGUAGE plpgsql $fault$BEGIN RAISE EXCEPTION 'a fault of the test' USING ERRCODE = '{state}'; END$fault$;"
            ).encode()


def with_error(message, state, statement):
    """The message with one statement replaced by one that raises an error; of COPY data with what no table takes."""
    if message.kind == b"Q":
        sql = message.sql
        parts = statements(sql) or [(0, len(sql))]
        begin, end = parts[statement % len(parts)]
        body = sql[:begin] + b"\n" + raising(state) + sql[end:] + b"\0"
    elif message.kind == b"c":
        return Message(message.number, message.connection, b"f", b"a fault of the test\0")
    else:
        body = b"\0 is in no text\n"
    return Message(message.number, message.connection, message.kind, body)


class Connection:
    """One connection of a client, and ours to the server for it."""

    def __init__(self, proxy, number, client):
        self.proxy, self.number, self.client = proxy, number, client
        self.server = None
        self.pid = None
        self.muted = False
        # The query that the server was sent last, and whether its answer has an error so far.
        self.last, self.failed = b"", False
        # Set whenever the server waits for the client: ready for a query, or for rows.
        self.waits = threading.Event()

    def run(self):
        try:
            self.start()
            while True:
                head = exactly(self.client, 5)
                (length,) = struct.unpack("!I", head[1:])
                body = exactly(self.client, length - 4)
                self.proxy.message(self, head[:1], body)
        except (Closed, OSError):
            pass
        finally:
            self.close()

    def start(self):
        while True:
            head = exactly(self.client, 8)
            length, code = struct.unpack("!II", head)
            rest = exactly(self.client, length - 8)
            if code not in (SSL, GSS):
                break
            self.client.sendall(b"N")
        self.server = self.proxy.to_server()
        self.server.sendall(head + rest)
        if code == CANCEL:
            self.server.recv(1)
            raise Closed
        threading.Thread(target=self.answers, daemon=True).start()

    def answers(self):
        """What the server says, to the client; keeps the number of its process."""
        try:
            buffer = b""
            while True:
                got = self.server.recv(1 << 18)
                if not got:
                    break
                # Frames are looked at only for what the proxy wants to know, before the client can answer to them.
                buffer += got
                while len(buffer) >= 5:
                    (length,) = struct.unpack("!I", buffer[1:5])
                    if len(buffer) < length + 1:
                        break
                    if buffer[:1] == b"K":
                        self.pid = struct.unpack("!I", buffer[5:9])[0]
                    self.failed = self.failed or buffer[:1] == b"E"
                    if buffer[:1] == b"Z" and not self.failed and not self.muted and self.proxy.last_word in self.last:
                        self.proxy.answered = self
                    if buffer[:1] in b"ZG":
                        self.waits.set()
                    buffer = buffer[length + 1:]
                if not self.muted:
                    try:
                        self.client.sendall(got)
                    except OSError:
                        # Cut just now; the server's side stays for as long as the fault wants it.
                        if not self.muted:
                            raise
        except OSError:
            pass
        self.waits.set()
        self.close()

    def forward(self, message):
        self.waits.clear()
        self.last, self.failed = message.sql, False
        try:
            self.server.sendall(message.wire())
        except OSError as e:
            raise Closed from e

    def cut_client(self):
        self.muted = True
        shut(self.client)

    def settle(self):
        """Wait until the server has done what it was sent."""
        self.waits.wait(PATIENCE)

    def done_unheard(self, message):
        """The server does what it was sent; then the connection breaks, and the client has not heard of it. (Cut before, it may connect again
        meanwhile, and end the session.)"""
        self.muted = True
        self.forward(message)
        self.settle()
        self.cut_client()

    def close(self):
        shut(self.client)
        if self.server:
            shut(self.server)


class Proxy:
    """Stands between clients and a server whose socket is in `target`; use as a context manager.

    `fault(message)` is asked about each message of a client; what it returns, a function of the message, is called in place
    of passing it on. `trace` keeps what came by. `answered` is the connection that brought the answer to a query with `last_word`
    in it.
    """
    last_word = b"DROP SCHEMA firn_restore"

    def __init__(self, folder, target, port=5432):
        self.folder, self.target, self.port = folder, target, port
        self.lock = threading.Lock()
        self.fault = None
        self.fired = threading.Event()
        self.trace = []
        self.count = 0
        self.connections = 0
        self.keep = self.again = False
        self.trouble = []
        self.answered = self.fired_at = None

    def __enter__(self):
        os.makedirs(self.folder, exist_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(os.path.join(self.folder, f".s.PGSQL.{self.port}"))
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        shut(self.listener)
        os.unlink(os.path.join(self.folder, f".s.PGSQL.{self.port}"))

    def where(self, db):
        return ["-h", self.folder, "-p", str(self.port), "-U", "postgres", "-d", db]

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.connections += 1
                connection = Connection(self, self.connections, client)
            threading.Thread(target=connection.run, daemon=True).start()

    def to_server(self):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(os.path.join(self.target, f".s.PGSQL.{self.port}"))
        return sock

    def outlived(self):
        """The query with the last word was answered, on a connection that was there before the fault. A crash of the server takes
        all connections along, so if the fault was one, it came to be after that answer."""
        return self.answered is not None and self.fired_at is not None and self.answered.number <= self.fired_at

    def arm(self, fault, keep=False, again=False):
        """Begin to count anew. `fault` is None, or as the class says; it is asked until it has given an action once, with
        `again` at every message."""
        with self.lock:
            self.fault, self.keep, self.again = fault, keep, again
            self.count, self.connections, self.trace, self.trouble = 0, 0, [], []
            self.answered = self.fired_at = None
            self.fired = threading.Event()

    def message(self, connection, kind, body):
        with self.lock:
            self.count += 1
            message = Message(self.count, connection, kind, body)
            if self.keep:
                self.trace.append((message.number, kind, message.sql[:200_000]))
            action = self.fault(message) if self.fault and (self.again or not self.fired.is_set()) else None
            if action:
                self.fired_at = self.connections
                self.fired.set()
        if action is None:
            connection.forward(message)
            return
        try:
            action(message)
        except (Closed, OSError):
            raise
        except Exception as e:  # A broken test must not look like a broken connection.
            self.trouble.append(f"{type(e).__name__}: {e}")
            raise Closed from e


def at(number, action):
    """`action` at the message with this number."""
    return lambda message: action if message.number == number else None


def matching(pattern, action, nth=1):
    """`action` at the nth message that matches the pattern; at each of them if `nth` is None."""
    seen = [0]

    def fault(message):
        if not re.search(pattern, message.sql, re.S):
            return None
        seen[0] += 1
        return action if nth in (None, seen[0]) else None
    return fault


# Actions.

def error(state, statement=0):
    """A statement of the message becomes one that raises an error."""
    return lambda m: m.connection.forward(with_error(m, state, statement))


def cut_before(m):
    """The connection breaks before the server has the message."""
    m.connection.cut_client()
    raise Closed


def cut_after(m):
    """The server gets the message and does it, the client never hears of that."""
    m.connection.cut_client()
    m.connection.forward(m)
    if m.kind != b"d":
        m.connection.settle()
    raise Closed


def late(seconds=0.5):
    """The client sees a broken connection; the server gets the message only later."""
    def action(m):
        m.connection.cut_client()
        time.sleep(seconds)
        m.connection.forward(m)
        if m.kind != b"d":
            m.connection.settle()
        raise Closed
    return action


def kill(after):
    """kill -9 of the server's process for this connection, before it has the message or so many seconds after."""
    def action(m):
        if after is not None:
            m.connection.forward(m)
            time.sleep(after)
        try:
            os.kill(m.connection.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if after is None:
            m.connection.forward(m)
    return action


def call(body, forward=True):
    """Do something, then pass the message on."""
    def action(m):
        body(m)
        if forward:
            m.connection.forward(m)
    return action
