//! Any bytes as a stripe: reading ends in values or errors, never in a panic.
//!
//! The last four bytes say where the metadata starts; the bytes before are the file.

#![no_main]

#[path = "../../tests/common/reading.rs"]
mod reading;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((file, at)) = data.split_last_chunk::<4>() else { return };
    reading::read_all(file, u32::from_le_bytes(*at) as usize);
});
