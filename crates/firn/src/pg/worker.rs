//! Starting the background process that rebuilds the indexes of a database (`entry/worker.rs`): when autovacuum has ended
//! there and found one that wants it, or when a VACUUM command has left one. Like autovacuum it gives way: who waits for its
//! locks cancels it, and DROP DATABASE ends it.

use super::ext::callback;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Start one when this process (autovacuum's) has come to its end, and not before: they would wait for each other.
pub fn start_at_exit() {
    static mut WANTED: bool = false;
    // SAFETY: main thread only; registered once.
    unsafe {
        if !WANTED {
            pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::from(0usize));
            WANTED = true;
        }
    }
}

unsafe extern "C-unwind" fn at_exit(code: core::ffi::c_int, _: pg_sys::Datum) {
    // SAFETY: PostgreSQL calls it once, at the end of a process that can still register another.
    unsafe {
        if code == 0 {
            callback(start)
        }
    }
}

/// Start one now. When there is no room for it, nothing happens: the next VACUUM asks again.
pub fn start() {
    // SAFETY: a plain struct of texts and numbers; PostgreSQL copies it.
    unsafe {
        let mut worker: pg_sys::BackgroundWorker = std::mem::zeroed();
        put(&mut worker.bgw_name, c"firn index rebuild");
        put(&mut worker.bgw_type, c"firn index rebuild");
        put(&mut worker.bgw_library_name, c"firn");
        put(&mut worker.bgw_function_name, c"firn_index_worker");
        let connected =
            pg_sys::BGWORKER_SHMEM_ACCESS | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION;
        worker.bgw_flags = connected as i32;
        worker.bgw_start_time = pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished;
        worker.bgw_restart_time = pg_sys::BGW_NEVER_RESTART;
        worker.bgw_main_arg = pg_sys::Datum::from(pg_sys::MyDatabaseId);
        pg_sys::RegisterDynamicBackgroundWorker(&mut worker, std::ptr::null_mut());
    }
}

fn put(field: &mut [core::ffi::c_char], text: &CStr) {
    for (to, from) in field.iter_mut().zip(text.to_bytes_with_nul()) {
        *to = *from as core::ffi::c_char;
    }
}
