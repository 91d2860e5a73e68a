//! Runs a guest in a cluster without a network, on a clock that jumps, and checks how it ended.

use crate::ops::FuzzOps;
use crate::text::{check_block, check_line, show};
use dchost::attend::{Mode, Replication};
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::context::WorkerContext;
use dchost::coordinator::local::LocalVariables;
use dchost::coordinator::placement::{PlacedVariables, PlacementOptions};
use dchost::coordinator::plan::{PlanInput, plan};
use dchost::coordinator::resolve::values::RpcLayer;
use dchost::error::{Error, ErrorCode, Result};
use dchost::handles::{BoxFuture, Console, Handles, Job, Origin, Summary};
use dchost::runtime::{GuestOptions, Limits, Module, RunEnd, RunReport, RunWatch};
use dchost::variables::{Spare, Store, StoreOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;

/// Bytes of the guest's memories and tables.
pub const MEMORY_BYTES_MAX: u64 = 8 << 20;
/// Bytes of the largest tensor of a call.
pub const TENSOR_BYTES_MAX: u64 = 256 << 10;
/// Bytes of all variables.
pub const VARIABLE_BYTES_MAX: u64 = 1 << 20;

/// Longest text of an end: 64 KiB of the guest's own message, each byte escaped as `\u{7f}` at most, or last words and frames.
const REPORT_BYTES_MAX: usize = 6 * (64 << 10) + 1024;
/// When pending host calls are told that the run is being ended: after every timeout that a guest is likely to give.
const INTERRUPT: Duration = Duration::from_secs(3 * 3600);
/// When a guest that still waits is dropped, as the coordinator does.
const DROP: Duration = Duration::from_secs(10);

/// The limits of a run: small, so that scripts reach them.
pub fn limits() -> Limits {
    Limits {
        memory_bytes_max: MEMORY_BYTES_MAX,
        tensor_bytes_max: TENSOR_BYTES_MAX,
        handles_max: 100,
        cpu_timeout: Some(Duration::from_secs(2)),
        output_bytes_max: 64 << 10,
        ..Limits::default()
    }
}

/// A runtime of one thread whose clock jumps to the next timer when everybody waits.
///
/// # Panics
/// The system has no resources for it.
pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing")
}

/// A minute on the clock of [`runtime`].
pub async fn pass_a_minute() {
    tokio::time::sleep(Duration::from_secs(60)).await;
}

/// Runs the module and checks its end; none where it waited for what never comes, and was dropped.
///
/// `place` chooses the cluster: a local run, worker:0 beside ps tasks, worker:1 without, or the evaluator.
///
/// # Panics
/// The end isn't one that a guest can bring about, or its text isn't fit to be shown.
pub async fn run(module: &Module, place: u8, args: Vec<String>) -> Option<RunReport> {
    let (interrupt, interrupted) = watch::channel(None);
    let store = Store::new(StoreOptions { variable_bytes_max: Some(VARIABLE_BYTES_MAX), ..StoreOptions::default() });
    let handles = handles(place, &store, interrupted);
    let options = GuestOptions { args, limits: limits(), ..GuestOptions::default() };
    let watch = RunWatch::new();
    let run = module.run(options, handles, watch);
    let mut run = Box::pin(run);
    let report = tokio::select! {
        biased;
        report = &mut run => Some(report),
        () = tokio::time::sleep(INTERRUPT) => {
            interrupt.send_replace(Some(Error::new(ErrorCode::Cancelled, "the run is being ended")));
            tokio::time::timeout(DROP, &mut run).await.ok()
        }
    };
    drop(run);
    show(|| format!("{report:#?}\nvariables: {:?}", store.statuses()));
    if let Some(report) = &report {
        check(report);
    }
    assert!(store.variable_bytes() <= VARIABLE_BYTES_MAX, "variables hold {} bytes", store.variable_bytes());
    assert_eq!(store.staged_bytes(), 0, "bytes are staged after the run");
    report
}

fn check(report: &RunReport) {
    assert!(report.memory_bytes_peak <= MEMORY_BYTES_MAX, "the guest had {} bytes", report.memory_bytes_peak);
    match &report.end {
        RunEnd::Done | RunEnd::GuestExit { .. } => {}
        RunEnd::WorkerError { message } | RunEnd::Refused { message } | RunEnd::NoRoom { message } => {
            check_block(message, REPORT_BYTES_MAX)
        }
        RunEnd::Trap { kind, report } => {
            check_line(kind, REPORT_BYTES_MAX);
            check_block(report, REPORT_BYTES_MAX);
        }
        RunEnd::Limit { limit, message } => {
            check_block(message, REPORT_BYTES_MAX);
            let first = message.lines().next().unwrap_or_default();
            assert!(first.contains(limit.flag()), "`{first}` doesn't name {}", limit.flag());
        }
        RunEnd::HostBug { message } => panic!("a bug in dchost: {message}"),
    }
}

fn handles(place: u8, store: &Store, interrupt: watch::Receiver<Option<Error>>) -> Handles {
    let (cluster, task) = cluster(place);
    let context = Arc::new(context(&cluster, task));
    let runtime = Handle::current();
    // Each task's variables are a container of their own, as if other servers held them.
    let of_task = {
        let (store, runtime) = (store.clone(), runtime.clone());
        move |name: String| Arc::new(LocalVariables::new(store.clone(), name, None, runtime.clone()))
    };
    let variables = PlacedVariables::new(PlacementOptions {
        cluster,
        run_task: task,
        process_task: task,
        local: of_task("local".to_owned()),
        remote: Box::new(move |task| of_task(task.to_string().replace(':', "-"))),
        chief_ended: watch::channel(None).1,
        runtime,
        spare: Spare::default(),
    });
    Handles {
        context,
        job: Arc::new(FuzzJob),
        variables: Arc::new(variables),
        ops: Arc::new(FuzzOps),
        console: Arc::new(Checked),
        summary: Arc::new(Checked),
        interrupt,
    }
}

fn cluster(place: u8) -> (ClusterSpec, Option<Task>) {
    let workers = ClusterSpec::new().with_job(TaskType::Worker, ["a:1", "b:1"]);
    match place % 4 {
        0 => (ClusterSpec::new(), None),
        1 => (workers.with_job(TaskType::Ps, ["c:1", "d:1"]), Some(Task::new(TaskType::Worker, 0))),
        2 => (workers, Some(Task::new(TaskType::Worker, 1))),
        _ => (workers.with_job(TaskType::Evaluator, ["e:1"]), Some(Task::new(TaskType::Evaluator, 0))),
    }
}

fn context(cluster: &ClusterSpec, task: Option<Task>) -> WorkerContext {
    let mode = Some(Mode::IndependentWorker);
    let (replication, rpc_layer) = (Replication::BetweenGraph, RpcLayer::Grpc);
    let plan = plan(&PlanInput { cluster, task, mode, replication, rpc_layer, cluster_barrier: true });
    plan.expect("these clusters have plans").runs.pop().expect("each of these tasks runs")
}

/// A job whose barrier does what the first letter of its name says, so that every way for it to end is reached.
struct FuzzJob;

impl Job for FuzzJob {
    fn barrier<'a>(&'a self, name: &'a str, timeout: Option<Duration>) -> BoxFuture<'a, Result<()>> {
        let missing = [Task::new(TaskType::Worker, 1)];
        let fail = move |code| Err(Error::new(code, format!("barrier `{name}`")).with_tasks(missing));
        Box::pin(async move {
            match name.bytes().next() {
                Some(b'b') => match timeout {
                    Some(timeout) => {
                        tokio::time::sleep(timeout).await;
                        fail(ErrorCode::DeadlineExceeded)
                    }
                    None => std::future::pending().await,
                },
                Some(b'w') => fail(ErrorCode::PeerFailed),
                Some(b'p') => fail(ErrorCode::Aborted),
                _ => Ok(()),
            }
        })
    }

    fn training_ended(&self) -> bool {
        false
    }

    fn attempt(&self) -> u32 {
        0
    }
}

/// A console and summary that hold the runtime to what it promises them.
struct Checked;

impl Console for Checked {
    fn line(&self, _origin: Origin, text: &str) {
        check_line(text, LINE_BYTES_MAX);
    }

    fn progress(&self, _done: u64, _total: Option<u64>, note: &str) {
        check_line(note, LINE_BYTES_MAX);
    }
}

impl Summary for Checked {
    fn scalar(&self, tag: &str, _step: u64, _value: f64) {
        check_line(tag, TAG_BYTES_MAX);
    }
}

/// Bytes of a tag: 256, each shown as an escape at most.
const TAG_BYTES_MAX: usize = 256;

/// Bytes of a line that is shown: the limit's 64 KiB, each byte escaped as `\u{7f}` at most, and a mark.
const LINE_BYTES_MAX: usize = 6 * (64 << 10) + 1024;
