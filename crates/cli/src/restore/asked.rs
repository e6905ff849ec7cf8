//! What the flags ask for of all ways to restore: by a plan, and statement by statement as a script has it.

use crate::plan::render::Style;

/// Kept in the journal, each field by its own name.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Asked {
    #[serde(flatten)]
    pub style: Style,
    /// What is there goes first.
    pub clean: bool,
    /// What does not is no error then.
    #[serde(default)]
    pub if_exists: bool,
    /// With rows only: triggers of the tables do not fire.
    pub disable_triggers: bool,
    /// Who switches triggers off, if it is not who restores.
    #[serde(default)]
    pub superuser: Option<String>,
}
