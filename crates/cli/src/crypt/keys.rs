//! What opens an encrypted backup.

use super::passphrase::Passphrase;
use super::sealing::Sealing;
use super::stream::{Opened, Refusal};
use super::{secrecy, FORMAT, SECRET_PREFIX};
use crate::error::{Error, ErrorKind, Result};
use crate::say::say;
use age::armor::ArmoredReader;
use age::{scrypt, x25519, Identity};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use zeroize::Zeroizing;

/// Bytes of the largest file with identities.
const LARGEST: u64 = 1 << 20;
/// The most work that is spent on a passphrase, as a power of two: age's own bound, and a smaller one for what lies beside
/// a backup and anybody may have written.
const MOST_WORK: u8 = 22;
const MOST_WORK_BESIDE: u8 = 20;
/// What files begin with that age wrote as text.
const ARMOR: &[u8] = b"-----BEGIN AGE ENCRYPTED FILE-----";

/// Identities, and where to take a passphrase from.
#[derive(Clone, Default)]
pub struct Keys {
    identities: Vec<x25519::Identity>,
    passphrase: Passphrase,
    /// Somebody gave them, and so expects what they open.
    given: bool,
    /// Somebody asked for a passphrase to be used.
    asked: bool,
    /// What a passphrase opened before, so that it need not be asked for again.
    opened: Arc<Mutex<Vec<OpenedFile>>>,
}

/// The bytes of a file with identities, and these.
type OpenedFile = (Vec<u8>, Vec<x25519::Identity>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} identities", self.identities.len())
    }
}

impl Keys {
    /// Identities from files as `age-keygen` makes them, which may be encrypted with a passphrase.
    pub fn read(files: &[PathBuf], passphrase: Passphrase) -> Result<Keys> {
        let given = !files.is_empty() || passphrase.file.is_some() || Passphrase::is_set();
        let mut keys = Keys { passphrase, given, ..Keys::default() };
        if !files.is_empty() {
            secrecy::no_dumps();
        }
        for path in files {
            let shown = path.display();
            let failed = |e| Error::io(format!("could not read identity file \"{shown}\""), &e);
            let file = File::open(path).map_err(failed)?;
            warn_if_open(&file, "identity file", path);
            // Of full size from the beginning: what grows leaves copies behind.
            let mut text = Zeroizing::new(Vec::with_capacity(LARGEST as usize + 2));
            file.take(LARGEST + 1).read_to_end(&mut text).map_err(failed)?;
            if text.len() as u64 > LARGEST {
                return Err(Error::usage(format!("identity file \"{shown}\" is too large")));
            }
            let what = format!("identity file \"{shown}\"");
            let found = match text.starts_with(FORMAT.as_bytes()) || text.starts_with(ARMOR) {
                true => keys.unlock(&what, &text, MOST_WORK)?,
                false => identities(&what, &text)?,
            };
            keys.identities.extend(found);
        }
        Ok(keys)
    }

    /// A key that nobody else has, and how to encrypt for it.
    pub fn generate() -> (Sealing, Keys) {
        secrecy::no_dumps();
        let identity = x25519::Identity::generate();
        let sealing = Sealing::to(identity.to_public());
        (sealing, Keys { identities: vec![identity], ..Keys::default() })
    }

    /// The same keys, and those of a file that a passphrase protects, which lies beside a backup.
    pub fn with_key_file(&self, what: &str, file: &[u8]) -> Result<Keys> {
        secrecy::no_dumps();
        let mut keys = self.clone();
        let mut opened = self.opened.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, known)) = opened.iter().find(|(bytes, _)| bytes == file) {
            keys.identities.extend(known.iter().cloned());
            return Ok(keys);
        }
        let found = self.unlock(what, file, MOST_WORK_BESIDE)?;
        opened.push((file.to_vec(), found.clone()));
        drop(opened);
        keys.identities.extend(found);
        Ok(keys)
    }

    fn unlock(&self, what: &str, file: &[u8], work: u8) -> Result<Vec<x25519::Identity>> {
        let mut identity = scrypt::Identity::new(self.passphrase.get(what)?);
        identity.set_max_work_factor(work);
        let own = std::iter::once(&identity as &dyn Identity);
        let reader = BufReader::new(ArmoredReader::new(file));
        let explain = |refusal| match refusal {
            Refusal::Passphrase => {
                Error::new(ErrorKind::Key, format!("the passphrase of {what} is wrong"))
            }
            Refusal::NoKey => Error::new(
                ErrorKind::Key,
                format!("{what} is encrypted, and not with a passphrase"),
            )
            .hint("Decrypt it first with age."),
            Refusal::Error(e) => {
                Error { message: format!("could not open {what}: {}", e.message), ..e }
            }
        };
        let mut opened = Opened::new(own, reader).map_err(explain)?;
        let mut text = Zeroizing::new(Vec::with_capacity(LARGEST as usize));
        opened
            .by_ref()
            .take(LARGEST)
            .read_to_end(&mut text)
            .map_err(|e| explain(Refusal::Error(crate::error::of_io(e))))?;
        identities(what, &text)
    }

    /// The same keys, for who said that there is a passphrase.
    pub fn asked(self) -> Keys {
        Keys { given: true, asked: true, ..self }
    }

    /// Whether a passphrase may be what opens something: whoever gave identities alone is not asked for one, as anybody who
    /// writes to where a backup lies can claim that it takes one.
    pub fn may_be_passphrase(&self) -> bool {
        self.identities.is_empty()
            || self.asked
            || self.passphrase.file.is_some()
            || Passphrase::is_set()
    }

    /// Whether somebody gave them, and so expects what they open.
    pub fn are_given(&self) -> bool {
        self.given
    }

    /// An error about something that is not encrypted, if it should be: who cannot encrypt for us could else put a backup of
    /// his own in the place of ours.
    pub fn expect_nothing(&self, what: &str) -> Result<()> {
        match self.given {
            false => Ok(()),
            true => Err(self.not_encrypted(what)),
        }
    }

    /// What is said of something that should be encrypted.
    pub fn not_encrypted(&self, what: &str) -> Error {
        Error::new(ErrorKind::Key, format!("{what} is not encrypted, and a key for it was given"))
            .hint("If it should not be encrypted, leave the key out, and FIRN_PASSPHRASE unset. Else it is not what you believe it to be.")
    }

    /// Whether there are no identities.
    pub fn is_empty(&self) -> bool {
        self.identities.is_empty()
    }

    /// Decrypts a stream.
    pub fn open<R: BufRead>(&self, from: R) -> Result<Opened<R>, Refusal> {
        Opened::new(self.identities.iter().map(|identity| identity as &dyn Identity), from)
    }
}

/// The identities in a text, one a line. Nothing of the text is ever repeated.
fn identities(what: &str, text: &[u8]) -> Result<Vec<x25519::Identity>> {
    let mut found = Vec::new();
    for (number, line) in text.split(|&c| c == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let line = std::str::from_utf8(line).unwrap_or_default();
        if let Ok(identity) = line.parse::<x25519::Identity>() {
            found.push(identity);
            continue;
        }
        let upper = Zeroizing::new(line.to_ascii_uppercase());
        let hint = match &upper[..] {
            _ if line.starts_with("-----BEGIN") => {
                "Keys of SSH are not supported. age-keygen makes an identity."
            }
            u if u.starts_with("AGE-PLUGIN-") => {
                "Identities of plugins are not supported here: decrypt the backup with age, and restore the result."
            }
            u if u.starts_with(SECRET_PREFIX) && u[SECRET_PREFIX.len()..].starts_with("PQ-") => {
                "Identities with post-quantum keys are not supported."
            }
            u if u.starts_with(SECRET_PREFIX) => "The line is damaged or incomplete.",
            u if u.starts_with("AGE1") => {
                "It has a recipient, for which can be encrypted. The identity is the secret that age-keygen made with it."
            }
            _ => "age-keygen makes identities: lines that begin with \"AGE-SECRET-KEY-1\".",
        };
        let message = format!("line {} of {what} is not an identity", number + 1);
        return Err(Error::new(ErrorKind::Key, message).hint(hint));
    }
    match found.is_empty() {
        true => Err(Error::new(ErrorKind::Key, format!("{what} has no identity"))
            .hint("age-keygen makes identities: lines that begin with \"AGE-SECRET-KEY-1\".")),
        false => Ok(found),
    }
}

/// Warns if others may read a file with a secret. What is no regular file is the business of who made it.
pub(super) fn warn_if_open(file: &File, what: &str, path: &Path) {
    let Ok(meta) = file.metadata() else { return };
    if meta.is_file() && meta.mode() & 0o077 != 0 {
        let shown = path.display();
        say(&format!("firn: warning: {what} \"{shown}\" has group or world access"));
        say(&format!("HINT:  It is a secret: chmod 600 \"{shown}\""));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use age::secrecy::ExposeSecret;

    #[test]
    fn identity_files() {
        let (one, two) = (x25519::Identity::generate(), x25519::Identity::generate());
        let (a, b) = (one.to_string(), two.to_string());
        let (a, b) = (a.expose_secret(), b.expose_secret());
        let text = format!("# created: now\n# public key: x\n{a}\n\n  {b}\r\n");
        let found = identities("file", text.as_bytes()).unwrap();
        assert_eq!(found.len(), 2);
        assert!(found[1].to_public().to_string() == two.to_public().to_string());
        for (text, said) in [
            ("", "has no identity"),
            ("# nothing\n", "has no identity"),
            (&a[..40], "incomplete"),
            ("AGE-PLUGIN-YUBIKEY-1QQQ", "plugins"),
            ("AGE-SECRET-KEY-PQ-1QQQ", "post-quantum"),
            ("-----BEGIN OPENSSH PRIVATE KEY-----", "SSH"),
            (&one.to_public().to_string(), "recipient"),
            ("hunter2", "line 1"),
        ] {
            let e = identities("file", text.as_bytes()).err().unwrap().to_string();
            assert!(e.contains(said), "{e}");
            assert!(!e.contains("hunter2") && !e.contains(&a[20..40]), "{e}");
        }
        let e = identities("file", b"\xff\xfe").err().unwrap();
        assert_eq!(e.kind, ErrorKind::Key);
    }

    #[test]
    fn nothing_is_shown() {
        let key = x25519::Identity::generate();
        let keys = Keys { identities: vec![key], ..Keys::default() };
        assert_eq!(format!("{keys:?}"), "1 identities");
    }
}
