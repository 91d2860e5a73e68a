//! Ops over real sockets on loopback: hostile callers of a server, and hostile servers to a caller.

use dchost::client::channel::{Connections, Peers, PeersOptions};
use dchost::client::ops::{Component, RemoteOps};
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::error::{Error, ErrorCode, Result};
use dchost::handles::{BoxFuture, OpCall, OpHost, OpInput, OpInstance, OpLimits, OpOpening, RemoteValue};
use dchost::ids::{Caller, Incarnation, RunId};
use dchost::tensor::{DType, Tensor, TensorType};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

mod callers;
mod servers;

/// What no test should ever wait for.
const LONG: Duration = Duration::from_secs(60);

const PS: Task = Task::new(TaskType::Ps, 0);
const WORKER: Task = Task::new(TaskType::Worker, 0);

/// What stands for a component.
const COMPONENT: &[u8] = b"a component";

/// `--max-tensor` on both sides.
const TENSOR_BYTES_MAX: u64 = 32 << 20;

fn caller(run: u64) -> Caller {
    Caller { container: "default".into(), task: Some(WORKER), run_id: RunId(run), attempt: None }
}

/// The ops of run 1 on the ps at `address`.
fn remote_ops(address: impl ToString) -> RemoteOps {
    let peers = Peers::new(PeersOptions {
        client_use: None,
        connections: Connections::default(),
        cluster: ClusterSpec::new().with_job(TaskType::Ps, [address.to_string()]),
        caller: caller(1),
        runtime: Handle::current(),
        connect_timeout: LONG,
        rejoin_timeout: LONG,
    });
    let component = Component {
        digest: [7; 32],
        bytes: bytes::Bytes::from_static(COMPONENT),
        args: Vec::new(),
        tensor_bytes_max: TENSOR_BYTES_MAX,
    };
    RemoteOps::new(peers, PS, Arc::new(component))
}

fn op(name: &str, inputs: Vec<Tensor>) -> OpCall {
    OpCall { op: name.to_owned(), inputs: inputs.into_iter().map(OpInput::Tensor).collect(), timeout: None }
}

fn u8s(data: bytes::Bytes) -> Tensor {
    Tensor { ty: TensorType::new(DType::U8, [data.len() as u64]), data }
}

/// Waits until `condition` holds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let polled = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, polled).await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
}

/// Bytes whose owner is counted as long as anybody has them.
fn counted(count: &Arc<AtomicUsize>, bytes: usize) -> bytes::Bytes {
    struct Counted(Vec<u8>, Arc<AtomicUsize>);
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
    }
    count.fetch_add(1, Ordering::Relaxed);
    bytes::Bytes::from_owner(Counted(vec![0; bytes], count.clone()))
}
