//! The network's parameters as variables of the cluster.

use crate::network::Parameters;
use crate::options::Options;
use dchost_guest::{Change, Result, Value, Variable, WorkerContext};
use std::time::Duration;

/// Time between two looks at a counter.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The parameters and the steps that led to them, as one call reads them.
pub(crate) type Variables<'s> =
    (&'s Variable<f32>, &'s Variable<f32>, &'s Variable<f32>, &'s Variable<f32>, &'s Variable<i64>);

/// Their values.
pub(crate) type Values = (Value<f32>, Value<f32>, Value<f32>, Value<f32>, Value<i64>);

/// Variables that all tasks share. Where each lives is left to the host: on a ps task, without ps tasks on the leader.
pub(crate) struct Shared {
    parameters: [Variable<f32>; 4],
    /// Steps of all workers together.
    step: Variable<i64>,
    /// Workers that are done, counted where there is no barrier to wait at.
    finished: Variable<i64>,
    /// Whether the parameters' own versions count the steps.
    sync: bool,
}

impl Shared {
    /// Declares the variables; reaches no other task.
    pub(crate) fn declare(ctx: &WorkerContext, options: &Options) -> Result<Self> {
        let [a, b, c, d] = Parameters::shapes(options.hidden);
        let parameter = |(name, shape): (&str, Vec<usize>)| ctx.variable::<f32>(name).shape(shape).declare();
        Ok(Shared {
            parameters: [parameter(a)?, parameter(b)?, parameter(c)?, parameter(d)?],
            step: ctx.variable::<i64>("step").declare()?,
            finished: ctx.variable::<i64>("finished").declare()?,
            sync: options.sync,
        })
    }

    /// Sets initial values: the chief's business. Parameters and steps that were restored from a checkpoint stay.
    pub(crate) fn initialize(&self, ctx: &WorkerContext, values: &Parameters) -> Result<()> {
        // Nobody is done yet, whatever was saved.
        ctx.initialize([Change::assign(&self.finished, 0)])?;
        let tensors = values.tensors();
        let parameters = self.parameters.iter().zip(tensors).map(|(variable, values)| Change::assign(variable, values));
        ctx.initialize_if_absent(parameters.chain([Change::assign(&self.step, 0)]))
    }

    /// Waits until the chief has set initial values.
    pub(crate) fn wait_initialized(&self, ctx: &WorkerContext) -> Result<()> {
        let [a, b, c, d] = &self.parameters;
        ctx.wait_initialized((a, b, c, d, &self.step, &self.finished), None)
    }

    /// What is read for a step.
    pub(crate) fn variables(&self) -> Variables<'_> {
        let [a, b, c, d] = &self.parameters;
        (a, b, c, d, &self.step)
    }

    /// The parameters as they are now, and the steps that led to them.
    pub(crate) fn pull(&self, ctx: &WorkerContext) -> Result<(Parameters, u64)> {
        let (a, b, c, d, step) = ctx.read(self.variables())?;
        let values = [a, b, c, d];
        let steps = if self.sync { steps(&values) } else { step.scalar().unsigned_abs() };
        Ok((parameters(values), steps))
    }

    /// Subtracts a step from the parameters, whatever others did to them since they were read.
    pub(crate) fn push(&self, ctx: &WorkerContext, step: &Parameters) -> Result<()> {
        ctx.update(self.changes(step))?;
        Ok(())
    }

    /// What a step changes.
    pub(crate) fn changes<'a>(&'a self, step: &'a Parameters) -> impl Iterator<Item = Change<'a>> {
        let counter = Change::add(&self.step, 1);
        let parameters = self.parameters.iter().zip(step.tensors());
        parameters.map(|(variable, values)| Change::sub(variable, values)).chain([counter])
    }

    /// Waits until all `workers` are done.
    pub(crate) fn wait_for_all(&self, ctx: &WorkerContext, workers: usize) -> Result<()> {
        if workers == 1 {
            return Ok(());
        }
        if ctx.has_barrier() {
            return ctx.wait_for_other_workers();
        }
        self.finished.add(1)?;
        // Only the chief reports, so only it needs to know.
        while ctx.is_chief() && self.finished.read()?.scalar().unsigned_abs() < workers as u64 {
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

/// What was read, as the network takes it, and the steps that were counted.
pub(crate) fn with_steps((a, b, c, d, step): Values) -> (Parameters, u64) {
    (parameters([a, b, c, d]), step.scalar().unsigned_abs())
}

/// Values as the network takes them.
pub(crate) fn parameters(values: [Value<f32>; 4]) -> Parameters {
    let [hidden_weights, hidden_biases, output_weights, output_biases] = values.map(Value::into_vec);
    Parameters { hidden_weights, hidden_biases, output_weights, output_biases }
}

/// How many synchronous steps all of these have made: initial values are version 1. They may lie on several tasks, of which one is
/// ahead of the other while a step is made.
pub(crate) fn steps(values: &[Value<f32>; 4]) -> u64 {
    values.iter().map(Value::version).min().unwrap_or(1).saturating_sub(1)
}
