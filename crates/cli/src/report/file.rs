//! Files that reports are written to. They tell what databases hold: nobody but their owner may read them.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

/// Makes a file with mode 0600, or empties one that is there and gives it that mode before anything is written.
pub fn create_private(path: &str) -> io::Result<File> {
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // Pipes and devices are left as they are.
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        let dir = std::env::temp_dir().join(format!("firn-report-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("page").to_str().unwrap().to_string();
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        create_private(&path).unwrap();
        assert_eq!(mode(), 0o600);
        std::fs::write(&path, "what was there").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        create_private(&path).unwrap();
        assert_eq!(mode(), 0o600);
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
