//! What `pg_restore` does on one connection, statement by statement in its own order: printed as a script (`-f`), or run in
//! one or few transactions (`-1`, `--transaction-size`).
//!
//! The text is that of `pg_restore` 18 to the byte, whatever version made the archive: `pg_backup_archiver.c` in
//! PostgreSQL's sources says how. The planner has no part in it; neither has the journal.
//!
//! - [`walk`]: which statements, in which order; `entry`: those of one entry; `drops`: those of `--clean`.
//! - [`text`], [`server`]: where the statements go.

mod drops;
mod entry;
pub mod server;
pub mod text;
pub mod walk;

use crate::archive::{Archive, Entry};
use crate::error::Result;
use crate::plan::select::Filter;
use crate::restore::Asked;

/// What the flags ask for, besides the archive.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// What to restore, with the list of `-L`.
    pub filter: Filter,
    pub asked: Asked,
    pub create: bool,
    pub role: Option<String>,
    pub row_security: bool,
    pub single_transaction: bool,
    /// Commit after so many statements.
    pub transaction_size: Option<u32>,
    /// The word that lets psql out of its restricted mode, in scripts.
    pub restrict_key: String,
}

/// Where statements go.
pub trait Sink {
    /// One or more statements, as a script has them.
    fn sql(&mut self, text: &[u8]) -> Result<()>;

    /// What only a script has: comments, commands of psql.
    fn remark(&mut self, text: &[u8]) -> Result<()>;

    /// From now on in this database.
    fn connect(&mut self, database: &[u8], restrict_key: &str) -> Result<()>;

    /// The rows of an entry, with the statement that copies them if there is one.
    fn rows(&mut self, archive: &Archive, place: usize) -> Result<()>;

    /// So many bytes of an entry's large objects were written.
    fn wrote(&mut self, _place: usize, _bytes: u64) {}

    /// What follows is the last COMMIT.
    fn last(&mut self) -> Result<()> {
        Ok(())
    }

    /// What follows belongs to this entry.
    fn begin(&mut self, _entry: &Entry) {}

    /// To be as `pg_restore` writes it, to the letter.
    fn is_script(&self) -> bool {
        true
    }

    /// The server does not know this setting.
    fn lacks_transaction_timeout(&self) -> bool {
        false
    }
}
