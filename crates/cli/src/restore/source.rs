//! The archive as the flags name it: its format, and the list of what is restored of it.

use super::proof::schemas;
use super::{generated, reload, Options};
use crate::archive::{Archive, Toc};
use crate::error::{Error, Result};
use crate::pg::Connection;
use crate::plan::redirect;
use crate::plan::select::{left_out, list, select, Filter};
use crate::plan::Facts;
use crate::report::{Event, Watch};
use crate::store::StoreSettings;

impl Options {
    /// Opens the archive. It must have the format that was named, if one was.
    pub fn open(&self, settings: &StoreSettings) -> Result<Archive> {
        let archive = Archive::open_locked(&self.archive, settings, &self.keys)?;
        let found = archive.header().format;
        match self.format {
            Some(format) if format != found => Err(Error::archive(format!(
                "archive \"{}\" is in {found} format, not in {format} format",
                self.archive
            ))),
            _ => Ok(archive),
        }
    }

    /// What moment an encrypted backup is of. It is told: who can write where it lies could have put an older one in its place.
    pub fn moment(&self, archive: &Archive) -> Result<Option<String>> {
        let manifest = match archive.is_encrypted() {
            true => archive.manifest()?,
            false => None,
        };
        Ok(manifest.map(|manifest| manifest.head.snapshot_time))
    }

    pub fn tell_moment(&self, archive: &Archive, watch: &dyn Watch) -> Result<()> {
        if let Some(moment) = self.moment(archive)? {
            watch.event(&Event::Fact { name: "backup of", value: &moment });
        }
        Ok(())
    }

    /// Lets rows and objects go elsewhere, if flags say so; what is left out for that is told. The filter is complete.
    pub fn redirect(&self, archive: &mut Archive, tell: &mut dyn FnMut(&str)) -> Result<()> {
        match self.redirects.is_empty() {
            true => Ok(()),
            false => {
                archive.change_toc(|toc| redirect::apply(toc, &self.filter, &self.redirects, tell))
            }
        }
    }

    /// Finds out which tables are emptied together, if they are to be emptied; what is there already where schemas go; and what tables that
    /// are there generate.
    pub fn add_reloads(&self, connection: &Connection, toc: &Toc, facts: &mut Facts) -> Result<()> {
        if self.truncate {
            facts.reloads = reload::groups(connection, toc, &select(toc, &self.filter))?;
        }
        facts.crossing = schemas::crossing(connection, &self.redirects)?;
        facts.generated = generated::calls(connection, toc, &select(toc, &self.filter))?;
        Ok(())
    }

    /// The filter with what a list file says, if there is one. Lines that name nothing are told.
    pub fn filter_for(&self, toc: &Toc, tell: &mut dyn FnMut(&str)) -> Result<Filter> {
        let mut filter = Filter { create: self.create, ..self.filter.clone() };
        if let Some(file) = &self.use_list {
            let text = std::fs::read(file)
                .map_err(|e| Error::io(format!("could not open TOC file \"{file}\""), &e))?;
            let found = list::read(&text, toc)?;
            for line in &found.ignored {
                tell(&format!("warning: line ignored: {line}"));
            }
            filter.list = Some(found.ids);
        }
        left_out(toc, &filter).iter().for_each(|line| tell(line));
        if toc.with_oids() {
            // In pg_restore's words, once.
            tell("warning: restoring tables WITH OIDS is not supported anymore");
        }
        Ok(filter)
    }
}
