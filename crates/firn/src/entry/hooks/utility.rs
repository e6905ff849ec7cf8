//! After a VACUUM command: what it could not tidy up itself is tidied up, directory rows at the end of mostly unused TOAST relations are moved to the front, table
//! by table in transactions of their own, and those relations vacuumed once more, so that their files shrink. Then
//! indexes that moves have left half empty are built anew.

use crate::pg::attempt::transactions;
use crate::pg::ext::{beside_workers, callback, direct};
use crate::pg::memory::alloc;
use crate::pg::{catalog, error, guc, memory, xact, Kind, LockMode, Oid};
use pgrx::pg_sys;
use std::ffi::CStr;

static mut PREVIOUS: pg_sys::ProcessUtility_hook_type = None;

/// Install the hook. Called once at library load.
pub fn install() {
    // SAFETY: main thread, at load.
    unsafe {
        PREVIOUS = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

unsafe extern "C-unwind" fn process_utility(
    statement: *mut pg_sys::PlannedStmt,
    source: *const core::ffi::c_char,
    read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    dest: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: PostgreSQL hands in a statement to run; what is wanted of it afterwards is copied before.
    unsafe {
        let run = || {
            let f = PREVIOUS.unwrap_or(direct::standard_ProcessUtility);
            beside_workers(|| {
                f(statement, source, read_only, context, params, environment, dest, completion)
            })
        };
        let lasting = pg_sys::CurrentMemoryContext;
        callback(|| {
            super::swapped::refuse_statement((*statement).utilityStmt);
            super::alter::drop_left_overs((*statement).utilityStmt);
        });
        // Running it may free it, with the plan that it is of (a procedure that rolls back does): what is
        // wanted of it afterwards is copied now.
        let node = (*statement).utilityStmt;
        let is_clients = context == pg_sys::ProcessUtilityContext::PROCESS_UTILITY_TOPLEVEL;
        if (*node).type_ == pg_sys::NodeTag::T_CreateStmt {
            let around = callback(|| super::like::begin(node.cast()));
            run();
            return callback(|| {
                super::like::end(around);
                super::alter::statement_is_over()
            });
        }
        if (*node).type_ == pg_sys::NodeTag::T_IndexStmt
            && context == pg_sys::ProcessUtilityContext::PROCESS_UTILITY_SUBCOMMAND
            && callback(|| super::like::is_of_left_over(node.cast()))
        {
            return;
        }
        if (*node).type_ != pg_sys::NodeTag::T_VacuumStmt || !is_clients {
            let servers = callback(|| super::servers::begin(node));
            run();
            return callback(|| {
                super::servers::end(servers);
                super::alter::statement_is_over()
            });
        }
        callback(super::servers::before_vacuum);
        let node = callback(|| pg_sys::copyObjectImpl(node.cast()));
        run();
        // VACUUM has left us in a transaction that nothing has been done in before. What the second one needs must
        // outlive it.
        let again = callback(|| shrunk(node.cast(), lasting));
        if !again.is_null() {
            pg_sys::CurrentMemoryContext = lasting;
            let state = direct::make_parsestate(std::ptr::null_mut());
            direct::ExecVacuum(state, again, true);
        }
        // VACUUM has been carried out, so whatever goes wrong here is no error of it.
        callback(|| {
            if let Err(failed) = transactions(|| rebuild_indexes(node.cast())) {
                error(Kind::Skipped, "could not rebuild indexes")
                .detail(failed.text)
                .hint("They are as large as they were. The next VACUUM tries again, if firn.rebuild_indexes is on.")
                .warn()
            }
        });
    }
}

/// A VACUUM of these relations that removes even a few dead rows from indexes: else their pages could
/// not be given back.
unsafe fn vacuum_of(relations: &[Oid]) -> *mut pg_sys::VacuumStmt {
    // SAFETY: a statement is built of zeroed nodes in the current memory, as the parser builds it.
    unsafe {
        let statement = alloc::<pg_sys::VacuumStmt>();
        (*statement).type_ = pg_sys::NodeTag::T_VacuumStmt;
        (*statement).is_vacuumcmd = true;
        let name = pg_sys::pstrdup(c"index_cleanup".as_ptr());
        let on = pg_sys::makeString(pg_sys::pstrdup(c"on".as_ptr()));
        let option = pg_sys::makeDefElem(name, on.cast(), -1);
        (*statement).options = pg_sys::lappend(std::ptr::null_mut(), option.cast());
        for oid in relations {
            let none = std::ptr::null_mut();
            let target = pg_sys::makeVacuumRelation(none, *oid, std::ptr::null_mut());
            (*statement).rels = pg_sys::lappend((*statement).rels, target.cast());
        }
        statement
    }
}

/// Make room at the end of the TOAST relations of tables that a VACUUM (not FULL, nor a mere ANALYZE) has vacuumed;
/// returns what to vacuum then, null when there is nothing. Each table's locks go with its transaction.
unsafe fn shrunk(
    statement: *mut pg_sys::VacuumStmt,
    lasting: pg_sys::MemoryContext,
) -> *mut pg_sys::VacuumStmt {
    // SAFETY: a copy of the statement in memory that lasts; VACUUM has left a transaction with nothing in it, which may be ended.
    unsafe {
        let nothing = std::ptr::null_mut();
        let Some(ours) = catalog::access_method() else { return nothing };
        let tables = vacuumed(statement, ours);
        let mut again = Vec::new();
        for oid in tables {
            xact::check_for_interrupts();
            xact::next();
            if catalog::access_method_of(oid) == Some(ours) && catalog::may_maintain(oid) {
                let tidied = crate::mover::tidy_what_was_left(oid);
                let shrunk = xact::with_snapshot(|| crate::mover::shrink(oid));
                again.extend(tidied.or(shrunk));
            }
            xact::next();
        }
        if again.is_empty() {
            return nothing;
        }
        memory::within(lasting, || vacuum_of(&again))
    }
}

/// Rebuild what is due of the tables that a VACUUM has vacuumed.
unsafe fn rebuild_indexes(statement: *mut pg_sys::VacuumStmt) {
    // SAFETY: a copy of the statement in memory that lasts; its transaction may be ended.
    unsafe {
        if !guc::rebuild_indexes() {
            return;
        }
        let Some(ours) = catalog::access_method() else { return };
        if is_off(statement, c"index_cleanup") {
            return;
        }
        let tables = vacuumed(statement, ours).into_iter().filter_map(|oid| {
            let toast = catalog::access_method_of(oid) == catalog::toast_access_method();
            let table = if toast { catalog::owner_of_toast(oid) } else { Some(oid) };
            let is_firn = |oid: &Oid| catalog::access_method_of(*oid) == Some(ours);
            table.filter(|oid| is_firn(oid) && catalog::may_maintain(*oid))
        });
        crate::mover::rebuild_after_command(tables);
    }
}

/// The tables of our access method, and other relations, that a VACUUM (not FULL, nor a mere ANALYZE) has vacuumed.
unsafe fn vacuumed(statement: *mut pg_sys::VacuumStmt, ours: Oid) -> Vec<Oid> {
    // SAFETY: the list of a VACUUM is of VacuumRelation; the snapshot is popped where it was pushed.
    unsafe {
        let mut tables: Vec<Oid> = Vec::new();
        if !(*statement).is_vacuumcmd || has_option(statement, c"full") {
            return tables;
        }
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let list = (*statement).rels;
        if list.is_null() {
            tables = catalog::tables_of(ours);
        } else {
            for i in 0..(*list).length as usize {
                let target = (*(*list).elements.add(i)).ptr_value as *mut pg_sys::VacuumRelation;
                let oid = pg_sys::RangeVarGetRelidExtended(
                    (*target).relation,
                    pg_sys::NoLock as i32,
                    pg_sys::RVROption::RVR_MISSING_OK,
                    None,
                    std::ptr::null_mut(),
                );
                if oid != pg_sys::InvalidOid {
                    tables.extend(catalog::inheritance_tree(oid, LockMode::None));
                }
            }
        }
        pg_sys::PopActiveSnapshot();
        tables
    }
}

/// The option has been given a value that means no. INDEX_CLEANUP may come without one.
unsafe fn is_off(statement: *mut pg_sys::VacuumStmt, name: &CStr) -> bool {
    // SAFETY: the statement's options are DefElem, of which one that has a value can be read as a text.
    unsafe {
        option(statement, name).filter(|option| !(**option).arg.is_null()).is_some_and(|option| {
            let value = CStr::from_ptr(pg_sys::defGetString(option)).to_bytes();
            let is = |word: &str| value.eq_ignore_ascii_case(word.as_bytes());
            is("off") || is("false") || is("no") || is("0")
        })
    }
}

pub(super) unsafe fn has_option(statement: *mut pg_sys::VacuumStmt, name: &CStr) -> bool {
    // SAFETY: the statement's options are DefElem.
    unsafe { option(statement, name).is_some_and(|option| pg_sys::defGetBoolean(option)) }
}

unsafe fn option(statement: *mut pg_sys::VacuumStmt, name: &CStr) -> Option<*mut pg_sys::DefElem> {
    // SAFETY: the list of options is of DefElem, whose names are C strings.
    unsafe {
        let options = (*statement).options;
        let length = if options.is_null() { 0 } else { (*options).length as usize };
        // The last one counts.
        (0..length)
            .rev()
            .map(|i| (*(*options).elements.add(i)).ptr_value as *mut pg_sys::DefElem)
            .find(|option| CStr::from_ptr((**option).defname) == name)
    }
}
