use super::*;
use crate::cluster::TaskType;
use crate::error::ErrorCode;
use crate::tensor::{DType, Tensor, TensorType};
use crate::variables::{Payload, Snapshot, Store, Update, UpdateKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;

const PS: Task = Task::new(TaskType::Ps, 0);
const SECOND: Duration = Duration::from_secs(1);

/// A store's variables, which count the values that they are asked for, and answer when they are let.
#[derive(Clone)]
struct Counted {
    store: Store,
    asked: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

fn value(snapshot: Snapshot) -> Value {
    Value { tensor: Tensor { ty: snapshot.ty, data: snapshot.blocks.contiguous() }, version: snapshot.version }
}

impl TaskVariables for Counted {
    fn initialize<'a>(
        &'a self,
        values: Vec<(VariableRef, TensorView<'a>)>,
        mode: InitializeMode,
    ) -> BoxFuture<'a, Result<Vec<u64>>> {
        Box::pin(async move {
            let values = values.into_iter().map(|(variable, view)| (variable, Payload::Borrowed(view.data))).collect();
            self.store.open("default", None)?.initialize(values, mode)
        })
    }

    fn uninitialized(&self, variables: Vec<VariableRef>, _wait: Duration) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move { self.store.open("default", None)?.uninitialized(&variables) })
    }

    fn pull(&self, variables: Vec<VariableRef>, options: ReadOptions) -> BoxFuture<'_, Result<Vec<Value>>> {
        self.asked.fetch_add(variables.len(), Ordering::Relaxed);
        Box::pin(async move {
            let container = self.store.open("default", None)?;
            container.wait_versions(&variables, options.min_version.unwrap_or_default()).await?;
            let values = container.pull(&variables)?.into_iter().map(value).collect();
            // The answer is on its way.
            let _passed = self.gate.acquire().await.expect("it is never closed");
            Ok(values)
        })
    }

    fn push<'a>(
        &'a self,
        changes: Vec<Change<'a, VariableRef>>,
        options: WriteOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            let update = |Change { variable, kind, value, base }: Change<'a, VariableRef>| Update {
                variable,
                kind,
                value: Payload::Borrowed(value.data),
                base,
            };
            let updates = changes.into_iter().map(update).collect();
            let snapshots = self.store.open("default", None)?.push(updates, options.want_values)?;
            Ok(snapshots.into_iter().map(value).collect())
        })
    }

    fn apply<'a>(
        &'a self,
        _gradients: Vec<Gradient<'a, VariableRef>>,
        _options: ApplyOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>>> {
        unreachable!("no test applies gradients")
    }

    fn gather(&self, _variable: VariableRef, _rows: Vec<u64>) -> BoxFuture<'_, Result<Value>> {
        unreachable!("no test gathers")
    }

    fn scatter<'a>(&'a self, _change: RowChange<'a, VariableRef>) -> BoxFuture<'a, Result<u64>> {
        unreachable!("no test scatters")
    }
}

/// A run with its cache, and another run beside it.
struct World {
    run: CachedVariables<Counted>,
    other: Counted,
}

fn world(bytes_max: u64) -> World {
    let counted = |store| Counted { store, asked: Arc::default(), gate: Arc::new(Semaphore::new(100)) };
    let other = counted(Store::default());
    let run = counted(other.store.clone());
    World { run: CachedVariables::new(run, PS, ReadCache::new(bytes_max, Handle::current())), other }
}

fn variable(name: &str) -> VariableRef {
    VariableRef::whole(name, TensorType::new(DType::U8, [100]))
}

async fn set(variables: &dyn TaskVariables, name: &str, value: u8) {
    let (variable, data) = (variable(name), [value; 100]);
    let view = TensorView { ty: variable.ty.clone(), data: &data };
    variables.initialize(vec![(variable, view)], InitializeMode::Overwrite).await.expect("it is set");
}

async fn add(variables: &dyn TaskVariables, name: &str) {
    let (variable, data) = (variable(name), [1; 100]);
    let view = TensorView { ty: variable.ty.clone(), data: &data };
    let change = Change { variable, kind: UpdateKind::Add, value: view, base: None };
    variables.push(vec![change], WriteOptions::default()).await.expect("it is added to");
}

fn aged(max_age: Duration) -> ReadOptions {
    ReadOptions { max_age: Some(max_age), ..ReadOptions::default() }
}

impl World {
    async fn read(&self, names: &[&str], options: ReadOptions) -> Result<Vec<u8>> {
        let values = self.run.pull(names.iter().map(|name| variable(name)).collect(), options).await?;
        Ok(values.iter().map(|value| value.tensor.data[0]).collect())
    }

    /// How many values were asked for since the last look.
    fn asked(&self) -> usize {
        self.run.variables.asked.swap(0, Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_serves_until_it_is_too_old() {
    let world = world(1 << 20);
    set(&world.other, "w", 1).await;
    assert_eq!(world.read(&["w"], ReadOptions::default()).await, Ok(vec![1]));
    assert_eq!((world.asked(), world.run.cache.bytes()), (1, 0), "a read that wants no age keeps nothing");
    assert_eq!(world.read(&["w"], aged(SECOND)).await, Ok(vec![1]));
    add(&world.other, "w").await;
    tokio::time::advance(SECOND - Duration::from_millis(1)).await;
    assert_eq!(world.read(&["w"], aged(SECOND)).await, Ok(vec![1]));
    assert_eq!(world.asked(), 1);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(world.read(&["w"], aged(2 * SECOND)).await, Ok(vec![1]), "it is one second old");
    assert_eq!(world.read(&["w"], aged(SECOND)).await, Ok(vec![2]));
    assert_eq!(world.asked(), 1);
    assert_eq!(world.read(&["w"], aged(Duration::ZERO)).await, Ok(vec![2]));
    assert_eq!(world.asked(), 1, "no age is none");
    add(&world.other, "w").await;
    assert_eq!(world.read(&["w"], ReadOptions::default()).await, Ok(vec![3]), "without an age it is asked");
    assert_eq!(world.read(&["w"], aged(SECOND)).await, Ok(vec![3]), "reads never go backward");
    assert_eq!(world.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_age_counts_from_the_beginning_of_the_read() {
    let world = Arc::new(world(1 << 20));
    set(&world.other, "w", 1).await;
    let gate = world.run.variables.gate.clone();
    let closed = gate.acquire_many(100).await.expect("it is open");
    let reading = tokio::spawn({
        let world = world.clone();
        async move { world.read(&["w"], aged(SECOND)).await }
    });
    tokio::time::sleep(SECOND / 2).await;
    drop(closed);
    assert_eq!(reading.await.unwrap(), Ok(vec![1]));
    tokio::time::advance(SECOND / 2).await;
    world.asked();
    world.read(&["w"], aged(SECOND)).await.unwrap();
    assert_eq!(world.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_runs_own_writes_show_at_once() {
    let world = world(1 << 20);
    set(&world.run, "w", 1).await;
    assert_eq!(world.read(&["w"], aged(SECOND)).await, Ok(vec![1]));
    add(&world.run, "w").await;
    assert_eq!((world.read(&["w"], aged(SECOND)).await, world.asked()), (Ok(vec![2]), 2));
    set(&world.run, "w", 9).await;
    assert_eq!(world.read(&["w"], aged(SECOND)).await, Ok(vec![9]));

    // A read that was on its way before the write isn't kept.
    let gate = world.run.variables.gate.clone();
    add(&world.run, "w").await;
    let closed = gate.acquire_many(100).await.expect("it is open");
    let mut reading = std::pin::pin!(world.read(&["w"], aged(SECOND)));
    assert!(is_pending(&mut reading).await);
    add(&world.run, "w").await;
    drop(closed);
    assert_eq!(reading.await, Ok(vec![10]));
    assert_eq!(world.read(&["w"], aged(SECOND)).await, Ok(vec![11]));
}

/// Polls once.
async fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending()))
        .await
}

#[tokio::test(start_paused = true)]
async fn what_is_too_low_or_not_whole_is_asked_anew() {
    let world = world(1 << 20);
    set(&world.other, "w", 1).await;
    let relaxed = ReadOptions { consistency: Consistency::Relaxed, ..aged(SECOND) };
    assert_eq!(world.read(&["w"], relaxed).await, Ok(vec![1]));
    assert_eq!(world.read(&["w"], relaxed).await, Ok(vec![1]));
    assert_eq!(world.asked(), 1);
    world.read(&["w"], aged(SECOND)).await.unwrap();
    assert_eq!(world.asked(), 1, "an atomic read takes no relaxed value");
    world.read(&["w"], relaxed).await.unwrap();
    assert_eq!(world.asked(), 0, "a relaxed read takes an atomic one");
    add(&world.other, "w").await;
    let newer = ReadOptions { min_version: Some(2), ..aged(SECOND) };
    assert_eq!(world.read(&["w"], newer).await, Ok(vec![2]));
    assert_eq!(world.read(&["w"], newer).await, Ok(vec![2]));
    assert_eq!(world.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn only_what_is_missing_is_asked_and_all_comes_in_order() {
    let world = world(1 << 20);
    for (name, value) in [("a", 1), ("b", 2), ("c", 3)] {
        set(&world.other, name, value).await;
    }
    world.read(&["b"], aged(SECOND)).await.unwrap();
    world.asked();
    assert_eq!(world.read(&["c", "b", "a", "b"], aged(SECOND)).await, Ok(vec![3, 2, 1, 2]));
    assert_eq!(world.asked(), 2);
    let wrong = VariableRef { ty: TensorType::new(DType::U8, [1]), ..variable("b") };
    let error = world.run.pull(vec![wrong], aged(SECOND)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument, "another type is for its task to judge");
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_the_oldest_go_first() {
    let room = 2 * (ENTRY_BYTES + 1 + 100);
    let world = world(room);
    for (name, value) in [("a", 1), ("b", 2), ("c", 3)] {
        set(&world.other, name, value).await;
        world.read(&[name], aged(SECOND)).await.unwrap();
        assert!(world.run.cache.bytes() <= room);
    }
    world.asked();
    world.read(&["b", "c"], aged(SECOND)).await.unwrap();
    assert_eq!(world.asked(), 0);
    world.read(&["a"], aged(SECOND)).await.unwrap();
    assert_eq!(world.asked(), 1);
    let small = self::world(100);
    set(&small.other, "a", 1).await;
    small.read(&["a"], aged(SECOND)).await.unwrap();
    assert_eq!(small.run.cache.bytes(), 0, "what has no room isn't kept");
}
