//! The one error type of this crate.

use std::fmt;
use std::io;

/// What went wrong, in the terms a caller can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The object, the bucket or the store's folder does not exist.
    NotFound,
    /// The store refused the credentials, or they lack a right.
    PermissionDenied,
    /// The store did not answer in time, refused the connection, or kept failing.
    Unreachable,
    /// The caller's `cancelled` function answered true.
    Cancelled,
    /// An object with this key exists already and holds other bytes or was not written by this call.
    AlreadyExists,
    /// Bytes are missing or differ from what they should be.
    Corrupt,
    /// The store or its quota is full.
    Full,
    /// The options or arguments make no sense; asking again cannot help.
    InvalidOptions,
    /// Anything else.
    Other,
}

/// An error of a store, the cache or the planner.
///
/// The message names the key and the store's URL and never holds a secret.
#[derive(Clone, Debug)]
pub struct Error {
    /// What a caller can decide on.
    pub kind: ErrorKind,
    /// A sentence for people, without the final full stop.
    pub message: String,
    /// The object's key, where one was involved.
    pub key: Option<String>,
    /// The store's URL, where one was involved.
    pub store: Option<String>,
    /// How often the failing request was sent; 0 when none was.
    pub attempts: u32,
}

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error that concerns no single request.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), key: None, store: None, attempts: 0 }
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidOptions, message)
    }

    pub(crate) fn cancelled() -> Self {
        Error::new(ErrorKind::Cancelled, "the request was cancelled")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Why one attempt failed: an [`Error`] before it knows its operation, key and store.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub kind: ErrorKind,
    /// What the other side said, cleaned of secrets and control characters.
    pub detail: String,
    /// Whether another attempt may succeed.
    pub retry: bool,
    /// Whether a write may have taken effect all the same (its answer was lost).
    pub uncertain: bool,
    /// How many attempts were made, filled in by the retry loop.
    pub attempts: u32,
}

impl Failure {
    pub fn fatal(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Failure { kind, detail: detail.into(), retry: false, uncertain: false, attempts: 1 }
    }

    pub fn passing(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Failure { kind, detail: detail.into(), retry: true, uncertain: true, attempts: 1 }
    }

    pub fn cancelled() -> Self {
        Failure::fatal(ErrorKind::Cancelled, "cancelled")
    }

    /// Completes the failure to an error: `doing` reads like "read object".
    pub fn into_error(self, doing: &str, key: &str, store: &str) -> Error {
        let subject = if key.is_empty() {
            format!("{doing} in store \"{store}\"")
        } else {
            format!("{doing} \"{key}\" in store \"{store}\"")
        };
        let message = match self.kind {
            ErrorKind::Cancelled => format!("cancelled: {subject}"),
            _ if self.attempts > 1 => {
                format!("could not {subject}: {} (after {} attempts)", self.detail, self.attempts)
            }
            _ => format!("could not {subject}: {}", self.detail),
        };
        Error {
            kind: self.kind,
            message,
            key: (!key.is_empty()).then(|| key.to_string()),
            store: Some(store.to_string()),
            attempts: self.attempts,
        }
    }
}

/// The kind an error of the operating system's file calls amounts to.
pub(crate) fn io_kind(e: &io::Error) -> ErrorKind {
    use io::ErrorKind as K;
    match e.kind() {
        K::NotFound | K::NotADirectory => ErrorKind::NotFound,
        K::PermissionDenied | K::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        K::AlreadyExists => ErrorKind::AlreadyExists,
        K::StorageFull | K::QuotaExceeded | K::FileTooLarge => ErrorKind::Full,
        K::UnexpectedEof | K::InvalidData => ErrorKind::Corrupt,
        K::TimedOut
        | K::NotConnected
        | K::HostUnreachable
        | K::NetworkUnreachable
        | K::NetworkDown
        | K::StaleNetworkFileHandle => ErrorKind::Unreachable,
        _ => ErrorKind::Other,
    }
}

/// What the operating system says of an error, without the number.
pub(crate) fn io_text(e: &io::Error) -> String {
    let text = e.to_string();
    match text.find(" (os error ") {
        Some(at) => text[..at].to_string(),
        None => text,
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Failure::fatal(io_kind(&e), io_text(&e))
    }
}
