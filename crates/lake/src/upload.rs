//! Objects that come in parts, while nobody knows yet how large they will be.

use crate::error::{Error, ErrorKind, Failure, Result};
use crate::key::check_key;
use crate::store::{Place, Store};
use bytes::Bytes;

/// An object under way. Its parts may be uploaded by several threads, each with a [`Store`] of its own.
///
/// It is no object before [`Store::upload_finish`]; whoever does not get there calls [`Store::upload_abort`], or its
/// parts stay in the store and cost money.
#[derive(Clone, Debug)]
pub struct Upload {
    key: String,
    id: String,
}

/// A part that the store has.
#[derive(Clone, Debug)]
pub struct Part {
    number: u32,
    offset: u64,
    length: u64,
    crc32c: u32,
    id: String,
}

impl Part {
    /// Which part it is, counted from 0.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Store {
    /// Begins an object that comes in parts.
    pub fn upload_begin(&self, key: &str, cancelled: &dyn Fn() -> bool) -> Result<Upload> {
        check_key(key)?;
        let begun = match self.place() {
            Place::File(store) => store.upload_begin(key),
            Place::S3 { store, driver } => driver.run(cancelled, store.upload_begin(key)),
        };
        let id = self.finish("begin object", key, begun)?;
        Ok(Upload { key: key.to_string(), id })
    }

    /// Uploads the part of this number, counted from 0, whose first byte is the object's at `offset`. The same part may be
    /// uploaded again.
    ///
    /// S3 takes parts of 5 MiB to 5 GiB, the last one also smaller, and no more than 10,000.
    pub fn upload_part(
        &self,
        upload: &Upload,
        number: u32,
        offset: u64,
        bytes: Bytes,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Part> {
        let Upload { key, id } = upload;
        let (length, crc32c) = (bytes.len() as u64, crc32c::crc32c(&bytes));
        let put = match self.place() {
            Place::File(store) => {
                store.upload_part(key, id, offset, &bytes, cancelled).map(|()| String::new())
            }
            Place::S3 { store, driver } => {
                driver.run(cancelled, store.upload_part(key, id, number as usize, bytes))
            }
        };
        let id = self.finish("write a part of object", key, put)?;
        Ok(Part { number, offset, length, crc32c, id })
    }

    /// Makes the object of all its parts: whole or not at all, durable when this returns, never over an existing one.
    /// The parts may come in any order but leave no gap.
    ///
    /// A completion whose answer was lost is settled by looking, as with [`Store::put`].
    pub fn upload_finish(
        &self,
        upload: &Upload,
        mut parts: Vec<Part>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<()> {
        let Upload { key, id } = upload;
        parts.sort_by_key(|part| part.number);
        let (mut size, mut crc) = (0u64, 0u32);
        for (n, part) in parts.iter().enumerate() {
            let length = usize::try_from(part.length).unwrap_or(usize::MAX);
            if part.number as usize != n || part.offset != size {
                return Err(Error::invalid(format!("parts of object \"{key}\" leave a gap")));
            }
            crc = crc32c::crc32c_combine(crc, part.crc32c, length);
            size += part.length;
        }
        let finished = match self.place() {
            Place::File(store) => store.upload_finish(key, id, size, cancelled),
            Place::S3 { store, driver } => {
                let parts = parts.into_iter().map(|part| part.id).collect();
                driver.run(cancelled, store.upload_finish(key, id, parts, size, crc))
            }
        };
        self.finish("write object", key, finished)
    }

    /// Gives an object up that will not be finished. After [`Store::upload_finish`] nothing happens.
    pub fn upload_abort(&self, upload: &Upload, cancelled: &dyn Fn() -> bool) -> Result<()> {
        let Upload { key, id } = upload;
        let aborted = match self.place() {
            Place::File(store) => store.upload_abort(key, id),
            Place::S3 { store, driver } => driver.run(cancelled, store.upload_abort(key, id)),
        };
        self.finish("give up object", key, aborted)
    }

    /// Copies an object of a store that lies beside this one, without its bytes coming here: `from` is its place below the
    /// folder or prefix that this store's own lies in. Fails with `AlreadyExists` if the key has an object. S3 copies up to 5 GiB.
    pub fn copy_beside(&self, from: &str, key: &str, cancelled: &dyn Fn() -> bool) -> Result<()> {
        check_key(from)?;
        check_key(key)?;
        let copied = match self.place() {
            Place::File(_) => {
                Err(Failure::fatal(ErrorKind::InvalidOptions, "folders copy nothing"))
            }
            Place::S3 { store, driver } => driver.run(cancelled, store.copy_beside(from, key)),
        };
        self.finish("copy object", key, copied)
    }

    /// Removes an object. Nothing happens if it does not exist.
    ///
    /// Whoever calls it answers for it that nobody needs the object: nothing else in this crate removes one.
    pub fn delete(&self, key: &str, cancelled: &dyn Fn() -> bool) -> Result<()> {
        check_key(key)?;
        if cancelled() {
            return self.finish("remove object", key, Err(Failure::cancelled()));
        }
        let deleted = match self.place() {
            Place::File(store) => store.delete(key),
            Place::S3 { store, driver } => driver.run(cancelled, store.delete(key)),
        };
        match self.finish("remove object", key, deleted) {
            Err(e) if e.kind == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}
