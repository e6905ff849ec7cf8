//! Blocks read lately, kept in this process: a look-up that returns to a page costs no system call.

use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

/// A bounded set of verified blocks; the one used longest ago goes first.
#[derive(Debug)]
pub(super) struct Memory {
    most: usize,
    used: usize,
    clock: u64,
    blocks: HashMap<(u128, u32), Block>,
}

#[derive(Debug)]
struct Block {
    /// Whose block it is: hashes may collide.
    identity: Arc<str>,
    bytes: Bytes,
    used_at: u64,
}

impl Memory {
    /// Holds up to `most` bytes.
    pub fn new(most: usize) -> Self {
        Memory { most, used: 0, clock: 0, blocks: HashMap::new() }
    }

    pub fn get(&mut self, piece: u128, block: u32, identity: &str) -> Option<Bytes> {
        self.clock += 1;
        let found = self.blocks.get_mut(&(piece, block))?;
        if *found.identity != *identity {
            return None;
        }
        found.used_at = self.clock;
        Some(found.bytes.clone())
    }

    pub fn put(&mut self, piece: u128, block: u32, identity: &Arc<str>, bytes: Bytes) {
        if bytes.len() > self.most {
            return;
        }
        self.clock += 1;
        self.used += bytes.len();
        let new = Block { identity: Arc::clone(identity), bytes, used_at: self.clock };
        if let Some(old) = self.blocks.insert((piece, block), new) {
            self.used -= old.bytes.len();
        }
        while self.used > self.most {
            // A few hundred entries at most: looking at all of them is cheaper than keeping an order.
            let oldest = self.blocks.iter().min_by_key(|(_, b)| b.used_at);
            let Some(key) = oldest.map(|(key, _)| *key) else {
                break;
            };
            if let Some(old) = self.blocks.remove(&key) {
                self.used -= old.bytes.len();
            }
        }
    }

    /// Forgets the blocks of one object.
    pub fn forget(&mut self, identity: &str) {
        let used = &mut self.used;
        self.blocks.retain(|_, b| {
            let keep = *b.identity != *identity;
            if !keep {
                *used -= b.bytes.len();
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_least_recently_used_goes_first() {
        let mut m = Memory::new(3000);
        let id: Arc<str> = "a".into();
        for n in 0..3 {
            m.put(1, n, &id, Bytes::from(vec![n as u8; 1000]));
        }
        assert!(m.get(1, 0, "a").is_some());
        m.put(1, 3, &id, Bytes::from(vec![3; 1000]));
        assert!(m.get(1, 1, "a").is_none());
        for n in [0, 2, 3] {
            assert_eq!(m.get(1, n, "a").unwrap()[0], n as u8);
        }
        assert_eq!(m.used, 3000);
        m.put(1, 0, &id, Bytes::from(vec![9; 10]));
        assert_eq!(m.used, 2010);
        m.put(1, 9, &id, Bytes::from(vec![0; 3001]));
        assert_eq!(m.used, 2010);
        assert!(m.get(1, 0, "another with the same hash").is_none());
        m.forget("a");
        assert_eq!((m.used, m.blocks.len()), (0, 0));
    }
}
