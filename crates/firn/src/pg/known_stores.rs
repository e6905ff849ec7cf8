//! The table `firn.stores`: which store was behind a foreign server when it was used last
//! (docs/decisions/0015-store-markers.md says why it is a table).

use super::fmgr::UPDATE;
use super::toast::tid_of;
use super::{catalog, compat, error, Kind, LockMode, OpenRel, Snap};
use firn_format::Tid;
use pgrx::pg_sys;
use std::ffi::CStr;

/// The table, or what is wrong with it; None where the extension is not there.
fn look(lock: LockMode) -> Option<Result<OpenRel, &'static str>> {
    catalog::access_method()?;
    // SAFETY: plain look-ups that may miss.
    let oid = unsafe {
        match pg_sys::get_namespace_oid(c"firn".as_ptr(), true) {
            none @ pg_sys::InvalidOid => none,
            schema => pg_sys::get_relname_relid(c"stores".as_ptr(), schema),
        }
    };
    if catalog::access_method_of(oid) != Some(pg_sys::HEAP_TABLE_AM_OID) {
        return Some(Err("There is no such table"));
    }
    let table = OpenRel::if_there(oid, lock)?;
    // SAFETY: an open relation's descriptor; columns are looked at where there are as many.
    let columns = unsafe { compat::attributes(table.rel().tupdesc()) };
    let is_ours = matches!(columns, [server, id] if server.atttypid == pg_sys::NAMEOID && id.atttypid == pg_sys::TEXTOID);
    Some(is_ours.then_some(table).ok_or("It has other columns than (server name, id text)"))
}

/// The table; None where the extension is not there. Without it another store would be taken for the one that was used before, so
/// whoever has the extension of a version without it is told so.
fn table(lock: LockMode) -> Option<OpenRel> {
    let found = look(lock)?;
    Some(found.unwrap_or_else(|why| {
        let message = "table \"firn.stores\" is of another version of the extension than the library";
        error(Kind::NotInState, message)
            .detail(format!("{why}, so which stores were used before is not known."))
            .hint(format!(
                "{UPDATE} (Of a build from before 0.1.0 was released: see firn's CHANGELOG, under \"pg_upgrade from 15 to 18\".)"
            ))
            .raise()
    }))
}

/// A row of the table.
struct Row {
    place: Tid,
    server: String,
    id: String,
}

/// All rows. Concurrent first uses of a store write the same id more than once.
fn rows(table: &OpenRel) -> Vec<Row> {
    let mut found = Vec::new();
    // SAFETY: a scan of an open heap of (name, text), both not null; values are copied.
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
            if nulls == [false; 2] {
                let text = |at: *const core::ffi::c_char| {
                    CStr::from_ptr(at).to_string_lossy().into_owned()
                };
                found.push(Row {
                    place: tid_of(&(*tuple).t_self),
                    server: text(values[0].cast_mut_ptr()),
                    id: text(pg_sys::text_to_cstring(values[1].cast_mut_ptr())),
                });
            }
        }
        pg_sys::heap_endscan(scan);
    }
    found
}

/// The id of the store that was behind the server of that name.
pub fn known(server: &str) -> Option<String> {
    let table = table(LockMode::AccessShare)?;
    rows(&table).into_iter().rfind(|row| row.server == server).map(|row| row.id)
}

/// Remember, in this transaction, that the store `id` is behind the server, and no other.
pub fn remember(server: &str, id: &str) {
    let Some(table) = table(LockMode::RowExclusive) else { return };
    let rows: Vec<Row> = rows(&table).into_iter().filter(|row| row.server == server).collect();
    if !rows.is_empty() && rows.iter().all(|row| row.id == id) {
        return;
    }
    delete(&table, rows);
    // SAFETY: the tuple is made for a heap without indexes, and freed.
    unsafe {
        let text = pg_sys::cstring_to_text_with_len(id.as_ptr().cast(), id.len() as i32);
        let mut name: pg_sys::NameData = std::mem::zeroed();
        // (A server of this name was found, so it is no longer than a name.)
        for (to, from) in name.data.iter_mut().zip(server.bytes()) {
            *to = from as core::ffi::c_char;
        }
        let mut values = [pg_sys::Datum::from(&raw mut name), pg_sys::Datum::from(text)];
        let mut nulls = [false; 2];
        let tuple =
            pg_sys::heap_form_tuple(table.rel().tupdesc(), values.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::simple_heap_insert(table.rel().raw(), tuple);
        pg_sys::heap_freetuple(tuple);
    }
    super::xact::next_command();
}

/// Forget, in this transaction, the stores of those of these servers that are gone: one that is made again under the name may lead elsewhere. (Who drops a server, or notes the store of one, has locked it: nobody else deletes the same row.)
pub fn forget_gone(servers: &[String]) {
    for server in servers.iter().filter(|server| catalog::server_oid(server).is_none()) {
        forget(server)
    }
}

/// (Of another version's table there is nothing to be forgotten: any server may be dropped.)
fn forget(server: &str) {
    if let Some(Ok(table)) = look(LockMode::RowExclusive) {
        let gone = rows(&table).into_iter().filter(|row| row.server == server).collect();
        delete(&table, gone);
        super::xact::next_command();
    }
}

/// A server has got another name.
pub fn rename(server: &str, to: &str) {
    if let Some(id) = known(server) {
        forget(server);
        remember(to, &id);
    }
}

fn delete(table: &OpenRel, rows: Vec<Row>) {
    for row in rows {
        let mut raw = super::toast::raw_tid(row.place);
        // SAFETY: a row of an open heap without indexes.
        unsafe { pg_sys::simple_heap_delete(table.rel().raw(), &mut raw) };
    }
}
