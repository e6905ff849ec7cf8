//! The planner's side: the custom scan of firn tables. `pg::customscan` is its half inside the fence:
//! paths, plan nodes and executor callbacks; here is what a scan does.

mod conditions;
mod scan;

pub use conditions::{Condition, Operand, Test};
pub use scan::{Counters, FirnScan};

/// Offer our paths. Called once at library load.
pub fn init() {
    crate::pg::customscan::install();
}
