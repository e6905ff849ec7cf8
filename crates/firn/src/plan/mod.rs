//! The planner's side: the custom nodes of firn tables. `entry::customscan` has what PostgreSQL calls of
//! them: paths, plan nodes and executor callbacks; here is what a scan or a count does.

mod conditions;
mod count;
pub mod kinds;
mod scan;

pub use conditions::{Bound, Condition, Formula, Qual, Test};
pub use count::count_seen_rows;
pub use scan::{sees_stripes, Counters, FirnScan};
