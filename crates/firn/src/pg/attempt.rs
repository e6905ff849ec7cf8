//! Work that may find damage: what it raises about data is caught and told, and the work goes on with the
//! next thing. All else that can be raised (a cancel, lack of memory, of a right, of a lock, of a server, a
//! defect) is not about data and passes.

use super::progress::Report;
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

/// Run `body` in a subtransaction of its own, which is undone when it fails with an error about data. What `body` uses
/// of PostgreSQL's (relations, scans, slots) it must open itself.
pub fn attempt<T>(body: impl FnOnce() -> T) -> Result<T, Caught> {
    subtransaction(body).or_else(|panic| match about_data(panic.as_ref()) {
        Some(caught) => Err(caught),
        None => resume_unwind(panic),
    })
}

/// Run `body` in a subtransaction of its own, which is undone when it fails.
pub(crate) fn subtransaction<T>(body: impl FnOnce() -> T) -> std::thread::Result<T> {
    // SAFETY: as PL/pgSQL does it for a block with an exception handler.
    unsafe {
        let (memory, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        let report = Report::of_this_backend();
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::CurrentMemoryContext = memory;
        let result = catch_unwind(AssertUnwindSafe(body));
        pg_sys::CurrentMemoryContext = memory;
        // Also when the error goes on: at the top it would find a subtransaction that only the client could end.
        match result {
            Ok(_) => pg_sys::ReleaseCurrentSubTransaction(),
            Err(_) => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        if let Some(report) = report {
            report.take_up();
        }
        pg_sys::CurrentMemoryContext = memory;
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}

/// A lock was not to be had in time, or not without a deadlock.
pub(super) fn is_about_locks(panic: &(dyn Any + Send)) -> bool {
    let code = report_of(panic).map(|report| report.sql_error_code());
    let codes = [Code::ERRCODE_LOCK_NOT_AVAILABLE, Code::ERRCODE_T_R_DEADLOCK_DETECTED];
    code.is_some_and(|code| codes.contains(&code))
}

/// Somebody has cancelled the statement, or there is no room for it: nothing is said of what it does.
pub(super) fn is_cancel(panic: &(dyn Any + Send)) -> bool {
    let code = report_of(panic).map(|report| report.sql_error_code());
    code.is_none_or(|code| {
        matches!(code, Code::ERRCODE_QUERY_CANCELED | Code::ERRCODE_OUT_OF_MEMORY)
    })
}

/// Any error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Somebody has cancelled the statement, or its time is over.
    pub cancelled: bool,
    /// Message and DETAIL.
    pub text: String,
}

/// Run `body`, which may commit transactions and begin new ones, at the top of a session: after an error its open
/// one is rolled back, which releases the session's locks, and another one begun.
pub fn transactions<T>(body: impl FnOnce() -> T) -> Result<T, Failed> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        // SAFETY: as a procedure that rolls back does it.
        unsafe {
            pg_sys::AbortCurrentTransaction();
            pg_sys::StartTransactionCommand();
        }
        match report_of(panic.as_ref()) {
            Some(report) => Failed {
                cancelled: report.sql_error_code() == Code::ERRCODE_QUERY_CANCELED,
                text: text_of(report),
            },
            None => Failed { cancelled: false, text: "internal error".to_owned() },
        }
    })
}

fn report_of(panic: &(dyn Any + Send)) -> Option<&ErrorReportWithLevel> {
    match panic.downcast_ref::<CaughtError>() {
        Some(CaughtError::PostgresError(r) | CaughtError::ErrorReport(r)) => Some(r),
        Some(CaughtError::RustPanic { ereport, .. }) => Some(ereport),
        None => panic.downcast_ref::<ErrorReportWithLevel>(),
    }
}

fn text_of(report: &ErrorReportWithLevel) -> String {
    match report.detail() {
        Some(detail) => format!("{} ({detail})", report.message()),
        None => report.message().to_owned(),
    }
}

fn about_data(panic: &(dyn Any + Send)) -> Option<Caught> {
    // A defect of ours is none of the data.
    if let Some(CaughtError::RustPanic { .. }) = panic.downcast_ref::<CaughtError>() {
        return None;
    }
    let report = report_of(panic)?;
    let (code, text) = (report.sql_error_code(), text_of(report));
    let unanswered = code == Code::ERRCODE_FDW_UNABLE_TO_ESTABLISH_CONNECTION;
    is_about_data(code).then_some(Caught { unanswered, text })
}

/// The bytes are wrong, are not there, or the disk or store does not give them. Everything else says something of the
/// server, the session or firn, and nothing of what is stored.
fn is_about_data(code: Code) -> bool {
    matches!(
        code,
        Code::ERRCODE_DATA_CORRUPTED
            | Code::ERRCODE_INDEX_CORRUPTED
            | Code::ERRCODE_UNDEFINED_FILE
            | Code::ERRCODE_IO_ERROR
            | Code::ERRCODE_FDW_UNABLE_TO_ESTABLISH_CONNECTION
    )
}
