//! What definition statements leave to be done: every firn table has a TOAST relation, and none of its TOAST
//! relation's indexes outlives the rows that it knows.
//!
//! PostgreSQL looks whether a table needs a TOAST relation when it makes the table and before it rewrites it,
//! when the old access method still answers. So a table becomes firn's without one: by ALTER TABLE or ALTER
//! MATERIALIZED VIEW SET ACCESS METHOD, and stays without one through REFRESH. Its hook for changes of objects
//! tells which tables have got new files; when the statement is over, and its lock is still held, they are
//! looked at.

use crate::pg::ext::callback;
use crate::pg::own_toast::{create_toast, lacks_toast};
use crate::pg::{catalog, rebuild, LockMode, Oid, Rel};
use pgrx::pg_sys;
use std::cell::RefCell;

static mut PREVIOUS: pg_sys::object_access_hook_type = None;

thread_local! {
    /// Relations that statements have changed, until one of them is over.
    static CHANGED: RefCell<Vec<Oid>> = RefCell::default();
}

/// Install the hook. Called once at library load.
pub fn install() {
    // SAFETY: main thread, at load.
    unsafe {
        PREVIOUS = pg_sys::object_access_hook;
        pg_sys::object_access_hook = Some(object_access);
    }
}

unsafe extern "C-unwind" fn object_access(
    access: pg_sys::ObjectAccessType::Type,
    class: Oid,
    object: Oid,
    sub: core::ffi::c_int,
    arg: *mut core::ffi::c_void,
) {
    // SAFETY: PostgreSQL says which object is changed; the argument is passed on unread.
    unsafe {
        if let Some(f) = PREVIOUS {
            f(access, class, object, sub, arg)
        }
        use pg_sys::ObjectAccessType as A;
        // A column comes as a creation, and goes as a drop.
        let changes = match access {
            A::OAT_POST_ALTER => true,
            A::OAT_POST_CREATE | A::OAT_DROP => sub != 0,
            _ => false,
        };
        if changes && class == pg_sys::RelationRelationId {
            callback(|| note(object))
        }
    }
}

/// A relation is being changed. No look at the catalogs here, which are being changed, too.
fn note(oid: Oid) {
    CHANGED.with_borrow_mut(|changed| {
        if changed.last() != Some(&oid) {
            changed.push(oid)
        }
    })
}

/// ALTER TABLE with the strongest lock may build all indexes anew, and makes valid ones of those that rebuilds have left;
/// afterwards they may not be known as such. So they are dropped before it: it is what the statement's lock is good for. So
/// are those of partitions whose indexes are looked through for ones of their parent's.
///
/// # Safety
/// A statement that is about to be run.
pub(super) unsafe fn drop_left_overs(node: *mut pg_sys::Node) {
    // SAFETY: a statement's node is of the type that its tag says.
    unsafe {
        // Where it is refused, as on standbys, that is PostgreSQL's to say.
        let allowed = || !pg_sys::XactReadOnly;
        match (*node).type_ {
            pg_sys::NodeTag::T_AlterTableStmt if allowed() => before_alter(node.cast()),
            pg_sys::NodeTag::T_IndexStmt if allowed() => before_create_index(node.cast()),
            _ => (),
        }
    }
}

unsafe fn before_alter(statement: *mut pg_sys::AlterTableStmt) {
    // SAFETY: the parser's statement has commands, and each kind of command what is read of it.
    unsafe {
        let Some(first) = owned((*statement).relation) else { return };
        let level = pg_sys::AlterTableGetLockLevel((*statement).cmds);
        let commands: Vec<*mut pg_sys::AlterTableCmd> = (0..(*(*statement).cmds).length as usize)
            .map(|i| (*(*(*statement).cmds).elements.add(i)).ptr_value.cast())
            .collect();
        if level == STRONGEST {
            drop_of(first, level, || vec![first], LockMode::AccessExclusive);
        }
        if (*(*statement).relation).inh {
            if let Some(lock) = lock_of_children(first, &commands) {
                drop_of(first, level, || tree(first), lock);
            }
        }
        if (*statement).objtype == pg_sys::ObjectType::OBJECT_TYPE {
            // ALTER TYPE changes the tables of the type, where it is allowed to.
            let goes_on = |command: &*mut pg_sys::AlterTableCmd| {
                (**command).behavior == pg_sys::DropBehavior::DROP_CASCADE
                    && (**command).subtype == pg_sys::AlterTableType::AT_AlterColumnType
            };
            if commands.iter().any(goes_on) {
                let tables =
                    || catalog::tables_of_type_of(first).into_iter().flat_map(tree).collect();
                drop_of(first, level, tables, LockMode::AccessExclusive);
            }
            return;
        }
        for command in commands {
            if (*command).subtype == pg_sys::AlterTableType::AT_AttachPartition {
                let partition = (*command).def as *mut pg_sys::PartitionCmd;
                if let Some(root) = owned((*partition).name) {
                    drop_of(first, level, || tree(root), LockMode::AccessExclusive);
                }
            }
        }
    }
}

/// How ALTER TABLE locks the children of a table, when it may build or look through their indexes. All else leaves these as
/// they are, and most leave the children unlocked: whoever is at work on one of them is not waited for.
unsafe fn lock_of_children(
    table: Oid,
    commands: &[*mut pg_sys::AlterTableCmd],
) -> Option<LockMode> {
    // SAFETY: commands of an ALTER TABLE, each with the definition that its kind has.
    unsafe {
        let is_partitioned = is_partitioned(table);
        let drops = commands.iter().any(|c| (**c).subtype == pg_sys::AlterTableType::AT_DropColumn);
        let has = |column: *mut pg_sys::Node| !drops && has_column_of(table, column.cast());
        let lock_for = |command: &*mut pg_sys::AlterTableCmd| match (**command).subtype {
            // Nothing happens, or an error, before any child is looked at.
            pg_sys::AlterTableType::AT_AddColumn if has((**command).def) => None,
            pg_sys::AlterTableType::AT_AddColumn | pg_sys::AlterTableType::AT_AlterColumnType => {
                Some(LockMode::AccessExclusive)
            }
            pg_sys::AlterTableType::AT_AddConstraint if is_partitioned => {
                let constraint = (**command).def as *mut pg_sys::Constraint;
                match (*constraint).contype {
                    // The columns are made NOT NULL first.
                    pg_sys::ConstrType::CONSTR_PRIMARY
                        if !has_no_nulls(table, (*constraint).keys) =>
                    {
                        Some(LockMode::AccessExclusive)
                    }
                    pg_sys::ConstrType::CONSTR_PRIMARY
                    | pg_sys::ConstrType::CONSTR_UNIQUE
                    | pg_sys::ConstrType::CONSTR_EXCLUSION => Some(LockMode::Share),
                    _ => None,
                }
            }
            _ => None,
        };
        let locks: Vec<Option<LockMode>> = commands.iter().map(lock_for).collect();
        match locks.iter().all(|lock| *lock == Some(LockMode::Share)) {
            true => Some(LockMode::Share),
            // What else the statement does may take the strongest, and locks must not be strengthened.
            false => locks.iter().any(Option::is_some).then_some(LockMode::AccessExclusive),
        }
    }
}

unsafe fn before_create_index(statement: *mut pg_sys::IndexStmt) {
    // SAFETY: the parser's statement, whose relation may be missing.
    unsafe {
        let relation = (*statement).relation;
        // Concurrently it is refused.
        if relation.is_null() || !(*relation).inh || (*statement).concurrent {
            return;
        }
        let Some(root) = owned(relation) else { return };
        if is_partitioned(root) {
            drop_of(root, LockMode::Share as i32, || tree(root), LockMode::Share);
        }
    }
}

const STRONGEST: i32 = pg_sys::AccessExclusiveLock as i32;

fn is_partitioned(table: Oid) -> bool {
    // SAFETY: plain look-up.
    unsafe { pg_sys::get_rel_relkind(table) as u8 == pg_sys::RELKIND_PARTITIONED_TABLE }
}

/// There is a column of this name already.
unsafe fn has_column_of(table: Oid, column: *mut pg_sys::ColumnDef) -> bool {
    // SAFETY: the definition of a column, which has a name.
    unsafe { pg_sys::get_attnum(table, (*column).colname) != 0 }
}

/// The columns of these names are NOT NULL.
unsafe fn has_no_nulls(table: Oid, columns: *mut pg_sys::List) -> bool {
    // SAFETY: a list of names; a row of the catalog is looked at before it is released.
    unsafe {
        let count = if columns.is_null() { 0 } else { (*columns).length as usize };
        (0..count).all(|i| {
            let name = (*(*columns).elements.add(i)).ptr_value as *mut pg_sys::String;
            let tuple = pg_sys::SearchSysCacheAttName(table, (*name).sval);
            if tuple.is_null() {
                return false;
            }
            let form = pg_sys::GETSTRUCT(tuple) as *const pg_sys::FormData_pg_attribute;
            let not_null = (*form).attnotnull;
            pg_sys::ReleaseSysCache(tuple);
            not_null
        })
    }
}

/// The relation of that name, if it is there and the current role's.
unsafe fn owned(name: *mut pg_sys::RangeVar) -> Option<Oid> {
    // SAFETY: a name of the parser's.
    unsafe {
        let none = std::ptr::null_mut();
        let missing_ok = pg_sys::RVROption::RVR_MISSING_OK;
        let oid = pg_sys::RangeVarGetRelidExtended(name, 0, missing_ok, None, none);
        (oid != pg_sys::InvalidOid && catalog::is_owner(oid)).then_some(oid)
    }
}

fn tree(root: Oid) -> Vec<Oid> {
    catalog::inheritance_tree(root, LockMode::None)
}

/// Drop what is left of `tables`, for a statement that locks `first` by `level`, then these by `lock`. That is done here, as
/// a rebuild might begin, and leave something, before the statement does it. A stronger lock is taken where something is left only.
unsafe fn drop_of(first: Oid, level: i32, tables: impl Fn() -> Vec<Oid>, lock: LockMode) {
    // SAFETY: plain locks on relations by their OIDs, which may be gone.
    unsafe {
        let Some(ours) = catalog::access_method() else { return };
        let is_ours = |oid: &Oid| catalog::access_method_of(*oid) == Some(ours);
        if !tables().iter().any(is_ours) {
            return;
        }
        pg_sys::LockRelationOid(first, level);
        // Who looks for indexes only, under SHARE, passes over those that are out of use.
        let matters = |index: &Oid| lock != LockMode::Share || catalog::is_live_index(*index);
        let is_left = |oid: Oid| is_ours(&oid) && rebuild::left_overs(oid).iter().any(matters);
        for oid in tables() {
            pg_sys::LockRelationOid(oid, lock as i32);
            // Asked under the lock only: what is there before may be what a rebuild is at work on, which gives way to us.
            if !is_left(oid) {
                continue;
            }
            if lock as i32 != STRONGEST {
                // Not on top of the weaker one: two who hold that would wait for each other.
                pg_sys::UnlockRelationOid(oid, lock as i32);
                pg_sys::LockRelationOid(oid, STRONGEST);
            }
            rebuild::left_overs(oid).into_iter().for_each(catalog::drop_index);
            crate::pg::xact::next_command();
        }
    }
}

/// A statement is over: give the tables that it has changed what they lack.
pub(super) fn statement_is_over() {
    let mut changed = CHANGED.take();
    // SAFETY: plain calls. After ROLLBACK or an error nothing may be looked up, nor has anything changed. pg_upgrade makes the relations that
    // there were, and no others.
    if changed.is_empty() || unsafe { !pg_sys::IsTransactionState() || pg_sys::IsBinaryUpgrade } {
        return;
    }
    changed.sort_unstable_by_key(|oid| oid.to_u32());
    changed.dedup();
    for oid in changed {
        // SAFETY: plain calls. A lock that is held to the end of the transaction keeps the table there.
        let table = unsafe {
            let exclusive = pg_sys::AccessExclusiveLock as i32;
            let locked = crate::pg::lock::holds(oid, exclusive);
            let table = locked.then(|| pg_sys::try_relation_open(oid, exclusive));
            table.filter(|t| !t.is_null())
        };
        let Some(table) = table else { continue };
        let lacks = lacks_toast(Rel::of(table));
        // SAFETY: opened above; the lock is kept.
        unsafe { pg_sys::relation_close(table, pg_sys::NoLock as i32) }
        if lacks {
            create_toast(oid);
        }
    }
}
