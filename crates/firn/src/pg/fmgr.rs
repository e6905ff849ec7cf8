//! Arguments and results of SQL-callable functions.

use super::{compat, error, Kind, Oid};
use pgrx::pg_sys;
use std::ffi::CStr;

/// The hint where the objects of the extension in a database are not those that the library was made with.
pub const UPDATE: &str = "Run ALTER EXTENSION firn UPDATE in this database.";

/// A value of a result row.
pub enum Out {
    Null,
    /// The result of a function that returns void.
    Void,
    Bool(bool),
    Int4(i32),
    Int8(i64),
    Oid(Oid),
    Text(String),
    Bytes(Vec<u8>),
    /// Microseconds since 1970.
    Time(i64),
}

impl Out {
    /// A column of this type can have the value.
    fn is_of(&self, column: Oid) -> bool {
        match self {
            Out::Null => true,
            Out::Void => false,
            Out::Bool(_) => column == pg_sys::BOOLOID,
            Out::Int4(_) => column == pg_sys::INT4OID,
            Out::Int8(_) => column == pg_sys::INT8OID,
            Out::Oid(_) => column == pg_sys::OIDOID,
            Out::Text(_) => [pg_sys::TEXTOID, pg_sys::JSONOID].contains(&column),
            Out::Bytes(_) => column == pg_sys::BYTEAOID,
            Out::Time(_) => column == pg_sys::TIMESTAMPTZOID,
        }
    }
}

/// Raise unless a row is one of the columns that a call is to give: those that the function was made with in this database, maybe by another version.
///
/// # Safety
/// A call that fmgr makes, and the descriptor of its result.
pub(crate) unsafe fn check_columns(
    info: pg_sys::FunctionCallInfo,
    desc: pg_sys::TupleDesc,
    row: &[Out],
) {
    // SAFETY: live descriptors; the name is a copy, or null.
    unsafe {
        let columns = compat::attributes(desc);
        let fits = columns.len() == row.len()
            && columns.iter().zip(row).all(|(column, out)| out.is_of(column.atttypid));
        if fits {
            return;
        }
        let name = pg_sys::get_func_name((*(*info).flinfo).fn_oid);
        let name = if name.is_null() { c"?" } else { CStr::from_ptr(name) };
        let message = format!(
            "function firn.{} is of another version of the extension than the library",
            name.to_string_lossy()
        );
        error(Kind::NotInState, message)
            .detail("It was made with other columns than the library gives.")
            .hint(UPDATE)
            .raise()
    }
}

unsafe fn varlena(bytes: &[u8]) -> pg_sys::Datum {
    // SAFETY: the memory has room for the header of four bytes and the bytes behind it.
    unsafe {
        let total = bytes.len() + 4;
        let raw = pg_sys::palloc(total) as *mut u8;
        std::ptr::copy_nonoverlapping(((total as u32) << 2).to_le_bytes().as_ptr(), raw, 4);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), raw.add(4), bytes.len());
        pg_sys::Datum::from(raw)
    }
}

/// # Safety
/// In a session; what is returned may be in the current memory context.
pub(crate) unsafe fn datum(out: &Out) -> (pg_sys::Datum, bool) {
    // SAFETY: plain values, or copies in memory that PostgreSQL takes over.
    unsafe {
        let d = match out {
            Out::Null => return (pg_sys::Datum::from(0usize), true),
            Out::Void => pg_sys::Datum::from(0usize),
            Out::Bool(v) => pg_sys::Datum::from(*v),
            Out::Int4(v) => pg_sys::Datum::from(*v),
            Out::Int8(v) => pg_sys::Datum::from(*v),
            Out::Oid(v) => pg_sys::Datum::from(*v),
            Out::Text(v) => varlena(v.as_bytes()),
            Out::Bytes(v) => varlena(v),
            Out::Time(v) => pg_sys::Datum::from(v - super::datum::EPOCH_MICROS),
        };
        (d, false)
    }
}

/// Arguments of a call.
#[derive(Clone, Copy)]
pub struct Args(pg_sys::FunctionCallInfo);

impl Args {
    /// # Safety
    /// A call that fmgr makes, for as long as it runs, of a function that is declared with arguments of the types that it asks for here.
    pub(crate) unsafe fn of(info: pg_sys::FunctionCallInfo) -> Args {
        Args(info)
    }
    fn raw(self, n: usize) -> Option<pg_sys::Datum> {
        // SAFETY: PostgreSQL passes nargs arguments behind the header.
        unsafe {
            let info = &*self.0;
            if n >= info.nargs as usize {
                return None;
            }
            let arg = &*info.args.as_ptr().add(n);
            (!arg.isnull).then_some(arg.value)
        }
    }
    pub fn oid(self, n: usize) -> Option<Oid> {
        self.raw(n).map(|d| Oid::from(d.value() as u32))
    }
    pub fn int4(self, n: usize) -> Option<i32> {
        self.raw(n).map(|d| d.value() as i32)
    }
    pub fn int8(self, n: usize) -> Option<i64> {
        self.raw(n).map(|d| d.value() as i64)
    }
    pub fn bool(self, n: usize) -> Option<bool> {
        self.raw(n).map(|d| d.value() & 0xff != 0)
    }
    /// This is a CALL that may end the transaction: its caller expects that.
    pub fn may_commit(self) -> bool {
        // SAFETY: a node of PostgreSQL's, or null; CALL gives one of its own.
        unsafe {
            (*self.0).context.as_ref().is_some_and(|node| {
                node.type_ == pg_sys::NodeTag::T_CallContext
                    && !(*(node as *const pg_sys::Node as *const pg_sys::CallContext)).atomic
            })
        }
    }
    /// A `name` argument.
    pub fn name(self, n: usize) -> Option<String> {
        self.raw(n).map(|d| {
            // SAFETY: a name datum is NUL-terminated within 64 bytes.
            unsafe { std::ffi::CStr::from_ptr(d.cast_mut_ptr()) }.to_string_lossy().into_owned()
        })
    }
    /// The options of a FOREIGN DATA WRAPPER validator call: name and value.
    pub fn options(self, n: usize) -> Vec<(String, String)> {
        let Some(raw) = self.raw(n) else { return Vec::new() };
        // SAFETY: PostgreSQL passes a text[] of name=value.
        unsafe {
            let list = pg_sys::untransformRelOptions(raw);
            super::catalog::options_of(list)
        }
    }
}
