//! Golden files: stripes as each released version has written them (`tests/golden/<version>/stripes`), with what they hold beside
//! them. Every later version must read them. docs/internals/versions.md says when there are new ones.

#[path = "../common/mod.rs"]
mod common;
mod made;
mod told;

use common::meta_of;
use firn_format::{ErrorKind, StripeMeta};
use std::fs;
use std::path::{Path, PathBuf};

fn versions() -> Vec<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden"));
    let all = fs::read_dir(folder).expect("tests/golden").map(|f| f.expect("a file").path());
    let mut found: Vec<_> = all.map(|f| f.join("stripes")).filter(|f| f.is_dir()).collect();
    found.sort();
    found
}

/// The stripes in a folder, by name.
fn names(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).expect("a folder").map(|f| f.expect("a file").path());
    let stripes = files.filter(|f| f.extension().is_some_and(|e| e == "parquet"));
    let mut names: Vec<_> =
        stripes.map(|f| f.file_stem().expect("a name").to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn golden_files_are_read() {
    let versions = versions();
    assert!(!versions.is_empty());
    for folder in versions {
        let names = names(&folder);
        assert!(!names.is_empty(), "{folder:?}");
        for name in names {
            let file = fs::read(folder.join(format!("{name}.parquet"))).expect("a stripe");
            let said = fs::read_to_string(folder.join(format!("{name}.txt"))).expect("its content");
            let (first, _) = said.split_once('\n').expect("lines");
            let meta_offset = first.strip_prefix("metadata at ").expect("where the metadata are");
            let told = told::all(&file, meta_offset.parse().expect("a number"));
            for (found, line) in told.lines().zip(said.lines()) {
                assert_eq!(found, line, "{folder:?} {name}");
            }
            assert_eq!(told.lines().count(), said.lines().count(), "{folder:?} {name}");
        }
    }
}

/// What is made of the same values today holds what the golden files hold, whose pages may have been cut otherwise.
#[test]
fn what_is_written_today_is_read_alike() {
    let newest = versions().pop().expect("golden files");
    for (name, case) in made::all() {
        let stripe = case.writer().encode().expect("a stripe");
        let told = told::all(&stripe.bytes, stripe.meta_offset);
        let expected = told::of_cells(&case);
        assert_eq!(told::values(&told), expected, "{name}");
        if let Ok(said) = fs::read_to_string(newest.join(format!("{name}.txt"))) {
            assert_eq!(expected, told::values(&said), "{name}");
        }
        assert_eq!(meta_of(&stripe).rows() as usize, case.rows);
    }
}

/// A stripe of a later format is told from a damaged one.
#[test]
fn a_newer_format_is_told_as_newer() {
    const KEY: &[u8] = b"firn.format_version\x18\x01";
    for (name, case) in made::all().into_iter().take(2) {
        let mut stripe = case.writer().encode().expect("a stripe");
        let at = stripe.bytes.windows(KEY.len()).position(|w| w == KEY).expect("its format");
        assert_eq!(stripe.bytes[at + KEY.len()], b'1', "{name}");
        stripe.bytes[at + KEY.len()] = b'2';
        let error = StripeMeta::of_file(&stripe.bytes, stripe.meta_offset).expect_err("format 2");
        assert_eq!(error.kind, ErrorKind::Newer, "{name}: {error}");
        assert_eq!(error.message, "it has format version 2, this firn knows up to 1", "{name}");
    }
}

/// Make the golden files of this version: `FIRN_GOLDEN=<folder>`; see tests/golden/make.py.
#[test]
#[ignore = "writes files"]
fn make() {
    let folder = PathBuf::from(std::env::var("FIRN_GOLDEN").expect("FIRN_GOLDEN")).join("stripes");
    fs::create_dir_all(&folder).expect("a folder");
    for (name, case) in made::all() {
        let stripe = case.writer().encode().expect("a stripe");
        let told = told::all(&stripe.bytes, stripe.meta_offset);
        fs::write(folder.join(format!("{name}.parquet")), &stripe.bytes).expect("a stripe");
        fs::write(folder.join(format!("{name}.txt")), told).expect("its content");
    }
}
