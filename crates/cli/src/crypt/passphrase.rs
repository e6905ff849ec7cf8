//! Where passphrases come from: a file, the environment, or somebody at a terminal. Never from arguments, which every user of
//! a machine sees.

use super::keys::warn_if_open;
use crate::error::{Error, ErrorKind, Result};
use age::secrecy::SecretString;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The environment variable with a passphrase. It is not passed on to `pg_dump`.
pub const VARIABLE: &str = "FIRN_PASSPHRASE";
/// Bytes of the longest passphrase.
const LONGEST: u64 = 4096;

/// Where to take a passphrase from.
#[derive(Clone, Debug, Default)]
pub struct Passphrase {
    /// A file whose first line it is. Without one the environment is looked at, and then somebody is asked.
    pub file: Option<PathBuf>,
}

impl Passphrase {
    /// Whether the environment has one.
    pub fn is_set() -> bool {
        std::env::var_os(VARIABLE).is_some_and(|text| !text.is_empty())
    }

    /// The passphrase of `what`, e.g. `backup "x"`.
    pub fn get(&self, what: &str) -> Result<SecretString> {
        if let Some(given) = self.given()? {
            return Ok(given);
        }
        ask(&format!("Passphrase of {what}: ")).map_err(|e| {
            Error::new(ErrorKind::Key, format!("the passphrase of {what} is not known"))
                .detail(format!("Nobody could be asked for it: {e}."))
                .hint(format!("--passphrase-file names a file with it, or set {VARIABLE}."))
        })
    }

    /// A passphrase for something new: who types it does so twice.
    pub fn choose(&self) -> Result<SecretString> {
        use age::secrecy::ExposeSecret;
        let chosen = match self.given()? {
            Some(given) => given,
            None => {
                let failed = |e: std::io::Error| {
                    Error::usage("a passphrase is needed to encrypt with")
                        .detail(format!("Nobody could be asked for it: {e}."))
                        .hint(format!("--passphrase-file names a file with it, or set {VARIABLE}."))
                };
                let first = ask("Passphrase for the backup: ").map_err(failed)?;
                let again = ask("The same passphrase again: ").map_err(failed)?;
                if first.expose_secret() != again.expose_secret() {
                    return Err(Error::usage("the passphrases are not the same"));
                }
                first
            }
        };
        match chosen.expose_secret().is_empty() {
            true => Err(Error::usage("the passphrase is empty")),
            false => Ok(chosen),
        }
    }

    fn given(&self) -> Result<Option<SecretString>> {
        let Some(path) = &self.file else {
            let set = std::env::var_os(VARIABLE).filter(|text| !text.is_empty());
            let wrong =
                |_| Error::usage(format!("the passphrase in {VARIABLE} is not valid UTF-8"));
            let text = set.map(|text| text.into_string().map_err(wrong)).transpose()?;
            return Ok(text.map(SecretString::from));
        };
        let shown = path.display();
        let failed = |e| Error::io(format!("could not read passphrase file \"{shown}\""), &e);
        let file = File::open(path).map_err(failed)?;
        warn_if_open(&file, "passphrase file", path);
        // Of full size from the beginning: what grows leaves copies behind.
        let mut text = Zeroizing::new(Vec::with_capacity(LONGEST as usize + 2));
        file.take(LONGEST + 1).read_to_end(&mut text).map_err(failed)?;
        let line = text.split(|&c| c == b'\n').next().unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() as u64 > LONGEST {
            return Err(Error::usage(format!("the passphrase in \"{shown}\" is too long"))
                .detail(format!("Its first line has more than {LONGEST} bytes.")));
        }
        match std::str::from_utf8(line) {
            Ok("") => Err(Error::usage(format!("passphrase file \"{shown}\" is empty"))),
            Ok(line) => Ok(Some(SecretString::from(line.to_owned()))),
            Err(_) => {
                Err(Error::usage(format!("the passphrase in \"{shown}\" is not valid UTF-8")))
            }
        }
    }
}

fn ask(prompt: &str) -> std::io::Result<SecretString> {
    rpassword::prompt_password(prompt).map(SecretString::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use age::secrecy::ExposeSecret;

    #[test]
    fn the_first_line_of_a_file() {
        let path = std::env::temp_dir().join(format!("firn-passphrase-{}", std::process::id()));
        let read = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            let found = Passphrase { file: Some(path.clone()) }.choose();
            found.map(|secret| secret.expose_secret().to_string())
        };
        assert_eq!(read(b"correct horse\nbattery").unwrap(), "correct horse");
        assert_eq!(read(b" with spaces \r\n").unwrap(), " with spaces ");
        assert_eq!(read("ohne Ümlaut".as_bytes()).unwrap(), "ohne Ümlaut");
        for bad in [&b""[..], b"\nsecond", b"\xff\xfe", &[b'x'; 5000]] {
            let e = read(bad).unwrap_err();
            assert_eq!(e.kind, ErrorKind::Usage);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Passphrase { file: Some(path) }.choose().is_err());
    }
}
