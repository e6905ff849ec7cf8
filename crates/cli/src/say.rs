//! Lines for standard output and standard error, where nobody may be left who reads.

use std::io::Write;

/// A line to standard error. Nobody may be reading it any more: that changes nothing of the work.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A line of the result to standard output. Who stops reading has seen enough.
pub fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
