//! Checkpoints of clusters with real servers: written, read by others, damaged, and restored on other tasks.

use crate::grpc::{self, LONG};
use dchost::checkpoint::{CheckpointError, CheckpointOptions, restore, save};
use dchost::client::channel::{Connections, Peers, PeersOptions};
use dchost::client::variables::RemoteVariables;
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::coordinator::local::LocalVariables;
use dchost::coordinator::placement::{PlacedVariables, PlacementOptions};
use dchost::exit::Exit;
use dchost::handles::{
    Gradient, GradientOptions, InitializeMode, Placement, ReadOptions, Value, Variable, Variables, WriteOptions,
};
use dchost::ids::{Caller, RunId};
use dchost::server::ServerOptions;
use dchost::tensor::{DType, TensorType, TensorView};
use dchost::variables::{Adam, Optimizer, Spare, Store, StoreOptions};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

mod torn;

const WORKER: Task = Task::new(TaskType::Worker, 0);

const fn ps(index: u32) -> Task {
    Task::new(TaskType::Ps, index)
}

/// The ps tasks of a cluster whose worker isn't there.
struct Cluster {
    spec: ClusterSpec,
    servers: Vec<(Store, grpc::Running)>,
}

impl Cluster {
    fn start(count: u32) -> Cluster {
        Cluster::start_with(count, StoreOptions::default())
    }

    fn start_with(count: u32, store: StoreOptions) -> Cluster {
        let listeners: Vec<_> = (0..count).map(|_| grpc::listener()).collect();
        let address = |listener: &std::net::TcpListener| listener.local_addr().expect("it is bound").to_string();
        // No test is given the port of the worker.
        let spec = ClusterSpec::new()
            .with_job(TaskType::Worker, ["127.0.0.1:1"])
            .with_job(TaskType::Ps, listeners.iter().map(address));
        let server = |(index, listener)| {
            let store = Store::new(store.clone());
            let options = ServerOptions {
                cluster: spec.clone(),
                store: store.clone(),
                rejoin_timeout: Duration::from_secs(5),
                ..grpc::options(ps(index), 7, listener)
            };
            (store, grpc::start(options))
        };
        let servers = (0..).zip(listeners).map(server).collect();
        Cluster { spec, servers }
    }

    fn options(&self, dir: &Path) -> CheckpointOptions {
        CheckpointOptions {
            connect_timeout: Duration::from_secs(20),
            ..CheckpointOptions::new(self.spec.address(ps(0)).expect("it has one"), dir)
        }
    }

    /// A run of worker:0.
    fn run(&self, run: u64) -> PlacedVariables {
        let caller = Caller { container: "default".into(), task: Some(WORKER), run_id: RunId(run), attempt: None };
        let peers = Peers::new(PeersOptions {
            client_use: None,
            leader: None,
            connections: Connections::default(),
            cluster: self.spec.clone(),
            caller,
            runtime: Handle::current(),
            connect_timeout: LONG,
            rejoin_timeout: Duration::from_secs(5),
        });
        PlacedVariables::new(PlacementOptions {
            cluster: self.spec.clone(),
            run_task: Some(WORKER),
            process_task: Some(WORKER),
            local: Arc::new(LocalVariables::new(Store::default(), "default", None, Handle::current())),
            remote: Box::new(move |task| Arc::new(RemoteVariables::new(peers.clone(), task))),
            chief_ended: watch::channel(None).1,
            runtime: Handle::current(),
            spare: Spare::default(),
        })
    }

    fn bytes(&self) -> u64 {
        self.servers.iter().map(|(store, _)| store.variable_bytes()).sum()
    }

    async fn stop(self) {
        for (_, running) in self.servers {
            running.stop().await;
        }
    }
}

fn variable(name: &str, ty: TensorType, placement: Placement) -> Variable {
    Variable { name: name.into(), ty, placement }
}

fn f32s(name: &str, shape: &[u64], placement: Placement) -> Variable {
    variable(name, TensorType::new(DType::F32, shape), placement)
}

fn data(variable: &Variable, by: f32) -> Vec<u8> {
    let elements: u64 = variable.ty.shape.iter().product();
    (0..elements).flat_map(|at| (by * ((at % 991) as f32 - 300.0)).to_le_bytes()).collect()
}

async fn initialize(run: &PlacedVariables, variable: &Variable, data: &[u8]) {
    let view = TensorView { ty: variable.ty.clone(), data };
    run.initialize(vec![(variable.clone(), view)], InitializeMode::Overwrite).await.expect("it is there");
}

/// One step of Adam for all.
async fn step(run: &PlacedVariables, variables: &[&Variable], at: u32) {
    let gradients: Vec<_> = variables.iter().map(|variable| data(variable, 0.01 * (at + 1) as f32)).collect();
    let gradient =
        |(variable, data): (&&Variable, &'_ Vec<u8>)| -> (Variable, Vec<u8>) { ((*variable).clone(), data.clone()) };
    let owned: Vec<_> = variables.iter().zip(&gradients).map(gradient).collect();
    let gradients = owned
        .iter()
        .map(|(variable, data)| Gradient {
            variable: variable.clone(),
            value: TensorView { ty: variable.ty.clone(), data },
        })
        .collect();
    let numbers = Adam { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
    let options = GradientOptions {
        optimizer: Optimizer::Adam(numbers),
        clip_norm: None,
        sync: None,
        write: WriteOptions::default(),
    };
    run.apply_gradients(gradients, options).await.expect("it is there");
}

async fn read(run: &PlacedVariables, variables: &[&Variable]) -> Vec<Value> {
    run.read(variables.iter().map(|&variable| variable.clone()).collect(), ReadOptions::default())
        .await
        .expect("it is there")
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .expect("it is there")
        .map(|entry| entry.expect("it is there").file_name().into_string().expect("the test can"))
        .collect();
    names.sort();
    names
}

/// A directory for checkpoints, with the path of one in it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let base = tempfile::tempdir().expect("it is there");
    let dir = base.path().join("ckpt");
    (base, dir)
}

/// Aim: training goes on after a restore on another number of ps tasks as if nothing had happened, to the last bit. Method: the same
/// steps on the cluster that was saved and on those that were restored; a table in parts, small and empty variables, and Adam's slots.
#[tokio::test(flavor = "multi_thread")]
async fn training_goes_on_on_other_ps_tasks_to_the_last_bit() {
    let (base, dir) = place();
    let table = f32s("emb/table", &[1024, 256], Placement::Sharded);
    let auto = f32s("emb/auto", &[1000, 300], Placement::Auto);
    let bias = f32s("bias", &[3], Placement::Auto);
    let trained = [&table, &auto, &bias];
    let empty = f32s("empty", &[0, 4], Placement::Auto);
    let count = variable("名前 \"quoted\"", TensorType::new(DType::S64, []), Placement::Auto);
    let flags = variable("flags", TensorType::new(DType::U8, [3]), Placement::Auto);
    let rest = [&empty, &count, &flags];

    let three = Cluster::start(3);
    let run = three.run(1);
    for variable in trained {
        initialize(&run, variable, &data(variable, 0.5)).await;
    }
    for (variable, data) in rest.iter().zip([&[][..], &[1, 2, 3, 4, 5, 6, 7, 8], &[9, 8, 7]]) {
        initialize(&run, variable, data).await;
    }
    for at in 0..3 {
        step(&run, &trained, at).await;
    }
    let options = CheckpointOptions { file_bytes_max: 2 << 20, ..three.options(&dir) };
    let report = save(&options).await.unwrap();
    assert_eq!((report.variables, report.with_slots, report.mixed.len()), (6, 3, 0));
    assert_eq!((report.tasks.as_slice(), report.left_out.len()), (&[ps(0), ps(1), ps(2)][..], 1));
    assert_eq!(report.left_out[0].0, WORKER);
    assert_eq!(files(base.path()), ["ckpt"], "nothing else is left");
    let at_save = read(&run, &[&table, &bias, &empty, &count]).await;
    for at in 3..6 {
        step(&run, &trained, at).await;
    }
    let expected = read(&run, &trained).await;

    // The reference implementation reads it: each variable whole, under its own name.
    let mut seen = 0;
    for name in files(&dir).iter().filter(|name| name.starts_with("model-")) {
        let bytes = std::fs::read(dir.join(name)).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        for (variable, value) in [&table, &bias, &empty, &count].into_iter().zip(&at_save) {
            if let Ok(tensor) = tensors.tensor(&variable.name) {
                assert!(tensor.data() == &value.tensor.data[..], "{}", variable.name);
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 4);

    for count_of_ps in [2, 1, 5] {
        let other = Cluster::start(count_of_ps);
        let report = restore(&other.options(&dir)).await.unwrap();
        assert_eq!((report.variables, report.with_slots), (6, 3));
        assert_eq!(report.sharded, if count_of_ps == 1 { 0 } else { 2 });
        assert_eq!(other.bytes(), three.bytes());
        let run = other.run(1);
        run.wait_initialized(trained.iter().map(|&variable| variable.clone()).collect(), Some(LONG)).await.unwrap();
        // A chief that initializes what is absent keeps what was restored.
        let zeros = vec![0; bias.ty.size_bytes().unwrap()];
        let view = TensorView { ty: bias.ty.clone(), data: &zeros };
        run.initialize(vec![(bias.clone(), view)], InitializeMode::IfAbsent).await.unwrap();
        for at in 3..6 {
            step(&run, &trained, at).await;
        }
        for (ours, theirs) in read(&run, &trained).await.iter().zip(&expected) {
            assert!(ours.tensor == theirs.tensor, "on {count_of_ps} ps tasks");
            assert_eq!(ours.version, 4, "one restore, three steps");
        }
        // Into a running cluster as well, over what is there.
        restore(&other.options(&dir)).await.unwrap();
        for (ours, then) in read(&run, &[&table, &bias, &empty, &count]).await.iter().zip(&at_save) {
            assert!(ours.tensor == then.tensor);
        }
        assert_eq!(other.bytes(), three.bytes());
        other.stop().await;
    }
    three.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_that_were_placed_on_a_task_lie_there_again() {
    let (_base, dir) = place();
    let two = Cluster::start(2);
    let run = two.run(1);
    // One name on both: two variables. One of them is where it would be by itself.
    let on = |index| f32s("w", &[2], Placement::On(ps(index)));
    for index in 0..2 {
        initialize(&run, &on(index), &data(&on(index), index as f32 + 1.0)).await;
    }
    let large = f32s("large", &[512, 1024], Placement::On(ps(1)));
    initialize(&run, &large, &data(&large, 1.0)).await;
    save(&two.options(&dir)).await.unwrap();
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("manifest.json")).unwrap()).unwrap();
    let tensors: Vec<_> =
        manifest["variables"].as_array().unwrap().iter().map(|variable| variable["tensor"].as_str().unwrap()).collect();
    assert!(tensors.contains(&"w") && tensors.contains(&"large"), "{tensors:?}");
    assert!(tensors.iter().any(|name| name.starts_with("w@ps:")), "{tensors:?}");

    let again = Cluster::start(2);
    let report = restore(&again.options(&dir)).await.unwrap();
    assert_eq!((report.moved.len(), report.sharded), (0, 0));
    let run = again.run(1);
    for index in 0..2 {
        let value = read(&run, &[&on(index)]).await.remove(0);
        assert!(value.tensor.data == data(&on(index), index as f32 + 1.0));
    }
    assert!(read(&run, &[&large]).await[0].tensor.data == data(&large, 1.0));
    again.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variable_of_another_type_is_refused_before_anything_is_set() {
    let (_base, dir) = place();
    let one = Cluster::start(1);
    let run = one.run(1);
    for name in ["a", "w"] {
        let variable = f32s(name, &[2], Placement::Auto);
        initialize(&run, &variable, &data(&variable, 1.0)).await;
    }
    save(&one.options(&dir)).await.unwrap();
    let other = Cluster::start(1);
    let w = f32s("w", &[3], Placement::Auto);
    initialize(&other.run(1), &w, &data(&w, 2.0)).await;
    let error = restore(&other.options(&dir)).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    assert!(error.to_string().contains("variable `w` is `f32[3]` on ps:0, but `f32[2]` in the checkpoint"), "{error}");
    assert_eq!(other.bytes(), 12, "nothing else was set");
    let small = Cluster::start_with(1, StoreOptions { variable_bytes_max: Some(12), ..Default::default() });
    let error = restore(&small.options(&dir)).await.unwrap_err();
    assert!(error.exit() == Exit::Limit && error.to_string().contains("--max-variable-bytes"), "{error}");
    for cluster in [one, other, small] {
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_save_that_fails_leaves_the_former_checkpoint() {
    let (base, dir) = place();
    let mut cluster = Cluster::start(2);
    let error = save(&cluster.options(&dir)).await.unwrap_err();
    assert!(error.exit() == Exit::Refused && error.to_string().contains("has no variables"), "{error}");
    assert!(files(base.path()).is_empty());
    let w = f32s("w", &[1 << 20], Placement::Sharded);
    let run = cluster.run(1);
    initialize(&run, &w, &data(&w, 1.0)).await;
    save(&cluster.options(&dir)).await.unwrap();
    let manifest = || std::fs::read(dir.join("manifest.json")).unwrap();
    let former = manifest();
    initialize(&run, &w, &data(&w, 2.0)).await;

    // Dropped half-way, at many points.
    for steps in 0..40 {
        let options = cluster.options(&dir);
        let mut saving = Box::pin(save(&options));
        let mut polled = 0;
        let given_up = std::future::poll_fn(|cx| match saving.as_mut().poll(cx) {
            std::task::Poll::Ready(saved) => std::task::Poll::Ready(Some(saved)),
            std::task::Poll::Pending if polled == steps => std::task::Poll::Ready(None),
            std::task::Poll::Pending => {
                polled += 1;
                std::task::Poll::Pending
            }
        })
        .await;
        drop(saving);
        match given_up {
            None => assert!(dir.join("manifest.json").exists()),
            Some(saved) => drop(saved.unwrap()),
        }
    }
    grpc::until("what was begun is removed", || files(base.path()) == ["ckpt"]).await;
    // Whichever it is, it is whole.
    restore(&cluster.options(&dir)).await.unwrap();
    let value = read(&run, &[&w]).await.remove(0).tensor.data;
    assert!(value == if manifest() == former { data(&w, 1.0) } else { data(&w, 2.0) });

    let former = manifest();
    let (_, gone) = cluster.servers.remove(1);
    gone.stop().await;
    let options = CheckpointOptions { connect_timeout: Duration::from_millis(300), ..cluster.options(&dir) };
    for error in [save(&options).await.unwrap_err(), restore(&options).await.unwrap_err()] {
        assert!(matches!(&error, CheckpointError::NotReached { task, .. } if task == "ps:1"), "{error}");
        assert_eq!(error.exit(), Exit::Unreachable);
    }
    assert!(manifest() == former && files(base.path()) == ["ckpt"]);
    std::fs::write(dir.join("notes.txt"), "mine").unwrap();
    let error = save(&options).await.unwrap_err();
    assert!(error.exit() == Exit::Refused && error.to_string().contains("`notes.txt`"), "{error}");
    cluster.stop().await;
}
