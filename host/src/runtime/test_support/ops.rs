//! Ops of fakes, a guest that starts ops, and one that has some.

use super::{ERROR_TYPES, FAILED, Import, TENSOR_TYPES, component, libc, lowered};
use crate::cluster::Task;
use crate::error::{Error, ErrorCode, Result};
use crate::handles::{BoxFuture, OpCall, OpInput, Ops, RemoteValue, StartedOp};
use crate::ids::Incarnation;
use crate::ops::op_failed;
use crate::tensor::{DType, Tensor, TensorType};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// Ops that do what their names say: `echo` returns its inputs, `late` too but not at once, `never` doesn't end, `big` returns
/// 1000 bytes, `failing`, `trapping` and `lost` fail, `refused` isn't started, and `boom`, `boom-start` and `boom-drop` panic.
#[derive(Default)]
pub(crate) struct FakeOps {
    seen: Arc<Mutex<Seen>>,
}

/// What became of the calls.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Those that were started, in order.
    pub(crate) started: Vec<(Task, OpCall)>,
    /// Names of those that were cancelled.
    pub(crate) cancelled: Vec<String>,
    /// Names of those that were dropped.
    pub(crate) dropped: Vec<String>,
    /// Values that were freed.
    pub(crate) released: Vec<RemoteValue>,
    kept: BTreeMap<u64, Vec<Tensor>>,
}

impl FakeOps {
    /// Looks at what became of the calls.
    pub(crate) fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.lock().unwrap())
    }
}

impl Ops for FakeOps {
    fn start(&self, task: Task, call: OpCall) -> Result<Box<dyn StartedOp>> {
        assert_ne!(call.op, "boom-start", "the fake ops were told to panic");
        let mut seen = self.seen.lock().unwrap();
        if call.op == "refused" {
            return Err(Error::new(ErrorCode::FailedPrecondition, format!("no ops on {task}")));
        }
        let inputs = call.inputs.iter().map(|input| match input {
            OpInput::Tensor(tensor) => Ok(tensor.clone()),
            OpInput::Remote(value) => seen.value(value),
        });
        let inputs: Result<Vec<_>> = inputs.collect();
        let failed = |code, what| Err(op_failed(code, task, &call.op, what));
        let outcome = match call.op.as_str() {
            "big" => Ok(vec![Tensor { ty: TensorType::new(DType::U8, [1000]), data: vec![7; 1000].into() }]),
            "failing" => failed(ErrorCode::Unknown, "failed: bad shard"),
            "trapping" => failed(ErrorCode::Aborted, "trapped: unreachable"),
            "lost" => failed(ErrorCode::PeerFailed, "is lost: its task has failed"),
            _ => inputs,
        };
        let (id, op) = (seen.started.len() as u64, call.op.clone());
        seen.started.push((task, call));
        let fake = FakeOp {
            task,
            id,
            outcome: Arc::new(Mutex::new(outcome)),
            ended: watch::Sender::new(false),
            op,
            seen: Arc::clone(&self.seen),
        };
        match fake.op.as_str() {
            "never" => {}
            "late" => {
                let ended = fake.ended.clone();
                tokio::spawn(async move {
                    for _ in 0..10 {
                        tokio::task::yield_now().await;
                    }
                    ended.send_replace(true);
                });
            }
            _ => {
                fake.ended.send_replace(true);
            }
        }
        Ok(Box::new(fake))
    }

    fn fetch(&self, value: RemoteValue) -> BoxFuture<'static, Result<Tensor>> {
        let tensor = self.seen.lock().unwrap().value(&value);
        Box::pin(async { tensor })
    }

    fn release(&self, value: RemoteValue) {
        self.seen.lock().unwrap().released.push(value);
    }
}

impl Seen {
    fn value(&self, value: &RemoteValue) -> Result<Tensor> {
        let kept = self.kept.get(&value.call).filter(|_| !self.released.contains(value));
        let kept = kept.and_then(|kept| kept.get(value.result as usize)).cloned();
        kept.ok_or_else(|| Error::new(ErrorCode::NotFound, format!("nothing of call {}", value.call)))
    }
}

struct FakeOp {
    task: Task,
    id: u64,
    op: String,
    outcome: Arc<Mutex<Result<Vec<Tensor>>>>,
    ended: watch::Sender<bool>,
    seen: Arc<Mutex<Seen>>,
}

impl StartedOp for FakeOp {
    fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    fn take(&self) -> BoxFuture<'static, Result<Vec<Tensor>>> {
        assert_ne!(self.op, "boom", "the fake op was told to panic");
        let (mut ended, outcome) = (self.ended.subscribe(), Arc::clone(&self.outcome));
        Box::pin(async move {
            ended.wait_for(|&ended| ended).await.expect("the fake lives");
            outcome.lock().unwrap().clone()
        })
    }

    fn keep(&self) -> BoxFuture<'static, Result<Vec<RemoteValue>>> {
        let (taken, seen, task, call) = (self.take(), Arc::clone(&self.seen), self.task, self.id);
        Box::pin(async move {
            let results = taken.await?;
            let value = |(result, tensor): (u32, &Tensor)| RemoteValue {
                task,
                incarnation: Incarnation(1),
                call,
                result,
                ty: tensor.ty.clone(),
            };
            let values = (0..).zip(&results).map(value).collect();
            seen.lock().unwrap().kept.insert(call, results);
            Ok(values)
        })
    }

    fn cancel(&self) {
        if !self.ended.send_replace(true) {
            *self.outcome.lock().unwrap() = Err(op_failed(ErrorCode::Cancelled, self.task, &self.op, "was cancelled"));
        }
        self.seen.lock().unwrap().cancelled.push(self.op.clone());
    }
}

impl Drop for FakeOp {
    fn drop(&mut self) {
        self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).dropped.push(self.op.clone());
        assert!(self.op != "boom-drop" || std::thread::panicking(), "the fake op was told to panic when it goes");
    }
}

/// A tensor of bytes.
pub(crate) fn byte_tensor(data: &[u8]) -> Tensor {
    Tensor { ty: TensorType::new(DType::U8, [data.len() as u64]), data: Bytes::copy_from_slice(data) }
}

/// A guest that may start ops, and do as `extra` imports; `body` defines `(func $main)`.
///
/// `$op` starts an op on `worker:1`, its name at 2048, and returns the call; `$check` remembers the first failed result, whose
/// message becomes `run`'s own error, and `$code` is the code of a result's error, or -1. Memory: one input, the tensor `u8[4]`
/// of `1 2 3 4`, at 1056, a place for a remote one at 1080 (`$remote` fills it in); free from 3072.
pub(crate) fn starts_ops(op: &str, inputs: u32, extra: Vec<Import>, body: &str) -> Vec<u8> {
    let interface = format!(
        concat!(
            include_str!("text/poll.wat"),
            include_str!("text/ops.wat.in"),
            r#"(alias export $ops "remote-value" (type $remote-value)) (alias export $ops "call" (type $op-call))"#
        ),
        error_types = ERROR_TYPES,
        tensor_types = TENSOR_TYPES
    );
    let interface: &'static str = Box::leak(interface.into_boxed_str());
    let drop = |name, lower| Import { component: "", lower, name, core: "(param i32)" };
    let mut imports = vec![
        lowered!("start", "ops", "start", "(param i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)", interface),
        lowered!("get", "ops", "[method]call.get", "(param i32 i32)", ""),
        lowered!("keep", "ops", "[method]call.keep", "(param i32 i32)", ""),
        lowered!("cancel", "ops", "[method]call.cancel", "(param i32)", ""),
        lowered!("subscribe", "ops", "[method]call.subscribe", "(param i32) (result i32)", ""),
        lowered!("fetch", "ops", "[method]remote-value.fetch", "(param i32 i32)", ""),
        lowered!("on", "ops", "[method]remote-value.on", "(param i32 i32)", ""),
        lowered!("block", "poll", "[method]pollable.block", "(param i32)", ""),
        drop("drop-call", "(core func $drop-call (canon resource.drop $op-call))"),
        drop("drop-remote", "(core func $drop-remote (canon resource.drop $remote-value))"),
        drop("drop-pollable", "(core func $drop-pollable (canon resource.drop $pollable))"),
    ];
    imports.extend(extra);
    let body = format!(
        r#"
        (data (i32.const 1024) "worker") (data (i32.const 1032) "\04") (data (i32.const 1040) "\01\02\03\04")
        (data (i32.const 2048) "{op}")
        {FAILED}
        (func $code (param $at i32) (result i32)
          (if (result i32) (i32.load8_u (local.get $at))
            (then (i32.load8_u offset=4 (local.get $at))) (else (i32.const -1))))
        (func $tensor (param $at i32)
          (i32.store8 offset=4 (local.get $at) (i32.const 4))
          (i32.store offset=8 (local.get $at) (i32.const 1032)) (i32.store offset=12 (local.get $at) (i32.const 1))
          (i32.store offset=16 (local.get $at) (i32.const 1040)) (i32.store offset=20 (local.get $at) (i32.const 4)))
        (func $remote (param $value i32)
          (i32.store8 (i32.const 1080) (i32.const 1)) (i32.store (i32.const 1084) (local.get $value)))
        ;; Starts the op on worker:1; its result is at 64.
        (func $op-from (param $inputs i32) (param $count i32) (result i32)
          (call $start (i32.const 1024) (i32.const 6) (i32.const 1) (i32.const 2048) (i32.const {length})
            (local.get $inputs) (local.get $count) (i32.const 1) (i64.const 5000) (i32.const 64))
          (call $check (i32.const 64))
          (i32.load (i32.const 68)))
        (func $op (result i32) (call $op-from (i32.const 1056) (i32.const {inputs})))
        (func (export "run") (result i32)
          (call $tensor (i32.const 1056))
          (call $main)
          (call $outcome))
        {body}"#,
        length = op.len()
    );
    super::guest(&imports, &body)
}

/// A component with ops and nothing else: each of `names` is listed, and `body` defines `(func $call (param $op i32)
/// (param $inputs i32) (param $count i32) (result i32))`, which is given the first byte of the name, and answers the address of
/// a `result<list<tensor>, string>`. The list of names starts at 32,768; the bytes `1 2 3 4` are at 1040, the shape `[4]` at 1032.
pub(crate) fn has_ops(names: &[&str], imports: &[Import], body: &str) -> Vec<u8> {
    let (mut data, mut entries, mut at) = (String::new(), Vec::new(), 65_536);
    for name in names {
        data += &format!("(data (i32.const {at}) \"{name}\")\n");
        entries.extend([at, name.len()]);
        at += name.len();
    }
    let entries: String = entries
        .iter()
        .flat_map(|&number| u32::try_from(number).unwrap().to_le_bytes())
        .map(|byte| format!("\\{byte:02x}"))
        .collect();
    let body = format!(
        r#"{data} (data (i32.const 32768) "{entries}") (data (i32.const 1032) "\04") (data (i32.const 1040) "\01\02\03\04")
        (func $list (result i32)
          (i32.store (i32.const 96) (i32.const 32768)) (i32.store (i32.const 100) (i32.const {count})) (i32.const 96))
        {body}"#,
        count = names.len()
    );
    has_listed_ops(imports, &body)
}

/// As [`has_ops`], where `body` defines `(func $list (result i32))` as well, which answers the address of a `list<string>`.
pub(crate) fn has_listed_ops(imports: &[Import], body: &str) -> Vec<u8> {
    let types = format!(
        r#"(import "dchost:worker/types@0.1.0" (instance $types {ERROR_TYPES} {TENSOR_TYPES}))
        (alias export $types "tensor" (type $tensor))"#
    );
    let body = format!(
        r#"(func $results (param $at i32) (param $count i32) (result i32)
          (i32.store8 (i32.const 16) (i32.const 0))
          (i32.store (i32.const 20) (local.get $at)) (i32.store (i32.const 24) (local.get $count)) (i32.const 16))
        (func $error (param $at i32) (param $length i32) (result i32)
          (i32.store8 (i32.const 16) (i32.const 1))
          (i32.store (i32.const 20) (local.get $at)) (i32.store (i32.const 24) (local.get $length)) (i32.const 16))
        ;; One tensor of bytes at 128, its shape `[4]`.
        (func $bytes (param $at i32) (param $length i32) (result i32)
          (i32.store8 (i32.const 128) (i32.const 4))
          (i32.store (i32.const 132) (i32.const 1032)) (i32.store (i32.const 136) (i32.const 1))
          (i32.store (i32.const 140) (local.get $at)) (i32.store (i32.const 144) (local.get $length))
          (call $results (i32.const 128) (i32.const 1)))
        {body}
        (func (export "list") (result i32) (call $list))
        (func (export "call") (param i32 i32 i32 i32) (result i32)
          (call $call (i32.load8_u (local.get 0)) (local.get 2) (local.get 3)))"#
    );
    component(&types, &libc(8, 131_072), imports, &body, include_str!("text/op_entry.wat"))
}
