//! The table `firn.stores`: which store was behind a foreign server when it was used last
//! (docs/decisions/0015-store-markers.md says why it is a table).

use super::toast::tid_of;
use super::{LockMode, OpenRel, Snap};
use firn_format::Tid;
use pgrx::pg_sys;

/// The table; None where the extension is of a version without it.
fn table(lock: LockMode) -> Option<OpenRel> {
    // SAFETY: plain look-ups that may miss.
    let oid = unsafe {
        let schema = pg_sys::get_namespace_oid(c"firn".as_ptr(), true);
        if schema == pg_sys::InvalidOid {
            return None;
        }
        pg_sys::get_relname_relid(c"stores".as_ptr(), schema)
    };
    (oid != pg_sys::InvalidOid).then(|| OpenRel::open(oid.to_u32(), lock))
}

/// Rows of a server: place and id. Concurrent first uses of a store write the same id more than once.
fn rows(table: &OpenRel, server: u32) -> Vec<(Tid, String)> {
    let mut found = Vec::new();
    // SAFETY: a scan of an open heap of (oid, text), both not null; values are copied.
    unsafe {
        let raw = table.rel().raw();
        let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN | pg_sys::ScanOptions::SO_ALLOW_STRAT;
        let (keys, parallel) = (std::ptr::null_mut(), std::ptr::null_mut());
        let scan = pg_sys::heap_beginscan(raw, Snap::self_snap().0, 0, keys, parallel, flags);
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            let (mut values, mut nulls) = ([pg_sys::Datum::from(0usize); 2], [false; 2]);
            pg_sys::heap_deform_tuple(
                tuple,
                table.rel().tupdesc(),
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
            if nulls == [false; 2] && values[0].value() as u32 == server {
                let text = pg_sys::text_to_cstring(values[1].cast_mut_ptr());
                let id = std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned();
                found.push((tid_of(&(*tuple).t_self), id));
            }
        }
        pg_sys::heap_endscan(scan);
    }
    found
}

/// The id of the store that was behind the server.
pub fn known(server: u32) -> Option<String> {
    let table = table(LockMode::AccessShare)?;
    rows(&table, server).pop().map(|(_, id)| id)
}

/// Remember, in this transaction, that the store `id` is behind the server, and no other.
pub fn remember(server: u32, id: &str) {
    let Some(table) = table(LockMode::RowExclusive) else { return };
    let rows = rows(&table, server);
    if !rows.is_empty() && rows.iter().all(|(_, known)| known == id) {
        return;
    }
    // SAFETY: rows of a heap without indexes; the tuple is made for it and freed.
    unsafe {
        for (place, _) in rows {
            let mut raw = super::toast::raw_tid(place);
            pg_sys::simple_heap_delete(table.rel().raw(), &mut raw);
        }
        let text = pg_sys::cstring_to_text_with_len(id.as_ptr().cast(), id.len() as i32);
        let mut values =
            [pg_sys::Datum::from(pg_sys::Oid::from(server)), pg_sys::Datum::from(text)];
        let mut nulls = [false; 2];
        let tuple =
            pg_sys::heap_form_tuple(table.rel().tupdesc(), values.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::simple_heap_insert(table.rel().raw(), tuple);
        pg_sys::heap_freetuple(tuple);
    }
    super::xact::next_command();
}
