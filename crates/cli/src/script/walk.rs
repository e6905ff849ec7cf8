//! Through the archive in `pg_restore`'s order.

use super::{Sink, Wishes};
use crate::archive::{Archive, Entry, Toc};
use crate::error::{Error, Result};
use crate::plan::select::{choose, Choice};
use crate::plan::text::quoted;
use crate::plan::who::Who;

/// When an entry has its turn: privileges come after all else, and what may depend on them at the very end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Main,
    Privileges,
    Last,
}

/// What is in force at a point of the script; `None`: not known.
#[derive(Default)]
pub(super) struct State {
    pub who: Option<Who>,
    pub schema: Option<Vec<u8>>,
    pub tablespace: Option<Vec<u8>>,
    pub tableam: Option<Vec<u8>>,
}

pub(super) struct Walk<'a> {
    pub archive: &'a Archive,
    pub toc: &'a Toc,
    pub wishes: &'a Wishes,
    pub sink: &'a mut dyn Sink,
    pub state: State,
    /// Statements since the transaction began, for `--transaction-size`.
    pub count: u32,
    /// Definitions are restored.
    pub schema_too: bool,
    pub standard_strings: bool,
    encoding: String,
    /// The statement that sets it for the whole script, in archives of PostgreSQL 10.3 and later.
    pub search_path: Option<&'a [u8]>,
}

/// Goes through the archive and gives out all that the flags ask for.
pub fn walk(archive: &Archive, wishes: &Wishes, sink: &mut dyn Sink) -> Result<()> {
    let toc = archive.toc();
    let choice = choose(toc, &wishes.filter);
    let mut walk = Walk {
        archive,
        toc,
        wishes,
        sink,
        state: State::default(),
        count: 0,
        schema_too: wishes.filter.wants_schema() && choice.parts.iter().any(|p| p.schema),
        standard_strings: false,
        encoding: "SQL_ASCII".to_string(),
        search_path: None,
    };
    walk.read_settings()?;
    walk.run(&choice)
}

/// A text between the first two quotes of an entry's definition.
fn quoted<'a>(entry: &Entry<'a>) -> Result<&'a str> {
    let text = std::str::from_utf8(entry.defn).ok();
    text.and_then(|text| text.split('\'').nth(1)).ok_or_else(|| {
        let kind = String::from_utf8_lossy(entry.desc);
        let text = String::from_utf8_lossy(entry.defn);
        Error::archive(format!("invalid {kind} item: {}", text.trim_end()))
    })
}

impl Walk<'_> {
    /// What the archive says of the text in it.
    fn read_settings(&mut self) -> Result<()> {
        for entry in self.toc.entries() {
            match entry.desc {
                b"ENCODING" => {
                    let name = quoted(&entry)?;
                    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                    if name.is_empty() || !name.chars().all(plain) {
                        return Err(Error::archive(format!("unrecognized encoding \"{name}\"")));
                    }
                    self.encoding = name.to_string();
                }
                b"STDSTRINGS" => {
                    self.standard_strings = match quoted(&entry)? {
                        "on" => true,
                        "off" => false,
                        other => {
                            let message = format!("invalid STDSTRINGS item: \"{other}\"");
                            return Err(Error::archive(message));
                        }
                    }
                }
                b"SEARCHPATH" => self.search_path = Some(entry.defn),
                _ => {}
            }
        }
        Ok(())
    }

    fn run(&mut self, choice: &Choice) -> Result<()> {
        let key = &self.wishes.restrict_key;
        let header = self.archive.header();
        let mut text = b"--\n-- PostgreSQL database dump\n--\n\n".to_vec();
        text.extend_from_slice(format!("\\restrict {key}\n\n").as_bytes());
        for (what, version) in [
            ("Dumped from database version", &header.server_version),
            ("Dumped by pg_dump version", &header.dump_version),
        ] {
            if !version.is_empty() {
                let version = version.replace(['\n', '\r'], " ");
                text.extend_from_slice(format!("-- {what} {version}\n").as_bytes());
            }
        }
        text.push(b'\n');
        self.sink.remark(&text)?;
        if self.wishes.single_transaction {
            self.sink.sql(b"BEGIN;\n\n")?;
        }
        self.fixed_state()?;
        if self.wishes.asked.clean {
            self.drops(choice)?;
        }
        for pass in [Pass::Main, Pass::Privileges, Pass::Last] {
            for &place in &choice.order {
                let parts = choice.parts[place as usize];
                let entry = self.toc.entry(place as usize);
                if parts.any() && pass_of(&entry) == pass {
                    self.sink.begin(&entry);
                    self.entry(place as usize, parts)?;
                }
            }
        }
        if self.wishes.single_transaction || self.wishes.transaction_size.is_some() {
            self.sink.last()?;
            self.sink.sql(b"COMMIT;\n\n")?;
        }
        let end = "--\n-- PostgreSQL database dump complete\n--\n\n";
        self.sink.remark(format!("{end}\\unrestrict {key}\n\n").as_bytes())
    }

    /// Settings that hold for all of it.
    pub(super) fn fixed_state(&mut self) -> Result<()> {
        let mut text = b"SET statement_timeout = 0;\nSET lock_timeout = 0;\n\
            SET idle_in_transaction_session_timeout = 0;\n"
            .to_vec();
        if !self.sink.lacks_transaction_timeout() {
            text.extend_from_slice(b"SET transaction_timeout = 0;\n");
        }
        let strings = if self.standard_strings { "on" } else { "off" };
        text.extend_from_slice(
            format!(
                "SET client_encoding = '{}';\nSET standard_conforming_strings = {strings};\n",
                self.encoding
            )
            .as_bytes(),
        );
        if let Some(role) = &self.wishes.role {
            text.extend_from_slice(b"SET ROLE ");
            text.extend(quoted::id(role.as_bytes()));
            text.extend_from_slice(b";\n");
        }
        text.extend_from_slice(self.search_path.unwrap_or_default());
        text.extend_from_slice(
            b"SET check_function_bodies = false;\nSET xmloption = content;\n\
              SET client_min_messages = warning;\n",
        );
        if !self.standard_strings {
            text.extend_from_slice(b"SET escape_string_warning = off;\n");
        }
        let row_security = if self.wishes.row_security { "on" } else { "off" };
        text.extend_from_slice(format!("SET row_security = {row_security};\n").as_bytes());
        if self.wishes.transaction_size.is_some() {
            text.extend_from_slice(b"\nBEGIN;\n");
            self.count = 0;
        }
        text.push(b'\n');
        self.sink.sql(&text)
    }

    /// So many statements more: with `--transaction-size`, commits when it is time. `text`: how a script says it.
    pub(super) fn counted(&mut self, text: &[u8]) -> Result<()> {
        let Some(size) = self.wishes.transaction_size else { return Ok(()) };
        self.count += 1;
        if self.count >= size {
            self.sink.sql(text)?;
            self.count = 0;
        }
        Ok(())
    }

    /// What `--role` asks for. SESSION AUTHORIZATION ends it, which scripts of `pg_restore` leave at that.
    fn role(&self) -> Option<&[u8]> {
        let role = self.wishes.role.as_ref().filter(|_| !self.sink.is_script());
        role.map(|role| role.as_bytes())
    }

    pub(super) fn become_user(&mut self, who: Who) -> Result<()> {
        // Scripts know no difference.
        let who = match who {
            Who::LoggedIn if self.role().is_none() => Who::Restores,
            who => who,
        };
        let literal = |name: &[u8]| quoted::literal(name, self.standard_strings);
        let text = who.after(self.state.who.as_ref(), self.role(), "", literal);
        self.state.who = Some(who);
        match text.is_empty() {
            true => Ok(()),
            false => self.sink.sql(&[&text[..], b"\n"].concat()),
        }
    }

    /// Behind what has ended it.
    pub(super) fn become_role(&mut self) -> Result<()> {
        let Some(role) = self.role() else { return Ok(()) };
        let text = [b"SET ROLE ", &quoted::id(role)[..], b";\n\n"].concat();
        self.sink.sql(&text)
    }

    pub(super) fn become_owner(&mut self, entry: &Entry) -> Result<()> {
        match self.wishes.asked.style.session_authorization && !self.wishes.asked.style.no_owner {
            true => self.become_user(Who::owner(entry.owner)),
            false if self.state.who == Some(Who::LoggedIn) => self.become_user(Who::Restores),
            false => Ok(()),
        }
    }

    /// Old archives leave schemas out of their statements.
    pub(super) fn select_schema(&mut self, schema: &[u8]) -> Result<()> {
        if self.search_path.is_some()
            || schema.is_empty()
            || self.state.schema.as_deref() == Some(schema)
        {
            return Ok(());
        }
        let mut text = [b"SET search_path = ", &quoted::id(schema)[..]].concat();
        if schema != b"pg_catalog" {
            text.extend_from_slice(b", pg_catalog");
        }
        text.extend_from_slice(b";\n\n");
        self.sink.sql(&text)?;
        self.state.schema = Some(schema.to_vec());
        Ok(())
    }
}

fn pass_of(entry: &Entry) -> Pass {
    match entry.desc {
        b"ACL" | b"ACL LANGUAGE" | b"DEFAULT ACL" => Pass::Privileges,
        b"EVENT TRIGGER" | b"MATERIALIZED VIEW DATA" => Pass::Last,
        b"COMMENT" | b"SECURITY LABEL" if entry.tag.starts_with(b"EVENT TRIGGER ") => Pass::Last,
        b"STATISTICS DATA" if entry.section == crate::archive::Section::PostData => Pass::Last,
        _ => Pass::Main,
    }
}
