//! The twelve acceptance tests of TensorFlow's distribute coordinator, with their assertions by number.
//!
//! S1 to S7 are split clients, I1 to I5 independent workers. Those about contexts (S3 to S7, I3 to I5) put a recorder in place
//! of servers and of `worker_fn`, as TensorFlow's do: the plan is carried out by [`execute`], as in a run. S1, S2, I1 and I2
//! run components on servers, all in this process.
//!
//! # Source
//! `distribute_coordinator_test.py` of TensorFlow, at the commit that dchost's coordinator follows.

use crate::embed::{Cluster, done, load, runtime};
use crate::guests::{LONG, Lines, between_graph, in_graph};
use dchost::attend::{Mode, Replication};
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::context::WorkerContext;
use dchost::coordinator::embed::Report;
use dchost::coordinator::execute::{Effects, execute};
use dchost::coordinator::outcome::Outcome;
use dchost::coordinator::plan::ServerPlan;
use dchost::coordinator::resolve::values::RpcLayer;
use dchost::exit::Exit;
use dchost::{Coordinator, CoordinatorBuilder};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;
use tokio::task::JoinSet;

mod later;

const CHIEF: TaskType = TaskType::Chief;
const EVALUATOR: TaskType = TaskType::Evaluator;
const PS: TaskType = TaskType::Ps;
const WORKER: TaskType = TaskType::Worker;

/// Addresses of three workers; nobody listens there.
const WORKERS: [&str; 3] = ["localhost:2220", "localhost:2221", "localhost:2222"];

fn three_workers() -> ClusterSpec {
    ClusterSpec::new().with_job(WORKER, WORKERS)
}

fn three_workers_and_two_ps() -> ClusterSpec {
    three_workers().with_job(PS, ["localhost:2223", "localhost:2224"])
}

/// Master target, num workers, is chief, distributed mode.
type Entry = (String, u32, bool, bool);

fn entry(target: &str, num_workers: u32, is_chief: bool, distributed: bool) -> Entry {
    (target.to_owned(), num_workers, is_chief, distributed)
}

/// Stands where servers and `worker_fn` would, and keeps what it is told. Fails where a task comes twice.
#[derive(Default)]
struct Recorder {
    runs: Mutex<BTreeMap<Option<TaskType>, BTreeMap<u32, Entry>>>,
    servers: Mutex<BTreeMap<TaskType, BTreeMap<u32, bool>>>,
}

impl Recorder {
    fn server(&self, server: &ServerPlan) {
        let mut servers = self.servers.lock().expect("the recorder doesn't panic");
        let before = servers.entry(server.task.job).or_default().insert(server.task.index, server.joined);
        assert_eq!(before, None, "{} starts a second server", server.task);
    }

    fn run(&self, context: &WorkerContext) -> Outcome {
        let mut runs = self.runs.lock().expect("the recorder doesn't panic");
        let (job, index) = (context.task.map(|task| task.job), context.task.map_or(0, |task| task.index));
        let WorkerContext { master_target, num_workers, is_chief, distributed_mode, .. } = context.clone();
        let entry = (master_target, num_workers, is_chief, distributed_mode);
        let before = runs.entry(job).or_default().insert(index, entry);
        assert_eq!(before, None, "worker_fn runs a second time for {:?}", context.task);
        Outcome::done()
    }

    /// The entries of runs.
    fn entries(&self) -> BTreeMap<Option<TaskType>, BTreeMap<u32, Entry>> {
        self.runs.lock().expect("the recorder doesn't panic").clone()
    }

    /// Whether each server was joined.
    fn joined(&self) -> BTreeMap<TaskType, BTreeMap<u32, bool>> {
        self.servers.lock().expect("the recorder doesn't panic").clone()
    }
}

impl Effects for Recorder {
    async fn join(&self, server: &ServerPlan) -> Outcome {
        self.server(server);
        Outcome::done()
    }

    async fn run_task(&self, _: Task, server: Option<&ServerPlan>, context: Arc<WorkerContext>) -> Outcome {
        server.into_iter().for_each(|server| self.server(server));
        self.run(&context)
    }

    async fn run_local(&self, context: Arc<WorkerContext>) -> Outcome {
        self.run(&context)
    }

    async fn run_client(&self, contexts: Vec<Arc<WorkerContext>>) -> Outcome {
        contexts.iter().for_each(|context| assert_eq!(self.run(context), Outcome::done()));
        Outcome::done()
    }
}

/// Plans and carries out, as a run does.
fn coordinate(builder: &CoordinatorBuilder, recorder: &Recorder) {
    let plan = builder.plan().unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(runtime(false).block_on(execute(&plan, recorder)), Outcome::done());
}

fn split_client(cluster: &ClusterSpec, replication: Replication) -> CoordinatorBuilder {
    Coordinator::builder(replication).cluster(cluster).mode(Mode::SplitClient)
}

/// A coordinator for each task, each on a thread of its own.
fn independent_workers(cluster: &ClusterSpec, replication: Replication, recorder: &Recorder) {
    thread::scope(|scope| {
        for (task, _) in cluster.iter() {
            scope.spawn(move || {
                let builder = Coordinator::builder(replication).cluster(cluster).task(task);
                let builder = builder.mode(Mode::IndependentWorker).rpc_layer(RpcLayer::None).cluster_barrier(false);
                coordinate(&builder, recorder);
            });
        }
    });
}

/// Runs a coordinator for each task of a cluster, completed by `begin`, and `more` beside them. Stops what is left when `until` of
/// them have ended, and reports on those.
fn run_job(
    cluster: &mut Cluster,
    replication: Replication,
    begin: impl Fn(Task, CoordinatorBuilder) -> CoordinatorBuilder,
    more: Vec<CoordinatorBuilder>,
    until: usize,
) -> Vec<Report> {
    let tasks = cluster.coordinators(replication).into_iter().map(|(task, builder)| begin(task, builder));
    let coordinators: Vec<_> =
        tasks.chain(more).map(|builder| builder.build().unwrap_or_else(|faults| panic!("{faults}"))).collect();
    let stops: Vec<_> = coordinators.iter().map(Coordinator::stop_handle).collect();
    runtime(true).block_on(async {
        let mut runs = JoinSet::new();
        coordinators.into_iter().for_each(|coordinator| drop(runs.spawn(coordinator.run())));
        let mut reports = Vec::new();
        while reports.len() < until {
            let next = tokio::time::timeout(LONG, runs.join_next()).await.expect("the job ends");
            reports.push(next.expect("there are as many").expect("it doesn't panic"));
        }
        stops.iter().for_each(|stop| stop.stop());
        drop(tokio::time::timeout(LONG, runs.join_all()).await.expect("servers stop"));
        reports
    })
}

fn successes(reports: &[Report]) -> usize {
    reports.iter().flat_map(|report| &report.runs).filter(|run| run.outcome.exit == Exit::Done).count()
}

/// The op that adds the new values runs on `worker:0`, as TensorFlow's `add_n` does.
#[test]
fn s1_in_graph_split_client() {
    let lines = Lines::default();
    let mut cluster = Cluster::bind(&[(WORKER, 3), (PS, 2)]);
    let client = split_client(&cluster.spec, Replication::InGraph);
    let client = client.loaded_module(&load(in_graph())).consoles(lines.consoles());
    let server = |_, builder: CoordinatorBuilder| builder.mode(Mode::SplitClient).consoles(lines.consoles());
    let reports = run_job(&mut cluster, Replication::InGraph, server, vec![client], 1);
    done(&reports[0]);
    assert_eq!(lines.sorted(), ["- sum=33", "worker:0 adds"], "1: 33.0 is computed, on worker:0");
    assert_eq!(successes(&reports), 1, "2: it ran and succeeded exactly once");
}

#[test]
fn s2_between_graph_split_client() {
    let lines = Lines::default();
    let mut cluster = Cluster::bind(&[(WORKER, 3), (PS, 2)]);
    let client = split_client(&cluster.spec, Replication::BetweenGraph);
    let client = client.loaded_module(&load(between_graph())).consoles(lines.consoles());
    let server = |_, builder: CoordinatorBuilder| builder.mode(Mode::SplitClient);
    let reports = run_job(&mut cluster, Replication::BetweenGraph, server, vec![client], 1);
    done(&reports[0]);
    let lines = lines.sorted();
    assert!(lines.iter().all(|line| line.contains("x=16 ")), "3: each run reads x=16: {lines:?}");
    assert!(lines.iter().all(|line| line.ends_with(" y=14")), "4: each run reads y=14: {lines:?}");
    assert_eq!((successes(&reports), lines.len()), (3, 3), "5: exactly 3 successes");
}

#[test]
fn s3_contexts_between_graph_split_client() {
    let recorder = Recorder::default();
    coordinate(&split_client(&three_workers_and_two_ps(), Replication::BetweenGraph), &recorder);
    let entries = recorder.entries();
    assert_eq!(entries.len(), 1, "6: one task type is seen");
    assert!(entries.contains_key(&Some(WORKER)), "7: it is worker");
    let workers = &entries[&Some(WORKER)];
    assert_eq!(workers.len(), 3, "8: three entries");
    assert_eq!(workers[&0], entry("grpc://localhost:2220", 3, true, true), "9");
    assert_eq!(workers[&1], entry("grpc://localhost:2221", 3, false, true), "10");
    assert_eq!(workers[&2], entry("grpc://localhost:2222", 3, false, true), "11");
}

#[test]
fn s4_contexts_in_graph_split_client() {
    let recorder = Recorder::default();
    coordinate(&split_client(&three_workers_and_two_ps(), Replication::InGraph), &recorder);
    let entries = recorder.entries();
    assert_eq!(entries.len(), 1, "12: one task type is seen");
    assert!(entries.contains_key(&None), "13: it is none");
    assert_eq!(entries[&None].len(), 1, "14: one entry");
    assert_eq!(entries[&None][&0], entry("grpc://localhost:2220", 3, true, true), "15");
}

#[test]
fn s5_contexts_of_a_local_run() {
    let recorder = Recorder::default();
    coordinate(&Coordinator::builder(Replication::BetweenGraph), &recorder);
    let entries = recorder.entries();
    assert_eq!(entries.len(), 1, "16: one task type is seen");
    assert!(entries.contains_key(&None), "17: it is none");
    assert_eq!(entries[&None].len(), 1, "18: one entry");
    assert_eq!(entries[&None][&0], entry("local", 0, true, false), "19");
}

#[test]
fn s6_contexts_between_graph_with_chief_split_client() {
    let recorder = Recorder::default();
    let cluster = three_workers_and_two_ps().with_job(CHIEF, ["fake_chief"]);
    coordinate(&split_client(&cluster, Replication::BetweenGraph).rpc_layer(RpcLayer::Grpc), &recorder);
    let entries = recorder.entries();
    assert_eq!(entries.len(), 2, "20: two task types are seen");
    assert!(entries.contains_key(&Some(CHIEF)), "21: chief is seen");
    assert!(entries.contains_key(&Some(WORKER)), "22: worker is seen");
    let (chiefs, workers) = (&entries[&Some(CHIEF)], &entries[&Some(WORKER)]);
    assert_eq!(chiefs.len(), 1, "23: one chief entry");
    assert_eq!(workers.len(), 3, "24: three worker entries");
    assert_eq!(chiefs[&0], entry("grpc://fake_chief", 4, true, true), "25");
    assert_eq!(workers[&0], entry("grpc://localhost:2220", 4, false, true), "26");
    assert_eq!(workers[&1], entry("grpc://localhost:2221", 4, false, true), "27");
    assert_eq!(workers[&2], entry("grpc://localhost:2222", 4, false, true), "28");
}

#[test]
fn s7_contexts_in_graph_with_evaluator_split_client() {
    let recorder = Recorder::default();
    let cluster = three_workers_and_two_ps().with_job(EVALUATOR, ["fake_evaluator"]);
    coordinate(&split_client(&cluster, Replication::InGraph).rpc_layer(RpcLayer::None), &recorder);
    let entries = recorder.entries();
    assert_eq!(entries.len(), 2, "29: two task types are seen");
    assert!(entries.contains_key(&None), "30: none is seen");
    assert!(entries.contains_key(&Some(EVALUATOR)), "31: evaluator is seen");
    assert_eq!(entries[&None].len(), 1, "32: one entry of none");
    assert_eq!(entries[&Some(EVALUATOR)].len(), 1, "33: one evaluator entry");
    assert_eq!(entries[&None][&0], entry("localhost:2220", 3, true, true), "34");
    assert_eq!(entries[&Some(EVALUATOR)][&0], entry("fake_evaluator", 3, true, false), "35");
}

/// The op runs on `worker:0`, as in [`s1_in_graph_split_client`]: on the driver's own task.
#[test]
fn i1_in_graph_independent_workers() {
    let lines = Lines::default();
    let module = load(in_graph());
    let mut cluster = Cluster::bind(&[(WORKER, 3)]);
    let worker = |_, builder: CoordinatorBuilder| {
        builder.mode(Mode::IndependentWorker).loaded_module(&module).consoles(lines.consoles())
    };
    // Where TensorFlow's joined workers stay for ever, dchost's leave with the job: all three end.
    let reports = run_job(&mut cluster, Replication::InGraph, worker, Vec::new(), 3);
    reports.iter().for_each(done);
    assert_eq!(lines.sorted(), ["- sum=33", "worker:0 adds"], "36: 33.0 is computed, on worker:0");
    assert_eq!(successes(&reports), 1, "37: exactly one success");
}

#[test]
fn i2_between_graph_independent_workers() {
    let lines = Lines::default();
    let module = load(between_graph());
    let mut cluster = Cluster::bind(&[(WORKER, 3), (PS, 2)]);
    let task = |task: Task, builder: CoordinatorBuilder| {
        let builder = builder.mode(Mode::IndependentWorker);
        if task.job == PS { builder } else { builder.loaded_module(&module).consoles(lines.consoles()) }
    };
    // Where TensorFlow's ps tasks never return, dchost's leave with the job: all five end.
    let reports = run_job(&mut cluster, Replication::BetweenGraph, task, Vec::new(), 5);
    reports.iter().for_each(done);
    let lines = lines.sorted();
    assert!(lines.iter().all(|line| line.contains("x=16 ")), "38: each run reads x=16: {lines:?}");
    assert!(lines.iter().all(|line| line.ends_with(" y=14")), "39: each run reads y=14: {lines:?}");
    assert_eq!((successes(&reports), lines.len()), (3, 3), "40: exactly 3 successes");
}

#[test]
fn i3_contexts_between_graph_independent_workers() {
    let recorder = Recorder::default();
    independent_workers(&three_workers(), Replication::BetweenGraph, &recorder);
    let entries = recorder.entries();
    assert_eq!(entries.len(), 1, "41: one task type is seen");
    assert!(entries.contains_key(&Some(WORKER)), "42: it is worker");
    let workers = &entries[&Some(WORKER)];
    assert_eq!(workers.len(), 3, "43: three entries");
    assert_eq!(workers[&0], entry("localhost:2220", 3, true, true), "44");
    assert_eq!(workers[&1], entry("localhost:2221", 3, false, true), "45");
    assert_eq!(workers[&2], entry("localhost:2222", 3, false, true), "46");
    let servers = recorder.joined();
    assert_eq!(servers.len(), 1, "47: servers of one type");
    assert!(servers.contains_key(&WORKER), "48: it is worker");
    let servers = &servers[&WORKER];
    assert_eq!(servers.len(), 3, "49: three servers");
    assert!(!servers[&0], "50: server 0 isn't joined");
    assert!(!servers[&1], "51: server 1 isn't joined");
    assert!(!servers[&2], "52: server 2 isn't joined");
}

#[test]
fn i4_contexts_in_graph_independent_workers() {
    let recorder = Recorder::default();
    independent_workers(&three_workers(), Replication::InGraph, &recorder);
    let entries = recorder.entries();
    assert_eq!(entries.len(), 1, "53: one task type is seen");
    assert!(entries.contains_key(&None), "54: it is none");
    assert_eq!(entries[&None].len(), 1, "55: one entry");
    assert_eq!(entries[&None][&0], entry("localhost:2220", 3, true, true), "56");
    let servers = recorder.joined();
    assert_eq!(servers.len(), 1, "57: servers of one type");
    assert!(servers.contains_key(&WORKER), "58: it is worker");
    let servers = &servers[&WORKER];
    assert_eq!(servers.len(), 3, "59: three servers");
    assert!(!servers[&0], "60: server 0 isn't joined");
    assert!(servers[&1], "61: server 1 is joined");
    assert!(servers[&2], "62: server 2 is joined");
}

#[test]
fn i5_contexts_in_graph_with_evaluator_independent_workers() {
    let recorder = Recorder::default();
    let cluster = three_workers().with_job(EVALUATOR, ["localhost:2225"]);
    independent_workers(&cluster, Replication::InGraph, &recorder);
    let entries = recorder.entries();
    assert_eq!(entries.len(), 2, "63: two task types are seen");
    assert!(entries.contains_key(&None), "64: none is seen");
    assert!(entries.contains_key(&Some(EVALUATOR)), "65: evaluator is seen");
    assert_eq!(entries[&None].len(), 1, "66: one entry of none");
    assert_eq!(entries[&Some(EVALUATOR)].len(), 1, "67: one evaluator entry");
    assert_eq!(entries[&None][&0], entry("localhost:2220", 3, true, true), "68");
    assert_eq!(entries[&Some(EVALUATOR)][&0], entry("localhost:2225", 3, true, false), "69");
    let servers = recorder.joined();
    assert_eq!(servers.len(), 2, "70: servers of two types");
    assert!(servers.contains_key(&WORKER), "71: worker");
    assert!(servers.contains_key(&EVALUATOR), "72: evaluator");
    let (workers, evaluators) = (&servers[&WORKER], &servers[&EVALUATOR]);
    assert_eq!(workers.len(), 3, "73: three worker servers");
    assert_eq!(evaluators.len(), 1, "74: one evaluator server");
    assert!(!workers[&0], "75: worker server 0 isn't joined");
    assert!(workers[&1], "76: server 1 is joined");
    assert!(workers[&2], "77: server 2 is joined");
    assert!(!evaluators[&0], "78: the evaluator's server isn't joined");
}
