"""An error at every call: each call of the extension into PostgreSQL fails once, by the test library crates/faults.

For each statement of a list, and for each call n that it makes: the statement is run with the fault at call n on a firn
table; the server must live, the error must be the fault, nothing of the statement must remain, no lock, pin or snapshot
may leak, and the same statement must then succeed and do what it does on heap. The same with a caught error (a
subtransaction is undone, the transaction goes on), with a cancel request or a termination instead of the error, and
with kill -9.

There are too many calls for every run: FIRN_TORTURE is the number of seconds to spend (60), or `all` (hours);
FIRN_TORTURE_SEED chooses the calls, and is printed.
"""
import glob
import os
import random
import re
import time

import psycopg

from harness.rack import FAULT, ROOT, Rack, Torn
from harness.statements import CASES, split
import commits
import oracle


def choose(rng, calls, telling):
    """The calls to fail at, in order: those that tell most first."""
    rest = sorted(set(range(1, calls + 1)) - set(telling))
    rng.shuffle(telling)
    rng.shuffle(rest)
    return telling + rest


def torture(rack, case, rng, seconds):
    calls, telling = rack.calls(case)
    end = None if seconds is None else time.time() + seconds
    tried = 0
    wrong = []
    for n in choose(rng, calls, telling):
        if end is not None and tried and time.time() > end or len(wrong) >= 5:
            break
        kinds = {("error", "plain"): 6, ("cancel", "plain"): 1, ("die", "plain"): 1}
        if not case.alone:
            kinds["error", "caught"] = 4
        for mode, variant in rng.choices(list(kinds), list(kinds.values())):
            tried += 1
            try:
                rack.fault(case, n, mode, variant, thorough=seconds is None or tried % 4 == 1)
            except (Torn, psycopg.Error) as e:
                wrong.append(f"call {n} of {calls}, {mode}, {variant}: {e}")
                print("    " + wrong[-1][:600], flush=True)
                rack.cluster.wait_ready()
                rack.watch = rack.cluster.connect()
                rack.started = rack.start_of_server()
                rack.complaints()
                rack.connect()
    print(f"    {case.name}: {tried} faults at {calls} calls", flush=True)
    assert not wrong, "\n".join(wrong)


def kills(rack, case, rng, count):
    calls, _ = rack.calls(case)
    for _ in range(count):
        rack.fault(case, rng.randint(1, calls), "kill", thorough=True)


# No fault comes to these: they catch errors themselves, or a repetition of what they have done half would not be the same.
WHOLE = re.compile(r"(?i)\s*(BEGIN|START|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE|PREPARE|FETCH|MOVE|CLOSE|SET|RESET|SHOW|CALL)\b|.*CONCURRENTLY"
                   r"|.*(nextval|serial|GENERATED|SELECT q\()", re.S)


TEMPORARY = "SELECT 1 FROM pg_class WHERE relpersistence = 't' AND relkind = 'r' AND pg_table_is_visible(oid) LIMIT 1"
# Where each call of a statement is to fail: so many of its first ones each, from then on each that is a fiftieth further on.
FIRST_CALLS = 300


def calls_of_all():
    n = 1
    while True:
        yield n
        n += 1 if n < FIRST_CALLS else n // 50


def play(conn, statements, rng=None, each=False):
    """What each statement of a file gives. With `rng`, each may fail at some call, is undone, and done again; with `each`,
    it fails at one call after the other until it has no more of them."""
    status = psycopg.pq.TransactionStatus
    outcomes, faults = [], 0
    for sql in statements:
        inside = conn.info.transaction_status == status.INTRANS
        tries = rng is not None and not WHOLE.match(sql) and conn.info.transaction_status != status.INERROR
        # A statement that is its own transaction empties tables ON COMMIT DELETE ROWS at its end, and their indexes, in place: an
        # error between the two leaves an index without a page, on heap as well (RelationTruncateIndexes()).
        tries = tries and (inside or not answer(conn, TEMPORARY))
        if tries and inside:
            answer(conn, "SAVEPOINT torture")
        for n in ((calls_of_all() if each else [int(2 ** rng.uniform(0, 9))]) if tries else []):
            answer(conn, f"SET faults.at = {n}")
            result = answer(conn, sql)
            if result != FAULT:
                break
            faults += 1
            if inside:
                answer(conn, "ROLLBACK TO torture")
            answer(conn, "SET faults.at = 0")
        else:
            result = answer(conn, sql)
        if tries:
            # In a block that has failed, settings cannot be changed any more: its end does it.
            answer(conn, "SET faults.at = 0")
        if tries and inside and conn.info.transaction_status == status.INTRANS:
            answer(conn, "RELEASE torture")
        outcomes.append((sql, result))
    return outcomes, faults


def answer(conn, sql):
    """Rows as text, or an SQLSTATE."""
    result = conn.pgconn.exec_(sql.encode())
    state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
    if state:
        return state.decode()
    return [tuple(result.get_value(row, column) for column in range(result.nfields)) for row in range(result.ntuples)]


# Statements that end in an error of firn's own (the first: in one of PostgreSQL's that passes through firn), and how many calls of each
# fail at least.
FAILING = {
    "SELECT count(*) FROM empty": ("55000", 20),
    "SELECT firn.compact('kept')": ("42809", 6),
    "SELECT firn.offload('f', 'nowhere')": ("42704", 6),
    "SELECT * FROM firn.stripes('kept')": ("42809", 6),
}


def errors_of_ours(rack):
    """An error that meets another one on its way out, like one about memory, does not end the server."""
    with rack.cluster.connect() as c:
        c.execute("DROP TABLE IF EXISTS f, kept CASCADE; SET firn.bulk_threshold = 0")
        c.execute("CREATE TABLE f USING firn AS SELECT generate_series(1, 50) id; CREATE TABLE kept USING heap AS TABLE f")
        c.execute("CREATE MATERIALIZED VIEW empty USING firn AS TABLE f WITH NO DATA")
        for sql, (state, least) in FAILING.items():
            failed = swallowed = 0
            for n in calls_of_all():
                answer(c, f"SET faults.at = {n}")
                result = answer(c, sql)
                # A fault that somebody has caught is followed by the statement's own error.
                came = answer(c, "SHOW faults.last") != [(b"",)]
                answer(c, "SET faults.at = 0")
                assert result == state or came and result == FAULT, (sql, result, n)
                failed += result == FAULT
                swallowed += came and result != FAULT
                if not came:
                    break
            print(f"    {sql}: {failed} faults, and {swallowed} that were caught", flush=True)
            assert failed >= least, (sql, failed)
        c.execute("DROP MATERIALIZED VIEW empty; DROP TABLE f, kept")
    said = rack.complaints()
    assert not said, "\n".join(said[:5])
    assert rack.start_of_server() == rack.started, "the server was restarted"


def file_under_faults(rack, path, rng, each):
    """A file of the suite `sql` on firn with faults gives what it gives on heap without."""
    statements = split(open(path).read())
    label, settle, settings = rng.choice(oracle.PASSES[1:])
    results = []
    for am in ("heap", "firn"):
        with rack.cluster.connect() as c:
            c.execute("DROP DATABASE IF EXISTS t WITH (FORCE)")
            c.execute("CREATE DATABASE t")
        with rack.cluster.connect("t") as c:
            c.execute("CREATE EXTENSION firn")
            c.execute(settle if am == "firn" else oracle.SETTLE_HEAP)
            c.execute(f"ALTER DATABASE t SET default_table_access_method = {am}")
        options = settings if am == "firn" else ""
        with rack.cluster.connect("t", options=options, prepare_threshold=None) as c:
            results.append(play(c, statements, rng if am == "firn" else None, each))
    (heap, _), (firn, faults) = results
    print(f"    {os.path.basename(path)} ({label}): {faults} faults in {len(statements)} statements", flush=True)
    # (What a statement has taken from a sequence before a fault stays taken.)
    wrong = [f"{sql[:300]}\n  heap {str(a)[:300]}\n  firn {str(b)[:300]}" for (sql, a), (_, b) in zip(heap, firn)
             if a != b and not re.search(r"settle\(|xmin|xmax|last_value", sql)]
    assert not wrong, "\n".join(wrong[:5])
    said = rack.complaints()
    assert not said, "\n".join(said[:5])
    assert rack.start_of_server() == rack.started, "the server was restarted"


def run(tally, pattern):
    budget = os.environ.get("FIRN_TORTURE", "60")
    seconds = None if budget == "all" else float(budget)
    seed = int(os.environ.get("FIRN_TORTURE_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"    seed {seed}", flush=True)
    rack = Rack()
    try:
        chosen = [c for c in CASES if pattern in c.name]
        for case in chosen:
            rng = random.Random(f"{seed} {case.name}")
            tally.case(f"torture {case.name}", lambda: torture(rack, case, rng, seconds and seconds / len(chosen)))
        if pattern in "errors of ours":
            tally.case("torture errors of ours", lambda: errors_of_ours(rack))
        killed = [c for c in chosen if c.name in ("compact", "offload", "load", "vacuum full", "bulk insert", "update")]
        for case in killed:
            rng = random.Random(f"{seed} {case.name}")
            tally.case(f"torture {case.name}, killed", lambda: kills(rack, case, rng, 5 if seconds is None else 1))
        works = [w for w in commits.WORKS if pattern in w.name]
        for work in works:
            rng = random.Random(f"{seed} {work.name}")
            tally.case(f"torture {work.name}", lambda: commits.torture(rack, work, rng, seconds and seconds / 3 / len(works)))
        files = sorted(f for f in glob.glob(os.path.join(ROOT, "tests", "sql", "*.sql")) if pattern in os.path.basename(f))
        rng = random.Random(f"{seed} files")
        for path in files if seconds is None or pattern else rng.sample(files, 2):
            name = os.path.basename(path)
            tally.case(f"torture {name}", lambda: file_under_faults(rack, path, random.Random(f"{seed} {name}"), seconds is None))
    finally:
        rack.cluster.destroy()
