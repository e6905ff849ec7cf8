//! Stores and cache of this session.

use crate::pg::progress::waiting;
use crate::pg::{catalog, error, guc, known_stores, thread, xact, Kind, Oid};
use bytes::Bytes;
use firn_lake::{Cache, ErrorKind, Store, StoreOptions, MARKER, PUBLIC_OPTIONS, SECRET_OPTIONS};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

type Options = Vec<(String, String)>;
type ServerAndRole = (String, Oid);

/// An open store and the name its objects have in the cache.
pub struct Open {
    pub store: Store,
    pub id: String,
    /// The foreign server and its name.
    pub server: Oid,
    pub name: String,
}

/// A store that is kept open, for calls to come.
struct Kept {
    options: Options,
    open: Rc<Open>,
    used: u64,
}

/// Stores that a session keeps open, at most: each has connections, descriptors of the system and memory of
/// its own, and a server that was dropped or renamed is not heard of again.
const KEPT_OPEN: usize = 16;

thread_local! {
    /// Open stores by server and role, and how often one was asked for; reopened when their options change.
    static STORES: RefCell<(HashMap<ServerAndRole, Kept>, u64)> = RefCell::default();
    static CACHE: RefCell<Option<OpenCache>> = const { RefCell::new(None) };
}

thread_local! {
    /// The error that made [`cancelled`] answer true.
    static HELD: RefCell<Option<xact::Held>> = const { RefCell::new(None) };
}

/// For calls into the store: serves what other sessions and the client ask of this one, and answers true
/// when that ends its work. However long a store is silent, nobody has to wait for this session.
pub fn cancelled() -> bool {
    match xact::hold_interrupts() {
        None => false,
        held => {
            HELD.set(held);
            true
        }
    }
}

/// Call into a store or the cache; raises what goes wrong there, or what [`cancelled`] has kept back.
pub fn call<T>(body: impl FnOnce() -> firn_lake::Result<T>) -> T {
    let result = waiting(body);
    if let Some(held) = HELD.take() {
        held.raise()
    }
    result.unwrap_or_else(|e| raise(e))
}

/// Raise a store's failure.
pub fn raise(e: firn_lake::Error) -> ! {
    raise_with(e, None)
}

fn raise_with(e: firn_lake::Error, detail: Option<String>) -> ! {
    let folder = e.store.as_deref().is_some_and(|url| url.starts_with("file:"));
    let (kind, hint) = match e.kind {
        ErrorKind::NotFound => (
            Kind::StoreMissing,
            "The object was removed behind firn's back; restore it to the store under its key.",
        ),
        ErrorKind::PermissionDenied if folder => (
            Kind::Denied,
            "PostgreSQL's operating system user must be able to write to the folder.",
        ),
        ErrorKind::PermissionDenied => (
            Kind::StoreDenied,
            "Check access_key_id and secret_access_key of the user mapping of the table's owner.",
        ),
        ErrorKind::Unreachable => (
            Kind::StoreUnreachable,
            "Check the server's url and endpoint, and that the store answers.",
        ),
        ErrorKind::Corrupt => (Kind::Corrupt, "Run firn.check() on the table."),
        ErrorKind::Full => (Kind::Full, "Free space in the store and try again."),
        ErrorKind::InvalidOptions => (Kind::Invalid, "Check the options of the foreign server."),
        _ => (Kind::StoreUnreachable, "Try again; the table is unchanged."),
    };
    let report = error(kind, e.to_string()).hint(hint);
    match detail {
        Some(detail) => report.detail(detail).raise(),
        None => report.raise(),
    }
}

/// Read from a store; of an object that is not there, say whether this is the store that had it.
fn call_to_read<T>(open: &Open, body: impl FnOnce() -> firn_lake::Result<T>) -> T {
    let result = waiting(body);
    if let Some(held) = HELD.take() {
        held.raise()
    }
    result.unwrap_or_else(|e| {
        let missing = e.kind == ErrorKind::NotFound;
        let doubt = missing.then(|| match marker_of(open) {
            Ok(found) => doubt(open, found).unwrap_or_else(|| {
                "The store has the marker of the store that was used before.".to_owned()
            }),
            Err(e) => format!("Whether the store has its marker is not known: {e}."),
        });
        raise_with(e, doubt)
    })
}

fn marker_of(open: &Open) -> firn_lake::Result<Option<String>> {
    let result = waiting(|| open.store.marker(&cancelled));
    if let Some(held) = HELD.take() {
        held.raise()
    }
    result
}

/// What speaks against this being the store that was used before; None when nothing does.
fn doubt(open: &Open, found: Option<String>) -> Option<String> {
    let known = known_stores::known(&open.name)?;
    match found {
        Some(found) if found == known => None,
        Some(found) => Some(format!(
            "Its marker \"{MARKER}\" says {found}, that of the store used before {known}."
        )),
        None => Some(format!("It lacks the marker \"{MARKER}\" of the store used before.")),
    }
}

/// Raise unless this is the store that was used before, if one was. An empty mount point or another bucket
/// would take objects, and the chunks that they stand for would be freed.
pub fn confirm(open: &Open) {
    if known_stores::known(&open.name).is_none() {
        return;
    }
    let found = marker_of(open).unwrap_or_else(|e| raise(e));
    if let Some(doubt) = doubt(open, found) {
        error(
            Kind::StoreUnreachable,
            format!(
                "store \"{}\" is not the one that server \"{}\" was used with before",
                open.store.url(),
                open.name
            ),
        )
        .detail(doubt)
        .hint(format!(
            "Check that the folder is mounted and that url and endpoint are right. If the store was moved or \
             replaced on purpose, call firn.accept_store('{}').",
            open.name
        ))
        .raise()
    }
}

/// The server stays until the transaction is over: that a table depends on it keeps others from dropping it from then on only, and before 18 noting that locks nothing.
fn hold(open: &Open) {
    if catalog::lock_server(&open.name) != Some(open.server) {
        raise_no_server(&open.name)
    }
}

/// As [`confirm`], before something is written; the first time, the store is given a marker and remembered. The server is not dropped before the transaction is over.
pub fn confirm_to_write(open: &Open) {
    hold(open);
    match known_stores::known(&open.name) {
        Some(_) => confirm(open),
        None => {
            let id = call(|| open.store.mark(&cancelled));
            known_stores::remember(&open.name, &id);
        }
    }
}

/// Take the store that is behind the server now for the right one. Returns its id.
pub fn accept(server: &str, role: Oid) -> String {
    let open = open(server, role);
    hold(&open);
    let id = call(|| open.store.mark(&cancelled));
    known_stores::remember(&open.name, &id);
    id
}

fn raise_no_server(server: &str) -> ! {
    error(Kind::Undefined, format!("server \"{server}\" does not exist"))
        .hint("Cold stripes name their server; create it again under this name.")
        .raise()
}

/// The store behind a foreign server, with the credentials of `role`.
pub fn open(server: &str, role: Oid) -> Rc<Open> {
    let Some(found) = catalog::server(server, role) else { raise_no_server(server) };
    if found.wrapper != "firn" {
        error(Kind::WrongObject, format!("server \"{server}\" is not a firn server"))
            .hint("Create it with FOREIGN DATA WRAPPER firn.")
            .raise()
    }
    let all: Options = found.options.iter().chain(&found.secrets).cloned().collect();
    let key = (server.to_owned(), role);
    let known = STORES.with_borrow_mut(|(map, clock)| {
        *clock += 1;
        let kept = map.get_mut(&key)?;
        kept.used = *clock;
        (kept.options == all && kept.open.server == found.oid).then(|| kept.open.clone())
    });
    if let Some(open) = known {
        return open;
    }
    let mut options = StoreOptions::default();
    for (name, value) in &all {
        options.set(name, value).unwrap_or_else(|e| raise(e));
    }
    let store = Store::open(&options, thread::block_all_signals).unwrap_or_else(|e| raise(e));
    // The same object may be known under several servers; its place is what identifies it.
    let id = format!("{} {}", store.url(), options.endpoint.as_deref().unwrap_or(""));
    let open = Rc::new(Open { store, id, server: found.oid, name: server.to_owned() });
    STORES.with_borrow_mut(|(map, clock)| {
        map.insert(key, Kept { options: all, open: open.clone(), used: *clock });
        while map.len() > KEPT_OPEN {
            let oldest = map.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone());
            oldest.map(|key| map.remove(&key));
        }
    });
    open
}

/// How long a cache that could not be opened is left alone.
const CACHE_PAUSE: Duration = Duration::from_secs(60);

/// The cache of this session, and when to try again if it is one that keeps nothing.
struct OpenCache {
    directory: String,
    size: u64,
    cache: Rc<Cache>,
    until: Option<Instant>,
}

/// The local cache. If its folder cannot be used, one that keeps nothing: reading goes on.
fn cache() -> Rc<Cache> {
    let (directory, size) = (guc::cache_directory(), guc::cache_size());
    let known = CACHE.with_borrow(|c| {
        c.as_ref()
            .filter(|c| c.directory == directory && c.size == size)
            .filter(|c| c.until.is_none_or(|until| Instant::now() < until))
            .map(|c| c.cache.clone())
    });
    if let Some(cache) = known {
        return cache;
    }
    let (cache, until) = match Cache::open(&PathBuf::from(&directory), size) {
        Ok(cache) => (cache, None),
        Err(e) => {
            error(Kind::CacheUnusable, e.to_string())
                .detail("Cold stripes are read from their store each time.")
                .hint("Check firn.cache_directory and the space and rights there.")
                .warn();
            let without = Cache::open(&PathBuf::from(&directory), 0).unwrap_or_else(|e| raise(e));
            (without, Some(Instant::now() + CACHE_PAUSE))
        }
    };
    let cache = Rc::new(cache);
    CACHE.set(Some(OpenCache { directory, size, cache: cache.clone(), until }));
    cache
}

/// Read bytes of a cold stripe through the local cache.
pub fn read_object(
    (server, role): (&str, Oid),
    key: &str,
    object_len: u64,
    offset: u64,
    len: usize,
    out: &mut Vec<u8>,
) {
    xact::check_for_interrupts();
    let open = open(server, role);
    let range = offset..offset + len as u64;
    let cache = cache();
    let bytes = call_to_read(&open, || {
        cache.read(&open.store, &open.id, key, object_len, range, &cancelled)
    });
    out.extend_from_slice(&bytes);
}

/// Read several ranges of a cold stripe's bytes through the local cache, in their order: what it lacks is asked for at the same time.
pub fn read_object_at_once(
    (server, role): (&str, Oid),
    key: &str,
    object_len: u64,
    ranges: &[Range<u64>],
) -> Vec<Bytes> {
    xact::check_for_interrupts();
    let open = open(server, role);
    let cache = cache();
    call_to_read(&open, || {
        cache.read_many(&open.store, &open.id, key, object_len, ranges, &cancelled)
    })
}

/// An object's bytes were found damaged although the cache has them as they came: it forgets them, as the object may be put back. Nothing is
/// looked up: an error is on its way.
pub fn forget_object((server, role): (&str, Oid), key: &str, len: u64) {
    let id = STORES.with_borrow(|(map, _)| {
        map.get(&(server.to_owned(), role)).map(|kept| kept.open.id.clone())
    });
    let cache = CACHE.with_borrow(|c| c.as_ref().map(|c| c.cache.clone()));
    if let (Some(id), Some(cache)) = (id, cache) {
        cache.forget(&id, key, len);
    }
}

/// Read a whole object past the cache.
pub fn read_whole((server, role): (&str, Oid), key: &str, len: u64) -> Vec<u8> {
    let open = open(server, role);
    call_to_read(&open, || open.store.get_range(key, 0..len, &cancelled)).into()
}

/// Check the options given to CREATE SERVER or CREATE USER MAPPING.
pub fn validate(options: &[(String, String)], of_user_mapping: bool) {
    let mut probe = StoreOptions::default();
    for (name, value) in options {
        let n = name.as_str();
        let fits =
            if of_user_mapping { SECRET_OPTIONS.contains(&n) } else { PUBLIC_OPTIONS.contains(&n) };
        if !fits {
            let (valid, hint) = if of_user_mapping {
                (SECRET_OPTIONS.join(", "), "Other options belong to the server.")
            } else {
                (PUBLIC_OPTIONS.join(", "), "Secrets belong to a user mapping.")
            };
            error(Kind::InvalidOption, format!("invalid option \"{name}\""))
                .detail(format!("Valid options in this context are: {valid}."))
                .hint(hint)
                .raise()
        }
        if let Err(e) = probe.set(name, value) {
            error(Kind::Invalid, format!("invalid value for option \"{name}\""))
                .detail(e.message.clone())
                .raise()
        }
        if n == "url" && value.starts_with("file:") && !catalog::may_use_files() {
            error(Kind::Denied, "permission denied to use a folder as an object store")
                .detail(
                    "Only members of pg_read_server_files and pg_write_server_files may let the server read \
                     and write files.",
                )
                .raise()
        }
    }
}
