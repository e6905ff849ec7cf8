//! What ANALYZE is about to do, as far as it can be known from inside a table access method, and the
//! random numbers that PostgreSQL's own sampling uses.

use super::{compat, ext, Oid, Rel};
use pgrx::pg_sys;

/// Why a table's size is being asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeAsked {
    /// Not by ANALYZE.
    Plainly,
    /// ANALYZE will sample that many blocks.
    ToSample,
    /// ANALYZE of a parent divides its sample among the children by their sizes.
    ToShare,
}

/// Why the size of `table` is being asked for just now.
pub fn size_asked(table: Rel) -> SizeAsked {
    // SAFETY: the current memory context is always valid, its name a constant or NULL.
    let in_analyze = unsafe {
        let name = (*pg_sys::CurrentMemoryContext).name;
        !name.is_null() && std::ffi::CStr::from_ptr(name) == c"Analyze"
    };
    if !in_analyze {
        return SizeAsked::Plainly;
    }
    // All children are asked for their sizes before the first is sampled.
    let child = progress(pg_sys::PROGRESS_ANALYZE_CURRENT_CHILD_TABLE_RELID);
    if for_parent() && child != Some(i64::from(table.oid().to_u32())) {
        return SizeAsked::ToShare;
    }
    SizeAsked::ToSample
}

/// The ANALYZE at work samples for a table's parent, not for the table.
pub fn for_parent() -> bool {
    let inherited = i64::from(pg_sys::PROGRESS_ANALYZE_PHASE_ACQUIRE_SAMPLE_ROWS_INH);
    progress(pg_sys::PROGRESS_ANALYZE_PHASE) == Some(inherited)
}

/// Blocks that the ANALYZE at work has chosen; None when activity is not tracked.
pub fn blocks_chosen() -> Option<u32> {
    progress(pg_sys::PROGRESS_ANALYZE_BLOCKS_TOTAL).and_then(|n| u32::try_from(n).ok())
}

/// What ANALYZE reports of its progress: the view pg_stat_progress_analyze shows the same.
fn progress(parameter: u32) -> Option<i64> {
    // SAFETY: this backend's own entry, written by this process only.
    unsafe {
        let entry = pg_sys::MyBEEntry.as_ref()?;
        let analyze = pg_sys::ProgressCommandType::PROGRESS_COMMAND_ANALYZE;
        if !pg_sys::pgstat_track_activities || entry.st_progress_command != analyze {
            return None;
        }
        entry.st_progress_param.get(parameter as usize).copied()
    }
}

/// Rows that ANALYZE wants of this table, by the statistics targets of its columns and of its
/// indexes' expressions.
pub fn rows_wanted(table: Rel) -> u32 {
    let mut target = 0;
    // SAFETY: plain setting.
    let default = unsafe { pg_sys::default_statistics_target };
    let mut look = |rel: Rel| {
        for own in statistics_targets(rel) {
            target = target.max(if own < 0 { default } else { own });
        }
    };
    look(table);
    for oid in super::rel::index_oids(table) {
        look(super::OpenRel::any_kind(oid, super::LockMode::AccessShare).rel());
    }
    // As std_typanalyze and do_analyze_rel have it.
    (300 * target.max(0) as u32).max(100)
}

fn statistics_targets(rel: Rel) -> Vec<i32> {
    // SAFETY: an open relation.
    unsafe { compat::statistics_targets(rel.raw()) }
}

/// Rows that heapam would put on a page, when their values have `width` bytes.
pub fn rows_per_page(width: f64) -> f64 {
    let header = std::mem::offset_of!(pg_sys::PageHeaderData, pd_linp) as f64;
    // A tuple's header, aligned, and its line pointer; wide values go to the TOAST relation.
    let row = width.min(f64::from(pg_sys::BLCKSZ) / 4.0) + 28.0;
    (f64::from(pg_sys::BLCKSZ) - header) / row
}

/// Blocks that a prefetch of a table of `blocks` blocks may name: to the end of its last file. (Of a
/// file that does not exist PostgreSQL raises an error.)
pub fn blocks_of_files(blocks: u32) -> u32 {
    blocks.div_ceil(pg_sys::RELSEG_SIZE).max(1).saturating_mul(pg_sys::RELSEG_SIZE)
}

/// Memory that a maintenance command may use, bytes.
pub fn maintenance_memory() -> usize {
    // SAFETY: plain setting, in kilobytes.
    unsafe { (pg_sys::maintenance_work_mem.max(0) as usize) << 10 }
}

/// Live rows of a table as the cumulative statistics have it; None when these have counted nothing of it. (Not by PostgreSQL's function for it:
/// what that has read stays what the transaction sees until its end. A table that has no entry there gets one, as by any change of it.)
pub fn live_rows(table: Rel) -> Option<f64> {
    // SAFETY: the entry stays locked between the two calls, which raise nothing in between.
    unsafe {
        if !pg_sys::pgstat_track_counts {
            return None;
        }
        let (kind, oid) = (compat::STATISTICS_OF_RELATION, compat::statistics_object(table.oid()));
        let entry = ext::pgstat_get_entry_ref_locked(kind, pg_sys::MyDatabaseId, oid, false);
        let stats = entry.as_ref().and_then(|e| e.table.as_mut()).map(|t| &mut t.stats);
        let counts = stats.map(compat::counted_rows).map(|(live, dead)| (*live, *dead));
        ext::pgstat_unlock_entry(entry);
        counts.filter(|c| *c != (0, 0)).map(|(live, _)| live as f64)
    }
}

/// The cumulative statistics have just been told by heapam how many live rows VACUUM has left: there
/// are `rows` more. (PostgreSQL's function for it would count one more VACUUM.)
pub fn add_live_rows(table: Rel, rows: u64) {
    // SAFETY: the entry stays locked between the two calls, which raise nothing in between.
    unsafe {
        if !pg_sys::pgstat_track_counts {
            return;
        }
        let (kind, oid) = (compat::STATISTICS_OF_RELATION, compat::statistics_object(table.oid()));
        let entry = ext::pgstat_get_entry_ref_locked(kind, pg_sys::MyDatabaseId, oid, false);
        if let Some(table) = entry.as_ref().and_then(|e| e.table.as_mut()) {
            *compat::counted_rows(&mut table.stats).0 += rows as i64;
        }
        ext::pgstat_unlock_entry(entry);
    }
}

/// `rows` rows of the row store were taken by a move, which is no change of the table: only their remains
/// in the row store count.
pub fn count_moved(table: Rel, rows: u64) {
    table.count(|counters| compat::count_dead(counters, rows as i64));
}

/// A source of random numbers.
pub struct Random(pg_sys::pg_prng_state);

impl Random {
    /// Seeded anew, as ANALYZE seeds its own.
    pub fn new() -> Random {
        // SAFETY: plain calls on live states.
        unsafe {
            let mut state = std::mem::zeroed();
            let seed = pg_sys::pg_prng_uint32(&raw mut pg_sys::pg_global_prng_state);
            pg_sys::sampler_random_init_state(seed, &mut state);
            Random(state)
        }
    }

    /// A number in (0, 1).
    pub fn fraction(&mut self) -> f64 {
        // SAFETY: seeded in the constructor.
        unsafe { pg_sys::sampler_random_fract(&mut self.0) }
    }
}

/// Write a table's counts to pg_class in place, as VACUUM does.
pub fn set_row_count(table: Rel, rows: f64) {
    // SAFETY: an open relation.
    unsafe { compat::write_counts(table.raw(), rows) }
}

/// pg_class.reltuples of a relation as the catalog has it now.
pub fn row_count(oid: Oid) -> f64 {
    // SAFETY: syscache look-up, released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::RELOID as i32,
            pg_sys::Datum::from(oid),
        );
        if tuple.is_null() {
            return -1.0;
        }
        let header = (*tuple).t_data;
        let form = (header as *const u8).add(usize::from((*header).t_hoff))
            as *const pg_sys::FormData_pg_class;
        let rows = f64::from((*form).reltuples);
        pg_sys::ReleaseSysCache(tuple);
        rows
    }
}
