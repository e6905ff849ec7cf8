//! How large the tuple of a row may be that goes to a stripe. heapam refuses rows that fit on no page, whatever is put out of line, or into
//! no memory. A stripe would take them, and they could not be changed, copied to a heap table or read whole ever after.

use super::compat;
use super::datum::{Datum, Row};
use super::slot::Slot;
use super::Rel;
use pgrx::pg_sys;
use pgrx::varlena;

/// What a value of variable length takes of a page at most, once all that can be has been compressed or put out of line: TOAST leaves
/// alone what is no longer than this.
pub(super) const INLINE: usize = 24;
/// The largest tuple (MaxHeapTupleSize).
const LARGEST: usize = 8_160;
/// The largest piece of memory that PostgreSQL makes (MaxAllocSize).
const MOST_MEMORY: usize = 0x3fff_ffff;
/// A tuple's header without its bitmap, and what its size is rounded up to.
const HEADER: usize = 23;
const ALIGNED: usize = 8;

struct Column {
    length: i16,
    align: usize,
    /// Its values may be compressed and put out of line.
    shrinks: bool,
}

/// A table's columns, as far as they make a tuple's size.
pub struct TupleSize {
    columns: Vec<Column>,
    /// Every row fits on a page, whatever its values.
    always_fits: bool,
    /// Columns of variable length whose values are neither compressed nor put out of line.
    plain: Vec<usize>,
}

impl TupleSize {
    pub fn of(table: Rel) -> TupleSize {
        // SAFETY: an open relation's descriptor has natts attributes.
        let columns: Vec<Column> = unsafe {
            let all = compat::attributes(table.tupdesc());
            let column = |a: &pg_sys::FormData_pg_attribute| Column {
                length: if a.attisdropped { 0 } else { a.attlen },
                align: match a.attalign as u8 {
                    b'd' => 8,
                    b'i' => 4,
                    b's' => 2,
                    _ => 1,
                },
                shrinks: a.attstorage as u8 != b'p',
            };
            all.iter().map(column).collect()
        };
        let bound = columns.iter().try_fold(0, |end: usize, c| match c.length {
            -1 if c.shrinks => Some(end.next_multiple_of(c.align) + INLINE),
            0.. => Some(end.next_multiple_of(c.align) + c.length as usize),
            _ => None,
        });
        let always_fits = bound.is_some_and(|end| whole(end, columns.len()) <= LARGEST);
        let is_plain = |(i, c): (usize, &Column)| (c.length == -1 && !c.shrinks).then_some(i);
        let plain = columns.iter().enumerate().filter_map(is_plain).collect();
        TupleSize { columns, always_fits, plain }
    }

    /// The row in the slot may go to a stripe: heapam would take it, or so it seems. Of others heapam decides.
    pub fn suits(&self, slot: Slot) -> bool {
        let row = slot.row();
        self.fits_memory(row) && (self.always_fits || self.fits_page(row))
    }

    /// A row of the row store may go to a stripe: as large values as its may be lie out of line only, or are small because their column's
    /// storage was another one when they came.
    pub fn suits_stored(&self, slot: Slot) -> bool {
        if slot.has_external() && !self.fits_memory(slot.row()) {
            return false;
        }
        !self.has_shrunk(slot) || self.fits_page(slot.row())
    }

    /// A value is compressed, out of line, or has a short header, which it would not if it came again.
    fn has_shrunk(&self, slot: Slot) -> bool {
        let is_small = |value: Datum<'_>| {
            let at = value.raw().cast_mut_ptr::<pg_sys::varlena>();
            // SAFETY: a live value of variable length.
            unsafe { varlena::varatt_is_1b(at) || varlena::varatt_is_4b_c(at) }
        };
        !self.plain.is_empty() && {
            let row = slot.row();
            self.plain.iter().any(|i| row.get(*i).is_some_and(is_small))
        }
    }

    fn present<'a>(&'a self, row: Row<'a>) -> impl Iterator<Item = (&'a Column, Datum<'a>)> {
        let all = self.columns.iter().enumerate();
        all.filter_map(move |(i, column)| Some((column, row.get(i)?)))
    }

    /// A tuple with all values in it can be made.
    fn fits_memory(&self, row: Row<'_>) -> bool {
        let large = self.present(row).filter(|(column, _)| column.length == -1);
        // SAFETY: live values of variable length.
        let sum: usize = large.map(|(_, value)| unsafe { plain_size(value) } + ALIGNED).sum();
        // As much as columns of other types take, and what the tuple is held by.
        sum + (1 << 16) <= MOST_MEMORY
    }

    fn fits_page(&self, row: Row<'_>) -> bool {
        let mut end = 0;
        for (column, value) in self.present(row) {
            let aligned = usize::next_multiple_of(end, column.align);
            end = match column.length {
                // SAFETY: a live value of variable length.
                -1 if column.shrinks => unsafe { end_of_shrunk(value, end, aligned) },
                // SAFETY: as above.
                -1 => aligned + unsafe { plain_size(value) },
                // C strings: no table has them.
                -2 => return false,
                length => aligned + length as usize,
            };
        }
        let bitmap = if row.words().1.contains(&true) { self.columns.len() } else { 0 };
        whole(end, bitmap) <= LARGEST
    }
}

/// The size of a tuple whose values end there, with a bitmap of so many columns.
fn whole(end: usize, columns: usize) -> usize {
    (HEADER + columns.div_ceil(8)).next_multiple_of(ALIGNED) + end.next_multiple_of(ALIGNED)
}

/// A value's size with its header, neither compressed nor out of line.
unsafe fn plain_size(value: Datum<'_>) -> usize {
    // SAFETY: the value is one of variable length, whole in memory.
    unsafe {
        let at = value.raw().cast_mut_ptr::<pg_sys::varlena>();
        match varlena::varatt_is_1b_e(at) || varlena::varatt_is_4b_c(at) {
            true => pg_sys::toast_raw_datum_size(value.raw()),
            // A header of four bytes, which the value has once it comes out of a stripe.
            false => varlena::varsize_any_exhdr(at) + 4,
        }
    }
}

/// Where a value ends at most that TOAST has made as small as it can, behind one that ends at `end`.
unsafe fn end_of_shrunk(value: Datum<'_>, end: usize, aligned: usize) -> usize {
    // SAFETY: the value is one of variable length, whole in memory.
    unsafe {
        let at = value.raw().cast_mut_ptr::<pg_sys::varlena>();
        if !varlena::varatt_is_1b_e(at) && !varlena::varatt_is_4b_c(at) {
            // Short values have a header of one byte, and are not aligned.
            let size = varlena::varsize_any_exhdr(at) + 1;
            if size <= INLINE {
                return end + size;
            }
        }
        aligned + INLINE
    }
}
