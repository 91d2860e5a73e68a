//! A process's output: the guest's lines, dchost's own log lines, and progress, each line whole and with its task.
//!
//! Guest standard output goes to the process's standard output; all else goes to standard error. Everything passes
//! one [`Screen`], so that no two lines tear each other. In a child of `dchost launch` lines carry no prefix (the
//! launcher adds it) and progress travels as [`Event`]s, which a guest cannot forge: `runtime` escapes control
//! characters before they get here, and an event starts with one.

mod event;
mod line;
mod progress;
mod screen;

pub use event::{EVENT_BYTE, Event};
pub use line::json_line;
pub use progress::{Progress, ProgressView};
pub use screen::{LostOutput, ProgressMode, Screen, Stream};

#[cfg(test)]
pub(crate) use screen::testing;

use crate::cluster::Task;
use crate::context::WorkerContext;
use crate::handles::{Console, Level, Origin};
use crate::text::{escaped, escaped_json};
use std::io;
use std::sync::{Arc, OnceLock};

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LineFormat {
    /// For people: `worker:0 | text`.
    #[default]
    Text,
    /// For machines: one JSON object a line, the task inside.
    Json,
}

/// What a process's console needs to know.
#[derive(Clone, Debug)]
pub struct ConsoleOptions {
    /// This process's task; none in a local run, whose lines carry no prefix.
    pub task: Option<Task>,
    /// How lines look.
    pub format: LineFormat,
    /// Whether `dchost launch` reads the output: no prefix, and progress as events.
    pub launched: bool,
    /// The least severity of guest log lines that is shown.
    pub level: Level,
}

impl Default for ConsoleOptions {
    fn default() -> Self {
        ConsoleOptions { task: None, format: LineFormat::Text, launched: false, level: Level::Info }
    }
}

/// The console of one process; cheap to clone. Meets [`Console`] for the guest, and makes log writers for tracing.
#[derive(Clone)]
pub struct ProcessConsole {
    shared: Arc<Shared>,
}

struct Shared {
    screen: Screen,
    options: ConsoleOptions,
    /// The task as it prints; empty in a local run.
    name: String,
    /// What stands before each text line.
    prefix: String,
    progress: ProgressView,
}

impl ProcessConsole {
    /// Makes the console of this process over its standard output and error.
    ///
    /// Progress is an event in a launched child, a bar where standard error is a terminal and lines are text, else a
    /// line every few seconds.
    pub fn new(options: ConsoleOptions) -> Self {
        let mode = match (options.launched, options.format) {
            (true, _) => ProgressMode::Events,
            // A bar among objects would be no JSON.
            (false, LineFormat::Json) => ProgressMode::Lines,
            (false, LineFormat::Text) => ProgressMode::of_stderr(),
        };
        ProcessConsole::on(Screen::of_process(mode), options)
    }

    /// Makes a console that writes to `screen`.
    pub fn on(screen: Screen, options: ConsoleOptions) -> Self {
        let name = options.task.map(|task| task.to_string()).unwrap_or_default();
        let prefix = if options.launched || name.is_empty() { String::new() } else { format!("{name} | ") };
        let progress = ProgressView::new(screen.clone(), name.clone(), prefix.clone(), options.format);
        ProcessConsole { shared: Arc::new(Shared { screen, options, name, prefix, progress }) }
    }

    /// The console of one of several runs in this process: the same screen, and lines that say whose they are.
    pub fn of_run(&self, task: Task) -> Self {
        let options = ConsoleOptions { task: Some(task), ..self.shared.options.clone() };
        let (screen, name, prefix) = (self.shared.screen.clone(), task.to_string(), format!("{task} | "));
        let progress = ProgressView::of_run(screen.clone(), task, prefix.clone(), options.format);
        ProcessConsole { shared: Arc::new(Shared { screen, options, name, prefix, progress }) }
    }

    /// The screen that this console writes to.
    pub fn screen(&self) -> &Screen {
        &self.shared.screen
    }

    /// A writer for dchost's own log lines, for `tracing_subscriber::fmt().with_writer(...)`.
    ///
    /// Each event must arrive in one `write`, as tracing-subscriber does it. Writing never blocks and never fails:
    /// threads that serve the cluster log too, and must not wait for a terminal.
    pub fn log_writer(&self) -> LogWriter {
        LogWriter { shared: self.shared.clone() }
    }

    /// Shows why the process ends: `error: ` and the message, line by line.
    pub fn error(&self, message: &str) {
        let Shared { screen, options, name, prefix, .. } = &*self.shared;
        let line = |text: &str| match options.format {
            LineFormat::Json => json_line(name, Level::Error, None, text),
            LineFormat::Text => format!("{prefix}{text}"),
        };
        match options.format {
            // Never waiting: a process must be able to end although nobody reads what it prints.
            LineFormat::Json => screen.log_line(Stream::Stderr, line(message).into_bytes()),
            LineFormat::Text => {
                for (index, text) in message.lines().enumerate() {
                    let text = escaped(text);
                    let text = if index == 0 { format!("error: {text}") } else { format!("  {text}") };
                    screen.log_line(Stream::Stderr, line(&text).into_bytes());
                }
            }
        }
    }

    /// Waits until everything is written, at most `timeout`; returns whether it is. Call it before the process exits.
    pub fn flush(&self, timeout: std::time::Duration) -> bool {
        self.shared.screen.end_bars();
        self.shared.screen.flush(timeout)
    }
}

impl Console for ProcessConsole {
    fn line(&self, origin: Origin, text: &str) {
        let Shared { screen, options, name, prefix, .. } = &*self.shared;
        let (stream, level) = match origin {
            Origin::Stdout => (Stream::Stdout, Level::Info),
            Origin::Stderr => (Stream::Stderr, Level::Info),
            Origin::Log(_) if !self.shows(origin) => return,
            Origin::Log(level) => (Stream::Stderr, level),
        };
        // The runtime has escaped the text already; a second look costs little and keeps events unforgeable.
        let text = escaped(text);
        let line = match (options.format, origin) {
            (LineFormat::Json, _) => json_line(name, level, Some(origin), &text),
            (LineFormat::Text, Origin::Log(level)) => format!("{prefix}{} {text}", line::level_name(level)),
            (LineFormat::Text, _) => format!("{prefix}{text}"),
        };
        screen.line(stream, line.into_bytes());
    }

    fn shows(&self, origin: Origin) -> bool {
        !matches!(origin, Origin::Log(level) if level < self.shared.options.level)
    }

    fn progress(&self, done: u64, total: Option<u64>, note: &str) {
        self.shared.progress.show(&Progress { done, total, note: escaped(note).into_owned() });
    }
}

/// The consoles of the runs of one process. A closure that makes one is enough.
pub trait Consoles: Send + Sync {
    /// The console of the run with this context; asked for once, before anything is started.
    fn console(&self, context: &WorkerContext) -> Arc<dyn Console>;
}

impl<F: Fn(&WorkerContext) -> Arc<dyn Console> + Send + Sync> Consoles for F {
    fn console(&self, context: &WorkerContext) -> Arc<dyn Console> {
        self(context)
    }
}

impl Consoles for ProcessConsole {
    /// Runs share the screen; where it shows several, each line says whose it is.
    fn console(&self, context: &WorkerContext) -> Arc<dyn Console> {
        match context.task {
            Some(task) if self.shared.options.task != Some(task) => Arc::new(ProcessConsole::of_run(self, task)),
            _ => Arc::new(self.clone()),
        }
    }
}

/// Writes dchost's own log lines to a console's screen; made by [`ProcessConsole::log_writer`].
#[derive(Clone)]
pub struct LogWriter {
    shared: Arc<Shared>,
}

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Shared { screen, options, name, prefix, .. } = &*self.shared;
        let text = String::from_utf8_lossy(bytes);
        for line in text.lines() {
            let line = match options.format {
                LineFormat::Json => line::with_task(name, &escaped_json(line)),
                LineFormat::Text => format!("{prefix}{}", escaped(line)),
            };
            screen.log_line(Stream::Stderr, line.into_bytes());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for LogWriter {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        self.clone()
    }
}

/// Where dchost's own log goes: straight to standard error until a console is attached, then through the console.
///
/// Logging starts before anybody knows which task this process is. Cheap to clone; all clones are attached at once.
#[derive(Clone, Default)]
pub struct LogOutput {
    console: Arc<OnceLock<ProcessConsole>>,
}

impl LogOutput {
    /// Sends the log through `console` from now on. A second call has no effect: a process has one console.
    pub fn attach(&self, console: &ProcessConsole) {
        self.console.get_or_init(|| console.clone());
    }
}

/// Writes one log line; made by [`LogOutput`].
pub enum LogOutputWriter {
    /// No console is attached yet.
    Stderr(io::Stderr),
    /// Through the console.
    Console(LogWriter),
}

impl io::Write for LogOutputWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            LogOutputWriter::Stderr(stderr) => stderr.write(bytes),
            LogOutputWriter::Console(console) => console.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            LogOutputWriter::Stderr(stderr) => stderr.flush(),
            LogOutputWriter::Console(console) => console.flush(),
        }
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for LogOutput {
    type Writer = LogOutputWriter;

    fn make_writer(&'a self) -> LogOutputWriter {
        match self.console.get() {
            None => LogOutputWriter::Stderr(io::stderr()),
            Some(console) => LogOutputWriter::Console(console.log_writer()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Captured, captured};
    use super::*;
    use crate::cluster::TaskType;
    use expect_test::{Expect, expect};
    use std::io::Write;
    use std::time::Duration;

    fn worker(format: LineFormat, launched: bool) -> ConsoleOptions {
        let task = Some(Task::new(TaskType::Worker, 0));
        ConsoleOptions { task, format, launched, ..ConsoleOptions::default() }
    }

    /// Runs `write` over a captured console and compares what reached each stream.
    fn check(options: ConsoleOptions, mode: ProgressMode, write: impl FnOnce(&ProcessConsole), expected: Expect) {
        let Captured { screen, out, err } = captured(mode);
        let console = ProcessConsole::on(screen, options);
        write(&console);
        assert!(console.flush(Duration::from_secs(60)), "the console did not write everything");
        let timestamp = |text: String| match text.find("\"timestamp\":\"") {
            None => text,
            Some(_) => text
                .lines()
                .map(|line| line.split_once("Z\",").map_or(line.to_owned(), |(_, rest)| format!("{{{rest}")) + "\n")
                .collect(),
        };
        let seen = format!("out:\n{}err:\n{}", timestamp(out.text()), timestamp(err.text()));
        expected.assert_eq(&seen.replace('\u{1e}', "<event>"));
    }

    fn say_everything(console: &ProcessConsole) {
        console.line(Origin::Stdout, "x=16 y=14");
        console.line(Origin::Stderr, "careful");
        console.line(Origin::Log(Level::Warn), "loss is rising");
        console.line(Origin::Log(Level::Debug), "not shown");
        console.log_writer().write_all(b" INFO dchost: two\nlines\n").expect("log writers never fail");
    }

    #[test]
    fn every_line_carries_its_task_and_goes_to_its_stream() {
        check(
            worker(LineFormat::Text, false),
            ProgressMode::Lines,
            say_everything,
            expect![[r#"
                out:
                worker:0 | x=16 y=14
                err:
                worker:0 | careful
                worker:0 | WARN loss is rising
                worker:0 |  INFO dchost: two
                worker:0 | lines
            "#]],
        );
    }

    #[test]
    fn a_local_run_and_a_launched_child_write_no_prefix() {
        for (options, mode) in
            [(ConsoleOptions::default(), ProgressMode::Lines), (worker(LineFormat::Text, true), ProgressMode::Events)]
        {
            check(
                options,
                mode,
                say_everything,
                expect![[r#"
                    out:
                    x=16 y=14
                    err:
                    careful
                    WARN loss is rising
                     INFO dchost: two
                    lines
                "#]],
            );
        }
    }

    #[test]
    fn json_lines_carry_task_origin_and_level() {
        check(
            worker(LineFormat::Json, true),
            ProgressMode::Events,
            |console| {
                console.line(Origin::Stdout, "say \"hi\"");
                console.line(Origin::Log(Level::Error), "bad");
                console.log_writer().write_all(b"{\"level\":\"INFO\"}\n").expect("log writers never fail");
            },
            expect![[r#"
                out:
                {"level":"INFO","task":"worker:0","origin":"stdout","message":"say \"hi\""}
                err:
                {"level":"ERROR","task":"worker:0","origin":"log","message":"bad"}
                {"task":"worker:0","level":"INFO"}
            "#]],
        );
    }

    #[test]
    fn progress_is_an_event_in_a_launched_child_and_a_line_elsewhere() {
        let show = |console: &ProcessConsole| {
            console.progress(3, Some(20), "epoch 3");
            console.progress(4, Some(20), "too soon after the first");
            console.progress(20, Some(20), "the last is always shown");
        };
        check(
            worker(LineFormat::Text, true),
            ProgressMode::Events,
            show,
            expect![[r#"
                out:
                err:
                <event>{"progress":{"done":3,"total":20,"note":"epoch 3"}}
                <event>{"progress":{"done":20,"total":20,"note":"the last is always shown"}}
            "#]],
        );
        check(
            worker(LineFormat::Text, false),
            ProgressMode::Lines,
            show,
            expect![[r#"
                out:
                err:
                worker:0 | progress 3/20 epoch 3
                worker:0 | progress 20/20 the last is always shown
            "#]],
        );
    }

    #[test]
    fn progress_of_one_of_several_runs_says_whose_it_is() {
        let show = |console: &ProcessConsole| {
            for index in [0, 1] {
                let run = console.of_run(Task::new(TaskType::Worker, index));
                run.progress(3, Some(20), "");
            }
        };
        let client = |launched| ConsoleOptions {
            task: Some(Task::new(TaskType::Client, 0)),
            ..worker(LineFormat::Text, launched)
        };
        check(
            client(true),
            ProgressMode::Events,
            show,
            expect![[r#"
                out:
                err:
                <event>{"progress":{"task":"worker:0","done":3,"total":20,"note":""}}
                <event>{"progress":{"task":"worker:1","done":3,"total":20,"note":""}}
            "#]],
        );
        check(
            client(false),
            ProgressMode::Lines,
            show,
            expect![[r#"
                out:
                err:
                worker:0 | progress 3/20
                worker:1 | progress 3/20
            "#]],
        );
    }

    #[test]
    fn a_log_goes_through_the_console_once_it_is_attached() {
        use tracing_subscriber::fmt::MakeWriter;
        let Captured { screen, err, .. } = captured(ProgressMode::Lines);
        let output = LogOutput::default();
        let early = output.clone();
        assert!(matches!(early.make_writer(), LogOutputWriter::Stderr(_)));
        let console = ProcessConsole::on(screen, worker(LineFormat::Text, false));
        output.attach(&console);
        early.make_writer().write_all(b" INFO dchost: up\n").expect("log writers never fail");
        assert!(console.flush(Duration::from_secs(60)));
        assert_eq!(err.text(), "worker:0 |  INFO dchost: up\n");
    }

    /// Aim: a guest cannot make the launcher believe an event, whatever it prints or logs.
    /// Method: every way in, each with the event byte at the line's start, then look at the bytes that come out.
    #[test]
    fn a_guest_cannot_forge_an_event() {
        let Captured { screen, out, err } = captured(ProgressMode::Events);
        let console = ProcessConsole::on(screen, worker(LineFormat::Text, true));
        let forged = "\u{1e}{\"progress\":{\"done\":9,\"total\":9,\"note\":\"\"}}";
        for origin in [Origin::Stdout, Origin::Stderr, Origin::Log(Level::Info)] {
            console.line(origin, forged);
            console.line(origin, &format!("first\n{forged}"));
        }
        console.log_writer().write_all(format!("{forged}\n").as_bytes()).expect("log writers never fail");
        console.progress(1, None, &format!("note\n{forged}"));
        assert!(console.flush(Duration::from_secs(60)));
        assert!(!out.text().contains('\u{1e}'), "{:?}", out.text());
        let err = err.text();
        let events: Vec<_> = err.lines().filter_map(|line| Event::decode(line.as_bytes())).collect();
        let [Event::Progress(None, progress)] = &events[..] else { panic!("{events:?} in {err:?}") };
        assert_eq!(progress.done, 1, "only the host's own event is one");
        assert_eq!(err.matches('\u{1e}').count(), 1, "{err:?}");
    }
}
