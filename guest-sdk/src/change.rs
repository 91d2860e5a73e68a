//! Updates of variables, and what they may be given as values.

use crate::raw::{InitializeMode, RawChange, RawValue, UpdateKind, Write};
use crate::variable::Core;
use crate::{Element, Error, Result, Tensor, Value, Variable, imp};
use std::borrow::Cow;

/// What may stand for a variable's value: all its elements as a slice, vector, array, [`Value`] or [`Tensor`] (used in
/// place, never copied), or one number, which then stands for every element.
pub trait Operand<'a, T: Element> {
    #[doc(hidden)]
    fn operand(self, name: &str, shape: &[usize], len: usize) -> Result<Cow<'a, [u8]>>;
}

impl<'a, T: Element> Operand<'a, T> for &'a [T] {
    fn operand(self, name: &str, shape: &[usize], len: usize) -> Result<Cow<'a, [u8]>> {
        if self.len() == len {
            return Ok(Cow::Borrowed(bytemuck::cast_slice(self)));
        }
        Err(Error::invalid(format!("`{name}` of shape {shape:?} has {len} elements, {} are given", self.len())))
    }
}

impl<'a, T: Element, const N: usize> Operand<'a, T> for &'a [T; N] {
    fn operand(self, name: &str, shape: &[usize], len: usize) -> Result<Cow<'a, [u8]>> {
        self.as_slice().operand(name, shape, len)
    }
}

impl<'a, T: Element> Operand<'a, T> for &'a Vec<T> {
    fn operand(self, name: &str, shape: &[usize], len: usize) -> Result<Cow<'a, [u8]>> {
        self.as_slice().operand(name, shape, len)
    }
}

impl<'a, T: Element> Operand<'a, T> for &'a Value<T> {
    fn operand(self, name: &str, shape: &[usize], len: usize) -> Result<Cow<'a, [u8]>> {
        (**self).operand(name, shape, len)
    }
}

impl<'a, T: Element> Operand<'a, T> for &'a Tensor {
    fn operand(self, name: &str, shape: &[usize], _: usize) -> Result<Cow<'a, [u8]>> {
        if self.dtype() == T::DTYPE && self.shape() == shape {
            return Ok(Cow::Borrowed(self.bytes()));
        }
        Err(Error::invalid(format!("`{name}` is {}{shape:?}, the value is {self}", T::DTYPE)))
    }
}

macro_rules! scalar_operand {
    ($($type:ty),*) => {$(
        impl<'a> Operand<'a, $type> for $type {
            fn operand(self, _: &str, _: &[usize], len: usize) -> Result<Cow<'a, [u8]>> {
                let element = bytemuck::bytes_of(&self);
                Ok(Cow::Owned(element.repeat(len)))
            }
        }
    )*};
}
scalar_operand!(f32, f64, i32, i64, u8);

/// One change of one variable, for [`WorkerContext::update`](crate::WorkerContext::update) and its kin.
///
/// Changes of variables with different element types go into one call.
#[must_use = "a change is made by `update` or `initialize`"]
pub struct Change<'a> {
    core: &'a Core,
    kind: UpdateKind,
    data: Result<Cow<'a, [u8]>>,
    base: Option<u64>,
}

impl<'a> Change<'a> {
    fn new<T: Element>(variable: &'a Variable<T>, kind: UpdateKind, value: impl Operand<'a, T>) -> Self {
        let core = &*variable.core;
        let data = value.operand(&core.name, &core.shape, core.len);
        Change { core, kind, data, base: None }
    }

    /// Replaces the value.
    pub fn assign<T: Element>(variable: &'a Variable<T>, value: impl Operand<'a, T>) -> Self {
        Change::new(variable, UpdateKind::Assign, value)
    }

    /// Adds, element by element.
    pub fn add<T: Element>(variable: &'a Variable<T>, value: impl Operand<'a, T>) -> Self {
        Change::new(variable, UpdateKind::Add, value)
    }

    /// Subtracts, element by element.
    pub fn sub<T: Element>(variable: &'a Variable<T>, value: impl Operand<'a, T>) -> Self {
        Change::new(variable, UpdateKind::Sub, value)
    }

    /// Takes the smaller of both, element by element.
    pub fn min<T: Element>(variable: &'a Variable<T>, value: impl Operand<'a, T>) -> Self {
        Change::new(variable, UpdateKind::Min, value)
    }

    /// Takes the greater of both, element by element.
    pub fn max<T: Element>(variable: &'a Variable<T>, value: impl Operand<'a, T>) -> Self {
        Change::new(variable, UpdateKind::Max, value)
    }

    /// Makes the change only if the variable still has this version; else the update fails with `aborted`, whose message has both
    /// versions, and nothing of the call on that variable's task is changed. Read the variable again, and try again from there.
    ///
    /// ```
    /// # use dchost_guest::{Change, ErrorCode, MockCluster, Result, WorkerContext};
    /// # MockCluster::local().run(|ctx| -> Result<()> {
    /// let w = ctx.variable::<f32>("w").declare()?;
    /// w.initialize(1.0)?;
    /// loop {
    ///     let old = w.read()?;
    ///     let new = old.scalar() * 2.0;
    ///     match ctx.update([Change::assign(&w, new).if_version(old.version())]) {
    ///         Err(error) if error.code == ErrorCode::Aborted => continue,
    ///         other => break drop(other?),
    ///     }
    /// }
    /// assert_eq!(w.read()?.scalar(), 2.0);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn if_version(mut self, version: u64) -> Self {
        self.base = Some(version);
        self
    }

    /// Whether it comes to the same before or after others of its kind.
    pub(crate) fn commutes(&self) -> bool {
        matches!(self.kind, UpdateKind::Add | UpdateKind::Sub) && self.base.is_none()
    }

    /// The change as the implementations take it, or the error of its value.
    fn raw(&self) -> Result<RawChange<'_>> {
        let data = self.data.as_deref().map_err(Clone::clone)?;
        Ok(RawChange { variable: &self.core.imp, kind: self.kind, data, base: self.base })
    }
}

impl imp::Context {
    pub(crate) fn initialize_changes(&self, changes: Vec<Change<'_>>, mode: InitializeMode) -> Result<()> {
        let mut values = Vec::with_capacity(changes.len());
        for change in &changes {
            if change.kind != UpdateKind::Assign || change.base.is_some() {
                return Err(Error::invalid(format!(
                    "`{}` is initialized by a plain `Change::assign` only",
                    change.core.name
                )));
            }
            let raw = change.raw()?;
            values.push((raw.variable, raw.data));
        }
        self.initialize(&values, mode)
    }

    pub(crate) fn update_changes(&self, changes: Vec<Change<'_>>, write: Write) -> Result<Vec<RawValue>> {
        let raw = changes.iter().map(Change::raw).collect::<Result<Vec<_>>>()?;
        self.update(&raw, write)
    }

    pub(crate) fn start_update_changes(&self, changes: Vec<Change<'_>>, write: Write) -> Result<imp::Pending> {
        let raw = changes.iter().map(Change::raw).collect::<Result<Vec<_>>>()?;
        self.start_update(&raw, write)
    }
}
