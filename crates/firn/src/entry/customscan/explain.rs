//! What EXPLAIN shows of a scan.

use super::exec::run;
use crate::pg::ext::callback;
use crate::pg::jsonb::Fields;
use crate::pg::Rel;
use pgrx::pg_sys;

pub(super) unsafe extern "C-unwind" fn explain(
    node: *mut pg_sys::CustomScanState,
    _ancestors: *mut pg_sys::List,
    es: *mut pg_sys::ExplainState,
) {
    // SAFETY: a node that has begun, be it for EXPLAIN only.
    unsafe {
        callback(|| {
            let run = run(node);
            if (*es).verbose {
                columns(c"Columns Read", run.wanted.iter().copied(), node, es);
                if !run.fields.is_empty() {
                    text(c"Fields Read", &fields(&run.fields, node), es);
                }
            }
            if !run.joins.is_empty() {
                columns(c"Narrowed by Join", run.joins.iter().map(|join| join.column), node, es);
            }
            if !(*es).analyze {
                return;
            }
            let mut t = run.total;
            if let Some(stripes) = &run.stripes {
                t.add(&stripes.counters);
            }
            number(es, c"Stripes Read", t.stripes_read);
            number(es, c"Stripes Skipped", t.stripes_skipped);
            number(es, c"Batches Read", t.batches_read);
            number(es, c"Batches Skipped", t.batches_skipped);
            number(es, c"Pages Read", t.pages_read);
            number(es, c"Rows Removed by Stripe Filter", t.rows_filtered);
        })
    }
}

pub(super) unsafe fn number(es: *mut pg_sys::ExplainState, label: &std::ffi::CStr, value: u64) {
    // SAFETY: the label is a C string; PostgreSQL copies what it needs.
    unsafe { pg_sys::ExplainPropertyInteger(label.as_ptr(), std::ptr::null(), value as i64, es) }
}

unsafe fn columns(
    label: &std::ffi::CStr,
    numbers: impl Iterator<Item = usize>,
    node: *mut pg_sys::CustomScanState,
    es: *mut pg_sys::ExplainState,
) {
    // SAFETY: the node's relation is open; the texts outlive the call.
    unsafe {
        let names = Rel::of((*node).ss.ss_currentRelation).attributes();
        let list: Vec<&str> =
            numbers.filter_map(|i| names.get(i)).map(|a| a.name.as_str()).collect();
        text(label, list.join(", ").as_bytes(), es);
    }
}

/// "column (field, field), column (field)".
unsafe fn fields(read: &[(usize, Fields)], node: *mut pg_sys::CustomScanState) -> Vec<u8> {
    // SAFETY: the node's relation is open.
    let names = unsafe { Rel::of((*node).ss.ss_currentRelation).attributes() };
    let column = |(i, fields): &(usize, Fields)| {
        let name = names.get(*i).map_or("", |a| a.name.as_str());
        [name.as_bytes(), b" (", &fields.names().join(&b", "[..]), b")"].concat()
    };
    read.iter().map(column).collect::<Vec<_>>().join(&b", "[..])
}

unsafe fn text(label: &std::ffi::CStr, value: &[u8], es: *mut pg_sys::ExplainState) {
    if let Ok(value) = std::ffi::CString::new(value) {
        // SAFETY: C strings; PostgreSQL copies what it needs.
        unsafe { pg_sys::ExplainPropertyText(label.as_ptr(), value.as_ptr(), es) }
    }
}
