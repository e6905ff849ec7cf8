//! What is restored needs nothing of a schema whose objects went into another one, though it may be there, too.

use crate::error::Result;
use crate::pg::{quote_literal, Connection};
use crate::plan::redirect::Redirects;
use std::collections::BTreeSet;

/// Objects with the schema that they are in.
const MEMBERS: [(&str, &str); 16] = [
    ("pg_namespace", "oid"),
    ("pg_ts_parser", "prsnamespace"),
    ("pg_ts_template", "tmplnamespace"),
    ("pg_class", "relnamespace"),
    ("pg_proc", "pronamespace"),
    ("pg_type", "typnamespace"),
    ("pg_constraint", "connamespace"),
    ("pg_operator", "oprnamespace"),
    ("pg_opclass", "opcnamespace"),
    ("pg_opfamily", "opfnamespace"),
    ("pg_collation", "collnamespace"),
    ("pg_conversion", "connamespace"),
    ("pg_statistic_ext", "stxnamespace"),
    ("pg_ts_config", "cfgnamespace"),
    ("pg_ts_dict", "dictnamespace"),
    ("pg_default_acl", "defaclnamespace"),
];
/// Parts of other objects: of what, and of which.
const PARTS: [(&str, &str, &str, &str); 7] = [
    ("pg_attrdef", "adrelid", "pg_class", "relnamespace"),
    ("pg_trigger", "tgrelid", "pg_class", "relnamespace"),
    ("pg_rewrite", "ev_class", "pg_class", "relnamespace"),
    ("pg_policy", "polrelid", "pg_class", "relnamespace"),
    ("pg_publication_rel", "prrelid", "pg_class", "relnamespace"),
    ("pg_amop", "amopfamily", "pg_opfamily", "opfnamespace"),
    ("pg_amproc", "amprocfamily", "pg_opfamily", "opfnamespace"),
];

/// What outside of the old schemas needs something in them, in words. Whatever of that was not there before the restore is wrong.
pub fn crossing(connection: &Connection, redirects: &Redirects) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    let pairs = &redirects.redirect_schemas;
    // Where names are exchanged, what is in the old schema was put there as well.
    let goals: Vec<&String> = pairs.iter().map(|(_, new)| new).collect();
    for (old, _) in pairs.iter().filter(|(old, _)| !goals.contains(&old)) {
        let mut members: Vec<String> = MEMBERS
            .iter()
            .map(|(catalog, column)| {
                format!("SELECT '{catalog}'::pg_catalog.regclass::pg_catalog.oid, oid, {column} FROM pg_catalog.{catalog}")
            })
            .collect();
        members.extend(PARTS.iter().map(|(catalog, column, of, schema)| {
            format!(
                "SELECT '{catalog}'::pg_catalog.regclass::pg_catalog.oid, p.oid, c.{schema} \
                 FROM pg_catalog.{catalog} p JOIN pg_catalog.{of} c ON c.oid = p.{column}"
            )
        }));
        let members = members.join(" UNION ALL ");
        // TOAST tables belong to their tables, temporary ones to others.
        let sql = [
            &b"WITH m(class, object, schema) AS ("[..],
            members.as_bytes(),
            b"), o(old) AS (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = ",
            &quote_literal(old.as_bytes()),
            b") SELECT DISTINCT pg_catalog.pg_describe_object(d.classid, d.objid, 0), \
              pg_catalog.pg_describe_object(d.refclassid, d.refobjid, 0) \
              FROM o JOIN m needed ON needed.schema = o.old \
              JOIN pg_catalog.pg_depend d ON d.refclassid = needed.class AND d.refobjid = needed.object \
              LEFT JOIN m own ON own.class = d.classid AND own.object = d.objid \
              WHERE own.schema IS NULL OR own.schema <> o.old AND own.schema NOT IN \
              (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname ~ '^pg_(toast|temp)')",
        ];
        let found = connection.query(&sql.concat())?;
        for row in 0..found.len() {
            all.insert(format!("{} needs {}", found.text(row, 0), found.text(row, 1)));
        }
    }
    Ok(all)
}

/// What needs something of the old schemas now, and did not before.
pub fn differences(
    connection: &Connection,
    redirects: &Redirects,
    before: &BTreeSet<String>,
) -> Result<Vec<String>> {
    Ok(crossing(connection, redirects)?.difference(before).cloned().collect())
}
