//! One component for all parts of the benches `sandbox` and `peers`: the first argument says what it does.
//!
//! Times are printed as nanoseconds, one line a measurement.

mod kernels;

use dchost_guest::linalg::Matmul;
use dchost_guest::{Result, Tensor, Variable, WorkerContext, op, ops, ps, worker_fn};
use std::hint::black_box;
use std::time::Instant;

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let args = ctx.args();
    let word = |index: usize| args.get(index).map_or("", String::as_str);
    let number = |index: usize| word(index).parse::<usize>().map_err(|error| format!("argument {index}: {error}"));
    match word(0) {
        // Starts and ends, and does nothing else.
        "nothing" => Ok(()),
        "line" => {
            println!("here");
            Ok(())
        }
        "idle" => ctx.barrier("idle", None),
        "barrier" => barrier(ctx, number(1)?),
        "tensor" => tensor(ctx, word(1), number(2)?, number(3)?, number(4)?),
        "push" | "pull" => remote(ctx, word(0), number(1)?, word(2)),
        "matmul" => {
            let times = match word(1) {
                way @ ("in-place" | "by-kernel") => product(way, number(2)?, number(3)?)?,
                kernel => kernels::measure(kernel, number(2)?, number(3)?)?,
            };
            print_times(&times);
            Ok(())
        }
        other => Err(format!("unknown part `{other}`").into()),
    }
}

/// Times of products of square matrices by the SDK, after one that isn't counted.
fn product(way: &str, n: usize, rounds: usize) -> Result<Vec<u128>> {
    let a: Vec<f32> = (0..n * n).map(|index| (index % 7) as f32).collect();
    let b: Vec<f32> = (0..n * n).map(|index| (index % 5) as f32).collect();
    let mut c = vec![0.0; n * n];
    let mut times = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        let started = Instant::now();
        Matmul::new(n, n, n).__run_by(way == "by-kernel", black_box(&a), black_box(&b), black_box(&mut c))?;
        if round > 0 {
            times.push(started.elapsed().as_nanos());
        }
    }
    Ok(times)
}

/// Meets the others, so many rounds after some that don't count, and prints how long each took.
fn barrier(ctx: &WorkerContext, rounds: usize) -> Result<()> {
    for _ in 0..rounds / 10 {
        ctx.wait_for_other_workers()?;
    }
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let started = Instant::now();
        ctx.wait_for_other_workers()?;
        times.push(started.elapsed().as_nanos());
    }
    print_times(&times);
    Ok(())
}

/// Calls that connect, and fill caches and the memory that results take.
const WARM_UP: usize = 3;

/// Calls of a measurement at least.
const SAMPLES_MIN: usize = 5;

/// Pushes or pulls a variable on ps for so many seconds, and prints the median time.
fn remote(ctx: &WorkerContext, direction: &str, size_bytes: usize, seconds: &str) -> Result<()> {
    let seconds = seconds.parse::<f64>().map_err(|error| format!("`{seconds}`: {error}"))?;
    let len = size_bytes / size_of::<f32>();
    let variable = ctx.variable::<f32>("remote").shape([len]).on(ps(0)).declare()?;
    let values = vec![1.0_f32; len];
    variable.initialize(&values)?;
    let call = || match direction {
        "push" => variable.add(&values).map(drop),
        _ => look(&variable),
    };
    for _ in 0..WARM_UP {
        call()?;
    }
    let (began, mut times) = (Instant::now(), Vec::new());
    while times.len() < SAMPLES_MIN || began.elapsed().as_secs_f64() < seconds {
        let started = Instant::now();
        call()?;
        times.push(started.elapsed().as_nanos());
    }
    times.sort_unstable();
    print_times(&[times[times.len() / 2]]);
    Ok(())
}

/// Gives back what it is given.
#[op]
fn echo(tensor: Tensor) -> Tensor {
    tensor
}

/// Takes and gives nothing.
#[op]
fn nothing() {}

ops![echo, nothing];

/// Moves `size_bytes` in one direction: `samples` times of `calls` calls.
fn tensor(ctx: &WorkerContext, direction: &str, size_bytes: usize, samples: usize, calls: usize) -> Result<()> {
    let len = size_bytes / size_of::<f32>();
    let variable = |name: &str| ctx.variable::<f32>(name).shape([len]).declare();
    let values = || vec![1.0_f32; len];
    match direction {
        // The host looks at the type and answers: what is left is what passing the tensor costs.
        "in" => {
            let (variable, values) = (variable("drop")?, values());
            time(samples, calls, || variable.add(&values).map(drop))
        }
        // The host reads every byte where it lies.
        "sum" => {
            let (variable, values) = (variable("sum")?, values());
            time(samples, calls, || variable.add(&values).map(drop))
        }
        "out" => {
            let variable = variable("out")?;
            time(samples, calls, || look(&variable))
        }
        // The variables of a run of its own, as `dchost --module` has them.
        "store-in" => {
            let (variable, values) = (variable("store")?, values());
            variable.initialize(&values)?;
            time(samples, calls, || variable.add(&values).map(drop))
        }
        "store-out" => {
            let variable = variable("store")?;
            variable.initialize(&values())?;
            time(samples, calls, || look(&variable))
        }
        // What the same bytes take within the component.
        "copy" => {
            let (from, mut to) = (values(), vec![2.0_f32; len + 4]);
            // 16 bytes aside: on some processors a copy to an address 16 bytes further in its page takes ten times as long.
            let to = &mut to[4..];
            time(samples, calls, || {
                black_box(&mut *to).copy_from_slice(black_box(&from));
                Ok(())
            })
        }
        other => Err(format!("unknown direction `{other}`").into()),
    }
}

/// Reads a value and looks at its ends, so that it can't be left out.
fn look(variable: &Variable<f32>) -> Result<()> {
    let value = variable.read()?;
    black_box((value.first(), value.last()));
    Ok(())
}

/// Prints the time of one call: first that of the very first, then one for each sample of `calls` calls.
fn time(samples: usize, calls: usize, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    call()?;
    let first = started.elapsed().as_nanos();
    // The second call still finds memory that was never touched: results live beside each other until freed.
    call()?;
    let mut times = Vec::with_capacity(samples);
    for _ in 0..samples {
        let started = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        times.push(started.elapsed().as_nanos() / calls as u128);
    }
    print_times(&[first]);
    print_times(&times);
    Ok(())
}

fn print_times(times: &[u128]) {
    let words: Vec<String> = times.iter().map(u128::to_string).collect();
    println!("{}", words.join(" "));
}
