//! Encrypting and decrypting streams.

use super::FORMAT;
use crate::error::of_io;
use crate::error::{Error, ErrorKind, Result};
use age::stream::{StreamReader, StreamWriter};
use age::{DecryptError, Decryptor, Encryptor, Identity, Recipient};
use std::io::{self, BufRead, Chain, Cursor, Read, Write};

/// The longest header that is looked at. One for a hundred recipients has about ten thousand bytes; each recipient of a
/// longer one would cost a computation before anything is known to be right.
const LONGEST_HEADER: u64 = 256 << 10;

/// Encrypts what is written to it.
pub struct Sealed<W: Write>(StreamWriter<W>);

impl<W: Write> Sealed<W> {
    /// Each stream has a key of its own, wrapped for every recipient in its header.
    pub fn new<'a>(
        recipients: impl Iterator<Item = &'a dyn Recipient>,
        to: W,
    ) -> Result<Sealed<W>> {
        let encryptor = Encryptor::with_recipients(recipients)
            .map_err(|e| Error::new(ErrorKind::Internal, format!("could not encrypt: {e}")))?;
        encryptor.wrap_output(to).map(Sealed).map_err(of_io)
    }

    /// Ends the stream. Without this what was written cannot be decrypted to its end.
    pub fn finish(self) -> io::Result<W> {
        self.0.finish()
    }
}

impl<W: Write> Write for Sealed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Why something could not be opened.
#[derive(Debug)]
pub enum Refusal {
    /// It is for others.
    NoKey,
    /// The passphrase is not the one.
    Passphrase,
    /// What there is makes no sense or cannot be read.
    Error(Error),
}

/// Decrypts what it reads. Each piece of 64 kB is authenticated before any of it is given out, and the last is known to be
/// the last; that it is the right file, nobody can tell from it alone.
pub struct Opened<R: BufRead>(StreamReader<Chain<Cursor<Vec<u8>>, R>>);

impl<R: BufRead> Opened<R> {
    /// Reads the header and finds the key.
    pub fn new<'a>(
        identities: impl Iterator<Item = &'a dyn Identity>,
        mut from: R,
    ) -> Result<Opened<R>, Refusal> {
        let header = header(&mut from).map_err(Refusal::Error)?;
        let damaged =
            || Refusal::Error(Error::archive("the header of the encrypted file is damaged"));
        let decryptor = Decryptor::new_buffered(Cursor::new(header).chain(from));
        let reader = decryptor.and_then(|decryptor| decryptor.decrypt(identities));
        reader.map(Opened).map_err(|e| match e {
            DecryptError::NoMatchingKeys => Refusal::NoKey,
            DecryptError::DecryptionFailed | DecryptError::KeyDecryptionFailed => {
                Refusal::Passphrase
            }
            DecryptError::ExcessiveWork { required, .. } => Refusal::Error(
                Error::archive("the passphrase of the encrypted file takes too much work")
                    .detail(format!("It is protected by 2^{required} rounds of scrypt.")),
            ),
            DecryptError::Io(e) if e.kind() != io::ErrorKind::UnexpectedEof => {
                Refusal::Error(of_io(e))
            }
            _ => damaged(),
        })
    }
}

/// Reads a header, without what follows it.
fn header(from: &mut impl BufRead) -> Result<Vec<u8>> {
    let mut header = Vec::new();
    let mut rest = from.take(LONGEST_HEADER);
    loop {
        let start = header.len();
        rest.read_until(b'\n', &mut header).map_err(of_io)?;
        let line = &header[start..];
        if start == 0 && line.strip_suffix(b"\n") != Some(FORMAT.as_bytes()) {
            return Err(match line.starts_with(b"age-encryption.org/") {
                true => {
                    Error::archive("the file is encrypted in an unknown version of age's format")
                }
                false => Error::archive("the file does not begin as one that age encrypted"),
            });
        }
        if line.last() != Some(&b'\n') {
            return Err(Error::archive("the header of the encrypted file does not end"));
        }
        if line.starts_with(b"--- ") {
            return Ok(header);
        }
    }
}

impl<R: BufRead> Read for Opened<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out).map_err(|e| {
            let ours = e.get_ref().is_some_and(|inner| inner.is::<Error>());
            if ours || e.raw_os_error().is_some() {
                return e;
            }
            // Never passed on as it is: some decoders take the kind of an early end for a good one.
            io::Error::other(Error::archive(match e.kind() {
                io::ErrorKind::UnexpectedEof => "the encrypted file was cut off",
                _ => "the encrypted file was changed: a part of it is not what was encrypted",
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use age::x25519;
    use proptest::prelude::*;

    fn sealed(recipients: &[x25519::Recipient], text: &[u8]) -> Vec<u8> {
        let list = recipients.iter().map(|r| r as &dyn Recipient);
        let mut out = Sealed::new(list, Vec::new()).unwrap();
        out.write_all(text).unwrap();
        out.finish().unwrap()
    }

    fn opened(identity: &x25519::Identity, bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
        let identities = std::iter::once(identity as &dyn Identity);
        let mut text = Vec::new();
        let mut reader = Opened::new(identities, bytes)?;
        reader.read_to_end(&mut text).map_err(|e| Refusal::Error(of_io(e)))?;
        Ok(text)
    }

    /// Lengths around the ends of age's pieces.
    const LENGTHS: [usize; 8] = [0, 1, 100, 65_535, 65_536, 65_537, 131_072, 200_000];

    fn text(length: usize) -> Vec<u8> {
        (0..length).map(|n| (n * 7 % 251) as u8).collect()
    }

    #[test]
    fn there_and_back() {
        let (one, two) = (x25519::Identity::generate(), x25519::Identity::generate());
        for length in LENGTHS {
            let text = text(length);
            let file = sealed(&[one.to_public(), two.to_public()], &text);
            assert!(opened(&one, &file).unwrap() == text && opened(&two, &file).unwrap() == text);
            let other = x25519::Identity::generate();
            assert!(matches!(opened(&other, &file), Err(Refusal::NoKey)));
        }
    }

    #[test]
    fn every_cut_and_every_addition_is_noticed() {
        let key = x25519::Identity::generate();
        for length in LENGTHS {
            let file = sealed(&[key.to_public()], &text(length));
            let begin = file.len().saturating_sub(40);
            for end in (0..300.min(file.len())).chain(begin..file.len()).chain([65_800, 131_400]) {
                if end < file.len() {
                    assert!(opened(&key, &file[..end]).is_err(), "{length} cut to {end}");
                }
            }
            for more in [1, 16, 17, 65_552] {
                let longer = [&file[..], &vec![0; more]].concat();
                assert!(opened(&key, &longer).is_err(), "{length} and {more}");
            }
        }
    }

    #[test]
    fn pieces_cannot_change_places() {
        let key = x25519::Identity::generate();
        let file = sealed(&[key.to_public()], &text(3 * 65_536));
        let pieces = file.len() - 3 * 65_552;
        let mut swapped = file.clone();
        let (one, two) = swapped[pieces..].split_at_mut(65_552);
        one.swap_with_slice(&mut two[..65_552]);
        assert!(opened(&key, &swapped).is_err());
        let dropped = [&file[..pieces], &file[pieces + 65_552..]].concat();
        assert!(opened(&key, &dropped).is_err());
    }

    #[test]
    fn endless_headers_end() {
        let key = x25519::Identity::generate();
        let line = b"-> X25519 AAAA\nAAAA\n".repeat(100_000);
        let hostile = [FORMAT.as_bytes(), b"\n", &line].concat();
        let Err(Refusal::Error(e)) = opened(&key, &hostile) else { panic!() };
        assert!(e.message.contains("does not end"), "{e}");
        let long = [FORMAT.as_bytes(), &vec![b'x'; 1 << 20]].concat();
        assert!(opened(&key, &long).is_err());
        assert!(opened(&key, b"PGDMP").is_err() && opened(&key, b"").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        /// Whatever one byte becomes, it is noticed, and nothing wrong was given out before.
        #[test]
        fn every_changed_byte_is_noticed(length in 0usize..70_000, at in any::<prop::sample::Index>(), change in 1u8..) {
            let key: x25519::Identity = KEY.trim().parse().unwrap();
            let text = text(length);
            let mut file = sealed(&[key.to_public()], &text);
            let at = at.index(file.len());
            file[at] ^= change;
            let found = Opened::new(std::iter::once(&key as &dyn Identity), &file[..]);
            if let Ok(mut reader) = found {
                let mut out = Vec::new();
                prop_assert!(reader.read_to_end(&mut out).is_err());
                prop_assert!(text.starts_with(&out));
            }
        }

        /// Anything at all: an error, never a panic.
        #[test]
        fn rubbish_is_an_error(rest in prop::collection::vec(any::<u8>(), 0..2000)) {
            let key: x25519::Identity = KEY.trim().parse().unwrap();
            prop_assert!(opened(&key, &rest).is_err());
            let begun = [FORMAT.as_bytes(), b"\n-> ", &rest, b"\n--- ", &rest, b"\n", &rest].concat();
            prop_assert!(opened(&key, &begun).is_err());
        }
    }

    const KEY: &str = include_str!("testdata/key.txt");

    /// What another implementation wrote: age 1.3.2 (Go).
    #[test]
    fn files_of_age_itself() {
        let key: x25519::Identity = KEY.trim().parse().unwrap();
        let text = opened(&key, include_bytes!("testdata/text.age")).unwrap();
        assert_eq!(text, include_bytes!("testdata/text.txt"));
    }
}
