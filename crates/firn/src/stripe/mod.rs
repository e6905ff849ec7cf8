//! Reading stripes: a handle per stripe with its decoded metadata, batches of columns for scans, and
//! single rows for look-ups. Knows where a stripe's bytes are (chunks or an object), not who may see
//! its rows: that is `directory` and `am`.

mod batch;
mod handle;
mod layout;
mod pages;
mod places;
mod projection;
mod row;

pub use batch::{BatchReader, PageReader};
pub use handle::{handle_for, Held, StripeHandle};
pub use layout::{layout, layout_in, Layout};
pub use places::Places;
pub use projection::{of_column, source, Projection, Source};
pub use row::{pending_row, stripe_row, RowBuffer};
