//! Settings (`SHOW firn.…`), each with its unit and bounds.

use pgrx::pg_sys;
use std::ffi::{CStr, CString};
use std::time::Duration;

static mut BULK_THRESHOLD: i32 = 10_000;
static mut STRIPE_ROWS: i32 = 262_144;
static mut WRITE_MEMORY_MB: i32 = 512;
static mut METADATA_CACHE_MB: i32 = 64;
static mut PAGE_CACHE_MB: i32 = 8;
static mut ENABLE_SCAN: bool = true;
static mut ENABLE_WINDOW_GROUPING: bool = true;
static mut REBUILD_INDEXES: bool = true;
static mut CACHE_SIZE_MB: i32 = 10_240;
static mut CACHE_DIRECTORY: *mut core::ffi::c_char = std::ptr::null_mut();
static mut CRASH_POINT: *mut core::ffi::c_char = std::ptr::null_mut();

/// What one of these variables says.
fn value<T: Copy>(setting: *const T) -> T {
    // SAFETY: a static of this file, which is read and written on the main thread only.
    unsafe { *setting }
}

/// Rows of one statement that go to the row store before it writes stripes directly.
pub fn bulk_threshold() -> u64 {
    value(&raw const BULK_THRESHOLD) as u64
}
/// Most rows of a new stripe.
pub fn stripe_rows() -> u32 {
    value(&raw const STRIPE_ROWS) as u32
}
/// Bytes that this backend may hold in stripes not yet written.
pub fn write_memory() -> usize {
    (value(&raw const WRITE_MEMORY_MB) as usize) << 20
}
/// Bytes of decoded directory rows, stripe metadata and dictionaries kept by this backend.
pub fn metadata_cache() -> usize {
    (value(&raw const METADATA_CACHE_MB) as usize) << 20
}
/// Bytes of decoded pages kept by this backend for reading single rows.
pub fn page_cache() -> usize {
    (value(&raw const PAGE_CACHE_MB) as usize) << 20
}
/// Offer the custom scan to the planner.
pub fn enable_scan() -> bool {
    value(&raw const ENABLE_SCAN)
}
/// Plan DISTINCT over whole-partition windows as GROUP BY.
pub fn enable_window_grouping() -> bool {
    value(&raw const ENABLE_WINDOW_GROUPING)
}
/// Rebuild indexes that moves have left half empty.
pub fn rebuild_indexes() -> bool {
    value(&raw const REBUILD_INDEXES)
}
/// Bound of the local cache of cold stripes, bytes.
pub fn cache_size() -> u64 {
    (value(&raw const CACHE_SIZE_MB) as u64) << 20
}
/// Folder of the local cache of cold stripes; relative to the data directory.
pub fn cache_directory() -> String {
    text(value(&raw const CACHE_DIRECTORY))
}

/// Bytes that VACUUM may use to remember what is dead.
pub fn vacuum_memory() -> usize {
    // SAFETY: settings of PostgreSQL's, which are written on the main thread only.
    unsafe {
        let own = autovacuum_work_mem;
        let auto = pg_sys::MyBackendType == pg_sys::BackendType::B_AUTOVAC_WORKER && own != -1;
        (if auto { own } else { pg_sys::maintenance_work_mem } as usize) << 10
    }
}

/// Settings of a process that maintains tables: autovacuum has the same, for the same reasons.
pub(crate) fn for_maintenance() {
    let settings = [
        (c"search_path", c""),
        (c"statement_timeout", c"0"),
        (c"lock_timeout", c"0"),
        (c"idle_in_transaction_session_timeout", c"0"),
        (c"default_transaction_isolation", c"read committed"),
        (c"zero_damaged_pages", c"false"),
        // As autovacuum: a standby that is away must not stop it in the middle of a table.
        (c"synchronous_commit", c"local"),
    ];
    for (name, value) in settings {
        // SAFETY: constants.
        unsafe {
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            )
        }
    }
}

/// This transaction's commit does not wait for standbys.
pub(super) fn commit_without_standbys() {
    // SAFETY: as SET LOCAL does it.
    unsafe {
        if pg_sys::synchronous_commit
            > pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH as i32
        {
            pg_sys::set_config_option(
                c"synchronous_commit".as_ptr(),
                c"local".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_LOCAL,
                true,
                0,
                false,
            );
        }
    }
}

/// Run `body` with this `lock_timeout`. An error in it gives back the old one with its subtransaction.
pub(super) fn with_lock_timeout<T>(timeout: Duration, body: impl FnOnce() -> T) -> T {
    let value = CString::new(timeout.as_millis().max(1).to_string()).unwrap_or_default();
    // SAFETY: as a function with a SET clause does it.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        pg_sys::set_config_option(
            c"lock_timeout".as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_SAVE,
            true,
            0,
            false,
        );
        let result = body();
        pg_sys::AtEOXact_GUC(true, level);
        result
    }
}

fn text(raw: *mut core::ffi::c_char) -> String {
    if raw.is_null() {
        return String::new();
    }
    // SAFETY: a GUC string is NUL-terminated.
    unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned()
}

/// Developer setting for crash tests: when `firn.crash_point` names this point, the backend kills
/// itself as `kill -9` would, and PostgreSQL restarts from its log. With `+wal` behind the name all that
/// was logged so far reaches the disk before; without, what was logged last is lost. With `#3` behind that, the third
/// time that it comes there. With `+stop` behind the name it is not killed, but stops until it is told to go on. Other words do nothing: a
/// test that misspells one does not do another's work.
pub fn crash_point(name: &str) {
    // SAFETY: main thread only; a setting's text ends with a NUL, and the process that is killed is this one.
    unsafe {
        if CRASH_POINT.is_null() || *CRASH_POINT == 0 {
            return;
        }
        let wanted = text(CRASH_POINT);
        let (wanted, times) = wanted.split_once('#').unwrap_or((&wanted, "1"));
        let (wanted, how) = wanted.split_once('+').unwrap_or((wanted, ""));
        if wanted == name {
            static mut REACHED: u32 = 0;
            REACHED += 1;
            if times.parse() != Ok(REACHED) {
                return;
            }
            let signal = match how {
                "" => SIGKILL,
                "wal" => {
                    super::wal::flush_all();
                    SIGKILL
                }
                "stop" => SIGSTOP,
                _ => return,
            };
            libc_kill(std::process::id() as i32, signal);
        }
    }
}

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;

unsafe extern "C" {
    static autovacuum_work_mem: i32;
    #[link_name = "kill"]
    fn libc_kill(pid: i32, signal: i32) -> i32;
}

fn int(
    name: &'static CStr,
    description: &'static CStr,
    variable: *mut i32,
    (low, high): (i32, i32),
    context: pg_sys::GucContext::Type,
    flags: u32,
) {
    // SAFETY: static strings and variables.
    unsafe {
        pg_sys::DefineCustomIntVariable(
            name.as_ptr(),
            description.as_ptr(),
            std::ptr::null(),
            variable,
            *variable,
            low,
            high,
            context,
            flags as i32,
            None,
            None,
            None,
        )
    }
}

/// Define all settings. Called once at library load.
pub fn define() {
    use pg_sys::GucContext as C;
    int(
        c"firn.bulk_threshold",
        c"Rows of one statement that go to the row store before it writes stripes directly.",
        &raw mut BULK_THRESHOLD,
        (0, i32::MAX),
        C::PGC_USERSET,
        0,
    );
    int(
        c"firn.stripe_rows",
        c"Most rows of a new stripe.",
        &raw mut STRIPE_ROWS,
        (1, 16_777_216),
        C::PGC_USERSET,
        0,
    );
    int(
        c"firn.write_memory",
        c"Memory that a session may use for stripes not yet written.",
        &raw mut WRITE_MEMORY_MB,
        (1, 1_048_576),
        C::PGC_USERSET,
        pg_sys::GUC_UNIT_MB,
    );
    int(
        c"firn.metadata_cache",
        c"Memory that a session may use to keep stripe metadata and dictionaries.",
        &raw mut METADATA_CACHE_MB,
        (1, 1_048_576),
        C::PGC_USERSET,
        pg_sys::GUC_UNIT_MB,
    );
    int(
        c"firn.page_cache",
        c"Memory that a session may use to keep decoded pages of stripes from which it reads single rows.",
        &raw mut PAGE_CACHE_MB,
        (0, 1_048_576),
        C::PGC_USERSET,
        pg_sys::GUC_UNIT_MB,
    );
    int(
        c"firn.cache_size",
        c"Disk space for the local cache of cold stripes.",
        &raw mut CACHE_SIZE_MB,
        (0, i32::MAX),
        C::PGC_SUSET,
        pg_sys::GUC_UNIT_MB,
    );
    // SAFETY: static strings and variables.
    unsafe {
        pg_sys::DefineCustomBoolVariable(
            c"firn.enable_scan".as_ptr(),
            c"Enables the planner's use of Firn Scan plans.".as_ptr(),
            std::ptr::null(),
            &raw mut ENABLE_SCAN,
            true,
            C::PGC_USERSET,
            0,
            None,
            None,
            None,
        );
        pg_sys::DefineCustomBoolVariable(
            c"firn.enable_window_grouping".as_ptr(),
            c"Enables planning SELECT DISTINCT over whole-partition window aggregates as GROUP BY."
                .as_ptr(),
            c"Applies to queries that read firn tables.".as_ptr(),
            &raw mut ENABLE_WINDOW_GROUPING,
            true,
            C::PGC_USERSET,
            0,
            None,
            None,
            None,
        );
        pg_sys::DefineCustomBoolVariable(
            c"firn.rebuild_indexes".as_ptr(),
            c"Builds B-tree indexes anew that compaction has left too large, after VACUUM."
                .as_ptr(),
            std::ptr::null(),
            &raw mut REBUILD_INDEXES,
            true,
            C::PGC_USERSET,
            0,
            None,
            None,
            None,
        );
        pg_sys::DefineCustomStringVariable(
            c"firn.cache_directory".as_ptr(),
            c"Folder of the local cache of cold stripes.".as_ptr(),
            c"A relative path is taken from the data directory.".as_ptr(),
            &raw mut CACHE_DIRECTORY,
            c"firn_cache".as_ptr(),
            C::PGC_SUSET,
            0,
            None,
            None,
            None,
        );
        pg_sys::DefineCustomStringVariable(
            c"firn.crash_point".as_ptr(),
            c"Developer setting: kill this server process at the named durable step.".as_ptr(),
            std::ptr::null(),
            &raw mut CRASH_POINT,
            c"".as_ptr(),
            C::PGC_SUSET,
            pg_sys::GUC_NOT_IN_SAMPLE as i32,
            None,
            None,
            None,
        );
        pg_sys::MarkGUCPrefixReserved(c"firn".as_ptr());
    }
}
