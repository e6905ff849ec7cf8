//! Functions of which can be seen that they read no table.

/// Words of a function that reads tables, runs other texts or has settings of its own.
const WORDS: [&str; 26] = [
    "from",
    "table",
    "execute",
    "perform",
    "join",
    "insert",
    "update",
    "delete",
    "merge",
    "call",
    "copy",
    "open",
    "fetch",
    "cursor",
    "set",
    "reset",
    "do",
    "truncate",
    "create",
    "alter",
    "drop",
    "transform",
    "show",
    "prepare",
    "refresh",
    "into",
];
/// Parts of the names of the server's functions that read tables, or what is not stored with a row.
const NAMES: [&str; 16] = [
    "pg_",
    "lo_",
    "ts_stat",
    "ts_rewrite",
    "_to_xml",
    "nextval",
    "currval",
    "lastval",
    "setval",
    "has_",
    "description",
    "txid",
    "set_config",
    "loread",
    "lowrite",
    "currtid",
];

/// The function is in SQL or PL/pgSQL, and its statement names nothing with a schema but itself (all that is not the server's
/// own is named so, where the archive has an empty search path), nothing that reads tables, and no word of a query of one. What
/// cannot be told by such simple means may read.
pub fn reads_nothing(defn: &[u8]) -> bool {
    let text = defn.to_ascii_lowercase();
    // As an archive has it, and as a server tells it.
    let own = [&b"create function "[..], b"create or replace function "];
    let Some(own) = own.iter().find_map(|words| text.strip_prefix(*words)) else { return false };
    // Its own name, of plain words: `schema.name(`.
    let Some(end) = own.iter().position(|b| *b == b'(') else { return false };
    let rest = &own[end..];
    if own[..end].contains(&b'"') || rest.contains(&b'"') {
        return false;
    }
    let is_word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || *b >= 0x80;
    let mut dots = (0..rest.len()).filter(|at| rest[*at] == b'.');
    // Dots are those of numbers and of ranges.
    let plain = |at: usize| {
        let after = rest[at + 1..].iter().find(|b| !b.is_ascii_whitespace());
        let before = rest[..at].iter().rev().find(|b| !b.is_ascii_whitespace());
        let digit = |b: Option<&u8>| b.is_none_or(|b| !is_word(b) || b.is_ascii_digit());
        digit(after) && digit(before)
    };
    if !dots.all(plain) {
        return false;
    }
    let mut language = false;
    let mut before: &[u8] = b"";
    for word in rest.split(|b| !is_word(b)).filter(|word| !word.is_empty()) {
        language |= before == b"language" && matches!(word, b"sql" | b"plpgsql");
        let named = |name: &&str| word.windows(name.len()).any(|w| w == name.as_bytes());
        if WORDS.iter().any(|other| word == other.as_bytes()) || NAMES.iter().any(named) {
            return false;
        }
        before = word;
    }
    language
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_nothing() {
        let of = |what: &str| reads_nothing(format!("CREATE FUNCTION s.f{what}").as_bytes());
        for what in [
            "(a integer) RETURNS integer\n    LANGUAGE sql IMMUTABLE\n    AS $_$ SELECT ($1 + 1.5)::integer $_$;\n",
            "(a text) RETURNS text\n    LANGUAGE plpgsql IMMUTABLE\n    AS $$ BEGIN FOR i IN 1..3 LOOP a := lower(a); END LOOP; RETURN a; END $$;\n",
            "(a text) RETURNS text\n    LANGUAGE sql IMMUTABLE\n    RETURN lower(a);\n",
        ] {
            assert!(of(what), "{what}");
        }
        // As the server tells it.
        let told = "(a integer)\n RETURNS integer\n LANGUAGE plpgsql\n IMMUTABLE\nAS $function$BEGIN RETURN $1 * 2; END$function$\n";
        assert!(reads_nothing(format!("CREATE OR REPLACE FUNCTION s.f{told}").as_bytes()));
        for what in [
            "(a integer) RETURNS integer\n    LANGUAGE sql IMMUTABLE\n    AS $_$ SELECT max(v) FROM t $_$;\n",
            "(a integer) RETURNS integer\n    LANGUAGE sql IMMUTABLE\n    AS $_$ SELECT s.g($1) $_$;\n",
            "(a integer) RETURNS integer\n    LANGUAGE sql IMMUTABLE\n    AS $_$ SELECT s  .  g($1) $_$;\n",
            "(a integer) RETURNS integer\n    LANGUAGE sql IMMUTABLE\n    AS $_$ SELECT \"s\".g($1) $_$;\n",
            "(a integer) RETURNS integer\n    LANGUAGE sql IMMUTABLE\n    SET search_path TO 's'\n    AS $_$ SELECT g($1) $_$;\n",
            "(a integer) RETURNS xml\n    LANGUAGE sql IMMUTABLE\n    AS $_$ SELECT query_to_xml('TA' || 'BLE t', true, true, '') $_$;\n",
            "(a integer) RETURNS xml\n    LANGUAGE plpgsql IMMUTABLE\n    AS $_$ BEGIN EXECUTE a; END $_$;\n",
            "(a integer) RETURNS integer\n    LANGUAGE plpgsql IMMUTABLE\n    AS $_$ DECLARE x text; BEGIN x := set_config('search_path', 's', true); RETURN g(a); END $_$;\n",
            "(a integer) RETURNS bytea\n    LANGUAGE sql IMMUTABLE\n    AS $_$ SELECT loread(a, 10) $_$;\n",
            "(a s.d) RETURNS integer\n    LANGUAGE sql IMMUTABLE\n    AS $_$ SELECT 1 $_$;\n",
            "(a integer) RETURNS integer\n    LANGUAGE plpython3u IMMUTABLE\n    AS $_$ return 1 $_$;\n",
            "(a integer) RETURNS integer\n    LANGUAGE c IMMUTABLE\n    AS '$libdir/x', 'f';\n",
        ] {
            assert!(!of(what), "{what}");
        }
    }
}
