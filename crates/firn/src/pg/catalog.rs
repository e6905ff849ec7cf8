//! Look-ups in the system catalogs.

use super::{compat, xact, Oid};
use pgrx::pg_sys;
use std::collections::HashSet;
use std::ffi::{CStr, CString};

/// OID of the firn access method; None while the extension is not installed here.
pub fn access_method() -> Option<Oid> {
    // SAFETY: plain look-up, missing_ok.
    let oid = unsafe { pg_sys::get_table_am_oid(c"firn".as_ptr(), true) };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// OID of the access method of firn tables' TOAST relations; None while there is none here.
pub fn toast_access_method() -> Option<Oid> {
    // SAFETY: plain look-up, missing_ok.
    let oid = unsafe { pg_sys::get_table_am_oid(c"firn_toast".as_ptr(), true) };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// A relation's access method; None when it has none or is gone.
pub fn access_method_of(oid: Oid) -> Option<Oid> {
    // SAFETY: the tuple is pinned while we look at it.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::RELOID as i32,
            pg_sys::Datum::from(oid),
        );
        if tuple.is_null() {
            return None;
        }
        let form = pg_sys::GETSTRUCT(tuple) as *const pg_sys::FormData_pg_class;
        let method = (*form).relam;
        pg_sys::ReleaseSysCache(tuple);
        (method != pg_sys::InvalidOid).then_some(method)
    }
}

/// OIDs of all relations of an access method.
pub fn tables_of(method: Oid) -> Vec<Oid> {
    relations(|form| form.relam == method)
}

/// OIDs of the tables that are made of the type of this relation.
pub fn tables_of_type_of(relation: Oid) -> Vec<Oid> {
    // SAFETY: plain look-up.
    let of = unsafe { pg_sys::get_rel_type_id(relation) };
    relations(|form| of != pg_sys::InvalidOid && form.reloftype == of)
}

/// OIDs of all relations whose TOAST relations are of an access method.
pub fn tables_with_toast_of(method: Oid) -> Vec<Oid> {
    let mut all = relations(|form| form.reltoastrelid != pg_sys::InvalidOid);
    let toasts: HashSet<Oid> = tables_of(method).into_iter().collect();
    all.retain(|oid| toast_of(*oid).is_some_and(|toast| toasts.contains(&toast)));
    all
}

/// OID of a relation's TOAST relation; None when it has none or is gone.
fn toast_of(oid: Oid) -> Option<Oid> {
    // SAFETY: the tuple is pinned while we look at it.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::RELOID as i32,
            pg_sys::Datum::from(oid),
        );
        if tuple.is_null() {
            return None;
        }
        let form = pg_sys::GETSTRUCT(tuple) as *const pg_sys::FormData_pg_class;
        let toast = (*form).reltoastrelid;
        pg_sys::ReleaseSysCache(tuple);
        (toast != pg_sys::InvalidOid).then_some(toast)
    }
}

fn relations(wanted: impl Fn(&pg_sys::FormData_pg_class) -> bool) -> Vec<Oid> {
    let mut found = Vec::new();
    // SAFETY: a catalog scan under its own snapshot; tuples are looked at while the scan holds them.
    unsafe {
        let catalog =
            pg_sys::table_open(pg_sys::RelationRelationId, pg_sys::AccessShareLock as i32);
        let none = std::ptr::null_mut();
        let scan = pg_sys::table_beginscan_catalog(catalog, 0, none);
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            let form = pg_sys::GETSTRUCT(tuple) as *const pg_sys::FormData_pg_class;
            if wanted(&*form) {
                found.push((*form).oid);
            }
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(catalog, pg_sys::AccessShareLock as i32);
    }
    found
}

/// OIDs of all partitions and children of a relation, itself included, locked in the given mode.
pub fn inheritance_tree(oid: Oid, lock: super::LockMode) -> Vec<Oid> {
    // SAFETY: the list is a copy in the current context.
    unsafe {
        let list = super::ext::find_all_inheritors(oid, lock as i32, std::ptr::null_mut());
        (0..(*list).length as usize).map(|i| (*(*list).elements.add(i)).oid_value).collect()
    }
}

/// The current role may act as owner of the relation.
pub fn is_owner(oid: Oid) -> bool {
    compat::owns_relation(oid)
}

/// The current role may maintain the relation, as for VACUUM.
pub fn may_maintain(oid: Oid) -> bool {
    compat::may_maintain(oid)
}

/// Policies keep rows of the relation from the current role.
pub fn hides_rows(oid: Oid) -> bool {
    // SAFETY: plain look-up, told to raise no error.
    unsafe {
        pg_sys::check_enable_rls(oid, pg_sys::InvalidOid, true)
            == pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32
    }
}

/// The current role may read and write the server's files.
pub fn may_use_files() -> bool {
    // SAFETY: plain look-ups.
    unsafe {
        let me = pg_sys::GetUserId();
        [pg_sys::ROLE_PG_READ_SERVER_FILES, pg_sys::ROLE_PG_WRITE_SERVER_FILES]
            .into_iter()
            .all(|role| pg_sys::has_privs_of_role(me, Oid::from(role)))
    }
}

/// Run `body` with the rights of the role `owner` and none beyond: code that the owner of a table has put
/// into its indexes must not run with the rights of whoever maintains the table.
pub fn as_owner<T>(owner: Oid, body: impl FnOnce() -> T) -> T {
    // SAFETY: as VACUUM and REINDEX do it. After an error the end of the (sub)transaction restores both.
    unsafe {
        let (mut role, mut context) = (pg_sys::InvalidOid, 0);
        pg_sys::GetUserIdAndSecContext(&mut role, &mut context);
        let restricted = context | pg_sys::SECURITY_RESTRICTED_OPERATION as i32;
        pg_sys::SetUserIdAndSecContext(owner, restricted);
        let level = pg_sys::NewGUCNestLevel();
        let result = body();
        pg_sys::AtEOXact_GUC(false, level);
        pg_sys::SetUserIdAndSecContext(role, context);
        result
    }
}

/// A foreign server with its options and, if the current role has one, its user mapping's.
pub struct Server {
    pub oid: Oid,
    pub wrapper: String,
    pub options: Vec<(String, String)>,
    pub secrets: Vec<(String, String)>,
}

pub(super) unsafe fn options_of(list: *mut pg_sys::List) -> Vec<(String, String)> {
    // SAFETY: a list of options is one of DefElem with a name and a text each.
    unsafe {
        if list.is_null() {
            return Vec::new();
        }
        (0..(*list).length as usize)
            .map(|i| {
                let def = (*(*list).elements.add(i)).ptr_value as *mut pg_sys::DefElem;
                let name = CStr::from_ptr((*def).defname).to_string_lossy().into_owned();
                let value =
                    CStr::from_ptr(pg_sys::defGetString(def)).to_string_lossy().into_owned();
                (name, value)
            })
            .collect()
    }
}

/// Look a server up by name; secrets are those of `role` (a table's owner). Leaves nothing behind: a statement asks for each page.
pub fn server(name: &str, role: Oid) -> Option<Server> {
    let c_name = CString::new(name).ok()?;
    super::memory::apart(|| server_here(&c_name, role))
}

fn server_here(name: &CStr, role: Oid) -> Option<Server> {
    // SAFETY: catalog look-ups; results live in the current context and are copied.
    unsafe {
        let server = pg_sys::GetForeignServerByName(name.as_ptr(), true);
        if server.is_null() {
            return None;
        }
        let wrapper = pg_sys::GetForeignDataWrapper((*server).fdwid);
        let mapped = |user: Oid| {
            let tuple = pg_sys::SearchSysCache2(
                pg_sys::SysCacheIdentifier::USERMAPPINGUSERSERVER as i32,
                pg_sys::Datum::from(user),
                pg_sys::Datum::from((*server).serverid),
            );
            if tuple.is_null() {
                return false;
            }
            pg_sys::ReleaseSysCache(tuple);
            true
        };
        let secrets = if mapped(role) || mapped(pg_sys::InvalidOid) {
            let mapping = pg_sys::GetUserMapping(role, (*server).serverid);
            options_of((*mapping).options)
        } else {
            Vec::new()
        };
        Some(Server {
            oid: (*server).serverid,
            wrapper: CStr::from_ptr((*wrapper).fdwname).to_string_lossy().into_owned(),
            options: options_of((*server).options),
            secrets,
        })
    }
}

/// Drop an index that nothing depends on.
pub fn drop_index(oid: Oid) {
    let index = pg_sys::ObjectAddress {
        classId: pg_sys::RelationRelationId,
        objectId: oid,
        objectSubId: 0,
    };
    // SAFETY: the address is copied.
    unsafe { pg_sys::performDeletion(&index, pg_sys::DropBehavior::DROP_RESTRICT, 0) }
}

/// Build an index anew. Nobody else uses its table.
pub fn rebuild_index(oid: Oid) {
    let persistence = {
        let index = super::OpenRel::any_kind(oid, super::LockMode::AccessExclusive);
        // SAFETY: an open index.
        unsafe { (*(*index.rel().raw()).rd_rel).relpersistence }
    };
    // SAFETY: the index is locked.
    unsafe { compat::reindex_index(oid, persistence) }
}

/// The current role may use the server.
pub fn may_use_server(oid: Oid) -> bool {
    compat::may_use_server(oid)
}

/// The current role may act as owner of the server.
pub fn owns_server(oid: Oid) -> bool {
    compat::owns_server(oid)
}

/// The current role.
pub fn current_role() -> Oid {
    // SAFETY: plain call.
    unsafe { pg_sys::GetUserId() }
}

/// Make the table depend on the server, so that DROP SERVER refuses while stripes are there.
pub fn depend_on_server(table: Oid, server: Oid) {
    let mut depends = false;
    each_dependency(table, |class, object| {
        depends |= class == pg_sys::ForeignServerRelationId && object == server;
    });
    if depends {
        return;
    }
    // SAFETY: recordDependencyOn copies both addresses.
    unsafe {
        let from = pg_sys::ObjectAddress {
            classId: pg_sys::RelationRelationId,
            objectId: table,
            objectSubId: 0,
        };
        let to = pg_sys::ObjectAddress {
            classId: pg_sys::ForeignServerRelationId,
            objectId: server,
            objectSubId: 0,
        };
        pg_sys::recordDependencyOn(&from, &to, pg_sys::DependencyType::DEPENDENCY_NORMAL);
    }
}

/// Both access methods are there, and DROP EXTENSION … CASCADE knows in which order they go: the one of tables depends on the one of their
/// TOAST relations. True also where they are not.
pub fn methods_are_linked() -> bool {
    let (Some(of_tables), Some(of_toast)) = (access_method(), toast_access_method()) else {
        return true;
    };
    let class = pg_sys::AccessMethodRelationId;
    let mut linked = false;
    each_dependency_of(class, of_tables, |c, object| linked |= c == class && object == of_toast);
    linked
}

/// See [`methods_are_linked`].
pub fn link_methods() {
    let (Some(of_tables), Some(of_toast)) = (access_method(), toast_access_method()) else {
        return;
    };
    let address = |object: Oid| pg_sys::ObjectAddress {
        classId: pg_sys::AccessMethodRelationId,
        objectId: object,
        objectSubId: 0,
    };
    let (from, to) = (address(of_tables), address(of_toast));
    // SAFETY: recordDependencyOn copies both addresses.
    unsafe { pg_sys::recordDependencyOn(&from, &to, pg_sys::DependencyType::DEPENDENCY_NORMAL) }
}

/// OID of the foreign server of that name.
pub fn server_oid(name: &str) -> Option<Oid> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: plain look-up that may miss.
    let oid = unsafe { pg_sys::get_foreign_server_oid(name.as_ptr(), true) };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

/// A foreign server is a member of an extension.
pub fn has_servers_of_extensions() -> bool {
    find_server(|server| {
        // SAFETY: a catalog look-up.
        unsafe {
            let class = pg_sys::ForeignServerRelationId;
            pg_sys::getExtensionOfObject(class, server.oid) != pg_sys::InvalidOid
        }
    })
}

/// Names of all servers of our wrapper.
pub fn servers() -> Vec<String> {
    // SAFETY: a plain look-up that may miss.
    let ours = unsafe { pg_sys::get_foreign_data_wrapper_oid(c"firn".as_ptr(), true) };
    let mut names = Vec::new();
    find_server(|server| {
        if server.srvfdw == ours {
            // SAFETY: a name of a catalog's row ends within it.
            let name = unsafe { CStr::from_ptr(server.srvname.data.as_ptr()) };
            names.push(name.to_string_lossy().into_owned());
        }
        false
    });
    names
}

/// Whether a foreign server is what is looked for.
fn find_server(mut is_it: impl FnMut(&pg_sys::FormData_pg_foreign_server) -> bool) -> bool {
    let mut found = false;
    // SAFETY: a catalog scan under its own snapshot; rows are looked at while the scan holds them.
    unsafe {
        let class = pg_sys::ForeignServerRelationId;
        let catalog = pg_sys::table_open(class, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::table_beginscan_catalog(catalog, 0, std::ptr::null_mut());
        while !found {
            let row = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if row.is_null() {
                break;
            }
            found = is_it(&*(pg_sys::GETSTRUCT(row) as *const pg_sys::FormData_pg_foreign_server));
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(catalog, pg_sys::AccessShareLock as i32);
    }
    found
}

/// As [`server_oid`] of a server of our wrapper, which is not dropped then before this transaction is over.
pub fn lock_server(name: &str) -> Option<Oid> {
    let oid = server_oid(name)?;
    // SAFETY: plain calls; the server is looked up again once it is locked.
    unsafe {
        let class = pg_sys::ForeignServerRelationId;
        pg_sys::LockDatabaseObject(class, oid, 0, pg_sys::AccessShareLock as i32);
        if server_oid(name) != Some(oid) {
            return None;
        }
        let server = pg_sys::GetForeignServer(oid);
        let wrapper = pg_sys::GetForeignDataWrapper((*server).fdwid);
        (CStr::from_ptr((*wrapper).fdwname) == c"firn").then_some(oid)
    }
}

/// Be alone, to the end of the transaction, with what is noted of the access method. False where another is at it and is not to be waited for.
pub fn lock_method(method: Oid, wait: bool) -> bool {
    // SAFETY: plain calls; the database was set when the session began.
    unsafe {
        let tag = pg_sys::LOCKTAG {
            locktag_field1: pg_sys::MyDatabaseId.to_u32(),
            locktag_field2: pg_sys::AccessMethodRelationId.to_u32(),
            locktag_field3: method.to_u32(),
            // (0 is who is at work on indexes, in entry/worker.rs.)
            locktag_field4: 1,
            locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
            locktag_lockmethodid: 1,
        };
        let got = pg_sys::LockAcquire(&tag, pg_sys::ShareUpdateExclusiveLock as i32, false, !wait);
        pg_sys::AcceptInvalidationMessages();
        got != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }
}

/// Identity of this cluster, its timeline and this database: parts of object keys.
pub fn cluster_identity() -> (u64, u32, Oid) {
    // SAFETY: plain look-ups.
    unsafe {
        (pg_sys::GetSystemIdentifier(), pg_sys::GetWALInsertionTimeLine(), pg_sys::MyDatabaseId)
    }
}

/// OID of pg_depend.
const DEPENDENCIES: Oid = Oid::from_u32(2608);
/// The fixed columns at the start of a pg_depend row.
#[repr(C)]
struct DependRow {
    class: Oid,
    object: Oid,
    sub_object: i32,
    referenced_class: Oid,
    referenced_object: Oid,
}
/// OID of its index on the depending object.
const DEPENDENCIES_BY_DEPENDER: Oid = Oid::from_u32(2673);

/// Visit what a relation depends on: class, object.
fn each_dependency(relation: Oid, visit: impl FnMut(Oid, Oid)) {
    each_dependency_of(pg_sys::RelationRelationId, relation, visit)
}

/// Visit what an object depends on: class, object.
fn each_dependency_of(class: Oid, object: Oid, mut visit: impl FnMut(Oid, Oid)) {
    // SAFETY: a catalog scan with keys on the stack.
    unsafe {
        let depend = pg_sys::table_open(DEPENDENCIES, pg_sys::AccessShareLock as i32);
        let mut keys: [pg_sys::ScanKeyData; 2] = std::mem::zeroed();
        for (i, (column, value)) in [(1, class), (2, object)].into_iter().enumerate() {
            pg_sys::ScanKeyInit(
                &mut keys[i],
                column,
                pg_sys::BTEqualStrategyNumber as u16,
                Oid::from(pg_sys::F_OIDEQ),
                pg_sys::Datum::from(value),
            );
        }
        let scan = pg_sys::systable_beginscan(
            depend,
            DEPENDENCIES_BY_DEPENDER,
            true,
            std::ptr::null_mut(),
            2,
            keys.as_mut_ptr(),
        );
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let header = (*tuple).t_data;
            let form = (header as *const u8).add(usize::from((*header).t_hoff)) as *const DependRow;
            visit((*form).referenced_class, (*form).referenced_object);
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(depend, pg_sys::AccessShareLock as i32);
    }
}

/// Remember that an index depends on a table access method. None does by itself: it marks one that is being built in the
/// place of another, or that was there before.
pub fn depend_on_access_method(index: Oid, method: Oid) {
    let address = |class: Oid, object: Oid| pg_sys::ObjectAddress {
        classId: class,
        objectId: object,
        objectSubId: 0,
    };
    let from = address(pg_sys::RelationRelationId, index);
    let to = address(pg_sys::AccessMethodRelationId, method);
    // SAFETY: recordDependencyOn copies both addresses.
    unsafe {
        pg_sys::recordDependencyOn(&from, &to, pg_sys::DependencyType::DEPENDENCY_NORMAL);
    }
}

/// See [`depend_on_access_method`].
pub fn depends_on_access_method(index: Oid, method: Oid) -> bool {
    let mut found = false;
    each_dependency(index, |class, object| {
        found |= class == pg_sys::AccessMethodRelationId && object == method;
    });
    found
}

/// What the catalog says of an index.
#[derive(Clone, Copy, Debug)]
pub struct IndexState {
    pub oid: Oid,
    /// Sessions see it, and make entries in it if it is ready.
    pub live: bool,
    pub ready: bool,
    pub valid: bool,
}

/// Indexes of a relation, those which nobody sees any more included: their states at one moment, as REINDEX
/// CONCURRENTLY changes those of two at once.
pub fn indexes_of(relation: Oid) -> Vec<IndexState> {
    let mut list = Vec::new();
    // SAFETY: a catalog scan with a key on the stack.
    unsafe {
        let lock = pg_sys::AccessShareLock as i32;
        let catalog = pg_sys::table_open(pg_sys::IndexRelationId, lock);
        let mut key: pg_sys::ScanKeyData = std::mem::zeroed();
        pg_sys::ScanKeyInit(
            &mut key,
            pg_sys::Anum_pg_index_indrelid as i16,
            pg_sys::BTEqualStrategyNumber as u16,
            Oid::from(pg_sys::F_OIDEQ),
            pg_sys::Datum::from(relation),
        );
        let by_relation = Oid::from(pg_sys::IndexIndrelidIndexId);
        let none = std::ptr::null_mut();
        let scan = pg_sys::systable_beginscan(catalog, by_relation, true, none, 1, &mut key);
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let form = pg_sys::GETSTRUCT(tuple) as *const pg_sys::FormData_pg_index;
            list.push(IndexState {
                oid: (*form).indexrelid,
                live: (*form).indislive,
                ready: (*form).indisready,
                valid: (*form).indisvalid,
            });
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(catalog, lock);
    }
    list
}

/// Look at what the catalog says of an index now; None when it is gone.
fn index_form<T>(index: Oid, look: impl FnOnce(&pg_sys::FormData_pg_index) -> T) -> Option<T> {
    // SAFETY: the tuple is pinned while it is looked at.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::INDEXRELID as i32,
            pg_sys::Datum::from(index),
        );
        if tuple.is_null() {
            return None;
        }
        let found = look(&*(pg_sys::GETSTRUCT(tuple) as *const pg_sys::FormData_pg_index));
        pg_sys::ReleaseSysCache(tuple);
        Some(found)
    }
}

/// What the catalog says of an index now; None when it is gone.
pub fn index_state(oid: Oid) -> Option<IndexState> {
    index_form(oid, |form| IndexState {
        oid,
        live: form.indislive,
        ready: form.indisready,
        valid: form.indisvalid,
    })
}

/// Sessions still see this index, and make entries in it if it is ready.
pub fn is_live_index(index: Oid) -> bool {
    index_form(index, |form| form.indislive).unwrap_or(false)
}

/// A copy of a catalog row, to be changed and stored; None when there is none.
fn copy_of_row(cache: pg_sys::SysCacheIdentifier::Type, oid: Oid) -> Option<pg_sys::HeapTuple> {
    let none = pg_sys::Datum::from(0usize);
    let key = pg_sys::Datum::from(oid);
    // SAFETY: a copy in this transaction's memory.
    let tuple = unsafe { pg_sys::SearchSysCacheCopy(cache as i32, key, none, none, none) };
    (!tuple.is_null()).then_some(tuple)
}

/// Have an index accept keys that come twice.
pub fn make_not_unique(index: Oid) {
    xact::next_command();
    // SAFETY: as index_set_state_flags does it.
    unsafe {
        let lock = pg_sys::RowExclusiveLock as i32;
        let catalog = pg_sys::table_open(pg_sys::IndexRelationId, lock);
        if let Some(tuple) = copy_of_row(pg_sys::SysCacheIdentifier::INDEXRELID, index) {
            let form = pg_sys::GETSTRUCT(tuple) as *mut pg_sys::FormData_pg_index;
            (*form).indisunique = false;
            pg_sys::CatalogTupleUpdate(catalog, &mut (*tuple).t_self, tuple);
        }
        pg_sys::table_close(catalog, lock);
    }
}

/// Exchange the files of two indexes that are defined alike, which nobody uses. Each of them has entries for all that
/// anybody can see.
pub fn exchange_files(one: Oid, other: Oid) {
    // SAFETY: copies of both rows are changed and stored, as swap_relation_files() does it.
    unsafe {
        let lock = pg_sys::RowExclusiveLock as i32;
        let catalog = pg_sys::table_open(pg_sys::RelationRelationId, lock);
        let copy = |oid| copy_of_row(pg_sys::SysCacheIdentifier::RELOID, oid);
        if let (Some(a), Some(b)) = (copy(one), copy(other)) {
            let form = |tuple| pg_sys::GETSTRUCT(tuple) as *mut pg_sys::FormData_pg_class;
            std::ptr::swap(&raw mut (*form(a)).relfilenode, &raw mut (*form(b)).relfilenode);
            std::ptr::swap(&raw mut (*form(a)).relpages, &raw mut (*form(b)).relpages);
            for tuple in [a, b] {
                pg_sys::CatalogTupleUpdate(catalog, &mut (*tuple).t_self, tuple);
            }
        }
        pg_sys::table_close(catalog, lock);
    }
}

/// Plans may read the index.
pub fn is_valid_index(index: Oid) -> bool {
    index_form(index, |form| form.indisvalid).unwrap_or(false)
}

/// A relation's name, quoted; None when it is gone.
pub fn name_of(oid: Oid) -> Option<String> {
    plain_name_of(oid).map(|name| format!("\"{name}\""))
}

/// A relation's name, without quotes; None when it is gone.
pub fn plain_name_of(oid: Oid) -> Option<String> {
    // SAFETY: a copy in this transaction's memory.
    unsafe {
        let name = pg_sys::get_rel_name(oid);
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

/// Names of the foreign servers that a table depends on.
pub fn servers_of(table: Oid) -> Vec<String> {
    let mut names = Vec::new();
    each_dependency(table, |class, object| {
        if class == pg_sys::ForeignServerRelationId {
            // SAFETY: a look-up that raises when there is none; the name is copied.
            names.push(unsafe {
                let server = pg_sys::GetForeignServer(object);
                CStr::from_ptr((*server).servername).to_string_lossy().into_owned()
            });
        }
    });
    names
}

/// The table whose TOAST relation this is; None while it is being made or dropped.
pub fn owner_of_toast(toast: Oid) -> Option<Oid> {
    let mut owner = None;
    each_dependency(toast, |class, object| {
        if class == pg_sys::RelationRelationId {
            owner = Some(object);
        }
    });
    owner
}

/// OID of pg_user_mapping, as the option validator is told.
pub const USER_MAPPINGS: Oid = Oid::from_u32(1418);

/// The current role may read the table.
pub fn may_select(oid: Oid) -> bool {
    // SAFETY: plain look-up.
    unsafe {
        pg_sys::pg_class_aclcheck(oid, pg_sys::GetUserId(), pg_sys::ACL_SELECT as pg_sys::AclMode)
            == pg_sys::AclResult::ACLCHECK_OK
    }
}
