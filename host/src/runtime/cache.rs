//! Compiled code that is kept between processes. Never a reason to fail: at worst a component is compiled again.

use super::precompiled::distrust;
use crate::files::{self, BEGUN, Existing, Output};
use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Most that is kept, in bytes: hundreds of components of the usual size, and little beside a home directory's quota.
const BYTES_MAX: u64 = 1 << 30;

/// How the names of kept files end. What ends otherwise is somebody else's and stays.
const KEPT: &str = ".dchost-code";

/// A directory of compiled code.
pub(super) struct Cache {
    dir: PathBuf,
    bytes_max: u64,
}

impl Cache {
    /// Opens it; a warning and none where it can't be written, or where others may write: what is found there is run.
    pub(super) fn open(dir: &Path) -> Option<Cache> {
        let cache = Cache { dir: dir.to_owned(), bytes_max: BYTES_MAX };
        cache.prepare().map_err(|error| cache.warn(&error)).ok().map(|()| cache)
    }

    fn prepare(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let metadata = fs::metadata(&self.dir)?;
        if metadata.mode() & 0o022 != 0 || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user, or others may write to it (give it mode 0700)"));
        }
        rustix::fs::access(&self.dir, rustix::fs::Access::WRITE_OK)?;
        Ok(())
    }

    fn warn(&self, error: &io::Error) {
        tracing::warn!("compile cache `{}` can't be used, compiling without it: {error}", self.dir.display());
    }

    /// The bytes kept under `key`, if they are no more than `bytes_max`. They may be damaged.
    pub(super) fn get(&self, key: &str, bytes_max: u64) -> Option<Vec<u8>> {
        let (file, metadata) = files::open(&self.path(key)).ok()?;
        if distrust(&metadata).is_some() {
            return None;
        }
        let bytes = files::read(&file, &metadata, bytes_max.min(self.bytes_max)).ok()?;
        // The time of last use; where it can't be set, the entry only goes sooner.
        let _ = file.set_modified(SystemTime::now());
        Some(bytes)
    }

    /// Keeps `bytes` under `key`, instead of what was there; at once for every reader.
    pub(super) fn put(&self, key: &str, bytes: &[u8]) {
        if bytes.len() as u64 > self.bytes_max {
            return;
        }
        self.evict(self.bytes_max - bytes.len() as u64);
        // What a failure of the machine leaves of it is noticed by its checksum.
        let path = self.path(key);
        let output = Output { path: &path, mode: 0o600, existing: Existing::Replaced, synced: false };
        if let Err(error) = output.write(|out| out.write_all(bytes)) {
            self.warn(&error);
        }
    }

    /// Removes what was used longest ago, until at most `bytes_max` are left.
    fn evict(&self, bytes_max: u64) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        let mut kept: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name().into_string().ok()?;
                let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
                (name.ends_with(KEPT) || name.ends_with(BEGUN)).then_some((
                    metadata.modified().ok()?,
                    metadata.len(),
                    entry.path(),
                ))
            })
            .collect();
        kept.sort();
        let mut bytes: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, size, path) in kept {
            if bytes <= bytes_max {
                return;
            }
            // Another process may have removed it.
            let _ = fs::remove_file(path);
            bytes -= size;
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(format!("{key}{KEPT}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    #[test]
    fn a_cache_that_others_may_write_to_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Cache::open(&shared).is_none());
        let own = dir.path().join("own");
        assert!(Cache::open(&own).is_some());
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_foreign_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache { dir: dir.path().to_owned(), bytes_max: 20 };
        fs::write(dir.path().join("thesis.tex"), [0; 100]).unwrap();
        for (age_secs, key) in [(30, "older-but-used"), (20, "old"), (10, "new")] {
            cache.put(key, &[1; 6]);
            let file = File::open(cache.path(key)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age_secs)).unwrap();
        }
        assert!(cache.get("older-but-used", 1 << 30).is_some());
        cache.put("newest", &[1; 6]);
        assert!(cache.get("old", 1 << 30).is_none());
        assert!(["older-but-used", "new", "newest"].iter().all(|key| cache.get(key, 1 << 30).is_some()));
        cache.put("larger-than-all", &[1; 21]);
        assert!(cache.get("larger-than-all", 1 << 30).is_none());
        assert!(dir.path().join("thesis.tex").exists());
    }

    #[test]
    fn what_was_left_half_written_goes_too() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache { dir: dir.path().to_owned(), bytes_max: 20 };
        let left = dir.path().join(format!("0123456789abcdef{BEGUN}"));
        fs::write(&left, [0; 15]).unwrap();
        cache.put("key", &[1; 6]);
        assert!(!left.exists() && cache.get("key", 20).is_some());
    }

    #[test]
    fn an_entry_that_cannot_be_one_is_not_read_and_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache { dir: dir.path().to_owned(), bytes_max: 1 << 30 };
        let path = cache.path("key");
        let pipe = || {
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, &path, kind, rustix::fs::Mode::RWXU, 0).unwrap();
        };
        let sparse = || File::create(&path).unwrap().set_len(1 << 30).unwrap();
        for make in [&pipe as &dyn Fn(), &sparse] {
            make();
            assert!(cache.get("key", 1 << 20).is_none());
            cache.put("key", &[1; 6]);
            assert_eq!(cache.get("key", 1 << 20), Some(vec![1; 6]));
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn writers_at_once_leave_one_whole_entry() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache { dir: dir.path().to_owned(), bytes_max: 1 << 30 };
        std::thread::scope(|scope| {
            for byte in 0..8 {
                let cache = &cache;
                scope.spawn(move || cache.put("key", &vec![byte; 1 << 20]));
            }
        });
        let bytes = cache.get("key", 1 << 30).unwrap();
        assert!(bytes.len() == 1 << 20 && bytes.iter().all(|byte| *byte == bytes[0]));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
