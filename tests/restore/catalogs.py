"""Partitions made by firn's rewrites and by pg_restore: the catalogs are the same, row by row, but for oids."""
from restore.common import NEW, OLD, firn

PARTITIONS = 300
SOURCE = """
CREATE ROLE catalog_owner;
CREATE SCHEMA s;
CREATE DOMAIN s.positive AS int CHECK (VALUE > 0);
CREATE FUNCTION s.sane(text) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT $1 <> ''''';
CREATE FUNCTION s.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TABLE s.dim (v text PRIMARY KEY);
CREATE TABLE s."Root" (id s.positive NOT NULL, d date NOT NULL DEFAULT now(), v text REFERENCES s.dim,
    twice int GENERATED ALWAYS AS (id * 2) STORED, CONSTRAINT sane CHECK (s.sane(v)), CHECK (id < 1000000), PRIMARY KEY (id, d))
    PARTITION BY RANGE (d);
CREATE INDEX root_v ON s."Root" (v);
CREATE UNIQUE INDEX root_u ON s."Root" (d, id) INCLUDE (v);
CREATE TRIGGER note BEFORE INSERT ON s."Root" FOR EACH ROW EXECUTE FUNCTION s.note();
ALTER TABLE s."Root" OWNER TO catalog_owner;
GRANT SELECT ON s."Root" TO PUBLIC;
"""
# What names things by oids gets other names. Left out: connoinherit of keys, which means nothing; it is false in a source made by
# PARTITION OF and after firn, true after pg_restore, which makes the key before the partition is one.
DIGITS = "regexp_replace({}, '[0-9][0-9][0-9][0-9]+', 'N', 'g')"
OBJECT = DIGITS.format("pg_describe_object({}, {}, {})")
QUERIES = {
    "pg_class": "SELECT " + DIGITS.format("oid::regclass::text") + """, relkind, relispartition, relhassubclass, relhasindex,
        relchecks, relnatts, relhastriggers, relhasrules, relpersistence, relowner::regrole, relacl, relam, reloptions,
        reltablespace, relreplident, reltoastrelid <> 0, pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid >= 16384""",
    "pg_attribute": "SELECT " + DIGITS.format("attrelid::regclass::text") + """, attname, attnum, atttypid::regtype, atttypmod,
        attnotnull, attislocal, attinhcount, attstorage, attcompression, atthasdef, attidentity, attgenerated, attcollation
        FROM pg_attribute WHERE attrelid >= 16384""",
    "pg_attrdef": "SELECT adrelid::regclass, adnum, pg_get_expr(adbin, adrelid) FROM pg_attrdef",
    "pg_constraint": """SELECT c.conname, c.conrelid::regclass, c.contype, c.condeferrable, c.convalidated, c.conislocal, c.coninhcount,
        CASE WHEN c.contype NOT IN ('p', 'u') THEN c.connoinherit END, c.conkey, c.conindid::regclass, c.confrelid::regclass, c.contypid::regtype, p.conname,
        p.conrelid::regclass, pg_get_constraintdef(c.oid) FROM pg_constraint c LEFT JOIN pg_constraint p ON p.oid = c.conparentid
        WHERE c.oid >= 16384""",
    "pg_index": "SELECT " + DIGITS.format("indexrelid::regclass::text") + ", " + DIGITS.format("indrelid::regclass::text") + """,
        indisunique, indisprimary, indisvalid, indisready, indislive, indimmediate, indkey::text, indoption::text,
        indnkeyatts FROM pg_index WHERE indrelid >= 16384""",
    "pg_inherits": "SELECT inhrelid::regclass, inhparent::regclass, inhseqno, inhdetachpending FROM pg_inherits",
    "pg_partitioned_table": "SELECT partrelid::regclass, partstrat, partdefid::regclass, partattrs::text FROM pg_partitioned_table",
    "pg_trigger": "SELECT t.tgrelid::regclass, " + DIGITS.format("t.tgname") + ", p.tgrelid::regclass, " + DIGITS.format("p.tgname")
        + """, t.tgenabled, t.tgisinternal, t.tgtype, t.tgconstrrelid::regclass, t.tgdeferrable
        FROM pg_trigger t LEFT JOIN pg_trigger p ON p.oid = t.tgparentid""",
    "pg_depend": "SELECT " + OBJECT.format("classid", "objid", "objsubid") + ", " + OBJECT.format(
        "refclassid", "refobjid", "refobjsubid") + ", deptype FROM pg_depend WHERE objid >= 16384",
    "pg_shdepend": "SELECT " + OBJECT.format("classid", "objid", "objsubid")
        + ", refobjid::regrole, deptype FROM pg_shdepend WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())",
    "pg_type": "SELECT oid::regtype, typtype, typrelid::regclass, typowner::regrole FROM pg_type WHERE oid >= 16384",
}


def catalogs(server, db):
    """All rows that restores of the same archive must have in common, as text."""
    found = {}
    with server.connect(db) as c:
        c.execute("SET search_path = ''")
        for name, query in QUERIES.items():
            found[name] = sorted(str(row) for row in c.execute(query).fetchall())
    return found


def source(server):
    db = server.fresh("catalogs")
    with server.connect(db) as c:
        c.execute("DROP ROLE IF EXISTS catalog_owner")
        c.execute(SOURCE)
        for n in range(PARTITIONS):
            # Names as the server gives them, and others; one gap between the ranges.
            low, high = f"DATE '2000-01-01' + {5 * n + (n == 150)}", f"DATE '2000-01-01' + {5 * n + 5}"
            c.execute(f'CREATE TABLE s."part {n}" PARTITION OF s."Root" FOR VALUES FROM ({low}) TO ({high})')
            c.execute(f'ALTER TABLE s."part {n}" OWNER TO catalog_owner')
        c.execute('CREATE TABLE s.rest PARTITION OF s."Root" DEFAULT; ALTER TABLE s.rest OWNER TO catalog_owner')
        c.execute('ALTER INDEX s."part 7_pkey" RENAME TO "Odd"; ALTER INDEX s."part 8_v_idx" RENAME TO odd_too')
        c.execute("INSERT INTO s.dim VALUES ('a'); INSERT INTO s.\"Root\" VALUES (1, '2000-02-02', 'a'), (2, '1999-01-01', 'a')")
    return db


def compare(world, version):
    server = world.server(version)
    path = world.archive(f"catalogs-{version}", lambda p: server.archive(source(server), p, "c"))
    server.fresh("oracle")
    server.program("pg_restore", *server.where("oracle"), path)
    expected = catalogs(server, "oracle")
    for flags in ((), ("--disable-rule=staged-partitions",), ("--disable-rule=late-checks,partition-indexes",),
                  ("--disable-rule=partition-of",), ("--schema-only",)):
        server.fresh("target")
        firn(server, "target", path, "--jobs", "3", *flags).ok()
        got = catalogs(server, "target")
        for name, rows in expected.items():
            missing, more = sorted(set(rows) - set(got[name])), sorted(set(got[name]) - set(rows))
            assert not missing and not more and len(rows) == len(got[name]), \
                f"{flags}: {name} of {len(rows)} and {len(got[name])} rows\n- " + "\n- ".join(missing[:5]) + "\n+ " + "\n+ ".join(more[:5])
        with server.connect("target") as c:
            # The descriptor of the parent, with all bounds in order, serves new rows and refuses new overlaps.
            if "--schema-only" not in flags:
                c.execute("INSERT INTO s.\"Root\" SELECT n, DATE '2000-01-01' + n, 'a' FROM generate_series(1, 1499) n")
                assert c.execute("SELECT count(DISTINCT tableoid) FROM s.\"Root\"").fetchone()[0] == PARTITIONS + 1
            try:
                c.execute("CREATE TABLE s.over PARTITION OF s.\"Root\" FOR VALUES FROM ('2003-01-01') TO ('2003-01-02')")
                raise AssertionError("an overlapping partition was taken")
            except Exception as e:
                assert getattr(e, "sqlstate", None) == "42P17", e


def cases(world):
    for version in (OLD, NEW):
        yield f"catalogs {version}", lambda v=version: compare(world, v)
