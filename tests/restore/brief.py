"""What of the catalogs a fault in a restore could change, without that which initdb made: quick to read. All of them: twins.py."""

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
