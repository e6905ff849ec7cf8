//! Flags about encrypted backups, named as the tool age names them.

use crate::crypt::{Keys, Passphrase, Sealing};
use crate::error::{Error, Result};
use clap::{Args, ValueHint};
use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Under this word help and manual list the flags.
const HEADING: &str = "Encryption";

/// For whom to encrypt.
#[derive(Args, Clone, Debug, Default)]
pub struct Encrypt {
    /// encrypt for this recipient, as age-keygen tells it (age1...); may be repeated
    #[arg(short = 'r', long, alias = "recipient", value_name = "RECIPIENT", help_heading = HEADING)]
    pub encrypt_to: Vec<String>,
    /// encrypt for the recipients in FILE, one a line; may be repeated
    #[arg(short = 'R', long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = HEADING)]
    pub recipients_file: Vec<PathBuf>,
    /// encrypt with a passphrase: of --passphrase-file, of the environment variable FIRN_PASSPHRASE, or prompted for
    #[arg(long, conflicts_with_all = ["encrypt_to", "recipients_file"], help_heading = HEADING)]
    pub passphrase: bool,
    /// encrypt with the passphrase in the first line of FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["encrypt_to", "recipients_file"], help_heading = HEADING)]
    pub passphrase_file: Option<PathBuf>,
}

impl Encrypt {
    /// Whether any of the flags was given.
    pub fn is_asked(&self) -> bool {
        let by_passphrase = self.passphrase || self.passphrase_file.is_some();
        by_passphrase || !self.encrypt_to.is_empty() || !self.recipients_file.is_empty()
    }

    /// For whom, if anybody.
    pub fn sealing(&self) -> Result<Option<Sealing>> {
        if self.passphrase || self.passphrase_file.is_some() {
            let passphrase = Passphrase { file: self.passphrase_file.clone() };
            return Sealing::with_passphrase(&passphrase).map(Some);
        }
        if self.encrypt_to.is_empty() && self.recipients_file.is_empty() {
            return Ok(None);
        }
        Sealing::to_recipients(&self.encrypt_to, &self.recipients_file).map(Some)
    }
}

/// What opens an encrypted backup.
#[derive(Args, Clone, Debug, Default)]
pub struct Locked {
    /// decrypt with the identities in FILE, as age-keygen makes it; may be repeated
    #[arg(short = 'i', long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = HEADING)]
    pub identity: Vec<PathBuf>,
    /// decrypt with a passphrase: of --passphrase-file, of the environment variable FIRN_PASSPHRASE, or prompted for
    #[arg(long, help_heading = HEADING)]
    pub passphrase: bool,
    /// decrypt with the passphrase in the first line of FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = HEADING)]
    pub passphrase_file: Option<PathBuf>,
}

impl Locked {
    /// The keys; none if nothing was said of them, so that nobody is asked for anything.
    pub fn keys(&self) -> Result<Option<Keys>> {
        let given = !self.identity.is_empty()
            || self.passphrase
            || self.passphrase_file.is_some()
            || Passphrase::is_set();
        given.then(|| self.all_keys()).transpose()
    }

    /// An error if a secret is to be read from standard input, from which something else comes.
    pub fn leave_standard_input(&self) -> Result<()> {
        let number = |file: std::io::Result<Metadata>| file.ok().map(|m| (m.dev(), m.ino()));
        let stdin = std::io::stdin().as_fd().try_clone_to_owned().map(File::from);
        let stdin = number(stdin.and_then(|file| file.metadata()));
        for file in self.identity.iter().chain(&self.passphrase_file) {
            if stdin.is_some() && number(std::fs::metadata(file)) == stdin {
                let message = "archive and key cannot both be read from standard input";
                return Err(Error::usage(message).hint("Name the archive, or a file with the key."));
            }
        }
        Ok(())
    }

    /// The keys; where a passphrase is needed and was not given, it is asked for.
    pub fn all_keys(&self) -> Result<Keys> {
        for file in &self.identity {
            if file.as_os_str() == "-" {
                return Err(Error::usage("an identity is not read from \"-\"")
                    .hint("Standard input is --identity=/dev/stdin."));
            }
        }
        let keys = Keys::read(&self.identity, Passphrase { file: self.passphrase_file.clone() })?;
        Ok(if self.passphrase { keys.asked() } else { keys })
    }
}
