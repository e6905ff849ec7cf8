//! What depends on what, where pg_upgrade has lost it.
//!
//! Problem: pg_upgrade takes the files of tables along and makes all else anew by a dump, in which no dependency is that an access method or
//! offload has noted. Then DROP SERVER does not refuse while cold stripes are there, and DROP EXTENSION … CASCADE drops the access method of TOAST
//! relations before the tables.
//!
//! Rule: that the access method of tables does not depend on the one of TOAST relations tells that it has happened: CREATE EXTENSION notes that, and nobody
//! takes it away. Statements that drop servers, VACUUM and ANALYZE note all again before they begin, in their own transaction, and that note last. One at a time
//! does it; tables and servers are locked until it is committed, so that none is dropped whose dependency nobody sees yet. Who drops the extension itself needs the last
//! note alone.
//!
//! Cases: a table that cannot be read, is locked by another (VACUUM and ANALYZE do not wait for it) or has stripes on a server that is not there is passed over, and the last
//! note not made: the next such statement tries again. Who drops a server in a session that has not loaded the library, before any other has done this, is not kept from it; the
//! stripes' rows are there again when the server is made again under its name.

use crate::directory::Directory;
use crate::pg::attempt::attempt;
use crate::pg::snapshot::Registered;
use crate::pg::{catalog, error, xact, Kind, LockMode, Oid, OpenRel};
use firn_format::Location;
use std::collections::BTreeSet;

/// Note again what is missing, in this transaction; `wait` for locks on tables, or pass over those that are locked. Cheap where nothing is missing.
pub fn restore(wait: bool) {
    let Some(ours) = catalog::access_method() else { return };
    if catalog::methods_are_linked()
        || !catalog::lock_method(ours, wait)
        || catalog::methods_are_linked()
    {
        return;
    }
    let mut all = true;
    for oid in catalog::tables_of(ours) {
        match attempt(|| restore_of(oid, wait)) {
            Ok(complete) => all &= complete,
            Err(caught) => {
                all = false;
                let name = catalog::name_of(oid).unwrap_or_default();
                error(Kind::Skipped, format!("could not tell which foreign servers table {name} depends on"))
                    .detail(caught.text)
                    .hint("pg_upgrade does not take that along. Call firn.check for the table, and do not drop servers before.")
                    .warn()
            }
        }
    }
    if all {
        catalog::link_methods();
    }
    // (What is dropped next is to find it.)
    xact::next_command();
}

/// Only the order in which the access methods go.
pub fn restore_methods() {
    if !catalog::methods_are_linked() {
        catalog::link_methods();
        xact::next_command();
    }
}

/// Those of a table. Whether all could be noted.
fn restore_of(oid: Oid, wait: bool) -> bool {
    let lock = LockMode::AccessShare;
    let table = match wait {
        true => OpenRel::if_there(oid, lock),
        false => OpenRel::try_open(oid, lock),
    };
    // (One that is gone by now has not been passed over.)
    let Some(table) = table else { return wait };
    // (Those of other sessions cannot be read; none has cold stripes.)
    if table.rel().is_temporary() {
        return true;
    }
    let mut servers = BTreeSet::new();
    let mut all = true;
    if let Some(directory) = Directory::open(table.rel(), lock) {
        let snapshot = Registered::latest();
        for found in directory.list_readable(snapshot.snap(), |_, _| all = false) {
            if let Location::Object { server, .. } = &found.entry.location {
                servers.insert(server.clone());
            }
        }
    }
    for name in &servers {
        match catalog::lock_server(name) {
            Some(server) => catalog::depend_on_server(oid, server),
            None => all = false,
        }
    }
    if !servers.is_empty() {
        table.keep_lock();
    }
    all
}
