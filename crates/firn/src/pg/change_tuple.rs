//! Rows as records of the log hold them, and values that are too large to be in one.

use super::change_log::MOST_BYTES;
use super::datum::Row;
use super::tuple_size::INLINE;
use super::{compat, memory, Oid, Rel, TupleSlot};
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
        let (values, nulls) = slot.row().words();
        let (values, nulls) = (values.as_ptr().cast(), nulls.as_ptr());
        // SAFETY: a row of the table has a value or NULL for each of its columns.
        let stored = unsafe {
            // Before it is copied.
            if size_of_row(table, values, nulls) > SMALL {
                return None;
            }
            form(table, values, nulls)
        };
        (stored.infomask() & pg_sys::HEAP_HASEXTERNAL == 0).then_some(stored)
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

/// Bytes of a record's row of these values, at most, as [`Stored::size`].
///
/// # Safety
/// As of [`form`].
unsafe fn size_of_row(table: Rel, values: *const pg_sys::Datum, nulls: *const bool) -> usize {
    // SAFETY: as the caller promises; both arrays are read only.
    unsafe {
        let desc = table.tupdesc();
        let data = pg_sys::heap_compute_data_size(desc, values.cast_mut(), nulls.cast_mut());
        data + ((*desc).natts as usize).div_ceil(8) + 8 + Stored::HEADER
    }
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
    large: Vec<Large>,
}

/// A column with a value of variable length.
#[derive(Clone, Copy)]
struct Large {
    column: usize,
    /// The column's storage (`pg_attribute.attstorage`), and how its values are compressed.
    storage: u8,
    method: core::ffi::c_char,
}

impl Large {
    fn may_shrink(self) -> bool {
        matches!(self.storage, b'x' | b'm')
    }

    /// TOAST puts it out of line while it is larger than a row is to be.
    fn goes_out_first(self) -> bool {
        matches!(self.storage, b'x' | b'e')
    }
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
            let (storage, method) = (attribute.attstorage as u8, attribute.attcompression);
            large.push(Large { column: i, storage, method });
        }
        Values { table, values, nulls, large }
    }

    fn form(&self) -> Stored {
        // SAFETY: a value or NULL for each column.
        unsafe { form(self.table, self.values.as_ptr().cast(), self.nulls.as_ptr()) }
    }

    /// Bytes of the row, as [`Stored::size`].
    fn size(&self) -> usize {
        // SAFETY: a value or NULL for each column.
        unsafe { size_of_row(self.table, self.values.as_ptr().cast(), self.nulls.as_ptr()) }
    }

    fn size_of(&self, column: usize) -> usize {
        // SAFETY: a live value of variable length, whole or a pointer.
        unsafe { varlena::varsize_any(self.values[column] as *const pg_sys::varlena) }
    }

    /// Those that TOAST would make smaller, the largest first. (Functions of a type that is not to be put out of line need not expect that.)
    fn by_size(&self) -> Vec<Large> {
        let all = self.large.iter().filter(|large| large.storage != b'p');
        let mut sizes: Vec<(usize, Large)> =
            all.map(|large| (self.size_of(large.column), *large)).collect();
        sizes.retain(|(size, _)| *size > INLINE);
        sizes.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
        sizes.into_iter().map(|(_, large)| large).collect()
    }

    /// Compress the largest values until the row is as small as TOAST wants it, as heap_toast_insert_or_update() does (of storage MAIN
    /// with the others, not after them).
    fn compress(&mut self) {
        let mut size = self.size();
        // Bytes of values that TOAST would put out of line before it looks at others.
        let mut out = 0;
        for large in self.by_size() {
            if size <= SMALL + out {
                break;
            }
            let value = self.values[large.column] as *mut pg_sys::varlena;
            // SAFETY: a live value that is whole in memory.
            if large.may_shrink() && !unsafe { varlena::varatt_is_4b_c(value) } {
                // SAFETY: as above, and it is not compressed.
                let small = unsafe { super::ext::toast_compress_datum(value.into(), large.method) };
                if !small.is_null() {
                    self.values[large.column] = small.value();
                    size = self.size();
                }
            }
            let left = self.size_of(large.column);
            if large.goes_out_first() && left > SMALL {
                out += left;
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
    pub toast: Oid,
    pub log: F,
}

impl<F: FnMut(Chunk<'_>)> Out<F> {
    /// Log chunks; the row that points to them, and whether there are any.
    pub fn write(&mut self, slot: TupleSlot) -> (Vec<u8>, bool) {
        memory::apart(|| {
            let mut row = Values::of(self.table, slot.row(), None);
            row.compress();
            let mut number = 0;
            if row.size() > MOST_BYTES {
                for large in row.by_size() {
                    // Who puts the row together again expects one that fits on a page (ReorderBufferToastReplace()).
                    if row.size() <= LARGEST {
                        break;
                    }
                    // SAFETY: a live value, larger than a pointer.
                    unsafe { self.put_out(&mut row.values[large.column], number) };
                    number += 1;
                }
            }
            (row.form().to_bytes(), number > 0)
        })
    }

    /// Log a value, and let `value` point to it.
    ///
    /// # Safety
    /// A live value of variable length that is whole in memory.
    unsafe fn put_out(&mut self, value: &mut usize, number: u32) {
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
            let words = [plain + 4, stored | method << 30, number, self.toast.to_u32()];
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
