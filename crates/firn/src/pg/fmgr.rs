//! SQL-callable functions: their C entry points, arguments and results.

use super::datum::Datum;
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
    let total = bytes.len() + 4;
    let raw = pg_sys::palloc(total) as *mut u8;
    std::ptr::copy_nonoverlapping(((total as u32) << 2).to_le_bytes().as_ptr(), raw, 4);
    std::ptr::copy_nonoverlapping(bytes.as_ptr(), raw.add(4), bytes.len());
    pg_sys::Datum::from(raw)
}

unsafe fn datum(out: &Out) -> (pg_sys::Datum, bool) {
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

/// Arguments of a call.
#[derive(Clone, Copy)]
pub struct Args(pg_sys::FunctionCallInfo);

impl Args {
    fn raw(self, n: usize) -> Option<Datum> {
        // SAFETY: PostgreSQL passes nargs arguments behind the header.
        unsafe {
            let info = &*self.0;
            if n >= info.nargs as usize {
                return None;
            }
            let arg = &*info.args.as_ptr().add(n);
            (!arg.isnull).then(|| arg.value.value())
        }
    }
    pub fn oid(self, n: usize) -> Option<u32> {
        self.raw(n).map(|d| d as u32)
    }
    pub fn int4(self, n: usize) -> Option<i32> {
        self.raw(n).map(|d| d as i32)
    }
    pub fn int8(self, n: usize) -> Option<i64> {
        self.raw(n).map(|d| d as i64)
    }
    pub fn bool(self, n: usize) -> Option<bool> {
        self.raw(n).map(|d| d & 0xff != 0)
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
            unsafe { std::ffi::CStr::from_ptr(d as *const core::ffi::c_char) }
                .to_string_lossy()
                .into_owned()
        })
    }
    /// The options of a FOREIGN DATA WRAPPER validator call: name and value.
    pub fn options(self, n: usize) -> Vec<(String, String)> {
        let Some(raw) = self.raw(n) else { return Vec::new() };
        // SAFETY: PostgreSQL passes a text[] of name=value.
        unsafe {
            let list = pg_sys::untransformRelOptions(pg_sys::Datum::from(raw));
            super::catalog::options_of(list)
        }
    }
}

/// Return one value.
fn single(info: pg_sys::FunctionCallInfo, body: fn(Args) -> Out) -> pg_sys::Datum {
    // SAFETY: called by fmgr with a live call frame.
    unsafe {
        super::ext::callback(|| {
            let (value, null) = datum(&body(Args(info)));
            (*info).isnull = null;
            value
        })
    }
}

/// A function that returns a set: it calls the sink once per row.
type SetBody = fn(Args, &mut dyn FnMut(&[Out]));

/// Return a set of rows, materialised.
fn set(info: pg_sys::FunctionCallInfo, body: SetBody) -> pg_sys::Datum {
    // SAFETY: as single(); InitMaterializedSRF checks the context and sets up the tuplestore.
    unsafe {
        super::ext::callback(|| {
            pg_sys::InitMaterializedSRF(info, 0);
            let result = (*info).resultinfo as *mut pg_sys::ReturnSetInfo;
            let mut sink = |row: &[Out]| {
                let (mut values, mut nulls): (Vec<_>, Vec<_>) =
                    row.iter().map(|o| datum(o)).unzip();
                pg_sys::tuplestore_putvalues(
                    (*result).setResult,
                    (*result).setDesc,
                    values.as_mut_ptr(),
                    nulls.as_mut_ptr(),
                );
                // There may be many rows, and the store has a copy.
                for (out, value) in row.iter().zip(values) {
                    if matches!(out, Out::Text(_) | Out::Bytes(_)) {
                        pg_sys::pfree(value.cast_mut_ptr());
                    }
                }
            };
            body(Args(info), &mut sink);
            (*info).isnull = true;
            pg_sys::Datum::from(0usize)
        })
    }
}

static INFO: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };

macro_rules! sql_functions {
    ($($name:ident, $info:ident, $kind:ident => $body:path;)*) => {$(
        #[doc(hidden)]
        #[no_mangle]
        pub extern "C-unwind" fn $info() -> *const pg_sys::Pg_finfo_record {
            &INFO
        }
        #[doc(hidden)]
        #[no_mangle]
        pub extern "C-unwind" fn $name(info: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
            $kind(info, $body)
        }
    )*};
}

sql_functions! {
    firn_compact, pg_finfo_firn_compact, single => crate::sql::compact;
    firn_check, pg_finfo_firn_check, set => crate::sql::check;
    firn_repair, pg_finfo_firn_repair, set => crate::sql::repair;
    firn_stripes, pg_finfo_firn_stripes, set => crate::sql::stripes;
    firn_table_info, pg_finfo_firn_table_info, set => crate::sql::table_info;
    firn_stripe_file, pg_finfo_firn_stripe_file, single => crate::sql::stripe_file;
    firn_offload, pg_finfo_firn_offload, single => crate::sql::offload;
    firn_load, pg_finfo_firn_load, single => crate::sql::load;
    firn_unneeded, pg_finfo_firn_unneeded, set => crate::sql::unneeded;
    firn_accept_store, pg_finfo_firn_accept_store, single => crate::sql::accept_store;
    firn_compact_in_pieces, pg_finfo_firn_compact_in_pieces, single => crate::sql::pieces::compact;
    firn_offload_in_pieces, pg_finfo_firn_offload_in_pieces, single => crate::sql::pieces::offload;
    firn_load_in_pieces, pg_finfo_firn_load_in_pieces, single => crate::sql::pieces::load;
    firn_activity_info, pg_finfo_firn_activity_info, set => crate::sql::activity_info;
    firn_fdw_validator, pg_finfo_firn_fdw_validator, single => crate::sql::validate_options;
}

#[doc(hidden)]
#[no_mangle]
pub extern "C-unwind" fn pg_finfo_firn_handler() -> *const pg_sys::Pg_finfo_record {
    &INFO
}

/// The access method's handler.
#[doc(hidden)]
#[no_mangle]
pub extern "C-unwind" fn firn_handler(_info: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    pg_sys::Datum::from(super::tableam::routine() as *mut pg_sys::TableAmRoutine)
}

#[doc(hidden)]
#[no_mangle]
pub extern "C-unwind" fn pg_finfo_firn_toast_handler() -> *const pg_sys::Pg_finfo_record {
    &INFO
}

/// The handler of the access method of TOAST relations.
#[doc(hidden)]
#[no_mangle]
pub extern "C-unwind" fn firn_toast_handler(_info: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    pg_sys::Datum::from(super::tableam_toast::routine() as *mut pg_sys::TableAmRoutine)
}
