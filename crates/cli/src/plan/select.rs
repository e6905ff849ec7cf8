//! Which entries the flags ask for, by the rules of `pg_restore`.

use crate::archive::{Entry, Section, Toc};
use std::collections::{HashMap, HashSet};

/// What the user asked for. Names are as the catalog has them, without quotes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Filter {
    pub schema_only: bool,
    pub data_only: bool,
    pub pre_data: bool,
    pub data: bool,
    pub post_data: bool,
    pub schemas: Vec<String>,
    pub exclude_schemas: Vec<String>,
    pub tables: Vec<String>,
    pub indexes: Vec<String>,
    pub functions: Vec<String>,
    pub triggers: Vec<String>,
    pub no_privileges: bool,
    pub no_comments: bool,
    pub no_security_labels: bool,
    pub no_publications: bool,
    pub no_subscriptions: bool,
    pub no_statistics: bool,
    pub create: bool,
    /// Also restore what the chosen tables and schemas depend on.
    pub with_dependencies: bool,
    /// Dump ids of a list file, in its order.
    pub list: Option<Vec<i32>>,
}

impl Filter {
    fn wants_section(&self, section: Section) -> bool {
        let any = self.pre_data || self.data || self.post_data;
        match section {
            Section::PreData => !any || self.pre_data,
            Section::Data => !any || self.data,
            Section::PostData => !any || self.post_data,
            Section::None => true,
        }
    }

    /// Names objects rather than taking all.
    fn names_objects(&self) -> bool {
        !(self.schemas.is_empty()
            && self.tables.is_empty()
            && self.indexes.is_empty()
            && self.functions.is_empty()
            && self.triggers.is_empty())
    }
}

/// The entries that are restored.
pub struct Selection {
    chosen: Vec<bool>,
    order: Vec<u32>,
    /// TABLE's dump id to the place of its TABLE DATA.
    data: HashMap<i32, u32>,
}

impl Selection {
    /// Places in the order of the archive or of the list file.
    pub fn places(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.iter().copied()
    }

    pub fn has(&self, place: u32) -> bool {
        self.chosen[place as usize]
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The chosen entry with the rows of the table with a dump id.
    pub fn data_of(&self, table: i32) -> Option<u32> {
        self.data.get(&table).copied()
    }
}

/// Entries that set up sessions and are run on each connection instead.
pub fn is_session_setup(entry: &Entry) -> bool {
    matches!(entry.desc, b"ENCODING" | b"STDSTRINGS" | b"SEARCHPATH")
}

/// Data rather than schema: rows, sequences' values, and all of large objects, whatever section they are filed under.
fn is_data(entry: &Entry) -> bool {
    match entry.desc {
        b"TABLE DATA" | b"BLOBS" | b"BLOB" | b"BLOB METADATA" | b"BLOB COMMENTS"
        | b"SEQUENCE SET" => true,
        b"ACL" | b"COMMENT" | b"SECURITY LABEL" => entry.tag.starts_with(b"LARGE OBJECT"),
        _ => false,
    }
}

fn has_name(names: &[String], name: &[u8]) -> bool {
    names.iter().any(|n| n.as_bytes() == name)
}

/// Sections of entries that old archives file under "none", or that belong to the object they describe.
fn effective_section(toc: &Toc, entry: &Entry) -> Section {
    match entry.section {
        // A comment or privilege goes with what it describes.
        Section::None if matches!(entry.desc, b"ACL" | b"COMMENT" | b"SECURITY LABEL") => entry
            .dependencies
            .iter()
            .filter_map(|d| toc.place(*d))
            .map(|p| toc.entry(p).section)
            .max()
            .unwrap_or(Section::PreData),
        section => section,
    }
}

/// Choose.
pub fn select(toc: &Toc, filter: &Filter) -> Selection {
    let mut chosen: Vec<bool> = toc.entries().map(|e| wanted(toc, filter, &e, false)).collect();
    if filter.names_objects() && filter.with_dependencies {
        add_dependencies(toc, filter, &mut chosen);
    }
    if filter.names_objects() {
        add_descriptions(toc, filter, &mut chosen);
    }
    let order: Vec<u32> = match &filter.list {
        Some(list) => {
            let mut seen = HashSet::new();
            let places = list.iter().filter_map(|id| toc.place(*id));
            places.filter(|p| chosen[*p] && seen.insert(*p)).map(|p| p as u32).collect()
        }
        None => (0..toc.len()).filter(|p| chosen[*p]).map(|p| p as u32).collect(),
    };
    if filter.list.is_some() {
        chosen.fill(false);
        order.iter().for_each(|p| chosen[*p as usize] = true);
    }
    let mut data = HashMap::new();
    for &place in &order {
        let entry = toc.entry(place as usize);
        if entry.desc == b"TABLE DATA" {
            for d in entry.dependencies {
                data.insert(*d, place);
            }
        }
    }
    Selection { chosen, order, data }
}

/// Tells whether the archive has something of a name.
type Has<'a> = &'a dyn Fn(&str) -> bool;

/// The first name among those asked for that names nothing in the archive.
pub fn unmatched(toc: &Toc, filter: &Filter) -> Option<String> {
    let tagged = |kinds: &'static [&'static [u8]]| {
        move |name: &str| toc.entries().any(|e| kinds.contains(&e.desc) && e.tag == name.as_bytes())
    };
    let schema = |name: &str| {
        toc.entries().any(|e| {
            e.namespace == name.as_bytes() || e.desc == b"SCHEMA" && e.tag == name.as_bytes()
        })
    };
    let tables = tagged(&[b"TABLE", b"VIEW", b"FOREIGN TABLE", b"MATERIALIZED VIEW", b"SEQUENCE"]);
    let indexes = tagged(&[b"INDEX"]);
    let functions = tagged(&[b"FUNCTION", b"AGGREGATE", b"PROCEDURE"]);
    let triggers = tagged(&[b"TRIGGER"]);
    let groups: [(&[String], Has); 5] = [
        (&filter.schemas, &schema),
        (&filter.tables, &tables),
        (&filter.indexes, &indexes),
        (&filter.functions, &functions),
        (&filter.triggers, &triggers),
    ];
    for (names, has) in groups {
        if let Some(name) = names.iter().find(|n| !has(n)) {
            return Some(name.clone());
        }
    }
    None
}

/// Whether an entry is wanted. `forced`: as something that a chosen object depends on.
fn wanted(toc: &Toc, filter: &Filter, entry: &Entry, forced: bool) -> bool {
    let desc = entry.desc;
    if is_session_setup(entry) {
        return false;
    }
    // The database itself is made before everything else, outside of the plan.
    if desc == b"DATABASE" {
        return false;
    }
    if desc == b"DATABASE PROPERTIES" {
        return filter.create && !filter.data_only && !filter.names_objects();
    }
    // Comments and privileges of the database itself come with it.
    if entry.tag.starts_with(b"DATABASE ")
        && matches!(desc, b"ACL" | b"COMMENT" | b"SECURITY LABEL")
        && !filter.create
    {
        return false;
    }
    let unwanted = match desc {
        b"ACL" | b"ACL LANGUAGE" | b"DEFAULT ACL" => filter.no_privileges,
        b"COMMENT" => filter.no_comments,
        b"SECURITY LABEL" => filter.no_security_labels,
        b"PUBLICATION" | b"PUBLICATION TABLE" | b"PUBLICATION TABLES IN SCHEMA" => {
            filter.no_publications
        }
        b"SUBSCRIPTION" | b"SUBSCRIPTION TABLE" => filter.no_subscriptions,
        b"STATISTICS DATA" => filter.no_statistics,
        _ => false,
    };
    // Statistics are neither schema nor data.
    let statistics = desc == b"STATISTICS DATA";
    let masked = filter.schema_only && (is_data(entry) || statistics)
        || filter.data_only && (!is_data(entry) || statistics);
    if unwanted || masked || !filter.wants_section(effective_section(toc, entry)) {
        return false;
    }
    if entry.defn.is_empty() && !entry.has_data && entry.copy_stmt.is_empty() {
        return false;
    }
    if has_name(&filter.exclude_schemas, entry.namespace) {
        return false;
    }
    if !filter.names_objects() || forced {
        return true;
    }
    // What describes other things follows them, in add_descriptions.
    if matches!(desc, b"ACL" | b"COMMENT" | b"SECURITY LABEL" | b"STATISTICS DATA") {
        return false;
    }
    if !filter.schemas.is_empty()
        && (entry.namespace.is_empty() || !has_name(&filter.schemas, entry.namespace))
    {
        return false;
    }
    let typed = !(filter.tables.is_empty()
        && filter.indexes.is_empty()
        && filter.functions.is_empty()
        && filter.triggers.is_empty());
    if !typed {
        return true;
    }
    match desc {
        b"TABLE"
        | b"TABLE DATA"
        | b"VIEW"
        | b"FOREIGN TABLE"
        | b"MATERIALIZED VIEW"
        | b"MATERIALIZED VIEW DATA"
        | b"SEQUENCE"
        | b"SEQUENCE SET" => has_name(&filter.tables, entry.tag),
        b"INDEX" => has_name(&filter.indexes, entry.tag),
        b"FUNCTION" | b"AGGREGATE" | b"PROCEDURE" => has_name(&filter.functions, entry.tag),
        // The tag is "table trigger".
        b"TRIGGER" => filter.triggers.iter().any(|t| {
            let table = entry.tag.strip_suffix(t.as_bytes());
            table.is_some_and(|table| table.is_empty() || table.ends_with(b" "))
        }),
        _ => false,
    }
}

/// Add all that chosen entries need, and what belongs to chosen tables (rows, indexes, constraints, defaults).
fn add_dependencies(toc: &Toc, filter: &Filter, chosen: &mut [bool]) {
    let mut stack: Vec<usize> = (0..toc.len()).filter(|p| chosen[*p]).collect();
    let mut schemas = HashMap::new();
    for place in 0..toc.len() {
        let entry = toc.entry(place);
        if entry.desc == b"SCHEMA" {
            schemas.insert(entry.tag, place);
        }
    }
    // Parts of a table: what depends on it and is of a kind that has no life of its own.
    let mut parts = HashMap::<i32, Vec<usize>>::new();
    for (place, entry) in toc.entries().enumerate() {
        if matches!(
            entry.desc,
            b"INDEX"
                | b"CONSTRAINT"
                | b"CHECK CONSTRAINT"
                | b"DEFAULT"
                | b"TABLE DATA"
                | b"TRIGGER"
                | b"RULE"
                | b"POLICY"
                | b"ROW SECURITY"
                | b"SEQUENCE OWNED BY"
                | b"SEQUENCE SET"
                | b"STATISTICS"
                | b"STATISTICS DATA"
                | b"INDEX ATTACH"
                | b"TABLE ATTACH"
        ) {
            for d in entry.dependencies {
                parts.entry(*d).or_default().push(place);
            }
        }
    }
    while let Some(place) = stack.pop() {
        let entry = toc.entry(place);
        let mut more: Vec<usize> =
            entry.dependencies.iter().filter_map(|d| toc.place(*d)).collect();
        more.extend(schemas.get(entry.namespace));
        for &part in parts.get(&entry.dump_id).into_iter().flatten() {
            // A part that needs a table that is not chosen (an attachment to another parent) stays out.
            let own = toc.entry(part).dependencies;
            let tables = own.iter().filter_map(|d| toc.place(*d));
            if tables.clone().all(|p| chosen[p] || toc.entry(p).section != Section::PreData) {
                more.push(part);
            }
        }
        for p in more {
            if !chosen[p] && wanted(toc, filter, &toc.entry(p), true) {
                chosen[p] = true;
                stack.push(p);
            }
        }
    }
}

/// Add privileges, comments, labels and statistics of what is chosen.
fn add_descriptions(toc: &Toc, filter: &Filter, chosen: &mut [bool]) {
    for place in 0..toc.len() {
        let entry = toc.entry(place);
        if chosen[place]
            || !matches!(entry.desc, b"ACL" | b"COMMENT" | b"SECURITY LABEL" | b"STATISTICS DATA")
        {
            continue;
        }
        let mut objects = entry.dependencies.iter().filter_map(|d| toc.place(*d)).peekable();
        if objects.peek().is_some() && objects.all(|p| chosen[p]) {
            chosen[place] = wanted(toc, filter, &entry, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toc() -> Toc {
        let mut toc = Toc::default();
        let mut add =
            |dump_id, desc: &[u8], namespace: &[u8], tag: &[u8], section, dependencies: &[i32]| {
                let entry = Entry {
                    dump_id,
                    desc,
                    namespace,
                    tag,
                    section,
                    dependencies,
                    defn: b"SELECT;",
                    ..Entry::default()
                };
                toc.push(&entry).unwrap();
            };
        add(1, b"ENCODING", b"", b"ENCODING", Section::PreData, &[]);
        add(2, b"SCHEMA", b"", b"s", Section::PreData, &[]);
        add(3, b"TYPE", b"s", b"ty", Section::PreData, &[2]);
        add(4, b"TABLE", b"s", b"t", Section::PreData, &[3]);
        add(5, b"TABLE", b"s", b"u", Section::PreData, &[]);
        add(6, b"TABLE DATA", b"s", b"t", Section::Data, &[4]);
        add(7, b"INDEX", b"s", b"i", Section::PostData, &[4]);
        add(8, b"ACL", b"s", b"TABLE t", Section::None, &[4]);
        toc
    }

    fn chosen(filter: Filter) -> Vec<i32> {
        let toc = toc();
        select(&toc, &filter).places().map(|p| toc.entry(p as usize).dump_id).collect()
    }

    #[test]
    fn sections() {
        assert_eq!(chosen(Filter::default()), [2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(chosen(Filter { schema_only: true, ..Filter::default() }), [2, 3, 4, 5, 7, 8]);
        assert_eq!(chosen(Filter { data_only: true, ..Filter::default() }), [6]);
        assert_eq!(chosen(Filter { post_data: true, ..Filter::default() }), [7]);
    }

    #[test]
    fn names() {
        let tables = Filter { tables: vec!["t".into()], ..Filter::default() };
        assert_eq!(chosen(tables.clone()), [4, 6, 8]);
        let all = Filter { with_dependencies: true, ..tables };
        assert_eq!(chosen(all), [2, 3, 4, 6, 7, 8]);
        assert_eq!(chosen(Filter { exclude_schemas: vec!["s".into()], ..Filter::default() }), [2]);
    }

    #[test]
    fn lists_give_the_order() {
        assert_eq!(chosen(Filter { list: Some(vec![5, 4, 4, 99]), ..Filter::default() }), [5, 4]);
    }
}
