//! From the conditions of a query to the filter of a stripe.

use crate::pg::datum::{
    parse_numeric_rescaled, Operand, Right, RightValue, Value, EPOCH_DAYS, EPOCH_MICROS,
};
use firn_format::{ColumnKind, CompareOp, Constant, Filter, Set};
use std::cell::RefCell;
use std::sync::Arc;

const MICROS_PER_DAY: i64 = 86_400_000_000;

/// What is asked of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    Compare(CompareOp, Operand),
    /// Equal to an element of an array.
    AnyOf(Operand),
    /// Unequal to all elements of an array.
    NoneOf(Operand),
    /// IS DISTINCT FROM.
    Distinct(Operand),
    /// IS NOT DISTINCT FROM.
    Same(Operand),
    /// LIKE a pattern in which the backslash escapes.
    Like,
    NotLike,
    StartsWith,
    DoesNotStartWith,
    IsNull,
    IsNotNull,
}

impl Test {
    /// What the column is compared with.
    pub fn right(self) -> Right {
        match self {
            Test::Compare(_, operand) | Test::Distinct(operand) | Test::Same(operand) => {
                Right::One(operand)
            }
            Test::Like | Test::NotLike | Test::StartsWith | Test::DoesNotStartWith => {
                Right::One(Operand::Text)
            }
            Test::AnyOf(operand) | Test::NoneOf(operand) => Right::Array(operand),
            Test::IsNull | Test::IsNotNull => Right::Nothing,
        }
    }
}

/// A condition on a column (0 = first); a comparison's right-hand side is evaluated when the scan
/// starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condition {
    pub column: usize,
    pub test: Test,
}

/// Conditions joined by AND and OR.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Formula<T> {
    One(T),
    All(Vec<Formula<T>>),
    Any(Vec<Formula<T>>),
}

impl<T> Formula<T> {
    /// The same of what `f` makes of each condition.
    pub fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> Formula<U> {
        match self {
            Formula::One(condition) => Formula::One(f(condition)),
            Formula::All(parts) => Formula::All(parts.iter().map(|p| p.map(f)).collect()),
            Formula::Any(parts) => Formula::Any(parts.iter().map(|p| p.map(f)).collect()),
        }
    }

    /// Of some of its conditions one is enough: the others need not be asked.
    pub fn has_choice(&self) -> bool {
        match self {
            Formula::One(_) => false,
            Formula::All(parts) => parts.iter().any(Formula::has_choice),
            Formula::Any(_) => true,
        }
    }
}

/// A qual of the scan, as far as stripes evaluate it.
pub struct Qual {
    pub formula: Formula<Bound>,
    /// PostgreSQL evaluates it, too: the formula may hold for more rows.
    pub is_checked_again: bool,
}

/// A condition whose right-hand side was evaluated, once for all stripes of a scan.
pub struct Bound {
    pub condition: Condition,
    /// The value, or the elements of the array that are not NULL; None for NULL.
    values: Option<Vec<Value>>,
    /// Elements of the array are NULL.
    some_are_null: bool,
    /// The right-hand side was not evaluated: nothing can be said.
    is_unknown: bool,
    /// The array in terms of the kinds of columns met so far; None when it cannot be expressed in one.
    sets: RefCell<Vec<(ColumnKind, Option<Arc<Set>>)>>,
}

/// Kinds of columns remembered per condition: that of the table's column and what it was before.
const KINDS: usize = 4;

impl Bound {
    /// `value` is the right-hand side, as the test has it; None for NULL.
    pub fn new(condition: Condition, value: Option<RightValue>) -> Bound {
        let some_are_null = value.as_ref().is_some_and(|value| value.some_are_null);
        let values = value.map(|value| value.values);
        let is_unknown = false;
        Bound { condition, values, some_are_null, is_unknown, sets: RefCell::default() }
    }

    /// A condition whose right-hand side may raise an error, so that nobody evaluates it who does not need it.
    pub fn unknown(condition: Condition) -> Bound {
        Bound { is_unknown: true, ..Bound::new(condition, None) }
    }

    /// The column equals one of these values of a type.
    pub fn among(column: usize, operand: Operand, values: Vec<Value>) -> Bound {
        let condition = Condition { column, test: Test::AnyOf(operand) };
        Bound::new(condition, Some(RightValue { values, some_are_null: false }))
    }

    /// What it compares with is kept as integers.
    pub fn is_of_integers(&self) -> bool {
        use Operand as O;
        let Test::AnyOf(operand) = self.condition.test else { return false };
        !matches!(operand, O::Float4 | O::Float8 | O::Numeric | O::Text | O::Uuid)
    }

    fn set(&self, kind: ColumnKind) -> Option<Arc<Set>> {
        let mut sets = self.sets.borrow_mut();
        if let Some((_, set)) = sets.iter().find(|(k, _)| *k == kind) {
            return set.clone();
        }
        let values = self.values.iter().flatten().map(|v| constant(v, kind));
        let set = values.collect::<Option<Vec<_>>>().map(|values| Arc::new(Set::new(values)));
        if sets.len() >= KINDS {
            sets.remove(0);
        }
        sets.push((kind, set.clone()));
        set
    }

    /// The filter of this condition on column `column` of a stripe, stored as `kind`; None when it cannot be
    /// expressed.
    fn filter(&self, column: usize, kind: ColumnKind) -> Option<Told> {
        if self.is_unknown {
            return None;
        }
        // A comparison with NULL is true for no row.
        let never = || Some(Told::exactly(Filter::Or(Vec::new())));
        let is_null = Filter::IsNull(column);
        let compare = |op, value: &Value| {
            constant(value, kind).map(|value| Filter::Compare { column, op, value })
        };
        let value = self.values.as_ref().map(|list| list.first());
        let filter = match (self.condition.test, value) {
            (Test::IsNull, _) => is_null,
            (Test::IsNotNull, _) => Filter::IsNotNull(column),
            (Test::Distinct(_), None) => Filter::IsNotNull(column),
            (Test::Same(_), None) => is_null,
            (_, None) => return never(),
            (Test::AnyOf(_), _) => Filter::In { column, values: self.set(kind)? },
            // Whatever is in the column.
            (Test::NoneOf(_), Some(None)) if !self.some_are_null => Filter::True,
            (Test::NoneOf(_), _) if self.some_are_null => return never(),
            (Test::NoneOf(_), _) => Filter::NotIn { column, values: self.set(kind)? },
            (_, Some(None)) => return None,
            (Test::Compare(op, _), Some(Some(value))) => compare(op, value)?,
            (Test::Same(_), Some(Some(value))) => compare(CompareOp::Eq, value)?,
            (Test::Distinct(_), Some(Some(value))) => {
                Filter::Or(vec![compare(CompareOp::Ne, value)?, is_null])
            }
            (test, Some(Some(value))) => return like(test, value, column, kind),
        };
        Some(Told::exactly(filter))
    }
}

/// The condition of a pattern or prefix.
fn like(test: Test, value: &Value, column: usize, kind: ColumnKind) -> Option<Told> {
    let (Value::Text(bytes), ColumnKind::Text) = (value, kind) else { return None };
    let negated = matches!(test, Test::NotLike | Test::DoesNotStartWith);
    let prefix = |prefix| Filter::StartsWith { column, prefix, negated };
    if matches!(test, Test::StartsWith | Test::DoesNotStartWith) {
        return Some(Told::exactly(prefix(bytes.to_vec())));
    }
    let told = match pattern(bytes)? {
        Pattern::Whole(text) => {
            let op = if negated { CompareOp::Ne } else { CompareOp::Eq };
            Told::exactly(Filter::Compare { column, op, value: Constant::Bytes(text) })
        }
        Pattern::Prefix(text) => Told::exactly(prefix(text)),
        Pattern::Begins(text) if negated || text.is_empty() => return None,
        Pattern::Begins(text) => Told { filter: prefix(text), is_exact: false },
    };
    Some(told)
}

/// What a pattern of LIKE asks for.
#[derive(PartialEq, Eq, Debug)]
enum Pattern {
    /// This text.
    Whole(Vec<u8>),
    /// What begins with it.
    Prefix(Vec<u8>),
    /// What begins with it and goes on as is not looked at.
    Begins(Vec<u8>),
}

/// None for a pattern that is an error where a text is compared with its end. The wildcards and the backslash are bytes of no
/// other character in any encoding of a server.
fn pattern(bytes: &[u8]) -> Option<Pattern> {
    let mut text = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'\\' => text.push(*rest.next()?),
            b'%' if rest.as_slice().iter().all(|b| *b == b'%') => {
                return Some(Pattern::Prefix(text))
            }
            b'%' | b'_' => return Some(Pattern::Begins(text)),
            _ => text.push(*byte),
        }
    }
    Some(Pattern::Whole(text))
}

/// A filter, and whether it passes exactly the rows for which the conditions are true, or perhaps more.
pub struct Told {
    pub filter: Filter,
    pub is_exact: bool,
}

impl Told {
    fn exactly(filter: Filter) -> Told {
        Told { filter, is_exact: true }
    }
}

/// The filter of conditions on columns of a stripe. `place` gives the number there of a column of the table, and how it is stored. None
/// when nothing of them can be expressed.
pub fn filter_of(
    formula: &Formula<Bound>,
    place: &dyn Fn(usize) -> Option<(usize, ColumnKind)>,
) -> Option<Told> {
    match formula {
        Formula::One(bound) => {
            let (column, kind) = place(bound.condition.column)?;
            bound.filter(column, kind)
        }
        Formula::All(parts) => {
            let told: Vec<Told> = parts.iter().filter_map(|p| filter_of(p, place)).collect();
            let is_exact = told.len() == parts.len() && told.iter().all(|t| t.is_exact);
            let some = !told.is_empty() || parts.is_empty();
            let filter = Filter::And(told.into_iter().map(|t| t.filter).collect());
            some.then_some(Told { filter, is_exact })
        }
        Formula::Any(parts) => {
            let told: Vec<Told> =
                parts.iter().map(|p| filter_of(p, place)).collect::<Option<_>>()?;
            let is_exact = told.iter().all(|t| t.is_exact);
            let filter = Filter::Or(told.into_iter().map(|t| t.filter).collect());
            Some(Told { filter, is_exact })
        }
    }
}

fn constant(value: &Value, kind: ColumnKind) -> Option<Constant> {
    use ColumnKind as K;
    let is_int = matches!(kind, K::Int8 | K::Int16 | K::Int32 | K::Int64);
    Some(match value {
        Value::Bool(v) if kind == K::Bool => Constant::I64(i64::from(*v)),
        Value::Int(v) if is_int => Constant::I64(*v),
        Value::Oid(v) if kind == K::UInt32 => Constant::I64(i64::from(*v)),
        Value::Float(v) if matches!(kind, K::Float32 | K::Float64) => Constant::F64(*v),
        Value::Date(v) if kind == K::Date => Constant::I64(match *v {
            d @ (i32::MIN | i32::MAX) => i64::from(d),
            d => i64::from(d) + i64::from(EPOCH_DAYS),
        }),
        // A day against points in time means its midnight.
        Value::Date(v) if kind == K::Timestamp => Constant::I64(match *v {
            i32::MIN => i64::MIN,
            i32::MAX => i64::MAX,
            d => (i64::from(d) + i64::from(EPOCH_DAYS)).checked_mul(MICROS_PER_DAY)?,
        }),
        // Points in time with and without time zone compare by the session's zone: left to
        // PostgreSQL.
        Value::Timestamp(v) if kind == K::Timestamp => point_in_time(*v)?,
        Value::TimestampTz(v) if kind == K::TimestampTz => point_in_time(*v)?,
        Value::Time(v) if kind == K::Time => Constant::I64(*v),
        Value::Numeric(v) => {
            let K::Decimal { precision, scale } = kind else { return None };
            let scaled = parse_numeric_rescaled(v, scale)?;
            if precision <= 18 {
                Constant::I64(i64::try_from(scaled).ok()?)
            } else {
                Constant::I128(scaled)
            }
        }
        Value::Text(v) if kind == K::Text => Constant::Bytes(v.to_vec()),
        Value::Uuid(v) if kind == K::Uuid => Constant::Bytes(v.to_vec()),
        _ => return None,
    })
}

fn point_in_time(value: i64) -> Option<Constant> {
    Some(Constant::I64(match value {
        t @ (i64::MIN | i64::MAX) => t,
        // The microsecond that infinity's number is of: no stripe has it as a number.
        t => t.checked_add(EPOCH_MICROS).filter(|t| *t != i64::MAX)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let whole = |text: &str| Some(Pattern::Whole(text.into()));
        let prefix = |text: &str| Some(Pattern::Prefix(text.into()));
        let begins = |text: &str| Some(Pattern::Begins(text.into()));
        for (given, expected) in [
            ("", whole("")),
            ("abc", whole("abc")),
            ("abc%", prefix("abc")),
            ("abc%%", prefix("abc")),
            ("%", prefix("")),
            ("%c", begins("")),
            ("a_c", begins("a")),
            ("a_", begins("a")),
            ("a%c", begins("a")),
            ("a%_", begins("a")),
            (r"a\%c", whole("a%c")),
            (r"a\_c%", prefix("a_c")),
            (r"a\\%", prefix(r"a\")),
            (r"\a%", prefix("a")),
            (r"a\", None),
            (r"a\\\", None),
        ] {
            assert_eq!(pattern(given.as_bytes()), expected, "{given}");
        }
    }
}
