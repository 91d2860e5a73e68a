//! Synchronous replicas: the rules of steps, against a model, and what they take of memory.

use super::*;
use crate::error::ErrorCode;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

const COUNT: Optimizer = Optimizer::Sgd { learning_rate: 1.0 };
const ADAM: Optimizer =
    Optimizer::Adam(Adam { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 });

type Answer = Result<Vec<(Vec<f32>, u64)>>;

/// A call that has handed its gradients over.
struct Waits(Pin<Box<dyn Future<Output = Answer> + Send>>);

impl Waits {
    /// The answer, if it is there.
    fn look(&mut self) -> Option<Answer> {
        match self.0.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    fn answer(mut self) -> Answer {
        self.look().expect("it is answered")
    }

    fn versions(self) -> Result<Vec<u64>> {
        self.answer().map(|values| values.into_iter().map(|(_, version)| version).collect())
    }
}

fn options(optimizer: Optimizer, scale: f64) -> ApplyOptions {
    ApplyOptions { optimizer, scale, sync: None, write: WriteOptions::WITH_VALUES }
}

/// Hands over gradients, by the call that waits for others or by the one that doesn't.
fn join(
    container: &Container,
    gradients: &[(&str, &[f32])],
    (step, replicas): (u64, u32),
    options: ApplyOptions,
    blocking: bool,
) -> Result<Waits> {
    let gradient = |(name, values): &(&str, &[f32])| {
        (variable(name, values.len() as u64), Payload::Owned(Blocks::copy_of(&f32s(values))))
    };
    let gradients = gradients.iter().map(gradient).collect();
    let sync = SyncStep { step, replicas };
    let joined = if blocking {
        container.join(gradients, sync, &options)?
    } else {
        match container.try_join(gradients, sync, &options)? {
            TryJoin::Joined(joined) => joined,
            TryJoin::Busy(_) => panic!("nobody else is here"),
        }
    };
    Ok(Waits(Box::pin(async move {
        let value = |snapshot: Snapshot| {
            let bytes = snapshot.blocks.contiguous();
            (bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(), snapshot.version)
        };
        Ok(joined.applied().await?.into_iter().map(value).collect())
    })))
}

fn push(container: &Container, name: &str, step: (u64, u32), gradient: &[f32]) -> Result<Waits> {
    join(container, &[(name, gradient)], step, options(COUNT, 1.0), true)
}

fn refused(result: Result<Waits>, code: ErrorCode, texts: &[&str]) {
    let error = match result.and_then(Waits::answer) {
        Ok(answer) => panic!("taken: {answer:?}"),
        Err(error) => error,
    };
    assert_eq!(error.code, code, "{error}");
    assert!(texts.iter().all(|text| error.message.contains(text)), "{error} lacks one of {texts:?}");
}

fn counts(store: &Store, name: &str) -> (u64, u64) {
    let status = store.statuses().into_iter().find(|status| status.name == name).unwrap();
    (status.stale_gradients, status.dropped_gradients)
}

#[test]
fn the_mean_of_all_replicas_is_applied_once_and_answers_all() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "w", &[10.0, 20.0]).unwrap();
    for (step, scale) in [(1, 1.0), (2, 0.5), (9, 1.0)] {
        let before = read(&container, "w", 2);
        let mut waits: Vec<_> = [[3.0, 0.0], [0.0, 6.0]]
            .iter()
            .map(|gradient| join(&container, &[("w", gradient)], (step, 3), options(COUNT, scale), step == 2).unwrap())
            .collect();
        assert!(waits.iter_mut().all(|waits| waits.look().is_none()));
        assert_eq!(read(&container, "w", 2), before, "nothing is applied yet");
        let last = join(&container, &[("w", &[3.0, 3.0])], (step, 3), options(COUNT, scale), false).unwrap().answer();
        let after = (vec![before.0[0] - scale as f32 * 2.0, before.0[1] - scale as f32 * 3.0], before.1 + 1);
        assert_eq!(last, Ok(vec![after.clone()]));
        assert!(waits.into_iter().all(|waits| waits.answer() == last));
        assert_eq!(read(&container, "w", 2), after);
    }
    assert_eq!(counts(&store, "w"), (0, 0));
}

#[test]
fn a_gradient_that_is_not_finite_is_applied_as_told() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "w", &[1.0, 1.0]).unwrap();
    let first = push(&container, "w", (1, 2), &[f32::NAN, 2.0]).unwrap();
    push(&container, "w", (1, 2), &[0.0, f32::INFINITY]).unwrap();
    let (value, version) = first.answer().unwrap().remove(0);
    assert!(version == 2 && value[0].is_nan() && value[1] == f32::NEG_INFINITY, "{value:?}");
}

#[test]
fn one_replica_is_a_plain_step() {
    for optimizer in [COUNT, ADAM] {
        let store = Store::default();
        let container = open(&store);
        let gradient = [0.3, -0.7];
        for name in ["plain", "sync"] {
            initialize(&container, name, &[1.0, 2.0]).unwrap();
        }
        for step in 1..=3 {
            let data = f32s(&gradient);
            container.apply(vec![(variable("plain", 2), Payload::Borrowed(&data))], &options(optimizer, 0.5)).unwrap();
            let answer = join(&container, &[("sync", &gradient)], (step, 1), options(optimizer, 0.5), true).unwrap();
            assert_eq!(answer.answer(), Ok(vec![read(&container, "plain", 2)]), "{optimizer:?}");
        }
    }
}

#[test]
fn steps_that_are_over_are_told_and_late_gradients_dropped() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "w", &[0.0]).unwrap();
    let mut slow = push(&container, "w", (3, 2), &[8.0]).unwrap();
    for _ in 0..2 {
        push(&container, "w", (5, 2), &[1.0]).unwrap();
    }
    // What was collected for a lower step ends with it.
    let error = slow.look().unwrap().unwrap_err();
    assert_eq!((error.code, &*error.names[0]), (ErrorCode::Aborted, "w"));
    assert!(error.message.contains("is of step `3`, but step `5` is applied"), "{error}");
    assert_eq!(counts(&store, "w"), (1, 0));
    refused(
        push(&container, "w", (4, 2), &[8.0]),
        ErrorCode::Aborted,
        &["`w`", "`4`", "`5`", "read the variable again"],
    );
    // Whatever it says of replicas and methods: it makes no difference any more.
    assert_eq!(join(&container, &[("w", &[8.0])], (5, 7), options(ADAM, 1.0), false).unwrap().versions(), Ok(vec![2]));
    assert_eq!((counts(&store, "w"), read(&container, "w", 1)), ((2, 1), (vec![-1.0], 2)));
    assert!(
        container.check_join(&[variable("w", 1)], SyncStep { step: 4, replicas: 2 }, &options(COUNT, 1.0)).is_err()
    );
    assert_eq!(counts(&store, "w"), (3, 1), "also before its bytes have come");
}

#[test]
fn what_differs_within_a_step_is_refused_with_both() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "w", &[0.0]).unwrap();
    refused(push(&container, "w", (1, 0), &[1.0]), ErrorCode::InvalidArgument, &["`0` replicas"]);
    refused(push(&container, "w", (1, 4097), &[1.0]), ErrorCode::InvalidArgument, &["`4097` replicas", "1 to 4096"]);
    let mut first = push(&container, "w", (1, 2), &[1.0]).unwrap();
    refused(push(&container, "w", (1, 3), &[1.0]), ErrorCode::FailedPrecondition, &["`2` gradients", "`3` replicas"]);
    for (other, text) in [
        (Optimizer::Sgd { learning_rate: 0.5 }, "`sgd` (learning-rate 0.5)"),
        (ADAM, "`adam` (learning-rate 0.1, beta1 0.9"),
    ] {
        let result = join(&container, &[("w", &[1.0])], (1, 2), options(other, 1.0), true);
        refused(result, ErrorCode::FailedPrecondition, &["`sgd` (learning-rate 1)", text]);
    }
    // Another step may have another method, as long as it has the slots.
    assert!(first.look().is_none());
    let mut others: Vec<_> = (2..=4).map(|step| push(&container, "w", (step, 5), &[1.0]).unwrap()).collect();
    let texts = ["`1`, `2`, `3`, `4`", "none of step `5`", "at most `4` steps"];
    refused(push(&container, "w", (5, 2), &[1.0]), ErrorCode::ResourceExhausted, &texts);
    assert_eq!(push(&container, "w", (1, 2), &[3.0]).unwrap().versions(), Ok(vec![2]));
    assert_eq!(first.answer(), Ok(vec![(vec![-2.0], 2)]));
    assert!(others.iter_mut().all(|waits| waits.look().is_none()), "higher steps stay open");
    assert!(push(&container, "w", (5, 2), &[1.0]).is_ok());
    assert_eq!(counts(&store, "w"), (0, 0));
}

/// A call of several variables is taken as a whole or not at all, and waits for all of them.
#[test]
fn a_call_is_taken_as_a_whole_and_waits_for_all_its_variables() {
    let store = Store::default();
    let container = open(&store);
    for name in ["a", "b", "c"] {
        initialize(&container, name, &[0.0]).unwrap();
    }
    push(&container, "b", (4, 1), &[0.0]).unwrap();
    let bytes = store.variable_bytes();
    let both = |step, values: &[f32; 2]| {
        join(&container, &[("b", &values[..1]), ("a", &values[1..])], (step, 2), options(COUNT, 1.0), true)
    };
    refused(both(3, &[1.0, 1.0]), ErrorCode::Aborted, &["`b`"]);
    let integers = variable("a", 1);
    let data = f32s(&[1.0]);
    let gradients =
        vec![(integers, Payload::Borrowed(&data[..])), (variable("missing", 1), Payload::Borrowed(&data[..]))];
    let error = container.join(gradients, SyncStep { step: 5, replicas: 2 }, &options(COUNT, 1.0)).unwrap_err();
    assert_eq!(error.code, ErrorCode::Uninitialized);
    assert_eq!(store.variable_bytes(), bytes, "nothing was taken");

    let mut first = both(5, &[2.0, 4.0]).unwrap();
    assert_eq!(store.variable_bytes(), bytes + 8);
    assert_eq!(push(&container, "a", (5, 2), &[0.0]).unwrap().versions(), Ok(vec![2]));
    assert!(first.look().is_none(), "b is not applied");
    // Of `a` it is late, of `b` the last.
    assert_eq!(both(5, &[2.0, 100.0]).unwrap().answer(), Ok(vec![(vec![-2.0], 3), (vec![-2.0], 2)]));
    assert_eq!(first.answer(), Ok(vec![(vec![-2.0], 3), (vec![-2.0], 2)]), "in the order of the call");
    assert_eq!((counts(&store, "a"), counts(&store, "b"), store.variable_bytes()), ((0, 1), (1, 0), bytes));
}

#[test]
fn values_that_are_set_anew_deleted_or_over_end_what_is_collected() {
    let store = Store::default();
    let container = open(&store);
    for name in ["a", "b"] {
        initialize(&container, name, &[0.0]).unwrap();
    }
    let both = || join(&container, &[("a", &[1.0]), ("b", &[1.0])], (5, 2), options(COUNT, 1.0), true).unwrap();
    let mut waits = both();
    initialize(&container, "other", &[0.0]).unwrap();
    let keep = vec![(variable("a", 1), Payload::Owned(Blocks::copy_of(&f32s(&[7.0]))))];
    container.initialize(keep, InitializeMode::IfAbsent).unwrap();
    assert!(waits.look().is_none(), "that is none of its concern");
    initialize(&container, "b", &[5.0]).unwrap();
    let error = waits.answer().unwrap_err();
    assert!(error.code == ErrorCode::Aborted && error.message.contains("`b` was initialized anew"), "{error}");
    // The gradient for `a` stays.
    assert_eq!(push(&container, "a", (5, 2), &[3.0]).unwrap().answer(), Ok(vec![(vec![-2.0], 2)]));

    // Steps are counted anew.
    initialize(&container, "a", &[0.0]).unwrap();
    let mut waits = both();
    assert!(waits.look().is_none());
    container.delete(&["b".into()]).unwrap();
    let error = waits.answer().unwrap_err();
    assert!(error.code == ErrorCode::Aborted && error.names == ["b"], "{error}");
    assert!(error.message.contains("deleted while gradients for step `5` were collected"), "{error}");
    initialize(&container, "b", &[0.0]).unwrap();
    assert_eq!(push(&container, "b", (1, 1), &[1.0]).unwrap().versions(), Ok(vec![2]));

    let mut waits = both();
    assert!(waits.look().is_none());
    store.delete_container("default");
    let error = waits.answer().unwrap_err();
    assert!(error.code == ErrorCode::Aborted && error.message.contains("container `default` was deleted"), "{error}");
    assert_eq!(store.variable_bytes(), 0);
}

#[test]
fn what_is_collected_counts_as_variable_bytes_until_it_is_applied() {
    // The value, its slots, and one sum.
    let store = Store::new(StoreOptions { variable_bytes_max: Some(4 * 400), ..StoreOptions::default() });
    let container = open(&store);
    initialize(&container, "w", &[0.0; 100]).unwrap();
    let adam = |step| join(&container, &[("w", &[1.0; 100])], (step, 2), options(ADAM, 1.0), true);
    let mut first = adam(1).unwrap();
    assert_eq!(store.variable_bytes(), 800);
    assert!(first.look().is_none());
    // A second sum fits, but not the slots that its step will need.
    refused(adam(2), ErrorCode::ResourceExhausted, &["--max-variable-bytes"]);
    let w = [variable("w", 100)];
    assert!(container.check_join(&w, SyncStep { step: 2, replicas: 2 }, &options(ADAM, 1.0)).is_err());
    assert_eq!(container.check_join(&w, SyncStep { step: 1, replicas: 2 }, &options(ADAM, 1.0)), Ok(()));
    adam(1).unwrap().answer().unwrap();
    assert_eq!((first.answer().is_ok(), store.variable_bytes()), (true, 1200));
    drop(adam(2).unwrap());
    assert_eq!(store.variable_bytes(), 1600, "a caller that has gone leaves its gradient");
    refused(adam(3), ErrorCode::ResourceExhausted, &["--max-variable-bytes"]);
    let other = join(&container, &[("w", &[1.0; 100])], (9, 1), options(COUNT, 1.0), true);
    refused(other, ErrorCode::FailedPrecondition, &["slots of `adam`"]);
    join(&container, &[("w", &[1.0; 100])], (9, 1), options(ADAM, 1.0), true).unwrap().answer().unwrap();
    assert_eq!((store.variable_bytes(), counts(&store, "w")), (1200, (1, 0)));
    drop(adam(10).unwrap());
    initialize(&container, "w", &[0.0; 100]).unwrap();
    assert_eq!(store.variable_bytes(), 400);
}

/// Aim: gradients add up while a reader keeps the value and another change holds it; the reader keeps what it saw. Method: the value is held
/// by hand.
#[test]
fn gradients_add_up_while_the_value_is_held_and_readers_keep_theirs() {
    let store = Store::default();
    let container = open(&store);
    let elements = BLOCK_BYTES / 4 + 5;
    initialize(&container, "w", &vec![1.0; elements]).unwrap();
    let ones = vec![1.0; elements];
    let paused = container.pull(&[variable("w", elements as u64)]).unwrap().remove(0);
    let first = push(&container, "w", (1, 3), &ones).unwrap();
    let cell = container.cell_for_test("w");
    let held = cell.hold_for_test();
    let second = join(&container, &[("w", &ones)], (1, 3), options(COUNT, 1.0), false).unwrap();
    let data = f32s(&ones);
    let gradients = || vec![(variable("w", elements as u64), Payload::Borrowed(&data[..]))];
    let sync = SyncStep { step: 1, replicas: 3 };
    assert!(
        matches!(container.try_join(gradients(), sync, &options(COUNT, 1.0)), Ok(TryJoin::Busy(_))),
        "the last one waits"
    );
    drop(held);
    assert!(matches!(container.try_join(gradients(), sync, &options(COUNT, 1.0)), Ok(TryJoin::Joined(_))));
    for waits in [first, second] {
        let (value, version) = waits.answer().unwrap().remove(0);
        assert!(version == 2 && value.iter().all(|&w| w == 0.0));
    }
    assert!(paused.version == 1 && paused.blocks.contiguous() == f32s(&vec![1.0; elements]));
}

/// Aim: from many threads no gradient is lost and nobody waits for ever. Method: workers whose steps are the versions that they are
/// answered, on two variables that they name in different orders.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_on_threads_of_their_own_take_the_same_steps() {
    const STEPS: u64 = 200;
    let store = Store::default();
    let container = open(&store);
    for name in ["a", "b"] {
        initialize(&container, name, &[0.0; 64]).unwrap();
    }
    let worker = |index: usize| {
        let container = container.clone();
        tokio::spawn(async move {
            let names = if index.is_multiple_of(2) { ["a", "b"] } else { ["b", "a"] };
            for step in 1..=STEPS {
                let gradient = [index as f32; 64];
                let gradients: Vec<_> = names.iter().map(|&name| (name, &gradient[..])).collect();
                let answer =
                    join(&container, &gradients, (step, 4), options(COUNT, 1.0), true).unwrap().0.await.unwrap();
                assert!(answer.iter().all(|(_, version)| *version == step + 1), "all are answered together");
            }
        })
    };
    for worker in (0..4).map(worker).collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    // The mean of 0 to 3.
    assert_eq!(read(&container, "a", 64), (vec![-1.5 * STEPS as f32; 64], STEPS + 1));
    assert_eq!((counts(&store, "a"), counts(&store, "b"), store.variable_bytes()), ((0, 0), (0, 0), 512));
}

/// What one variable should be.
#[derive(Default)]
struct Model {
    applied: Option<u64>,
    open: BTreeMap<u64, Vec<(usize, f32)>>,
    value: f32,
    steps: u64,
    stale: u64,
    dropped: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any order of pushes does what the model does, and gives all memory back but that of what is open.
    #[test]
    fn any_order_of_pushes_does_what_a_model_does(
        pushes in prop::collection::vec((0..2_usize, 1..7_u64, -8..8_i32, any::<bool>()), 1..60),
        replicas in 1..4_u32,
    ) {
        let store = Store::default();
        let container = open(&store);
        let names = ["v0", "v1"];
        for name in names {
            initialize(&container, name, &[0.0]).unwrap();
        }
        let mut models = [Model::default(), Model::default()];
        let mut waiting: HashMap<usize, Waits> = HashMap::new();
        for (id, (which, step, gradient, blocking)) in pushes.into_iter().enumerate() {
            let (model, gradient) = (&mut models[which], gradient as f32);
            let result = join(&container, &[(names[which], &[gradient])], (step, replicas), options(COUNT, 1.0), blocking);
            if model.applied.is_some_and(|applied| step < applied) {
                model.stale += 1;
                prop_assert_eq!(result.err().map(|error| error.code), Some(ErrorCode::Aborted));
                continue;
            }
            if model.applied == Some(step) {
                model.dropped += 1;
                prop_assert_eq!(result.unwrap().versions(), Ok(vec![model.steps + 1]));
                continue;
            }
            if !model.open.contains_key(&step) && model.open.len() >= 4 && replicas > 1 {
                prop_assert_eq!(result.err().map(|error| error.code), Some(ErrorCode::ResourceExhausted));
                continue;
            }
            waiting.insert(id, result.unwrap());
            let open = model.open.entry(step).or_default();
            open.push((id, gradient));
            if open.len() < replicas as usize {
                prop_assert!(waiting.get_mut(&id).unwrap().look().is_none());
                continue;
            }
            let taken = model.open.remove(&step).unwrap();
            model.value -= taken.iter().map(|(_, gradient)| gradient).sum::<f32>() / replicas as f32;
            model.steps += 1;
            model.applied = Some(step);
            for (id, _) in taken {
                let (value, version) = waiting.remove(&id).unwrap().answer().unwrap().remove(0);
                prop_assert_eq!(version, model.steps + 1);
                prop_assert!((value[0] - model.value).abs() < 1e-4, "{} is not {}", value[0], model.value);
            }
            let above = model.open.split_off(&step);
            for (id, _) in std::mem::replace(&mut model.open, above).into_values().flatten() {
                model.stale += 1;
                prop_assert_eq!(waiting.remove(&id).unwrap().answer().unwrap_err().code, ErrorCode::Aborted);
            }
        }
        for (name, model) in names.iter().zip(&models) {
            prop_assert_eq!(counts(&store, name), (model.stale, model.dropped));
        }
        prop_assert!(waiting.values_mut().all(|waits| waits.look().is_none()));
        let open: usize = models.iter().map(|model| model.open.len()).sum();
        prop_assert_eq!(store.variable_bytes(), 8 + 4 * open as u64);
    }

    /// Workers of which some are ahead, whatever the order in which they come, make the same number of steps; without backups also
    /// the same value.
    #[test]
    fn any_arrival_order_makes_the_same_steps(
        turns in prop::collection::vec(0..5_usize, 0..200),
        workers in 1..5_usize,
        backups in 0..3_usize,
    ) {
        const STEPS: u64 = 8;
        let replicas = workers.saturating_sub(backups).max(1);
        let store = Store::default();
        let container = open(&store);
        initialize(&container, "w", &[0.0]).unwrap();
        let gradient = |worker: usize, step: u64| (worker as f32 + 1.0) * step as f32;
        let (mut steps, mut waiting) = (vec![1_u64; workers], HashMap::new());
        for worker in turns.into_iter().chain((0..workers).cycle().take(20 * workers * STEPS as usize)) {
            let worker = worker % workers;
            let step = steps[worker];
            if step > STEPS {
                continue;
            }
            let answer = match waiting.remove(&worker) {
                None => push(&container, "w", (step, replicas as u32), &[gradient(worker, step)]),
                Some(waits) => Ok(waits),
            };
            steps[worker] = match answer.map(|mut waits| (waits.look(), waits)) {
                Ok((None, waits)) => {
                    waiting.insert(worker, waits);
                    continue;
                }
                Ok((Some(Ok(values)), _)) => values[0].1,
                Ok((Some(Err(error)), _)) | Err(error) => {
                    prop_assert_eq!(error.code, ErrorCode::Aborted);
                    read(&container, "w", 1).1
                }
            };
        }
        prop_assert!(steps.iter().all(|&step| step == STEPS + 1), "{steps:?}");
        let (value, version) = read(&container, "w", 1);
        prop_assert_eq!(version, STEPS + 1);
        if replicas == workers {
            let means = (1..=STEPS).map(|step| (0..workers).map(|w| gradient(w, step)).sum::<f32>() / workers as f32);
            prop_assert!((value[0] + means.sum::<f32>()).abs() < 1e-2, "{}", value[0]);
        }
        prop_assert_eq!(store.variable_bytes(), 4);
    }
}
