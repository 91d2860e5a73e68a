//! Variables over real sockets on loopback: the service, the client and placement together.

use dchost::client::channel::{Connections, Lane, Peers, PeersOptions};
use dchost::client::variables::RemoteVariables;
use dchost::cluster::{ClusterSpec, Task, TaskType};
use dchost::error::Result;
use dchost::handles::{Change, InitializeMode, TaskVariables, UpdateKind, Value, VariableRef};
use dchost::ids::{Attempt, Caller, Incarnation, RunId};
use dchost::server::guard::authorize;
use dchost::server::{Server, ServerOptions};
use dchost::tensor::{DType, TensorType, TensorView};
use dchost::variables::{Store, StoreOptions};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

mod broken;
mod calls;
mod rules;

/// What no test should ever wait for.
const LONG: Duration = Duration::from_secs(60);

const PS: Task = Task::new(TaskType::Ps, 0);
const WORKER: Task = Task::new(TaskType::Worker, 0);
const EVALUATOR: Task = Task::new(TaskType::Evaluator, 0);

/// A ps with its store.
struct Ps {
    store: Store,
    addr: SocketAddr,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl Ps {
    fn start(options: StoreOptions) -> Ps {
        let store = Store::new(options);
        let server = Server::new(ServerOptions {
            task: PS,
            incarnation: Incarnation(7),
            listener: std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port"),
            cluster: ClusterSpec::new().with_job(TaskType::Ps, ["ps.test:1"]),
            leader: None,
            store: store.clone(),
            rejoin_timeout: Duration::from_secs(5),
            ops: None,
            authorize: Arc::new(authorize),
        })
        .expect("the listener is good");
        let (addr, shutdown) = (server.local_addr(), CancellationToken::new());
        let serving = server.run(shutdown.clone());
        let serving = tokio::spawn(async move { serving.await.expect("the transport serves") });
        Ps { store, addr, shutdown, serving }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(LONG, self.serving).await.expect("shutdown is bounded").expect("the server doesn't panic");
    }
}

impl Default for Ps {
    fn default() -> Self {
        Ps::start(StoreOptions::default())
    }
}

/// A run's channels to the ps at `addr`.
fn peers(addr: SocketAddr, caller: Caller) -> Peers {
    Peers::new(PeersOptions {
        client_use: None,
        connections: Connections::default(),
        cluster: ClusterSpec::new().with_job(TaskType::Ps, [addr.to_string()]),
        caller,
        runtime: Handle::current(),
        connect_timeout: LONG,
        rejoin_timeout: Duration::from_secs(5),
    })
}

fn caller(container: &str, task: Task, run: u64) -> Caller {
    Caller { container: container.into(), task: Some(task), run_id: RunId(run), attempt: None }
}

/// The ps's variables, as run `run` of worker:0 sees them.
fn connect(addr: SocketAddr, run: u64) -> RemoteVariables {
    RemoteVariables::new(peers(addr, caller("default", WORKER, run)), PS)
}

pub(crate) fn u8s(name: &str, bytes: usize) -> VariableRef {
    VariableRef { name: name.into(), ty: TensorType::new(DType::U8, [bytes as u64]) }
}

fn view<'a>(variable: &VariableRef, data: &'a [u8]) -> TensorView<'a> {
    TensorView { ty: variable.ty.clone(), data }
}

pub(crate) async fn initialize(variables: &dyn TaskVariables, variable: &VariableRef, data: &[u8]) -> Result<Vec<u64>> {
    variables.initialize(vec![(variable.clone(), view(variable, data))], InitializeMode::Overwrite).await
}

async fn push(variables: &dyn TaskVariables, variable: &VariableRef, kind: UpdateKind, data: &[u8]) -> Result<Value> {
    let change = Change { variable: variable.clone(), kind, value: view(variable, data), base: None };
    variables.push(vec![change], true).await.map(|mut values| values.remove(0))
}

pub(crate) async fn pull(variables: &dyn TaskVariables, variable: &VariableRef) -> Result<Value> {
    variables.pull(vec![variable.clone()]).await.map(|mut values| values.remove(0))
}

/// Waits for a condition, with a deadline that no sound run meets.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, wait).await.unwrap_or_else(|_| panic!("{what} did not come true"));
}
