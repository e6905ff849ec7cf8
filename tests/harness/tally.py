"""Counting results; the last line of a run is `N passed, N failed`; before it stands what was skipped, as something was missing.

FIRN_COMPLETE=1: what is missing is a failure."""
import os
import sys
import time
import traceback


class Missing(Exception):
    """What a test needs is not on this machine."""


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []
        self.started = time.time()

    def case(self, name, body):
        """Run one test: it fails when `body` raises."""
        begin = time.time()
        try:
            body()
        except Missing as e:
            (self.failed if os.environ.get("FIRN_COMPLETE") else self.skipped).append(name)
            print(f"skip {name}: {e}", flush=True)
        except BaseException as e:  # noqa: BLE001 - a test may fail in any way
            if isinstance(e, KeyboardInterrupt):
                raise
            self.failed.append(name)
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
        for name in self.skipped:
            print(f"skipped: {name}")
        for name in self.failed:
            print(f"failed: {name}")
        if self.skipped:
            print(f"{len(self.skipped)} skipped")
        print(f"in {time.time() - self.started:.0f} s")
        print(f"{self.passed} passed, {len(self.failed)} failed", flush=True)
        sys.exit(1 if self.failed else 0)
