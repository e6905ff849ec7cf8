//! One stripe: its bytes, their checksum, the metadata, every page, its tombstones.

use super::Report;
use crate::directory::{tombstones, Directory, Found};
use crate::pg::{xact, Rel, Snap};
use crate::stripe::handle_for;
use firn_format::{Decoder, Location, StripeMeta, Tid};

/// Check a stripe; each problem is reported.
pub fn check(table: Rel, directory: &Directory, found: &Found, name: &str, report: Report<'_>) {
    check_stripe(table, directory, found, name, report);
    let rows = found.entry.blocks.saturating_mul(firn_format::ROWS_PER_BLOCK);
    tombstones::each(&directory.toast, found.slot, rows, Snap::self_snap(), |row, stone| {
        if row >= found.entry.rows {
            let text = format!("a tombstone refers to row {row}, past its end");
            report("error", name, &text);
        }
        if stone.tombstone.successor.is_some_and(Tid::is_virtual) {
            report("error", name, &format!("the successor of row {row} is a stripe row"));
        }
    });
}

/// Bytes, checksum, metadata, every page.
fn check_stripe(table: Rel, directory: &Directory, found: &Found, name: &str, report: Report<'_>) {
    let entry = &found.entry;
    let mut bytes = Vec::new();
    let read = match &entry.location {
        Location::Chunks { .. } => {
            let handle = handle_for(table, &directory.toast, found.slot, entry);
            handle.try_read(&directory.toast, 0, entry.bytes as usize, &mut bytes)
        }
        Location::Object { server, key } => {
            bytes = crate::stores::read_whole((server, table.owner()), key, entry.bytes);
            true
        }
    };
    if !read {
        report("error", name, "a chunk of it is missing or short");
        return;
    }
    let crc = crc32c::crc32c(&bytes);
    if crc != entry.crc32c {
        let text = format!("its CRC-32C is {crc:08x}, the directory says {:08x}", entry.crc32c);
        report("error", name, &text);
        // Which pages are damaged can be said where the metadata is known to be sound.
        if !entry.has_meta_checksum() {
            return;
        }
    }
    let tail = bytes.get(entry.meta_offset as usize..).unwrap_or(&[]);
    if let Err(e) = entry.verify_meta(tail) {
        return report("error", name, &e.to_string());
    }
    let meta = match StripeMeta::of_file(&bytes, entry.meta_offset) {
        Ok(meta) => meta,
        Err(e) => return report("error", name, &format!("its metadata: {e}")),
    };
    if meta.rows() != entry.rows {
        let text = format!("it has {} rows, the directory says {}", meta.rows(), entry.rows);
        report("error", name, &text);
    }
    let mut decoder = Decoder::new();
    for column in 0..meta.columns().len() {
        if let Err(e) = check_column(&mut decoder, &meta, column, &bytes) {
            report("error", name, &e);
        }
    }
}

/// Decode all pages of a column; what is wrong names the page.
fn check_column(
    decoder: &mut Decoder,
    meta: &StripeMeta,
    column: usize,
    bytes: &[u8],
) -> Result<(), String> {
    let name = &meta.columns()[column].name;
    // Checksums name their page themselves, other errors of a page do not.
    let named = |page: Option<usize>, bytes: &[u8], e: firn_format::Error| {
        if let Err(e) = meta.verify_page(column, page, bytes) {
            return e.to_string();
        }
        let page = page.map_or("dictionary".to_owned(), |p| format!("page {p}"));
        format!("{page} of column \"{name}\": {e}")
    };
    let part = |offset: u64, len: u32| {
        let start = offset as usize;
        bytes.get(start..start + len as usize).unwrap_or(&[])
    };
    let mut dictionary = None;
    if let Some((offset, len)) = meta.dictionary(column) {
        let bytes = part(offset, len);
        let decoded = decoder.decode_dictionary(meta, column, bytes);
        dictionary = Some(decoded.map_err(|e| named(None, bytes, e))?);
    }
    let mut rows = 0;
    let mut damaged = Vec::new();
    for (number, page) in meta.pages(column).iter().enumerate() {
        xact::check_for_interrupts();
        let bytes = part(page.offset, page.len);
        match decoder.decode_page(meta, column, number, bytes, dictionary.as_ref()) {
            Ok(decoded) => rows += decoded.rows,
            Err(e) => damaged.push(named(Some(number), bytes, e)),
        }
    }
    match damaged.split_first() {
        Some((first, [])) => Err(first.clone()),
        Some((first, others)) => {
            Err(format!("{first}; {} more of the column's pages are damaged", others.len()))
        }
        None if rows != meta.rows() as usize => Err(format!(
            "the pages of column \"{name}\" hold {rows} rows, the stripe {}",
            meta.rows()
        )),
        None => Ok(()),
    }
}
