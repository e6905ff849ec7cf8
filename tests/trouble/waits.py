"""What happens to those who wait for a row: for whoever is loading one that excludes theirs, or is moving the one that they change."""
import os
import time

import psycopg

from trouble.common import Background, expect


def has_inserted(c, other):
    """The server has read more of the session's COPY than a buffer (1,000 rows), so the first ones have been inserted."""
    until, rows = time.time() + 60, 0
    while time.time() < until:
        (rows,) = c.execute("SELECT coalesce(max(tuples_processed), 0) FROM pg_stat_progress_copy WHERE pid = %s", (other.info.backend_pid,)).fetchone()
        if rows > 1000:
            return
        time.sleep(0.01)
    raise AssertionError(f"COPY has come to row {rows} only")


def exclusion(cluster):
    """A constraint that looks at values again (hash, and GiST on circles) sees those of a row that another session is loading."""
    for name, column, using, value in (("by hash", "v int", "hash (v WITH =)", "7"),
                                       ("of circles", "v circle", "gist (v WITH &&)", "circle(point(7, 0), 1)")):
        for am in ("heap", "firn"):
            with cluster.connect() as c, cluster.connect() as other:
                c.execute("DROP TABLE IF EXISTS x")
                c.execute(f"CREATE TABLE x (id int, {column}, EXCLUDE USING {using}) USING {am}")
                other.execute("SET firn.bulk_threshold = 0")
                other.execute("BEGIN")
                with other.cursor().copy("COPY x FROM STDIN") as copy:
                    copy.write("1\t" + (value if using.startswith("hash") else "<(7,0),1>") + "\n")
                    # More than a buffer, so that the row has been inserted.
                    for i in range(3000):
                        copy.write(f"{i + 2}\t" + (f"{i + 1000}" if using.startswith("hash") else f"<({i * 10 + 1000},0),1>") + "\n")
                    has_inserted(c, other)
                    waiting = Background(cluster, f"INSERT INTO x VALUES (0, {value})", "SET firn.bulk_threshold = 0")
                    assert is_waiting(c, waiting), f"{am} {name}: nobody was waited for: {waiting.result}"
                other.execute("COMMIT")
                waiting.thread.join(60)
                assert isinstance(waiting.result, psycopg.errors.ExclusionViolation), (am, name, waiting.result)
                waiting.conn.close()
                assert c.execute("SELECT count(*) FROM x").fetchone() == (3001,)
                c.execute("DROP TABLE x")


def is_waiting(c, session):
    """The session comes to wait for a lock."""
    until = time.time() + 60
    while session.running() and time.time() < until:
        if c.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", (session.pid,)).fetchone() == ("Lock",):
            return True
        time.sleep(0.01)
    return False


# What is computed of a row that is still being loaded: an index (or constraint) for x (id int, v text NOT NULL); statements that come to the
# row's key, and what becomes of them; whether the table takes rows in bulk.
EXPRESSIONS = [
    ("CREATE UNIQUE INDEX ON x (whole(v))", [("ON CONFLICT (whole(v)) DO NOTHING", 0), ("ON CONFLICT (whole(v)) DO UPDATE SET v = 'changed'", 1)], False),
    ("ALTER TABLE x ADD EXCLUDE USING btree (whole(v) WITH =)", [("", "23P01"), ("ON CONFLICT DO NOTHING", 0)], False),
    ("CREATE UNIQUE INDEX ON x ((v::filled))", [("ON CONFLICT DO NOTHING", 0)], False),
    ("CREATE UNIQUE INDEX ON x (of_row(x))", [("ON CONFLICT DO NOTHING", 0)], False),
    ("CREATE UNIQUE INDEX ON x (lower(v)); CREATE INDEX ON x (whole(v))", [("ON CONFLICT (lower(v)) DO NOTHING", 0), ("", "23505")], True),
    ("ALTER TABLE x ADD EXCLUDE USING btree ((lower(v) || id) WITH =)", [("", "23P01")], True),
    ("CREATE UNIQUE INDEX ON x (coalesce(v, ''))", [("ON CONFLICT DO NOTHING", 0), ("", "23505")], True),
    ("CREATE UNIQUE INDEX ON x ((CASE WHEN id >= 0 THEN lower(coalesce(v, '')) END))", [("ON CONFLICT DO NOTHING", 0)], True),
    ("CREATE UNIQUE INDEX ON x (id, (10 / coalesce(length(v), 0)))", [("ON CONFLICT DO NOTHING", 0)], False),
]


def expressions(cluster):
    """Who comes to a key that another session is loading waits for that, though the index's expression can be computed of whole rows only;
    and VACUUM need not wait for either."""
    with cluster.connect() as c:
        c.execute("CREATE FUNCTION whole(v text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS "
                  "$$BEGIN ASSERT v IS NOT NULL, 'null key'; RETURN lower(v); END$$")
        c.execute("CREATE DOMAIN filled AS text CHECK (value IS NOT NULL)")
    for index, statements, in_bulk in EXPRESSIONS:
        for am in ("heap", "firn"):
            with cluster.connect() as c, cluster.connect() as other:
                c.execute(f"CREATE TABLE x (id int, v text NOT NULL) USING {am} WITH (autovacuum_enabled = off)")
                c.execute("CREATE FUNCTION of_row(r x) RETURNS text IMMUTABLE STRICT LANGUAGE plpgsql AS "
                          "$$BEGIN ASSERT r.v IS NOT NULL, 'null key'; RETURN lower(r.v); END$$")
                c.execute(index)
                # Entries that VACUUM has to take away.
                c.execute("INSERT INTO x SELECT i, 'old ' || i FROM generate_series(10001, 11000) i; DELETE FROM x")
                other.execute("SET firn.bulk_threshold = 0; BEGIN")
                with other.cursor().copy("COPY x FROM STDIN") as copy:
                    # More than a buffer, so that the first ones have been inserted.
                    for i in range(3000):
                        copy.write(f"{i}\tkey {i}\n")
                    has_inserted(c, other)
                    waiting = [Background(cluster, f"INSERT INTO x VALUES ({n}, 'key {n}') {what}") for n, (what, _) in enumerate(statements)]
                    for one in waiting:
                        assert is_waiting(c, one), f"{am}, {index}: nobody was waited for: {one.result}"
                c.execute("SET statement_timeout = '20s'")
                c.execute("VACUUM (INDEX_CLEANUP on) x")
                c.execute("RESET statement_timeout")
                other.execute("ANALYZE x; COMMIT")
                for one, (what, becomes) in zip(waiting, statements):
                    one.thread.join(60)
                    one.conn.close()
                    assert getattr(one.result, "sqlstate", one.result) == becomes, (am, index, what, one.result)
                changed = sum(becomes == 1 for _, becomes in statements)
                assert c.execute("SELECT count(*), count(*) FILTER (WHERE v = 'changed') FROM x").fetchone() == (3000, changed)
                if am == "firn":
                    assert (c.execute("SELECT stripes FROM firn.table_info('x')").fetchone() > (0,)) == in_bulk, index
                    # Compaction writes values before entries that lead to them.
                    c.execute("SELECT firn.compact('x')")
                    assert c.execute("SELECT stripes FROM firn.table_info('x')").fetchone() > (0,)
                    assert not c.execute("SELECT * FROM firn.check('x')").fetchall()
                c.execute("DROP TABLE x CASCADE")
    with cluster.connect() as c:
        c.execute("DROP FUNCTION whole; DROP DOMAIN filled")


# Indexes of x (id int, v text, b int, active bool, a int[]), and whether the table takes rows in bulk while others may write to it.
LOADED = [
    ("CREATE UNIQUE INDEX ON x (id, coalesce(b, 0))", True),
    ("CREATE UNIQUE INDEX ON x ((CASE WHEN active THEN id END))", True),
    ("CREATE UNIQUE INDEX ON x ((CASE b WHEN 1 THEN id WHEN 2 THEN -id ELSE id END), v)", True),
    ("CREATE UNIQUE INDEX ON x (id, (v IS NULL)) WHERE id > 10", True),
    ("CREATE UNIQUE INDEX ON x (id, (active OR b IS NULL), (active IS TRUE), (NOT active))", True),
    ("CREATE UNIQUE INDEX ON x (id, greatest(b, 5), nullif(b, 0), (b IS DISTINCT FROM id))", True),
    ("CREATE UNIQUE INDEX ON x (lower(coalesce(v, '')))", True),
    ("CREATE UNIQUE INDEX ON x ((coalesce(v, 'none') || coalesce(b, 0)))", True),
    ("CREATE UNIQUE INDEX ON x (id, (b::text), (b = ANY ('{1,2}')), (a[1]), (ARRAY[b, 7]), (a::text[]))", True),
    ("CREATE UNIQUE INDEX ON x (id, inlined(b))", True),
    ("CREATE UNIQUE INDEX ON x (id, called(v), length(called(v)))", True),
    ("CREATE UNIQUE INDEX ON x (id, (CASE WHEN v <> 'x' THEN called(coalesce(v, '')) END))", True),
    ("ALTER TABLE x ADD EXCLUDE USING btree ((coalesce(id, 0)) WITH =)", True),
    ("CREATE UNIQUE INDEX ON x (id, (1 / coalesce(b, 0)))", False),
    ("CREATE UNIQUE INDEX ON x (id, (coalesce(substr(v, 5), '')::int))", False),
    ("CREATE UNIQUE INDEX ON x (id, called(coalesce(v, 'x')))", False),
    ("CREATE UNIQUE INDEX ON x (id, somebodys(v))", False),
    ("CREATE UNIQUE INDEX ON x (id, (b::positive))", False),
    ("CREATE UNIQUE INDEX ON x (of_all(x))", False),
    ("ALTER TABLE x ADD EXCLUDE USING gist (box(point(id, id), point(id, id)) WITH &&)", False),
]


def loads(cluster):
    """Expressions that can be computed of NULLs are no hindrance to a load; others are none where nobody can come to a row that is being loaded."""
    with cluster.connect() as c:
        for body in ("FUNCTION inlined(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT coalesce($1, 0)'",
                     "FUNCTION called(v text) RETURNS text IMMUTABLE STRICT LANGUAGE plpgsql AS 'BEGIN RETURN v; END'",
                     "FUNCTION somebodys(v text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN v; END'",
                     "DOMAIN positive AS int CHECK (value > 0)"):
            c.execute(f"CREATE {body}")
        c.execute("SET firn.bulk_threshold = 0")
        fill = "INSERT INTO x SELECT i, 'key ' || i, i % 7 + 1, true, ARRAY[i] FROM generate_series({}, {}) i"
        for index, in_bulk in LOADED:
            for before, create, after, expected in (("", "TABLE", "", in_bulk), ("", "TABLE", "BEGIN; LOCK TABLE x IN SHARE MODE", True), ("", "TEMP TABLE", "", True),
                                                    ("", "TABLE", "BEGIN; TRUNCATE x", True), ("BEGIN", "TABLE", "", True),
                                                    ("", "TABLE", "BEGIN; SAVEPOINT s; LOCK TABLE x; ROLLBACK TO s", in_bulk)):
                if before:
                    c.execute(before)
                c.execute(f"CREATE {create} x (id int, v text, b int, active bool, a int[]) USING firn")
                c.execute("CREATE FUNCTION of_all(r x) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN r.id; END'")
                c.execute(index)
                if after:
                    c.execute(after)
                c.execute(fill.format(1, 3000))
                assert (c.execute("SELECT stripes FROM firn.table_info('x')").fetchone() > (0,)) == expected, (index, create, before, after)
                # Who has loaded a row knows of it, in the same statement, too.
                assert c.execute(fill.format(2501, 3500) + " ON CONFLICT DO NOTHING").rowcount == 500, (index, after)
                assert c.execute(fill.format(3501, 3600) + ", generate_series(1, 2) ON CONFLICT DO NOTHING").rowcount == 100, (index, after)
                c.execute("SAVEPOINT again" if before or after else "BEGIN; SAVEPOINT again")
                expect(c, fill.format(3601, 3700) + ", generate_series(1, 2)", "23P01" if "EXCLUDE" in index else "23505")
                c.execute("ROLLBACK TO again; COMMIT")
                assert c.execute("SELECT count(*), count(DISTINCT id) FROM x").fetchone() == (3600, 3600)
                assert not c.execute("SELECT * FROM firn.check('x')").fetchall()
                c.execute("DROP TABLE x CASCADE")
        c.execute("DROP FUNCTION inlined, called, somebodys; DROP DOMAIN positive")


def beside_replacements(cluster):
    """Keys of stripes that an offload, a load or a prepared one is replacing are there: nobody waits for those to end."""
    folder = os.path.join(cluster.root, "replaced")
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o777)
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0; SET firn.stripe_rows = 100; DROP SERVER IF EXISTS replaced CASCADE")
        c.execute(f"CREATE SERVER replaced FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{folder}')")
        c.execute("CREATE TABLE y (id int PRIMARY KEY, v text) USING firn; INSERT INTO y SELECT i, 'y' || i FROM generate_series(1, 5000) i")
        ends = ("ROLLBACK", "COMMIT", "PREPARE TRANSACTION 'replaced'")
        for what, end in [(w, e) for w in ("firn.offload('y', 'replaced')", "firn.load('y')") for e in ends]:
            with cluster.connect() as other:
                other.execute(f"BEGIN; SELECT {what}")
                if end.startswith("PREPARE"):
                    other.execute(end)
                # A session that has not seen the table.
                with cluster.connect() as new:
                    new.execute("SET statement_timeout = '20s'")
                    for key in (5, 150, 2550, 4950):
                        try:
                            new.execute(f"INSERT INTO y VALUES ({key}, 'n')")
                            raise AssertionError(f"{what}: {key} twice")
                        except psycopg.errors.UniqueViolation:
                            pass
                        assert new.execute(f"INSERT INTO y VALUES ({key}, 'n') ON CONFLICT DO NOTHING").rowcount == 0
                        assert new.execute(f"INSERT INTO y VALUES ({key}, 'n') ON CONFLICT (id) DO UPDATE SET v = y.v RETURNING v").fetchone() == (f"y{key}",)
                other.execute("COMMIT PREPARED 'replaced'" if end.startswith("PREPARE") else end)
        assert c.execute("SELECT count(*), count(DISTINCT id) FROM y").fetchone() == (5000, 5000)
        assert not c.execute("SELECT * FROM firn.check('y')").fetchall()
        c.execute("DROP TABLE y; DROP SERVER replaced")


def deferred(cluster):
    """Triggers at the end of a transaction find the row that it changed, though that was moved while it waited, and VACUUM came."""
    for change, state in (("DELETE FROM p WHERE id = 1", "23503"), ("UPDATE p SET id = 1001 WHERE id = 1", "23503"),
                          ("DELETE FROM p WHERE id = 2", None), ("UPDATE p SET id = 1002 WHERE id = 2", None)):
        for fill in (False, True):
            with cluster.connect() as c:
                c.execute("DROP TABLE IF EXISTS q, p; SET firn.bulk_threshold = 1000000")
                c.execute("CREATE TABLE p (id int PRIMARY KEY) USING firn WITH (autovacuum_enabled = off)")
                c.execute("CREATE TABLE q (r int REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
                c.execute("INSERT INTO p SELECT generate_series(1, 100); INSERT INTO q VALUES (1)")
                with cluster.connect() as mover:
                    mover.execute("BEGIN; SELECT firn.compact('p')")
                    changing = Background(cluster, change, "BEGIN")
                    assert is_waiting(c, changing), f"{change} did not wait for the move: {changing.result}"
                    mover.execute("COMMIT")
                changing.thread.join(60)
                assert changing.result == 1, changing.result
                c.execute("VACUUM p")
                if fill:
                    c.execute("INSERT INTO p SELECT generate_series(2001, 2100)")
                try:
                    changing.conn.execute("COMMIT")
                    assert state is None, f"{change}: a reference that leads nowhere"
                except psycopg.Error as e:
                    assert e.sqlstate == state, (change, e)
                changing.conn.close()
                gone = c.execute("SELECT count(*) FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.id = q.r)").fetchone()[0]
                assert gone == 0, gone
                assert not c.execute("SELECT * FROM firn.check('p')").fetchall()
                c.execute("DROP TABLE q, p")


def samples(cluster):
    """TABLESAMPLE BERNOULLI chooses rows of stripes one by one, not the same places of each."""
    with cluster.connect() as c:
        c.execute("SET firn.bulk_threshold = 0; CREATE TABLE b USING firn AS SELECT i FROM generate_series(1, 100000) i")
        counts = [c.execute(f"SELECT count(*) FROM b TABLESAMPLE BERNOULLI (1) REPEATABLE ({seed})").fetchone()[0] for seed in range(20)]
        again = c.execute("SELECT count(*) FROM b TABLESAMPLE BERNOULLI (1) REPEATABLE (3)").fetchone()[0]
        # 1,000 are expected, plus or minus 31.5: chance exceeds six times that once in 500 million samples.
        assert all(abs(n - 1000) < 190 for n in counts) and again == counts[3], (counts, again)
        c.execute("DROP TABLE b")
