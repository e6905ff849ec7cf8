//! Transactions: identifiers, commands, and what to do at their ends.

use super::compat;
use super::Rel;
use firn_directory::{Cid, Xid};
use pgrx::pg_sys;

/// A subtransaction's number within its transaction. Those opened inside of one have greater numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Sub(pub u32);

impl Sub {
    /// No subtransaction of this transaction: InvalidSubTransactionId.
    pub const NONE: Sub = Sub(0);
}

/// A transaction's number from PostgreSQL's form of it.
#[inline]
pub(crate) fn xid_of(raw: pg_sys::TransactionId) -> Xid {
    Xid(raw.into_inner())
}

/// PostgreSQL's form of a transaction's number.
#[inline]
pub(crate) fn raw_xid(xid: Xid) -> pg_sys::TransactionId {
    pg_sys::TransactionId::from_inner(xid.0)
}

/// Cancel, terminate and other requests are served here.
#[inline]
pub fn check_for_interrupts() {
    // SAFETY: flag read as CHECK_FOR_INTERRUPTS does; ProcessInterrupts may raise.
    unsafe {
        if pg_sys::InterruptPending != 0 {
            pg_sys::ProcessInterrupts();
        }
    }
}

/// An error that was raised where it could not be let through.
pub struct Held(Box<dyn std::any::Any + Send>);

impl Held {
    /// Let it through now.
    pub fn raise(self) -> ! {
        std::panic::resume_unwind(self.0)
    }
}

/// As [`check_for_interrupts`] for callers inside of foreign code, which no error may unwind: what is to be
/// raised is given back.
pub fn hold_interrupts() -> Option<Held> {
    std::panic::catch_unwind(check_for_interrupts).err().map(Held)
}

/// Current subtransaction (1 is the top one).
pub fn subtransaction() -> Sub {
    // SAFETY: plain call.
    Sub(unsafe { pg_sys::GetCurrentSubTransactionId() })
}

/// The current (sub)transaction's id, assigned now if it had none.
pub fn xid() -> Xid {
    // SAFETY: plain call.
    xid_of(unsafe { pg_sys::GetCurrentTransactionId() })
}

/// This transaction has written something, or is about to.
pub fn has_xid() -> bool {
    // SAFETY: reads a variable, and cannot fail; asked for each row.
    unsafe { super::ext::direct::GetTopTransactionIdIfAny().into_inner() != 0 }
}

/// Serializable isolation wants to know what this transaction reads: not of one whose snapshot is known
/// to be safe.
pub fn reports_reads() -> bool {
    // SAFETY: plain call, which gives a pointer away and changes nothing.
    is_serializable() && unsafe { !super::ext::ShareSerializableXact().is_null() }
}

/// `xid` is this transaction or one of its live subtransactions.
pub fn is_ours(xid: Xid) -> bool {
    // SAFETY: plain call.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(raw_xid(xid)) }
}

/// `xid` runs, prepared or not.
pub fn is_in_progress(xid: Xid) -> bool {
    // SAFETY: plain call.
    unsafe { pg_sys::TransactionIdIsInProgress(raw_xid(xid)) }
}

/// `xid` has committed ([`Xid::FROZEN`] stands for one of long ago).
pub fn did_commit(xid: Xid) -> bool {
    // SAFETY: plain call.
    unsafe { xid == Xid::FROZEN || pg_sys::TransactionIdDidCommit(raw_xid(xid)) }
}

/// Number of the running command; `used` marks it as having written.
pub fn command_id(used: bool) -> Cid {
    // SAFETY: plain call.
    Cid(unsafe { pg_sys::GetCurrentCommandId(used) })
}

/// End the running command here: what was written so far is seen, and may be changed, by what follows
/// within the same statement.
pub fn next_command() {
    // SAFETY: plain call; raises in parallel workers, where none of our callers runs.
    unsafe { pg_sys::CommandCounterIncrement() }
}

/// A transaction is running, and has not failed: the catalogs can be looked at.
pub fn may_look_up() -> bool {
    // SAFETY: plain call.
    unsafe { pg_sys::IsTransactionState() }
}

/// This is a standby, or the server is recovering: nothing may be written.
pub fn is_in_recovery() -> bool {
    // SAFETY: plain call.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Raise in a READ ONLY transaction and on a standby, as PostgreSQL does for `command`.
pub fn prevent_if_read_only(command: &std::ffi::CStr) {
    // SAFETY: plain calls; they raise.
    unsafe {
        pg_sys::PreventCommandIfReadOnly(command.as_ptr());
        pg_sys::PreventCommandDuringRecovery(command.as_ptr());
    }
}

/// This backend is a parallel worker.
pub fn is_parallel_worker() -> bool {
    // SAFETY: variable read.
    unsafe { pg_sys::ParallelWorkerNumber >= 0 }
}

/// This transaction reads all under one snapshot: REPEATABLE READ or SERIALIZABLE.
#[inline]
pub fn keeps_snapshot() -> bool {
    // SAFETY: variable read.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// This transaction runs at isolation level SERIALIZABLE.
#[inline]
pub fn is_serializable() -> bool {
    // SAFETY: variable read.
    unsafe { pg_sys::XactIsoLevel == pg_sys::XACT_SERIALIZABLE as i32 }
}

/// Every transaction that can still see anything began at or after this id: what it (and older
/// ones) did and was committed is seen by all.
pub fn oldest_visible(table: Rel) -> Xid {
    // SAFETY: plain call.
    xid_of(unsafe { pg_sys::GetOldestNonRemovableTransactionId(table.raw()) })
}

/// The oldest transactions that standbys (by hot_standby_feedback) and replication slots say somebody may need rows of.
pub fn reported_xmins() -> Vec<Xid> {
    let mut found = Vec::new();
    // SAFETY: entries 1 to n of a copy that is made anew, in memory of its own.
    unsafe {
        let (mut xmin, mut catalog) = (pg_sys::InvalidTransactionId, pg_sys::InvalidTransactionId);
        pg_sys::ProcArrayGetReplicationSlotXmin(&mut xmin, &mut catalog);
        found.push(xid_of(xmin));
        pg_sys::pgstat_clear_backend_activity_snapshot();
        for i in 1..=pg_sys::pgstat_fetch_stat_numbackends() {
            let entry = compat::local_entry(i);
            let sends = |entry: &pg_sys::LocalPgBackendStatus| {
                entry.backendStatus.st_backendType == pg_sys::BackendType::B_WAL_SENDER
            };
            found.extend(entry.as_ref().filter(|e| sends(e)).map(|e| xid_of(e.backend_xmin)));
        }
    }
    found.retain(|xmin| *xmin != Xid::NONE);
    found
}

/// The id of a transaction that has begun, or of the next one, as one that does not wrap around. Right for ids less than 2^32
/// transactions old; that of an older one is too great.
pub fn full(xid: Xid) -> u64 {
    // SAFETY: plain call.
    let next = unsafe { pg_sys::ReadNextFullTransactionId() }.value;
    let same_epoch = next & !u64::from(u32::MAX) | u64::from(xid.0);
    if same_epoch <= next {
        same_epoch
    } else {
        same_epoch.saturating_sub(1 << 32)
    }
}

/// So few transaction ids are left that PostgreSQL warns of it or refuses to give out more.
pub fn ids_are_scarce() -> bool {
    // SAFETY: shared memory that is set up at start; a stale value does no harm.
    unsafe {
        let next = Xid(pg_sys::ReadNextFullTransactionId().value as u32);
        let limit = xid_of(compat::warning_xid());
        limit != Xid::NONE && !precedes(next, limit)
    }
}

/// Serve requests, and sleep when VACUUM has done as much as it may in a while.
pub fn delay_vacuum() {
    // SAFETY: plain call.
    unsafe { compat::delay_vacuum() }
}

/// Commit this transaction and begin another one, of maintenance: whatever the session's default is, it does not wait for a
/// safe snapshot, which those may keep back who wait for its locks.
pub fn next() {
    // SAFETY: for callers that are the session's only code; what lives in the transaction's memory is gone.
    unsafe {
        pg_sys::CommitTransactionCommand();
        pg_sys::StartTransactionCommand();
        pg_sys::XactIsoLevel = pg_sys::XACT_READ_COMMITTED as i32;
        pg_sys::XactDeferrable = false;
        pg_sys::XactReadOnly = false;
    }
}

/// Do something under a snapshot of its own. An error leaves it to the transaction's end.
pub fn with_snapshot<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: plain calls.
    unsafe {
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let result = body();
        pg_sys::PopActiveSnapshot();
        result
    }
}

/// This process is autovacuum's.
pub fn is_autovacuum() -> bool {
    // SAFETY: set when the process began.
    unsafe { pg_sys::MyBackendType == pg_sys::BackendType::B_AUTOVAC_WORKER }
}

/// Whoever waits for a lock of this process cancels it, as he would autovacuum, and DROP DATABASE ends it.
pub fn yield_as_autovacuum() {
    change_flags(0, pg_sys::PROC_IS_AUTOVACUUM as u8);
}

/// Change what other sessions know of this one, as PostgreSQL does it.
fn change_flags(clear: u8, set: u8) {
    /// Number of ProcArrayLock among PostgreSQL's own locks, the same in 15 to 18.
    const PROC_ARRAY_LOCK: usize = 4;
    // SAFETY: this process's flags and their copy, under the lock that they are read under.
    unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(PROC_ARRAY_LOCK)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let flags = (*pg_sys::MyProc).statusFlags & !clear | set;
        (*pg_sys::MyProc).statusFlags = flags;
        let all = (*pg_sys::ProcGlobal).statusFlags;
        *all.add((*pg_sys::MyProc).pgxactoff as usize) = flags;
        pg_sys::LWLockRelease(lock);
    }
}

/// VACUUM's transaction is ignored by other sessions: they neither keep rows for it nor wait for what it writes.
/// From here on it is a transaction like any other and may write. Not so when it has an id already (heapam's VACUUM needs
/// one for the lock under which it gives pages back): snapshots that ignored it would take what it writes for the work of
/// a transaction that has failed. Then nothing is changed, and false returned.
#[must_use]
pub fn leave_vacuum() -> bool {
    // SAFETY: VACUUM has pushed one snapshot; it is replaced by one taken when nobody ignores us, as what an
    // ignored one saw may have been removed.
    unsafe {
        let flag = pg_sys::PROC_IN_VACUUM as u8;
        if (*pg_sys::MyProc).statusFlags & flag == 0 {
            return true;
        }
        if has_xid() {
            return false;
        }
        if pg_sys::ActiveSnapshotSet() {
            pg_sys::PopActiveSnapshot();
        }
        pg_sys::InvalidateCatalogSnapshot();
        change_flags(flag, 0);
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        true
    }
}

/// `a` is older than `b` (modulo 2^31 arithmetic; permanent ids are older than all).
pub fn precedes(a: Xid, b: Xid) -> bool {
    // SAFETY: plain call, which cannot fail.
    unsafe { super::ext::unfailing::TransactionIdPrecedes(raw_xid(a), raw_xid(b)) }
}

/// Microseconds since 1970-01-01.
pub fn now_unix_micros() -> i64 {
    // SAFETY: plain call.
    unsafe { pg_sys::GetCurrentTimestamp() }.saturating_add(super::datum::EPOCH_MICROS)
}
