//! Tables of the target whose stored generated columns may read other tables.
//!
//! An archive of rows alone says nothing of them (`pg_dump -a`, and tables that `-T` or `-t` left out): what is generated is as if the archive
//! had the columns (`plan/build/order.rs`).

use super::cut::Cut;
use crate::archive::Toc;
use crate::backup::tasks::copy_target;
use crate::error::Result;
use crate::pg::Connection;
use crate::plan::code::reads_nothing;
use crate::plan::select::Selection;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Which table's generated columns call which functions and operators that are neither the server's own nor an extension's: those of
/// extensions look at no table of the archive.
const CALLS: &[u8] = b"SELECT DISTINCT n.nspname, c.relname, d.refobjid \
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    JOIN pg_catalog.pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum \
    JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND d.objid = f.oid \
    WHERE a.attgenerated = 's' AND d.refobjid >= 16384 \
    AND d.refclassid IN ('pg_catalog.pg_proc'::pg_catalog.regclass, 'pg_catalog.pg_operator'::pg_catalog.regclass) \
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend e WHERE e.classid = d.refclassid AND e.objid = d.refobjid AND e.deptype = 'e')";

/// Functions as statements, where no cast and no class of the user's may be what they call without a name.
const TEXTS: &[u8] = b"SELECT p.oid, pg_catalog.pg_get_functiondef(p.oid) FROM pg_catalog.pg_proc p \
    WHERE p.prokind = 'f' AND p.oid IN (SELECT d.refobjid FROM pg_catalog.pg_depend d \
    WHERE d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass) \
    AND p.oid >= 16384 AND NOT EXISTS (SELECT FROM pg_catalog.pg_cast WHERE oid >= 16384 AND castfunc <> 0) \
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_opclass WHERE oid >= 16384 AND opcdefault AND opcintype < 16384)";

/// Places of rows that go into such tables, with what these call, as oids.
pub fn calls(
    connection: &Connection,
    toc: &Toc,
    selection: &Selection,
) -> Result<BTreeMap<u32, BTreeSet<u32>>> {
    if connection.server_version() < 120_000 {
        return Ok(BTreeMap::new());
    }
    let rows = connection.query(CALLS)?;
    if rows.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut plain = HashSet::new();
    // Where rows come with the search path of their entry, a function may mean anything by a name without a schema.
    if !toc.selects_schemas() {
        let texts = connection.query(TEXTS)?;
        let nothing =
            (0..texts.len()).filter(|row| reads_nothing(texts.get(*row, 1).unwrap_or_default()));
        plain.extend(nothing.filter_map(|row| texts.number::<u32>(row, 0)));
    }
    let mut tables = HashMap::<Vec<Vec<u8>>, BTreeSet<u32>>::new();
    for row in 0..rows.len() {
        let name = (0..2).map(|at| rows.get(row, at).unwrap_or_default().to_vec()).collect();
        let called = rows.number(row, 2).filter(|oid| !plain.contains(oid));
        if let Some(called) = called {
            tables.entry(name).or_default().insert(called);
        }
    }
    let mut named = Vec::new();
    for place in selection.places() {
        let entry = toc.entry(place as usize);
        if entry.desc != b"TABLE DATA" {
            continue;
        }
        let own = vec![entry.namespace.to_vec(), entry.tag.to_vec()];
        let mut into = copy_target(entry.copy_stmt).map_or_else(|| own.clone(), |(name, _)| name);
        if into.len() == 1 {
            into.insert(0, entry.namespace.to_vec());
        }
        named.extend([(place, own), (place, into)]);
    }
    let cut = Cut::of(connection, named.iter().flat_map(|(_, name)| name).map(Vec::as_slice))?;
    let mut found = BTreeMap::<u32, BTreeSet<u32>>::new();
    for (place, name) in named {
        let name: Vec<Vec<u8>> = name.iter().map(|part| cut.left(part).to_vec()).collect();
        if let Some(calls) = tables.get(&name) {
            found.entry(place).or_default().extend(calls);
        }
    }
    Ok(found)
}
