//! Against a real S3 server. Runs when FIRN_VERSITYGW names the versitygw program (see
//! scripts/install-versitygw.sh), and says that it is skipped otherwise.

#![allow(clippy::single_range_in_vec_init)]

mod common;

use bytes::Bytes;
use common::gateway::{Gateway, BUCKET};
use common::{go_on, no_threads, Random};
use firn_lake::{object_key, random_nonce, ErrorKind, Store, StoreOptions};

fn open(options: &StoreOptions) -> Store {
    Store::open(options, no_threads).unwrap()
}

#[test]
fn objects_come_back_as_they_went() {
    let Some(gateway) = Gateway::start("objects_come_back_as_they_went") else {
        return;
    };
    let mut random = Random::new("objects_come_back_as_they_went");
    let store = open(&gateway.options("some/prefix"));
    // Empty, small, and in parts (with a last part of one byte).
    for size in [0, 1, 5_000, 8 << 20, (16 << 20) + 1, 40 << 20] {
        let object = Bytes::from(random.bytes(size));
        let key = object_key(1, 1, 5, 16384, 0x8000_0000, 1, random_nonce());
        store.put(&key, object.clone(), &go_on).unwrap();
        assert_eq!(store.head(&key, &go_on).unwrap(), size as u64);
        let crc = crc32c::crc32c(&object);
        store.verify(&key, size as u64, crc, &go_on).unwrap();
        let e = store.verify(&key, size as u64, crc ^ 1, &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
        let ranges: Vec<_> = (0..20)
            .map(|_| {
                let a = random.below(size as u64 + 1);
                a..a + random.below(size as u64 + 1 - a)
            })
            .collect();
        let got = store.get_ranges(&key, &ranges, &go_on).unwrap();
        for (r, g) in ranges.iter().zip(&got) {
            assert!(g[..] == object[r.start as usize..r.end as usize], "{size} {r:?}");
        }
        // Never overwritten.
        let e = store.put(&key, Bytes::from(random.bytes(size)), &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::AlreadyExists, "{size}: {e}");
        store.verify(&key, size as u64, crc, &go_on).unwrap();
        let e = store.get_range(&key, size as u64..size as u64 + 1, &go_on).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
    }
    for text in ["first", "second one"] {
        store.replace("marker.json", Bytes::from_static(text.as_bytes()), &go_on).unwrap();
        assert_eq!(store.head("marker.json", &go_on).unwrap(), text.len() as u64);
    }
    assert_eq!(store.list("firn/1/", &go_on).unwrap().len(), 6);
    // The prefix is a wall: the same key elsewhere is another object.
    assert_eq!(open(&gateway.options("some")).list("firn/", &go_on).unwrap(), vec![]);
    assert_eq!(open(&gateway.options("")).list("some/prefix/firn/", &go_on).unwrap().len(), 6);
}

#[test]
fn what_is_not_there() {
    let Some(gateway) = Gateway::start("what_is_not_there") else {
        return;
    };
    let store = open(&gateway.options("p"));
    for e in [
        store.head("missing", &go_on).unwrap_err(),
        store.get_range("missing", 0..1, &go_on).unwrap_err(),
        store.verify("missing", 1, 0, &go_on).unwrap_err(),
    ] {
        assert_eq!(e.kind, ErrorKind::NotFound, "{e}");
    }
    let mut options = gateway.options("p");
    options.url = "s3://no-such-bucket".into();
    let store = open(&options);
    for e in [
        store.head("missing", &go_on).unwrap_err(),
        store.put("new", Bytes::from_static(b"x"), &go_on).unwrap_err(),
        store.put("big", Bytes::from(vec![0; 20 << 20]), &go_on).unwrap_err(),
        store.list("", &go_on).unwrap_err(),
    ] {
        assert_eq!(e.kind, ErrorKind::NotFound, "{e}");
        assert!(e.message.contains("no-such-bucket"), "{e}");
    }
}

#[test]
fn wrong_credentials() {
    let Some(gateway) = Gateway::start("wrong_credentials") else {
        return;
    };
    open(&gateway.options("p")).put("a", Bytes::from_static(b"x"), &go_on).unwrap();
    let mut wrong_secret = gateway.options("p");
    wrong_secret.secret_access_key = Some("not-the-secret".into());
    let mut wrong_user = gateway.options("p");
    wrong_user.access_key_id = Some("nobody-we-know".into());
    let mut unsigned = gateway.options("p");
    (unsigned.access_key_id, unsigned.secret_access_key) = (None, None);
    for options in [wrong_secret, wrong_user, unsigned] {
        let store = open(&options);
        for e in [
            store.head("a", &go_on).unwrap_err(),
            store.get_range("a", 0..1, &go_on).unwrap_err(),
            store.put("new", Bytes::from_static(b"x"), &go_on).unwrap_err(),
            store.put("big", Bytes::from(vec![0; 20 << 20]), &go_on).unwrap_err(),
            store.list("", &go_on).unwrap_err(),
            store.verify("a", 1, 0, &go_on).unwrap_err(),
        ] {
            assert_eq!(e.kind, ErrorKind::PermissionDenied, "{e}");
            assert_eq!(e.attempts, 1, "{e}");
            for secret in ["not-the-secret", "nobody-we-know", "firn-test-secret"] {
                assert!(!format!("{e:?}").contains(secret), "{e:?}");
            }
        }
    }
    let store = open(&gateway.options("p"));
    assert_eq!(store.list("", &go_on).unwrap(), vec![("a".to_string(), 1)]);
}

#[test]
fn long_listings() {
    let Some(gateway) = Gateway::start("long_listings") else {
        return;
    };
    let store = open(&gateway.options(""));
    for n in 0..1203 {
        let key = format!("t/{}/{n:05}.parquet", n % 3);
        store.put(&key, Bytes::from(vec![0; n % 7]), &go_on).unwrap();
    }
    let all = store.list("t/", &go_on).unwrap();
    assert_eq!(all.len(), 1203);
    assert!(all.windows(2).all(|w| w[0].0 < w[1].0));
    assert_eq!(all[1], ("t/0/00003.parquet".to_string(), 3));
    assert_eq!(store.list("t/1/", &go_on).unwrap().len(), 401);
    assert_eq!(store.list("t/1/0000", &go_on).unwrap().len(), 3);
    assert_eq!(store.url(), format!("s3://{BUCKET}/"));
}
