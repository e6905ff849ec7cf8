//! SQL-callable functions: the entry points that PostgreSQL's function manager calls.

use crate::pg::ext::callback;
use crate::pg::fmgr::{check_columns, datum, Args, Out};
use pgrx::pg_sys;

/// Return one value.
fn single(info: pg_sys::FunctionCallInfo, body: fn(Args) -> Out) -> pg_sys::Datum {
    // SAFETY: called by fmgr with a live call frame.
    unsafe {
        callback(|| {
            let (value, null) = datum(&body(Args::of(info)));
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
        callback(|| {
            pg_sys::InitMaterializedSRF(info, 0);
            let result = (*info).resultinfo as *mut pg_sys::ReturnSetInfo;
            let mut sink = |row: &[Out]| {
                check_columns(info, (*result).setDesc, row);
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
            body(Args::of(info), &mut sink);
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
    pg_sys::Datum::from(super::tableam::toast::routine() as *mut pg_sys::TableAmRoutine)
}
