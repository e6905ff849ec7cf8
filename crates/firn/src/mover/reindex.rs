//! Indexes that moves have left half empty are built anew: after a VACUUM command by its session, after autovacuum by
//! a process of its own (`pg/worker.rs`). What is due is decided by `firn_format::btree`; docs/decisions/0017 has the
//! rules and the reasons.

use crate::directory::cleaned;
use crate::pg::attempt::{transactions, Failed};
use crate::pg::rebuild::{self, Patience, Place};
use crate::pg::tableam_ddl::{index_oids, rebuild_index, row_count};
use crate::pg::{btree, catalog, error, guc, worker, xact, Kind, LockMode, OpenRel, Rel, Toast};
use firn_format::btree::Moves;
use std::time::Duration;

/// A session that has run VACUUM does not wait for a long transaction; a process that nobody waits for does.
const COMMANDS: Patience =
    Patience { before: Duration::from_secs(1), after: Duration::from_secs(5) };
const WORKERS: Patience =
    Patience { before: Duration::from_secs(600), after: Duration::from_secs(60) };

/// Autovacuum has done with a table: an index of it may be due, or a rebuild has left something.
pub fn rebuild_wanted(table: Rel) -> bool {
    let Some(toast) = table.toast_oid() else { return false };
    let toast = Toast::open_oid(toast, LockMode::RowExclusive);
    note_of(&toast, table.oid()).are_many()
        || [table.oid(), toast.rel().oid()].iter().any(|oid| !rebuild::left_overs(*oid).is_empty())
}

/// The same of a TOAST relation. Its own index is looked at, as chunks come and go without a row being moved.
pub fn rebuild_wanted_of_toast(rel: Rel) -> bool {
    let Some(owner) = catalog::owner_of_toast(rel.oid()) else { return false };
    let toast = Toast::open_oid(rel.oid(), LockMode::RowExclusive);
    let moves = Moves { toast: true, ..note_of(&toast, owner) };
    moves.are_many()
        || !due(rel, moves).is_empty()
        || [owner, rel.oid()].iter().any(|oid| !rebuild::left_overs(*oid).is_empty())
}

/// What is known of the table's moves, of whose old entries none is left.
fn note_of(toast: &Toast, table: u32) -> Moves {
    let note = match toast.is_empty() {
        true => cleaned::Cleaned::default(),
        false => cleaned::read(toast),
    };
    let rows = row_count(table).max(0.0) as u64;
    Moves { moved: u64::from(note.settled), rows, toast: false }
}

/// Indexes of an open relation that are to be built anew.
fn due(relation: Rel, moves: Moves) -> Vec<u32> {
    let mut list = index_oids(relation);
    list.retain(|oid| {
        let index = OpenRel::any_kind(*oid, LockMode::AccessShare);
        if !index.rel().is_plain_btree() {
            return false;
        }
        let (pages, fresh) = btree::pages(index.rel());
        moves.make_due(pages, fresh)
    });
    list
}

/// What a look at a table has found.
struct Found {
    places: Vec<Place>,
    left_over: Vec<Place>,
    temporary: bool,
    /// After moves of so many rows the indexes have been looked at.
    moved: u64,
}

fn look(oid: u32) -> Option<Found> {
    let table = OpenRel::try_open(oid, LockMode::ShareUpdateExclusive)?;
    let toast = table.toast_oid()?;
    // Whoever has it, and wants the table next, would wait for us.
    drop(OpenRel::try_open(toast, LockMode::RowExclusive)?);
    let toast = Toast::open_oid(toast, LockMode::RowExclusive);
    let relations = [table.rel(), toast.rel()];
    let place = |relation: Rel, index: u32| Place {
        index,
        relation: relation.oid(),
        table: oid,
        toast: toast.rel().oid(),
    };
    let mut found = Found {
        places: Vec::new(),
        left_over: Vec::new(),
        temporary: table.is_temporary(),
        moved: 0,
    };
    if table.is_of_other_session() {
        return None;
    }
    for relation in relations {
        let left = rebuild::left_overs(relation.oid());
        found.left_over.extend(left.into_iter().map(|index| place(relation, index)));
    }
    let moves = note_of(&toast, oid);
    if moves.are_many() {
        found.moved = moves.moved;
        found.places.extend(due(table.rel(), moves).into_iter().map(|i| place(table.rel(), i)));
    }
    let moves = Moves { toast: true, ..moves };
    found.places.extend(due(toast.rel(), moves).into_iter().map(|i| place(toast.rel(), i)));
    Some(found)
}

/// What rebuilds one after the other have in common.
pub struct Rebuilds {
    patience: Patience,
    /// Something was left for later.
    put_off: bool,
    cancelled: bool,
}

impl Rebuilds {
    /// After a VACUUM command.
    pub fn of_command() -> Rebuilds {
        Rebuilds { patience: COMMANDS, put_off: false, cancelled: false }
    }

    /// Rebuild what is due of a table, in transactions of its own: called in one in which nothing is going on, and
    /// leaves one. Errors in rebuilding become warnings.
    pub fn rebuild(&mut self, oid: u32) {
        if self.cancelled || xact::ids_are_scarce() {
            return;
        }
        let found = transactions(|| {
            let found = xact::with_snapshot(|| look(oid));
            xact::next();
            found
        });
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(failed) => {
                self.cancelled |= failed.cancelled;
                return warn(oid, failed);
            }
        };
        for place in &found.left_over {
            self.step(*place, |_| rebuild::remove_left_over(*place));
        }
        let mut all = true;
        for place in &found.places {
            all &= match found.temporary {
                true => self.step(*place, |_| {
                    xact::with_snapshot(|| rebuild_index(place.index));
                    xact::next();
                    true
                }),
                false => self.step(*place, |patience| rebuild::concurrently(*place, patience)),
            };
        }
        if all && found.moved > 0 && !self.cancelled {
            let done = transactions(|| {
                xact::with_snapshot(|| forget(oid, found.moved));
                xact::next();
            });
            if let Err(failed) = done {
                self.cancelled |= failed.cancelled;
                warn(oid, failed);
            }
        }
    }

    /// Do something to an index; false when it has not been done. After an error what the step has made is removed.
    fn step(&mut self, place: Place, body: impl FnOnce(&mut Patience) -> bool) -> bool {
        if self.cancelled {
            return false;
        }
        let failed = match transactions(|| body(&mut self.patience)) {
            Ok(done) => {
                self.put_off |= !done;
                return done;
            }
            Err(failed) => failed,
        };
        self.cancelled |= failed.cancelled;
        let cleaned = transactions(|| {
            let left = xact::with_snapshot(|| rebuild::left_overs(place.relation));
            for index in left {
                rebuild::remove_left_over(Place { index, ..place });
            }
        });
        self.cancelled |= cleaned.is_err_and(|failed| failed.cancelled);
        warn(place.index, failed);
        false
    }

    /// What was left for later is done as soon as others have ended, by a process that waits for them.
    pub fn finish(self) {
        if self.put_off && !self.cancelled {
            worker::start();
        }
    }
}

/// `of` is an index, or a table that could not be looked at.
fn warn(of: u32, failed: Failed) {
    let name = xact::with_snapshot(|| catalog::name_of(of));
    xact::next();
    let name = name.unwrap_or_else(|| format!("with OID {of}"));
    error(Kind::Skipped, format!("could not rebuild index {name}"))
        .detail(failed.text)
        .hint(
            "It is as large as it was. The next VACUUM tries again, if firn.rebuild_indexes is on.",
        )
        .warn()
}

/// After the moves that were known, the table's indexes are as small as new ones.
fn forget(oid: u32, moved: u64) {
    let Some(table) = OpenRel::try_open(oid, LockMode::ShareUpdateExclusive) else { return };
    let Some(toast) = table.toast_oid() else { return };
    let toast = Toast::open_oid(toast, LockMode::RowExclusive);
    if !toast.is_empty() {
        cleaned::forget_settled(&toast, moved);
    }
}

/// Rebuild what is due in this database: the work of the background process.
pub fn rebuild_all() {
    let Some(ours) = catalog::access_method() else { return };
    if !guc::rebuild_indexes() {
        return;
    }
    let tables = xact::with_snapshot(|| catalog::tables_of(ours));
    xact::next();
    let mut rebuilds = Rebuilds { patience: WORKERS, put_off: false, cancelled: false };
    for oid in tables {
        xact::check_for_interrupts();
        rebuilds.rebuild(oid);
    }
}
