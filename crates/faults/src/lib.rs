//! A library for tests, no part of the product: it makes any single call of the extension into PostgreSQL
//! fail. Loaded after firn (`shared_preload_libraries = 'firn, firn_faults'`), it puts a stub in the place
//! of every function of the server that `firn.so` calls, and of heapam's callbacks. The stubs count; at
//! call number `faults.at` the fault comes instead of, or just before, the call:
//!
//! | `faults.mode` | |
//! |---|---|
//! | `error` | the call raises an error, SQLSTATE 53000 |
//! | `cancel`, `die` | as if the client had cancelled, the administrator terminated the session; then the call |
//! | `kill` | the process is gone |
//!
//! `SET faults.at = n` begins to count anew, -1 only counts, 0 does nothing; `SHOW faults.calls` says how
//! many calls there were, `SHOW faults.trace` which of them tell most, `SHOW faults.last` of which function
//! the one at which the fault came was. What must not fail is not counted
//! (see `spared`). An error at StartTransactionCommand comes after it.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the stubs are made of x86-64 instructions, the calls found in ELF's tables");

mod image;
mod spared;
mod stubs;

use pgrx::pg_sys;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr;

pgrx::pg_module_magic!();

static mut AT: c_int = 0;
static mut MODE: c_int = 0;
static mut CALLS: i64 = 0;
static mut FIRED: bool = false;
static mut LAST: *const c_char = c"".as_ptr();
static mut SHOWN: [c_char; 32] = [0; 32];
static mut FUNCTIONS: &[Function] = &[];
/// How often each was called.
static mut SEEN: &mut [u32] = &mut [];
/// Numbers of calls that were the first, second, fourth, eighth … of their function.
static mut TRACE: [c_char; 1 << 16] = [0; 1 << 16];
static mut TRACED: usize = 0;
/// Placeholders: settings need variables.
static mut UNUSED: [*mut c_char; 3] = [ptr::null_mut(); 3];

const ERROR: c_int = 0;
const CANCEL: c_int = 1;
const DIE: c_int = 2;

/// A function that firn calls.
struct Function {
    name: CString,
    real: usize,
    spared: spared::Spared,
}

unsafe extern "C-unwind" {
    fn errstart(level: c_int, domain: *const c_char) -> bool;
    fn errcode(code: c_int) -> c_int;
    fn errmsg(format: *const c_char, ...) -> c_int;
    fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
}

/// "Insufficient resources": nobody raises it otherwise, and nobody takes it for damaged data.
const FAULT: c_int = pgrx::PgSqlErrorCode::ERRCODE_INSUFFICIENT_RESOURCES as c_int;

/// Called by a stub; `registers` are those of its caller: r10, r9, r8, rcx, rdx, rsi, rdi, rax. Returns
/// where to go on. Owns nothing, as an error leaves it by longjmp.
pub(crate) unsafe extern "C-unwind" fn called(index: usize, registers: *const usize) -> usize {
    let function: *const Function = &FUNCTIONS[index];
    if AT != 0
        && !FIRED
        && pg_sys::CritSectionCount == 0
        && (*function).spared.counts(registers)
        && libc::gettid() == libc::getpid()
    {
        CALLS += 1;
        trace(index);
        if CALLS == i64::from(AT) {
            FIRED = true;
            LAST = (*function).name.as_ptr();
            if MODE == ERROR && (*function).spared == spared::Spared::After {
                let begin: unsafe extern "C-unwind" fn() = std::mem::transmute((*function).real);
                begin();
            }
            fault();
        }
    }
    (*function).real
}

unsafe fn trace(index: usize) {
    let all = &raw mut SEEN;
    let seen = (*all).as_mut_ptr().add(index);
    *seen += 1;
    let room = (1 << 16) - TRACED;
    if (*seen).is_power_of_two() && room > 32 {
        let place = (&raw mut TRACE).cast::<c_char>().add(TRACED);
        TRACED += libc::snprintf(place, room, c"%lld ".as_ptr(), CALLS) as usize;
    }
}

unsafe extern "C-unwind" fn show_trace() -> *const c_char {
    (&raw const TRACE).cast()
}

unsafe fn fault() {
    match MODE {
        ERROR => {
            if errstart(pgrx::PgLogLevel::ERROR as c_int, ptr::null()) {
                errcode(FAULT);
                errmsg(c"fault at call %d, of %s".as_ptr(), AT, LAST);
                errfinish(c"faults".as_ptr(), 0, c"fault".as_ptr());
            }
        }
        CANCEL => {
            pg_sys::QueryCancelPending = 1;
            pg_sys::InterruptPending = 1;
        }
        DIE => {
            pg_sys::ProcDiePending = 1;
            pg_sys::InterruptPending = 1;
        }
        _ => {
            libc::kill(libc::getpid(), libc::SIGKILL);
        }
    }
}

unsafe extern "C-unwind" fn assign(_value: c_int, _extra: *mut c_void) {
    CALLS = 0;
    TRACED = 0;
    TRACE[0] = 0;
    let seen = &raw mut SEEN;
    (*seen).fill(0);
    FIRED = false;
    LAST = c"".as_ptr();
}

unsafe extern "C-unwind" fn show_calls() -> *const c_char {
    let place = &raw mut SHOWN;
    libc::snprintf(place.cast(), 32, c"%lld".as_ptr(), CALLS);
    place.cast()
}

unsafe extern "C-unwind" fn show_last() -> *const c_char {
    LAST
}

/// Called by PostgreSQL when it loads the library.
///
/// # Safety
/// On the main thread, after firn has been loaded.
#[no_mangle]
pub unsafe extern "C-unwind" fn _PG_init() {
    static MODES: [Mode; 5] = [
        Mode::named(c"error", ERROR),
        Mode::named(c"cancel", CANCEL),
        Mode::named(c"die", DIE),
        Mode::named(c"kill", 3),
        Mode(pg_sys::config_enum_entry { name: ptr::null(), val: 0, hidden: false }),
    ];
    let user = pg_sys::GucContext::PGC_USERSET;
    pg_sys::DefineCustomIntVariable(
        c"faults.at".as_ptr(),
        c"The call at which the fault comes.".as_ptr(),
        ptr::null(),
        &raw mut AT,
        0,
        -1,
        c_int::MAX,
        user,
        0,
        None,
        Some(assign),
        None,
    );
    pg_sys::DefineCustomEnumVariable(
        c"faults.mode".as_ptr(),
        c"The kind of fault.".as_ptr(),
        ptr::null(),
        &raw mut MODE,
        ERROR,
        MODES.as_ptr().cast(),
        user,
        0,
        None,
        None,
        None,
    );
    let shown: [(&CStr, pg_sys::GucShowHook); 3] = [
        (c"faults.calls", Some(show_calls)),
        (c"faults.last", Some(show_last)),
        (c"faults.trace", Some(show_trace)),
    ];
    for (i, (name, show)) in shown.into_iter().enumerate() {
        pg_sys::DefineCustomStringVariable(
            name.as_ptr(),
            c"What was counted.".as_ptr(),
            ptr::null(),
            (&raw mut UNUSED).cast::<*mut c_char>().add(i),
            c"".as_ptr(),
            user,
            0,
            None,
            None,
            show,
        );
    }
    if let Err(why) = install() {
        pgrx::error!("firn_faults: {why}");
    }
}

#[repr(transparent)]
struct Mode(pg_sys::config_enum_entry);
// SAFETY: constants.
unsafe impl Sync for Mode {}

impl Mode {
    const fn named(name: &'static CStr, val: c_int) -> Mode {
        Mode(pg_sys::config_enum_entry { name: name.as_ptr(), val, hidden: false })
    }
}

/// Put stubs in the place of all functions that firn takes from the server.
unsafe fn install() -> Result<(), String> {
    let slots = image::slots("/firn.so")?;
    let mut functions = Vec::new();
    let mut places: Vec<(*mut usize, usize)> = Vec::new();
    for slot in slots {
        let spared = spared::of(&slot.name);
        if slot.name.to_bytes() == b"GetHeapamTableAmRoutine" {
            places.push((slot.place, usize::MAX));
            continue;
        }
        if spared == spared::Spared::Untouched {
            continue;
        }
        places.push((slot.place, functions.len()));
        functions.push(Function { name: slot.name, real: slot.target, spared });
    }
    let routine = *pg_sys::GetHeapamTableAmRoutine();
    let routine: &'static mut pg_sys::TableAmRoutine = Box::leak(Box::new(routine));
    let words: *mut usize = (routine as *mut pg_sys::TableAmRoutine).cast();
    let first_callback = functions.len();
    let callbacks = spared::callbacks();
    for (name, offset, spared) in &callbacks {
        let real = *words.add(offset / 8);
        let name = CString::new(*name).unwrap_or_default();
        functions.push(Function { name, real, spared: *spared });
    }
    let stubs = stubs::make(functions.len())?;
    for (i, (_, offset, _)) in callbacks.iter().enumerate() {
        if functions[first_callback + i].real != 0 {
            *words.add(offset / 8) = stubs(first_callback + i);
        }
    }
    ROUTINE = routine;
    SEEN = Vec::leak(vec![0; functions.len()]);
    FUNCTIONS = Vec::leak(functions);
    for (place, number) in places {
        let target =
            if number == usize::MAX { heapam as *const () as usize } else { stubs(number) };
        image::write(place, target)?;
    }
    Ok(())
}

static mut ROUTINE: *const pg_sys::TableAmRoutine = ptr::null();

/// What firn gets for heapam.
unsafe extern "C" fn heapam() -> *const pg_sys::TableAmRoutine {
    ROUTINE
}
