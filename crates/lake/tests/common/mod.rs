//! What several test programs share.
#![allow(dead_code)]

pub mod flaky;
pub mod gateway;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub fn no_threads() {}

pub fn go_on() -> bool {
    false
}

/// A small generator whose seed is printed, so that a failure can be repeated with FIRN_SEED.
pub struct Random(u64);

impl Random {
    pub fn new(test: &str) -> Self {
        let seed = std::env::var("FIRN_SEED")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(firn_lake::random_nonce);
        println!("{test}: FIRN_SEED={seed}");
        Random(seed)
    }

    pub fn seeded(seed: u64) -> Self {
        Random(seed)
    }

    pub fn usize_below(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// splitmix64
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(n + 8);
        while out.len() < n {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(n);
        out
    }
}

/// A folder of this test's own that goes when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("firn-lake-{name}-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.0.display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
