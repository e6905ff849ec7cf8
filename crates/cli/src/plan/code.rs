//! What runs functions of the archive when it is made: these may read other tables, whatever they say of themselves, and so
//! all rows come first, as `pg_restore` has it.
//!
//! An index runs the functions of its expressions, of its predicate and of its operator classes. Of most of these its entry tells by
//! its dependencies: an operator stands for its function there, a type for the functions of a cast to it, or of a domain's
//! conditions. What dependencies do not tell:
//! - of an exclusion constraint `pg_dump` tells the table only: its text names what is not the server's own with a schema;
//! - functions of extensions are the extension there, and so are operator classes, which read no tables: again by the text;
//! - a plain column of a type that has an operator class of the user's, or that consists of such, is compared by its function.

use super::text::calls_others;
use crate::archive::{Entry, Toc};
use std::collections::HashSet;

/// Kinds that are, or stand for, a function of the user's.
pub fn is_code(desc: &[u8]) -> bool {
    matches!(
        desc,
        b"FUNCTION"
            | b"AGGREGATE"
            | b"PROCEDURE"
            | b"OPERATOR"
            | b"OPERATOR CLASS"
            | b"OPERATOR FAMILY"
            | b"DOMAIN"
            | b"TYPE"
    )
}

/// What of an archive runs functions of its own.
pub struct Code<'a> {
    toc: &'a Toc,
    /// There are operator classes of the user's.
    classes: bool,
    /// Statements name nothing with its schema.
    unqualified: bool,
    /// Places of types that are compared by a function of the user's, and of tables with columns of such.
    compared: HashSet<u32>,
}

impl<'a> Code<'a> {
    pub fn of(toc: &'a Toc, unqualified: bool) -> Code<'a> {
        let mut code = Code { toc, classes: false, unqualified, compared: HashSet::new() };
        let is_type = |place: &usize| toc.entry(*place).desc == b"TYPE";
        for (place, entry) in toc.entries().enumerate() {
            let needs = || entry.dependencies.iter().filter_map(|id| toc.place(*id));
            match entry.desc {
                b"OPERATOR CLASS" => {
                    code.classes = true;
                    code.compared.extend(needs().filter(is_type).map(|place| place as u32));
                }
                // Of a range: how it is compared, and how far its ends are from each other.
                b"TYPE" => {
                    let functions = |place: usize| {
                        matches!(toc.entry(place).desc, b"FUNCTION" | b"OPERATOR CLASS")
                    };
                    if needs().any(functions) {
                        code.compared.insert(place as u32);
                    }
                }
                _ => {}
            }
        }
        code.spread();
        code
    }

    /// What has such types in it is compared by them.
    fn spread(&mut self) {
        let mut before = 0;
        while self.compared.len() > before {
            before = self.compared.len();
            for (place, entry) in self.toc.entries().enumerate() {
                let consists = matches!(entry.desc, b"TYPE" | b"DOMAIN" | b"TABLE")
                    && entry.dependencies.iter().any(|id| self.is_compared(*id));
                if consists {
                    self.compared.insert(place as u32);
                }
            }
        }
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
            if is_code(desc) {
                return true;
            }
            extension |= desc == b"EXTENSION";
        }
        match entry.desc {
            b"INDEX" => {
                extension && calls_others(entry.defn)
                    || entry.dependencies.iter().any(|id| self.is_compared(*id))
            }
            b"CONSTRAINT" => {
                let words = b" EXCLUDE ";
                let excludes = entry.defn.windows(words.len()).any(|w| w == words);
                excludes && (self.classes || self.unqualified || calls_others(entry.defn))
                    || entry.dependencies.iter().any(|id| self.is_compared(*id))
            }
            b"CHECK CONSTRAINT" => extension,
            _ => false,
        }
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
}
