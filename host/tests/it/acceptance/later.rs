//! What TensorFlow's twelve tests imply and don't assert, numbered on from theirs; and cases of its later tests, `l1` to `l13`,
//! with a note where dchost departs.
//!
//! # Source
//! `distribute_coordinator.py`, and the tests of `multi_worker_util`, of the TF_CONFIG resolver and of `server_lib`.

use super::*;
use crate::ops::{component, digest};
use crate::variables::{initialize, pull, u8s};
use dchost::client::channel::{Connections, Peers, PeersOptions};
use dchost::client::ops::{Component, RemoteOps};
use dchost::client::variables::RemoteVariables;
use dchost::coordinator::plan::Plan;
use dchost::error::{ErrorCode, Result};
use dchost::handles::OpCall;
use dchost::ids::{Caller, RunId};
use dchost::tensor::Tensor;
use std::net::TcpListener;
use std::time::Duration;
use tokio::runtime::Handle;

const CHIEF_0: Task = Task::new(CHIEF, 0);
const WORKER_0: Task = Task::new(WORKER, 0);

fn builder(cluster: &ClusterSpec, mode: Mode, replication: Replication) -> CoordinatorBuilder {
    Coordinator::builder(replication).cluster(cluster).mode(mode)
}

#[track_caller]
fn plan(builder: &CoordinatorBuilder) -> Plan {
    builder.plan().unwrap_or_else(|faults| panic!("{faults}"))
}

#[track_caller]
fn refused(builder: &CoordinatorBuilder, texts: &[&str]) {
    let faults = builder.plan().expect_err("it is refused").to_string();
    assert!(texts.iter().all(|text| faults.contains(text)), "{texts:?} in: {faults}");
}

/// The task that a plan serves or, without a server, runs.
fn task_of(plan: &Plan) -> Option<Task> {
    plan.server.as_ref().map(|server| server.task).or_else(|| plan.runs.first().and_then(|run| run.task))
}

/// An independent worker of TF_CONFIG.
fn of_tf_config(text: &str) -> CoordinatorBuilder {
    Coordinator::builder(Replication::BetweenGraph).mode(Mode::IndependentWorker).tf_config(text)
}

// What the twelve imply.

#[test]
fn ps_are_joined_in_both_modes() {
    for replication in [Replication::BetweenGraph, Replication::InGraph] {
        let recorder = Recorder::default();
        independent_workers(&three_workers_and_two_ps(), replication, &recorder);
        assert_eq!(recorder.joined()[&PS], [(0, true), (1, true)].into(), "79: {replication:?}");
        let recorder = Recorder::default();
        for index in 0..2 {
            let task = Task::new(PS, index);
            coordinate(&split_client(&three_workers_and_two_ps(), replication).task(task), &recorder);
        }
        assert_eq!(recorder.joined(), [(PS, [(0, true), (1, true)].into())].into(), "80: {replication:?}");
        assert!(recorder.entries().is_empty(), "80: no run");
    }
}

/// Independent between-graph workers have one too, which TensorFlow's don't: they do as those without the cluster's barrier.
#[test]
fn has_barrier_follows_from_the_context() {
    let barriers = |builder: &CoordinatorBuilder| -> Vec<(Option<Task>, bool)> {
        plan(builder).runs.iter().map(|run| (run.task, run.has_barrier)).collect()
    };
    let cluster = three_workers().with_job(CHIEF, ["fake_chief"]).with_job(EVALUATOR, ["fake_evaluator"]);
    let task = |job, index| Some(Task::new(job, index));
    let mut between = barriers(&split_client(&cluster, Replication::BetweenGraph));
    between.sort_unstable();
    let mut expected = vec![(task(CHIEF, 0), true), (task(EVALUATOR, 0), false)];
    expected.extend((0..3).map(|index| (task(WORKER, index), true)));
    expected.sort_unstable();
    assert_eq!(between, expected, "81: split, between-graph: all but the evaluator");
    let in_graph = barriers(&split_client(&cluster, Replication::InGraph));
    assert!(in_graph.len() == 2 && in_graph.iter().all(|(_, barrier)| !barrier), "82: split, in-graph: {in_graph:?}");
    let local = barriers(&Coordinator::builder(Replication::BetweenGraph).mode(Mode::SplitClient));
    assert_eq!(local, [(None, false)], "83: local");
    let independent = builder(&cluster, Mode::IndependentWorker, Replication::BetweenGraph).task(WORKER_0);
    assert_eq!(barriers(&independent), [(Some(WORKER_0), true)], "84: independent, between-graph");
    assert_eq!(barriers(&independent.cluster_barrier(false)), [(Some(WORKER_0), false)], "85: as TensorFlow's");
    let evaluator = builder(&cluster, Mode::IndependentWorker, Replication::BetweenGraph).task(Task::new(EVALUATOR, 0));
    assert_eq!(barriers(&evaluator), [(task(EVALUATOR, 0), false)], "86: independent evaluator");
    let driver = builder(&cluster, Mode::IndependentWorker, Replication::InGraph).task(CHIEF_0);
    assert_eq!(barriers(&driver), [(None, false)], "87: independent, in-graph");
}

#[test]
fn split_tasks_serve_and_join_without_worker_fn() {
    let cluster = three_workers_and_two_ps().with_job(CHIEF, ["fake_chief"]).with_job(EVALUATOR, ["fake_evaluator"]);
    for replication in [Replication::BetweenGraph, Replication::InGraph] {
        let recorder = Recorder::default();
        cluster.iter().for_each(|(task, _)| coordinate(&split_client(&cluster, replication).task(task), &recorder));
        assert!(recorder.entries().is_empty(), "88: no run");
        let joined = recorder.joined();
        assert_eq!(joined.values().map(BTreeMap::len).sum::<usize>(), 7, "89: a server for each task");
        assert!(joined.values().flat_map(BTreeMap::values).all(|&joined| joined), "90: all are joined");
    }
}

#[test]
fn split_between_graph_runs_the_evaluator_too() {
    let recorder = Recorder::default();
    let cluster = three_workers_and_two_ps().with_job(EVALUATOR, ["fake_evaluator"]);
    coordinate(&split_client(&cluster, Replication::BetweenGraph), &recorder);
    let entries = recorder.entries();
    assert_eq!(entries.len(), 2, "91: two task types");
    let evaluators = [(0, entry("grpc://fake_evaluator", 3, true, false))].into();
    assert_eq!(entries[&Some(EVALUATOR)], evaluators, "92: the evaluator");
    let workers = &entries[&Some(WORKER)];
    assert_eq!(workers.len(), 3, "93: three workers");
    assert_eq!(workers[&0], entry("grpc://localhost:2220", 3, true, true), "94: worker:0 is the chief");
    assert!(recorder.joined().is_empty(), "95: no server");
}

#[test]
fn chief_of_independent_workers_runs() {
    let cluster = three_workers_and_two_ps().with_job(CHIEF, ["fake_chief"]);
    let recorder = Recorder::default();
    independent_workers(&cluster, Replication::BetweenGraph, &recorder);
    let entries = recorder.entries();
    assert_eq!(entries[&Some(CHIEF)], [(0, entry("fake_chief", 4, true, true))].into(), "96: the chief");
    assert_eq!(entries[&Some(WORKER)][&0], entry("localhost:2220", 4, false, true), "97: worker:0 is none");
    assert_eq!(recorder.joined()[&CHIEF], [(0, false)].into(), "98: its server isn't joined");
    let recorder = Recorder::default();
    independent_workers(&cluster, Replication::InGraph, &recorder);
    let driver = [(0, entry("fake_chief", 4, true, true))].into();
    assert_eq!(recorder.entries(), [(None, driver)].into(), "99: in-graph, the driver is the only run");
    assert_eq!(recorder.joined()[&CHIEF], [(0, false)].into(), "100: its server isn't joined");
    let workers = [(0, true), (1, true), (2, true)].into();
    assert_eq!(recorder.joined()[&WORKER], workers, "101: all workers are");
}

// Later tests.

/// TensorFlow hands the layer `cake` to its server. dchost has gRPC alone: another layer is ignored with a warning.
#[test]
fn l1_foreign_rpc_layer_is_warned_about() {
    let cluster = ClusterSpec::new().with_job(WORKER, ["localhost:2220"]).with_job(PS, ["localhost:2221"]);
    let ps = builder(&cluster, Mode::IndependentWorker, Replication::BetweenGraph).task(Task::new(PS, 0));
    let ps = ps.tf_config(r#"{"rpc_layer":"cake"}"#).build().unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(task_of(ps.plan()), Some(Task::new(PS, 0)));
    assert!(ps.warnings().iter().any(|warning| warning.contains("`cake`")), "{:?}", ps.warnings());
}

/// TensorFlow's helper takes 0 for a missing index. dchost does where the job has one task, and else asks.
#[test]
fn l2_missing_index_is_that_of_the_only_task() {
    let ps = of_tf_config(r#"{"cluster":{"worker":["a:1","b:1"],"ps":["c:1"]},"task":{"type":"ps"}}"#);
    let ps = plan(&ps);
    assert_eq!((task_of(&ps), ps.leader), (Some(Task::new(PS, 0)), Some(WORKER_0)));
    let worker = of_tf_config(r#"{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker"}}"#);
    refused(&worker, &["`worker` has no index"]);
    let worker = of_tf_config(r#"{"cluster":{"worker":["a:1"]},"task":{"type":"worker"}}"#);
    assert_eq!(plan(&worker).runs[0].master_target, "grpc://a:1", "rpc is grpc");
}

#[test]
fn l3_chief_is_the_chief_task_where_there_is_one() {
    let cluster = ClusterSpec::new().with_job(CHIEF, ["a:1"]).with_job(WORKER, ["b:1", "c:1"]);
    let cluster = cluster.with_job(PS, ["d:1", "e:1"]);
    let is_chief =
        |task| plan(&builder(&cluster, Mode::IndependentWorker, Replication::BetweenGraph).task(task)).runs[0].is_chief;
    assert!(is_chief(CHIEF_0));
    assert!(!is_chief(WORKER_0));
}

#[test]
fn l4_worker_0_is_chief_where_there_is_none() {
    let cluster = ClusterSpec::new().with_job(WORKER, ["b:1", "c:1"]);
    let of = |task| builder(&cluster, Mode::IndependentWorker, Replication::BetweenGraph).task(task);
    assert!(plan(&of(WORKER_0)).runs[0].is_chief);
    assert!(!plan(&of(Task::new(WORKER, 1))).runs[0].is_chief);
    refused(&of(CHIEF_0), &["chief"]);
    refused(&of(Task::new(WORKER, 2)), &["`worker:2`"]);
}

/// TensorFlow's resolver lets its arguments beat TF_CONFIG. In dchost so does a cluster, with its task; a task alone must
/// agree.
#[test]
fn l5_arguments_and_tf_config() {
    let text = r#"{"cluster":{"worker":["a:1"],"ps":["b:1","c:1"]},"task":{"type":"ps","index":1}}"#;
    let ps_0 = of_tf_config(text).task(Task::new(PS, 0));
    refused(&ps_0, &["`ps:0`", "TF_CONFIG", "1"]);
    let cluster = ClusterSpec::new().with_job(WORKER, ["a:1"]).with_job(PS, ["b:1", "c:1"]);
    assert_eq!(task_of(&plan(&ps_0.cluster(&cluster))), Some(Task::new(PS, 0)));
}

/// TensorFlow makes text of it, and fails later; no job of a cluster has such a name.
#[test]
fn l6_task_type_that_is_a_number_is_refused() {
    let text = r#"{"cluster":{"worker":["a:1"]},"task":{"type":123456,"index":0}}"#;
    refused(&of_tf_config(text), &["`123456`"]);
}

#[test]
fn l7_index_may_be_text() {
    let text = r#"{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":"1"}}"#;
    assert_eq!(task_of(&plan(&of_tf_config(text))), Some(Task::new(WORKER, 1)));
}

/// The master of a local run is `local`, as in the twelve, where later versions leave it empty. A cluster of one task keeps
/// its address: other tasks may be started with it.
#[test]
fn l8_local_master() {
    let local = plan(&of_tf_config("{}"));
    assert!(local.is_local());
    assert_eq!(local.runs[0].master_target, "local");
    let one = plan(&of_tf_config(r#"{"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":0}}"#));
    assert_eq!(one.runs[0].master_target, "grpc://a:1");
}

/// A session of its own on the tasks of a cluster.
fn session(cluster: &ClusterSpec, run: u64) -> Peers {
    Peers::new(PeersOptions {
        client_use: None,
        leader: None,
        connections: Connections::default(),
        cluster: cluster.clone(),
        caller: Caller { container: "default".into(), task: Some(WORKER_0), run_id: RunId(run), attempt: None },
        runtime: Handle::current(),
        connect_timeout: LONG,
        rejoin_timeout: LONG,
    })
}

/// Does some work while the server of `worker:0` serves, which is alone.
fn while_serving(work: impl AsyncFnOnce(&ClusterSpec)) {
    let mut cluster = Cluster::bind(&[(WORKER, 1)]);
    let (_, server) = cluster.coordinators(Replication::BetweenGraph).pop().expect("one task");
    let server = server.mode(Mode::SplitClient).build().unwrap_or_else(|faults| panic!("{faults}"));
    let stop = server.stop_handle();
    runtime(true).block_on(async {
        let serving = tokio::spawn(server.run());
        tokio::time::timeout(LONG, work(&cluster.spec)).await.expect("it ends");
        stop.stop();
        let report = tokio::time::timeout(LONG, serving).await.expect("it stops").expect("it doesn't panic");
        assert_eq!(report.outcome.exit, Exit::Terminated);
    });
}

/// Where TensorFlow says failed-precondition for a variable without value, dchost has a code of its own, with the names.
#[test]
fn l13_sessions_of_a_server_share_its_state() {
    while_serving(async |cluster| {
        let [a, b] = [1, 2].map(|run| RemoteVariables::new(session(cluster, run), WORKER_0));
        let w = u8s("w", 3);
        let error = pull(&b, &w).await.expect_err("it has no value");
        assert_eq!((error.code, &*error.names), (ErrorCode::Uninitialized, &["w".to_owned()][..]));
        initialize(&a, &w, &[1, 2, 3]).await.expect("it is set");
        assert_eq!(pull(&b, &w).await.expect("it has a value").tensor.data, [1, 2, 3][..]);
    });
}

/// Method: an op that never ends, then another of the same session.
#[test]
fn l13_call_that_takes_too_long_ends_at_its_deadline() {
    while_serving(async |cluster| {
        let bytes = component(0);
        let component =
            Component { digest: digest(&bytes), bytes: bytes.into(), args: Vec::new(), tensor_bytes_max: 1 << 20 };
        let ops = RemoteOps::new(session(cluster, 1), WORKER_0, Arc::new(component));
        let call = async |op: &str, timeout| -> Result<Vec<Tensor>> {
            ops.start(OpCall { op: op.to_owned(), inputs: Vec::new(), timeout }).expect("its form is good").take().await
        };
        let error = call("spin", Some(Duration::from_millis(50))).await.expect_err("it never ends");
        assert_eq!((error.code, &error.tasks[..]), (ErrorCode::DeadlineExceeded, &[WORKER_0][..]), "{error}");
        assert_eq!(call("count", None).await.expect("the server goes on")[0].data, [1, 0, 0, 0][..]);
    });
}

#[test]
fn l13_port_that_is_used_ends_the_second_server() {
    let used = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = used.local_addr().expect("it is bound").to_string();
    let cluster = ClusterSpec::new().with_job(WORKER, [&*address]);
    let server = builder(&cluster, Mode::SplitClient, Replication::BetweenGraph).task(WORKER_0);
    let report = server.build().unwrap_or_else(|faults| panic!("{faults}")).run_blocking();
    assert_eq!(report.outcome.exit, Exit::Bind);
    let message = report.outcome.message.expect("a reason");
    assert!(message.contains(&address) && message.contains("another process has the port"), "{message}");
}

#[test]
fn l13_address_without_port_is_refused_before_anything_starts() {
    let cluster = ClusterSpec::new().with_job(WORKER, ["localhost"]);
    let server = builder(&cluster, Mode::SplitClient, Replication::BetweenGraph).task(WORKER_0);
    let faults = server.build().err().expect("it is refused").to_string();
    assert!(faults.contains("`worker:0`") && faults.contains("no port"), "{faults}");
}
