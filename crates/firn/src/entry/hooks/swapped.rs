//! Tables whose files have been swapped behind PostgreSQL's back. pg_repack makes a copy of a table without
//! saying by which access method, and then swaps files and TOAST relations of the two in pg_class. Where firn is
//! the default, the copy is a firn table: the original keeps its own access method over files that are firn's,
//! and would show the rows of the row store only. Its TOAST relation tells, as that keeps its access method.
//!
//! Such a table must not be read, as rows would be missing, nor rewritten, as they would be lost.

use crate::pg::{catalog, error, Kind, LockMode, Oid, Rel};
use pgrx::pg_sys;

/// Raise an error if the rows of `table` (of another access method) are firn's.
pub(super) fn refuse(table: Rel) {
    let Some(toast) = table.toast_oid() else { return };
    if table.is_firn() || table.oid().to_u32() < pg_sys::FirstNormalObjectId {
        return;
    }
    let Some(ours) = catalog::toast_access_method() else { return };
    if catalog::access_method_of(toast) == Some(ours) {
        let name = table.name();
        error(
            Kind::NotInState,
            format!("table \"{name}\" has the files of a firn table but another access method"),
        )
        .detail("Its files were swapped with those of a copy that is a firn table, as pg_repack does. Rows in stripes would be missing.")
        .hint("Make it a firn table: see \"Other tools\" in firn's guide, under limits.")
        .raise()
    }
}

/// Refuse statements that would read or rewrite such a table without planning a query.
///
/// # Safety
/// A statement that is about to run.
pub(super) unsafe fn refuse_statement(node: *mut pg_sys::Node) {
    // SAFETY: a node is of the type that its tag says.
    unsafe {
        use pg_sys::NodeTag as T;
        let mut everything = false;
        let mut named: Vec<*mut pg_sys::RangeVar> = Vec::new();
        match (*node).type_ {
            T::T_CopyStmt => named.push((*(node as *mut pg_sys::CopyStmt)).relation),
            T::T_AlterTableStmt => named.push((*(node as *mut pg_sys::AlterTableStmt)).relation),
            T::T_IndexStmt => named.push((*(node as *mut pg_sys::IndexStmt)).relation),
            T::T_ClusterStmt => {
                let relation = (*(node as *mut pg_sys::ClusterStmt)).relation;
                everything = relation.is_null();
                named.push(relation);
            }
            T::T_VacuumStmt => {
                let statement = node as *mut pg_sys::VacuumStmt;
                if !super::utility::has_option(statement, c"full") {
                    return;
                }
                let list = (*statement).rels;
                everything = list.is_null();
                for i in 0..(if everything { 0 } else { (*list).length as usize }) {
                    let target =
                        (*(*list).elements.add(i)).ptr_value as *mut pg_sys::VacuumRelation;
                    named.push((*target).relation);
                }
            }
            _ => return,
        }
        let Some(ours) = catalog::toast_access_method() else { return };
        if everything {
            for oid in catalog::tables_with_toast_of(ours) {
                refuse_oid(oid);
            }
            return;
        }
        for name in named.into_iter().filter(|n| !n.is_null()) {
            let oid = pg_sys::RangeVarGetRelidExtended(
                name,
                pg_sys::NoLock as i32,
                pg_sys::RVROption::RVR_MISSING_OK,
                None,
                std::ptr::null_mut(),
            );
            if oid != pg_sys::InvalidOid {
                for oid in catalog::inheritance_tree(oid, LockMode::None) {
                    refuse_oid(oid);
                }
            }
        }
    }
}

/// As [`refuse`].
pub(super) fn refuse_oid(oid: Oid) {
    // SAFETY: a relation that is gone by now is passed over.
    let rel = unsafe { pg_sys::try_relation_open(oid, pg_sys::AccessShareLock as i32) };
    if rel.is_null() {
        return;
    }
    refuse(Rel::of(rel));
    // SAFETY: opened above.
    unsafe { pg_sys::relation_close(rel, pg_sys::AccessShareLock as i32) }
}
