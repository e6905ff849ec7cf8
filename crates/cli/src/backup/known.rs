//! What the manifest tells of tables, for later backups to go by.

use super::basis::{self, Facts};
use super::progress::Watched;
use super::schema::Schema;
use super::session::{self, Leader, Snapshot};
use super::tasks::Table;
use super::Options;
use crate::archive::manifest::{Basis, TableBasis};
use crate::archive::rewrite::DataEntry;
use crate::error::{Error, Result};
use std::collections::HashMap;

/// By what a later backup may prove that tables have not changed.
pub struct Known {
    pub basis: Option<Basis>,
    pub facts: Facts,
}

impl Known {
    /// The backup is as good without it: what fails here is told, no more.
    pub fn read(
        leader: &Leader,
        schema: &Schema,
        options: &Options,
        progress: &Watched,
    ) -> Result<Known> {
        let none = Known { basis: None, facts: Facts::default() };
        let read = match &schema.snapshot.before {
            // With row security rows depend on who asks.
            Ok(Some(before)) if !options.login.row_security => leader.aside(|connection| {
                let (tables, entries) = (&schema.tables.list, &schema.contents.data);
                let basis = basis::server(connection)?;
                Ok(Known { basis, facts: basis::facts(connection, before, tables, entries)? })
            })?,
            Ok(_) => return Ok(none),
            Err(e) => Err(e.clone()),
        };
        Ok(read.unwrap_or_else(|e| {
            progress.note(&unknown(&e));
            none
        }))
    }

    /// What goes into the manifest: of tables by dump id.
    pub fn confirmed(
        self,
        options: &Options,
        snapshot: &Snapshot,
        copied: &[Table],
        entries: &[DataEntry],
        progress: &Watched,
    ) -> (Option<Basis>, HashMap<i32, TableBasis>) {
        if self.basis.is_none() {
            return (None, HashMap::new());
        }
        let tables = session::connect(&options.login)
            .and_then(|present| self.facts.confirmed(&present, &snapshot.lsn, copied, entries));
        let by_id = |(place, basis)| Some((entries.get::<usize>(place)?.dump_id, basis));
        match tables {
            Ok(tables) => (self.basis, tables.into_iter().filter_map(by_id).collect()),
            Err(e) => {
                progress.note(&unknown(&e));
                (self.basis, HashMap::new())
            }
        }
    }
}

fn unknown(e: &Error) -> String {
    format!("later incremental backups cannot take the tables that are copied now: {}", e.message)
}
