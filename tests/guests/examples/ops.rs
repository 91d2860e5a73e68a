//! Ops of every behaviour, and a caller of them: `call|try WHAT[:NUMBER] TASK...`; `try` prints errors and ends well.
//!
//! WHAT is the name of an op, with its number as input, or what several calls do together:
//! `state` (count three times), `chain` (a kept value through all tasks), `spread` (slow on all tasks at once, by `wait_any`),
//! `cancel`, `timeout` and `drop` (of a spin, then count), `flood` (NUMBER calls at once), `laps` (NUMBER
//! counts, and how long the longest took), `left` (count until the task has gone,
//! then an op and a variable there), `unknown`.
//! The chief calls; other runs end at once. Without arguments nobody calls.

use dchost_guest::{
    Call, Change, Error, Result, Task, Tensor, Variable, WorkerContext, info, op, ops, wait_any, worker_fn,
};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

#[op]
fn echo(all: Vec<Tensor>) -> Vec<Tensor> {
    all
}

#[op]
fn add_n(all: &[Tensor]) -> Result<f32> {
    all.iter().map(Tensor::item::<f32>).sum()
}

/// State of the instance: counts its calls.
#[op]
fn count(by: i64) -> i64 {
    static COUNT: AtomicI64 = AtomicI64::new(0);
    COUNT.fetch_add(by, Ordering::Relaxed) + by
}

/// Where it runs, also as a line of the log.
#[op]
fn place(ctx: &WorkerContext, number: i64) -> Result<Vec<u8>> {
    let task = ctx.task().ok_or("an op without a task")?;
    info!(ctx, "op {number} on {task}");
    println!("op {number} on {task}, arguments {:?}", ctx.args());
    Ok(task.to_string().into_bytes())
}

#[op]
fn slow(millis: i64) -> i64 {
    std::thread::sleep(Duration::from_millis(millis.unsigned_abs()));
    millis
}

#[op]
fn spin(number: i64) -> i64 {
    let mut turns = number;
    loop {
        turns = std::hint::black_box(turns.wrapping_add(1));
    }
}

#[op]
fn panic(number: i64) {
    panic!("panic number {number}");
}

#[op]
fn error(number: i64) -> Result<()> {
    Err(format!("error number {number}").into())
}

#[op]
fn exit(code: i64) {
    std::process::exit(i32::try_from(code).unwrap_or(1));
}

/// So many bytes as a result.
#[op]
fn big(bytes: i64) -> Tensor {
    Tensor::vector(&vec![1_u8; length(bytes)])
}

/// So many bytes of memory, below 2 GiB, and no result of that size.
#[op]
fn allocate(bytes: i64) -> i64 {
    let memory = std::hint::black_box(vec![1_u8; length(bytes)]);
    i64::from(memory[memory.len() - 1])
}

/// An op that starts one.
#[op]
fn nests(ctx: &WorkerContext, by: i64) -> Result<i64> {
    count::start(ctx, &ctx.task().ok_or("an op without a task")?, by)?.get()
}

/// Writes a variable on the task where it runs and one on `worker:0`, and returns their sum.
#[op]
fn remember(ctx: &WorkerContext, number: i64) -> Result<i64> {
    let here = ctx.task().ok_or("an op without a task")?;
    let mut sum = 0;
    for task in [here, Task::new("worker", 0)] {
        let variable: Variable<i64> = ctx.variable("memory").on(task).declare()?;
        ctx.initialize([Change::assign(&variable, number)])?;
        sum += variable.add_and_read(1)?.scalar();
    }
    Ok(sum)
}

ops![echo, add_n, count, place, slow, spin, panic, error, exit, big, allocate, nests, remember];

fn length(bytes: i64) -> usize {
    usize::try_from(bytes).expect("a number of bytes").max(1)
}

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let args = ctx.args();
    let [how, what, tasks @ ..] = args.as_slice() else { return Ok(()) };
    if !ctx.is_chief() {
        return Ok(());
    }
    let (what, number) = what.split_once(':').unwrap_or((what, "1"));
    let number: i64 = number.parse().map_err(|error| format!("`{number}`: {error}"))?;
    let tasks = tasks.iter().map(|task| parse(task)).collect::<Result<Vec<_>>>()?;
    match do_what(ctx, what, number, &tasks) {
        Err(error) if how == "try" => println!("{what} failed: {error}"),
        result => return result,
    }
    Ok(())
}

fn do_what(ctx: &WorkerContext, what: &str, number: i64, tasks: &[Task]) -> Result<()> {
    let first = tasks.first().ok_or("name a task")?;
    let count_on = |task: &Task| count::start(ctx, task, 1)?.get();
    match what {
        "state" => {
            for _ in 0..3 {
                println!("count on {first}: {}", count_on(first)?);
            }
        }
        "chain" => {
            let mut value = add_n::start(ctx, first, &[Tensor::scalar(10.0_f32), Tensor::scalar(1.0_f32)])?.keep()?;
            for task in &tasks[1..] {
                value = ctx.op("add_n").input(&value).input(1.0_f32).returning::<f32>().start(task)?.keep()?;
            }
            println!("chain ends on {} with {}", value.on(), value.fetch()?.item::<f32>()?);
        }
        "spread" => {
            let start = |task| slow::start(ctx, task, number);
            let mut calls = tasks.iter().map(start).collect::<Result<Vec<_>>>()?;
            let mut done = 0;
            while let Some(ready) = wait_any(&calls) {
                calls.swap_remove(ready).get()?;
                done += 1;
            }
            println!("{done} of {} tasks are done", tasks.len());
        }
        "cancel" => {
            let call = spin::start(ctx, first, number)?;
            call.cancel();
            println!("spin: {}", told(call.get()));
            println!("count on {first}: {}", count_on(first)?);
        }
        "timeout" => {
            let timeout = Duration::from_millis(number.unsigned_abs());
            let call = spin::prepare(ctx, number).timeout(timeout).start(first)?;
            println!("spin: {}", told(call.get()));
            println!("count on {first}: {}", count_on(first)?);
        }
        "drop" => {
            drop(spin::start(ctx, first, number)?);
            println!("count on {first}: {}", count_on(first)?);
        }
        "flood" => {
            let start = |index| count::start(ctx, &tasks[index % tasks.len()], 1);
            let calls = (0..length(number)).map(start).collect::<Result<Vec<_>>>()?;
            let highest =
                calls.into_iter().map(Call::get).try_fold(0, |highest, count| Ok::<_, Error>(count?.max(highest)));
            println!("{number} calls, the highest count is {}", highest?);
        }
        "laps" => {
            let mut longest = Duration::ZERO;
            for lap in 1..=number {
                let began = Instant::now();
                count_on(first)?;
                longest = longest.max(began.elapsed());
                println!("lap {lap} of {number}");
                std::thread::sleep(Duration::from_millis(10));
            }
            println!("longest lap: {} ms", longest.as_millis());
        }
        "left" => {
            while count_on(first).is_ok() {}
            println!("count: {}", told(count_on(first)));
            let variable: Variable<i64> = ctx.variable("memory").on(first.clone()).declare()?;
            println!("memory: {}", told(ctx.initialize([Change::assign(&variable, number)]).map(|_| number)));
        }
        "echo" => {
            for task in tasks {
                let results =
                    echo::start(ctx, task, &[Tensor::vector(&[number; 2]), Tensor::scalar(0.5_f32)])?.get()?;
                println!("echo on {task}: {results:?}");
            }
        }
        "place" => {
            for task in tasks {
                let name = place::start(ctx, task, number)?.get()?;
                println!("place on {task}: {}", String::from_utf8_lossy(&name));
            }
        }
        "add_n" => {
            for task in tasks {
                let numbers: Vec<Tensor> = (0..number).map(|value| Tensor::scalar(value as f32)).collect();
                println!("add_n on {task}: {}", add_n::start(ctx, task, &numbers)?.get()?);
            }
        }
        "remember" => {
            for task in tasks {
                println!("sum on {task}: {}", remember::start(ctx, task, number)?.get()?);
            }
        }
        other => {
            for task in tasks {
                let results = ctx.op(other).input(number).start(task)?.get()?;
                let text = match &results[..] {
                    [large] if large.bytes().len() > 1000 => format!("{} bytes", large.bytes().len()),
                    small => format!("{small:?}"),
                };
                println!("{other} on {task}: {text}");
            }
        }
    }
    Ok(())
}

fn told(result: Result<i64>) -> String {
    result.map_or_else(|error| error.to_string(), |number| number.to_string())
}

fn parse(task: &str) -> Result<Task> {
    let (job, index) = task.split_once(':').ok_or_else(|| format!("`{task}` isn't a task"))?;
    Ok(Task::new(job, index.parse().map_err(|error| format!("`{task}`: {error}"))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dchost_guest::{MockCluster, worker};

    /// What ends natively.
    #[test]
    fn the_caller_gets_what_its_ops_do() {
        let check = |args: &[&str], expected: &str| {
            let cluster = MockCluster::builder().workers(3).ops(OPS).args(args.iter().copied()).build();
            let told =
                cluster.run(train).result(&worker(0)).as_ref().map_or_else(ToString::to_string, |()| String::new());
            assert_eq!(told, expected, "{args:?}");
        };
        let all = ["worker:0", "worker:1", "worker:2"];
        for what in [
            "echo",
            "add_n:4",
            "count",
            "place",
            "slow:5",
            "big:7",
            "allocate:7",
            "state",
            "chain",
            "spread:5",
            "flood:200",
        ] {
            check(&[&["call", what][..], &all].concat(), "");
        }
        check(&["call", "error:3", "worker:1"], "op `error` on worker:1 failed: error number 3");
        let trapped = "aborted: op `panic` on worker:1 trapped: unreachable code reached (a panic or an abort); its last words: \
                       panic number 3";
        check(&["call", "panic:3", "worker:1"], trapped);
        check(&["try", "panic:3", "worker:1"], "");
        check(&[], "");
    }
}
