"""The same statements on a heap and on a firn table: test_decoding shows the same changes, transaction by transaction."""
import os
import random
import re
import string

SETTINGS = "SET firn.bulk_threshold = 5; SET firn.stripe_rows = 300"
# Values that are in no record of the usual size, compressed or not.
WIDE = "(SELECT string_agg(md5((i * k)::text), '') FROM generate_series(1, {}) k)"

# Each is a list of statements; BEGIN ... COMMIT are of one transaction. {am} is the access method.
SCRIPTS = {
    "insertions": """
        CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, j jsonb, b bool, a int[]) USING {am};
        INSERT INTO t SELECT i, 'v' || i, i / 7.0, jsonb_build_object('a', i), i % 3 = 0, ARRAY[i, NULL] FROM generate_series(1, 1000) i;
        INSERT INTO t VALUES (2001, 'one'), (2002, 'two');
        COPY t (id, v) FROM PROGRAM 'seq 5001 5700 | sed s/$/,copied/' (FORMAT csv);
        CREATE TABLE c USING {am} AS SELECT i, 'c' || i AS v FROM generate_series(1, 100) i;
        CREATE MATERIALIZED VIEW m USING {am} AS SELECT i FROM generate_series(1, 50) i;
        REFRESH MATERIALIZED VIEW m;
        INSERT INTO t (id) SELECT generate_series(8001, 8020);
        INSERT INTO t (id, v) VALUES (101, 'x'), (8050, 'y') ON CONFLICT (id) DO UPDATE SET v = excluded.v;
        INSERT INTO t (id, v) SELECT i, 'again' FROM generate_series(995, 1010) i ON CONFLICT DO NOTHING;
        BEGIN; TRUNCATE t; COPY t (id, v) FROM PROGRAM 'seq 1 300 | sed s/$/,frozen/' (FORMAT csv, FREEZE); COMMIT;
        TRUNCATE t, c""",
    "updates and deletions": """
        CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, u int NOT NULL) USING {am};
        CREATE UNIQUE INDEX tu ON t (u);
        INSERT INTO t SELECT i, 'v' || i, i / 7.0, -i FROM generate_series(1, 1000) i;
        UPDATE t SET v = 'changed' WHERE id BETWEEN 10 AND 12;
        UPDATE t SET id = id + 10000 WHERE id = 20;
        UPDATE t SET id = id WHERE id = 21;
        UPDATE t SET u = u - 10000 WHERE id = 22;
        DELETE FROM t WHERE id IN (30, 31);
        ALTER TABLE t REPLICA IDENTITY FULL;
        UPDATE t SET v = NULL, n = 1 WHERE id = 40;
        UPDATE t SET v = v WHERE id = 44;
        DELETE FROM t WHERE id = 41;
        ALTER TABLE t REPLICA IDENTITY NOTHING;
        UPDATE t SET v = NULL WHERE id = 42;
        DELETE FROM t WHERE id = 43;
        ALTER TABLE t REPLICA IDENTITY USING INDEX tu;
        UPDATE t SET id = id + 10000 WHERE id = 50;
        UPDATE t SET u = u - 10000 WHERE id = 51;
        DELETE FROM t WHERE id = 52;
        DROP INDEX tu;
        DELETE FROM t WHERE id = 53;
        SELECT count(*) FROM (SELECT 1 FROM t WHERE id < 70 FOR UPDATE) s;
        BEGIN; SELECT 1 FROM t WHERE id = 71 FOR NO KEY UPDATE; UPDATE t SET v = 'locked' WHERE id = 71; DELETE FROM t WHERE id = 71; COMMIT;
        ALTER TABLE t REPLICA IDENTITY DEFAULT;
        UPDATE t SET v = 'again' WHERE id IN (10, 11);
        DELETE FROM t WHERE id = 10""",
    "savepoints": """
        CREATE TABLE t (id int PRIMARY KEY, v text) USING {am};
        BEGIN; INSERT INTO t SELECT i, 'a' FROM generate_series(1, 50) i;
            SAVEPOINT a; INSERT INTO t SELECT i, 'undone' FROM generate_series(101, 150) i; DELETE FROM t WHERE id < 5; ROLLBACK TO a;
            INSERT INTO t SELECT i, 'b' FROM generate_series(201, 250) i; UPDATE t SET v = 'again' WHERE id = 201;
            SAVEPOINT b; UPDATE t SET v = 'released' WHERE id = 1; RELEASE b; COMMIT;
        BEGIN; INSERT INTO t SELECT i, 'undone' FROM generate_series(301, 350) i; ROLLBACK;
        DO $$ BEGIN FOR n IN 1..20 LOOP BEGIN
            INSERT INTO t SELECT i, n::text FROM generate_series(1000 * n, 1000 * n + 20) i;
            IF n % 3 = 0 THEN RAISE EXCEPTION 'x'; END IF;
            EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$;
        BEGIN; INSERT INTO t SELECT i, 'p' FROM generate_series(401, 450) i; DELETE FROM t WHERE id = 2; PREPARE TRANSACTION 'p1';
        BEGIN; INSERT INTO t SELECT i, 'q' FROM generate_series(501, 550) i; DELETE FROM t WHERE id = 3; PREPARE TRANSACTION 'p2';
        COMMIT PREPARED 'p1';
        ROLLBACK PREPARED 'p2'""",
    "wide values": f"""
        CREATE TABLE t (id int PRIMARY KEY, v text, w text) USING {{am}};
        ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
        INSERT INTO t SELECT i, {WIDE.format(6000)}, 'w' FROM generate_series(1, 12) i;
        INSERT INTO t SELECT i, repeat('x', 1000000), repeat('y', 3000000) FROM generate_series(101, 107) i;
        INSERT INTO t SELECT i, {WIDE.format(60)}, {WIDE.format(1000)} FROM generate_series(201, 212) i;
        INSERT INTO t SELECT i, {WIDE.format(1000)}, {WIDE.format(1010)} FROM generate_series(301, 312) i;
        CREATE TABLE o (id int, v text, w text) USING heap;
        INSERT INTO o SELECT * FROM t;
        INSERT INTO t SELECT id + 1000, v, w FROM o;
        INSERT INTO t SELECT id + 2000, left(v, 59000), left(w, 59990 - length(left(v, 59000))) FROM o;
        ALTER TABLE t REPLICA IDENTITY FULL;
        DELETE FROM t WHERE id = 101;
        DELETE FROM t WHERE id = 301;
        SET default_toast_compression = {{compression}};
        CREATE TABLE z (id int, v text) USING {{am}};
        INSERT INTO z SELECT i, {WIDE.format(6000)} FROM generate_series(1, 12) i;
        RESET default_toast_compression;
        CREATE TABLE s (id int, big text, {{texts}}) USING {{am}};
        ALTER TABLE s ALTER big SET STORAGE EXTERNAL;
        INSERT INTO s SELECT i, {WIDE.format(3000)}, {{thirty}} FROM generate_series(1, 12) i;
        INSERT INTO s SELECT i, 'narrow', {{thirty}} FROM generate_series(101, 112) i""",
    "many columns": """
        CREATE TABLE t (id int PRIMARY KEY, {columns}) USING {am};
        INSERT INTO t (id, c3, c599) SELECT i, i, -i FROM generate_series(1, 100) i;
        INSERT INTO t SELECT i, {values} FROM generate_series(101, 200) i;
        ALTER TABLE t REPLICA IDENTITY FULL;
        UPDATE t SET c17 = 5 WHERE id IN (50, 150);
        DELETE FROM t WHERE id IN (51, 151)""",
    "changed definitions": """
        CREATE TABLE t (id int PRIMARY KEY, v text, n numeric) USING {am};
        INSERT INTO t SELECT i, 'v', i FROM generate_series(1, 200) i;
        ALTER TABLE t ADD COLUMN d int DEFAULT 5;
        UPDATE t SET v = 'd' WHERE id = 100;
        ALTER TABLE t REPLICA IDENTITY FULL;
        UPDATE t SET v = 'e' WHERE id = 101;
        ALTER TABLE t DROP COLUMN n;
        UPDATE t SET v = 'f' WHERE id = 102;
        DELETE FROM t WHERE id = 103;
        INSERT INTO t SELECT i, 'w', -i FROM generate_series(301, 330) i;
        ALTER TABLE t ALTER COLUMN d TYPE bigint;
        UPDATE t SET v = 'g' WHERE id = 104;
        DELETE FROM t WHERE id = 105;
        INSERT INTO t SELECT i, 'w', -i FROM generate_series(401, 430) i;
        VACUUM FULL t;
        CLUSTER t USING t_pkey;
        DELETE FROM t WHERE id = 106;
        ALTER TABLE t RENAME v TO z;
        DELETE FROM t WHERE id = 107""",
    "partitions": """
        CREATE TABLE p (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
        CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100) USING {am};
        CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200) USING {am};
        INSERT INTO p SELECT i, i % 200, 'v' FROM generate_series(1, 400) i;
        UPDATE p SET k = k + 100 WHERE id = 5;
        UPDATE p SET v = 'w' WHERE id = 6;
        DELETE FROM p WHERE id = 7;
        TRUNCATE p1""",
    "keys that cascade": """
        CREATE TABLE a (id int PRIMARY KEY) USING {am};
        CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a ON UPDATE CASCADE ON DELETE CASCADE) USING {am};
        INSERT INTO a SELECT generate_series(1, 100);
        INSERT INTO b SELECT i, i % 100 + 1 FROM generate_series(1, 300) i;
        UPDATE a SET id = 1001 WHERE id = 10;
        DELETE FROM a WHERE id IN (1001, 20)""",
}

# Statements that find rows in one order: what is decoded of them is compared in its order, among tables and subtransactions.
ORDERED = {
    "order of changes": """
        CREATE TABLE t (id int PRIMARY KEY, v text) USING {am};
        CREATE TABLE u (id int, v text) USING {am};
        CREATE TABLE h (id int, v text) USING heap;
        CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO h VALUES (NEW.id, TG_WHEN);
            INSERT INTO u SELECT NEW.id, i::text FROM generate_series(1, 7) i WHERE NEW.id % 10 = 0; RETURN NEW; END $$;
        CREATE TRIGGER told BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION told();
        CREATE TRIGGER told_after AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION told();
        INSERT INTO t SELECT i, 'v' FROM generate_series(1, 60) i;
        BEGIN; UPDATE t SET v = 'a' WHERE id = 20; INSERT INTO t SELECT i, 'w' FROM generate_series(101, 130) i; DELETE FROM t WHERE id = 21;
            SAVEPOINT a; INSERT INTO t SELECT i, 'x' FROM generate_series(201, 230) i; DELETE FROM t WHERE id = 22; RELEASE a;
            UPDATE t SET v = 'b' WHERE id = 210; SAVEPOINT b; DELETE FROM t WHERE id = 23; INSERT INTO u SELECT 5, 'gone' FROM generate_series(1, 20);
            ROLLBACK TO b; INSERT INTO u SELECT 6, 'there' FROM generate_series(1, 20); DELETE FROM t WHERE id = 24; COMMIT""",
    "rows of all sizes in one COPY": """
        CREATE TABLE t (id int PRIMARY KEY, v text, w text) USING {am};
        ALTER TABLE t ALTER w SET STORAGE EXTERNAL;
        COPY t FROM '{mixed}' (FORMAT csv);
        CREATE TABLE u (id int, v text, w text) USING {am};
        COPY u FROM '{mixed}' (FORMAT csv)""",
    "changes that came from elsewhere": """
        CREATE TABLE t (id int PRIMARY KEY, v text) USING {am};
        SELECT pg_replication_origin_create('elsewhere');
        SELECT pg_replication_origin_session_setup('elsewhere');
        INSERT INTO t SELECT i, 'theirs' FROM generate_series(1, 60) i;
        DELETE FROM t WHERE id = 20; UPDATE t SET v = 'theirs, too' WHERE id = 21;
        SELECT pg_replication_origin_session_reset();
        SELECT pg_replication_origin_drop('elsewhere');
        INSERT INTO t SELECT i, 'ours' FROM generate_series(101, 160) i;
        DELETE FROM t WHERE id = 22""",
}
STRIPES = "SELECT count(*) FROM pg_class c, firn.stripes(c.oid) WHERE c.relam = (SELECT oid FROM pg_am WHERE amname = 'firn')"


def mixed(path):
    """A file of rows that are logged together, alone, compressed, and with chunks before them, in turn and of odd lengths."""
    dice = random.Random(7)

    def text(size):
        return "".join(dice.choices(string.ascii_letters + string.digits, k=size))
    kinds = (lambda: (text(dice.randrange(60)), ""), lambda: (text(7) * dice.randrange(300, 2000), text(3)), lambda: (text(dice.randrange(2000, 9000)), ""),
             lambda: (text(dice.randrange(40_000, 59_000)), "x"), lambda: ("x", text(dice.randrange(70_000, 200_000))), lambda: (text(90_000), text(5000)))
    with open(path, "w") as f:
        for n in range(400):
            f.write(",".join([str(n), *dice.choices(kinds, (20, 12, 4, 2, 1, 1))[0]()]) + "\n")
    os.chmod(path, 0o644)


def fill(script, am, compression, path):
    columns = ", ".join(f"c{n} int" for n in range(600))
    values = ", ".join(f"i + {n}" for n in range(600))
    texts = ", ".join(f"t{n} text" for n in range(300))
    # Short enough to stay in a row, longer than a pointer to them.
    thirty = ", ".join(["repeat('x', 30)"] * 300)
    for name, text in (("am", am), ("columns", columns), ("values", values), ("texts", texts), ("thirty", thirty), ("compression", compression), ("mixed", path)):
        script = script.replace("{%s}" % name, text)
    return script


def statements(script):
    """Statements end with a semicolon at a line's end, or are part of one line."""
    inside, found = "", []
    for part in re.split(r"(;|\$\$)", script):
        if part == "$$":
            inside = "" if inside else part
        if part == ";" and not inside:
            found.append("")
            continue
        if not found:
            found.append("")
        found[-1] += part
    return [s.strip() for s in found if s.strip()]


def changes(c, slot, **options):
    options = {"include-xids": "0", "skip-empty-xacts": "1", **options}
    given = "".join(f", '{k}', '{v}'" for k, v in options.items())
    return [r[0] for r in c.execute(f"SELECT data FROM pg_logical_slot_get_changes('{slot}', NULL, NULL{given})")]


def in_transactions(lines):
    """Lines by transaction, those of one sorted: in which order a statement finds rows is not the same."""
    found, prepared = [], {line.split(" ")[-1] for line in lines if line.startswith("PREPARE TRANSACTION ")}
    for line in lines:
        if " PREPARED " in line and line.split(" ")[-1] not in prepared:
            # One without changes; of whose locks the log may tell.
            continue
        if line.startswith(("BEGIN", "COMMIT", "PREPARE", "ROLLBACK")) or not found:
            found.append([line])
        else:
            found[-1].append(line)
    return [[t[0], *sorted(t[1:])] for t in found]


def decode(cluster, am, script, two_phase, **options):
    """What is decoded of a script that is run in a database of its own."""
    with cluster.connect() as c:
        c.execute("DROP DATABASE IF EXISTS decoded WITH (FORCE)")
        c.execute("CREATE DATABASE decoded")
    with cluster.connect("decoded") as c:
        c.execute(f"CREATE EXTENSION firn; {SETTINGS}; SET default_table_access_method = {am}")
        c.execute(f"SELECT pg_create_logical_replication_slot('decoded', 'test_decoding', false, {two_phase})")
        found, stripes = [], 0
        known = c.execute("SELECT enumvals FROM pg_settings WHERE name = 'default_toast_compression'").fetchone()[0]
        try:
            path = os.path.join(cluster.root, "mixed.csv")
            if "{mixed}" in script and not os.path.exists(path):
                mixed(path)
            for statement in statements(fill(script, am, known[-1], path)):
                if not c.info.transaction_status:
                    stripes = max(stripes, *c.execute(STRIPES).fetchone())
                if statement.startswith("ROLLBACK PREPARED"):
                    # Of one that is undone already, decoding shows as much as it can without a look at the catalogs.
                    found += changes(c, "decoded", **options)
                c.execute(statement)
            assert (stripes > 0) == (am == "firn"), "no row has been in a stripe"
            return found + changes(c, "decoded", **options)
        finally:
            if c.info.transaction_status:
                c.execute("ROLLBACK")
            c.execute("SELECT pg_drop_replication_slot('decoded')")


def alike(script, arrange):
    def case(cluster):
        # Tables are rewritten into others that are not shown unless asked for.
        for two_phase, options in ((False, {}), (True, {"include-rewrites": "1", "only-local": "1"})):
            heap, firn = (arrange(decode(cluster, am, script, two_phase, **options)) for am in ("heap", "firn"))
            assert len(heap) > 3
            for n, (h, f) in enumerate(zip(heap, firn)):
                assert h == f, (n, [line[:300] for line in h if line not in f], [line[:300] for line in f if line not in h])
            assert len(heap) == len(firn), (len(heap), len(firn))
    return case


CASES = {f"decoded: {name}": alike(script, in_transactions) for name, script in SCRIPTS.items()}
CASES |= {f"decoded: {name}": alike(script, lambda lines: [lines[i:i + 1] for i in range(len(lines))]) for name, script in ORDERED.items()}
