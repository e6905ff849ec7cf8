//! What the linker is told; and whether PostgreSQL's structures are laid out as the library believes.
use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The headers of the server that the library is built for.
fn headers() -> PathBuf {
    println!("cargo:rerun-if-env-changed=PGRX_PG_CONFIG_PATH");
    let pg_config = env::var("PGRX_PG_CONFIG_PATH").unwrap_or_else(|_| "pg_config".into());
    let told = Command::new(&pg_config).arg("--includedir-server").output();
    let told =
        told.unwrap_or_else(|e| panic!("{pg_config} cannot be run (PGRX_PG_CONFIG_PATH): {e}"));
    PathBuf::from(String::from_utf8_lossy(&told.stdout).trim())
}

fn check_layouts() {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let headers = headers();
    let done = Command::new(&compiler)
        .args(["-fsyntax-only", "-I"])
        .arg(&headers)
        .arg("src/layouts.c")
        .output()
        .unwrap_or_else(|e| panic!("the C compiler {compiler} cannot be run (CC): {e}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "other than in {}:\n{said}", headers.display());
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/layouts.c");
    check_layouts();
    // PostgreSQL's functions are found when the server loads the library. The unit tests call none of them, and have to be
    // linked without.
    println!("cargo:rustc-link-arg=-Wl,--unresolved-symbols=ignore-all");
}
