"""The extension's scripts: whoever has an earlier version gets by ALTER EXTENSION firn UPDATE what CREATE EXTENSION makes today, and keeps the tables.

Released versions are the tags v0.1.0 and so on of the repository. That a mistake would be found is shown in a repository of the test's own, with a version
that does not exist."""
import glob
import os
import re
import shutil
import subprocess
import tempfile

from golden import make
from harness.cluster import Cluster
from harness.tally import Missing

ROOT = make.ROOT
SQL = "crates/firn/sql"
CONTROL = "crates/firn/firn.control"


def git(repo, *args):
    return subprocess.check_output(["git", "-C", repo, "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false", *args], text=True, stderr=subprocess.DEVNULL)


def released(repo):
    """Versions by their tags, the oldest first."""
    try:
        tags = git(repo, "tag", "--list", "v[0-9]*").split()
    except (OSError, subprocess.CalledProcessError) as e:
        raise Missing(f"no repository: {e}") from e
    found = [tag[1:] for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    return sorted(found, key=lambda v: [int(n) for n in v.split(".")])


def at(repo, version, path):
    """A file as it was released."""
    return git(repo, "show", f"v{version}:{path}")


def version_of(repo):
    with open(os.path.join(repo, CONTROL)) as f:
        return re.search(r"default_version = '(.*)'", f.read())[1]


class Root(Cluster):
    """A server with files of PostgreSQL's and of extensions of its own."""

    def __init__(self, name):
        super().__init__(name, conf=make.CONF)

        def asked(what):
            return subprocess.check_output([os.environ["PG_CONFIG"], what], text=True).strip()

        places = [asked(f"--{what}") for what in ("bindir", "sharedir", "pkglibdir")]
        above = os.path.commonpath(places)
        if os.path.exists(os.path.join(above, ".firn-whole")):
            # A server that has its libraries with it (scripts/debian-server.sh).
            places += glob.glob(os.path.join(above, "lib", "*-linux-*"))

        def placed(source, target):
            # (Hard links where they can be made; what is replaced is unlinked first.)
            try:
                os.link(source, target)
            except OSError:
                shutil.copy(source, target)

        own = [os.path.join(self.root, "pg", os.path.relpath(place, above)) for place in places]
        for place, target in zip(places, own):
            if not os.path.exists(target):
                # (What a link leads to is looked for from the current folder: links of libraries stay links.)
                shutil.copytree(place, target, symlinks="-linux-" in place, copy_function=placed,
                                ignore=shutil.ignore_patterns("bitcode", "firn--*", "locale"), ignore_dangling_symlinks=True)
        self.bin, self.extension = own[0], os.path.join(own[1], "extension")
        self.env = dict(os.environ, LD_LIBRARY_PATH=own[2])
        self.own = False

    def run(self, program, *args, **kw):
        kw.setdefault("env", self.env)
        return super().run(program, *args, **kw)

    def install(self, repo):
        """The control file and scripts of a repository, and the first scripts of what was released from it."""
        for name in os.listdir(self.extension):
            if name.startswith("firn"):
                os.unlink(os.path.join(self.extension, name))
        shutil.copy(os.path.join(repo, CONTROL), self.extension)
        for name in os.listdir(os.path.join(repo, SQL)):
            shutil.copy(os.path.join(repo, SQL, name), self.extension)
        for version in released(repo):
            with open(os.path.join(self.extension, f"firn--{version}.sql"), "w") as f:
                f.write(at(repo, version, f"{SQL}/firn--{version}.sql"))
        for name in os.listdir(self.extension):
            if name.startswith("firn"):
                os.chmod(os.path.join(self.extension, name), 0o644)


# What the extension's members are, each as a line: nothing of it may differ.
DESCRIBED = """
WITH members AS (SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass WHERE d.deptype = 'e' AND extname = 'firn'),
of AS (SELECT m.*, pg_describe_object(classid, objid, 0) AS name FROM members m)
SELECT 'member ' || name FROM of
UNION ALL SELECT 'comment ' || name || ' ' || objsubid || ': ' || description FROM of JOIN pg_description d ON d.classoid = of.classid AND d.objoid = of.objid
UNION ALL SELECT 'function ' || pg_get_functiondef(p.oid) || concat_ws(' ', p.proacl::text, p.proowner::regrole, p.procost, p.prorows, p.prosupport, p.proconfig::text) FROM of JOIN pg_proc p ON p.oid = of.objid AND of.classid = 'pg_proc'::regclass
UNION ALL SELECT 'relation ' || concat_ws(' ', c.oid::regclass, c.relkind, c.relacl::text, c.relowner::regrole, c.reloptions::text, c.relpersistence, c.relrowsecurity, (SELECT amname FROM pg_am WHERE oid = c.relam),
    CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END) FROM of JOIN pg_class c ON c.oid = of.objid AND of.classid = 'pg_class'::regclass
UNION ALL SELECT 'column ' || concat_ws(' ', c.oid::regclass, a.attnum - (SELECT count(*) FROM pg_attribute x WHERE x.attrelid = c.oid AND x.attisdropped AND x.attnum < a.attnum), a.attname,
    format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attacl::text, a.attstorage, a.attidentity, a.attgenerated, a.attcollation, pg_get_expr(d.adbin, d.adrelid))
    FROM of JOIN pg_class c ON c.oid = of.objid AND of.classid = 'pg_class'::regclass JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
UNION ALL SELECT 'dropped column ' || concat_ws(' ', c.oid::regclass, a.attnum) FROM of JOIN pg_class c ON c.oid = of.objid AND of.classid = 'pg_class'::regclass AND c.relkind = 'r'
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attisdropped
UNION ALL SELECT 'constraint ' || concat_ws(' ', n.conrelid::regclass, n.conname, pg_get_constraintdef(n.oid)) FROM of JOIN pg_constraint n ON n.conrelid = of.objid AND of.classid = 'pg_class'::regclass
UNION ALL SELECT 'index ' || pg_get_indexdef(i.indexrelid) FROM of JOIN pg_index i ON i.indrelid = of.objid AND of.classid = 'pg_class'::regclass
UNION ALL SELECT 'rule or trigger ' || concat_ws(' ', t.tgrelid::regclass, pg_get_triggerdef(t.oid)) FROM of JOIN pg_trigger t ON t.tgrelid = of.objid AND of.classid = 'pg_class'::regclass
UNION ALL SELECT 'access method ' || concat_ws(' ', amname, amtype, amhandler) FROM of JOIN pg_am ON pg_am.oid = of.objid AND of.classid = 'pg_am'::regclass
UNION ALL SELECT 'wrapper ' || concat_ws(' ', fdwname, fdwhandler::regproc, fdwvalidator::regproc, fdwacl::text, fdwoptions::text) FROM of JOIN pg_foreign_data_wrapper f ON f.oid = of.objid AND of.classid = 'pg_foreign_data_wrapper'::regclass
UNION ALL SELECT 'depends ' || concat_ws(' ', of.name, d.deptype, pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)) FROM of JOIN pg_depend d ON d.classid = of.classid AND d.objid = of.objid
UNION ALL SELECT 'first privileges ' || concat_ws(' ', of.name, i.objsubid, i.initprivs::text) FROM of JOIN pg_init_privs i ON i.classoid = of.classid AND i.objoid = of.objid
UNION ALL SELECT 'schema ' || concat_ws(' ', nspname, nspacl::text) FROM pg_namespace WHERE nspname = 'firn'
UNION ALL SELECT 'extension ' || concat_ws(' ', extversion, extrelocatable, extconfig::text, extcondition::text, extnamespace::regnamespace) FROM pg_extension WHERE extname = 'firn'
UNION ALL SELECT 'default privileges ' || defaclacl::text FROM pg_default_acl
ORDER BY 1"""


def described(cluster, database):
    with cluster.connect(database) as c:
        return [line for line, in c.execute(DESCRIBED).fetchall()]


def updates(cluster, repo):
    """Each released version updated is what is installed today; its tables live on."""
    versions, now = released(repo), version_of(repo)
    for version in versions:
        # What was released stays as it was: somebody has it.
        for name in git(repo, "ls-tree", "--name-only", f"v{version}", f"{SQL}/").split():
            path = os.path.join(repo, name)
            assert version != now and name.endswith(f"firn--{version}.sql") or os.path.exists(path), f"{name} was released with {version} and is gone"
            if os.path.exists(path):
                with open(path) as f:
                    assert f.read() == at(repo, version, name), f"{name} was released with {version} and has changed"
    cluster.install(repo)
    number = getattr(cluster, "databases", 0)
    with cluster.connect() as c:
        c.execute(f"CREATE DATABASE fresh{number}")
    with cluster.connect(f"fresh{number}") as c:
        c.execute("CREATE EXTENSION firn")
    fresh = described(cluster, f"fresh{number}")
    assert len(fresh) > 50 and f"extension {now} f firn" in fresh, fresh[:5]
    for version in [v for v in versions if v != now]:
        number += 1
        cluster.databases = number + 1
        with cluster.connect() as c:
            c.execute(f"CREATE DATABASE updated{number}")
        with cluster.connect(f"updated{number}") as c:
            path = c.execute("SELECT path FROM pg_extension_update_paths('firn') WHERE source = %s AND target = %s", (version, now)).fetchone()
            assert path and path[0], f"no script leads from {version} to {now}"
            c.execute(f"CREATE EXTENSION firn VERSION '{version}'")
            c.execute("SET firn.bulk_threshold = 10; CREATE TABLE t (id int PRIMARY KEY, v text) USING firn; INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 1000) i; DELETE FROM t WHERE id % 7 = 0")
            sums = "SELECT count(*), sum(id), max(v) FROM t"
            was = c.execute(sums).fetchone()
            c.execute("ALTER EXTENSION firn UPDATE")
            assert c.execute(sums).fetchone() == was
            c.execute("UPDATE t SET v = 'changed' WHERE id % 2 = 0; SELECT firn.compact('t')")
            assert not c.execute("SELECT * FROM firn.check('t')").fetchall()
            c.execute("DROP TABLE t")
        updated = described(cluster, f"updated{number}")
        differing = sorted(set(fresh) ^ set(updated))
        assert not differing, (f"{version} updated to {now}", [("installed" if line in fresh else "updated", line) for line in differing])
    cluster.databases = number + 1


def consistent(repo):
    """The version stands in several places."""
    now = version_of(repo)
    with open(os.path.join(repo, "Cargo.toml")) as f:
        assert re.search(r'^version = "(.*)"', f.read(), re.M)[1] == now
    names = sorted(os.listdir(os.path.join(repo, SQL)))
    assert [n for n in names if n.count("--") == 1] == [f"firn--{now}.sql"], names
    # A chain: each version that is not the newest has one script to the next.
    steps = [re.fullmatch(r"firn--([\d.]+)--([\d.]+)\.sql", n) for n in names if n.count("--") == 2]
    assert all(steps) and len({s[1] for s in steps}) == len(steps), names
    for version in released(repo):
        assert not version.endswith(".0") or os.path.exists(os.path.join(repo, "tests/golden", version, "cluster.json")), f"no golden files of {version}: tests/golden/make.py"


MORE = """
CREATE FUNCTION firn.compact_all() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT sum(firn.compact(relation))::bigint FROM firn.tables; END;
COMMENT ON FUNCTION firn.compact_all() IS 'all of them';
REVOKE ALL ON FUNCTION firn.compact_all() FROM PUBLIC;
CREATE TABLE firn.notes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, said text NOT NULL DEFAULT '') USING heap;
GRANT SELECT ON firn.notes TO PUBLIC;
"""


def made_up(cluster):
    """The check itself, on a version that does not exist: it takes what is right, and finds each thing that an update script forgets."""
    with tempfile.TemporaryDirectory(prefix="firn-scripts-") as repo:
        os.makedirs(os.path.join(repo, SQL))
        shutil.copy(os.path.join(ROOT, CONTROL), os.path.join(repo, CONTROL))
        now = version_of(ROOT)
        first = os.path.join(repo, SQL, f"firn--{now}.sql")
        shutil.copy(os.path.join(ROOT, SQL, f"firn--{now}.sql"), first)
        git(repo, "init", "-q")
        git(repo, "add", ".")
        git(repo, "commit", "-qm", "a release")
        git(repo, "tag", f"v{now}")
        updates(cluster, repo)
        assert released(repo) == [now]
        # The next version.
        with open(os.path.join(repo, CONTROL)) as f:
            control = f.read()
        with open(os.path.join(repo, CONTROL), "w") as f:
            f.write(control.replace(f"'{now}'", "'99.0.0'"))
        with open(first) as f:
            text = f.read()
        os.unlink(first)
        changed = text.replace("AND has_table_privilege(c.oid, 'SELECT')", "AND has_table_privilege(c.oid, 'SELECT') AND c.relname <> ''").replace("dry_run boolean DEFAULT true", "dry_run boolean DEFAULT NULL")
        view = re.search(r"CREATE VIEW firn\.tables.*?;", changed, re.S)[0].replace("CREATE VIEW", "CREATE OR REPLACE VIEW")
        repair = re.search(r"CREATE FUNCTION firn\.repair.*?;", changed, re.S)[0].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
        assert changed != text
        with open(os.path.join(repo, SQL, "firn--99.0.0.sql"), "w") as f:
            f.write(changed + MORE)
        statements = [view, repair, *[s + ";" for s in re.split(r";\n", MORE.replace("; END;", "\x00")) if s.strip()]]
        statements = [s.replace("\x00", "; END;") for s in statements]
        script = os.path.join(repo, SQL, f"firn--{now}--99.0.0.sql")

        def write(parts):
            with open(script, "w") as f:
                f.write("\n".join(parts))

        write(statements)
        updates(cluster, repo)
        for forgotten in range(len(statements)):
            parts = statements[:forgotten] + statements[forgotten + 1:]
            if "CREATE FUNCTION firn.compact_all" in statements[forgotten] or "CREATE TABLE" in statements[forgotten]:
                name = "compact_all" if "FUNCTION" in statements[forgotten] else "notes"
                parts = [s for s in parts if name not in s]
            write(parts)
            found(lambda: updates(cluster, repo), f"{now} updated to 99.0.0", statements[forgotten])
        os.unlink(script)
        found(lambda: updates(cluster, repo), "no script leads from", "the whole script")
        write(statements)
        # What was released has changed.
        with open(first, "w") as f:
            f.write(text + "-- and more\n")
        found(lambda: updates(cluster, repo), "has changed", "a released script")


def found(body, what, forgotten):
    try:
        body()
    except AssertionError as e:
        assert what in str(e), (forgotten, str(e)[:1000])
    else:
        raise AssertionError(f"nobody missed {forgotten}")


def run(tally, pattern):
    cases = {"versions agree": lambda _: consistent(ROOT), "released versions are updated": lambda c: updates(c, ROOT), "a version that does not exist": made_up}
    chosen = {f"golden scripts: {name}": body for name, body in cases.items() if pattern in f"golden scripts: {name}"}
    if not chosen:
        return
    cluster = Root("golden-scripts").create()
    try:
        for name, body in chosen.items():
            tally.case(name, lambda: body(cluster))
    finally:
        cluster.destroy()
