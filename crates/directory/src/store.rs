//! What the directory asks of the place where its rows are.

use crate::seen::Seen;
use crate::{Cid, Error, Place, Result, Xid};
use std::hash::Hash;
use std::ops::ControlFlow;

/// Most payload bytes of one row: four bytes of varlena header and eight of key on a page of
/// 8 kB leave room for 8,124; a round 8,100 survives every rewrite.
pub const CHUNK_BYTES: usize = 8_100;

/// Key of a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChunkKey {
    pub id: u32,
    pub seq: i32,
}

/// A row found, as a copy.
#[derive(Clone, Debug)]
pub struct ChunkRow {
    /// As the index has it.
    pub key: ChunkKey,
    /// The row has another one.
    pub key_is_damaged: bool,
    /// Where the row is now; a rewrite of the table moves it.
    pub place: Place,
    /// Inserting transaction as stored ([`Xid::FROZEN`] when frozen).
    pub xmin: Xid,
    pub data: Vec<u8>,
}

/// A row while it is looked at.
pub trait Row {
    /// The key that the row itself has.
    fn key(&self) -> ChunkKey;
    /// The payload.
    fn data(&self) -> &[u8];
    fn place(&self) -> Place;
    /// Inserting transaction; [`Xid::FROZEN`] when frozen.
    fn xmin(&self) -> Xid;
    /// Inserting transaction as first written, frozen or not.
    fn raw_xmin(&self) -> Xid;
    /// Command that inserted it, meaningful for the session's own transaction only.
    fn cmin(&self) -> Cid;

    /// It has the key by which the index has led to it; otherwise it is damaged.
    fn is_under(&self, key: ChunkKey) -> bool {
        self.key() == key
    }
    /// The row, found by `key`.
    fn to_row(&self, key: ChunkKey) -> ChunkRow {
        ChunkRow {
            key,
            key_is_damaged: !self.is_under(key),
            place: self.place(),
            xmin: self.xmin(),
            data: self.data().to_vec(),
        }
    }
}

/// What the index had of a key when it was looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// No entry that could lead to a version of its row.
    NoEntry,
    /// Some, whatever they lead to.
    Entries,
}

/// How long a row that is inserted stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// As long as the transaction is not rolled back.
    WithTransaction,
    /// Whatever becomes of the transaction, once its index has an entry of it.
    ForGood,
}

/// What tells at one look that a row is as it was: of one whose inserter has committed, and that nobody deletes, replaces or locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Witness {
    /// Where the row's page was at hand, for the store.
    pub hint: i32,
    /// Changes whenever the row does, and never comes back.
    pub version: u64,
    /// The transaction that inserted it; [`Xid::FROZEN`] when frozen.
    pub xmin: Xid,
}

/// Rows under keys, with transactions: one table's, as one session has it open. PostgreSQL's TOAST relation is one, the memory of a
/// test another. Code over it is generic, never `dyn`: a look-up of one row goes through here.
///
/// A method returns nothing that could say that it failed: where a call cannot be carried out (a full disk, a cancel request, the end of the
/// server) it does not return but unwinds, as PostgreSQL's errors do behind the extension's fence, and the transaction is
/// rolled back. So any call may be the last one.
pub trait ChunkStore {
    /// What is seen. Its owner keeps it valid.
    type Snap: Copy;
    type Row: Row;
    /// A lock, given back when it is dropped.
    type Lock;
    /// Names what rows are stored in; a rewrite gives it another.
    type Storage: Copy + Eq + Hash;

    fn storage(&self) -> Self::Storage;
    /// Nothing has ever been stored here (or it is being emptied).
    fn is_empty(&self) -> bool;

    /// Everything, dead or alive.
    fn any(&self) -> Self::Snap;
    /// What is committed, or done by this transaction.
    fn own(&self) -> Self::Snap;
    /// As [`ChunkStore::own`], and what running transactions do, which is told of by [`ChunkStore::writer`].
    fn with_dirty<T>(&self, body: impl FnOnce(Self::Snap) -> T) -> T;
    /// The running transaction that has inserted the row last visited under this dirty snapshot;
    /// [`Xid::NONE`] when that is over.
    fn writer(&self, dirty: Self::Snap) -> Xid;
    /// Each version is judged when it is come to, so that a row that is replaced meanwhile can be missed.
    fn may_miss(&self, snap: Self::Snap) -> bool;

    /// Visit the rows `id`, `low..=high` that `snap` sees, in key order (or backwards). A row whose key is damaged is
    /// visited under the key that the index has, and [`Row::is_under`] denies that.
    fn scan<B>(
        &self,
        id: u32,
        low: i32,
        high: i32,
        snap: Self::Snap,
        backward: bool,
        visit: impl FnMut(ChunkKey, &Self::Row) -> ControlFlow<B>,
    ) -> Option<B>;
    /// As [`ChunkStore::scan`] for one key.
    fn look<B>(
        &self,
        key: ChunkKey,
        snap: Self::Snap,
        visit: impl FnMut(&Self::Row) -> ControlFlow<B>,
    ) -> (Option<B>, Met);
    /// The row at a remembered place, if it is still the row of `key` and `snap` sees it.
    fn at<T>(
        &self,
        place: Place,
        key: ChunkKey,
        snap: Self::Snap,
        visit: impl FnOnce(&Self::Row) -> T,
    ) -> Option<T>;
    /// Whether witnesses are given under such a snapshot at all.
    fn gives_witnesses(&self, snap: Self::Snap) -> bool;
    /// As [`ChunkStore::at`], and a witness of the row as it was before it was visited, where one can be had.
    fn at_witnessed<T>(
        &self,
        place: Place,
        key: ChunkKey,
        snap: Self::Snap,
        visit: impl FnOnce(&Self::Row) -> T,
    ) -> Option<(T, Option<Witness>)>;
    /// The row at `place` is as this witness has it, and `snap` sees it. False says nothing.
    fn is_unchanged(&self, place: Place, snap: Self::Snap, witness: &Witness) -> bool;
    /// How many entries the index has for `id`, `low..=high`, whatever they lead to. No more than `most` are counted.
    fn entries(&self, id: u32, low: i32, high: i32, most: u32) -> u32;
    /// Whether the index has such an entry.
    fn has_entry(&self, id: u32, low: i32, high: i32) -> bool {
        self.entries(id, low, high, 1) > 0
    }
    /// It is known at once that the index has no entry for `id`, `low..=high`. False says nothing.
    fn lacks(&self, id: u32, low: i32, high: i32) -> bool;

    /// Insert one row; returns its place.
    fn insert(&self, key: ChunkKey, data: &[u8], cid: Cid, keep: Keep) -> Place;
    /// Replace the row at `place`, which nobody else changes now.
    fn update(&self, place: Place, key: ChunkKey, data: &[u8], cid: Cid) -> Place;
    /// Delete the row at `place`, which nobody else changes now.
    fn delete(&self, place: Place, cid: Cid);
    /// Delete the rows of `id` from `first` on, `count` of them, but for those whose keys are damaged.
    fn delete_run(&self, id: u32, first: u32, count: u32, cid: Cid);
    /// Overwrite a row's bytes where they are, outside of any transaction. The length does not change.
    fn overwrite(&self, place: Place, key: ChunkKey, data: &[u8]);

    /// The number of the command that is about to write.
    fn command_id(&self) -> Cid;
    /// See to it that the transaction has an id.
    fn assign_xid(&self);
    /// A transaction number comes before another.
    fn precedes(&self, xid: Xid, other: Xid) -> bool;
    fn did_commit(&self, xid: Xid) -> bool;
    /// A transaction's number as one that does not wrap around.
    fn full(&self, xid: Xid) -> u64;
    /// Somebody holds a lock on the row at `place`, so that to delete it would be to wait.
    fn is_held(&self, place: Place) -> bool;

    /// The lock under which slots and addresses are handed out. Nothing is waited for by who has it.
    fn lock_allocation(&self) -> Self::Lock;
    /// Called now and then in long loops, to be cancelled there.
    fn pause(&self);
    /// As [`ChunkStore::pause`], in what VACUUM does, which may sleep here.
    fn rest(&self) {
        self.pause()
    }
    /// A place in a protocol where a test may want to do something.
    fn reached(&self, _point: &'static str) {}
    /// What this session remembers of directory rows.
    fn with_seen<T>(&self, body: impl FnOnce(&mut Seen<Self::Storage>) -> T) -> T;

    /// The row under `key` that `snap` sees, or one that says that its key is damaged.
    fn find_damaged(&self, key: ChunkKey, snap: Self::Snap) -> Option<ChunkRow> {
        self.scan(key.id, key.seq, key.seq, snap, false, |key, row| {
            ControlFlow::Break(row.to_row(key))
        })
    }

    /// The row under `key` that `snap` sees.
    ///
    /// # Errors
    /// Its key is damaged.
    fn find_sound(&self, key: ChunkKey, snap: Self::Snap) -> Result<Option<ChunkRow>> {
        self.scan_sound(key.id, key.seq, key.seq, snap, false, |key, row| {
            ControlFlow::Break(row.to_row(key))
        })
    }

    /// The row with the greatest sequence number up to `key.seq` that `snap` sees, or one that says that its key is damaged.
    fn find_at_or_before(&self, key: ChunkKey, snap: Self::Snap) -> Option<ChunkRow> {
        self.scan(key.id, i32::MIN, key.seq, snap, true, |key, row| {
            ControlFlow::Break(row.to_row(key))
        })
    }

    /// As [`ChunkStore::scan`], for those who cannot do without a row whose key is damaged.
    ///
    /// # Errors
    /// There is such a row.
    fn scan_sound<B>(
        &self,
        id: u32,
        low: i32,
        high: i32,
        snap: Self::Snap,
        backward: bool,
        mut visit: impl FnMut(ChunkKey, &Self::Row) -> ControlFlow<B>,
    ) -> Result<Option<B>> {
        self.scan(id, low, high, snap, backward, |key, row| match row.is_under(key) {
            true => match visit(key, row) {
                ControlFlow::Break(found) => ControlFlow::Break(Ok(found)),
                ControlFlow::Continue(()) => ControlFlow::Continue(()),
            },
            false => {
                let (own, place) = (row.key(), row.place());
                ControlFlow::Break(Err(Error::MisplacedRow { key, own, place }))
            }
        })
        .transpose()
    }
}

/// Every snapshot sees what `xmin` did, `oldest` being the oldest transaction that some snapshot does not see.
pub fn is_settled<S: ChunkStore>(store: &S, xmin: Xid, oldest: Xid) -> bool {
    xmin == Xid::FROZEN || store.precedes(xmin, oldest)
}

/// Sequence numbers are unsigned on our side; the index orders signed ones, so the sign is flipped.
#[inline]
pub fn seq_of(unsigned: u32) -> i32 {
    (unsigned ^ 0x8000_0000) as i32
}

/// Inverse of [`seq_of`].
#[inline]
pub fn unsigned_of(seq: i32) -> u32 {
    seq as u32 ^ 0x8000_0000
}
