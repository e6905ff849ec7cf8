//! Scanning a stripe as a state machine: it says which bytes it needs and hands out batches of rows; whoever drives it
//! does the reading. See README.md.

#![forbid(unsafe_code)]

mod batch;
mod gather;
mod piece;
mod scan;
mod stripe;

pub use batch::{Batch, DecodedBatch, BATCH_ROWS};
pub use piece::{pages_of, Part, Piece};
pub use scan::{Counters, Narrowing, Need, Step, StripeScan};
pub use stripe::FrozenStripe;
