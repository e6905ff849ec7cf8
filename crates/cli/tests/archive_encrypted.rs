//! Encrypted backups in memory: whatever is changed, cut off, exchanged or added by who has the recipient or not, reading ends in
//! an error or in the same contents, and never in a panic.

#[path = "archives/manifest.rs"]
mod manifest;
#[path = "archives/read.rs"]
mod read;

use firn_cli::archive::manifest::{hex, Encryption, FileRecord, Manifest};
use firn_cli::archive::Archive;
use firn_cli::crypt::{Keys, Passphrase, Sealing};
use firn_cli::error::{Error, ErrorKind, Result};
use manifest::{manifest_of, with_manifest, Files};
use proptest::prelude::*;
use read::{contents, expected, files, path};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;

/// A recipient, and a file with the identity.
struct Party {
    sealing: Sealing,
    keys: Keys,
}

fn party(name: &str, identity: &str, recipient: &str) -> Party {
    use std::os::unix::fs::PermissionsExt;
    let file: PathBuf = std::env::temp_dir().join(format!("firn-{name}-{}", std::process::id()));
    std::fs::write(&file, identity).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let keys = Keys::read(std::slice::from_ref(&file), Passphrase::default()).unwrap();
    std::fs::remove_file(file).unwrap();
    let sealing = Sealing::to_recipients(&[recipient.to_string()], &[]).unwrap();
    Party { sealing, keys }
}

fn us() -> &'static Party {
    static US: OnceLock<Party> = OnceLock::new();
    US.get_or_init(|| party("us", include_str!("../src/crypt/testdata/key.txt"), OUR_RECIPIENT))
}

const OUR_RECIPIENT: &str = "age1r4e9wplzqskj6mt7f9kwuu75cdh64t9trplxesajrlsmrkf23gqqdfda0q";
const OTHER: (&str, &str) = (
    "AGE-SECRET-KEY-1JW5E395HRRNF6JKTVEXCRN3XK4U99Y6ATTDLGMYC8J7E5PZX6NGSENVGXY",
    "age1jh7muq627w4qtn8vr7cpcl58xlrfqcwt9my2krwg8r3reg965ytsr4ytzf",
);

fn sealed(text: &[u8]) -> Vec<u8> {
    let mut out = us().sealing.seal(Vec::new()).unwrap();
    out.write_all(text).unwrap();
    out.finish().unwrap()
}

/// The manifest that anybody may read, for the encrypted files that there are.
fn publish(files: &mut Files, own: &Manifest) {
    let encryption = Encryption {
        format: "age-encryption.org/v1".into(),
        recipients: 1,
        passphrase: false,
        selected: false,
    };
    let records =
        files.iter().filter(|(name, _)| *name != b"manifest.json").map(|(name, bytes)| {
            FileRecord {
                name: String::from_utf8(name.clone()).unwrap(),
                size: bytes.len() as u64,
                sha256: hex(&Sha256::digest(bytes)),
                table: None,
            }
        });
    let public = Manifest { head: own.head.public(&encryption), files: records.collect() };
    files.insert(b"manifest.json".to_vec(), public.to_text().unwrap().into());
}

/// What a backup of these files becomes, and its own manifest.
fn encrypted(plain: &Files) -> (Files, Manifest) {
    let own = manifest_of(plain);
    let all = with_manifest(plain.clone());
    let mut files: Files = all
        .iter()
        .map(|(name, bytes)| ([&name[..], b".age"].concat(), sealed(bytes).into()))
        .collect();
    publish(&mut files, &own);
    (files, own)
}

fn plain() -> Files {
    files(&path("18/zstd.dir"))
}

fn read(files: Files) -> Result<std::collections::BTreeMap<read::Piece, Vec<u8>>, Error> {
    contents(&Archive::from_locked_files(files, &us().keys)?)
}

fn whole() -> &'static (Files, Manifest) {
    static WHOLE: OnceLock<(Files, Manifest)> = OnceLock::new();
    WHOLE.get_or_init(|| encrypted(&plain()))
}

/// Flags for pg_dump, as the manifest in the clear tells of them, and told of them before it named any.
#[test]
fn flags_of_before() {
    let (whole, _) = whole();
    for (options, told, selected, well) in [
        (vec!["--no-privileges"], vec!["--no-privileges"], false, true),
        (vec!["--no-privileges"], vec![], true, true),
        (vec!["--no-privileges"], vec![], false, false),
        (vec!["--no-privileges"], vec!["--no-owner"], false, false),
        (vec!["--table=t"], vec![], true, true),
        (vec!["--table=t"], vec![], false, false),
        (vec!["--lock-wait-timeout=1"], vec![], false, true),
        (vec![], vec![], false, true),
        (vec![], vec![], true, false),
    ] {
        let texts = |flags: &[&str]| flags.iter().map(|flag| flag.to_string()).collect::<Vec<_>>();
        let mut own = manifest_of(&plain());
        own.head.options = texts(&options);
        let mut files = whole.clone();
        files.insert(b"manifest.json.age".to_vec(), sealed(&own.to_text().unwrap()).into());
        publish(&mut files, &own);
        let text = files.get(&b"manifest.json"[..]).unwrap();
        let mut public = Manifest::from_text(text).unwrap();
        public.head.options = texts(&told);
        public.head.encryption.as_mut().unwrap().selected = selected;
        files.insert(b"manifest.json".to_vec(), public.to_text().unwrap().into());
        let opened = Archive::from_locked_files(files, &us().keys);
        assert_eq!(opened.is_ok(), well, "{options:?} {told:?} {selected}");
    }
}

#[test]
fn the_key_opens_it_and_no_other_does() {
    let (files, own) = whole().clone();
    assert!(read(files.clone()).unwrap() == expected());
    let archive = Archive::from_locked_files(files.clone(), &us().keys).unwrap();
    assert_eq!(archive.manifest().unwrap().unwrap(), own);
    let in_the_clear = Archive::from_files(plain()).unwrap();
    assert_eq!(archive.fingerprint(), in_the_clear.fingerprint());
    for place in 0..archive.toc().len() {
        assert_eq!(archive.data_size(place), in_the_clear.data_size(place));
    }
    for name in files.keys().filter(|name| *name != b"manifest.json") {
        archive.examine(std::str::from_utf8(name).unwrap(), &mut |_| Ok(())).unwrap();
    }
    let other = party("other", OTHER.0, OTHER.1);
    for keys in [Keys::default(), other.keys] {
        let e = Archive::from_locked_files(files.clone(), &keys).err().unwrap();
        assert_eq!(e.kind, ErrorKind::Key, "{e}");
    }
    let e = Archive::from_locked_files(plain(), &us().keys).err().unwrap();
    assert_eq!(e.kind, ErrorKind::Key, "{e}");
    let e = Archive::from_locked_files(with_manifest(plain()), &us().keys).err().unwrap();
    assert!(e.message.contains("is not encrypted"), "{e}");
}

/// Reads it as it is, and after what anybody may read was made to fit.
fn refused(mut files: Files, what: &str) {
    assert!(read(files.clone()).is_err(), "{what}");
    publish(&mut files, &whole().1);
    let e = read(files).err().unwrap_or_else(|| panic!("{what}: it was read"));
    assert_eq!(e.kind, ErrorKind::Archive, "{what}: {e}");
}

/// Whether a file holds what the contents depend on.
fn matters(name: &[u8]) -> bool {
    name != b"manifest.json"
}

#[test]
fn files_do_not_change_places() {
    let (files, _) = whole();
    let (older, _) = encrypted(&plain());
    for (name, bytes) in files.iter().filter(|(name, _)| matters(name)) {
        let shown = String::from_utf8_lossy(name);
        for (other, content) in files.iter().filter(|(other, _)| matters(other) && *other != name) {
            if plain().get(&name[..name.len() - 4]) == plain().get(&other[..other.len() - 4]) {
                continue;
            }
            let mut swapped = files.clone();
            swapped.insert(name.clone(), content.clone());
            swapped.insert(other.clone(), bytes.clone());
            refused(swapped, &format!("{shown} and {}", String::from_utf8_lossy(other)));
        }
        let mut gone = files.clone();
        gone.remove(name);
        refused(gone, &shown);
        // Somebody who knows the recipient.
        let mut forged = files.clone();
        forged.insert(name.clone(), sealed(b"DROP TABLE t;").into());
        refused(forged, &shown);
        let mut empty = files.clone();
        empty.insert(name.clone(), sealed(b"").into());
        if plain().get(&name[..name.len() - 4]).is_none_or(|bytes| !bytes.is_empty()) {
            refused(empty, &shown);
        }
        // The same bytes, encrypted again, are the same bytes.
        let mut again = files.clone();
        again.insert(name.clone(), older[name].clone());
        publish(&mut again, &whole().1);
        assert!(read(again).unwrap() == expected(), "{shown}");
    }
    let mut more = files.clone();
    more.insert(b"99.dat.zst.age".to_vec(), sealed(b"").into());
    publish(&mut more, &whole().1);
    let e = read(more).unwrap_err();
    assert!(e.message.contains("do not belong together"), "{e}");
}

#[test]
fn what_anybody_may_read_is_bound_to_what_is_encrypted() {
    let (files, own) = whole();
    for change in [
        |m: &mut Manifest| m.head.database = "other".into(),
        |m: &mut Manifest| m.head.snapshot_time = "2027-01-01T00:00:00Z".into(),
        |m: &mut Manifest| m.head.system_identifier = Some("1".into()),
        |m: &mut Manifest| m.head.started = String::new(),
        |m: &mut Manifest| m.head.server_version = "9".into(),
        |m: &mut Manifest| m.head.jobs = 77,
    ] {
        let mut changed = own.clone();
        change(&mut changed);
        let mut files = files.clone();
        publish(&mut files, &changed);
        let e = read(files).unwrap_err();
        assert!(e.message.contains("do not belong together"), "{e}");
        assert!(e.detail.is_some() && e.hint.is_some());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    /// A byte of a file changed, a file cut off or longer: an error, or what it was (of bytes that nobody needs).
    #[test]
    fn damage_is_noticed(
        file in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        change in 1u8..,
        how in 0..3,
        fits in any::<bool>(),
    ) {
        let (files, own) = whole();
        let name = file.get(&files.keys().cloned().collect::<Vec<_>>()).clone();
        let mut bytes = files[&name].to_vec();
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] ^= change,
            1 => bytes.truncate(at),
            _ => bytes.extend(std::iter::repeat_n(change, 1 + at % 100)),
        }
        let mut damaged = files.clone();
        damaged.insert(name.clone(), bytes.into());
        if fits && matters(&name) {
            publish(&mut damaged, own);
        }
        let shown = String::from_utf8_lossy(&name);
        let e = read(damaged).err();
        prop_assert!(e.is_some(), "{shown}");
        // A damaged header may look like one for somebody else.
        let kind = e.unwrap().kind;
        let other = kind == ErrorKind::Key && shown == "manifest.json.age";
        prop_assert!(kind == ErrorKind::Archive || other, "{}: {:?}", shown, kind);
    }
}
