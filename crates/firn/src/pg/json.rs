//! jsonb as its text, which is how stripes have it, so that any reader of Parquet understands it. A value that its text could
//! not surely be read from again keeps PostgreSQL's own form. From its text it is made by `jsonb.rs`, or by PostgreSQL's parser.

use super::datum::{with_varlena, Datum};
use super::jsonb::{form_fields, form_jsonb, Fields};
use super::{error, memory, Kind, Oid};
use pgrx::pg_sys;

/// Levels of arrays and objects in each other up to which a value is kept as text. PostgreSQL's parser calls itself for each
/// level, some 150 bytes of stack, and who reads may have less of that left than who wrote: jsonb itself is read without.
const MOST_LEVELS: usize = 64;

/// Bytes of a value, and of its text, up to which it is kept as text: of a gigabyte there could be no string.
const MOST_BYTES: usize = 64 << 20;

/// Bytes of a value up to which its text, whatever is in it, is about half of that: with its entry, a number that has 131,072 digits
/// takes sixteen.
const NOT_LOOKED_THROUGH: usize = 4 << 10;

/// How much longer than the value its text may be.
const MOST_GROWTH: usize = 16;

/// Call `f` with the text of a jsonb; false, without doing so, when it is not to be kept as text.
///
/// # Safety
/// The value is a jsonb.
pub(super) unsafe fn with_text(value: Datum<'_>, f: impl FnOnce(&[u8])) -> bool {
    // SAFETY: a jsonb, as the caller promises; jsonb_out returns a palloc'ed C string.
    memory::scratch(|| unsafe {
        let size = pg_sys::toast_raw_datum_size(value.raw());
        if size > MOST_BYTES {
            return false;
        }
        let plain = pg_sys::pg_detoast_datum(value.raw().cast_mut_ptr());
        if size > NOT_LOOKED_THROUGH && most_text(plain) > MOST_BYTES {
            return false;
        }
        let text = pg_sys::OidOutputFunctionCall(
            Oid::from(pg_sys::F_JSONB_OUT),
            pg_sys::Datum::from(plain),
        );
        let text = std::ffi::CStr::from_ptr(text).to_bytes();
        let fits = text.len() <= 1_024 + MOST_GROWTH * size && !is_nested_deeper(text, MOST_LEVELS);
        if fits {
            f(text);
        }
        fits
    })
}

/// Bytes that the text of a jsonb has at most.
unsafe fn most_text(value: *mut pg_sys::varlena) -> usize {
    // SAFETY: a whole jsonb that is not compressed; the iterator frees itself at its end.
    unsafe {
        let root = &raw mut (*(value as *mut pg_sys::Jsonb)).root;
        let mut at = pg_sys::JsonbIteratorInit(root);
        let mut part: pg_sys::JsonbValue = std::mem::zeroed();
        let mut bytes = 0;
        loop {
            use pg_sys::{jbvType as T, JsonbIteratorToken as Token};
            let token = pg_sys::JsonbIteratorNext(&mut at, &mut part, false);
            bytes += match token {
                Token::WJB_DONE => return bytes,
                Token::WJB_KEY | Token::WJB_VALUE | Token::WJB_ELEM => match part.type_ {
                    // Each byte as \u001f.
                    T::jbvString => 6 * part.val.string.len as usize + 4,
                    T::jbvNumeric => {
                        let number = Datum::of(pg_sys::Datum::from(part.val.numeric));
                        with_varlena(number, most_digits) + 2
                    }
                    _ => 8,
                },
                _ => 4,
            };
        }
    }
}

/// Characters that a numeric's text has at most. Layout: src/backend/utils/adt/numeric.c.
fn most_digits(bytes: &[u8]) -> usize {
    let word = |at: usize| {
        bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
    };
    match word(0) {
        // A short one has at most 64 groups of four digits before the point, and 63 digits behind it.
        header if header & 0x8000 != 0 => 4 * 64 + 63 + 2,
        header => {
            let groups = usize::try_from(i32::from(word(2) as i16) + 1).unwrap_or(1).max(1);
            4 * groups + usize::from(header & 0x3FFF) + 2
        }
    }
}

/// Append the jsonb of a text, a varlena with a 4-byte header, to `out`, whose length must be a multiple of 4. Of an object these fields
/// are enough, if any are given.
pub fn push_jsonb(text: &[u8], fields: Option<&Fields>, out: &mut Vec<u8>) {
    let formed = match fields {
        Some(fields) => form_fields(text, fields, out),
        None => form_jsonb(text, out),
    };
    if formed.is_none() {
        let datum = jsonb_from_text(text);
        out.extend_from_slice(&datum);
    }
}

/// The datum of any jsonb text, by PostgreSQL's parser.
fn jsonb_from_text(text: &[u8]) -> Vec<u8> {
    let Ok(c_text) = std::ffi::CString::new(text) else {
        error(Kind::Corrupt, "a stored json value contains a zero byte").raise()
    };
    // SAFETY: jsonb_in returns a palloc'ed varlena with a 4-byte header.
    memory::scratch(|| unsafe {
        let datum = pg_sys::OidInputFunctionCall(
            Oid::from(pg_sys::F_JSONB_IN),
            c_text.as_ptr() as *mut _,
            pg_sys::InvalidOid,
            -1,
        );
        let ptr = datum.cast_mut_ptr::<u8>();
        let len = pgrx::varlena::varsize_any(ptr.cast());
        std::slice::from_raw_parts(ptr, len).to_vec()
    })
}

/// Whether JSON text has more than `most` arrays and objects within each other.
fn is_nested_deeper(text: &[u8], most: usize) -> bool {
    // Each takes two bytes.
    if text.len() < 2 * most {
        return false;
    }
    let (mut level, mut in_string, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => (),
            b'[' | b'{' => {
                level += 1;
                if level > most {
                    return true;
                }
            }
            b']' | b'}' => level -= 1,
            _ => (),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::{is_nested_deeper, most_digits};

    #[test]
    fn digits_of_numbers() {
        let long = |header: u16, weight: i16| [header.to_le_bytes(), weight.to_le_bytes()].concat();
        assert!(most_digits(&long(0, 32_767)) > 131_071);
        assert!((1..600).contains(&most_digits(&long(500, -120))));
        assert!(most_digits(&long(0x3FFF, 0)) > 16_383);
        assert!((300..400).contains(&most_digits(&0x8000_u16.to_le_bytes())));
    }

    #[test]
    fn levels_of_text() {
        let nested = |n: usize, inner: &str| format!("{}{inner}{}", "[".repeat(n), "]".repeat(n));
        assert!(!is_nested_deeper(nested(64, "1").as_bytes(), 64));
        assert!(is_nested_deeper(nested(65, "1").as_bytes(), 64));
        assert!(is_nested_deeper(nested(65, "").as_bytes(), 64));
        let side_by_side = format!("[{}]", ["[{}]"; 500].join(", "));
        assert!(!is_nested_deeper(side_by_side.as_bytes(), 64));
        let quoted = nested(60, &format!("\"{}\\\\\"", "[{\\\"".repeat(90)));
        assert!(!is_nested_deeper(quoted.as_bytes(), 64), "{quoted}");
        let after = nested(60, &format!("\"\\\\\", {}", nested(5, "")));
        assert!(is_nested_deeper(after.as_bytes(), 64), "{after}");
    }
}
