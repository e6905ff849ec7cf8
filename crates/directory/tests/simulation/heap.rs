//! Rows with their transactions, at places that are given out again when VACUUM has freed them: as much of PostgreSQL's
//! heap as protocols over it can tell.

use firn_directory::Place;
pub use firn_directory::{Cid, Xid};
use firn_format::Tid;
use std::collections::BTreeSet;

/// The older of two. (Numbers do not come round here.)
pub fn first(a: Xid, b: Xid) -> Xid {
    Xid(a.0.min(b.0))
}

/// Rows that share a block.
const PER_BLOCK: u32 = 8;

#[derive(Clone, Debug)]
pub struct Tuple<P> {
    pub xmin: Xid,
    /// Its inserter counts as committed long ago.
    pub frozen: bool,
    pub cmin: Cid,
    /// Who has deleted or updated it, or locks it; 0 for nobody.
    pub xmax: Xid,
    pub cmax: Cid,
    pub lock_only: bool,
    /// Where the version is that an update has made of it.
    pub next: Option<Tid>,
    pub payload: P,
}

impl<P> Tuple<P> {
    pub fn new(xmin: Xid, cmin: Cid, payload: P) -> Tuple<P> {
        Tuple {
            xmin,
            frozen: false,
            cmin,
            xmax: Xid::NONE,
            cmax: Cid(0),
            lock_only: false,
            next: None,
            payload,
        }
    }

    /// The transaction that has deleted or updated it, whatever became of that; 0 for none.
    pub fn deleter(&self) -> Xid {
        if self.lock_only {
            Xid::NONE
        } else {
            self.xmax
        }
    }
}

#[derive(Clone)]
pub struct Heap<P> {
    slots: Vec<Option<Tuple<P>>>,
    free: BTreeSet<u32>,
}

impl<P> Default for Heap<P> {
    fn default() -> Heap<P> {
        Heap { slots: Vec::new(), free: BTreeSet::new() }
    }
}

pub fn tid_of(place: u32) -> Tid {
    Tid { block: place / PER_BLOCK, offset: (place % PER_BLOCK + 1) as u16 }
}

/// As [`tid_of`], of the chunk store's rows.
pub fn ours_of(place: u32) -> Place {
    let Tid { block, offset } = tid_of(place);
    Place { block, offset }
}

pub fn number_of(place: Place) -> u32 {
    place_of(Tid { block: place.block, offset: place.offset })
}

pub fn place_of(tid: Tid) -> u32 {
    tid.block * PER_BLOCK + u32::from(tid.offset) - 1
}

impl<P> Heap<P> {
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }
    pub fn get(&self, place: u32) -> Option<&Tuple<P>> {
        self.slots.get(place as usize)?.as_ref()
    }
    pub fn of_ours(&self, place: Place) -> Option<&Tuple<P>> {
        self.get(number_of(place))
    }
    pub fn at(&self, tid: Tid) -> Option<&Tuple<P>> {
        self.get(place_of(tid))
    }
    /// A place for a new row: a free one, which `choice` chooses, or a new one.
    pub fn room(&self, choice: u32) -> u32 {
        match self.free.len() as u32 {
            0 => self.len(),
            n => *self.free.iter().nth((choice % n) as usize).unwrap_or(&self.len()),
        }
    }
    /// Put something at a place, or nothing; returns what was there.
    pub fn put(&mut self, place: u32, tuple: Option<Tuple<P>>) -> Option<Tuple<P>> {
        while self.len() <= place {
            self.free.insert(self.len());
            self.slots.push(None);
        }
        match tuple {
            Some(_) => self.free.remove(&place),
            None => self.free.insert(place),
        };
        std::mem::replace(&mut self.slots[place as usize], tuple)
    }
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Tuple<P>)> {
        self.slots.iter().enumerate().filter_map(|(i, t)| Some((i as u32, t.as_ref()?)))
    }
}
