//! Quals that stripes can evaluate by themselves: comparisons of a column with something that is
//! known when the scan starts, joined by AND, OR and NOT.

use super::{list_items, path};
use crate::pg::datum::Operand;
use crate::pg::{compat, Oid};
use crate::plan::{Condition, Formula, Test};
use firn_format::CompareOp;
use pgrx::pg_sys;

/// A condition in the form that a plan carries.
pub(super) struct Known {
    /// 0 = first.
    column: i32,
    test: i32,
    operand: i32,
    /// The right-hand side; a dummy for tests that have none.
    value: *mut pg_sys::Node,
}

/// What a qual states of columns.
pub(super) struct Stated {
    pub formula: Formula<Known>,
    /// It states no more than that.
    pub is_all: bool,
}

const TEST_NE: i32 = 6;
const TEST_ANY: i32 = 50;
const TEST_NONE: i32 = 51;
const TEST_LIKE: i32 = 60;
const TEST_NOT_LIKE: i32 = 61;
const TEST_STARTS: i32 = 62;
const TEST_NOT_STARTS: i32 = 63;
const TEST_DISTINCT: i32 = 70;
const TEST_SAME: i32 = 71;
const TEST_NULL: i32 = 100;
const TEST_NOT_NULL: i32 = 101;
const EQUAL: i32 = pg_sys::BTEqualStrategyNumber as i32;

/// Operators of pg_operator.dat that bindings have no name for: text !~~ text, text ^@ text.
const NOT_LIKE_OP: u32 = 1210;
const STARTS_WITH_OP: u32 = 3877;

/// Where a condition stands.
#[derive(Clone, Copy)]
struct Within {
    relid: pg_sys::Index,
    /// Among others that may make it superfluous: what it compares with is not evaluated for nothing, or cannot fail.
    any: bool,
}

/// What a qual states that a stripe can evaluate.
pub(super) unsafe fn translate(clause: *mut pg_sys::Node, relid: pg_sys::Index) -> Option<Stated> {
    // SAFETY: an expression of the planner's: its tag says of which type it is, and operators have the arguments that they take.
    unsafe { stated(clause, Within { relid, any: false }) }
}

unsafe fn stated(clause: *mut pg_sys::Node, within: Within) -> Option<Stated> {
    // SAFETY: an expression of the planner's: its tag says of which type it is.
    unsafe {
        if (*clause).type_ == pg_sys::NodeTag::T_BoolExpr {
            let expr = clause as *mut pg_sys::BoolExpr;
            let parts = list_items::<pg_sys::Node>((*expr).args);
            let count = parts.len();
            let each = |clause: *mut pg_sys::Node| stated(clause, Within { any: true, ..within });
            match (*expr).boolop {
                // Of what is joined by AND, a part will do.
                pg_sys::BoolExprType::AND_EXPR => {
                    let known: Vec<Stated> = parts.into_iter().filter_map(each).collect();
                    let is_all = known.len() == count && known.iter().all(|s| s.is_all);
                    let formula = Formula::All(known.into_iter().map(|s| s.formula).collect());
                    return (!matches!(&formula, Formula::All(list) if list.is_empty()))
                        .then_some(Stated { formula, is_all });
                }
                pg_sys::BoolExprType::OR_EXPR => {
                    let known: Vec<Stated> = parts.into_iter().map(each).collect::<Option<_>>()?;
                    let is_all = known.iter().all(|s| s.is_all);
                    let formula = Formula::Any(known.into_iter().map(|s| s.formula).collect());
                    return Some(Stated { formula, is_all });
                }
                _ => (),
            }
        }
        let formula = match (*clause).type_ {
            pg_sys::NodeTag::T_BooleanTest => boolean_test(clause.cast(), within.relid)?,
            _ => Formula::One(condition(clause, within)?),
        };
        Some(Stated { formula, is_all: true })
    }
}

unsafe fn is_bool(var: *mut pg_sys::Var, value: bool) -> Known {
    // SAFETY: a column of the table; the constant is allocated by PostgreSQL.
    unsafe { known(var, EQUAL, Operand::Bool as i32, pg_sys::makeBoolConst(value, false)) }
}

unsafe fn is_null(var: *mut pg_sys::Var) -> Known {
    // SAFETY: a column of the table; the constant is allocated by PostgreSQL.
    unsafe { known(var, TEST_NULL, 0, pg_sys::makeBoolConst(true, false)) }
}

/// A boolean column IS [NOT] TRUE, FALSE or UNKNOWN.
unsafe fn boolean_test(
    test: *mut pg_sys::BooleanTest,
    relid: pg_sys::Index,
) -> Option<Formula<Known>> {
    // SAFETY: a test of the planner's, whose argument is an expression.
    unsafe {
        use pg_sys::BoolTestType as B;
        let var = plain_var((*test).arg.cast(), relid)?;
        let or_null = |value| {
            Formula::Any(vec![Formula::One(is_bool(var, value)), Formula::One(is_null(var))])
        };
        Some(match (*test).booltesttype {
            B::IS_TRUE => Formula::One(is_bool(var, true)),
            B::IS_FALSE => Formula::One(is_bool(var, false)),
            B::IS_NOT_TRUE => or_null(false),
            B::IS_NOT_FALSE => or_null(true),
            B::IS_UNKNOWN => Formula::One(is_null(var)),
            _ => {
                let no_value = pg_sys::makeBoolConst(true, false);
                Formula::One(known(var, TEST_NOT_NULL, 0, no_value))
            }
        })
    }
}

/// A single condition.
unsafe fn condition(clause: *mut pg_sys::Node, within: Within) -> Option<Known> {
    // SAFETY: an expression of the planner's: its tag says of which type it is, and operators have the arguments that they take.
    unsafe {
        use pg_sys::NodeTag as T;
        let relid = within.relid;
        match (*clause).type_ {
            T::T_NullTest => {
                let test = clause as *mut pg_sys::NullTest;
                let var = plain_var((*test).arg.cast(), relid)?;
                let is_null = (*test).nulltesttype == pg_sys::NullTestType::IS_NULL;
                let code = if is_null { TEST_NULL } else { TEST_NOT_NULL };
                let no_value = pg_sys::makeBoolConst(true, false);
                (!(*test).argisrow).then(|| known(var, code, 0, no_value))
            }
            // A boolean column by itself, or its negation.
            T::T_Var => Some(is_bool(plain_var(clause, relid)?, true)),
            T::T_BoolExpr => {
                // PostgreSQL has put NOT into what has a negation of its own.
                let expr = clause as *mut pg_sys::BoolExpr;
                let [arg] = list_items::<pg_sys::Node>((*expr).args)[..] else { return None };
                if (*expr).boolop != pg_sys::BoolExprType::NOT_EXPR {
                    return None;
                }
                if (*arg).type_ == T::T_Var {
                    return Some(is_bool(plain_var(arg, relid)?, false));
                }
                let known = condition(arg, within)?;
                let test = match known.test {
                    TEST_DISTINCT => TEST_SAME,
                    TEST_STARTS => TEST_NOT_STARTS,
                    TEST_LIKE => TEST_NOT_LIKE,
                    _ => return None,
                };
                Some(Known { test, ..known })
            }
            T::T_OpExpr => {
                let op = clause as *mut pg_sys::OpExpr;
                let [left, right] = list_items::<pg_sys::Node>((*op).args)[..] else { return None };
                if let Some(test) = like((*op).opno) {
                    return text_condition(left, right, (*op).inputcollid, test, within);
                }
                let (var, value, opno) = match plain_var(left, relid) {
                    Some(var) => (var, right, (*op).opno),
                    None => (plain_var(right, relid)?, left, pg_sys::get_commutator((*op).opno)),
                };
                let test = comparison(var, opno, value, within)?;
                compared(var, test, test, value, pg_sys::exprType(value), (*op).inputcollid)
            }
            T::T_DistinctExpr => {
                let op = clause as *mut pg_sys::DistinctExpr;
                let [left, right] = list_items::<pg_sys::Node>((*op).args)[..] else { return None };
                let (var, value) = match plain_var(left, relid) {
                    Some(var) => (var, right),
                    None => (plain_var(right, relid)?, left),
                };
                let test = comparison(var, (*op).opno, value, within)?;
                let kind = pg_sys::exprType(value);
                (test == EQUAL)
                    .then(|| compared(var, TEST_DISTINCT, EQUAL, value, kind, (*op).inputcollid))?
            }
            // A call of the function beside the operator.
            T::T_FuncExpr => {
                let call = clause as *mut pg_sys::FuncExpr;
                let [left, right] = list_items::<pg_sys::Node>((*call).args)[..] else {
                    return None;
                };
                ((*call).funcid.to_u32() == pg_sys::F_STARTS_WITH).then(|| {
                    text_condition(left, right, (*call).inputcollid, TEST_STARTS, within)
                })?
            }
            T::T_ScalarArrayOpExpr => {
                let op = clause as *mut pg_sys::ScalarArrayOpExpr;
                let [left, right] = list_items::<pg_sys::Node>((*op).args)[..] else { return None };
                let var = plain_var(left, relid)?;
                let element = pg_sys::get_element_type(pg_sys::exprType(right));
                let test = match (comparison(var, (*op).opno, right, within)?, (*op).useOr) {
                    (EQUAL, true) => TEST_ANY,
                    (TEST_NE, false) => TEST_NONE,
                    _ => return None,
                };
                compared(var, test, EQUAL, right, element, (*op).inputcollid)
            }
            _ => None,
        }
    }
}

/// A comparison with a value of type `kind`, when the collation allows stripes to make it as `comparison` does.
unsafe fn compared(
    var: *mut pg_sys::Var,
    test: i32,
    comparison: i32,
    value: *mut pg_sys::Node,
    kind: Oid,
    collation: Oid,
) -> Option<Known> {
    // SAFETY: a column of the table and an expression of the planner's.
    unsafe {
        let operand = operand_code(kind)?;
        let fits = operand != Operand::Text as i32 || collation_allows(collation, comparison);
        fits.then(|| known(var, test, operand, value))
    }
}

fn like(opno: Oid) -> Option<i32> {
    match opno.to_u32() {
        pg_sys::OID_TEXT_LIKE_OP => Some(TEST_LIKE),
        NOT_LIKE_OP => Some(TEST_NOT_LIKE),
        STARTS_WITH_OP => Some(TEST_STARTS),
        _ => None,
    }
}

/// Text that is like a pattern, or begins with another text: bytes decide in every collation for which PostgreSQL does
/// not refuse it.
unsafe fn text_condition(
    left: *mut pg_sys::Node,
    value: *mut pg_sys::Node,
    collation: Oid,
    test: i32,
    within: Within,
) -> Option<Known> {
    // SAFETY: expressions of the planner's; the look-ups are in the catalogs.
    unsafe {
        let var = plain_var(left, within.relid)?;
        let fits = matches!((*var).vartype, pg_sys::TEXTOID | pg_sys::VARCHAROID)
            && operand_code(pg_sys::exprType(value)) == Some(Operand::Text as i32)
            && collation_allows(collation, EQUAL)
            && is_known_at_start(value, within);
        fits.then(|| known(var, test, Operand::Text as i32, value))
    }
}

unsafe fn known(var: *mut pg_sys::Var, test: i32, operand: i32, value: *mut pg_sys::Node) -> Known {
    // SAFETY: a column of the table.
    unsafe { Known { column: i32::from((*var).varattno) - 1, test, operand, value } }
}

/// The value can be known at the start of the scan: constants, parameters and stable functions of them.
unsafe fn is_known_at_start(value: *mut pg_sys::Node, within: Within) -> bool {
    // SAFETY: an expression of the planner's, of which these functions only look at the nodes.
    unsafe {
        let mut own = std::ptr::null_mut();
        pg_sys::pull_varattnos(value, within.relid, &mut own);
        own.is_null()
            && !pg_sys::contain_volatile_functions(value)
            && !pg_sys::contain_subplans(value)
            && (!within.any || cannot_fail(value))
    }
}

/// Evaluating it raises no error, whether or not somebody needs it. (A parameter of PL/pgSQL's may: who evaluates it looks, as it is not
/// known here whose it is.)
unsafe fn cannot_fail(value: *mut pg_sys::Node) -> bool {
    // SAFETY: an expression of the planner's: its tag says of which type it is.
    unsafe {
        use pg_sys::NodeTag as T;
        match (*value).type_ {
            T::T_Const | T::T_SQLValueFunction | T::T_Var => true,
            T::T_Param => {
                (*(value as *mut pg_sys::Param)).paramkind == pg_sys::ParamKind::PARAM_EXTERN
            }
            T::T_RelabelType => cannot_fail((*(value as *mut pg_sys::RelabelType)).arg.cast()),
            T::T_FuncExpr => (*(value as *mut pg_sys::FuncExpr)).funcid.to_u32() == pg_sys::F_NOW,
            _ => false,
        }
    }
}

/// The value is a parameter of the statement, as it is or relabelled.
pub(super) unsafe fn is_parameter(value: *mut pg_sys::Node) -> bool {
    // SAFETY: an expression of a plan: its tag says of which type it is.
    unsafe {
        match (*value).type_ {
            pg_sys::NodeTag::T_Param => {
                (*(value as *mut pg_sys::Param)).paramkind == pg_sys::ParamKind::PARAM_EXTERN
            }
            pg_sys::NodeTag::T_RelabelType => {
                is_parameter((*(value as *mut pg_sys::RelabelType)).arg.cast())
            }
            _ => false,
        }
    }
}

/// How a column is compared with a value that can be known at the start of the scan.
unsafe fn comparison(
    var: *mut pg_sys::Var,
    opno: Oid,
    value: *mut pg_sys::Node,
    within: Within,
) -> Option<i32> {
    // SAFETY: an operator of the query and its other side, which are looked at and looked up.
    unsafe { is_known_at_start(value, within).then(|| strategy(var, opno)).flatten() }
}

/// A column is compared by this operator, for equality, with a value of type `kind`: how stripes know that.
pub(super) unsafe fn equality(
    var: *mut pg_sys::Var,
    opno: Oid,
    kind: Oid,
    collation: Oid,
) -> Option<Operand> {
    // SAFETY: a column of the table; the look-ups are in the catalogs.
    unsafe {
        let operand = operand_code(kind)?;
        let fits = strategy(var, opno) == Some(EQUAL)
            && (operand != Operand::Text as i32 || collation_allows(collation, EQUAL));
        OPERANDS.get(operand as usize).copied().filter(|_| fits)
    }
}

/// The B-tree strategy of `column opno value`, or that it is "unequal".
unsafe fn strategy(var: *mut pg_sys::Var, opno: Oid) -> Option<i32> {
    // SAFETY: look-ups in the catalogs, whose lists are PostgreSQL's own.
    unsafe {
        if opno == pg_sys::InvalidOid {
            return None;
        }
        let class = pg_sys::GetDefaultOpClass((*var).vartype, pg_sys::BTREE_AM_OID);
        // Stripes compare as PostgreSQL's own operators do: somebody else's class, or operator in a class, may mean something else.
        let is_own = |oid: Oid| oid.to_u32() < pg_sys::FirstNormalObjectId;
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
unsafe fn collation_allows(collation: Oid, test: i32) -> bool {
    // SAFETY: the OID of a collation that the query compares by.
    unsafe {
        let bytewise = collation == pg_sys::C_COLLATION_OID
            || (collation != pg_sys::InvalidOid && compat::is_bytewise(collation));
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

fn operand_code(oid: Oid) -> Option<i32> {
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

/// The columns (0 = first) that a formula is about.
pub(super) fn columns(formula: &Formula<Known>) -> Vec<i32> {
    match formula {
        Formula::One(known) => vec![known.column],
        Formula::All(parts) | Formula::Any(parts) => parts.iter().flat_map(columns).collect(),
    }
}

const ONE: i32 = 0;
const ALL: i32 = 1;
const ANY: i32 = 2;

/// Write a formula into a plan: integers for what it says, and the right-hand sides in their order.
pub(super) unsafe fn write(formula: &Formula<Known>, scan: *mut pg_sys::CustomScan) {
    // SAFETY: a plan node that is being made; lists and numbers are allocated in its memory.
    unsafe {
        let put = |number: i32| path::put(scan, number);
        match formula {
            Formula::One(known) => {
                [ONE, known.column, known.test, known.operand].into_iter().for_each(put);
                (*scan).custom_exprs = pg_sys::lappend((*scan).custom_exprs, known.value.cast());
            }
            Formula::All(parts) | Formula::Any(parts) => {
                put(if matches!(formula, Formula::All(_)) { ALL } else { ANY });
                put(parts.len() as i32);
                parts.iter().for_each(|part| write(part, scan));
            }
        }
    }
}

/// The formula that was written, with the numbers of its right-hand sides; `value` is the next one's.
pub(super) fn read(
    numbers: &mut impl Iterator<Item = i32>,
    value: &mut usize,
) -> Option<Formula<(Condition, usize)>> {
    Some(match numbers.next()? {
        ONE => {
            let condition = condition_of(numbers.next()?, numbers.next()?, numbers.next()?)?;
            let number = *value;
            *value += 1;
            Formula::One((condition, number))
        }
        join => {
            let count = numbers.next()?;
            let parts = (0..count).map(|_| read(numbers, value)).collect::<Option<_>>()?;
            if join == ALL {
                Formula::All(parts)
            } else {
                Formula::Any(parts)
            }
        }
    })
}

/// The condition of a plan's three integers.
fn condition_of(column: i32, test: i32, operand: i32) -> Option<Condition> {
    let operand = || OPERANDS.get(operand as usize).copied();
    let compare = |op| operand().map(|o| Test::Compare(op, o));
    let test = match test {
        TEST_NULL => Test::IsNull,
        TEST_NOT_NULL => Test::IsNotNull,
        TEST_ANY => Test::AnyOf(operand()?),
        TEST_NONE => Test::NoneOf(operand()?),
        TEST_LIKE => Test::Like,
        TEST_NOT_LIKE => Test::NotLike,
        TEST_STARTS => Test::StartsWith,
        TEST_NOT_STARTS => Test::DoesNotStartWith,
        TEST_DISTINCT => Test::Distinct(operand()?),
        TEST_SAME => Test::Same(operand()?),
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
