"""Foreign keys of one table, of partitions and of what is above them: each is as it was in the source, whatever the server names by itself, takes up
or refuses, undisturbed and after what was late."""
import os
import re
import shutil

from harness import proxy as px
from harness.proxy import Proxy
from restore import faults
from restore.behind import LETS, made, refusing
from restore.common import NEW, OLD, firn, same

EVERY = "SELECT conrelid::regclass::text, conname, conparentid = 0, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype IN ('f', 'n', 'c') AND connamespace = 'public'::regnamespace ORDER BY 1, 2"
OTHERS = "CREATE TABLE users (id int PRIMARY KEY); CREATE TABLE w (id int PRIMARY KEY); INSERT INTO users VALUES (1); INSERT INTO w VALUES (1);"
REFERENCED = """CREATE TABLE u (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE u1 PARTITION OF u FOR VALUES IN (1); CREATE TABLE u2 PARTITION OF u FOR VALUES IN (2);
INSERT INTO u VALUES (1), (2);"""
EVENTS = "CREATE TABLE events (k int, user_id int) PARTITION BY LIST (k); ALTER TABLE events ADD CONSTRAINT {} FOREIGN KEY (user_id) REFERENCES users;"
OWN = "ALTER TABLE {0} ADD CONSTRAINT {1} FOREIGN KEY (user_id) REFERENCES w; ALTER TABLE {0} ADD FOREIGN KEY (user_id) REFERENCES users ON DELETE CASCADE;"
PARENT = "CREATE TABLE p (k int, r int, s int) PARTITION BY LIST (k); CREATE TABLE a1 PARTITION OF p FOR VALUES IN (1); INSERT INTO p VALUES (1, 1, 1);"
# Of a table with partitions: it goes down to these.
TRIGGERS = """CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE CONSTRAINT TRIGGER a1_r_fkey AFTER INSERT ON p FOR EACH ROW EXECUTE FUNCTION noted();
CREATE CONSTRAINT TRIGGER kk_1 AFTER INSERT ON p FOR EACH ROW EXECUTE FUNCTION noted(); ALTER TABLE a1 ADD CONSTRAINT kk FOREIGN KEY (r) REFERENCES u;"""
# As PostgreSQL names them; those of the partitions would be taken up.
ORDERS = """CREATE TABLE orders (k int, r int, s int) PARTITION BY LIST (k); CREATE TABLE orders_b PARTITION OF orders FOR VALUES IN (1); CREATE TABLE orders_a PARTITION OF orders FOR VALUES IN (2);
INSERT INTO orders VALUES (1, 1, 1), (2, 1, 1); ALTER TABLE orders ADD FOREIGN KEY (s) REFERENCES w; ALTER TABLE orders ADD CONSTRAINT to_users FOREIGN KEY (r) REFERENCES users;"""
FOREIGN = """CREATE FOREIGN DATA WRAPPER fdw; CREATE SERVER far FOREIGN DATA WRAPPER fdw; CREATE FOREIGN TABLE p (r int, s int) SERVER far; CREATE TABLE a1 () INHERITS (p);
INSERT INTO a1 VALUES (1, 1); ALTER FOREIGN TABLE p ADD CONSTRAINT a1_r_fkey CHECK (s > 0) NOT VALID; ALTER FOREIGN TABLE p ADD CONSTRAINT kk_1 CHECK (s > 0) NOT VALID;
ALTER TABLE a1 ADD CONSTRAINT kk FOREIGN KEY (r) REFERENCES u;"""
# A column has one NOT NULL constraint: whose comes first gives it its name.
# (In the archive's order those below come first, as `pg_restore` wants it.)
OWN_NOT_NULL = """CREATE TABLE p (k int, r int) PARTITION BY LIST (k); CREATE TABLE a1 PARTITION OF p FOR VALUES IN (1); INSERT INTO p VALUES (1, NULL);
CREATE TABLE e (r int); CREATE TABLE d () INHERITS (e); CREATE TABLE c () INHERITS (d); INSERT INTO c VALUES (NULL);""" + "".join(
    f"ALTER TABLE {table} ADD CONSTRAINT {name} NOT NULL r NOT VALID; COMMENT ON CONSTRAINT {name} ON {table} IS '{table}';"
    for table, name in (("a1", "mine"), ("p", "theirs"), ("c", "x"), ("d", "y"), ("e", "z")))
TWO_NOT_NULLS = """CREATE TABLE a (r int); CREATE TABLE z (r int); CREATE TABLE m () INHERITS (z, a); INSERT INTO m VALUES (NULL); ALTER TABLE z ADD CONSTRAINT bb NOT NULL r NOT VALID;
ALTER TABLE a ADD CONSTRAINT cc NOT NULL r NOT VALID;"""
ACTIONS = ("", "ON DELETE CASCADE", "ON UPDATE CASCADE")
FIVE = "CREATE TABLE x (id int PRIMARY KEY) PARTITION BY LIST (id);" + "".join(f"CREATE TABLE x{i} PARTITION OF x FOR VALUES IN ({i});" for i in range(1, 6)) + "INSERT INTO x VALUES (1);"
NUMBERED = FIVE + "CREATE TABLE t (r int); INSERT INTO t VALUES (1);" + "".join(f"ALTER TABLE t ADD FOREIGN KEY (r) REFERENCES x {what};" for what in ACTIONS)
# Until 17: what comes of pk has a chosen name, as its own is a CHECK's; that of the partition's own, equal one is what zz's and pk's have left it.
MOVED = OTHERS + REFERENCED + """CREATE TABLE p (k int, r int, s int) PARTITION BY LIST (k); CREATE TABLE z1 PARTITION OF p FOR VALUES IN (1); INSERT INTO p VALUES (1, 1, 1);
ALTER TABLE z1 ADD CONSTRAINT pk CHECK (s > 0); ALTER TABLE p ADD CONSTRAINT pk FOREIGN KEY (s) REFERENCES w; ALTER TABLE z1 ADD CONSTRAINT zz FOREIGN KEY (s) REFERENCES u;
ALTER TABLE z1 ADD FOREIGN KEY (s) REFERENCES w; CREATE TABLE u3 PARTITION OF u FOR VALUES IN (3);"""
STAYS = """CREATE TABLE p (k int, r int, s int) PARTITION BY LIST (k); CREATE TABLE z1 PARTITION OF p FOR VALUES IN (1); INSERT INTO p VALUES (1, 1, 1);
ALTER TABLE z1 ADD CONSTRAINT "z1_s_fkey p" CHECK (s > 0); ALTER TABLE z1 ADD FOREIGN KEY (s) REFERENCES users; ALTER TABLE p ADD CONSTRAINT "z1_s_fkey p" FOREIGN KEY (s) REFERENCES w;
ALTER TABLE z1 ADD CONSTRAINT zz FOREIGN KEY (s) REFERENCES u; ALTER TABLE z1 ADD FOREIGN KEY (s) REFERENCES w; CREATE TABLE u3 PARTITION OF u FOR VALUES IN (3);"""
# Three keys of one column, equal ones or not, to a table with one partition.
THREE = "CREATE TABLE x (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE x1 PARTITION OF x FOR VALUES IN (1); INSERT INTO x VALUES (1);"
INHERITING = "CREATE TABLE p (k int, r int, s int); CREATE TABLE a1 () INHERITS (p); INSERT INTO a1 VALUES (1, 1, 1);"
# Names that the server chooses for what comes of a key `kk` of a1 that refers to partitions, before 18 and from then on.
FROM_ABOVE = "ALTER TABLE p ADD CONSTRAINT a1_r_fkey CHECK (s > 0) NOT VALID; ALTER TABLE p ADD CONSTRAINT kk_1 CHECK (s > 0) NOT VALID; ALTER TABLE a1 ADD CONSTRAINT kk FOREIGN KEY (r) REFERENCES u;"
NULLS_FROM_ABOVE = FROM_ABOVE.replace("kk_1 CHECK (s > 0)", "kk_1 NOT NULL s")
ATTACHED = "ALTER TABLE events ATTACH PARTITION {} FOR VALUES IN (1); INSERT INTO events VALUES (1, 1);"
TRIGGER = """CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE CONSTRAINT TRIGGER zfk AFTER INSERT OR UPDATE OF r ON a1 FOR EACH ROW EXECUTE FUNCTION noted();"""
UNDISTURBED = {
    # What the server makes for partitions of what is referred to has default names of the table.
    "referenced": OTHERS + REFERENCED + "CREATE TABLE t (r int REFERENCES w REFERENCES u); INSERT INTO t VALUES (1);",
    "referenced, named": OTHERS + REFERENCED + "CREATE TABLE t (r int REFERENCES w); ALTER TABLE t ADD CONSTRAINT z_u FOREIGN KEY (r) REFERENCES u;",
    # What goes down to a partition has a default name there, as its own is another key's.
    "chosen": OTHERS + "CREATE SCHEMA archive; CREATE TABLE archive.e1 (k int, user_id int);" + EVENTS.format("fk") + OWN.format("archive.e1", "fk")
              + ATTACHED.format("archive.e1"),
    "chosen, by table": OTHERS + "CREATE TABLE a1 (k int, user_id int);" + EVENTS.format("zfk") + OWN.format("a1", "zfk") + ATTACHED.format("a1"),
    "a check's name": OTHERS + "CREATE TABLE a1 (k int, user_id int, CONSTRAINT zfk CHECK (user_id > 0));" + EVENTS.format("zfk")
                      + "ALTER TABLE a1 ADD FOREIGN KEY (user_id) REFERENCES users ON DELETE CASCADE;" + ATTACHED.format("a1"),
    "a late check's name": OTHERS + "CREATE TABLE a1 (k int, user_id int); INSERT INTO a1 VALUES (1, 1); ALTER TABLE a1 ADD CONSTRAINT zfk CHECK (user_id > 0) NOT VALID;"
                           + EVENTS.format("zfk") + "ALTER TABLE events ATTACH PARTITION a1 FOR VALUES IN (1);",
    "equal to one, named as another": OTHERS + """CREATE TABLE p (k int, r int, s int) PARTITION BY LIST (k);
        CREATE TABLE z_mid PARTITION OF p FOR VALUES IN (1, 2) PARTITION BY LIST (k); CREATE TABLE a_leaf PARTITION OF z_mid FOR VALUES IN (1);
        ALTER TABLE p ADD CONSTRAINT ak FOREIGN KEY (r) REFERENCES users; ALTER TABLE a_leaf ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES users;
        ALTER TABLE z_mid ADD CONSTRAINT fk FOREIGN KEY (s) REFERENCES w; INSERT INTO p VALUES (1, 1, 1);""",
    # Others have the names that the server would choose, before 18 and from then on.
    "others have the name": OTHERS + REFERENCED + """CREATE TABLE t (r int, s int); INSERT INTO t VALUES (1, 1); ALTER TABLE t ADD CONSTRAINT t_r_fkey UNIQUE (r);
        ALTER TABLE t ADD CONSTRAINT kk_1 PRIMARY KEY (s); ALTER TABLE t ADD CONSTRAINT kk FOREIGN KEY (r) REFERENCES u;""",
    "others have the name below": OTHERS + """CREATE TABLE p (k int, r int) PARTITION BY LIST (k); CREATE TABLE a1 (k int, r int); INSERT INTO a1 VALUES (1, 1);
        ALTER TABLE a1 ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES w; ALTER TABLE a1 ADD CONSTRAINT a1_r_fkey UNIQUE (r);
        ALTER TABLE a1 ADD CONSTRAINT fk_1 CHECK (r > 0) NOT VALID; ALTER TABLE p ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES w ON DELETE CASCADE;
        ALTER TABLE p ATTACH PARTITION a1 FOR VALUES IN (1);""",
    "a constraint trigger's name": OTHERS + """CREATE TABLE p (k int, r int, s int) PARTITION BY LIST (k); CREATE TABLE a1 PARTITION OF p FOR VALUES IN (1); INSERT INTO p VALUES (1, 1, 1);"""
                                   + TRIGGER + "ALTER TABLE p ADD CONSTRAINT zfk FOREIGN KEY (r) REFERENCES users;",
    "a check from above": OTHERS + REFERENCED + PARENT + FROM_ABOVE,
    "a check from above, inherited": OTHERS + REFERENCED + INHERITING + FROM_ABOVE,
    "not null from above": OTHERS + REFERENCED + PARENT + NULLS_FROM_ABOVE,
    "not null from above, inherited": OTHERS + REFERENCED + INHERITING + NULLS_FROM_ABOVE,
    "triggers from above": OTHERS + REFERENCED + PARENT + TRIGGERS,
    "common names": OTHERS + ORDERS + "ALTER TABLE orders_b ADD FOREIGN KEY (r) REFERENCES users;",
    "common names, two of them": OTHERS + ORDERS + """ALTER TABLE orders_b ADD CONSTRAINT zz_fkey FOREIGN KEY (r) REFERENCES users;
        ALTER TABLE orders_a ADD CONSTRAINT a_users FOREIGN KEY (r) REFERENCES users;""",
    "an equal one's and a chosen name": OTHERS + REFERENCED + PARENT + """ALTER TABLE p ADD CONSTRAINT a1_a FOREIGN KEY (r) REFERENCES w; ALTER TABLE a1 ADD CONSTRAINT a1_r_fkey FOREIGN KEY (r) REFERENCES w;
        ALTER TABLE a1 ADD CONSTRAINT a1_s_fkey FOREIGN KEY (r) REFERENCES u;""",
    "a foreign table's check": OTHERS + REFERENCED + FOREIGN,
    "own not null": OWN_NOT_NULL,
    "own not null behind in the archive": OWN_NOT_NULL.replace(" theirs ", " a ").replace(" z ", " b "),
    "two not nulls above": TWO_NOT_NULLS,
    "common names, with numbers": OTHERS + REFERENCED + PARENT + """ALTER TABLE p ADD FOREIGN KEY (s) REFERENCES u; ALTER TABLE a1 ADD FOREIGN KEY (s) REFERENCES u;
        ALTER TABLE a1 ADD FOREIGN KEY (s) REFERENCES u ON DELETE CASCADE;""",
    # What the server chooses is cut, and comes before in the archive.
    "cut names": OTHERS + REFERENCED + f"CREATE TABLE {'l' * 63} ({'r' * 63} int REFERENCES w REFERENCES u); INSERT INTO {'l' * 63} VALUES (1);",
    # In the archive's order those with two digits come before those with one.
    "numbers of two digits": NUMBERED,
    "numbers of two digits, referring to itself": """CREATE TABLE t (k int, id int, r int, PRIMARY KEY (k, id)) PARTITION BY LIST (k);""" + "".join(
        f"CREATE TABLE t{i} PARTITION OF t FOR VALUES IN ({i});" for i in range(1, 6)) + "INSERT INTO t VALUES (1, 1, 1);" + "".join(
        f"ALTER TABLE t ADD FOREIGN KEY (k, r) REFERENCES t {what};" for what in ACTIONS),
    # From 18 on what is chosen is free in the whole schema.
    "of another tree": """CREATE SCHEMA aaa; CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1);
        CREATE TABLE zt (k int NOT NULL, r int, id int NOT NULL, PRIMARY KEY (k, id)) PARTITION BY LIST (k); CREATE TABLE z1 PARTITION OF zt FOR VALUES IN (1);
        INSERT INTO zt VALUES (1, 1, 1); CREATE TABLE aaa.o (k int, r int) PARTITION BY LIST (k); CREATE TABLE public.o1 PARTITION OF aaa.o FOR VALUES IN (1);
        ALTER TABLE aaa.o ADD CONSTRAINT fk_1 FOREIGN KEY (r) REFERENCES u; INSERT INTO aaa.o SELECT 1, 1 FROM generate_series(1, 300000);
        CREATE TABLE m (k int, r int); INSERT INTO m VALUES (1, 1); ALTER TABLE m ADD CONSTRAINT fk_1 FOREIGN KEY (r) REFERENCES u;
        ALTER TABLE m ADD CONSTRAINT fk FOREIGN KEY (k, r) REFERENCES zt;""",
}
PARTS = """CREATE TABLE p (k int, a int, b int) PARTITION BY LIST (k); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);
ALTER TABLE p2 ADD CHECK (lets()); INSERT INTO p VALUES (1, 1, 1), (2, 1, 1);"""
# While the database says so rows of p2 (or of w) are refused.
LATE = {
    "columns set": LETS + "CREATE TABLE u (a int, b int, PRIMARY KEY (a, b)); INSERT INTO u VALUES (1, 1);" + PARTS
                   + """ALTER TABLE p ADD CONSTRAINT a_p FOREIGN KEY (a, b) REFERENCES u ON DELETE SET NULL;
        ALTER TABLE p1 ADD CONSTRAINT b_p1 FOREIGN KEY (a, b) REFERENCES u ON DELETE SET NULL (a);""",
    "not enforced": LETS + OTHERS + PARTS + """ALTER TABLE p ADD CONSTRAINT a_p FOREIGN KEY (a) REFERENCES users;
        ALTER TABLE p1 ADD CONSTRAINT b_p1 FOREIGN KEY (a) REFERENCES users ON DELETE CASCADE NOT ENFORCED;""",
    "namesake": LETS + """CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE w (id int PRIMARY KEY, CHECK (lets())); INSERT INTO u VALUES (1); INSERT INTO w VALUES (1);
        CREATE TABLE p (k int, r int, s int) PARTITION BY LIST (k); CREATE TABLE a1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE z1 PARTITION OF p FOR VALUES IN (2);
        INSERT INTO p VALUES (1, 1, 1), (2, 1, 1); ALTER TABLE a1 ADD CONSTRAINT fk FOREIGN KEY (s) REFERENCES w;
        ALTER TABLE p ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES u; ALTER TABLE z1 ADD CONSTRAINT of_z FOREIGN KEY (r) REFERENCES u; COMMENT ON CONSTRAINT fk ON p IS 'of all';""",
    "namesake of one's own": LETS + REFERENCED + """CREATE TABLE w (id int PRIMARY KEY, CHECK (lets())); INSERT INTO w VALUES (1);
        CREATE TABLE t (r int REFERENCES w REFERENCES u); INSERT INTO t VALUES (1);""",
}

# What fails once, and how the statement looks.
ONCE = {
    "check": (OTHERS + PARENT + "ALTER TABLE a1 ADD CONSTRAINT zfk CHECK (r > 0) NOT VALID; ALTER TABLE p ADD CONSTRAINT zfk FOREIGN KEY (r) REFERENCES users;",
              rb"CONSTRAINT zfk CHECK"),
    "unique": (OTHERS + PARENT + "ALTER TABLE a1 ADD CONSTRAINT zfk UNIQUE (r); ALTER TABLE p ADD CONSTRAINT zfk FOREIGN KEY (r) REFERENCES users;",
               rb"CONSTRAINT zfk UNIQUE"),
    "trigger": (OTHERS + PARENT + TRIGGER + "ALTER TABLE p ADD CONSTRAINT zfk FOREIGN KEY (r) REFERENCES users;", rb"TRIGGER zfk"),
    "equal": (OTHERS + PARENT + "ALTER TABLE p ADD CONSTRAINT a_p FOREIGN KEY (r) REFERENCES users; ALTER TABLE a1 ADD CONSTRAINT b_a FOREIGN KEY (r) REFERENCES users;",
              rb"CONSTRAINT a_p "),
    "namesake": (OTHERS + PARENT + "ALTER TABLE a1 ADD CONSTRAINT fk FOREIGN KEY (s) REFERENCES w; ALTER TABLE p ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES users;",
                 rb"a1\s+ADD CONSTRAINT fk "),
    "namesake of one's own": (OTHERS + REFERENCED + "CREATE TABLE t (r int REFERENCES w REFERENCES u); INSERT INTO t VALUES (1)", rb"REFERENCES public.w"),
    "what is taken up is late, too": (OTHERS + PARENT + """CREATE TABLE a2 PARTITION OF p FOR VALUES IN (2); INSERT INTO p VALUES (2, 1, 1);
        ALTER TABLE a1 ADD CONSTRAINT fk FOREIGN KEY (s) REFERENCES w; ALTER TABLE p ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES users;
        ALTER TABLE a2 ADD CONSTRAINT y FOREIGN KEY (r) REFERENCES users;""", rb"a1\s+ADD CONSTRAINT fk |CONSTRAINT y "),
    "what is taken up is late, behind a check": (OTHERS + PARENT + """CREATE TABLE a2 PARTITION OF p FOR VALUES IN (2); INSERT INTO p VALUES (2, 1, 1);
        ALTER TABLE a1 ADD CONSTRAINT fk CHECK (s > 0) NOT VALID; ALTER TABLE p ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES users;
        ALTER TABLE a2 ADD CONSTRAINT b FOREIGN KEY (r) REFERENCES users;""", rb"CONSTRAINT fk CHECK|CONSTRAINT b "),
    "made again in the plan's order": (OTHERS + """CREATE TABLE pp (k int, r int, s int) PARTITION BY LIST (k); CREATE TABLE p PARTITION OF pp FOR VALUES IN (1, 2) PARTITION BY LIST (k);
        CREATE TABLE z1 PARTITION OF p FOR VALUES IN (1); ALTER TABLE z1 ADD CONSTRAINT fk CHECK (s > 0); INSERT INTO pp VALUES (1, 1, 1);
        ALTER TABLE p ADD CONSTRAINT fk FOREIGN KEY (s) REFERENCES w; ALTER TABLE z1 ADD CONSTRAINT z1_r_fkey FOREIGN KEY (s) REFERENCES w;
        ALTER TABLE pp ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES users;""", rb"\.p\s+ADD CONSTRAINT fk FOREIGN"),
    "made again below first": (OTHERS + """CREATE TABLE z (k int, r int, s int) PARTITION BY LIST (k); CREATE TABLE h PARTITION OF z FOR VALUES IN (1, 2) PARTITION BY LIST (k);
        CREATE TABLE m PARTITION OF h FOR VALUES IN (1, 2) PARTITION BY LIST (k); CREATE TABLE a1 PARTITION OF m FOR VALUES IN (1); INSERT INTO z VALUES (1, 1, 1);
        ALTER TABLE h ADD CONSTRAINT ax FOREIGN KEY (s) REFERENCES w; ALTER TABLE z ADD CONSTRAINT ax FOREIGN KEY (r) REFERENCES users;
        ALTER TABLE a1 ADD CONSTRAINT mm FOREIGN KEY (s) REFERENCES w; ALTER TABLE m ADD CONSTRAINT mm FOREIGN KEY (r) REFERENCES users;
        COMMENT ON CONSTRAINT mm ON a1 IS 'x';""", rb"\.h\s+ADD CONSTRAINT ax FOREIGN"),
    "a check from above": (OTHERS + REFERENCED + PARENT + FROM_ABOVE, rb"CHECK \("),
    "a check from above, inherited": (OTHERS + REFERENCED + INHERITING + FROM_ABOVE, rb"CHECK \("),
    "not null from above": (OTHERS + REFERENCED + PARENT + NULLS_FROM_ABOVE, rb"CHECK \(|NOT NULL s"),
    "triggers from above": (OTHERS + REFERENCED + PARENT + TRIGGERS, rb"TRIGGER "),
    "taken up, one with a chosen name": (OTHERS + REFERENCED + PARENT + """ALTER TABLE p ADD CONSTRAINT "A0" FOREIGN KEY (r) REFERENCES u; ALTER TABLE a1 ADD CONSTRAINT a1_r_fkey1 FOREIGN KEY (r) REFERENCES u;
        ALTER TABLE a1 ADD CONSTRAINT a0k_1 FOREIGN KEY (r) REFERENCES u; ALTER TABLE a1 ADD CONSTRAINT a0k FOREIGN KEY (r) REFERENCES u;""", rb'CONSTRAINT "A0" '),
    "a foreign table's check": (OTHERS + REFERENCED + FOREIGN, rb"CHECK \("),
    "own not null": (OWN_NOT_NULL, rb"CONSTRAINT (mine|x) "),
    "own not null in the middle": (OWN_NOT_NULL, rb"CONSTRAINT y "),
    "common names, with numbers": (OTHERS + REFERENCED + PARENT + """ALTER TABLE p ADD FOREIGN KEY (s) REFERENCES u; ALTER TABLE a1 ADD FOREIGN KEY (s) REFERENCES u;
        ALTER TABLE a1 ADD FOREIGN KEY (s) REFERENCES u ON DELETE CASCADE;""", rb"CONSTRAINT a1_s_fkey "),
    "many that are taken up": (OTHERS + "CREATE TABLE p (k int, r int, s int) PARTITION BY LIST (k);" + "".join(
        f"CREATE TABLE a{i} PARTITION OF p FOR VALUES IN ({i});" for i in range(24)) + "INSERT INTO p SELECT i, 1, 1 FROM generate_series(0, 23) i;" + "".join(
        f"ALTER TABLE a{i} ADD CONSTRAINT fk FOREIGN KEY (s) REFERENCES w;" for i in range(0, 24, 4)) + "ALTER TABLE p ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES users;" + "".join(
        f"ALTER TABLE a{i} ADD CONSTRAINT y FOREIGN KEY (r) REFERENCES users;" for i in range(24) if i % 4), rb"a\d+\s+ADD CONSTRAINT fk |CONSTRAINT y "),
    "moved numbers": (MOVED, rb"CONSTRAINT pk FOREIGN"),
    "moved numbers, both": (MOVED, rb"CONSTRAINT pk FOREIGN|CONSTRAINT z1_s_fkey3 "),
    "moved numbers, the third": (MOVED, rb"CONSTRAINT zz "),
    "numbers of two digits, first": (NUMBERED, rb"CONSTRAINT t_r_fkey "),
    "numbers of two digits, second": (NUMBERED, rb"CONSTRAINT t_r_fkey\d "),
    "numbers of two digits, third": (NUMBERED, rb"CONSTRAINT t_r_fkey(\d\d|2) "),
    "three equal ones": (THREE + "CREATE TABLE t (r int); INSERT INTO t VALUES (1);" + 3 * "ALTER TABLE t ADD FOREIGN KEY (r) REFERENCES x;", rb"CONSTRAINT t_r_fkey "),
    "three of a partitioned table": (THREE + PARENT + 3 * "ALTER TABLE p ADD FOREIGN KEY (r) REFERENCES x;", rb"CONSTRAINT p_r_fkey "),
    "three of a partitioned table, two": (THREE + PARENT + "".join(f"ALTER TABLE p ADD FOREIGN KEY (r) REFERENCES x {what};" for what in ACTIONS), rb"CONSTRAINT p_r_fkey2? "),
    "what gives nothing stays": (OTHERS + REFERENCED + "CREATE TABLE t (r int); INSERT INTO t VALUES (1); ALTER TABLE t ADD FOREIGN KEY (r) REFERENCES w;" + "".join(
        f"ALTER TABLE t ADD FOREIGN KEY (r) REFERENCES u {what};" for what in ACTIONS), rb"CONSTRAINT t_r_fkey1 "),
    "what has a lower number stays": (OTHERS + REFERENCED + "CREATE TABLE t (r int); INSERT INTO t VALUES (1);" + "".join(
        f"ALTER TABLE t ADD FOREIGN KEY (r) REFERENCES u {what};" for what in (*ACTIONS, "MATCH FULL")), rb"CONSTRAINT t_r_fkey3 "),
    "what gives nothing stays, of a partition": (OTHERS + REFERENCED + STAYS, rb'CONSTRAINT "z1_s_fkey p" FOREIGN'),
    "what gives nothing stays, of a partition, both": (OTHERS + REFERENCED + STAYS, rb'CONSTRAINT "z1_s_fkey p" FOREIGN|CONSTRAINT z1_s_fkey4 '),
    "enforced below": (OTHERS + PARENT + """ALTER TABLE p ADD CONSTRAINT a_p FOREIGN KEY (r) REFERENCES users NOT ENFORCED;
        ALTER TABLE a1 ADD CONSTRAINT b_a FOREIGN KEY (r) REFERENCES users ON DELETE CASCADE;""", rb"CONSTRAINT a_p "),
}
PARTITIONS = 40
# Rows of w are refused for a while: the own key of each partition comes late, and its name is taken by what comes of p's. With those that p's takes up.
MANY = LETS + """CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE w (id int PRIMARY KEY, CHECK (lets())); INSERT INTO u VALUES (1); INSERT INTO w VALUES (1);
CREATE TABLE p (k int, r int, s int) PARTITION BY LIST (k);""" + "".join(
    f"CREATE TABLE a{i} PARTITION OF p FOR VALUES IN ({i}); ALTER TABLE a{i} ADD CONSTRAINT fk FOREIGN KEY (s) REFERENCES w;" for i in range(PARTITIONS)) + f"""
INSERT INTO p SELECT k, 1, 1 FROM generate_series(0, {PARTITIONS - 1}) k; ALTER TABLE p ADD CONSTRAINT fk FOREIGN KEY (r) REFERENCES u; COMMENT ON CONSTRAINT fk ON p IS 'of all';
ALTER TABLE a3 ADD CONSTRAINT of_a3 FOREIGN KEY (r) REFERENCES u; COMMENT ON CONSTRAINT of_a3 ON a3 IS 'own';"""


def source(world, name, sql, version, extra=()):
    """(its server, the archive, its keys)"""
    server, path, _ = made(world, f"foreign-{name}", sql, version, extra)
    with server.connect(server.fresh("foreign_source")) as c:
        c.execute(sql)
        return server, path, c.execute(EVERY).fetchall()


def is_equal(server, expected, *told):
    with server.connect("target") as c:
        found = c.execute(EVERY).fetchall()
    assert found == expected, (*told, [f for f in found if f not in expected], [e for e in expected if e not in found])


def undisturbed(world, version, name):
    server, path, expected = source(world, name, UNDISTURBED[name], version)
    for jobs in ("1", "2", "4"):
        server.fresh("target")
        run = firn(server, "target", path, "-j", jobs).ok()
        is_equal(server, expected, jobs)
        # None comes too early and is made a second time.
        assert jobs != "1" or " failed (" not in run.out, run.out[-2000:]


def late(world, version, name):
    """Rows are refused for a while, or each of the keys fails once."""
    server, path, expected = source(world, name, LATE[name], version)
    for jobs in ("1", "4"):
        flags = ["-j", jobs, "--on-error=continue"]
        server.fresh("target")
        refusing(server, "target", True)
        firn(server, "target", path, *flags).fails("23514")
        refusing(server, "target", False)
        firn(server, "target", path, *flags, "--resume").ok()
        is_equal(server, expected, jobs)
        for key in {row[1] for row in expected if row[2] and row[3].startswith('FOREIGN')}:
            server.fresh("target")
            failing_once(server, path, flags, rb"CONSTRAINT " + key.encode() + rb" FOREIGN")
            firn(server, "target", path, *flags, "--resume").ok()
            is_equal(server, expected, jobs, key)


def failing_once(server, path, flags, pattern):
    folder = os.path.join(server.root, "foreign-proxy")
    with Proxy(folder, server.root) as proxy:
        def fails(message):
            found = [n for n, (begin, end) in enumerate(px.statements(message.sql)) if re.search(pattern, message.sql[begin:end])]
            return px.error("53100", found[0]) if found else None
        proxy.arm(fails, again=True)
        firn(server, "target", path, *proxy.where("target"), *flags, where=False).fails("53100")
    shutil.rmtree(folder, ignore_errors=True)


def owned(world, version):
    """Statements are run as the owner of what they make, who may not read the journal."""
    server = world.server(version)
    server.roles("foreign_owner LOGIN")
    sql, pattern = ONCE["many that are taken up"]
    tables = ["users", "w", "p", *(f"a{i}" for i in range(24))]
    sql += ";".join(f"ALTER TABLE {table} OWNER TO foreign_owner" for table in tables)
    server, path, dump = made(world, "foreign-owned", sql, version)
    for jobs in ("1", "4"):
        flags = ["-j", jobs, "--on-error=continue", "--use-set-session-authorization"]
        with server.connect(server.fresh("target")) as c:
            c.execute("GRANT CREATE ON SCHEMA public TO foreign_owner")
        failing_once(server, path, flags, pattern)
        firn(server, "target", path, *flags, "--resume").ok()
        with server.connect("target") as c:
            c.execute("REVOKE CREATE ON SCHEMA public FROM foreign_owner")
        same(dump, server.dump("target"))


QUOTED = {name: (ONCE[name][0], pattern) for name, pattern in (("unique", rb'CONSTRAINT "zfk" UNIQUE'), ("equal", rb'CONSTRAINT "a_p"'))}


def quoted(world, version):
    """All names have quotes, in the archive or in what the target says of itself."""
    for name, (sql, pattern) in QUOTED.items():
        once(world, version, name, pattern, ["--quote-all-identifiers"])
        server, path, dump = made(world, f"foreign-once-{name}", sql, version)
        server.fresh("target")
        with server.connect("postgres") as c:
            c.execute("ALTER DATABASE target SET quote_all_identifiers = on")
        flags = ["-j", "2", "--on-error=continue"]
        failing_once(server, path, flags, ONCE[name][1])
        firn(server, "target", path, *flags, "--resume").ok()
        with server.connect("postgres") as c:
            c.execute("ALTER DATABASE target RESET quote_all_identifiers")
        same(dump, server.dump("target"))


def keyword(world):
    """What is a keyword in the target's version has quotes there, and none in the archive."""
    old, new = world.server(OLD), world.server(NEW)
    sql = OTHERS.replace("users", "json") + PARENT + """ALTER TABLE p ADD CONSTRAINT a_p FOREIGN KEY (r) REFERENCES json; ALTER TABLE a1 ADD CONSTRAINT b_a FOREIGN KEY (r) REFERENCES json;"""
    _, path, _ = made(world, "foreign-keyword", sql, OLD)
    with new.connect(new.fresh("foreign_source")) as c:
        c.execute(sql)
        expected = c.execute(EVERY).fetchall()
    assert old is not new
    flags = ["-j", "2", "--on-error=continue"]
    new.fresh("target")
    failing_once(new, path, flags, rb"CONSTRAINT a_p ")
    firn(new, "target", path, *flags, "--resume").ok()
    is_equal(new, expected)


def once(world, version, name, pattern=None, extra=()):
    """A constraint fails once: whole, and where the archive has post-data alone."""
    sql, pattern = ONCE[name][0], pattern or ONCE[name][1]
    title = f"foreign-once-{name}{'-'.join(extra)}"
    server, path, dump = made(world, title, sql, version, [*extra])
    _, post, _ = made(world, f"{title}-post", sql, version, [*extra, "--section=post-data"])
    for archive, before in ((path, ()), (post, ("--section=pre-data", "--section=data"))):
        for jobs in ("1", "4"):
            flags = ["-j", jobs, "--on-error=continue"]
            server.fresh("target")
            if before:
                firn(server, "target", path, *before).ok()
            failing_once(server, archive, flags, pattern)
            firn(server, "target", archive, *flags, "--resume").ok()
            same(dump, server.dump("target"))


INTERRUPTED = {"error": px.error("53100", 0), "cut before": px.cut_before, "cut after": px.cut_after, "late": px.late(), "killed before": px.kill(None),
               "killed after": px.kill(0.02)}


def interrupted(world, version, how):
    """The transaction that drops a key and makes it again behind what is late fails at its DROP, and at its end: nobody has less than before, and it comes the next time."""
    sql, pattern = ONCE["what is taken up is late, too"]
    server, path, dump = made(world, "foreign-interrupted", sql, version)
    if how.startswith("killed"):
        server = faults.server(world, "on")
    flags = ["-j", "2", "--on-error=continue"]
    for where in (rb"DROP CONSTRAINT fk;", rb"ADD CONSTRAINT fk FOREIGN KEY \(r\).*COMMIT;"):
        server.fresh("target")
        failing_once(server, path, flags, pattern)
        folder, hit = os.path.join(server.root, "foreign-proxy"), []
        fault = px.matching(where, INTERRUPTED[how])

        def counted(message):
            action = fault(message)
            hit.extend([message.number] if action else [])
            return action
        with Proxy(folder, server.root) as proxy:
            proxy.arm(counted, again=True)
            run = firn(server, "target", path, *proxy.where("target"), *flags, "--resume", where=False)
        shutil.rmtree(folder, ignore_errors=True)
        assert hit, (where, run.out[-2000:])
        server.wait_ready()
        if run.code:
            with server.connect("target") as c:
                assert c.execute("SELECT 1 FROM pg_constraint WHERE conrelid = 'p'::regclass AND conname = 'fk'").fetchall(), where
            firn(server, "target", path, *flags, "--resume").ok()
        same(dump, server.dump("target"))


def replaced(world, version):
    """Somebody has put another key in the place of the one that would be made again: it stays."""
    sql, pattern = ONCE["unique"]
    server, path, _ = made(world, "foreign-once-unique", sql, version)
    flags = ["-j", "2", "--on-error=continue"]
    for change in ("ADD CONSTRAINT zfk FOREIGN KEY (r) REFERENCES users ON DELETE CASCADE", "ADD CONSTRAINT zfk FOREIGN KEY (s) REFERENCES users",
                   "ADD CONSTRAINT zfk FOREIGN KEY (r) REFERENCES users DEFERRABLE"):
        server.fresh("target")
        failing_once(server, path, flags, pattern)
        with server.connect("target") as c:
            c.execute(f"ALTER TABLE p DROP CONSTRAINT zfk; ALTER TABLE p {change}")
        theirs = constraint(server)
        firn(server, "target", path, *flags, "--resume").fails("zfk")
        assert constraint(server) == theirs, change


def constraint(server):
    with server.connect("target") as c:
        return c.execute("SELECT oid, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'p'::regclass AND conname = 'zfk'").fetchall()


def no_usage(world, version):
    """Who restores may not use the schema of one of the late keys: all the others come."""
    server = world.server(version)
    server.roles("foreign_owner LOGIN")
    sql = """CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1); CREATE TABLE t (r int, q int); INSERT INTO t VALUES (1, 1);
        ALTER TABLE t ADD CONSTRAINT k0 FOREIGN KEY (r) REFERENCES u; ALTER TABLE t ADD CONSTRAINT k1 FOREIGN KEY (q) REFERENCES u;
        CREATE TABLE p (k int, r int) PARTITION BY LIST (k); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); ALTER TABLE p ADD CONSTRAINT pk FOREIGN KEY (r) REFERENCES u;
        CREATE SCHEMA s1; CREATE TABLE s1.t (r int, q int); ALTER TABLE s1.t ADD CONSTRAINT s_late FOREIGN KEY (r) REFERENCES u;""" + "".join(
        f"ALTER {what} OWNER TO foreign_owner;" for what in ("TABLE p", "TABLE p1", "TABLE t", "TABLE u", "TABLE s1.t", "SCHEMA s1")) + """
        REVOKE ALL ON SCHEMA s1 FROM foreign_owner; GRANT CREATE ON SCHEMA s1 TO foreign_owner;"""
    server, path, _ = made(world, "no-usage", sql, version)
    with server.connect(server.fresh("target")) as c:
        c.execute("ALTER DATABASE target OWNER TO foreign_owner; ALTER SCHEMA public OWNER TO foreign_owner")
    flags = ["-j", "2", "--on-error=continue", "-U", "foreign_owner"]
    failing_once(server, path, flags, rb"CONSTRAINT s_late|CONSTRAINT k1 ")
    firn(server, "target", path, *flags, "--resume").fails("permission denied for schema s1")
    with server.connect("target") as c:
        assert [name for (name,) in c.execute("SELECT conname FROM pg_constraint WHERE conrelid = 't'::regclass ORDER BY 1").fetchall()] == ["k0", "k1"]


def many(world, version):
    """Each of a table's partitions has a late key of its own: the table's is made again for all that come in one transaction, and with it what it takes up."""
    server, path, expected = source(world, "many", MANY, version)
    _, _, dump = made(world, "foreign-many", MANY, version)
    made_again = []
    for jobs in ("1", "4"):
        server.fresh("target")
        refusing(server, "target", True)
        flags = ["-j", jobs, "--on-error=continue"]
        firn(server, "target", path, *flags).fails("23514")
        refusing(server, "target", False)
        with server.connect("target") as c:
            c.execute("ALTER DATABASE target SET log_statement = 'ddl'")
        at = os.path.getsize(server.log)
        firn(server, "target", path, *flags, "--resume").ok()
        with open(server.log, errors="replace") as f:
            f.seek(at)
            made_again.append(f.read().count("DROP CONSTRAINT fk"))
        is_equal(server, expected, jobs)
        with server.connect("target") as c:
            c.execute("ALTER DATABASE target RESET ALL")
        same(dump, server.dump("target"))
    assert 0 < made_again[0] < PARTITIONS / 4 and 0 < made_again[1] < PARTITIONS, made_again


def append_only(world, version):
    """Who owns all, and has given up the right to change rows of a partition, gets its parent's late key."""
    own = "CREATE TABLE u (a int PRIMARY KEY); INSERT INTO u VALUES (1);" + PARTS
    keys = "ALTER TABLE p ADD CONSTRAINT a_p FOREIGN KEY (a) REFERENCES u; ALTER TABLE p1 ADD CONSTRAINT b_p1 FOREIGN KEY (a) REFERENCES u;"
    more = ", MAINTAIN" if version == NEW else ""
    owned = "".join(f"ALTER {what} OWNER TO behind_owner;" for what in ("TABLE p", "TABLE p1", "TABLE p2", "TABLE u", "FUNCTION lets()"))
    sql = LETS + own + keys + owned + f"REVOKE UPDATE, DELETE, TRUNCATE{more} ON p1 FROM behind_owner"
    world.server(version).roles("behind_owner LOGIN")
    server, path, expected = source(world, "append-only", sql, version)
    with server.connect(server.fresh("target")) as c:
        c.execute("ALTER DATABASE target OWNER TO behind_owner; ALTER SCHEMA public OWNER TO behind_owner")
    flags = ["-j", "2", "--on-error=continue", "--role=behind_owner"]
    refusing(server, "target", True)
    firn(server, "target", path, *flags).fails("23514")
    refusing(server, "target", False)
    firn(server, "target", path, *flags, "--resume").ok()
    is_equal(server, expected)


def alone(world, version):
    """In archives of post-data alone, too, names are as they were."""
    for name in ("chosen", "referenced", "a check's name", "a late check's name", "others have the name", "others have the name below"):
        server, path, expected = source(world, f"{name}-alone", UNDISTURBED[name], version, ["--section=post-data"])
        _, whole, _ = source(world, name, UNDISTURBED[name], version)
        for jobs in ("1", "4", "4"):
            server.fresh("target")
            firn(server, "target", whole, "--section=pre-data", "--section=data").ok()
            firn(server, "target", path, "-j", jobs).ok()
            is_equal(server, expected, name)


# What older versions do not have.
NEW_ONLY = ("not enforced", "enforced below", "not null from above", "not null from above, inherited", "own not null", "own not null in the middle", "own not null behind in the archive",
            "two not nulls above")


def cases(world):
    for version in (OLD, NEW):
        has = lambda names, old=version == OLD: [name for name in names if not (old and name in NEW_ONLY)]  # noqa: E731
        for name in has(UNDISTURBED):
            yield f"foreign keys {version} {name}", lambda v=version, n=name: undisturbed(world, v, n)
        for name in has(LATE):
            yield f"foreign keys late {version} {name}", lambda v=version, n=name: late(world, v, n)
        for name in has(ONCE):
            yield f"foreign keys once {version} {name}", lambda v=version, n=name: once(world, v, n)
        for how in INTERRUPTED:
            if how.startswith("killed") and version == NEW:
                continue
            yield f"foreign keys interrupted {version} {how}", lambda v=version, h=how: interrupted(world, v, h)
        yield f"foreign keys once {version} quoted", lambda v=version: quoted(world, v)
        yield f"foreign keys once {version} owned", lambda v=version: owned(world, v)
        yield f"foreign keys once {version} replaced", lambda v=version: replaced(world, v)
        yield f"foreign keys once {version} no usage", lambda v=version: no_usage(world, v)
        yield f"foreign keys late {version} many", lambda v=version: many(world, v)
        yield f"foreign keys late {version} append-only", lambda v=version: append_only(world, v)
        yield f"foreign keys alone {version}", lambda v=version: alone(world, v)
    yield "foreign keys once keyword", lambda: keyword(world)
