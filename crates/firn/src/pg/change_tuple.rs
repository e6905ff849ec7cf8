//! Rows as records of the log hold them, and values that are too large to be in one.

use super::change_log::MOST_BYTES;
use super::datum::Row;
use super::{compat, memory, Rel, TupleSlot};
use pgrx::{pg_sys, varlena};

/// A tuple, as it is in memory, without the part of its header that is of no concern.
pub(super) struct Stored(pg_sys::HeapTuple);

/// TOAST leaves rows of so many bytes alone (TOAST_TUPLE_THRESHOLD, access/heaptoast.h).
const SMALL: usize = 2_032;
/// The largest tuple (MaxHeapTupleSize), with some room.
const LARGEST: usize = 8_000;

/// Bytes of a tuple's header before its bitmap of NULLs (SizeofHeapTupleHeader).
const BEFORE_BITMAP: usize = 23;

impl Stored {
    /// Bytes before a row (xl_heap_header): two words of flags, and where its values begin.
    pub const HEADER: usize = 5;

    /// The row in the slot; None of one that TOAST would make smaller.
    pub fn of_slot(table: Rel, slot: TupleSlot) -> Option<Stored> {
        let stored = Stored::whole(table, slot.row());
        let is_far = stored.infomask() & pg_sys::HEAP_HASEXTERNAL != 0;
        (!is_far && stored.size() <= SMALL).then_some(stored)
    }

    pub fn whole(table: Rel, row: Row<'_>) -> Stored {
        let (values, nulls) = row.words();
        // SAFETY: a row of the table has a value or NULL for each of its columns.
        unsafe { form(table, values.as_ptr().cast(), nulls.as_ptr()) }
    }

    fn infomask(&self) -> u32 {
        // SAFETY: a tuple of our own.
        unsafe { u32::from((*(*self.0).t_data).t_infomask) }
    }

    /// Bytes that [`Stored::write`] writes.
    pub fn size(&self) -> usize {
        // SAFETY: a tuple of our own.
        unsafe { (*self.0).t_len as usize - BEFORE_BITMAP + Self::HEADER }
    }

    /// The row as a record has it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size());
        self.write(&mut bytes);
        bytes
    }

    pub fn write(&self, to: &mut Vec<u8>) {
        // SAFETY: a tuple of our own, of `t_len` bytes.
        unsafe {
            let header = (*self.0).t_data;
            to.extend_from_slice(&(*header).t_infomask2.to_ne_bytes());
            to.extend_from_slice(&(*header).t_infomask.to_ne_bytes());
            to.push((*header).t_hoff);
            let all = std::slice::from_raw_parts(header.cast::<u8>(), (*self.0).t_len as usize);
            to.extend_from_slice(&all[BEFORE_BITMAP..]);
        }
    }
}

/// # Safety
/// As many values and marks of NULL as the table has columns, each of its column's type.
unsafe fn form(table: Rel, values: *const pg_sys::Datum, nulls: *const bool) -> Stored {
    // SAFETY: as the caller promises.
    unsafe { Stored(pg_sys::heap_form_tuple(table.tupdesc(), values.cast_mut(), nulls.cast_mut())) }
}

impl Drop for Stored {
    fn drop(&mut self) {
        if !memory::resources_are_released() {
            // SAFETY: made in form().
            unsafe { pg_sys::pfree(self.0.cast()) }
        }
    }
}

/// A part of a value, as TOAST keeps it.
pub(super) struct Chunk<'a> {
    value: u32,
    number: u32,
    bytes: &'a [u8],
}

impl Chunk<'_> {
    /// Bytes of a value in one.
    const BYTES: usize = 32 << 10;

    /// It as a row of the TOAST relation, (oid, int4, bytea), as a record has it.
    pub fn row(&self) -> Vec<u8> {
        const COLUMNS: u16 = 3;
        const VALUES_AT: u8 = 24;
        let mut row = Vec::with_capacity(self.bytes.len() + 32);
        row.extend_from_slice(&COLUMNS.to_ne_bytes());
        row.extend_from_slice(&(pg_sys::HEAP_HASVARWIDTH as u16).to_ne_bytes());
        row.push(VALUES_AT);
        row.resize(Stored::HEADER + VALUES_AT as usize - BEFORE_BITMAP, 0);
        row.extend_from_slice(&self.value.to_ne_bytes());
        row.extend_from_slice(&self.number.to_ne_bytes());
        // A varlena's header of four bytes, where the lowest byte comes first.
        row.extend_from_slice(&((self.bytes.len() as u32 + 4) << 2).to_le_bytes());
        row.extend_from_slice(self.bytes);
        row
    }
}

/// Bytes of a pointer to a value out of line, and what it says that it is.
const POINTER: usize = 18;
const VARTAG_ONDISK: u8 = 18;

/// The values of a row, on the way to as few bytes as heapam would log. What they are made into is in the current memory context.
struct Values {
    table: Rel,
    values: Vec<usize>,
    nulls: Vec<bool>,
    /// Columns with values of variable length, and whether they may be compressed (further), and how.
    large: Vec<(usize, Option<core::ffi::c_char>)>,
}

impl Values {
    /// Those in these columns, or all, whole in memory.
    fn of(table: Rel, row: Row<'_>, columns: Option<&[i16]>) -> Values {
        let (values, nulls) = row.words();
        let is_left_out = |n: &i16| columns.is_some_and(|columns| !columns.contains(n));
        let nulls = nulls.iter().zip(1_i16..).map(|(null, n)| *null || is_left_out(&n));
        let (mut values, nulls) = (values.to_vec(), nulls.collect::<Vec<bool>>());
        // SAFETY: an open relation's descriptor.
        let attributes = unsafe { compat::attributes(table.tupdesc()) };
        let mut large = Vec::new();
        for (i, attribute) in attributes.iter().enumerate() {
            if attribute.attlen != -1 || attribute.attisdropped || nulls[i] {
                continue;
            }
            // SAFETY: a live value of variable length; what is fetched is in this context.
            unsafe {
                let value = values[i] as *mut pg_sys::varlena;
                if varlena::varatt_is_1b_e(value) {
                    values[i] = pg_sys::detoast_external_attr(value) as usize;
                }
            }
            let may_shrink = matches!(attribute.attstorage as u8, b'x' | b'm');
            large.push((i, may_shrink.then_some(attribute.attcompression)));
        }
        Values { table, values, nulls, large }
    }

    fn form(&self) -> Stored {
        // SAFETY: a value or NULL for each column.
        unsafe { form(self.table, self.values.as_ptr().cast(), self.nulls.as_ptr()) }
    }

    /// Bytes of the row, as [`Stored::size`].
    fn size(&self) -> usize {
        // SAFETY: as above; both arrays are read only.
        let data = unsafe {
            pg_sys::heap_compute_data_size(
                self.table.tupdesc(),
                self.values.as_ptr().cast_mut().cast(),
                self.nulls.as_ptr().cast_mut(),
            )
        };
        data + self.nulls.len().div_ceil(8) + 8 + Stored::HEADER
    }

    fn size_of(&self, column: usize) -> usize {
        // SAFETY: a live value of variable length, whole or a pointer.
        unsafe { varlena::varsize_any(self.values[column] as *const pg_sys::varlena) }
    }

    /// Compress the largest values until the row is as small as TOAST wants it, as heap_toast_insert_or_update() does.
    fn compress(&mut self) {
        while self.size() > SMALL {
            let candidates = self.large.iter().enumerate().filter(|(_, (_, how))| how.is_some());
            let largest = candidates.max_by_key(|(_, (column, _))| self.size_of(*column));
            let Some((at, &(column, Some(method)))) = largest else { break };
            self.large[at].1 = None;
            let value = self.values[column] as *mut pg_sys::varlena;
            // SAFETY: a live value that is whole in memory, and not compressed.
            unsafe {
                if self.size_of(column) > 2 * POINTER && !varlena::varatt_is_4b_c(value) {
                    let small = super::ext::toast_compress_datum(value.into(), method);
                    if !small.is_null() {
                        self.values[column] = small.value();
                    }
                }
            }
        }
    }
}

/// The old version of a row, or what is in these columns of it, as a record has it.
pub(super) fn old_version(table: Rel, row: Row<'_>, columns: Option<&[i16]>) -> Vec<u8> {
    memory::apart(|| {
        let mut values = Values::of(table, row, columns);
        values.compress();
        values.form().to_bytes()
    })
}

/// Puts a row's largest values out of line, where it is too large without them.
pub(super) struct Out<F> {
    pub table: Rel,
    /// The TOAST relation that pointers name.
    pub toast: u32,
    pub log: F,
}

impl<F: Fn(Chunk<'_>)> Out<F> {
    /// Log chunks; the row that points to them.
    pub fn write(&self, slot: TupleSlot) -> Vec<u8> {
        memory::apart(|| {
            let mut row = Values::of(self.table, slot.row(), None);
            row.compress();
            if row.size() > MOST_BYTES {
                let mut number = 0;
                // Who puts the row together again expects one that fits on a page (ReorderBufferToastReplace()).
                while row.size() > LARGEST {
                    let columns = row.large.iter().map(|(column, _)| *column);
                    let Some(column) = columns.max_by_key(|column| row.size_of(*column)) else {
                        break;
                    };
                    if row.size_of(column) <= 2 * POINTER {
                        break;
                    }
                    // SAFETY: a live value, larger than a pointer.
                    unsafe { self.put_out(&mut row.values[column], number) };
                    number += 1;
                }
            }
            row.form().to_bytes()
        })
    }

    /// Log a value, and let `value` point to it.
    ///
    /// # Safety
    /// A live value of variable length that is whole in memory.
    unsafe fn put_out(&self, value: &mut usize, number: u32) {
        // SAFETY: as the caller promises; the pointer's memory is of the current context.
        unsafe {
            let at = *value as *const pg_sys::varlena;
            // What TOAST stores of a value (toast_save_datum() in access/common/toast_internals.c): all behind its header, and
            // that of a compressed one begins with how large it was, and by what it is compressed.
            let header = if varlena::varatt_is_1b(at) { 1 } else { 4 };
            let whole = std::slice::from_raw_parts(at.cast::<u8>(), varlena::varsize_any(at));
            let bytes = &whole[header..];
            let stored = bytes.len() as u32;
            let (plain, method) = if varlena::varatt_is_4b_c(at) {
                let info = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                (info & 0x3fff_ffff, info >> 30)
            } else {
                (stored, 0)
            };
            for (n, part) in bytes.chunks(Chunk::BYTES).enumerate() {
                (self.log)(Chunk { value: number, number: n as u32, bytes: part });
                super::xact::check_for_interrupts();
            }
            // varattrib_1b_e, and a varatt_external.
            let words = [plain + 4, stored | method << 30, number, self.toast];
            let pointer = pg_sys::palloc(POINTER).cast::<u8>();
            pointer.write(1);
            pointer.add(1).write(VARTAG_ONDISK);
            for (i, word) in words.iter().enumerate() {
                let bytes = word.to_ne_bytes();
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer.add(2 + 4 * i), 4);
            }
            *value = pointer as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_a_row_of_the_toast_relation() {
        let row = Chunk { value: 7, number: 2, bytes: b"abc" }.row();
        assert_eq!(row[..6], [3, 0, 2, 0, 24, 0]);
        assert_eq!(row[6..10], 7_u32.to_ne_bytes());
        assert_eq!(row[10..14], 2_u32.to_ne_bytes());
        assert_eq!(row[14..], [7 << 2, 0, 0, 0, b'a', b'b', b'c']);
    }
}
