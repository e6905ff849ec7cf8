//! Whether a COPY FROM is at work, and no other command within it.

use crate::pg::xact::Sub;
use std::cell::RefCell;

thread_local! {
    /// Utility commands at work, the outermost first: the subtransaction that each was begun in, and whether it is a COPY FROM. Those that an error has ended go with their subtransaction (in a block that has
    /// failed already, where none is undone, with the transaction: they are no COPY).
    static COMMANDS: RefCell<Vec<(Sub, bool)>> = const { RefCell::new(Vec::new()) };
}

/// The innermost of them is a COPY FROM.
static mut COPYING: bool = false;

/// A command begins in this subtransaction. Returns what [`end`] is to be told.
pub(super) fn begin(sub: Sub, copies: bool) -> usize {
    change(|commands| {
        commands.push((sub, copies));
        commands.len() - 1
    })
}

/// It is over.
pub(super) fn end(before: usize) {
    change(|commands| commands.truncate(before))
}

/// A subtransaction was undone: commands that were begun in it, or in one of its own, are over. (A function that a COPY calls, and that catches errors, has younger ones.)
pub(super) fn forget_in(sub: Sub) {
    change(|commands| {
        let stay = commands.iter().take_while(|(of, _)| of.0 < sub.0).count();
        commands.truncate(stay)
    })
}

/// The transaction is over.
pub(super) fn forget() {
    change(Vec::clear)
}

fn change<T>(how: impl FnOnce(&mut Vec<(Sub, bool)>) -> T) -> T {
    COMMANDS.with_borrow_mut(|commands| {
        let result = how(commands);
        // SAFETY: main thread only.
        unsafe { COPYING = commands.last().is_some_and(|(_, copies)| *copies) }
        result
    })
}

/// A COPY that has many partitions open tells of one after the other that its rows are complete, to open
/// another, and comes back to it: its stripes wait for the end of the command.
pub(super) fn is_copying() -> bool {
    // SAFETY: main thread only.
    unsafe { COPYING }
}
