//! jsonb as its text, which is how stripes have it, so that any reader of Parquet understands it. A value that its text could
//! not surely be read from again keeps PostgreSQL's own form.

use super::datum::Datum;
use super::{error, memory, Kind};
use pgrx::pg_sys;

/// Levels of arrays and objects in each other up to which a value is kept as text. PostgreSQL's parser calls itself for each
/// level, some 150 bytes of stack, and who reads may have less of that left than who wrote: jsonb itself is read without.
const MOST_LEVELS: usize = 64;

/// Bytes of a value up to which it is kept as text, which may have six times as many: of a gigabyte there could be no string.
const MOST_BYTES: usize = 64 << 20;

/// Call `f` with the text of a jsonb; false, without doing so, when it is not to be kept as text.
pub fn with_text(value: Datum, f: impl FnOnce(&[u8])) -> bool {
    // SAFETY: a jsonb datum; jsonb_out returns a palloc'ed C string.
    memory::scratch(|| unsafe {
        if pg_sys::toast_raw_datum_size(pg_sys::Datum::from(value)) > MOST_BYTES {
            return false;
        }
        let text = pg_sys::OidOutputFunctionCall(
            pg_sys::Oid::from(pg_sys::F_JSONB_OUT),
            pg_sys::Datum::from(value),
        );
        let text = std::ffi::CStr::from_ptr(text).to_bytes();
        let fits = !is_nested_deeper(text, MOST_LEVELS);
        if fits {
            f(text);
        }
        fits
    })
}

/// The datum of jsonb text, as bytes of a varlena (header included).
pub fn jsonb_from_text(text: &[u8]) -> Vec<u8> {
    let Ok(c_text) = std::ffi::CString::new(text) else {
        error(Kind::Corrupt, "a stored json value contains a zero byte").raise()
    };
    // SAFETY: jsonb_in returns a palloc'ed varlena with a 4-byte header.
    memory::scratch(|| unsafe {
        let datum = pg_sys::OidInputFunctionCall(
            pg_sys::Oid::from(pg_sys::F_JSONB_IN),
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
    use super::is_nested_deeper;

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
