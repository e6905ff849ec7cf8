//! Whether a COPY FROM is at work, and no other command within it.

static mut COPYING: bool = false;

/// A command begins, which is a COPY FROM or none. Returns what the one around it was.
#[inline]
pub(super) fn begin(copies: bool) -> bool {
    // SAFETY: main thread only.
    unsafe {
        let outer = COPYING;
        COPYING = copies;
        outer
    }
}

/// It is over.
#[inline]
pub(super) fn end(outer: bool) {
    // SAFETY: main thread only.
    unsafe { COPYING = outer }
}

/// A COPY that has many partitions open tells of one after the other that its rows are complete, to open
/// another, and comes back to it: its stripes wait for the end of the command.
pub(super) fn is_copying() -> bool {
    // SAFETY: main thread only.
    unsafe { COPYING }
}

/// A (sub)transaction was undone, and a COPY may have been in it.
pub(super) fn forget() {
    // SAFETY: main thread only.
    unsafe { COPYING = false }
}
