//! Objects and rows of a schema into another one: `--redirect-schema`.

use super::sql::{
    mentioned_in_strings, qualified, rewrite, schema_arguments, sequence_set, Aliases, Map,
};
use super::types::Types;
use super::{other_encoding, Changed};
use crate::archive::{Entry, Toc};
use crate::error::{Error, Result};
use crate::plan::build::describe;
use crate::plan::select::Selection;
use crate::plan::text::quoted::id;
use std::borrow::Cow;
use std::collections::HashSet;

/// What goes into another schema.
pub struct Schemas<'a> {
    map: Map,
    /// Objects that the archive has in schemas of the new names.
    others: HashSet<(&'a [u8], &'a [u8])>,
    types: Types,
}

fn has_word(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|w| w == word)
}

/// Encodings that no server has.
const OF_CLIENTS: [&[u8]; 7] =
    [b"'SJIS'", b"'BIG5'", b"'GBK'", b"'UHC'", b"'GB18030'", b"'JOHAB'", b"'SHIFT_JIS_2004'"];

/// What a statement may have before a dot besides schemas.
fn aliases(entry: &Entry) -> Aliases {
    match entry.desc {
        b"VIEW" | b"MATERIALIZED VIEW" | b"RULE" | b"POLICY" => Aliases::OfQueries,
        b"TRIGGER" => Aliases::OfTriggers,
        b"FUNCTION" | b"PROCEDURE"
            if has_word(entry.defn, b"BEGIN ATOMIC")
                || has_word(entry.defn, b" RETURN ")
                || has_word(entry.defn, b"\nRETURN ") =>
        {
            Aliases::OfQueries
        }
        _ => Aliases::None,
    }
}

impl<'a> Schemas<'a> {
    pub fn find(
        toc: &'a Toc,
        selection: &Selection,
        pairs: &[(String, String)],
    ) -> Result<Schemas<'a>> {
        let mut map = Map::default();
        let mut goals = HashSet::new();
        for (old, new) in pairs {
            let bytes = |name: &str| name.as_bytes().to_vec();
            if map.insert(bytes(old), bytes(new)).is_some() || !goals.insert(bytes(new)) {
                return Err(Error::usage(format!(
                    "schema \"{old}\" or \"{new}\" is redirected twice"
                )));
            }
        }
        let mut found = Schemas { map, others: HashSet::new(), types: Types::default() };
        if found.map.is_empty() {
            return Ok(found);
        }
        found.types = Types::of(toc);
        found.map.plain = found.types.plain();
        let setting = |desc: &[u8], word: &[u8]| {
            toc.entries().any(|e| e.desc == desc && has_word(e.defn, word))
        };
        let reserved = |name: &Vec<u8>| {
            name.starts_with(b"pg_") || name == b"information_schema" || name == b"firn_restore"
        };
        let reason = if toc.selects_schemas() {
            Some("The archive's version of pg_dump leaves schemas out of its statements.")
        } else if setting(b"STDSTRINGS", b"'off'") {
            Some("The archive was made with standard_conforming_strings = off.")
        } else if OF_CLIENTS.iter().any(|name| setting(b"ENCODING", name)) {
            Some("In the archive's encoding a byte of a character may look like a backslash.")
        } else if let Some(reason) =
            other_encoding(toc, pairs.iter().flat_map(|(old, new)| [old, new]))
        {
            Some(reason)
        } else if goals.iter().chain(found.map.keys()).any(reserved) {
            Some("The server's own schemas, and that of the journal, stay as they are.")
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(Error::usage("schemas cannot be redirected").detail(reason));
        }
        let chosen = |e: &Entry| toc.place(e.dump_id).is_some_and(|p| selection.has(p as u32));
        let is =
            |e: &Entry, name: &[u8]| e.namespace == name || e.desc == b"SCHEMA" && e.tag == name;
        for (old, _) in pairs {
            if !toc.entries().any(|e| chosen(&e) && is(&e, old.as_bytes())) {
                return Err(Error::usage(format!(
                    "schema \"{old}\" of --redirect-schema not found"
                ))
                .hint(
                    "It is the archive's name, and of something that other flags do not leave out.",
                ));
            }
        }
        for new in goals.iter().filter(|new| !found.map.contains_key(*new)) {
            for entry in toc.entries().filter(|e| is(e, new)) {
                if chosen(&entry) {
                    let name = String::from_utf8_lossy(new).into_owned();
                    return Err(Error::usage(format!(
                        "objects of two schemas would go into schema \"{name}\""
                    ))
                    .detail(format!("The archive has {} there already.", describe(&entry)))
                    .hint("Leave these out, by -N for one."));
                }
                found.others.insert((entry.namespace, entry.tag));
            }
        }
        Ok(found)
    }

    pub fn change(
        &self,
        changed: &mut Changed<'a>,
        chosen: bool,
        tell: &mut dyn FnMut(&str),
    ) -> Result<()> {
        if self.map.is_empty() {
            return Ok(());
        }
        let entry = changed.entry;
        if let Some(new) = self.map.get(&changed.namespace[..]) {
            changed.namespace = new.clone().into();
        }
        if !chosen {
            return Ok(());
        }
        let what = describe(&entry);
        let refuse = |detail: String| {
            Error::usage(format!("{what} cannot be put into another schema")).detail(detail).hint(
                "Leave it out, or restore into a database of its own and rename the schema there.",
            )
        };
        if entry.desc == b"TABLE DATA" && entry.copy_stmt.is_empty() && entry.has_data {
            return Err(refuse("Its rows are INSERT statements (pg_dump --inserts).".into()));
        }
        if entry.desc == b"TABLE DATA" {
            let table = (entry.namespace.to_vec(), entry.tag.to_vec());
            if self.types.names_objects(&table) {
                return Err(refuse(
                    "Its table has a column of a type that names objects, such as regclass.".into(),
                ));
            }
            if !self.types.is_known(&table) {
                tell(&format!(
                    "warning: the archive does not tell the types of the columns of {what}: objects that rows name keep their names"
                ));
            }
        }
        if entry.desc == b"ACL"
            && entry.tag == b"SCHEMA public"
            && self.map.contains_key(&b"public"[..])
        {
            tell(&format!(
                "warning: {what} says how privileges differ from those of a new database's schema \"public\""
            ));
        }
        let mut left = None;
        let mut of = |text: &[u8], kind: Aliases| -> Result<Vec<u8>> {
            if let Some((schema, name)) =
                qualified(text).into_iter().find(|(s, n)| self.others.contains(&(s, n)))
            {
                let name = [&schema[..], b".", &name].concat();
                let name = String::from_utf8_lossy(&name).into_owned();
                return Err(refuse(format!(
                    "It needs {name} of the archive, in the schema that others are redirected to."
                )));
            }
            let new = rewrite(text, &self.map, kind).map_err(refuse)?;
            left = left.take().or(new.left);
            Ok(new.text)
        };
        let kind = aliases(&entry);
        changed.defn = match entry.desc {
            b"SEQUENCE SET" => sequence_set(entry.defn, &self.map)
                .ok_or_else(|| refuse("Its statement is not known.".into()))?
                .into(),
            b"STATISTICS DATA" => {
                let (new, values) = schema_arguments(entry.defn, &self.map)
                    .ok_or_else(|| refuse("Its statement is not known.".into()))?;
                let table = (entry.namespace.to_vec(), entry.tag.to_vec());
                let text = self.types.is_known(&table) && !self.types.names_objects(&table);
                // Of an index the archive does not tell what its values are.
                if values && !text {
                    tell(&format!(
                        "warning: {what} is left out: its values may name objects; run ANALYZE"
                    ));
                    Cow::Borrowed(&b""[..])
                } else {
                    new.into()
                }
            }
            b"TABLE ATTACH" | b"TABLE" if self.in_bound(&entry) => {
                return Err(refuse("A value of its bound may name the schema.".into()))
            }
            _ => of(entry.defn, kind)?.into(),
        };
        changed.copy_stmt = of(&changed.copy_stmt, Aliases::None)?.into();
        changed.drop_stmt = of(entry.drop_stmt, Aliases::None)?.into();
        changed.tag = self.tag(&entry, &changed.tag)?.map_or(changed.tag.clone(), Cow::Owned);
        // Comments, labels and options of other servers name nothing here.
        let words = matches!(
            entry.desc,
            b"COMMENT" | b"SECURITY LABEL" | b"SERVER" | b"USER MAPPING" | b"SUBSCRIPTION"
        ) || entry.desc == b"TYPE" && has_word(entry.defn, b" AS ENUM (");
        if let Some(name) = left.filter(|_| !words) {
            let name = String::from_utf8_lossy(&name).into_owned();
            tell(&format!("warning: {what} has \"{name}\" in its text, which stays as it is"));
        }
        Ok(())
    }

    /// Values of a partition's bound have no type in them: those of a table without types that name objects name none.
    fn in_bound(&self, entry: &Entry) -> bool {
        let bound = match crate::plan::text::attach(entry.defn) {
            Some(attach) => attach.bound,
            None if entry.desc == b"TABLE" && !has_word(entry.defn, b" PARTITION OF ") => {
                return false
            }
            None => entry.defn,
        };
        let may_name = |table| self.types.bounds_name_objects(table) || !self.types.is_known(table);
        mentioned_in_strings(bound, &self.map) && qualified(entry.defn).iter().any(may_name)
    }

    /// Tags that have the schema's name, or types of arguments.
    fn tag(&self, entry: &Entry, tag: &[u8]) -> Result<Option<Vec<u8>>> {
        if entry.desc == b"SCHEMA" {
            return Ok(self.map.get(tag).cloned());
        }
        if let (b"ACL" | b"COMMENT" | b"SECURITY LABEL", Some(name)) =
            (entry.desc, tag.strip_prefix(b"SCHEMA "))
        {
            return Ok(self
                .map
                .get(name)
                .or_else(|| self.map.get(&crate::plan::text::unquoted(name)))
                .map(|new| {
                    let new = if name.starts_with(b"\"") { id(new) } else { new.clone() };
                    [b"SCHEMA ", &new[..]].concat()
                }));
        }
        if entry.desc == b"PUBLICATION TABLES IN SCHEMA" {
            let publication = tag.strip_suffix(entry.namespace).filter(|p| p.ends_with(b" "));
            let new = publication.zip(self.map.get(entry.namespace));
            return Ok(new.map(|(publication, new)| [publication, &new[..]].concat()));
        }
        // Other names may have parentheses in them.
        const WITH_ARGUMENTS: [&[u8]; 5] =
            [b"FUNCTION", b"PROCEDURE", b"AGGREGATE", b"CAST", b"TRANSFORM"];
        let kind = match entry.desc {
            b"ACL" | b"COMMENT" | b"SECURITY LABEL" => tag.split(|b| *b == b' ').next(),
            desc => Some(desc),
        };
        let arguments = kind
            .filter(|kind| WITH_ARGUMENTS.contains(kind) && tag.ends_with(b")"))
            .and_then(|_| tag.iter().position(|b| *b == b'('));
        let Some(at) = arguments else { return Ok(None) };
        let new = rewrite(&tag[at..], &self.map, Aliases::None);
        Ok(new.ok().map(|new| [&tag[..at], &new.text].concat()))
    }
}
