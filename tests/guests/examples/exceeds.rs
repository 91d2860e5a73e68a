//! Uses as much of something as it is told, and ends well where it gets it. Arguments: what, and how much:
//!
//! `memory` (MiB), `cpu` (ms of computing), `stack` (calls deep), `handles`, `tensor` (bytes of one call), `answer` (bytes
//! of one read, written in halves), `calls` (in flight), `name` and `log` (bytes), `lines`, `newlines` and `unbroken` (bytes of
//! short lines, of empty ones, or of one without end, in large writes), `sleep` (ms), `barrier` (ms that the chief waits for a worker).

use dchost_guest::{Change, Level, WorkerContext, worker_fn};
use dchost_test_guests::arg;
use std::error::Error;
use std::hint::black_box;
use std::io::{self, Write};
use std::time::{Duration, Instant};

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let what: String = arg(ctx, 0, String::new());
    let much: usize = arg(ctx, 1, 1);
    match what.as_str() {
        "memory" => {
            black_box(vec![1_u8; much << 20]);
        }
        "cpu" => compute(Duration::from_millis(much as u64)),
        "stack" => {
            black_box(descend(much as u64));
        }
        "handles" => {
            let kept = (0..much).map(|index| ctx.variable::<u8>(format!("v{index}")).declare());
            black_box(kept.collect::<Result<Vec<_>, _>>()?);
        }
        "tensor" => ctx.variable::<u8>("big").shape([much]).declare()?.initialize(&vec![1; much])?,
        "answer" => {
            let half = |name: &str| ctx.variable::<u8>(name).shape([much / 2]).declare();
            let (first, second) = (half("first")?, half("second")?);
            let value = vec![1; much / 2];
            first.initialize(&value)?;
            second.initialize(&value)?;
            black_box(ctx.read((&first, &second))?);
        }
        "calls" => {
            let variable = ctx.variable::<u8>("v").declare()?;
            ctx.initialize([Change::assign(&variable, 1)])?;
            let started = (0..much).map(|_| ctx.start_read([&variable]));
            for call in started.collect::<Result<Vec<_>, _>>()? {
                call.get()?;
            }
        }
        "name" => {
            ctx.variable::<u8>("n".repeat(much)).declare()?;
        }
        "log" => ctx.log(Level::Warn, &"x".repeat(much)),
        "lines" => write(&b"short line\n".repeat(10_000), much)?,
        "newlines" => write(&[b'\n'; 64 << 10], much)?,
        "unbroken" => write(&[b'x'; 64 << 10], much)?,
        "sleep" => std::thread::sleep(Duration::from_millis(much as u64)),
        "barrier" => {
            if !ctx.is_chief() {
                std::thread::sleep(Duration::from_millis(much as u64));
            }
            ctx.wait_for_other_workers()?;
            // Through some epochs, so that the budget is looked at after the wait.
            compute(Duration::from_millis(50));
        }
        other => return Err(format!("unknown: {other}").into()),
    }
    println!("the end of {what}");
    Ok(())
}

fn compute(time: Duration) {
    let began = Instant::now();
    let mut turns = 0_u64;
    while began.elapsed() < time {
        for _ in 0..1000 {
            turns = black_box(turns.wrapping_add(1));
        }
    }
}

#[inline(never)]
fn descend(depth: u64) -> u64 {
    if black_box(depth) == 0 {
        return 1;
    }
    // Uses the answer, so that the call can't become a loop.
    black_box(descend(depth - 1)).rotate_left(1)
}

fn write(piece: &[u8], bytes: usize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut left = bytes;
    while left > 0 {
        let now = piece.len().min(left);
        out.write_all(&piece[..now])?;
        left -= now;
    }
    out.write_all(b"\n")
}
