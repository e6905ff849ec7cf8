//! Manifests for archives that `pg_dump` made.
#![allow(dead_code)]

use firn_cli::archive::manifest::{hex, FileRecord, Head, LargeObjects, Manifest};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

pub type Files = BTreeMap<Vec<u8>, Arc<[u8]>>;

/// The manifest that a backup of these files would have.
pub fn manifest_of(files: &Files) -> Manifest {
    let records = files.iter().map(|(name, bytes)| FileRecord {
        name: String::from_utf8(name.clone()).unwrap(),
        size: bytes.len() as u64,
        sha256: hex(&Sha256::digest(bytes)),
        table: None,
    });
    Manifest {
        head: Head {
            firn_backup: 1,
            database: "firn_archives".into(),
            system_identifier: None,
            encoding: "UTF8".into(),
            server_version: "15".into(),
            pg_dump_version: "15".into(),
            firn_version: "0".into(),
            started: "2026-01-01T00:00:00Z".into(),
            snapshot_time: "2026-01-01T00:00:00Z".into(),
            snapshot_lsn: "0/0".into(),
            standby: false,
            finished: "2026-01-01T00:00:00Z".into(),
            compression: "none".into(),
            jobs: 1,
            options: vec![],
            filter_sha256: None,
            entries: 0,
            large_objects: LargeObjects::default(),
            base: None,
            basis: None,
            encryption: None,
        },
        files: records.collect(),
    }
}

/// Adds it.
pub fn with_manifest(mut files: Files) -> Files {
    let manifest = manifest_of(&files);
    files.insert(b"manifest.json".to_vec(), manifest.to_text().unwrap().into());
    files
}
