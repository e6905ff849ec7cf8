//! Lists and expressions of plans.

use super::ext;
use pgrx::pg_sys;

/// The items of a list of pointers.
///
/// # Safety
/// A list of `T`, or null.
pub(crate) unsafe fn list_items<T>(list: *mut pg_sys::List) -> Vec<*mut T> {
    // SAFETY: a list of pointers has as many as it says.
    unsafe {
        if list.is_null() {
            return Vec::new();
        }
        (0..(*list).length as usize)
            .map(|i| (*(*list).elements.add(i)).ptr_value as *mut T)
            .collect()
    }
}

/// Column numbers that an expression uses, system columns (negative) and whole rows (0) too.
pub(crate) unsafe fn columns_of(
    nodes: &[*mut pg_sys::Node],
    restrictions: *mut pg_sys::List,
    relid: pg_sys::Index,
) -> Vec<i32> {
    let mut numbers = Vec::new();
    // SAFETY: as the caller promises.
    unsafe { each_column_of(nodes, restrictions, relid, |number| numbers.push(number)) };
    numbers
}

/// As [`columns_of`], one after the other.
unsafe fn each_column_of(
    nodes: &[*mut pg_sys::Node],
    restrictions: *mut pg_sys::List,
    relid: pg_sys::Index,
    mut visit: impl FnMut(i32),
) {
    // SAFETY: expressions of one query; a list of restrictions is one of RestrictInfo.
    unsafe {
        let mut used = std::ptr::null_mut();
        for node in nodes.iter().filter(|node| !node.is_null()) {
            ext::pull_varattnos(*node, relid, &mut used);
        }
        for info in list_items::<pg_sys::RestrictInfo>(restrictions) {
            ext::pull_varattnos((*info).clause.cast(), relid, &mut used);
        }
        let mut member = -1;
        loop {
            member = ext::unfailing::bms_next_member(used, member);
            if member < 0 {
                return;
            }
            visit(member + pg_sys::FirstLowInvalidHeapAttributeNumber);
        }
    }
}

/// A table's columns, each marked if expressions use it, all of them for a whole-row reference; and whether they use no system columns but those
/// that a slot has without a tuple: TID and table.
///
/// # Safety
/// Expressions of one plan, or null; `relid` is the table's number in it.
pub(crate) unsafe fn marks_of(
    nodes: &[*mut pg_sys::Node],
    relid: pg_sys::Index,
    columns: usize,
) -> (Vec<bool>, bool) {
    let mut marks = vec![false; columns];
    let mut plain = true;
    let of_slot = [pg_sys::SelfItemPointerAttributeNumber, pg_sys::TableOidAttributeNumber];
    // SAFETY: as the caller promises.
    unsafe {
        each_column_of(nodes, std::ptr::null_mut(), relid, |number| match number {
            0 => marks.fill(true),
            1.. => {
                if let Some(mark) = marks.get_mut(number as usize - 1) {
                    *mark = true;
                }
            }
            _ => plain &= of_slot.contains(&number),
        })
    };
    (marks, plain)
}

/// Columns (0 = first) that expressions use; all for a whole-row reference.
pub(crate) fn table_columns(numbers: &[i32], columns: usize) -> Vec<usize> {
    if numbers.contains(&0) {
        return (0..columns).collect();
    }
    numbers.iter().filter(|n| **n > 0).map(|n| (*n - 1) as usize).collect()
}
