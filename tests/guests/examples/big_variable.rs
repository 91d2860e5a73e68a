//! Initializes, adds to and reads one large variable, and checks every value. Arguments: its size in bytes (default 1 MiB),
//! and its task (`ps:1`; default chosen by the host).

use dchost_guest::{Result, Task, WorkerContext, worker_fn};
use dchost_test_guests::arg;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let size_bytes: usize = arg(ctx, 0, 1 << 20);
    let len = size_bytes / size_of::<f32>();
    let mut builder = ctx.variable::<f32>("big").shape([len]);
    if let Some(place) = ctx.args().get(1) {
        builder = builder.on(task(place));
    }
    let big = builder.declare()?;

    // Small whole numbers: their sums are exact. The period isn't that of any chunk.
    let value = |index: usize| (index % 1021) as f32;
    if ctx.is_chief() {
        big.initialize(&(0..len).map(value).collect::<Vec<f32>>())?;
    }
    if ctx.has_barrier() {
        ctx.wait_for_other_workers()?;
    }
    let version = big.add(&(0..len).map(|index| value(index + 1)).collect::<Vec<f32>>())?;
    println!("added, version {version}");
    if ctx.has_barrier() {
        ctx.wait_for_other_workers()?;
    }

    let read = big.read()?;
    let writers = ctx.num_workers().max(1) as f32;
    for (index, &found) in read.iter().enumerate() {
        let expected = value(index) + writers * value(index + 1);
        if found != expected {
            return Err(format!("element {index} of {len} is {found}, not {expected}").into());
        }
    }
    println!("read {} bytes, version {}, all as expected", read.len() * size_of::<f32>(), read.version());
    Ok(())
}

fn task(text: &str) -> Task {
    let (job, index) = text.split_once(':').unwrap_or((text, "0"));
    Task::new(job, index.parse().unwrap_or_else(|error| panic!("task `{text}`: {error}")))
}
