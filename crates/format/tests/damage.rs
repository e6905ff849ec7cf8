//! Damaged stripes: whatever happened to the bytes, reading ends in values or errors.

mod common;
#[path = "common/reading.rs"]
mod reading;

use common::{cases, meta_of, seed, Case, Random};
use firn_format::{Stripe, Tombstone};
use reading::{read_all, read_pages, Outcome};

/// A stripe that is quick to read, of a random case.
fn small(r: &mut Random) -> Stripe {
    loop {
        let case = Case::random(r);
        if !case.specs.is_empty() && (1..400).contains(&case.rows) {
            let stripe = case.writer().encode().expect("an encoded stripe");
            if stripe.bytes.len() < 60_000 {
                println!("{}", case.describe());
                return stripe;
            }
        }
    }
}

/// Do one thing to `bytes[from..]`.
fn damage(r: &mut Random, bytes: &mut Vec<u8>, from: usize) {
    let room = bytes.len() - from;
    if room == 0 {
        return;
    }
    let at = from + r.below(room);
    let len = (1 + r.below(40)).min(bytes.len() - at);
    match r.below(9) {
        0..=2 => bytes[at] ^= 1 << r.below(8),
        3 => bytes[at] = r.next() as u8,
        4 => bytes[at..at + len].fill(r.pick(&[0, 0xFF, 0x80, 0x7F])),
        5 => drop(bytes.drain(at..at + len)),
        6 => bytes.truncate(at),
        7 => {
            // A piece of the file again, in another place.
            let source = from + r.below(room);
            let piece = bytes[source..(source + len).min(bytes.len())].to_vec();
            bytes.splice(at..at, piece);
        }
        _ => {
            let sizes: [u32; 6] = [0, 1, 0x7FFF_FFFF, 0x8000_0000, u32::MAX, bytes.len() as u32];
            for (to, b) in bytes[at..].iter_mut().zip(r.pick(&sizes).to_le_bytes()) {
                *to = b;
            }
        }
    }
}

#[test]
fn damaged_stripes_are_values_or_errors() {
    let seed = seed();
    let (mut opened, mut closed) = (0, 0);
    let mut sum = Outcome::default();
    for n in 0..cases(60) {
        let mut r = Random(seed.wrapping_add(n.wrapping_mul(0x5851_F42D_4C95_7F2D)));
        let stripe = small(&mut r);
        let meta_offset = stripe.meta_offset as usize;
        let meta = meta_of(&stripe);
        for round in 0..150 {
            let mut bytes = stripe.bytes.clone();
            // The pages under sound metadata, the metadata under sound pages, or anything.
            if round % 3 == 0 {
                bytes.truncate(meta_offset);
                (0..1 + r.below(3)).for_each(|_| damage(&mut r, &mut bytes, 4));
                read_pages(&bytes, &meta, &mut sum);
                continue;
            }
            let from = if round % 3 == 1 { meta_offset } else { 0 };
            (0..1 + r.below(3)).for_each(|_| damage(&mut r, &mut bytes, from));
            // What was damaged may have been the end, without which nothing else is looked at.
            if round % 2 == 0 && bytes.len() > 8 {
                let end = bytes.len() - 8;
                bytes[end..].copy_from_slice(&stripe.bytes[stripe.bytes.len() - 8..]);
            }
            let outcome = read_all(&bytes, meta_offset);
            if outcome.opened {
                opened += 1;
            } else {
                closed += 1;
            }
            sum.pages += outcome.pages;
            sum.refused += outcome.refused;
        }
    }
    println!("{opened} opened, {closed} refused; {sum:?}");
    // The test means something only where damage is met at every depth.
    assert!(opened > 100 && closed > 100 && sum.pages > 1_000 && sum.refused > 1_000);
}

/// The pages of one stripe under the metadata of another.
#[test]
fn stripes_that_were_exchanged_are_values_or_errors() {
    let seed = seed();
    let mut r = Random(seed);
    let stripes: Vec<Stripe> = (0..25).map(|_| small(&mut r)).collect();
    let mut outcome = Outcome::default();
    for a in &stripes {
        let meta = meta_of(a);
        for b in &stripes {
            read_pages(&b.bytes, &meta, &mut outcome);
        }
    }
    assert!(outcome.pages > 0 && outcome.refused > 0);
}

/// A stripe cut off at every byte, and a tombstone of every length.
#[test]
fn truncated_stripes_are_errors() {
    let mut r = Random(seed());
    let stripe = small(&mut r);
    let meta_offset = stripe.meta_offset as usize;
    for len in 0..stripe.bytes.len() {
        assert!(!read_all(&stripe.bytes[..len], meta_offset).opened, "{len} bytes");
        let _ = Tombstone::decode(&stripe.bytes[..len.min(20)]);
    }
    assert!(read_all(&stripe.bytes, meta_offset).opened);
}

/// Files to begin fuzzing with, into the folder FIRN_CORPUS (see fuzz/Cargo.toml).
#[test]
#[ignore = "writes files"]
fn corpus() {
    let folder = std::env::var("FIRN_CORPUS").expect("FIRN_CORPUS names a folder");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut r = Random(1);
    for n in 0..200 {
        let stripe = small(&mut r);
        let mut bytes = stripe.bytes;
        bytes.extend_from_slice(&(stripe.meta_offset as u32).to_le_bytes());
        std::fs::write(format!("{folder}/{n}"), bytes).expect("a file");
    }
}
