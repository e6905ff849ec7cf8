"""A fault at each message between a restore and its server, then --resume: what comes of it is what comes of an undisturbed
restore, and of pg_restore, row for row.

FIRN_FAULT_STEPS says at how many messages each kind of fault comes (default 2; `all` for every message, and every statement
for errors). FIRN_FAULT_SEED repeats a run; FIRN_FAULT_AT=117 has the faults at that message only, FIRN_FAULT_AT=117:3 an error
in place of its statement 3.
"""
import os
import random
import shutil
import time

from harness import proxy as px
from harness.cluster import alive
from harness.proxy import Proxy
from restore import brief
from restore.common import OLD, PANIC, Missing, Server, firn, same_blocks
from trouble.full import NoDisk, SmallDisk

HERE = os.path.dirname(os.path.abspath(__file__))
# How often --resume may be needed after one fault.
MOST = 5
# A restore of these sources takes a second or two.
LIMIT = 90
STATES = ("53100", "40P01", "42P01", "XX000", "57014", "22000", "53200", "42710", "25006", "23505")
# What the two servers differ in: with the first, a crash loses all that was committed in the last seconds.
SERVERS = {
    "off": ("synchronous_commit=off", "wal_writer_delay=10s", "wal_writer_flush_after=1GB"),
    "on": ("synchronous_commit=on",),
}
EMPTIED = "the server crashed when all was restored, which emptied tables, or set back sequences, that are not logged"
CRASHES = ("kill serving", "kill other", "restart")
PARTITIONS = 270
STAGED = """
CREATE SCHEMA s;
CREATE TABLE s.dim (v int PRIMARY KEY);
CREATE TABLE s.root (id int NOT NULL, d int NOT NULL DEFAULT 3, v int REFERENCES s.dim, CHECK (id > 0), PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
CREATE INDEX root_v ON s.root (v);
"""


class Battered(Server):
    """A server whose processes are killed: that much is expected of its log."""

    def alarms(self, expected="."):
        return [line for line in super().alarms(expected) if "terminated by signal 9" not in line]


def server(world, sync):
    def make():
        # In memory where there is room: what is to be lost is lost by the crash, not by the disk.
        base = "/dev/shm" if room("/dev/shm") else None
        made = Battered(OLD, ("fsync=on", "full_page_writes=on", "restart_after_crash=on", "max_wal_size=512MB", "shared_buffers=64MB",
                              "log_min_messages=panic", "checkpoint_timeout=1h", "autovacuum=off", *SERVERS[sync]), f"faults-{sync}", base)
        world.servers[f"faults {sync}"] = made
        made.create()
        with made.connect() as c:
            c.execute("CREATE ROLE fault_owner; CREATE ROLE fault_reader; CHECKPOINT")
        return made
    return world.once(("faults", sync), make)


def room(folder):
    try:
        free = os.statvfs(folder)
    except FileNotFoundError:
        return False
    return free.f_bavail * free.f_frsize > 4 << 30


def psql(world, db, text):
    where = server(world, "off")
    path = os.path.join(world.folder, "faults.sql")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    where.program("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", *where.where(db), "-f", path)


def shop(world):
    def make():
        db = server(world, "off").fresh("shop")
        with open(os.path.join(HERE, "faults.sql"), encoding="utf-8") as f:
            psql(world, db, f.read())
        return db
    return world.once("faults shop", make)


def with_large(world):
    """The same, and a table that several connections load."""
    def make():
        db = server(world, "off").fresh("shop_large", template=shop(world))
        psql(world, db, "CREATE TABLE shop.large (i int PRIMARY KEY, t text);"
                        "INSERT INTO shop.large SELECT i, repeat(md5(i::text), 60) FROM generate_series(1, 18000) i")
        return db
    return world.once("faults large", make)


def staged(world):
    """Partitions enough for staging parents."""
    def make():
        db = server(world, "off").fresh("staged")
        psql(world, db, STAGED + "\n".join(
            f"CREATE TABLE s.p_{n} PARTITION OF s.root FOR VALUES FROM ({n}) TO ({n + 1});" for n in range(PARTITIONS))
            + "\nINSERT INTO s.dim SELECT generate_series(0, 9); INSERT INTO s.root SELECT 1 + i, i, i % 10 FROM generate_series(0, 269) i;")
        return db
    return world.once("faults staged", make)


OLD_ROWS = """
INSERT INTO shop.small_1 VALUES (-1, 'old'), (-2, 'old');
INSERT INTO shop.events (id, customer, t) SELECT -i, NULL, 'old' FROM generate_series(1, 100) i;
INSERT INTO shop.by_month VALUES ('2020-01-05', 1, 'old');
INSERT INTO shop.no_rows VALUES (1);
INSERT INTO shop.large SELECT -i, 'old' FROM generate_series(1, 1000) i;
"""


class Scenario:
    """What is restored, how, and into what."""

    def __init__(self, name, source, jobs, dump=(), flags=(), before=None):
        self.name, self.source, self.jobs, self.dump, self.flags, self.before = name, source, jobs, dump, list(flags), before

    def archive(self, world):
        db = self.source(world)
        name = f"faults-{db}{''.join(self.dump)}"
        return world.archive(name, lambda p: server(world, "off").archive(db, p, "c", "0", extra=self.dump))

    def prepare(self, world, where, tablespace=None):
        """The target database as it is before."""
        with where.connect() as c:
            c.execute("DROP DATABASE IF EXISTS target WITH (FORCE)")
            template = "template0"
            if self.before:
                template = world.once(("faults before", where.root, self.name), lambda: self.before(world, where, self))
            place = f" TABLESPACE {tablespace}" if tablespace else ""
            c.execute(f"CREATE DATABASE target TEMPLATE {template}{place}")

    def expected(self, world):
        """Dump and state of an undisturbed restore, and its messages."""
        return world.once(("faults expected", self.name), lambda: self.undisturbed(world))

    def undisturbed(self, world):
        where, path = server(world, "off"), self.archive(world)
        self.prepare(world, where)
        # It complains of keys that partitions inherit when it drops them, and gets there.
        where.pg_restore("target", path, *[f for f in self.flags if not f.startswith("--verify")], check="-c" not in self.flags)
        oracle = where.dump("target"), state(where)
        self.prepare(world, where)
        with Proxy(os.path.join(where.root, "proxy"), where.root) as proxy:
            proxy.arm(None, keep=True)
            run = firn(where, "target", path, *proxy.where("target"), "-j", str(self.jobs), *self.flags, where=False).ok()
            trace = proxy.trace
        dump, made = where.dump("target"), state(where)
        same_blocks(oracle[0], dump, "of pg_restore and firn")
        for name in ("rows", "large objects", "sequences"):
            assert oracle[1][name] == made[name], f"{name} of pg_restore and firn: {differ(oracle[1][name], made[name])}"
        return dump, made, trace, run.seconds


def filled(world, where, scenario):
    """A database with the schema and some rows of its own."""
    db = where.fresh("before_data")
    where.pg_restore(db, scenario.archive(world), "-s")
    with where.connect(db) as c:
        c.execute("SET session_replication_role = replica")
        c.execute(OLD_ROWS)
        # Large objects belong to the rows: pg_restore makes them here.
        c.execute("SELECT lo_unlink(oid) FROM pg_largeobject_metadata")
    return db


def full(world, where, scenario):
    db = where.fresh("before_clean")
    where.pg_restore(db, scenario.archive(world))
    with where.connect(db) as c:
        c.execute("CREATE TABLE public.somebodys AS SELECT generate_series(1, 10) i")
    return db


SCENARIOS = {s.name: s for s in (
    Scenario("one job", shop, 1),
    Scenario("parts", with_large, 4),
    Scenario("staged", staged, 2),
    Scenario("inserts", shop, 2, dump=("--rows-per-insert=20",)),
    Scenario("data only", with_large, 3, flags=("-a", "--disable-triggers"), before=filled),
    Scenario("clean", shop, 2, flags=("-c", "--if-exists"), before=full),
    Scenario("verified", shop, 2, flags=("--verify=checksums",)),
)}


def state(where):
    """What a dump does not show, or might not: counted and summed."""
    found = brief.catalogs(where, "target")
    with where.connect("target") as c:
        tables = [r[0] for r in c.execute(
            "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'm') AND oid >= 16384 AND relnamespace::regnamespace::text "
            "<> 'firn_restore' ORDER BY 1").fetchall()]
        found["rows"] = []
        for n in range(0, len(tables), 50):
            union = " UNION ALL ".join(f"SELECT '{t.replace(chr(39), chr(39) * 2)}', (SELECT count(*) FROM ONLY {t})" for t in tables[n:n + 50])
            found["rows"] += [str(r) for r in c.execute(union.replace("%", "%%")).fetchall()]
        found["large objects"] = [str(r) for r in c.execute(
            "SELECT oid, lomowner::regrole, lomacl::text, md5(lo_get(oid)) FROM pg_largeobject_metadata ORDER BY 1").fetchall()]
        names = [r[0] for r in c.execute("SELECT oid::regclass::text FROM pg_class WHERE relkind = 'S' ORDER BY 1").fetchall()]
        found["sequences"] = [str((n, *c.execute(f"SELECT last_value, is_called FROM {n}").fetchone())) for n in names]
        found["journal"] = [str(r) for r in c.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^firn'").fetchall()]
    return found


def differ(a, b):
    missing, more = [r for r in a if r not in b], [r for r in b if r not in a]
    return f"{len(missing)} missing {missing[:4]}, {len(more)} more {more[:4]}"


class Fault:
    """One kind of fault: how it is done, and at which messages it can be."""

    def __init__(self, act, at=b"", kinds=b"QcdfX"):
        self.act, self.pattern, self.kinds = act, at, kinds

    def fits(self, kind, sql):
        return kind in self.kinds and self.pattern in sql


class Case:
    """What an action may use."""

    def __init__(self, where, disk, dice, statement):
        self.where, self.disk, self.dice, self.statement = where, disk, dice, statement
        self.victim = None

    def error(self):
        return px.error(self.dice.choice(STATES), self.dice.randrange(1000) if self.statement is None else self.statement)

    def error_at_commit(self):
        return px.error(self.dice.choice(STATES), -1)

    def terminate(self):
        def end(m):
            with self.where.connect() as c:
                c.execute("SELECT pg_terminate_backend(%s)", (m.connection.pid,))
        return px.call(end)

    def kill_serving(self):
        return px.kill(self.dice.choice((None, 0, 0.01)))

    def kill_other(self):
        self.victim = self.where.connect()
        after = self.dice.choice((None, 0))

        def end(m):
            if after is not None:
                m.connection.forward(m)
                if m.kind != b"d":
                    m.connection.settle()
            px.os.kill(self.victim.info.backend_pid, px.signal.SIGKILL)
            if after is None:
                m.connection.forward(m)
        return end

    def restart(self):
        after = self.dice.random() < 0.5

        def again(m):
            if after:
                m.connection.forward(m)
                if m.kind != b"d":
                    m.connection.settle()
            self.where.stop("immediate")
            self.where.start()
        return px.call(again, forward=not after)

    def full_disk(self):
        leave = self.dice.choice((0, 0, 50_000, 1_000_000))
        return px.call(lambda m: self.disk.fill(leave))


KINDS = {
    "error": Fault(Case.error, kinds=(b"Q", b"c", b"d")),
    "error at commit": Fault(Case.error_at_commit, b"COMMIT", (b"Q",)),
    "cut before": Fault(lambda c: px.cut_before, kinds=(b"Q", b"c", b"d")),
    "cut after": Fault(lambda c: px.cut_after, kinds=(b"Q", b"c", b"d")),
    "late commit": Fault(lambda c: px.late(0.5), b"COMMIT", (b"Q",)),
    "terminated": Fault(Case.terminate, kinds=(b"Q", b"c", b"d")),
    "kill serving": Fault(Case.kill_serving, kinds=(b"Q", b"c", b"d")),
    "kill other": Fault(Case.kill_other, kinds=(b"Q", b"c", b"d")),
    "restart": Fault(Case.restart, kinds=(b"Q", b"c", b"d")),
    "full disk": Fault(Case.full_disk, kinds=(b"Q", b"c", b"d")),
}


def settings():
    asked = os.environ.get("FIRN_FAULT_STEPS", "2")
    seed = int(os.environ.get("FIRN_FAULT_SEED") or random.SystemRandom().randrange(1 << 32))
    return (None if asked == "all" else int(asked)), seed, os.environ.get("FIRN_FAULT_AT")


def steps(trace, kind, count, dice, only):
    """(message, statement or None) for each fault of a kind."""
    if only:
        number, _, statement = only.partition(":")
        return [(int(number), int(statement) if statement else None)]
    fitting = [(n, sql) for n, letter, sql in trace if KINDS[kind].fits(letter, sql)]
    if count is None:
        if kind == "error":
            return [(n, k) for n, sql in fitting for k in range(max(1, len(px.statements(sql))))]
        return [(n, None) for n, _ in fitting]
    # Half of them where something is committed.
    commits = [n for n, sql in fitting if b"COMMIT" in sql]
    chosen = dice.sample(commits, min(len(commits), (count + 1) // 2))
    rest = [n for n, _ in fitting if n not in chosen]
    chosen += dice.sample(rest, min(len(rest), count - len(chosen)))
    return [(n, None) for n in chosen]


class Disk:
    """A small file system with a tablespace, made when first needed. It stays with the server."""

    def __init__(self, where):
        self.where, self.made = where, None

    def get(self):
        if self.made is None:
            disk = SmallDisk(os.path.join(self.where.root, "small"), 128)
            try:
                disk.__enter__()
            except NoDisk as e:
                os.rmdir(disk.folder)
                raise Missing(f"a tmpfs cannot be mounted: {e}") from e
            with self.where.connect() as c:
                c.execute(f"CREATE TABLESPACE small LOCATION '{disk.folder_for('ts')}'")
                c.execute("CHECKPOINT")
            self.made = disk
        return self.made

    def close(self):
        if self.made:
            self.made.free()
            with self.where.connect() as c:
                c.execute("DROP DATABASE IF EXISTS target WITH (FORCE)")
                c.execute("DROP TABLESPACE small")
                c.execute("CHECKPOINT")
            self.made.__exit__()


def come_back(where):
    """The server runs again, and has noticed what was done to it."""
    def gone():
        return where.run("pg_ctl", "-D", where.data, "status", check=False).returncode != 0
    end = time.time() + 60
    while gone():
        assert time.time() < end, "the server is gone"
        try:
            where.start()
        except RuntimeError:
            # The fault itself may be starting it, in the proxy's thread.
            if gone():
                raise
    where.wait_ready()


def checkpointer(where):
    """The process that each of the server's lives has another one of."""
    with where.connect() as c:
        return c.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'").fetchone()[0]


def noticed(before):
    """Wait until the server has noticed that a process was killed: until then it takes connections, which it then ends. A process
    that was ending anyway is no crash."""
    end = time.time() + 10
    while alive(before) and time.time() < end:
        time.sleep(0.01)


def one(world, scenario, kind, sync, proxy, disk, number, statement, seed):
    """One restore with one fault. Returns (whether it came, how it went wrong or None)."""
    where, path = server(world, sync), scenario.archive(world)
    dump, made, _, _ = scenario.expected(world)
    dice = random.Random(f"{seed} {scenario.name} {kind} {number} {statement}")
    small = disk.get() if kind == "full disk" else None
    scenario.prepare(world, where, "small" if small else None)
    case = Case(where, small, dice, statement)
    proxy.arm(px.at(number, KINDS[kind].act(case)))
    life = checkpointer(where) if kind.startswith("kill ") else None
    args = ["-j", str(scenario.jobs), *scenario.flags]
    runs = []
    fired, checked = False, True
    try:
        runs.append(firn(where, "target", path, *proxy.where("target"), *args, where=False, patience=LIMIT))
        fired = proxy.fired.is_set()
        if small:
            small.free()
        if proxy.trouble:
            return fired, f"the proxy failed: {proxy.trouble}"
        if fired and life:
            noticed(life)
        come_back(where)
        # The journal was gone already, and it said so.
        emptied = kind in CRASHES and EMPTIED in runs[0].out and runs[0].code == 3
        while runs[-1].code != 0 and len(runs) <= MOST and not emptied:
            # As it says itself: what has not got as far as its journal begins anew, also where others' rows are.
            anew = "run the same command again" in runs[-1].out or "Without --resume a new one begins" in runs[-1].out
            runs.append(firn(where, "target", path, *args, *([] if anew else ["--resume"]), patience=LIMIT))
        for run in runs:
            if PANIC.search(run.out):
                return fired, f"it lost its head:\n{run.out[-2000:]}"
        codes = [run.code for run in runs]
        if codes[-1] != 0 and not emptied:
            return fired, f"exit codes {codes}; the first run:\n{tail(runs[0])}\nthe last:\n{tail(runs[-1])}"
        found = state(where)
        if emptied or len(runs) == 1 and kind in CRASHES and proxy.outlived() and found["rows"] != made["rows"]:
            # Rows of tables that are not logged went with a crash after the journal was removed.
            for rows in (made_rows := list(made["rows"])), found["rows"]:
                rows[:] = [r for r in rows if "shop.quick" not in r]
            made, checked = {**made, "rows": made_rows}, False
        wrong = [f"{name}: {differ(made[name], found[name])}" for name in made if made[name] != found[name]]
        if not wrong and checked:
            same_blocks(dump, where.dump("target"))
        if wrong:
            return fired, f"exit codes {codes}, yet " + "; ".join(wrong)[:1200] + f"\nthe first run:\n{tail(runs[0])}"
    except AssertionError as e:
        return fired, f"exit codes {[run.code for run in runs]}: {str(e)[:2500]}"
    finally:
        proxy.arm(None)
        if small:
            small.free()
        if case.victim:
            case.victim.close()
        come_back(where)
    return fired, None


def tail(run):
    """What was said of trouble."""
    lines = [line[:220] for line in run.out.splitlines() if line.startswith(("firn:", "HINT", "DETAIL"))]
    return "\n".join(lines[-6:])


class Bench:
    """Proxies and disks of one case."""

    def __init__(self, world):
        self.world, self.proxies, self.disks = world, {}, {}

    def of(self, sync):
        where = server(self.world, sync)
        if sync not in self.proxies:
            self.proxies[sync] = Proxy(os.path.join(where.root, "proxy"), where.root).__enter__()
            self.disks[sync] = Disk(where)
        return self.proxies[sync], self.disks[sync]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for sync, proxy in self.proxies.items():
            proxy.__exit__()
            self.disks[sync].close()
            shutil.rmtree(proxy.folder, ignore_errors=True)


def many(world, name, kinds, share=1):
    """Faults of some kinds in one scenario."""
    scenario = SCENARIOS[name]
    count, seed, only = settings()
    trace = scenario.expected(world)[2]
    tried, came, wrong, places = 0, 0, [], set()
    begin = time.time()
    with Bench(world) as bench:
        for kind in kinds:
            dice = random.Random(f"{seed} {name} {kind}")
            asked = count and max(1, count // share)
            for number, statement in steps(trace, kind, asked, dice, only):
                both = count is None or only
                for sync in (SERVERS if both else [dice.choice(list(SERVERS))]) if kind in CRASHES else ["off"]:
                    fired, trouble = one(world, scenario, kind, sync, *bench.of(sync), number, statement, seed)
                    tried += 1
                    came += fired
                    places.add(number)
                    if trouble:
                        at = f"{number}" if statement is None else f"{number}:{statement}"
                        sql = next((sql for n, _, sql in trace if n == number), b"")[:300].decode(errors="replace")
                        wrong.append(f"{kind} at message {at} of {len(trace)}, synchronous_commit {sync} (FIRN_FAULT_SEED={seed} "
                                     f"FIRN_FAULT_AT={at}): {trouble}\nthe message: {' '.join(sql.split())[:200]}")
                        print(f"     {wrong[-1].splitlines()[0][:220]}", flush=True)
    print(f"     {name}: {len(places)} of {len(trace)} steps x {len(kinds)} faults, {tried} runs in {time.time() - begin:.0f} s, "
          f"{came} faults came, {len(wrong)} differences, seed {seed}", flush=True)
    assert not wrong, f"{len(wrong)} of {tried}:\n" + "\n\n".join(wrong[:8])
    assert tried and (came * 2 >= tried or only), f"only {came} of {tried} faults came"


def few(world, name):
    """Some kinds of fault only, if not all are asked for: they are drawn."""
    count, seed, _ = settings()
    kinds = list(KINDS)
    if count is not None:
        kinds = random.Random(f"{seed} {name}").sample(kinds, min(len(kinds), 1 + count))
    many(world, name, kinds, share=2)


def cases(world):
    for name, scenario in SCENARIOS.items():
        yield f"faults {name} undisturbed", lambda s=scenario: s.expected(world)
        if name == "one job":
            for kind in KINDS:
                yield f"faults {name} {kind}", lambda n=name, k=kind: many(world, n, [k])
        else:
            yield f"faults {name}", lambda n=name: few(world, n)
