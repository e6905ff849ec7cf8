//! What logical decoding reads of changes of stripe rows: heapam's own records of insertions, updates and deletions, with the rows in
//! them, so that every plugin, on every version, decodes what it would of a heap table. `docs/decisions/0030-logical-decoding.md`
//! has the reasons.
//!
//! A stripe row lies on no page of the table, and a record of heapam's changes one when it is replayed. So each has the image of a page
//! that nobody reads: an empty one of the free space map, behind the part of the map that speaks of pages of the row store. Replay puts
//! the image in place and leaves the rows alone; decoding does not look at the image. Here no page is written at all.

use super::change_tuple::{old_version, Chunk, Out, Stored};
use super::datum::Row;
use super::{compat, OpenRel, Rel, TupleSlot};
use crate::pg::rel::LockMode;
use pgrx::pg_sys;

/// heapam's kinds of records, and their flags (access/heapam_xlog.h).
const INSERT: u8 = 0x00;
const DELETE: u8 = 0x10;
const UPDATE: u8 = 0x20;
const MULTI_INSERT: u8 = 0x50;
const INSERT_LAST_IN_MULTI: u8 = 1 << 1;
const INSERT_HAS_ROW: u8 = 1 << 3;
const INSERT_OF_TOAST: u8 = 1 << 4;
const UPDATE_HAS_OLD_ROW: u8 = 1 << 2;
const UPDATE_HAS_OLD_KEY: u8 = 1 << 3;
const UPDATE_HAS_ROW: u8 = 1 << 4;
const DELETE_HAS_OLD_ROW: u8 = 1 << 1;
const DELETE_HAS_OLD_KEY: u8 = 1 << 2;

/// Bytes of rows that one record holds at most: the length of what belongs to a page has 16 bits.
pub(super) const MOST_BYTES: usize = 60_000;
/// The offset that all rows of these records have. Nobody looks for them.
const NOWHERE: u16 = 1;
/// Pages of which one page of the free space map speaks (SlotsPerFSMPage, storage/freespace/freespace.c).
const PAGES_OF_MAP_PAGE: u32 = 4_069;

/// Which columns of a row that is gone or changed are logged: the table's replica identity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Identity {
    Nothing,
    /// Attribute numbers.
    Key(Vec<i16>),
    Full,
}

/// The old version of a row, or its key, as the record has it.
pub struct OldRow {
    bytes: Vec<u8>,
    full: bool,
}

/// The log of a table whose changes may be decoded.
#[derive(Clone, Copy)]
pub struct ChangeLog {
    table: Rel,
    at: Place,
}

/// The page whose image a record has.
#[derive(Clone, Copy)]
struct Place {
    file: compat::FileName,
    block: u32,
}

impl Place {
    /// Who replays this restores an empty page of the map, of pages that the relation does not have, or had not lately: the server
    /// may look there for free space in vain, until VACUUM comes to these pages.
    fn of(rel: Rel) -> Place {
        Place { file: compat::file_of(rel.data()), block: map_block_behind(rel.heap_blocks()) }
    }
}

/// The block of the free space map that speaks of pages behind those that page `blocks` would share one with (fsm_logical_to_physical() in
/// storage/freespace/freespace.c: leaves are numbered with the upper pages between them).
fn map_block_behind(blocks: u32) -> u32 {
    let leaf = blocks / PAGES_OF_MAP_PAGE + 1;
    let above = leaf / PAGES_OF_MAP_PAGE;
    (leaf + 1) + (above + 1) + (above / PAGES_OF_MAP_PAGE + 1) - 1
}

/// An empty page, as PageInit() makes it.
#[repr(C, align(8))]
struct EmptyPage([u8; pg_sys::BLCKSZ as usize]);

static EMPTY_PAGE: EmptyPage = {
    let mut page = [0; pg_sys::BLCKSZ as usize];
    // pd_lower, pd_upper, pd_special and pd_pagesize_version (layout version 4) of PageHeaderData.
    let fields = [(12, 24), (14, 8_192), (16, 8_192), (18, 8_192 | 4)];
    let mut i = 0;
    while i < fields.len() {
        let (at, value): (usize, u16) = fields[i];
        let bytes = value.to_ne_bytes();
        page[at] = bytes[0];
        page[at + 1] = bytes[1];
        i += 1;
    }
    EmptyPage(page)
};

impl Rel {
    /// Changes of the relation's rows are logged so that they can be decoded (RelationIsLogicallyLogged, for relations that
    /// are no catalogs).
    pub fn is_logically_logged(self) -> bool {
        // SAFETY: variable read.
        let logical = unsafe { pg_sys::wal_level >= pg_sys::WalLevel::WAL_LEVEL_LOGICAL as i32 };
        logical && self.is_permanent()
    }

    /// The table's replica identity.
    pub fn identity(self) -> Identity {
        match self.replica_identity() {
            b'f' => Identity::Full,
            b'n' => Identity::Nothing,
            _ => {
                let kind = pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_IDENTITY_KEY;
                match self.columns_of(kind) {
                    key if key.is_empty() => Identity::Nothing,
                    key => Identity::Key(key),
                }
            }
        }
    }
}

impl ChangeLog {
    /// None where nobody can decode the table's changes.
    #[inline]
    pub fn of(table: Rel) -> Option<ChangeLog> {
        table.is_logically_logged().then(|| ChangeLog { table, at: Place::of(table) })
    }

    /// The row of a changed or deleted row's old version, of which these columns are logged.
    pub fn old_row(&self, row: Row<'_>, identity: &Identity) -> Option<OldRow> {
        let columns = match identity {
            Identity::Nothing => return None,
            Identity::Full => None,
            Identity::Key(columns) => Some(&columns[..]),
        };
        let bytes = old_version(self.table, row, columns);
        Some(OldRow { bytes, full: columns.is_none() })
    }

    /// Log the insertion of the rows in the slots.
    pub fn insert(&self, slots: &[TupleSlot]) {
        let mut batch = Batch::default();
        for slot in slots {
            match Stored::of_slot(self.table, *slot) {
                Some(row) => self.add(&mut batch, row.size(), |to| row.write(to)),
                None => {
                    // Chunks are of the first row behind them.
                    let before = || self.log_batch(&mut batch);
                    match self.packed(*slot, before) {
                        (row, true) => self.log_insertion(&row),
                        (row, false) => {
                            self.add(&mut batch, row.len(), |to| to.extend_from_slice(&row))
                        }
                    }
                }
            }
        }
        self.log_batch(&mut batch);
    }

    /// Log that the row in the slot has taken the old one's place.
    pub fn update(&self, slot: TupleSlot, old: Option<&OldRow>) {
        match Stored::of_slot(self.table, slot) {
            Some(row) => self.log_update(&row.to_bytes(), old),
            None => self.log_update(&self.packed(slot, || ()).0, old),
        }
    }

    /// Log that the old row is gone.
    pub fn delete(&self, old: Option<&OldRow>) {
        let flags = flags_of(old, DELETE_HAS_OLD_ROW, DELETE_HAS_OLD_KEY);
        let mut head = [0_u8; 8];
        head[..4]
            .copy_from_slice(&super::xact::raw_xid(super::xact::xid()).into_inner().to_ne_bytes());
        head[4..6].copy_from_slice(&NOWHERE.to_ne_bytes());
        head[7] = flags;
        log(pg_sys::RmgrIds::RM_HEAP_ID, DELETE, self.at, &head, old_bytes(old), &[]);
    }

    fn log_update(&self, row: &[u8], old: Option<&OldRow>) {
        let flags = UPDATE_HAS_ROW | flags_of(old, UPDATE_HAS_OLD_ROW, UPDATE_HAS_OLD_KEY);
        let mut head = [0_u8; 14];
        head[..4]
            .copy_from_slice(&super::xact::raw_xid(super::xact::xid()).into_inner().to_ne_bytes());
        head[4..6].copy_from_slice(&NOWHERE.to_ne_bytes());
        head[7] = flags;
        head[12..14].copy_from_slice(&NOWHERE.to_ne_bytes());
        log(pg_sys::RmgrIds::RM_HEAP_ID, UPDATE, self.at, &head, old_bytes(old), row);
    }

    fn log_insertion(&self, row: &[u8]) {
        log_insertion(self.at, row, INSERT_HAS_ROW);
    }

    /// Put a row of this size into the batch, in which there may be no room for it without logging the others.
    fn add(&self, batch: &mut Batch, size: usize, write: impl FnOnce(&mut Vec<u8>)) {
        // (Its length, and a byte that aligns that.)
        if batch.bytes.len() + size + Batch::LENGTH + 1 > MOST_BYTES {
            self.log_batch(batch);
        }
        batch.push(write);
    }

    fn log_batch(&self, batch: &mut Batch) {
        match batch.rows {
            0 => return,
            1 => self.log_insertion(&batch.first_alone()),
            rows => {
                let mut head = vec![INSERT_HAS_ROW | INSERT_LAST_IN_MULTI, 0];
                head.extend_from_slice(&rows.to_ne_bytes());
                (0..rows).for_each(|i| head.extend_from_slice(&(NOWHERE + i).to_ne_bytes()));
                let manager = pg_sys::RmgrIds::RM_HEAP2_ID;
                log(manager, MULTI_INSERT, self.at, &head, &[], &batch.bytes);
            }
        }
        batch.clear();
    }

    /// A row with values compressed, as heapam does; the largest are logged as TOAST's chunks are, before the row, which points to them: then
    /// `before` is called first. Whether there are any.
    fn packed(&self, slot: TupleSlot, mut before: impl FnMut()) -> (Vec<u8>, bool) {
        let Some(toast) = self.table.toast_oid() else {
            super::error(super::Kind::Internal, "a firn table without TOAST relation").raise()
        };
        let mut at: Option<Place> = None;
        let log = |chunk: Chunk<'_>| {
            let at = *at.get_or_insert_with(|| {
                before();
                Place::of(*OpenRel::open(toast, LockMode::AccessShare))
            });
            log_insertion(at, &chunk.row(), INSERT_HAS_ROW | INSERT_OF_TOAST);
        };
        Out { table: self.table, toast, log }.write(slot)
    }
}

fn flags_of(old: Option<&OldRow>, row: u8, key: u8) -> u8 {
    match old {
        None => 0,
        Some(old) if old.full => row,
        Some(_) => key,
    }
}

fn old_bytes(old: Option<&OldRow>) -> &[u8] {
    old.map_or(&[], |old| &old.bytes)
}

fn log_insertion(at: Place, row: &[u8], flags: u8) {
    let [low, high] = NOWHERE.to_ne_bytes();
    log(pg_sys::RmgrIds::RM_HEAP_ID, INSERT, at, &[low, high, flags], &[], row);
}

/// Rows of one record of several.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    rows: u16,
}

impl Batch {
    /// Bytes before each row (xl_multi_insert_tuple): its length, then what a row alone has before it.
    const LENGTH: usize = 2;

    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        // Lengths are aligned to what they are, by the record's beginning.
        if !self.bytes.len().is_multiple_of(Self::LENGTH) {
            self.bytes.push(0);
        }
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; Self::LENGTH]);
        write(&mut self.bytes);
        let data = self.bytes.len() - at - Self::LENGTH - Stored::HEADER;
        self.bytes[at..at + Self::LENGTH].copy_from_slice(&(data as u16).to_ne_bytes());
        self.rows += 1;
    }

    /// The only row, as a record of one has it.
    fn first_alone(&self) -> Vec<u8> {
        self.bytes[Self::LENGTH..].to_vec()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.rows = 0;
    }
}

/// Insert a record: its own part in two pieces, the image of the page, and what belongs to that.
fn log(
    manager: pg_sys::RmgrIds::Type,
    kind: u8,
    at: Place,
    head: &[u8],
    rest: &[u8],
    of_page: &[u8],
) {
    // SAFETY: plain calls; all that is registered outlives the insertion, which copies it. The page is an empty one, with which nothing is
    // wrong wherever it is put; nothing is changed here, so no page is locked.
    unsafe {
        let mut file = at.file;
        pg_sys::XLogBeginInsert();
        pg_sys::XLogRegisterData(head.as_ptr().cast_mut().cast(), head.len() as _);
        if !rest.is_empty() {
            pg_sys::XLogRegisterData(rest.as_ptr().cast_mut().cast(), rest.len() as _);
        }
        let flags = pg_sys::REGBUF_STANDARD | pg_sys::REGBUF_FORCE_IMAGE | pg_sys::REGBUF_KEEP_DATA;
        let page = EMPTY_PAGE.0.as_ptr().cast_mut().cast();
        let fork = pg_sys::ForkNumber::FSM_FORKNUM;
        pg_sys::XLogRegisterBlock(0, &mut file, fork, at.block, page, flags as u8);
        if !of_page.is_empty() {
            pg_sys::XLogRegisterBufData(0, of_page.as_ptr().cast_mut().cast(), of_page.len() as _);
        }
        // Nothing is won by compressing 24 bytes, which costs zstd as much as all else.
        let _plain = PlainImages::begin();
        // As heapam does: plugins leave out changes that came by replication.
        pg_sys::XLogSetRecordFlags(pg_sys::XLOG_INCLUDE_ORIGIN as u8);
        pg_sys::XLogInsert(manager as pg_sys::RmgrId, kind);
    }
}

/// Images of pages are logged as they are while it lives.
struct PlainImages(core::ffi::c_int);

impl PlainImages {
    fn begin() -> PlainImages {
        // SAFETY: a variable of this process, which XLogInsert() reads.
        unsafe {
            let before = pg_sys::wal_compression;
            pg_sys::wal_compression = 0;
            PlainImages(before)
        }
    }
}

impl Drop for PlainImages {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { pg_sys::wal_compression = self.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_is_one_that_speaks_of_no_page() {
        // The leaf that speaks of a page is at most so far: root, first upper page, first leaf.
        let leaf_of = |page: u32| {
            let leaf = page / PAGES_OF_MAP_PAGE;
            leaf + leaf / PAGES_OF_MAP_PAGE + leaf / PAGES_OF_MAP_PAGE / PAGES_OF_MAP_PAGE + 2
        };
        assert_eq!((leaf_of(0), map_block_behind(0)), (2, 3));
        for blocks in [0, 1, 4_068, 4_069, 4_070, 4_069 * 4_069 - 1, 4_069 * 4_069, 1 << 31] {
            assert!(map_block_behind(blocks) > leaf_of(blocks), "{blocks}");
            assert!(map_block_behind(blocks) <= leaf_of(blocks) + 3, "{blocks}");
        }
    }

    #[test]
    fn the_page_is_empty() {
        let field = |at: usize| u16::from_ne_bytes([EMPTY_PAGE.0[at], EMPTY_PAGE.0[at + 1]]);
        assert_eq!([12, 14, 16, 18].map(field), [24, 8_192, 8_192, 8_196]);
        assert_eq!(EMPTY_PAGE.0.iter().filter(|byte| **byte != 0).count(), 5);
    }
}
