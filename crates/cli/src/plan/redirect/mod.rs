//! Rows and objects that go elsewhere than the archive says: `--redirect-table`, `--redirect-schema`.
//!
//! The table of contents is written anew, once, before anything is planned: plan, journal, proof and scripts read the new one and
//! know nothing of it. What the flags choose is chosen by the archive's own names ([`Toc::as_written`]).

mod aliases;
pub mod names;
mod schemas;
mod sql;
mod tokens;
mod types;

use crate::archive::{Entry, Toc};
use crate::error::{Error, Result};
use crate::pg::quote_ident;
use crate::plan::build::{copies_via_root, describe};
use crate::plan::select::{select, Filter, Selection};
use crate::plan::text::take_name;
use names::Name;
use schemas::Schemas;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// What goes elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Redirects {
    /// Rows of a table into another one.
    pub redirect_tables: Vec<(Name, Name)>,
    /// All of a schema into another one.
    pub redirect_schemas: Vec<(String, String)>,
}

impl Redirects {
    pub fn is_empty(&self) -> bool {
        self.redirect_tables.is_empty() && self.redirect_schemas.is_empty()
    }
}

/// An entry's texts, some of them new.
struct Changed<'a> {
    entry: Entry<'a>,
    namespace: Cow<'a, [u8]>,
    tag: Cow<'a, [u8]>,
    defn: Cow<'a, [u8]>,
    copy_stmt: Cow<'a, [u8]>,
    drop_stmt: Cow<'a, [u8]>,
}

impl<'a> Changed<'a> {
    fn new(entry: Entry<'a>) -> Self {
        Changed {
            entry,
            namespace: entry.namespace.into(),
            tag: entry.tag.into(),
            defn: entry.defn.into(),
            copy_stmt: entry.copy_stmt.into(),
            drop_stmt: entry.drop_stmt.into(),
        }
    }

    fn entry(&self) -> Entry<'_> {
        Entry {
            namespace: &self.namespace,
            tag: &self.tag,
            defn: &self.defn,
            copy_stmt: &self.copy_stmt,
            drop_stmt: &self.drop_stmt,
            ..self.entry
        }
    }
}

/// The table of contents as it is restored. `tell` is told what is left out.
pub fn apply(
    toc: Toc,
    filter: &Filter,
    redirects: &Redirects,
    tell: &mut dyn FnMut(&str),
) -> Result<Toc> {
    let selection = select(&toc, filter);
    let tables = Tables::find(&toc, &selection, redirects)?;
    let schemas = Schemas::find(&toc, &selection, &redirects.redirect_schemas)?;
    let mut new = toc.alike();
    for place in 0..toc.len() {
        let mut changed = Changed::new(toc.entry(place));
        let chosen = selection.has(place as u32);
        schemas.change(&mut changed, chosen, tell)?;
        tables.change(place, &mut changed, chosen, tell)?;
        new.push(&changed.entry())?;
    }
    new.shrink();
    Ok(new.instead_of(toc))
}

/// Why names cannot be compared with those of an archive, nor be written into it.
fn other_encoding<'a>(
    toc: &Toc,
    mut names: impl Iterator<Item = &'a String>,
) -> Option<&'static str> {
    let is_utf8 = |e: &Entry| e.desc == b"ENCODING" && e.defn.windows(6).any(|w| w == b"'UTF8'");
    (names.any(|name| !name.is_ascii()) && !toc.entries().any(|e| is_utf8(&e)))
        .then_some("The archive's encoding is not UTF8, which the names are in.")
}

/// Tables whose rows go into others.
struct Tables<'a> {
    /// The place of the rows to where they go.
    rows: HashMap<usize, (Cow<'a, [u8]>, &'a [u8])>,
    /// Dump ids of the tables themselves.
    tables: HashSet<i32>,
    /// Dump ids of sequences that belong to them.
    sequences: HashSet<i32>,
}

impl<'a> Tables<'a> {
    fn find(toc: &'a Toc, selection: &Selection, redirects: &'a Redirects) -> Result<Tables<'a>> {
        let mut found =
            Tables { rows: HashMap::new(), tables: HashSet::new(), sequences: HashSet::new() };
        let pairs = redirects.redirect_tables.iter();
        let names = pairs.flat_map(|(a, b)| {
            [&a.schema, &b.schema].into_iter().flatten().chain([&a.name, &b.name])
        });
        if let Some(reason) = other_encoding(toc, names) {
            return Err(Error::usage("tables cannot be redirected").detail(reason));
        }
        for (old, new) in &redirects.redirect_tables {
            let fits = |place: &usize| {
                let entry = toc.entry(*place);
                entry.desc == b"TABLE DATA"
                    && selection.has(*place as u32)
                    && entry.tag == old.name.as_bytes()
                    && old.schema.as_ref().is_none_or(|s| s.as_bytes() == entry.namespace)
            };
            let places: Vec<usize> = (0..toc.len()).filter(fits).collect();
            let place = match places[..] {
                [place] => place,
                [] => {
                    return Err(Error::usage(format!("rows of table \"{old}\" not found"))
                        .detail("It names a table of --redirect-table, by the archive's names.")
                        .hint("Without rows in the archive, or left out by other flags, there is nothing to redirect."))
                }
                _ => {
                    let names: Vec<String> =
                        places.iter().map(|p| describe(&toc.entry(*p))).collect();
                    return Err(Error::usage(format!("table \"{old}\" is in several schemas"))
                        .detail(format!("They are: {}.", names.join(", ")))
                        .hint("Name the schema, too: --redirect-table=schema.table:table."));
                }
            };
            let entry = toc.entry(place);
            let schema = new.schema.as_ref().map(|s| s.as_bytes());
            let to = (schema.unwrap_or(entry.namespace).into(), new.name.as_bytes());
            if found.rows.insert(place, to).is_some() {
                return Err(Error::usage(format!("table \"{old}\" is redirected twice")));
            }
            let own = entry.dependencies.iter().copied().filter(|d| {
                toc.place(*d).map(|p| toc.entry(p)).is_some_and(|table| {
                    table.desc.ends_with(b"TABLE")
                        && (table.namespace, table.tag) == (entry.namespace, entry.tag)
                })
            });
            let own: Vec<i32> = own.collect();
            let values = |p: u32| toc.entry(p as usize).desc == b"SEQUENCE SET";
            if own.is_empty() && selection.places().any(values) {
                let what = describe(&entry);
                return Err(Error::usage(format!("{what} cannot be redirected together with values of sequences"))
                    .detail("The archive has no definitions of tables, and so does not tell which sequences belong to this one; its own would \
                             be set back.")
                    .hint("Leave the values out: by -t, or by a list without SEQUENCE SET for -L."));
            }
            found.tables.extend(own);
        }
        found.check(toc, selection)?;
        found.find_sequences(toc);
        Ok(found)
    }

    /// Rows of several tables in one table cannot be told apart again.
    fn check(&self, toc: &Toc, selection: &Selection) -> Result<()> {
        let mut goals = HashMap::<(&[u8], &[u8]), usize>::new();
        for place in selection.places().map(|p| p as usize) {
            let entry = toc.entry(place);
            if entry.desc != b"TABLE DATA" {
                continue;
            }
            let goal = match self.rows.get(&place) {
                Some((schema, name)) => (&schema[..], *name),
                None => (entry.namespace, entry.tag),
            };
            if let Some(other) = goals.insert(goal, place) {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                let message =
                    format!("rows of two tables would go into {}.{}", text(goal.0), text(goal.1));
                let both = [describe(&toc.entry(other)), describe(&entry)];
                return Err(Error::usage(message).detail(format!("They are: {}.", both.join(", "))));
            }
        }
        Ok(())
    }

    /// Sequences of serial and identity columns.
    fn find_sequences(&mut self, toc: &Toc) {
        let ours = |entry: &Entry| entry.dependencies.iter().any(|d| self.tables.contains(d));
        // No other sequence depends on a table.
        let owned = toc.entries().filter(|e| e.desc == b"SEQUENCE" && ours(e));
        self.sequences = owned.map(|e| e.dump_id).collect();
    }

    fn change(
        &self,
        place: usize,
        changed: &mut Changed<'a>,
        chosen: bool,
        tell: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let entry = changed.entry;
        if let Some((schema, name)) = self.rows.get(&place) {
            let what = describe(&entry);
            if copies_via_root(&entry) {
                return Err(Error::usage(format!("{what} cannot be redirected"))
                    .detail("Its rows go through the partitioned table that it belongs to."));
            }
            let rest = entry.copy_stmt.strip_prefix(b"COPY ").and_then(|mut rest| {
                take_name(&mut rest)?;
                Some(rest)
            });
            let Some(rest) = rest else {
                return Err(Error::usage(format!("{what} cannot be redirected"))
                    .detail("Its rows are INSERT statements (pg_dump --inserts), which name their table each."));
            };
            let both = [&quote_ident(schema)[..], b".", &quote_ident(name)].concat();
            changed.copy_stmt = [b"COPY ", &both[..], rest].concat().into();
            changed.namespace = schema.clone();
            changed.tag = Cow::Borrowed(name);
            return Ok(());
        }
        let of = |ids: &HashSet<i32>| entry.dependencies.iter().any(|d| ids.contains(d));
        let left_out = match entry.desc {
            // It counts other rows than those of the table that these go to.
            b"STATISTICS DATA" => of(&self.tables),
            b"SEQUENCE SET" => of(&self.sequences),
            _ => false,
        };
        if left_out && chosen {
            changed.defn = Cow::Borrowed(b"");
            let what = describe(&entry);
            tell(&format!("{what} is left out: the rows of its table go into another one"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Section;

    fn toc() -> Toc {
        let mut toc = Toc::default();
        let table = |dump_id, namespace| Entry {
            dump_id,
            desc: b"TABLE",
            tag: b"t",
            namespace,
            defn: b"CREATE TABLE",
            section: Section::PreData,
            ..Entry::default()
        };
        toc.push(&table(1, b"a")).unwrap();
        toc.push(&table(2, b"b")).unwrap();
        for (dump_id, namespace, copy_stmt) in [
            (3, &b"a"[..], &b"COPY a.t (x, \"y z\") FROM stdin;\n"[..]),
            (4, b"b", b"COPY b.t (x) FROM stdin;\n"),
        ] {
            let desc = b"TABLE DATA";
            let dependencies = &[dump_id - 2];
            let has_data = true;
            let section = Section::Data;
            toc.push(&Entry {
                dump_id,
                desc,
                dependencies,
                copy_stmt,
                has_data,
                section,
                ..table(1, namespace)
            })
            .unwrap();
        }
        toc
    }

    fn redirected(pairs: &[&str]) -> Result<Toc> {
        let redirect_tables = pairs.iter().map(|p| names::tables(p).unwrap()).collect();
        let filter = Filter { data_only: true, ..Filter::default() };
        apply(toc(), &filter, &Redirects { redirect_tables, ..Redirects::default() }, &mut |_| {})
    }

    #[test]
    fn rows_of_tables() {
        let toc = redirected(&["a.t:\"c.d\".\"Q\"\"\""]).unwrap();
        let entry = toc.entry(2);
        assert_eq!(entry.copy_stmt, b"COPY \"c.d\".\"Q\"\"\" (x, \"y z\") FROM stdin;\n");
        assert_eq!((entry.namespace, entry.tag), (&b"c.d"[..], &b"Q\""[..]));
        assert_eq!(toc.as_written().entry(2).namespace, b"a");
        assert_eq!(toc.entry(0).tag, b"t");
        let same = redirected(&["b.t:u"]).unwrap();
        assert_eq!((same.entry(3).namespace, same.entry(3).tag), (&b"b"[..], &b"u"[..]));
    }

    #[test]
    fn what_is_not_certain_is_refused() {
        let message = |pairs: &[&str]| redirected(pairs).err().unwrap().message;
        assert_eq!(message(&["t:u"]), "table \"t\" is in several schemas");
        assert_eq!(message(&["x.t:u"]), "rows of table \"x.t\" not found");
        assert_eq!(message(&["a.t:b.t"]), "rows of two tables would go into b.t");
        assert_eq!(message(&["a.t:u", "a.t:v"]), "table \"a.t\" is redirected twice");
        redirected(&["a.t:b.t", "b.t:a.t"]).unwrap();
    }
}
