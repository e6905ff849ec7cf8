//! What a query calls its tables: names that may stand before a dot and are no schemas.

use super::tokens::{Kind, Statement};
use std::collections::HashSet;

/// Behind these stands the name of a query by itself.
const BEFORE_QUERIES: [&[u8]; 6] = [b"WITH", b"RECURSIVE", b"FROM", b"JOIN", b"ONLY", b"USING"];
/// Behind these stands an expression.
const BEFORE_EXPRESSIONS: [&[u8]; 13] = [
    b"SELECT",
    b"DISTINCT",
    b"ALL",
    b"WHERE",
    b"AND",
    b"OR",
    b"NOT",
    b"BY",
    b"HAVING",
    b"WHEN",
    b"THEN",
    b"ELSE",
    b"CASE",
];

/// The names of tables, functions and queries, and all that may be one. Names of columns are none, where they can be told.
pub fn of_query(s: &Statement) -> HashSet<Vec<u8>> {
    let mut found: HashSet<Vec<u8>> =
        [&b"old"[..], b"new", b"excluded"].iter().map(|name| name.to_vec()).collect();
    // Names behind dots that may be columns, and of what.
    let mut unsure = Vec::new();
    for n in 0..s.len() {
        let Some(name) = s.name(Some(n)) else { continue };
        let before = n.checked_sub(1);
        if s.symbol(Some(n + 1), b".") || s.word(before, &[b"SCHEMA"]) {
            continue;
        }
        if s.symbol(before, b".") {
            let of = n.checked_sub(2);
            let front = of.and_then(|of| of.checked_sub(1));
            // The view itself has no columns within its query.
            if s.word(front, &[b"VIEW"]) || s.word(front, &BEFORE_EXPRESSIONS) {
                continue;
            }
            let list = s.symbol(front, b"(") || s.symbol(front, b",");
            let tables = front.is_none_or(|f| s.tokens[f].kind != Kind::Symbol);
            match s.name(of) {
                Some(of) if list && !s.symbol(Some(n + 1), b"(") => unsure.push((of, name)),
                _ if list || tables => {
                    found.insert(name);
                }
                // Behind an operator.
                _ => {}
            }
        } else if introduced(s, n) {
            found.insert(name);
        }
    }
    let tables = unsure.into_iter().filter(|(of, _)| !found.contains(of));
    let tables: Vec<Vec<u8>> = tables.map(|(_, name)| name).collect();
    found.extend(tables);
    found
}

/// A name by itself is that of a row, or may be.
fn introduced(s: &Statement, n: usize) -> bool {
    let before = n.checked_sub(1);
    if s.word(before, &[b"AS"]) {
        // Most are names of columns.
        let front = n.checked_sub(2);
        let joined = s.symbol(front, b")")
            && front
                .and_then(|f| s.opening(f))
                .is_some_and(|open| s.word(open.checked_sub(1), &[b"USING"]));
        let inserted = s.word(n.checked_sub(5), &[b"INTO"]) && s.symbol(n.checked_sub(3), b".");
        return joined || inserted || s.word(front, &[b"OLD", b"NEW"]);
    }
    let query = s.word(Some(n + 1), &[b"AS"])
        && (s.symbol(Some(n + 2), b"(") || s.word(Some(n + 2), &[b"MATERIALIZED", b"NOT"]));
    query
        || s.symbol(Some(n + 1), b"(")
        || s.symbol(before, b")")
        || s.name(before).is_some()
        || s.word(before, &BEFORE_QUERIES)
}

/// A part of a column that is written to stands here (`SET c.part = …`, `INSERT INTO t (c.part)`), or may.
pub fn is_written(s: &Statement, n: usize) -> bool {
    if s.symbol(Some(n + 3), b"=") {
        return true;
    }
    if !s.symbol(Some(n + 3), b",") && !s.symbol(Some(n + 3), b")") {
        return false;
    }
    // The parenthesis around it.
    let mut depth = 0;
    let around = (0..n).rev().find(|at| {
        depth += i32::from(s.symbol(Some(*at), b"(")) - i32::from(s.symbol(Some(*at), b")"));
        depth > 0
    });
    around.is_some_and(|open| {
        let word = |back: usize| open.checked_sub(back);
        s.word(word(1), &[b"SET"])
            || s.word(word(4), &[b"INTO"]) && s.symbol(word(2), b".")
            || s.word(word(6), &[b"INTO"]) && s.word(word(2), &[b"AS"])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(name: &str, query: &str) -> bool {
        of_query(&Statement::of(query.as_bytes()).unwrap()).contains(name.as_bytes())
    }

    #[test]
    fn rows_and_columns() {
        for query in [
            "SELECT x.a FROM s.t x",
            "SELECT x.a FROM s.x",
            "SELECT x.a FROM (s.t JOIN s.x USING (a))",
            "SELECT b.a FROM s.b,\n    s.x",
            "SELECT x.a FROM ((s.t t JOIN s.u u ON ((t.a = u.a))) x",
            "WITH y AS (SELECT), x AS MATERIALIZED (SELECT 1 AS a) SELECT x.a FROM x",
            "SELECT x.a FROM s.f(1) x(a, b)",
            "SELECT x.a FROM (s.t JOIN s.u USING (id) AS x)",
            "INSERT INTO s.t AS x (a) VALUES (1) RETURNING x.a",
            "UPDATE s.t SET a = 1 RETURNING WITH (OLD AS x) x.a",
            "CREATE POLICY p ON s.x USING (EXISTS (SELECT FROM s.t WHERE x.a = t.a))",
            "CREATE FUNCTION s.x(a integer) BEGIN ATOMIC SELECT x.a; END",
        ] {
            assert!(has("x", query), "{query}");
        }
        for query in [
            "CREATE VIEW s.x AS SELECT t.x, t.a AS x FROM s.t",
            "SELECT id,\n    x,\n    count(*) AS x FROM s.t WHERE (x = 1) ORDER BY x",
            "SELECT b.id,\n    b.x FROM x.t b WHERE (b.x = t.x)",
            "CREATE POLICY x ON s.t USING ((t.x > 0))",
            "CREATE RULE x AS ON INSERT TO s.t DO NOTIFY x",
            "SELECT x.t.a FROM x.t",
        ] {
            assert!(!has("x", query), "{query}");
        }
    }

    #[test]
    fn parts_of_columns() {
        let written = |query: &str| {
            let s = Statement::of(query.as_bytes()).unwrap();
            let n = (0..s.len()).rfind(|n| s.at(Some(*n)) == b"x").unwrap();
            is_written(&s, n)
        };
        for query in [
            "UPDATE s.t SET a = 1, x.part = 2",
            "UPDATE s.t SET (a, x.part) = ROW(1, 2)",
            "INSERT INTO s.t (f(a), x.part, b) VALUES (1)",
            "INSERT INTO s.t AS u (x.part) VALUES (1)",
        ] {
            assert!(written(query), "{query}");
        }
        assert!(!written("INSERT INTO s.t (a) SELECT a FROM (x.u JOIN s.v ON (true))"));
        assert!(!written("SELECT FROM (s.t, x.u)"));
    }
}
