//! Which batches of a table's stripes ANALYZE reads, and what part of their rows it is given. A pure
//! choice: it knows counts and random numbers only. docs/internals/statistics.md says why it is fair.

use firn_scan::Batch;

/// Rows that a unit should give. More would save reading, but rows of one batch are often alike.
const ROWS_PER_UNIT: f64 = 15.0;
/// Lanes of a batch at most: each a unit of its own, so that even where few blocks are visited there
/// are units enough among these.
const MOST_LANES: f64 = 128.0;
/// Units read at least: the rows of one are too alike to stand for a table.
const FEWEST_UNITS: f64 = 8.0;
/// Rows that a stripe should give, when there are many: each costs its metadata and dictionaries.
const ROWS_PER_STRIPE: f64 = 60.0;
/// The same for a cold one. A few rows of it cost as much as all, as its columns' pages are spread over
/// the whole object, which is fetched in pieces.
const ROWS_PER_COLD_STRIPE: f64 = 1_000.0;
/// Stripes read at least.
const FEWEST_STRIPES: f64 = 4.0;

/// Part of the stripes' rows that is taken to be alive at least: where fewer are, the sample is smaller
/// than wanted, but little more is read for it.
const LEAST_ALIVE: f64 = 0.02;

/// What is to be sampled.
pub struct Task<'a> {
    /// Rows of each stripe, and whether it is cold, in slot order.
    pub stripes: &'a [(u32, bool)],
    /// Part of the stripes' rows that is alive, about.
    pub alive: f64,
    /// Live rows of the row store, about.
    pub row_store_rows: f64,
    /// Rows that ANALYZE wants of the whole table.
    pub wanted: f64,
    /// Rows that memory bears.
    pub bearable: f64,
    /// Part of the blocks it was told that ANALYZE visits.
    pub visited: f64,
}

/// Some rows of one batch to be read: those of one lane, which are strewn over the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// Index of the stripe.
    pub stripe: usize,
    pub batch: u32,
    lane: u32,
    lanes: u32,
    /// Rows of the table that each row of this unit stands for in counts.
    pub weight: f64,
    /// Part of the unit's live rows to be handed on.
    pub share: f64,
}

impl Unit {
    /// Is row `row` of the stripe, if it is in this batch, one of this unit?
    pub fn has(&self, row: u32) -> bool {
        scatter(row) % self.lanes == self.lane
    }
}

/// A number without any pattern in common with `row`: rows often have one of their own.
fn scatter(row: u32) -> u32 {
    let x = (row ^ (row >> 16)).wrapping_mul(0x85EB_CA6B);
    let x = (x ^ (x >> 13)).wrapping_mul(0xC2B2_AE35);
    x ^ (x >> 16)
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
    // Rows that are deleted are not handed on, and are no part of what the others stand for.
    let alive = task.alive.clamp(LEAST_ALIVE, 1.0);
    let all = stripe_rows * alive + task.row_store_rows;
    let visited = task.visited.clamp(1e-9, 1.0);
    if stripe_rows == 0.0 {
        return Plan { rate: 1.0, units: Vec::new() };
    }
    let handed_on = (surplus(task.wanted) * task.wanted).min(task.bearable);
    let rate = (handed_on / (visited * all)).min(1.0);
    let mut units = Vec::new();
    for (cold, rows_per_stripe) in [(false, ROWS_PER_STRIPE), (true, ROWS_PER_COLD_STRIPE)] {
        let class: Vec<usize> =
            (0..task.stripes.len()).filter(|i| task.stripes[*i].1 == cold).collect();
        let rows: f64 = class.iter().map(|i| f64::from(task.stripes[*i].0)).sum();
        let wanted = task.wanted.min(task.bearable) * rows * alive / all;
        let wish = Wish {
            units: (wanted / ROWS_PER_UNIT).max(FEWEST_UNITS) / visited,
            stripes: (wanted / rows_per_stripe).max(FEWEST_STRIPES),
        };
        units.extend(choose_of(task.stripes, &class, rate, &wish, &mut random));
    }
    units.sort_by_key(|u: &Unit| (u.stripe, u.batch, u.lane));
    Plan { rate, units }
}

/// Rows handed to ANALYZE's reservoir per row it wants: how many units lie in the blocks it visits is
/// left to chance, and may be less than expected by five times the root of their number.
fn surplus(wanted: f64) -> f64 {
    1.1 + 5.0 / (wanted / ROWS_PER_UNIT).max(FEWEST_UNITS).sqrt()
}

/// How many units of how many stripes would do.
struct Wish {
    units: f64,
    stripes: f64,
}

fn choose_of(
    stripes: &[(u32, bool)],
    class: &[usize],
    rate: f64,
    wish: &Wish,
    random: &mut impl FnMut() -> f64,
) -> Vec<Unit> {
    // Of every stripe taken at least half the rows stay unread: a thinner choice of stripes could not
    // give enough rows.
    let least = (class.len() as f64 * (2.0 * rate).min(1.0)).ceil();
    let enough = wish.stripes.ceil().max(least) as usize;
    let taken = strata(class.len(), enough, random);
    let batches_of = |number: usize| Batch::count(stripes[class[number]].0);
    let batches: f64 = taken.iter().map(|(number, _)| f64::from(batches_of(*number))).sum();
    // All rows of a table must come in the order of the table: PostgreSQL sorts only what it chose.
    let lanes = if rate < 1.0 { (2.0 * wish.units / batches).clamp(1.0, MOST_LANES) } else { 1.0 };
    let lanes = lanes.ceil() as u32;
    let mut all = Vec::new();
    for (number, stripes_of_stratum) in taken {
        let (stripe, weight) = (class[number], stripes_of_stratum as f64);
        let unit = |batch, lane| Unit { stripe, batch, lane, lanes, weight, share: 0.0 };
        let of_batch = |batch| (0..lanes).map(move |lane| unit(batch, lane));
        all.extend((0..batches_of(number)).flat_map(of_batch));
    }
    // Runs so short that no share exceeds one: that unit's rows would come too seldom.
    let heaviest = all.iter().map(|u| u.weight).fold(1.0, f64::max);
    let longest = (1.0 / (rate * heaviest)).floor().max(1.0) as usize;
    let least = all.len().div_ceil(longest);
    let chosen = strata(all.len(), (wish.units.ceil() as usize).max(least), random);
    let weigh = |(number, size): (usize, usize)| {
        let weight = all[number].weight * size as f64;
        Unit { weight, share: (rate * weight).min(1.0), ..all[number] }
    };
    chosen.into_iter().map(weigh).collect()
}

/// Divide `count` things into up to `parts` runs of nearly equal length and choose one of each: its
/// number, and the length of its run.
pub fn strata(count: usize, parts: usize, random: &mut impl FnMut() -> f64) -> Vec<(usize, usize)> {
    let parts = parts.min(count);
    let edge = |i: usize| (i as u128 * count as u128 / parts as u128) as usize;
    let pick = |i: usize| {
        let (first, size) = (edge(i), edge(i + 1) - edge(i));
        let number = if size == 1 { 0 } else { ((random() * size as f64) as usize).min(size - 1) };
        (first + number, size)
    };
    (0..parts).map(pick).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> impl FnMut() -> f64 {
        let mut state = 1_u64;
        move || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            ((state >> 40) as f64 + 0.5) / (1_u64 << 24) as f64
        }
    }

    /// Live rows that ANALYZE is handed on of 20 stripes, as is to be expected, and the largest share.
    fn handed_on(alive: f64) -> (f64, f64) {
        let stripes = [(30_000, false); 20];
        let task = Task {
            stripes: &stripes,
            alive,
            row_store_rows: 0.0,
            wanted: 3_000.0,
            bearable: f64::MAX,
            visited: 0.5,
        };
        let plan = choose(&task, numbers());
        let rows = |u: &Unit| {
            let batch = Batch::number(u.batch, 30_000).rows;
            batch.filter(|row| u.has(*row)).count() as f64 * alive * u.share * task.visited
        };
        let most = plan.units.iter().map(|u| u.share).fold(0.0, f64::max);
        (plan.units.iter().map(rows).sum(), most)
    }

    #[test]
    fn deleted_rows_make_the_sample_no_smaller() {
        for alive in [1.0, 0.5, 0.1, LEAST_ALIVE] {
            let (rows, most) = handed_on(alive);
            assert!((3_000.0..6_000.0).contains(&rows), "{alive}: {rows}");
            assert!(most <= 1.0, "{alive}: {most}");
        }
    }

    #[test]
    fn little_is_read_for_the_few_rows_that_are_left() {
        let (rows, _) = handed_on(LEAST_ALIVE / 10.0);
        assert!((300.0..600.0).contains(&rows), "{rows}");
    }
}
