//! What each kind of statement locks, so that two that would wait for each other are not run at the same time.
//!
//! Modes are PostgreSQL's table-level locks (documentation, chapter 13.3) plus three of our own. Batches whose
//! locks conflict never run at the same time: so no transaction of a restore waits for another but for the
//! short lock at the end of a staged group, which waits while holding nothing that others want. Without waiting
//! there is no deadlock.

use crate::archive::Entry;

/// How something is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    AccessShare,
    RowShare,
    RowExclusive,
    ShareUpdateExclusive,
    Share,
    ShareRowExclusive,
    Exclusive,
    AccessExclusive,
    /// A partition of the tree is worked on.
    Part,
    /// All partitions of the tree are worked on.
    Whole,
    /// A catalog row is changed without a lock on its object (GRANT does so).
    Row,
}

/// Something that is locked: a relation, a tree of partitions or a catalog row, by the place of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource(u32);

impl Resource {
    pub fn relation(place: u32) -> Resource {
        Resource(place * 3)
    }

    pub fn tree(place: u32) -> Resource {
        Resource(place * 3 + 1)
    }

    pub fn row(place: u32) -> Resource {
        Resource(place * 3 + 2)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    pub resource: Resource,
    pub mode: Mode,
}

impl Mode {
    /// Two transactions cannot have these at the same time.
    pub fn conflicts(self, other: Mode) -> bool {
        use Mode::*;
        // Bit n: conflicts with the mode of number n.
        let mask: u16 = match self {
            AccessShare => 0b1000_0000,
            RowShare => 0b1100_0000,
            RowExclusive => 0b1111_0000,
            ShareUpdateExclusive => 0b1111_1000,
            Share => 0b1110_1100,
            ShareRowExclusive => 0b1111_1100,
            Exclusive => 0b1111_1110,
            AccessExclusive => 0b1111_1111,
            Part => 1 << Whole as u16,
            Whole => 1 << Part as u16 | 1 << Whole as u16,
            Row => 1 << Row as u16,
        };
        mask >> other as u16 & 1 == 1
    }
}

/// How the statements of an entry lock the relations that it depends on. `own`: the table that a table's part
/// (index, trigger, data …) belongs to; `others`: all further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    pub own: Mode,
    pub others: Mode,
    /// On a partitioned table, goes on to all partitions.
    pub recurses: bool,
}

/// The locks of an entry: by its kind, and by its text where that is an ALTER TABLE whose kind tells less. The sequence of
/// an identity column is such: its statement changes the table, and from version 17 on all of its partitions.
pub fn use_of(entry: &Entry) -> Use {
    let kind = use_of_kind(entry.desc);
    if !entry.defn.starts_with(b"ALTER TABLE ") {
        return kind;
    }
    let own = match kind.own {
        Mode::AccessShare => Mode::AccessExclusive,
        mode => mode,
    };
    let recurses = kind.recurses || !entry.defn.starts_with(b"ALTER TABLE ONLY ");
    Use { own, others: kind.others, recurses }
}

fn use_of_kind(desc: &[u8]) -> Use {
    use Mode::*;
    let (own, others, recurses) = match desc {
        b"INDEX" => (Share, AccessShare, false),
        b"CONSTRAINT" => (AccessExclusive, AccessShare, false),
        b"FK CONSTRAINT" => (ShareRowExclusive, ShareRowExclusive, true),
        b"TRIGGER" => (ShareRowExclusive, ShareRowExclusive, true),
        b"RULE" | b"POLICY" | b"ROW SECURITY" => (AccessExclusive, AccessShare, false),
        b"CHECK CONSTRAINT" => (AccessExclusive, AccessShare, true),
        // ALTER TABLE ONLY.
        b"DEFAULT" => (AccessExclusive, AccessShare, false),
        b"SEQUENCE OWNED BY" => (AccessExclusive, AccessExclusive, false),
        b"TABLE ATTACH" => (AccessExclusive, ShareUpdateExclusive, false),
        b"INDEX ATTACH" => (AccessExclusive, ShareUpdateExclusive, false),
        b"COMMENT" | b"SECURITY LABEL" | b"STATISTICS" | b"STATISTICS DATA"
        | b"PUBLICATION TABLE" => (ShareUpdateExclusive, ShareUpdateExclusive, false),
        b"TABLE" | b"FOREIGN TABLE" => (ShareUpdateExclusive, ShareUpdateExclusive, false),
        b"TABLE DATA" | b"SEQUENCE SET" => (RowExclusive, AccessShare, false),
        b"MATERIALIZED VIEW DATA" => (AccessExclusive, AccessShare, false),
        // Statements that no one foresaw are run as if they changed all that they mention.
        b"VIEW"
        | b"MATERIALIZED VIEW"
        | b"FUNCTION"
        | b"PROCEDURE"
        | b"AGGREGATE"
        | b"TYPE"
        | b"SHELL TYPE"
        | b"DOMAIN"
        | b"OPERATOR"
        | b"OPERATOR CLASS"
        | b"OPERATOR FAMILY"
        | b"CAST"
        | b"COLLATION"
        | b"CONVERSION"
        | b"SCHEMA"
        | b"EXTENSION"
        | b"ACL"
        | b"SEQUENCE"
        | b"PUBLICATION"
        | b"PUBLICATION TABLES IN SCHEMA"
        | b"TRANSFORM"
        | b"TEXT SEARCH CONFIGURATION"
        | b"TEXT SEARCH DICTIONARY"
        | b"TEXT SEARCH PARSER"
        | b"TEXT SEARCH TEMPLATE"
        | b"FOREIGN DATA WRAPPER"
        | b"SERVER"
        | b"USER MAPPING"
        | b"BLOB"
        | b"BLOBS"
        | b"BLOB METADATA"
        | b"BLOB COMMENTS" => (AccessShare, AccessShare, false),
        _ => (AccessExclusive, AccessExclusive, true),
    };
    Use { own, others, recurses }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::*;

    const MODES: [Mode; 8] = [
        AccessShare,
        RowShare,
        RowExclusive,
        ShareUpdateExclusive,
        Share,
        ShareRowExclusive,
        Exclusive,
        AccessExclusive,
    ];

    #[test]
    fn the_text_tells_more_than_the_kind() {
        let of = |desc, defn| use_of(&Entry { desc, defn, ..Entry::default() });
        assert_eq!(of(&b"SEQUENCE"[..], b"CREATE SEQUENCE s.q;").own, AccessShare);
        let identity = of(b"SEQUENCE", b"ALTER TABLE s.t ALTER COLUMN id ADD GENERATED ALWAYS");
        assert_eq!((identity.own, identity.recurses), (AccessExclusive, true));
        let not_null = of(b"CONSTRAINT", b"ALTER TABLE s.t\n    ADD CONSTRAINT n NOT NULL id");
        assert_eq!((not_null.own, not_null.recurses), (AccessExclusive, true));
        let key = of(b"CONSTRAINT", b"ALTER TABLE ONLY s.t\n    ADD CONSTRAINT k UNIQUE (id)");
        assert!(!key.recurses);
        assert_eq!(of(b"FK CONSTRAINT", b"ALTER TABLE ONLY s.t").own, ShareRowExclusive);
    }

    #[test]
    fn conflicts_are_mutual() {
        let all = MODES.into_iter().chain([Part, Whole, Row]);
        for a in all.clone() {
            for b in all.clone() {
                assert_eq!(a.conflicts(b), b.conflicts(a), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn as_in_the_documentation() {
        // Rows of the table of conflicting lock modes.
        let expected = [
            "       X", "      XX", "    XXXX", "   XXXXX", "  XX XXX", "  XXXXXX", " XXXXXXX",
            "XXXXXXXX",
        ];
        for (a, row) in MODES.iter().zip(expected) {
            for (b, cell) in MODES.iter().zip(row.chars()) {
                assert_eq!(a.conflicts(*b), cell == 'X', "{a:?} {b:?}");
            }
        }
    }
}
