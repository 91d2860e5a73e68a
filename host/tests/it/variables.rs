//! Variables over real sockets on loopback: the service, the client and placement together.

use crate::grpc::{self, LONG, PS, WORKER, until};
use dchost::client::channel::{Lane, Peers, Try};
use dchost::client::variables::RemoteVariables;
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::error::Result;
use dchost::handles::{
    Change, InitializeMode, ReadOptions, TaskVariables, UpdateKind, Value, VariableRef, WriteOptions,
};
use dchost::ids::{Attempt, Caller, Incarnation, RunId};
use dchost::server::ServerOptions;
use dchost::tensor::{DType, TensorType, TensorView};
use dchost::variables::{Spare, Store, StoreOptions};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

mod broken;
mod calls;
mod direct;
mod optimizers;
mod relaxed;
mod rows;
mod rules;
mod saved;
mod shards;
mod sync;
mod versions;

const EVALUATOR: Task = Task::new(TaskType::Evaluator, 0);

/// How long a ps keeps the session of a run that has gone, and a run waits for a ps that has.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A ps with its store.
struct Ps {
    store: Store,
    addr: SocketAddr,
    running: grpc::Running,
}

impl Ps {
    fn start(options: StoreOptions) -> Ps {
        Ps::start_as(PS, options)
    }

    fn start_as(task: Task, options: StoreOptions) -> Ps {
        let store = Store::new(options);
        let running = grpc::start(ServerOptions {
            store: store.clone(),
            rejoin_timeout: REJOIN_TIMEOUT,
            ..grpc::options(task, 7, grpc::listener())
        });
        Ps { store, addr: running.addr, running }
    }

    async fn stop(self) {
        self.running.stop().await;
    }
}

impl Default for Ps {
    fn default() -> Self {
        Ps::start(StoreOptions::default())
    }
}

/// A run's channels to the ps at `addr`.
fn peers(addr: SocketAddr, caller: Caller) -> Peers {
    grpc::peers_of(caller, addr, LONG, REJOIN_TIMEOUT)
}

fn caller(container: &str, task: Task, run: u64) -> Caller {
    Caller { container: container.into(), task: Some(task), run_id: RunId(run), attempt: None }
}

/// The ps's variables, as run `run` of worker:0 sees them.
fn connect(addr: SocketAddr, run: u64) -> RemoteVariables {
    RemoteVariables::new(peers(addr, caller("default", WORKER, run)), PS)
}

pub(crate) fn u8s(name: &str, bytes: usize) -> VariableRef {
    VariableRef::whole(name, TensorType::new(DType::U8, [bytes as u64]))
}

fn view<'a>(variable: &VariableRef, data: &'a [u8]) -> TensorView<'a> {
    TensorView { ty: variable.ty.clone(), data }
}

pub(crate) async fn initialize(variables: &dyn TaskVariables, variable: &VariableRef, data: &[u8]) -> Result<Vec<u64>> {
    variables.initialize(vec![(variable.clone(), view(variable, data))], InitializeMode::Overwrite).await
}

async fn push(variables: &dyn TaskVariables, variable: &VariableRef, kind: UpdateKind, data: &[u8]) -> Result<Value> {
    let change = Change { variable: variable.clone(), kind, value: view(variable, data), base: None };
    variables.push(vec![change], WriteOptions::WITH_VALUES).await.map(|mut values| values.remove(0))
}

pub(crate) async fn pull(variables: &dyn TaskVariables, variable: &VariableRef) -> Result<Value> {
    variables.pull(vec![variable.clone()], ReadOptions::default()).await.map(|mut values| values.remove(0))
}

/// Sends one write three times over one channel, as its retries would be, and answers with what all three were answered with.
async fn thrice<T, Fut>(peers: &Peers, write: impl Fn(Try) -> Fut) -> T
where
    T: PartialEq,
    Fut: Future<Output = Result<T, Status>>,
{
    let write = &write;
    let answers = peers.call(PS, Lane::Bulk, true, |Try { channel, header, .. }| async move {
        let again = || write(Try { channel: channel.clone(), direct: None, header: header.clone() });
        Ok([again().await?, again().await?, again().await?])
    });
    let [first, second, third] = answers.await.expect("each is answered");
    assert!(first == second && second == third, "the same answer each time");
    first
}
