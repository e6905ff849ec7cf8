//! Which entries the flags ask for, by the rules of `pg_restore` (`_tocEntryRequired` in its sources).

pub mod list;
mod needed;

use crate::archive::{Absent, Entry, Section, Toc};
use std::collections::{HashMap, HashSet};

/// What the user asked for. Names are as the catalog has them, without quotes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Filter {
    pub schema_only: bool,
    pub data_only: bool,
    pub statistics_only: bool,
    /// Statistics, too, where another flag would leave them out.
    pub with_statistics: bool,
    pub no_schema: bool,
    pub no_data: bool,
    pub no_statistics: bool,
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
    pub no_policies: bool,
    pub no_security_labels: bool,
    pub no_publications: bool,
    pub no_subscriptions: bool,
    pub create: bool,
    /// Also restore what the chosen tables and schemas depend on.
    pub with_dependencies: bool,
    /// Dump ids of a list file, in its order.
    pub list: Option<Vec<i32>>,
}

impl Filter {
    /// Definitions are wanted.
    pub fn wants_schema(&self) -> bool {
        (!self.data_only && !self.statistics_only || self.schema_only) && !self.no_schema
    }

    /// Rows, values of sequences and large objects are wanted.
    pub fn wants_data(&self) -> bool {
        (!self.schema_only && !self.statistics_only || self.data_only) && !self.no_data
    }

    /// Statistics are wanted.
    pub fn wants_statistics(&self) -> bool {
        let usual = !self.schema_only && !self.data_only;
        (usual || self.statistics_only || self.with_statistics) && !self.no_statistics
    }

    fn wants_section(&self, section: Section) -> bool {
        let any = self.pre_data || self.data || self.post_data;
        match section {
            Section::PreData => !any || self.pre_data,
            Section::Data => !any || self.data,
            Section::PostData => !any || self.post_data,
            Section::None => true,
        }
    }

    /// Names objects of some kinds, and so leaves out all other kinds.
    fn names_kinds(&self) -> bool {
        !(self.tables.is_empty()
            && self.indexes.is_empty()
            && self.functions.is_empty()
            && self.triggers.is_empty())
    }

    /// Names objects rather than taking all.
    fn names_objects(&self) -> bool {
        self.names_kinds() || !self.schemas.is_empty()
    }
}

/// What of an entry is restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub schema: bool,
    pub data: bool,
    pub statistics: bool,
}

impl Parts {
    pub const NONE: Parts = Parts { schema: false, data: false, statistics: false };

    pub fn any(self) -> bool {
        self.schema || self.data || self.statistics
    }
}

/// What the flags ask for, of all entries, those of the database itself among them.
pub struct Choice {
    /// All places, in the order in which `pg_restore` goes through them: those of a list file come last.
    pub order: Vec<u32>,
    /// By place.
    pub parts: Vec<Parts>,
    /// The first name asked for that names nothing, with its kind.
    pub missing: Option<(&'static str, String)>,
    /// Foreign keys to tables that do not come along with all their partitions, with --with-dependencies.
    pub left_out: Vec<u32>,
}

/// The entries that are restored.
#[derive(Clone, Debug)]
pub struct Selection {
    chosen: Vec<bool>,
    order: Vec<u32>,
    /// TABLE's dump id to the place of its TABLE DATA.
    data: HashMap<i32, u32>,
    rows_only: bool,
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

    /// No definition is chosen, by the flags or as there is none.
    pub fn rows_only(&self) -> bool {
        self.rows_only
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

/// Whether the flags ask for the entry, and its order, as the restore on several connections wants them.
pub fn select(toc: &Toc, filter: &Filter) -> Selection {
    let Choice { order, parts, .. } = choose(toc, filter);
    // The database itself is made before everything else, outside of the plan.
    let wanted =
        |place: u32| parts[place as usize].any() && toc.entry(place as usize).desc != b"DATABASE";
    let order: Vec<u32> = order.into_iter().filter(|&place| wanted(place)).collect();
    let mut chosen = vec![false; toc.len()];
    let mut data = HashMap::new();
    for &place in &order {
        chosen[place as usize] = true;
        let entry = toc.entry(place as usize);
        if entry.desc == b"TABLE DATA" {
            for d in entry.dependencies {
                data.insert(*d, place);
            }
        }
    }
    let rows_only = !filter.wants_schema() || !parts.iter().any(|p| p.schema);
    Selection { chosen, order, data, rows_only }
}

/// What `pg_restore` says of the first name among those asked for that names nothing in the archive.
pub fn unmatched(toc: &Toc, filter: &Filter) -> Option<String> {
    choose(toc, filter).missing.map(|(kind, name)| format!("{kind} \"{name}\" not found"))
}

/// Foreign keys that --with-dependencies leaves out, as messages have it.
pub fn left_out(toc: &Toc, filter: &Filter) -> Vec<String> {
    let places = match filter.with_dependencies {
        true => choose(toc, filter).left_out,
        false => Vec::new(),
    };
    let name = |p: u32| crate::plan::build::describe(&toc.as_written().entry(p as usize));
    places
        .into_iter()
        .map(|p| {
            let why =
                "its table refers to one that does not come along, or not with all its partitions";
            format!("{} is left out: {why}", name(p))
        })
        .collect()
}

/// Choose.
pub fn choose(toc: &Toc, filter: &Filter) -> Choice {
    let toc = toc.as_written();
    let places = 0..toc.len() as u32;
    let order: Vec<u32> = match &filter.list {
        None => places.collect(),
        Some(list) => {
            let mut seen = HashSet::new();
            let listed = list.iter().filter_map(|id| Some(toc.place(*id)? as u32));
            let listed: Vec<u32> = listed.filter(|p| seen.insert(*p)).collect();
            places.filter(|p| !seen.contains(p)).chain(listed).collect()
        }
    };
    let mut chooser = Chooser::new(toc, filter);
    let mut parts = vec![Parts::NONE; toc.len()];
    // Entries of no section, comments for one, go with those that they stand among.
    let mut sections = vec![Section::PreData; toc.len()];
    let mut current = Section::PreData;
    for &place in &order {
        let place = place as usize;
        let entry = toc.entry(place);
        if entry.section != Section::None {
            current = entry.section;
        }
        sections[place] = current;
        parts[place] = chooser.parts(&entry, current, false, &parts);
    }
    let mut left_out = Vec::new();
    if filter.names_objects() && filter.with_dependencies {
        let thing =
            |e: &Entry| !describes(e) && !is_session_setup(e) && !e.desc.starts_with(b"DATABASE");
        let named = toc.entries().map(|e| thing(&e) && chooser.named(&e)).collect();
        let found = needed::find(toc, named);
        for place in 0..toc.len() {
            let entry = toc.entry(place);
            if found.reached[place] && thing(&entry) {
                parts[place] = chooser.parts(&entry, sections[place], true, &parts);
            }
        }
        for place in 0..toc.len() {
            let entry = toc.entry(place);
            if describes(&entry) {
                parts[place] = chooser.described(&entry, sections[place], &parts, &found.reached);
            }
        }
        left_out = found.left_out;
        left_out.retain(|place| {
            let place = *place as usize;
            chooser.parts(&toc.entry(place), sections[place], true, &parts).any()
        });
    }
    Choice { order, parts, missing: chooser.missing(), left_out }
}

/// Privileges, comments and labels, which follow what they describe.
fn describes(entry: &Entry) -> bool {
    matches!(entry.desc, b"ACL" | b"COMMENT" | b"SECURITY LABEL")
}

/// Names of one kind, and which of them named something.
struct Names<'a> {
    names: &'a [String],
    found: Vec<bool>,
}

impl<'a> Names<'a> {
    fn new(names: &'a [String]) -> Self {
        Names { names, found: vec![false; names.len()] }
    }

    fn take(&mut self, matches: impl Fn(&[u8]) -> bool) -> bool {
        let mut any = false;
        for (name, found) in self.names.iter().zip(&mut self.found) {
            if matches(name.as_bytes()) {
                *found = true;
                any = true;
            }
        }
        any
    }

    fn has(&mut self, name: &[u8]) -> bool {
        self.take(|n| n == name)
    }
}

struct Chooser<'a> {
    toc: &'a Toc,
    filter: &'a Filter,
    listed: Option<HashSet<i32>>,
    schemas: Names<'a>,
    tables: Names<'a>,
    indexes: Names<'a>,
    functions: Names<'a>,
    triggers: Names<'a>,
}

impl<'a> Chooser<'a> {
    fn new(toc: &'a Toc, filter: &'a Filter) -> Self {
        Chooser {
            toc,
            filter,
            listed: filter.list.as_ref().map(|list| list.iter().copied().collect()),
            schemas: Names::new(&filter.schemas),
            tables: Names::new(&filter.tables),
            indexes: Names::new(&filter.indexes),
            functions: Names::new(&filter.functions),
            triggers: Names::new(&filter.triggers),
        }
    }

    fn missing(&self) -> Option<(&'static str, String)> {
        let kinds = [
            ("schema", &self.schemas),
            ("table", &self.tables),
            ("index", &self.indexes),
            ("function", &self.functions),
            ("trigger", &self.triggers),
        ];
        kinds.into_iter().find_map(|(kind, names)| {
            let at = names.found.iter().position(|found| !found)?;
            Some((kind, names.names[at].clone()))
        })
    }

    /// What of an entry is wanted, after those before it have been asked for. `forced`: as something that a chosen
    /// object depends on, whatever is named.
    fn parts(&mut self, entry: &Entry, section: Section, forced: bool, chosen: &[Parts]) -> Parts {
        let filter = self.filter;
        let desc = entry.desc;
        if is_session_setup(entry) {
            return Parts::NONE;
        }
        let statistics = desc == b"STATISTICS DATA";
        if statistics && !filter.wants_statistics() {
            return Parts::NONE;
        }
        if matches!(desc, b"DATABASE" | b"DATABASE PROPERTIES") {
            return Parts { schema: filter.create, ..Parts::NONE };
        }
        if self.excluded(entry) || !filter.wants_section(section) {
            return Parts::NONE;
        }
        if self.listed.as_ref().is_some_and(|listed| !listed.contains(&entry.dump_id)) {
            return Parts::NONE;
        }
        if !forced {
            let fits = match describes(entry) {
                true => self.parent_chosen(entry, chosen),
                false => self.named(entry),
            };
            if !fits {
                return Parts::NONE;
            }
        }
        // Values of sequences and all that makes large objects are data, though there are none in the archive's data.
        let large_object = entry.tag.starts_with(b"LARGE OBJECT");
        let data_statement = matches!(desc, b"SEQUENCE SET" | b"BLOB" | b"BLOB METADATA")
            || describes(entry) && large_object;
        let has_schema = !entry.defn.is_empty() && !entry.defn.starts_with(VIA_ROOT);
        Parts {
            schema: filter.wants_schema()
                && has_schema
                && !statistics
                && (entry.has_data || !data_statement),
            data: filter.wants_data() && !statistics && (entry.has_data || data_statement),
            statistics,
        }
    }

    /// Left out by a flag for its kind.
    fn excluded(&self, entry: &Entry) -> bool {
        let filter = self.filter;
        let about = |what: &[u8]| entry.tag.starts_with(what);
        match entry.desc {
            b"ACL" | b"ACL LANGUAGE" | b"DEFAULT ACL" => filter.no_privileges,
            b"COMMENT" => {
                filter.no_comments
                    || filter.no_policies && about(b"POLICY")
                    || filter.no_publications && about(b"PUBLICATION")
                    || filter.no_subscriptions && about(b"SUBSCRIPTION")
            }
            b"SECURITY LABEL" => {
                filter.no_security_labels
                    || filter.no_publications && about(b"PUBLICATION")
                    || filter.no_subscriptions && about(b"SUBSCRIPTION")
            }
            b"POLICY" | b"ROW SECURITY" => filter.no_policies,
            b"PUBLICATION" | b"PUBLICATION TABLE" | b"PUBLICATION TABLES IN SCHEMA" => {
                filter.no_publications
            }
            b"SUBSCRIPTION" | b"SUBSCRIPTION TABLE" => filter.no_subscriptions,
            _ => false,
        }
    }

    /// What describes something is wanted if that is; what describes the database, if that is made.
    fn parent_chosen(&self, entry: &Entry, chosen: &[Parts]) -> bool {
        if entry.tag.starts_with(b"DATABASE ") {
            return self.filter.create;
        }
        if !self.filter.names_objects() && self.filter.exclude_schemas.is_empty() {
            return true;
        }
        entry.dependencies.iter().filter_map(|d| self.toc.place(*d)).any(|parent| {
            // A column's privileges depend on those of its table.
            self.toc.entry(parent).desc != b"ACL" && chosen[parent].any()
        })
    }

    /// Whether the names that are asked for or excluded let an entry pass.
    fn named(&mut self, entry: &Entry) -> bool {
        let filter = self.filter;
        let namespace = entry.given(Absent::NAMESPACE);
        if !filter.schemas.is_empty() && !namespace.is_some_and(|name| self.schemas.has(name)) {
            return false;
        }
        let excluded = |name: &[u8]| filter.exclude_schemas.iter().any(|n| n.as_bytes() == name);
        if namespace.is_some_and(excluded) {
            return false;
        }
        if !filter.names_kinds() {
            return true;
        }
        match entry.desc {
            b"STATISTICS DATA" => {
                let parents = entry.dependencies.iter().filter_map(|d| self.toc.place(*d));
                let parents: Vec<Entry> = parents.map(|p| self.toc.entry(p)).collect();
                parents.iter().fold(false, |fits, parent| {
                    fits | match parent.desc {
                        b"TABLE" | b"VIEW" | b"FOREIGN TABLE" | b"MATERIALIZED VIEW" => {
                            self.tables.has(parent.tag)
                        }
                        b"INDEX" => self.indexes.has(parent.tag),
                        _ => false,
                    }
                })
            }
            b"TABLE"
            | b"TABLE DATA"
            | b"VIEW"
            | b"FOREIGN TABLE"
            | b"MATERIALIZED VIEW"
            | b"MATERIALIZED VIEW DATA"
            | b"SEQUENCE"
            | b"SEQUENCE SET" => self.tables.has(entry.tag),
            b"INDEX" => self.indexes.has(entry.tag),
            b"FUNCTION" | b"AGGREGATE" | b"PROCEDURE" => self.functions.has(entry.tag),
            // The tag is "table trigger". pg_restore wants all of it; the trigger's name alone is taken as well.
            b"TRIGGER" => self.triggers.take(|name| {
                let table = entry.tag.strip_suffix(name);
                table.is_some_and(|table| table.is_empty() || table.ends_with(b" "))
            }),
            _ => false,
        }
    }

    /// What describes something, once that was chosen as something that others depend on.
    fn described(
        &mut self,
        entry: &Entry,
        section: Section,
        chosen: &[Parts],
        reached: &[bool],
    ) -> Parts {
        let parents = entry.dependencies.iter().filter_map(|d| self.toc.place(*d));
        let fits = parents
            .into_iter()
            .any(|p| self.toc.entry(p).desc != b"ACL" && (chosen[p].any() || reached[p]));
        match fits {
            true => self.parts(entry, section, true, chosen),
            false => Parts::NONE,
        }
    }
}

/// How pg_dump marks rows that go to another table than their own. It is a comment and no definition.
const VIA_ROOT: &[u8] = b"-- load via partition root ";

#[cfg(test)]
mod tests {
    use super::*;

    fn toc() -> Toc {
        let mut toc = Toc::default();
        let mut add =
            |dump_id, desc: &[u8], namespace: &[u8], tag: &[u8], section, dependencies: &[i32]| {
                let has_data = desc == b"TABLE DATA";
                let entry = Entry {
                    dump_id,
                    desc,
                    namespace,
                    tag,
                    section,
                    dependencies,
                    defn: if has_data { b"" } else { b"SELECT;" },
                    has_data,
                    ..Entry::default()
                };
                toc.push(&entry).unwrap();
            };
        add(1, b"ENCODING", b"", b"ENCODING", Section::PreData, &[]);
        add(2, b"SCHEMA", b"", b"s", Section::PreData, &[]);
        add(3, b"TYPE", b"s", b"ty", Section::PreData, &[2]);
        add(4, b"TABLE", b"s", b"t", Section::PreData, &[3]);
        add(5, b"ACL", b"s", b"TABLE t", Section::None, &[4]);
        add(6, b"TABLE", b"s", b"u", Section::PreData, &[]);
        add(7, b"TABLE DATA", b"s", b"t", Section::Data, &[4]);
        add(8, b"INDEX", b"s", b"i", Section::PostData, &[4]);
        add(9, b"STATISTICS DATA", b"s", b"t", Section::None, &[4]);
        toc
    }

    fn chosen(filter: Filter) -> Vec<i32> {
        let toc = toc();
        select(&toc, &filter).places().map(|p| toc.entry(p as usize).dump_id).collect()
    }

    #[test]
    fn sections() {
        let with = |change: fn(&mut Filter)| {
            let mut filter = Filter::default();
            change(&mut filter);
            chosen(filter)
        };
        assert_eq!(with(|_| {}), [2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(with(|f| f.schema_only = true), [2, 3, 4, 5, 6, 8]);
        assert_eq!(with(|f| f.data_only = true), [7]);
        assert_eq!(with(|f| f.statistics_only = true), [9]);
        assert_eq!(with(|f| f.no_data = true), [2, 3, 4, 5, 6, 8, 9]);
        assert_eq!(with(|f| f.no_schema = true), [7, 9]);
        assert_eq!(with(|f| f.no_statistics = true), [2, 3, 4, 5, 6, 7, 8]);
        // What is in no section goes with what stands before it.
        assert_eq!(with(|f| f.pre_data = true), [2, 3, 4, 5, 6]);
        assert_eq!(with(|f| f.post_data = true), [8, 9]);
    }

    #[test]
    fn names() {
        let tables = Filter { tables: vec!["t".into()], ..Filter::default() };
        assert_eq!(chosen(tables.clone()), [4, 5, 7, 9]);
        let all = Filter { with_dependencies: true, ..tables };
        assert_eq!(chosen(all), [2, 3, 4, 5, 7, 8, 9]);
        assert_eq!(chosen(Filter { exclude_schemas: vec!["s".into()], ..Filter::default() }), [2]);
    }

    #[test]
    fn names_of_nothing() {
        let toc = toc();
        let filter = Filter { tables: vec!["t".into(), "v".into()], ..Filter::default() };
        assert_eq!(unmatched(&toc, &filter).unwrap(), "table \"v\" not found");
        assert_eq!(unmatched(&toc, &Filter::default()), None);
    }

    #[test]
    fn lists_give_the_order() {
        let list = |ids: &[i32]| Filter { list: Some(ids.to_vec()), ..Filter::default() };
        assert_eq!(chosen(list(&[6, 4, 4, 99])), [6, 4]);
        let order = choose(&toc(), &list(&[8, 2])).order;
        assert_eq!(order, [0, 2, 3, 4, 5, 6, 8, 7, 1]);
    }
}
