//! VACUUM FULL and CLUSTER: what belongs to the stripes goes from the old TOAST relation to the new one.

use super::rewrite_table::{self, Found, Request};
use crate::directory::carry::{self, is_settled, Carried, NewPlaces};
use crate::directory::{counts, keys, Directory};
use crate::pg::compat;
use crate::pg::ext::{self, direct, guarded};
use crate::pg::own_toast;
use crate::pg::rel::index_oids;
use crate::pg::snapshot::Snap;
use crate::pg::toast::{RowView, CHUNK_BYTES};
use crate::pg::xact::xid_of;
use crate::pg::{ChunkKey, Kind, LockMode, Oid, Rel, Toast};
use pgrx::pg_sys;

/// Copy a table: rows of the row store, then all that is ours.
pub(super) unsafe fn copy_table(request: &Request) -> Found {
    // SAFETY: both relations are open under the strongest lock, as PostgreSQL asks for a copy.
    unsafe {
        let (old, new) = (Rel::of(request.old), Rel::of(request.new));
        let Some(from) = old.toast_oid() else {
            // A table from before such tables got one; the caller gives the new table's to it.
            own_toast::create_toast(new.oid());
            return rewrite_table::copy(request, None);
        };
        own_toast::drop_left_over_indexes(from);
        let wants = {
            let toast = Toast::open_oid(from, LockMode::AccessShare);
            carry::wants(&toast, xid_of(request.oldest))
        };
        let (mut found, places) = match wants {
            None => (rewrite_table::copy(request, None), NewPlaces::none()),
            Some(wants) => {
                let mut moves = carry::moves();
                let found = rewrite_table::copy(request, Some(&mut moves));
                (found, carry::resolve(wants, moves))
            }
        };
        let Some(to) = new.toast_oid() else { return found };
        let (all, live) = stripe_rows(old);
        carry_rows(request, from, to, places);
        keep_defaults(old, to);
        if all > 0 {
            // The caller sets the table's count to what we return.
            found.rows += live as f64;
            let toast = Toast::open_oid(to, LockMode::RowExclusive);
            counts::note(&toast, found.rows, all, live);
        }
        found
    }
}

/// Copy all rows of ours from the old TOAST relation to the new one, their transaction ids kept, so
/// that older snapshots go on seeing what they saw. A row at a time.
unsafe fn carry_rows(request: &Request, from: Oid, to: Oid, mut places: NewPlaces) {
    // SAFETY: nobody else reads or writes the two TOAST relations; a tuple is looked at while its page is pinned, and changed in a copy of our own.
    unsafe {
        // The new index will go by the rows' keys, so this is the last moment to see that one is damaged.
        let source = Toast::open_oid(from, LockMode::AccessShare);
        let misplaced = source.misplaced();
        let exclusive = pg_sys::AccessExclusiveLock as i32;
        let from = pg_sys::table_open(from, exclusive);
        let to = pg_sys::table_open(to, exclusive);
        let oldest = request.oldest;
        let rewrite = ext::begin_heap_rewrite(from, to, oldest, request.freeze, request.multi);
        let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN | pg_sys::ScanOptions::SO_ALLOW_STRAT;
        let none = std::ptr::null_mut();
        let scan = pg_sys::heap_beginscan(from, Snap::any().raw(), 0, none, none.cast(), flags);
        let slot = pg_sys::MakeSingleTupleTableSlot(
            (*from).rd_att,
            &raw const pg_sys::TTSOpsBufferHeapTuple,
        );
        let filled = slot as *mut pg_sys::BufferHeapTupleTableSlot;
        let forward = pg_sys::ScanDirection::ForwardScanDirection;
        while guarded(|| direct::heap_getnextslot(scan, forward, slot)) {
            crate::pg::xact::check_for_interrupts();
            let (tuple, buffer) = ((*filled).base.tuple, (*filled).buffer);
            let row = RowView::of(tuple);
            let id = row.key().id;
            let misplaced = misplaced.get(&row.place());
            // The values of the row store's rows came with them.
            if id >= pg_sys::FirstNormalObjectId && misplaced.is_none() {
                continue;
            }
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let state = pg_sys::HeapTupleSatisfiesVacuum(tuple, oldest, buffer);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
            if state == pg_sys::HTSV_Result::HEAPTUPLE_DEAD {
                ext::rewrite_heap_dead_tuple(rewrite, tuple);
                continue;
            }
            if let Some(key) = misplaced {
                source.raise_damaged_key(*key, &row);
            }
            let settled = is_settled(row.xmin(), xid_of(oldest));
            let carried = places.carry(id, row.place(), settled, row.data());
            if matches!(carried, Carried::Not) {
                continue;
            }
            let copy = pg_sys::heap_copytuple(tuple);
            if let Carried::With(data) = &carried {
                RowView::of(copy).overwrite(data);
            }
            let stays = rewrite_table::staying(tuple, state);
            let tuple = if stays.is_null() { tuple } else { stays };
            guarded(|| {
                direct::rewrite_heap_tuple(rewrite, tuple, copy);
                direct::heap_freetuple(copy);
            });
            if !stays.is_null() {
                pg_sys::heap_freetuple(stays);
            }
        }
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::heap_endscan(scan);
        ext::end_heap_rewrite(rewrite);
        pg_sys::CommandCounterIncrement();
        let persistence = (*(*to).rd_rel).relpersistence;
        for oid in index_oids(Rel::of(to)) {
            compat::reindex_index(oid, persistence);
        }
        pg_sys::relation_close(from, pg_sys::NoLock as i32);
        pg_sys::relation_close(to, pg_sys::NoLock as i32);
    }
}

/// Rows of the table's stripes, and those alive.
fn stripe_rows(table: Rel) -> (u64, u64) {
    let directory = Directory::open(table, LockMode::AccessShare);
    directory.map_or((0, 0), |d| counts::count_stripe_rows(&d, &d.list(Snap::self_snap())))
}

/// PostgreSQL forgets the defaults of added columns after a rewrite, as heap rows have them written
/// out then. Stripes were carried as they are and still need them.
fn keep_defaults(old: Rel, new_toast: Oid) {
    let toast = Toast::open_oid(new_toast, LockMode::RowExclusive);
    for attribute in old.attributes().iter().filter(|a| !a.absent) {
        let Some(bytes) = crate::pg::slot::remembered_default(old, attribute) else { continue };
        let key = ChunkKey { id: keys::MISSING, seq: i32::from(attribute.number) };
        if bytes.len() > CHUNK_BYTES {
            crate::pg::error(
                Kind::Limit,
                format!(
                    "default of column \"{}\" is too large to rewrite the table",
                    attribute.name
                ),
            )
            .hint("Rewrite the table with ALTER TABLE ... SET ACCESS METHOD heap and back.")
            .raise()
        }
        if toast.find(key, Snap::self_snap()).is_none() {
            toast.insert(key, &bytes, crate::pg::xact::command_id(true), true);
        }
    }
}
