//! Ops that end in every way that they can: those that a run starts on other tasks, and those that a task runs for others.

use crate::run::{TENSOR_BYTES_MAX, pass_a_minute};
use bytes::Bytes;
use dchost::cluster::Task;
use dchost::error::{Error, ErrorCode, Result};
use dchost::handles::{
    BoxFuture, OpCall, OpHost, OpInput, OpInstance, OpLimits, OpOpening, Ops, RemoteValue, StartedOp,
};
use dchost::ids::{Caller, Incarnation};
use dchost::ops::{OPERANDS_MAX, op_failed};
use dchost::tensor::{DType, Tensor, TensorType};
use std::sync::Arc;
use tokio::sync::watch;

/// Ops that do what the first letters of their names say: `n` never ends, `l` takes long, `m` returns as many results as there may
/// be, `f` fails, `a` traps, `r` isn't started; others return what they are given, at once.
pub struct FuzzOps;

impl Ops for FuzzOps {
    fn start(&self, task: Task, call: OpCall) -> Result<Box<dyn StartedOp>> {
        call.check().expect("calls are checked before they are started");
        let failed = |code, what| Err(op_failed(code, task, &call.op, what));
        let letter = call.op.bytes().next();
        let outcome = match letter {
            Some(b'r') => return Err(Error::new(ErrorCode::FailedPrecondition, format!("no ops on {task}"))),
            Some(b'm') => Ok(vec![byte(); OPERANDS_MAX]),
            Some(b'f') => failed(ErrorCode::Unknown, "failed"),
            Some(b'a') => failed(ErrorCode::Aborted, "trapped"),
            _ => Ok(call.inputs.iter().map(value).collect()),
        };
        let ended = Arc::new(watch::Sender::new(false));
        match letter {
            Some(b'n') => {}
            Some(b'l') => {
                let ended = Arc::clone(&ended);
                tokio::spawn(async move {
                    pass_a_minute().await;
                    ended.send_replace(true);
                });
            }
            _ => {
                ended.send_replace(true);
            }
        }
        Ok(Box::new(FuzzOp { task, outcome, ended }))
    }

    fn fetch(&self, value: RemoteValue) -> BoxFuture<'static, Result<Tensor>> {
        Box::pin(async move { Ok(zeros(value.ty)) })
    }

    fn release(&self, _: RemoteValue) {}
}

struct FuzzOp {
    task: Task,
    outcome: Result<Vec<Tensor>>,
    ended: Arc<watch::Sender<bool>>,
}

impl StartedOp for FuzzOp {
    fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    fn take(&self) -> BoxFuture<'static, Result<Vec<Tensor>>> {
        let (mut ended, outcome) = (self.ended.subscribe(), self.outcome.clone());
        Box::pin(async move {
            match ended.wait_for(|&ended| ended).await {
                Ok(_) => outcome,
                Err(_) => Err(Error::new(ErrorCode::Cancelled, "the call was given up")),
            }
        })
    }

    fn keep(&self) -> BoxFuture<'static, Result<Vec<RemoteValue>>> {
        let (taken, task) = (self.take(), self.task);
        Box::pin(async move {
            let kept =
                |(result, Tensor { ty, .. })| RemoteValue { task, incarnation: Incarnation(1), call: 1, result, ty };
            Ok((0..).zip(taken.await?).map(kept).collect())
        })
    }

    fn cancel(&self) {
        self.ended.send_replace(true);
    }
}

/// A task that takes every component, and whose ops are named as those of [`FuzzOps`].
pub struct FuzzOpHost;

impl OpHost for FuzzOpHost {
    fn limits(&self) -> OpLimits {
        OpLimits { component_bytes_max: 64 << 10, tensor_bytes_max: TENSOR_BYTES_MAX }
    }

    fn component(&self, _: &[u8; 32]) -> Option<Bytes> {
        None
    }

    fn load(&self, _: [u8; 32], _: Bytes) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn fetch(&self, _: Caller, value: RemoteValue) -> BoxFuture<'static, Result<Tensor>> {
        Box::pin(async move {
            match value.ty.checked_size_bytes() {
                Ok(bytes) if bytes as u64 <= TENSOR_BYTES_MAX => Ok(zeros(value.ty)),
                _ => Err(Error::new(ErrorCode::ResourceExhausted, "the value is too large")),
            }
        })
    }

    fn open(&self, _: OpOpening, until_gone: Box<dyn Send + Sync>) -> Result<Arc<dyn OpInstance>> {
        Ok(Arc::new(FuzzInstance { _until_gone: until_gone }))
    }
}

struct FuzzInstance {
    _until_gone: Box<dyn Send + Sync>,
}

impl OpInstance for FuzzInstance {
    fn call(
        &self,
        op: String,
        inputs: BoxFuture<'static, Result<Vec<Tensor>>>,
    ) -> BoxFuture<'static, Result<Vec<Tensor>>> {
        Box::pin(async move {
            let inputs = inputs.await?;
            match op.bytes().next() {
                Some(b'n') => std::future::pending().await,
                Some(b'l') => pass_a_minute().await,
                Some(b'm') => return Ok(vec![byte(); OPERANDS_MAX]),
                Some(b'f') => return Err(Error::new(ErrorCode::Unknown, "the op has failed")),
                _ => {}
            }
            Ok(inputs)
        })
    }
}

/// What an op sees of an input.
fn value(input: &OpInput) -> Tensor {
    match input {
        OpInput::Tensor(tensor) => tensor.clone(),
        OpInput::Remote(value) => zeros(value.ty.clone()),
    }
}

fn byte() -> Tensor {
    zeros(TensorType::new(DType::U8, [1]))
}

/// Only for types of tensors that there were.
fn zeros(ty: TensorType) -> Tensor {
    let bytes = ty.checked_size_bytes().expect("the type is a tensor's");
    Tensor { ty, data: vec![0; bytes].into() }
}
