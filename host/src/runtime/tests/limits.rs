//! Guests that exceed each limit.

use super::*;
use crate::runtime::Limit;
use crate::runtime::test_support::{BLOCK, LOG, STDOUT, SUBSCRIBE, WRITE, guest, guest_with_memory};

/// Grows memory by 16 MiB until refused, and then does as told.
fn grows_then(end: &str) -> Vec<u8> {
    guest(
        &[],
        &format!(
            r#"(func (export "run") (result i32)
              (loop (br_if 0 (i32.ne (memory.grow (i32.const 256)) (i32.const -1)))) {end})"#
        ),
    )
}

fn limit(end: RunEnd) -> (Limit, String) {
    match end {
        RunEnd::Limit { limit, message } => (limit, message),
        other => panic!("no limit: {other:?}"),
    }
}

#[tokio::test]
async fn a_trap_after_refused_memory_is_the_limit() {
    let limits = Limits { memory_bytes_max: 256 << 20, ..Limits::default() };
    let (report, _) = run(grows_then("unreachable"), limits).await;
    assert!(report.memory_bytes_peak > 200 << 20 && report.memory_bytes_peak <= 256 << 20, "{report:?}");
    let (limit, message) = limit(report.end);
    assert_eq!(limit, Limit::Memory);
    assert!(message.contains("memory limit 256 MiB reached") && message.contains("(--max-memory)"), "{message}");
}

#[tokio::test]
async fn a_guest_that_copes_with_refused_memory_is_done() {
    let limits = Limits { memory_bytes_max: 64 << 20, ..Limits::default() };
    assert_eq!(run(grows_then("(i32.const 0)"), limits).await.0.end, RunEnd::Done);
}

#[tokio::test]
async fn declared_memory_above_the_limit_is_refused_before_the_run() {
    let bytes = guest_with_memory(5000, &[], r#"(func (export "run") (result i32) (i32.const 0))"#);
    let limits = Limits { memory_bytes_max: 256 << 20, ..Limits::default() };
    let early = load(bytes.clone()).await.check_limits(&limits).unwrap_err().to_string();
    assert!(early.contains("312.50 MiB") && early.contains("--max-memory"), "{early}");
    let RunEnd::Refused { message } = run(bytes, limits).await.0.end else { panic!("not refused") };
    assert!(
        message.contains("312.50 MiB") && message.contains("256 MiB") && message.contains("--max-memory"),
        "{message}"
    );
}

#[tokio::test]
async fn the_cpu_budget_ends_a_spinning_guest() {
    let bytes = guest(&[], r#"(func (export "run") (result i32) (loop (br 0)) (unreachable))"#);
    let limits = Limits { cpu_timeout: Some(Duration::from_millis(50)), ..Limits::default() };
    let (report, _) = run(bytes, limits).await;
    assert!(report.cpu_time >= Duration::from_millis(50), "{report:?}");
    let (limit, message) = limit(report.end);
    assert_eq!(limit, Limit::Cpu);
    assert!(message.contains("-W cpu-timeout"), "{message}");
}

#[tokio::test]
async fn fuel_ends_a_spinning_guest() {
    let engine = Engine::new(EngineOptions { fuel: true, ..EngineOptions::default() }).unwrap();
    let bytes = guest(&[], r#"(func (export "run") (result i32) (loop (br 0)) (unreachable))"#);
    let module = engine.load_bytes("guest.wasm", bytes.into()).await.unwrap();
    let options =
        GuestOptions { limits: Limits { fuel: Some(100_000), ..Limits::default() }, ..GuestOptions::default() };
    let report = module.run(options, Fakes::new().handles(), RunWatch::new()).await;
    assert_eq!(limit(report.end).0, Limit::Fuel);
}

#[tokio::test]
async fn handles_are_bounded() {
    let bytes =
        guest(&[STDOUT], r#"(func (export "run") (result i32) (loop (drop (call $stdout)) (br 0)) (unreachable))"#);
    let limits = Limits { handles_max: 100, ..Limits::default() };
    let (limit, message) = limit(run(bytes, limits).await.0.end);
    assert_eq!(limit, Limit::Handles);
    assert!(message.contains("too many handles, limit 100 reached (-W max-handles)"), "{message}");
}

#[tokio::test]
async fn one_host_call_cannot_make_the_host_copy_more_than_a_tensor() {
    // 9 MiB where a tensor of 0 and its slack of 8 MiB are allowed.
    let bytes = guest_with_memory(
        160,
        &[STDOUT, WRITE],
        r#"(func (export "run") (result i32)
          (call $write (call $stdout) (i32.const 0) (i32.const 9437184) (i32.const 64)) (i32.const 0))"#,
    );
    let (limit, message) = limit(run(bytes, Limits { tensor_bytes_max: 0, ..Limits::default() }).await.0.end);
    assert_eq!(limit, Limit::Tensor);
    assert!(message.contains("--max-tensor"), "{message}");
}

#[tokio::test]
async fn a_long_log_message_is_cut() {
    let bytes = guest_with_memory(
        32,
        &[LOG],
        r#"(func (export "run") (result i32)
          (memory.fill (i32.const 4096) (i32.const 120) (i32.const 1048576))
          (call $log (i32.const 2) (i32.const 4096) (i32.const 1048576)) (i32.const 0))"#,
    );
    let (report, recorder) = run(bytes, Limits::default()).await;
    assert_eq!(report.end, RunEnd::Done);
    let text = recorder.text();
    assert_eq!(text.lines().next().map(str::len), Some("info: ".len() + (64 << 10)));
    assert!(text.contains("dropped 983040 bytes"), "{}", text.lines().last().unwrap());
}

#[tokio::test]
async fn a_flood_without_newlines_costs_one_line() {
    let bytes = guest_with_memory(
        2,
        &[STDOUT, WRITE],
        r#"(func (export "run") (result i32) (local $left i32) (local $out i32)
          (local.set $out (call $stdout)) (local.set $left (i32.const 20000))
          (loop
            (call $write (local.get $out) (i32.const 65536) (i32.const 4096) (i32.const 64))
            (br_if 0 (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
          (i32.const 0))"#,
    );
    let (report, recorder) = run(bytes, Limits::default()).await;
    assert_eq!(report.end, RunEnd::Done);
    assert_eq!(recorder.text().lines().count(), 2, "one line and the notice");
}

#[tokio::test]
async fn an_impossible_stack_is_refused_with_its_flag() {
    let error =
        Engine::new(EngineOptions { wasm_stack_bytes_max: usize::MAX, ..EngineOptions::default() }).unwrap_err();
    assert!(error.to_string().contains("-W max-wasm-stack"), "{error}");
    assert!(Engine::new(EngineOptions { wasm_stack_bytes_max: 64 << 20, ..EngineOptions::default() }).is_ok());
}

#[tokio::test]
async fn waits_do_not_count_against_the_cpu_budget() {
    // Sleeps twice as long as the budget, then computes through some epochs, so that the budget is looked at.
    let body = r#"(func (export "run") (result i32) (local i64)
        (call $block (call $subscribe (i64.const 1000000000)))
        (loop (local.set 0 (i64.add (local.get 0) (i64.const 1)))
          (br_if 0 (i64.lt_u (local.get 0) (i64.const 20000000)))) (i32.const 0))"#;
    let limits = Limits { cpu_timeout: Some(Duration::from_millis(500)), ..Limits::default() };
    let (report, _) = run(guest(&[SUBSCRIBE, BLOCK], body), limits).await;
    assert_eq!(report.end, RunEnd::Done, "{report:?}");
}
