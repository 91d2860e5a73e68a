//! The whole example on clusters of threads.

use super::digits;
use dchost_guest::{ErrorCode, MockBuilder, MockCluster, Task, chief, evaluator, worker};

/// Arguments for a native run, and what a test adds.
fn args(more: &str) -> Vec<String> {
    let data = concat!("--data ", env!("CARGO_MANIFEST_DIR"), "/../data/digits.csv");
    data.split(' ').chain(more.split_whitespace()).map(str::to_owned).collect()
}

fn cluster(workers: u32) -> MockBuilder {
    MockCluster::builder().workers(workers).ps(2)
}

/// What the task returned: the accuracy if it reported one.
fn accuracy_of(cluster: &MockCluster, task: &Task) -> Option<f64> {
    *cluster.run(digits).result(task).as_ref().unwrap()
}

/// The example's promise, on 1, 2 and 4 workers with their real races: over five seeds the median of the held-out
/// accuracies is at least 96 %, and each is at least 95 %.
#[test]
fn every_number_of_workers_learns_to_read_digits() {
    for workers in [1, 2, 4] {
        let mut accuracies: Vec<f64> = (1..=5)
            .map(|seed| {
                let cluster = cluster(workers).args(args(&format!("--seed {seed}"))).build();
                accuracy_of(&cluster, &worker(0)).expect("without an evaluator the chief reports")
            })
            .collect();
        accuracies.sort_by(f64::total_cmp);
        assert!(accuracies[0] >= 0.95 && accuracies[2] >= 0.96, "{workers} workers: {accuracies:?}");
    }
}

#[test]
fn one_worker_gives_the_same_parameters_every_time() {
    let run = |seed: u32| {
        let cluster = cluster(1).args(args(&format!("--epochs 2 --seed {seed}"))).build();
        cluster.run(digits).unwrap();
        let bits = |name| cluster.value::<f32>(name).unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        (bits("hidden/weights"), bits("output/biases"))
    };
    assert!(run(3) == run(3), "two runs of the same seed differ");
    assert!(run(3) != run(4), "two seeds give the same parameters");
}

#[test]
fn a_local_run_trains_alone() {
    let cluster = MockCluster::builder().args(args("--epochs 4")).local();
    let accuracies = cluster.run(digits).unwrap();
    assert!(matches!(accuracies[..], [Some(accuracy)] if accuracy > 0.9), "{accuracies:?}");
}

/// Gradients lack the last steps of their own worker, and learn as well.
#[test]
fn workers_that_overlap_learn_to_read_digits() {
    for (workers, overlap) in [(1, 1), (1, 4), (3, 2)] {
        let cluster = cluster(workers).args(args(&format!("--overlap {overlap}"))).build();
        let accuracy = accuracy_of(&cluster, &worker(0)).unwrap();
        assert!(accuracy >= 0.95, "{workers} workers, {overlap} pushes under way: {accuracy}");
        // 20 epochs over 1437 images, in batches of 16: 90 of all, or 30 of each third.
        assert_eq!(cluster.value::<i64>("step"), Some(vec![20 * 90]));
    }
}

/// All workers' gradients are in each step: three workers make a third of the steps, each of three times as many images.
#[test]
fn workers_in_step_learn_to_read_digits() {
    for (workers, more, steps) in [(1, "", 1800), (3, "", 600), (4, "--backups 1", 460)] {
        let cluster = cluster(workers).args(args(&format!("--sync --learning-rate 0.2 {more}"))).build();
        let accuracy = accuracy_of(&cluster, &worker(0)).unwrap();
        assert!(accuracy >= 0.95, "{workers} workers: {accuracy}");
        assert_eq!(cluster.value::<i64>("step"), Some(vec![0]), "the versions count them");
        assert_eq!(cluster.scalars().last().unwrap().step, steps);
    }
}

#[test]
fn backups_must_leave_a_worker() {
    let run = cluster(2).args(args("--sync --backups 2")).build().run(digits);
    let error = run.tasks[0].result.as_ref().unwrap_err().error();
    assert!(error.message.contains("leaves none of 2 workers"), "{error}");
}

#[test]
fn an_evaluator_reports_the_final_accuracy_and_the_chief_does_not() {
    let cluster = cluster(2).chief(true).evaluator(true).args(args("--epochs 4")).build();
    let run = cluster.run(digits);
    assert_eq!(*run.result(&chief()).as_ref().unwrap(), None);
    let accuracy = run.result(&evaluator()).as_ref().unwrap().expect("the evaluator reports");
    assert!(accuracy > 0.9, "{accuracy}");

    // 4 epochs over 1437 images in parts of 479 and batches of 16.
    let steps = 3 * 4 * 30;
    assert_eq!(cluster.value::<i64>("step"), Some(vec![steps]));
    let scalars = cluster.scalars();
    let last = scalars.iter().rfind(|scalar| scalar.tag == "accuracy").unwrap();
    assert_eq!((last.step, last.value), (steps as u64, accuracy));
    assert_eq!(scalars.iter().filter(|scalar| scalar.tag == "loss").count(), 4, "the chief keeps one loss an epoch");
}

#[test]
fn workers_without_a_barrier_count_themselves() {
    let cluster = cluster(3).barrier(false).args(args("--epochs 4")).build();
    assert!(accuracy_of(&cluster, &worker(0)).unwrap() > 0.9);
    assert_eq!(cluster.value::<i64>("finished"), Some(vec![3]));
}

#[test]
fn bad_arguments_and_missing_data_end_the_run_with_a_hint() {
    let check = |args: Vec<String>, expected: &str| {
        let run = MockCluster::builder().args(args).local().run(digits);
        let error = run.tasks[0].result.as_ref().unwrap_err().error();
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.message.contains(expected), "{error}");
    };
    check(args("--epochs none"), "`--epochs none` is not a number from 1 to 10000");
    check(vec!["--data".to_owned(), "no/such.csv".to_owned()], "--dir");
}
