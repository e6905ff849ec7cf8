//! The crate's one error type.

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The bytes are not what a writer of this format wrote.
    Corrupt,
    /// A newer format version, or a feature this version does not read.
    Unsupported,
    /// A value or stripe beyond the format's limits.
    TooLarge,
}

/// A failure to read or write stripe bytes.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn corrupt(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Corrupt, message: message.into() }
    }
    pub fn unsupported(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Unsupported, message: message.into() }
    }
    /// The bytes are whole, and of a version that this one does not know.
    pub fn is_of_newer(&self) -> bool {
        self.kind == ErrorKind::Unsupported
    }
    pub fn too_large(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::TooLarge, message: message.into() }
    }
}
