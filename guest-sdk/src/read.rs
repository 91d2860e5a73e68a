//! How fresh a read must be, and how whole.

use std::time::Duration;

/// How a read is made, for [`Variable::read_with`](crate::Variable::read_with) and its kin. `Read::new()` is a plain read: the
/// present value, whole.
///
/// | use | for |
/// | --- | --- |
/// | [`min_version`](Read::min_version) | what another run has still to write: wait for it instead of asking again and again |
/// | [`max_age`](Read::max_age) | what may be a little old: a learning rate, an evaluator's weights; it costs no call while it is young |
/// | [`relaxed`](Read::relaxed) | large variables that many runs update all the time, as asynchronous training does |
///
/// ```
/// # use dchost_guest::{MockCluster, Read, Result, WorkerContext};
/// # use std::time::Duration;
/// # MockCluster::builder().workers(2).ps(1).build().run(|ctx| -> Result<()> {
/// let step = ctx.variable::<i64>("step").declare()?;
/// if ctx.is_chief() {
///     step.initialize(0)?;
///     step.add(1)?;
/// } else {
///     step.wait_initialized(None)?;
///     let value = step.read_with(Read::new().min_version(2))?;
///     assert_eq!(value.scalar(), 1);
///     let value = step.read_with(Read::new().max_age(Duration::from_secs(5)))?;
///     assert!(value.version() >= 2);
/// }
/// # Ok(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "it says how a read is made, `read_with` makes it"]
pub struct Read {
    pub(crate) min_version: Option<u64>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) relaxed: bool,
}

impl Read {
    /// A plain read.
    pub fn new() -> Self {
        Read::default()
    }

    /// Waits until each variable has at least this version, as long as the run lasts: a variable's first value has version 1, and
    /// each write adds 1.
    ///
    /// A variable that has no value is `uninitialized` at once, as in every read. Begin the read with
    /// [`start_read_with`](crate::WorkerContext::start_read_with) to do something else meanwhile, or to give it up by dropping it.
    pub fn min_version(mut self, version: u64) -> Self {
        self.min_version = Some(version);
        self
    }

    /// Accepts a value that this run has read by `max_age` before and that is younger than `max_age`; without one it asks the
    /// variable's task, and keeps the answer. The run's own writes are always seen.
    ///
    /// Whole milliseconds count; a variable on the run's own task is read as it is.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = Some(max_age);
        self
    }

    /// Reads each block of 256 KiB as it is when it is sent, without making everybody else's update wait or copy: a large value
    /// may have a part of an update that was made meanwhile. The version is that of the beginning; all up to it is in the value.
    /// A value of at most one block is always whole.
    pub fn relaxed(mut self) -> Self {
        self.relaxed = true;
        self
    }
}
