"""firn on three million real flights: heap, firn and cold firn side by side, then a walk through cold life.

Run through `make demo` (`make demo KEEP=1` leaves the server running). Exits with 1 when an answer differs.
"""
import argparse
import logging
import os
import signal
import sys

from compare import Comparison
from data import Flights
from progress import Progress
from server import CONF, DATABASE, DemoCluster, Folder, Gateway, leave_running, listen, uninterrupted
from walkthrough import Walkthrough

STEPS = 11


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the server running, and say how to connect")
    parser.add_argument("--s3", action="store_true", help="the cold store is versitygw (S3) instead of a folder")
    parser.add_argument("--dir", help="where the server's folder is made (default /tmp)")
    parser.add_argument("--runs", type=int, default=3, help="how often each query is timed (default 3)")
    return parser.parse_args()


def demonstrate(cluster, store, flights, progress, runs):
    """Everything that needs the server; what was wrong, as lines."""
    with cluster.connect() as conn:
        conn.execute(f"CREATE DATABASE {DATABASE}")
    with cluster.demo() as conn:
        conn.execute("CREATE EXTENSION firn")
        store.create(conn)
        comparison = Comparison(cluster, conn, flights, progress, runs)
        comparison.airports()
        for am in ("heap", "firn"):
            comparison.create(am)
            with progress.step(f"load three million flights: {am}"):
                comparison.load(am)
            with progress.step(f"vacuum, analyze{', compact' if am == 'firn' else ''}: {am}"):
                comparison.settle(am)
            comparison.measure(am)
        with progress.step("seven queries: heap and firn"):
            comparison.local()
        with progress.step(f"offload the older months to {store.url.split(':')[0]}://"):
            comparison.offload()
        comparison.measure("cold")
        with progress.step("seven queries: cold, first and second time"):
            comparison.cold()
        progress.say()
        for line in comparison.table():
            progress.say(line)
        different = comparison.different
        count = len(comparison.answers)
        progress.say(f"All {count} answers are equal on heap, firn and cold firn." if not different
                     else "\n".join(["DIFFERENT ANSWERS:", *different]))
        progress.say()
        walk = Walkthrough(conn, comparison.months, progress)
        with progress.step("a walk through cold life"):
            walk.run()
        return different + walk.failures


def farewell(cluster, store, keep):
    """How to look around."""
    psql = f"{os.path.join(cluster.bin, 'psql')} -h {cluster.root} -p {cluster.port} -U postgres {DATABASE}"
    if not keep:
        return ["Nothing is left running. `make demo KEEP=1` leaves the server up to look around with psql:",
                "  tables flights (firn) and flights_heap, views firn.tables, functions firn.stripes, firn.check."]
    stop = leave_running(cluster, store)
    return ["The server is still running. Connect and look around:",
            f"  {psql}", "    \\d+ flights", "    SELECT * FROM firn.tables;",
            "    SELECT * FROM firn.stripes('flights_2001_03');",
            "    EXPLAIN ANALYZE SELECT max(delay) FROM flights WHERE at < '2001-01-08';",
            f"The cold objects are Parquet files below {cluster.root}/{'s3' if store.pid else 'store'}",
            f"Stop it and remove its folder:\n  {stop}"]


def interrupt(_number, _frame):
    """Stop what is being done; another signal must not stop the tidying up."""
    listen(signal.SIG_IGN)
    raise KeyboardInterrupt


def main():
    args = arguments()
    sys.stdout.reconfigure(errors="replace")
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # or it tells of the transaction that an interrupt left
    listen(interrupt)
    progress = Progress(STEPS)
    cluster = store = None
    keep = False
    try:
        with progress.step("the flights of vega-datasets"):
            flights = Flights(os.path.join(os.environ["FIRN_TOOLS"], "flights")).prepare()
        with progress.step("start a server of our own"), uninterrupted():
            cluster = DemoCluster("demo", CONF, args.dir).create()
            progress.update(cluster.root)
        with progress.step("open the cold store"), uninterrupted():
            store = (Gateway if args.s3 else Folder)(cluster)
            progress.update(store.url)
        wrong = demonstrate(cluster, store, flights, progress, args.runs)
        wrong += cluster.alarms(".")
        keep = args.keep
        progress.say("\n" + "\n".join(farewell(cluster, store, keep)))
        if wrong:
            progress.say("\nWRONG:\n" + "\n".join(wrong))
            return 1
        progress.say(f"\nAll is as it should be, after {progress.total():.0f} s.")
        return 0
    except KeyboardInterrupt:
        progress.say("interrupted: stopping the server, removing its folder")
        return 130
    finally:
        listen(signal.SIG_IGN)
        if not keep:
            if store:
                store.stop()
            if cluster:
                cluster.destroy()


if __name__ == "__main__":
    sys.exit(main())
