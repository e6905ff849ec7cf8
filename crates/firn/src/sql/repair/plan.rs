//! What a repair does, decided without doing it: the plan is a value, which a dry run prints and the executor
//! carries out.

use crate::pg::Oid;
use crate::sql::verify::survey::{Class, Survey, Tally, Waste, CLASSES};
use std::fmt;

/// An index of the TOAST relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    pub oid: Oid,
    pub name: String,
    pub usable: bool,
}

/// Rows that should not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wasted {
    pub class: Class,
    pub waste: Waste,
    pub tally: Tally,
}

/// What is known of a table.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub table: String,
    pub has_toast: bool,
    pub indexes: Vec<Index>,
    /// Indexes of the table that rebuilds have left: OID, name.
    pub left_over: Vec<(Oid, String)>,
    /// The index lacks entries, or has wrong ones, or cannot be read.
    pub index_is_damaged: bool,
    /// Either entries of the index are damaged or the keys of rows: an index that is built anew would take the rows' word.
    pub keys_are_doubtful: bool,
    /// All directory rows could be read, so that what they do not name belongs to nothing.
    pub directory_is_whole: bool,
    /// Nothing speaks against that but the index, which can be built anew.
    pub waits_for_index: bool,
    pub wasted: Vec<Wasted>,
    /// Damage of stripes, pages and indexes: object, problem.
    pub damage: Vec<(String, String)>,
}

/// One step of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    CreateToast,
    DropIndex {
        oid: Oid,
        name: String,
    },
    DropLeftOver {
        oid: Oid,
        name: String,
    },
    RebuildIndex {
        oid: Oid,
        name: String,
    },
    Remove(Wasted),
    /// Nothing is done: bytes that are gone cannot be guessed.
    Cannot {
        object: String,
        why: String,
    },
}

/// Plan the repair of a table. Steps are in the order in which they can be done.
pub fn plan(facts: &Facts) -> Vec<Step> {
    let mut steps = Vec::new();
    if !facts.has_toast {
        return vec![Step::CreateToast];
    }
    for (oid, name) in &facts.left_over {
        steps.push(Step::DropLeftOver { oid: *oid, name: name.clone() });
    }
    let best = facts.indexes.iter().find(|i| i.usable).or(facts.indexes.first());
    let Some(best) = best else {
        let why = "its TOAST relation has no index; dump and restore the table".to_owned();
        return vec![Step::Cannot { object: facts.table.clone(), why }];
    };
    for index in facts.indexes.iter().filter(|i| i.oid != best.oid && !i.usable) {
        steps.push(Step::DropIndex { oid: index.oid, name: index.name.clone() });
    }
    for wasted in &facts.wasted {
        steps.push(remove(facts, *wasted));
    }
    // A unique index can be built once no key comes twice.
    if facts.keys_are_doubtful {
        let why = "it, or the keys of the rows that it leads to, are damaged: restore the table from a backup or standby";
        steps.push(Step::Cannot { object: format!("index {}", best.name), why: why.to_owned() });
    } else if !best.usable || facts.index_is_damaged {
        steps.push(Step::RebuildIndex { oid: best.oid, name: best.name.clone() });
    }
    for (object, problem) in &facts.damage {
        steps.push(Step::Cannot { object: object.clone(), why: problem.clone() });
    }
    steps
}

fn remove(facts: &Facts, wasted: Wasted) -> Step {
    let Wasted { class, waste, tally } = wasted;
    let why = match waste {
        // Notes that any run writes anew: the first of them is as good as the second.
        Waste::Double if matches!(class, Class::Intent | Class::Counted) => None,
        Waste::Double => Some("which of them is right is not known; dump and restore the table"),
        Waste::Orphan if facts.waits_for_index => {
            Some("the index has to be built anew before it is known; then call firn.repair again")
        }
        Waste::Orphan if !facts.directory_is_whole => {
            Some("a directory row that cannot be read or found may name them")
        }
        Waste::Orphan | Waste::Stale => None,
    };
    match why {
        None => Step::Remove(wasted),
        Some(why) => Step::Cannot {
            object: facts.table.clone(),
            why: format!("{} {} {}: {why}", tally.rows, waste, class.name()),
        },
    }
}

impl Step {
    /// It is something to be done.
    pub fn can_be_done(&self) -> bool {
        !matches!(self, Step::Cannot { .. })
    }

    /// What it is about.
    pub fn object(&self, table: &str) -> String {
        match self {
            Step::CreateToast | Step::Remove(_) => format!("table {table}"),
            Step::DropIndex { name, .. }
            | Step::DropLeftOver { name, .. }
            | Step::RebuildIndex { name, .. } => format!("index {name}"),
            Step::Cannot { object, .. } => object.clone(),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::CreateToast => f.write_str("create its TOAST relation"),
            Step::DropIndex { .. } => {
                f.write_str("drop it, as it is invalid, unless REINDEX CONCURRENTLY is at work")
            }
            Step::DropLeftOver { .. } => {
                f.write_str("drop it, as a rebuild that did not end has left it")
            }
            Step::RebuildIndex { .. } => f.write_str("rebuild it"),
            Step::Remove(Wasted { class, waste, tally }) => {
                write!(f, "remove {} {waste} {} ({} bytes)", tally.rows, class.name(), tally.bytes)
            }
            Step::Cannot { why, .. } => write!(f, "cannot be mended: {why}"),
        }
    }
}

impl fmt::Display for Waste {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waste::Orphan => "ownerless",
            Waste::Stale => "outdated",
            Waste::Double => "doubled",
        })
    }
}

impl Facts {
    /// Take over what a survey has found.
    pub fn learn(&mut self, survey: &Survey) {
        self.has_toast = true;
        self.indexes = survey
            .indexes
            .iter()
            .map(|i| Index { oid: i.oid, name: i.name.clone(), usable: i.valid && i.ready })
            .collect();
        self.index_is_damaged =
            survey.unindexed() > 0 || survey.astray > 0 || !survey.index_trouble.is_empty();
        self.keys_are_doubtful = survey.doubtful > 0 || survey.misplaced > 0;
        self.directory_is_whole = survey.is_complete();
        self.waits_for_index = !self.directory_is_whole
            && !self.keys_are_doubtful
            && survey.unreadable_pages.is_empty()
            && survey.unreadable_entries.is_empty();
        for (class, _) in CLASSES {
            let at = class as usize;
            let orphans = survey.orphans[at];
            let doubled = Tally { rows: survey.doubled[at], bytes: 0 };
            let stale = match class {
                Class::Forwarding => Tally { rows: survey.stale_lists, bytes: 0 },
                _ => Tally::default(),
            };
            let all = [(Waste::Orphan, orphans), (Waste::Stale, stale), (Waste::Double, doubled)];
            let some = all.into_iter().filter(|(_, tally)| tally.rows > 0);
            self.wasted.extend(some.map(|(waste, tally)| Wasted { class, waste, tally }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Oid = Oid::from_u32(1);
    const TWO: Oid = Oid::from_u32(2);
    const SEVEN: Oid = Oid::from_u32(7);

    fn index(oid: Oid, usable: bool) -> Index {
        Index { oid, name: format!("i{oid}"), usable }
    }

    fn whole() -> Facts {
        let indexes = vec![index(ONE, true)];
        Facts { has_toast: true, directory_is_whole: true, indexes, ..Facts::default() }
    }

    fn steps_say(facts: &Facts, what: &str) -> bool {
        plan(facts).iter().any(|step| step.to_string().contains(what))
    }

    fn wasted(class: Class, waste: Waste) -> Wasted {
        Wasted { class, waste, tally: Tally { rows: 2, bytes: 10 } }
    }

    #[test]
    fn nothing_to_do() {
        assert_eq!(plan(&whole()), vec![]);
        assert_eq!(plan(&Facts::default()), vec![Step::CreateToast]);
    }

    #[test]
    fn left_overs_go() {
        let facts = Facts { left_over: vec![(SEVEN, "i7".into())], ..whole() };
        assert_eq!(plan(&facts), vec![Step::DropLeftOver { oid: SEVEN, name: "i7".into() }]);
    }

    #[test]
    fn one_index_stays() {
        let mut facts = Facts { indexes: vec![index(ONE, false), index(TWO, true)], ..whole() };
        assert_eq!(plan(&facts), vec![Step::DropIndex { oid: ONE, name: "i1".into() }]);
        facts.indexes = vec![index(ONE, false), index(TWO, false)];
        let expected = vec![
            Step::DropIndex { oid: TWO, name: "i2".into() },
            Step::RebuildIndex { oid: ONE, name: "i1".into() },
        ];
        assert_eq!(plan(&facts), expected);
        facts.indexes.clear();
        assert!(!plan(&facts)[0].can_be_done());
    }

    #[test]
    fn nothing_is_removed_that_may_belong_to_something() {
        let orphans = wasted(Class::Chunk, Waste::Orphan);
        let mut facts = Facts { wasted: vec![orphans], ..whole() };
        assert_eq!(plan(&facts), vec![Step::Remove(orphans)]);
        facts.directory_is_whole = false;
        assert!(!plan(&facts)[0].can_be_done());
        assert!(!steps_say(&facts, "again"));
        facts.waits_for_index = true;
        assert!(steps_say(&facts, "call firn.repair again") && !plan(&facts)[0].can_be_done());
        for class in [Class::Directory, Class::Allocation, Class::Chunk, Class::Stone, Class::Value]
        {
            let facts = Facts { wasted: vec![wasted(class, Waste::Double)], ..whole() };
            assert!(!plan(&facts)[0].can_be_done(), "{class:?}");
        }
    }

    #[test]
    fn an_index_that_may_be_right_is_not_built_anew() {
        let mut facts = Facts { index_is_damaged: true, ..whole() };
        assert_eq!(plan(&facts), vec![Step::RebuildIndex { oid: ONE, name: "i1".into() }]);
        facts.keys_are_doubtful = true;
        let steps = plan(&facts);
        assert!(steps.len() == 1 && !steps[0].can_be_done(), "{steps:?}");
    }

    #[test]
    fn doubled_keys_go_before_the_unique_index_is_built() {
        let twice = wasted(Class::Intent, Waste::Double);
        let facts = Facts { wasted: vec![twice], index_is_damaged: true, ..whole() };
        let expected =
            vec![Step::Remove(twice), Step::RebuildIndex { oid: ONE, name: "i1".into() }];
        assert_eq!(plan(&facts), expected);
    }
}
