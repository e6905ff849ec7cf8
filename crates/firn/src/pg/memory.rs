//! Rust values whose life is bound to a PostgreSQL memory context.

use pgrx::pg_sys;

/// Move `value` to the Rust heap and drop it when the current memory context is reset or deleted,
/// be it by the normal end of a scan or by an error.
pub(super) fn bind<T>(value: T) -> *mut T {
    let raw = Box::into_raw(Box::new(value));
    // SAFETY: the callback record is palloc'ed in the very context whose reset runs it.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let record = pg_sys::MemoryContextAllocZero(
            context,
            std::mem::size_of::<pg_sys::MemoryContextCallback>(),
        ) as *mut pg_sys::MemoryContextCallback;
        (*record).func = Some(drop_boxed::<T>);
        (*record).arg = raw.cast();
        pg_sys::MemoryContextRegisterResetCallback(context, record);
    }
    raw
}

/// Run `f` with `context` as the current memory context: what a scan allocates on its way must live
/// as long as the scan, whatever short-lived context its caller is in.
///
/// # Safety
/// The context is alive.
pub(super) unsafe fn within<T>(context: pg_sys::MemoryContext, f: impl FnOnce() -> T) -> T {
    let old = pg_sys::MemoryContextSwitchTo(context);
    let result = f();
    pg_sys::MemoryContextSwitchTo(old);
    result
}

/// Run `f` in a memory context of its own, which is empty afterwards: input and output functions leave
/// behind more than their result, and PostgreSQL calls them in memory that it resets row by row. `f` must not
/// come here again, nor give away memory of it.
pub(super) fn scratch<T>(f: impl FnOnce() -> T) -> T {
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

static mut RESETTING: bool = false;

/// Destructors must leave PostgreSQL's resources alone: an error is unwinding or a memory context is
/// being reset after one, and the resource owner releases them.
pub fn resources_are_released() -> bool {
    // SAFETY: main thread only.
    std::thread::panicking() || unsafe { RESETTING }
}

unsafe extern "C-unwind" fn drop_boxed<T>(arg: *mut core::ffi::c_void) {
    // SAFETY: arg came from Box::into_raw in bind(); PostgreSQL runs the callback once. A panic must
    // not cross into C.
    let before = RESETTING;
    RESETTING = true;
    let result = std::panic::catch_unwind(|| drop(Box::from_raw(arg as *mut T)));
    RESETTING = before;
    drop(result);
}
