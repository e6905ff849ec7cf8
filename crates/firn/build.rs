//! What the linker is told.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // PostgreSQL's functions are found when the server loads the library. The unit tests call none of them, and have to be
    // linked without.
    println!("cargo:rustc-link-arg=-Wl,--unresolved-symbols=ignore-all");
}
