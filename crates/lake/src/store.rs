//! One way to speak to every store.

use crate::drive::Driver;
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::file::FileStore;
use crate::key::check_key;
use crate::options::{parse_url, Location, StoreOptions};
use crate::s3::S3Store;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;

/// A store of objects, immutable but for those that [`Store::replace`] writes.
///
/// Every call blocks until it is done, fails, or `cancelled` (asked at least every 20 ms) answers true.
/// `cancelled` runs on the calling thread. A store must not be carried over a fork.
pub struct Store {
    url: String,
    place: Place,
}

pub(crate) enum Place {
    File(FileStore),
    S3 { store: Box<S3Store>, driver: Driver },
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("url", &self.url).finish()
    }
}

impl Store {
    /// Prepares to speak to a store; nothing is sent yet.
    ///
    /// `thread_start` runs first in every helper thread (there are some only while host names are resolved).
    pub fn open(options: &StoreOptions, thread_start: fn()) -> Result<Store> {
        let place = match parse_url(&options.url)? {
            Location::File { root } => Place::File(FileStore::new(root)),
            Location::S3 { bucket, prefix } => Place::S3 {
                driver: Driver::new(thread_start)?,
                store: Box::new(S3Store::new(options, &bucket, &prefix)?),
            },
        };
        Ok(Store { url: options.url.clone(), place })
    }

    /// The URL the store was opened by. It holds no secret.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Writes an object: whole or not at all, durable when this returns. Fails with `AlreadyExists` if the key
    /// has an object already.
    ///
    /// After another error than `AlreadyExists` and `InvalidOptions` the object may exist all the same:
    /// try again under a new key.
    pub fn put(&self, key: &str, bytes: Bytes, cancelled: &dyn Fn() -> bool) -> Result<()> {
        check_key(key)?;
        self.finish(
            "write object",
            key,
            match &self.place {
                Place::File(store) => store.put(key, &bytes, cancelled),
                Place::S3 { store, driver } => driver.run(cancelled, store.put(key, &bytes)),
            },
        )
    }

    /// Writes a small object in the place of whatever has the key, at once: there is the old one or this one, whatever happens. For what
    /// tells whose turn it is; all else is written once.
    pub fn replace(&self, key: &str, bytes: Bytes, cancelled: &dyn Fn() -> bool) -> Result<()> {
        check_key(key)?;
        let replaced = match &self.place {
            Place::File(store) => store.replace(key, &bytes),
            Place::S3 { store, driver } => driver.run(cancelled, store.replace(key, &bytes)),
        };
        self.finish("replace object", key, replaced)
    }

    /// Reads bytes of an object. `Corrupt` if it has fewer.
    pub fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Bytes> {
        let mut all = self.get_ranges(key, &[range], cancelled)?;
        all.pop().ok_or_else(|| Error::new(ErrorKind::Other, "a read returned nothing"))
    }

    /// Reads several ranges of an object, in parallel; ranges close to each other share a request, large ones
    /// are divided. They may overlap and come in any order; the result is in theirs.
    pub fn get_ranges(
        &self,
        key: &str,
        ranges: &[Range<u64>],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Bytes>> {
        check_key(key)?;
        if ranges.iter().any(|r| r.start > r.end) {
            return Err(Error::invalid("a range must not end before it begins"));
        }
        self.finish(
            "read object",
            key,
            match &self.place {
                Place::File(store) => store.get_many(key, ranges, cancelled),
                Place::S3 { store, driver } => driver.run(cancelled, store.get_many(key, ranges)),
            },
        )
    }

    /// An object's size in bytes.
    pub fn head(&self, key: &str, cancelled: &dyn Fn() -> bool) -> Result<u64> {
        check_key(key)?;
        self.finish(
            "look up object",
            key,
            match &self.place {
                Place::File(store) => store.head(key),
                Place::S3 { store, driver } => driver.run(cancelled, store.head(key)),
            },
        )
    }

    /// The keys that begin with `prefix`, and their sizes in bytes, in order of key.
    pub fn list(&self, prefix: &str, cancelled: &dyn Fn() -> bool) -> Result<Vec<(String, u64)>> {
        let whole = prefix.strip_suffix('/').unwrap_or(prefix);
        if !whole.is_empty() || prefix == "/" {
            check_key(whole)?;
        }
        self.finish(
            "list objects",
            prefix,
            match &self.place {
                Place::File(store) => store.list(prefix, cancelled),
                Place::S3 { store, driver } => driver.run(cancelled, store.list(prefix)),
            },
        )
    }

    /// Reads an object back and compares it: `Corrupt` unless it has this size and this crc32c.
    pub fn verify(
        &self,
        key: &str,
        size: u64,
        crc32c: u32,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<()> {
        check_key(key)?;
        let read = match &self.place {
            Place::File(store) => store.checksum(key, cancelled),
            Place::S3 { store, driver } => driver.run(cancelled, store.checksum(key)),
        };
        let compared = read.and_then(|(found_size, found_crc)| {
            if found_size != size {
                Err(Failure::fatal(
                    ErrorKind::Corrupt,
                    format!("it has {found_size} bytes instead of {size}"),
                ))
            } else if found_crc != crc32c {
                Err(Failure::fatal(
                    ErrorKind::Corrupt,
                    format!("its bytes have checksum {found_crc:08x} instead of {crc32c:08x}"),
                ))
            } else {
                Ok(())
            }
        });
        self.finish("verify object", key, compared)
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn finish<T>(
        &self,
        doing: &str,
        key: &str,
        result: std::result::Result<T, Failure>,
    ) -> Result<T> {
        result.map_err(|f| f.into_error(doing, key, &self.url))
    }
}
