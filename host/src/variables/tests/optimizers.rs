//! Optimizers: against torch, against plain loops, and their rules.

use super::*;
use crate::error::ErrorCode;
use crate::tensor::TensorView;
use proptest::prelude::*;

const ADAM: Adam = Adam { learning_rate: 1e-2, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };

fn options(optimizer: Optimizer) -> ApplyOptions {
    ApplyOptions { optimizer, scale: 1.0, sync: None, write: WriteOptions::WITH_VALUES }
}

fn floats(dtype: DType, data: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 => data.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect(),
        DType::F64 => data.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
        other => panic!("{other} is no float"),
    }
}

fn bytes(dtype: DType, values: &[f64]) -> Vec<u8> {
    match dtype {
        DType::F32 => f32s(&values.iter().map(|&value| value as f32).collect::<Vec<_>>()),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// Applies one gradient of `f32`s.
fn apply(container: &Container, name: &str, optimizer: Optimizer, gradient: &[f32]) -> Result<(Vec<f64>, u64)> {
    let data = f32s(gradient);
    let gradients = vec![(variable(name, gradient.len() as u64), Payload::Borrowed(&data[..]))];
    let snapshot = container.apply(gradients, &options(optimizer))?.remove(0);
    Ok((floats(DType::F32, &snapshot.blocks.contiguous()), snapshot.version))
}

mod torch {
    use super::*;
    use std::collections::HashMap;

    struct Line<'a> {
        kind: &'a str,
        dtype: DType,
        numbers: HashMap<&'a str, f64>,
        step: usize,
        values: Vec<f64>,
    }

    fn parse(line: &str) -> Line<'_> {
        let fields: Vec<_> = line.split(',').collect();
        let number = |text: &str| text.parse::<f64>().expect("a number");
        let pairs = fields[2].split_whitespace().map(|pair| pair.split_once('=').expect("name=number"));
        Line {
            kind: fields[0],
            dtype: if fields[1] == "f32" { DType::F32 } else { DType::F64 },
            numbers: pairs.map(|(name, text)| (name, number(text))).collect(),
            step: fields[3].parse().unwrap_or_default(),
            values: fields[4].split(' ').map(number).collect(),
        }
    }

    fn optimizer(Line { kind, numbers, .. }: &Line<'_>) -> Optimizer {
        let number = |name: &str| numbers[name];
        let learning_rate = number("learning-rate");
        let adam = || Adam {
            learning_rate,
            beta1: number("beta1"),
            beta2: number("beta2"),
            epsilon: number("epsilon"),
            weight_decay: number("weight-decay"),
        };
        match *kind {
            "sgd" => Optimizer::Sgd { learning_rate },
            "momentum" => {
                Optimizer::Momentum { learning_rate, momentum: number("momentum"), nesterov: number("nesterov") == 1.0 }
            }
            "adagrad" => Optimizer::Adagrad { learning_rate, decay: number("decay"), epsilon: number("epsilon") },
            "rmsprop" => Optimizer::RmsProp { learning_rate, decay: number("decay"), epsilon: number("epsilon") },
            "adam" => Optimizer::Adam(adam()),
            "adamw" => Optimizer::AdamW(adam()),
            other => panic!("`{other}` is unknown"),
        }
    }

    /// Aim: the same figures as torch.optim's. Method: tests/reference/optimizers.py wrote what torch makes of the same gradients in
    /// up to 20 steps. Both round each operation, though not always the same ones (torch fuses some), so that values differ in
    /// their last digits: less than 1e-6 of the value for f32, or of what the steps have moved it by, and 1e-12 for f64.
    #[test]
    fn optimizers_do_what_torch_does() {
        let lines: Vec<_> = include_str!("../../../../tests/reference/optimizers.csv")
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(parse)
            .collect();
        let of = |kind, dtype| {
            let found = lines.iter().filter(move |line| line.kind == kind && line.dtype == dtype);
            found.map(|line| line.values.clone()).collect::<Vec<_>>()
        };
        let mut compared = 0;
        let mut cases = lines.as_slice();
        while let Some(first) = cases.first() {
            let same =
                |line: &&Line<'_>| (line.kind, line.dtype, &line.numbers) == (first.kind, first.dtype, &first.numbers);
            let (case, rest) = cases.split_at(cases.iter().take_while(same).count());
            cases = rest;
            let dtype = first.dtype;
            if ["initial", "gradient"].contains(&first.kind) {
                continue;
            }
            let tolerance = if dtype == DType::F32 { 1e-6 } else { 1e-12 };
            let initial = of("initial", dtype).remove(0);
            let w = VariableRef::whole("w", TensorType::new(dtype, [initial.len() as u64]));
            let store = Store::default();
            let container = open(&store);
            let data = bytes(dtype, &initial);
            let values = vec![(w.clone(), Payload::Borrowed(&data[..]))];
            container.initialize(values, InitializeMode::Overwrite).unwrap();
            let mut moved = vec![0.0_f64; initial.len()];
            let mut before = initial;
            for (step, gradient) in (1..).zip(of("gradient", dtype)) {
                let data = bytes(dtype, &gradient);
                let view = TensorView { ty: w.ty.clone(), data: &data };
                let scale = match first.numbers.get("clip-norm") {
                    Some(&norm_max) => clip_scale([("w", &view)], norm_max).unwrap(),
                    None => 1.0,
                };
                let options = ApplyOptions { scale, ..options(optimizer(first)) };
                let snapshot =
                    container.apply(vec![(w.clone(), Payload::Borrowed(&data))], &options).unwrap().remove(0);
                let after = floats(dtype, &snapshot.blocks.contiguous());
                for (index, (before, after)) in before.iter().zip(&after).enumerate() {
                    moved[index] += (after - before).abs();
                }
                if let Some(expected) = case.iter().find(|line| line.step == step) {
                    for (index, (ours, torchs)) in after.iter().zip(&expected.values).enumerate() {
                        let allowed = tolerance * torchs.abs().max(moved[index]);
                        assert!(
                            (ours - torchs).abs() <= allowed,
                            "{} {dtype} {:?} step {step} element {index}: {ours} here, {torchs} by torch",
                            first.kind,
                            first.numbers
                        );
                        compared += 1;
                    }
                }
                before = after;
            }
        }
        assert_eq!(compared, 2 * 16 * 6 * 7, "every case of the file is compared");
    }
}

/// A plain loop over elements, in the dtype.
macro_rules! plain {
    ($name:ident, $t:ty) => {
        fn $name(optimizer: &Optimizer, step: u64, scale: f64, w: &mut f64, slots: &mut [f64; 2], g: f64) {
            let of = |number: f64| number as $t;
            let (mut value, g) = (of(*w), of(scale) * of(g));
            let [mut a, mut b] = slots.map(|slot| of(slot));
            match *optimizer {
                Optimizer::Sgd { learning_rate } => value -= of(learning_rate) * g,
                Optimizer::Momentum { learning_rate, momentum, nesterov } => {
                    a = of(momentum) * a + g;
                    value -= of(learning_rate) * if nesterov { g + of(momentum) * a } else { a };
                }
                Optimizer::Adagrad { learning_rate, decay, epsilon } => {
                    a += g * g;
                    let rate = learning_rate / (1.0 + (step - 1) as f64 * decay);
                    value -= of(rate) * g / (a.sqrt() + of(epsilon));
                }
                Optimizer::RmsProp { learning_rate, decay, epsilon } => {
                    a = of(decay) * a + of(1.0 - decay) * g * g;
                    value -= of(learning_rate) * g / (a.sqrt() + of(epsilon));
                }
                Optimizer::Adam(adam) | Optimizer::AdamW(adam) => {
                    let mut g = g;
                    if let Optimizer::AdamW(_) = optimizer {
                        value *= of(1.0 - adam.learning_rate * adam.weight_decay);
                    } else {
                        g += of(adam.weight_decay) * value;
                    }
                    a = of(adam.beta1) * a + of(1.0 - adam.beta1) * g;
                    b = of(adam.beta2) * b + of(1.0 - adam.beta2) * g * g;
                    let rate = adam.learning_rate / (1.0 - adam.beta1.powf(step as f64));
                    let root = b.sqrt() / of((1.0 - adam.beta2.powf(step as f64)).sqrt());
                    value -= of(rate) * a / (root + of(adam.epsilon));
                }
            }
            (*w, *slots) = (f64::from(value), [f64::from(a), f64::from(b)]);
        }
    };
}
plain!(plain32, f32);
plain!(plain64, f64);

fn optimizers() -> impl Strategy<Value = Optimizer> {
    let adam = (0.0..1.0, 0.0..0.99, 0.0..0.999, 0.0..0.5).prop_map(|(learning_rate, beta1, beta2, weight_decay)| {
        Adam { learning_rate, beta1, beta2, epsilon: 1e-6, weight_decay }
    });
    prop_oneof![
        (0.0..1.0).prop_map(|learning_rate| Optimizer::Sgd { learning_rate }),
        (0.0..1.0, 0.0..0.99, any::<bool>()).prop_map(|(learning_rate, momentum, nesterov)| {
            Optimizer::Momentum { learning_rate, momentum, nesterov }
        }),
        (0.0..1.0, 0.0..2.0)
            .prop_map(|(learning_rate, decay)| { Optimizer::Adagrad { learning_rate, decay, epsilon: 1e-6 } }),
        (0.0..1.0, 0.0..0.99)
            .prop_map(|(learning_rate, decay)| { Optimizer::RmsProp { learning_rate, decay, epsilon: 1e-6 } }),
        adam.clone().prop_map(Optimizer::Adam),
        adam.prop_map(Optimizer::AdamW),
    ]
}

/// Values that differ from element to element.
fn ramp(dtype: DType, elements: usize, by: f64) -> Vec<f64> {
    floats(dtype, &bytes(dtype, &(0..elements).map(|i| ((i % 1013) as f64 - 500.0) * by).collect::<Vec<_>>()))
}

/// A step on one element in a plain loop: the optimizer, the step's number, the scale, value, slots and gradient.
type Plain = fn(&Optimizer, u64, f64, &mut f64, &mut [f64; 2], f64);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Sizes lie around a block's; a reader holds a value, now and then, that must stay as it was; gradients come both ways.
    #[test]
    fn blocks_and_their_readers_change_nothing_of_a_plain_loop(
        optimizer in optimizers(),
        wide in any::<bool>(),
        size in prop::sample::select(vec![0_usize, 1, 7, BLOCK_BYTES - 8, BLOCK_BYTES, BLOCK_BYTES + 24, 2 * BLOCK_BYTES + 8]),
        scale in prop::sample::select(vec![1.0, 0.3]),
        held in prop::collection::vec(any::<bool>(), 3),
    ) {
        let (dtype, plain): (_, Plain) =
            if wide { (DType::F64, plain64) } else { (DType::F32, plain32) };
        let elements = size / dtype.size_bytes();
        let w = VariableRef::whole("w", TensorType::new(dtype, [elements as u64]));
        let store = Store::default();
        let container = open(&store);
        let mut expected = ramp(dtype, elements, 0.01);
        let mut slots = vec![[0.0; 2]; elements];
        let data = bytes(dtype, &expected);
        container.initialize(vec![(w.clone(), Payload::Borrowed(&data))], InitializeMode::Overwrite).unwrap();
        for (step, held) in (1..).zip(held) {
            let seen = container.pull(std::slice::from_ref(&w)).unwrap().remove(0);
            let before = bytes(dtype, &expected);
            let reader = held.then_some(&seen);
            let gradient = ramp(dtype, elements, 0.02 * step as f64);
            let data = bytes(dtype, &gradient);
            let payload = if step % 2 == 0 { Payload::Borrowed(&data[..]) } else { Payload::Owned(Blocks::copy_of(&data)) };
            let options = ApplyOptions { scale, ..options(optimizer) };
            let snapshot = container.apply(vec![(w.clone(), payload)], &options).unwrap().remove(0);
            for ((w, slots), g) in expected.iter_mut().zip(&mut slots).zip(gradient) {
                plain(&optimizer, step, scale, w, slots, g);
            }
            prop_assert!(snapshot.blocks.contiguous() == bytes(dtype, &expected), "step {}", step);
            prop_assert!(reader.is_none_or(|seen| seen.blocks.contiguous() == before));
            prop_assert_eq!(snapshot.version, step + 1);
        }
    }
}

#[test]
fn slots_are_beside_their_variable_from_the_first_step_to_its_end() {
    let store = Store::default();
    let container = open(&store);
    let w = 4 * 3;
    for (optimizer, slots) in [
        (Optimizer::Sgd { learning_rate: 0.1 }, 0),
        (Optimizer::Momentum { learning_rate: 0.1, momentum: 0.9, nesterov: false }, 1),
        (Optimizer::Adagrad { learning_rate: 0.1, decay: 0.0, epsilon: 1e-10 }, 1),
        (Optimizer::RmsProp { learning_rate: 0.1, decay: 0.9, epsilon: 1e-8 }, 1),
        (Optimizer::Adam(ADAM), 2),
        (Optimizer::AdamW(ADAM), 2),
    ] {
        initialize(&container, "w", &[1.0, 2.0, 3.0]).unwrap();
        let status = || store.statuses().remove(0);
        assert_eq!((status().slot_bytes, store.variable_bytes()), (0, w), "initialized anew");
        for step in 1..=2 {
            apply(&container, "w", optimizer, &[0.1; 3]).unwrap();
            assert_eq!((status().slot_bytes, status().bytes), (slots * w, w), "{optimizer:?} step {step}");
            assert_eq!(store.variable_bytes(), (1 + slots) * w);
        }
        // A plain update leaves them.
        let half = f32s(&[0.5; 3]);
        container.push(vec![update("w", UpdateKind::Add, &half, None)], false).unwrap();
        assert_eq!(store.variable_bytes(), (1 + slots) * w);
        container.initialize(vec![(variable("w", 3), Payload::Borrowed(&half))], InitializeMode::IfAbsent).unwrap();
        assert_eq!(store.variable_bytes(), (1 + slots) * w, "nothing was initialized");
    }
    container.delete(&["w".into()]).unwrap();
    assert_eq!(store.variable_bytes(), 0);
    initialize(&container, "w", &[1.0; 3]).unwrap();
    apply(&container, "w", Optimizer::Adam(ADAM), &[0.1; 3]).unwrap();
    store.delete_container("default");
    assert_eq!(store.variable_bytes(), 0);
}

#[test]
fn initialize_begins_anew_and_the_learning_rate_may_change() {
    let store = Store::default();
    let container = open(&store);
    let adam = |learning_rate| Optimizer::Adam(Adam { learning_rate, ..ADAM });
    initialize(&container, "w", &[1.0]).unwrap();
    let first = apply(&container, "w", adam(0.5), &[2.0]).unwrap();
    assert!((first.0[0] - 0.5).abs() < 1e-6, "Adam's first step is the learning rate: {first:?}");
    let second = apply(&container, "w", adam(0.25), &[2.0]).unwrap();
    assert!((second.0[0] - 0.25).abs() < 1e-6, "{second:?}");
    assert_eq!(second.1, 3);
    initialize(&container, "w", &[1.0]).unwrap();
    // A large gradient after small ones would move it far less if means of before were left.
    let anew = apply(&container, "w", adam(0.5), &[2000.0]).unwrap();
    assert!((anew.0[0] - 0.5).abs() < 1e-6 && anew.1 == 5, "{anew:?}");
}

#[test]
fn another_method_is_refused_with_both_names() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "w", &[1.0]).unwrap();
    initialize(&container, "b", &[1.0]).unwrap();
    apply(&container, "w", Optimizer::Sgd { learning_rate: 0.1 }, &[0.0]).unwrap();
    apply(&container, "w", Optimizer::Adam(ADAM), &[0.0]).unwrap();
    apply(&container, "w", Optimizer::AdamW(ADAM), &[0.0]).expect("the same slots");
    for other in [
        Optimizer::Sgd { learning_rate: 0.1 },
        Optimizer::Momentum { learning_rate: 0.1, momentum: 0.9, nesterov: false },
    ] {
        let data = f32s(&[1.0]);
        let both = ["b", "w"].map(|name| (variable(name, 1), Payload::Borrowed(&data[..])));
        let error = container.apply(both.to_vec(), &options(other)).unwrap_err();
        assert_eq!((error.code, &*error.names), (ErrorCode::FailedPrecondition, &["w".to_owned()][..]));
        for part in ["`adam`", other.name(), "initialize"] {
            assert!(error.message.contains(part), "no `{part}` in {error}");
        }
        let variables = ["b", "w"].map(|name| variable(name, 1));
        assert_eq!(container.check_apply(&variables, &other).unwrap_err(), error);
    }
    assert_eq!((read(&container, "b", 1), store.statuses()[0].slot_bytes), ((vec![1.0], 1), 0), "nothing was applied");
}

#[test]
fn slots_that_do_not_fit_are_refused_before_anything_is_changed() {
    let store = Store::new(StoreOptions { variable_bytes_max: Some(40), ..Default::default() });
    let container = open(&store);
    initialize(&container, "a", &[1.0; 2]).unwrap();
    initialize(&container, "b", &[1.0; 2]).unwrap();
    let data = f32s(&[1.0; 2]);
    let both = || ["a", "b"].map(|name| (variable(name, 2), Payload::Borrowed(&data[..]))).to_vec();
    let error = container.apply(both(), &options(Optimizer::Adam(ADAM))).unwrap_err();
    assert_eq!((error.code, &*error.names[0]), (ErrorCode::ResourceExhausted, "--max-variable-bytes"));
    let variables = ["a", "b"].map(|name| variable(name, 2));
    assert_eq!(container.check_apply(&variables, &Optimizer::Adam(ADAM)).unwrap_err(), error);
    assert_eq!((read(&container, "a", 2), store.variable_bytes()), ((vec![1.0; 2], 1), 16));
    let momentum = Optimizer::Momentum { learning_rate: 1.0, momentum: 0.9, nesterov: false };
    container.apply(both(), &options(momentum)).expect("one slot each fits");
    assert_eq!((read(&container, "b", 2), store.variable_bytes()), ((vec![0.0; 2], 2), 32));
    container.check_apply(&variables, &momentum).expect("slots that are there need no room");
}

#[test]
fn faulty_gradients_are_refused_and_change_nothing() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "w", &[1.0]).unwrap();
    let whole = VariableRef::whole("n", TensorType::new(DType::S32, [1]));
    let data = f32s(&[1.0]);
    let zero = [0; 4];
    container.initialize(vec![(whole.clone(), Payload::Borrowed(&zero))], InitializeMode::Overwrite).unwrap();
    let sgd = Optimizer::Sgd { learning_rate: 1.0 };
    let check = |variables: &[VariableRef], optimizer, code, text: &str| {
        let gradients = variables.iter().map(|variable| (variable.clone(), Payload::Borrowed(&data[..]))).collect();
        let error = container.apply(gradients, &options(optimizer)).unwrap_err();
        assert!(error.code == code && error.message.contains(text), "{error}");
    };
    let w = variable("w", 1);
    check(&[w.clone(), whole], sgd, ErrorCode::InvalidArgument, "`n` has elements of s32");
    check(&[w.clone(), w.clone()], sgd, ErrorCode::InvalidArgument, "`w` stands twice");
    check(&[w.clone(), variable("missing", 1)], sgd, ErrorCode::Uninitialized, "`missing`");
    check(&[variable("w", 2)], sgd, ErrorCode::InvalidArgument, "`w`");
    let negative = Optimizer::Sgd { learning_rate: -1.0 };
    check(std::slice::from_ref(&w), negative, ErrorCode::InvalidArgument, "learning-rate of sgd is `-1`");
    assert_eq!(read(&container, "w", 1), (vec![1.0], 1));
    let (broken, version) = apply(&container, "w", sgd, &[f32::NAN]).expect("as told");
    assert!(broken[0].is_nan() && version == 2);
}

#[test]
fn gradients_come_back_where_they_would_have_to_wait() {
    let store = Store::default();
    let container = open(&store);
    initialize(&container, "a", &[1.0]).unwrap();
    initialize(&container, "w", &[1.0]).unwrap();
    let data = f32s(&[1.0]);
    let gradients = ["a", "w"].map(|name| (variable(name, 1), Payload::Borrowed(&data[..]))).to_vec();
    let options = options(Optimizer::Adam(ADAM));
    let cell = container.cell_for_test("w");
    let held = cell.hold_for_test();
    let TryApply::Busy(gradients) = container.try_apply(gradients, &options).unwrap() else { panic!("`w` is held") };
    assert_eq!((gradients.len(), read(&container, "a", 1)), (2, (vec![1.0], 1)));
    container.check_apply(&["a", "w"].map(|name| variable(name, 1)), &options.optimizer).expect("it doesn't wait");
    drop(held);
    let TryApply::Applied(snapshots) = container.try_apply(gradients, &options).unwrap() else {
        panic!("all are free")
    };
    assert_eq!(snapshots.iter().map(|snapshot| snapshot.version).collect::<Vec<_>>(), [2, 2]);
}

/// Aim: calls that name the same variables in another order neither wait for each other nor lose a step.
#[test]
fn steps_of_many_threads_are_all_counted() {
    const STEPS: u64 = 200;
    let store = Store::default();
    let container = open(&store);
    for name in ["a", "b", "c"] {
        initialize(&container, name, &[0.0]).unwrap();
    }
    let data = f32s(&[-1.0]);
    let data = &data[..];
    let options = options(Optimizer::Momentum { learning_rate: 1.0, momentum: 0.0, nesterov: false });
    std::thread::scope(|scope| {
        for names in [["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"]] {
            let container = &container;
            scope.spawn(move || {
                for _ in 0..STEPS {
                    let gradients = names.map(|name| (variable(name, 1), Payload::Borrowed(data))).to_vec();
                    container.apply(gradients, &options).unwrap();
                }
            });
        }
    });
    for name in ["a", "b", "c"] {
        assert_eq!(read(&container, name, 1), (vec![3.0 * STEPS as f32], 3 * STEPS + 1));
    }
    assert_eq!(store.variable_bytes(), 3 * 2 * 4);
}
