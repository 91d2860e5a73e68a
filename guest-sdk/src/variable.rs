//! Variables: named state that lives on tasks of the cluster.

use crate::change::{Change, Operand};
use crate::raw::{InitializeMode, Placement, RawValue, Write};
use crate::{Element, Error, Read, Result, Task, Value, imp, tensor};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// A variable of elements `T` that lives on a task of the cluster. Cheap to clone.
///
/// Declaring reaches no other task. Every run that declares the same name at the same place shares one storage, which
/// appears when one of them (usually the chief) initializes it. Each update is atomic for its variable, and a read sees
/// whole updates, unless one of them is [relaxed](crate::Read::relaxed); for a large variable on several ps tasks that holds [of
/// each part](VariableBuilder::sharded).
///
/// # Errors
/// All calls that reach the storage: `uninitialized` before it was initialized; `invalid-argument` for a wrong number of
/// values, or where somebody initialized the name with another type or shape; `unavailable` where its task can't be
/// reached before the connect timeout; `peer-failed` and `peer-restarted` with the task; `cancelled`. Writes from an
/// evaluator to a variable of the training are `failed-precondition`: it is chief of its own run, and would otherwise
/// reset the job's variables.
#[derive(Clone)]
pub struct Variable<T: Element> {
    pub(crate) core: Arc<Core>,
    element: PhantomData<T>,
}

/// The part of a variable that doesn't depend on its element type.
pub(crate) struct Core {
    pub(crate) context: imp::Context,
    pub(crate) imp: imp::Variable,
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) len: usize,
}

/// A declaration under way: [`WorkerContext::variable`](crate::WorkerContext::variable) starts it, [`declare`](VariableBuilder::declare) ends it.
#[must_use = "a variable is there only after `declare`"]
pub struct VariableBuilder<T: Element> {
    context: imp::Context,
    name: String,
    shape: Vec<usize>,
    placement: Placement,
    element: PhantomData<T>,
}

impl<T: Element> VariableBuilder<T> {
    pub(crate) fn new(context: imp::Context, name: String) -> Self {
        VariableBuilder { context, name, shape: Vec::new(), placement: Placement::Auto, element: PhantomData }
    }

    /// Sets the extents, outermost first; without this call the variable is a scalar.
    pub fn shape(mut self, shape: impl AsRef<[usize]>) -> Self {
        self.shape = shape.as_ref().to_vec();
        self
    }

    /// Places the variable on `task`, as in `.on(ps(0))`.
    ///
    /// Without this call the host chooses a ps task by a stable hash of the name; without ps tasks, the leader. Where there are
    /// several ps tasks, a variable of 1 MiB or more is [in parts](VariableBuilder::sharded) on them.
    pub fn on(mut self, task: Task) -> Self {
        self.placement = Placement::On(task);
        self
    }

    /// Spreads the variable over the ps tasks, in parts along axis 0, so that its reads and updates use all of their networks.
    ///
    /// The parts have at least 256 KiB each, and one row; a variable that doesn't make two of them stays whole, as does every
    /// one where there is no second ps task. Programs see no parts: values go out and come back whole. But each part is a
    /// variable of its own to others, so that:
    ///
    /// - an update is atomic for each part, and a read may see it in one part and not yet in another;
    /// - the version is the least of the parts';
    /// - a change with [`if_version`](crate::Change::if_version) is `invalid-argument`: place the variable [on](Self::on) one task.
    ///
    /// Whoever initializes the variable first decides how it is cut; all others go by that.
    ///
    /// ```
    /// use dchost_guest::{MockCluster, Result, WorkerContext, ps};
    ///
    /// fn embed(ctx: &WorkerContext) -> Result<()> {
    ///     let table = ctx.variable::<f32>("table").shape([1000, 256]).sharded().declare()?;
    ///     if ctx.is_chief() {
    ///         table.initialize(0.5)?;
    ///     }
    ///     table.wait_initialized(None)?;
    ///     table.add(1.0)?;
    ///     assert_eq!(table.read()?.len(), 256_000);
    ///     Ok(())
    /// }
    ///
    /// let cluster = MockCluster::builder().workers(2).ps(3).build();
    /// cluster.run(embed).unwrap();
    /// assert_eq!(cluster.value::<f32>("table").map(|all| all.len()), Some(256_000));
    /// let parts = [0, 1, 2].map(|index| cluster.value_on::<f32>(&ps(index), "table").map(|part| part.len() / 256));
    /// assert_eq!(parts, [Some(333), Some(334), Some(333)]);
    /// ```
    pub fn sharded(mut self) -> Self {
        self.placement = Placement::Sharded;
        self
    }

    /// Declares the variable; reaches no other task.
    ///
    /// # Errors
    /// `invalid-argument`: a name that is empty, has more than 256 bytes or control characters; a shape of more than 32
    /// dimensions or whose size overflows; a task that the cluster lacks (a local run has none, so that `on` fails there).
    pub fn declare(self) -> Result<Variable<T>> {
        let VariableBuilder { context, name, shape, placement, element } = self;
        tensor::size_bytes(T::DTYPE, &shape).map_err(|error| Error::invalid(format!("`{name}`: {}", error.message)))?;
        let len = tensor::element_count(&shape).expect("the size in bytes didn't overflow");
        let imp = context.declare(&name, T::DTYPE, &shape, &placement)?;
        Ok(Variable { core: Arc::new(Core { context, imp, name, shape, len }), element })
    }
}

impl<T: Element> Variable<T> {
    /// The name.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Extents, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.core.shape
    }

    /// The number of elements.
    #[expect(clippy::len_without_is_empty, reason = "a variable isn't a collection, and is hardly ever empty")]
    pub fn len(&self) -> usize {
        self.core.len
    }

    /// Sets the initial value: a slice with all elements, a [`Tensor`](crate::Tensor), or one number for all of them.
    ///
    /// Overwrites a value that is there, and wakes everybody who waits for it. Usually the chief's business. Many
    /// variables at once: [`WorkerContext::initialize`](crate::WorkerContext::initialize).
    ///
    /// # Errors
    /// Those of [all calls](Variable#errors), but never `uninitialized`.
    pub fn initialize<'a>(&'a self, value: impl Operand<'a, T>) -> Result<()> {
        self.core.context.initialize_changes(vec![Change::assign(self, value)], InitializeMode::Overwrite)
    }

    /// Sets the initial value unless there is one already, after a restart of the chief for instance.
    ///
    /// # Errors
    /// As [`initialize`](Variable::initialize).
    pub fn initialize_if_absent<'a>(&'a self, value: impl Operand<'a, T>) -> Result<()> {
        self.core.context.initialize_changes(vec![Change::assign(self, value)], InitializeMode::IfAbsent)
    }

    /// Whether the variable has a value; asks once.
    ///
    /// # Errors
    /// Those of [all calls](Variable#errors), but never `uninitialized`.
    pub fn is_initialized(&self) -> Result<bool> {
        Ok(self.core.context.uninitialized(&[&self.core.imp])?.is_empty())
    }

    /// Waits until the variable has a value; `None` waits at most two hours, as TensorFlow's session creator does.
    ///
    /// # Errors
    /// `deadline-exceeded` when the timeout passes; `uninitialized` when the chief's run has ended without initializing
    /// it; else those of [all calls](Variable#errors).
    pub fn wait_initialized(&self, timeout: impl Into<Option<Duration>>) -> Result<()> {
        self.core.context.wait_initialized(&[&self.core.imp], timeout.into())
    }

    /// Reads the value. Many variables in one call: [`WorkerContext::read`](crate::WorkerContext::read).
    ///
    /// # Errors
    /// Those of [all calls](Variable#errors).
    pub fn read(&self) -> Result<Value<T>> {
        self.read_with(Read::new())
    }

    /// Reads the value as `read` says: once it has a version, or as it was a while ago, or block by block.
    ///
    /// # Errors
    /// Those of [all calls](Variable#errors).
    pub fn read_with(&self, read: Read) -> Result<Value<T>> {
        Value::from_raw(single(self.core.context.read(&[&self.core.imp], read)?)?)
    }

    /// Reads the value into a buffer of the variable's number of elements, and returns the version.
    ///
    /// # Errors
    /// `invalid-argument` where the buffer has another length; else those of [all calls](Variable#errors).
    pub fn read_into(&self, buffer: &mut [T]) -> Result<u64> {
        if buffer.len() != self.core.len {
            let Core { name, len, .. } = &*self.core;
            return Err(Error::invalid(format!("`{name}` has {len} elements, the buffer {}", buffer.len())));
        }
        let value = self.read()?;
        buffer.copy_from_slice(&value);
        Ok(value.version())
    }

    /// Replaces the value, and returns the new version.
    ///
    /// # Errors
    /// Those of [all calls](Variable#errors).
    pub fn assign<'a>(&'a self, value: impl Operand<'a, T>) -> Result<u64> {
        self.apply(Change::assign(self, value))
    }

    /// Adds to the value, element by element, and returns the new version.
    ///
    /// # Errors
    /// Those of [all calls](Variable#errors).
    pub fn add<'a>(&'a self, value: impl Operand<'a, T>) -> Result<u64> {
        self.apply(Change::add(self, value))
    }

    /// Subtracts from the value, element by element, and returns the new version.
    ///
    /// # Errors
    /// Those of [all calls](Variable#errors).
    pub fn sub<'a>(&'a self, value: impl Operand<'a, T>) -> Result<u64> {
        self.apply(Change::sub(self, value))
    }

    /// Adds to the value and returns what it became, in one step: a shared counter counts with it.
    ///
    /// # Errors
    /// Those of [all calls](Variable#errors).
    pub fn add_and_read<'a>(&'a self, value: impl Operand<'a, T>) -> Result<Value<T>> {
        let mut values = self.core.context.update_changes(vec![Change::add(self, value)], Write::WITH_VALUES)?;
        Value::from_raw(single(std::mem::take(&mut values))?)
    }

    fn apply(&self, change: Change<'_>) -> Result<u64> {
        Ok(single(self.core.context.update_changes(vec![change], Write::default())?)?.version)
    }
}

impl<T: Element> fmt::Debug for Variable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variable(`{}`, {}{:?})", self.core.name, T::DTYPE, self.core.shape)
    }
}

fn single(values: Vec<RawValue>) -> Result<RawValue> {
    let count = values.len();
    values.into_iter().next().filter(|_| count == 1).ok_or_else(|| {
        Error::new(crate::ErrorCode::Internal, format!("the host answered one variable with {count} values"))
    })
}
