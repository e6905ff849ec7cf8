//! Archives that pg_dump made: what is read is what was dumped, and what is damaged is refused.

#[path = "archives/packed.rs"]
mod packed;
#[path = "archives/read.rs"]
mod read;

use firn_cli::archive::{Archive, Compression, Format, Section};
use firn_cli::error::ErrorKind;
use firn_cli::Error;
use read::{contents, expected, files, open, path, whole_archives, Piece};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

/// A folder of its own for one test; gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("firn-archive-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    /// A copy of an archive in directory format.
    fn copy(name: &str, archive: &str) -> Folder {
        let folder = Folder::new(name);
        for (name, bytes) in files(&path(archive)) {
            std::fs::write(folder.0.join(String::from_utf8(name).unwrap()), bytes).unwrap();
        }
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn refused(result: Result<Archive, Error>) -> Error {
    match result.and_then(|archive| contents(&archive).map(|_| ())) {
        Err(e) => e,
        Ok(()) => panic!("the archive was read"),
    }
}

/// The error says what could not be read, where, and what to do.
fn check(e: &Error, said: &str) {
    let text = e.to_string();
    assert!(text.contains(said), "{text}");
    assert!(text.contains("could not "), "{text}");
    assert!(e.hint.is_some(), "{text}");
    assert!(matches!(e.kind, ErrorKind::Archive | ErrorKind::Storage), "{text}");
}

#[test]
fn every_archive_holds_the_same() {
    for path in whole_archives() {
        let archive = open(&path).unwrap();
        let found = contents(&archive).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(found, expected(), "{}", path.display());
        // A second time: nothing was used up.
        assert_eq!(contents(&archive).unwrap(), expected(), "{}", path.display());
    }
}

#[test]
fn headers() {
    for path in whole_archives() {
        let archive = open(&path).unwrap();
        let header = archive.header();
        let (name, shown) = (path.file_name().unwrap().to_str().unwrap(), path.display());
        let folder = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let version = if folder == "15" { (1, 14, 0) } else { (1, 16, 0) };
        assert_eq!(header.version, version, "{shown}");
        let format = if name.ends_with(".dir") { Format::Directory } else { Format::Custom };
        assert_eq!(header.format, format, "{shown}");
        let compression = match name.split('.').next().unwrap() {
            "none" => Compression::None,
            "gzip" => Compression::Gzip,
            "lz4" => Compression::Lz4,
            _ => Compression::Zstd,
        };
        assert_eq!(header.compression, compression, "{shown}");
        assert_eq!(header.dbname, "firn_archives");
        assert!(header.dump_version.starts_with(folder), "{}", header.dump_version);
        assert!(header.server_version.starts_with("15"), "{}", header.server_version);
        assert!((2023..2100).contains(&header.created.year), "{}", header.created);
        assert!((1..=12).contains(&header.created.month), "{}", header.created);
    }
}

#[test]
fn entries() {
    for path in whole_archives() {
        let archive = open(&path).unwrap();
        let toc = archive.toc();
        let find = |desc: &[u8], tag: &[u8]| {
            let place = toc.entries().position(|e| e.desc == desc && e.tag == tag).unwrap();
            (place, toc.entry(place))
        };
        let (_, table) = find(b"TABLE", b"t");
        assert_eq!(table.namespace, b"public");
        assert_eq!(table.owner, b"postgres");
        assert_eq!(table.tableam, b"heap");
        assert_eq!(table.section, Section::PreData);
        assert!(table.defn.starts_with(b"CREATE TABLE public.t"));
        assert!(table.drop_stmt.starts_with(b"DROP TABLE public.t"));
        assert!(!table.has_data && table.copy_stmt.is_empty());
        assert!(matches!(table.relkind, 0 | b'r'));
        assert_eq!(table.catalog_oid, 1259);
        let (place, data) = find(b"TABLE DATA", b"t");
        assert!(data.has_data);
        assert_eq!(data.copy_stmt, b"COPY public.t (a, b) FROM stdin;\n");
        assert_eq!(data.dependencies, [table.dump_id]);
        assert_eq!(toc.place(data.dump_id), Some(place));
        assert_eq!(data.section, Section::Data);
        let (_, comment) = find(b"COMMENT", b"TABLE t");
        assert!(comment.defn.ends_with(b"'two\nlines';\n"));
        assert_eq!(find(b"INDEX ATTACH", b"p1_k_idx").1.section, Section::PostData);
        if archive.header().version == (1, 16, 0) {
            assert_eq!(find(b"TABLE", b"p").1.relkind, b'p');
            assert!(toc.entries().any(|e| e.desc == b"STATISTICS DATA" && !e.defn.is_empty()));
            assert_eq!(toc.entries().filter(|e| e.desc == b"BLOBS").count(), 2);
        }
    }
}

#[test]
fn sizes_are_what_is_stored() {
    for path in whole_archives() {
        let archive = open(&path).unwrap();
        let name = path.to_str().unwrap();
        let mut sum = 0;
        for (place, entry) in archive.toc().entries().enumerate() {
            let size = archive.data_size(place);
            let unknown =
                name.ends_with("piped.dump") || (name.ends_with(".dir") && entry.desc == b"BLOBS");
            assert_eq!(size.is_some(), entry.has_data && !unknown, "{name} {}", entry.dump_id);
            sum += size.unwrap_or(0);
            if name.ends_with(".dir") && entry.desc == b"TABLE DATA" {
                let file = files(&path)
                    .into_iter()
                    .find(|(file, _)| file.starts_with(entry.dump_id.to_string().as_bytes()));
                assert_eq!(size, Some(file.unwrap().1.len() as u64));
            }
        }
        // Data fills a custom archive from the first block to the end.
        if name.ends_with(".dump") && !name.ends_with("piped.dump") {
            let file = std::fs::metadata(&path).unwrap().len();
            assert!(sum > file / 40 && sum < file, "{name}: {sum} of {file}");
        }
    }
}

#[test]
fn the_same_archive_has_the_same_fingerprint() {
    let mut seen = BTreeMap::new();
    for path in whole_archives() {
        let first = open(&path).unwrap().fingerprint();
        assert_eq!(first, open(&path).unwrap().fingerprint());
        if let Some(other) = seen.insert(first, path.clone()) {
            panic!("{} and {} have the same", other.display(), path.display());
        }
    }
    // It covers the table of contents and nothing behind it.
    let mut bytes = std::fs::read(path("15/none.dump")).unwrap();
    let original = Archive::from_bytes(bytes.clone()).unwrap().fingerprint();
    *bytes.last_mut().unwrap() ^= 1;
    assert_eq!(Archive::from_bytes(bytes.clone()).unwrap().fingerprint(), original);
    let at = bytes.windows(9).position(|w| w == b"two\nlines").unwrap();
    bytes[at] = b'T';
    assert_ne!(Archive::from_bytes(bytes).unwrap().fingerprint(), original);
}

#[test]
fn text_is_bytes() {
    for version in ["15", "18"] {
        let archive = open(&path(&format!("{version}/latin1.dump"))).unwrap();
        let entry = archive.toc().entries().find(|e| e.desc == b"TABLE").unwrap();
        assert_eq!(entry.tag, b"stra\xdfe");
        let found = contents(&archive).unwrap();
        assert_eq!(found.values().next().unwrap(), b"\xe4\n");
    }
}

#[test]
fn an_archive_without_data() {
    for version in ["15", "18"] {
        let archive = open(&path(&format!("{version}/schema.dump"))).unwrap();
        assert!(archive.toc().len() > 10);
        assert_eq!(contents(&archive).unwrap(), BTreeMap::new());
    }
}

/// PostgreSQL 16 writes version 1.15: as 1.14, with a compression algorithm in place of a level.
#[test]
fn version_1_15() {
    for (name, algorithm) in [("15/none.piped.dump", 0), ("15/gzip.piped.dump", 1)] {
        let old = std::fs::read(path(name)).unwrap();
        let mut new = old[..6].to_vec();
        new.push(15);
        new.extend_from_slice(&old[7..11]);
        new.push(algorithm);
        new.extend_from_slice(&old[16..]);
        let archive = Archive::from_bytes(new).unwrap();
        assert_eq!(archive.header().version, (1, 15, 0));
        assert_eq!(contents(&archive).unwrap(), expected());
    }
}

#[test]
fn a_directory_that_was_compressed_later() {
    let mut files = files(&path("18/none.dir"));
    for (i, name) in files.keys().cloned().collect::<Vec<_>>().into_iter().enumerate() {
        let plain = files.remove(&name).unwrap();
        let (suffix, bytes) = match i % 3 {
            0 => (".zst", zstd::encode_all(&plain[..], 3).unwrap()),
            1 => {
                let mut out = lz4_flex::frame::FrameEncoder::new(Vec::new());
                std::io::copy(&mut &plain[..], &mut out).unwrap();
                (".lz4", out.finish().unwrap())
            }
            _ => {
                let mut out = Vec::new();
                flate2::bufread::GzEncoder::new(&plain[..], flate2::Compression::best())
                    .read_to_end(&mut out)
                    .unwrap();
                (".gz", out)
            }
        };
        files.insert([&name[..], suffix.as_bytes()].concat(), bytes.into());
    }
    let archive = Archive::from_files(files).unwrap();
    assert_eq!(contents(&archive).unwrap(), expected());
}

/// The same archives, read by a library that has nothing in common with us.
#[test]
fn libpgdump_reads_the_same() {
    for path in whole_archives() {
        // It does not look for data of unknown place.
        let piped = path.to_str().unwrap().ends_with("piped.dump");
        let lists = Folder::new("libpgdump");
        let mut seen = path.clone();
        if path.is_dir() {
            // It takes oids of 2^31 and more for damage.
            seen = lists.0.clone();
            for (name, bytes) in files(&path) {
                let list = name.starts_with(b"blobs");
                let name = String::from_utf8(name).unwrap();
                std::fs::write(seen.join(name), if list { &[][..] } else { &bytes }).unwrap();
            }
        }
        let theirs = libpgdump::load(&seen).unwrap();
        let ours = open(&path).unwrap();
        assert_eq!(ours.toc().len(), theirs.entries().len());
        for (place, entry) in ours.toc().entries().enumerate() {
            let other = &theirs.entries()[place];
            let text = |t: &Option<String>| t.clone().unwrap_or_default().into_bytes();
            assert_eq!(entry.dump_id, other.dump_id);
            assert_eq!(entry.catalog_oid.to_string(), other.table_oid);
            assert_eq!(entry.oid.to_string(), other.oid);
            assert_eq!(entry.desc, other.desc.as_str().as_bytes());
            assert_eq!(entry.tag, text(&other.tag));
            assert_eq!(entry.namespace, text(&other.namespace));
            assert_eq!(entry.owner, text(&other.owner));
            assert_eq!(entry.tablespace, text(&other.tablespace));
            assert_eq!(entry.tableam, text(&other.tableam));
            assert_eq!(entry.relkind, other.relkind.map_or(0, |c| c as u8));
            assert_eq!(format!("{:?}", entry.section), format!("{:?}", other.section));
            assert_eq!(entry.defn, text(&other.defn));
            assert_eq!(entry.drop_stmt, text(&other.drop_stmt));
            assert_eq!(entry.copy_stmt, text(&other.copy_stmt));
            assert_eq!(entry.dependencies, other.dependencies);
            if entry.has_data && entry.desc != b"BLOBS" && !piped {
                let mut data = Vec::new();
                ours.data(place).unwrap().read_to_end(&mut data).unwrap();
                data.extend_from_slice(b"\\.\n\n\n");
                assert_eq!(data, theirs.entry_data(entry.dump_id).unwrap(), "{}", path.display());
            }
        }
        if !piped {
            let theirs: BTreeMap<Piece, Vec<u8>> = theirs
                .blobs()
                .into_iter()
                .map(|(oid, data)| (Piece::LargeObject(oid as u32), data.to_vec()))
                .collect();
            // In gzip it loses those behind an empty one.
            let ours = contents(&ours).unwrap();
            assert!(theirs.iter().all(|(piece, data)| ours[piece] == *data), "{}", path.display());
        }
    }
}

#[test]
fn large_objects_are_read_in_order_or_skipped() {
    for path in whole_archives() {
        let archive = open(&path).unwrap();
        for (place, _) in archive.toc().entries().enumerate().filter(|(_, e)| e.desc == b"BLOBS") {
            let skipped: Vec<u32> =
                archive.large_objects(place).unwrap().map(|o| o.unwrap().oid).collect();
            let mut again = Vec::new();
            for object in archive.large_objects(place).unwrap() {
                let mut object = object.unwrap();
                again.push(object.oid);
                let mut one = [0];
                // Only a part of it.
                assert!(object.data.read(&mut one).unwrap() <= 1);
            }
            assert_eq!(skipped, again);
        }
    }
}

#[test]
fn a_large_object_that_lost_its_line_is_missed() {
    for (archive, list) in [("15/none.dir", "blobs.toc"), ("18/none.dir", "blobs_")] {
        let whole = files(&path(archive));
        for (name, bytes) in whole.iter().filter(|(name, _)| name.starts_with(list.as_bytes())) {
            let lines = bytes.split_inclusive(|&c| c == b'\n');
            for line in lines {
                let mut less = whole.clone();
                let rest = bytes.split_inclusive(|&c| c == b'\n').filter(|l| *l != line);
                less.insert(name.clone(), rest.flatten().copied().collect::<Vec<u8>>().into());
                check(&refused(Archive::from_files(less)), "large objects are missing");
            }
        }
    }
}

#[test]
fn a_file_that_is_missing() {
    for archive in ["15/none.dir", "15/gzip.dir", "18/lz4.dir", "18/zstd.dir"] {
        let whole = files(&path(archive));
        for name in whole.keys() {
            let mut less = whole.clone();
            less.remove(name);
            let shown = String::from_utf8_lossy(name);
            let e = refused(Archive::from_files(less));
            check(&e, "does not exist");
            let plain = shown.split(".dat").next().unwrap().split(".toc").next().unwrap();
            assert!(e.to_string().contains(plain), "{e}");
        }
    }
}

/// Replaces all of `from` in the table of contents by `to`, which is as long.
fn with_name(archive: &str, from: &[u8], to: &[u8]) -> BTreeMap<Vec<u8>, Arc<[u8]>> {
    assert_eq!(from.len(), to.len());
    let mut all = files(&path(archive));
    for (name, bytes) in
        all.iter_mut().filter(|(name, _)| name.ends_with(b"toc.dat") || name.starts_with(b"blobs"))
    {
        let mut changed = bytes.to_vec();
        let mut at = 0;
        while let Some(next) = changed[at..].windows(from.len()).position(|w| w == from) {
            changed[at + next..][..to.len()].copy_from_slice(to);
            at += next + to.len();
        }
        assert!(at > 0 || name.starts_with(b"blobs"));
        *bytes = changed.into();
    }
    all
}

#[test]
fn names_of_files_are_plain() {
    let archive = Archive::from_files(files(&path("15/none.dir"))).unwrap();
    let entry = archive.toc().entries().find(|e| e.desc == b"TABLE DATA" && e.tag == b"t").unwrap();
    let name = format!("{}.dat", entry.dump_id).into_bytes();
    for hostile in
        [&b"/etc/pas"[..], b"../a.dat", b"aa/b.dat", b"a\0/b.dat", b"a\0bc.dat", b".......\n"]
    {
        let e = refused(Archive::from_files(with_name("15/none.dir", &name, hostile)));
        check(&e, "is not the name of a file within the archive");
    }
    let mut all = files(&path("15/none.dir"));
    let hostile: [&[u8]; 4] = [b"../../../etc/passwd", b"/etc/passwd", b"..", b"a b/c"];
    for name in hostile {
        let list = [b"70001 ", name, b"\n"].concat();
        all.insert(b"blobs.toc".to_vec(), list.into());
        check(&refused(Archive::from_files(all.clone())), "is not the name of a file within");
    }
    for line in [
        &b"70001"[..],
        b"70001\n",
        b"x y\n",
        b"0 blob_0.dat\n",
        b"-1 blob_1.dat\n",
        b"99999999999 x\n",
    ] {
        all.insert(b"blobs.toc".to_vec(), line.into());
        let e = refused(Archive::from_files(all.clone()));
        check(&e, "large objects");
    }
}

#[test]
fn links_stay_within_the_archive() {
    let folder = Folder::copy("links", "15/none.dir");
    let secret = Folder::new("secret");
    let archive = open(&folder.0).unwrap();
    let entry = archive.toc().entries().find(|e| e.desc == b"TABLE DATA" && e.tag == b"t").unwrap();
    let file = folder.0.join(format!("{}.dat", entry.dump_id));
    // Within it is fine, and so is a link to the archive itself.
    std::fs::rename(&file, folder.0.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", &file).unwrap();
    assert_eq!(contents(&archive).unwrap(), expected());
    std::os::unix::fs::symlink(&folder.0, secret.0.join("link")).unwrap();
    assert_eq!(contents(&open(&secret.0.join("link")).unwrap()).unwrap(), expected());
    // Out of it is not.
    std::fs::rename(folder.0.join("elsewhere"), secret.0.join("rows")).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(secret.0.join("rows"), &file).unwrap();
    check(&refused(open(&folder.0)), "is a symbolic link that leaves the archive");
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("nowhere", &file).unwrap();
    check(&refused(open(&folder.0)), "is a symbolic link to nothing");
    // Neither is something that is no file: opening a pipe would wait for ever.
    std::fs::remove_file(&file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    check(&refused(open(&folder.0)), "is not a regular file");
}

#[test]
fn what_is_no_archive() {
    let folder = Folder::new("none");
    let file = folder.0.join("file");
    for (bytes, said, hint) in [
        (&b"--\n-- PostgreSQL database dump\n--\n"[..], "script", "psql"),
        (b"", "empty", "again"),
        (b"hello", "not an archive", "pg_dump"),
        (b"PGDM", "not an archive", "pg_dump"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let e = refused(open(&file));
        check(&e, said);
        assert!(e.hint.unwrap().contains(hint));
    }
    check(&refused(open(&folder.0)), "toc.dat");
    let missing = refused(open(&folder.0.join("missing")));
    assert_eq!(missing.kind, ErrorKind::Storage);
    assert!(missing.message.contains("No such file"), "{missing}");
    assert_eq!(refused(Archive::open("gs://bucket/x")).kind, ErrorKind::Usage);
    // Versions that are not known, and tar's table of contents in a file.
    let mut bytes = std::fs::read(path("15/none.dump")).unwrap();
    for minor in [11, 17] {
        bytes[6] = minor;
        check(&refused(Archive::from_bytes(bytes.clone())), "unsupported archive version 1.1");
    }
    bytes[6] = 14;
    bytes[10] = 3;
    check(&refused(Archive::from_bytes(bytes)), "format code 3");
}

/// The files of a directory as a tar archive.
fn packed_tar(folder: &std::path::Path) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, bytes) in files(folder) {
        let mut header = vec![0; 512];
        header[..name.len()].copy_from_slice(&name);
        header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = b'0';
        header[257..262].copy_from_slice(b"ustar");
        let sum: u64 = header.iter().map(|b| u64::from(*b)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend(header);
        out.extend_from_slice(&bytes);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

#[test]
fn tar() {
    for folder in ["15/none.dir", "18/none.dir"] {
        let bytes = packed_tar(&path(folder));
        let archive = Archive::from_bytes(&bytes[..]).unwrap();
        assert_eq!(archive.header().format, Format::Tar);
        assert_eq!(contents(&archive).unwrap(), expected());
        // Cut off anywhere it is refused: nothing is silently less.
        for length in (0..bytes.len() - 1024).step_by(509) {
            refused(Archive::from_bytes(&bytes[..length]));
        }
    }
    // The beginning of pg_dump's own.
    check(&refused(open(&path("15/tar.tar"))), "unexpected end of file");
}

#[test]
fn a_file_url() {
    let path = path("15/none.dump");
    let archive = Archive::open(&format!("file://{}", path.display())).unwrap();
    assert_eq!(contents(&archive).unwrap(), expected());
}

/// An entry less or more in the count must not pass: entries would silently be missing.
#[test]
fn the_number_of_entries_is_checked() {
    for archive in whole_archives() {
        let custom = archive.is_file();
        let file = if custom { archive.clone() } else { archive.join("toc.dat") };
        let bytes = std::fs::read(file).unwrap();
        let count = open(&archive).unwrap().toc().len() as u8;
        // The number comes behind the text of the last version in the header.
        let version = open(&archive).unwrap().header().dump_version.clone();
        let at = bytes.windows(version.len()).rposition(|w| w == version.as_bytes()).unwrap();
        let at = at + version.len() + 1;
        assert_eq!(bytes[at], count);
        for wrong in [count - 1, count / 2, 0, count + 1, 255] {
            let mut changed = bytes.clone();
            changed[at] = wrong;
            let opened = if custom {
                Archive::from_bytes(changed)
            } else {
                let mut all = files(&archive);
                all.insert(b"toc.dat".to_vec(), changed.into());
                Archive::from_files(all)
            };
            check(&refused(opened), "could not read");
        }
    }
}

/// Files to begin fuzzing with, into the folder FIRN_CORPUS (see fuzz/Cargo.toml).
#[test]
#[ignore = "writes files"]
fn corpus() {
    let folder = PathBuf::from(std::env::var("FIRN_CORPUS").expect("FIRN_CORPUS names a folder"));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (number, path) in whole_archives().into_iter().chain([path("15/latin1.dump")]).enumerate() {
        let bytes = match path.is_file() {
            true => std::fs::read(&path).unwrap(),
            false => packed::pack(&files(&path)),
        };
        assert!(packed::read(&bytes), "{}", path.display());
        std::fs::write(folder.join(number.to_string()), bytes).expect("a file");
    }
}
