//! ANALYZE at the end, for tables that got rows, unless the archive has their statistics.
//!
//! `pg_class.reltuples` does not tell whether a table was analyzed: building an index sets it, too.

use super::check::Restored;
use super::{facts, reload, session, tell, unlogged, Options};
use crate::archive::Archive;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{quote_literal, Connection, For};
use crate::plan::build::copies_via_root;
use crate::plan::text::{last_part, unquoted};
use crate::report::words::count;
use crate::report::{Costs, Did, Event, Kind, Watch};
use crate::restore::together::together;
use crate::stop::Stop;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Analyze tables of the restore on all connections, the largest first. Partitioned tables come after their
/// partitions, or with them. `hint`: what to do when it was stopped.
///
/// Where others have all places of the server by now nothing is analyzed, and that is told: all that the archive has is there. That is
/// so if the session that has seen it lives; a server that has crashed since has emptied unlogged tables.
pub fn analyze(
    restored: &Restored,
    options: &Options,
    witness: Witness,
    watch: &dyn Watch,
    stop: &Stop,
    hint: &str,
) -> Result<()> {
    let Restored { archive, selection, dbname, .. } = *restored;
    let toc = archive.toc();
    let is_loaded = |place: &u32| {
        matches!(toc.entry(*place as usize).desc, b"TABLE DATA" | b"MATERIALIZED VIEW DATA")
    };
    let loaded: Vec<u32> = selection.places().filter(is_loaded).collect();
    // With statistics in the archive (from version 18 on) they are there already.
    let has_statistics =
        selection.places().any(|p| toc.entry(p as usize).desc == b"STATISTICS DATA");
    if loaded.is_empty() || has_statistics {
        return Ok(());
    }
    let cancelled = || Error::new(ErrorKind::Cancelled, "canceled by user").hint(hint);
    let is_refused = |found: &Result<Connection>| matches!(found, Err(e) if e.kind == ErrorKind::Connection && !stop.is_set());
    let (mut witness, mut found) = (Some(witness), first(options, dbname, stop));
    if is_refused(&found) {
        witness.as_ref().map_or(Ok(()), Witness::ask)?;
        // Its own place may be the only one that there is.
        if let Some(Witness::Last(session)) = witness.take_if(|w| matches!(w, Witness::Last(_))) {
            drop(session);
            found = first(options, dbname, stop);
        }
    }
    let connection = match found {
        _ if stop.is_set() => return Err(cancelled()),
        Err(e) if e.kind == ErrorKind::Connection => {
            let (message, what) = (&e.message, "run ANALYZE for the tables that were restored");
            watch.event(&Event::Note(&format!("warning: nothing is analyzed: {message}; {what}")));
            return Ok(());
        }
        connection => connection?,
    };
    let chosen = {
        // It waits for who alters or drops a table just now.
        let _cancels = stop.cancels(&connection);
        session::prepare(&connection, toc, options, None)
            .and_then(|()| choose(&connection, archive, &loaded, options.jobs))
    };
    let Chosen { tables, parents, alone, left } =
        chosen.map_err(|e| if stop.is_set() { cancelled() } else { e })?;
    if left > 0 {
        watch.event(&Event::Note(&format!(
            "statistics of {} partitioned tables as a whole are not gathered, which would take too many locks or too long: run ANALYZE for them",
            count(left as u64)
        )));
    }
    let mut tables: Vec<_> = tables.into_iter().map(|(name, size)| (name, cost(size))).collect();
    tables.extend(parents.into_iter().map(|name| (name, cost(0))));
    let alone: Vec<_> = alone.into_iter().map(|name| (name, cost(0))).collect();
    let mut total = Costs::default();
    tables.iter().chain(&alone).for_each(|(_, cost)| total.add_all(cost));
    watch.event(&Event::Work { steps: tables.len() + alone.len(), cost: total });
    tables.reverse();
    let tables = Mutex::new(tables);
    let next = || tables.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let connect = || {
        let own = options.connect(dbname, For::Statements)?;
        session::prepare(&own, toc, options, None)?;
        Ok(own)
    };
    let work = |worker: usize, connection: &Connection| {
        let _cancels = stop.cancels(connection);
        watch.event(&Event::Connected { worker, pid: connection.backend_pid() });
        while let Some((table, cost)) = next() {
            if stop.is_set() {
                return Err(cancelled());
            }
            let sql = [b"ANALYZE ", &table[..]].concat();
            let what = String::from_utf8_lossy(&sql);
            watch.event(&Event::Begin { worker, what: &what, steps: 1, cost });
            let result = connection.run(&sql);
            tell::notices(connection, watch);
            let (steps, ok) = (1, result.is_ok());
            let (statements, transactions) = (u64::from(ok), u64::from(ok));
            let did = Did { steps, cost, statements, transactions, rows: 0, ok };
            watch.event(&Event::End { worker, did });
            if let Err(failure) = result {
                if stop.is_set() {
                    return Err(cancelled());
                }
                if failure.error.kind == ErrorKind::Connection {
                    return Err(failure.error);
                }
                watch.event(&Event::Note(&format!(
                    "could not analyze {}: {}",
                    String::from_utf8_lossy(&table),
                    failure.error.message
                )));
            }
        }
        Ok(())
    };
    together(options.jobs, &connection, connect, work)?;
    *tables.lock().unwrap_or_else(PoisonError::into_inner) = alone;
    work(0, &connection)?;
    witness.map_or(Ok(()), |witness| witness.ask())
}

/// A session that was there when all was restored and compared: as long as it lives nothing of that is lost.
pub enum Witness<'a> {
    /// It is needed behind ANALYZE, too, and whoever needs it looks what a crash has cost.
    Kept(&'a Connection),
    /// Nothing comes behind.
    Last(Connection),
}

impl Witness<'_> {
    fn ask(&self) -> Result<()> {
        match self {
            Witness::Kept(session) => session.query(b"SELECT 1").map(drop),
            Witness::Last(session) => session.query(b"SELECT 1").map(drop).map_err(|e| {
                Error::new(ErrorKind::Connection, format!("the connection was lost when all was restored: {}", e.message))
                    .detail("All was committed. If the server has crashed since, unlogged tables are empty.")
                    .hint("Look whether unlogged tables have their rows, and run ANALYZE yourself.")
            }),
        }
    }
}

/// What is analyzed, as ANALYZE names it.
#[derive(Default)]
struct Chosen {
    /// With their bytes, the largest first.
    tables: Vec<(Vec<u8>, u64)>,
    /// Partitioned tables without their partitions.
    parents: Vec<Vec<u8>>,
    /// Such with so many that as many connections as there are, each with one of these, could fill the lock table: one after another.
    alone: Vec<Vec<u8>>,
    /// Partitioned tables whose partitions are not analyzed together.
    left: usize,
}

/// A relation that rows may be in, or below.
struct Relation {
    kind: u8,
    size: u64,
    parent: Option<u32>,
}

/// Before version 18 a partitioned table is analyzed with all of its partitions, by one connection: worth it with so many at most, and
/// if all of them have rows that are new.
const TOGETHER: usize = 128;

/// Tables that got rows. Rows that came through a partitioned table may be in any of its partitions. Partitioned tables get
/// statistics of all their partitions, which nobody else would gather: autovacuum passes them over.
fn choose(
    connection: &Connection,
    archive: &Archive,
    loaded: &[u32],
    jobs: usize,
) -> Result<Chosen> {
    let toc = archive.toc();
    connection.run(connection.not_compiled(false))?;
    let rows = connection.query(
        b"SELECT c.oid, c.relkind, CASE WHEN c.relkind IN ('r', 'm') THEN pg_catalog.pg_relation_size(c.oid) ELSE 0 END AS size, \
          (SELECT i.inhparent FROM pg_catalog.pg_inherits i WHERE c.relispartition AND i.inhrelid = c.oid) \
          FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
          WHERE c.relkind IN ('r', 'm', 'p', 'f') AND c.relpersistence <> 't' AND n.nspname !~ '^pg_' ORDER BY size DESC",
    )?;
    let mut order = Vec::with_capacity(rows.len());
    let mut relations = HashMap::with_capacity(rows.len());
    for r in 0..rows.len() {
        let oid: u32 = rows.number(r, 0).unwrap_or(0);
        let relation = Relation {
            kind: rows.get(r, 1).and_then(|kind| kind.first().copied()).unwrap_or(0),
            size: rows.number(r, 2).unwrap_or(0),
            parent: rows.number(r, 3),
        };
        order.push(oid);
        relations.insert(oid, relation);
    }
    let partitioned = relations.values().any(|relation| relation.kind == b'p');
    let mut names = Vec::new();
    for &place in loaded {
        let entry = toc.entry(place as usize);
        names.push((entry.namespace.to_vec(), entry.tag.to_vec()));
        // INSERTs tell it only where they are stored.
        let into = match entry.copy_stmt {
            _ if entry.desc != b"TABLE DATA" || !partitioned => None,
            b"" => unlogged::filled(archive, place)?,
            _ if copies_via_root(&entry) => Some(reload::target(toc, place)),
            _ => None,
        };
        if let Some(into) = into {
            let table = last_part(&into);
            let schema = into[..into.len() - table.len()].strip_suffix(b".").unwrap_or_default();
            names.push((unquoted(schema), unquoted(table)));
        }
    }
    names.sort_unstable();
    names.dedup();
    let filled: HashSet<u32> = oids_of(connection, &names)?.into_iter().collect();
    let above = |oid: u32| {
        let parent = |oid: &u32| relations.get(oid).and_then(|relation: &Relation| relation.parent);
        std::iter::successors(parent(&oid), move |oid| parent(oid))
    };
    let is_new = |oid: u32| filled.contains(&oid) || above(oid).any(|oid| filled.contains(&oid));
    // By partitioned table: its partitions, those that are new and have rows, and whether there are foreign tables among them.
    let mut trees = HashMap::<u32, (usize, usize, bool)>::new();
    for &oid in &order {
        let relation = &relations[&oid];
        for parent in above(oid).chain(Some(oid).filter(|_| relation.kind == b'p')) {
            let tree = trees.entry(parent).or_default();
            let leaf = matches!(relation.kind, b'r' | b'f');
            tree.0 += usize::from(leaf);
            tree.1 += usize::from(leaf && relation.size > 0 && is_new(oid));
            tree.2 |= relation.kind == b'f';
        }
    }
    let slots = facts::of_server(connection, 1)?.lock_slots as usize;
    let only = connection.server_version() >= 180_000;
    let mut chosen = Chosen::default();
    let (mut parents, mut alone, mut tables) = (Vec::new(), Vec::new(), Vec::new());
    let mut whole = HashSet::new();
    for &oid in &order {
        let Some((leaves, new, foreign)) = trees.get(&oid).filter(|tree| tree.1 > 0) else {
            continue;
        };
        let relation = &relations[&oid];
        // It samples all partitions in one transaction; foreign ones it would have to connect for.
        if *foreign || *leaves > slots / 3 {
            chosen.left += 1;
        } else if only && *leaves > slots / 3 / jobs.max(1) {
            alone.push(oid);
        } else if only {
            parents.push(oid);
        } else if relation.parent.is_some() {
            // With the uppermost, or not at all.
        } else if leaves == new && *leaves <= TOGETHER {
            whole.insert(oid);
        } else {
            chosen.left += 1;
        }
    }
    let mut sizes = HashMap::<u32, u64>::new();
    for &oid in &order {
        let relation = &relations[&oid];
        if !matches!(relation.kind, b'r' | b'm') || relation.size == 0 || !is_new(oid) {
            continue;
        }
        match above(oid).find(|oid| whole.contains(oid)) {
            Some(root) => *sizes.entry(root).or_default() += relation.size,
            None => tables.push((oid, relation.size)),
        }
    }
    tables.extend(sizes);
    tables.sort_by_key(|(oid, size)| (std::cmp::Reverse(*size), *oid));
    let partitioned = parents.iter().chain(&alone).copied();
    let all: Vec<u32> = partitioned.chain(tables.iter().map(|(oid, _)| *oid)).collect();
    let names = names_of(connection, &all)?;
    let name = |oid: &u32| names.get(oid).cloned();
    let only = |oids: &[u32]| -> Vec<Vec<u8>> {
        oids.iter().filter_map(name).map(|n| [b"ONLY ", &n[..]].concat()).collect()
    };
    (chosen.parents, chosen.alone) = (only(&parents), only(&alone));
    let named = tables.into_iter().filter_map(|(oid, size)| Some((name(&oid)?, size)));
    chosen.tables = named.collect();
    Ok(chosen)
}

/// Ask for many things at once; without those of which one side's encoding has no characters for the other's names.
pub(super) fn all_that_can_be_told<T, R: Extend<A> + Default + IntoIterator<Item = A>, A>(
    things: &[T],
    ask: &dyn Fn(&[T]) -> Result<R>,
) -> Result<R> {
    if things.is_empty() {
        return Ok(R::default());
    }
    match ask(things) {
        Err(e) if e.sqlstate.as_deref().is_some_and(|state| UNTRANSLATABLE.contains(&state)) => {
            let mut found = R::default();
            if things.len() > 1 {
                let (left, right) = things.split_at(things.len() / 2);
                found.extend(all_that_can_be_told(left, ask)?);
                found.extend(all_that_can_be_told(right, ask)?);
            }
            Ok(found)
        }
        answer => answer,
    }
}

/// A character that the other encoding does not have, and bytes that are none.
const UNTRANSLATABLE: [&str; 2] = ["22P05", "22021"];

/// The relations of these names, schema and table, as far as there are such.
fn oids_of(connection: &Connection, names: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<u32>> {
    all_that_can_be_told(names, &|names| {
        let (schemas, tables): (Vec<_>, Vec<_>) = names
            .iter()
            .map(|(schema, table)| (quote_literal(schema), quote_literal(table)))
            .unzip();
        let sql = [
            &b"SELECT c.oid FROM ROWS FROM (pg_catalog.unnest(ARRAY["[..],
            &schemas.join(&b", "[..]),
            b"]::pg_catalog.name[]), pg_catalog.unnest(ARRAY[",
            &tables.join(&b", "[..]),
            b"]::pg_catalog.name[])) w (s, t) JOIN pg_catalog.pg_namespace n ON n.nspname = w.s \
              JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.t",
        ]
        .concat();
        let rows = connection.query(&sql)?;
        Ok((0..rows.len()).filter_map(|r| rows.number(r, 0)).collect())
    })
}

/// How statements name these relations.
fn names_of(connection: &Connection, oids: &[u32]) -> Result<HashMap<u32, Vec<u8>>> {
    all_that_can_be_told(oids, &|oids| {
        let list: Vec<String> = oids.iter().map(u32::to_string).collect();
        let sql = format!(
            "SELECT c.oid, pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.oid = ANY (ARRAY[{}]::pg_catalog.oid[])",
            list.join(", ")
        );
        let rows = connection.query(sql.as_bytes())?;
        let name = |r| Some((rows.number(r, 0)?, rows.get(r, 1)?.to_vec()));
        Ok((0..rows.len()).filter_map(name).collect())
    })
}

/// A connection, if the server takes one soon: it counts a session until its process has ended, and those of the restore
/// were closed just now.
fn first(options: &Options, dbname: Option<&str>, stop: &Stop) -> Result<Connection> {
    let mut tries = 0;
    loop {
        // ANALYZE runs functions of indexes, as their owners.
        match options.connect(dbname, For::Statements) {
            Err(e) if e.kind == ErrorKind::Connection && tries < 20 && !stop.is_set() => tries += 1,
            connection => return connection,
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What ANALYZE of a table of so many bytes should cost: it reads a sample, up to 30,000 pages with the usual settings.
fn cost(bytes: u64) -> Costs {
    Costs::of(Kind::Analyze, 2000 + (bytes / 60).min(1_000_000))
}
