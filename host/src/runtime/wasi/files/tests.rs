use super::*;
use std::path::Path;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::p2::bindings::filesystem::preopens::Host as _;
use wasmtime_wasi::{FsPerms, WasiCtx};

/// A store's part that files need, with one granted directory.
struct Store {
    wasi: WasiCtx,
    table: ResourceTable,
    files: FileUse,
}

impl Store {
    fn new(dir: &Path, read_only: bool) -> Self {
        let mut wasi = WasiCtx::builder();
        let permissions = if read_only { FsPerms::ReadOnly } else { FsPerms::ReadWrite };
        wasi.preopened_dir(dir, "/data", permissions).unwrap();
        let grant = DirGrant { host: dir.to_owned(), guest: "/data".to_owned(), read_only };
        Store { wasi: wasi.build(), table: ResourceTable::new(), files: FileUse::new(vec![grant], Arc::default()) }
    }

    fn view(&mut self) -> FilesView<'_> {
        let Store { wasi, table, files } = self;
        FilesView { wasi: WasiFilesystemCtxView { ctx: wasi.filesystem(), table }, files }
    }

    fn root(&mut self) -> u32 {
        self.view().get_directories().unwrap()[0].0.rep()
    }

    async fn open(&mut self, dir: u32, path: &str, flags: DescriptorFlags) -> FsResult<u32> {
        let mut view = self.view();
        let opened = view.open_at(borrow(dir), PathFlags::empty(), path.to_owned(), OpenFlags::empty(), flags).await?;
        Ok(opened.rep())
    }
}

/// What the kernel knows of this process's descriptors of a file.
fn descriptors(path: &Path) -> usize {
    let links =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|target| target == path).count()
}

fn file() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap().join("file.txt");
    std::fs::write(&path, "hello").unwrap();
    (dir, path)
}

fn refusal<T>(answer: FsResult<T>) -> ErrorCode {
    answer.err().expect("refused").downcast().expect("an error of the guest, no trap")
}

/// Aim: what counts is the descriptor of the process, which streams keep open after the guest's handle is gone.
#[tokio::test]
async fn files_that_only_streams_hold_are_counted_as_open() {
    let (dir, path) = file();
    let mut store = Store::new(dir.path(), true);
    let root = store.root();
    let mut streams = Vec::new();
    let refused = loop {
        match store.open(root, "file.txt", DescriptorFlags::READ).await {
            Ok(file) => {
                streams.push(store.view().read_via_stream(borrow(file), 0).unwrap());
                HostDescriptor::drop(&mut store.view(), Resource::new_own(file)).unwrap();
            }
            Err(error) => break Err::<(), _>(error),
        }
        assert!(streams.len() <= FILES_MAX, "no end of files");
    };
    assert_eq!(refusal(refused), ErrorCode::InsufficientMemory);
    assert_eq!(descriptors(&path), FILES_MAX);
    for stream in streams {
        store.table.delete(stream).unwrap();
    }
    assert_eq!(descriptors(&path), 0);
    store.open(root, "file.txt", DescriptorFlags::READ).await.unwrap();
}

#[tokio::test]
async fn streams_of_one_file_are_bounded_and_closed_ones_make_room() {
    let (dir, _) = file();
    let mut store = Store::new(dir.path(), false);
    let root = store.root();
    let file = store.open(root, "file.txt", DescriptorFlags::READ | DescriptorFlags::WRITE).await.unwrap();
    let mut readers: Vec<_> =
        (0..STREAMS_MAX).map(|_| store.view().read_via_stream(borrow(file), 0).unwrap()).collect();
    assert_eq!(refusal(store.view().read_via_stream(borrow(file), 0)), ErrorCode::InsufficientMemory);
    let mut writers: Vec<_> = (0..STREAMS_MAX)
        .map(|index| {
            let mut view = store.view();
            if index % 2 == 0 { view.write_via_stream(borrow(file), 0) } else { view.append_via_stream(borrow(file)) }
        })
        .map(|stream| stream.unwrap())
        .collect();
    assert_eq!(refusal(store.view().append_via_stream(borrow(file))), ErrorCode::InsufficientMemory);

    store.table.delete(readers.pop().unwrap()).unwrap();
    store.table.delete(writers.pop().unwrap()).unwrap();
    store.view().read_via_stream(borrow(file), 0).unwrap();
    store.view().write_via_stream(borrow(file), 0).unwrap();
    assert_eq!(refusal(store.view().write_via_stream(borrow(file), 0)), ErrorCode::InsufficientMemory);
}

/// Aim: what a guest writes without waiting isn't piled up in the host, many times what one call may pass.
#[tokio::test]
async fn a_write_beyond_its_permit_is_no_write() {
    let (dir, path) = file();
    let mut store = Store::new(dir.path(), false);
    let root = store.root();
    let file = store.open(root, "file.txt", DescriptorFlags::WRITE).await.unwrap();
    let stream = store.view().write_via_stream(borrow(file), 0).unwrap();
    let writer = store.table.get_mut(&stream).unwrap();
    let permit = writer.check_write().unwrap();
    assert_eq!(permit, WRITE_BYTES_MAX);
    assert!(matches!(writer.write(vec![b'x'; permit + 1].into()), Err(StreamError::Trap(_))));
    writer.write(vec![b'x'; permit].into()).unwrap();
    // As long as the first is under way there is no second.
    writer.write_ready().await.unwrap();
    writer.blocking_write_and_flush(vec![b'y'; 4096].into()).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), permit as u64 + 4096);
}

/// Aim: no handle that was opened to read becomes one to write. Method: every function of an open file or directory that
/// changes it, which standard libraries don't call on such a handle.
#[tokio::test]
async fn handles_of_a_read_only_directory_change_nothing() {
    let (dir, path) = file();
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    let mut store = Store::new(dir.path(), true);
    let root = store.root();
    let file = store.open(root, "file.txt", DescriptorFlags::READ).await.unwrap();
    let now = || NewTimestamp::Now;
    assert_eq!(refusal(store.view().set_size(borrow(file), 0).await), ErrorCode::NotPermitted);
    assert_eq!(refusal(store.view().set_times(borrow(file), now(), now()).await), ErrorCode::NotPermitted);
    assert_eq!(refusal(store.view().set_times(borrow(root), now(), now()).await), ErrorCode::NotPermitted);
    assert_eq!(refusal(store.view().write(borrow(file), b"x".to_vec(), 0).await), ErrorCode::NotPermitted);
    assert_eq!(refusal(store.view().write_via_stream(borrow(file), 0)), ErrorCode::NotPermitted);
    assert_eq!(refusal(store.view().append_via_stream(borrow(file))), ErrorCode::NotPermitted);
    for flags in [DescriptorFlags::WRITE, DescriptorFlags::READ | DescriptorFlags::WRITE] {
        assert_eq!(refusal(store.open(root, "file.txt", flags).await), ErrorCode::NotPermitted);
    }
    // A directory below it, opened as one to change.
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    if let Ok(sub) = store.open(root, "sub", DescriptorFlags::READ | DescriptorFlags::MUTATE_DIRECTORY).await {
        let made = store.view().create_directory_at(borrow(sub), "made".to_owned()).await;
        assert_eq!(refusal(made), ErrorCode::NotPermitted);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "hello");
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), before);
}

#[tokio::test]
async fn a_listing_is_counted_by_its_names_and_counting_stops_at_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    for index in 0..100 {
        std::fs::write(dir.path().join(format!("{index:0100}")), "").unwrap();
    }
    let opened = File::open(dir.path()).unwrap();
    let entries = 100 * (ENTRY_BYTES + 100);
    // And `.` and `..`.
    assert_eq!(listing_bytes(&opened, u64::MAX).unwrap(), entries + 2 * ENTRY_BYTES + 3);
    let stopped = listing_bytes(&opened, 1000).unwrap();
    assert!(stopped > 1000 && stopped < 2000, "{stopped}");
}
