//! Workers add to two variables on two parameter servers: the between-graph worker function of TensorFlow's own tests.
//!
//! `x` begins at 10 on `ps:0`, `y` at 20 on `ps:1`. Each of the N workers makes one step, `x += 2` and `y -= 2`; when all
//! have stepped, everyone reads 10 + 2N and 20 - 2N.

#![deny(unsafe_code)]

use dchost_guest::{Change, Result, WorkerContext, ps, worker_fn};
use std::thread;
use std::time::Duration;

/// How long to sleep between two looks at the cluster where there is no barrier to wait at.
const POLL: Duration = Duration::from_millis(5);

#[worker_fn]
fn count(ctx: &WorkerContext) -> Result<()> {
    let x = ctx.variable::<f32>("x").on(ps(0)).declare()?;
    let y = ctx.variable::<f32>("y").on(ps(1)).declare()?;
    // Only needed without a barrier: the number of workers that have stepped.
    let stepped = ctx.variable::<i64>("stepped").on(ps(0)).declare()?;

    if ctx.is_chief() {
        ctx.initialize([Change::assign(&x, 10.0), Change::assign(&y, 20.0), Change::assign(&stepped, 0)])?;
    }

    // Nobody steps before all variables exist.
    if ctx.has_barrier() {
        ctx.wait_for_other_workers()?;
    } else {
        while !ctx.uninitialized((&x, &y, &stepped))?.is_empty() {
            thread::sleep(POLL);
        }
    }

    ctx.update([Change::add(&x, 2.0), Change::sub(&y, 2.0)])?;

    // Nobody reads before all have stepped.
    if ctx.has_barrier() {
        ctx.wait_for_other_workers()?;
    } else {
        let mut count = stepped.add_and_read(1)?.scalar();
        while count < i64::from(ctx.num_workers()) {
            thread::sleep(POLL);
            count = stepped.read()?.scalar();
        }
    }

    let [x, y] = ctx.read([&x, &y])?.map(|value| value.scalar());
    println!("x={x} y={y}");

    let workers = ctx.num_workers() as f32;
    let expected = (10.0 + 2.0 * workers, 20.0 - 2.0 * workers);
    if (x, y) == expected {
        Ok(())
    } else {
        Err(format!("x={x} y={y}, but {workers} workers should have made it x={} y={}", expected.0, expected.1).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dchost_guest::{MockCluster, chief, worker};

    #[test]
    fn three_workers_make_x_16_and_y_14_with_a_barrier_and_without() {
        for barrier in [true, false] {
            let cluster = MockCluster::builder().workers(3).ps(2).barrier(barrier).build();
            cluster.run(count).unwrap();
            assert_eq!(cluster.value_on::<f32>(&ps(0), "x"), Some(vec![16.0]), "barrier {barrier}");
            assert_eq!(cluster.value_on::<f32>(&ps(1), "y"), Some(vec![14.0]), "barrier {barrier}");
            let stepped = if barrier { 0 } else { 3 };
            assert_eq!(cluster.value_on::<i64>(&ps(0), "stepped"), Some(vec![stepped]), "barrier {barrier}");
        }
    }

    #[test]
    fn a_chief_counts_as_a_worker() {
        let cluster = MockCluster::builder().chief(true).workers(2).ps(2).build();
        let run = cluster.run(count);
        assert!(run.result(&chief()).is_ok() && run.result(&worker(1)).is_ok());
        assert_eq!(cluster.value::<f32>("x"), Some(vec![16.0]));
    }

    #[test]
    fn a_wrong_sum_is_an_error_that_shows_it() {
        // A foreign worker_fn adds to x once more before anybody reads.
        let meddle = |ctx: &WorkerContext| -> Result<()> {
            if ctx.task() == Some(worker(1)) {
                let x = ctx.variable::<f32>("x").on(ps(0)).declare()?;
                ctx.wait_for_other_workers()?;
                x.add(1.5)?;
                return ctx.wait_for_other_workers();
            }
            count(ctx)
        };
        let run = MockCluster::builder().workers(2).ps(2).build().run(meddle);
        let error = run.failure(&worker(0)).to_string();
        assert_eq!(error, "x=13.5 y=18, but 2 workers should have made it x=14 y=16");
    }
}
