//! Reads the directory of a checkpoint: checked as a whole before anything of it is used.

use super::CheckpointError;
use super::manifest::{Entry, FileEntry, MANIFEST, MANIFEST_BYTES_MAX, Manifest};
use super::tensors::Header;
use crate::error::{Error, ErrorCode, Result};
use crate::files::{self, Dir, ReadError};
use crate::text::{hex, path as shown_path};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// A checkpoint that was checked.
#[derive(Debug)]
pub(super) struct Opened {
    path: PathBuf,
    dir: Dir,
    /// The container that was saved.
    pub(super) container: String,
    files: Vec<FileEntry>,
    pub(super) entries: Vec<Entry>,
    /// Where the tensors of each variable begin in their files.
    offsets: Vec<Vec<u64>>,
}

/// Where a tensor, or some rows of one, begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    file: usize,
    offset: u64,
}

impl Opened {
    /// Opens a checkpoint and checks all of it: the manifest, each file's size, checksum and header, and that every variable is where
    /// it is said to be. Reads all files, and keeps no more than one header of them. Blocks.
    ///
    /// # Errors
    /// [`CheckpointError::Torn`] naming the file; [`CheckpointError::Files`].
    pub(super) fn open(path: &Path) -> Result<Opened, CheckpointError> {
        let torn = |why| CheckpointError::Torn { dir: path.to_owned(), why };
        let dir = Dir::open(path).map_err(|error| CheckpointError::reading(path, error))?;
        let refused = |name: &str, error: ReadError| match error {
            ReadError::Io(error) if error.kind() != std::io::ErrorKind::NotFound => {
                CheckpointError::reading(&path.join(name), error)
            }
            ReadError::Io(_) => torn(format!("it has no {name}")),
            error => torn(format!("{name}: {error}")),
        };
        let (file, metadata) = dir.file(MANIFEST).map_err(|error| refused(MANIFEST, error))?;
        let json = files::read(&file, &metadata, MANIFEST_BYTES_MAX).map_err(|error| refused(MANIFEST, error))?;
        let (manifest, entries) = Manifest::read(&json).map_err(torn)?;
        drop(json);
        // The variables of each file, so that one header at a time is needed.
        let mut of_file: Vec<Vec<(usize, usize)>> = vec![Vec::new(); manifest.files.len()];
        let mut offsets = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            offsets.push(vec![0; entry.tensors.len()]);
            for (tensor, (file, _)) in entry.tensors.iter().enumerate() {
                of_file[*file].push((index, tensor));
            }
        }
        for (file, tensors) in manifest.files.iter().zip(of_file) {
            let why = |why: String| torn(format!("{}: {why}", file.name));
            let (mut open, metadata) = dir.file(&file.name).map_err(|error| refused(&file.name, error))?;
            if metadata.len() != file.bytes {
                return Err(why(format!("it has {} bytes, but was written with {}", metadata.len(), file.bytes)));
            }
            let header = Header::read(&open, file.bytes).map_err(why)?;
            for (entry, tensor) in tensors {
                let (_, name) = &entries[entry].tensors[tensor];
                offsets[entry][tensor] = header.offset(name, &entries[entry].ty).map_err(why)?;
            }
            let sha256 =
                checksum(&mut open).map_err(|error| CheckpointError::reading(&path.join(&file.name), error))?;
            if sha256 != file.sha256 {
                return Err(why(format!("its sha256 is {sha256}, but was {} when it was written", file.sha256)));
            }
        }
        let Manifest { container, files, .. } = manifest;
        Ok(Opened { path: path.to_owned(), dir, container, files, entries, offsets })
    }

    /// Where a tensor of a variable is, from byte `begin` of it on.
    pub(super) fn at(&self, entry: usize, tensor: usize, begin: u64) -> At {
        At { file: self.entries[entry].tensors[tensor].0, offset: self.offsets[entry][tensor] + begin }
    }

    /// Reads `bytes` bytes, from `begin` after `at` on. Blocks.
    ///
    /// # Errors
    /// `data-loss`: they can't be read any more.
    pub(super) fn read(&self, at: At, begin: u64, bytes: usize) -> Result<Bytes> {
        let name = &self.files[at.file].name;
        let read = || -> Result<Vec<u8>, ReadError> {
            let (file, _) = self.dir.file(name)?;
            let mut data = vec![0; bytes];
            file.read_exact_at(&mut data, at.offset + begin)?;
            Ok(data)
        };
        read().map(Bytes::from).map_err(|error| {
            let path = shown_path(&self.path.join(name));
            Error::new(ErrorCode::DataLoss, format!("`{path}` can't be read any more: {error}"))
        })
    }
}

/// The sha256 of a file, read from its beginning.
fn checksum(file: &mut File) -> std::io::Result<String> {
    file.rewind()?;
    let (mut sha256, mut buffer) = (Sha256::new(), vec![0; READ_BYTES]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&sha256.finalize())),
            bytes => sha256.update(&buffer[..bytes]),
        }
    }
}
