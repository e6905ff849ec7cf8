//! Where archives are: local paths and object stores, and how to reach the latter.

use crate::error::{Error, ErrorKind, Result};
use firn_lake::StoreOptions;
use std::path::PathBuf;
use std::sync::Arc;

/// A place as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A path, or what `file://` stands before.
    Local(PathBuf),
    /// `s3://bucket/key`, without a slash at the end.
    S3 { bucket: String, key: String },
}

impl Location {
    /// Takes a path, a `file:///…` or an `s3://bucket/key` URL.
    pub fn parse(text: &str) -> Result<Location> {
        let usage = |message: String| {
            Error::usage(message).hint("Give a path, file:///path or s3://bucket/prefix.")
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            if text.is_empty() {
                return Err(usage("the archive's name is empty".to_string()));
            }
            return Ok(Location::Local(text.into()));
        };
        match scheme {
            "file" => url::Url::parse(text)
                .ok()
                .filter(|u| rest.starts_with('/') && u.query().is_none() && u.fragment().is_none())
                .and_then(|u| u.to_file_path().ok())
                .map(Location::Local)
                .ok_or_else(|| usage(format!("\"{text}\" is no valid file URL"))),
            "s3" => {
                // What stands before an "@" may be a password: never repeated in a message.
                if rest.split('/').next().unwrap_or("").contains('@') {
                    return Err(usage("an s3 URL must not hold a user or password".to_string()));
                }
                let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
                Ok(Location::S3 {
                    bucket: bucket.to_string(),
                    key: key.trim_end_matches('/').to_string(),
                })
            }
            _ => Err(usage(format!("unknown kind of URL \"{scheme}://\""))),
        }
    }
}

/// What reaching an object store takes besides its URL.
#[derive(Clone, Default)]
pub struct StoreSettings {
    /// Options of the store by name, as [`StoreOptions::set`] knows them. They go before the environment's.
    pub options: Vec<(String, String)>,
    /// Asked every few milliseconds while a request is under way; true ends it.
    pub cancelled: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

/// The environment variable with further options: `name=value`, separated by commas.
const OPTIONS: &str = "FIRN_STORE_OPTIONS";

/// How long to bear with a store that was reached before: a run of hours is worth waiting for one that restarts.
/// Many parts of 8 MiB on their way at once need their time, too, where the network is slow.
fn patient() -> StoreOptions {
    StoreOptions {
        request_timeout_ms: 120_000,
        retry_timeout_ms: 300_000,
        max_retries: 10,
        ..StoreOptions::default()
    }
}

/// Options by the environment variables that AWS's own tools know, the first that is set.
const ENVIRONMENT: [(&str, &[&str]); 5] = [
    ("access_key_id", &["AWS_ACCESS_KEY_ID"]),
    ("secret_access_key", &["AWS_SECRET_ACCESS_KEY"]),
    ("session_token", &["AWS_SESSION_TOKEN"]),
    ("region", &["AWS_REGION", "AWS_DEFAULT_REGION"]),
    ("endpoint", &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]),
];

impl StoreSettings {
    /// How to reach the store at `url`: defaults, the environment's, then ours. Errors name the option or
    /// variable and never a secret.
    pub fn store_options(&self, url: &str) -> Result<StoreOptions> {
        self.with_environment(StoreOptions::default(), url, |name| std::env::var(name).ok())
    }

    /// [`StoreSettings::store_options`] for a store that has answered already: one that stays away after that is
    /// waited for longer, unless we or the environment say otherwise.
    pub fn patient_store_options(&self, url: &str) -> Result<StoreOptions> {
        self.with_environment(patient(), url, |name| std::env::var(name).ok())
    }

    fn with_environment(
        &self,
        mut options: StoreOptions,
        url: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<StoreOptions> {
        options.set("url", url).map_err(|e| Error::usage(e.message))?;
        for (name, variables) in ENVIRONMENT {
            let set =
                variables.iter().find_map(|v| Some((v, variable(v).filter(|s| !s.is_empty())?)));
            if let Some((variable, value)) = set {
                options.set(name, &value).map_err(|e| {
                    Error::usage(format!("environment variable {variable}: {}", e.message))
                })?;
            }
        }
        let listed = variable(OPTIONS).unwrap_or_default();
        for option in listed.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let wrong = |message: String| {
                Error::usage(format!("environment variable {OPTIONS}: {message}"))
                    .hint("It holds options of stores as name=value, separated by commas.")
            };
            // Not repeated: it may be a secret.
            let (name, value) = option
                .split_once('=')
                .ok_or_else(|| wrong("an option has no value".to_string()))?;
            options.set(name.trim(), value.trim()).map_err(|e| wrong(e.message))?;
        }
        for (name, value) in &self.options {
            options.set(name, value).map_err(|e| Error::usage(e.message))?;
        }
        Ok(options)
    }

    /// Whether the user asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.as_ref().is_some_and(|cancelled| cancelled())
    }
}

/// An error of a store as the program's.
pub fn store_error(e: firn_lake::Error) -> Error {
    let kind = match e.kind {
        firn_lake::ErrorKind::Cancelled => ErrorKind::Cancelled,
        firn_lake::ErrorKind::InvalidOptions => ErrorKind::Usage,
        _ => ErrorKind::Storage,
    };
    let hint = match e.kind {
        firn_lake::ErrorKind::PermissionDenied => Some(
            "Credentials are taken from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.",
        ),
        firn_lake::ErrorKind::Unreachable => {
            Some("Another server than AWS is named by AWS_ENDPOINT_URL, the region by AWS_REGION.")
        }
        _ => None,
    };
    let error = Error::new(kind, e.message);
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations() {
        let local = |path: &str| Location::Local(path.into());
        let s3 = |bucket: &str, key: &str| Location::S3 { bucket: bucket.into(), key: key.into() };
        for (text, expected) in [
            ("a.dump", local("a.dump")),
            ("/b/c d", local("/b/c d")),
            ("file:///b/c%20d", local("/b/c d")),
            ("s3://bucket/a/b.dump", s3("bucket", "a/b.dump")),
            ("s3://bucket/a/b/", s3("bucket", "a/b")),
            ("s3://bucket", s3("bucket", "")),
        ] {
            assert_eq!(Location::parse(text).unwrap(), expected, "{text}");
        }
        for bad in ["", "file://host/x", "file:///x?y", "gs://bucket/x", "s3://me:secretpw@host/x"]
        {
            let e = Location::parse(bad).unwrap_err();
            assert_eq!(e.kind, ErrorKind::Usage, "{bad}");
            assert!(!e.to_string().contains("secretpw"));
        }
    }

    #[test]
    fn options_come_from_the_environment_and_the_caller() {
        let environment = |name: &str| {
            let value = match name {
                "AWS_ACCESS_KEY_ID" => "AKID",
                "AWS_SECRET_ACCESS_KEY" => "hidden",
                "AWS_REGION" => "",
                "AWS_DEFAULT_REGION" => "eu-central-1",
                "AWS_ENDPOINT_URL" => "http://127.0.0.1:7070",
                "FIRN_STORE_OPTIONS" => "max_retries=3, part_bytes = 5242880,",
                _ => return None,
            };
            Some(value.to_string())
        };
        let mut settings = StoreSettings::default();
        let of = |settings: &StoreSettings| {
            settings.with_environment(patient(), "s3://bucket/x", environment)
        };
        let options = of(&settings).unwrap();
        assert_eq!((options.max_retries, options.part_bytes), (3, 5 << 20));
        assert_eq!(options.request_timeout_ms, patient().request_timeout_ms);
        assert_eq!(options.access_key_id.as_deref(), Some("AKID"));
        assert_eq!(options.region.as_deref(), Some("eu-central-1"));
        assert_eq!(options.endpoint.as_deref(), Some("http://127.0.0.1:7070"));
        settings.options = vec![("region".into(), "us-west-2".into())];
        assert_eq!(of(&settings).unwrap().region.as_deref(), Some("us-west-2"));
        settings.options = vec![("colour".into(), "blue".into())];
        assert!(of(&settings).is_err());
        for wrong in ["max_retries", "max_retries=x", "colour=hidden"] {
            let environment = |name: &str| (name == OPTIONS).then(|| wrong.to_string());
            let settings = StoreSettings::default();
            let e = settings.with_environment(patient(), "s3://bucket/x", environment).unwrap_err();
            assert_eq!(e.kind, ErrorKind::Usage);
            assert!(e.message.contains(OPTIONS) && !e.message.contains("hidden"), "{e}");
        }
    }
}
