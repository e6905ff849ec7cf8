//! `firn.check()`: everything that is stored of a table is read and held against everything else.

use crate::directory::{tombstones, Directory, Found};
use crate::pg::index::{entries_of, index_kind};
use crate::pg::tableam_ddl::index_oids;
use crate::pg::{xact, Count, LockMode, OpenRel, Phase, Progress, Rel, Snap};
use crate::stripe::handle_for;
use firn_format::{Decoder, DeleteVector, Location, StripeMeta, Tid, VIRTUAL_BASE};

type Report<'a> = &'a mut dyn FnMut(&str, &str, &str);

/// Check one table; each problem is reported.
pub fn check_table(oid: u32, progress: &Progress, report: Report<'_>) {
    let opened = OpenRel::open(oid, LockMode::AccessShare);
    let table = opened.rel();
    let Some(directory) = Directory::open(table, LockMode::AccessShare) else { return };
    directory.toast.read_in_bulk();
    let snap = Snap::self_snap();
    let stripes = directory.list(snap);
    progress.set(Count::StripesTotal, stripes.len() as u64);
    progress.set(Count::BytesTotal, stripes.iter().map(|f| f.entry.bytes).sum());
    progress.phase(Phase::CheckingStripes);
    let mut end_of_last = 0u64;
    for found in &stripes {
        xact::check_for_interrupts();
        let name = format!("stripe {} of {}", found.slot.0, table.name());
        if u64::from(found.slot.0) < end_of_last {
            report("error", &name, "its row addresses overlap the stripe before it");
        }
        end_of_last = u64::from(found.slot.0) + u64::from(found.entry.blocks);
        check_stripe(table, &directory, found, &name, report);
        tombstones::each(
            &directory.toast,
            found.slot,
            found.entry.blocks * 291,
            snap,
            |row, stone| {
                if row >= found.entry.rows {
                    report(
                        "error",
                        &name,
                        &format!("there is a tombstone of row {row}, which it has not"),
                    );
                }
                if stone.tombstone.successor.is_some_and(Tid::is_virtual) {
                    report("error", &name, &format!("the successor of row {row} is a stripe row"));
                }
            },
        );
        progress.add(Count::StripesDone, 1);
        progress.add(Count::RowsDone, u64::from(found.entry.rows));
        progress.add(Count::BytesDone, found.entry.bytes);
    }
    progress.phase(Phase::CheckingIndexes);
    check_indexes(table, &directory, &stripes, progress, report);
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
            bytes = crate::tier::read_whole((server, table.owner()), key, entry.bytes);
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
    let meta = match StripeMeta::parse(tail, entry.meta_offset) {
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

/// Every B-tree entry of a stripe row finds a stripe; every visible stripe row has its entry in
/// every full B-tree index.
fn check_indexes(
    table: Rel,
    directory: &Directory,
    stripes: &[Found],
    progress: &Progress,
    report: Report<'_>,
) {
    let snap = Snap::self_snap();
    let indexes = index_oids(table);
    progress.set(Count::IndexesTotal, indexes.len() as u64);
    for (done, oid) in indexes.into_iter().enumerate() {
        progress.set(Count::IndexesDone, done as u64);
        let index = OpenRel::any_kind(oid, LockMode::AccessShare);
        let kind = index_kind(index.rel());
        if !kind.is_btree || !kind.is_valid {
            continue;
        }
        let name = format!("index {}", index.rel().name());
        // One bit per row of the table, however many entries there are.
        let mut present: Vec<DeleteVector> =
            stripes.iter().map(|f| DeleteVector::new(f.entry.rows)).collect();
        entries_of(table, index.rel(), &mut |tid| {
            if !tid.is_virtual() {
                return;
            }
            let block = tid.block - VIRTUAL_BASE;
            let at = stripes.partition_point(|f| f.slot.0 <= block);
            let Some(at) = at.checked_sub(1) else { return };
            let (found, rows) = (&stripes[at], &mut present[at]);
            if block - found.slot.0 >= found.entry.blocks {
                return;
            }
            match tid.row_in(found.slot) {
                Some(row) if row < found.entry.rows => rows.set(row),
                _ => {
                    let text = format!(
                        "an entry points to ({},{}), past the last row of stripe {}",
                        tid.block, tid.offset, found.slot.0
                    );
                    report("error", &name, &text)
                }
            }
        });
        if kind.is_partial {
            continue;
        }
        for (found, present) in stripes.iter().zip(&present) {
            xact::check_for_interrupts();
            let deleted = tombstones::deleted(&directory.toast, found.slot, found.entry.rows, snap);
            let missing = (0..found.entry.rows)
                .filter(|r| !present.contains(*r))
                .filter(|r| !deleted.as_ref().is_some_and(|d| d.contains(*r)))
                .count();
            if missing > 0 {
                let text = format!("it lacks entries of {missing} rows of stripe {}", found.slot.0);
                report("error", &name, &text);
            }
        }
    }
}
