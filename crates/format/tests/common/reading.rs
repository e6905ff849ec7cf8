//! Reading all that can be reached of a file whose bytes may be anything. Also used for fuzzing.

use firn_format::{Decoder, StripeMeta, Values};

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The metadata was accepted.
    pub opened: bool,
    /// Pages that were decoded, and pages that were refused.
    pub pages: u64,
    pub refused: u64,
}

/// Read everything; ends in values or errors, never in a panic.
pub fn read_all(file: &[u8], meta_offset: usize) -> Outcome {
    let mut outcome = Outcome::default();
    let Ok(meta) = StripeMeta::of_file(file, meta_offset as u64) else { return outcome };
    outcome.opened = true;
    read_pages(file, &meta, &mut outcome);
    outcome
}

/// Read all pages that `meta` knows out of `file`.
pub fn read_pages(file: &[u8], meta: &StripeMeta, outcome: &mut Outcome) {
    // A page that reaches beyond the file is read as far as it goes.
    let part = |offset: u64, len: u32| {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(file.len());
        &file[start..start.saturating_add(len as usize).min(file.len())]
    };
    // Checksums would keep nearly all damage from what is tested here.
    let mut decoder = Decoder::ignoring_checksums();
    let _ = meta.memory_bytes();
    for column in 0..meta.columns().len() {
        let dict = meta
            .dictionary(column)
            .and_then(|(at, len)| decoder.decode_dictionary(meta, column, part(at, len)).ok());
        for (i, page) in meta.pages(column).iter().enumerate() {
            let _ = meta.page_zone(column, i);
            let bytes = part(page.offset, page.len);
            let whole = decoder.decode_page(meta, column, i, bytes, dict.as_ref());
            match &whole {
                Ok(_) => outcome.pages += 1,
                Err(_) => outcome.refused += 1,
            }
            if let Ok(run) = &whole {
                assert_eq!(run.rows, page.rows as usize);
                if let Values::Dict { keys, dict } = &run.values {
                    assert!(keys.iter().all(|k| (*k as usize) < dict.len().max(1)));
                }
                let _ = run.slice(run.rows / 2, run.rows);
            }
            let packed = meta
                .page(column, i)
                .and_then(|p| decoder.pack(&p, bytes, dict.as_ref(), i % 2 == 0));
            for row in [0, 1, page.rows / 2, page.rows.saturating_sub(1), page.rows] {
                let (mut out, dict) = (Vec::new(), dict.as_ref());
                let one = decoder.value_at(meta, column, i, row, bytes, dict, &mut out);
                let kept = packed.as_ref().map(|packed| packed.value(row as usize));
                assert!(row < page.rows || !matches!(kept, Ok(Ok(_))));
                // A page that decodes as a whole has the same values one by one, also where it is kept for them.
                if let (Ok(run), true) = (&whole, row < page.rows) {
                    let one = one.expect("a row of a valid page can be read");
                    let expected = format!("{:?}", run.value(row as usize));
                    assert_eq!(format!("{one:?}"), expected);
                    let kept = kept.expect("a valid page can be packed").expect("a value");
                    assert_eq!(format!("{kept:?}"), expected);
                }
            }
        }
    }
}
