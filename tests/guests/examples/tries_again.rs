//! Fails at every attempt below a number (default 2) in the way given (`error`, the default, `panic`, `exit`, `memory`, which
//! is 1 GiB of it, or `slow`, which is an error after half a second), and then ends well. Each attempt prints its number and whether it found a variable, which
//! it then leaves, and writes a summary.

use dchost_guest::{Change, Result, WorkerContext, worker_fn};
use dchost_test_guests::arg;
use std::time::Duration;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let failures: u32 = arg(ctx, 0, 2);
    let ending: String = arg(ctx, 1, "error".to_owned());
    let attempt = ctx.attempt();
    let left = ctx.variable::<f32>("left").declare()?;
    let found = if ctx.uninitialized([&left])?.is_empty() { "a variable" } else { "nothing" };
    println!("attempt {attempt} found {found}");
    ctx.initialize([Change::assign(&left, 1.0)])?;
    ctx.scalar("attempt", u64::from(attempt), 1.0);
    if attempt >= failures {
        return Ok(());
    }
    match ending.as_str() {
        "panic" => panic!("lost at attempt {attempt}"),
        "memory" => drop(std::hint::black_box(vec![1_u8; 1 << 30])),
        "exit" => std::process::exit(9),
        "slow" => std::thread::sleep(Duration::from_millis(500)),
        _ => {}
    }
    Err(format!("lost at attempt {attempt}").into())
}
