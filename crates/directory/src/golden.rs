//! Golden rows: bytes as each released version has written them (`tests/golden/<version>/directory.txt`), with what they say. Every
//! later version must read them. docs/internals/versions.md says when there are new ones.

use crate::allocation::State;
use crate::cleaned::Cleaned;
use crate::counted::Counted;
use crate::{chunks, forward, frame, seq_of, tombstones};
use firn_format::{
    Bound, DirectoryEntry, EntryState, Location, Slot, Tid, Tombstone, TombstoneState, ZoneMap,
};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// A row: what it is, its bytes, and what they say.
type Golden = (String, Vec<u8>);

/// What the bytes of a row of this sort say, written out by hand, so that it stays the same when types change.
fn told(sort: &str, bytes: &[u8]) -> String {
    let (sort, under) = sort.split_once(' ').unwrap_or((sort, ""));
    match sort {
        "directory-row" => {
            let slot = Slot(under.parse().expect("a slot"));
            let entry = frame::decode(slot, bytes).expect("an entry");
            assert!(frame::decode(Slot(slot.0 + 1), bytes).is_err() || !is_noted(bytes));
            entry_told(&entry)
        }
        "allocation" => {
            let State { next_block, next_address } = State::decode(bytes).expect("a state");
            format!("block {next_block}, address {next_address}")
        }
        "counted" => {
            let Counted { whole, rows, live } = Counted::decode(bytes).expect("a note");
            format!("{live} of {rows} live, reltuples {:08x}", whole.to_bits())
        }
        "cleaned" => {
            let c = Cleaned::decode(bytes).expect("a note");
            let Cleaned { before, blocks, damaged, moved, settled, settled_others, .. } = c;
            let left = c.left().map_or("nothing".to_owned(), |left| left.to_string());
            format!(
                "before {before}, blocks {blocks}, damaged {damaged}, moved {moved}, settled {settled} and {settled_others}, left {left}"
            )
        }
        "tombstone" => {
            let t = Tombstone::decode(bytes).expect("a tombstone");
            let state = match t.state {
                TombstoneState::Anchor => "anchor",
                TombstoneState::Deleted => "deleted",
            };
            let next = t.successor.map_or("none".to_owned(), tid);
            format!("{state}, next {next}, same key {}, moved away {}", t.same_key, t.moved_away)
        }
        "forwarding" => {
            let entries = forward::entries(bytes).map(tid);
            entries.collect::<Vec<_>>().join(" ")
        }
        other => panic!("what is {other}?"),
    }
}

fn is_noted(bytes: &[u8]) -> bool {
    frame::written_for(bytes).expect("a note that matches").is_some()
}

fn tid(tid: Tid) -> String {
    format!("({},{})", tid.block, tid.offset)
}

fn entry_told(e: &DirectoryEntry) -> String {
    let state = match e.state {
        EntryState::Reserved => "reserved",
        EntryState::Live => "live",
    };
    let location = match &e.location {
        Location::Chunks { address, chunk_bytes } => format!("chunks {address} of {chunk_bytes}"),
        Location::Object { server, key } => format!("object {server} {key}"),
    };
    let meta = if e.has_meta_checksum() { format!("{:08x}", e.meta_crc32c) } else { "none".into() };
    let mut out = format!(
        "version {}, {state}, blocks {}, rows {}, bytes {} of {}, metadata at {}, checksums {:08x} {meta}, created {}, generation {}, {location}",
        e.version, e.blocks, e.rows, e.bytes, e.raw_bytes, e.meta_offset, e.crc32c, e.created_at, e.generation
    );
    for (id, zone) in &e.zones {
        let ZoneMap { min, max, nulls, rows, has_nan, exact, kind } = zone;
        let (min, max) = (bound(min.as_ref()), bound(max.as_ref()));
        let kind = kind.unwrap_or(0);
        write!(
            out,
            "; {id}: {min} to {max}, {nulls} of {rows} NULL, NaN {has_nan}, exact {exact}, kind {kind}"
        )
        .expect("text");
    }
    out
}

fn bound(bound: Option<&Bound>) -> String {
    match bound {
        None => "?".into(),
        Some(Bound::I64(x)) => x.to_string(),
        Some(Bound::I128(x)) => x.to_string(),
        Some(Bound::F64(x)) => format!("{:016x}", x.to_bits()),
        Some(Bound::Bytes(x)) => format!("'{}'", x.escape_ascii()),
    }
}

/// What there are golden rows of.
fn made() -> Vec<Golden> {
    let zone = |min, max, exact, has_nan, kind| ZoneMap {
        min,
        max,
        nulls: 3,
        rows: 1_000,
        has_nan,
        exact,
        kind,
    };
    let zones = vec![
        (1, zone(Some(Bound::I64(i64::MIN)), Some(Bound::I64(i64::MAX)), true, false, Some(5))),
        (2, zone(Some(Bound::I128(-5)), Some(Bound::I128(i128::MAX)), true, false, Some(9))),
        (3, zone(Some(Bound::F64(-0.0)), Some(Bound::F64(f64::INFINITY)), true, true, Some(8))),
        (
            5,
            zone(
                Some(Bound::Bytes(vec![])),
                Some(Bound::Bytes(vec![b'z'; 32])),
                false,
                false,
                Some(15),
            ),
        ),
        (6, zone(Some(Bound::Bytes(vec![0xff; 32])), None, false, false, Some(17))),
        (1_600, zone(None, None, false, false, None)),
    ];
    let live = DirectoryEntry {
        state: EntryState::Live,
        rows: 1_000,
        bytes: 123_456_789_012,
        raw_bytes: 234_567_890_123,
        meta_offset: 123_456_789_000,
        crc32c: 0x1234_5678,
        meta_crc32c: 0x9abc_def0,
        created_at: 1_700_000_000_123_456,
        generation: 3,
        location: Location::Chunks { address: 77 << 32 | 5, chunk_bytes: 8_100 },
        zones,
        ..DirectoryEntry::reserved(4)
    };
    let key =
        "pre/fix/firn/7301234567890123456/0000000A/5/16384/00000385-4-00000000000000ab.parquet";
    let cold = Location::Object { server: "a server".into(), key: key.into() };
    let old = DirectoryEntry { version: 1, meta_crc32c: 0, ..live.clone() };
    let row = |slot: u32, entry: &DirectoryEntry, columns| {
        let room = frame::reserved_bytes(columns);
        (format!("directory-row {slot}"), frame::frame(Slot(slot), entry, room))
    };
    // As rows were before they noted their slot.
    let (name, mut unnoted) = row(9, &old, 7);
    let end = 4 + u32::from_le_bytes([unnoted[0], unnoted[1], unnoted[2], unnoted[3]]) as usize;
    unnoted[end..end + 8].fill(0);
    let (a, b) = (Tid { block: 0, offset: 1 }, Tid { block: 70_000, offset: 291 });
    let mut rows = vec![
        row(0, &DirectoryEntry::reserved(901), 1),
        row(901, &live, 7),
        // There is no room for all zone maps.
        row(902, &live, 1),
        row(0x7fff_ffff, &DirectoryEntry { location: cold, zones: vec![], ..live.clone() }, 7),
        row(8, &old, 7),
        (name, unnoted),
        (
            "allocation".into(),
            State { next_block: 1 << 31, next_address: 99 << 32 }.encode().into(),
        ),
        ("counted".into(), Counted { whole: 3.5e9, rows: 5_000_000_000, live: 7 }.encode().into()),
        ("counted".into(), Counted { whole: -1.0, rows: 0, live: 0 }.encode().into()),
        ("cleaned".into(), Cleaned::default().encode().into()),
    ];
    let note = Cleaned {
        before: 1 << 40,
        blocks: 901,
        damaged: 0xff_ffff,
        moved: 5,
        settled: 6,
        settled_others: 7,
        untidied: 0x83,
    };
    rows.push(("cleaned".into(), note.encode().into()));
    let stones = [
        Tombstone::anchor(),
        Tombstone::deleted(),
        Tombstone::moved_away(),
        Tombstone::updated(a, true),
        Tombstone::updated(b, false),
        Tombstone::updated(Tid::of(Slot(901), 292), true),
    ];
    rows.extend(stones.map(|stone| ("tombstone".into(), stone.encode().into())));
    let list: Vec<u8> = [a, b].iter().flat_map(|tid| forward::encode(*tid)).collect();
    rows.push(("forwarding".into(), forward::translated(&list, &[(1, a)])));
    rows.push(("forwarding".into(), list));
    rows
}

/// Keys, as text: they are no bytes of ours, but what the rows lie under.
fn keys() -> String {
    let mut out = String::new();
    for (slot, row) in [(0, 0), (0, 290), (901, 291), (14_759_244, 100), (0x7fff_ffff, 5)] {
        let at = Tid::of(Slot(slot), row);
        let key = tombstones::key_of(at);
        assert_eq!(tombstones::tid_of(key), Some(at));
        writeln!(out, "row {row} of slot {slot}: {} under ({}, {})", tid(at), key.id, key.seq)
            .expect("text");
    }
    for address in [0u64, 5, 1 << 32, (11_900 << 32) - 1] {
        let (id, seq) = chunks::key_of(address);
        writeln!(out, "chunk {address}: under ({id}, {})", seq_of(seq)).expect("text");
    }
    out
}

fn text(rows: &[Golden]) -> String {
    let mut out = keys();
    for (sort, bytes) in rows {
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        // The rest of the room is zeros.
        let short = hex.trim_end_matches("00");
        writeln!(out, "{sort} | {} | {short} | {}", bytes.len(), told(sort, bytes)).expect("text");
    }
    out
}

/// A line of golden rows: the row, and what it says.
fn parsed(line: &str) -> Option<(Golden, &str)> {
    let mut parts = line.split(" | ");
    let (sort, len) = (parts.next()?, parts.next()?.parse().ok()?);
    let digits = parts.next()?.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let mut bytes: Vec<u8> = digits.map(|pair| byte(pair).expect("hex")).collect();
    bytes.resize(len, 0);
    Some(((sort.to_owned(), bytes), parts.next()?))
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden"));
    let all = fs::read_dir(folder).expect("tests/golden").map(|f| f.expect("a file").path());
    let mut found: Vec<_> = all.map(|f| f.join("directory.txt")).filter(|f| f.is_file()).collect();
    found.sort();
    found
}

#[test]
fn golden_rows_are_read() {
    let files = files();
    assert!(!files.is_empty());
    for file in files {
        let said = fs::read_to_string(&file).expect("golden rows");
        let mut read = 0;
        for line in said.lines() {
            let Some(((sort, bytes), expected)) = parsed(line) else { continue };
            assert_eq!(told(&sort, &bytes), expected, "{file:?}: {sort}");
            read += 1;
        }
        assert!(read > 15, "{file:?}");
        assert!(said.starts_with(&keys()), "{file:?}: keys have moved");
    }
}

/// What is written today is read as it was meant, and says what the newest golden rows say.
#[test]
fn what_is_written_today_is_read_alike() {
    let newest = fs::read_to_string(files().pop().expect("golden rows")).expect("golden rows");
    let mut said: Vec<_> =
        newest.lines().filter_map(parsed).map(|((sort, _), said)| (sort, said)).collect();
    for (sort, bytes) in made() {
        let told = told(&sort, &bytes);
        let known = said.iter().position(|(s, said)| *s == sort && *said == told);
        said.remove(known.unwrap_or_else(|| panic!("{sort}: {told}")));
    }
    assert!(said.is_empty(), "{said:?}");
}

/// Make the golden rows of this version: `FIRN_GOLDEN=<folder>`; see tests/golden/make.py.
#[test]
#[ignore = "writes a file"]
fn make() {
    let folder = PathBuf::from(env::var("FIRN_GOLDEN").expect("FIRN_GOLDEN"));
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("directory.txt"), text(&made())).expect("a file");
}
