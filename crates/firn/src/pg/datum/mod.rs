//! PostgreSQL's values. A datum is a word: the value, or the address of one; which, its type says, and whether that address is
//! still one, who owns the value.
//!
//! So words stay in here, with those who own what they point to: columns of a batch ([`Datums`], and [`BatchRow`] for one row of
//! them), single rows ([`OwnRow`]), what stands in columns that a stripe lacks ([`Missing`]). They lend a [`Datum`] or [`Row`] of
//! themselves, for as long as nobody changes them. Of PostgreSQL's own values one is made by [`Datum::of`], which is unsafe, and so
//! is all that looks behind one.
//!
//! `column` says how a type is stored, and is the way in (values into a stripe's columns); `arena` is the way out, without
//! PostgreSQL's memory.

use super::{memory, Oid};
use pgrx::pg_sys;
use std::marker::PhantomData;

mod arena;
mod column;
mod missing;
mod numeric;
mod operand;
mod row;

pub use arena::{column_datums, dictionary_datums, timestamp, Datums, Rows};
pub use column::{ColumnType, Conversion, TypedRow, EPOCH_DAYS, EPOCH_MICROS};
pub use missing::Missing;
pub use numeric::{form_numeric, parse_numeric, parse_numeric_rescaled};
pub use operand::{Operand, Right, RightValue, Value};
pub(in crate::pg) use row::Words;
pub use row::{BatchRow, Blank, Filling, Memory, OwnRow};

/// What a datum is in memory, there as in PostgreSQL's arrays of them.
pub(in crate::pg) type Word = usize;

/// A value of PostgreSQL that lives for `'a`. Of which type it is knows who has it, from whom he got it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Datum<'a>(Word, PhantomData<&'a [u8]>);

impl Datum<'_> {
    /// A value of PostgreSQL's.
    ///
    /// # Safety
    /// It is one of the type as which whoever gets it reads it, and if that is by reference, nobody changes or frees it in the lifetime.
    pub(crate) unsafe fn of(value: pg_sys::Datum) -> Self {
        Datum(value.value(), PhantomData)
    }
    /// For PostgreSQL's functions.
    pub(crate) fn raw(self) -> pg_sys::Datum {
        self.0.into()
    }
    /// The value itself, of a type by value; of others their address, with which nobody can do anything.
    #[inline]
    pub fn word(self) -> usize {
        self.0
    }
    fn at<T>(self) -> *mut T {
        self.0 as *mut T
    }
}

/// A table's row as datums, one a column: lent by who owns what they point to.
#[derive(Clone, Copy, Default)]
pub struct Row<'a> {
    values: &'a [Word],
    nulls: &'a [bool],
}

impl<'a> Row<'a> {
    /// A row of PostgreSQL's.
    ///
    /// # Safety
    /// As for [`Datum::of`], of each value that is not NULL.
    pub(in crate::pg) unsafe fn of(values: &'a [Word], nulls: &'a [bool]) -> Row<'a> {
        Row { values, nulls }
    }
    /// The words as they are, and which of them are NULL.
    pub(in crate::pg) fn words(self) -> (&'a [Word], &'a [bool]) {
        (self.values, self.nulls)
    }
    /// The value of a column (0 = first); None where it is NULL, or the row has no such column.
    #[inline]
    pub fn get(self, column: usize) -> Option<Datum<'a>> {
        match (self.values.get(column), self.nulls.get(column)) {
            (Some(value), Some(false)) => Some(Datum(*value, PhantomData)),
            _ => None,
        }
    }
}

/// Call `f` with a varlena's payload, detoasted and decompressed.
///
/// # Safety
/// The value is of a type of variable length (`attlen` -1).
pub(crate) unsafe fn with_varlena<T>(value: Datum<'_>, f: impl FnOnce(&[u8]) -> T) -> T {
    // SAFETY: a live varlena, as the caller promises; a detoasted copy is freed after use.
    unsafe {
        let original = value.at::<pg_sys::varlena>();
        let plain = pg_sys::pg_detoast_datum_packed(original);
        let len = pgrx::varlena::varsize_any_exhdr(plain);
        let data = pgrx::varlena::vardata_any(plain) as *const u8;
        let result = f(std::slice::from_raw_parts(data, len));
        if plain != original {
            pg_sys::pfree(plain.cast());
        }
        result
    }
}

/// The text of a value that its word is: as the output function of its type writes it, and as a number if it is none of a type by value.
pub fn text_of_word(type_oid: Oid, word: i64) -> String {
    let (mut function, mut varlena) = (pg_sys::InvalidOid, false);
    // SAFETY: a word is a value of such a type, whatever it is; the text is palloc'ed and copied.
    unsafe {
        if !pg_sys::get_typbyval(type_oid) {
            return word.to_string();
        }
        pg_sys::getTypeOutputInfo(type_oid, &mut function, &mut varlena);
        let text = pg_sys::OidOutputFunctionCall(function, pg_sys::Datum::from(word));
        std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// Call `f` with the elements of an array that are not NULL; whether others are.
///
/// # Safety
/// The value is an array.
pub(crate) unsafe fn each_element(array: Datum<'_>, mut f: impl FnMut(Datum<'_>)) -> bool {
    memory::scratch(|| {
        // SAFETY: a live array; deconstruct_array fills both arrays with `count` elements.
        unsafe {
            let array = pg_sys::pg_detoast_datum(array.at()) as *mut pg_sys::ArrayType;
            let kind = (*array).elemtype;
            let (mut length, mut by_value, mut align) = (0, false, 0);
            pg_sys::get_typlenbyvalalign(kind, &mut length, &mut by_value, &mut align);
            let (mut values, mut nulls, mut count) =
                (std::ptr::null_mut(), std::ptr::null_mut(), 0);
            pg_sys::deconstruct_array(
                array,
                kind,
                i32::from(length),
                by_value,
                align,
                &mut values,
                &mut nulls,
                &mut count,
            );
            let mut some_are_null = false;
            for i in 0..count as usize {
                match *nulls.add(i) {
                    true => some_are_null = true,
                    false => f(Datum::of(*values.add(i))),
                }
            }
            some_are_null
        }
    })
}

/// The bytes of a value by reference of a fixed length.
///
/// # Safety
/// The value's type is by reference, and of that length.
unsafe fn fixed_bytes<'a>(value: Datum<'a>, len: usize) -> &'a [u8] {
    // SAFETY: a live value of that length, as the caller promises.
    unsafe { std::slice::from_raw_parts(value.at::<u8>(), len) }
}
