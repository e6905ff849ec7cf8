//! For whom a backup is encrypted.

use super::passphrase::Passphrase;
use super::stream::Sealed;
use super::{secrecy, SECRET_PREFIX};
use crate::error::{Error, ErrorKind, Result};
use age::secrecy::ExposeSecret;
use age::{scrypt, x25519, Recipient};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The work that a passphrase costs who tries it, as a power of two: what age itself takes, about a second and 256 MB.
const WORK: u8 = 18;

/// The most recipients: each takes about a hundred bytes of every file's header, and longer headers are not read.
const MOST: usize = 1000;
/// Where recipients stand that are arguments.
const COMMAND_LINE: &str = "in the command line";

/// For whom a backup is encrypted.
#[derive(Clone)]
pub struct Sealing {
    recipients: Arc<[x25519::Recipient]>,
    /// Of a backup with a passphrase: the file with the key, encrypted with the passphrase.
    key_file: Option<Arc<[u8]>>,
}

impl Sealing {
    pub(super) fn to(recipient: x25519::Recipient) -> Sealing {
        Sealing { recipients: [recipient].into(), key_file: None }
    }

    /// For recipients, as given and as listed in files.
    pub fn to_recipients(given: &[String], files: &[PathBuf]) -> Result<Sealing> {
        // Keys of files and rows will be in memory.
        secrecy::no_dumps();
        let mut texts = Vec::new();
        for text in given {
            texts.push((COMMAND_LINE.to_string(), text.clone()));
        }
        for file in files {
            let shown = file.display();
            let listed = std::fs::read_to_string(file).map_err(|e| {
                Error::io(format!("could not read recipients file \"{shown}\""), &e)
            })?;
            let before = texts.len();
            for (number, line) in listed.lines().enumerate() {
                let line = line.trim();
                if !line.is_empty() && !line.starts_with('#') {
                    let place = format!("in line {} of \"{shown}\"", number + 1);
                    texts.push((place, line.to_string()));
                }
            }
            if texts.len() == before {
                return Err(Error::usage(format!("recipients file \"{shown}\" names nobody")));
            }
        }
        texts.sort_by(|a, b| a.1.cmp(&b.1));
        texts.dedup_by(|a, b| a.1 == b.1);
        if texts.len() > MOST {
            return Err(Error::usage(format!("there are too many recipients: {}", texts.len()))
                .detail(format!("A backup is encrypted for at most {MOST}."))
                .hint("Every file names a key for each of them. Encrypt for one whose identity they share."));
        }
        let recipients = texts.iter().map(|(place, text)| recipient(text, place));
        let recipients = recipients.collect::<Result<_>>()?;
        Ok(Sealing { recipients, key_file: None })
    }

    /// With a passphrase. It protects a key made for this backup alone: trying it takes a second, which would be too long
    /// for every file, and who does not know it cannot make files that fit in.
    pub fn with_passphrase(passphrase: &Passphrase) -> Result<Sealing> {
        secrecy::no_dumps();
        let chosen = passphrase.choose()?;
        let key = x25519::Identity::generate();
        let public = key.to_public();
        let secret = key.to_string();
        let text = Zeroizing::new(format!(
            "# The key of one backup of firn.\n# public key: {public}\n{}\n",
            secret.expose_secret()
        ));
        let mut recipient = scrypt::Recipient::new(chosen);
        recipient.set_work_factor(WORK);
        let mut out = Sealed::new(std::iter::once(&recipient as &dyn Recipient), Vec::new())?;
        let written = out.write_all(text.as_bytes()).and_then(|()| out.finish());
        let file = written.map_err(|e| Error::io("could not encrypt the backup's key", &e))?;
        Ok(Sealing { recipients: [public].into(), key_file: Some(file.into()) })
    }

    /// Encrypts what is written to it, to `to`.
    pub fn seal<W: Write>(&self, to: W) -> Result<Sealed<W>> {
        Sealed::new(self.recipients.iter().map(|r| r as &dyn Recipient), to)
    }

    /// The file with the key, of a backup with a passphrase.
    pub fn key_file(&self) -> Option<&[u8]> {
        self.key_file.as_deref()
    }

    /// For how many recipients.
    pub fn recipients(&self) -> usize {
        self.recipients.len()
    }
}

/// A recipient by its text. Of a file nothing is repeated, as it may be another than was meant: one with a passphrase, say.
fn recipient(text: &str, place: &str) -> Result<x25519::Recipient> {
    let wrong = |message: String, hint: &str| {
        Err(Error::new(ErrorKind::Usage, message).hint(hint.to_string()))
    };
    if text.to_ascii_uppercase().contains(SECRET_PREFIX) {
        return wrong(
            format!("{place} is an identity, which is secret, and not a recipient"),
            "age-keygen -y tells the recipient, which begins with \"age1\". A secret in a command line was seen by others: \
             make a new one.",
        );
    }
    if let Ok(recipient) = text.parse() {
        return Ok(recipient);
    }
    let only = "Recipients are made by age-keygen and begin with \"age1\".";
    let named = match place {
        COMMAND_LINE => {
            let shown: String = text.chars().take(100).collect();
            format!("\"{}\" {place}", shown.escape_debug())
        }
        _ => format!("what stands {place}"),
    };
    match text {
        _ if text.starts_with("ssh-") => {
            wrong(format!("keys of SSH are not supported as recipients ({place})"), only)
        }
        // age1pq1…, age1yubikey1…: names in the place of the first digits.
        _ if text.starts_with("age1") && text[4..].contains('1') => wrong(
            format!("{named} is a recipient of a kind that is not supported"),
            "Recipients of age's own kind (X25519) are; those of plugins and with post-quantum keys are not.",
        ),
        _ => wrong(format!("{named} is not a recipient"), only),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypt::Keys;
    use std::io::Read;

    #[test]
    fn recipients() {
        let keys: Vec<_> = (0..3).map(|_| x25519::Identity::generate()).collect();
        let names: Vec<String> = keys.iter().map(|key| key.to_public().to_string()).collect();
        let path = std::env::temp_dir().join(format!("firn-recipients-{}", std::process::id()));
        std::fs::write(&path, format!("# us\n\n {} \n{}\n", names[1], names[2])).unwrap();
        let sealing = Sealing::to_recipients(&names[..2], std::slice::from_ref(&path)).unwrap();
        assert_eq!(sealing.recipients(), 3);
        std::fs::write(&path, "# nobody\n").unwrap();
        assert!(Sealing::to_recipients(&[], std::slice::from_ref(&path)).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(Sealing::to_recipients(&[], &[path]).is_err());
    }

    /// Each takes a part of every file's header, and longer ones are not read.
    #[test]
    fn many_recipients() {
        let path = std::env::temp_dir().join(format!("firn-many-{}", std::process::id()));
        let identities: Vec<_> = (0..=MOST).map(|_| x25519::Identity::generate()).collect();
        let list = |n: usize| {
            let names: Vec<_> = identities[..n].iter().map(|i| i.to_public().to_string()).collect();
            std::fs::write(&path, names.join("\n")).unwrap();
            Sealing::to_recipients(&names[..1], std::slice::from_ref(&path))
        };
        assert_eq!(list(MOST + 1).err().unwrap().kind, ErrorKind::Usage);
        let mut out = list(MOST).unwrap().seal(Vec::new()).unwrap();
        out.write_all(b"text").unwrap();
        let file = out.finish().unwrap();
        let last = identities[MOST - 1].to_string();
        std::fs::write(&path, last.expose_secret()).unwrap();
        let keys = Keys::read(std::slice::from_ref(&path), Passphrase::default()).unwrap();
        let mut text = String::new();
        keys.open(&file[..]).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_no_recipient() {
        let secret = x25519::Identity::generate().to_string();
        let secret = secret.expose_secret();
        for (text, said) in [
            (secret, "which is secret"),
            (&secret.to_lowercase(), "which is secret"),
            ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO", "SSH"),
            ("age1yubikey1qwerty", "not supported"),
            ("age1pq1qqqq", "not supported"),
            ("age1qqqq", "is not a recipient"),
            ("", "is not a recipient"),
        ] {
            let e = Sealing::to_recipients(&[text.to_string()], &[]).err().unwrap();
            assert!(e.message.contains(said), "{text}: {e}");
            assert!(!e.to_string().to_ascii_uppercase().contains(secret), "{e}");
        }
    }

    #[test]
    fn a_passphrase_protects_a_key() {
        let path = std::env::temp_dir().join(format!("firn-sealing-{}", std::process::id()));
        std::fs::write(&path, "open sesame").unwrap();
        let passphrase = Passphrase { file: Some(path.clone()) };
        let sealing = Sealing::with_passphrase(&passphrase).unwrap();
        let mut out = sealing.seal(Vec::new()).unwrap();
        out.write_all(b"text").unwrap();
        let file = out.finish().unwrap();
        let keys = Keys::read(&[], passphrase.clone()).unwrap();
        let keys = keys.with_key_file("a backup", sealing.key_file().unwrap()).unwrap();
        let mut text = String::new();
        keys.open(&file[..]).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        std::fs::write(&path, "open barley").unwrap();
        let keys = Keys::read(&[], passphrase).unwrap();
        let e = keys.with_key_file("a backup", sealing.key_file().unwrap()).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Key);
        assert!(e.message.contains("passphrase") && !e.to_string().contains("barley"), "{e}");
        std::fs::remove_file(&path).unwrap();
    }
}
