//! Ops of a component, called one after the other in one instance.

use super::*;
use crate::cluster::{Task, TaskType};
use crate::error::{Error, ErrorCode};
use crate::runtime::test_support::{
    BARRIER, EXIT_WITH_CODE, Import, LOG, SUBSCRIBE, byte_tensor, guest, has_listed_ops, has_ops,
};
use crate::runtime::{Ending, Limit, OpEnd, OpGuest, World};
use crate::tensor::{DType, Tensor, TensorType};
use bytes::Bytes;
use sha2::{Digest, Sha256};

const WORKER: Task = Task::new(TaskType::Worker, 1);

/// What ops do, by the first letter of their names.
const NAMES: [&str; 17] = [
    "add", "barrier", "count", "deep", "echo", "fail", "grow", "handles", "inexact", "large", "many", "no", "panic",
    "quit", "spin", "trap", "wild",
];

const BODY: &str = r#"
    (data (i32.const 1100) "bad shard\1b[31m") (data (i32.const 1120) "stuck") (data (i32.const 1130) "boom")
    (global $counted (mut i32) (i32.const 0))
    (func $deep (call $deep))
    (func $is (param $op i32) (param $letter i32) (result i32) (i32.eq (local.get $op) (local.get $letter)))
    (func $call (param $op i32) (param $inputs i32) (param $count i32) (result i32)
      ;; barrier: waits for ever; panic: meets a bug.
      (if (call $is (local.get $op) (i32.const 98)) (then
        (call $barrier (i32.const 1120) (i32.const 5) (i32.const 0) (i64.const 0) (i32.const 64))
        (return (call $error (i32.load (i32.const 72)) (i32.load (i32.const 76))))))
      (if (call $is (local.get $op) (i32.const 112)) (then
        (call $barrier (i32.const 1130) (i32.const 4) (i32.const 0) (i64.const 0) (i32.const 64))))
      ;; count: four bytes of how often it was called.
      (if (call $is (local.get $op) (i32.const 99)) (then
        (global.set $counted (i32.add (global.get $counted) (i32.const 1)))
        (i32.store (i32.const 200) (global.get $counted))
        (return (call $bytes (i32.const 200) (i32.const 4)))))
      (if (call $is (local.get $op) (i32.const 100)) (then (call $deep)))
      (if (call $is (local.get $op) (i32.const 101)) (then
        (return (call $results (local.get $inputs) (local.get $count)))))
      (if (call $is (local.get $op) (i32.const 102)) (then
        (return (call $error (i32.const 1100) (i32.const 14)))))
      (if (call $is (local.get $op) (i32.const 103)) (then
        (loop (br_if 0 (i32.ne (memory.grow (i32.const 64)) (i32.const -1)))) (unreachable)))
      (if (call $is (local.get $op) (i32.const 104)) (then
        (loop (drop (call $subscribe (i64.const 1))) (br 0))))
      ;; inexact: three bytes for a shape of four.
      (if (call $is (local.get $op) (i32.const 105)) (then (return (call $bytes (i32.const 1040) (i32.const 3)))))
      ;; large: 20,000 bytes, for which there is no shape either.
      (if (call $is (local.get $op) (i32.const 108)) (then (return (call $bytes (i32.const 1040) (i32.const 20000)))))
      ;; many: 257 empty tensors; no: one of 40 axes.
      (if (call $is (local.get $op) (i32.const 109)) (then (return (call $results (i32.const 8192) (i32.const 257)))))
      (if (call $is (local.get $op) (i32.const 110)) (then
        (drop (call $bytes (i32.const 1040) (i32.const 4)))
        (i32.store (i32.const 136) (i32.const 40)) (return (call $results (i32.const 128) (i32.const 1)))))
      (if (call $is (local.get $op) (i32.const 113)) (then (call $exit-with-code (i32.const 7))))
      (if (call $is (local.get $op) (i32.const 115)) (then (loop (br 0))))
      (if (call $is (local.get $op) (i32.const 119)) (then (return (call $results (i32.const -64) (i32.const 9)))))
      (if (call $is (local.get $op) (i32.const 116)) (then
        (call $log (i32.const 3) (i32.const 1100) (i32.const 9)) (unreachable)))
      (call $results (i32.const 0) (i32.const 0)))"#;

fn component() -> Vec<u8> {
    has_ops(&NAMES, &[BARRIER, LOG, SUBSCRIBE, EXIT_WITH_CODE], BODY)
}

async fn load_ops(component: Vec<u8>) -> Module {
    let digest = Sha256::digest(&component).into();
    ENGINE.load_ops("train.wasm", component.into(), digest).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn open(component: Vec<u8>, limits: Limits) -> (OpGuest, Fakes) {
    let fakes = Fakes::new();
    let options = GuestOptions { limits, ..GuestOptions::default() };
    (load_ops(component).await.open_ops(options, fakes.handles()).unwrap(), fakes)
}

async fn call(guest: &mut OpGuest, op: &str) -> Result<Vec<Tensor>, OpEnd> {
    tokio::time::timeout(DEADLINE, guest.call(op, Vec::new())).await.unwrap()
}

/// How often `count` was called in the instance.
async fn count(guest: &mut OpGuest) -> u8 {
    let results = call(guest, "count").await.unwrap();
    let [Tensor { ty, data }] = &results[..] else { panic!("{results:?}") };
    assert_eq!(*ty, TensorType::new(DType::U8, [4]));
    data[0]
}

/// The end of a call, and what its caller is told.
async fn ends(guest: &mut OpGuest, op: &str) -> (OpEnd, Error) {
    let end = call(guest, op).await.expect_err(op);
    let error = end.error(WORKER, op);
    assert_eq!((&error.tasks[..], &error.names[..]), (&[WORKER][..], &[op.to_owned()][..]), "{error}");
    assert!(!error.message.contains('\n'), "{error}");
    (end, error)
}

#[tokio::test]
async fn tensors_go_in_and_come_out_and_state_is_kept() {
    let (mut guest, _) = open(component(), Limits::default()).await;
    assert!(!guest.lives(), "nothing begins before it is called");
    let scalar = Tensor { ty: TensorType::new(DType::F64, []), data: Bytes::copy_from_slice(&1.5_f64.to_le_bytes()) };
    let inputs = vec![byte_tensor(&[1, 2, 3, 4]), scalar, byte_tensor(&[])];
    assert_eq!(guest.call("echo", inputs.clone()).await, Ok(inputs));
    for expected in 1..=3 {
        assert_eq!(count(&mut guest).await, expected);
    }
    assert_eq!(call(&mut guest, "add").await, Ok(vec![]));
}

/// An instance is a value that may be called from wherever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_moves_between_threads() {
    let (mut guest, _) = open(component(), Limits::default()).await;
    for expected in 1..=8 {
        guest = tokio::spawn(async move {
            assert_eq!(count(&mut guest).await, expected);
            guest
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn errors_leave_the_state_as_it_is() {
    let limits = Limits { tensor_bytes_max: 10_000, ..Limits::default() };
    let (mut guest, _) = open(component(), limits).await;
    assert_eq!(count(&mut guest).await, 1);
    for (op, code, expected) in [
        (
            "gone",
            ErrorCode::NotFound,
            "the component that runs on worker:1 has no op `gone`: it has `add`, `barrier`, ",
        ),
        ("fail", ErrorCode::Unknown, "op `fail` on worker:1 failed: bad shard\\u{1b}[31m"),
        ("inexact", ErrorCode::Unknown, "has no valid results: a tensor u8[4] has 4 bytes, but 3 came with it"),
        ("no", ErrorCode::Unknown, "has no valid results: rank `40` of a tensor is above the greatest, `32`"),
        ("many", ErrorCode::Unknown, "has no valid results: it has 257 results, at most 256 are allowed"),
        ("large", ErrorCode::ResourceExhausted, "its results have 20000 bytes, above 10000 bytes (--max-tensor)"),
    ] {
        let (end, error) = ends(&mut guest, op).await;
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(expected), "{error}");
        assert_eq!(end.report(), None);
    }
    assert_eq!(count(&mut guest).await, 2);
}

#[tokio::test]
async fn inputs_are_bounded_before_anything_begins() {
    let limits = Limits { tensor_bytes_max: 3, ..Limits::default() };
    let (mut guest, _) = open(component(), limits).await;
    let large = guest.call("echo", vec![byte_tensor(&[1, 2]), byte_tensor(&[3, 4])]).await.unwrap_err();
    assert_eq!(large.error(WORKER, "echo").code, ErrorCode::ResourceExhausted);
    assert!(matches!(&large, OpEnd::TooLarge { message } if message.contains("4 bytes, above 3 bytes (--max-tensor)")));
    let many = guest.call("echo", vec![byte_tensor(&[]); 257]).await.unwrap_err();
    assert!(matches!(&many, OpEnd::TooLarge { message } if message.contains("257 inputs, at most 256")), "{many:?}");
    assert!(!guest.lives());
    assert_eq!(guest.call("echo", vec![byte_tensor(&[]); 256]).await.unwrap().len(), 256);
}

#[tokio::test]
async fn each_way_to_end_is_told_and_takes_the_state() {
    let limits = Limits {
        memory_bytes_max: 64 << 20,
        cpu_timeout: Some(Duration::from_millis(200)),
        handles_max: 100,
        ..Limits::default()
    };
    let (mut guest, _) = open(component(), limits).await;
    for (op, code, expected) in [
        ("trap", ErrorCode::Aborted, "op `trap` on worker:1 trapped: unreachable code reached"),
        ("wild", ErrorCode::Aborted, "op `wild` on worker:1 trapped: "),
        ("deep", ErrorCode::Aborted, "op `deep` on worker:1 trapped: guest stack exhausted"),
        ("quit", ErrorCode::Aborted, "op `quit` on worker:1 called exit with code 7"),
        ("grow", ErrorCode::ResourceExhausted, "was ended: memory limit 64 MiB reached"),
        ("spin", ErrorCode::ResourceExhausted, "was ended: cpu limit 200ms reached (-W cpu-timeout)"),
        ("handles", ErrorCode::ResourceExhausted, "was ended: too many handles, limit 100 reached (-W max-handles)"),
        ("panic", ErrorCode::Internal, "met a bug: a host function panicked: the fake barrier was told to panic"),
    ] {
        assert_eq!(count(&mut guest).await, 1, "before {op}");
        assert_eq!(count(&mut guest).await, 2, "before {op}");
        let (end, error) = ends(&mut guest, op).await;
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(expected), "{error}");
        assert_eq!(end.report().is_some(), op != "quit", "{end:?}");
        if let OpEnd::Ended(Ending::Trap { report, .. } | Ending::Limit { report, .. }) = &end {
            assert!(report.contains("frames, innermost first:") || ["handles", "wild"].contains(&op), "{report}");
        }
        assert!(!guest.lives());
    }
}

/// A refusal that an op copes with isn't why a later one traps.
#[tokio::test]
async fn a_limit_is_that_of_its_own_call() {
    let body = r#"(func $call (param $op i32) (param $inputs i32) (param $count i32) (result i32)
        (if (i32.eq (local.get $op) (i32.const 116)) (then (unreachable)))
        (drop (memory.grow (i32.const 5000))) (call $results (i32.const 0) (i32.const 0)))"#;
    let limits = Limits { memory_bytes_max: 64 << 20, ..Limits::default() };
    let (mut guest, _) = open(has_ops(&["copes", "trap"], &[], body), limits).await;
    assert_eq!(call(&mut guest, "copes").await, Ok(vec![]));
    let end = call(&mut guest, "trap").await.unwrap_err();
    assert!(matches!(end, OpEnd::Ended(Ending::Trap { .. })), "{end:?}");
}

/// Many calls that together take more than one of them may.
#[tokio::test]
async fn processor_time_and_fuel_are_of_each_call() {
    let body = r#"(func $call (param $op i32) (param $inputs i32) (param $count i32) (result i32) (local i32)
        (loop (local.set 3 (i32.add (local.get 3) (i32.const 1)))
          (br_if 0 (i32.lt_u (local.get 3) (i32.const 100000))))
        (call $results (i32.const 0) (i32.const 0)))"#;
    let component = has_ops(&["work"], &[], body);
    let options = EngineOptions { fuel: true, ..EngineOptions::default() };
    let engine = Engine::new(options).unwrap();
    let digest = Sha256::digest(&component).into();
    let module = engine.load_ops("train.wasm", component.into(), digest).await.unwrap();
    let open = |fuel| {
        let limits = Limits { fuel: Some(fuel), ..Limits::default() };
        module.open_ops(GuestOptions { limits, ..GuestOptions::default() }, Fakes::new().handles()).unwrap()
    };
    let mut enough = open(1_000_000);
    for _ in 0..10 {
        assert_eq!(call(&mut enough, "work").await, Ok(vec![]));
    }
    let (end, error) = ends(&mut open(100_000), "work").await;
    assert!(matches!(end, OpEnd::Ended(Ending::Limit { limit: Limit::Fuel, .. })), "{end:?}");
    assert_eq!(error.code, ErrorCode::ResourceExhausted);
}

/// Ends a call when `begun` says so, by dropping it.
async fn dropped(guest: &mut OpGuest, op: &str, begun: impl Fn() -> bool) {
    let begins = async {
        while !begun() {
            tokio::task::yield_now().await;
        }
    };
    let ended = async {
        tokio::select! {
            biased;
            end = guest.call(op, Vec::new()) => panic!("{op} ended: {end:?}"),
            () = begins => {}
        }
    };
    tokio::time::timeout(DEADLINE, ended).await.unwrap();
}

#[tokio::test]
async fn dropping_a_call_ends_the_instance_also_one_that_never_yields() {
    let (mut guest, _) = open(component(), Limits::default()).await;
    for op in ["spin", "barrier"] {
        assert_eq!(count(&mut guest).await, 1);
        dropped(&mut guest, op, || true).await;
        assert!(!guest.lives());
    }
    assert_eq!(count(&mut guest).await, 1);
}

#[tokio::test]
async fn an_interrupt_ends_what_an_op_waits_for() {
    let (mut guest, fakes) = open(component(), Limits::default()).await;
    assert_eq!(count(&mut guest).await, 1);
    fakes.interrupt.send_replace(Some(Error::new(ErrorCode::Cancelled, "the run has ended")));
    let (end, _) = ends(&mut guest, "barrier").await;
    assert_eq!(end, OpEnd::Failed { message: "the run has ended".to_owned() });
}

#[tokio::test]
async fn hostile_lists_are_refused() {
    let list = |body: &str| {
        let call = "(func $call (param i32 i32 i32) (result i32) (call $results (i32.const 0) (i32.const 0)))";
        has_listed_ops(&[], &format!("{body} {call}"))
    };
    // As many entries as fit, all of the same name.
    let entries = |at: u32, length: u32, count: u32| {
        list(&format!(
            r#"(data (i32.const 1024) "add") (func $list (result i32) (local $at i32) (local $left i32)
              (drop (memory.grow (i32.const 64)))
              (local.set $at (i32.const 131072)) (local.set $left (i32.const {count}))
              (loop
                (i32.store (local.get $at) (i32.const {at})) (i32.store offset=4 (local.get $at) (i32.const {length}))
                (local.set $at (i32.add (local.get $at) (i32.const 8)))
                (br_if 0 (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
              (i32.store (i32.const 96) (i32.const 131072)) (i32.store (i32.const 100) (i32.const {count}))
              (i32.const 96))"#
        ))
    };
    for (component, expected) in [
        (entries(1024, 3, 100_000), "lists ops of more than 1 MiB: give it fewer"),
        (entries(0, 1 << 20, 1), "lists ops of more than 1 MiB: give it fewer"),
        (entries(1024, 3, 1025), "`train.wasm` lists 1025 ops, at most 1024 are allowed"),
        (entries(1024, 3, 2), "`train.wasm` lists op `add` twice"),
        (entries(1024, 0, 1), "`train.wasm` lists an op that can't be called: the name of an op is empty"),
        (entries(0, 1000, 1), "has 1000 bytes, at most 256 are allowed"),
        (list("(func $list (result i32) (unreachable))"), "trapped: unreachable code reached"),
        (list("(func $list (result i32) (loop (br 0)) (unreachable))"), "cpu limit 100ms reached (-W cpu-timeout)"),
    ] {
        let limits = Limits { cpu_timeout: Some(Duration::from_millis(100)), ..Limits::default() };
        let (mut guest, _) = open(component, limits).await;
        let (end, error) = ends(&mut guest, "add").await;
        assert!(error.message.contains(expected), "{error}");
        assert_eq!(
            error.code == ErrorCode::FailedPrecondition,
            matches!(end, OpEnd::Ended(Ending::Refused { .. })),
            "{error}"
        );
    }
}

/// `list` is called once for each instance, and before any op.
#[tokio::test]
async fn ops_are_listed_once() {
    let body = r#"(data (i32.const 1200) "listed") (data (i32.const 1210) "add") (global $listed (mut i32) (i32.const 0))
        (func $list (result i32)
          (global.set $listed (i32.add (global.get $listed) (i32.const 1)))
          (call $log (i32.const 2) (i32.const 1200) (i32.const 6))
          (i32.store (i32.const 300) (i32.const 1210)) (i32.store (i32.const 304) (i32.const 3))
          (i32.store (i32.const 96) (i32.const 300)) (i32.store (i32.const 100) (i32.const 1)) (i32.const 96))
        (func $call (param i32 i32 i32) (result i32)
          (if (i32.ne (global.get $listed) (i32.const 1)) (then (unreachable)))
          (call $results (i32.const 0) (i32.const 0)))"#;
    let (mut guest, fakes) = open(has_listed_ops(&[LOG], body), Limits::default()).await;
    assert_eq!(call(&mut guest, "add").await, Ok(vec![]));
    assert_eq!(call(&mut guest, "add").await, Ok(vec![]));
    assert_eq!(fakes.recorder.text(), "info: listed\n");
}

/// An instance that is begun again and again prints no more than one.
#[tokio::test]
async fn output_is_bounded_over_all_instances() {
    let limits = Limits { output_bytes_max: 1000, ..Limits::default() };
    let (mut guest, fakes) = open(component(), limits).await;
    for _ in 0..50 {
        assert!(matches!(call(&mut guest, "trap").await, Err(OpEnd::Ended(Ending::Trap { .. }))));
    }
    drop(guest);
    let text = fakes.recorder.text();
    let shown = text.matches("warn: bad shard").count();
    assert!((1..=1000 / 64).contains(&shown), "{text}");
    assert_eq!(text.matches("[dchost dropped").count(), 1, "{text}");
    assert!(text.contains("bytes of output above 1000 bytes (-W max-output)"), "{text}");
}

#[tokio::test]
async fn declared_memory_above_the_limit_is_refused_when_it_begins() {
    let limits = Limits { memory_bytes_max: 100 << 10, ..Limits::default() };
    let (mut guest, _) = open(component(), limits).await;
    let (end, error) = ends(&mut guest, "add").await;
    assert!(matches!(end, OpEnd::Ended(Ending::Refused { .. })), "{end:?}");
    assert!(error.message.contains("--max-memory") && error.code == ErrorCode::FailedPrecondition, "{error}");
}

/// Inputs are copied to where the component says, which must be in its memory.
#[tokio::test]
async fn inputs_for_which_a_component_has_no_memory_end_the_instance() {
    let (mut guest, _) = open(component(), Limits::default()).await;
    let end = guest.call("echo", vec![byte_tensor(&vec![0; 1 << 20])]).await.unwrap_err();
    assert!(matches!(&end, OpEnd::Ended(Ending::Trap { .. })), "{end:?}");
    assert!(!guest.lives());
}

#[tokio::test]
async fn a_trap_of_an_op_leaves_no_core_dump() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::new(EngineOptions { coredump: true, ..EngineOptions::default() }).unwrap();
    let digest = Sha256::digest(component()).into();
    let module = engine.load_ops("train.wasm", component().into(), digest).await.unwrap();
    let options = GuestOptions { coredump_dir: Some(dir.path().to_owned()), ..GuestOptions::default() };
    let mut guest = module.open_ops(options, Fakes::new().handles()).unwrap();
    assert!(matches!(call(&mut guest, "trap").await, Err(OpEnd::Ended(Ending::Trap { .. }))));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "whoever calls ops could fill the disk");
}

#[tokio::test]
async fn a_component_with_ops_only_is_loaded_for_them_and_not_for_a_run() {
    let bytes = component();
    let module = load_ops(bytes.clone()).await;
    assert_eq!(module.surface().world, Some(World::OpExports));
    assert_eq!(module.component_bytes(), Some(Bytes::from(bytes.clone())));
    let report = module.run(GuestOptions::default(), Fakes::new().handles(), RunWatch::new()).await;
    assert_eq!(report.end, RunEnd::Refused { message: "`train.wasm` has no worker_fn".to_owned() });
    let error = ENGINE.load_bytes("train.wasm", bytes.into()).await.unwrap_err().to_string();
    assert!(error.contains("it exports ops only, give the component that has the `#[worker_fn]`"), "{error}");
}

#[tokio::test]
async fn a_component_without_ops_says_so() {
    let returns = guest(&[], r#"(func (export "run") (result i32) (i32.const 0))"#);
    let module = load(returns.clone()).await;
    let error = module.open_ops(GuestOptions::default(), Fakes::new().handles()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed-precondition: no op of `guest.wasm` can be called: missing export `call` (interface \
         dchost:worker/op-entry@0.1.0): it has no ops, mark some with `#[op]`"
    );
    let digest = Sha256::digest(&returns).into();
    let error = ENGINE.load_ops("train.wasm", returns.into(), digest).await.unwrap_err().to_string();
    assert!(error.starts_with("`train.wasm` does not fit world `op-exports` of dchost:worker@0.1.0\n"), "{error}");
}

#[tokio::test]
async fn an_op_entry_that_is_not_as_it_is_called_is_refused() {
    for (exports, expected) in [
        (
            r#"(func $f (result u32) (canon lift (core func $i "f"))) (instance $e (export "list" (func $f)))"#,
            "`list` of `dchost:worker/op-entry@0.1.0` is `func() -> u32`, but `func() -> list<string>` is called",
        ),
        (r#"(instance $e)"#, "missing export  `list` in `dchost:worker/op-entry@0.1.0`, which has nothing"),
    ] {
        let text = format!(
            r#"(component (core module $m (func (export "f") (result i32) (i32.const 0))) (core instance $i (instantiate $m))
              {exports} (export "dchost:worker/op-entry@0.1.0" (instance $e)))"#
        );
        let bytes = wat::parse_str(&text).unwrap();
        let digest = Sha256::digest(&bytes).into();
        let error = ENGINE.load_ops("train.wasm", bytes.into(), digest).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn other_bytes_than_those_announced_are_refused_before_they_are_compiled() {
    let error = ENGINE.load_ops("train.wasm", component().into(), [1; 32]).await.unwrap_err();
    assert!(matches!(error, LoadError::Announced { .. }), "{error}");
    // `--digest` holds for whatever a process runs.
    let options = EngineOptions { digest: Some([2; 32]), ..EngineOptions::default() };
    let bytes = component();
    let digest = Sha256::digest(&bytes).into();
    let error = Engine::new(options).unwrap().load_ops("train.wasm", bytes.into(), digest).await.unwrap_err();
    assert!(matches!(error, LoadError::Digest { .. }), "{error}");
}

/// Not even where files of it are allowed: what another task sends has nobody's trust.
#[tokio::test]
async fn compiled_code_is_never_taken_from_another_task() {
    let options = EngineOptions { allow_precompiled: true, ..EngineOptions::default() };
    let engine = Engine::new(options).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("train.wasm");
    std::fs::write(&file, guest(&[], r#"(func (export "run") (result i32) (i32.const 0))"#)).unwrap();
    let sealed = engine.precompile(&file).await.unwrap();
    let raw = ENGINE.inner.wasmtime.precompile_component(&component()).unwrap();
    for code in [sealed, raw] {
        let digest = Sha256::digest(&code).into();
        let error = engine.load_ops("train.wasm", code.into(), digest).await.unwrap_err();
        let refused = matches!(error, LoadError::PrecompiledDistrusted { .. } | LoadError::Precompiled { .. });
        assert!(refused, "{error}");
    }
}

#[tokio::test]
async fn an_unknown_import_is_refused_as_for_a_run() {
    let unknown = Import {
        component: r#"(import "acme:gpu/ops@1.0.0" (instance $gpu (export "launch" (func))))"#,
        lower: r#"(core func $launch (canon lower (func $gpu "launch")))"#,
        name: "launch",
        core: "",
    };
    let body = "(func $call (param i32 i32 i32) (result i32) (unreachable))";
    let bytes = has_ops(&["add"], &[unknown], body);
    let digest = Sha256::digest(&bytes).into();
    let error = ENGINE.load_ops("train.wasm", bytes.into(), digest).await.unwrap_err().to_string();
    assert!(error.contains("unknown import  `acme:gpu/ops@1.0.0`"), "{error}");
}
