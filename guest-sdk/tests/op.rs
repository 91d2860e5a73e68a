//! What may carry `#[op]`, what it is started with, and what comes back.

use dchost_guest::{
    ErrorCode, Input, MockCluster, RemoteValue, Result, Tensor, Value, Wait, WorkerContext, op, ops, ps, wait_any,
    worker,
};
use std::error::Error;

/// Attributes, visibility and comments stay.
#[op]
#[inline(never)]
pub(crate) fn scaled(ctx: &WorkerContext, values: &[f32], factor: f32) -> Result<Vec<f32>> {
    assert!(ctx.task().is_some());
    Ok(values.iter().map(|value| value * factor).collect())
}

#[op]
fn nothing() {}

/// Every way to take an input; `self`-like names don't clash with those of the macro.
#[op]
fn takes(
    ctx: &dchost_guest::WorkerContext,
    task: Tensor,
    mut inputs: Vec<i64>,
    _: &[u8; 2],
    function: &[i32],
    takes: f64,
    rest: &[Tensor],
) -> (Tensor, i64, [u8; 2], Vec<Tensor2>, f64) {
    inputs.push(i64::from(ctx.num_workers()));
    (task, inputs.iter().sum(), [function.len() as u8, rest.len() as u8], Vec::new(), takes)
}

/// A name for an element type.
type Tensor2 = i32;

#[op]
fn split(tensor: &Tensor) -> std::result::Result<Vec<Tensor>, Box<dyn Error>> {
    Ok(tensor.to_vec::<f32>()?.into_iter().map(Tensor::scalar).collect())
}

/// Ops of a module are named after their function alone.
mod linear {
    use super::*;

    #[op]
    pub(super) fn add_n(all: Vec<Tensor>) -> Result<f32> {
        all.iter().map(|tensor| tensor.item::<f32>()).sum()
    }

    #[op]
    pub(crate) fn variable(ctx: &WorkerContext) -> Result<Value<f32>> {
        ctx.variable("v").shape([2, 2]).on(ctx.task().ok_or("no task")?).declare()?.read()
    }
}

ops![scaled, nothing, takes, split, linear::add_n, linear::variable];

/// Runs `train` on the chief of two workers and a ps, and gives what it returned.
fn on_chief<T: Send + Sync>(train: impl Fn(&WorkerContext) -> Result<T> + Sync) -> T {
    let cluster = MockCluster::builder().workers(2).ps(1).ops(OPS).build();
    let run = cluster.run(|ctx| if ctx.is_chief() { train(ctx).map(Some) } else { Ok(None) });
    run.unwrap().swap_remove(0).expect("the chief has run")
}

#[test]
fn functions_stay_as_they_are_and_are_listed_by_name() {
    nothing();
    assert_eq!(split(&Tensor::vector(&[1.0_f32])).unwrap(), [Tensor::scalar(1.0_f32)]);
    let names: Vec<_> = OPS.names().collect();
    assert_eq!(names, ["scaled", "nothing", "takes", "split", "add_n", "variable"]);
}

#[test]
fn inputs_and_results_of_every_type_arrive() {
    on_chief(|ctx| {
        let values = vec![1.0_f32, 2.0];
        let calls = [
            scaled::start(ctx, worker(1), &values, 2.0)?,
            scaled::start(ctx, ps(0), &[1.0, 2.0], &Tensor::scalar(2.0_f32))?,
            scaled::start(ctx, worker(0), &Tensor::vector(&values), 2.0)?,
            scaled::start(ctx, worker(0), &values[..], 2.0)?,
        ];
        for call in calls {
            assert_eq!(call.op(), "scaled");
            assert_eq!(call.get()?, [2.0, 4.0]);
        }
        nothing::start(ctx, worker(1))?.get()?;
        let rest = vec![Tensor::scalar(0_u8); 3];
        let call = takes::start(ctx, worker(1), Tensor::scalar(3_u8), &[4, 5], &[1, 2], &[7], 0.5, &rest)?;
        assert_eq!(call.get()?, (Tensor::scalar(3_u8), 11, [1, 3], vec![], 0.5));
        let parts = split::start(ctx, worker(1), &values)?.get()?;
        assert_eq!(linear::add_n::start(ctx, worker(1), &parts)?.get()?, 3.0);
        assert_eq!(linear::add_n::start(ctx, worker(1), vec![Input::from(1.5_f32), (&parts[1]).into()])?.get()?, 3.5);
        Ok(())
    });
}

#[test]
fn kept_values_go_from_task_to_task() {
    on_chief(|ctx| {
        let doubled: RemoteValue = scaled::start(ctx, worker(1), &[1.0, 2.0], 2.0)?.keep()?;
        assert_eq!(doubled.on(), worker(1));
        assert_eq!(format!("{doubled:?}"), "RemoteValue(on worker:1)");
        let again = scaled::start(ctx, ps(0), &doubled, 10.0)?;
        assert_eq!(again.get()?, [20.0, 40.0]);
        let parts: Vec<RemoteValue> = split::start(ctx, worker(0), &doubled)?.keep()?;
        assert_eq!(linear::add_n::start(ctx, worker(1), &parts)?.get()?, 6.0);
        let sum = ctx.op("add_n").inputs(&parts).input(1.0_f32).returning::<f32>().start(worker(1))?;
        assert_eq!(sum.get()?, 7.0);
        assert_eq!(doubled.fetch()?, Tensor::vector(&[2.0_f32, 4.0]));
        assert_eq!(doubled.fetch()?.len(), 2);
        Ok(())
    });
}

#[test]
fn an_op_has_the_variables_of_its_task() {
    on_chief(|ctx| {
        let v = ctx.variable::<f32>("v").shape([2, 2]).on(ps(0)).declare()?;
        v.initialize(&[1.0, 2.0, 3.0, 4.0])?;
        let value = linear::variable::start(ctx, ps(0))?.get()?;
        assert_eq!((value.shape(), &value[..]), (&[2, 2][..], &[1.0, 2.0, 3.0, 4.0][..]));
        let error = linear::variable::start(ctx, worker(1))?.get().unwrap_err();
        let expected = "op `variable` on worker:1 failed: uninitialized: `v` without a value: initialize first";
        assert_eq!((error.code, &*error.message), (ErrorCode::Unknown, expected));
        Ok(())
    });
}

#[test]
fn inputs_that_an_op_does_not_take_are_told_by_name() {
    on_chief(|ctx| {
        let check = |op: &str, inputs: &[Tensor], expected: &str| {
            let error = ctx.op(op).inputs(inputs).start(worker(1))?.get().unwrap_err();
            assert_eq!(error.to_string(), format!("op `{op}` on worker:1 failed: {expected}"));
            assert_eq!(error.tasks, [worker(1)]);
            Ok(())
        };
        let floats = Tensor::vector(&[1.0_f32, 2.0]);
        check("scaled", &[], "it takes 2 inputs (`values`, `factor`), 0 given")?;
        check("nothing", std::slice::from_ref(&floats), "it takes no inputs, 1 given")?;
        check("split", &[], "it takes 1 input (`tensor`), 0 given")?;
        let takes = "`task`, `inputs`, `input3`, `function`, `takes`, `rest`";
        check("takes", &[], &format!("it takes 5 inputs or more ({takes}), 0 given"))?;
        check(
            "scaled",
            &[Tensor::scalar(1_i32), floats.clone()],
            "its input `values` is a tensor of f32, s32[] given",
        )?;
        check("scaled", &[floats.clone(), floats.clone()], "its input `factor` is one f32, f32[2] given")?;
        let inputs = [floats.clone(), Tensor::scalar(1_i64), floats.clone(), floats.clone(), floats.clone()];
        check("takes", &inputs, "its input `input3` is a tensor of 2 u8, f32[2] given")
    });
}

#[test]
fn results_that_a_caller_does_not_expect_are_its_mistake() {
    on_chief(|ctx| {
        let error = ctx.op("scaled").input(&[1.0_f32, 2.0]).input(1.0_f32).returning::<f32>().start(worker(1))?.get();
        let expected = "invalid-argument: op `scaled` on worker:1: one f32 is expected here, the result is f32[2]";
        assert_eq!(error.unwrap_err().to_string(), expected);
        let error = ctx.op("nothing").returning::<(f32, f32)>().start(worker(1))?.keep().unwrap_err();
        let expected = "invalid-argument: op `nothing` on worker:1: 2 results are expected here, not 0";
        assert_eq!(error.to_string(), expected);
        let error = ctx.op("nothing").returning::<f32>().start(worker(1))?.get().unwrap_err();
        assert!(error.message.ends_with("1 result is expected here, not 0"), "{error}");
        let error = ctx.op("add_n").input(1.0_f32).returning::<[f32; 2]>().start(worker(1))?.get().unwrap_err();
        assert!(error.message.ends_with("a tensor of 2 f32 is expected here, the result is f32[]"), "{error}");
        Ok(())
    });
}

#[test]
fn calls_of_several_types_are_waited_for_together() {
    on_chief(|ctx| {
        let v = ctx.variable::<f32>("w").on(ps(0)).declare()?;
        v.initialize(1.0)?;
        let (call, other, read) =
            (nothing::start(ctx, worker(1))?, scaled::start(ctx, ps(0), &[], 1.0)?, ctx.start_read([&v])?);
        let first = wait_any([&call as &dyn Wait, &other, &read]);
        assert!(first.is_some_and(|index| index < 3), "{first:?}");
        assert_eq!(wait_any(&[] as &[dchost_guest::Call]), None);
        assert_eq!(format!("{other:?}"), "Call(`scaled` on ps:0)");
        other.get()?;
        call.get()
    });
}
