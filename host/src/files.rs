//! Files that dchost itself reads and writes: nothing that is opened blocks, and what is written is there whole or not at all.

mod dir;

pub use dir::{Dir, OutputDir};

use rustix::fs::{CWD, FsWord, Mode, OFlags, RenameFlags, renameat_with};
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, BufWriter, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};

/// How the names of files end that are being written. One that stays is of a process that was killed over it.
pub const BEGUN: &str = ".dchost-begun";

/// The file system of pipes that have no name, as `statfs` has it.
const PIPES: FsWord = 0x5049_5045;

/// Why a file isn't read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A directory, pipe, socket or device.
    #[error("it is {kind}, not a file")]
    NotAFile {
        /// What it is.
        kind: &'static str,
    },
    /// Larger than the cap.
    #[error("it has {size_bytes} bytes, at most {bytes_max} are read")]
    TooLarge {
        /// Its size; where it grows, what was seen of it.
        size_bytes: u64,
        /// The cap.
        bytes_max: u64,
    },
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Opens a file for reading. Whatever stands at `path`, this doesn't wait: opening a pipe would, for somebody who writes.
///
/// The metadata are those of what was opened.
///
/// # Errors
/// [`ReadError::NotAFile`]; what the system says.
pub fn open(path: &Path) -> Result<(File, Metadata), ReadError> {
    // Asked before as well: to open a device may have effects.
    check_file(&fs::metadata(path)?)?;
    // Another thing may have come into its place since.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
    let metadata = file.metadata()?;
    check_file(&metadata)?;
    Ok((file, metadata))
}

/// Opens what a text may come from: a file, a device such as `/dev/null`, or a pipe that somebody holds open already, such
/// as the shell's `<(...)`. A pipe with a name isn't opened, which would wait for somebody who writes.
///
/// # Errors
/// As [`open`].
pub fn open_text(path: &Path) -> Result<File, ReadError> {
    let kind = fs::metadata(path)?.file_type();
    let nameless = || rustix::fs::statfs(path).is_ok_and(|system| system.f_type == PIPES);
    if kind.is_char_device() || (kind.is_fifo() && nameless()) {
        return Ok(File::open(path)?);
    }
    open(path).map(|(file, _)| file)
}

/// Reads a file that was opened, if it has at most `bytes_max` bytes; a larger one isn't read at all.
///
/// # Errors
/// [`ReadError::TooLarge`], also where the file grew meanwhile; what the system says.
pub fn read(file: &File, metadata: &Metadata, bytes_max: u64) -> Result<Vec<u8>, ReadError> {
    let check = |size_bytes| {
        if size_bytes > bytes_max { Err(ReadError::TooLarge { size_bytes, bytes_max }) } else { Ok(()) }
    };
    check(metadata.len())?;
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    // One byte more than allowed, to see that it grew.
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    check(bytes.len() as u64)?;
    Ok(bytes)
}

fn check_file(metadata: &Metadata) -> Result<(), ReadError> {
    if metadata.is_file() { Ok(()) } else { Err(ReadError::NotAFile { kind: kind(metadata.file_type()) }) }
}

/// What something is, in words: `a directory`.
pub fn kind(kind: FileType) -> &'static str {
    if kind.is_file() {
        "a file"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// What becomes of what has the name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and writing fails.
    Stays,
    /// A file is replaced. Writing fails where it is anything else.
    FileReplaced,
    /// It is replaced, but for a directory.
    Replaced,
}

/// A file to be written: beside its place, and then renamed, so that a reader sees it whole, or what was there before.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// Where it will be.
    pub path: &'a Path,
    /// Who may read and write it; the umask may take from that.
    pub mode: u32,
    /// What becomes of what is there.
    pub existing: Existing,
    /// Whether it must outlive the machine's failure once it is there.
    pub synced: bool,
}

impl Output<'_> {
    /// Writes it; answers its size in bytes.
    ///
    /// # Errors
    /// What `write` or the system says. Nothing is left then; only a process that is killed leaves a file, whose name is
    /// drawn and ends in [`BEGUN`].
    pub fn write(&self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<u64> {
        let (begun, file) = Begun::new(self.path, self.mode)?;
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        let bytes = file.metadata()?.len();
        if self.synced {
            file.sync_all()?;
        }
        begun.rename(self.path, self.existing)?;
        Ok(bytes)
    }
}

/// A path beside `path` for what is being written. Drawn: after a process that was killed, the next one may have the same id, as the
/// first of a container has.
fn begun_beside(path: &Path) -> PathBuf {
    path.with_file_name(format!("{:016x}{BEGUN}", rand::random::<u64>()))
}

/// A file that is being written. It is removed unless it gets its name.
struct Begun(PathBuf);

impl Begun {
    fn new(path: &Path, mode: u32) -> io::Result<(Begun, File)> {
        let begun = begun_beside(path);
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&begun)?;
        Ok((Begun(begun), file))
    }

    fn rename(self, path: &Path, existing: Existing) -> io::Result<()> {
        match existing {
            Existing::Replaced => fs::rename(&self.0, path),
            Existing::FileReplaced => check_replaceable(path).and_then(|()| fs::rename(&self.0, path)),
            Existing::Stays => match renameat_with(CWD, &self.0, CWD, path, RenameFlags::NOREPLACE) {
                // A file system that can't.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => match fs::symlink_metadata(path) {
                    Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
                    Err(_) => fs::rename(&self.0, path),
                },
                renamed => renamed.map_err(io::Error::from),
            },
        }?;
        // It has another name now.
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // What failed before is what is told.
        let _ = fs::remove_file(&self.0);
    }
}

/// Sees that nothing but a file stands at `path`: renaming would replace a pipe, a device or a link as well.
fn check_replaceable(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            Err(io::Error::other(format!("it is {}, and only a file is replaced", kind(metadata.file_type()))))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Pairs of descriptors that must be free before tokio takes some to hear of signals: it panics where it lacks the last.
const FREE_PAIRS: usize = 4;

/// Makes a write beyond a limit on the size of files (`ulimit -f`) fail, for the rest of the process: by default the system
/// ends a process that tries.
///
/// # Errors
/// The system can't deliver signals, or has hardly any descriptors left.
pub fn survive_size_limit() -> io::Result<()> {
    let free: Vec<_> = (0..FREE_PAIRS).map(|_| UnixStream::pair()).collect::<io::Result<_>>()?;
    drop(free);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    // Once taken, a signal stays with tokio, whatever becomes of this runtime. Nobody has to hear of it.
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    fn output(path: &Path, existing: Existing) -> Output<'_> {
        Output { path, mode: 0o600, existing, synced: false }
    }

    fn pipe(path: &Path) {
        rustix::fs::mknodat(CWD, path, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        assert_eq!(output(&path, Existing::Stays).write(|out| out.write_all(b"one")).unwrap(), 3);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let full = |out: &mut BufWriter<File>| {
            out.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        for existing in [Existing::Stays, Existing::FileReplaced, Existing::Replaced] {
            assert!(output(&dir.path().join("b"), existing).write(full).is_err());
            assert!(output(&path, existing).write(full).is_err());
        }
        assert_eq!((names(dir.path()), fs::read(&path).unwrap()), (vec!["a".to_owned()], b"one".to_vec()));
    }

    /// What is there, and whether each way of writing replaces it.
    #[test]
    fn what_is_there_is_replaced_as_asked() {
        for (made, by_file, by_any) in
            [("file", true, true), ("link", false, true), ("pipe", false, true), ("dir", false, false)]
        {
            for (existing, replaced) in
                [(Existing::Stays, false), (Existing::FileReplaced, by_file), (Existing::Replaced, by_any)]
            {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("a");
                match made {
                    "file" => fs::write(&path, b"old").unwrap(),
                    "link" => symlink("/dev/null", &path).unwrap(),
                    "pipe" => pipe(&path),
                    _ => fs::create_dir(&path).unwrap(),
                }
                let written = output(&path, existing).write(|out| out.write_all(b"new"));
                assert_eq!(written.is_ok(), replaced, "{made}, {existing:?}: {written:?}");
                let is_new = fs::symlink_metadata(&path).unwrap().is_file() && fs::read(&path).unwrap() == b"new";
                assert_eq!(is_new, replaced, "{made}, {existing:?}");
                assert_eq!(names(dir.path()), ["a"]);
            }
        }
    }

    #[test]
    fn what_a_killed_process_left_stands_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::mem::forget(Begun::new(&path, 0o600).unwrap().0);
        output(&path, Existing::FileReplaced).write(|out| out.write_all(b"one")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert!(names(dir.path()).iter().any(|name| name.ends_with(BEGUN)));
    }

    #[test]
    fn only_files_are_opened_and_nothing_waits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        pipe(&path);
        for (path, what) in
            [(path.as_path(), "a pipe"), (dir.path(), "a directory"), (Path::new("/dev/zero"), "a device")]
        {
            let error = open(path).unwrap_err();
            assert!(matches!(error, ReadError::NotAFile { kind } if kind == what), "{error}");
        }
        assert!(matches!(open_text(&path), Err(ReadError::NotAFile { kind: "a pipe" })));
        assert!(open_text(Path::new("/dev/null")).is_ok());
    }

    #[test]
    fn a_text_may_come_from_a_pipe_that_is_open() {
        use std::os::fd::AsRawFd as _;
        let (reader, mut writer) = io::pipe().unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        writer.write_all(b"text").unwrap();
        drop(writer);
        let mut text = String::new();
        open_text(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }

    #[test]
    fn a_file_above_the_cap_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let (file, metadata) = open(&path).unwrap();
        let error = read(&file, &metadata, 1 << 20).unwrap_err();
        assert!(matches!(error, ReadError::TooLarge { size_bytes, .. } if size_bytes == 1 << 40), "{error}");
        fs::write(&path, b"1234").unwrap();
        let (file, metadata) = open(&path).unwrap();
        assert_eq!(read(&file, &metadata, 4).unwrap(), b"1234");
    }
}
