//! What an S3 client's error means: its kind, and whether trying again may help.

use crate::error::{ErrorKind, Failure};
use crate::s3_http::Answer;
use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error as StdError;

/// Judges errors, and keeps secrets out of what is said about them.
#[derive(Clone)]
pub(crate) struct Judge {
    secrets: Vec<String>,
}

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Judge")
    }
}

impl Judge {
    pub fn new(secrets: Vec<String>) -> Self {
        Judge { secrets }
    }

    /// The text without the store's secrets (servers repeat the access key in their errors).
    pub fn clean(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_string(), |t, s| t.replace(s.as_str(), "<hidden>"))
    }

    pub fn failure(&self, e: &object_store::Error) -> Failure {
        let mut failure = if let Some(answer) = find::<Answer>(e) {
            by_answer(answer)
        } else if let Some(http) = find::<HttpError>(e) {
            by_connection(http)
        } else {
            // An answer that could not be understood; what the client says of it names neither body nor header.
            let kind = match e {
                object_store::Error::NotFound { .. } => ErrorKind::NotFound,
                object_store::Error::AlreadyExists { .. } => ErrorKind::AlreadyExists,
                object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. } => ErrorKind::PermissionDenied,
                _ => ErrorKind::Other,
            };
            let mut f = Failure::passing(kind, innermost(e));
            f.retry = kind == ErrorKind::Other;
            f
        };
        failure.detail = self.clean(&failure.detail);
        failure
    }

    /// Whether the server says that it does not know a header or operation.
    pub fn is_not_implemented(&self, e: &object_store::Error) -> bool {
        find::<Answer>(e).is_some_and(|a| a.status == 501 || a.code == "NotImplemented")
    }
}

fn find<'a, T: StdError + 'static>(e: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut at = Some(e);
    while let Some(e) = at {
        if let Some(found) = e.downcast_ref::<T>() {
            return Some(found);
        }
        at = e.source();
    }
    None
}

fn innermost(e: &(dyn StdError + 'static)) -> String {
    let mut at = e;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}

/// Kinds by <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>, and the codes of other
/// servers where they differ.
fn by_answer(a: &Answer) -> Failure {
    let fatal = |kind| Failure::fatal(kind, a.to_string());
    let passing = |kind| Failure::passing(kind, a.to_string());
    match (a.status, a.code.as_str()) {
        // Some servers answer 404 or 400 for an unknown user; the code tells.
        (
            400..=499,
            "AccessDenied"
            | "ExpiredToken"
            | "InvalidAccessKeyId"
            | "InvalidSecurity"
            | "InvalidToken"
            | "SignatureDoesNotMatch"
            | "TokenRefreshRequired"
            | "XAdminUserNotFound",
        )
        | (401 | 403, _) => fatal(ErrorKind::PermissionDenied),
        (400, "RequestTimeout") | (408 | 429, _) => passing(ErrorKind::Unreachable),
        // The bytes were damaged on their way to the server.
        (400, "BadDigest" | "IncompleteBody" | "XAmzContentSHA256Mismatch" | "InvalidDigest") => {
            passing(ErrorKind::Corrupt)
        }
        (
            400,
            "AuthorizationHeaderMalformed"
            | "InvalidBucketName"
            | "IllegalLocationConstraintException",
        )
        | (300..=399, _) => Failure::fatal(
            ErrorKind::InvalidOptions,
            format!("{a} (do the url, endpoint and region fit together?)"),
        ),
        (404 | 410, _) => fatal(ErrorKind::NotFound),
        (409, "ConditionalRequestConflict" | "OperationAborted") => passing(ErrorKind::Unreachable),
        (409 | 412, _) => fatal(ErrorKind::AlreadyExists),
        (416, _) => fatal(ErrorKind::Corrupt),
        (507, _)
        | (_, "QuotaExceeded" | "InsufficientStorage" | "StorageFull" | "XMinioStorageFull") => {
            fatal(ErrorKind::Full)
        }
        (501 | 505, _) => fatal(ErrorKind::Other),
        (500..=599, _) => passing(ErrorKind::Unreachable),
        _ => fatal(ErrorKind::Other),
    }
}

fn by_connection(e: &HttpError) -> Failure {
    let what = match e.kind() {
        HttpErrorKind::Connect => "could not connect",
        HttpErrorKind::Timeout => "the server did not answer in time",
        _ => "the connection broke off",
    };
    let mut f = Failure::passing(ErrorKind::Unreachable, format!("{what}: {}", innermost(e)));
    // Without a connection nothing was sent.
    f.uncertain = e.kind() != HttpErrorKind::Connect;
    f
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, code: &str) -> Failure {
        let answer = Answer { status, code: code.into(), message: "key AKID is wrong".into() };
        let e = object_store::Error::Generic {
            store: "S3",
            source: Box::new(HttpError::new(HttpErrorKind::Unknown, answer)),
        };
        Judge::new(vec!["AKID".into()]).failure(&e)
    }

    #[test]
    fn kinds() {
        use ErrorKind::*;
        for (status, code, kind, retry) in [
            (403, "InvalidAccessKeyId", PermissionDenied, false),
            (403, "", PermissionDenied, false),
            (401, "", PermissionDenied, false),
            (400, "ExpiredToken", PermissionDenied, false),
            (400, "AuthorizationHeaderMalformed", InvalidOptions, false),
            (301, "PermanentRedirect", InvalidOptions, false),
            (404, "InvalidAccessKeyId", PermissionDenied, false),
            (404, "NoSuchKey", NotFound, false),
            (404, "NoSuchBucket", NotFound, false),
            (412, "PreconditionFailed", AlreadyExists, false),
            (409, "ConditionalRequestConflict", Unreachable, true),
            (416, "InvalidRange", Corrupt, false),
            (500, "InternalError", Unreachable, true),
            (503, "SlowDown", Unreachable, true),
            (429, "", Unreachable, true),
            (501, "NotImplemented", Other, false),
            (507, "", Full, false),
            (500, "QuotaExceeded", Full, false),
            (400, "MalformedXML", Other, false),
        ] {
            let f = judged(status, code);
            assert_eq!((f.kind, f.retry), (kind, retry), "{status} {code}");
            assert!(!f.detail.contains("AKID"), "{}", f.detail);
        }
    }

    #[test]
    fn nothing_was_written_where_nothing_was_sent() {
        let connection = |kind| {
            let io = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            by_connection(&HttpError::new(kind, io))
        };
        assert!(!connection(HttpErrorKind::Connect).uncertain);
        assert!(connection(HttpErrorKind::Interrupted).uncertain);
    }
}
