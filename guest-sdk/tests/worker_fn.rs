//! What may carry `#[worker_fn]`: it stays an ordinary function, whatever it returns.

use dchost_guest::{Error, ErrorCode, MockCluster, Result, WorkerContext, worker, worker_fn};

#[worker_fn]
fn returns_nothing(ctx: &WorkerContext) {
    assert!(ctx.is_chief());
}

/// Attributes, visibility and comments stay.
#[worker_fn]
#[inline(never)]
pub fn returns_a_result(ctx: &WorkerContext) -> Result<()> {
    ctx.wait_for_other_workers()
}

#[worker_fn]
pub(crate) fn returns_text(_: &WorkerContext) -> std::result::Result<(), &'static str> {
    Err("bad shard 7")
}

#[worker_fn]
fn returns_any_error(ctx: &WorkerContext) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let steps: u32 = ctx.args()[0].parse()?;
    ctx.variable::<u8>("v").declare()?.read()?;
    unreachable!("{steps} steps without a variable")
}

#[test]
fn functions_run_as_they_are() {
    MockCluster::local().run(returns_nothing).unwrap();
    MockCluster::builder().workers(2).build().run(returns_a_result).unwrap();
    assert_eq!(MockCluster::local().run(returns_text).tasks[0].result.as_ref().unwrap_err().to_string(), "bad shard 7");
}

#[test]
fn any_error_that_can_be_shown_will_do() {
    let failure = |arg: &str| {
        let run = MockCluster::builder().args([arg]).build().run(returns_any_error);
        run.failure(&worker(0)).to_string()
    };
    assert_eq!(failure("many"), "invalid digit found in string");
    assert_eq!(failure("3"), "uninitialized: `v` without a value: initialize first");
}

#[test]
fn errors_print_code_text_and_tasks_that_the_text_lacks() {
    let error = Error::new(ErrorCode::PeerFailed, "worker:1 has failed").with_tasks([worker(1), worker(2)]);
    assert_eq!(error.to_string(), "peer-failed: worker:1 has failed (worker:2)");
    assert_eq!(Error::from("bad shard 7").to_string(), "bad shard 7");
}

#[test]
#[should_panic = "not every task did well:\n  worker:0: peer-failed: worker:1 failed: bad shard 7\n  worker:1: bad shard 7"]
fn unwrap_tells_of_every_failure() {
    let cluster = MockCluster::builder().workers(2).build();
    let train = |ctx: &WorkerContext| -> Result<()> {
        if ctx.is_chief() { ctx.wait_for_other_workers() } else { Err("bad shard 7".into()) }
    };
    cluster.run(train).unwrap();
}
