//! Keeping secrets within the process.

use rustix::process::{set_dumpable_behavior, setrlimit, DumpableBehavior, Resource, Rlimit};

/// No core dump of this process, and no other process of the same user may look into it, from now on: it is about to hold
/// keys. Where the system refuses that we go on; it is a precaution, on which nothing else rests.
pub fn no_dumps() {
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
