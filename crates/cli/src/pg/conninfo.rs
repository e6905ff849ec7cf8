//! Connection strings taken apart, as libpq does it.

use super::result::{bytes, text};
use crate::error::{Error, Result};
use std::ffi::CString;
use std::ptr::null_mut;

/// Keywords and values of a connection string or URI; only those that it names. `None` if it is a mere name of a database.
pub fn parse_conninfo(conninfo: &str) -> Result<Option<Vec<(String, String)>>> {
    // libpq's own rule.
    let uri = ["postgresql://", "postgres://"].iter().any(|prefix| conninfo.starts_with(prefix));
    if !uri && !conninfo.contains('=') {
        return Ok(None);
    }
    let wrong = |why: String| Error::usage("invalid connection string").detail(why);
    let conninfo = CString::new(conninfo).map_err(|_| wrong("It holds a zero byte.".into()))?;
    let mut message = null_mut();
    // SAFETY: a C string that outlives the call, and a place for a message.
    let options = unsafe { pq_sys::PQconninfoParse(conninfo.as_ptr(), &mut message) };
    if options.is_null() {
        // SAFETY: null, or libpq's C string, copied at once and freed once.
        let why = text(unsafe { bytes(message) });
        // SAFETY: as above.
        unsafe { pq_sys::PQfreemem(message.cast()) };
        return Err(wrong(why));
    }
    let mut pairs = Vec::new();
    let mut option = options;
    // SAFETY: an array that ends with an option without keyword; texts live until it is freed.
    unsafe {
        while !(*option).keyword.is_null() {
            if !(*option).val.is_null() {
                pairs.push((text(bytes((*option).keyword)), value(bytes((*option).val))));
            }
            option = option.add(1);
        }
        pq_sys::PQconninfoFree(options);
    }
    Ok(Some(pairs))
}

fn value(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_names() {
        assert_eq!(parse_conninfo("shop").unwrap(), None);
        let pairs = |list: &[(&str, &str)]| -> Vec<(String, String)> {
            list.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
        };
        let mut found = parse_conninfo("dbname=shop password='a b'").unwrap().unwrap();
        found.sort();
        assert_eq!(found, pairs(&[("dbname", "shop"), ("password", "a b")]));
        let mut found = parse_conninfo("postgres://u:p%20q@h/shop").unwrap().unwrap();
        found.sort();
        assert_eq!(
            found,
            pairs(&[("dbname", "shop"), ("host", "h"), ("password", "p q"), ("user", "u")])
        );
        assert!(parse_conninfo("a = b").is_err());
    }
}
