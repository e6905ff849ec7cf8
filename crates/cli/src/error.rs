//! What can go wrong, said as PostgreSQL says it.

use std::fmt;

/// What kind of failure it is; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Flags or settings that make no sense.
    Usage,
    /// An archive that is damaged, or is none.
    Archive,
    /// A file, folder or object store that cannot be read or written.
    Storage,
    /// No connection to the server, or a connection that broke.
    Connection,
    /// The server refused a statement.
    Statement,
    /// Something to be compared differs.
    Verify,
    /// A key or passphrase that is missing or does not fit.
    Key,
    /// The user asked to stop.
    Cancelled,
    /// A mistake of the program.
    Internal,
}

/// An error: message, detail and hint in PostgreSQL's style, and where there is one the SQLSTATE.
#[derive(Clone, Debug)]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    /// Five characters, of errors of the server.
    pub sqlstate: Option<String>,
    /// Character within the statement, counted from 1, of errors of the server.
    pub position: Option<usize>,
    /// The server's context lines.
    pub context: Option<String>,
    /// Schema and name of the index or constraint that the server names.
    pub constraint: Option<Box<(Vec<u8>, Vec<u8>)>>,
    /// The server names a table that the error is of.
    pub of_table: bool,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
            detail: None,
            hint: None,
            sqlstate: None,
            position: None,
            context: None,
            constraint: None,
            of_table: false,
        }
    }

    /// An archive that cannot be used.
    pub fn archive(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Archive, message)
    }

    /// Flags or settings that make no sense.
    pub fn usage(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Usage, message)
    }

    pub fn detail(mut self, detail: impl Into<String>) -> Error {
        self.detail = Some(detail.into());
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    /// A failure of the operating system while doing something to something, e.g. `could not open file "x"`.
    pub fn io(doing: impl fmt::Display, e: &std::io::Error) -> Error {
        Error::new(ErrorKind::Storage, format!("{doing}: {e}"))
    }

    /// The process's exit code: 1 for what went wrong in the work, 2 for wrong usage, 3 for a difference found,
    /// 130 for a stop asked by the user.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::Usage => 2,
            ErrorKind::Verify => 3,
            ErrorKind::Cancelled => 130,
            _ => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        if let Some(state) = &self.sqlstate {
            write!(f, " (SQLSTATE {state})")?;
        }
        if let Some(detail) = &self.detail {
            write!(f, "\nDETAIL:  {detail}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nHINT:  {hint}")?;
        }
        if let Some(context) = &self.context {
            write!(f, "\nCONTEXT:  {context}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<firn_lake::Error> for Error {
    fn from(e: firn_lake::Error) -> Error {
        Error::new(ErrorKind::Storage, e.to_string())
    }
}

/// The program's error that travelled as an [`io::Error`], or one made of what the system says.
pub fn of_io(e: std::io::Error) -> Error {
    match e.downcast::<Error>() {
        Ok(ours) => ours,
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            Error::archive("unexpected end of file")
        }
        Err(e) => Error::new(ErrorKind::Storage, e.to_string()),
    }
}
