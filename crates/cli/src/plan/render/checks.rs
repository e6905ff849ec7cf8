//! What a transaction looks at before it ends: queries that fail, and so roll everything back, unless all is as it should be.
//!
//! Operators, functions and types are named with their schema: whatever the search path is, none of a user's is met.

use crate::pg::quote_literal;

/// The operator "equals". In the texts given to [`exact`] it is written `==`.
pub(super) fn exact(text: &str) -> String {
    text.replace("==", "OPERATOR(pg_catalog.=)")
}

/// An expression for the oid of a relation.
pub(super) fn oid(name: &[u8]) -> Vec<u8> {
    [quote_literal(name), b"::pg_catalog.regclass::pg_catalog.oid".to_vec()].concat()
}

/// A row of two expressions.
pub(super) fn pair(a: &[u8], b: &[u8]) -> Vec<u8> {
    [b"(", a, b", ", b, b")"].concat()
}

/// The begin of a query that divides by zero unless what comes behind it, what stands behind FROM, has so many rows.
/// `name` is what an error message shows of it.
pub(super) fn check(out: &mut Vec<u8>, rows: usize, name: &str) {
    let text = format!(
        "SELECT 1 OPERATOR(pg_catalog./) (pg_catalog.count(*) == {rows})::pg_catalog.int4 AS {name} FROM "
    );
    sql!(out, exact(&text));
}

/// Fail unless all pairs of oids are attached to one another; the first of each lies in the database's own tablespace if
/// `at_home`.
pub(super) fn check_attached(out: &mut Vec<u8>, pairs: &[Vec<u8>], at_home: bool) {
    check(out, pairs.len(), "all_indexes_are_attached");
    sql!(
        out,
        "(VALUES ",
        pairs.join(&b", "[..]),
        ") AS t(own, above) JOIN pg_catalog.pg_inherits i"
    );
    sql!(out, exact(" ON i.inhrelid == t.own AND i.inhparent == t.above"));
    if at_home {
        let home = " JOIN pg_catalog.pg_class c ON c.oid == t.own AND c.reltablespace == 0";
        sql!(out, exact(home));
    }
    sql!(out, ";\n");
}

/// Fail unless tables lie in the tablespaces and have the access methods that are expected: rows of a table's oid and both
/// names; NULL stands for any.
pub(super) fn check_storage(out: &mut Vec<u8>, expected: &[Vec<u8>]) {
    check(out, expected.len(), "tables_are_where_they_belong");
    // In the database's own tablespace a table has none.
    let text = ") AS t(oid, space, method) JOIN pg_catalog.pg_class c ON c.oid == t.oid \
        LEFT JOIN pg_catalog.pg_tablespace s ON s.oid == c.reltablespace \
        LEFT JOIN pg_catalog.pg_am a ON a.oid == c.relam \
        WHERE (t.space IS NULL OR t.space::pg_catalog.name == coalesce(s.spcname, ''::pg_catalog.name) \
        OR s.oid IS NULL AND t.space::pg_catalog.name == (SELECT o.spcname FROM pg_catalog.pg_tablespace o \
        JOIN pg_catalog.pg_database d ON d.dattablespace == o.oid \
        WHERE d.datname == pg_catalog.current_database())) \
        AND (t.method IS NULL OR t.method::pg_catalog.name == a.amname);\n";
    sql!(out, "(VALUES ", expected.join(&b", "[..]), exact(text));
}

const OWN_OF_COLUMNS: &str =
    "attrelid,attislocal,attinhcount,attacl,attoptions,attstattarget,attfdwoptions,\
    attcacheoff,attmissingval,atthasmissing";
const OWN_OF_COLUMNS_WITH_IDENTITY: &str =
    "attidentity,attrelid,attislocal,attinhcount,attacl,attoptions,\
    attstattarget,attfdwoptions,attcacheoff,attmissingval,atthasmissing";

/// What of a table or index its partitions inherit, as rows of JSON: all columns that this version's catalogs have, but for
/// those that tell of the relation itself (what it is called, whether its own columns are inherited) or are not inherited.
/// `identity`: partitions inherit identity columns.
fn inherited(relation: &[u8], identity: bool) -> Vec<u8> {
    let relation = oid(relation);
    // Catalog, the column that names the relation, columns left out, what is compared besides, which rows.
    let parts: [[&str; 5]; 6] = [
        [
            "attribute",
            "attrelid",
            if identity { OWN_OF_COLUMNS } else { OWN_OF_COLUMNS_WITH_IDENTITY },
            "NULL",
            "",
        ],
        [
            "attrdef",
            "adrelid",
            "oid,adrelid,adbin",
            "pg_catalog.pg_get_expr(t.adbin, t.adrelid)",
            "",
        ],
        [
            "constraint",
            "conrelid",
            "oid,conrelid,connamespace,conindid,conparentid,conislocal,coninhcount,conbin",
            "pg_catalog.pg_get_constraintdef(t.oid)",
            " AND t.contype == ANY ('{c,n,f}'::pg_catalog.\"char\"[])",
        ],
        ["trigger", "tgrelid", "", "NULL", ""],
        [
            "index",
            "indexrelid",
            "indexrelid,indrelid,indisvalid,indexprs,indpred",
            "pg_catalog.concat(pg_catalog.pg_get_expr(t.indexprs, t.indrelid), ' WHERE ', \
             pg_catalog.pg_get_expr(t.indpred, t.indrelid))",
            "",
        ],
        ["partitioned_table", "partrelid", "partrelid,partdefid,partexprs", "NULL", ""],
    ];
    let mut out = Vec::new();
    for [catalog, column, without, expression, which] in parts {
        let text = format!(
            "SELECT '{catalog}', pg_catalog.to_jsonb(t) OPERATOR(pg_catalog.-) '{{{without}}}'::pg_catalog.text[], \
             {expression} FROM pg_catalog.pg_{catalog} t WHERE t.{column} == "
        );
        sql!(out, exact(&text), relation, exact(which), " UNION ALL ");
    }
    let text = "SELECT 'class', pg_catalog.jsonb_build_array(t.relam, t.reltablespace, t.relpersistence, t.reloptions, \
         (SELECT pg_catalog.count(*) FROM pg_catalog.pg_index i WHERE i.indrelid == t.oid)), NULL \
         FROM pg_catalog.pg_class t WHERE t.oid == ";
    sql!(out, exact(text), relation);
    out
}

/// Fail unless partitions inherit the same of both relations: what was added to the parent since it was made, or by others,
/// would be missing in partitions that were made below a staging parent.
pub(super) fn check_alike(out: &mut Vec<u8>, stage: &[u8], real: &[u8], identity: bool) {
    let (stage, real) = (inherited(stage, identity), inherited(real, identity));
    check(out, 0, "staging_parent_is_like_the_parent");
    sql!(out, "(((", stage, ") EXCEPT ALL (", real, ")) UNION ALL ((", real, ") EXCEPT ALL (");
    sql!(out, stage, "))) AS t;\n");
}
