//! What a reader keeps of the stripes that it has left, for when it comes back: entries of an index may lead from stripe to stripe with each row.
//! One place each, found at once; two stripes that want the same one drive each other out.

use firn_format::hash::Mix;
use firn_format::Slot;
use std::cell::Cell;
use std::hash::Hasher;

/// In a set.
const PLACES: usize = 128;

/// Sets of places of a session at a time, at most, two for each reader: a nested loop over a thousand partitions has a reader for each. Who finds none left does without.
const SETS: usize = 32;

thread_local! {
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

/// Places for something of stripes, which have a number each.
pub struct Places<T> {
    /// None until the reader turns back for the first time: who reads stripes in their order, or against it, comes back to none.
    places: Vec<T>,
    /// Whether it went to a later stripe when it went to another for the first time.
    rises: Option<bool>,
}

impl<T> Default for Places<T> {
    fn default() -> Places<T> {
        Places { places: Vec::new(), rises: None }
    }
}

impl<T: Default> Places<T> {
    /// What is in the place of this number, be it another's; nothing where there are no places.
    pub fn find(&mut self, number: u64) -> Option<&mut T> {
        self.places.get_mut(place_of(number))
    }

    /// As [`Places::find`], for what the reader leaves that goes from the stripe in this slot to the one in that.
    pub fn leave(&mut self, number: u64, from: Slot, to: Slot) -> Option<&mut T> {
        // (The same slot: the stripe there was replaced meanwhile.)
        if self.places.is_empty() && from != to {
            let rises = from < to;
            let turns = *self.rises.get_or_insert(rises) != rises;
            if turns && TAKEN.get() < SETS {
                TAKEN.set(TAKEN.get() + 1);
                self.places.resize_with(PLACES, T::default);
            }
        }
        self.find(number)
    }
}

impl<T> Places<T> {
    /// All places are given back.
    pub fn clear(&mut self) {
        self.rises = None;
        if !std::mem::take(&mut self.places).is_empty() {
            TAKEN.set(TAKEN.get() - 1);
        }
    }
}

impl<T> Drop for Places<T> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Slots lie in steps that one round would leave in few places.
fn place_of(number: u64) -> usize {
    let mut hash = Mix(0);
    hash.write_u64(number);
    hash.write_u64(number >> 32);
    hash.finish() as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_and_given_back() {
        let mut all: Vec<Places<u64>> = (0..SETS + 1).map(|_| Places::default()).collect();
        let to = |number, places: &mut Places<u64>| {
            places.leave(7, Slot(5), Slot(number)).map(std::mem::take).is_some()
        };
        // In their order, or against it.
        let (first, rest) = all.split_at_mut(1);
        assert!(!to(5, &mut first[0]));
        assert!((5..99).all(|number| !to(number, &mut first[0])));
        assert!(rest.iter_mut().all(|places| (0..5).all(|number| !to(number, places))));
        assert_eq!(TAKEN.get(), 0);
        assert!(to(4, &mut first[0]) && rest[..SETS - 1].iter_mut().all(|places| to(6, places)));
        assert_eq!(TAKEN.get(), SETS);
        assert!(!to(6, &mut rest[SETS - 1]));
        *first[0].find(7).unwrap() = 3;
        assert_eq!(first[0].find(7), Some(&mut 3));
        first[0].clear();
        first[0].clear();
        assert_eq!(first[0].find(7), None);
        assert!(to(6, &mut rest[SETS - 1]));
        drop(all);
        assert_eq!(TAKEN.get(), 0);
    }

    #[test]
    fn stripes_find_different_places() {
        for step in [1, 64, 128, 180, 225, 450, 451, 646, 900, 901, 947, 4_096, 32_672] {
            let mut places: Vec<usize> = (0..64).map(|n| place_of(n * step)).collect();
            places.sort_unstable();
            places.dedup();
            assert!(places.len() > 40, "{step}: {}", places.len());
        }
    }
}
