//! Constraints that are dropped before what comes late and made again behind it, in its transaction (`restore/too_early.rs`, `restore/remade.rs`).

use super::*;
use crate::plan::render::Settings;
use crate::plan::who::Who;
use crate::restore::remade::{self, Early};
use std::collections::{BTreeMap, HashSet};

impl Worker<'_, '_> {
    /// Constraints that are there too early, with what is said of them, and how many statements that took: nobody says more of them until this
    /// transaction ends.
    pub(super) fn early<'p>(
        &self,
        connection: &Connection,
        places: impl Iterator<Item = &'p u32>,
        sql: &mut Vec<u8>,
        settings: &mut Settings,
    ) -> Result<(BTreeMap<u32, Early>, u64), Tried> {
        let toc = self.site.archive.toc();
        let look = |place: &u32| remade::look(connection, &toc.entry(*place as usize));
        let mut there = Vec::new();
        for place in places {
            there.extend(look(place)?.map(|_| *place));
        }
        if there.is_empty() {
            return Ok((BTreeMap::new(), 0));
        }
        sql.extend(self.site.renderer.become_user(Who::Restores, settings));
        sql.extend(there.iter().flat_map(|place| remade::lock(&toc.entry(*place as usize))));
        let sent = self.send(connection, sql)?;
        let mut early = BTreeMap::new();
        for place in there {
            early.extend(look(&place)?.map(|found| (place, found)));
        }
        Ok((early, sent))
    }

    /// Drop the foreign keys that are to be made again behind what a step makes. Those that were dropped for another one, `dropped`, come before it if they
    /// would take it up. `made`: what this transaction has made. Returns how many statements were sent.
    pub(super) fn behind_late(
        &self,
        connection: &Connection,
        step: u32,
        dropped: &mut BTreeMap<u32, Early>,
        made: &HashSet<u32>,
        sql: &mut Vec<u8>,
        settings: &mut Settings,
    ) -> Result<u64, Tried> {
        let (site, too_early) = (self.site, &self.site.too_early);
        if !dropped.is_empty() && too_early.take_up(dropped.keys(), &too_early.constraints(step)) {
            sql.extend(self.anew(dropped, settings));
        }
        let all = match lock(&site.tried).contains(&step) {
            true => Some(too_early.constraints(step)),
            false => None,
        };
        let late = all.as_deref().unwrap_or_else(|| too_early.late(step));
        if late.is_empty() {
            return Ok(0);
        }
        // The server is to know what this transaction has made; and the journal is of who restores.
        sql.extend(site.renderer.become_user(Who::Restores, settings));
        let mut sent = self.send(connection, sql)?;
        loop {
            let there: Vec<u32> = dropped.keys().copied().collect();
            let keys = too_early.of_late(connection, late, &there, made)?;
            let (early, locking) = self.early(connection, keys.iter(), sql, settings)?;
            sent += locking;
            if early.is_empty() {
                return Ok(sent);
            }
            sql.extend(site.renderer.become_user(Who::Restores, settings));
            sql.extend(early.values().flat_map(|found| found.drop.iter()));
            sent += self.send(connection, sql)?;
            dropped.extend(early);
            // Until now others may have made some that these take up; from here on nobody can.
        }
    }

    /// The statements that make them again, those of tables above before those below, which they would take up.
    pub(super) fn anew(
        &self,
        early: &mut BTreeMap<u32, Early>,
        settings: &mut Settings,
    ) -> Vec<u8> {
        let renderer = &self.site.renderer;
        let mut sql = Vec::new();
        let mut all: Vec<(u32, Early)> = std::mem::take(early).into_iter().collect();
        all.sort_by_key(|(place, found)| (found.depth, *place));
        for (place, found) in all {
            sql.extend(renderer.become_user(Who::Restores, settings));
            sql.extend(renderer.statements(&[place], settings));
            sql.extend(renderer.become_user(Who::Restores, settings));
            sql.extend(found.said);
        }
        sql
    }
}
