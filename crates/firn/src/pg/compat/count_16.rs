//! Statistics of reading, as PostgreSQL 16 and 17 count it.

use pgrx::pg_sys;

mod unfailing {
    use pgrx::pg_sys;
    unsafe extern "C-unwind" {
        pub fn pgstat_count_io_op(
            object: pg_sys::IOObject::Type,
            context: pg_sys::IOContext::Type,
            op: pg_sys::IOOp::Type,
        );
    }
}

/// A block of some relation was found in its buffer, for `pg_stat_io`.
pub(crate) fn count_io_hit() {
    use pg_sys::{IOContext, IOObject, IOOp};
    // SAFETY: a plain call, which adds to a number.
    unsafe {
        unfailing::pgstat_count_io_op(
            IOObject::IOOBJECT_RELATION,
            IOContext::IOCONTEXT_NORMAL,
            IOOp::IOOP_HIT,
        )
    }
}
