//! Helper threads: few, prepared by the caller, soon gone. Alone in its program, because it counts threads.

mod common;

use common::flaky::Server;
use common::go_on;
use firn_lake::Store;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static STARTED: AtomicUsize = AtomicUsize::new(0);

fn count_start() {
    STARTED.fetch_add(1, Ordering::SeqCst);
}

fn helpers() -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .flatten()
        .filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok())
        .filter(|name| name.trim() == "firn-lake")
        .count()
}

#[test]
fn helper_threads_are_few_and_short_lived() {
    let server = Server::start();
    server.set("a", b"x");
    // An address needs no helper.
    let begun = Instant::now();
    let store = Store::open(&server.options(), count_start).unwrap();
    println!("opening a store took {:?}", begun.elapsed());
    store.head("a", &go_on).unwrap();
    assert_eq!((helpers(), STARTED.load(Ordering::SeqCst)), (0, 0));
    // A host name does.
    let mut options = server.options();
    options.endpoint = Some(server.endpoint.replace("127.0.0.1", "localhost"));
    let store = Store::open(&options, count_start).unwrap();
    for _ in 0..10 {
        store.head("a", &go_on).unwrap();
    }
    let started = STARTED.load(Ordering::SeqCst);
    assert!((1..=2).contains(&started), "{started} started");
    let begun = Instant::now();
    while helpers() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "helpers stay");
        std::thread::sleep(Duration::from_millis(50));
    }
    // And again after they are gone.
    store.head("a", &go_on).unwrap();
}
