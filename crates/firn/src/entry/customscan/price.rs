//! What reading rows of stripes costs, for the planner. PostgreSQL prices an index path as if each row lay in a page of the
//! table's and were there to be had once that page is: here a page of each column that is wanted has to be decoded, unless it
//! was lately. So what that costs is added to the paths that PostgreSQL has made, and its own scans are offered again, as it may
//! have dropped them for paths that had no price yet.
//!
//! Units are the planner's own, in which the processing of a row costs `cpu_tuple_cost`; the constants were measured in those,
//! a hundred rows of a heap being 2.4 µs (decision 0022). Pages of a table that are fetched for rows by index are priced by
//! PostgreSQL as random ones; for stripes, those of the wanted columns are in place of them, which are few.

use super::{columns_of, list_items, table_columns};
use crate::am::known::{stripes_with_room, ENTRIES_OF_LOOK, SINGLE_ROWS};
use crate::directory::counts::StripeTotals;
use crate::pg::compat;
use crate::pg::ext::guarded;
use crate::pg::{guc, Rel};
use pgrx::pg_sys;
use std::cmp::Ordering;

/// One value out of a page that is not kept: the page found, read and checked, and the value looked for, in hundreds of rows of a heap.
const LOOK: f64 = 0.8;
/// Whether a row is visible, in rows of a heap, and what it takes more in a stripe some of whose rows are deleted: a look for a tombstone, and one that is
/// read with all others of its stripe, where many rows are asked for.
const VISIBILITY: f64 = 0.3;
const TOMBSTONE_LOOK: f64 = 200.0;
const TOMBSTONE: f64 = 10.0;
/// The same in a scan of all rows.
const TOMBSTONE_READ: f64 = 8.0;
/// A row that passes the conditions of a scan, in rows of a heap.
const PASSED: f64 = 0.3;
/// A condition that is evaluated for the values of a batch together, of what it costs row by row.
const TOGETHER: f64 = 0.1;
/// Bytes of text that are decompressed in the time of a hundred rows of a heap.
const BYTES_OF_UNIT: f64 = 2_048.0;
/// What text takes of its size in a stripe.
const STORED: f64 = 0.35;
/// Distinct values that a column may have to be kept as a dictionary, about.
const DICTIONARY: f64 = 20_000.0;
/// Operators that a byte of text costs that is decompressed and copied.
const OPERATORS_OF_BYTE: f64 = 0.4;
/// Rows in a page of values of fixed width.
const PAGE_ROWS: f64 = 2_048.0;
/// Bytes in a page of wide ones, and of documents.
const TEXT_PAGE: f64 = 16_384.0;
const JSON_PAGE: f64 = 4_096.0;
const BLOCK: f64 = pg_sys::BLCKSZ as f64;

/// A column, as far as prices go.
struct ColumnPrice {
    /// Rows in a page, and its size when it is decoded.
    page_rows: f64,
    page_bytes: f64,
    /// Blocks that a page takes as it is stored.
    page_blocks: f64,
    /// One value that is not kept, in hundreds of rows of a heap.
    look: f64,
    /// Work for each value in a scan, in operators.
    operators: f64,
}

/// The conditions of a scan.
pub(super) struct Asked {
    /// What those cost for a row that stripes evaluate themselves.
    pub of_batches: f64,
    /// What others cost.
    pub of_rows: f64,
    /// The share of the rows that the first leave.
    pub passing: f64,
}

/// What of a table's stripes is read how.
pub(super) struct Prices {
    stripe_rows: f64,
    /// Of the table's rows, those in stripes.
    share: f64,
    /// Stripes, those with deleted rows among them, about, and these rows.
    stripes: f64,
    touched: f64,
    dead: f64,
    /// Of its pages.
    pages: u32,
    /// By the table's columns; those without values are free.
    columns: Vec<Option<ColumnPrice>>,
    /// Those that the query asks for.
    wanted: Vec<usize>,
}

/// A column that is fetched, of a share of the rows: conditions on others are asked before (`pg/first_conditions.rs`).
struct Read {
    column: usize,
    share: f64,
}

impl Prices {
    pub(super) unsafe fn of(
        rel: *mut pg_sys::RelOptInfo,
        table: Rel,
        totals: &StripeTotals,
    ) -> Prices {
        // SAFETY: the planner's relation of this table: its widths begin with the least attribute and have one place for each.
        unsafe {
            let exprs = (*(*rel).reltarget).exprs;
            let numbers = columns_of(&[exprs.cast()], (*rel).baserestrictinfo, (*rel).relid);
            let attributes = table.attributes();
            let price = |i: usize| {
                let attribute = &attributes[i];
                let noted = *(*rel).attr_widths.offset(i as isize + 1 - (*rel).min_attr as isize);
                let (wide, is_text) = match (attribute.by_value, attribute.length) {
                    (true, length) => (f64::from(length.max(4)), false),
                    (_, length) if length > 0 => (f64::from(length), false),
                    // Numerics are kept as integers where they are short.
                    _ if attribute.type_oid == pg_sys::NUMERICOID => (8.0, false),
                    _ => (4.0 + if noted > 0 { f64::from(noted) } else { 32.0 }, true),
                };
                let distinct = distinct_values(table, attribute.number);
                if !is_text || (distinct > 0.0 && distinct < DICTIONARY) {
                    let width = if is_text { 4.0 } else { wide };
                    return ColumnPrice {
                        page_rows: PAGE_ROWS,
                        page_bytes: PAGE_ROWS * width,
                        page_blocks: PAGE_ROWS * width / 2.0 / BLOCK,
                        look: LOOK,
                        operators: if attribute.by_value { 1.0 } else { 2.0 },
                    };
                }
                // Wide values have pages of fewer rows.
                let is_json = [pg_sys::JSONOID, pg_sys::JSONBOID].contains(&attribute.type_oid);
                let page = if is_json { JSON_PAGE } else { TEXT_PAGE };
                let page_rows =
                    if wide > 64.0 { (page / wide).clamp(1.0, PAGE_ROWS) } else { PAGE_ROWS };
                let page_bytes = page_rows * wide;
                ColumnPrice {
                    page_rows,
                    page_bytes,
                    page_blocks: page_bytes * STORED / BLOCK,
                    look: LOOK + page_bytes / BYTES_OF_UNIT,
                    operators: 2.0 + wide * OPERATORS_OF_BYTE,
                }
            };
            let columns = attributes.len();
            let stripe_rows = totals.rows.min((*rel).tuples);
            let (stripes, dead) = (totals.stripes.max(1.0), (totals.rows - totals.live()).max(0.0));
            Prices {
                stripe_rows,
                share: stripe_rows / (*rel).tuples.max(1.0),
                stripes,
                // As if they were deleted anywhere.
                touched: stripes * (1.0 - (-dead / stripes).exp()),
                dead,
                pages: totals.pages(),
                columns: (0..columns).map(|i| (!attributes[i].absent).then(|| price(i))).collect(),
                wanted: table_columns(&numbers, columns),
            }
        }
    }

    /// The values of all stripe rows, wanted columns only.
    pub(super) fn values(&self) -> f64 {
        self.stripe_rows * operators(self.of_columns(&self.wanted))
    }

    /// A scan of all stripe rows for what the query asks for, without reading blocks.
    pub(super) fn scanned(&self, asked: &Asked) -> f64 {
        // SAFETY: a setting.
        let row = unsafe { pg_sys::cpu_tuple_cost };
        let of_passing = (PASSED * row + asked.of_rows) * asked.passing;
        self.stripe_rows * (asked.of_batches * TOGETHER + of_passing)
            + self.values()
            + self.dead * TOMBSTONE_READ * row
    }

    /// Those of all columns, as PostgreSQL's own scan of the table reads them.
    fn all_values(&self) -> f64 {
        self.stripe_rows * operators(self.columns.iter().flatten())
    }

    fn of_columns<'a>(&'a self, numbers: &'a [usize]) -> impl Iterator<Item = &'a ColumnPrice> {
        numbers.iter().filter_map(|i| self.columns.get(*i)?.as_ref())
    }

    /// All columns that the query asks for, of each row.
    fn all_wanted(&self) -> Vec<Read> {
        self.wanted.iter().map(|column| Read { column: *column, share: 1.0 }).collect()
    }

    /// Fetching these columns of `tuples` rows by index in each of `loops` scans, a loop. `order` is how well the index follows
    /// the rows' order, squared; `sorted` that a scan comes to each page once.
    fn fetches(&self, wanted: &[Read], tuples: f64, loops: f64, order: f64, sorted: bool) -> f64 {
        let fetched = tuples * self.share;
        if fetched <= 0.0 {
            return 0.0;
        }
        let wanted = || {
            wanted.iter().filter_map(|read| Some((self.columns.get(read.column)?.as_ref()?, read)))
        };
        let all: f64 = wanted().map(|(c, _)| self.pages(c) * c.page_bytes).sum();
        let kept = (guc::page_cache() as f64 / all.max(1.0)).min(1.0);
        // SAFETY: settings.
        let (row, block) = unsafe { (pg_sys::cpu_tuple_cost, pg_sys::random_page_cost) };
        let mut cost = fetched * row;
        for (column, read) in wanted() {
            let tuples = (fetched * read.share).max(1.0);
            cost += tuples * operators(std::iter::once(column));
            let pages = self.pages(column);
            let mut near = (tuples / column.page_rows).ceil().max(1.0);
            // The outer rows of a loop often come in the order of the rows that belong to them: then the page at hand is the one.
            if loops > 1.0 {
                near *= 0.5;
            }
            // A scan in the order of pages comes to each once.
            let far = if sorted { distinct(tuples, pages) } else { tuples };
            let blend = |apart: f64, along: f64| apart + order * (along - apart);
            let cached = (pages * kept).max(1.0);
            let looks =
                blend(decoded(far * loops, pages, cached), decoded(near * loops, pages, cached));
            // As PostgreSQL has it of a heap: a block is read once, by the first who wants it.
            let blocks = pages * column.page_blocks;
            let touched = column.page_blocks.max(1.0);
            let first = |asked: f64| distinct(asked * loops * touched, blocks.max(1.0));
            let reads = blend(first(far), first(near));
            cost += (looks * column.look * row * 100.0 + reads * block) / loops;
        }
        cost
    }

    /// Finding out which of `tuples` rows are deleted, in each of `loops` scans, a loop and a process of several (`am/known.rs`): those look for the tombstones of
    /// their own rows, but each reads those of a stripe for itself. `order` and `sorted` as of [`Prices::fetches`].
    fn tombstones(
        &self,
        (tuples, loops): (f64, f64),
        processes: f64,
        order: f64,
        sorted: bool,
    ) -> f64 {
        let asked = tuples * self.share;
        if self.dead <= 0.0 || asked <= 0.0 {
            return 0.0;
        }
        let of_stripe = self.stripe_rows / self.stripes;
        let dead = self.dead / self.touched;
        // (Tried after twice as many rows each time.)
        let looks = (dead / f64::from(ENTRIES_OF_LOOK) * 1.5).max(f64::from(SINGLE_ROWS));
        let at_once = looks * TOMBSTONE_LOOK + dead * TOMBSTONE;
        let units = |stripes: f64, room: f64| {
            let singly = asked * loops / stripes * TOMBSTONE_LOOK / processes;
            let touched = stripes * self.touched / self.stripes;
            let fitting = touched.min(room);
            fitting * singly.min(at_once) + (touched - fitting) * singly
        };
        // Who comes to the stripes one after the other needs room for one.
        let room = match sorted {
            true => f64::INFINITY,
            false => stripes_with_room(self.stripes, of_stripe, dead),
        };
        let near = ((asked / of_stripe).ceil() * loops).clamp(1.0, self.stripes);
        let (apart, along) = (units(self.stripes, room), units(near, f64::INFINITY));
        // SAFETY: a setting.
        (apart + order * (along - apart)) / loops * unsafe { pg_sys::cpu_tuple_cost }
    }

    fn pages(&self, column: &ColumnPrice) -> f64 {
        (self.stripe_rows / column.page_rows).ceil().max(1.0)
    }
}

/// Distinct values of a column, as far as ANALYZE tells a number; 0 when it is unknown or grows with the table.
fn distinct_values(table: Rel, number: i16) -> f64 {
    use pg_sys::SysCacheIdentifier::STATRELATTINH;
    // SAFETY: the tuple is looked at before it is released.
    unsafe {
        let (id, column) = (pg_sys::Datum::from(table.oid()), pg_sys::Datum::from(number));
        let tuple = pg_sys::SearchSysCache3(STATRELATTINH as i32, id, column, false.into());
        if tuple.is_null() {
            return 0.0;
        }
        let header = (*tuple).t_data;
        let form =
            header.byte_add((*header).t_hoff as usize) as *const pg_sys::FormData_pg_statistic;
        let distinct = f64::from((*form).stadistinct);
        pg_sys::ReleaseSysCache(tuple);
        distinct.max(0.0)
    }
}

fn operators<'a>(columns: impl Iterator<Item = &'a ColumnPrice>) -> f64 {
    // SAFETY: a setting.
    columns.map(|c| c.operators).sum::<f64>() * unsafe { pg_sys::cpu_operator_cost }
}

/// Pages that so many rows, anywhere among them, lie in.
fn distinct(rows: f64, pages: f64) -> f64 {
    (2.0 * pages * rows / (2.0 * pages + rows)).min(pages)
}

/// Pages that are decoded when pages are asked for so often, at random, and so many are kept: the approximation of Mackert and
/// Lohman (ACM TODS 14, 1989) that PostgreSQL uses for its buffers.
fn decoded(asked: f64, pages: f64, kept: f64) -> f64 {
    if kept >= pages {
        return distinct(asked, pages);
    }
    let full = 2.0 * pages * kept / (2.0 * pages - kept);
    if asked <= full {
        return distinct(asked, pages);
    }
    kept + (asked - full) * (pages - kept) / pages
}

/// Add to the paths of a firn table what reading stripes costs.
pub(super) unsafe fn reprice(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    prices: &Prices,
) {
    // SAFETY: the planner's own structures; its lists of paths are of Path.
    unsafe {
        for path in list_items::<pg_sys::Path>((*rel).pathlist) {
            add(root, rel, path, prices);
        }
        for path in list_items::<pg_sys::Path>((*rel).partial_pathlist) {
            add(root, rel, path, prices);
        }
        // add_path() keeps them in that order, and relies on it.
        sort((*rel).pathlist);
        sort((*rel).partial_pathlist);
        // PostgreSQL may have dropped its own scans for paths that were cheaper then.
        let path = pg_sys::create_seqscan_path(root, rel, (*rel).lateral_relids, 0);
        add(root, rel, path, prices);
        pg_sys::add_path(rel, path);
        if !(*rel).consider_parallel || !(*rel).lateral_relids.is_null() {
            return;
        }
        let most = pg_sys::max_parallel_workers_per_gather;
        let workers = pg_sys::compute_parallel_worker(rel, f64::from((*rel).pages), -1.0, most);
        if workers > 0 {
            let path = pg_sys::create_seqscan_path(root, rel, std::ptr::null_mut(), workers);
            add(root, rel, path, prices);
            pg_sys::add_partial_path(rel, path);
        }
    }
}

unsafe fn sort(list: *mut pg_sys::List) {
    // SAFETY: the list has as many places as it has had items.
    unsafe {
        let mut paths = list_items::<pg_sys::Path>(list);
        paths.sort_by(|a, b| {
            let disabled = compat::disabled(*a).cmp(&compat::disabled(*b));
            disabled.then((**a).total_cost.total_cmp(&(**b).total_cost))
        });
        for (i, path) in paths.into_iter().enumerate() {
            (*(*list).elements.add(i)).ptr_value = path.cast();
        }
    }
}

unsafe fn add(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    path: *mut pg_sys::Path,
    prices: &Prices,
) {
    // SAFETY: a path is of the type that its tag says.
    unsafe {
        use pg_sys::NodeTag as T;
        let loops = loops(root, path);
        // What each process finds out for itself.
        let mut of_each = 0.0;
        let workers = f64::from((*path).parallel_workers).max(1.0);
        let extra = match ((*path).type_, (*path).pathtype) {
            (T::T_IndexPath, kind) => {
                let index = path as *mut pg_sys::IndexPath;
                let tuples = ((*index).indexselectivity * (*rel).tuples).max(1.0);
                let saved = of_stripes(rel, prices, || {
                    let mut copy = *index;
                    (copy.path.parallel_aware, copy.path.parallel_workers) = (false, 0);
                    pg_sys::cost_index(&mut copy, root, loops, false);
                    copy.path.total_cost
                });
                let is_alone = kind == T::T_IndexOnlyScan;
                let order = match is_alone && prices.dead <= 0.0 {
                    true => 0.0,
                    false => order(root, index, loops),
                };
                // It asks whether rows are visible, and reads no column.
                let price = if is_alone {
                    tuples * prices.share * pg_sys::cpu_tuple_cost * VISIBILITY
                } else {
                    let wanted = fetched(root, rel, index, prices);
                    prices.fetches(&wanted, tuples, loops, order, false)
                };
                of_each = prices.tombstones((tuples, loops), workers, order, false);
                price - saved
            }
            (T::T_BitmapHeapPath, _) => {
                let (mut cost, mut selectivity) = (0.0, 0.0);
                let bitmap = path as *mut pg_sys::BitmapHeapPath;
                pg_sys::cost_bitmap_tree_node((*bitmap).bitmapqual, &mut cost, &mut selectivity);
                let tuples = (selectivity * (*rel).tuples).max(1.0);
                let saved = of_stripes(rel, prices, || {
                    let mut copy = (*bitmap).path;
                    let (info, qual) = (copy.param_info, (*bitmap).bitmapqual);
                    pg_sys::cost_bitmap_heap_scan(&mut copy, root, rel, info, qual, loops);
                    copy.total_cost
                });
                let wanted = unchecked(root, rel, (*bitmap).bitmapqual, prices);
                of_each = prices.tombstones((tuples, loops), workers, 0.0, true);
                prices.fetches(&wanted, tuples, loops, 0.0, true) - saved
            }
            (_, T::T_SeqScan) => {
                prices.all_values() + prices.dead * TOMBSTONE_READ * pg_sys::cpu_tuple_cost
            }
            _ => return,
        };
        let total = (*path).total_cost + extra / workers + of_each;
        (*path).total_cost = total.max((*path).startup_cost);
    }
}

/// What of a price is for the pages of stripes, as if they were pages of a heap.
unsafe fn of_stripes(
    rel: *mut pg_sys::RelOptInfo,
    prices: &Prices,
    price: impl Fn() -> f64,
) -> f64 {
    // SAFETY: the planner's relation, whose pages are put back: an error leaves the planner.
    unsafe {
        let (all, all_visible) = ((*rel).pages, (*rel).allvisfrac);
        let with = price();
        (*rel).pages = all.saturating_sub(prices.pages).max(1);
        // As many of the row store's pages are not all visible as without stripes.
        let hidden = (1.0 - all_visible) * f64::from(all) / f64::from((*rel).pages);
        (*rel).allvisfrac = (1.0 - hidden).max(0.0);
        let without = price();
        ((*rel).pages, (*rel).allvisfrac) = (all, all_visible);
        (with - without).max(0.0)
    }
}

/// The columns that a plain index scan fetches: what a B-tree has found is not checked again, so what is asked for only by
/// conditions of its own is not among them (`wanted.rs`). The other conditions are asked in the order of their costs.
unsafe fn fetched(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    path: *mut pg_sys::IndexPath,
    prices: &Prices,
) -> Vec<Read> {
    // SAFETY: a path of an index, whose conditions are RestrictInfo.
    unsafe {
        let index = (*path).indexinfo;
        if (*index).relam != pg_sys::BTREE_AM_OID {
            return prices.all_wanted();
        }
        let mut conditions = list_items::<pg_sys::RestrictInfo>((*index).indrestrictinfo);
        conditions.retain(|condition| {
            !pg_sys::is_redundant_with_indexclauses(*condition, (*path).indexclauses)
        });
        let mut by_cost: Vec<_> = conditions
            .into_iter()
            .map(|condition| {
                let mut cost = pg_sys::QualCost::default();
                pg_sys::cost_qual_eval_node(&mut cost, condition.cast(), root);
                ((*condition).security_level, cost.per_tuple, condition)
            })
            .collect();
        by_cost.sort_by(|a, b| (a.0, a.1).partial_cmp(&(b.0, b.1)).unwrap_or(Ordering::Equal));
        let columns = prices.columns.len();
        let (mut read, mut share) = (Vec::<Read>::new(), 1.0);
        let mut add = |node: *mut pg_sys::Node, share: f64| {
            let numbers = columns_of(&[node], std::ptr::null_mut(), (*rel).relid);
            for column in table_columns(&numbers, columns) {
                if !read.iter().any(|known| known.column == column) {
                    read.push(Read { column, share });
                }
            }
        };
        let mut is_first = true;
        for (_, _, condition) in by_cost {
            let clause = (*condition).clause as *mut pg_sys::Node;
            add(clause, share);
            is_first &=
                !pg_sys::contain_volatile_functions(clause) && !pg_sys::contain_subplans(clause);
            if is_first {
                let inner = pg_sys::JoinType::JOIN_INNER;
                let none = std::ptr::null_mut();
                share *= pg_sys::clause_selectivity(root, condition.cast(), 0, inner, none);
            }
        }
        add((*(*rel).reltarget).exprs.cast(), share);
        read
    }
}

/// The columns that a bitmap scan fetches: what a bitmap has found is checked again only where it has lost the rows.
unsafe fn unchecked(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    tree: *mut pg_sys::Path,
    prices: &Prices,
) -> Vec<Read> {
    // SAFETY: a path is of the type that its tag says.
    unsafe {
        if (*tree).type_ != pg_sys::NodeTag::T_IndexPath {
            return prices.all_wanted();
        }
        fetched(root, rel, tree as *mut pg_sys::IndexPath, prices)
    }
}

/// How often a path is run: as often as the smallest of the relations that it depends on has rows.
unsafe fn loops(root: *mut pg_sys::PlannerInfo, path: *mut pg_sys::Path) -> f64 {
    // SAFETY: the numbers of the relations that a path depends on are places in the planner's array, or beyond it.
    unsafe {
        let info = (*path).param_info;
        if info.is_null() {
            return 1.0;
        }
        let mut least = f64::MAX;
        let mut relid = -1;
        loop {
            relid = pg_sys::bms_next_member((*info).ppi_req_outer, relid);
            if relid < 0 {
                return if least < f64::MAX { least.max(1.0) } else { 1.0 };
            }
            if relid < (*root).simple_rel_array_size {
                let outer = *(*root).simple_rel_array.add(relid as usize);
                if !outer.is_null() && (*outer).rows > 0.0 {
                    least = least.min((*outer).rows);
                }
            }
        }
    }
}

type Estimate = unsafe extern "C-unwind" fn(
    *mut pg_sys::PlannerInfo,
    *mut pg_sys::IndexPath,
    f64,
    *mut f64,
    *mut f64,
    *mut f64,
    *mut f64,
    *mut f64,
);

/// The square of the correlation between an index's order and the rows'.
unsafe fn order(root: *mut pg_sys::PlannerInfo, path: *mut pg_sys::IndexPath, loops: f64) -> f64 {
    // SAFETY: an access method's estimate takes these arguments (amapi.h), and writes to five numbers.
    unsafe {
        // Declared without its arguments (pathnodes.h) before PostgreSQL 18.
        let Some(estimate) = (*(*path).indexinfo).amcostestimate else { return 0.0 };
        #[allow(clippy::useless_transmute)]
        let estimate: Estimate = std::mem::transmute(estimate);
        // Costs, selectivity, correlation, pages.
        let mut told = [0.0; 5];
        let to = &raw mut told as *mut f64;
        guarded(|| {
            estimate(root, path, loops, to, to.add(1), to.add(2), to.add(3), to.add(4));
        });
        // Of several columns PostgreSQL takes off a quarter, whether or not the first one is in the rows' order.
        let several = (*(*path).indexinfo).nkeycolumns > 1;
        let correlation = if several { f64::clamp(told[3] / 0.75, -1.0, 1.0) } else { told[3] };
        correlation * correlation
    }
}
