//! Coordinators within a program: on any executor, many at once, stopped from outside, and never from what a run calls.

use crate::guests::{Calls, LONG, Lines, between_graph, hello, spins};
use dchost::attend::{Mode, Replication};
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::context::WorkerContext;
use dchost::coordinator::console::{ProgressMode, Screen, Stream};
use dchost::coordinator::embed::Report;
use dchost::coordinator::resolve::values::RpcLayer;
use dchost::exit::Exit;
use dchost::handles::Console;
use dchost::runtime::{Engine, EngineOptions, Limits, Module};
use dchost::{Coordinator, CoordinatorBuilder};
use std::io::{self, Write};
use std::net::TcpListener;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

const BETWEEN: Replication = Replication::BetweenGraph;
const CLIENT: Task = Task::new(TaskType::Client, 0);
const WORKER: Task = Task::new(TaskType::Worker, 0);

/// A cluster on loopback whose sockets are bound.
pub(crate) struct Cluster {
    pub(crate) spec: ClusterSpec,
    sockets: Vec<(Task, TcpListener)>,
}

impl Cluster {
    pub(crate) fn bind(jobs: &[(TaskType, u32)]) -> Cluster {
        let mut cluster = Cluster { spec: ClusterSpec::new(), sockets: Vec::new() };
        for &(job, count) in jobs {
            for index in 0..count {
                let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
                let port = listener.local_addr().expect("it is bound").port();
                cluster.spec.insert(Task::new(job, index), format!("localhost:{port}"));
                cluster.sockets.push((Task::new(job, index), listener));
            }
        }
        cluster
    }

    /// Begins a coordinator for each task, with its socket.
    pub(crate) fn coordinators(&mut self, replication: Replication) -> Vec<(Task, CoordinatorBuilder)> {
        let spec = &self.spec;
        let begin =
            |(task, socket)| (task, Coordinator::builder(replication).cluster(spec).task(task).listener(socket));
        self.sockets.drain(..).map(begin).collect()
    }
}

/// Compiles once, for as many coordinators as there are.
pub(crate) fn load(component: Vec<u8>) -> Module {
    let engine = Engine::new(EngineOptions::default()).expect("wasmtime runs here");
    runtime(false).block_on(engine.load_bytes("guest.wasm", component.into())).expect("it is a component")
}

pub(crate) fn runtime(multi: bool) -> Runtime {
    let mut builder = if multi { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    builder.enable_all().build().expect("there are threads")
}

fn local() -> CoordinatorBuilder {
    Coordinator::builder(BETWEEN)
}

#[track_caller]
pub(crate) fn done(report: &Report) {
    assert_eq!(report.outcome.exit, Exit::Done, "{:?}", report.outcome.message);
}

/// A console that tells each line to a channel.
fn telling() -> (impl Fn(&WorkerContext) -> Arc<dyn Console> + Send + Sync + 'static, mpsc::UnboundedReceiver<String>) {
    let (tell, told) = mpsc::unbounded_channel();
    let consoles = move |_: &WorkerContext| -> Arc<dyn Console> {
        let tell = tell.clone();
        // Nobody listens to the last lines of some.
        Arc::new(Calls(move |text: &str| drop(tell.send(text.to_owned()))))
    };
    (consoles, told)
}

/// Aim: a run blocks no executor. Method: a guest that never ends, on runtimes of one thread and of several; the same thread
/// hears the guest's line, and stops the run.
#[test]
fn a_run_is_awaited_on_any_runtime_and_blocks_none() {
    for multi in [false, true] {
        let (consoles, mut told) = telling();
        let coordinator = local().module_bytes("spins.wasm", spins()).consoles(consoles).build().expect("a local run");
        let stop = coordinator.stop_handle();
        runtime(multi).block_on(async {
            let stopping = async {
                assert_eq!(told.recv().await.as_deref(), Some("begun"));
                stop.stop();
                Instant::now()
            };
            let (report, stopped) = tokio::join!(coordinator.run(), stopping);
            assert!(stopped.elapsed() < LONG / 2, "it ends soon");
            assert_eq!(report.outcome.exit, Exit::Terminated);
            let message = report.outcome.message.expect("a reason");
            assert!(message.contains("asked to stop") && message.contains("the guest was computing"), "{message}");
            assert_eq!(report.runs.len(), 1);
        });
    }
}

#[test]
fn a_coordinator_that_is_stopped_before_it_runs_ends_at_once() {
    let coordinator = local().module_bytes("spins.wasm", spins()).build().expect("a local run");
    coordinator.stop_handle().stop();
    assert_eq!(coordinator.run_blocking().outcome.exit, Exit::Terminated);
}

/// Aim: nothing of a dropped run stays. Method: its console is dropped with it, and its channel ends.
#[test]
fn a_dropped_run_ends_by_itself() {
    let (consoles, mut told) = telling();
    let mut cluster = Cluster::bind(&[(TaskType::Worker, 1)]);
    let (_, builder) = cluster.coordinators(BETWEEN).pop().expect("one task");
    let coordinator = builder.module_bytes("spins.wasm", spins()).consoles(consoles).build().expect("a worker");
    runtime(false).block_on(async {
        {
            let mut run = pin!(coordinator.run());
            let line = tokio::select! {
                report = run.as_mut() => panic!("it ended: {report:?}"),
                line = told.recv() => line,
            };
            assert_eq!(line.as_deref(), Some("begun"));
        }
        let ended = async { while told.recv().await.is_some() {} };
        tokio::time::timeout(LONG, ended).await.expect("the dropped run has ended");
    });
    let address = cluster.spec.address(WORKER).expect("it is listed");
    let deadline = Instant::now() + LONG;
    while std::net::TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < deadline, "its socket is still open");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Aim: the embedder's own code can't hold up the end either. Method: a console that keeps its caller until the test lets go.
#[test]
fn a_console_that_blocks_holds_up_no_stop() {
    let (tell, told) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let console: Arc<dyn Console> = Arc::new(Calls({
        let (tell, released) = (Mutex::new(tell), Mutex::new(released));
        move |_: &str| {
            tell.lock().expect("nobody panics with it").send(()).expect("the test waits for it");
            // An error, since the sender is dropped, is the release.
            let _ = released.lock().expect("nobody panics with it").recv();
        }
    }));
    let consoles = move |_: &WorkerContext| console.clone();
    let coordinator = local().module_bytes("hello.wasm", hello()).consoles(consoles).build().expect("a local run");
    let stop = coordinator.stop_handle();
    let run = std::thread::spawn(|| coordinator.run_blocking());
    told.recv_timeout(LONG).expect("the guest writes");
    stop.stop();
    assert_eq!(run.join().expect("it doesn't panic").outcome.exit, Exit::Terminated);
    drop(release);
}

/// Writes once the test lets go: its sender is dropped then.
struct Unread(std::sync::mpsc::Receiver<()>);

impl Write for Unread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Aim: only who asks for it waits for the reader of what a run printed, and a stop ends that. Method: a reader that never
/// reads.
#[test]
fn a_run_ends_without_the_reader_of_its_output_unless_it_is_asked_to_wait() {
    for waits in [false, true] {
        let (_release, unread) = std::sync::mpsc::channel();
        let screen = Screen::over(Box::new(Unread(unread)), Box::new(io::sink()), ProgressMode::Lines);
        let printed = screen.clone();
        let console: Arc<dyn Console> =
            Arc::new(Calls(move |text: &str| printed.line(Stream::Stdout, text.as_bytes().to_vec())));
        let consoles = move |_: &WorkerContext| console.clone();
        let coordinator = local().module_bytes("hello.wasm", hello()).consoles(consoles).build().expect("a local run");
        let coordinator = if waits { coordinator.with_output(screen.clone()) } else { coordinator };
        let stop = coordinator.stop_handle();
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(coordinator.run_blocking()));
        if !waits {
            assert_eq!(ended.recv_timeout(LONG).expect("it ends").outcome.exit, Exit::Done);
            continue;
        }
        let deadline = Instant::now() + LONG;
        while screen.output_lines() == 0 {
            assert!(Instant::now() < deadline, "the guest prints");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        stop.stop();
        let report = ended.recv_timeout(LONG).expect("a stop ends the wait");
        assert_eq!(report.outcome.exit, Exit::Terminated);
    }
}

#[test]
fn a_future_that_is_dropped_unpolled_has_done_nothing() {
    let (consoles, mut told) = telling();
    let coordinator = local().module_bytes("hello.wasm", hello()).consoles(consoles).build().expect("a local run");
    drop(coordinator.run());
    assert!(told.try_recv().is_err() && told.is_closed());
}

/// Aim: a whole job in one process, as TensorFlow's tests do it. Method: 3 workers and 2 ps, each a coordinator on a socket of
/// its own, all on one runtime, all of one compiled module.
#[test]
fn a_job_of_many_coordinators_runs_in_one_process() {
    let module = load(between_graph());
    for multi in [false, true] {
        let lines = Lines::default();
        let mut cluster = Cluster::bind(&[(TaskType::Worker, 3), (TaskType::Ps, 2)]);
        let coordinators: Vec<_> = cluster
            .coordinators(BETWEEN)
            .into_iter()
            .map(|(_, builder)| builder.loaded_module(&module).consoles(lines.consoles()).build().expect("a task"))
            .collect();
        let reports = runtime(multi).block_on(async {
            let mut runs = tokio::task::JoinSet::new();
            coordinators.into_iter().for_each(|coordinator| drop(runs.spawn(coordinator.run())));
            tokio::time::timeout(LONG, runs.join_all()).await.expect("the job ends")
        });
        reports.iter().for_each(done);
        let ran = reports.iter().flat_map(|report| &report.runs).filter(|run| run.outcome.exit == Exit::Done);
        assert_eq!(ran.count(), 3);
        assert_eq!(lines.sorted(), ["worker:0 x=16 y=14", "worker:1 x=16 y=14", "worker:2 x=16 y=14"]);
    }
}

/// Aim: a split client and the servers that it drives, all in one process; several clients, one after the other.
#[test]
fn split_clients_use_servers_of_the_same_process() {
    let module = load(between_graph());
    let mut cluster = Cluster::bind(&[(TaskType::Worker, 3), (TaskType::Ps, 2)]);
    let servers: Vec<_> = cluster
        .coordinators(BETWEEN)
        .into_iter()
        .map(|(_, builder)| builder.mode(Mode::SplitClient).build().expect("a standard server"))
        .collect();
    let stops: Vec<_> = servers.iter().map(Coordinator::stop_handle).collect();
    runtime(true).block_on(async {
        let mut serving = tokio::task::JoinSet::new();
        servers.into_iter().for_each(|server| drop(serving.spawn(server.run())));
        for _ in 0..2 {
            let lines = Lines::default();
            let client = Coordinator::builder(BETWEEN).cluster(&cluster.spec).task(CLIENT).loaded_module(&module);
            let client = client.consoles(lines.consoles()).build().expect("a client");
            let report = tokio::time::timeout(LONG, client.run()).await.expect("the client ends");
            done(&report);
            assert_eq!(report.runs.len(), 3);
            assert_eq!(lines.sorted(), ["worker:0 x=16 y=14", "worker:1 x=16 y=14", "worker:2 x=16 y=14"]);
        }
        assert!(serving.try_join_next().is_none(), "the end of a client ends no server");
        stops.iter().for_each(|stop| stop.stop());
        let reports = tokio::time::timeout(LONG, serving.join_all()).await.expect("servers stop");
        assert!(reports.iter().all(|report| report.outcome.exit == Exit::Terminated), "{reports:?}");
    });
}

#[test]
fn runs_follow_each_other_in_one_process_and_on_one_port() {
    let module = load(hello());
    let mut cluster = Cluster::bind(&[(TaskType::Worker, 1)]);
    drop(cluster.sockets.drain(..));
    for _ in 0..2 {
        let lines = Lines::default();
        let builder = Coordinator::builder(BETWEEN).cluster(&cluster.spec).task(WORKER).loaded_module(&module);
        done(&builder.consoles(lines.consoles()).build().expect("a worker").run_blocking());
        assert_eq!(lines.sorted(), ["worker:0 hello"]);
    }
}

/// A coordinator of each mode that can run by itself; with how many of them had a console made.
fn of_every_mode(
    consoles: &(impl Fn(&WorkerContext) -> Arc<dyn Console> + Clone + Send + Sync + 'static),
) -> Vec<Coordinator> {
    let (_, worker) = Cluster::bind(&[(TaskType::Worker, 1)]).coordinators(BETWEEN).pop().expect("one task");
    // Nothing of it is asked for before a guest asks.
    let nobody = ClusterSpec::new().with_job(TaskType::Worker, ["localhost:9"]);
    let client = Coordinator::builder(BETWEEN).cluster(&nobody).task(CLIENT);
    let driver = Coordinator::builder(Replication::InGraph).cluster(&nobody).task(CLIENT);
    [local(), worker, client, driver]
        .map(|builder| {
            let builder = builder.module_bytes("hello.wasm", hello()).consoles(consoles.clone());
            builder.build().unwrap_or_else(|faults| panic!("{faults}"))
        })
        .into()
}

/// Aim: what a run calls can't start another coordinator, whatever the modes of the two. Method: a console that tries each mode
/// in both ways, on the thread that it is called on and on a thread of its own, which is nobody's business.
#[test]
fn what_a_run_calls_starts_no_coordinator_in_any_mode() {
    let refused = Arc::new(AtomicUsize::new(0));
    let started = Arc::new(AtomicUsize::new(0));
    let elsewhere = Arc::new(Mutex::new(Vec::new()));
    let consoles = {
        let (refused, started, elsewhere) = (refused.clone(), started.clone(), elsewhere.clone());
        move |_: &WorkerContext| -> Arc<dyn Console> {
            let (refused, started, elsewhere) = (refused.clone(), started.clone(), elsewhere.clone());
            Arc::new(Calls(move |_: &str| {
                let counted = {
                    let started = started.clone();
                    move |_: &WorkerContext| -> Arc<dyn Console> {
                        started.fetch_add(1, Ordering::Relaxed);
                        Arc::new(Calls(|_: &str| {}))
                    }
                };
                let mut reports: Vec<_> = of_every_mode(&counted).into_iter().map(Coordinator::run_blocking).collect();
                for coordinator in of_every_mode(&counted) {
                    match pin!(coordinator.run()).poll(&mut Context::from_waker(Waker::noop())) {
                        Poll::Ready(report) => reports.push(report),
                        Poll::Pending => panic!("it has begun"),
                    }
                }
                for report in reports {
                    let message = report.outcome.message.unwrap_or_default();
                    assert_eq!(report.outcome.exit, Exit::Refused, "{message}");
                    assert!(message.contains("from what a run of another one called"), "{message}");
                    refused.fetch_add(1, Ordering::Relaxed);
                }
                let other = std::thread::spawn(|| {
                    let coordinator = local().module_bytes("hello.wasm", hello()).build().expect("a local run");
                    coordinator.run_blocking().outcome.exit
                });
                elsewhere.lock().expect("nobody panics with it").push(other);
            }))
        }
    };
    let outer = of_every_mode(&consoles);
    let modes = outer.len();
    outer.into_iter().for_each(|coordinator| done(&coordinator.run_blocking()));
    assert_eq!(refused.load(Ordering::Relaxed), modes * modes * 2);
    assert_eq!(started.load(Ordering::Relaxed), 0, "refused before any effect");
    let elsewhere = std::mem::take(&mut *elsewhere.lock().expect("nobody panics with it"));
    assert_eq!(elsewhere.len(), modes);
    for other in elsewhere {
        assert_eq!(other.join().expect("it doesn't panic"), Exit::Done);
    }
}

#[test]
fn a_coordinator_may_be_run_on_a_thread_of_the_callers_runtime() {
    let runtime = runtime(true);
    let blocking = || local().module_bytes("hello.wasm", hello()).build().expect("a local run").run_blocking();
    done(&runtime.block_on(runtime.spawn_blocking(blocking)).expect("it doesn't panic"));
    // Blocks an executor, as it says, but works.
    done(&runtime.block_on(async { blocking() }));
}

/// Aim: a panic of the embedder's own code is told, and is the business of its run alone. Method: it panics with a line, or
/// when it is asked for a console; beside it another run, which goes on to its end.
#[test]
fn a_panic_of_a_console_is_told_and_kills_nothing() {
    let (consoles, mut told) = telling();
    let beside = local().module_bytes("spins.wasm", spins()).consoles(consoles).build().expect("a local run");
    let stop = beside.stop_handle();
    let beside = std::thread::spawn(|| beside.run_blocking());
    assert_eq!(told.blocking_recv().as_deref(), Some("begun"));
    let panics = |_: &WorkerContext| -> Arc<dyn Console> {
        Arc::new(Calls(|text: &str| assert_ne!(text, "hello", "the console panics")))
    };
    let factory_panics = |_: &WorkerContext| -> Arc<dyn Console> { panic!("no console for you") };
    let builder = || local().module_bytes("hello.wasm", hello());
    for (coordinator, what) in [
        (builder().consoles(panics).build(), "the console panics"),
        (builder().consoles(factory_panics).build(), "no console for you"),
    ] {
        let report = coordinator.expect("a local run").run_blocking();
        assert_eq!(report.outcome.exit, Exit::Bug);
        let message = report.outcome.message.expect("a reason");
        assert!(message.contains(what), "{message}");
    }
    assert!(!beside.is_finished(), "the other run goes on");
    stop.stop();
    assert_eq!(beside.join().expect("it doesn't panic").outcome.exit, Exit::Terminated);
}

#[test]
fn all_faults_are_told_at_once_and_as_values() {
    let cluster = ClusterSpec::new().with_job(TaskType::Worker, ["localhost:1", "nonsense"]);
    let faults = Coordinator::builder(BETWEEN)
        .cluster(&cluster)
        .task(Task::new(TaskType::Worker, 0))
        .timeout(Duration::ZERO)
        .connect_timeout(Duration::MAX)
        .container("no/slashes")
        .max_attempts(0)
        .limits(Limits { memory_bytes_max: 0, ..Limits::default() })
        .build()
        .err()
        .expect("it is refused");
    let text = faults.to_string();
    for place in ["`worker:1`", "`timeout`", "`connect_timeout`", "`container`", "`max_attempts`", "`max_memory`"] {
        assert_eq!(faults.0.iter().filter(|fault| fault.place.contains(place)).count(), 1, "{place} in {text}");
    }
    assert_eq!(faults.0.len(), 6, "{text}");
    let missing = local().build().err().expect("nothing to run").to_string();
    assert!(missing.contains("--module"), "{missing}");
}

#[test]
fn a_loaded_module_must_be_able_to_do_what_is_asked() {
    let module = load(hello());
    let builder = || local().loaded_module(&module);
    let refused = |builder: CoordinatorBuilder| builder.build().err().expect("it is refused").to_string();
    let fuel = refused(builder().limits(Limits { fuel: Some(1000), ..Limits::default() }));
    assert!(fuel.contains("counts no fuel"), "{fuel}");
    let digest = refused(builder().engine(EngineOptions { digest: Some([7; 32]), ..EngineOptions::default() }));
    assert!(digest.contains("another component"), "{digest}");
    let dump = refused(builder().coredump_dir("/"));
    assert!(dump.contains("core dumps"), "{dump}");
    let own = EngineOptions { digest: Some(module.digest()), ..EngineOptions::default() };
    done(&builder().engine(own).build().expect("the right component").run_blocking());
}

#[test]
fn tf_config_counts_only_where_it_is_given() {
    let tf_config =
        r#"{"cluster":{"worker":["localhost:1","localhost:2"]},"task":{"type":"worker","index":1},"rpc_layer":""}"#;
    let plan = local().tf_config(tf_config).module("m.wasm").plan().expect("a plan");
    let [run] = plan.runs.as_slice() else { panic!("{plan:?}") };
    assert_eq!((run.task, run.master_target.as_str()), (Some(Task::new(TaskType::Worker, 1)), "localhost:2"));
    let plan = local().tf_config(tf_config).rpc_layer(RpcLayer::Grpc).module("m.wasm").plan().expect("a plan");
    assert_eq!(plan.runs[0].master_target, "grpc://localhost:2", "what the program says comes first");
    assert!(local().module("m.wasm").plan().expect("a plan").is_local());
    let faults = local().tf_config("{").module("m.wasm").plan().expect_err("no JSON");
    assert!(faults.to_string().contains("`TF_CONFIG`"), "{faults}");
}

/// Only a plan may have addresses that nobody could dial.
#[test]
fn a_plan_takes_any_address_and_a_run_only_good_ones() {
    let cluster =
        ClusterSpec::new().with_job(TaskType::Chief, ["fake_chief"]).with_job(TaskType::Worker, ["fake_chief"]);
    let builder = || Coordinator::builder(BETWEEN).cluster(&cluster).task(CLIENT).module("m.wasm");
    let plan = builder().plan().expect("any text is an address");
    assert_eq!(plan.runs[0].master_target, "grpc://fake_chief");
    assert!(builder().build().is_err());
    let empty = ClusterSpec::new().with_job(TaskType::Worker, [""]);
    assert!(Coordinator::builder(BETWEEN).cluster(&empty).task(CLIENT).module("m.wasm").plan().is_err());
}

#[test]
fn the_guide_shows_the_example_as_it_is() {
    let example = include_str!("../../examples/embed.rs");
    let code = &example[example.find("use dchost::Coordinator;").expect("it uses it")..];
    assert!(
        include_str!("../../../docs/embedding.md").contains(code),
        "copy host/examples/embed.rs into docs/embedding.md"
    );
}
