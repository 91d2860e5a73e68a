//! Who is asked.

use crate::question::{Bounds, Question};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The longest that an answer may take: what takes longer is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a process may take to end once its input has.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The word before an answer, so that what a library prints is not taken for one.
pub(crate) const ANSWER: &str = "answer ";

/// One that answers questions.
pub(crate) trait Lane {
    /// What tables call it.
    fn name(&self) -> &'static str;

    /// Whether the question is for this one.
    fn knows(&self, question: Question) -> bool;

    /// The answer; `None` where something is missing or fails.
    fn ask(&mut self, question: Question) -> Option<f64>;
}

/// A process that reads questions and prints answers; dropped, it and all that it started are ended.
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// Starts it, in a process group of its own.
    pub(crate) fn start(mut command: Command) -> std::io::Result<Process> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().expect("it is a pipe");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix(ANSWER)
                    && sender.send(answer.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        Ok(Process { child, input, lines })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Says a line to it.
    pub(crate) fn say(&mut self, line: &str) -> Option<()> {
        writeln!(self.input.as_mut()?, "{line}").ok()
    }

    /// The next line that it answers with.
    pub(crate) fn hear(&mut self) -> Option<String> {
        self.lines.recv_timeout(ANSWER_TIMEOUT).ok()
    }

    /// Asks, and takes the answer as a number.
    pub(crate) fn ask(&mut self, line: &str) -> Option<f64> {
        self.say(line)?;
        self.hear()?.parse().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Those that can end by themselves do: what they started ends with them.
        self.input = None;
        let until = Instant::now() + END_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The group may have gone.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// A program that is started at its first question and answers all that it knows.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) command: fn(&[String]) -> Command,
    pub(crate) args: Vec<String>,
    pub(crate) knows: fn(Question) -> bool,
    pub(crate) bounds: Bounds,
    pub(crate) state: State,
}

/// Whether a program runs.
pub(crate) enum State {
    NotInstalled,
    Unasked,
    Runs(Process),
    Failed,
}

impl Lane for Program {
    fn name(&self) -> &'static str {
        self.name
    }

    fn knows(&self, question: Question) -> bool {
        (self.knows)(question)
    }

    fn ask(&mut self, question: Question) -> Option<f64> {
        if let State::Unasked = self.state {
            self.state = Process::start((self.command)(&self.args)).map_or(State::Failed, State::Runs);
        }
        let State::Runs(process) = &mut self.state else { return None };
        let answer = process.ask(&question.line(self.bounds)?);
        if answer.is_none() {
            eprintln!("{} has no answer to `{question}` and is left out from here on", self.name);
            self.state = State::Failed;
        }
        answer
    }
}

/// A lane that does something new for each question.
pub(crate) struct Fresh<F> {
    pub(crate) name: &'static str,
    pub(crate) knows: fn(Question) -> bool,
    pub(crate) answer: F,
}

impl<F: FnMut(Question) -> Option<f64>> Lane for Fresh<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn knows(&self, question: Question) -> bool {
        (self.knows)(question)
    }

    fn ask(&mut self, question: Question) -> Option<f64> {
        (self.answer)(question)
    }
}

/// The median.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
