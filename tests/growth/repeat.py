"""Each operation n times in one session: what it holds at 10, 50 and 100 per cent of them."""
import os
import time

import psycopg

from .measure import KB, MB, Watch, short
from .operations import CATALOG, OPS

AM = os.environ.get("FIRN_GROWTH_AM", "firn")
# By how much a measure may grow from the middle to the end, whatever the operation is: at all, per repetition between two
# VACUUMs, per repetition, and why.
BOUNDS = {
    "contexts": (16 * KB, 0, 0, "PostgreSQL's caches take entries in and give them up"),
    "resident": (1 * MB, 0, 0, "an allocator keeps what was freed, for each thread that encoded a stripe apart"),
    "open files": (6, 0, 0, "a file stays open until its storage is dropped"),
    "files": (3, 0, 0, "free space and visibility maps come when they are needed"),
    "row store": (32 * KB, 3 * KB, 0, "what is deleted takes room until VACUUM"),
    "TOAST": (32 * KB, 3 * KB, 0, "the same; VACUUM shortens the file when more than half of it is unused"),
    "TOAST indexes": (32 * KB, 3 * KB, 0, "pages of a B-tree are used again two VACUUMs after their last entry"),
    "index": (32 * KB, 3 * KB, 0, "the same"),
    "rows of pg_statistic": (2, 0, 0, "a column's first values"),
}
NOTHING = (0, 0, 0, "")


class Lost(Exception):
    """The session's server process is gone."""


def tidy_every(n):
    return max(2, min(100, n // 20))


class Session:
    """Runs steps and counts what was not expected."""

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self.conn = cluster.connect("growth", prepare_threshold=None)
        self.surprises = {}

    def run(self, step, i):
        expected, step = (step[1:6], step[7:]) if step.startswith("!") else (None, step)
        try:
            self.execute(step, i)
        except psycopg.OperationalError as e:
            if self.conn.closed:
                raise Lost(f"repetition {i}: {str(e).splitlines()[0]}") from e
            self.surprise(e, expected)
        except psycopg.Error as e:
            self.surprise(e, expected)
        else:
            if expected:
                self.surprises[f"no {expected}"] = self.surprises.get(f"no {expected}", 0) + 1

    def surprise(self, e, expected):
        if e.sqlstate != expected:
            text = f"{e.sqlstate} {str(e).splitlines()[0]}"
            self.surprises[text] = self.surprises.get(text, 0) + 1

    def execute(self, step, i):
        c = self.conn
        if not step.startswith("@"):
            c.execute(step.format(i=i, am=AM))
        elif step == "@copy_in" or step == "@copy_bad":
            with c.cursor().copy("COPY f FROM STDIN") as copy:
                for g in range(60):
                    copy.write_row((i * 60 + g + 10000, 1, "x", 1))
                if step == "@copy_bad":
                    copy.write("no number\t1\tx\t1\n")
        elif step == "@copy_out":
            with c.cursor().copy("COPY f TO STDOUT (FORMAT binary)") as copy:
                for _ in copy:
                    pass
        elif step == "@lose":
            for folder, _, names in os.walk(os.path.join(self.cluster.root, "lost")):
                for name in names:
                    if name.endswith(".parquet"):
                        os.unlink(os.path.join(folder, name))
        else:
            raise AssertionError(step)


def rewritten(steps):
    """The steps as a transaction that ends in an error."""
    inner = [s for s in steps if s not in ("BEGIN", "COMMIT")]
    return ["BEGIN", *inner, "!22012 SELECT 1 / 0", "ROLLBACK"]


def repeat(cluster, name, op, n, seconds):
    """Run it n times, or for so long. Returns measures and contexts at 10, 50 and 100 per cent of the repetitions that it
    came to, what was not expected, and what ended it early."""
    n = max(20, n // op.rarer)
    every = tidy_every(n)
    # Measured right after tidying up, some ten or twenty times.
    between = every * max(1, n // 10 // every)
    taken, lost, done = {}, None, 0
    begin = time.time()
    with cluster.connect("growth") as other:
        other.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        other.execute(CATALOG)
        session = Session(cluster, name)
        try:
            # What is remembered of stripes and directories is full before the first mark.
            session.conn.execute("SET firn.metadata_cache = '1MB'; SET firn.page_cache = '1MB'; SET client_min_messages = error")
            for step in op.setup:
                session.execute(step, 0)
            watch = Watch(cluster, session.conn, other)
            measured = time.time()
            while done < n and (time.time() - begin < seconds or done % every or done < 20):
                done += 1
                for step in op.steps:
                    session.run(step, done)
                if done % every == 0:
                    for step in op.tidy:
                        session.run(step, done)
                if done % between == 0 or (done % every == 0 and time.time() - measured > seconds / 20):
                    taken[done] = watch.take()
                    measured = time.time()
        except (Lost, psycopg.OperationalError) as e:
            lost = f"repetition {done}: {str(e).splitlines()[0]}"
        finally:
            session.conn.close()
    last = max(taken, default=0)
    marks = {f"{p} %": min(taken, key=lambda i: abs(i - last * p / 100)) for p in (10, 50, 100) if taken}
    return {"n": last, "every": every, "marks": marks, "taken": {m: taken[i][0] for m, i in marks.items()},
            "contexts": {m: taken[i][1] for m, i in marks.items()},
            "surprises": session.surprises, "lost": lost, "seconds": time.time() - begin}


def bound_of(op, measure, result, repetitions):
    general = BOUNDS.get("index" if measure.startswith("index ") else measure, NOTHING)
    own = op.bound.get(measure, NOTHING[1:])
    return general[0] + general[1] * result["every"] + own[0] + repetitions * (general[2] + own[1])


def grown(op, result):
    """Measures that grew by more than their bound from the middle to the end."""
    taken = result["taken"]
    middle, end = taken["50 %"], taken["100 %"]
    bad = []
    for measure, value in end.items():
        was = middle.get(measure, 0)
        if value - was > bound_of(op, measure, result, result["n"] - result["marks"]["50 %"]):
            bad.append(f"{measure} {short(measure, was)} -> {short(measure, value)}")
            if measure == "contexts":
                before, after = result["contexts"]["50 %"], result["contexts"]["100 %"]
                more = {k: v - before.get(k, 0) for k, v in after.items() if v > before.get(k, 0) + 256}
                bad.append(f"contexts that grew: {more}")
    return bad


def line(name, result):
    """One line of the table: what changed over the run, and what there is of the rest."""
    if not result["taken"]:
        return f"{name}: {result['lost']}; {result['surprises']}"
    marks = [result["taken"][m] for m in ("10 %", "50 %", "100 %")]
    shown = ["contexts", "resident"]
    shown += [m for m in marks[2] if m not in shown and len({x.get(m, 0) for x in marks}) > 1]
    cells = [f"{m} " + " ".join(short(m, x.get(m, 0)) for x in marks) for m in shown]
    odd = f"; {result['lost']}" if result["lost"] else ""
    odd += f"; not expected: {result['surprises']}" if result["surprises"] else ""
    return f"{name} ({result['n']} times, {result['seconds']:.1f} s): {'; '.join(cells)}; locks {marks[2]['locks']}{odd}"


def cases():
    """Names and operations: as they are, and those that can, in a transaction that ends in an error."""
    for name, op in OPS.items():
        if AM != "firn" and op.firn_only:
            continue
        yield name, op
        if op.fails:
            yield f"{name}, rolled back", type(op)(rewritten(op.steps), op.setup, op.tidy, op.firn_only, rarer=op.rarer,
                                                  bound=op.bound)
