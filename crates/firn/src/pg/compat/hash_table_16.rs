//! The hash table of a join, in PostgreSQL 16 and 17.

use pgrx::pg_sys;

/// PostgreSQL's HashJoinTableData, as far as it is looked at (executor/hashjoin.h). `layouts.c` compares it with the header.
#[repr(C)]
pub(crate) struct HashTable {
    pub bucket_count: i32,
    /// Its logarithm; the same two of how it began, and of what it should be.
    pub bucket_bits: i32,
    bucket_counts: [i32; 3],
    /// The first link of each bucket.
    pub buckets: *mut usize,
    keep_nulls: bool,
    pub skew_enabled: bool,
    skew_buckets: *mut core::ffi::c_void,
    skew_counts: [i32; 2],
    skew_numbers: *mut i32,
    pub batches: i32,
    pub current_batch: i32,
    batches_before: [i32; 2],
    grow_enabled: bool,
    pub rows: f64,
    rows_of_parts: [f64; 2],
    files: [*mut core::ffi::c_void; 2],
    functions: [*mut core::ffi::c_void; 4],
    room: [usize; 5],
    contexts: [*mut core::ffi::c_void; 3],
    chunks: [*mut core::ffi::c_void; 2],
    /// Where the links lead to, and what the processes share, of a table that several have built.
    pub area: *mut pg_sys::dsa_area,
    pub shared: *mut core::ffi::c_void,
}
