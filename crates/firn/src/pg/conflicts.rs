//! What PostgreSQL computes of a row that may be in conflict with another (check_exclusion_or_unique_constraint() in
//! execIndexing.c), before it looks whether that one is still being inserted: the index's expressions, for unique indexes by ON CONFLICT,
//! and where the index is none of B-trees, whether the values are really in conflict. Of a row that another session has only collected for a stripe
//! all are NULL.

use super::{memory, LockMode, OpenRel, Rel};
use pgrx::pg_sys;

impl Rel {
    /// It has an index by which a row's values matter to who may be in conflict with it, and NULLs in their place would: its inserter
    /// would not be waited for, or an expression be computed of what no row has.
    pub fn conflicts_need_values(self) -> bool {
        let needs = |oid: &u32| {
            let index = OpenRel::any_kind(*oid, LockMode::AccessShare);
            // SAFETY: an open index, of whose expressions the relcache gives a copy.
            unsafe {
                let raw = index.rel().raw();
                let form = (*raw).rd_index;
                if form.is_null() || !((*form).indisunique || (*form).indisexclusion) {
                    return false;
                }
                let is_lossy =
                    (*form).indisexclusion && (*(*raw).rd_rel).relam != pg_sys::BTREE_AM_OID;
                is_lossy || makes_of_nulls(pg_sys::RelationGetIndexExpressions(raw).cast())
            }
        };
        super::tableam_ddl::index_oids(self).iter().any(needs)
    }
}

/// Something is computed in these expressions where all columns are NULL: not all functions pass over NULLs, a domain may refuse them,
/// and a row as a whole, as an argument, is none.
unsafe fn makes_of_nulls(expressions: *mut pg_sys::Node) -> bool {
    if expressions.is_null() {
        return false;
    }
    memory::scratch(|| {
        let mut columns = std::ptr::null_mut();
        pg_sys::pull_varattnos(expressions, 1, &mut columns);
        let whole_row = -pg_sys::FirstLowInvalidHeapAttributeNumber;
        let text = std::ffi::CStr::from_ptr(pg_sys::nodeToString(expressions.cast()));
        pg_sys::contain_nonstrict_functions(expressions)
            || pg_sys::bms_is_member(whole_row, columns)
            || text.to_string_lossy().contains("{COERCETODOMAIN ")
    })
}
