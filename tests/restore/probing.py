"""The rule that updates catalogs is tried on the server before it is used, and off where it does not give what plain DDL gives."""
import threading

from restore import shapes, twins
from restore.common import NEW, OLD, firn

OFF = "the rule staged-partitions is off"
SOURCE = "CREATE TABLE p (id int NOT NULL, d int NOT NULL, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);" + shapes.ranges("p", 300)
# Each new table is noted, with what it is a partition of at that moment: below a staging parent that is another one.
NOTED = """
CREATE FUNCTION public.noted() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE o record;
BEGIN
    FOR o IN SELECT * FROM pg_event_trigger_ddl_commands() WHERE object_type = 'table' AND command_tag = 'CREATE TABLE' LOOP
        EXECUTE format('COMMENT ON TABLE %s IS %L', o.object_identity,
            (SELECT 'below ' || inhparent::regclass FROM pg_inherits WHERE inhrelid = o.objid));
    END LOOP;
END $$;
CREATE EVENT TRIGGER noted ON ddl_command_end EXECUTE FUNCTION public.noted();
"""
# It refuses what the trial makes.
REFUSED = """
CREATE FUNCTION public.refused() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%probe_2') THEN
        RAISE EXCEPTION 'not with me';
    END IF;
END $$;
CREATE EVENT TRIGGER refused ON ddl_command_end EXECUTE FUNCTION public.refused();
"""


def staged(server, path, *flags):
    """How many partitions a plan for the target has below staging parents."""
    out = firn(server, "target", path, "--dry-run", *flags).ok().out
    return int(out.split("below staging parents: ")[1].split()[0])


def used(world, version):
    """Nothing speaks against it: it is used."""
    server = world.server(version)
    path, expected, _ = shapes.archive(world, version, "probing", SOURCE)
    server.fresh("target")
    assert staged(server, path) == 300
    run = firn(server, "target", path, "--jobs", "2").ok()
    assert OFF not in run.out, run.out[-2000:]
    twins.compare(expected, twins.catalogs(server, "target"), run=run)


def beside_analyze(world):
    """What others do to catalogs meanwhile is not the trial's."""
    server = world.server()
    path = shapes.archive(world, OLD, "probing", SOURCE)[0]
    server.fresh("target")
    over = threading.Event()

    def analyze():
        with server.connect("target") as c:
            while not over.is_set():
                for catalog in ("pg_class", "pg_attribute", "pg_type", "pg_depend"):
                    c.execute(f"ANALYZE pg_catalog.{catalog}")
    thread = threading.Thread(target=analyze)
    thread.start()
    try:
        found = [staged(server, path) for _ in range(8)]
    finally:
        over.set()
        thread.join()
    assert found == [300] * 8, found


def off(world, version, before, reason):
    """A trial shows a difference, or fails: plain DDL is used, which gives what the event trigger makes of that."""
    server = world.server(version)
    path = shapes.archive(world, version, "probing", SOURCE)[0]
    found = []
    for flags in (("--disable-rule=staged-partitions",), ()):
        server.fresh("target")
        with server.connect("target") as c:
            c.execute(before)
        run = firn(server, "target", path, "--jobs", "2", *flags).ok()
        assert (f"{OFF}: {reason}" in run.out) == (not flags), run.out[-2000:]
        assert staged(server, path, *flags) == 0
        found.append(twins.catalogs(server, "target"))
    twins.compare(found[0], found[1])
    with server.connect("target") as c:
        leftover = c.execute("SELECT count(*) FROM pg_class WHERE relname ~ 'probe'").fetchone()
        assert leftover == (0,), leftover


def no_superuser(world, version):
    server = world.server(version)
    path = shapes.archive(world, version, "probing", SOURCE)[0]
    server.fresh("target")
    with server.connect() as c:
        c.execute("DROP ROLE IF EXISTS plain_owner")
        c.execute("CREATE ROLE plain_owner")
        c.execute("ALTER DATABASE target OWNER TO plain_owner")
    with server.connect("target") as c:
        c.execute("GRANT ALL ON SCHEMA public TO plain_owner")
    run = firn(server, "target", path, "--jobs", "2", "--role", "plain_owner", "--no-owner").ok()
    assert f"{OFF}: the restoring role is no superuser" in run.out, run.out[-2000:]


def cases(world):
    for version in (OLD, NEW):
        yield f"probing used {version}", lambda v=version: used(world, v)
        yield f"probing differs {version}", lambda v=version: off(world, v, NOTED, "a trial left other rows in the catalogs")
        yield f"probing fails {version}", lambda v=version: off(world, v, REFUSED, "a trial failed: not with me")
        yield f"probing no superuser {version}", lambda v=version: no_superuser(world, v)
    yield "probing beside analyze", lambda: beside_analyze(world)
