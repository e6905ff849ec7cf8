//! Rows on their way into stripes. A pending stripe belongs to one table, one subtransaction and one
//! command; its rows have their TIDs already and are read from memory by this session until the
//! stripe is written.

use super::flush;
use crate::directory::{allocation, Directory};
use crate::pg::datum::{form_numeric, push, Datum};
use crate::pg::slot::Slot as TupleSlot;
use crate::pg::{guc, lock, xact, LockMode, Rel};
use crate::stripe::{layout, Layout};
use firn_format::{
    ColumnBuilder, ColumnKind, ColumnSpec, Slot, StripeWriter, Tid, Value, WriteOptions,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Raw bytes after which a stripe is written, however few rows it has.
const STRIPE_BYTES: usize = 128 << 20;

/// A stripe being collected or encoded.
pub(super) struct Pending {
    pub table: u32,
    pub sub: u32,
    pub cid: u32,
    pub slot: Slot,
    /// Rows there are TIDs for.
    pub capacity: u32,
    /// The reserved directory row.
    pub place: Tid,
    pub layout: Rc<Layout>,
    /// Shared with the encoding thread once full.
    pub writer: Arc<StripeWriter>,
    pub encoding: Option<flush::Encoding>,
}

/// Rows that one statement has sent to one table so far.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Counter {
    sub: u32,
    cid: u32,
    rows: u64,
}

#[derive(Default)]
struct State {
    counters: HashMap<u32, Counter>,
    pending: Vec<Pending>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// This session holds rows that it has not written yet, of whatever table.
pub fn is_collecting() -> bool {
    STATE.with_borrow(|state| !state.pending.is_empty())
}

/// Count `rows` more rows of the running statement; true when it is past the threshold and the
/// table can take stripes.
fn counts_as_bulk(table: Rel, cid: u32, rows: u64) -> bool {
    let sub = xact::subtransaction();
    let total = STATE.with_borrow_mut(|state| {
        let c = state.counters.entry(table.oid()).or_default();
        if c.sub != sub || c.cid != cid {
            *c = Counter { sub, cid, rows: 0 };
        }
        c.rows += rows;
        c.rows
    });
    // Subscribers are told of rows in the row store only.
    total > guc::bulk_threshold() && table.toast_oid().is_some() && !table.is_published()
}

/// Insert one row: true when it went to a stripe and its slot has a TID; false when the caller is to
/// put it into the row store.
pub fn insert(table: Rel, slot: TupleSlot, cid: u32) -> bool {
    if !counts_as_bulk(table, cid, 1) {
        return false;
    }
    append(table, &[slot], cid);
    true
}

/// Insert many rows, as [`insert`].
pub fn insert_many(table: Rel, slots: &[TupleSlot], cid: u32) -> bool {
    if !counts_as_bulk(table, cid, slots.len() as u64) {
        return false;
    }
    append(table, slots, cid);
    true
}

fn append(table: Rel, slots: &[TupleSlot], cid: u32) {
    if xact::is_serializable() {
        lock::check_serializable_insert(table);
    }
    for slot in slots {
        let sub = xact::subtransaction();
        // Take the pending stripe out, so that nothing is borrowed while PostgreSQL runs.
        let open = STATE.with_borrow_mut(|state| {
            let at = state.pending.iter().position(|p| {
                p.table == table.oid() && p.sub == sub && p.cid == cid && p.encoding.is_none()
            });
            at.map(|i| state.pending.swap_remove(i))
        });
        let mut pending = open.unwrap_or_else(|| start(table, sub, cid));
        let row = pending.writer.rows();
        let writer = Arc::get_mut(&mut pending.writer);
        let Some(writer) = writer else {
            // A cursor holds the rows collected so far: it keeps them, we go on with a new stripe.
            STATE.with_borrow_mut(|state| state.pending.push(pending));
            flush::flush_table(table);
            append(table, &[*slot], cid);
            continue;
        };
        let (values, nulls) = slot.values();
        push_row(writer, &pending.layout, values, nulls);
        slot.set_tid(table.oid(), Tid::of(pending.slot, row));
        let full =
            pending.writer.rows() >= pending.capacity || pending.writer.raw_bytes() >= STRIPE_BYTES;
        STATE.with_borrow_mut(|state| state.pending.push(pending));
        if full {
            flush::begin_encoding(table);
        }
    }
    table.count_inserts(slots.len() as u64);
    bound_memory();
}

/// When this session holds more than `firn.write_memory`, write the largest stripe.
fn bound_memory() {
    let largest = STATE.with_borrow(|state| {
        let total: usize = state.pending.iter().map(|p| p.writer.raw_bytes()).sum();
        if total <= guc::write_memory() {
            return None;
        }
        state.pending.iter().max_by_key(|p| p.writer.raw_bytes()).map(|p| p.table)
    });
    if let Some(oid) = largest {
        let table = crate::pg::OpenRel::open(oid, LockMode::RowExclusive);
        flush::flush_table(table.rel());
    }
}

fn start(table: Rel, sub: u32, cid: u32) -> Pending {
    let Some(directory) = Directory::open(table, LockMode::RowExclusive) else {
        crate::pg::error(crate::pg::Kind::Internal, "a firn table without TOAST relation").raise()
    };
    let capacity = guc::stripe_rows();
    let slot = allocation::slot_for(&directory, capacity);
    let place = directory.reserve(slot, capacity, cid);
    guc::crash_point("load-reserved");
    let layout = layout(table);
    let specs: Vec<ColumnSpec> = layout.columns.iter().flatten().map(|c| c.spec()).collect();
    let options = write_options(table);
    let writer = Arc::new(StripeWriter::new(specs, options));
    Pending { table: table.oid(), sub, cid, slot, capacity, place, layout, writer, encoding: None }
}

/// Encoding options of a table.
pub(crate) fn write_options(_table: Rel) -> WriteOptions {
    WriteOptions::default()
}

/// Push one row; columns that cannot hold a value fall back to PostgreSQL's binary form.
pub(crate) fn push_row(
    writer: &mut StripeWriter,
    layout: &Layout,
    values: &[Datum],
    nulls: &[bool],
) {
    let mut stored = 0;
    for (i, column) in layout.columns.iter().enumerate() {
        let Some(column) = column else { continue };
        let (value, null) = match (values.get(i), nulls.get(i)) {
            (Some(v), Some(n)) => (*v, *n),
            _ => (0, true),
        };
        let kind = writer.columns()[stored].kind;
        let conversion = column.conversion_from(kind);
        if !push(writer.column_mut(stored), conversion, value, null) {
            degrade(writer, stored, conversion);
            let opaque = column.conversion_from(ColumnKind::Opaque);
            push(writer.column_mut(stored), opaque, value, null);
        }
        stored += 1;
    }
    writer.end_row();
}

/// Turn a column collected so far into the binary form.
fn degrade(writer: &mut StripeWriter, column: usize, from: crate::pg::datum::Conversion) {
    let scale = match from {
        crate::pg::datum::Conversion::Numeric { scale } => scale,
        _ => 0,
    };
    let spec = ColumnSpec { kind: ColumnKind::Opaque, ..writer.columns()[column].clone() };
    let mut opaque = ColumnBuilder::new(ColumnKind::Opaque);
    let mut bytes = Vec::new();
    for row in 0..writer.rows() as usize {
        let value = match writer.value(column, row) {
            Value::I64(v) => Some(i128::from(v)),
            Value::I128(v) => Some(v),
            _ => None,
        };
        match value {
            Some(v) => {
                bytes.clear();
                form_numeric(v, scale, &mut bytes);
                opaque.push_bytes(&bytes[4..]);
            }
            None => opaque.push_null(),
        }
    }
    writer.replace_column(column, spec, opaque);
}

/// Rows of a pending stripe, kept alive for a reader even when the stripe is written meanwhile.
#[derive(Clone)]
pub struct PendingRef {
    pub slot: Slot,
    pub rows: u32,
    pub cid: u32,
    pub writer: Arc<StripeWriter>,
}

fn reference(p: &Pending) -> PendingRef {
    PendingRef { slot: p.slot, rows: p.writer.rows(), cid: p.cid, writer: p.writer.clone() }
}

/// The pending stripe that holds `tid`, if it is one of this session's.
pub fn pending_at(table: Rel, tid: Tid) -> Option<PendingRef> {
    STATE.with_borrow(|state| {
        if state.pending.is_empty() {
            return None;
        }
        state
            .pending
            .iter()
            .find(|p| {
                p.table == table.oid() && tid.row_in(p.slot).is_some_and(|r| r < p.writer.rows())
            })
            .map(reference)
    })
}

/// All pending stripes of a table.
pub fn pending_of(table: Rel) -> Vec<PendingRef> {
    STATE.with_borrow(|state| {
        state.pending.iter().filter(|p| p.table == table.oid()).map(reference).collect()
    })
}

/// Take out the pending stripes for which `which` holds.
pub(super) fn take(which: impl Fn(&Pending) -> bool) -> Vec<Pending> {
    STATE.with_borrow_mut(|state| {
        let (taken, kept) = std::mem::take(&mut state.pending).into_iter().partition(|p| which(p));
        state.pending = kept;
        taken
    })
}

/// Put one back.
pub(super) fn put(pending: Pending) {
    STATE.with_borrow_mut(|state| state.pending.push(pending));
}

/// A subtransaction is undone: its rows never were.
pub(super) fn discard_subtransaction(sub: u32) {
    // Subtransaction ids grow: those opened inside this one have greater ids.
    STATE.with_borrow_mut(|state| state.pending.retain(|p| p.sub < sub));
}

/// The transaction is over.
pub(super) fn discard_all() {
    STATE.with_borrow_mut(|state| {
        state.pending.clear();
        state.counters.clear();
    });
}
