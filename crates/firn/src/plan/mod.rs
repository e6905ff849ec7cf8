//! The planner's side: the custom scan of firn tables.

/// Offer our paths. Called once at library load.
pub fn init() {}
