//! The background process that rebuilds indexes (`pg/worker.rs` starts it).
//!
//! In a database one of them is at work; others end at once. What they were started for is seen by the one at work:
//! when it has done, and let others have their turn, it looks once more for what has become due meanwhile.

use crate::pg::ext::{callback, direct};
use crate::pg::{catalog, compat, guc, xact, Oid};
use pgrx::pg_sys;

/// A lock that one has.
const ALONE: i32 = pg_sys::ShareUpdateExclusiveLock as i32;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// What such a process does.
///
/// # Safety
/// PostgreSQL calls it.
#[no_mangle]
pub unsafe extern "C-unwind" fn firn_index_worker(database: pg_sys::Datum) {
    // SAFETY: PostgreSQL calls it once, in a process of its own that is in no transaction yet and has no connection.
    unsafe {
        callback(|| {
            compat::handle_signal(SIGTERM, direct::die);
            compat::handle_signal(SIGINT, direct::StatementCancelHandler);
            pg_sys::BackgroundWorkerUnblockSignals();
            let database = Oid::from(database.value() as u32);
            // As autovacuum, in databases that nobody may connect to as well.
            let anywhere = pg_sys::BGWORKER_BYPASS_ALLOWCONN;
            pg_sys::BackgroundWorkerInitializeConnectionByOid(
                database,
                pg_sys::InvalidOid,
                anywhere,
            );
            xact::yield_as_autovacuum();
            guc::for_maintenance();
            pg_sys::StartTransactionCommand();
            if let Some(method) = catalog::access_method() {
                let mut rounds = crate::mover::Rounds::default();
                while rounds.are_wanted() && take_turn(method) {
                    rounds.run(&mut || take_turn(method));
                    give_turn_back(method);
                    xact::next();
                }
            }
            pg_sys::CommitTransactionCommand();
            // The end of a process that is in no transaction leaves locks of the session to whoever gets its place.
            pg_sys::LockReleaseAll(1, true);
        })
    }
}

/// Whoever drops the access method waits for this lock, and cancels us.
fn tag(method: Oid) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        // SAFETY: set when the session began.
        locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        locktag_field2: pg_sys::AccessMethodRelationId.to_u32(),
        locktag_field3: method.to_u32(),
        locktag_field4: 0,
        locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
        locktag_lockmethodid: 1,
    }
}

/// An error at the end has given it back already.
fn give_turn_back(method: Oid) {
    // SAFETY: plain calls.
    unsafe {
        if compat::holds_lock(&tag(method), ALONE) {
            pg_sys::LockRelease(&tag(method), ALONE, true);
        }
    }
}

/// Be the one that is at work, if no other is; an error in the work ends that.
fn take_turn(method: Oid) -> bool {
    // SAFETY: plain calls; the lock goes with the process, or with an error.
    unsafe {
        if compat::holds_lock(&tag(method), ALONE) {
            return true;
        }
        let got = pg_sys::LockAcquire(&tag(method), ALONE, true, true);
        got != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }
}
