"""Statements within statements: functions, triggers, savepoints and exceptions at work while rows are collected for
stripes. Twin tables, one heap and one firn, and what the collecting itself has to keep to: stripes of a sensible size,
bounded memory."""
import os
import random

import psycopg

from harness.cluster import Cluster, forced_parallel

RUNS = int(os.environ.get("FIRN_NESTING_RUNS", "40"))
SEEDS = [int(s) for s in os.environ.get("FIRN_NESTING_SEEDS", "1,2").split(",")]
# What a run does follows from its seed alone, so that both twins do the same.
RUN = """
CREATE FUNCTION run(tab text, seed int, depth int, width int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    r int := hashint4(seed) & 2147483647;
    trace text := '';
    n bigint; s bigint;
BEGIN
    IF depth < 0 THEN RETURN '.'; END IF;
    FOR i IN 1 .. 1 + r % 3 LOOP
        r := hashint4(r # i) & 2147483647;
        CASE r % 9
        WHEN 0, 1 THEN
            EXECUTE format('INSERT INTO %I SELECT nextval(%L), %s + g, repeat(''x'', g %% %s) FROM generate_series(1, %s) g',
                           tab, tab || '_id', r % 1000, width, 5 + r % 60);
        WHEN 2 THEN
            EXECUTE format('INSERT INTO %I SELECT nextval(%L), length(run(%L, %s + g, %s, %s)), ''f'' FROM generate_series(1, %s) g',
                           tab, tab || '_id', tab, r % 100000, depth - 1, width, 2 + r % 5);
        WHEN 3, 4 THEN
            BEGIN
                trace := trace || '(' || run(tab, r, depth - 1, width) || ')';
                EXECUTE format('INSERT INTO %I SELECT nextval(%L), g, ''e'' FROM generate_series(1, %s) g',
                               tab, tab || '_id', r % 40);
                IF r % 5 < 3 THEN RAISE EXCEPTION 'undone'; END IF;
            EXCEPTION WHEN raise_exception THEN trace := trace || ' undone';
            END;
        WHEN 5 THEN
            EXECUTE format('UPDATE %I SET k = k + 1 WHERE id %% 7 = %s', tab, r % 7);
            GET DIAGNOSTICS n = ROW_COUNT;
            trace := trace || ' u' || n;
        WHEN 6 THEN
            EXECUTE format('DELETE FROM %I WHERE id %% 13 = %s', tab, r % 13);
            GET DIAGNOSTICS n = ROW_COUNT;
            trace := trace || ' d' || n;
        WHEN 7 THEN
            EXECUTE format('SELECT count(*), sum(k) FROM (SELECT k FROM %I WHERE id BETWEEN %s AND %s) s', tab, r % 500, r % 500 + 300)
                INTO n, s;
            trace := trace || ' i' || n || '/' || coalesce(s, 0);
        ELSE
            EXECUTE format('SELECT count(*), sum(k + length(v)) FROM %I', tab) INTO n, s;
            trace := trace || ' c' || n || '/' || coalesce(s, 0);
        END CASE;
    END LOOP;
    RETURN trace;
END $$
"""
TWINS = ("h", "f")


def both(c, sql):
    """Run on both twins; results and errors must agree."""
    results = []
    for t in TWINS:
        try:
            cur = c.execute(sql.replace("@", t))
            results.append(cur.fetchall() if cur.description else cur.rowcount)
        except psycopg.Error as e:
            results.append(e.sqlstate)
    assert results[0] == results[1], (sql, [str(r)[:400] for r in results])
    return results[0]


def check(c, table="f"):
    problems = c.execute(f"SELECT severity, object, problem FROM firn.check('{table}')").fetchall()
    assert not problems, problems


def compare(c):
    both(c, "SELECT id, k, v FROM @ ORDER BY id")
    c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
    both(c, "SELECT id, k, length(v) FROM @ WHERE id > 0 ORDER BY id")
    c.execute("RESET enable_seqscan; RESET firn.enable_scan")


def stacks(cluster, seed):
    """Random statements within statements, under random savepoints."""
    db = f"stacks{seed}"
    rng = random.Random(seed)
    with cluster.connect() as c:
        c.execute(f"CREATE DATABASE {db}")
    with cluster.connect(db) as c:
        c.execute("CREATE EXTENSION firn")
        c.execute(RUN)
        for t, am in zip(TWINS, ("heap", "firn")):
            c.execute(f"CREATE TABLE {t} (id bigint PRIMARY KEY, k bigint, v text) USING {am}; CREATE SEQUENCE {t}_id")
        c.execute("SET firn.write_memory = '1MB'")
        for number in range(RUNS):
            # Wide rows reach the bound of memory, narrow ones that of rows.
            width = rng.choice([5, 5, 20_000])
            c.execute(f"SET firn.bulk_threshold = {rng.choice([0, 0, 3])}; SET firn.stripe_rows = {rng.choice([1, 3, 10, 10_000])}")
            steps = [f"SELECT run('@', {rng.randint(1, 10**6)}, 2, {width})" for _ in range(rng.randint(1, 4))]
            c.execute(f"SET {forced_parallel()} = {rng.choice(['on', 'off', 'off'])}")
            block = rng.random() < 0.7
            try:
                if not block:
                    for step in steps:
                        both(c, step)
                else:
                    c.execute("BEGIN")
                    for step in steps:
                        c.execute("SAVEPOINT s")
                        both(c, step)
                        if rng.random() < 0.4:
                            c.execute("ROLLBACK TO s")
                        elif rng.random() < 0.5:
                            c.execute("RELEASE s")
                    end = rng.choice(["COMMIT", "COMMIT", "ROLLBACK", "PREPARE TRANSACTION 'p'"])
                    c.execute(end)
                    if end.startswith("PREPARE"):
                        c.execute(rng.choice(["COMMIT", "ROLLBACK"]) + " PREPARED 'p'")
                if rng.random() < 0.3:
                    c.execute("VACUUM f")
                compare(c)
                check(c)
                if rng.random() < 0.2:
                    both(c, "DELETE FROM @ WHERE id % 3 <> 0")
            except Exception as e:
                raise AssertionError(f"seed {seed}, run {number}") from e
        # Chunks of a stripe that should not be there would be gone now.
        c.execute("VACUUM f")
        compare(c)
        check(c)


def fresh(cluster, name):
    with cluster.connect() as c:
        c.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        c.execute(f"CREATE DATABASE {name}")
    c = cluster.connect(name)
    c.execute("CREATE EXTENSION firn; SET firn.bulk_threshold = 0")
    return c


def stripes(c, table):
    return [n for (n,) in c.execute(f"SELECT rows FROM firn.stripes('{table}') ORDER BY slot")]


def inner_abort(cluster):
    """What an exception undoes takes no rows of the statement around it along, not even when it has filled stripes."""
    with fresh(cluster, "undone") as c:
        c.execute("SET firn.stripe_rows = 10; CREATE TABLE f (id int) USING firn")
        c.execute("""CREATE FUNCTION g(i int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
            IF i % 10 = 5 THEN
                BEGIN
                    INSERT INTO f SELECT 1000 + n FROM generate_series(1, 31) n;
                    RAISE EXCEPTION 'undone';
                EXCEPTION WHEN raise_exception THEN NULL; END;
            END IF;
            RETURN i; END $$""")
        c.execute("INSERT INTO f SELECT g(n) FROM generate_series(1, 400) n")
        c.execute("VACUUM f")
        assert c.execute("SELECT count(*), sum(id) FROM f").fetchone() == (400, 80200)
        assert stripes(c, "f") == [10] * 40, stripes(c, "f")
        check(c)


def failed_write(cluster, error):
    """An error in a bulk insert within an exception block, be it in the midst of writing stripes, loses that block's rows only."""
    with fresh(cluster, "failing") as c:
        c.execute("SET firn.stripe_rows = 10; CREATE TABLE f (id int) USING firn")
        c.execute(f"""CREATE FUNCTION g(i int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
            IF i % 10 = 5 THEN
                BEGIN
                    INSERT INTO f SELECT 1000 + {error} FROM generate_series(1, 40) n;
                EXCEPTION WHEN division_by_zero OR query_canceled THEN NULL; END;
            END IF;
            RETURN i; END $$""")
        c.execute("INSERT INTO f SELECT g(n) FROM generate_series(1, 95) n")
        for _ in range(2):
            assert c.execute("SELECT count(*), sum(id) FROM f").fetchone() == (95, 4560)
            c.execute("VACUUM f")
        check(c)


QUERY_IN_TRIGGER = """
CREATE TABLE ref (k int PRIMARY KEY); INSERT INTO ref SELECT generate_series(0, 9);
CREATE TABLE seen (n int) USING heap;
CREATE TABLE f (id int, k int DEFAULT 1) USING firn;
CREATE TABLE src (id int, k int) USING heap; INSERT INTO src SELECT i, i % 10 FROM generate_series(1, 2000) i;
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM 1 FROM ref WHERE k = NEW.k;
    {more}
    RETURN NEW; END $$;
CREATE TRIGGER look {when} INSERT ON f FOR EACH ROW EXECUTE FUNCTION look();
CREATE FUNCTION sql_look(i int) RETURNS int LANGUAGE sql VOLATILE AS 'INSERT INTO seen VALUES (i); SELECT count(*)::int * 0 + i FROM f WHERE id = i';
"""
OUTER = {
    "INSERT": "INSERT INTO f SELECT * FROM src",
    "INSERT with a function": "INSERT INTO f SELECT sql_look(id), k FROM src",
    "INSERT in a CTE": "WITH i AS (INSERT INTO f SELECT * FROM src RETURNING id) SELECT count(*) FROM i",
    "INSERT RETURNING a query": "INSERT INTO f SELECT * FROM src RETURNING (SELECT k FROM ref WHERE ref.k = f.k), sql_look(id)",
    "COPY": "COPY f FROM '{file}'",
    "INSERT in a DO block": "DO $$ BEGIN INSERT INTO f SELECT * FROM src; END $$",
}


def one_stripe(cluster, name):
    """Queries that run for each row end nobody else's stripe."""
    inserting = "INSERT INTO seen SELECT NEW.id; UPDATE ref SET k = k WHERE k = NEW.k;"
    for when in ("BEFORE", "AFTER"):
        for more in ("", inserting):
            with fresh(cluster, "trigger") as c:
                c.execute(QUERY_IN_TRIGGER.format(more=more, when=when))
                path = os.path.join(cluster.root, "rows")
                c.execute(f"COPY src TO '{path}'")
                c.execute(OUTER[name].format(file=path))
                assert stripes(c, "f") == [2000], (when, more, stripes(c, "f")[:10])
                assert c.execute("SELECT count(*), sum(id) FROM f").fetchone() == (2000, 2001000)
                check(c)


def own_work(cluster):
    """A statement's own rows are seen by what it calls, while they are collected and after."""
    with fresh(cluster, "own") as c:
        for t, am in zip(TWINS, ("heap", "firn")):
            c.execute(f"CREATE TABLE {t} (id int PRIMARY KEY, n bigint, x xid) USING {am}")
            c.execute(f"""CREATE FUNCTION count_{t}(i int) RETURNS bigint LANGUAGE plpgsql AS $$ #variable_conflict use_column
                DECLARE n bigint; BEGIN
                EXECUTE 'SELECT count(*) * 1000 FROM {t} WHERE id > 0' INTO n;
                UPDATE {t} SET n = {t}.n + 1 WHERE id = i - 1;
                IF i % 3 = 0 THEN DELETE FROM {t} WHERE id = i - 2; END IF;
                BEGIN
                    n := n + (SELECT count(*) FROM {t} WHERE xmin::text::bigint % 1 = 0);
                EXCEPTION WHEN raise_exception THEN NULL; END;
                RETURN n; END $$""")
        for parallel in ("off", "on"):
            c.execute(f"SET {forced_parallel()} = {parallel}; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; "
                      "SET min_parallel_table_scan_size = 0; SET min_parallel_index_scan_size = 0; SET max_parallel_workers_per_gather = 2")
            both(c, "INSERT INTO @ SELECT i, count_@(i) FROM generate_series(1, 24) i RETURNING id, n")
            both(c, "SELECT id, n FROM @ ORDER BY id")
            c.execute("SET enable_seqscan = off; SET firn.enable_scan = off")
            both(c, "INSERT INTO @ SELECT i, count_@(i) FROM generate_series(201, 216) i RETURNING id, n")
            both(c, "SELECT id, n FROM @ ORDER BY id")
            c.execute("RESET enable_seqscan; RESET firn.enable_scan")
            both(c, "DELETE FROM @")
        # xmin of collected rows is that of the statement around, also within a savepoint of a function.
        c.execute("""CREATE FUNCTION same_xmin(i int) RETURNS int LANGUAGE plpgsql AS $$ DECLARE n int; BEGIN
            BEGIN
                INSERT INTO h VALUES (i);
                SELECT count(DISTINCT xmin::text) INTO n FROM f;
            EXCEPTION WHEN raise_exception THEN NULL; END;
            RETURN n; END $$""")
        c.execute("INSERT INTO f SELECT i, same_xmin(i) FROM generate_series(1, 20) i")
        assert c.execute("SELECT max(n) FROM f").fetchone() == (1,)
        check(c)


def cursors(cluster):
    """A cursor keeps the rows that were collected when it was opened, whatever is collected on."""
    with fresh(cluster, "cursors") as c:
        for t, am in zip(TWINS, ("heap", "firn")):
            c.execute(f"CREATE TABLE {t} (id int PRIMARY KEY) USING {am}")
            c.execute(f"""CREATE FUNCTION hold_{t}(i int) RETURNS int LANGUAGE plpgsql AS $$
                DECLARE c refcursor := '{t}' || i; n int; BEGIN
                IF i % 50 = 10 THEN
                    OPEN c FOR SELECT id FROM {t} ORDER BY id;
                    FETCH c INTO n;
                ELSIF i % 50 = 40 THEN
                    c := '{t}' || i - 30;
                    MOVE FORWARD ALL IN c;
                    FETCH PRIOR FROM c INTO n;
                    RETURN -n;
                END IF;
                RETURN i; END $$""")
        for rows in (3, 1000):
            c.execute(f"SET firn.stripe_rows = {rows}")
            c.execute("BEGIN")
            both(c, "INSERT INTO @ SELECT hold_@(i) FROM generate_series(1, 200) i RETURNING id")
            c.execute("COMMIT")
            both(c, "SELECT id FROM @ ORDER BY id")
            both(c, "DELETE FROM @")
        check(c)


def memory(cluster):
    """With the memory in the hands of a statement around, one within does not write a stripe per row."""
    with fresh(cluster, "memory") as c:
        c.execute("SET firn.write_memory = '1MB'; CREATE TABLE o (id int, v text) USING firn; CREATE TABLE i (id int, v text) USING firn")
        c.execute("""CREATE FUNCTION g(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
            BEGIN
                IF n = 95 THEN INSERT INTO i SELECT g, repeat('x', 1000) FROM generate_series(1, 2000) g; END IF;
            EXCEPTION WHEN raise_exception THEN NULL; END;
            RETURN n; END $$""")
        c.execute("INSERT INTO o SELECT g(n), repeat('y', 10000) FROM generate_series(1, 200) n")
        # An eighth of a megabyte of values is some 130 rows.
        inner, outer = stripes(c, "i"), stripes(c, "o")
        assert sum(inner) == 2000 and len(inner) <= 20, inner
        assert sum(outer) == 200 and len(outer) <= 4, outer
        c.execute("VACUUM o")
        c.execute("VACUUM i")
        assert c.execute("SELECT count(*), sum(length(v)) FROM i").fetchone() == (2000, 2000000)
        assert c.execute("SELECT count(*), sum(length(v)) FROM o").fetchone() == (200, 2000000)
        check(c, "o")
        check(c, "i")


def partitions(cluster):
    """COPY closes and opens partitions as it goes: each still gets one stripe."""
    with fresh(cluster, "partitions") as c:
        c.execute("CREATE TABLE p (id int, v text) PARTITION BY RANGE (id)")
        for n in range(100):
            c.execute(f"CREATE TABLE p{n} PARTITION OF p FOR VALUES FROM ({n}) TO ({n + 1}) USING firn")
        c.execute("CREATE TABLE src AS SELECT i * 37 % 100 AS id, 'v' || i AS v FROM generate_series(1, 20000) i")
        path = os.path.join(cluster.root, "partitioned")
        c.execute(f"COPY src TO '{path}'")
        for load in (f"COPY p FROM '{path}'", "INSERT INTO p TABLE src"):
            c.execute(load)
            for n in range(0, 100, 9):
                assert stripes(c, f"p{n}") == [200], (load, stripes(c, f"p{n}"))
            assert c.execute("SELECT count(*), count(DISTINCT v) FROM p").fetchone() == (20000, 20000)
            c.execute("TRUNCATE p")
        # Errors that a function catches while rows are copied are not the COPY's end.
        c.execute("""CREATE FUNCTION caught(i int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
            IF i % 9 = 0 THEN BEGIN RAISE 'caught'; EXCEPTION WHEN raise_exception THEN NULL; END; END IF; RETURN true; END $$""")
        c.execute("ALTER TABLE p ADD CONSTRAINT c CHECK (caught(id))")
        for load in (f"COPY p FROM '{path}'", f"BEGIN; SAVEPOINT a; COPY p1 FROM '{path}' WHERE id = 1; ROLLBACK TO a; COPY p FROM '{path}'; COMMIT"):
            c.execute(load)
            for n in range(0, 100, 9):
                assert stripes(c, f"p{n}") == [200], (load, stripes(c, f"p{n}"))
            c.execute("TRUNCATE p")
        # Nor are those of utility commands and of another COPY.
        for raises in ("CREATE TABLE src ()", "COPY src FROM '/nonexistent'", "DROP TABLE nonexistent",
                       "COPY src FROM '/dev/null'", "CREATE TABLE IF NOT EXISTS src ()"):
            c.execute(f"""CREATE OR REPLACE FUNCTION caught(i int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
                IF i = 18 THEN BEGIN {raises}; EXCEPTION WHEN OTHERS THEN NULL; END; END IF; RETURN true; END $$""")
            c.execute(f"COPY p FROM '{path}'")
            for n in range(0, 100, 9):
                assert stripes(c, f"p{n}") == [200], (raises, stripes(c, f"p{n}"))
            c.execute("TRUNCATE p")
        c.execute("ALTER TABLE p DROP CONSTRAINT c")
        # A COPY that fails, and one within a transaction, leave the next commands what they need.
        c.execute(f"BEGIN; SAVEPOINT s; COPY p FROM '{path}'; ROLLBACK TO s; COPY p1 FROM '{path}' WHERE id = 1; COMMIT")
        assert c.execute("SELECT count(*) FROM p").fetchone() == (200,)
        with open(path, "a") as f:
            f.write("1000\tno such partition\n")
        for _ in range(2):
            try:
                c.execute(f"BEGIN; COPY p FROM '{path}'")
                raise AssertionError("not refused")
            except psycopg.Error as e:
                assert e.sqlstate == "23514", e
            c.execute("ROLLBACK")
            c.execute("DROP TABLE IF EXISTS made; CREATE TABLE made USING firn AS TABLE src; ALTER TABLE made ALTER id TYPE bigint")
            assert c.execute("SELECT count(*), sum(id) FROM made").fetchone() == (20000, 990000)
            check(c, "made")


PARALLEL = f"""
SET {forced_parallel()} = off; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2; SET firn.stripe_rows = 500;
"""
FILLED = {
    "CREATE TABLE AS": "CREATE TABLE made USING firn AS SELECT * FROM src WHERE n > 0",
    "SELECT INTO": "SELECT * INTO made FROM src WHERE n > 0",
    "CREATE MATERIALIZED VIEW": "CREATE MATERIALIZED VIEW made USING firn AS SELECT * FROM src WHERE n > 0",
}


def parallel(cluster, name):
    """Tables filled by parallel queries."""
    with fresh(cluster, "parallel") as c:
        c.execute(PARALLEL)
        c.execute("CREATE TABLE src (id int, n int) USING heap; INSERT INTO src SELECT i, 1 FROM generate_series(1, 20000) i; ANALYZE src")
        c.execute("SET default_table_access_method = firn")
        plan = "\n".join(r[0] for r in c.execute("EXPLAIN (ANALYZE, COSTS off, TIMING off) " + FILLED[name].replace("INTO made ", "")))
        assert "Workers Launched: " in plan and "Workers Launched: 0" not in plan, plan
        c.execute("DROP TABLE IF EXISTS made" if "VIEW" not in name else "DROP MATERIALIZED VIEW IF EXISTS made")
        c.execute(FILLED[name])
        assert c.execute("SELECT count(*), sum(id) FROM made").fetchone() == (20000, 200010000)
        assert len(stripes(c, "made")) == 40, stripes(c, "made")
        if "VIEW" in name:
            c.execute("REFRESH MATERIALIZED VIEW made")
            c.execute("CREATE UNIQUE INDEX ON made (id); INSERT INTO src VALUES (20001, 1)")
            c.execute("REFRESH MATERIALIZED VIEW CONCURRENTLY made")
            assert c.execute("SELECT count(*), sum(id) FROM made").fetchone() == (20001, 200030001)
        check(c, "made")


def read_only(cluster):
    """What writes is refused in a read-only transaction."""
    store = os.path.join(cluster.root, "store")
    os.makedirs(store, exist_ok=True)
    os.chmod(store, 0o777)
    with fresh(cluster, "readonly") as c:
        c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{store}')")
        c.execute("CREATE TABLE f (id int) USING firn; INSERT INTO f SELECT generate_series(1, 100)")
        for call in ("compact('f')", "offload('f', 'cold')", "load('f')"):
            try:
                c.execute(f"BEGIN READ ONLY; SELECT firn.{call}")
                raise AssertionError(f"not refused: {call}")
            except psycopg.Error as e:
                assert e.sqlstate == "25006" and f"firn.{call.split('(')[0]}()" in str(e), e
            c.execute("ROLLBACK")
        c.execute("BEGIN READ ONLY; SELECT * FROM firn.check('f'); SELECT * FROM firn.stripes('f'); COMMIT")


def run(tally, pattern):
    cluster = Cluster("nesting", ["fsync=off", "max_parallel_workers=4"]).create()
    cases = [(f"nested statements, seed {seed}", lambda seed=seed: stacks(cluster, seed)) for seed in SEEDS]
    cases += [("an exception within a bulk insert", lambda: inner_abort(cluster)),
              ("an error within a bulk insert", lambda: failed_write(cluster, "n / (35 - n)")),
              ("a cancellation within a bulk insert", lambda: failed_write(
                  cluster, "CASE WHEN n > 10 AND n % 10 = i / 10 THEN pg_cancel_backend(pg_backend_pid())::int ELSE n END")),
              ("a statement's own rows", lambda: own_work(cluster)),
              ("cursors over collected rows", lambda: cursors(cluster)),
              ("memory of nested inserts", lambda: memory(cluster)),
              ("many partitions", lambda: partitions(cluster)),
              ("read-only transactions", lambda: read_only(cluster))]
    cases += [(f"one stripe: {name}", lambda name=name: one_stripe(cluster, name)) for name in OUTER]
    cases += [(f"parallel {name}", lambda name=name: parallel(cluster, name)) for name in FILLED]
    try:
        for name, case in cases:
            if pattern in name:
                tally.case(f"nesting: {name}", case)
        tally.case("nesting server log", lambda: quiet(cluster))
    finally:
        cluster.destroy()


def quiet(cluster):
    assert not cluster.alarms(), cluster.alarms()
