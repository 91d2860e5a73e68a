//! Every run pushes gradients of 1 for the version that it has, and goes on with what it is answered, so that the value falls by 1 a
//! step whoever comes. The arguments are the number of steps, and of the replicas that make one.

use dchost_guest::{Change, ErrorCode, Optimizer, Result, WorkerContext, ps, worker_fn};
use dchost_test_guests::arg;

/// How many steps a line is for.
const SHOWN: u64 = 50;

#[worker_fn]
fn step(ctx: &WorkerContext) -> Result<()> {
    let (steps, replicas) = (arg(ctx, 0, 100_u64), arg(ctx, 1, ctx.num_workers().max(1)));
    let w = ctx.variable::<f32>("w").shape([1000]).on(ps(0)).declare()?;
    ctx.initialize_if_absent([Change::assign(&w, 0.0)])?;
    let gradient = vec![1.0_f32; w.len()];
    let (mut now, mut stale) = (w.read()?, 0_u32);
    while now.version() <= steps {
        let before = now.version();
        let sgd = Optimizer::sgd(1.0).sync(before, replicas);
        [now] = match ctx.apply_gradients_and_read(&sgd, [(&w, &gradient)]) {
            Err(error) if error.code == ErrorCode::Aborted => {
                stale += 1;
                [w.read()?]
            }
            answer => answer?,
        };
        assert!(now.version() > before && now.iter().all(|&w| w == 1.0 - now.version() as f32), "{:?}", now.version());
        if now.version() / SHOWN > before / SHOWN {
            println!("version {}", now.version() / SHOWN * SHOWN);
        }
    }
    println!("ends at version {}, {stale} stale", now.version());
    Ok(())
}
