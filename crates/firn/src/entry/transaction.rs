//! What is to be done at the ends of transactions and subtransactions.

use super::copying;
use super::hooks::like;
use crate::pg::ext::callback;
use crate::pg::xact::Sub;
use crate::{am, write};
use pgrx::pg_sys;

/// Follow the ends of transactions. Called once at library load.
pub(super) fn install() {
    // SAFETY: main thread, at load; PostgreSQL keeps the addresses of functions that are never unloaded.
    unsafe {
        pg_sys::RegisterXactCallback(Some(on_xact), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(on_subxact), std::ptr::null_mut());
    }
}

unsafe extern "C-unwind" fn on_xact(event: pg_sys::XactEvent::Type, _: *mut core::ffi::c_void) {
    // SAFETY: PostgreSQL calls it at the ends of transactions, on the main thread.
    unsafe {
        use pg_sys::XactEvent as E;
        callback(|| match event {
            // Before the top transaction commits or is prepared: write what is pending.
            E::XACT_EVENT_PRE_COMMIT | E::XACT_EVENT_PRE_PREPARE => write::flush_subtransaction(),
            // It is over, one way or the other.
            E::XACT_EVENT_COMMIT | E::XACT_EVENT_ABORT | E::XACT_EVENT_PREPARE => {
                like::forget();
                copying::forget();
                write::discard_all();
                am::moved::forget();
            }
            _ => (),
        })
    }
}

unsafe extern "C-unwind" fn on_subxact(
    event: pg_sys::SubXactEvent::Type,
    sub: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _: *mut core::ffi::c_void,
) {
    // SAFETY: PostgreSQL calls it at the ends of subtransactions, on the main thread.
    unsafe {
        use pg_sys::SubXactEvent as E;
        callback(|| match event {
            // Before the current subtransaction is merged into its parent.
            E::SUBXACT_EVENT_PRE_COMMIT_SUB => write::flush_subtransaction(),
            E::SUBXACT_EVENT_ABORT_SUB => {
                copying::forget_in(Sub(sub));
                write::discard_subtransaction(Sub(sub))
            }
            _ => (),
        })
    }
}
