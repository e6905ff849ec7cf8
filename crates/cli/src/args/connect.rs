//! How to connect, with the flags of PostgreSQL's own programs.

use crate::error::{Error, Result};
use crate::pg::{Address, Connection};
use clap::{Args, ValueHint};

/// Under this word help and manual list the flags; each says it itself, as else all later flags would go there, too.
const HEADING: &str = "Connection options";

/// What is not given comes from the environment, service files and password files, as with all programs of PostgreSQL.
#[derive(Args, Clone, Debug, Default)]
pub struct Connect {
    /// database server host or socket directory
    #[arg(short = 'h', long, value_name = "HOSTNAME", value_hint = ValueHint::Hostname, help_heading = HEADING)]
    pub host: Option<String>,
    /// database server port number
    #[arg(short = 'p', long, value_name = "PORT", help_heading = HEADING)]
    pub port: Option<String>,
    /// connect as specified database user
    #[arg(short = 'U', long, value_name = "NAME", value_hint = ValueHint::Username, help_heading = HEADING)]
    pub username: Option<String>,
    /// never prompt for password
    #[arg(short = 'w', long, overrides_with = "password", help_heading = HEADING)]
    pub no_password: bool,
    /// prompt for a password before connecting
    #[arg(short = 'W', long, overrides_with = "no_password", help_heading = HEADING)]
    pub password: bool,
}

impl Connect {
    /// Where to connect to: these flags, and a name, connection string or URI. Asks for a password if told to, or if the server wants
    /// one, nobody has said it, and there is a terminal to ask at.
    pub fn address(&self, dbname: Option<&str>) -> Result<Address> {
        let address = self.elsewhere(dbname)?;
        let missing = || -> Result<bool> {
            if self.no_password || !has_terminal() {
                return Ok(false);
            }
            Connection::lacks_password(&address)
        };
        if !self.password && !missing()? {
            return Ok(address);
        }
        let password = rpassword::prompt_password("Password: ")
            .map_err(|e| Error::io("could not read the password", &e))?;
        Ok(address.or("password", &password))
    }

    /// The same of another database, without asking for a password.
    pub fn elsewhere(&self, dbname: Option<&str>) -> Result<Address> {
        let given = [("host", &self.host), ("port", &self.port), ("user", &self.username)];
        let given: Vec<(&str, &str)> =
            given.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?))).collect();
        Address::new(&given, dbname)
    }
}

/// Somebody can be asked.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}
