//! `wasi:filesystem`: wasmtime-wasi's, but only files and directories are opened, open ones and listings are bounded, and
//! the operator reads which `--dir` a refused call would have needed.
//!
//! That a path stays in its directory and a `:ro` directory as it is, is wasmtime-wasi's work; here it is told.

#[cfg(test)]
mod tests;

use super::Denials;
use crate::runtime::grants::DirGrant;
use crate::runtime::state::State;
use crate::text::shown;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::{Arc, Weak};
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemCtxView};
use wasmtime_wasi::p2::bindings::filesystem::preopens;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    self, Advice, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry, DirectoryEntryStream, ErrorCode,
    Filesize, HostDescriptor, HostDirectoryEntryStream, MetadataHashValue, NewTimestamp, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, FsError, FsResult, OutputStream, Pollable, StreamError, StreamResult,
};

/// Files and directories open at once in one run. Each is a file descriptor of the process, which needs some itself; 1024
/// are usual.
const FILES_MAX: usize = 256;

/// Streams of one direction on files, open at once in one run. They take no descriptors of their own, but each may hold
/// [`WRITE_BYTES_MAX`], read ahead or until the disk has taken it.
const STREAMS_MAX: usize = FILES_MAX;

/// What one write to a file may bring, in bytes, which is what wasmtime-wasi tells those who ask before they write.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// Listings of directories held at once in one run, in bytes: wasmtime-wasi reads a directory as a whole.
const LISTINGS_BYTES_MAX: u64 = 64 << 20;

/// Longest path that is looked at, in bytes; the system has no longer one. The host copies a path, and a guest can make one of
/// hundreds of megabytes.
const PATH_BYTES_MAX: usize = 4096;

/// What an entry of a listing takes beside its name, in bytes.
const ENTRY_BYTES: u64 = 64;

/// What a run does with files.
#[derive(Debug, Default)]
pub(crate) struct FileUse {
    grants: Vec<DirGrant>,
    denials: Arc<Denials>,
    /// Which grant a descriptor came from, by its place in the table.
    origins: BTreeMap<u32, usize>,
    /// Open files and directories; streams keep them open after their descriptors.
    open: Vec<Weak<File>>,
    /// Bytes of listings that are held, by their place in the table.
    listings: BTreeMap<u32, u64>,
    /// Places in the table of streams that read, and of those that write; some may be closed.
    readers: BTreeSet<u32>,
    writers: BTreeSet<u32>,
}

impl FileUse {
    /// No files in use; `grants` in the order in which the directories were opened.
    pub(crate) fn new(grants: Vec<DirGrant>, denials: Arc<Denials>) -> Self {
        FileUse { grants, denials, ..FileUse::default() }
    }

    fn grant(&self, descriptor: u32) -> Option<&DirGrant> {
        self.grants.get(*self.origins.get(&descriptor)?)
    }

    /// Tells that something in a read-only directory was to be changed; `false` where the directory isn't one.
    fn tell_read_only(&self, descriptor: u32) -> bool {
        let Some(DirGrant { host, guest, .. }) = self.grant(descriptor).filter(|grant| grant.read_only) else {
            return false;
        };
        let (host, guest) = (shown(&host.to_string_lossy()), shown(guest));
        self.denials.tell(format!(
            "the guest asked to change something in `{guest}`, which it may only read; give `--dir {host}::{guest}` without \
             `:ro` to allow it"
        ));
        true
    }

    fn tell_escape(&self, descriptor: u32, path: &str) {
        let guest = self.grant(descriptor).map_or("its directory", |grant| &grant.guest);
        self.denials.tell(format!(
            "the guest asked for `{}`, which leads out of `{}`; give a `--dir` for where it leads to allow it",
            shown(path),
            shown(guest)
        ));
    }
}

/// Marks the view for the linker.
struct Files;

impl HasData for Files {
    type Data<'a> = FilesView<'a>;
}

/// What the functions here work on.
struct FilesView<'a> {
    wasi: WasiFilesystemCtxView<'a>,
    files: &'a mut FileUse,
}

fn view(state: &mut State) -> FilesView<'_> {
    let State { wasi, table, files, .. } = state;
    FilesView { wasi: WasiFilesystemCtxView { ctx: wasi.filesystem(), table }, files }
}

/// Links the interfaces.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    types::add_to_linker::<State, Files>(linker, view)?;
    preopens::add_to_linker::<State, Files>(linker, view)
}

fn borrow(descriptor: u32) -> Resource<Descriptor> {
    Resource::new_borrow(descriptor)
}

/// A stream that writes a file. wasmtime-wasi's own takes a write of any size and holds it until the disk has taken it, and
/// the guest need not wait before it writes to the next stream.
struct Writer(DynOutputStream);

#[wasmtime_wasi::async_trait]
impl OutputStream for Writer {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        if bytes.len() > WRITE_BYTES_MAX {
            return Err(StreamError::trap(&format!(
                "a write of {} bytes to a file, but `check-write` allows {WRITE_BYTES_MAX} at most",
                bytes.len()
            )));
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.0.flush()
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(self.0.check_write()?.min(WRITE_BYTES_MAX))
    }

    async fn blocking_write_and_flush(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.0.blocking_write_and_flush(bytes).await
    }

    async fn cancel(&mut self) {
        self.0.cancel().await;
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Writer {
    async fn ready(&mut self) {
        self.0.ready().await;
    }
}

/// Fails where a run has as many streams of one direction as it may have. They are closed by functions of `wasi:io`, so that
/// the table says which are open still.
fn room_for_stream<T: 'static>(table: &ResourceTable, streams: &mut BTreeSet<u32>, denials: &Denials) -> FsResult<()> {
    if streams.len() >= STREAMS_MAX {
        streams.retain(|&rep| table.get(&Resource::<T>::new_borrow(rep)).is_ok());
    }
    if streams.len() < STREAMS_MAX {
        return Ok(());
    }
    denials.tell(format!(
        "the guest has {STREAMS_MAX} streams of one direction open on files, the most that one run may have; it gets no more \
         until it closes some"
    ));
    Err(ErrorCode::InsufficientMemory.into())
}

/// Fails for what is longer than any path.
fn fits(path: &str) -> FsResult<()> {
    if path.len() <= PATH_BYTES_MAX { Ok(()) } else { Err(ErrorCode::NameTooLong.into()) }
}

/// Whether a call was refused by a rule of the sandbox, or by the system for want of rights.
fn is_refused<T>(answer: &FsResult<T>) -> bool {
    matches!(answer, Err(error) if matches!(error.downcast_ref(), Some(ErrorCode::NotPermitted)))
}

impl FilesView<'_> {
    /// Tells why a call that changes nothing was refused.
    fn told_reading<T>(&self, descriptor: u32, path: &str, answer: FsResult<T>) -> FsResult<T> {
        if is_refused(&answer) {
            self.files.tell_escape(descriptor, path);
        }
        answer
    }

    /// Tells why a call that changes something was refused; `paths` are those that it names.
    async fn told_writing<T>(&mut self, paths: &[(u32, &str)], answer: FsResult<T>) -> FsResult<T> {
        if !is_refused(&answer) || paths.iter().any(|&(descriptor, _)| self.files.tell_read_only(descriptor)) {
            return answer;
        }
        for &(descriptor, path) in paths {
            // The system has other reasons too, a sticky directory for instance. Looking needs no rights to write.
            let look = self.wasi.stat_at(borrow(descriptor), PathFlags::empty(), path.to_owned()).await;
            if is_refused(&look) {
                self.files.tell_escape(descriptor, path);
            }
        }
        answer
    }

    /// Fails where a run has as many files open as it may have.
    fn room_for_one(&mut self) -> FsResult<()> {
        let FileUse { open, denials, .. } = &mut *self.files;
        if open.len() >= FILES_MAX {
            open.retain(|file| file.strong_count() > 0);
        }
        if open.len() < FILES_MAX {
            return Ok(());
        }
        denials.tell(format!(
            "the guest has {FILES_MAX} files open, the most that one run may have; it gets no more until it closes some"
        ));
        Err(ErrorCode::InsufficientMemory.into())
    }

    /// Opens a stream that writes.
    fn writer(
        &mut self,
        this: Resource<Descriptor>,
        open: impl FnOnce(&mut WasiFilesystemCtxView<'_>, Resource<Descriptor>) -> FsResult<Resource<DynOutputStream>>,
    ) -> FsResult<Resource<DynOutputStream>> {
        let FilesView { wasi, files } = self;
        room_for_stream::<DynOutputStream>(wasi.table, &mut files.writers, &files.denials)?;
        let rep = this.rep();
        let answer = open(wasi, this);
        if is_refused(&answer) {
            files.tell_read_only(rep);
        }
        let stream: DynOutputStream = Box::new(Writer(wasi.table.delete(answer?)?));
        let stream = wasi.table.push(stream)?;
        files.writers.insert(stream.rep());
        Ok(stream)
    }

    /// Fails for what is neither a file nor a directory: opening a FIFO waits for its other end, a device may do anything.
    async fn only_files(&mut self, descriptor: u32, flags: PathFlags, path: &str) -> FsResult<()> {
        // What can't be looked at can't be opened either, or doesn't exist yet.
        let Ok(stat) = self.wasi.stat_at(borrow(descriptor), flags, path.to_owned()).await else { return Ok(()) };
        match stat.type_ {
            DescriptorType::RegularFile | DescriptorType::Directory | DescriptorType::SymbolicLink => Ok(()),
            _ => {
                self.files.denials.tell(format!(
                    "the guest asked to open `{}`, which is a pipe, a socket or a device; guests open files and directories \
                     only, which no flag changes",
                    shown(path)
                ));
                Err(ErrorCode::Access.into())
            }
        }
    }
}

impl preopens::Host for FilesView<'_> {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        if self.files.grants.is_empty() {
            self.files.denials.mention(
                "the guest looks for files, but no directory is granted; give `--dir HOST::GUEST` to grant one"
                    .to_owned(),
            );
        }
        let directories = self.wasi.get_directories()?;
        // In the order of the grants.
        self.files.origins.extend(directories.iter().enumerate().map(|(index, (dir, _))| (dir.rep(), index)));
        Ok(directories)
    }
}

impl types::Host for FilesView<'_> {
    fn convert_error_code(&mut self, error: FsError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn filesystem_error_code(&mut self, error: Resource<wasmtime::Error>) -> wasmtime::Result<Option<ErrorCode>> {
        self.wasi.filesystem_error_code(error)
    }
}

/// Hands functions to wasmtime-wasi's implementation.
macro_rules! pass_on {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        async fn $name(&mut self, this: Resource<Descriptor>, $($arg: $ty),*) -> FsResult<$out> {
            self.wasi.$name(this, $($arg),*).await
        }
    )*};
}

/// The same for functions of a path that change nothing.
macro_rules! pass_on_reading {
    ($(fn $name:ident($([$flags:ident: $ty:ty])? path) -> $out:ty;)*) => {$(
        async fn $name(&mut self, this: Resource<Descriptor>, $($flags: $ty,)? path: String) -> FsResult<$out> {
            fits(&path)?;
            let rep = this.rep();
            let answer = self.wasi.$name(this, $($flags,)? path.clone()).await;
            self.told_reading(rep, &path, answer)
        }
    )*};
}

/// The same for functions of a path that change something.
macro_rules! pass_on_writing {
    ($(fn $name:ident($([$flags:ident: $ty:ty])? path $(, $arg:ident: $arg_ty:ty)*) -> $out:ty;)*) => {$(
        async fn $name(
            &mut self,
            this: Resource<Descriptor>,
            $($flags: $ty,)?
            path: String
            $(, $arg: $arg_ty)*
        ) -> FsResult<$out> {
            fits(&path)?;
            let rep = this.rep();
            let answer = self.wasi.$name(this, $($flags,)? path.clone() $(, $arg)*).await;
            self.told_writing(&[(rep, &path)], answer).await
        }
    )*};
}

impl HostDescriptor for FilesView<'_> {
    pass_on! {
        fn advise(offset: Filesize, bytes: Filesize, advice: Advice) -> ();
        fn sync_data() -> ();
        fn get_flags() -> DescriptorFlags;
        fn get_type() -> DescriptorType;
        fn read(bytes: Filesize, offset: Filesize) -> (Vec<u8>, bool);
        fn sync() -> ();
        fn stat() -> DescriptorStat;
        fn metadata_hash() -> MetadataHashValue;
    }

    pass_on_reading! {
        fn stat_at([flags: PathFlags] path) -> DescriptorStat;
        fn readlink_at(path) -> String;
        fn metadata_hash_at([flags: PathFlags] path) -> MetadataHashValue;
    }

    pass_on_writing! {
        fn create_directory_at(path) -> ();
        fn set_times_at([flags: PathFlags] path, access: NewTimestamp, change: NewTimestamp) -> ();
        fn remove_directory_at(path) -> ();
        fn unlink_file_at(path) -> ();
    }

    async fn set_size(&mut self, this: Resource<Descriptor>, bytes: Filesize) -> FsResult<()> {
        let rep = this.rep();
        let answer = self.wasi.set_size(this, bytes).await;
        self.told_writing(&[(rep, ".")], answer).await
    }

    async fn set_times(
        &mut self,
        this: Resource<Descriptor>,
        access: NewTimestamp,
        change: NewTimestamp,
    ) -> FsResult<()> {
        let rep = this.rep();
        let answer = self.wasi.set_times(this, access, change).await;
        self.told_writing(&[(rep, ".")], answer).await
    }

    async fn write(&mut self, this: Resource<Descriptor>, bytes: Vec<u8>, offset: Filesize) -> FsResult<Filesize> {
        let rep = this.rep();
        let answer = self.wasi.write(this, bytes, offset).await;
        self.told_writing(&[(rep, ".")], answer).await
    }

    async fn open_at(
        &mut self,
        this: Resource<Descriptor>,
        path_flags: PathFlags,
        path: String,
        open_flags: OpenFlags,
        flags: DescriptorFlags,
    ) -> FsResult<Resource<Descriptor>> {
        fits(&path)?;
        let rep = this.rep();
        self.room_for_one()?;
        self.only_files(rep, path_flags, &path).await?;
        let writes = open_flags.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE)
            || flags.intersects(DescriptorFlags::WRITE | DescriptorFlags::MUTATE_DIRECTORY);
        let answer = self.wasi.open_at(this, path_flags, path.clone(), open_flags, flags).await;
        let opened = if writes {
            self.told_writing(&[(rep, &path)], answer).await?
        } else {
            self.told_reading(rep, &path, answer)?
        };
        let FilesView { wasi, files } = self;
        files.open.push(match wasi.table.get(&opened)? {
            Descriptor::File(file) => Arc::downgrade(&file.file),
            Descriptor::Dir(dir) => Arc::downgrade(&dir.dir),
        });
        if let Some(&origin) = files.origins.get(&rep) {
            files.origins.insert(opened.rep(), origin);
        }
        Ok(opened)
    }

    async fn link_at(
        &mut self,
        this: Resource<Descriptor>,
        old_flags: PathFlags,
        old: String,
        new_dir: Resource<Descriptor>,
        new: String,
    ) -> FsResult<()> {
        fits(&old)?;
        fits(&new)?;
        let (from, to) = (this.rep(), new_dir.rep());
        let answer = self.wasi.link_at(this, old_flags, old.clone(), new_dir, new.clone()).await;
        self.told_writing(&[(from, &old), (to, &new)], answer).await
    }

    async fn rename_at(
        &mut self,
        this: Resource<Descriptor>,
        old: String,
        new_dir: Resource<Descriptor>,
        new: String,
    ) -> FsResult<()> {
        fits(&old)?;
        fits(&new)?;
        let (from, to) = (this.rep(), new_dir.rep());
        let answer = self.wasi.rename_at(this, old.clone(), new_dir, new.clone()).await;
        self.told_writing(&[(from, &old), (to, &new)], answer).await
    }

    async fn symlink_at(&mut self, this: Resource<Descriptor>, target: String, path: String) -> FsResult<()> {
        fits(&target)?;
        fits(&path)?;
        let rep = this.rep();
        let answer = self.wasi.symlink_at(this, target.clone(), path.clone()).await;
        if target.starts_with('/') {
            // A relative target may be written whatever it says: it is looked at when somebody follows it.
            return self.told_writing(&[(rep, &target)], answer).await;
        }
        self.told_writing(&[(rep, &path)], answer).await
    }

    async fn read_directory(&mut self, this: Resource<Descriptor>) -> FsResult<Resource<DirectoryEntryStream>> {
        let Descriptor::Dir(dir) = self.wasi.table.get(&this)? else { return self.wasi.read_directory(this).await };
        let dir = Arc::clone(&dir.dir);
        let room_bytes = LISTINGS_BYTES_MAX.saturating_sub(self.files.listings.values().sum());
        // A directory that can't be read is left to the call itself, which says why.
        let counted = tokio::task::spawn_blocking(move || listing_bytes(&dir, room_bytes)).await;
        let bytes = counted.ok().and_then(Result::ok).unwrap_or_default();
        if bytes > room_bytes {
            self.files.denials.tell(format!(
                "the guest asked for a listing, and listings that it holds would take more than {}; it has to close some, or \
                 its files must be spread over more directories",
                crate::runtime::limits::mib(LISTINGS_BYTES_MAX)
            ));
            return Err(ErrorCode::InsufficientMemory.into());
        }
        let listing = self.wasi.read_directory(this).await?;
        self.files.listings.insert(listing.rep(), bytes);
        Ok(listing)
    }

    fn read_via_stream(&mut self, this: Resource<Descriptor>, offset: Filesize) -> FsResult<Resource<DynInputStream>> {
        let FilesView { wasi, files } = self;
        room_for_stream::<DynInputStream>(wasi.table, &mut files.readers, &files.denials)?;
        let stream = wasi.read_via_stream(this, offset)?;
        files.readers.insert(stream.rep());
        Ok(stream)
    }

    fn write_via_stream(
        &mut self,
        this: Resource<Descriptor>,
        offset: Filesize,
    ) -> FsResult<Resource<DynOutputStream>> {
        self.writer(this, |wasi, this| wasi.write_via_stream(this, offset))
    }

    fn append_via_stream(&mut self, this: Resource<Descriptor>) -> FsResult<Resource<DynOutputStream>> {
        self.writer(this, |wasi, this| wasi.append_via_stream(this))
    }

    async fn is_same_object(&mut self, a: Resource<Descriptor>, b: Resource<Descriptor>) -> wasmtime::Result<bool> {
        self.wasi.is_same_object(a, b).await
    }

    fn drop(&mut self, this: Resource<Descriptor>) -> wasmtime::Result<()> {
        self.files.origins.remove(&this.rep());
        HostDescriptor::drop(&mut self.wasi, this)
    }
}

impl HostDirectoryEntryStream for FilesView<'_> {
    async fn read_directory_entry(&mut self, this: Resource<DirectoryEntryStream>) -> FsResult<Option<DirectoryEntry>> {
        self.wasi.read_directory_entry(this).await
    }

    fn drop(&mut self, this: Resource<DirectoryEntryStream>) -> wasmtime::Result<()> {
        self.files.listings.remove(&this.rep());
        HostDirectoryEntryStream::drop(&mut self.wasi, this)
    }
}

/// What a listing of a directory takes, in bytes; counting stops where it is more than `bytes_max`.
fn listing_bytes(dir: &File, bytes_max: u64) -> rustix::io::Result<u64> {
    let mut bytes = 0;
    for entry in rustix::fs::Dir::read_from(dir)? {
        bytes += ENTRY_BYTES + entry?.file_name().count_bytes() as u64;
        if bytes > bytes_max {
            break;
        }
    }
    Ok(bytes)
}
