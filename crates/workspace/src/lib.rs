//! Small pages, decompressed in memory that processes share.
//!
//! **Problem.** A session that takes turns with many others finds little of its own memory in the processor's caches. To make a page of 4 kB of what zstd has made
//! of it takes some 8 kB of tables and the page, all of it the session's own, so all of it cold: a look-up with 50 sessions on two processors waits for
//! 200 lines of memory that nobody will ask for again before they are cold once more.
//!
//! **Rule.** There is one workspace for each processor, in memory that all processes have at the same address. Who decompresses a page takes the one of the
//! processor that it runs on; as the one before it on this processor did the same, its lines are in that processor's cache. It is held from the page's first byte until its value
//! has been taken: some microseconds without a call that could wait or raise. Who finds it taken (its holder has lost the processor meanwhile), or runs on a processor that has none, goes without.
//! Nothing is kept from one page to the next.
//!
//! **Crash cases.** A process that dies while it holds one never gives it back. PostgreSQL makes its shared memory anew when that happens, and
//! this with it. One that leaves in the midst of it without that (PostgreSQL's own handler of SIGTERM for background workers ends the process where it is) leaves a workspace that nobody takes any more: pages are
//! decompressed on that processor as if there was none. What is damaged is not shown, and leaves the workspace as it was.
//!
//! **Rejected.** *One list of free ones for all processors*: their lines would wander from one processor's cache to the other's. *Waiting for one*: the session's own memory
//! costs less. *The stack*: it is the session's own as well.
//!
//! `unsafe` is what this crate is for, beside `pg` and `entry` of the extension: zstd takes memory of its caller's by a pointer.

use firn_format::Workspace;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use zstd_sys::{ZSTD_DCtx, ZSTD_decompressDCtx, ZSTD_isError};

extern "C" {
    // Of zstd.h's part for those who link it statically, as zstd-sys does; its bindings have them only with a feature that builds all of it anew.
    fn ZSTD_estimateDCtxSize() -> usize;
    fn ZSTD_initStaticDCtx(workspace: *mut c_void, size: usize) -> *mut ZSTD_DCtx;
}

/// Bytes of a page, decompressed, at most.
pub const MOST: usize = 16 << 10;

/// Where parts of a workspace begin: at lines of memory, and the parts at pages.
const ALIGNMENT: usize = 4096;

/// The beginning of a workspace; behind it is the page, then what zstd needs.
#[repr(C)]
struct Head {
    /// 1: somebody has it.
    taken: AtomicU32,
    context: *mut ZSTD_DCtx,
}

/// Workspaces, one for each processor.
pub struct Workspaces {
    first: NonNull<u8>,
    count: usize,
    /// The number of the processor that this thread runs on.
    processor: fn() -> usize,
}

// SAFETY: a workspace is used by whoever has taken it, which is one thread of one process at a time.
unsafe impl Send for Workspaces {}
// SAFETY: as above.
unsafe impl Sync for Workspaces {}

fn context_bytes() -> usize {
    // SAFETY: a plain calculation.
    unsafe { ZSTD_estimateDCtxSize() }
}

/// Bytes of one.
fn stride() -> usize {
    (ALIGNMENT + MOST + context_bytes()).next_multiple_of(ALIGNMENT)
}

impl Workspaces {
    /// Bytes of memory for so many.
    pub fn bytes(count: usize) -> usize {
        count * stride() + ALIGNMENT
    }

    /// Make them. `processor` tells the number of the processor that its caller runs on; it may be out of date at once.
    /// None if zstd finds no room, which would be an error of [`Workspaces::bytes`].
    ///
    /// # Safety
    /// `memory` has [`Workspaces::bytes`] of `count`, which is not 0, and nobody else uses it. It stays as long as what is made of it is used, and all
    /// processes that use that have it at the same address, as they have this library.
    pub unsafe fn new(
        memory: NonNull<u8>,
        count: usize,
        processor: fn() -> usize,
    ) -> Option<Workspaces> {
        // SAFETY: all of it is within the memory that the caller promises, as bytes() says.
        unsafe {
            let first = memory.add(memory.align_offset(ALIGNMENT));
            for number in 0..count {
                let start = first.add(number * stride());
                let room = start.add(ALIGNMENT + MOST).as_ptr().cast();
                let context = ZSTD_initStaticDCtx(room, context_bytes());
                if context.is_null() {
                    return None;
                }
                start.cast::<Head>().write(Head { taken: AtomicU32::new(0), context });
            }
            Some(Workspaces { first, count, processor })
        }
    }

    /// Take the one of this processor.
    fn take(&self) -> Option<Taken<'_>> {
        let number = Some((self.processor)()).filter(|number| *number < self.count)?;
        // SAFETY: that workspace has been made, and its head is not written to any more but for the flag.
        let (start, head) = unsafe {
            let start = self.first.add(number * stride());
            (start, start.cast::<Head>().as_ref())
        };
        let is_free =
            head.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // (Made only if it is ours: it is given back when it is dropped.)
        is_free.then(|| Taken { head, start })
    }
}

/// A workspace that is ours until this is dropped.
struct Taken<'a> {
    head: &'a Head,
    start: NonNull<u8>,
}

impl Taken<'_> {
    /// Its room for a page of `len` bytes, of which there are at most [`MOST`], with what `body` has.
    fn expand(&mut self, body: &[u8], len: usize) -> Option<&[u8]> {
        if len > MOST {
            return None;
        }
        // SAFETY: the page's room is behind the head, and it and the context are nobody else's while the workspace is taken; zstd writes no more than it is told.
        unsafe {
            let page = self.start.add(ALIGNMENT).as_ptr();
            let (to, from) = (page.cast::<c_void>(), body.as_ptr().cast());
            let made = ZSTD_decompressDCtx(self.head.context, to, len, from, body.len());
            (ZSTD_isError(made) == 0 && made == len)
                .then(|| std::slice::from_raw_parts(page.cast_const(), len))
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.head.taken.store(0, Ordering::Release);
    }
}

impl Workspace for Workspaces {
    fn zstd(&self, body: &[u8], len: usize, show: &mut dyn FnMut(&[u8])) -> bool {
        if len > MOST {
            return false;
        }
        let Some(mut taken) = self.take() else { return false };
        match taken.expand(body, len) {
            Some(page) => {
                show(page);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{alloc_zeroed, Layout};
    use std::sync::atomic::AtomicUsize;

    fn workspaces(count: usize, processor: fn() -> usize) -> &'static Workspaces {
        let layout = Layout::from_size_align(Workspaces::bytes(count), 8).unwrap();
        // SAFETY: memory of that size, which is never freed.
        unsafe {
            let memory = NonNull::new(alloc_zeroed(layout)).unwrap();
            Box::leak(Box::new(Workspaces::new(memory, count, processor).unwrap()))
        }
    }

    /// Text of so many bytes.
    fn text(len: usize, seed: u64) -> Vec<u8> {
        let mut x = seed | 1;
        let words: Vec<String> = (0..len / 2 + 1)
            .map(|_| {
                x = x
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                format!("{} ", (x >> 33) % 500)
            })
            .collect();
        words.concat().into_bytes()[..len].to_vec()
    }

    fn shown(workspaces: &Workspaces, body: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut seen = None;
        let done = workspaces.zstd(body, len, &mut |page| seen = Some(page.to_vec()));
        assert_eq!(done, seen.is_some());
        seen
    }

    #[test]
    fn pages_are_what_they_were() {
        let some = workspaces(1, || 0);
        for (number, len) in [0, 1, 100, 4096, 5000, MOST - 1, MOST].into_iter().enumerate() {
            let page = text(len, number as u64);
            for level in [1, 3, 19] {
                let body = zstd::bulk::compress(&page, level).unwrap();
                assert_eq!(shown(some, &body, len).as_deref(), Some(&page[..]), "{len}");
                // Another size than it has, or half of it, is not shown.
                assert_eq!(shown(some, &body, len + 1), None);
                if len > 1 {
                    assert_eq!(shown(some, &body, len - 1), None);
                    assert_eq!(shown(some, &body[..body.len() / 2], len), None);
                }
            }
        }
        let large = text(MOST + 1, 7);
        assert_eq!(shown(some, &zstd::bulk::compress(&large, 3).unwrap(), large.len()), None);
    }

    /// A damaged page is not shown, or what it says is, and the next one is as it was.
    #[test]
    fn damage_leaves_nothing() {
        let some = workspaces(1, || 0);
        let page = text(4096, 3);
        let body = zstd::bulk::compress(&page, 3).unwrap();
        for at in 0..body.len() {
            for bit in 0..8 {
                let mut other = body.clone();
                other[at] ^= 1 << bit;
                shown(some, &other, page.len());
                if at % 16 == bit {
                    assert_eq!(shown(some, &body, page.len()).as_deref(), Some(&page[..]), "{at}");
                }
            }
        }
    }

    /// One that is taken is not taken by another, also not by whoever has it; it is given back if what is shown a page panics.
    #[test]
    fn one_has_it_at_a_time() {
        let some = workspaces(2, || 0);
        let page = text(4000, 5);
        let body = zstd::bulk::compress(&page, 3).unwrap();
        let mut within = None;
        assert!(
            some.zstd(&body, page.len(), &mut |_| within = Some(shown(some, &body, page.len())))
        );
        assert_eq!(within, Some(None));
        let panics = || some.zstd(&body, page.len(), &mut |_| panic!("as it should"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert_eq!(shown(some, &body, page.len()), Some(page));
    }

    #[test]
    fn processors_without_one_go_without() {
        let page = text(4000, 9);
        let body = zstd::bulk::compress(&page, 3).unwrap();
        assert_eq!(shown(workspaces(2, || 2), &body, page.len()), None);
        assert_eq!(shown(workspaces(3, || 2), &body, page.len()), Some(page));
    }

    /// Threads that wander between processors: each sees its own page, or none.
    #[test]
    fn threads_see_their_own() {
        static TURN: AtomicUsize = AtomicUsize::new(0);
        let some = workspaces(2, || TURN.fetch_add(1, Ordering::Relaxed) / 3 % 2);
        std::thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || {
                    let page = text(3000 + number * 500, number as u64);
                    let body = zstd::bulk::compress(&page, 3).unwrap();
                    let mut times = 0;
                    while times < 2_000 {
                        match shown(some, &body, page.len()) {
                            Some(seen) => assert!(seen == page, "another's page"),
                            None => {
                                std::thread::yield_now();
                                continue;
                            }
                        }
                        times += 1;
                    }
                });
            }
        });
    }
}
