//! Forwarding lists of a table, see `firn_directory::forward`.

use super::raise::OrRaise;
use super::Directory;
use crate::pg::Toast;
pub use firn_directory::forward::{prune, rows_not_outlived, write};
use firn_directory::{forward, Xid};
use firn_format::{Slot, Tid};

/// What transaction `mover` moved.
pub struct Moves(forward::Moves);

impl Moves {
    /// Look through the lists for those of `mover`.
    pub fn of(toast: &Toast, mover: Xid) -> Moves {
        Moves(forward::Moves::of(toast, mover).or_raise(toast))
    }

    /// Bytes of memory it takes.
    pub fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    /// Where the row-store row `origin` went; None when it was not moved.
    pub fn home(&mut self, directory: &Directory, origin: Tid) -> Option<Tid> {
        self.0.home(&directory.toast, origin).or_raise(directory)
    }
}

/// Where row `row` of the stripe at `slot` was before a move; None when none has brought it there.
pub fn origin(toast: &Toast, slot: Slot, row: u32) -> Option<Tid> {
    forward::origin(toast, slot, row).or_raise(toast)
}

/// Where did the row-store row `origin`, deleted by transaction `mover`, go? None when that
/// transaction did not move it.
pub fn find(directory: &Directory, origin: Tid, mover: Xid) -> Option<Tid> {
    forward::find(&directory.toast, origin, mover).or_raise(directory)
}
