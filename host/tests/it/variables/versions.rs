//! Reads that wait for a version, reads that take older values, and writes that expect a version.

use super::broken::Relay;
use super::*;
use dchost::client::variables::{CachedVariables, ReadCache};
use dchost::error::ErrorCode;
use dchost::handles::Consistency;
use std::sync::atomic::Ordering;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

fn at_least(version: u64) -> ReadOptions {
    ReadOptions { min_version: Some(version), ..ReadOptions::default() }
}

/// Begins a read that waits for a version.
fn wait(variables: &RemoteVariables, variable: &VariableRef, options: ReadOptions) -> JoinHandle<Result<Value>> {
    let (variables, variable) = (variables.clone(), variable.clone());
    tokio::spawn(async move { variables.pull(vec![variable], options).await.map(|mut values| values.remove(0)) })
}

/// Checks that a read waits: for a while in which one that doesn't would have been answered many times.
async fn waits(waiting: &mut JoinHandle<Result<Value>>) {
    let answer = tokio::time::timeout(Duration::from_millis(100), waiting).await;
    assert!(answer.is_err(), "it was answered: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_waits_for_the_version_that_another_run_makes() {
    let ps = Ps::default();
    let (reads, writes) = (connect(ps.addr, 1), connect(ps.addr, 2));
    let w = u8s("w", 300_000);
    let missing = wait(&reads, &w, at_least(1)).await.unwrap().unwrap_err();
    assert_eq!((missing.code, &*missing.names), (ErrorCode::Uninitialized, &["w".to_owned()][..]));
    initialize(&writes, &w, &vec![1; 300_000]).await.unwrap();
    assert_eq!(wait(&reads, &w, at_least(1)).await.unwrap().unwrap().version, 1);
    for consistency in [Consistency::Atomic, Consistency::Relaxed] {
        let now = pull(&writes, &w).await.unwrap().version;
        let mut waiting = wait(&reads, &w, ReadOptions { consistency, ..at_least(now + 2) });
        push(&writes, &w, UpdateKind::Add, &vec![1; 300_000]).await.unwrap();
        waits(&mut waiting).await;
        push(&writes, &w, UpdateKind::Add, &vec![1; 300_000]).await.unwrap();
        let value = tokio::time::timeout(LONG, waiting).await.expect("it is woken").unwrap().unwrap();
        assert!(value.version == now + 2 && value.tensor.data.iter().all(|&byte| u64::from(byte) == now + 2));
    }
    ps.stop().await;
}

/// Aim: a wait outlives its connection. Method: every connection is cut while the read waits; the version comes after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_goes_on_after_its_connection_broke() {
    let ps = Ps::default();
    let relay = Relay::start(ps.addr).await;
    let w = u8s("w", 4);
    let writes = connect(ps.addr, 2);
    initialize(&writes, &w, &[0; 4]).await.unwrap();
    let reads = connect(relay.addr, 1);
    pull(&reads, &w).await.unwrap();
    let mut waiting = wait(&reads, &w, at_least(2));
    for _ in 0..3 {
        waits(&mut waiting).await;
        relay.cut_all();
        until("new connections", || relay.open.load(Ordering::SeqCst) >= 1).await;
    }
    push(&writes, &w, UpdateKind::Add, &[1; 4]).await.unwrap();
    let value = tokio::time::timeout(LONG, waiting).await.expect("it is woken").unwrap().unwrap();
    assert_eq!((value.version, &value.tensor.data[..]), (2, &[1; 4][..]));
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_its_run_its_container_and_its_variable() {
    let ps = Ps::default();
    let w = u8s("w", 4);
    let writes = connect(ps.addr, 9);
    initialize(&writes, &w, &[0; 4]).await.unwrap();
    let own = peers(ps.addr, caller("default", WORKER, 1));
    let mut waiting = wait(&RemoteVariables::new(own.clone(), PS), &w, at_least(2));
    waits(&mut waiting).await;
    own.close().await;
    let error = tokio::time::timeout(LONG, waiting).await.expect("it ends").unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::Cancelled);

    let mut deleted = wait(&connect(ps.addr, 2), &w, at_least(2));
    waits(&mut deleted).await;
    ps.store.open("default", None).unwrap().delete(&["w".into()]).unwrap();
    let error = tokio::time::timeout(LONG, deleted).await.expect("it ends").unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::Uninitialized);

    initialize(&writes, &w, &[0; 4]).await.unwrap();
    let mut over = wait(&connect(ps.addr, 3), &w, at_least(2));
    waits(&mut over).await;
    ps.store.delete_container("default");
    let error = tokio::time::timeout(LONG, over).await.expect("it ends").unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::Aborted);
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_base_is_aborted_with_both_versions() {
    let ps = Ps::default();
    let variables = connect(ps.addr, 1);
    let w = u8s("w", 4);
    initialize(&variables, &w, &[1; 4]).await.unwrap();
    let assign = async |base, consistency| {
        let change =
            Change { variable: w.clone(), kind: UpdateKind::Assign, value: view(&w, &[9; 4]), base: Some(base) };
        variables.push(vec![change], WriteOptions { consistency, ..WriteOptions::WITH_VALUES }).await
    };
    push(&variables, &w, UpdateKind::Add, &[1; 4]).await.unwrap();
    let error = assign(1, Consistency::Atomic).await.unwrap_err();
    assert_eq!((error.code, &*error.names), (ErrorCode::Aborted, &["w".to_owned()][..]));
    assert!(error.message.contains("version `2`") && error.message.contains("version `1`"), "{error}");
    let error = assign(2, Consistency::Relaxed).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument, "{error}");
    assert_eq!(pull(&variables, &w).await.unwrap().tensor.data, [2; 4][..]);
    assert_eq!(assign(2, Consistency::Atomic).await.unwrap()[0].version, 3);
    ps.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_value_serves_without_its_task_and_the_runs_own_writes_show() {
    let ps = Ps::default();
    let other = connect(ps.addr, 2);
    let run = CachedVariables::new(connect(ps.addr, 1), PS, ReadCache::new(1 << 20, Handle::current()));
    let w = u8s("w", 4);
    initialize(&other, &w, &[1; 4]).await.unwrap();
    let old = async || {
        let options = ReadOptions { max_age: Some(LONG), ..ReadOptions::default() };
        run.pull(vec![w.clone()], options).await.map(|values| (values[0].version, values[0].tensor.data[0]))
    };
    assert_eq!(old().await, Ok((1, 1)));
    push(&other, &w, UpdateKind::Add, &[1; 4]).await.unwrap();
    assert_eq!(old().await, Ok((1, 1)));
    push(&run, &w, UpdateKind::Add, &[1; 4]).await.unwrap();
    assert_eq!(old().await, Ok((3, 3)));
    push(&other, &w, UpdateKind::Add, &[1; 4]).await.unwrap();
    let newer = ReadOptions { max_age: Some(LONG), ..at_least(4) };
    assert_eq!(run.pull(vec![w.clone()], newer).await.unwrap()[0].version, 4);
    ps.stop().await;
    assert_eq!(old().await, Ok((4, 4)), "the task isn't even there");
}
