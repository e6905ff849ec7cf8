//! Objects that are no relations, and what is said of all kinds: privileges, comments, values of sequences.
//!
//! Asked is only what is certain: names as catalogs have them, never types of arguments, whose words may differ between versions.

use super::questions::Questions;
use crate::archive::Entry;
use crate::pg::quote_ident;
use crate::plan::render::new_owner;
use crate::plan::text;
use crate::restore::Job;
use std::collections::{BTreeMap, HashMap};

/// A kind of object: where it is and how its columns begin.
struct Kind {
    catalog: &'static str,
    prefix: &'static str,
    in_schema: bool,
    owned: bool,
    /// Several may have one name.
    overloaded: bool,
}

fn kind(desc: &[u8]) -> Option<Kind> {
    // In a schema and with an owner, but for these.
    let (catalog, prefix) = match desc {
        b"FUNCTION" | b"PROCEDURE" | b"AGGREGATE" => ("pg_proc", "pro"),
        b"OPERATOR" => ("pg_operator", "opr"),
        b"OPERATOR CLASS" => ("pg_opclass", "opc"),
        b"OPERATOR FAMILY" => ("pg_opfamily", "opf"),
        // A shell is of who makes the type.
        b"TYPE" | b"DOMAIN" | b"SHELL TYPE" => ("pg_type", "typ"),
        b"COLLATION" => ("pg_collation", "coll"),
        b"CONVERSION" => ("pg_conversion", "con"),
        b"STATISTICS" => ("pg_statistic_ext", "stx"),
        b"TEXT SEARCH CONFIGURATION" => ("pg_ts_config", "cfg"),
        b"TEXT SEARCH DICTIONARY" => ("pg_ts_dict", "dict"),
        b"TEXT SEARCH PARSER" => ("pg_ts_parser", "prs"),
        b"TEXT SEARCH TEMPLATE" => ("pg_ts_template", "tmpl"),
        b"SCHEMA" => ("pg_namespace", "nsp"),
        b"EXTENSION" => ("pg_extension", "ext"),
        b"PROCEDURAL LANGUAGE" => ("pg_language", "lan"),
        b"ACCESS METHOD" => ("pg_am", "am"),
        b"EVENT TRIGGER" => ("pg_event_trigger", "evt"),
        b"FOREIGN DATA WRAPPER" => ("pg_foreign_data_wrapper", "fdw"),
        b"SERVER" => ("pg_foreign_server", "srv"),
        b"PUBLICATION" => ("pg_publication", "pub"),
        b"SUBSCRIPTION" => ("pg_subscription", "sub"),
        _ => return None,
    };
    let in_schema =
        !matches!(prefix, "nsp" | "ext" | "lan" | "am" | "evt" | "fdw" | "srv" | "pub" | "sub");
    let owned = !matches!(prefix, "ext" | "am" | "prs" | "tmpl") && desc != b"SHELL TYPE";
    Some(Kind { catalog, prefix, in_schema, owned, overloaded: matches!(prefix, "pro" | "opr") })
}

/// The catalog's name of an entry's object. Names with parentheses of their own are not looked for.
fn object_name<'a>(entry: &Entry<'a>) -> Option<&'a [u8]> {
    match entry.desc {
        b"FUNCTION" | b"PROCEDURE" | b"AGGREGATE" => {
            let end = entry.tag.iter().rposition(|b| *b == b'(')?;
            Some(&entry.tag[..end]).filter(|name| !name.contains(&b'('))
        }
        _ => Some(entry.tag),
    }
}

/// All kinds of questions about the selected entries.
pub fn questions(job: &Job) -> Vec<Questions> {
    let mut all = named(job);
    all.extend(described(job));
    all.extend(published(job));
    all
}

/// Objects by name and owner; of what may be overloaded, so many.
fn named(job: &Job) -> Vec<Questions> {
    let toc = job.archive.toc();
    let mut count = HashMap::<(&str, &[u8], &[u8]), u32>::new();
    let mut found = Vec::new();
    for place in job.selection.places() {
        let entry = toc.entry(place as usize);
        let (Some(kind), Some(name)) = (kind(entry.desc), object_name(&entry)) else { continue };
        *count.entry((kind.catalog, entry.namespace, name)).or_default() += 1;
        found.push((place, kind, name, entry));
    }
    let mut all = BTreeMap::new();
    for (place, kind, name, entry) in found {
        let Kind { catalog, prefix, in_schema, owned, overloaded } = kind;
        let questions = all.entry((catalog, owned)).or_insert_with(|| {
            let mut rows = format!("FROM pg_catalog.{catalog} WHERE {prefix}name = name");
            if in_schema {
                rows += &format!(
                    " AND {prefix}namespace = pg_catalog.to_regnamespace(asked.namespace)"
                );
            }
            if catalog == "pg_subscription" {
                rows += " AND subdbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())";
            }
            let mut wrong = format!(
                "CASE WHEN (SELECT pg_catalog.count(*) {rows}) < few THEN \
                 CASE WHEN few > 1 THEN 'it is missing, or another of its name' ELSE 'it is missing' END "
            );
            if owned {
                wrong += &format!(
                    "WHEN owner <> '' AND NOT EXISTS (SELECT {rows} AND pg_catalog.pg_get_userbyid({prefix}owner) = owner) \
                     THEN 'its owner is not \"' || owner || '\"' "
                );
            }
            let query = format!("SELECT n, {wrong}END AS wrong FROM asked");
            Questions::new("n, namespace, name::name, owner::name, few", query)
        });
        let few = match overloaded {
            true => count[&(catalog, entry.namespace, name)],
            false => 1,
        };
        let namespace = quote_ident(entry.namespace);
        let row = [&namespace[..], name, new_owner(&entry, job.terms.asked.style.no_owner)];
        questions.ask_with(place, &row, few);
    }
    all.into_values().collect()
}

/// What is said of objects: privileges and comments that are there at all, row security, and values of sequences.
fn described(job: &Job) -> Vec<Questions> {
    let toc = job.archive.toc();
    let class = |what: &str, wrong: &str| {
        Questions::new(
            "n, name",
            format!(
                "SELECT n, '{wrong}' AS wrong FROM asked JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(name) WHERE {what}"
            ),
        )
    };
    let mut privileges = class("relacl IS NULL", "nobody was granted or denied anything");
    let mut security = class("NOT relrowsecurity", "row security is off");
    let mut comments = class(
        "NOT EXISTS (SELECT FROM pg_catalog.pg_description d WHERE d.objoid = c.oid AND d.classoid = \
         'pg_catalog.pg_class'::pg_catalog.regclass AND d.objsubid = 0)",
        "it is missing",
    );
    // Whoever works in the database may have drawn further numbers.
    let mut values = Questions::new(
        "n, name, value",
        "SELECT n, CASE WHEN last IS NULL THEN 'its value is not set' ELSE 'its value is ' || last || ' instead of ' || value END AS wrong \
         FROM (SELECT n, value, seqincrement, pg_catalog.pg_sequence_last_value(seqrelid) AS last FROM asked \
         JOIN pg_catalog.pg_sequence s ON s.seqrelid = pg_catalog.to_regclass(name) \
         WHERE NOT seqcycle AND pg_catalog.has_sequence_privilege(seqrelid, 'SELECT')) s \
         WHERE last IS NULL OR CASE WHEN seqincrement > 0 THEN last < value::pg_catalog.int8 ELSE last > value::pg_catalog.int8 END",
    );
    let mut defaults = Questions::new(
        "n, owner::name, kind, namespace",
        "SELECT n, 'they are missing' AS wrong FROM asked WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_default_acl d \
         WHERE pg_catalog.pg_get_userbyid(d.defaclrole) = owner AND d.defaclobjtype::text = kind AND d.defaclnamespace = \
         CASE WHEN namespace = '' THEN 0::pg_catalog.oid ELSE pg_catalog.to_regnamespace(namespace)::pg_catalog.oid END)",
    );
    for place in job.selection.places() {
        let entry = toc.entry(place as usize);
        match entry.desc {
            b"ACL" if !entry.defn.is_empty() && !entry.namespace.is_empty() => {
                if let Some(name) = about(&entry, &[b"TABLE ", b"SEQUENCE "]) {
                    privileges.ask(place, &[&name]);
                }
            }
            b"COMMENT" if !entry.namespace.is_empty() => {
                const KINDS: [&[u8]; 6] = [
                    b"TABLE ",
                    b"SEQUENCE ",
                    b"VIEW ",
                    b"MATERIALIZED VIEW ",
                    b"FOREIGN TABLE ",
                    b"INDEX ",
                ];
                if let Some(name) = about(&entry, &KINDS) {
                    comments.ask(place, &[&name]);
                }
            }
            b"ROW SECURITY" => {
                let name = [&quote_ident(entry.namespace)[..], b".", &quote_ident(entry.tag)];
                security.ask(place, &[&name.concat()]);
            }
            b"SEQUENCE SET" => {
                if let Some(value) = called_value(entry.defn) {
                    let name = [&quote_ident(entry.namespace)[..], b".", &quote_ident(entry.tag)];
                    values.ask(place, &[&name.concat(), value]);
                }
            }
            b"DEFAULT ACL" if leaves_privileges(&entry) => {
                if let Some(kind) = default_kind(entry.tag) {
                    let namespace = match entry.namespace {
                        b"" => Vec::new(),
                        schema => quote_ident(schema),
                    };
                    defaults.ask(place, &[entry.owner, kind, &namespace]);
                }
            }
            _ => {}
        }
    }
    vec![privileges, security, comments, values, defaults]
}

/// The relation that an entry's tag names behind its kind, as it is written there: as an identifier.
fn about(entry: &Entry, kinds: &[&[u8]]) -> Option<Vec<u8>> {
    let name = kinds.iter().find_map(|kind| entry.tag.strip_prefix(*kind))?;
    let mut rest = name;
    (text::take_name(&mut rest).is_some() && rest.is_empty())
        .then(|| [&quote_ident(entry.namespace)[..], b".", name].concat())
}

/// The value of `SELECT pg_catalog.setval('s.q', 42, true);`; none where it is not drawn yet.
fn called_value(defn: &[u8]) -> Option<&[u8]> {
    let rest = defn.trim_ascii().strip_suffix(b", true);")?;
    let begin = rest.iter().rposition(|b| !(b.is_ascii_digit() || *b == b'-'))? + 1;
    Some(&rest[begin..]).filter(|value| rest[..begin].ends_with(b"', ") && !value.is_empty())
}

/// Whether the server keeps a row of these default privileges for sure. It keeps none of what is built in anyway: statements that only
/// take away may come to that, as archives until 14.0 have them, and in all schemas those that give to the owner and to PUBLIC, as what
/// is built in differs between versions. In one schema nothing is.
fn leaves_privileges(entry: &Entry) -> bool {
    let mut rest = entry.defn;
    while let Some((statement, after)) = text::split_statement(rest) {
        rest = after;
        let Some(grantee) = default_grantee(statement.trim_ascii()) else { continue };
        let known = grantee == b"PUBLIC" || text::unquoted(grantee) == entry.owner;
        if !entry.namespace.is_empty() || !known {
            return true;
        }
    }
    false
}

/// To whom `ALTER DEFAULT PRIVILEGES FOR ROLE o [IN SCHEMA s] GRANT … TO x [WITH GRANT OPTION]` gives something.
fn default_grantee(statement: &[u8]) -> Option<&[u8]> {
    let mut text = statement.strip_prefix(b"ALTER DEFAULT PRIVILEGES FOR ROLE ")?;
    text::take_name(&mut text)?;
    if let Some(schema) = text.strip_prefix(b" IN SCHEMA ") {
        text = schema;
        text::take_name(&mut text)?;
    }
    // Up to there it is words alone.
    text = text.strip_prefix(b" GRANT ")?;
    let to = text.windows(4).position(|w| w == b" TO ")? + 4;
    text = &text[to..];
    match text.strip_prefix(b"PUBLIC") {
        Some(_) => Some(&text[..6]),
        None => text::take_name(&mut text),
    }
}

fn default_kind(tag: &[u8]) -> Option<&'static [u8]> {
    Some(match tag.strip_prefix(b"DEFAULT PRIVILEGES FOR ")? {
        b"TABLES" => b"r",
        b"SEQUENCES" => b"S",
        b"FUNCTIONS" => b"f",
        b"TYPES" => b"T",
        b"SCHEMAS" => b"n",
        b"LARGE OBJECTS" => b"L",
        _ => return None,
    })
}

/// What belongs to no schema and has two names: by its tag, which is made of them. Either may have spaces and be cut, so that the tag is
/// read in each way that it can be. What is found for each is looked up by its name, as the planner knows nothing of new rows.
fn published(job: &Job) -> Vec<Questions> {
    let toc = job.archive.toc();
    let tagged = |ways: &str, found: &str| {
        Questions::new(
            "n, namespace, tag",
            format!(
                "SELECT n, 'it is missing' AS wrong FROM asked, LATERAL (SELECT pg_catalog.string_to_array(tag, ' ') AS words) w \
                 WHERE NOT EXISTS (SELECT FROM pg_catalog.generate_series(1, pg_catalog.array_length(words, 1)) i, \
                 LATERAL (SELECT {ways}) names WHERE {found})"
            ),
        )
    };
    let before = "pg_catalog.array_to_string(words[1:i - 1], ' ')::pg_catalog.name AS first";
    let from = |i: &str| {
        format!("pg_catalog.array_to_string(words[{i}:], ' ')::pg_catalog.name AS second")
    };
    let mut mappings = tagged(
        &format!("{before}, {} WHERE words[i] = 'SERVER'", from("i + 1")),
        "EXISTS (SELECT FROM pg_catalog.pg_user_mappings WHERE usename = first AND srvname = second)",
    );
    let publication = "(SELECT oid FROM pg_catalog.pg_publication WHERE pubname = first)";
    let mut tables = tagged(
        &format!("{before}, {} WHERE i > 1", from("i")),
        &format!(
            "(SELECT pg_catalog.bool_or(prpubid = {publication}) FROM pg_catalog.pg_publication_rel WHERE prrelid = (SELECT oid \
             FROM pg_catalog.pg_class WHERE relname = second AND relnamespace = pg_catalog.to_regnamespace(namespace)))"
        ),
    );
    let mut schemas = tagged(
        &format!("{before}, {} WHERE i > 1", from("i")),
        &format!(
            "(SELECT pg_catalog.bool_or(pnpubid = {publication}) FROM pg_catalog.pg_publication_namespace \
             WHERE pnnspid = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = second))"
        ),
    );
    for place in job.selection.places() {
        let entry = toc.entry(place as usize);
        let (questions, tag) = match entry.desc {
            b"USER MAPPING" => {
                let Some(tag) = entry.tag.strip_prefix(b"USER MAPPING ") else { continue };
                (&mut mappings, tag)
            }
            b"PUBLICATION TABLE" => (&mut tables, entry.tag),
            b"PUBLICATION TABLES IN SCHEMA" => (&mut schemas, entry.tag),
            _ => continue,
        };
        questions.ask(place, &[&quote_ident(entry.namespace), tag]);
    }
    vec![mappings, tables, schemas]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_were_drawn() {
        assert_eq!(called_value(b"SELECT pg_catalog.setval('s.q', 42, true);\n"), Some(&b"42"[..]));
        assert_eq!(called_value(b"SELECT pg_catalog.setval('s.q', -7, true);"), Some(&b"-7"[..]));
        assert_eq!(called_value(b"SELECT pg_catalog.setval('s.q', 1, false);\n"), None);
        assert_eq!(called_value(b"SELECT pg_catalog.setval('s.q', , true);"), None);
    }

    #[test]
    fn default_privileges_that_stay() {
        let stays = |namespace, statements: &str| {
            let defn =
                statements.replace("ALTER", "ALTER DEFAULT PRIVILEGES FOR ROLE \"a GRANT b\"");
            let defn = defn.as_bytes();
            leaves_privileges(&Entry { namespace, owner: b"a GRANT b", defn, ..Entry::default() })
        };
        let revoke = "ALTER IN SCHEMA s REVOKE ALL ON FUNCTIONS FROM \"a GRANT b\";\n";
        assert!(!stays(b"s", revoke));
        let grant = "ALTER IN SCHEMA s GRANT ALL ON FUNCTIONS TO \"a GRANT b\";\n";
        assert!(stays(b"s", &[revoke, grant].concat()));
        assert!(stays(b"s", "ALTER IN SCHEMA s GRANT ALL ON FUNCTIONS TO PUBLIC;"));
        let owner = "ALTER REVOKE ALL ON TABLES FROM \"a GRANT b\";\nALTER GRANT SELECT,INSERT ON TABLES TO \"a GRANT b\";\n";
        assert!(!stays(b"", owner));
        assert!(!stays(b"", "ALTER GRANT ALL ON TYPES TO PUBLIC;\n"));
        assert!(stays(b"", "ALTER GRANT SELECT ON TABLES TO other WITH GRANT OPTION;\n"));
        assert!(stays(b"", &[owner, "ALTER GRANT ALL ON LARGE OBJECTS TO \"PUBLIC\";"].concat()));
    }

    #[test]
    fn relations_by_tag() {
        let entry = |tag| Entry { namespace: b"s", tag, ..Entry::default() };
        assert_eq!(about(&entry(b"TABLE t"), &[b"TABLE "]).unwrap(), b"\"s\".t");
        assert_eq!(about(&entry(b"TABLE \"a b\""), &[b"TABLE "]).unwrap(), b"\"s\".\"a b\"");
        // Until version 10 the name stood there as it is.
        assert_eq!(about(&entry(b"TABLE a b"), &[b"TABLE "]), None);
        assert_eq!(about(&entry(b"COLUMN t.c"), &[b"TABLE "]), None);
    }
}
