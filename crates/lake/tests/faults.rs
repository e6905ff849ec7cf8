//! What a store makes of a server that misbehaves.

#![allow(clippy::single_range_in_vec_init)]

mod common;

use bytes::Bytes;
use common::flaky::{Fault, Server};
use common::{go_on, no_threads, Random};
use firn_lake::{ErrorKind, Store, StoreOptions};
use std::time::{Duration, Instant};

fn open(options: &StoreOptions) -> Store {
    Store::open(options, no_threads).unwrap()
}

fn assert_no_secret(text: &str) {
    for secret in ["AKIDFLAKY", "very-secret"] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[test]
fn reads_survive_passing_faults() {
    let server = Server::start();
    let object = Random::new("reads_survive_passing_faults").bytes(10_000);
    server.set("a", &object);
    let store = open(&server.options());
    for fault in [
        Fault::Status(503, "SlowDown"),
        Fault::Status(500, "InternalError"),
        Fault::Status(429, "TooManyRequests"),
        Fault::HalfBody,
        Fault::ShortBody,
        Fault::HalfBodyUntilClose,
        Fault::Reset,
        Fault::ResetAfter,
        Fault::Garbage,
    ] {
        server.log();
        server.faults(&[fault.clone(), fault.clone()]);
        let got = store.get_range("a", 100..9_000, &go_on).unwrap();
        assert_eq!(&got[..], &object[100..9_000], "{fault:?}");
        // A connection that broke before its answer began may have been retried by the HTTP client as well.
        assert!(server.log().len() >= 3, "{fault:?}");
    }
}

#[test]
fn lasting_faults_end_in_an_error_that_says_which_store_and_key() {
    let server = Server::start();
    server.set("a", &[1; 1000]);
    let mut options = server.options();
    options.max_retries = 1;
    options.request_timeout_ms = 300;
    let store = open(&options);
    for (fault, kind, attempts) in [
        (Fault::Status(503, "SlowDown"), ErrorKind::Unreachable, 2),
        (Fault::HalfBody, ErrorKind::Unreachable, 2),
        (Fault::ShortBody, ErrorKind::Unreachable, 2),
        (Fault::Reset, ErrorKind::Unreachable, 2),
        (Fault::Silence(Duration::from_secs(1)), ErrorKind::Unreachable, 2),
        (Fault::Slow(Duration::from_millis(20)), ErrorKind::Unreachable, 2),
        (Fault::Status(403, "InvalidAccessKeyId"), ErrorKind::PermissionDenied, 1),
        (Fault::Status(403, "SignatureDoesNotMatch"), ErrorKind::PermissionDenied, 1),
        (Fault::Status(400, "ExpiredToken"), ErrorKind::PermissionDenied, 1),
        (Fault::Status(404, "NoSuchKey"), ErrorKind::NotFound, 1),
        (Fault::Status(301, "PermanentRedirect"), ErrorKind::InvalidOptions, 1),
        (Fault::Status(507, ""), ErrorKind::Full, 1),
    ] {
        server.always(Some(fault.clone()));
        let e = store.get_range("a", 0..1000, &go_on).unwrap_err();
        assert_eq!((e.kind, e.attempts), (kind, attempts), "{fault:?}: {e}");
        assert!(e.message.contains("\"a\"") && e.message.contains("s3://bucket/pre"), "{e}");
        assert_no_secret(&format!("{e} {e:?}"));
    }
}

#[test]
fn an_object_shorter_than_asked_is_corrupt() {
    let server = Server::start();
    server.set("a", &[1; 1000]);
    let store = open(&server.options());
    for range in [900..1001, 1000..1001, 5000..6000] {
        let e = store.get_range("a", range, &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
    }
    assert_eq!(store.get_range("a", 7..7, &go_on).unwrap().len(), 0);
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = store.get_range("a", 8..7, &go_on).unwrap_err();
    assert_eq!(backwards.kind, ErrorKind::InvalidOptions);
}

#[test]
fn verify_notices_wrong_bytes() {
    let server = Server::start();
    let object = Random::new("verify_notices_wrong_bytes").bytes(100_000);
    server.set("a", &object);
    let store = open(&server.options());
    let crc = crc32c::crc32c(&object);
    store.verify("a", 100_000, crc, &go_on).unwrap();
    server.faults(&[Fault::None, Fault::WrongBytes]);
    let e = store.verify("a", 100_000, crc, &go_on).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
    let e = store.verify("a", 100_001, crc, &go_on).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
}

#[test]
fn writes_whose_answer_is_lost_are_recognised_as_ours() {
    let server = Server::start();
    let store = open(&server.options());
    server.faults(&[Fault::ResetAfter]);
    store.put("a", Bytes::from_static(b"mine"), &go_on).unwrap();
    assert_eq!(server.get("a").unwrap(), b"mine");
    // Somebody else's object stays as it is, also when our first answer was lost.
    server.set("b", b"other");
    for faults in [vec![], vec![Fault::ResetAfter]] {
        server.faults(&faults);
        let e = store.put("b", Bytes::from_static(b"mine"), &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::AlreadyExists, "{e}");
        assert_eq!(server.get("b").unwrap(), b"other");
    }
}

#[test]
fn servers_without_conditional_writes() {
    let server = Server::start();
    server.state.lock().unwrap().no_conditions = true;
    let big = Random::new("servers_without_conditional_writes").bytes(17 << 20);
    for bytes in [Bytes::from_static(b"small"), Bytes::from(big)] {
        let store = open(&server.options());
        let key = format!("k{}", bytes.len());
        store.put(&key, bytes.clone(), &go_on).unwrap();
        assert_eq!(server.get(&key).unwrap(), bytes);
        let e = store.put(&key, bytes.clone(), &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::AlreadyExists, "{e}");
    }
}

#[test]
fn large_objects_go_in_parts_that_are_retried_one_by_one() {
    let server = Server::start();
    let object = Bytes::from(Random::new("large_objects_go_in_parts").bytes((16 << 20) + 1));
    let store = open(&server.options());
    server.faults(&[Fault::None, Fault::Status(503, "SlowDown"), Fault::Reset, Fault::ResetAfter]);
    store.put("a", object.clone(), &go_on).unwrap();
    assert!(server.get("a").unwrap() == object);
    // The completion fails inside a success, then its answer is lost.
    for fault in [Fault::ErrorInSuccess("InternalError"), Fault::ResetAfter] {
        server.faults(&[Fault::None, Fault::None, Fault::None, Fault::None, fault.clone()]);
        let key = format!("{}", server.log().len());
        store.put(&key, object.clone(), &go_on).unwrap();
        assert!(server.get(&key).unwrap() == object, "{fault:?}");
    }
    let e = store.put("a", object.clone(), &go_on).unwrap_err();
    assert_eq!(e.kind, ErrorKind::AlreadyExists, "{e}");
    let state = server.state.lock().unwrap();
    assert!(state.uploads.is_empty(), "uploads were left open");
}

#[test]
fn cancel_ends_every_call_at_once() {
    let server = Server::start();
    server.set("a", &[7; 1000]);
    let mut options = server.options();
    options.request_timeout_ms = 60_000;
    let store = open(&options);
    let big = Bytes::from(vec![1; 20 << 20]);
    for fault in [
        Fault::Silence(Duration::from_secs(5)),
        Fault::Slow(Duration::from_millis(50)),
        // A pause between two attempts.
        Fault::Status(503, "SlowDown"),
    ] {
        server.always(Some(fault.clone()));
        type Call<'a> = Box<dyn Fn(&dyn Fn() -> bool) -> firn_lake::Result<()> + 'a>;
        let calls: [(&str, Call); 6] = [
            ("get", Box::new(|c| store.get_range("a", 0..1000, c).map(|_| ()))),
            ("put", Box::new(|c| store.put("new", Bytes::from_static(b"x"), c))),
            ("put large", Box::new(|c| store.put("big", big.clone(), c))),
            ("head", Box::new(|c| store.head("a", c).map(|_| ()))),
            ("list", Box::new(|c| store.list("", c).map(|_| ()))),
            ("verify", Box::new(|c| store.verify("a", 1000, 0, c))),
        ];
        for (name, call) in calls {
            if matches!(fault, Fault::Slow(_)) && !["get", "list"].contains(&name) {
                continue;
            }
            let begun = Instant::now();
            let e = call(&|| begun.elapsed() > Duration::from_millis(80)).unwrap_err();
            let took = begun.elapsed();
            assert_eq!(e.kind, ErrorKind::Cancelled, "{name} {fault:?}: {e}");
            assert!(took < Duration::from_millis(400), "{name} {fault:?}: {took:?}");
        }
    }
    server.always(None);
    assert_eq!(store.get_range("a", 0..3, &go_on).unwrap(), [7; 3][..]);
}

#[test]
fn a_cancelled_upload_is_given_up_when_the_store_is_next_used() {
    let server = Server::start();
    server.set("a", b"x");
    let store = open(&server.options());
    server.faults(&[Fault::None, Fault::Silence(Duration::from_secs(3))]);
    // Cancelled when the server knows of the upload, however long that takes, and its first part hangs.
    let begun = || {
        let state = server.state.lock().unwrap();
        !state.uploads.is_empty() && state.faults.is_empty()
    };
    let e = store.put("big", Bytes::from(vec![1; 20 << 20]), &begun).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Cancelled);
    let until = Instant::now() + Duration::from_secs(60);
    while server.state.lock().unwrap().aborted.is_empty() {
        assert!(Instant::now() < until, "the upload was not given up");
        store.head("a", &go_on).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nobody_listens() {
    let mut options = Server::start().options();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    options.endpoint = Some(format!("http://127.0.0.1:{port}"));
    options.max_retries = 1;
    let e = open(&options).head("a", &go_on).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Unreachable, "{e}");
    assert!(e.message.contains("could not connect"), "{e}");
    // A host name that does not resolve.
    options.endpoint = Some("http://no-such-host.invalid:1".into());
    let e = open(&options).head("a", &go_on).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Unreachable, "{e}");
}

#[test]
fn listings_continue_where_a_page_failed() {
    let server = Server::start();
    for n in 0..10 {
        server.set(&format!("d/{n}"), &vec![0; n]);
    }
    server.set("e", b"");
    let mut state = server.state.lock().unwrap();
    state.page = 3;
    drop(state);
    let store = open(&server.options());
    server.faults(&[
        Fault::None,
        Fault::Status(503, "SlowDown"),
        Fault::None,
        Fault::HalfBody,
        Fault::Reset,
    ]);
    let listed = store.list("d/", &go_on).unwrap();
    assert_eq!(listed.len(), 10);
    for (n, (key, size)) in listed.iter().enumerate() {
        assert_eq!((key.as_str(), *size), (format!("d/{n}").as_str(), n as u64));
    }
    assert_eq!(store.list("", &go_on).unwrap().len(), 11);
    assert_eq!(store.list("d/1", &go_on).unwrap(), vec![("d/1".into(), 1)]);
    assert_eq!(store.list("nothing/", &go_on).unwrap(), vec![]);
}

#[test]
fn near_ranges_share_a_request_and_large_ones_are_divided() {
    let server = Server::start();
    let object = Random::new("near_ranges").bytes(20 << 20);
    server.set("a", &object);
    let store = open(&server.options());
    let ranges = [0..10, 100..200, 50..60, (8 << 20)..(17 << 20)];
    let got = store.get_ranges("a", &ranges, &go_on).unwrap();
    for (r, g) in ranges.iter().zip(&got) {
        assert!(g[..] == object[r.start as usize..r.end as usize], "{r:?}");
    }
    assert_eq!(server.log().len(), 1 + 3);
}

#[test]
fn a_storm_of_faults_never_yields_wrong_bytes() {
    let server = Server::start();
    let mut random = Random::new("a_storm_of_faults");
    let object = random.bytes(600_000);
    server.set("a", &object);
    let mut options = server.options();
    options.request_timeout_ms = 200;
    options.max_retries = 3;
    let store = open(&options);
    let (mut right, mut failed) = (0, 0);
    for _ in 0..60 {
        let faults: Vec<Fault> = (0..random.below(6))
            .map(|_| match random.below(9) {
                0 => Fault::Status(503, "SlowDown"),
                1 => Fault::HalfBody,
                2 => Fault::ShortBody,
                3 => Fault::HalfBodyUntilClose,
                4 => Fault::Reset,
                5 => Fault::ResetAfter,
                6 => Fault::Garbage,
                7 => Fault::Silence(Duration::from_millis(300)),
                _ => Fault::None,
            })
            .collect();
        server.faults(&faults);
        let ranges: Vec<_> = (0..1 + random.below(4))
            .map(|_| {
                let start = random.below(600_000);
                start..start + random.below(600_001 - start)
            })
            .collect();
        match store.get_ranges("a", &ranges, &go_on) {
            Ok(got) => {
                right += 1;
                for (r, g) in ranges.iter().zip(&got) {
                    assert!(g[..] == object[r.start as usize..r.end as usize], "{r:?}");
                }
            }
            Err(e) => {
                failed += 1;
                // Other: an answer that could not be understood.
                let expected = [ErrorKind::Unreachable, ErrorKind::Other];
                assert!(expected.contains(&e.kind), "{e}");
            }
        }
    }
    println!("{right} right, {failed} failed");
    assert!(right > 20);
}
