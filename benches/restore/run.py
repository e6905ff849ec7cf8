"""`firn restore` against pg_restore on a generated schema: seconds, server's CPU, memory, and whether the dumps are equal.

Run through `make bench-restore TABLES=10000`. The server is an ordinary one (fsync, autovacuum) with a lock table large
enough for pg_restore --single-transaction; --folder puts it elsewhere than /tmp, --archive restores an archive that is there.
"""
import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tests"))
from restore import common  # noqa: E402
from restore.common import Child, Server, schema  # noqa: E402

SERVER = ("fsync=on", "synchronous_commit=on", "shared_buffers=1GB", "max_wal_size=2GB",
          "autovacuum_naptime=1min", "log_min_messages=fatal")
SERIAL, PARALLEL, SINGLE = "pg_restore", "pg_restore -j", "pg_restore --single-transaction"


def commands(server, archive, args):
    """Name: command, in the order in which they run."""
    where = server.where("target")
    pg_restore = [os.path.join(server.bin, "pg_restore"), *where]
    found = {f"firn restore, {j} jobs": [*common.program(), *where, "--quiet", "--jobs", str(j), archive]
             for j in args.jobs}
    found |= {f"firn restore, {j} jobs, no rule": [*common.program(), *where, "--quiet", "--jobs", str(j), "--disable-rule=staged-partitions", archive]
              for j in args.no_rule}
    found[SINGLE] = [*pg_restore, "--single-transaction", archive]
    found[PARALLEL] = [*pg_restore, "-j", str(args.pg_jobs), archive]
    found[SERIAL] = [*pg_restore, archive]
    # "pg_restore" alone is a name, and part of others.
    return {n: c for n, c in found.items() if not args.only or n in args.only or any(o in n and o not in found for o in args.only)}


def server_cpu(server):
    """Seconds of CPU of the server and of all its processes, those that have ended included."""
    with open(os.path.join(server.data, "postmaster.pid")) as f:
        postmaster = int(f.readline())
    ticks = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(name) == postmaster:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == postmaster:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def busy():
    """(Seconds of CPU that all processes of the machine have had, and that they could have had) since it was started."""
    with open("/proc/stat") as f:
        ticks = list(map(int, f.readline().split()[1:9]))
    hz = os.sysconf("SC_CLK_TCK")
    # Idle, and waiting for a disk with nothing else to do.
    return (sum(ticks) - ticks[3] - ticks[4]) / hz, sum(ticks) / hz


def measure(server, command, limit):
    """(Run or None when it took too long, seconds of server CPU). The run's `busy` is the share of the machine's cores that had work."""
    server.fresh("target")
    with server.connect() as c:
        c.execute("CHECKPOINT")
    os.sync()
    before, (worked, passed) = server_cpu(server), busy()
    child = Child(command)
    try:
        run = child.wait(limit)
        now = busy()
        run.busy = (now[0] - worked) / (now[1] - passed)
    except AssertionError:
        run = None
    # What was given up goes on for a while.
    with server.connect() as c:
        c.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'target'")
        while c.execute("SELECT 1 FROM pg_stat_activity WHERE datname = 'target'").fetchone():
            time.sleep(0.1)
    return run, server_cpu(server) - before


def source(server, args, folder):
    """(Archive, what dumps must be equal to)."""
    if args.archive:
        if not args.expected:
            return args.archive, None
        with open(args.expected, "rb") as f:
            return args.archive, common.VOLATILE.sub(b"", f.read())
    with server.connect() as c:
        for role in schema.roles():
            c.execute(role)
    common.generate(server, "source", args.tables, [w for w in args.without.split(",") if w])
    archive = server.archive("source", os.path.join(folder, "archive"), args.format)
    dump = server.dump("source", *flags(args))
    with server.connect() as c:
        c.execute("DROP DATABASE source")
    return archive, dump


def flags(args):
    return ["-s"] if args.compare == "schema" else []


@contextlib.contextmanager
def ground(name, below, *conf):
    """A server for a benchmark, and a folder for its files, both below a folder and gone at the end."""
    folder = tempfile.mkdtemp(prefix=f"firn-bench-{name}-", dir=below)
    server = Server(common.OLD, conf=(*SERVER, *conf), name=name, base=below)
    try:
        server.create()
        yield server, folder
    finally:
        server.destroy()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=10_000)
    parser.add_argument("--without", default="", help=f"comma-separated, of {', '.join(schema.FEATURES)}")
    parser.add_argument("--format", choices="cd", default="c", help="custom or directory")
    parser.add_argument("--archive", help="restore this archive instead of a generated one (the roles are made all the same)")
    parser.add_argument("--expected", help="with --archive: a plain dump of its source (pg_dump, or pg_dump -s with --compare schema)")
    parser.add_argument("--jobs", type=lambda s: [int(j) for j in s.split(",")], default=[1, 2, 4, 8])
    parser.add_argument("--no-rule", type=lambda s: [int(j) for j in s.split(",")], default=[], help="also firn with so many jobs and no rule that changes catalogs")
    parser.add_argument("--pg-jobs", type=int, default=os.cpu_count(), help="jobs of pg_restore -j")
    parser.add_argument("--only", action="append", help="only the run of this name, or those with this in their names; may be repeated")
    parser.add_argument("--compare", choices=("all", "schema", "none"), default="all", help="what of the dumps is compared")
    parser.add_argument("--limit", type=int, default=4800, help="seconds after which a run is given up")
    parser.add_argument("--locks", type=int, default=2048, help="max_locks_per_transaction of the server; --single-transaction of "
                        "164,074 tables needs 32768")
    parser.add_argument("--folder", default="/tmp", help="where the server's files are")
    parser.add_argument("--keep", action="store_true", help="leave the archive of the generated schema and print its path")
    args = parser.parse_args()
    with ground("restore", args.folder, f"max_locks_per_transaction={args.locks}") as (server, folder):
        with server.connect() as c:
            for role in schema.roles():
                c.execute(role)
        archive, expected = source(server, args, folder)
        size = sum(os.path.getsize(os.path.join(archive, f)) for f in os.listdir(archive)) if os.path.isdir(archive) \
            else os.path.getsize(archive)
        print(f"archive {archive}: {size / 1e6:.1f} MB\n", flush=True)
        report(server, args, archive, expected)
        if args.keep and not args.archive:
            kept = os.path.join(tempfile.gettempdir(), f"firn-bench-{args.tables}.{'dump' if args.format == 'c' else 'dir'}")
            shutil.move(archive, kept)
            print(f"archive kept as {kept}")


def report(server, args, archive, expected):
    print(f"{'':34}{'seconds':>9}{'server CPU s':>14}{'program MiB':>13}  dump", flush=True)
    seconds, unequal = {}, []
    for name, command in commands(server, archive, args).items():
        run, cpu = measure(server, command, args.limit)
        if run is None:
            print(f"{name:34}{'> ' + str(args.limit):>9}{cpu:14.1f}{'':13}  not finished", flush=True)
            continue
        verdict = f"exit code {run.code}: {run.out.strip().splitlines()[-1][:80] if run.out.strip() else ''}" if run.code else "not compared"
        if run.code == 0:
            seconds[name] = run.seconds
            if expected is not None and args.compare != "none":
                verdict = "equal"
                try:
                    common.same(expected, server.dump("target", *flags(args)))
                except AssertionError as e:
                    verdict = "DIFFERENT"
                    print(e)
        if verdict not in ("equal", "not compared"):
            unequal.append(name)
        print(f"{name:34}{run.seconds:9.1f}{cpu:14.1f}{run.peak / (1 << 20):13.0f}  {verdict}", flush=True)
    ratios(seconds)
    if any("firn" in name for name in unequal):
        sys.exit("a restore by firn failed or differs")


def ratios(seconds):
    """How many times faster each number of jobs is."""
    ours = {n: s for n, s in seconds.items() if n.startswith("firn")}
    theirs = {n: s for n, s in seconds.items() if n not in ours}
    if not ours or not theirs:
        return
    best = min(theirs, key=theirs.get)
    print()
    for name, s in ours.items():
        print(f"{name}: " + ", ".join(f"{t / s:.1f} times as fast as {n}{' (the best)' if n == best else ''}"
                                      for n, t in theirs.items()))


if __name__ == "__main__":
    main()
