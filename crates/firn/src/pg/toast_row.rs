//! A row of a TOAST relation while its page is pinned.

use super::toast::{place_of, ChunkKey, ChunkRow};
use super::{xact, Oid};
use firn_directory::{Cid, Place, Xid};
use pgrx::pg_sys;

/// A row while its page is pinned.
pub struct RowView {
    pub(super) tuple: pg_sys::HeapTuple,
}

impl RowView {
    /// A row of a TOAST relation.
    ///
    /// # Safety
    /// A heap tuple of one, alive as long as the view.
    pub(crate) unsafe fn of(tuple: pg_sys::HeapTuple) -> RowView {
        RowView { tuple }
    }
    /// Change the payload of a copied row; its length stays.
    ///
    /// # Safety
    /// The tuple is the caller's own.
    pub(crate) unsafe fn overwrite(&self, data: &[u8]) {
        // SAFETY: no more bytes than the tuple has, in a tuple that is the caller's own, as it promises.
        unsafe {
            let mine = self.data();
            let len = mine.len().min(data.len());
            std::ptr::copy_nonoverlapping(data.as_ptr(), mine.as_ptr().cast_mut(), len);
        }
    }
    fn user_data(&self) -> (&[u8], usize) {
        // SAFETY: a normal heap tuple of the TOAST relation: t_hoff within t_len.
        unsafe {
            let header = (*self.tuple).t_data;
            let hoff = usize::from((*header).t_hoff);
            let len = (*self.tuple).t_len as usize;
            (std::slice::from_raw_parts(header as *const u8, len), hoff.min(len))
        }
    }
    pub fn key(&self) -> ChunkKey {
        let (bytes, at) = self.user_data();
        let word = |i: usize| {
            bytes
                .get(at + i..at + i + 4)
                .and_then(|b| b.try_into().ok())
                .map_or(0, u32::from_le_bytes)
        };
        ChunkKey { id: word(0), seq: word(4) as i32 }
    }
    /// The payload.
    pub fn data(&self) -> &[u8] {
        let (bytes, at) = self.user_data();
        let rest = bytes.get(at + 8..).unwrap_or(&[]);
        // chunk_data has storage PLAIN, so the header is the 4-byte one, but a 1-byte one is legal.
        match rest.first() {
            Some(h) if h & 1 == 1 => rest.get(1..usize::from(h >> 1)).unwrap_or(&[]),
            Some(_) if rest.len() >= 4 => {
                let len = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]) >> 2;
                rest.get(4..len as usize).unwrap_or(&[])
            }
            _ => &[],
        }
    }
    pub fn place(&self) -> Place {
        // SAFETY: as user_data.
        unsafe { place_of(&(*self.tuple).t_self) }
    }
    /// Of which relation it is.
    pub fn relation(&self) -> Oid {
        // SAFETY: as user_data.
        unsafe { (*self.tuple).t_tableOid }
    }
    /// Inserting transaction; [`Xid::FROZEN`] when frozen.
    pub fn xmin(&self) -> Xid {
        // SAFETY: as user_data.
        unsafe {
            let header = (*self.tuple).t_data;
            if (*header).t_infomask as u32 & pg_sys::HEAP_XMIN_FROZEN == pg_sys::HEAP_XMIN_FROZEN {
                return Xid::FROZEN;
            }
            xact::xid_of((*header).t_choice.t_heap.t_xmin)
        }
    }
    /// Inserting transaction as first written, frozen or not.
    pub fn raw_xmin(&self) -> Xid {
        // SAFETY: as user_data.
        unsafe { xact::xid_of((*(*self.tuple).t_data).t_choice.t_heap.t_xmin) }
    }
    /// Command that inserted it, meaningful for our own transaction only.
    pub fn cmin(&self) -> Cid {
        // SAFETY: as user_data.
        let (combined, plain) = unsafe {
            let header = (*self.tuple).t_data;
            let combined = (*header).t_infomask as u32 & pg_sys::HEAP_COMBOCID != 0;
            (combined, (*header).t_choice.t_heap.t_field3.t_cid)
        };
        match combined {
            false => Cid(plain),
            // A transaction that has inserted the row and changed it in a subtransaction that was undone leaves a number that
            // nobody can resolve when it is over.
            true if !xact::is_ours(self.xmin()) => Cid(0),
            // SAFETY: the inserter is this transaction, which knows the number.
            true => Cid(unsafe { pg_sys::HeapTupleHeaderGetCmin((*self.tuple).t_data) }),
        }
    }
    /// It has the key by which the index has led to it; otherwise it is damaged.
    pub fn is_under(&self, key: ChunkKey) -> bool {
        self.key() == key
    }
    /// The row, found by `key`.
    pub fn to_row(&self, key: ChunkKey) -> ChunkRow {
        ChunkRow {
            key,
            key_is_damaged: !self.is_under(key),
            place: self.place(),
            xmin: self.xmin(),
            data: self.data().to_vec(),
        }
    }
}
