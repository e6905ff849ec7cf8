"""pgbench of several kinds side by side, whose sessions are all there and take turns of half a second: machines have moments of twice the speed, longer than that."""
import os
import re
import signal
import subprocess
import time

TURN = 0.5


def pgbench(cluster, args, seconds):
    return subprocess.Popen([os.path.join(cluster.bin, "pgbench"), "-h", cluster.root, "-p", str(cluster.port), "-U", "postgres", "-n", "-M", "prepared", "-T", str(seconds),
                             *args], stdout=subprocess.PIPE, text=True)


def in_turns(cluster, kinds, clients, seconds):
    """Transactions a second of each of `kinds` (names, and what pgbench is told beside: a script, a database), in as many seconds of its own, about."""
    runs, spent = {}, dict.fromkeys(kinds, 0.0)

    def turn(kind, length):
        start = time.monotonic()
        runs[kind].send_signal(signal.SIGCONT)
        try:
            # (One that ends within its turn has had no more of it.)
            runs[kind].wait(length)
        except subprocess.TimeoutExpired:
            runs[kind].send_signal(signal.SIGSTOP)
        spent[kind] += time.monotonic() - start
        # Statements under way end.
        time.sleep(TURN / 25)

    try:
        for kind, args in kinds.items():
            # (Each ends when so much time has passed, its turn or not; nobody's begins before all are there.)
            runs[kind] = pgbench(cluster, ["-c", str(clients), "-j", "1" if clients <= 2 else "2", *args], seconds * len(kinds))
            turn(kind, 1 + clients / 200)
        order = list(runs)
        while all(run.poll() is None for run in runs.values()):
            for kind in order:
                if runs[kind].poll() is None:
                    turn(kind, TURN)
            # None is always behind the same other one.
            order.append(order.pop(0))
        found = {}
        for kind, run in runs.items():
            start = time.monotonic()
            run.send_signal(signal.SIGCONT)
            out = run.communicate()[0]
            spent[kind] += time.monotonic() - start
            if run.returncode:
                raise RuntimeError(f"pgbench of {kind} failed: {out}")
            found[kind] = int(re.search(r"actually processed: (\d+)", out).group(1)) / spent[kind]
        return found
    finally:
        # (Of an error in between nothing is left that stands still.)
        for run in runs.values():
            run.kill()
