//! Arguments and results of SQL-callable functions.

use pgrx::pg_sys;

/// A value of a result row.
pub enum Out {
    Null,
    /// The result of a function that returns void.
    Void,
    Bool(bool),
    Int4(i32),
    Int8(i64),
    Oid(u32),
    Text(String),
    Bytes(Vec<u8>),
    /// Microseconds since 1970.
    Time(i64),
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
            Out::Oid(v) => pg_sys::Datum::from(pg_sys::Oid::from(*v)),
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
    pub fn oid(self, n: usize) -> Option<u32> {
        self.raw(n).map(|d| d.value() as u32)
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
