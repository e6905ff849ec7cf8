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

use super::text::{
    called, calls_others, generated, last_part, take_name, unquoted, Called, LONGEST_NAME,
};
use crate::archive::{Entry, Toc};
pub use reads::reads_nothing;
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Callees that a table is known by: one whose columns call more is known by itself, and so are those that inherit them.
const MOST: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Callee {
    /// What is in the archive, by its dump id.
    Known(i32),
    /// What is not, such as members of extensions, by a number for its name.
    Other(u32),
    /// What is in the target, by its oid.
    There(u32),
}

/// What the stored generated columns of a table call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    callees: BTreeSet<Callee>,
    /// Something else than members of extensions is among these: it may look at any table.
    pub looks: bool,
}

impl Calls {
    /// What either calls; `own` stands for more than can be told apart.
    pub fn and(&self, more: &Calls, own: i32) -> Calls {
        let mut callees: BTreeSet<Callee> = self.callees.union(&more.callees).copied().collect();
        if callees.len() > MOST {
            callees = [Callee::Known(own)].into();
        }
        Calls { callees, looks: self.looks || more.looks }
    }

    /// Of a table that was there before, by what it calls in the target.
    pub fn there(oids: impl Iterator<Item = u32>) -> Calls {
        Calls { callees: oids.map(Callee::There).collect(), looks: true }
    }
}

/// Whose functions making something runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    None,
    /// Of extensions alone: these look at no table of the archive.
    Extensions,
    Archives,
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
    /// There are extensions.
    extensions: bool,
    /// Places of domains and types with functions in them, of extensions or of the user's.
    types: HashSet<u32>,
    /// Those of them with functions of the user's.
    own_types: HashSet<u32>,
    /// Places of types that are compared by a function of the user's, and of tables with columns of such.
    compared: HashSet<u32>,
    /// Names of the functions that make ranges and multiranges of the archive, where these have no functions of the user's. They are no entries,
    /// and version 18 does not tell that an index depends on their type.
    ranges: HashSet<Vec<u8>>,
    /// Functions of casts, by dump id.
    casts: HashSet<i32>,
    /// Places of functions that read no tables.
    plain: HashSet<u32>,
    /// Names of what the archive has that an expression may call and that may read tables.
    names: OnceCell<HashSet<&'a [u8]>>,
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
            extensions: toc.entries().any(|entry| entry.desc == b"EXTENSION"),
            types: HashSet::new(),
            own_types: HashSet::new(),
            compared: HashSet::new(),
            ranges: HashSet::new(),
            casts: HashSet::new(),
            plain: HashSet::new(),
            names: OnceCell::new(),
        };
        for (place, entry) in toc.entries().enumerate() {
            let needs = || entry.dependencies.iter().filter_map(|id| toc.place(*id));
            let is = |kinds: &[&[u8]], place: usize| kinds.contains(&toc.entry(place).desc);
            let calls_code = || needs().any(|p| is_code(toc.entry(p).desc));
            let of_extensions = || needs().any(|p| is(&[b"EXTENSION"], p)) && !calls_code();
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
                    code.own_types.insert(place as u32);
                }
                b"DOMAIN" if calls_code() || is_conditional(&entry) => match of_extensions() {
                    true => drop(code.types.insert(place as u32)),
                    false => drop(code.own_types.insert(place as u32)),
                },
                // A domain's conditions that come later than itself.
                b"CHECK CONSTRAINT" => {
                    let domains = needs().filter(|p| is(&[b"DOMAIN"], *p));
                    let domains = domains.map(|place| place as u32);
                    match of_extensions() {
                        true => code.types.extend(domains),
                        false => code.own_types.extend(domains),
                    }
                }
                b"CAST" => {
                    let functions = needs().filter(|p| is(&[b"FUNCTION"], *p));
                    code.casts.extend(functions.map(|place| toc.entry(place).dump_id));
                }
                _ => {}
            }
        }
        let consists = |desc: &[u8]| matches!(desc, b"TYPE" | b"DOMAIN");
        code.types.extend(&code.own_types);
        spread(toc, &mut code.types, consists);
        spread(toc, &mut code.own_types, consists);
        spread(toc, &mut code.compared, |desc| consists(desc) || desc == b"TABLE");
        for (place, entry) in toc.entries().enumerate().filter(|(_, e)| e.desc == b"TYPE") {
            let words = b" AS RANGE (";
            let is_range = entry.defn.windows(words.len()).any(|part| part == words);
            if is_range && !code.own_types.contains(&(place as u32)) {
                code.ranges.insert(entry.tag.to_vec());
                code.ranges.extend(multirange(entry.defn));
            }
        }
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

    /// Making this runs a function that is not the server's own: it waits for all rows.
    pub fn runs(&self, entry: &Entry) -> bool {
        self.whose(entry) != Runs::None
    }

    /// Making this runs a function that may look at tables of the archive, and keeps what it finds there.
    pub fn looks(&self, entry: &Entry) -> bool {
        self.whose(entry) == Runs::Archives
    }

    fn whose(&self, entry: &Entry) -> Runs {
        let (mut extension, mut domain) = (false, false);
        for &id in entry.dependencies {
            let Some(place) = self.toc.place(id) else { continue };
            let desc = self.toc.entry(place).desc;
            let place = place as u32;
            if is_code(desc) && !self.plain.contains(&place) || self.own_types.contains(&place) {
                return Runs::Archives;
            }
            extension |= desc == b"EXTENSION";
            domain |= self.types.contains(&place);
        }
        let compared =
            || self.foreign_class || entry.dependencies.iter().any(|id| self.is_compared(*id));
        let excludes = || {
            let words = b" EXCLUDE ";
            entry.defn.windows(words.len()).any(|w| w == words)
        };
        let (archives, extensions) = match entry.desc {
            // What it calls that is none of the archive's is an extension's, or is in the target.
            b"INDEX" => {
                let others = self.calls_unknown(entry);
                (compared() || others && !extension, others)
            }
            // Its dependencies tell nothing of what it calls.
            b"CONSTRAINT" if excludes() => {
                let called = called(entry.defn);
                let own = self.classes || self.unqualified || self.has_any(&called) || compared();
                (own, called != Called::default())
            }
            b"CONSTRAINT" => (is_key(entry.defn) && compared(), false),
            b"CHECK CONSTRAINT" => (false, extension),
            _ => (false, false),
        };
        match archives {
            true => Runs::Archives,
            false if extensions || domain => Runs::Extensions,
            false => Runs::None,
        }
    }

    /// An entry calls something by a name with a schema that none of its dependencies has.
    fn calls_unknown(&self, entry: &Entry) -> bool {
        let mut called = called(entry.defn);
        if called == Called::default() {
            return false;
        }
        for place in entry.dependencies.iter().filter_map(|id| self.toc.place(*id)) {
            let known = self.toc.entry(place);
            match known.desc {
                b"FUNCTION" | b"AGGREGATE" | b"PROCEDURE" => {
                    for name in function_names(known.tag) {
                        called.functions.remove(name);
                    }
                }
                b"OPERATOR" => drop(called.operators.remove(known.tag)),
                _ => {}
            }
        }
        called.functions.retain(|name| !self.ranges.contains(name));
        // Types that are not in the archive are mostly enumerations, of which a text has values.
        !(called.functions.is_empty() && called.operators.is_empty())
    }

    /// Some of what is called is the archive's, or may be: without extensions it is nobody's else.
    fn has_any(&self, called: &Called) -> bool {
        let names = self.names.get_or_init(|| {
            let mut names = HashSet::new();
            for (place, entry) in self.toc.entries().enumerate() {
                match entry.desc {
                    b"OPERATOR" | b"TYPE" | b"DOMAIN" => drop(names.insert(entry.tag)),
                    desc if is_code(desc) && !self.plain.contains(&(place as u32)) => {
                        names.extend(function_names(entry.tag));
                    }
                    _ => {}
                }
            }
            names
        });
        let mut all = called.functions.iter().chain(&called.operators).chain(&called.types);
        *called != Called::default() && !self.extensions
            || all.any(|name| name.is_empty() || names.contains(&name[..]))
    }

    /// Tables whose stored generated columns call functions of the archive that may read other tables, or of extensions, by dump id.
    ///
    /// The columns' text tells what they call by its name, but for functions of casts, which may be implicit, and of
    /// comparisons. A table that inherits such a column need not have it in its text. Conditions of domains change no value.
    pub fn generating(&self) -> HashMap<i32, Calls> {
        let mut tables = HashMap::<i32, Calls>::new();
        let mut names = HashMap::<Vec<u8>, u32>::new();
        // A table may inherit from a foreign one.
        let is_table = |entry: &Entry| matches!(entry.desc, b"TABLE" | b"FOREIGN TABLE");
        for entry in self.toc.entries().filter(is_table) {
            let words = b"\nINHERITS (";
            let inherits = entry.defn.windows(words.len()).any(|w| w == words);
            let above = entry.dependencies.iter().filter(|id| inherits && tables.contains_key(id));
            let above: BTreeSet<&i32> = above.collect();
            let own = generated(entry.defn);
            if own.is_none() && above.is_empty() {
                continue;
            }
            let mut calls = self.calls(&entry, own.unwrap_or_default(), &mut names);
            calls.looks |= self.foreign_class;
            for more in above.into_iter().filter_map(|id| tables.get(id)) {
                calls.looks |= more.looks;
                calls.callees.extend(&more.callees);
            }
            if calls.callees.len() > MOST {
                calls.callees = [Callee::Known(entry.dump_id)].into();
            }
            tables.insert(entry.dump_id, calls);
        }
        tables.retain(|_, calls| self.foreign_class || !calls.callees.is_empty());
        tables
    }

    /// Partitioned tables whose partition keys call functions of the archive that may read other tables, or of extensions, by dump id: rows that go
    /// through them are filed by what these find.
    pub fn filing(&self) -> HashMap<i32, Calls> {
        let mut tables = HashMap::new();
        let mut names = HashMap::new();
        let words = b"\nPARTITION BY ";
        for entry in self.toc.entries().filter(|entry| entry.desc == b"TABLE") {
            let Some(at) = entry.defn.windows(words.len()).position(|w| w == words) else {
                continue;
            };
            let mut calls = self.calls(&entry, called(&entry.defn[at + words.len()..]), &mut names);
            calls.looks |= self.foreign_class;
            if self.foreign_class || !calls.callees.is_empty() {
                tables.insert(entry.dump_id, calls);
            }
        }
        tables
    }

    /// What the columns of a table's own text call. Names of what is not in the archive get numbers.
    fn calls(&self, table: &Entry, called: Called, names: &mut HashMap<Vec<u8>, u32>) -> Calls {
        let mut calls = Calls::default();
        let mut extension = false;
        // What is found among the dependencies is no member of an extension.
        let mut others = called.clone();
        for &id in table.dependencies {
            let Some(place) = self.toc.place(id) else { continue };
            let entry = self.toc.entry(place);
            extension |= entry.desc == b"EXTENSION";
            let may_call = match entry.desc {
                b"FUNCTION" | b"AGGREGATE" | b"PROCEDURE" => {
                    for name in function_names(entry.tag) {
                        others.functions.remove(name);
                    }
                    let named =
                        || function_names(entry.tag).any(|name| called.functions.contains(name));
                    !self.plain.contains(&(place as u32))
                        && (self.unqualified || self.casts.contains(&id) || named())
                }
                b"OPERATOR" => {
                    others.operators.remove(entry.tag);
                    true
                }
                b"OPERATOR CLASS" | b"OPERATOR FAMILY" => true,
                b"TYPE" | b"DOMAIN" | b"TABLE" => {
                    others.types.remove(entry.tag);
                    self.is_compared(id)
                }
                _ => false,
            };
            if may_call {
                calls.callees.insert(Callee::Known(id));
                calls.looks = true;
            }
        }
        for name in [others.functions, others.operators, others.types].into_iter().flatten() {
            let number = names.len() as u32;
            calls.callees.insert(Callee::Other(*names.entry(name).or_insert(number)));
            calls.looks |= !extension;
        }
        calls
    }
}

/// What a function may be called by: its entry has its arguments behind that, in parentheses, which a name may have as well.
fn function_names(tag: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = (0..tag.len().min(LONGEST_NAME)).filter(|at| tag[*at] == b'(');
    ends.map(|end| &tag[..end])
}

/// The name of a range's multirange.
fn multirange(defn: &[u8]) -> Option<Vec<u8>> {
    let words = b"multirange_type_name = ";
    let at = defn.windows(words.len()).position(|part| part == words)?;
    let mut rest = &defn[at + words.len()..];
    Some(unquoted(last_part(take_name(&mut rest)?)))
}

/// A domain's conditions call what is not the server's own.
fn is_conditional(domain: &Entry) -> bool {
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
    fn functions_of_extensions() {
        let call = b"CREATE INDEX i ON public.t USING btree (public.soundex(a));\n";
        let own = b"ALTER TABLE ONLY public.t\n    ADD CONSTRAINT c EXCLUDE USING gist (r WITH &&) WHERE (public.f(a));\n";
        let theirs = b"ALTER TABLE ONLY public.t\n    ADD CONSTRAINT c EXCLUDE USING gist (g WITH OPERATOR(public.&&));\n";
        let domain = b"CREATE DOMAIN public.d AS text\n\tCONSTRAINT c CHECK ((public.soundex(VALUE) <> ''::text));\n";
        let reads = b"CREATE FUNCTION public.f(integer) RETURNS boolean\n    LANGUAGE sql\n    AS $$ SELECT v FROM public.t $$;\n";
        let mut found = Toc::default();
        let entries: [Tagged; 11] = [
            (b"EXTENSION", b"e", b"", &[]),
            (b"FUNCTION", b"f(integer)", reads, &[]),
            (b"DOMAIN", b"d", domain, &[1]),
            (b"TABLE", b"t", b"", &[]),
            (b"INDEX", b"i", call, &[4, 1]),
            (b"INDEX", b"i", call, &[4, 1, 2]),
            (
                b"INDEX",
                b"i",
                b"CREATE INDEX i ON public.t USING btree (((a)::public.d));\n",
                &[4, 3],
            ),
            (b"CONSTRAINT", b"t c", own, &[4]),
            (b"CONSTRAINT", b"t c", theirs, &[4]),
            (b"CHECK CONSTRAINT", b"t c", b"", &[4, 1]),
            (b"CHECK CONSTRAINT", b"t c", b"", &[4, 1, 2]),
        ];
        push(&mut found, &entries);
        let code = Code::of(&found, false);
        let all = |asked: fn(&Code, &Entry) -> bool| -> Vec<i32> {
            let behind = found.entries().filter(|entry| entry.dump_id > 4);
            behind.filter(|entry| asked(&code, entry)).map(|entry| entry.dump_id).collect()
        };
        // All of these wait for all rows; what looks at rows is less.
        assert_eq!(all(|code, entry| code.runs(entry)), [5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(all(|code, entry| code.looks(entry)), [6, 8, 11]);
        // Without extensions it is what was there before.
        let mut found = Toc::default();
        push(&mut found, &[(b"CONSTRAINT", b"t c", theirs, &[])]);
        assert!(Code::of(&found, false).looks(&found.entry(0)));
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
        let predicate = b"CREATE INDEX i ON public.t USING btree (a) WHERE (b > 0);\n";
        let calls = b"CREATE INDEX i ON public.t USING btree (public.g(a), public.f(a));\n";
        let mut entries: Vec<Tagged> = vec![
            (b"TYPE", b"s", enumeration, &[]),
            (b"DOMAIN", b"d", plain, &[]),
            (b"FUNCTION", b"f(integer)", reads, &[]),
            (b"FUNCTION", b"g(integer)", none, &[]),
            (b"DOMAIN", b"d", asks, &[3]),
            (b"DOMAIN", b"d", plain, &[5]),
            (b"DOMAIN", b"d", plain, &[]),
            (b"INDEX", b"i", index, &[1]),
            (b"INDEX", b"i", predicate, &[2]),
            (b"INDEX", b"i", predicate, &[3]),
            (b"INDEX", b"i", predicate, &[4]),
            (b"INDEX", b"i", predicate, &[6]),
            // A domain's condition that comes by itself.
            (b"INDEX", b"i", predicate, &[7]),
            (b"CHECK CONSTRAINT", b"c", b"", &[7]),
            (b"CONSTRAINT", b"t k", key, &[]),
            // What the text calls is none of the archive's: it is in the target.
            (b"INDEX", b"i", calls, &[4]),
        ];
        let after = |entries: &[Tagged]| {
            let mut toc = Toc::default();
            push(&mut toc, entries);
            running(&toc).into_iter().filter(|n| (8..17).contains(n)).collect::<Vec<_>>()
        };
        assert_eq!(after(&entries), [10, 12, 13, 14, 16]);
        let mut toc = Toc::default();
        push(&mut toc, &entries);
        assert!(Code::of(&toc, false).looks(&toc.entry(15)));
        // A cast may be what a function runs without its name.
        entries.push((b"CAST", b"", b"", &[3]));
        assert_eq!(after(&entries), [10, 11, 12, 13, 14, 16]);
        // A class for a type of the server's compares any key.
        let class = b"CREATE OPERATOR CLASS public.c\n    DEFAULT FOR TYPE json USING btree AS\n    FUNCTION 1 public.f(json,json);\n";
        entries.push((b"OPERATOR CLASS", b"c", class, &[3]));
        assert_eq!(after(&entries), [8, 9, 10, 11, 12, 13, 14, 15, 16]);
    }

    /// Kind, tag, statement and dependencies.
    type Tagged = (&'static [u8], &'static [u8], &'static [u8], &'static [i32]);

    fn push(toc: &mut Toc, entries: &[Tagged]) {
        for &(desc, tag, defn, dependencies) in entries {
            let dump_id = toc.len() as i32 + 1;
            toc.push(&Entry { dump_id, desc, tag, defn, dependencies, ..Entry::default() })
                .unwrap();
        }
    }

    #[test]
    fn generated_columns_inherited_many_times() {
        let calls = |n: i32| {
            format!("CREATE TABLE t (\n    b integer GENERATED ALWAYS AS (public.f{n}(1)) STORED\n)\nINHERITS (public.t);\n")
        };
        let below = b"CREATE TABLE k (\n)\nINHERITS (public.t);\n";
        // Each ten times below the one before, then each with a function of its own.
        for (count, own) in [(40, false), (20_000, true)] {
            let mut toc = Toc::default();
            for n in 1..=count {
                let defn = if own || n == 1 { calls(n).into_bytes() } else { below.to_vec() };
                let (above, none) = ([n - 1; 10], []);
                let dependencies = if n == 1 { &none[..] } else { &above };
                let table = Entry { dump_id: n, desc: b"TABLE", defn: &defn, ..Entry::default() };
                toc.push(&Entry { dependencies, ..table }).unwrap();
            }
            let found = Code::of(&toc, false).generating();
            assert_eq!(found.len(), count as usize);
            assert!(found.values().all(|calls| calls.looks && calls.callees.len() <= MOST));
            let different: BTreeSet<_> = found.values().map(|calls| &calls.callees).collect();
            assert_eq!(different.len(), if own { count as usize } else { 1 });
        }
    }

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
        push(&mut found, &entries);
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
