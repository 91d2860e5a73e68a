//! One run for the whole cluster: the in-graph worker function of TensorFlow's own tests.
//!
//! Every worker holds a variable, `x_i`, which begins at 10. The driver has each worker add its index to its own, and
//! worker:0 add up what they became: 10 + 11 + 12 = 33 of three workers. Both are ops, so that the values go from worker
//! to worker and only the sum comes to the driver.

#![deny(unsafe_code)]

use dchost_guest::{Change, Result, Task, Tensor, Variable, WorkerContext, op, ops, worker_fn};

/// Adds `number` to the variable of the worker that runs it, and returns what it became.
#[op]
fn assign_add(ctx: &WorkerContext, index: i64, number: f32) -> Result<f32> {
    let task = ctx.task().ok_or("an op runs on a task")?;
    Ok(variable(ctx, index, &task)?.add_and_read(number)?.scalar())
}

/// The sum of numbers.
#[op]
fn add_n(numbers: &[Tensor]) -> Result<f32> {
    numbers.iter().map(Tensor::item::<f32>).sum()
}

ops![assign_add, add_n];

#[worker_fn]
fn drive(ctx: &WorkerContext) -> Result<()> {
    if ctx.task().is_some() || !ctx.distributed_mode() {
        return Err("this function is the driver of all workers: run a cluster with --replication in-graph".into());
    }
    let workers = workers(ctx);
    initialize(ctx, &workers)?;
    let sum = step(ctx, &workers)?;
    println!("sum={sum}");

    let expected: f32 = (0..workers.len()).map(|index| 10.0 + index as f32).sum();
    if sum == expected { Ok(()) } else { Err(format!("sum={sum}, not {expected}").into()) }
}

/// The tasks that count as workers: the chief is one.
fn workers(ctx: &WorkerContext) -> Vec<Task> {
    let cluster = ctx.cluster_spec();
    [cluster.tasks("chief"), cluster.tasks("worker")].concat()
}

/// `x_i` on its worker.
fn variable(ctx: &WorkerContext, index: i64, task: &Task) -> Result<Variable<f32>> {
    ctx.variable(format!("x_{index}")).on(task.clone()).declare()
}

fn initialize(ctx: &WorkerContext, workers: &[Task]) -> Result<()> {
    let variables = (0..).zip(workers).map(|(index, task)| variable(ctx, index, task)).collect::<Result<Vec<_>>>()?;
    ctx.initialize(variables.iter().map(|variable| Change::assign(variable, 10.0)))
}

/// All workers add at the same time; their results stay with them until worker:0 takes them.
fn step(ctx: &WorkerContext, workers: &[Task]) -> Result<f32> {
    let start = |(index, task)| assign_add::start(ctx, task, index, index as f32);
    let calls = (0..).zip(workers).map(start).collect::<Result<Vec<_>>>()?;
    let values = calls.into_iter().map(|call| call.keep()).collect::<Result<Vec<_>>>()?;
    add_n::start(ctx, &workers[0], &values)?.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dchost_guest::{MockBuilder, MockCluster, worker};

    fn cluster(workers: u32) -> MockBuilder {
        MockCluster::builder().workers(workers).in_graph(true).ops(OPS)
    }

    #[test]
    fn three_workers_make_33() {
        let cluster = cluster(3).build();
        cluster.run(drive).unwrap();
        for (index, value) in [(0, 10.0), (1, 11.0), (2, 12.0)] {
            assert_eq!(cluster.value_on::<f32>(&worker(index), &format!("x_{index}")), Some(vec![value]));
        }
    }

    #[test]
    fn a_second_step_without_initializing_makes_36() {
        let cluster = cluster(3).build();
        let sums = cluster.run(|ctx| -> Result<[f32; 2]> {
            let workers = workers(ctx);
            initialize(ctx, &workers)?;
            Ok([step(ctx, &workers)?, step(ctx, &workers)?])
        });
        assert_eq!(sums.unwrap(), [[33.0, 36.0]]);
    }

    #[test]
    fn a_chief_is_a_worker_and_one_worker_is_enough() {
        cluster(2).chief(true).build().run(drive).unwrap();
        cluster(1).build().run(drive).unwrap();
    }

    #[test]
    fn many_drivers_are_refused() {
        for cluster in [MockCluster::builder().workers(2).ops(OPS).build(), MockCluster::local()] {
            for task in cluster.run(drive).tasks {
                let error = task.result.unwrap_err().to_string();
                assert!(error.ends_with("run a cluster with --replication in-graph"), "{error}");
            }
        }
    }

    #[test]
    fn an_op_that_fails_is_named() {
        let run = cluster(2).build().run(|ctx| step(ctx, &workers(ctx)));
        let error = run.tasks[0].result.as_ref().unwrap_err().to_string();
        let expected = "op `assign_add` on worker:0 failed: uninitialized: `x_0` without a value: initialize first";
        assert_eq!(error, expected);
    }
}
