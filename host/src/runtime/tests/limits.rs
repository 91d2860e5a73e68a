//! Guests that exceed each limit.

use super::*;
use crate::runtime::Limit;
use crate::runtime::test_support::{
    BARRIER, BLOCK, LOG, LOG_UTF16, STDOUT, SUBSCRIBE, WRITE, guest, guest_with_memory,
};
use std::time::Instant;

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
    let options =
        GuestOptions { limits: Limits { fuel: Some(100_000), ..Limits::default() }, ..GuestOptions::default() };
    let (report, _) = run_on(&engine, bytes, options).await;
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
    let cut = " [983040 bytes dropped]";
    assert!(text.lines().next().unwrap().ends_with(cut));
    assert_eq!(text.lines().next().map(str::len), Some("info: ".len() + (64 << 10) + cut.len()));
    assert!(text.contains("dropped 983040 bytes of lines above 65536 bytes (-W max-output-line)"));
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

/// The text is wasmtime's own, and how such an end is known: an update that words it anew is seen here.
#[tokio::test]
async fn lending_more_than_the_handles_is_the_limit_too() {
    // A call that lends the same handle for each entry of a list.
    let main = r#"(local $at i32)
        (drop (call $declared (i32.const 0)))
        (loop
          (i32.store (i32.add (i32.const 8192) (local.get $at)) (i32.load (i32.const 68)))
          (br_if 0 (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 4))) (i32.const 40000))))
        (call $read (i32.const 8192) (i32.const 5000) (i32.const 0) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 0)
          (i32.const 256)) (i32.const 0)"#;
    let bytes = crate::runtime::test_support::variables_guest(4, &format!("(func $main (result i32) {main})"));
    let limits = Limits { handles_max: 1000, ..Limits::default() };
    let (limit, message) = limit(run(bytes, limits).await.0.end);
    assert_eq!(limit, Limit::Handles);
    assert!(message.contains("too many handles, limit 1000 reached (-W max-handles)"), "{message}");
}

/// The smallest `run`.
const ENTRY: &str = r#"
    (core module $main (memory (export "memory") 0) (func (export "run") (result i32) (i32.const 0)))
    (core instance $main (instantiate $main))
    (func $run (result (result (error string)))
      (canon lift (core func $main "run") (memory (core memory $main "memory"))))
    (instance $entry (export "run" (func $run)))
    (export "dchost:worker/entry@0.1.0" (instance $entry))"#;

#[tokio::test]
async fn too_many_instances_memories_and_tables_are_refused_by_their_number() {
    let cases = [
        ("(core module $m) ", 65, "more than 64 core instances"),
        ("(core module $m (memory 0)) ", 9, "more than 8 memories"),
        ("(core module $m (table 0 funcref)) ", 33, "more than 32 tables"),
    ];
    for (module, count, told) in cases {
        let instances = "(core instance (instantiate $m)) ".repeat(count);
        let bytes = wat::parse_str(format!("(component {module} {instances} {ENTRY})")).unwrap();
        let RunEnd::Refused { message } = end(bytes).await else { panic!("{told}: not refused") };
        assert!(message.contains(told), "{message}");
    }
}

#[tokio::test]
async fn a_name_is_measured_before_it_is_copied() {
    let long = format!(
        r#"(func (export "run") (result i32)
          (memory.fill (i32.const 8192) (i32.const 120) (i32.const 40000))
          (call $barrier (i32.const 8192) (i32.const 40000) (i32.const 0) (i64.const 0) (i32.const 64)) {FAILED})"#
    );
    let RunEnd::WorkerError { message } = end(guest(&[BARRIER], &long)).await else { panic!("no error") };
    assert!(message.ends_with("of a barrier has 40000 bytes, at most 256 are allowed"), "{message}");
}

#[tokio::test]
async fn variables_of_one_call_are_counted_before_they_are_read() {
    let main = r#"(drop (memory.grow (i32.const 8)))
        (call $read (i32.const 8192) (i32.const 65537) (i32.const 0) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 0)
          (i32.const 256)) (call $check (i32.const 256)) (i32.const 0)"#;
    let bytes = crate::runtime::test_support::variables_guest(4, &format!("(func $main (result i32) {main})"));
    let RunEnd::WorkerError { message } = end(bytes).await else { panic!("no error") };
    assert_eq!(message, "65537 variables in one call, at most 65536 are allowed: split the call");
}

/// Returns from a failed call whose result is at 64, with the error's message as `run`'s own.
pub(super) const FAILED: &str = r#"
    (if (i32.eqz (i32.load8_u (i32.const 64))) (then (return (i32.const 0))))
    (i32.store8 (i32.const 16) (i32.const 1))
    (i32.store (i32.const 20) (i32.load (i32.const 72)))
    (i32.store (i32.const 24) (i32.load (i32.const 76)))
    (i32.const 16)"#;

/// Strings in UTF-16 are transcoded as a whole before their length is seen: bounded by the hostcall fuel.
#[tokio::test]
async fn a_long_message_in_utf16_is_cut_and_one_above_the_fuel_is_the_limit() {
    let body = |units: u32| {
        format!(
            r#"(func (export "run") (result i32)
              (call $log16 (i32.const 2) (i32.const 65536) (i32.const {units})) (i32.const 0))"#
        )
    };
    let (report, recorder) = run(guest_with_memory(300, &[LOG, LOG_UTF16], &body(1 << 20)), Limits::default()).await;
    assert_eq!(report.end, RunEnd::Done);
    assert!(recorder.text().contains("(-W max-output-line)"));
    // 16 MiB, where 8 and a tensor of 1 are allowed.
    let limits = Limits { tensor_bytes_max: 1 << 20, ..Limits::default() };
    let (report, _) = run(guest_with_memory(300, &[LOG, LOG_UTF16], &body(8 << 20)), limits).await;
    assert_eq!(limit(report.end).0, Limit::Tensor);
}

/// Aim: a guest that never yields delays neither another guest nor a timer. Method: all on one thread.
#[tokio::test]
async fn a_spinning_guest_leaves_the_thread_to_others() {
    let spins = load(guest(&[], r#"(func (export "run") (result i32) (loop (br 0)) (unreachable))"#)).await;
    let returns = load(guest(&[], r#"(func (export "run") (result i32) (i32.const 0))"#)).await;
    let fakes = Fakes::new();
    let spinning = spins.run(GuestOptions::default(), fakes.handles(), RunWatch::new());
    let others = async {
        for _ in 0..5 {
            let began = Instant::now();
            let timer = tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>());
            assert!(timer.await.is_err());
            let report = returns.run(GuestOptions::default(), fakes.handles(), RunWatch::new()).await;
            assert_eq!(report.end, RunEnd::Done);
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        }
    };
    tokio::select! {
        report = spinning => panic!("{report:?}"),
        done = tokio::time::timeout(DEADLINE, others) => done.unwrap(),
    }
}

#[tokio::test]
async fn host_functions_that_compute_are_charged() {
    // Messages of 1 MiB, of which the host looks at each byte.
    let bytes = guest_with_memory(
        40,
        &[LOG],
        r#"(func (export "run") (result i32)
          (loop (call $log (i32.const 2) (i32.const 4096) (i32.const 1048576)) (br 0)) (unreachable))"#,
    );
    let limits = Limits { cpu_timeout: Some(Duration::from_millis(100)), ..Limits::default() };
    assert_eq!(limit(run(bytes, limits).await.0.end).0, Limit::Cpu);
}

/// Where the type of the error is lost on its way, its text is what is left: see `lending_more_than_the_handles` too.
#[test]
fn a_full_resource_table_says_what_it_is_known_by() {
    let text = wasmtime::component::ResourceTableError::Full.to_string();
    assert_eq!(text, "resource table has no free keys");
}

/// Between the parts of a composed component wasmtime copies from memory to memory, which is why several are offered.
#[tokio::test]
async fn a_composed_component_passes_strings_between_its_parts() {
    let run = "(if (i32.ne (call $first (i32.const 100) (i32.const 1)) (i32.const 120)) (then unreachable))";
    assert_eq!(end(composed("(i32.load8_u (local.get 0))", run)).await, RunEnd::Done);
}

/// Start functions run before `run` is called, within the same limits.
#[tokio::test]
async fn start_functions_are_limited_as_run_is() {
    let starting = |start: &str| {
        let text = format!(
            r#"(component (core module $s (memory 0) (func $f {start}) (start $f)) (core instance (instantiate $s)) {ENTRY})"#
        );
        wat::parse_str(&text).unwrap()
    };
    let limits =
        Limits { cpu_timeout: Some(Duration::from_millis(50)), memory_bytes_max: 64 << 20, ..Limits::default() };
    let end = async |start| limit(run(starting(start), limits.clone()).await.0.end).0;
    assert_eq!(end("(loop (br 0))").await, Limit::Cpu);
    assert_eq!(end("(drop (memory.grow (i32.const 2000))) unreachable").await, Limit::Memory);
}
