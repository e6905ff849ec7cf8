//! Work that may find damage: what it raises about data is caught and told, and the work goes on with the
//! next thing. All else that can be raised (a cancel, lack of memory, of a right, of a lock) is not about
//! data and passes.

use pgrx::pg_sys;
use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
use pgrx::PgSqlErrorCode as Code;
use std::any::Any;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// An error about data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caught {
    /// The store gave no answer; what it has is not known.
    pub unanswered: bool,
    /// Message and DETAIL.
    pub text: String,
}

/// Run `body` in a subtransaction of its own, which is undone when it fails. What `body` uses of PostgreSQL's
/// (relations, scans, slots) it must open itself.
pub fn attempt<T>(body: impl FnOnce() -> T) -> Result<T, Caught> {
    // SAFETY: as PL/pgSQL does it for a block with an exception handler.
    unsafe {
        let (memory, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::CurrentMemoryContext = memory;
        let result = catch_unwind(AssertUnwindSafe(body));
        pg_sys::CurrentMemoryContext = memory;
        // Also when the error goes on: at the top it would find a subtransaction that only the client could end.
        match result {
            Ok(_) => pg_sys::ReleaseCurrentSubTransaction(),
            Err(_) => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        pg_sys::CurrentMemoryContext = memory;
        pg_sys::CurrentResourceOwner = owner;
        result.or_else(|panic| match about_data(panic.as_ref()) {
            Some(caught) => Err(caught),
            None => resume_unwind(panic),
        })
    }
}

fn about_data(panic: &(dyn Any + Send)) -> Option<Caught> {
    let report = match panic.downcast_ref::<CaughtError>() {
        Some(CaughtError::PostgresError(r) | CaughtError::ErrorReport(r)) => Some(r),
        Some(CaughtError::RustPanic { ereport, .. }) => Some(ereport),
        None => panic.downcast_ref::<ErrorReportWithLevel>(),
    };
    if let Some(report) = report {
        let (code, message) = (report.sql_error_code(), report.message());
        let text = match report.detail() {
            Some(detail) => format!("{message} ({detail})"),
            None => message.to_owned(),
        };
        let unanswered = code == Code::ERRCODE_FDW_UNABLE_TO_ESTABLISH_CONNECTION;
        return is_about_data(code).then_some(Caught { unanswered, text });
    }
    // A defect of ours, met on strange bytes.
    let said = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = said.or_else(|| panic.downcast_ref::<String>().cloned())?;
    Some(Caught { unanswered: false, text: format!("internal error: {text}") })
}

fn is_about_data(code: Code) -> bool {
    matches!(
        code,
        Code::ERRCODE_DATA_CORRUPTED
            | Code::ERRCODE_INDEX_CORRUPTED
            | Code::ERRCODE_INTERNAL_ERROR
            | Code::ERRCODE_IO_ERROR
            | Code::ERRCODE_UNDEFINED_FILE
            | Code::ERRCODE_DUPLICATE_FILE
            | Code::ERRCODE_SYSTEM_ERROR
            | Code::ERRCODE_FDW_UNABLE_TO_ESTABLISH_CONNECTION
            | Code::ERRCODE_FEATURE_NOT_SUPPORTED
            | Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED
            | Code::ERRCODE_UNDEFINED_OBJECT
            | Code::ERRCODE_WRONG_OBJECT_TYPE
            | Code::ERRCODE_DATA_EXCEPTION
            | Code::ERRCODE_INVALID_PARAMETER_VALUE
            | Code::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE
            | Code::ERRCODE_INVALID_BINARY_REPRESENTATION
            | Code::ERRCODE_CHARACTER_NOT_IN_REPERTOIRE
            | Code::ERRCODE_UNTRANSLATABLE_CHARACTER
    )
}
