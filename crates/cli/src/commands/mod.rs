//! The subcommands: each reads its flags, does its work by the library's parts, and says how it went.

pub mod backup;
pub mod restore;
