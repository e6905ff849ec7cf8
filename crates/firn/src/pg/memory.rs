//! Rust values whose life is bound to a PostgreSQL memory context.

use super::ext;
use pgrx::pg_sys;

/// A value, and the memory context's note to drop it.
#[repr(C)]
struct Bound<T> {
    note: pg_sys::MemoryContextCallback,
    context: pg_sys::MemoryContext,
    value: T,
}

/// Move `value` to the Rust heap and drop it when the current memory context is reset or deleted,
/// be it by the normal end of a query or by an error; or before, by [`release`].
pub(crate) fn bind<T>(value: T) -> *mut T {
    // SAFETY: the context is alive; it forgets the note before it calls, so that may free the note as well.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let bound = Box::into_raw(Box::new(Bound { note: std::mem::zeroed(), context, value }));
        (*bound).note.func = Some(drop_boxed::<T>);
        (*bound).note.arg = bound.cast();
        ext::unfailing::MemoryContextRegisterResetCallback(context, &raw mut (*bound).note);
        &raw mut (*bound).value
    }
}

/// Drop a bound value now, with all that was kept of it: a context may see as many scans as a statement
/// checks rows, and is reset once.
///
/// # Safety
/// `value` came from [`bind`], its context has not been reset since, and it is not used again.
pub(crate) unsafe fn release<T>(value: *mut T) {
    // SAFETY: the value is in a `Bound`, as the caller promises; the context's list of notes is changed between its calls.
    unsafe {
        let bound = value.byte_sub(std::mem::offset_of!(Bound<T>, value)) as *mut Bound<T>;
        // Newest first, so that it is found at once where scans do not overlap.
        let mut link = &raw mut (*(*bound).context).reset_cbs;
        while !(*link).is_null() {
            if *link == &raw mut (*bound).note {
                *link = (*bound).note.next;
                drop(Box::from_raw(bound));
                return;
            }
            link = &raw mut (**link).next;
        }
    }
}

/// Allocate zeroed PostgreSQL memory for a `T`.
pub(crate) unsafe fn alloc<T>() -> *mut T {
    // SAFETY: zeroed memory of the current context, as large as a `T` and aligned for anything.
    unsafe { ext::palloc0(std::mem::size_of::<T>()) as *mut T }
}

/// Make a chunk of PostgreSQL's memory that is an `Old` large enough for a `New` that begins with it; what is added is zero. It stays
/// where it is, as others may have its address: memory contexts of the usual kind give out chunks in powers of two, and with
/// these sizes that leaves room.
///
/// # Safety
/// A chunk that was allocated as an `Old`.
pub(crate) unsafe fn extend<Old, New>(old: *mut Old) -> *mut New {
    const {
        assert!(size_of::<Old>().next_power_of_two() >= size_of::<New>());
    }
    // SAFETY: a chunk, as the caller promises.
    unsafe {
        let new = pg_sys::repalloc(old.cast(), size_of::<New>());
        if new != old.cast() {
            super::error(super::Kind::Internal, "a descriptor has no room for firn's part").raise();
        }
        std::ptr::write_bytes(
            new.cast::<u8>().add(size_of::<Old>()),
            0,
            size_of::<New>() - size_of::<Old>(),
        );
        new.cast()
    }
}

/// A state that begins empty and is dropped with the current memory context at the latest.
pub(crate) fn slot_for_state<T>() -> *mut Option<T> {
    bind(None)
}

/// Drop a state with its scan.
///
/// # Safety
/// It is null or was made by [`slot_for_state`] in a context that is still there.
pub(crate) unsafe fn end_state<T>(state: &mut *mut Option<T>) {
    // SAFETY: null or bound, as the caller promises; it is replaced by null, so nobody drops it again.
    unsafe {
        let state = std::mem::replace(state, std::ptr::null_mut());
        if !state.is_null() {
            release(state);
        }
    }
}

/// Run `f` with `context` as the current memory context: what a scan allocates on its way must live
/// as long as the scan, whatever short-lived context its caller is in.
///
/// # Safety
/// The context is alive.
pub(crate) unsafe fn within<T>(context: pg_sys::MemoryContext, f: impl FnOnce() -> T) -> T {
    // SAFETY: the context is alive, as the caller promises; an error puts PostgreSQL's own back.
    unsafe {
        let old = pg_sys::MemoryContextSwitchTo(context);
        let result = f();
        pg_sys::MemoryContextSwitchTo(old);
        result
    }
}

/// Run `f` in a memory context of its own, which is empty afterwards: input and output functions leave
/// behind more than their result, and PostgreSQL calls them in memory that it resets row by row. `f` must not
/// come here again, nor give away memory of it.
pub(crate) fn scratch<T>(f: impl FnOnce() -> T) -> T {
    static mut SCRATCH: pg_sys::MemoryContext = std::ptr::null_mut();
    // SAFETY: main thread only; the context lives as long as the process. What an error leaves in it goes
    // with the next use.
    unsafe {
        if SCRATCH.is_null() {
            SCRATCH = pg_sys::AllocSetContextCreateInternal(
                pg_sys::TopMemoryContext,
                c"firn scratch".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
        }
        let result = within(SCRATCH, f);
        pg_sys::MemoryContextReset(SCRATCH);
        result
    }
}

/// Run `f` in a memory context made for it, which goes with all that is in it. As [`scratch`], where `f` may be called on the way of another
/// that runs in that: reading a table, which functions of users may do anywhere.
pub(crate) fn apart<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: main thread only. After an error the context goes with the one that it was made in.
    unsafe {
        let context = pg_sys::AllocSetContextCreateInternal(
            pg_sys::CurrentMemoryContext,
            c"firn".as_ptr(),
            pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
            pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
            pg_sys::ALLOCSET_SMALL_MAXSIZE as usize,
        );
        let result = within(context, f);
        pg_sys::MemoryContextDelete(context);
        result
    }
}

static mut RESETTING: bool = false;

/// Destructors must leave PostgreSQL's resources alone: an error is unwinding or a memory context is
/// being reset after one, and the resource owner releases them.
pub fn resources_are_released() -> bool {
    // SAFETY: main thread only.
    std::thread::panicking() || unsafe { RESETTING }
}

unsafe extern "C-unwind" fn drop_boxed<T>(arg: *mut core::ffi::c_void) {
    // SAFETY: arg came from Box::into_raw in bind(); release() takes back the note; PostgreSQL runs the callback once. A panic must
    // not cross into C.
    unsafe {
        let before = RESETTING;
        RESETTING = true;
        let result = std::panic::catch_unwind(|| drop(Box::from_raw(arg as *mut Bound<T>)));
        RESETTING = before;
        drop(result);
    }
}
