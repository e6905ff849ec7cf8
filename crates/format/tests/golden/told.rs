//! What a stripe holds, as text: metadata, values, pages. Written out here by hand, so that it stays the same when types change.

use crate::common::{Case, Cell};
use firn_format::{
    Bound, ColumnSpec, Decoder, Outline, Place, StripeMeta, Value, ZoneMap, RECORD_BYTES,
};
use std::fmt::Write;

/// Longer values are told by length and CRC-32C.
const LONGEST: usize = 30;

/// All of a stripe.
pub fn all(file: &[u8], meta_offset: u64) -> String {
    let meta = StripeMeta::of_file(file, meta_offset).expect("metadata");
    let mut out = format!("metadata at {meta_offset}\n");
    let columns = read(file, &meta);
    let looked_up = look_up(file, meta_offset);
    assert_eq!(columns, looked_up, "a scan and look-ups");
    head(&mut out, meta.columns(), meta.rows() as usize);
    rows(&mut out, &columns, meta.rows() as usize);
    for (column, spec) in meta.columns().iter().enumerate() {
        for (number, page) in meta.pages(column).iter().enumerate() {
            let zone = meta.page_zone(column, number).map_or("-".to_owned(), |z| zone(&z));
            let (first, rows) = (page.first_row, page.rows);
            writeln!(out, "page {} {number}: {first} {rows} {zone}", spec.field_id).expect("text");
        }
    }
    out
}

/// The part of a text that is about values, not pages.
pub fn values(told: &str) -> String {
    let kept = |line: &&str| !line.starts_with("page ") && !line.starts_with("metadata ");
    told.lines().filter(kept).flat_map(|line| [line, "\n"]).collect()
}

/// What is to be read of a stripe of these values.
pub fn of_cells(case: &Case) -> String {
    let mut out = String::new();
    head(&mut out, &case.specs, case.rows);
    let columns: Vec<Vec<String>> =
        case.cells.iter().map(|c| c.iter().map(|c| cell(Cell::value(c))).collect()).collect();
    rows(&mut out, &columns, case.rows);
    out
}

fn head(out: &mut String, specs: &[ColumnSpec], rows: usize) {
    writeln!(out, "rows {rows}").expect("text");
    for spec in specs {
        let (kind, name) = (spec.kind.to_text(), spec.name.escape_default());
        writeln!(out, "column {} {kind} {} = {name}", spec.field_id, spec.type_name).expect("text");
    }
}

fn rows(out: &mut String, columns: &[Vec<String>], rows: usize) {
    for row in (0..rows).filter(|_| !columns.is_empty()) {
        let cells: Vec<&str> = columns.iter().map(|c| c[row].as_str()).collect();
        writeln!(out, "{row}: {}", cells.join("\t")).expect("text");
    }
}

fn part(file: &[u8], offset: u64, len: u32) -> &[u8] {
    &file[offset as usize..offset as usize + len as usize]
}

/// The values of each column, read by the page.
fn read(file: &[u8], meta: &StripeMeta) -> Vec<Vec<String>> {
    let mut decoder = Decoder::new();
    let mut columns = Vec::new();
    for column in 0..meta.columns().len() {
        let dict = meta.dictionary(column).map(|(at, len)| {
            let bytes = part(file, at, len);
            decoder.decode_dictionary(meta, column, bytes).expect("a dictionary")
        });
        let mut cells = Vec::new();
        for (number, page) in meta.pages(column).iter().enumerate() {
            let bytes = part(file, page.offset, page.len);
            meta.verify_page(column, Some(number), bytes).expect("a checksum");
            let run = decoder.decode_page(meta, column, number, bytes, dict.as_ref());
            let run = run.expect("a page");
            cells.extend((0..run.rows).map(|row| cell(run.value(row))));
        }
        columns.push(cells);
    }
    columns
}

/// The values of each column, found one by one.
fn look_up(file: &[u8], meta_offset: u64) -> Vec<Vec<String>> {
    let mut decoder = Decoder::new();
    let outline = Outline::parse(&file[meta_offset as usize..], meta_offset).expect("an outline");
    let meta = StripeMeta::of_file(file, meta_offset).expect("metadata");
    let mut columns = Vec::new();
    for column in 0..meta.columns().len() {
        let dict = outline.dictionary(column).map(|(at, len)| {
            let bytes = part(file, at, len);
            decoder.decode_dictionary(&meta, column, bytes).expect("a dictionary")
        });
        let mut one = |row: u32| {
            let page = match outline.place(column, row).expect("a place") {
                Place::Page(page) => page,
                Place::Record { number, offset, .. } => {
                    let record = part(file, offset, RECORD_BYTES as u32);
                    let record = record.try_into().expect("a record");
                    outline.page_of_record(column, number, record).expect("a page")
                }
            };
            let (at, mut out) = (page.location, Vec::new());
            let bytes = part(file, at.offset, at.len);
            let within = row - at.first_row;
            let value = decoder.value_in(&page, within, bytes, dict.as_ref(), &mut out);
            cell(value.expect("a value"))
        };
        columns.push((0..meta.rows()).map(&mut one).collect());
    }
    columns
}

fn cell(value: Value<'_>) -> String {
    match value {
        Value::Null => "NULL".into(),
        Value::Bool(x) => x.to_string(),
        Value::I32(x) => x.to_string(),
        Value::I64(x) => x.to_string(),
        Value::I128(x) => x.to_string(),
        // NaNs have bits, and zero has a sign.
        Value::F32(x) => format!("{:08x}", x.to_bits()),
        Value::F64(x) => format!("{:016x}", x.to_bits()),
        Value::Bytes(x) if x.len() > LONGEST => {
            format!("{}, {:08x}", x.len(), crc32c::crc32c(x))
        }
        Value::Bytes(x) => format!("'{}'", x.escape_ascii()),
    }
}

fn zone(zone: &ZoneMap) -> String {
    let ZoneMap { min, max, nulls, rows, has_nan, exact, kind } = zone;
    let (min, max) = (bound(min.as_ref()), bound(max.as_ref()));
    let kind = kind.unwrap_or(0);
    format!("{min} to {max}, {nulls} of {rows} NULL, NaN {has_nan}, exact {exact}, kind {kind}")
}

fn bound(bound: Option<&Bound>) -> String {
    match bound {
        None => "?".into(),
        Some(Bound::I64(x)) => x.to_string(),
        Some(Bound::I128(x)) => x.to_string(),
        Some(Bound::F64(x)) => format!("{:016x}", x.to_bits()),
        Some(Bound::Bytes(x)) => format!("'{}'", x.escape_ascii()),
    }
}
