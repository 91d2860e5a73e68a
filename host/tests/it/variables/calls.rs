//! Every call there and back, small and large.

use super::*;
use dchost::coordinator::local::LocalVariables;
use dchost::coordinator::placement::{PlacedVariables, PlacementOptions};
use dchost::error::ErrorCode;
use dchost::handles::{Placement, Variable, Variables};
use dchost::wire::v1;
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::sync::watch;

#[tokio::test(flavor = "multi_thread")]
async fn values_of_every_size_come_back_as_they_went() {
    let ps = Ps::default();
    let variables = connect(ps.addr, 1);
    for bytes in [0, 1, (256 << 10) - 1, 256 << 10, 1 << 20, (1 << 20) + 1, (3 << 20) + 12345] {
        let variable = u8s(&format!("v{bytes}"), bytes);
        let data: Vec<u8> = (0..bytes).map(|index| (index / 97) as u8).collect();
        assert_eq!(initialize(&variables, &variable, &data).await, Ok(vec![1]));
        let value = pull(&variables, &variable).await.unwrap();
        assert!(value.tensor.data == data && value.version == 1 && value.tensor.ty == variable.ty);
        let value = push(&variables, &variable, UpdateKind::Add, &data).await.unwrap();
        assert!(value.tensor.data.iter().zip(&data).all(|(new, old)| *new == old.wrapping_mul(2)));
        assert_eq!((value.tensor.data.len(), value.version), (bytes, 2));
    }
    assert_eq!(ps.store.staged_bytes(), 0);
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_items_of_one_call_keep_their_order() {
    let ps = Ps::default();
    let variables = connect(ps.addr, 1);
    let sizes = [5, 0, 300_000, 1, 0, 1 << 20, 7];
    let all: Vec<_> = sizes.iter().enumerate().map(|(index, &bytes)| u8s(&format!("v{index}"), bytes)).collect();
    let data: Vec<_> = sizes.iter().enumerate().map(|(index, &bytes)| vec![index as u8; bytes]).collect();
    let values = all.iter().zip(&data).map(|(variable, data)| (variable.clone(), view(variable, data))).collect();
    variables.initialize(values, InitializeMode::IfAbsent).await.unwrap();
    let changes = all.iter().zip(&data).enumerate().map(|(index, (variable, data))| Change {
        variable: variable.clone(),
        kind: if index % 2 == 0 { UpdateKind::Sub } else { UpdateKind::Max },
        value: view(variable, data),
        base: Some(1),
    });
    let versions = variables.push(changes.collect(), WriteOptions::default()).await.unwrap();
    assert!(versions.iter().all(|value| value.version == 2 && value.tensor.data.is_empty()));
    for (index, value) in variables.pull(all, ReadOptions::default()).await.unwrap().into_iter().enumerate() {
        let expected = if index % 2 == 0 { 0 } else { index as u8 };
        assert!(value.tensor.data.len() == sizes[index] && value.tensor.data.iter().all(|&byte| byte == expected));
    }
    ps.stop().await;
}

/// What one run sets, another reads; containers don't meet; reading the uninitialized is an error of its own.
#[tokio::test(flavor = "multi_thread")]
async fn state_is_shared_by_the_runs_of_a_container() {
    let ps = Ps::default();
    let (a, b) = (connect(ps.addr, 1), connect(ps.addr, 2));
    let other = RemoteVariables::new(peers(ps.addr, caller("other", WORKER, 3)), PS);
    let w = u8s("w", 3);
    let error = pull(&b, &w).await.unwrap_err();
    assert_eq!((error.code, &*error.names), (ErrorCode::Uninitialized, &["w".to_owned()][..]));
    assert_eq!(push(&b, &w, UpdateKind::Add, &[1; 3]).await.unwrap_err().code, ErrorCode::Uninitialized);
    initialize(&a, &w, &[1, 2, 3]).await.unwrap();
    assert_eq!(pull(&b, &w).await.unwrap().tensor.data, [1, 2, 3][..]);
    assert_eq!(pull(&other, &w).await.unwrap_err().code, ErrorCode::Uninitialized);
    let status = peers(ps.addr, caller("default", WORKER, 4))
        .call(PS, Lane::Control, false, |Try { channel, header, .. }| async move {
            let request = v1::GetStatusRequest { header: Some(header), ..Default::default() };
            Ok(v1::cluster_client::ClusterClient::new(channel).get_status(request).await?.into_inner())
        })
        .await
        .unwrap();
    let rows: Vec<_> =
        status.variable.iter().map(|row| (&*row.container, &*row.name, row.bytes, row.version)).collect();
    assert_eq!(rows, [("default", "w", 3, 1)]);
    let error = pull(&b, &u8s("w", 4)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    assert!(error.message.contains("`u8[3]`") && error.message.contains("`u8[4]`"), "{error}");
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_runs_lose_no_update() {
    const RUNS: u64 = 6;
    const ROUNDS: usize = 30;
    let ps = Ps::default();
    let sum = VariableRef::whole("sum", TensorType::new(DType::S64, [1000]));
    let one: Vec<u8> = std::iter::repeat_n(1_i64.to_le_bytes(), 1000).flatten().collect();
    initialize(&connect(ps.addr, 99), &sum, &vec![0; 8000]).await.unwrap();
    let runs: Vec<_> = (1..=RUNS)
        .map(|run| {
            let (variables, sum, one) = (connect(ps.addr, run), sum.clone(), one.clone());
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let value = push(&variables, &sum, UpdateKind::Add, &one).await.unwrap();
                    let (first, _) = value.tensor.data.split_at(8);
                    assert!(value.tensor.data.chunks(8).all(|element| element == first), "torn value");
                    assert_eq!(first, (value.version as i64 - 1).to_le_bytes(), "value and version belong together");
                }
            })
        })
        .collect();
    for run in runs {
        run.await.unwrap();
    }
    let value = pull(&connect(ps.addr, 98), &sum).await.unwrap();
    assert_eq!(value.version, RUNS * ROUNDS as u64 + 1);
    ps.stop().await;
}

/// The store's own counters: a server holds one copy of what is on its way, and only until it is applied.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_megabytes_take_one_copy_on_their_way() {
    const BYTES: usize = 200_000_000;
    let ps = Ps::default();
    let variables = connect(ps.addr, 1);
    let large = VariableRef::whole("large", TensorType::new(DType::F64, [BYTES as u64 / 8]));
    let one: Vec<u8> = std::iter::repeat_n(1_f64.to_le_bytes(), BYTES / 8).flatten().collect();
    initialize(&variables, &large, &one).await.unwrap();
    let change = Change { variable: large.clone(), kind: UpdateKind::Add, value: view(&large, &one), base: None };
    variables.push(vec![change], WriteOptions::default()).await.unwrap();
    assert!(ps.store.staged_bytes_peak() <= BYTES as u64, "{}", ps.store.staged_bytes_peak());
    assert_eq!((ps.store.staged_bytes(), ps.store.variable_bytes()), (0, BYTES as u64));
    let value = pull(&variables, &large).await.unwrap();
    assert_eq!((value.version, value.tensor.data.len()), (2, BYTES));
    assert!(value.tensor.data.chunks(8).step_by(1001).all(|element| element == 2_f64.to_le_bytes()));
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_thousand_variables_initialize_and_pull() {
    const COUNT: usize = 200_000;
    let ps = Ps::default();
    let variables = connect(ps.addr, 1);
    let all: Vec<_> = (0..COUNT).map(|index| u8s(&format!("model/layer{index}"), 4)).collect();
    let data: Vec<_> = (0..COUNT).map(|index| (index as u32).to_le_bytes()).collect();
    let values = all.iter().zip(&data).map(|(variable, data)| (variable.clone(), view(variable, data))).collect();
    assert_eq!(variables.uninitialized(all.clone(), Duration::ZERO).await.unwrap().len(), COUNT);
    variables.initialize(values, InitializeMode::Overwrite).await.unwrap();
    assert_eq!(variables.uninitialized(all.clone(), LONG).await, Ok(vec![]));
    let pulled = variables.pull(all, ReadOptions::default()).await.unwrap();
    assert!(pulled.len() == COUNT && pulled.iter().zip(&data).all(|(value, data)| value.tensor.data == data[..]));
    ps.stop().await;
}

/// A worker that waits goes on within half a second after the chief has initialized.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_worker_goes_on_when_the_chief_has_initialized() {
    let ps = Ps::default();
    let cluster =
        ClusterSpec::new().with_job(TaskType::Ps, [ps.addr.to_string()]).with_job(TaskType::Worker, ["w:1", "w:2"]);
    let worker = Task::new(TaskType::Worker, 1);
    let peers = peers(ps.addr, caller("default", worker, 2));
    let (_sender, chief_ended) = watch::channel(None);
    let placed = PlacedVariables::new(PlacementOptions {
        cluster,
        run_task: Some(worker),
        process_task: Some(worker),
        local: Arc::new(LocalVariables::new(Store::default(), "default", None, Handle::current())),
        remote: Box::new(move |task| Arc::new(RemoteVariables::new(peers.clone(), task))),
        chief_ended,
        runtime: Handle::current(),
        spare: Spare::default(),
    });
    let w = Variable { name: "w".into(), ty: TensorType::new(DType::U8, [3]), placement: Placement::Auto };
    assert_eq!(placed.uninitialized(vec![w.clone()]).await, Ok(vec!["w".to_owned()]));
    let error = placed.wait_initialized(vec![w.clone()], Some(Duration::from_millis(50))).await.unwrap_err();
    assert_eq!((error.code, &*error.names), (ErrorCode::DeadlineExceeded, &["w".to_owned()][..]));
    let waiting = tokio::spawn(async move {
        placed.wait_initialized(vec![w.clone()], None).await.unwrap();
        let went_on = Instant::now();
        (went_on, placed.read(vec![w], ReadOptions::default()).await.unwrap().remove(0).tensor.data)
    });
    // The chief is late: the long poll stands by then, or begins later, and either must be answered.
    tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await.unwrap_err();
    assert!(!waiting.is_finished());
    initialize(&connect(ps.addr, 1), &u8s("w", 3), &[4, 5, 6]).await.unwrap();
    let initialized = Instant::now();
    let (went_on, data) = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
    assert!(went_on.saturating_duration_since(initialized) < Duration::from_millis(500));
    assert_eq!(data, [4, 5, 6][..]);
    ps.stop().await;
}

/// Aim: writes that together are far beyond the staging budget and the connection's window (32 MiB) all get through.
#[tokio::test(flavor = "multi_thread")]
async fn large_writes_of_one_connection_take_turns() {
    const WRITES: usize = 8;
    const BYTES: usize = 12 << 20;
    let ps = Ps::start(StoreOptions { staged_bytes_max: 20 << 20, ..Default::default() });
    let variables = Arc::new(connect(ps.addr, 1));
    let variable = u8s("v", BYTES);
    initialize(&*variables, &variable, &vec![0; BYTES]).await.unwrap();
    let mut writes = tokio::task::JoinSet::new();
    for _ in 0..WRITES {
        let (variables, variable) = (variables.clone(), variable.clone());
        writes.spawn(async move { push(&*variables, &variable, UpdateKind::Add, &vec![1; BYTES]).await });
    }
    let all = tokio::time::timeout(LONG, writes.join_all()).await.expect("every write gets its turn");
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    let value = pull(&*variables, &variable).await.unwrap();
    assert!(value.tensor.data.iter().all(|&byte| usize::from(byte) == WRITES), "each is applied once");
    assert!(ps.store.staged_bytes_peak() <= (20 << 20) + BYTES as u64, "{}", ps.store.staged_bytes_peak());
    ps.stop().await;
}
