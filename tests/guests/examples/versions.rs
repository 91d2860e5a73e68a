//! Updates and reads of every consistency. The argument says what it does.
//!
//! `trains` (the default): every run adds 1 to a large variable in relaxed updates and counts its steps; all wait for the last step's
//! version, and find every addition in the value. Then each adds to a counter by compare and assign, and reads a rate that the chief
//! changes meanwhile, as old as it likes and not.
//!
//! `floods`: the chief adds to a large variable without end, and says so at its first update.

use dchost_guest::{Change, ErrorCode, Read, Result, WorkerContext, ps, worker_fn};
use dchost_test_guests::arg;
use std::time::Duration;

/// Several blocks of 256 KiB, and a part of one.
const ELEMENTS: usize = 400_003;

const STEPS: u64 = 5;

const HOUR: Duration = Duration::from_secs(3600);

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    match arg(ctx, 0, "trains".to_owned()).as_str() {
        "floods" => floods(ctx),
        _ => trains(ctx),
    }
}

fn floods(ctx: &WorkerContext) -> Result<()> {
    let w = ctx.variable::<f32>("w").shape([8 << 20]).on(ps(0)).declare()?;
    ctx.initialize_if_absent([Change::assign(&w, 0.0)])?;
    let one = vec![1.0_f32; w.len()];
    ctx.update_relaxed([Change::add(&w, &one)])?;
    println!("flooding");
    loop {
        ctx.update_relaxed([Change::add(&w, &one)])?;
    }
}

fn trains(ctx: &WorkerContext) -> Result<()> {
    let runs = u64::from(ctx.num_workers().max(1));
    let w = ctx.variable::<f32>("w").shape([ELEMENTS]).declare()?;
    let steps = ctx.variable::<i64>("steps").declare()?;
    let counter = ctx.variable::<i64>("counter").declare()?;
    let rate = ctx.variable::<f64>("rate").declare()?;
    if ctx.is_chief() {
        ctx.initialize([
            Change::assign(&w, 0.0),
            Change::assign(&steps, 0),
            Change::assign(&counter, 0),
            Change::assign(&rate, 0.5),
        ])?;
    }
    meet(ctx)?;

    let one = vec![1.0_f32; ELEMENTS];
    let last = ctx.start_read_with([&steps], Read::new().min_version(1 + runs * STEPS))?;
    for _ in 0..STEPS {
        ctx.update_relaxed([Change::add(&w, &one)])?;
        let seen = w.read_with(Read::new().relaxed())?;
        assert!(seen.iter().all(|&element| element >= 1.0), "the run's own update is in it");
        steps.add(1)?;
    }
    let [last] = last.get()?;
    let all = (runs * STEPS) as f32;
    for read in [Read::new(), Read::new().relaxed(), Read::new().max_age(HOUR)] {
        let value = w.read_with(read.min_version(1 + runs * STEPS))?;
        assert!(value.iter().all(|&element| element == all), "every addition is in it");
    }
    println!("{} steps, every element {all}", last.scalar());

    let mut lost = 0;
    for _ in 0..STEPS {
        loop {
            let old = counter.read()?;
            let new = Change::assign(&counter, old.scalar() + 1).if_version(old.version());
            match ctx.update([new]) {
                Err(error) if error.code == ErrorCode::Aborted => lost += 1,
                other => break drop(other?),
            }
        }
    }
    eprintln!("lost against others {lost} times");
    let based = Change::assign(&counter, 0).if_version(1);
    let refused = ctx.update_relaxed([based]).expect_err("it is refused");
    meet(ctx)?;
    println!("counted {}, relaxed with a base version: {}", counter.read()?.scalar(), refused.code);

    let old = Read::new().max_age(HOUR);
    rate.read_with(old)?;
    meet(ctx)?;
    if ctx.is_chief() {
        rate.assign(0.25)?;
    }
    meet(ctx)?;
    let kept = rate.read_with(old)?;
    let present = rate.read_with(old.min_version(2))?;
    println!("rate {} as old as an hour, {} at version 2", kept.scalar(), present.scalar());
    Ok(())
}

fn meet(ctx: &WorkerContext) -> Result<()> {
    if ctx.has_barrier() { ctx.wait_for_other_workers() } else { Ok(()) }
}
