//! Trains 64 Ki numbers on ps tasks by a loop that overlaps and by the plain one, and compares: where both end, how old the values were, how
//! often each push was made. Argument: how many pushes may be under way (default 2).

use dchost_guest::{Change, Optimizer, Result, WorkerContext, ps, worker_fn};
use dchost_test_guests::arg;

const LEN: usize = 64 << 10;
const STEPS: u64 = 60;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let depth: usize = arg(ctx, 0, 2);
    let mine = ctx.task().map_or(0, |task| task.index);
    let variable = |name: &str, on| ctx.variable::<f32>(name).shape([LEN]).on(on).declare();
    let (plain, overlapped) = (variable("plain", ps(0))?, variable("overlapped", ps(0))?);
    let pushes = variable("pushes", ps(1))?;
    let steps = ctx.variable::<i64>(format!("steps/{mine}")).on(ps(1)).declare()?;
    let absent = ctx.variable::<i64>("absent").on(ps(1)).declare()?;
    if ctx.is_chief() {
        ctx.initialize([&plain, &overlapped, &pushes].map(|variable| Change::assign(variable, 0.0)))?;
    }
    steps.initialize(0)?;
    ctx.wait_for_other_workers()?;

    let target: Vec<f32> = (0..LEN).map(|at| at as f32 / LEN as f32).collect();
    let slope = |now: &[f32]| now.iter().zip(&target).map(|(now, target)| now - target).collect::<Vec<f32>>();
    let optimizer = Optimizer::sgd(0.3 / f64::from(ctx.num_workers()));

    for _ in 0..STEPS {
        ctx.apply_gradients(&optimizer, [(&plain, &slope(&plain.read()?))])?;
    }

    // Two pushes a step: a read lacks those of the step before it, and what was under way then.
    let mut values = ctx.overlap((&overlapped, &steps)).depth(depth);
    let mut last = 0;
    for step in 0..STEPS {
        let (now, seen) = values.read()?;
        let seen = seen.scalar().unsigned_abs();
        let lacks_max = (2 + depth as u64).div_ceil(2);
        if seen < last || seen + lacks_max < step {
            return Err(format!("step {step} sees the pushes of {seen} steps, the one before {last}").into());
        }
        last = seen;
        values.apply_gradients(&optimizer, [(&overlapped, &slope(&now))])?;
        values.update([Change::add(&pushes, 1.0), Change::add(&steps, 1)])?;
    }
    values.flush()?;
    let (_, seen) = values.read()?;
    if seen.scalar().unsigned_abs() != STEPS {
        return Err(format!("after the flush {} of {STEPS} pushes are there", seen.scalar()).into());
    }

    // Assignments keep their order, whatever the depth.
    for number in 1..=20 {
        values.update([Change::assign(&steps, number)])?;
    }
    // With a depth of 0 the call itself waits for the answer, else the end does.
    let last = values.update([Change::add(&absent, 1)]);
    let Err(error) = last.and(values.finish()) else { return Err("a push to nowhere did well".into()) };
    if steps.read()?.scalar() != 20 {
        return Err(format!("the last assignment is {}", steps.read()?.scalar()).into());
    }

    ctx.wait_for_other_workers()?;
    let [plain, overlapped, pushes] = ctx.read([&plain, &overlapped, &pushes])?;
    let all = STEPS * u64::from(ctx.num_workers());
    let off = |now: &[f32]| now.iter().zip(&target).map(|(now, target)| (now - target).abs()).fold(0.0, f32::max);
    let counted = pushes.iter().all(|&count| count == all as f32)
        && (pushes.version(), overlapped.version()) == (all + 1, all + 1);
    println!("plain off by {:.3}, overlapped off by {:.3}", off(&plain), off(&overlapped));
    println!("each push once: {counted}; then {}: {}", error.code, error.message);
    Ok(())
}
