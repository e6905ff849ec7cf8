"""Two databases of one server are twins: all catalogs are equal, row by row and column by column, but for oids.

Which catalogs there are, which columns they have and what these refer to is read from the server: nothing of a version that
nobody here knows is left out. Oids are replaced by what they stand for.
"""
import re
from collections import Counter

from restore import counted
from restore.common import BLOCK

# Storage and bookkeeping: where files are, how full they were when somebody counted, ages of rows.
VOLATILE = {
    "pg_class": {"relfilenode", "relpages", "reltuples", "relallvisible", "relallfrozen", "relfrozenxid", "relminmxid"},
    # The server builds them anew for whoever asks.
    "pg_attribute": {"attcacheoff"},
}
# Counted by ANALYZE, whoever runs it when; and the definitions' own texts stand beside these trees.
LEFT_OUT = {"pg_statistic", "pg_statistic_ext_data"}
# What shared catalogs hold of one database.
SHARED = {"pg_shdepend": "dbid", "pg_db_role_setting": "setdatabase", "pg_subscription": "subdbid"}
# Names that the server makes of oids: of TOAST tables and of constraints' triggers. No other number is passed over.
OIDS = "'(?<=pg_toast_|_ConstraintTrigger_|_ConstraintTrigger_[ac]_)[0-9]+', 'N', 'g'"
# Expression trees as text.
TREES = {
    ("pg_attrdef", "adbin"): "pg_get_expr(t.adbin, t.adrelid)",
    ("pg_class", "relpartbound"): "pg_get_expr(t.relpartbound, t.oid)",
    ("pg_constraint", "conbin"): "pg_get_constraintdef(t.oid)",
    ("pg_index", "indexprs"): "pg_get_expr(t.indexprs, t.indrelid)",
    ("pg_index", "indpred"): "pg_get_expr(t.indpred, t.indrelid)",
    ("pg_partitioned_table", "partexprs"): "pg_get_expr(t.partexprs, t.partrelid)",
    ("pg_policy", "polqual"): "pg_get_expr(t.polqual, t.polrelid)",
    ("pg_policy", "polwithcheck"): "pg_get_expr(t.polwithcheck, t.polrelid)",
    ("pg_proc", "proargdefaults"): "pg_get_function_arguments(t.oid)",
    ("pg_proc", "prosqlbody"): "pg_get_function_sqlbody(t.oid)",
    ("pg_publication_rel", "prqual"): "pg_get_expr(t.prqual, t.prrelid)",
    ("pg_rewrite", "ev_qual"): "pg_get_ruledef(t.oid)",
    ("pg_rewrite", "ev_action"): "pg_get_ruledef(t.oid)",
    ("pg_statistic_ext", "stxexprs"): "pg_get_statisticsobjdef(t.oid)",
    ("pg_trigger", "tgqual"): f"regexp_replace(pg_get_triggerdef(t.oid), {OIDS})",
    ("pg_type", "typdefaultbin"): "pg_get_expr(t.typdefaultbin, 0)",
}
# The one difference that may be: connoinherit of keys, which means nothing. It is false in a source made by PARTITION OF and
# after firn, true after pg_restore, which makes the key before the partition is one.
INSTEAD = {
    ("pg_constraint", "connoinherit"): "CASE WHEN t.contype NOT IN ('p', 'u') THEN t.connoinherit END",
    # PostgreSQL 15.20 stamps columns with a number of its own.
    ("pg_attribute", "attoptions"): "ARRAY(SELECT o FROM unnest(t.attoptions) o WHERE o NOT LIKE 'pg_attver=%')",
    # Fields of large objects keep their numbers.
    ("pg_largeobject", "loid"): "t.loid",
    ("pg_largeobject_metadata", "oid"): "t.oid",
    # Labels of enums are no objects of their own; their order has a column.
    ("pg_enum", "oid"): "NULL",
}
NAMES = f"regexp_replace({{}}::text, {OIDS})"


def describe(catalog, oid, column="0"):
    return NAMES.format(f"pg_describe_object({catalog}, {oid}, {column})")


def queries(c):
    """Catalog to (its columns as expressions, where they come from)."""
    refers = {}
    for table, columns, target, array in c.execute(
            "SELECT fktable::text, fkcols, pktable::text, is_array FROM pg_get_catalog_foreign_keys() "
            "WHERE cardinality(fkcols) = 1 AND pkcols = '{oid}'").fetchall():
        refers[table, columns[0]] = target, array
    found = {}
    for catalog, column, kind in c.execute(
            "SELECT c.relname, a.attname, a.atttypid::regtype::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
            "WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped "
            "AND (NOT c.relisshared OR c.relname = ANY (%s)) ORDER BY 1, a.attnum", (list(SHARED),)).fetchall():
        if catalog in LEFT_OUT or column in VOLATILE.get(catalog, ()) or SHARED.get(catalog) == column:
            continue
        value = f't."{column}"'
        if (catalog, column) in INSTEAD:
            value = INSTEAD[catalog, column]
        elif (catalog, column) in TREES:
            value = TREES[catalog, column]
        elif column == "oid":
            value = describe(f"'{catalog}'::regclass", value)
        elif (catalog, column) in refers:
            target, array = refers[catalog, column]
            one = describe(f"'{target}'::regclass", "u.o")
            value = f"ARRAY(SELECT {one} FROM unnest({value}::oid[]) WITH ORDINALITY u(o, n) ORDER BY n)" if array else \
                f"(SELECT {one} FROM (VALUES ({value}::oid)) u(o) WHERE o <> 0)"
        elif column in ("objid", "objoid", "refobjid") and catalog not in ("pg_shdepend",) or (catalog, column) == ("pg_shdepend", "objid"):
            prefix = "ref" if column == "refobjid" else ""
            of = {"objoid": "classoid"}.get(column, prefix + "classid")
            sub = f't."{prefix}objsubid"'
            value = describe(f't."{of}"', value, sub)
        elif (catalog, column) == ("pg_shdepend", "refobjid"):
            value = describe("t.refclassid", value)
        elif column in ("classid", "refclassid", "classoid"):
            value += "::regclass"
        elif kind in ("name", "text"):
            value = NAMES.format(value)
        found.setdefault(catalog, []).append((column, value))
    return found


def catalogs(server, db):
    """Catalog to (its columns, its rows with how often each is there), all as text."""
    with server.connect(db) as c:
        c.execute("SET search_path = ''; SET extra_float_digits = 3")
        read = queries(c)
        made = " UNION ALL ".join(f"SELECT count(*) AS n FROM pg_catalog.{catalog} t {of_database(catalog, 'AND')} t.oid >= 16384"
                                  for catalog, columns in read.items() if any(name == "oid" for name, _ in columns))
        found = counted.Catalogs(server.version, int(c.execute(f"SELECT sum(n) FROM ({made}) o").fetchone()[0]))
        for catalog, columns in read.items():
            where = of_database(catalog)
            values = ", ".join(f"({value})::text" for _, value in columns)
            rows = c.execute(f"SELECT {values} FROM pg_catalog.{catalog} t {where}").fetchall()
            found[catalog] = [name for name, _ in columns], Counter(rows)
        # A sequence's state stands in no catalog.
        rows = c.execute("SELECT format('SELECT %L, last_value, is_called FROM %s', oid::regclass, oid::regclass) "
                         "FROM pg_class WHERE relkind = 'S' AND oid >= 16384").fetchall()
        states = c.execute(" UNION ALL ".join(row[0] for row in rows)).fetchall() if rows else []
        found["sequences"] = ["name", "last_value", "is_called"], Counter(tuple(map(str, row)) for row in states)
        return found


def of_database(catalog, more=""):
    """The condition that chooses this database's rows, with room for another one."""
    if catalog in SHARED:
        return f"WHERE t.{SHARED[catalog]} = (SELECT oid FROM pg_database WHERE datname = current_database()) {more}"
    return "WHERE" if more else ""


def compare(expected, got, what="", run=None):
    """Fail with the first differences, told by column. `run` is the restore that has made the second."""
    wrong = []
    for catalog, (columns, rows) in expected.items():
        missing, more = sorted((rows - got[catalog][1]).elements(), key=str), sorted((got[catalog][1] - rows).elements(), key=str)
        if not missing and not more:
            continue
        wrong.append(f"{catalog}: {len(missing)} rows are missing, {len(more)} too many")
        for row in missing[:4]:
            # The row that comes nearest.
            near = max(more, key=lambda other: sum(a == b for a, b in zip(row, other)), default=None)
            if near is None:
                wrong.append(f"    - {shown(columns, row)}")
            else:
                names = [f"{n}: {a!r} is {b!r}" for n, a, b in zip(columns, row, near) if a != b]
                wrong.append(f"    {shown(columns, row)[:160]}\n        " + "\n        ".join(names)[:900])
        if not missing:
            wrong += [f"    + {shown(columns, row)}" for row in more[:4]]
    counted.add(got, run, bool(wrong))
    assert not wrong, f"not twins {what}\n" + "\n".join(wrong)[:6000]


# What is put off until --resume when anything failed (docs/decisions/0023), by what catalogs' rows and pg_dump's blocks call it.
PUT_OFF = re.compile(r"\b(event trigger|default privileges) ")
PUT_OFF_BLOCKS = re.compile(rb"Type: (EVENT TRIGGER|DEFAULT ACL);|COMMENT ON EVENT TRIGGER ")
# Checks that old rows need not meet, of tables that lack rows: the name of one, and of one that has a comment.
UNCHECKED = re.compile(rb"Type: CHECK CONSTRAINT;.*\bADD CONSTRAINT (\S+) CHECK .* NOT VALID;", re.S)
COMMENTED = re.compile(rb"\bCOMMENT ON CONSTRAINT (\S+) ON ")


def but_for_put_off(run, expected, dump, got, found):
    """What pg_restore has made, catalogs and dump, without what a run that went on after errors says that it has put off."""
    if not puts_off(run):
        return expected, dump
    kept = {}
    for catalog, (columns, rows) in expected.items():
        missing = rows - got[catalog][1]
        kept[catalog] = columns, rows - Counter({row: n for row, n in missing.items() if any(PUT_OFF.search(str(cell)) for cell in row)})
    return kept, blocks_but_for_put_off(run, dump, found)


def blocks_but_for_put_off(run, dump, found, unchecked=False):
    """The same of the dump alone; with checks that are NOT VALID on request."""
    if not puts_off(run):
        return dump
    body, *end = dump.rpartition(b"--\n-- PostgreSQL database dump complete")
    (first, *blocks), there = BLOCK.split(body), set(BLOCK.split(found.rpartition(end[0])[0]))
    missing = [b for b in blocks if b not in there]
    checks = {m[1] for m in map(UNCHECKED.search, missing) if m} if unchecked else set()

    def is_put_off(block):
        name = UNCHECKED.search(block) or COMMENTED.search(block)
        return PUT_OFF_BLOCKS.search(block) or name and name[1] in checks
    return b"".join([first, *(b"--\n-- Name: " + b for b in blocks if b in there or not is_put_off(b)), *end])


def puts_off(run):
    return "what may only come after it is skipped, too, until --resume" in run.out


def shown(columns, row):
    """What of a row is worth showing."""
    pairs = [f"{name}={value}" for name, value in zip(columns, row) if value not in (None, "", "f", "0", "{}")]
    return re.sub(r"\s+", " ", " ".join(pairs))[:600]


def size(found):
    """(catalogs, columns, rows) that were compared."""
    return len(found), sum(len(columns) for columns, _ in found.values()), sum(sum(rows.values()) for _, rows in found.values())
