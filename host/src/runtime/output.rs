//! The guest's stdout, stderr and log: split in lines, made harmless, bounded, and handed to the console.

mod budget;

use super::limits::Limits;
use crate::handles::{Console, Level, Origin};
use crate::text::{escape, truncated};
use budget::Budget;
use bytes::Bytes;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;
use tokio::time::Instant;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// Lines of stderr kept for a trap report: a panic message and a short traceback.
const TAIL_LINES_MAX: usize = 20;

/// Bytes of one line of that tail; lines are for reading.
const TAIL_LINE_BYTES_MAX: usize = 1024;

/// What a line is charged beside its text, in bytes: what stands around it where it ends up (task, level, time, newline), in
/// a terminal, a file or a collector; as JSON about twice as much. Without it newlines alone would cost nothing and make
/// gigabytes.
const LINE_COST_BYTES: u64 = 64;

/// What one write may bring; the guest's library splits longer ones.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// Where a run's text goes. Cheap to clone; all clones share one budget.
#[derive(Clone)]
pub(super) struct Output {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    console: Arc<dyn Console>,
    line_bytes_max: usize,
    budget: Budget,
    /// Ends of lines that were cut.
    cut_bytes: u64,
    stdout: Line,
    stderr: Line,
    tail: VecDeque<String>,
}

/// A line that isn't complete yet.
#[derive(Default)]
struct Line {
    bytes: Vec<u8>,
    dropped_bytes: u64,
}

/// Which of the guest's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Output {
    pub(super) fn new(console: Arc<dyn Console>, limits: &Limits) -> Self {
        let shared = Shared {
            console,
            line_bytes_max: limits.output_line_bytes_max,
            budget: Budget::new(limits.output_bytes_max, limits.output_bytes_per_second_max, Instant::now()),
            cut_bytes: 0,
            stdout: Line::default(),
            stderr: Line::default(),
            tail: VecDeque::new(),
        };
        Output { shared: Arc::new(Mutex::new(shared)) }
    }

    /// The sink of one stream, for WASI.
    pub(super) fn sink(&self, stream: Stream) -> Sink {
        Sink { output: self.clone(), stream }
    }

    /// Takes bytes of a stream; complete lines go to the console at once.
    pub(super) fn write(&self, stream: Stream, bytes: &[u8]) {
        self.lock().write(stream, bytes);
    }

    /// Takes a log message, as long as a line may be; each of its lines goes to the console by itself, so that none can pose as another task's.
    pub(super) fn log(&self, level: Level, message: &str) {
        let mut shared = self.lock();
        // Nothing is written, so nothing is charged, and nothing that is shown makes room for it.
        if !shared.console.shows(Origin::Log(level)) {
            return;
        }
        let kept = truncated(message, shared.line_bytes_max);
        let cut_bytes = (message.len() - kept.len()) as u64;
        shared.cut_bytes += cut_bytes;
        let mut lines = kept.lines().peekable();
        while let Some(line) = lines.next() {
            let mut text = escape(line.as_bytes());
            if cut_bytes > 0 && lines.peek().is_none() {
                tell_cut(&mut text, cut_bytes);
            }
            shared.show(Origin::Log(level), &text);
        }
    }

    /// Shows what has no newline yet, and tells of dropped bytes, once.
    pub(super) fn finish(&self) {
        let mut shared = self.lock();
        shared.end_lines();
        let cut = std::mem::take(&mut shared.cut_bytes);
        let (mut notices, tail) = shared.budget.finish();
        if cut > 0 {
            notices.push(format!(
                "[dchost dropped {cut} bytes of lines above {} bytes (-W max-output-line)]",
                shared.line_bytes_max
            ));
        }
        for notice in &notices {
            shared.console.line(Origin::Stderr, notice);
        }
        for (origin, text) in &tail {
            shared.console.line(*origin, text);
        }
    }

    /// Shows what has no newline yet, since the guest that wrote it is gone; another one goes on within the same budget.
    pub(super) fn end_lines(&self) {
        self.lock().end_lines();
    }

    /// Forgets what was said last: it has nothing to do with what begins.
    pub(super) fn forget_tail(&self) {
        self.lock().tail.clear();
    }

    /// The last lines of stderr: what the guest said before it trapped.
    pub(super) fn tail(&self) -> Vec<String> {
        self.lock().tail.iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A console that panics leaves at most a line short, nothing inconsistent.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn line(&mut self, stream: Stream) -> &mut Line {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    fn write(&mut self, stream: Stream, mut bytes: &[u8]) {
        while let Some(newline) = bytes.iter().position(|&byte| byte == b'\n') {
            self.extend(stream, &bytes[..newline]);
            self.end_line(stream);
            bytes = &bytes[newline + 1..];
        }
        self.extend(stream, bytes);
    }

    fn extend(&mut self, stream: Stream, bytes: &[u8]) {
        let line_bytes_max = self.line_bytes_max;
        let line = self.line(stream);
        let kept = bytes.len().min(line_bytes_max.saturating_sub(line.bytes.len()));
        line.bytes.extend_from_slice(&bytes[..kept]);
        line.dropped_bytes += (bytes.len() - kept) as u64;
    }

    fn end_lines(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if !self.line(stream).bytes.is_empty() {
                self.end_line(stream);
            }
        }
    }

    fn end_line(&mut self, stream: Stream) {
        let line = std::mem::take(self.line(stream));
        let bytes = line.bytes.strip_suffix(b"\r").unwrap_or(&line.bytes);
        let mut text = escape(bytes);
        if line.dropped_bytes > 0 {
            tell_cut(&mut text, line.dropped_bytes);
            self.cut_bytes += line.dropped_bytes;
        }
        if stream == Stream::Stderr {
            if self.tail.len() == TAIL_LINES_MAX {
                self.tail.pop_front();
            }
            self.tail.push_back(truncated(&text, TAIL_LINE_BYTES_MAX).to_owned());
        }
        let origin = match stream {
            Stream::Stdout => Origin::Stdout,
            Stream::Stderr => Origin::Stderr,
        };
        self.show(origin, &text);
    }

    /// Shows a line, or keeps it for the end where a budget has no room. It costs what is written, not what the guest wrote:
    /// escapes are longer than what they stand for.
    fn show(&mut self, origin: Origin, text: &str) {
        let bytes = text.len() as u64 + LINE_COST_BYTES;
        match self.budget.charge(bytes, Instant::now()) {
            Ok(()) => self.console.line(origin, text),
            Err(over) => {
                if let Some(notice) = self.budget.keep(over, origin, bytes, text) {
                    self.console.line(Origin::Stderr, &notice);
                }
            }
        }
    }
}

/// Says at the end of a line how much of it is missing.
fn tell_cut(text: &mut String, bytes: u64) {
    // Writing to a string can't fail.
    let _ = write!(text, " [{bytes} bytes dropped]");
}

/// One stream of the guest.
pub(super) struct Sink {
    output: Output,
    stream: Stream,
}

impl IsTerminal for Sink {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Sink {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.output.sink(self.stream))
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.output.sink(self.stream))
    }
}

impl OutputStream for Sink {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.output.write(self.stream, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES_MAX)
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Sink {
    async fn ready(&mut self) {}
}

impl AsyncWrite for Sink {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.output.write(self.stream, bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::test_support::Recorder;
    use expect_test::{Expect, expect};

    fn check(limits: &Limits, writes: &[(Stream, &[u8])], expected: Expect) {
        let recorder = Arc::new(Recorder::default());
        let output = Output::new(recorder.clone(), limits);
        for &(stream, bytes) in writes {
            output.write(stream, bytes);
        }
        output.finish();
        expected.assert_eq(&recorder.text());
    }

    #[test]
    fn lines_are_joined_over_writes_and_last_words_are_flushed() {
        check(
            &Limits::default(),
            &[(Stream::Stdout, b"one\ntw"), (Stream::Stderr, b"warning\r\n"), (Stream::Stdout, b"o\n\nlast words")],
            expect![[r#"
                out: one
                err: warning
                out: two
                out: 
                out: last words
            "#]],
        );
    }

    #[test]
    fn control_characters_and_broken_utf8_show_as_escapes() {
        check(
            &Limits::default(),
            &[(Stream::Stdout, b"\x1b]0;owned\x07\ta\rb \xc2\x9b2J \xff\xfe \xe2\x80\xaeabc \xc3\xa4\n")],
            expect![[r#"
                out: \u{1b}]0;owned\u{7}	a\rb \u{9b}2J \xff\xfe \u{202e}abc ä
            "#]],
        );
    }

    #[test]
    fn long_lines_are_cut_and_the_next_is_whole() {
        check(
            &Limits { output_line_bytes_max: 4, ..Limits::default() },
            &[(Stream::Stdout, b"abcdef"), (Stream::Stdout, b"gh\nabcd\n")],
            expect![[r#"
                out: abcd [4 bytes dropped]
                out: abcd
                err: [dchost dropped 4 bytes of lines above 4 bytes (-W max-output-line)]
            "#]],
        );
    }

    #[test]
    fn output_beyond_the_budget_is_counted_and_told_once_and_the_tail_is_kept() {
        let recorder = Arc::new(Recorder::default());
        let output = Output::new(recorder.clone(), &Limits { output_bytes_max: 280, ..Limits::default() });
        for index in 0..100 {
            output.write(Stream::Stderr, format!("line {index}\n").as_bytes());
        }
        // All three share the budget.
        output.log(Level::Info, "the log");
        output.write(Stream::Stdout, b"done\n");
        output.finish();
        output.finish();
        expect![[r#"
            err: line 0
            err: line 1
            err: [dchost holds further output back: 280 bytes are nearly used up (-W max-output); the last lines are shown at the end]
            err: [dchost dropped 6950 bytes of output above 280 bytes (-W max-output); the last lines follow]
            info: the log
            out: done
        "#]]
        .assert_eq(&recorder.text());
        assert_eq!(output.tail().last().map(String::as_str), Some("line 99"));
    }

    #[tokio::test(start_paused = true)]
    async fn output_above_the_rate_is_dropped_until_the_second_has_passed() {
        let recorder = Arc::new(Recorder::default());
        let output = Output::new(recorder.clone(), &Limits { output_bytes_per_second_max: 145, ..Limits::default() });
        for line in ["first\n", "second\n", "third\n"] {
            output.write(Stream::Stdout, line.as_bytes());
        }
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        output.write(Stream::Stdout, b"fourth\n");
        output.log(Level::Warn, "fifth which is long");
        output.finish();
        expect![[r#"
            out: first
            out: second
            err: [dchost holds output back: it is above 145 bytes in a second (-W max-output-rate)]
            out: fourth
            err: [dchost dropped 69 bytes of output above 145 bytes in a second (-W max-output-rate); the last lines follow]
            warn: fifth which is long
        "#]]
        .assert_eq(&recorder.text());
    }

    /// Aim: what is charged is what is written. Method: lines that cost a guest next to nothing, within 100 lines' worth.
    #[tokio::test(start_paused = true)]
    async fn lines_cost_what_is_written_of_them() {
        let limits = Limits { output_bytes_max: 100 * LINE_COST_BYTES, ..Limits::default() };
        let shown = |write: &dyn Fn(&Output)| {
            let recorder = Arc::new(Recorder::default());
            let output = Output::new(recorder.clone(), &limits);
            write(&output);
            output.finish();
            recorder.text().lines().filter(|line| !line.contains("[dchost ")).map(str::len).collect::<Vec<_>>()
        };
        let newlines = [b'\n'; 1000];
        for stream in [Stream::Stdout, Stream::Stderr] {
            assert_eq!(shown(&|output| output.write(stream, &newlines)).len(), 100);
        }
        assert_eq!(shown(&|output| output.log(Level::Info, &"\n".repeat(1000))).len(), 100);
        // Shown as `\u{1b}`, six times as long.
        let escapes = shown(&|output| (0..1000).for_each(|_| output.write(Stream::Stdout, b"\x1b\x1b\x1b\x1b\n")));
        assert_eq!(escapes.len(), 2 * (50 * 64 / (64 + 24)));
        assert!(escapes.iter().all(|&len| len == "out: ".len() + 24));
        // Nothing is written of an empty message.
        assert_eq!(shown(&|output| (0..1000).for_each(|_| output.log(Level::Info, ""))).len(), 0);
    }

    #[test]
    fn a_log_that_nobody_sees_costs_nothing_and_displaces_nothing() {
        struct Quiet(Recorder);
        impl Console for Quiet {
            fn line(&self, origin: Origin, text: &str) {
                self.0.line(origin, text);
            }
            fn shows(&self, origin: Origin) -> bool {
                origin != Origin::Log(Level::Debug)
            }
            fn progress(&self, _: u64, _: Option<u64>, _: &str) {}
        }
        let console = Arc::new(Quiet(Recorder::default()));
        let output = Output::new(console.clone(), &Limits { output_bytes_max: 200, ..Limits::default() });
        for _ in 0..100 {
            output.log(Level::Debug, "step");
        }
        output.write(Stream::Stdout, b"one\ntwo\n");
        for _ in 0..100 {
            output.log(Level::Debug, "step");
        }
        output.finish();
        assert!(console.0.text().starts_with("out: one\n") && console.0.text().ends_with("out: two\n"));
    }

    #[test]
    fn log_lines_are_split_and_escaped() {
        let recorder = Arc::new(Recorder::default());
        let output = Output::new(recorder.clone(), &Limits::default());
        output.log(Level::Warn, "a\nworker:1 b\x1b[2J");
        assert_eq!(recorder.text(), "warn: a\nwarn: worker:1 b\\u{1b}[2J\n");
    }
}
