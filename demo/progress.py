"""What the demo says while it works: a live line on a terminal, plain lines elsewhere."""
import contextlib
import shutil
import sys
import threading
import time

SPINNER = "|/-\\"


class Progress:
    """Prints text, and shows what is being done for how long.

    On a terminal the current step is a line that is redrawn in place; elsewhere (a log, a pipe) a step is
    announced when it begins, and long ones report again every few seconds.
    """

    REDRAW, REPORT = 0.2, 10.0

    def __init__(self, steps, out=sys.stdout, live=None):
        self.out = out
        self.live = out.isatty() if live is None else live
        self.steps = steps
        self.done = 0
        self.begin = time.monotonic()
        self.lock = threading.Lock()
        self.label = self.detail = ""
        self.since = 0.0

    def say(self, text=""):
        """Print lines that stay; the live line makes way."""
        with self.lock:
            self._clear()
            print(text, file=self.out, flush=True)

    def total(self):
        """Seconds since the beginning."""
        return time.monotonic() - self.begin

    def update(self, detail):
        """How far the current step is."""
        self.detail = detail

    @contextlib.contextmanager
    def step(self, label):
        """A step with a number of its own: announced, timed, ticked off."""
        self.done += 1
        self.label, self.detail, self.since = label, "", time.monotonic()
        over = threading.Event()
        drawer = threading.Thread(target=self._watch, args=(over,), daemon=True)
        if not self.live:
            self.say(f"{self._head()} {label} ...")
        drawer.start()
        try:
            yield self
        except BaseException:
            self._end(over, drawer)
            self.say(f"{self._head()} {label}: stopped after {self._elapsed():.1f} s")
            raise
        self._end(over, drawer)
        detail = f"  {self.detail}" if self.detail else ""
        self.say(f"{self._head()} {label}{detail}  {self._elapsed():.1f} s")

    def _end(self, over, drawer):
        over.set()
        drawer.join()

    def _head(self):
        return f"[{self.done:2}/{self.steps}]"

    def _elapsed(self):
        return time.monotonic() - self.since

    def _clear(self):
        if self.live:
            self.out.write("\r\x1b[K")

    def _watch(self, over):
        turn = 0
        while not over.wait(self.REDRAW if self.live else self.REPORT):
            text = f"{self.detail}  {self._elapsed():.0f} s (in all {self.total():.0f} s)".lstrip()
            with self.lock:
                if self.live:
                    self._clear()
                    width = shutil.get_terminal_size().columns
                    self.out.write(f"{SPINNER[turn % len(SPINNER)]} {self._head()} {self.label}  {text}"[: width - 1])
                    self.out.flush()
                else:
                    print(f"        {text}", file=self.out, flush=True)
            turn += 1
        with self.lock:
            self._clear()
            self.out.flush()
