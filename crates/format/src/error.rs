//! The crate's one error type.

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The bytes are not what a writer of this format wrote.
    Corrupt,
    /// What this version does not read, be it that a later one has written it or that a page's header, which no checksum covers, is damaged.
    Unsupported,
    /// Whole, and of a newer version of the format.
    Newer,
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
    pub fn newer(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Newer, message: message.into() }
    }
    /// The bytes are whole, and of a version that this one does not know.
    pub fn is_of_newer(&self) -> bool {
        self.kind == ErrorKind::Newer
    }
    pub fn too_large(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::TooLarge, message: message.into() }
    }
}
