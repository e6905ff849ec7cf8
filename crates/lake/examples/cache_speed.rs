//! How fast warm reads are, beside reading the same files plainly: `cargo run --release -p firn-lake --example cache_speed`.

use bytes::Bytes;
use firn_lake::{Cache, Store, StoreOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const MIB: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("firn-cache-speed-{}", std::process::id()));
    let result = measure(&folder);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn measure(folder: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let go_on = || false;
    std::fs::create_dir_all(folder.join("store"))?;
    let url = format!("file://{}", folder.join("store").display());
    let store = Store::open(&StoreOptions::new(url), || {})?;
    let length = 64 * MIB;
    let bytes: Vec<u8> = (0..length).map(|i| (i * 31 % 251) as u8).collect();
    store.put("o", Bytes::from(bytes), &go_on)?;
    let cache = Cache::open(&folder.join("cache"), 1024 * MIB)?;
    let read = |range| cache.read(&store, "s", "o", length, range, &go_on);

    let begun = Instant::now();
    for n in 0..16 {
        black_box(read(n * 4 * MIB..(n + 1) * 4 * MIB)?);
    }
    report("cold, 4 MiB at a time", begun, 16, 4 * MIB);

    let plain = std::fs::File::open(folder.join("store/o"))?;
    for size in [4 * MIB, 64 << 10, 4 << 10] {
        let count = length / size;
        let begun = Instant::now();
        for n in 0..count {
            let mut buffer = vec![0; size as usize];
            plain.read_exact_at(&mut buffer, n * size)?;
            black_box(buffer);
        }
        report("a plain file", begun, count, size);
        let begun = Instant::now();
        for n in 0..count {
            // Scattered, so that no two neighbours share a block.
            let at = n * 7919 % count * size;
            black_box(read(at..at + size)?);
        }
        report("warm", begun, count, size);
    }
    let begun = Instant::now();
    for n in 0..100_000 {
        black_box(read(n % 1000 * 4096..n % 1000 * 4096 + 100)?);
    }
    report("in memory", begun, 100_000, 100);
    println!("{:?}", cache.stats());
    Ok(())
}

fn report(what: &str, begun: Instant, count: u64, size: u64) {
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{what:>22}: {size:>8} bytes in {:8.2} µs, {:6.2} GB/s",
        seconds / count as f64 * 1e6,
        (count * size) as f64 / seconds / 1e9
    );
}
