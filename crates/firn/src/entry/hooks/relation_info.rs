//! A look at each table before a query of it is planned, or rows are inserted.

use super::swapped;
use crate::pg::ext::callback;
use crate::pg::index::is_of_ranges;
use crate::pg::{compat, Oid, Rel};
use pgrx::pg_sys;

static mut PREVIOUS: pg_sys::get_relation_info_hook_type = None;

/// Install the hooks. Called once at library load.
pub fn install() {
    // SAFETY: main thread, at load.
    unsafe {
        compat::look_at_inserts(look_at_insert);
        PREVIOUS = pg_sys::get_relation_info_hook;
        pg_sys::get_relation_info_hook = Some(relation_info);
    }
}

unsafe extern "C-unwind" fn relation_info(
    root: *mut pg_sys::PlannerInfo,
    oid: Oid,
    is_parent: bool,
    info: *mut pg_sys::RelOptInfo,
) {
    // SAFETY: the planner has locked the relation of that OID, and hands in its description.
    unsafe {
        if oid.to_u32() >= pg_sys::FirstNormalObjectId {
            callback(|| {
                // The planner holds a lock.
                let rel = pg_sys::relation_open(oid, pg_sys::NoLock as i32);
                if Rel::of(rel).is_firn() {
                    without_brin(info);
                } else {
                    swapped::refuse(Rel::of(rel));
                }
                pg_sys::relation_close(rel, pg_sys::NoLock as i32);
            });
        }
        if let Some(f) = PREVIOUS {
            f(root, oid, is_parent, info)
        }
    }
}

/// The planner does not look at a table that rows are only inserted into.
unsafe extern "C-unwind" fn look_at_insert(oid: Oid) {
    // SAFETY: called by the hook, while permissions are checked.
    unsafe {
        if oid.to_u32() >= pg_sys::FirstNormalObjectId {
            callback(|| swapped::refuse_oid(oid));
        }
    }
}

/// A BRIN index of a firn table, which is there for the sake of dumps and of a partitioned table above it, knows no row of a
/// stripe: it must not be used.
unsafe fn without_brin(info: *mut pg_sys::RelOptInfo) {
    // SAFETY: the planner's description of a relation, whose indexes are IndexOptInfo; one is taken out at a place behind those still to be looked at.
    unsafe {
        let list = (*info).indexlist;
        let count = if list.is_null() { 0 } else { (*list).length as usize };
        for i in (0..count).rev() {
            let index = (*(*list).elements.add(i)).ptr_value as *mut pg_sys::IndexOptInfo;
            if is_of_ranges((*index).relam) {
                (*info).indexlist = pg_sys::list_delete_nth_cell((*info).indexlist, i as i32);
            }
        }
    }
}
