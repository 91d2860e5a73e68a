//! What a task does for the runs of others: components in text, compiled and run by the real host of ops.

use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::coordinator::op_host::{OpHostOptions, Ops};
use dchost::coordinator::plan::op_context;
use dchost::coordinator::resolve::values::RpcLayer;
use dchost::error::{Error, ErrorCode, Result};
use dchost::handles::{Console, OpHost, OpInstance, OpOpening, Origin};
use dchost::ids::{Caller, RunId};
use dchost::runtime::{EngineOptions, GuestOptions};
use dchost::tensor::Tensor;
use dchost::variables::{Spare, Store, StoreOptions};
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// What no test should ever wait for.
const LONG: Duration = Duration::from_secs(60);

const TASK: Task = Task::new(TaskType::Worker, 0);

/// Keeps what instances print.
#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl Console for Lines {
    fn line(&self, _origin: Origin, text: &str) {
        self.0.lock().expect("no panic above").push(text.to_owned());
    }

    fn progress(&self, _done: u64, _total: Option<u64>, _note: &str) {}
}

fn host() -> Ops {
    let cluster = ClusterSpec::new().with_job(TaskType::Worker, ["127.0.0.1:1"]);
    Ops::new(OpHostOptions {
        task: TASK,
        leader: None,
        context: Arc::new(op_context(&cluster, TASK, RpcLayer::Grpc)),
        engine: EngineOptions::default(),
        guest: GuestOptions::default(),
        store: Store::new(StoreOptions::default()),
        spare: Spare::default(),
        console: Arc::new(Lines::default()),
        guests: Handle::current(),
        control: Handle::current(),
        connect_timeout: LONG,
        rejoin_timeout: LONG,
    })
}

/// A component with the ops `count` (four bytes: how often it was called), `spin`, which never yields, and `trap`; `note` tells
/// one such component from another.
pub(crate) fn component(note: usize) -> Vec<u8> {
    let error_types = include_str!("../../src/runtime/test_support/text/error_types.wat");
    let tensor_types = include_str!("../../src/runtime/test_support/text/tensor_types.wat");
    let libc = format!(include_str!("../../src/runtime/test_support/text/libc.wat.in"), pages = 2, top = 65536);
    let op_entry = include_str!("../../src/runtime/test_support/text/op_entry.wat");
    let text = format!(
        r#"(component
          (import "dchost:worker/types@0.1.0" (instance $types {error_types} {tensor_types}))
          (alias export $types "tensor" (type $tensor))
          {libc}
          (core module $main
            (import "libc" "memory" (memory 2))
            (global $counted (mut i32) (i32.const 0))
            (data (i32.const 100) "countspintrap") (data (i32.const 120) "{note}")
            (data (i32.const 64) "\c8\00\00\00\03\00\00\00")
            (data (i32.const 200) "\64\00\00\00\05\00\00\00\69\00\00\00\04\00\00\00\6d\00\00\00\04\00\00\00")
            (data (i32.const 304) "\04\00\00\00\00\00\00\00")
            (func (export "list") (result i32) (i32.const 64))
            (func (export "call") (param $name i32) (param i32 i32 i32) (result i32)
              (if (i32.eq (i32.load8_u (local.get $name)) (i32.const 115)) (then (loop (br 0))))
              (if (i32.eq (i32.load8_u (local.get $name)) (i32.const 116)) (then (unreachable)))
              (global.set $counted (i32.add (global.get $counted) (i32.const 1)))
              (i32.store (i32.const 400) (global.get $counted))
              ;; One tensor of four bytes at 128, its shape at 304, and the result at 16.
              (i32.store8 (i32.const 128) (i32.const 4))
              (i32.store (i32.const 132) (i32.const 304)) (i32.store (i32.const 136) (i32.const 1))
              (i32.store (i32.const 140) (i32.const 400)) (i32.store (i32.const 144) (i32.const 4))
              (i32.store (i32.const 20) (i32.const 128)) (i32.store (i32.const 24) (i32.const 1))
              (i32.const 16)))
          (core instance $main (instantiate $main (with "libc" (instance $libc))))
          {op_entry})"#
    );
    wat::parse_str(&text).expect("the text is good")
}

pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

async fn load(host: &Ops, component: Vec<u8>) -> Result<[u8; 32]> {
    let digest = digest(&component);
    tokio::time::timeout(LONG, host.load(digest, component.into())).await.expect("it ends").map(|()| digest)
}

/// An instance for a run, and what hears of its end.
fn open(host: &Ops, run: u64, module: [u8; 32]) -> Result<(Arc<dyn OpInstance>, oneshot::Receiver<()>)> {
    let caller = Caller { container: "default".into(), task: None, run_id: RunId(run), attempt: None };
    let (until_gone, gone) = oneshot::channel::<()>();
    let instance = host.open(OpOpening { caller, client_use: None, module, args: Vec::new() }, Box::new(until_gone))?;
    Ok((instance, gone))
}

async fn call(instance: &dyn OpInstance, op: &str) -> Result<Vec<Tensor>> {
    let call = instance.call(op.to_owned(), Box::pin(async { Ok(Vec::new()) }));
    tokio::time::timeout(LONG, call).await.expect("it ends")
}

async fn count(instance: &dyn OpInstance) -> Result<u32> {
    let results = call(instance, "count").await?;
    Ok(u32::from_le_bytes(results[0].data[..].try_into().expect("four bytes")))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_task_can_not_run_is_refused_and_says_why() {
    let host = host();
    let refused = [
        (b"no component".to_vec(), "can't run the component"),
        (wat::parse_str("(component)").expect("the text is good"), "op-entry"),
        (wat::parse_str("(module)").expect("the text is good"), "can't run the component"),
        // What compiled code begins with.
        ([b"\x7fELF".as_slice(), &[2; 100]].concat(), "can't run the component"),
    ];
    for (bytes, why) in refused {
        let error = load(&host, bytes).await.expect_err("it can't run");
        assert_eq!((error.code, &error.tasks[..]), (ErrorCode::FailedPrecondition, &[TASK][..]), "{error}");
        assert!(error.message.contains(why) && error.message.starts_with("worker:0 can't run"), "{error}");
    }
    let other = host.load(digest(b"another"), component(0).into()).await.expect_err("its sha256 is another");
    assert_eq!(other.code, ErrorCode::InvalidArgument, "{other}");
    assert!(host.component(&digest(b"another")).is_none() && host.component(&digest(&component(0))).is_none());
    let error = open(&host, 1, digest(b"another")).err().expect("it isn't loaded");
    assert_eq!(error.code, ErrorCode::NotFound, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_keeps_its_state_until_a_call_is_lost() {
    let host = host();
    let module = load(&host, component(0)).await.expect("it can run");
    let (first, gone) = open(&host, 1, module).expect("there is room");
    let (second, _) = open(&host, 2, module).expect("there is room");
    assert_eq!((count(&*first).await, count(&*first).await), (Ok(1), Ok(2)));
    assert_eq!(count(&*second).await, Ok(1), "another run has its own");
    let error = call(&*first, "none").await.expect_err("there is no such op");
    assert!(error.message.ends_with("has no op `none`: it has `count`, `spin`, `trap`"), "{error}");
    assert_eq!(count(&*first).await, Ok(3));
    let error = call(&*first, "trap").await.expect_err("it traps");
    assert_eq!((error.code, error.tasks), (ErrorCode::Aborted, vec![TASK]));
    assert_eq!(count(&*first).await, Ok(1), "the next begins in a new one");
    // One that never yields is ended with its call.
    let spin = first.call("spin".to_owned(), Box::pin(async { Ok(Vec::new()) }));
    assert!(tokio::time::timeout(Duration::from_millis(50), spin).await.is_err());
    assert_eq!(count(&*first).await, Ok(1));
    // And one that still runs with its instance.
    let spin = first.call("spin".to_owned(), Box::pin(async { Ok(Vec::new()) }));
    drop((spin, first));
    tokio::time::timeout(LONG, gone).await.expect("it goes").expect_err("it is dropped");
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_that_fail_cost_the_instance_nothing() {
    let host = host();
    let module = load(&host, component(0)).await.expect("it can run");
    let (instance, _) = open(&host, 1, module).expect("there is room");
    assert_eq!(count(&*instance).await, Ok(1));
    let lost = Error::new(ErrorCode::PeerFailed, "worker:1 has failed");
    let failing = lost.clone();
    let call = instance.call("count".to_owned(), Box::pin(async { Err(failing) }));
    assert_eq!(tokio::time::timeout(LONG, call).await.expect("it ends"), Err(lost));
    assert_eq!(count(&*instance).await, Ok(2));
}

/// Aim: components come and go for ever, while those in use stay. Method: one more than are kept, then as many in use.
#[tokio::test(flavor = "multi_thread")]
async fn components_that_nobody_uses_make_room() {
    const COMPONENTS_MAX: usize = 64;
    let host = host();
    let first = load(&host, component(0)).await.expect("it can run");
    let (used, _) = open(&host, 1, first).expect("there is room");
    let mut modules = Vec::new();
    for note in 1..=COMPONENTS_MAX {
        modules.push(load(&host, component(note)).await.expect("there is room"));
    }
    assert!(host.component(&first).is_some(), "an instance uses it");
    assert!(host.component(&modules[0]).is_none(), "it was used longest ago");
    assert_eq!(count(&*used).await, Ok(1));
    let mut instances = Vec::new();
    for (run, module) in (2..).zip(&modules[1..]) {
        instances.push(open(&host, run, *module).expect("it is loaded"));
    }
    let error = load(&host, component(1000)).await.expect_err("all are in use");
    assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
    assert!(error.message.contains("try again when some have ended"), "{error}");
    let (instance, gone) = instances.pop().expect("there are some");
    drop(instance);
    tokio::time::timeout(LONG, gone).await.expect("it goes").expect_err("it is dropped");
    load(&host, component(1000)).await.expect("there is room again");
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_are_bounded() {
    let host = host();
    let module = load(&host, component(0)).await.expect("it can run");
    let mut instances: Vec<_> = (0..256).map(|run| open(&host, run, module).expect("there is room")).collect();
    let error = open(&host, 256, module).err().expect("they are too many");
    assert_eq!((error.code, error.tasks), (ErrorCode::ResourceExhausted, vec![TASK]));
    let (instance, gone) = instances.pop().expect("there are some");
    drop(instance);
    tokio::time::timeout(LONG, gone).await.expect("it goes").expect_err("it is dropped");
    open(&host, 256, module).expect("there is room again");
}
