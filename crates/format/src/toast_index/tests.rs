use super::*;

/// Columns that an entry has, and where it leads.
type Entry = (Vec<u32>, u32);

fn bytes_of((columns, down): &Entry, pivot: bool) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes[..2].copy_from_slice(&((down >> 16) as u16).to_le_bytes());
    bytes[2..4].copy_from_slice(&(*down as u16).to_le_bytes());
    if pivot {
        bytes[4..6].copy_from_slice(&(columns.len() as u16).to_le_bytes());
        bytes[6..8].copy_from_slice(&0x2000u16.to_le_bytes());
    }
    columns.iter().for_each(|column| bytes.extend(column.to_le_bytes()));
    bytes
}

/// A page of these entries, its bound first if it has a next one.
fn page(flags: u16, before: u32, next: u32, bound: Option<Entry>, entries: &[Entry]) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    let special = PAGE - SPECIAL;
    let bound: Vec<Vec<u8>> = bound.iter().map(|b| bytes_of(b, true)).collect();
    let all = bound.into_iter().chain(entries.iter().map(|e| bytes_of(e, flags & 1 == 0)));
    let (mut end, mut count) = (special, 0);
    for (i, entry) in all.enumerate() {
        end -= entry.len().next_multiple_of(8);
        page[end..end + entry.len()].copy_from_slice(&entry);
        let pointer = end as u32 | 1 << 15 | (entry.len() as u32) << 17;
        page[HEADER + 4 * i..HEADER + 4 * i + 4].copy_from_slice(&pointer.to_le_bytes());
        count = i + 1;
    }
    page[12..14].copy_from_slice(&((HEADER + 4 * count) as u16).to_le_bytes());
    page[16..18].copy_from_slice(&(special as u16).to_le_bytes());
    page[special..special + 4].copy_from_slice(&before.to_le_bytes());
    page[special + 4..special + 8].copy_from_slice(&next.to_le_bytes());
    page[special + 12..special + 14].copy_from_slice(&flags.to_le_bytes());
    page
}

fn keys(ids: &[(u32, i32)]) -> Vec<Entry> {
    ids.iter().map(|(id, seq)| (vec![*id, *seq as u32], 7)).collect()
}

#[test]
fn leaves() {
    let entries = keys(&[(3, -5), (3, 9), (8, 0)]);
    let last = page(1, 4, 0, None, &entries);
    for (range, says) in [
        ((3, -4)..=(3, 8), Says::Nothing),
        ((3, -4)..=(3, 9), Says::Something),
        ((3, -5)..=(3, -5), Says::Something),
        ((4, 0)..=(7, 0), Says::Nothing),
        ((9, 0)..=(9, 9), Says::Nothing),
        // Below all: only if something has led here.
        ((3, -9)..=(3, -6), Says::Unknown),
    ] {
        assert_eq!(asked_alone(&last, &range), says, "{range:?}");
        let led = if says == Says::Unknown { Says::Nothing } else { says };
        assert_eq!(asked(&last, &range), led, "{range:?}");
    }
    // The first of its level.
    let only = page(1, 0, 0, None, &entries);
    assert_eq!(asked_alone(&only, &((3, -9)..=(3, -6))), Says::Nothing);
    assert_eq!(asked_alone(&page(1, 0, 0, None, &[]), &((3, 0)..=(3, 6))), Says::Nothing);
}

#[test]
fn bounds_of_leaves() {
    let entries = keys(&[(3, -5), (3, 9)]);
    for (bound, range, says) in [
        (vec![8, 5], (4, 0)..=(8, 4), Says::Nothing),
        // What equals the bound may be on either side.
        (vec![8, 5], (4, 0)..=(8, 5), Says::Unknown),
        (vec![8, 5], (8, 5)..=(8, 5), Says::Unknown),
        (vec![8, 5], (8, 6)..=(8, 7), Says::Ask(11)),
        // A bound without a number is below all of them.
        (vec![8], (4, 0)..=(7, 9), Says::Nothing),
        (vec![8], (4, 0)..=(8, i32::MIN), Says::Unknown),
        (vec![8], (8, i32::MIN)..=(8, 0), Says::Ask(11)),
        (vec![], (0, 0)..=(1, 0), Says::Ask(11)),
    ] {
        let page = page(1, 4, 11, Some((bound.clone(), 0)), &entries);
        assert_eq!(asked(&page, &range), says, "{bound:?} {range:?}");
        let alone = if says == Says::Ask(11) { Says::Unknown } else { says };
        assert_eq!(asked_alone(&page, &range), alone, "{bound:?} {range:?}");
    }
}

#[test]
fn inner_pages() {
    let entries = [(vec![], 20), (vec![3], 21), (vec![3, 7], 22), (vec![9, 0], 70_000)];
    let page = page(0, 0, 11, Some((vec![12], 0)), &entries);
    for (low, says) in [
        ((0, 0), Says::Ask(20)),
        // A column that is cut off is below all, an equal key may also be before.
        ((3, i32::MIN), Says::Ask(21)),
        ((3, 7), Says::Ask(21)),
        ((3, 8), Says::Ask(22)),
        ((9, 0), Says::Ask(22)),
        ((11, 5), Says::Ask(70_000)),
        ((12, 5), Says::Ask(11)),
    ] {
        assert_eq!(asked(&page, &(low..=low)), says, "{low:?}");
        assert_eq!(asked_alone(&page, &(low..=low)), Says::Unknown);
    }
}

#[test]
fn strange_pages() {
    let range = (1, 1)..=(1, 2);
    let whole = page(1, 0, 0, None, &keys(&[(3, 1)]));
    assert_eq!(asked(&whole, &range), Says::Nothing);
    for flags in [1 | 4, 8, 1 | 16] {
        assert_eq!(asked(&page(flags, 0, 0, None, &[]), &range), Says::Unknown);
    }
    assert_eq!(asked(&whole[..PAGE - 1], &range), Says::Unknown);
    assert_eq!(asked(&[], &range), Says::Unknown);
    // No damage leads out of the page.
    let mut x = 1u64;
    for _ in 0..200_000 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut damaged = whole.clone();
        let at = [12, 16, 24, 25, 26, 27, PAGE - 16, PAGE - 12, PAGE - 4][(x >> 40) as usize % 9];
        damaged[at] ^= (x >> 20) as u8;
        damaged[PAGE - 24 + (x >> 50) as usize % 8] ^= (x >> 30) as u8;
        let _ = (asked(&damaged, &range), asked_alone(&damaged, &range));
    }
}

#[test]
fn roots() {
    let mut meta = vec![0; PAGE];
    meta[24..28].copy_from_slice(&MAGIC.to_le_bytes());
    meta[28..32].copy_from_slice(&4u32.to_le_bytes());
    assert_eq!(root(&meta), None);
    meta[40..44].copy_from_slice(&5u32.to_le_bytes());
    assert_eq!(root(&meta), Some(5));
    meta[28] = 3;
    assert_eq!(root(&meta), None);
    assert_eq!(root(&[]), None);
}
