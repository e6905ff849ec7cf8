//! How a firn table is known: by the address of its access method's routine, in the relation cache.

use pgrx::pg_sys;
use std::mem::MaybeUninit;

static mut ROUTINE: MaybeUninit<pg_sys::TableAmRoutine> = MaybeUninit::zeroed();

/// Where the routine stands. It is filled when PostgreSQL asks for it (`entry/tableam`): no relation leads here before.
#[inline]
pub fn routine() -> *mut pg_sys::TableAmRoutine {
    (&raw mut ROUTINE).cast()
}
