"""The objects of PostgreSQL's own test of pg_dump (src/bin/pg_dump/t/002_pg_dump.pl), one of each kind and form there is:
restored by firn and by pg_restore into twins, all catalogs and rows compared; and the runs of that file.

The statements are read from the server's sources when the test runs. Some of the runs, drawn by FIRN_SEED; as many as
FIRN_CATALOGS says (a number, or all).
"""
import json
import os
import random
import re
import shutil
import subprocess

import psycopg

import regress
from restore import likeness, twins
from restore.catalogs import RULES
from restore.common import NEW, OLD, Missing, Server, firn, same_blocks, some

HERE = os.path.dirname(os.path.abspath(__file__))
FILE = "src/bin/pg_dump/t/002_pg_dump.pl"
MODULE = "src/test/modules/test_pg_dump"
OFF = "--disable-rule=all"
# Jobs and flags: each count of jobs with all rules and with none, each rule off once.
RUNS = [(jobs, flags) for jobs in range(1, 9) for flags in ((), (OFF,))] + [
    (n % 8 + 1, (f"--disable-rule={rule}",)) for n, rule in enumerate(RULES) if rule != "all"]
# What pg_dump is told of files, formats and connections, with how many words follow.
PLACES = re.compile(r"^(?:--file|--format|--jobs|--compress|--dbname|-[fFjZd])(=.*|(?<=^-.).+)?$")
# These go to what restores as well: pg_dump leaves them out of an archive.
LATE = {"-c": "-c", "--clean": "-c", "--if-exists": "--if-exists", "-O": "-O", "--no-owner": "-O", "--disable-triggers": "--disable-triggers",
        "--no-table-access-method": "--no-table-access-method", "-C": "-C", "--create": "-C"}
# What -n, -t and the like do not make.
SCHEMAS = "CREATE SCHEMA dump_test; CREATE SCHEMA dump_test_second_schema"
# Runs that make no archive of their own.
ELSEWHERE = {"--binary-upgrade": "for pg_upgrade, into a server that assigns no oids", "--filter": "from a file that the suite writes"}
# How many runs and sets of flags are drawn.
DRAWN = 3
# Flags of pg_restore for the whole archive, with what pg_restore makes of it before.
# What must be there before, as pg_restore makes it of the whole archive, by what pg_dump was told.
PRE, DATA = ["--section=pre-data"], ["--section=data"]
BEFORE = {"--section=data": [PRE], "--section=post-data": [PRE, DATA], "(^| )(-a|--data-only|--statistics-only|--no-schema)( |$)": [["-s"]],
          "(^| )(-c|--clean)( |$)": [[]]}
FLAGS = [
    (["--section=pre-data"], []), (["--section=data"], [PRE]), (["--section=post-data"], [PRE, DATA]),
    (["--section=pre-data", "--section=data"], []), (["-s"], []), (["-a", "--disable-triggers"], [["-s"]]), (["-n", "dump_test"], [SCHEMAS]), (["-N", "dump_test"], []),
    (["-n", "dump_test_second_schema", "--role", "regress_dump_test_role"], [SCHEMAS]), (["-t", "test_table"], [SCHEMAS]), (["-t", "measurement", "-t", "test_table"], [SCHEMAS]),
    (["-a", "-t", "test_table"], [["-s"]]), (["-x"], []), (["-O"], []), (["-O", "-x"], []), (["--no-comments"], []), (["--no-publications"], []),
    (["--no-subscriptions"], []), (["--no-security-labels"], []), (["--no-tablespaces"], []), (["--no-table-access-method"], []),
    (["-c", "--if-exists"], [[]]), (["-c"], [[]]), (["--use-set-session-authorization"], []), (["--enable-row-security"], []),
    (["-I", "measurement_city_id_logdate_idx"], []), (["-P", "trigger_func()"], []), (["--strict-names", "-n", "dump_test"], [SCHEMAS]),
]
# Of the newer one only.
NEWER = [(["--no-policies"], []), (["--statistics"], []), (["--no-statistics"], []), (["--no-data"], []),
         # The order of tables is not the archive's, and so it may be another one whose rows a foreign key refuses.
         (["--no-schema", "--disable-triggers"], [["-s"]]),
         (["--statistics-only"], [["-s"]]), (["--transaction-size=10"], [])]


def folder(version):
    """The sources of a version: its test of pg_dump, and the extension made for it."""
    return os.path.join(os.path.dirname(regress.prepare(int(version))), "..", "..")


def read(path, without=""):
    """Objects and runs of such a file."""
    try:
        r = subprocess.run(["perl", os.path.join(HERE, "dumpsuite.pl"), path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           env=dict(os.environ, FIRN_WITHOUT=without or "nothing"), text=True)
    except FileNotFoundError as e:
        raise Missing("perl is not there") from e
    if "Can't locate JSON/PP" in r.stderr:
        raise Missing("perl's JSON::PP is not there")
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


class Suite:
    """A server with the objects, and their archives."""

    def __init__(self, world, version):
        self.world, self.version = world, version
        source = folder(version)
        found = read(os.path.join(source, FILE))
        self.runs = found["runs"]
        self.server = Server(version, name="dumpsuite")
        world.servers[f"dumpsuite {version}"] = self.server
        if version == NEW:
            # An extension of SQL only; 15 finds extensions in its own folder alone, which is not ours to write to.
            place = os.path.join(regress.pg_config("--sharedir", os.path.join(self.server.bin, "pg_config")), "extension")
            assert os.path.isdir(place) and place.startswith(self.server.root), place
            for name in os.listdir(os.path.join(source, MODULE)):
                if name.endswith((".control", ".sql")):
                    shutil.copy(os.path.join(source, MODULE, name), place)
        self.server.create()
        config = self.server.program("pg_config", "--configure").stdout.decode()
        self.made, self.left, self.roles = 0, {}, set()
        self.databases = {}
        for name in ("regress_pg_dump_test", "regress_public_owner"):
            self.server.fresh(name)
        self.make("postgres", found["objects"], config)
        if version == NEW:
            self.server.fresh("module")
            self.make("module", read(os.path.join(source, MODULE, "t", "001_base.pl"))["objects"], config)
        with self.server.connect("postgres") as c:
            count = c.execute("SELECT count(*) FROM pg_class WHERE oid >= 16384").fetchone()[0]
        left = ", ".join(f"{count} without {why}" for why, count in self.left.items()) or "none"
        print(f"     pg_dump's objects {version}: {self.made} statements, {count} relations; left out: {left}", flush=True)

    def make(self, main, objects, config):
        """Run the statements in their order; those of no order come last, by name."""
        texts = {}
        for name, one in sorted(objects.items(), key=lambda o: (float(o[1].get("create_order", "inf")), o[0])):
            lacking = [what for what in ("icu", "lz4") if what in one and f"--with-{what}" not in config]
            if lacking:
                self.left[lacking[0]] = self.left.get(lacking[0], 0) + 1
                continue
            role = re.match(r"CREATE ROLE (\w+)", one["create_sql"])
            if role and role[1] in self.roles:
                continue
            self.roles.add(role[1] if role else None)
            self.made += 1
            texts.setdefault(one.get("database", main), []).append(one["create_sql"].rstrip().rstrip(";") + ";\n\n")
        for db, statements in texts.items():
            path = os.path.join(self.world.folder, "dumpsuite.sql")
            with open(path, "w", encoding="utf-8") as f:
                f.writelines(statements)
            self.server.program("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", *self.server.where(db), "-f", path)
            self.databases[db] = True

    def archive(self, db, form, extra=()):
        name = "-".join(["dumpsuite", self.version, db, form, *extra]).replace("/", "_").replace("*", "_")
        return self.world.archive(name, lambda p: self.server.archive(db, p, form, extra=extra))

    def empty(self, db):
        """A database with subscriptions cannot be dropped."""
        if self.server.exists(db):
            with self.server.connect(db) as c:
                for name, in c.execute("SELECT quote_ident(subname) FROM pg_subscription "
                                       "WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())").fetchall():
                    c.execute(f"ALTER SUBSCRIPTION {name} DISABLE")
                    c.execute(f"ALTER SUBSCRIPTION {name} SET (slot_name = NONE)")
                    c.execute(f"DROP SUBSCRIPTION {name}")
        return self.server.fresh(db)

    def before(self, db, base, steps):
        self.empty(db)
        for step in steps:
            if isinstance(step, str):
                with self.server.connect(db) as c:
                    c.execute(step)
            else:
                self.server.pg_restore(db, base, *step, check=False)

    def right(self, path, flags, base, steps):
        """What pg_restore makes, and how it ends."""
        def make():
            self.before("oracle", base, steps)
            if "--use-set-session-authorization" in flags:
                # It would hand public over as the owner to be, who may not, and then set no privileges. (docs/guide/restore.md says what
                # firn does.)
                listed = self.server.program("pg_restore", "-l", path).stdout.decode()
                [owner] = re.findall(r"SCHEMA - public (.*)", listed)
                with self.server.connect("oracle") as c:
                    c.execute(psycopg.sql.SQL("ALTER SCHEMA public OWNER TO {}").format(psycopg.sql.Identifier(owner)))
            r = self.server.pg_restore("oracle", path, *flags, check=False)
            return twins.catalogs(self.server, "oracle"), self.server.dump("oracle"), r.returncode, r.stderr.decode(errors="replace")
        return self.world.once(("dumpsuite", self.version, path, tuple(flags), repr(steps)), make)

    def twins(self, path, jobs, rules=(), flags=(), base=None, steps=()):
        """Restore an archive by both programs, into what pg_restore has made of `base` in some steps, and compare."""
        what = f"{os.path.basename(path)} {' '.join([*flags, *rules])} {jobs} jobs"
        expected, dump, code, told = self.right(path, flags, base or path, steps)
        self.before("target", base or path, steps)
        go_on = ["--on-error=continue"] if code else []
        run = firn(self.server, "target", path, "--jobs", str(jobs), "--no-analyze", *rules, *flags, *go_on)
        assert "a rewrite failed" not in run.out, f"{what}: {run.out[-3000:]}"
        assert run.code == code, f"{what}: exit code {run.code}, pg_restore's {code}:\n{run.out[-3000:]}\n{told[-2000:]}"
        # How many errors there are differs: what needs something that failed is skipped, and not tried.
        with self.server.connect("target") as c:
            c.execute("SET client_min_messages = error; DROP SCHEMA IF EXISTS firn_restore CASCADE")
        got, found = twins.catalogs(self.server, "target"), self.server.dump("target")
        expected, dump = twins.but_for_put_off(run, expected, dump, got, found)
        twins.compare(expected, got, what, run)
        same_blocks(dump, found, what)
        return got


def suite(world, version):
    def make():
        try:
            return Suite(world, version)
        except BaseException:
            # The next case makes another one, in its place.
            server = world.servers.pop(f"dumpsuite {version}", None)
            if server:
                server.destroy()
            raise
    return world.once(("dumpsuite", version), make)


def all_kinds(world, version, form, runs):
    """Every database of the file, with counts of jobs and rules."""
    s = suite(world, version)
    for jobs, rules in runs:
        for db in s.databases:
            got = s.twins(s.archive(db, form), jobs, rules)
            if db == "postgres":
                size = twins.size(got)
    print(f"     pg_dump's objects {version} {form}: {len(runs)} runs of {len(s.databases)} databases; {size[0]} catalogs, {size[1]} columns, "
          f"{size[2]} rows", flush=True)


def words(command):
    """What a run tells pg_dump, without files, formats, connections; and its database."""
    found, rest, db = [], [str(word) for word in command[1:]], "postgres"
    while rest:
        word = rest.pop(0)
        place = PLACES.match(word)
        if place:
            value = place[1] if place[1] else rest.pop(0)
            if word in ("-d", "--dbname"):
                db = value
        elif word.startswith("-"):
            if word not in ("-w", "-v", "--verbose", "--no-sync"):
                found.append(word)
                # In newer files a flag's value is a word of its own.
                if rest and not rest[0].startswith(("-", "@FOLDER@")) and rest[0] not in ("postgres", "regress_pg_dump_test", "regress_public_owner"):
                    found.append(rest.pop(0))
        else:
            db = word
    return found, db


def elsewhere(run):
    """Why it makes no archive of its own, if so."""
    if run["dump"][0] != "pg_dump":
        return f"{run['dump'][0]} (scripts)"
    told = words(run["dump"])[0]
    return next((f"{flag} ({reason})" for flag, reason in ELSEWHERE.items() if flag in told), None)


def dumped(world, version, chosen):
    """The file's runs: what pg_dump is told there, into an archive, restored with what pg_restore is told there."""
    s = suite(world, version)
    skipped, wrong = {}, []
    for number, name in enumerate(chosen):
        run = s.runs[name]
        told, db = words(run["dump"])
        why = elsewhere(run)
        if why:
            skipped[why] = skipped.get(why, 0) + 1
            continue
        early, late = [word for word in told if word not in LATE], [LATE[word] for word in told if word in LATE]
        form = "d" if "dir" in name or "parallel" in name else "t" if "tar" in name else "c"
        path = s.archive(db, form, tuple(early))
        flags = late + (words(run["restore"])[0] if run["restore"] else [])
        given = " ".join(told).replace("--section ", "--section=")
        steps = next((before for sign, before in BEFORE.items() if re.search(sign, given)), [])
        try:
            likeness.alike(world.server(NEW), ["-f", "-", likeness.KEY, *flags, path])
            s.twins(path, number % 8 + 1, (), [flag for flag in flags if flag != "-C"], s.archive(db, "c"), steps)
        except AssertionError as e:
            wrong.append(f"{name}: {str(e)[:3000]}")
    for why, count in skipped.items():
        print(f"     {count} runs of pg_dump's test not made: {why}", flush=True)
    print(f"     {len(chosen) - sum(skipped.values())} runs of pg_dump's test {version}, {len(wrong)} differences", flush=True)
    assert not wrong, "\n\n".join(wrong)


def flagged(world, version, chosen):
    """Flags of pg_restore, on the whole archive."""
    s = suite(world, version)
    wrong = []
    for number, (flags, steps) in enumerate(chosen):
        path = s.archive("postgres", "cd"[number % 2])
        try:
            s.twins(path, number % 8 + 1, (OFF,) if number % 3 == 2 else (), flags, path, steps)
        except AssertionError as e:
            wrong.append(str(e)[:3000])
    print(f"     pg_dump's objects {version}: {len(chosen)} sets of flags, {len(wrong)} differences", flush=True)
    assert not wrong, "\n\n".join(wrong)


def drawn(runs, draw):
    whole = os.environ.get("FIRN_CATALOGS") == "all"
    return sorted(some(DRAWN, sorted(name for name, run in runs.items() if whole or not elsewhere(run)), draw))


def cases(world):
    seed = int(os.environ.get("FIRN_SEED") or random.SystemRandom().randrange(1 << 32))
    few = random.Random(seed)
    for version in (OLD, NEW):
        for form in ("c", "d"):
            runs = some(2, RUNS, few)
            yield f"pg_dump's objects {version} {form}", lambda v=version, f=form, r=runs: all_kinds(world, v, f, r)
        flags = FLAGS + (NEWER if version == NEW else [])
        draw = random.Random(f"{seed} {version}")
        chosen = some(DRAWN, flags, draw)
        yield f"pg_dump's runs {version}", lambda v=version, d=draw: dumped(world, v, drawn(suite(world, v).runs, d))
        yield f"pg_dump's objects and flags {version}", lambda v=version, f=chosen: flagged(world, v, f)
