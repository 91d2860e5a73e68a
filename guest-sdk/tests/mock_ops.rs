//! The mock cluster runs ops by the host's rules.

use dchost_guest::{Call, ErrorCode, MockCluster, Result, Tensor, WorkerContext, info, op, ops, ps, wait_any, worker};
use std::cell::Cell;
use std::sync::Mutex;
use std::time::Duration;

/// Long enough for any machine; only a failing test waits so long.
const GENEROUS: Duration = Duration::from_secs(60);

thread_local! {
    /// An instance's state between calls.
    static COUNT: Cell<i64> = const { Cell::new(0) };
}

#[op]
fn count(by: i64) -> i64 {
    COUNT.set(COUNT.get() + by);
    COUNT.get()
}

/// Ends when somebody has initialized the variable.
#[op]
fn wait(ctx: &WorkerContext, index: i64) -> Result<()> {
    COUNT.set(1000);
    let flag = ctx.variable::<f32>(format!("flag{index}")).on(ps(0)).declare()?;
    let waited = flag.wait_initialized(GENEROUS);
    if let Err(error) = &waited {
        ctx.variable::<f32>("ended").on(ps(0)).declare()?.initialize(0.0).ok();
        info!(ctx, "{error}");
    }
    waited
}

#[op]
fn set(ctx: &WorkerContext, index: i64) -> Result<()> {
    ctx.variable::<f32>(format!("flag{index}")).on(ps(0)).declare()?.initialize(1.0)
}

#[op]
fn fails(code: u8) -> Result<()> {
    if code == 0 { Err("bad shard 7".into()) } else { panic!("index {code} of 0") }
}

#[op]
fn many(results: i64) -> Vec<Tensor> {
    (0..results).map(Tensor::scalar).collect()
}

#[op]
fn describe(ctx: &WorkerContext) -> Result<()> {
    let task = ctx.task().ok_or("no task")?;
    info!(
        ctx,
        "{task} {} {} chief={} distributed={} barrier={} save={} {:?}",
        ctx.master_target(),
        ctx.num_workers(),
        ctx.is_chief(),
        ctx.distributed_mode(),
        ctx.has_barrier(),
        ctx.should_checkpoint() || ctx.should_save_summary(),
        ctx.args(),
    );
    Ok(())
}

#[op]
fn starts_another(ctx: &WorkerContext) -> Result<i64> {
    count::start(ctx, worker(0), 1)?.get()
}

#[op]
fn arrives(ctx: &WorkerContext) -> Result<()> {
    ctx.wait_for_other_workers()
}

ops![count, wait, set, fails, many, describe, starts_another, arrives];

fn cluster(workers: u32) -> MockCluster {
    MockCluster::builder().workers(workers).ps(1).ops(OPS).build()
}

/// Runs `train` on the chief of two workers and a ps; the other worker only ends.
fn on_chief(train: impl Fn(&WorkerContext) -> Result<()> + Sync) {
    cluster(2).run(|ctx| if ctx.is_chief() { train(ctx) } else { Ok(()) }).unwrap();
}

#[test]
fn calls_of_one_run_to_one_task_keep_order_and_state_and_others_have_their_own() {
    let counted = cluster(3).run(|ctx| -> Result<Vec<i64>> {
        let me = i64::from(ctx.task().ok_or("no task")?.index) + 1;
        let tasks = [worker(0), worker(0), worker(2), ps(0), worker(0)];
        let calls = tasks.into_iter().map(|task| count::start(ctx, task, me)).collect::<Result<Vec<_>>>()?;
        ctx.wait_for_other_workers()?;
        calls.into_iter().map(Call::get).collect()
    });
    assert_eq!(counted.unwrap(), [1, 2, 3].map(|me| vec![me, 2 * me, me, me, 3 * me]));
}

#[test]
fn a_run_begins_with_new_instances() {
    let cluster = cluster(1);
    for _ in 0..2 {
        assert_eq!(cluster.run(|ctx| count::start(ctx, ps(0), 7)?.get()).unwrap(), [7]);
    }
}

#[test]
fn tasks_and_callers_work_at_the_same_time() {
    // Each waits for what another sets: on another task, and on the same task for another run.
    cluster(2)
        .run(|ctx| -> Result<()> {
            let own = i64::from(ctx.is_chief());
            let calls = [wait::start(ctx, worker(0), own)?, set::start(ctx, worker(1), 1 - own)?];
            calls.into_iter().try_for_each(Call::get)
        })
        .unwrap();
}

#[test]
fn an_unknown_op_is_told_the_known_ones() {
    on_chief(|ctx| {
        let error = ctx.op("grad").start(worker(1))?.get().unwrap_err();
        let expected = "not-found: the component that runs on worker:1 has no op `grad`: it has `arrives`, `count`, \
                        `describe`, `fails`, `many`, `set`, `starts_another`, `wait`";
        assert_eq!((error.to_string(), error.tasks), (expected.to_owned(), vec![worker(1)]));
        Ok(())
    });
    let run = MockCluster::builder().build().run(|ctx| count::start(ctx, worker(0), 1)?.get());
    assert!(
        run.failure(&worker(0))
            .to_string()
            .ends_with("it has none; a test gives them to `MockCluster::builder().ops(OPS)`")
    );
}

#[test]
fn errors_and_panics_name_op_and_task_and_a_panic_takes_the_state() {
    on_chief(|ctx| {
        assert_eq!(count::start(ctx, worker(1), 5)?.get()?, 5);
        let failed = fails::start(ctx, worker(1), 0)?;
        let counted = count::start(ctx, worker(1), 1)?;
        let panicked = fails::start(ctx, worker(1), 3)?;
        let counted_anew = count::start(ctx, worker(1), 1)?;
        let error = failed.get().unwrap_err();
        assert_eq!(
            (error.code, error.to_string()),
            (ErrorCode::Unknown, "op `fails` on worker:1 failed: bad shard 7".to_owned())
        );
        assert_eq!(counted.get()?, 6);
        let error = panicked.keep().unwrap_err();
        assert_eq!(
            error.to_string(),
            "aborted: op `fails` on worker:1 trapped: unreachable code reached (a panic or an abort); its last words: index 3 of 0"
        );
        assert_eq!(counted_anew.get()?, 1);
        Ok(())
    });
}

#[test]
fn a_cancelled_op_ends_and_those_after_it_begin_anew() {
    let cluster = cluster(1);
    cluster
        .run(|ctx| -> Result<()> {
            let ended = ctx.variable::<f32>("ended").on(ps(0)).declare()?;
            let (running, queued) = (wait::start(ctx, worker(0), 9)?, wait::start(ctx, worker(0), 9)?);
            let next = count::start(ctx, worker(0), 1)?;
            assert!(!running.is_ready() && !next.is_ready());
            queued.cancel();
            running.cancel();
            running.cancel();
            for call in [running, queued] {
                assert!(call.is_ready());
                assert_eq!(call.get().unwrap_err().to_string(), "cancelled: op `wait` on worker:0 was cancelled");
            }
            assert_eq!(next.get()?, 1);
            // Its own calls fail, so that it ends: even the one that tells so.
            assert!(!ended.is_initialized()?);
            let done = count::start(ctx, worker(0), 1)?;
            assert_eq!(wait_any([&done]), Some(0));
            done.cancel();
            assert_eq!(done.get()?, 2);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_dropped_call_gives_the_op_up() {
    on_chief(|ctx| {
        drop(wait::start(ctx, worker(1), 9)?);
        assert_eq!(count::start(ctx, worker(1), 1)?.get()?, 1);
        Ok(())
    });
}

#[test]
fn a_timeout_ends_the_op_also_while_another_is_waited_for() {
    on_chief(|ctx| {
        let limited = |index| wait::prepare(ctx, index).timeout(Duration::from_millis(20)).start(worker(1));
        let (running, queued) = (limited(9)?, limited(9)?);
        let next = count::start(ctx, worker(1), 1)?;
        assert_eq!(next.get()?, 1);
        for call in [running, queued] {
            assert!(call.is_ready());
            let error = call.get().unwrap_err();
            assert_eq!(error.to_string(), "deadline-exceeded: op `wait` on worker:1 was not done within 20ms");
        }
        assert_eq!(
            count::prepare(ctx, 1).timeout(Duration::ZERO).start(worker(1))?.get().unwrap_err().code,
            ErrorCode::DeadlineExceeded
        );
        count::prepare(ctx, 1).timeout(Duration::MAX).start(worker(1))?.get().map(drop)
    });
}

#[test]
fn what_can_be_told_at_once_is_told_at_once() {
    on_chief(|ctx| {
        let check = |call: Result<Call>, code, text: &str| {
            let error = call.unwrap_err();
            assert_eq!(error.code, code, "{error}");
            assert!(error.message.contains(text), "`{error}` should say `{text}`");
        };
        let invalid = ErrorCode::InvalidArgument;
        check(ctx.op("").start(worker(0)), invalid, "the op name is empty");
        check(ctx.op("a\nb").start(worker(0)), invalid, "control characters");
        check(
            ctx.op("count").start(worker(7)),
            invalid,
            "op `count` can't run on worker:7: the cluster has only ps:0, worker:0, worker:1",
        );
        check(ctx.op("many").inputs(vec![0_u8; 257]).start(ps(0)), invalid, "is given 257 inputs, at most 256");
        let error = many::start(ctx, ps(0), 257)?.get().unwrap_err();
        assert_eq!(
            error.to_string(),
            "op `many` on ps:0 has no valid results: it has 257 results, at most 256 are allowed"
        );
        assert_eq!(many::start(ctx, ps(0), 256)?.get()?.len(), 256);

        let calls = (0..256).map(|_| wait::start(ctx, worker(1), 9)).collect::<Result<Vec<_>>>()?;
        check(
            ctx.op("count").start(ps(0)),
            ErrorCode::ResourceExhausted,
            "256 calls are in flight, the most that is allowed (-W max-ops)",
        );
        drop(calls);
        count::start(ctx, worker(1), 1)?.get().map(drop)
    });
}

#[test]
fn neither_a_local_run_nor_an_op_starts_ops() {
    let run = MockCluster::builder().ops(OPS).local().run(|ctx| count::start(ctx, worker(0), 1)?.get());
    let expected = "failed-precondition: no ops in a local run, which has no other tasks: call the function itself";
    assert_eq!(run.tasks[0].result.as_ref().unwrap_err().to_string(), expected);
    on_chief(|ctx| {
        let error = starts_another::start(ctx, worker(1))?.get().unwrap_err();
        let expected = "op `starts_another` on worker:1 failed: failed-precondition: an op can't start ops: return, and let \
                        worker_fn start the next";
        assert_eq!(error.to_string(), expected);
        let error = arrives::start(ctx, worker(1))?.get().unwrap_err();
        assert!(error.message.contains("failed-precondition: no barrier in an op"), "{error}");
        Ok(())
    });
}

#[test]
fn an_op_sees_the_context_of_its_task() {
    let cluster = MockCluster::builder().workers(2).ps(1).args(["--fast"]).ops(OPS).build();
    let run = cluster.run(|ctx| -> Result<()> {
        if ctx.is_chief() {
            for task in [worker(0), worker(1), ps(0)] {
                describe::start(ctx, task)?.get()?;
            }
        }
        Ok(())
    });
    run.unwrap();
    let expected = [
        (
            worker(0),
            r#"worker:0 grpc://worker-0.mock:2222 2 chief=true distributed=true barrier=false save=true ["--fast"]"#,
        ),
        (
            worker(1),
            r#"worker:1 grpc://worker-1.mock:2222 2 chief=false distributed=true barrier=false save=false ["--fast"]"#,
        ),
        (ps(0), r#"ps:0 grpc://ps-0.mock:2222 2 chief=false distributed=true barrier=false save=false ["--fast"]"#),
    ];
    let logs: Vec<_> = cluster.logs().into_iter().map(|line| (line.task, line.message)).collect();
    assert_eq!(logs, expected.map(|(task, message)| (Some(task), message.to_owned())));
}

#[test]
fn a_failed_run_ends_the_waits_for_ops() {
    let run = cluster(2).run(|ctx| -> Result<()> {
        if !ctx.is_chief() {
            return Err("bad shard 7".into());
        }
        let (call, kept) = (wait::start(ctx, ps(0), 9)?, count::start(ctx, worker(0), 1)?.keep());
        let error = call.get().unwrap_err();
        assert!(kept.is_err() || kept.is_ok_and(|kept| kept.fetch().is_err()));
        Err(error)
    });
    let error = run.failure(&worker(0)).to_string();
    assert_eq!(error, "peer-failed: worker:1 failed: bad shard 7");
}

#[test]
fn a_call_that_is_carried_out_of_its_run_has_ended() {
    static CALL: Mutex<Option<Call<()>>> = Mutex::new(None);
    cluster(1)
        .run(|ctx| -> Result<()> {
            *CALL.lock().unwrap() = Some(wait::start(ctx, worker(0), 9)?);
            Ok(())
        })
        .unwrap();
    let call = CALL.lock().unwrap().take().unwrap();
    assert!(call.is_ready());
    assert_eq!(call.get().unwrap_err().to_string(), "cancelled: the run that started the op has ended");
}
