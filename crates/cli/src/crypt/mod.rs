//! Encryption of backups, in the format of the tool age (<https://age-encryption.org/v1>), by the library of that name.
//!
//! Every file of a backup is a file of age by itself, so that `age --decrypt` and `pg_restore` do without us. What binds
//! the files together is the manifest; docs/decisions/0020-encryption.md says what is protected from whom.
//!
//! - [`Sealing`]: for whom a backup is encrypted; [`Keys`]: what opens it.
//! - [`Sealed`], [`Opened`]: the way of the data through either.
//! - [`passphrase`]: where passphrases come from; [`secrecy`]: keeping secrets out of core dumps.

mod keys;
mod passphrase;
mod sealing;
pub mod secrecy;
mod stream;

pub use keys::Keys;
pub use passphrase::{Passphrase, VARIABLE};
pub use sealing::Sealing;
pub use stream::{Opened, Refusal, Sealed};

/// What encryption adds to the name of a file.
pub const SUFFIX: &str = ".age";
/// The file with the key of a backup that is encrypted with a passphrase.
pub const KEY_FILE: &str = "key.age";
/// The format's name, with which its files begin.
pub const FORMAT: &str = "age-encryption.org/v1";
/// What secret keys begin with.
pub const SECRET_PREFIX: &str = "AGE-SECRET-KEY-";
