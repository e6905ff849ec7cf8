//! firn's part of PostgreSQL's shared memory, which there is where the server was started with the library (`shared_preload_libraries`). Nothing
//! depends on it: without it the same is done more slowly where many sessions take turns.
//!
//! It has two parts, both made before there are sessions, and made anew, empty, when the postmaster makes its shared memory anew after a crash:
//! which buffer had a block last, for blocks that are looked up (`recent.rs`), and memory in which small pages are decompressed
//! (the crate `firn-workspace`).

use firn_format::Workspace;
use firn_workspace::Workspaces;
use pgrx::pg_sys;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// What it is called in `pg_shmem_allocations`.
const NAME: &std::ffi::CStr = c"firn";

/// Workspaces at most, 120 kB each: processors beyond them go without.
const MOST_WORKSPACES: usize = 128;

/// The first part, a power of two of buffers' numbers.
static RECENT: AtomicPtr<AtomicI32> = AtomicPtr::new(std::ptr::null_mut());
static RECENT_COUNT: AtomicUsize = AtomicUsize::new(0);
/// How many workspaces were asked for.
static WORKSPACE_COUNT: AtomicUsize = AtomicUsize::new(0);
static WORKSPACES: AtomicPtr<Workspaces> = AtomicPtr::new(std::ptr::null_mut());

/// For how many blocks a buffer is remembered: as many as there are buffers, about, 4 bytes each.
fn recent_count() -> usize {
    // SAFETY: a setting that is fixed before libraries are loaded.
    let buffers = unsafe { pg_sys::NBuffers }.max(1) as usize;
    buffers.next_power_of_two().min(1 << 22)
}

/// One for each processor that the machine has, whatever part of them this server may use, and whatever it may use later: they are known by the processors'
/// own numbers.
fn workspace_count() -> usize {
    // SAFETY: a plain call.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    (processors.max(1) as usize).min(MOST_WORKSPACES)
}

fn bytes(recent: usize, workspaces: usize) -> usize {
    recent * size_of::<AtomicI32>() + Workspaces::bytes(workspaces)
}

/// Ask for it: called before PostgreSQL makes its shared memory, once. After a crash it makes as much as was asked for then.
pub(crate) fn request() {
    let (recent, workspaces) = (recent_count(), workspace_count());
    RECENT_COUNT.store(recent, Ordering::Relaxed);
    WORKSPACE_COUNT.store(workspaces, Ordering::Relaxed);
    // SAFETY: called in PostgreSQL's hook for it.
    unsafe { pg_sys::RequestAddinShmemSpace(bytes(recent, workspaces)) }
}

/// Make it: called when there is PostgreSQL's shared memory, in the postmaster.
pub(crate) fn start() {
    let recent = RECENT_COUNT.load(Ordering::Relaxed);
    let workspaces = WORKSPACE_COUNT.load(Ordering::Relaxed);
    if workspaces == 0 {
        return;
    }
    let mut was_there = false;
    // SAFETY: called in PostgreSQL's hook for it, by one process, before there are others. What it has allocated is as long as was asked for, begins
    // at a line of memory, and stays until the next time this is called, when no session is left; sessions are forked, so they have it where the postmaster has it.
    unsafe {
        let memory =
            pg_sys::ShmemInitStruct(NAME.as_ptr(), bytes(recent, workspaces), &mut was_there);
        debug_assert!(!was_there);
        let Some(memory) = NonNull::new(memory.cast::<u8>()) else { return };
        let behind = memory.add(recent * size_of::<AtomicI32>());
        std::ptr::write_bytes(memory.as_ptr(), 0, recent * size_of::<AtomicI32>());
        RECENT.store(memory.as_ptr().cast(), Ordering::Relaxed);
        // (After a crash the one before is left: as many bytes as this structure has.)
        let made = Workspaces::new(behind, workspaces, processor);
        let made = made.map_or(std::ptr::null_mut(), |made| Box::into_raw(Box::new(made)));
        WORKSPACES.store(made, Ordering::Relaxed);
    }
}

/// The processor that this process runs on just now.
fn processor() -> usize {
    // SAFETY: a plain call.
    unsafe { libc::sched_getcpu() }.max(0) as usize
}

/// The library was loaded in time for its part of shared memory.
pub(crate) fn can_request() -> bool {
    // SAFETY: PostgreSQL's variable.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

/// Where small pages are decompressed; None where the server was started without the library.
pub fn workspace() -> Option<&'static dyn Workspace> {
    // SAFETY: null, or made by start() and never freed.
    let made = unsafe { WORKSPACES.load(Ordering::Relaxed).as_ref() };
    made.map(|made| made as &'static dyn Workspace)
}

/// Where the number of the buffer is remembered that had such a block last: another block's may be there. 0: none has been.
pub(super) fn recent(file: u32, block: u32) -> Option<&'static AtomicI32> {
    let count = RECENT_COUNT.load(Ordering::Relaxed);
    let number = block.wrapping_add(file.wrapping_mul(0x9e37_79b1)) as usize;
    let first = NonNull::new(RECENT.load(Ordering::Relaxed))?;
    // SAFETY: start() has made as many.
    Some(unsafe { first.add(number & count.checked_sub(1)?).as_ref() })
}
