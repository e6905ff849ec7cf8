//! What depends on what, where pg_upgrade has lost it.
//!
//! Problem: pg_upgrade takes the files of tables along and makes all else anew by a dump, in which no dependency is that an access method or
//! offload has noted. Then DROP SERVER does not refuse while cold stripes are there, and DROP EXTENSION … CASCADE drops the access method of TOAST
//! relations before the tables.
//!
//! Rule: that the access method of tables does not depend on the one of TOAST relations tells that it has happened: CREATE EXTENSION notes that, and nobody
//! takes it away. Before a statement that drops servers, wrappers, methods or extensions, and after a VACUUM or ANALYZE command, all is noted
//! again, in one transaction, and that note last.
//!
//! Cases: who drops a server in a session that has not loaded the library, before any other has done this, is not kept from it; the stripes' rows are there again
//! when the server is made again under its name.

use crate::directory::Directory;
use crate::pg::snapshot::Registered;
use crate::pg::{catalog, xact, LockMode, OpenRel};
use firn_format::Location;
use std::collections::BTreeSet;

/// Note again what is missing, in this transaction. Cheap where nothing is.
pub fn restore() {
    let Some(ours) = catalog::access_method() else { return };
    if catalog::methods_are_linked() {
        return;
    }
    for oid in catalog::tables_of(ours) {
        let Some(table) = OpenRel::if_there(oid, LockMode::AccessShare) else { continue };
        // (Those of other sessions cannot be read; none has cold stripes.)
        if table.rel().is_temporary() {
            continue;
        }
        let mut servers = BTreeSet::new();
        if let Some(directory) = Directory::open(table.rel(), LockMode::AccessShare) {
            let snapshot = Registered::latest();
            for found in directory.list_readable(snapshot.snap(), |_, _| ()) {
                if let Location::Object { server, .. } = &found.entry.location {
                    servers.insert(server.clone());
                }
            }
        }
        for server in servers.iter().filter_map(|name| catalog::server_oid(name)) {
            catalog::depend_on_server(oid, server);
        }
    }
    catalog::link_methods();
    // (What is dropped next is to find it.)
    xact::next_command();
}
