//! Ops on other tasks, through the WIT and in guest memory.

use super::*;
use crate::cluster::{Task, TaskType};
use crate::error::{Error, ErrorCode};
use crate::handles::OpInput;
use crate::runtime::Limit;
use crate::runtime::test_support::{BARRIER, byte_tensor, starts_ops};

const WORKER: Task = Task::new(TaskType::Worker, 1);

/// Runs a guest that starts `op` with so many inputs, and gives what is left of it.
async fn run_main(op: &str, inputs: u32, limits: Limits, main: &str) -> (RunReport, Fakes) {
    let fakes = Fakes::new();
    let module = load(starts_ops(op, inputs, vec![], &format!("(func $main {main})"))).await;
    let options = GuestOptions { limits, ..GuestOptions::default() };
    let run = module.run(options, fakes.handles(), RunWatch::new());
    (tokio::time::timeout(DEADLINE, run).await.unwrap(), fakes)
}

async fn message(op: &str, main: &str) -> String {
    limited(op, Limits::default(), main).await
}

async fn limited(op: &str, limits: Limits, main: &str) -> String {
    match run_main(op, 1, limits, main).await.0.end {
        RunEnd::WorkerError { message } => message,
        other => panic!("{other:?}"),
    }
}

/// Checks that one tensor of `1 2 3 4` came to 256.
const ECHOED: &str = r#"(call $check (i32.const 256))
    (if (i32.ne (i32.load (i32.const 264)) (i32.const 1)) (then unreachable))
    (if (i32.ne (i32.load (i32.load offset=12 (i32.load (i32.const 260)))) (i32.const 0x04030201)) (then unreachable))"#;

const GET: &str = "(call $get (call $op) (i32.const 256)) (call $check (i32.const 256))";

#[tokio::test]
async fn tensors_reach_the_op_from_guest_memory_and_come_back() {
    let main = format!(
        "(local $call i32) (local.set $call (call $op)) (i32.store (i32.const 1040) (i32.const 0))
        (call $get (local.get $call) (i32.const 256)) {ECHOED} (call $drop-call (local.get $call))"
    );
    let (report, fakes) = run_main("echo", 1, Limits::default(), &main).await;
    assert_eq!(report.end, RunEnd::Done);
    fakes.ops.seen(|seen| {
        let [(task, call)] = &seen.started[..] else { panic!("{seen:?}") };
        assert_eq!((*task, call.timeout), (WORKER, Some(Duration::from_secs(5))));
        assert_eq!(call.inputs, [OpInput::Tensor(byte_tensor(&[1, 2, 3, 4]))]);
        assert_eq!(seen.dropped, ["echo"]);
    });
}

#[tokio::test]
async fn calls_are_waited_for_by_poll_and_in_get() {
    let polled = format!(
        "(local $call i32) (local.set $call (call $op))
        (call $block (call $subscribe (local.get $call))) (call $get (local.get $call) (i32.const 256)) {ECHOED}"
    );
    assert_eq!(run_main("late", 1, Limits::default(), &polled).await.0.end, RunEnd::Done);
    let waited = format!("(call $get (call $op) (i32.const 256)) {ECHOED}");
    assert_eq!(run_main("late", 1, Limits::default(), &waited).await.0.end, RunEnd::Done);
    // What was polled may outlive what it is of.
    let orphan = "(local $call i32) (local $poll i32) (local.set $call (call $op))
        (local.set $poll (call $subscribe (local.get $call))) (call $drop-call (local.get $call))
        (call $block (local.get $poll)) (call $drop-pollable (local.get $poll))";
    assert_eq!(run_main("never", 1, Limits::default(), orphan).await.0.end, RunEnd::Done);
}

#[tokio::test]
async fn results_are_taken_once() {
    for (first, second) in [("get", "get"), ("get", "keep"), ("keep", "get"), ("keep", "keep")] {
        let main = format!(
            "(local $call i32) (local.set $call (call $op))
            (call ${first} (local.get $call) (i32.const 256)) (call $check (i32.const 256))
            (call ${second} (local.get $call) (i32.const 320)) (call $check (i32.const 320))
            (if (i32.ne (call $code (i32.const 320)) (i32.const 8)) (then unreachable))"
        );
        let message = message("echo", &main).await;
        assert_eq!(
            message,
            "the results of ops.start of `echo` on worker:1 were taken already: `get` and `keep` answer once"
        );
    }
}

#[tokio::test]
async fn kept_values_are_inputs_are_fetched_and_freed() {
    let main = format!(
        "(local $value i32)
        (call $keep (call $op) (i32.const 256)) (call $check (i32.const 256))
        (local.set $value (i32.load (i32.load (i32.const 260))))
        (call $on (local.get $value) (i32.const 288))
        (if (i32.ne (i32.load offset=4 (i32.const 288)) (i32.const 6)) (then unreachable))
        (if (i32.ne (i32.load offset=8 (i32.const 288)) (i32.const 1)) (then unreachable))
        (call $remote (local.get $value))
        (call $get (call $op-from (i32.const 1080) (i32.const 1)) (i32.const 256)) {ECHOED}
        (call $fetch (local.get $value) (i32.const 320)) (call $check (i32.const 320))
        (if (i32.ne (i32.load (i32.load offset=16 (i32.const 320))) (i32.const 0x04030201)) (then unreachable))
        (call $fetch (local.get $value) (i32.const 320)) (call $check (i32.const 320))
        (call $drop-remote (local.get $value))"
    );
    let (report, fakes) = run_main("echo", 1, Limits::default(), &main).await;
    assert_eq!(report.end, RunEnd::Done);
    fakes.ops.seen(|seen| {
        let [value] = &seen.released[..] else { panic!("{seen:?}") };
        assert_eq!(seen.started[1].1.inputs, [OpInput::Remote(value.clone())]);
        assert_eq!((value.task, value.call, value.result), (WORKER, 0, 0));
    });
}

/// The end of the run frees all that is left, so that nothing is sent for each.
#[tokio::test]
async fn values_that_are_left_go_with_the_run_and_calls_are_given_up() {
    let main = "(call $keep (call $op) (i32.const 256)) (call $check (i32.const 256)) (drop (call $op))";
    let (report, fakes) = run_main("echo", 1, Limits::default(), main).await;
    assert_eq!(report.end, RunEnd::Done);
    fakes.ops.seen(|seen| assert_eq!((seen.dropped.len(), seen.released.len()), (2, 0)));
}

#[tokio::test]
async fn a_cancelled_op_says_so_and_one_that_has_ended_does_not() {
    let main = "(local $call i32) (local.set $call (call $op)) (call $cancel (local.get $call))
        (call $get (local.get $call) (i32.const 256)) (call $check (i32.const 256))";
    assert_eq!(message("never", main).await, "op `never` on worker:1 was cancelled");
    assert_eq!(run_main("echo", 1, Limits::default(), main).await.0.end, RunEnd::Done);
}

#[tokio::test]
async fn failures_reach_the_guest_and_only_those_of_the_cluster_are_remembered() {
    for (op, expected, cluster) in [
        ("failing", "op `failing` on worker:1 failed: bad shard", false),
        ("trapping", "op `trapping` on worker:1 trapped: unreachable", false),
        ("lost", "op `lost` on worker:1 is lost: its task has failed", true),
        ("refused", "no ops on worker:1", false),
    ] {
        for function in ["get", "keep"] {
            let main = format!(
                "(local $call i32) (local.set $call (call $op)) (br_if 0 (global.get $failed))
                (call ${function} (local.get $call) (i32.const 256)) (call $check (i32.const 256))"
            );
            let (report, _) = run_main(op, 1, Limits::default(), &main).await;
            assert_eq!(report.end, RunEnd::WorkerError { message: expected.to_owned() });
            assert_eq!(report.cluster_failure.is_some(), cluster, "{op}");
        }
    }
}

#[tokio::test]
async fn mistakes_in_a_call_are_told_before_anything_starts() {
    let long = "o".repeat(300);
    for (op, main, expected) in [
        ("", "(drop (call $op))", "the name of an op is empty"),
        (&*long, "(drop (call $op))", "has 300 bytes, at most 256 are allowed"),
        (
            "echo",
            "(i32.store8 (i32.const 1024) (i32.const 120)) (drop (call $op))",
            "op `echo` can't run: unknown task type `xorker`",
        ),
        (
            "echo",
            "(i32.store (i32.const 1076) (i32.const 3)) (drop (call $op))",
            "a tensor u8[4] has 4 bytes, but 3 came with it",
        ),
        ("echo", "(i32.store8 (i32.const 1060) (i32.const 5)) (drop (call $op))", "dtype `bf16` is not served yet"),
        ("echo", "(i32.store (i32.const 1068) (i32.const 33)) (drop (call $op))", "a tensor has 33 dimensions"),
        (
            "echo",
            "(drop (call $op-from (i32.const 1056) (i32.const 257)))",
            "257 inputs in one call, at most 256 are allowed",
        ),
    ] {
        let (report, fakes) = run_main(op, 1, Limits::default(), main).await;
        let RunEnd::WorkerError { message } = report.end else { panic!("{expected}: {:?}", report.end) };
        assert!(message.contains(expected), "{message}");
        fakes.ops.seen(|seen| assert_eq!(seen.started.len(), 0));
    }
}

/// Aim: a list of any length costs nothing. Method: its length is a lie, nearly all of the memory's size.
#[tokio::test]
async fn a_huge_number_of_inputs_is_refused_unread() {
    let main = "(drop (call $op-from (i32.const 0) (i32.const 2700)))";
    assert!(message("echo", main).await.starts_with("2700 inputs in one call"));
}

#[tokio::test]
async fn inputs_above_a_tensor_end_the_run_and_results_are_refused() {
    let limits = Limits { tensor_bytes_max: 3, ..Limits::default() };
    let (report, fakes) = run_main("echo", 1, limits, "(drop (call $op))").await;
    let RunEnd::Limit { limit: Limit::Tensor, message } = report.end else { panic!("{report:?}") };
    assert!(message.starts_with("one host call passed tensors of 4 bytes, above 3 bytes (--max-tensor)"), "{message}");
    fakes.ops.seen(|seen| assert_eq!(seen.started.len(), 0));

    let limits = Limits { tensor_bytes_max: 100, ..Limits::default() };
    let refused = format!("{GET} (if (i32.ne (call $code (i32.const 256)) (i32.const 7)) (then unreachable))");
    let message = limited("big", limits.clone(), &refused).await;
    assert_eq!(
        message,
        "the results of op `big` on worker:1 have 1000 bytes, above 100 bytes (--max-tensor): let it return less"
    );
    // Left there it may be as large as it is; here it isn't even asked for.
    let fetched = "(call $keep (call $op) (i32.const 256)) (call $check (i32.const 256))
        (call $fetch (i32.load (i32.load (i32.const 260))) (i32.const 320)) (call $check (i32.const 320))";
    let message = limited("big", limits, fetched).await;
    assert!(message.starts_with("the value u8[1000] on worker:1 has 1000 bytes, above 100 bytes"), "{message}");
}

#[tokio::test]
async fn calls_in_flight_are_bounded_in_number_and_bytes() {
    let limits = Limits { ops_max: 2, ..Limits::default() };
    let main = "(drop (call $op)) (drop (call $op)) (drop (call $op))";
    let text = limited("never", limits.clone(), main).await;
    assert!(text.starts_with("2 calls are in flight, the most that is allowed (-W max-ops)"), "{text}");
    // Dropped ones make room, and answered ones give their bytes back.
    let many = "(local $left i32) (local.set $left (i32.const 100))
        (loop (call $drop-call (call $op)) (br_if 0 (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))";
    assert_eq!(run_main("never", 1, limits, many).await.0.end, RunEnd::Done);

    let limits = Limits { tensor_bytes_max: 4, ..Limits::default() };
    let four = "(drop (call $op)) (drop (call $op)) (drop (call $op)) (drop (call $op))";
    let text = limited("echo", limits.clone(), &format!("{four} (drop (call $op))")).await;
    assert!(text.starts_with("calls in flight hold 16 bytes, 4 bytes more would be above 16 bytes"), "{text}");
    let answered = format!("{four} {GET}").replacen("(drop (call $op))", GET, 1);
    assert_eq!(run_main("echo", 1, limits, &answered).await.0.end, RunEnd::Done);
}

#[tokio::test]
async fn calls_and_values_count_as_handles() {
    let limits = Limits { handles_max: 10, ..Limits::default() };
    for endless in ["(loop (drop (call $op)) (br 0))", "(loop (call $keep (call $op) (i32.const 256)) (br 0))"] {
        let (report, _) = run_main("echo", 1, limits.clone(), endless).await;
        assert!(matches!(report.end, RunEnd::Limit { limit: Limit::Handles, .. }), "{:?}", report.end);
    }
}

/// A wait that is interrupted ends with the reason, and so does whatever is called after.
#[tokio::test]
async fn an_interrupt_ends_every_wait() {
    let polled = "(local $call i32) (local.set $call (call $op)) (call $block (call $subscribe (local.get $call)))
        (call $get (local.get $call) (i32.const 256)) (call $check (i32.const 256))";
    let started = "(call $block (call $subscribe (call $op))) (drop (call $op))";
    for wait in [GET.to_owned(), GET.replace("$get", "$keep"), polled.to_owned(), started.to_owned()] {
        let fakes = Fakes::new();
        let module = load(starts_ops("never", 1, vec![], &format!("(func $main {wait})"))).await;
        let watch = RunWatch::new();
        let run = module.run(GuestOptions::default(), fakes.handles(), watch.clone());
        let interrupt = async {
            while fakes.ops.seen(|seen| seen.started.is_empty()) {
                tokio::task::yield_now().await;
            }
            fakes.interrupt.send_replace(Some(Error::new(ErrorCode::PeerFailed, "worker:2 has failed")));
        };
        let (report, ()) = tokio::time::timeout(DEADLINE, async { tokio::join!(run, interrupt) }).await.unwrap();
        assert_eq!(report.end, RunEnd::WorkerError { message: "worker:2 has failed".to_owned() }, "{wait}");
        assert!(report.cluster_failure.is_some());
    }
}

#[tokio::test]
async fn a_waiting_call_is_named() {
    let fakes = Fakes::new();
    let module = load(starts_ops("never", 1, vec![], &format!("(func $main {GET})"))).await;
    let watch = RunWatch::new();
    let run = module.run(GuestOptions::default(), fakes.handles(), watch.clone());
    let named = async {
        loop {
            if let Some(label) = watch.pending_host_call() {
                return label;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        report = run => panic!("{report:?}"),
        label = named => assert_eq!(label, "ops.get of `never` on worker:1"),
    }
}

#[tokio::test]
async fn a_panic_in_an_op_is_a_bug_of_ours() {
    let dropped = "(call $drop-call (call $op))";
    for (op, main) in
        [("boom-start", "(drop (call $op))"), ("boom", GET), ("boom-drop", dropped), ("boom-drop", "(drop (call $op))")]
    {
        let (report, _) = run_main(op, 1, Limits::default(), main).await;
        let RunEnd::HostBug { message } = report.end else { panic!("{op}: {report:?}") };
        assert!(message.contains("told to panic") && message.contains("a bug in dchost"), "{message}");
    }
}

/// Handles of another kind, or dropped ones, trap as everywhere.
#[tokio::test]
async fn a_handle_that_is_gone_traps() {
    let dropped = "(local $call i32) (local.set $call (call $op)) (call $drop-call (local.get $call))
        (call $get (local.get $call) (i32.const 256))";
    let (report, _) = run_main("echo", 1, Limits::default(), dropped).await;
    assert!(matches!(report.end, RunEnd::Trap { .. }), "{:?}", report.end);
}

/// Interfaces of different kinds stand side by side.
#[tokio::test]
async fn ops_overlap_with_a_barrier() {
    let main = format!(
        r#"(data (i32.const 3072) "free") (func $main (local $call i32) (local.set $call (call $op))
        (call $barrier (i32.const 3072) (i32.const 4) (i32.const 0) (i64.const 0) (i32.const 192)) (call $check (i32.const 192))
        (call $get (local.get $call) (i32.const 256)) {ECHOED})"#
    );
    assert_eq!(end(starts_ops("late", 1, vec![BARRIER], &main)).await, RunEnd::Done);
}
