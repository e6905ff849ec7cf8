//! Pages that rows were read from one by one, decoded, per session within `firn.page_cache`: who follows an index comes to
//! the same pages again and again, and a page costs as much to decompress for one value as for all.
//!
//! A page is known by its stripe's handle, and a stripe never changes, so nothing of it can be outdated. What belongs
//! to a handle goes with it.

use crate::pg::guc;
use firn_format::hash::{Mix, MixMap as Map};
use firn_format::PackedColumn;
use std::cell::{Cell, RefCell};
use std::hash::Hasher;
use std::rc::Rc;

/// A page within a stripe: the stripe's column, its number within that.
pub type PageKey = (u32, u32);

struct Kept {
    column: Rc<PackedColumn>,
    bytes: usize,
    used: Cell<u64>,
}

#[derive(Default)]
struct Pages {
    stripes: Map<u64, Map<PageKey, Kept>>,
    bytes: usize,
    /// Counts uses.
    clock: u64,
    /// Pages that were asked for lately and are not kept, by hash.
    asked: Vec<u64>,
}

/// For so many bytes of the cache one page more is remembered as asked for: about as many as fit of those that are not packed. With more, of pages that do not all fit more would be decoded, and push
/// others out, for no more hits.
const BYTES_PER_ASKED: usize = 16_384;
/// So many at most, whatever the setting: the list is in nobody's count.
const MOST_ASKED: usize = 1 << 20;

/// What a page takes beside what it counts itself, about: counts of references, heads of allocations, places of the tables that nobody is in.
const BESIDE: usize = 100;

thread_local! {
    static PAGES: RefCell<Pages> = RefCell::default();
}

/// Pages of so many stored bytes are worth decoding whole. Of others a value is looked for in the page.
pub fn fits(stored: usize) -> bool {
    stored <= guc::page_cache() / 16
}

/// Whether a page that is not kept was asked for before, not long ago: then it is worth to be decoded whole and kept. Of rows here and
/// there in a large table, few are of a page that is asked for again, and one value costs less than all.
pub fn is_asked_again(handle: u64, key: PageKey) -> bool {
    let mut hash = Mix(handle);
    hash.write_u32(key.0);
    hash.write_u32(key.1);
    let hash = hash.finish();
    PAGES.with_borrow_mut(|pages| {
        let size = (guc::page_cache() / BYTES_PER_ASKED).next_power_of_two().min(MOST_ASKED);
        if pages.asked.len() != size {
            pages.asked = vec![0; size];
        }
        let place = &mut pages.asked[hash as usize & (size - 1)];
        std::mem::replace(place, hash) == hash
    })
}

/// A page that is kept of the stripe that this handle is of.
pub fn find(handle: u64, key: PageKey) -> Option<Rc<PackedColumn>> {
    PAGES.with_borrow_mut(|pages| {
        pages.clock += 1;
        // There may be less room than there was.
        pages.make_room(guc::page_cache());
        let kept = pages.stripes.get(&handle)?.get(&key)?;
        kept.used.set(pages.clock);
        Some(kept.column.clone())
    })
}

/// A page that was found and is come back to, from now on in as little memory as it takes. (Decoded for somebody who went through it, it was kept as it was. It stays so if less may be kept by now than it takes.)
pub fn pack(handle: u64, key: PageKey, kept: Rc<PackedColumn>) -> Rc<PackedColumn> {
    let Some(packed) = kept.packed().map(Rc::new) else { return kept };
    keep(handle, key, &packed);
    packed
}

/// Keep a page, unless it is too large a part of what may be kept.
pub fn keep(handle: u64, key: PageKey, column: &Rc<PackedColumn>) {
    let most = guc::page_cache();
    let bytes = column.memory_bytes() + size_of::<(PageKey, Kept, PackedColumn)>() + BESIDE;
    PAGES.with_borrow_mut(|pages| {
        if bytes > most / 8 {
            return;
        }
        // What it takes the place of needs no room beside it.
        if let Some(before) = pages.stripes.get_mut(&handle).and_then(|kept| kept.remove(&key)) {
            pages.bytes -= before.bytes;
        }
        pages.make_room(most - bytes);
        let kept = Kept { column: column.clone(), bytes, used: Cell::new(pages.clock) };
        pages.stripes.entry(handle).or_default().insert(key, kept);
        pages.bytes += bytes;
    })
}

/// Nobody has this handle any more.
pub fn forget(handle: u64) {
    // A session that ends may have given up its pages before its handles.
    let _ = PAGES.try_with(|pages| {
        let mut pages = pages.borrow_mut();
        if let Some(gone) = pages.stripes.remove(&handle) {
            pages.bytes -= gone.values().map(|kept| kept.bytes).sum::<usize>();
        }
    });
}

impl Pages {
    /// Drop those not used longest, an eighth of all at a time, until the others take no more than `most` bytes.
    fn make_room(&mut self, most: usize) {
        while self.bytes > most {
            let each = self.stripes.values().flat_map(|pages| pages.values());
            let mut uses: Vec<u64> = each.map(|kept| kept.used.get()).collect();
            let some = uses.len() / 8;
            let (_, oldest, _) = uses.select_nth_unstable(some);
            let oldest = *oldest;
            let bytes = &mut self.bytes;
            self.stripes.retain(|_, pages| {
                pages.retain(|_, kept| {
                    let stays = kept.used.get() > oldest;
                    if !stays {
                        *bytes -= kept.bytes;
                    }
                    stays
                });
                !pages.is_empty()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_format::{Column, Values};

    fn bytes() -> usize {
        PAGES.with_borrow(|pages| pages.bytes)
    }

    /// A page kept as it was decoded takes its room, and packed less, once; nothing is left of it when its stripe is forgotten.
    #[test]
    fn what_is_packed_takes_the_place_of_what_was_kept() {
        let column = Column { rows: 2_048, nulls: None, values: Values::I64((0..2_048).collect()) };
        let plain = Rc::new(PackedColumn::plain(column.clone()));
        keep(5, (0, 0), &plain);
        keep(5, (0, 1), &Rc::new(PackedColumn::of(column)));
        let before = bytes();
        assert!(before > 2_048 * 8);
        let found = find(5, (0, 0)).unwrap();
        assert!(Rc::ptr_eq(&found, &plain));
        let packed = pack(5, (0, 0), found);
        assert_eq!(packed.value(77).unwrap(), plain.value(77).unwrap());
        assert!(Rc::ptr_eq(&find(5, (0, 0)).unwrap(), &packed));
        assert_eq!(bytes(), before - plain.memory_bytes() + packed.memory_bytes());
        assert!(packed.memory_bytes() < 2_048 * 2);
        assert!(Rc::ptr_eq(&pack(5, (0, 0), packed.clone()), &packed));
        forget(5);
        assert!(find(5, (0, 0)).is_none());
        assert_eq!(bytes(), 0);
    }
}
