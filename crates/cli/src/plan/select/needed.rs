//! `--with-dependencies`: from what is named to all that it needs, and to what belongs to that.
//!
//! Needed is what the archive's dependencies say. What belongs to an object has no life of its own: a table's rows, indexes,
//! constraints, defaults, triggers, rules, policies, statistics, identity columns, the sequences of serial columns, a partition's
//! attachment; and of a table that was named its partitions. What only refers to something does not come with it: views, foreign keys
//! from other tables, publications. A foreign key of a table here to one that is not here is left out, and told;
//! to a partitioned table also if not all its partitions are (it depends on the attachment of each one's index): rows may be about theirs.

use crate::archive::{Entry, Section, Toc};
use crate::plan::text::attach;
use std::collections::HashMap;

/// What has been found, by place.
pub struct Needed {
    pub reached: Vec<bool>,
    /// Foreign keys of tables that were reached to tables that were not, or not with all their partitions.
    pub left_out: Vec<u32>,
}

/// What an entry belongs to: dump ids.
fn owners(toc: &Toc, entry: &Entry) -> Vec<i32> {
    let all =
        || entry.dependencies.iter().copied().filter_map(|d| Some((d, toc.entry(toc.place(d)?))));
    let kinds: &[&[u8]] = match entry.desc {
        // A sequence depends on a table if that owns it, and on nothing else.
        b"SEQUENCE" => &[b"TABLE", b"FOREIGN TABLE"],
        b"SEQUENCE SET" | b"SEQUENCE OWNED BY" => &[b"SEQUENCE"],
        b"MATERIALIZED VIEW DATA" => &[b"MATERIALIZED VIEW"],
        b"CHECK CONSTRAINT" => &[b"TABLE", b"FOREIGN TABLE", b"DOMAIN"],
        b"INDEX" | b"CONSTRAINT" | b"DEFAULT" | b"TABLE DATA" | b"TRIGGER" | b"RULE"
        | b"POLICY" | b"ROW SECURITY" | b"STATISTICS" => {
            &[b"TABLE", b"FOREIGN TABLE", b"VIEW", b"MATERIALIZED VIEW"]
        }
        b"STATISTICS DATA" => {
            &[b"TABLE", b"FOREIGN TABLE", b"MATERIALIZED VIEW", b"INDEX", b"CONSTRAINT"]
        }
        _ => return Vec::new(),
    };
    // Statistics may be in another schema than their table.
    let anywhere = entry.desc == b"STATISTICS";
    let fits = |owner: &Entry| {
        kinds.contains(&owner.desc) && (anywhere || owner.namespace == entry.namespace)
    };
    let candidates: Vec<(i32, Entry)> = all().filter(|(_, owner)| fits(owner)).collect();
    // "table part" is how most parts are tagged. A rule may depend on other tables as well.
    let tagged = |owner: &Entry| {
        let rest = entry.tag.strip_prefix(owner.tag);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b" "))
    };
    let by_tag: Vec<i32> =
        candidates.iter().filter(|(_, owner)| tagged(owner)).map(|(id, _)| *id).collect();
    match by_tag.is_empty() || matches!(entry.desc, b"INDEX" | b"SEQUENCE" | b"STATISTICS") {
        true => candidates.into_iter().map(|(id, _)| id).collect(),
        false => by_tag,
    }
}

/// Partitioned table and partition of an attachment: the partition has its tag.
fn ends(toc: &Toc, entry: &Entry) -> Option<(usize, usize)> {
    attach(entry.defn)?;
    let tables: Vec<usize> = entry
        .dependencies
        .iter()
        .filter_map(|d| toc.place(*d))
        .filter(|p| toc.entry(*p).desc.ends_with(b"TABLE"))
        .collect();
    let own =
        |p: &usize| toc.entry(*p).tag == entry.tag && toc.entry(*p).namespace == entry.namespace;
    let child = tables.iter().copied().find(own)?;
    Some((tables.into_iter().find(|p| *p != child)?, child))
}

/// Find all of it. `named`: what was named, by place.
pub fn find(toc: &Toc, named: Vec<bool>) -> Needed {
    let mut reached = named;
    let mut schemas = HashMap::new();
    let mut parts = HashMap::<i32, Vec<usize>>::new();
    let mut partitions = HashMap::<usize, Vec<usize>>::new();
    // What comes when both ends have.
    let (mut keys, mut between) = (Vec::new(), Vec::new());
    for (place, entry) in toc.entries().enumerate() {
        match entry.desc {
            b"SCHEMA" => drop(schemas.insert(entry.tag, place)),
            b"FK CONSTRAINT" => keys.push(place),
            b"INDEX ATTACH" => between.push(place),
            b"TABLE ATTACH" => {
                if let Some((parent, child)) = ends(toc, &entry) {
                    partitions.entry(parent).or_default().push(child);
                    parts.entry(toc.entry(child).dump_id).or_default().push(place);
                }
            }
            _ => {
                for owner in owners(toc, &entry) {
                    parts.entry(owner).or_default().push(place);
                }
            }
        }
    }
    let mut below: Vec<usize> = (0..toc.len()).filter(|p| reached[*p]).collect();
    while let Some(place) = below.pop() {
        for &child in partitions.get(&place).into_iter().flatten() {
            if !std::mem::replace(&mut reached[child], true) {
                below.push(child);
            }
        }
    }
    let here = |reached: &[bool], place: usize| {
        let needs = toc.entry(place).dependencies.iter().filter_map(|d| toc.place(*d));
        needs.into_iter().all(|p| reached[p] || toc.entry(p).section == Section::Data)
    };
    let mut stack: Vec<usize> = (0..toc.len()).filter(|p| reached[*p]).collect();
    loop {
        while let Some(place) = stack.pop() {
            let entry = toc.entry(place);
            let needs = entry.dependencies.iter().filter_map(|d| toc.place(*d));
            let own = parts.get(&entry.dump_id).into_iter().flatten().copied();
            // Rows wait for other rows, where the archive has nothing but rows: they do not need them.
            let rows = matches!(entry.desc, b"TABLE DATA" | b"STATISTICS DATA");
            let needs = needs.filter(|p| !rows || toc.entry(*p).desc != b"TABLE DATA");
            for more in needs.chain(schemas.get(entry.namespace).copied()).chain(own) {
                if !std::mem::replace(&mut reached[more], true) {
                    stack.push(more);
                }
            }
        }
        let complete = keys.iter().chain(&between).copied();
        for place in complete.filter(|p| !reached[*p] && here(&reached, *p)).collect::<Vec<_>>() {
            reached[place] = true;
            stack.push(place);
        }
        if stack.is_empty() {
            break;
        }
    }
    let of_reached = |place: &usize| {
        let key = toc.entry(*place);
        let mut tables = key.dependencies.iter().filter_map(|d| toc.place(*d));
        let own = |p: usize| {
            let rest = key.tag.strip_prefix(toc.entry(p).tag);
            toc.entry(p).desc == b"TABLE" && rest.is_some_and(|r| r.starts_with(b" ")) && reached[p]
        };
        !reached[*place] && tables.any(|p| own(p) && toc.entry(p).namespace == key.namespace)
    };
    let left_out = keys.iter().filter(|p| of_reached(p)).map(|p| *p as u32).collect();
    Needed { reached, left_out }
}
