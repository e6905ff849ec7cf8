//! The local cache: against a model, among processes, on damaged files and full disks.

#![allow(clippy::single_range_in_vec_init)]

mod common;

use bytes::Bytes;
use common::flaky::Server;
use common::{go_on, no_threads, Folder, Random};
use firn_lake::{Cache, ErrorKind, Store, StoreOptions};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const MIB: u64 = 1 << 20;

/// An object whose bytes are known without keeping them.
fn object(n: u64, length: u64) -> Vec<u8> {
    (0..length)
        .map(|i| (i.wrapping_mul(31).wrapping_add(i >> 13).wrapping_add(n * 97) % 251) as u8)
        .collect()
}

struct Objects {
    folder: Folder,
    lengths: Vec<u64>,
}

impl Objects {
    fn new(name: &str, lengths: &[u64]) -> Objects {
        let folder = Folder::new(name);
        let objects = Objects { folder, lengths: lengths.to_vec() };
        let store = objects.store();
        for (n, length) in lengths.iter().enumerate() {
            let bytes = Bytes::from(object(n as u64, *length));
            store.put(&format!("o/{n}"), bytes, &go_on).unwrap();
        }
        objects
    }

    fn store(&self) -> Store {
        Store::open(&StoreOptions::new(self.folder.url()), no_threads).unwrap()
    }

    fn read(&self, cache: &Cache, store: &Store, n: usize, ranges: &[Range<u64>]) -> Vec<Bytes> {
        let key = format!("o/{n}");
        cache.read_many(store, "s", &key, self.lengths[n], ranges, &go_on).unwrap()
    }
}

/// The files of pieces, and their sizes.
fn files(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for folder in fs::read_dir(dir.join("v1")).into_iter().flatten().flatten() {
        if folder.path().is_dir() {
            for f in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
                found.push((f.path(), f.metadata().map_or(0, |m| m.len())));
            }
        }
    }
    found.sort();
    found
}

fn held(dir: &Path) -> u64 {
    files(dir).iter().map(|f| f.1).sum()
}

#[test]
fn against_a_model() {
    let mut random = Random::new("against_a_model");
    let lengths = [0, 1, 65_536, 300_000, MIB, MIB + 1, 3 * MIB + 77, 9 * MIB - 5];
    let objects = Objects::new("cache-model", &lengths);
    let whole: Vec<Vec<u8>> = (0..).zip(lengths).map(|(n, l)| object(n, l)).collect();
    let folder = Folder::new("cache-model-dir");
    let store = objects.store();
    let most = 5 * MIB;
    let open = || Cache::open(folder.path(), most).unwrap();
    let mut caches = [open(), open()];
    let (mut damaged, mut noticed, mut hits) = (0, 0, 0);
    // Pieces written since the folder was removed: what is read from memory does not make it again.
    let mut kept = 0;
    for step in 0..1500 {
        match random.below(20) {
            0 => {
                let n = random.usize_below(2);
                let stats = caches[n].stats();
                hits += stats.hits;
                noticed += stats.damaged;
                caches[n] = open();
            }
            1..=4 => {
                let all = files(folder.path());
                let chosen = all.get(random.usize_below(all.len()));
                if let Some((path, length)) = chosen.filter(|(_, length)| *length > 0) {
                    let file = File::options().read(true).write(true).open(path).unwrap();
                    match random.below(5) {
                        0 => file.set_len(random.below(*length)).unwrap(),
                        1 => drop(fs::remove_file(path)),
                        2 if all[0].1 == *length => drop(fs::copy(&all[0].0, path).unwrap()),
                        3 => file.write_all_at(b"garbage", random.below(4096)).unwrap(),
                        _ => {
                            let at = random.below(*length);
                            let mut b = [0];
                            file.read_exact_at(&mut b, at).unwrap();
                            file.write_all_at(&[!b[0]], at).unwrap();
                        }
                    }
                    damaged += 1;
                }
            }
            5 if random.below(4) == 0 => {
                drop(fs::write(folder.path().join("v1/usage"), vec![7; random.usize_below(40)]))
            }
            6 if random.below(20) == 0 => match fs::remove_dir_all(folder.path().join("v1")) {
                // Nothing was written since it was removed before.
                Err(e) if e.kind() == io::ErrorKind::NotFound => assert_eq!(kept, 0, "step {step}"),
                removed => {
                    removed.unwrap();
                    kept = 0;
                }
            },
            _ => {
                let n = random.below(lengths.len() as u64) as usize;
                let ranges: Vec<Range<u64>> = (0..1 + random.below(3))
                    .map(|_| {
                        let start = random.below(lengths[n] + 1);
                        let most = match random.below(3) {
                            0 => 100,
                            1 => 200_000,
                            _ => u64::MAX,
                        };
                        start..start + random.below((lengths[n] - start + 1).min(most))
                    })
                    .collect();
                let cache = &caches[random.below(2) as usize];
                let before = cache.stats();
                let got = objects.read(cache, &store, n, &ranges);
                for (r, g) in ranges.iter().zip(&got) {
                    let expected = &whole[n][r.start as usize..r.end as usize];
                    assert!(g[..] == *expected, "step {step}: object {n} {r:?}");
                }
                let after = cache.stats();
                kept += (after.misses - before.misses) - (after.not_kept - before.not_kept);
            }
        }
        assert!(held(folder.path()) <= most, "step {step}");
    }
    println!("{damaged} files damaged, {noticed} noticed, {hits} hits");
    assert!(caches[0].stats().bytes <= most);
    assert!(damaged > 50 && hits > 200 && noticed > 20);
}

#[test]
fn what_is_cached_needs_no_store() {
    let server = Server::start();
    let bytes = object(1, 3 * MIB + 5);
    server.set("a", &bytes);
    let store = Store::open(&server.options(), no_threads).unwrap();
    let folder = Folder::new("cache-warm");
    let cache = Cache::open(folder.path(), 100 * MIB).unwrap();
    let length = bytes.len() as u64;
    let read = |cache: &Cache, r: Range<u64>| {
        let got = cache.read(&store, "s", "a", length, r.clone(), &go_on).unwrap();
        assert!(got[..] == bytes[r.start as usize..r.end as usize], "{r:?}");
    };
    read(&cache, MIB - 10..MIB + 10);
    assert_eq!(server.log().len(), 1, "two neighbouring pieces share a request");
    assert_eq!((cache.stats().misses, cache.stats().hits), (2, 0));
    read(&cache, 0..2 * MIB);
    read(&cache, 5..9);
    assert_eq!(server.log().len(), 0);
    read(&cache, 0..length);
    assert_eq!(cache.stats().misses, 4);
    assert_eq!(cache.stats().pieces, 4);
    assert_eq!(cache.stats().bytes, length + 4 * 4096);
    assert_eq!(held(folder.path()), length + 4 * 4096);
    server.log();
    // Another process finds it too.
    let other = Cache::open(folder.path(), 100 * MIB).unwrap();
    read(&other, 0..length);
    assert_eq!(server.log().len(), 0);
    // Another store's object of the same name is another object.
    cache.read(&store, "t", "a", length, 0..1, &go_on).unwrap();
    assert_eq!(server.log().len(), 1);
    // Until told to forget.
    cache.forget("s", "a", length);
    assert_eq!(cache.stats().pieces, 1);
    read(&cache, 0..9);
    assert_eq!(server.log().len(), 1);
}

#[test]
fn errors_of_the_store_are_passed_on() {
    let server = Server::start();
    server.set("a", &object(1, 100));
    let mut options = server.options();
    options.max_retries = 0;
    let store = Store::open(&options, no_threads).unwrap();
    let folder = Folder::new("cache-errors");
    let cache = Cache::open(folder.path(), 100 * MIB).unwrap();
    let read = |key: &str, length, range| cache.read(&store, "s", key, length, range, &go_on);
    assert_eq!(read("b", 100, 0..1).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(read("a", 101, 0..1).unwrap_err().kind, ErrorKind::Corrupt);
    assert_eq!(read("a", 100, 0..101).unwrap_err().kind, ErrorKind::InvalidOptions);
    let e = cache.read(&store, "s", "a", 100, 0..1, &|| true).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Cancelled);
    assert_eq!(files(folder.path()), vec![]);
    assert_eq!(read("a", 100, 10..11).unwrap()[..], object(1, 100)[10..11]);
}

#[test]
fn the_least_recently_used_goes_first() {
    let objects = Objects::new("cache-lru", &[MIB; 8]);
    let store = objects.store();
    let folder = Folder::new("cache-lru-dir");
    // Room for four pieces.
    let cache = Cache::open(folder.path(), 4 * (MIB + 4096) + 1000).unwrap();
    let read = |n| drop(objects.read(&cache, &store, n, &[0..MIB]));
    for n in 0..4 {
        read(n);
    }
    // All are old, and 0 and 2 are used again.
    let old = SystemTime::now() - Duration::from_secs(3600);
    for (path, _) in files(folder.path()) {
        File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
    }
    read(0);
    read(2);
    read(4);
    read(5);
    let misses = cache.stats().misses;
    read(0);
    read(2);
    assert_eq!(cache.stats().misses, misses, "used pieces were evicted");
    read(1);
    assert_eq!(cache.stats().misses, misses + 1);
    assert!(held(folder.path()) <= 4 * (MIB + 4096) + 1000);
    // Opened with less room, it shrinks.
    Cache::open(folder.path(), 2 * (MIB + 4096)).unwrap();
    assert!(held(folder.path()) <= 2 * (MIB + 4096));
}

#[test]
fn a_cache_without_room_still_reads() {
    let objects = Objects::new("cache-none", &[3 * MIB]);
    let store = objects.store();
    let whole = object(0, 3 * MIB);
    let folder = Folder::new("cache-none-dir");
    for most in [0, 1, MIB] {
        let cache = Cache::open(folder.path(), most).unwrap();
        let got = objects.read(&cache, &store, 0, &[5..2 * MIB, 7..7]);
        assert!(got[0][..] == whole[5..2 * MIB as usize] && got[1].is_empty());
        assert_eq!(files(folder.path()), vec![]);
        assert_eq!(cache.stats().bytes, 0);
    }
}

#[test]
fn a_folder_that_cannot_be_used_still_reads() {
    let objects = Objects::new("cache-broken", &[3 * MIB]);
    let store = objects.store();
    let whole = object(0, 3 * MIB);
    let folder = Folder::new("cache-broken-dir");
    let cache = Cache::open(folder.path(), 100 * MIB).unwrap();
    for n in 0..256 {
        fs::write(folder.path().join(format!("v1/{n:02x}")), b"in the way").unwrap();
    }
    let got = objects.read(&cache, &store, 0, &[0..3 * MIB]);
    assert!(got[0][..] == whole[..]);
    let stats = cache.stats();
    assert_eq!((stats.not_kept, stats.bytes, stats.pieces), (3, 0, 0));
    // The whole folder is a file: opening says so, an open cache goes on.
    fs::remove_dir_all(folder.path().join("v1")).unwrap();
    fs::write(folder.path().join("v1"), b"in the way").unwrap();
    assert!(Cache::open(folder.path(), 100 * MIB).is_err());
    let got = objects.read(&cache, &store, 0, &[5..3 * MIB]);
    assert!(got[0][..] == whole[5..]);
}

#[test]
fn a_full_disk() {
    let mount = Folder::new("cache-full");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"])
        .arg(mount.path())
        .stderr(Stdio::null())
        .status();
    if !mounted.is_ok_and(|s| s.success()) {
        println!("a_full_disk: skipped, a tmpfs cannot be mounted here");
        return;
    }
    struct Unmount<'a>(&'a Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(self.0).status();
        }
    }
    let _unmount = Unmount(mount.path());
    let objects = Objects::new("cache-full-store", &[6 * MIB]);
    let store = objects.store();
    let whole = object(0, 6 * MIB);
    let cache = Cache::open(mount.path(), 100 * MIB).unwrap();
    for _ in 0..3 {
        let got = objects.read(&cache, &store, 0, &[1..6 * MIB]);
        assert!(got[0][..] == whole[1..]);
    }
    let stats = cache.stats();
    println!("{stats:?}");
    assert!(stats.not_kept >= 3 && stats.hits >= 2, "{stats:?}");
    assert_eq!(stats.bytes, held(mount.path()));
    assert!(files(mount.path()).iter().all(|f| f.1 == MIB + 4096));
    // A disk that is full before the cache is opened.
    fs::remove_dir_all(mount.path().join("v1")).unwrap();
    let filler = mount.path().join("filler");
    let _ = fs::write(&filler, vec![0; 4 << 20]);
    match Cache::open(mount.path(), 100 * MIB) {
        Ok(cache) => {
            let got = objects.read(&cache, &store, 0, &[1..6 * MIB]);
            assert!(got[0][..] == whole[1..]);
        }
        Err(e) => assert_eq!(e.kind, ErrorKind::Full, "{e}"),
    }
}

#[test]
fn threads_share_a_cache() {
    let seed = Random::new("threads_share_a_cache").next();
    let objects = Objects::new("cache-threads", &[5 * MIB + 3, 4 * MIB]);
    let whole = [object(0, 5 * MIB + 3), object(1, 4 * MIB)];
    let folder = Folder::new("cache-threads-dir");
    let most = 4 * MIB;
    let cache = Cache::open(folder.path(), most).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (cache, objects, whole) = (&cache, &objects, &whole);
            scope.spawn(move || {
                let mut random = Random::seeded(seed + t);
                let store = objects.store();
                for _ in 0..150 {
                    let n = random.usize_below(2);
                    let start = random.below(objects.lengths[n]);
                    let r = start..start + random.below(objects.lengths[n] - start) + 1;
                    let got = objects.read(cache, &store, n, std::slice::from_ref(&r));
                    assert!(got[0][..] == whole[n][r.start as usize..r.end as usize]);
                }
            });
        }
    });
    assert!(held(folder.path()) <= most);
}

const CHILD: &str = "FIRN_CACHE_CHILD";

/// What the processes of the next test run; by itself it does nothing.
#[test]
fn child() {
    let Some(job) = std::env::var_os(CHILD) else {
        return;
    };
    let job = job.into_string().unwrap();
    let mut words = job.split(',');
    let mut word = || words.next().unwrap().to_string();
    let (store, dir, most, seed) = (word(), word(), word(), word());
    let store = Store::open(&StoreOptions::new(store), no_threads).unwrap();
    let cache = Cache::open(Path::new(&dir), most.parse().unwrap()).unwrap();
    let mut random = Random::seeded(seed.parse().unwrap());
    let lengths = [5 * MIB + 3, 4 * MIB];
    let whole = [object(0, lengths[0]), object(1, lengths[1])];
    for _ in 0..200 {
        let n = random.usize_below(2);
        let start = random.below(lengths[n]);
        let r = start..start + random.below(lengths[n] - start) + 1;
        let got =
            cache.read(&store, "s", &format!("o/{n}"), lengths[n], r.clone(), &go_on).unwrap();
        assert!(got[..] == whole[n][r.start as usize..r.end as usize]);
    }
    println!("{:?}", cache.stats());
}

#[test]
fn processes_share_a_cache_and_some_are_killed() {
    let mut random = Random::new("processes_share_a_cache");
    let objects = Objects::new("cache-processes", &[5 * MIB + 3, 4 * MIB]);
    let folder = Folder::new("cache-processes-dir");
    let most = 5 * MIB;
    let start = |seed: u64| {
        let job = format!("{},{},{most},{seed}", objects.folder.url(), folder.path().display());
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, job)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let kept: Vec<_> = (0..3).map(|_| start(random.next())).collect();
    let mut worst = 0;
    for _ in 0..10 {
        let mut victim = start(random.next());
        let until = Instant::now() + Duration::from_millis(20 + random.below(60));
        while Instant::now() < until {
            worst = worst.max(held(folder.path()));
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    for child in kept {
        let out = child.wait_with_output().unwrap();
        print!("{}", String::from_utf8_lossy(&out.stdout));
        assert!(out.status.success());
    }
    println!("at most {worst} of {most} bytes were seen in the folder");
    // Listing a folder is no snapshot: of each of the four processes, a piece that it evicts and one
    // that it writes meanwhile may both be counted.
    assert!(worst <= most + 4 * MIB);
    assert!(held(folder.path()) <= most + MIB);
    // What the killed ones left does no harm.
    let cache = Cache::open(folder.path(), most).unwrap();
    let store = objects.store();
    let got = objects.read(&cache, &store, 0, &[0..5 * MIB]);
    assert!(got[0][..] == object(0, 5 * MIB + 3)[..5 * MIB as usize]);
}

#[test]
fn leftovers_of_killed_processes_are_removed_in_time() {
    let objects = Objects::new("cache-leftovers", &[4 * MIB]);
    let store = objects.store();
    let folder = Folder::new("cache-leftovers-dir");
    let most = 2 * (MIB + 4096);
    let cache = Cache::open(folder.path(), most).unwrap();
    objects.read(&cache, &store, 0, &[0..MIB]);
    let (piece, _) = files(folder.path()).remove(0);
    let leftover = piece.with_file_name(".1.0.0000000000000000.tmp");
    fs::write(&leftover, vec![0; 1000]).unwrap();
    let old = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(&leftover).unwrap().set_modified(old).unwrap();
    objects.read(&cache, &store, 0, &[0..4 * MIB]);
    assert!(!leftover.exists());
    assert!(held(folder.path()) <= most);
}
