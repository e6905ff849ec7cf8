//! ANALYZE: PostgreSQL picks blocks of a number we tell it, and rows of what each gives. Stripes are
//! told as the blocks that their rows would fill in a heap; a few of these carry the batches that
//! are read, and row store and batches alike give the same part of their rows. How that makes the
//! sample fair is in docs/internals/statistics.md.

use super::analyze_plan::{choose, strata, Plan, Task, Unit};
use super::analyze_rows::UnitRows;
use crate::directory::counts::{self, stripe_totals_now, StripeTotals};
use crate::directory::{tombstones, Directory, Found};
use crate::pg::statistics::{self, Random};
use crate::pg::{LockMode, Oid, Rel, Snap, TupleSlot};
use firn_format::Location;
use firn_scan::Batch;
use std::cell::Cell;

/// Blocks that ANALYZE was told: the row store's, and those that stand for the stripes, which are the
/// last ones. Where no file is there to hold both, some numbers mean one of each.
#[derive(Clone, Copy)]
struct Told {
    table: Oid,
    row_store: u32,
    stripes: u32,
    total: u32,
}

impl Told {
    fn new(table: Rel) -> Told {
        let row_store = table.heap_blocks();
        let most = statistics::blocks_of_files(row_store);
        let stripes = heap_blocks_of(stripe_totals_now(table)).min(f64::from(most)) as u32;
        let total = row_store.saturating_add(stripes).min(most);
        Told { table: table.oid(), row_store, stripes, total }
    }
    fn first_of_stripes(&self) -> u32 {
        self.total - self.stripes
    }
}

thread_local! {
    /// The table may grow between ANALYZE's question and the first block it picks.
    static TOLD: Cell<Option<Told>> = const { Cell::new(None) };
}

/// Blocks that the rows of a table's stripes would fill in a heap, about.
fn heap_blocks_of(stripes: StripeTotals) -> f64 {
    (stripes.rows / statistics::rows_per_page(stripes.row_width())).ceil()
}

/// Blocks to tell ANALYZE for its sampling.
pub fn blocks_to_sample(table: Rel) -> u32 {
    let told = Told::new(table);
    TOLD.set(Some(told));
    told.total
}

/// Blocks to tell ANALYZE of a parent, which gives its children shares of the sample by them.
pub fn blocks_to_share(table: Rel) -> u32 {
    let stripes = heap_blocks_of(stripe_totals_now(table));
    (f64::from(table.heap_blocks()) + stripes).min(f64::from(u32::MAX - 1)) as u32
}

/// A unit to be read, and the block that carries it.
struct Carried {
    unit: Unit,
    /// Counted from the first of the stripes' blocks.
    block: u32,
}

/// Deleted rows of one batch after the other. Most stripes have none at all, and lanes of a batch follow each other.
#[derive(Default)]
struct Deleted {
    /// The stripe asked for last, and whether it may have any.
    stripe: Option<(usize, bool)>,
    batch: Option<(usize, u32)>,
    /// In the batch, ascending.
    rows: Vec<u32>,
}

impl Deleted {
    /// Those of batch `batch` of stripe number `stripe`, which is `found`.
    fn of(&mut self, directory: &Directory, stripe: usize, found: &Found, batch: u32) -> &[u32] {
        if self.batch != Some((stripe, batch)) {
            let (toast, all) = (&directory.toast, found.entry.rows);
            let holed = match self.stripe {
                Some((last, holed)) if last == stripe => holed,
                _ => tombstones::may_be_any(toast, found.slot, all),
            };
            self.stripe = Some((stripe, holed));
            self.rows = match holed {
                true => {
                    let rows = Batch::number(batch, all).rows;
                    tombstones::deleted_of(toast, found.slot, rows, Snap::self_snap())
                }
                false => Vec::new(),
            };
            self.batch = Some((stripe, batch));
        }
        &self.rows
    }
}

/// The state of one ANALYZE scan.
pub struct Sampler {
    told: Told,
    directory: Option<Directory>,
    stripes: Vec<Found>,
    units: Vec<Carried>,
    deleted: Deleted,
    rate: f64,
    /// All rows of the stripes, and the part of them that is alive.
    stripe_rows: f64,
    alive: f64,
    /// Blocks visited, and the live rows that ANALYZE has counted in them.
    visited: u32,
    counted: f64,
    /// Live stripe rows that one of the stripes' blocks stands for.
    live_per_block: f64,
    random: Random,
    /// The units of the current block that are still to be read.
    todo: std::ops::Range<usize>,
    /// The current block stands for stripes, and is not counted yet.
    uncounted: bool,
    rows: UnitRows,
}

impl Sampler {
    pub fn new(table: Rel) -> Sampler {
        let told =
            TOLD.take().filter(|t| t.table == table.oid()).unwrap_or_else(|| Told::new(table));
        // As `finish` needs it: what is made stronger later may have to wait for a REINDEX, which waits for what is held already.
        let lock = match statistics::for_parent() {
            true => LockMode::AccessShare,
            false => LockMode::RowExclusive,
        };
        let directory = Directory::open(table, lock);
        let stripes: Vec<Found> = match &directory {
            Some(directory) if told.stripes > 0 => directory.list(Snap::self_snap()),
            _ => Vec::new(),
        };
        directory.as_ref().inspect(|d| d.toast.read_in_bulk());
        let mut random = Random::new();
        let look = plan(table, &told, &stripes, 1.0, &mut random);
        let mut sampler = Sampler {
            told,
            directory,
            stripes,
            units: Vec::new(),
            deleted: Deleted::default(),
            rate: 1.0,
            stripe_rows: 0.0,
            alive: 1.0,
            visited: 0,
            counted: 0.0,
            live_per_block: 0.0,
            random,
            todo: 0..0,
            uncounted: false,
            rows: UnitRows::new(table),
        };
        // Rows that are deleted are not handed on, so what is alive decides how many others are. That look is not the one by which
        // rows are counted: a choice that depends on what it has found is not fair.
        if let Some(alive) = sampler.part_alive(&look.units, BATCHES_FOR_RATE) {
            let stripes = &sampler.stripes;
            let plan = plan(table, &sampler.told, stripes, alive, &mut sampler.random);
            sampler.take_up(plan);
        }
        sampler
    }

    /// The part of the stripes' rows that is alive, by the batches of these units, or by `most` of them.
    fn part_alive(&mut self, units: &[Unit], most: usize) -> Option<f64> {
        let directory = self.directory.as_ref()?;
        let batches: Vec<&[Unit]> =
            units.chunk_by(|a, b| (a.stripe, a.batch) == (b.stripe, b.batch)).collect();
        if batches.is_empty() {
            return None;
        }
        let (mut rows, mut live) = (0.0, 0.0);
        for (number, stands_for) in strata(batches.len(), most, &mut || self.random.fraction()) {
            let [unit, ..] = batches[number] else { continue };
            let Some(found) = self.stripes.get(unit.stripe) else { continue };
            let weight: f64 = batches[number].iter().map(|u| u.weight).sum();
            let weight = weight * stands_for as f64;
            let size = Batch::number(unit.batch, found.entry.rows).rows.len() as f64;
            let deleted = self.deleted.of(directory, unit.stripe, found, unit.batch).len() as f64;
            rows += weight * size;
            live += weight * (size - deleted);
        }
        (rows > 0.0).then(|| live / rows)
    }

    /// Give each unit its block, and find out how many rows are alive.
    fn take_up(&mut self, plan: Plan) {
        self.rate = plan.rate;
        self.stripe_rows = self.stripes.iter().map(|f| f64::from(f.entry.rows)).sum();
        if let Some(alive) = self.part_alive(&plan.units, BATCHES_FOR_COUNTS) {
            self.alive = alive;
        }
        if self.told.stripes > 0 {
            self.live_per_block = self.stripe_rows * self.alive / f64::from(self.told.stripes);
        }
        let count = plan.units.len().max(1) as u64;
        let blocks = u64::from(self.told.stripes);
        let carry = |(i, unit)| {
            let block = (2 * i as u64 + 1) * blocks / (2 * count);
            Carried { unit, block: block as u32 }
        };
        self.units = plan.units.into_iter().enumerate().map(carry).collect();
    }

    /// Begin a block; true when the row store has one of this number.
    pub fn begin_block(&mut self, block: u32) -> bool {
        self.visited += 1;
        self.todo = 0..0;
        self.uncounted = false;
        if let Some(number) = block.checked_sub(self.told.first_of_stripes()) {
            let first = self.units.partition_point(|u| u.block < number);
            let end = self.units.partition_point(|u| u.block <= number);
            self.todo = first..end;
            self.uncounted = self.told.stripes > 0;
        }
        block < self.told.row_store
    }

    /// A live row of the row store was found: is it to be handed on?
    pub fn keep_row_store_row(&mut self) -> bool {
        self.rate >= 1.0 || self.random.fraction() < self.rate
    }

    /// Hand on the next row of the current block's batches; false when there is none.
    pub fn next(&mut self, live: &mut f64, slot: TupleSlot) -> bool {
        if std::mem::take(&mut self.uncounted) {
            *live += self.live_per_block;
        }
        self.counted = *live;
        loop {
            if self.rows.next_into(slot) {
                return true;
            }
            let Some(carried) = self.todo.next().and_then(|i| self.units.get(i)) else { break };
            let Some(found) = self.stripes.get(carried.unit.stripe) else { continue };
            let Some(directory) = &self.directory else { continue };
            let unit = &carried.unit;
            let deleted = self.deleted.of(directory, unit.stripe, found, unit.batch);
            let mut deleted = deleted.iter().peekable();
            let alive = Batch::number(unit.batch, found.entry.rows)
                .rows
                .filter(|row| deleted.next_if(|d| *d == row).is_none() && unit.has(*row))
                .collect();
            let chosen = choose_rows(alive, unit.share, || self.random.fraction());
            if !chosen.is_empty() {
                self.rows.read(&directory.toast, found, chosen);
            }
        }
        slot.clear();
        false
    }
}

impl Sampler {
    /// The scan has ended: note what the row count includes of the stripes.
    pub fn finish(self) {
        // For a parent, the table's own count is not set.
        if self.stripe_rows == 0.0 || self.visited == 0 || statistics::for_parent() {
            return;
        }
        let Some(directory) = Directory::open(self.rows.table(), LockMode::RowExclusive) else {
            return;
        };
        // As ANALYZE computes it.
        let per_block = self.counted / f64::from(self.visited);
        let whole = (per_block * f64::from(self.told.total) + 0.5).floor();
        let live = (self.stripe_rows * self.alive).round();
        counts::note(&directory.toast, whole, self.stripe_rows as u64, live as u64);
    }
}

/// Batches whose tombstones are read at most: to know how many rows a visit gives, and to count rows. Those of the table may be millions.
const BATCHES_FOR_RATE: usize = 300;
const BATCHES_FOR_COUNTS: usize = 2_000;

/// `alive`: the part of the stripes' rows that is taken to be alive.
fn plan(table: Rel, told: &Told, stripes: &[Found], alive: f64, random: &mut Random) -> Plan {
    let list: Vec<(u32, bool)> = stripes
        .iter()
        .map(|f| (f.entry.rows, matches!(f.entry.location, Location::Object { .. })))
        .collect();
    if list.is_empty() {
        return Plan { rate: 1.0, units: Vec::new() };
    }
    // Of a table with fewer blocks than rows wanted, all blocks are visited. Otherwise a block is
    // chosen per row wanted.
    let chosen = statistics::blocks_chosen().filter(|n| *n <= told.total);
    let by_targets = statistics::rows_wanted(table);
    let visits = chosen.unwrap_or(by_targets.min(told.total));
    let wanted = if visits < told.total { visits } else { visits.max(by_targets) };
    // The sample is held in memory with its wide values, which heap would have left in its TOAST
    // relation.
    let rows: f64 = stripes.iter().map(|f| f64::from(f.entry.rows)).sum();
    let bytes: f64 = stripes.iter().map(|f| f.entry.raw_bytes as f64).sum();
    let width = bytes / rows.max(1.0);
    let bearable = statistics::maintenance_memory().max(LEAST_MEMORY) as f64 / width.max(1.0);
    let task = Task {
        stripes: &list,
        alive,
        row_store_rows: row_store_rows(table, told, width, rows * alive),
        wanted: f64::from(wanted),
        bearable: bearable.max(LEAST_ROWS),
        visited: f64::from(visits) / f64::from(told.total.max(1)),
    };
    choose(&task, || random.fraction())
}

/// Live rows of the row store, about: by the density of the last count or else by their width, and no more than the table has beside
/// its stripes, as far as the cumulative statistics know.
fn row_store_rows(table: Rel, told: &Told, width: f64, in_stripes: f64) -> f64 {
    if told.row_store == 0 {
        return 0.0;
    }
    let (whole, pages) = table.counted();
    let part = stripe_totals_now(table).row_store_part(whole);
    let density = match part {
        Some(rows) if pages > 0 => f64::from(rows) / f64::from(pages),
        _ => statistics::rows_per_page(width),
    };
    let by_pages = f64::from(told.row_store) * density;
    match statistics::live_rows(table) {
        Some(live) => by_pages.min((live - in_stripes).max(0.0)),
        None => by_pages,
    }
}

/// Memory for the sample, whatever maintenance_work_mem says.
const LEAST_MEMORY: usize = 64 << 20;
/// Rows of the sample, however wide they are.
const LEAST_ROWS: f64 = 30.0;

/// A random choice of the part `share` of these rows, in their order.
fn choose_rows(rows: Vec<u32>, share: f64, mut random: impl FnMut() -> f64) -> Vec<u32> {
    if share >= 1.0 {
        return rows;
    }
    // As many as the share says on average, each set of that size with the same chance (Floyd).
    let count = rows.len();
    let take = ((count as f64 * share + random()) as usize).min(count);
    let mut chosen = vec![false; count];
    for last in count - take..count {
        let one = ((random() * (last + 1) as f64) as usize).min(last);
        let free = if chosen[one] { last } else { one };
        chosen[free] = true;
    }
    rows.into_iter().zip(chosen).filter_map(|(row, is)| is.then_some(row)).collect()
}
