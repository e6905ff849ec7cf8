//! Connection strings taken apart, as libpq does it.

use super::result::{bytes, text};
use crate::error::{Error, Result};
use std::ffi::CString;
use std::ptr::null_mut;

/// Where to connect to and as whom: libpq's keywords and values, each once.
///
/// A connection string is taken apart where it comes in, and nowhere else: from there on a database's name is a name, even if it
/// looks like a connection string. Names come from archives, and one of those could send a password to another server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address(Vec<(String, String)>);

impl Address {
    /// What flags say, and a name, connection string or URI, which counts where both say something. As in libpq an empty flag
    /// says nothing.
    pub fn new(flags: &[(&str, &str)], dbname: Option<&str>) -> Result<Address> {
        let mut address = Address::default();
        for (key, value) in flags.iter().filter(|(_, value)| !value.is_empty()) {
            address.set(key, value);
        }
        let Some(dbname) = dbname.filter(|name| !name.is_empty()) else { return Ok(address) };
        match parse_conninfo(dbname)? {
            Some(pairs) => pairs.iter().for_each(|(key, value)| address.set(key, value)),
            None => address.set("dbname", dbname),
        }
        Ok(address)
    }

    /// Another database of the same server, for the same user; its name is nothing but a name.
    pub fn database(&self, name: &str) -> Address {
        self.with("dbname", name)
    }

    fn set(&mut self, key: &str, value: &str) {
        self.0.retain(|(other, _)| other != key);
        self.0.push((key.to_string(), value.to_string()));
    }

    /// The same, with a value for what nothing has been said of.
    pub fn or(mut self, key: &str, value: &str) -> Address {
        if !self.0.iter().any(|(other, _)| other == key) {
            self.set(key, value);
        }
        self
    }

    /// The same, with another value.
    pub fn with(&self, key: &str, value: &str) -> Address {
        let mut address = self.clone();
        address.set(key, value);
        address
    }

    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    /// As a connection string, without the keywords that `keep` leaves out. It cannot be taken for a mere name.
    pub fn conninfo(&self, keep: impl Fn(&str) -> bool) -> String {
        let parts = self.pairs().filter(|(key, _)| keep(key));
        let quoted = |(key, value): (&str, &str)| {
            format!("{key}='{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
        };
        parts.map(quoted).collect::<Vec<_>>().join(" ")
    }
}

/// Whether libpq takes it for a connection string or URI, and not for a mere name of a database. Its own rule.
pub fn is_conninfo(text: &str) -> bool {
    let uri = ["postgresql://", "postgres://"].iter().any(|prefix| text.starts_with(prefix));
    uri || text.contains('=')
}

/// Keywords and values of a connection string or URI; only those that it names. `None` if it is a mere name of a database.
fn parse_conninfo(conninfo: &str) -> Result<Option<Vec<(String, String)>>> {
    if !is_conninfo(conninfo) {
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
                let value = String::from_utf8(bytes((*option).val).to_vec());
                pairs.push((text(bytes((*option).keyword)), value));
            }
            option = option.add(1);
        }
        pq_sys::PQconninfoFree(options);
    }
    let mut texts = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let unknown = |_| wrong(format!("The value of {key} is not in UTF-8."));
        let value = value.map_err(unknown)?;
        texts.push((key, value));
    }
    Ok(Some(texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(address: &Address) -> Vec<(&str, &str)> {
        let mut pairs: Vec<_> = address.pairs().collect();
        pairs.sort_unstable();
        pairs
    }

    #[test]
    fn strings_and_names() {
        let of = |text: &str| Address::new(&[("host", "flag"), ("port", "")], Some(text));
        assert_eq!(pairs(&of("shop").unwrap()), [("dbname", "shop"), ("host", "flag")]);
        let found = of("dbname=shop password='a b'").unwrap();
        assert_eq!(pairs(&found), [("dbname", "shop"), ("host", "flag"), ("password", "a b")]);
        let found = of("postgres://u:p%20q@h/shop").unwrap();
        let expected = [("dbname", "shop"), ("host", "h"), ("password", "p q"), ("user", "u")];
        assert_eq!(pairs(&found), expected);
        assert_eq!(of("a = b").unwrap_err().exit_code(), 2);
        assert!(of("postgres://u:%ff@h/shop").unwrap_err().to_string().contains("password"));
    }

    #[test]
    fn names_are_names() {
        let server = Address::new(&[], Some("host=h password=geheim dbname=postgres")).unwrap();
        let name = "host=evil.example dbname='x\\";
        let other = server.database(name);
        assert_eq!(pairs(&other), [("dbname", name), ("host", "h"), ("password", "geheim")]);
        // What is made of it is read as the same again.
        let again = Address::new(&[], Some(&other.conninfo(|_| true))).unwrap();
        assert_eq!(pairs(&again), pairs(&other));
        assert!(!other.conninfo(|key| key != "password").contains("geheim"));
        let nowhere = Address::default().database(name);
        let again = Address::new(&[], Some(&nowhere.conninfo(|_| true))).unwrap();
        assert_eq!(pairs(&again), [("dbname", name)]);
    }

    #[test]
    fn what_nothing_has_been_said_of() {
        let address = Address::new(&[], Some("host=h")).unwrap();
        assert_eq!(pairs(&address.or("host", "x").or("port", "5")), [("host", "h"), ("port", "5")]);
    }
}
