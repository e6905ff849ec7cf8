//! The allocator of the library's Rust values: the system's, but for small zeroed memory.
//!
//! calloc() of the C library does not take from the thread's cache (glibc before 2.41), though free() puts such memory there. Each look-up of a row has
//! some; once that cache is full free() goes the long way, and PostgreSQL's next large allocation collects what it has left (malloc_consolidate()): with
//! many sessions on few processors, a few microseconds a statement.

use std::alloc::{GlobalAlloc, Layout, System};

/// Bytes up to which the C library's cache has memory (its `tcache_max`).
const SMALL: usize = 1_032;

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// SAFETY: the system's allocator does all of it.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises; what was given has room for what is written. (The compiler would make calloc() of both again if it saw where the
        // memory is from.)
        unsafe {
            if layout.size() > SMALL {
                return System.alloc_zeroed(layout);
            }
            let memory = std::hint::black_box(System.alloc(layout));
            if !memory.is_null() {
                memory.write_bytes(0, layout.size());
            }
            memory
        }
    }
    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}
