//! Variables and pendings, through the WIT and in guest memory.

use super::*;
use crate::handles::{Consistency, ReadOptions, WriteOptions};
use crate::runtime::test_support::variables_guest;
use crate::tensor::{DType, TensorType};

/// The number of `u8` in the WIT's `dtype`.
const U8: u8 = 4;

/// Runs `main` and gives the end with what is stored of `w` then.
async fn run_main(dtype: u8, main: &str) -> (RunEnd, Option<(Vec<u8>, u64)>) {
    let fakes = Fakes::new();
    let module = load(variables_guest(dtype, &format!("(func $main (result i32) {main})"))).await;
    let run = module.run(GuestOptions::default(), fakes.handles(), RunWatch::new());
    let report = tokio::time::timeout(DEADLINE, run).await.unwrap();
    let value = fakes.variables.value("w").map(|value| {
        assert_eq!(value.tensor.ty, TensorType::new(DType::U8, [4]));
        (value.tensor.data.to_vec(), value.version)
    });
    (report.end, value)
}

const INITIALIZE: &str = r#"
    (drop (call $declared (i32.const 0)))
    (call $initialize (i32.const 1056) (i32.const 1) (i32.const 0) (i32.const 128)) (call $check (i32.const 128))"#;

async fn message(dtype: u8, main: &str) -> String {
    match run_main(dtype, main).await.0 {
        RunEnd::WorkerError { message } => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn tensors_reach_the_variables_from_guest_memory_and_come_back() {
    let main = format!(
        r#"{INITIALIZE}
        (call $update (i32.const 1104) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 192)) (call $check (i32.const 192))
        (if (i32.ne (i32.load (i32.load offset=12 (i32.load (i32.const 196)))) (i32.const 0x08060402)) (then unreachable))
        (call $read (i32.const 1056) (i32.const 1) (i32.const 0) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 0)
          (i32.const 256)) (call $check (i32.const 256))
        (if (i32.ne (i32.load (i32.load offset=12 (i32.load (i32.const 260)))) (i32.const 0x08060402)) (then unreachable))
        (if (i64.ne (i64.load offset=24 (i32.load (i32.const 260))) (i64.const 2)) (then unreachable))
        (i32.const 0)"#
    );
    assert_eq!(run_main(U8, &main).await, (RunEnd::Done, Some((vec![2, 4, 6, 8], 2))));
}

/// The guest overwrites its tensor at once, drops nothing in order, and still gets the answer to what it sent.
#[tokio::test]
async fn a_started_update_owns_its_tensor_and_is_answered_once() {
    let main = format!(
        r#"(local $pending i32) {INITIALIZE}
        (call $start-update (i32.const 1104) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 192)) (call $check (i32.const 192))
        (i32.store (i32.const 1040) (i32.const 0))
        (local.set $pending (i32.load (i32.const 196)))
        (call $block (call $subscribe (local.get $pending)))
        (call $get (local.get $pending) (i32.const 256)) (call $check (i32.const 256))
        (if (i32.ne (i32.load (i32.load offset=12 (i32.load (i32.const 260)))) (i32.const 0x08060402)) (then unreachable))
        (call $get (local.get $pending) (i32.const 320)) (call $check (i32.const 320))
        (i32.const 0)"#
    );
    let (end, value) = run_main(U8, &main).await;
    let RunEnd::WorkerError { message } = end else { panic!("{end:?}") };
    assert_eq!(message, "the answer of variables.update of `w` was taken already, `get` answers once");
    assert_eq!(value, Some((vec![2, 4, 6, 8], 2)));
}

#[tokio::test]
async fn pendings_are_bounded() {
    let main = format!(
        r#"{INITIALIZE}
        (loop
          (call $start-update (i32.const 1104) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 192))
          (call $check (i32.const 192))
          (br_if 0 (i32.eqz (global.get $failed)))) (i32.const 0)"#
    );
    assert!(message(U8, &main).await.starts_with("256 calls are in flight, the most that is allowed (-W max-ops)"));
}

#[tokio::test]
async fn errors_of_the_variables_reach_the_guest() {
    let main = r#"(drop (call $declared (i32.const 0)))
        (call $update (i32.const 1104) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 192)) (call $check (i32.const 192))
        (i32.const 0)"#;
    assert_eq!(message(U8, main).await, "variable `w` is not initialized");
}

/// Where sharded variables live is the handle's business: in a local run, in the process.
#[tokio::test]
async fn a_sharded_variable_is_declared_as_the_handle_allows() {
    let main = format!(r#"{} (i32.const 0)"#, INITIALIZE.replace("$declared (i32.const 0)", "$declared (i32.const 2)"));
    assert_eq!(run_main(U8, &main).await, (RunEnd::Done, Some((vec![1, 2, 3, 4], 1))));
}

#[tokio::test]
async fn what_is_not_served_says_so() {
    let bf16 = r#"(call $declared (i32.const 0))"#;
    assert!(message(5, bf16).await.starts_with("dtype `bf16` is not served yet"));
    let gather = r#"(call $gather (call $declared (i32.const 0)) (i32.const 1024) (i32.const 0) (i32.const 192))
        (global.set $failed (i32.const 196)) (i32.const 0)"#;
    assert!(message(U8, gather).await.starts_with("gather is not served"));
}

#[tokio::test]
async fn options_of_reads_and_updates_reach_the_variables() {
    let main = format!(
        r#"{INITIALIZE}
        (call $update (i32.const 1104) (i32.const 1) (i32.const 1) (i32.const 1) (i32.const 192)) (call $check (i32.const 192))
        (call $read (i32.const 1056) (i32.const 1) (i32.const 1) (i64.const 9) (i32.const 1) (i64.const 250) (i32.const 1)
          (i32.const 256)) (call $check (i32.const 256)) (i32.const 0)"#
    );
    let fakes = Fakes::new();
    let module = load(variables_guest(U8, &format!("(func $main (result i32) {main})"))).await;
    let report = module.run(GuestOptions::default(), fakes.handles(), RunWatch::new()).await;
    assert_eq!(report.end, RunEnd::Done);
    let read = ReadOptions {
        min_version: Some(9),
        max_age: Some(std::time::Duration::from_millis(250)),
        consistency: Consistency::Relaxed,
    };
    let write = WriteOptions { want_values: true, consistency: Consistency::Relaxed };
    assert_eq!(fakes.variables.options(), (Some(read), Some(write)));
}

#[tokio::test]
async fn a_tensor_of_another_size_or_type_is_the_guests_mistake() {
    let short = format!(
        r#"{INITIALIZE} (i32.store (i32.const 1128) (i32.const 3))
        (call $update (i32.const 1104) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 192)) (call $check (i32.const 192))
        (i32.const 0)"#
    );
    assert_eq!(message(U8, &short).await, "a tensor u8[4] has 4 bytes, but 3 came with it");
    let other = format!(
        r#"{INITIALIZE} (i64.store (i32.const 1048) (i64.const 3)) (i32.store (i32.const 1116) (i32.const 1048))
        (i32.store (i32.const 1128) (i32.const 3))
        (call $update (i32.const 1104) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 192)) (call $check (i32.const 192))
        (i32.const 0)"#
    );
    assert_eq!(message(U8, &other).await, "variable `w` is u8[4], but the tensor is u8[3]");
}

#[tokio::test]
async fn a_call_that_would_answer_more_than_a_tensor_is_refused() {
    let module = load(variables_guest(U8, &format!(
        r#"(func $main (result i32) {INITIALIZE}
          (i32.store (i32.const 8192) (i32.load (i32.const 68))) (i32.store (i32.const 8196) (i32.load (i32.const 68)))
          (call $read (i32.const 8192) (i32.const 2) (i32.const 0) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 0)
            (i32.const 256)) (call $check (i32.const 256)) (i32.const 0))"#
    ))).await;
    let limits = Limits { tensor_bytes_max: 4, ..Limits::default() };
    let options = GuestOptions { limits, ..GuestOptions::default() };
    let report = module.run(options, Fakes::new().handles(), RunWatch::new()).await;
    let RunEnd::WorkerError { message } = report.end else { panic!("{report:?}") };
    assert!(message.contains("have 8 bytes, above 4 bytes (--max-tensor)"), "{message}");
}
