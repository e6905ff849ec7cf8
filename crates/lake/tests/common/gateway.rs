//! A real S3 server: versitygw on a free port of the loopback address, for one test program.

use super::Folder;
use firn_lake::StoreOptions;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const BUCKET: &str = "firn-test";
const ACCESS: &str = "firn-test-access";
const SECRET: &str = "firn-test-secret";

pub struct Gateway {
    child: Child,
    pub endpoint: String,
    _folder: Folder,
}

impl Gateway {
    /// `None`, and a line that says so, unless FIRN_VERSITYGW names the program.
    pub fn start(test: &str) -> Option<Gateway> {
        let Some(program) = std::env::var_os("FIRN_VERSITYGW") else {
            println!("{test}: skipped, FIRN_VERSITYGW does not name a versitygw program");
            return None;
        };
        let folder = Folder::new("gateway");
        std::fs::create_dir_all(folder.path().join("data").join(BUCKET)).unwrap();
        std::fs::create_dir_all(folder.path().join("meta")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let child = Command::new(program)
            .args(["--port", &address, "--access", ACCESS, "--secret", SECRET])
            .args(["--keep-alive", "--quiet", "posix", "--sidecar"])
            .arg(folder.path().join("meta"))
            .arg(folder.path().join("data"))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let gateway = Gateway { child, endpoint: format!("http://{address}"), _folder: folder };
        let begun = Instant::now();
        while TcpStream::connect(&address).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "versitygw did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(gateway)
    }

    pub fn options(&self, prefix: &str) -> StoreOptions {
        StoreOptions {
            endpoint: Some(self.endpoint.clone()),
            access_key_id: Some(ACCESS.into()),
            secret_access_key: Some(SECRET.into()),
            max_retries: 2,
            ..StoreOptions::new(format!("s3://{BUCKET}/{prefix}"))
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
