//! Whether partitions may be made below staging parents on this server: tried, not believed.
//!
//! A small partitioned table is made twice, each time in a transaction that is rolled back: by plain DDL, and by the rule, with the
//! code that restores by it. All rows of all catalogs that the two transactions left are compared, by the columns that this
//! server's catalogs have. See "Staged partitions" in ../plan/README.md.

use crate::archive::{Entry, Toc};
use crate::error::{ErrorKind, Result};
use crate::pg::Connection;
use crate::plan::family::{Family, IndexMode, Member};
use crate::plan::render::{Refused, Renderer, Settings, Style, SCHEMA};
use crate::plan::{Group, Plan, Step, Work};

/// Versions whose sources were read for what the rule updates.
pub const KNOWN: std::ops::RangeInclusive<u32> = 15..=18;

/// What came out.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Both ways give the same catalogs.
    Same,
    /// The rule must not be used, for a reason.
    Off(String),
}

/// Try it. An error only if the connection breaks.
pub fn probe(connection: &Connection) -> Result<Verdict> {
    let major = connection.server_version() / 10_000;
    if !KNOWN.contains(&major) {
        return Ok(Verdict::Off(format!("version {major} of PostgreSQL is not known to it")));
    }
    let mut tried = Vec::new();
    for staged in [false, true] {
        let found = made(connection, staged);
        // Ends the transaction, also one that failed.
        connection.run(b"ROLLBACK")?;
        match found {
            Ok(rows) => tried.push(rows),
            Err(e) if e.kind == ErrorKind::Connection => return Err(e),
            Err(e) => return Ok(Verdict::Off(format!("a trial failed: {}", e.message))),
        }
    }
    let [plain, staged] = &tried[..] else { return Ok(Verdict::Off("a trial failed".into())) };
    let differing = plain
        .iter()
        .find(|row| !staged.contains(row))
        .or_else(|| staged.iter().find(|row| !plain.contains(row)));
    Ok(match differing {
        None if plain.len() == staged.len() && !plain.is_empty() => Verdict::Same,
        None => {
            Verdict::Off("a trial left other rows in the catalogs than plain statements".into())
        }
        Some(row) => {
            let catalog = row.split(' ').next().unwrap_or_default();
            let reason = "a trial left other rows in the catalogs than plain statements";
            Verdict::Off(format!("{reason}, first in {catalog}"))
        }
    })
}

/// The rows that making the table leaves. The transaction stays open.
fn made(connection: &Connection, staged: bool) -> Result<Vec<String>> {
    let mut sql = format!("BEGIN; CREATE SCHEMA {SCHEMA};\n").into_bytes();
    sql.extend(statements(connection.server_version(), staged));
    connection.run(&sql)?;
    let columns = connection.query(COLUMNS.as_bytes())?;
    let mut query = String::new();
    let mut at = 0;
    while at < columns.len() {
        let catalog = columns.text(at, 0);
        let mut values = Vec::new();
        let begin = at;
        while at < columns.len() && columns.text(at, 0) == catalog {
            let text = |n| columns.text(at, n);
            values.extend(value(&catalog, &text(1), &text(2), &text(3), columns.flag(at, 4)));
            at += 1;
        }
        let shared = match columns.text(begin, 5).as_str() {
            "" => String::new(),
            column => format!(
                " AND t.{column} = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ),
        };
        if begin > 0 {
            query += " UNION ALL ";
        }
        // Rows of this transaction and its subtransactions, which are not over; others that began later may be: an autovacuum that has
        // analyzed a catalog.
        query += &format!(
            "SELECT concat('{catalog} ', ROW({})::text) FROM pg_catalog.{catalog} t \
             WHERE age(t.xmin) <= age(pg_current_xact_id()::xid) \
             AND pg_xact_status((pg_current_xact_id()::text::bigint + age(pg_current_xact_id()::xid) - age(t.xmin))::text::xid8) \
                 = 'in progress'{shared}",
            values.join(", ")
        );
    }
    let settings = "SET LOCAL search_path = pg_catalog; SET LOCAL jit = off; SET LOCAL max_parallel_workers_per_gather = 0;";
    connection.run(settings.as_bytes())?;
    let rows = connection.query(query.as_bytes())?;
    let mut rows: Vec<String> = (0..rows.len()).map(|r| rows.text(r, 0)).collect();
    rows.sort_unstable();
    Ok(rows)
}

/// All columns of all catalogs that a database has of its own: catalog, column, type, the catalog whose oids it holds, as an array,
/// and in catalogs of all databases the column that names the database.
const COLUMNS: &str = "SELECT c.relname, a.attname, a.atttypid::pg_catalog.regtype, f.target, f.is_array, \
    CASE c.relname WHEN 'pg_shdepend' THEN 'dbid' WHEN 'pg_db_role_setting' THEN 'setdatabase' END \
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid \
    LEFT JOIN (SELECT DISTINCT ON (fktable, fkcols) fktable, fkcols, is_array, pktable::pg_catalog.text AS target \
        FROM pg_catalog.pg_get_catalog_foreign_keys() \
        WHERE pkcols OPERATOR(pg_catalog.=) '{oid}'::pg_catalog.text[]) f \
        ON f.fktable OPERATOR(pg_catalog.=) c.oid \
        AND f.fkcols OPERATOR(pg_catalog.=) ARRAY[a.attname::pg_catalog.text] \
    WHERE c.relnamespace OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace \
    AND c.relkind OPERATOR(pg_catalog.=) 'r'::pg_catalog.\"char\" \
    AND a.attnum OPERATOR(pg_catalog.>) 0::pg_catalog.int2 AND NOT a.attisdropped \
    AND (NOT c.relisshared OR c.relname OPERATOR(pg_catalog.=) 'pg_shdepend'::pg_catalog.name \
        OR c.relname OPERATOR(pg_catalog.=) 'pg_db_role_setting'::pg_catalog.name) \
    ORDER BY 1, a.attnum";

/// Where files are and how full they were: not the same for any two tables.
const VOLATILE: [&str; 7] = [
    "relfilenode",
    "relpages",
    "reltuples",
    "relallvisible",
    "relallfrozen",
    "attcacheoff",
    // Options that some builds stamp columns with.
    "attoptions",
];

/// Names that the server makes of oids: of TOAST tables and of constraints' triggers. All other numbers count.
const OIDS: &str = "'(?<=pg_toast_|_ConstraintTrigger_|_ConstraintTrigger_[ac]_)[0-9]+', 'N', 'g'";

/// A column's value with names in place of oids; `None` for what cannot be the same.
fn value(catalog: &str, column: &str, kind: &str, target: &str, array: bool) -> Option<String> {
    if VOLATILE.contains(&column) || kind == "xid" {
        return None;
    }
    let described = |class: &str, oid: &str, column: &str| {
        format!("regexp_replace(pg_describe_object({class}, {oid}, {column}), {OIDS})")
    };
    let own = format!("t.\"{column}\"");
    Some(match (column, kind) {
        ("oid", _) => described(&format!("'{catalog}'::regclass"), &own, "0"),
        ("objid" | "objoid" | "refobjid", "oid") => {
            let prefix = if column == "refobjid" { "ref" } else { "" };
            let class =
                if column == "objoid" { "classoid".into() } else { format!("{prefix}classid") };
            let part = match (catalog, prefix) {
                ("pg_shdepend", "ref") => "0".to_string(),
                _ => format!("t.{prefix}objsubid"),
            };
            described(&format!("t.{class}"), &own, &part)
        }
        _ if !target.is_empty() && array => {
            let one = described(&format!("'{target}'::regclass"), "u.o", "0");
            format!(
                "ARRAY(SELECT {one} FROM unnest({own}::oid[]) WITH ORDINALITY u(o, n) ORDER BY n)"
            )
        }
        _ if !target.is_empty() => {
            let one = described(&format!("'{target}'::regclass"), &own, "0");
            format!("CASE WHEN {own} <> 0 THEN {one} END")
        }
        // Where in a statement an expression stood.
        (_, "pg_node_tree") => {
            format!("regexp_replace({own}::text, ':location -?[0-9]+', '', 'g')")
        }
        (_, "name" | "text") => format!("regexp_replace({own}::text, {OIDS})"),
        _ => own,
    })
}

/// What makes the table, and what is done to it afterwards.
fn statements(version: u32, staged: bool) -> Vec<u8> {
    let (toc, plan) = shape(version, staged);
    let renderer = Renderer {
        toc: &toc,
        plan: &plan,
        style: Style::default(),
        role: None,
        refused: Refused::default(),
    };
    let mut settings = Settings::default();
    let mut sql =
        format!("CREATE TABLE {SCHEMA}.probe_dim (n integer PRIMARY KEY);\n").into_bytes();
    let group = plan.families[0].members[0].table;
    // The parent, its identity column and its indexes come before its first partition.
    sql.extend(renderer.statements(&(0..group).collect::<Vec<_>>(), &mut settings));
    let steps = if staged { &[0, 1, 2][..] } else { &[1] };
    steps.iter().for_each(|step| sql.extend(renderer.step(*step, &mut settings)));
    sql.extend(AFTERWARDS.replace("probe", &format!("{SCHEMA}.probe")).into_bytes());
    sql
}

/// What finds the partitions by way of the catalogs that were updated.
const AFTERWARDS: &str = "\
    ALTER TABLE probe ADD FOREIGN KEY (n) REFERENCES probe_dim;\n\
    CREATE TRIGGER row BEFORE UPDATE ON probe FOR EACH ROW \
        EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger();\n\
    CREATE INDEX ON probe USING btree (n);\n\
    ALTER TABLE probe ADD COLUMN later integer DEFAULT 5 CONSTRAINT later CHECK (true);\n\
    COMMENT ON TABLE probe_1 IS 'one';\n\
    ALTER TABLE probe DETACH PARTITION probe_2;\n";

const PARENT: &str = "(\n    id bigint NOT NULL,\n    d integer NOT NULL,\n    v text DEFAULT 'x'::text,\n    n integer,\n    \
    g integer GENERATED ALWAYS AS ((d * 2)) STORED,\n    CONSTRAINT positive CHECK ((d > 0))\n)\nPARTITION BY RANGE (d);\n";
/// Name and text of the parent's constraint and index, and the names of a partition's: one that the server gives, one other.
const PARTS: [[&str; 2]; 2] = [["probe_pkey", "probe_%_pkey"], ["probe_v", "probe_%_odd"]];

/// An archive of a table with three partitions, and a plan with one group of them.
fn shape(version: u32, staged: bool) -> (Toc, Plan) {
    let mut toc = Toc::default();
    let mut count = 0;
    let mut add = |desc: &str, defn: String| -> u32 {
        count += 1;
        let entry = Entry {
            dump_id: count,
            desc: desc.as_bytes(),
            namespace: SCHEMA.as_bytes(),
            defn: defn.as_bytes(),
            ..Entry::default()
        };
        // Ids are in order: it cannot be taken.
        let _ = toc.push(&entry);
        count as u32 - 1
    };
    let index = |n: usize, name: &str, table: &str| match n {
        0 => format!("ALTER TABLE ONLY {table}\n    ADD CONSTRAINT {name} PRIMARY KEY (id, d);\n"),
        _ => format!("CREATE INDEX {name} ON ONLY {table} USING btree (v);\n"),
    };
    let name = format!("{SCHEMA}.probe");
    let parent = add("TABLE", format!("CREATE TABLE {name} {PARENT}"));
    let identity = format!("ALTER TABLE {name} ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (\n    START WITH 1\n);\n");
    let identity = add("SEQUENCE", identity);
    let indexes: Vec<u32> =
        (0..PARTS.len()).map(|n| add("INDEX", index(n, PARTS[n][0], &name))).collect();
    let (mut members, mut pairs) = (Vec::new(), Vec::new());
    for member in 1..=3 {
        let own = format!("{name}_{member}");
        let table = add("TABLE", format!("CREATE TABLE {own} (\n    id bigint NOT NULL\n);\n"));
        let bound = format!("FOR VALUES FROM ({member}) TO ({})", member + 1);
        let attach = format!("ALTER TABLE ONLY {name} ATTACH PARTITION {own} {bound};\n");
        let attach = add("TABLE ATTACH", attach);
        let begin = pairs.len() as u32;
        for (n, [_, pattern]) in PARTS.iter().enumerate() {
            let place = add("INDEX", index(n, &pattern.replace('%', &member.to_string()), &own));
            // Attachments are what the rule does without: nothing reads these.
            pairs.push((place, place));
        }
        let pairs = begin..pairs.len() as u32;
        members.push(Member { table, attach, pairs, default: false });
    }
    let identities = if version >= 170_000 { vec![identity] } else { Vec::new() };
    let family = Family {
        parent,
        members,
        pairs,
        indexes,
        index_mode: IndexMode::WithTable,
        late_checks: false,
        identities,
    };
    let step = |work| Step { work, entries: 0..0, locks: 0..0, lock_count: 0, cost: 0, rank: 0 };
    let plan = Plan {
        steps: [Work::BoundsBegin(0), Work::Group(0), Work::BoundsEnd(0)].map(step).into(),
        families: vec![family],
        groups: vec![Group { family: 0, members: 0..3, staged }],
        names_not_null: version >= 180_000,
        inherits_identity: version >= 170_000,
        ..Plan::default()
    };
    (toc, plan)
}
