//! Cargo looks at build-dependencies only of a crate that has this file.
fn main() {}
