//! Every "remote" task here is another store in this process, so that placing is seen by where the values are.

mod rows;
mod shards;

use super::*;
use crate::coordinator::local::LocalVariables;
use crate::handles::{ApplyOptions, Placement, VariableRef};
use crate::tensor::{DType, TensorType};
use crate::variables::Store;
use std::sync::Mutex as StdMutex;

const PS0: Task = Task::new(TaskType::Ps, 0);
const PS1: Task = Task::new(TaskType::Ps, 1);
const WORKER0: Task = Task::new(TaskType::Worker, 0);
const WORKER1: Task = Task::new(TaskType::Worker, 1);
const EVALUATOR: Task = Task::new(TaskType::Evaluator, 0);

/// A cluster of stores, and one run's view of it.
struct World {
    stores: Arc<StdMutex<HashMap<Task, Store>>>,
    local: Store,
    chief_ended: watch::Sender<Option<Error>>,
    variables: PlacedVariables,
}

fn view(store: &Store) -> Arc<dyn TaskVariables> {
    Arc::new(LocalVariables::new(store.clone(), "default", None, Handle::current()))
}

fn world(cluster: ClusterSpec, run_task: Option<Task>, process_task: Option<Task>) -> World {
    world_with(cluster, run_task, process_task, |_, store| view(store))
}

fn world_with(
    cluster: ClusterSpec,
    run_task: Option<Task>,
    process_task: Option<Task>,
    remote: impl Fn(Task, &Store) -> Arc<dyn TaskVariables> + Send + Sync + 'static,
) -> World {
    let stores = Arc::new(StdMutex::new(HashMap::<Task, Store>::new()));
    let local = Store::default();
    let (chief_ended, receiver) = watch::channel(None);
    let all = stores.clone();
    let variables = PlacedVariables::new(PlacementOptions {
        cluster,
        run_task,
        process_task,
        local: view(&local),
        remote: Box::new(move |task| remote(task, all.lock().unwrap().entry(task).or_default())),
        chief_ended: receiver,
        runtime: Handle::current(),
        spare: Spare::default(),
    });
    World { stores, local, chief_ended, variables }
}

impl World {
    /// Where a variable is found: `local`, a task, or nowhere.
    fn find(&self, name: &str) -> String {
        let holds = |store: &Store| store.statuses().iter().any(|status| status.name == name);
        let stores = self.stores.lock().unwrap();
        let mut places: Vec<_> =
            stores.iter().filter(|(_, store)| holds(store)).map(|(task, _)| task.to_string()).collect();
        places.extend(holds(&self.local).then(|| "local".to_owned()));
        places.join(" and ")
    }

    async fn initialize(&self, name: &str, placement: Placement) -> Result<()> {
        let variable = variable(name, placement);
        let data = 1_f32.to_le_bytes();
        let view = TensorView { ty: variable.ty.clone(), data: &data };
        self.variables.initialize(vec![(variable, view)], InitializeMode::Overwrite).await
    }

    async fn add(&self, name: &str, placement: Placement) -> Result<Vec<Value>> {
        let variable = variable(name, placement);
        let data = 1_f32.to_le_bytes();
        let value = TensorView { ty: variable.ty.clone(), data: &data };
        self.variables
            .update(vec![Change { variable, kind: UpdateKind::Add, value, base: None }], WriteOptions::WITH_VALUES)
            .await
    }
}

fn variable(name: &str, placement: Placement) -> Variable {
    Variable { name: name.into(), ty: TensorType::new(DType::F32, []), placement }
}

fn addresses(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("host{index}:1")).collect()
}

fn cluster(ps: usize, workers: usize) -> ClusterSpec {
    let spec = ClusterSpec::new().with_job(TaskType::Worker, addresses(workers));
    if ps == 0 { spec } else { spec.with_job(TaskType::Ps, addresses(ps)) }
}

#[test]
fn names_hash_as_fnv_1a() {
    // The hashes are the published test vectors of FNV-1a with 64 bits.
    for (name, hash) in
        [("", 0xcbf2_9ce4_8422_2325_u64), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
    {
        for places in [1, 2, 3, 7, 1000] {
            assert_eq!(place(name, places) as u64, hash % places as u64, "{name}");
        }
    }
    // What a release has placed, later ones must find.
    assert_eq!(["w", "b", "layer/0/kernel", "größe"].map(|name| place(name, 5)), [0, 4, 3, 2]);
}

#[tokio::test]
async fn auto_is_a_ps_by_hash_or_else_the_leader() {
    let with_ps = world(cluster(3, 2), Some(WORKER1), Some(WORKER1));
    for name in ["a", "b", "c", "layer/w"] {
        with_ps.initialize(name, Placement::Auto).await.unwrap();
        assert_eq!(with_ps.find(name), format!("ps:{}", place(name, 3)));
    }
    let on_worker = world(cluster(0, 2), Some(WORKER1), Some(WORKER1));
    on_worker.initialize("a", Placement::Auto).await.unwrap();
    assert_eq!(on_worker.find("a"), "worker:0");
    let on_leader = world(cluster(0, 2), Some(WORKER0), Some(WORKER0));
    on_leader.initialize("a", Placement::Auto).await.unwrap();
    assert_eq!(on_leader.find("a"), "local");
    let driver = world(cluster(0, 2), None, Some(WORKER0));
    driver.initialize("a", Placement::Auto).await.unwrap();
    assert_eq!(driver.find("a"), "local", "an in-graph driver runs in the leader's process");
    let client = world(cluster(0, 2), None, None);
    client.initialize("a", Placement::Auto).await.unwrap();
    assert_eq!(client.find("a"), "worker:0");

    let mut sparse = ClusterSpec::new();
    sparse.insert(Task::new(TaskType::Ps, 7), "a:1");
    let sparse = world(sparse, None, None);
    sparse.initialize("a", Placement::Auto).await.unwrap();
    assert_eq!(sparse.find("a"), "ps:7");
    let mut nowhere = ClusterSpec::new();
    nowhere.insert(WORKER1, "a:1");
    let nowhere = world(nowhere, Some(WORKER1), Some(WORKER1));
    assert_eq!(nowhere.initialize("a", Placement::Auto).await.unwrap_err().code, ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn placement_on_a_task_needs_the_task() {
    let world = world(cluster(1, 2), Some(WORKER0), Some(WORKER0));
    for (task, place) in [(PS0, "ps:0"), (WORKER1, "worker:1"), (WORKER0, "local")] {
        world.initialize(&format!("on {task}"), Placement::On(task)).await.unwrap();
        assert_eq!(world.find(&format!("on {task}")), place);
    }
    let error = world.variables.declare(&variable("w", Placement::On(PS1))).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    assert_eq!(error.message, "variable `w` is placed on `ps:1`, but the cluster has only ps:0, worker:0, worker:1");
    assert_eq!(world.variables.declare(&variable("", Placement::Auto)).unwrap_err().code, ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn local_run_keeps_everything_in_process() {
    let local = world(ClusterSpec::new(), None, None);
    for (name, placement) in [("a", Placement::Auto), ("s", Placement::Sharded)] {
        local.initialize(name, placement).await.unwrap();
        assert_eq!(local.find(name), "local");
        assert_eq!(local.add(name, placement).await.unwrap()[0].version, 2);
    }
    let error = local.initialize("w", Placement::On(WORKER0)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn evaluator_reads_everywhere_and_writes_only_its_own() {
    let mut listed = cluster(1, 1);
    listed.insert(EVALUATOR, "e:1");
    let independent = [(listed.clone(), Some(EVALUATOR), "local"), (cluster(1, 1), Some(EVALUATOR), "local")];
    let split = (listed, None, "evaluator:0");
    for (spec, process_task, own) in independent.into_iter().chain([split]) {
        let world = world(spec, Some(EVALUATOR), process_task);
        world.initialize("own", Placement::On(EVALUATOR)).await.unwrap();
        assert_eq!(world.find("own"), own);
        world.add("own", Placement::On(EVALUATOR)).await.unwrap();
        for placement in [Placement::Auto, Placement::On(PS0), Placement::On(WORKER0)] {
            let error = world.initialize("w", placement).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::FailedPrecondition);
            assert!(error.message.contains("place what it writes on `evaluator:0`"), "{error}");
            assert_eq!(world.add("w", placement).await.unwrap_err().code, ErrorCode::FailedPrecondition);
        }
        assert_eq!(world.find("w"), "");
        assert_eq!(world.variables.uninitialized(vec![variable("w", Placement::Auto)]).await, Ok(vec!["w".to_owned()]));
        let store = world.stores.lock().unwrap()[&PS0].clone();
        let data = 5_f32.to_le_bytes();
        let values = vec![(variable_ref("w"), crate::variables::Payload::Borrowed(&data[..]))];
        store.open("default", None).unwrap().initialize(values, InitializeMode::Overwrite).unwrap();
        let read = world.variables.read(vec![variable("w", Placement::Auto)], ReadOptions::default()).await.unwrap();
        assert_eq!(read[0].tensor.data, data[..]);
    }
    let worker = world(cluster(1, 1), Some(WORKER0), Some(WORKER0));
    let error = worker.initialize("w", Placement::On(EVALUATOR)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument, "an unlisted evaluator is nobody else's task");
}

fn variable_ref(name: &str) -> VariableRef {
    VariableRef::whole(name, TensorType::new(DType::F32, []))
}

#[tokio::test]
async fn answers_of_many_tasks_come_in_the_order_of_the_call() {
    let world = world(cluster(3, 2), Some(WORKER0), Some(WORKER0));
    let all: Vec<_> = (0..40)
        .map(|index| {
            let placement = match index % 4 {
                0 => Placement::Auto,
                1 => Placement::On(WORKER0),
                2 => Placement::On(WORKER1),
                _ => Placement::On(PS1),
            };
            variable(&format!("v{index}"), placement)
        })
        .collect();
    let data: Vec<_> = (0..40).map(|index| (index as f32).to_le_bytes()).collect();
    let view = |(variable, data): (&Variable, &'_ [u8; 4])| (variable.ty.clone(), data.to_vec());
    let views: Vec<_> = all.iter().zip(&data).map(view).collect();
    let values =
        all.iter().zip(&views).map(|(variable, (ty, data))| (variable.clone(), TensorView { ty: ty.clone(), data }));
    world.variables.initialize(values.collect(), InitializeMode::Overwrite).await.unwrap();
    let read = world.variables.read(all.clone(), ReadOptions::default()).await.unwrap();
    assert!(read.iter().zip(&data).all(|(value, data)| value.tensor.data == data[..]));
    let changes = all.iter().zip(&views).map(|(variable, (ty, data))| Change {
        variable: variable.clone(),
        kind: UpdateKind::Add,
        value: TensorView { ty: ty.clone(), data },
        base: None,
    });
    let updated = world.variables.update(changes.collect(), WriteOptions::WITH_VALUES).await.unwrap();
    for (index, value) in updated.iter().enumerate() {
        assert_eq!((&value.tensor.data[..], value.version), (&(2.0 * index as f32).to_le_bytes()[..], 2));
    }
    let mut asked = all;
    asked.insert(7, variable("x", Placement::On(PS0)));
    asked.insert(3, variable("y", Placement::On(WORKER1)));
    let missing = world.variables.uninitialized(asked.clone()).await.unwrap();
    assert_eq!(missing, ["y", "x"]);
    let error = world.variables.read(asked, ReadOptions::default()).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Uninitialized);
    assert!(error.names.contains(&"x".to_owned()) && error.names.contains(&"y".to_owned()), "{error}");
}

/// Answers every call with its error, after some turns.
struct Fails(Error, usize);

impl Fails {
    fn fail<T: Send>(&self) -> BoxFuture<'_, Result<T>> {
        Box::pin(async {
            for _ in 0..self.1 {
                tokio::task::yield_now().await;
            }
            Err(self.0.clone())
        })
    }
}

impl TaskVariables for Fails {
    fn initialize<'a>(
        &'a self,
        _: Vec<(VariableRef, TensorView<'a>)>,
        _: InitializeMode,
    ) -> BoxFuture<'a, Result<Vec<u64>>> {
        self.fail()
    }

    fn uninitialized(&self, _: Vec<VariableRef>, _: Duration) -> BoxFuture<'_, Result<Vec<String>>> {
        self.fail()
    }

    fn pull(&self, _: Vec<VariableRef>, _: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        self.fail()
    }

    fn push<'a>(&'a self, _: Vec<Change<'a, VariableRef>>, _: WriteOptions) -> BoxFuture<'a, Result<Vec<Value>>> {
        self.fail()
    }

    fn apply<'a>(&'a self, _: Vec<Gradient<'a, VariableRef>>, _: ApplyOptions) -> BoxFuture<'a, Result<Vec<Value>>> {
        self.fail()
    }

    fn gather(&self, _: VariableRef, _: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        self.fail()
    }

    fn scatter<'a>(&'a self, _: RowChange<'a, VariableRef>) -> BoxFuture<'a, Result<u64>> {
        self.fail()
    }
}

#[tokio::test]
async fn error_of_a_call_does_not_depend_on_who_was_faster() {
    let codes = [ErrorCode::InvalidArgument, ErrorCode::Aborted, ErrorCode::PeerFailed, ErrorCode::Unavailable];
    for slow in 0..4 {
        let world = world_with(cluster(4, 1), Some(WORKER0), Some(WORKER0), move |task, _| {
            let index = task.index as usize;
            let turns = if index == slow { 50 } else { 4 - index };
            Arc::new(Fails(Error::new(codes[index], task.to_string()), turns))
        });
        let read = async |tasks: &[u32]| {
            let on = |&index: &u32| variable("w", Placement::On(Task::new(TaskType::Ps, index)));
            world.variables.read(tasks.iter().map(on).collect(), ReadOptions::default()).await.unwrap_err().message
        };
        assert_eq!(read(&[0, 1, 2, 3]).await, "ps:2", "a failed task comes first");
        assert_eq!(read(&[3, 2]).await, "ps:2", "then the cluster's order");
        assert_eq!(read(&[1, 0]).await, "ps:0");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_at_its_deadline_naming_what_is_missing() {
    let world = world(cluster(2, 2), Some(WORKER1), Some(WORKER1));
    world.initialize("there", Placement::On(PS0)).await.unwrap();
    let all = vec![
        variable("there", Placement::On(PS0)),
        variable("x", Placement::On(PS1)),
        variable("y", Placement::On(WORKER0)),
    ];
    for (timeout, expected, code) in [
        (Some(Duration::ZERO), Duration::ZERO, ErrorCode::DeadlineExceeded),
        (Some(Duration::from_secs(90)), Duration::from_secs(90), ErrorCode::DeadlineExceeded),
        // The guest gave no deadline that it could miss.
        (None, Duration::from_secs(7200), ErrorCode::Uninitialized),
    ] {
        let started = tokio::time::Instant::now();
        let error = world.variables.wait_initialized(all.clone(), timeout).await.unwrap_err();
        assert_eq!(error.code, code);
        assert_eq!(error.names, ["x", "y"]);
        let waited = started.elapsed();
        assert!(waited >= expected && waited < expected + Duration::from_millis(10), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_the_chief_unless_all_is_there() {
    let failed = || Error::new(ErrorCode::PeerFailed, "worker:0 has failed").with_tasks([WORKER0]);
    let world = world(cluster(1, 2), Some(WORKER1), Some(WORKER1));
    let all = || vec![variable("w", Placement::Auto)];
    let started = tokio::time::Instant::now();
    let (waited, ()) = tokio::join!(world.variables.wait_initialized(all(), None), async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        world.chief_ended.send_replace(Some(failed()));
    });
    let error = waited.unwrap_err();
    assert_eq!((error.code, &*error.tasks), (ErrorCode::PeerFailed, &[WORKER0][..]));
    assert_eq!(error.message, "worker:0 has failed: variables are still not initialized: `w`");
    assert_eq!(started.elapsed(), Duration::from_secs(100));

    world.initialize("w", Placement::Auto).await.unwrap();
    assert_eq!(world.variables.wait_initialized(all(), None).await, Ok(()), "what the chief left is there");
}

#[tokio::test(start_paused = true)]
async fn waiting_goes_on_at_once_when_all_is_initialized() {
    let world = world(cluster(2, 2), Some(WORKER1), Some(WORKER1));
    let all = vec![variable("x", Placement::On(PS0)), variable("y", Placement::On(PS1))];
    let started = tokio::time::Instant::now();
    let waiting = async {
        let result = world.variables.wait_initialized(all, None).await;
        (result, started.elapsed())
    };
    let ((result, waited), ()) = tokio::join!(waiting, async {
        for (name, task) in [("x", PS0), ("y", PS1)] {
            tokio::time::sleep(Duration::from_secs(1000)).await;
            world.initialize(name, Placement::On(task)).await.unwrap();
        }
    });
    assert_eq!(result, Ok(()));
    assert!(waited < Duration::from_millis(2_000_100), "{waited:?}");
}

#[tokio::test]
async fn value_of_another_type_is_refused() {
    let world = world(ClusterSpec::new(), None, None);
    let data = [0; 8];
    for ty in [TensorType::new(DType::S32, []), TensorType::new(DType::F32, [1]), TensorType::new(DType::F32, [2])] {
        let values = vec![(variable("w", Placement::Auto), TensorView { ty, data: &data })];
        let error = world.variables.initialize(values, InitializeMode::Overwrite).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.message.contains("`f32[]`"), "{error}");
    }
}

/// Everything that is wrong with gradients and rows as such is found before a task is asked: each of them would fail.
#[tokio::test]
async fn gradients_and_rows_are_checked_before_any_is_sent() {
    let cluster = ClusterSpec::new().with_job(TaskType::Worker, ["w:1"]).with_job(TaskType::Ps, ["p:1"]);
    let fails = |_, _: &Store| -> Arc<dyn TaskVariables> {
        Arc::new(Fails(Error::new(ErrorCode::PeerFailed, "asked").with_tasks([PS0]), 0))
    };
    let world = world_with(cluster, Some(WORKER0), Some(WORKER0), fails);
    let matrix = |dtype| Variable { name: "w".into(), ty: TensorType::new(dtype, [3, 2]), placement: Placement::Auto };
    let sgd = GradientOptions {
        optimizer: crate::variables::Optimizer::Sgd { learning_rate: 0.1 },
        clip_norm: None,
        sync: None,
        write: WriteOptions::default(),
    };
    let apply = async |dtype: DType, elements: &[f32], times: usize, options: GradientOptions| {
        let data: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        let variable = matrix(dtype);
        let value = TensorView { ty: variable.ty.clone(), data: &data };
        let gradients = vec![Gradient { variable, value }; times];
        world.variables.apply_gradients(gradients, options).await.unwrap_err()
    };
    let good = [1.0; 6];
    let error = apply(DType::F32, &good, 1, sgd).await;
    assert_eq!(error.code, ErrorCode::PeerFailed, "this one is sent: {error}");
    let bad = GradientOptions { optimizer: crate::variables::Optimizer::Sgd { learning_rate: f64::NAN }, ..sgd };
    let clipped = GradientOptions { clip_norm: Some(1.0), ..sgd };
    for (error, words) in [
        (apply(DType::F32, &good, 1, bad).await, "learning-rate of sgd"),
        (apply(DType::S32, &good, 1, sgd).await, "f32 and f64 only"),
        (apply(DType::F32, &good[..5], 1, sgd).await, "`w`"),
        (apply(DType::F32, &good, 2, sgd).await, "two gradients"),
        (apply(DType::F32, &[1.0, 1.0, 1.0, f32::NAN, 1.0, 1.0], 1, clipped).await, "can't be clipped"),
        (apply(DType::F32, &good, 1, GradientOptions { clip_norm: Some(0.0), ..sgd }).await, "clip-norm"),
    ] {
        assert!(error.code == ErrorCode::InvalidArgument && error.message.contains(words), "{words}: {error}");
    }
    let error = world.variables.gather(matrix(DType::F32), vec![2, 3]).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::OutOfRange, "{error}");
    let scatter = async |rows: Vec<u64>, ty: TensorType, bytes: usize| {
        let data = vec![0; bytes];
        let value = TensorView { ty, data: &data };
        let change = RowChange { variable: matrix(DType::F32), rows, kind: UpdateKind::Add, value };
        world.variables.scatter(change).await.unwrap_err()
    };
    let row = || TensorType::new(DType::F32, [1, 2]);
    assert_eq!(scatter(vec![0], row(), 8).await.code, ErrorCode::PeerFailed);
    assert_eq!(scatter(vec![3], row(), 8).await.code, ErrorCode::OutOfRange);
    assert_eq!(scatter(vec![0, 1], row(), 8).await.code, ErrorCode::InvalidArgument);
    assert_eq!(scatter(vec![0], row(), 7).await.code, ErrorCode::InvalidArgument);
}

/// Aim: a read of many tasks waits for all of them at once, and a mistake in one change sends none.
#[tokio::test(start_paused = true)]
async fn a_wait_is_for_every_task_and_a_relaxed_base_reaches_none() {
    let world = Arc::new(world(cluster(2, 1), Some(WORKER0), Some(WORKER0)));
    let places = [("a", Placement::On(PS0)), ("b", Placement::On(PS1)), ("c", Placement::On(WORKER0))];
    for (name, placement) in places {
        world.initialize(name, placement).await.unwrap();
    }
    let all: Vec<_> = places.iter().map(|&(name, placement)| variable(name, placement)).collect();
    let waiting = tokio::spawn({
        let (world, all) = (world.clone(), all.clone());
        let options = ReadOptions { min_version: Some(2), ..ReadOptions::default() };
        async move { world.variables.read(all, options).await }
    });
    for (name, placement) in places {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!waiting.is_finished(), "`{name}` has version 1");
        world.add(name, placement).await.unwrap();
    }
    let values = waiting.await.unwrap().unwrap();
    assert_eq!(values.iter().map(|value| value.version).collect::<Vec<_>>(), [2, 2, 2]);

    let data = 1_f32.to_le_bytes();
    let changes = all.into_iter().zip([None, None, Some(2)]).map(|(variable, base)| {
        let value = TensorView { ty: variable.ty.clone(), data: &data };
        Change { variable, kind: UpdateKind::Add, value, base }
    });
    let relaxed = WriteOptions { consistency: Consistency::Relaxed, ..WriteOptions::WITH_VALUES };
    let error = world.variables.update(changes.clone().collect(), relaxed).await.unwrap_err();
    assert_eq!((error.code, &*error.names[0]), (ErrorCode::InvalidArgument, "c"), "{error}");
    let plain = changes.map(|change| Change { base: None, ..change }).collect();
    let values = world.variables.update(plain, relaxed).await.unwrap();
    assert_eq!(values.iter().map(|value| value.version).collect::<Vec<_>>(), [3, 3, 3], "the first is theirs");
}
