//! What the tests of archives share: the archives that `make.sh` made, and reading one whole.
#![allow(dead_code)]

use firn_cli::archive::{read_error, Archive};
use firn_cli::Error;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/archives").join(name)
}

pub fn open(path: &Path) -> Result<Archive, Error> {
    Archive::open(path.to_str().unwrap())
}

/// The archives of one database in every format and compression, by version of `pg_dump`.
pub fn whole_archives() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (version, compressions) in
        [("15", &["none", "gzip"][..]), ("18", &["none", "gzip", "lz4", "zstd"])]
    {
        for compression in compressions {
            for format in ["dump", "piped.dump", "dir"] {
                found.push(path(&format!("{version}/{compression}.{format}")));
            }
        }
    }
    found
}

/// All files of a directory.
pub fn files(folder: &Path) -> BTreeMap<Vec<u8>, Arc<[u8]>> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap().into_bytes();
            (name, std::fs::read(entry.path()).unwrap().into())
        })
        .collect()
}

/// What a piece of data belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Piece {
    Table(String),
    LargeObject(u32),
}

/// All data, or the first error.
pub fn contents(archive: &Archive) -> Result<BTreeMap<Piece, Vec<u8>>, Error> {
    let mut all = BTreeMap::new();
    let mut keep = |piece, mut data: Box<dyn Read + Send>| {
        let mut bytes = Vec::new();
        data.read_to_end(&mut bytes).map_err(read_error)?;
        all.insert(piece, bytes);
        Ok::<(), Error>(())
    };
    for (place, entry) in archive.toc().entries().enumerate() {
        archive.data_size(place);
        if !entry.has_data {
            continue;
        }
        if entry.desc == b"BLOBS" {
            for object in archive.large_objects(place)? {
                let object = object?;
                keep(Piece::LargeObject(object.oid), object.data)?;
            }
        } else {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            let name = format!("{}.{}", text(entry.namespace), text(entry.tag));
            keep(Piece::Table(name), archive.data(place)?)?;
        }
    }
    Ok(all)
}

/// What all [`whole_archives`] hold.
pub fn expected() -> BTreeMap<Piece, Vec<u8>> {
    let table = |name: &str, rows: String| (Piece::Table(name.to_string()), rows.into_bytes());
    BTreeMap::from([
        table("public.t", (1..=60).map(|g| format!("{g}\trow {g}\\n\\\\.\n")).collect()),
        table("public.nothing", String::new()),
        table("public.no_column", "\n".to_string()),
        table("public.p1", String::new()),
        table("S x.ü t", format!("\\N\n\na\\tb\n{}\n", "long ".repeat(40))),
        (Piece::LargeObject(70001), vec![0xab; 3000]),
        (Piece::LargeObject(70002), Vec::new()),
        (Piece::LargeObject(4_000_000_001), b"hello".to_vec()),
    ])
}
