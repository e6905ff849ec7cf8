//! An S3 server in memory that misbehaves on demand.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How one request goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status, with this S3 error code.
    Status(u16, &'static str),
    /// Half of the body that the headers promise, then the connection ends.
    HalfBody,
    /// A body, and a Content-Length, shorter than the Content-Range promises.
    ShortBody,
    /// A body without length or end mark that stops half-way with an orderly end of the connection.
    HalfBodyUntilClose,
    /// The body byte by byte with these pauses in between.
    Slow(Duration),
    /// No answer for this long, then the connection ends.
    Silence(Duration),
    /// The connection ends before the request is carried out.
    Reset,
    /// The request is carried out, but the connection ends before the answer.
    ResetAfter,
    /// The right length, but other bytes.
    WrongBytes,
    /// Something that is not HTTP.
    Garbage,
    /// 200 at once, then an error in the body (as S3 does for completions).
    ErrorInSuccess(&'static str),
    /// The request is answered as asked: to let some through before a fault.
    None,
}

#[derive(Default)]
pub struct State {
    pub objects: BTreeMap<String, Vec<u8>>,
    pub uploads: HashMap<String, BTreeMap<u32, Vec<u8>>>,
    pub aborted: Vec<String>,
    /// Applied to the next requests, one each.
    pub faults: VecDeque<Fault>,
    /// Applied to every request while set.
    pub always: Option<Fault>,
    /// One line per request: method, path and query.
    pub log: Vec<String>,
    /// Whether If-None-Match is answered by 501.
    pub no_conditions: bool,
    pub page: usize,
    next_upload: u32,
}

pub struct Server {
    pub endpoint: String,
    pub state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { page: 1000, ..State::default() }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || {
                    let _ = serve(stream, &state);
                });
            }
        });
        Server { endpoint, state }
    }

    pub fn options(&self) -> firn_lake::StoreOptions {
        firn_lake::StoreOptions {
            endpoint: Some(self.endpoint.clone()),
            access_key_id: Some("AKIDFLAKY".into()),
            secret_access_key: Some("very-secret-value".into()),
            session_token: Some("very-secret-token".into()),
            request_timeout_ms: 2_000,
            connect_timeout_ms: 1_000,
            max_retries: 4,
            retry_timeout_ms: 10_000,
            ..firn_lake::StoreOptions::new("s3://bucket/pre")
        }
    }

    pub fn set(&self, key: &str, bytes: &[u8]) {
        let mut s = self.state.lock().unwrap();
        s.objects.insert(format!("pre/{key}"), bytes.to_vec());
    }

    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        let s = self.state.lock().unwrap();
        s.objects.get(&format!("pre/{key}")).cloned()
    }

    pub fn faults(&self, faults: &[Fault]) {
        self.state.lock().unwrap().faults = faults.iter().cloned().collect();
    }

    pub fn always(&self, fault: Option<Fault>) {
        self.state.lock().unwrap().always = fault;
    }

    /// The requests since the last call.
    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }
}

struct Request {
    method: String,
    key: String,
    query: HashMap<String, String>,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

fn serve(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut out = stream;
    while let Some(request) = read_request(&mut reader)? {
        let fault = {
            let mut s = state.lock().unwrap();
            s.log.push(format!(
                "{} {} {}",
                request.method,
                request.key,
                request.headers.get("range").map_or("", String::as_str)
            ));
            s.faults.pop_front().or_else(|| s.always.clone()).unwrap_or(Fault::None)
        };
        match fault {
            Fault::Reset => break,
            Fault::Silence(d) => {
                std::thread::sleep(d);
                break;
            }
            Fault::Garbage => {
                out.write_all(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")?;
                break;
            }
            Fault::Status(status, code) => {
                write(&mut out, &request, &error(status, code))?;
                continue;
            }
            Fault::ErrorInSuccess(code) => {
                let mut answer = error(200, code);
                answer.status = 200;
                write(&mut out, &request, &answer)?;
                continue;
            }
            _ => {}
        }
        let mut answer = act(&request, &mut state.lock().unwrap());
        match fault {
            Fault::ResetAfter => break,
            Fault::HalfBody => {
                write_head(&mut out, &answer, Some(answer.body.len()))?;
                out.write_all(&answer.body[..answer.body.len() / 2])?;
                break;
            }
            Fault::HalfBodyUntilClose => {
                write_head(&mut out, &answer, None)?;
                out.write_all(&answer.body[..answer.body.len() / 2])?;
                break;
            }
            Fault::ShortBody => answer.body.truncate(answer.body.len() / 2),
            Fault::WrongBytes => answer.body.iter_mut().for_each(|b| *b ^= 0x55),
            Fault::Slow(pause) => {
                write_head(&mut out, &answer, Some(answer.body.len()))?;
                for b in &answer.body {
                    out.write_all(&[*b])?;
                    std::thread::sleep(pause);
                }
                continue;
            }
            _ => {}
        }
        write(&mut out, &request, &answer)?;
    }
    let _ = out.shutdown(Shutdown::Both);
    Ok(())
}

fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let method = words.next().unwrap_or("").to_string();
    let target = words.next().unwrap_or("").to_string();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let Some((name, value)) = line.trim().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    let length = headers.get("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query
        .split('&')
        .filter(|p| !p.is_empty())
        .map(|p| {
            let (k, v) = p.split_once('=').unwrap_or((p, ""));
            (k.to_string(), v.replace("%2F", "/"))
        })
        .collect();
    let key = path.strip_prefix("/bucket").unwrap_or(path).trim_start_matches('/').to_string();
    Ok(Some(Request { method, key, query, headers, body }))
}

fn act(r: &Request, s: &mut State) -> Answer {
    let conditional = r.headers.get("if-none-match").is_some_and(|v| v == "*");
    match r.method.as_str() {
        "GET" if r.query.contains_key("list-type") => list(r, s),
        "GET" | "HEAD" => {
            let Some(object) = s.objects.get(&r.key) else {
                return error(404, "NoSuchKey");
            };
            let mut answer = Answer {
                status: 200,
                headers: vec![
                    ("ETag".into(), "\"e\"".into()),
                    ("Last-Modified".into(), "Tue, 01 Jan 2030 00:00:00 GMT".into()),
                ],
                body: object.clone(),
            };
            let range = r.headers.get("range").and_then(|v| {
                let (a, b) = v.strip_prefix("bytes=")?.split_once('-')?;
                Some((a.parse::<usize>().ok()?, b.parse::<usize>().ok()?))
            });
            if let Some((a, b)) = range {
                if a >= object.len() {
                    return error(416, "InvalidRange");
                }
                let b = b.min(object.len() - 1);
                answer.status = 206;
                answer
                    .headers
                    .push(("Content-Range".into(), format!("bytes {a}-{b}/{}", object.len())));
                answer.body = object[a..=b].to_vec();
            }
            answer
        }
        "PUT" if r.query.contains_key("partNumber") => {
            let number = r.query["partNumber"].parse().unwrap();
            let Some(parts) = s.uploads.get_mut(&r.query["uploadId"]) else {
                return error(404, "NoSuchUpload");
            };
            parts.insert(number, r.body.clone());
            done()
        }
        "PUT" => {
            if conditional && s.no_conditions {
                return error(501, "NotImplemented");
            }
            if conditional && s.objects.contains_key(&r.key) {
                return error(412, "PreconditionFailed");
            }
            s.objects.insert(r.key.clone(), r.body.clone());
            done()
        }
        "POST" if r.query.contains_key("delete") => {
            let body = String::from_utf8_lossy(&r.body).into_owned();
            let key = body.split("<Key>").nth(1).and_then(|k| k.split("</Key>").next()).unwrap();
            s.objects.remove(key);
            xml(format!("<DeleteResult><Deleted><Key>{key}</Key></Deleted></DeleteResult>"))
        }
        "POST" if r.query.contains_key("uploads") => {
            s.next_upload += 1;
            let id = format!("upload{}", s.next_upload);
            s.uploads.insert(id.clone(), BTreeMap::new());
            xml(format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            ))
        }
        "POST" => {
            if conditional && s.no_conditions {
                return error(501, "NotImplemented");
            }
            if conditional && s.objects.contains_key(&r.key) {
                return error(412, "PreconditionFailed");
            }
            let Some(parts) = s.uploads.remove(&r.query["uploadId"]) else {
                return error(404, "NoSuchUpload");
            };
            s.objects.insert(r.key.clone(), parts.into_values().flatten().collect());
            xml("<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
                .into())
        }
        "DELETE" if r.query.contains_key("uploadId") => {
            s.uploads.remove(&r.query["uploadId"]);
            s.aborted.push(r.query["uploadId"].clone());
            Answer { status: 204, ..done() }
        }
        _ => error(405, "MethodNotAllowed"),
    }
}

fn list(r: &Request, s: &State) -> Answer {
    let prefix = r.query.get("prefix").cloned().unwrap_or_default();
    let after = r
        .query
        .get("continuation-token")
        .or_else(|| r.query.get("start-after"))
        .cloned()
        .unwrap_or_default();
    let mut matching = s.objects.iter().filter(|(k, _)| k.starts_with(&prefix) && **k > after);
    let mut body = String::from("<ListBucketResult>");
    let mut last = None;
    for (k, v) in matching.by_ref().take(s.page) {
        body += &format!(
            "<Contents><Key>{k}</Key><Size>{}</Size><LastModified>2030-01-01T00:00:00.000Z</LastModified><ETag>e</ETag></Contents>",
            v.len()
        );
        last = Some(k);
    }
    if let (Some(last), Some(_)) = (last, matching.next()) {
        body += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
    }
    xml(body + "</ListBucketResult>")
}

fn done() -> Answer {
    Answer { status: 200, headers: vec![("ETag".into(), "\"e\"".into())], body: Vec::new() }
}

fn xml(body: String) -> Answer {
    Answer { body: body.into_bytes(), ..done() }
}

fn error(status: u16, code: &str) -> Answer {
    let body = format!(
        "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>about AKIDFLAKY</Message></Error>"
    );
    Answer { status, headers: Vec::new(), body: body.into_bytes() }
}

fn write_head(out: &mut TcpStream, a: &Answer, length: Option<usize>) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Whatever\r\n", a.status);
    for (k, v) in &a.headers {
        head += &format!("{k}: {v}\r\n");
    }
    match length {
        Some(n) => head += &format!("Content-Length: {n}\r\n\r\n"),
        None => head += "Connection: close\r\n\r\n",
    }
    out.write_all(head.as_bytes())
}

fn write(out: &mut TcpStream, r: &Request, a: &Answer) -> std::io::Result<()> {
    write_head(out, a, Some(a.body.len()))?;
    if r.method != "HEAD" {
        out.write_all(&a.body)?;
    }
    Ok(())
}
