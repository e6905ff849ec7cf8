//! Which batches of a table's stripes ANALYZE reads, and what part of their rows it is given. A pure
//! choice: it knows counts and random numbers only. docs/internals/statistics.md says why it is fair.

use crate::stripe::Batch;

/// Rows that a batch should give. More would save reading, but rows of one batch are often alike.
const ROWS_PER_UNIT: f64 = 30.0;
/// Batches read at least: the rows of one are too alike to stand for a table.
const FEWEST_UNITS: f64 = 4.0;
/// Rows handed to ANALYZE's reservoir per row it wants, so that chance never leaves it short.
const SURPLUS: f64 = 1.2;
/// Stripes read at most where few rows are wanted of each: every one costs its metadata.
const LOCAL_STRIPES: f64 = 512.0;
/// The same for cold ones, whose parts are fetched from a store.
const COLD_STRIPES: f64 = 64.0;

/// What is to be sampled.
pub struct Task<'a> {
    /// Rows of each stripe, and whether it is cold, in slot order.
    pub stripes: &'a [(u32, bool)],
    /// Rows of the row store, about.
    pub row_store_rows: f64,
    /// Rows that ANALYZE wants of the whole table.
    pub wanted: f64,
    /// Part of the blocks it was told that ANALYZE visits.
    pub visited: f64,
}

/// One batch to be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// Index of the stripe.
    pub stripe: usize,
    pub batch: u32,
    /// Rows of the table that each row of this batch stands for in counts.
    pub weight: f64,
    /// Part of the batch's live rows to be handed on.
    pub share: f64,
}

/// The choice.
pub struct Plan {
    /// The chance of any row of the table to be handed on once its block is visited.
    pub rate: f64,
    /// In the order of the table.
    pub units: Vec<Unit>,
}

/// Choose the batches. `random` gives numbers in (0, 1).
pub fn choose(task: &Task, mut random: impl FnMut() -> f64) -> Plan {
    let stripe_rows: f64 = task.stripes.iter().map(|(rows, _)| f64::from(*rows)).sum();
    let all = stripe_rows + task.row_store_rows;
    let visited = task.visited.clamp(1e-9, 1.0);
    if stripe_rows == 0.0 {
        return Plan { rate: 1.0, units: Vec::new() };
    }
    let rate = (SURPLUS * task.wanted / (visited * all)).min(1.0);
    let mut units = Vec::new();
    for (cold, most) in [(false, LOCAL_STRIPES), (true, COLD_STRIPES)] {
        let class: Vec<usize> =
            (0..task.stripes.len()).filter(|i| task.stripes[*i].1 == cold).collect();
        let rows: f64 = class.iter().map(|i| f64::from(task.stripes[*i].0)).sum();
        let wish = (task.wanted / ROWS_PER_UNIT * rows / all).max(FEWEST_UNITS) / visited;
        units.extend(choose_of(task.stripes, &class, rate, wish, most, &mut random));
    }
    units.sort_by_key(|u: &Unit| (u.stripe, u.batch));
    Plan { rate, units }
}

/// About `wish` batches of the stripes `class`, from `most` of them if that is enough.
fn choose_of(
    stripes: &[(u32, bool)],
    class: &[usize],
    rate: f64,
    wish: f64,
    most: f64,
    random: &mut impl FnMut() -> f64,
) -> Vec<Unit> {
    // Of every stripe taken at least half the rows stay unread: a thinner choice of stripes could not
    // give enough rows.
    let enough = (class.len() as f64 * (2.0 * rate).min(1.0)).ceil().max(most) as usize;
    let mut batches = Vec::new();
    for (number, stripes_of_stratum) in strata(class.len(), enough, random) {
        let stripe = class[number];
        let count = Batch::count(stripes[stripe].0);
        batches.extend((0..count).map(|batch| (stripe, batch, stripes_of_stratum as f64)));
    }
    // So many that no share exceeds one.
    let heaviest = batches.iter().map(|b| b.2).fold(1.0, f64::max);
    let least = (batches.len() as f64 * (rate * heaviest).min(1.0)).ceil();
    let chosen = strata(batches.len(), wish.ceil().max(least).max(1.0) as usize, random);
    let unit = |(number, size): (usize, usize)| {
        let (stripe, batch, stripes_of_stratum) = batches[number];
        let weight = size as f64 * stripes_of_stratum;
        Unit { stripe, batch, weight, share: (rate * weight).min(1.0) }
    };
    chosen.into_iter().map(unit).collect()
}

/// Divide `count` things into up to `parts` runs of nearly equal length and choose one of each: its
/// number, and the length of its run.
fn strata(count: usize, parts: usize, random: &mut impl FnMut() -> f64) -> Vec<(usize, usize)> {
    let parts = parts.min(count);
    let edge = |i: usize| (i as u128 * count as u128 / parts as u128) as usize;
    let pick = |i: usize| {
        let (first, size) = (edge(i), edge(i + 1) - edge(i));
        let number = if size == 1 { 0 } else { ((random() * size as f64) as usize).min(size - 1) };
        (first + number, size)
    };
    (0..parts).map(pick).collect()
}
