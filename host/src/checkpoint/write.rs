//! Writes the directory of a checkpoint.

use super::CheckpointError;
use super::manifest::{Entry, FileEntry, MANIFEST, Manifest, PREFIXES, file_name, is_ours, slot_name};
use super::tensors::{HEADER_BYTES_MAX, header, header_bytes};
use crate::files::OutputDir;
use crate::tensor::TensorType;
use crate::text::{hex, path as shown_path, shown};
use crate::variables::tensor_count;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Which tensors stand in a file, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilePlan {
    pub(super) name: String,
    tensors: Vec<(String, TensorType)>,
    /// Of all tensors, in bytes.
    bytes: u64,
    header_bytes: u64,
}

/// Puts every tensor into a file, in the order of the variables, and notes where. A file has at most `file_bytes_max` bytes of
/// tensors, or one tensor.
pub(super) fn plan(entries: &mut [Entry], file_bytes_max: u64) -> Vec<FilePlan> {
    let mut files: Vec<FilePlan> = Vec::new();
    // The open file of each kind, and how many there are.
    let (mut open, mut counts) = ([None::<usize>; 2], [0; 2]);
    for entry in entries {
        let value = entry.tensors.first().map(|(_, name)| name.clone()).unwrap_or_default();
        let names = (0..tensor_count(entry.slots)).map(|at| match entry.slots {
            Some(slots) if at > 0 => slot_name(&value, slots, at - 1),
            _ => value.clone(),
        });
        entry.tensors = names
            .enumerate()
            .map(|(at, name)| {
                let kind = usize::from(at > 0);
                let bytes = entry.ty.size_bytes().unwrap_or_default() as u64;
                let header_bytes = header_bytes(&name, &entry.ty);
                let fits = |file: &FilePlan| {
                    file.bytes.saturating_add(bytes) <= file_bytes_max
                        && file.header_bytes + header_bytes <= HEADER_BYTES_MAX / 2
                };
                let index = match open[kind].filter(|&index| fits(&files[index])) {
                    Some(index) => index,
                    None => {
                        // The name is given when their number is known; until then it is the kind.
                        let name = PREFIXES[kind].to_owned();
                        files.push(FilePlan { name, tensors: Vec::new(), bytes: 0, header_bytes: 0 });
                        counts[kind] += 1;
                        open[kind] = Some(files.len() - 1);
                        files.len() - 1
                    }
                };
                let file = &mut files[index];
                file.tensors.push((name.clone(), entry.ty.clone()));
                (file.bytes, file.header_bytes) = (file.bytes + bytes, file.header_bytes + header_bytes);
                (index, name)
            })
            .collect();
    }
    for (prefix, count) in PREFIXES.iter().zip(counts) {
        let of_kind = files.iter_mut().filter(|file| file.name == *prefix);
        for (index, file) in of_kind.enumerate() {
            file.name = file_name(prefix, index, count);
        }
    }
    files
}

/// Refuses a directory whose content isn't all a checkpoint's: it would go with the former one. Other tools name files as a checkpoint
/// does, so that one without a manifest is none.
///
/// # Errors
/// What else is there, or that the manifest isn't; it can't be read.
pub(super) fn check_place(dir: &Path) -> Result<(), CheckpointError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(CheckpointError::writing(dir, error)),
    };
    let mut is_empty = true;
    for entry in entries {
        let entry = entry.map_err(|error| CheckpointError::reading(dir, error))?;
        let name = entry.file_name();
        is_empty = false;
        if name.to_str().is_none_or(|name| !is_ours(name)) {
            return Err(CheckpointError::Refused(format!(
                "`{}` has `{}` in it, which is no part of a checkpoint and would be lost; give a directory of its own",
                shown_path(dir),
                shown(&name.to_string_lossy())
            )));
        }
    }
    // Looked up anew: another save may have replaced what was listed.
    if !is_empty && fs::symlink_metadata(dir.join(MANIFEST)).is_err() {
        return Err(CheckpointError::Refused(format!(
            "`{}` has files in it, but no {MANIFEST}: it is no checkpoint, and would be lost; give a directory of its own",
            shown_path(dir)
        )));
    }
    Ok(())
}

/// Bytes of a file that come next, and which file it is.
pub(super) type Piece = (usize, Bytes);

/// Writes the files as their bytes come, until all have come. Blocks.
///
/// # Errors
/// The system says no; none where the sender has given up before the last byte, as the answer shows.
pub(super) fn write_files(
    dir: &Path,
    plan: &[FilePlan],
    mut pieces: mpsc::Receiver<Piece>,
) -> Result<Option<Vec<FileEntry>>, CheckpointError> {
    let mut open: Vec<Option<Writing>> = plan.iter().map(|_| None).collect();
    let mut done: Vec<Option<FileEntry>> = vec![None; plan.len()];
    while let Some((index, data)) = pieces.blocking_recv() {
        if open[index].is_none() {
            open[index] = Some(Writing::begin(dir, &plan[index])?);
        }
        let writing = open[index].as_mut().expect("it was begun above");
        writing.write(&data)?;
        if writing.left == 0 {
            done[index] = open[index].take().map(Writing::finish).transpose()?;
        }
    }
    for (file, done) in plan.iter().zip(&mut done) {
        if file.bytes == 0 {
            *done = Some(Writing::begin(dir, file)?.finish()?);
        }
    }
    Ok(done.into_iter().collect())
}

/// A file on its way.
struct Writing {
    path: PathBuf,
    name: String,
    file: File,
    sha256: Sha256,
    bytes: u64,
    left: u64,
}

impl Writing {
    fn begin(dir: &Path, plan: &FilePlan) -> Result<Self, CheckpointError> {
        let path = dir.join(&plan.name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| CheckpointError::writing(&path, error))?;
        let tensors: Vec<_> = plan.tensors.iter().map(|(name, ty)| (name.as_str(), ty)).collect();
        let header = header(&tensors).map_err(CheckpointError::Refused)?;
        let left = plan.bytes + header.len() as u64;
        let mut writing = Writing { path, name: plan.name.clone(), file, sha256: Sha256::new(), bytes: 0, left };
        writing.write(&header)?;
        Ok(writing)
    }

    fn write(&mut self, data: &[u8]) -> Result<(), CheckpointError> {
        self.file.write_all(data).map_err(|error| CheckpointError::writing(&self.path, error))?;
        self.sha256.update(data);
        self.bytes += data.len() as u64;
        self.left = self.left.saturating_sub(data.len() as u64);
        Ok(())
    }

    fn finish(self) -> Result<FileEntry, CheckpointError> {
        self.file.sync_all().map_err(|error| CheckpointError::writing(&self.path, error))?;
        Ok(FileEntry { name: self.name, bytes: self.bytes, sha256: hex(&self.sha256.finalize()) })
    }
}

/// Writes the manifest, and gives the directory its name. Blocks.
///
/// # Errors
/// The system says no; those of [`check_place`]. What had the name before stays.
pub(super) fn finish(dir: OutputDir, place: &Path, manifest: &Manifest) -> Result<(), CheckpointError> {
    let path = dir.path().join(MANIFEST);
    let written = manifest.to_json().map_err(Into::into).and_then(|json| {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        file.write_all(&json)?;
        file.sync_all()
    });
    written.map_err(|error| CheckpointError::writing(&path, error))?;
    // Again: to write all may have taken long enough for somebody to put something there.
    check_place(place)?;
    dir.finish().map_err(|error| CheckpointError::writing(place, error))
}

#[cfg(test)]
mod tests {
    use super::super::manifest::Placed;
    use super::*;
    use crate::tensor::DType;
    use crate::variables::SlotState;

    fn entry(name: &str, bytes: u64, slots: Option<SlotState>) -> Entry {
        let (name, ty) = (name.to_owned(), TensorType::new(DType::U8, [bytes]));
        Entry { tensors: vec![(0, name.clone())], name, ty, version: 1, placed: Placed::Auto, slots }
    }

    #[test]
    fn tensors_fill_files_in_order_and_none_is_in_two() {
        let adam = SlotState::checked("adam", 1).ok();
        let mut entries = [
            entry("a", 40, adam),
            entry("b", 200, None),
            entry("c", 60, None),
            entry("d", 40, adam),
            entry("e", 0, None),
        ];
        let files = plan(&mut entries, 100);
        let shown: Vec<_> = files
            .iter()
            .map(|file| {
                let names: Vec<_> = file.tensors.iter().map(|(name, _)| name.as_str()).collect();
                format!("{}: {} ({} bytes)", file.name, names.join(" "), file.bytes)
            })
            .collect();
        assert_eq!(
            shown,
            [
                "model-00000-of-00003.safetensors: a (40 bytes)",
                "slots-00000-of-00002.safetensors: a/adam/m a/adam/v (80 bytes)",
                "model-00001-of-00003.safetensors: b (200 bytes)",
                "model-00002-of-00003.safetensors: c d e (100 bytes)",
                "slots-00001-of-00002.safetensors: d/adam/m d/adam/v (80 bytes)",
            ]
        );
        assert_eq!(entries[3].tensors, [(3, "d".to_owned()), (4, "d/adam/m".to_owned()), (4, "d/adam/v".to_owned())]);
    }

    #[test]
    fn a_header_stays_within_what_is_read() {
        let long = "n".repeat(200);
        let mut entries: Vec<_> = (0..40_000).map(|at| entry(&format!("{long}{at}"), 0, None)).collect();
        let files = plan(&mut entries, 100);
        assert!(files.len() > 1);
        for file in files {
            let tensors: Vec<_> = file.tensors.iter().map(|(name, ty)| (name.as_str(), ty)).collect();
            assert!(header(&tensors).unwrap().len() as u64 <= HEADER_BYTES_MAX);
        }
    }

    #[test]
    fn what_came_into_the_directory_meanwhile_stays() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("d");
        fs::create_dir(&dir).unwrap();
        let begun = OutputDir::new(&dir).unwrap();
        fs::write(dir.join("notes.txt"), "mine").unwrap();
        let error = finish(begun, &dir, &Manifest::new("default", Vec::new(), &[])).unwrap_err();
        assert!(matches!(&error, CheckpointError::Refused(why) if why.contains("`notes.txt`")), "{error}");
        assert_eq!(fs::read_to_string(dir.join("notes.txt")).unwrap(), "mine");
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn other_things_are_not_replaced() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("d");
        assert!(check_place(&dir).is_ok());
        fs::create_dir(&dir).unwrap();
        assert!(check_place(&dir).is_ok());
        fs::write(dir.join(file_name("model-", 1, 2)), "").unwrap();
        let error = check_place(&dir).unwrap_err();
        assert!(matches!(&error, CheckpointError::Refused(why) if why.contains("no manifest.json")), "{error}");
        fs::write(dir.join(MANIFEST), "").unwrap();
        assert!(check_place(&dir).is_ok());
        let begun = OutputDir::new(&dir).unwrap();
        fs::write(dir.join("notes.txt"), "").unwrap();
        let error = finish(begun, &dir, &Manifest::new("default", Vec::new(), &[])).unwrap_err();
        assert!(matches!(&error, CheckpointError::Refused(why) if why.contains("`notes.txt`")), "{error}");
        let error = check_place(&dir).unwrap_err();
        assert!(matches!(&error, CheckpointError::Refused(why) if why.contains("`notes.txt`")), "{error}");
        assert!(matches!(check_place(&dir.join("notes.txt")), Err(CheckpointError::Files { .. })));
    }
}
