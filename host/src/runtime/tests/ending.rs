//! How runs end, and what is seen of them.

use super::*;
use crate::error::{Error, ErrorCode};
use crate::runtime::DirGrant;
use crate::runtime::test_support::{
    ARGUMENTS, BARRIER, BLOCK, ENVIRONMENT, EXIT, EXIT_WITH_CODE, LOG, STDOUT, SUBSCRIBE, WRITE, guest, waits_at,
};

const SPIN: &str = r#"(func (export "run") (result i32) (loop (br 0)) (unreachable))"#;

#[tokio::test]
async fn a_guest_that_returns_is_done() {
    assert_eq!(end(guest(&[], r#"(func (export "run") (result i32) (i32.const 0))"#)).await, RunEnd::Done);
}

#[tokio::test]
async fn an_error_of_the_guest_is_told_once_and_escaped() {
    let body = r#"(data (i32.const 16) "\01\00\00\00\00\04\00\00\0c\00\00\00") (data (i32.const 1024) "bad\1b[2Jshard")
        (func (export "run") (result i32) (i32.const 16))"#;
    assert_eq!(end(guest(&[], body)).await, RunEnd::WorkerError { message: "bad\\u{1b}[2Jshard".to_owned() });
}

#[tokio::test]
async fn exit_is_no_trap() {
    let exits = |status| {
        guest(
            &[EXIT],
            &format!(r#"(func (export "run") (result i32) (call $exit (i32.const {status})) (i32.const 0))"#),
        )
    };
    assert_eq!(end(exits(0)).await, RunEnd::GuestExit { ok: true, code: Some(0) });
    assert_eq!(end(exits(1)).await, RunEnd::GuestExit { ok: false, code: None });
    let with_code = guest(
        &[EXIT_WITH_CODE],
        r#"(func (export "run") (result i32) (call $exit-with-code (i32.const 3)) (i32.const 0))"#,
    );
    assert_eq!(end(with_code).await, RunEnd::GuestExit { ok: false, code: Some(3) });
}

#[tokio::test]
async fn a_trap_tells_last_words_kind_and_frames() {
    let body = r#"(func $inner (unreachable)) (func (export "run") (result i32) (call $inner) (i32.const 0))"#;
    let RunEnd::Trap { kind, report } = end(guest(&[], body)).await else { panic!("no trap") };
    assert!(kind.contains("unreachable code reached"), "{kind}");
    assert!(!report.contains("unreachable"), "{report}");
    assert!(report.contains("inner"), "{report}");
    assert!(report.contains("hint: build the component with"), "{report}");
}

#[tokio::test]
async fn endless_recursion_is_told_as_stack_exhausted_and_folded() {
    let body = r#"(func $f (call $f)) (func (export "run") (result i32) (call $f) (i32.const 0))"#;
    let RunEnd::Trap { kind, report } = end(guest(&[], body)).await else { panic!("no trap") };
    assert!(kind.contains("guest stack exhausted"), "{kind}");
    assert!(report.contains("times more"), "{report}");
    assert!(report.lines().count() < 10, "{report}");
}

/// Polls a run until `begun` says so, then drops it.
async fn drop_once(run: impl Future<Output = RunReport>, begun: impl Fn() -> bool) {
    let wait = async {
        while !begun() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        report = run => panic!("it goes on for ever, but ended: {report:?}"),
        () = wait => {}
        () = tokio::time::sleep(DEADLINE) => panic!("it did not begin"),
    }
}

/// Drops the run of a guest that says that it begins and then goes on for ever: nobody holds the handles any more.
async fn check_dropped(goes_on: &str) {
    let body = format!(
        r#"(data (i32.const 1024) "begun") (func (export "run") (result i32)
        (call $log (i32.const 2) (i32.const 1024) (i32.const 5)) {goes_on})"#
    );
    let module = load(guest(&[LOG, SUBSCRIBE, BLOCK], &body)).await;
    let fakes = Fakes::new();
    let run = module.run(GuestOptions::default(), fakes.handles(), RunWatch::new());
    drop_once(run, || {
        let begun = fakes.recorder.text().contains("begun");
        assert!(!begun || Arc::strong_count(&fakes.variables) > 1, "the run holds its handles");
        begun
    })
    .await;
    assert_eq!((Arc::strong_count(&fakes.variables), fakes.interrupt.receiver_count()), (1, 0));
}

#[tokio::test]
async fn dropping_the_future_ends_a_spinning_guest() {
    check_dropped("(loop (br 0)) (unreachable)").await;
}

#[tokio::test]
async fn dropping_the_future_ends_a_sleeping_guest() {
    check_dropped("(call $block (call $subscribe (i64.const 3600000000000))) (i32.const 0)").await;
}

/// A spinning guest on a one-thread runtime: a timer on the same thread keeps ticking.
#[tokio::test]
async fn a_spinning_guest_lets_timers_run() {
    let module = load(guest(&[], SPIN)).await;
    let fakes = Fakes::new();
    let run = module.run(GuestOptions::default(), fakes.handles(), RunWatch::new());
    let ticks = async {
        let mut interval = tokio::time::interval(Duration::from_millis(1));
        for _ in 0..10 {
            interval.tick().await;
        }
    };
    tokio::select! {
        biased;
        report = run => panic!("the guest spins for ever, but ended: {report:?}"),
        () = ticks => {}
        () = tokio::time::sleep(DEADLINE) => panic!("timers starved"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_runs_at_once_each_have_their_own_budget() {
    // Long enough for several epochs each, on any machine.
    let body = r#"(func (export "run") (result i32) (local i64)
        (loop (local.set 0 (i64.add (local.get 0) (i64.const 1)))
          (br_if 0 (i64.lt_u (local.get 0) (i64.const 50000000)))) (i32.const 0))"#;
    let module = load(guest(&[], body)).await;
    let limits = Limits { cpu_timeout: Some(DEADLINE), ..Limits::default() };
    let runs = (0..8).map(|_| {
        let (module, limits) = (module.clone(), limits.clone());
        tokio::spawn(async move {
            let options = GuestOptions { limits, ..GuestOptions::default() };
            module.run(options, Fakes::new().handles(), RunWatch::new()).await
        })
    });
    for run in runs.collect::<Vec<_>>() {
        let report = run.await.unwrap();
        assert_eq!(report.end, RunEnd::Done);
        assert!(report.cpu_time > Duration::ZERO && report.cpu_time < DEADLINE, "{report:?}");
    }
}

#[tokio::test]
async fn output_is_split_in_lines_and_escaped() {
    let body = r#"(data (i32.const 1024) "one\ntwo\1b[2J\nlast words")
        (func (export "run") (result i32)
          (call $write (call $stdout) (i32.const 1024) (i32.const 22) (i32.const 64)) (i32.const 0))"#;
    let (report, recorder) = run(guest(&[STDOUT, WRITE], body), Limits::default()).await;
    assert_eq!(report.end, RunEnd::Done);
    assert_eq!(recorder.text(), "out: one\nout: two\\u{1b}[2J\nout: last words\n");
}

#[tokio::test]
async fn log_lines_carry_their_level() {
    let body = r#"(data (i32.const 1024) "lr halved\nworker:1 posing")
        (func (export "run") (result i32) (call $log (i32.const 3) (i32.const 1024) (i32.const 25)) (i32.const 0))"#;
    let (report, recorder) = run(guest(&[LOG], body), Limits::default()).await;
    assert_eq!(report.end, RunEnd::Done);
    assert_eq!(recorder.text(), "warn: lr halved\nwarn: worker:1 posing\n");
}

#[tokio::test]
async fn a_dropped_run_leaves_the_label_of_its_host_call() {
    let module = load(guest(&[BARRIER], &waits_at("stuck"))).await;
    let (fakes, watch) = (Fakes::new(), RunWatch::new());
    let run = module.run(GuestOptions::default(), fakes.handles(), watch.clone());
    let labelled = async {
        while watch.pending_host_call().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        report = run => panic!("the barrier never ends, but: {report:?}"),
        () = labelled => {}
        () = tokio::time::sleep(DEADLINE) => panic!("no label"),
    }
    assert_eq!(watch.pending_host_call().as_deref(), Some("barrier `stuck`"));
}

#[tokio::test]
async fn an_interrupt_reaches_a_blocked_barrier_as_an_error() {
    let module = load(guest(&[BARRIER], &waits_at("stuck"))).await;
    let (fakes, watch) = (Fakes::new(), RunWatch::new());
    let run = module.run(GuestOptions::default(), fakes.handles(), watch.clone());
    let interrupt = async {
        while watch.pending_host_call().is_none() {
            tokio::task::yield_now().await;
        }
        fakes.interrupt.send_replace(Some(Error::new(ErrorCode::PeerFailed, "worker:1 trapped")));
    };
    let (report, ()) = tokio::time::timeout(DEADLINE, async { tokio::join!(run, interrupt) }).await.unwrap();
    assert_eq!(report.end, RunEnd::WorkerError { message: "worker:1 trapped".to_owned() });
    assert_eq!(report.cluster_failure.unwrap().code, ErrorCode::PeerFailed);
    assert_eq!(watch.pending_host_call(), None);
}

#[tokio::test]
async fn an_interrupted_run_fails_its_next_host_call_too() {
    let module = load(guest(&[BARRIER], &waits_at("free"))).await;
    let fakes = Fakes::new();
    fakes.interrupt.send_replace(Some(Error::new(ErrorCode::Cancelled, "training has ended")));
    let report = module.run(GuestOptions::default(), fakes.handles(), RunWatch::new()).await;
    assert_eq!(report.end, RunEnd::WorkerError { message: "training has ended".to_owned() });
    assert_eq!(report.cluster_failure, None);
}

#[tokio::test]
async fn cluster_failures_are_remembered_a_barriers_deadline_among_them() {
    for (barrier, code) in [("failed", ErrorCode::PeerFailed), ("late", ErrorCode::DeadlineExceeded)] {
        let (report, _) = run(guest(&[BARRIER], &waits_at(barrier)), Limits::default()).await;
        assert!(matches!(report.end, RunEnd::WorkerError { .. }), "{report:?}");
        assert_eq!(report.cluster_failure.unwrap().code, code);
    }
}

#[tokio::test]
async fn a_barrier_with_a_bad_name_is_the_guests_mistake() {
    let (report, _) = run(guest(&[BARRIER], &waits_at("")), Limits::default()).await;
    assert_eq!(report.end, RunEnd::WorkerError { message: "the name of a barrier is empty; give it one".to_owned() });
    assert_eq!(report.cluster_failure, None);
}

#[tokio::test]
async fn a_panic_in_a_host_function_is_a_bug_of_ours_and_spares_the_process() {
    let (report, _) = run(guest(&[BARRIER], &waits_at("boom")), Limits::default()).await;
    let RunEnd::HostBug { message } = report.end else { panic!("{report:?}") };
    assert!(message.contains("told to panic") && message.contains("bug in dchost"), "{message}");
    // The engine is as good as before.
    assert_eq!(end(guest(&[BARRIER], &waits_at("free"))).await, RunEnd::Done);
}

/// A function without a wait panics below wasm frames, where no helper of ours stands between.
#[tokio::test]
async fn a_panic_in_a_console_is_a_bug_of_ours_too() {
    let body = r#"(data (i32.const 1024) "boom")
        (func (export "run") (result i32) (call $log (i32.const 2) (i32.const 1024) (i32.const 4)) (i32.const 0))"#;
    let RunEnd::HostBug { message } = end(guest(&[LOG], body)).await else { panic!("no bug") };
    assert!(message.contains("told to panic"), "{message}");
}

/// Logs every string of a list of `width` strings an entry, whose address and length stand at 64.
const LOG_LIST: &str = r#"
    (func $log-list (param $width i32) (local $at i32) (local $left i32)
      (local.set $at (i32.load (i32.const 64)))
      (local.set $left (i32.mul (local.get $width) (i32.load (i32.const 68))))
      (block (loop
        (br_if 1 (i32.eqz (local.get $left)))
        (call $log (i32.const 2) (i32.load (local.get $at)) (i32.load offset=4 (local.get $at)))
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (br 0))))
    (func (export "run") (result i32)
      (call $arguments (i32.const 64)) (call $log-list (i32.const 1))
      (call $variables (i32.const 64)) (call $log-list (i32.const 2)) (i32.const 0))"#;

#[tokio::test]
async fn a_guest_sees_its_own_arguments_and_environment_and_nothing_else() {
    let module = load(guest(&[LOG, ARGUMENTS, ENVIRONMENT], LOG_LIST)).await;
    let fakes = Fakes::new();
    let report = module.run(GuestOptions::default(), fakes.handles(), RunWatch::new()).await;
    assert_eq!(report.end, RunEnd::Done);
    assert_eq!(fakes.recorder.text(), "info: guest.wasm\n");

    let fakes = Fakes::new();
    let options = GuestOptions {
        args: vec!["--epochs".to_owned(), "3".to_owned()],
        env: vec![("SEED".to_owned(), "7".to_owned())],
        ..GuestOptions::default()
    };
    module.run(options, fakes.handles(), RunWatch::new()).await;
    assert_eq!(fakes.recorder.text(), "info: guest.wasm\ninfo: --epochs\ninfo: 3\ninfo: SEED\ninfo: 7\n");
}

#[tokio::test]
async fn a_directory_that_is_not_there_refuses_the_run() {
    let module = load(guest(&[], r#"(func (export "run") (result i32) (i32.const 0))"#)).await;
    let dir = DirGrant { host: "no/such/dir".into(), guest: "data".to_owned(), read_only: true };
    let options = GuestOptions { dirs: vec![dir], ..GuestOptions::default() };
    let report = module.run(options, Fakes::new().handles(), RunWatch::new()).await;
    let RunEnd::Refused { message } = report.end else { panic!("{report:?}") };
    assert!(message.contains("`no/such/dir` of `--dir`"), "{message}");
}

#[tokio::test]
async fn a_dropped_run_shows_what_has_no_newline_yet() {
    let body = r#"(data (i32.const 1024) "epoch 1 ...")
        (func (export "run") (result i32)
          (call $write (call $stdout) (i32.const 1024) (i32.const 11) (i32.const 64))
          (call $log (i32.const 2) (i32.const 1024) (i32.const 7)) (loop (br 0)) (unreachable))"#;
    let module = load(guest(&[STDOUT, WRITE, LOG], body)).await;
    let fakes = Fakes::new();
    let run = module.run(GuestOptions::default(), fakes.handles(), RunWatch::new());
    drop_once(run, || fakes.recorder.text().contains("epoch 1")).await;
    assert_eq!(fakes.recorder.text(), "info: epoch 1\nout: epoch 1 ...\n");
}

#[tokio::test]
async fn a_string_that_is_no_utf8_traps_and_says_so() {
    let body = r#"(data (i32.const 1024) "\ff\fe")
        (func (export "run") (result i32) (call $log (i32.const 2) (i32.const 1024) (i32.const 2)) (i32.const 0))"#;
    let RunEnd::Trap { kind, .. } = end(guest(&[LOG], body)).await else { panic!("no trap") };
    assert!(kind.contains("utf-8"), "{kind}");
    assert!(!kind.contains("wasm backtrace"), "{kind}");
}
