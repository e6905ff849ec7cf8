//! Errors on their way through firn keep everything that PostgreSQL knows about them.
//!
//! pgrx catches an error of a PostgreSQL function that we call, takes message, DETAIL, HINT and
//! SQLSTATE from it, unwinds our frames and raises a new error. What it does not take (CONTEXT, the
//! names of table, column and constraint, positions) would be lost to the client. So every callback
//! stands in PostgreSQL's list of error context callbacks while it runs. PostgreSQL calls these when
//! an error is being raised, the innermost first: there a copy of the error is made, with the CONTEXT
//! lines of the functions that we called. Where the callback ends, the copy is raised in place of
//! pgrx's report, and the context callbacks of our callers add their lines to it, as they would have.

use pgrx::pg_sys;
use pgrx::pg_sys::panic::{CaughtError, ErrorReportWithLevel};
use std::any::Any;
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr;

/// The callback of ours that runs now, of those that are on the stack.
static mut INNERMOST: *mut pg_sys::ErrorContextCallback = ptr::null_mut();

/// A copy of an error, in a memory context of its own.
#[derive(Clone, Copy)]
struct Kept {
    memory: pg_sys::MemoryContext,
    error: *mut pg_sys::ErrorData,
}

/// The errors raised last inside callbacks, the newest first. More than one, because an error may be
/// raised again after others were raised and handled.
static mut KEPT: [Kept; 4] = [Kept { memory: ptr::null_mut(), error: ptr::null_mut() }; 4];

mod raw {
    use super::{c_char, c_int, pg_sys};
    unsafe extern "C-unwind" {
        pub fn CopyErrorData() -> *mut pg_sys::ErrorData;
        pub fn AllocSetContextCreateInternal(
            parent: pg_sys::MemoryContext,
            name: *const c_char,
            min_size: usize,
            initial_size: usize,
            max_size: usize,
        ) -> pg_sys::MemoryContext;
        pub fn MemoryContextReset(context: pg_sys::MemoryContext);
        pub fn ThrowErrorData(error: *mut pg_sys::ErrorData) -> !;
        pub fn geterrcode() -> c_int;
    }
}

/// Run a callback's body so that panics and errors leave it as PostgreSQL errors.
///
/// # Safety
/// To be called where PostgreSQL called us, on the main thread, by a frame that owns nothing.
#[inline]
pub unsafe fn callback<R: Copy>(body: impl FnOnce() -> R) -> R {
    // SAFETY: the entry in PostgreSQL's list is taken out before this frame ends: `body` unwinds to here or returns, and what it calls has put the list back.
    unsafe {
        let mut node = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(keep),
            arg: ptr::null_mut(),
        };
        let outer = INNERMOST;
        let place = &raw mut node;
        (*place).arg = place.cast();
        pg_sys::error_context_stack = place;
        INNERMOST = place;
        let result = catch_unwind(AssertUnwindSafe(body));
        // The body's calls into PostgreSQL have put the list back, also where they failed.
        pg_sys::error_context_stack = (*place).previous;
        INNERMOST = outer;
        match result {
            Ok(value) => value,
            Err(panic) => raise(panic),
        }
    }
}

/// Run what PostgreSQL runs by itself, and may run in parallel. An error of a worker is raised in whatever its leader does at that
/// moment, perhaps a callback of ours, but with the context callbacks that there were when the workers were planned for, so that the
/// innermost one of ours is not asked: this one is.
///
/// # Safety
/// As for [`callback`]. Errors pass this frame, which owns nothing: whoever catches them puts PostgreSQL's list back.
pub unsafe fn beside_workers<R: Copy>(run: impl FnOnce() -> R) -> R {
    // SAFETY: the entry is taken out when `run` returns; where it does not, whoever catches the error puts the list back as it was before.
    unsafe {
        let mut node = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(keep_of_worker),
            arg: ptr::null_mut(),
        };
        let place = &raw mut node;
        pg_sys::error_context_stack = place;
        let result = run();
        pg_sys::error_context_stack = (*place).previous;
        result
    }
}

/// Called by PostgreSQL when a message or an error is being raised within [`beside_workers`].
unsafe extern "C-unwind" fn keep_of_worker(_: *mut c_void) {
    // SAFETY: PostgreSQL's list, whose entries are on the stack; ours is only compared with them.
    unsafe {
        let mut node = pg_sys::error_context_stack;
        while !node.is_null() && node != INNERMOST {
            node = (*node).previous;
        }
        // The callback that runs now is in the list, or none runs: what is raised is no worker's, or passes nothing of ours.
        if node.is_null() && !INNERMOST.is_null() {
            copy_error();
        }
    }
}

/// Called by PostgreSQL when a message or an error is being raised inside the callback `node`.
unsafe extern "C-unwind" fn keep(node: *mut c_void) {
    // SAFETY: the pointers are compared only.
    unsafe {
        // Outer callbacks see the error when the inner one has raised it again.
        if node == INNERMOST.cast() {
            copy_error();
        }
    }
}

unsafe fn copy_error() {
    // SAFETY: the error at hand is copied into memory of its own; the main thread alone comes here.
    unsafe {
        // A copy of an error about memory would need memory, and in a critical section none may be taken.
        if pg_sys::CritSectionCount > 0 || raw::geterrcode() == OUT_OF_MEMORY {
            return;
        }
        let all = &raw mut KEPT;
        let kept = &mut *all;
        let place = &mut kept[kept.len() - 1];
        place.error = ptr::null_mut();
        if place.memory.is_null() {
            place.memory = raw::AllocSetContextCreateInternal(
                pg_sys::TopMemoryContext,
                c"firn errors".as_ptr(),
                pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
                pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
                pg_sys::ALLOCSET_SMALL_MAXSIZE as usize,
            );
        } else {
            raw::MemoryContextReset(place.memory);
        }
        let before = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = place.memory;
        let error = raw::CopyErrorData();
        pg_sys::CurrentMemoryContext = before;
        if (*error).elevel == pgrx::PgLogLevel::ERROR as c_int {
            // They may be PostgreSQL's constants or go with the memory of this copy or of the original.
            (*error).filename = lasting((*error).filename);
            (*error).funcname = lasting((*error).funcname);
            (*error).domain = lasting((*error).domain);
            place.error = error;
            kept.rotate_right(1);
        }
    }
}

const OUT_OF_MEMORY: c_int = pgrx::PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int;

/// The same text in memory that is never freed: there are only as many as source files and functions.
unsafe fn lasting(text: *const c_char) -> *const c_char {
    // SAFETY: a C string, or null; the set is used by the main thread only, and never gives anything up.
    unsafe {
        static mut KNOWN: BTreeSet<CString> = BTreeSet::new();
        if text.is_null() {
            return text;
        }
        let all = &raw mut KNOWN;
        let known = &mut *all;
        let text = CStr::from_ptr(text);
        if !known.contains(text) {
            known.insert(text.to_owned());
        }
        known.get(text).map_or(ptr::null(), |t| t.as_ptr())
    }
}

/// Raise what ended a callback's body.
#[cold]
unsafe fn raise(panic: Box<dyn Any + Send>) -> ! {
    // SAFETY: copies and texts lie in memory that outlives this frame, which owns nothing any more when the error passes.
    unsafe {
        if let Some(CaughtError::PostgresError(report)) = panic.downcast_ref() {
            let kept = KEPT;
            if let Some(kept) = kept.iter().find(|k| !k.error.is_null() && is_of(&*k.error, report))
            {
                drop(panic);
                raw::ThrowErrorData(kept.error)
            }
        }
        // pgrx's own report takes memory by guarded calls. A panic of theirs would have nobody to catch it here, and an error about
        // memory is when they fail. What PostgreSQL copies itself passes through here as any of its errors does.
        let told = &raw mut TOLD;
        let mut error = (*told).insert(Told::by(panic)).as_error();
        raw::ThrowErrorData(&raw mut error)
    }
}

/// What was raised last by a callback that had no copy of it. It stays here, as nothing that is thrown may own memory.
static mut TOLD: Option<Told> = None;

/// The texts of an error.
struct Told {
    level: c_int,
    code: c_int,
    message: CString,
    detail: Option<CString>,
    hint: Option<CString>,
    file: CString,
    line: u32,
    function: Option<CString>,
}

impl Told {
    fn by(panic: Box<dyn Any + Send>) -> Told {
        // It knows all that may be thrown, and where a panic began.
        pg_sys::PgTryBuilder::new(AssertUnwindSafe(move || resume_unwind(panic)))
            .catch_others(|caught| match &caught {
                CaughtError::PostgresError(report)
                | CaughtError::ErrorReport(report)
                | CaughtError::RustPanic { ereport: report, .. } => Told::of(report),
            })
            .execute()
    }

    fn of(report: &ErrorReportWithLevel) -> Told {
        Told {
            level: report.level() as c_int,
            code: report.sql_error_code() as c_int,
            message: text(report.message()),
            detail: report.detail_with_backtrace().as_deref().map(text),
            hint: report.hint().map(text),
            file: text(report.file()),
            line: report.line_number(),
            function: report.function_name().map(text),
        }
    }

    /// For PostgreSQL to copy; file and function it only points to.
    unsafe fn as_error(&self) -> pg_sys::ErrorData {
        // SAFETY: a plain struct, for which all zeros is an empty error; its texts live as long as `self`, or for ever.
        unsafe {
            let pointer = |t: &Option<CString>| t.as_ref().map_or(ptr::null(), |t| t.as_ptr());
            pg_sys::ErrorData {
                elevel: self.level,
                sqlerrcode: self.code,
                message: self.message.as_ptr().cast_mut(),
                detail: pointer(&self.detail).cast_mut(),
                hint: pointer(&self.hint).cast_mut(),
                filename: lasting(self.file.as_ptr()),
                lineno: self.line as c_int,
                funcname: lasting(pointer(&self.function)),
                ..std::mem::zeroed()
            }
        }
    }
}

/// Texts of users and of stores may hold a NUL, which ends a text of C's.
fn text(t: &str) -> CString {
    CString::new(t.replace('\0', "")).unwrap_or_default()
}

/// `report` was made of `error`, and not of one raised before it or raised again.
unsafe fn is_of(error: &pg_sys::ErrorData, report: &ErrorReportWithLevel) -> bool {
    // SAFETY: the texts of a kept error are C strings, or null.
    unsafe {
        let same = |text: *const c_char, other: Option<&str>| match other {
            None => text.is_null(),
            Some(other) => !text.is_null() && CStr::from_ptr(text).to_string_lossy() == other,
        };
        same(error.message, Some(report.message()))
            && same(error.detail, report.detail())
            && same(error.hint, report.hint())
            && same(error.filename, Some(report.file()))
            && error.lineno as u32 == report.line_number()
    }
}
