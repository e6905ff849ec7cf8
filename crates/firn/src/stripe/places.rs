//! What a reader keeps of the stripes that it has left, for when it comes back: entries of an index may lead from stripe to stripe with each row.
//! One place each, found at once; two stripes that want the same one drive each other out.

use firn_format::hash::Mix;
use std::cell::Cell;
use std::hash::Hasher;

/// In a set.
const PLACES: usize = 128;

/// Sets of places of a session at a time, at most, two for each reader: a nested loop over a thousand partitions has a reader for each. Who finds none left does without.
const SETS: usize = 32;

thread_local! {
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

/// Places for something of stripes, which have a number each. They take no memory until the first is filled.
pub struct Places<T>(Vec<T>);

impl<T> Default for Places<T> {
    fn default() -> Places<T> {
        Places(Vec::new())
    }
}

impl<T: Default> Places<T> {
    /// Whether there are places.
    pub fn are_made(&self) -> bool {
        !self.0.is_empty()
    }

    /// What is in the place of this number, be it another's; nothing where there are no places.
    pub fn find(&mut self, number: u64) -> Option<&mut T> {
        self.0.get_mut(place_of(number))
    }

    /// As [`Places::find`], and there are places from now on, if any are left.
    pub fn make(&mut self, number: u64) -> Option<&mut T> {
        if self.0.is_empty() && TAKEN.get() < SETS {
            TAKEN.set(TAKEN.get() + 1);
            self.0.resize_with(PLACES, T::default);
        }
        self.find(number)
    }
}

impl<T> Places<T> {
    /// All places are given back.
    pub fn clear(&mut self) {
        if !std::mem::take(&mut self.0).is_empty() {
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
        assert!(all.iter_mut().all(|places| places.find(7).is_none()));
        let made: Vec<bool> = all.iter_mut().map(|places| places.make(7).is_some()).collect();
        assert_eq!(made, [vec![true; SETS], vec![false]].concat());
        *all[0].make(7).unwrap() = 3;
        assert_eq!(all[0].find(7), Some(&mut 3));
        all[0].clear();
        all[0].clear();
        assert_eq!(all[0].find(7), None);
        assert_eq!(all[SETS].make(7), Some(&mut 0));
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
