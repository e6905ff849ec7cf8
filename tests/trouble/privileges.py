"""Who may do what, whose rights code runs with, and secrets that stay secret."""
import os

import psycopg

from harness.alone import alone
from harness.store import KEY, SECRET
from trouble.common import expect, fresh, intact

DENIED = "42501"
# Function call: who of the table's owner, the database's owner, a reader of the table and a stranger may.
CALLS = {
    "firn.compact('f')": (True, True, False, False),
    "firn.check('f')": (True, True, False, False),
    "firn.offload('f', 'cold')": (True, False, False, False),
    "firn.load('f')": (True, False, False, False),
    "firn.unneeded('f')": (True, False, False, False),
    "firn.repair('f')": (True, False, False, False),
    "firn.repair('f', false)": (True, False, False, False),
    "firn.stripes('f')": (True, False, True, False),
    "firn.table_info('f')": (True, False, True, False),
    "firn.stripe_file('f', 0)": (False, False, False, False),
}
ROLES = ("the_owner", "db_owner", "a_reader", "a_stranger")


def with_roles(cluster, body):
    with cluster.connect() as c:
        for role in ROLES:
            c.execute(f"CREATE ROLE {role}")
        c.execute("ALTER DATABASE postgres OWNER TO db_owner")
        c.execute("GRANT CREATE ON SCHEMA public TO the_owner")
        try:
            body(c)
        finally:
            c.execute("RESET ROLE")
            c.execute("ALTER DATABASE postgres OWNER TO postgres")
            c.execute("DROP TABLE IF EXISTS f, h, p CASCADE")
            for role in ROLES:
                c.execute(f"DROP OWNED BY {role} CASCADE")
                c.execute(f"DROP ROLE {role}")


def functions(cluster):
    """Each function asks for the rights that one expects; the views show what one may see."""
    def body(c):
        fresh(c)
        c.execute("ALTER TABLE f OWNER TO the_owner; GRANT SELECT ON f TO a_reader")
        # Without USAGE on the server not even the owner may offload to it.
        c.execute("SET ROLE the_owner")
        expect(c, "SELECT firn.offload('f', 'cold')", DENIED)
        c.execute("RESET ROLE")
        c.execute("GRANT USAGE ON FOREIGN SERVER cold TO the_owner")
        for call, rights in CALLS.items():
            for role, may in zip(ROLES, rights):
                c.execute(f"SET ROLE {role}")
                if may:
                    c.execute(f"SELECT * FROM {call}")
                else:
                    expect(c, f"SELECT * FROM {call}", DENIED)
                seen = c.execute("SELECT count(*) FROM firn.tables WHERE relation = 'f'::regclass").fetchone()[0]
                assert seen == (role in ("the_owner", "a_reader")), (role, seen)
                c.execute("RESET ROLE")
        c.execute("GRANT EXECUTE ON FUNCTION firn.stripe_file TO the_owner, a_reader")
        c.execute("SET ROLE the_owner")
        assert c.execute("SELECT firn.stripe_file('f', slot) IS NOT NULL FROM firn.stripes('f') LIMIT 1").fetchone() == (True,)
        c.execute("SET ROLE a_reader")
        expect(c, "SELECT firn.stripe_file('f', 0)", DENIED)
        # Reading cold rows needs no right on the server.
        c.execute("RESET ROLE")
        c.execute("SELECT firn.offload('f', 'cold')")
        c.execute("SET ROLE a_reader")
        assert c.execute("SELECT count(*), max(v) FROM f").fetchone()[0] == 3000
        for setting in ("firn.cache_directory = '/tmp'", "firn.cache_size = 1", "firn.crash_point = 'bulk-chunks'"):
            expect(c, f"SET {setting}", DENIED)
        c.execute("RESET ROLE")
        intact(c)
    with_roles(cluster, body)


def partitions(cluster):
    """A parent's owner moves his own partitions, not those of others."""
    def body(c):
        notices = []
        c.add_notice_handler(lambda d: notices.append(d.message_primary))
        c.execute("SET firn.bulk_threshold = 0")
        c.execute("CREATE TABLE p (id int) PARTITION BY LIST (id)")
        for n in (1, 2):
            c.execute(f"CREATE TABLE p{n} PARTITION OF p FOR VALUES IN ({n}) USING firn")
        c.execute("INSERT INTO p SELECT i % 2 + 1 FROM generate_series(1, 100) i")
        c.execute("ALTER TABLE p OWNER TO the_owner; ALTER TABLE p1 OWNER TO the_owner; ALTER TABLE p2 OWNER TO a_stranger")
        c.execute("GRANT USAGE ON FOREIGN SERVER cold TO the_owner")
        c.execute("SET ROLE the_owner")
        notices.clear()
        assert c.execute("SELECT firn.offload('p', 'cold')").fetchone() == (1,)
        assert notices == ['skipping "p2" --- only its owner can offload it'], notices
        for call in ("firn.load('p')", "firn.compact('p')", "firn.check('p')", "firn.unneeded('p')"):
            notices.clear()
            c.execute(f"SELECT * FROM {call}").fetchall()
            assert len(notices) == 1 and '"p2"' in notices[0], (call, notices)
        c.execute("RESET ROLE")
    with_roles(cluster, body)


def foreign_code(cluster):
    """Code in a table's indexes runs with its owner's rights, whoever compacts the table."""
    def body(c):
        notices = []
        c.add_notice_handler(lambda d: notices.append(d.message_primary))
        c.execute("CREATE TABLE f (id int PRIMARY KEY, v text) USING firn")
        c.execute("ALTER TABLE f OWNER TO the_owner")
        c.execute("SET ROLE the_owner")
        c.execute("CREATE FUNCTION public.harmless(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END'")
        c.execute("CREATE INDEX ON f (public.harmless(id)) WHERE public.harmless(id) > 0")
        c.execute("INSERT INTO f SELECT i, 'x' FROM generate_series(1, 5) i")
        c.execute("""CREATE OR REPLACE FUNCTION public.harmless(int) RETURNS int VOLATILE LANGUAGE plpgsql AS $$
            BEGIN
                RAISE NOTICE 'as %', current_user;
                PERFORM set_config('search_path', 'nowhere', false);
                EXECUTE 'CREATE TEMPORARY TABLE mine ()';
                RETURN $1;
            EXCEPTION WHEN insufficient_privilege THEN
                RETURN $1;
            END $$""")
        c.execute("RESET ROLE")
        path = c.execute("SHOW search_path").fetchone()
        alone(c)
        assert c.execute("SELECT firn.compact('f')").fetchone() == (5,)
        assert len(notices) >= 5 and set(notices) == {"as the_owner"}, notices
        assert c.execute("SELECT current_user").fetchone() == ("postgres",)
        assert c.execute("SHOW search_path").fetchone() == path
        assert c.execute("SELECT to_regclass('pg_temp.mine')").fetchone() == (None,)
        # After an error, too.
        c.execute("SET ROLE the_owner")
        c.execute("CREATE OR REPLACE FUNCTION public.harmless(int) RETURNS int VOLATILE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END'")
        c.execute("INSERT INTO f VALUES (6, 'x')")
        c.execute("CREATE OR REPLACE FUNCTION public.harmless(int) RETURNS int VOLATILE LANGUAGE plpgsql AS 'BEGIN RETURN $1 / 0; END'")
        c.execute("RESET ROLE")
        expect(c, "SELECT firn.compact('f')", "22012")
        assert c.execute("SELECT current_user").fetchone() == ("postgres",)
        c.execute("DROP FUNCTION public.harmless CASCADE")
    with_roles(cluster, body)


def policies(cluster):
    """Row-level security: the same rows, counts and calls of functions as on heap, and no bounds of hidden rows."""
    def body(c):
        seen = []
        c.add_notice_handler(lambda d: seen.append(d.message_primary))
        c.execute("CREATE FUNCTION leak(text) RETURNS bool LANGUAGE plpgsql COST 0.0001 AS "
                  "$$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$")
        outcomes = []
        for am in ("heap", "firn"):
            c.execute("DROP TABLE IF EXISTS f")
            c.execute("SET firn.bulk_threshold = 0; SET firn.stripe_rows = 50")
            c.execute(f"CREATE TABLE f (id int PRIMARY KEY, who text, v text) USING {am}")
            c.execute("INSERT INTO f SELECT i, CASE WHEN i % 10 = 0 THEN 'a_reader' ELSE 'other' END, 'v' || i FROM generate_series(1, 200) i")
            c.execute("ALTER TABLE f OWNER TO the_owner; GRANT SELECT, UPDATE, DELETE ON f TO a_reader; GRANT SELECT (id) ON f TO a_stranger")
            c.execute("ALTER TABLE f ENABLE ROW LEVEL SECURITY")
            c.execute("CREATE POLICY own ON f TO a_reader USING (who = current_user)")
            c.execute("CREATE POLICY few ON f TO a_stranger USING (id > 190)")
            result = []
            for role in ("a_reader", "a_stranger", "the_owner", "db_owner"):
                c.execute(f"SET ROLE {role}")
                for sql in ("SELECT count(*) FROM f", "SELECT count(*) FROM f WHERE id > 100", "SELECT sum(id) FROM f",
                            "SELECT max(v) FROM f", "SELECT id FROM f WHERE leak(v) AND id BETWEEN 5 AND 25 ORDER BY id",
                            "SELECT id FROM f WHERE leak(v) AND who <> 'x' AND id < 35 ORDER BY id",
                            "UPDATE f SET v = v || '!' WHERE id < 25", "DELETE FROM f WHERE id IN (29, 30)"):
                    seen.clear()
                    try:
                        cursor = c.execute(sql)
                        result.append((role, sql, cursor.fetchall() if cursor.description else cursor.rowcount, sorted(seen)))
                    except psycopg.Error as e:
                        result.append((role, sql, e.sqlstate))
                c.execute("RESET ROLE")
            outcomes.append(result)
        for heap, firn in zip(*outcomes):
            assert heap == firn, f"\nheap {heap}\nfirn {firn}"
        bounds = "SELECT bool_and(zone_maps IS NOT NULL), count(*) FROM firn.stripes('f')"
        for role, shown in (("a_reader", False), ("the_owner", True), ("postgres", True)):
            c.execute(f"SET ROLE {role}")
            assert c.execute(bounds).fetchone() == (shown, 4), role
        c.execute("SET ROLE a_stranger")
        expect(c, bounds, DENIED)
        c.execute("RESET ROLE")
        c.execute("DROP FUNCTION leak")
    with_roles(cluster, body)


def folders(cluster):
    """A store in a folder lets the server read and write files: not everybody may make one."""
    def body(c):
        folder = os.path.join(cluster.root, "store")
        c.execute("GRANT USAGE ON FOREIGN DATA WRAPPER firn TO the_owner")
        c.execute("SET ROLE the_owner")
        create = f"CREATE SERVER mine FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{folder}')"
        expect(c, create, DENIED)
        c.execute("CREATE SERVER mine FOREIGN DATA WRAPPER firn OPTIONS (url 's3://bucket/x')")
        expect(c, f"ALTER SERVER mine OPTIONS (SET url 'file://{folder}')", DENIED)
        c.execute("DROP SERVER mine")
        c.execute("RESET ROLE")
        c.execute("GRANT pg_read_server_files, pg_write_server_files TO the_owner")
        c.execute("SET ROLE the_owner")
        c.execute(create)
        c.execute("RESET ROLE")
    with_roles(cluster, body)


def secrets(cluster, proxy):
    """Neither views nor errors, plans, notices or the log show the secrets of a user mapping."""
    def body(c):
        heard = []
        c.add_notice_handler(lambda d: heard.append(f"{d.message_primary} {d.message_detail} {d.message_hint} {d.context}"))
        fresh(c)
        c.execute("ALTER TABLE f OWNER TO the_owner; ALTER TABLE h OWNER TO the_owner; GRANT SELECT ON f TO a_reader")
        c.execute("GRANT USAGE ON FOREIGN SERVER s3 TO the_owner")
        c.execute(f"CREATE USER MAPPING FOR the_owner SERVER s3 OPTIONS (access_key_id '{KEY}', secret_access_key '{SECRET}')")
        begun = os.path.getsize(cluster.log)
        c.execute("SET client_min_messages = debug5; SET log_min_messages = debug5; SET firn.cache_size = 0")

        def tell(sql):
            try:
                cursor = c.execute(sql)
                if cursor.description:
                    heard.extend(repr(row) for row in cursor.fetchall())
            except psycopg.Error as e:
                heard.append(f"{e} {e.diag.message_detail} {e.diag.message_hint} {e.diag.context}")

        for role in ("the_owner", "a_reader", "a_stranger"):
            c.execute(f"SET ROLE {role}")
            for sql in ("SELECT firn.offload('f', 's3')", "EXPLAIN (ANALYZE, VERBOSE, SETTINGS) SELECT sum(n) FROM f WHERE id < 50",
                        "SELECT * FROM firn.stripes('f')", "SELECT * FROM firn.tables", "SELECT * FROM firn.activity",
                        "SELECT * FROM firn.check('f')", "SELECT * FROM firn.unneeded('f')", "SELECT * FROM pg_foreign_server"):
                tell(sql)
            # PostgreSQL shows options of a user mapping to its own role and to the server's owner.
            if role != "the_owner":
                tell("SELECT * FROM pg_user_mappings")
                expect(c, "SELECT * FROM pg_user_mapping", DENIED)
            c.execute("RESET ROLE")
        assert any("uploads" in h or "s3" in h for h in heard)
        for fault in ("refuse", "wrong", "gone"):
            proxy.refuse = fault == "refuse"
            if fault == "wrong":
                c.execute(f"ALTER USER MAPPING FOR the_owner SERVER s3 OPTIONS (SET access_key_id '{KEY}x')")
            if fault == "gone":
                c.execute(f"ALTER USER MAPPING FOR the_owner SERVER s3 OPTIONS (SET access_key_id '{KEY}')")
                c.execute("ALTER SERVER s3 OPTIONS (SET url 's3://nobucket/firn')")
            for role in ("the_owner", "a_reader"):
                c.execute(f"SET ROLE {role}; SET statement_timeout = '1s'")
                tell("SELECT sum(n), max(v) FROM f")
                tell("SELECT * FROM firn.check('f')")
                c.execute("RESET statement_timeout; RESET ROLE")
            proxy.refuse = False
        c.execute("ALTER SERVER s3 OPTIONS (SET url 's3://bucket/firn')")
        # Mistakes in options are told without their values.
        for sql in ("ALTER SERVER s3 OPTIONS (ADD secret_access_key 'topsecret')",
                    "CREATE SERVER bad FOREIGN DATA WRAPPER firn OPTIONS (url 's3://user:topsecret@bucket')",
                    "CREATE SERVER bad FOREIGN DATA WRAPPER firn OPTIONS (url 's3://bucket', endpoint 'http://user:topsecret@host')",
                    "CREATE USER MAPPING FOR a_reader SERVER s3 OPTIONS (secret_access_key 'topsecret', url 'x')"):
            try:
                c.execute(sql)
                raise AssertionError(f"no error from {sql}")
            except psycopg.Error as e:
                assert "topsecret" not in f"{e} {e.diag.message_detail} {e.diag.message_hint}", str(e)
        # A new owner reads with his own credentials, also in a session that has read with those of the old one.
        c.execute("RESET client_min_messages; RESET log_min_messages")
        assert c.execute("SELECT count(n) FROM f").fetchone() == (3000,)
        c.execute("ALTER TABLE f OWNER TO a_stranger")
        expect(c, "SELECT sum(n), max(v) FROM f", "28000")
        c.execute("ALTER TABLE f OWNER TO the_owner")
        intact(c)
        for text in heard:
            assert SECRET not in text and KEY not in text, text
        with open(cluster.log, errors="replace") as f:
            f.seek(begun)
            for line in f:
                # PostgreSQL itself logs statements that it is told to log; ours above name the secrets.
                if "USER MAPPING" not in line:
                    assert SECRET not in line and KEY not in line, line
    with_roles(cluster, lambda c: body(c))
    with cluster.connect() as c:
        assert c.execute("SELECT count(*) FROM pg_user_mappings WHERE usename = 'the_owner'").fetchone() == (0,)
