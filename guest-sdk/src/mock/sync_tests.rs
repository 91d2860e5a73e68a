//! Synchronous replicas of a mock cluster.

use crate::{Change, Error, ErrorCode, MockCluster, Optimizer, Result, chief, ps, worker};

/// Aim: workers that push for the version they were answered stay together, whatever they start late; a whole step is the mean. Method:
/// real threads, two variables of which one is in parts.
#[test]
fn replicas_go_step_by_step_and_apply_the_mean() {
    const STEPS: u64 = 30;
    let cluster = MockCluster::builder().workers(3).chief(true).ps(2).build();
    let run = cluster.run(|ctx| -> Result<()> {
        let w = ctx.variable::<f32>("w").shape([512, 256]).sharded().declare()?;
        let b = ctx.variable::<f64>("b").on(ps(1)).declare()?;
        if ctx.is_chief() {
            ctx.initialize([Change::assign(&w, 0.0), Change::assign(&b, 0.0)])?;
        }
        ctx.wait_initialized((&w, &b), None)?;
        let own = ctx.task().map_or(0, |task| if task == chief() { 3 } else { task.index });
        for step in 1..=STEPS {
            let sgd = Optimizer::sgd(0.5).sync(step, ctx.num_workers());
            let gradient = vec![own as f32; w.len()];
            let (w, b) = if step % 2 == 0 {
                ctx.apply_gradients_and_read(&sgd, ((&w, &gradient), (&b, f64::from(own))))?
            } else {
                ctx.start_apply_gradients_and_read(&sgd, ((&w, &gradient), (&b, f64::from(own))))?.get()?
            };
            let value = -0.75 * step as f64;
            assert!((w.version(), b.version()) == (step + 1, step + 1), "all are answered together");
            assert!((f64::from(w[7]) - value).abs() < 1e-3 && (b.scalar() - value).abs() < 1e-9);
        }
        Ok(())
    });
    run.unwrap();
}

#[test]
fn who_is_late_is_answered_and_who_is_stale_is_told() {
    let run = MockCluster::local().run(|ctx| -> Result<()> {
        let w = ctx.variable::<f32>("w").declare()?;
        let v = ctx.variable::<f32>("v").declare()?;
        ctx.initialize([Change::assign(&w, 0.0), Change::assign(&v, 0.0)])?;
        let sgd = Optimizer::sgd(1.0);
        let fails = |result: Result<Vec<u64>>, code: ErrorCode, part: &str| {
            let error: Error = result.unwrap_err();
            assert!(error.code == code && error.message.contains(part), "{error}");
        };
        let low = ctx.start_apply_gradients(&sgd.sync(1, 2), [(&w, 1.0)])?;
        let first = ctx.start_apply_gradients(&sgd.sync(2, 2), [(&w, 1.0), (&v, 4.0)])?;
        let precondition = ErrorCode::FailedPrecondition;
        fails(ctx.apply_gradients(&sgd.sync(2, 3), [(&w, 1.0)]), precondition, "`3` replicas");
        fails(ctx.apply_gradients(&sgd.learning_rate(0.5).sync(2, 2), [(&w, 1.0)]), precondition, "same method");
        fails(ctx.apply_gradients(&sgd.sync(1, 0), [(&w, 1.0)]), ErrorCode::InvalidArgument, "`0` replicas");
        fails(ctx.apply_gradients(&sgd.sync(1, 4097), [(&w, 1.0)]), ErrorCode::InvalidArgument, "`4097` replicas");
        assert_eq!(ctx.apply_gradients(&sgd.sync(2, 2), [(&w, 3.0)])?, [2]);
        fails(low.get(), ErrorCode::Aborted, "step `1`, but step `2` is applied");
        assert!(!first.is_ready(), "v lacks a gradient");
        assert_eq!(ctx.apply_gradients(&sgd.sync(2, 2), [(&v, 0.0), (&w, 100.0)])?, [2, 2]);
        assert_eq!((first.get()?, w.read()?.scalar(), v.read()?.scalar()), (vec![2, 2], -2.0, -2.0));
        fails(ctx.apply_gradients(&sgd.sync(1, 2), [(&v, 1.0)]), ErrorCode::Aborted, "stale");
        // Nobody else is left.
        fails(ctx.apply_gradients(&sgd.sync(3, 2), [(&w, 1.0)]), ErrorCode::Cancelled, "step `3` lacks gradients");
        let waits: Vec<_> =
            (4..7).map(|step| ctx.start_apply_gradients(&sgd.sync(step, 2), [(&w, 1.0)])).collect::<Result<_>>()?;
        fails(ctx.apply_gradients(&sgd.sync(7, 2), [(&w, 1.0)]), ErrorCode::ResourceExhausted, "`3`, `4`, `5`, `6`");
        w.initialize(0.0)?;
        for wait in waits {
            fails(wait.get(), ErrorCode::Aborted, "initialized anew");
        }
        assert_eq!(ctx.apply_gradients(&sgd.sync(1, 1), [(&w, 1.0)])?, [4]);
        Ok(())
    });
    run.unwrap();
}

/// One of three workers ends without a gradient: with a backup nobody waits for it.
#[test]
fn a_backup_worker_lets_the_others_go_on() {
    let cluster = MockCluster::builder().workers(3).build();
    let run = cluster.run(|ctx| -> Result<u64> {
        let w = ctx.variable::<f32>("w").declare()?;
        w.initialize_if_absent(0.0)?;
        if ctx.task() == Some(worker(2)) {
            return Ok(0);
        }
        let mut now = w.read()?;
        while now.version() < 10 {
            [now] = match ctx.apply_gradients_and_read(&Optimizer::sgd(1.0).sync(now.version(), 2), [(&w, 1.0)]) {
                Err(error) if error.code == ErrorCode::Aborted => [w.read()?],
                values => values?,
            };
        }
        Ok(now.version())
    });
    assert_eq!(run.unwrap(), [10, 10, 0]);
}
