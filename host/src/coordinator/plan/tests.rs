//! The dispatch and context tables, row by row; addresses as in TensorFlow's own tests, which need no port.

use super::*;
use TaskType::{Chief, Client, Evaluator, Ps, Worker};

fn workers_and_ps() -> ClusterSpec {
    ClusterSpec::new()
        .with_job(Worker, ["localhost:1", "localhost:2", "localhost:3"])
        .with_job(Ps, ["localhost:4", "localhost:5"])
}

struct Case {
    cluster: ClusterSpec,
    task: Option<Task>,
    mode: Option<Mode>,
    replication: Replication,
    rpc_layer: RpcLayer,
    cluster_barrier: bool,
}

impl Case {
    fn new(cluster: ClusterSpec, mode: Mode, replication: Replication) -> Self {
        Case { cluster, task: None, mode: Some(mode), replication, rpc_layer: RpcLayer::Grpc, cluster_barrier: true }
    }

    fn split(cluster: ClusterSpec, replication: Replication) -> Self {
        Case::new(cluster, Mode::SplitClient, replication)
    }

    fn independent(cluster: ClusterSpec, replication: Replication) -> Self {
        Case::new(cluster, Mode::IndependentWorker, replication)
    }

    fn bare(self) -> Self {
        Case { rpc_layer: RpcLayer::None, ..self }
    }

    fn plan(&self, task: impl Into<Option<(TaskType, u32)>>) -> Result<Plan, PlanError> {
        let task = task.into().map(|(job, index)| Task::new(job, index)).or(self.task);
        let Case { cluster, mode, replication, rpc_layer, cluster_barrier, .. } = self;
        plan(&PlanInput {
            cluster,
            task,
            mode: *mode,
            replication: *replication,
            rpc_layer: *rpc_layer,
            cluster_barrier: *cluster_barrier,
        })
    }
}

/// `task target num_workers chief distributed barrier`, flags as letters.
fn text(run: &WorkerContext) -> String {
    let task = run.task.map_or_else(|| "none".to_owned(), |task| task.to_string());
    let flags: String = [(run.is_chief, 'c'), (run.distributed_mode, 'd'), (run.has_barrier, 'b')]
        .into_iter()
        .map(|(set, letter)| if set { letter } else { '-' })
        .collect();
    format!("{task} {} {} {flags}", run.master_target, run.num_workers)
}

#[track_caller]
fn check(plan: Result<Plan, PlanError>, server: Option<(&str, bool)>, runs: &[&str]) {
    let plan = plan.expect("there is a plan");
    let planned = plan.server.as_ref().map(|server| (server.task.to_string(), server.joined));
    assert_eq!(planned, server.map(|(task, joined)| (task.to_owned(), joined)));
    assert_eq!(plan.runs.iter().map(text).collect::<Vec<_>>(), runs);
}

use Replication::{BetweenGraph, InGraph};

#[test]
fn split_between_graph_runs_each_worker_with_its_own_master() {
    check(
        Case::split(workers_and_ps(), BetweenGraph).plan(None),
        None,
        &[
            "worker:0 grpc://localhost:1 3 cdb",
            "worker:1 grpc://localhost:2 3 -db",
            "worker:2 grpc://localhost:3 3 -db",
        ],
    );
}

#[test]
fn split_in_graph_runs_one_driver() {
    check(Case::split(workers_and_ps(), InGraph).plan(None), None, &["none grpc://localhost:1 3 cd-"]);
    check(Case::split(workers_and_ps(), InGraph).plan((Client, 0)), None, &["none grpc://localhost:1 3 cd-"]);
}

#[test]
fn local_runs_have_neither_server_nor_workers_whatever_the_mode() {
    for mode in [None, Some(Mode::SplitClient), Some(Mode::IndependentWorker)] {
        let case = Case { mode, ..Case::split(ClusterSpec::new(), BetweenGraph) };
        check(case.plan(None), None, &["none local 0 c--"]);
        assert!(case.plan(None).expect("plan").is_local());
    }
}

#[test]
fn split_between_graph_counts_the_chief_and_demotes_worker_0() {
    let cluster = workers_and_ps().with_job(Chief, ["fake_chief"]);
    check(
        Case::split(cluster, BetweenGraph).plan(None),
        None,
        &[
            "chief:0 grpc://fake_chief 4 cdb",
            "worker:0 grpc://localhost:1 4 -db",
            "worker:1 grpc://localhost:2 4 -db",
            "worker:2 grpc://localhost:3 4 -db",
        ],
    );
}

#[test]
fn split_in_graph_runs_the_evaluator_beside_the_driver() {
    let cluster = workers_and_ps().with_job(Evaluator, ["fake_evaluator"]);
    check(
        Case::split(cluster, InGraph).bare().plan(None),
        None,
        &["evaluator:0 fake_evaluator 3 c--", "none localhost:1 3 cd-"],
    );
}

#[test]
fn split_tasks_serve_and_join() {
    for replication in [BetweenGraph, InGraph] {
        let case = Case::split(workers_and_ps().with_job(Chief, ["c"]).with_job(Evaluator, ["e"]), replication);
        for task in [(Chief, 0), (Worker, 2), (Ps, 1), (Evaluator, 0)] {
            check(case.plan(task), Some((&Task::new(task.0, task.1).to_string(), true)), &[]);
        }
    }
}

#[test]
fn independent_between_graph_serves_and_runs() {
    let cluster = workers_and_ps();
    let case = Case { cluster_barrier: false, ..Case::independent(cluster, BetweenGraph).bare() };
    check(case.plan((Worker, 0)), Some(("worker:0", false)), &["worker:0 localhost:1 3 cd-"]);
    check(case.plan((Worker, 1)), Some(("worker:1", false)), &["worker:1 localhost:2 3 -d-"]);
    check(case.plan((Ps, 1)), Some(("ps:1", true)), &[]);
}

#[test]
fn independent_between_graph_has_a_barrier_unless_told_otherwise_or_without_leader() {
    let case = Case::independent(workers_and_ps().with_job(Chief, ["c"]), BetweenGraph);
    check(case.plan((Chief, 0)), Some(("chief:0", false)), &["chief:0 grpc://c 4 cdb"]);
    check(case.plan((Worker, 0)), Some(("worker:0", false)), &["worker:0 grpc://localhost:1 4 -db"]);
    assert_eq!(case.plan((Worker, 0)).expect("plan").leader, Some(Task::new(Chief, 0)));

    let mut sparse = ClusterSpec::new().with_job(Ps, ["a", "b"]);
    sparse.insert(Task::new(Worker, 1), "c");
    let case = Case::independent(sparse, BetweenGraph);
    check(case.plan((Worker, 1)), Some(("worker:1", false)), &["worker:1 grpc://c 1 -d-"]);
    assert_eq!(case.plan((Worker, 1)).expect("plan").leader, None);
}

#[test]
fn independent_in_graph_runs_the_driver_on_the_leader_and_joins_the_rest() {
    let case = Case::independent(workers_and_ps(), InGraph).bare();
    check(case.plan((Worker, 0)), Some(("worker:0", false)), &["none localhost:1 3 cd-"]);
    check(case.plan((Worker, 1)), Some(("worker:1", true)), &[]);
    let case = Case::independent(workers_and_ps().with_job(Chief, ["c"]), InGraph);
    check(case.plan((Chief, 0)), Some(("chief:0", false)), &["none grpc://c 4 cd-"]);
    check(case.plan((Worker, 0)), Some(("worker:0", true)), &[]);
}

#[test]
fn evaluators_run_apart_with_a_server_only_where_listed() {
    for replication in [BetweenGraph, InGraph] {
        let listed = Case::independent(workers_and_ps().with_job(Evaluator, ["e"]), replication);
        check(listed.plan((Evaluator, 0)), Some(("evaluator:0", false)), &["evaluator:0 grpc://e 3 c--"]);
        let unlisted = Case::independent(workers_and_ps(), replication);
        check(unlisted.plan((Evaluator, 0)), None, &["evaluator:0 local 3 c--"]);
        assert_eq!(unlisted.plan((Evaluator, 0)).expect("plan").leader, Some(Task::new(Worker, 0)));
    }
}

#[test]
fn sparse_jobs_run_their_real_indices() {
    let mut cluster = ClusterSpec::new();
    cluster.insert(Task::new(Worker, 0), "a");
    cluster.insert(Task::new(Worker, 7), "h");
    check(Case::split(cluster, BetweenGraph).plan(None), None, &["worker:0 grpc://a 2 cdb", "worker:7 grpc://h 2 -db"]);
}

#[test]
fn a_server_that_learns_its_mode_joins() {
    let case = Case { mode: None, ..Case::independent(workers_and_ps(), BetweenGraph) };
    check(case.plan((Worker, 1)), Some(("worker:1", true)), &[]);
    assert_eq!(case.plan((Worker, 1)).expect("plan").leader, Some(Task::new(Worker, 0)));
}

#[test]
fn without_a_master_nothing_trains_and_that_is_an_error() {
    let ps_only = ClusterSpec::new().with_job(Ps, ["a"]);
    for replication in [BetweenGraph, InGraph] {
        let error = Case::split(ps_only.clone(), replication).plan(None).expect_err("refused");
        assert!(matches!(error, PlanError::NoMaster { .. }), "{error}");
    }
    check(Case::independent(ps_only, InGraph).plan((Ps, 0)), Some(("ps:0", true)), &[]);
    let mut sparse = ClusterSpec::new();
    sparse.insert(Task::new(Worker, 1), "c");
    let error = Case::split(sparse, InGraph).plan(None).expect_err("refused");
    assert!(error.to_string().contains("worker:0"), "{error}");
    let empty = ClusterSpec::new().with_job(Worker, [] as [&str; 0]);
    assert!(Case::split(empty, BetweenGraph).plan(None).is_err());
}

#[test]
fn refusals_name_the_task_and_what_there_is() {
    let case = Case::independent(workers_and_ps(), BetweenGraph);
    for (task, texts) in [
        (Some((Chief, 0)), vec!["`chief:0`", "ps (2 tasks), worker (3 tasks)", "worker:0 acts as chief"]),
        (Some((Worker, 7)), vec!["`worker:7`", "worker:0, worker:1, worker:2"]),
        (Some((Client, 0)), vec!["`client`", "independent-worker"]),
        (None, vec!["no task", "worker (3 tasks)"]),
    ] {
        let error = case.plan(task).expect_err("refused").to_string();
        texts.iter().for_each(|text| assert!(error.contains(text), "`{error}` lacks `{text}`"));
    }
    let local = Case::split(ClusterSpec::new(), InGraph);
    assert_eq!(local.plan((Worker, 0)), Err(PlanError::TaskWithoutCluster(Task::new(Worker, 0))));
    let listed = Case::independent(workers_and_ps().with_job(Evaluator, ["e"]), BetweenGraph);
    assert!(matches!(listed.plan((Evaluator, 1)), Err(PlanError::UnknownIndex { .. })));
}
