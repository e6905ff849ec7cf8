//! What is wrong with our rows, said as PostgreSQL says it.

use super::Directory;
use crate::pg::report::{self, Report};
use crate::pg::toast_scan::damaged_key;
use crate::pg::{error, Kind, Rel, Toast};
use firn_directory::{tombstones, Error};
use firn_format::{Slot, Tid};

/// The hint where no check can tell more.
const RESTORE: &str = "Restore the table from a backup or standby.";
const CHECK: &str = "Run firn.check() on the table; restore it from a backup or standby.";

/// Whose rows they are.
pub trait Owner {
    fn toast(&self) -> &Toast;
    /// The relation to name where one stripe is meant.
    fn named(&self) -> Rel;
}

impl Owner for Directory {
    fn toast(&self) -> &Toast {
        &self.toast
    }
    fn named(&self) -> Rel {
        self.table
    }
}

impl Owner for Toast {
    fn toast(&self) -> &Toast {
        self
    }
    fn named(&self) -> Rel {
        self.rel()
    }
}

/// Where an answer of the directory is needed.
pub trait OrRaise<T> {
    /// The answer. Raises what is wrong with the rows that were asked.
    fn or_raise(self, owner: &impl Owner) -> T;
}

impl<T> OrRaise<T> for Result<T, Error> {
    #[inline]
    fn or_raise(self, owner: &impl Owner) -> T {
        match self {
            Ok(answer) => answer,
            Err(e) => report(owner, &e).raise(),
        }
    }
}

/// What is said of an error.
#[cold]
pub fn report(owner: &impl Owner, e: &Error) -> Report {
    let toast = owner.toast();
    let oid = toast.rel().oid();
    match e {
        Error::MisplacedRow { key, own, place } => damaged_key(toast.rel(), *key, *own, *place),
        Error::DirectoryRow { slot, why } if why.is_of_newer() => {
            newer_row(owner.named(), *slot, why)
        }
        Error::DirectoryRow { slot, why } => {
            error(Kind::Corrupt, damaged_row(owner.named(), *slot))
                .detail(why.to_string())
                .hint(RESTORE)
        }
        Error::Tombstone { key, place, why } => {
            let of = match tombstones::tid_of(*key) {
                Some(Tid { block, offset }) => {
                    format!("the tombstone of row ({block},{offset}) is damaged")
                }
                None => "a tombstone is damaged".to_owned(),
            };
            let (block, offset) = (place.block, place.offset);
            error(Kind::Corrupt, of)
                .detail(format!("TOAST relation {oid}, at ({block},{offset}): {why}"))
                .hint(CHECK)
        }
        Error::AllocationDamaged { bytes } => {
            error(Kind::Corrupt, "the allocation row of a firn table is damaged")
                .detail(format!("TOAST relation {oid}, {bytes} bytes."))
                .hint(RESTORE)
        }
        Error::AllocationNewer { version } => {
            error(Kind::Unsupported, "a firn table is of a newer version of firn")
                .detail(format!("TOAST relation {oid}: its allocation row has version {version}."))
                .hint(report::NEWER)
        }
        Error::AllocationLost => {
            error(Kind::Corrupt, "the allocation row of a firn table is missing")
                .detail(format!(
                    "TOAST relation {oid} has index entries of stripes, but not of this row."
                ))
                .hint(CHECK)
        }
        Error::NoBlocksLeft => {
            let blocks = firn_directory::allocation::BLOCKS;
            error(Kind::Limit, "no virtual row addresses are left in a firn table")
                .detail(format!("All {blocks} virtual blocks have been handed out."))
                .hint("VACUUM FULL or a dump and restore gives the table new addresses.")
        }
        Error::NoAddressesLeft => error(Kind::Limit, "no chunk addresses are left in a firn table")
            .hint("A dump and restore gives the table new addresses."),
    }
}

/// What is said of a directory row that a newer version has written.
pub fn newer_row(table: Rel, slot: Slot, why: &firn_format::Error) -> Report {
    let of = format!(
        "directory row {} of table \"{}\" is of a newer version of firn",
        slot.0,
        table.name()
    );
    error(Kind::Unsupported, of).detail(why.to_string()).hint(report::NEWER)
}

/// What is said of a directory row that does not decode.
pub fn damaged_row(table: Rel, slot: Slot) -> String {
    format!("directory row {} of table \"{}\" is damaged", slot.0, table.name())
}
