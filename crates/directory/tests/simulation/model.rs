//! What the table has to hold, said plainly: each row's versions with who made and who removed them, wherever they are stored.

use crate::heap::{Cid, Xid};
use crate::world::{Row, Snapshot, Status, World};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub struct Version {
    pub value: u64,
    pub xmin: Xid,
    cmin: Cid,
    xmax: Xid,
    cmax: Cid,
}

#[derive(Default)]
pub struct Model {
    pub versions: BTreeMap<u64, Vec<Version>>,
}

impl World {
    /// The session inserts a row, or a new version of one.
    pub fn model_insert(&mut self, me: usize, row: Row) {
        let (xmin, cmin) = (self.xid(me), self.backends[me].cid);
        let version = Version { value: row.value, xmin, cmin, xmax: Xid::NONE, cmax: Cid(0) };
        self.model.versions.entry(row.id).or_default().push(version);
    }

    /// The session deletes a version of a row, be it by an update.
    pub fn model_delete(&mut self, me: usize, row: Row) {
        let (xmax, cmax) = (self.xid(me), self.backends[me].cid);
        let versions = self.model.versions.get(&row.id);
        let at = versions.and_then(|list| list.iter().position(|v| v.value == row.value));
        let Some(at) = at else { panic!("{row:?} is changed, which never was") };
        let version = self.model.versions[&row.id][at].clone();
        let lives = self.is_committed(version.xmin) || self.is_ours(version.xmin, me);
        assert!(lives, "{row:?} is changed, which is not there: {version:?}");
        let free = version.xmax == Xid::NONE || self.status(version.xmax) == Status::Aborted;
        assert!(free, "{row:?} is changed twice: {version:?}, now by {xmax:?}");
        if let Some(list) = self.model.versions.get_mut(&row.id) {
            list[at] = Version { xmax, cmax, ..version };
        }
    }

    /// A version is deleted, or going to be, by whom the session has to respect.
    pub fn model_is_gone(&self, me: usize, row: Row) -> bool {
        let versions = self.model.versions.get(&row.id);
        let version = versions.and_then(|list| list.iter().find(|v| v.value == row.value));
        version.is_some_and(|v| self.is_committed(v.xmax) || self.is_ours(v.xmax, me))
    }

    fn is_seen_version(&self, v: &Version, snapshot: &Snapshot, me: usize) -> bool {
        self.is_seen((v.xmin, false, v.cmin), (v.xmax, v.cmax), snapshot, me)
    }

    /// All rows that a snapshot of the session sees.
    pub fn model_rows(&self, snapshot: &Snapshot, me: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        for (id, versions) in &self.model.versions {
            let seen = versions.iter().filter(|v| self.is_seen_version(v, snapshot, me));
            rows.extend(seen.map(|v| Row { id: *id, value: v.value }));
        }
        rows
    }

    /// The version of a row that a snapshot of the session sees.
    pub fn model_row(&self, id: u64, snapshot: &Snapshot, me: usize) -> Option<Row> {
        let versions = self.model.versions.get(&id)?;
        let seen = versions.iter().find(|v| self.is_seen_version(v, snapshot, me));
        seen.map(|v| Row { id, value: v.value })
    }

    /// Forget versions that nobody sees.
    pub fn model_prune(&mut self) {
        // A crash brings back none of them.
        self.flush();
        let oldest = self.horizon();
        let mut versions = std::mem::take(&mut self.model.versions);
        for list in versions.values_mut() {
            list.retain(|v| {
                let undone = self.status(v.xmin) == Status::Aborted;
                let outlived = self.is_committed(v.xmax) && v.xmax.0 < oldest.0;
                !undone && !outlived
            });
        }
        versions.retain(|_, list| !list.is_empty());
        self.model.versions = versions;
    }
}
