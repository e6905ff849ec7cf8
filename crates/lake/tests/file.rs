//! The store in a local folder.

#![allow(clippy::single_range_in_vec_init)]

mod common;

use bytes::Bytes;
use common::{go_on, no_threads, Folder, Random};
use firn_lake::{ErrorKind, Store, StoreOptions};
use std::sync::atomic::{AtomicU32, Ordering};

fn open(folder: &Folder) -> Store {
    Store::open(&StoreOptions::new(folder.url()), no_threads).unwrap()
}

fn leftovers(folder: &std::path::Path) -> usize {
    let mut n = 0;
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            n += leftovers(&entry.path());
        } else if entry.file_name().to_string_lossy().starts_with('.') {
            n += 1;
        }
    }
    n
}

#[test]
fn objects_come_back_as_they_went() {
    let folder = Folder::new("file");
    let store = open(&folder);
    let mut random = Random::new("file objects_come_back_as_they_went");
    for size in [0, 1, 1 << 20, (20 << 20) + 3] {
        let object = Bytes::from(random.bytes(size));
        let key = format!("a/b/{size}.parquet");
        store.put(&key, object.clone(), &go_on).unwrap();
        assert_eq!(store.head(&key, &go_on).unwrap(), size as u64);
        let crc = crc32c::crc32c(&object);
        store.verify(&key, size as u64, crc, &go_on).unwrap();
        let e = store.verify(&key, size as u64, !crc, &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
        let got = store.get_ranges(&key, &[0..size as u64, 0..0], &go_on).unwrap();
        assert!(got[0] == object && got[1].is_empty());
        let e = store.get_range(&key, 0..size as u64 + 1, &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
        let e = store.put(&key, Bytes::from_static(b"other"), &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::AlreadyExists, "{e}");
        store.verify(&key, size as u64, crc, &go_on).unwrap();
    }
    for text in ["first", "second one"] {
        store.replace("a/b/1.parquet", Bytes::from_static(text.as_bytes()), &go_on).unwrap();
        let found = store.get_range("a/b/1.parquet", 0..text.len() as u64, &go_on).unwrap();
        assert_eq!(found, text.as_bytes());
    }
    assert_eq!(leftovers(folder.path()), 0);
    assert_eq!(store.list("a/", &go_on).unwrap().len(), 4);
    assert_eq!(store.list("a/b/1", &go_on).unwrap().len(), 2);
    assert_eq!(store.list("", &go_on).unwrap().len(), 4);
    assert_eq!(store.list("c/", &go_on).unwrap(), vec![]);
}

#[test]
fn a_cancelled_or_crashed_write_leaves_no_object() {
    let folder = Folder::new("file-cancel");
    let store = open(&folder);
    let asked = AtomicU32::new(0);
    let e = store
        .put("a/x", Bytes::from(vec![1; 20 << 20]), &|| asked.fetch_add(1, Ordering::Relaxed) == 9)
        .unwrap_err();
    assert_eq!(e.kind, ErrorKind::Cancelled);
    assert_eq!(leftovers(folder.path()), 0);
    // What a crash leaves behind is not listed and not in the way.
    std::fs::write(folder.path().join("a/.x.1.0000000000000000.tmp"), b"torn").unwrap();
    assert_eq!(store.list("", &go_on).unwrap(), vec![]);
    store.put("a/x", Bytes::from_static(b"whole"), &go_on).unwrap();
    assert_eq!(store.list("", &go_on).unwrap(), vec![("a/x".to_string(), 5)]);
}

#[test]
fn of_many_writers_of_a_key_one_wins() {
    let folder = Folder::new("file-race");
    for round in 0..20 {
        let key = format!("r/{round}");
        let wins: Vec<u8> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4u8)
                .map(|n| {
                    let (folder, key) = (&folder, &key);
                    scope.spawn(move || {
                        let bytes = Bytes::from(vec![n; 100_000]);
                        match open(folder).put(key, bytes, &go_on) {
                            Ok(()) => Some(n),
                            Err(e) => {
                                assert_eq!(e.kind, ErrorKind::AlreadyExists, "{e}");
                                None
                            }
                        }
                    })
                })
                .collect();
            writers.into_iter().filter_map(|w| w.join().unwrap()).collect()
        });
        assert_eq!(wins.len(), 1);
        let bytes = open(&folder).get_range(&key, 0..100_000, &go_on).unwrap();
        assert!(bytes.iter().all(|b| *b == wins[0]));
    }
}

#[test]
fn a_folder_that_is_away_is_not_an_empty_store() {
    let folder = Folder::new("file-away");
    let store = open(&folder);
    let e = store.head("missing", &go_on).unwrap_err();
    assert_eq!(e.kind, ErrorKind::NotFound, "{e}");
    std::fs::remove_dir_all(folder.path()).unwrap();
    for e in [
        store.head("missing", &go_on).unwrap_err(),
        store.list("", &go_on).unwrap_err(),
        store.put("a", Bytes::from_static(b"x"), &go_on).unwrap_err(),
    ] {
        assert_eq!(e.kind, ErrorKind::Unreachable, "{e}");
        assert!(e.message.contains("mounted"), "{e}");
    }
    assert!(!folder.path().exists());
}

#[test]
fn keys_do_not_leave_the_folder() {
    let folder = Folder::new("file-keys");
    let store = open(&folder);
    for key in ["../x", "/etc/passwd", "a/../../x", "", "a//b", ".hidden", "a\0b"] {
        let e = store.put(key, Bytes::from_static(b"x"), &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::InvalidOptions, "{key:?}");
        let e = store.get_range(key, 0..1, &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::InvalidOptions, "{key:?}");
    }
    for prefix in ["..", "../", "/", "a//"] {
        let e = store.list(prefix, &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::InvalidOptions, "{prefix:?}");
    }
    // A folder is not an object.
    store.put("a/b", Bytes::from_static(b"x"), &go_on).unwrap();
    assert_eq!(store.head("a", &go_on).unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn a_store_is_known_by_its_marker() {
    let (folder, other) = (Folder::new("marker"), Folder::new("marker-other"));
    let store = open(&folder);
    assert_eq!(store.marker(&go_on).unwrap(), None);
    let id = store.mark(&go_on).unwrap();
    assert_eq!(store.marker(&go_on).unwrap(), Some(id.clone()));
    assert_eq!(store.mark(&go_on).unwrap(), id, "a second session makes no second marker");
    assert_ne!(open(&other).mark(&go_on).unwrap(), id);
    assert!(store.list("firn/7/", &go_on).unwrap().is_empty());
    for damage in ["", "firn store ", "something of the right length, but no marker"] {
        std::fs::write(folder.path().join(firn_lake::MARKER), damage).unwrap();
        assert_eq!(store.marker(&go_on).unwrap_err().kind, ErrorKind::Corrupt, "{damage:?}");
        assert_eq!(store.mark(&go_on).unwrap_err().kind, ErrorKind::Corrupt);
    }
    std::fs::remove_dir_all(folder.path()).unwrap();
    assert_eq!(store.marker(&go_on).unwrap_err().kind, ErrorKind::Unreachable);
}
