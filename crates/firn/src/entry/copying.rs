//! Whether a COPY FROM is at work, and no other command within it.

use crate::pg::xact::Sub;

/// The subtransaction in which the COPY was begun.
static mut COPYING: Option<Sub> = None;

/// A command begins: a COPY FROM, in this subtransaction, or none. Returns what the one around it was.
#[inline]
pub(super) fn begin(copy: Option<Sub>) -> Option<Sub> {
    // SAFETY: main thread only.
    unsafe {
        let outer = COPYING;
        COPYING = copy;
        outer
    }
}

/// It is over.
#[inline]
pub(super) fn end(outer: Option<Sub>) {
    // SAFETY: main thread only.
    unsafe { COPYING = outer }
}

/// A COPY that has many partitions open tells of one after the other that its rows are complete, to open
/// another, and comes back to it: its stripes wait for the end of the command.
pub(super) fn is_copying() -> bool {
    // SAFETY: main thread only.
    let of = unsafe { COPYING };
    of.is_some()
}

/// A subtransaction was undone: a COPY that was in it or in one of its own is over. (Those within a COPY, of functions that catch errors, are younger.)
pub(super) fn forget_in(sub: Sub) {
    // SAFETY: main thread only.
    unsafe { COPYING = COPYING.filter(|of| of.0 < sub.0) }
}

/// The transaction is over.
pub(super) fn forget() {
    // SAFETY: main thread only.
    unsafe { COPYING = None }
}
