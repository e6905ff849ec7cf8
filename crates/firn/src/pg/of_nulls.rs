//! What the executor does when it computes an index's expression of a row whose columns are all NULL (execExprInterp.c): which functions
//! it calls. Strict ones are not called for NULLs, and most kinds of nodes call nothing at all.

use super::{attempt, Oid, Rel};
use pgrx::pg_sys;

/// What an expression comes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Comes {
    /// To NULL, and nothing has been called.
    Null,
    /// Perhaps to a value; what has been called cannot raise.
    Value,
    /// To a value, if no function of PostgreSQL's own raises.
    Called,
    /// Somebody's function is called, a domain is asked, or nothing is known.
    Unknown,
}

/// Computing the expressions of `index` of a row of NULLs raises, or runs what is not PostgreSQL's own.
///
/// # Safety
/// An open index of `table`.
pub(super) unsafe fn is_hindered(table: Rel, index: pg_sys::Relation) -> bool {
    // SAFETY: the index is open, as the caller promises; PostgreSQL gives a copy of its expressions.
    unsafe {
        let list = pg_sys::RelationGetIndexExpressions(index);
        match worst(list, Comes::Unknown) {
            Comes::Null | Comes::Value => false,
            Comes::Called => raises(table, index),
            Comes::Unknown => true,
        }
    }
}

/// PostgreSQL's own functions that an index may call give the same result each time, so it is tried.
unsafe fn raises(table: Rel, index: pg_sys::Relation) -> bool {
    // SAFETY: an executor's state of our own, freed at the end or by the subtransaction's memory when it fails.
    unsafe {
        let form = || {
            let state = pg_sys::CreateExecutorState();
            let context = pg_sys::MakePerTupleExprContext(state);
            let slot =
                pg_sys::MakeSingleTupleTableSlot(table.tupdesc(), &raw const pg_sys::TTSOpsVirtual);
            pg_sys::ExecStoreAllNullTuple(slot);
            (*context).ecxt_scantuple = slot;
            let info = pg_sys::BuildIndexInfo(index);
            let mut values = [pg_sys::Datum::from(0usize); pg_sys::INDEX_MAX_KEYS as usize];
            let mut nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
            pg_sys::FormIndexDatum(info, slot, state, values.as_mut_ptr(), nulls.as_mut_ptr());
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            pg_sys::FreeExecutorState(state);
        };
        match attempt::subtransaction(form) {
            Ok(()) => false,
            Err(panic) if attempt::is_cancel(panic.as_ref()) => std::panic::resume_unwind(panic),
            Err(_) => true,
        }
    }
}

unsafe fn nodes(list: *mut pg_sys::List) -> Vec<*mut pg_sys::Node> {
    // SAFETY: a list of pointers to nodes.
    unsafe {
        let count = if list.is_null() { 0 } else { (*list).length };
        (0..count).map(|i| (*(*list).elements.add(i as usize)).ptr_value.cast()).collect()
    }
}

unsafe fn each(list: *mut pg_sys::List, case: Comes) -> Vec<Comes> {
    // SAFETY: a list of expressions of an index.
    unsafe { nodes(list).into_iter().map(|node| comes(node, case)).collect() }
}

fn worst_of(all: &[Comes]) -> Comes {
    all.iter().copied().max().unwrap_or(Comes::Null)
}

unsafe fn worst(list: *mut pg_sys::List, case: Comes) -> Comes {
    // SAFETY: a list of expressions of an index.
    unsafe { worst_of(&each(list, case)) }
}

fn is_own(oid: Oid) -> bool {
    oid != pg_sys::InvalidOid && oid.to_u32() < pg_sys::FirstNormalObjectId
}

/// As a value, NULL or not: the node itself calls nothing, and gives one of its arguments, or makes something of them.
fn value(of: Comes) -> Comes {
    worse(of, Comes::Value)
}

/// The worse of both. Not inlined, as rustc 1.95 (LLVM) makes a loop of `a.max(recursion)` at a function's end and then takes the range of
/// that maximum for that of all the function returns: `comes` would never be NULL, and whoever asks for that was compiled away.
#[inline(never)]
fn worse(a: Comes, b: Comes) -> Comes {
    a.max(b)
}

/// `function` is called with these arguments, unless it is strict and one is NULL.
unsafe fn call(function: Oid, args: *mut pg_sys::List, case: Comes) -> Comes {
    // SAFETY: the OID of a function that an index calls, and its arguments.
    unsafe {
        let each = each(args, case);
        match worst_of(&each) {
            Comes::Unknown => Comes::Unknown,
            of if !(each.contains(&Comes::Null) && pg_sys::func_strict(function)) => {
                called(function, args, of)
            }
            // All arguments are computed before.
            Comes::Called => Comes::Called,
            _ => Comes::Null,
        }
    }
}

/// `function` is called with these arguments, which come to `of`.
unsafe fn called(function: Oid, args: *mut pg_sys::List, of: Comes) -> Comes {
    // SAFETY: the OID of a function that an index calls, and its arguments.
    unsafe {
        let types_are_own = nodes(args).into_iter().all(|node| is_own(pg_sys::exprType(node)));
        match is_own(function) && types_are_own {
            true if pg_sys::get_func_leakproof(function) => value(of),
            true => of.max(Comes::Called),
            false => Comes::Unknown,
        }
    }
}

/// What `node` comes to; `case` is what CASE compares with.
unsafe fn comes(node: *mut pg_sys::Node, case: Comes) -> Comes {
    // SAFETY: an expression of an index, or null; a node is of the type that its tag says.
    unsafe {
        use pg_sys::NodeTag as T;
        if node.is_null() {
            return Comes::Null;
        }
        pg_sys::check_stack_depth();
        match (*node).type_ {
            // As a whole, a row of NULLs is a value.
            T::T_Var if (*(node as *mut pg_sys::Var)).varattno > 0 => Comes::Null,
            T::T_Const if (*(node as *mut pg_sys::Const)).constisnull => Comes::Null,
            T::T_Const => Comes::Value,
            T::T_CaseTestExpr => case,
            T::T_List => worst(node.cast(), case),
            T::T_RelabelType => comes((*(node as *mut pg_sys::RelabelType)).arg.cast(), case),
            T::T_CollateExpr => comes((*(node as *mut pg_sys::CollateExpr)).arg.cast(), case),
            T::T_FuncExpr => {
                let call_ = &*(node as *mut pg_sys::FuncExpr);
                call(call_.funcid, call_.args, case)
            }
            T::T_OpExpr => {
                let operator = &*(node as *mut pg_sys::OpExpr);
                call(pg_sys::get_opcode(operator.opno), operator.args, case)
            }
            // Its function is asked about two values only.
            T::T_NullIfExpr | T::T_DistinctExpr => {
                let operator = &*(node as *mut pg_sys::OpExpr);
                let each = each(operator.args, case);
                match worst_of(&each) {
                    of if each.contains(&Comes::Null) => value(of),
                    of => called(pg_sys::get_opcode(operator.opno), operator.args, of),
                }
            }
            T::T_ScalarArrayOpExpr => {
                let operator = &*(node as *mut pg_sys::ScalarArrayOpExpr);
                call(pg_sys::get_opcode(operator.opno), operator.args, case)
            }
            T::T_BoolExpr => worst((*(node as *mut pg_sys::BoolExpr)).args, case),
            T::T_CoalesceExpr => worst((*(node as *mut pg_sys::CoalesceExpr)).args, case),
            T::T_NullTest => value(comes((*(node as *mut pg_sys::NullTest)).arg.cast(), case)),
            T::T_BooleanTest => {
                value(comes((*(node as *mut pg_sys::BooleanTest)).arg.cast(), case))
            }
            T::T_ArrayExpr => value(worst((*(node as *mut pg_sys::ArrayExpr)).elements, case)),
            T::T_MinMaxExpr => {
                let each = each((*(node as *mut pg_sys::MinMaxExpr)).args, case);
                let values = each.iter().filter(|of| **of != Comes::Null).count();
                match worst_of(&each) {
                    of if values < 2 => of,
                    of if is_own(pg_sys::exprType(node)) => of.max(Comes::Called),
                    _ => Comes::Unknown,
                }
            }
            T::T_CaseExpr => of_case(&*(node as *mut pg_sys::CaseExpr), case),
            T::T_CoerceViaIO => {
                let (mut input, mut output, mut none) =
                    (pg_sys::InvalidOid, pg_sys::InvalidOid, false);
                let mut parameter = pg_sys::InvalidOid;
                let arg = (*(node as *mut pg_sys::CoerceViaIO)).arg.cast();
                pg_sys::getTypeInputInfo(pg_sys::exprType(node), &mut input, &mut parameter);
                pg_sys::getTypeOutputInfo(pg_sys::exprType(arg), &mut output, &mut none);
                match comes(arg, case) {
                    Comes::Null if pg_sys::func_strict(input) => Comes::Null,
                    Comes::Unknown => Comes::Unknown,
                    _ if is_own(input) && is_own(output) => Comes::Called,
                    _ => Comes::Unknown,
                }
            }
            T::T_ArrayCoerceExpr => {
                let cast = &*(node as *mut pg_sys::ArrayCoerceExpr);
                match comes(cast.arg.cast(), case) {
                    Comes::Null => Comes::Null,
                    of => worse(of, comes(cast.elemexpr.cast(), Comes::Value)),
                }
            }
            T::T_SubscriptingRef => {
                let part = &*(node as *mut pg_sys::SubscriptingRef);
                let mut element = pg_sys::InvalidOid;
                let handler = pg_sys::get_typsubscript(part.refcontainertype, &mut element);
                let subscripts =
                    worst(part.refupperindexpr, case).max(worst(part.reflowerindexpr, case));
                match comes(part.refexpr.cast(), case) {
                    _ if !is_own(handler) || !part.refassgnexpr.is_null() => Comes::Unknown,
                    Comes::Null if subscripts <= Comes::Value => Comes::Null,
                    of => worse(of.max(subscripts), Comes::Called),
                }
            }
            _ => Comes::Unknown,
        }
    }
}

/// What no row of NULLs comes to is not computed.
unsafe fn of_case(node: &pg_sys::CaseExpr, outer: Comes) -> Comes {
    // SAFETY: the branches of CASE are CaseWhen.
    unsafe {
        let compared = (!node.arg.is_null()).then(|| comes(node.arg.cast(), outer));
        let mut conditions = vec![compared.unwrap_or(Comes::Null)];
        let mut results = vec![comes(node.defresult.cast(), outer)];
        for when in nodes(node.args) {
            let when = &*(when as *mut pg_sys::CaseWhen);
            let condition = comes(when.expr.cast(), compared.unwrap_or(outer));
            if condition == Comes::Null {
                continue;
            }
            conditions.push(condition);
            results.push(comes(when.result.cast(), outer));
        }
        match (worst_of(&conditions), worst_of(&results)) {
            // Whichever it is.
            (Comes::Null | Comes::Value, Comes::Null) => Comes::Null,
            (of, of_results) => worse(of, of_results),
        }
    }
}
