"""--dry-run -d plans what the restore would do: as who restores, by the archive's encoding, and not beside an unfinished one."""
from restore import probing, shapes
from restore.common import OLD, firn

TIED = 'CREATE TABLE "ä1" (id int PRIMARY KEY); CREATE TABLE "ö2" (id int REFERENCES "ä1"); INSERT INTO "ä1" VALUES (1); INSERT INTO "ö2" VALUES (1)'


def by_role(world):
    server = world.server()
    path = shapes.archive(world, OLD, "probing", probing.SOURCE)[0]
    server.roles("planned_role")
    server.fresh("target")
    assert probing.staged(server, path) == 300
    assert probing.staged(server, path, "--role=planned_role") == 0


def by_encoding(world):
    """What is emptied together is found by names that the environment's encoding would make others."""
    server = world.server()

    def make(path):
        with server.connect(server.fresh("planned")) as c:
            c.execute(TIED)
        return server.archive("planned", path, "c", extra=("-a",))
    path = world.archive("planned", make)

    def steps(encoding):
        out = firn(server, "planned", path, "--dry-run", "-a", "--truncate-table", env={"PGCLIENTENCODING": encoding}).ok().out
        return int(out.split("Steps: ")[1].split()[0])
    assert steps("LATIN1") == steps("UTF8"), (steps("LATIN1"), steps("UTF8"))


def unfinished(world):
    """It says so as the restore would, tries nothing there, and plans for --resume what was begun."""
    server = world.server()
    path = shapes.archive(world, OLD, "probing", probing.SOURCE)[0]
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE TABLE part_7 (a int)")
    firn(server, "target", path, "--on-error=continue").fails("part_7")
    with server.connect("target") as c:
        c.execute("CREATE TABLE tried (tag text); CREATE FUNCTION tried() RETURNS event_trigger LANGUAGE plpgsql AS "
                  "$$BEGIN RAISE LOG 'PLANNED TRIED'; END$$; CREATE EVENT TRIGGER tried ON ddl_command_start EXECUTE FUNCTION tried()")
    firn(server, "target", path, "--dry-run").fails("the target database holds an unfinished restore")
    assert probing.staged(server, path, "--resume") == 300
    with open(server.log, errors="replace") as f:
        assert "PLANNED TRIED" not in f.read()


def in_order(world):
    """-1 uses no rule, and tries none."""
    server = world.server()
    path = shapes.archive(world, OLD, "probing", probing.SOURCE)[0]
    server.fresh("target")
    with server.connect("target") as c:
        c.execute("CREATE FUNCTION tried() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN "
                  "IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%probe%') THEN RAISE LOG 'IN ORDER TRIED'; END IF; END$$;"
                  "CREATE EVENT TRIGGER tried ON ddl_command_end EXECUTE FUNCTION tried()")
    firn(server, "target", path, "-1").ok()
    with open(server.log, errors="replace") as f:
        assert "IN ORDER TRIED" not in f.read()


def cases(world):
    yield "planned by role", lambda: by_role(world)
    yield "planned by encoding", lambda: by_encoding(world)
    yield "planned unfinished", lambda: unfinished(world)
    yield "planned in order", lambda: in_order(world)
