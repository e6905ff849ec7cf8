"""`firn backup --incremental`: files of unchanged tables are taken from an earlier backup; whatever happened to a table, the
backup is right. The oracle is a backup of all tables, or COPY by the very snapshot that the backup has."""
import contextlib
import json
import os
import random
import shutil
import threading
import time

import psycopg
from backup.zoo import ZOO, contents, create, place, restored, same
from harness.cluster import Cluster
from harness.program import firn, start

SEED = int(os.environ.get("FIRN_SEED", random.randrange(10**6)))
ROUNDS = int(os.environ.get("FIRN_INCREMENTAL_ROUNDS", 8))


@contextlib.contextmanager
def server(*conf):
    """One of its own: it is crashed, and may do what others must not."""
    base = ["shared_preload_libraries=''", "max_locks_per_transaction=512", "autovacuum=off", "track_activity_query_size=4096"]
    cluster = Cluster("incremental", conf=[*base, *conf]).create()
    try:
        yield cluster
        assert not [a for a in cluster.alarms(".") if "terminated by signal" not in a]
    finally:
        cluster.destroy()


def manifest(path):
    with open(os.path.join(path, "manifest.json")) as f:
        return json.load(f)


def tables(path):
    """Its tables' entries of the manifest and their files, by name."""
    found = {}
    for file in manifest(path)["files"]:
        if "table" in file:
            found[file["table"]["name"]] = (file["table"], os.path.join(path, file["name"]))
    return found


def taken(path):
    return {name for name, (table, _) in tables(path).items() if "unchanged_since" in table}


def take(cluster, database, name, *flags, **kw):
    path = place(cluster, os.path.join("inc", name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    r = firn(cluster, "backup", database, path, "-j", "2", *flags, **kw)
    return path, r


def equals_full(cluster, database, path, *flags):
    """Nobody writes: each table's file has what it has in a backup of all tables, and the manifest says so."""
    full, _ = take(cluster, database, "full", *flags)
    ours, theirs = tables(path), tables(full)
    assert ours.keys() == theirs.keys()
    for name, (table, file) in theirs.items():
        mine, own = ours[name]
        assert contents(own) == contents(file), name
        for what in ("schema", "rows", "bytes", "checksum"):
            assert mine[what] == table[what], (name, what)
    firn(cluster, "backup", "verify", "-q", path)
    shutil.rmtree(full)


# Name of the table, its definition ("": as usual), what happens before the base, what after it, whether it is taken then.
ROWS = "INSERT INTO {0} SELECT i, 'v' || i FROM generate_series(1, 3000) i"
KINDS = [
    ("still", "", "", "", True),
    ("reads", "", "", "SELECT count(*) FROM reads", True),
    ("inserted", "", "", "INSERT INTO inserted VALUES (0, 'new')", False),
    ("updated", "", "", "UPDATE updated SET t = 'x' WHERE i = 7", False),
    ("deleted", "", "", "DELETE FROM deleted WHERE i = 7", False),
    ("rolled_back", "", "", "BEGIN; INSERT INTO rolled_back VALUES (0); ROLLBACK", False),
    ("truncated", "", "", "TRUNCATE truncated", False),
    ("reloaded", "", "", "BEGIN; TRUNCATE reloaded; " + ROWS.format("reloaded") + "; COMMIT", False),
    ("truncated_not", "", "", "BEGIN; TRUNCATE truncated_not; ROLLBACK", True),
    ("vacuumed_full", "", "", "VACUUM FULL vacuumed_full", False),
    ("clustered", "", "CREATE INDEX clustered_i ON clustered (i)", "CLUSTER clustered USING clustered_i", False),
    ("frozen", "", "", "VACUUM FREEZE frozen", False),
    ("analyzed", "", "", "ANALYZE analyzed", True),
    ("indexed", "", "", "CREATE INDEX ON indexed (t)", True),
    ("row_locked", "", "", "SELECT count(*) FROM (SELECT FROM row_locked WHERE i < 5 FOR UPDATE) x", False),
    ("cut", "", "", "DELETE FROM cut WHERE i > 10; VACUUM cut", False),
    ("cut_and_filled", "", "", "DELETE FROM cut_and_filled; VACUUM cut_and_filled; " + ROWS.format("cut_and_filled"), False),
    ("longer_type", "i int, t varchar(20)", "", "ALTER TABLE longer_type ALTER t TYPE varchar(40)", False),
    ("other_type", "i int, t varchar(20)", "", "ALTER TABLE other_type ALTER i TYPE oid", False),
    ("wider", "", "", "ALTER TABLE wider ADD COLUMN more int DEFAULT 7", False),
    ("widened_before", "", "ALTER TABLE widened_before ADD COLUMN more int DEFAULT 7", "", True),
    ("default_changed", "", "ALTER TABLE default_changed ADD COLUMN more int DEFAULT 7",
     "ALTER TABLE default_changed DROP COLUMN more; ALTER TABLE default_changed ADD COLUMN more int DEFAULT 8", False),
    ("narrower", "i int, t text, u int", "", "ALTER TABLE narrower DROP COLUMN u", False),
    ("column_renamed", "", "", "ALTER TABLE column_renamed RENAME t TO tt", False),
    ("columns_swapped", "i int, t text, u text DEFAULT 'u'", "",
     "ALTER TABLE columns_swapped RENAME t TO x; ALTER TABLE columns_swapped RENAME u TO t; ALTER TABLE columns_swapped RENAME x TO u", False),
    ("swapped_a", "", "", "ALTER TABLE swapped_a RENAME TO swapped_x; ALTER TABLE swapped_b RENAME TO swapped_a; "
     "ALTER TABLE swapped_x RENAME TO swapped_b", False),
    ("swapped_b", "", "UPDATE swapped_b SET t = t || t", "", False),
    ("replaced", "", "", "DROP TABLE replaced; CREATE TABLE replaced (i int, t text); " + ROWS.format("replaced"), False),
    ("labelled", "i int, t text, m mood DEFAULT 'sad'", "", "", False),
    ("labels", "i int, t text, m moods[] DEFAULT '{sad}'", "", "", False),
    ("calmed", "i int, t text, m calm DEFAULT 'sad', d several DEFAULT '{{1,2}}', n positive DEFAULT 1", "", "", True),
    ("paired", "i int, t text, p pair DEFAULT '(1,x)'", "", "", False),
    ("rich", "i int, t text, m money DEFAULT 5", "", "", False),
    ("classes", "i int, t text, c regclass DEFAULT 'still'", "", "", False),
    ("unlogged", "UNLOGGED", "", "", False),
    ("logged_now", "UNLOGGED", "", "ALTER TABLE logged_now SET LOGGED", False),
    ("generated", "i int, t text, g text GENERATED ALWAYS AS (upper(t)) STORED", "", "", True),
    ("toasted", "i int, t text, l text DEFAULT repeat('long ', 10)", "ALTER TABLE toasted ALTER l SET STORAGE EXTERNAL; "
     "UPDATE toasted SET l = repeat(md5(i::text), 100) WHERE i < 50; VACUUM toasted", "", True),
    # Whoever reads it, the base itself, prunes what the UPDATE left: that is a change.
    ("pruned", "", "UPDATE pruned SET t = t || 'x'", "", False),
    ("toast_changed", "i int, t text, l text", "ALTER TABLE toast_changed ALTER l SET STORAGE EXTERNAL; "
     "UPDATE toast_changed SET l = repeat(md5(i::text), 100) WHERE i < 50",
     "UPDATE toast_changed SET l = repeat(md5(l), 100) WHERE i = 49", False),
    # By VACUUM FULL of the TOAST relation alone.
    ("toast_rewritten", "i int, t text, l text", "ALTER TABLE toast_rewritten ALTER l SET STORAGE EXTERNAL; "
     "UPDATE toast_rewritten SET l = repeat(md5(i::text), 100) WHERE i < 50", "", False),
    ("nothing_yet", "", "TRUNCATE nothing_yet", "", True),
    ("first_row", "", "TRUNCATE first_row", "INSERT INTO first_row VALUES (1, 'x')", False),
    ("moved", "", "", "ALTER TABLE moved SET TABLESPACE elsewhere", False),
    ("parted_1", "PARTITION OF parted FOR VALUES FROM (0) TO (10000)", "", "", True),
    ("parted_2", "PARTITION OF parted FOR VALUES FROM (10000) TO (20000)", "", "INSERT INTO parted VALUES (10001, 'x')", False),
    ("child", "INHERITS (inherited)", "", "INSERT INTO inherited VALUES (1, 'x')", True),
    # By somebody else, while the base is made.
    ("long", "", "", "", False),
    ("prepared", "", "", "", False),
    ("undone", "", "", "", False),
    ("sub_undone", "", "", "", True),
    ("sub_kept", "", "", "", False),
    ("locked", "", "", "", False),
]
BEFORE = """
CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TYPE calm AS ENUM ('sad', 'calm'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN moods AS mood; CREATE DOMAIN several AS positive[]; CREATE TYPE pair AS (a int, b text);
CREATE TABLE parted (i int, t text) PARTITION BY RANGE (i); CREATE TABLE inherited (i int, t text);
"""


def statements(c, text):
    for statement in text.split("; "):
        c.execute(statement)


def kinds(_):
    """All that may happen to a table, at once."""
    with server("fsync=off") as cluster:
        space = place(cluster, "elsewhere")
        cluster.run("/bin/mkdir", space)
        with cluster.connect() as c:
            c.execute(f"CREATE TABLESPACE elsewhere LOCATION '{space}'")
            create(c, "kinds", BEFORE, cluster)
        with cluster.connect("kinds") as c, cluster.connect("kinds") as other, cluster.connect("kinds") as third:
            for name, columns, before, _, _ in KINDS:
                definition = columns if columns.startswith(("PARTITION", "INHERITS")) else f"({columns or 'i int, t text'})"
                if columns == "UNLOGGED":
                    c.execute(f"CREATE UNLOGGED TABLE {name} (i int, t text)")
                elif columns.startswith("INHERITS"):
                    c.execute(f"CREATE TABLE {name} () {columns}")
                else:
                    c.execute(f"CREATE TABLE {name} {definition}")
                if name != "parted_2":
                    c.execute(ROWS.format(f"{name} (i, t)"))
                if not definition.startswith("PARTITION"):
                    # (With checksums the first reading of rows is a change.)
                    c.execute(f"VACUUM {name}")
                if before:
                    statements(c, before)
            other.execute("BEGIN; INSERT INTO long VALUES (0, 'open')")
            third.execute("BEGIN; INSERT INTO prepared VALUES (0, 'open'); PREPARE TRANSACTION 'across'")
            other.execute("SAVEPOINT a; INSERT INTO sub_undone VALUES (0, 'x'); ROLLBACK TO SAVEPOINT a")
            other.execute("SAVEPOINT b; INSERT INTO sub_kept VALUES (0, 'x'); RELEASE SAVEPOINT b")
            other.execute("LOCK TABLE locked IN SHARE ROW EXCLUSIVE MODE")
            third.execute("BEGIN; INSERT INTO undone VALUES (0, 'open')")
            base, _ = take(cluster, "kinds", "base")
            known = {name for name, (table, _) in tables(base).items() if "basis" in table}
            other.execute("COMMIT")
            third.execute("ROLLBACK")
            third.execute("COMMIT PREPARED 'across'")
            for _, _, _, after, _ in KINDS:
                if after:
                    statements(c, after)
            c.execute("VACUUM inserted")
            c.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
            firn(cluster, "backup", "verify", "-q", base)
            toast = c.execute("SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'toast_rewritten'").fetchone()[0]
            c.execute(f"VACUUM FULL {toast}")
            path, r = take(cluster, "kinds", "incr", "--incremental")
            expected = {name for name, _, _, _, whether in KINDS if whether}
            assert taken(path) == expected, (sorted(taken(path) ^ expected), r.stderr)
            assert expected <= known and not known & {"long", "prepared", "undone", "sub_kept", "locked", "rich", "classes", "paired", "unlogged"}
            equals_full(cluster, "kinds", path)
            # Taken files are the base's own, and it can go.
            name = "still"
            assert os.path.samefile(tables(base)[name][1], tables(path)[name][1])
            assert manifest(path)["base"] == "base"
            # A third goes by the second, and says when rows were copied.
            again, _ = take(cluster, "kinds", "again", "--incremental")
            assert expected <= taken(again)
            assert tables(again)[name][0]["unchanged_since"] == manifest(base)["snapshot_time"]
            assert tables(again)["inserted"][0]["unchanged_since"] == manifest(path)["snapshot_time"]
            equals_full(cluster, "kinds", again)
            shutil.rmtree(base)
            shutil.rmtree(path)
            firn(cluster, "backup", "verify", "-q", again)
        with cluster.connect() as c:
            restored(cluster, c, again, "back")
        firn(cluster, "backup", "verify", again, "-d", "back", "--checksums")


def between(_):
    """Changes between the place in WAL that is noted and the look at locks, which is kept waiting, and the snapshot."""
    with server("fsync=off") as cluster:
        with cluster.connect() as c:
            create(c, "gap", ";".join(f"CREATE TABLE {t} (i int, t text); {ROWS.format(t)}" for t in ("still", "done", "open", "undone")),
                   cluster)
        with cluster.connect("gap") as slow, cluster.connect("gap") as c, cluster.connect("gap") as late:
            slow.execute("BEGIN; LOCK TABLE pg_locks IN ACCESS EXCLUSIVE MODE")
            path = place(cluster, "inc/base")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            p = start(cluster, "backup", "gap", path)
            end = time.time() + 60
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'firn backup'"
            while not c.execute(waits).fetchone():
                assert time.time() < end and p.poll() is None, p.communicate()
                time.sleep(0.01)
            c.execute("INSERT INTO done VALUES (0, 'seen')")
            late.execute("BEGIN; INSERT INTO open VALUES (0, 'open'); INSERT INTO undone VALUES (0, 'never')")
            late.execute("SAVEPOINT s; DELETE FROM undone; ROLLBACK TO SAVEPOINT s")
            slow.execute("COMMIT")
            _, err = p.communicate(timeout=60)
            assert p.returncode == 0, err
            late.execute("COMMIT")
            assert b"seen" in contents(tables(path)["done"][1])
            assert b"open" not in contents(tables(path)["open"][1])
            assert "basis" in tables(path)["done"][0] and "basis" not in tables(path)["open"][0]
            path, _ = take(cluster, "gap", "incr", "--incremental")
            assert taken(path) == {"still"}, taken(path)
            equals_full(cluster, "gap", path)


def crashes(_):
    """The server crashes and recovers between, or is started anew."""
    with server("synchronous_commit=off", "wal_writer_delay=2s", "wal_writer_flush_after=1GB", "restart_after_crash=on") as cluster:
        with cluster.connect() as c:
            create(c, "crash", ";".join(f"CREATE TABLE {t} (i int, t text); {ROWS.format(t)}" for t in ("still", "changed", "lost")), cluster)
        with cluster.connect("crash") as c:
            # (With checksums the first reading of rows is a change, and before they are durable it cannot note that they are there.)
            c.execute("CHECKPOINT")
            c.execute("VACUUM")
            # Not durable, and seen: the backup waits for it.
            c.execute("INSERT INTO lost VALUES (0, 'seen')")
            base, _ = take(cluster, "crash", "base")
            c.execute("UPDATE changed SET t = 'x' WHERE i = 9")
            pid = c.execute("SELECT pg_backend_pid()").fetchone()[0]
            os.kill(pid, 9)
        cluster.wait_recovered()
        with cluster.connect("crash") as c:
            rows = c.execute("SELECT count(*) FROM lost WHERE t = 'seen'").fetchone()[0]
            path, r = take(cluster, "crash", "incr", "--incremental")
            print(f"     after a crash {sorted(taken(path))} are taken; a row that the base has is {'there' if rows else 'lost'}")
            assert "still" in taken(path), r.stderr
            equals_full(cluster, "crash", path)
            assert rows == 1
        cluster.crash()
        cluster.start()
        path, r = take(cluster, "crash", "started", "--incremental")
        assert not taken(path) and "before the server was started" in r.stderr, r.stderr
        equals_full(cluster, "crash", path)


def rights(_):
    """Who may not read files, and what else makes all tables be copied; what is told then."""
    with server("fsync=off") as cluster:
        with cluster.connect() as c:
            create(c, "some", f"CREATE TABLE a (i int, t text); {ROWS.format('a')}; CREATE TABLE b (i int, t text); {ROWS.format('b')}", cluster)
            c.execute("CREATE ROLE reader LOGIN; GRANT pg_read_all_data TO reader")
        with cluster.connect("some") as c:
            c.execute("VACUUM")

        def told(name, *flags, code=0, **kw):
            path, r = take(cluster, "some", name, *flags, code=code, **kw)
            if code == 0:
                assert not taken(path) and "base" not in manifest(path), r.stderr
                equals_full(cluster, "some", path)
                shutil.rmtree(path)
            return r.stderr

        assert "there is no earlier backup of the database" in told("first", "--incremental")
        base, _ = take(cluster, "some", "base")
        assert "permission denied for function pg_read_binary_file" in told("r", "--incremental", "-U", "reader")
        with cluster.connect("some") as c:
            c.execute("GRANT EXECUTE ON FUNCTION pg_read_binary_file(text, bigint, bigint, boolean) TO reader")
        assert "pg_checkpoint" in told("r", "--incremental", "-U", "reader")
        with cluster.connect() as c:
            c.execute("GRANT pg_checkpoint TO reader")
        path, _ = take(cluster, "some", "granted", "--incremental", "-U", "reader")
        assert taken(path) == {"a", "b"}
        shutil.rmtree(path)
        for flags, text in ((["-Z", "none"], "compressed in another way"), (["-E", "LATIN1"], "under other settings"),
                            (["--enable-row-security"], "row security is on")):
            assert text in told("r", "--incremental", *flags), flags
        for env in ({"PGTZ": "Asia/Tokyo"}, {"PGOPTIONS": "-c quote_all_identifiers=on"}, {"PGOPTIONS": "-c lc_monetary=POSIX"}):
            assert "under other settings" in told("r", "--incremental", env=env), env
        assert "no name of a backup" in told("r", "--incremental=../base", code=2)
        assert 'could not use backup "nowhere"' in told("r", "--incremental=nowhere", code=1)
        # Another level is no other method; tables of which the base has no checksums are copied.
        method = "zstd" if any(".zst" in n for n in os.listdir(base)) else "gzip"
        path, _ = take(cluster, "some", "level", "--incremental=base", "-Z", f"{method}:1")
        assert taken(path) == {"a", "b"}
        shutil.rmtree(path)
        path, _ = take(cluster, "some", "without", "--no-checksums")
        assert "is in backup" in told("r", "--incremental=without")
        path, _ = take(cluster, "some", "without2", "--incremental=without", "--no-checksums")
        assert taken(path) == {"a", "b"}
        # What is missing or shorter in the base is copied anew.
        ours = tables(base)
        os.truncate(ours["a"][1], os.path.getsize(ours["a"][1]) - 1)
        path, _ = take(cluster, "some", "short", "--incremental=base")
        assert taken(path) == {"b"}
        equals_full(cluster, "some", path)
        os.remove(ours["b"][1])
        path, _ = take(cluster, "some", "gone", "--incremental=base")
        assert taken(path) == set()
        equals_full(cluster, "some", path)
        # A damaged manifest is no base.
        with open(os.path.join(base, "manifest.json"), "a") as f:
            f.write(" ")
        told("r", "--incremental=base", code=1)
        path, _ = take(cluster, "some", "latest", "--incremental")
        assert manifest(path)["base"] == "gone"


def zoo(_):
    """All kinds of tables at once, restored by stock pg_restore."""
    with server("fsync=off") as cluster:
        with cluster.connect() as c:
            create(c, "zoo", ZOO, cluster)
            take(cluster, "zoo", "one")
            path, _ = take(cluster, "zoo", "two", "--incremental")
            assert taken(path) >= {"nothing", "empty", "parted_1_0", "parent", "child"}, taken(path)
            assert not taken(path) & {"big", "unlogged"}
            equals_full(cluster, "zoo", path)
            restored(cluster, c, path, "back")
            same(cluster, "zoo", "back")


def standby_note(_):
    """On a standby nothing is taken, and nothing can be taken from what was made there."""
    with server("fsync=off") as cluster:
        with cluster.connect() as c:
            create(c, "some", "CREATE TABLE a AS SELECT 1 AS x", cluster)
        take(cluster, "some", "base")
        shadow = Cluster("incremental-standby")
        try:
            shutil.rmtree(shadow.data, ignore_errors=True)
            cluster.run("pg_basebackup", "-D", shadow.data, "-h", cluster.root, "-U", "postgres", "-R", "-c", "fast")
            with open(os.path.join(shadow.data, "postgresql.conf"), "a") as f:
                f.write(f"unix_socket_directories='{shadow.root}'\n")
            shadow.start()
            path = os.path.join(cluster.root, "inc", "standby")
            r = firn(shadow, "backup", "some", path, "--incremental")
            assert "standby" in r.stderr and not taken(path)
            assert "basis" not in manifest(path) and not any("basis" in t for t, _ in tables(path).values())
            path = os.path.join(cluster.root, "inc", "after")
            r = firn(cluster, "backup", "some", path, "--incremental=standby")
            assert "does not tell enough" in r.stderr and not taken(path), r.stderr
            # Of its own accord it goes by an earlier one that does.
            path = os.path.join(cluster.root, "inc", "last")
            shutil.rmtree(os.path.join(cluster.root, "inc", "after"))
            firn(cluster, "backup", "some", path, "--incremental")
            assert manifest(path)["base"] == "base"
        finally:
            shadow.destroy()


class Writers:
    """Others who write all the time, some of them in transactions that stay open for long."""

    def __init__(self, cluster, names, seed):
        self.cluster, self.names, self.seed, self.stop, self.errors = cluster, names, seed, False, []
        self.threads = [threading.Thread(target=self.work, args=(n,), daemon=True) for n in range(3)]

    def work(self, number):
        dice = random.Random(self.seed * 10 + number)
        try:
            with self.cluster.connect("random") as c:
                while not self.stop:
                    # Most of the time in a few tables, so that others stay as they are for a while.
                    mine = dice.sample(self.names, 2)
                    self.transaction(c, dice, mine, number)
                    time.sleep(dice.choice((0, 0.01, 0.3)))
        except psycopg.Error as e:
            self.errors.append(e)

    def transaction(self, c, dice, mine, number):
        c.execute("BEGIN")
        for _ in range(dice.randrange(1, 5)):
            t, i = dice.choice(mine), dice.randrange(1, 400)
            steps = [f"INSERT INTO {t} VALUES ({i}, 'n{dice.random()}')", f"DELETE FROM {t} WHERE i = {i}",
                     f"UPDATE {t} SET t = t || 'u' WHERE i = {i}", f"SELECT FROM {t} WHERE i = {i} FOR UPDATE",
                     f"UPDATE {t} SET l = repeat(md5(random()::text), 80) WHERE i = {i}"]
            sub = dice.random() < 0.4
            try:
                if sub:
                    c.execute("SAVEPOINT s")
                c.execute(dice.choice(steps))
                if sub:
                    c.execute(dice.choice(("ROLLBACK TO SAVEPOINT s", "RELEASE SAVEPOINT s")))
            except (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
                c.execute("ROLLBACK")
                return
            time.sleep(dice.choice((0, 0, 0.02, 0.5)))
        end = dice.choices(("COMMIT", "ROLLBACK", "PREPARE"), (8, 3, 2))[0]
        if end != "PREPARE":
            c.execute(end)
            if dice.random() < 0.15:
                c.execute(f"VACUUM {dice.choice(mine)}")
            return
        name = f"p{number}_{dice.random()}"
        c.execute(f"PREPARE TRANSACTION '{name}'")
        time.sleep(dice.choice((0, 0.5, 1.5)))
        c.execute(dice.choice((f"COMMIT PREPARED '{name}'", f"ROLLBACK PREPARED '{name}'")))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop = True
        for thread in self.threads:
            thread.join(60)
        assert not self.errors, (self.seed, self.errors)


class Witness:
    """Sees what the backup's snapshot sees: it takes every snapshot that is exported, and keeps the last."""

    def __init__(self, cluster, names):
        self.cluster, self.names, self.seen, self.stop, self.held = cluster, names, set(), False, None
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        with self.cluster.connect("random") as c:
            while not self.stop:
                for (name,) in c.execute("SELECT pg_ls_dir('pg_snapshots')").fetchall():
                    if name not in self.seen:
                        self.seen.add(name)
                        self.take(name)
                time.sleep(0.002)

    def take(self, name):
        held = self.cluster.connect("random")
        try:
            held.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{name}'")
            held.execute("LOCK TABLE " + ", ".join(self.names) + " IN ACCESS SHARE MODE")
            if self.held:
                self.held.close()
            self.held = held
        except psycopg.Error:
            held.close()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop = True
        self.thread.join(30)

    def rows(self, name):
        with self.held.cursor() as cursor, cursor.copy(f"COPY {name} TO STDOUT") as copy:
            return sorted(bytes(row) for row in copy)


def differential(_):
    """Writers at work, an incremental backup after the other: each has the rows that its snapshot sees."""
    print(f"     seed {SEED}", flush=True)
    names = [f"t{n}" for n in range(14)]
    number = 0
    with server("fsync=off", "max_prepared_transactions=20", "deadlock_timeout=100ms") as cluster:
        with cluster.connect() as c:
            create(c, "random", ";".join(f"CREATE TABLE {t} (i int, t text, l text); ALTER TABLE {t} ALTER l SET STORAGE EXTERNAL;"
                                         f"INSERT INTO {t} SELECT i, 'v' || i FROM generate_series(1, 400) i" for t in names), cluster)
        with Writers(cluster, names, SEED):
            for n in range(ROUNDS):
                with Witness(cluster, names) as witness:
                    path, r = take(cluster, "random", f"r{n}", "--incremental")
                assert witness.held, "nobody has seen the snapshot"
                found = tables(path)
                for name in names:
                    table, file = found[name]
                    text = contents(file).removesuffix(b"\\.\n\n\n")
                    rows = sorted(line + b"\n" for line in text.split(b"\n")[:-1])
                    assert rows == witness.rows(name), (SEED, n, name, name in taken(path), r.stderr)
                    assert table["rows"] == len(rows)
                witness.held.close()
                firn(cluster, "backup", "verify", "-q", path)
                number += len(taken(path))
    print(f"     {ROUNDS} backups, {number} of {ROUNDS * len(names)} tables taken, each with the rows of its snapshot")
    assert number > 0 or ROUNDS < 4, SEED


CASES = {"incremental kinds": kinds, "incremental between": between, "incremental crashes": crashes, "incremental rights": rights,
         "incremental zoo": zoo, "incremental standby": standby_note, "incremental differential": differential}
