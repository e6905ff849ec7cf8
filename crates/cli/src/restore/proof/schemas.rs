//! What is restored needs nothing of a schema whose objects went into another one, though it may be there, too.

use crate::archive::{Entry, Toc};
use crate::error::Result;
use crate::pg::{quote_literal, Connection};
use crate::plan::redirect::Redirects;
use crate::plan::select::Selection;
use crate::restore::cut::Cut;
use std::collections::{BTreeSet, HashSet};

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
/// Of what relation an object is, where it is of one.
const RELATIONS: [(&str, &str); 3] =
    [("pg_class", "oid"), ("pg_type", "typrelid"), ("pg_constraint", "conrelid")];
/// Objects in no schema, with the archive's word for them.
const LOOSE: [(&str, &[u8]); 9] = [
    ("pg_cast", b"CAST"),
    ("pg_event_trigger", b"EVENT TRIGGER"),
    ("pg_publication", b"PUBLICATION"),
    ("pg_publication_namespace", b"PUBLICATION TABLES IN SCHEMA"),
    ("pg_transform", b"TRANSFORM"),
    ("pg_language", b"PROCEDURAL LANGUAGE"),
    ("pg_foreign_data_wrapper", b"FOREIGN DATA WRAPPER"),
    ("pg_am", b"ACCESS METHOD"),
    ("pg_extension", b"EXTENSION"),
];

/// What needs something of an old schema.
struct Dependent {
    /// What it is and what it needs, as oids: words depend on the session's language and encoding, and names change.
    key: String,
    words: String,
    class: String,
    schema: Option<Vec<u8>>,
    /// That it is, or is of.
    relation: Option<Vec<u8>>,
}

/// What outside of the old schemas needs something in them.
fn dependents(connection: &Connection, redirects: &Redirects) -> Result<Vec<Dependent>> {
    let mut all = Vec::new();
    let pairs = &redirects.redirect_schemas;
    // Where names are exchanged, what is in the old schema was put there as well.
    let goals: Vec<&String> = pairs.iter().map(|(_, new)| new).collect();
    for (old, _) in pairs.iter().filter(|(old, _)| !goals.contains(&old)) {
        let mut members: Vec<String> = MEMBERS
            .iter()
            .map(|(catalog, column)| {
                let of = RELATIONS.iter().find(|(of, _)| of == catalog).map_or("0", |(_, of)| of);
                format!(
                    "SELECT '{catalog}'::pg_catalog.regclass::pg_catalog.oid, oid, {column}, {of} FROM pg_catalog.{catalog}"
                )
            })
            .collect();
        members.extend(PARTS.iter().map(|(catalog, column, of, schema)| {
            let relation = if *of == "pg_class" { "c.oid" } else { "0" };
            format!(
                "SELECT '{catalog}'::pg_catalog.regclass::pg_catalog.oid, p.oid, c.{schema}, {relation} \
                 FROM pg_catalog.{catalog} p JOIN pg_catalog.{of} c ON c.oid = p.{column}"
            )
        }));
        let members = members.join(" UNION ALL ");
        // TOAST tables belong to their tables, temporary ones to others.
        let sql = [
            &b"WITH m(class, object, schema, relation) AS ("[..],
            members.as_bytes(),
            b"), o(old) AS (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = ",
            &quote_literal(old.as_bytes()),
            b") SELECT DISTINCT d.classid || ' ' || d.objid || ' ' || d.refclassid || ' ' || d.refobjid, \
              pg_catalog.pg_describe_object(d.classid, d.objid, 0), \
              pg_catalog.pg_describe_object(d.refclassid, d.refobjid, 0), \
              (SELECT relname FROM pg_catalog.pg_class WHERE oid = d.classid), \
              (SELECT nspname FROM pg_catalog.pg_namespace WHERE oid = own.schema), \
              (SELECT relname FROM pg_catalog.pg_class WHERE oid = COALESCE((SELECT indrelid FROM pg_catalog.pg_index \
              WHERE indexrelid = own.relation), own.relation)) \
              FROM o JOIN m needed ON needed.schema = o.old \
              JOIN pg_catalog.pg_depend d ON d.refclassid = needed.class AND d.refobjid = needed.object \
              LEFT JOIN m own ON own.class = d.classid AND own.object = d.objid \
              WHERE own.schema IS NULL OR own.schema <> o.old AND own.schema NOT IN \
              (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname ~ '^pg_(toast|temp)')",
        ];
        let found = connection.query(&sql.concat())?;
        all.extend((0..found.len()).map(|row| Dependent {
            key: found.text(row, 0),
            words: format!("{} needs {}", found.text(row, 1), found.text(row, 2)),
            class: found.text(row, 3),
            schema: found.get(row, 4).map(<[u8]>::to_vec),
            relation: found.get(row, 5).map(<[u8]>::to_vec),
        }));
    }
    Ok(all)
}

/// What outside of the old schemas needs something in them. Whatever of that was not there before the restore, and is the restore's,
/// is wrong. The session reads names as the archive has them.
pub fn crossing(connection: &Connection, redirects: &Redirects) -> Result<BTreeSet<String>> {
    Ok(dependents(connection, redirects)?.into_iter().map(|found| found.key).collect())
}

/// What a restore makes, as far as dependents can be told from those that others make meanwhile in a database that is in use.
struct Makes<'a> {
    schemas: HashSet<&'a [u8]>,
    /// Relations, by schema and name, of which something is restored.
    relations: HashSet<(&'a [u8], &'a [u8])>,
    kinds: HashSet<&'a [u8]>,
    goals: HashSet<&'a [u8]>,
}

/// Of what is a relation's the tag has its name first, and both names may have spaces in them.
fn leading_names(tag: &[u8]) -> impl Iterator<Item = &[u8]> {
    let spaces = (0..tag.len()).filter(|at| tag[*at] == b' ');
    spaces.chain([tag.len()]).map(|end| &tag[..end])
}

impl<'a> Makes<'a> {
    fn of(
        entries: impl Iterator<Item = Entry<'a>>,
        pairs: &'a [(String, String)],
        cut: &'a Cut,
    ) -> Makes<'a> {
        let goals = pairs.iter().map(|(_, new)| new.as_bytes()).collect();
        let (schemas, relations, kinds) = Default::default();
        let mut makes = Makes { schemas, relations, kinds, goals };
        for entry in entries {
            let schema = cut.left(entry.namespace);
            makes.schemas.insert(schema);
            makes.kinds.insert(entry.desc);
            makes.relations.extend(leading_names(entry.tag).map(|name| (schema, cut.left(name))));
        }
        makes
    }

    fn has(&self, found: &Dependent) -> bool {
        let Some(schema) = found.schema.as_deref() else {
            let kind = LOOSE.iter().find(|(class, _)| *class == found.class);
            return kind.is_none_or(|(_, kind)| self.kinds.contains(kind));
        };
        let own = match found.relation.as_deref() {
            Some(relation) => self.relations.contains(&(schema, relation)),
            None => self.schemas.contains(schema),
        };
        own || self.goals.contains(schema)
    }
}

/// What the restore has made, and needs something of the old schemas that it did not need before.
pub fn differences(
    connection: &Connection,
    redirects: &Redirects,
    before: &BTreeSet<String>,
    (toc, selection): (&Toc, &Selection),
) -> Result<Vec<String>> {
    let mut found = dependents(connection, redirects)?;
    found.retain(|found| !before.contains(&found.key));
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let entries = || selection.places().map(|place| toc.entry(place as usize));
    let names = entries().flat_map(|entry| leading_names(entry.tag).chain([entry.namespace]));
    let cut = Cut::of(connection, names)?;
    let makes = Makes::of(entries(), &redirects.redirect_schemas, &cut);
    Ok(found.into_iter().filter(|found| makes.has(found)).map(|found| found.words).collect())
}
