//! Far columns, whose many pages are told before the metadata at the file's end: the same values by a record of the page map, by all
//! of it, and by Parquet's own reader; and each changed byte of what is said of them is found.

mod common;

use common::{seed, Random};
use firn_format::{
    Bound, Codec, ColumnKind, ColumnSpec, Decoder, Outline, Place, Stripe, StripeMeta,
    StripeWriter, Value, WriteOptions, RECORD_BYTES,
};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};

/// Three columns: numbers, documents, and texts with many pages each; some are NULL.
struct Made {
    stripe: Stripe,
    documents: Vec<Option<String>>,
    texts: Vec<Option<String>>,
}

fn made(rows: usize, r: &mut Random) -> Made {
    let spec = |field_id, name: &str, kind, type_name: &str| ColumnSpec {
        field_id,
        name: name.to_owned(),
        kind,
        type_name: type_name.to_owned(),
    };
    let columns = vec![
        spec(1, "id", ColumnKind::Int32, "integer"),
        spec(3, "doc", ColumnKind::Json, "jsonb"),
        spec(4, "note", ColumnKind::Text, "text"),
    ];
    let options = WriteOptions {
        codec: r.pick(&[Codec::None, Codec::Lz4, Codec::Zstd(3)]),
        page_rows: 512,
        text_page_bytes: 600,
        json_page_bytes: 400,
    };
    let mut writer = StripeWriter::new(columns, options);
    let mut made = Made {
        stripe: writer.encode().expect("a stripe without rows"),
        documents: Vec::new(),
        texts: Vec::new(),
    };
    for row in 0..rows {
        let text = |r: &mut Random, nulls: usize| {
            let word = |r: &mut Random| r.next() as u32;
            (!r.one_in(nulls)).then(|| {
                let words: Vec<_> = (0..5 + r.below(20)).map(|_| word(r).to_string()).collect();
                format!("\"{row} {}\"", words.join(" "))
            })
        };
        // Long runs of NULLs, too.
        let nulls = if row % 1_000 < 100 { 1 } else { 9 };
        made.documents.push(text(r, nulls));
        made.texts.push(text(r, 7));
        writer.column_mut(0).push_i32(row as i32);
        for (column, value) in [(1, made.documents.last()), (2, made.texts.last())] {
            match value.and_then(Option::as_ref) {
                Some(value) => writer.column_mut(column).push_bytes(value.as_bytes()),
                None => writer.column_mut(column).push_null(),
            }
        }
        writer.end_row();
    }
    made.stripe = writer.encode().expect("a stripe");
    made
}

fn part(file: &[u8], offset: u64, len: usize) -> &[u8] {
    file.get(offset as usize..offset as usize + len).unwrap_or(&[])
}

fn outline_of(file: &[u8], stripe: &Stripe) -> firn_format::Result<Outline> {
    Outline::parse(&file[stripe.meta_offset as usize..], stripe.meta_offset)
}

/// A row's value, found as a look-up finds it.
fn look_up(
    decoder: &mut Decoder,
    outline: &Outline,
    file: &[u8],
    column: usize,
    row: usize,
) -> firn_format::Result<Option<String>> {
    let page = match outline.place(column, row as u32)? {
        Place::Page(page) => page,
        Place::Record { number, offset, .. } => {
            let record = part(file, offset, RECORD_BYTES).try_into().expect("a record");
            outline.page_of_record(column, number, record)?
        }
    };
    let at = page.location;
    let mut out = Vec::new();
    let bytes = part(file, at.offset, at.len as usize);
    let value = decoder.value_in(&page, row as u32 - at.first_row, bytes, None, &mut out)?;
    Ok(match value {
        Value::Bytes(bytes) => Some(String::from_utf8(bytes.to_vec()).expect("text")),
        _ => None,
    })
}

#[test]
fn each_way_gives_the_same_values() {
    let mut r = Random(seed());
    let mut decoder = Decoder::new();
    for rows in [4_000, 10_001] {
        let made = made(rows, &mut r);
        let (stripe, file) = (&made.stripe, &made.stripe.bytes);
        let outline = outline_of(file, stripe).expect("an outline");
        assert!(outline.whole().is_none(), "no column is far");
        let far = outline.far();
        let (near, all) = (file.len() as u64 - stripe.meta_offset, file.len() as u64 - far.start);
        assert!(near < 3_000 && all > 5 * near, "{near} of {all} bytes are read at first");
        let meta = StripeMeta::of_file(file, stripe.meta_offset).expect("metadata");
        for (column, values) in [(1, &made.documents), (2, &made.texts)] {
            assert!(meta.pages(column).len() > 256);
            for (row, value) in values.iter().enumerate() {
                let found = look_up(&mut decoder, &outline, file, column, row).expect("a value");
                assert_eq!(&found, value, "row {row}");
            }
            let mut row = 0;
            for (number, page) in meta.pages(column).iter().enumerate() {
                assert_eq!(
                    (page.first_row as usize, meta.page_of(column, page.first_row)),
                    (row, number)
                );
                let bytes = part(file, page.offset, page.len as usize);
                let decoded =
                    decoder.decode_page(&meta, column, number, bytes, None).expect("a page");
                for within in 0..decoded.rows {
                    let expected =
                        values[row].as_ref().map_or(Value::Null, |v| Value::Bytes(v.as_bytes()));
                    assert_eq!(decoded.value(within), expected);
                    row += 1;
                }
            }
            assert_eq!(row, rows);
            assert!(look_up(&mut decoder, &outline, file, column, rows + 1_000).is_err());
        }
        // The near column has its zone maps beside them.
        let first = meta.page_zone(0, 1).expect("a zone map");
        assert_eq!((first.min, first.max), (Some(Bound::I64(512)), Some(Bound::I64(1_023))));
        assert!(meta.page_zone(1, 0).is_none() && meta.page_zone(2, 300).is_none());
    }
}

/// Parquet's reader finds pages by its own indexes, wherever they are.
#[test]
fn parquet_finds_the_same_pages() {
    let made = made(6_000, &mut Random(seed()));
    let file = bytes::Bytes::from(made.stripe.bytes.clone());
    let mut reader = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Required);
    reader.try_parse(&file).expect("Parquet's metadata");
    let theirs = reader.finish().expect("Parquet's metadata");
    let ours = StripeMeta::of_file(&file, made.stripe.meta_offset).expect("metadata");
    let offsets = theirs.offset_index().expect("offset indexes");
    for (column, index) in offsets[0].iter().enumerate() {
        let pages: Vec<_> = index
            .page_locations()
            .iter()
            .map(|p| (p.offset as u64, p.compressed_page_size as u32, p.first_row_index as u32))
            .collect();
        let own = ours.pages(column).iter().map(|p| (p.offset, p.len, p.first_row));
        assert_eq!(pages, own.collect::<Vec<_>>());
    }
    use parquet::file::page_index::column_index::ColumnIndexMetaData as Index;
    let zones = &theirs.column_index().expect("column indexes")[0];
    let (Index::INT32(ids), Index::NONE, Index::BYTE_ARRAY(notes)) =
        (&zones[0], &zones[1], &zones[2])
    else {
        panic!("other column indexes: {zones:?}");
    };
    assert_eq!((ids.min_value(1), ids.max_value(1)), (Some(&512), Some(&1_023)));
    for (number, page) in ours.pages(2).iter().enumerate() {
        let rows = page.first_row as usize..(page.first_row + page.rows) as usize;
        let least = made.texts[rows].iter().flatten().min();
        let theirs = notes.min_value(number).unwrap_or(b"");
        assert!(least.map_or("", |text| text).as_bytes().starts_with(theirs), "page {number}");
    }
    let keys = theirs.file_metadata().key_value_metadata().expect("keys");
    let maps: Vec<_> = keys.iter().filter(|k| k.key.starts_with("firn.page_map.")).collect();
    assert_eq!(maps.iter().map(|k| &k.key[14..]).collect::<Vec<_>>(), ["3", "4"]);
}

#[test]
fn every_changed_byte_is_found() {
    let mut r = Random(seed());
    let made = made(5_000, &mut r);
    let stripe = &made.stripe;
    let sound = outline_of(&stripe.bytes, stripe).expect("an outline");
    let (from, mut decoder) = (sound.far().start as usize, Decoder::new());
    let (mut errors, mut by_record) = (0, 0);
    for _ in 0..3_000 {
        let mut bytes = stripe.bytes.clone();
        let at = from + r.below(stripe.meta_offset as usize - from);
        bytes[at] ^= 1 << r.below(8);
        // All of it: what is wrong is an error, before a page is read by it.
        let whole = StripeMeta::of_file(&bytes, stripe.meta_offset);
        errors += usize::from(whole.is_err());
        // Row by row, first of all one that is found by that byte: a value is right, or an error.
        for (column, values) in [(1, &made.documents), (2, &made.texts)] {
            let of_byte = (0..values.len() as u32).step_by(2).find(|row| {
                matches!(sound.place(column, *row), Ok(Place::Record { offset, .. })
                    if (offset as usize..offset as usize + RECORD_BYTES).contains(&at))
            });
            for row in of_byte.map(|row| row as usize).into_iter().chain([r.below(values.len())]) {
                match look_up(&mut decoder, &sound, &bytes, column, row) {
                    Ok(found) => assert_eq!(found, values[row], "byte {at}, row {row}"),
                    Err(e) => {
                        by_record += 1;
                        assert_eq!(e.kind, firn_format::ErrorKind::Corrupt);
                    }
                }
            }
        }
    }
    assert!(by_record > 50, "{by_record} look-ups have met a changed record");
    assert_eq!(errors, 3_000, "changed bytes were not found");
}

/// A record of another page, as a chunk that was copied over itself would have, gives no other row's value.
#[test]
fn moved_records_are_found() {
    let made = made(5_000, &mut Random(seed()));
    let stripe = &made.stripe;
    let outline = outline_of(&stripe.bytes, stripe).expect("an outline");
    let record = |row| match outline.place(1, row) {
        Ok(Place::Record { offset, rows, .. }) => (offset as usize, rows),
        _ => panic!("the column is not far"),
    };
    let ((to, rows), (from, _)) = (record(200), record(1_200));
    let mut bytes = stripe.bytes.clone();
    bytes.copy_within(from..from + RECORD_BYTES, to);
    let mut decoder = Decoder::new();
    for row in rows {
        let found = look_up(&mut decoder, &outline, &bytes, 1, row as usize);
        assert!(found.is_err(), "row {row} of another page: {found:?}");
    }
    // Where the last page ends is known for certain as well.
    let (offset, _) = record(4_999);
    let mut bytes = stripe.bytes.clone();
    bytes[offset + 8] ^= 1;
    assert!(StripeMeta::of_file(&bytes, stripe.meta_offset).is_err());
}

/// A few large values among many small ones, in one place or everywhere, make neither huge pages of the ones nor tiny pages of the others.
#[test]
fn pages_are_of_a_size() {
    let mut r = Random(seed());
    let clustered = |row: usize| if row >= 60_000 { 40_000usize } else { 70 };
    let tails = |row: usize| if row.is_multiple_of(100) { 30_000usize } else { 70 };
    for (size, rows) in [(&clustered as &dyn Fn(usize) -> usize, 60_400), (&tails, 20_000)] {
        let spec = ColumnSpec {
            field_id: 1,
            name: "v".to_owned(),
            kind: ColumnKind::Text,
            type_name: "text".to_owned(),
        };
        let mut writer = StripeWriter::new(vec![spec], WriteOptions::default());
        for row in 0..rows {
            let text: String =
                (0..size(row)).map(|_| char::from(b'a' + r.below(26) as u8)).collect();
            writer.column_mut(0).push_bytes(text.as_bytes());
            writer.end_row();
        }
        let stripe = writer.encode().expect("a stripe");
        let meta = StripeMeta::of_file(&stripe.bytes, stripe.meta_offset).expect("metadata");
        let largest = meta.pages(0).iter().map(|p| p.len).max();
        assert!(largest.is_some_and(|len| len < 128 << 10), "{largest:?}");
        let sum: u64 = meta.pages(0).iter().map(|p| u64::from(p.len)).sum();
        assert!(sum / meta.pages(0).len() as u64 > 6_000, "{} pages", meta.pages(0).len());
    }
}
