//! What a program that hosts runs may count on: any runtime, many runs, and none that starves another.

use super::*;
use crate::runtime::DirGrant;
use crate::runtime::test_support::{BLOCK, STDOUT, SUBSCRIBE, WRITE, guest};
use std::time::Instant;

/// Computes for a while: several ticks of the epoch, on any machine.
const COMPUTES: &str = r#"(func (export "run") (result i32) (local i64)
    (loop (local.set 0 (i64.add (local.get 0) (i64.const 1)))
      (br_if 0 (i64.lt_u (local.get 0) (i64.const 100000000)))) (i32.const 0))"#;

/// Sleeps for a millisecond, then prints.
const SLEEPS_AND_PRINTS: &str = r#"(data (i32.const 1024) "awake\n")
    (func (export "run") (result i32)
      (call $block (call $subscribe (i64.const 1000000)))
      (call $write (call $stdout) (i32.const 1024) (i32.const 6) (i32.const 64)) (i32.const 0))"#;

/// Memory that this process has resident, in bytes.
fn resident_bytes() -> u64 {
    crate::runtime::cost::resident_bytes().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_budget_of_one_run_is_not_spent_by_others() {
    let module = load(guest(&[], COMPUTES)).await;
    let alone = module.run(GuestOptions::default(), Fakes::new().handles(), RunWatch::new()).await;
    assert_eq!(alone.end, RunEnd::Done);
    // Eight runs together compute twice as long as each of them may: a budget that they shared would end some.
    let limits = Limits { cpu_timeout: Some(alone.cpu_time * 4), ..Limits::default() };
    let runs = (0..8).map(|_| {
        let (module, limits) = (module.clone(), limits.clone());
        let options = GuestOptions { limits, ..GuestOptions::default() };
        tokio::spawn(async move { module.run(options, Fakes::new().handles(), RunWatch::new()).await })
    });
    for run in runs.collect::<Vec<_>>() {
        assert_eq!(run.await.unwrap().end, RunEnd::Done);
    }
}

/// Aim: a guest that spins shares one thread with a timer fairly. Method: how late each tick of the timer is; the median,
/// since a shared machine delays some of them by more.
#[tokio::test]
async fn a_timer_beside_a_spinning_guest_is_on_time() {
    const LATE_MAX: Duration = Duration::from_millis(50);
    let module = load(guest(&[], r#"(func (export "run") (result i32) (loop (br 0)) (unreachable))"#)).await;
    let fakes = Fakes::new();
    let run = module.run(GuestOptions::default(), fakes.handles(), RunWatch::new());
    let ticks = async {
        let mut late = Vec::new();
        for _ in 0..21 {
            let due = Instant::now() + Duration::from_millis(20);
            tokio::time::sleep_until(due.into()).await;
            late.push(due.elapsed());
        }
        late.sort();
        late
    };
    tokio::select! {
        report = run => panic!("the guest spins for ever, but ended: {report:?}"),
        late = ticks => assert!(late[late.len() / 2] < LATE_MAX, "{late:?}"),
    }
}

/// Aim: nothing is kept of a run. Method: more runs than a store has instances, and the memory after them: other tests of
/// this process use some too, but give it back.
#[tokio::test]
async fn ten_thousand_runs_of_one_module_leave_nothing_behind() {
    const KEPT_BYTES_MAX: u64 = 64 << 20;
    let module = load(guest(&[], r#"(func (export "run") (result i32) (i32.const 0))"#)).await;
    let mut before = 0;
    for index in 0..10_050 {
        let report = module.run(GuestOptions::default(), Fakes::new().handles(), RunWatch::new()).await;
        assert_eq!(report.end, RunEnd::Done);
        if index == 100 {
            before = resident_bytes();
        }
    }
    let deadline = Instant::now() + DEADLINE;
    while resident_bytes() > before + KEPT_BYTES_MAX {
        assert!(Instant::now() < deadline, "{} bytes resident, {before} before", resident_bytes());
        tokio::task::yield_now().await;
    }
}

/// Runs a guest that sleeps and prints, and one that looks into a directory: what WASI does by waiting and by threads.
async fn runs_well(dir: &std::path::Path) {
    let module = load(guest(&[STDOUT, WRITE, SUBSCRIBE, BLOCK], SLEEPS_AND_PRINTS)).await;
    let fakes = Fakes::new();
    let grant = DirGrant { host: dir.to_owned(), guest: "/data".to_owned(), read_only: true };
    let options = GuestOptions { dirs: vec![grant], ..GuestOptions::default() };
    let report = module.run(options, fakes.handles(), RunWatch::new()).await;
    assert_eq!(report.end, RunEnd::Done);
    assert_eq!(fakes.recorder.text(), "out: awake\n");
}

#[test]
fn a_run_works_on_every_kind_of_runtime() {
    let dir = tempfile::tempdir().unwrap();
    let current = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    current.block_on(runs_well(dir.path()));

    let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    multi.block_on(runs_well(dir.path()));
    // From a thread that may block, as a program without async code of its own does.
    let (handle, path) = (multi.handle().clone(), dir.path().to_owned());
    multi.block_on(multi.spawn_blocking(move || handle.block_on(runs_well(&path)))).unwrap();
    // And as a task that moves between threads.
    let path = dir.path().to_owned();
    multi.block_on(multi.spawn(async move { runs_well(&path).await })).unwrap();
}
