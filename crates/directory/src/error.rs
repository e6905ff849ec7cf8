//! What can be wrong with the rows, as values. Whoever has a user says it to him.

use crate::{ChunkKey, Place};
use firn_format::Slot;
use std::fmt;

/// Why the directory does not answer.
#[derive(Clone, Debug)]
pub enum Error {
    /// The row at `place`, to which the index leads by `key`, says that it has another one.
    MisplacedRow { key: ChunkKey, own: ChunkKey, place: Place },
    /// The directory row of a slot does not decode, or is that of another.
    DirectoryRow { slot: Slot, why: firn_format::Error },
    /// A tombstone does not decode, so that nobody knows whether its row lives.
    Tombstone { key: ChunkKey, place: Place, why: firn_format::Error },
    /// The allocation row, of so many bytes, does not decode.
    AllocationDamaged { bytes: usize },
    /// The allocation row is of a version that is not known yet.
    AllocationNewer { version: u8 },
    /// There is no allocation row, but slots or addresses have been given out.
    AllocationLost,
    /// All virtual blocks have been handed out.
    NoBlocksLeft,
    /// All chunk addresses have been handed out.
    NoAddressesLeft,
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::MisplacedRow { key, own, place } => {
                write!(f, "the row at {place:?} under {key:?} says that it is {own:?}")
            }
            Error::DirectoryRow { slot, why } => {
                let damaged = if why.is_of_newer() { "of a newer version" } else { "damaged" };
                write!(f, "directory row {} is {damaged}: {why}", slot.0)
            }
            Error::Tombstone { key, place, why } => {
                write!(f, "the tombstone at {place:?} under {key:?} is damaged: {why}")
            }
            Error::AllocationDamaged { bytes } => {
                write!(f, "the allocation row of {bytes} bytes is damaged")
            }
            Error::AllocationNewer { version } => {
                write!(f, "the allocation row is of a newer version, {version}")
            }
            Error::AllocationLost => write!(f, "the allocation row is missing"),
            Error::NoBlocksLeft => write!(f, "no virtual blocks are left"),
            Error::NoAddressesLeft => write!(f, "no chunk addresses are left"),
        }
    }
}

impl std::error::Error for Error {}
