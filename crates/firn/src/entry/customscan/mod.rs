//! Custom nodes inside PostgreSQL: paths for the planner, plan nodes, the executor's callbacks.
//! `path` offers the scan, `inner` on the inner side of nested loops, `price` says what reading stripes costs, `conditions` translates quals for it, `exec` runs it, `parallel` in several processes, `backward` for cursors that go back, `explain` shows what
//! it did; `fields` finds what of documents a query looks at; `count` answers `count(*)` without rows, `recheck` stands above the plans of re-checks, `substitute` gives the row that they check; `joins` takes the keys of a join
//! above the scan. What a scan does with stripes is
//! [`crate::plan::FirnScan`].

mod backward;
mod conditions;
mod count;
mod exec;
mod explain;
mod fields;
mod inner;
pub(super) mod joins;
mod parallel;
mod path;
mod price;
pub(super) mod recheck;
mod substitute;

use crate::pg::nodes::{columns_of, list_items, table_columns};

/// Method tables are constants that PostgreSQL only reads.
struct Shared<T>(T);
// SAFETY: never written.
unsafe impl<T> Sync for Shared<T> {}

/// Register the nodes and hook into the planner.
pub fn install() {
    // SAFETY: main thread, at load.
    unsafe {
        path::install();
        count::install();
    }
}
