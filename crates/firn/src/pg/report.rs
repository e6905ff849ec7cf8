//! Errors in PostgreSQL's manner: one place maps our kinds to SQLSTATE, DETAIL and HINT.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};

/// What went wrong, as far as a client can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Stored bytes are not what was written.
    Corrupt,
    /// firn does not do this (yet).
    Unsupported,
    /// An argument or option has no sense.
    Invalid,
    /// An option that does not exist here.
    InvalidOption,
    /// The object store cannot be reached or answers with errors.
    StoreUnreachable,
    /// The object store refuses our credentials.
    StoreDenied,
    /// An object that a stripe needs is not there.
    StoreMissing,
    /// The local cache cannot be used.
    CacheUnusable,
    /// A part of the work is left out.
    Skipped,
    /// A disk or store is full.
    Full,
    /// A limit of the format is reached (TIDs, chunk addresses, value size).
    Limit,
    /// The role lacks the right.
    Denied,
    /// The object is of the wrong kind.
    WrongObject,
    /// The object is in a state in which this cannot be done.
    NotInState,
    /// The object is not there.
    Undefined,
    /// The table is not there (any more).
    UndefinedTable,
    /// This cannot be done now.
    NotNow,
    /// Not within a transaction block.
    InTransaction,
    /// The transaction is its caller's, so it cannot be ended.
    CannotCommit,
    /// Somebody else holds the lock (NOWAIT).
    LockNotAvailable,
    /// Another transaction has changed the row in a way that this one cannot follow.
    Serialization,
    /// A defect of firn.
    Internal,
}

impl Kind {
    fn code(self) -> PgSqlErrorCode {
        use PgSqlErrorCode as C;
        match self {
            Kind::Corrupt => C::ERRCODE_DATA_CORRUPTED,
            Kind::Unsupported => C::ERRCODE_FEATURE_NOT_SUPPORTED,
            Kind::Invalid => C::ERRCODE_INVALID_PARAMETER_VALUE,
            Kind::InvalidOption => C::ERRCODE_FDW_INVALID_OPTION_NAME,
            Kind::StoreUnreachable => C::ERRCODE_FDW_UNABLE_TO_ESTABLISH_CONNECTION,
            Kind::StoreDenied => C::ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION,
            Kind::StoreMissing => C::ERRCODE_UNDEFINED_FILE,
            Kind::CacheUnusable | Kind::Skipped => C::ERRCODE_WARNING,
            Kind::Full => C::ERRCODE_DISK_FULL,
            Kind::Limit => C::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            Kind::Denied => C::ERRCODE_INSUFFICIENT_PRIVILEGE,
            Kind::WrongObject => C::ERRCODE_WRONG_OBJECT_TYPE,
            Kind::NotInState => C::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            Kind::Undefined => C::ERRCODE_UNDEFINED_OBJECT,
            Kind::UndefinedTable => C::ERRCODE_UNDEFINED_TABLE,
            Kind::NotNow => C::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            Kind::InTransaction => C::ERRCODE_ACTIVE_SQL_TRANSACTION,
            Kind::CannotCommit => C::ERRCODE_INVALID_TRANSACTION_TERMINATION,
            Kind::LockNotAvailable => C::ERRCODE_LOCK_NOT_AVAILABLE,
            Kind::Serialization => C::ERRCODE_T_R_SERIALIZATION_FAILURE,
            Kind::Internal => C::ERRCODE_INTERNAL_ERROR,
        }
    }
}

/// An error under construction; [`Report::raise`] throws it.
pub struct Report {
    report: ErrorReport,
}

/// Start an error of this kind; add DETAIL and HINT, then [`Report::raise`].
pub fn error(kind: Kind, message: impl Into<String>) -> Report {
    Report { report: ErrorReport::new(kind.code(), message.into(), "firn") }
}

/// Start a message that is no error; add DETAIL and HINT, then [`Report::tell`].
pub fn notice(message: impl Into<String>) -> Report {
    let code = PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION;
    Report { report: ErrorReport::new(code, message.into(), "firn") }
}

impl Report {
    /// Add a DETAIL line.
    pub fn detail(mut self, text: impl Into<String>) -> Self {
        self.report = self.report.set_detail(text.into());
        self
    }
    /// Add a HINT line.
    pub fn hint(mut self, text: impl Into<String>) -> Self {
        self.report = self.report.set_hint(text.into());
        self
    }
    /// Tell the client of what is as it should be, and go on.
    pub fn tell(self) {
        self.report.report(PgLogLevel::NOTICE);
    }
    /// Tell the client and go on.
    pub fn warn(self) {
        self.report.report(PgLogLevel::WARNING);
    }
    /// Raise it as ERROR; destructors on the way out run.
    pub fn raise(self) -> ! {
        self.report.report(PgLogLevel::ERROR);
        unreachable!("ERROR does not return")
    }
}

/// The hint where bytes are whole, but of a version that is not known here.
pub const NEWER: &str =
    "Install the version of firn that has written it, or a later one, and restart the server.";

/// A damaged or unreadable stripe of `table`: raise what the format crate found.
pub fn raise_format(table: &str, slot: u32, e: firn_format::Error) -> ! {
    let kind = match e.kind {
        // (What a damaged header of a page asks for is nothing that anybody has written.)
        firn_format::ErrorKind::Corrupt | firn_format::ErrorKind::Unsupported => Kind::Corrupt,
        firn_format::ErrorKind::Newer => Kind::Unsupported,
        firn_format::ErrorKind::TooLarge => Kind::Limit,
    };
    let hint = match e.is_of_newer() {
        true => NEWER,
        false => {
            "Run firn.check() on the table; restore the damaged stripe from a backup or standby."
        }
    };
    error(kind, format!("could not read stripe {slot} of table \"{table}\""))
        .detail(e.to_string())
        .hint(hint)
        .raise()
}
