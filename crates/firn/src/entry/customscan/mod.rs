//! Custom nodes inside PostgreSQL: paths for the planner, plan nodes, the executor's callbacks.
//! `path` offers the scan, `price` says what reading stripes costs, `conditions` translates quals for it, `exec` runs it, `backward` for cursors that go back, `parallel` several processes, `explain` shows what
//! it did; `count` answers `count(*)` without rows, `recheck` stands above the plans of re-checks. What a scan does with stripes is
//! [`crate::plan::FirnScan`].

mod backward;
mod conditions;
mod count;
mod exec;
mod explain;
mod parallel;
mod path;
mod price;
pub(super) mod recheck;

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
