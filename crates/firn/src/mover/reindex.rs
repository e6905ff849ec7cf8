//! Indexes that moves have left half empty are built anew: after a VACUUM command by its session, after autovacuum by
//! a process of its own (`entry/worker.rs`). What is due is decided by `firn_format::btree`; docs/decisions/0017 has the
//! rules and the reasons.

use super::tidy;
use crate::directory::cleaned;
use crate::pg::attempt::{transactions, Failed};
use crate::pg::catalog::rebuild_index;
use crate::pg::rebuild::{self, Patience, Place};
use crate::pg::rel::index_oids;
use crate::pg::statistics::row_count;
use crate::pg::{btree, catalog, error, guc, worker, xact, Oid};
use crate::pg::{IndexKind, Kind, LockMode, OpenRel, Rel, Toast};
use firn_format::btree::Moves;
use std::collections::HashSet;
use std::time::Duration;

/// A session that has run VACUUM does not wait for a long transaction; a process that nobody waits for does, when it has
/// done what others do not keep it from.
const COMMANDS: Patience =
    Patience { before: secs(1), after: secs(5), swap: secs(2), standbys: false };
const WORKERS: Patience =
    Patience { before: secs(600), after: secs(60), swap: secs(600), standbys: true };

const fn secs(number: u64) -> Duration {
    Duration::from_secs(number)
}
/// After an error, those who may use what it has left are waited for so long.
const LEFT_OVER: Duration = secs(1);

/// Autovacuum has done with a table: an index of it may be due, or a rebuild has left something.
pub fn rebuild_wanted(table: Rel) -> bool {
    let Some(toast) = table.toast_oid() else { return false };
    let toast = Toast::open_oid(toast, LockMode::RowExclusive);
    let moves = note_of(&toast, table.oid());
    moves.are_many()
        || (moves.are_many_for_others() && !others_due(table, moves).is_empty())
        || !rebuild::left_overs(table.oid()).is_empty()
}

/// What is known of the table's moves, of whose old entries none is left.
fn note_of(toast: &Toast, table: Oid) -> Moves {
    let note = match toast.is_empty() {
        true => cleaned::Cleaned::default(),
        false => cleaned::read(toast),
    };
    let rows = row_count(table).max(0.0) as u64;
    let (moved, moved_others) = (u64::from(note.settled), u64::from(note.settled_others));
    Moves { moved, moved_others, rows }
}

/// B-trees of an open relation that are to be built anew.
fn due(relation: Rel, moves: Moves) -> Vec<Oid> {
    indexes(relation, IndexKind::BTree, |index| {
        let (pages, fresh) = btree::pages(index);
        moves.make_due(pages, fresh)
    })
}

/// Indexes of other kinds that are.
fn others_due(relation: Rel, moves: Moves) -> Vec<Oid> {
    indexes(relation, IndexKind::Other, |index| moves.make_other_due(index.heap_blocks()))
}

fn indexes(relation: Rel, kind: IndexKind, is_due: impl Fn(Rel) -> bool) -> Vec<Oid> {
    let mut list = index_oids(relation);
    list.retain(|oid| {
        let index = OpenRel::any_kind(*oid, LockMode::AccessShare);
        index.rel().rebuildable() == Some(kind) && is_due(index.rel())
    });
    list
}

/// What a look at a table has found.
struct Found {
    places: Vec<Place>,
    /// Indexes that are no B-trees.
    others: Vec<Place>,
    left_over: Vec<Place>,
    temporary: bool,
    /// After moves of so many rows the B-trees have been looked at; the others.
    moved: u64,
    moved_others: u64,
}

fn look(oid: Oid) -> Option<Found> {
    let table = OpenRel::try_open(oid, LockMode::ShareUpdateExclusive)?;
    let toast = table.toast_oid()?;
    // Whoever has it, and wants the table next, would wait for us.
    drop(OpenRel::try_open(toast, LockMode::RowExclusive)?);
    let toast = Toast::open_oid(toast, LockMode::RowExclusive);
    let place = |index| Place { index, table: oid, toast: toast.rel().oid() };
    let places = |indexes: Vec<Oid>| indexes.into_iter().map(place).collect();
    if table.is_of_other_session() {
        return None;
    }
    let mut found = Found {
        places: Vec::new(),
        others: Vec::new(),
        left_over: places(rebuild::left_overs(oid)),
        temporary: table.is_temporary(),
        moved: 0,
        moved_others: 0,
    };
    let moves = note_of(&toast, oid);
    if moves.are_many() {
        found.moved = moves.moved;
        found.places = places(due(table.rel(), moves));
    }
    if moves.are_many_for_others() {
        found.moved_others = moves.moved_others;
        found.others = places(others_due(table.rel(), moves));
    }
    Some(found)
}

/// What became of the rebuilds of a table's indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// Others keep us from it.
    PutOff,
    /// An error, of which a warning has been given.
    Failed,
    /// Somebody has cancelled it, or its time is over.
    Cancelled,
}

impl Outcome {
    fn of(failed: &Failed) -> Outcome {
        match failed.cancelled {
            true => Outcome::Cancelled,
            false => Outcome::Failed,
        }
    }

    /// What says more of the two: that somebody has ended it, then a failure, then what was put off.
    fn and(self, other: Outcome) -> Outcome {
        [Outcome::Cancelled, Outcome::Failed, Outcome::PutOff]
            .into_iter()
            .find(|outcome| [self, other].contains(outcome))
            .unwrap_or(Outcome::Done)
    }

    /// Of one after the other, until somebody ends it.
    fn of_all(outcomes: impl Iterator<Item = Outcome>) -> Outcome {
        let mut all = Outcome::Done;
        for outcome in outcomes {
            all = all.and(outcome);
            if all == Outcome::Cancelled {
                break;
            }
        }
        all
    }
}

/// Rebuild what is due of a table, in transactions of their own: called in one in which nothing is going on, and leaves
/// one. Errors in rebuilding become warnings.
fn rebuild(oid: Oid, patience: &mut Patience) -> Outcome {
    if xact::ids_are_scarce() {
        return Outcome::Done;
    }
    let found = match looked_at(oid) {
        Ok(Some(found)) => found,
        Ok(None) => return Outcome::Done,
        Err(failed) => {
            warn(TABLE, oid, &failed);
            return Outcome::of(&failed);
        }
    };
    let left_over = found
        .left_over
        .iter()
        .map(|place| carry_out(*place, &mut || rebuild::remove_left_over(*place, patience.after)));
    let left_over = Outcome::of_all(left_over);
    if left_over == Outcome::Cancelled {
        return left_over;
    }
    let b_trees = Outcome::of_all(found.places.iter().map(|place| found.rebuild(*place, patience)));
    let mut others = Outcome::Done;
    if matches!(b_trees, Outcome::Done | Outcome::Failed) {
        others = Outcome::of_all(found.others.iter().map(|place| found.rebuild(*place, patience)));
    }
    // Nothing tells afterwards which of these have been built anew: when one has been put off, all are due again; when one
    // cannot be built, none is.
    let ended = |outcome| matches!(outcome, Outcome::Done | Outcome::Failed);
    let settled = ended(b_trees) && ended(others);
    let moved = if b_trees == Outcome::Done { found.moved } else { 0 };
    let moved_others = if settled { found.moved_others } else { 0 };
    let forgotten = transactions(|| {
        if moved > 0 || moved_others > 0 {
            xact::with_snapshot(|| forget(oid, moved, moved_others));
            xact::next();
        }
    });
    let forgotten = forgotten.map_or_else(
        |failed| {
            warn(TABLE, oid, &failed);
            Outcome::of(&failed)
        },
        |()| Outcome::Done,
    );
    left_over.and(b_trees).and(others).and(forgotten).and(dropped(oid))
}

/// Whether all copies are gone.
fn dropped(oid: Oid) -> Outcome {
    let any = transactions(|| {
        let any = xact::with_snapshot(|| !rebuild::left_overs(oid).is_empty());
        xact::next();
        any
    });
    match any {
        Ok(true) => Outcome::PutOff,
        Ok(false) => Outcome::Done,
        Err(failed) => {
            warn(TABLE, oid, &failed);
            Outcome::of(&failed)
        }
    }
}

impl Found {
    fn rebuild(&self, place: Place, patience: &mut Patience) -> Outcome {
        carry_out(place, &mut || match self.temporary {
            true => {
                xact::with_snapshot(|| rebuild_index(place.index));
                xact::next();
                true
            }
            false => rebuild::concurrently(place, patience),
        })
    }
}

fn looked_at(oid: Oid) -> Result<Option<Found>, Failed> {
    transactions(|| {
        let found = xact::with_snapshot(|| look(oid));
        xact::next();
        found
    })
}

/// Do something to an index. After an error what the step has made is removed.
fn carry_out(place: Place, body: &mut dyn FnMut() -> bool) -> Outcome {
    let failed = match transactions(body) {
        Ok(true) => return Outcome::Done,
        Ok(false) => return Outcome::PutOff,
        Err(failed) => failed,
    };
    let cleaned = transactions(|| {
        let left = xact::with_snapshot(|| rebuild::left_overs(place.table));
        for index in left {
            rebuild::remove_left_over(Place { index, ..place }, LEFT_OVER);
        }
    });
    warn("rebuild index", place.index, &failed);
    match cleaned {
        Err(again) if again.cancelled => Outcome::Cancelled,
        _ => Outcome::of(&failed),
    }
}

/// Rebuild what is due of the tables that a VACUUM command has vacuumed. What was put off is done as soon as others have
/// ended, by a process that waits for them.
pub fn rebuild_after_command(tables: impl Iterator<Item = Oid>) {
    let mut patience = COMMANDS;
    let mut put_off = false;
    for oid in tables {
        xact::check_for_interrupts();
        match rebuild(oid, &mut patience) {
            Outcome::PutOff => put_off = true,
            Outcome::Cancelled => return,
            Outcome::Done | Outcome::Failed => (),
        }
    }
    if put_off {
        worker::start();
    }
}

/// The work of the background process: what is due in this database.
#[derive(Default)]
pub struct Rounds {
    begun: bool,
    /// Tables with something due that cannot be done now: they are left to the next VACUUM.
    given_up: HashSet<Oid>,
}

impl Rounds {
    /// There is something to be done: at the beginning, and after a round if something has become due meanwhile.
    pub fn are_wanted(&mut self) -> bool {
        if xact::ids_are_scarce() {
            return false;
        }
        let first = !std::mem::replace(&mut self.begun, true);
        first || self.tables().into_iter().any(has_work)
    }

    /// Tables that have not been given up.
    fn tables(&self) -> Vec<Oid> {
        let Some(ours) = catalog::access_method() else { return Vec::new() };
        let mut tables = xact::with_snapshot(|| catalog::tables_of(ours));
        xact::next();
        tables.retain(|oid| !self.given_up.contains(oid));
        tables
    }

    /// Rebuild what is due, first where others do not keep us from it. `turn` is asked before each table whether this
    /// process is still the one at work.
    pub fn run(&mut self, turn: &mut dyn FnMut() -> bool) {
        for oid in &self.tables() {
            if let Err(failed) = transactions(|| tidy::tidy_what_was_left(*oid)) {
                self.given_up.insert(*oid);
                warn(TABLE, *oid, &failed);
            }
            if !turn() {
                return;
            }
        }
        if !guc::rebuild_indexes() {
            return;
        }
        let mut tables = self.tables();
        for mut patience in [COMMANDS, WORKERS] {
            let mut put_off = Vec::new();
            for oid in tables {
                xact::check_for_interrupts();
                if !turn() {
                    return;
                }
                match rebuild(oid, &mut patience) {
                    Outcome::Done => (),
                    Outcome::PutOff => put_off.push(oid),
                    Outcome::Failed | Outcome::Cancelled => drop(self.given_up.insert(oid)),
                }
            }
            tables = put_off;
        }
        self.given_up.extend(tables);
    }
}

fn has_work(oid: Oid) -> bool {
    let is_work = |found: Option<Found>| {
        found.is_some_and(|found| {
            !found.places.is_empty() || !found.others.is_empty() || !found.left_over.is_empty()
        })
    };
    let is_left = transactions(|| {
        let left = xact::with_snapshot(|| tidy::is_left(oid));
        xact::next();
        left
    });
    is_left == Ok(true) || (guc::rebuild_indexes() && looked_at(oid).is_ok_and(is_work))
}

/// What was not possible for a table.
const TABLE: &str = "end the maintenance of table";

/// `of` is an index, or a table that could not be looked at or tidied up.
fn warn(what: &str, of: Oid, failed: &Failed) {
    let name = xact::with_snapshot(|| catalog::name_of(of));
    xact::next();
    let name = name.unwrap_or_else(|| format!("with OID {of}"));
    error(Kind::Skipped, format!("could not {what} {name}"))
        .detail(failed.text.clone())
        .hint("The next VACUUM tries again.")
        .warn()
}

/// After the moves that were known, the table's indexes are as small as new ones.
fn forget(oid: Oid, moved: u64, moved_others: u64) {
    let Some(table) = OpenRel::try_open(oid, LockMode::ShareUpdateExclusive) else { return };
    let Some(toast) = table.toast_oid() else { return };
    let toast = Toast::open_oid(toast, LockMode::RowExclusive);
    if !toast.is_empty() {
        cleaned::forget_settled(&toast, moved, moved_others);
    }
}
