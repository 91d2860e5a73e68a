use super::*;
use crate::tensor::{DType, TensorType};

const RUN: RunId = RunId(1);

async fn fresh(ledger: &Ledger, sequence: u64) -> Ticket {
    match ledger.begin(RUN, sequence).await.unwrap() {
        Begin::Fresh(ticket) => ticket,
        Begin::Replay(answer) => panic!("write {sequence} was answered before: {answer:?}"),
    }
}

async fn replay(ledger: &Ledger, sequence: u64) -> Result<Remembered> {
    match ledger.begin(RUN, sequence).await.unwrap() {
        Begin::Replay(answer) => answer,
        Begin::Fresh(_) => panic!("write {sequence} would be applied again"),
    }
}

fn answer(version: u64) -> Result<Remembered> {
    Ok(Remembered { versions: vec![version], values: None })
}

#[tokio::test]
async fn retry_gets_the_first_answer() {
    let ledger = Ledger::default();
    fresh(&ledger, 1).await.apply().unwrap().finish(answer(7));
    assert_eq!(replay(&ledger, 1).await.unwrap().versions, [7]);
    let failed = Error::new(ErrorCode::Aborted, "stale");
    fresh(&ledger, 2).await.apply().unwrap().finish(Err(failed.clone()));
    assert_eq!(replay(&ledger, 2).await.unwrap_err(), failed, "a failure is an answer too");
    assert!(matches!(ledger.begin(RunId(2), 1).await, Ok(Begin::Fresh(_))), "runs count for themselves");
    assert_eq!(ledger.begin(RUN, 0).await.unwrap_err().code, ErrorCode::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn duplicate_waits_for_the_one_that_is_applied() {
    let ledger = Arc::new(Ledger::default());
    let applying = fresh(&ledger, 1).await.apply().unwrap();
    let duplicate = tokio::spawn({
        let ledger = ledger.clone();
        async move { replay(&ledger, 1).await }
    });
    tokio::time::sleep(std::time::Duration::from_secs(9)).await;
    assert!(!duplicate.is_finished());
    applying.finish(answer(3));
    assert_eq!(duplicate.await.unwrap().unwrap().versions, [3]);
}

#[tokio::test]
async fn retry_takes_over_from_a_call_that_still_receives() {
    let ledger = Ledger::default();
    let mut first = fresh(&ledger, 1).await;
    let second = fresh(&ledger, 1).await;
    first.lost().await;
    assert_eq!(first.apply().unwrap_err().code, ErrorCode::Aborted);
    second.apply().unwrap().finish(answer(2));
    assert_eq!(replay(&ledger, 1).await.unwrap().versions, [2]);
}

#[tokio::test]
async fn dropped_write_never_came() {
    let ledger = Ledger::default();
    drop(fresh(&ledger, 1).await);
    drop(fresh(&ledger, 1).await.apply().unwrap());
    fresh(&ledger, 1).await.apply().unwrap().finish(answer(1));
}

#[tokio::test]
async fn memory_is_bounded_and_what_is_forgotten_is_refused() {
    let ledger = Ledger::default();
    let slow = fresh(&ledger, 1).await;
    // Write 3 is late: it comes after many that were begun later.
    for sequence in (2..=ANSWERS_MAX as u64 + 50).filter(|sequence| *sequence != 3) {
        fresh(&ledger, sequence).await.apply().unwrap().finish(answer(sequence));
    }
    assert_eq!(ledger.begin(RUN, 2).await.unwrap_err().code, ErrorCode::Aborted);
    assert_eq!(replay(&ledger, ANSWERS_MAX as u64).await.unwrap().versions, [ANSWERS_MAX as u64]);
    let late = fresh(&ledger, 3).await;
    slow.apply().unwrap().finish(answer(99));
    drop(late);
    fresh(&ledger, 3).await.apply().unwrap().finish(answer(5));
    assert!(lock(&ledger.0).runs[&RUN].entries.len() <= ANSWERS_MAX + 1);

    let large = || Ok(Remembered { versions: vec![0; ANSWER_BYTES_MAX / 16], values: None });
    for sequence in 2000..2010 {
        fresh(&ledger, sequence).await.apply().unwrap().finish(large());
    }
    assert!(lock(&ledger.0).runs[&RUN].answer_bytes <= ANSWER_BYTES_MAX);
    assert!(replay(&ledger, 2009).await.is_ok(), "the last answer is always there");
    ledger.forget(RUN);
    assert!(lock(&ledger.0).runs.is_empty());
    assert_eq!(lock(&ledger.0).answer_bytes, 0);
}

/// Aim: many runs that each keep what one may don't fill the server, and what is forgotten is never applied again.
/// Method: more answers than all may have, the same number for each run; then one run of small ones.
#[tokio::test]
async fn answers_are_bounded_over_all_runs() {
    const LARGE: usize = 4 << 20;
    let ledger = Ledger::default();
    let begin = |run: u64, sequence| ledger.begin(RunId(run), sequence);
    let write = async |run, sequence, versions: usize| {
        let Begin::Fresh(ticket) = begin(run, sequence).await.unwrap() else {
            panic!("{run}:{sequence} is no new write")
        };
        ticket.apply().unwrap().finish(Ok(Remembered { versions: vec![0; versions], values: None }));
    };
    write(1, 1, 1).await;
    let runs = 2..=2 * (ALL_ANSWER_BYTES_MAX / LARGE) as u64;
    for run in runs.clone() {
        for sequence in 1..=2 {
            write(run, sequence, LARGE / 16).await;
            let all = lock(&ledger.0);
            assert!(all.answer_bytes <= ALL_ANSWER_BYTES_MAX);
            assert_eq!(all.answer_bytes, all.runs.values().map(|run| run.answer_bytes).sum::<usize>());
        }
    }
    let mut kept = 0;
    for (run, sequence) in runs.clone().flat_map(|run| [(run, 1), (run, 2)]) {
        match begin(run, sequence).await {
            Ok(Begin::Replay(_)) => kept += 1,
            Err(error) => assert_eq!(error.code, ErrorCode::Aborted),
            Ok(Begin::Fresh(_)) => panic!("write {sequence} of run {run} would be applied again"),
        }
    }
    assert!(kept > 100, "{kept} answers are remembered");
    let newest = *runs.end();
    assert!(matches!(begin(newest, 2).await, Ok(Begin::Replay(_))), "the last answer is there");
    assert!(matches!(begin(1, 1).await, Ok(Begin::Replay(_))), "a run that holds little loses nothing");
    for run in 1..=newest {
        ledger.forget(RunId(run));
    }
    assert_eq!(lock(&ledger.0).answer_bytes, 0);
}

#[tokio::test]
async fn runs_are_bounded() {
    let ledger = Ledger::default();
    for run in 1..=RUNS_MAX as u64 + 10 {
        ledger.begin(RunId(run), 1).await.unwrap();
    }
    assert_eq!(lock(&ledger.0).runs.len(), RUNS_MAX);
}

#[test]
fn only_small_values_are_kept() {
    let snapshot = |bytes: usize| Snapshot {
        ty: TensorType::new(DType::U8, [bytes as u64]),
        blocks: Blocks::copy_of(&vec![1; bytes]),
        version: 1,
    };
    let (small, large) = (snapshot(100), snapshot(VALUE_BYTES_MAX));
    let kept = |snapshots: &[Snapshot], want| Remembered::of(snapshots, want).values.is_some();
    assert!(kept(std::slice::from_ref(&small), true));
    assert!(!kept(std::slice::from_ref(&small), false));
    assert!(!kept(&[small, large], true));
}

/// Aim: no write is applied twice because others came in great number.
/// Method: one run with a write in flight, then more runs than are remembered, idle ones first, then all in flight.
#[tokio::test]
async fn runs_with_writes_in_flight_are_never_forgotten() {
    let ledger = Ledger::default();
    let applying = fresh(&ledger, 1).await.apply().unwrap();
    for run in 2..=RUNS_MAX as u64 + 10 {
        let Begin::Fresh(ticket) = ledger.begin(RunId(run), 1).await.unwrap() else { panic!("run {run} is new") };
        ticket.apply().unwrap().finish(answer(run));
    }
    applying.finish(answer(7));
    assert_eq!(replay(&ledger, 1).await.unwrap().versions, [7]);
    assert!(matches!(ledger.begin(RunId(2), 1).await, Ok(Begin::Fresh(_))), "the oldest idle one was forgotten");

    let ledger = Ledger::default();
    let mut held = Vec::new();
    for run in 1..=RUNS_MAX as u64 {
        held.push(ledger.begin(RunId(run), 1).await.unwrap());
    }
    assert_eq!(ledger.begin(RunId(u64::MAX), 1).await.unwrap_err().code, ErrorCode::ResourceExhausted);
    held.pop();
    assert!(matches!(ledger.begin(RunId(u64::MAX), 1).await, Ok(Begin::Fresh(_))), "one was given up");
}

#[tokio::test]
async fn failed_answers_count_as_well() {
    let ledger = Ledger::default();
    let failed = Error::new(ErrorCode::Uninitialized, "x".repeat(1 << 20)).with_names(["y".repeat(1 << 20)]);
    for sequence in 1..=20 {
        fresh(&ledger, sequence).await.apply().unwrap().finish(Err(failed.clone()));
    }
    let runs = lock(&ledger.0);
    let run = &runs.runs[&RUN];
    assert!(run.answer_bytes <= ANSWER_BYTES_MAX && run.answers == 3, "{} in {} bytes", run.answers, run.answer_bytes);
}
