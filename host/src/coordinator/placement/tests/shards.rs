//! Variables in parts, against whole ones.

use super::*;
use crate::variables::{AUTO_SHARD_BYTES_MIN, Payload, SHARD_BYTES_MIN, Update};
use proptest::prelude::*;

/// Elements of a row of 64 KiB: four rows make the least part.
const ROW: u64 = 16 << 10;

fn matrix(name: &str, rows: u64, placement: Placement) -> Variable {
    Variable { name: name.into(), ty: TensorType::new(DType::F32, [rows, ROW]), placement }
}

/// Each element is the number of its row, and `add`.
fn rows_plus(rows: impl IntoIterator<Item = u64>, add: f32) -> Vec<u8> {
    rows.into_iter().flat_map(|row| (row as f32 + add).to_le_bytes().repeat(ROW as usize)).collect()
}

async fn initialize(variables: &PlacedVariables, variable: &Variable, data: &[u8]) -> Result<()> {
    let view = TensorView { ty: variable.ty.clone(), data };
    variables.initialize(vec![(variable.clone(), view)], InitializeMode::Overwrite).await
}

async fn read(variables: &PlacedVariables, variable: &Variable) -> Result<Value> {
    variables.read(vec![variable.clone()], ReadOptions::default()).await.map(|mut values| values.remove(0))
}

async fn add(variables: &PlacedVariables, variable: &Variable, data: &[u8], base: Option<u64>) -> Result<Value> {
    let value = TensorView { ty: variable.ty.clone(), data };
    let change = Change { variable: variable.clone(), kind: UpdateKind::Add, value, base };
    variables.update(vec![change], WriteOptions::WITH_VALUES).await.map(|mut values| values.remove(0))
}

/// What each task holds of a variable: `ps:0 [2, 16384] shard 0 of 3 v1`, in the order of tasks.
fn held(world: &World, name: &str) -> Vec<String> {
    let stores = world.stores.lock().unwrap();
    let mut held: Vec<_> = stores
        .iter()
        .flat_map(|(task, store)| store.statuses().into_iter().map(move |status| (*task, status)))
        .filter(|(_, status)| status.name == name)
        .map(|(task, status)| {
            let part = status.shard.map_or("whole".to_owned(), |shard| shard.to_string());
            format!("{task} {:?} {part} v{}", status.ty.shape, status.version)
        })
        .collect();
    held.sort();
    held
}

fn worker(ps: usize) -> World {
    world(cluster(ps, 1), Some(WORKER0), Some(WORKER0))
}

/// Another run's view of the same tasks, by a cluster that has only these ps.
fn view_of(world: &World, ps: &[u32]) -> PlacedVariables {
    let mut cluster = ClusterSpec::new().with_job(TaskType::Worker, ["w:1", "w:2"]);
    for index in ps {
        cluster.insert(Task::new(TaskType::Ps, *index), format!("p{index}:1"));
    }
    let (stores, local) = (world.stores.clone(), world.local.clone());
    PlacedVariables::new(PlacementOptions {
        cluster,
        run_task: Some(WORKER1),
        process_task: Some(WORKER1),
        local: view(&local),
        remote: Box::new(move |task| view(stores.lock().unwrap().entry(task).or_default())),
        chief_ended: watch::channel(None).1,
        runtime: Handle::current(),
        spare: Spare::default(),
    })
}

#[tokio::test]
async fn parts_lie_on_the_tasks_from_the_place_of_the_name_on() {
    let world = worker(3);
    let w = matrix("table", 13, Placement::Sharded);
    assert_eq!(place("table", 3), 1);
    initialize(&world.variables, &w, &rows_plus(0..13, 0.0)).await.unwrap();
    assert_eq!(
        held(&world, "table"),
        ["ps:0 [4, 16384] shard 2 of 3 v1", "ps:1 [5, 16384] shard 0 of 3 v1", "ps:2 [4, 16384] shard 1 of 3 v1"]
    );
    let value = read(&world.variables, &w).await.unwrap();
    assert!(value.tensor.data == rows_plus(0..13, 0.0) && value.tensor.ty == w.ty && value.version == 1);

    // Four rows are the least part, and two parts are the least that is cut.
    assert_eq!((ROW * 4 * 16, ROW * 4 * 4), (AUTO_SHARD_BYTES_MIN as u64, SHARD_BYTES_MIN as u64));
    for (name, rows, placement, parts) in [
        ("a", 7, Placement::Sharded, 1),
        ("b", 8, Placement::Sharded, 2),
        ("c", 15, Placement::Auto, 1),
        ("d", 16, Placement::Auto, 3),
        ("e", 16, Placement::On(PS1), 1),
    ] {
        let variable = matrix(name, rows, placement);
        initialize(&world.variables, &variable, &rows_plus(0..rows, 0.0)).await.unwrap();
        assert_eq!(held(&world, name).len(), parts, "{name}");
    }
    for (ps, place) in [(0, "local"), (1, "ps:0")] {
        let world = worker(ps);
        initialize(&world.variables, &w, &rows_plus(0..13, 0.0)).await.unwrap();
        assert_eq!(world.find("table"), place);
    }
}

#[tokio::test]
async fn parts_have_versions_of_their_own_and_the_least_is_the_variables() {
    let world = worker(3);
    let w = matrix("w", 12, Placement::Sharded);
    initialize(&world.variables, &w, &rows_plus(0..12, 0.0)).await.unwrap();
    let value = add(&world.variables, &w, &rows_plus(0..12, 0.0), None).await.unwrap();
    assert_eq!((value.version, &value.tensor.ty), (2, &w.ty));
    let doubled: Vec<_> = (0..12).flat_map(|row| rows_plus([2 * row], 0.0)).collect();
    assert!(value.tensor.data == doubled);

    // Another writer's update has reached one part so far.
    let store = world.stores.lock().unwrap()[&PS0].clone();
    let status = store.statuses().remove(0);
    let part = VariableRef { name: "w".into(), ty: status.ty, shard: status.shard };
    let zeros = vec![0; part.ty.size_bytes().unwrap()];
    let update = Update { variable: part, kind: UpdateKind::Add, value: Payload::Borrowed(&zeros), base: None };
    store.open("default", None).unwrap().push(vec![update], false).unwrap();
    assert_eq!(read(&world.variables, &w).await.unwrap().version, 2);
    assert_eq!(add(&world.variables, &w, &rows_plus(0..12, 0.0), None).await.unwrap().version, 3);

    let error = add(&world.variables, &w, &rows_plus(0..12, 0.0), Some(3)).await.unwrap_err();
    assert_eq!((error.code, &*error.names), (ErrorCode::InvalidArgument, &["w".to_owned()][..]));
    assert_eq!(
        error.message,
        "variable `w` is in `3` parts on ps:0, ps:1, ps:2, which have a version each: a change can't be made on all of them only \
         if they still have a base version; place the variable on one task, as on `ps:0`, or make the change without it"
    );
    let one = matrix("one", 12, Placement::On(PS0));
    initialize(&world.variables, &one, &rows_plus(0..12, 0.0)).await.unwrap();
    assert_eq!(add(&world.variables, &one, &rows_plus(0..12, 0.0), Some(1)).await.unwrap().version, 2);
}

#[tokio::test]
async fn a_variable_has_a_value_when_all_its_parts_have() {
    let world = worker(3);
    let all = vec![matrix("w", 12, Placement::Sharded), variable("b", Placement::Auto)];
    world.initialize("b", Placement::Auto).await.unwrap();
    assert_eq!(world.variables.uninitialized(all.clone()).await, Ok(vec!["w".to_owned()]));
    let error = world.variables.read(all.clone(), ReadOptions::default()).await.unwrap_err();
    assert_eq!((error.code, &*error.names), (ErrorCode::Uninitialized, &["w".to_owned()][..]));
    initialize(&world.variables, &all[0], &rows_plus(0..12, 0.0)).await.unwrap();
    assert_eq!(world.variables.uninitialized(all.clone()).await, Ok(vec![]));
    world.stores.lock().unwrap()[&PS1].open("default", None).unwrap().delete(&["w".to_owned()]).unwrap();
    assert_eq!(world.variables.uninitialized(all.clone()).await, Ok(vec!["w".to_owned()]));
    let error = world.variables.wait_initialized(all, Some(Duration::ZERO)).await.unwrap_err();
    assert_eq!((error.code, &*error.names), (ErrorCode::DeadlineExceeded, &["w".to_owned()][..]));
}

/// Aim: whoever initialized first has cut the variable, and views with other ps tasks go by it in every call; nothing is
/// written twice.
#[tokio::test]
async fn what_is_held_wins_over_what_a_view_of_other_tasks_expects() {
    let world = worker(3);
    let all = [matrix("w", 12, Placement::Sharded), matrix("auto", 20, Placement::Auto)];
    for variable in &all {
        initialize(&world.variables, variable, &rows_plus(0..variable.ty.shape[0], 0.0)).await.unwrap();
    }
    let before = held(&world, "w");
    let other = || view_of(&world, &[0, 1, 2, 3]);
    for variable in &all {
        let rows = variable.ty.shape[0];
        assert_eq!(other().uninitialized(vec![variable.clone()]).await, Ok(vec![]));
        assert_eq!(other().wait_initialized(vec![variable.clone()], None).await, Ok(()));
        assert!(read(&other(), variable).await.unwrap().tensor.data == rows_plus(0..rows, 0.0));
        let value = add(&other(), variable, &rows_plus(vec![1; rows as usize], 0.0), None).await.unwrap();
        assert!(value.tensor.data == rows_plus(0..rows, 1.0) && value.version == 2, "one update: {}", value.version);
        initialize(&other(), variable, &rows_plus(0..rows, 0.0)).await.unwrap();
    }
    // Both in one call, of a view that knows neither.
    let data: Vec<_> = all.iter().map(|variable| rows_plus(vec![1; variable.ty.shape[0] as usize], 0.0)).collect();
    let changes = all.iter().zip(&data).map(|(variable, data)| Change {
        variable: variable.clone(),
        kind: UpdateKind::Add,
        value: TensorView { ty: variable.ty.clone(), data },
        base: None,
    });
    let values = other().update(changes.collect(), WriteOptions::default()).await.unwrap();
    assert_eq!(values.iter().map(|value| value.version).collect::<Vec<_>>(), [4, 4]);
    let values = other().read(all.to_vec(), ReadOptions::default()).await.unwrap();
    assert!(values.iter().zip([12, 20]).all(|(value, rows)| value.tensor.data == rows_plus(0..rows, 1.0)));
    let moved: Vec<_> = before.iter().map(|row| row.replace("v1", "v4")).collect();
    assert_eq!(held(&world, "w"), moved, "it lies where it lay");
}

#[tokio::test]
async fn a_view_that_lacks_a_task_of_the_map_is_told_which() {
    let world = worker(3);
    let w = matrix("w", 12, Placement::Sharded);
    initialize(&world.variables, &w, &rows_plus(0..12, 0.0)).await.unwrap();
    let fewer = view_of(&world, &[0, 2]);
    let errors = [
        read(&fewer, &w).await.unwrap_err(),
        add(&fewer, &w, &rows_plus(0..12, 0.0), None).await.unwrap_err(),
        initialize(&fewer, &w, &rows_plus(0..12, 0.0)).await.unwrap_err(),
        fewer.wait_initialized(vec![w.clone()], None).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(
            error.to_string(),
            "invalid-argument: variable `w` is in `3` parts on ps:0, ps:1, ps:2, but this view of the cluster lacks ps:1; give \
             this task a cluster with all tasks that hold it"
        );
        assert_eq!((&*error.names, &*error.tasks), (&["w".to_owned()][..], &[PS1][..]));
    }
    assert!(held(&world, "w").iter().all(|row| row.ends_with("v1")), "nothing was written");
}

#[tokio::test]
async fn the_same_name_is_one_variable_however_it_is_declared() {
    let world = worker(3);
    let parts = matrix("w", 12, Placement::Sharded);
    initialize(&world.variables, &parts, &rows_plus(0..12, 0.0)).await.unwrap();
    // Twelve rows are too few to be cut unasked, but they are.
    let auto = matrix("w", 12, Placement::Auto);
    assert!(read(&view_of(&world, &[0, 1, 2]), &auto).await.unwrap().tensor.data == rows_plus(0..12, 0.0));
    let error = read(&world.variables, &matrix("w", 12, Placement::On(PS1))).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid-argument: variable `w` is held here in part, shard 1 of 3 on ps:0, ps:1, ps:2, but this call takes it for whole; \
         declare it with the same placement everywhere, and give all tasks the same cluster"
    );
    let error = read(&world.variables, &matrix("w", 13, Placement::Sharded)).await.unwrap_err();
    assert_eq!(error.message, "variable `w` is `f32[12, 16384]` here, but this call takes it for `f32[13, 16384]`");

    let whole = matrix("v", 12, Placement::On(PS1));
    initialize(&world.variables, &whole, &rows_plus(0..12, 0.0)).await.unwrap();
    let sharded = matrix("v", 12, Placement::Sharded);
    let other = view_of(&world, &[0, 1, 2]);
    assert!(read(&other, &sharded).await.unwrap().tensor.data == rows_plus(0..12, 0.0));
    assert_eq!(add(&other, &sharded, &rows_plus(0..12, 0.0), Some(1)).await.unwrap().version, 2);
    assert_eq!(held(&world, "v"), ["ps:1 [12, 16384] whole v2"]);
    initialize(&world.variables, &matrix("v", 12, Placement::On(PS0)), &rows_plus(0..12, 0.0)).await.unwrap();
    let error = read(&view_of(&world, &[0, 1, 2]), &sharded).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid-argument: variable `v` is held as a whole on ps:0, and another of that name as a whole on ps:1; place it where the \
         one is that is meant, or rename one"
    );
}

#[tokio::test]
async fn an_evaluator_writes_no_part() {
    let world = world(cluster(3, 1), Some(EVALUATOR), Some(EVALUATOR));
    let w = matrix("w", 12, Placement::Sharded);
    let error = initialize(&world.variables, &w, &rows_plus(0..12, 0.0)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::FailedPrecondition);
    assert!(error.message.starts_with("variable `w` is on ps:0, ps:1, ps:2: evaluator:0 may read it"), "{error}");
    assert!(world.stores.lock().unwrap().is_empty(), "nobody was asked");
    initialize(&view_of(&world, &[0, 1, 2]), &w, &rows_plus(0..12, 0.0)).await.unwrap();
    assert!(read(&world.variables, &w).await.unwrap().tensor.data == rows_plus(0..12, 0.0));
}

/// An op that runs on a ps has the ps's own part in process, and the others by its peers.
#[tokio::test]
async fn a_ps_has_its_own_part_in_process() {
    let world = world(cluster(3, 1), Some(PS1), Some(PS1));
    let w = matrix("w", 12, Placement::Sharded);
    initialize(&world.variables, &w, &rows_plus(0..12, 0.0)).await.unwrap();
    assert_eq!(held(&world, "w"), ["ps:0 [4, 16384] shard 0 of 3 v1", "ps:2 [4, 16384] shard 2 of 3 v1"]);
    assert_eq!(world.local.statuses()[0].ty, w.ty.with_rows(4));
    assert!(read(&world.variables, &w).await.unwrap().tensor.data == rows_plus(0..12, 0.0));
}

#[tokio::test]
async fn a_failed_task_of_a_part_is_the_error_of_the_call() {
    let failed = |task: Task, store: &Store| -> Arc<dyn TaskVariables> {
        match task {
            PS1 => Arc::new(Fails(Error::new(ErrorCode::PeerRestarted, "ps:1 has restarted").with_tasks([PS1]), 3)),
            _ => view(store),
        }
    };
    let world = world_with(cluster(3, 1), Some(WORKER0), Some(WORKER0), failed);
    let w = matrix("w", 12, Placement::Sharded);
    for error in [
        initialize(&world.variables, &w, &rows_plus(0..12, 0.0)).await.unwrap_err(),
        read(&world.variables, &w).await.unwrap_err(),
        add(&world.variables, &w, &rows_plus(0..12, 0.0), None).await.unwrap_err(),
        world.variables.gather(w.clone(), vec![0, 5, 11]).await.unwrap_err(),
    ] {
        assert_eq!((error.code, &*error.tasks), (ErrorCode::PeerRestarted, &[PS1][..]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is done to a variable in parts comes out as for a whole one.
    #[test]
    fn updates_of_parts_are_those_of_the_whole(
        rows in 1..40_u64,
        ps in 1..6_usize,
        steps in proptest::collection::vec((0..5_usize, -9..9_i8, any::<bool>()), 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (parts, whole) = (worker(ps), world(ClusterSpec::new(), None, None));
            let w = matrix("w", rows, Placement::Sharded);
            for world in [&parts, &whole] {
                initialize(&world.variables, &w, &rows_plus(0..rows, 0.5)).await.unwrap();
            }
            assert!(held(&parts, "w").len() <= ps.min(rows as usize));
            for (kind, by, want_values) in steps {
                use UpdateKind::{Add, Assign, Max, Min, Sub};
                let kind = [Add, Sub, Min, Max, Assign][kind];
                let data = rows_plus((0..rows).rev(), f32::from(by));
                let mut results = Vec::new();
                for world in [&parts, &whole] {
                    let value = TensorView { ty: w.ty.clone(), data: &data };
                    let change = Change { variable: w.clone(), kind, value, base: None };
                    let options = WriteOptions { want_values, ..Default::default() };
                    let written = world.variables.update(vec![change], options).await.unwrap();
                    results.push((written, read(&world.variables, &w).await.unwrap()));
                }
                assert!(results[0] == results[1], "{kind:?} by {by}");
            }
        });
    }
}
