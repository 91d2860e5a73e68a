//! The standard server: one file for each gRPC service.

use crate::cluster::{ClusterSpec, Task};
use crate::error::{Error, ErrorCode};
use crate::handles::OpHost;
use crate::ids::Incarnation;
use crate::variables::Store;
use crate::wire::transport::{
    CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX, HEADER_LIST_BYTES_MAX, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT,
    MESSAGE_BYTES_MAX, STREAM_WINDOW_BYTES,
};
use crate::wire::v1;
use cluster::{ClusterService, LeaderPart};
use guard::{Authorize, Guard};
use session::Sessions;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::server::NamedService;
use tonic::service::{Routes, RoutesBuilder};
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use variables::VariablesService;

mod answers;
pub mod cluster;
pub mod guard;
mod incoming;
pub mod leader;
pub mod ops;
pub mod session;
pub mod variables;

/// Most calls at once on one connection, long polls and streams included. Each costs a task and its buffers. A client's
/// further ones wait on its own side, for HTTP/2 tells it the number; those of a client that doesn't care are reset.
const CALLS_PER_CONNECTION_MAX: u32 = 1024;

/// How long a stream may take to send its first message.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long connections may take to end when the server stops.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// What a server needs.
pub struct ServerOptions {
    /// The task that this server is.
    pub task: Task,
    /// Of this process.
    pub incarnation: Incarnation,
    /// Where it listens; bound by the caller.
    pub listener: std::net::TcpListener,
    /// This task's view of the cluster.
    pub cluster: ClusterSpec,
    /// The leader's half, where this server is the leader.
    pub leader: Option<LeaderPart>,
    /// The variables that it holds.
    pub store: Store,
    /// How long a session whose stream broke waits for another one.
    pub rejoin_timeout: Duration,
    /// Runs ops for callers; none: they are refused.
    pub ops: Option<Arc<dyn OpHost>>,
    /// Decides who may call what; [`guard::authorize`] unless a test says otherwise.
    pub authorize: Authorize,
}

/// A standard server that doesn't serve yet.
pub struct Server {
    task: Task,
    incoming: TcpIncoming,
    local_addr: SocketAddr,
    guard: Guard,
    routes: RoutesBuilder,
    health: HealthReporter,
    service_names: Vec<&'static str>,
    variables: VariablesService,
    tasks_count: usize,
    stopping: CancellationToken,
}

impl Server {
    /// Takes the listener over. Has to be called on the control runtime.
    ///
    /// # Errors
    /// The system's, when the listener can't be taken over; `InvalidData` if the embedded descriptors are damaged.
    pub fn new(options: ServerOptions) -> std::io::Result<Self> {
        let ServerOptions { task, incarnation, listener, cluster, leader, store, rejoin_timeout, ops, authorize } =
            options;
        let tasks_count = cluster.iter().count();
        listener.set_nonblocking(true)?;
        let local_addr = listener.local_addr()?;
        let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener)?).with_nodelay(Some(true));
        let stopping = CancellationToken::new();
        let sessions = Sessions::new(rejoin_timeout, stopping.clone(), Handle::current());
        let guard = Guard::new(task, incarnation, sessions, authorize, stopping.clone());

        // Public: see `guard` why these need none of it.
        let (health, health_service) = tonic_health::server::health_reporter();
        let mut routes = Routes::builder();
        routes.add_service(health_service);
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(v1::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let damaged = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
        // Clients in the field still ask for either version.
        routes.add_service(reflection().build_v1().map_err(damaged)?);
        routes.add_service(reflection().build_v1alpha().map_err(damaged)?);

        // The guard may hear of a new attempt before the first call that touches variables does.
        let dropped = store.clone();
        guard.on_attempt_ended(Arc::new(move |container, attempt| {
            if let Err(error) = dropped.begin(container, attempt) {
                tracing::warn!(container, %error, "variables of the attempt before are not dropped");
            }
        }));
        let runs_ops = ops.is_some();
        let ops = ops::OpsService::new(guard.clone(), ops);
        let cluster = ClusterService::new(guard.clone(), cluster, leader, store.clone(), stopping.clone())
            .with_op_instances(Arc::new(ops.instances()));
        let cluster = v1::cluster_server::ClusterServer::new(cluster).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let variables_service = VariablesService::new(guard.clone(), store);
        let variables = variables_service.clone().into_server();
        let ops = v1::ops_server::OpsServer::new(ops).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let mut service_names = vec![name_of(&cluster), name_of(&variables)];
        if runs_ops {
            service_names.push(name_of(&ops));
        }
        routes.add_service(cluster).add_service(variables).add_service(ops);
        let variables = variables_service;
        Ok(Server {
            task,
            incoming,
            local_addr,
            guard,
            routes,
            health,
            service_names,
            variables,
            tasks_count,
            stopping,
        })
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The guard: adopts attempts that the process hears of elsewhere, and shows sessions.
    pub fn guard(&self) -> Guard {
        self.guard.clone()
    }

    /// Serves until `shutdown`, then ends sessions and streams and waits for connections, at most [`SHUTDOWN_TIMEOUT`].
    ///
    /// # Errors
    /// Those of the transport; a fault of one connection is none.
    ///
    /// # Cancel safety
    /// Dropping it stops accepting; connections go on until they end. Use `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), tonic::transport::Error> {
        let Server {
            task, incoming, local_addr, routes, health, service_names, variables, tasks_count, stopping, ..
        } = self;
        let direct = TaskTracker::new();
        let (serving, ending) = (direct.clone(), stopping.clone());
        let serve_direct = move |connection| {
            serving.spawn(variables::direct::serve(variables.clone(), connection, ending.clone()));
        };
        for name in &service_names {
            health.set_service_status(name, ServingStatus::Serving).await;
        }
        tracing::debug!(%task, %local_addr, services = ?service_names, "serving");
        let serve = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
            .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
            .concurrency_limit_per_connection(CALLS_PER_CONNECTION_MAX as usize)
            .add_routes(routes.routes())
            .serve_with_incoming_shutdown(
                incoming::connections(incoming, tasks_count, serve_direct),
                stopping.clone().cancelled_owned(),
            );
        tokio::pin!(serve);
        tokio::select! {
            result = &mut serve => return result,
            () = shutdown.cancelled() => {}
        }
        for name in service_names.iter().copied().chain([""]) {
            health.set_service_status(name, ServingStatus::NotServing).await;
        }
        // Ends every session and stream, and tells the transport to say goodbye.
        stopping.cancel();
        let ended = async {
            let result = serve.await;
            direct.close();
            direct.wait().await;
            result
        };
        match timeout(SHUTDOWN_TIMEOUT, ended).await {
            Ok(result) => result,
            Err(_) => {
                tracing::debug!(%task, "connections outlast the shutdown");
                Ok(())
            }
        }
    }
}

/// Waits for the first message of a stream, which carries its header; none where the stream ends before.
///
/// # Errors
/// `deadline-exceeded` where it doesn't come; a status of the transport.
pub(crate) async fn first_message<T>(
    message: impl Future<Output = Result<Option<T>, Status>>,
) -> Result<Option<T>, Status> {
    timeout(FIRST_MESSAGE_TIMEOUT, message).await.map_err(|_| {
        Error::new(
            ErrorCode::DeadlineExceeded,
            format!("the stream's first message did not come within {} s", FIRST_MESSAGE_TIMEOUT.as_secs()),
        )
    })?
}

fn name_of<S: NamedService>(_: &S) -> &'static str {
    S::NAME
}
