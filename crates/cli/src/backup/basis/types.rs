//! Of which types a value's text depends on the value alone.

use crate::error::Result;
use crate::pg::Connection;
use std::collections::HashMap;

/// Base types of PostgreSQL whose output functions read nothing but the value and the settings that every backup makes or notes.
/// Not among them: money (`lc_monetary`), those that show names of objects (regclass, aclitem, …), and pseudo-types.
const ALONE: [(u32, &str); 62] = [
    (16, "bool"),
    (17, "bytea"),
    (18, "char"),
    (19, "name"),
    (20, "int8"),
    (21, "int2"),
    (22, "int2vector"),
    (23, "int4"),
    (25, "text"),
    (26, "oid"),
    (27, "tid"),
    (28, "xid"),
    (29, "cid"),
    (30, "oidvector"),
    (114, "json"),
    (142, "xml"),
    (600, "point"),
    (601, "lseg"),
    (602, "path"),
    (603, "box"),
    (604, "polygon"),
    (628, "line"),
    (650, "cidr"),
    (700, "float4"),
    (701, "float8"),
    (718, "circle"),
    (774, "macaddr8"),
    (829, "macaddr"),
    (869, "inet"),
    (1042, "bpchar"),
    (1043, "varchar"),
    (1082, "date"),
    (1083, "time"),
    (1114, "timestamp"),
    (1184, "timestamptz"),
    (1186, "interval"),
    (1266, "timetz"),
    (1560, "bit"),
    (1562, "varbit"),
    (1700, "numeric"),
    (1790, "refcursor"),
    (2950, "uuid"),
    (2970, "txid_snapshot"),
    (3220, "pg_lsn"),
    (3614, "tsvector"),
    (3615, "tsquery"),
    (3802, "jsonb"),
    (3904, "int4range"),
    (3906, "numrange"),
    (3908, "tsrange"),
    (3910, "tstzrange"),
    (3912, "daterange"),
    (3926, "int8range"),
    (4072, "jsonpath"),
    (4451, "int4multirange"),
    (4532, "nummultirange"),
    (4533, "tsmultirange"),
    (4534, "tstzmultirange"),
    (4535, "datemultirange"),
    (4536, "int8multirange"),
    (5038, "pg_snapshot"),
    (5069, "xid8"),
];

/// The output function of arrays, which shows the elements by their own.
const ARRAY_OUT: u32 = 751;

/// An SQL expression for the checksum of another one, which is JSON. It may hold what the client's encoding cannot.
pub fn summed(json: &str) -> String {
    format!(
        "pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(({json})::pg_catalog.text, \
         pg_catalog.current_setting('server_encoding'))), 'hex')"
    )
}

#[derive(Clone, Debug, Default)]
struct Type {
    /// As in pg_type.
    kind: u8,
    /// Its name, if it is one of PostgreSQL's own.
    own: Option<String>,
    base: u32,
    element: u32,
    output: u32,
    /// Of an enum type: what its labels with their oids come to.
    labels: String,
}

/// The types of some tables' columns, with those that they are made of.
#[derive(Debug, Default)]
pub struct Types(HashMap<u32, Type>);

impl Types {
    /// `tables`: oids with commas between them.
    pub fn read(connection: &Connection, tables: &str) -> Result<Types> {
        let labels = summed(
            "pg_catalog.json_agg(pg_catalog.json_build_array(e.oid, e.enumlabel, e.xmin::pg_catalog.text) ORDER BY e.oid)",
        );
        let sql = format!(
            "WITH RECURSIVE used(oid) AS (SELECT DISTINCT a.atttypid FROM pg_catalog.pg_attribute a \
              WHERE a.attrelid = ANY ('{{{tables}}}'::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped \
              UNION SELECT v.part FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid \
              CROSS JOIN LATERAL (VALUES (t.typbasetype), (t.typelem)) v(part) WHERE v.part <> 0) \
             SELECT t.oid, t.typtype, CASE WHEN t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace AND t.oid < 10000 THEN t.typname END, \
             t.typbasetype, t.typelem, t.typoutput::pg_catalog.oid, \
             (SELECT {labels} FROM pg_catalog.pg_enum e WHERE t.typtype = 'e' AND e.enumtypid = t.oid) \
             FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid"
        );
        let rows = connection.query(sql.as_bytes())?;
        let number = |row, column| rows.number(row, column).unwrap_or(0);
        let types = (0..rows.len()).map(|row| {
            let kind = rows.get(row, 1).and_then(|k| k.first()).copied().unwrap_or(0);
            let own = rows.get(row, 2).map(|_| rows.text(row, 2));
            let (base, element, output) = (number(row, 3), number(row, 4), number(row, 5));
            (number(row, 0), Type { kind, own, base, element, output, labels: rows.text(row, 6) })
        });
        Ok(Types(types.collect()))
    }

    /// The labels of all enum types that these types show; `None` if a value's text may depend on anything else.
    pub fn labels(&self, used: &[u32]) -> Option<String> {
        let mut labels = String::new();
        for oid in used {
            self.add(*oid, &mut labels)?;
        }
        Some(labels)
    }

    fn add(&self, oid: u32, labels: &mut String) -> Option<()> {
        let found = self.0.get(&oid)?;
        match found.kind {
            b'b' | b'r' | b'm' if found.own.is_some() && is_alone(oid, found.own.as_deref()) => {
                Some(())
            }
            b'b' if found.output == ARRAY_OUT && found.element != 0 => {
                self.add(found.element, labels)
            }
            // Its base type never changes.
            b'd' => self.add(found.base, labels),
            b'e' => {
                labels.push_str(&found.labels);
                labels.push('\n');
                Some(())
            }
            _ => None,
        }
    }
}

fn is_alone(oid: u32, name: Option<&str>) -> bool {
    ALONE.iter().any(|(known, called)| *known == oid && Some(*called) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types() -> Types {
        let own = |kind, name: &str, element, output| Type {
            kind,
            own: Some(name.into()),
            element,
            output,
            ..Type::default()
        };
        let made =
            |kind, base, element, output| Type { kind, base, element, output, ..Type::default() };
        let mood = Type { labels: "[[1,\"sad\"]]".into(), ..made(b'e', 0, 0, 3507) };
        Types(HashMap::from([
            (23, own(b'b', "int4", 0, 43)),
            (1007, own(b'b', "_int4", 23, 751)),
            (790, own(b'b', "money", 0, 888)),
            (791, own(b'b', "_money", 790, 751)),
            (2205, own(b'b', "regclass", 0, 2219)),
            (3904, own(b'r', "int4range", 0, 3834)),
            (20001, mood),
            (20002, made(b'b', 0, 20001, 751)),
            (20003, made(b'd', 20002, 0, 751)),
            (20004, made(b'c', 0, 0, 2291)),
            (20005, made(b'b', 0, 20004, 751)),
            (20006, made(b'b', 0, 0, 20100)),
            (20007, made(b'd', 20006, 0, 20100)),
            (20008, made(b'r', 0, 0, 3834)),
            // Somebody's own type by a known name.
            (16, Type { own: None, ..own(b'b', "bool", 0, 43) }),
        ]))
    }

    #[test]
    fn what_a_text_depends_on() {
        let types = types();
        for good in [23, 1007, 3904] {
            assert_eq!(types.labels(&[good]).as_deref(), Some(""), "{good}");
        }
        for labelled in [20001, 20002, 20003] {
            assert_eq!(types.labels(&[23, labelled]).as_deref(), Some("[[1,\"sad\"]]\n"));
        }
        for bad in [790, 791, 2205, 20004, 20005, 20006, 20007, 20008, 16, 4711] {
            assert_eq!(types.labels(&[23, bad]), None, "{bad}");
        }
        assert_eq!(types.labels(&[]).as_deref(), Some(""));
    }
}
