//! A run's scalars as JSON lines in a file: `{"step":3,"tag":"loss","value":0.25,"wall_time":1700000000.5}`.
//!
//! Each task that should save summaries appends to its own file, `worker-0.jsonl`, so that nobody shares one. Values that
//! JSON has no number for are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.

use crate::context::WorkerContext;
use crate::handles::Summary;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::oneshot;

/// Most different tags of one run: what is kept to recognise them stays below a few MiB.
pub const TAGS_MAX: usize = 10_000;
/// Bytes of one run's values, at most: more than ten million of them, so that a guest that never stops fills no disk.
const RUN_BYTES_MAX: u64 = 1 << 30;
/// How long a value may wait in memory before it reaches the file, so that one can follow a run.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Lines that may wait for the disk before a guest has to.
const QUEUED_LINES_MAX: usize = 4096;

/// The summary file could not be written; the process exits with 74.
#[derive(Debug, thiserror::Error)]
#[error("cannot write summaries to `{}` (--summary-dir)", .path.display())]
pub struct SummaryError {
    /// The file or directory.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// The summary file of one run; takes nothing where the run should not save summaries or no directory is given.
pub struct SummaryFile {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    writer: Option<Writer>,
    /// What is left of [`RUN_BYTES_MAX`].
    bytes_left: u64,
    /// Values that found no room in it.
    dropped: u64,
    tags: HashSet<String>,
    warned_many: bool,
}

struct Writer {
    lines: SyncSender<String>,
    /// What became of the file; comes when the writing thread ends.
    written: oneshot::Receiver<Result<(), SummaryError>>,
}

impl SummaryFile {
    /// Opens a file for appending, and makes the directory where it is missing. `name` is the run's, as it prints: `worker:0`
    /// is `worker-0.jsonl`. Without a directory, or where the context should not save summaries, nothing is opened.
    ///
    /// # Errors
    /// The directory cannot be made or the file not opened: better told before the run than after it.
    ///
    /// # Source
    /// `should_save_summary` of TensorFlow's `distribute_coordinator.py` decides who saves; the file format is dchost's.
    pub fn open(dir: Option<&Path>, context: &WorkerContext, name: &str) -> Result<Self, SummaryError> {
        let Some(dir) = dir.filter(|_| context.should_save_summary()) else {
            return Ok(SummaryFile { state: Mutex::default() });
        };
        let path = dir.join(format!("{}.jsonl", name.replace(':', "-")));
        let file = open_append(dir, &path).map_err(|source| SummaryError { path: path.clone(), source })?;
        SummaryFile::writing_to(file, path)
    }

    fn writing_to(file: impl Write + Send + 'static, path: PathBuf) -> Result<Self, SummaryError> {
        let (lines, received) = mpsc::sync_channel(QUEUED_LINES_MAX);
        let (ended, written) = oneshot::channel();
        let at = path.clone();
        // The guest's thread must not wait for a slow disk, and somebody has to flush while the guest computes.
        thread::Builder::new()
            .name("summary".to_owned())
            .spawn(move || {
                let result = write_lines(file, &received).map_err(|source| {
                    let error = SummaryError { path: at, source };
                    tracing::error!("{error}: {}; later values are lost", error.source);
                    error
                });
                // Senders that wait for room are told first.
                drop(received);
                // Nobody may wait any more.
                let _ = ended.send(result);
            })
            .map_err(|source| SummaryError { path, source })?;
        let state = State { writer: Some(Writer { lines, written }), bytes_left: RUN_BYTES_MAX, ..State::default() };
        Ok(SummaryFile { state: Mutex::new(state) })
    }

    /// Writes what is left and closes the file; takes as long as the disk does. Later values are dropped; a second call finds
    /// nothing to do.
    ///
    /// # Errors
    /// A write failed, now or earlier (then it was logged once when it happened).
    ///
    /// # Cancel safety
    /// Dropping it leaves the writing to its thread; nobody hears how it went.
    pub async fn finish(&self) -> Result<(), SummaryError> {
        let (writer, dropped) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.writer.take(), std::mem::take(&mut state.dropped))
        };
        let Some(Writer { lines, written }) = writer else { return Ok(()) };
        if dropped > 0 {
            tracing::warn!("dropped {dropped} summary values: {}", too_many_bytes());
        }
        drop(lines);
        // The writing thread has no code that panics; should it, nothing more is known.
        written.await.unwrap_or(Ok(()))
    }

    /// Whether and where a value goes: bounds the number of tags. Their length is bounded by who calls, see [`Summary`].
    fn admit(&self, tag: &str) -> Option<SyncSender<String>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let writer = state.writer.as_ref()?;
        if !state.tags.contains(tag) {
            if state.tags.len() >= TAGS_MAX {
                if !std::mem::replace(&mut state.warned_many, true) {
                    tracing::warn!(
                        "dropped values of summary tag `{tag}`: a run has at most {TAGS_MAX} different tags"
                    );
                }
                return None;
            }
            state.tags.insert(tag.to_owned());
        }
        Some(writer.lines.clone())
    }

    /// Counts a line; says whether there is room for it.
    fn spend(&self, bytes: u64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Once passed, it stays so: no shorter line slips through, and a series ends where it ends.
        match state.bytes_left.checked_sub(bytes).filter(|_| state.dropped == 0) {
            Some(left) => {
                state.bytes_left = left;
                true
            }
            None => {
                if state.dropped == 0 {
                    tracing::warn!("dropping summary values from now on: {}", too_many_bytes());
                }
                state.dropped += 1;
                false
            }
        }
    }
}

fn too_many_bytes() -> String {
    format!("a run writes at most {} GiB of them", RUN_BYTES_MAX >> 30)
}

impl Summary for SummaryFile {
    fn scalar(&self, tag: &str, step: u64, value: f64) {
        // Without the lock: a guest may have to wait here for the disk, and nobody for the guest.
        let Some(lines) = self.admit(tag) else { return };
        let line = as_line(tag, step, value, SystemTime::now());
        if self.spend(line.len() as u64) {
            // A failed writer has gone and has said why; its error comes out of `finish`.
            let _ = lines.send(line);
        }
    }
}

fn as_line(tag: &str, step: u64, value: f64, now: SystemTime) -> String {
    let number = match value {
        value if value.is_finite() => json!(value),
        value if value.is_nan() => Value::from("NaN"),
        value if value > 0.0 => Value::from("Infinity"),
        _ => Value::from("-Infinity"),
    };
    let wall_time = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut line = json!({"step": step, "tag": tag, "value": number, "wall_time": wall_time}).to_string();
    line.push('\n');
    line
}

fn write_lines(file: impl Write, lines: &Receiver<String>) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    let mut flush_at: Option<Instant> = None;
    loop {
        let received = match flush_at {
            None => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => lines.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match received {
            Ok(line) => {
                file.write_all(line.as_bytes())?;
                let at = *flush_at.get_or_insert_with(|| Instant::now() + FLUSH_INTERVAL);
                if at <= Instant::now() {
                    file.flush()?;
                    flush_at = None;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                file.flush()?;
                flush_at = None;
            }
            Err(RecvTimeoutError::Disconnected) => return file.flush(),
        }
    }
}

fn open_append(dir: &Path, path: &Path) -> io::Result<File> {
    fs::create_dir_all(dir)?;
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    // A process that was killed may have left half a line; what follows must not be glued to it.
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != [b'\n'] {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ClusterSpec, Task, TaskType};

    fn context(task: Option<Task>, is_chief: bool) -> WorkerContext {
        WorkerContext {
            cluster: ClusterSpec::new(),
            task,
            master_target: "local".to_owned(),
            num_workers: 1,
            is_chief,
            distributed_mode: false,
            has_barrier: false,
        }
    }

    fn lines(path: &Path) -> Vec<Value> {
        let text = fs::read_to_string(path).expect("the file is there");
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }

    #[tokio::test]
    async fn scalars_are_json_lines_in_the_tasks_own_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let deep = dir.path().join("runs/7");
        let summary = SummaryFile::open(Some(&deep), &context(Some(Task::new(TaskType::Worker, 0)), true), "worker:0")
            .expect("open");
        summary.scalar("loss", 1, 0.25);
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            summary.scalar("a \"tag\"", u64::MAX, value);
        }
        summary.finish().await.expect("written");
        summary.scalar("loss", 2, 0.5);
        summary.finish().await.expect("a second end finds nothing to do");

        let lines = lines(&deep.join("worker-0.jsonl"));
        let values: Vec<_> = lines.iter().map(|line| (&line["tag"], &line["step"], &line["value"])).collect();
        let expected = [
            (json!("loss"), json!(1), json!(0.25)),
            (json!("a \"tag\""), json!(u64::MAX), json!("NaN")),
            (json!("a \"tag\""), json!(u64::MAX), json!("Infinity")),
            (json!("a \"tag\""), json!(u64::MAX), json!("-Infinity")),
        ];
        assert_eq!(values, expected.iter().map(|(tag, step, value)| (tag, step, value)).collect::<Vec<_>>());
        assert!(lines.iter().all(|line| line["wall_time"].as_f64().is_some_and(|time| time > 1.6e9)));
    }

    #[tokio::test]
    async fn only_who_should_save_saves() {
        let dir = tempfile::tempdir().expect("a directory");
        for (given, is_chief) in [(None, true), (Some(dir.path()), false)] {
            let summary = SummaryFile::open(given, &context(None, is_chief), "local").expect("nothing to open");
            summary.scalar("loss", 0, 1.0);
            summary.finish().await.expect("nothing to write");
        }
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }

    #[tokio::test]
    async fn a_torn_last_line_of_an_earlier_run_stays_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("local.jsonl");
        fs::write(&path, "{\"step\":1}\n{\"st").expect("write");
        let summary = SummaryFile::open(Some(dir.path()), &context(None, true), "local").expect("open");
        summary.scalar("loss", 2, 1.0);
        summary.finish().await.expect("written");
        let text = fs::read_to_string(&path).expect("read");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], ["{\"step\":1}", "{\"st"]);
        assert!(lines[2].starts_with("{\"step\":2,"), "{text}");
    }

    #[tokio::test]
    async fn tags_are_bounded_in_number() {
        let dir = tempfile::tempdir().expect("a directory");
        let summary = SummaryFile::open(Some(dir.path()), &context(None, true), "local").expect("open");
        for count in 0..TAGS_MAX + 10 {
            summary.scalar(&format!("tag{count}"), 0, 0.0);
        }
        summary.scalar("tag0", 1, 0.0);
        summary.finish().await.expect("written");
        let lines = lines(&dir.path().join("local.jsonl"));
        assert_eq!(lines.len(), TAGS_MAX + 1);
        assert_eq!(lines[TAGS_MAX]["tag"], "tag0", "known tags go on");
    }

    #[tokio::test]
    async fn values_are_bounded_in_bytes() {
        let dir = tempfile::tempdir().expect("a directory");
        let summary = SummaryFile::open(Some(dir.path()), &context(None, true), "local").expect("open");
        assert_eq!(summary.state.lock().expect("no panic").bytes_left, RUN_BYTES_MAX);
        summary.state.lock().expect("no panic").bytes_left = 1000;
        for step in 0..100 {
            summary.scalar("loss", step, 0.5);
        }
        assert!(summary.state.lock().expect("no panic").dropped > 80);
        summary.finish().await.expect("written");
        let path = dir.path().join("local.jsonl");
        assert!((900..=1000).contains(&fs::metadata(&path).expect("it is there").len()));
        let steps: Vec<_> = lines(&path).iter().map(|line| line["step"].as_u64()).collect();
        assert_eq!(steps, (0..steps.len() as u64).map(Some).collect::<Vec<_>>(), "the first ones, each whole");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_told_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("write");
        let error = SummaryFile::open(Some(&file.join("under")), &context(None, true), "local")
            .err()
            .expect("a file is no directory");
        assert!(error.to_string().contains("local.jsonl"), "{error}");
        assert!(error.to_string().contains("--summary-dir"), "{error}");
    }

    /// Takes some bytes, then is full.
    struct FullDisk(usize);

    impl Write for FullDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_full_disk_fails_the_end_and_never_blocks_the_guest() {
        let summary = SummaryFile::writing_to(FullDisk(20_000), PathBuf::from("full.jsonl")).expect("a thread");
        for step in 0..3 * QUEUED_LINES_MAX as u64 {
            summary.scalar("loss", step, 0.5);
        }
        let error = summary.finish().await.expect_err("the disk is full");
        assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("full.jsonl"), "{error}");
    }

    /// Aim: a guest that waits for a hung disk keeps nobody else waiting.
    #[tokio::test(start_paused = true)]
    async fn a_waiting_guest_does_not_hold_up_the_end() {
        let testing::HungDisk { summary, release } = testing::hung();
        let summary = std::sync::Arc::new(summary);
        let (sent, count) = mpsc::channel();
        let guest = thread::spawn({
            let summary = summary.clone();
            move || {
                for step in 0..3 * QUEUED_LINES_MAX as u64 {
                    summary.scalar("loss", step, 0.5);
                    let _ = sent.send(());
                }
            }
        });
        for _ in 0..QUEUED_LINES_MAX {
            count.recv_timeout(Duration::from_secs(60)).expect("there is room for as many");
        }
        let finish = tokio::time::timeout(Duration::from_secs(1), summary.finish()).await;
        assert!(finish.is_err(), "the disk hangs, but this test goes on");
        drop(release);
        guest.join().expect("it goes on when the disk does");
    }
}

/// A disk that hangs.
#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// A summary file whose writes wait.
    pub(crate) struct HungDisk {
        pub(crate) summary: SummaryFile,
        /// Dropped, it lets writes go on.
        pub(crate) release: mpsc::Sender<()>,
    }

    struct Waits(Receiver<()>);

    impl Write for Waits {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // It ends when the other end is dropped; nothing is ever sent.
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Makes the file of a disk that hangs.
    pub(crate) fn hung() -> HungDisk {
        let (release, waits) = mpsc::channel();
        let summary = SummaryFile::writing_to(Waits(waits), PathBuf::from("hung.jsonl")).expect("a thread");
        HungDisk { summary, release }
    }
}
