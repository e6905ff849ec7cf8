//! Who a session is, and the statements by which it becomes that.

use crate::pg::quote_ident;

/// Whoever statements are run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Who restores: who has logged in, in the role of `--role`.
    Restores,
    /// Who has logged in, whose rights alone are asked for by what only a superuser may do.
    LoggedIn,
    Is(Vec<u8>),
}

impl Who {
    /// An entry's owner, if the archive tells one.
    pub fn owner(name: &[u8]) -> Who {
        match name {
            b"" => Who::Restores,
            name => Who::Is(name.to_vec()),
        }
    }

    /// Who switches triggers off: the user of `--superuser`. As `pg_restore` has it, whoever logged in is taken for one without that.
    pub fn superuser(name: Option<&str>) -> Who {
        match name.unwrap_or_default() {
            "" => Who::LoggedIn,
            name => Who::Is(name.as_bytes().to_vec()),
        }
    }

    /// The statements by which a session that is `from`, if that is known, becomes this; `scope`: `LOCAL ` for the rest of the
    /// transaction.
    pub fn after(
        &self,
        from: Option<&Who>,
        role: Option<&[u8]>,
        scope: &str,
        literal: impl Fn(&[u8]) -> Vec<u8>,
    ) -> Vec<u8> {
        let same = from == Some(self);
        let logged_in = |who: &Who| matches!(who, Who::Restores | Who::LoggedIn);
        // Between these two there is but the role.
        let alike = logged_in(self) && from.is_some_and(logged_in);
        let mut out = Vec::new();
        if !same && !alike {
            let name = match self {
                Who::Is(name) => literal(name),
                _ => b"DEFAULT".to_vec(),
            };
            // That ends the role, too.
            out.extend(
                [b"SET ", scope.as_bytes(), b"SESSION AUTHORIZATION ", &name, b";\n"].concat(),
            );
        }
        if let (false, Some(role)) = (same, role) {
            let role = match self {
                Who::Restores => Some(quote_ident(role)),
                Who::LoggedIn => Some(b"NONE".to_vec()),
                Who::Is(_) => None,
            };
            if let Some(role) = role {
                out.extend([b"SET ", scope.as_bytes(), b"ROLE ", &role, b";\n"].concat());
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::quote_literal;

    #[test]
    fn roles_end_and_come_back() {
        let role = Some(&b"r"[..]);
        let sql = |who: &Who, from, role| {
            String::from_utf8(who.after(from, role, "", quote_literal)).unwrap()
        };
        let begin = "SET SESSION AUTHORIZATION ";
        let owner = Who::owner(b"o");
        assert_eq!(sql(&owner, Some(&Who::Restores), role), format!("{begin}'o';\n"));
        assert_eq!(sql(&Who::LoggedIn, Some(&Who::Restores), role), "SET ROLE NONE;\n");
        assert_eq!(sql(&Who::Restores, Some(&Who::LoggedIn), role), "SET ROLE \"r\";\n");
        let both = format!("{begin}DEFAULT;\nSET ROLE \"r\";\n");
        assert_eq!(sql(&Who::Restores, Some(&owner), role), both);
        assert_eq!(sql(&Who::Restores, None, role), both);
        assert_eq!(sql(&Who::LoggedIn, Some(&Who::Restores), None), "");
        assert_eq!(sql(&Who::LoggedIn, None, None), format!("{begin}DEFAULT;\n"));
        assert_eq!(sql(&owner, Some(&owner), role), "");
    }
}
