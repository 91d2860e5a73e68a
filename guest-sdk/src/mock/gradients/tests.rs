//! The mock makes the steps that a host makes.

use crate::{
    Change, Element, Error, ErrorCode, MockCluster, Optimizer, Result, Variable, WorkerContext, evaluator, ps,
};
use std::collections::HashMap;

/// What `tests/reference/optimizers.py` wrote.
const TORCH: &str = include_str!("../../../../tests/reference/optimizers.csv");

fn numbers(text: &str) -> Vec<f64> {
    text.split(' ').map(|number| number.parse().expect("a number")).collect()
}

/// The values of lines that begin so, by step.
fn lines(begin: &str) -> Vec<(usize, Vec<f64>)> {
    let of = TORCH.lines().filter_map(|line| line.strip_prefix(begin)?.strip_prefix(','));
    of.map(|rest| {
        let (step, values) = rest.split_once(',').expect("step and values");
        (step.parse().unwrap_or_default(), numbers(values))
    })
    .collect()
}

fn optimizer(method: &str, numbers: &str) -> Optimizer {
    let pairs = numbers.split(' ').map(|pair| pair.split_once('=').expect("name=number"));
    let numbers: HashMap<_, f64> = pairs.map(|(name, text)| (name, text.parse().expect("a number"))).collect();
    let number = |name: &str| numbers[name];
    let rate = number("learning-rate");
    let adam = |adam: Optimizer| {
        let betas = adam.betas(number("beta1"), number("beta2"));
        betas.epsilon(number("epsilon")).weight_decay(number("weight-decay"))
    };
    let optimizer = match method {
        "sgd" => Optimizer::sgd(rate),
        "momentum" if number("nesterov") == 1.0 => Optimizer::nesterov(rate, number("momentum")),
        "momentum" => Optimizer::momentum(rate, number("momentum")),
        "adagrad" => Optimizer::adagrad(rate).decay(number("decay")).epsilon(number("epsilon")),
        "rmsprop" => Optimizer::rmsprop(rate).decay(number("decay")).epsilon(number("epsilon")),
        "adam" => adam(Optimizer::adam(rate)),
        "adamw" => adam(Optimizer::adamw(rate)),
        other => panic!("`{other}` is unknown"),
    };
    match numbers.get("clip-norm") {
        Some(&norm) => optimizer.clip_norm(norm),
        None => optimizer,
    }
}

/// Every case of one element type; returns how many values were compared.
fn compare<T: Element>(ctx: &WorkerContext, from: fn(f64) -> T, to: fn(T) -> f64, tolerance: f64) -> Result<usize> {
    let dtype = T::DTYPE;
    let initial = lines(&format!("initial,{dtype},")).remove(0).1;
    let gradients = lines(&format!("gradient,{dtype},"));
    let narrow = |values: &[f64]| values.iter().map(|&value| from(value)).collect::<Vec<T>>();
    let w: Variable<T> = ctx.variable(format!("w-{dtype}")).shape([initial.len()]).declare()?;
    let mut cases: Vec<_> = TORCH
        .lines()
        .filter(|line| !line.starts_with('#') && line.contains('='))
        .map(|line| line.splitn(4, ',').take(3).collect::<Vec<_>>())
        .filter(|fields| fields[1] == dtype.as_str())
        .collect();
    cases.dedup();
    let mut compared = 0;
    for case in cases {
        let optimizer = optimizer(case[0], case[2]);
        let expected: HashMap<_, _> = lines(&case.join(",")).into_iter().collect();
        w.initialize(&narrow(&initial))?;
        let (mut before, mut moved) = (initial.clone(), vec![0.0_f64; initial.len()]);
        for (step, gradient) in &gradients {
            let [after] = ctx.apply_gradients_and_read(&optimizer, [(&w, &narrow(gradient))])?;
            let after: Vec<f64> = after.iter().map(|&value| to(value)).collect();
            for (index, (&before, &after)) in before.iter().zip(&after).enumerate() {
                moved[index] += (after - before).abs();
                let Some(&torchs) = expected.get(step).map(|values| &values[index]) else { continue };
                let allowed = tolerance * torchs.abs().max(moved[index]);
                assert!((after - torchs).abs() <= allowed, "{case:?} step {step}: {after} here, {torchs} by torch");
                compared += 1;
            }
            before = after;
        }
    }
    Ok(compared)
}

/// The tolerances are the host's, for the same reason: both round each operation, though not always the same ones.
#[test]
fn optimizers_do_what_torch_does() {
    let compared = MockCluster::local().run(|ctx| -> Result<usize> {
        Ok(compare::<f32>(ctx, |wide| wide as f32, f64::from, 1e-6)?
            + compare::<f64>(ctx, |wide| wide, |wide| wide, 1e-12)?)
    });
    assert_eq!(compared.unwrap(), [2 * 16 * 6 * 7], "every case of the file is compared");
}

#[test]
fn gradients_of_many_variables_go_in_one_call() {
    let run = MockCluster::local().run(|ctx| -> Result<()> {
        let w = ctx.variable::<f32>("w").shape([2]).declare()?;
        let b = ctx.variable::<f64>("b").declare()?;
        ctx.initialize([Change::assign(&w, 1.0), Change::assign(&b, 1.0)])?;
        let sgd = Optimizer::sgd(0.5);
        assert_eq!(ctx.apply_gradients(&sgd, ((&w, &[1.0, 2.0]), (&b, 1.0)))?, [2, 2]);
        // The norm of all is 5: each is scaled by 0.2.
        let (w_value, b_value) = ctx.apply_gradients_and_read(&sgd.clip_norm(1.0), ((&w, &[0.0, 3.0]), (&b, 4.0)))?;
        assert!((w_value[0], w_value.version()) == (0.5, 3) && (w_value[1] + 0.3).abs() < 1e-6, "{w_value:?}");
        assert!((b_value.scalar() - 0.1).abs() < 1e-12, "{b_value:?}");
        let many = [(&w, vec![1.0; 2])];
        let many: Vec<_> = many.iter().map(|(w, gradient)| (*w, gradient)).collect();
        assert_eq!(ctx.start_apply_gradients(&sgd, many.clone())?.get()?, [4]);
        let values = ctx.start_apply_gradients_and_read(&sgd, many)?.get()?;
        assert_eq!((values[0][0], values[0].version()), (-0.5, 5));
        Ok(())
    });
    run.unwrap();
}

#[test]
fn what_a_host_refuses_is_refused_and_changes_nothing() {
    let run = MockCluster::local().run(|ctx| -> Result<()> {
        let w = ctx.variable::<f32>("w").declare()?;
        let v = ctx.variable::<f32>("v").declare()?;
        let n = ctx.variable::<i32>("n").declare()?;
        let fails = |result: Result<Vec<u64>>, code: ErrorCode, part: &str| {
            let error: Error = result.unwrap_err();
            assert!(error.code == code && error.message.contains(part), "{error}");
        };
        let (adam, invalid) = (Optimizer::adam(0.1), ErrorCode::InvalidArgument);
        fails(ctx.apply_gradients(&adam, [(&w, 1.0)]), ErrorCode::Uninitialized, "`w`");
        ctx.initialize([Change::assign(&w, 1.0), Change::assign(&v, 1.0), Change::assign(&n, 1)])?;
        fails(ctx.apply_gradients(&adam, [(&n, 1)]), invalid, "f32 and f64 only");
        fails(ctx.apply_gradients(&adam, [(&w, 1.0), (&w, 1.0)]), invalid, "two gradients");
        fails(ctx.apply_gradients(&adam.betas(1.0, 0.9), [(&w, 1.0)]), invalid, "beta1 of adam is `1`");
        fails(ctx.apply_gradients(&Optimizer::sgd(0.1).epsilon(0.1), [(&w, 1.0)]), invalid, "sgd has no epsilon");
        let clipped = [(&v, 1.0), (&w, f32::NAN)];
        fails(ctx.apply_gradients(&adam.clip_norm(1.0), clipped), invalid, "`w` has elements that are infinite");
        fails(ctx.apply_gradients(&adam.clip_norm(0.0), [(&w, 1.0)]), invalid, "clip-norm");
        assert_eq!(ctx.apply_gradients(&Optimizer::adamw(0.0), [(&w, 0.0)])?, [2]);
        assert_eq!(ctx.apply_gradients(&adam, [(&w, 0.0)])?, [3]);
        let precondition = ErrorCode::FailedPrecondition;
        fails(ctx.apply_gradients(&Optimizer::rmsprop(0.1), [(&v, 1.0), (&w, 1.0)]), precondition, "`adam`");
        fails(ctx.apply_gradients(&Optimizer::sgd(0.1), [(&w, 1.0)]), precondition, "initialize");
        assert_eq!((v.read()?.scalar(), v.read()?.version(), w.read()?.scalar()), (1.0, 1, 1.0));
        w.initialize(1.0)?;
        let [value] = ctx.apply_gradients_and_read(&Optimizer::sgd(1.0), [(&w, f32::NAN)])?;
        assert!(value.scalar().is_nan(), "without clipping it is applied as told");
        Ok(())
    });
    run.unwrap();
}

#[test]
fn an_evaluator_applies_gradients_to_its_own_variables_only() {
    let cluster = MockCluster::builder().workers(1).ps(1).evaluator(true).build();
    let run = cluster.run(|ctx| -> Result<()> {
        let w = ctx.variable::<f32>("w").on(ps(0)).declare()?;
        if ctx.task() == Some(evaluator()) {
            let error = ctx.apply_gradients(&Optimizer::sgd(0.1), [(&w, 1.0)]).unwrap_err();
            assert_eq!(error.code, ErrorCode::FailedPrecondition);
        }
        Ok(())
    });
    run.unwrap();
}
