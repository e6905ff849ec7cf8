//! Rules that put several entries into one step, besides partitions.

use super::*;
use crate::plan::text;

/// Attachments of indexes in one transaction.
const ATTACHES: usize = 64;
/// Tables in one GRANT.
const GRANTS: usize = 64;
/// Rows so few that a table is not worth a second statement for its foreign key, in stored bytes.
const SMALL: u64 = 1 << 20;

impl Builder<'_> {
    pub(super) fn add_merged(&mut self) {
        self.merge_index_attaches();
        if self.input.rules.merge_grants {
            self.merge_grants();
        }
        if self.input.rules.foreign_keys_in_two_steps {
            self.split_foreign_keys();
        }
    }

    /// Indexes of partitions that were not made with them are attached by their parent's index in one
    /// statement, if the lock table has room for all; else in transactions of some, one after another, as each
    /// locks the parent's index.
    fn merge_index_attaches(&mut self) {
        let toc = self.input.toc;
        // Parent's index by name to its entries' attachments.
        let mut attaches = Vec::<(&[u8], Vec<u32>)>::new();
        let mut number = HashMap::<&[u8], usize>::new();
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            if entry.desc != b"INDEX ATTACH" || self.step_of[place as usize] != NONE {
                continue;
            }
            let Some((above, _)) = text::index_attach(entry.defn) else { continue };
            let n = *number.entry(above).or_insert_with(|| {
                attaches.push((above, Vec::new()));
                attaches.len() - 1
            });
            attaches[n].1.push(place);
        }
        for (above, places) in attaches {
            match self.bulk_parent(above, &places) {
                Some(index) => {
                    let mut entries = vec![index];
                    entries.extend(places);
                    self.add_step(Work::BulkAttach, &entries);
                }
                None => {
                    let mut last = NONE;
                    for part in places.chunks(ATTACHES) {
                        let step = self.add_step(Work::Entries, part);
                        self.edge(last, step);
                        last = step;
                    }
                }
            }
        }
    }

    /// The entry of a parent's index that can be made without ONLY once its partitions have theirs: all
    /// partitions of the table have just one index equal to it, and the lock table has room.
    fn bulk_parent(&self, above: &[u8], places: &[u32]) -> Option<u32> {
        let toc = self.input.toc;
        let rules = self.input.rules;
        if !rules.bulk_index_attach || places.len() < 8 {
            return None;
        }
        // Found by what one of the attachments depends on.
        let depended = |place: u32, name: &[u8]| {
            let all = toc.entry(place as usize).dependencies.iter().filter_map(|d| toc.place(*d));
            let mut named = all.filter(|p| {
                let entry = toc.entry(*p);
                matches!(entry.desc, b"INDEX" | b"CONSTRAINT")
                    && self.input.selection.has(*p as u32)
                    && text::index(entry.defn).is_some_and(|i| {
                        let schema = &i.table[..i.table.len() - text::last_part(i.table).len()];
                        [schema, i.name].concat() == name
                    })
            });
            named.next().map(|p| p as u32)
        };
        let parent = depended(places[0], above)?;
        if self.step_of[parent as usize] != NONE {
            return None;
        }
        let index = text::index(toc.entry(parent as usize).defn)?;
        let table =
            toc.entry(parent as usize).dependencies.iter().filter_map(|d| toc.place(*d)).find(
                |p| text::create_table(toc.entry(*p).defn).is_some_and(|t| t.name == index.table),
            )?;
        let children = self.tree.children.get(&(table as u32))?;
        // One level only: an index of a partitioned partition is itself attached in bulk, before or after.
        if children.len() != places.len()
            || children.iter().any(|(c, _)| self.tree.children.contains_key(c))
        {
            return None;
        }
        // Table, its indexes, and the parent's.
        let locks = children.len() as u64 * 6;
        if locks > self.input.facts.lock_slots / 3 {
            return None;
        }
        for &place in places {
            let (_, below) = text::index_attach(toc.entry(place as usize).defn)?;
            let child = depended(place, below)?;
            let entry = toc.entry(child as usize);
            let found = text::index(entry.defn)?;
            if (found.constraint, found.unique, found.tail)
                != (index.constraint, index.unique, index.tail)
            {
                return None;
            }
        }
        Some(parent)
    }

    /// Privileges on tables that read the same but for the table's name go together.
    fn merge_grants(&mut self) {
        let toc = self.input.toc;
        let mut alike = Vec::<Vec<u32>>::new();
        let mut number = HashMap::<Vec<u8>, usize>::new();
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            if entry.desc != b"ACL" {
                continue;
            }
            // One object may have two entries: its own and its columns'; those of columns stay apart.
            let Some(template) = grant_template(&entry) else { continue };
            let n = *number.entry(template).or_insert_with(|| {
                alike.push(Vec::new());
                alike.len() - 1
            });
            alike[n].push(place);
        }
        for places in alike {
            for part in places.chunks(GRANTS).filter(|p| p.len() > 1) {
                self.add_step(Work::Grants, part);
            }
        }
    }

    /// A foreign key of a large plain table is added NOT VALID, which is quick under a strong lock, and then
    /// validated under one that lets other keys of other tables be validated at the same time.
    fn split_foreign_keys(&mut self) {
        let toc = self.input.toc;
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            if entry.desc != b"FK CONSTRAINT" || foreign_key_name(entry.defn).is_none() {
                continue;
            }
            let tables = entry.dependencies.iter().filter_map(|d| toc.place(*d));
            let tables = tables.filter(|p| toc.entry(*p).desc == b"TABLE");
            // A key on or to a partitioned table cannot be added so.
            let plain = tables.clone().all(|p| {
                let name = toc.entry(p);
                text::create_table(name.defn).is_some_and(|t| !t.rest.starts_with(b"PARTITION BY"))
            });
            let large = tables.clone().any(|p| {
                let data = self.input.selection.data_of(toc.entry(p).dump_id);
                data.is_some_and(|d| self.input.sizes.data_bytes(d as usize) > SMALL)
            });
            if !plain || !large || tables.count() == 0 {
                continue;
            }
            let validate = self.add_step(Work::ForeignKeyValidate, &[place]);
            // The entry's dependencies lead to the first of the two, its followers wait for the second.
            let add = self.add_step(Work::ForeignKeyAdd, &[place]);
            self.edge(add, validate);
            self.validations.push((add, validate));
        }
    }
}

/// The name of table and constraint in `ALTER TABLE ONLY table ADD CONSTRAINT name FOREIGN KEY …;`, and the rest.
pub fn foreign_key_name(defn: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut text = defn.strip_prefix(b"ALTER TABLE ONLY ")?;
    let table = text::take_name(&mut text)?;
    text = text.strip_prefix(b"\n    ADD CONSTRAINT ")?;
    let name = text::take_name(&mut text)?;
    text = text.strip_prefix(b" ")?;
    let (tail, rest) = text::split_statement(text)?;
    (rest.is_empty() && is_plain_key(tail)).then_some((table, name, tail))
}

/// A foreign key of nothing but columns, actions and when it is checked: one that is valid once its rows have been looked at. Keys
/// that are NOT VALID or NOT ENFORCED, and what later versions may add, are left as they are.
fn is_plain_key(tail: &[u8]) -> bool {
    let parse = || {
        let mut text =
            columns(tail.strip_prefix(b"FOREIGN KEY ")?)?.strip_prefix(b" REFERENCES ")?;
        text::take_name(&mut text)?;
        text = columns(text)?;
        const ACTIONS: [&[u8]; 8] = [
            b" MATCH FULL",
            b" ON UPDATE",
            b" ON DELETE",
            b" CASCADE",
            b" RESTRICT",
            b" SET NULL",
            b" SET DEFAULT",
            b" DEFERRABLE",
        ];
        loop {
            if let Some(rest) = ACTIONS.iter().find_map(|word| text.strip_prefix(*word)) {
                text = rest;
            } else if let Some(rest) = text.strip_prefix(b" (") {
                // The columns that ON DELETE SET … is about.
                text = columns(&text[text.len() - rest.len() - 1..])?;
            } else {
                let rest = text.strip_prefix(b" INITIALLY DEFERRED").unwrap_or(text);
                return rest.is_empty().then_some(());
            }
        }
    };
    parse().is_some()
}

/// What follows a list of plain columns in parentheses. (A period is none.)
fn columns(text: &[u8]) -> Option<&[u8]> {
    let mut rest = text.strip_prefix(b"(")?;
    loop {
        text::take_name(&mut rest)?;
        match rest.strip_prefix(b", ") {
            Some(more) => rest = more,
            None => return rest.strip_prefix(b")"),
        }
    }
}

/// The statements of an ACL entry of a table with the table's name replaced by a zero byte. `None` for what is
/// not just GRANT and REVOKE on the one table.
pub fn grant_template(entry: &Entry) -> Option<Vec<u8>> {
    let table = grant_table(entry)?;
    let mut template = Vec::new();
    let mut text = entry.defn.trim_ascii();
    while !text.is_empty() {
        let (statement, rest) = text::split_statement(text)?;
        let (before, after) = split_grant(statement, table)?;
        template.extend_from_slice(before);
        template.push(0);
        template.extend_from_slice(after);
        template.extend_from_slice(b";\n");
        text = rest;
    }
    Some(template)
}

/// The table's name in an ACL entry, as it is written.
pub fn grant_table<'a>(entry: &Entry<'a>) -> Option<&'a [u8]> {
    let name = entry.tag.strip_prefix(b"TABLE ")?;
    let (statement, _) = text::split_statement(entry.defn)?;
    let on = statement.windows(10).position(|w| w == b" ON TABLE ")?;
    let mut rest = &statement[on + 10..];
    let table = text::take_name(&mut rest)?;
    (text::unquoted(text::last_part(table)) == name).then_some(table)
}

fn split_grant<'a>(statement: &'a [u8], table: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    if !(statement.starts_with(b"GRANT ") || statement.starts_with(b"REVOKE ")) {
        return None;
    }
    let on = statement.windows(10).position(|w| w == b" ON TABLE ")? + 10;
    let (before, rest) = statement.split_at(on);
    let after = rest.strip_prefix(table)?;
    (after.starts_with(b" TO ") || after.starts_with(b" FROM ")).then_some((before, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_alike_have_one_template() {
        let entry =
            |tag: &'static [u8], defn: &'static [u8]| Entry { tag, defn, ..Entry::default() };
        let a = grant_template(&entry(
            b"TABLE a",
            b"GRANT SELECT ON TABLE s.a TO x;\nGRANT ALL ON TABLE s.a TO y;\n",
        ));
        let b = grant_template(&entry(
            b"TABLE b c",
            b"GRANT SELECT ON TABLE s.\"b c\" TO x;\nGRANT ALL ON TABLE s.\"b c\" TO y;\n",
        ));
        assert!(a.is_some());
        assert_eq!(a, b);
        assert_eq!(
            grant_template(&entry(
                b"TABLE a",
                b"SET SESSION AUTHORIZATION x;\nGRANT SELECT ON TABLE s.a TO x;\n"
            )),
            None
        );
        assert_eq!(
            grant_template(&entry(b"COLUMN a.b", b"GRANT SELECT(b) ON TABLE s.a TO x;\n")),
            None
        );
    }

    #[test]
    fn foreign_keys() {
        let key =
            b"ALTER TABLE ONLY a.t\n    ADD CONSTRAINT k FOREIGN KEY (x) REFERENCES a.u(id);\n";
        assert_eq!(
            foreign_key_name(key),
            Some((&b"a.t"[..], &b"k"[..], &b"FOREIGN KEY (x) REFERENCES a.u(id)"[..]))
        );
        assert_eq!(
            foreign_key_name(
                b"ALTER TABLE a.t\n    ADD CONSTRAINT k FOREIGN KEY (x) REFERENCES a.u(id);\n"
            ),
            None
        );
    }

    #[test]
    fn only_plain_keys_are_split() {
        let plain = |rest: &str| {
            let key = format!(
                "ALTER TABLE ONLY a.t\n    ADD CONSTRAINT k FOREIGN KEY (x, \"Y\") REFERENCES a.u(id, y){rest};\n"
            );
            foreign_key_name(key.as_bytes()).is_some()
        };
        for rest in [
            "",
            " ON DELETE CASCADE",
            " MATCH FULL ON UPDATE SET NULL ON DELETE SET DEFAULT (x) DEFERRABLE INITIALLY DEFERRED",
        ] {
            assert!(plain(rest), "{rest}");
        }
        for rest in [" NOT VALID", " NOT ENFORCED", " DEFERRABLE NOT ENFORCED", " SOMETHING NEW"] {
            assert!(!plain(rest), "{rest}");
        }
        assert!(foreign_key_name(
            b"ALTER TABLE ONLY t\n    ADD CONSTRAINT k FOREIGN KEY (x, PERIOD p) REFERENCES u(x, PERIOD p);\n"
        )
        .is_none());
    }
}
