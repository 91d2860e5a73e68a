//! The whole example on clusters of threads.

use super::burn_digits;
use dchost_guest::{ErrorCode, MockBuilder, MockCluster, evaluator, worker};

/// Arguments for a native run, and what a test adds.
fn args(more: &str) -> Vec<String> {
    let data = concat!("--data ", env!("CARGO_MANIFEST_DIR"), "/../data/digits.csv");
    data.split(' ').chain(more.split_whitespace()).map(str::to_owned).collect()
}

fn cluster(workers: u32) -> MockBuilder {
    MockCluster::builder().workers(workers).ps(2)
}

#[test]
fn one_worker_and_four_learn_to_read_digits() {
    for workers in [1, 4] {
        let cluster = cluster(workers).args(args("--epochs 10")).build();
        let accuracy = cluster.run(burn_digits).result(&worker(0)).as_ref().unwrap().expect("the chief reports");
        assert!(accuracy >= 0.95, "{workers} workers: {accuracy}");
    }
}

#[test]
fn parameters_are_variables_named_by_their_path_in_the_module() {
    let cluster = cluster(2).args(args("--epochs 1 --hidden 3")).build();
    cluster.run(burn_digits).unwrap();
    let sizes = ["hidden/weight", "hidden/bias", "output/weight", "output/bias"]
        .map(|name| cluster.value::<f32>(name).expect("is a variable").len());
    assert_eq!(sizes, [64 * 3, 3, 3 * 10, 10]);
}

#[test]
fn workers_without_a_barrier_count_themselves() {
    let cluster = cluster(3).barrier(false).args(args("--epochs 4")).build();
    assert!(cluster.run(burn_digits).result(&worker(0)).as_ref().unwrap().unwrap() > 0.9);
    assert_eq!(cluster.value::<i64>("finished"), Some(vec![3]));
}

#[test]
fn a_local_run_trains_alone() {
    let cluster = MockCluster::builder().args(args("--epochs 4")).local();
    let accuracies = cluster.run(burn_digits).unwrap();
    assert!(matches!(accuracies[..], [Some(accuracy)] if accuracy > 0.9), "{accuracies:?}");
}

#[test]
fn bad_arguments_and_tasks_that_do_not_train_end_the_run_with_a_hint() {
    let run = MockCluster::builder().args(args("--epochs none")).local().run(burn_digits);
    let error = run.tasks[0].result.as_ref().unwrap_err().error();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    assert!(error.message.contains("`--epochs none` is not a number from 1 to 10000"), "{error}");

    let run = cluster(1).evaluator(true).args(args("--epochs 1")).build().run(burn_digits);
    let error = run.failure(&evaluator()).error();
    assert_eq!(error.message, "`evaluator:0` doesn't train: give burn-digits to chief and workers only");
}
