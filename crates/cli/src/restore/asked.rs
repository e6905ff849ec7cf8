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

#[cfg(test)]
mod tests {
    use super::*;

    /// A journal that an earlier build has written has all of them side by side, and lacks what came later.
    #[test]
    fn a_journal_has_each_field_by_its_own_name() {
        let text = r#"{"no_owner":true,"no_tablespaces":false,"no_table_access_method":false,"clean":true,"disable_triggers":false}"#;
        let asked: Asked = serde_json::from_str(text).expect("an earlier journal is read");
        assert!(
            asked.style.no_owner && asked.clean && !asked.if_exists && asked.superuser.is_none()
        );
        let written = serde_json::to_value(&asked).expect("flags are plain values");
        let fields = written.as_object().expect("a structure");
        assert!(
            ["no_owner", "session_authorization", "if_exists", "superuser"]
                .iter()
                .all(|f| fields.contains_key(*f)),
            "{fields:?}"
        );
        assert!(serde_json::from_str::<Asked>(r#"{"no_owner":true}"#).is_err());
    }
}
