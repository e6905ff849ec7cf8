//! Where a store is and how to reach it.

use crate::error::{Error, Result};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use url::Url;

/// How to reach one store. Its `Debug` form never shows a secret.
#[derive(Clone)]
pub struct StoreOptions {
    /// `file:///folder` or `s3://bucket/prefix`.
    pub url: String,
    /// The S3 server to speak to, such as `http://127.0.0.1:7070`; AWS of the region when absent.
    pub endpoint: Option<String>,
    /// The S3 region; `us-east-1` when absent.
    pub region: Option<String>,
    /// With [`secret_access_key`](Self::secret_access_key), whom requests are signed by.
    /// Without both, requests are not signed.
    pub access_key_id: Option<String>,
    /// A secret.
    pub secret_access_key: Option<String>,
    /// A secret: the token of temporary credentials.
    pub session_token: Option<String>,
    /// Whether plain HTTP may be used. When absent: exactly if `endpoint` begins with `http://`.
    pub allow_http: Option<bool>,
    /// The longest one attempt of one request may take, in milliseconds, body included.
    pub request_timeout_ms: u64,
    /// The longest opening a connection may take, in milliseconds.
    pub connect_timeout_ms: u64,
    /// How often a request that failed for a passing reason is sent again.
    pub max_retries: u32,
    /// No attempt begins later than this after the first one, in milliseconds.
    pub retry_timeout_ms: u64,
    /// How many requests one call has under way at a time.
    pub max_parallel: u32,
    /// Objects larger than this are uploaded in parts; also the least size of a part, in bytes.
    /// S3 refuses parts below 5 MiB.
    pub part_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            url: String::new(),
            endpoint: None,
            region: None,
            access_key_id: None,
            secret_access_key: None,
            session_token: None,
            allow_http: None,
            request_timeout_ms: 30_000,
            connect_timeout_ms: 5_000,
            max_retries: 6,
            retry_timeout_ms: 60_000,
            max_parallel: 8,
            part_bytes: 8 << 20,
        }
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |v: &Option<String>| v.as_ref().map(|_| "<hidden>");
        f.debug_struct("StoreOptions")
            .field("url", &self.url)
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("access_key_id", &hidden(&self.access_key_id))
            .field("secret_access_key", &hidden(&self.secret_access_key))
            .field("session_token", &hidden(&self.session_token))
            .field("allow_http", &self.allow_http)
            .field("request_timeout_ms", &self.request_timeout_ms)
            .field("connect_timeout_ms", &self.connect_timeout_ms)
            .field("max_retries", &self.max_retries)
            .field("retry_timeout_ms", &self.retry_timeout_ms)
            .field("max_parallel", &self.max_parallel)
            .field("part_bytes", &self.part_bytes)
            .finish()
    }
}

/// The names [`StoreOptions::set`] knows that hold secrets (and belong in a user mapping).
pub const SECRET_OPTIONS: [&str; 3] = ["access_key_id", "secret_access_key", "session_token"];

/// The names [`StoreOptions::set`] knows that anyone may see (and belong to the server).
pub const PUBLIC_OPTIONS: [&str; 10] = [
    "url",
    "endpoint",
    "region",
    "allow_http",
    "request_timeout_ms",
    "connect_timeout_ms",
    "max_retries",
    "retry_timeout_ms",
    "max_parallel",
    "part_bytes",
];

impl StoreOptions {
    /// The defaults with this URL.
    pub fn new(url: impl Into<String>) -> Self {
        StoreOptions { url: url.into(), ..StoreOptions::default() }
    }

    /// Sets the option of this name from its text form. Errors name the option, never a secret's value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let text = || Some(value.to_string());
        match name {
            "url" => {
                validate_url(value)?;
                self.url = value.to_string();
            }
            "endpoint" => {
                parse_endpoint(value)?;
                self.endpoint = text();
            }
            "region" => self.region = text(),
            "access_key_id" => self.access_key_id = text(),
            "secret_access_key" => self.secret_access_key = text(),
            "session_token" => self.session_token = text(),
            "allow_http" => {
                self.allow_http = Some(match value.to_ascii_lowercase().as_str() {
                    "true" | "on" | "yes" | "1" => true,
                    "false" | "off" | "no" | "0" => false,
                    _ => return Err(Error::invalid("option \"allow_http\" must be true or false")),
                });
            }
            "request_timeout_ms" => self.request_timeout_ms = number(name, value, 1, 3_600_000)?,
            "connect_timeout_ms" => self.connect_timeout_ms = number(name, value, 1, 3_600_000)?,
            "max_retries" => self.max_retries = number(name, value, 0, 100)? as u32,
            "retry_timeout_ms" => self.retry_timeout_ms = number(name, value, 0, 3_600_000)?,
            "max_parallel" => self.max_parallel = number(name, value, 1, 256)? as u32,
            "part_bytes" => self.part_bytes = number(name, value, 5 << 20, 5 << 30)?,
            _ => {
                return Err(Error::invalid(format!(
                    "a store has no option \"{name}\"; it has {} and, for secrets, {}",
                    PUBLIC_OPTIONS.join(", "),
                    SECRET_OPTIONS.join(", ")
                )))
            }
        }
        Ok(())
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms.max(1))
    }

    pub(crate) fn retry_timeout(&self) -> Duration {
        Duration::from_millis(self.retry_timeout_ms)
    }

    pub(crate) fn parallel(&self) -> usize {
        self.max_parallel.clamp(1, 256) as usize
    }

    /// Whether plain HTTP may be used, after looking at the endpoint.
    pub(crate) fn http_allowed(&self) -> Result<bool> {
        let plain = match &self.endpoint {
            Some(e) => parse_endpoint(e)?,
            None => false,
        };
        match (plain, self.allow_http) {
            (true, Some(false)) => {
                Err(Error::invalid("the endpoint begins with http:// but allow_http is off"))
            }
            (plain, allowed) => Ok(allowed.unwrap_or(plain)),
        }
    }

    /// Everything that must not appear in a message.
    pub(crate) fn secrets(&self) -> Vec<String> {
        [&self.secret_access_key, &self.session_token, &self.access_key_id]
            .into_iter()
            .flatten()
            .filter(|s| !s.is_empty())
            .cloned()
            .collect()
    }
}

fn number(name: &str, value: &str, least: u64, most: u64) -> Result<u64> {
    value.trim().parse::<u64>().ok().filter(|n| (least..=most).contains(n)).ok_or_else(|| {
        Error::invalid(format!("option \"{name}\" must be a whole number from {least} to {most}"))
    })
}

/// A store's URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    File { root: PathBuf },
    S3 { bucket: String, prefix: String },
}

/// Checks that `url` is one a store can have: `file:///folder` or `s3://bucket/prefix`, without
/// user, password, query or fragment.
pub fn validate_url(url: &str) -> Result<()> {
    parse_url(url).map(|_| ())
}

pub(crate) fn parse_url(url: &str) -> Result<Location> {
    let form = "a store's url must have the form file:///folder or s3://bucket/prefix";
    if let Some((scheme, rest)) = url.split_once("://") {
        // What stands before an "@" may be a password: such a URL is never repeated in a message.
        let authority = rest.split('/').next().unwrap_or("");
        if authority.contains('@') {
            return Err(Error::invalid("a store's url must not hold a user or password"));
        }
        if rest.contains(['?', '#']) {
            return Err(Error::invalid("a store's url must not have a query or a fragment"));
        }
        if rest.contains(|c: char| c.is_control()) {
            return Err(Error::invalid("a store's url must not hold control characters"));
        }
        return match scheme {
            "file" => file_location(rest, form),
            "s3" => s3_location(rest, form),
            _ => Err(Error::invalid(form)),
        };
    }
    Err(Error::invalid(form))
}

fn file_location(rest: &str, form: &str) -> Result<Location> {
    if !rest.starts_with('/') {
        return Err(Error::invalid(form));
    }
    // Percent-encoding is undone as every other reader of file URLs does.
    let root = Url::parse(&format!("file://{rest}"))
        .ok()
        .and_then(|u| u.to_file_path().ok())
        .ok_or_else(|| Error::invalid(form))?;
    if rest.split('/').any(|s| s == "..") || root.parent().is_none() {
        return Err(Error::invalid(
            "a file store's folder must not be the root folder nor contain \"..\"",
        ));
    }
    Ok(Location::File { root })
}

fn s3_location(rest: &str, form: &str) -> Result<Location> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let bucket_ok = (3..=63).contains(&bucket.len())
        && bucket
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        && !bucket.starts_with(['-', '.'])
        && !bucket.ends_with(['-', '.']);
    if !bucket_ok {
        return Err(Error::invalid(format!(
            "{form}, and a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens"
        )));
    }
    let prefix = prefix.trim_end_matches('/');
    if !prefix.is_empty() {
        crate::key::check_key(prefix).map_err(|_| {
            Error::invalid(format!(
                "{form}; the prefix holds letters, digits and ._=- between single slashes"
            ))
        })?;
    }
    Ok(Location::S3 { bucket: bucket.to_string(), prefix: prefix.to_string() })
}

/// Checks an endpoint and says whether it is plain HTTP.
pub(crate) fn parse_endpoint(endpoint: &str) -> Result<bool> {
    let form = "an endpoint must have the form http://host:port or https://host:port, without user, password, query or fragment";
    let u = Url::parse(endpoint).map_err(|_| Error::invalid(form))?;
    if !u.username().is_empty()
        || u.password().is_some()
        || u.query().is_some()
        || u.fragment().is_some()
        || u.host_str().is_none_or(str::is_empty)
    {
        return Err(Error::invalid(form));
    }
    match u.scheme() {
        "http" => Ok(true),
        "https" => Ok(false),
        _ => Err(Error::invalid(form)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn urls() {
        for good in [
            "file:///srv/cold",
            "file:///srv/with%20space",
            "s3://bucket",
            "s3://bucket/",
            "s3://my.bucket-1/a/b=c/d_e",
        ] {
            validate_url(good).unwrap();
        }
        for bad in [
            "",
            "cold",
            "/srv/cold",
            "file://srv/cold",
            "file:///",
            "file:///srv/../etc",
            "s3://",
            "s3://ab",
            "s3://Bucket/x",
            "s3://bucket/../x",
            "s3://bucket//x",
            "s3://user:password@bucket/x",
            "s3://bucket/x?y=z",
            "http://bucket/x",
            "gs://bucket",
        ] {
            let e = validate_url(bad).unwrap_err();
            assert_eq!(e.kind, ErrorKind::InvalidOptions, "{bad}");
            assert!(!e.message.contains("password@"), "{e}");
        }
        assert_eq!(
            parse_url("file:///srv/with%20space/").unwrap(),
            Location::File { root: "/srv/with space/".into() }
        );
        assert_eq!(
            parse_url("s3://bucket/a/b/").unwrap(),
            Location::S3 { bucket: "bucket".into(), prefix: "a/b".into() }
        );
    }

    #[test]
    fn debug_hides_secrets() {
        let mut o = StoreOptions::new("s3://bucket");
        o.set("access_key_id", "AKIDEXAMPLE").unwrap();
        o.set("secret_access_key", "wJalrXUtnFEMI").unwrap();
        o.set("session_token", "tokentoken").unwrap();
        let shown = format!("{o:?} {o:#?}");
        for secret in ["AKIDEXAMPLE", "wJalrXUtnFEMI", "tokentoken"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(shown.contains("<hidden>"));
    }

    #[test]
    fn options_by_name() {
        let mut o = StoreOptions::default();
        for name in PUBLIC_OPTIONS.iter().chain(&SECRET_OPTIONS) {
            let value = match *name {
                "url" => "s3://bucket/p",
                "endpoint" => "http://127.0.0.1:7070",
                "allow_http" => "on",
                "part_bytes" => "8388608",
                _ => "7",
            };
            o.set(name, value).unwrap();
        }
        assert_eq!(o.max_retries, 7);
        assert!(o.http_allowed().unwrap());
        o.set("allow_http", "off").unwrap();
        assert!(o.http_allowed().is_err());
        for (name, value) in [
            ("max_retries", "-1"),
            ("part_bytes", "1"),
            ("allow_http", "perhaps"),
            ("endpoint", "http://me:secretpw@host"),
            ("colour", "blue"),
        ] {
            let e = o.set(name, value).unwrap_err();
            assert!(!e.message.contains("secretpw"), "{e}");
        }
    }
}
