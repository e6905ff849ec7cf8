//! Quals that stripes can evaluate by themselves: comparisons of a column with something that is
//! known when the scan starts.

use super::list_items;
use crate::pg::ext;
use crate::plan::{Condition, Operand, Test};
use firn_format::CompareOp;
use pgrx::pg_sys;

/// A condition in the form that a plan carries.
pub(super) struct Known {
    /// 0 = first.
    pub column: i32,
    pub test: i32,
    pub operand: i32,
    /// The right-hand side; a dummy for tests that have none.
    pub value: *mut pg_sys::Node,
}

const TEST_NE: i32 = 6;
const TEST_ANY: i32 = 50;
const TEST_NULL: i32 = 100;
const TEST_NOT_NULL: i32 = 101;
const EQUAL: i32 = pg_sys::BTEqualStrategyNumber as i32;

/// The condition that a qual states, if it is one of those.
pub(super) unsafe fn translate(clause: *mut pg_sys::Node, relid: pg_sys::Index) -> Option<Known> {
    // SAFETY: an expression of the planner's: its tag says of which type it is, and operators have the arguments that they take.
    unsafe {
        use pg_sys::NodeTag as T;
        let no_value = || pg_sys::makeBoolConst(true, false);
        match (*clause).type_ {
            T::T_NullTest => {
                let test = clause as *mut pg_sys::NullTest;
                let var = plain_var((*test).arg.cast(), relid)?;
                let is_null = (*test).nulltesttype == pg_sys::NullTestType::IS_NULL;
                let code = if is_null { TEST_NULL } else { TEST_NOT_NULL };
                (!(*test).argisrow).then(|| known(var, code, 0, no_value()))
            }
            // A boolean column by itself, or its negation.
            T::T_Var => {
                let var = plain_var(clause, relid)?;
                let value = pg_sys::makeBoolConst(true, false);
                Some(known(var, EQUAL, Operand::Bool as i32, value))
            }
            T::T_BoolExpr => {
                let expr = clause as *mut pg_sys::BoolExpr;
                if (*expr).boolop != pg_sys::BoolExprType::NOT_EXPR {
                    return None;
                }
                let [arg] = list_items::<pg_sys::Node>((*expr).args)[..] else { return None };
                let var = plain_var(arg, relid)?;
                let value = pg_sys::makeBoolConst(false, false);
                Some(known(var, EQUAL, Operand::Bool as i32, value))
            }
            T::T_OpExpr => {
                let op = clause as *mut pg_sys::OpExpr;
                let [left, right] = list_items::<pg_sys::Node>((*op).args)[..] else { return None };
                let (var, value, opno) = match plain_var(left, relid) {
                    Some(var) => (var, right, (*op).opno),
                    None => (plain_var(right, relid)?, left, pg_sys::get_commutator((*op).opno)),
                };
                let operand = operand_code(pg_sys::exprType(value))?;
                let test = comparison(var, opno, value)?;
                (operand != Operand::Text as i32 || collation_allows((*op).inputcollid, test))
                    .then(|| known(var, test, operand, value))
            }
            T::T_ScalarArrayOpExpr => {
                let op = clause as *mut pg_sys::ScalarArrayOpExpr;
                let [left, right] = list_items::<pg_sys::Node>((*op).args)[..] else { return None };
                let var = plain_var(left, relid)?;
                let operand = operand_code(pg_sys::get_element_type(pg_sys::exprType(right)))?;
                let test = comparison(var, (*op).opno, right)?;
                let fits = (*op).useOr
                    && test == EQUAL
                    && (operand != Operand::Text as i32
                        || collation_allows((*op).inputcollid, test));
                fits.then(|| known(var, TEST_ANY, operand, right))
            }
            _ => None,
        }
    }
}

unsafe fn known(var: *mut pg_sys::Var, test: i32, operand: i32, value: *mut pg_sys::Node) -> Known {
    // SAFETY: a column of the table.
    unsafe { Known { column: i32::from((*var).varattno) - 1, test, operand, value } }
}

/// The B-tree strategy of `column opno value`, or that it is "unequal", when the value can be known
/// at the start of the scan: constants, parameters and stable functions of them.
unsafe fn comparison(
    var: *mut pg_sys::Var,
    opno: pg_sys::Oid,
    value: *mut pg_sys::Node,
) -> Option<i32> {
    // SAFETY: an operator of the query and its other side, which are looked at and looked up.
    unsafe {
        if opno == pg_sys::InvalidOid
            || pg_sys::contain_var_clause(value)
            || pg_sys::contain_volatile_functions(value)
            || pg_sys::contain_subplans(value)
        {
            return None;
        }
        let class = pg_sys::GetDefaultOpClass((*var).vartype, pg_sys::BTREE_AM_OID);
        // Stripes compare as PostgreSQL's own operators do: somebody else's class, or operator in a class, may mean something else.
        let is_own = |oid: pg_sys::Oid| oid.to_u32() < pg_sys::FirstNormalObjectId;
        if class == pg_sys::InvalidOid || !is_own(class) || !is_own(opno) {
            return None;
        }
        let family = pg_sys::get_opclass_family(class);
        let strategy = pg_sys::get_op_opfamily_strategy(opno, family);
        if (1..=5).contains(&strategy) {
            return Some(strategy);
        }
        let negator = pg_sys::get_negator(opno);
        (negator != pg_sys::InvalidOid
            && pg_sys::get_op_opfamily_strategy(negator, family) == EQUAL)
            .then_some(TEST_NE)
    }
}

/// Text is compared by its bytes: right for every comparison in collation C, for equality in every
/// deterministic one.
unsafe fn collation_allows(collation: pg_sys::Oid, test: i32) -> bool {
    // SAFETY: the OID of a collation that the query compares by.
    unsafe {
        let bytewise = collation == pg_sys::C_COLLATION_OID
            || (collation != pg_sys::InvalidOid && ext::lc_collate_is_c(collation));
        let equality = (test == EQUAL || test == TEST_NE)
            && collation != pg_sys::InvalidOid
            && pg_sys::get_collation_isdeterministic(collation);
        bytewise || equality
    }
}

unsafe fn plain_var(node: *mut pg_sys::Node, relid: pg_sys::Index) -> Option<*mut pg_sys::Var> {
    // SAFETY: an expression of the planner's, of the type that its tag says.
    unsafe {
        let node = match (*node).type_ {
            pg_sys::NodeTag::T_RelabelType => (*(node as *mut pg_sys::RelabelType)).arg.cast(),
            _ => node,
        };
        if (*node).type_ != pg_sys::NodeTag::T_Var {
            return None;
        }
        let var = node as *mut pg_sys::Var;
        let fits = (*var).varno as u32 == relid && (*var).varattno > 0 && (*var).varlevelsup == 0;
        fits.then_some(var)
    }
}

const OPERANDS: [Operand; 14] = [
    Operand::Bool,
    Operand::Int2,
    Operand::Int4,
    Operand::Int8,
    Operand::Oid,
    Operand::Float4,
    Operand::Float8,
    Operand::Date,
    Operand::Timestamp,
    Operand::TimestampTz,
    Operand::Time,
    Operand::Numeric,
    Operand::Text,
    Operand::Uuid,
];

fn operand_code(oid: pg_sys::Oid) -> Option<i32> {
    let operand = match oid {
        pg_sys::BOOLOID => Operand::Bool,
        pg_sys::INT2OID => Operand::Int2,
        pg_sys::INT4OID => Operand::Int4,
        pg_sys::INT8OID => Operand::Int8,
        pg_sys::OIDOID => Operand::Oid,
        pg_sys::FLOAT4OID => Operand::Float4,
        pg_sys::FLOAT8OID => Operand::Float8,
        pg_sys::DATEOID => Operand::Date,
        pg_sys::TIMESTAMPOID => Operand::Timestamp,
        pg_sys::TIMESTAMPTZOID => Operand::TimestampTz,
        pg_sys::TIMEOID => Operand::Time,
        pg_sys::NUMERICOID => Operand::Numeric,
        pg_sys::TEXTOID | pg_sys::VARCHAROID => Operand::Text,
        pg_sys::UUIDOID => Operand::Uuid,
        _ => return None,
    };
    Some(operand as i32)
}

/// The condition of a plan's three integers.
pub(super) fn condition_of(column: i32, test: i32, operand: i32) -> Option<Condition> {
    let operand = || OPERANDS.get(operand as usize).copied();
    let compare = |op| operand().map(|o| Test::Compare(op, o));
    let test = match test {
        TEST_NULL => Test::IsNull,
        TEST_NOT_NULL => Test::IsNotNull,
        TEST_ANY => Test::AnyOf(operand()?),
        1 => compare(CompareOp::Lt)?,
        2 => compare(CompareOp::Le)?,
        EQUAL => compare(CompareOp::Eq)?,
        4 => compare(CompareOp::Ge)?,
        5 => compare(CompareOp::Gt)?,
        TEST_NE => compare(CompareOp::Ne)?,
        _ => return None,
    };
    Some(Condition { column: column as usize, test })
}
