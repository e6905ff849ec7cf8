//! Constraints that are dropped before what comes late and made again behind it, in its transaction (`restore/too_early.rs`, `restore/remade.rs`).

use super::*;
use crate::plan::key_order::{ranks, Placed};
use crate::plan::render::Settings;
use crate::plan::text::foreign_key;
use crate::plan::who::Who;
use crate::restore::remade::{self, Early, Table};
use std::collections::{BTreeMap, HashMap, HashSet};

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

    /// Drop the foreign keys that are to be made again behind what a step makes. Of these, and of those that were dropped for another one, `dropped`, some come
    /// before it if they would take it up. `made`: what this transaction has made. Returns how many statements were sent.
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
        let before =
            |dropped: &mut BTreeMap<u32, Early>, sql: &mut Vec<u8>, settings: &mut Settings| {
                if !dropped.is_empty() {
                    let mut first = too_early.before(dropped, &too_early.constraints(step));
                    sql.extend(self.anew(&mut first, settings));
                }
            };
        let all = match lock(&site.tried).contains(&step) {
            true => Some(too_early.constraints(step)),
            false => None,
        };
        let late = all.as_deref().unwrap_or_else(|| too_early.late(step));
        if late.is_empty() {
            before(dropped, sql, settings);
            return Ok(0);
        }
        // The server is to know what this transaction has made; and the journal is of who restores.
        sql.extend(site.renderer.become_user(Who::Restores, settings));
        let mut sent = self.send(connection, sql)?;
        // What was dropped for others of this transaction has nothing more below it that it would take up.
        let mut just_now = Vec::new();
        loop {
            let is_dropped = |place| dropped.contains_key(&place);
            let taken = lock(&site.taken).contains(&step);
            let keys = too_early.of_late(connection, late, taken, just_now, is_dropped, made)?;
            let (early, locking) = self.early(connection, keys.iter(), sql, settings)?;
            sent += locking;
            if early.is_empty() {
                before(dropped, sql, settings);
                return Ok(sent);
            }
            sql.extend(site.renderer.become_user(Who::Restores, settings));
            sql.extend(early.values().flat_map(|found| found.drop.iter()));
            sent += self.send(connection, sql)?;
            just_now = early.keys().copied().collect();
            dropped.extend(early);
            // Until now others may have made some that these take up; from here on nobody can.
        }
    }

    /// The statements that make them again, in the order that the plan has for foreign keys.
    pub(super) fn anew(
        &self,
        early: &mut BTreeMap<u32, Early>,
        settings: &mut Settings,
    ) -> Vec<u8> {
        let (renderer, toc) = (&self.site.renderer, self.site.archive.toc());
        let mut sql = Vec::new();
        let all = std::mem::take(early);
        let key = |place: &u32| foreign_key(toc.entry(*place as usize).defn);
        let keys: Vec<_> = all.keys().filter_map(|place| Some((*place, key(place)?))).collect();
        let tables = |place: u32| &all[&place].tables[..];
        let above: HashMap<u32, &[Table]> = all
            .values()
            .filter_map(|found| found.tables.split_first())
            .map(|(own, above)| (own.oid, above))
            .collect();
        let table = |place: u32| tables(place).first().map_or(0, |table| table.oid);
        let placed = keys.iter().map(|(place, key)| Placed {
            key,
            table: table(*place),
            splits: all[place].splits,
        });
        let placed: Vec<_> = placed.collect();
        let named = |table: &Table| (table.oid, table.name.clone());
        let above =
            |table| above.get(&table).map_or(vec![], |above| above.iter().map(named).collect());
        let rank = ranks(&placed, above);
        // What is no foreign key comes before these.
        let rank: HashMap<u32, usize> = keys.iter().map(|(place, _)| *place).zip(rank).collect();
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(place, _)| rank.get(place));
        for (place, found) in all {
            sql.extend(renderer.become_user(Who::Restores, settings));
            sql.extend(renderer.statements(&[place], settings));
            sql.extend(renderer.become_user(Who::Restores, settings));
            sql.extend(found.said);
        }
        sql
    }
}
