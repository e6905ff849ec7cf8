//! Reading stripes: the metadata at a file's end, and values out of single pages.
//!
//! Nothing here trusts a byte: wrong bytes end in [`crate::Error`], and no allocation is larger than
//! the page sizes and rows that the metadata states and that are checked against fixed limits.

mod bits;
mod meta;
mod outline;
mod page;
mod thrift;
mod value;

pub(crate) use bits::{bits_at, Run, Runs};
pub use meta::{PageLocation, PageRef, StripeMeta};
pub use outline::{Outline, Place, RECORD_BYTES};
pub(crate) use page::page_len_and_rows;
pub use page::{Decoder, Workspace};

#[cfg(test)]
mod tests;
