//! ANALYZE: PostgreSQL picks blocks of a number we tell it, and rows of what each gives. Stripes are
//! told as the blocks that their rows would fill in a heap; a few of these carry the batches that
//! are read, and row store and batches alike give the same part of their rows. How that makes the
//! sample fair is in docs/internals/statistics.md.

use super::analyze_plan::{choose, Plan, Task, Unit};
use super::analyze_rows::UnitRows;
use super::counts::{self, stripe_totals_now, StripeTotals};
use crate::directory::{tombstones, Directory, Found};
use crate::pg::statistics::{self, Random};
use crate::pg::{LockMode, Rel, Snap, TupleSlot};
use crate::stripe::Batch;
use firn_format::Location;
use std::cell::Cell;

/// Blocks that ANALYZE was told: the row store's, and those that stand for the stripes, which are the
/// last ones. Where no file is there to hold both, some numbers mean one of each.
#[derive(Clone, Copy)]
struct Told {
    table: u32,
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
    /// Deleted rows of its batch, ascending.
    deleted: Vec<u32>,
}

/// The state of one ANALYZE scan.
pub struct Sampler {
    told: Told,
    directory: Option<Directory>,
    stripes: Vec<Found>,
    units: Vec<Carried>,
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
        let directory = Directory::open(table, LockMode::AccessShare);
        let stripes: Vec<Found> = match &directory {
            Some(directory) if told.stripes > 0 => directory.list(Snap::self_snap()),
            _ => Vec::new(),
        };
        directory.as_ref().inspect(|d| d.toast.read_in_bulk());
        let mut random = Random::new();
        let all_alive = plan(table, &told, &stripes, 1.0, &mut random);
        let mut sampler = Sampler {
            told,
            directory,
            stripes,
            units: Vec::new(),
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
        sampler.take_up(all_alive);
        if sampler.alive < MOSTLY_ALIVE {
            let alive = sampler.alive;
            let plan = plan(table, &told, &sampler.stripes, alive, &mut sampler.random);
            sampler.take_up(plan);
        }
        sampler
    }

    /// Give each unit its block, and find out how many rows are alive.
    fn take_up(&mut self, plan: Plan) {
        self.rate = plan.rate;
        self.units.clear();
        let Some(directory) = &self.directory else { return };
        let count = plan.units.len().max(1) as u64;
        let snap = Snap::self_snap();
        // Most stripes have no deleted row at all.
        let mut holed: Option<(usize, bool)> = None;
        let (mut rows, mut live) = (0.0, 0.0);
        for (i, unit) in plan.units.into_iter().enumerate() {
            let Some(found) = self.stripes.get(unit.stripe) else { continue };
            let all = found.entry.rows;
            let is_holed = match holed {
                Some((stripe, is)) if stripe == unit.stripe => is,
                _ => tombstones::any(&directory.toast, found.slot, all, snap),
            };
            holed = Some((unit.stripe, is_holed));
            let batch = Batch::number(unit.batch, all).rows;
            let size = batch.len() as f64;
            let deleted = if is_holed {
                tombstones::deleted_of(&directory.toast, found.slot, batch, snap)
            } else {
                Vec::new()
            };
            rows += unit.weight * size;
            live += unit.weight * (size - deleted.len() as f64);
            let block = (2 * i as u64 + 1) * u64::from(self.told.stripes) / (2 * count);
            self.units.push(Carried { unit, block: block as u32, deleted });
        }
        self.stripe_rows = self.stripes.iter().map(|f| f64::from(f.entry.rows)).sum();
        if rows > 0.0 && self.told.stripes > 0 {
            self.alive = live / rows;
            self.live_per_block = self.stripe_rows * self.alive / f64::from(self.told.stripes);
        }
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
            let mut deleted = carried.deleted.iter().peekable();
            let alive = Batch::number(unit.batch, found.entry.rows)
                .rows
                .filter(|row| deleted.next_if(|d| *d == row).is_none() && unit.has(*row))
                .collect();
            let chosen = choose_rows(alive, unit.share, || self.random.fraction());
            self.rows.load(&directory.toast, found, chosen);
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

/// Where fewer of the stripes' rows are alive, the choice is made again for those that are: the first one
/// has found out how many.
const MOSTLY_ALIVE: f64 = 0.95;

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
        row_store_rows: f64::from(told.row_store) * row_store_density(table, width),
        wanted: f64::from(wanted),
        bearable: bearable.max(LEAST_ROWS),
        visited: f64::from(visits) / f64::from(told.total.max(1)),
    };
    choose(&task, || random.fraction())
}

/// Live rows on a page of the row store, by the last count or else by their width and the part of the
/// table's rows that is dead.
fn row_store_density(table: Rel, width: f64) -> f64 {
    let (whole, pages) = table.counted();
    let part = stripe_totals_now(table).row_store_part(whole);
    match part {
        Some(rows) if pages > 0 => f64::from(rows) / f64::from(pages),
        _ => statistics::rows_per_page(width) * statistics::live_part(table),
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
