//! Attend over gRPC: a leader's client, the server's half, and a leader of the test.

use super::*;
use dchost::attend::{
    AttendError, BarrierArrival, Cause, EndReport, LeaderEvent, MemberMessage, Mode, Registered, Registration,
};
use dchost::barrier::BarrierStatus;
use dchost::client::attend::LeaderClient;
use dchost::error::{Error, ErrorCode};
use dchost::handles::{Attend, AttendChannel, BoxFuture};
use dchost::ids::Attempt;
use dchost::lifetime::RowStatus;
use dchost::server::leader::LeaderStatus;
use dchost::wire::header::Header;
use dchost::wire::v1;
use dchost::wire::v1::cluster_client::ClusterClient;
use std::time::Instant;
use tokio::sync::mpsc;

const ATTEMPT: Attempt = Attempt { leader: Incarnation(7), number: 2 };

/// The leader's end of one attend stream.
struct Seat {
    registration: Registration,
    messages: mpsc::Receiver<MemberMessage>,
    events: mpsc::Sender<LeaderEvent>,
}

/// A leader that hands every stream to the test, or answers as it is told.
struct TestLeader {
    seats: mpsc::UnboundedSender<Seat>,
    refusal: Option<AttendError>,
}

impl Attend for TestLeader {
    fn attend(&self, registration: Registration) -> BoxFuture<'_, Result<AttendChannel, AttendError>> {
        Box::pin(async move {
            if let Some(refusal) = &self.refusal {
                return Err(refusal.clone());
            }
            let (messages, incoming) = mpsc::channel(8);
            let (outgoing, events) = mpsc::channel(8);
            let _ = self.seats.send(Seat { registration, messages: incoming, events: outgoing });
            Ok(AttendChannel { registered: registered(), messages, events })
        })
    }
}

fn registered() -> Registered {
    Registered {
        leader_incarnation: Incarnation(7),
        attempt: ATTEMPT,
        mode: Some(Mode::IndependentWorker),
        replication: BETWEEN_GRAPH,
        training_ended: false,
    }
}

fn registration() -> Registration {
    Registration {
        task: PS,
        incarnation: Incarnation(20),
        run_id: RunId(21),
        attempt: None,
        mode: None,
        replication: BETWEEN_GRAPH,
        barrier: true,
        module_digest: Some([3; 32]),
        cluster: ClusterSpec::new().with_job(TaskType::Worker, ["a:1", "b:1"]),
    }
}

fn status() -> LeaderStatus {
    let ago = |millis| Instant::now().checked_sub(Duration::from_millis(millis)).expect("the machine runs longer");
    LeaderStatus {
        attempt: ATTEMPT,
        mode: Some(Mode::IndependentWorker),
        replication: BETWEEN_GRAPH,
        rows: vec![RowStatus {
            task: PS,
            address: Some("ps.test:1".into()),
            runner: false,
            state: dchost::attend::TaskState::Suspect,
            incarnation: Some(Incarnation(20)),
            since: ago(1500),
            last_seen: None,
            message: "no answer".into(),
            exit_code: None,
        }],
        silent: Vec::new(),
        barriers: vec![BarrierStatus {
            name: "epoch".into(),
            generation: 4,
            arrived: vec![WORKER],
            missing: vec![Task::new(TaskType::Worker, 1)],
            since: ago(2000),
        }],
        training_ended: false,
        cause: None,
    }
}

fn start_leader(refusal: Option<AttendError>) -> (Running, mpsc::UnboundedReceiver<Seat>) {
    let (seats, taken) = mpsc::unbounded_channel();
    let leader = LeaderPart {
        attend: Arc::new(TestLeader { seats, refusal }),
        status: Arc::new(|_| Box::pin(async { Some(status()) })),
        container: "jobs".into(),
    };
    (start(with_leader(options(WORKER, 7, listener()), leader)), taken)
}

fn client(addr: SocketAddr) -> LeaderClient {
    LeaderClient::new(WORKER, addr.to_string(), "default", Handle::current())
}

#[tokio::test]
async fn messages_and_events_travel_both_ways() {
    let (server, mut seats) = start_leader(None);
    let mut member = client(server.addr).attend(registration()).await.expect("it is let in");
    let mut seat = seats.recv().await.expect("it attends");
    assert_eq!((member.registered.clone(), seat.registration.clone()), (registered(), registration()));

    let arrival = BarrierArrival { name: "epoch".into(), generation: 3, timeout: Some(Duration::from_secs(1)) };
    let end = EndReport { ok: false, exit_code: 3, message: "trap".into(), leaving: false };
    for message in [MemberMessage::Heartbeat, MemberMessage::Arrival(arrival), MemberMessage::End(end)] {
        member.messages.send(message.clone()).await.expect("the stream is open");
        assert_eq!(seat.messages.recv().await, Some(message));
    }
    let cause = Cause { task: WORKER, exit_code: 202, message: "lost".into() };
    let lost = Error::new(ErrorCode::PeerFailed, "worker:0 is lost").with_tasks([WORKER]);
    for event in [
        LeaderEvent::Heartbeat,
        LeaderEvent::Barrier { name: "epoch".into(), generation: 3, result: Err(lost) },
        LeaderEvent::JobEnded { cause: Some(cause) },
    ] {
        seat.events.send(event.clone()).await.expect("the stream is open");
        assert_eq!(member.events.recv().await, Some(event));
    }
    // The leader closes the stream: both of the member's ends see it.
    drop(seat);
    assert_eq!(member.events.recv().await, None);
    tokio::time::timeout(LONG, member.messages.closed()).await.expect("nobody listens any more");
    server.stop().await;
}

#[tokio::test]
async fn member_that_lets_go_is_a_broken_stream() {
    let (server, mut seats) = start_leader(None);
    let member = client(server.addr).attend(registration()).await.expect("it is let in");
    let mut seat = seats.recv().await.expect("it attends");
    drop(member);
    assert_eq!(tokio::time::timeout(LONG, seat.messages.recv()).await.expect("it is noticed"), None);
    tokio::time::timeout(LONG, seat.events.closed()).await.expect("it is noticed");
    server.stop().await;
}

#[tokio::test]
async fn cut_connection_breaks_both_halves() {
    let (server, mut seats) = start_leader(None);
    let relay = Relay::to(server.addr).await;
    let mut member = client(relay.addr).attend(registration()).await.expect("it is let in");
    let mut seat = seats.recv().await.expect("it attends");
    relay.cut();
    assert_eq!(tokio::time::timeout(LONG, member.events.recv()).await.expect("it is noticed"), None);
    tokio::time::timeout(LONG, member.messages.closed()).await.expect("it is noticed");
    assert_eq!(tokio::time::timeout(LONG, seat.messages.recv()).await.expect("it is noticed"), None);
    // And a new one may be opened at once.
    client(relay.addr).attend(registration()).await.expect("it is let in");
    server.stop().await;
}

#[tokio::test]
async fn refusals_arrive_as_they_were_meant() {
    let already = Error::new(ErrorCode::AlreadyExists, "ps:0 is alive").with_tasks([PS]);
    for refusal in [AttendError::Refused(already), AttendError::Complete] {
        let (server, _seats) = start_leader(Some(refusal.clone()));
        assert_eq!(client(server.addr).attend(registration()).await.err(), Some(refusal));
        server.stop().await;
    }
    let (server, _seats) = start_leader(Some(AttendError::Unreachable("stopping".into())));
    let error = client(server.addr).attend(registration()).await.err();
    assert!(matches!(&error, Some(AttendError::Unreachable(why)) if why.contains("stopping")), "{error:?}");
    server.stop().await;
}

#[tokio::test]
async fn server_that_is_not_the_leader_names_who_is() {
    let server = start(options(PS, 7, listener()));
    let Err(AttendError::Refused(error)) = client(server.addr).attend(registration()).await else {
        panic!("a ps leads nothing")
    };
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::FailedPrecondition, &[WORKER][..]));
    assert!(error.message.contains("worker:0 at `worker.test:1`"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn leader_that_is_not_there_is_unreachable() {
    let port = Held::new();
    let error = client(port.addr).attend(registration()).await.err();
    let expected = format!("worker:0 at `{}`: connection refused", port.addr);
    assert_eq!(error, Some(AttendError::Unreachable(expected)));
}

#[tokio::test]
async fn leaders_status_shows_the_cluster() {
    let (server, _seats) = start_leader(None);
    let channel =
        dchost::client::channel::connect::endpoint(&server.addr.to_string()).expect("it is an address").connect_lazy();
    let request = v1::GetStatusRequest { header: Some((&Header::new(caller(1))).into()), brief: false, row: None };
    let answer = ClusterClient::new(channel).get_status(request).await.expect("it answers").into_inner();
    assert_eq!(answer.attempt, Some(ATTEMPT.into()));
    let row = &answer.task[0];
    assert_eq!((row.task.clone(), row.state()), (Some(PS.into()), v1::State::Suspect));
    assert!(row.since_ms >= 1500, "{}", row.since_ms);
    assert_eq!((row.address.as_str(), row.incarnation, row.last_seen_ms), ("ps.test:1", 20, None));
    let barrier = &answer.barrier[0];
    assert_eq!((barrier.name.as_str(), barrier.generation, barrier.missing.len()), ("epoch", 4, 1));
    server.stop().await;
}
