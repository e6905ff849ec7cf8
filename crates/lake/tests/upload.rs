//! Objects that come in parts, in a folder, at a server that misbehaves, and at a real one.

mod common;

use bytes::Bytes;
use common::flaky::{Fault, Server};
use common::gateway::Gateway;
use common::{go_on, no_threads, Folder, Random};
use firn_lake::{ErrorKind, Part, Store, StoreOptions, Upload};
use std::time::{Duration, Instant};

const PART: usize = 5 << 20;

fn open(options: &StoreOptions) -> Store {
    Store::open(options, no_threads).unwrap()
}

/// Uploads all parts, in an order of their own, and returns them in that order.
fn put_parts(store: &Store, upload: &Upload, object: &Bytes, order: &[u32]) -> Vec<Part> {
    let put = |&number: &u32| {
        let start = number as usize * PART;
        let bytes = object.slice(start..(start + PART).min(object.len()));
        store.upload_part(upload, number, start as u64, bytes, &go_on).unwrap()
    };
    order.iter().map(put).collect()
}

fn check_round_trip(store: &Store, options: &StoreOptions, random: &mut Random) {
    let object = Bytes::from(random.bytes(2 * PART + 77));
    let upload = store.upload_begin("some/key", &go_on).unwrap();
    assert_eq!(store.head("some/key", &go_on).unwrap_err().kind, ErrorKind::NotFound);
    // From two threads with stores of their own, the last part first.
    let parts = std::thread::scope(|scope| {
        let (upload, object) = (&upload, &object);
        let other = scope.spawn(move || put_parts(&open(options), upload, object, &[2, 0]));
        let mut parts = put_parts(store, upload, object, &[1]);
        parts.extend(other.join().unwrap());
        parts
    });
    store.upload_finish(&upload, parts, &go_on).unwrap();
    let size = object.len() as u64;
    store.verify("some/key", size, crc32c::crc32c(&object), &go_on).unwrap();
    assert_eq!(store.list("", &go_on).unwrap(), vec![("some/key".to_string(), size)]);
    // Never over an existing object, and after that nothing is left of the attempt.
    let again = store.upload_begin("some/key", &go_on);
    if let Ok(upload) = again {
        let parts = put_parts(store, &upload, &object, &[0, 1, 2]);
        let e = store.upload_finish(&upload, parts, &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::AlreadyExists, "{e}");
        store.upload_abort(&upload, &go_on).unwrap();
    }
    // Given up.
    let upload = store.upload_begin("other", &go_on).unwrap();
    put_parts(store, &upload, &object, &[0]);
    store.upload_abort(&upload, &go_on).unwrap();
    store.upload_abort(&upload, &go_on).unwrap();
    assert_eq!(store.head("other", &go_on).unwrap_err().kind, ErrorKind::NotFound);
    // Removed, and removed once more.
    store.delete("some/key", &go_on).unwrap();
    store.delete("some/key", &go_on).unwrap();
    assert_eq!(store.list("", &go_on).unwrap(), vec![]);
}

#[test]
fn a_folder() {
    let folder = Folder::new("upload");
    let options = StoreOptions::new(folder.url());
    let store = open(&options);
    check_round_trip(&store, &options, &mut Random::new("a_folder"));
    let left: Vec<_> = std::fs::read_dir(folder.path().join("some")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_real_server() {
    let Some(gateway) = Gateway::start("a_real_server") else { return };
    let options = gateway.options("some/prefix");
    check_round_trip(&open(&options), &options, &mut Random::new("a_real_server"));
}

#[test]
fn a_server_in_memory() {
    let server = Server::start();
    check_round_trip(&open(&server.options()), &server.options(), &mut Random::new("in_memory"));
    assert!(server.state.lock().unwrap().uploads.is_empty(), "uploads were left open");
}

#[test]
fn a_gap_is_refused() {
    let server = Server::start();
    let store = open(&server.options());
    let object = Bytes::from(vec![7; 2 * PART + 1]);
    for order in [&[0, 2][..], &[1, 2], &[0, 0, 1]] {
        let upload = store.upload_begin("a", &go_on).unwrap();
        let parts = put_parts(&store, &upload, &object, order);
        let e = store.upload_finish(&upload, parts, &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::InvalidOptions, "{order:?}: {e}");
        store.upload_abort(&upload, &go_on).unwrap();
    }
    assert_eq!(server.get("a"), None);
}

#[test]
fn parts_are_repeated_one_by_one() {
    let server = Server::start();
    let store = open(&server.options());
    let object = Bytes::from(Random::new("parts_are_repeated").bytes(2 * PART));
    for (n, fault) in [
        Fault::Status(503, "SlowDown"),
        Fault::Status(500, "InternalError"),
        Fault::Reset,
        Fault::ResetAfter,
        Fault::Garbage,
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k{n}");
        server.faults(std::slice::from_ref(&fault));
        let upload = store.upload_begin(&key, &go_on).unwrap();
        server.faults(&[fault.clone(), Fault::None, fault.clone(), fault.clone()]);
        let parts = put_parts(&store, &upload, &object, &[0, 1]);
        store.upload_finish(&upload, parts, &go_on).unwrap();
        assert!(server.get(&key).unwrap() == object, "{fault:?}");
    }
}

#[test]
fn a_completion_whose_answer_is_lost_is_settled_by_looking() {
    let server = Server::start();
    let store = open(&server.options());
    let object = Bytes::from(Random::new("a_completion").bytes(PART + 1));
    for (key, fault) in [("a", Fault::ResetAfter), ("b", Fault::ErrorInSuccess("InternalError"))] {
        let upload = store.upload_begin(key, &go_on).unwrap();
        let parts = put_parts(&store, &upload, &object, &[0, 1]);
        server.faults(&[fault]);
        store.upload_finish(&upload, parts, &go_on).unwrap();
        assert!(server.get(key).unwrap() == object);
    }
    // The answer is lost, and the object there is another's.
    let upload = store.upload_begin("c", &go_on).unwrap();
    let parts = put_parts(&store, &upload, &object, &[0, 1]);
    server.set("c", &[1; PART + 1]);
    server.faults(&[Fault::ResetAfter]);
    let e = store.upload_finish(&upload, parts, &go_on).unwrap_err();
    assert_eq!(e.kind, ErrorKind::AlreadyExists, "{e}");
}

#[test]
fn lasting_faults_and_cancel_end_in_an_error() {
    let server = Server::start();
    let mut options = server.options();
    options.max_retries = 1;
    let store = open(&options);
    let object = Bytes::from(vec![1; PART]);
    let upload = store.upload_begin("a", &go_on).unwrap();
    server.always(Some(Fault::Status(503, "SlowDown")));
    let e = store.upload_part(&upload, 0, 0, object.clone(), &go_on).unwrap_err();
    assert_eq!((e.kind, e.attempts), (ErrorKind::Unreachable, 2), "{e}");
    server.always(Some(Fault::Status(507, "")));
    let e = store.upload_part(&upload, 0, 0, object.clone(), &go_on).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Full, "{e}");
    server.always(Some(Fault::Silence(Duration::from_secs(5))));
    let begun = Instant::now();
    let stop = || begun.elapsed() > Duration::from_millis(80);
    let e = store.upload_part(&upload, 0, 0, object.clone(), &stop).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Cancelled, "{e}");
    assert!(begun.elapsed() < Duration::from_millis(500));
    server.always(None);
    store.upload_abort(&upload, &go_on).unwrap();
    let e = store.upload_part(&upload, 0, 0, object, &go_on).unwrap_err();
    assert_eq!(e.kind, ErrorKind::NotFound, "{e}");
    let e = store.upload_begin("../x", &go_on).unwrap_err();
    assert_eq!(e.kind, ErrorKind::InvalidOptions, "{e}");
}
