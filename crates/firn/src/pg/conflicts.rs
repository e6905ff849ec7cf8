//! What PostgreSQL computes of a row that may be in conflict with another (check_exclusion_or_unique_constraint() in
//! execIndexing.c), before it looks whether that one is still being inserted: the index's expressions, for unique indexes by ON CONFLICT,
//! and where the index is none of B-trees, whether the values are really in conflict. Of a row that another session has only collected for a stripe
//! all are NULL.

use super::{lock, memory, of_nulls, LockMode, Oid, OpenRel, Rel};
use pgrx::pg_sys;

impl Rel {
    /// It has an index by which a row's values matter to who may be in conflict with it, and NULLs in their place would: its inserter
    /// would not be waited for, or an expression be computed of what no row has, which raises or is somebody's function. Nobody comes to
    /// a row of a table that is this session's alone, or that it lets nobody write to.
    pub fn conflicts_need_values(self) -> bool {
        if self.is_temporary() || lock::lets_nobody_write(self) {
            return false;
        }
        let needs = |oid: &Oid| {
            let index = OpenRel::any_kind(*oid, LockMode::AccessShare);
            // SAFETY: an open index, of whose expressions the relcache gives a copy.
            unsafe {
                let raw = index.rel().raw();
                let form = (*raw).rd_index;
                if form.is_null() || !((*form).indisunique || (*form).indisexclusion) {
                    return false;
                }
                // Other kinds of indexes may ask for the values again.
                (*(*raw).rd_rel).relam != pg_sys::BTREE_AM_OID
                    || memory::scratch(|| of_nulls::is_hindered(self, raw))
            }
        };
        super::rel::index_oids(self).iter().any(needs)
    }
}
