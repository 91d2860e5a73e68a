//! Says where in the cluster it runs: one line for each value of its context.

#![deny(unsafe_code)]

use dchost_guest::{Task, WorkerContext, worker_fn};

#[worker_fn]
fn hello(ctx: &WorkerContext) {
    print!("{}", describe(ctx));
}

/// The context, one value a line.
fn describe(ctx: &WorkerContext) -> String {
    let cluster = ctx.cluster_spec();
    let jobs: Vec<String> = cluster.jobs().map(|job| format!("{job}={}", cluster.num_tasks(job))).collect();
    let lines = [
        format!("task {}", ctx.task().as_ref().map_or("none".to_owned(), Task::to_string)),
        format!("master_target {}", ctx.master_target()),
        format!("num_workers {}", ctx.num_workers()),
        format!("is_chief {}", ctx.is_chief()),
        format!("distributed_mode {}", ctx.distributed_mode()),
        format!("has_barrier {}", ctx.has_barrier()),
        format!("should_checkpoint {}", ctx.should_checkpoint()),
        format!("should_save_summary {}", ctx.should_save_summary()),
        format!("attempt {}", ctx.attempt()),
        format!("cluster {}", if jobs.is_empty() { "none".to_owned() } else { jobs.join(" ") }),
        format!("args {:?}", ctx.args()),
    ];
    lines.map(|line| format!("hello: {line}\n")).concat()
}
