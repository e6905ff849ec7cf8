//! The table of contents in memory.
//!
//! All text lies in one buffer and entries refer to it, for an entry as a struct of strings takes three times
//! its text and an archive of 164,000 partitions then no longer fits into a gigabyte. Text is in the encoding
//! of the database.

use crate::error::{Error, Result};
use std::collections::HashMap;

/// The part of a restore that an entry belongs to, as `pg_restore --section` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Section {
    None,
    PreData,
    Data,
    PostData,
}

/// Texts that an entry does not have at all. Elsewhere they count as empty; `pg_restore` tells the two apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absent(u8);

impl Absent {
    pub const NAMESPACE: Absent = Absent(1);
    pub const OWNER: Absent = Absent(2);
    pub const TABLESPACE: Absent = Absent(4);
    pub const TABLEAM: Absent = Absent(8);
    pub const DROP_STMT: Absent = Absent(16);

    /// Note that a text is absent, unless it is there.
    pub fn note(&mut self, what: Absent, there: bool) {
        if !there {
            self.0 |= what.0;
        }
    }

    fn has(self, what: Absent) -> bool {
        self.0 & what.0 != 0
    }
}

/// One entry of the table of contents. What an entry does not have is empty.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The number by which other entries refer to it; 1 and up.
    pub dump_id: i32,
    /// Oids of the catalog and of the object in the source database; 0 if none.
    pub catalog_oid: u32,
    pub oid: u32,
    /// The object's kind, e.g. `TABLE` or `INDEX ATTACH`.
    pub desc: &'a [u8],
    /// The object's name; of constraints, triggers and the like the table's name comes first.
    pub tag: &'a [u8],
    pub namespace: &'a [u8],
    pub owner: &'a [u8],
    pub tablespace: &'a [u8],
    /// Table access method.
    pub tableam: &'a [u8],
    /// `pg_class.relkind`, 0 where the archive does not tell.
    pub relkind: u8,
    pub section: Section,
    /// The statements that make it.
    pub defn: &'a [u8],
    /// The statement that drops it.
    pub drop_stmt: &'a [u8],
    /// The COPY statement for its data.
    pub copy_stmt: &'a [u8],
    /// The archive has data for it.
    pub has_data: bool,
    /// Dump ids of what must be there before it.
    pub dependencies: &'a [i32],
    /// Which of the empty texts are not there at all.
    pub absent: Absent,
}

impl<'a> Entry<'a> {
    /// A text that may be absent.
    pub fn given(&self, what: Absent) -> Option<&'a [u8]> {
        let text = match what {
            Absent::NAMESPACE => self.namespace,
            Absent::OWNER => self.owner,
            Absent::TABLESPACE => self.tablespace,
            Absent::TABLEAM => self.tableam,
            _ => self.drop_stmt,
        };
        (!self.absent.has(what)).then_some(text)
    }
}

impl Default for Entry<'_> {
    fn default() -> Self {
        Entry {
            dump_id: 0,
            catalog_oid: 0,
            oid: 0,
            desc: b"",
            tag: b"",
            namespace: b"",
            owner: b"",
            tablespace: b"",
            tableam: b"",
            relkind: 0,
            section: Section::None,
            defn: b"",
            drop_stmt: b"",
            copy_stmt: b"",
            has_data: false,
            dependencies: &[],
            absent: Absent::default(),
        }
    }
}

/// Where a text lies in the buffer.
#[derive(Clone, Copy)]
struct Span {
    start: u32,
    length: u32,
}

struct Record {
    dump_id: i32,
    catalog_oid: u32,
    oid: u32,
    tag: Span,
    defn: Span,
    drop_stmt: Span,
    copy_stmt: Span,
    /// Places in `words`: texts that many entries share.
    desc: u32,
    namespace: u32,
    owner: u32,
    tablespace: u32,
    tableam: u32,
    dependencies: Span,
    relkind: u8,
    section: Section,
    has_data: bool,
    absent: Absent,
}

/// All entries in the archive's order.
#[derive(Default)]
pub struct Toc {
    text: Vec<u8>,
    words: Vec<Box<[u8]>>,
    word_numbers: HashMap<Box<[u8]>, u32>,
    dependencies: Vec<i32>,
    records: Vec<Record>,
    /// Dump id to place, `NONE` for ids that no entry has.
    places: Vec<u32>,
    /// The places of larger dump ids. A dump of one table out of very many has few and large ones, and a hostile
    /// one must not make us allocate.
    far_places: HashMap<i32, u32>,
    /// Dump ids below this go to `places`.
    dense: i32,
    /// What the archive says, if this says something else.
    written: Option<Box<Toc>>,
    /// Of a table it says that its rows have oids, which ended with PostgreSQL 12.
    with_oids: bool,
}

/// A place that is none.
const NONE: u32 = u32::MAX;
/// The least value of [`Toc::dense`].
const LEAST_DENSE: i32 = 1 << 10;

impl Toc {
    /// An empty table of contents for an archive of this many bytes.
    pub fn with_room(bytes: u64) -> Toc {
        // In real archives entries take a hundred bytes and more, and most objects have one.
        let dense = i32::try_from(bytes / 16).unwrap_or(i32::MAX).max(LEAST_DENSE);
        Toc { dense, ..Toc::default() }
    }

    /// An empty one for entries of the same ids.
    pub fn alike(&self) -> Toc {
        Toc { dense: self.dense, ..Toc::default() }
    }

    /// This is used in place of what the archive says; entries have the same places.
    pub fn instead_of(self, written: Toc) -> Toc {
        Toc { written: Some(Box::new(written)), ..self }
    }

    /// What the archive says: its names are those that users choose by.
    pub fn as_written(&self) -> &Toc {
        self.written.as_deref().unwrap_or(self)
    }

    pub(super) fn note_oids(&mut self) {
        self.with_oids = true;
    }

    /// There are tables WITH OIDS, whose rows come without them.
    pub fn with_oids(&self) -> bool {
        self.as_written().with_oids
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn keep(&mut self, text: &[u8]) -> Result<Span> {
        let start = self.text.len();
        self.text.extend_from_slice(text);
        match (u32::try_from(start), u32::try_from(text.len()), u32::try_from(self.text.len())) {
            (Ok(start), Ok(length), Ok(_)) => Ok(Span { start, length }),
            _ => Err(Error::archive("the archive's table of contents is larger than 4 GiB")),
        }
    }

    fn word(&mut self, text: &[u8]) -> u32 {
        if let Some(&number) = self.word_numbers.get(text) {
            return number;
        }
        let number = self.words.len() as u32;
        self.words.push(text.into());
        self.word_numbers.insert(text.into(), number);
        number
    }

    /// Statements are for the schema of their entry as search path, and name nothing with it: until 10.2.
    pub fn selects_schemas(&self) -> bool {
        !self.entries().any(|entry| entry.desc == b"SEARCHPATH")
    }

    /// Add an entry after all others. Fails if its id is taken or is none.
    pub fn push(&mut self, entry: &Entry) -> Result<()> {
        let id = entry.dump_id;
        if id < 1 {
            return Err(Error::archive(format!("invalid dump ID {id} in the archive")));
        }
        if self.place(id).is_some() {
            return Err(Error::archive(format!("the archive has two entries with dump ID {id}")));
        }
        let place = u32::try_from(self.records.len()).ok().filter(|&place| place != NONE);
        let start = u32::try_from(self.dependencies.len()).ok();
        let length = u32::try_from(entry.dependencies.len()).ok();
        let (Some(place), Some(start), Some(length)) = (place, start, length) else {
            return Err(Error::archive("the archive's table of contents has too many entries"));
        };
        self.dependencies.extend_from_slice(entry.dependencies);
        let record = Record {
            dump_id: id,
            catalog_oid: entry.catalog_oid,
            oid: entry.oid,
            tag: self.keep(entry.tag)?,
            defn: self.keep(entry.defn)?,
            drop_stmt: self.keep(entry.drop_stmt)?,
            copy_stmt: self.keep(entry.copy_stmt)?,
            desc: self.word(entry.desc),
            namespace: self.word(entry.namespace),
            owner: self.word(entry.owner),
            tablespace: self.word(entry.tablespace),
            tableam: self.word(entry.tableam),
            dependencies: Span { start, length },
            relkind: entry.relkind,
            section: entry.section,
            has_data: entry.has_data,
            absent: entry.absent,
        };
        if id < self.dense.max(LEAST_DENSE) {
            if self.places.len() <= id as usize {
                self.places.resize(id as usize + 1, NONE);
            }
            self.places[id as usize] = place;
        } else {
            self.far_places.insert(id, place);
        }
        self.records.push(record);
        Ok(())
    }

    /// Give back memory that further entries would need.
    pub fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.dependencies.shrink_to_fit();
        self.places.shrink_to_fit();
        self.records.shrink_to_fit();
        self.word_numbers = HashMap::new();
    }

    /// The place of the entry with a dump id.
    pub fn place(&self, dump_id: i32) -> Option<usize> {
        let near = self.places.get(usize::try_from(dump_id).ok()?);
        let place = near.or_else(|| self.far_places.get(&dump_id)).copied()?;
        (place != NONE).then_some(place as usize)
    }

    fn text(&self, span: Span) -> &[u8] {
        &self.text[span.start as usize..][..span.length as usize]
    }

    /// The entry at a place, counted from 0.
    pub fn entry(&self, place: usize) -> Entry<'_> {
        let r = &self.records[place];
        let word = |number: u32| &*self.words[number as usize];
        let Span { start, length } = r.dependencies;
        Entry {
            dump_id: r.dump_id,
            catalog_oid: r.catalog_oid,
            oid: r.oid,
            desc: word(r.desc),
            tag: self.text(r.tag),
            namespace: word(r.namespace),
            owner: word(r.owner),
            tablespace: word(r.tablespace),
            tableam: word(r.tableam),
            relkind: r.relkind,
            section: r.section,
            defn: self.text(r.defn),
            drop_stmt: self.text(r.drop_stmt),
            copy_stmt: self.text(r.copy_stmt),
            has_data: r.has_data,
            absent: r.absent,
            dependencies: &self.dependencies[start as usize..][..length as usize],
        }
    }

    pub fn entries(&self) -> impl DoubleEndedIterator<Item = Entry<'_>> + ExactSizeIterator {
        (0..self.len()).map(|place| self.entry(place))
    }

    /// Bytes of memory that the table of contents takes.
    pub fn memory(&self) -> usize {
        self.text.capacity()
            + self.dependencies.capacity() * 4
            + self.places.capacity() * 4
            + self.records.capacity() * size_of::<Record>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back() {
        let mut toc = Toc::default();
        let mut absent = Absent::default();
        absent.note(Absent::OWNER, false);
        absent.note(Absent::NAMESPACE, true);
        let first = Entry { dump_id: 7, desc: b"TABLE", tag: b"t", absent, ..Entry::default() };
        let second = Entry { dump_id: 3, desc: b"INDEX", dependencies: &[7], ..Entry::default() };
        toc.push(&first).unwrap();
        toc.push(&second).unwrap();
        assert_eq!(toc.place(3), Some(1));
        assert_eq!(toc.place(4), None);
        assert_eq!(toc.entry(1).dependencies, [7]);
        assert_eq!(toc.entry(0).tag, b"t");
        assert_eq!(toc.entry(0).given(Absent::OWNER), None);
        assert_eq!(toc.entry(0).given(Absent::NAMESPACE), Some(&b""[..]));
    }

    #[test]
    fn wrong_ids_are_refused() {
        let mut toc = Toc::default();
        let entry = |dump_id| Entry { dump_id, ..Entry::default() };
        toc.push(&entry(1)).unwrap();
        for id in [1, 0, -5, i32::MIN] {
            assert!(toc.push(&entry(id)).is_err(), "{id}");
        }
    }

    #[test]
    fn large_ids_take_no_room() {
        let mut toc = Toc::with_room(5000);
        let ids = [3, LEAST_DENSE - 1, LEAST_DENSE, 400_000_000, i32::MAX];
        for dump_id in ids {
            toc.push(&Entry { dump_id, ..Entry::default() }).unwrap();
            assert!(toc.push(&Entry { dump_id, ..Entry::default() }).is_err());
        }
        for (place, id) in ids.into_iter().enumerate() {
            assert_eq!(toc.place(id), Some(place), "{id}");
            assert_eq!(toc.place(id - 2), None);
        }
        assert!(toc.memory() < 10_000);
    }
}
