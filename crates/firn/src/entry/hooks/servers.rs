//! Statements about foreign servers: what pg_upgrade has lost of their dependencies is noted before one is dropped (`tier/links.rs`), and
//! `firn.stores` names no server that is gone.

use crate::pg::nodes::list_items;
use crate::pg::{catalog, known_stores};
use crate::tier;
use pgrx::pg_sys;
use std::ffi::CStr;

/// A statement is about to be carried out. Gives what [`end`] is to be told: a copy of it, as it may be freed meanwhile, one that drops the servers that it may take along, or null.
///
/// # Safety
/// A statement's node.
pub(super) unsafe fn begin(node: *mut pg_sys::Node) -> *mut pg_sys::Node {
    use pg_sys::ObjectType as O;
    // SAFETY: a statement's node is of the type that its tag says.
    unsafe {
        let nothing = std::ptr::null_mut();
        // Where nothing may be written that is PostgreSQL's to say; pg_upgrade has no files in their places yet.
        if pg_sys::XactReadOnly || pg_sys::IsBinaryUpgrade {
            return nothing;
        }
        match (*node).type_ {
            pg_sys::NodeTag::T_DropOwnedStmt => {
                tier::restore_links(true);
                return drop_of(catalog::servers());
            }
            pg_sys::NodeTag::T_DropStmt => {
                let drop = node as *mut pg_sys::DropStmt;
                let names = |ours: &str| names_of((*drop).objects).iter().any(|n| n == ours);
                match (*drop).removeType {
                    O::OBJECT_FOREIGN_SERVER => {
                        tier::restore_links(true);
                        return pg_sys::copyObjectImpl(node.cast()).cast();
                    }
                    O::OBJECT_FDW if names("firn") => {
                        tier::restore_links(true);
                        return drop_of(catalog::servers());
                    }
                    O::OBJECT_ACCESS_METHOD if names("firn") || names("firn_toast") => {
                        tier::restore_methods()
                    }
                    O::OBJECT_EXTENSION | O::OBJECT_SCHEMA if names("firn") => {
                        tier::restore_methods()
                    }
                    // Servers may be members of other extensions, and these in schemas, which go with what they hold if they are told to.
                    O::OBJECT_EXTENSION | O::OBJECT_SCHEMA => {
                        let cascades = (*drop).behavior == pg_sys::DropBehavior::DROP_CASCADE;
                        let takes_others = (*drop).removeType == O::OBJECT_EXTENSION || cascades;
                        if takes_others && catalog::has_servers_of_extensions() {
                            tier::restore_links(true);
                            return drop_of(catalog::servers());
                        }
                    }
                    _ => (),
                }
            }
            pg_sys::NodeTag::T_RenameStmt if renames_server(node.cast()) => {
                // (Afterwards stripes name a server that is not there.)
                tier::restore_links(true);
                return pg_sys::copyObjectImpl(node.cast()).cast();
            }
            _ => (),
        }
        nothing
    }
}

/// What else may take servers along is told of as if it dropped these; null for none.
unsafe fn drop_of(servers: Vec<String>) -> *mut pg_sys::Node {
    // SAFETY: nodes in the current memory context; names of servers have no zeros.
    unsafe {
        if servers.is_empty() {
            return std::ptr::null_mut();
        }
        let drop =
            pg_sys::palloc0(std::mem::size_of::<pg_sys::DropStmt>()) as *mut pg_sys::DropStmt;
        (*drop).type_ = pg_sys::NodeTag::T_DropStmt;
        (*drop).removeType = pg_sys::ObjectType::OBJECT_FOREIGN_SERVER;
        for server in servers {
            let name = pg_sys::pnstrdup(server.as_ptr().cast(), server.len());
            (*drop).objects = pg_sys::lappend((*drop).objects, pg_sys::makeString(name).cast());
        }
        drop.cast()
    }
}

unsafe fn renames_server(statement: *mut pg_sys::RenameStmt) -> bool {
    // SAFETY: a statement of the parser's.
    unsafe { (*statement).renameType == pg_sys::ObjectType::OBJECT_FOREIGN_SERVER }
}

/// It has been.
///
/// # Safety
/// What [`begin`] gave.
pub(super) unsafe fn end(node: *mut pg_sys::Node) {
    // SAFETY: null, or a statement that drops or renames servers.
    unsafe {
        if node.is_null() {
            return;
        }
        if (*node).type_ == pg_sys::NodeTag::T_DropStmt {
            let names = names_of((*(node as *mut pg_sys::DropStmt)).objects);
            return known_stores::forget_gone(&names);
        }
        let rename = node as *mut pg_sys::RenameStmt;
        if let Some(from) = name_of((*rename).object) {
            known_stores::rename(&from, &text((*rename).newname));
        }
    }
}

/// VACUUM or ANALYZE is about to begin.
pub(super) fn before_vacuum() {
    // SAFETY: plain variables.
    if unsafe { !pg_sys::XactReadOnly && !pg_sys::IsBinaryUpgrade } {
        tier::restore_links(false)
    }
}

unsafe fn names_of(objects: *mut pg_sys::List) -> Vec<String> {
    // SAFETY: a list of what DROP is to drop, of which objects without a schema are strings.
    unsafe {
        list_items::<pg_sys::Node>(objects).into_iter().filter_map(|node| name_of(node)).collect()
    }
}

/// The name of an object that is in no schema.
unsafe fn name_of(node: *mut pg_sys::Node) -> Option<String> {
    // SAFETY: a node is of the type that its tag says.
    unsafe {
        let is_name = !node.is_null() && (*node).type_ == pg_sys::NodeTag::T_String;
        is_name.then(|| text((*(node as *mut pg_sys::String)).sval))
    }
}

unsafe fn text(name: *const core::ffi::c_char) -> String {
    // SAFETY: a C string of the parser's.
    unsafe { CStr::from_ptr(name).to_string_lossy().into_owned() }
}
