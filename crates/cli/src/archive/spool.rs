//! Archives from standard input. Data is read in several places at once, so what comes through a pipe is kept in a file
//! first: one that nobody else can open, and that is gone with the process.

use crate::error::{Error, ErrorKind, Result};
use crate::store::StoreSettings;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How standard input is named in messages.
pub(super) const NAME: &str = "standard input";

/// How often it is looked whether the run was stopped.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Standard input as a file: itself if it is one, else a copy of it.
pub(super) fn standard_input(settings: &StoreSettings) -> Result<File> {
    let failed = |e: &io::Error| Error::io("could not read standard input", e);
    let own = io::stdin().as_fd().try_clone_to_owned().map_err(|e| failed(&e))?;
    let mut input = File::from(own);
    if input.metadata().is_ok_and(|meta| meta.is_file()) && input.stream_position().ok() == Some(0)
    {
        return Ok(input);
    }
    let mut file = unlinked()?;
    // Who waits for the next bytes cannot be called away.
    let (give, kept) = mpsc::channel();
    std::thread::Builder::new()
        .name("input".into())
        .spawn(move || give.send(io::copy(&mut input, &mut file).map(|_| file)))
        .map_err(|e| Error::io("could not start a thread", &e))?;
    loop {
        match kept.recv_timeout(LOOK_EVERY) {
            Ok(file) => {
                return file.map_err(|e| {
                    Error::io("could not keep standard input in a temporary file", &e)
                })
            }
            Err(RecvTimeoutError::Timeout) if settings.is_cancelled() => {
                return Err(Error::new(ErrorKind::Cancelled, "canceled by user"));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let message = "the reader of standard input ended before it";
                return Err(Error::new(ErrorKind::Internal, message));
            }
        }
    }
}

/// A temporary file without a name.
fn unlinked() -> Result<File> {
    let name = format!("firn-input-{}-{:016x}", std::process::id(), firn_lake::random_nonce());
    let path = std::env::temp_dir().join(name);
    let failed = |e: &io::Error| {
        Error::io(format!("could not create temporary file \"{}\"", path.display()), e)
            .hint("TMPDIR names the directory of temporary files.")
    };
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(|e| failed(&e))?;
    fs::remove_file(&path).map_err(|e| failed(&e))?;
    Ok(file)
}
