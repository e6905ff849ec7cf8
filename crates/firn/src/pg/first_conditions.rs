//! Conditions of an index or bitmap scan that are asked of a row of a stripe before all of its columns are read. Each column
//! of a row is in a page of its own, so what a condition refuses is refused for the price of its columns.
//!
//! They are the first ones of the node's own list, in its order, as far as it makes no difference that the node asks them
//! again of the rows that pass: functions that come with PostgreSQL, none of them volatile. PostgreSQL's executor evaluates them;
//! what they raise is raised as the node would have. When nearly all rows pass they are not asked any more.

use super::ext::{callback, guarded};
use super::memory::within;
use super::nodes::{columns_of, list_items};
use super::slot::Slot;
use super::wanted::Needed;
use super::Oid;
use pgrx::pg_sys;
use std::cell::Cell;

/// The conditions of a node that can be asked before its row is whole.
pub struct FirstConditions {
    node: *mut pg_sys::ScanState,
    context: *mut pg_sys::ExprContext,
    conditions: Vec<*mut pg_sys::ExprState>,
    /// For each of them the columns that none of those before has read.
    pub stages: Vec<Vec<usize>>,
    /// Rows that were asked, and those that were refused.
    asked: Cell<u32>,
    refused: Cell<u32>,
}

/// After so many rows it is known what conditions refuse; one row of so many, at least, is to be.
const KNOWN_AFTER: u32 = 64;
const ONE_OF: u32 = 8;

impl FirstConditions {
    /// Those of a scan; None where all columns would be read for them, or where nobody but the node can tell.
    ///
    /// # Safety
    /// A node of a started query.
    pub(super) unsafe fn of(
        node: *mut pg_sys::ScanState,
        needed: &Needed,
    ) -> Option<FirstConditions> {
        // SAFETY: the node has its plan and its query's state, in whose memory is made what lives as long as the node.
        unsafe {
            let (plan, estate) = ((*node).ps.plan, (*node).ps.state);
            if !needed.plain || (*plan).qual.is_null() {
                return None;
            }
            let relid = (*(plan as *mut pg_sys::Scan)).scanrelid;
            let mut unread = needed.columns.clone();
            let mut clauses = Vec::new();
            for clause in list_items::<pg_sys::Node>((*plan).qual) {
                let numbers = columns_of(&[clause], std::ptr::null_mut(), relid);
                let others = pg_sys::contain_volatile_functions(clause)
                    || pg_sys::contain_subplans(clause)
                    || may_show(clause, estate);
                if others || numbers.iter().any(|n| *n <= 0) {
                    break;
                }
                let columns: Vec<usize> = numbers.iter().map(|n| *n as usize - 1).collect();
                let columns: Vec<usize> =
                    columns.into_iter().filter(|i| std::mem::take(&mut unread[*i])).collect();
                if !unread.contains(&true) {
                    break;
                }
                clauses.push((clause, columns));
            }
            if clauses.is_empty() {
                return None;
            }
            // Without a parent nothing is compiled for it by the JIT.
            let context = pg_sys::CreateExprContext(estate);
            let (conditions, stages) = within((*estate).es_query_cxt, || {
                let compiled = |(clause, columns): (*mut pg_sys::Node, Vec<usize>)| {
                    let list = pg_sys::lappend(std::ptr::null_mut(), clause.cast());
                    (pg_sys::ExecInitQual(list, std::ptr::null_mut()), columns)
                };
                clauses.into_iter().map(compiled).unzip()
            });
            let (asked, refused) = Default::default();
            Some(FirstConditions { node, context, conditions, stages, asked, refused })
        }
    }

    /// Is it worth while to ask them of one more row?
    pub fn pay(&self) -> bool {
        let (asked, refused) = (self.asked.get(), self.refused.get());
        if asked >= KNOWN_AFTER && refused < asked / ONE_OF {
            return false;
        }
        self.asked.set(asked.saturating_add(1));
        true
    }

    /// Does the row in the slot fulfil condition `number`? Of its columns those of the conditions up to this one are there.
    /// If not, the node counts it among the rows that its filter removes.
    pub fn pass(&self, number: usize, row: Slot) -> bool {
        // SAFETY: the node is alive, as its slot is; what an evaluation leaves in its memory nobody looks at afterwards.
        unsafe {
            let (state, context) = (self.conditions[number], self.context);
            (*context).ecxt_scantuple = row.0;
            let memory = (*context).ecxt_per_tuple_memory;
            let passes = guarded(move || {
                let was = pg_sys::CurrentMemoryContext;
                pg_sys::CurrentMemoryContext = memory;
                let mut null = false;
                let value = (*state).evalfunc.map(|f| f(state, context, &mut null));
                pg_sys::CurrentMemoryContext = was;
                !null && value.is_some_and(|value| value.value() != 0)
            });
            if !(*memory).isReset {
                pg_sys::MemoryContextReset(memory);
            }
            if !passes {
                self.refused.set(self.refused.get().saturating_add(1));
                let instrument = (*self.node).ps.instrument;
                if !instrument.is_null() {
                    (*instrument).nfiltered1 += 1.0;
                }
            }
            passes
        }
    }
}

/// Evaluating the expression may show, be it by running the plan of a parameter that has no value yet, or a function that somebody
/// has written.
unsafe fn may_show(node: *mut pg_sys::Node, estate: *mut pg_sys::EState) -> bool {
    // SAFETY: an expression of the query whose state it is, with a place for each of its parameters.
    unsafe {
        if node.is_null() {
            return false;
        }
        match (*node).type_ {
            pg_sys::NodeTag::T_Param => {
                let param = node as *mut pg_sys::Param;
                let value = (*estate).es_param_exec_vals.wrapping_add((*param).paramid as usize);
                let is_exec = (*param).paramkind == pg_sys::ParamKind::PARAM_EXEC;
                is_of_users(node) || is_exec && !(*value).execPlan.is_null()
            }
            // Its constraints are expressions of their own.
            pg_sys::NodeTag::T_CoerceToDomain => true,
            _ => {
                is_of_users(node)
                    || pg_sys::check_functions_in_node(node, Some(is_foreign), std::ptr::null_mut())
                    || pg_sys::expression_tree_walker(node, Some(below_may_show), estate.cast())
            }
        }
    }
}

/// The value is of a type that somebody has made, or may be of one: comparing arrays, rows and ranges calls the functions of what they
/// are made of.
unsafe fn is_of_users(node: *mut pg_sys::Node) -> bool {
    // SAFETY: an expression, of which exprType() knows these.
    unsafe {
        use pg_sys::NodeTag as T;
        let is_value = matches!(
            (*node).type_,
            T::T_Var
                | T::T_Const
                | T::T_Param
                | T::T_FuncExpr
                | T::T_OpExpr
                | T::T_RowExpr
                | T::T_ArrayExpr
                | T::T_CoerceViaIO
                | T::T_ArrayCoerceExpr
                | T::T_FieldSelect
                | T::T_SubscriptingRef
        );
        if !is_value {
            return false;
        }
        let kind = pg_sys::exprType(node);
        kind == pg_sys::RECORDOID
            || kind == pg_sys::RECORDARRAYOID
            || kind.to_u32() >= pg_sys::FirstNormalObjectId && !pg_sys::type_is_enum(kind)
    }
}

unsafe extern "C-unwind" fn below_may_show(
    node: *mut pg_sys::Node,
    estate: *mut core::ffi::c_void,
) -> bool {
    // SAFETY: what `may_show` has given to PostgreSQL's walk.
    unsafe { callback(|| may_show(node, estate.cast())) }
}

/// The function does not come with PostgreSQL.
unsafe extern "C-unwind" fn is_foreign(function: Oid, _context: *mut core::ffi::c_void) -> bool {
    function.to_u32() >= pg_sys::FirstNormalObjectId
}
