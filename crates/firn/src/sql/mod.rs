//! What the SQL functions do; their C entry points are in `pg::fmgr`. Privileges are checked here.

mod verify;
mod zones;

use crate::directory::{tombstones, Directory};
use crate::pg::fmgr::{Args, Out};
use crate::pg::progress::{activities, Command, COUNTS};
use crate::pg::{catalog, error, xact, Kind, LockMode, OpenRel, Progress, Snap};
use firn_format::Location;

/// Who may do it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Owner,
    /// Also whoever may VACUUM the table.
    Maintainer,
}

/// The firn tables that a call on `oid` means: the table, or all partitions of a parent. Of those, the ones
/// that belong to others are left out, with a warning, as VACUUM does it. `doing` is the function's name.
fn targets(oid: u32, doing: &str, by: By) -> Vec<u32> {
    let may = |oid: u32| match by {
        By::Owner => catalog::is_owner(oid),
        By::Maintainer => catalog::may_maintain(oid),
    };
    let opened = OpenRel::any_kind(oid, LockMode::AccessShare);
    let name = opened.rel().name();
    if !may(oid) {
        error(Kind::Denied, format!("must be owner of table {name}")).raise()
    }
    let partitioned = opened.rel().kind() == b'p';
    if !partitioned && !opened.rel().is_firn() {
        error(Kind::WrongObject, format!("\"{name}\" is not a firn table"))
            .hint("ALTER TABLE ... SET ACCESS METHOD firn makes it one.")
            .raise()
    }
    drop(opened);
    if !partitioned {
        return vec![oid];
    }
    let mut tables = catalog::inheritance_tree(oid, LockMode::AccessShare);
    tables.retain(|o| {
        let child = OpenRel::any_kind(*o, LockMode::AccessShare);
        let wanted = matches!(child.rel().kind(), b'r' | b'm') && child.rel().is_firn();
        if wanted && !may(*o) {
            let name = child.rel().name();
            error(Kind::Skipped, format!("skipping \"{name}\" --- only its owner can {doing} it"))
                .warn();
        }
        wanted && may(*o)
    });
    tables
}

fn relation(args: Args) -> u32 {
    args.oid(0).unwrap_or_else(|| error(Kind::Invalid, "relation must not be null").raise())
}

/// Work on one table after the other, in a transaction that may write. Each is a command of its own: two of these functions may stand in
/// one statement, and each finds, and may move on, what the one before it has left.
fn each(command: Command, tables: Vec<u32>, mut work: impl FnMut(u32, &Progress) -> i64) -> Out {
    xact::refuse_if_read_only(match command {
        Command::Offload => c"firn.offload()",
        Command::Load => c"firn.load()",
        _ => c"firn.compact()",
    });
    let (count, mut total) = (tables.len(), 0);
    for (done, table) in tables.into_iter().enumerate() {
        xact::next_command();
        let progress = Progress::begin(command, table, done, count);
        total += catalog::as_owner(owner_of(table), || work(table, &progress));
    }
    xact::next_command();
    Out::Int8(total)
}

fn owner_of(table: u32) -> u32 {
    OpenRel::any_kind(table, LockMode::AccessShare).rel().owner()
}

/// `firn.compact(regclass)`.
pub fn compact(args: Args) -> Out {
    let tables = targets(relation(args), "compact", By::Maintainer);
    each(Command::Compact, tables, crate::mover::compact)
}

/// `firn.offload(regclass, name)`.
pub fn offload(args: Args) -> Out {
    let Some(server) = args.name(1) else { return Out::Null };
    let tables = targets(relation(args), "offload", By::Owner);
    match catalog::server(&server, 0) {
        None => error(Kind::Undefined, format!("server \"{server}\" does not exist")).raise(),
        Some(s) if !catalog::may_use_server(s.oid) => {
            error(Kind::Denied, format!("permission denied for foreign server {server}")).raise()
        }
        Some(_) => (),
    }
    each(Command::Offload, tables, |table, progress| {
        crate::tier::offload_table(table, &server, progress)
    })
}

/// `firn.load(regclass)`.
pub fn load(args: Args) -> Out {
    let tables = targets(relation(args), "load", By::Owner);
    each(Command::Load, tables, crate::tier::load_table)
}

/// `firn.unneeded(regclass)`.
pub fn unneeded(args: Args, sink: &mut dyn FnMut(&[Out])) {
    for table in targets(relation(args), "list objects of", By::Owner) {
        for (server, key, reason) in crate::tier::unneeded(table) {
            sink(&[Out::Text(server), Out::Text(key), Out::Text(reason)]);
        }
    }
}

/// The foreign data wrapper's option validator.
pub fn validate_options(args: Args) -> Out {
    let catalog_of = args.oid(1).unwrap_or(0);
    crate::tier::validate(&args.options(0), catalog_of == catalog::USER_MAPPINGS);
    Out::Void
}

fn readable(oid: u32) -> OpenRel {
    let opened = OpenRel::any_kind(oid, LockMode::AccessShare);
    if !catalog::may_select(oid) {
        error(Kind::Denied, format!("permission denied for table {}", opened.rel().name())).raise()
    }
    if !opened.rel().is_firn() {
        error(Kind::WrongObject, format!("\"{}\" is not a firn table", opened.rel().name())).raise()
    }
    opened
}

/// `firn.stripes(regclass)`.
pub fn stripes(args: Args, sink: &mut dyn FnMut(&[Out])) {
    let opened = readable(relation(args));
    let table = opened.rel();
    let Some(directory) = Directory::open(table, LockMode::AccessShare) else { return };
    let Some(snap) = Snap::active() else { return };
    // Bounds are values of rows.
    let hidden = catalog::hides_rows(table.oid());
    for found in directory.list(snap) {
        xact::check_for_interrupts();
        let entry = &found.entry;
        let deleted = tombstones::deleted(&directory.toast, found.slot, entry.rows, snap)
            .map_or(0, |d| d.count());
        let (place, key) = match &entry.location {
            Location::Chunks { .. } => ("local".to_owned(), Out::Null),
            Location::Object { server, key } => (server.clone(), Out::Text(key.clone())),
        };
        sink(&[
            Out::Int8(i64::from(found.slot.0)),
            Out::Int8(i64::from(entry.rows)),
            Out::Int8(i64::from(deleted)),
            Out::Int8(entry.bytes as i64),
            Out::Int8(entry.raw_bytes as i64),
            Out::Text(place),
            key,
            Out::Time(entry.created_at),
            match hidden {
                true => Out::Null,
                false => Out::Text(zones::describe(table, &entry.zones)),
            },
        ]);
    }
}

/// `firn.table_info(regclass)`.
pub fn table_info(args: Args, sink: &mut dyn FnMut(&[Out])) {
    let opened = readable(relation(args));
    let table = opened.rel();
    let row_store = i64::from(table.heap_blocks()) * 8_192;
    let (mut count, mut rows, mut deleted, mut local, mut cold) = (0i64, 0i64, 0i64, 0i64, 0i64);
    if let (Some(directory), Some(snap)) =
        (Directory::open(table, LockMode::AccessShare), Snap::active())
    {
        for found in directory.list(snap) {
            xact::check_for_interrupts();
            let entry = &found.entry;
            count += 1;
            rows += i64::from(entry.rows);
            deleted += tombstones::deleted(&directory.toast, found.slot, entry.rows, snap)
                .map_or(0, |d| i64::from(d.count()));
            match entry.location {
                Location::Chunks { .. } => local += entry.bytes as i64,
                Location::Object { .. } => cold += entry.bytes as i64,
            }
        }
    }
    sink(&[row_store, count, rows, deleted, local, cold].map(Out::Int8));
}

/// `firn.stripe_file(regclass, slot)`.
pub fn stripe_file(args: Args) -> Out {
    let oid = relation(args);
    let opened = readable(oid);
    if !catalog::is_owner(oid) {
        error(Kind::Denied, format!("must be owner of table {}", opened.rel().name())).raise()
    }
    let (Some(slot), Some(snap)) = (args.int8(1), Snap::active()) else { return Out::Null };
    let Some(directory) = Directory::open(opened.rel(), LockMode::AccessShare) else {
        return Out::Null;
    };
    match directory.list(snap).into_iter().find(|f| i64::from(f.slot.0) == slot) {
        Some(found) => Out::Bytes(crate::tier::read_stripe(opened.rel(), &directory, &found)),
        None => Out::Null,
    }
}

/// `firn.check(regclass)`.
pub fn check(args: Args, sink: &mut dyn FnMut(&[Out])) {
    let tables = targets(relation(args), "check", By::Maintainer);
    let count = tables.len();
    for (done, oid) in tables.into_iter().enumerate() {
        let progress = Progress::begin(Command::Check, oid, done, count);
        verify::check_table(oid, &progress, &mut |severity, object, problem| {
            sink(&[
                Out::Text(severity.to_owned()),
                Out::Text(object.to_owned()),
                Out::Text(problem.to_owned()),
            ]);
        });
    }
}

/// `firn.activity_info()`.
pub fn activity_info(_: Args, sink: &mut dyn FnMut(&[Out])) {
    for found in activities() {
        let mut row = vec![Out::Int4(found.pid), Out::Oid(found.database)];
        match found.work {
            Some(work) => {
                row.push(Out::Text(work.command.to_string()));
                row.push(Out::Oid(work.table));
                row.push(Out::Text(work.phase.to_owned()));
                row.extend(work.counts.map(Out::Int8));
            }
            None => row.extend((0..3 + COUNTS).map(|_| Out::Null)),
        }
        sink(&row);
    }
}
