//! Cases that random steps do not come to. Rows that are not what they should be are told of as values, and passed over by those who can do
//! without them; lists of several parts; the last addresses.

use crate::heap::{Cid, Xid};
use crate::session::{Session, Shared};
use crate::world::{Snap, World};
use crate::writer::ROOM;
use firn_directory::{
    allocation, forward, keys, rows, tombstones, ChunkKey, ChunkStore, Error, Keep, Row,
};
use firn_format::{Slot, Tid, Tombstone, VIRTUAL_BASE};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A table with two stripes of five rows.
fn table() -> Session {
    let session = Session::new(Arc::new(Shared::new(World::new(1, 1))), 0);
    session.quiet.set(true);
    session.now(|world| world.backends[0].levels.push(Default::default()));
    session.load(5, 5, 0);
    session.load(5, 5, 0);
    session
}

#[test]
fn a_damaged_tombstone_is_told_of() {
    let session = table();
    let (store, slot) = (&session, Slot(0));
    store.insert(tombstones::key_of(Tid::of(slot, 1)), b"D", Cid(0), Keep::WithTransaction);
    let whole = Tombstone::deleted().encode();
    store.insert(tombstones::key_of(Tid::of(slot, 3)), &whole, Cid(0), Keep::WithTransaction);
    let find = |row| tombstones::find(&store, Tid::of(slot, row), Snap::Own);
    assert!(matches!(find(0), Ok(None)));
    assert!(matches!(find(1), Err(Error::Tombstone { .. })));
    assert!(find(3).unwrap().unwrap().is_of_deleted());
    assert!(tombstones::deleted(&store, slot, 5, Snap::Own).is_err());
    assert!(tombstones::dirty(&store, slot, 5).is_err());
    assert_eq!(tombstones::deleted_of(&store, slot, 2..5, Snap::Own).unwrap(), [3]);
    assert_eq!(tombstones::deleted_readable(&store, slot, 5, Snap::Own), 1);
}

#[test]
fn a_damaged_directory_row_is_told_of() {
    let session = table();
    let store = &session;
    let list = rows::list(&store, Snap::Own).unwrap();
    assert_eq!(list.iter().map(|found| found.slot.0).collect::<Vec<u32>>(), [0, 1]);
    // The second stripe's row says that it is the first one's.
    let (_, bytes) = rows::as_it_is(&list[0], ROOM);
    store.overwrite(list[1].place, rows::key(Slot(1)), &bytes);
    session.restart();
    let told = |e: &Error| matches!(e, Error::DirectoryRow { slot: Slot(1), .. });
    assert!(rows::list(&store, Snap::Own).err().is_some_and(|e| told(&e)));
    let at = |slot| rows::find(&store, Tid::of(Slot(slot), 0), Snap::Own);
    assert!(at(0).unwrap().is_some());
    assert!(at(1).err().is_some_and(|e| told(&e)));
    let mut damaged = Vec::new();
    let left = rows::list_readable(&store, Snap::Own, |slot, _| damaged.push(slot.0));
    assert_eq!((left.len(), damaged), (1, vec![1]));
}

#[test]
fn a_damaged_or_lost_allocation_row_gives_nothing_out() {
    let session = table();
    let store = &session;
    let row = store.find_sound(allocation::KEY, Snap::Own).unwrap().unwrap();
    store.overwrite(row.place, allocation::KEY, &[9; 24]);
    let told = |e: Error| matches!(e, Error::AllocationDamaged { bytes: 24 });
    assert!(allocation::slot_for(&store, 1, Cid(0), ROOM).is_err_and(told));
    assert!(allocation::addresses(&store, 1).is_err_and(told));
    assert!(allocation::handed_out(&store).is_err_and(told));
    assert_eq!(allocation::next_block(&store), None);
    store.delete(row.place, Cid(0));
    let told = |e: Error| matches!(e, Error::AllocationLost);
    assert!(allocation::slot_for(&store, 1, Cid(0), ROOM).is_err_and(told));
    assert!(allocation::handed_out(&store).is_err_and(told));
}

#[test]
fn blocks_that_no_stripe_has_are_not_found() {
    let session = table();
    let store = &session;
    allocation::slot_for(&store, 600, Cid(0), ROOM).unwrap();
    for (block, slot) in [(0, Some(0)), (1, Some(1)), (2, Some(2)), (4, Some(2)), (5, None)] {
        for snap in [Snap::Own, Snap::Dirty, Snap::Any] {
            // By the index, and then by what the session remembers.
            for _ in 0..2 {
                let tid = Tid::of(Slot(block), 0);
                let found = rows::find(&store, tid, snap).unwrap().map(|found| found.slot.0);
                assert_eq!(found, slot, "the stripe of block {block}");
            }
        }
    }
}

#[test]
fn every_row_of_a_list_of_several_parts_is_found() {
    const ROWS: u32 = 3_000;
    let session = Session::new(Arc::new(Shared::new(World::new(1, 1))), 0);
    session.quiet.set(true);
    session.now(|world| world.backends[0].levels.push(Default::default()));
    let origins: Vec<Tid> = (0..ROWS).map(|_| session.insert_row(session.new_row(None))).collect();
    session.commit();
    // The stripe does not begin at the first block.
    session.now(|world| world.backends[0].levels.push(Default::default()));
    session.load(5, 900, 0);
    session.commit();
    assert!(session.begin_maintenance());
    session.compact(ROWS as usize, 0);
    let mover = session.now(|world| world.xid(0));
    session.commit();
    let store = &session;
    let mut moves = forward::Moves::of(&store, mover).unwrap();
    for (row, origin) in origins.iter().enumerate() {
        let home = Some(Tid::of(Slot(4), row as u32));
        assert_eq!(forward::find(&store, *origin, mover).unwrap(), home);
        assert_eq!(moves.home(&store, *origin).unwrap(), home);
        assert_eq!(forward::origin(&store, Slot(4), row as u32).unwrap(), Some(*origin));
    }
    let nobody = Tid { block: ROWS, offset: 1 };
    assert_eq!(forward::find(&store, nobody, mover).unwrap(), None);
    assert_eq!(forward::find(&store, origins[7], Xid(mover.0 + 1)).unwrap(), None);
}

#[test]
fn the_last_addresses_are_given_out_and_no_more() {
    let session = table();
    let store = &session;
    let row = store.find_sound(allocation::KEY, Snap::Own).unwrap().unwrap();
    let mut bytes = row.data.clone();
    bytes[8..16].copy_from_slice(&(allocation::BLOCKS - 1).to_le_bytes());
    bytes[16..].copy_from_slice(&(firn_directory::chunks::END - 3).to_le_bytes());
    store.overwrite(row.place, allocation::KEY, &bytes);
    assert!(matches!(allocation::addresses(&store, 4), Err(Error::NoAddressesLeft)));
    assert_eq!(allocation::addresses(&store, 3).unwrap(), firn_directory::chunks::END - 3);
    let too_many = allocation::slot_for(&store, 292, Cid(0), ROOM);
    assert!(matches!(too_many, Err(Error::NoBlocksLeft)));
    let (slot, _) = allocation::slot_for(&store, 291, Cid(0), ROOM).unwrap();
    assert_eq!(slot.0, VIRTUAL_BASE - 1);
    assert!(matches!(allocation::slot_for(&store, 1, Cid(0), ROOM), Err(Error::NoBlocksLeft)));
    assert_eq!(allocation::handed_out(&store).unwrap(), Some(VIRTUAL_BASE));
}

#[test]
fn a_row_under_another_key_is_told_of() {
    let session = table();
    let store = &session;
    // The index leads to the note of counts as a part of a forwarding list.
    let counted = ChunkKey { id: keys::COUNTED, seq: 0 };
    let row = store.find_damaged(counted, Snap::Own).unwrap();
    session.now(|world| {
        let key = ChunkKey { id: keys::FORWARDING, seq: 7 };
        world.add_entry(key, crate::heap::number_of(row.place));
    });
    let told = |e: &Error| matches!(e, Error::MisplacedRow { own, .. } if *own == counted);
    let moved = forward::find(&store, Tid { block: 1, offset: 1 }, Xid(11));
    assert!(moved.err().is_some_and(|e| told(&e)));
    let mut seen = 0;
    store.scan::<()>(keys::FORWARDING, 0, 9, Snap::Own, false, |key, row| {
        seen += u32::from(!row.is_under(key));
        ControlFlow::Continue(())
    });
    assert_eq!(seen, 1);
    // VACUUM leaves it where it is.
    assert_eq!(forward::prune(&store, Xid(u32::MAX)), 0);
}
