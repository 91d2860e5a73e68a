//! A job and its evaluator in one component. The chief makes `x` 5, on a ps or where there is none on a worker; reads the variable
//! that the evaluator writes; makes `x` 6; and ends. An evaluator prints its context, reads `x`, tries to write it, writes a
//! variable of its own, and prints how each went.
//!
//! The argument says how the evaluator goes on: `ends` (default) once `x` is 6, `fails` once the training has ended, `fails-first`
//! before the chief goes on, or `stays` until somebody ends it.

use dchost_guest::{Error, ErrorCode, Result, Variable, WorkerContext, evaluator, ps, worker, worker_fn};
use dchost_test_guests::arg;
use std::thread;
use std::time::Duration;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let way: String = arg(ctx, 0, "ends".to_owned());
    let place = if ctx.cluster_spec().num_tasks("ps") > 0 { ps(0) } else { worker(0) };
    let x = ctx.variable::<f32>("x").on(place).declare()?;
    let score = ctx.variable::<f32>("score").on(evaluator()).declare()?;
    if ctx.task().is_some_and(|task| task.job == "evaluator") {
        return evaluate(ctx, &way, &x, &score);
    }
    if ctx.is_chief() {
        x.initialize(5.0)?;
        score.wait_initialized(None)?;
        println!("trained, score {}", score.read()?.scalar());
        x.add(1.0)?;
    }
    Ok(())
}

fn evaluate(ctx: &WorkerContext, way: &str, x: &Variable<f32>, score: &Variable<f32>) -> Result<()> {
    println!(
        "evaluator on {}, chief {}, distributed {}, barrier {}, summary {}",
        ctx.master_target(),
        ctx.is_chief(),
        ctx.distributed_mode(),
        ctx.has_barrier(),
        ctx.should_save_summary()
    );
    x.wait_initialized(None)?;
    println!("reads x = {}", x.read()?.scalar());
    for (what, end) in [("initialize", x.initialize(0.0)), ("update", x.add(1.0).map(drop))] {
        println!("{what} of x: {}", end.err().map_or("done".to_owned(), |error| error.code.to_string()));
    }
    let barrier = ctx.wait_for_other_workers().err().map_or("passed".to_owned(), |error| error.code.to_string());
    println!("barrier: {barrier}");
    if way == "fails-first" {
        score.initialize(0.0)?;
        return Err("bad checkpoint".into());
    }
    score.initialize(0.5)?;
    match way {
        "fails" => {
            while !ctx.training_ended() {
                thread::sleep(Duration::from_millis(5));
            }
            Err("bad checkpoint".into())
        }
        "stays" => {
            println!("stays");
            loop {
                if let Err(error) = x.read() {
                    println!("ended: {}", error.code);
                    return if error.code == ErrorCode::Cancelled { Ok(()) } else { Err::<(), Error>(error) };
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        _ => {
            while x.read()?.scalar() < 6.0 {
                thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        }
    }
}
