use super::*;
use crate::cluster::TaskType;
use crate::ids::RunId;
use crate::server::session::CALLS_PER_SESSION_MAX;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::runtime::Handle;

const PS: Task = Task::new(TaskType::Ps, 0);
const OWN: Incarnation = Incarnation(100);

fn guard() -> Guard {
    guard_with(Arc::new(authorize))
}

fn guard_with(authorize: Authorize) -> Guard {
    let stopping = CancellationToken::new();
    let sessions = Sessions::new(Duration::from_secs(30), stopping.clone(), Handle::current());
    Guard::new(PS, OWN, sessions, authorize, stopping)
}

fn caller(attempt: Option<(u64, u32)>) -> Caller {
    Caller {
        container: "default".into(),
        task: Some(Task::new(TaskType::Worker, 0)),
        run_id: RunId(1),
        attempt: attempt.map(|(leader, number)| Attempt { leader: Incarnation(leader), number }),
    }
}

fn header(attempt: Option<(u64, u32)>) -> v1::RequestHeader {
    (&Header::new(caller(attempt))).into()
}

fn code<T>(result: Result<T>) -> ErrorCode {
    result.err().expect("refused").code
}

#[test]
fn rpcs_are_those_of_the_contract() {
    use prost::Message as _;
    let set = prost_types::FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET).expect("the build wrote it");
    let described: BTreeSet<String> = set
        .file
        .iter()
        .flat_map(|file| {
            file.service.iter().flat_map(move |service| {
                service
                    .method
                    .iter()
                    .map(move |method| format!("{}.{}/{}", file.package(), service.name(), method.name()))
            })
        })
        .collect();
    assert_eq!(described, Rpc::ALL.iter().map(|rpc| rpc.path().to_owned()).collect());
}

#[tokio::test]
async fn authorization_comes_first_for_every_rpc() {
    let guard = guard_with(Arc::new(|_, rpc, container| {
        Err(Error::new(ErrorCode::PermissionDenied, format!("{rpc} on `{container}`")))
    }));
    for rpc in Rpc::ALL {
        let error = guard.admit(rpc, None).expect_err("refused");
        assert_eq!((error.code, error.message), (ErrorCode::PermissionDenied, format!("{rpc} on ``")));
        let error = guard.admit(rpc, Some(v1::RequestHeader { protocol: 7, ..header(None) })).expect_err("refused");
        assert_eq!((error.code, error.message), (ErrorCode::PermissionDenied, format!("{rpc} on `default`")));
    }
}

#[tokio::test]
async fn missing_header_and_bad_container_are_refused() {
    let guard = guard();
    let error = guard.admit(Rpc::GetStatus, None).expect_err("refused");
    assert_eq!(error.to_string(), "invalid-argument: `header` is missing");
    for container in ["", "a/b", "-a", ".", "a b", "\u{e9}", &"a".repeat(CONTAINER_BYTES_MAX + 1)] {
        let refused =
            guard.admit(Rpc::GetStatus, Some(v1::RequestHeader { container: container.into(), ..header(None) }));
        assert_eq!(code(refused), ErrorCode::InvalidArgument, "{container:?}");
    }
    for container in ["a", "default", "run-0123abc", "A.b_c", &"a".repeat(CONTAINER_BYTES_MAX)] {
        assert_eq!(check_container(container), Ok(()));
    }
}

#[tokio::test]
async fn other_incarnation_is_peer_restarted() {
    let guard = guard();
    let expecting = |incarnation: u64| v1::RequestHeader { expected_incarnation: incarnation, ..header(None) };
    let error = guard.admit(Rpc::GetStatus, Some(expecting(99))).expect_err("refused");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerRestarted, &[PS][..]));
    assert!(guard.admit(Rpc::GetStatus, Some(expecting(OWN.0))).is_ok());
    assert!(guard.admit(Rpc::GetStatus, Some(expecting(0))).is_ok());
}

#[tokio::test]
async fn data_call_needs_a_session() {
    let guard = guard();
    for rpc in Rpc::ALL.into_iter().filter(|rpc| rpc.needs_session()) {
        let error = guard.admit(rpc, Some(header(None))).expect_err("refused");
        assert_eq!((error.code, &error.names[..]), (ErrorCode::FailedPrecondition, &[SESSION.to_owned()][..]));
    }
    let lease = guard.sessions().open(&caller(None)).expect("there is room");
    let admitted =
        guard.admit(Rpc::Push, Some(v1::RequestHeader { sequence: 4, ..header(None) })).expect("it has a session");
    assert_eq!((admitted.sequence, admitted.caller.clone()), (4, caller(None)));
    lease.close();
    let ended = admitted.run(std::future::pending::<Result<()>>()).await;
    assert_eq!(code(ended), ErrorCode::Cancelled);
}

#[tokio::test]
async fn data_calls_of_a_session_are_bounded_while_they_last() {
    let guard = guard();
    let _lease = guard.sessions().open(&caller(None)).expect("there is room");
    let call = |rpc| guard.admit(rpc, Some(header(None)));
    let mut held: Vec<_> =
        (0..CALLS_PER_SESSION_MAX).map(|_| call(Rpc::Uninitialized).expect("there is room")).collect();
    assert_eq!(code(call(Rpc::Pull)), ErrorCode::ResourceExhausted);
    assert!(call(Rpc::GetStatus).is_ok(), "what needs no session isn't counted");
    let last = held.pop().expect("there are many");
    let clone = last.clone();
    drop(last);
    assert_eq!(code(call(Rpc::Pull)), ErrorCode::ResourceExhausted, "the answer is still on its way");
    drop(clone);
    assert!(call(Rpc::Pull).is_ok());
}

#[tokio::test]
async fn stopping_server_answers_unavailable() {
    let guard = guard();
    let _lease = guard.sessions().open(&caller(None)).expect("there is room");
    let admitted = guard.admit(Rpc::Pull, Some(header(None))).expect("it has a session");
    guard.inner.stopping.cancel();
    assert_eq!(code(admitted.run(std::future::pending::<Result<()>>()).await), ErrorCode::Unavailable);
}

/// Each row: an attempt that calls, and whether it is let in; then the number of drops so far.
#[tokio::test]
async fn attempts_only_go_forward() {
    let guard = guard();
    let drops = Arc::new(Mutex::new(0));
    let seen = drops.clone();
    guard.on_attempt_ended(Arc::new(move |container, _| {
        assert_eq!(container, "default");
        *seen.lock().expect("no panic above") += 1;
    }));
    for (attempt, accepted, dropped) in [
        (None, true, 0),
        (Some((1, 0)), true, 0), // the first that is met
        (Some((1, 0)), true, 0),
        (None, true, 0), // says nothing about attempts
        (Some((1, 2)), true, 1),
        (Some((1, 1)), false, 1),
        (Some((2, 0)), true, 2), // another leader: numbers don't compare
        (Some((1, 3)), false, 2),
        (Some((3, 7)), true, 3),
        (Some((2, 9)), false, 3),
        (Some((1, 0)), false, 3),
        (Some((3, 7)), true, 3),
    ] {
        let result = guard.open_session(Some(header(attempt)), 0);
        match result {
            Ok(_) => assert!(accepted, "{attempt:?}"),
            Err(error) => {
                assert!(!accepted, "{attempt:?}: {error}");
                assert_eq!(error.code, ErrorCode::Aborted);
            }
        }
        assert_eq!(*drops.lock().expect("no panic above"), dropped, "{attempt:?}");
    }
    assert_eq!(guard.attempt("default"), Some(Attempt { leader: Incarnation(3), number: 7 }));
}

#[tokio::test]
async fn new_attempt_ends_the_sessions_of_the_old_one() {
    let guard = guard();
    let lease = guard.sessions().open(&caller(Some((1, 0)))).expect("there is room");
    assert!(guard.admit(Rpc::Push, Some(header(Some((1, 0))))).is_ok());
    assert!(guard.adopt("default", Attempt { leader: Incarnation(1), number: 1 }).is_ok());
    assert!(lease.token().is_cancelled());
    assert_eq!(code(guard.admit(Rpc::Push, Some(header(Some((1, 0)))))), ErrorCode::Aborted);
}

#[tokio::test]
async fn containers_that_nobody_uses_make_room() {
    let guard = guard();
    let attempt = |leader| Attempt { leader: Incarnation(leader), number: 0 };
    let _lease = guard.sessions().open(&caller(None)).expect("there is room");
    assert_eq!(guard.adopt("default", attempt(1)), Ok(()));
    for run in 0..=CONTAINERS_MAX {
        assert_eq!(guard.adopt(&format!("run-{run}"), attempt(2)), Ok(()));
    }
    assert_eq!(guard.attempt("default"), Some(attempt(1)), "one in use is remembered");
    assert_eq!(guard.attempt("run-0"), None);
}

#[tokio::test]
async fn answer_that_is_there_is_given_even_by_a_server_that_stops() {
    let guard = guard();
    let admitted = guard.admit(Rpc::Attend, Some(header(None))).expect("it needs no session");
    guard.inner.stopping.cancel();
    assert_eq!(admitted.run(std::future::ready(Ok(7))).await, Ok(7));
}

/// Aim: nobody but the leader ends an attempt, on its own server or on one that attends it.
#[tokio::test]
async fn attempt_of_the_own_leader_is_not_ended_by_callers() {
    let guard = guard();
    let attempt = |leader, number| Attempt { leader: Incarnation(leader), number };
    drop(guard.open_session(Some(header(Some((9, 0)))), 0).expect("nobody has said otherwise yet"));
    guard.adopt("default", attempt(1, 0)).expect("the leader has told");
    assert_eq!(code(guard.open_session(Some(header(Some((9, 0)))), 0)), ErrorCode::Aborted);
    for other in [(77, 0), (1, 1), (1, u32::MAX)] {
        assert_eq!(code(guard.open_session(Some(header(Some(other))), 0)), ErrorCode::Unavailable, "{other:?}");
    }
    assert!(guard.open_session(Some(header(Some((1, 0)))), 0).is_ok());
    guard.adopt("default", attempt(77, 0)).expect("a restarted leader is attended");
    assert!(guard.open_session(Some(header(Some((77, 0)))), 0).is_ok());
    assert_eq!(code(guard.open_session(Some(header(Some((1, 0)))), 0)), ErrorCode::Aborted);
}

/// Opens a client's session on `guard`, as run `run` of the client `leader`; none: it shares the container.
fn open(guard: &Guard, run: u64, leader: Option<u64>) -> Result<Lease> {
    let attempt = leader.map(|leader| Attempt { leader: Incarnation(leader), number: 0 });
    let caller = Caller { task: None, run_id: RunId(run), ..caller(None) };
    let client_use = if leader.is_some() { v1::ClientUse::Exclusive } else { v1::ClientUse::Shared };
    guard.open_session(Some((&Header::new(Caller { attempt, ..caller })).into()), client_use.into())
}

/// Aim: of two clients that want a container for themselves the second is told, whatever the first is doing; its own runs
/// don't count, and one that has gone is not in the way.
#[tokio::test]
async fn a_second_client_is_refused_while_the_first_lives() {
    let guard = guard();
    let drops = Arc::new(Mutex::new(0));
    let seen = drops.clone();
    guard.on_attempt_ended(Arc::new(move |_, _| *seen.lock().expect("no panic above") += 1));
    let first = [1, 2].map(|run| open(&guard, run, Some(7)).expect("alone but for its own runs"));
    let error = open(&guard, 3, Some(8)).err().expect("the first lives");
    assert_eq!(error.code, ErrorCode::FailedPrecondition);
    for text in ["`default` of ps:0", "another client", "--share-container", "--container"] {
        assert!(error.message.contains(text), "{error}");
    }
    assert_eq!(
        *drops.lock().expect("no panic above"),
        1,
        "by the first, of what may have been; who is refused drops nothing"
    );

    let [one, other] = first;
    one.close();
    assert!(open(&guard, 3, Some(8)).is_err(), "another run of it lives");
    drop(other);
    let second = open(&guard, 3, Some(8)).expect("a broken stream is no life");
    assert_eq!(*drops.lock().expect("no panic above"), 2, "what the first left is dropped");
    assert_eq!(code(guard.open_session(Some(header(Some((7, 0)))), 0)), ErrorCode::Aborted);
    second.close();
}

#[tokio::test]
async fn clients_that_share_meet_and_keep_the_content() {
    let guard = guard();
    let drops = Arc::new(Mutex::new(0));
    let seen = drops.clone();
    guard.on_attempt_ended(Arc::new(move |_, _| *seen.lock().expect("no panic above") += 1));
    for first in [None, Some(7)] {
        open(&guard, 1, first).expect("alone").close();
        let seen = usize::from(first.is_some());
        let sharing = [2, 3].map(|run| open(&guard, run, None).expect("they share"));
        assert_eq!(*drops.lock().expect("no panic above"), seen, "only who is alone begins with nothing");
        assert!(open(&guard, 4, Some(8)).is_err(), "who wants to be alone isn't");
        sharing.into_iter().for_each(Lease::close);
    }
}

/// Aim: sharing takes two. Method: one that wants to share comes beside one that doesn't, and one that shared comes back.
#[tokio::test]
async fn who_shares_is_refused_beside_a_client_that_is_alone() {
    let guard = guard();
    let before = open(&guard, 1, None).expect("nobody is there");
    let token = before.token().clone();
    drop(before);
    let alone = open(&guard, 2, Some(7)).expect("a broken stream is no life");
    assert!(token.is_cancelled(), "its calls would write into what is another's now");
    for run in [1, 3] {
        let error = open(&guard, run, None).err().expect("the other is alone");
        assert!(error.refuses_container(), "{error}");
        for text in ["another client, run `0000000000000002`", "that one with --share-container"] {
            assert!(error.message.contains(text), "{error}");
        }
    }
    assert!(guard.open_session(Some(header(Some((7, 0)))), 0).is_ok(), "what works for it is let in");
    alone.close();
    open(&guard, 3, None).expect("it has gone").close();
}

#[tokio::test]
async fn a_call_tells_how_its_client_uses_the_container() {
    for leader in [None, Some(7)] {
        let guard = guard();
        let attempt = leader.map(|leader| Attempt { leader: Incarnation(leader), number: 0 });
        let _lease = open(&guard, 1, leader).expect("nobody is there");
        let header = Header::new(Caller { task: None, attempt, ..caller(None) });
        let admitted = guard.admit(Rpc::Call, Some((&header).into())).expect("it has a session");
        let expected = if leader.is_some() { ClientUse::Exclusive } else { ClientUse::Shared };
        assert_eq!(admitted.client_use, Some(expected));
    }
}

#[tokio::test]
async fn a_client_is_told_at_once_that_a_container_is_a_jobs() {
    let guard = guard();
    guard.adopt("default", Attempt { leader: Incarnation(1), number: 0 }).expect("the leader has told");
    for leader in [Some(7), None] {
        let error = open(&guard, 1, leader).err().expect("it is the job's");
        assert_eq!(error.code, ErrorCode::FailedPrecondition);
        assert!(error.message.contains("that of a job"), "{error}");
    }
    assert_eq!(code(guard.open_session(Some(header(None)), 9)), ErrorCode::InvalidArgument);
}
