//! What becomes of our rows when VACUUM FULL or CLUSTER writes the table anew, see `firn_directory::carry`: sorted by
//! PostgreSQL's sort.

use super::raise::OrRaise;
use crate::pg::sorter::Sorter;
use crate::pg::{xact, Toast};
pub use firn_directory::carry::Carried;
use firn_directory::carry::{self, Item, Sort};
use firn_directory::Xid;

/// Three sorts live at a time, and CLUSTER's own beside them.
const SHARE: i32 = 4;

/// Which rows of the row store went where.
pub type Moves = carry::Moves<Sorter>;
/// The places in the row store that our rows name and somebody may still ask for.
pub type Wants = carry::Wants<Sorter>;
/// Places in our rows and what they are now, in the order of our rows' places.
pub type NewPlaces = carry::NewPlaces<Sorter>;

impl Sort for Sorter {
    fn put(&mut self, item: &Item) {
        Sorter::put(self, item)
    }
    fn sort(&mut self) {
        Sorter::sort(self)
    }
    fn next(&mut self) -> Option<Item> {
        Sorter::next(self)
    }
}

fn sorter() -> Sorter {
    Sorter::new(SHARE)
}

/// No moves yet.
pub fn moves() -> Moves {
    carry::Moves(sorter())
}

/// Collect what is wanted; None when nothing is.
pub fn wants(toast: &Toast, oldest: Xid) -> Option<Wants> {
    Wants::collect(toast, oldest, sorter).or_raise(toast)
}

/// Find out where the places are now.
pub fn resolve(wants: Wants, moves: Moves) -> NewPlaces {
    wants.resolve(moves, sorter())
}

/// Every snapshot sees what `xmin` did, `oldest` being the oldest transaction that some snapshot does not see.
pub fn is_settled(xmin: Xid, oldest: Xid) -> bool {
    xmin == Xid::FROZEN || xact::precedes(xmin, oldest)
}
