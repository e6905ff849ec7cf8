//! Custom nodes inside PostgreSQL: paths for the planner, plan nodes, the executor's callbacks.
//! `path` offers the scan, `inner` on the inner side of nested loops, `price` says what reading stripes costs, `conditions` translates quals for it, `exec` runs it, `parallel` in several processes, `backward` for cursors that go back, `explain` shows what
//! it did; `count` answers `count(*)` without rows, `recheck` stands above the plans of re-checks, `substitute` gives the row that they check; `joins` takes the keys of a join
//! above the scan. What a scan does with stripes is
//! [`crate::plan::FirnScan`].

mod backward;
mod conditions;
mod count;
mod exec;
mod explain;
mod inner;
pub(super) mod joins;
mod parallel;
mod path;
mod price;
pub(super) mod recheck;
mod substitute;

use pgrx::pg_sys;

/// Method tables are constants that PostgreSQL only reads.
struct Shared<T>(T);
// SAFETY: never written.
unsafe impl<T> Sync for Shared<T> {}

/// Register the nodes and hook into the planner.
pub fn install() {
    // SAFETY: main thread, at load.
    unsafe {
        path::install();
        count::install();
    }
}

unsafe fn list_items<T>(list: *mut pg_sys::List) -> Vec<*mut T> {
    if list.is_null() {
        return Vec::new();
    }
    (0..(*list).length as usize).map(|i| (*(*list).elements.add(i)).ptr_value as *mut T).collect()
}

/// Column numbers that an expression uses, system columns (negative) and whole rows (0) too.
pub(super) unsafe fn columns_of(
    nodes: &[*mut pg_sys::Node],
    restrictions: *mut pg_sys::List,
    relid: pg_sys::Index,
) -> Vec<i32> {
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

/// Columns (0 = first) that expressions use; all for a whole-row reference.
pub(super) fn table_columns(numbers: &[i32], columns: usize) -> Vec<usize> {
    if numbers.contains(&0) {
        return (0..columns).collect();
    }
    numbers.iter().filter(|n| **n > 0).map(|n| (*n - 1) as usize).collect()
}
