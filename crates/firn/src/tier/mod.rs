//! Cold stripes: moving them to an object store and back, and reading them where they are. README.md
//! states the order of steps and what a crash at each leaves behind. Decisions are `firn_lake::plan`'s;
//! here they are carried out.

mod intents;
mod links;
mod offload;

pub use links::{restore as restore_links, restore_methods};
pub use offload::{load_table, offload_table, read_stripe, unneeded};
