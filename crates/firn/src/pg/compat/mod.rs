//! What differs between the versions of PostgreSQL: the only place that asks which of them the library is built for, which
//! `make lint` checks.
//!
//! Each version has a file (`v15.rs` and so on), and all of these have the same functions, types and constants. Most differences
//! stay from one version on: their two sides are `until_N.rs`, as it was up to version N, and `since_N.rs`, as it is from N on. A
//! version's file takes the sides that are its own, and has what is its own alone.
//!
//! Callbacks whose shape differs are declared here, and call what `entry` hands over: [`Handed`], or a function pointer.

#[cfg(feature = "pg15")]
mod until_15;
#[cfg(any(feature = "pg15", feature = "pg16"))]
mod until_16;
#[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
mod until_17;

#[cfg(any(feature = "pg16", feature = "pg17", feature = "pg18"))]
mod since_16;
#[cfg(any(feature = "pg17", feature = "pg18"))]
mod since_17;
#[cfg(feature = "pg18")]
mod since_18;

#[cfg(any(feature = "pg17", feature = "pg18"))]
mod analyze_17;
#[cfg(feature = "pg18")]
mod bitmap_18;
#[cfg(any(feature = "pg16", feature = "pg17"))]
mod count_16;
#[cfg(any(feature = "pg16", feature = "pg17"))]
mod hash_table_16;

#[cfg(feature = "pg15")]
#[path = "v15.rs"]
mod version;
#[cfg(feature = "pg16")]
#[path = "v16.rs"]
mod version;
#[cfg(feature = "pg17")]
#[path = "v17.rs"]
mod version;
#[cfg(feature = "pg18")]
#[path = "v18.rs"]
mod version;

pub(crate) use version::*;

use pgrx::pg_sys;

/// What the access method hands over, for those of its callbacks whose shape differs. Its functions are called as PostgreSQL calls
/// callbacks: what they are given is what it has given, and errors leave them as C's.
pub(crate) trait Handed {
    /// A block for ANALYZE, of those that it was told there are, and its ring of buffers; false when the block is passed over.
    const ANALYZE_BLOCK: unsafe extern "C-unwind" fn(
        pg_sys::TableScanDesc,
        pg_sys::BlockNumber,
        pg_sys::BufferAccessStrategy,
    ) -> bool;
    /// The bitmap of a scan goes on with a virtual block: these of its rows, as many; all of them when the number is negative. Whether they
    /// are checked again.
    const STRIPE_BLOCK: unsafe extern "C-unwind" fn(
        pg_sys::TableScanDesc,
        pg_sys::BlockNumber,
        *const pg_sys::OffsetNumber,
        i32,
        bool,
    );
    /// The next row of that block, in the slot.
    const STRIPE_ROW: unsafe extern "C-unwind" fn(
        pg_sys::TableScanDesc,
        *mut pg_sys::TupleTableSlot,
    ) -> bool;
    /// The row of the row store in the slot is not to be seen.
    const IS_HIDDEN: unsafe extern "C-unwind" fn(
        pg_sys::TableScanDesc,
        *mut pg_sys::TupleTableSlot,
    ) -> bool;
    /// Where the scan keeps what is to be kept of its bitmap, which is nothing before PostgreSQL 18.
    #[allow(dead_code)]
    const BITMAP: unsafe extern "C-unwind" fn(pg_sys::TableScanDesc) -> *mut Bitmap;
    /// Where a scan of ANALYZE's keeps what is to be kept of the blocks that it is given, which is nothing before PostgreSQL 17; at first
    /// all zeros.
    #[allow(dead_code)]
    const READ_AHEAD: unsafe extern "C-unwind" fn(pg_sys::TableScanDesc) -> *mut ReadAhead;
}
