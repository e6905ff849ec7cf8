//! Where bytes live: object stores, the local cache in front of them, and what to move between them.
//!
//! No PostgreSQL here. Everything blocks its caller and can be cancelled; see the crate's README.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cache;
mod drive;
mod error;
mod file;
mod key;
mod marker;
mod options;
pub mod plan;
mod ranges;
mod retry;
mod s3;
mod s3_error;
mod s3_http;
mod store;
mod upload;

pub use cache::{Cache, CacheStats};
pub use error::{Error, ErrorKind, Result};
pub use key::{object_key, random_nonce, relation_prefix, ObjectKey};
pub use marker::MARKER;
pub use options::{validate_url, StoreOptions, PUBLIC_OPTIONS, SECRET_OPTIONS};
pub use store::Store;
pub use upload::{Part, Upload};
