//! An index is built anew beside the old one, while others read and write, and the two exchange their files at a moment
//! when nobody uses them. The steps before that, and what is waited for between them, are those of REINDEX CONCURRENTLY;
//! docs/decisions/0017 says why it is not that command: the index stays what it is in the catalogs, others never find
//! themselves in a deadlock with us (`wait.rs`), no copy refuses a row, and the wait ends when somebody wants our lock, or
//! takes too long.
//!
//! All functions here are called in a transaction in which nothing is going on, and leave one.

mod wait;

use super::rel::index_oids;
use super::{catalog, guc, lock, wal, xact, LockMode, Oid, OpenRel, Snap};
use firn_directory::Xid;
use pgrx::pg_sys;
use std::time::{Duration, Instant};
use wait::{lockers, snapshot_holders, tag, wait_for_ends, wait_for_snapshots, wait_for_standbys};
use wait::{Held, ANYBODY, WRITERS};

/// An index and where it belongs.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub index: Oid,
    pub table: Oid,
    /// The table's TOAST relation, which a build reads.
    pub toast: Oid,
}

/// How long others are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// In all before anything is built; what is left of it.
    pub before: Duration,
    /// Each time afterwards, or as long as the building took.
    pub after: Duration,
    /// For a moment at which nobody uses the index.
    pub swap: Duration,
    /// Also for standbys, which tell of their snapshots every ten seconds: more than once for an index.
    pub standbys: bool,
}

/// Wait until nobody is left who uses the place's relations, or has a snapshot, now.
fn others_end(place: Place, patience: &mut Patience) -> bool {
    xact::next();
    let started = Instant::now();
    let until = started + patience.before;
    let relations = [tag(place.table), tag(place.toast)];
    let users = relations.iter().flat_map(|tag| lockers(tag, ANYBODY)).collect();
    let snapshots = snapshot_holders(Xid::NONE);
    let over = wait_for_ends(users, until, || false)
        && wait_for_snapshots(Xid::NONE, snapshots, until, || false);
    patience.before = patience.before.saturating_sub(started.elapsed());
    over
}

/// Build the index anew. Returns false when others are at work for too long, or want to be; what has been made by then
/// is taken away, if need be later ([`left_overs`]).
pub fn concurrently(place: Place, patience: &mut Patience) -> bool {
    let told = || !xact::reported_xmins().is_empty();
    if (!patience.standbys && told()) || !others_end(place, patience) {
        return false;
    }
    let Some(mut held) = Held::take(place) else { return false };
    xact::next();
    let done = build_and_swap(place, &mut held, patience);
    // SAFETY: plain call.
    unsafe { pg_sys::pgstat_progress_end_command() };
    held.release();
    xact::next();
    done
}

fn build_and_swap(place: Place, held: &mut Held, patience: &Patience) -> bool {
    let Some(new) = with_snapshot(|_| copy_definition(place)) else { return true };
    held.add(new);
    let give_up = |held: &Held| {
        // Nobody has ever read it.
        discard(Place { index: new, ..place }, held, soon());
        false
    };
    xact::next();
    guc::crash_point("rebuild-made");
    // Whoever writes from here on knows of the new index.
    if !held.wait_for(WRITERS, Instant::now() + patience.after) {
        return give_up(held);
    }
    let started = Instant::now();
    let relation = place.table;
    progress(place, new);
    xact::next();
    // SAFETY: as REINDEX CONCURRENTLY calls it: a snapshot is active, the relation is locked.
    with_snapshot(|_| unsafe { pg_sys::index_concurrently_build(relation, new) });
    xact::next();
    guc::crash_point("rebuild-built");
    let patient = || Instant::now() + patience.after.max(started.elapsed());
    // Whoever writes from here on makes entries in it.
    if !held.wait_for(WRITERS, patient()) {
        return give_up(held);
    }
    xact::next();
    let (xmin, xmax) = with_snapshot(|snapshot| unsafe {
        // SAFETY: as above.
        pg_sys::validate_index(relation, new, snapshot.0);
        (xact::xid_of((*snapshot.0).xmin), xact::xid_of((*snapshot.0).xmax))
    });
    // It lacks entries of rows that older snapshots see.
    xact::next();
    let older = snapshot_holders(xmin);
    if !wait_for_snapshots(xmin, older, patient(), || held.are_wanted())
        || !wait_for_standbys(xmax, patient(), || held.are_wanted())
    {
        return give_up(held);
    }
    // In the order in which everybody locks a table's indexes.
    let mut both = [place.index, new];
    both.sort_unstable_by_key(|oid| oid.to_u32());
    if !held.keep_others_out(&both, Instant::now() + patience.swap) {
        return give_up(held);
    }
    with_snapshot(|_| {
        // Standbys that tell nothing of their snapshots: those who could miss rows end before they see the new index. The
        // rows that it lacks were deleted by transactions before the snapshot's end. On a standby a snapshot may have been
        // taken before one of them had ended, and yet be no older than the oldest transaction that runs here.
        if let Some(relation) = OpenRel::if_there(place.table, LockMode::AccessShare) {
            wal::log_snapshot_conflict(relation.rel(), xact::full(xmax).saturating_sub(1));
        }
        if let Some(index) = OpenRel::if_there(place.index, LockMode::AccessShare) {
            // In the new file pages are others than those that serializable transactions have read.
            lock::widen_predicate_locks(index.rel());
        }
        catalog::exchange_files(place.index, new);
    });
    xact::next();
    guc::crash_point("rebuild-swapped");
    // The copy has the old file now, and nobody has ever read it by that name. If it cannot be dropped yet, it is left over.
    discard(Place { index: new, ..place }, held, patient());
    true
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(1)
}

fn with_snapshot<T: Copy>(body: impl FnOnce(Snap) -> T) -> T {
    // SAFETY: registered and active while the body runs; after an error the transaction's end takes both.
    unsafe {
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot());
        pg_sys::PushActiveSnapshot(snapshot);
        let result = body(Snap::of(snapshot));
        pg_sys::PopActiveSnapshot();
        pg_sys::UnregisterSnapshot(snapshot);
        result
    }
}

/// Make an index of the same definition, which nobody uses yet, and mark it as ours; None when there is no index to
/// rebuild any more.
fn copy_definition(place: Place) -> Option<Oid> {
    let relation = OpenRel::if_there(place.table, LockMode::ShareUpdateExclusive)?;
    let old = OpenRel::if_there(place.index, LockMode::ShareUpdateExclusive)?;
    let method = catalog::access_method()?;
    // Since it was found due others may have left it invalid, or taken it away and given its OID to another.
    let is_ours = || catalog::depends_on_access_method(place.index, method);
    if old.rel().rebuildable().is_none()
        || is_ours()
        || !index_oids(relation.rel()).contains(&place.index)
    {
        return None;
    }
    // SAFETY: open relations; the name is of this transaction's memory.
    let new = catalog::as_owner(relation.owner(), || unsafe {
        let namespace = (*(*relation.raw()).rd_rel).relnamespace;
        let tablespace = (*(*old.raw()).rd_rel).reltablespace;
        let name = (*(*old.raw()).rd_rel).relname.data.as_ptr();
        let name = free_name(name, c"ccnew", namespace);
        pg_sys::index_concurrently_create_copy(relation.raw(), place.index, tablespace, name)
    });
    catalog::depend_on_access_method(new, method);
    // It refuses no row: who is refused by one that is no arbiter of his INSERT ... ON CONFLICT gets an error.
    catalog::make_not_unique(new);
    Some(new)
}

unsafe fn free_name(
    name: *const core::ffi::c_char,
    label: &std::ffi::CStr,
    namespace: Oid,
) -> *mut core::ffi::c_char {
    // SAFETY: C strings, of which PostgreSQL makes another in the current memory.
    unsafe { pg_sys::ChooseRelationName(name, std::ptr::null(), label.as_ptr(), namespace, false) }
}

/// Remove a copy, which has never been valid, as DROP INDEX CONCURRENTLY does. It is taken out of use at once, so that nobody
/// takes it for an index that fits his. Returns false when it cannot be dropped until then.
fn discard(place: Place, held: &Held, until: Instant) -> bool {
    xact::next();
    if catalog::is_live_index(place.index) {
        // SAFETY: nobody reads it; both are locked.
        with_snapshot(|_| unsafe { pg_sys::index_concurrently_set_dead(place.table, place.index) });
    }
    xact::next();
    guc::crash_point("rebuild-dead");
    // Who knows it still makes entries in it.
    if !held.wait_for(ANYBODY, until) {
        return false;
    }
    xact::next();
    let oid = place.index;
    // SAFETY: nobody uses it. Its lock is not waited for.
    unsafe {
        if !pg_sys::ConditionalLockRelationOid(oid, pg_sys::AccessExclusiveLock as i32) {
            return false;
        }
    }
    with_snapshot(|_| unsafe {
        // SAFETY: as REINDEX CONCURRENTLY does it.
        let objects = pg_sys::new_object_addresses();
        let index = pg_sys::ObjectAddress {
            classId: pg_sys::RelationRelationId,
            objectId: oid,
            objectSubId: 0,
        };
        pg_sys::add_exact_object_address(&index, objects);
        let how = pg_sys::PERFORM_DELETION_CONCURRENT_LOCK | pg_sys::PERFORM_DELETION_INTERNAL;
        pg_sys::performMultipleDeletions(objects, pg_sys::DropBehavior::DROP_RESTRICT, how as i32);
    });
    xact::next();
    true
}

/// Remove an index that a rebuild has left, if others let us until a time after this.
pub fn remove_left_over(place: Place, after: Duration) -> bool {
    xact::next();
    let Some(held) = Held::take(place) else { return false };
    xact::next();
    let until = Instant::now() + after;
    // It was found without a lock: another rebuild may have made a valid index of it, or have removed it.
    let is_left_over = with_snapshot(|_| left_overs(place.table).contains(&place.index));
    let done = match (is_left_over, catalog::is_valid_index(place.index)) {
        (false, _) => true,
        (true, false) => discard(place, &held, until),
        (true, true) => drop_alone(place),
    };
    held.release();
    xact::next();
    done
}

/// Drop a left-over that has become valid, which plans may read, if nobody uses the table at this moment.
fn drop_alone(place: Place) -> bool {
    if !lockers(&tag(place.table), ANYBODY).is_empty() {
        return false;
    }
    guc::commit_without_standbys();
    // SAFETY: plain call.
    let alone = unsafe { pg_sys::ConditionalLockRelationOid(place.table, ANYBODY) };
    if alone {
        with_snapshot(|_| catalog::drop_index(place.index));
    }
    xact::next();
    alone
}

/// What rebuilds that failed or died have left of a table. Such an index is invalid, unless a REINDEX of the table,
/// or what rewrote it, has made it valid since: PostgreSQL then builds all indexes that there are.
pub fn left_overs(table: Oid) -> Vec<Oid> {
    let Some(ours) = catalog::access_method() else { return Vec::new() };
    let all = catalog::indexes_of(table).into_iter().map(|index| index.oid);
    all.filter(|index| catalog::depends_on_access_method(*index, ours)).collect()
}

/// For pg_stat_progress_create_index.
fn progress(place: Place, new: Oid) {
    let values = [
        (
            pg_sys::PROGRESS_CREATEIDX_COMMAND,
            pg_sys::PROGRESS_CREATEIDX_COMMAND_REINDEX_CONCURRENTLY,
        ),
        (pg_sys::PROGRESS_CREATEIDX_INDEX_OID.to_u32(), new.to_u32()),
        (
            pg_sys::PROGRESS_CREATEIDX_ACCESS_METHOD_OID.to_u32(),
            catalog::access_method_of(new).map_or(0, Oid::to_u32),
        ),
        (pg_sys::PROGRESS_CREATEIDX_PHASE, pg_sys::PROGRESS_CREATEIDX_PHASE_BUILD),
    ];
    // SAFETY: plain calls.
    unsafe {
        pg_sys::pgstat_progress_start_command(
            pg_sys::ProgressCommandType::PROGRESS_COMMAND_CREATE_INDEX,
            place.table,
        );
        for (at, value) in values {
            pg_sys::pgstat_progress_update_param(at as i32, i64::from(value));
        }
    }
}
