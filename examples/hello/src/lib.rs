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

#[cfg(test)]
mod tests {
    use super::*;
    use dchost_guest::{MockCluster, Result};

    fn described(cluster: MockCluster) -> Vec<String> {
        cluster.run(|ctx| -> Result<String> { Ok(describe(ctx)) }).unwrap()
    }

    #[test]
    fn a_worker_prints_its_place_in_the_cluster() {
        let expected = "\
hello: task worker:1
hello: master_target grpc://worker-1.mock:2222
hello: num_workers 2
hello: is_chief false
hello: distributed_mode true
hello: has_barrier true
hello: should_checkpoint false
hello: should_save_summary false
hello: attempt 0
hello: cluster ps=1 worker=2
hello: args [\"--greet\"]
";
        assert_eq!(described(MockCluster::builder().workers(2).ps(1).args(["--greet"]).build())[1], expected);
    }

    #[test]
    fn a_local_run_is_its_own_chief() {
        let expected = "\
hello: task none
hello: master_target local
hello: num_workers 0
hello: is_chief true
hello: distributed_mode false
hello: has_barrier false
hello: should_checkpoint true
hello: should_save_summary true
hello: attempt 0
hello: cluster none
hello: args []
";
        assert_eq!(described(MockCluster::local()), [expected]);
    }
}
