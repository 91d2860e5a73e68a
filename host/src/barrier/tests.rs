use super::*;
use crate::cluster::TaskType;
use crate::ids::NAME_BYTES_MAX;
use expect_test::{Expect, expect};
use proptest::prelude::*;

fn worker(index: u32) -> Task {
    Task::new(TaskType::Worker, index)
}

fn barriers(workers: u32) -> Barriers {
    Barriers::new((0..workers).map(worker))
}

fn arrival(name: &str, generation: u64) -> BarrierArrival {
    BarrierArrival { name: name.to_owned(), generation, timeout: None }
}

fn within(name: &str, generation: u64, seconds: u64) -> BarrierArrival {
    BarrierArrival { timeout: Some(Duration::from_secs(seconds)), ..arrival(name, generation) }
}

fn check(answers: &[Answer], expected: Expect) {
    let lines: Vec<String> = answers
        .iter()
        .map(|Answer { task, name, generation, result }| {
            let result = result.as_ref().map_or_else(Error::to_string, |()| "passed".to_owned());
            format!("{task} {name}#{generation}: {result}\n")
        })
        .collect();
    expected.assert_eq(&lines.concat());
}

#[test]
fn last_arrival_passes_everybody() {
    let (mut barriers, now) = (barriers(3), Instant::now());
    check(&barriers.arrive(now, worker(1), &arrival("", 0)), expect![""]);
    check(&barriers.arrive(now, worker(0), &arrival("", 0)), expect![""]);
    check(
        &barriers.arrive(now, worker(2), &arrival("", 0)),
        expect![[r#"
        worker:0 #0: passed
        worker:1 #0: passed
        worker:2 #0: passed
    "#]],
    );
    check(&barriers.arrive(now, worker(2), &arrival("", 1)), expect![""]);
}

#[test]
fn single_participant_passes_at_once() {
    check(
        &barriers(1).arrive(Instant::now(), worker(0), &arrival("", 0)),
        expect![[r#"
        worker:0 #0: passed
    "#]],
    );
}

#[test]
fn names_are_independent() {
    let (mut barriers, now) = (barriers(2), Instant::now());
    check(&barriers.arrive(now, worker(0), &arrival("a", 0)), expect![""]);
    check(&barriers.arrive(now, worker(1), &arrival("b", 0)), expect![""]);
    check(
        &barriers.arrive(now, worker(1), &arrival("a", 0)),
        expect![[r#"
        worker:0 a#0: passed
        worker:1 a#0: passed
    "#]],
    );
}

#[test]
fn repeated_arrival_counts_once_and_gets_the_same_answer() {
    let (mut barriers, now) = (barriers(2), Instant::now());
    barriers.arrive(now, worker(0), &arrival("", 0));
    check(&barriers.arrive(now, worker(0), &arrival("", 0)), expect![""]);
    barriers.arrive(now, worker(1), &arrival("", 0));
    check(
        &barriers.arrive(now, worker(0), &arrival("", 0)),
        expect![[r#"
        worker:0 #0: passed
    "#]],
    );
    barriers.arrive(now, worker(0), &within("", 1, 2));
    barriers.expire(now + Duration::from_secs(2));
    // The one that was missing comes late, and learns the same.
    check(
        &barriers.arrive(now + Duration::from_secs(3), worker(1), &arrival("", 1)),
        expect![[r#"
        worker:1 #1: deadline-exceeded: wait_for_other_workers not complete after 2s: 1 of 2 arrived, missing worker:1
    "#]],
    );
}

#[test]
fn impossible_generation_is_refused_with_both_numbers() {
    let (mut barriers, now) = (barriers(2), Instant::now());
    for generation in 0..2 {
        barriers.arrive(now, worker(0), &arrival("", generation));
        barriers.arrive(now, worker(1), &arrival("", generation));
    }
    check(
        &barriers.arrive(now, worker(0), &arrival("", 0)),
        expect![[r#"
            worker:0 #0: failed-precondition: worker:0 arrived at generation 0 of wait_for_other_workers, but its next one is 2: each task must pass a barrier as often as the others
        "#]],
    );
    check(
        &barriers.arrive(now, worker(0), &arrival("", 7)),
        expect![[r#"
            worker:0 #7: failed-precondition: worker:0 arrived at generation 7 of wait_for_other_workers, but its next one is 2: each task must pass a barrier as often as the others
        "#]],
    );
    check(
        &barriers.arrive(now, worker(0), &arrival("", u64::MAX)),
        expect![[r#"
            worker:0 #18446744073709551615: failed-precondition: worker:0 arrived at generation 18446744073709551615 of wait_for_other_workers, but its next one is 2: each task must pass a barrier as often as the others
        "#]],
    );
    check(
        &barriers.arrive(now, worker(0), &arrival("", 1)),
        expect![[r#"
        worker:0 #1: passed
    "#]],
    );
    // The refusals have moved nothing.
    barriers.arrive(now, worker(0), &arrival("", 2));
    assert_eq!(barriers.arrive(now, worker(1), &arrival("", 2)).len(), 2);
}

#[test]
fn earliest_deadline_ends_it_for_all_and_names_who_is_missing() {
    let (mut barriers, now) = (barriers(4), Instant::now());
    barriers.arrive(now, worker(0), &within("step", 0, 9));
    barriers.arrive(now, worker(2), &within("step", 0, 2));
    assert_eq!(barriers.next_deadline(), Some(now + Duration::from_secs(2)));
    // Arriving again with a longer timeout doesn't put it off.
    barriers.arrive(now, worker(2), &within("step", 0, 60));
    check(&barriers.expire(now + Duration::from_millis(1999)), expect![""]);
    check(
        &barriers.expire(now + Duration::from_secs(2)),
        expect![[r#"
        worker:0 step#0: deadline-exceeded: barrier `step` not complete after 2s: 2 of 4 arrived, missing worker:1, worker:3
        worker:2 step#0: deadline-exceeded: barrier `step` not complete after 2s: 2 of 4 arrived, missing worker:1, worker:3
    "#]],
    );
    assert_eq!(barriers.next_deadline(), None);
}

#[test]
fn late_task_is_told_of_each_generation_that_ended_without_it() {
    let (mut barriers, now) = (barriers(2), Instant::now());
    let rounds = 20;
    for generation in 0..rounds {
        assert_eq!(barriers.arrive(now, worker(0), &within("", generation, 0)).len(), 1);
    }
    barriers.arrive(now, worker(0), &arrival("", rounds));
    let codes: Vec<ErrorCode> = (0..rounds)
        .map(|generation| {
            let answers = barriers.arrive(now, worker(1), &arrival("", generation));
            let [Answer { result: Err(error), .. }] = &answers[..] else { panic!("{answers:?}") };
            assert!(ends_generation(&Err(error.clone())), "the caller counts on");
            error.code
        })
        .collect();
    assert!(codes[..4].iter().all(|code| *code == ErrorCode::Aborted), "results are bounded: {codes:?}");
    assert!(codes[4..].iter().all(|code| *code == ErrorCode::DeadlineExceeded), "{codes:?}");
    assert_eq!(barriers.arrive(now, worker(1), &arrival("", rounds)).len(), 2);
}

#[test]
fn timeout_of_zero_passes_only_where_all_are_there() {
    let (mut barriers, now) = (barriers(2), Instant::now());
    assert!(matches!(&barriers.arrive(now, worker(0), &within("", 0, 0))[..], [Answer { result: Err(_), .. }]));
    assert_eq!(barriers.arrive(now, worker(1), &arrival("", 0)).len(), 1);
    barriers.arrive(now, worker(0), &arrival("", 1));
    assert_eq!(barriers.arrive(now, worker(1), &within("", 1, 0)).len(), 2);
}

#[test]
fn leaving_aborts_what_the_task_has_not_arrived_at() {
    let (mut barriers, now) = (barriers(3), Instant::now());
    barriers.arrive(now, worker(0), &arrival("a", 0));
    barriers.arrive(now, worker(0), &arrival("b", 0));
    barriers.arrive(now, worker(1), &arrival("b", 0));
    check(
        &barriers.left(worker(1), "its run has ended"),
        expect![[r#"
        worker:0 a#0: aborted: worker:1 left without arriving: its run has ended
    "#]],
    );
    // It had arrived at `b`, which can still pass; nothing later can.
    assert_eq!(barriers.arrive(now, worker(2), &arrival("b", 0)).len(), 3);
    check(
        &barriers.arrive(now, worker(0), &arrival("b", 1)),
        expect![[r#"
        worker:0 b#1: aborted: worker:1 left without arriving: its run has ended
    "#]],
    );
}

#[test]
fn failure_ends_open_generations_whether_the_task_arrived_or_not() {
    let (mut barriers, now) = (barriers(3), Instant::now());
    barriers.arrive(now, worker(0), &arrival("a", 0));
    barriers.arrive(now, worker(1), &arrival("a", 0));
    let error = Error::new(ErrorCode::PeerFailed, "worker:1 is gone").with_tasks([worker(1)]);
    check(
        &barriers.failed(worker(1), error),
        expect![[r#"
        worker:0 a#0: peer-failed: worker:1 is gone
        worker:1 a#0: peer-failed: worker:1 is gone
    "#]],
    );
    check(
        &barriers.arrive(now, worker(2), &arrival("new", 0)),
        expect![[r#"
        worker:2 new#0: peer-failed: worker:1 is gone
    "#]],
    );
}

#[test]
fn cancel_ends_everything_with_the_first_error() {
    let (mut barriers, now) = (barriers(2), Instant::now());
    barriers.arrive(now, worker(0), &arrival("a", 0));
    assert_eq!(barriers.cancel(Error::new(ErrorCode::Cancelled, "first")).len(), 1);
    barriers.cancel(Error::new(ErrorCode::Cancelled, "second"));
    check(
        &barriers.arrive(now, worker(1), &arrival("b", 0)),
        expect![[r#"
        worker:1 b#0: cancelled: first
    "#]],
    );
}

#[test]
fn stranger_is_refused() {
    let ps = Task::new(TaskType::Ps, 0);
    let mut barriers = barriers(2);
    check(
        &barriers.arrive(Instant::now(), ps, &arrival("", 0)),
        expect![[r#"
        ps:0 #0: failed-precondition: ps:0 does not take part in wait_for_other_workers: its participants are worker:0, worker:1
    "#]],
    );
    assert!(
        barriers.left(ps, "bye").is_empty() && barriers.failed(ps, Error::new(ErrorCode::PeerFailed, "x")).is_empty()
    );
    // Neither made the barrier impossible.
    barriers.arrive(Instant::now(), worker(0), &arrival("", 0));
    assert_eq!(barriers.arrive(Instant::now(), worker(1), &arrival("", 0)).len(), 2);
}

#[test]
fn names_are_bounded_in_number_and_length() {
    let (mut barriers, now) = (barriers(2), Instant::now());
    for index in 0..NAMES_MAX {
        assert!(barriers.arrive(now, worker(0), &arrival(&index.to_string(), 0)).is_empty());
    }
    let refused = barriers.arrive(now, worker(0), &arrival("one more", 0));
    assert!(
        matches!(&refused[..], [Answer { result: Err(Error { code: ErrorCode::ResourceExhausted, .. }), .. }]),
        "{refused:?}"
    );
    let long = barriers.arrive(now, worker(0), &arrival(&"x".repeat(NAME_BYTES_MAX + 1), 0));
    assert!(matches!(&long[..], [Answer { result: Err(Error { code: ErrorCode::InvalidArgument, .. }), .. }]));
    let control = barriers.arrive(now, worker(0), &arrival("a\u{1b}[2J", 0));
    let [Answer { result: Err(error), .. }] = &control[..] else { panic!("{control:?}") };
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    assert!(!error.message.contains('\u{1b}'), "{error}");
    // Names that are known go on.
    assert_eq!(barriers.arrive(now, worker(1), &arrival("7", 0)).len(), 2);
}

#[test]
fn status_shows_who_arrived_and_who_is_missing() {
    let (mut barriers, now) = (barriers(3), Instant::now());
    assert!(barriers.status().is_empty());
    barriers.arrive(now, worker(2), &arrival("step", 0));
    barriers.arrive(now + Duration::from_secs(1), worker(0), &arrival("step", 0));
    let expected = BarrierStatus {
        name: "step".to_owned(),
        generation: 0,
        arrived: vec![worker(0), worker(2)],
        missing: vec![worker(1)],
        since: now,
    };
    assert_eq!(barriers.status(), [expected]);
    barriers.arrive(now, worker(1), &arrival("step", 0));
    assert!(barriers.status().is_empty());
}

/// What a random schedule may do.
#[derive(Clone, Debug)]
enum Step {
    /// The task arrives at its next generation, or repeats an arrival that has no answer.
    Arrive {
        task: u32,
        name: usize,
        timeout: Option<u64>,
    },
    /// The task repeats the arrival that was answered last.
    Repeat {
        task: u32,
        name: usize,
    },
    Pass {
        seconds: u64,
    },
    Leave {
        task: u32,
    },
    Fail {
        task: u32,
    },
}

const NAMES: [&str; 2] = ["", "step"];

fn step(tasks: u32) -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..tasks, 0..NAMES.len(), prop::option::weighted(0.2, 0..20u64))
            .prop_map(|(task, name, timeout)| Step::Arrive { task, name, timeout }),
        4 => (0..tasks, 0..NAMES.len()).prop_map(|(task, name)| Step::Repeat { task, name }),
        2 => (0..8u64).prop_map(|seconds| Step::Pass { seconds }),
        1 => (0..tasks).prop_map(|task| Step::Leave { task }),
        1 => (0..tasks).prop_map(|task| Step::Fail { task }),
    ]
}

/// Tasks that count generations as a member does, under a random schedule; checks after each step what has to hold.
#[derive(Default)]
struct Model {
    next: BTreeMap<(u32, usize), u64>,
    waiting: BTreeSet<(u32, usize)>,
    /// How each generation ended; every task that is told is told the same.
    outcomes: BTreeMap<(usize, u64), Result<()>>,
    arrived: BTreeMap<(usize, u64), BTreeSet<u32>>,
    gone: BTreeSet<u32>,
}

/// Whether more generations than a barrier remembers ended without the task.
fn forgotten(result: &Result<()>) -> bool {
    matches!(result, Err(error) if error.message.contains("ended long ago"))
}

impl Model {
    fn take(&mut self, tasks: u32, answers: Vec<Answer>) {
        for Answer { task, name, generation, result } in answers {
            let name = NAMES.iter().position(|known| **known == name).expect("one of the names");
            let task = task.index;
            if !forgotten(&result) {
                let before = self.outcomes.entry((name, generation)).or_insert_with(|| result.clone());
                assert_eq!(*before, result, "told differently");
            }
            if result.is_ok() {
                assert_eq!(self.arrived[&(name, generation)].len() as u32, tasks, "passed before all arrived");
                for other in 0..tasks {
                    // Strict rounds: all others are in this generation or through it.
                    assert!(self.next.get(&(other, name)).is_some_and(|next| *next >= generation));
                }
            }
            let next = self.next.entry((task, name)).or_default();
            if *next == generation {
                assert!(self.waiting.remove(&(task, name)), "answered without waiting");
                *next += 1;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn rounds_are_strict_and_every_waiter_is_answered(
        (tasks, steps) in (1..6u32).prop_flat_map(|tasks| (Just(tasks), prop::collection::vec(step(tasks), 1..200)))
    ) {
        let start = Instant::now();
        let (mut now, mut barriers, mut model) = (start, barriers(tasks), Model::default());
        for step in steps {
            let answers = match step {
                Step::Arrive { task, name, timeout } => {
                    if model.gone.contains(&task) {
                        continue;
                    }
                    let generation = *model.next.entry((task, name)).or_default();
                    model.waiting.insert((task, name));
                    model.arrived.entry((name, generation)).or_default().insert(task);
                    let timeout = timeout.map(Duration::from_secs);
                    let arrival = BarrierArrival { name: NAMES[name].to_owned(), generation, timeout };
                    barriers.arrive(now, worker(task), &arrival)
                }
                Step::Repeat { task, name } => {
                    let next = model.next.get(&(task, name)).copied().unwrap_or_default();
                    // A stream keeps its order, so nothing older than what waits is ever repeated.
                    if next == 0 || model.gone.contains(&task) || model.waiting.contains(&(task, name)) {
                        continue;
                    }
                    let answers = barriers.arrive(now, worker(task), &arrival(NAMES[name], next - 1));
                    prop_assert_eq!(answers.len(), 1, "a repetition is answered at once, to its caller alone");
                    let result = &answers[0].result;
                    prop_assert!(forgotten(result) || *result == model.outcomes[&(name, next - 1)]);
                    continue;
                }
                Step::Pass { seconds } => {
                    now += Duration::from_secs(seconds);
                    barriers.expire(now)
                }
                Step::Leave { task } => {
                    model.gone.insert(task);
                    barriers.left(worker(task), "done")
                }
                Step::Fail { task } => {
                    model.gone.insert(task);
                    barriers.failed(worker(task), Error::new(ErrorCode::PeerFailed, format!("{}", worker(task))))
                }
            };
            model.take(tasks, answers);
            // Nobody is left waiting for somebody that will never come, or past a deadline.
            for status in barriers.status() {
                let lost = status.missing.iter().find(|task| model.gone.contains(&task.index));
                prop_assert!(lost.is_none(), "waits for {:?}, which is gone", lost);
            }
            prop_assert!(barriers.next_deadline().is_none_or(|deadline| deadline > now));
        }
        let answers = barriers.cancel(Error::new(ErrorCode::Cancelled, "end"));
        model.take(tasks, answers);
        prop_assert!(model.waiting.is_empty(), "never answered: {:?}", model.waiting);
    }
}
