//! What runs functions of the archive when it is made: these may read other tables, whatever they say of themselves, and so
//! all rows come first, as `pg_restore` has it.
//!
//! An index runs the functions of its expressions, of its predicate and of its operator classes. Of most of these its entry tells by
//! its dependencies: an operator stands for its function there, a domain for those of its conditions, a type for those that read it. An enum
//! has none, nor has a domain without conditions, or whose conditions call nothing but the server's own. What dependencies do not tell:
//! - of an exclusion constraint `pg_dump` tells the table only: its text names what is not the server's own with a schema;
//! - functions of extensions are the extension there, and so are operator classes, which read no tables: again by the text;
//! - a plain column of a type that has an operator class of the user's, or that consists of such, is compared by its function;
//! - an operator class for a type of the server's may compare any key.

mod reads;

use super::text::{calls_others, generated, Called};
use crate::archive::{Entry, Toc};
pub use reads::reads_nothing;
use std::collections::{HashMap, HashSet};

/// What the stored generated columns of a table call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Dump ids of what is in the archive.
    known: Vec<i32>,
    /// Names of what is not, such as members of extensions.
    others: Vec<Vec<u8>>,
    /// Something else than members of extensions is among these: it may look at any table.
    pub looks: bool,
}

impl Calls {
    /// Of a table that was there before, by the names of what it calls.
    pub fn named(names: impl Iterator<Item = Vec<u8>>) -> Calls {
        Calls { known: Vec::new(), others: names.collect(), looks: true }
    }
}

/// What of an archive runs functions of its own.
pub struct Code<'a> {
    toc: &'a Toc,
    /// There are operator classes of the user's.
    classes: bool,
    /// One of them is for a type of the server's.
    foreign_class: bool,
    /// Statements name nothing with its schema.
    unqualified: bool,
    /// Places of domains and types with functions of the user's in them.
    types: HashSet<u32>,
    /// Places of types that are compared by a function of the user's, and of tables with columns of such.
    compared: HashSet<u32>,
    /// Functions of casts, by dump id.
    casts: HashSet<i32>,
    /// Places of functions that read no tables.
    plain: HashSet<u32>,
}

/// Entries that stand for code whatever they are.
fn is_code(desc: &[u8]) -> bool {
    matches!(
        desc,
        b"FUNCTION"
            | b"AGGREGATE"
            | b"PROCEDURE"
            | b"OPERATOR"
            | b"OPERATOR CLASS"
            | b"OPERATOR FAMILY"
    )
}

impl<'a> Code<'a> {
    pub fn of(toc: &'a Toc, unqualified: bool) -> Code<'a> {
        let mut code = Code {
            toc,
            classes: false,
            foreign_class: false,
            unqualified,
            types: HashSet::new(),
            compared: HashSet::new(),
            casts: HashSet::new(),
            plain: HashSet::new(),
        };
        for (place, entry) in toc.entries().enumerate() {
            let needs = || entry.dependencies.iter().filter_map(|id| toc.place(*id));
            let is = |kinds: &[&[u8]], place: usize| kinds.contains(&toc.entry(place).desc);
            match entry.desc {
                b"OPERATOR CLASS" => {
                    code.classes = true;
                    let types = || needs().filter(|p| is(&[b"TYPE", b"DOMAIN"], *p));
                    let default = b"DEFAULT FOR TYPE ";
                    let default = entry.defn.windows(default.len()).any(|w| w == default);
                    code.foreign_class |= default && types().next().is_none();
                    code.compared.extend(types().map(|place| place as u32));
                }
                // Of a range: how it is compared, and how far its ends are from each other.
                b"TYPE" if needs().any(|p| is(&[b"FUNCTION", b"OPERATOR CLASS"], p)) => {
                    code.compared.insert(place as u32);
                    code.types.insert(place as u32);
                }
                b"DOMAIN" if needs().any(|p| is_code(toc.entry(p).desc)) || called(&entry) => {
                    code.types.insert(place as u32);
                }
                // A domain's conditions that come later than itself.
                b"CHECK CONSTRAINT" => {
                    let domains = needs().filter(|p| is(&[b"DOMAIN"], *p));
                    code.types.extend(domains.map(|place| place as u32));
                }
                b"CAST" => {
                    let functions = needs().filter(|p| is(&[b"FUNCTION"], *p));
                    code.casts.extend(functions.map(|place| toc.entry(place).dump_id));
                }
                _ => {}
            }
        }
        let consists = |desc: &[u8]| matches!(desc, b"TYPE" | b"DOMAIN");
        spread(toc, &mut code.types, consists);
        spread(toc, &mut code.compared, |desc| consists(desc) || desc == b"TABLE");
        // A cast or a class of the archive may be what a function runs that does not name it.
        if !unqualified && !code.foreign_class && code.casts.is_empty() {
            let functions = toc.entries().enumerate().filter(|(_, e)| e.desc == b"FUNCTION");
            let plain = functions.filter(|(_, e)| reads_nothing(e.defn));
            code.plain = plain.map(|(place, _)| place as u32).collect();
        }
        code
    }

    fn is_compared(&self, id: i32) -> bool {
        !self.compared.is_empty()
            && self.toc.place(id).is_some_and(|place| self.compared.contains(&(place as u32)))
    }

    /// Making this runs a function of the archive's.
    pub fn runs(&self, entry: &Entry) -> bool {
        let mut extension = false;
        for &id in entry.dependencies {
            let Some(place) = self.toc.place(id) else { continue };
            let desc = self.toc.entry(place).desc;
            let place = place as u32;
            if is_code(desc) && !self.plain.contains(&place) || self.types.contains(&place) {
                return true;
            }
            extension |= desc == b"EXTENSION";
        }
        let compared =
            || self.foreign_class || entry.dependencies.iter().any(|id| self.is_compared(*id));
        match entry.desc {
            b"INDEX" => extension && calls_others(entry.defn) || compared(),
            b"CONSTRAINT" => {
                let words = b" EXCLUDE ";
                let excludes = entry.defn.windows(words.len()).any(|w| w == words);
                excludes && (self.classes || self.unqualified || calls_others(entry.defn))
                    || is_key(entry.defn) && compared()
            }
            b"CHECK CONSTRAINT" => extension,
            _ => false,
        }
    }

    /// Tables whose stored generated columns call functions of the archive that may read other tables, or of extensions, by dump id.
    ///
    /// The columns' text tells what they call by its name, but for functions of casts, which may be implicit, and of
    /// comparisons. A table that inherits such a column need not have it in its text. Conditions of domains change no value.
    pub fn generating(&self) -> HashMap<i32, Calls> {
        let mut columns = HashMap::<i32, Called>::new();
        let mut calling = HashMap::<i32, Calls>::new();
        // A table may inherit from a foreign one.
        let is_table = |entry: &Entry| matches!(entry.desc, b"TABLE" | b"FOREIGN TABLE");
        for entry in self.toc.entries().filter(is_table) {
            let words = b"\nINHERITS (";
            let inherits = entry.defn.windows(words.len()).any(|w| w == words);
            let above: &[i32] = if inherits { entry.dependencies } else { &[] };
            let mut called = generated(entry.defn);
            for more in above.iter().filter_map(|id| columns.get(id)) {
                called.get_or_insert_default().add(more);
            }
            let Some(called) = called else { continue };
            let mut calls = self.calls(&entry, &called);
            for more in above.iter().filter_map(|id| calling.get(id)) {
                calls.known.extend(&more.known);
                calls.others.extend(more.others.iter().cloned());
                calls.looks |= more.looks;
            }
            calls.looks |= self.foreign_class;
            calls.known.sort_unstable();
            calls.known.dedup();
            calls.others.sort_unstable();
            calls.others.dedup();
            columns.insert(entry.dump_id, called);
            if self.foreign_class || calls != Calls::default() {
                calling.insert(entry.dump_id, calls);
            }
        }
        calling
    }

    fn calls(&self, table: &Entry, called: &Called) -> Calls {
        let others = called.operators.clone();
        let mut calls = Calls { others, ..Calls::default() };
        let mut extension = false;
        // What is found among the dependencies is no member of an extension.
        let (mut functions, mut types) = (called.functions.clone(), called.types.clone());
        for &id in table.dependencies {
            let Some(place) = self.toc.place(id) else { continue };
            let entry = self.toc.entry(place);
            extension |= entry.desc == b"EXTENSION";
            let may_call = match entry.desc {
                b"FUNCTION" | b"AGGREGATE" | b"PROCEDURE" => {
                    let is_it = |name: &Vec<u8>| {
                        entry.tag.strip_prefix(&name[..]).is_some_and(|rest| rest.starts_with(b"("))
                    };
                    functions.retain(|name| !is_it(name));
                    let named = || called.functions.iter().any(is_it);
                    !self.plain.contains(&(place as u32))
                        && (self.unqualified || self.casts.contains(&id) || named())
                }
                b"OPERATOR" => {
                    calls.others.retain(|name| name != entry.tag);
                    true
                }
                b"OPERATOR CLASS" | b"OPERATOR FAMILY" => true,
                b"TYPE" | b"DOMAIN" | b"TABLE" => {
                    types.retain(|name| name != entry.tag);
                    self.is_compared(id)
                }
                _ => false,
            };
            if may_call {
                calls.known.push(id);
            }
        }
        calls.others.extend(functions);
        calls.others.extend(types);
        calls.looks = !calls.known.is_empty() || !calls.others.is_empty() && !extension;
        calls
    }
}

/// A domain's conditions call what is not the server's own.
fn called(domain: &Entry) -> bool {
    let words = b" CHECK (";
    domain.defn.windows(words.len()).any(|w| w == words) && calls_others(domain.defn)
}

fn is_key(defn: &[u8]) -> bool {
    [&b" PRIMARY KEY "[..], b" UNIQUE ", b" EXCLUDE "]
        .iter()
        .any(|words| defn.windows(words.len()).any(|w| w == *words))
}

/// Add what consists of some of these, of such kinds.
fn spread(toc: &Toc, found: &mut HashSet<u32>, kinds: impl Fn(&[u8]) -> bool) {
    if found.is_empty() {
        return;
    }
    let mut users = HashMap::<i32, Vec<u32>>::new();
    for (place, entry) in toc.entries().enumerate().filter(|(_, e)| kinds(e.desc)) {
        for id in entry.dependencies {
            users.entry(*id).or_default().push(place as u32);
        }
    }
    let mut stack: Vec<u32> = found.iter().copied().collect();
    while let Some(place) = stack.pop() {
        let users = users.get(&toc.entry(place as usize).dump_id);
        stack.extend(users.into_iter().flatten().filter(|user| found.insert(**user)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toc(entries: &[(&'static [u8], &'static [u8], &'static [i32])]) -> Toc {
        let mut toc = Toc::default();
        for (n, (desc, defn, dependencies)) in entries.iter().enumerate() {
            let dump_id = n as i32 + 1;
            let entry = Entry { dump_id, desc, defn, dependencies, ..Entry::default() };
            toc.push(&entry).unwrap();
        }
        toc
    }

    fn running(toc: &Toc) -> Vec<usize> {
        let code = Code::of(toc, false);
        (0..toc.len()).filter(|place| code.runs(&toc.entry(*place))).map(|p| p + 1).collect()
    }

    #[test]
    fn functions_of_the_archive() {
        let index = b"CREATE INDEX i ON public.t USING btree (a) WHERE (b > 0);\n";
        let excludes =
            b"ALTER TABLE ONLY public.t\n    ADD CONSTRAINT c EXCLUDE USING gist (r WITH &&);\n";
        let looks = b"ALTER TABLE ONLY public.t\n    ADD CONSTRAINT c EXCLUDE USING gist (r WITH &&) WHERE (public.f(a));\n";
        let class = b"CREATE INDEX i ON public.t USING gin (a public.gin_trgm_ops);\n";
        let call = b"CREATE INDEX i ON public.t USING gist (public.st_transform(a, 4326));\n";
        let found = toc(&[
            (b"EXTENSION", b"", &[]),
            (b"FUNCTION", b"", &[]),
            (b"OPERATOR", b"", &[2]),
            (b"TABLE", b"", &[]),
            (b"INDEX", index, &[4]),
            (b"INDEX", index, &[4, 2]),
            (b"INDEX", index, &[4, 3]),
            (b"INDEX", class, &[4, 1]),
            (b"INDEX", call, &[4, 1]),
            (b"CONSTRAINT", excludes, &[4]),
            (b"CONSTRAINT", looks, &[4]),
        ]);
        assert_eq!(running(&found), [3, 6, 7, 9, 11]);
    }

    #[test]
    fn types_of_the_archive() {
        let key = b"ALTER TABLE ONLY public.t\n    ADD CONSTRAINT k PRIMARY KEY (id);\n";
        let found = toc(&[
            (b"TYPE", b"", &[]),
            (b"TYPE", b"", &[1]),
            (b"OPERATOR CLASS", b"", &[1]),
            (b"TYPE", b"", &[]),
            (b"TABLE", b"", &[2]),
            (b"TABLE", b"", &[4]),
            (b"CONSTRAINT", key, &[5]),
            (b"CONSTRAINT", key, &[6]),
        ]);
        // What is no index runs nothing of the kind, whatever it needs; who asks asks of what comes after rows.
        assert!(running(&found).contains(&7) && !running(&found).contains(&8));
    }

    #[test]
    fn what_is_no_code() {
        let enumeration = b"CREATE TYPE public.s AS ENUM (\n    'on'\n);\n";
        let plain = b"CREATE DOMAIN public.d AS integer\n\tCONSTRAINT c CHECK ((VALUE > 0));\n";
        let asks = b"CREATE DOMAIN public.d AS integer\n\tCONSTRAINT c CHECK (public.f(VALUE));\n";
        let reads = b"CREATE FUNCTION public.f(integer) RETURNS boolean\n    LANGUAGE sql\n    AS $$ SELECT v FROM public.t $$;\n";
        let none = b"CREATE FUNCTION public.g(integer) RETURNS boolean\n    LANGUAGE sql\n    AS $_$ SELECT $1 > 0 $_$;\n";
        let index = b"CREATE INDEX i ON public.t USING btree (a) WHERE (s = 'on'::public.s);\n";
        let key = b"ALTER TABLE ONLY public.t\n    ADD CONSTRAINT k PRIMARY KEY (id);\n";
        let mut entries: Vec<(&'static [u8], &'static [u8], &'static [i32])> = vec![
            (b"TYPE", enumeration, &[]),
            (b"DOMAIN", plain, &[]),
            (b"FUNCTION", reads, &[]),
            (b"FUNCTION", none, &[]),
            (b"DOMAIN", asks, &[3]),
            (b"DOMAIN", plain, &[5]),
            (b"DOMAIN", plain, &[]),
            (b"INDEX", index, &[1]),
            (b"INDEX", index, &[2]),
            (b"INDEX", index, &[3]),
            (b"INDEX", index, &[4]),
            (b"INDEX", index, &[6]),
            // A domain's condition that comes by itself.
            (b"INDEX", index, &[7]),
            (b"CHECK CONSTRAINT", b"", &[7]),
            (b"CONSTRAINT", key, &[]),
        ];
        let after = |toc: &Toc| {
            running(toc).into_iter().filter(|n| (8..16).contains(n)).collect::<Vec<_>>()
        };
        assert_eq!(after(&toc(&entries)), [10, 12, 13, 14]);
        // A cast may be what a function runs without its name.
        entries.push((b"CAST", b"", &[3]));
        assert_eq!(after(&toc(&entries)), [10, 11, 12, 13, 14]);
        // A class for a type of the server's compares any key.
        let class = b"CREATE OPERATOR CLASS public.c\n    DEFAULT FOR TYPE json USING btree AS\n    FUNCTION 1 public.f(json,json);\n";
        entries.push((b"OPERATOR CLASS", class, &[3]));
        assert_eq!(after(&toc(&entries)), [8, 9, 10, 11, 12, 13, 14, 15]);
    }

    /// Kind, tag, statement and dependencies.
    type Tagged = (&'static [u8], &'static [u8], &'static [u8], &'static [i32]);

    #[test]
    fn generated_columns() {
        let reads = b"CREATE FUNCTION public.f(integer) RETURNS integer\n    LANGUAGE sql\n    AS $$ SELECT v FROM public.t $$;\n";
        let lower = b"CREATE TABLE t (\n    a integer DEFAULT public.f(1),\n    b text GENERATED ALWAYS AS (lower('x'::text)) STORED\n);\n";
        let calls =
            b"CREATE TABLE t (\n    b integer GENERATED ALWAYS AS (public.f(1)) STORED\n);\n";
        let below = b"CREATE TABLE k (\n)\nINHERITS (public.t);\n";
        let state = b"CREATE TABLE t (\n    b boolean GENERATED ALWAYS AS ((s = 'on'::public.state)) STORED\n);\n";
        let mut found = Toc::default();
        let entries: [Tagged; 12] = [
            (b"FUNCTION", b"f(integer)", reads, &[]),
            (b"TYPE", b"state", b"CREATE TYPE public.state AS ENUM (\n);\n", &[]),
            (b"TABLE", b"t", lower, &[1]),
            (b"TABLE", b"t", calls, &[1]),
            (b"TABLE", b"k", below, &[4]),
            (b"TABLE", b"k", below, &[5]),
            (b"TABLE", b"t", state, &[2]),
            // Of an extension, or of what is not in the archive.
            (b"TABLE", b"t", calls, &[]),
            (b"FOREIGN TABLE", b"t", calls, &[1]),
            (b"TABLE", b"k", below, &[9]),
            (b"EXTENSION", b"e", b"", &[]),
            (b"TABLE", b"t", calls, &[11]),
        ];
        for (n, (desc, tag, defn, dependencies)) in entries.into_iter().enumerate() {
            let dump_id = n as i32 + 1;
            found
                .push(&Entry { dump_id, desc, tag, defn, dependencies, ..Entry::default() })
                .unwrap();
        }
        let of = |toc: &Toc| {
            let mut ids: Vec<i32> = Code::of(toc, false).generating().into_keys().collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(of(&found), [4, 5, 6, 8, 9, 10, 12]);
        // What is an extension's looks at no table of the archive's.
        let looks = |id| Code::of(&found, false).generating()[&id].looks;
        assert!([4, 5, 6, 8, 9, 10].into_iter().all(looks) && !looks(12));
        // The function of a cast need not be named.
        found
            .push(&Entry { dump_id: 13, desc: b"CAST", dependencies: &[1], ..Entry::default() })
            .unwrap();
        assert_eq!(of(&found), [3, 4, 5, 6, 8, 9, 10, 12]);
    }
}
