//! Rows that a table did not take, without an error: a trigger or a rule of a table that was there may leave rows out, or put them
//! elsewhere. That is its owner's wish perhaps, so it is told and not held against the restore.

use super::data::Copied;
use super::Terms;
use crate::archive::Toc;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::build::describe;
use crate::report::words::{count, counted};
use crate::report::{Event, Watch};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// How many rows of which entries were left out, by place.
#[derive(Debug, Default)]
pub struct LeftOut {
    /// Of transactions that are not committed yet: rows taken, and rows sent.
    pending: Mutex<BTreeMap<u32, (u64, u64)>>,
    told: Mutex<BTreeMap<u32, u64>>,
}

impl LeftOut {
    /// Take note of what was copied. An error if rows are missing of a table that the restore has made, as nobody else has put anything
    /// there that could leave them out.
    pub fn note(&self, toc: &Toc, terms: &Terms, place: u32, copied: &Copied) -> Result<()> {
        let (rows, sent) = (copied.rows, copied.sent);
        if rows < sent && terms.table_made(toc, place as usize).is_some() {
            let message = format!("the server took {rows} of {sent} rows");
            return Err(Error::new(ErrorKind::Statement, message)
                .hint("A trigger, a rule or ON CONFLICT leaves rows out."));
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        match rows < sent {
            true => pending.insert(place, (rows, sent)),
            // An earlier try may have been another.
            false => pending.remove(&place),
        };
        Ok(())
    }

    /// What was noted of these entries is committed: tell it.
    pub fn tell(&self, toc: &Toc, places: &[u32], watch: &dyn Watch) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.is_empty() {
            return;
        }
        let found: Vec<_> =
            places.iter().filter_map(|place| Some((place, pending.remove(place)?))).collect();
        drop(pending);
        for (place, (rows, sent)) in found {
            let what = describe(&toc.entry(*place as usize));
            let (taken, all) = (count(rows), count(sent));
            watch.event(&Event::Note(&format!(
                "warning: {what}: the table took {taken} of {all} rows; a trigger, a rule or ON CONFLICT leaves rows out"
            )));
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.insert(*place, sent.saturating_sub(rows));
        }
    }

    /// The whole, for the end.
    pub fn sum_up(&self, watch: &dyn Watch) {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_empty() {
            return;
        }
        let rows = counted(told.values().sum(), "row", "rows");
        let tables = counted(told.len() as u64, "table", "tables");
        watch.event(&Event::Fact {
            name: "left out",
            value: &format!("{rows} of {tables}, by triggers, rules or ON CONFLICT"),
        });
    }
}
