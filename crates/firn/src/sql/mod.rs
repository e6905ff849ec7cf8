//! What the SQL functions do; their C entry points are in `pg::fmgr`. Privileges are checked here.

pub mod pieces;
mod repair;
mod verify;
mod zones;

use crate::directory::{tombstones, Directory};
use crate::mover::Part;
use crate::pg::fmgr::{Args, Out};
use crate::pg::progress::{activities, Command, COUNTS};
use crate::pg::rel::BLOCK_BYTES;
use crate::pg::{
    catalog, error, snapshot, xact, Kind, LockMode, Oid, OpenRel, Progress, Rel, Snap,
};
use firn_format::Location;

/// Whose call it has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Owner,
    /// Also whoever may VACUUM the table.
    Maintainer,
}

/// What a function is about to do, and who may.
#[derive(Clone, Copy)]
struct Doing {
    what: &'static str,
    by: By,
}

impl Doing {
    fn is_allowed(self, oid: Oid) -> bool {
        match self.by {
            By::Owner => catalog::is_owner(oid),
            By::Maintainer => catalog::may_maintain(oid),
        }
    }
}

/// A table that a call is about.
#[derive(Clone, Copy)]
struct Target {
    oid: Oid,
    /// The caller has named it; else it is a partition of what was named.
    named: bool,
}

/// The tables that a call on `oid` means: the table, or all partitions of a parent. These are locked one by one; for
/// those who keep their locks the parent's is kept, too, so that whoever drops it waits there, and not with half of the
/// partitions in his hands.
fn targets(oid: Oid, doing: Doing, locks_stay: bool) -> Vec<Target> {
    let named = Target { oid, named: true };
    let opened = existing(oid, LockMode::AccessShare);
    if opened.rel().kind() != b'p' {
        return vec![named];
    }
    if !doing.is_allowed(oid) {
        refuse(&opened.rel().name())
    }
    let ours = catalog::access_method();
    let mut tree = catalog::inheritance_tree(oid, LockMode::None);
    if locks_stay {
        opened.keep_lock();
    }
    tree.retain(|oid| ours.is_some() && catalog::access_method_of(*oid) == ours);
    tree.into_iter().map(|oid| Target { oid, named: false }).collect()
}

/// The relation; an error when it has been dropped since its name was looked up.
fn existing(oid: Oid, lock: LockMode) -> OpenRel {
    OpenRel::if_there(oid, lock).unwrap_or_else(|| {
        error(Kind::UndefinedTable, format!("relation with OID {oid} does not exist")).raise()
    })
}

fn refuse(name: &str) -> ! {
    error(Kind::Denied, format!("must be owner of table {name}")).raise()
}

fn refuse_kind(name: &str) -> ! {
    error(Kind::WrongObject, format!("\"{name}\" is not a firn table"))
        .hint("ALTER TABLE ... SET ACCESS METHOD firn makes it one.")
        .raise()
}

/// Open a target with this lock, the one way in for all functions. What others may have done to it since it
/// was found is looked for with the relation locked: a table that was named has to be there, to be a firn
/// table and the caller's; a partition that is not is left out, with a warning if it is another owner's, as
/// VACUUM does it.
fn open_target(target: Target, lock: LockMode, doing: Doing) -> Option<OpenRel> {
    // A lock that stops others is taken only by who may do something with it. Nobody waits for it with the lesser one
    // in his hands: who has it may be about to take one that excludes both.
    let seen = look_at(target, LockMode::AccessShare, doing)?;
    if lock == LockMode::AccessShare {
        return Some(seen);
    }
    drop(seen);
    snapshot::forget_catalog();
    look_at(target, lock, doing)
}

fn look_at(target: Target, lock: LockMode, doing: Doing) -> Option<OpenRel> {
    let Target { oid, named } = target;
    let seen = match named {
        true => existing(oid, lock),
        false => OpenRel::if_there(oid, lock)?,
    };
    let name = seen.rel().name();
    let is_table = matches!(seen.rel().kind(), b'r' | b'm') && seen.rel().is_firn();
    if !is_table && !named {
        return None;
    }
    if !doing.is_allowed(oid) {
        if named {
            refuse(&name)
        }
        error(
            Kind::Skipped,
            format!("skipping \"{name}\" --- only its owner can {} it", doing.what),
        )
        .warn();
        return None;
    }
    if !is_table {
        refuse_kind(&name)
    }
    refuse_without_files(seen.rel());
    Some(seen)
}

fn relation(args: Args) -> Oid {
    args.oid(0).unwrap_or_else(|| error(Kind::Invalid, "relation must not be null").raise())
}

/// Work on one table after the other, with the rights of its owner. Each is a command of its own: two of
/// these functions may stand in one statement, and each finds, and may move on, what the one before it has
/// left.
fn each(
    command: Command,
    oid: Oid,
    doing: Doing,
    mut work: impl FnMut(OpenRel, &Progress) -> i64,
) -> Out {
    xact::prevent_if_read_only(match command {
        Command::Offload => c"firn.offload()",
        Command::Load => c"firn.load()",
        _ => c"firn.compact()",
    });
    let targets = targets(oid, doing, true);
    let (count, mut total) = (targets.len(), 0);
    for (done, target) in targets.into_iter().enumerate() {
        xact::next_command();
        let Some(table) = open_target(target, LockMode::ShareUpdateExclusive, doing) else {
            continue;
        };
        let progress = Progress::begin(command, target.oid, done, count);
        let owner = table.rel().owner();
        total += catalog::as_owner(owner, || work(table, &progress));
    }
    xact::next_command();
    Out::Int8(total)
}

/// `firn.compact(regclass)`.
pub fn compact(args: Args) -> Out {
    let doing = Doing { what: "compact", by: By::Maintainer };
    each(Command::Compact, relation(args), doing, |table, progress| {
        // It opens the table itself, and looks whether anybody else in this session has it open.
        let oid = table.rel().oid();
        drop(table);
        crate::mover::compact(oid, &mut Part::whole(), progress)
    })
}

/// `firn.offload(regclass, name)`.
pub fn offload(args: Args) -> Out {
    let Some(server) = args.name(1) else { return Out::Null };
    let doing = Doing { what: "offload", by: By::Owner };
    let oid = relation(args);
    // Whose table it is comes before what else is wrong.
    targets(oid, doing, true)
        .into_iter()
        .filter(|t| t.named)
        .for_each(|t| drop(open_target(t, LockMode::AccessShare, doing)));
    usable_server(&server);
    each(Command::Offload, oid, doing, |table, progress| {
        crate::tier::offload_table(table.rel(), &server, &mut Part::whole(), progress)
    })
}

/// Raise unless the server is there and the current role may use it.
fn usable_server(server: &str) {
    match catalog::server(server, Oid::INVALID) {
        None => error(Kind::Undefined, format!("server \"{server}\" does not exist")).raise(),
        Some(s) if !catalog::may_use_server(s.oid) => {
            error(Kind::Denied, format!("permission denied for foreign server {server}")).raise()
        }
        Some(_) => (),
    }
}

/// `firn.load(regclass)`.
pub fn load(args: Args) -> Out {
    let doing = Doing { what: "load", by: By::Owner };
    each(Command::Load, relation(args), doing, |table, progress| {
        crate::tier::load_table(table.rel(), &mut Part::whole(), progress)
    })
}

/// `firn.unneeded(regclass)`.
pub fn unneeded(args: Args, sink: &mut dyn FnMut(&[Out])) {
    let doing = Doing { what: "list objects of", by: By::Owner };
    for target in targets(relation(args), doing, false) {
        let Some(table) = open_target(target, LockMode::AccessShare, doing) else { continue };
        // What a standby has not replayed yet may name an object that its directory does not.
        if xact::is_in_recovery() {
            error(Kind::NotNow, "cannot tell which objects are unneeded during recovery")
                .hint("Call firn.unneeded() on the primary.")
                .raise()
        }
        for (server, key, reason) in crate::tier::unneeded(table.rel()) {
            sink(&[Out::Text(server), Out::Text(key), Out::Text(reason)]);
        }
    }
}

/// `firn.accept_store(name)`.
pub fn accept_store(args: Args) -> Out {
    let Some(server) = args.name(0) else { return Out::Null };
    xact::prevent_if_read_only(c"firn.accept_store()");
    match catalog::server(&server, Oid::INVALID) {
        None => error(Kind::Undefined, format!("server \"{server}\" does not exist")).raise(),
        Some(s) if !catalog::owns_server(s.oid) => {
            error(Kind::Denied, format!("must be owner of foreign server {server}")).raise()
        }
        Some(_) => (),
    }
    Out::Text(crate::stores::accept(&server, catalog::current_role()))
}

/// The foreign data wrapper's option validator.
pub fn validate_options(args: Args) -> Out {
    let catalog_of = args.oid(1);
    crate::stores::validate(&args.options(0), catalog_of == Some(catalog::USER_MAPPINGS));
    Out::Void
}

fn readable(oid: Oid) -> OpenRel {
    let opened = existing(oid, LockMode::AccessShare);
    if !catalog::may_select(oid) {
        error(Kind::Denied, format!("permission denied for table {}", opened.rel().name())).raise()
    }
    if !opened.rel().is_firn() {
        refuse_kind(&opened.rel().name())
    }
    refuse_without_files(opened.rel());
    opened
}

/// A standby has no files of an unlogged table. (As PostgreSQL refuses a query of one.)
fn refuse_without_files(table: Rel) {
    if lacks_files(table) {
        error(Kind::Unsupported, "cannot access temporary or unlogged relations during recovery")
            .raise()
    }
}

fn lacks_files(table: Rel) -> bool {
    table.kind() != b'p' && !table.is_permanent() && xact::is_in_recovery()
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

/// `firn.table_info(regclass, boolean)`. With the second argument true a relation that is gone, or no firn
/// table any more, has no row: whoever lists tables has found it a moment ago. Nor has another session's temporary table,
/// which only that can read. Of an unlogged table a standby knows nothing: its row says so by nulls.
pub fn table_info(args: Args, sink: &mut dyn FnMut(&[Out])) {
    let oid = relation(args);
    // Kept open, so that it is there to the end if it is there now.
    let seen = OpenRel::if_there(oid, LockMode::AccessShare);
    let has_row = |r: &OpenRel| r.is_firn() && !r.is_of_other_session();
    if args.bool(1) == Some(true) && !seen.as_ref().is_some_and(has_row) {
        return;
    }
    if args.bool(1) == Some(true) && seen.as_ref().is_some_and(|r| lacks_files(r.rel())) {
        return sink(&[const { Out::Null }; 6]);
    }
    let opened = readable(oid);
    let table = opened.rel();
    let row_store = i64::from(table.heap_blocks()) * BLOCK_BYTES as i64;
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
    let doing = Doing { what: "check", by: By::Maintainer };
    let targets = targets(relation(args), doing, false);
    let count = targets.len();
    for (done, target) in targets.into_iter().enumerate() {
        let Some(table) = open_target(target, LockMode::AccessShare, doing) else { continue };
        let progress = Progress::begin(Command::Check, target.oid, done, count);
        verify::check_table(table.rel(), &progress, &mut |severity, object, problem| {
            sink(&[
                Out::Text(severity.to_owned()),
                Out::Text(object.to_owned()),
                Out::Text(problem.to_owned()),
            ]);
        });
    }
}

/// `firn.repair(regclass, boolean)`.
pub fn repair(args: Args, sink: &mut dyn FnMut(&[Out])) {
    let dry = args.bool(1) != Some(false);
    if !dry {
        xact::prevent_if_read_only(c"firn.repair()");
    }
    let doing = Doing { what: "repair", by: By::Owner };
    let targets = targets(relation(args), doing, !dry);
    let count = targets.len();
    for (done, target) in targets.into_iter().enumerate() {
        let Some(seen) = open_target(target, LockMode::AccessShare, doing) else { continue };
        let progress = Progress::begin(Command::Repair, target.oid, done, count);
        let mut tell = |object: &str, action: &str, done: bool| {
            sink(&[Out::Text(object.to_owned()), Out::Text(action.to_owned()), Out::Bool(done)]);
        };
        // Only a table that needs it is locked against everybody, and to the end of the transaction.
        let plan = repair::plan_of(seen.rel(), &progress);
        if dry || !plan.can_be_done() {
            plan.tell(&mut tell);
            continue;
        }
        drop(seen);
        let Some(opened) = open_target(target, LockMode::AccessExclusive, doing) else { continue };
        let owner = opened.rel().owner();
        opened.rel().check_not_in_use(c"repair");
        crate::write::flush_table(opened.rel());
        drop(opened);
        xact::next_command();
        catalog::as_owner(owner, || repair::repair(target.oid, &progress, &mut tell));
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
