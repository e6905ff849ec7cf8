//! No code: what libraries of others are built with. See README.md.
