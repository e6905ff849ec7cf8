//! The SQL of a step.

use super::build::merge::{foreign_key_name, grant_table, grant_template};
use super::family::Family;
use super::who::Who;
use super::{Plan, Work};
use crate::archive::{Entry, Toc};
use crate::pg::{quote_ident, quote_literal};
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The schema of the journal and of staging parents.
pub const SCHEMA: &str = "firn_restore";

/// What of an entry's statements is left out.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Style {
    pub no_owner: bool,
    pub no_tablespaces: bool,
    pub no_table_access_method: bool,
    /// Each entry is run as its owner, by `SET SESSION AUTHORIZATION`, and so needs no `ALTER … OWNER TO`.
    #[serde(default)]
    pub session_authorization: bool,
}

/// Tablespaces and access methods that the server does not have, by the statements that would set them. What is to be in one
/// of them comes where the server has it by default.
#[derive(Default)]
pub struct Refused(Mutex<HashSet<Vec<u8>>>);

impl Refused {
    /// Do without from now on what this statement sets; whether that is new. None if it sets nothing of the kind.
    pub fn add(&self, statement: &[u8]) -> Option<bool> {
        let statement = statement.trim_ascii();
        let statement = statement.strip_suffix(b";").unwrap_or(statement);
        let method = b" SET ACCESS METHOD ";
        let sets = statement.starts_with(b"SET LOCAL default_tablespace = ")
            || statement.starts_with(b"SET LOCAL default_table_access_method = ")
            || statement.starts_with(b"ALTER TABLE ")
                && statement.windows(method.len()).any(|w| w == method);
        sets.then(|| self.lock().insert(statement.to_vec()))
    }

    fn has(&self, statement: &[u8]) -> bool {
        self.lock().contains(statement)
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the statements of steps. Settings that an entry needs are set as they change, for the transaction only.
pub struct Renderer<'a> {
    pub toc: &'a Toc,
    pub plan: &'a Plan,
    pub style: Style,
    /// Of `--role`.
    pub role: Option<&'a [u8]>,
    pub refused: Refused,
}

/// Settings in force at a point of a transaction.
#[derive(Clone)]
pub struct Settings {
    tablespace: Option<Vec<u8>>,
    tableam: Option<Vec<u8>>,
    schema: Option<Vec<u8>>,
    /// `None` when that is not known.
    who: Option<Who>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { tablespace: None, tableam: None, schema: None, who: Some(Who::Restores) }
    }
}

macro_rules! sql {
    ($out:expr, $($part:expr),+ $(,)?) => {{ $($out.extend_from_slice(AsRef::<[u8]>::as_ref(&$part));)+ }};
}

mod checks;
mod keys;
mod objects;
mod partitions;
mod staging;

pub use keys::EarlyIndex;
pub use objects::{large_objects, LargeObjectStatement};

impl Renderer<'_> {
    fn entry(&self, place: u32) -> Entry<'_> {
        self.toc.entry(place as usize)
    }

    /// The statements of a step that is no data.
    pub fn step(&self, number: u32, settings: &mut Settings) -> Vec<u8> {
        let mut out = Vec::new();
        let entries = self.plan.entries(number as usize);
        match &self.plan.steps[number as usize].work {
            Work::Milestone | Work::Data(..) | Work::Reload(_) | Work::LargeObjects => {}
            Work::Entries => entries.iter().for_each(|p| self.original(&mut out, *p, settings)),
            Work::Group(group) => self.group(&mut out, *group, settings),
            Work::BoundsBegin(family) => self.bounds_begin(&mut out, *family, settings),
            Work::BoundsEnd(family) => {
                sql!(out, "DROP TABLE ", self.bounds_table(*family), ";\n");
            }
            Work::Checks(family) => self.checks(&mut out, *family),
            Work::BulkIndex(family) => self.bulk_index(&mut out, entries, *family, settings),
            Work::BulkAttach => self.bulk_attach(&mut out, entries, settings),
            Work::ForeignKeyAdd => {
                if let Some((table, name, tail)) = foreign_key_name(self.entry(entries[0]).defn) {
                    sql!(
                        out,
                        "ALTER TABLE ONLY ",
                        table,
                        " ADD CONSTRAINT ",
                        name,
                        " ",
                        tail,
                        " NOT VALID;\n"
                    );
                }
            }
            Work::ForeignKeyValidate => {
                if let Some((table, name, _)) = foreign_key_name(self.entry(entries[0]).defn) {
                    sql!(out, "ALTER TABLE ONLY ", table, " VALIDATE CONSTRAINT ", name, ";\n");
                }
            }
            Work::Grants => self.grants(&mut out, entries),
        }
        out
    }

    /// The entries of a step in an order in which the archive's own statements work, whatever rules have put
    /// elsewhere: indexes before the attachment of their table, which then takes them up.
    pub fn originals(&self, number: u32) -> Vec<u32> {
        let entries = self.plan.entries(number as usize);
        match &self.plan.steps[number as usize].work {
            Work::Group(group) => {
                let group = &self.plan.groups[*group as usize];
                let (family, members) = self.family(group);
                let mut order = Vec::with_capacity(entries.len());
                for member in members {
                    let pairs = family.pairs_with_table(member);
                    order.push(member.table);
                    order.extend(pairs.iter().map(|(index, _)| *index));
                    order.push(member.attach);
                    order.extend(pairs.iter().map(|(_, attach)| *attach));
                }
                order
            }
            Work::BulkIndex(_) => {
                let own = entries[1..].iter().step_by(2);
                let attaches = entries[2..].iter().step_by(2);
                own.chain(&entries[..1]).chain(attaches).copied().collect()
            }
            _ => entries.to_vec(),
        }
    }

    /// The archive's own statements for entries.
    pub fn statements(&self, entries: &[u32], settings: &mut Settings) -> Vec<u8> {
        let mut out = Vec::new();
        entries.iter().for_each(|p| self.original(&mut out, *p, settings));
        out
    }

    /// What must be set before the rows of an entry are copied.
    pub fn before_rows(&self, place: u32, settings: &mut Settings) -> Vec<u8> {
        let mut out = Vec::new();
        self.set_schema(&mut out, &self.entry(place), settings);
        self.become_owner(&mut out, &self.entry(place), settings);
        out
    }

    /// The statements by which the session is somebody else for the rest of the transaction.
    pub fn become_user(&self, who: Who, settings: &mut Settings) -> Vec<u8> {
        let out = who.after(settings.who.as_ref(), self.role, "LOCAL ", quote_literal);
        settings.who = Some(who);
        out
    }

    /// Privileges that others have granted are granted as they: behind those the session is who has connected, without the role that it
    /// had, for the transactions to come, too.
    fn after_privileges(&self, out: &mut Vec<u8>, entry: &Entry, settings: &mut Settings) {
        let words = b" SESSION AUTHORIZATION";
        if !matches!(entry.desc, b"ACL" | b"ACL LANGUAGE" | b"DEFAULT ACL")
            || !entry.defn.windows(words.len()).any(|w| w == words)
        {
            return;
        }
        if let Some(role) = self.role {
            sql!(out, "SET ROLE ", quote_ident(role), ";\n");
        }
        settings.who = None;
    }

    fn become_owner(&self, out: &mut Vec<u8>, entry: &Entry, settings: &mut Settings) {
        if self.style.session_authorization && !self.style.no_owner {
            sql!(out, self.become_user(Who::owner(entry.owner), settings));
        } else if settings.who == Some(Who::LoggedIn) {
            sql!(out, self.become_user(Who::Restores, settings));
        }
    }

    /// In archives that say nothing of a search path names are looked up in the entry's schema. What is in none has its
    /// names qualified.
    fn set_schema(&self, out: &mut Vec<u8>, entry: &Entry, settings: &mut Settings) {
        if !self.plan.selects_schemas {
            return;
        }
        let wanted = match entry.namespace {
            b"" => &b"pg_catalog"[..],
            schema => schema,
        };
        if settings.schema.as_deref() == Some(wanted) {
            return;
        }
        sql!(out, search_path(wanted));
        settings.schema = Some(wanted.to_vec());
    }

    /// An entry as `pg_restore` would run it.
    fn original(&self, out: &mut Vec<u8>, place: u32, settings: &mut Settings) {
        let entry = self.entry(place);
        self.become_owner(out, &entry, settings);
        self.set_schema(out, &entry, settings);
        self.set_storage(out, &entry, settings);
        if self.plan.selects_schemas && entry.desc == b"SCHEMA" && entry.tag == b"public" {
            // Versions before 11 wrote its creation and left it out when they restored.
            sql!(out, "CREATE SCHEMA IF NOT EXISTS public;\n");
        } else if self.style.no_owner && entry.desc == b"SCHEMA" && !entry.defn.starts_with(b"--") {
            // Without the AUTHORIZATION that old versions put there. What begins as a comment makes nothing: public, where it
            // is the one that each database has, but with an owner or privileges of its own.
            sql!(out, "CREATE SCHEMA ", quote_ident(entry.tag), ";\n");
        } else if entry.desc == b"BLOB METADATA" {
            // From version 17 on: a list of large objects of one owner with like privileges.
            for oid in large_objects(entry.defn) {
                sql!(out, "SELECT pg_catalog.lo_create('", oid, "');\n");
                if !self.style.no_owner
                    && !self.style.session_authorization
                    && !entry.owner.is_empty()
                {
                    sql!(
                        out,
                        "ALTER LARGE OBJECT ",
                        oid,
                        " OWNER TO ",
                        quote_ident(entry.owner),
                        ";\n"
                    );
                }
            }
        } else if entry.desc == b"ACL" && entry.tag.starts_with(b"LARGE OBJECTS") {
            self.large_object_grants(out, &entry);
        } else if let Some(family) = self.late(place) {
            self.parent_without_checks(out, &entry, family);
        } else {
            sql!(out, entry.defn);
        }
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
        self.owner(out, &entry, settings);
        self.after_privileges(out, &entry, settings);
    }

    /// The family whose parent an entry is, if its CHECK constraints come later.
    fn late(&self, place: u32) -> Option<&Family> {
        let at = self.plan.families.binary_search_by_key(&place, |f| f.parent).ok()?;
        Some(&self.plan.families[at]).filter(|f| f.late_checks)
    }

    /// Tablespace and access method for what an entry makes, of whatever kind: sequences and what extensions bring have a
    /// place, too.
    fn set_storage(&self, out: &mut Vec<u8>, entry: &Entry, settings: &mut Settings) {
        self.set_tablespace(out, entry.tablespace, settings);
        self.set_access_method(out, entry, settings);
    }

    fn set_tablespace(&self, out: &mut Vec<u8>, wanted: &[u8], settings: &mut Settings) {
        if self.style.no_tablespaces {
            return;
        }
        if settings.tablespace.as_deref().unwrap_or_default() != wanted {
            let set = [b"SET LOCAL default_tablespace = ", &quote_literal(wanted)[..]];
            match self.refused.has(&set.concat()) {
                false => sql!(out, set.concat(), ";\n"),
                true => sql!(out, "SET LOCAL default_tablespace = '';\n"),
            }
            settings.tablespace = Some(wanted.to_vec());
        }
    }

    fn set_access_method(&self, out: &mut Vec<u8>, entry: &Entry, settings: &mut Settings) {
        let makes_tables = matches!(entry.desc, b"TABLE" | b"MATERIALIZED VIEW" | b"EXTENSION");
        if self.style.no_table_access_method || !makes_tables || entry.relkind == b'p' {
            return;
        }
        let wanted = entry.tableam;
        if settings.tableam.as_deref().unwrap_or_default() == wanted {
            return;
        }
        let set = [b"SET LOCAL default_table_access_method = ", &quote_ident(wanted)[..]];
        // Archives from before version 12, and extensions, leave it to the server.
        match wanted.is_empty() || self.refused.has(&set.concat()) {
            false => sql!(out, set.concat(), ";\n"),
            true => sql!(out, "SET LOCAL default_table_access_method TO DEFAULT;\n"),
        }
        settings.tableam = Some(wanted.to_vec());
    }

    fn owner(&self, out: &mut Vec<u8>, entry: &Entry, settings: &mut Settings) {
        if entry.relkind == b'p' && !entry.tableam.is_empty() && !self.style.no_table_access_method
        {
            // From version 17 on partitioned tables have an access method, which only a statement of its own sets.
            let mut name = quote_ident(entry.namespace);
            name.push(b'.');
            name.extend(quote_ident(entry.tag));
            let method = quote_ident(entry.tableam);
            let set = [b"ALTER TABLE ", &name[..], b" SET ACCESS METHOD ", &method].concat();
            if !self.refused.has(&set) {
                sql!(out, set, ";\n");
            }
        }
        let owner = new_owner(entry, self.style.no_owner);
        if owner.is_empty() {
            return;
        }
        if self.style.session_authorization {
            // What was there before is handed over all the same, by who may: who becomes others is a superuser, its role need not be.
            if !may_be_there(entry, self.plan.selects_schemas) {
                return;
            }
            sql!(out, self.become_user(Who::LoggedIn, settings));
        }
        if let Some(object) = owned_object(entry) {
            sql!(out, "ALTER ", object, " OWNER TO ", quote_ident(owner), ";\n");
        }
    }

    /// Privileges of a list of large objects: the entry has the statements for the first of them.
    fn large_object_grants(&self, out: &mut Vec<u8>, entry: &Entry) {
        let mut lists = entry.dependencies.iter().filter_map(|d| self.toc.place(*d));
        let list = lists.find(|p| self.toc.entry(*p).desc == b"BLOB METADATA");
        let oids: Vec<&[u8]> =
            list.map_or(Vec::new(), |p| large_objects(self.toc.entry(p).defn).collect());
        if oids.is_empty() {
            return sql!(out, entry.defn);
        }
        let mut rest = entry.defn;
        while let Some(statement) = LargeObjectStatement::take(&mut rest) {
            if !statement.of_object {
                sql!(out, statement.before, ";\n");
                continue;
            }
            for oid in &oids {
                sql!(out, statement.before, *oid, statement.after, ";\n");
            }
        }
    }

    /// One GRANT or REVOKE for several tables.
    fn grants(&self, out: &mut Vec<u8>, entries: &[u32]) {
        let tables: Vec<&[u8]> =
            entries.iter().filter_map(|p| grant_table(&self.toc.entry(*p as usize))).collect();
        let Some(template) = grant_template(&self.entry(entries[0])) else { return };
        let names = tables.join(&b", "[..]);
        for byte in template {
            match byte {
                0 => out.extend_from_slice(&names),
                byte => out.push(byte),
            }
        }
    }
}

/// The statement by which names are looked up in a schema, for the rest of a transaction.
pub fn search_path(schema: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    sql!(out, "SET LOCAL search_path = ", quote_ident(schema));
    sql!(out, if schema == b"pg_catalog" { ";\n" } else { ", pg_catalog;\n" });
    out
}

/// Who an entry's object belongs to when its statements have run; empty: nobody is named. With `--use-set-session-authorization` it
/// does so from the beginning, unless it [`may_be_there`].
pub fn new_owner<'a>(entry: &Entry<'a>, no_owner: bool) -> &'a [u8] {
    match no_owner || entry.drop_stmt.is_empty() {
        true => b"",
        false => entry.owner,
    }
}

/// The entry's statement does not say whose its object is, as it leaves one that is there as it was: a schema "public", in archives of
/// old versions `CREATE SCHEMA public`, too, and languages.
pub fn may_be_there(entry: &Entry, old_archive: bool) -> bool {
    let public = old_archive && entry.tag == b"public" || entry.defn.starts_with(b"--");
    entry.desc == b"SCHEMA" && public || entry.defn.trim_ascii().starts_with(b"CREATE OR REPLACE ")
}

/// How an entry's object is named in `ALTER … OWNER TO`; `None` for what has no owner of its own.
fn owned_object(entry: &Entry) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match entry.desc {
        // Named by kind, schema and name.
        b"TABLE"
        | b"VIEW"
        | b"MATERIALIZED VIEW"
        | b"FOREIGN TABLE"
        | b"SEQUENCE"
        | b"TYPE"
        | b"DOMAIN"
        | b"COLLATION"
        | b"CONVERSION"
        | b"STATISTICS"
        | b"TEXT SEARCH DICTIONARY"
        | b"TEXT SEARCH CONFIGURATION"
        | b"SCHEMA"
        | b"DATABASE"
        | b"PROCEDURAL LANGUAGE"
        | b"EVENT TRIGGER"
        | b"FOREIGN DATA WRAPPER"
        | b"SERVER"
        | b"PUBLICATION"
        | b"SUBSCRIPTION" => {
            sql!(out, entry.desc, " ");
            if !entry.namespace.is_empty() {
                sql!(out, quote_ident(entry.namespace), ".");
            }
            sql!(out, quote_ident(entry.tag));
        }
        b"BLOB" => sql!(out, "LARGE OBJECT ", entry.tag),
        // Named with their arguments: as the statement that drops them does.
        b"FUNCTION" | b"PROCEDURE" | b"AGGREGATE" | b"OPERATOR" | b"OPERATOR CLASS"
        | b"OPERATOR FAMILY" => {
            let name = entry.drop_stmt.strip_prefix(b"DROP ")?.trim_ascii_end();
            sql!(out, name.strip_suffix(b";")?);
        }
        _ => return None,
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners() {
        let table = Entry { desc: b"TABLE", namespace: b"s", tag: b"a\"b", ..Entry::default() };
        assert_eq!(owned_object(&table).unwrap(), b"TABLE \"s\".\"a\"\"b\"");
        let function = Entry {
            desc: b"FUNCTION",
            drop_stmt: b"DROP FUNCTION s.f(integer);\n",
            ..Entry::default()
        };
        assert_eq!(owned_object(&function).unwrap(), b"FUNCTION s.f(integer)");
        assert_eq!(owned_object(&Entry { desc: b"INDEX", ..Entry::default() }), None);
    }
}
