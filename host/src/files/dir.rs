//! Directories that are there whole or not at all.

use super::{ReadError, begun_beside, check_file, kind};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, StatxAttributes, StatxFlags, renameat_with, statx};
use rustix::io::Errno;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// A directory that is read: its files are those of this very directory, whatever gets its name meanwhile.
#[derive(Debug)]
pub struct Dir(File);

impl Dir {
    /// Opens a directory.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Dir(File::from(rustix::fs::open(path, flags, Mode::empty())?)))
    }

    /// Opens a file of the directory for reading, as [`open`](super::open) does. `name` is a single name.
    ///
    /// # Errors
    /// [`ReadError::NotAFile`], a link too; what the system says.
    pub fn file(&self, name: &str) -> Result<(File, Metadata), ReadError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            // What the system calls too many links here is the first.
            Err(Errno::LOOP) => return Err(ReadError::NotAFile { kind: "a symbolic link" }),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        let metadata = file.metadata()?;
        check_file(&metadata)?;
        Ok((file, metadata))
    }
}

/// A directory that is being written: beside its place, and then renamed. It is removed unless it gets its name; only a process
/// that is killed leaves one, whose name is drawn and ends in [`BEGUN`](super::BEGUN).
#[derive(Debug)]
pub struct OutputDir {
    place: PathBuf,
    begun: PathBuf,
}

impl OutputDir {
    /// Begins a directory that will be at `path`. A link there is followed.
    ///
    /// # Errors
    /// What the system says; something that isn't a directory is there, or a directory that can't get another name.
    pub fn new(path: &Path) -> io::Result<OutputDir> {
        let place = match fs::canonicalize(path) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => std::path::absolute(path)?,
            Err(error) => return Err(error),
        };
        if let Ok(metadata) = fs::metadata(&place)
            && !metadata.is_dir()
        {
            return Err(io::Error::other(format!("it is {}, not a directory", kind(metadata.file_type()))));
        }
        if place.file_name().is_none() {
            return Err(io::Error::other("it has no name that a directory could take"));
        }
        if is_mount_point(&place) {
            let text = "it is a mount point, which can't be replaced as a whole; give a directory of its own in it";
            return Err(io::Error::other(text));
        }
        let begun = begun_beside(&place);
        fs::create_dir(&begun).map_err(|error| {
            io::Error::new(error.kind(), format!("no directory can be made beside it, to take its place: {error}"))
        })?;
        Ok(OutputDir { place, begun })
    }

    /// Where its files are written.
    pub fn path(&self) -> &Path {
        &self.begun
    }

    /// Gives it its name, for good also where the machine fails afterwards. A directory that was there is replaced at once, and
    /// removed; on a file system that can't exchange names, there is a moment without either.
    ///
    /// # Errors
    /// What the system says. What was there stays then, unless all that failed is to make the new name last.
    pub fn finish(self) -> io::Result<()> {
        sync_dir(&self.begun)?;
        let rename = |flags| renameat_with(CWD, &self.begun, CWD, &self.place, flags).map_err(io::Error::from);
        let unable =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported);
        if fs::symlink_metadata(&self.place).is_ok() {
            match rename(RenameFlags::EXCHANGE) {
                Ok(()) => {}
                Err(error) if unable(&error) => replace_in_turn(&self.begun, &self.place)?,
                Err(error) => return Err(error),
            }
        } else {
            match rename(RenameFlags::NOREPLACE) {
                // Of a directory, an ordinary rename replaces an empty one at most.
                Err(error) if unable(&error) => fs::rename(&self.begun, &self.place)?,
                renamed => renamed?,
            }
        }
        let parent = self.place.parent().map(Path::to_owned);
        // What was there before is under the drawn name now, and goes with this.
        drop(self);
        parent.map_or(Ok(()), |parent| sync_dir(&parent))
    }
}

/// Gives `begun` the name `place`, and what was there the name `begun`, one after the other.
fn replace_in_turn(begun: &Path, place: &Path) -> io::Result<()> {
    let old = begun_beside(place);
    fs::rename(place, &old)?;
    if let Err(error) = fs::rename(begun, place) {
        fs::rename(&old, place)?;
        return Err(error);
    }
    fs::rename(&old, begun)
}

/// Whether a file system is mounted there; false where the system can't tell.
fn is_mount_point(path: &Path) -> bool {
    statx(CWD, path, AtFlags::empty(), StatxFlags::empty())
        .is_ok_and(|there| there.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn sync_dir(path: &Path) -> io::Result<()> {
    Dir::open(path)?.0.sync_all()
}

impl Drop for OutputDir {
    fn drop(&mut self) {
        // What failed before is what is told.
        let _ = fs::remove_dir_all(&self.begun);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn write(path: &Path, text: &str) -> OutputDir {
        let dir = OutputDir::new(path).unwrap();
        fs::write(dir.path().join("a"), text).unwrap();
        dir
    }

    #[test]
    fn a_directory_is_replaced_as_a_whole_or_stays() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("d");
        let text = || fs::read_to_string(path.join("a")).unwrap();
        write(&path, "one").finish().unwrap();
        let open = Dir::open(&path).unwrap();
        drop(write(&path, "given up"));
        assert_eq!((text().as_str(), names(base.path())), ("one", vec!["d".to_owned()]));
        let link = base.path().join("link");
        symlink(&path, &link).unwrap();
        write(&link, "two").finish().unwrap();
        assert_eq!((text().as_str(), names(base.path())), ("two", vec!["d".to_owned(), "link".to_owned()]));
        assert!(open.file("a").is_err(), "the directory that was opened is gone, and its successor isn't taken for it");
        fs::remove_dir_all(&path).unwrap();
        fs::create_dir(&path).unwrap();
        write(&path, "three").finish().unwrap();
        assert_eq!(text(), "three");
    }

    #[test]
    fn a_directory_is_replaced_where_names_can_not_be_exchanged() {
        let base = tempfile::tempdir().unwrap();
        let (begun, place) = (base.path().join("begun"), base.path().join("d"));
        for (dir, text) in [(&begun, "new"), (&place, "old")] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("a"), text).unwrap();
        }
        let text = |dir: &Path| fs::read_to_string(dir.join("a")).unwrap();
        replace_in_turn(&begun, &place).unwrap();
        assert_eq!((text(&place).as_str(), text(&begun).as_str()), ("new", "old"));
        fs::remove_dir_all(&begun).unwrap();
        assert!(replace_in_turn(&begun, &place).is_err());
        assert_eq!((text(&place).as_str(), names(base.path())), ("new", vec!["d".to_owned()]), "it is put back");
    }

    #[test]
    fn only_a_directory_is_replaced_and_only_files_are_read() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("d");
        fs::write(&path, "a file").unwrap();
        assert!(OutputDir::new(&path).is_err_and(|error| error.to_string().contains("a file, not a directory")));
        assert!(OutputDir::new(&base.path().join("none/d")).is_err());
        assert!(OutputDir::new(Path::new("/proc")).is_err_and(|error| error.to_string().contains("a mount point")));
        symlink("d", base.path().join("link")).unwrap();
        fs::create_dir(base.path().join("sub")).unwrap();
        let dir = Dir::open(base.path()).unwrap();
        assert!(dir.file("d").is_ok());
        for bad in ["link", "sub", "none"] {
            assert!(dir.file(bad).is_err(), "{bad}");
        }
        assert!(dir.file("link").is_err_and(|error| error.to_string() == "it is a symbolic link, not a file"));
    }
}
