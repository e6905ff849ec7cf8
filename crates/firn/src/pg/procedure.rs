//! Procedures, which may end the transaction that they were called in and go on in the next.

use super::fmgr::Args;
use super::{error, Kind};
use pgrx::pg_sys;

/// A procedure at work. What it keeps from one transaction to the next is its own memory: locks, snapshots, open
/// relations and all that PostgreSQL has allocated go with each.
pub struct Procedure {
    /// What PostgreSQL allocates between two commits.
    memory: pg_sys::MemoryContext,
}

impl Procedure {
    /// Begin; raises when the transaction is not this call's alone. `name` is the procedure's, `function` that of the
    /// function which does the same in one transaction.
    pub fn begin(args: Args, name: &str, function: &str) -> Procedure {
        // SAFETY: plain calls. The connection's memory is the portal's, which lasts; an error ends the connection.
        unsafe {
            let refusal = if pg_sys::IsSubTransaction() {
                Some((Kind::InTransaction, "cannot run inside a subtransaction"))
            } else if pg_sys::IsTransactionBlock() {
                Some((Kind::InTransaction, "cannot run inside a transaction block"))
            } else if !args.may_commit() {
                Some((
                    Kind::CannotCommit,
                    "cannot be called by a function, nor by a procedure that has settings",
                ))
            } else {
                None
            };
            if let Some((kind, why)) = refusal {
                error(kind, format!("{name} {why}"))
                    .detail("It commits after each piece of its work.")
                    .hint(format!("{function} does all of it in the transaction of its caller."))
                    .raise()
            }
            if pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC as i32)
                != pg_sys::SPI_OK_CONNECT as i32
            {
                error(Kind::Internal, "SPI_connect failed").raise()
            }
            let memory = pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"firn piece".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
            pg_sys::CurrentMemoryContext = memory;
            Procedure { memory }
        }
    }

    /// Commit what was done so far and begin another transaction. It has no snapshot: who waits for a lock now holds
    /// nobody back.
    pub fn commit(&self) {
        // SAFETY: PostgreSQL refuses where it cannot be done. Nobody has memory of the piece that is over.
        unsafe {
            pg_sys::SPI_commit();
            pg_sys::MemoryContextReset(self.memory);
        }
    }

    /// Take the transaction's snapshot, as a statement of its own has one.
    pub fn take_snapshot(&self) {
        // SAFETY: plain call; CALL has a portal.
        unsafe { pg_sys::EnsurePortalSnapshotExists() }
    }
}

impl Drop for Procedure {
    fn drop(&mut self) {
        if !super::memory::resources_are_released() {
            // SAFETY: connected in begin(); ends the memory, too, and goes back to the caller's.
            unsafe { pg_sys::SPI_finish() };
        }
    }
}
