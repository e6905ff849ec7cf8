//! From the chosen entries to steps and edges.

use super::code::Code;
use super::family::{self, Family, IndexMode, Sizes};
use super::locks::{use_of, Lock, Mode, Resource};
use super::select::Selection;
use super::{Facts, Group, Plan, Rules, Step, Work};
use crate::archive::{Entry, Section, Toc};
use crate::error::{Error, Result};
use crate::pg::quote_ident;
use std::collections::{HashMap, HashSet};

mod cost;
mod edges;
mod groups;
mod keys;
mod locking;
mod order;
pub use edges::{goes_down, is_not_valid};
pub use groups::STAGE_FROM;
pub mod merge;
mod not_nulls;
pub use keys::{is_inherited, is_other, own_table};
pub use order::{attaches_itself, changes_meanings};

/// Everything that planning looks at.
pub struct Input<'a> {
    pub toc: &'a Toc,
    pub selection: &'a Selection,
    pub facts: &'a Facts,
    pub rules: Rules,
    pub sizes: &'a dyn Sizes,
}

/// Stored bytes from which on the rows of a table may be cut into parts.
const SPLIT_FROM: u64 = 32 << 20;

/// No step has this number.
const NONE: u32 = u32::MAX;

struct Builder<'a> {
    input: &'a Input<'a>,
    plan: Plan,
    /// Place to the step that does its entry.
    step_of: Vec<u32>,
    edges: Vec<(u32, u32)>,
    tree: Tree,
    /// The last step of each family's groups.
    groups_end: Vec<u32>,
    /// Parents with late CHECK constraints to the step that adds them.
    checks: HashMap<u32, u32>,
    /// Foreign keys in two steps.
    validations: Vec<(u32, u32)>,
    /// The first step of a table's rows to the further ones.
    parts: HashMap<u32, Vec<u32>>,
    /// Rows that are copied through a partitioned parent.
    via_root: HashSet<u32>,
    /// Tables to the entries that make columns of theirs identity columns.
    identities: HashMap<u32, Vec<u32>>,
    code: Code<'a>,
    /// An index of a partition to that which it is attached to, by places.
    above_index: HashMap<u32, u32>,
}

/// Which tables are partitions of which, by places.
#[derive(Default)]
struct Tree {
    parent: HashMap<u32, u32>,
    /// Parent to (partition, the entry that attaches it).
    children: HashMap<u32, Vec<(u32, u32)>>,
}

impl Tree {
    fn ancestors(&self, mut table: u32) -> Vec<u32> {
        let mut all = Vec::new();
        let mut seen = HashSet::new();
        while let Some(&above) = self.parent.get(&table) {
            // A hostile archive may attach in circles.
            if !seen.insert(above) {
                break;
            }
            all.push(above);
            table = above;
        }
        all
    }

    /// The partitions below a table, on all levels.
    fn below(&self, table: u32) -> HashSet<u32> {
        let mut seen = HashSet::new();
        let mut stack = vec![table];
        while let Some(t) = stack.pop() {
            for (child, _) in self.children.get(&t).into_iter().flatten() {
                if seen.insert(*child) {
                    stack.push(*child);
                }
            }
        }
        seen
    }

    fn size(&self, table: u32) -> usize {
        self.below(table).len()
    }
}

fn is_relation(desc: &[u8]) -> bool {
    matches!(desc, b"TABLE" | b"VIEW" | b"MATERIALIZED VIEW" | b"FOREIGN TABLE" | b"SEQUENCE")
}

/// Make the plan. Fails on archives whose entries wait for each other in a circle.
pub fn build(input: &Input) -> Result<Plan> {
    let toc = input.toc;
    let selects_schemas = toc.selects_schemas();
    let rules = match selects_schemas {
        // Names without schemas do not tell tables apart: no statement is rewritten.
        true => Rules {
            skip_empty_data: input.rules.skip_empty_data,
            copy_freeze: input.rules.copy_freeze,
            ..Rules::all(false)
        },
        false => input.rules,
    };
    let input = &Input { rules, ..*input };
    let mut families = match input.rules.partition_of {
        true => family::find(toc, input.selection, input.facts, input.sizes),
        false => Vec::new(),
    };
    let mut tree = Tree::default();
    let mut identities = HashMap::<u32, Vec<u32>>::new();
    for place in input.selection.places() {
        let entry = toc.entry(place as usize);
        if entry.desc == b"TABLE ATTACH" {
            if let Some((parent, child)) = attach_ends(toc, &entry) {
                tree.parent.insert(child, parent);
                tree.children.entry(parent).or_default().push((child, place));
            }
        } else if let Some(table) = identity_of(toc, &entry) {
            identities.entry(table).or_default().push(place);
        }
    }
    let code = Code::of(toc, selects_schemas);
    settle_modes(&mut families, &tree, input, &code);
    let inherits_identity = input.facts.server_version >= 170_000;
    if inherits_identity {
        for family in &mut families {
            let above = std::iter::once(family.parent).chain(tree.ancestors(family.parent));
            let all = above.filter_map(|table| identities.get(&table)).flatten();
            family.identities = all.copied().collect();
        }
    }
    let mut builder = Builder {
        input,
        plan: Plan {
            families,
            names_not_null: input.facts.server_version >= 180_000,
            inherits_identity,
            selects_schemas,
            ..Plan::default()
        },
        step_of: vec![NONE; toc.len()],
        edges: Vec::new(),
        tree,
        groups_end: Vec::new(),
        checks: HashMap::new(),
        validations: Vec::new(),
        parts: HashMap::new(),
        via_root: HashSet::new(),
        identities,
        code,
        above_index: HashMap::new(),
    };
    builder.find_via_root();
    builder.add_groups();
    builder.add_merged();
    builder.add_rest();
    builder.add_edges();
    builder.add_locks();
    builder.finish()
}

/// Parent and partition of a TABLE ATTACH, by its dependencies: the partition has its name.
fn attach_ends(toc: &Toc, entry: &Entry) -> Option<(u32, u32)> {
    let tables: Vec<usize> = entry
        .dependencies
        .iter()
        .filter_map(|d| toc.place(*d))
        .filter(|p| matches!(toc.entry(*p).desc, b"TABLE" | b"FOREIGN TABLE"))
        .collect();
    let attach = super::text::attach(entry.defn)?;
    let named = |wanted: &[u8]| {
        let name = super::text::unquoted(super::text::last_part(wanted));
        tables.iter().copied().filter(move |p| toc.entry(*p).tag == name).collect::<Vec<_>>()
    };
    // Two tables of one name in different schemas: the entry is filed under the partition's schema.
    let child =
        *named(attach.child).iter().find(|p| toc.entry(**p).namespace == entry.namespace)?;
    let parent = *named(attach.parent).iter().find(|p| **p != child)?;
    Some((parent as u32, child as u32))
}

/// The table whose column an entry makes an identity column.
fn identity_of(toc: &Toc, entry: &Entry) -> Option<u32> {
    if entry.desc != b"SEQUENCE" {
        return None;
    }
    let name = super::text::identity(entry.defn)?.table;
    let mut tables = entry.dependencies.iter().filter_map(|d| toc.place(*d));
    let table = tables.find(|p| {
        super::text::create_table(toc.entry(*p).defn).is_some_and(|table| table.name == name)
    })?;
    Some(table as u32)
}

/// Rows that pg_dump wrote with --load-via-partition-root, or had to: the statement names another table than the entry is
/// filed under, or the entry says so.
pub fn copies_via_root(entry: &Entry) -> bool {
    if entry.desc != b"TABLE DATA" {
        return false;
    }
    let named = || {
        let name = super::text::take_name(&mut entry.copy_stmt.strip_prefix(b"COPY ")?)?;
        let table = super::text::last_part(name);
        let schema = name[..name.len() - table.len()].strip_suffix(b".");
        let other = super::text::unquoted(table) != entry.tag
            || schema.is_some_and(|schema| super::text::unquoted(schema) != entry.namespace);
        Some(other)
    };
    entry.defn.starts_with(b"-- load via partition root ") || named() == Some(true)
}

/// So many partitions with so many indexes in all are too many for one statement, which locks all of them, with what it makes of each.
pub fn too_many_at_once(partitions: u64, indexes: u64, lock_slots: u64) -> bool {
    2 * (partitions + indexes) > lock_slots / 3
}

/// Decide how the indexes and CHECK constraints of families are made.
///
/// What is done to a parent goes down to all that is attached, whatever made it. So all partitions of the parent must be
/// members, and none may be partitioned itself.
fn settle_modes(families: &mut [Family], tree: &Tree, input: &Input, code: &Code) {
    let slots = input.facts.lock_slots;
    for family in families.iter_mut() {
        let attached = tree.children.get(&family.parent).map_or(0, Vec::len);
        let flat = attached == family.members.len()
            && !tree.parent.contains_key(&family.parent)
            && family.members.iter().all(|m| !tree.children.contains_key(&m.table));
        let count = family.members.len() as u64;
        let chosen = |place: u32| input.selection.has(place);
        if !flat
            || !input.rules.partition_indexes
            || !family.pairs.iter().all(|(i, a)| chosen(*i) && chosen(*a))
        {
            family.index_mode = IndexMode::Own;
        }
        if family.index_mode == IndexMode::Bulk
            && too_many_at_once(count, count * family.indexes.len() as u64, slots)
        {
            family.index_mode = IndexMode::WithTable;
            // Whatever looks at other tables waits for their rows.
            family.keep_indexes(|index| !code.runs(&input.toc.entry(index as usize)));
        }
        let entry = input.toc.entry(family.parent as usize);
        let checks = super::text::create_table(entry.defn)
            .and_then(|t| super::text::split_checks(t.body))
            .map_or(0, |(_, checks)| checks.len());
        family.late_checks = flat && input.rules.late_checks && checks > 0 && count * 2 < slots / 3;
    }
}

impl Builder<'_> {
    /// Find rows that may go to other tables than the one they are filed under. INSERTs tell their table only where they
    /// are stored: those of partitions count as such.
    fn find_via_root(&mut self) {
        let toc = self.input.toc;
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            let partition = || {
                let mut tables = entry.dependencies.iter().filter_map(|d| toc.place(*d));
                tables.any(|table| {
                    let own = self.tree.parent.contains_key(&(table as u32));
                    own || attaches_itself(&toc.entry(table))
                })
            };
            let inserts = entry.desc == b"TABLE DATA" && entry.copy_stmt.is_empty() && partition();
            if copies_via_root(&entry) || inserts {
                self.via_root.insert(place);
            }
        }
    }

    /// Add a step for entries; returns its number.
    fn add_step(&mut self, work: Work, entries: &[u32]) -> u32 {
        let number = self.plan.steps.len() as u32;
        let begin = self.plan.covered.len() as u32;
        self.plan.covered.extend_from_slice(entries);
        for &place in entries {
            self.step_of[place as usize] = number;
        }
        let covered = begin..self.plan.covered.len() as u32;
        let step = Step { work, entries: covered, locks: 0..0, lock_count: 0, cost: 0, rank: 0 };
        self.plan.steps.push(step);
        number
    }

    /// Steps of their own for all that no rule has taken.
    fn add_rest(&mut self) {
        let toc = self.input.toc;
        let places = self.input.selection.places();
        let total = places.map(|p| self.input.sizes.data_bytes(p as usize)).sum();
        for (number, reload) in self.input.facts.reloads.iter().enumerate() {
            self.add_step(Work::Reload(number as u32), &reload.entries);
        }
        for place in self.input.selection.places() {
            if self.step_of[place as usize] != NONE {
                continue;
            }
            let entry = toc.entry(place as usize);
            match entry.desc {
                b"TABLE DATA" => {
                    let parts = self.parts_of(place, total);
                    let further =
                        (1..parts).map(|n| self.add_step(Work::Data(n, parts), &[place])).collect();
                    let first = self.add_step(Work::Data(0, parts), &[place]);
                    if parts > 1 {
                        self.parts.insert(first, further);
                    }
                }
                b"BLOBS" => drop(self.add_step(Work::LargeObjects, &[place])),
                _ => drop(self.add_step(Work::Entries, &[place])),
            }
        }
    }

    /// In how many parts a table's rows are copied: several if it would otherwise keep one connection busy when the
    /// others have nothing left to do. Each part reads and decompresses all of the rows, and none can freeze its own,
    /// which makes indexes and foreign keys dearer. Two parts gain less than that costs: the only table of 3.6 GB took
    /// 133 s with its indexes and keys, in one part 124 s (two cores).
    fn parts_of(&self, place: u32, total: u64) -> u16 {
        let (size, jobs) =
            (self.input.sizes.data_bytes(place as usize), self.input.facts.jobs as u64);
        let text = !self.input.toc.entry(place as usize).copy_stmt.is_empty()
            && !self.via_root.contains(&place);
        let large = size >= SPLIT_FROM && jobs > 2 && size * jobs > total;
        // Rows of a table that was there before are loaded in one transaction, as what fails must leave it as it was.
        let toc = self.input.toc;
        let entry = toc.entry(place as usize);
        let mut tables = entry.dependencies.iter().filter_map(|d| toc.place(*d));
        let made = tables.any(|p| {
            toc.entry(p).desc == b"TABLE"
                && toc.entry(p).tag == entry.tag
                && self.input.selection.has(p as u32)
        });
        match self.input.rules.split_data && text && large && made {
            true => jobs.min(size / SPLIT_FROM + 1).clamp(1, 16) as u16,
            false => 1,
        }
    }

    fn step_at(&self, dump_id: i32) -> Option<u32> {
        let place = self.input.toc.place(dump_id)?;
        Some(self.step_of[place]).filter(|s| *s != NONE)
    }

    fn edge(&mut self, before: u32, after: u32) {
        if before != after && before != NONE && after != NONE {
            self.edges.push((before, after));
        }
    }

    /// Put edges in order, look for circles, and compute ranks.
    fn finish(mut self) -> Result<Plan> {
        let count = self.plan.steps.len();
        self.edges.sort_unstable();
        self.edges.dedup();
        let mut ends = vec![0u32; count];
        let mut waits = vec![0u32; count];
        for &(before, after) in &self.edges {
            ends[before as usize] += 1;
            waits[after as usize] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum;
        }
        self.plan.followers = self.edges.iter().map(|(_, after)| *after).collect();
        self.plan.ends = ends;
        self.plan.waits = waits;
        self.edges = Vec::new();
        let order = self.topological_order()?;
        self.add_costs();
        for &step in order.iter().rev() {
            let after = self.plan.followers(step as usize).iter();
            let longest = after.map(|f| self.plan.steps[*f as usize].rank).max().unwrap_or(0);
            let step = &mut self.plan.steps[step as usize];
            step.rank = longest + u64::from(step.cost);
        }
        self.count_statements();
        Ok(self.plan)
    }

    fn topological_order(&self) -> Result<Vec<u32>> {
        let mut waits = self.plan.waits.clone();
        let mut order: Vec<u32> =
            (0..waits.len()).filter(|s| waits[*s] == 0).map(|s| s as u32).collect();
        let mut next = 0;
        while next < order.len() {
            for &after in self.plan.followers(order[next] as usize) {
                waits[after as usize] -= 1;
                if waits[after as usize] == 0 {
                    order.push(after);
                }
            }
            next += 1;
        }
        if order.len() == waits.len() {
            return Ok(order);
        }
        let stuck = (0..waits.len()).filter(|s| waits[*s] > 0);
        let names: Vec<String> = stuck
            .flat_map(|s| self.plan.entries(s).iter().take(1))
            .take(5)
            .map(|p| describe(&self.input.toc.entry(*p as usize)))
            .collect();
        Err(Error::archive("entries of the archive depend on each other in a circle")
            .detail(format!("Among them: {}.", names.join(", ")))
            .hint("The archive may be damaged; try --disable-rule=all."))
    }
}

/// An entry's name for messages: kind, schema and tag.
pub fn describe(entry: &Entry) -> String {
    let text = |t: &[u8]| String::from_utf8_lossy(t).into_owned();
    match entry.namespace {
        b"" => format!("{} {}", text(entry.desc), text(entry.tag)),
        namespace => format!("{} {}.{}", text(entry.desc), text(namespace), text(entry.tag)),
    }
}
