//! What the typed face and its two implementations (`wasm`, `mock`) exchange.

use crate::{DType, Task, Tensor, imp};

/// Where a variable lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Auto,
    On(Task),
    Sharded,
}

/// What `initialize` does with a variable that has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitializeMode {
    Overwrite,
    IfAbsent,
}

/// How an update changes the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdateKind {
    Assign,
    Add,
    Sub,
    Min,
    Max,
}

/// How an update is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) want_values: bool,
    pub(crate) relaxed: bool,
}

impl Write {
    /// Answers with the new values.
    pub(crate) const WITH_VALUES: Write = Write { want_values: true, relaxed: false };

    /// Seen block by block.
    pub(crate) const RELAXED: Write = Write { want_values: false, relaxed: true };
}

/// One update of one variable.
#[derive(Clone, Copy)]
pub(crate) struct RawChange<'a> {
    pub(crate) variable: &'a imp::Variable,
    pub(crate) kind: UpdateKind,
    /// All elements, little-endian; the type is the variable's.
    pub(crate) data: &'a [u8],
    pub(crate) base: Option<u64>,
}

/// A method that makes changes of gradients, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RawOptimizer {
    Sgd { learning_rate: f64 },
    Momentum { learning_rate: f64, momentum: f64, nesterov: bool },
    Adagrad { learning_rate: f64, decay: f64, epsilon: f64 },
    RmsProp { learning_rate: f64, decay: f64, epsilon: f64 },
    Adam(RawAdam),
    AdamW(RawAdam),
}

/// The numbers of Adam and AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RawAdam {
    pub(crate) learning_rate: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) epsilon: f64,
    pub(crate) weight_decay: f64,
}

impl RawAdam {
    pub(crate) fn new(learning_rate: f64, weight_decay: f64) -> Self {
        RawAdam { learning_rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay }
    }
}

impl RawOptimizer {
    /// The name, as a host tells it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            RawOptimizer::Sgd { .. } => "sgd",
            RawOptimizer::Momentum { .. } => "momentum",
            RawOptimizer::Adagrad { .. } => "adagrad",
            RawOptimizer::RmsProp { .. } => "rmsprop",
            RawOptimizer::Adam(_) => "adam",
            RawOptimizer::AdamW(_) => "adamw",
        }
    }
}

/// Which step of synchronous replicas gradients belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawSync {
    pub(crate) step: u64,
    pub(crate) replicas: u32,
}

/// How gradients are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RawApply {
    pub(crate) clip_norm: Option<f64>,
    pub(crate) sync: Option<RawSync>,
    pub(crate) want_values: bool,
}

/// The gradient of one variable.
#[derive(Clone, Copy)]
pub(crate) struct RawGradient<'a> {
    pub(crate) variable: &'a imp::Variable,
    /// All elements, little-endian; the type is the variable's.
    pub(crate) data: &'a [u8],
}

/// An update of some rows of one variable.
#[derive(Clone, Copy)]
pub(crate) struct RawRowChange<'a> {
    pub(crate) variable: &'a imp::Variable,
    pub(crate) kind: UpdateKind,
    /// Along axis 0.
    pub(crate) rows: &'a [u64],
    /// All elements of as many rows, little-endian; the type is the variable's.
    pub(crate) data: &'a [u8],
}

/// A value and the version that it was read at or that the write made.
#[derive(Clone, Debug)]
pub(crate) struct RawValue {
    pub(crate) tensor: Tensor,
    pub(crate) version: u64,
}

/// An input of an op.
#[derive(Clone, Copy)]
pub(crate) enum RawInput<'a> {
    /// All elements, little-endian.
    Tensor {
        dtype: DType,
        shape: &'a [usize],
        data: &'a [u8],
    },
    Remote(&'a imp::Remote),
}

/// A batch of matrix products.
#[cfg_attr(not(target_arch = "wasm32"), expect(dead_code, reason = "the mock cluster has no kernels"))]
pub(crate) struct RawMatmul<'a> {
    pub(crate) dtype: DType,
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) n: usize,
    /// All elements, little-endian.
    pub(crate) a: &'a [u8],
    pub(crate) b: &'a [u8],
    pub(crate) transpose_a: bool,
    pub(crate) transpose_b: bool,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
}
