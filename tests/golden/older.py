"""The library of this build beside SQL objects of an earlier version of the extension, until ALTER EXTENSION firn UPDATE is run: tables work as they do, and
what the database lacks or has in another form is an error that says so, never a crash."""
import os

from trouble.common import expect, fresh, intact
from trouble.damage import by_hand

HINT = "ALTER EXTENSION firn UPDATE"


def of_another_version(c, statement):
    e = expect(c, statement, "55000")
    assert "of another version of the extension" in str(e) and HINT in e.diag.message_hint, (statement, str(e), e.diag.message_hint)


def functions(cluster):
    """The library's functions under declarations with a column less, one more, and others: an error, and the session goes on."""
    listed = """SELECT p.proname, pg_get_function_identity_arguments(p.oid), p.prosrc, p.proargnames, array(SELECT format_type(t, NULL) FROM unnest(p.proallargtypes) t), p.proargmodes::text[]
        FROM pg_proc p WHERE pronamespace = 'firn'::regnamespace AND proretset"""
    with cluster.connect() as c:
        fresh(c)
        c.execute("CREATE SERVER older FOREIGN DATA WRAPPER firn OPTIONS (url 'file:///nowhere')")
        # What firn.check and firn.repair have something to say of: chunks of no stripe.
        by_hand(c, "INSERT INTO @ VALUES (150, 5, '\\x00')")
        found = c.execute(listed).fetchall()
        assert {name for name, *_ in found} == {"check", "repair", "stripes", "table_info", "unneeded", "activity_info"}, found
        tried = 0
        for name, _, symbol, names, types, modes in found:
            args = [(n, t) for n, t, m in zip(names, types, modes) if m == "i"]
            out = [(n, t) for n, t, m in zip(names, types, modes) if m == "o"]
            other = [(n, "smallint" if t in ("bigint", "integer") else "bigint") for n, t in out]
            for number, columns in enumerate((out[:-1], [*out, ("more", "text")], other, [*out, *out[:1]])):
                made = f"public.{name}_{number}"
                declared = ", ".join([f"{n} {t}" for n, t in args] + [f"OUT c{i} {t}" for i, (_, t) in enumerate(columns)])
                c.execute(f"CREATE FUNCTION {made}({declared}) RETURNS SETOF record AS '$libdir/firn', '{symbol}' LANGUAGE C STRICT")
                given = ", ".join({"regclass": "'f'", "boolean": "true"}[t] for _, t in args)
                if name in ("unneeded", "activity_info"):
                    # They have nothing to say.
                    assert not c.execute(f"SELECT * FROM {made}({given})").fetchall()
                else:
                    of_another_version(c, f"SELECT * FROM {made}({given})")
                    tried += 1
        assert tried == 16
        by_hand(c, "DELETE FROM @ WHERE chunk_id = 150")
        # Fewer arguments than today's: as if the last was not given.
        c.execute("CREATE FUNCTION public.info(relation regclass, OUT a bigint, OUT b bigint, OUT c bigint, OUT d bigint, OUT e bigint, OUT f bigint) RETURNS SETOF record "
                  "AS '$libdir/firn', 'firn_table_info' LANGUAGE C STRICT")
        assert c.execute("SELECT * FROM public.info('f')").fetchall() == c.execute("SELECT * FROM firn.table_info('f')").fetchall()
        intact(c)


def stores(cluster):
    """Without the table of stores nothing goes to one: another would be taken for that which was used before. What is there can be read."""
    place = os.path.join(cluster.root, "older")
    os.mkdir(place)
    os.chmod(place, 0o777)
    with cluster.connect() as c:
        c.execute("CREATE DATABASE older")
    with cluster.connect("older") as c:
        c.execute("CREATE EXTENSION firn")
        c.execute(f"CREATE SERVER cold FOREIGN DATA WRAPPER firn OPTIONS (url 'file://{place}')")
        fresh(c)
        c.execute("SELECT firn.offload('f', 'cold')")
        c.execute("INSERT INTO f SELECT i, 'later', 1 FROM generate_series(8001, 9000) i")
        c.execute("INSERT INTO h SELECT i, 'later', 1 FROM generate_series(8001, 9000) i")
        c.execute("ALTER EXTENSION firn DROP TABLE firn.stores; ALTER TABLE firn.stores RENAME TO kept")
        for statement in ("SELECT firn.offload('f', 'cold')", "SELECT firn.accept_store('cold')", "SELECT * FROM firn.unneeded('f')", "ALTER SERVER cold RENAME TO colder"):
            of_another_version(c, statement)
        c.execute("SET firn.cache_size = 0")
        intact(c)
        c.execute("CREATE FOREIGN DATA WRAPPER others; CREATE SERVER others FOREIGN DATA WRAPPER others; DROP SERVER others")
        c.execute("SELECT firn.load('f')")
        c.execute("ALTER TABLE firn.kept RENAME TO stores; ALTER EXTENSION firn ADD TABLE firn.stores")
        assert c.execute("SELECT firn.offload('f', 'cold')").fetchone()[0] > 0
        intact(c)


def without_functions(cluster):
    """A database whose extension lacks functions that this build has: what it lacks is not there, the rest works."""
    with cluster.connect() as c:
        c.execute("CREATE DATABASE bare")
    with cluster.connect("bare") as c:
        c.execute("CREATE EXTENSION firn")
        for view in ("tables", "activity"):
            c.execute(f"ALTER EXTENSION firn DROP VIEW firn.{view}; DROP VIEW firn.{view}")
        for kind, name in c.execute("SELECT CASE prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'firn'::regnamespace "
                                    "AND proname NOT IN ('handler', 'toast_handler', 'fdw_validator')").fetchall():
            c.execute(f"ALTER EXTENSION firn DROP {kind} {name}; DROP {kind} {name}")
        c.execute("SET firn.bulk_threshold = 10; SET firn.stripe_rows = 500")
        for am, table in (("firn", "f"), ("heap", "h")):
            c.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text) USING {am}")
            c.execute(f"INSERT INTO {table} SELECT i, 'v' || i FROM generate_series(1, 3000) i; UPDATE {table} SET v = 'changed' WHERE id % 3 = 0; DELETE FROM {table} WHERE id % 5 = 0")
        for statement in ("VACUUM f", "VACUUM FULL f", "REINDEX TABLE f", "ANALYZE f", "ALTER TABLE f ADD n int DEFAULT 5"):
            c.execute(statement)
        c.execute("ALTER TABLE h ADD n int DEFAULT 5")
        for a, b in (("h", "f"), ("f", "h")):
            assert c.execute(f"SELECT count(*) FROM (TABLE {a} EXCEPT ALL TABLE {b}) x").fetchone() == (0,)
        expect(c, "SELECT firn.check('f')", "42883")
        # The access method of TOAST relations, which tables made before may lack.
        c.execute("ALTER EXTENSION firn DROP FUNCTION firn.toast_handler(internal)")
        c.execute("DROP EXTENSION firn CASCADE")


CASES = {"functions of another form": functions, "no table of stores": stores, "no functions": without_functions}
