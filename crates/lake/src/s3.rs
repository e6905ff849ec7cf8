//! A store in an S3 bucket.
//!
//! The `object_store` crate signs and sends single requests; what to repeat, what to ask in parallel and what an
//! answer means is decided here, so that every request obeys the same bounds and can be cancelled.

use crate::error::{Error, ErrorKind, Failure};
use crate::options::StoreOptions;
use crate::ranges;
use crate::retry::Policy;
use crate::s3_error::Judge;
use crate::s3_http::Connector;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, RetryConfig,
};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

type Result<T> = std::result::Result<T, Failure>;

/// Connections idle for longer are not used again: servers and firewalls drop them silently after about a minute.
const IDLE_CONNECTION: Duration = Duration::from_secs(15);
/// Bytes per request when an object is read back as a whole.
const VERIFY_STEP: u64 = 8 << 20;
/// Parts uploaded at the same time. Few: over plain HTTP each is hashed before it is sent, on this thread.
const UPLOADS_AT_ONCE: usize = 4;
/// How long a failed upload waits for its parts to be given up.
const ABORT_WAIT: Duration = Duration::from_secs(2);
/// S3 allows no more parts in an upload.
const MOST_PARTS: u64 = 10_000;
/// The largest upload without parts S3 allows, and thus the largest part.
const LARGEST_PART: u64 = 5 << 30;

#[derive(Debug)]
pub(crate) struct S3Store {
    client: AmazonS3,
    /// Empty, or ends in a slash.
    prefix: String,
    policy: Policy,
    parallel: usize,
    part_bytes: u64,
    judge: Judge,
    /// Whether the server is believed to know `If-None-Match`.
    conditional: Arc<AtomicBool>,
}

impl S3Store {
    pub fn new(options: &StoreOptions, bucket: &str, prefix: &str) -> crate::Result<Self> {
        let conditional = Arc::new(AtomicBool::new(true));
        let region = options.region.as_deref().unwrap_or("us-east-1");
        let http = options.http_allowed()?;
        let client_options = ClientOptions::new()
            .with_allow_http(http)
            .with_timeout_disabled()
            .with_connect_timeout(Duration::from_millis(options.connect_timeout_ms.max(1)))
            .with_pool_idle_timeout(IDLE_CONNECTION)
            .with_pool_max_idle_per_host(options.parallel());
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(region)
            .with_virtual_hosted_style_request(false)
            // TLS protects a body already; hashing it once more would cost time in which nobody can cancel.
            .with_unsigned_payload(!http)
            .with_client_options(client_options)
            .with_http_connector(Connector { conditional: Arc::clone(&conditional) })
            .with_retry(RetryConfig {
                max_retries: 0,
                retry_timeout: Duration::ZERO,
                ..RetryConfig::default()
            });
        if let Some(endpoint) = &options.endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
        }
        builder = match (&options.access_key_id, &options.secret_access_key) {
            (Some(id), Some(secret)) => {
                let builder = builder.with_access_key_id(id).with_secret_access_key(secret);
                match &options.session_token {
                    Some(token) => builder.with_token(token),
                    None => builder,
                }
            }
            (None, None) if options.session_token.is_none() => builder.with_skip_signature(true),
            _ => {
                return Err(Error::invalid(
                    "access_key_id and secret_access_key go together (and session_token only with both)",
                ))
            }
        };
        let judge = Judge::new(options.secrets());
        let client = builder.build().map_err(|e| {
            Error::invalid(format!(
                "the S3 client does not accept the options: {}",
                judge.clean(&e.to_string())
            ))
        })?;
        Ok(S3Store {
            client,
            prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") },
            policy: Policy::of(options),
            parallel: options.parallel(),
            part_bytes: options.part_bytes.clamp(5 << 20, LARGEST_PART),
            judge,
            conditional,
        })
    }

    fn path(&self, key: &str) -> Result<Path> {
        Path::parse(format!("{}{key}", self.prefix))
            .map_err(|e| Failure::fatal(ErrorKind::InvalidOptions, e.to_string()))
    }

    fn fail(&self, e: object_store::Error) -> Failure {
        self.judge.failure(&e)
    }

    pub async fn put(&self, key: &str, bytes: &Bytes) -> Result<()> {
        let path = self.path(key)?;
        let result = if bytes.len() as u64 <= self.part_bytes {
            self.put_whole(&path, bytes).await
        } else {
            self.put_parts(&path, bytes).await
        };
        match result {
            Err(refused) if refused.uncertain => {
                let crc = crc32c::crc32c(bytes);
                self.settle(&path, bytes.len() as u64, crc, refused).await
            }
            other => other,
        }
    }

    /// Tried again it does no harm: the object is the same.
    pub async fn replace(&self, key: &str, bytes: &Bytes) -> Result<()> {
        let path = self.path(key)?;
        self.policy
            .run(|| async {
                let written = self.put_once(&path, bytes, PutMode::Overwrite).await;
                written.map_err(|e| self.fail(e))
            })
            .await
    }

    /// What a write amounts to whose answer was lost. It may have succeeded: then the object is ours. Or the
    /// server refused it before it had read all of it and closed the connection, so that the refusal was
    /// never seen: then a look at the object meets the same refusal.
    async fn settle(&self, path: &Path, size: u64, crc: u32, lost: Failure) -> Result<()> {
        match self.is_there(path, size, crc).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure {
                kind: ErrorKind::AlreadyExists,
                detail: "another object with this key exists".into(),
                ..lost
            }),
            Err(f) if f.kind == ErrorKind::PermissionDenied => Err(f),
            // It is not known whose object it is that is there.
            Err(f) if lost.kind == ErrorKind::AlreadyExists => Err(f),
            Err(_) => Err(lost),
        }
    }

    async fn put_whole(&self, path: &Path, bytes: &Bytes) -> Result<()> {
        self.policy
            .run(|| async {
                if self.conditional.load(Ordering::Relaxed) {
                    let result = self.put_once(path, bytes, PutMode::Create).await;
                    match result {
                        Err(e) if self.judge.is_not_implemented(&e) => {
                            self.conditional.store(false, Ordering::Relaxed);
                        }
                        other => return other.map_err(|e| self.fail(e)),
                    }
                }
                self.refuse_existing(path).await?;
                self.put_once(path, bytes, PutMode::Overwrite).await.map_err(|e| self.fail(e))
            })
            .await
    }

    async fn put_once(
        &self,
        path: &Path,
        bytes: &Bytes,
        mode: PutMode,
    ) -> object_store::Result<()> {
        let payload = PutPayload::from_bytes(bytes.clone());
        self.client.put_opts(path, payload, PutOptions::from(mode)).await.map(|_| ())
    }

    /// For servers without conditional requests; the key's nonce closes what gap remains.
    async fn refuse_existing(&self, path: &Path) -> Result<()> {
        match self.head_once(path).await {
            Ok(_) => {
                Err(Failure::fatal(ErrorKind::AlreadyExists, "an object with this key exists"))
            }
            Err(f) if f.kind == ErrorKind::NotFound => Ok(()),
            Err(f) => Err(f),
        }
    }

    async fn put_parts(&self, path: &Path, bytes: &Bytes) -> Result<()> {
        let length = bytes.len() as u64;
        let part = self.part_bytes.max(length.div_ceil(MOST_PARTS));
        if part > LARGEST_PART {
            return Err(Failure::fatal(ErrorKind::InvalidOptions, "the object is too large"));
        }
        let id = self.begin(path).await?;
        let mut upload = Upload { client: self.client.clone(), path: path.clone(), id, open: true };
        let result = self.fill(&upload, bytes, part).await;
        if result.is_err() {
            let abort = self.client.abort_multipart(path, &upload.id);
            let _ = tokio::time::timeout(ABORT_WAIT, abort).await;
        }
        upload.open = false;
        result
    }

    async fn begin(&self, path: &Path) -> Result<String> {
        self.policy
            .run(|| async { self.client.create_multipart(path).await.map_err(|e| self.fail(e)) })
            .await
            .map_err(certain)
    }

    async fn fill(&self, upload: &Upload, bytes: &Bytes, part: u64) -> Result<()> {
        let part = usize::try_from(part).unwrap_or(usize::MAX);
        let starts = (0..bytes.len()).step_by(part).enumerate();
        let parts: Vec<PartId> = stream::iter(starts)
            .map(|(n, at)| {
                let end = at.saturating_add(part).min(bytes.len());
                self.put_part(&upload.path, &upload.id, n, bytes.slice(at..end))
            })
            .buffered(self.parallel.min(UPLOADS_AT_ONCE))
            .try_collect()
            .await
            .map_err(certain)?;
        self.complete(&upload.path, &upload.id, parts).await
    }

    async fn complete(&self, path: &Path, id: &String, parts: Vec<PartId>) -> Result<()> {
        if !self.conditional.load(Ordering::Relaxed) {
            self.policy.run(|| self.refuse_existing(path)).await.map_err(certain)?;
        }
        self.policy
            .run(|| async {
                loop {
                    let result = self.client.complete_multipart(path, id, parts.clone()).await;
                    match result {
                        Err(e)
                            if self.judge.is_not_implemented(&e)
                                && self.conditional.swap(false, Ordering::Relaxed) =>
                        {
                            self.refuse_existing(path).await?;
                        }
                        other => return other.map(|_| ()).map_err(|e| self.fail(e)),
                    }
                }
            })
            .await
    }

    async fn put_part(&self, path: &Path, id: &String, n: usize, bytes: Bytes) -> Result<PartId> {
        self.policy
            .run(|| async {
                let payload = PutPayload::from_bytes(bytes.clone());
                self.client.put_part(path, id, n, payload).await.map_err(|e| self.fail(e))
            })
            .await
    }

    /// Begins an object that comes in parts; the answer names the upload.
    pub async fn upload_begin(&self, key: &str) -> Result<String> {
        let path = self.path(key)?;
        self.begin(&path).await
    }

    /// Uploads a part, counted from 0. The answer is what [`S3Store::upload_finish`] wants to know of it.
    pub async fn upload_part(&self, key: &str, id: &str, n: usize, bytes: Bytes) -> Result<String> {
        if n as u64 >= MOST_PARTS {
            return Err(Failure::fatal(ErrorKind::InvalidOptions, "the object has too many parts"));
        }
        let (path, id) = (self.path(key)?, id.to_string());
        self.put_part(&path, &id, n, bytes).await.map(|part| part.content_id).map_err(certain)
    }

    /// Makes the object of its parts, in order. It has this size and this crc32c.
    pub async fn upload_finish(
        &self,
        key: &str,
        id: &str,
        parts: Vec<String>,
        size: u64,
        crc: u32,
    ) -> Result<()> {
        let (path, id) = (self.path(key)?, id.to_string());
        let parts = parts.into_iter().map(|content_id| PartId { content_id }).collect();
        match self.complete(&path, &id, parts).await {
            Err(refused) if refused.uncertain => self.settle(&path, size, crc, refused).await,
            other => other,
        }
    }

    /// Gives up an upload. One that is not there any more was given up before, or completed.
    pub async fn upload_abort(&self, key: &str, id: &str) -> Result<()> {
        let (path, id) = (self.path(key)?, id.to_string());
        let abort =
            || async { self.client.abort_multipart(&path, &id).await.map_err(|e| self.fail(e)) };
        match self.policy.run(abort).await {
            Err(f) if f.kind == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Copies an object from below the prefix that this store's own lies below.
    pub async fn copy_beside(&self, from: &str, key: &str) -> Result<()> {
        let path = self.path(key)?;
        let own = self.prefix.trim_end_matches('/');
        let above = own.rsplit_once('/').map_or(String::new(), |(above, _)| format!("{above}/"));
        let source = Path::parse(format!("{above}{from}"))
            .map_err(|e| Failure::fatal(ErrorKind::InvalidOptions, e.to_string()))?;
        self.policy.run(|| self.refuse_existing(&path)).await?;
        let copy = || async { self.client.copy(&source, &path).await.map_err(|e| self.fail(e)) };
        self.policy.run(copy).await
    }

    /// Removes an object; one that is not there is removed already.
    pub async fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key)?;
        let delete = || async { self.client.delete(&path).await.map_err(|e| self.fail(e)) };
        match self.policy.run(delete).await {
            Err(f) if f.kind == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Whether the object is there with bytes of this number and crc32c.
    async fn is_there(&self, path: &Path, size: u64, crc: u32) -> Result<bool> {
        let length = self.policy.run(|| self.head_once(path)).await?;
        if length != size {
            return Ok(false);
        }
        let (_, found) = self.checksum_of(path).await?;
        Ok(found == crc)
    }

    pub async fn get_many(&self, key: &str, wanted: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = self.path(key)?;
        let requests = ranges::requests(wanted, ranges::near(wanted), ranges::LARGEST);
        let fetched: Vec<(Range<u64>, Bytes)> = stream::iter(requests)
            .map(|r| async {
                let bytes = self.get(&path, r.clone()).await?;
                Ok::<_, Failure>((r, bytes))
            })
            .buffered(self.parallel)
            .try_collect()
            .await?;
        ranges::cut(wanted, &fetched)
            .ok_or_else(|| Failure::fatal(ErrorKind::Other, "a fetched range is incomplete"))
    }

    async fn get(&self, path: &Path, range: Range<u64>) -> Result<Bytes> {
        self.policy.run(|| self.get_once(path, &range)).await
    }

    async fn get_once(&self, path: &Path, range: &Range<u64>) -> Result<Bytes> {
        let options =
            GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let result = self.client.get_opts(path, options).await.map_err(|e| self.fail(e))?;
        if result.range != *range {
            return Err(Failure::fatal(
                ErrorKind::Corrupt,
                format!("it has {} bytes where {} are needed", result.meta.size, range.end),
            ));
        }
        let bytes = result.bytes().await.map_err(|e| self.fail(e))?;
        let promised = range.end - range.start;
        if bytes.len() as u64 != promised {
            return Err(Failure::passing(
                ErrorKind::Unreachable,
                format!("the answer had {} bytes instead of {promised}", bytes.len()),
            ));
        }
        Ok(bytes)
    }

    pub async fn head(&self, key: &str) -> Result<u64> {
        let path = self.path(key)?;
        self.policy.run(|| self.head_once(&path)).await
    }

    async fn head_once(&self, path: &Path) -> Result<u64> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.client.get_opts(path, options).await {
            Ok(result) => Ok(result.meta.size),
            Err(e) => {
                let failure = self.fail(e);
                if failure.kind == ErrorKind::NotFound {
                    // Answers to HEAD have no body: a GET tells whether it is the object, the bucket or, with
                    // some servers, the user that does not exist.
                    self.get_once(path, &(0..1)).await?;
                }
                Err(failure)
            }
        }
    }

    /// The length of a whole object and the crc32c of its bytes, all of them read back.
    pub async fn checksum(&self, key: &str) -> Result<(u64, u32)> {
        self.checksum_of(&self.path(key)?).await
    }

    async fn checksum_of(&self, path: &Path) -> Result<(u64, u32)> {
        let length = self.policy.run(|| self.head_once(path)).await?;
        let requests = ranges::requests(std::slice::from_ref(&(0..length)), 0, VERIFY_STEP);
        let crc = stream::iter(requests)
            .map(|r| self.get(path, r))
            .buffered(self.parallel.min(4))
            .try_fold(0, |crc, bytes| async move { Ok(crc32c::crc32c_append(crc, &bytes)) })
            .await?;
        Ok((length, crc))
    }

    /// All objects whose key begins with `prefix`. A page that fails is asked for again from where the last
    /// one ended.
    pub async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        let whole = format!("{}{prefix}", self.prefix);
        // The client lists whole folders only; the rest of the prefix is compared here.
        let folder = match whole.rsplit_once('/') {
            Some((folder, _)) => Some(
                Path::parse(folder)
                    .map_err(|e| Failure::fatal(ErrorKind::InvalidOptions, e.to_string()))?,
            ),
            None => None,
        };
        let found = std::cell::RefCell::new(Vec::<(String, u64)>::new());
        // A listing of many pages may take longer than one request may: it goes in steps with a bound each.
        let last = std::cell::RefCell::new(None::<Path>);
        loop {
            let more = self
                .policy
                .run(|| async {
                    let from = last.borrow().clone();
                    let mut pages = match &from {
                        Some(at) => self.client.list_with_offset(folder.as_ref(), at),
                        None => self.client.list(folder.as_ref()),
                    };
                    for _ in 0..LIST_STEP {
                        match pages.next().await {
                            None => return Ok(false),
                            Some(Err(e)) => return Err(self.fail(e)),
                            Some(Ok(meta)) => {
                                if let Some(key) = meta
                                    .location
                                    .as_ref()
                                    .strip_prefix(self.prefix.as_str())
                                    .filter(|k| k.starts_with(prefix))
                                {
                                    found.borrow_mut().push((key.to_string(), meta.size));
                                }
                                *last.borrow_mut() = Some(meta.location);
                            }
                        }
                    }
                    Ok(true)
                })
                .await?;
            if !more {
                break;
            }
        }
        let mut found = found.into_inner();
        found.sort();
        found.dedup();
        Ok(found)
    }
}

/// Objects listed within one request's bounds of time: ten of S3's pages.
const LIST_STEP: usize = 10_000;

/// Before an upload is completed no object can have come into being.
fn certain(mut f: Failure) -> Failure {
    f.uncertain = false;
    f
}

/// An upload in parts that is given up unless completed: what was uploaded would cost money for ever.
struct Upload {
    client: AmazonS3,
    path: Path,
    id: String,
    open: bool,
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        // A cancelled caller does not wait. The request goes out while this store is next used; if it never
        // is, the bucket's rule for incomplete uploads cleans up.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (client, path, id) = (self.client.clone(), self.path.clone(), self.id.clone());
            runtime.spawn(async move {
                let abort = client.abort_multipart(&path, &id);
                let _ = tokio::time::timeout(Duration::from_secs(10), abort).await;
            });
        }
    }
}
