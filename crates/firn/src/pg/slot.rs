//! Tuple slots: where a scan puts a row, and where an insert finds one.

use super::compat;
use super::datum::{Blank, ColumnType, Datum, Row, TypedRow, Words};
use super::rel::Attribute;
use super::toast::{raw_tid, tid_of};
use super::toast_scan::clear;
use super::xact::{raw_xid, xid_of};
use super::{error, Kind, Oid, Rel};
use firn_directory::{Cid, Xid};
use firn_format::Tid;
use pgrx::pg_sys;
use std::ffi::CStr;

/// A tuple slot of a running executor node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub(super) *mut pg_sys::TupleTableSlot);

impl Slot {
    /// # Safety
    /// A live slot for as long as it is used, and values in it are of its columns' types. Rows that are put into it are of the same table.
    pub(crate) unsafe fn of(raw: *mut pg_sys::TupleTableSlot) -> Slot {
        Slot(raw)
    }
    pub(crate) fn raw(self) -> *mut pg_sys::TupleTableSlot {
        self.0
    }

    /// Deform the row and look at all its values, until the slot is cleared or filled again.
    pub fn row(&self) -> Row<'_> {
        // SAFETY: after slot_getallattrs the arrays hold natts entries, which are of their columns' types.
        unsafe {
            pg_sys::slot_getallattrs(self.0);
            let n = (*(*self.0).tts_tupleDescriptor).natts as usize;
            Row::of(
                std::slice::from_raw_parts((*self.0).tts_values.cast(), n),
                std::slice::from_raw_parts((*self.0).tts_isnull, n),
            )
        }
    }

    /// As [`Slot::row`], to be stored as these columns are.
    pub fn typed_row<'a>(&'a self, columns: &'a [Option<ColumnType>]) -> TypedRow<'a> {
        // SAFETY: a slot's values are of its descriptor's types, which has natts attributes behind its header.
        unsafe {
            let attributes = compat::attributes((*self.0).tts_tupleDescriptor);
            TypedRow::of(self.row(), attributes, columns)
        }
    }

    /// In these columns (attribute numbers of `table`), the slot's row has the same values as another
    /// row of the table.
    pub fn has_same(self, table: Rel, columns: &[i16], other: Row<'_>) -> bool {
        let mine = self.row();
        columns.iter().all(|number| {
            let i = *number as usize - 1;
            let (Some(mine), Some(other)) = (mine.get(i), other.get(i)) else {
                return mine.get(i).is_none() == other.get(i).is_none();
            };
            // SAFETY: the table's descriptor has this attribute; two values of its type, not null.
            unsafe {
                let attribute = &compat::attributes(table.tupdesc())[i];
                super::ext::datum_image_eq(
                    mine.raw(),
                    other.raw(),
                    attribute.attbyval,
                    i32::from(attribute.attlen),
                )
            }
        })
    }

    /// The slot's columns, if they are not the table's as it is defined now: ALTER TABLE reads old
    /// rows into slots of the old definition.
    pub fn other_columns(self, table: Rel) -> Option<Vec<Attribute>> {
        // SAFETY: live slot and relation.
        let desc = unsafe { (*self.0).tts_tupleDescriptor };
        if std::ptr::eq(desc, table.tupdesc()) {
            return None;
        }
        let (mine, its) = (attributes_of(desc), table.attributes());
        // ALTER TABLE forgets the table's defaults of added columns before it reads the rows that lack them, whatever it alters.
        // SAFETY: the attribute is one of the live descriptor's.
        let remembers =
            |a: &Attribute| !a.absent && unsafe { missing_of(desc, a.number).is_some() };
        let forgotten = |a: &Attribute| remembered_default(table, a).is_none();
        let same = mine.len() == its.len()
            && !mine.iter().any(|a| remembers(a) && forgotten(a))
            && mine.iter().zip(&its).all(|(a, b)| {
                a.absent == b.absent
                    && (a.absent || (a.type_oid, a.typmod) == (b.type_oid, b.typmod))
            });
        (!same).then_some(mine)
    }

    /// As [`remembered_default`], by the slot's definition.
    pub fn remembered_default(self, attribute: &Attribute) -> Option<Vec<u8>> {
        // SAFETY: live slot; the attribute is one of its descriptor.
        unsafe { remembered_in((*self.0).tts_tupleDescriptor, attribute) }
    }

    pub fn tid(self) -> Tid {
        // SAFETY: live slot.
        unsafe { tid_of(&(*self.0).tts_tid) }
    }

    /// The stored heap tuple; None for other slots.
    pub(super) fn heap_tuple(self) -> Option<pg_sys::HeapTupleHeader> {
        // SAFETY: a buffer heap slot holds a tuple while it is not empty.
        unsafe {
            if !std::ptr::eq((*self.0).tts_ops, &raw const pg_sys::TTSOpsBufferHeapTuple) {
                return None;
            }
            let tuple = (*(self.0 as *mut pg_sys::BufferHeapTupleTableSlot)).base.tuple;
            Some(tuple.as_ref()?.t_data)
        }
    }

    /// Values of the stored heap tuple lie out of line.
    pub(super) fn has_external(self) -> bool {
        // SAFETY: a live tuple.
        self.heap_tuple().is_some_and(|header| unsafe {
            u32::from((*header).t_infomask) & pg_sys::HEAP_HASEXTERNAL != 0
        })
    }

    /// The transaction that inserted the stored heap tuple ([`Xid::FROZEN`] when frozen); None for other slots.
    pub fn xmin(self) -> Option<Xid> {
        let header = self.heap_tuple()?;
        // SAFETY: as there.
        unsafe {
            if u32::from((*header).t_infomask) & pg_sys::HEAP_XMIN_FROZEN
                == pg_sys::HEAP_XMIN_FROZEN
            {
                return Some(Xid::FROZEN);
            }
            Some(xid_of((*header).t_choice.t_heap.t_xmin))
        }
    }

    /// The value of a column, or of a system column, of the stored heap tuple; None for other slots, and where it is NULL.
    pub(crate) fn attribute(&self, number: i16) -> Option<Datum<'_>> {
        if let Ok(column) = usize::try_from(i32::from(number) - 1) {
            return self.row().get(column);
        }
        self.heap_tuple()?;
        // SAFETY: a buffer heap slot with a tuple.
        unsafe {
            let tuple = (*(self.0 as *mut pg_sys::BufferHeapTupleTableSlot)).base.tuple;
            let (descriptor, mut null) = ((*self.0).tts_tupleDescriptor, false);
            let value = pg_sys::heap_getsysattr(tuple, i32::from(number), descriptor, &mut null);
            (!null).then(|| Datum::of(value))
        }
    }

    /// The TID of the row in the slot, where a copy has lost it: ExecCopySlot() of a row that is in no buffer leaves the
    /// slot's own invalid, and the tuple's right.
    pub(crate) fn restore_tid(self) {
        // SAFETY: a live slot; its HeapTuple is one while it is not empty.
        unsafe {
            if (*self.0).tts_tid.ip_posid != 0
                || !std::ptr::eq((*self.0).tts_ops, &raw const pg_sys::TTSOpsBufferHeapTuple)
            {
                return;
            }
            let tuple = (*(self.0 as *mut pg_sys::BufferHeapTupleTableSlot)).base.tuple;
            if let Some(tuple) = tuple.as_ref() {
                (*self.0).tts_tid = tuple.t_self;
            }
        }
    }

    pub fn set_tid(self, table: Oid, tid: Tid) {
        // SAFETY: live slot.
        unsafe {
            (*self.0).tts_tid = raw_tid(tid);
            (*self.0).tts_tableOid = table;
        }
    }

    /// The slot's row is now at `tid` of a table, inserted by this command. The slot's own copy of it says so, too, as
    /// after an insertion by heapam: RETURNING shows its system columns.
    pub fn set_inserted(self, table: Oid, tid: Tid, xid: Xid, cid: Cid) {
        self.set_tid(table, tid);
        // SAFETY: live slot. A tuple that is not the slot's own may be on a page.
        unsafe {
            if (*self.0).tts_flags & pg_sys::TTS_FLAG_SHOULDFREE as u16 == 0 {
                return;
            }
            let Some(header) = self.heap_tuple() else { return };
            (*header).t_ctid = raw_tid(tid);
            (*header).t_choice.t_heap = pg_sys::HeapTupleFields {
                t_xmin: raw_xid(xid),
                t_xmax: pg_sys::InvalidTransactionId,
                t_field3: pg_sys::HeapTupleFields__bindgen_ty_1 { t_cid: cid.0 },
            };
            (*header).t_infomask &= !(pg_sys::HEAP_XACT_MASK as u16);
            (*header).t_infomask |= pg_sys::HEAP_XMAX_INVALID as u16;
            (*header).t_infomask2 &= !(pg_sys::HEAP2_XACT_MASK as u16);
        }
    }

    pub fn clear(self) {
        // SAFETY: live slot.
        unsafe { clear(self.0) }
    }

    /// Store a row of a stripe as a heap tuple of its own, so that system columns, triggers and
    /// re-checks find what they expect.
    pub fn store_row(self, table: Rel, row: Row<'_>, tid: Tid, xmin: Xid) {
        let (values, nulls) = row.words();
        // SAFETY: values match the slot's descriptor, which is the table's except while ALTER TABLE
        // reads the rows of a table whose definition it has changed already. ExecForceStoreHeapTuple copies the tuple into
        // the slot's own memory.
        unsafe {
            let columns = (*(*self.0).tts_tupleDescriptor).natts as usize;
            if values.len().min(nulls.len()) < columns {
                error(Kind::Internal, "a row has fewer columns than its slot").raise()
            }
            let tuple = pg_sys::heap_form_tuple(
                (*self.0).tts_tupleDescriptor,
                values.as_ptr() as *mut pg_sys::Datum,
                nulls.as_ptr() as *mut bool,
            );
            let header = (*tuple).t_data;
            (*tuple).t_self = raw_tid(tid);
            (*tuple).t_tableOid = (*table.raw()).rd_id;
            (*header).t_ctid = raw_tid(tid);
            // heap_form_tuple has put a composite type's header where these are.
            (*header).t_choice.t_heap =
                pg_sys::HeapTupleFields { t_xmin: raw_xid(xmin), ..Default::default() };
            (*header).t_infomask |=
                (pg_sys::HEAP_XMIN_COMMITTED | pg_sys::HEAP_XMAX_INVALID) as u16;
            pg_sys::ExecForceStoreHeapTuple(tuple, self.0, true);
            (*self.0).tts_tid = raw_tid(tid);
            (*self.0).tts_tableOid = (*table.raw()).rd_id;
        }
    }

    /// What is in the columns of a row that nobody asks for: with it, a tuple can be made of the others (`stand_in`).
    pub fn unasked(self, wanted: &[bool]) -> Blank {
        let mut blank = Blank::nulls(wanted.len());
        self.stand_in(blank.words(), wanted);
        blank
    }

    /// The same, of a row in which these columns are.
    pub(super) fn stand_in(self, words: &mut Words, wanted: &[bool]) {
        // SAFETY: the slot's descriptor lives as long as it.
        unsafe { stand_in((*self.0).tts_tupleDescriptor, words, wanted) }
    }

    /// Put the values of a stripe row into the slot as they are, not as a tuple; false if the slot takes none. PostgreSQL allows that of slots
    /// for heap tuples, and makes a tuple where it needs one (tts_buffer_heap_materialize() in execTuples.c), but for system columns
    /// other than TID and table. Who lends a row keeps it until the slot is filled again or cleared: what holds it lives in the memory of
    /// the scan that the slot is filled for.
    pub fn lend_row(self, table: Rel, row: Row<'_>, tid: Tid) -> bool {
        let (values, nulls) = row.words();
        // SAFETY: a live slot of heap tuples; it has room for its descriptor's columns.
        unsafe {
            let slot = self.0 as *mut pg_sys::BufferHeapTupleTableSlot;
            let columns = (*(*self.0).tts_tupleDescriptor).natts as usize;
            let ops = (*self.0).tts_ops;
            if columns != values.len()
                || columns != nulls.len()
                || !std::ptr::eq(ops, &raw const pg_sys::TTSOpsBufferHeapTuple)
            {
                return false;
            }
            if (*self.0).tts_flags & pg_sys::TTS_FLAG_SHOULDFREE as u16 != 0 || (*slot).buffer != 0
            {
                clear(self.0);
            }
            (*slot).base.tuple = std::ptr::null_mut();
            (*slot).base.off = 0;
            let to = (*self.0).tts_values;
            std::ptr::copy_nonoverlapping(values.as_ptr(), to.cast(), columns);
            std::ptr::copy_nonoverlapping(nulls.as_ptr(), (*self.0).tts_isnull, columns);
            (*self.0).tts_flags &= !(pg_sys::TTS_FLAG_EMPTY as u16);
            (*self.0).tts_nvalid = columns as i16;
            self.set_tid((*table.raw()).rd_id, tid);
            true
        }
    }

    /// Put these columns of a row into a virtual slot of the table's; the others keep what they have. Who lends the row keeps it, as
    /// with [`Slot::lend_row`].
    pub fn fill(self, row: Row<'_>, columns: &[usize]) {
        let (values, nulls) = row.words();
        // SAFETY: a virtual slot has room for its descriptor's columns.
        unsafe {
            // What was copied into the slot's memory goes with it, or the next row would count as copied, too.
            if (*self.0).tts_flags & pg_sys::TTS_FLAG_SHOULDFREE as u16 != 0 {
                clear(self.0);
            }
            let slot = &mut *self.0;
            let count = (*slot.tts_tupleDescriptor).natts as usize;
            for i in columns.iter().copied().filter(|i| *i < count) {
                *slot.tts_values.add(i) = pg_sys::Datum::from(values[i]);
                *slot.tts_isnull.add(i) = nulls[i];
            }
            slot.tts_flags &= !(pg_sys::TTS_FLAG_EMPTY as u16);
            slot.tts_nvalid = count as i16;
        }
    }
}

/// What stands for a value by reference of a fixed length, or for a C string: as long as an attribute can be.
static ZEROS: [u64; 4_096] = [0; 4_096];

/// What stands for a value of variable length: an empty one, which is its header.
static EMPTY: [u32; 2] = [(4_u32 << 2).to_le(), 0];

/// Put a value where nobody asked for that of a NOT NULL column. PostgreSQL's compiled code does not look there whether a tuple has
/// NULL (slot_compile_deform() in llvmjit_deform.c), and takes the bytes of the next column for what it passes over.
unsafe fn stand_in(descriptor: pg_sys::TupleDesc, words: &mut Words, wanted: &[bool]) {
    // SAFETY: a live descriptor has natts attributes behind its header.
    unsafe {
        let attributes = compat::attributes(descriptor);
        let row = words.values.iter_mut().zip(&mut words.nulls);
        let columns = attributes.iter().zip(row).zip(wanted);
        for ((attribute, (value, null)), wanted) in columns {
            let is_virtual = attribute.attgenerated as u8 == b'v';
            if !*wanted && attribute.attnotnull && !attribute.attisdropped && !is_virtual {
                *null = false;
                *value = match attribute.attlen {
                    _ if attribute.attbyval => 0,
                    -1 => EMPTY.as_ptr() as usize,
                    _ => ZEROS.as_ptr() as usize,
                };
            }
        }
    }
}

/// A slot of our own for rows of `table`, dropped with the value.
pub struct OwnedSlot(*mut pg_sys::TupleTableSlot);

impl OwnedSlot {
    pub fn for_table(table: Rel) -> OwnedSlot {
        // SAFETY: table is open; registered in no list.
        OwnedSlot(unsafe { pg_sys::table_slot_create(table.raw(), std::ptr::null_mut()) })
    }
    pub fn slot(&self) -> Slot {
        Slot(self.0)
    }
}

impl Drop for OwnedSlot {
    fn drop(&mut self) {
        if !super::memory::resources_are_released() {
            // SAFETY: created in the constructor.
            unsafe { pg_sys::ExecDropSingleTupleTableSlot(self.0) }
        }
    }
}

/// All attributes of a descriptor.
pub(super) fn attributes_of(desc: pg_sys::TupleDesc) -> Vec<Attribute> {
    // SAFETY: a live descriptor has natts attributes behind its header.
    unsafe {
        compat::attributes(desc)
            .iter()
            .map(|a| Attribute {
                number: a.attnum,
                name: CStr::from_ptr(a.attname.data.as_ptr()).to_string_lossy().into_owned(),
                type_oid: a.atttypid,
                typmod: a.atttypmod,
                // (Before PostgreSQL 18 none is virtual.)
                absent: a.attisdropped || a.attgenerated as u8 == b'v',
                length: a.attlen,
                by_value: a.attbyval,
            })
            .collect()
    }
}

/// The default given to ADD COLUMN that rows written before lack, as PostgreSQL remembers it: the
/// datum's bytes (eight for a by-value type). None when there is none.
pub fn remembered_default(table: Rel, attribute: &Attribute) -> Option<Vec<u8>> {
    // SAFETY: attribute is one of this table's.
    unsafe { remembered_in(table.tupdesc(), attribute) }
}

/// # Safety
/// The attribute is one of the descriptor's; a by-reference default is a plain datum of its type.
unsafe fn remembered_in(desc: pg_sys::TupleDesc, attribute: &Attribute) -> Option<Vec<u8>> {
    // SAFETY: a default that a descriptor remembers is a datum of its attribute's type; by reference it lives as long as the descriptor.
    unsafe {
        if attribute.absent {
            return None;
        }
        let value = missing_of(desc, attribute.number)?.value();
        if attribute.by_value {
            return Some(value.to_le_bytes().to_vec());
        }
        let len = match attribute.length {
            -1 => pgrx::varlena::varsize_any(value as *const pg_sys::varlena),
            -2 => CStr::from_ptr(value as *const core::ffi::c_char).to_bytes_with_nul().len(),
            n => n as usize,
        };
        Some(std::slice::from_raw_parts(value as *const u8, len).to_vec())
    }
}

unsafe fn missing_of(desc: pg_sys::TupleDesc, attribute: i16) -> Option<pg_sys::Datum> {
    // SAFETY: the descriptor is live, and has this attribute.
    unsafe {
        let mut null = true;
        let value = pg_sys::getmissingattr(desc, i32::from(attribute), &mut null);
        (!null).then_some(value)
    }
}
