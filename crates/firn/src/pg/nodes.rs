//! Lists and expressions of plans.

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
    // SAFETY: expressions of one query; a list of restrictions is one of RestrictInfo.
    unsafe {
        let mut used = std::ptr::null_mut();
        for node in nodes {
            pg_sys::pull_varattnos(*node, relid, &mut used);
        }
        for info in list_items::<pg_sys::RestrictInfo>(restrictions) {
            pg_sys::pull_varattnos((*info).clause.cast(), relid, &mut used);
        }
        let mut numbers = Vec::new();
        let mut member = -1;
        loop {
            member = pg_sys::bms_next_member(used, member);
            if member < 0 {
                return numbers;
            }
            numbers.push(member + pg_sys::FirstLowInvalidHeapAttributeNumber);
        }
    }
}

/// Columns (0 = first) that expressions use; all for a whole-row reference.
pub(crate) fn table_columns(numbers: &[i32], columns: usize) -> Vec<usize> {
    if numbers.contains(&0) {
        return (0..columns).collect();
    }
    numbers.iter().filter(|n| **n > 0).map(|n| (*n - 1) as usize).collect()
}
