//! A changed byte of a stripe is an error or changes nothing: never another value.

mod common;

use common::{meta_of, same, seed, Case, Cell, Random};
use firn_format::{Decoder, DirectoryEntry, ErrorKind, Outline, Result, Stripe, StripeMeta};

fn entry_of(stripe: &Stripe) -> DirectoryEntry {
    DirectoryEntry {
        bytes: stripe.bytes.len() as u64,
        meta_offset: stripe.meta_offset,
        meta_crc32c: stripe.meta_crc32c,
        ..DirectoryEntry::reserved(1)
    }
}

/// A stripe of a random case with rows and columns.
fn any_stripe(r: &mut Random) -> (Case, Stripe) {
    loop {
        let case = Case::random(r);
        if !case.specs.is_empty() && (1..1_500).contains(&case.rows) {
            let stripe = case.writer().encode().expect("an encoded stripe");
            if stripe.bytes.len() < 100_000 {
                println!("{}", case.describe());
                return (case, stripe);
            }
        }
    }
}

fn open(bytes: &[u8], entry: &DirectoryEntry) -> Result<StripeMeta> {
    let tail = &bytes[entry.meta_offset as usize..];
    entry.verify_meta(tail)?;
    StripeMeta::of_file(bytes, entry.meta_offset)
}

/// The cells of a page, read as a whole and one by one.
fn compare_page(
    decoder: &mut Decoder,
    file: &[u8],
    meta: &StripeMeta,
    column: usize,
    page: usize,
    cells: &[Cell],
) -> Result<()> {
    let part = |offset: u64, len: u32| &file[offset as usize..offset as usize + len as usize];
    let dict = match meta.dictionary(column) {
        Some((at, len)) => Some(decoder.decode_dictionary(meta, column, part(at, len))?),
        None => None,
    };
    let at = meta.pages(column)[page];
    let bytes = part(at.offset, at.len);
    let whole = decoder.decode_page(meta, column, page, bytes, dict.as_ref());
    for row in 0..at.rows {
        let expected = &cells[(at.first_row + row) as usize];
        if let Ok(whole) = &whole {
            assert!(same(whole.value(row as usize), expected.value()), "row {row} changed");
        }
        if row % 7 == 0 {
            let mut out = Vec::new();
            let one = decoder.value_at(meta, column, page, row, bytes, dict.as_ref(), &mut out);
            match one {
                Ok(one) => assert!(same(one, expected.value()), "row {row} changed"),
                Err(_) => assert!(whole.is_err(), "a page is damaged for look-ups only"),
            }
        }
    }
    whole.map(|_| ())
}

/// The page of which byte `at` is a part: its column and number, or None for a dictionary.
fn page_at(meta: &StripeMeta, at: u64) -> Option<(usize, Option<usize>)> {
    let within = |offset: u64, len: u32| (offset..offset + u64::from(len)).contains(&at);
    (0..meta.columns().len()).find_map(|column| {
        if meta.dictionary(column).is_some_and(|(offset, len)| within(offset, len)) {
            return Some((column, None));
        }
        let page = meta.pages(column).iter().position(|p| within(p.offset, p.len));
        page.map(|p| (column, Some(p)))
    })
}

#[test]
fn every_changed_byte_is_found() {
    let mut r = Random(seed());
    let mut decoder = Decoder::new();
    let (mut pages, mut dictionaries, mut tails) = (0, 0, 0);
    while pages < 2_000 || dictionaries < 100 || tails < 2_000 {
        let (case, stripe) = any_stripe(&mut r);
        let entry = entry_of(&stripe);
        let meta = open(&stripe.bytes, &entry).expect("metadata");
        let outline =
            Outline::parse(&stripe.bytes[entry.meta_offset as usize..], entry.meta_offset);
        let far = outline.expect("an outline").far();
        let pages_of =
            |column| meta.pages(column).last().map_or(4, |p| p.offset + u64::from(p.len));
        let end = (0..meta.columns().len()).map(pages_of).max().unwrap_or(4);
        let mut bytes = stripe.bytes.clone();
        for _ in 0..400 {
            let at = r.below(bytes.len());
            let flip = 1 << r.below(8) | if r.one_in(3) { r.next() as u8 } else { 0 };
            bytes[at] ^= flip;
            if at as u64 >= entry.meta_offset {
                tails += 1;
                assert!(open(&bytes, &entry).is_err(), "byte {at} of the metadata");
            } else if let Some((column, page)) = page_at(&meta, at as u64) {
                // The pages of a damaged dictionary cannot be read either.
                let number = page.unwrap_or(r.below(meta.pages(column).len()));
                let cells = &case.cells[column];
                let read = compare_page(&mut decoder, &bytes, &meta, column, number, cells);
                let error = read.expect_err("an error");
                assert_eq!(error.kind, ErrorKind::Corrupt);
                let name = &meta.columns()[column].name;
                let named = match page {
                    Some(p) => format!("page {p} of column \"{name}\""),
                    None => format!("the dictionary of column \"{name}\""),
                };
                assert!(error.message.starts_with(&named), "{}", error.message);
                *(if page.is_some() { &mut pages } else { &mut dictionaries }) += 1;
            } else if far.contains(&(at as u64)) {
                tails += 1;
                assert!(open(&bytes, &entry).is_err(), "byte {at} of what is said of far columns");
            } else {
                // Parquet's magic number at the start, which no reader of single pages needs, and offset indexes of far columns,
                // which are for others.
                assert!(at < 4 || at as u64 >= end, "byte {at} belongs to no page");
            }
            bytes[at] ^= flip;
        }
    }
    println!("{pages} in pages, {dictionaries} in dictionaries, {tails} in metadata");
}

/// Files from before there were checksums have no such key: they are read as they are.
#[test]
fn stripes_without_checksums_are_read() {
    let mut r = Random(seed());
    let mut decoder = Decoder::new();
    for _ in 0..20 {
        let (case, mut stripe) = any_stripe(&mut r);
        let key = b"firn.page_crc32c";
        let found = stripe.bytes.windows(key.len()).rposition(|w| w == key).expect("the key");
        stripe.bytes[found] = b'x';
        let meta = meta_of(&stripe);
        for (column, cells) in case.cells.iter().enumerate() {
            for page in 0..meta.pages(column).len() {
                compare_page(&mut decoder, &stripe.bytes, &meta, column, page, cells)
                    .expect("a page");
            }
        }
    }
}
