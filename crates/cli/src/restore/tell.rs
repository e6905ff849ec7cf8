//! Steps in words and by kind of work, and which statement failed, for those who watch.

use crate::archive::Toc;
use crate::pg::Connection;
use crate::plan::build::describe;
use crate::plan::text::split_statement;
use crate::plan::{Plan, Work};
use crate::report::{Costs, Event, Kind, Watch};

/// What the server has said beside its answers since the last time. Whoever runs statements of an archive, or about its
/// tables, tells it: a WARNING is about the result.
pub fn notices(connection: &Connection, watch: &dyn Watch) {
    for notice in connection.take_notices() {
        watch.event(&Event::Note(&notice));
    }
}

/// The kind of work that a step is.
pub fn kind(plan: &Plan, toc: &Toc, step: u32) -> Kind {
    let first = || plan.entries(step as usize).first().map(|p| toc.entry(*p as usize).desc);
    match &plan.steps[step as usize].work {
        Work::Group(_) | Work::BoundsBegin(_) | Work::BoundsEnd(_) => Kind::Partitions,
        Work::Data(..) | Work::Reload(_) | Work::LargeObjects => Kind::Data,
        Work::BulkIndex(_) | Work::BulkAttach => Kind::Indexes,
        Work::Checks(_) | Work::ForeignKeyAdd | Work::ForeignKeyValidate => Kind::Constraints,
        Work::Grants => Kind::Descriptions,
        Work::Entries | Work::Milestone => match first().unwrap_or_default() {
            b"TABLE ATTACH" => Kind::Partitions,
            b"TABLE DATA" | b"MATERIALIZED VIEW DATA" | b"SEQUENCE SET" | b"BLOBS" => Kind::Data,
            // Primary keys and unique constraints are indexes.
            b"INDEX" | b"INDEX ATTACH" | b"CONSTRAINT" => Kind::Indexes,
            b"FK CONSTRAINT" | b"CHECK CONSTRAINT" => Kind::Constraints,
            b"ACL" | b"DEFAULT ACL" | b"COMMENT" | b"SECURITY LABEL" | b"STATISTICS DATA" => {
                Kind::Descriptions
            }
            _ => Kind::Schema,
        },
    }
}

/// What steps should cost, by kind.
pub fn costs(plan: &Plan, toc: &Toc, steps: impl IntoIterator<Item = u32>) -> Costs {
    let mut costs = Costs::default();
    for step in steps {
        costs.add(kind(plan, toc, step), u64::from(plan.steps[step as usize].cost));
    }
    costs
}

/// The steps that connections work on: all but points that others wait for.
pub fn real_steps(plan: &Plan) -> impl Iterator<Item = u32> + '_ {
    (0..plan.steps.len() as u32).filter(|s| plan.steps[*s as usize].work != Work::Milestone)
}

/// A step's name for messages.
pub fn name(plan: &Plan, toc: &Toc, step: u32) -> String {
    let entries = plan.entries(step as usize);
    let work = &plan.steps[step as usize].work;
    let Some(first) = entries.first() else {
        return match work {
            Work::BoundsBegin(_) => "bounds of staged partitions".into(),
            _ => "end of staged partitions".into(),
        };
    };
    let name = describe(&toc.entry(*first as usize));
    match (work, entries.len()) {
        (Work::Group(g), _) => match plan.groups[*g as usize].members.len() {
            1 => name,
            n => format!("{name} and {} more partitions", n - 1),
        },
        (Work::Data(part, parts), _) if *parts > 1 => {
            format!("{name} (part {} of {parts})", part + 1)
        }
        (_, 1) => name,
        (_, n) => format!("{name} and {} more", n - 1),
    }
}

/// The statement of a message that failed, and how many characters stand before it: the one around the server's
/// position, or the one that the count of results leads to; the message's beginning if neither is certain.
pub fn statement_at(sql: &[u8], index: usize, position: Option<usize>) -> (String, usize) {
    let mut rest = sql;
    let mut at = 0;
    // Positions count characters from 1.
    let wanted = position.map(|p| {
        let text = String::from_utf8_lossy(sql);
        text.char_indices().nth(p.saturating_sub(1)).map_or(0, |(byte, _)| byte)
    });
    while let Some((statement, after)) = split_statement(rest) {
        let end = sql.len() - after.len();
        let found = match wanted {
            Some(byte) => byte < end,
            None => at == index,
        };
        if found {
            let blanks = statement.len() - statement.trim_ascii_start().len();
            let before = &sql[..sql.len() - rest.len() + blanks];
            let text = String::from_utf8_lossy(statement.trim_ascii()).into_owned();
            return (text, String::from_utf8_lossy(before).chars().count());
        }
        rest = after;
        at += 1;
    }
    (String::from_utf8_lossy(&sql[..sql.len().min(2000)]).into_owned(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failing_statement_is_found() {
        let sql = b"BEGIN;\nCREATE TABLE a (x text DEFAULT ';');\nCREATE TABLE b ();\nCOMMIT;";
        assert_eq!(statement_at(sql, 2, None), ("CREATE TABLE b ()".to_string(), 44));
        let position = sql.windows(2).position(|w| w == b"b ").unwrap() + 1;
        let (statement, begin) = statement_at(sql, 0, Some(position));
        assert_eq!(statement, "CREATE TABLE b ()");
        assert_eq!(statement.chars().nth(position - begin - 1), Some('b'));
        assert_eq!(statement_at(b"nonsense", 0, None), ("nonsense".to_string(), 0));
    }
}
