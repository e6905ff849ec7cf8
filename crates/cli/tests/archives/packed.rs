//! An archive in one piece, for fuzzing: a custom archive as it is, or a directory's files one after the other.

use firn_cli::archive::Archive;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

/// What a packed directory begins with; a custom archive begins otherwise.
const DIRECTORY: u8 = b'D';
/// The most that is read of one table or large object: little input may be much compressed.
const MOST: u64 = 1 << 20;

/// Files one after the other: lengths of name and contents, and these.
#[allow(dead_code)]
pub fn pack(files: &BTreeMap<Vec<u8>, Arc<[u8]>>) -> Vec<u8> {
    let mut all = vec![DIRECTORY];
    for (name, bytes) in files {
        all.push(name.len() as u8);
        all.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        all.extend_from_slice(name);
        all.extend_from_slice(bytes);
    }
    all
}

fn unpack(mut data: &[u8]) -> BTreeMap<Vec<u8>, Arc<[u8]>> {
    let mut files = BTreeMap::new();
    while let Some((&[name, low, high], rest)) = data.split_first_chunk::<3>() {
        let (name, rest) = rest.split_at(rest.len().min(name.into()));
        let (bytes, rest) = rest.split_at(rest.len().min(u16::from_le_bytes([low, high]).into()));
        files.insert(name.to_vec(), bytes.into());
        data = rest;
    }
    files
}

/// Reads all that is in a packed archive. Answers whether it could be opened.
pub fn read(data: &[u8]) -> bool {
    let archive = match data.split_first() {
        Some((&DIRECTORY, files)) => Archive::from_files(unpack(files)),
        _ => Archive::from_bytes(data),
    };
    let Ok(archive) = archive else { return false };
    let skim = |data: Box<dyn Read + Send>| {
        drop(std::io::copy(&mut data.take(MOST), &mut std::io::sink()))
    };
    for (place, entry) in archive.toc().entries().enumerate() {
        archive.data_size(place);
        archive.toc().place(entry.dump_id);
        if let Ok(data) = archive.data(place) {
            skim(data);
        }
        // Whatever its kind is said to be.
        for object in archive.large_objects(place).into_iter().flatten() {
            match object {
                Ok(object) if object.oid % 3 > 0 => skim(object.data),
                _ => {}
            }
        }
    }
    true
}
