//! How the program connects to a server, for whatever it does there.

use super::conninfo::Address;

/// Whom to connect as, and to what.
#[derive(Clone, Debug, Default)]
pub struct Login {
    pub address: Address,
    /// The role to become.
    pub role: Option<String>,
    /// Take what row-level security policies let see, rather than fail where they apply.
    pub row_security: bool,
}

impl Login {
    /// The same to the database of this name, if one is given.
    pub fn at(&self, dbname: Option<&str>) -> Login {
        let own = || self.address.clone();
        let address = dbname.map_or_else(own, |name| self.address.database(name));
        Login { address, ..self.clone() }
    }
}
