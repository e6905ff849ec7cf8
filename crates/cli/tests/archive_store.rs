//! Archives in an object store, also one that fails now and then; and archives with a backup's manifest.

#[allow(dead_code)]
#[path = "../../lake/tests/common/flaky.rs"]
mod flaky;
#[path = "archives/manifest.rs"]
mod manifest;
#[path = "archives/read.rs"]
mod read;

use firn_cli::archive::{read_error, Archive};
use firn_cli::error::ErrorKind;
use firn_cli::store::StoreSettings;
use firn_cli::Error;
use flaky::{Fault, Server};
use manifest::{with_manifest, Files};
use read::{contents, expected, files, path, whole_archives};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn settings(server: &Server) -> StoreSettings {
    let set = |name: &str, value: &str| (name.to_string(), value.to_string());
    StoreSettings {
        options: vec![
            set("endpoint", &server.endpoint),
            set("access_key_id", "AKIDFLAKY"),
            set("secret_access_key", "very-secret-value"),
            set("request_timeout_ms", "2000"),
            set("max_retries", "4"),
        ],
        cancelled: None,
    }
}

/// Puts an archive into the store and says where it is.
fn put(server: &Server, archive: &Path) -> String {
    let name: Vec<_> = archive.iter().rev().take(2).map(|p| p.to_str().unwrap()).collect();
    let name = format!("{}/{}", name[1], name[0]);
    if archive.is_file() {
        server.set(&name, &std::fs::read(archive).unwrap());
    } else {
        put_files(server, &name, &files(archive));
    }
    format!("s3://bucket/pre/{name}")
}

fn put_files(server: &Server, name: &str, files: &Files) {
    for (file, bytes) in files {
        server.set(&format!("{name}/{}", String::from_utf8_lossy(file)), bytes);
    }
}

/// Text of a COPY that does not compress, with its end mark.
fn long_text(bytes: usize) -> Vec<u8> {
    let mut state = 7u32;
    let mut text = String::with_capacity(bytes + 100);
    while text.len() < bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        text.push_str(&format!("{state}\t{:x}\n", state.wrapping_mul(0x9e37_79b9)));
    }
    text.push_str("\\.\n\n\n");
    text.into_bytes()
}

/// The place of the data of table `t`.
fn table(archive: &Archive) -> usize {
    let is_t = |e: &firn_cli::archive::Entry| e.desc == b"TABLE DATA" && e.tag == b"t";
    archive.toc().entries().position(|e| is_t(&e)).unwrap()
}

/// An archive in directory format in which `t` has much data.
fn large_directory(bytes: usize) -> (Files, Vec<u8>) {
    let mut files = files(&path("15/none.dir"));
    let archive = Archive::from_files(files.clone()).unwrap();
    let id = archive.toc().entry(table(&archive)).dump_id;
    let mut text = long_text(bytes);
    files.insert(format!("{id}.dat").into_bytes(), text.clone().into());
    text.truncate(text.len() - 5);
    (files, text)
}

/// An archive in custom format in which `t` has much data.
fn large_custom(bytes: usize) -> (Vec<u8>, Vec<u8>) {
    let path = path("15/none.dump");
    let archive = Archive::open(path.to_str().unwrap()).unwrap();
    let id = archive.toc().entry(table(&archive)).dump_id;
    let mut dump = libpgdump::load(path).unwrap();
    let mut text = long_text(bytes);
    dump.set_entry_data(id, text.clone()).unwrap();
    let file = std::env::temp_dir().join(format!("firn-archive-{}.dump", std::process::id()));
    dump.save(&file).unwrap();
    let archive = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    text.truncate(text.len() - 5);
    (archive, text)
}

fn read_table(archive: &Archive) -> Result<Vec<u8>, Error> {
    let mut found = Vec::new();
    archive.data(table(archive))?.read_to_end(&mut found).map_err(read_error)?;
    Ok(found)
}

/// Threads that fetch ahead.
fn fetching() -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .flatten()
        .filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok())
        .filter(|name| name.trim() == "firn-read")
        .count()
}

#[test]
fn every_archive_holds_the_same() {
    let server = Server::start();
    for path in whole_archives() {
        let location = put(&server, &path);
        let archive = Archive::open_with(&location, &settings(&server)).unwrap();
        assert!(contents(&archive).unwrap() == expected(), "{location}");
        let local = Archive::open(path.to_str().unwrap()).unwrap();
        assert_eq!(archive.fingerprint(), local.fingerprint());
        contents(&local).unwrap();
        for place in 0..local.toc().len() {
            assert_eq!(archive.data_size(place), local.data_size(place));
        }
    }
    // With a slash at its end it can only be a directory.
    let location = format!("{}/", put(&server, &path("18/zstd.dir")));
    assert!(Archive::open_with(&location, &settings(&server)).is_ok());
    let location = format!("{}/", put(&server, &path("18/zstd.dump")));
    assert!(Archive::open_with(&location, &settings(&server)).is_err());
}

#[test]
fn one_listing_serves_all_files() {
    let server = Server::start();
    let location = put(&server, &path("18/gzip.dir"));
    let archive = Archive::open_with(&location, &settings(&server)).unwrap();
    let log = server.log();
    assert!(log.len() <= 8, "{log:?}");
    contents(&archive).unwrap();
    let log = server.log();
    // The listing, five tables, two lists of large objects, three of these; and nothing asked twice.
    assert!(log.len() <= 11, "{log:?}");
}

#[test]
fn large_data_comes_in_ranges() {
    const SIZE: usize = 15 << 20;
    let server = Server::start();
    let (files, text) = large_directory(SIZE);
    put_files(&server, "large", &files);
    let (custom, same) = large_custom(SIZE);
    assert!(text == same);
    server.set("large.dump", &custom);
    for location in ["s3://bucket/pre/large", "s3://bucket/pre/large.dump"] {
        let archive = Archive::open_with(location, &settings(&server)).unwrap();
        server.log();
        assert!(read_table(&archive).unwrap() == text, "{location}");
        let ranges: Vec<(usize, usize)> = server
            .log()
            .iter()
            .filter_map(|line| line.split_once("bytes=")?.1.split_once('-'))
            .map(|(from, to)| (from.parse().unwrap(), to.parse().unwrap()))
            .collect();
        assert!(ranges.len() > SIZE >> 22, "{ranges:?}");
        let asked: usize = ranges.iter().map(|(from, to)| to + 1 - from).sum();
        let largest = ranges.iter().map(|(from, to)| to + 1 - from).max().unwrap();
        assert!(largest <= 4 << 20, "{ranges:?}");
        // No byte twice; of a custom archive what follows may have begun to come.
        assert!(asked < text.len() + (1 << 20), "{ranges:?}");
    }
    // Whoever stops in the middle leaves nothing behind.
    let archive = Archive::open_with("s3://bucket/pre/large", &settings(&server)).unwrap();
    let mut readers: Vec<_> = (0..4).map(|_| archive.data(table(&archive)).unwrap()).collect();
    for reader in &mut readers {
        let mut some = vec![0; 100_000];
        reader.read_exact(&mut some).unwrap();
        assert!(some == text[..100_000]);
    }
    drop(readers);
    let begun = Instant::now();
    while fetching() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "threads stay");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_store_that_fails_now_and_then() {
    let server = Server::start();
    let (files, text) = large_directory(9 << 20);
    put_files(&server, "large", &files);
    let faults = [
        Fault::HalfBody,
        Fault::Status(503, "SlowDown"),
        Fault::None,
        Fault::Reset,
        Fault::ShortBody,
        Fault::Status(500, "InternalError"),
    ];
    server.faults(&faults);
    let archive = Archive::open_with("s3://bucket/pre/large", &settings(&server)).unwrap();
    server.faults(&faults);
    assert!(read_table(&archive).unwrap() == text);
    // One that goes on failing is an error that says what could not be read.
    let mut reader = archive.data(table(&archive)).unwrap();
    let mut some = [0; 1000];
    reader.read_exact(&mut some).unwrap();
    server.always(Some(Fault::Status(403, "AccessDenied")));
    let mut rest = Vec::new();
    let e = read_error(reader.read_to_end(&mut rest).unwrap_err());
    assert_eq!(e.kind, ErrorKind::Storage);
    let said = e.to_string();
    assert!(said.contains("AccessDenied") && said.contains("AWS_ACCESS_KEY_ID"), "{said}");
    assert!(said.contains("TABLE DATA") && said.contains(".dat"), "{said}");
    assert!(!said.contains("very-secret"), "{said}");
    // It goes on being one.
    assert!(reader.read(&mut some).is_err());
    let e = Archive::open_with("s3://bucket/pre/large", &settings(&server)).err().unwrap();
    assert_eq!(e.kind, ErrorKind::Storage);
}

#[test]
fn what_is_not_there() {
    let server = Server::start();
    server.set("other", b"--\n-- a script");
    let e = Archive::open_with("s3://bucket/pre/nothing", &settings(&server)).err().unwrap();
    assert!(e.message.contains("toc.dat") && e.hint.is_some(), "{e}");
    // Nobody wants to wait for a listing of all that is not an archive. It would be of no key.
    assert!(!server.log().iter().any(|line| line.starts_with("GET  ")));
    let e = Archive::open_with("s3://bucket/pre/other", &settings(&server)).err().unwrap();
    assert!(e.message.contains("script"), "{e}");
    let e = Archive::open_with("s3://bucket/a:b/other", &settings(&server)).err().unwrap();
    assert_eq!(e.kind, ErrorKind::Usage, "{e}");
    // An object that is shorter than it was.
    let location = put(&server, &path("15/none.dump"));
    let archive = Archive::open_with(&location, &settings(&server)).unwrap();
    let bytes = std::fs::read(path("15/none.dump")).unwrap();
    server.set("15/none.dump", &bytes[..bytes.len() - 100]);
    assert!(contents(&archive).is_err());
}

#[test]
fn half_a_backup_is_no_archive() {
    let whole = files(&path("18/gzip.dir"));
    let mut half = whole.clone();
    half.insert(b"unfinished.json".to_vec(), b"{}".to_vec().into());
    let server = Server::start();
    put_files(&server, "half", &half);
    let folder = std::env::temp_dir().join(format!("firn-half-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    for (name, bytes) in &half {
        std::fs::write(folder.join(std::str::from_utf8(name).unwrap()), bytes).unwrap();
    }
    let local = Archive::open(folder.to_str().unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    let remote = Archive::open_with("s3://bucket/pre/half", &settings(&server));
    half.remove(&b"toc.dat"[..]);
    put_files(&server, "less", &half);
    let less = Archive::open_with("s3://bucket/pre/less", &settings(&server));
    half.insert(b"toc.dat".to_vec(), whole[&b"toc.dat"[..]].clone());
    for opened in [local, remote, less, Archive::from_files(half.clone())] {
        let e = opened.err().unwrap();
        assert_eq!(e.kind, ErrorKind::Archive, "{e}");
        assert!(e.message.contains("not finished"), "{e}");
    }
    // Where nothing may be removed the marker stays, beside the manifest.
    let finished = with_manifest(whole);
    let mut both = finished.clone();
    both.insert(b"unfinished.json".to_vec(), b"{}".to_vec().into());
    assert!(contents(&Archive::from_files(both).unwrap()).unwrap() == expected());
    // A store that denies a manifest and lists it. Before that it is asked whether the prefix is an object.
    put_files(&server, "whole", &finished);
    let gone = Fault::Status(404, "NoSuchKey");
    server.faults(&[Fault::None, Fault::None, gone.clone(), gone]);
    let e = Archive::open_with("s3://bucket/pre/whole", &settings(&server)).err().unwrap();
    assert!(e.message.contains("manifest"), "{e}");
    Archive::open_with("s3://bucket/pre/whole", &settings(&server)).unwrap();
}

/// What is planned by the sizes of files must not depend on whether a store could list them.
#[test]
fn a_listing_that_fails_is_an_error() {
    let server = Server::start();
    let location = put(&server, &path("18/gzip.dir"));
    // Whether it is an object, and whether it has a manifest: two requests each. One for the table of contents.
    let mut faults = vec![Fault::None; 5];
    faults.push(Fault::Status(403, "AccessDenied"));
    server.faults(&faults);
    let e = Archive::open_with(&location, &settings(&server)).err().unwrap();
    assert!(e.message.contains("list") && e.message.contains("AccessDenied"), "{e}");
    assert!(Archive::open_with(&location, &settings(&server)).is_ok());
}

#[test]
fn the_user_may_stop_it() {
    let server = Server::start();
    let location = put(&server, &path("15/none.dump"));
    let stop = Arc::new(AtomicBool::new(false));
    let mut settings = settings(&server);
    let asked = stop.clone();
    settings.cancelled = Some(Arc::new(move || asked.load(Ordering::Relaxed)));
    let archive = Archive::open_with(&location, &settings).unwrap();
    server.always(Some(Fault::Silence(Duration::from_secs(30))));
    let stopper = stop.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        stopper.store(true, Ordering::Relaxed);
    });
    let begun = Instant::now();
    let e = contents(&archive).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Cancelled, "{e}");
    assert!(begun.elapsed() < Duration::from_secs(2));
}

fn refused(files: Files) -> Error {
    match Archive::from_files(files).and_then(|archive| contents(&archive).map(|_| ())) {
        Err(e) => e,
        Ok(()) => panic!("the archive was read"),
    }
}

#[test]
fn a_manifest_is_obeyed() {
    for name in ["15/none.dir", "18/lz4.dir", "18/zstd.dir", "18/gzip.dir"] {
        let whole = with_manifest(files(&path(name)));
        let archive = Archive::from_files(whole.clone()).unwrap();
        assert!(contents(&archive).unwrap() == expected(), "{name}");
        for file in whole.keys() {
            let shown = String::from_utf8_lossy(file).into_owned();
            let size = whole[file].len();
            for at in [0, size / 3, size.saturating_sub(1)] {
                let mut damaged = whole.clone();
                let mut bytes = whole[file].to_vec();
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 0x10;
                } else {
                    bytes.push(b'x');
                }
                damaged.insert(file.clone(), bytes.into());
                let e = refused(damaged);
                assert_eq!(e.kind, ErrorKind::Archive, "{e}");
                // What a damaged list says is looked for before its end is reached.
                let named =
                    [&shown, "the backup's manifest"].iter().any(|n| e.to_string().contains(*n));
                assert!(named || shown.ends_with(".toc"), "{e}");
            }
            for length in [0, size / 2, size.saturating_sub(1)].into_iter().filter(|l| *l < size) {
                let mut damaged = whole.clone();
                damaged.insert(file.clone(), whole[file][..length].into());
                refused(damaged);
            }
            let mut damaged = whole.clone();
            damaged.remove(file);
            // Without a manifest it is an archive of pg_dump's.
            if shown != "manifest.json" {
                refused(damaged);
            }
        }
    }
}

#[test]
fn with_a_manifest_nothing_is_listed() {
    let server = Server::start();
    let whole = with_manifest(files(&path("18/zstd.dir")));
    put_files(&server, "backup", &whole);
    let archive = Archive::open_with("s3://bucket/pre/backup", &settings(&server)).unwrap();
    server.log();
    for place in 0..archive.toc().len() {
        archive.data_size(place);
    }
    assert_eq!(server.log(), Vec::<String>::new());
    assert!(contents(&archive).unwrap() == expected());
    // Only files that hold something are asked for.
    assert!(server.log().len() <= 9);
    // Damage in the store is noticed, too.
    let (name, bytes) = whole.iter().find(|(name, _)| name.starts_with(b"blob_7")).unwrap();
    let mut bytes = bytes.to_vec();
    bytes[10] ^= 1;
    server.set(&format!("backup/{}", String::from_utf8_lossy(name)), &bytes);
    assert_eq!(contents(&archive).unwrap_err().kind, ErrorKind::Archive);
}
