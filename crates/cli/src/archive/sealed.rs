//! Encrypted backups: finding the key, and what the manifests say of the files.

use super::checked::Expected;
use super::folder::Folder;
use super::manifest::{self, selection, Encryption, Head, Manifest};
use super::member::Member;
use crate::crypt::{self, Keys, Opened, Refusal};
use crate::error::{Error, ErrorKind, Result};
use std::io::{BufRead, BufReader, Read};

/// What it takes to read an encrypted folder.
pub(super) struct Seal {
    keys: Keys,
    /// Sizes and sums of the encrypted files.
    public: Expected,
}

/// The encrypted manifest's file, and the largest file with a key.
const OWN: &str = "manifest.json.age";
const LARGEST_KEY: u64 = 1 << 16;

/// Opens the encrypted manifest of a backup with the keys there are. `location` is for messages.
pub(super) fn unlock(
    folder: &Folder,
    public: &Manifest,
    keys: &Keys,
    location: &str,
) -> Result<(Seal, Manifest)> {
    let expected = Expected::of(public)?;
    let sealed = own_manifest(folder, &expected)?;
    let passphrase = public.head.encryption.as_ref().is_some_and(|e| e.passphrase);
    let backup = format!("backup \"{location}\"");
    let mut keys = keys.clone();
    let mut found = keys.open(&sealed[..]);
    if passphrase && matches!(found, Err(Refusal::NoKey)) && keys.may_be_passphrase() {
        let file = folder.read_small(crypt::KEY_FILE.as_bytes(), LARGEST_KEY)?;
        keys = keys.with_key_file(&backup, &file)?;
        found = keys.open(&sealed[..]);
    }
    let mut reader = found.map_err(|refusal| match refusal {
        Refusal::Error(e) => e,
        Refusal::NoKey | Refusal::Passphrase if keys.is_empty() => {
            Error::new(ErrorKind::Key, format!("{backup} is encrypted"))
                .hint("Give the file with the identity that it was encrypted for: --identity=FILE.")
        }
        Refusal::NoKey | Refusal::Passphrase => {
            let e =
                Error::new(ErrorKind::Key, format!("no identity that was given opens {backup}"));
            match public.head.encryption.as_ref().map_or(1, |e| e.recipients) {
                _ if passphrase => e
                    .detail("It was encrypted with a passphrase.")
                    .hint("Give --passphrase-file=FILE, or --passphrase to be asked for it."),
                recipients => e
                    .detail(match recipients {
                        1 => "It was encrypted for one recipient.".to_string(),
                        n => format!("It was encrypted for {n} recipients."),
                    })
                    .hint(
                        "Give the identity of a recipient that was named when the backup was made.",
                    ),
            }
        }
    })?;
    let mut text = Vec::new();
    reader.read_to_end(&mut text).map_err(crate::error::of_io)?;
    let own = Manifest::from_text(&text)?;
    agree(public, &own)?;
    Ok((Seal { keys, public: expected }, own))
}

/// The bytes of the encrypted manifest, compared with what the public one says: so a key that does not fit is not
/// mistaken for damage.
fn own_manifest(folder: &Folder, public: &Expected) -> Result<Vec<u8>> {
    let member = folder.find_sized(OWN.as_bytes(), public)?;
    let mut bytes = Vec::new();
    public.check(OWN.as_bytes(), &member)?.read_to_end(&mut bytes).map_err(crate::error::of_io)?;
    Ok(bytes)
}

impl Seal {
    /// The name under which a file lies there.
    pub fn name(name: &[u8]) -> Vec<u8> {
        [name, crypt::SUFFIX.as_bytes()].concat()
    }

    /// What the manifest that anybody may read says.
    pub fn public(&self) -> &Expected {
        &self.public
    }

    /// Decrypts a file.
    pub fn open(&self, member: &Member) -> Result<Box<dyn BufRead + Send>> {
        self.public.check_size(member.name.as_bytes(), member)?;
        self.decrypt(&member.name, member.whole())
    }

    /// Decrypts a file and compares its encrypted bytes with their sum, too.
    pub fn open_compared(&self, member: &Member) -> Result<Box<dyn BufRead + Send>> {
        self.decrypt(&member.name, self.public.check(member.name.as_bytes(), member)?)
    }

    fn decrypt(
        &self,
        name: &str,
        from: impl BufRead + Send + 'static,
    ) -> Result<Box<dyn BufRead + Send>> {
        let opened = open(&self.keys, &format!("file \"{name}\""), from)?;
        // Pieces of age's have 64 kB.
        Ok(Box::new(BufReader::with_capacity(64 << 10, opened)))
    }

    /// The encrypted manifest's text, again.
    pub fn manifest(&self, folder: &Folder) -> Result<Manifest> {
        let sealed = own_manifest(folder, &self.public)?;
        let mut text = Vec::new();
        let mut reader = open(&self.keys, &format!("file \"{OWN}\""), &sealed[..])?;
        reader.read_to_end(&mut text).map_err(crate::error::of_io)?;
        Manifest::from_text(&text)
    }
}

/// The name of a manifest file for messages.
pub(super) fn manifest_file(sealed: bool) -> &'static str {
    match sealed {
        true => OWN,
        false => manifest::FILE,
    }
}

/// Decrypts a file of which it is known that the keys fit the backup.
pub fn open<R: BufRead>(keys: &Keys, what: &str, from: R) -> Result<Opened<R>> {
    keys.open(from).map_err(|refusal| match refusal {
        Refusal::Error(e) => e,
        Refusal::NoKey | Refusal::Passphrase => Error::archive(format!(
            "{what} was encrypted for others than the backup, or its header is damaged"
        )),
    })
}

/// Checks that two manifests of a backup, the one that anybody may read and write, and the encrypted one, are of the same
/// backup: that names and sums of files are bound to each other.
pub fn agree(public: &Manifest, own: &Manifest) -> Result<()> {
    let Some(encryption) = &public.head.encryption else {
        return Err(Error::new(ErrorKind::Internal, "the backup is not encrypted"));
    };
    let differ = |detail: String| {
        Err(Error::archive("the backup's two manifests do not belong together")
            .detail(detail)
            .hint(format!(
                "Somebody changed \"{}\", or files of several backups were mixed.",
                manifest::FILE
            )))
    };
    let selected = manifest::has_secret_choice(&own.head.options);
    let encryption = Encryption { selected, ..encryption.clone() };
    let (said, meant) = (&public.head, own.head.public(&encryption));
    for (what, one, other) in [
        ("database", &said.database, &meant.database),
        ("snapshot_time", &said.snapshot_time, &meant.snapshot_time),
        ("snapshot_lsn", &said.snapshot_lsn, &meant.snapshot_lsn),
        ("started", &said.started, &meant.started),
    ] {
        if one != other {
            let (one, other) = (one.escape_debug(), other.escape_debug());
            return differ(format!(
                "\"{what}\" is \"{one}\" in \"{}\" and \"{other}\" in \"{}\".",
                manifest::FILE,
                manifest::FILE.to_string() + crypt::SUFFIX
            ));
        }
    }
    // Until the flags that name nothing were told, none was, and any of them was a choice.
    let chose = !selection(&own.head.options).is_empty();
    let before = Encryption { selected: chose, ..encryption.clone() };
    let before = Head { options: Vec::new(), encryption: Some(before), ..meant.clone() };
    if *said != meant && *said != before {
        return differ(format!("What \"{}\" says of the backup was changed.", manifest::FILE));
    }
    let mut names: Vec<String> =
        own.files.iter().map(|file| file.name.clone() + crypt::SUFFIX).collect();
    names.push(manifest::FILE.to_string() + crypt::SUFFIX);
    if encryption.passphrase {
        names.push(crypt::KEY_FILE.to_string());
    }
    names.sort();
    let mut listed: Vec<&str> = public.files.iter().map(|file| &file.name[..]).collect();
    listed.sort_unstable();
    for pair in names.iter().map(String::as_str).zip(listed.iter().copied()) {
        if pair.0 != pair.1 {
            let first = pair.0.min(pair.1);
            return differ(format!("File \"{}\" is in only one of them.", first.escape_debug()));
        }
    }
    match names.len() == listed.len() {
        true => Ok(()),
        false => differ(format!("One lists {} files, the other {}.", listed.len(), names.len())),
    }
}
