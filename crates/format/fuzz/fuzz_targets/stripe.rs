//! Any bytes as a stripe: reading ends in values or errors, never in a panic.
//!
//! The last four bytes say where the metadata starts; the bytes before are the file. Stripe files
//! with those four bytes appended make a good corpus.

#![no_main]

use firn_format::{Decoder, StripeMeta};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((file, at)) = data.split_last_chunk::<4>() else { return };
    let meta_offset = u32::from_le_bytes(*at) as usize;
    let Some(tail) = file.get(meta_offset..) else { return };
    let Ok(meta) = StripeMeta::parse(tail, meta_offset as u64) else { return };
    let part = |offset: u64, len: u32| {
        let start = usize::try_from(offset).ok()?;
        file.get(start..start.checked_add(len as usize)?)
    };
    let mut decoder = Decoder::new();
    for column in 0..meta.columns().len() {
        let dict = meta
            .dictionary(column)
            .and_then(|(offset, len)| part(offset, len))
            .and_then(|bytes| decoder.decode_dictionary(&meta, column, bytes).ok());
        for (i, page) in meta.pages(column).iter().enumerate() {
            let _ = meta.page_zone(column, i);
            let Some(bytes) = part(page.offset, page.len) else { continue };
            let whole = decoder.decode_page(&meta, column, i, bytes, dict.as_ref());
            for row in [0, page.rows / 2, page.rows.saturating_sub(1)] {
                let mut out = Vec::new();
                let one = decoder.value_at(&meta, column, i, row, bytes, dict.as_ref(), &mut out);
                // A page that decodes as a whole has the same values one by one.
                if let (Ok(whole), true) = (&whole, row < page.rows) {
                    let one = one.expect("a row of a valid page can be read");
                    assert_eq!(format!("{one:?}"), format!("{:?}", whole.value(row as usize)));
                }
            }
        }
    }
});
