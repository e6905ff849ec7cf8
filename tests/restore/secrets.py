"""Passwords: none is shown, written, or handed to another program where others can see it."""
import json
import os
import stat
import subprocess

from restore import common
from restore.common import firn

SECRET = "geheimnis"


def archive(world):
    """Objects that hold passwords, and whose restore fails."""
    server = world.server()
    server.roles("confidant", "stranger")
    with server.connect(server.fresh("confided")) as c:
        c.execute("CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER far FOREIGN DATA WRAPPER nowhere")
        c.execute(f"CREATE USER MAPPING FOR confidant SERVER far OPTIONS (\"user\" 'me', password '{SECRET}')")
        c.execute(f"CREATE SUBSCRIPTION heard CONNECTION 'host=nowhere password={SECRET}' PUBLICATION p WITH (connect = false)")
        c.execute(f"CREATE FUNCTION call() RETURNS text LANGUAGE sql AS $$ SELECT 'host=x password={SECRET} y=1'::text $$")
    path = world.archive("confided", lambda p: server.archive("confided", p, "c"))
    with server.connect("confided") as c:
        c.execute("ALTER SUBSCRIPTION heard SET (slot_name = NONE)")
        c.execute("DROP SUBSCRIPTION heard")
        c.execute("DROP USER MAPPING FOR confidant SERVER far")
        c.execute("DROP ROLE confidant")
    return path


def reports(world):
    """Lines, JSON and page tell of the failures without the passwords, and nobody else may read the page."""
    server = world.server()
    path = world.once("confided", lambda: archive(world))
    page = os.path.join(world.folder, "page.html")
    for existing in (False, True):
        for form in ("text", "json"):
            if existing:
                with open(page, "w", encoding="utf-8") as f:
                    f.write("of before")
                os.chmod(page, 0o666)
            elif os.path.exists(page):
                os.unlink(page)
            server.fresh("target")
            with server.connect("target") as c:
                c.execute("GRANT CREATE ON DATABASE target TO stranger; GRANT ALL ON SCHEMA public TO stranger")
            run = firn(server, "target", path, "--role=stranger", "-O", "-x", "--on-error=continue", "-v",
                       f"--log-format={form}", f"--html-report={page}")
            assert run.code == 1, run.out
            with open(page, encoding="utf-8") as f:
                html = f.read()
            for text in (run.out, html):
                assert SECRET not in text, text
            assert "SUBSCRIPTION heard" in html and "CONNECTION '********'" in run.out, run.out
            assert stat.S_IMODE(os.stat(page).st_mode) == 0o600
    # The mapping's role is not there.
    server.fresh("target")
    run = firn(server, "target", path, "--on-error=continue", f"--html-report={page}")
    assert "password '********'" in run.out and SECRET not in run.out, run.out
    with server.connect("target") as c:
        c.execute("ALTER SUBSCRIPTION heard SET (slot_name = NONE)")
        c.execute("DROP SUBSCRIPTION heard")


def spy(world):
    """A pg_dump that writes down how it was called."""
    folder = os.path.join(world.folder, "spy")
    os.makedirs(folder, exist_ok=True)
    program, notes = os.path.join(folder, "pg_dump"), os.path.join(folder, "notes")
    real = os.path.join(world.server().bin, "pg_dump")
    with open(program, "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\n[ \"$1\" = --version ] || {{ printf '%s\\n' \"$@\" >>{notes}; env | grep ^PG >>{notes}.env; }}\n"
                f"exec {real} \"$@\"\n")
    os.chmod(program, 0o755)
    for file in (notes, notes + ".env"):
        if os.path.exists(file):
            os.unlink(file)
    return program, notes


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def arguments(world):
    """A password in the connection string goes to pg_dump by its environment."""
    server = world.server()
    with server.connect(server.fresh("kept")) as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS a")
    path = world.archive("kept", lambda p: server.archive("kept", p, "c"))
    firn_program = common.program()[0]
    uri = f"postgresql://postgres:{SECRET}@/%s?host={server.root}&port={server.port}"
    words = f"host={server.root} port={server.port} user=postgres password={SECRET} dbname=%s"
    for number, conninfo in enumerate((uri, words)):
        program, notes = spy(world)
        backup = os.path.join(world.folder, f"kept-{number}")
        r = subprocess.run([firn_program, "backup", "--pg-dump", program, conninfo % "kept", backup], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=common.PATIENCE)
        assert r.returncode == 0, r.stdout.decode()
        server.fresh("target")
        r = subprocess.run([*common.program(), "--verify", "--pg-dump", program, "-d", conninfo % "target", path],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=common.PATIENCE)
        assert r.returncode == 0, r.stdout.decode()
        told, environment = read(notes), read(notes + ".env")
        assert SECRET not in told and "--dbname=" in told, told
        assert f"PGPASSWORD={SECRET}" in environment and "log_min_messages" not in environment, environment


def audited(world):
    """What pg_dump's session does for a backup stands in the server's log as everything else does."""
    server = world.server()
    with server.connect(server.fresh("audited")) as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS a; ALTER DATABASE audited SET log_statement = 'all'; ALTER DATABASE audited SET log_min_messages = 'log'")
    begin = os.path.getsize(server.log)
    out = os.path.join(world.folder, "audited")
    r = subprocess.run([common.program()[0], "backup", *server.where("audited")[:-2], "audited", out], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=common.PATIENCE)
    assert r.returncode == 0, r.stdout.decode()
    with open(server.log, errors="replace") as f:
        f.seek(begin)
        log = f.read()
    # Only pg_dump asks for these.
    assert "LOCK TABLE" in log and "pg_catalog.pg_extension" in log, log[-3000:]


def moment(world):
    """What moment an encrypted backup is of is told: somebody may have put an older one in a newer one's place."""
    server = world.server()
    with server.connect(server.fresh("moment")) as c:
        c.execute("CREATE TABLE t AS SELECT 1 AS i")
    path, plain = os.path.join(world.folder, "moment"), os.path.join(world.folder, "moment_plain")
    env = {"FIRN_PASSPHRASE": "of a moment"}
    for to, flags in ((path, ["--passphrase"]), (plain, [])):
        made = subprocess.run([common.program()[0], "backup", *server.where("moment"), *flags, to], env=dict(os.environ, **env if flags else {}),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert made.returncode == 0, made.stdout.decode()
    with open(os.path.join(path, "manifest.json")) as f:
        taken = json.load(f)["snapshot_time"]
    for flags in ([], ["-1"]):
        server.fresh("target")
        run = firn(server, "target", path, *flags, env=env).ok()
        assert "backup of" in run.out and taken in run.out, run.out
    for flags in (["-f", os.devnull], ["--dry-run"], ["--dry-run", "-d", "target"]):
        run = firn(server, "target", path, *flags, env=env, where=False if "-d" not in flags else True).ok()
        assert f"backup of {taken}" in run.out, run.out
    # Of one that is not, nobody could say so for certain.
    server.fresh("target")
    assert "backup of" not in firn(server, "target", plain).ok().out


def cases(world):
    yield "secrets reports", lambda: reports(world)
    yield "secrets arguments", lambda: arguments(world)
    yield "secrets audited", lambda: audited(world)
    yield "secrets moment", lambda: moment(world)
