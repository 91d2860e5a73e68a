//! Calls: order, state, how they end, and what cuts them short.

use super::*;

#[tokio::test]
async fn calls_of_one_run_are_in_order_and_keep_their_state() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let started: Vec<_> = (0..200).map(|value| begin(&run.a, "echo", [number(value)])).collect();
    for (value, started) in (0..).zip(&started) {
        assert_eq!(take(&**started).await, Ok(vec![number(value)]));
    }
    let began = tasks.seen(A).began.borrow().clone();
    assert_eq!(began, (0..200).map(|value| format!("echo {value}")).collect::<Vec<_>>());
    assert_eq!(run_op(&run.a, "calls", []).await, Ok(vec![number(201)]));
    assert_eq!(Seen::count(&tasks.seen(A).opened), 1);
    assert_eq!(Seen::count(&tasks.seen(B).opened), 0, "nobody asked for an instance there");
    tasks.stop().await;
}

#[tokio::test]
async fn runs_have_instances_of_their_own_that_run_side_by_side() {
    let tasks = Tasks::start();
    let (first, second) = (tasks.run(1), tasks.run(2));
    let gate = begin(&first.a, "gate", [number(1)]);
    tasks.seen(A).began("gate 1").await;
    assert_eq!(run_op(&second.a, "calls", []).await, Ok(vec![number(1)]), "the other run waits for nobody");
    tasks.seen(A).gate.notify_one();
    assert_eq!(take(&*gate).await, Ok(vec![number(1)]));
    tasks.stop().await;
}

#[tokio::test]
async fn an_unknown_op_lists_the_known_ones_and_an_ops_own_error_comes_as_it_is() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let error = run_op(&run.a, "length_", []).await.expect_err("there is none");
    assert_eq!(
        error.to_string(),
        "not-found: the component that runs on worker:0 has no op `length_`: it has `echo`, `length`"
    );
    let error = run_op(&run.a, "fail", []).await.expect_err("it fails");
    assert_eq!(error.to_string(), "unknown: op `fail` failed: as it was told");
    assert_eq!(run_op(&run.a, "calls", []).await, Ok(vec![number(3)]), "neither ends the instance");
    tasks.stop().await;
}

/// Aim: a call is cancelled whether it runs, waits for its turn there, or hasn't been sent. Method: one that never ends, one
/// behind it, and one to a task that nobody has reached yet.
#[tokio::test]
async fn cancel_ends_what_runs_what_waits_and_what_is_not_sent() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let runs = begin(&run.a, "never", []);
    let waits = begin(&run.a, "echo", [number(1)]);
    let after = begin(&run.a, "echo", [number(2)]);
    tasks.seen(A).began("never").await;
    for op in [&waits, &runs] {
        op.cancel();
        let error = take(&**op).await.expect_err("it was cancelled");
        assert_eq!(error.code, ErrorCode::Cancelled, "{error}");
        assert!(error.message.ends_with("on worker:0 was cancelled"), "{error}");
    }
    assert_eq!(take(&*after).await, Ok(vec![number(2)]));
    after.cancel();
    assert_eq!(tasks.seen(A).began.borrow().clone(), ["never", "echo 2"]);

    let port = Held::new();
    let run = Tasks::run_at(ClusterSpec::new().with_job(TaskType::Worker, [port.addr.to_string()]), 2);
    let (unsent, other) = (begin(&run.a, "echo", []), begin(&run.a, "echo", []));
    other.cancel();
    unsent.cancel();
    assert_eq!(take(&*unsent).await.expect_err("it was cancelled").code, ErrorCode::Cancelled);
    assert_eq!(take(&*other).await.expect_err("it was cancelled").code, ErrorCode::Cancelled);
    tasks.stop().await;
}

#[tokio::test]
async fn a_dropped_call_gives_way_to_the_next() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let never = begin(&run.a, "never", []);
    tasks.seen(A).began("never").await;
    drop(never);
    assert_eq!(run_op(&run.a, "echo", [number(1)]).await, Ok(vec![number(1)]));
    tasks.stop().await;
}

#[tokio::test]
async fn a_timeout_ends_an_op_where_it_runs_and_where_nobody_is_reached() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let limited = |millis| OpCall { timeout: Some(Duration::from_millis(millis)), ..call("never", []) };
    // The task is reached before the time begins, of which a busy machine needs some to send the call.
    assert_eq!(run_op(&run.a, "echo", []).await, Ok(Vec::new()));
    let error = take(&*run.a.start(limited(500)).expect("its form is good")).await.expect_err("it never ends");
    assert_eq!(error.to_string(), "deadline-exceeded: op `never` on worker:0 was not done within 500ms");
    assert_eq!(run_op(&run.a, "echo", [number(1)]).await, Ok(vec![number(1)]), "the next has its turn");

    let port = Held::new();
    let run = Tasks::run_at(ClusterSpec::new().with_job(TaskType::Worker, [port.addr.to_string()]), 2);
    let error = take(&*run.a.start(limited(50)).expect("its form is good")).await.expect_err("nobody listens");
    let expected = "deadline-exceeded: op `never` on worker:0 was not done within 50ms, and its task has not answered";
    assert_eq!(error.to_string(), expected);
    tasks.stop().await;
}

#[tokio::test]
async fn the_end_of_a_run_ends_what_runs_for_it() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let never = begin(&run.a, "never", []);
    tasks.seen(A).began("never").await;
    tasks.seen(A).alive(1).await;
    run.peers.close().await;
    tasks.seen(A).alive(0).await;
    let error = take(&*never).await.expect_err("its run has ended");
    assert!(matches!(error.code, ErrorCode::Cancelled | ErrorCode::PeerFailed), "{error}");
    // What comes after finds no session.
    let error = run_op(&run.a, "echo", []).await.expect_err("the run has ended");
    assert_eq!(error.code, ErrorCode::Cancelled, "{error}");
    tasks.stop().await;
}

#[tokio::test]
async fn a_run_that_is_dropped_takes_its_instance_along() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let never = begin(&run.a, "never", []);
    tasks.seen(A).began("never").await;
    drop((never, run));
    tasks.seen(A).alive(0).await;
    until("the session ends", || tasks.servers[&A].guard.sessions().list().is_empty()).await;
    tasks.stop().await;
}

/// Aim: whatever a connection's break interrupts, every call ends, the next one is served by the same instance, and nothing
/// stays behind. Method: calls that run, wait, send their inputs and have left results, cut at many moments.
#[tokio::test]
async fn calls_end_when_their_connection_breaks_and_state_stays() {
    let tasks = Tasks::start();
    let (run, relay) = tasks.relayed(1).await;
    assert_eq!(run_op(&run.a, "calls", []).await, Ok(vec![number(1)]));
    for turn in 0..30_usize {
        let large = bytes(900_000);
        let started: Vec<_> = (0..5)
            .map(|index| match (turn + index) % 3 {
                0 => begin(&run.a, "echo", [large.clone()]),
                1 => begin(&run.a, "nothing", []),
                _ => begin(&run.a, "bytes", [number(100_000)]),
            })
            .collect();
        for _ in 0..turn {
            tokio::task::yield_now().await;
        }
        if turn % 4 == 1 {
            // Some are done, others are under way.
            drop(take(&*started[0]).await);
        }
        relay.cut();
        for started in &started[usize::from(turn % 4 == 1)..] {
            if let Err(error) = take(&**started).await {
                assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerFailed, &[A][..]), "{error}");
                assert!(error.message.contains("worker:0 is lost: the connection to worker:0 broke"), "{error}");
            }
        }
    }
    // As much again as a run may have there: all of what was cut is free.
    for _ in 0..8 {
        assert_eq!(run_op(&run.a, "length", [bytes(1_000_000)]).await, Ok(vec![number(1_000_000)]));
    }
    assert_eq!(Seen::count(&tasks.seen(A).opened), 1, "one instance has served them all");
    drop(run);
    tasks.stop().await;
}

#[tokio::test]
async fn a_task_that_restarts_is_told_from_one_whose_connection_broke() {
    let mut tasks = Tasks::start();
    let run = tasks.run(1);
    let kept = keep(&*begin(&run.a, "bytes", [number(8)])).await.expect("it is kept");
    let never = begin(&run.a, "never", []);
    tasks.seen(A).began("never").await;
    let server = tasks.servers.remove(&A).expect("it runs");
    server.stop().await;
    let error = take(&*never).await.expect_err("its task has gone");
    assert!(matches!(error.code, ErrorCode::PeerFailed | ErrorCode::Unavailable), "{error}");
    assert_eq!(error.tasks, [A], "{error}");
    tasks.serve(A, 8);
    let error = run_op(&run.a, "echo", []).await.expect_err("another incarnation answers");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerRestarted, &[A][..]), "{error}");
    let error = within(run.a.fetch(kept[0].clone())).await.expect_err("what was kept is lost");
    assert_eq!(error.code, ErrorCode::PeerRestarted, "{error}");
    // B is asked to fetch it, and meets the other incarnation as well.
    let input = OpCall { inputs: vec![OpInput::Remote(kept[0].clone())], ..call("length", []) };
    let error = take(&*run.b.start(input).expect("its form is good")).await.expect_err("it is lost");
    assert_eq!((error.code, &error.tasks[..]), (ErrorCode::PeerRestarted, &[A][..]), "{error}");
    tasks.stop().await;
}

#[tokio::test]
async fn a_status_shows_who_has_instances() {
    use dchost::wire::v1::cluster_client::ClusterClient;
    let tasks = Tasks::start();
    let run = tasks.run(1);
    assert_eq!(run_op(&run.a, "echo", []).await, Ok(Vec::new()));
    let channel = channel_to(tasks.servers[&A].addr).await;
    let request = v1::GetStatusRequest { header: Some((&Header::new(caller(9))).into()), brief: false, row: None };
    let status = ClusterClient::new(channel).get_status(request).await.expect("it answers").into_inner();
    assert_eq!(status.session.iter().map(|session| session.op_instances).collect::<Vec<_>>(), [1]);
    tasks.stop().await;
}

/// Aim: a client's own container goes with the client's last session, but not before an op that may write into it has ended.
#[tokio::test]
async fn a_clients_container_stays_until_its_instances_are_gone() {
    const CONTAINER: &str = "run-0123456789abcdef";
    let tasks = Tasks::start();
    let peers = Peers::new(PeersOptions {
        client_use: None,
        leader: None,
        connections: Connections::default(),
        cluster: tasks.cluster.clone(),
        caller: Caller { container: CONTAINER.into(), ..caller(1) },
        runtime: Handle::current(),
        connect_timeout: LONG,
        rejoin_timeout: LONG,
    });
    let run = Asker::new(peers, component_of(b"component"));
    assert_eq!(run_op(&run.a, "echo", []).await, Ok(Vec::new()));
    let ends = Arc::new(Mutex::new(Vec::new()));
    let (noted, alive) = (ends.clone(), tasks.seen[&A].clone());
    tasks.servers[&A].guard.sessions().on_end(Arc::new(move |end| {
        noted.lock().expect("no panic above").push((end.last_in_container, *alive.alive.borrow()));
    }));
    run.peers.close().await;
    let sessions = tasks.servers[&A].guard.sessions().clone();
    until("all sessions have ended", || sessions.list().is_empty()).await;
    until("both were told of", || ends.lock().expect("no panic above").len() == 2).await;
    let last: Vec<bool> = ends.lock().expect("no panic above").iter().map(|&(last, _)| last).collect();
    assert_eq!(last, [false, true], "the instance's stay is the last to end");
    tasks.stop().await;
}
