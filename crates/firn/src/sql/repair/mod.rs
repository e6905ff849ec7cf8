//! `firn.repair()`: mends what can be mended without guessing, and says what cannot.

mod plan;

use crate::pg::rebuild;
use crate::pg::snapshot::Registered;
use crate::pg::survey::delete_row;
use crate::pg::{catalog, lock, own_toast, xact, LockMode, Oid, OpenRel, Progress, Rel};
use crate::sql::verify::{self, survey};
use plan::{Facts, Step, Wasted};

/// Is told object, action, and whether it is done.
type Report<'a> = &'a mut dyn FnMut(&str, &str, bool);

/// How often it is looked whether more can be done: what an index hides shows when it is rebuilt.
const ROUNDS: usize = 4;

/// What a repair of a table would do.
pub struct Plan {
    table: String,
    steps: Vec<Step>,
}

/// Plan the repair of a table.
pub fn plan_of(table: Rel, progress: &Progress) -> Plan {
    Plan { table: table.name(), steps: plan::plan(&facts(table, progress)) }
}

impl Plan {
    /// There is something that can be done.
    pub fn can_be_done(&self) -> bool {
        self.steps.iter().any(Step::can_be_done)
    }

    /// Tell it, and that nothing was done.
    pub fn tell(&self, report: Report<'_>) {
        for step in &self.steps {
            report(&step.object(&self.table), &step.to_string(), false);
        }
    }
}

/// Repair a table, which nobody else uses.
pub fn repair(oid: Oid, progress: &Progress, report: Report<'_>) {
    for round in 1.. {
        let opened = OpenRel::open(oid, LockMode::AccessExclusive);
        // REINDEX of the TOAST relation needs no lock on the table: its new index must not be taken for a left-over
        // and be dropped when it has become the valid one.
        let rows = opened.rel().toast_oid().map(|t| OpenRel::open(t, LockMode::AccessExclusive));
        let name = opened.rel().name();
        let steps = plan::plan(&facts(opened.rel(), progress));
        let more = steps.iter().any(Step::can_be_done) && round <= ROUNDS;
        drop((rows, opened));
        for step in steps {
            if more && step.can_be_done() {
                carry_out(oid, &step);
                report(&step.object(&name), &step.to_string(), true);
            } else if !more {
                report(&step.object(&name), &step.to_string(), false);
            }
        }
        if !more {
            return;
        }
    }
}

fn facts(table: Rel, progress: &Progress) -> Facts {
    let mut facts = Facts { table: format!("table {}", table.name()), ..Facts::default() };
    let Some(toast) = table.toast_oid() else { return facts };
    let snapshot = Registered::latest();
    let survey = survey::take(toast, snapshot.snap(), &mut |_, _, _, _| ());
    facts.learn(&survey);
    // Who has this lock may be at work at one.
    if !xact::is_in_recovery() && !lock::is_held_by_others(table, LockMode::ShareUpdateExclusive) {
        let left = rebuild::left_overs(table.oid()).into_iter();
        facts.left_over = left.filter_map(|oid| Some((oid, catalog::name_of(oid)?))).collect();
    }
    // Without its index, what there is cannot be read.
    if !facts.index_is_damaged && facts.indexes.iter().any(|i| i.usable) {
        let damage = &mut facts.damage;
        verify::check_contents(table, &survey, progress, &mut |severity, object, problem| {
            if severity == "error" {
                damage.push((object.to_owned(), problem.to_owned()));
            }
        });
    }
    facts
}

fn carry_out(oid: Oid, step: &Step) {
    match step {
        Step::CreateToast => own_toast::create_toast(oid),
        Step::DropIndex { oid, .. } | Step::DropLeftOver { oid, .. } => catalog::drop_index(*oid),
        Step::RebuildIndex { oid, .. } => catalog::rebuild_index(*oid),
        Step::Remove(Wasted { class, waste, .. }) => {
            let table = OpenRel::open(oid, LockMode::AccessExclusive);
            let Some(toast) = table.rel().toast_oid() else { return };
            let rows = OpenRel::open(toast, LockMode::AccessExclusive);
            let snapshot = Registered::latest();
            survey::take(toast, snapshot.snap(), &mut |of, _, place, is| {
                if (of, is) == (*class, *waste) {
                    delete_row(rows.rel(), place);
                }
            });
        }
        Step::Cannot { .. } => (),
    }
    xact::next_command();
}
