"""Schemas of real applications, from the Debian packages that ship them, with rows: restored by firn and by pg_restore into
twins, all catalogs and rows compared.

The packages are downloaded when the test runs and kept below FIRN_TOOLS; nothing is installed. Two of the small ones, or so
many of all as FIRN_CATALOGS says (a number, or all). Where a package brings no rows, or for tables that have none, they are made, as types and keys want.
"""
import glob
import gzip
import os
import random
import re
import subprocess

import psycopg
from restore import twins
from restore.common import NEW, OLD, Missing, firn, same, some

HERE = os.path.dirname(os.path.abspath(__file__))
# Name to packages and files in them, in their order.
APPLICATIONS = {
    "bacula": {"bacula-director-pgsql": ["usr/share/dbconfig-common/data/bacula-director-pgsql/install/pgsql"]},
    "davical": {"libawl-php": ["usr/share/awl/dba/awl-tables.sql", "usr/share/awl/dba/schema-management.sql"],
                "davical": ["usr/share/davical/dba/davical.sql", "usr/share/davical/dba/caldav_functions.sql"]},
    "ejabberd": {"ejabberd": ["usr/share/ejabberd/sql/pg.new.sql"]},
    "freeradius": {"freeradius-config": ["etc/freeradius/3.0/mods-config/sql/main/postgresql/schema.sql",
                                         "etc/freeradius/3.0/mods-config/sql/ippool/postgresql/schema.sql",
                                         "etc/freeradius/3.0/mods-config/sql/cui/postgresql/schema.sql"]},
    "gammu": {"gammu-smsd": ["usr/share/doc/gammu-smsd/examples/pgsql.sql*"]},
    "icingaweb": {"icingaweb2": ["usr/share/icingaweb2/schema/pgsql.schema.sql"]},
    "icinga": {"icinga2-ido-pgsql": ["usr/share/icinga2-ido-pgsql/schema/pgsql.sql"]},
    "kamailio": {"kamailio-postgres-modules": ["usr/share/kamailio/postgres/standard-create.sql", "usr/share/kamailio/postgres/*-create.sql"]},
    "kea": {"kea-admin": ["usr/share/kea/scripts/pgsql/dhcpdb_create.pgsql"]},
    "mediawiki": {"mediawiki": ["usr/share/mediawiki/maintenance/postgres/tables-generated.sql", "usr/share/mediawiki/maintenance/postgres/tables.sql"]},
    "powerdns": {"pdns-backend-pgsql": ["usr/share/pdns-backend-pgsql/schema/schema.pgsql.sql"]},
    "roundcube": {"roundcube-core": ["usr/share/dbconfig-common/data/roundcube/install/pgsql"]},
    "rsyslog": {"rsyslog-pgsql": ["usr/share/dbconfig-common/data/rsyslog-pgsql/install/pgsql"]},
    "tt-rss": {"tt-rss": ["usr/share/tt-rss/schema/ttrss_schema_pgsql.sql"]},
    "zabbix": {"zabbix-server-pgsql": [f"usr/share/zabbix-server-pgsql/{name}.sql.gz" for name in ("schema", "images", "data")]},
}
# Less than half a megabyte to download.
SMALL = ("bacula", "davical", "freeradius", "icinga", "kamailio", "kea", "powerdns")
# What a session says before it writes, for schemas whose triggers ask.
SESSIONS = {"kea": "SELECT set_config('kea.disable_audit', 'true', false)"}
ROWS = 20
OFF = "--disable-rule=all"


def texts(name):
    """The statements of an application, file by file."""
    folder = os.path.join(os.environ["FIRN_TOOLS"], "packages")
    packages = APPLICATIONS[name]
    r = subprocess.run([os.path.join(HERE, "packages.sh"), folder, *packages], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if r.returncode != 0:
        raise Missing(f"packages cannot be downloaded: {r.stdout[-300:]}")
    read = {}
    for package, patterns in packages.items():
        for pattern in patterns:
            found = sorted(glob.glob(os.path.join(folder, package, pattern)))
            assert found, f"{package} has no {pattern}"
            for path in found:
                if path not in read:
                    with gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8") as f:
                        read[path] = f.read()
    return read


# Values by type, for the row of a number.
MADE = {
    "int2": lambda i: i + 1, "int4": lambda i: i + 1, "int8": lambda i: i + 1, "numeric": lambda i: f"{i}.5", "float4": lambda i: i / 4, "float8": lambda i: i / 8,
    "bool": lambda i: i % 2 == 0, "date": lambda i: f"2024-02-{i % 28 + 1}", "timestamp": lambda i: f"2024-02-29 12:00:{i % 60}.25",
    "timestamptz": lambda i: f"2024-02-29 12:00:{i % 60}.25+02", "time": lambda i: f"12:{i % 60}", "interval": lambda i: f"{i} days 3 hours",
    "bytea": lambda i: f"\\x00ff{i:04x}", "uuid": lambda i: f"00000000-0000-0000-0000-{i:012d}", "inet": lambda i: f"10.0.{i % 256}.1", "cidr": lambda i: f"10.{i % 256}.0.0/16",
    "macaddr": lambda i: f"08:00:2b:01:02:{i % 256:02x}", "json": lambda i: f'{{"n": {i}}}', "jsonb": lambda i: f'{{"n": {i}}}', "tsvector": lambda i: f"word{i} other", "xml": lambda i: f"<n>{i}</n>",
}
COLUMNS = """
SELECT a.attname, b.typname, CASE WHEN b.typname IN ('varchar', 'bpchar') THEN GREATEST(t.typtypmod, a.atttypmod) - 4 ELSE -1 END,
    a.attnotnull OR t.typnotnull, a.atthasdef OR a.attidentity <> '', pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnum,
    ARRAY(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = b.oid ORDER BY enumsortorder)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_type b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""
KEYS = "SELECT conkey, confkey, confrelid::regclass::text, confrelid FROM pg_constraint WHERE conrelid = %s AND contype = 'f'"


def value(kind, limit, labels, i):
    """A value of a type, another for each row if it can be."""
    if labels:
        return labels[i % len(labels)]
    if kind in MADE:
        return MADE[kind](i)
    if kind.startswith("_"):
        return "{}"
    # The first of all is long.
    text = "long " * 3000 if i == 0 and limit < 0 else f"it's \t{i} ä\\n"
    return f"{i:x}"[:limit] if 0 <= limit < 12 else text[:limit] if limit > 0 else text


def row(c, table, columns, keys, i, all_columns):
    """One row; nothing if it would break a rule of the schema."""
    values = {name: (value(kind, limit, labels, i), written) for name, kind, limit, needed, has, written, _, labels in columns
              if all_columns or needed and not has}
    names = {number: name for name, *_, number, _ in columns}
    for own, other, target, oid in keys:
        there = [n for n, in c.execute("SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum = ANY (%s) ORDER BY array_position(%s, attnum)",
                                       (oid, other, other)).fetchall()]
        found = c.execute(f"SELECT {', '.join(map(quoted, there))} FROM {target} ORDER BY 1 OFFSET {i} % GREATEST(1, (SELECT count(*) FROM {target})) LIMIT 1").fetchone()
        for number, one in zip(own, found or [None] * len(own)):
            if names[number] in values or found:
                written = next(written for name, *_, written, n, _ in columns if n == number)
                values[names[number]] = one, written
    if not values:
        return c.execute(f"INSERT INTO {table} DEFAULT VALUES")
    listed = ", ".join(map(quoted, values))
    places = ", ".join(f"%s::{written}" for _, written in values.values())
    return c.execute(f"INSERT INTO {table} ({listed}) VALUES ({places})", [one for one, _ in values.values()])


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def fill(c):
    """Some rows for each table that has none, tables that others refer to first. Returns how many tables have none at the end."""
    tables = c.execute("SELECT oid, oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition AND oid >= 16384 ORDER BY pg_class.oid").fetchall()
    shape = {table: (c.execute(COLUMNS, (oid,)).fetchall(), c.execute(KEYS, (oid,)).fetchall()) for oid, table in tables}
    lacking = [table for _, table in tables if c.execute(f"SELECT NOT EXISTS (SELECT FROM {table})").fetchone()[0]]
    while True:
        before = len(lacking)
        for table in list(lacking):
            for i in range(ROWS):
                for all_columns in (True, False):
                    try:
                        row(c, table, *shape[table], i, all_columns)
                    except psycopg.Error:
                        continue
                    break
            if c.execute(f"SELECT EXISTS (SELECT FROM {table})").fetchone()[0]:
                lacking.remove(table)
        if len(lacking) in (0, before):
            return len(lacking), len(tables)


def source(world, version, name):
    """The application's database, with rows, and its archives' paths."""
    server = world.server(version)

    def make():
        db = server.fresh(f"app_{name}")
        for path, text in texts(name).items():
            file = os.path.join(world.folder, "application.sql")
            with open(file, "w", encoding="utf-8") as f:
                f.write(text)
            r = server.program("psql", "-X", "-q", *server.where(db), "-f", file, check=False)
            # Some files say what others have said: what fails is not there, and not compared.
            errors = re.findall(rb"ERROR: .*", r.stderr)
            if errors:
                print(f"     {name} {version}: {len(errors)} errors in {os.path.basename(path)}, the first {errors[0].decode(errors='replace')[:100]}", flush=True)
        with server.connect(db) as c:
            c.execute("SET client_min_messages = error")
            if name in SESSIONS:
                c.execute(SESSIONS[name])
            without, tables = fill(c)
            assert tables > 0 and without * 3 <= tables, f"{name}: {without} of {tables} tables have no rows"
        paths = {form: world.archive(f"app-{name}-{version}-{form}", lambda p, f=form: server.archive(db, p, f)) for form in "cd"}
        server.fresh("oracle")
        server.pg_restore("oracle", paths["c"], "--exit-on-error")
        return paths, twins.catalogs(server, "oracle"), server.dump("oracle"), (tables, without)
    return server, world.once(("application", version, name), make)


def compare(world, version, name, runs):
    server, (paths, expected, dump, (tables, without)) = source(world, version, name)
    for form, jobs, flags in runs:
        what = f"{name} {version} {form} {jobs} jobs {' '.join(flags)}"
        server.fresh("target")
        run = firn(server, "target", paths[form], "--jobs", str(jobs), "--no-analyze", *flags).ok()
        assert "a rewrite failed" not in run.out, f"{what}: {run.out[-3000:]}"
        twins.compare(expected, twins.catalogs(server, "target"), what, run)
        same(dump, server.dump("target"), what)
    size = twins.size(expected)
    print(f"     {name} {version}: {tables} tables, {without} of them without rows; {len(runs)} runs; {size[0]} catalogs, {size[1]} columns, {size[2]} rows",
          flush=True)


def cases(world):
    seed = int(os.environ.get("FIRN_SEED") or random.SystemRandom().randrange(1 << 32))
    few = random.Random(seed)
    asked = os.environ.get("FIRN_CATALOGS")
    for name in some(2, list(APPLICATIONS) if asked else SMALL, few):
        for version in (OLD, NEW):
            runs = [("c", 1, ()), ("d", 4, ()), ("c", 8, ()), ("d", 3, (OFF,))] if asked else [("cd"[few.randrange(2)], few.randrange(1, 9), few.choice(((), (OFF,))))]
            yield f"application {name} {version}", lambda v=version, n=name, r=runs: compare(world, v, n, r)
