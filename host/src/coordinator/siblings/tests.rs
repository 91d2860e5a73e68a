use super::*;
use crate::cluster::ClusterSpec;
use tokio::time::timeout;

/// A client of a cluster with so many workers, an evaluator's run first where wanted, and its clock.
fn client(workers: u32, evaluator: bool, end: EndRule) -> Vec<Sibling> {
    let addresses: Vec<String> = (0..workers).map(|worker| format!("w{worker}:1")).collect();
    let cluster = ClusterSpec::new().with_job(TaskType::Worker, addresses);
    let context = |task: Task| {
        Arc::new(WorkerContext {
            cluster: cluster.clone(),
            task: Some(task),
            master_target: String::new(),
            num_workers: workers,
            is_chief: task.index == 0,
            distributed_mode: task.job == TaskType::Worker,
            has_barrier: task.job == TaskType::Worker,
        })
    };
    let evaluator = evaluator.then_some(Task::new(TaskType::Evaluator, 0));
    let tasks = evaluator.into_iter().chain((0..workers).map(|index| Task::new(TaskType::Worker, index)));
    let contexts = tasks.map(context).collect();
    let grace = Duration::from_secs(60);
    let (clock, siblings) = Siblings::new(SiblingsOptions { contexts, attempt: 0, end, evaluator_grace: grace });
    tokio::spawn(clock.run(CancellationToken::new()));
    siblings
}

fn ok() -> EndReport {
    EndReport { ok: true, exit_code: 0, message: String::new(), leaving: false }
}

fn trapped() -> EndReport {
    EndReport { ok: false, exit_code: 3, message: "trapped".to_owned(), leaving: false }
}

async fn interrupted(sibling: &Sibling) -> Error {
    let mut interrupt = sibling.interrupt();
    let error = timeout(Duration::from_secs(3600), interrupt.wait_for(Option::is_some)).await.expect("in time");
    error.expect("the sender lives").clone().expect("waited until it was there")
}

fn is_interrupted(sibling: &Sibling) -> bool {
    sibling.interrupt().borrow().is_some()
}

#[tokio::test(start_paused = true)]
async fn all_pass_together_round_by_round() {
    let siblings = client(3, false, EndRule::AllDone);
    for _ in 0..50 {
        let mut calls: Vec<_> = siblings.iter().map(|sibling| sibling.barrier("", None)).collect();
        let last = calls.pop().expect("three");
        for call in &mut calls {
            assert!(timeout(Duration::from_secs(1), call).await.is_err(), "one is missing");
        }
        last.await.expect("complete");
        for call in calls {
            call.await.expect("complete");
        }
    }
}

/// Aim: rounds stay apart under threads that don't wait for each other. Method: each run counts its rounds in one shared
/// counter before the barrier; after it, all have counted, and nobody further than one round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_passes_a_round_that_others_have_not_reached() {
    const RUNS: u32 = 16;
    const ROUNDS: u32 = 200;
    let siblings = client(RUNS, false, EndRule::AllDone);
    let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let runs: Vec<_> = siblings
        .into_iter()
        .map(|sibling| {
            let count = count.clone();
            tokio::spawn(async move {
                for round in 1..=ROUNDS {
                    count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    sibling.barrier("step", None).await.expect("complete");
                    let counted = count.load(std::sync::atomic::Ordering::SeqCst);
                    assert!(counted >= round * RUNS && counted < (round + 1) * RUNS, "{counted} in round {round}");
                    sibling.barrier("counted", None).await.expect("complete");
                }
            })
        })
        .collect();
    for run in runs {
        run.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_names_who_is_missing() {
    let siblings = client(3, false, EndRule::AllDone);
    let began = Instant::now();
    let (first, second) =
        tokio::join!(siblings[0].barrier("epoch", Some(Duration::from_secs(7))), siblings[2].barrier("epoch", None));
    for error in [first.expect_err("incomplete"), second.expect_err("incomplete")] {
        assert_eq!((error.code, error.tasks), (ErrorCode::DeadlineExceeded, vec![Task::new(TaskType::Worker, 1)]));
    }
    assert_eq!(began.elapsed(), Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn who_ends_well_without_arriving_aborts_the_others_wait() {
    let siblings = client(2, false, EndRule::AllDone);
    let wait = siblings[0].barrier("", None);
    let end = async { siblings[1].ended(ok()) };
    let (waited, ()) = tokio::join!(wait, end);
    let error = waited.expect_err("nobody else comes");
    assert_eq!((error.code, error.tasks), (ErrorCode::Aborted, vec![Task::new(TaskType::Worker, 1)]));
    assert!(!is_interrupted(&siblings[0]), "it may go on");
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_ends_the_others_and_stays_the_cause() {
    let siblings = client(3, true, EndRule::AllDone);
    let [evaluator, first, second, third] = &siblings[..] else { panic!("four runs") };
    let wait = first.barrier("", None);
    let fail = async { second.ended(trapped()) };
    let (waited, ()) = tokio::join!(wait, fail);
    let error = waited.expect_err("the training has ended");
    assert_eq!(error.code, ErrorCode::PeerFailed);
    assert!(error.message.contains("worker:1 failed with exit code 3: trapped"), "{error}");
    let told = interrupted(third).await;
    assert_eq!((told.code, &told.tasks[..]), (ErrorCode::PeerFailed, &[Task::new(TaskType::Worker, 1)][..]));
    assert_eq!(interrupted(evaluator).await.code, ErrorCode::Cancelled);
    assert!(third.training_ended());
    assert_eq!((third.interrupt_exit(), evaluator.interrupt_exit()), (Some(Exit::PeerFailed), Some(Exit::Done)));
    assert_eq!(second.interrupt_exit(), None, "it ended by itself");

    let later = third.barrier("another", None).await.expect_err("nobody passes any more");
    assert_eq!(later.code, ErrorCode::PeerFailed);
    let began = Instant::now();
    third.overdue().wait_for(|overdue| *overdue).await.expect("the clock runs");
    assert_eq!(began.elapsed(), GUEST_GRACE);
    third.ended(trapped());
    assert_eq!(
        third.cause().map(|cause| cause.task),
        Some(Task::new(TaskType::Worker, 1)),
        "a consequence is no cause"
    );
}

#[tokio::test(start_paused = true)]
async fn an_evaluator_has_its_grace_after_the_last_run() {
    let siblings = client(2, true, EndRule::AllDone);
    siblings[1].ended(ok());
    assert!(!siblings[0].training_ended());
    siblings[2].ended(ok());
    assert!(siblings[0].training_ended() && !is_interrupted(&siblings[0]));
    let began = Instant::now();
    assert_eq!(interrupted(&siblings[0]).await.code, ErrorCode::Cancelled);
    assert_eq!(began.elapsed(), Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn an_evaluators_end_fails_nobody() {
    let siblings = client(2, true, EndRule::AllDone);
    siblings[0].ended(trapped());
    let pass = async { tokio::join!(siblings[1].barrier("", None), siblings[2].barrier("", None)) };
    let (first, second) = timeout(Duration::from_secs(60), pass).await.expect("complete");
    assert_eq!((first, second), (Ok(()), Ok(())));
    assert!(siblings[1].cause().is_none() && !siblings[1].training_ended());
}

#[tokio::test(start_paused = true)]
async fn the_chiefs_end_counts_where_it_is_told_to() {
    for (end, code) in [(EndRule::ChiefDone, Some(ErrorCode::Cancelled)), (EndRule::AllDone, None)] {
        let siblings = client(2, false, end);
        siblings[0].ended(ok());
        let told = siblings[1].interrupt().borrow().as_ref().map(|error| error.code);
        assert_eq!(told, code, "{end:?}");
        let chief_ended = siblings[1].chief_ended().borrow().clone().expect("nobody initializes any more");
        assert_eq!(chief_ended.code, ErrorCode::Uninitialized);
    }
}

#[tokio::test(start_paused = true)]
async fn there_is_no_barrier_for_a_driver_or_an_evaluator() {
    let siblings = client(1, true, EndRule::AllDone);
    assert_eq!(siblings[0].barrier("", None).await.expect_err("an evaluator").code, ErrorCode::FailedPrecondition);
    siblings[1].barrier("", None).await.expect("a barrier of one");
}
