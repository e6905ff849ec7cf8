//! PostgreSQL's shared memory is about to be made, and has been made.

use crate::pg::ext::callback;
use crate::pg::shared;
use pgrx::pg_sys;

static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

/// Install the hooks, where it is not too late for them. Called once at library load.
pub fn install() {
    if !shared::can_request() {
        return;
    }
    // SAFETY: main thread, at load.
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

unsafe extern "C-unwind" fn request() {
    // SAFETY: called by PostgreSQL's hook, once, as the one before it would have been.
    unsafe {
        if let Some(f) = PREVIOUS_REQUEST {
            f()
        }
        callback(shared::request)
    }
}

unsafe extern "C-unwind" fn startup() {
    // SAFETY: called by PostgreSQL's hook, in the postmaster, as the one before it would have been.
    unsafe {
        if let Some(f) = PREVIOUS_STARTUP {
            f()
        }
        callback(shared::start)
    }
}
