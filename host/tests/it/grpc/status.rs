//! Asking for a status: a leader's, and what else may listen at an address.

use super::*;
use dchost::attend::{Mode, TaskState};
use dchost::barrier::BarrierStatus;
use dchost::client::status::{StatusClient, StatusError};
use dchost::error::{Error, ErrorCode};
use dchost::handles::{Attend, AttendChannel, BoxFuture};
use dchost::ids::Attempt;
use dchost::lifetime::RowStatus;
use dchost::server::leader::LeaderStatus;
use dchost::status::ServerStatus;
use dchost::wire::v1;
use dchost::wire::v1::cluster_server::{Cluster, ClusterServer};
use std::time::Instant;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

const ATTEMPT: Attempt = Attempt { leader: Incarnation(7), number: 2 };
const SECOND: Task = Task::new(TaskType::Worker, 1);

/// How long what never answers as it should is asked.
const SHORT: Duration = Duration::from_millis(600);

fn client(address: impl ToString) -> StatusClient {
    let caller = Caller { task: None, ..caller(1) };
    StatusClient::new(&address.to_string(), caller).expect("it is an address")
}

/// A leader that nobody can attend.
struct Closed;

impl Attend for Closed {
    fn attend(
        &self,
        _: dchost::attend::Registration,
    ) -> BoxFuture<'_, Result<AttendChannel, dchost::attend::AttendError>> {
        Box::pin(async { Err(dchost::attend::AttendError::Complete) })
    }
}

fn leader_status() -> LeaderStatus {
    let ago = |millis| Instant::now().checked_sub(Duration::from_millis(millis)).expect("the machine runs longer");
    LeaderStatus {
        attempt: ATTEMPT,
        mode: Some(Mode::IndependentWorker),
        replication: BETWEEN_GRAPH,
        rows: vec![RowStatus {
            task: SECOND,
            address: Some("b.test:1".into()),
            runner: true,
            state: TaskState::Ended,
            incarnation: Some(Incarnation(20)),
            since: ago(1500),
            last_seen: None,
            message: "gone".into(),
            exit_code: Some(3),
        }],
        silent: Vec::new(),
        barriers: vec![BarrierStatus {
            name: "epoch".into(),
            generation: 4,
            arrived: vec![WORKER],
            missing: vec![SECOND],
            since: ago(2000),
        }],
        training_ended: true,
        cause: Some(dchost::attend::Cause { task: SECOND, exit_code: 3, message: "gone".into() }),
    }
}

#[tokio::test]
async fn a_leader_tells_of_its_cluster_and_of_itself() {
    let leader = LeaderPart {
        attend: Arc::new(Closed),
        status: Arc::new(|_| Box::pin(async { Some(leader_status()) })),
        container: "jobs".into(),
    };
    let server = start(with_leader(options(WORKER, 7, listener()), leader));
    let lease = server.guard.sessions().open(&caller(5)).expect("there is room");
    // Another container than the job's.
    let status = client(server.addr).ask(LONG).await.expect("it answers");
    assert_eq!((status.incarnation, status.task, status.attempt), (Incarnation(7), Some(WORKER), Some(ATTEMPT)));
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    let job = status.job.expect("it leads");
    assert_eq!((job.mode, job.training_ended), (Some(Mode::IndependentWorker), true));
    assert_eq!(job.cause.map(|cause| (cause.task, cause.exit_code)), Some((SECOND, 3)));
    let row = &status.tasks.rows[0];
    assert_eq!((row.task, row.state, row.exit_code, row.runner), (SECOND, TaskState::Ended, Some(3), true));
    assert!(row.since >= Duration::from_millis(1500), "{row:?}");
    let barrier = &status.barriers.rows[0];
    assert_eq!((barrier.container.as_str(), barrier.name.as_str()), ("jobs", "epoch"));
    assert_eq!((&barrier.arrived[..], &barrier.missing[..]), (&[WORKER][..], &[SECOND][..]));
    let session = &status.sessions.rows[0];
    assert_eq!((session.run_id, session.task, session.attached), (RunId(5), Some(WORKER), Some(true)));

    drop(lease);
    let status = client(server.addr).ask(LONG).await.expect("it answers");
    assert_eq!(status.sessions.rows[0].attached, Some(false), "its stream broke, and another one is awaited");
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_comes_in_time_is_waited_for() {
    let port = Held::new();
    let address = port.addr;
    let refused = client(address).ask(LONG).await.expect_err("nobody listens");
    assert_eq!(refused, StatusError::NotReached { why: "connection refused".into(), listens: false });
    let asking = tokio::spawn(async move { client(address).ask_patiently(LONG).await });
    let server = start(options(PS, 7, port.listen()));
    let status = asking.await.expect("no panic").expect("it answers");
    assert_eq!((status.task, status.job, status.tasks.rows), (Some(PS), None, Vec::new()));
    server.stop().await;
}

/// Answers status with what it holds.
struct Fake(Result<v1::GetStatusResponse, Status>);

#[tonic::async_trait]
impl Cluster for Fake {
    type AttendStream = ReceiverStream<Result<v1::AttendEvent, Status>>;
    type SessionStream = ReceiverStream<Result<v1::SessionEvent, Status>>;

    async fn attend(&self, _: Request<Streaming<v1::AttendRequest>>) -> Result<Response<Self::AttendStream>, Status> {
        Err(Status::unimplemented("no"))
    }

    async fn session(
        &self,
        _: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        Err(Status::unimplemented("no"))
    }

    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Result<Response<v1::GetStatusResponse>, Status> {
        self.0.clone().map(Response::new)
    }

    async fn drain(&self, _: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        Err(Status::unimplemented("no"))
    }
}

/// What a client makes of an answer.
async fn asked(answer: Result<v1::GetStatusResponse, Status>) -> Result<ServerStatus, StatusError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    let server = tonic::transport::Server::builder()
        .add_service(ClusterServer::new(Fake(answer)))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(server);
    let outcome = client(address).ask(LONG).await;
    server.abort();
    outcome
}

fn answer() -> v1::GetStatusResponse {
    v1::GetStatusResponse { header: Some(v1::ResponseHeader { incarnation: 9 }), ..Default::default() }
}

/// Aim: no answer, however odd, is more than an error or rows that are counted.
#[tokio::test]
async fn odd_answers_are_told_or_counted() {
    // A server that tells nothing of itself.
    let status = asked(Ok(answer())).await.expect("the least that a server tells");
    assert_eq!((status.incarnation, status.task, status.attempt), (Incarnation(9), None, None));

    let rows = vec![v1::VariableStatus::default(); 100_000];
    let status = asked(Ok(v1::GetStatusResponse { variable: rows, variables_left_out: u64::MAX, ..answer() })).await;
    let variables = status.expect("it fits into a message").variables;
    assert_eq!((variables.rows.len(), variables.strange, variables.left_out), (0, 100_000, u64::MAX));

    let long = vec![v1::TaskStatus { message: "x".repeat(1 << 20), ..Default::default() }; 6];
    let cases: [(&str, v1::GetStatusResponse); 6] = [
        ("incarnation", v1::GetStatusResponse::default()),
        ("server.job", v1::GetStatusResponse { server: Some(v1::Task::default()), ..answer() }),
        ("leader_incarnation", v1::GetStatusResponse { attempt: Some(v1::Attempt::default()), ..answer() }),
        ("job.replication", v1::GetStatusResponse { job: Some(v1::JobStatus::default()), ..answer() }),
        (
            "cause.task",
            v1::GetStatusResponse {
                job: Some(v1::JobStatus { replication: 1, cause: Some(v1::Cause::default()), ..Default::default() }),
                ..answer()
            },
        ),
        ("too large", v1::GetStatusResponse { task: long, ..answer() }),
    ];
    for (what, answer) in cases {
        match asked(Ok(answer)).await {
            Err(StatusError::Foreign(why)) => assert!(why.contains(what), "{what}: {why}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn refusals_of_dchost_and_of_others_are_told_apart() {
    let denied = Error::new(ErrorCode::PermissionDenied, "no");
    assert_eq!(asked(Err(denied.clone().into())).await, Err(StatusError::Refused(denied)));
    let stopping = asked(Err(Error::new(ErrorCode::Unavailable, "stopping").into())).await;
    assert_eq!(stopping, Err(StatusError::NotReached { why: "stopping".into(), listens: false }));
    let foreign = asked(Err(Status::unimplemented("no such service"))).await;
    assert!(matches!(foreign, Err(StatusError::Foreign(_))), "{foreign:?}");
}

/// Aim: whatever listens, asking ends, soon, and says what was met there.
#[tokio::test]
async fn what_is_no_dchost_server_is_told_and_never_waited_for() {
    // Another gRPC server.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    let (_, health) = tonic_health::server::health_reporter();
    let other = tonic::transport::Server::builder().add_service(health);
    let other = tokio::spawn(other.serve_with_incoming(TcpListenerStream::new(listener)));
    match tokio::time::timeout(LONG, client(address).ask_patiently(LONG)).await.expect("it ends at once") {
        Err(StatusError::Foreign(why)) => assert!(why.contains("no dchost server"), "{why}"),
        outcome => panic!("{outcome:?}"),
    }
    other.abort();

    let http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".as_slice();
    for (greeting, closes) in [(http, true), (b"220 mail.test ESMTP\r\n", false), (b"", true), (b"", false)] {
        let strange = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = strange.local_addr().expect("it is bound");
        let serving = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut socket, _)) = strange.accept().await {
                let _ = socket.write_all(greeting).await;
                if closes {
                    let _ = socket.read(&mut [0; 64]).await;
                } else {
                    open.push(socket);
                }
            }
        });
        let outcome = tokio::time::timeout(LONG, client(address).ask_patiently(SHORT)).await.expect("it ends");
        match outcome {
            Err(StatusError::NotReached { why, listens: true }) => assert!(why.contains("it listens"), "{why}"),
            Err(StatusError::NotReached { why, listens: false }) => {
                assert!(greeting.is_empty() && !closes && why.contains("no answer within"), "{why}");
            }
            outcome => panic!("{outcome:?}"),
        }
        serving.abort();
    }
}
