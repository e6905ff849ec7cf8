//! Any bytes as an archive: reading ends in contents or errors, never in a panic or an endless loop.

#![no_main]

#[path = "../../tests/archives/packed.rs"]
mod packed;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    packed::read(data);
});
