//! The planner's side: the custom nodes of firn tables. `pg::customscan` is their half inside the
//! fence: paths, plan nodes and executor callbacks; here is what a scan or a count does.

mod conditions;
mod count;
pub mod kinds;
mod scan;

pub use conditions::{Bound, Condition, Formula, Operand, Qual, Test};
pub use count::count_stripe_rows;
pub use scan::{sees_stripes, Counters, FirnScan};

/// Offer our paths. Called once at library load.
pub fn init() {
    crate::pg::customscan::install();
    crate::pg::rewrite::install();
}
