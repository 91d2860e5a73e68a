//! Counts primes on all workers at once: the chief cuts the numbers into chunks, ops count those, and the chief adds up.
//!
//! Chunks go to whoever is free, so that a slow worker gets fewer. The same is then done on one worker alone, in the same
//! run, which shows what the others were worth.

#![deny(unsafe_code)]

mod options;
mod primes;

use dchost_guest::{Result, Task, WorkerContext, op, ops, wait_any, worker_fn};
use options::Options;
use std::time::{Duration, Instant};

/// Chunks that each worker has at once: one that it counts, and one that waits, so that it never does.
const CHUNKS_AHEAD: usize = 2;

/// Counts the primes from `from` to below `to`. What it needs for that stays for the next chunk.
#[op]
fn count(from: i64, to: i64) -> Result<i64> {
    let number = |number: i64| u64::try_from(number).map_err(|_| format!("{number} is negative"));
    Ok(primes::count(number(from)?, number(to)?) as i64)
}

ops![count];

#[worker_fn]
fn run(ctx: &WorkerContext) -> Result<()> {
    let options = Options::parse(&ctx.args())?;
    if ctx.is_chief() {
        drive(ctx, &options)?;
    }
    // A worker's process goes when its own run has ended: until then it runs ops. A driver of all has no others to meet.
    if ctx.has_barrier() { ctx.barrier("done", None) } else { Ok(()) }
}

fn drive(ctx: &WorkerContext, options: &Options) -> Result<()> {
    let workers = workers(ctx);
    let Some(first) = workers.first() else {
        return Err("a local run has no workers: run a cluster, as README.md shows".into());
    };

    // The first op on a task brings the component there and begins an instance; that isn't what is measured.
    let begun = Instant::now();
    let calls = workers.iter().map(|worker| count::start(ctx, worker, 0, 1)).collect::<Result<Vec<_>>>()?;
    for call in calls {
        call.get()?;
    }
    println!("{} workers are ready after {}", workers.len(), seconds(begun.elapsed()));

    let (primes, all) = count_on(ctx, &workers, options)?;
    println!("{} workers: {primes} primes below {} in {}", workers.len(), options.below, seconds(all));
    let (again, alone) = count_on(ctx, std::slice::from_ref(first), options)?;
    println!("1 worker: {again} primes below {} in {}", options.below, seconds(alone));
    println!("{:.2} times as fast on {}", alone.as_secs_f64() / all.as_secs_f64(), workers.len());
    if primes == again { Ok(()) } else { Err(format!("{primes} primes, and then {again}").into()) }
}

/// The tasks that count as workers: the chief is one.
fn workers(ctx: &WorkerContext) -> Vec<Task> {
    let cluster = ctx.cluster_spec();
    [cluster.tasks("chief"), cluster.tasks("worker")].concat()
}

/// Counts all primes on `tasks`, and says how long it took.
fn count_on(ctx: &WorkerContext, tasks: &[Task], options: &Options) -> Result<(i64, Duration)> {
    let begun = Instant::now();
    let chunks = options.chunks().count();
    let mut ahead = options.chunks();
    let mut calls = Vec::new();
    for task in tasks.iter().cycle().take(tasks.len() * CHUNKS_AHEAD) {
        if let Some((from, to)) = ahead.next() {
            calls.push(count::start(ctx, task, from, to)?);
        }
    }
    let (mut primes, mut done) = (0, 0);
    while let Some(ready) = wait_any(&calls) {
        let call = calls.remove(ready);
        if let Some((from, to)) = ahead.next() {
            calls.push(count::start(ctx, call.task(), from, to)?);
        }
        primes += call.get()?;
        done += 1;
        ctx.progress(done, Some(chunks as u64), "chunks");
    }
    Ok((primes, begun.elapsed()))
}

fn seconds(duration: Duration) -> String {
    format!("{:.2} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dchost_guest::{MockBuilder, MockCluster};

    fn cluster(workers: u32, args: &str) -> MockBuilder {
        MockCluster::builder().workers(workers).args(args.split_whitespace()).ops(OPS)
    }

    #[test]
    fn the_count_is_right_on_however_many_workers_and_chunks() {
        for (workers, below, chunk, expected) in [
            (1, 100, 1000, 25),
            (3, 100_000, 7919, 9592),
            (2, 1_000_000, 100_000, 78_498),
            (4, 10, 1, 4),
            (2, 0, 10, 0),
        ] {
            let counts = cluster(workers, "").build().run(|ctx| -> Result<i64> {
                let options = Options { below, chunk };
                if ctx.is_chief() { Ok(count_on(ctx, &self::workers(ctx), &options)?.0) } else { Ok(0) }
            });
            assert_eq!(counts.unwrap()[0], expected, "below {below} in chunks of {chunk} on {workers} workers");
        }
    }

    #[test]
    fn it_runs_with_a_chief_and_as_a_driver_of_all() {
        for cluster in [cluster(2, "--below 20000").chief(true), cluster(2, "--below 20000").in_graph(true)] {
            cluster.build().run(run).unwrap();
        }
    }

    #[test]
    fn mistakes_are_told() {
        let local = MockCluster::local().run(run);
        assert!(local.tasks[0].result.as_ref().unwrap_err().to_string().starts_with("a local run has no workers"));
        let failed = cluster(1, "--chunk 0").build().run(run);
        assert_eq!(failed.tasks[0].result.as_ref().unwrap_err().to_string(), "`--chunk 0`: a number from 1 is needed");
        let error = cluster(1, "").build().run(|ctx| count::start(ctx, &workers(ctx)[0], -7, 3)?.get());
        let error = error.tasks[0].result.as_ref().unwrap_err().to_string();
        assert_eq!(error, "op `count` on worker:0 failed: -7 is negative");
    }
}
