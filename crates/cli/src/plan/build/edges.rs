//! What must wait for what.
//!
//! An archive tells most of it by dependencies. `pg_restore` adds the rest by its order: all of pre-data, then all
//! data, then post-data. Here only what needs that order waits: see each function.

use super::*;
use crate::plan::text;

/// Tables that others inherit from, or are partitions of without an entry that says so, or have a column of: a statement about
/// them may go down to these. Asked of all entries but partitions that are attached by one of their own.
pub fn goes_down<'a>(entries: impl Iterator<Item = Entry<'a>>) -> HashSet<i32> {
    let tables = entries.filter(|e| matches!(e.desc, b"TABLE" | b"FOREIGN TABLE"));
    tables.flat_map(|table| table.dependencies).copied().collect()
}

impl Builder<'_> {
    pub(super) fn add_edges(&mut self) {
        self.depend();
        self.order_attachments();
        let settled = self.settle_trees();
        self.order_checks(&settled);
        self.wait_for_data(&settled);
        self.order_behind_keys();
        self.order_passes();
        self.order_values();
        self.order_generated();
        self.order_not_null_names();
        self.order_foreign_keys();
        self.order_not_nulls();
        self.order_privileges();
        self.share_edges();
        // Of parts of an entry, too, it must be known what waits for them.
        self.order_meanings();
    }

    /// Values of sequences come after the rows of tables that are emptied: they stay set even when these fail, and then the old rows
    /// would get their numbers a second time.
    fn order_values(&mut self) {
        let reloads = self.input.facts.reloads.len();
        if reloads == 0 {
            return;
        }
        let all = self.add_step(Work::Milestone, &[]);
        for number in 0..self.plan.steps.len() {
            let entries = self.plan.entries(number);
            let first = entries.first().map(|p| self.input.toc.entry(*p as usize).desc);
            if matches!(self.plan.steps[number].work, Work::Reload(_)) {
                self.edge(number as u32, all);
            } else if first == Some(b"SEQUENCE SET") {
                self.edge(all, number as u32);
            }
        }
    }

    /// Entries with several steps: whoever waits for the first waits for all, and the parts of a table's rows wait
    /// for what the first one waits for.
    fn share_edges(&mut self) {
        let validations: HashMap<u32, u32> =
            std::mem::take(&mut self.validations).into_iter().collect();
        let parts = std::mem::take(&mut self.parts);
        let mut more = Vec::new();
        for &(before, after) in &self.edges {
            if let Some(&validate) = validations.get(&before) {
                if after != validate {
                    more.push((validate, after));
                }
            }
            more.extend(parts.get(&before).into_iter().flatten().map(|part| (*part, after)));
            more.extend(parts.get(&after).into_iter().flatten().map(|part| (before, *part)));
        }
        self.edges.extend(more);
    }

    /// CHECK constraints come when all partitions of all families are there, and before rows: for each new partition
    /// the server reads all of pg_constraint, in search of foreign keys that refer to its parent.
    fn order_checks(&mut self, settled: &HashMap<u32, u32>) {
        let toc = self.input.toc;
        if self.plan.families.is_empty() {
            return;
        }
        let all = self.add_step(Work::Milestone, &[]);
        for last in std::mem::take(&mut self.groups_end) {
            self.edge(last, all);
        }
        let checks = std::mem::take(&mut self.checks);
        let mut edges = Vec::new();
        for family in &self.plan.families {
            let Some(&step) = checks.get(&family.parent) else { continue };
            edges.extend([(all, step), (self.step_of[family.parent as usize], step)]);
            for member in &family.members {
                let table = toc.entry(member.table as usize).dump_id;
                let data = self.input.selection.data_of(table);
                edges.extend(data.map(|d| (step, self.step_of[d as usize])));
            }
            edges.extend(settled.get(&family.parent).map(|m| (step, *m)));
        }
        // Primary keys and unique constraints are rows of pg_constraint, too.
        for (number, step) in self.plan.steps.iter().enumerate() {
            if matches!(step.work, Work::BulkIndex(_) | Work::BulkAttach) {
                edges.push((all, number as u32));
            }
        }
        edges.into_iter().for_each(|(before, after)| self.edge(before, after));
    }

    /// In archives from before 9.2, a foreign key depends on the index of the key that it refers to, which is no entry: the constraint
    /// is. It waits for all keys of its tables.
    fn order_keys(&mut self) {
        let toc = self.input.toc;
        let is_key = |id: &i32| {
            let desc = toc.place(*id).map(|place| toc.entry(place).desc);
            matches!(desc, Some(b"CONSTRAINT" | b"INDEX"))
        };
        let places =
            || self.input.selection.places().map(|place| (place, toc.entry(place as usize)));
        let foreign: Vec<_> = places()
            .filter(|(_, e)| e.desc == b"FK CONSTRAINT" && !e.dependencies.iter().any(is_key))
            .collect();
        if foreign.is_empty() {
            return;
        }
        let mut keys = HashMap::<i32, Vec<u32>>::new();
        for (place, entry) in places().filter(|(_, e)| matches!(e.desc, b"CONSTRAINT" | b"INDEX")) {
            for &table in entry.dependencies {
                keys.entry(table).or_default().push(self.step_of[place as usize]);
            }
        }
        for (place, entry) in foreign {
            for &key in entry.dependencies.iter().filter_map(|table| keys.get(table)).flatten() {
                self.edge(key, self.step_of[place as usize]);
            }
        }
    }

    /// Dependencies of the archive, and the schema that an object is in.
    fn depend(&mut self) {
        let toc = self.input.toc;
        let mut schemas = HashMap::new();
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            if entry.desc == b"SCHEMA" {
                schemas.insert(entry.tag, self.step_of[place as usize]);
            }
        }
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            let step = self.step_of[place as usize];
            for &id in entry.dependencies {
                let Some(before) = self.step_at(id) else { continue };
                // Statistics come last: nothing else needs them.
                let is_statistics = |e: &Entry| e.desc == b"STATISTICS DATA";
                let place = toc.place(id);
                if place.is_some_and(|p| is_statistics(&toc.entry(p))) && !is_statistics(&entry) {
                    continue;
                }
                // From version 17 on an archive lets partitions' indexes wait for their parent's, which here comes
                // after them and takes them up.
                let reversed = self.plan.steps[before as usize].work == Work::BulkAttach
                    && matches!(entry.desc, b"INDEX" | b"CONSTRAINT");
                if !reversed {
                    self.edge(before, step);
                }
            }
            if let Some(&schema) = schemas.get(entry.namespace) {
                self.edge(schema, step);
            }
        }
        self.order_keys();
        self.order_large_objects();
        for number in 0..self.plan.steps.len() {
            let (family, begins) = match self.plan.steps[number].work {
                Work::BoundsBegin(f) => (f, true),
                Work::Group(g) => (self.plan.groups[g as usize].family, false),
                _ => continue,
            };
            let family = &self.plan.families[family as usize];
            let mut before = vec![family.parent];
            // The parent's indexes first, so that partitions get theirs with them.
            if !begins {
                before.extend(family.indexes_with_table());
            }
            for place in before {
                self.edge(self.step_of[place as usize], number as u32);
            }
        }
    }

    /// Large objects' contents wait for the objects: the archive says so only from version 17 on.
    fn order_large_objects(&mut self) {
        let toc = self.input.toc;
        let selection = self.input.selection;
        let of = |kinds: &[&[u8]]| -> Vec<u32> {
            let places =
                selection.places().filter(|p| kinds.contains(&toc.entry(*p as usize).desc));
            places.map(|place| self.step_of[place as usize]).collect()
        };
        let (objects, contents) = (of(&[b"BLOB", b"BLOB METADATA"]), of(&[b"BLOBS"]));
        if objects.is_empty() || contents.is_empty() {
            return;
        }
        let all = self.add_step(Work::Milestone, &[]);
        objects.into_iter().for_each(|step| self.edge(step, all));
        contents.into_iter().for_each(|step| self.edge(all, step));
    }

    /// What a partition inherits is there before the partition: identity columns (from version 17 on) of its parent and
    /// of what that itself is attached to. `pg_restore` has the same order; the other way round each such statement
    /// would lock all partitions at once.
    ///
    /// What it must not inherit comes after it: defaults that statements of their own set. Those of partitions have
    /// statements, too. They come before rows of partitions, as in `pg_restore`: until these are committed the parent is locked,
    /// since the server reads its bounds, and such a statement would wait.
    ///
    /// Partitions are attached before they have rows, which the server would read in search of such that do not belong
    /// there; the default partition is attached last, as it would read its rows for each further one.
    fn order_attachments(&mut self) {
        let toc = self.input.toc;
        let all = self.tree.children.values().flatten();
        let attach_of: HashMap<u32, u32> = all.copied().collect();
        // Rows that go through a parent wait until all partitions are attached.
        if !self.via_root.is_empty() {
            let attached = self.add_step(Work::Milestone, &[]);
            for attach in attach_of.values() {
                self.edge(self.step_of[*attach as usize], attached);
            }
            let tables = self.input.selection.places();
            for table in tables.filter(|p| attaches_itself(&toc.entry(*p as usize))) {
                self.edge(self.step_of[table as usize], attached);
            }
            for place in self.via_root.iter().copied().collect::<Vec<_>>() {
                self.edge(attached, self.step_of[place as usize]);
            }
        }
        let mut edges = Vec::new();
        for (parent, children) in &self.tree.children {
            let own = self.identities.get(parent).into_iter().flatten();
            let mut before: Vec<u32> = own.map(|place| self.step_of[*place as usize]).collect();
            // A hostile archive may attach in circles.
            let circle = || self.tree.ancestors(*parent).contains(parent);
            let attached = attach_of.get(parent).filter(|_| !circle());
            before.extend(attached.map(|attach| self.step_of[*attach as usize]));
            let step = |place: u32| self.step_of[place as usize];
            let rest = children.iter().find(|(_, attach)| {
                let attach = toc.entry(*attach as usize);
                text::attach(attach.defn).is_some_and(|attach| attach.bound == b"DEFAULT")
            });
            for (child, attach) in children {
                edges.extend(before.iter().map(|before| (*before, step(*attach))));
                let data = self.input.selection.data_of(toc.entry(*child as usize).dump_id);
                edges.extend(data.map(|data| (step(*attach), step(data))));
                edges.extend(rest.map(|(_, rest)| (step(*attach), step(*rest))));
            }
        }
        // What is attached by a statement is compared with what hangs on the parent, and groups only with each other.
        for number in 0..self.plan.steps.len() as u32 {
            let Work::BoundsEnd(family) = self.plan.steps[number as usize].work else { continue };
            let parent = self.plan.families[family as usize].parent;
            for (_, attach) in self.tree.children.get(&parent).into_iter().flatten() {
                let step = self.step_of[*attach as usize];
                if !matches!(self.plan.steps[step as usize].work, Work::Group(_)) {
                    edges.push((number, step));
                }
            }
        }
        let families: HashMap<u32, &Family> =
            self.plan.families.iter().map(|family| (family.parent, family)).collect();
        let mut defaults = std::collections::BTreeMap::<u32, Vec<u32>>::new();
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            if entry.desc != b"DEFAULT" {
                continue;
            }
            for table in entry.dependencies.iter().filter_map(|d| toc.place(*d)) {
                let members = families.get(&(table as u32)).map_or(&[][..], |f| &f.members);
                let after = self.step_of[place as usize];
                edges.extend(members.iter().map(|m| (self.step_of[m.attach as usize], after)));
                if self.tree.children.contains_key(&(table as u32)) {
                    defaults.entry(table as u32).or_default().push(after);
                }
            }
        }
        for (parent, steps) in defaults {
            let all = self.add_step(Work::Milestone, &[]);
            edges.extend(steps.into_iter().map(|step| (step, all)));
            for below in self.tree.below(parent) {
                let data = self.input.selection.data_of(toc.entry(below as usize).dump_id);
                edges.extend(data.map(|data| (all, self.step_of[data as usize])));
            }
        }
        edges.into_iter().for_each(|(before, after)| self.edge(before, after));
    }

    /// For each partitioned table a milestone: all its partitions are attached, on all levels, and have their
    /// rows. Statements that go down to all partitions (constraints, triggers, indexes) wait for it.
    fn settle_trees(&mut self) -> HashMap<u32, u32> {
        let toc = self.input.toc;
        let mut parents: Vec<u32> = self.tree.children.keys().copied().collect();
        parents.sort_unstable();
        let mut settled = HashMap::new();
        for &parent in &parents {
            settled.insert(parent, self.add_step(Work::Milestone, &[]));
        }
        for &parent in &parents {
            let milestone = settled[&parent];
            for (child, attach) in self.tree.children[&parent].clone() {
                self.edge(self.step_of[attach as usize], milestone);
                // From 18 on NOT NULL constraints have names. A partition has its parent's, and the parent would get
                // another one if that was taken.
                self.edge(self.step_of[parent as usize], self.step_of[child as usize]);
                if let Some(data) = self.input.selection.data_of(toc.entry(child as usize).dump_id)
                {
                    self.edge(self.step_of[data as usize], milestone);
                }
                if let Some(&below) = settled.get(&child) {
                    self.edge(below, milestone);
                }
            }
        }
        settled
    }

    /// Indexes, constraints and triggers of a table wait for its rows.
    fn wait_for_data(&mut self, settled: &HashMap<u32, u32>) {
        let toc = self.input.toc;
        let selection = self.input.selection;
        let all_data = self.add_step(Work::Milestone, &[]);
        // A function finds what its text names, which no dependency tells.
        let runs: HashSet<u32> = (selection.places())
            .filter(|place| {
                let entry = toc.entry(*place as usize);
                matches!(entry.desc, b"INDEX" | b"CONSTRAINT" | b"CHECK CONSTRAINT")
                    && self.code.runs(&entry)
            })
            .collect();
        let looks = |place: &u32| {
            let entry = toc.entry(*place as usize);
            self.code.looks(&entry) && looks_at_rows(toc, &entry)
        };
        self.plan.looks = runs.iter().copied().filter(looks).collect();
        for place in selection.places() {
            let entry = toc.entry(place as usize);
            // Statistics of tables count as data, but come last.
            let data = entry.section == Section::Data && entry.desc != b"STATISTICS DATA";
            if data || !runs.is_empty() && entry.section == Section::PreData {
                self.edge(self.step_of[place as usize], all_data);
            }
        }
        let not_attached = selection.places().filter(|p| !self.tree.parent.contains_key(p));
        let above = goes_down(not_attached.map(|p| toc.entry(p as usize)));
        let early: HashSet<u32> = self
            .plan
            .families
            .iter()
            .flat_map(|f| f.indexes_with_table().iter().copied())
            .collect();
        for place in selection.places() {
            let entry = toc.entry(place as usize);
            let step = self.step_of[place as usize];
            let grouped = matches!(self.plan.steps[step as usize].work, Work::Group(_));
            if entry.section != Section::PostData || grouped || early.contains(&place) {
                continue;
            }
            // Rows copied through a parent are filed under a partition: only when all is loaded is it complete. A function may
            // look at other tables, whatever it says of itself. A domain's constraint is about all tables that have it, and NOT VALID is
            // about rows that were there before.
            let mut everything =
                !self.via_root.is_empty() || runs.contains(&place) || self.code.runs(&entry);
            for &id in entry.dependencies {
                let Some(at) = toc.place(id) else { continue };
                if matches!(toc.entry(at).desc, b"TABLE" | b"FOREIGN TABLE") {
                    everything |= above.contains(&id);
                    if let Some(data) = selection.data_of(id) {
                        self.edge(self.step_of[data as usize], step);
                    }
                    if let Some(&milestone) = settled.get(&(at as u32)) {
                        self.edge(milestone, step);
                    }
                }
            }
            if everything {
                self.edge(all_data, step);
            }
        }
    }

    /// An index that comes with its partition may go again for the sake of the rows: whatever is of it (its comment, that of its constraint,
    /// the rule of a view that groups by the key) waits for these, as it would without the rule, and is left out when the index is.
    fn order_behind_keys(&mut self) {
        let (toc, selection) = (self.input.toc, self.input.selection);
        let mut rows = HashMap::new();
        for family in &self.plan.families {
            for member in &family.members {
                let data = selection.data_of(toc.entry(member.table as usize).dump_id);
                for (index, _) in family.pairs_with_table(member) {
                    rows.extend(data.map(|data| (toc.entry(*index as usize).dump_id, data)));
                }
            }
        }
        if rows.is_empty() {
            return;
        }
        for place in selection.places() {
            let step = self.step_of[place as usize];
            if step == NONE || matches!(self.plan.steps[step as usize].work, Work::Group(_)) {
                continue;
            }
            let needed = toc.entry(place as usize).dependencies;
            for data in needed.iter().filter_map(|id| rows.get(id)) {
                self.edge(self.step_of[*data as usize], step);
            }
        }
    }

    /// As in `pg_restore`: privileges after all objects and rows, so that none is missed while restoring;
    /// then materialized views and event triggers.
    fn order_passes(&mut self) {
        let toc = self.input.toc;
        let pass = |entry: &Entry| match entry.desc {
            b"ACL" | b"ACL LANGUAGE" | b"DEFAULT ACL" => 1,
            b"EVENT TRIGGER" | b"MATERIALIZED VIEW DATA" => 2,
            b"COMMENT" | b"SECURITY LABEL" if entry.tag.starts_with(b"EVENT TRIGGER ") => 2,
            // Statistics of what is all there; CREATE INDEX would change some of them.
            b"STATISTICS DATA" => 2,
            _ => 0,
        };
        let count = self.plan.steps.len();
        let passes: Vec<usize> = (0..count)
            .map(|s| {
                let last = self.plan.entries(s).last();
                last.map_or(0, |p| pass(&toc.entry(*p as usize)))
            })
            .collect();
        // Of each pass only the steps that no milestone of the pass waits for need be waited for. What another step waits for is waited for
        // as well: after an error that one may be done without it.
        let mut awaited = vec![false; count];
        for (before, after) in &self.edges {
            let passed_on = matches!(self.plan.steps[*after as usize].work, Work::Milestone);
            if passed_on && passes[*before as usize] == passes[*after as usize] {
                awaited[*before as usize] = true;
            }
        }
        for later in 1..=2 {
            if !passes.contains(&later) {
                continue;
            }
            let milestone = self.add_step(Work::Milestone, &[]);
            for step in 0..count {
                if passes[step] < later && !awaited[step] {
                    self.edge(step as u32, milestone);
                } else if passes[step] == later {
                    self.edge(milestone, step as u32);
                }
            }
        }
    }
}

/// Something is found in rows as it is made, and kept: not by a check of which old rows are none, nor in a materialized view, whose REFRESH makes
/// its indexes anew.
fn looks_at_rows(toc: &Toc, entry: &Entry) -> bool {
    let is_view = |id: &i32| {
        let place = toc.place(*id);
        place.is_some_and(|place| toc.entry(place).desc == b"MATERIALIZED VIEW")
    };
    match entry.desc {
        b"INDEX" => !entry.dependencies.iter().any(is_view),
        _ => !is_not_valid(entry.defn),
    }
}

/// Old rows may not meet it: a CHECK constraint of a table or a domain, and from version 18 on a NOT NULL constraint, that is NOT VALID.
pub fn is_not_valid(defn: &[u8]) -> bool {
    defn.trim_ascii().ends_with(b" NOT VALID;")
}
