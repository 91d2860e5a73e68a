//! Building a mock cluster, running it, and looking at what is left.

use super::Context;
use super::run::{Failure, Run, TaskRun};
use super::state::{LogLine, Scalar, Setup, Shared, Who};
use crate::{ClusterSpec, Element, OpSet, Outcome, Task, Tensor, WorkerContext, chief, evaluator, worker};
use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A cluster in this process, to test a worker_fn on: one thread for each task, the rules of the host.
///
/// Contexts, barriers, variables, ops and errors behave as in a real cluster of independent workers. When a chief's or
/// worker's run fails, by an error or a panic, the calls of all others fail with `peer-failed` naming it, so that a test
/// never hangs on it. Files and clocks are the test's own. Clusters share nothing: tests may run in parallel.
///
/// ```
/// use dchost_guest::{MockCluster, Result, WorkerContext, ps};
///
/// fn count(ctx: &WorkerContext) -> Result<f32> {
///     let total = ctx.variable::<f32>("total").on(ps(0)).declare()?;
///     if ctx.is_chief() {
///         total.initialize(0.0)?;
///     }
///     ctx.wait_for_other_workers()?;
///     total.add(1.0)?;
///     ctx.wait_for_other_workers()?;
///     Ok(total.read()?.scalar())
/// }
///
/// let cluster = MockCluster::builder().workers(3).ps(1).build();
/// assert_eq!(cluster.run(count).unwrap(), [3.0, 3.0, 3.0]);
/// assert_eq!(cluster.value::<f32>("total"), Some(vec![3.0]));
/// ```
pub struct MockCluster {
    shared: Arc<Shared>,
    /// Held during a run: a second one waits for its end.
    running: Mutex<()>,
}

/// Says what a mock cluster consists of; from [`MockCluster::builder`].
#[derive(Clone, Debug)]
#[must_use = "`build` makes the cluster"]
pub struct MockBuilder {
    workers: u32,
    ps: u32,
    chief: bool,
    evaluator: bool,
    barrier: bool,
    in_graph: bool,
    args: Vec<String>,
    ops: Option<OpSet>,
}

impl MockBuilder {
    /// Sets the number of worker tasks; 1 without this call.
    pub fn workers(mut self, count: u32) -> Self {
        self.workers = count;
        self
    }

    /// Sets the number of ps tasks; none without this call.
    pub fn ps(mut self, count: u32) -> Self {
        self.ps = count;
        self
    }

    /// Whether there is a chief task; without one worker:0 is chief.
    pub fn chief(mut self, chief: bool) -> Self {
        self.chief = chief;
        self
    }

    /// Whether there is an evaluator task.
    pub fn evaluator(mut self, evaluator: bool) -> Self {
        self.evaluator = evaluator;
        self
    }

    /// Whether contexts have a barrier; false is `--no-cluster-barrier`.
    pub fn barrier(mut self, barrier: bool) -> Self {
        self.barrier = barrier;
        self
    }

    /// Whether one run, the driver, does it for all tasks; true is `--replication in-graph`.
    ///
    /// The driver has no task of its own and no barrier, and is chief. An evaluator runs beside it.
    pub fn in_graph(mut self, in_graph: bool) -> Self {
        self.in_graph = in_graph;
        self
    }

    /// Sets the arguments that stand after `--` on the command line.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the ops that tasks run: `OPS`, which [`ops!`](crate::ops) made. Without this call they know none.
    pub fn ops(mut self, ops: OpSet) -> Self {
        self.ops = Some(ops);
        self
    }

    /// Makes the cluster.
    ///
    /// # Panics
    /// Where there is neither a chief nor a worker: nobody would train.
    pub fn build(self) -> MockCluster {
        assert!(self.chief || self.workers > 0, "a cluster needs a chief or a worker");
        let jobs = [
            ("chief", u32::from(self.chief)),
            ("evaluator", u32::from(self.evaluator)),
            ("ps", self.ps),
            ("worker", self.workers),
        ];
        let tasks = |job: &str, count| (0..count).map(|index| (index, format!("{job}-{index}.mock:2222"))).collect();
        let jobs = jobs.into_iter().filter(|&(_, count)| count > 0);
        let cluster = ClusterSpec::from_jobs(jobs.map(|(job, count)| (job.to_owned(), tasks(job, count))));
        let workers = || self.chief.then(chief).into_iter().chain((0..self.workers).map(worker)).map(Some);
        let training = if self.in_graph { vec![None] } else { workers().collect() };
        let runs = training.into_iter().chain(self.evaluator.then(evaluator).map(Some)).collect();
        MockCluster::new(Setup { cluster, runs, barrier: self.barrier, args: self.args, ops: self.ops })
    }

    /// Makes a local run instead: no cluster and no task, only the arguments.
    pub fn local(self) -> MockCluster {
        let (cluster, runs) = (ClusterSpec::default(), vec![None]);
        MockCluster::new(Setup { cluster, runs, barrier: false, args: self.args, ops: self.ops })
    }
}

impl MockCluster {
    /// Begins to build a cluster: one worker with a barrier, unless more is said.
    pub fn builder() -> MockBuilder {
        MockBuilder {
            workers: 1,
            ps: 0,
            chief: false,
            evaluator: false,
            barrier: true,
            in_graph: false,
            args: Vec::new(),
            ops: None,
        }
    }

    /// A local run, without a cluster: no task, no barrier, variables in this process.
    pub fn local() -> MockCluster {
        MockCluster::builder().local()
    }

    fn new(setup: Setup) -> Self {
        MockCluster { shared: Arc::new(Shared::new(setup)), running: Mutex::default() }
    }

    /// Runs `worker_fn` for chief, workers and evaluator, each on a thread of its own, and waits for all.
    ///
    /// Variables, log and scalars stay for the next run on the same cluster; barriers begin anew.
    pub fn run<O>(&self, worker_fn: impl Fn(&WorkerContext) -> O + Sync) -> Run<O::Value, O::Error>
    where
        O: Outcome,
        O::Value: Send,
        O::Error: Send,
    {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.begin();
        let one = |run: usize| {
            let context = WorkerContext::__new(Context {
                shared: Arc::clone(&self.shared),
                who: Who { run, call: None },
                op_task: None,
            });
            let result = match panic::catch_unwind(AssertUnwindSafe(|| worker_fn(&context).into_result())) {
                Ok(result) => result.map_err(Failure::Error),
                Err(payload) => Err(Failure::Panic(panic_message(&*payload))),
            };
            self.shared.end(run, result.as_ref().err().map(Failure::to_string));
            result
        };
        let one = &one;
        let tasks = thread::scope(|scope| {
            let spawn = |(run, task): (usize, &Option<Task>)| {
                // The name shows in a panic's message.
                let name = task.as_ref().map_or("local".to_owned(), Task::to_string);
                let thread = thread::Builder::new().name(name).spawn_scoped(scope, move || one(run));
                (task.clone(), thread.expect("the system starts a thread"))
            };
            let threads: Vec<_> = self.shared.setup.runs.iter().enumerate().map(spawn).collect();
            let join = |(task, thread): (_, thread::ScopedJoinHandle<'_, _>)| TaskRun {
                task,
                result: thread.join().expect("panics are caught within"),
            };
            threads.into_iter().map(join).collect()
        });
        Run { tasks }
    }

    /// The value of the variable `name`, wherever it lives; none before it was initialized.
    ///
    /// # Panics
    /// Where it holds elements of another type.
    pub fn value<T: Element>(&self, name: &str) -> Option<Vec<T>> {
        self.tensor(None, name).map(|tensor| values(name, &tensor))
    }

    /// The value of the variable `name` on `task`, of one [in parts](crate::VariableBuilder::sharded) the rows that are there; none
    /// before it was initialized there.
    ///
    /// # Panics
    /// Where it holds elements of another type.
    pub fn value_on<T: Element>(&self, task: &Task, name: &str) -> Option<Vec<T>> {
        self.tensor(Some(task), name).map(|tensor| values(name, &tensor))
    }

    /// The lines that the runs logged, in order.
    pub fn logs(&self) -> Vec<LogLine> {
        self.shared.lock().log.clone()
    }

    /// The values that runs which should save summaries kept, in order.
    pub fn scalars(&self) -> Vec<Scalar> {
        self.shared.lock().scalars.clone()
    }

    fn tensor(&self, task: Option<&Task>, name: &str) -> Option<Tensor> {
        self.shared.lock().store.find(task, name)
    }
}

fn values<T: Element>(name: &str, tensor: &Tensor) -> Vec<T> {
    tensor.to_vec().unwrap_or_else(|error| panic!("variable `{name}`: {}", error.message))
}

pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a value that isn't text".to_owned())
}
