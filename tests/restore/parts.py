"""Rows of one large table over several connections: nothing twice, nothing missing, also when it is killed."""
import random
import time

from restore.common import PANIC, firn

# Parts are made of tables whose stored rows are so large that they are worth it; here they are stored as they are.
ROWS = 400_000
SUM = "SELECT count(*), count(DISTINCT i), sum(hashtextextended(t::text, 0)) FROM large t"


def source(world, form):
    """(archive of a large table and some small ones, what the large one holds)."""
    def make():
        server = world.server()
        db = server.fresh("large")
        with server.connect(db) as c:
            c.execute("CREATE TABLE large (i int NOT NULL, t text, u text)")
            c.execute("INSERT INTO large SELECT i, repeat(md5(i::text), 1 + i % 10), E'a\\nb\\\\\\t' || i "
                      f"FROM generate_series(1, {ROWS}) i")
            # Lines longer than the blocks that parts take in turn.
            c.execute("INSERT INTO large SELECT -i, repeat(i::text, 3000000), NULL FROM generate_series(1, 4) i")
            c.execute("ALTER TABLE large ADD PRIMARY KEY (i); CREATE INDEX ON large (u)")
            c.execute("CREATE TABLE small AS SELECT i FROM generate_series(1, 10) i")
            return db, c.execute(SUM).fetchone()
    db, content = world.once("large", make)
    server = world.server()
    return world.archive(f"large-{form}", lambda p: server.archive(db, p, form, "0")), content


def check(server, content):
    with server.connect("target") as c:
        assert c.execute(SUM).fetchone() == content
        assert c.execute("SELECT count(*) FROM small").fetchone() == (10,)
        assert c.execute("SELECT count(*) FROM pg_index WHERE indrelid = 'large'::regclass AND indisvalid").fetchone() == (2,)


def whole(world):
    server = world.server()
    for form in "cd":
        path, content = source(world, form)
        for jobs, rule in ((3, []), (8, []), (2, []), (3, ["--disable-rule", "split-data"])):
            server.fresh("target")
            run = firn(server, "target", path, "--jobs", str(jobs), *rule).ok()
            # It tells of parts among what took longest.
            split = jobs > 2 and not rule
            assert ("(part 2 of 3)" in run.out) == split, run.out
            check(server, content)


def killed(world):
    """Parts that were committed before are not copied again."""
    server = world.server()
    path, content = source(world, "d")
    server.fresh("target")
    whole = firn(server, "target", path, "--jobs", "3").ok().seconds
    dice, kills = random.Random(5), 0
    for _ in range(40):
        server.fresh("target")
        child = firn(server, "target", path, "--jobs", "3", wait=False)
        end = time.time() + dice.uniform(0.2, 0.9) * whole
        while time.time() < end and child.poll() is None:
            time.sleep(0.002)
        child.process.kill()
        run = child.wait()
        # The machine may have been busier before: whoever ended sooner says how long it takes.
        kills, whole = (kills + 1, whole) if run.code < 0 else (kills, min(whole, run.seconds))
        assert not PANIC.search(run.out), run.out[-3000:]
        if run.code != 0:
            firn(server, "target", path, "--jobs", "3", "--resume").ok()
        check(server, content)
        if kills == 6:
            return
    raise AssertionError(f"{kills} of 40 were killed before they had ended")


def refused(world):
    """A part that fails takes the others with it: rows of a table are all there or the table is told of as failed."""
    server = world.server()
    path, _ = source(world, "d")
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF new.i = 399999 THEN RAISE 'not this row'; END IF; "
                  "RETURN new; END $$")
        c.execute("CREATE TABLE large (i int NOT NULL, t text, u text)")
        c.execute("CREATE TRIGGER t BEFORE INSERT ON large FOR EACH ROW EXECUTE FUNCTION no()")
    run = firn(server, "target", path, "--data-only", "--table", "large", "--jobs", "3", "--on-error", "continue").fails()
    assert "not this row" in run.out and "large" in run.out, run.out


def cases(world):
    yield "parts whole", lambda: whole(world)
    yield "parts killed", lambda: killed(world)
    yield "parts refused", lambda: refused(world)
