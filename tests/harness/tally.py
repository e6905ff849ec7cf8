"""Counting results; the last line of a run is `N passed, N failed`; before it stands what was skipped, as something was missing.

FIRN_COMPLETE=1: what is missing is a failure. FIRN_CASE_SECONDS=N: a test that is not through after N seconds hangs, which is a
failure of its own and must not keep the others from running; it tells where every thread stands. FIRN_DEADLINE=SECONDS of the epoch:
what has not begun by then is skipped, and told: a slow machine is to end with what it knows."""
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback

from harness import lanes


class Missing(Exception):
    """What a test needs is not on this machine."""


class Hangs(BaseException):
    """Not to be caught by a test that expects an error."""


def watched(body):
    """Run `body` for as long as a test may take."""
    seconds = float(os.environ.get("FIRN_CASE_SECONDS", 0))
    if not seconds or threading.current_thread() is not threading.main_thread():
        return body()

    def too_long(_signal, _frame):
        faulthandler.dump_traceback(all_threads=True)
        raise Hangs(f"not through after {seconds:.0f} s")

    was = signal.signal(signal.SIGALRM, too_long)
    # Once more, should what is to be done at its end hang as well.
    signal.setitimer(signal.ITIMER_REAL, seconds, 60)
    try:
        return body()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, was)


def in_short(error):
    """An error in a line, for the end of a long log: how it begins and how it ends."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 600 else f"{text[:200]} ... {text[-400:]}"


class Tally:
    def __init__(self):
        self.hung = False
        self.passed = 0
        self.failed = []
        self.skipped = []
        self.started = time.time()

    def late(self, name):
        """Skip a test that would begin too late."""
        if time.time() <= float(os.environ.get("FIRN_DEADLINE", "inf")):
            return False
        self.skipped.append(f"{name} (no time was left)")
        return True

    def case(self, name, body):
        """Run one test: it fails when `body` raises."""
        if self.late(name):
            return
        begin = time.time()
        try:
            watched(body)
        except Missing as e:
            (self.failed if os.environ.get("FIRN_COMPLETE") else self.skipped).append(name)
            print(f"skip {name}: {e}", flush=True)
        except BaseException as e:  # noqa: BLE001 - a test may fail in any way
            if isinstance(e, KeyboardInterrupt):
                raise
            self.hung |= isinstance(e, Hangs)
            self.failed.append(f"{name}: {in_short(e)}")
            print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
        else:
            self.passed += 1
            print(f"ok   {name} ({time.time() - begin:.1f} s)", flush=True)

    def count(self, name, passed, failed):
        """Add the results of a runner of its own."""
        self.passed += passed
        self.failed += [name] * failed
        print(f"{'ok  ' if not failed else 'FAIL'} {name}: {passed} passed, {failed} failed", flush=True)

    def finish(self):
        lanes.count(self.passed, self.failed, self.skipped)
        for name in self.skipped:
            print(f"skipped: {name}")
        for name in self.failed:
            print(f"failed: {name}")
        if self.skipped:
            print(f"{len(self.skipped)} skipped")
        print(f"in {time.time() - self.started:.0f} s")
        print(f"{self.passed} passed, {len(self.failed)} failed", flush=True)
        sys.stdout.flush()
        if self.hung:
            # A thread that still waits would be waited for.
            os._exit(1)
        sys.exit(1 if self.failed else 0)
