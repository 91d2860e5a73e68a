//! Standard output and error of a process, written by one thread, a whole line in one write.
//!
//! A guest that writes faster than anyone reads waits here, and so does its process at the end. dchost's own log lines never
//! wait: the threads that serve the cluster log, and a terminal that is stopped must not make a task look dead; beyond a bound
//! they are dropped and counted. A stream that its reader has closed swallows what comes, and the run goes on. So it does where
//! standard output can't be written (a full disk), but that is told, and what was lost is counted.

use super::Progress;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that may wait to be written before a guest has to wait: some hundred long lines.
const QUEUED_BYTES_MAX: usize = 4 << 20;
/// Bytes that may wait before log lines are dropped; twice as much, so that a flooding guest never costs a warning.
const QUEUED_BYTES_WITH_LOGS_MAX: usize = 2 * QUEUED_BYTES_MAX;

/// A standard stream of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output: data.
    Stdout,
    /// Standard error: all else.
    Stderr,
}

/// In which form progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgressMode {
    /// A bar for each task, on a terminal.
    Bars,
    /// A line every few seconds.
    Lines,
    /// An in-band event, for a launcher.
    Events,
}

impl ProgressMode {
    /// Bars where standard error is a terminal, else lines.
    pub fn of_stderr() -> Self {
        if io::stderr().is_terminal() { ProgressMode::Bars } else { ProgressMode::Lines }
    }
}

/// Where lines and progress go; cheap to clone. Its thread ends when the last clone is dropped.
#[derive(Clone)]
pub struct Screen {
    owner: Arc<Owner>,
}

struct Owner {
    shared: Arc<Shared>,
    mode: ProgressMode,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Signalled whenever the queue changed in either direction.
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A queue of lines is whole after every statement, so a panic elsewhere does no harm.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    /// Log lines that found no room since the last one that did.
    dropped: u64,
    /// Lines of standard output that aren't written yet.
    out_lines: u64,
    /// All that ever were to be.
    out_lines_ever: u64,
    /// Whether the thread is writing what it took.
    writing: bool,
    out_closed: bool,
    err_closed: bool,
    lost: Option<LostOutput>,
    closing: bool,
}

impl Queue {
    fn is_closed(&self, stream: Stream) -> bool {
        match stream {
            Stream::Stdout => self.out_closed,
            Stream::Stderr => self.err_closed,
        }
    }

    /// Takes a line for a closed stream.
    fn swallow(&mut self, stream: Stream) {
        if let (Stream::Stdout, Some(lost)) = (stream, &mut self.lost) {
            lost.lines += 1;
        }
    }

    fn push(&mut self, item: Item) {
        self.bytes += item.bytes();
        self.out_lines += u64::from(item.is_output());
        self.out_lines_ever += u64::from(item.is_output());
        self.items.push_back(item);
    }
}

/// Lines of standard output that could not be written, other than since its reader has gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostOutput {
    /// How many.
    pub lines: u64,
    /// What the system said to the first.
    pub reason: String,
}

impl fmt::Display for LostOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostOutput { lines, reason } = self;
        let lines_are = if *lines == 1 { "line is" } else { "lines are" };
        write!(f, "standard output can't be written: {reason}; {lines} {lines_are} lost")
    }
}

enum Item {
    Line(Stream, Vec<u8>),
    Bar(String, Progress),
    EndBars,
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Item::Line(_, line) => line.len(),
            Item::Bar(name, progress) => name.len() + progress.note.len(),
            Item::EndBars => 0,
        }
    }

    fn is_output(&self) -> bool {
        matches!(self, Item::Line(Stream::Stdout, _))
    }
}

impl Screen {
    /// Makes the screen of this process: its standard output and error.
    pub fn of_process(mode: ProgressMode) -> Self {
        Screen::over(Box::new(io::stdout()), Box::new(io::stderr()), mode)
    }

    /// Makes a screen over two writers.
    pub fn over(out: Box<dyn Write + Send>, err: Box<dyn Write + Send>, mode: ProgressMode) -> Self {
        let shared = Arc::new(Shared::default());
        let writer = Writer { shared: shared.clone(), out, err, bars: (mode == ProgressMode::Bars).then(Bars::new) };
        let spawned = thread::Builder::new().name("console".to_owned()).spawn(move || writer.run());
        if spawned.is_err() {
            // A process that cannot start one thread cannot run a guest either; it will say so where it matters.
            let mut queue = shared.lock();
            (queue.out_closed, queue.err_closed) = (true, true);
        }
        Screen { owner: Arc::new(Owner { shared, mode }) }
    }

    /// In which form progress is shown.
    pub fn progress_mode(&self) -> ProgressMode {
        self.owner.mode
    }

    /// Writes a line (without its newline), whole; waits while too much is unwritten. A closed stream swallows it.
    pub fn line(&self, stream: Stream, line: Vec<u8>) {
        let shared = &self.owner.shared;
        let mut queue = shared.lock();
        while queue.bytes > QUEUED_BYTES_MAX && !queue.is_closed(stream) {
            queue = shared.wait(queue);
        }
        if queue.is_closed(stream) {
            queue.swallow(stream);
        } else {
            queue.push(Item::Line(stream, line));
            shared.changed.notify_all();
        }
    }

    /// Writes a line of dchost's own log; never waits. Where there is no room it is dropped, and that is told later.
    pub fn log_line(&self, stream: Stream, line: Vec<u8>) {
        let mut queue = self.owner.shared.lock();
        if queue.bytes > QUEUED_BYTES_WITH_LOGS_MAX {
            queue.dropped += 1;
            return;
        }
        if queue.dropped > 0 {
            let note = format!("{} log lines were dropped here: nobody read them fast enough", queue.dropped);
            queue.dropped = 0;
            queue.push(Item::Line(stream, note.into_bytes()));
        }
        queue.push(Item::Line(stream, line));
        self.owner.shared.changed.notify_all();
    }

    /// Moves the bar of the task `name`; never waits. No bars, no effect.
    pub fn bar(&self, name: &str, progress: Progress) {
        let mut queue = self.owner.shared.lock();
        if queue.bytes <= QUEUED_BYTES_MAX {
            queue.push(Item::Bar(name.to_owned(), progress));
            self.owner.shared.changed.notify_all();
        }
    }

    /// Takes the bars off the terminal, so that lasting text can follow.
    pub fn end_bars(&self) {
        self.owner.shared.lock().push(Item::EndBars);
        self.owner.shared.changed.notify_all();
    }

    /// What standard output has lost so far; ask after [`flush`](Self::flush).
    pub fn lost(&self) -> Option<LostOutput> {
        self.owner.shared.lock().lost.clone()
    }

    /// Waits until everything is written, at most `timeout`; returns whether it is.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.wait_until(timeout, |queue| !queue.writing && queue.items.is_empty())
    }

    /// Waits until all of standard output is written, at most `timeout`; returns whether it is.
    pub fn flush_output(&self, timeout: Duration) -> bool {
        self.wait_until(timeout, |queue| queue.out_lines == 0)
    }

    /// How many lines of standard output there have been, written or not.
    pub fn output_lines(&self) -> u64 {
        self.owner.shared.lock().out_lines_ever
    }

    fn wait_until(&self, timeout: Duration, done: impl Fn(&Queue) -> bool) -> bool {
        let deadline = Instant::now() + timeout;
        let shared = &self.owner.shared;
        let mut queue = shared.lock();
        while !done(&queue) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            queue = shared.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// The screen's thread.
struct Writer {
    shared: Arc<Shared>,
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    bars: Option<Bars>,
}

impl Writer {
    fn run(mut self) {
        loop {
            let mut queue = self.shared.lock();
            queue.writing = false;
            self.shared.changed.notify_all();
            while queue.items.is_empty() {
                if queue.closing {
                    return;
                }
                queue = self.shared.wait(queue);
            }
            let items = std::mem::take(&mut queue.items);
            queue.writing = true;
            drop(queue);
            for item in items {
                let (bytes, is_output) = (item.bytes(), item.is_output());
                self.show(item);
                // Given back line by line: a writer that waits goes on as soon as there is room.
                let mut queue = self.shared.lock();
                queue.bytes -= bytes;
                queue.out_lines -= u64::from(is_output);
                drop(queue);
                self.shared.changed.notify_all();
            }
        }
    }

    fn show(&mut self, item: Item) {
        match item {
            Item::Line(stream, mut line) => {
                {
                    let mut queue = self.shared.lock();
                    if queue.is_closed(stream) {
                        queue.swallow(stream);
                        return;
                    }
                }
                line.push(b'\n');
                let writer = match stream {
                    Stream::Stdout => &mut self.out,
                    Stream::Stderr => &mut self.err,
                };
                let mut write = || writer.write_all(&line).and_then(|()| writer.flush());
                let written = match &self.bars {
                    Some(bars) => bars.multi.suspend(write),
                    None => write(),
                };
                if let Err(error) = written {
                    self.close(stream, &error);
                }
            }
            Item::Bar(name, progress) => {
                if let Some(bars) = &mut self.bars {
                    bars.show(name, &progress);
                }
            }
            Item::EndBars => {
                if let Some(bars) = &mut self.bars {
                    bars.end();
                }
            }
        }
    }
}

impl Writer {
    /// Writes no more to a stream that failed. The run goes on: a job need not end since nobody has its output.
    fn close(&self, stream: Stream, error: &io::Error) {
        let mut queue = self.shared.lock();
        match stream {
            Stream::Stderr => queue.err_closed = true,
            Stream::Stdout => {
                queue.out_closed = true;
                // A reader that has gone has seen enough.
                if error.kind() != io::ErrorKind::BrokenPipe {
                    queue.lost = Some(LostOutput { lines: 1, reason: error.to_string() });
                    drop(queue);
                    tracing::warn!(
                        "standard output can't be written: {error}; what the guest prints is lost from here on"
                    );
                }
            }
        }
    }
}

/// The bars of a terminal, one for each task that told its progress.
struct Bars {
    multi: MultiProgress,
    bars: BTreeMap<String, ProgressBar>,
}

impl Bars {
    fn new() -> Self {
        Bars { multi: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()), bars: BTreeMap::new() }
    }

    fn show(&mut self, name: String, progress: &Progress) {
        let known = "{prefix:>12} [{bar:30}] {pos}/{len} {wide_msg}";
        let unknown = "{prefix:>12} {pos} {wide_msg}";
        let template = if progress.total.is_some() { known } else { unknown };
        let style = ProgressStyle::with_template(template).expect("the templates are constants that parse");
        let style = style.progress_chars("=> ");
        let bar = self.bars.entry(name).or_insert_with_key(|name| {
            // Styled before it is added, because every later change draws it.
            let bar = ProgressBar::with_draw_target(progress.total, ProgressDrawTarget::hidden());
            self.multi.add(bar.with_style(style.clone()).with_prefix(name.clone()))
        });
        bar.set_style(style);
        match progress.total {
            Some(total) => bar.set_length(total),
            None => bar.unset_length(),
        }
        bar.set_message(progress.note.clone());
        bar.set_position(progress.done);
    }

    fn end(&mut self) {
        for (_, bar) in std::mem::take(&mut self.bars) {
            bar.finish_and_clear();
            self.multi.remove(&bar);
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Screens whose output a test can read.

    use super::*;

    /// A buffer that a screen writes to.
    #[derive(Clone, Default)]
    pub(crate) struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Sink {
        /// What was written.
        pub(crate) fn text(&self) -> String {
            String::from_utf8_lossy(&self.0.lock().expect("no test panics while it writes")).into_owned()
        }
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no test panics while it writes").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A screen and what it writes to.
    pub(crate) struct Captured {
        /// The screen.
        pub(crate) screen: Screen,
        /// Its standard output.
        pub(crate) out: Sink,
        /// Its standard error.
        pub(crate) err: Sink,
    }

    /// Makes a screen that a test can read.
    pub(crate) fn captured(mode: ProgressMode) -> Captured {
        let (out, err) = (Sink::default(), Sink::default());
        let screen = Screen::over(Box::new(out.clone()), Box::new(err.clone()), mode);
        Captured { screen, out, err }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::captured;
    use super::*;
    use std::sync::mpsc;

    const PATIENCE: Duration = Duration::from_secs(60);

    struct Closed(io::ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Writes nothing until the test says so.
    struct Stopped(mpsc::Receiver<()>, testing::Sink);

    impl Write for Stopped {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // A dropped sender opens the stream for good.
            let _ = self.0.recv();
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_of_many_threads_stay_whole() {
        let captured = captured(ProgressMode::Lines);
        thread::scope(|scope| {
            for name in ["worker:0", "worker:1", "worker:2"] {
                let screen = captured.screen.clone();
                scope.spawn(move || {
                    for count in 0..1000 {
                        screen.line(Stream::Stdout, format!("{name} {count} {}", "x".repeat(count % 90)).into_bytes());
                    }
                });
            }
        });
        assert!(captured.screen.flush(PATIENCE));
        let mut next = BTreeMap::new();
        for line in captured.out.text().lines() {
            let [name, count, xs] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("torn: {line}") };
            let count: usize = count.parse().expect("whole lines have a number");
            assert_eq!(xs.len(), count % 90, "{line}");
            let expected = next.entry(name.to_owned()).or_insert(0);
            assert_eq!(count, *expected, "the order of one thread is kept");
            *expected += 1;
        }
        assert_eq!(next.values().collect::<Vec<_>>(), [&1000, &1000, &1000]);
    }

    #[test]
    fn a_closed_pipe_swallows_lines_and_the_other_stream_goes_on() {
        let err = testing::Sink::default();
        let closed = Closed(io::ErrorKind::BrokenPipe);
        let screen = Screen::over(Box::new(closed), Box::new(err.clone()), ProgressMode::Lines);
        for _ in 0..200 {
            // More than the queue holds: a stream that nobody reads must not stop the run.
            screen.line(Stream::Stdout, vec![b'x'; 64 << 10]);
        }
        screen.line(Stream::Stderr, b"still here".to_vec());
        assert!(screen.flush(PATIENCE));
        assert_eq!(err.text(), "still here\n");
        assert_eq!(screen.lost(), None, "nobody wants to know");
    }

    #[test]
    fn what_a_full_disk_loses_is_counted() {
        for lines in [1, 300] {
            let full = Closed(io::ErrorKind::StorageFull);
            let screen = Screen::over(Box::new(full), Box::new(io::sink()), ProgressMode::Lines);
            for _ in 0..lines {
                screen.line(Stream::Stdout, vec![b'x'; 64 << 10]);
            }
            assert!(screen.flush(PATIENCE));
            assert_eq!(screen.lost().map(|lost| lost.lines), Some(lines));
        }
        let screen =
            Screen::over(Box::new(io::sink()), Box::new(Closed(io::ErrorKind::StorageFull)), ProgressMode::Lines);
        screen.line(Stream::Stderr, b"x".to_vec());
        assert!(screen.flush(PATIENCE));
        assert_eq!(screen.lost(), None, "standard error isn't data");
    }

    #[test]
    fn output_is_waited_for_and_a_stuck_log_is_not() {
        let (open, gate) = mpsc::channel();
        let out = testing::Sink::default();
        let stopped = Stopped(gate, out.clone());
        let screen = Screen::over(Box::new(stopped), Box::new(io::sink()), ProgressMode::Lines);
        screen.line(Stream::Stdout, b"data".to_vec());
        assert!(!screen.flush_output(Duration::from_millis(20)), "nobody reads it yet");
        drop(open);
        assert!(screen.flush_output(PATIENCE));
        assert_eq!(out.text(), "data\n");

        let (_open, gate) = mpsc::channel();
        let stopped = Stopped(gate, testing::Sink::default());
        let screen = Screen::over(Box::new(io::sink()), Box::new(stopped), ProgressMode::Lines);
        screen.line(Stream::Stdout, b"data".to_vec());
        assert!(screen.flush_output(PATIENCE));
        screen.log_line(Stream::Stderr, b"log".to_vec());
        assert!(screen.flush_output(PATIENCE));
        assert!(!screen.flush(Duration::from_millis(20)));
    }

    /// Aim: log lines never wait for a terminal that is stopped, and flush gives up in time.
    /// Method: a stderr that blocks; log far beyond the bound; then open it and see what was said about the rest.
    #[test]
    fn log_lines_never_wait_and_their_loss_is_told() {
        let (open, gate) = mpsc::channel();
        let err = testing::Sink::default();
        let stopped = Stopped(gate, err.clone());
        let screen = Screen::over(Box::new(io::sink()), Box::new(stopped), ProgressMode::Lines);
        for _ in 0..200 {
            screen.log_line(Stream::Stderr, vec![b'x'; 64 << 10]);
        }
        assert!(!screen.flush(Duration::from_millis(20)), "nothing can be written yet");
        drop(open);
        assert!(screen.flush(PATIENCE));
        screen.log_line(Stream::Stderr, b"after".to_vec());
        assert!(screen.flush(PATIENCE));
        let text = err.text();
        let last: Vec<_> = text.lines().rev().take(2).collect();
        assert_eq!(last[0], "after");
        assert!(last[1].contains("log lines were dropped here"), "{}", last[1]);
    }
}
