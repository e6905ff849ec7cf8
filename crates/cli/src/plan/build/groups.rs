//! Families cut into groups of partitions that are made in one transaction each.

use super::*;
use crate::plan::family::{range_bounds, Member};
use crate::plan::text;

/// From so many partitions on the time that a parent's descriptor takes to be rebuilt for each new one
/// (a few microseconds times the partitions that it has) is worth a staging parent.
pub const STAGE_FROM: usize = 256;
/// Members of a run of adjoining ranges that are worth a staging parent of their own.
const RUN_FROM: usize = 16;
/// Partitions of a group without a staging parent. A transaction must not be large: at the end of each
/// statement the server walks the transaction's list of locks.
const GROUP: usize = 64;

impl Builder<'_> {
    pub(super) fn add_groups(&mut self) {
        let mut families = std::mem::take(&mut self.plan.families);
        for (number, family) in families.iter_mut().enumerate() {
            self.add_family(number as u32, family);
        }
        self.plan.families = families;
    }

    fn add_family(&mut self, number: u32, family: &mut Family) {
        let (runs, others) = match self.stages(family) {
            true => runs(self.input.toc, &family.members),
            false => (Vec::new(), family.members.clone()),
        };
        let worth = runs.iter().map(Vec::len).sum::<usize>() >= STAGE_FROM;
        let (runs, mut others) = match worth {
            true => (runs, others),
            false => (Vec::new(), family.members.clone()),
        };
        others.sort_by_key(|m| (m.default, m.attach));
        let mut last = NONE;
        let mut members = Vec::with_capacity(family.members.len());
        if worth {
            let count = runs.iter().map(Vec::len).sum::<usize>();
            // The cost of groups and of partitions within a group balance at the square root.
            let size = (count as f64).sqrt().round().clamp(32.0, 128.0) as usize;
            let begin = self.add_step(Work::BoundsBegin(number), &[]);
            let end = self.add_step(Work::BoundsEnd(number), &[]);
            for run in runs {
                for part in run.chunks(size) {
                    let step = self.add_group(number, family, &mut members, part, true);
                    self.edge(begin, step);
                    self.edge(step, end);
                }
            }
            last = end;
        }
        for part in others.chunks(GROUP) {
            let step = self.add_group(number, family, &mut members, part, false);
            // One after the other: each needs the parent for itself.
            self.edge(last, step);
            last = step;
        }
        family.members = members;
        self.groups_end.push(last);
        if family.late_checks {
            let table = family.parent;
            // The step is for a part of the parent's entry, which another step begins.
            let checks = self.add_step(Work::Checks(number), &[table]);
            self.step_of[table as usize] = NONE;
            self.checks.insert(table, checks);
        }
        if family.index_mode == IndexMode::Bulk {
            for (n, &index) in family.indexes.iter().enumerate() {
                let mut entries = vec![index];
                for member in &family.members {
                    let (own, attach) = family.pairs[member.pairs.start as usize + n];
                    entries.extend([own, attach]);
                }
                self.add_step(Work::BulkIndex(number), &entries);
            }
        }
    }

    fn add_group(
        &mut self,
        number: u32,
        family: &Family,
        members: &mut Vec<Member>,
        part: &[Member],
        staged: bool,
    ) -> u32 {
        let begin = members.len() as u32;
        let mut entries = Vec::new();
        for member in part {
            entries.extend([member.table, member.attach]);
            entries.extend(family.pairs_with_table(member).iter().flat_map(|(i, a)| [*i, *a]));
            members.push(member.clone());
        }
        let group = self.plan.groups.len() as u32;
        let members = begin..members.len() as u32;
        self.plan.groups.push(Group { family: number, members, staged });
        self.add_step(Work::Group(group), &entries)
    }

    /// The family may be made below staging parents.
    fn stages(&self, family: &Family) -> bool {
        let entry = self.input.toc.entry(family.parent as usize);
        self.input.rules.staged_partitions
            && self.input.facts.superuser
            && self.input.facts.no_staging.is_none()
            && family.members.len() >= STAGE_FROM
            && text::create_table(entry.defn)
                .is_some_and(|t| t.rest.starts_with(b"PARTITION BY RANGE ("))
    }
}

/// Members in runs of adjoining ranges: the upper bound of each is, to the letter, the lower bound of the next.
/// As the server takes no empty range, the bounds of a run ascend, and the run fills the range from its first lower
/// to its last upper bound. The second result is the members that are in no run worth its while.
fn runs(toc: &Toc, members: &[Member]) -> (Vec<Vec<Member>>, Vec<Member>) {
    let mut by_lower = HashMap::new();
    let mut bounds = Vec::with_capacity(members.len());
    for (n, member) in members.iter().enumerate() {
        let attach = text::attach(toc.entry(member.attach as usize).defn);
        let found = attach.and_then(|a| range_bounds(a.bound));
        if let Some((from, _)) = found {
            by_lower.insert(from, n);
        }
        bounds.push(found);
    }
    let uppers: HashSet<&[u8]> = bounds.iter().flatten().map(|(_, to)| *to).collect();
    let mut taken = vec![false; members.len()];
    let mut all = Vec::new();
    for n in 0..members.len() {
        let Some((from, _)) = bounds[n] else { continue };
        if uppers.contains(from) || by_lower.get(from) != Some(&n) {
            continue;
        }
        let mut run = Vec::new();
        let mut at = Some(n);
        while let Some(n) = at.filter(|n| !taken[*n]) {
            taken[n] = true;
            run.push(n);
            at = bounds[n].and_then(|(_, to)| by_lower.get(to).copied());
        }
        all.push(run);
    }
    let mut runs = Vec::new();
    for run in all {
        match run.len() >= RUN_FROM {
            true => runs.push(run.into_iter().map(|n| members[n].clone()).collect()),
            false => run.into_iter().for_each(|n| taken[n] = false),
        }
    }
    let others = members.iter().zip(&taken).filter(|(_, t)| !**t).map(|(m, _)| m.clone()).collect();
    (runs, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjoining_ranges_make_runs() {
        let mut toc = Toc::default();
        let mut members = Vec::new();
        // Ranges 0..20 and 30..50 in odd order, one apart, one default.
        let ranges =
            (0..20).chain(30..50).rev().map(|n| format!("FOR VALUES FROM ({n}) TO ({})", n + 1));
        for (n, bound) in
            ranges.chain(["FOR VALUES FROM (90) TO (95)".into(), "DEFAULT".into()]).enumerate()
        {
            let defn = format!("ALTER TABLE ONLY p ATTACH PARTITION c{n} {bound};\n");
            let entry = Entry { dump_id: n as i32 + 1, defn: defn.as_bytes(), ..Entry::default() };
            toc.push(&entry).unwrap();
            members.push(Member {
                table: 0,
                attach: n as u32,
                pairs: 0..0,
                default: bound == "DEFAULT",
            });
        }
        let (runs, others) = runs(&toc, &members);
        let mut lengths: Vec<_> = runs.iter().map(Vec::len).collect();
        lengths.sort_unstable();
        assert_eq!((lengths, others.len()), (vec![20, 20], 2));
        for run in runs {
            assert!(run.windows(2).all(|w| w[0].attach == w[1].attach + 1));
        }
    }
}
