//! Between the S3 client and the network: turns error answers into a form that can be judged, and makes the
//! completion of a multipart upload conditional (which the client does not offer).

use async_trait::async_trait;
use futures_util::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, HeaderValue};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// No more of an error's body is read.
const LONGEST_ERROR_BODY: usize = 64 << 10;
/// No more of its message is repeated.
const LONGEST_ERROR_MESSAGE: usize = 300;

/// An answer of the server that is not a success.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    /// S3's error code, such as `NoSuchKey`; empty where the server sent none.
    pub code: String,
    /// S3's message, cleaned of control characters; it may hold secrets.
    pub message: String,
}

impl Answer {
    fn new(status: u16, body: &[u8]) -> Self {
        let body = String::from_utf8_lossy(body);
        let clean = |tag: &str| -> String {
            element(&body, tag)
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .take(LONGEST_ERROR_MESSAGE)
                .collect()
        };
        Answer { status, code: clean("Code"), message: clean("Message") }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server answered {}", self.status)?;
        if !self.code.is_empty() {
            write!(f, " {}", self.code)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Answer {}

/// The text of the first `<tag>` in an XML error answer.
fn element<'a>(xml: &'a str, tag: &str) -> &'a str {
    let open = format!("<{tag}>");
    xml.find(&open)
        .and_then(|at| xml.get(at + open.len()..))
        .and_then(|rest| rest.split_once('<'))
        .map_or("", |(text, _)| text.trim())
}

/// Makes [`Service`]s.
#[derive(Debug)]
pub(crate) struct Connector {
    /// Whether completions carry `If-None-Match: *`; switched off for servers that refuse the header.
    pub conditional: Arc<AtomicBool>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service {
            inner: ReqwestConnector::default().connect(options)?,
            conditional: Arc::clone(&self.conditional),
        }))
    }
}

#[derive(Debug)]
struct Service {
    inner: HttpClient,
    conditional: Arc<AtomicBool>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let completion = request.method().as_str() == "POST"
            && request
                .uri()
                .query()
                .is_some_and(|q| q.split('&').any(|p| p.starts_with("uploadId=")));
        if completion && self.conditional.load(Ordering::Relaxed) {
            // Not among the signed headers; S3 asks only for its own x-amz-* ones to be.
            request.headers_mut().insert("if-none-match", HeaderValue::from_static("*"));
        }
        let response = self.inner.execute(request).await?;
        let status = response.status();
        if !status.is_success() {
            let body = beginning(response.into_body()).await;
            return Err(refusal(status.as_u16(), &body));
        }
        if !completion {
            return Ok(response);
        }
        // A completion may take long: S3 then begins a success at once and reports a failure in the body.
        let (parts, body) = response.into_parts();
        let body = body.bytes().await?;
        if element(&String::from_utf8_lossy(&body), "Code").is_empty() {
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)));
        }
        let mut answer = Answer::new(500, &body);
        if answer.code == "PreconditionFailed" {
            answer.status = 412;
        }
        Err(HttpError::new(HttpErrorKind::Unknown, answer))
    }
}

fn refusal(status: u16, body: &[u8]) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, Answer::new(status, body))
}

/// As much of an error's body as is worth reading; what breaks off on the way is as good as absent.
async fn beginning(body: HttpResponseBody) -> Vec<u8> {
    let mut stream = body.bytes_stream();
    let mut text = Vec::new();
    while let Some(Ok(bytes)) = stream.next().await {
        text.extend_from_slice(&bytes);
        if text.len() >= LONGEST_ERROR_BODY {
            text.truncate(LONGEST_ERROR_BODY);
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_taken_apart() {
        let a = Answer::new(
            403,
            b"<?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Message>The request\nsignature</Message></Error>",
        );
        assert_eq!(
            a.to_string(),
            "the server answered 403 SignatureDoesNotMatch: The request signature"
        );
        assert_eq!(Answer::new(502, b"<html>Bad gateway").to_string(), "the server answered 502");
        assert_eq!(Answer::new(500, b"<Code>").code, "");
        assert_eq!(Answer::new(500, &[0xff, b'<', b'C']).code, "");
    }
}
