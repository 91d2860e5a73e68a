//! What is asked.

use std::fmt;

/// The parts, for the command line.
pub(crate) const PARTS: [&str; 6] = ["push", "pull", "barrier", "workers", "many", "memory"];

/// Sizes of a variable, in bytes.
pub(crate) const SIZES: [usize; 4] = [4 << 10, 1 << 20, 16 << 20, 64 << 20];

/// Tasks at a barrier.
pub(crate) const TASKS: [usize; 3] = [2, 4, 8];

/// Workers that push at once.
pub(crate) const WORKERS: usize = 4;

/// Variables of one read.
pub(crate) const MANY: usize = 200;

/// The size of each of them, in bytes.
pub(crate) const SMALL: usize = 4 << 10;

/// One figure: the median time of what it names, in µs; of memory, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Question {
    /// Adds a value of so many bytes to a variable of `f32` on ps.
    Push(usize),
    /// Reads a variable of so many bytes from ps.
    Pull(usize),
    /// A barrier of so many tasks, each a process.
    Barrier(usize),
    /// As `Push`, one worker, a connection of its own: the time is that of a push, all in a second.
    OneWorker(usize),
    /// As `OneWorker`, with [`WORKERS`] workers at once on one variable: how often one of all ends.
    AllWorkers(usize),
    /// [`MANY`] variables of [`SMALL`] bytes, one after the other.
    OneByOne,
    /// The same in one call.
    Together,
    /// By how much ps's resident memory grows at most during a push of so many bytes to a variable that has a value, in bytes.
    PushGrowth(usize),
    /// How much more than without any variable that is, in bytes.
    PushPeak(usize),
}

/// How long is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// For variables.
    pub(crate) seconds: f64,
    /// For a barrier, after [`warm_up`](Bounds::WARM_UP) rounds that don't count.
    pub(crate) rounds: usize,
}

impl Bounds {
    /// Rounds that connect, and fill caches.
    pub(crate) const WARM_UP: usize = 50;
}

impl Question {
    /// All, in the order in which they are put.
    pub(crate) fn all() -> Vec<Question> {
        let large = &SIZES[1..];
        let variables = SIZES.into_iter().flat_map(|size| [Question::Push(size), Question::Pull(size)]);
        let workers = large.iter().flat_map(|&size| [Question::OneWorker(size), Question::AllWorkers(size)]);
        let memory = [Question::PushGrowth(64 << 20), Question::PushPeak(64 << 20)];
        let barriers = TASKS.into_iter().map(Question::Barrier);
        let many = [Question::OneByOne, Question::Together];
        variables.chain(barriers).chain(workers).chain(many).chain(memory).collect()
    }

    /// The part that it belongs to.
    pub(crate) fn part(self) -> &'static str {
        match self {
            Question::Push(_) => "push",
            Question::Pull(_) => "pull",
            Question::Barrier(_) => "barrier",
            Question::OneWorker(_) | Question::AllWorkers(_) => "workers",
            Question::OneByOne | Question::Together => "many",
            Question::PushGrowth(_) | Question::PushPeak(_) => "memory",
        }
    }

    /// Whether it is about pushes and pulls of one worker, which all lanes with variables know.
    pub(crate) fn is_transfer(self) -> bool {
        matches!(self, Question::Push(_) | Question::Pull(_))
    }

    /// Whether it is about a barrier.
    pub(crate) fn is_barrier(self) -> bool {
        matches!(self, Question::Barrier(_))
    }

    /// The line by which a process is asked, or `None` where it takes more than one process.
    pub(crate) fn line(self, bounds: Bounds) -> Option<String> {
        match self {
            Question::Push(size) => Some(format!("push {size} {}", bounds.seconds)),
            Question::Pull(size) => Some(format!("pull {size} {}", bounds.seconds)),
            Question::Barrier(tasks) => Some(format!("barrier {tasks} {}", bounds.rounds)),
            _ => None,
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Question::Push(bytes) => write!(f, "push {}", size(bytes)),
            Question::Pull(bytes) => write!(f, "pull {}", size(bytes)),
            Question::Barrier(tasks) => write!(f, "barrier N={tasks}"),
            Question::OneWorker(bytes) => write!(f, "push {} by 1 worker", size(bytes)),
            Question::AllWorkers(bytes) => write!(f, "push {} by {WORKERS} workers", size(bytes)),
            Question::OneByOne => write!(f, "{MANY} reads of {}", size(SMALL)),
            Question::Together => write!(f, "one read of {MANY} times {}", size(SMALL)),
            Question::PushGrowth(bytes) => write!(f, "growth of ps by a push of {}", size(bytes)),
            Question::PushPeak(bytes) => write!(f, "peak of ps over an empty one, push of {}", size(bytes)),
        }
    }
}

/// A size as people say it.
pub(crate) fn size(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}
