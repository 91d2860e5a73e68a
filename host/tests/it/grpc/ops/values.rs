//! Results: sent at once, asked for, kept, fetched, released, and how much of them a run may have on a task.

use super::*;

fn remote(op: &str, value: &RemoteValue) -> OpCall {
    OpCall { inputs: vec![OpInput::Remote(value.clone())], ..call(op, []) }
}

async fn run_remote(ops: &RemoteOps, op: &str, value: &RemoteValue) -> Result<Vec<Tensor>> {
    take(&*ops.start(remote(op, value))?).await
}

#[tokio::test]
async fn small_and_large_results_are_taken_once() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    for count in [0, 1, 65_536, 65_537, 1 << 20] {
        let started = begin(&run.a, "bytes", [number(count)]);
        // With and without having waited for the end: the results are on their way, or are asked for afterwards.
        if count % 2 == 0 {
            within(async { drop(started.ended().wait_for(|&ended| ended).await) }).await;
        }
        assert_eq!(take(&*started).await, Ok(vec![bytes(usize::try_from(count).expect("it is small"))]));
        for error in [take(&*started).await.expect_err("once"), keep(&*started).await.expect_err("once")] {
            assert_eq!(error.code, ErrorCode::FailedPrecondition, "{error}");
        }
    }
    tasks.stop().await;
}

/// Aim: a value goes from task to task without passing the caller. Method: the caller's connections go through relays that
/// count bytes.
#[tokio::test]
async fn a_remote_input_goes_from_task_to_task() {
    let tasks = Tasks::start();
    let relays = [Relay::to(tasks.servers[&A].addr).await, Relay::to(tasks.servers[&B].addr).await];
    let cluster = ClusterSpec::new().with_job(TaskType::Worker, relays.each_ref().map(|relay| relay.addr.to_string()));
    let run = Tasks::run_at(cluster, 1);
    let kept = keep(&*begin(&run.a, "bytes", [number(1_000_000)])).await.expect("it is kept");
    assert_eq!(kept[0].ty, bytes(1_000_000).ty);
    assert_eq!(run_remote(&run.b, "length", &kept[0]).await, Ok(vec![number(1_000_000)]));
    assert_eq!(run_remote(&run.a, "length", &kept[0]).await, Ok(vec![number(1_000_000)]));
    assert_eq!((Seen::count(&tasks.seen(A).fetched), Seen::count(&tasks.seen(B).fetched)), (0, 1));
    let passed: u64 = relays.iter().map(Relay::bytes).sum();
    assert!(passed < 100_000, "{passed} bytes passed the caller");
    // Fetching does.
    assert_eq!(within(run.a.fetch(kept[0].clone())).await, Ok(bytes(1_000_000)));
    let passed: u64 = relays.iter().map(Relay::bytes).sum();
    assert!(passed > 1_000_000, "{passed} bytes passed the caller");
    tasks.stop().await;
}

#[tokio::test]
async fn a_released_value_is_not_found_by_anybody() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let kept = keep(&*begin(&run.a, "echo", [number(1), number(2)])).await.expect("they are kept");
    run.a.release(&kept[0]);
    // Behind the release.
    assert_eq!(run_op(&run.a, "echo", []).await, Ok(Vec::new()));
    let expected = format!("worker:0 keeps no result 0 of call {}", kept[0].call);
    let errors = [
        within(run.a.fetch(kept[0].clone())).await.expect_err("it is released"),
        run_remote(&run.a, "length", &kept[0]).await.expect_err("it is released"),
        run_remote(&run.b, "length", &kept[0]).await.expect_err("it is released"),
    ];
    for error in errors {
        assert_eq!((error.code, &*error.message), (ErrorCode::NotFound, &*expected));
    }
    assert_eq!(within(run.a.fetch(kept[1].clone())).await, Ok(number(2)), "the other result stays");
    let mut other = kept[1].clone();
    other.ty = bytes(8).ty;
    let error = run_remote(&run.a, "length", &other).await.expect_err("it is of another type");
    assert_eq!(error.code, ErrorCode::InvalidArgument, "{error}");
    tasks.stop().await;
}

#[tokio::test]
async fn values_of_one_run_are_nothing_to_another() {
    let tasks = Tasks::start();
    let (owner, other) = (tasks.run(1), tasks.run(2));
    let kept = keep(&*begin(&owner.a, "bytes", [number(8)])).await.expect("it is kept");
    assert_eq!(run_op(&other.a, "echo", []).await, Ok(Vec::new()));
    for error in [
        within(other.a.fetch(kept[0].clone())).await.expect_err("it is another run's"),
        run_remote(&other.a, "length", &kept[0]).await.expect_err("it is another run's"),
        run_remote(&other.b, "length", &kept[0]).await.expect_err("it is another run's"),
    ] {
        assert_eq!(error.code, ErrorCode::NotFound, "{error}");
    }
    assert_eq!(within(owner.a.fetch(kept[0].clone())).await, Ok(bytes(8)));
    owner.peers.close().await;
    tasks.seen(A).alive(1).await;
    // A run of the same id is not the same one: what was kept has gone with the session.
    let again = tasks.run(1);
    assert_eq!(run_op(&again.a, "echo", []).await, Ok(Vec::new()));
    let error = within(again.a.fetch(kept[0].clone())).await.expect_err("its run has ended");
    assert_eq!(error.code, ErrorCode::NotFound, "{error}");
    tasks.stop().await;
}

/// What a run may have on a task is four times `--max-tensor`, inputs and results together.
#[tokio::test]
async fn held_bytes_are_bounded_and_free_again() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let full = |error: &Error| {
        assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
        assert!(error.message.starts_with("op `bytes` on worker:0 was refused: worker:0 holds"), "{error}");
        assert!(error.names.iter().any(|name| name == "--max-tensor"), "{error:?}");
    };
    let mut kept = Vec::new();
    let error = loop {
        let started = begin(&run.a, "bytes", [number(1_000_000)]);
        match keep(&*started).await {
            Ok(values) => kept.extend(values),
            Err(error) => break error,
        }
    };
    full(&error);
    assert_eq!(kept.len(), 4);
    run.a.release(&kept[0]);
    kept.push(keep(&*begin(&run.a, "bytes", [number(1_000_000)])).await.expect("there is room")[0].clone());
    // Another run has its own.
    assert_eq!(run_op(&tasks.run(2).a, "bytes", [number(1_000_000)]).await, Ok(vec![bytes(1_000_000)]));
    // Inputs count from the moment that they are announced.
    let gate = begin(&run.a, "gate", [number(3)]);
    tasks.seen(A).began("gate 3").await;
    let error = run_op(&run.a, "length", [bytes(500_000)]).await.expect_err("there is no room");
    assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
    tasks.seen(A).gate.notify_one();
    assert_eq!(take(&*gate).await, Ok(vec![number(3)]));
    for value in &kept[1..] {
        run.a.release(value);
    }
    assert_eq!(run_op(&run.a, "length", [bytes(500_000)]).await, Ok(vec![number(500_000)]));
    tasks.stop().await;
}

/// Aim: what a server holds has an end, however many runs there are. Method: four runs keep all that they may.
#[tokio::test]
async fn bytes_of_all_runs_are_bounded_together() {
    let tasks = Tasks::start();
    let runs: Vec<_> = (1..=5).map(|run| tasks.run(run)).collect();
    let (last, others) = runs.split_last().expect("there are five");
    let mut kept = Vec::new();
    for run in others {
        for _ in 0..4 {
            kept.extend(keep(&*begin(&run.a, "bytes", [number(1_000_000)])).await.expect("it has room"));
        }
    }
    let error = run_op(&last.a, "bytes", [number(1_000_000)]).await.expect_err("there is no room");
    let expected = "resource-exhausted: op `bytes` on worker:0 was refused: worker:0 holds 16000008 bytes of inputs and results for \
                    all runs, 1000000 more would be above 16777216 (16 times its --max-tensor): try again when others have taken theirs";
    assert_eq!(error.to_string(), expected);
    assert!(error.names.iter().any(|name| name == "--max-tensor"), "{error:?}");
    assert_eq!(run_op(&last.a, "bytes", [number(700_000)]).await, Ok(vec![bytes(700_000)]), "what fits is taken");
    others[0].a.release(&kept[0]);
    assert_eq!(run_op(&others[0].a, "nothing", []).await, Ok(Vec::new()), "it is released");
    assert_eq!(run_op(&last.a, "bytes", [number(1_000_000)]).await, Ok(vec![bytes(1_000_000)]));
    // The end of a run frees what it has.
    others[1].peers.close().await;
    assert_eq!(keep(&*begin(&last.a, "bytes", [number(1_000_000)])).await.map(|kept| kept.len()), Ok(1));
    assert_eq!(keep(&*begin(&last.a, "bytes", [number(1_000_000)])).await.map(|kept| kept.len()), Ok(1));
    tasks.stop().await;
}

#[tokio::test]
async fn what_is_above_max_tensor_is_refused_on_either_side() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let above = i64::try_from(TENSOR_BYTES_MAX).expect("it is small") + 1;
    let error = run_op(&run.a, "bytes", [number(above)]).await.expect_err("it is too much");
    let expected =
        "op `bytes` on worker:0 has results of 1048577 bytes, that task sends at most 1048576 (its --max-tensor)";
    assert_eq!((error.code, &*error.message), (ErrorCode::ResourceExhausted, expected));
    let error = run_op(&run.a, "length", [bytes(1_048_577)]).await.expect_err("it is too much");
    let expected = "op `length` on worker:0 is given 1048577 bytes, that task takes at most 1048576 (its --max-tensor)";
    assert_eq!((error.code, &*error.message), (ErrorCode::ResourceExhausted, expected));
    // The caller's limit is lower than the task's: what it doesn't take can stay there.
    let component = Component { tensor_bytes_max: 1000, ..component_of(b"component") };
    let small = Asker::new(tasks.run(2).peers, component);
    for count in [2000, 200_000] {
        let error = run_op(&small.a, "bytes", [number(count)]).await.expect_err("it is too much");
        let expected =
            format!("op `bytes` on worker:0 has results of {count} bytes, at most 1000 are taken here (--max-tensor)");
        assert_eq!((error.code, error.message), (ErrorCode::ResourceExhausted, expected));
    }
    let kept = keep(&*begin(&small.a, "bytes", [number(200_000)])).await.expect("it is kept");
    assert_eq!(within(small.a.fetch(kept[0].clone())).await.expect_err("too much").code, ErrorCode::ResourceExhausted);
    assert_eq!(run_remote(&small.a, "length", &kept[0]).await, Ok(vec![number(200_000)]));
    tasks.stop().await;
}

#[tokio::test]
async fn a_thousand_calls_that_nobody_takes_do_no_harm() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let started: Vec<_> = (0..1000).map(|value| begin(&run.a, "echo", [number(value)])).collect();
    assert_eq!(take(&*started[999]).await, Ok(vec![number(999)]));
    drop(started);
    // As much as a run may have there: all of it is free again.
    for _ in 0..8 {
        assert_eq!(run_op(&run.a, "bytes", [number(1_000_000)]).await, Ok(vec![bytes(1_000_000)]));
    }
    tasks.stop().await;
}

#[tokio::test]
async fn calls_above_the_limit_of_a_session_are_refused_and_the_others_are_served() {
    let tasks = Tasks::start();
    let run = tasks.run(1);
    let gate = begin(&run.a, "gate", []);
    let started: Vec<_> = (0..1100).map(|value| begin(&run.a, "echo", [number(value)])).collect();
    let error = take(&*started[1099]).await.expect_err("they are too many");
    assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
    assert!(error.message.contains("one more than 1024 calls of this run"), "{error}");
    tasks.seen(A).gate.notify_one();
    assert_eq!(take(&*gate).await, Ok(Vec::new()));
    assert_eq!(take(&*started[0]).await, Ok(vec![number(0)]));
    assert_eq!(take(&*started[1022]).await, Ok(vec![number(1022)]));
    tasks.stop().await;
}
