//! A backup in an object store.
//!
//! A few threads, each with connections of its own, put objects and parts of objects. Small files are put whole; a
//! larger one becomes an upload in parts as soon as it is too large for that. At most one part per thread waits for
//! its turn, so memory is bounded whatever the store's speed.

use super::{
    in_doubt, judge, lost, must_clear, take_over, usurped, Destination, Output, Preparation,
    Sibling,
};
use crate::archive::manifest::{self, Manifest};
use crate::backup::halt::Halt;
use crate::backup::place::Place;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{store_error, StoreSettings};
use bytes::Bytes;
use firn_lake::{Part, Store, StoreOptions, Upload};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// The most parts that are planned for; S3 allows 10,000.
const PARTS: u64 = 9_000;
/// After so many parts they become twice as large, for objects that turn out larger than expected.
const PARTS_OF_A_SIZE: u64 = 2_000;
/// S3 copies no larger objects by one request.
const LARGEST_COPY: u64 = 5 << 30;
/// How long giving up unfinished uploads may take.
const ABANDON: Duration = Duration::from_secs(10);

/// After so long uploads are given up a second time.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a run that is to end waits for the name of an upload that it has begun.
const NAMED: Duration = Duration::from_secs(5);
/// How long it waits for its manifest, and then for its removal.
const SEALED: Duration = Duration::from_secs(10);

/// Objects below a prefix.
pub struct RemoteDestination {
    shared: Arc<Shared>,
    work: Mutex<Option<SyncSender<Work>>>,
    /// Stores that nobody uses now, with their connections.
    idle: Mutex<Vec<Store>>,
    /// The marker's text.
    marker: Bytes,
}

struct Shared {
    options: StoreOptions,
    halt: Arc<Halt>,
    /// Pieces of work that are queued or being done.
    pending: Mutex<u64>,
    idle: Condvar,
    /// Uploads that are not finished, by key.
    open: Mutex<HashMap<String, Upload>>,
}

/// What the threads do.
enum Work {
    Put { key: String, bytes: Bytes },
    Part { upload: Arc<Parts>, number: u32, offset: u64, bytes: Bytes },
    Finish { upload: Arc<Parts> },
}

/// An upload with what was uploaded of it.
struct Parts {
    upload: Upload,
    key: String,
    /// Parts under way, and those done.
    state: Mutex<(u32, Vec<Part>)>,
    arrived: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl RemoteDestination {
    /// Makes sure that nothing has the prefix, and starts the threads.
    pub fn prepare(
        url: &str,
        settings: &StoreSettings,
        how: Preparation,
        halt: &Arc<Halt>,
    ) -> Result<RemoteDestination> {
        let options = settings.store_options(url)?;
        let store = Store::open(&options, || {}).map_err(store_error)?;
        let stopped = || halt.is_set();
        let found = store.list("", &stopped).map_err(store_error)?;
        let marker = || {
            let size = found.iter().find(|(key, _)| key == manifest::MARKER).map_or(0, |m| m.1);
            let text = store.get_range(manifest::MARKER, 0..size, &stopped);
            text.map(|text| text.to_vec()).map_err(store_error)
        };
        let judged = judge(found.iter().map(|(key, _)| key.as_str()), marker)?;
        let marker = if must_clear(url, judged, how.overwrite_incomplete)? {
            take_over(&Place::open(url, settings, halt, true)?, url, &how.marker)?.into()
        } else {
            // Of two backups to the same prefix only one gets past this.
            let marker = Bytes::from(how.marker.to_text()?);
            store.put(manifest::MARKER, marker.clone(), &stopped).map_err(store_error)?;
            marker
        };
        let options = settings.patient_store_options(url)?;
        let threads = (2 * how.jobs).clamp(2, 16);
        let (work, queue) = sync_channel(0);
        let queue = Arc::new(Mutex::new(queue));
        let shared = Arc::new(Shared {
            options,
            halt: Arc::clone(halt),
            pending: Mutex::new(0),
            idle: Condvar::new(),
            open: Mutex::default(),
        });
        for _ in 0..threads {
            let (shared, queue) = (Arc::clone(&shared), Arc::clone(&queue));
            std::thread::Builder::new()
                .name("firn-upload".to_string())
                .spawn(move || shared.serve(&queue))
                .map_err(|e| Error::io("could not start a thread", &e))?;
        }
        let work = Mutex::new(Some(work));
        Ok(RemoteDestination { shared, work, idle: Mutex::default(), marker })
    }

    fn queue(&self) -> Result<SyncSender<Work>> {
        lock(&self.work).clone().ok_or_else(gone)
    }
}

impl RemoteDestination {
    /// Copies an object within the store.
    fn adopt_by(&self, store: &Store, from: &Sibling, name: &str) -> Result<bool> {
        use firn_lake::ErrorKind::{Cancelled, NotFound, Unreachable};
        let stopped = || self.shared.halt.is_set();
        let source = format!("{}/{}", from.backup, from.file);
        match store.copy_beside(&source, name, &stopped) {
            Ok(()) => {}
            Err(e) if e.kind == NotFound => return Ok(false),
            // A copy whose answer is lost may still come: what was asked for has to be there in the end, or the backup fails.
            Err(e) if matches!(e.kind, Cancelled | Unreachable) || e.attempts > 1 => {
                return Err(store_error(e))
            }
            // The store says no: the object lies in an archive tier, or has a key of its own. The table is copied.
            Err(_) => return Ok(false),
        }
        if store.head(name, &stopped).map_err(store_error)? == from.size {
            return Ok(true);
        }
        store.delete(name, &stopped).map_err(store_error)?;
        Ok(false)
    }

    /// Whether the marker is still this run's, and nobody removes the backup.
    fn is_ours(&self, store: &Store, stopped: &dyn Fn() -> bool) -> Result<bool> {
        Ok(!is_there(store, manifest::DOOMED, stopped)?
            && holds(store, manifest::MARKER, &self.marker, stopped)?)
    }

    /// After an error the manifest may be there or not. It goes, if it is this run's: what nobody has looked at is no backup.
    fn take_back(&self, store: &Store, text: &Bytes, e: Error) -> Error {
        let late = self.shared.late(SEALED);
        let gone = holds(store, manifest::FILE, text, &late).and_then(|found| match found {
            true => store.delete(manifest::FILE, &late).map_err(store_error),
            false => Ok(()),
        });
        match gone {
            Ok(()) => e,
            Err(_) => in_doubt(e),
        }
    }
}

/// Whether there is an object of just this text.
fn holds(store: &Store, key: &str, text: &Bytes, stopped: &dyn Fn() -> bool) -> Result<bool> {
    let length = text.len() as u64;
    let found = store.head(key, stopped).and_then(|found| match found {
        found if found == length => store.get_range(key, 0..length, stopped),
        _ => Ok(Bytes::new()),
    });
    match found {
        Ok(found) => Ok(found == text),
        Err(e) if e.kind == firn_lake::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(store_error(e)),
    }
}

/// Whether there is such an object.
fn is_there(store: &Store, key: &str, stopped: &dyn Fn() -> bool) -> Result<bool> {
    match store.head(key, stopped) {
        Ok(_) => Ok(true),
        Err(e) if e.kind == firn_lake::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(store_error(e)),
    }
}

/// An error if an object is not there that was written: a request to remove one of the same name, of the backup that was here before,
/// may be carried out after it was given up, sent again, and answered.
fn all_there(store: &Store, manifest: &Manifest, stopped: &dyn Fn() -> bool) -> Result<()> {
    let found = store.list("", stopped).map_err(store_error)?;
    let found = found.iter().map(|(name, size)| (&name[..], *size)).collect();
    for file in manifest.lacking(&found) {
        // In some stores a list is behind the objects.
        match store.head(&file.name, stopped) {
            Ok(size) if size == file.size => {}
            Err(e) if e.kind != firn_lake::ErrorKind::NotFound => return Err(store_error(e)),
            _ => return Err(lost(file)),
        }
    }
    Ok(())
}

fn gone() -> Error {
    Error::new(ErrorKind::Internal, "no thread is left to upload")
}

impl Shared {
    /// Whether it is time to give up what has been begun: so long after the run is to end.
    fn late(&self, patience: Duration) -> impl Fn() -> bool + '_ {
        let since = OnceLock::new();
        move || self.halt.is_set() && since.get_or_init(Instant::now).elapsed() > patience
    }

    /// What each thread does until there is no more work.
    fn serve(&self, queue: &Mutex<Receiver<Work>>) {
        let store = Store::open(&self.options, || {});
        loop {
            let work = lock(queue).recv();
            let Ok(work) = work else { return };
            self.halt.watch(|| match &store {
                // After a failure what is queued is only taken off the queue.
                _ if self.halt.is_set() => Ok(()),
                Ok(store) => self.carry_out(store, work).map_err(store_error),
                Err(e) => Err(store_error(e.clone())),
            });
            let mut pending = lock(&self.pending);
            *pending -= 1;
            if *pending == 0 {
                self.idle.notify_all();
            }
        }
    }

    fn carry_out(&self, store: &Store, work: Work) -> firn_lake::Result<()> {
        let stopped = || self.halt.is_set();
        match work {
            Work::Put { key, bytes } => store.put(&key, bytes, &stopped),
            Work::Part { upload, number, offset, bytes } => {
                // A part that fails stays under way: nobody may finish the object without it.
                let part = store.upload_part(&upload.upload, number, offset, bytes, &stopped)?;
                let mut state = lock(&upload.state);
                state.0 -= 1;
                state.1.push(part);
                upload.arrived.notify_all();
                Ok(())
            }
            Work::Finish { upload } => {
                // Its parts were queued before it, so each is in the hands of another thread, or done.
                let mut state = lock(&upload.state);
                while state.0 > 0 && !stopped() {
                    let wait = Duration::from_millis(50);
                    let woken = upload.arrived.wait_timeout(state, wait);
                    state = woken.unwrap_or_else(|e| e.into_inner()).0;
                }
                let parts = std::mem::take(&mut state.1);
                drop(state);
                store.upload_finish(&upload.upload, parts, &stopped)?;
                lock(&self.open).remove(&upload.key);
                Ok(())
            }
        }
    }

    fn submit(&self, queue: &SyncSender<Work>, work: Work) -> Result<()> {
        self.halt.check()?;
        *lock(&self.pending) += 1;
        queue.send(work).map_err(|_| gone())
    }
}

impl Destination for RemoteDestination {
    fn create(&self, name: &str, expected: u64) -> Result<Box<dyn Output>> {
        let least = self.shared.options.part_bytes;
        Ok(Box::new(ObjectOutput {
            shared: Arc::clone(&self.shared),
            queue: self.queue()?,
            key: name.to_string(),
            // Data seldom grows on its way, and then by less than this.
            first_part: least.max(expected.saturating_mul(2).div_ceil(PARTS)),
            buffer: Vec::new(),
            upload: None,
            number: 0,
            offset: 0,
        }))
    }

    fn adopt(&self, from: &Sibling, name: &str) -> Result<bool> {
        if from.size > LARGEST_COPY {
            return Ok(false);
        }
        let idle = lock(&self.idle).pop();
        let store = match idle {
            Some(store) => store,
            None => Store::open(&self.shared.options, || {}).map_err(store_error)?,
        };
        let adopted = self.adopt_by(&store, from, name);
        lock(&self.idle).push(store);
        adopted
    }

    fn scratch(&self) -> Result<File> {
        let name = format!("firn-backup-{}-{:016x}", std::process::id(), firn_lake::random_nonce());
        let path = std::env::temp_dir().join(name);
        let failed = |e| Error::io(format!("could not create file \"{}\"", path.display()), &e);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(failed)?;
        fs::remove_file(&path).map_err(failed)?;
        Ok(file)
    }

    fn settle(&self) -> Result<()> {
        let mut pending = lock(&self.shared.pending);
        while *pending > 0 && !self.shared.halt.is_set() {
            let woken = self.shared.idle.wait_timeout(pending, Duration::from_millis(50));
            pending = woken.unwrap_or_else(|e| e.into_inner()).0;
        }
        drop(pending);
        self.shared.halt.check()
    }

    fn seal(&self, manifest: &Manifest) -> Result<()> {
        let store = Store::open(&self.shared.options, || {}).map_err(store_error)?;
        let stopped = || self.shared.halt.is_set();
        if !self.is_ours(&store, &stopped)? {
            return Err(usurped());
        }
        all_there(&store, manifest, &stopped)?;
        self.shared.halt.check()?;
        let text = Bytes::from(manifest.to_text()?);
        // From here on the manifest may be there. Nothing ends the run until that is known and looked at, but its patience.
        let late = self.shared.late(SEALED);
        let named = store.put(manifest::FILE, text.clone(), &late).map_err(store_error);
        // Whoever takes the place exchanges the marker, and whoever removes the backup writes his note, and then looks for the manifest.
        // If neither is there now, he will find it.
        let e = match named.and_then(|()| self.is_ours(&store, &late)) {
            Ok(true) => {
                // Who may not remove it (objects may be protected from that) leaves it: the manifest tells enough.
                let _ = store.delete(manifest::MARKER, &late);
                return Ok(());
            }
            Ok(false) => usurped(),
            Err(e) => e,
        };
        Err(self.take_back(&store, &text, e))
    }

    fn abandon(&self) {
        *lock(&self.work) = None;
        let deadline = Instant::now() + ABANDON;
        // Parts that still arrive after an upload was given up would open it again, at some stores.
        let mut pending = lock(&self.shared.pending);
        while *pending > 0 && Instant::now() < deadline {
            let woken = self.shared.idle.wait_timeout(pending, Duration::from_millis(50));
            pending = woken.unwrap_or_else(|e| e.into_inner()).0;
        }
        drop(pending);
        let open: Vec<Upload> = lock(&self.shared.open).drain().map(|(_, upload)| upload).collect();
        let late = || Instant::now() > deadline;
        if let (false, Ok(store)) = (open.is_empty(), Store::open(&self.shared.options, || {})) {
            // Twice: the store may still be busy with a part whose sending was given up, and keep that.
            for pause in [Duration::ZERO, AGAIN] {
                std::thread::sleep(pause);
                for upload in &open {
                    // A rule of the bucket for incomplete uploads takes care of what cannot be given up now.
                    let _ = store.upload_abort(upload, &late);
                }
            }
        }
    }
}

struct ObjectOutput {
    shared: Arc<Shared>,
    queue: SyncSender<Work>,
    key: String,
    first_part: u64,
    buffer: Vec<u8>,
    upload: Option<Arc<Parts>>,
    number: u32,
    offset: u64,
}

impl ObjectOutput {
    /// Bytes of the next part.
    fn part(&self) -> usize {
        let doublings = (u64::from(self.number) / PARTS_OF_A_SIZE).min(20);
        usize::try_from(self.first_part << doublings).unwrap_or(usize::MAX)
    }

    fn begin(&mut self) -> Result<Arc<Parts>> {
        if let Some(upload) = &self.upload {
            return Ok(Arc::clone(upload));
        }
        let store = Store::open(&self.shared.options, || {}).map_err(store_error)?;
        // What is begun and has no name yet cannot be given up.
        let upload =
            store.upload_begin(&self.key, &self.shared.late(NAMED)).map_err(store_error)?;
        lock(&self.shared.open).insert(self.key.clone(), upload.clone());
        self.shared.halt.check()?;
        let (key, state) = (self.key.clone(), Mutex::default());
        let upload = Arc::new(Parts { upload, key, state, arrived: Condvar::new() });
        self.upload = Some(Arc::clone(&upload));
        Ok(upload)
    }

    fn send_part(&mut self, bytes: Vec<u8>) -> Result<()> {
        let upload = self.begin()?;
        let (number, offset) = (self.number, self.offset);
        self.number += 1;
        self.offset += bytes.len() as u64;
        lock(&upload.state).0 += 1;
        let bytes = bytes.into();
        self.shared.submit(&self.queue, Work::Part { upload, number, offset, bytes })
    }
}

impl Output for ObjectOutput {
    fn write(&mut self, bytes: Vec<u8>) -> Result<()> {
        if self.buffer.is_empty() {
            self.buffer = bytes;
        } else {
            self.buffer.extend_from_slice(&bytes);
        }
        while self.buffer.len() > self.part() {
            let rest = self.buffer.split_off(self.part());
            let part = std::mem::replace(&mut self.buffer, rest);
            self.send_part(part)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let rest = std::mem::take(&mut self.buffer);
        if self.upload.is_none() {
            let work = Work::Put { key: self.key.clone(), bytes: rest.into() };
            return self.shared.submit(&self.queue, work);
        }
        self.send_part(rest)?;
        let upload = self.begin()?;
        self.shared.submit(&self.queue, Work::Finish { upload })
    }
}
